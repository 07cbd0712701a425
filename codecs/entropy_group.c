/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_group.c - see entropy_group.h. All arithmetic is single rounded fp32 operations in a
 * fixed order, so that every machine chooses the same bytes. Re-entrant.
 */
#include "entropy_group.h"

#include <string.h>

enum {
    /* Deviations from 2^-63 to 2^64 as exponent and 3 mantissa bits of an fp32. */
    GROUP_DEVIATION_MIN = (127 - 63) * 8,
    GROUP_DEVIATION_MAX = (127 + 64) * 8,
    GROUP_DEVIATION_SHIFT = 20,
    GROUP_MEAN_NONE = 0,
    GROUP_MEAN_EIGHTHS = 1,
    GROUP_MEAN_BF16 = 2,
    GROUP_MEAN_LIMIT = 127
};

#define GROUP_VARIANCE_MIN 1.17549435e-38f /* 2^-126, the smallest normal fp32 */
#define GROUP_ROUNDER      12582912.0f     /* 1.5 * 2^23: see entropy_kernels_body.h */

static float group_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t group_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool group_is_finite(float value)
{
    return (group_to_bits(value) & 0x7f800000u) != 0x7f800000u;
}

static float group_size(float value)
{
    return value < 0.0f ? -value : value;
}

static float group_deviation(uint32_t number)
{
    return group_from_bits(number << GROUP_DEVIATION_SHIFT);
}

/* The number of the deviation nearest to the root of a variance; 0 for none. */
static uint32_t group_deviation_number(float variance)
{
    if (variance < GROUP_VARIANCE_MIN) return 0;
    /* Half the exponent is at most two numbers off. */
    uint32_t number = (group_to_bits(variance) / 2 + 0x1fc00000u) >> GROUP_DEVIATION_SHIFT;
    number = number > GROUP_DEVIATION_MIN + 2 ? number - 2 : GROUP_DEVIATION_MIN;
    while (number < GROUP_DEVIATION_MAX) {
        const uint32_t half = UINT32_C(1) << (GROUP_DEVIATION_SHIFT - 1);
        float edge = group_from_bits((number << GROUP_DEVIATION_SHIFT) + half);
        float square = edge * edge;
        if (variance <= square) break;
        number++;
    }
    return number;
}

/* The base 2 logarithm of a number of at least 1, within 0.09. */
static float group_logarithm(float value)
{
    return (float)(group_to_bits(value) - 0x3f800000u) * (1.0f / 8388608.0f);
}

static uint16_t group_bf16(float value)
{
    uint32_t bits = group_to_bits(value);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static void group_sum_channels(const entropy_group *group, const entropy_kernels *kernels,
                               const uint8_t *source, const entropy_entries *entries)
{
    float values[ENTROPY_RUN];
    const uint32_t element = kvt_dtype_bytes(group->shape->dtype);
    const uint32_t row = group->shape->row;
    memset(entries->sums, 0, row * sizeof(float));
    memset(entries->squares, 0, row * sizeof(float));
    kernels->load(group->shape->dtype, source, row, entries->pilots);
    for (uint32_t token = 1; token < group->tokens; token++) {
        const uint8_t *line = source + (uint64_t)token * row * element;
        for (uint32_t first = 0; first < row; first += ENTROPY_RUN) {
            uint32_t count = row - first < ENTROPY_RUN ? row - first : ENTROPY_RUN;
            kernels->load(group->shape->dtype, line + (uint64_t)first * element, count, values);
            kernels->add_channels(values, entries->pilots + first, count, entries->sums + first,
                                  entries->squares + first);
        }
    }
}

/* Adds sixteen parts pairwise: 8 and 8, 4 and 4, and so on. */
static float group_add_parts(float parts[ENTROPY_PARTS])
{
    for (uint32_t half = ENTROPY_PARTS / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            parts[i] = parts[i] + parts[i + half];
        }
    }
    return parts[0];
}

