/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_layer.c - one layer of a record, decoded from its own ranges beside the head, equals
 * the layer of the whole record, for every codec; damage and missing ranges are found.
 */
#include "cases.h"
#include "codecs/view_rows.h"

#include "codecs/codecs.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"

#include <stdlib.h>
#include <string.h>

static kvt_layout layout = {
    .layers = 6, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 160};

static void *aligned(uint64_t bytes)
{
    void *memory = test_aligned(4096, bytes);
    memset(memory, 0, bytes);
    return memory;
}

typedef struct site {
    kvt_record_spec spec;
    uint64_t source_bytes, bound, scratch_bytes, record_bytes;
    char *source, *record, *scratch, *whole, *own;
} site;

static site make_site(const char *name)
{
    site s = {.spec = {.generation = 7, .layout = layout}};
    memset(s.spec.key.bytes, 0x21, sizeof s.spec.key.bytes);
    assert_ok(kvt_variant_parse(name, &s.spec.variant));
    assert_ok(kvt_layout_bytes(&layout, &s.source_bytes));
    assert_ok(kvt_record_bound(&s.spec, &s.bound, &s.scratch_bytes));
    s.source = aligned(s.source_bytes);
    s.whole = aligned(s.source_bytes);
    s.own = aligned(s.source_bytes);
    s.record = aligned(s.bound);
    s.scratch = aligned(s.scratch_bytes + 1);
    codecs_kv_sample_fill(&layout, 5, s.source);
    kvt_status status = kvt_record_encode(&s.spec, s.source, s.source_bytes, s.record, s.bound,
                                          s.scratch, s.scratch_bytes, &s.record_bytes);
    assert_true(status == KVT_OK || status == KVT_RAW);
    assert_ok(kvt_record_decode(s.record, s.record_bytes, &s.spec, s.whole, s.source_bytes,
                                s.scratch, s.scratch_bytes));
    return s;
}

/* Copies a layer's ranges, and nothing else, next to each other. */
static char *gather(const site *s, const kvt_record_range *ranges, uint32_t count)
{
    uint64_t bytes = ranges[count - 1].at + ranges[count - 1].bytes;
    char *payload = aligned(bytes);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(ranges[i].offset % KVT_RECORD_ALIGN, 0);
        assert_true(ranges[i].offset + ranges[i].bytes <= s->record_bytes);
        memcpy(payload + ranges[i].at, s->record + ranges[i].offset, ranges[i].bytes);
    }
    return payload;
}

static uint64_t head_memory[4096];

/* The ranges of a layer, by a head that is opened for them. */
static kvt_status layer_ranges(const void *head, uint64_t head_bytes, uint32_t layer,
                               kvt_record_range *ranges, uint32_t capacity, uint32_t *count_out)
{
    kvt_record_head *opened = (void *)head_memory;
    uint64_t bytes;
    *count_out = 0;
    kvt_status status =
        kvt_record_head_open(head, head_bytes, false, NULL, opened, sizeof head_memory, &bytes);
    if (status == KVT_OK)
        status = kvt_record_head_ranges(opened, layer, 1, ranges, capacity, count_out);
    return status;
}

/* A layer, decoded by a copy of a head that is opened for it; the head's bytes are gone then. */
static kvt_status decode_layer(const void *head, uint64_t head_bytes, const kvt_record_spec *spec,
                               const kvt_layout *of, const kvt_view *view, uint32_t layer,
                               const void *payload, const kvt_record_range *ranges, uint32_t count,
                               void *scratch, uint64_t scratch_bytes)
{
    char *copy = aligned(head_bytes), *opened = NULL;
    uint64_t bytes;
    memcpy(copy, head, head_bytes);
    kvt_status status = kvt_record_head_open(copy, head_bytes, false, spec, head_memory,
                                             sizeof head_memory, &bytes);
    memset(copy, 0xee, head_bytes);
    if (status != KVT_OK) return status;
    opened = aligned(bytes);
    memcpy(opened, head_memory, bytes);
    memset(head_memory, 0xee, sizeof head_memory);
    status = kvt_record_head_decode((const kvt_record_head *)(void *)opened, of, view, layer, 1,
                                    payload, ranges, count, scratch, scratch_bytes);
    return status;
}

