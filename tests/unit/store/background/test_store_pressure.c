/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_pressure.c - the background keeps off a tier whose devices are busy with gets, but for
 * one round in sixteen, and does afterwards what it has put off.
 */
#include "copies_site.h"

#include "base/clock.h"
#include "store/background/maintain.h"
#include "store/core/store.h"

#include <kvterrace/queue.h>

enum { STORED = 64, GETS = 50, MS = 1000000 };

static kvt_view views[GETS];
static char buffers[GETS][SUPPORT_ENTRY_BYTES];

/* A store whose background never has a round of its own, with its first entries on SSD. */
static site *pressed_make(void)
{
    site *s = site_make(8 << 20);
    site_close(s);
    s->options.limits.tick_seconds = 3600;
    site_open(s);
    site_put(s, 0, STORED);
    return s;
}

static bool is_pressed(site *s)
{
    return tiers_pool_is_pressed(s->store->pools[KVT_TIER_SSD]);
}

/* Gets of entries 1..GETS that do not end, until the disks are pressed: 1 MB each at 100 MB/s. */
static kvt_queue *pressed_begin(site *s)
{
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    kvt_request requests[GETS];
    kvt_queue *queue;
    for (int i = 0; i < DISKS; i++)
        assert_ok(tiers_fault_add(s->disks[i].device, &hang));
    for (uint32_t i = 0; i < GETS; i++) {
        views[i] = kvt_view_packed(buffers[i], SUPPORT_ENTRY_BYTES);
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = support_key(i + 1),
                                    .view = &views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    assert_ok(kvt_queue_open(s->store, NULL, &queue));
    assert_ok(kvt_queue_submit(queue, requests, GETS, NULL));
    while (!is_pressed(s))
        base_sleep(MS);
    return queue;
}

/* Lets the reads end; all of them are hits. */
static void pressed_end(site *s, kvt_queue *queue)
{
    kvt_completion done[GETS] = {{.struct_size = sizeof(kvt_completion)}};
    for (int i = 0; i < DISKS; i++)
        tiers_fault_clear(s->disks[i].device);
    for (uint32_t seen = 0; seen < GETS;) {
        assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
        size_t count = kvt_queue_drain(queue, done, GETS);
        for (size_t i = 0; i < count; i++)
            assert_ok(done[i].status);
        seen += (uint32_t)count;
    }
    kvt_queue_close(queue);
}

static void wake(site *s)
{
    pthread_mutex_lock(&s->store->lock);
    maintain_wake(s->store);
    pthread_mutex_unlock(&s->store->lock);
}

/* The promotions are those that the gets have had planned. */
TEST(promotions_wait_until_gets_have_ended)
{
    site *s = pressed_make();
    kvt_queue *queue = pressed_begin(s);
    while (support_stats(s->store).moves.deferred == 0) {
        wake(s);
        base_sleep(MS);
    }
    assert_int_equal(support_stats(s->store).promotions, 0);
    pressed_end(s, queue);
    while (is_pressed(s))
        base_sleep(MS);
    while (support_stats(s->store).promotions == 0) {
        wake(s);
        base_sleep(MS);
    }
    support_gets(s->store, 0, STORED);
    check_budget(s);
}

static bool defers_a_move(site *s, kvt_move_kind kind, kvt_tier from, kvt_tier to)
{
    kvt_move move = {.kind = kind};
    move.from_bytes[from] = move.to_bytes[to] = 4096;
    return pressure_defers_moves(s->store, &move, 1);
}

TEST(one_round_in_sixteen_goes_on)
{
    site *s = pressed_make();
    kvt_queue *queue = pressed_begin(s);
    pthread_mutex_lock(&s->store->lock);
    for (uint32_t round = 1; round <= 48; round++) {
        pressure_begin_round(s->store, false);
        assert_int_equal(pressure_defers(s->store, KVT_TIER_SSD), round % 16 != 0);
        assert_int_equal(pressure_defers_any(s->store), round % 16 != 0);
        assert_false(pressure_defers(s->store, KVT_TIER_DRAM));
        assert_false(pressure_defers(s->store, KVT_TIER_HBM)); /* there is none */
        pressure_end_round(s->store);
        assert_true(pressure_defers(s->store, KVT_TIER_SSD)); /* between two rounds, too */
    }
    pressure_begin_round(s->store, true); /* a caller's own */
    assert_false(pressure_defers_any(s->store));
    pressure_end_round(s->store);
    uint64_t deferred = s->store->counters.moves.deferred;
    assert_true(defers_a_move(s, KVT_MOVE_CHANGE, KVT_TIER_SSD, KVT_TIER_DRAM));
    assert_true(defers_a_move(s, KVT_MOVE_CHANGE, KVT_TIER_DRAM, KVT_TIER_SSD));
    assert_false(defers_a_move(s, KVT_MOVE_CHANGE, KVT_TIER_DRAM, KVT_TIER_DRAM));
    assert_false(defers_a_move(s, KVT_MOVE_EVICT, KVT_TIER_SSD, KVT_TIER_SSD));
    assert_int_equal(s->store->counters.moves.deferred, deferred + 2);
    pthread_mutex_unlock(&s->store->lock);
    pressed_end(s, queue);
    while (is_pressed(s))
        base_sleep(MS);
    pthread_mutex_lock(&s->store->lock);
    pressure_begin_round(s->store, false);
    assert_false(pressure_defers_any(s->store));
    pressure_end_round(s->store);
    pthread_mutex_unlock(&s->store->lock);
}
