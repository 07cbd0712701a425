/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_plan.c - what a fresh record will look like: raw tokens, levels and sizes that follow from
 * its layout, its variant and the caller's extras. Re-entrant.
 */
#include "record_writer.h"
#include "transform_basis.h"

#include <assert.h>

static uint32_t record_overlap(uint64_t from, uint64_t to, uint64_t first, uint64_t tokens)
{
    uint64_t start = from > first ? from : first;
    uint64_t end = to < first + tokens ? to : first + tokens;
    return end > start ? (uint32_t)(end - start) : 0;
}

static kvt_status record_plan_levels(record_plan *plan, const kvt_codec_extras *extras)
{
    if (extras == NULL || extras->levels == NULL) return KVT_OK;
    for (uint32_t layer = 0; layer < plan->layout.layers; layer++) {
        for (uint32_t side = 0; side < kvt_layout_sides(&plan->layout); side++) {
            int level = extras->levels[2 * layer + record_coded_side(plan, (kvt_side)side)];
            if (level < -KVT_LEVEL_LIMIT || level > KVT_LEVEL_LIMIT) return KVT_E_ARGUMENT;
            plan->levels[layer] |= (uint8_t)((level & 15) << (4 * side));
        }
    }
    return KVT_OK;
}

/* Which tokens of each side are stored raw: sinks and window of the chain, and the codec's own.
 * Rows that a drop stage keeps begin with the sinks, so the same number of them lies in front. */
static void record_plan_raw_tokens(record_plan *plan, const kvt_record_spec *spec,
                                   const kvt_codec_extras *extras, bool dropped, uint32_t tokens)
{
    record_extension *extension = &plan->extension;
    const uint64_t first = spec->first_position;
    const bool usual = extras == NULL || dropped;
    const uint32_t sinks = usual ? KVT_SINK_TOKENS : extras->sink_tokens;
    const uint64_t recent = extras != NULL ? extras->recent_tokens : 0;
    const uint64_t chain = extension->chain_tokens;
    extension->head_tokens = record_overlap(0, sinks, first, tokens);
    for (uint32_t side = 0; side < kvt_layout_sides(&plan->layout); side++) {
        const kvt_side coded = record_coded_side(plan, (kvt_side)side);
        uint32_t own = plan->codec->matrix_recent(plan->variant, coded, tokens);
        uint64_t from = chain > recent ? chain - recent : 0;
        uint32_t window = recent != 0 ? record_overlap(from, chain, first, tokens) : 0;
        uint32_t tail = own > window ? own : window;
        uint32_t room = tokens - extension->head_tokens;
        extension->tail_tokens[side] = tail < room ? tail : room;
        for (uint32_t l = 0; room <= tail && l < plan->layout.layers; l++) {
            record_matrix_set_raw(plan, l, (kvt_side)side);
        }
    }
}

static bool record_extras_are_none(const kvt_codec_extras *extras)
{
    return extras == NULL ||
           (extras->sink_tokens == 0 && extras->recent_tokens == 0 && extras->levels == NULL);
}

