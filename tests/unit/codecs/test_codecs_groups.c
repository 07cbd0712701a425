/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_groups.c - records of several groups: each group's bytes are those of its own record,
 * damage and contradiction are found, and planes are dropped group by group.
 */
#include "codecs/codecs.h"
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "groups_support.h"

/* A variant, and what the groups take that it is not for. */
static const char *const variants[][2] = {
    {"raw", "raw"},
    {"lossless", "lossless"},
    {"lossless:fast", "lossless"},
    {"kivi:k4v2,g32", "lossless"},
    {"planes:k8v8,g64", "lossless"},
    {"planes:k4v3,g64", "raw"},
    {"entropy:k0.5v1", "lossless"},
    {"planes:k4v4,g32", "raw"},
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const uint32_t counts[] = {1, 2, GROUPS_SHAPES};

static void rewrite_head(grouped *g, const record_header *header)
{
    memcpy(g->record.data, header, sizeof *header);
    record_seal_slot(g->record.data);
}

/* What the ordinary record of one group decodes to. */
static void check_group(const grouped *g, uint32_t group, const uint8_t *decoded)
{
    uint64_t at = 0, bytes = 0, bound, scratch, written;
    for (uint32_t i = 0; i <= group; i++) {
        at += bytes;
        assert_status(kvt_layout_bytes(&g->layouts[i], &bytes), KVT_OK);
    }
    const kvt_record_spec spec = {.key = g->spec.key,
                                  .generation = g->spec.generation,
                                  .layout = g->layouts[group],
                                  .variant = g->variants[group],
                                  .first_position = g->spec.first_position};
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    guarded record = guarded_make(bound), room = guarded_make(scratch), alone = guarded_make(bytes);
    kvt_status status = kvt_record_encode(&spec, g->source.data + at, bytes, record.data, bound,
                                          room.data, scratch, &written);
    assert_true(status == KVT_OK || status == KVT_RAW);
    record_groups groups;
    assert_status(record_groups_open(g->record.data, g->record.bytes, &groups), KVT_OK);
    assert_int_equal(groups.groups[group].bytes, written);
    assert_memory_equal(g->record.data + groups.groups[group].offset, record.data, written);
    assert_status(
        kvt_record_decode(record.data, written, &spec, alone.data, bytes, room.data, scratch),
        KVT_OK);
    assert_memory_equal(decoded + at, alone.data, bytes);
}

/* Through every variant, with 1, 2 and 5 groups: the whole is what its groups are. */
TEST(groups_are_their_own_records)
{
    for (uint32_t i = 0; i < VARIANTS * 3; i++) {
        const uint32_t count = counts[i % 3];
        grouped g;
        kvt_record_info info;
        grouped_make(&g, groups_shapes, count, variants[i / 3][0], variants[i / 3][1]);
        assert_status(g.status, KVT_OK);
        assert_true(record_is_grouped(g.record.data, g.record.bytes));
        assert_status(kvt_record_parse(g.record.data, g.record.bytes, &info), KVT_OK);
        assert_int_equal(info.group_count, count);
        assert_int_equal(info.source_bytes, g.source.bytes);
        assert_int_equal(info.decoded_bytes, g.source.bytes);
        assert_int_equal(info.record_bytes, g.record.bytes);
        assert_int_equal(info.spec.layout.dtype, KVT_DTYPE_OPAQUE);
        assert_int_equal(info.spec.layout.tokens, 96);
        assert_memory_equal(&info.spec.variant, &g.spec.variant, sizeof g.spec.variant);
        assert_true(info.scratch_bytes <= g.scratch.bytes);
        assert_status(kvt_record_verify(g.record.data, g.record.bytes, &info), KVT_OK);
        guarded decoded = guarded_make(g.source.bytes);
        assert_status(kvt_record_decode(g.record.data, g.record.bytes, &info.spec, decoded.data,
                                        decoded.bytes, g.scratch.data, g.scratch.bytes),
                      KVT_OK);
        guarded_check(&decoded, decoded.bytes);
        for (uint32_t group = 0; group < count; group++)
            check_group(&g, group, decoded.data);
        if (i / 3 < 3) assert_memory_equal(decoded.data, g.source.data, g.source.bytes);
    }
}

/* K of 192 and V of 128 in one entry: each side takes its own settings of every codec. */
TEST(widths_of_k_and_v_differ)
{
    static const char *const lossy[] = {"kivi:k4v2,g64", "planes:k6v3,g64,vhead", "planes:k4v4,g32",
                                        "entropy:k0.25v1"};
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP8};
    for (uint32_t i = 0; i < 2 * (sizeof lossy / sizeof lossy[0]); i++) {
        const kvt_layout layouts[] = {{.layers = 3,
                                       .kv_heads = 2,
                                       .head_dim = 192,
                                       .dtype = dtypes[i % 2],
                                       .sides = KVT_SIDES_ONE,
                                       .tokens = 96},
                                      {.layers = 3,
                                       .kv_heads = 2,
                                       .head_dim = 128,
                                       .dtype = dtypes[i % 2],
                                       .sides = KVT_SIDES_V,
                                       .tokens = 96}};
        grouped g;
        kvt_record_info info;
        record_header header;
        uint64_t k_bytes, v_bytes;
        grouped_make(&g, layouts, 2, lossy[i / 2], "raw");
        assert_status(g.status, KVT_OK);
        assert_status(kvt_record_verify(g.record.data, g.record.bytes, &info), KVT_OK);
        assert_status(kvt_layout_bytes(&layouts[0], &k_bytes), KVT_OK);
        assert_status(kvt_layout_bytes(&layouts[1], &v_bytes), KVT_OK);
        assert_int_equal(info.source_bytes, k_bytes + v_bytes);
        guarded decoded = guarded_make(g.source.bytes);
        assert_status(kvt_record_decode(g.record.data, g.record.bytes, &info.spec, decoded.data,
                                        decoded.bytes, g.scratch.data, g.scratch.bytes),
                      KVT_OK);
        for (uint32_t group = 0; group < 2; group++)
            check_group(&g, group, decoded.data);
        assert_memory_not_equal(decoded.data, g.source.data, k_bytes);
        assert_memory_not_equal(decoded.data + k_bytes, g.source.data + k_bytes, v_bytes);
        memcpy(&header, g.record.data, sizeof header);
        assert_int_equal(header.critical_flags, 20);
        header.critical_flags = 4;
        rewrite_head(&g, &header);
        assert_status(kvt_record_parse(g.record.data, g.record.bytes, &info), KVT_E_CORRUPT);
    }
}

