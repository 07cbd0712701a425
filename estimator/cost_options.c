/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost_options.c - from measured curves to the options of one entry. Called for every admitted
 * block, so it is arithmetic alone: no allocation, no lock, no I/O. Any thread.
 */
#include "codecs/codecs.h"

#include <kvterrace/codec.h>
#include <kvterrace/profile.h>

#include <assert.h>
#include <math.h>
#include <string.h>

/* Larger entries than a layout can have (2^46 bytes) are refused, which also keeps every product
 * with a share below 2^53, where doubles count bytes exactly. */
#define COST_SOURCE_MAX (UINT64_C(1) << 46)
#define COST_SHARE_MAX  64.0

static bool cost_rate_is_valid(double rate)
{
    return rate > 0.0 && isfinite(rate);
}

static bool cost_seconds_are_valid(double seconds)
{
    return seconds >= 0.0 && isfinite(seconds);
}

static bool cost_model_is_valid(const kvt_cost_model *model, uint32_t *tiers_out)
{
    uint32_t tiers = 0;
    if (model->variant_count > KVT_VARIANTS_MAX || model->parallel_codecs == 0) return false;
    for (int tier = KVT_TIER_NONE + 1; tier < KVT_TIER_COUNT; tier++) {
        if (!model->present[tier]) continue;
        tiers++;
        if (!cost_rate_is_valid(model->read[tier].bytes_per_s)) return false;
        if (!cost_seconds_are_valid(model->read[tier].request_seconds)) return false;
    }
    for (uint32_t i = 0; i < model->variant_count; i++) {
        const kvt_codec_curve *curve = &model->variants[i];
        if (!(curve->stored_share > 0.0 && curve->stored_share <= COST_SHARE_MAX)) return false;
        if (!cost_rate_is_valid(curve->decode_bytes_per_s)) return false;
        if (!cost_rate_is_valid(curve->encode_bytes_per_s)) return false;
        if (!(curve->loss >= 0.0 && curve->loss <= 1.0)) return false;
        if (!(curve->loss_upper >= 0.0 && curve->loss_upper <= 1.0)) return false;
    }
    *tiers_out = tiers;
    return 1u + tiers * model->variant_count <= KVT_OPTIONS_MAX;
}

/* What a variant costs whatever the tier; worked out once per call, because divisions are most of
 * the time that this file takes. */
typedef struct cost_variant {
    uint64_t stored_bytes;
    double decode_seconds;
    double encode_seconds;
} cost_variant;

/* The share holds a record's metadata already; what is stored is whole grains of the record. */
static uint64_t cost_stored_bytes(double share, uint64_t source_bytes)
{
    double exact = share * (double)source_bytes;
    uint64_t bytes = (uint64_t)exact;
    if ((double)bytes < exact) bytes++;
    return (bytes + KVT_RECORD_ALIGN - 1u) / KVT_RECORD_ALIGN * KVT_RECORD_ALIGN;
}

static void cost_fill_variants(const kvt_cost_model *model, uint64_t source_bytes,
                               cost_variant *variants)
{
    double per_thread = (double)source_bytes / (double)model->parallel_codecs;
    for (uint32_t i = 0; i < model->variant_count; i++) {
        const kvt_codec_curve *curve = &model->variants[i];
        variants[i].stored_bytes = cost_stored_bytes(curve->stored_share, source_bytes);
        variants[i].decode_seconds = per_thread / curve->decode_bytes_per_s;
        variants[i].encode_seconds = per_thread / curve->encode_bytes_per_s;
    }
}

/* Entropy forms: both steps three times the other's, and nothing else different. */
static bool cost_is_thrice(kvt_variant from, kvt_variant to)
{
    if (from.codec != KVT_CODEC_ENTROPY || to.codec != KVT_CODEC_ENTROPY) return false;
    if (from.mode != to.mode || from.rate >> 20 != to.rate >> 20) return false;
    return codecs_rate_field(to, 0, 10) == 3 * codecs_rate_field(from, 0, 10) &&
           codecs_rate_field(to, 10, 10) == 3 * codecs_rate_field(from, 10, 10);
}

/* Whether a lossy form can be made from the stored bytes of another without coding what was coded
 * before: fewer planes of it, anything coarser from planes at 8 bits, whose own loss is far below
 * any other's, or an entropy form of three times its steps. */
