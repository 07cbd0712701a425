/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_clear.c - what a clear or a delete says of copies that other hosts find: those
 * of entries that are no longer here, those that others have published, with an engine that is out
 * of reach, restarts, or has lost its epochs. That a second passes is said by forgetting what a
 * store has been told (later).
 */
#include "store_remote_support.h"

#include "remote/remote_fault.h"

#include <kvterrace/key.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>

#define MODEL  UINT64_C(0x4d4f44454c) /* spaces */
#define OTHER  UINT64_C(0x4f54484552)
#define TENANT 3u

static remote_fault faults;

static kvt_key key_in(uint64_t space, uint32_t number)
{
    kvt_key key = {{0}};
    for (int i = 0; i < 8; i++)
        key.bytes[i] = (uint8_t)(space >> (56 - 8 * i));
    assert_int_equal(kvt_key_space(&key), space);
    memcpy(&key.bytes[8], &number, sizeof number);
    key.bytes[31] = (uint8_t)number;
    return key;
}

static void put_in(kvt_store *store, uint64_t space, uint32_t number, uint32_t content)
{
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(content, data);
    const kvt_entry entry = support_entry(key_in(space, number), support_layout, 1);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)));
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
}

/* Gets an entry: KVT_MISS, or KVT_OK with these bytes. */
static kvt_status get_in(kvt_store *store, uint64_t space, uint32_t number, uint32_t content)
{
    static char data[SUPPORT_ENTRY_BYTES], expected[SUPPORT_ENTRY_BYTES];
    const kvt_key key = key_in(space, number);
    const kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL);
    support_fill(content, expected);
    if (status == KVT_OK) assert_memory_equal(data, expected, sizeof data);
    return status;
}

static uint32_t found_in(kvt_store *store, uint64_t space)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        found += get_in(store, space, i, i) == KVT_OK;
    return found;
}

static void put_space(kvt_store *store, uint64_t space)
{
    for (uint32_t i = 0; i < COUNT; i++)
        put_in(store, space, i, i);
}

static void clear_space(kvt_store *store, uint64_t space)
{
    const kvt_clear_filter filter = {
        .struct_size = sizeof filter, .by_space = true, .space = space};
    assert_ok(kvt_store_clear(store, &filter, NULL));
}

/* A second passes on a host: what it knows of epochs and keys is old. */
static void later(kvt_store *store)
{
    epochs_forget(&store->remote->epochs);
    remote_hints_clear(&store->remote->hints);
}

/* A host that keeps a few entries itself; none when `room` is small. */
static kvt_store *open_host(kvt_publish publish, const char *backend, uint64_t room)
{
    kvt_remote_options remote = remote_options(publish);
    remote.backend = backend;
    return open_policy(&remote, "lru", room);
}

#define SOME (UINT64_C(320) << 10) /* room for a part of a space */
#define NONE (UINT64_C(16) << 10)

TEST_EACH(clear, NULL);

TEST(copies_of_evicted_entries_go)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", SOME);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    put_space(a, MODEL);
    put_space(a, OTHER); /* evicts the first */
    assert_int_equal(found_in(b, MODEL), COUNT);
    assert_int_equal(found_in(b, OTHER), COUNT);
    clear_space(a, MODEL);
    assert_int_equal(found_in(a, MODEL), 0); /* at once, the engine told or not */
    assert_int_equal(found_in(a, OTHER), COUNT);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).owed_clears, 0);
    later(b);
    assert_int_equal(found_in(b, MODEL), 0);
    assert_int_equal(found_in(b, OTHER), COUNT);
    kvt_store *c = open_host(KVT_PUBLISH_NONE, "memory", NONE); /* opened after the clear */
    assert_int_equal(found_in(c, MODEL), 0);
    const kvt_key key = key_in(MODEL, 1);
    size_t matched = 7;
    assert_ok(kvt_store_match(c, &key, 1, KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE),
                              &matched));
    assert_int_equal(matched, 0);
    /* What is put and published from now on counts. */
    put_in(a, MODEL, 1, 100);
    later(b);
    later(c);
    assert_ok(get_in(b, MODEL, 1, 100));
    assert_ok(get_in(c, MODEL, 1, 100));
    assert_int_equal(get_in(c, MODEL, 2, 2), KVT_MISS);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