/* Layers are counted over the groups; what lies outside of the range is not written. */
TEST(layers_count_over_groups)
{
    grouped g;
    kvt_view views[KVT_GROUPS_MAX];
    grouped_make(&g, groups_shapes, 4, "planes:k8v8,g64", "lossless");
    const uint32_t layers = record_groups_layers(g.layouts, 4);
    assert_int_equal(layers, 14);
    guarded whole = guarded_make(g.source.bytes), part = guarded_make(g.source.bytes);
    assert_status(kvt_record_decode(g.record.data, g.record.bytes, NULL, whole.data, whole.bytes,
                                    g.scratch.data, g.scratch.bytes),
                  KVT_OK);
    record_groups_pack(g.layouts, 4, part.data, views);
    for (uint32_t first = 0; first <= layers; first += 2) {
        const uint32_t take = first < layers ? 2 : 0;
        assert_status(record_groups_decode_views(g.record.data, g.record.bytes, NULL, NULL,
                                                 g.layouts, views, 4, first, take, g.scratch.data,
                                                 g.scratch.bytes),
                      KVT_OK);
    }
    assert_memory_equal(whole.data, part.data, whole.bytes);
    guarded_check(&part, part.bytes);
    /* One layer alone: the second of the second group. */
    memset(part.data, GUARD_VALUE, part.bytes);
    assert_status(record_groups_decode_views(g.record.data, g.record.bytes, NULL, NULL, g.layouts,
                                             views, 4, 4, 1, g.scratch.data, g.scratch.bytes),
                  KVT_OK);
    uint64_t first_bytes;
    assert_status(kvt_layout_bytes(&g.layouts[0], &first_bytes), KVT_OK);
    const uint64_t matrix = kvt_layout_matrix_bytes(&g.layouts[1]), at = first_bytes + 2 * matrix;
    assert_memory_equal(part.data + at, whole.data + at, 2 * matrix);
    for (uint64_t i = 0; i < part.bytes; i++)
        if (i < at || i >= at + 2 * matrix) assert_int_equal(part.data[i], GUARD_VALUE);
    assert_status(record_groups_decode_views(g.record.data, g.record.bytes, NULL, NULL, g.layouts,
                                             views, 4, 13, 2, g.scratch.data, g.scratch.bytes),
                  KVT_E_ARGUMENT);
    assert_status(record_groups_decode_views(g.record.data, g.record.bytes, NULL, NULL, g.layouts,
                                             views, 3, 0, 0, g.scratch.data, g.scratch.bytes),
                  KVT_E_SPACE);
}

