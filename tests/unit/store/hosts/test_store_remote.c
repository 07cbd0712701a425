/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote.c - stores that share an engine: what one has put the others get, bit for bit;
 * what an engine does wrong is a miss. The engine is one in memory, and one with faults.
 */
#include "store_remote_support.h"

#include "base/clock.h"
#include "codecs/record_format.h"
#include "remote/remote_fault.h"
#include "remote/remote_memory.h"
#include "store/hosts/object.h"
#include "store/hosts/remote_tier.h"

#include <arpa/inet.h>
#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <kvterrace/remote.h>
#include <kvterrace/watch.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <xxhash.h>

TEST_EACH(clear, NULL);

TEST(one_puts_and_another_gets)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_ALL);
    put_all(a);
    assert_int_equal(stats_of(a).published, COUNT);
    assert_true(remote_memory_count(ENGINE, NULL) >= COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        kvt_kept_tokens kept = {.struct_size = sizeof kept};
        kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
        kvt_key key = support_key(i);
        assert_int_equal(kvt_store_exists(b, &key), KVT_MISS);
        assert_ok(support_get(b, i, &info));
        assert_int_equal(info.tier, KVT_TIER_REMOTE);
        assert_true(info.stored_bytes > SUPPORT_ENTRY_BYTES && kept.count == 32);
        /* It was offered to the local tiers. */
        assert_ok(support_get(b, i, &info));
        assert_int_equal(info.tier, KVT_TIER_DRAM);
    }
    assert_int_equal(support_get(b, 1000, NULL), KVT_MISS);
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    const kvt_remote_stats stats = stats_of(b);
    assert_int_equal(stats.hits, COUNT);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.published, 0); /* what has come from there is not written again */
    assert_true(stats.saved_seconds > 0);
    assert_int_equal(support_stats(b).gets, 2 * COUNT + 1);
    assert_int_equal(support_stats(b).misses, 1);
    assert_int_equal(support_stats(b).puts, 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(prefixes_reach_to_other_hosts)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    kvt_key keys[COUNT + 10];
    size_t matched = 77;
    put_all(a);
    for (uint32_t i = 0; i < COUNT + 10; i++)
        keys[i] = support_key(i);
    assert_ok(
        kvt_store_match(b, keys, COUNT + 10, KVT_MATCH(.hosts = true, .deadline_ns = 0), &matched));
    assert_int_equal(matched, 0); /* nobody is asked, and nothing is known */
    for (int round = 0; round < 2; round++) {
        assert_ok(kvt_store_match(b, keys, COUNT + 10,
                                  KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE),
                                  &matched));
        assert_int_equal(matched, COUNT);
    }
    assert_ok(kvt_store_match(b, keys, COUNT + 10, NULL, &matched));
    assert_int_equal(matched, 0);
    assert_ok(
        kvt_store_match(b, keys, COUNT, KVT_MATCH(.hosts = true, .deadline_ns = 0), &matched));
    assert_int_equal(matched, COUNT); /* by hints */
    assert_ok(support_put(b, 3));
    assert_ok(kvt_store_match(b, keys, COUNT + 10,
                              KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE), &matched));
    assert_int_equal(matched, COUNT);
    /* A key that is known to be nowhere is not asked for by a get. */
    assert_int_equal(support_get(b, COUNT, NULL), KVT_MISS);
    assert_int_equal(stats_of(b).known_misses, 1);
    assert_int_equal(stats_of(b).published, 0);
    assert_int_equal(
        kvt_store_match(b, NULL, 1, KVT_MATCH(.hosts = true, .deadline_ns = 0), &matched),
        KVT_E_ARGUMENT);
    assert_ok(kvt_store_match(b, keys, 0, KVT_MATCH(.hosts = true, .deadline_ns = 0), &matched));
    assert_int_equal(matched, 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(second_use_waits_for_a_hit)
{
    kvt_store *a = open_mode(KVT_PUBLISH_SECOND_USE);
    put_all(a);
    assert_int_equal(remote_memory_count(ENGINE, NULL), 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(support_get(a, i, NULL));
        assert_ok(support_get(a, i, NULL));
    }
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).published, 3);
    kvt_store_close(a);
}

