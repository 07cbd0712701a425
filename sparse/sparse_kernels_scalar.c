/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_kernels_scalar.c - the specification of the kernels, and the choice between them.
 */
#include "sparse_kernels.h"

#include <math.h>

static float element(const void *row, uint32_t i, uint8_t dtype)
{
    float value;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(&value, (const uint8_t *)row + 4 * (size_t)i, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, (const uint8_t *)row + 2 * (size_t)i, sizeof half);
    return dtype == KVT_DTYPE_FP16 ? half_to_float(half) : half_bf16_to_float(half);
}

enum { SOUND_CHUNK = 64 }; /* bytes: loops of whole vectors, as a compiler sees */

/* Without its sign an element's bits ascend with its size: the larger, by lane. */
static void sound_halves(const uint8_t *at, int16_t *largest)
{
    int16_t bits[SOUND_CHUNK / 2];
    memcpy(bits, at, sizeof bits);
    for (int i = 0; i < SOUND_CHUNK / 2; i++) {
        const int16_t size = (int16_t)(bits[i] & INT16_MAX);
        largest[i] = largest[i] > size ? largest[i] : size;
    }
}

static void sound_words(const uint8_t *at, int32_t *beyond)
{
    const int32_t most = 0x7149f2ca; /* 1e30 */
    int32_t bits[SOUND_CHUNK / 4];
    memcpy(bits, at, sizeof bits);
    for (int i = 0; i < SOUND_CHUNK / 4; i++)
        beyond[i] |= (bits[i] & INT32_MAX) > most;
}

bool sparse_rows_are_sound(const void *rows, uint64_t bytes, uint8_t dtype)
{
    const int16_t most = dtype == KVT_DTYPE_FP16 ? 0x7bff : 0x7149; /* 1e30 of bf16 */
    const uint64_t whole = bytes - bytes % SOUND_CHUNK;
    int16_t largest[SOUND_CHUNK / 2] = {0};
    int32_t beyond[SOUND_CHUNK / 4] = {0};
    uint8_t last[SOUND_CHUNK] = {0};
    bool sound = true;
    if (dtype == KVT_DTYPE_FP8 || bytes == 0) return true; /* of FP8 nothing is computed */
    memcpy(last, (const uint8_t *)rows + whole, bytes - whole);
    if (dtype == KVT_DTYPE_FP32) {
        for (uint64_t at = 0; at < whole; at += SOUND_CHUNK)
            sound_words((const uint8_t *)rows + at, beyond);
        sound_words(last, beyond);
    } else {
        for (uint64_t at = 0; at < whole; at += SOUND_CHUNK)
            sound_halves((const uint8_t *)rows + at, largest);
        sound_halves(last, largest);
    }
    for (int i = 0; i < SOUND_CHUNK / 2; i++)
        sound = sound && largest[i] <= most && beyond[i / 2] == 0;
    return sound;
}

static void scalar_widen(const void *row, uint32_t count, uint8_t dtype, float *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const float value = element(row, i, dtype);
        out[i] = fabsf(value) <= SPARSE_ELEMENT_MAX ? value : 0.0f;
    }
}

static void scalar_assign(const int16_t *rows, uint32_t tokens, uint32_t head_dim,
                          const int16_t *centroids, const int32_t *norms, uint32_t blocks,
                          uint16_t *owner)
{
    for (uint32_t t = 0; t < tokens; t++, rows += head_dim) {
        int32_t best = INT32_MIN;
        owner[t] = 0;
        for (uint32_t c = 0; c < blocks * SPARSE_BLOCK; c++) {
            const int16_t *at = centroids + (size_t)(c / SPARSE_BLOCK) * head_dim * SPARSE_BLOCK +
                                (c % SPARSE_BLOCK) * 2;
            int32_t sum = 0;
            for (uint32_t d = 0; d < head_dim; d += 2, at += 2 * SPARSE_BLOCK)
                sum += rows[d] * at[0] + rows[d + 1] * at[1];
            if (norms[c] == INT32_MAX || 2 * sum - norms[c] <= best) continue;
            best = 2 * sum - norms[c];
            owner[t] = (uint16_t)c;
        }
    }
}

static void scalar_score(const int8_t *rows, const uint32_t *list, uint32_t count,
                         uint32_t head_dim, const int16_t *folded, uint32_t group,
                         const float *unit, size_t width, float *out)
{
    for (uint32_t c = 0; c < count; c++) {
        const int8_t *row = rows + (size_t)(list != NULL ? list[c] : c) * head_dim;
        for (uint32_t g = 0; g < group; g++) {
            int32_t sum = 0;
            for (uint32_t d = 0; d < head_dim; d++)
                sum += row[d] * folded[(size_t)g * head_dim + d];
            out[g * width + c] = (float)sum * unit[g];
        }
    }
}

