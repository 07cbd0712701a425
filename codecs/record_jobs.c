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
    uint64_t room;     /* address of what no span has yet */
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

static const uint8_t *jobs_host(const jobs_maker *maker, const record_segment *segment)
{
    return maker->place->host != NULL ? maker->place->host + segment->offset : NULL;
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

/* Raw tokens around the coded rows of a matrix. */
static void jobs_raw_tokens(jobs_maker *maker, const record_matrix *found, kvt_side side,
                            const view_rows *rows)
{
    const record_plan *plan = maker->source.plan;
    const uint32_t head = plan->extension.head_tokens, tail = plan->extension.tail_tokens[side];
    if (found->raw_tokens.kind == 0) return;
    const uint64_t raw = jobs_address(maker, &found->raw_tokens);
    const view_rows front = view_rows_part(rows, rows->row_bytes, 0, head);
    const view_rows behind =
        view_rows_part(rows, rows->row_bytes, plan->stored.tokens - tail, tail);
    jobs_raw(maker, &front, raw);
    jobs_raw(maker, &behind, raw + head * rows->row_bytes);
}

/* A matrix of parts. */
static void jobs_parts(jobs_maker *maker, const record_matrix *found, uint32_t layer, kvt_side side,
                       const view_rows *rows)
{
    const record_plan *plan = maker->source.plan;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == found->part_count);
    for (uint32_t i = 0; i < count; i++) {
        parts[i].bytes = found->parts[i].stored_bytes;
        parts[i].data = (uint8_t *)(uintptr_t)jobs_address(maker, &found->parts[i]);
    }
    const view_rows coded =
        view_rows_part(rows, rows->row_bytes, plan->extension.head_tokens, matrix.tokens);
    jobs_coded(maker, &matrix, parts, &coded);
    jobs_raw_tokens(maker, found, side, rows);
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
                               .data = (uint8_t *)(uintptr_t)jobs_address(maker, &found.raw),
                               .host = jobs_host(maker, &found.raw)};
        jobs_coded(maker, &matrix, &part, &rows);
    }
}

/* ---- spans ---- */

/* The part of a span, which lies with its first matrix, for the matrices that are wanted. */
static void jobs_span_part(jobs_maker *maker, uint32_t span, const view_rows *const *rows)
{
    const record_plan *plan = maker->source.plan;
    uint32_t layer, count;
    kvt_side side;
    record_matrix found;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    kernel_target targets[KVT_SPAN_MAX];
    kernel_work works[1 + KVT_SPAN_MAX];
    kvt_span_place place = {.basis = maker->place->basis, .room = maker->room};
    if (place.basis == 0) {
        maker->status = KVT_E_UNSUPPORTED;
        return;
    }
    record_matrix_name(plan, span * plan->together, &layer, &side);
    if (!record_span_find(&maker->source, layer, side, &found)) {
        maker->status = KVT_E_ARGUMENT;
        return;
    }
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == 1 && found.part_count == 1);
    parts[0].bytes = found.parts[0].stored_bytes;
    parts[0].data = (uint8_t *)(uintptr_t)jobs_address(maker, &found.parts[0]);
    jobs_check(maker, &found.parts[0]);
    for (uint32_t i = 0; i < matrix.span; i++) {
        if (rows[i] == NULL) continue;
        const view_rows coded =
            view_rows_part(rows[i], rows[i]->row_bytes, plan->extension.head_tokens, matrix.tokens);
        if (!kernel_rows_fit(&coded)) maker->status = KVT_E_UNSUPPORTED;
        targets[i] = jobs_target(maker, &coded);
        place.targets[i] = &targets[i];
        place.transfers[i] = kernel_target_transfer(&targets[i], 0);
    }
    if (maker->status == KVT_OK)
        maker->status = plan->codec->plan_span(plan->variant, &matrix, &parts[0], &place,
                                               plan->layout.dtype, works, &count);
    for (uint32_t i = 0; maker->status == KVT_OK && i < count; i++)
        jobs_add(maker, &works[i]);
    maker->room += plan->codec->span_room(&matrix);
}

/* The matrices of a span that are wanted. */
static void jobs_span(jobs_maker *maker, uint32_t span, const view_rows *const *rows)
{
    const record_plan *plan = maker->source.plan;
    jobs_span_part(maker, span, rows);
    for (uint32_t i = 0; maker->status == KVT_OK && i < record_span_matrices(plan, span); i++) {
        record_matrix found;
        uint32_t layer;
        kvt_side side;
        if (rows[i] == NULL) continue;
        record_matrix_name(plan, span * plan->together + i, &layer, &side);
        if (!record_source_find(&maker->source, layer, side, &found)) {
            maker->status = KVT_E_ARGUMENT;
            return;
        }
        if (found.raw_tokens.kind != 0) jobs_check(maker, &found.raw_tokens);
        jobs_raw_tokens(maker, &found, side, rows[i]);
    }
}

/* Layers of a codec with spans. */
static void jobs_spans(jobs_maker *maker, uint32_t layer, uint32_t layer_count)
{
    const record_plan *plan = maker->source.plan;
    const uint32_t sides = kvt_layout_sides(&plan->layout), end = sides * (layer + layer_count);
    for (uint32_t i = sides * layer; maker->status == KVT_OK && i < end;) {
        const view_rows *rows[KVT_SPAN_MAX] = {NULL};
        view_rows room[KVT_SPAN_MAX];
        const uint32_t span = i / plan->together;
        kvt_side side;
        record_matrix_name(plan, i, &layer, &side);
        if (record_matrix_is_raw(plan, layer, side)) {
            jobs_matrix(maker, layer, side);
            i++;
            continue;
        }
        for (uint32_t made = 0; i < end && i / plan->together == span; i++) {
            record_matrix_name(plan, i, &layer, &side);
            room[made] = view_rows_of(maker->view, maker->layout, plan->stored.tokens, layer, side);
            rows[i % plan->together] = &room[made++];
        }
        jobs_span(maker, span, rows);
    }
}

const struct transform_basis *kvt_record_head_basis(const kvt_record_head *head)
{
    return head->plan.basis;
}

uint64_t kvt_record_head_room(const kvt_record_head *head, uint32_t layer, uint32_t layer_count)
{
    const record_plan *plan = &head->plan;
    const uint32_t sides = kvt_layout_sides(&plan->layout), end = sides * (layer + layer_count);
    uint64_t bytes = 0;
    if ((plan->codec->flags & KVT_CODEC_FLAG_SPANS) == 0) return 0;
    for (uint32_t i = sides * layer; i < end; i = (i / plan->together + 1) * plan->together) {
        kvt_matrix matrix;
        kvt_part parts[KVT_PARTS_MAX];
        uint32_t count;
        kvt_side side;
        record_matrix_name(plan, i / plan->together * plan->together, &layer, &side);
        if (record_matrix_is_raw(plan, layer, side)) continue;
        record_matrix_parts(plan, layer, side, &matrix, parts, &count);
        bytes += plan->codec->span_room(&matrix);
    }
    return bytes;
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
    const bool spans = (own->codec->flags & KVT_CODEC_FLAG_SPANS) != 0;
    if (own->layout.dtype == KVT_DTYPE_OPAQUE) return KVT_E_UNSUPPORTED;
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
                        .plan = plan,
                        .room = place->room};
    if (spans) jobs_spans(&maker, layer, layer_count);
    for (uint32_t i = 0; !spans && maker.status == KVT_OK && i < sides * layer_count; i++)
        jobs_matrix(&maker, layer + i / sides, (kvt_side)(i % sides));
    if (maker.status != KVT_OK) *plan = before;
    return maker.status;
}
