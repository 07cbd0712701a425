/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_round_trip.c - see quality_round_trip.h. Thread rule: one thread per round trip.
 */
#include "estimator/quality/quality_round_trip.h"

#include "base/half.h"
#include "codecs/codecs.h"
#include "codecs/kernels/fp8_kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROUND_TRIP_ALIGN = 2 << 20 }; /* a huge page */

bool quality_variant_drops(kvt_variant variant)
{
    return codecs_drop_method(variant) != 0;
}

const char *quality_variant_codec(kvt_variant variant)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    if (quality_variant_drops(variant)) return "drop";
    return codec != NULL ? codec->name : "unknown";
}

kvt_status quality_widen(kvt_layout *layout, const void **entry, void **owned_out)
{
    uint64_t bytes = 0;
    *owned_out = NULL;
    kvt_status status = kvt_layout_bytes(layout, &bytes);
    if (status != KVT_OK || layout->dtype != KVT_DTYPE_FP8) return status;
    uint16_t *wide = malloc(bytes * sizeof *wide);
    if (wide == NULL) return KVT_E_MEMORY;
    fp8_widen(*entry, bytes, wide);
    layout->dtype = KVT_DTYPE_BF16;
    *entry = *owned_out = wide;
    return KVT_OK;
}

kvt_status quality_round_trip_room(uint8_t **memory, uint64_t *capacity, uint64_t bytes)
{
    if (*memory != NULL && *capacity >= bytes) return KVT_OK;
    uint64_t rounded = (bytes / ROUND_TRIP_ALIGN + 1) * ROUND_TRIP_ALIGN;
    free(*memory);
    *capacity = 0;
    *memory = aligned_alloc(ROUND_TRIP_ALIGN, rounded);
    if (*memory == NULL) return KVT_E_MEMORY;
    /* As the store's staging and an engine's pinned pools have it; a refusal costs speed alone. */
    (void)!madvise(*memory, rounded, MADV_HUGEPAGE);
    memset(*memory, 0, rounded);
    *capacity = rounded;
    return KVT_OK;
}

kvt_status quality_round_trip_open(const kvt_layout *layout, quality_round_trip *round_trip)
{
    uint64_t source = 0, decoded = 0, compact = 0, kept = 0, kept_at = 0;
    *round_trip = (quality_round_trip){.layout = *layout};
    kvt_status status = kvt_layout_bytes(layout, &round_trip->source_bytes);
    if (status == KVT_OK && layout->dtype == KVT_DTYPE_OPAQUE) status = KVT_E_ARGUMENT;
    if (status != KVT_OK) return status;
    round_trip->matrix_bytes = kvt_layout_matrix_bytes(layout);
    uint64_t tokens = layout->tokens;
    uint8_t *at = NULL;
    status = quality_round_trip_room(&round_trip->source, &source, round_trip->source_bytes);
    if (status == KVT_OK)
        status = quality_round_trip_room(&round_trip->decoded, &decoded, round_trip->source_bytes);
    if (status == KVT_OK)
        status = quality_round_trip_room(&round_trip->compact, &compact, round_trip->source_bytes);
    if (status == KVT_OK)
        status = quality_round_trip_room(&round_trip->kept, &kept, layout->layers * tokens);
    if (status == KVT_OK)
        status = quality_round_trip_room(&at, &kept_at, tokens * sizeof(uint32_t));
    round_trip->kept_at = (uint32_t *)(void *)at;
    return status;
}

void quality_round_trip_close(quality_round_trip *round_trip)
{
    free(round_trip->source);
    free(round_trip->decoded);
    free(round_trip->compact);
    free(round_trip->kept);
    free(round_trip->kept_at);
    free(round_trip->record);
    free(round_trip->scratch);
    *round_trip = (quality_round_trip){.source = NULL};
}

/* ---- comparison ---- */

static double round_trip_value(uint8_t dtype, const uint8_t *bytes)
{
    uint16_t half;
    float value;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(&value, bytes, sizeof value);
        return (double)value;
    }
    if (dtype == KVT_DTYPE_FP8) return (double)half_fp8_to_float(*bytes);
    memcpy(&half, bytes, sizeof half);
    return (double)(dtype == KVT_DTYPE_BF16 ? half_bf16_to_float(half) : half_to_float(half));
}

