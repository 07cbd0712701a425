/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_persist.c - entries of memory are written back to SSD: by kvt_store_persist, at
 * close, by the background; also those that are in motion when the call comes.
 */
#include "copies_site.h"

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* What DRAM alone holds is written to SSD once, and again only when it has changed. */
TEST(persist)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.written, DRAM_ENTRIES);
    assert_int_equal(info.written_bytes, DRAM_ENTRIES * RECORD_BYTES);
    assert_int_equal(info.left + info.without_room + info.displaced, 0);
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
    assert_int_equal(support_stats(s->store).persisted.records, DRAM_ENTRIES);
    uint64_t written = ssd_written(s);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.written, 0);
    assert_int_equal(ssd_written(s), written);
    check_budget(s);
}

TEST(persist_says_what_is_left)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    assert_int_equal(kvt_store_persist(s->store, 1, &info), KVT_E_TIMEOUT);
    assert_int_equal(info.written, 0);
    assert_int_equal(info.left, DRAM_ENTRIES);
    assert_int_equal(info.left_bytes, DRAM_ENTRIES * RECORD_BYTES);
    s->options.durability.close_deadline_seconds = 0; /* and such a close writes nothing */
    site_reopen(s);
    assert_ok(kvt_store_persist(s->store, 1, &info)); /* all that came back is on SSD */
}

/* A failing device costs no entry: what was not written is above still. */
TEST(persist_beside_faults)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    tiers_fault_rule fail = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .status = KVT_E_IO, .os_error = 5};
    for (int i = 0; i < DISKS; i++)
        assert_ok(tiers_fault_add(s->disks[i].device, &fail));
    assert_int_equal(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info), KVT_E_IO);
    assert_int_equal(info.written, 0);
    assert_int_equal(info.left, DRAM_ENTRIES);
    for (int i = 0; i < DISKS; i++)
        tiers_fault_clear(s->disks[i].device);
    assert_int_equal(support_stats(s->store).copies.count, 0);
    support_gets(s->store, 0, ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.left, 0);
}

/* Disks that hold less than all: the entries that were used last are there after a close, and the
 * ones that made way are the oldest. */
TEST(close_keeps_the_best)
{
    enum { ALL = 30 };
    site *s = site_make(12 * RECORD_BYTES);
    site_put(s, 0, ALL);
    site_reopen(s);
    kvt_store_stats stats = support_stats(s->store);
    uint32_t back = (uint32_t)stats.recovered;
    assert_true(back >= 18);
    assert_int_equal(stats.recovery_drops, 0);
    for (uint32_t i = ALL - DRAM_ENTRIES; i < ALL; i++)
        assert_ok(support_get(s->store, i, NULL));
    check_budget(s);
}

/* The background fills free room, in bounded steps, and nothing else. */
TEST(background_writes_back)
{
    site *s = site_make(2 << 20);
    site_close(s);
    s->options.durability.persist_bytes_per_s = 32000000;
    site_open(s);
    site_put(s, 0, ENTRIES);
    for (int i = 0; i < 50 && support_stats(s->store).copies.count < DRAM_ENTRIES; i++) {
        usleep(20000); /* the budget grows with time */
        site_maintain(s, 1);
    }
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
    assert_int_equal(support_stats(s->store).persisted.records, DRAM_ENTRIES);
    uint64_t written = ssd_written(s);
    site_maintain(s, 1);
    assert_int_equal(ssd_written(s), written);
    check_budget(s);
    site_close(s);
    s->options.durability.persist_bytes_per_s = 0;
    site_open(s);
    support_gets(s->store, 0, ENTRIES);
    site_put(s, ENTRIES, ENTRIES + 2);
    site_maintain(s, 1);
    assert_int_equal(support_stats(s->store).persisted.records, 0);
}

TEST(persist_needs_a_catalog)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(2 << 20);
    site_close(s);
    s->options.durability.catalog_path = NULL;
    s->options.format = true;
    site_open(s);
    site_put(s, 0, 2);
    assert_int_equal(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info), KVT_E_UNSUPPORTED);
}

/* ---- what is in motion ---- */

static void hang_writes(site *s)
{
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES};
    for (int i = 0; i < DISKS; i++)
        assert_ok(tiers_fault_add(s->disks[i].device, &hang));
}

static void await_hung_write(site *s)
{
    tiers_fault_counts counts[DISKS] = {{0}};
    while (counts[0].hung + counts[1].hung == 0) {
        usleep(1000);
        for (int i = 0; i < DISKS; i++)
            tiers_fault_counts_get(s->disks[i].device, &counts[i]);
    }
}

static void let_writes_go(site *s)
{
    for (int i = 0; i < DISKS; i++)
        tiers_fault_clear(s->disks[i].device);
}

