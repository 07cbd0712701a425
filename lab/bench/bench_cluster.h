/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cluster.h - a Valkey or Redis of one's own: servers on this machine, single or as a cluster
 * of masters, which end with the process that started them.
 *
 * Thread rule: one thread at a time per cluster, which is the one that started it: its end is the
 * servers' end.
 */
#ifndef BENCH_BENCH_CLUSTER_H
#define BENCH_BENCH_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_CLUSTER_NODES 8u

typedef struct bench_cluster_options {
    uint32_t nodes;               /* 1 to BENCH_CLUSTER_NODES */
    bool single;                  /* one server that is no cluster */
    bool tls;                     /* they listen to TLS, too, with what the arguments say */
    uint64_t memory_bytes;        /* of each; 0: no bound */
    const char *policy;           /* maxmemory-policy; NULL: allkeys-lru */
    const char *address;          /* numeric; NULL: 127.0.0.1 */
    pid_t space;                  /* whose network namespace the servers are in; 0: this one's */
    const char *const *arguments; /* further ones of each server, NULL at the end; or NULL */
} bench_cluster_options;

typedef struct bench_cluster {
    uint32_t count;
    char folder[96];
    char address[48];
    char addresses[BENCH_CLUSTER_NODES * 56]; /* host:port, with commas */
    struct {
        pid_t pid;                         /* 0: it does not run */
        uint16_t port, bus_port, tls_port; /* tls_port: 0 without */
    } nodes[BENCH_CLUSTER_NODES];
    bench_cluster_options options;
} bench_cluster;

/* Enters the network namespace of a process; the calling thread's alone. */
bool bench_cluster_enter(pid_t space);

/* Starts the servers and waits until all serve. 0; 77: no server is installed here; 1 with a line
 * on stderr. */
int bench_cluster_start(const bench_cluster_options *options, bench_cluster *out);

/* Ends the servers that run, and removes their files. */
void bench_cluster_stop(bench_cluster *cluster);

/* Sends a signal to a node's server, as SIGSTOP and SIGCONT. */
void bench_cluster_signal(const bench_cluster *cluster, uint32_t node, int signal_number);

/* Kills a server, and starts one in its place, which has its slots and none of its objects. False
 * with a line on stderr. */
void bench_cluster_kill(bench_cluster *cluster, uint32_t node);
bool bench_cluster_restart(bench_cluster *cluster, uint32_t node);

/* Sends one command as a line to a node, and takes the begin of the answer. False: there was none.
 * For commands without secrets: words are separated by blanks. */
bool bench_cluster_say(const bench_cluster *cluster, uint32_t node, const char *line, char *answer,
                       uint32_t answer_size);

/* A number of a node's INFO, by its name; -1: there is none. */
double bench_cluster_info(const bench_cluster *cluster, uint32_t node, const char *name);

/* The processor seconds that the servers have used. */
double bench_cluster_cpu_seconds(const bench_cluster *cluster);

#endif
