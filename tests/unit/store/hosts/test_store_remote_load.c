/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_load.c - layered loads of entries that other hosts have: begin waits for none
 * of them, layers come when they have answered, and a load may end before. The engine is one in
 * memory, whose answers wait until the test lets them go.
 */
#include "codecs/view_rows.h"
#include "store_remote_support.h"

#include "base/clock.h"
#include "remote/remote_fault.h"

#include <kvterrace/load.h>
#include <kvterrace/queue.h>

#define MOMENT_NS UINT64_C(3000000)

static char data[COUNT][SUPPORT_ENTRY_BYTES];
static remote_fault faults;

/* A store whose engine has faults, and what others have put there. */
typedef struct site {
    kvt_store *writer, *store;
    kvt_queue *queue;
    kvt_key keys[COUNT];
    kvt_view views[COUNT];
    const kvt_view *list[COUNT];
} site;

static void open_site(site *s, double deadline_seconds)
{
    kvt_remote_options remote = remote_options(KVT_PUBLISH_NONE);
    const kvt_queue_options options = {.struct_size = sizeof options};
    memset(&faults, 0, sizeof faults);
    memset(data, 0, sizeof data);
    faults.inner = (remote_config){.backend = "memory", .addresses = ENGINE};
    remote_fault_use(&faults);
    remote.backend = "fault";
    remote.deadline_seconds = deadline_seconds;
    s->writer = open_mode(KVT_PUBLISH_ALL);
    put_all(s->writer);
    s->store = open_with(&remote);
    assert_ok(kvt_queue_open(s->store, &options, &s->queue));
    for (uint32_t i = 0; i < COUNT; i++) {
        s->keys[i] = support_key(i);
        s->views[i] = kvt_view_packed(data[i], SUPPORT_ENTRY_BYTES);
        s->list[i] = &s->views[i];
    }
}

static void close_site(site *s)
{
    if (s->queue != NULL) kvt_queue_close(s->queue);
    kvt_store_close(s->writer);
    kvt_store_close(s->store);
}

static void check_entry_of(uint32_t place, uint32_t number)
{
    char expected[SUPPORT_ENTRY_BYTES];
    support_fill(number, expected);
    assert_memory_equal(data[place], expected, sizeof expected);
}

static void check_entry(uint32_t number)
{
    check_entry_of(number, number);
}

static kvt_load *begin(site *s, size_t count, const kvt_load_options *options)
{
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(s->queue, s->keys, s->list, count, options, &load));
    assert_non_null(load);
    return load;
}

TEST_EACH(clear, NULL);

/* One entry is here, one nowhere, the others on another host, which does not answer yet. */
TEST(begin_waits_for_no_host)
{
    site s;
    kvt_status statuses[6];
    kvt_load_result result = {.struct_size = sizeof result};
    const uint32_t layers = support_layout.layers;
    open_site(&s, 20);
    assert_ok(support_put(s.store, 1));
    s.keys[4] = support_key(900);
    for (int known = 0; known < 2; known++) {
        memset(data, 0, sizeof data);
        atomic_store(&faults.holds, true);
        kvt_load *load = begin(&s, 6, NULL);
        kvt_load_release(load, UINT32_MAX);
        assert_int_equal(kvt_load_wait(load, 1, base_clock_ns() + MOMENT_NS), KVT_E_TIMEOUT);
        assert_int_equal(kvt_load_layers(load), 0);
        assert_int_equal(kvt_load_status(load, 0), KVT_QUEUED);
        assert_int_equal(kvt_load_status(load, 1), KVT_QUEUED);
        atomic_store(&faults.holds, false);
        assert_ok(kvt_load_wait(load, layers, KVT_NO_DEADLINE));
        assert_int_equal(kvt_load_wait(load, layers + 1, KVT_NO_DEADLINE), KVT_E_ARGUMENT);
        assert_int_equal(kvt_load_status(load, 4), KVT_MISS);
        assert_ok(kvt_load_end(load, statuses, &result));
        assert_int_equal(result.entries, 4);
        assert_int_equal(result.layers, layers);
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(statuses[i], i == 4 ? KVT_MISS : KVT_OK);
            if (i != 4) check_entry_of(i, known == 0 || i == 1 ? i : 6 + i);
        }
        /* The second load knows sizes, and asks for all others at once. */
        for (uint32_t i = 0; i < 6; i++) {
            s.keys[i] = i == 4 ? support_key(901) : support_key(6 + i);
            s.keys[1] = support_key(1);
        }
    }
    close_site(&s);
}

