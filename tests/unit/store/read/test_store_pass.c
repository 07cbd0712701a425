/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_pass.c - announced passes: numbers that end once, loads that name them, writes that
 * wait for their layers and no longer than the patience, tables of any rows.
 */
#include "store/core/store.h"

#include "lent_store.h"
#include "queue_site.h"

#include <kvterrace/load.h>
#include <math.h>

enum { ENTRIES = 4, LAYERS = 8 };

#define MS UINT64_C(1000000)

static const kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64};

#define ENTRY_BYTES (UINT64_C(2) * LAYERS * 64 * 2 * 64 * 2)

static char data[ENTRIES][ENTRY_BYTES];

static void open_site(kvt_io_order order, double patience_seconds)
{
    kvt_store_options options = queue_site_options(true);
    options.io.order = order;
    options.io.write_patience_seconds = patience_seconds;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(2, 0);
}

static kvt_status put_entry(uint32_t number)
{
    const kvt_entry entry = support_entry(support_key(number), layout, 1);
    return kvt_store_put(store, &entry, KVT_PACKED(data[number % ENTRIES], ENTRY_BYTES));
}

static kvt_pass pass_of(double layer_seconds)
{
    return (kvt_pass){.struct_size = sizeof(kvt_pass),
                      .new_tokens = 64,
                      .prefix_tokens = 64 * ENTRIES,
                      .layers = LAYERS,
                      .layer_seconds = layer_seconds};
}

static uint64_t begin_pass(double layer_seconds)
{
    const kvt_pass pass = pass_of(layer_seconds);
    uint64_t number = 0;
    assert_ok(kvt_pass_begin(store, &pass, &number));
    assert_true(number != 0);
    return number;
}

static kvt_load *begin_load(uint64_t pass)
{
    static kvt_view views[ENTRIES];
    static char *targets;
    if (queue_site_region_count == 0) targets = queue_site_memory(sizeof data);
    const kvt_view *pointers[ENTRIES];
    kvt_key keys[ENTRIES];
    const kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .pass = pass};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        keys[i] = support_key(i);
        views[i] = *KVT_PACKED(targets + i * ENTRY_BYTES, ENTRY_BYTES);
        pointers[i] = &views[i];
    }
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(queue, keys, pointers, ENTRIES, &options, &load));
    return load;
}

static kvt_io_decisions decisions(void)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(store, 0, &stats));
    return stats.decisions;
}

TEST_EACH(NULL, queue_site_close);

TEST(a_pass_ends_once)
{
    open_site(KVT_IO_SLACK, 10);
    const uint64_t number = begin_pass(0.001);
    assert_ok(kvt_pass_layer(store, number, 0));
    assert_ok(kvt_pass_layer(store, number, 3));
    assert_int_equal(kvt_pass_layer(store, number, 2), KVT_E_ARGUMENT);
    assert_int_equal(kvt_pass_layer(store, number, LAYERS), KVT_E_ARGUMENT);
    assert_ok(kvt_pass_end(store, number));
    assert_int_equal(kvt_pass_end(store, number), KVT_MISS);
    assert_int_equal(kvt_pass_layer(store, number, 4), KVT_MISS);
    assert_int_equal(kvt_pass_end(store, 0), KVT_MISS);
    assert_int_equal(kvt_pass_end(store, UINT64_MAX), KVT_MISS);
    assert_int_equal(kvt_pass_end(NULL, number), KVT_E_ARGUMENT);
}

TEST(what_is_no_pass_is_refused)
{
    open_site(KVT_IO_SLACK, 10);
    uint64_t number = 7;
    kvt_pass wrong[] = {pass_of(0), pass_of(0), pass_of(0),  pass_of(0),   pass_of(0),
                        pass_of(0), pass_of(0), pass_of(-1), pass_of(NAN), pass_of(INFINITY)};
    wrong[0].new_tokens = 0;
    wrong[1].layers = 0;
    wrong[2].layers = 4097;
    wrong[3].kind = (kvt_pass_kind)2;
    wrong[4].reserved = 1;
    wrong[5].struct_size = 4;
    wrong[6].layers = UINT32_MAX;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(kvt_pass_begin(store, &wrong[i], &number), KVT_E_ARGUMENT);
    assert_int_equal(kvt_pass_begin(store, NULL, &number), KVT_E_ARGUMENT);
    wrong[0] = pass_of(0);
    assert_int_equal(kvt_pass_begin(store, &wrong[0], NULL), KVT_E_ARGUMENT);
    assert_int_equal(number, 7);
}

TEST(passes_are_bounded_and_a_stopped_one_gives_its_place_back)
{
    open_site(KVT_IO_SLACK, 0.05);
    const uint64_t began_ns = base_clock_ns();
    const kvt_pass pass = pass_of(0.0001);
    uint64_t first = 0, number;
    const uint32_t most = getenv("KVT_TEST_LENT") != NULL ? 16 : 64;
    for (uint32_t i = 0; i < most; i++) {
        assert_ok(kvt_pass_begin(store, &pass, &number));
        if (i == 0) first = number;
    }
    const kvt_status status = kvt_pass_begin(store, &pass, &number);
    if (base_clock_ns() - began_ns < 50 * MS) assert_int_equal(status, KVT_BUSY);
    while (base_clock_ns() - began_ns < 100 * MS)
        base_sleep(MS);
    for (uint32_t i = 0; i < most; i++)
        assert_ok(kvt_pass_begin(store, &pass, &number));
    assert_int_equal(kvt_pass_end(store, first), KVT_MISS);
}

