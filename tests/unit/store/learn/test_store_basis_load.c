/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_basis_load.c - layered loads of entries whose layers are coded four together: each
 * span is read once, from SSD and from memory, by one load and by two beside each other, and gives
 * the bytes of a get. One thread and a queue's.
 */
#include "base/clock.h"
#include "basis_site.h"
#include "codecs/view_rows.h"

#include <kvterrace/load.h>
#include <kvterrace/names.h>

enum { ENTRIES = 5, LAYERS = 6, LAYER_BYTES = BASIS_SITE_BYTES / LAYERS };

static char expected[ENTRIES][BASIS_SITE_BYTES];

/* The targets of one load. */
typedef struct target {
    char data[ENTRIES][BASIS_SITE_BYTES];
    kvt_view views[ENTRIES];
    const kvt_view *pointers[ENTRIES];
    kvt_key keys[ENTRIES];
    kvt_load *load;
} target;

static target first, second;

TEST_BEFORE_EACH
{
    static char data[BASIS_SITE_BYTES];
    basis_site_make(&site);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        basis_site_fill(i, data);
        (void)basis_site_code(&site, data, expected[i]);
    }
}

static void begin(target *to, kvt_queue *queue, uint32_t ahead)
{
    const kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .layers_ahead = ahead};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        memset(to->data[i], 0xee, sizeof to->data[i]);
        to->keys[i] = support_key(i);
        to->views[i] = codecs_packed_view(&basis_site_layout, to->data[i]);
        to->pointers[i] = &to->views[i];
    }
    assert_ok(kvt_load_begin(queue, to->keys, to->pointers, ENTRIES, &options, &to->load));
}

/* Waits for a layer, which is whole in every entry then. */
static void take_layer(target *to, uint32_t layer)
{
    assert_ok(kvt_load_wait(to->load, layer + 1, base_clock_ns() + UINT64_C(60000000000)));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_memory_equal(to->data[i] + layer * LAYER_BYTES, expected[i] + layer * LAYER_BYTES,
                            LAYER_BYTES);
    kvt_load_release(to->load, layer + 1);
}

static kvt_load_result end(target *to)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(to->load, statuses, &result));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(statuses[i]);
    assert_int_equal(result.layers, LAYERS);
    return result;
}

/* What the records of the entries take. */
static uint64_t record_bytes(kvt_store *store)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        kvt_description what = {.struct_size = sizeof what};
        assert_ok(kvt_store_describe(store, &key, &what));
        assert_int_equal(what.variant.codec, KVT_CODEC_TRANSFORM);
        bytes += what.stored_bytes;
    }
    return bytes;
}

static void load_from(uint64_t dram_bytes)
{
    kvt_queue *queue = NULL;
    site.dram_bytes = dram_bytes;
    kvt_store *store = basis_site_filled(&site, ENTRIES);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    const uint64_t stored = record_bytes(store);
    for (uint32_t ahead = 1; ahead <= 8; ahead += 3) {
        begin(&first, queue, ahead);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            take_layer(&first, layer);
        const kvt_load_result result = end(&first);
        /* Each byte once, and heads and grains that two spans share. */
        assert_true(result.bytes_read <= stored + ENTRIES * 3 * 4096);
        assert_int_equal(result.bytes_read == 0, dram_bytes != 0);
    }
    /* Two at once, the second one two layers late: they share reads where there are any. */
    begin(&first, queue, 1);
    take_layer(&first, 0);
    take_layer(&first, 1);
    begin(&second, queue, 8);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        take_layer(&second, layer);
        if (layer >= 2) take_layer(&first, layer);
    }
    (void)end(&first);
    (void)end(&second);
    /* One that is given up in the middle of a span. */
    begin(&first, queue, 2);
    take_layer(&first, 0);
    assert_ok(kvt_load_end(first.load, NULL, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(basis_site_get(&site, store, i, NULL));
    kvt_queue_close(queue);
    kvt_store_close(store);
}

TEST_EACH(NULL, basis_site_tear_down);

TEST(spans_are_read_once_from_ssd)
{
    load_from(0);
}

TEST(spans_are_decoded_once_from_memory)
{
    load_from(16 << 20);
}