static void note(void *context, uint32_t layers)
{
    uint32_t *told = context;
    told[0]++;
    told[1] = layers;
}

/* Nobody has any of it: the load ends with that, and tells who waits for layers. */
TEST(nothing_comes)
{
    site s;
    kvt_status statuses[3];
    kvt_load_result result = {.struct_size = sizeof result};
    uint32_t told[2] = {0, 99};
    open_site(&s, 20);
    for (uint32_t i = 0; i < 3; i++)
        s.keys[i] = support_key(900 + i);
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .deadline_ns = KVT_NO_DEADLINE,
                                      .announced = note,
                                      .announced_context = told};
    atomic_store(&faults.holds, true);
    kvt_load *load = begin(&s, 3, &options);
    assert_int_equal(kvt_load_status(load, 0), KVT_QUEUED);
    atomic_store(&faults.holds, false);
    assert_int_equal(kvt_load_wait(load, 1, KVT_NO_DEADLINE), KVT_MISS);
    assert_ok(kvt_load_wait(load, 0, KVT_NO_DEADLINE));
    kvt_load_release(load, 1);
    assert_int_equal(kvt_load_status(load, 2), KVT_MISS);
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(statuses[i], KVT_MISS);
    assert_int_equal(result.entries + result.layers, 0);
    assert_int_equal(told[0], 1);
    assert_int_equal(told[1], 0);
    /* Now it is known that they are nowhere, and begin says so. */
    assert_int_equal(kvt_load_begin(s.queue, s.keys, s.list, 3, NULL, &load), KVT_MISS);
    close_site(&s);
}

/* Hosts that do not answer: what is here comes, what is there ends at the engine's deadline. */
TEST(silent_hosts_end_at_the_deadline)
{
    site s;
    kvt_status statuses[4];
    open_site(&s, 0.03);
    assert_ok(support_put(s.store, 2));
    atomic_store(&faults.silent, true);
    kvt_load *load = begin(&s, 4, NULL);
    kvt_load_release(load, support_layout.layers);
    assert_ok(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < 4; i++)
        assert_true(i == 2 ? statuses[i] == KVT_OK : statuses[i] < 0 || statuses[i] == KVT_MISS);
    assert_int_equal(statuses[0], KVT_E_TIMEOUT);
    check_entry(2);
    assert_true(stats_of(s.store).timeouts >= 1);
    assert_ok(kvt_load_begin(s.queue, s.keys, s.list, 1, NULL, &load));
    assert_int_equal(kvt_load_wait(load, 1, KVT_NO_DEADLINE), KVT_MISS);
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_int_equal(statuses[0], KVT_E_TIMEOUT);
    close_site(&s);
}

/* A load's own deadline ends its waits, and its asking. */
TEST(a_deadline_ends_the_asking)
{
    site s;
    kvt_status status = KVT_OK;
    open_site(&s, 20);
    atomic_store(&faults.silent, true);
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .deadline_ns = base_clock_ns() + 10 * MOMENT_NS};
    kvt_load *load = begin(&s, 1, &options);
    const kvt_status waited = kvt_load_wait(load, 1, KVT_NO_DEADLINE);
    assert_true(waited == KVT_E_TIMEOUT || waited == KVT_MISS);
    assert_true(base_clock_ns() >= options.deadline_ns);
    assert_ok(kvt_load_end(load, &status, NULL));
    assert_int_equal(status, KVT_E_TIMEOUT);
    close_site(&s);
}

/* A load ends, or its queue closes, at any moment of the asking. */
TEST(asking_is_given_up)
{
    site s;
    open_site(&s, 20);
    for (uint32_t i = 0; i < 60; i++) {
        kvt_status statuses[COUNT];
        atomic_store(&faults.holds, i % 3 != 0);
        kvt_load *load = NULL;
        const kvt_status begun =
            kvt_load_begin(s.queue, s.keys, s.list, 1 + i % COUNT, NULL, &load);
        assert_ok(begun);
        if (i % 3 == 1) atomic_store(&faults.holds, false);
        for (uint32_t turn = 0; turn < i * 50; turn++)
            (void)kvt_load_layers(load);
        assert_ok(kvt_load_end(load, statuses, NULL));
        for (uint32_t k = 0; k < 1 + i % COUNT; k++) {
            assert_true(statuses[k] == KVT_OK || statuses[k] == KVT_E_TIMEOUT);
            if (statuses[k] == KVT_OK) check_entry(k);
        }
    }
    atomic_store(&faults.holds, true);
    s.keys[0] = support_key(901);
    kvt_load *load = begin(&s, 1, NULL);
    kvt_queue_close(s.queue);
    s.queue = NULL;
    assert_int_equal(kvt_load_wait(load, 1, KVT_NO_DEADLINE), KVT_E_STATE);
    kvt_status status = KVT_OK;
    assert_ok(kvt_load_end(load, &status, NULL));
    assert_int_equal(status, KVT_E_TIMEOUT);
    atomic_store(&faults.holds, false);
    close_site(&s);
}

