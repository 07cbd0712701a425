/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory_node.h - NUMA nodes: which there are, memory from one of them, threads on it.
 *
 * Talks to the kernel alone (/sys and system calls), so that no library is needed. A machine whose
 * kernel knows no nodes has one, number 0, with all processors and all memory.
 *
 * Thread rule: pure functions of their arguments and the calling thread.
 */
#ifndef TIERS_DEVICE_MEMORY_NODE_H
#define TIERS_DEVICE_MEMORY_NODE_H

#include <kvterrace/types.h>

enum { NODE_CPUS_MAX = 8192, NODE_COUNT_MAX = 1024 };

/* Processors, one bit each. */
typedef struct node_cpus {
    unsigned long bits[NODE_CPUS_MAX / 8 / sizeof(unsigned long)];
} node_cpus;

/* The processors of a node; none for a node of memory alone. False: there is no such node. */
bool node_find(uint32_t node, node_cpus *cpus_out);

/* The number of nodes that have memory; at least 1. */
uint32_t node_count(void);

/* Lets pages of this mapping, none of which was touched, come from the node alone. 0 or an errno.
 */
int node_bind_memory(uint32_t node, void *memory, size_t bytes);

/* Moves the calling thread to these processors, if it may use any of them; before_out receives the
 * ones that it had. False: nothing changed. */
bool node_move_thread(const node_cpus *cpus, node_cpus *before_out);
void node_move_back(const node_cpus *before);

/* "0-3,8,10-11\n" as bits. False for anything else. */
bool node_parse_cpus(const char *text, node_cpus *cpus_out);

#endif
