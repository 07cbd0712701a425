/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_rows.c - see record_rows.h. Re-entrant.
 */
#include "record_rows.h"

#include "drop.h"

enum { ROWS_SINKS = KVT_SINK_TOKENS, ROWS_LAG = 128 };

static drop_settings rows_settings(kvt_variant variant)
{
    const uint32_t keep = codecs_drop_keep(variant);
    drop_settings settings = {.method = (uint8_t)codecs_drop_method(variant),
                              .keep_permille = (uint16_t)((keep * 1000 + 16) / 32),
                              .sinks = ROWS_SINKS,
                              .lag = ROWS_LAG};
    return settings;
}

static drop_shape rows_shape(const kvt_layout *layout)
{
    drop_shape shape = {layout->tokens, layout->kv_heads, layout->head_dim, layout->dtype};
    return shape;
}

static kvt_status rows_drop_plan(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                                 kvt_variant variant, drop_plan *plan_out)
{
    const drop_settings settings = rows_settings(variant);
    const uint64_t end = (uint64_t)spec->first_position + spec->layout.tokens;
    const uint64_t chain = extras != NULL && extras->chain_tokens != 0 ? extras->chain_tokens : end;
    if (chain < end || chain > UINT32_MAX) return KVT_E_ARGUMENT;
    const drop_place place = {spec->first_position, spec->layout.tokens, (uint32_t)chain};
    return drop_plan_of(&settings, &place, plan_out);
}

kvt_status record_rows_plan(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                            kvt_variant variant, uint32_t *tokens_out, uint32_t *index_count_out)
{
    const kvt_layout *layout = &spec->layout;
    const uint32_t method = codecs_drop_method(variant);
    drop_plan plan;
    if (!record_drop_fits(layout, variant)) return KVT_E_UNSUPPORTED;
    kvt_status status = rows_drop_plan(spec, extras, variant, &plan);
    if (status != KVT_OK) return status;
    /* An entry in the middle of its chain may keep nothing: it has no record then. */
    if (plan.keep == 0) return KVT_E_UNSUPPORTED;
    *tokens_out = plan.keep;
    *index_count_out = layout->layers;
    if (method == DROP_METHOD_STREAM) *index_count_out = 1;
    if (method == DROP_METHOD_CALLER && extras != NULL) {
        if (extras->score_layers != 1 && extras->score_layers != layout->layers) {
            return KVT_E_ARGUMENT;
        }
        *index_count_out = extras->score_layers;
    }
    return KVT_OK;
}

kvt_status codecs_kept_tokens(const kvt_layout *layout, uint32_t first_position,
                              kvt_variant variant, uint32_t *tokens_out, uint32_t *sets_out)
{
    const kvt_record_spec spec = {.layout = *layout, .first_position = first_position};
    const kvt_codec_extras scored = {.struct_size = sizeof scored, .score_layers = 1};
    *tokens_out = layout->tokens;
    *sets_out = 0;
    if (!kvt_variant_drops_tokens(variant)) return KVT_OK;
    return record_rows_plan(&spec, &scored, variant, tokens_out, sets_out);
}

/* The parts of the scratch; returns its size. */
static uint64_t rows_place(const record_plan *plan, uint8_t *scratch, record_rows *rows,
                           double **scores_out, uint64_t scores_count)
{
    const uint64_t indexes = plan->extension.index_count;
    uint64_t at = 0;
    rows->indexes = scratch;
    at += codecs_align(indexes * plan->index_bytes, 64);
    rows->kept = (uint32_t *)(void *)(scratch + at);
    at += codecs_align(indexes * plan->stored.tokens * sizeof(uint32_t), 64);
    *scores_out = (double *)(void *)(scratch + at);
    at += codecs_align(scores_count * sizeof(double), 64);
    rows->gathered = scratch + at;
    return at + codecs_align(plan->segment_bytes, 64);
}

static uint64_t rows_scores_count(const record_plan *plan, kvt_variant variant)
{
    const drop_settings settings = rows_settings(variant);
    const drop_shape shape = rows_shape(&plan->layout);
    return plan->layout.tokens + drop_scores_scratch(&settings, &shape);
}

uint64_t record_rows_scratch(const record_plan *plan, const kvt_record_spec *spec,
                             kvt_variant variant)
{
    static uint8_t nowhere[64]; /* only offsets are taken */
    record_rows rows;
    double *scores;
    (void)spec;
    if (variant.mode >> 8 == 0) return 0;
    return rows_place(plan, nowhere, &rows, &scores, rows_scores_count(plan, variant));
}

