/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_decode.c - a record becomes the entry again, whole or one matrix of it.
 *
 * A matrix is decoded first and verified then: its stored bytes come from memory once, and are in a
 * cache when their checksum is taken. Decoders trust no byte, and what they made of a segment that
 * turns out damaged never counts: KVT_OK is given for verified bytes only. Re-entrant; no
 * allocation.
 */
#include "record_reader.h"
#include "record_writer.h"

#include <assert.h>

static void record_take_raw(const void *target, uint64_t at, uint64_t bytes, const uint8_t *piece)
{
    view_rows_scatter(target, at, bytes, piece);
}

#define RECORD_LINE_BYTES 64u

void kvt_record_prefetch(const void *record)
{
    for (uint64_t at = 0; at < RECORD_SLOT_BYTES; at += RECORD_LINE_BYTES)
        __builtin_prefetch((const char *)record + at);
}

/* A segment that is the elements themselves: copied and verified in one pass. next: as of
 * kvt_record_decode_of_many. */
static kvt_status record_decode_raw(const uint8_t *record, const record_segment *segment,
                                    const view_rows *target, const uint8_t *next)
{
    checksum_next head;
    if (next != NULL) head = (checksum_next){{next, next + RECORD_TABLE_OFFSET}};
    const uint8_t *stored = record + segment->offset;
    const uint64_t bytes = segment->raw_bytes;
    const uint64_t padding = segment->padded_bytes - bytes;
    const bool stream = target->stream || bytes >= CHECKSUM_STREAM_BYTES;
    const uint64_t checksum = target->packed
                                  ? checksum_copy(target->start, stored, bytes, stored + bytes,
                                                  padding, stream, next != NULL ? &head : NULL)
                                  : checksum_walk(stored, bytes, padding, record_take_raw, target);
    return checksum == segment->checksum ? record_padding_check(record, segment) : KVT_E_CORRUPT;
}

/* A matrix or piece that is one segment. */
static kvt_status record_decode_segment(const uint8_t *record, const record_plan *plan,
                                        const record_segment *segment, const view_rows *target,
                                        void *scratch, uint64_t scratch_bytes)
{
    const uint8_t *stored = record + segment->offset;
    if (target->bytes != segment->raw_bytes) return KVT_E_CORRUPT;
    if (segment->kind == KVT_PART_RAW) return record_decode_raw(record, segment, target, NULL);
    kvt_status status =
        plan->codec->decode_segment(plan->variant, &plan->stored, stored, segment->stored_bytes,
                                    target, scratch, scratch_bytes);
    return status == KVT_OK ? record_segment_check(record, segment) : status;
}

kvt_status record_decode_raw_tokens(const uint8_t *record, const record_plan *plan,
                                    const record_matrix *found, kvt_side side,
                                    const view_rows *target)
{
    const uint64_t row = record_row_bytes(plan);
    const uint64_t head = plan->extension.head_tokens * row;
    const uint64_t tail = plan->extension.tail_tokens[side] * row;
    const uint8_t *raw = record + found->raw_tokens.offset;
    view_rows_scatter(target, 0, head, raw);
    view_rows_scatter(target, plan->segment_bytes - tail, tail, raw + head);
    return record_segment_check(record, &found->raw_tokens);
}

/* A matrix that is stored as parts: raw tokens around the coded rows. */
static kvt_status record_decode_parts(const uint8_t *record, const record_plan *plan,
                                      const record_matrix *found, uint32_t layer, kvt_side side,
                                      const view_rows *target, void *scratch,
                                      uint64_t scratch_bytes)
{
    const uint64_t row = record_row_bytes(plan);
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == found->part_count);
    for (uint32_t i = 0; i < count; i++) {
        const record_segment *segment = &found->parts[i];
        parts[i].bytes = segment->stored_bytes;
        /* The decoder only reads through it. */
        parts[i].data = (uint8_t *)((uintptr_t)record + segment->offset);
    }
    const view_rows coded = view_rows_part(target, row, plan->extension.head_tokens, matrix.tokens);
    const view_rows *wanted = &coded;
    kvt_status status = record_code_decode(plan, &matrix, parts, &wanted, scratch, scratch_bytes);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        status = record_segment_check(record, &found->parts[i]);
    }
    if (status == KVT_OK && found->raw_tokens.kind != 0)
        status = record_decode_raw_tokens(record, plan, found, side, target);
    return status;
}

