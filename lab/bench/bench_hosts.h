/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_hosts.h - hosts on this machine: network namespaces that are joined by links, which end
 * with the process that made them. For root, or whoever may make namespaces.
 *
 *     nodes (bridge, .1) --- link 0 --- host 0 (.10)
 *                        --- ...
 *                        --- link `count` --- this process' own namespace
 *
 * Thread rule: one thread at a time, which is the one that made them: its end is their end.
 */
#ifndef BENCH_BENCH_HOSTS_H
#define BENCH_BENCH_HOSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_HOSTS_MOST 4u

typedef struct bench_hosts {
    pid_t nodes;                   /* holds the namespace of the engine's nodes */
    pid_t hosts[BENCH_HOSTS_MOST]; /* hold those of the hosts */
    uint32_t count;
    char address[32]; /* of the nodes, numeric */
} bench_hosts;

/* Makes the nodes' namespace and those of so many hosts. 0; 77: namespaces cannot be made here; 1.
 */
int bench_hosts_open(uint32_t count, bench_hosts *out);
void bench_hosts_close(bench_hosts *hosts);

/* Takes a link down, and up again. */
bool bench_hosts_cut(const bench_hosts *hosts, uint32_t link, bool down);

#endif