/* Counts are for codec entropy, and every table has some. */
static kvt_status record_check_counts(const record_plan *plan, const kvt_codec_extras *extras)
{
    if (extras == NULL) return KVT_OK;
    if (extras->reserved2 != 0) return KVT_E_UNSUPPORTED;
    if (extras->symbol_counts == NULL) return extras->count_layers == 0 ? KVT_OK : KVT_E_ARGUMENT;
    if (plan->codec->id != KVT_CODEC_ENTROPY) return KVT_E_UNSUPPORTED;
    if (extras->count_layers != 1 && extras->count_layers != plan->layout.layers) {
        return KVT_E_ARGUMENT;
    }
    /* Of one side the other one's are not looked at. */
    const uint32_t step = kvt_layout_sides(&plan->layout) == 2 ? 1 : 2;
    for (uint32_t table = record_coded_side(plan, KVT_SIDE_K); table < 2 * extras->count_layers;
         table += step) {
        const uint32_t *counts = extras->symbol_counts + (uint64_t)table * KVT_ENTROPY_SYMBOLS;
        uint64_t sum = 0;
        for (uint32_t s = 0; s < KVT_ENTROPY_SYMBOLS; s++) {
            sum += counts[s];
        }
        if (sum == 0 || sum > UINT32_MAX) return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

/* Takes the basis that a variant names. Without it the plan says how large a record may become, and
 * no encoder takes it. */
static kvt_status record_plan_basis(record_plan *plan, const kvt_record_spec *spec)
{
    const kvt_record_bases *bases = &spec->bases;
    const uint32_t start = plan->variant.rate >> CODECS_BASIS_SHIFT;
    if ((plan->codec->flags & KVT_CODEC_FLAG_SPANS) == 0) return KVT_OK;
    for (uint32_t i = 0; i < bases->count; i++) {
        const transform_basis *basis = bases->list[i];
        if (transform_hash_start(basis->hash) != start) continue;
        if (!record_basis_fits(basis, &spec->layout)) return KVT_E_UNSUPPORTED;
        plan->basis = basis;
        plan->basis_name.span = basis->shape.span;
        memcpy(plan->basis_name.hash, basis->hash, sizeof basis->hash);
        break;
    }
    return KVT_OK;
}

kvt_status record_plan_spec(record_plan *plan, const kvt_record_spec *spec,
                            const kvt_codec_extras *extras, kvt_variant variant)
{
    uint64_t source_bytes;
    memset(plan, 0, sizeof *plan);
    plan->layout = spec->layout;
    plan->variant = codecs_variant_core(variant);
    plan->codec = kvt_codec_find(variant.codec);
    kvt_status status = kvt_layout_bytes(&spec->layout, &source_bytes);
    if (status != KVT_OK) return status;
    if (spec->generation == 0 || spec->reserved != 0) return KVT_E_ARGUMENT;
    if (plan->codec == NULL) return KVT_E_UNSUPPORTED;
    if (plan->layout.layers > KVT_LAYERS_MAX && (plan->codec->flags & KVT_CODEC_FLAG_PARTS)) {
        return KVT_E_UNSUPPORTED;
    }
    const uint64_t end = (uint64_t)spec->first_position + spec->layout.tokens;
    uint64_t chain = extras != NULL && extras->chain_tokens != 0 ? extras->chain_tokens : end;
    const bool dropped = variant.mode >> 8 != 0;
    plan->parts = (plan->codec->flags & KVT_CODEC_FLAG_PARTS) != 0;
    plan->first_position = spec->first_position;
    status = record_plan_basis(plan, spec);
    if (status != KVT_OK) return status;
    /* A drop stage keeps the usual sinks and its own window. */
    if ((!plan->parts || dropped) && !record_extras_are_none(extras)) return KVT_E_UNSUPPORTED;
    status = record_check_counts(plan, extras);
    if (status != KVT_OK) return status;
    uint32_t tokens = spec->layout.tokens;
    if (dropped) {
        uint32_t indexes;
        status = record_rows_plan(spec, extras, variant, &tokens, &indexes);
        if (status != KVT_OK) return status;
        plan->extension.index_count = indexes;
    }
    plan->extension.table_count = plan->codec->flags & KVT_CODEC_FLAG_NESTED ? 2 : 1;
    if (plan->parts) {
        if (chain < end || chain > UINT32_MAX) return KVT_E_ARGUMENT;
        status = plan->codec->check(plan->variant, &plan->layout);
        if (status == KVT_OK) status = record_plan_levels(plan, extras);
        if (status != KVT_OK) return status;
        plan->extension.level_count = plan->layout.layers;
        plan->extension.chain_tokens = (uint32_t)chain;
        record_plan_raw_tokens(plan, spec, extras, dropped, tokens);
    }
    return record_plan_make(plan, variant, tokens);
}

static uint64_t record_bound_bytes(const record_plan *plan)
{
    /* A matrix is stored raw rather than larger. Beside the 64-byte padding of each segment, every
     * run of RECORD_RUN_BYTES and every section may pad up to one KVT_RECORD_ALIGN. */
    uint64_t segments = plan->table_bytes / sizeof(record_segment);
    uint64_t sections = 2 * KVT_PLANES_MAX;
    if (!plan->extended) {
        segments = plan->segment_count;
        sections = 1;
    }
    uint64_t payload = plan->decoded_bytes + segments * (RECORD_SEGMENT_ALIGN - 1) +
                       plan->index_bytes * plan->extension.index_count;
    payload += (payload / RECORD_RUN_BYTES + sections) * (KVT_RECORD_ALIGN - 1);
    return plan->payload_offset + codecs_align(payload, KVT_RECORD_ALIGN);
}

_Static_assert(RECORD_OPAQUE_BYTES >= RECORD_RUN_BYTES, "a whole opaque segment completes a run");

/* What record_place_next gives for segments that are stored as they are: each takes whole 64 bytes,
 * and as many layers as complete a run end on a whole grain, as does the rest. */
static uint64_t record_raw_payload(const record_plan *plan)
{
    uint64_t layers = plan->layout.layers, left = plan->source_bytes;
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        uint64_t whole = left / plan->segment_bytes;
        return whole * codecs_align(plan->segment_bytes, KVT_RECORD_ALIGN) +
               codecs_align(left - whole * plan->segment_bytes, KVT_RECORD_ALIGN);
    }
    uint64_t layer =
        kvt_layout_sides(&plan->layout) * codecs_align(plan->segment_bytes, RECORD_SEGMENT_ALIGN);
    uint64_t run = (RECORD_RUN_BYTES + layer - 1) / layer;
    return layers / run * codecs_align(run * layer, KVT_RECORD_ALIGN) +
           codecs_align(layers % run * layer, KVT_RECORD_ALIGN);
}

kvt_status codecs_raw_record_bytes(const kvt_layout *layout, uint64_t *head_bytes_out,
                                   uint64_t *bytes_out)
{
    record_plan plan;
    const kvt_record_spec spec = {
        .generation = 1, .layout = *layout, .variant = {.codec = KVT_CODEC_RAW}};
    *head_bytes_out = *bytes_out = 0;
    kvt_status status = record_plan_spec(&plan, &spec, NULL, spec.variant);
    if (status != KVT_OK) return status;
    *head_bytes_out = plan.payload_offset;
    *bytes_out = plan.payload_offset + record_raw_payload(&plan);
    return KVT_OK;
}

uint32_t codecs_sink_tokens(kvt_variant variant, uint32_t first_position, uint32_t tokens)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    if (codec == NULL || (codec->flags & KVT_CODEC_FLAG_PARTS) == 0) return 0;
    return record_overlap(0, KVT_SINK_TOKENS, first_position, tokens);
}

