/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_load.c - layered loads: layers come in order over all entries, no further than the
 * window; what fails stops no other; deadlines, ends and closes in the middle leave nothing behind.
 */
#include "codecs/view_rows.h"
#include "queue_site.h"

#include <kvterrace/load.h>
#include <pthread.h>
#include <stdatomic.h>

enum { ENTRIES = 12, LAYERS = 8 };

/* 8 layers of 2 x 64 tokens x 2 heads x 64 x bf16 = 32 KiB each. */
static kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64};

#define ENTRY_BYTES (UINT64_C(2) * LAYERS * 64 * 2 * 64 * 2)

typedef struct site {
    kvt_key keys[ENTRIES];
    kvt_view views[ENTRIES];
    const kvt_view *pointers[ENTRIES];
    char *data[ENTRIES];
    char *expected[ENTRIES];
} site;

static kvt_status put_entry(site *s, uint32_t number)
{
    kvt_entry entry = support_entry(support_key(number), layout, 1);
    return kvt_store_put(store, &entry, KVT_PACKED(s->expected[number], ENTRY_BYTES));
}

/* One tier: a device whose faults the test controls, or plain memory. */
static site *make_site(bool device, bool staged, uint64_t staging_bytes)
{
    site *s = test_zeros(sizeof *s);
    kvt_store_options options = queue_site_options(device);
    if (!staged) options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = staging_bytes;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(2, 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        s->keys[i] = support_key(i);
        s->data[i] = queue_site_memory(ENTRY_BYTES);
        s->expected[i] = test_alloc(ENTRY_BYTES);
        memset(s->data[i], 0xee, ENTRY_BYTES);
        codecs_kv_sample_fill(&layout, 50 + i, s->expected[i]);
        s->views[i] = codecs_packed_view(&layout, s->data[i]);
        s->pointers[i] = &s->views[i];
        assert_ok(put_entry(s, i));
    }
    return s;
}

static kvt_load *begin(site *s, const kvt_load_options *options)
{
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(queue, s->keys, s->pointers, ENTRIES, options, &load));
    return load;
}

static const char *layer_at(const char *data, uint32_t layer)
{
    return data + kvt_layout_matrix_offset(&layout, layer, KVT_SIDE_K);
}

#define LAYER_BYTES (ENTRY_BYTES / LAYERS)

/* Each layer is whole in every entry when it is announced. */
static void load_all(site *s, const kvt_load_options *options)
{
    kvt_load *load = begin(s, options);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait(load, layer + 1, base_clock_ns() + 60 * SECOND_NS));
        assert_true(kvt_load_layers(load) >= layer + 1);
        assert_true(kvt_load_layers(load) <= layer + 3); /* two ahead of what was released */
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_memory_equal(layer_at(s->data[i], layer), layer_at(s->expected[i], layer),
                                LAYER_BYTES);
        kvt_load_release(load, layer + 1);
    }
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(kvt_load_status(load, i));
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(statuses[i]);
    assert_int_equal(result.layers, LAYERS);
    assert_int_equal(result.entries, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        memset(s->data[i], 0xee, ENTRY_BYTES);
}

TEST(layers_in_order)
{
    site *s = make_site(true, false, 16 << 20);
    load_all(s, NULL);
    queue_site_close(NULL);
    s = make_site(false, false, 16 << 20);
    load_all(s, NULL);
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.gets, ENTRIES);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].hits, ENTRIES);
    queue_site_close(NULL);
    s = make_site(false, true, 16 << 20);
    load_all(s, NULL);
    queue_site_close(NULL);
}

/* One matrix a layer of as many bytes. */
TEST(layers_of_one_side)
{
    const kvt_layout both = layout;
    layout.sides = 1;
    layout.tokens = 128;
    test_layers_in_order(state);
    layout = both;
}

/* Staging holds a few layers of a few entries at a time: all comes in the end. */
TEST(little_staging)
{
    site *s = make_site(true, false, 1 << 20);
    load_all(s, NULL);
    queue_site_close(NULL);
}

TEST(the_window)
{
    site *s = make_site(true, false, 16 << 20);
    tiers_fault_counts before, after;
    tiers_fault_counts_get(fault.device, &before);
    const kvt_load_options options = {
        .struct_size = sizeof options, .layers_ahead = 1, .deadline_ns = KVT_NO_DEADLINE};
    kvt_load *load = begin(s, &options);
    assert_ok(kvt_load_wait(load, 2, base_clock_ns() + 60 * SECOND_NS));
    assert_int_equal(kvt_load_wait(load, 3, base_clock_ns() + SECOND_NS / 20), KVT_E_TIMEOUT);
    assert_int_equal(kvt_load_layers(load), 2);
    tiers_fault_counts_get(fault.device, &after);
    assert_true(after.reads - before.reads <= ENTRIES * 3); /* heads and two layers */
    kvt_load_release(load, 1);
    assert_ok(kvt_load_wait(load, 3, base_clock_ns() + 60 * SECOND_NS));
    assert_int_equal(kvt_load_wait(load, LAYERS + 1, KVT_NO_DEADLINE), KVT_E_ARGUMENT);
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, statuses, &result));
    assert_int_equal(result.layers, 3);
    assert_int_equal(result.entries, 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], KVT_E_TIMEOUT);
    queue_site_close(NULL);
}

