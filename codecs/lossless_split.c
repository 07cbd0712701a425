/*
 * lossless_split.c - see lossless_split.h. Elements are loaded and stored through memcpy because
 * the caller's buffer need not be aligned. Re-entrant.
 */
#include "lossless_split.h"

#include <string.h>

static inline uint16_t split_load16(const uint8_t *source)
{
    uint16_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

static inline uint32_t split_load32(const uint8_t *source)
{
    uint32_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

static void split_sum_row(uint8_t dtype, const uint8_t *restrict source, uint32_t channels,
                          uint16_t *restrict sums)
{
    if (dtype == KVT_DTYPE_BF16) {
        for (uint32_t i = 0; i < channels; i++) {
            sums[i] = (uint16_t)(sums[i] + ((split_load16(source + 2 * (size_t)i) >> 7) & 0xffu));
        }
    } else if (dtype == KVT_DTYPE_FP16) {
        for (uint32_t i = 0; i < channels; i++) {
            sums[i] = (uint16_t)(sums[i] + ((split_load16(source + 2 * (size_t)i) >> 10) & 0x1fu));
        }
    } else {
        for (uint32_t i = 0; i < channels; i++) {
            sums[i] = (uint16_t)(sums[i] + ((split_load32(source + 4 * (size_t)i) >> 23) & 0xffu));
        }
    }
}

void lossless_tile_bases(const lossless_tile *tile, const uint8_t *source, uint8_t *bases)
{
    uint16_t sums[LOSSLESS_TILE_CHANNELS];
    memset(sums, 0, sizeof sums);
    for (uint32_t token = 0; token < tile->tokens; token++) {
        split_sum_row(tile->dtype, source + token * tile->stride_bytes, tile->channels, sums);
    }
    for (uint32_t i = 0; i < tile->channels; i++) {
        bases[i] = (uint8_t)((sums[i] + tile->tokens / 2) / tile->tokens);
    }
}

static void split_row_bf16(const uint8_t *restrict source, const uint8_t *restrict bases,
                           uint32_t channels, uint8_t *restrict high, uint8_t *restrict low)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint16_t x = split_load16(source + 2 * (size_t)i);
        high[i] = (uint8_t)(bases[i] - (x >> 7));
        low[i] = (uint8_t)(((x >> 8) & 0x80u) | (x & 0x7fu));
    }
}

static void merge_row_bf16(const uint8_t *restrict high, const uint8_t *restrict low,
                           const uint8_t *restrict bases, uint32_t channels,
                           uint8_t *restrict target)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint8_t exponent = (uint8_t)(bases[i] - high[i]);
        uint16_t x = (uint16_t)(((uint32_t)(low[i] & 0x80u) << 8) | ((uint32_t)exponent << 7) |
                                (low[i] & 0x7fu));
        memcpy(target + 2 * (size_t)i, &x, sizeof x);
    }
}

static void split_row_fp16(const uint8_t *restrict source, const uint8_t *restrict bases,
                           uint32_t channels, uint8_t *restrict high, uint8_t *restrict low)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint16_t x = split_load16(source + 2 * (size_t)i);
        uint32_t distance = (bases[i] - ((uint32_t)x >> 10)) << 3;
        high[i] =
            (uint8_t)((distance & 0xf8u) | (((uint32_t)x >> 13) & 4u) | (((uint32_t)x >> 8) & 3u));
        low[i] = (uint8_t)x;
    }
}

static void merge_row_fp16(const uint8_t *restrict high, const uint8_t *restrict low,
                           const uint8_t *restrict bases, uint32_t channels,
                           uint8_t *restrict target)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint32_t exponent = ((uint32_t)bases[i] - (high[i] >> 3)) & 0x1fu;
        uint16_t x = (uint16_t)(((uint32_t)(high[i] & 4u) << 13) | (exponent << 10) |
                                ((uint32_t)(high[i] & 3u) << 8) | low[i]);
        memcpy(target + 2 * (size_t)i, &x, sizeof x);
    }
}

static void split_row_fp32(const uint8_t *restrict source, const uint8_t *restrict bases,
                           uint32_t channels, uint8_t *restrict high, uint8_t *restrict top,
                           uint8_t *restrict middle, uint8_t *restrict low)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint32_t x = split_load32(source + 4 * (size_t)i);
        high[i] = (uint8_t)(bases[i] - (x >> 23));
        top[i] = (uint8_t)(((x >> 24) & 0x80u) | ((x >> 16) & 0x7fu));
        middle[i] = (uint8_t)(x >> 8);
        low[i] = (uint8_t)x;
    }
}

static void merge_row_fp32(const uint8_t *restrict high, const uint8_t *restrict top,
                           const uint8_t *restrict middle, const uint8_t *restrict low,
                           const uint8_t *restrict bases, uint32_t channels,
                           uint8_t *restrict target)
{
    for (uint32_t i = 0; i < channels; i++) {
        uint8_t exponent = (uint8_t)(bases[i] - high[i]);
        uint32_t x = ((uint32_t)(top[i] & 0x80u) << 24) | ((uint32_t)exponent << 23) |
                     ((uint32_t)(top[i] & 0x7fu) << 16) | ((uint32_t)middle[i] << 8) | low[i];
        memcpy(target + 4 * (size_t)i, &x, sizeof x);
    }
}

void lossless_tile_split(const lossless_tile *tile, const uint8_t *source, const uint8_t *bases,
                         uint8_t *const planes[LOSSLESS_PLANES_MAX])
{
    for (uint32_t token = 0; token < tile->tokens; token++) {
        const uint8_t *row = source + token * tile->stride_bytes;
        size_t at = (size_t)token * tile->channels;
        switch (tile->dtype) {
        case KVT_DTYPE_BF16:
            split_row_bf16(row, bases, tile->channels, planes[0] + at, planes[1] + at);
            break;
        case KVT_DTYPE_FP16:
            split_row_fp16(row, bases, tile->channels, planes[0] + at, planes[1] + at);
            break;
        default:
            split_row_fp32(row, bases, tile->channels, planes[0] + at, planes[1] + at,
                           planes[2] + at, planes[3] + at);
            break;
        }
    }
}

void lossless_tile_merge(const lossless_tile *tile,
                         const uint8_t *const planes[LOSSLESS_PLANES_MAX], const uint8_t *bases,
                         uint8_t *target)
{
    for (uint32_t token = 0; token < tile->tokens; token++) {
        uint8_t *row = target + token * tile->stride_bytes;
        size_t at = (size_t)token * tile->channels;
        switch (tile->dtype) {
        case KVT_DTYPE_BF16:
            merge_row_bf16(planes[0] + at, planes[1] + at, bases, tile->channels, row);
            break;
        case KVT_DTYPE_FP16:
            merge_row_fp16(planes[0] + at, planes[1] + at, bases, tile->channels, row);
            break;
        default:
            merge_row_fp32(planes[0] + at, planes[1] + at, planes[2] + at, planes[3] + at, bases,
                           tile->channels, row);
            break;
        }
    }
}
