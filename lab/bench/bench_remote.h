/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote.h - what the parts of the bench of remote tiers share: the cluster, its clients and
 * the stores that use it.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_REMOTE_H
#define BENCH_BENCH_REMOTE_H

#include "bench.h"
#include "bench_cluster.h"
#include "bench_hosts.h"
#include "remote/client.h"

#include <kvterrace/kvterrace.h>

typedef struct bench_remote_site {
    bench_hosts spaces; /* with faults, where they can be made: the servers are in one */
    bool has_spaces;
    bench_cluster cluster;
    remote_client *client;
    kvt_store *writer, *reader; /* the reader keeps nothing of what it gets */
    bool quick;
} bench_remote_site;

typedef struct bench_remote_probe {
    double requests; /* to nodes, for one batch of questions */
    double seconds;  /* of the batch */
    double round_trip_s;
} bench_remote_probe;

typedef struct bench_remote_memory {
    double record_bytes, ratio;
} bench_remote_memory;

/* Starts a cluster of three with entries of both sizes, published by a store. 0; 1; 77: there is no
 * server. */
int bench_remote_open(const bench_options *options, bench_remote_site *out);
void bench_remote_close(bench_remote_site *site);

/* Opens a store on a cluster: with so much DRAM, publishing as kvt_publish says. */
kvt_store *bench_remote_store(const bench_cluster *cluster, uint64_t dram_bytes, uint32_t publish,
                              double deadline_seconds, double hint_ttl_seconds);

/* Objects of a size that a bench has. */
uint32_t bench_remote_objects(const bench_remote_site *site, uint64_t bytes);

/* The key of an entry of the stores. */
kvt_key bench_remote_key(uint64_t bytes, uint32_t number);

/* Puts entries of a size, and waits until they are published. */
bool bench_remote_publish(kvt_store *store, uint64_t bytes, uint32_t count);

/* Asks for 512 keys that are not here. */
bool bench_remote_ask(const bench_remote_site *site, bench_remote_probe *out);

/* The memory that an engine of its own takes for entries of a size. */
bool bench_remote_weigh(uint64_t bytes, bench_remote_memory *out);

/* The bench with faults. */
int bench_remote_faults(const bench_options *options);

#endif
