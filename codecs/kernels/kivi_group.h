/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group.h - groups of elements quantised between their minimum and maximum: what kivi and
 * planes share.
 *
 * A matrix of `tokens` rows is cut into groups of up to G elements, along the columns (one channel,
 * a run of tokens) or along the rows (one token, a run of channels inside a unit: the row or one
 * head). Per group, with x the element in fp32 and h() rounding to fp16:
 *
 *   minimum = h(smallest x)           scale = h(h(largest x - minimum) / M)      M = 2^bits - 1
 *   r = h(h(x - minimum) / scale)     code = clamp(round half to even(r), 0, M)
 *
 * For fp16 input that is the published KIVI arithmetic, operation by operation; bf16 and fp32 go
 * through the same. A constant group has scale 0 and code 0. A matrix is refused (KVT_RAW) when an
 * element is NaN or infinite, or a minimum or a range does not fit fp16.
 *
 * Fine coding (planes) has M = 15 and cuts the cell of each code into 16: see group_fine_code.
 *
 * Codes are stored in planes of 1, 2, 4 or 8 bits. The elements of the matrix, token-major, are cut
 * into chunks of 64, the last one shorter (a multiple of 8). With n elements in a chunk and w bits:
 * w = 1: element i is bit i % 8 of byte i / 8. Otherwise the n * w / 8 bytes hold element i in byte
 * i % (n * w / 8), at bit w * (i / (n * w / 8)).
 *
 * The scalar kernels are the specification; the others give the same bytes. Re-entrant.
 */
#ifndef CODECS_KIVI_GROUP_H
#define CODECS_KIVI_GROUP_H

#include "codecs/codecs.h"
#include "codecs/view_rows.h"
#include "cpu.h"

enum {
    GROUP_CHUNK = 64,
    GROUP_BATCH_ROWS = 8,        /* rows that are coded together: whole chunks whatever the width */
    GROUP_SPREAD = 4096,         /* elements whose ranges are spread together */
    GROUP_OPEN_ROWS = 64,        /* rows whose groups along the rows are opened together */
    GROUP_SAMPLE = 16384,        /* elements that fine statistics are taken from, at least */
    GROUP_SAMPLE_BATCHES = 4,    /* from that many batches, at least */
    GROUP_STREAM_BYTES = 262144, /* a target this large is written past the caches */
    GROUP_TILE_BYTES = 32768     /* rows of a target that has them apart, decoded together */
};

typedef struct group_shape {
    uint64_t tokens;
    uint64_t width; /* elements of a row, a multiple of 8 */
    uint64_t unit;  /* groups along the rows do not cross it; divides the width */
    uint32_t group; /* G: 32, 64 or 128; less where kernels see rows put together */
    uint8_t dtype;  /* KVT_DTYPE_FP16, BF16 or FP32 */
    bool columns;
} group_shape;

/* How an element becomes a code: below max_code, or fine. */
typedef struct group_coding {
    float max_code; /* M */
    bool fine;      /* codes are 8 bits: the 4-bit code and its cell's part */
} group_coding;

/* What a code stands for, in steps of the scale. */
typedef enum group_level_kind {
    GROUP_LEVEL_TABLE,  /* codes 0 .. 15 through `table` */
    GROUP_LEVEL_FINE6,  /* the upper 6 bits of a fine code, 0 .. 63 */
    GROUP_LEVEL_FINE8,  /* a fine code */
    GROUP_LEVEL_CODE16, /* the code itself, 0 .. 15; `table` says the same */
    GROUP_LEVEL_CODE256 /* the code itself */
} group_level_kind;

typedef struct group_levels {
    group_level_kind kind;
    bool half_steps; /* value = h(h(scale * level) + minimum), else in fp32 */
    bool stream;     /* the target is too large to stay in a cache */
    float table[16];
    uint8_t fine6[2][64]; /* of GROUP_LEVEL_FINE6: lower and upper bytes of levels in 1/64 */
} group_levels;

/* One stored plane: `bits` bits of every code from bit `shift` on. */
typedef struct group_plane {
    uint8_t bits;
    uint8_t shift;
    uint8_t *data;
} group_plane;

/* Minimum, scale and 1 / scale (0 for scale 0) of some groups. */
typedef struct group_ranges {
    float *minimum;
    float *scale;
    float *inverse;
} group_ranges;

/* Where decoded rows go: a row has its heads, of head_bytes each, head_stride apart. */
typedef struct group_target {
    uint8_t *start;
    uint64_t row_stride;
    uint64_t head_bytes; /* the whole row where it is one run */
    uint64_t head_stride;
} group_target;

typedef struct group_kernels {
    /* Smallest and largest element of every column of `rows` rows; false when one is not finite. */
    bool (*range_columns)(const group_shape *shape, const void *source, uint64_t rows, float *low,
                          float *high);
    /* The same of every group along `rows` rows. */
    bool (*range_rows)(const group_shape *shape, const void *source, uint64_t rows, float *low,
                       float *high);
    /* From low (in ranges->minimum) and high (in ranges->scale): metadata, and ranges for `code`,
     * where scale holds 128 times the inverse. False when one does not fit fp16. */
    bool (*finish)(const group_ranges *ranges, uint64_t count, float max_code, uint16_t *minima,
                   uint16_t *scales);
    /* Codes of `rows` rows. */
    void (*code)(const group_shape *shape, const group_coding *coding, const group_ranges *ranges,
                 const void *source, uint64_t rows, uint8_t *codes);
    /* Codes into all planes; offset = the first element's place in the matrix, at a chunk. */
    void (*pack)(const uint8_t *codes, uint64_t count, const group_plane *planes,
                 uint32_t plane_count, uint64_t offset);
    /* All planes into codes. */
    void (*unpack)(const group_plane *planes, uint32_t plane_count, uint64_t offset, uint64_t count,
                   uint8_t *codes);
    /* Metadata as floats. False when a minimum or a scale is not finite or a scale is negative. */
    bool (*open)(const uint16_t *minima, const uint16_t *scales, uint64_t count,
                 const group_ranges *ranges);
    void (*value)(const group_shape *shape, const group_levels *levels, const group_ranges *ranges,
                  const uint8_t *codes, uint64_t rows, void *target);
    /* Unpack and value in one pass; NULL: there is no such pass. False when it does not take the
     * shape or the target. */
    bool (*decode)(const group_shape *shape, const group_levels *levels, const group_ranges *ranges,
                   const group_plane *planes, uint32_t plane_count, uint64_t offset, uint64_t rows,
                   const group_target *target);
    /* Whether they want 64 elements at a time. */
    bool wide;
    /* After the last value. */
    void (*close)(void);
} group_kernels;