/* Of a tenant, of a tenant in a space, and of everything. */
TEST(filters_cover_at_least_what_they_say)
{
    const kvt_clear_filter filters[] = {
        {.struct_size = sizeof filters[0], .by_tenant = true, .tenant = TENANT},
        {.struct_size = sizeof filters[0],
         .by_tenant = true,
         .tenant = TENANT,
         .by_space = true,
         .space = MODEL},
        {.struct_size = sizeof filters[0], .everything = true}};
    for (uint32_t i = 0; i < 3; i++) {
        remote_memory_clear(ENGINE);
        kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", NONE);
        assert_ok(kvt_space_set(a, MODEL, TENANT));
        kvt_store *big = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
        assert_ok(kvt_space_set(big, MODEL, TENANT));
        put_in(big, MODEL, 1, 1);
        put_in(big, OTHER, 1, 1);
        assert_ok(get_in(a, MODEL, 1, 1));
        assert_ok(get_in(a, OTHER, 1, 1));
        assert_ok(kvt_store_clear(a, &filters[i], NULL));
        assert_int_equal(get_in(a, MODEL, 1, 1), KVT_MISS);
        assert_int_equal(get_in(a, OTHER, 1, 1), filters[i].everything ? KVT_MISS : KVT_OK);
        /* It has the entries itself still: they are its own. */
        assert_ok(get_in(big, MODEL, 1, 1));
        kvt_store_close(a);
        kvt_store_close(big);
    }
    kvt_store *a = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    const kvt_clear_filter both = {
        .struct_size = sizeof both, .everything = true, .by_space = true, .space = MODEL};
    assert_int_equal(kvt_store_clear(a, &both, NULL), KVT_E_ARGUMENT);
    kvt_store_close(a);
}

/* A delete reaches the copy of an entry that is not here, whoever has published it. */
TEST(a_delete_reaches_what_others_published)
{
    kvt_store *b = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
    kvt_store *a = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    put_space(b, MODEL);
    for (uint32_t i = 0; i < COUNT; i += 2) {
        const kvt_key key = key_in(MODEL, i);
        assert_int_equal(kvt_store_delete(a, &key), KVT_MISS); /* here */
    }
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    kvt_store *c = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(get_in(c, MODEL, i, i), i % 2 == 0 ? KVT_MISS : KVT_OK);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

/* A clear while the engine is out of reach holds here at once, is owed, in the health, and reaches
 * the others when the engine is back. */
TEST(a_clear_is_owed)
{
    memset(&faults, 0, sizeof faults);
    faults.inner = (remote_config){.backend = "memory", .addresses = ENGINE};
    remote_fault_use(&faults);
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "fault", SOME);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    put_space(a, MODEL);
    assert_int_equal(found_in(b, MODEL), COUNT);
    atomic_store(&faults.gone, true);
    clear_space(a, MODEL);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).owed_clears, 1);
    kvt_health_item items[2] = {{.struct_size = sizeof items[0]}};
    size_t count = 0;
    assert_ok(kvt_health_get(a, items, 2, &count, NULL));
    assert_true(count >= 1 && items[0].kind == KVT_HEALTH_HOSTS);
    assert_string_equal(items[0].name, "clear");
    later(b);
    assert_int_equal(found_in(b, MODEL), COUNT); /* nobody has told */
    /* The engine can be read again before it has taken the clear: what it says of old does not
     * count here. */
    assert_int_equal(found_in(a, MODEL), 0);
    atomic_store(&faults.gone, false);
    later(a);
    assert_int_equal(found_in(a, MODEL), 0);
    for (uint32_t i = 0; stats_of(a).owed_clears != 0 && i < 30000; i++)
        usleep(1000);
    assert_int_equal(stats_of(a).owed_clears, 0);
    assert_int_equal(found_in(a, MODEL), 0);
    later(b);
    assert_int_equal(found_in(b, MODEL), 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A full engine takes no new number: it gives the old one up. */
TEST(a_full_engine_is_cleared)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", SOME);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    put_space(a, MODEL);
    put_space(a, OTHER);
    assert_int_equal(found_in(b, MODEL), COUNT);
    remote_memory_limit(ENGINE, 1);
    clear_space(a, MODEL);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).owed_clears, 0);
    later(b);
    assert_int_equal(found_in(a, MODEL) + found_in(b, MODEL), 0);
    assert_int_equal(found_in(b, OTHER), COUNT);
    remote_memory_limit(ENGINE, 0);
    put_in(a, MODEL, 1, 9);
    later(b);
    assert_ok(get_in(b, MODEL, 1, 9));
    assert_int_equal(get_in(b, MODEL, 2, 2), KVT_MISS);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* More clears than can be kept apart while the engine is away: everything goes. */