static void *run_maintain(void *store)
{
    return kvt_store_maintain(store, NULL) == KVT_OK ? NULL : store;
}

static void *run_persist(void *store)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    bool whole = kvt_store_persist(store, KVT_NO_DEADLINE, &info) == KVT_OK && info.left == 0 &&
                 info.without_room == 0 && support_stats(store).copies.count == 1;
    return whole ? NULL : store;
}

/* One entry is being copied, by somebody, to a device that does not answer. Who calls meanwhile is
 * told that it is left, or waits for it. */
static void check_copy_under_way(site *s, void *(*somebody)(void *))
{
    kvt_persist_info info = {.struct_size = sizeof info};
    pthread_t first, second;
    void *failed;
    hang_writes(s);
    assert_int_equal(pthread_create(&first, NULL, somebody, s->store), 0);
    await_hung_write(s);
    assert_int_equal(kvt_store_persist(s->store, base_clock_ns() + 20000000, &info), KVT_E_TIMEOUT);
    assert_int_equal(info.written, 0);
    assert_int_equal(info.left, 1);
    assert_int_equal(info.left_bytes, RECORD_BYTES);
    assert_int_equal(pthread_create(&second, NULL, run_persist, s->store), 0);
    usleep(20000);
    let_writes_go(s);
    assert_int_equal(pthread_join(second, &failed), 0);
    assert_null(failed);
    assert_int_equal(pthread_join(first, &failed), 0);
    assert_null(failed);
    assert_int_equal(support_stats(s->store).copies.count, 1);
    assert_int_equal(support_stats(s->store).persisted.records, 1);
}

TEST(persist_waits_for_the_background)
{
    site *s = site_make(2 << 20);
    site_close(s);
    s->options.durability.persist_bytes_per_s = UINT64_C(1) << 40;
    site_open(s);
    site_put(s, 0, 1);
    usleep(1000);
    check_copy_under_way(s, run_maintain);
}

TEST(persist_waits_for_another)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, 1);
    check_copy_under_way(s, run_persist);
}

/* Plans of gets that no background has carried out: their entries are in motion until it does. */
TEST(persist_calls_queued_plans_off)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    support_gets(s->store, 0, 4);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.written, DRAM_ENTRIES);
    assert_int_equal(info.left + info.without_room + info.displaced, 0);
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
}

/* An entry whose copy makes way for a better one is in memory alone: it is among those for which
 * there was no room, unless it was found some. */
TEST(persist_counts_copies_that_make_way)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *s = site_make(12 * RECORD_BYTES);
    site_put(s, 0, DRAM_ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    for (uint32_t next = DRAM_ENTRIES; next < 26; next++) {
        assert_ok(support_put(s->store, next));
        for (uint32_t i = 1; i < 4; i++)
            assert_ok(support_get(s->store, next - next % i, NULL));
        if (next % 2 == 0) assert_ok(kvt_store_maintain(s->store, NULL));
        assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
        kvt_store_stats stats = support_stats(s->store);
        assert_int_equal(info.left, 0);
        assert_int_equal(stats.policy.entries_by_tier[KVT_TIER_DRAM],
                         stats.copies.count + info.without_room);
        check_budget(s);
    }
}

typedef struct mover {
    site *s;
    atomic_bool stop;
} mover;

static void *run_moves(void *argument)
{
    mover *self = argument;
    for (uint32_t i = 0; !atomic_load(&self->stop); i++) {
        (void)!support_get(self->s->store, i * 7 % ENTRIES, NULL);
        if (i % 2 == 1) (void)!kvt_store_maintain(self->s->store, NULL);
    }
    return NULL;
}

/* Entries go up and down while the call runs; then the process is killed. */
static _Noreturn void persist_and_die(site *s)
{
    mover self = {.s = s};
    pthread_t thread;
    kvt_persist_info info = {.struct_size = sizeof info};
    site_open(s);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (support_put(s->store, i) < 0) _exit(2);
    if (pthread_create(&thread, NULL, run_moves, &self) != 0) _exit(3);
    usleep(3000);
    if (kvt_store_persist(s->store, KVT_NO_DEADLINE, &info) != KVT_OK) _exit(4);
    if (info.left + info.without_room != 0) _exit(5);
    kill(getpid(), SIGKILL);
    _exit(6);
}

TEST(persist_beside_moves_and_a_kill)
{
    site *s = site_make(2 << 20);
    for (int cycle = 0; cycle < 3; cycle++) {
        int ended = 0;
        site_close(s);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) persist_and_die(s);
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
        site_open(s);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            kvt_key key = support_key(i);
            assert_ok(support_get(s->store, i, NULL));
            assert_ok(kvt_store_delete(s->store, &key));
        }
    }
}