TEST(hosts_write_a_key_once)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_ALL);
    put_all(a);
    uint64_t bytes = 0, after = 0;
    const uint64_t count = remote_memory_count(ENGINE, &bytes);
    put_all(b);
    assert_int_equal(remote_memory_count(ENGINE, &after), count);
    assert_int_equal(after, bytes);
    assert_int_equal(stats_of(b).published, 0);
    assert_int_equal(stats_of(b).deduplicated, COUNT);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(namespaces_and_tenants_are_apart)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    kvt_remote_options other = remote_options(KVT_PUBLISH_ALL);
    other.namespace_text = "model@2";
    kvt_store *b = open_with(&other), *c = open_mode(KVT_PUBLISH_ALL);
    put_all(a);
    assert_int_equal(support_get(b, 0, NULL), KVT_MISS);
    const kvt_key key = support_key(500);
    char data[64];
    assert_ok(support_put_small(a, &key, 3));
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).published, COUNT + 1);
    assert_int_equal(
        kvt_store_get(c, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL), KVT_MISS);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

TEST(a_delete_reaches_the_engine)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    const kvt_key key = support_key(4);
    put_all(a);
    assert_ok(kvt_store_delete(a, &key));
    assert_int_equal(support_get(a, 4, NULL), KVT_MISS);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).deleted, 1);
    assert_int_equal(support_get(b, 4, NULL), KVT_MISS);
    assert_ok(support_get(b, 5, NULL));
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(views_and_queues_get_from_other_hosts)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    static char data[SUPPORT_ENTRY_BYTES], expected[SUPPORT_ENTRY_BYTES];
    put_all(a);
    kvt_view view = kvt_view_packed(data, SUPPORT_ENTRY_BYTES);
    kvt_key key = support_key(7);
    assert_ok(kvt_store_get(b, &key, &view, KVT_NO_DEADLINE, NULL));
    support_fill(7, expected);
    assert_memory_equal(data, expected, sizeof data);
    const kvt_queue_options options = {.struct_size = sizeof options};
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(b, &options, &queue));
    memset(data, 0, sizeof data);
    kvt_request requests[2];
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < 2; i++) {
        requests[i].struct_size = sizeof requests[i];
        requests[i].kind = KVT_REQUEST_GET;
        requests[i].key = support_key(i == 0 ? 8 : 900);
        requests[i].view = &view;
        requests[i].deadline_ns = KVT_NO_DEADLINE;
    }
    assert_ok(kvt_queue_submit(queue, requests, 2, NULL));
    kvt_completion done[2] = {{.struct_size = sizeof done[0]}, {.struct_size = sizeof done[0]}};
    size_t got = 0;
    while (got < 2) {
        assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
        got += kvt_queue_drain(queue, &done[got], 2 - got);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(done[i].status, done[i].index == 0 ? KVT_OK : KVT_MISS);
    support_fill(8, expected);
    assert_memory_equal(data, expected, sizeof data);
    /* Entries of several groups are not published. */
    const kvt_view *views[2] = {&view, &view};
    key = support_key(9);
    assert_int_equal(kvt_store_get(b, &key, KVT_GROUPED(views, 2), KVT_NO_DEADLINE, NULL),
                     KVT_MISS);
    assert_ok(kvt_store_get(b, &key, KVT_GROUPED(views, 1), KVT_NO_DEADLINE, NULL));
    support_fill(9, expected);
    assert_memory_equal(data, expected, sizeof data);
    assert_int_equal(stats_of(b).hits, 3);
    kvt_queue_close(queue);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* ---- what is wrong with an object ---- */

/* Small chunks, so that a record has several. */
static kvt_store *open_chunked(kvt_publish publish)
{
    kvt_remote_options remote = remote_options(publish);
    remote.chunk_bytes = 8192;
    return open_with(&remote);
}

TEST(records_of_many_chunks)
{
    kvt_store *a = open_chunked(KVT_PUBLISH_ALL), *b = open_chunked(KVT_PUBLISH_NONE);
    put_all(a);
    assert_true(remote_memory_count(ENGINE, NULL) >= 5 * COUNT);
    support_gets(b, 0, COUNT);
    assert_int_equal(stats_of(b).hits, COUNT);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* The engine's key of a chunk of entry `number`. */
static void name_of(uint32_t number, uint32_t chunk, char name[OBJECT_NAME_BYTES])
{
    char space[OBJECT_SPACE_BYTES];
    const kvt_key key = support_key(number);
    object_space("model@1", 0, space);
    object_name(space, &key, epoch_of(&key), chunk, name);
}

TEST(wrong_chunks_are_misses)
{
    static char value[16384], other[16384];
    char name[OBJECT_NAME_BYTES], from[OBJECT_NAME_BYTES];
    kvt_store *a = open_chunked(KVT_PUBLISH_ALL), *b = open_chunked(KVT_PUBLISH_NONE);
    size_t bytes = 0, other_bytes = 0;
    put_all(a);
    for (uint32_t i = 0; i < 14; i++) {
        const uint32_t chunk = i % 3;
        name_of(i, chunk, name);
        assert_true(remote_memory_peek(ENGINE, name, value, sizeof value, &bytes));
        if (i < 3) value[chunk == 0 ? 200 : bytes - 1] ^= 4; /* of the payload */
        if (i >= 3 && i < 6) value[40] ^= 1;                 /* a byte of the head */
        if (i >= 6 && i < 9) bytes -= 1;                     /* the last byte is missing */
        if (i >= 9 && i < 12) {                              /* another entry's chunk */
            name_of(19, chunk, from);
            assert_true(remote_memory_peek(ENGINE, from, value, sizeof value, &bytes));
        }
        if (i == 12) bytes = 5;
        if (i == 13) bytes = 0;
        assert_ok(remote_memory_poke(ENGINE, name, value, bytes));
        assert_int_equal(support_get(b, i, NULL), KVT_MISS);
        assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
        name_of(i, 0, name);
        assert_false(remote_memory_peek(ENGINE, name, other, sizeof other, &other_bytes));
    }
    assert_int_equal(stats_of(b).bad_records, 14);
    assert_ok(support_get(b, 15, NULL));
    kvt_store_close(a);
    kvt_store_close(b);
}

/* Chunks of two writers of one key never make one record. */
TEST(chunks_of_two_writers_do_not_mix)
{
    static char value[16384];
    char name[OBJECT_NAME_BYTES];
    size_t bytes = 0;
    kvt_store *a = open_chunked(KVT_PUBLISH_ALL);
    put_all(a);
    name_of(2, 1, name);
    assert_true(remote_memory_peek(ENGINE, name, value, sizeof value, &bytes));
    kvt_store_close(a);
    remote_memory_clear(ENGINE);
    kvt_store *b = open_chunked(KVT_PUBLISH_ALL), *c = open_chunked(KVT_PUBLISH_NONE);
    put_all(b);
    name_of(2, 1, name); /* of the epoch that the engine has now */
    assert_ok(remote_memory_poke(ENGINE, name, value, bytes));
    assert_int_equal(support_get(c, 2, NULL), KVT_MISS);
    assert_ok(support_get(c, 3, NULL));
    kvt_store_close(b);
    kvt_store_close(c);
}

/* What a later library has published stays for those who can read it. */
TEST(a_record_of_a_later_version_stays)
{
    static char value[16384], after[16384];
    char name[OBJECT_NAME_BYTES];
    size_t bytes = 0, after_bytes = 0;
    kvt_store *a = open_chunked(KVT_PUBLISH_ALL), *b = open_chunked(KVT_PUBLISH_NONE);
    put_all(a);
    name_of(2, 0, name);
    assert_true(remote_memory_peek(ENGINE, name, value, sizeof value, &bytes));
    record_header *header = (record_header *)(void *)(value + OBJECT_HEAD_BYTES);
    header->major++;
    const uint64_t checksum = XXH3_64bits(header, RECORD_CHECKSUM_AT);
    memcpy((char *)header + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
    assert_ok(remote_memory_poke(ENGINE, name, value, bytes));
    assert_int_equal(support_get(b, 2, NULL), KVT_MISS);
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    assert_true(remote_memory_peek(ENGINE, name, after, sizeof after, &after_bytes));
    assert_int_equal(after_bytes, bytes);
    assert_memory_equal(after, value, bytes);
    assert_int_equal(stats_of(b).bad_records, 1);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(another_size_is_a_miss_and_stays)
{
    static char data[2 * SUPPORT_ENTRY_BYTES];
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_mode(KVT_PUBLISH_NONE);
    put_all(a);
    const kvt_key key = support_key(1);
    assert_int_equal(
        kvt_store_get(b, &key, KVT_PACKED(data, SUPPORT_ENTRY_BYTES / 2), KVT_STORE_DEADLINE, NULL),
        KVT_MISS);
    assert_int_equal(
        kvt_store_get(b, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL), KVT_MISS);
    assert_int_equal(stats_of(b).unfit, 2);
    assert_ok(support_get(b, 1, NULL));
    kvt_store_close(a);
    kvt_store_close(b);
}

/* ---- what is wrong with an engine ---- */

static remote_fault faults;

static kvt_store *open_faulty(double deadline_seconds)
{
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    memset(&faults, 0, sizeof faults);
    faults.inner = (remote_config){.backend = "memory", .addresses = ENGINE};
    remote_fault_use(&faults);
    remote.backend = "fault";
    remote.deadline_seconds = deadline_seconds;
    return open_with(&remote);
}

TEST(no_fault_gives_wrong_bytes)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    for (int round = 0; round < 4; round++) {
        put_all(a);
        kvt_store *b = open_faulty(20);
        atomic_store(&faults.flip_each, round == 0 ? 5 : 0);
        atomic_store(&faults.short_each, round == 1 ? 5 : 0);
        atomic_store(&faults.other_each, round == 2 ? 5 : 0);
        atomic_store(&faults.fail_each, round == 3 ? 5 : 0);
        atomic_store(&faults.failure, KVT_E_GONE);
        uint32_t hits = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            const kvt_status status = support_get(b, i, NULL);
            assert_true(status == KVT_OK || status == KVT_MISS);
            hits += status == KVT_OK;
        }
        assert_true(hits > 0 && hits < COUNT);
        kvt_store_close(b);
        for (uint32_t i = 0; i < COUNT; i++) {
            const kvt_key key = support_key(i);
            (void)!kvt_store_delete(a, &key);
        }
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    }
    kvt_store_close(a);
}

/* Each piece of a large record has a second for every 8 MiB that go before it. */
TEST(a_large_record_has_time)
{
    enum { BYTES = 24 << 20 };
    const uint64_t second_ns = 1000000000;
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    kvt_store_options options = support_options(64 << 20, "lru");
    kvt_store *store;
    kvt_layout layout = support_layout;
    layout.tokens *= BYTES / SUPPORT_ENTRY_BYTES;
    memset(&faults, 0, sizeof faults);
    faults.inner = (remote_config){.backend = "memory", .addresses = ENGINE};
    remote_fault_use(&faults);
    remote.backend = "fault";
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    options.remote = &remote;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    assert_ok(support_put(store, 0));
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
    assert_true(atomic_load(&faults.patience_ns) <= second_ns);
    uint64_t *data = test_alloc(BYTES);
    uint64_t random = 5;
    for (size_t i = 0; i < BYTES / sizeof *data; i++)
        data[i] = random = random * 6364136223846793005 + 1442695040888963407;
    const kvt_entry entry = support_entry(support_key(1), layout, 1);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, BYTES)));
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(store).published, 2);
    const uint64_t most_ns = atomic_load(&faults.patience_ns);
    assert_true(most_ns > 2 * second_ns && most_ns <= 4 * second_ns);
    kvt_store_close(store);
}