TEST(too_many_clears_take_everything)
{
    memset(&faults, 0, sizeof faults);
    faults.inner = (remote_config){.backend = "memory", .addresses = ENGINE};
    remote_fault_use(&faults);
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "fault", NONE);
    kvt_store *b = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
    put_space(b, MODEL);
    put_space(b, OTHER);
    atomic_store(&faults.gone, true);
    for (uint32_t i = 0; i <= EPOCHS_BUMPS; i++)
        clear_space(a, i == 0 ? MODEL : 1000 + i);
    assert_true(epochs_owed(&a->remote->epochs) <= EPOCHS_BUMPS);
    atomic_store(&faults.gone, false);
    for (uint32_t i = 0; stats_of(a).owed_clears != 0 && i < 30000; i++)
        usleep(1000);
    kvt_store *c = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    assert_int_equal(found_in(a, MODEL) + found_in(c, MODEL), 0);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

/* The engine's names of the two epochs of a key. */
static void epoch_names(kvt_store *store, const kvt_key *key, char names[2][EPOCH_NAME_BYTES])
{
    epoch_id ids[2];
    epochs_of_key(key, 0, ids);
    for (int i = 0; i < 2; i++)
        epochs_name(store->remote, &ids[i], names[i]);
}

/* An engine that has lost the epochs, or has something else in their place, has no copies: what is
 * published then has another epoch, and what was there before a clear does not come back. */
TEST(a_lost_epoch_brings_nothing_back)
{
    static char old[2 * SUPPORT_ENTRY_BYTES];
    char names[2][EPOCH_NAME_BYTES], space[OBJECT_SPACE_BYTES], name[OBJECT_NAME_BYTES];
    size_t bytes = 0;
    const kvt_key key = key_in(MODEL, 0);
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    put_in(a, MODEL, 0, 0);
    object_space("model@1", 0, space);
    object_name(space, &key, epoch_of(&key), 0, name);
    assert_true(remote_memory_peek(ENGINE, name, old, sizeof old, &bytes));
    clear_space(a, MODEL);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    epoch_names(a, &key, names);
    for (int how = 0; how < 2; how++) {
        if (how == 0)
            remote_memory_clear(ENGINE);
        else
            for (int i = 0; i < 2; i++)
                assert_ok(remote_memory_poke(ENGINE, names[i], "what is this?", 13));
        assert_ok(remote_memory_poke(ENGINE, name, old, bytes));
        later(a);
        later(b);
        assert_int_equal(get_in(b, MODEL, 0, 0), KVT_MISS);
        /* 8 further has the same part, so the same epochs. */
        put_in(a, MODEL, 8 + 8 * (uint32_t)how, 7);
        later(b);
        assert_ok(get_in(b, MODEL, 8 + 8 * (uint32_t)how, 7));
        assert_int_equal(get_in(b, MODEL, 0, 0), KVT_MISS);
    }
    kvt_store_close(a);
    kvt_store_close(b);
}

/* A server takes a clear, and a replica that has not heard of it takes over: the numbers of before
 * are there again. The host that cleared finds no copy meanwhile, sees it within a second or two
 * and clears anew; no other finds one then. A number that a host draws later is left alone. */