/* Planes are dropped, and coarser steps derived, as the groups' own records are; those that are
 * exact stay. */
TEST(other_variants_are_derived)
{
    static const char *const ways[][2] = {{"planes:k8v8,g64", "planes:k4v3,g64"},
                                          {"planes:k4v3,g64", "planes:k2v2,g64"},
                                          {"entropy:k0.5v0.5", "entropy:k1.5v1.5"}};
    for (uint32_t i = 0; i < 3; i++) {
        grouped from, to;
        kvt_record_info info;
        uint64_t bytes;
        grouped_make(&from, groups_shapes, GROUPS_SHAPES, ways[i][0], "lossless");
        grouped_make(&to, groups_shapes, GROUPS_SHAPES, ways[i][1], "lossless");
        guarded derived = guarded_make(from.record.bytes);
        assert_status(record_groups_derive(from.record.data, from.record.bytes, NULL,
                                           to.spec.variant, derived.data, derived.bytes,
                                           from.scratch.data, from.scratch.bytes, &bytes),
                      KVT_OK);
        guarded_check(&derived, derived.bytes);
        assert_int_equal(bytes, to.record.bytes);
        assert_status(kvt_record_verify(derived.data, bytes, &info), KVT_OK);
        assert_memory_equal(&info.spec.variant, &to.spec.variant, sizeof info.spec.variant);
        guarded a = guarded_make(info.decoded_bytes), b = guarded_make(info.decoded_bytes);
        assert_status(kvt_record_decode(derived.data, bytes, NULL, a.data, a.bytes,
                                        from.scratch.data, from.scratch.bytes),
                      KVT_OK);
        assert_status(kvt_record_decode(to.record.data, to.record.bytes, NULL, b.data, b.bytes,
                                        to.scratch.data, to.scratch.bytes),
                      KVT_OK);
        assert_memory_equal(a.data, b.data, a.bytes);
        assert_status(record_groups_derive(from.record.data, from.record.bytes, NULL,
                                           to.spec.variant, derived.data, from.record.bytes / 4,
                                           from.scratch.data, from.scratch.bytes, &bytes),
                      KVT_E_SPACE);
    }
    grouped exact;
    uint64_t bytes;
    grouped_make(&exact, groups_shapes, 2, "lossless", "lossless");
    guarded target = guarded_make(exact.record.bytes);
    assert_status(record_groups_derive(exact.record.data, exact.record.bytes, NULL,
                                       (kvt_variant){.codec = KVT_CODEC_RAW}, target.data,
                                       target.bytes, exact.scratch.data, exact.scratch.bytes,
                                       &bytes),
                  KVT_E_UNSUPPORTED);
}

/* A store's note goes into the head's slot, and takes nothing away. */
TEST(notes_go_into_the_head)
{
    grouped g;
    kvt_record_info info;
    const uint8_t note[48] = {7, 8, 9};
    const void *found;
    uint64_t bytes;
    grouped_make(&g, groups_shapes, 2, "lossless", "lossless");
    assert_status(record_note_set(g.record.data, note, sizeof note), KVT_OK);
    assert_status(kvt_record_verify(g.record.data, g.record.bytes, &info), KVT_OK);
    assert_status(record_note_get(g.record.data, &found, &bytes), KVT_OK);
    assert_int_equal(bytes, sizeof note);
    assert_memory_equal(found, note, sizeof note);
    /* A slot inside has none, and may have none. */
    uint8_t *inner = g.record.data + RECORD_GROUPS_HEAD_BYTES;
    assert_status(record_note_of_slot(inner, &found, &bytes), KVT_MISS);
    assert_status(record_note_set(inner, note, sizeof note), KVT_OK);
    assert_status(kvt_record_parse(g.record.data, g.record.bytes, &info), KVT_E_CORRUPT);
}

/* Every byte of head and table is checked, and what they imply. */
TEST(damage_is_found)
{
    static const uint64_t places[] = {9,    24,    40,    100,   112,   120,  170,  3000,
                                      4095, 5000,  8192,  8200,  8204,  8216, 8224, 8239,
                                      9000, 12287, 12297, 12400, 16400, 20500};
    grouped g;
    kvt_record_info info;
    grouped_make(&g, groups_shapes, GROUPS_SHAPES, "planes:k4v4,g64", "lossless");
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        g.record.data[places[i]] ^= 4;
        assert_status(kvt_record_verify(g.record.data, g.record.bytes, &info), KVT_E_CORRUPT);
        g.record.data[places[i]] ^= 4;
    }
    assert_status(kvt_record_verify(g.record.data, g.record.bytes, &info), KVT_OK);
    for (uint64_t bytes = 0; bytes < g.record.bytes; bytes += 4096) {
        guarded cut = guarded_make(bytes);
        memcpy(cut.data, g.record.data, bytes);
        assert_status(kvt_record_parse(cut.data, bytes, &info), KVT_E_CORRUPT);
    }
}