TEST(silence_ends_at_the_deadline)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_faulty(0.03);
    put_all(a);
    assert_ok(support_put(b, 600));
    atomic_store(&faults.silent, true);
    kvt_get_info info = {.struct_size = sizeof info};
    assert_int_equal(support_get(b, 0, &info), KVT_MISS);
    assert_true(info.timed_out);
    assert_ok(support_get(b, 600, &info));
    assert_int_equal(info.tier, KVT_TIER_DRAM);
    size_t matched = 7;
    const kvt_key key = support_key(1);
    assert_ok(kvt_store_match(b, &key, 1, KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE),
                              &matched));
    assert_int_equal(matched, 0);
    assert_int_equal(stats_of(b).timeouts, 1);
    assert_int_equal(support_stats(b).timeouts, 1);
    atomic_store(&faults.silent, false);
    /* A slow machine may miss the deadline of 30 ms some more times. */
    kvt_status status = KVT_MISS;
    for (int tries = 0; tries < 200 && status == KVT_MISS; tries++)
        status = support_get(b, 1, NULL);
    assert_ok(status);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A reply that is none says nothing of what the engine keeps. */
TEST(a_malformed_reply_deletes_nothing)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_faulty(20);
    put_all(a);
    atomic_store(&faults.failure, KVT_E_CORRUPT);
    atomic_store(&faults.fail_each, 1);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(support_get(b, i, NULL), KVT_MISS);
    assert_int_equal(stats_of(b).bad_records, 0);
    assert_int_equal(stats_of(b).node_failures, COUNT);
    atomic_store(&faults.fail_each, 0);
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    support_gets(b, 0, COUNT);
    assert_int_equal(stats_of(b).deleted, 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A deletion that its node does not take is kept: the entry does not come back with the node. */
TEST(a_deletion_is_owed)
{
    kvt_store *b = open_faulty(20), *c = open_mode(KVT_PUBLISH_NONE);
    const kvt_key key = support_key(3), other = support_key(4);
    size_t matched = 7;
    put_all(b);
    atomic_store(&faults.gone, true);
    assert_ok(kvt_store_delete(b, &key));
    assert_ok(kvt_store_delete(b, &other));
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(b).owed_deletes, 2);
    /* One that is stored again is not owed any more. */
    assert_ok(support_put(b, 4));
    for (uint32_t i = 0; stats_of(b).owed_deletes != 1 && i < 30000; i++)
        usleep(1000);
    assert_int_equal(stats_of(b).owed_deletes, 1);
    assert_int_equal(support_get(b, 3, NULL), KVT_MISS);
    assert_ok(support_get(c, 3, NULL));
    assert_ok(kvt_store_match(b, &key, 1, KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE),
                              &matched));
    assert_int_equal(matched, 0);
    assert_int_equal(stats_of(b).deleted, 0);
    atomic_store(&faults.gone, false);
    for (uint32_t i = 0; stats_of(b).owed_deletes != 0 && i < 30000; i++)
        usleep(1000);
    assert_int_equal(stats_of(b).owed_deletes, 0);
    assert_true(stats_of(b).deleted > 0); /* a second try may have been under way */
    kvt_store *d = open_mode(KVT_PUBLISH_NONE);
    assert_int_equal(support_get(d, 3, NULL), KVT_MISS);
    assert_ok(support_get(d, 4, NULL));
    kvt_store_close(b);
    kvt_store_close(c);
    kvt_store_close(d);
}

