/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_basis_record.c - records whose parts hold several matrices and need a basis: there and back
 * in every dtype, span and instruction set, sinks, prefixes, layers, ranges, views, workers and
 * groups, coarser steps, matrices that are not taken, and a basis that is absent, wrong or of
 * another shape. A record of groups of layers, of which one is coded with a basis: each group comes
 * back as it would alone. Single thread.
 */
#include "basis_record_site.h"

#include "codecs/codecs.h"
#include "codecs/record_format.h"
#include "codecs/record_groups.h"

#include <kvterrace/coding.h>

static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};

/* The codes come back as the segments alone would give them, and the sinks as they were. */
TEST(records_hold_the_segments)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        for (uint32_t d = 0; d < 3; d++) {
            for (uint32_t first = 0; first <= 1000; first += 1000) {
                basis_record r = basis_record_make(span, dtypes[d], 300, first, 32);
                assert_status(r.status, KVT_OK);
                basis_record_check_values(&r);
                basis_record_check_segments(&r);
            }
        }
    }
}

TEST(every_instruction_set_makes_the_same)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        basis_record r = basis_record_make(span, dtypes[span - 1], 270, 1, 64);
        for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
            codecs_cpu_force((codecs_cpu)level);
            guarded again = guarded_make(r.bound);
            uint64_t written;
            assert_status(basis_record_encode(&r, &again, NULL, &written), KVT_OK);
            assert_int_equal(written, r.record.bytes);
            assert_memory_equal(again.data, r.record.data, written);
            memset(r.decoded.data, 0x5a, r.decoded.bytes);
            assert_status(basis_record_decode(&r, &r.spec), KVT_OK);
            basis_record_check_values(&r);
        }
        codecs_cpu_force(codecs_cpu_best());
    }
}

/* The record of the first tokens decodes to the first tokens of the record, but for the tokens that
 * share their group of sixteen with others there. */
TEST(a_prefix_of_tokens_is_the_tokens_of_the_prefix)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        basis_record whole = basis_record_make(span, KVT_DTYPE_BF16, 600, 0, 40);
        basis_record part = basis_record_prefix(&whole, 301);
        const uint64_t matrix = kvt_layout_matrix_bytes(&whole.spec.layout);
        const uint64_t cut = kvt_layout_matrix_bytes(&part.spec.layout);
        for (uint64_t m = 0; m < part.decoded.bytes / cut; m++)
            assert_memory_equal(part.decoded.data + m * cut, whole.decoded.data + m * matrix,
                                cut / 301 * (KVT_SINK_TOKENS + 288));
    }
}

TEST(a_derived_record_is_the_encoded_one)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        for (uint32_t first = 0; first <= 4; first += 4) {
            basis_record fine = basis_record_make(span, KVT_DTYPE_FP16, 290, first, 21);
            basis_record coarse = basis_record_make(span, KVT_DTYPE_FP16, 290, first, 63);
            guarded made = guarded_make(fine.record.bytes);
            uint64_t bytes;
            const kvt_variant to = coarse.spec.variant;
            basis_record_bind(&fine);
            assert_int_equal(codecs_made_from(fine.spec.variant, to), CODECS_WAY_DERIVE);
            assert_int_equal(codecs_made_from(to, fine.spec.variant), CODECS_WAY_NONE);
            assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, &fine.spec.bases,
                                            to, made.data, made.bytes, fine.scratch.data,
                                            fine.scratch.bytes, &bytes),
                          KVT_OK);
            assert_int_equal(bytes, coarse.record.bytes);
            assert_memory_equal(made.data, coarse.record.data, bytes);
            assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, NULL, to,
                                            made.data, made.bytes, fine.scratch.data,
                                            fine.scratch.bytes, &bytes),
                          KVT_E_MISMATCH);
            kvt_variant other = to;
            other.rate ^= 1u << CODECS_BASIS_SHIFT;
            assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, &fine.spec.bases,
                                            other, made.data, made.bytes, fine.scratch.data,
                                            fine.scratch.bytes, &bytes),
                          KVT_E_ARGUMENT);
        }
    }
}

