/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_format.c - the arithmetic that encoder and parser share: which segments a record has and
 * where they lie. Re-entrant.
 */
#include "record_format.h"

#include "transform_basis.h"

#include <assert.h>

uint64_t record_row_bytes(const record_plan *plan)
{
    const kvt_layout *layout = &plan->layout;
    return (uint64_t)layout->kv_heads * layout->head_dim * kvt_dtype_bytes(layout->dtype);
}

static int record_level(uint8_t levels, kvt_side side)
{
    int nibble = side == KVT_SIDE_K ? levels & 15 : levels >> 4;
    return nibble < 8 ? nibble : nibble - 16;
}

bool record_matrix_is_raw(const record_plan *plan, uint32_t layer, kvt_side side)
{
    unsigned nibble = side == KVT_SIDE_K ? plan->levels[layer] & 15u : plan->levels[layer] >> 4;
    return plan->parts && nibble == RECORD_LEVEL_RAW;
}

void record_matrix_set_raw(record_plan *plan, uint32_t layer, kvt_side side)
{
    unsigned other = side == KVT_SIDE_K ? plan->levels[layer] & 0xf0u : plan->levels[layer] & 15u;
    unsigned raw = side == KVT_SIDE_K ? RECORD_LEVEL_RAW : RECORD_LEVEL_RAW << 4;
    plan->levels[layer] = (uint8_t)(other | raw);
}

static uint32_t record_raw_tokens(const record_plan *plan, kvt_side side)
{
    return plan->extension.head_tokens + plan->extension.tail_tokens[side];
}

static void record_matrix_describe(const record_plan *plan, uint32_t layer, kvt_side side,
                                   kvt_matrix *matrix)
{
    memset(matrix, 0, sizeof *matrix);
    matrix->index = record_span_of(plan, layer, side);
    matrix->span = record_span_matrices(plan, matrix->index);
    matrix->first_position = plan->first_position + plan->extension.head_tokens;
    matrix->basis = plan->basis;
    matrix->layers = plan->layout.layers;
    matrix->sides = kvt_layout_sides(&plan->layout);
    matrix->basis_span = plan->basis_name.span;
    matrix->tokens = plan->stored.tokens - record_raw_tokens(plan, side);
    matrix->kv_heads = plan->layout.kv_heads;
    matrix->head_dim = plan->layout.head_dim;
    /* fp8 is coded as bf16: record_code.c. */
    const bool wide = plan->layout.dtype == KVT_DTYPE_FP8;
    matrix->dtype = wide ? KVT_DTYPE_BF16 : plan->layout.dtype;
    matrix->side = (uint8_t)record_coded_side(plan, side);
    matrix->layer = (uint16_t)layer;
    matrix->planes = plan->codec->matrix_planes(plan->variant, (kvt_side)matrix->side,
                                                record_level(plan->levels[layer], side));
    if (wide && matrix->planes > CODECS_FP8_PLANES_MAX) matrix->planes = CODECS_FP8_PLANES_MAX;
}

void record_matrix_parts(const record_plan *plan, uint32_t layer, kvt_side side,
                         kvt_matrix *matrix_out, kvt_part parts[KVT_PARTS_MAX], uint32_t *count_out)
{
    *count_out = 0;
    if (record_matrix_is_raw(plan, layer, side)) return;
    /* Only the first of a span. */
    const uint32_t number = kvt_layout_sides(&plan->layout) * layer + (uint32_t)side;
    if (plan->together > 1 && number % plan->together != 0) return;
    record_matrix_describe(plan, layer, side, matrix_out);
    *count_out = plan->codec->matrix_parts(plan->variant, matrix_out, parts);
    if (plan->layout.dtype == KVT_DTYPE_FP8 && (plan->codec->flags & KVT_CODEC_FLAG_FIXED) == 0)
        parts[0].bytes = matrix_out->span * matrix_out->tokens * record_row_bytes(plan);
    assert(*count_out > 0 && *count_out <= KVT_PARTS_MAX);
}