void record_find_matrix(const record_plan *plan, const uint8_t *table,
                        const record_sections *sections, uint32_t layer, kvt_side side,
                        record_matrix *found)
{
    if (plan->parts) {
        record_matrix_collect(table, sections, layer, side, found);
        return;
    }
    /* One segment a matrix: no search. */
    uint64_t index = plan->extension.index_count +
                     kvt_layout_sides(&plan->layout) * (uint64_t)layer + (uint64_t)side;
    memcpy(&found->raw, table + index * sizeof found->raw, sizeof found->raw);
    found->raw_tokens.kind = 0;
    found->part_count = 0;
}

kvt_status record_decode_found(const uint8_t *record, const record_plan *plan,
                               const record_matrix *found, uint32_t layer, kvt_side side,
                               const view_rows *target, void *scratch, uint64_t scratch_bytes)
{
    if (!plan->parts || found->raw.kind != 0)
        return record_decode_segment(record, plan, &found->raw, target, scratch, scratch_bytes);
    return record_decode_parts(record, plan, found, layer, side, target, scratch, scratch_bytes);
}

/* A parsed record as a source of spans. */
static record_source record_source_of(const uint8_t *record, const record_parsed *parsed)
{
    return (record_source){.payload = record,
                           .plan = &parsed->plan,
                           .table = parsed->table,
                           .sections = &parsed->sections};
}

static bool record_has_spans(const record_plan *plan)
{
    return (plan->codec->flags & KVT_CODEC_FLAG_SPANS) != 0;
}

static kvt_status record_decode_one(const uint8_t *record, const record_parsed *parsed,
                                    uint32_t layer, kvt_side side, const view_rows *target,
                                    void *scratch, uint64_t scratch_bytes)
{
    const record_plan *plan = &parsed->plan;
    record_matrix found;
    if (record_has_spans(plan)) {
        const record_source source = record_source_of(record, parsed);
        const view_rows *targets[KVT_SPAN_MAX] = {NULL};
        const uint32_t index = kvt_layout_sides(&plan->layout) * layer + (uint32_t)side;
        targets[index % plan->together] = target;
        return record_decode_span(&source, index / plan->together, targets, scratch, scratch_bytes);
    }
    record_find_matrix(plan, parsed->table, &parsed->sections, layer, side, &found);
    return record_decode_found(record, plan, &found, layer, side, target, scratch, scratch_bytes);
}

/* State that the tasks of a decoder share. */
typedef struct record_decoder {
    const uint8_t *record;
    const record_parsed *parsed;
    const kvt_view *view; /* of `layout`, whose tokens may be more than the record's */
    const kvt_layout *layout;
    uint32_t first_layer;
    uint32_t layer_count;
    bool of_many;                /* as record.h says, */
    const void *next;            /* and this */
    kvt_record_arrival *arrival; /* NULL: all bytes are there */
    uint64_t record_bytes;
    uint32_t first_task; /* of those that are run now */
    uint8_t *scratch;    /* lanes of one worker each */
    uint64_t lane_bytes;
} record_decoder;

static void *record_decoder_lane(const record_decoder *decoder, uint32_t worker)
{
    return worker == 0 ? decoder->scratch : decoder->scratch + worker * decoder->lane_bytes;
}

static kvt_status record_decode_piece(void *argument, uint32_t index, uint32_t worker)
{
    const record_decoder *decoder = argument;
    const record_parsed *parsed = decoder->parsed;
    record_segment segment;
    index += decoder->first_task;
    memcpy(&segment, parsed->table + (uint64_t)index * sizeof segment, sizeof segment);
    uint8_t *start = (uint8_t *)decoder->view->base[0] + index * parsed->plan.segment_bytes;
    view_rows target = view_rows_packed(start, segment.raw_bytes);
    target.stream = decoder->of_many;
    const void *next = index == 0 ? decoder->next : NULL;
    if (segment.kind == KVT_PART_RAW)
        return record_decode_raw(decoder->record, &segment, &target, next);
    if (next != NULL) kvt_record_prefetch(next);
    return record_decode_segment(decoder->record, &parsed->plan, &segment, &target,
                                 record_decoder_lane(decoder, worker), decoder->lane_bytes);
}

