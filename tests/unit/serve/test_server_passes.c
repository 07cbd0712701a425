/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_passes.c - passes of a session are its own and bounded, and end with it; what comes
 * by a region is copied, and read no further than the region goes.
 */
#include "served_store.h"

#include "serve/wire/control.h"

#include <kvterrace/load.h>

enum { SESSION_PASSES = 16, STORE_PASSES = 64, LAYERS = 8 };

/* Begins a pass by a record of so many bytes. */
static kvt_status begin_pass(serve_client *at, double layer_seconds, size_t bytes,
                             uint64_t *pass_out)
{
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 64,
                           .layers = LAYERS,
                           .layer_seconds = layer_seconds};
    wire_request request;
    wire_completion done;
    assert_ok(client_make(at, WIRE_PASS_BEGIN, NULL, &request));
    memcpy(client_record(at, &request), &pass, sizeof pass);
    const kvt_status status = client_finish(at, &request, bytes, &done);
    *pass_out = done.answer;
    return status;
}

static kvt_status begin(serve_client *at, uint64_t *pass_out)
{
    return begin_pass(at, 1e6, sizeof(kvt_pass), pass_out);
}

static kvt_status layer(serve_client *at, uint64_t pass, uint32_t number)
{
    wire_request request;
    wire_completion done;
    size_t bytes;
    assert_ok(client_make(at, WIRE_PASS_LAYER, NULL, &request));
    assert_ok(wire_pass_layer_write(pass, number, client_record(at, &request), 64, &bytes));
    return client_finish(at, &request, bytes, &done);
}

static kvt_status end(serve_client *at, uint64_t pass)
{
    return client_plain(at, WIRE_PASS_END, NULL, pass);
}

/* How many passes the store takes yet; they end again. */
static uint32_t places_left(void)
{
    uint64_t passes[STORE_PASSES + 1];
    const kvt_pass pass = {
        .struct_size = sizeof pass, .new_tokens = 1, .layers = 1, .layer_seconds = 1e6};
    uint32_t count = 0;
    while (kvt_pass_begin(served.store, &pass, &passes[count]) == KVT_OK)
        count++;
    for (uint32_t i = 0; i < count; i++)
        assert_ok(kvt_pass_end(served.store, passes[i]));
    return count;
}

TEST(a_pass_is_of_the_session_that_began_it)
{
    serve_memory();
    uint64_t own, others;
    assert_ok(begin(&first, &own));
    assert_ok(begin(&second, &others));
    assert_ok(layer(&first, own, 0));
    assert_int_equal(layer(&first, own, LAYERS), KVT_E_ARGUMENT);
    for (uint64_t i = 0; i < 1000; i++)
        if (i != others && i != own) assert_int_equal(end(&second, i), KVT_MISS);
    if (own != others) {
        assert_int_equal(layer(&second, own, 1), KVT_MISS);
        assert_int_equal(end(&second, own), KVT_MISS);
    }
    assert_ok(layer(&first, own, 1));
    assert_ok(end(&first, own));
    assert_int_equal(end(&first, own), KVT_MISS);
    assert_int_equal(layer(&first, own, 2), KVT_MISS);
    assert_ok(end(&second, others));
    assert_int_equal(places_left(), STORE_PASSES);
}

TEST(a_session_has_so_many_passes_which_end_with_it)
{
    serve_memory();
    uint64_t pass;
    for (int i = 0; i < SESSION_PASSES; i++)
        assert_ok(begin(&first, &pass));
    assert_int_equal(begin(&first, &pass), KVT_BUSY);
    assert_ok(begin(&second, &pass));
    assert_int_equal(places_left(), STORE_PASSES - SESSION_PASSES - 1);
    client_close(&first);
    while (server_sessions(served.lends) != 1)
        usleep(1000);
    assert_int_equal(places_left(), STORE_PASSES - 1);
}