TEST(a_put_waits_for_the_layers_and_a_late_pass_holds_it_for_the_patience)
{
    open_site(KVT_IO_SLACK, 0.2);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(put_entry(i));
    assert_int_equal(decisions().idle, 0); /* no pass yet: as reads_first */
    assert_int_equal(decisions().share, 0);
    /* A minute a layer, and no layer released: the window keeps the last layers out, whose time
     * has not come, so a put fits. */
    uint64_t pass = begin_pass(60);
    kvt_load *load = begin_load(pass);
    assert_ok(kvt_load_wait(load, 1, base_clock_ns() + 60 * SECOND_NS));
    assert_ok(kvt_pass_layer(store, pass, 0));
    assert_ok(put_entry(ENTRIES));
    assert_true(decisions().fits > 0);
    assert_int_equal(decisions().share, 0);
    assert_ok(kvt_load_end(load, NULL, NULL));
    assert_ok(kvt_pass_end(store, pass));
    /* No time at all, and the load is never released: every layer is late, so the put has its share
     * after the patience, and the pass is forgotten. */
    pass = begin_pass(1e-9);
    load = begin_load(pass);
    assert_ok(kvt_load_wait(load, 1, base_clock_ns() + 60 * SECOND_NS));
    const uint64_t began_ns = base_clock_ns();
    assert_ok(put_entry(ENTRIES + 1));
    assert_true(base_clock_ns() - began_ns >= 100 * MS);
    assert_true(decisions().waits_layers > 0);
    assert_ok(kvt_load_end(load, NULL, NULL));
    assert_ok(kvt_pass_end(store, pass));
    /* The load of a pass that has ended is one without a pass. */
    load = begin_load(pass);
    assert_ok(kvt_load_wait(load, 1, base_clock_ns() + 60 * SECOND_NS));
    assert_ok(kvt_load_end(load, NULL, NULL));
}

TEST(a_load_outlives_its_pass_and_every_order_loads)
{
    for (int order = KVT_IO_READS_FIRST; order <= KVT_IO_SLACK; order++) {
        open_site((kvt_io_order)order, 10);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_ok(put_entry(i));
        const uint64_t pass = begin_pass(0);
        kvt_load *load = begin_load(pass);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            if (layer == LAYERS / 2) assert_ok(kvt_pass_end(store, pass));
            const kvt_status status = kvt_pass_layer(store, pass, layer);
            assert_int_equal(status, layer < LAYERS / 2 ? KVT_OK : KVT_MISS);
            assert_ok(kvt_load_wait(load, layer + 1, base_clock_ns() + 60 * SECOND_NS));
            kvt_load_release(load, layer + 1);
        }
        assert_ok(kvt_load_end(load, NULL, NULL));
        queue_site_close(NULL);
    }
}

/* The seconds of a layer that a pass of these sizes was begun with. */
static double begun_with(uint32_t new_tokens, uint32_t prefix_tokens)
{
    kvt_pass pass = pass_of(0);
    uint64_t number;
    pass.new_tokens = new_tokens;
    pass.prefix_tokens = prefix_tokens;
    assert_ok(kvt_pass_begin(store, &pass, &number));
    const store_passes *passes = &lent_store_own(store)->passes;
    double seconds = 0;
    for (uint32_t i = 0; i < PASS_MOST; i++)
        if (passes->passes[i].number != 0) seconds = (double)passes->passes[i].pace.step_ns * 1e-9;
    assert_ok(kvt_pass_end(store, number));
    return seconds;
}

TEST(a_pass_without_seconds_has_those_of_the_table_of_the_open)
{
    const kvt_pass_row rows[] = {{64, 256, 0.25}, {8192, 0, 4}};
    kvt_store_options options = queue_site_options(true);
    options.pass_rows = rows;
    options.pass_row_count = 2;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    assert_true(fabs(begun_with(64, 256) - 0.25) < 1e-6);
    assert_true(fabs(begun_with(8192, 0) - 4) < 1e-6);
    assert_true(begun_with(1024, 128) > begun_with(64, 256));
    assert_ok(kvt_pass_table_set(store, NULL, 0)); /* the model's again */
    assert_true(begun_with(64, 256) < 0.2);
    queue_site_close(NULL);
    const kvt_pass_row wrong[] = {{64, 256, 0.25}, {64, 256, 4}};
    char message[128];
    options.pass_rows = wrong;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    assert_string_equal(message, "pass_rows are no table");
    options.pass_rows = NULL; /* of 2 */
    assert_int_equal(kvt_store_open(&options, &store, NULL, 0), KVT_E_ARGUMENT);
    options.pass_rows = rows;
    options.pass_row_count = UINT64_MAX;
    assert_int_equal(kvt_store_open(&options, &store, NULL, 0), KVT_E_ARGUMENT);
    store = NULL;
}

TEST(tables_are_checked_whole)
{
    open_site(KVT_IO_SLACK, 10);
    const kvt_pass_row good[] = {{64, 256, 0.01}, {64, 0, 0.005}, {8192, 131072, 0.5}};
    assert_ok(kvt_pass_table_set(store, good, 3));
    kvt_pass_row rows[3];
    const double wrong[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(rows, good, sizeof rows);
        rows[2].layer_seconds = wrong[i];
        assert_int_equal(kvt_pass_table_set(store, rows, 3), KVT_E_ARGUMENT);
    }
    memcpy(rows, good, sizeof rows);
    rows[1].prefix_tokens = 256;
    assert_int_equal(kvt_pass_table_set(store, rows, 3), KVT_E_ARGUMENT);
    rows[1].new_tokens = 0;
    assert_int_equal(kvt_pass_table_set(store, rows, 3), KVT_E_ARGUMENT);
    assert_int_equal(kvt_pass_table_set(store, NULL, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_pass_table_set(store, good, 4097), KVT_E_ARGUMENT);
    assert_ok(kvt_pass_table_set(store, NULL, 0));
}