/* A missing entry, one of another view, and a damaged one: the others come. */
TEST(failures_stop_no_other)
{
    site *s = make_site(true, false, 16 << 20);
    assert_ok(kvt_store_delete(store, &s->keys[3]));
    s->views[5].base_bytes[0] -= 64;
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                        .kinds = TIERS_FAULT_READS,
                                        .skip = ENTRIES + 10,
                                        .hits = 1,
                                        .flip_bit = 4000});
    kvt_load *load = begin(s, NULL);
    for (uint32_t layer = 1; layer <= LAYERS; layer++) {
        kvt_load_release(load, layer);
        assert_ok(kvt_load_wait(load, layer, base_clock_ns() + 60 * SECOND_NS));
    }
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, statuses, &result));
    uint32_t misses = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (statuses[i] == KVT_MISS) misses++;
        if (statuses[i] == KVT_OK) assert_memory_equal(s->data[i], s->expected[i], ENTRY_BYTES);
    }
    assert_int_equal(statuses[3], KVT_MISS);
    assert_int_equal(statuses[5], KVT_E_ARGUMENT);
    assert_int_equal(misses, 2);
    assert_true(result.entries <= 3);
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal((unsigned char)s->data[5][ENTRY_BYTES - 1 - i], 0xee);
    queue_site_close(NULL);
}

enum { PER_BLOCK = 16, ENTRY_BLOCKS = 4, POOL_BLOCKS = ENTRY_BLOCKS * ENTRIES };

/* Whether a pool [layer][side][block][token][head] holds an entry in these blocks. */
static bool pool_holds(const char *pool, const uint32_t *blocks, const char *packed)
{
    const size_t row = 2 * 64 * 2; /* heads of a token */
    for (size_t plane = 0; plane < 2 * LAYERS; plane++) {
        for (size_t token = 0; token < 64; token++, packed += row) {
            size_t block = plane * POOL_BLOCKS + blocks[token / PER_BLOCK];
            const char *at = pool + (block * PER_BLOCK + token % PER_BLOCK) * row;
            if (memcmp(at, packed, row) != 0) return false;
        }
    }
    return true;
}

/* Loads all, of which one fails for its view; ENTRIES: none does. */
static void load_all_but(site *s, uint32_t failing)
{
    kvt_status statuses[ENTRIES];
    kvt_load *load = begin(s, NULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE));
        kvt_load_release(load, layer + 1);
    }
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], i == failing ? KVT_E_ARGUMENT : KVT_OK);
}

/* Two entries that meet inside of the memory of a third, longer one are compared with each other,
 * too: of the three the first alone is loaded. */
TEST(views_that_meet_inside_another)
{
    site *s = make_site(false, false, 16 << 20);
    char *memory = queue_site_memory(2 * ENTRY_BYTES);
    kvt_layout longer = layout;
    longer.tokens *= 2;
    const kvt_entry entry = support_entry(support_key(ENTRIES), longer, 1);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(memory, 2 * ENTRY_BYTES)));
    s->keys[2] = entry.key;
    s->views[2] = codecs_packed_view(&longer, memory);
    s->views[0].base[0] = memory + 256;
    s->views[1].base[0] = memory + 512;
    kvt_status statuses[3];
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(queue, s->keys, s->pointers, 3, NULL, &load));
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_ARGUMENT);
    assert_int_equal(statuses[2], KVT_E_ARGUMENT);
    assert_memory_equal(memory + 256, s->expected[0], ENTRY_BYTES);
    queue_site_close(NULL);
}

/* Of two entries whose views meet the later one fails, and nothing of it is written: the others are
 * whole. Packed views meet by their bytes, paged ones by their blocks. */
TEST(views_that_meet)
{
    site *s = make_site(false, false, 16 << 20);
    uint32_t blocks[ENTRIES][ENTRY_BLOCKS];
    char *memory = queue_site_memory(ENTRIES * ENTRY_BYTES);
    memset(memory, 0xee, ENTRIES * ENTRY_BYTES);
    s->views[3].base[0] = memory;
    s->views[7].base[0] = memory + ENTRY_BYTES - 256;
    load_all_but(s, 7);
    assert_memory_equal(memory, s->expected[3], ENTRY_BYTES);
    assert_int_equal((unsigned char)memory[ENTRY_BYTES], 0xee);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(kvt_view_make(&layout, "lsbth", PER_BLOCK, POOL_BLOCKS, &s->views[i]));
        s->views[i].base[0] = memory;
        s->views[i].blocks = blocks[i];
        s->views[i].block_count = ENTRY_BLOCKS;
        for (uint32_t k = 0; k < ENTRY_BLOCKS; k++)
            blocks[i][k] = (ENTRY_BLOCKS * i + k) * 5 % POOL_BLOCKS; /* scattered */
    }
    load_all_but(s, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_true(pool_holds(memory, blocks[i], s->expected[i]));
    memset(memory, 0xee, ENTRIES * ENTRY_BYTES);
    blocks[7][2] = blocks[3][1];
    load_all_but(s, 7);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(pool_holds(memory, blocks[i], s->expected[i]), i != 7);
    queue_site_close(NULL);
}