static kvt_status record_decode_indexed(void *argument, uint32_t index, uint32_t worker)
{
    const record_decoder *decoder = argument;
    const record_plan *plan = &decoder->parsed->plan;
    uint32_t layer;
    kvt_side side;
    record_matrix_name(plan, decoder->first_task + index, &layer, &side);
    layer += decoder->first_layer;
    view_rows target =
        view_rows_of(decoder->view, decoder->layout, plan->stored.tokens, layer, side);
    target.stream = decoder->of_many || plan->decoded_bytes >= VIEW_STREAM_BYTES;
    kvt_status status =
        record_decode_one(decoder->record, decoder->parsed, layer, side, &target,
                          record_decoder_lane(decoder, worker), decoder->lane_bytes);
    view_rows_close(&target);
    return status;
}

/* The wanted matrices of a span. index counts from the first span that a layer of them is in. */
static kvt_status record_decode_spanned(void *argument, uint32_t index, uint32_t worker)
{
    const record_decoder *decoder = argument;
    const record_plan *plan = &decoder->parsed->plan;
    const record_source source = record_source_of(decoder->record, decoder->parsed);
    const uint32_t span =
        record_span_of(plan, decoder->first_layer, KVT_SIDE_K) + decoder->first_task + index;
    const uint32_t count = record_span_matrices(plan, span);
    view_rows rows[KVT_SPAN_MAX];
    const view_rows *targets[KVT_SPAN_MAX] = {NULL};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t layer;
        kvt_side side;
        record_matrix_name(plan, span * plan->together + i, &layer, &side);
        if (layer < decoder->first_layer || layer - decoder->first_layer >= decoder->layer_count)
            continue;
        rows[i] = view_rows_of(decoder->view, decoder->layout, plan->stored.tokens, layer, side);
        rows[i].stream = decoder->of_many || plan->decoded_bytes >= VIEW_STREAM_BYTES;
        targets[i] = &rows[i];
    }
    kvt_status status = record_decode_span(
        &source, span, targets, record_decoder_lane(decoder, worker), decoder->lane_bytes);
    for (uint32_t i = 0; i < count; i++)
        if (targets[i] != NULL) view_rows_close(targets[i]);
    return status;
}

kvt_status record_check_expected(const record_parsed *parsed, const kvt_record_spec *expected)
{
    if (expected == NULL) return KVT_OK;
    const bool same = memcmp(&expected->key, parsed->header.key, sizeof expected->key) == 0 &&
                      expected->generation == parsed->header.generation;
    return same ? KVT_OK : KVT_E_MISMATCH;
}

/* Parses a record that must be the expected one. */
static kvt_status record_open_expected(const void *record, uint64_t bytes,
                                       const kvt_record_spec *expected, record_parsed *parsed)
{
    kvt_status status = record_parse(record, bytes, RECORD_DEPTH_LOAD, parsed, NULL);
    if (status == KVT_OK) status = record_check_expected(parsed, expected);
    if (status != KVT_OK) return status;
    return record_plan_take_basis(&parsed->plan, expected != NULL ? &expected->bases : NULL);
}

static void record_reach_segment(void *context, record_segment *segment)
{
    uint64_t *end = context;
    if (segment->offset + segment->padded_bytes > *end)
        *end = segment->offset + segment->padded_bytes;
}

