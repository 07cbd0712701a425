/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codecs_support.h - what the tests of the codecs share: status asserts with names, buffers whose
 * end is watched, and a small entry encoded into a record. Single thread.
 */
#ifndef SUPPORT_CODECS_SUPPORT_H
#define SUPPORT_CODECS_SUPPORT_H

#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"

#define assert_status(expression, expected)                                                        \
    do {                                                                                           \
        kvt_status assert_got = (expression);                                                      \
        if (assert_got != (expected)) {                                                            \
            fail_msg("%s is %s, not %s", #expression, kvt_status_name(assert_got),                 \
                     kvt_status_name(expected));                                                   \
        }                                                                                          \
    } while (0)

enum { GUARD_BYTES = 64, GUARD_VALUE = 0xa5 };

/* A buffer aligned to 64 whose bytes past `bytes` are watched. */
typedef struct guarded {
    uint8_t *data;
    uint64_t bytes;
} guarded;

static inline guarded guarded_make(uint64_t bytes)
{
    guarded buffer = {test_aligned(64, bytes + GUARD_BYTES), bytes};
    memset(buffer.data, GUARD_VALUE, bytes + GUARD_BYTES);
    return buffer;
}

/* Nothing at or past `from` was written. */
static inline void guarded_check(const guarded *buffer, uint64_t from)
{
    for (uint64_t i = from; i < buffer->bytes + GUARD_BYTES; i++) {
        if (buffer->data[i] != GUARD_VALUE) fail_msg("byte %llu written", (unsigned long long)i);
    }
}

/* An entry, its record and the scratch for it. record.bytes is the record's own size. */
typedef struct encoded {
    kvt_record_spec spec;
    guarded source;
    guarded record;
    guarded scratch;
    guarded decoded;
    kvt_status status; /* of the encoding: KVT_OK or KVT_RAW */
} encoded;

static inline kvt_record_spec codecs_support_spec(kvt_layout layout, const char *variant)
{
    kvt_record_spec spec = {.generation = 3, .layout = layout, .first_position = 1024};
    for (unsigned i = 0; i < sizeof spec.key.bytes; i++) {
        spec.key.bytes[i] = (uint8_t)(i * 7 + 1);
    }
    assert_status(kvt_variant_parse(variant, &spec.variant), KVT_OK);
    return spec;
}

/* Encodes `source`, or a sample of the layout when source is NULL. */
static inline encoded encoded_make(kvt_layout layout, const char *variant, const void *source)
{
    encoded e = {.spec = codecs_support_spec(layout, variant)};
    uint64_t bytes;
    uint64_t bound;
    uint64_t scratch;
    uint64_t written;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
    e.source = guarded_make(bytes);
    e.record = guarded_make(bound);
    e.scratch = guarded_make(scratch);
    e.decoded = guarded_make(bytes);
    if (source != NULL) {
        memcpy(e.source.data, source, bytes);
    } else {
        codecs_kv_sample_fill(&layout, 5, e.source.data);
    }
    e.status = kvt_record_encode(&e.spec, e.source.data, bytes, e.record.data, bound,
                                 e.scratch.data, scratch, &written);
    assert_true(e.status == KVT_OK || e.status == KVT_RAW);
    assert_true(written <= bound);
    e.record.bytes = written;
    return e;
}

static inline kvt_status encoded_decode(encoded *e)
{
    return kvt_record_decode(e->record.data, e->record.bytes, NULL, e->decoded.data,
                             e->decoded.bytes, e->scratch.data, e->scratch.bytes);
}

/* An element of 2 or 4 bytes. */
static inline float element_at(const kvt_layout *layout, const uint8_t *bytes, uint64_t i)
{
    uint16_t half;
    float value;
    if (layout->dtype == KVT_DTYPE_FP32) {
        memcpy(&value, bytes + 4 * i, 4);
        return value;
    }
    if (layout->dtype == KVT_DTYPE_FP8) return half_fp8_to_float(bytes[i]);
    memcpy(&half, bytes + 2 * i, 2);
    return layout->dtype == KVT_DTYPE_FP16 ? half_to_float(half) : half_bf16_to_float(half);
}

#endif