static void scalar_sketch(const uint8_t *sketches, uint32_t blocks, uint32_t axes,
                          const int8_t *folded, uint32_t group, size_t width, int16_t *sums,
                          int16_t *peaks)
{
    for (uint32_t g = 0; g < group; g++)
        peaks[g] = INT16_MIN;
    for (uint32_t c = 0; c < blocks * SPARSE_BLOCK; c++) {
        const uint8_t *own = sketches + (size_t)(c / SPARSE_BLOCK) * axes / 2 * SPARSE_BLOCK +
                             (size_t)(c % SPARSE_BLOCK) * 2;
        for (uint32_t g = 0; g < group; g++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < axes; i++) {
                const uint8_t both = own[(size_t)(i / 4) * 2 * SPARSE_BLOCK + i % 2];
                sum += (i % 4 < 2 ? both & 15 : both >> 4) *
                       folded[((size_t)(i / 2) * group + g) * 4 + i % 2];
            }
            sums[g * width + c] = (int16_t)sum;
            if (sum > peaks[g]) peaks[g] = (int16_t)sum;
        }
    }
}

static void scalar_keys(const int16_t *sums, size_t width, uint32_t count, const int16_t *offset,
                        uint32_t group, int16_t *out)
{
    for (uint32_t c = 0; c < count; c++) {
        int32_t key = INT16_MIN;
        for (uint32_t g = 0; g < group; g++) {
            const int32_t own = sums[g * width + c] + offset[g];
            key = own > key ? own : key;
        }
        out[c] = (int16_t)(key < INT16_MAX ? key : INT16_MAX);
    }
}

static uint32_t scalar_sieve(const int16_t *keys, uint32_t count, int16_t least, uint32_t *out)
{
    uint32_t found = 0;
    for (uint32_t c = 0; c < count; c++)
        if (keys[c] >= least) out[found++] = c;
    return found;
}

static void scalar_lift(const float *scatter, float deviation, uint32_t width, float *scores)
{
    for (uint32_t c = 0; c < width; c++)
        scores[c] += sparse_lift(deviation * scatter[c]);
}

static float scalar_weigh(float *scores, const uint32_t *tokens, uint32_t width, float largest)
{
    float lane[SPARSE_LANES] = {0.0f};
    for (uint32_t c = 0; c < width; c++) {
        scores[c] = (float)(int32_t)tokens[c] * sparse_exp(scores[c] - largest);
        lane[c % SPARSE_LANES] += scores[c];
    }
    return sparse_lanes_sum(lane);
}

static float scalar_largest(const float *scores, const uint32_t *tokens, uint32_t width)
{
    float largest = -INFINITY;
    for (uint32_t c = 0; c < width; c++)
        if (tokens[c] != 0 && scores[c] > largest) largest = scores[c];
    return largest;
}

static void scalar_add(const float *row, float share, uint32_t width, float *sums)
{
    for (uint32_t i = 0; i < width; i++)
        sums[i] += row[i] * share;
}

static void scalar_blend(const int8_t *const *rows, uint32_t count, uint32_t head_dim,
                         const float *weight, uint32_t group, float *output)
{
    int16_t steps[SPARSE_BLEND];
    for (uint32_t g = 0; g < group; g++) {
        const float unit = sparse_blend_steps(weight + (size_t)g * SPARSE_BLEND, count, steps);
        for (uint32_t d = 0; d < head_dim; d++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < count; i++)
                sum += steps[i] * rows[i][d];
            output[(size_t)g * head_dim + d] += (float)sum * unit;
        }
    }
}

static void scalar_dots(const void *rows, uint64_t stride, uint32_t tokens, uint8_t dtype,
                        const float *query, uint32_t head_dim, float scale, float *out)
{
    for (uint32_t t = 0; t < tokens; t++) {
        const void *row = (const uint8_t *)rows + t * stride;
        float lane[SPARSE_LANES] = {0.0f};
        for (uint32_t d = 0; d < head_dim; d++)
            lane[d % SPARSE_LANES] += query[d] * element(row, d, dtype);
        out[t] = scale * sparse_lanes_sum(lane);
    }
}

static void scalar_combine(const void *rows, uint64_t stride, uint32_t tokens, uint8_t dtype,
                           const float *weight, uint32_t head_dim, float *sums)
{
    for (uint32_t t = 0; t < tokens; t++) {
        const void *row = (const uint8_t *)rows + t * stride;
        for (uint32_t d = 0; d < head_dim; d++)
            sums[d] += weight[t] * element(row, d, dtype);
    }
}

const sparse_kernels sparse_kernels_scalar = {
    .widen = scalar_widen,
    .assign = scalar_assign,
    .score = scalar_score,
    .sketch = scalar_sketch,
    .keys = scalar_keys,
    .sieve = scalar_sieve,
    .lift = scalar_lift,
    .weigh = scalar_weigh,
    .largest = scalar_largest,
    .add = scalar_add,
    .blend = scalar_blend,
    .dots = scalar_dots,
    .combine = scalar_combine,
};

const sparse_kernels *sparse_kernels_in_use(void)
{
#if defined(__x86_64__)
    if (codecs_cpu_level() >= CODECS_CPU_AVX2) return &sparse_kernels_avx2;
#endif
    return &sparse_kernels_scalar;
}