static void group_sum_tokens(const entropy_group *group, const entropy_kernels *kernels,
                             const uint8_t *source, const entropy_entries *entries)
{
    float values[ENTROPY_RUN];
    const uint32_t element = kvt_dtype_bytes(group->shape->dtype);
    const uint32_t row = group->shape->row;
    for (uint32_t token = 0; token < group->tokens; token++) {
        const uint8_t *line = source + (uint64_t)token * row * element;
        float sums[ENTROPY_PARTS] = {0};
        float squares[ENTROPY_PARTS] = {0};
        for (uint32_t first = 0; first < row; first += ENTROPY_RUN) {
            uint32_t count = row - first < ENTROPY_RUN ? row - first : ENTROPY_RUN;
            kernels->load(group->shape->dtype, line + (uint64_t)first * element, count, values);
            if (first == 0) entries->pilots[token] = values[0];
            kernels->add_token(values, entries->pilots[token], count, sums, squares);
        }
        entries->sums[token] = group_add_parts(sums);
        entries->squares[token] = group_add_parts(squares);
    }
}

/* Turns the sums into means (in means) and variances about them (in squares). False when a value
 * is not finite or too large. */
static bool group_settle_moments(const entropy_entries *entries, uint32_t count, uint32_t samples)
{
    const float over = 1.0f / (float)samples;
    bool finite = true;
    for (uint32_t i = 0; i < count; i++) {
        float shift = entries->sums[i] * over;
        float square = shift * shift;
        float variance = entries->squares[i] * over;
        variance = variance - square;
        if (variance < GROUP_VARIANCE_MIN) variance = 0.0f;
        entries->means[i] = entries->pilots[i] + shift;
        entries->squares[i] = variance;
        /* A NaN variance is not below the minimum and stays. */
        finite = finite && group_is_finite(entries->means[i]) && group_is_finite(variance);
    }
    return finite;
}

/* Means are stored when the bits that they save at equal error, half a logarithm of
 * 1 + mean^2 / variance an element, are more than they cost. */
static uint32_t group_choose_mode(const entropy_entries *entries, uint32_t count, uint32_t samples)
{
    float saved = 0.0f;
    bool far = false;
    for (uint32_t i = 0; i < count; i++) {
        float size = group_size(entries->means[i]);
        float variance = entries->squares[i];
        if (size == 0.0f) continue;
        float reach = 15.5f * group_deviation(group_deviation_number(variance));
        far = far || size > reach;
        float square = size * size;
        float ratio = variance > 0.0f ? square / variance : 4294967296.0f;
        ratio = ratio < 4294967296.0f ? ratio : 4294967296.0f;
        saved = saved + group_logarithm(1.0f + ratio);
    }
    saved = saved * 0.5f * (float)samples;
    if (far) return saved > 16.0f * (float)count ? GROUP_MEAN_BF16 : GROUP_MEAN_NONE;
    return saved > 8.0f * (float)count ? GROUP_MEAN_EIGHTHS : GROUP_MEAN_NONE;
}

/* The variance about what will be stored of the mean. */
static float group_final_variance(uint32_t mode, float mean, float variance)
{
    if (mode == GROUP_MEAN_EIGHTHS) return variance; /* an eighth's half adds 0.4 % */
    float rest = mean;
    if (mode == GROUP_MEAN_BF16) rest = mean - group_from_bits((uint32_t)group_bf16(mean) << 16);
    float square = rest * rest;
    return variance + square;
}

static int32_t group_mean_eighths(float mean, float deviation)
{
    if (deviation == 0.0f) return 0;
    float eighths = mean / (deviation * 0.125f);
    eighths = eighths < GROUP_MEAN_LIMIT ? eighths : GROUP_MEAN_LIMIT;
    eighths = eighths > -GROUP_MEAN_LIMIT ? eighths : -GROUP_MEAN_LIMIT;
    eighths = eighths + GROUP_ROUNDER;
    eighths = eighths - GROUP_ROUNDER;
    return (int32_t)eighths;
}

