/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels.h - the arithmetic of codec 5 on runs of elements, for each instruction set.
 *
 * Every operation is one rounded fp32 operation, the same in all forms: sums over tokens are taken
 * in token order; sums over channels in sixteen parts (part i has the channels i mod 16) that are
 * then added pairwise, halves first. Re-entrant.
 */
#ifndef CODECS_ENTROPY_KERNELS_H
#define CODECS_ENTROPY_KERNELS_H

#include <kvterrace/types.h>

#include <string.h>

enum { ENTROPY_PARTS = 16, ENTROPY_RUN = 512 };

/* How elements become codes: see entropy.h. */
typedef struct entropy_rounding {
    float third; /* 1 / 3^j, or 0 when j is 0 */
} entropy_rounding;

/*
 * How symbols become values: (symbol - centre) * scale + offset, where offset = mean - 128 * scale.
 * The centre is 0 or, where cells come back at their centre of mass, how far that is above the
 * middle of the code's cell; the code is limited to -4 .. 3 for this: centres[code mod 8]. Values
 * are clamped to limit, the largest finite one of the dtype, and rounded to nearest: of bf16, ties
 * away from zero (which costs one operation in place of four), of fp16, ties to even.
 */
enum { ENTROPY_CENTRES = 8 };

typedef struct entropy_recon {
    float centres[ENTROPY_CENTRES];
    float limit;
    bool shifted; /* some centre is not 0 */
    bool clamp;   /* some value may be beyond the limit */
    bool stream;  /* write past the caches where the target is aligned to 64 */
} entropy_recon;

typedef struct entropy_kernels {
    /* Elements to fp32. */
    void (*load)(uint8_t dtype, const uint8_t *source, uint32_t count, float *values);

    /* ENTROPY_RUN times the value. */
    void (*spread)(float value, float *values);

    /* sums[i] += d, squares[i] += d * d with d = values[i] - pilots[i]. */
    void (*add_channels)(const float *values, const float *pilots, uint32_t count, float *sums,
                         float *squares);

    /* The same for one pilot, into sixteen parts; count is a multiple of 16 but in the last call
     * for a row. */
    void (*add_token)(const float *values, float pilot, uint32_t count, float *sums,
                      float *squares);

    /* symbols[i] = code + 128, or 0 for a code outside -127 .. 127; codes[i] = the code. Returns
     * whether there is such a code. count is at most ENTROPY_RUN. */
    bool (*quantise)(const float *values, const float *means, const float *inverses, uint32_t count,
                     const entropy_rounding *rounding, int16_t *codes, uint8_t *symbols);

    /* Elements of symbols; returns whether a 0 is among them, whose value is not sound. */
    bool (*restore)(uint8_t dtype, const uint8_t *symbols, const float *offsets,
                    const float *scales, uint32_t count, const entropy_recon *recon,
                    uint8_t *target);
} entropy_kernels;

extern const entropy_kernels entropy_kernels_scalar;
extern const entropy_kernels entropy_kernels_avx2;
extern const entropy_kernels entropy_kernels_avx512;

/* Orders what was written past the caches before what comes after. */
static inline void entropy_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

/* Writes one finite value of at most the dtype's largest, rounded as above. */
static inline void entropy_store_element(uint8_t dtype, float value, uint8_t *target)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, &bits, sizeof bits);
        return;
    }
    uint32_t half = (bits + 0x8000u) >> 16;
    if (dtype == KVT_DTYPE_FP16) {
        uint32_t size = bits & 0x7fffffffu;
        uint32_t normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
        /* Below 2^-14 the adder of 0.5 rounds to the subnormal step of 2^-24. */
        float small;
        memcpy(&small, &size, sizeof small);
        small = small + 0.5f;
        memcpy(&half, &small, sizeof half);
        half = size < 113u << 23 ? half - 0x3f000000u : normal;
        half |= bits >> 16 & 0x8000u;
    }
    uint16_t stored = (uint16_t)half;
    memcpy(target, &stored, sizeof stored);
}

/* The ones of the level in use. */
const entropy_kernels *entropy_kernels_choose(void);

#endif
