/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_open_threads.c - every member of a store is made before the first of its threads
 * starts, whatever parts the options ask for. Each part is opened and closed many times beside a
 * background that never rests and with work in flight, which is what ThreadSanitizer needs; the
 * order itself is looked at when each thread starts, so every build holds it.
 */
#include "ladder_support.h"
#include "open_support.h"

#include "base/thread.h"
#include "remote/remote_memory.h"
#include "store/catalog/catalog_internal.h"
#include "store/hosts/remote_tier.h"
#include "store/watch/watching.h"

#include <kvterrace/lookup.h>
#include <kvterrace/remote.h>

#define ROUNDS 12

typedef struct site {
    open_site base;
    kvt_remote_options remote;
    char watch[128], profile[128], engine[40];
} site;

/* ---- what a starting thread finds ---- */

/* The members that an open makes. */
typedef struct members {
    const void *policy, *staging, *put_staging, *moves, *watch, *watch_path, *catalog;
    const void *pools[KVT_TIER_COUNT];
    const void *remote, *client, *queue, *publisher_staging;
    uint32_t shared, variants; /* no gaps: compared as bytes */
} members;

static const kvt_store *opening; /* the store that is being opened */
static uint32_t started;         /* of its threads */
static members found[32];        /* when each of them started */

static members members_of(const kvt_store *store)
{
    const store_remote *remote = store->remote;
    members all = {.policy = store->policy,
                   .staging = store->staging,
                   .put_staging = store->handover.staging,
                   .moves = store->handover.moves,
                   .watch = store->watch,
                   .watch_path = store->watch != NULL ? store->watch->writer.path : NULL,
                   .catalog = store->catalog,
                   .remote = remote,
                   .client = remote != NULL ? remote->client : NULL,
                   .queue = remote != NULL ? remote->queue : NULL,
                   .publisher_staging = remote != NULL ? remote->staging : NULL,
                   .shared = store->shared,
                   .variants = store->costs.variant_count};
    memcpy(all.pools, store->pools, sizeof all.pools);
    return all;
}

void __real_lifetime_open(kvt_store *store);
void __wrap_lifetime_open(kvt_store *store);
void __wrap_lifetime_open(kvt_store *store)
{
    opening = store;
    started = 0;
    __real_lifetime_open(store);
}

int __real_base_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);
int __wrap_base_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);
int __wrap_base_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    /* Threads of pools, devices and engines know no store. */
    if (opening != NULL &&
        (argument == opening || argument == opening->remote || argument == opening->catalog)) {
        assert_true(started < sizeof found / sizeof found[0]);
        found[started++] = members_of(opening);
    }
    return __real_base_thread_start(thread, run, argument);
}

/* ---- parts ---- */

static void part_memory(site *one)
{
    (void)one;
}

static void part_hbm(site *one)
{
    one->base.options.tiers[KVT_TIER_HBM].capacity_bytes = 1 << 20;
    one->base.options.tiers[KVT_TIER_HBM].emulated = true;
}

static void part_ssd(site *one)
{
    kvt_store_options *options = &one->base.options;
    options->durability.catalog_path = one->base.catalog;
    support_tier(options, KVT_TIER_SSD, &one->base.device, 1);
    options->tiers[KVT_TIER_SSD].unit_bytes = 16384;
    options->durability.persist_bytes_per_s = 1 << 30;
    options->learning.learn_seconds = 1e-3;
}

static void part_ladder(site *one)
{
    const test_rung rung = {"planes:k8v8,g64", 8.5, 0.0005, 0.001, true};
    if (access(one->profile, F_OK) != 0) ladder_make_profile(one->profile, &rung, 1);
    one->base.options.learning.profile_path = one->profile;
    one->base.options.learning.profile_foreign = true;
    one->base.options.loss.ladder = true;
    one->base.options.loss.ladder_layout = support_layout;
    one->base.options.policy = "utility";
}

static void part_remote(site *one)
{
    kvt_remote_options_init(&one->remote);
    one->remote.backend = "memory";
    one->remote.address = one->engine;
    one->remote.namespace_text = "model@1";
    one->remote.publish = KVT_PUBLISH_ALL;
    one->base.options.remote = &one->remote;
}

static void part_absent_engine(site *one)
{
    part_remote(one);
    one->remote.backend = "valkey";
    one->remote.address = "127.0.0.1:1";
    one->remote.deadline_seconds = 1e-3;
}

static void part_watch_file(site *one)
{
    one->base.options.watch.path = one->watch;
    one->base.options.watch.seconds = 0.01;
}

static void part_handover(site *one)
{
    one->base.options.limits.put_staging_bytes = 1 << 20;
}

static void part_all(site *one)
{
    part_hbm(one);
    part_ssd(one);
    part_ladder(one);
    part_remote(one);
    part_watch_file(one);
    part_handover(one);
}

static void site_make(site *one, void (*part)(site *))
{
    kvt_store_options *options = &one->base.options;
    memset(one, 0, sizeof *one);
    open_prepare(&one->base);
    snprintf(one->watch, sizeof one->watch, "%.63s/watch", one->base.folder);
    snprintf(one->profile, sizeof one->profile, "%.63s/profile.db", one->base.folder);
    snprintf(one->engine, sizeof one->engine, "threads");
    options->durability.catalog_path = NULL;
    support_tier(options, KVT_TIER_SSD, NULL, 0);
    options->tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
    options->limits.tick_seconds = 1e-6;
    part(one);
}

/* Opens, puts and asks while the threads are as young as can be, and closes in the middle of it. */
static void run_part(void (*part)(site *), uint32_t least_threads)
{
    site one;
    site_make(&one, part);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        kvt_store *store = open_now(&one.base);
        const members whole = members_of(store);
        assert_ptr_equal(store, opening);
        assert_true(started >= least_threads);
        for (uint32_t i = 0; i < started; i++)
            assert_memory_equal(&found[i], &whole, sizeof whole);
        opening = NULL;
        for (uint32_t i = 0; i < 4; i++) {
            const kvt_key absent = support_key(1000 + i), known = support_key(i);
            const kvt_status put = support_put(store, i);
            assert_true(put == KVT_OK || put == KVT_EXISTS || put == KVT_BUSY);
            (void)!kvt_store_prefetch(store, &known, KVT_TIER_DRAM);
            (void)!kvt_store_prefetch(store, &absent, KVT_TIER_DRAM);
            const kvt_status got = support_get(store, i, NULL);
            assert_true(got == KVT_OK || got == KVT_MISS);
        }
        kvt_store_close(store);
    }
    remote_memory_clear(one.engine);
}

TEST(memory)
{
    run_part(part_memory, 1);
}

TEST(hbm)
{
    run_part(part_hbm, 1);
}

TEST(ssd_and_learning)
{
    run_part(part_ssd, 2);
}

TEST(ladder)
{
    run_part(part_ladder, 1);
}

TEST(other_hosts)
{
    run_part(part_remote, 3);
}

TEST(absent_engine)
{
    run_part(part_absent_engine, 3);
}

TEST(watch_file)
{
    run_part(part_watch_file, 2);
}

TEST(handover)
{
    run_part(part_handover, 2);
}

TEST(all_parts)
{
    run_part(part_all, 6);
}
