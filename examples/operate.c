/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operate.c - what a server tells its store, and what its operator asks of it: spaces and tenants,
 * hints and leases of a session, loads that are predicted, events, health, and a shutdown that
 * keeps what it can.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, poll */

#include <kvterrace/key.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/remote.h>
#include <kvterrace/watch.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNKS = 8, CHUNK_BYTES = 64 << 10, TENANT = 1 };

static int fail(const char *what, kvt_status status)
{
    fprintf(stderr, "operate: %s: %s\n", what, kvt_status_text(status));
    return 1;
}

/* An instant of CLOCK_MONOTONIC so many seconds from now. */
static uint64_t in_seconds(uint64_t seconds)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (seconds + (uint64_t)now.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A conversation's chunks, each the continuation of the one before. */
static kvt_status put_session(kvt_store *store, kvt_key keys[CHUNKS])
{
    static unsigned char kv[CHUNK_BYTES];
    kvt_status status = KVT_OK;
    for (int i = 0; i < CHUNKS && status == KVT_OK; i++) {
        memset(&keys[i], 0, sizeof keys[i]);
        keys[i].bytes[0] = 7; /* the space comes first: kvt_key_make does all of this */
        keys[i].bytes[8] = (uint8_t)(i + 1);
        memset(kv, i + 1, sizeof kv);
        const kvt_entry entry = {
            .struct_size = sizeof entry,
            .key = keys[i],
            .parent = i > 0 ? &keys[i - 1] : NULL,
            .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof kv, .tokens = 256},
            .recompute_seconds = 0.02};
        status = kvt_store_put(store, &entry, KVT_PACKED(kv, sizeof kv));
    }
    return status == KVT_OK ? kvt_store_flush(store) : status;
}

/* Before a turn: what is there, how long it takes to load, and that it stays. After it: what comes
 * next. */
static kvt_status turn(kvt_store *store, const kvt_key keys[CHUNKS])
{
    double seconds[CHUNKS];
    uint64_t lease = 0;
    size_t matched = 0, reachable = 0;
    kvt_status status = kvt_store_match(store, keys, CHUNKS, NULL, &matched);
    /* Here or on other hosts, of which there are none. */
    if (status == KVT_OK)
        status =
            kvt_store_match(store, keys, CHUNKS,
                            KVT_MATCH(.hosts = true, .deadline_ns = in_seconds(1)), &reachable);
    if (status != KVT_OK || matched != CHUNKS || reachable != CHUNKS) return KVT_E_STATE;
    status = kvt_store_match(store, keys, CHUNKS, KVT_MATCH(.load_seconds = seconds), NULL);
    if (status == KVT_OK)
        status = kvt_lease_begin(store, NULL, keys, CHUNKS, in_seconds(10), NULL, &lease);
    if (status == KVT_OK) status = kvt_lease_extend(store, lease, in_seconds(20));
    kvt_store_stats held = {.struct_size = sizeof held};
    if (status == KVT_OK) status = kvt_store_stats_get(store, &held);
    printf("a turn loads %d chunks, the first in %.6f s; %llu are held\n", CHUNKS, seconds[0],
           (unsigned long long)held.leases.entries);
    if (status == KVT_OK) status = kvt_lease_end(store, lease);
    /* The user reads for a minute; then the next turn is known to come, and is brought up. */
    const kvt_expectation expected = {
        .struct_size = sizeof expected, .kind = KVT_HINT_NEXT_USE, .seconds = 60};
    if (status == KVT_OK) status = kvt_store_hint(store, keys, CHUNKS, &expected, NULL);
    const kvt_status moved = kvt_store_prefetch(store, &keys[0], KVT_TIER_DRAM);
    if (status == KVT_OK && moved != KVT_OK && moved != KVT_REFUSED) status = moved;
    if (status == KVT_OK) status = kvt_store_stats_get(store, &held);
    printf("%llu hints are open\n", (unsigned long long)held.policy.hints.open[KVT_HINT_NEXT_USE]);
    return status;
}

/* Looks at a store as its operator does. */
static kvt_status look(kvt_store *store, const kvt_key *key, kvt_events *events)
{
    kvt_event changes[64];
    size_t count = 0, faults = 0;
    struct pollfd ready = {.fd = kvt_events_fd(events), .events = POLLIN};
    kvt_status status = poll(&ready, 1, 0) == 1 ? KVT_OK : KVT_E_STATE;
    if (status == KVT_OK) status = kvt_events_drain(events, changes, 64, &count, NULL);
    kvt_space_stats space = {.struct_size = sizeof space};
    if (status == KVT_OK) status = kvt_space_stats_get(store, kvt_key_space(key), &space);
    printf("%zu events; the space has %llu entries\n", count, (unsigned long long)space.entries);
    kvt_explanation why;
    memset(&why, 0, sizeof why);
    why.struct_size = sizeof why;
    if (status == KVT_OK) status = kvt_store_explain(store, key, &why);
    printf("the first chunk: %s\n", why.reason != NULL ? why.reason : "-");
    kvt_class_stats class = {.struct_size = sizeof class};
    if (status == KVT_OK) status = kvt_class_stats_get(store, 0, &class);
    kvt_health_item items[4] = {{.struct_size = sizeof items[0]}};
    if (status == KVT_OK) status = kvt_health_get(store, items, 4, &faults, NULL);
    printf("%zu things are out of order\n", faults);
    return faults == 0 ? status : KVT_E_STATE;
}

int main(void)
{
    kvt_store_options options;
    kvt_store *store;
    kvt_events *events = NULL;
    kvt_key keys[CHUNKS];
    char message[256] = "";
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
    if (status != KVT_OK) return fail(message, status);
    /* Half of memory for a tenant, whose model's keys begin with this space. */
    kvt_tenant limits = {.struct_size = sizeof limits, .alpha_seconds = 1, .loss_limit = 1};
    limits.share_bytes[KVT_TIER_DRAM] = 32 << 20;
    const kvt_key space = {{7}};
    status = kvt_tenant_set(store, TENANT, &limits);
    if (status == KVT_OK) status = kvt_space_set(store, kvt_key_space(&space), TENANT);
    if (status == KVT_OK) status = kvt_events_open(store, 1024, &events);
    if (status == KVT_OK) status = put_session(store, keys);
    if (status == KVT_OK) status = turn(store, keys);
    if (status == KVT_OK) status = look(store, &keys[0], events);
    /* Raw KV loses nothing, so there is no loss to learn. */
    if (status == KVT_OK &&
        kvt_quality_observe(store, &keys[0], (kvt_variant){.codec = KVT_CODEC_RAW}, 0, 1) !=
            KVT_E_UNSUPPORTED)
        status = KVT_E_STATE;
    /* A round of background work, and the shutdown: without an SSD nothing survives. */
    if (status == KVT_OK && kvt_store_maintain(store, NULL) < KVT_OK) status = KVT_E_STATE;
    kvt_persist_info kept;
    memset(&kept, 0, sizeof kept);
    kept.struct_size = sizeof kept;
    if (status == KVT_OK && kvt_store_persist(store, in_seconds(5), &kept) != KVT_E_UNSUPPORTED)
        status = KVT_E_STATE;
    kvt_events_close(events);
    kvt_store_close(store);
    return status == KVT_OK ? 0 : fail("a call", status);
}
