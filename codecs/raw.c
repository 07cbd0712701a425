/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw.c - codec 1: a copy. It takes every layout and is what the others fall back to. Re-entrant.
 */
#include "codecs.h"

#include "base/copy.h"

static kvt_status raw_check(kvt_variant variant, const kvt_layout *layout)
{
    (void)layout;
    return variant.mode == 0 && variant.rate == 0 ? KVT_OK : KVT_E_UNSUPPORTED;
}

static uint64_t raw_bound(kvt_variant variant, const kvt_layout *layout, uint64_t source_bytes)
{
    (void)variant;
    (void)layout;
    return source_bytes;
}

static uint64_t raw_scratch(kvt_variant variant, const kvt_layout *layout, uint64_t source_bytes)
{
    (void)variant;
    (void)layout;
    (void)source_bytes;
    return 0;
}

static kvt_status raw_encode(kvt_variant variant, const kvt_layout *layout, const void *source,
                             uint64_t source_bytes, void *target, uint64_t capacity, void *scratch,
                             uint64_t scratch_bytes, uint64_t *written_out)
{
    (void)variant;
    (void)layout;
    (void)scratch;
    (void)scratch_bytes;
    *written_out = 0;
    if (capacity < source_bytes) return KVT_E_SPACE;
    base_copy(target, source, source_bytes);
    *written_out = source_bytes;
    return KVT_OK;
}

static kvt_status raw_decode(kvt_variant variant, const kvt_layout *layout, const void *source,
                             uint64_t source_bytes, const view_rows *target, void *scratch,
                             uint64_t scratch_bytes)
{
    (void)variant;
    (void)layout;
    (void)scratch;
    (void)scratch_bytes;
    if (source_bytes != target->bytes) return KVT_E_CORRUPT;
    view_rows_scatter(target, 0, target->bytes, source);
    return KVT_OK;
}

const kvt_codec codecs_raw = {
    .id = KVT_CODEC_RAW,
    .flags = KVT_CODEC_FLAG_EXACT,
    .name = "raw",
    .check = raw_check,
    .segment_bound = raw_bound,
    .segment_scratch = raw_scratch,
    .encode_segment = raw_encode,
    .decode_segment = raw_decode,
};