const group_kernels *group_kernels_in_use(void);
extern const group_kernels group_kernels_scalar;
#if defined(__x86_64__)
extern const group_kernels group_kernels_avx2;
extern const group_kernels group_kernels_avx512;
#endif

/* Whether the codecs of this file take a layout: elements, of fp8 by record_code.c, and a head_dim
 * that is a multiple of 8. */
static inline bool group_layout_fits(const kvt_layout *layout)
{
    return layout->dtype != KVT_DTYPE_OPAQUE && layout->head_dim % 8 == 0;
}

/* G of groups along the rows: a unit that is shorter is one group, and G where that is a G. */
static inline uint32_t group_in_unit(uint64_t unit, uint32_t group)
{
    return unit >= 32 && unit < group && (unit & (unit - 1)) == 0 ? (uint32_t)unit : group;
}

/* Groups of the whole matrix, and of `rows` rows along the rows. */
uint64_t group_count(const group_shape *shape);
uint64_t group_count_rows(const group_shape *shape, uint64_t rows);

/* Bytes of a plane of `bits` bits of the whole matrix. */
uint64_t group_plane_bytes(const group_shape *shape, uint32_t bits);

uint64_t group_scratch(const group_shape *shape);

/*
 * Encodes a matrix: minima and scales (group_count each) and the planes. histogram, when not NULL,
 * gets the counts of the fine codes of a sample of the rows, whatever `coding` says. planes NULL:
 * only checks. KVT_OK or KVT_RAW.
 */
kvt_status group_encode(const group_shape *shape, const group_coding *coding, const void *source,
                        uint16_t *minima, uint16_t *scales, const group_plane *planes,
                        uint32_t plane_count, uint32_t histogram[256], void *scratch);

/* KVT_OK, or KVT_E_CORRUPT when a minimum or a scale is not finite or a scale is negative. */
kvt_status group_decode(const group_shape *shape, group_levels *levels, const uint16_t *minima,
                        const uint16_t *scales, const group_plane *planes, uint32_t plane_count,
                        const view_rows *target, void *scratch);

/* The job of a matrix whose planes lie at the addresses of `parts` from the second one on, and its
 * minima at `minima`, as far as kivi and planes have the same. Members of kvt_codec.plan_job. */
kvt_status group_plan_job(const group_shape *shape, uint64_t minima, const kvt_part *parts,
                          uint32_t plane_count, const kernel_target *target,
                          uint32_t transfer_bytes, uint8_t dtype, kernel_work *work_out);

/* Makes the jobs of the ranges and codes of a matrix, as far as kivi and planes have the same; bits
 * of a code, which is below 2^bits. Members of kvt_codec.plan_code. */
kvt_status group_plan_code(const group_shape *shape, uint32_t bits, uint64_t minima,
                           const kvt_part *parts, uint32_t plane_count, const kernel_target *source,
                           uint32_t transfer_bytes, uint8_t dtype, kernel_work works_out[2]);

/* Of so many batches one is sampled for a histogram. */
uint64_t group_sample_step(const group_shape *shape);

/*
 * The fine code of an element. u = (x - minimum) / scale in whole 1/128, rounded down, so that no
 * part of a cell leans to one side; c = its 4-bit code. The cell of c, [c - 1/2, c + 1/2], is cut
 * into 16 equal parts. Only half of the first and of the last cell can be hit, so these halves are
 * cut into 16, and their outermost part stands for the minimum (maximum) itself: extremes stay
 * exact at every rate from 4 bits on.
 */
static inline uint8_t group_fine_code(int32_t u, int32_t c)
{
    int32_t inner = (u + 64) >> 3;
    int32_t low = (u + 2) >> 2;
    int32_t high = low - 225;
    int32_t code = inner < low ? inner : low;
    if (code < high) code = high;
    if (code < 16 * c) code = 16 * c;
    if (code > 16 * c + 15) code = 16 * c + 15;
    return (uint8_t)code;
}

/* The level of a fine code in 1/64: the middle of its part, in the outer cells its anchor. */
static inline int32_t group_fine_level(int32_t code)
{
    int32_t level = 4 * code - 30;
    if (level < 2 * code) level = 2 * code;
    if (level > 2 * code + 450) level = 2 * code + 450;
    return level;
}

/* The level of the upper 6 bits of a fine code in 1/64: the middle of its four parts, except that
 * the outermost levels stay on minimum and maximum. */
static inline int32_t group_fine6_level(int32_t code)
{
    if (code == 0) return 0;
    if (code == 63) return 960;
    return (group_fine_level(4 * code + 1) + group_fine_level(4 * code + 2)) / 2;
}

#endif
