/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_ladder.c - which measured variants are rungs. Thread rule: see calibrate.h.
 */
#include "codecs/codec_table.h"
#include "codecs/record.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A variant that might become a rung. */
typedef struct ladder_candidate {
    uint32_t variant;
    bool drops;
    double bits, distortion;
    uint32_t beaten_by; /* a cheaper one; UINT32_MAX: none */
} ladder_candidate;

static double ladder_distortion(const quality_curve *curve)
{
    return isfinite(curve->kl) ? curve->kl : curve->attention_error * curve->attention_error;
}

static int ladder_order(const void *left, const void *right)
{
    const ladder_candidate *a = left, *b = right;
    if (a->bits != b->bits) return a->bits < b->bits ? 1 : -1;
    return (a->distortion > b->distortion) - (a->distortion < b->distortion);
}

/* The cheaper one with the least distortion, when that is no more than this one's. A variant that
 * keeps all tokens is measured against its like alone: the others are not for every layout. */
static uint32_t ladder_beaten_by(const ladder_candidate *candidates, uint32_t count, uint32_t at)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const ladder_candidate *other = &candidates[i];
        if (i == at || other->bits > candidates[at].bits) continue;
        if (other->bits == candidates[at].bits && i > at) continue;
        if (other->drops && !candidates[at].drops) continue;
        if (other->distortion > candidates[at].distortion) continue;
        if (best == UINT32_MAX || other->distortion < candidates[best].distortion) best = i;
    }
    return best;
}

/* A lossy variant that lost nothing here is still lossy: half of the least that could have shown.
 */
static double ladder_least_loss(const calibrate_rows *rows, const quality_curve *curve)
{
    return 0.5 / ((double)rows->source->trials * curve->entries);
}

/* Losses that do not fall along the accepted rungs: what is seen to fall is chance. */
static void ladder_smooth(calibrate_ladder *ladder, bool drops)
{
    isotonic_point points[CALIBRATE_RUNGS_MAX];
    uint32_t at[CALIBRATE_RUNGS_MAX], count = 0;
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        calibrate_rung *rung = &ladder->rungs[i];
        if (!rung->accepted || quality_variant_drops(rung->variant.variant) != drops) continue;
        points[count] = (isotonic_point){.x = count, .y = rung->loss, .weight = 1.0};
        at[count++] = i;
    }
    isotonic_fit(points, count);
    double upper = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        calibrate_rung *rung = &ladder->rungs[at[i]];
        rung->loss = points[i].y;
        upper = fmax(upper, fmax(rung->loss_upper, rung->loss));
        rung->loss_upper = upper;
    }
}

static void ladder_fill(const calibrate_rows *rows, const ladder_candidate *candidates,
                        const ladder_candidate *candidate, calibrate_rung *rung)
{
    const quality_curve *curve = &rows->curves[candidate->variant];
    double least = ladder_least_loss(rows, curve);
    char measured[160];
    *rung = (calibrate_rung){.variant = rows->variants[candidate->variant],
                             .bits_per_element = candidate->bits,
                             .loss = fmin(fmax(curve->loss_mean, least), 1.0),
                             .accepted = candidate->beaten_by == UINT32_MAX};
    rung->loss_upper = fmin(fmax(curve->loss_high, rung->loss), 1.0);
    (void)snprintf(measured, sizeof measured, "%s %.3g, loss %.4g [%.4g, %.4g], %u entries",
                   isfinite(curve->kl) ? "KL" : "attention error",
                   isfinite(curve->kl) ? curve->kl : curve->attention_error, curve->loss_mean,
                   curve->loss_low, curve->loss_high, (unsigned)curve->entries);
    if (rung->accepted) {
        (void)snprintf(rung->evidence, sizeof rung->evidence, "%s", measured);
        return;
    }
    const ladder_candidate *other = &candidates[candidate->beaten_by];
    calibrate_pair pair = calibrate_compare(rows, candidate->variant, other->variant, false);
    (void)snprintf(rung->evidence, sizeof rung->evidence,
                   "%s; worse than %s at %.2f bits: %.3g times its %s [%.3g, %.3g]", measured,
                   rows->variants[other->variant].name, other->bits, exp(pair.mean),
                   isfinite(curve->kl) ? "KL" : "squared attention error", exp(pair.low),
                   exp(pair.high));
}