/* The engine counts whole seconds; less than one is one, not for ever. */
TEST(a_brief_ttl_is_one_second)
{
    const double given[] = {0, 0.0001, 0.999, 1, 1.5};
    const uint32_t expected[] = {0, 1, 1, 1, 2};
    for (uint32_t i = 0; i < 5; i++) {
        kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
        remote.ttl_seconds = given[i];
        kvt_store *a = open_with(&remote);
        assert_int_equal(a->remote->ttl_seconds, expected[i]);
        kvt_store_close(a);
    }
}

TEST(a_put_never_waits_for_the_engine)
{
    kvt_store *b = open_faulty(0.03);
    atomic_store(&faults.gone, true);
    put_all(b);
    assert_int_equal(stats_of(b).dropped_node, COUNT);
    assert_int_equal(stats_of(b).published, 0);
    support_gets(b, 0, COUNT);
    kvt_store_close(b);
    remote_memory_limit(ENGINE, 400000);
    kvt_store *c = open_mode(KVT_PUBLISH_ALL);
    put_all(c); /* the engine is full after some */
    assert_true(stats_of(c).published >= 1 && stats_of(c).dropped_node >= 1);
    assert_int_equal(stats_of(c).published + stats_of(c).dropped_node, COUNT);
    kvt_store_close(c);
}

