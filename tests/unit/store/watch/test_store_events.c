/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_events.c - readers of events are told each change that a lookup can see, once and in
 * order, or how many changes they have lost. It runs over a connection, too.
 */
#include "store_support.h"

#include <kvterrace/watch.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

static void events_default(kvt_store_options *options, uint64_t dram_bytes)
{
    *options = support_options(8 << 20, "lru");
    options->tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
}

/* Below DRAM a tier of memory that stands for an SSD. */
static void events_add_ssd(kvt_store_options *options, kvt_device_config *device, uint64_t bytes)
{
    *device = (kvt_device_config){.struct_size = sizeof *device,
                                  .name = "ssd0",
                                  .backend = "memory",
                                  .capacity_bytes = bytes};
    support_tier(options, KVT_TIER_SSD, device, 1);
}

static kvt_store *events_open_store(const kvt_store_options *options)
{
    kvt_store *store = support_open(options);
    return store;
}

static kvt_events *events_open(kvt_store *store, uint32_t capacity)
{
    kvt_events *reader = NULL;
    assert_ok(kvt_events_open(store, capacity, &reader));
    return reader;
}

static bool stores_are_lent(void)
{
    return getenv("KVT_TEST_LENT") != NULL;
}

/* Another process's word comes a moment later. */
static bool events_wait(const kvt_events *reader)
{
    struct pollfd wait = {.fd = kvt_events_fd(reader), .events = POLLIN};
    return poll(&wait, 1, stores_are_lent() ? 300 : 0) == 1;
}

/* The next event, which there is. */
static kvt_event events_next(kvt_events *reader)
{
    kvt_event event;
    size_t count;
    uint64_t lost;
    assert_true(events_wait(reader));
    assert_ok(kvt_events_drain(reader, &event, 1, &count, &lost));
    assert_int_equal(count, 1);
    assert_int_equal(lost, 0);
    return event;
}

static void events_expect(kvt_events *reader, uint32_t number, kvt_event_kind kind, kvt_tier tier)
{
    const kvt_event event = events_next(reader);
    const kvt_key key = support_key(number);
    assert_memory_equal(&event.key, &key, sizeof key);
    assert_int_equal(event.kind, kind);
    assert_int_equal(event.tier, tier);
}

static void events_expect_none(kvt_events *reader)
{
    kvt_event event;
    size_t count = 1;
    assert_false(events_wait(reader));
    assert_ok(kvt_events_drain(reader, &event, 1, &count, NULL));
    assert_int_equal(count, 0);
}

TEST(life)
{
    kvt_store_options options;
    events_default(&options, 4 << 20);
    kvt_store *store = events_open_store(&options);
    assert_ok(support_put(store, 1));
    kvt_events *reader = events_open(store, 64);
    events_expect_none(reader);
    char data[SUPPORT_ENTRY_BYTES];
    support_fill(2, data);
    const kvt_key parent = support_key(1), key = support_key(2);
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = key,
                             .parent = &parent,
                             .layout = support_layout,
                             .first_position = 32,
                             .recompute_seconds = 1,
                             .tenant = 3};
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)));
    const kvt_event stored = events_next(reader);
    assert_int_equal(stored.kind, KVT_EVENT_STORED);
    assert_int_equal(stored.tier, KVT_TIER_DRAM);
    assert_int_equal(stored.tokens, support_layout.tokens);
    assert_int_equal(stored.first_position, 32);
    assert_int_equal(stored.tenant, 3);
    assert_memory_equal(&stored.parent, &parent, sizeof parent);
    assert_true(stored.bytes >= SUPPORT_ENTRY_BYTES && stored.load_seconds > 0);
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)), KVT_EXISTS);
    assert_ok(support_get(store, 1, NULL));
    events_expect_none(reader);
    assert_ok(kvt_store_delete(store, &key));
    const kvt_event removed = events_next(reader);
    assert_int_equal(removed.kind, KVT_EVENT_REMOVED);
    assert_int_equal(removed.reason, KVT_REMOVED_DELETED);
    assert_int_equal(removed.number, stored.number + 1);
    assert_true(removed.instant_ns >= stored.instant_ns && isnan(removed.load_seconds));
    /* One that was stored before anybody asked. */
    assert_ok(kvt_store_delete(store, &parent));
    events_expect(reader, 1, KVT_EVENT_REMOVED, KVT_TIER_DRAM);
    events_expect_none(reader);
    kvt_events_close(reader);
    kvt_store_close(store);
}