/* One matrix, one layer of the whole record, and one layer of its ranges alone. */
TEST(layers_come_alone)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        for (uint32_t first = 0; first <= 4; first += 4) {
            basis_record r = basis_record_make(span, KVT_DTYPE_BF16, 270, first, 30);
            if (first == 4) basis_record_spoil(&r, span == TRANSFORM_SPAN_HEAD ? 4 : 5);
            for (uint32_t layer = 0; layer < r.spec.layout.layers; layer++) {
                basis_record_check_matrices(&r, layer);
                basis_record_check_layer(&r, layer, false);
                basis_record_check_layer(&r, layer, true);
            }
            basis_record_check_layers(&r, 1, 2);
            basis_record_check_layers(&r, 3, 3);
            basis_record_check_layers(&r, 5, 0);
        }
    }
}

/* A record whose bytes come when they are waited for. */
typedef struct coming {
    const guarded *record;
    guarded staging;
    uint64_t arrived;
} coming;

static kvt_status coming_await(void *context, uint64_t bytes, uint64_t *arrived_out)
{
    coming *c = context;
    assert_true(bytes <= c->record->bytes);
    const bool lacks = bytes > c->arrived;
    if (lacks)
        memcpy(c->staging.data + c->arrived, c->record->data + c->arrived, bytes - c->arrived);
    if (lacks) c->arrived = bytes;
    *arrived_out = c->arrived;
    return lacks ? KVT_BUSY : KVT_OK;
}

/* Spans are decoded as their bytes come, also from a layer within one on. */
TEST(spans_come_with_their_bytes)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        for (uint32_t first = 0; first < 6; first += 5) {
            basis_record r = basis_record_make(span, KVT_DTYPE_BF16, 270, 0, 30);
            if (first != 0) basis_record_spoil(&r, 9);
            const kvt_layout *layout = &r.spec.layout;
            const uint64_t layer = 2 * kvt_layout_matrix_bytes(layout);
            coming c = {.record = &r.record, .staging = guarded_make(r.record.bytes)};
            guarded own = guarded_make(r.decoded.bytes);
            const kvt_view view = codecs_packed_view(layout, own.data);
            kvt_record_arrival arrival = {coming_await, &c, 0};
            kvt_status status;
            basis_record_bind(&r);
            do
                status = kvt_record_decode_arriving(c.staging.data, r.record.bytes, &r.spec, NULL,
                                                    &arrival, layout, &view, first, 0,
                                                    r.scratch.data, r.scratch.bytes);
            while (status == KVT_BUSY);
            assert_status(status, KVT_OK);
            guarded_check(&own, own.bytes);
            assert_memory_equal(own.data + first * layer, r.decoded.data + first * layer,
                                own.bytes - first * layer);
        }
    }
}

TEST(views_and_workers_make_the_same)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        for (uint32_t first = 2; first <= 4; first += 2) {
            basis_record r = basis_record_make(span, KVT_DTYPE_FP32, 130, first, 64);
            if (first == 4) basis_record_spoil(&r, 9);
            basis_record_check_workers(&r, false);
            basis_record_check_workers(&r, true);
        }
    }
}

/* An element that is not finite makes its span raw, and nothing else; of all spans, the record. */
TEST(spans_that_are_not_taken_are_raw)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        basis_record r = basis_record_make(span, KVT_DTYPE_FP32, 64, 0, 64);
        static const uint32_t last[] = {11, 10, 8}; /* matrix that makes the last span raw */
        kvt_record_info info;
        for (uint32_t m = 0; m <= last[span - 1]; m++) {
            basis_record_spoil(&r, m);
            assert_status(kvt_record_verify(r.record.data, r.record.bytes, &info), KVT_OK);
            if (m < last[span - 1]) {
                assert_status(r.status, KVT_OK);
                basis_record_check_values(&r);
                assert_memory_equal(info.basis, r.made.basis.hash, sizeof info.basis);
                assert_int_equal(info.basis_span, span);
            }
        }
        assert_status(r.status, KVT_RAW);
        assert_int_equal(info.spec.variant.codec, KVT_CODEC_RAW);
        assert_int_equal(info.basis_span, 0);
        assert_status(basis_record_decode(&r, NULL), KVT_OK);
        assert_memory_equal(r.decoded.data, r.source.data, r.source.bytes);
    }
}

