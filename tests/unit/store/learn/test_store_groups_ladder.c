/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_groups_ladder.c - lossy forms of entries with groups: the groups of the ladder's shape
 * become coarser under pressure, as one coding of what was put; all others stay exact, and so does
 * an entry whose groups of that shape are not the ladder's layers.
 */
#include "codecs/record_groups.h"
#include "ladder_support.h"
#include "steady_costs.h"
#include "store/core/store.h"
#include "store/read/groups.h"
#include "store_folder.h"

static const test_rung test_rungs[] = {
    {"planes:k8v8,g64", 8.5, 0.0005, 0.001, true},
    {"planes:k6v6,g64", 6.5, 0.001, 0.002, true},
    {"planes:k4v4,g64", 4.5, 0.005, 0.009, true},
    {"entropy:k0.25v0.5,vchan", 3.5, 0.006, 0.010, true},
};
static const kvt_layout ladder_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512};
#define LADDER_ENTRY_BYTES (512u * 1024u)

TEST_BEFORE_EACH
{
    store_folder_make(state);
    ladder_make_profile(profile_path, test_rungs, sizeof test_rungs / sizeof test_rungs[0]);
}

enum { ENTRIES = 48, GROUPS = 4, ROUNDS = 4 };

/* Full attention and a window, together the ladder's two layers; an index of one side; bytes. */
static const kvt_layout shapes[GROUPS] = {
    {.layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512},
    {.layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 256},
    {.layers = 2, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .sides = 1, .tokens = 64},
    {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 3000}};

/* The ladder's two layers as K alone and V alone, whose heads are narrower. */
static const kvt_layout widths[GROUPS] = {{.layers = 2,
                                           .kv_heads = 2,
                                           .head_dim = 64,
                                           .dtype = KVT_DTYPE_BF16,
                                           .sides = KVT_SIDES_ONE,
                                           .tokens = 512},
                                          {.layers = 2,
                                           .kv_heads = 2,
                                           .head_dim = 48,
                                           .dtype = KVT_DTYPE_BF16,
                                           .sides = KVT_SIDES_V,
                                           .tokens = 512},
                                          {.layers = 2,
                                           .kv_heads = 1,
                                           .head_dim = 32,
                                           .dtype = KVT_DTYPE_BF16,
                                           .sides = KVT_SIDES_ONE,
                                           .tokens = 64},
                                          {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 3000}};

#define DATA_BYTES (1024u * 1024u)

static uint64_t fill_groups(uint32_t number, const kvt_layout *layouts, void *data)
{
    uint64_t at = 0, bytes;
    for (uint32_t i = 0; i < GROUPS; i++) {
        assert_ok(kvt_layout_bytes(&layouts[i], &bytes));
        assert_true(at + bytes <= DATA_BYTES);
        codecs_kv_sample_fill(&layouts[i], 100 * number + i, (char *)data + at);
        at += bytes;
    }
    return at;
}

/* What one coding of a group gives back. */
static void code_group(const kvt_layout *layout, const void *data, uint64_t bytes,
                       kvt_variant variant, void *decoded)
{
    static _Alignas(4096) char record[2 * DATA_BYTES], scratch[2 << 20];
    const kvt_record_spec spec = {.generation = 1, .layout = *layout, .variant = variant};
    uint64_t made, bound, need;
    assert_ok(kvt_record_bound(&spec, &bound, &need));
    assert_true(bound <= sizeof record && need <= sizeof scratch);
    assert_true(kvt_record_encode(&spec, data, bytes, record, sizeof record, scratch,
                                  sizeof scratch, &made) >= 0);
    assert_ok(kvt_record_decode(record, made, NULL, decoded, bytes, scratch, sizeof scratch));
}

