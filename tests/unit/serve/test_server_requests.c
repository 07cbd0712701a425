/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_requests.c - each kind of request against the same call of the store in this process;
 * staging; batches and what calls them off; and what is answered when a client writes nonsense.
 */
#include "dice.h"
#include "served_store.h"

#include <math.h>

/* ---- staging ---- */

TEST(entries_come_and_go_by_staging)
{
    serve_memory();
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(get_staged(&first, i), KVT_MISS);
        assert_ok(put_staged(&first, i));
        assert_int_equal(put_staged(&first, i), KVT_EXISTS);
        assert_ok(get_staged(&first, i));
    }
    support_gets(served.store, 0, 8);
    /* What a client names of staging lies in its own, or nowhere. */
    const kvt_key key = support_key(1);
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    char *end = first.regions[WIRE_STAGING].address + STAGING;
    first.regions[WIRE_STAGING].bytes += ENTRY;
    assert_int_equal(client_call(&first, WIRE_GET, &key, &get, KVT_PACKED(end - 64, ENTRY)),
                     KVT_E_ARGUMENT);
    assert_int_equal(client_call(&first, WIRE_GET, &key, &get, KVT_PACKED(end, ENTRY)),
                     KVT_E_ARGUMENT);
    assert_ok(client_call(&first, WIRE_GET, &key, &get, KVT_PACKED(end - ENTRY, ENTRY)));
    second.regions[WIRE_STAGING] = first.regions[WIRE_STAGING];
    assert_int_equal(client_call(&second, WIRE_GET, &key, &get, KVT_PACKED(end - ENTRY, ENTRY)),
                     KVT_E_ARGUMENT);
    second.regions[WIRE_STAGING] = (wire_region){0};
}

/* The limit is the session's, over its channels. */
TEST(staging_has_a_limit)
{
    wire_message message, answer;
    int descriptors[3];
    serve_memory();
    const uint64_t rows[] = {(2 << 20) - STAGING + 4096, (2 << 20) - STAGING, 4096};
    for (uint32_t i = 0; i < 3; i++) {
        wire_message_make(&message, WIRE_OPEN_CHANNEL, first.protocol, ++first.number);
        message.open.entries = 2;
        message.open.argument_bytes = 4096;
        message.open.staging_bytes = rows[i];
        const kvt_status status = client_ask(&first, &message, NULL, 0, &answer, descriptors);
        assert_int_equal(status, i == 1 ? KVT_OK : KVT_E_SPACE);
        for (uint32_t k = 0; i == 1 && k < 3; k++)
            close(descriptors[k]);
    }
    assert_int_equal(answer.head.kind, WIRE_DONE);
    assert_ok(client_one(&first, WIRE_CLOSE_CHANNEL, 1));
    message.open.staging_bytes = STAGING;
    message.head.number = ++first.number;
    assert_ok(client_ask(&first, &message, NULL, 0, &answer, descriptors));
    for (uint32_t k = 0; k < 3; k++)
        close(descriptors[k]);
    assert_ok(put_staged(&first, 1));
    assert_ok(get_staged(&first, 1));
}

/* ---- one key ---- */

