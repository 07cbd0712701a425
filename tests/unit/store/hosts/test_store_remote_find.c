/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_find.c - what is on other hosts is found by guesses, made sure by prefetches,
 * and read by every kind of get; a full queue keeps deletions.
 */
#include "codecs/view_rows.h"
#include "store_remote_support.h"

#include "base/clock.h"
#include "store/hosts/remote_tier.h"

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>

static char data[COUNT][SUPPORT_ENTRY_BYTES];

static void check_entry(uint32_t number)
{
    char expected[SUPPORT_ENTRY_BYTES];
    support_fill(number, expected);
    assert_memory_equal(data[number], expected, sizeof expected);
}

/* Keys and views of the first entries. */
static void make_views(kvt_key keys[COUNT], kvt_view views[COUNT], const kvt_view *list[COUNT])
{
    memset(data, 0, sizeof data);
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = support_key(i);
        views[i] = kvt_view_packed(data[i], SUPPORT_ENTRY_BYTES);
        list[i] = &views[i];
    }
}

static kvt_queue *open_queue(kvt_store *store)
{
    const kvt_queue_options options = {.struct_size = sizeof options};
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(store, &options, &queue));
    return queue;
}

static kvt_completion ask(kvt_queue *queue, kvt_key key)
{
    kvt_request request = {.struct_size = sizeof request,
                           .kind = KVT_REQUEST_EXISTS,
                           .key = key,
                           .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    return done;
}

TEST_EACH(clear, NULL);

TEST(a_queue_says_when_it_guesses)
{
    size_t matched;
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    kvt_queue *queue = open_queue(b);
    kvt_completion done = ask(queue, support_key(1));
    assert_true(done.status == KVT_MISS && done.guess); /* nothing is known yet */
    const kvt_key keys[2] = {support_key(1), support_key(900)};
    assert_ok(kvt_store_match(b, keys, 2, KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE),
                              &matched));
    done = ask(queue, keys[0]);
    assert_true(done.status == KVT_OK && done.guess);
    done = ask(queue, keys[1]);
    assert_true(done.status == KVT_MISS && done.guess);
    assert_int_equal(kvt_store_exists(b, &keys[0]), KVT_MISS); /* which is of this store alone */
    assert_ok(support_get(b, 1, NULL));
    done = ask(queue, keys[0]);
    assert_true(done.status == KVT_OK && !done.guess);
    kvt_queue_close(queue);
    queue = open_queue(a);
    done = ask(queue, keys[1]);
    assert_true(done.status == KVT_MISS && done.guess);
    kvt_queue_close(queue);
    kvt_store *plain = open_with(NULL);
    queue = open_queue(plain);
    done = ask(queue, keys[1]);
    assert_true(done.status == KVT_MISS && !done.guess);
    kvt_queue_close(queue);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(plain);
}

