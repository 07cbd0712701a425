/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast_kernels.h - the loops of lossless_fast.h, and of lossless_dense.h, over runs of up
 * to 512 elements, for each instruction set. All forms give the same bytes. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_FAST_KERNELS_H
#define CODECS_LOSSLESS_FAST_KERNELS_H

#include <kvterrace/types.h>

#include <string.h>

enum {
    FAST_RUN = 512,  /* elements handled together */
    FAST_PACK = 128, /* elements whose nibbles are packed together */
    FAST_FORM_BF16 = 0,
    FAST_FORM_FP16_NARROW = 1,
    FAST_FORM_FP16 = 2,
    FAST_FORM_FP32 = 3,
    FAST_FORM_FP8 = 4 /* of lossless_dense.h alone: not split and merged, but as below */
};

/* The parts of a run of elements. */
typedef struct fast_parts {
    uint8_t *exponents;
    uint8_t *lows;
    uint8_t *signs; /* FP16 only: 0 or 8 */
    uint8_t *pairs; /* FP16 only: two mantissa bits */
    uint8_t *wides; /* FP32 only: 16 low bits an element, unaligned */
} fast_parts;

/* The same, to be put together. */
typedef struct fast_view {
    const uint8_t *exponents;
    const uint8_t *lows;
    const uint8_t *signs;
    const uint8_t *pairs;
    const uint8_t *wides;
} fast_view;

/* Which exponents have codes. */
typedef struct fast_window {
    uint8_t base;
    uint8_t escape; /* 15 or 7 */
    bool with_zero; /* code 0 is exponent 0 */
} fast_window;

typedef struct fast_kernels {
    void (*split)(unsigned form, const uint8_t *source, uint32_t count, const fast_parts *parts);
    void (*merge)(unsigned form, const fast_view *parts, uint32_t count, uint8_t *target);

    /* Codes of exponents; returns whether an escape is among them. */
    bool (*code)(const uint8_t *exponents, uint32_t count, const fast_window *window,
                 uint8_t *codes);
    /* Exponents of codes (escapes give any); returns whether there is an escape. */
    bool (*uncode)(const uint8_t *codes, uint32_t count, const fast_window *window,
                   uint8_t *exponents);

    /* For lossless_dense.h: sums[i] += exponents[i], and target[i] = bases[i] - source[i]. */
    void (*add)(const uint8_t *exponents, uint32_t count, uint16_t *sums);
    void (*distance)(const uint8_t *bases, const uint8_t *source, uint32_t count, uint8_t *target);
    /* The same at once for bf16 elements: sums of exponents, and distances and lows. */
    void (*add_bf16)(const uint8_t *source, uint32_t count, uint16_t *sums);
    void (*part_bf16)(const uint8_t *source, const uint8_t *bases, uint32_t count,
                      uint8_t *distances, uint8_t *lows);

    /* Likewise for fp8 elements, whose lows are sign and mantissa, a nibble; and back. */
    void (*add_fp8)(const uint8_t *source, uint32_t count, uint16_t *sums);
    void (*part_fp8)(const uint8_t *source, const uint8_t *bases, uint32_t count,
                     uint8_t *distances, uint8_t *lows);
    void (*merge_fp8)(const uint8_t *bases, const uint8_t *symbols, const uint8_t *lows,
                      uint32_t count, uint8_t *target);

    /* Whole runs of FAST_PACK nibbles to half as many bytes, and back. */
    void (*pack)(const uint8_t *nibbles, uint8_t *packed);
    void (*unpack)(const uint8_t *packed, uint8_t *nibbles);

    /*
     * All of the above at once for whole runs of FAST_PACK bf16 elements, whose escape is 15; NULL
     * where there is no such form. They return the elements done: fewer than all whole runs when
     * the escapes have no room, or are too few, for a run. *escape_at is moved on. With stream the
     * target is aligned to 64 and written past the caches.
     */
    uint32_t (*encode_bf16)(const uint8_t *source, uint32_t count, const fast_window *window,
                            uint8_t *packed, uint8_t *lows, uint8_t **escape_at,
                            const uint8_t *escape_end);
    uint32_t (*decode_bf16)(const uint8_t *packed, const uint8_t *lows, uint32_t count,
                            const fast_window *window, const uint8_t **escape_at,
                            const uint8_t *escape_end, uint8_t *target, bool stream);
    /* For lossless_dense.h: whole registers of bf16 elements whose exponents are bases - symbols.
     * Returns the elements done. NULL as above. After streams the caller calls fast_fence. */
    uint32_t (*merge_bf16)(const uint8_t *bases, const uint8_t *symbols, const uint8_t *lows,
                           uint32_t count, uint8_t *target, bool stream);
} fast_kernels;

extern const fast_kernels fast_kernels_scalar;
extern const fast_kernels fast_kernels_avx2;
extern const fast_kernels fast_kernels_avx512;

const fast_kernels *fast_kernels_choose(void);

/* Orders what was written past the caches before what comes after. */
static inline void fast_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

#endif
