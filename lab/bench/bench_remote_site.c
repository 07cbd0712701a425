/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote_site.c - the cluster, the clients and the stores of the bench of remote tiers; what
 * a batch of questions takes, and what the engine's memory takes.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_remote.h"

#include "base/clock.h"
#include "bench_parts.h"

#include <kvterrace/remote.h>
#include <stdlib.h>
#include <string.h>

#define SITE_KEYS 512u

uint32_t bench_remote_objects(const bench_remote_site *site, uint64_t bytes)
{
    const uint32_t count = (uint32_t)((UINT64_C(64) << 20) / bytes);
    return site->quick ? 16 : count;
}

kvt_store *bench_remote_store(const bench_cluster *cluster, uint64_t dram_bytes, uint32_t publish,
                              double deadline_seconds, double hint_ttl_seconds)
{
    kvt_store_options options;
    kvt_remote_options remote;
    kvt_store *store = NULL;
    char message[256];
    kvt_store_options_init(&options);
    kvt_remote_options_init(&remote);
    remote.address = cluster->addresses;
    remote.cluster = !cluster->options.single;
    remote.namespace_text = "bench";
    remote.publish = publish;
    remote.deadline_seconds = deadline_seconds;
    remote.hint_ttl_seconds = hint_ttl_seconds;
    options.policy = "lru";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.remote = &remote;
    if (kvt_open(&options, &store, message, sizeof message) == KVT_OK) return store;
    fprintf(stderr, "kvterrace bench remote: %s\n", message);
    return NULL;
}

bool bench_remote_publish(kvt_store *store, uint64_t bytes, uint32_t count)
{
    char *data = bench_buffer(bytes);
    bool good = data != NULL;
    for (uint32_t i = 0; i < count && good; i++) {
        memcpy(data, &i, sizeof i);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bench_remote_key(bytes, i),
                                 .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes},
                                 .recompute_seconds = 1};
        kvt_status status = kvt_put(store, &entry, data, bytes);
        while (status == KVT_BUSY) {
            base_sleep(1000000);
            status = kvt_put(store, &entry, data, bytes);
        }
        good = status == KVT_OK;
        /* What is published before it is evicted is published. */
        if (good && i % 8 == 7) good = kvt_flush(store) == KVT_OK;
        if (good && i % 8 == 7) good = kvt_remote_flush(store, KVT_NO_DEADLINE) == KVT_OK;
    }
    free(data);
    if (good) good = kvt_flush(store) == KVT_OK;
    return good && kvt_remote_flush(store, KVT_NO_DEADLINE) == KVT_OK;
}

int bench_remote_open(const bench_options *options, bench_remote_site *out)
{
    char message[200] = "";
    *out = (bench_remote_site){.quick = options->quick};
    out->has_spaces = options->faults && bench_hosts_open(0, &out->spaces) == 0;
    const int started = bench_cluster_start(
        &(bench_cluster_options){.nodes = 3,
                                 .memory_bytes = UINT64_C(700) << 20,
                                 .address = out->has_spaces ? out->spaces.address : NULL,
                                 .space = out->has_spaces ? out->spaces.nodes : 0},
        &out->cluster);
    if (started == 77)
        fprintf(stderr, "kvterrace bench remote: neither valkey-server nor redis-server is here\n");
    if (started != 0 && out->has_spaces) bench_hosts_close(&out->spaces);
    if (started != 0) return started;
    const remote_config config = {
        .backend = "valkey", .addresses = out->cluster.addresses, .cluster = true};
    kvt_status status = remote_open(&config, &out->client, message, sizeof message);
    for (int i = 0; status == KVT_OK && i < 20; i++) { /* until the map is there */
        remote_request *done[1];
        (void)remote_reap(out->client, done, 0, 1, 10000000);
        base_sleep(2000000);
    }
    out->writer = bench_remote_store(&out->cluster, UINT64_C(192) << 20, KVT_PUBLISH_ALL, 20, 10);
    /* So little memory that no entry stays: each get comes from the engine. */
    out->reader = bench_remote_store(&out->cluster, UINT64_C(64) << 10, KVT_PUBLISH_NONE, 20, 10);
    bool good = status == KVT_OK && out->writer != NULL && out->reader != NULL;
    static const uint64_t sizes[2] = {256u << 10, 2u << 20};
    for (int i = 0; i < 2 && good; i++)
        good = bench_remote_publish(out->writer, sizes[i], bench_remote_objects(out, sizes[i]));
    if (good) return 0;
    fprintf(stderr, "kvterrace bench remote: %s\n", message[0] != '\0' ? message : "no stores");
    bench_remote_close(out);
    return 1;
}