void calibrate_make_rungs(const calibrate_rows *rows, const uint32_t *variants, uint32_t count,
                          calibrate_ladder *ladder)
{
    ladder_candidate candidates[CALIBRATE_RUNGS_MAX];
    assert(count <= CALIBRATE_RUNGS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const quality_curve *curve = &rows->curves[variants[i]];
        candidates[i] =
            (ladder_candidate){.variant = variants[i],
                               .drops = quality_variant_drops(rows->variants[variants[i]].variant),
                               .bits = curve->bits_per_element,
                               .distortion = ladder_distortion(curve)};
    }
    qsort(candidates, count, sizeof candidates[0], ladder_order);
    for (uint32_t i = 0; i < count; i++)
        candidates[i].beaten_by = ladder_beaten_by(candidates, count, i);
    ladder->rung_count = count;
    for (uint32_t i = 0; i < count; i++)
        ladder_fill(rows, candidates, &candidates[i], &ladder->rungs[i]);
    ladder_smooth(ladder, false);
    ladder_smooth(ladder, true);
}

/* ---- entropy tables of other entries ---- */

enum { TABLES_ALIGN = 4096 };

static void *tables_room(uint64_t bytes)
{
    return aligned_alloc(TABLES_ALIGN, (bytes / TABLES_ALIGN + 1) * TABLES_ALIGN);
}

static size_t tables_count(const calibrate_tables *t)
{
    return (size_t)t->layout.layers * 2 * KVT_ENTROPY_SYMBOLS;
}

kvt_status calibrate_tables_open(kvt_variant variant, const kvt_layout *layout, calibrate_tables *t)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    *t = (calibrate_tables){.variant = variant, .layout = *layout};
    if (codec == NULL || codec->id != KVT_CODEC_ENTROPY || variant.mode >> 8 != 0 ||
        codec->check(variant, layout) != KVT_OK) {
        return KVT_E_UNSUPPORTED;
    }
    t->counts = malloc(tables_count(t) * sizeof *t->counts);
    if (t->counts == NULL) return KVT_E_MEMORY;
    /* One of everything, so that no symbol is without a place. */
    for (size_t i = 0; i < tables_count(t); i++)
        t->counts[i] = 1;
    return KVT_OK;
}

void calibrate_tables_close(calibrate_tables *t)
{
    free(t->counts);
    t->counts = NULL;
}

kvt_status calibrate_tables_count(calibrate_tables *t, uint32_t tokens, const void *entry)
{
    const kvt_codec *codec = kvt_codec_find(t->variant.codec);
    kvt_layout layout = t->layout;
    kvt_status status = KVT_OK;
    layout.tokens = tokens;
    kvt_matrix matrix = {.tokens = tokens,
                         .kv_heads = layout.kv_heads,
                         .head_dim = layout.head_dim,
                         .dtype = layout.dtype,
                         .planes = 1};
    uint64_t bytes = codec->matrix_scratch(t->variant, &matrix);
    matrix.side = KVT_SIDE_V;
    uint64_t of_v = codec->matrix_scratch(t->variant, &matrix);
    if (of_v > bytes) bytes = of_v;
    void *scratch = tables_room(bytes);
    if (scratch == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; status >= 0 && i < 2u * layout.layers; i++) {
        matrix.layer = (uint16_t)(i / 2);
        matrix.side = (uint8_t)(i % 2);
        const uint8_t *source =
            (const uint8_t *)entry + kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2));
        status = kvt_entropy_count(t->variant, &matrix, source, scratch, bytes,
                                   t->counts + (size_t)i * KVT_ENTROPY_SYMBOLS);
    }
    free(scratch);
    return status == KVT_RAW ? KVT_OK : status;
}

kvt_status calibrate_tables_code(calibrate_tables *t, uint32_t tokens, const void *entry)
{
    kvt_record_spec spec = {.generation = 1, .layout = t->layout, .variant = t->variant};
    const kvt_codec_extras shared = {.struct_size = sizeof shared,
                                     .sink_tokens = KVT_SINK_TOKENS, /* as without extras */
                                     .symbol_counts = t->counts,
                                     .count_layers = t->layout.layers};
    uint64_t source_bytes, bound, scratch_bytes, bytes;
    kvt_record_info info;
    spec.layout.tokens = tokens;
    kvt_status status = kvt_layout_bytes(&spec.layout, &source_bytes);
    if (status == KVT_OK) status = kvt_record_bound(&spec, &bound, &scratch_bytes);
    if (status != KVT_OK) return status;
    void *record = tables_room(bound), *scratch = tables_room(scratch_bytes);
    if (record == NULL || scratch == NULL) status = KVT_E_MEMORY;
    for (int way = 0; status >= 0 && way < 2; way++) {
        status = kvt_record_encode_with(&spec, way == 0 ? NULL : &shared, entry, source_bytes,
                                        record, bound, scratch, scratch_bytes, &bytes);
        if (status >= 0) status = kvt_record_parse(record, bytes, &info);
        if (status >= 0) *(way == 0 ? &t->own_bits : &t->shared_bits) += info.bits_per_element;
    }
    free(record);
    free(scratch);
    if (status >= 0) t->coded++;
    return status < 0 ? status : KVT_OK;
}
