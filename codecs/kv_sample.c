/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_sample.c - see kv_sample.h. Values are drawn eight lanes at a time (xorshift128+ without
 * multiplication), so that the compiler can keep the lanes in vector registers; every row tile
 * starts from its own hash, so that rows do not depend on each other. Any thread; no state.
 */
#include "kv_sample.h"

#include "base/half.h"

#include <assert.h>
#include <string.h>

enum {
    SAMPLE_TILE = 512, /* channels that share one start of the generator */
    SAMPLE_LANES = 8,
    SAMPLE_BYTES_RUN = 4096 /* bytes of an opaque entry per start of the generator */
};

#define SAMPLE_MODEL_SEED UINT64_C(0x6b76746572726163)

typedef struct sample_lanes {
    uint64_t a[SAMPLE_LANES];
    uint64_t b[SAMPLE_LANES];
} sample_lanes;

typedef struct sample_channels {
    float scale[SAMPLE_TILE]; /* standard deviation over the unit of sample_centred */
    float mean[SAMPLE_TILE];
} sample_channels;

static uint64_t sample_hash(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void sample_start(sample_lanes *lanes, uint64_t seed)
{
    for (unsigned i = 0; i < SAMPLE_LANES; i++) {
        lanes->a[i] = sample_hash(seed + 2 * i);
        lanes->b[i] = sample_hash(seed + 2 * i + 1) | 1; /* all-zero state would stay zero */
    }
}

/* Writes count random words, count a multiple of the lanes. */
static void sample_draw(sample_lanes *lanes, uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i += SAMPLE_LANES) {
        for (unsigned k = 0; k < SAMPLE_LANES; k++) {
            uint64_t a = lanes->a[k];
            uint64_t b = lanes->b[k];
            words[i + k] = a + b;
            a ^= a << 23;
            lanes->a[k] = b;
            lanes->b[k] = a ^ b ^ (a >> 18) ^ (b >> 5);
        }
    }
}

/* Near-gaussian integer: the sum of four 16-bit uniforms, mean zero, deviation 37837. */
static int32_t sample_centred(uint64_t word)
{
    uint64_t pairs =
        (word & UINT64_C(0x0000ffff0000ffff)) + ((word >> 16) & UINT64_C(0x0000ffff0000ffff));
    uint32_t sum = (uint32_t)pairs + (uint32_t)(pairs >> 32);
    return (int32_t)sum - 131070;
}

/* 2^(y / 65536), linear between powers of two: exact bits on every machine. */
static float sample_power_of_two(int32_t y)
{
    uint32_t whole = (uint32_t)((y >> 16) + 127);
    uint32_t bits = (whole << 23) | (((uint32_t)y & 0xffffu) << 7);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The model's part: deviation 2^(0.8 g - 1), and for one channel in ten a mean of 2 to 6 of
 * them, of either sign. */
static void sample_channels_fill(sample_channels *channels, uint32_t layer, kvt_side side,
                                 uint32_t first, uint32_t count)
{
    uint64_t model = sample_hash(SAMPLE_MODEL_SEED ^ ((uint64_t)layer << 1 | (uint64_t)side));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = sample_hash(model + 2 * (uint64_t)(first + i));
        uint64_t choice = sample_hash(model + 2 * (uint64_t)(first + i) + 1);
        /* 37837 / 65536 of a power per deviation of sample_centred; x 11 / 8 makes it 0.8. */
        int32_t power = sample_centred(word) * 11 / 8 - 65536;
        float deviation = sample_power_of_two(power);
        channels->scale[i] = deviation * (1.0f / 37837.0f);
        channels->mean[i] = 0.0f;
        if (choice % 10 == 0) {
            float times = 2.0f + (float)((choice >> 32) & 0xffffu) * (4.0f / 65536.0f);
            float mean = deviation * times;
            channels->mean[i] = choice >> 63 ? -mean : mean;
        }
    }
}