/* Opens a store whose engine is at an address where nobody answers, and uses it. */
static void use_absent(const char *address)
{
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    kvt_get_info info = {.struct_size = sizeof info};
    remote.backend = "valkey";
    remote.address = address;
    remote.deadline_seconds = 0.02;
    /* An open that waits does so each time; a machine that is busy has a quick one among five. */
    kvt_store *a = NULL;
    uint64_t took_ns = UINT64_MAX;
    for (int i = 0; i < 5 && took_ns >= UINT64_C(1000000000); i++) {
        kvt_store_close(a);
        const uint64_t began_ns = base_clock_ns();
        a = open_with(&remote);
        took_ns = base_clock_ns() - began_ns;
    }
    assert_true(took_ns < UINT64_C(1000000000));
    put_all(a);
    assert_int_equal(stats_of(a).dropped_node, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_ok(support_get(a, i, &info));
        assert_int_equal(info.tier, KVT_TIER_DRAM);
        assert_int_equal(support_get(a, 1000 + i, NULL), KVT_MISS);
    }
    /* Statistics follow within a tenth of a second. */
    for (int i = 0; i < 1000 && stats_of(a).nodes_open == 0; i++)
        base_sleep(10000000);
    assert_true(stats_of(a).message[0] != '\0' && stats_of(a).nodes_open == 1);
    kvt_store_close(a);
}