/* Matrices one by one, from their own ranges and from the whole record: the bytes of the whole
 * entry, or KVT_E_CORRUPT once a bit of theirs has changed. */
static void check_matrices(const site *s, const kvt_record_head *head)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout);
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    char *target = aligned(matrix);
    const void *found = NULL;
    uint32_t count = 0, changed = 0;
    const uint32_t sides = kvt_layout_sides(&layout);
    for (uint32_t i = 0; i < sides * layout.layers; i++) {
        const uint32_t layer = i / sides;
        const kvt_side side = (kvt_side)(i % sides);
        const char *wanted = s->whole + kvt_layout_matrix_offset(&layout, layer, side);
        assert_ok(kvt_record_head_matrix_ranges(head, layer, side, ranges, KVT_RECORD_RANGES_MAX,
                                                &count));
        char *payload = gather(s, ranges, count);
        assert_ok(kvt_record_head_matrix(head, layer, side, payload, ranges, count, target, matrix,
                                         s->scratch, s->scratch_bytes, &found));
        assert_memory_equal(found, wanted, matrix);
        assert_true(found == target || s->spec.variant.codec == KVT_CODEC_RAW);
        payload[ranges[0].bytes / 2] ^= 4;
        const kvt_status status =
            kvt_record_head_matrix(head, layer, side, payload, ranges, count, target, matrix,
                                   s->scratch, s->scratch_bytes, &found);
        assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
        changed += status == KVT_E_CORRUPT;
        assert_ok(kvt_record_head_matrix(head, layer, side, s->record, NULL, 0, target, matrix,
                                         s->scratch, s->scratch_bytes, &found));
        assert_memory_equal(found, wanted, matrix);
    }
    assert_true(changed > 0);
    assert_int_equal(kvt_record_head_matrix_ranges(head, layout.layers, KVT_SIDE_K, ranges,
                                                   KVT_RECORD_RANGES_MAX, &count),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_record_head_matrix(head, 0, (kvt_side)sides, s->record, NULL, 0, target,
                                            matrix, s->scratch, s->scratch_bytes, &found),
                     KVT_E_ARGUMENT);
}

/* Layers out of the whole record, by one head; a record of another key or generation is refused. */
static void check_whole_record(site *s)
{
    const kvt_view view = codecs_packed_view(&layout, s->own);
    kvt_record_spec other = s->spec;
    kvt_record_head *head = (void *)head_memory;
    const uint64_t capacity = sizeof head_memory;
    uint64_t bytes, needed;
    other.generation++;
    assert_int_equal(
        kvt_record_head_open(s->record, s->record_bytes, true, &other, head, capacity, &bytes),
        KVT_E_MISMATCH);
    assert_int_equal(kvt_record_head_open(s->record, s->record_bytes - 1, true, &s->spec, head,
                                          capacity, &bytes),
                     KVT_E_CORRUPT);
    assert_ok(
        kvt_record_head_open(s->record, s->record_bytes, true, &s->spec, head, capacity, &bytes));
    assert_int_equal(
        kvt_record_head_open(s->record, s->record_bytes, true, &s->spec, head, bytes - 1, &needed),
        KVT_E_SPACE);
    assert_int_equal(needed, bytes);
    assert_ok(
        kvt_record_head_open(s->record, s->record_bytes, true, &s->spec, head, bytes, &bytes));
    memset(s->own, 0, s->source_bytes);
    for (uint32_t i = 0; i < layout.layers; i++)
        assert_ok(kvt_record_head_decode(head, &layout, &view, i, 1, s->record, NULL, 0, s->scratch,
                                         s->scratch_bytes));
    assert_memory_equal(s->own, s->whole, s->source_bytes);
    assert_int_equal(kvt_record_head_decode(head, &layout, &view, layout.layers, 1, s->record, NULL,
                                            0, s->scratch, s->scratch_bytes),
                     KVT_E_ARGUMENT);
    check_matrices(s, head);
}

/* A record of which the bytes come when they are waited for, a step at a time. */
typedef struct coming {
    const site *site;
    char *staging;
    uint64_t step;
    uint64_t fails_behind; /* bytes that never come */
    bool stalls;           /* bytes come between two calls */
    uint64_t arrived;
    uint32_t waits;
} coming;