/* Applies one change to a head or a row and seals all of it again. */
static kvt_status after_change(grouped *g, uint64_t at, uint64_t value, unsigned width)
{
    kvt_record_info info;
    record_header header;
    uint64_t before = 0;
    memcpy(&before, g->record.data + at, width);
    memcpy(&header, g->record.data, sizeof header);
    const record_header sound = header;
    memcpy(g->record.data + at, &value, width);
    memcpy(&header, g->record.data, sizeof header);
    header.table_checksum = checksum_of(g->record.data + RECORD_TABLE_OFFSET, 4096);
    rewrite_head(g, &header);
    kvt_status status = kvt_record_parse(g->record.data, g->record.bytes, &info);
    memcpy(g->record.data + at, &before, width);
    rewrite_head(g, &sound);
    assert_status(kvt_record_verify(g->record.data, g->record.bytes, &info), KVT_OK);
    return status;
}

/* With every checksum right: what contradicts is corrupt. */
TEST(contradictions_are_found)
{
    enum { ROW = 8192, NEXT = 8192 + 48, LAST = 8192 + 48 * GROUPS_SHAPES };
    static const struct {
        uint64_t at, value;
        unsigned width;
    } changes[] = {{24, 5, 4},
                   {24, 20, 4},
                   {32, 2, 1},
                   {64, 10, 8},
                   {72, 1, 2},
                   {78, 2, 1},
                   {80, 97, 4},
                   {84, 1, 1},
                   {88, 100, 8},
                   {96, KVT_CODEC_RAW, 2},
                   {96, KVT_CODEC_KIVI, 2},
                   {98, 0x2001, 2},
                   {104, 511, 4},
                   {104, UINT32_MAX - 1, 4},
                   {108, 95, 4},
                   {112, 0, 4},
                   {112, 4, 4},
                   {112, 65, 4},
                   {116, 1, 4},
                   {144, 16384, 8},
                   {152, 4096, 8},
                   {160, 1 << 20, 8},
                   {168, 12, 8},
                   {ROW, 2, 2},
                   {ROW + 2, 3, 2},
                   {ROW + 6, 1, 1},
                   {ROW + 7, 1, 1},
                   {ROW + 8, 95, 4},
                   {ROW + 12, 1, 1},
                   {ROW + 13, 1, 1},
                   {ROW + 13, 2, 1},
                   {ROW + 13, 3, 1},
                   {ROW + 14, 1, 1},
                   {ROW + 16, 1, 8},
                   {ROW + 24, 0, 8},
                   {ROW + 32, 0, 8},
                   {ROW + 32, UINT64_MAX & ~UINT64_C(4095), 8},
                   {ROW + 40, 1, 8},
                   {NEXT + 24, 12288, 8},
                   {LAST, 1, 1}};
    grouped g;
    grouped_make(&g, groups_shapes, GROUPS_SHAPES, "planes:k4v4,g64", "lossless");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        kvt_status status = after_change(&g, changes[i].at, changes[i].value, changes[i].width);
        if (status != KVT_E_CORRUPT)
            fail_msg("change %zu at %llu gives %s", i, (unsigned long long)changes[i].at,
                     kvt_status_name(status));
    }
    /* Without the flag it is an opaque entry, which planes are not for. */
    assert_status(after_change(&g, 24, 0, 4), KVT_E_VERSION);
    assert_status(after_change(&g, 24, 36, 4), KVT_E_VERSION);
    assert_status(after_change(&g, 8, 2, 2), KVT_E_VERSION);
    assert_status(after_change(&g, 96, 99, 2), KVT_E_VERSION);
}