TEST(calls_on_one_key_say_what_the_store_says)
{
    const kvt_key key = support_key(1), none = support_key(2);
    serve_memory();
    assert_ok(put_staged(&first, 1));
    assert_ok(client_plain(&second, WIRE_EXISTS, &key, 0));
    assert_int_equal(client_plain(&second, WIRE_EXISTS, &none, 0), KVT_MISS);
    assert_ok(client_plain(&second, WIRE_TOUCH, &key, 0));
    assert_int_equal(client_plain(&second, WIRE_TOUCH, &none, 0), KVT_MISS);
    assert_ok(client_plain(&second, WIRE_PREFETCH, &key, KVT_TIER_DRAM));
    assert_int_equal(client_plain(&second, WIRE_PREFETCH, &none, KVT_TIER_DRAM), KVT_MISS);
    assert_int_equal(client_plain(&second, WIRE_PREFETCH, &key, KVT_TIER_HBM), KVT_E_UNSUPPORTED);
    assert_int_equal(client_plain(&second, WIRE_PREFETCH, &key, KVT_TIER_REMOTE),
                     KVT_E_UNSUPPORTED);
    const uint64_t tiers[] = {KVT_TIER_NONE, KVT_TIER_PLACES, UINT64_MAX, UINT64_C(1) << 32};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(client_plain(&second, WIRE_PREFETCH, &key, tiers[i]), KVT_E_ARGUMENT);
    assert_int_equal(client_plain(&second, WIRE_DELETE, &none, 0), KVT_MISS);
    assert_ok(client_plain(&second, WIRE_DELETE, &key, 0));
    assert_int_equal(client_plain(&first, WIRE_EXISTS, &key, 0), KVT_MISS);
}

/* A get tells what the store's own get does, and nothing where it is not asked. */
TEST(a_get_tells_how_it_was_served)
{
    const kvt_key key = support_key(1);
    wire_get get = {
        .struct_size = sizeof get, .got_bytes = sizeof(wire_got), .deadline_ns = KVT_NO_DEADLINE};
    wire_request request;
    wire_completion done;
    serve((site_shape){.disks = 1, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true});
    assert_ok(put_staged(&first, 1));
    for (uint32_t asks = 0; asks < 2; asks++) {
        kvt_kept_tokens kept = {.struct_size = sizeof kept, .count = 99, .sets = 99};
        kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
        char *staging = first.regions[WIRE_STAGING].address;
        size_t bytes;
        get.got_bytes = asks == 1 ? sizeof(wire_got) : 0;
        assert_ok(client_make(&first, WIRE_GET, &key, &request));
        assert_ok(wire_get_write(&get, KVT_PACKED(staging, ENTRY), 1, first.regions,
                                 client_record(&first, &request), CLIENT_RECORD, &bytes));
        assert_ok(client_finish(&first, &request, bytes, &done));
        assert_int_equal(done.tier, KVT_TIER_SSD);
        assert_int_equal(done.answer_bytes, get.got_bytes);
        const kvt_status status =
            wire_got_read(client_record(&first, &request), done.answer_bytes, &info);
        assert_int_equal(status, asks == 1 ? KVT_OK : KVT_E_CORRUPT);
        if (asks == 0) continue;
        assert_true(info.read_ns > 0 && info.decode_ns > 0 && info.predicted_ns > 0);
        assert_false(info.shared);
        assert_int_equal(kept.count, support_layout.tokens);
        assert_int_equal(kept.sets, 0);
    }
    /* A miss writes nothing. */
    assert_ok(client_plain(&first, WIRE_DELETE, &key, 0));
    size_t bytes;
    assert_ok(client_make(&first, WIRE_GET, &key, &request));
    assert_ok(wire_get_write(&get, KVT_PACKED(first.regions[WIRE_STAGING].address, ENTRY), 1,
                             first.regions, client_record(&first, &request), CLIENT_RECORD,
                             &bytes));
    assert_int_equal(client_finish(&first, &request, bytes, &done), KVT_MISS);
    assert_int_equal(done.answer_bytes, 0);
}

static kvt_status describe(serve_client *at, const kvt_key *key, kvt_description *description)
{
    wire_request request;
    wire_completion done;
    size_t bytes;
    assert_ok(client_make(at, WIRE_DESCRIBE, key, &request));
    char *record = client_record(at, &request);
    assert_ok(wire_describe_write(description, record, CLIENT_RECORD, &bytes));
    const kvt_status status = client_finish(at, &request, bytes, &done);
    if (status != KVT_OK) return status;
    return wire_describe_answer_read(record, done.answer_bytes, description);
}

/* An entry of three groups. */
static const kvt_layout groups[] = {
    {.layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32},
    {.layers = 1,
     .kv_heads = 1,
     .head_dim = 64,
     .dtype = KVT_DTYPE_BF16,
     .tokens = 8,
     .sides = KVT_SIDES_ONE},
    {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5000}};