static kvt_status coming_await(void *context, uint64_t bytes, uint64_t *arrived_out)
{
    coming *c = context;
    c->waits++;
    assert_true(bytes <= c->site->record_bytes);
    if (bytes > c->fails_behind) return KVT_E_TIMEOUT;
    const bool lacks = bytes > c->arrived;
    uint64_t to = (bytes + c->step - 1) / c->step * c->step;
    if (to > c->fails_behind) to = c->fails_behind;
    if (to > c->arrived) {
        memcpy(c->staging + c->arrived, c->site->record + c->arrived, to - c->arrived);
        c->arrived = to;
    }
    *arrived_out = c->arrived;
    return lacks && c->stalls ? KVT_BUSY : KVT_OK;
}

/* Decodes layers of a record that comes; what has not come is no byte of it. */
static kvt_status decode_coming(const site *s, coming *c, uint32_t first, uint32_t count)
{
    const kvt_view view = codecs_packed_view(&layout, s->own);
    kvt_record_arrival arrival = {coming_await, c, 0};
    c->site = s;
    c->staging = aligned(s->record_bytes);
    c->arrived = c->waits = 0;
    memset(c->staging, 0xee, s->record_bytes);
    memset(s->own, 0, s->source_bytes);
    kvt_status status;
    do
        status =
            kvt_record_decode_arriving(c->staging, s->record_bytes, &s->spec, NULL, &arrival,
                                       &layout, &view, first, count, s->scratch, s->scratch_bytes);
    while (status == KVT_BUSY);
    return status;
}

/* Records that are decoded as they come give the same, and fail as they do. */
static void check_coming(const site *s)
{
    static const uint64_t steps[] = {4096, 65536, UINT64_C(1) << 40};
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout) * kvt_layout_sides(&layout);
    coming c = {.fails_behind = s->record_bytes};
    for (uint32_t i = 0; i < 3; i++) {
        c.step = steps[i];
        assert_ok(decode_coming(s, &c, 0, 0));
        assert_memory_equal(s->own, s->whole, s->source_bytes);
        if (i == 0 && codecs_arriving_steps(&layout, s->spec.variant, UINT64_C(1) << 30) > 1)
            assert_true(c.waits > layout.layers);
        assert_ok(decode_coming(s, &c, 2, 3));
        assert_memory_equal(s->own + 2 * matrix, s->whole + 2 * matrix, 3 * matrix);
        c.stalls = true;
        assert_ok(decode_coming(s, &c, 0, 0));
        assert_memory_equal(s->own, s->whole, s->source_bytes);
        c.stalls = false;
    }
    c.step = 4096;
    for (c.fails_behind = 0; c.fails_behind < s->record_bytes; c.fails_behind += 4096)
        assert_int_equal(decode_coming(s, &c, 0, 0), KVT_E_TIMEOUT);
    for (uint64_t at = 5; at < s->record_bytes; at += 1 + s->record_bytes / 41) {
        s->record[at] ^= 16;
        const kvt_status whole = kvt_record_decode(s->record, s->record_bytes, &s->spec, s->own,
                                                   s->source_bytes, s->scratch, s->scratch_bytes);
        assert_int_equal(decode_coming(s, &c, 0, 0), whole);
        s->record[at] ^= 16;
    }
    assert_ok(decode_coming(s, &c, 0, 0));
}