/* Bytes of the record, from its start on, that a task looks at. */
static uint64_t record_task_end(const record_decoder *decoder, uint32_t task)
{
    const record_parsed *parsed = decoder->parsed;
    const record_plan *plan = &parsed->plan;
    uint64_t end = 0;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        record_segment segment;
        memcpy(&segment, parsed->table + (uint64_t)task * sizeof segment, sizeof segment);
        return segment.offset + segment.padded_bytes;
    }
    /* Of a codec with spans a task is one, else a matrix; the part of a span is its first's. */
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    const uint32_t first = sides * decoder->first_layer / plan->together + task;
    for (uint32_t i = 0; i < record_span_matrices(plan, first); i++) {
        record_matrix found;
        uint32_t layer;
        kvt_side side;
        record_matrix_name(plan, first * plan->together + i, &layer, &side);
        record_find_matrix(plan, parsed->table, &parsed->sections, layer, side, &found);
        record_each_segment(&found, record_reach_segment, &end);
    }
    return end;
}

/* Runs the tasks of a decoder; of a record that is on its way, as its bytes come. */
static kvt_status record_decode_tasks(record_decoder *decoder, const kvt_codec_workers *workers,
                                      uint32_t count, record_step step)
{
    kvt_record_arrival *arrival = decoder->arrival;
    const uint32_t most = record_worker_count(workers);
    if (arrival == NULL) return record_run(workers, count, step, decoder);
    while (arrival->done < count) {
        const uint32_t left = count - arrival->done;
        uint32_t run = 1;
        uint64_t arrived = 0;
        kvt_status status =
            arrival->await(arrival->context, record_task_end(decoder, arrival->done), &arrived);
        if (status != KVT_OK) return status;
        if (arrived >= decoder->record_bytes) run = left;
        while (run < left && run < most && record_task_end(decoder, arrival->done + run) <= arrived)
            run++;
        decoder->first_task = arrival->done;
        status = record_run(workers, run, step, decoder);
        if (status != KVT_OK) return status;
        arrival->done += run;
    }
    return KVT_OK;
}

/* Decodes layers of a parsed record into a view. */
static kvt_status record_decode_layers(record_decoder *decoder, uint32_t layers,
                                       const kvt_codec_workers *workers, uint64_t scratch_bytes)
{
    const record_plan *plan = &decoder->parsed->plan;
    decoder->layer_count = layers;
    decoder->lane_bytes = record_decode_scratch(plan);
    if (workers != NULL) {
        decoder->lane_bytes = codecs_align(decoder->lane_bytes, RECORD_SEGMENT_ALIGN);
    }
    /* Divided, as a hostile header may ask for any amount. */
    if (decoder->lane_bytes > scratch_bytes / record_worker_count(workers)) return KVT_E_SPACE;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        return record_decode_tasks(decoder, workers, plan->segment_count, record_decode_piece);
    }
    if (decoder->next != NULL) kvt_record_prefetch(decoder->next);
    if (record_has_spans(plan)) {
        const uint32_t first = record_span_of(plan, decoder->first_layer, KVT_SIDE_K);
        const uint32_t last = record_span_of(plan, decoder->first_layer + layers, KVT_SIDE_K);
        const bool inside =
            (decoder->first_layer + layers) * kvt_layout_sides(&plan->layout) % plan->together != 0;
        return record_decode_tasks(decoder, workers, layers == 0 ? 0 : last - first + inside,
                                   record_decode_spanned);
    }
    return record_decode_tasks(decoder, workers, kvt_layout_sides(&plan->layout) * layers,
                               record_decode_indexed);
}

kvt_status record_decode_packed(const void *record, uint64_t bytes, const kvt_record_spec *expected,
                                const kvt_codec_workers *workers, void *target,
                                uint64_t target_bytes, void *scratch, uint64_t scratch_bytes)
{
    record_parsed parsed;
    kvt_status status = record_open_expected(record, bytes, expected, &parsed);
    if (status != KVT_OK) return status;
    if (target_bytes != parsed.plan.decoded_bytes) return KVT_E_SPACE;
    const kvt_view view = codecs_packed_view(&parsed.plan.stored, target);
    record_decoder decoder = {.record = record,
                              .parsed = &parsed,
                              .view = &view,
                              .layout = &parsed.plan.stored,
                              .scratch = scratch};
    return record_decode_layers(&decoder, parsed.plan.layout.layers, workers, scratch_bytes);
}