/* Compares one group with one coding of what was put, or one of planes at 8 bits before it. */
static void check_group(const kvt_layout *layout, const char *data, const char *got, uint64_t bytes,
                        kvt_variant variant)
{
    static char wanted[DATA_BYTES], fine[DATA_BYTES];
    kvt_variant planes;
    code_group(layout, data, bytes, variant, wanted);
    if (memcmp(got, wanted, bytes) == 0) return;
    assert_ok(kvt_variant_parse("planes:k8v8,g64", &planes));
    code_group(layout, data, bytes, planes, fine);
    code_group(layout, fine, bytes, variant, wanted);
    assert_memory_equal(got, wanted, bytes);
}

/* Checks an entry by groups. True: it is held lossy; *held counts those that are there. */
static bool check_groups(kvt_store *store, uint32_t number, const kvt_layout *layouts,
                         uint32_t *held)
{
    static char data[DATA_BYTES], got[DATA_BYTES];
    const uint64_t bytes = fill_groups(number, layouts, data);
    const kvt_key key = support_key(number);
    kvt_get_info info = {.struct_size = sizeof info};
    const kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(got, bytes), KVT_STORE_DEADLINE, &info);
    if (status == KVT_MISS) return false;
    assert_ok(status);
    *held += 1;
    const bool exact =
        info.variant.codec == KVT_CODEC_RAW || info.variant.codec == KVT_CODEC_LOSSLESS;
    uint64_t at = 0, size;
    for (uint32_t i = 0; i < GROUPS; i++) {
        assert_ok(kvt_layout_bytes(&layouts[i], &size));
        if (exact || i >= 2)
            assert_memory_equal(got + at, data + at, size);
        else
            check_group(&layouts[i], data + at, got + at, size, info.variant);
        at += size;
    }
    return !exact;
}

/* Changes of one lossy variant into another, by the moves that were carried out. */
typedef struct changes {
    uint32_t lossy;
    uint32_t recoded; /* from an exact one */
    uint32_t count;
    uint64_t handles[ROUNDS * ENTRIES];
    kvt_variant variants[ROUNDS * ENTRIES];
} changes;

static void note_move(void *context, const kvt_move *move, kvt_status outcome)
{
    changes *all = context;
    uint32_t at = 0;
    if (outcome != KVT_OK || move->kind == KVT_MOVE_EVICT) return;
    while (at < all->count && all->handles[at] != move->handle)
        at++;
    if (at == all->count) {
        assert_true(at < ROUNDS * ENTRIES);
        all->handles[all->count++] = move->handle;
    } else if (move->kind == KVT_MOVE_CHANGE &&
               memcmp(&all->variants[at], &move->to_variant, sizeof move->to_variant) != 0) {
        const bool exact = all->variants[at].codec <= KVT_CODEC_LOSSLESS;
        all->recoded += exact;
        all->lossy += !exact;
    }
    all->variants[at] = move->to_variant;
}

/* Puts more than raw records have room for, with a round of the background after each or without;
 * how many are lossy then. */
static uint32_t press_groups(kvt_store *store, const kvt_layout *layouts, bool rounds)
{
    uint32_t lossy = 0, held = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        static char data[DATA_BYTES];
        const uint64_t bytes = fill_groups(i, layouts, data);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = support_key(i),
                                 .groups = layouts,
                                 .group_count = GROUPS,
                                 .recompute_seconds = 1e3 * (i + 1)};
        kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
        /* "adaptcache" keeps little room free for coding anew what is there. */
        const bool full = rounds && status == KVT_E_SPACE;
        assert_true(status == KVT_OK || status == KVT_REFUSED || status == KVT_EXISTS || full);
        if (rounds) assert_ok(kvt_store_maintain(store, NULL));
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        lossy += check_groups(store, i, layouts, &held);
    assert_true(held > 4);
    return lossy;
}

static void groups_come_back_coarser(const kvt_layout *layouts)
{
    char message[256];
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, 0);
    const kvt_device_config device = support_file_config("ssd0", ssd_path, 12 * LADDER_ENTRY_BYTES);
    options.durability.catalog_path = catalog_path;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = support_open(&options);
    const uint32_t lossy = press_groups(store, layouts, false);
    assert_true(lossy > 4);
    kvt_store_close(store);
    /* A restart serves the same. */
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    uint32_t again = 0, held = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        again += check_groups(store, i, layouts, &held);
    assert_int_equal(again, lossy);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    assert_int_equal(support_stats(store).load_failures, 0);
    kvt_store_close(store);
}