TEST(without_the_basis_there_is_a_status)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYER, KVT_DTYPE_BF16, 40, 0, 64);
    basis_record other = basis_record_make(TRANSFORM_SPAN_HEAD, KVT_DTYPE_BF16, 40, 0, 64);
    basis_record_bind(&r);
    basis_record_bind(&other);
    kvt_record_spec spec = r.spec;
    uint64_t written;
    guarded again = guarded_make(r.bound);
    assert_status(basis_record_decode(&r, NULL), KVT_E_MISMATCH);
    spec.bases = other.spec.bases;
    assert_status(basis_record_decode(&r, &spec), KVT_E_MISMATCH);
    assert_status(kvt_record_encode(&spec, r.source.data, r.source.bytes, again.data, again.bytes,
                                    r.scratch.data, r.scratch.bytes, &written),
                  KVT_E_MISMATCH);
    spec.bases.count = 0;
    uint64_t bound, scratch;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    assert_int_equal(bound, r.bound);
    assert_true(scratch >= r.scratch.bytes);
    uint8_t head[65536];
    assert_status(kvt_record_head_open(r.record.data, r.record.bytes, true, &spec, head,
                                       sizeof head, &written),
                  KVT_E_MISMATCH);
    /* The right basis among others. */
    const transform_basis *both[] = {&other.made.basis, &r.made.basis};
    spec.bases = (kvt_record_bases){both, 2};
    assert_status(basis_record_decode(&r, &spec), KVT_OK);
    basis_record_check_values(&r);
    /* One with the same hash and another span is not what the record says. */
    transform_basis wrong = r.made.basis;
    const transform_basis *list[] = {&wrong};
    wrong.shape.span = TRANSFORM_SPAN_HEAD;
    spec.bases = (kvt_record_bases){list, 1};
    assert_status(basis_record_decode(&r, &spec), KVT_E_CORRUPT);
    wrong.shape.span = TRANSFORM_SPAN_LAYER;
    wrong.shape.kv_heads++;
    assert_status(basis_record_decode(&r, &spec), KVT_E_CORRUPT);
    assert_status(kvt_record_encode(&spec, r.source.data, r.source.bytes, again.data, again.bytes,
                                    r.scratch.data, r.scratch.bytes, &written),
                  KVT_E_UNSUPPORTED);
    /* Dropped tokens have no positions that follow each other. */
    spec = r.spec;
    spec.layout.tokens_may_drop = 1;
    spec.variant.mode |= 1 << 13 | 16 << 8;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
}

/* Every field of the name, every cut of the record, and a name where none belongs. */
TEST(damaged_names_are_corrupt)
{
    basis_record r = basis_record_make(TRANSFORM_SPAN_LAYERS4, KVT_DTYPE_BF16, 70, 0, 64);
    const uint64_t name = RECORD_LEVELS_AT + r.spec.layout.layers;
    kvt_record_info info;
    for (uint64_t at = name; at < name + sizeof(record_basis); at++) {
        basis_record_edit(&r, at, 0x40);
        const kvt_status status = kvt_record_parse(r.record.data, r.record.bytes, &info);
        /* A hash whose first digits are right is some basis's. */
        if (at < name + 3 || at >= name + 32)
            assert_status(status, KVT_E_CORRUPT);
        else
            assert_status(basis_record_decode(&r, &r.spec),
                          at == name + 2 ? KVT_E_CORRUPT : KVT_E_MISMATCH);
        basis_record_edit(&r, at, 0x40);
    }
    basis_record_edit(&r, name + 32, TRANSFORM_SPAN_LAYERS4 ^ TRANSFORM_SPAN_LAYER);
    assert_status(kvt_record_parse(r.record.data, r.record.bytes, &info), KVT_E_CORRUPT);
    basis_record_edit(&r, name + 32, TRANSFORM_SPAN_LAYERS4 ^ TRANSFORM_SPAN_LAYER);
    basis_record_edit(&r, offsetof(record_header, critical_flags), RECORD_CRITICAL_BASIS);
    assert_status(kvt_record_parse(r.record.data, r.record.bytes, &info), KVT_E_CORRUPT);
    basis_record_edit(&r, offsetof(record_header, critical_flags), RECORD_CRITICAL_BASIS);
    for (uint64_t bytes = 0; bytes < r.record.bytes; bytes += 4096)
        assert_status(kvt_record_parse(r.record.data, bytes, &info), KVT_E_CORRUPT);
    for (uint64_t at = r.head_bytes; at < r.record.bytes; at += 97) {
        r.record.data[at] ^= 1;
        assert_status(basis_record_decode(&r, &r.spec), KVT_E_CORRUPT);
        r.record.data[at] ^= 1;
    }
    assert_status(basis_record_decode(&r, &r.spec), KVT_OK);
}