/* Segments of one plane of one matrix. */
static uint32_t record_matrix_segments(const record_plan *plan, uint32_t layer, kvt_side side,
                                       uint32_t plane)
{
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    uint32_t found = 0;
    if (!plan->parts || record_matrix_is_raw(plan, layer, side)) return plane == 0;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    for (uint32_t i = 0; i < count; i++) {
        found += parts[i].plane == plane;
    }
    return found + (plane == 0 && record_raw_tokens(plan, side) != 0);
}

static uint32_t record_opaque_pieces(const record_plan *plan)
{
    return (uint32_t)((plan->source_bytes + RECORD_OPAQUE_BYTES - 1) / RECORD_OPAQUE_BYTES);
}

void record_plan_count(record_plan *plan)
{
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    plan->plane_count = 1;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        plan->segment_count = record_opaque_pieces(plan);
        return;
    }
    plan->segment_count = plan->extension.index_count;
    if (!plan->parts) {
        plan->segment_count += record_matrices(plan);
        return;
    }
    for (uint32_t layer = 0; layer < plan->layout.layers; layer++) {
        for (uint32_t side = 0; side < sides; side++) {
            for (uint32_t plane = 0; plane < KVT_PLANES_MAX; plane++) {
                uint32_t count = record_matrix_segments(plan, layer, (kvt_side)side, plane);
                plan->segment_count += count;
                if (count != 0 && plane >= plan->plane_count) plan->plane_count = plane + 1;
            }
        }
    }
}

/* Segments that a table must have room for: as many as any planes and levels may give, so that the
 * payload of a nested record starts at the same place at every rate. */
static uint64_t record_table_segments(const record_plan *plan)
{
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    uint64_t count = record_matrices(plan);
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) return record_opaque_pieces(plan);
    if (plan->parts) {
        kvt_matrix matrix;
        kvt_part parts[KVT_PARTS_MAX];
        uint32_t most = 0;
        for (uint32_t side = 0; side < sides; side++) {
            record_matrix_describe(plan, 0, (kvt_side)side, &matrix);
            if (plan->codec->flags & KVT_CODEC_FLAG_NESTED) matrix.planes = KVT_PLANES_MAX;
            if (matrix.tokens == 0) matrix.tokens = 1;
            uint32_t parts_count = plan->codec->matrix_parts(plan->variant, &matrix, parts);
            if (parts_count > most) most = parts_count;
        }
        count *= most + 1u; /* and the raw tokens */
    }
    return count + plan->extension.index_count;
}

/* Whether all matrices of each span have as many raw tokens, and are raw or coded alike. */
static bool record_spans_are_whole(const record_plan *plan)
{
    const record_extension *extension = &plan->extension;
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    if (sides == 2 && extension->tail_tokens[KVT_SIDE_K] != extension->tail_tokens[KVT_SIDE_V])
        return false;
    for (uint32_t i = 0; i < record_matrices(plan); i++) {
        uint32_t layer;
        kvt_side side;
        record_matrix_name(plan, i - i % plan->together, &layer, &side);
        const bool raw = record_matrix_is_raw(plan, layer, side);
        record_matrix_name(plan, i, &layer, &side);
        if (record_matrix_is_raw(plan, layer, side) != raw) return false;
    }
    return true;
}

