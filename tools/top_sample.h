/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_sample.h - what kvterrace top asks of a lent store for one screen. One thread.
 */
#ifndef TOOLS_TOP_SAMPLE_H
#define TOOLS_TOP_SAMPLE_H

#include "live_store.h"

#include <kvterrace/remote.h>

#define TOP_PARTS_MAX  24u
#define TOP_HEALTH_MAX 16u
#define TOP_NODES_MAX  16u

/* What a family of metrics counts by one of its labels, summed over the others. */
typedef struct top_parts {
    struct {
        char name[40];
        double value;
    } parts[TOP_PARTS_MAX]; /* further ones are not kept */
    size_t count;
} top_parts;

/* Counters count from the store's open. */
typedef struct top_sample {
    uint64_t at_ns;      /* CLOCK_MONOTONIC */
    double open_seconds; /* since the open */
    char version[32];
    kvt_store_stats stats;
    kvt_device_stats devices[LIVE_DEVICES_MAX];
    size_t device_count;
    kvt_health_item health[TOP_HEALTH_MAX];
    size_t health_count;                  /* that there are, maybe more than are kept */
    kvt_remote_node nodes[TOP_NODES_MAX]; /* of the engine; further ones are not kept */
    size_t node_count;
    top_parts misses, refusals, moves, forms;
    top_parts written_mb; /* to SSD, by cause */
} top_sample;

/* KVT_OK; KVT_E_GONE: there is no server; another error of a call. */
KVT_NODISCARD kvt_status tools_top_sample_take(const live_store *live, top_sample *sample);

/* The value of a part; 0 without it. */
double tools_top_part(const top_parts *parts, const char *name);

/* Gets that were hits. */
uint64_t tools_top_hits(const kvt_store_stats *stats);

/* Whether a sample's counters go on from an earlier one's. They begin anew with a new open, in
 * which case rates count from there. */
bool tools_top_goes_on(const top_sample *earlier, const top_sample *sample);

#endif