bool record_layout_fits(const record_plan *plan, const kvt_layout *layout)
{
    const kvt_layout *own = &plan->layout;
    return own->layers == layout->layers && own->kv_heads == layout->kv_heads &&
           own->head_dim == layout->head_dim && own->dtype == layout->dtype &&
           codecs_same_sides(own, layout) && plan->stored.tokens <= layout->tokens &&
           own->opaque_bytes == layout->opaque_bytes;
}

/* Waits until the head of a record that is on its way is there. */
static kvt_status record_await_head(const kvt_record_arrival *arrival, const void *record,
                                    uint64_t bytes)
{
    record_header header;
    uint32_t slot;
    uint64_t arrived;
    if (bytes < RECORD_TABLE_OFFSET) return KVT_E_CORRUPT;
    kvt_status status = arrival->await(arrival->context, RECORD_TABLE_OFFSET, &arrived);
    if (status == KVT_OK) status = record_choose_slot(record, false, &header, &slot);
    if (status != KVT_OK) return status;
    if (header.payload_offset > bytes) return KVT_E_CORRUPT;
    return arrival->await(arrival->context, header.payload_offset, &arrived);
}

/* Decodes layers into a view. The decoder has layout, view, first layer, scratch, and what the
 * calls differ in; layer_count as of kvt_record_decode_view. */
static kvt_status record_decode_into(const void *record, uint64_t bytes,
                                     const kvt_record_spec *expected,
                                     const kvt_codec_workers *workers, record_decoder *decoder,
                                     uint32_t layer_count, uint64_t scratch_bytes)
{
    record_parsed parsed;
    assert(record != NULL && decoder->view != NULL && decoder->layout != NULL);
    assert((uintptr_t)decoder->scratch % 64 == 0);
    assert(workers == NULL || (workers->count > 0 && workers->run != NULL));
    kvt_status status = KVT_OK;
    if (decoder->arrival != NULL) status = record_await_head(decoder->arrival, record, bytes);
    if (status == KVT_OK) status = record_open_expected(record, bytes, expected, &parsed);
    if (status != KVT_OK) return status;
    if (!record_layout_fits(&parsed.plan, decoder->layout)) return KVT_E_SPACE;
    const uint32_t first = decoder->first_layer, layers = decoder->layout->layers;
    if (first > layers || layer_count > layers - first) return KVT_E_ARGUMENT;
    decoder->record = record;
    decoder->record_bytes = bytes;
    decoder->parsed = &parsed;
    return record_decode_layers(decoder, layer_count == 0 ? layers - first : layer_count, workers,
                                scratch_bytes);
}

kvt_status kvt_record_decode_view(const void *record, uint64_t bytes,
                                  const kvt_record_spec *expected, const kvt_codec_workers *workers,
                                  const kvt_layout *layout, const kvt_view *view,
                                  uint32_t first_layer, uint32_t layer_count, void *scratch,
                                  uint64_t scratch_bytes)
{
    record_decoder decoder = {
        .view = view, .layout = layout, .first_layer = first_layer, .scratch = scratch};
    return record_decode_into(record, bytes, expected, workers, &decoder, layer_count,
                              scratch_bytes);
}

kvt_status kvt_record_decode_of_many(const void *record, uint64_t bytes,
                                     const kvt_record_spec *expected,
                                     const kvt_codec_workers *workers, const kvt_layout *layout,
                                     const kvt_view *view, uint32_t first_layer,
                                     uint32_t layer_count, const void *next, void *scratch,
                                     uint64_t scratch_bytes)
{
    record_decoder decoder = {.view = view,
                              .layout = layout,
                              .first_layer = first_layer,
                              .of_many = true,
                              .next = next,
                              .scratch = scratch};
    return record_decode_into(record, bytes, expected, workers, &decoder, layer_count,
                              scratch_bytes);
}