enum { GROUPED = 32768 + 1024 + 5000 };

static unsigned char grouped[GROUPED];

static wire_put put_of_groups(void)
{
    static const kvt_key parent = {{6}};
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .parent = &parent,
                             .first_position = 32,
                             .recompute_seconds = 1,
                             .tenant = 3,
                             .group_count = 3,
                             .groups = groups};
    for (uint32_t i = 0; i < GROUPED; i++)
        grouped[i] = (unsigned char)(i * 2654435761u >> 24 & 63);
    return wire_put_of(&entry, KVT_NO_DEADLINE);
}

TEST(entries_of_groups_are_put_and_got)
{
    static unsigned char got[GROUPED];
    const kvt_key key = support_key(7);
    const wire_put put = put_of_groups();
    wire_request request;
    wire_completion done;
    size_t bytes;
    serve_memory();
    char *staging = first.regions[WIRE_STAGING].address;
    memcpy(staging, grouped, GROUPED);
    /* A group too few, a layout beside them, more groups than there are. */
    for (uint32_t i = 0; i < 4; i++) {
        wire_put wrong = put;
        if (i == 0) wrong.group_count = 2;
        if (i == 1) wrong.layout = support_layout;
        assert_ok(client_make(&first, WIRE_PUT, &key, &request));
        char *record = client_record(&first, &request);
        assert_ok(wire_put_write(&wrong, groups, NULL, KVT_PACKED(staging, GROUPED), 1,
                                 first.regions, record, CLIENT_RECORD, &bytes));
        if (i == 2) ((wire_put *)(void *)record)->group_count = KVT_GROUPS_MAX + 1;
        if (i == 3) ((wire_put *)(void *)record)->group_count = UINT32_MAX;
        assert_int_equal(client_finish(&first, &request, bytes, &done), KVT_E_ARGUMENT);
    }
    assert_ok(client_make(&first, WIRE_PUT, &key, &request));
    assert_ok(wire_put_write(&put, groups, NULL, KVT_PACKED(staging, GROUPED), 1, first.regions,
                             client_record(&first, &request), CLIENT_RECORD, &bytes));
    assert_ok(client_finish(&first, &request, bytes, &done));
    memset(staging, 0, GROUPED);
    assert_ok(kvt_store_get(served.store, &key, KVT_PACKED(got, GROUPED), KVT_NO_DEADLINE, NULL));
    assert_memory_equal(got, grouped, GROUPED);
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(client_call(&first, WIRE_GET, &key, &get, KVT_PACKED(staging, GROUPED)));
    assert_memory_equal(staging, grouped, GROUPED);
}

/* With and without room for the groups, as the store has it. */
TEST(a_description_is_the_store_s)
{
    const kvt_key key = support_key(7), parent = support_key(6);
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = key,
                             .parent = &parent,
                             .recompute_seconds = 1,
                             .group_count = 3,
                             .groups = groups};
    serve_memory();
    assert_ok(kvt_store_put(served.store, &entry, KVT_PACKED(grouped, GROUPED)));
    assert_ok(kvt_store_flush(served.store));
    for (uint32_t capacity = 0; capacity < 5; capacity++) {
        kvt_layout layouts[2][5] = {{{0}}};
        kvt_description own = {.struct_size = sizeof own,
                               .groups_capacity = capacity,
                               .groups = capacity > 0 ? layouts[0] : NULL};
        kvt_description told = own;
        told.groups = capacity > 0 ? layouts[1] : NULL;
        assert_ok(kvt_store_describe(served.store, &key, &own));
        assert_ok(describe(&second, &key, &told));
        assert_ptr_equal(told.groups, capacity > 0 ? layouts[1] : NULL);
        told.groups = own.groups;
        assert_true(told.age_seconds >= own.age_seconds && told.age_seconds < 100);
        told.age_seconds = own.age_seconds;
        assert_memory_equal(&told, &own, sizeof own);
        assert_memory_equal(layouts[1], layouts[0], sizeof layouts[0]);
        assert_int_equal(told.group_count, 3);
        if (capacity >= 3) assert_memory_equal(layouts[1], groups, sizeof groups);
    }
    kvt_description none = {.struct_size = sizeof none};
    assert_int_equal(describe(&second, &parent, &none), KVT_MISS);
}

