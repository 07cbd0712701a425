/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_code.c - the matrices of a span go to the codec and come back. Elements of fp8 are coded
 * as the bf16 of the same values, which has them all, and come back rounded to E4M3: codecs with
 * parts know nothing of fp8. Scratch then is
 *
 *   | matrix 0 in bf16 | matrix 1 in bf16 | ... | the codec's own |
 *
 * Re-entrant; no allocation.
 */
#include "codecs/kernels/fp8_kernels.h"
#include "record_format.h"

#include <assert.h>

static bool code_is_wide(const record_plan *plan)
{
    return plan->layout.dtype == KVT_DTYPE_FP8;
}

/* Bytes of one matrix in bf16, and of its place. */
static uint64_t code_wide_bytes(const kvt_matrix *matrix)
{
    return (uint64_t)matrix->tokens * matrix->kv_heads * matrix->head_dim * sizeof(uint16_t);
}

static uint64_t code_wide_step(const kvt_matrix *matrix)
{
    return codecs_align(code_wide_bytes(matrix), RECORD_SEGMENT_ALIGN);
}

uint64_t record_code_scratch(const record_plan *plan, const kvt_matrix *matrix)
{
    const uint64_t own = plan->codec->matrix_scratch(plan->variant, matrix);
    return code_is_wide(plan) ? own + matrix->span * code_wide_step(matrix) : own;
}

static kvt_status code_encode(const record_plan *plan, const kvt_matrix *matrix,
                              const void *const *sources, kvt_part *parts, void *scratch,
                              uint64_t scratch_bytes)
{
    if (plan->codec->flags & KVT_CODEC_FLAG_SPANS)
        return plan->codec->encode_span(plan->variant, matrix, sources, parts, scratch,
                                        scratch_bytes);
    return plan->codec->encode_matrix(plan->variant, matrix, sources[0], parts, scratch,
                                      scratch_bytes);
}

/* Of nested parts those of the most planes that fp8 has count, whatever is kept. */
bool record_code_shrinks(const record_plan *plan, const kvt_matrix *matrix)
{
    kvt_matrix most = *matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint64_t total = 0;
    if (plan->codec->flags & KVT_CODEC_FLAG_NESTED) most.planes = CODECS_FP8_PLANES_MAX;
    const uint32_t count = plan->codec->matrix_parts(plan->variant, &most, parts);
    for (uint32_t i = 0; i < count; i++) {
        total += parts[i].bytes;
    }
    return total < matrix->tokens * record_row_bytes(plan);
}

kvt_status record_code_encode(const record_plan *plan, const kvt_matrix *matrix,
                              const void *const *sources, kvt_part *parts, void *scratch,
                              uint64_t scratch_bytes)
{
    const void *wide[KVT_SPAN_MAX];
    uint8_t *at = scratch;
    if (!code_is_wide(plan))
        return code_encode(plan, matrix, sources, parts, scratch, scratch_bytes);
    const uint64_t step = code_wide_step(matrix);
    const bool fixed = (plan->codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
    if (scratch_bytes < matrix->span * step) return KVT_E_ARGUMENT;
    if (fixed && !record_code_shrinks(plan, matrix)) return KVT_RAW;
    for (uint32_t i = 0; i < matrix->span; i++, at += step) {
        fp8_widen(sources[i], code_wide_bytes(matrix) / sizeof(uint16_t), (uint16_t *)(void *)at);
        wide[i] = at;
    }
    const kvt_status status =
        code_encode(plan, matrix, wide, parts, at, scratch_bytes - matrix->span * step);
    return status == KVT_E_SPACE ? KVT_RAW : status; /* the room is that of the fp8 elements */
}

static kvt_status code_decode(const record_plan *plan, const kvt_matrix *matrix,
                              const kvt_part *parts, const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes)
{
    if (plan->codec->flags & KVT_CODEC_FLAG_SPANS)
        return plan->codec->decode_span(plan->variant, matrix, parts, targets, scratch,
                                        scratch_bytes);
    return plan->codec->decode_matrix(plan->variant, matrix, parts, targets[0], scratch,
                                      scratch_bytes);
}

/* A matrix of bf16 to its places in fp8. */
static void code_narrow(const uint16_t *wide, const view_rows *target)
{
    uint8_t tile[VIEW_TILE_BYTES];
    for (uint64_t at = 0; at < target->bytes; at += sizeof tile) {
        const uint64_t left = target->bytes - at;
        const uint64_t run = left < sizeof tile ? left : sizeof tile;
        uint8_t *room = view_rows_room(target, at, run, tile);
        fp8_narrow(wide + at, run, room);
        view_rows_keep(target, at, run, room, tile);
    }
}

kvt_status record_code_decode(const record_plan *plan, const kvt_matrix *matrix,
                              const kvt_part *parts, const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes)
{
    view_rows wide[KVT_SPAN_MAX];
    const view_rows *wanted[KVT_SPAN_MAX] = {NULL};
    if (!code_is_wide(plan))
        return code_decode(plan, matrix, parts, targets, scratch, scratch_bytes);
    const uint64_t step = code_wide_step(matrix);
    if (scratch_bytes < matrix->span * step) return KVT_E_ARGUMENT;
    uint8_t *own = (uint8_t *)scratch + matrix->span * step;
    for (uint32_t i = 0; i < matrix->span; i++) {
        wide[i] = view_rows_packed((uint8_t *)scratch + i * step, code_wide_bytes(matrix));
        if (targets[i] != NULL) wanted[i] = &wide[i];
    }
    kvt_status status =
        code_decode(plan, matrix, parts, wanted, own, scratch_bytes - matrix->span * step);
    for (uint32_t i = 0; status == KVT_OK && i < matrix->span; i++) {
        if (targets[i] == NULL) continue;
        assert(targets[i]->bytes == code_wide_bytes(matrix) / sizeof(uint16_t));
        code_narrow((const uint16_t *)(const void *)wide[i].start, targets[i]);
    }
    return status;
}
