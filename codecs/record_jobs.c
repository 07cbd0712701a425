/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_jobs.c - see record_jobs.h: for each matrix of the layers one check of every segment, and
 * the job that decodes it. Re-entrant; no allocation.
 */
#include "record_jobs.h"

#include "codecs/kernels/kernel_table.h"
#include "record_reader.h"

#include <assert.h>

_Static_assert((int)KERNEL_FP16 == (int)KVT_DTYPE_FP16 && (int)KERNEL_BF16 == (int)KVT_DTYPE_BF16 &&
                   (int)KERNEL_FP32 == (int)KVT_DTYPE_FP32 && (int)KERNEL_FP8 == (int)KVT_DTYPE_FP8,
               "jobs have the numbers of kvt_dtype");
_Static_assert((int)KERNEL_PLANES_MAX == (int)KVT_PLANES_MAX, "of one matrix");
_Static_assert(KERNEL_LAYER_CHECKS == 2 * (2 + KVT_PLANES_MAX), "of one layer");

#define JOBS_BLOCKS_MAX ((uint64_t)INT32_MAX) /* of a grid */

kvt_status kernel_plan_verdict(const kernel_plan *plan, uint32_t first, uint32_t end)
{
    assert(first <= end && end <= plan->verdict_count);
    for (uint32_t i = first; i < end; i++)
        if (plan->verdicts[i] != KERNEL_SOUND) return KVT_E_CORRUPT;
    return KVT_OK;
}

/* The matrices of a call. */
typedef struct jobs_maker {
    record_source source;
    const kvt_layout *layout;
    const kvt_view *view;
    const kernel_place *place;
    kernel_plan *plan;
    kvt_status status; /* of the first job that was not appended */
} jobs_maker;

/* ---- appending ---- */

kvt_status kernel_plan_add(kernel_plan *plan, const kernel_work *work)
{
    kernel_batch *batch = &plan->batches[work->kernel];
    const uint32_t bytes = kernel_facts_of(work->kernel)->job_bytes;
    const bool check = work->kernel == KERNEL_CHECK;
    const uint32_t blocks = check ? 0 : batch->blocks;
    if (work->blocks > JOBS_BLOCKS_MAX) return KVT_E_UNSUPPORTED;
    if (batch->count == batch->capacity || plan->verdict_count == plan->verdict_capacity ||
        work->blocks > JOBS_BLOCKS_MAX - blocks)
        return KVT_E_SPACE;
    kernel_any_job job = work->job;
    job.head = (kernel_head){.first_block = blocks, .verdict = plan->verdict_count};
    memcpy((uint8_t *)batch->jobs + (uint64_t)batch->count * bytes, &job, bytes);
    batch->count++;
    batch->blocks = check ? (batch->count + KERNEL_CHECK_BLOCK - 1) / KERNEL_CHECK_BLOCK
                          : blocks + (uint32_t)work->blocks;
    plan->verdicts[plan->verdict_count++] = check ? KERNEL_UNSEEN : KERNEL_SOUND;
    return KVT_OK;
}

static void jobs_add(jobs_maker *maker, const kernel_work *work)
{
    if (maker->status == KVT_OK) maker->status = kernel_plan_add(maker->plan, work);
}

static uint64_t jobs_address(const jobs_maker *maker, const record_segment *segment)
{
    return maker->place->payload + segment->offset;
}

static void jobs_check(void *context, record_segment *segment)
{
    jobs_maker *maker = context;
    const kernel_work work = {.kernel = KERNEL_CHECK,
                              .blocks = 1,
                              .job.check = {.address = jobs_address(maker, segment),
                                            .stored_bytes = segment->stored_bytes,
                                            .padded_bytes = segment->padded_bytes,
                                            .checksum = segment->checksum}};
    jobs_add(maker, &work);
}

/* ---- targets ---- */