/* ---- lists ---- */

enum { KEYS = 24 };

/* Keys of entries 0 to 9, one that is not stored, and more that are. */
static void list_keys(kvt_key *keys)
{
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = support_key(i);
    for (uint32_t i = 0; i < KEYS; i++)
        if (i != 10) assert_ok(put_staged(&first, i));
    assert_ok(kvt_store_flush(served.store));
}

TEST(a_match_is_the_store_s)
{
    kvt_key keys[KEYS];
    wire_request request;
    wire_completion done;
    serve((site_shape){.disks = 1,
                       .disk_bytes = 32 << 20,
                       .unit_bytes = 65536,
                       .fast = true,
                       .memory_bytes = 256 << 10});
    list_keys(keys);
    for (uint32_t how = 0; how < 8; how++)
        for (uint32_t count = 0; count <= KEYS; count += 6) {
            kvt_worth own = {.struct_size = sizeof own}, told = own;
            double seconds[2][KEYS] = {{0}};
            size_t matched;
            const wire_list list = {
                .count = count, .flags = how & 3, .worth_bytes = (how & 4) != 0 ? sizeof own : 0};
            const kvt_match match = {.struct_size = sizeof match,
                                     .hosts = (how & WIRE_MATCH_HOSTS) != 0,
                                     .worth = &own,
                                     .load_seconds = seconds[0]};
            assert_ok(kvt_store_match(served.store, keys, count, &match, &matched));
            assert_ok(client_list(&second, WIRE_MATCH, &list, keys, &request, &done));
            assert_int_equal(done.answer, matched);
            assert_int_equal(matched, count > 10 ? 10 : count);
            assert_ok(wire_match_answer_read(&list, client_record(&second, &request),
                                             done.answer_bytes, &told, seconds[1]));
            if ((how & 4) != 0) {
                assert_int_equal(told.struct_size, sizeof told);
                assert_int_equal(told.stored, own.stored);
                assert_int_equal(told.to_load, own.to_load);
                assert_true(told.recompute_seconds == own.recompute_seconds);
                assert_int_equal(told.guessed, 0);
            }
            for (uint32_t i = 0; (how & WIRE_MATCH_SECONDS) != 0 && i < count; i++)
                assert_true(i == 10 ? seconds[1][i] != seconds[1][i] : seconds[1][i] > 0);
        }
}

TEST(lists_are_touched_and_hinted)
{
    kvt_key keys[KEYS];
    wire_request request;
    wire_completion done;
    serve_memory();
    list_keys(keys);
    const wire_list touch = {.count = KEYS}, nothing = {0};
    assert_ok(client_list(&second, WIRE_TOUCH, &touch, keys, &request, &done));
    assert_int_equal(done.answer, KEYS - 1);
    assert_ok(client_list(&second, WIRE_TOUCH, &nothing, keys, &request, &done));
    assert_int_equal(done.answer, 0);
    wire_list hint = {.count = KEYS, .hint = KVT_HINT_NEXT_USE, .seconds = 5};
    assert_ok(client_list(&second, WIRE_HINT, &hint, keys, &request, &done));
    assert_int_equal(done.answer, KEYS - 1);
    assert_int_equal(support_stats(served.store).hints_skipped, 1);
    hint.count = 1;
    assert_int_equal(client_list(&second, WIRE_HINT, &hint, &keys[10], &request, &done), KVT_MISS);
    assert_int_equal(done.answer, 0);
    const struct {
        uint32_t hint;
        double seconds;
    } rows[] = {{KVT_HINT_KINDS, 5},
                {KVT_HINT_RETAIN, 0},
                {KVT_HINT_DEMOTE, -1},
                {KVT_HINT_RETAIN, 1e9},
                {KVT_HINT_RETAIN, (double)NAN}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        hint.hint = rows[i].hint;
        hint.seconds = rows[i].seconds;
        assert_int_equal(client_list(&second, WIRE_HINT, &hint, keys, &request, &done),
                         KVT_E_ARGUMENT);
    }
}