/* A deadline that has passed starts no device, and stops no load that needs none. */
TEST(a_deadline_that_has_passed)
{
    for (int device = 0; device < 2; device++) {
        site *s = make_site(device, false, 16 << 20);
        tiers_fault_counts before = {0}, after = {0};
        if (device) tiers_fault_counts_get(fault.device, &before);
        const kvt_load_options options = {.struct_size = sizeof options}; /* 0: before any clock */
        kvt_load *load = begin(s, &options);
        kvt_status expected = device ? KVT_E_TIMEOUT : KVT_OK;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            assert_int_equal(kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE), expected);
            kvt_load_release(load, layer + 1);
        }
        kvt_status statuses[ENTRIES];
        kvt_load_result result = {.struct_size = sizeof result};
        assert_ok(kvt_load_end(load, statuses, &result));
        assert_int_equal(result.layers, device ? 0 : LAYERS);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_int_equal(statuses[i], expected);
            if (!device) assert_memory_equal(s->data[i], s->expected[i], ENTRY_BYTES);
        }
        if (device) tiers_fault_counts_get(fault.device, &after);
        assert_int_equal(after.reads, before.reads);
        queue_site_close(NULL);
    }
}

TEST(a_silent_device)
{
    site *s = make_site(true, false, 16 << 20);
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .skip = ENTRIES + ENTRIES / 2});
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .deadline_ns = base_clock_ns() + SECOND_NS / 10};
    kvt_load *load = begin(s, &options);
    assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_TIMEOUT);
    kvt_status statuses[ENTRIES];
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], KVT_E_TIMEOUT);
    for (uint32_t i = 0; i < ENTRIES; i++)
        memset(s->data[i], 0xdd, ENTRY_BYTES);
    tiers_fault_clear(fault.device);
    load_all(s, NULL); /* nothing was lost, and what came late was written nowhere */
    queue_site_close(NULL);
}

TEST(ends_in_the_middle)
{
    for (int which = 0; which < 3; which++) {
        site *s = make_site(true, false, 16 << 20);
        queue_site_fault((tiers_fault_rule){
            .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = 2000000});
        kvt_load *load = begin(s, NULL);
        if (which == 1) {
            kvt_queue_close(queue);
            queue = NULL;
            assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_STATE);
        }
        if (which == 2) {
            kvt_store_close(store);
            store = NULL;
        }
        kvt_status statuses[ENTRIES];
        assert_ok(kvt_load_end(load, statuses, NULL));
        queue_site_close(NULL);
    }
}

typedef struct teller {
    _Atomic uint32_t last;
    _Atomic bool wrong;
} teller;

static void told(void *context, uint32_t layers)
{
    teller *own = context;
    if (layers <= atomic_exchange(&own->last, layers)) atomic_store(&own->wrong, true);
}

TEST(announcements_ascend)
{
    site *s = make_site(true, false, 16 << 20);
    teller own = {.last = 0};
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .layers_ahead = LAYERS,
                                      .deadline_ns = KVT_NO_DEADLINE,
                                      .announced = told,
                                      .announced_context = &own};
    for (int round = 0; round < 20; round++) {
        atomic_store(&own.last, 0);
        kvt_load *load = begin(s, &options);
        assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
        assert_ok(kvt_load_end(load, NULL, NULL));
        assert_int_equal(atomic_load(&own.last), LAYERS);
    }
    assert_false(atomic_load(&own.wrong));
    queue_site_close(NULL);
}

TEST(bad_arguments)
{
    site *s = make_site(false, false, 16 << 20);
    kvt_load *load = NULL;
    kvt_key absent = support_key(999);
    const kvt_view *none = NULL;
    kvt_load_options bad = {.struct_size = sizeof bad, .layers_ahead = 65};
    assert_int_equal(kvt_load_begin(queue, s->keys, s->pointers, 0, NULL, &load), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_begin(queue, s->keys, s->pointers, 1, &bad, &load), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_begin(queue, s->keys, &none, 1, NULL, &load), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_begin(NULL, s->keys, s->pointers, 1, NULL, &load), KVT_E_ARGUMENT);
    kvt_status status = kvt_load_begin(queue, &absent, s->pointers, 1, NULL, &load);
    if (status == KVT_OK) { /* other hosts are asked, and do not answer */
        status = kvt_load_wait(load, 1, KVT_NO_DEADLINE);
        assert_ok(kvt_load_end(load, NULL, NULL));
    }
    assert_int_equal(status, KVT_MISS);
    assert_ok(kvt_load_end(NULL, NULL, NULL));
    queue_site_close(NULL);
}
