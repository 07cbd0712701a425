/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_basis_groups.c - a record of groups of layers, of which one is coded with a basis: each
 * group comes back as it would alone, without the basis nothing is decoded, a coarser step is made,
 * and the public calls say which basis is needed. Single thread.
 */
#include "basis_record_site.h"

#include "codecs/record_groups.h"

#include <kvterrace/coding.h>

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
    free(work.data);
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

static void grouped_free(grouped *g)
{
    basis_record_free(&g->alone);
    free(g->source.data);
    free(g->record.data);
    free(g->decoded.data);
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
    free(scratch.data);
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
        grouped_free(&g);
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
        free(made.data);
        free(scratch.data);
        free(coarse.data);
        grouped_free(&g);
    }
}