static bool cost_is_made_from(const kvt_codec_curve *to, const kvt_codec_curve *from,
                              bool *in_place_out)
{
    const kvt_codec *codec = kvt_codec_find(from->variant.codec);
    *in_place_out = false;
    if (to->loss <= 0.0 || from->loss <= 0.0 || to->stored_share >= from->stored_share)
        return false;
    if (codec == NULL) return false;
    if (from->variant.codec == to->variant.codec && codec->drops_to != NULL &&
        codec->drops_to(from->variant, to->variant)) {
        *in_place_out = true;
        return true;
    }
    if (from->variant.codec == KVT_CODEC_PLANES &&
        codec->matrix_planes(from->variant, KVT_SIDE_K, 0) == KVT_PLANES_MAX &&
        codec->matrix_planes(from->variant, KVT_SIDE_V, 0) == KVT_PLANES_MAX) {
        return true;
    }
    return cost_is_thrice(from->variant, to->variant);
}

/* Fills made_from and kept_from of all options. option i + 1 + tier * variants is variant i. */
static void cost_fill_lineage(const kvt_cost_model *model, kvt_option *options, uint32_t count)
{
    uint32_t variants = model->variant_count;
    for (uint32_t to = 1; to < count; to++) {
        const kvt_codec_curve *curve = &model->variants[(to - 1) % variants];
        for (uint32_t from = 1; from < count && curve->loss > 0.0; from++) {
            bool in_place;
            const kvt_codec_curve *other = &model->variants[(from - 1) % variants];
            if (!cost_is_made_from(curve, other, &in_place)) continue;
            options[to].made_from |= UINT32_C(1) << from;
            bool same_tier = (to - 1) / variants == (from - 1) / variants;
            if (in_place && same_tier) options[to].kept_from |= UINT32_C(1) << from;
        }
    }
}

/* One get is one striped set of requests: one fixed cost, then the tier's whole bandwidth. */
static void cost_fill_option(const kvt_cost_model *model, int tier, double seconds_per_byte,
                             const kvt_codec_curve *curve, const cost_variant *cost,
                             kvt_option *option)
{
    memset(option, 0, sizeof *option);
    option->variant = curve->variant;
    option->loss = curve->loss;
    option->loss_upper = curve->loss_upper > curve->loss ? curve->loss_upper : curve->loss;
    option->bytes[tier] = cost->stored_bytes;
    option->read_bytes[tier] = cost->stored_bytes;
    option->load_seconds =
        model->read[tier].request_seconds + (double)cost->stored_bytes * seconds_per_byte;
    option->decode_seconds = cost->decode_seconds;
    option->encode_seconds = cost->encode_seconds;
}

kvt_status kvt_options_build(const kvt_cost_model *model, uint64_t source_bytes,
                             uint32_t first_position, uint32_t tokens, double recompute_seconds,
                             kvt_option *options, uint32_t *count_out)
{
    assert(model != NULL && options != NULL && count_out != NULL);
    uint32_t tiers;
    *count_out = 0;
    if (source_bytes == 0 || source_bytes > COST_SOURCE_MAX) return KVT_E_ARGUMENT;
    if (tokens > UINT32_MAX - first_position) return KVT_E_ARGUMENT;
    if (!cost_model_is_valid(model, &tiers)) return KVT_E_ARGUMENT;
    if (tokens > 0) {
        recompute_seconds =
            kvt_prefill_seconds(&model->prefill, first_position, first_position + tokens);
    }
    if (!cost_seconds_are_valid(recompute_seconds)) return KVT_E_ARGUMENT;

    memset(&options[KVT_OPTION_NONE], 0, sizeof options[KVT_OPTION_NONE]);
    options[KVT_OPTION_NONE].load_seconds = recompute_seconds;
    cost_variant variants[KVT_VARIANTS_MAX];
    cost_fill_variants(model, source_bytes, variants);
    uint32_t count = 1;
    for (int tier = KVT_TIER_NONE + 1; tier < KVT_TIER_COUNT; tier++) {
        if (!model->present[tier]) continue;
        double seconds_per_byte = 1.0 / model->read[tier].bytes_per_s;
        for (uint32_t i = 0; i < model->variant_count; i++) {
            cost_fill_option(model, tier, seconds_per_byte, &model->variants[i], &variants[i],
                             &options[count++]);
        }
    }
    cost_fill_lineage(model, options, count);
    *count_out = count;
    return KVT_OK;
}
