/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_loads.c - layered loads as a server's client asks for them by records: in parts,
 * ended or not, and with nonsense in place of each number.
 */
#include "serve/wire/load_records.h"
#include "served_store.h"

/* ---- layered loads ---- */

#define LOAD_STATE (UINT64_C(8) * CLIENT_RECORD) /* a place that no record of these cases has */

static const wire_load any_load = {.count = 1, .deadline_ns = KVT_NO_DEADLINE, .state = LOAD_STATE};

static wire_load_state *load_state(serve_client *at)
{
    return (wire_load_state *)(void *)(at->area + at->places.arguments + LOAD_STATE);
}

/* Sends one record with entry `number` in it, or with none, as `load` says; its number. */
static kvt_status send_load(serve_client *at, const wire_load *load, uint32_t number,
                            const kvt_view *view, uint64_t *number_out)
{
    wire_request request;
    wire_completion done;
    const kvt_key key = support_key(number);
    kvt_status status = client_make(at, WIRE_LOAD_BEGIN, NULL, &request);
    assert_ok(status);
    char *record = client_record(at, &request);
    size_t bytes = wire_load_write(load, record);
    if (view != NULL)
        status = wire_load_add(record, CLIENT_RECORD, &key, &view, 0, at->regions, &bytes);
    assert_ok(status);
    status = client_finish(at, &request, bytes, &done);
    if (number_out != NULL) *number_out = done.answer;
    return status;
}

/* Waits until so many layers are there. */
static void wait_layers(serve_client *at, uint32_t layers)
{
    const uint64_t until_ns = base_clock_ns() + UINT64_C(60000000000);
    while (atomic_load(&load_state(at)->layers) < layers) {
        assert_true(base_clock_ns() < until_ns);
        usleep(500);
    }
}

static kvt_status end_load(serve_client *at, uint64_t number)
{
    return client_plain(at, WIRE_LOAD_END, NULL, number);
}

TEST(a_load_of_two_records)
{
    static char expected[ENTRY];
    uint64_t number, again;
    serve_memory();
    char *staging = first.regions[WIRE_STAGING].address;
    for (uint32_t i = 0; i < 2; i++)
        assert_ok(put_staged(&first, i));
    const kvt_view views[] = {kvt_view_packed(staging, ENTRY),
                              kvt_view_packed(staging + ENTRY, ENTRY)};
    wire_load load = any_load;
    load.count = 2;
    load.flags = WIRE_LOAD_MORE;
    memset(staging, 0xee, 2 * ENTRY);
    assert_ok(send_load(&first, &load, 0, &views[0], &number));
    assert_int_equal(atomic_load(&load_state(&first)->total), 0);
    load.load = number;
    load.flags = 0;
    assert_ok(send_load(&first, &load, 1, &views[1], &again));
    assert_int_equal(number, again);
    wait_layers(&first, support_layout.layers);
    assert_int_equal(atomic_load(&load_state(&first)->total), support_layout.layers);
    for (uint32_t i = 0; i < 2; i++) {
        support_fill(i, expected);
        assert_memory_equal(staging + i * ENTRY, expected, ENTRY);
        assert_ok(atomic_load(&wire_load_statuses(load_state(&first))[i]));
    }
    assert_int_equal(send_load(&first, &load, 1, &views[1], NULL),
                     KVT_E_ARGUMENT);                      /* it has begun */
    assert_int_equal(end_load(&second, number), KVT_MISS); /* it is of another channel */
    assert_int_equal(end_load(&first, number + 1), KVT_MISS);
    assert_ok(end_load(&first, number));
    assert_int_equal(end_load(&first, number), KVT_MISS);
}

