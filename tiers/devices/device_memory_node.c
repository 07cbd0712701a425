/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory_node.c - NUMA nodes by /sys/devices/system/node and three system calls.
 *
 * A machine whose kernel was built without nodes has no such folder; it counts as one node, number
 * 0, with every processor.
 */
#include "device_memory_node.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODE_FOLDER "/sys/devices/system/node"

enum {
    NODE_WORD_BITS = 8 * sizeof(unsigned long),
    NODE_POLICY_BIND = 2 /* MPOL_BIND of the kernel's mempolicy.h */
};

/* Anything but digits, commas and dashes makes the whole list invalid: the text is the kernel's,
 * but a wrong list would pin a thread to nowhere. */
bool node_parse_cpus(const char *text, node_cpus *cpus_out)
{
    *cpus_out = (node_cpus){{0}};
    while (*text != '\0' && *text != '\n') {
        char *end;
        if (*text < '0' || *text > '9') return false;
        unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (*end == '-') {
            text = end + 1;
            if (*text < '0' || *text > '9') return false;
            last = strtoul(text, &end, 10);
        }
        if (first > last || last >= NODE_CPUS_MAX) return false;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            cpus_out->bits[cpu / NODE_WORD_BITS] |= 1ul << (cpu % NODE_WORD_BITS);
        if (*end != ',' && *end != '\0' && *end != '\n') return false;
        text = *end == ',' ? end + 1 : end;
    }
    return true;
}

/* The first line of a file below NODE_FOLDER. A line that is longer than the buffer is cut and then
 * fails to parse. */
static bool node_read(const char *name, char *line, size_t size)
{
    char path[96];
    snprintf(path, sizeof path, NODE_FOLDER "/%s", name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool read = fgets(line, (int)size, file) != NULL;
    fclose(file);
    return read;
}

/* The nodes that have memory, as bits of processors are. "online" stands in where the kernel does
 * not say which nodes have memory. */
static bool node_read_all(node_cpus *nodes_out)
{
    char line[4096];
    bool read =
        node_read("has_memory", line, sizeof line) || node_read("online", line, sizeof line);
    return read && node_parse_cpus(line, nodes_out);
}

bool node_find(uint32_t node, node_cpus *cpus_out)
{
    char line[4096];
    char name[32];
    node_cpus nodes;
    if (!node_read_all(&nodes)) { /* a kernel without nodes */
        memset(cpus_out, 0xff, sizeof *cpus_out);
        return node == 0;
    }
    if (node >= NODE_COUNT_MAX) return false;
    if ((nodes.bits[node / NODE_WORD_BITS] >> (node % NODE_WORD_BITS) & 1) == 0) return false;
    snprintf(name, sizeof name, "node%u/cpulist", (unsigned)node);
    return node_read(name, line, sizeof line) && node_parse_cpus(line, cpus_out);
}

uint32_t node_count(void)
{
    node_cpus nodes;
    uint32_t count = 0;
    if (!node_read_all(&nodes)) return 1;
    for (size_t i = 0; i < sizeof nodes.bits / sizeof nodes.bits[0]; i++)
        count += (uint32_t)__builtin_popcountl(nodes.bits[i]);
    return count > 0 ? count : 1;
}

/* BIND and not PREFERRED: memory that quietly came from another node would make every figure of the
 * device wrong. */
int node_bind_memory(uint32_t node, void *memory, size_t bytes)
{
    unsigned long mask[NODE_COUNT_MAX / NODE_WORD_BITS] = {0};
    if (node >= NODE_COUNT_MAX) return EINVAL;
    mask[node / NODE_WORD_BITS] = 1ul << (node % NODE_WORD_BITS);
    /* The kernel takes one bit less than it is given. */
    long result = syscall(SYS_mbind, memory, bytes, NODE_POLICY_BIND, mask, NODE_COUNT_MAX + 1, 0);
    return result == 0 ? 0 : errno;
}

/* A set of that many processors, which cpu_set_t is too small for. False when the kernel refuses,
 * as in a container that was given fewer processors. */
static bool node_apply(const node_cpus *cpus)
{
    return syscall(SYS_sched_setaffinity, 0, sizeof cpus->bits, cpus->bits) == 0;
}

/* Only processors that the thread may use already are taken, so limits set from outside stay. */
bool node_move_thread(const node_cpus *cpus, node_cpus *before_out)
{
    node_cpus wanted;
    unsigned long any = 0;
    *before_out = (node_cpus){{0}};
    if (syscall(SYS_sched_getaffinity, 0, sizeof before_out->bits, before_out->bits) <= 0)
        return false;
    for (size_t i = 0; i < sizeof wanted.bits / sizeof wanted.bits[0]; i++) {
        wanted.bits[i] = cpus->bits[i] & before_out->bits[i];
        any |= wanted.bits[i];
    }
    return any != 0 && node_apply(&wanted);
}

void node_move_back(const node_cpus *before)
{
    (void)node_apply(before); /* processors that were taken away meanwhile are no error of ours */
}