/* ---- leases ---- */

static kvt_status extend(serve_client *at, uint64_t lease, uint64_t until_ns)
{
    wire_request request;
    wire_completion done;
    size_t bytes;
    assert_ok(client_make(at, WIRE_LEASE_EXTEND, NULL, &request));
    assert_ok(
        wire_extend_write(lease, until_ns, client_record(at, &request), CLIENT_RECORD, &bytes));
    return client_finish(at, &request, bytes, &done);
}

TEST(leases_are_of_the_client_that_began_them)
{
    kvt_key keys[KEYS];
    bool held[KEYS];
    wire_request request;
    wire_completion done;
    const uint64_t later = base_clock_ns() + UINT64_C(1000000000000);
    serve_memory();
    list_keys(keys);
    /* Somebody else's lease of the store, whose number no client may use. */
    uint64_t foreign;
    assert_ok(kvt_lease_begin(served.store, NULL, keys, 1, later, NULL, &foreign));
    wire_list list = {.count = 12, .instant_ns = later};
    assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, keys, &request, &done));
    const uint64_t lease = done.answer;
    assert_ok(
        wire_lease_answer_read(&list, client_record(&second, &request), done.answer_bytes, held));
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(held[i], i != 10);
    assert_int_equal(client_plain(&first, WIRE_DELETE, &keys[3], 0), KVT_BUSY);
    for (uint64_t number = 0; number < 8; number++) {
        assert_int_equal(client_plain(&first, WIRE_LEASE_END, NULL, number), KVT_MISS);
        assert_int_equal(extend(&first, number, later), KVT_MISS);
    }
    assert_int_equal(support_stats(served.store).leases.leases, 2);
    assert_ok(extend(&second, lease, later + 1));
    assert_int_equal(extend(&second, lease, 1), KVT_E_ARGUMENT);
    assert_int_equal(extend(&second, lease + 1, later), KVT_MISS);
    /* Another channel of the session may name it. */
    serve_client beside = {.socket = second.socket, .protocol = second.protocol, .number = 100};
    assert_ok(client_open_channel(&beside));
    assert_ok(extend(&beside, lease, later));
    assert_ok(client_plain(&beside, WIRE_LEASE_END, NULL, lease));
    beside.socket = -1; /* the second one's */
    client_close(&beside);
    assert_int_equal(client_plain(&second, WIRE_LEASE_END, NULL, lease), KVT_MISS);
    assert_ok(client_plain(&first, WIRE_DELETE, &keys[3], 0));
    /* None is held; an instant that has passed. */
    list.count = 1;
    assert_int_equal(client_list(&second, WIRE_LEASE_BEGIN, &list, &keys[10], &request, &done),
                     KVT_MISS);
    list.instant_ns = 1;
    assert_int_equal(client_list(&second, WIRE_LEASE_BEGIN, &list, keys, &request, &done),
                     KVT_E_ARGUMENT);
    /* A lease ends with its channel, and one that runs out by itself. */
    list.instant_ns = later;
    assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, &keys[4], &request, &done));
    assert_int_equal(client_plain(&first, WIRE_DELETE, &keys[4], 0), KVT_BUSY);
    client_close(&second);
    while (server_sessions(served.lends) != 1)
        usleep(1000);
    assert_ok(client_plain(&first, WIRE_DELETE, &keys[4], 0));
    list.instant_ns = base_clock_ns() + 20000000;
    assert_ok(client_list(&first, WIRE_LEASE_BEGIN, &list, &keys[5], &request, &done));
    usleep(30000);
    assert_int_equal(client_plain(&first, WIRE_LEASE_END, NULL, done.answer), KVT_MISS);
    assert_ok(kvt_lease_end(served.store, foreign));
}