void bench_remote_close(bench_remote_site *site)
{
    kvt_close(site->writer);
    kvt_close(site->reader);
    remote_close(site->client);
    bench_cluster_stop(&site->cluster);
    if (site->has_spaces) bench_hosts_close(&site->spaces);
    site->writer = site->reader = NULL;
    site->client = NULL;
}

/* ---- questions ---- */

static int site_order(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median of asking for one key, 200 times. */
static double site_round_trip(const bench_remote_site *site)
{
    double seconds[200];
    for (int i = 0; i < 200; i++) {
        remote_request request = {.kind = REMOTE_EXISTS,
                                  .key = "bench:none",
                                  .key_bytes = 10,
                                  .deadline_ns = base_clock_ns() + UINT64_C(1000000000)};
        remote_request *done[1];
        remote_submit(site->client, &request);
        while (remote_reap(site->client, done, 1, 1, UINT64_C(1000000000)) == 0)
            continue;
        seconds[i] = (double)(request.finished_ns - request.submitted_ns) * 1e-9;
    }
    qsort(seconds, 200, sizeof *seconds, site_order);
    return seconds[100];
}

bool bench_remote_ask(const bench_remote_site *site, bench_remote_probe *out)
{
    kvt_key keys[SITE_KEYS];
    enum { rounds = 201 };
    double seconds[rounds];
    kvt_remote_stats before = {.struct_size = sizeof before}, after = before;
    /* Answers that count for no time: each call asks anew. */
    kvt_store *store = bench_remote_store(&site->cluster, 1 << 20, KVT_PUBLISH_NONE, 5, 0);
    if (store == NULL) return false;
    for (uint32_t i = 0; i < SITE_KEYS; i++)
        keys[i] = bench_remote_key(7, i);
    bool good = true;
    size_t matched;
    for (int i = 0; i < 10 && good; i++) { /* connections and map */
        good = kvt_match_prefix_until(store, keys, SITE_KEYS, KVT_NO_DEADLINE, &matched) == KVT_OK;
        base_sleep(20000000);
    }
    base_sleep(120000000); /* the statistics follow */
    good = good && kvt_remote_stats_get(store, &before) == KVT_OK;
    for (uint32_t i = 0; i < rounds && good; i++) {
        const uint64_t began_ns = base_clock_ns();
        good = kvt_match_prefix_until(store, keys, SITE_KEYS, KVT_NO_DEADLINE, &matched) == KVT_OK;
        seconds[i] = (double)(base_clock_ns() - began_ns) * 1e-9;
    }
    base_sleep(120000000);
    good = good && kvt_remote_stats_get(store, &after) == KVT_OK;
    kvt_close(store);
    qsort(seconds, rounds, sizeof *seconds, site_order);
    *out = (bench_remote_probe){.requests =
                                    (double)(after.probe_batches - before.probe_batches) / rounds,
                                .seconds = seconds[rounds / 2],
                                .round_trip_s = site_round_trip(site)};
    return good && after.probes - before.probes == (uint64_t)rounds * SITE_KEYS;
}

/* ---- memory ---- */

bool bench_remote_weigh(uint64_t bytes, bench_remote_memory *out)
{
    static bench_cluster cluster;
    const uint32_t count = (uint32_t)((UINT64_C(64) << 20) / bytes);
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    if (bench_cluster_start(&(bench_cluster_options){.nodes = 1, .single = true}, &cluster) != 0)
        return false;
    kvt_store *store = bench_remote_store(&cluster, UINT64_C(128) << 20, KVT_PUBLISH_ALL, 20, 10);
    const double before = bench_cluster_info(&cluster, 0, "used_memory");
    bool good = store != NULL && bench_remote_publish(store, bytes, count) &&
                kvt_remote_stats_get(store, &stats) == KVT_OK && stats.published == count;
    base_sleep(50000000);
    const double after = bench_cluster_info(&cluster, 0, "used_memory");
    kvt_close(store);
    bench_cluster_stop(&cluster);
    out->record_bytes = (double)stats.published_bytes / count;
    out->ratio = (after - before) / (double)stats.published_bytes;
    return good && before > 0 && after > before;
}