/* Less is read in a request or two, or decoded in the time that a wake takes. */
#define ARRIVING_LEAST_BYTES   (UINT64_C(1) << 18) /* of a record, */
#define ARRIVING_LEAST_DECODED (UINT64_C(1) << 20) /* and of its entry; */
#define ARRIVING_LEAST_PLAIN   (UINT64_C(1) << 21) /* of a record without entropy coding */
#define ARRIVING_STEP_BYTES    (UINT64_C(1) << 17) /* a record does not come in smaller steps */

/* Units that are decoded one behind the other as a record's bytes come. */
static uint64_t arriving_units(const kvt_layout *layout, const kvt_codec *codec,
                               kvt_variant variant)
{
    static const transform_shape widest = {.span = TRANSFORM_SPAN_LAYERS4};
    const uint32_t together = transform_span_layers(&widest);
    if (layout->dtype == KVT_DTYPE_OPAQUE)
        return (layout->opaque_bytes + RECORD_OPAQUE_BYTES - 1) / RECORD_OPAQUE_BYTES;
    if ((codec->flags & KVT_CODEC_FLAG_SPANS) != 0)
        return (layout->layers + together - 1) / together;
    for (uint32_t side = 0; (codec->flags & KVT_CODEC_FLAG_PARTS) != 0 && side < 2; side++)
        if (codec->matrix_planes(variant, (kvt_side)side, 0) > 1) return 1;
    return (uint64_t)kvt_layout_sides(layout) * layout->layers;
}

uint32_t codecs_arriving_steps(const kvt_layout *layout, kvt_variant variant, uint64_t record_bytes)
{
    uint64_t bytes;
    if (record_bytes < ARRIVING_LEAST_BYTES || codecs_drop_method(variant) != 0) return 1;
    if (kvt_layout_bytes(layout, &bytes) != KVT_OK || bytes < ARRIVING_LEAST_DECODED) return 1;
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    if (codec == NULL) return 1;
    const bool plain = codec == &codecs_raw || (codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
    if (plain && record_bytes < ARRIVING_LEAST_PLAIN) return 1;
    const uint64_t steps = record_bytes / ARRIVING_STEP_BYTES;
    const uint64_t units = arriving_units(layout, codec, variant);
    return (uint32_t)(units < steps ? units : steps);
}

uint64_t codecs_head_bytes(const kvt_layout *layout, kvt_variant variant)
{
    record_plan plan;
    const kvt_record_spec spec = {.generation = 1, .layout = *layout, .variant = variant};
    kvt_status status = record_plan_spec(&plan, &spec, NULL, spec.variant);
    return status == KVT_OK ? plan.payload_offset : 0;
}

kvt_status kvt_record_bound_with(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                                 uint32_t workers, uint64_t *record_bytes_out,
                                 uint64_t *scratch_bytes_out)
{
    record_plan plan;
    assert(spec != NULL && record_bytes_out != NULL && scratch_bytes_out != NULL);
    *record_bytes_out = 0;
    *scratch_bytes_out = 0;
    kvt_status status = record_plan_spec(&plan, spec, extras, spec->variant);
    if (status != KVT_OK) return status;
    *record_bytes_out = record_bound_bytes(&plan);
    const uint64_t lanes =
        workers != 0 ? workers * record_lanes_of(&plan, true).bytes : record_scratch_bytes(&plan);
    *scratch_bytes_out = lanes + record_rows_scratch(&plan, spec, spec->variant);
    return KVT_OK;
}

kvt_status kvt_record_bound(const kvt_record_spec *spec, uint64_t *record_bytes_out,
                            uint64_t *scratch_bytes_out)
{
    return kvt_record_bound_with(spec, NULL, 0, record_bytes_out, scratch_bytes_out);
}

kvt_status kvt_record_scratch_parallel(const kvt_record_spec *spec, uint32_t workers,
                                       uint64_t *scratch_bytes_out)
{
    record_plan plan;
    assert(spec != NULL && workers > 0 && scratch_bytes_out != NULL);
    *scratch_bytes_out = 0;
    kvt_status status = record_plan_spec(&plan, spec, NULL, spec->variant);
    if (status != KVT_OK) return status;
    const uint64_t lane = record_lanes_of(&plan, true).bytes;
    *scratch_bytes_out = record_rows_scratch(&plan, spec, spec->variant) + workers * lane;
    return KVT_OK;
}