TEST(worth_counts_what_others_have)
{
    kvt_key keys[COUNT + 1];
    size_t matched;
    kvt_worth worth = {.struct_size = sizeof worth};
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    for (uint32_t i = 0; i < COUNT + 1; i++)
        keys[i] = support_key(i);
    assert_ok(kvt_store_match(b, keys, COUNT + 1, KVT_MATCH(.worth = &worth), NULL));
    assert_true(worth.stored == 0 && worth.guessed == 0);
    support_puts(b, 0, 3);
    assert_ok(kvt_store_match(b, keys, COUNT + 1,
                              KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE), &matched));
    assert_int_equal(matched, COUNT);
    assert_ok(kvt_store_match(b, keys, COUNT + 1, KVT_MATCH(.worth = &worth), NULL));
    /* Nothing has come from there, so nobody knows what it takes. */
    assert_true(worth.stored == COUNT && worth.guessed == COUNT - 3 && worth.to_load == 3);
    assert_ok(support_get(b, 3, NULL));
    assert_ok(kvt_store_match(b, keys, COUNT + 1, KVT_MATCH(.worth = &worth), NULL));
    assert_true(worth.stored == COUNT && worth.guessed == COUNT - 4 && worth.to_load == COUNT);
    assert_true(worth.recompute_seconds > COUNT - 1 && worth.recompute_seconds < COUNT + 1);
    assert_true(worth.load_seconds > 0 && worth.saved_seconds > 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* Runs rounds until an entry is here. */
static bool comes(kvt_store *store, uint32_t number)
{
    const kvt_key key = support_key(number);
    for (int i = 0; i < 5000; i++) {
        uint32_t moves;
        assert_ok(kvt_store_maintain(store, &moves));
        if (kvt_store_exists(store, &key) == KVT_OK) return true;
        base_sleep(1000000);
    }
    return false;
}

TEST(a_prefetch_brings_entries_here)
{
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    const kvt_key here = support_key(2), nowhere = support_key(900);
    assert_ok(kvt_store_prefetch(b, &here, KVT_TIER_DRAM));
    assert_true(comes(b, 2));
    assert_ok(support_get(b, 2, &info));
    assert_int_equal(info.tier, KVT_TIER_DRAM);
    assert_int_equal(stats_of(b).prefetched, 1);
    assert_int_equal(stats_of(b).hits, 0);
    assert_int_equal(support_stats(b).gets, 1);
    /* What is nowhere is known to be so afterwards. */
    assert_ok(kvt_store_prefetch(b, &nowhere, KVT_TIER_DRAM));
    for (int i = 0; i < 5000 && kvt_store_prefetch(b, &nowhere, KVT_TIER_DRAM) != KVT_MISS; i++) {
        uint32_t moves;
        assert_ok(kvt_store_maintain(b, &moves));
        base_sleep(1000000);
    }
    assert_int_equal(kvt_store_prefetch(b, &nowhere, KVT_TIER_DRAM), KVT_MISS);
    assert_int_equal(kvt_store_prefetch(b, &nowhere, KVT_TIER_SSD), KVT_E_UNSUPPORTED);
    /* What is on its way when the store closes is let go of; more than has room is refused. */
    bool refused = false;
    for (uint32_t i = 3; i < COUNT; i++) {
        const kvt_key key = support_key(i);
        const kvt_status status = kvt_store_prefetch(b, &key, KVT_TIER_DRAM);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        refused = refused || status == KVT_REFUSED;
    }
    assert_true(refused);
    kvt_store_close(b);
    kvt_store_close(a);
}

TEST(prefixes_are_read_from_other_hosts)
{
    kvt_key keys[COUNT];
    kvt_view views[COUNT];
    const kvt_view *list[COUNT];
    size_t loaded = 99;
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    make_views(keys, views, list);
    assert_ok(support_put(b, 1));
    assert_ok(kvt_prefix_get(b, keys, list, COUNT, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        check_entry(i);
    assert_int_equal(stats_of(b).hits, COUNT - 1);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(layers_are_loaded_from_other_hosts)
{
    kvt_key keys[COUNT];
    kvt_view views[COUNT];
    const kvt_view *list[COUNT];
    kvt_status statuses[COUNT];
    kvt_load *load = NULL;
    kvt_load_result result = {.struct_size = sizeof result};
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    make_views(keys, views, list);
    keys[4] = support_key(900);
    assert_ok(support_put(b, 1));
    kvt_queue *queue = open_queue(b);
    /* Two views in one place: one of them fails, and no byte of it is written. */
    assert_ok(kvt_load_begin(queue, keys, list, 6, NULL, &load));
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    kvt_load_release(load, support_layout.layers);
    assert_ok(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(statuses[i], i == 4 ? KVT_MISS : KVT_OK);
        if (i != 4) check_entry(i);
    }
    assert_int_equal(result.entries, 4);
    assert_int_equal(stats_of(b).hits, 4);
    assert_int_equal(stats_of(b).misses, 1);
    assert_true(stats_of(b).saved_seconds > 3);
    assert_true(comes(b, 0) && comes(b, 5)); /* the background keeps what fits */
    assert_int_equal(stats_of(b).hits, 4);
    kvt_queue_close(queue);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A load of a spoilt record is a miss, and deletes it. */
TEST(spoilt_layers_are_misses)
{
    static char value[2 * SUPPORT_ENTRY_BYTES];
    kvt_key keys[COUNT];
    kvt_view views[COUNT];
    const kvt_view *list[COUNT];
    char space[OBJECT_SPACE_BYTES], name[OBJECT_NAME_BYTES];
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    object_space("model@1", 0, space);
    for (uint32_t part = 0; part < 16; part++) {
        size_t bytes = 0;
        kvt_status statuses[2];
        kvt_load *load = NULL;
        remote_memory_clear(ENGINE);
        kvt_store *writer = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
        put_all(writer);
        make_views(keys, views, list);
        object_name(space, &keys[0], epoch_of(&keys[0]), 0, name);
        assert_true(remote_memory_peek(ENGINE, name, value, sizeof value, &bytes));
        value[OBJECT_HEAD_BYTES + (bytes - OBJECT_HEAD_BYTES - 1) * part / 15] ^= 16;
        assert_ok(remote_memory_poke(ENGINE, name, value, bytes));
        kvt_queue *queue = open_queue(b);
        assert_ok(kvt_load_begin(queue, keys, list, 2, NULL, &load));
        kvt_load_release(load, support_layout.layers);
        assert_ok(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE));
        assert_ok(kvt_load_end(load, statuses, NULL));
        assert_ok(statuses[1]);
        check_entry(1);
        if (statuses[0] == KVT_OK)
            check_entry(0); /* a byte that no layer needs: padding */
        else
            assert_int_equal(stats_of(b).bad_records, 1);
        kvt_queue_close(queue);
        kvt_store_close(writer);
        kvt_store_close(b);
    }
    kvt_store_close(a);
}

/* A full queue gives up entries to be published for deletions, and the space's copies when it has
 * no other. */
TEST(a_full_queue_keeps_deletions)
{
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    remote.queue = 4;
    kvt_store *a = open_with(&remote);
    kvt_key keys[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = support_key(i);
        assert_ok(support_put(a, i));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    }
    assert_int_equal(stats_of(a).published, COUNT);
    pthread_mutex_lock(&a->lock); /* the publisher takes nothing meanwhile */
    for (uint32_t i = 0; i < 5; i++) {
        store_entry *entry = entry_find_key(&a->table, &keys[i]);
        entry->shared = false;
        publisher_note_stored(a, entry);
        assert_int_equal(entry->shared, i < 4);
    }
    for (uint32_t i = 10; i < 14; i++) {
        publisher_delete(a, &keys[i], 0, 0);
        publisher_delete(a, &keys[10], 0, 0);
        assert_int_equal(a->remote->queue_count, 4);
    }
    assert_int_equal(a->remote->counts.dropped_deletes, 0);
    publisher_delete(a, &keys[14], 0, 0);
    assert_int_equal(a->remote->counts.dropped_deletes, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_false(entry_find_key(&a->table, &keys[i])->shared);
    pthread_mutex_unlock(&a->lock);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).deleted, 4);
    assert_int_equal(stats_of(a).dropped_queue, 5);
    kvt_store *b = open_mode(KVT_PUBLISH_NONE);
    for (uint32_t i = 0; i < COUNT; i++) /* each key is a space, and that of 14 has been given up */
        assert_int_equal(support_get(b, i, NULL), i >= 10 && i <= 14 ? KVT_MISS : KVT_OK);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A view says nothing of an entry's size: small and large ones take turns. */
TEST(views_of_many_sizes_are_served)
{
    kvt_layout large = support_layout;
    large.tokens = 4096; /* 4 MiB: more than one chunk, and more than the store's staging */
    const uint64_t bytes = 128u * SUPPORT_ENTRY_BYTES;
    char *from = test_alloc(bytes), *to = test_alloc(bytes);
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    kvt_store *a = open_policy(&remote, "lru", 64 << 20);
    kvt_store *b = open_policy(&remote, "lru", 64 << 20);
    for (uint32_t i = 0; i < COUNT; i++) {
        /* Sizes of 1 to 128 times the small one's. */
        large.tokens = 32u << (i * 7 % 8);
        codecs_kv_sample_fill(&large, i, from);
        const kvt_entry entry = support_entry(support_key(i), large, 1e6);
        assert_ok(kvt_store_put(a, &entry, KVT_PACKED(from, large.tokens * UINT64_C(1024))));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    }
    kvt_queue *queue = open_queue(b);
    for (uint32_t i = 0; i < COUNT; i++) {
        large.tokens = 32u << (i * 7 % 8);
        codecs_kv_sample_fill(&large, i, from);
        memset(to, 0, bytes);
        const kvt_view view = codecs_packed_view(&large, to), *list = &view;
        const kvt_key key = support_key(i);
        if (i % 2 == 0) {
            const kvt_status status = kvt_store_get(b, &key, &view, KVT_NO_DEADLINE, NULL);
            if (status != KVT_OK) print_message("%u tokens\n", large.tokens);
            assert_ok(status);
        } else {
            kvt_load *load = NULL;
            assert_ok(kvt_load_begin(queue, &key, &list, 1, NULL, &load));
            kvt_load_release(load, large.layers);
            const kvt_status status = kvt_load_wait(load, large.layers, KVT_NO_DEADLINE);
            /* A machine that stands still for longer than the deadline reads nothing. */
            const bool late = status == KVT_MISS && stats_of(b).timeouts != 0;
            if (!late) assert_ok(status);
            assert_ok(kvt_load_end(load, NULL, NULL));
            if (late) continue;
        }
        assert_memory_equal(from, to, large.tokens * UINT64_C(1024));
    }
    assert_int_equal(stats_of(b).unfit, 0);
    kvt_queue_close(queue);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* An entry that another host has claimed is that host's to write; without the claim it is written.
 */
TEST(claimed_entries_are_left_to_their_writer)
{
    char space[OBJECT_SPACE_BYTES], name[OBJECT_NAME_BYTES], value[64];
    size_t bytes = 0;
    const kvt_key claimed = support_key(3);
    object_space("model@1", 0, space);
    object_claim_name(space, &claimed, epoch_of(&claimed), name);
    assert_ok(remote_memory_poke(ENGINE, name, "another!", 8));
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    put_all(a);
    assert_int_equal(stats_of(a).published, COUNT - 1);
    assert_int_equal(stats_of(a).deduplicated, 1);
    assert_ok(kvt_store_delete(a, &claimed));
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_false(remote_memory_peek(ENGINE, name, value, sizeof value, &bytes));
    assert_ok(support_put(a, 3));
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).published, COUNT);
    kvt_store_close(a);
}
