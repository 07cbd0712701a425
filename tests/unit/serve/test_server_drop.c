/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_drop.c - entries whose tokens may drop, put with scores and got with positions by a
 * client, against the same calls on the store.
 */
#include "drop_site.h"
#include "serve_site.h"

static serve_site served;
static serve_client client;

TEST_EACH(store_folder_make, NULL);

/* A store whose one tier has room for a record of the form, and none for all of the entry. */
static void serve_form(const char *name, double bits)
{
    const test_rung rung = {name, bits, 0.01, 0.02, true};
    site s;
    site_prepare(&s, KVT_TIER_DRAM, ENTRY * 15 / 16, &rung, 1);
    site_open(&s);
    serve_site_begin(&served, s.store);
    assert_ok(client_hello(&client, served.path));
    assert_ok(client_open_staged(&client, 2 << 20));
}

static kvt_status put_scored(uint32_t number, uint32_t score_count)
{
    static float scores[2 * TOKENS];
    char *staging = client.regions[WIRE_STAGING].address;
    fill_entry(number, (uint8_t *)staging);
    fill_scores(number, scores);
    kvt_entry entry = make_entry(number, scores);
    wire_put put = wire_put_of(&entry, KVT_NO_DEADLINE);
    put.token_score_count = score_count;
    wire_request request;
    wire_completion done;
    size_t bytes;
    assert_ok(client_make(&client, WIRE_PUT, &entry.key, &request));
    assert_ok(wire_put_write(&put, NULL, scores, KVT_PACKED(staging, ENTRY), 1, client.regions,
                             client_record(&client, &request), CLIENT_RECORD, &bytes));
    return client_finish(&client, &request, bytes, &done);
}

/* A get with so much room for positions. */
static kvt_status get_kept(uint32_t number, uint64_t capacity, size_t room, kvt_get_info *info,
                           wire_completion *done)
{
    const kvt_key key = support_key(number);
    const wire_get get = {.struct_size = sizeof get,
                          .got_bytes = sizeof(wire_got),
                          .deadline_ns = KVT_NO_DEADLINE,
                          .kept_capacity = capacity};
    char *staging = client.regions[WIRE_STAGING].address;
    wire_request request;
    size_t bytes;
    memset(staging, FILL, ENTRY);
    assert_ok(client_make(&client, WIRE_GET, &key, &request));
    char *record = client_record(&client, &request);
    assert_ok(
        wire_get_write(&get, KVT_PACKED(staging, ENTRY), 1, client.regions, record, room, &bytes));
    assert_true(bytes <= room);
    memset(record + bytes, 0xcc, CLIENT_RECORD - bytes);
    const kvt_status status = client_finish(&client, &request, bytes, done);
    for (size_t i = bytes; i < CLIENT_RECORD; i++)
        assert_int_equal((unsigned char)record[i], 0xcc);
    if (status != KVT_OK) return status;
    return wire_got_read(record, done->answer_bytes, info);
}

static void check_form(const char *name, double bits)
{
    static uint8_t data[ENTRY];
    static uint32_t positions[POSITIONS];
    static expected e;
    kvt_kept_tokens kept = {
        .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    wire_completion done;
    serve_form(name, bits);
    assert_int_equal(put_scored(1, TOKENS - 1), KVT_E_ARGUMENT);
    assert_int_equal(put_scored(1, 2 * TOKENS), KVT_E_ARGUMENT);
    assert_ok(put_scored(1, TOKENS));
    assert_ok(get_kept(1, POSITIONS, CLIENT_RECORD, &info, &done));
    fill_entry(1, data);
    expect(data, 1, 0, done.variant, &e);
    assert_true(e.tokens < TOKENS);
    assert_int_equal(kept.count, e.tokens);
    assert_int_equal(kept.sets, e.sets);
    assert_int_equal(done.answer_bytes, sizeof(wire_got) + 4 * (size_t)e.sets * e.tokens);
    check_positions(&e, 0, done.variant, positions);
    assert_true(rows_match((uint8_t *)client.regions[WIRE_STAGING].address, &e));
    /* No room is asked for: the entry is a miss for want of it. */
    assert_int_equal(get_kept(1, 0, CLIENT_RECORD, &info, &done), KVT_MISS);
    assert_true((done.flags & WIRE_REFUSED_TOKENS) != 0);
    /* The store asks for room for all tokens of each set. All but one, by the request's word or by
     * its record. */
    const size_t needed = (size_t)e.sets * TOKENS;
    assert_int_equal(get_kept(1, needed - 1, CLIENT_RECORD, &info, &done), KVT_E_ARGUMENT);
    assert_ok(get_kept(1, needed, CLIENT_RECORD, &info, &done));
    const size_t room = sizeof(wire_got) + needed * 4;
    assert_int_equal(get_kept(1, UINT64_MAX, room - 4, &info, &done), KVT_E_ARGUMENT);
    assert_ok(get_kept(1, UINT64_MAX, room, &info, &done));
    check_positions(&e, 0, done.variant, positions);
    client_close(&client);
    serve_site_end(&served);
}

TEST(one_set_of_positions_comes_over)
{
    check_form("drop:scores,50", 8.2);
    check_form("drop:stream,50", 8.2);
}

TEST(a_set_of_positions_a_layer_comes_over)
{
    check_form("drop:knorm,50+planes:k8v8,g64", 4.6);
}
