/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy.h - codec 5: a uniform quantiser and an order-0 entropy coder, for one matrix.
 *
 * A matrix is [tokens][row] elements of fp16, bf16 or fp32. Each channel (per run of 256 tokens) or
 * each token has a deviation, and where it pays a mean; an element becomes
 *
 *   code = nearest integer of (x - mean) / (step * deviation)
 *
 * and comes back as mean + code * step * deviation. Codes are coded with one static table per span
 * of about a million elements, its own or a given one, by interleaved rANS (rans.h).
 *
 * Steps nest in ratio 3: the code at step 3s is the code at step s divided by 3 and rounded to
 * nearest, exactly, so that entropy_derive_step3 gives byte for byte what encoding at 3s gives.
 * For this every step 3^j * b, b not divisible by 3, rounds at step b first and divides by 3^j.
 *
 * The matrix' bytes are at any address. Values must be finite, and sums of the squares of an
 * entry's distances must fit fp32 (sizes up to 2^58 do); a matrix with others is not taken
 * (KVT_RAW). Deviations below 2^-63 count as zero. Distances beyond 32767 of the inner step b clip;
 * that takes rows of more than 262144 channels.
 *
 * No state, no allocation; the caller gives scratch aligned to 64. Re-entrant.
 */
#ifndef CODECS_ENTROPY_H
#define CODECS_ENTROPY_H

#include "rans.h"
#include "view_rows.h"

enum {
    ENTROPY_STEP_ONE = 64, /* a step of one deviation */
    ENTROPY_STEP_MIN = 4,
    ENTROPY_STEP_MAX = 768,
    ENTROPY_ROW_MAX = 1 << 20 /* channels; wider matrices are not taken */
};

typedef enum entropy_axis {
    ENTROPY_AXIS_CHANNEL = 0, /* deviation and mean per channel, per run of 256 tokens */
    ENTROPY_AXIS_TOKEN = 1    /* per token */
} entropy_axis;

typedef struct entropy_settings {
    uint16_t step;  /* in 1/64 of a deviation, ENTROPY_STEP_MIN .. ENTROPY_STEP_MAX */
    uint8_t axis;   /* entropy_axis */
    bool centroids; /* come back at a cell's estimated centre of mass, not at its middle */
    /* NULL: every span has a table of its own codes. Else this one, which is sound; spans store it
     * all the same. */
    const rans_table *table;
} entropy_settings;

typedef struct entropy_shape {
    uint32_t tokens; /* at least 1 */
    uint32_t row;    /* channels of a token, at least 1 */
    uint8_t dtype;   /* KVT_DTYPE_FP16, BF16 or FP32 */
} entropy_shape;

/* An encoding that would not be smaller than the matrix is refused: the bound is its bytes. */
uint64_t entropy_bound(const entropy_shape *shape);

/* Scratch for each function below. */
uint64_t entropy_scratch_bytes(const entropy_shape *shape);

/* KVT_OK; KVT_RAW when the matrix would not shrink or is not taken (then target's content is
 * undefined); KVT_E_SPACE past capacity. Never writes past capacity. */
kvt_status entropy_encode(const entropy_settings *settings, const entropy_shape *shape,
                          const void *source, void *target, uint64_t capacity, void *scratch,
                          uint64_t *written_out);

/* Tokens of every span of a matrix but the last one; and the flags that an encoding's head has. */
uint64_t entropy_span_tokens(const entropy_shape *shape);
uint8_t entropy_flags(const entropy_settings *settings);

/* Whether step, axis and centroids of an encoding are those of the settings. */
bool entropy_agrees(const entropy_settings *settings, const void *source, uint64_t bytes);

/* Step, axis and centroids are read from the source. KVT_OK or KVT_E_CORRUPT. */
kvt_status entropy_decode(const entropy_shape *shape, const void *source, uint64_t bytes,
                          const view_rows *target, void *scratch);

/* Makes of an encoding at step s the one at 3s, with tables of its own codes. KVT_OK, KVT_E_CORRUPT
 * (3s above the largest step included), KVT_RAW, KVT_E_SPACE. */
kvt_status entropy_derive_step3(const entropy_shape *shape, const void *source, uint64_t bytes,
                                void *target, uint64_t capacity, void *scratch,
                                uint64_t *written_out);

/* For tables that are given: adds the counts of a matrix' symbols (code + 128; 0 counts codes
 * outside -127 .. 127), and makes a table of counts, whose sum is at least 1. Codes without a place
 * in a table are coded as escapes, so that any table serves any data. KVT_OK or KVT_RAW (not
 * taken). */
kvt_status entropy_count(const entropy_settings *settings, const entropy_shape *shape,
                         const void *source, void *scratch, uint32_t counts[256]);
void entropy_make_table(const uint32_t counts[256], rans_table *table);

#endif
