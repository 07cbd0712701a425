/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_store_mooncake.c - two stores over a Mooncake Store with a real engine, for
 * test_remote_mooncake_engine.py.
 *
 *     run_store_mooncake MASTER BYTES OBJECTS SECONDS
 *
 * One store has put and published entries, another one gets them, and entries of its own. It prints
 * a line when the entries are there, and another one for each quarter of a second of gets, while
 * the script does harm to nodes. Counts of wrong bytes decide; figures do not.
 *
 * Thread rule: one thread.
 */
#include "base/clock.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/remote.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCAL      1000000u /* number of the store's own entry */
#define DEADLINE_S 0.05
#define SLACK_S    0.005
#define TICK_NS    UINT64_C(250000000)
#define PAUSE_NS   UINT64_C(2000000)

typedef struct run {
    kvt_store *store;
    size_t bytes;
    uint32_t objects;
    char *data, *expected;
    uint64_t good, misses, timeouts, wrong, late, local_good, local_late;
    double slowest_s;
} run;

static kvt_key run_key(uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    key.bytes[31] = 0x4d;
    return key;
}

/* Bytes that no two entries share. */
static void run_fill(const run *at, uint32_t number, char *data)
{
    memset(data, (int)(number * 37u + 11u), at->bytes);
    memcpy(data, &number, sizeof number);
    memcpy(data + at->bytes - sizeof number, &number, sizeof number);
}

static kvt_store *run_open(const char *master, kvt_publish publish, uint64_t dram_bytes)
{
    kvt_remote_options remote;
    kvt_store_options options;
    kvt_store *store = NULL;
    char name[64], message[256];
    snprintf(name, sizeof name, "mooncake run %ld", (long)getpid());
    kvt_remote_options_init(&remote);
    remote.backend = "mooncake";
    remote.address = master;
    remote.namespace_text = name;
    remote.publish = publish;
    remote.deadline_seconds = publish == KVT_PUBLISH_ALL ? 20 : DEADLINE_S;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.remote = &remote;
    if (kvt_store_open(&options, &store, message, sizeof message) != KVT_OK)
        fprintf(stderr, "%s\n", message);
    return store;
}

static kvt_status run_put(run *at, kvt_store *store, uint32_t number)
{
    run_fill(at, number, at->data);
    const kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = run_key(number),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = (uint32_t)at->bytes},
        .recompute_seconds = 1};
    return kvt_store_put(store, &entry, KVT_PACKED(at->data, at->bytes));
}

/* Gets an entry of another host, and forgets it here. */
static void run_get(run *at, uint32_t number)
{
    const kvt_key key = run_key(number);
    kvt_get_info info = {.struct_size = sizeof info};
    const uint64_t began_ns = base_clock_ns();
    const kvt_status status =
        kvt_store_get(at->store, &key, KVT_PACKED(at->data, at->bytes), KVT_STORE_DEADLINE, &info);
    const double seconds = (double)(base_clock_ns() - began_ns) * 1e-9;
    const bool remote = status == KVT_OK && info.tier == KVT_TIER_REMOTE;
    at->good += remote;
    at->misses += status == KVT_MISS;
    at->timeouts += info.timed_out;
    at->late += seconds > DEADLINE_S + SLACK_S;
    if (seconds > at->slowest_s) at->slowest_s = seconds;
    if (status != KVT_OK) return;
    run_fill(at, number, at->expected);
    at->wrong += memcmp(at->data, at->expected, at->bytes) != 0;
}

static void run_get_local(run *at)
{
    const kvt_key key = run_key(LOCAL);
    const uint64_t began_ns = base_clock_ns();
    const kvt_status status =
        kvt_store_get(at->store, &key, KVT_PACKED(at->data, at->bytes), KVT_STORE_DEADLINE, NULL);
    at->local_good += status == KVT_OK;
    at->local_late += base_clock_ns() - began_ns > (uint64_t)(DEADLINE_S * 1e9);
}

static int run_faults(run *at, uint32_t seconds)
{
    uint32_t number = 0;
    const uint64_t end_ns = base_clock_ns() + seconds * UINT64_C(1000000000);
    printf("ready\n");
    fflush(stdout);
    for (uint32_t tick = 0; base_clock_ns() < end_ns; tick++) {
        const uint64_t tick_end_ns = base_clock_ns() + TICK_NS;
        const run before = *at;
        while (base_clock_ns() < tick_end_ns) {
            run_get(at, number++ % at->objects);
            run_get_local(at);
            base_sleep(PAUSE_NS);
        }
        printf("tick=%u good=%llu misses=%llu timeouts=%llu wrong=%llu late=%llu "
               "slowest_us=%llu local_good=%llu local_late=%llu\n",
               tick, (unsigned long long)(at->good - before.good),
               (unsigned long long)(at->misses - before.misses),
               (unsigned long long)(at->timeouts - before.timeouts), (unsigned long long)at->wrong,
               (unsigned long long)at->late, (unsigned long long)(at->slowest_s * 1e6),
               (unsigned long long)at->local_good, (unsigned long long)at->local_late);
        fflush(stdout);
    }
    return at->wrong == 0 ? 0 : 1;
}

/* Publishes all entries, and opens the store that gets them: it has room for few of them. */
static bool run_prepare(run *at, const char *master)
{
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    kvt_store *writer = run_open(master, KVT_PUBLISH_ALL, (at->objects + 8) * (at->bytes + 65536));
    bool good = writer != NULL;
    for (uint32_t i = 0; i < at->objects && good; i++)
        good = run_put(at, writer, i) == KVT_OK;
    good = good && kvt_remote_flush(writer, KVT_NO_DEADLINE) == KVT_OK &&
           kvt_remote_stats_get(writer, &stats) == KVT_OK;
    kvt_store_close(writer);
    if (!good || stats.published != at->objects) return false;
    at->store = run_open(master, KVT_PUBLISH_NONE, 4 * (at->bytes + 65536));
    return at->store != NULL && run_put(at, at->store, LOCAL) == KVT_OK;
}

int main(int count, char **arguments)
{
    if (count != 5) return 2;
    run at = {.bytes = strtoul(arguments[2], NULL, 10),
              .objects = (uint32_t)strtoul(arguments[3], NULL, 10)};
    if (at.bytes < 64 || at.objects < 16) return 2;
    at.data = malloc(at.bytes);
    at.expected = malloc(at.bytes);
    int status = 1;
    if (at.data != NULL && at.expected != NULL && run_prepare(&at, arguments[1]))
        status = run_faults(&at, (uint32_t)strtoul(arguments[4], NULL, 10));
    kvt_store_close(at.store);
    free(at.data);
    free(at.expected);
    /* Calls that have not returned still use what an exit would take down. */
    fflush(NULL);
    _exit(status);
}