/* Sessions that have all of the store's keep no other one from its calls. */
TEST(a_store_without_room_for_a_pass_says_so)
{
    serve_memory();
    uint64_t passes[STORE_PASSES], pass;
    const kvt_pass asked = {
        .struct_size = sizeof asked, .new_tokens = 1, .layers = 1, .layer_seconds = 1e6};
    for (uint32_t i = 0; i < STORE_PASSES; i++)
        assert_ok(kvt_pass_begin(served.store, &asked, &passes[i]));
    assert_int_equal(begin(&first, &pass), KVT_BUSY);
    assert_ok(kvt_pass_end(served.store, passes[7]));
    assert_ok(begin(&first, &pass));
}

TEST(records_that_are_no_pass_are_refused)
{
    serve_memory();
    uint64_t pass;
    wire_request request;
    wire_completion done;
    for (size_t bytes = 8; bytes < sizeof(kvt_pass); bytes += 8)
        assert_int_equal(begin_pass(&first, 1, bytes, &pass), KVT_E_ARGUMENT);
    assert_int_equal(begin_pass(&first, -1, sizeof(kvt_pass), &pass), KVT_E_ARGUMENT);
    assert_int_equal(client_plain(&first, WIRE_PASS_BEGIN, NULL, 0), KVT_E_ARGUMENT);
    assert_int_equal(client_plain(&first, WIRE_PASS_LAYER, NULL, 1), KVT_E_ARGUMENT);
    assert_ok(client_make(&first, WIRE_PASS_END, NULL, &request));
    memset(client_record(&first, &request), 0, 16);
    assert_int_equal(client_finish(&first, &request, 16, &done), KVT_E_ARGUMENT);
    assert_int_equal(places_left(), STORE_PASSES);
    assert_ok(put_staged(&first, 1));
    assert_ok(get_staged(&first, 1));
}

/* ---- regions ---- */

static kvt_status call_memory(wire_call_number call, uint32_t region, uint64_t bytes)
{
    wire_message message, answer;
    const wire_memory_argument argument = {
        .at = {sizeof argument, 0}, .region = region, .bytes = bytes};
    wire_call_make(&message, call, first.protocol, ++first.number, &argument);
    assert_ok(client_ask(&first, &message, NULL, 0, &answer, (int[3]){0}));
    assert_int_equal(answer.head.kind, WIRE_RESULT);
    return answer.head.status;
}

TEST(what_comes_by_a_region_is_read_within_it)
{
    serve_memory();
    char *memory;
    uint32_t region;
    assert_ok(client_register(&first, WIRE_PAGE, F_SEAL_SHRINK, &memory, &region));
    kvt_pass_row *rows = (kvt_pass_row *)(void *)memory;
    for (uint32_t i = 0; i < WIRE_PAGE / sizeof *rows; i++)
        rows[i] = (kvt_pass_row){.new_tokens = i + 1, .layer_seconds = 1};
    assert_ok(call_memory(WIRE_CALL_PASS_TABLE, region, WIRE_PAGE));
    assert_ok(call_memory(WIRE_CALL_PASS_TABLE, region, 2 * sizeof *rows));
    assert_ok(call_memory(WIRE_CALL_PASS_TABLE, 0, 0));
    assert_int_equal(call_memory(WIRE_CALL_PASS_TABLE, region, sizeof *rows + 8), KVT_E_ARGUMENT);
    const uint64_t beyond[] = {WIRE_PAGE + sizeof *rows, UINT64_MAX / 16 * 16, UINT64_MAX};
    const uint32_t none[] = {region + 1, WIRE_REGIONS_MAX - 1, WIRE_REGIONS_MAX, UINT32_MAX};
    for (int of_basis = 0; of_basis < 2; of_basis++) {
        const wire_call_number number = of_basis ? WIRE_CALL_BASIS_ADD : WIRE_CALL_PASS_TABLE;
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(call_memory(number, region, beyond[i]), KVT_E_ARGUMENT);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(call_memory(number, none[i], sizeof *rows), KVT_E_ARGUMENT);
    }
    assert_int_equal(call_memory(WIRE_CALL_BASIS_ADD, region, WIRE_PAGE), KVT_E_CORRUPT);
    assert_int_equal(call_memory(WIRE_CALL_BASIS_ADD, 0, 0), KVT_E_CORRUPT);
    assert_ok(client_one(&first, WIRE_RELEASE, region));
    assert_int_equal(call_memory(WIRE_CALL_PASS_TABLE, region, 16), KVT_E_ARGUMENT);
}