/* Whether the extension can belong to the layout and the variant. */
static bool record_extension_fits(const record_plan *plan, bool dropped)
{
    const record_extension *extension = &plan->extension;
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    const uint32_t nested = plan->codec->flags & KVT_CODEC_FLAG_NESTED ? 2 : 1;
    if (extension->table_count != nested || extension->reserved != 0) return false;
    if (dropped ? extension->index_count != 1 && extension->index_count != plan->layout.layers
                : extension->index_count != 0) {
        return false;
    }
    if (extension->level_count != (plan->parts ? plan->layout.layers : 0)) return false;
    /* Nothing is said about a side that is not there. */
    if (sides == 1 && extension->tail_tokens[KVT_SIDE_V] != 0) return false;
    for (uint32_t side = 0; side < sides; side++) {
        uint64_t raw = (uint64_t)extension->head_tokens + extension->tail_tokens[side];
        if (!plan->parts && raw != 0) return false;
        if (raw > plan->stored.tokens) return false;
        /* Without coded rows every matrix of the side is raw. */
        for (uint32_t layer = 0; plan->parts && raw == plan->stored.tokens; layer++) {
            if (layer == plan->layout.layers) break;
            if (!record_matrix_is_raw(plan, layer, (kvt_side)side)) return false;
        }
    }
    for (uint32_t layer = 0; layer < extension->level_count; layer++) {
        if (sides == 1 && plan->levels[layer] >> 4 != 0) return false;
        for (uint32_t side = 0; side < sides; side++) {
            int level = record_level(plan->levels[layer], (kvt_side)side);
            bool raw = record_matrix_is_raw(plan, layer, (kvt_side)side);
            if (!raw && (level < -KVT_LEVEL_LIMIT || level > KVT_LEVEL_LIMIT)) return false;
        }
    }
    return plan->together == 1 || record_spans_are_whole(plan);
}

bool record_drop_fits(const kvt_layout *layout, kvt_variant variant)
{
    const uint32_t method = codecs_drop_method(variant);
    /* Tokens are chosen by K. */
    return layout->tokens_may_drop && layout->sides != KVT_SIDES_V &&
           layout->layers <= KVT_LAYERS_MAX &&
           (layout->dtype == KVT_DTYPE_FP16 || layout->dtype == KVT_DTYPE_BF16 ||
            layout->dtype == KVT_DTYPE_FP32) &&
           method >= KVT_DROP_STREAM && method <= KVT_DROP_SCORES && codecs_drop_keep(variant) != 0;
}

bool record_basis_fits(const transform_basis *basis, const kvt_layout *layout)
{
    const transform_shape *shape = &basis->shape;
    return shape->layers == layout->layers && shape->kv_heads == layout->kv_heads &&
           shape->head_dim == layout->head_dim && shape->sides == kvt_layout_sides(layout);
}

kvt_status record_plan_take_basis(record_plan *plan, const kvt_record_bases *bases)
{
    plan->basis = NULL;
    if ((plan->codec->flags & KVT_CODEC_FLAG_SPANS) == 0) return KVT_OK;
    for (uint32_t i = 0; bases != NULL && i < bases->count; i++) {
        const transform_basis *basis = bases->list[i];
        if (memcmp(basis->hash, plan->basis_name.hash, sizeof basis->hash) != 0) continue;
        /* The record says of which span and shape its basis is; with another one it is no record of
         * this library's. */
        if (basis->shape.span != plan->basis_name.span || !record_basis_fits(basis, &plan->layout))
            return KVT_E_CORRUPT;
        plan->basis = basis;
        return KVT_OK;
    }
    return KVT_E_MISMATCH;
}

/* Matrices that one data part holds; 0: there is no such span of this layout. */
static uint32_t record_together(const record_plan *plan)
{
    const transform_shape shape = {.layers = plan->layout.layers,
                                   .kv_heads = plan->layout.kv_heads,
                                   .head_dim = plan->layout.head_dim,
                                   .sides = (uint8_t)kvt_layout_sides(&plan->layout),
                                   .span = plan->basis_name.span};
    if (shape.span <= TRANSFORM_SPAN_HEAD) return 1; /* 0: as many parts as there may be */
    if (shape.span > TRANSFORM_SPAN_LAYERS4 || transform_width(&shape) > TRANSFORM_WIDTH_MAX)
        return 0;
    return transform_span_layers(&shape) * shape.sides;
}