/* No record of a group is one of groups, and the calls for one group's record say so. */
TEST(groups_do_not_nest)
{
    grouped g;
    kvt_record_info info;
    uint64_t memory[512], bytes;
    kvt_record_drop drop;
    grouped_make(&g, groups_shapes, 2, "planes:k4v4,g64", "lossless");
    assert_status(kvt_record_head_open(g.record.data, g.record.bytes, true, NULL, memory,
                                       sizeof memory, &bytes),
                  KVT_E_VERSION);
    assert_status(kvt_record_drop_planes(g.record.data, g.record.bytes, g.spec.variant, &drop),
                  KVT_E_VERSION);
    record_header inner;
    memcpy(&inner, g.record.data + RECORD_GROUPS_HEAD_BYTES, sizeof inner);
    inner.critical_flags = RECORD_CRITICAL_GROUPS;
    memcpy(g.record.data + RECORD_GROUPS_HEAD_BYTES, &inner, sizeof inner);
    record_seal_slot(g.record.data + RECORD_GROUPS_HEAD_BYTES);
    assert_status(kvt_record_parse(g.record.data, g.record.bytes, &info), KVT_E_CORRUPT);
}

/* The specification is checked before anything is written. */
TEST(bad_specs_are_refused)
{
    kvt_layout layouts[KVT_GROUPS_MAX + 1], all;
    kvt_variant raw[KVT_GROUPS_MAX + 1];
    uint64_t bytes, scratch;
    for (uint32_t i = 0; i <= KVT_GROUPS_MAX; i++) {
        layouts[i] = groups_shapes[i % GROUPS_SHAPES];
        raw[i] = (kvt_variant){.codec = KVT_CODEC_RAW};
    }
    record_groups_spec spec = {.generation = 1,
                               .variant = raw[0],
                               .count = KVT_GROUPS_MAX,
                               .layouts = layouts,
                               .variants = raw};
    assert_status(record_groups_bound(&spec, 2, true, &bytes, &scratch), KVT_OK);
    assert_status(record_groups_raw_bytes(layouts, KVT_GROUPS_MAX, &scratch), KVT_OK);
    assert_true(scratch <= bytes);
    spec.count = KVT_GROUPS_MAX + 1;
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_E_ARGUMENT);
    spec.count = 0;
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_E_ARGUMENT);
    spec.count = 2;
    layouts[1].tokens_may_drop = 1;
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_E_ARGUMENT);
    layouts[1] = groups_shapes[1];
    layouts[1].layers = 0;
    assert_status(record_groups_layout(layouts, 2, &all), KVT_E_ARGUMENT);
    assert_int_equal(all.opaque_bytes, 0);
    layouts[1] = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = UINT64_C(1) << 46};
    assert_status(record_groups_layout(layouts, 2, &all), KVT_E_ARGUMENT);
    layouts[1] = groups_shapes[1];
    raw[1].codec = KVT_CODEC_LOSSLESS; /* a record that is called raw has no other group */
    raw[1].mode = KVT_LOSSLESS_DENSE;
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_E_ARGUMENT);
    spec.variant = raw[1];
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_OK);
    assert_status(kvt_variant_parse("drop:stream,50", &raw[1]), KVT_OK);
    assert_status(record_groups_bound(&spec, 0, false, &bytes, &scratch), KVT_E_UNSUPPORTED);
}

/* Nothing shrinks: the head says raw, as every group does. */
TEST(what_does_not_shrink_is_raw)
{
    static const kvt_layout bytes[] = {{.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 4001},
                                       {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 999}};
    kvt_record_info info;
    kvt_view views[2];
    uint64_t written, raw;
    grouped g;
    grouped_make(&g, bytes, 2, "lossless", "lossless");
    uint32_t noise = 12345;
    for (uint64_t i = 0; i < g.source.bytes; i++) {
        noise = noise * 1664525u + 1013904223u;
        g.source.data[i] = (uint8_t)(noise >> 24);
    }
    assert_status(record_groups_bound(&g.spec, 0, false, &g.record.bytes, &raw), KVT_OK);
    record_groups_pack(bytes, 2, g.source.data, views);
    assert_status(record_groups_encode(&g.spec, NULL, views, g.record.data, g.record.bytes,
                                       g.scratch.data, g.scratch.bytes, &written),
                  KVT_RAW);
    assert_status(record_groups_raw_bytes(bytes, 2, &raw), KVT_OK);
    assert_int_equal(written, raw);
    assert_status(kvt_record_verify(g.record.data, written, &info), KVT_OK);
    assert_int_equal(info.spec.variant.codec, KVT_CODEC_RAW);
    assert_int_equal(info.raw_segments, 0);
    for (uint64_t room = 0; room < written; room += 4096)
        assert_status(record_groups_encode(&g.spec, NULL, views, g.record.data, room,
                                           g.scratch.data, g.scratch.bytes, &raw),
                      KVT_E_SPACE);
}