static view_rows rows_matrix(const record_rows *rows, const kvt_layout *layout, uint32_t layer,
                             kvt_side side)
{
    return view_rows_of(rows->view, layout, layout->tokens, layer, side);
}

void record_rows_copy(const record_rows *rows, const record_plan *plan, uint32_t layer,
                      kvt_side side, uint8_t *target)
{
    const view_rows matrix = rows_matrix(rows, &plan->layout, layer, side);
    view_rows_gather(&matrix, 0, matrix.bytes, target);
}

void record_rows_ends(const record_rows *rows, const record_plan *plan, uint32_t layer,
                      kvt_side side, uint8_t *target)
{
    const uint64_t row = record_row_bytes(plan);
    const uint64_t head = plan->extension.head_tokens * row;
    const uint64_t tail = plan->extension.tail_tokens[side] * row;
    if (rows->kept != NULL) {
        const uint8_t *all = record_rows_of(rows, plan, layer, side);
        memcpy(target, all, head);
        memcpy(target + head, all + plan->segment_bytes - tail, tail);
        return;
    }
    const view_rows matrix = rows_matrix(rows, &plan->layout, layer, side);
    view_rows_gather(&matrix, 0, head, target);
    view_rows_gather(&matrix, matrix.bytes - tail, tail, target + head);
}

kvt_status record_rows_open(record_rows *rows, const record_plan *plan, const kvt_record_spec *spec,
                            const kvt_codec_extras *extras, kvt_variant variant,
                            const kvt_view *view, uint8_t *scratch)
{
    const kvt_layout *layout = &plan->layout;
    const drop_settings settings = rows_settings(variant);
    const drop_shape shape = rows_shape(layout);
    const bool both = kvt_layout_sides(layout) == 2;
    double *scores;
    drop_plan kept;
    *rows = (record_rows){.view = view};
    if (variant.mode >> 8 == 0) return KVT_OK;
    if (view_is_apart(view, layout)) return KVT_E_UNSUPPORTED;
    const bool given = settings.method == DROP_METHOD_CALLER;
    if (given && (extras == NULL || extras->scores == NULL)) return KVT_E_ARGUMENT;
    rows_place(plan, scratch, rows, &scores, rows_scores_count(plan, variant));
    kvt_status status = rows_drop_plan(spec, extras, variant, &kept);
    for (uint32_t i = 0; status == KVT_OK && i < plan->extension.index_count; i++) {
        uint32_t *index = rows->kept + (uint64_t)i * kept.keep;
        uint8_t *bitmap = rows->indexes + i * plan->index_bytes;
        if (given) {
            for (uint32_t t = 0; t < layout->tokens; t++)
                scores[t] = (double)extras->scores[(uint64_t)i * layout->tokens + t];
        } else {
            const uint8_t *k = rows_matrix(rows, layout, i, KVT_SIDE_K).start;
            const uint8_t *v = both ? rows_matrix(rows, layout, i, KVT_SIDE_V).start : NULL;
            status = drop_scores(&settings, &shape, spec->first_position, k, v, scores,
                                 scores + layout->tokens);
            if (status != KVT_OK) return status;
        }
        drop_select(scores, layout->tokens, &kept, index);
        memset(bitmap, 0, plan->index_bytes);
        for (uint32_t k = 0; k < kept.keep; k++) {
            bitmap[index[k] / 8] |= (uint8_t)(1u << (index[k] % 8));
        }
    }
    return status;
}

const uint8_t *record_rows_index(const record_rows *rows, const record_plan *plan, uint32_t index)
{
    return rows->indexes + index * plan->index_bytes;
}

const uint8_t *record_rows_of(const record_rows *rows, const record_plan *plan, uint32_t layer,
                              kvt_side side)
{
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        return (const uint8_t *)rows->view->base[0] + layer * plan->segment_bytes;
    }
    const view_rows matrix = rows_matrix(rows, &plan->layout, layer, side);
    if (rows->kept == NULL && matrix.packed) return matrix.start;
    if (rows->kept == NULL) {
        view_rows_gather(&matrix, 0, matrix.bytes, rows->gathered);
        return rows->gathered;
    }
    const uint64_t index = plan->extension.index_count == 1 ? 0 : layer;
    drop_gather(matrix.start, record_row_bytes(plan), rows->kept + index * plan->stored.tokens,
                plan->stored.tokens, rows->gathered);
    return rows->gathered;
}