static uint16_t sample_bf16(uint32_t bits)
{
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Rounds to nearest even. The sample's values stay far below the largest fp16. */
static uint16_t sample_fp16(uint32_t bits)
{
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
    /* Below 2^-14 the adder of 0.5 rounds to the subnormal step of 2^-24. */
    float value;
    memcpy(&value, &size, sizeof value);
    value = value + 0.5f;
    uint32_t small;
    memcpy(&small, &value, sizeof small);
    small -= 0x3f000000u;
    return (uint16_t)(sign | (size < (113u << 23) ? small : normal));
}

/* One row of a tile. Product and sum are separate statements, so that no compiler fuses them. */
static void sample_row(const sample_channels *channels, const uint64_t *words, uint32_t count,
                       uint8_t dtype, uint8_t *target)
{
    uint32_t bits[SAMPLE_TILE];
    uint16_t half[SAMPLE_TILE];
    for (uint32_t i = 0; i < count; i++) {
        float value = (float)sample_centred(words[i]);
        value = value * channels->scale[i];
        value = value + channels->mean[i];
        memcpy(&bits[i], &value, sizeof value);
    }
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, bits, (size_t)count * sizeof bits[0]);
        return;
    }
    if (dtype == KVT_DTYPE_FP8) {
        for (uint32_t i = 0; i < count; i++) {
            target[i] = half_fp8_from_float(half_bits_float(bits[i]));
        }
        return;
    }
    if (dtype == KVT_DTYPE_BF16) {
        for (uint32_t i = 0; i < count; i++) {
            half[i] = sample_bf16(bits[i]);
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            half[i] = sample_fp16(bits[i]);
        }
    }
    memcpy(target, half, (size_t)count * sizeof half[0]);
}

static void sample_matrix(const kvt_layout *layout, uint64_t seed, uint32_t layer, kvt_side side,
                          uint8_t *target)
{
    const uint64_t width = (uint64_t)layout->kv_heads * layout->head_dim;
    const uint64_t element = kvt_dtype_bytes(layout->dtype);
    sample_channels channels;
    uint64_t words[SAMPLE_TILE];
    sample_lanes lanes;
    for (uint64_t first = 0; first < width; first += SAMPLE_TILE) {
        uint32_t count = (uint32_t)(width - first < SAMPLE_TILE ? width - first : SAMPLE_TILE);
        size_t draws = (count + SAMPLE_LANES - 1u) / SAMPLE_LANES * SAMPLE_LANES;
        sample_channels_fill(&channels, layer, side, (uint32_t)first, count);
        uint64_t part = sample_hash(seed ^ sample_hash((uint64_t)layer << 1 | (uint64_t)side)) +
                        sample_hash(first);
        for (uint64_t token = 0; token < layout->tokens; token++) {
            sample_start(&lanes, sample_hash(part + token));
            sample_draw(&lanes, words, draws);
            sample_row(&channels, words, count, layout->dtype,
                       target + (token * width + first) * element);
        }
    }
}

static void sample_bytes(uint64_t seed, uint8_t *target, uint64_t bytes)
{
    uint64_t words[SAMPLE_BYTES_RUN / sizeof(uint64_t)];
    sample_lanes lanes;
    for (uint64_t done = 0; done < bytes; done += SAMPLE_BYTES_RUN) {
        sample_start(&lanes, sample_hash(seed) + sample_hash(done));
        sample_draw(&lanes, words, sizeof words / sizeof words[0]);
        memcpy(target + done, words,
               bytes - done < SAMPLE_BYTES_RUN ? (size_t)(bytes - done) : SAMPLE_BYTES_RUN);
    }
}

void codecs_kv_sample_fill(const kvt_layout *layout, uint64_t seed, void *target)
{
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(layout, &bytes);
    assert(status == KVT_OK);
    (void)status;
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        sample_bytes(seed, target, bytes);
        return;
    }
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        for (uint32_t side = 0; side < kvt_layout_sides(layout); side++) {
            uint64_t offset = kvt_layout_matrix_offset(layout, layer, (kvt_side)side);
            sample_matrix(layout, seed, layer, (kvt_side)side, (uint8_t *)target + offset);
        }
    }
}