/* Demotion, eviction; a put that is handed over, read from staging first, and one called off. */
TEST(moves)
{
    kvt_store_options options;
    kvt_device_config ssd;
    events_default(&options, 1 << 20);
    events_add_ssd(&options, &ssd, 1 << 20);
    kvt_store *store = events_open_store(&options);
    kvt_events *reader = events_open(store, 4096);
    support_puts(store, 0, 100);
    uint32_t stored = 0, moved = 0, removed = 0;
    while (events_wait(reader)) {
        const kvt_event event = events_next(reader);
        stored += event.kind == KVT_EVENT_STORED;
        if (event.kind == KVT_EVENT_MOVED) {
            moved++;
            assert_int_equal(event.source_tier, KVT_TIER_DRAM);
            assert_int_equal(event.tier, KVT_TIER_SSD);
        }
        if (event.kind != KVT_EVENT_REMOVED) continue;
        removed++;
        assert_int_equal(event.reason, KVT_REMOVED_EVICTED);
    }
    const kvt_store_stats stats = support_stats(store);
    assert_int_equal(stored, 100);
    assert_int_equal(moved, stats.demotions);
    assert_int_equal(removed, stats.evictions);
    assert_true(moved > 20 && removed > 20);
    kvt_events_close(reader);
    kvt_store_close(store);

    events_default(&options, 0);
    events_add_ssd(&options, &ssd, 1 << 20);
    options.limits.put_staging_bytes = 1 << 20;
    store = events_open_store(&options);
    reader = events_open(store, 64);
    assert_ok(support_put(store, 1));
    assert_ok(kvt_store_flush(store));
    const kvt_event first = events_next(reader);
    assert_int_equal(first.kind, KVT_EVENT_STORED);
    assert_int_equal(first.tier, KVT_TIER_DRAM);
    assert_int_equal(first.bytes, SUPPORT_ENTRY_BYTES);
    events_expect(reader, 1, KVT_EVENT_MOVED, KVT_TIER_SSD);
    events_expect_none(reader);
    kvt_events_close(reader);
    kvt_store_close(store);
}

TEST(lost_device)
{
    kvt_store_options options;
    events_default(&options, 4 << 20);
    kvt_store *store = events_open_store(&options);
    assert_ok(support_put(store, 1));
    assert_ok(support_put(store, 2));
    kvt_events *reader = events_open(store, 64);
    assert_ok(kvt_device_change(store, "dram", KVT_DEVICE_RETIRE));
    for (int i = 0; i < 2; i++) {
        const kvt_event event = events_next(reader);
        assert_int_equal(event.kind, KVT_EVENT_REMOVED);
        assert_int_equal(event.reason, KVT_REMOVED_LOST);
    }
    events_expect_none(reader);
    kvt_events_close(reader);
    kvt_store_close(store);
}

/* A slow reader loses its oldest events and is told how many; another one loses none. */
TEST(lost_events)
{
    kvt_store_options options;
    events_default(&options, 4 << 20);
    kvt_store *store = events_open_store(&options);
    kvt_events *none = NULL;
    assert_int_equal(kvt_events_open(store, 0, &none), KVT_E_ARGUMENT);
    assert_int_equal(kvt_events_open(store, KVT_EVENTS_CAPACITY_MAX + 1, &none), KVT_E_ARGUMENT);
    assert_int_equal(kvt_events_open(NULL, 1, &none), KVT_E_ARGUMENT);
    kvt_events *slow = events_open(store, 4), *wide = events_open(store, 64);
    support_puts(store, 0, 10);
    kvt_event events[8];
    size_t count;
    uint64_t lost;
    assert_ok(kvt_events_drain(slow, events, 3, &count, &lost));
    assert_int_equal(count, 3);
    assert_int_equal(lost, 6);
    for (uint32_t i = 0; i < 3; i++) {
        const kvt_key key = support_key(6 + i);
        assert_memory_equal(&events[i].key, &key, sizeof key);
    }
    events_expect(slow, 9, KVT_EVENT_STORED, KVT_TIER_DRAM);
    events_expect_none(slow);
    for (uint32_t i = 0; i < 10; i++)
        events_expect(wide, i, KVT_EVENT_STORED, KVT_TIER_DRAM);
    assert_int_equal(kvt_events_drain(slow, NULL, 1, &count, &lost), KVT_E_ARGUMENT);
    kvt_events_close(slow);
    assert_ok(support_put(store, 10));
    kvt_store_close(store);
    if (stores_are_lent()) {
        /* The server has gone, and what waited there: the reader is told that it lost something. */
        assert_ok(kvt_events_drain(wide, events, 8, &count, &lost));
        assert_true(count == 0 && lost == 1);
    } else {
        /* What waited is there still. */
        events_expect(wide, 10, KVT_EVENT_STORED, KVT_TIER_DRAM);
        events_expect_none(wide);
    }
    kvt_events_close(wide);
}

