/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_far.c - see record_far.h. Where any matrix cannot be coded, kernels do not encode the
 * record: the CPU finds out which are stored raw. Re-entrant; no allocation.
 */
#include "record_far.h"

#include <assert.h>

bool record_far_takes(kvt_variant variant)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    return codec != NULL && codec->plan_code != NULL && codecs_drop_method(variant) == 0;
}

kvt_status record_far_begin(record_far *far, const kvt_record_spec *spec, void *record,
                            uint64_t capacity)
{
    assert((uintptr_t)record % RECORD_SEGMENT_ALIGN == 0);
    record_plan *plan = &far->plan;
    if (!record_far_takes(spec->variant)) return KVT_E_UNSUPPORTED;
    const kvt_status status = record_plan_spec(plan, spec, NULL, spec->variant);
    if (status != KVT_OK) return status;
    assert(plan->parts && (plan->codec->flags & KVT_CODEC_FLAG_FIXED) != 0);
    far->writer = (record_writer){
        .spec = spec, .plan = plan, .record = record, .head = record, .capacity = capacity};
    return record_place_fixed(&far->writer);
}

uint64_t record_far_bytes(const record_far *far)
{
    return far->writer.place.offset - far->plan.payload_offset;
}

uint32_t record_far_matrices(const record_far *far)
{
    return record_matrices(&far->plan);
}

uint32_t record_far_jobs_most(const record_far *far, kernel_id kernel)
{
    if (kernel < KERNEL_DECODERS) return 0;
    return record_matrices(&far->plan) * (kernel == KERNEL_GATHER ? 2 : 1);
}

/* The index-th matrix, its name and its segments. */
static void far_find(const record_far *far, uint32_t index, uint32_t *layer, kvt_side *side,
                     record_matrix *found)
{
    record_matrix_name(&far->plan, index, layer, side);
    record_matrix_collect(far->writer.head + RECORD_TABLE_OFFSET, &far->writer.sections, *layer,
                          *side, found);
}

/* A call of record_far_jobs. */
typedef struct far_maker {
    const record_far *far;
    const kvt_view *view;
    const record_far_place *place;
    kernel_plan *plan;
} far_maker;

static uint64_t far_address(const far_maker *maker, const record_segment *segment)
{
    return maker->place->payload + (segment->offset - maker->far->plan.payload_offset);
}

/* Rows that are stored as they are. */
static kvt_status far_gather(const far_maker *maker, const view_rows *rows, uint64_t stored)
{
    if (rows->bytes == 0) return KVT_OK;
    const kernel_target source = kernel_target_of(rows, maker->view, maker->place->blocks);
    return kernel_plan_rows(maker->plan, KERNEL_GATHER, rows, &source, stored);
}

/* The coded rows of a matrix. */
static kvt_status far_code(const far_maker *maker, uint32_t index, const kvt_matrix *matrix,
                           const kvt_part *parts, const view_rows *rows)
{
    const record_plan *plan = &maker->far->plan;
    const kernel_target source = kernel_target_of(rows, maker->view, maker->place->blocks);
    const uint8_t dtype = plan->layout.dtype;
    kernel_work works[2];
    if (dtype == KVT_DTYPE_FP8 && !record_code_shrinks(plan, matrix)) return KVT_E_UNSUPPORTED;
    if (!kernel_rows_fit(rows)) return KVT_E_UNSUPPORTED;
    kvt_status status = plan->codec->plan_code(
        plan->variant, matrix, parts, &source, kernel_target_transfer(&source, 0), dtype,
        maker->place->histograms + (uint64_t)index * RECORD_FAR_COUNTS * sizeof(uint32_t), works);
    for (uint32_t i = 0; i < 2 && status == KVT_OK; i++)
        status = kernel_plan_add(maker->plan, &works[i]);
    return status;
}

static kvt_status far_matrix(const far_maker *maker, uint32_t index)
{
    const record_plan *plan = &maker->far->plan;
    uint32_t layer, count;
    kvt_side side;
    record_matrix found;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    far_find(maker->far, index, &layer, &side, &found);
    const view_rows rows =
        view_rows_of(maker->view, &plan->layout, plan->stored.tokens, layer, side);
    if (found.raw.kind != 0) return KVT_E_UNSUPPORTED;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == found.part_count);
    for (uint32_t i = 0; i < count; i++)
        parts[i].data = (uint8_t *)(uintptr_t)far_address(maker, &found.parts[i]);
    const uint32_t head = plan->extension.head_tokens, tail = plan->extension.tail_tokens[side];
    const view_rows coded = view_rows_part(&rows, rows.row_bytes, head, matrix.tokens);
    kvt_status status = far_code(maker, index, &matrix, parts, &coded);
    if (status != KVT_OK || found.raw_tokens.kind == 0) return status;
    const uint64_t raw = far_address(maker, &found.raw_tokens);
    const view_rows front = view_rows_part(&rows, rows.row_bytes, 0, head);
    const view_rows behind =
        view_rows_part(&rows, rows.row_bytes, plan->stored.tokens - tail, tail);
    status = far_gather(maker, &front, raw);
    return status == KVT_OK ? far_gather(maker, &behind, raw + head * rows.row_bytes) : status;
}

kvt_status record_far_jobs(const record_far *far, const kvt_view *view,
                           const record_far_place *place, kernel_plan *plan)
{
    assert(place->payload % RECORD_SEGMENT_ALIGN == 0);
    const far_maker maker = {far, view, place, plan};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < record_matrices(&far->plan) && status == KVT_OK; i++)
        status = far_matrix(&maker, i);
    return status;
}

void record_far_end(record_far *far, uint8_t *payload, const uint32_t *histograms,
                    uint64_t *record_bytes_out)
{
    const record_plan *plan = &far->plan;
    const record_writer *writer = &far->writer;
    for (uint32_t i = 0; i < record_matrices(plan); i++) {
        uint32_t layer;
        kvt_side side;
        record_matrix found;
        far_find(far, i, &layer, &side, &found);
        if (plan->codec->finish_code != NULL)
            plan->codec->finish_code(histograms + (uint64_t)i * RECORD_FAR_COUNTS,
                                     payload + (found.parts[0].offset - plan->payload_offset));
        for (uint32_t k = 0; k < found.part_count; k++)
            record_copy_segment(writer, found.parts_at[k], &found.parts[k],
                                payload + (found.parts[k].offset - plan->payload_offset));
        if (found.raw_tokens.kind != 0)
            record_copy_segment(writer, found.raw_tokens_at, &found.raw_tokens,
                                payload + (found.raw_tokens.offset - plan->payload_offset));
    }
    const record_header_values values = {
        .spec = writer->spec,
        .variant = writer->spec->variant,
        .sequence = 1,
        .payload_bytes = writer->payload_bytes,
        .record_bytes = writer->place.offset,
        .table_offset = RECORD_TABLE_OFFSET,
    };
    record_write_slot(writer->head, 0, plan, &values);
    *record_bytes_out = writer->place.offset;
}