TEST(an_absent_engine_delays_no_open)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    char address[32];
    const int port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(port >= 0);
    assert_int_equal(bind(port, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(port, (struct sockaddr *)&at, &length), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    use_absent(address); /* it refuses */
    assert_int_equal(listen(port, 1), 0);
    use_absent(address); /* it takes connections and never answers */
    use_absent("no-such-host.invalid:6379");
    close(port);
}

/* ---- configuration ---- */

TEST(configurations_are_refused)
{
    kvt_remote_options wrong[10];
    for (size_t i = 0; i < 10; i++)
        wrong[i] = remote_options(KVT_PUBLISH_ALL);
    wrong[0].namespace_text = NULL;
    wrong[1].namespace_text = "";
    wrong[2].backend = "memcached";
    wrong[3].publish = 9;
    wrong[4].deadline_seconds = 0;
    wrong[5].chunk_bytes = 100;
    wrong[6].ca = "file";
    wrong[7].struct_size = 3;
    wrong[8].password_file = "no-such-file";
    wrong[9].publish = 2;
    for (size_t i = 0; i < 10; i++) {
        kvt_store_options options;
        kvt_store *store = NULL;
        char message[256] = "";
        kvt_store_options_init(&options);
        options.limits.tick_seconds = 0;
        options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
        options.remote = &wrong[i];
        assert_int_not_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_OK);
        assert_null(store);
        assert_non_null(strstr(message, "remote tier"));
    }
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    kvt_store *plain = open_with(NULL);
    assert_int_equal(kvt_remote_stats_get(plain, &stats), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_remote_flush(plain, 0), KVT_E_UNSUPPORTED);
    size_t matched = 9;
    const kvt_key key = support_key(1);
    assert_ok(kvt_store_match(plain, &key, 1,
                              KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE), &matched));
    assert_int_equal(matched, 0);
    kvt_store_close(plain);
}

TEST(a_password_that_others_read_is_refused)
{
    char path[] = "kvt-password-XXXXXX", message[256];
    const int file = mkstemp(path);
    assert_true(file >= 0 && write(file, "hunter2hunter2\n", 15) == 15);
    assert_int_equal(fchmod(file, 0640), 0);
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    remote.password_file = path;
    kvt_store_options options;
    kvt_store *store = NULL;
    kvt_store_options_init(&options);
    options.limits.tick_seconds = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    options.remote = &remote;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "others"));
    assert_null(strstr(message, "hunter2"));
    assert_int_equal(fchmod(file, 0600), 0);
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    static char text[65536];
    assert_true(kvt_metrics_write(store, text, sizeof text) <= sizeof text);
    assert_non_null(strstr(text, "kvterrace_remote_hits_total 0"));
    assert_null(strstr(text, "hunter2"));
    kvt_store_close(store);
    close(file);
    unlink(path);
}