TEST(a_clear_that_was_lost_is_made_anew)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", SOME);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    char names[COUNT][2][EPOCH_NAME_BYTES];
    uint8_t old[COUNT][2][EPOCH_BYTES], value[EPOCH_BYTES];
    size_t bytes;
    put_space(a, MODEL);
    for (uint32_t i = 0; i < COUNT; i++) {
        const kvt_key key = key_in(MODEL, i);
        epoch_names(a, &key, names[i]);
        assert_true(remote_memory_peek(ENGINE, names[i][0], old[i][0], EPOCH_BYTES, &bytes));
        old[i][0][12] = old[i][0][13] = 0; /* drawn long ago */
        assert_ok(remote_memory_poke(ENGINE, names[i][0], old[i][0], EPOCH_BYTES));
    }
    later(a);
    for (uint32_t i = 0; i < COUNT; i++)
        put_in(a, MODEL, 300 + i, i); /* under these numbers */
    later(b);
    assert_ok(get_in(b, MODEL, 300, 0));
    clear_space(a, MODEL);
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    assert_int_equal(stats_of(a).owed_clears, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_ok(remote_memory_poke(ENGINE, names[i][0], old[i][0], EPOCH_BYTES));
    later(a);
    assert_int_equal(get_in(a, MODEL, 300, 0), KVT_MISS);
    for (uint32_t i = 0; i < 30000 && stats_of(a).repeated_clears == 0; i++)
        usleep(1000);
    assert_int_equal(stats_of(a).repeated_clears, 1);
    for (uint32_t i = 0; i < 30000 && stats_of(a).owed_clears != 0; i++)
        usleep(1000);
    later(b);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(get_in(b, MODEL, 300 + i, i), KVT_MISS);
    /* A number of another host's later clear stays. */
    assert_true(remote_memory_peek(ENGINE, names[0][0], value, EPOCH_BYTES, &bytes));
    value[8] ^= 1;
    value[14]++;
    assert_ok(remote_memory_poke(ENGINE, names[0][0], value, EPOCH_BYTES));
    usleep(2500000);
    assert_int_equal(stats_of(a).repeated_clears, 1);
    assert_true(remote_memory_peek(ENGINE, names[0][0], old[0][0], EPOCH_BYTES, &bytes));
    assert_memory_equal(old[0][0], value, EPOCH_BYTES);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* Two hosts clear at once, and one closes at once: all of it holds, and what they publish then is
 * found by both. */
TEST(clears_of_two_hosts_meet)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", SOME);
    kvt_store *b = open_host(KVT_PUBLISH_ALL, "memory", SOME);
    for (uint32_t round = 0; round < 5; round++) {
        put_space(round % 2 == 0 ? a : b, MODEL);
        clear_space(a, MODEL);
        clear_space(b, MODEL);
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
        assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
        later(a);
        later(b);
        assert_int_equal(found_in(a, MODEL) + found_in(b, MODEL), 0);
        put_in(a, MODEL, 500 + round, 1);
        put_in(b, MODEL, 600 + round, 2);
        later(a);
        later(b);
        assert_ok(get_in(b, MODEL, 500 + round, 1));
        assert_ok(get_in(a, MODEL, 600 + round, 2));
    }
    put_space(a, OTHER);
    clear_space(b, OTHER);
    kvt_store_close(b); /* the engine hears of it all the same */
    kvt_store *c = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    assert_int_equal(found_in(c, OTHER), 0);
    kvt_store_close(a);
    kvt_store_close(c);
}

/* What a host knows of an epoch costs a get nothing: only the first in a second asks. */
TEST(gets_ask_for_no_epoch)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
    for (uint32_t i = 0; i < COUNT; i++)
        put_in(a, MODEL, i * EPOCH_PARTS, i);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", NONE);
    const uint64_t began_ns = base_clock_ns();
    for (uint32_t i = 0; i < COUNT; i++)
        assert_ok(get_in(b, MODEL, i * EPOCH_PARTS, i));
    const uint64_t seconds = (base_clock_ns() - began_ns) / EPOCH_FRESH;
    remote_client *client = b->remote->client;
    kvt_store *const stores[] = {a, b};
    remote_stats stats = {.node_count = 0};
    publisher_stop(b->remote);
    link_stop(b->remote); /* the client is nobody's now */
    remote_stats_get(client, &stats);
    const uint64_t asked = stats.requests[REMOTE_GET];
    const uint64_t for_epochs = asked % COUNT; /* each get asks for as many chunks */
    if (for_epochs < 2 || for_epochs > 2 * (1 + seconds))
        fail_msg("%llu questions for %u gets", (unsigned long long)asked, COUNT);
    for (int i = 0; i < 2; i++)
        kvt_store_close(stores[i]);
}

/* A read that a clear or a delete has overtaken brings nothing. */
TEST(a_read_that_was_overtaken_is_a_miss)
{
    kvt_store *a = open_host(KVT_PUBLISH_ALL, "memory", 4 << 20);
    kvt_store *b = open_host(KVT_PUBLISH_NONE, "memory", 4 << 20);
    for (uint32_t how = 0; how < 3; how++) {
        const kvt_key key = key_in(MODEL, how);
        put_in(a, MODEL, how, how);
        later(b);
        staging_buffer buffer = {0};
        bool joined = false, drives = false;
        assert_ok(staging_acquire(b->staging, fetch_staging_bytes(b->remote, SUPPORT_ENTRY_BYTES),
                                  KVT_NO_DEADLINE, &buffer));
        remote_fetch *fetch = fetch_begin(b, &key, 0, SUPPORT_ENTRY_BYTES, KVT_NO_DEADLINE, &buffer,
                                          NULL, &joined, &drives);
        assert_non_null(fetch);
        if (drives) link_drive(b->remote, &fetch->read.finished, KVT_NO_DEADLINE);
        assert_ok(fetch_wait(b->remote, fetch, KVT_NO_DEADLINE));
        if (how == 0) clear_space(b, MODEL);
        if (how == 1) clear_space(b, OTHER);
        assert_int_equal(fetch_wait(b->remote, fetch, KVT_NO_DEADLINE),
                         how == 0 ? KVT_MISS : KVT_OK);
        read_drop(b, &fetch->read);
        assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
        later(a);
    }
    kvt_store_close(a);
    kvt_store_close(b);
}