TEST(names_are_read_and_written)
{
    static const char *const wrong[] = {"transform",           "transform:s0.5",
                                        "transform:1F3A,s1",   "transform:1F3AG",
                                        "transform:1F3A9,s0",  "transform:1F3A9,s16",
                                        "transform:1F3A91,s1", "drop:stream,50+transform:1F3A9,s1"};
    kvt_variant variant;
    char text[64];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_status(kvt_variant_parse(wrong[i], &variant), KVT_E_ARGUMENT);
    assert_status(kvt_variant_parse("transform:1f3a9", &variant), KVT_OK);
    assert_int_equal(variant.codec, KVT_CODEC_TRANSFORM);
    assert_int_equal(variant.rate, 0x1f3a9u << 10 | 32);
    kvt_variant_format(variant, text, sizeof text);
    assert_string_equal(text, "transform:1F3A9,s0.5");
    for (uint32_t step = 1; step <= TRANSFORM_STEP_MAX; step++) {
        kvt_variant back;
        variant.rate = 0xfffffu << 10 | step;
        kvt_variant_format(variant, text, sizeof text);
        assert_status(kvt_variant_parse(text, &back), KVT_OK);
        assert_memory_equal(&back, &variant, sizeof back);
    }
}

/* ---- groups ---- */

/* The group that is exact beside the one with a basis. */
static const kvt_layout other_layout = {
    .layers = 2, .kv_heads = 1, .head_dim = 48, .dtype = KVT_DTYPE_FP8, .tokens = 64};

typedef struct grouped {
    basis_record alone; /* the group with a basis, as a record of its own */
    record_groups_spec spec;
    kvt_layout layouts[2];
    kvt_variant variants[2];
    guarded source, record, decoded;
} grouped;

static void grouped_encode(grouped *g, uint16_t step, guarded *record, uint64_t *written)
{
    kvt_view views[KVT_GROUPS_MAX];
    uint64_t bound, scratch;
    basis_record_bind(&g->alone);
    g->variants[0].rate = (g->variants[0].rate & ~1023u) | step;
    g->spec.variant = g->variants[0];
    g->spec.bases = g->alone.spec.bases;
    assert_status(record_groups_bound(&g->spec, 0, false, &bound, &scratch), KVT_OK);
    *record = guarded_make(bound);
    guarded work = guarded_make(scratch);
    record_groups_pack(g->layouts, 2, g->source.data, views);
    assert_status(record_groups_encode(&g->spec, NULL, views, record->data, bound, work.data,
                                       scratch, written),
                  KVT_OK);
    guarded_check(record, bound);
    guarded_check(&work, scratch);
}