kernel_target kernel_target_of(const view_rows *rows, const kvt_view *view, uint64_t blocks)
{
    kernel_target target = {.start = (uint64_t)(uintptr_t)rows->start,
                            .block_stride = rows->block_stride,
                            .token_stride = rows->token_stride,
                            .head_stride = rows->head_stride,
                            .head_bytes = rows->head_bytes,
                            .first_slot = rows->first_slot,
                            .block_tokens = rows->block_tokens,
                            .heads = rows->heads};
    if (rows->blocks != NULL)
        target.blocks = blocks + (uint64_t)(rows->blocks - view->blocks) * sizeof(uint32_t);
    if (rows->packed) {
        target.heads = 1;
        target.head_bytes = target.token_stride = rows->row_bytes;
    }
    if (target.heads == 1) target.head_stride = 0;
    if (target.block_tokens == UINT32_MAX) target.block_stride = 0;
    return target;
}

uint32_t kernel_target_transfer(const kernel_target *target, uint64_t other)
{
    const uint64_t all = target->start | target->block_stride | target->token_stride |
                         target->head_stride | other | 16;
    return (uint32_t)(all & (0 - all));
}

bool kernel_rows_fit(const view_rows *rows)
{
    const uint64_t count = rows->bytes / rows->row_bytes;
    return rows->row_bytes <= INT32_MAX && count <= INT32_MAX && rows->first_slot <= INT32_MAX;
}

kvt_status kernel_plan_rows(kernel_plan *plan, kernel_id kernel, const view_rows *rows,
                            const kernel_target *target, uint64_t stored)
{
    const uint64_t count = rows->bytes / rows->row_bytes;
    uint64_t block_rows = KERNEL_RAW_BYTES / rows->row_bytes;
    if (!kernel_rows_fit(rows)) return KVT_E_UNSUPPORTED;
    if (block_rows == 0) block_rows = 1;
    const kernel_work work = {
        .kernel = kernel,
        .blocks = (count + block_rows - 1) / block_rows,
        .job.raw = {.source = stored,
                    .rows = count,
                    .row_bytes = rows->row_bytes,
                    .block_rows = (uint32_t)block_rows,
                    .transfer_bytes = kernel_target_transfer(target, stored | rows->row_bytes |
                                                                         target->head_bytes),
                    .target = *target}};
    return kernel_plan_add(plan, &work);
}

/* Rows of a matrix as kernels see them. */
static kernel_target jobs_target(const jobs_maker *maker, const view_rows *rows)
{
    return kernel_target_of(rows, maker->view, maker->place->blocks);
}

/* ---- matrices ---- */

/* Rows that lie at `source` as they are. */
static void jobs_raw(jobs_maker *maker, const view_rows *rows, uint64_t source)
{
    if (rows->bytes == 0 || maker->status != KVT_OK) return;
    const kernel_target target = jobs_target(maker, rows);
    maker->status = kernel_plan_rows(maker->plan, KERNEL_RAW, rows, &target, source);
}

/* Coded rows, by the codec's own planner. */
static void jobs_coded(jobs_maker *maker, const kvt_matrix *matrix, const kvt_part *parts,
                       const view_rows *rows)
{
    const record_plan *plan = maker->source.plan;
    const kernel_target target = jobs_target(maker, rows);
    kernel_work work;
    kvt_status status = KVT_E_UNSUPPORTED;
    memset(&work, 0, sizeof work);
    if (plan->codec->plan_job != NULL && kernel_rows_fit(rows))
        status =
            plan->codec->plan_job(plan->variant, matrix, parts, &target,
                                  kernel_target_transfer(&target, 0), plan->layout.dtype, &work);
    if (maker->status == KVT_OK) maker->status = status;
    jobs_add(maker, &work);
}