/* Adds what one matrix contributes to the energies of error and source. */
static void round_trip_compare(const quality_round_trip *round_trip, uint32_t layer, kvt_side side,
                               double *error, double *energy)
{
    const kvt_layout *layout = &round_trip->layout;
    const uint64_t offset = kvt_layout_matrix_offset(layout, layer, side);
    const uint64_t element = kvt_dtype_bytes(layout->dtype);
    const uint64_t row = (uint64_t)layout->kv_heads * layout->head_dim * element;
    for (uint32_t token = 0; token < layout->tokens; token++) {
        if (round_trip->kept[(uint64_t)layer * layout->tokens + token] == 0) continue;
        for (uint64_t at = offset + token * row; at < offset + (token + 1) * row; at += element) {
            double exact = round_trip_value(layout->dtype, round_trip->source + at);
            double difference = exact - round_trip_value(layout->dtype, round_trip->decoded + at);
            *error += difference * difference;
            *energy += exact * exact;
        }
    }
}

static void round_trip_measure(quality_round_trip *round_trip)
{
    for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
        double error = 0.0, energy = 0.0;
        for (uint32_t layer = 0; layer < round_trip->layout.layers; layer++)
            round_trip_compare(round_trip, layer, (kvt_side)side, &error, &energy);
        round_trip->nmse[side] = error == 0.0 ? 0.0 : error / energy;
    }
}

/* ---- the way there and back ---- */

static kvt_status round_trip_encode(quality_round_trip *round_trip, kvt_variant variant,
                                    bool merged, uint64_t *record_bytes)
{
    kvt_record_spec spec = {.generation = 1,
                            .layout = round_trip->layout,
                            .variant = variant,
                            .bases = round_trip->bases};
    uint64_t bound, scratch;
    uint32_t width = (uint32_t)spec.layout.kv_heads * spec.layout.head_dim;
    spec.layout.tokens_may_drop = quality_variant_drops(variant);
    if (merged && width > UINT16_MAX) return KVT_E_UNSUPPORTED;
    if (merged) spec.layout.head_dim = (uint16_t)width;
    if (merged) spec.layout.kv_heads = 1;
    kvt_status status = kvt_record_bound(&spec, &bound, &scratch);
    if (status == KVT_OK)
        status = quality_round_trip_room(&round_trip->record, &round_trip->record_capacity, bound);
    if (status == KVT_OK)
        status =
            quality_round_trip_room(&round_trip->scratch, &round_trip->scratch_capacity, scratch);
    if (status != KVT_OK) return status;
    status = kvt_record_encode(&spec, round_trip->source, round_trip->source_bytes,
                               round_trip->record, round_trip->record_capacity, round_trip->scratch,
                               round_trip->scratch_capacity, record_bytes);
    return status == KVT_RAW ? KVT_OK : status;
}

double quality_coded_bits(const kvt_record_info *info)
{
    const kvt_layout *layout = &info->spec.layout;
    const uint32_t sinks =
        codecs_sink_tokens(info->spec.variant, info->spec.first_position, layout->tokens);
    const double share = (double)sinks / (double)layout->tokens;
    const double raw_bits = 8.0 * (double)kvt_dtype_bytes(layout->dtype);
    if (sinks == 0 || sinks == layout->tokens) return info->bits_per_element;
    return (info->bits_per_element - share * raw_bits) / (1.0 - share);
}

/* Puts the decoded rows of one layer to their tokens. */
static kvt_status round_trip_expand(quality_round_trip *round_trip, uint32_t layer)
{
    const kvt_record_info *info = &round_trip->info;
    const kvt_layout *layout = &round_trip->layout;
    kvt_layout stored = *layout;
    stored.tokens = info->stored_tokens;
    uint8_t *kept = round_trip->kept + (uint64_t)layer * layout->tokens;
    const uint64_t row = round_trip->matrix_bytes / layout->tokens;
    kvt_status status = kvt_record_kept_tokens(round_trip->record, info->record_bytes, layer,
                                               round_trip->kept_at, layout->tokens);
    if (status != KVT_OK) return status;
    memset(kept, 0, layout->tokens);
    for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
        const uint8_t *from =
            round_trip->compact + kvt_layout_matrix_offset(&stored, layer, (kvt_side)side);
        uint8_t *to = round_trip->decoded + kvt_layout_matrix_offset(layout, layer, (kvt_side)side);
        memset(to, 0, round_trip->matrix_bytes);
        for (uint32_t i = 0; i < info->stored_tokens; i++) {
            memcpy(to + round_trip->kept_at[i] * row, from + i * row, row);
            kept[round_trip->kept_at[i]] = 1;
        }
    }
    return KVT_OK;
}

