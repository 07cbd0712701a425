/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups_support.h - an entry of several groups encoded into one record, for the tests of it.
 * Single thread.
 */
#ifndef SUPPORT_GROUPS_SUPPORT_H
#define SUPPORT_GROUPS_SUPPORT_H

#include "codecs/record_groups.h"
#include "codecs_support.h"

/* Groups of different shapes: K and V, a window of fewer tokens, an index of one side, fp8 and
 * bytes. */
static const kvt_layout groups_shapes[] = {
    {.layers = 3, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 96},
    {.layers = 5, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 40},
    {.layers = 2,
     .kv_heads = 1,
     .head_dim = 64,
     .dtype = KVT_DTYPE_FP16,
     .order = 1,
     .sides = 1,
     .tokens = 96},
    {.layers = 4, .kv_heads = 1, .head_dim = 48, .dtype = KVT_DTYPE_FP8, .order = 1, .tokens = 64},
    {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5003},
};

enum { GROUPS_SHAPES = sizeof groups_shapes / sizeof groups_shapes[0] };

/* The packed bytes of the first `count` of layouts. */
static inline guarded groups_sample(const kvt_layout *layouts, uint32_t count, uint32_t seed)
{
    uint64_t total = 0, bytes;
    for (uint32_t i = 0; i < count; i++) {
        assert_status(kvt_layout_bytes(&layouts[i], &bytes), KVT_OK);
        total += bytes;
    }
    guarded source = guarded_make(total);
    uint8_t *at = source.data;
    for (uint32_t i = 0; i < count; i++) {
        assert_status(kvt_layout_bytes(&layouts[i], &bytes), KVT_OK);
        codecs_kv_sample_fill(&layouts[i], seed + i, at);
        at += bytes;
    }
    return source;
}

typedef struct grouped {
    record_groups_spec spec;
    kvt_variant variants[KVT_GROUPS_MAX];
    kvt_layout layouts[KVT_GROUPS_MAX];
    guarded source;
    guarded record;
    guarded scratch;
    kvt_status status; /* of the encoding: KVT_OK or KVT_RAW */
} grouped;

/* Whether a lossy variant is for a layout. */
static inline bool groups_may_lose(const kvt_layout *layout)
{
    return layout->dtype == KVT_DTYPE_BF16 || layout->dtype == KVT_DTYPE_FP16 ||
           (layout->dtype == KVT_DTYPE_FP8 && kvt_layout_sides(layout) == 1);
}

/* Encodes `count` groups; those that take no lossy variant are stored in `exact`. */
static inline void grouped_make(grouped *g, const kvt_layout *layouts, uint32_t count,
                                const char *variant, const char *exact)
{
    uint64_t bound, scratch, written;
    kvt_view views[KVT_GROUPS_MAX];
    kvt_variant other;
    memset(g, 0, sizeof *g);
    assert_status(kvt_variant_parse(variant, &g->spec.variant), KVT_OK);
    assert_status(kvt_variant_parse(exact, &other), KVT_OK);
    for (uint32_t i = 0; i < count; i++) {
        g->layouts[i] = layouts[i];
        g->variants[i] = groups_may_lose(&layouts[i]) ? g->spec.variant : other;
    }
    g->spec.key = codecs_support_spec(layouts[0], "raw").key;
    g->spec.generation = 9;
    g->spec.first_position = 512;
    g->spec.count = count;
    g->spec.layouts = g->layouts;
    g->spec.variants = g->variants;
    g->source = groups_sample(layouts, count, 5);
    assert_status(record_groups_bound(&g->spec, 0, false, &bound, &scratch), KVT_OK);
    g->record = guarded_make(bound);
    g->scratch = guarded_make(scratch);
    record_groups_pack(layouts, count, g->source.data, views);
    g->status = record_groups_encode(&g->spec, NULL, views, g->record.data, bound, g->scratch.data,
                                     scratch, &written);
    assert_true(g->status == KVT_OK || g->status == KVT_RAW);
    assert_true(written <= bound);
    guarded_check(&g->record, bound);
    g->record.bytes = written;
}

#endif