/* A session has no more leases than its limit, and gives those back that have run out. */
TEST(a_session_s_leases_are_bounded)
{
    kvt_key keys[KEYS];
    wire_request request;
    wire_completion done = {0};
    serve_memory();
    list_keys(keys);
    wire_list list = {.count = 1, .instant_ns = base_clock_ns() + UINT64_C(1000000000000)};
    for (uint32_t i = 0; i < 4096; i++)
        assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, keys, &request, &done));
    const uint64_t last = done.answer;
    assert_int_equal(client_list(&second, WIRE_LEASE_BEGIN, &list, keys, &request, &done),
                     KVT_E_MEMORY);
    assert_int_equal(support_stats(served.store).leases.leases, 4096);
    uint64_t soon_ns = 1000000;
    kvt_status status;
    /* On a busy machine the instant may have passed when the server hears of it. */
    while ((status = extend(&second, last, base_clock_ns() + soon_ns)) == KVT_E_ARGUMENT)
        soon_ns *= 2;
    assert_ok(status);
    usleep((useconds_t)(soon_ns / 1000) + 10000);
    assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, keys, &request, &done));
}

/* Keys of all leases of a session, too: one entry may be in any number of them. */
TEST(the_keys_of_a_session_s_leases_are_bounded)
{
    static kvt_key many[500];
    kvt_key keys[KEYS];
    wire_request request;
    wire_completion done = {0};
    serve_memory();
    list_keys(keys);
    for (uint32_t i = 0; i < 500; i++)
        many[i] = keys[0];
    wire_list list = {.count = 500, .instant_ns = base_clock_ns() + UINT64_C(1000000000000)};
    for (uint32_t i = 0; i < (1 << 20) / 500; i++)
        assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, many, &request, &done));
    const uint64_t last = done.answer;
    assert_int_equal(client_list(&second, WIRE_LEASE_BEGIN, &list, many, &request, &done),
                     KVT_E_MEMORY);
    assert_ok(client_plain(&second, WIRE_LEASE_END, NULL, last));
    assert_ok(client_list(&second, WIRE_LEASE_BEGIN, &list, many, &request, &done));
}

/* ---- batches ---- */

/* Posts a get of an entry into staging. */
static uint64_t post_get(uint32_t number, uint32_t urgency)
{
    const kvt_key key = support_key(number);
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    char *place = first.regions[WIRE_STAGING].address + number * ENTRY;
    wire_request request;
    size_t bytes;
    assert_ok(client_make(&first, WIRE_GET, &key, &request));
    assert_ok(wire_get_write(&get, KVT_PACKED(place, ENTRY), 1, first.regions,
                             client_record(&first, &request), CLIENT_RECORD, &bytes));
    request.urgency = (uint16_t)urgency;
    assert_ok(client_send(&first, &request, bytes));
    return request.number;
}

static void hang_reads(void)
{
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    tiers_fault_counts counts = {0};
    serve((site_shape){
        .disks = 1, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true, .staged = true});
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(put_staged(&first, i));
    assert_ok(kvt_store_flush(served.store));
    assert_ok(tiers_fault_add(below->disks[0].device, &hang));
    (void)post_get(7, WIRE_BATCH_BEGINS);
    while (counts.hung == 0) {
        usleep(1000);
        tiers_fault_counts_get(below->disks[0].device, &counts);
    }
}

/* A cancel ends the batch of the request that it names and no other one, although requests of both
 * stand in the ring together and a batch has other calls in its middle. */