/* ---- threads ---- */

#define EVENTS_KEYS   96u
#define EVENTS_ROUNDS 1000u

typedef struct events_run {
    kvt_store *store;
    uint32_t draw;
} events_run;

static void *events_work(void *argument)
{
    events_run *run = argument;
    for (uint32_t i = 0; i < EVENTS_ROUNDS; i++) {
        run->draw = run->draw * 1664525u + 1013904223u;
        const uint32_t number = (run->draw >> 8) % EVENTS_KEYS, what = run->draw >> 28;
        const kvt_key key = support_key(number);
        if (what < 8) {
            /* Threads that put faster than executors write would tell next to nothing. */
            if (support_put(run->store, number) == KVT_BUSY) (void)!kvt_store_flush(run->store);
        } else if (what < 11)
            (void)!kvt_store_delete(run->store, &key);
        else if (what < 15)
            assert_int_not_equal(support_get(run->store, number, NULL), KVT_E_CORRUPT);
        else
            (void)!kvt_store_maintain(run->store, NULL);
    }
    return NULL;
}

/* What a router knows: which keys are stored, and where. */
typedef struct events_router {
    kvt_events *reader;
    atomic_bool *done;
    uint64_t number;
    uint8_t tiers[EVENTS_KEYS];
    uint64_t told;
} events_router;

static void events_route(events_router *router, const kvt_event *event)
{
    uint32_t at;
    memcpy(&at, event->key.bytes, sizeof at);
    assert_true(at < EVENTS_KEYS);
    assert_int_equal(event->number, ++router->number);
    switch (event->kind) {
    case KVT_EVENT_STORED: assert_int_equal(router->tiers[at], KVT_TIER_NONE); break;
    case KVT_EVENT_MOVED: assert_int_equal(router->tiers[at], event->source_tier); break;
    default:
        assert_int_equal(event->kind, KVT_EVENT_REMOVED);
        assert_int_equal(router->tiers[at], event->tier);
    }
    router->tiers[at] = event->kind == KVT_EVENT_REMOVED ? KVT_TIER_NONE : event->tier;
    router->told++;
}

static void *events_listen(void *argument)
{
    events_router *router = argument;
    kvt_event events[32];
    bool last = false;
    while (!last) {
        size_t count = 1;
        uint64_t lost;
        last = atomic_load(router->done);
        while (count != 0) {
            assert_ok(kvt_events_drain(router->reader, events, 32, &count, &lost));
            assert_int_equal(lost, 0);
            for (size_t i = 0; i < count; i++)
                events_route(router, &events[i]);
        }
        struct pollfd wait = {.fd = kvt_events_fd(router->reader), .events = POLLIN};
        if (!last) (void)poll(&wait, 1, 10);
    }
    return NULL;
}

/* After puts, deletes, gets and moves of several threads the events say exactly what lookups find.
 */
TEST(threads)
{
    for (int staged = 0; staged < 2; staged++) {
        kvt_store_options options;
        kvt_device_config ssd;
        events_default(&options, 1 << 20);
        events_add_ssd(&options, &ssd, 1 << 20);
        if (staged) options.limits.put_staging_bytes = 1 << 20;
        kvt_store *store = events_open_store(&options);
        atomic_bool done = false;
        events_router router = {.reader = events_open(store, 1 << 16), .done = &done};
        pthread_t listener, threads[4];
        events_run runs[4];
        assert_int_equal(pthread_create(&listener, NULL, events_listen, &router), 0);
        for (uint32_t i = 0; i < 4; i++) {
            runs[i] = (events_run){.store = store, .draw = 99 + i};
            assert_int_equal(pthread_create(&threads[i], NULL, events_work, &runs[i]), 0);
        }
        for (uint32_t i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        (void)!support_put(store, 0);
        (void)!kvt_store_flush(store);
        (void)!kvt_store_maintain(store,
                                  NULL); /* evictions that wait in plans are misses already */
        atomic_store(&done, true);
        pthread_join(listener, NULL);
        uint32_t there = 0;
        for (uint32_t i = 0; i < EVENTS_KEYS; i++) {
            const kvt_key key = support_key(i);
            const bool found = kvt_store_exists(store, &key) == KVT_OK;
            assert_int_equal(found, router.tiers[i] != KVT_TIER_NONE);
            there += found;
        }
        assert_true(there > 0 && router.told > EVENTS_KEYS);
        kvt_events_close(router.reader);
        kvt_store_close(store);
    }
}