/* A matrix of parts: raw tokens around the coded rows. */
static void jobs_parts(jobs_maker *maker, const record_matrix *found, uint32_t layer, kvt_side side,
                       const view_rows *rows)
{
    const record_plan *plan = maker->source.plan;
    const uint32_t head = plan->extension.head_tokens, tail = plan->extension.tail_tokens[side];
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == found->part_count);
    for (uint32_t i = 0; i < count; i++) {
        parts[i].bytes = found->parts[i].stored_bytes;
        parts[i].data = (uint8_t *)(uintptr_t)jobs_address(maker, &found->parts[i]);
    }
    const view_rows coded = view_rows_part(rows, rows->row_bytes, head, matrix.tokens);
    jobs_coded(maker, &matrix, parts, &coded);
    if (found->raw_tokens.kind == 0) return;
    const uint64_t raw = jobs_address(maker, &found->raw_tokens);
    const view_rows front = view_rows_part(rows, rows->row_bytes, 0, head);
    const view_rows behind =
        view_rows_part(rows, rows->row_bytes, plan->stored.tokens - tail, tail);
    jobs_raw(maker, &front, raw);
    jobs_raw(maker, &behind, raw + head * rows->row_bytes);
}

static void jobs_matrix(jobs_maker *maker, uint32_t layer, kvt_side side)
{
    const record_plan *plan = maker->source.plan;
    record_matrix found;
    if (!record_source_find(&maker->source, layer, side, &found)) {
        maker->status = KVT_E_ARGUMENT;
        return;
    }
    const view_rows rows =
        view_rows_of(maker->view, maker->layout, plan->stored.tokens, layer, side);
    record_each_segment(&found, jobs_check, maker);
    if (plan->parts && found.raw.kind == 0) {
        jobs_parts(maker, &found, layer, side, &rows);
    } else if (found.raw.kind == KVT_PART_RAW) {
        jobs_raw(maker, &rows, jobs_address(maker, &found.raw));
    } else {
        const kvt_matrix matrix = {.tokens = plan->stored.tokens,
                                   .kv_heads = plan->layout.kv_heads,
                                   .head_dim = plan->layout.head_dim,
                                   .dtype = plan->layout.dtype,
                                   .side = (uint8_t)side,
                                   .layer = (uint16_t)layer,
                                   .planes = 1,
                                   .span = 1};
        const kvt_part part = {.kind = KVT_PART_CODED,
                               .bytes = found.raw.stored_bytes,
                               .data = (uint8_t *)(uintptr_t)jobs_address(maker, &found.raw)};
        jobs_coded(maker, &matrix, &part, &rows);
    }
}

kvt_status kvt_record_head_jobs(const kvt_record_head *head, const kvt_layout *layout,
                                const kvt_view *view, uint32_t layer, uint32_t layer_count,
                                const kernel_place *place, kernel_plan *plan)
{
    assert(head != NULL && layout != NULL && view != NULL && place != NULL && plan != NULL);
    assert(place->payload % RECORD_SEGMENT_ALIGN == 0);
    const record_plan *own = &head->plan;
    const uint32_t sides = kvt_layout_sides(layout);
    const kernel_plan before = *plan;
    if (own->layout.dtype == KVT_DTYPE_OPAQUE || own->codec->flags & KVT_CODEC_FLAG_SPANS)
        return KVT_E_UNSUPPORTED;
    if (!record_layout_fits(own, layout)) return KVT_E_SPACE;
    if (!record_has_layers(layout, layer, layer_count)) return KVT_E_ARGUMENT;
    jobs_maker maker = {.source = {.plan = own,
                                   .table = record_head_table(head),
                                   .sections = &head->sections,
                                   .ranges = place->range_count != 0 ? place->ranges : NULL,
                                   .range_count = place->range_count},
                        .layout = layout,
                        .view = view,
                        .place = place,
                        .plan = plan};
    for (uint32_t i = 0; maker.status == KVT_OK && i < sides * layer_count; i++)
        jobs_matrix(&maker, layer + i / sides, (kvt_side)(i % sides));
    if (maker.status != KVT_OK) *plan = before;
    return maker.status;
}
