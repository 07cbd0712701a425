/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_load_owner.c - other calls on the thread that has a load open: none of them waits for
 * ever for what only the end of the load gives back, and the load is none the worse.
 */
#include "codecs/view_rows.h"
#include "queue_site.h"

#include <kvterrace/load.h>

enum { MOST = 64, PUTS = 60, NEXT = 100 };

static uint32_t numbers[MOST]; /* of the entries that the load holds */
static size_t count;
static char *memory;

TEST_EACH(NULL, queue_site_close);

/* Loads the first `most` entries that are stored. */
static kvt_load *hold(size_t most)
{
    static kvt_key keys[MOST];
    static kvt_view views[MOST];
    const kvt_view *list[MOST];
    kvt_load *load = NULL;
    count = 0;
    for (uint32_t i = 0; i < PUTS && count < most; i++) {
        keys[count] = support_key(i);
        if (kvt_store_exists(store, &keys[count]) == KVT_OK) numbers[count++] = i;
    }
    assert_true(count > 1);
    memory = queue_site_memory(count * SUPPORT_ENTRY_BYTES);
    for (size_t i = 0; i < count; i++) {
        views[i] = codecs_packed_view(&support_layout, memory + i * SUPPORT_ENTRY_BYTES);
        list[i] = &views[i];
    }
    assert_ok(kvt_load_begin(queue, keys, list, count, NULL, &load));
    return load;
}

/* All that the load holds comes, whatever became of the entries meanwhile. */
static void end(kvt_load *load)
{
    char expected[SUPPORT_ENTRY_BYTES];
    kvt_status statuses[MOST];
    kvt_load_release(load, support_layout.layers);
    assert_ok(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (size_t i = 0; i < count; i++) {
        support_fill(numbers[i], expected);
        assert_ok(statuses[i]);
        assert_memory_equal(memory + i * SUPPORT_ENTRY_BYTES, expected, sizeof expected);
    }
}

/* A store whose memory is full, and a load that holds all of it. */
static kvt_load *hold_all(bool staged)
{
    kvt_store_options options = queue_site_options(false);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    if (!staged) options.limits.put_staging_bytes = 0;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(1, 0);
    for (uint32_t i = 0; i < PUTS; i++) {
        assert_ok(support_put(store, i));
        assert_ok(kvt_store_flush(store));
    }
    kvt_load *load = hold(MOST);
    assert_true(count < PUTS / 2 + 3);
    return load;
}

/* The room of the put is what the load holds. */
TEST(a_put_that_makes_its_own_room)
{
    kvt_load *load = hold_all(false);
    assert_int_equal(support_put(store, NEXT), KVT_E_SPACE);
    assert_int_equal(support_get(store, NEXT, NULL), KVT_MISS);
    end(load);
    assert_ok(support_put(store, NEXT));
    assert_ok(support_get(store, NEXT, NULL));
}

TEST(a_flush_behind_a_put)
{
    kvt_load *load = hold_all(true);
    assert_ok(support_put(store, NEXT));
    assert_int_equal(kvt_store_flush(store), KVT_E_SPACE);
    assert_int_equal(support_stats(store).puts_lost, 1);
    end(load);
    assert_ok(support_put(store, NEXT));
    assert_ok(kvt_store_flush(store));
}

/* A delete waits for the put's end. So does a visitor of the entry, and a clear. */
TEST(a_delete_of_what_is_put)
{
    kvt_load *load = hold_all(true);
    const kvt_key key = support_key(NEXT);
    assert_ok(support_put(store, NEXT));
    while (kvt_store_delete(store, &key) == KVT_OK)
        continue;
    assert_int_equal(support_get(store, NEXT, NULL), KVT_MISS);
    end(load);
}

/* Gets, a second load and a round of the background need nothing of what is held. */
TEST(reads_and_a_round)
{
    kvt_load *load = hold_all(true);
    assert_ok(support_put(store, NEXT));
    assert_ok(kvt_store_maintain(store, NULL));
    for (size_t i = 0; i < count; i++) {
        const kvt_status status = support_get(store, numbers[i], NULL);
        assert_true(status == KVT_OK || status == KVT_MISS); /* it made way */
    }
    end(load);
    load = hold(2);
    kvt_load *other = hold(2);
    end(other);
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* A put of a queue is told as one of the store, by the thread that waits for it. */
TEST(a_put_of_a_queue)
{
    kvt_load *load = hold_all(false);
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(NEXT, data);
    const kvt_entry entry = support_entry(support_key(NEXT), support_layout, 1);
    const kvt_view view = codecs_packed_view(&support_layout, data);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_PUT,
                                 .entry = &entry,
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    assert_int_equal(queued_call(queue, &request).status, KVT_E_SPACE);
    end(load);
}

/* The store's end comes although a put waits for the load. */
TEST(a_close)
{
    kvt_load *load = hold_all(true);
    assert_ok(support_put(store, NEXT));
    kvt_store_close(store);
    store = NULL;
    kvt_queue_close(queue);
    queue = NULL;
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* Bytes of puts that a load reads count against put staging no longer once they are stored. */
TEST(staging_of_puts)
{
    kvt_store_options options = queue_site_options(true);
    options.limits.put_staging_bytes = 4 * SUPPORT_ENTRY_BYTES;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(1, 0);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES});
    uint32_t put = 0;
    while (support_put(store, put) == KVT_OK)
        put++;
    assert_int_equal(put, 4);
    kvt_load *load = hold(MOST);
    assert_int_equal(count, put);
    tiers_fault_clear(fault.device);
    assert_ok(kvt_store_flush(store));
    for (uint32_t i = 0; i < 4; i++) {
        assert_ok(support_put(store, NEXT + i));
        assert_ok(kvt_store_flush(store));
    }
    end(load);
}