kvt_status record_plan_make(record_plan *plan, kvt_variant variant, uint32_t stored_tokens)
{
    const bool opaque = plan->layout.dtype == KVT_DTYPE_OPAQUE;
    const bool dropped = variant.mode >> 8 != 0;
    kvt_status status = kvt_layout_bytes(&plan->layout, &plan->source_bytes);
    if (status != KVT_OK) return status;
    plan->variant = codecs_variant_core(variant);
    plan->codec = kvt_codec_find(variant.codec);
    if (plan->codec == NULL) return KVT_E_UNSUPPORTED;
    plan->parts = (plan->codec->flags & KVT_CODEC_FLAG_PARTS) != 0;
    if (opaque && (plan->codec->flags & KVT_CODEC_FLAG_NEEDS_SHAPE)) return KVT_E_UNSUPPORTED;
    if (dropped && !record_drop_fits(&plan->layout, variant)) return KVT_E_UNSUPPORTED;
    if (plan->parts && plan->layout.layers > KVT_LAYERS_MAX) return KVT_E_UNSUPPORTED;
    status = plan->codec->check(plan->variant, &plan->layout);
    if (status != KVT_OK) return status;
    plan->together = 1;
    if (plan->codec->flags & KVT_CODEC_FLAG_SPANS) {
        /* Keys are turned back by positions that follow each other. */
        if (dropped) return KVT_E_UNSUPPORTED;
        plan->together = record_together(plan);
        if (plan->together == 0) return KVT_E_ARGUMENT;
    }

    plan->extended = plan->parts || dropped;
    plan->stored = plan->layout;
    plan->stored.tokens = stored_tokens;
    if (stored_tokens > plan->layout.tokens) return KVT_E_ARGUMENT;
    if (!dropped && stored_tokens != plan->layout.tokens) return KVT_E_ARGUMENT;
    if (plan->extended && !record_extension_fits(plan, dropped)) return KVT_E_ARGUMENT;
    status = kvt_layout_bytes(&plan->stored, &plan->decoded_bytes);
    if (status != KVT_OK) return status;
    plan->segment_bytes = opaque ? RECORD_OPAQUE_BYTES : kvt_layout_matrix_bytes(&plan->stored);
    if (plan->segment_bytes > plan->source_bytes) plan->segment_bytes = plan->source_bytes;
    plan->index_bytes = ((uint64_t)plan->layout.tokens + 7) / 8;
    plan->table_bytes =
        codecs_align(record_table_segments(plan) * sizeof(record_segment), KVT_RECORD_ALIGN);
    plan->payload_offset = RECORD_TABLE_OFFSET +
                           plan->table_bytes * (plan->extended ? plan->extension.table_count : 1);
    record_plan_count(plan);
    return KVT_OK;
}

uint64_t record_place_next(record_place *place, const record_want *want, uint64_t stored_bytes)
{
    const uint64_t start = place->offset;
    uint64_t end = codecs_align(start + stored_bytes, RECORD_SEGMENT_ALIGN);
    if (want->ends_section || (want->ends_layer && end - place->run_start >= RECORD_RUN_BYTES)) {
        end = codecs_align(end, KVT_RECORD_ALIGN);
        place->run_start = end;
    }
    place->offset = end;
    return end - start;
}

record_segment record_segment_at(const void *record, uint32_t index)
{
    record_segment segment;
    const uint8_t *table = (const uint8_t *)record + RECORD_TABLE_OFFSET;
    memcpy(&segment, table + (uint64_t)index * sizeof segment, sizeof segment);
    return segment;
}

void record_sections_start(record_sections *sections)
{
    memset(sections, 0, sizeof *sections);
}

void record_sections_add(record_sections *sections, const record_want *want)
{
    if (want->segment.kind == KVT_PART_INDEX) {
        sections->indexes++;
        return;
    }
    assert(sections->count < 2 * KVT_PLANES_MAX);
    uint32_t *end = &sections->ends[sections->count];
    if (*end == 0) *end = sections->count == 0 ? sections->indexes : end[-1];
    (*end)++;
    if (want->ends_section) sections->count++;
}