TEST(a_cancel_ends_one_batch)
{
    uint64_t batches[2][3];
    const kvt_key key = support_key(0);
    kvt_key keys[1] = {key};
    const wire_list list = {.count = 1};
    wire_request request;
    wire_completion done;
    size_t bytes;
    hang_reads();
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t i = 0; i < 3; i++) {
            batches[b][i] = post_get(b * 3 + i, i == 0 ? WIRE_BATCH_BEGINS : 0);
            if (i != 1) continue;
            assert_ok(client_make(&first, WIRE_MATCH, NULL, &request));
            assert_ok(wire_list_write(WIRE_MATCH, &list, keys, client_record(&first, &request),
                                      CLIENT_RECORD, &bytes));
            assert_ok(client_send(&first, &request, bytes));
        }
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(client_take(&first, &done));
        assert_int_equal(done.kind, WIRE_MATCH);
        assert_int_equal(done.answer, 1);
    }
    uint32_t cancelled = 0;
    bool answered = false;
    assert_ok(client_make(&first, WIRE_CANCEL, NULL, &request));
    request.argument = batches[0][2];
    assert_ok(client_send(&first, &request, 0));
    while (cancelled < 3 || !answered) {
        assert_ok(client_take(&first, &done));
        assert_int_equal(done.status, done.kind == WIRE_CANCEL ? KVT_OK : KVT_E_CANCELLED);
        if (done.kind == WIRE_CANCEL) assert_int_equal(done.number, request.number);
        answered = answered || done.kind == WIRE_CANCEL;
        if (done.kind != WIRE_GET) continue;
        assert_true(done.number == batches[0][0] || done.number == batches[0][1] ||
                    done.number == batches[0][2]);
        cancelled++;
    }
    /* Numbers that are completed, and that nobody has. */
    const uint64_t none[] = {batches[0][2], 0, UINT64_MAX};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(client_plain(&first, WIRE_CANCEL, NULL, none[i]), KVT_MISS);
    tiers_fault_clear(below->disks[0].device);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ok(client_take(&first, &done));
        assert_ok(done.status);
        assert_int_equal(done.kind, WIRE_GET);
    }
}

/* Records of open requests lie in the area beside each other: a client that names more than that
 * keeps none of the server's memory. */
TEST(open_records_are_no_more_than_the_area)
{
    wire_completion done;
    hang_reads();
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const kvt_key key = support_key(i);
        wire_request request;
        size_t bytes;
        char *place = first.regions[WIRE_STAGING].address + i * ENTRY;
        assert_ok(client_make(&first, WIRE_GET, &key, &request));
        assert_ok(wire_get_write(&get, KVT_PACKED(place, ENTRY), 1, first.regions,
                                 client_record(&first, &request), CLIENT_RECORD, &bytes));
        request.argument = request.number % CLIENT_ENTRIES * CLIENT_RECORD;
        request.argument_bytes = CLIENT_ENTRIES * CLIENT_RECORD / 5 * 2;
        assert_ok(peer_post(&first.submissions, &first.claimed, first.bells[0], &request));
        if (i < 2) continue;
        assert_ok(client_take(&first, &done));
        assert_int_equal(done.number, request.number);
        refused += done.status == KVT_E_ARGUMENT;
    }
    assert_int_equal(refused, 1);
    tiers_fault_clear(below->disks[0].device);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(client_take(&first, &done));
        assert_ok(done.status);
    }
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(get_staged(&first, i));
}

/* ---- nonsense ---- */

static const uint32_t record_kinds[] = {WIRE_GET,   WIRE_PUT,         WIRE_TOUCH,
                                        WIRE_MATCH, WIRE_LEASE_BEGIN, WIRE_LEASE_EXTEND,
                                        WIRE_HINT,  WIRE_DESCRIBE};
enum { RECORD_KINDS = sizeof record_kinds / sizeof *record_kinds };