/* A get and a put of an entry of two layers with three addresses; KVT_OK where they differ. */
static kvt_status three_addresses(const kvt_view *view)
{
    const kvt_entry entry = support_entry(support_key(0), support_layout, 1);
    const wire_put put = wire_put_of(&entry, KVT_NO_DEADLINE);
    const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    kvt_status statuses[2] = {KVT_OK, KVT_OK};
    for (uint32_t i = 0; i < 2; i++) {
        wire_request request;
        wire_completion done;
        size_t bytes = 0;
        const kvt_key other = i == 0 ? entry.key : support_key(50);
        assert_ok(client_make(&first, i == 0 ? WIRE_GET : WIRE_PUT, &other, &request));
        char *record = client_record(&first, &request);
        if (i == 0)
            assert_ok(wire_get_write(&get, view, 3, first.regions, record, CLIENT_RECORD, &bytes));
        else
            assert_ok(wire_put_write(&put, NULL, NULL, view, 3, first.regions, record,
                                     CLIENT_RECORD, &bytes));
        statuses[i] = client_finish(&first, &request, bytes, &done);
    }
    return statuses[0] == statuses[1] ? statuses[0] : KVT_OK;
}

/* Whatever a client writes of loads, that load alone is refused; the loads that it does not end go
 * with its session. */
TEST(loads_of_a_client_that_lies)
{
    uint64_t number;
    serve_memory();
    char *staging = first.regions[WIRE_STAGING].address;
    assert_ok(put_staged(&first, 0));
    const kvt_view view = kvt_view_packed(staging, ENTRY);
    const uint64_t area = first.places.argument_bytes;
    const wire_load bad[] = {{.count = 0, .state = LOAD_STATE},
                             {.count = 65537, .state = LOAD_STATE},
                             {.count = 1, .state = LOAD_STATE + 8},
                             {.count = 1, .state = area},
                             {.count = 1, .state = area - 128},
                             {.count = 1, .state = UINT64_MAX - 63},
                             {.count = 1, .state = LOAD_STATE, .flags = 2},
                             {.count = 1, .state = LOAD_STATE, .coarse_planes = 5},
                             {.count = 1, .state = LOAD_STATE, .load = 77},
                             {.count = 1, .state = LOAD_STATE, .layers_ahead = 65},
                             {.count = 2, .state = LOAD_STATE}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(send_load(&first, &bad[i], 0, &view, NULL), KVT_E_ARGUMENT);
    assert_int_equal(send_load(&first, &any_load, 0, NULL, NULL), KVT_E_ARGUMENT);
    /* A view that leaves the staging, and one of a region that is not there. */
    first.regions[WIRE_STAGING].bytes += ENTRY;
    const kvt_view beyond = kvt_view_packed(staging + STAGING - 64, ENTRY);
    assert_int_equal(send_load(&first, &any_load, 0, &beyond, NULL), KVT_E_ARGUMENT);
    first.regions[WIRE_STAGING].bytes -= ENTRY;
    first.regions[9] = (wire_region){staging + STAGING, ENTRY};
    const kvt_view foreign = kvt_view_packed(staging + STAGING, ENTRY);
    assert_int_equal(send_load(&first, &any_load, 0, &foreign, NULL), KVT_E_ARGUMENT);
    first.regions[9] = (wire_region){0};
    /* A count of addresses that the entry does not have. */
    void *bases[] = {staging, staging, staging};
    const kvt_view three = {.struct_size = sizeof three,
                            .bases_kind = KVT_BASES_LAYERS,
                            .bases = bases,
                            .base_bytes = {ENTRY},
                            .base_count = 3};
    assert_int_equal(send_load(&first, &any_load, 0, &three, NULL), KVT_MISS);
    assert_int_equal(three_addresses(&three), KVT_E_ARGUMENT);
    /* Releases beyond the layers, and garbage where the server writes. */
    assert_ok(send_load(&first, &any_load, 0, &view, &number));
    memset(load_state(&first), 0xff, sizeof(wire_load_state) + 1);
    assert_ok(client_plain(&first, WIRE_EXISTS, &(const kvt_key){{0}}, 0) == KVT_MISS ? KVT_OK
                                                                                      : KVT_MISS);
    assert_ok(end_load(&first, number));
    assert_ok(get_staged(&first, 0));
    /* Those that lack records are open, too. */
    wire_load part = any_load;
    part.count = 2;
    part.flags = WIRE_LOAD_MORE;
    for (uint32_t i = 0; i < 64; i++)
        assert_ok(send_load(&first, i % 2 != 0 ? &part : &any_load, 0, &view, &number));
    assert_int_equal(send_load(&first, &any_load, 0, &view, NULL), KVT_BUSY);
    assert_ok(end_load(&first, number));
    assert_ok(send_load(&first, &any_load, 0, &view, NULL));
}