static void record_matrix_take(record_matrix *matrix, const record_segment *segment, uint32_t at)
{
    switch (segment->kind) {
    case KVT_PART_RAW:
    case KVT_PART_CODED:
        matrix->raw = *segment;
        matrix->raw_at = at;
        break;
    case KVT_PART_RAW_TOKENS:
        matrix->raw_tokens = *segment;
        matrix->raw_tokens_at = at;
        break;
    default:
        assert(matrix->part_count < KVT_PARTS_MAX);
        matrix->parts_at[matrix->part_count] = at;
        matrix->parts[matrix->part_count++] = *segment;
        break;
    }
}

void record_matrix_collect(const uint8_t *table, const record_sections *sections, uint32_t layer,
                           kvt_side side, record_matrix *matrix_out)
{
    uint32_t start = sections->indexes;
    memset(matrix_out, 0, sizeof *matrix_out);
    for (uint32_t section = 0; section < sections->count; section++) {
        const uint32_t end = sections->ends[section];
        record_segment segment;
        /* The first segment of the layer, in halves. */
        uint32_t low = start;
        for (uint32_t high = end; low < high;) {
            const uint32_t middle = low + (high - low) / 2;
            memcpy(&segment, table + (uint64_t)middle * sizeof segment, sizeof segment);
            if (segment.layer < layer) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        for (; low < end; low++) {
            memcpy(&segment, table + (uint64_t)low * sizeof segment, sizeof segment);
            if (segment.layer != layer) break;
            if (segment.side == side) record_matrix_take(matrix_out, &segment, low);
        }
        start = end;
    }
}

/* The largest matrix that the extras may leave. */
static void record_matrix_widest(const record_plan *plan, kvt_side side, kvt_matrix *matrix)
{
    record_matrix_describe(plan, 0, side, matrix); /* the first span is the widest */
    matrix->tokens = plan->stored.tokens;          /* extras may keep fewer rows raw */
    matrix->planes = plan->codec->flags & KVT_CODEC_FLAG_NESTED ? KVT_PLANES_MAX : 1;
    const bool unknown = plan->codec->flags & KVT_CODEC_FLAG_SPANS && plan->basis_name.span == 0;
    if (unknown) matrix->span = KVT_SPAN_MAX;
}

uint64_t record_codec_scratch(const record_plan *plan)
{
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    uint64_t most = 0;
    if (!plan->parts) {
        return plan->codec->segment_scratch(plan->variant, &plan->stored, plan->segment_bytes);
    }
    for (uint32_t side = 0; side < sides; side++) {
        kvt_matrix matrix;
        record_matrix_widest(plan, (kvt_side)side, &matrix);
        uint64_t bytes = record_code_scratch(plan, &matrix);
        if (bytes > most) most = bytes;
    }
    return most;
}

uint64_t record_parts_room(const record_plan *plan)
{
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    uint64_t most = 0;
    for (uint32_t side = 0; plan->parts && side < sides; side++) {
        kvt_matrix matrix;
        kvt_part parts[KVT_PARTS_MAX];
        uint64_t room = 0;
        record_matrix_widest(plan, (kvt_side)side, &matrix);
        uint32_t count = plan->codec->matrix_parts(plan->variant, &matrix, parts);
        for (uint32_t i = 0; i < count; i++) {
            room += codecs_align(parts[i].bytes, RECORD_SEGMENT_ALIGN);
        }
        if (room > most) most = room;
    }
    return most;
}

uint64_t record_scratch_bytes(const record_plan *plan)
{
    const uint64_t codec = record_codec_scratch(plan);
    const bool fixed = (plan->codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
    if (!plan->parts || fixed) return codec;
    /* The parts are made in scratch: their sizes are known only afterwards. */
    return codecs_align(codec, RECORD_SEGMENT_ALIGN) + record_parts_room(plan);
}

uint64_t record_decode_scratch(const record_plan *plan)
{
    /* A part of four layers is large. */
    const bool spans = (plan->codec->flags & KVT_CODEC_FLAG_SPANS) != 0;
    return spans ? record_codec_scratch(plan) : record_scratch_bytes(plan);
}