/* One record of many is far larger than was thought: it is asked for again, with room for it. */
TEST(larger_records_are_asked_for_again)
{
    enum { ENTRIES = 8, LARGE = 5 };
    site s;
    kvt_status statuses[ENTRIES];
    kvt_layout layout = support_layout;
    open_site(&s, 20);
    layout.tokens *= 32;
    uint64_t most = 0;
    assert_ok(kvt_layout_bytes(&layout, &most));
    char *from = test_alloc(most), *to = test_zeros(ENTRIES * most);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint64_t bytes = 0;
        layout.tokens = support_layout.tokens * (i == LARGE ? 32 : 1);
        assert_ok(kvt_layout_bytes(&layout, &bytes));
        codecs_kv_sample_fill(&layout, i, from);
        const kvt_entry entry = support_entry(support_key(700 + i), layout, 1e6);
        assert_ok(kvt_store_put(s.writer, &entry, KVT_PACKED(from, bytes)));
        s.keys[i] = entry.key;
        s.views[i] = codecs_packed_view(&layout, to + i * most);
    }
    assert_ok(kvt_remote_flush(s.writer, KVT_NO_DEADLINE));
    /* A size is known, and all are asked for by it before any answers. */
    assert_ok(support_get(s.store, 0, NULL));
    kvt_load *load = begin(&s, 1, NULL);
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, NULL, NULL));
    atomic_store(&faults.holds, true);
    const uint64_t asked = atomic_load(&faults.count);
    load = begin(&s, ENTRIES, NULL);
    atomic_store(&faults.holds, false);
    kvt_load_release(load, layout.layers);
    assert_ok(kvt_load_wait(load, layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint64_t bytes = 0;
        layout.tokens = support_layout.tokens * (i == LARGE ? 32 : 1);
        assert_ok(kvt_layout_bytes(&layout, &bytes));
        codecs_kv_sample_fill(&layout, i, from);
        assert_ok(statuses[i]);
        assert_memory_equal(to + i * most, from, bytes);
    }
    assert_true(atomic_load(&faults.count) >= asked + ENTRIES); /* one of them twice */
    close_site(&s);
}

/* Records that have come stay in staging until their load ends, and a get that needs most of it
 * does not wait for that. */
TEST(a_get_beside_records_that_stay)
{
    enum { ENTRIES = 3 };
    kvt_layout layout = support_layout;
    site s;
    open_site(&s, 20);
    layout.tokens *= 40; /* 1.25 MiB of a staging of 4 */
    uint64_t bytes = 0;
    assert_ok(kvt_layout_bytes(&layout, &bytes));
    char *from = test_alloc(3 * bytes), *to = test_zeros(3 * bytes);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        layout.tokens = support_layout.tokens * (i == ENTRIES - 1 ? 120 : 40);
        const kvt_entry entry = support_entry(support_key(700 + i), layout, 1e6);
        const uint64_t own = i == ENTRIES - 1 ? 3 * bytes : bytes;
        codecs_kv_sample_fill(&layout, i, from);
        assert_ok(kvt_store_put(s.writer, &entry, KVT_PACKED(from, own)));
        s.keys[i] = entry.key;
        s.views[i] = kvt_view_packed(to, own);
    }
    assert_ok(kvt_remote_flush(s.writer, KVT_NO_DEADLINE));
    kvt_load *load = begin(&s, 1, NULL);
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    const uint64_t kept = staging_bytes_out(s.store->staging);
    assert_true(kept >= bytes);
    assert_int_equal(staging_room_to_keep(s.store->staging) + kept, 2 << 20);
    /* A get that waited for the load would be late. */
    char *large = test_zeros(3 * bytes);
    assert_ok(kvt_store_get(s.store, &s.keys[2], KVT_PACKED(large, 3 * bytes),
                            base_clock_ns() + UINT64_C(20000000000), NULL));
    assert_memory_equal(large, from, 3 * bytes);
    assert_ok(kvt_load_end(load, NULL, NULL));
    close_site(&s);
}