static void check_variant(const char *name)
{
    site s = make_site(name);
    uint64_t head_bytes = codecs_head_bytes(&layout, s.spec.variant);
    assert_true(head_bytes >= 8192 && head_bytes < s.record_bytes);
    char *head = aligned(head_bytes);
    memcpy(head, s.record, head_bytes);
    const kvt_view view = codecs_packed_view(&layout, s.own);
    uint64_t read = 0;
    for (uint32_t i = layout.layers; i-- > 0;) {
        kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
        uint32_t count = 0;
        assert_ok(layer_ranges(head, head_bytes, i, ranges, KVT_RECORD_RANGES_MAX, &count));
        assert_true(count > 0);
        char *payload = gather(&s, ranges, count);
        read += ranges[count - 1].at + ranges[count - 1].bytes;
        assert_ok(decode_layer(head, head_bytes, &s.spec, &layout, &view, i, payload, ranges, count,
                               s.scratch, s.scratch_bytes));
        /* Without its last range the layer is not there. */
        if (count > 1)
            assert_int_equal(decode_layer(head, head_bytes, &s.spec, &layout, &view, i, payload,
                                          ranges, count - 1, s.scratch, s.scratch_bytes),
                             KVT_E_CORRUPT);
        payload[ranges[0].bytes / 2] ^= 4;
        kvt_status status = decode_layer(head, head_bytes, &s.spec, &layout, &view, i, payload,
                                         ranges, count, s.scratch, s.scratch_bytes);
        if (status == KVT_OK) continue; /* the bit was a neighbouring layer's */
        assert_int_equal(status, KVT_E_CORRUPT);
        payload = gather(&s, ranges, count);
        assert_ok(decode_layer(head, head_bytes, &s.spec, &layout, &view, i, payload, ranges, count,
                               s.scratch, s.scratch_bytes));
    }
    assert_memory_equal(s.own, s.whole, s.source_bytes);
    check_whole_record(&s);
    check_coming(&s);
    /* Layers share grains at their edges, and no more. */
    assert_true(read <= s.record_bytes - head_bytes + UINT64_C(131072) * layout.layers);
    head[100] ^= 1;
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    uint32_t count = 1;
    assert_int_not_equal(layer_ranges(head, head_bytes, 0, ranges, KVT_RECORD_RANGES_MAX, &count),
                         KVT_OK);
    assert_int_equal(count, 0);
}

TEST(every_codec)
{
    static const char *const names[] = {"raw",
                                        "lossless",
                                        "lossless:fast",
                                        "kivi:k4v4,g64",
                                        "kivi:k2v2,g32,r64",
                                        "planes:k8v8,g64",
                                        "planes:k6v4,g64,vhead",
                                        "planes:k4v6,g64,vchan,vfirst",
                                        "entropy:k0.25v0.5",
                                        "entropy:k1v1,vchan"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_variant(names[i]);
    layout.sides = 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_variant(names[i]);
    layout.sides = 0;
}

static uint64_t coarse_memory[4096];

/* The bytes of a record in its coarse form, as an encoder at the lower rate gives them. */
static char *coarse_whole(const site *s, uint32_t planes)
{
    kvt_record_spec spec = s->spec;
    uint64_t bytes;
    char *record = aligned(s->bound), *whole = aligned(s->source_bytes);
    spec.variant = codecs_fewer_planes(spec.variant, planes);
    assert_ok(kvt_record_encode(&spec, s->source, s->source_bytes, record, s->bound, s->scratch,
                                s->scratch_bytes, &bytes));
    assert_ok(kvt_record_decode(record, bytes, &spec, whole, s->source_bytes, s->scratch,
                                s->scratch_bytes));
    return whole;
}

/* Each layer first by the ranges of the coarse form, then by the rest of them behind. */
static void check_coarse(const char *name, uint32_t planes)
{
    site s = make_site(name);
    kvt_record_head *head = (void *)head_memory, *coarse = (void *)coarse_memory;
    uint64_t bytes;
    assert_ok(kvt_record_head_open(s.record, s.record_bytes, false, &s.spec, head,
                                   sizeof head_memory, &bytes));
    assert_int_equal(kvt_record_head_coarse(head, planes, coarse, bytes - 1, &bytes), KVT_E_SPACE);
    assert_ok(kvt_record_head_coarse(head, planes, coarse, bytes, &bytes));
    const char *wanted = coarse_whole(&s, planes);
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout) * kvt_layout_sides(&layout);
    const kvt_view view = codecs_packed_view(&layout, s.own);
    for (uint32_t i = 0; i < layout.layers; i++) {
        kvt_record_range ranges[KVT_RECORD_RANGES_MAX], rest[KVT_RECORD_RANGES_MAX];
        uint32_t count, more;
        assert_ok(kvt_record_head_ranges(coarse, i, 1, ranges, KVT_RECORD_RANGES_MAX, &count));
        assert_ok(kvt_record_head_rest_ranges(head, coarse, i, rest, KVT_RECORD_RANGES_MAX, &more));
        assert_true(count > 0 && more > 0);
        char *payload = gather(&s, ranges, count);
        assert_ok(kvt_record_head_decode(coarse, &layout, &view, i, 1, payload, ranges, count,
                                         s.scratch, s.scratch_bytes));
        assert_memory_equal(s.own + i * matrix, wanted + i * matrix, matrix);
        for (uint32_t k = 0; k < more; k++) { /* no byte of it twice */
            for (uint32_t n = 0; n < count; n++)
                assert_true(rest[k].offset >= ranges[n].offset + ranges[n].bytes ||
                            rest[k].offset + rest[k].bytes <= ranges[n].offset);
            ranges[count + k] = rest[k];
            ranges[count + k].at += ranges[count - 1].at + ranges[count - 1].bytes;
        }
        assert_int_equal(kvt_record_head_rest_verify(head, coarse, i, payload, ranges, count),
                         KVT_E_CORRUPT);
        count += more;
        payload = gather(&s, ranges, count);
        assert_ok(kvt_record_head_rest_verify(head, coarse, i, payload, ranges, count));
        assert_ok(kvt_record_head_decode(head, &layout, &view, i, 1, payload, ranges, count,
                                         s.scratch, s.scratch_bytes));
        /* One bit of every range of the rest. */
        for (uint32_t k = count - more; k < count; k++) {
            kvt_status status = KVT_OK;
            for (uint64_t at = 3; status == KVT_OK && at < ranges[k].bytes; at += 64) {
                payload[ranges[k].at + at] ^= 2; /* a neighbouring layer's, or its own */
                status = kvt_record_head_rest_verify(head, coarse, i, payload, ranges, count);
                payload[ranges[k].at + at] ^= 2;
            }
            assert_int_equal(status, KVT_E_CORRUPT);
        }
    }
    assert_memory_equal(s.own, s.whole, s.source_bytes);
    uint32_t none = 1;
    kvt_record_range one;
    assert_int_equal(kvt_record_head_rest_ranges(head, coarse, layout.layers, &one, 1, &none),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_record_head_rest_ranges(head, coarse, 0, &one, 0, &none), KVT_E_SPACE);
}