/* A node that cannot be reached is in the health, with a reason and since when. */
TEST(health_names_the_node)
{
    kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    remote.backend = "valkey";
    remote.address = "127.0.0.1:1";
    kvt_store *store = open_with(&remote), *plain = open_with(NULL);
    kvt_health_item items[2] = {{.struct_size = sizeof items[0]}};
    kvt_status overall = KVT_OK;
    size_t count = 0;
    for (uint32_t i = 0; i < 2000 && count == 0; i++) {
        assert_int_equal(support_get(store, i, NULL), KVT_MISS);
        base_sleep(1000000);
        assert_ok(kvt_health_get(store, items, 2, &count, &overall));
    }
    assert_int_equal(count, 1);
    assert_int_equal(overall, KVT_E_GONE);
    assert_int_equal(items[0].kind, KVT_HEALTH_HOSTS);
    assert_int_equal(items[0].status, KVT_E_GONE);
    assert_string_equal(items[0].name, "127.0.0.1:1");
    assert_non_null(strstr(items[0].text, "cannot be connected to"));
    assert_true(items[0].seconds > 0);
    kvt_remote_node node = {.struct_size = sizeof node};
    assert_ok(kvt_remote_node_get(store, 0, &node));
    assert_non_null(strstr(node.message, "127.0.0.1:1 cannot be connected to"));
    assert_ok(kvt_health_get(plain, NULL, 0, &count, &overall));
    assert_int_equal(count, 0);
    kvt_store_close(plain);
    kvt_store_close(store);
}

/* ---- how records are cut ---- */

TEST(cuts_are_whole_and_waste_little)
{
    static object_chunk cut[OBJECT_CHUNKS_MAX];
    const uint32_t full = OBJECT_CHUNK_BYTES - OBJECT_HEAD_BYTES;
    for (uint64_t bytes = 1; bytes < 6000000; bytes += bytes / 97 + 1) {
        const uint32_t count = object_cut(bytes, full, cut);
        uint64_t at = 0, engine = 0;
        assert_true(count >= 1);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(cut[i].offset, at);
            assert_true(cut[i].bytes >= 1 && cut[i].bytes <= full);
            at += cut[i].bytes;
            const uint64_t value = cut[i].bytes + OBJECT_HEAD_BYTES + 10;
            const uint32_t octave = 63u - (uint32_t)__builtin_clzll(value);
            const uint64_t step = UINT64_C(1) << (octave - 2);
            engine += (value + step - 1) / step * step;
        }
        assert_int_equal(at, bytes);
        if (bytes >= 262144) assert_true((double)engine <= 1.06 * (double)bytes);
    }
    assert_int_equal(object_cut(UINT64_C(1) << 40, full, cut), 0);
}

TEST(heads_say_what_they_were_given)
{
    uint8_t bytes[OBJECT_HEAD_BYTES], spoilt[OBJECT_HEAD_BYTES];
    object_head out;
    const object_head head = {.index = 3,
                              .count = 9,
                              .flags = OBJECT_HAS_PARENT,
                              .full_bytes = 1000,
                              .generation = 5,
                              .writer = 6,
                              .record_bytes = 9000,
                              .offset = 3000,
                              .bytes = 1000,
                              .key = support_key(1),
                              .parent = support_key(2),
                              .recompute_seconds = 1.5,
                              .class_id = 4,
                              .request_tokens = 8};
    object_head_pack(&head, bytes);
    assert_int_equal(bytes[21], 0xff); /* the reserved flags */
    assert_ok(object_head_unpack(bytes, &out));
    assert_true(out.index == 3 && out.count == 9 && out.flags == OBJECT_HAS_PARENT &&
                out.writer == 6 && out.bytes == 1000);
    assert_memory_equal(&out.parent, &head.parent, sizeof head.parent);
    for (size_t i = 0; i < 8 * sizeof bytes; i++) {
        memcpy(spoilt, bytes, sizeof bytes);
        spoilt[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_not_equal(object_head_unpack(spoilt, &out), KVT_OK);
    }
    kvt_key key;
    char name[OBJECT_NAME_BYTES], space[OBJECT_SPACE_BYTES];
    object_space("text", 7, space);
    const uint32_t length = object_name(space, &head.key, 0x123456789abcdef0, 12, name);
    assert_int_equal(length, strlen(name));
    assert_true(object_name_key(name, length, &key));
    assert_memory_equal(&key, &head.key, sizeof key);
    for (uint32_t cut = 0; cut + 21 < length; cut++)
        assert_false(object_name_key(name, cut, &key));
}
