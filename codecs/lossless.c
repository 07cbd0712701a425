/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless.c - codec 2 behind the table. Mode dense is lossless_dense.h for elements with exponents
 * and lossless_bytes.h for opaque segments; mode fast is lossless_fast.h. Re-entrant.
 */
#include "codecs.h"
#include "lossless_bytes.h"
#include "lossless_dense.h"
#include "lossless_fast.h"

static bool lossless_is_bytes(const kvt_layout *layout)
{
    return layout->dtype == KVT_DTYPE_OPAQUE;
}

static lossless_dense_shape lossless_shape(const kvt_layout *layout)
{
    lossless_dense_shape shape = {layout->tokens, (uint64_t)layout->kv_heads * layout->head_dim,
                                  layout->dtype};
    return shape;
}

static kvt_status lossless_check(kvt_variant variant, const kvt_layout *layout)
{
    if (variant.rate != 0) return KVT_E_UNSUPPORTED;
    if (variant.mode == KVT_LOSSLESS_DENSE) return KVT_OK;
    /* fast knows elements with wide exponents only. */
    const bool known = !lossless_is_bytes(layout) && layout->dtype != KVT_DTYPE_FP8;
    return variant.mode == KVT_LOSSLESS_FAST && known ? KVT_OK : KVT_E_UNSUPPORTED;
}

/* A segment that would not shrink is refused, so the stored form is smaller than the source. */
static uint64_t lossless_bound(kvt_variant variant, const kvt_layout *layout, uint64_t source_bytes)
{
    (void)variant;
    (void)layout;
    return source_bytes;
}

static uint64_t lossless_scratch(kvt_variant variant, const kvt_layout *layout,
                                 uint64_t source_bytes)
{
    if (variant.mode == KVT_LOSSLESS_FAST) return 0;
    if (lossless_is_bytes(layout)) return lossless_bytes_scratch(source_bytes);
    const lossless_dense_shape shape = lossless_shape(layout);
    const uint64_t dense = lossless_dense_scratch_bytes(&shape);
    if (layout->dtype != KVT_DTYPE_FP8) return dense;
    const uint64_t runs = lossless_bytes_scratch(source_bytes); /* of segments of 0.2.0 */
    return dense > runs ? dense : runs;
}

/* Whether a segment of fp8 is one of 0.2.0, runs of bytes. The word of its first run is a frame's
 * or that of a full run; a tile's head ends with two zeros. */
static bool lossless_is_runs(const uint8_t *source, uint64_t bytes)
{
    return bytes >= sizeof(uint32_t) && (source[2] | source[3]) != 0;
}

/* Whether a segment of these bytes is one of the layout. */
static bool lossless_segment_fits(const kvt_layout *layout, uint64_t bytes)
{
    if (bytes == 0) return false;
    return lossless_is_bytes(layout) || bytes == kvt_layout_matrix_bytes(layout);
}

static kvt_status lossless_encode(kvt_variant variant, const kvt_layout *layout, const void *source,
                                  uint64_t source_bytes, void *target, uint64_t capacity,
                                  void *scratch, uint64_t scratch_bytes, uint64_t *written_out)
{
    *written_out = 0;
    if (lossless_check(variant, layout) != KVT_OK) return KVT_E_UNSUPPORTED;
    if (!lossless_segment_fits(layout, source_bytes)) return KVT_E_ARGUMENT;
    if (variant.mode == KVT_LOSSLESS_FAST) {
        return lossless_fast_encode(layout->dtype, source, source_bytes, target, capacity,
                                    written_out);
    }
    if (scratch == NULL || scratch_bytes < lossless_scratch(variant, layout, source_bytes)) {
        return KVT_E_ARGUMENT;
    }
    if (lossless_is_bytes(layout)) {
        return lossless_bytes_encode(source, source_bytes, target, capacity, scratch, written_out);
    }
    const lossless_dense_shape shape = lossless_shape(layout);
    return lossless_dense_encode(&shape, source, target, capacity, scratch, written_out);
}

static kvt_status lossless_decode(kvt_variant variant, const kvt_layout *layout, const void *source,
                                  uint64_t source_bytes, const view_rows *target, void *scratch,
                                  uint64_t scratch_bytes)
{
    if (lossless_check(variant, layout) != KVT_OK) return KVT_E_UNSUPPORTED;
    if (!lossless_segment_fits(layout, target->bytes)) return KVT_E_CORRUPT;
    if (variant.mode == KVT_LOSSLESS_FAST) {
        return lossless_fast_decode(layout->dtype, source, source_bytes, target);
    }
    if (scratch == NULL || scratch_bytes < lossless_scratch(variant, layout, target->bytes)) {
        return KVT_E_ARGUMENT;
    }
    if (lossless_is_bytes(layout) ||
        (layout->dtype == KVT_DTYPE_FP8 && lossless_is_runs(source, source_bytes))) {
        return lossless_bytes_decode(source, source_bytes, target, scratch);
    }
    const lossless_dense_shape shape = lossless_shape(layout);
    return lossless_dense_decode(&shape, source, source_bytes, target, scratch);
}

static kvt_status lossless_plan_job(kvt_variant variant, const kvt_matrix *matrix,
                                    const kvt_part *parts, const kernel_target *target,
                                    uint32_t transfer_bytes, uint8_t dtype, kernel_work *work)
{
    enum { LOSSLESS_FAST_TILE = 65536 };
    const uint64_t row = (uint64_t)matrix->kv_heads * matrix->head_dim;
    const uint64_t elements = row * matrix->tokens;
    if (variant.mode == KVT_LOSSLESS_DENSE) {
        if (dtype == KVT_DTYPE_FP8 && parts[0].host != NULL &&
            lossless_is_runs(parts[0].host, parts[0].bytes))
            return KVT_E_UNSUPPORTED;
        work->kernel = KERNEL_DENSE;
        work->blocks = ((uint64_t)matrix->tokens + KERNEL_DENSE_TOKENS - 1) / KERNEL_DENSE_TOKENS *
                       ((row + KERNEL_DENSE_CHANNELS - 1) / KERNEL_DENSE_CHANNELS);
        work->job.dense = (kernel_dense_job){.source = (uint64_t)(uintptr_t)parts[0].data,
                                             .bytes = parts[0].bytes,
                                             .tokens = matrix->tokens,
                                             .row = (uint32_t)row,
                                             .transfer_bytes = transfer_bytes,
                                             .dtype = dtype,
                                             .target = *target};
        return KVT_OK;
    }
    /* A thread counts elements in 32 bits. */
    if (elements > INT32_MAX) return KVT_E_UNSUPPORTED;
    work->kernel = KERNEL_LOSSLESS;
    work->blocks = (elements + LOSSLESS_FAST_TILE - 1) / LOSSLESS_FAST_TILE;
    work->job.lossless = (kernel_lossless_job){.source = (uint64_t)(uintptr_t)parts[0].data,
                                               .bytes = parts[0].bytes,
                                               .elements = elements,
                                               .row_elements = (uint32_t)row,
                                               .transfer_bytes = transfer_bytes,
                                               .dtype = dtype,
                                               .target = *target};
    return KVT_OK;
}

const kvt_codec codecs_lossless = {
    .id = KVT_CODEC_LOSSLESS,
    .flags = KVT_CODEC_FLAG_EXACT,
    .name = "lossless",
    .check = lossless_check,
    .segment_bound = lossless_bound,
    .segment_scratch = lossless_scratch,
    .encode_segment = lossless_encode,
    .decode_segment = lossless_decode,
    .plan_job = lossless_plan_job,
};