static void grouped_make(grouped *g, uint8_t span)
{
    uint64_t other;
    memset(g, 0, sizeof *g);
    g->alone = basis_record_make(span, KVT_DTYPE_BF16, 130, 0, 21);
    g->layouts[0] = g->alone.spec.layout;
    g->layouts[1] = other_layout;
    g->variants[0] = g->alone.spec.variant;
    assert_status(kvt_variant_parse("raw", &g->variants[1]), KVT_OK);
    assert_status(kvt_layout_bytes(&other_layout, &other), KVT_OK);
    g->source = guarded_make(g->alone.source.bytes + other);
    memcpy(g->source.data, g->alone.source.data, g->alone.source.bytes);
    for (uint64_t i = 0; i < other; i++)
        g->source.data[g->alone.source.bytes + i] = (uint8_t)(i * 7 + i / 96);
    g->decoded = guarded_make(g->source.bytes);
    g->spec = (record_groups_spec){.key = g->alone.spec.key,
                                   .generation = 9,
                                   .count = 2,
                                   .layouts = g->layouts,
                                   .variants = g->variants};
    grouped_encode(g, 21, &g->record, &g->record.bytes);
}

static kvt_status grouped_decode(grouped *g, const guarded *record, uint64_t bytes,
                                 const kvt_decoding *decoding)
{
    kvt_coding_info info = {.struct_size = sizeof info};
    assert_status(kvt_coding_verify(record->data, bytes, &info), KVT_OK);
    assert_int_equal(info.group_count, 2);
    assert_int_equal(info.basis_span, g->alone.made.basis.shape.span);
    assert_memory_equal(info.basis, g->alone.made.basis.hash, sizeof info.basis);
    guarded scratch = guarded_make(info.scratch_bytes);
    memset(g->decoded.data, 0x5a, g->decoded.bytes);
    const kvt_status status = kvt_coding_decode(decoding, record->data, bytes, g->decoded.data,
                                                g->decoded.bytes, scratch.data, scratch.bytes);
    guarded_check(&scratch, scratch.bytes);
    guarded_check(&g->decoded, g->decoded.bytes);
    return status;
}

TEST(groups_come_back)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        grouped g;
        grouped_make(&g, span);
        basis_record_bind(&g.alone);
        const kvt_decoding decoding = {
            .struct_size = sizeof decoding, .bases = g.alone.list, .basis_count = 1};
        const uint64_t first = g.alone.source.bytes;
        assert_status(grouped_decode(&g, &g.record, g.record.bytes, &decoding), KVT_OK);
        assert_memory_equal(g.decoded.data, g.alone.decoded.data, first);
        assert_memory_equal(g.decoded.data + first, g.source.data + first, g.source.bytes - first);
        assert_status(grouped_decode(&g, &g.record, g.record.bytes, NULL), KVT_E_MISMATCH);
    }
}

TEST(a_coarser_record_of_groups)
{
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        grouped g;
        guarded coarse;
        uint64_t written, bytes;
        grouped_make(&g, span);
        const kvt_variant fine = g.variants[0];
        grouped_encode(&g, 63, &coarse, &written);
        kvt_variant to = fine;
        to.rate = (fine.rate & ~1023u) | 63;
        kvt_coding_info info = {.struct_size = sizeof info};
        assert_status(kvt_coding_inspect(g.record.data, g.record.bytes, &info), KVT_OK);
        guarded made = guarded_make(g.record.bytes), scratch = guarded_make(info.scratch_bytes);
        basis_record_bind(&g.alone);
        const kvt_decoding decoding = {
            .struct_size = sizeof decoding, .bases = g.alone.list, .basis_count = 1};
        assert_status(kvt_coding_derive(&decoding, g.record.data, g.record.bytes, to, made.data,
                                        made.bytes, scratch.data, scratch.bytes, &bytes),
                      KVT_OK);
        guarded_check(&made, made.bytes);
        guarded_check(&scratch, scratch.bytes);
        assert_int_equal(bytes, written);
        assert_memory_equal(made.data, coarse.data, written);
        assert_status(kvt_coding_derive(NULL, g.record.data, g.record.bytes, to, made.data,
                                        made.bytes, scratch.data, scratch.bytes, &bytes),
                      KVT_E_MISMATCH);
    }
}