TEST(groups_become_coarser)
{
    groups_come_back_coarser(shapes);
}

TEST(groups_of_two_widths_become_coarser)
{
    groups_come_back_coarser(widths);
}

/* From memory to a smaller SSD, step by step: exact records are coded anew, and lossy ones are made
 * coarser. */
TEST(groups_are_recoded)
{
    changes seen = {.count = 0};
    support_fault memory = {.capacity_bytes = 16 * LADDER_ENTRY_BYTES, .fast = true};
    support_fault drive = {.capacity_bytes = 6 * LADDER_ENTRY_BYTES};
    const kvt_device_config devices[2] = {support_fault_config(&memory, "mem0"),
                                          support_fault_config(&drive, "ssd0")};
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, 0);
    options.policy = "adaptcache"; /* compresses in place, also what is lossy already */
    options.lossless = false;
    options.observer.call = note_move;
    options.observer.context = &seen;
    support_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
    support_tier(&options, KVT_TIER_SSD, &devices[1], 1);
    kvt_store *store = support_open(&options);
    for (uint32_t i = 0; i < ROUNDS; i++)
        (void)press_groups(store, shapes, true);
    assert_true(seen.recoded > 0 && seen.lossy > 0);
    assert_int_equal(support_stats(store).load_failures, 0);
    assert_int_equal(support_stats(store).moves.failed_io, 0);
    kvt_store_close(store);
}

/* One layer of the shape, or three, or K without V: not what was calibrated. */
TEST(other_counts_of_layers_stay_exact)
{
    char message[256];
    kvt_store *store = NULL;
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 12 * LADDER_ENTRY_BYTES);
    for (uint16_t layers = 1; layers <= 2; layers++) {
        kvt_layout layouts[GROUPS];
        memcpy(layouts, shapes, sizeof layouts);
        layouts[0].layers = layers;
        if (layers == 1) layouts[1].head_dim = 32;
        assert_ok(kvt_store_open(&options, &store, message, sizeof message));
        assert_int_equal(press_groups(store, layouts, false), 0);
        kvt_store_close(store);
    }
    for (uint32_t i = 0; i < 2; i++) {
        kvt_layout layouts[GROUPS];
        memcpy(layouts, widths, sizeof layouts);
        if (i == 0) layouts[1].layers = 1;
        if (i == 1) layouts[1].sides = KVT_SIDES_ONE;
        assert_ok(kvt_store_open(&options, &store, message, sizeof message));
        assert_int_equal(press_groups(store, layouts, false), 0);
        kvt_store_close(store);
    }
}

/* A basis is of K and V of all layers: where groups share these no variant of it is planned. */
TEST(a_basis_is_for_whole_groups)
{
    static kvt_store store;
    const kvt_variant transform = {.codec = KVT_CODEC_TRANSFORM, .mode = 1, .rate = 64};
    const kvt_variant planes = {.codec = KVT_CODEC_PLANES, .mode = 1};
    kvt_layout whole[2] = {ladder_layout, shapes[2]};
    const kvt_layout *const entries[] = {whole, shapes, widths};
    store.ladder_layout = ladder_layout;
    for (uint32_t i = 0; i < 3; i++) {
        entry_kind *kind = calloc(1, sizeof *kind + GROUPS * sizeof(kvt_layout));
        kind->group_count = i == 0 ? 2 : GROUPS;
        memcpy(kind->groups, entries[i], kind->group_count * sizeof(kvt_layout));
        const uint64_t lossy = groups_lossy(&store, kind->groups, kind->group_count);
        assert_int_equal(lossy, i == 0 ? 1 : 3);
        assert_int_equal(groups_take(&store, kind, lossy, transform), i == 0);
        assert_true(groups_take(&store, kind, lossy, planes));
        free(kind);
    }
}