/* Writes head and deviations, and leaves the deviations in entries. False: not taken. */
static bool group_write_deviations(const entropy_entries *entries, uint32_t count, uint32_t mode,
                                   uint8_t *meta)
{
    uint32_t largest = GROUP_DEVIATION_MIN;
    for (uint32_t i = 0; i < count; i++) {
        float variance = group_final_variance(mode, entries->means[i], entries->squares[i]);
        if (!group_is_finite(variance)) return false;
        entries->squares[i] = variance;
        uint32_t number = group_deviation_number(variance);
        largest = number > largest ? number : largest;
    }
    uint32_t base = GROUP_DEVIATION_MIN - 1;
    if (largest > base + 255) base = largest - 255;
    uint16_t stored = (uint16_t)base;
    memcpy(meta, &stored, sizeof stored);
    meta[2] = (uint8_t)mode;
    meta[3] = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = group_deviation_number(entries->squares[i]);
        if (number != 0 && number <= base) number = base + 1;
        entries->deviations[i] = group_deviation(number);
        meta[ENTROPY_GROUP_HEAD_BYTES + i] = (uint8_t)(number == 0 ? 0 : number - base);
    }
    return true;
}

uint64_t entropy_group_measure(const entropy_group *group, const entropy_kernels *kernels,
                               const uint8_t *source, const entropy_entries *entries, uint8_t *meta)
{
    const uint32_t count = entropy_group_entries(group);
    const bool channels = group->axis == ENTROPY_AXIS_CHANNEL;
    const uint32_t samples = channels ? group->tokens : group->shape->row;
    if (channels) {
        group_sum_channels(group, kernels, source, entries);
    } else {
        group_sum_tokens(group, kernels, source, entries);
    }
    if (!group_settle_moments(entries, count, samples)) return 0;
    uint32_t mode = group_choose_mode(entries, count, samples);
    if (!group_write_deviations(entries, count, mode, meta)) return 0;
    uint8_t *means = meta + ENTROPY_GROUP_HEAD_BYTES + count;
    for (uint32_t i = 0; i < count && mode == GROUP_MEAN_EIGHTHS; i++) {
        means[i] = (uint8_t)group_mean_eighths(entries->means[i], entries->deviations[i]);
    }
    for (uint32_t i = 0; i < count && mode == GROUP_MEAN_BF16; i++) {
        uint16_t mean = group_bf16(entries->means[i]);
        memcpy(means + 2 * (uint64_t)i, &mean, sizeof mean);
    }
    return ENTROPY_GROUP_HEAD_BYTES + (uint64_t)count * (1 + mode);
}

uint64_t entropy_group_bytes(const entropy_group *group, const uint8_t *source, uint64_t bytes)
{
    uint16_t base;
    if (bytes < ENTROPY_GROUP_HEAD_BYTES) return 0;
    memcpy(&base, source, sizeof base);
    if (base < GROUP_DEVIATION_MIN - 1 || base >= GROUP_DEVIATION_MAX) return 0;
    if (source[2] > GROUP_MEAN_BF16 || source[3] != 0) return 0;
    uint64_t need =
        ENTROPY_GROUP_HEAD_BYTES + (uint64_t)entropy_group_entries(group) * (1u + source[2]);
    return need <= bytes ? need : 0;
}

bool entropy_group_read(const entropy_group *group, const uint8_t *source,
                        const entropy_entries *entries)
{
    const uint32_t count = entropy_group_entries(group);
    const uint8_t *deviations = source + ENTROPY_GROUP_HEAD_BYTES;
    const uint8_t *means = deviations + count;
    const uint32_t mode = source[2];
    uint16_t base;
    uint32_t largest = 0;
    bool finite = true;
    memcpy(&base, source, sizeof base);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = deviations[i] == 0 ? 0 : (uint32_t)base + deviations[i];
        largest = number > largest ? number : largest;
        entries->deviations[i] = group_deviation(number);
    }
    if (mode == GROUP_MEAN_NONE) memset(entries->means, 0, count * sizeof(float));
    for (uint32_t i = 0; i < count && mode == GROUP_MEAN_EIGHTHS; i++) {
        float eighth = entries->deviations[i] * 0.125f;
        entries->means[i] = (float)(int8_t)means[i] * eighth;
    }
    for (uint32_t i = 0; i < count && mode == GROUP_MEAN_BF16; i++) {
        uint16_t mean;
        memcpy(&mean, means + 2 * (uint64_t)i, sizeof mean);
        entries->means[i] = group_from_bits((uint32_t)mean << 16);
        finite = finite && group_is_finite(entries->means[i]);
    }
    return finite && largest <= GROUP_DEVIATION_MAX;
}