kvt_status kvt_record_decode_arriving(const void *record, uint64_t bytes,
                                      const kvt_record_spec *expected,
                                      const kvt_codec_workers *workers, kvt_record_arrival *arrival,
                                      const kvt_layout *layout, const kvt_view *view,
                                      uint32_t first_layer, uint32_t layer_count, void *scratch,
                                      uint64_t scratch_bytes)
{
    record_decoder decoder = {.view = view,
                              .layout = layout,
                              .first_layer = first_layer,
                              .arrival = arrival,
                              .scratch = scratch};
    return record_decode_into(record, bytes, expected, workers, &decoder, layer_count,
                              scratch_bytes);
}

kvt_status kvt_record_decode_matrix(const void *record, uint64_t bytes,
                                    const kvt_record_bases *bases, uint32_t layer, kvt_side side,
                                    void *target, uint64_t target_bytes, void *scratch,
                                    uint64_t scratch_bytes)
{
    record_parsed parsed;
    const record_plan *plan = &parsed.plan;
    assert(record != NULL && target != NULL && (uintptr_t)scratch % 64 == 0);
    kvt_status status = record_parse(record, bytes, RECORD_DEPTH_LOAD, &parsed, NULL);
    if (status != KVT_OK) return status;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE || layer >= plan->layout.layers) {
        return KVT_E_ARGUMENT;
    }
    if ((uint32_t)side >= kvt_layout_sides(&plan->layout)) return KVT_E_ARGUMENT;
    if (target_bytes != plan->segment_bytes) return KVT_E_SPACE;
    if (scratch_bytes < record_decode_scratch(plan)) return KVT_E_SPACE;
    status = record_plan_take_basis(&parsed.plan, bases);
    if (status != KVT_OK) return status;
    const view_rows rows = view_rows_packed(target, target_bytes);
    return record_decode_one(record, &parsed, layer, side, &rows, scratch, scratch_bytes);
}

/* Both calls of record.h. */
static kvt_status record_kept(const void *record, uint64_t bytes, record_depth depth,
                              uint32_t layer, uint32_t *positions_out, uint32_t positions_count)
{
    record_parsed parsed;
    record_segment segment;
    const record_plan *plan = &parsed.plan;
    uint32_t found = 0;
    assert(record != NULL && positions_out != NULL);
    kvt_status status = record_parse(record, bytes, depth, &parsed, NULL);
    if (status != KVT_OK) return status;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE || layer >= plan->layout.layers ||
        positions_count < plan->stored.tokens) {
        return KVT_E_ARGUMENT;
    }
    const uint8_t *kept = NULL;
    if (plan->extension.index_count != 0) {
        uint64_t index = plan->extension.index_count == 1 ? 0 : layer;
        memcpy(&segment, parsed.table + index * sizeof segment, sizeof segment);
        if (segment.offset + segment.padded_bytes > bytes) return KVT_E_CORRUPT;
        status = record_segment_check(record, &segment);
        if (status != KVT_OK) return status;
        kept = (const uint8_t *)record + segment.offset;
    }
    for (uint64_t token = 0; token < plan->index_bytes * 8; token++) {
        bool keep =
            kept != NULL ? (kept[token / 8] >> (token % 8) & 1) != 0 : token < plan->layout.tokens;
        if (!keep) continue;
        if (token >= plan->layout.tokens || found == plan->stored.tokens) return KVT_E_CORRUPT;
        positions_out[found++] = (uint32_t)token;
    }
    return found == plan->stored.tokens ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status kvt_record_kept_tokens(const void *record, uint64_t bytes, uint32_t layer,
                                  uint32_t *positions_out, uint32_t positions_count)
{
    return record_kept(record, bytes, RECORD_DEPTH_LOAD, layer, positions_out, positions_count);
}

kvt_status kvt_record_kept_first(const void *record, uint64_t bytes, uint32_t layer,
                                 uint32_t *positions_out, uint32_t positions_count)
{
    return record_kept(record, bytes, RECORD_DEPTH_HEAD, layer, positions_out, positions_count);
}

uint64_t kvt_record_kept_bytes(const kvt_layout *layout, kvt_variant variant, uint32_t sets)
{
    const uint64_t one = codecs_align(((uint64_t)layout->tokens + 7) / 8, RECORD_SEGMENT_ALIGN);
    return codecs_head_bytes(layout, variant) + sets * one;
}