TEST(the_coarse_form)
{
    static const struct {
        const char *name;
        uint32_t planes;
    } forms[] = {{"planes:k8v8,g64", 1},       {"planes:k8v8,g64", 4},
                 {"planes:k6v4,g64,vhead", 1}, {"planes:k6v4,g64,vhead", 2},
                 {"planes:k6v8,g64,vchan", 3}, {"planes:k4v6,g64,vchan,vfirst", 1}};
    for (uint32_t sides = 0; sides < 2; sides++) {
        layout.sides = (uint8_t)sides;
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
            check_coarse(forms[i].name, forms[i].planes);
    }
    layout.sides = 0;
}

/* Records without further planes, and of other codecs, have one form. */
TEST(no_coarse_form)
{
    static const char *const names[] = {"raw", "lossless", "kivi:k4v4,g64", "planes:k4v4,g64"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        site s = make_site(names[i]);
        uint64_t bytes;
        assert_ok(kvt_record_head_open(s.record, s.record_bytes, false, &s.spec, head_memory,
                                       sizeof head_memory, &bytes));
        assert_int_equal(kvt_record_head_coarse((void *)head_memory, 3, coarse_memory,
                                                sizeof coarse_memory, &bytes),
                         KVT_E_UNSUPPORTED);
    }
}

TEST(bad_arguments)
{
    site s = make_site("raw");
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    uint32_t count = 1;
    assert_int_equal(layer_ranges(s.record, s.record_bytes, layout.layers, ranges,
                                  KVT_RECORD_RANGES_MAX, &count),
                     KVT_E_ARGUMENT);
    assert_int_equal(layer_ranges(s.record, s.record_bytes, 0, ranges, 0, &count), KVT_E_SPACE);
    assert_int_equal(layer_ranges(s.record, 8192, 0, ranges, KVT_RECORD_RANGES_MAX, &count),
                     KVT_E_CORRUPT);
}