static kvt_status round_trip_decode(quality_round_trip *round_trip)
{
    const kvt_record_info *info = &round_trip->info;
    round_trip->dropped = info->stored_tokens < round_trip->layout.tokens;
    uint8_t *target = round_trip->dropped ? round_trip->compact : round_trip->decoded;
    const kvt_record_spec expected = {.generation = 1, .bases = round_trip->bases};
    kvt_status status =
        kvt_record_decode(round_trip->record, info->record_bytes, &expected, target,
                          info->decoded_bytes, round_trip->scratch, round_trip->scratch_capacity);
    memset(round_trip->kept, 1, (size_t)round_trip->layout.layers * round_trip->layout.tokens);
    for (uint32_t layer = 0;
         status == KVT_OK && round_trip->dropped && layer < round_trip->layout.layers; layer++) {
        status = round_trip_expand(round_trip, layer);
    }
    return status;
}

kvt_status quality_round_trip_run(quality_round_trip *round_trip, kvt_variant variant, bool merged)
{
    uint64_t record_bytes;
    kvt_status status = round_trip_encode(round_trip, variant, merged, &record_bytes);
    if (status == KVT_OK)
        status = kvt_record_parse(round_trip->record, record_bytes, &round_trip->info);
    if (status == KVT_OK) status = round_trip_decode(round_trip);
    if (status != KVT_OK) return status;
    round_trip_measure(round_trip);
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    bool same = memcmp(round_trip->source, round_trip->decoded, round_trip->source_bytes) == 0;
    return (codec->flags & KVT_CODEC_FLAG_EXACT) && !round_trip->dropped && !same ? KVT_E_CORRUPT
                                                                                  : KVT_OK;
}

/* ---- as a model's past ---- */

kvt_status quality_round_trip_kv_open(const quality_round_trip *round_trip,
                                      quality_round_trip_kv *kv)
{
    const kvt_layout *layout = &round_trip->layout;
    const uint32_t layers = layout->layers, heads = layout->kv_heads, tokens = layout->tokens;
    const size_t masks = round_trip->dropped ? (size_t)layers * heads * tokens : 0;
    *kv = (quality_round_trip_kv){.memory = malloc(5 * layers * sizeof(void *) + masks)};
    if (kv->memory == NULL) return KVT_E_MEMORY;
    const void **places = kv->memory; /* exact K, exact V, decoded K, decoded V, masks */
    uint8_t *mask = (uint8_t *)(places + 5 * layers);
    for (uint32_t l = 0; l < layers; l++) {
        for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
            uint64_t offset = kvt_layout_matrix_offset(layout, l, (kvt_side)side);
            places[(uint32_t)side * layers + l] = round_trip->source + offset;
            places[(2u + (uint32_t)side) * layers + l] = round_trip->decoded + offset;
        }
        places[4 * layers + l] = mask;
        for (uint32_t h = 0; round_trip->dropped && h < heads; h++, mask += tokens)
            memcpy(mask, round_trip->kept + (size_t)l * tokens, tokens);
    }
    kv->exact =
        (model_past){.tokens = tokens, .dtype = layout->dtype, .k = places, .v = places + layers};
    kv->variant = kv->exact;
    kv->variant.k = places + 2 * layers;
    kv->variant.v = places + 3 * layers;
    if (round_trip->dropped)
        kv->variant.kept = (const uint8_t *const *)(const void *)(places + 4 * layers);
    return KVT_OK;
}

void quality_round_trip_kv_close(quality_round_trip_kv *kv)
{
    free(kv->memory);
}