/* Writes a sound record of a kind, for keys that are stored and not. */
static size_t write_sound(uint32_t kind, const kvt_key *keys, char *record)
{
    const kvt_entry entry = support_entry(support_key(100), support_layout, 1);
    const wire_put put = wire_put_of(&entry, 0);
    const wire_get get = {
        .struct_size = sizeof get, .got_bytes = sizeof(wire_got), .kept_capacity = 100};
    const kvt_view view = kvt_view_packed(first.regions[WIRE_STAGING].address, ENTRY);
    const kvt_description description = {.struct_size = sizeof description, .groups_capacity = 4};
    wire_list list = {.count = KEYS};
    size_t bytes = 0;
    kvt_status status;
    if (kind == WIRE_MATCH) list.flags = WIRE_MATCH_SECONDS | WIRE_MATCH_HOSTS;
    if (kind == WIRE_MATCH) list.worth_bytes = sizeof(kvt_worth);
    if (kind == WIRE_HINT) list.seconds = 3;
    if (kind == WIRE_LEASE_BEGIN) list.instant_ns = base_clock_ns() + 100000;
    if (kind == WIRE_GET)
        status = wire_get_write(&get, &view, 1, first.regions, record, CLIENT_RECORD, &bytes);
    else if (kind == WIRE_PUT)
        status = wire_put_write(&put, NULL, NULL, &view, 1, first.regions, record, CLIENT_RECORD,
                                &bytes);
    else if (kind == WIRE_LEASE_EXTEND)
        status = wire_extend_write(1, UINT64_MAX, record, CLIENT_RECORD, &bytes);
    else if (kind == WIRE_DESCRIBE)
        status = wire_describe_write(&description, record, CLIENT_RECORD, &bytes);
    else
        status = wire_list_write(kind, &list, keys, record, CLIENT_RECORD, &bytes);
    assert_ok(status);
    return bytes;
}

static uint32_t roll(uint64_t *dice, uint32_t sides)
{
    return (uint32_t)(dice_next(dice) >> 33) % sides;
}

/* Records of every kind with words that are changed by chance and ends that are cut: each request
 * is answered, and nothing beside its record is written. */
TEST(broken_records_are_answered_and_write_nothing_else)
{
    kvt_key keys[KEYS];
    uint64_t dice = 0x5eed;
    uint32_t statuses[2] = {0};
    serve_memory();
    list_keys(keys);
    char *const arguments = first.area + first.places.arguments;
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t kind = record_kinds[roll(&dice, RECORD_KINDS)];
        const kvt_key key = keys[roll(&dice, KEYS)];
        wire_request request;
        wire_completion done;
        assert_ok(client_make(&first, kind, &key, &request));
        char *record = client_record(&first, &request);
        if (round % 64 == 0) memset(arguments, 0xcc, CLIENT_ENTRIES * CLIENT_RECORD);
        size_t bytes = write_sound(kind, keys, record);
        for (uint32_t i = roll(&dice, 4); i > 0; i--) {
            static const uint32_t words[] = {0, 1, 7, 8, 40, 64, 100, 4096, 0x80000000, UINT32_MAX};
            const uint32_t word = words[roll(&dice, 10)];
            const size_t most = roll(&dice, 2) == 0 ? 64 : bytes;
            memcpy(record + roll(&dice, (uint32_t)(most / 4)) * 4, &word, sizeof word);
        }
        if (roll(&dice, 4) == 0) bytes = roll(&dice, (uint32_t)bytes) + 1;
        memset(record + bytes, 0xcc, CLIENT_RECORD - bytes);
        const kvt_status status = client_finish(&first, &request, bytes, &done);
        if (status == KVT_E_CORRUPT) fail_msg("round %u: kind %u", round, kind);
        assert_true(done.answer_bytes <= bytes);
        statuses[status == KVT_E_ARGUMENT]++;
        for (size_t i = bytes; i < CLIENT_RECORD; i++)
            if ((unsigned char)record[i] != 0xcc) fail_msg("round %u: kind %u", round, kind);
    }
    assert_true(statuses[0] > 1000 && statuses[1] > 1000);
    assert_ok(kvt_store_flush(served.store));
    for (uint32_t i = 0; i < KEYS; i++)
        if (i != 10) assert_ok(get_staged(&first, i));
}
