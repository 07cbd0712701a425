/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.h - the checksum of a record: XXH3 with 64 bits of output, as libxxhash computes it.
 *
 * The library is the specification, and what the scalar level calls. Distributions build it for
 * the baseline processor; the other levels are the same header, compiled for wider vectors.
 * checksum_copy moves bytes and takes their checksum in one pass: beyond the caches either of the
 * two costs as much as both.
 *
 * Re-entrant.
 */
#ifndef CODECS_CHECKSUM_H
#define CODECS_CHECKSUM_H

#include "codecs/codecs.h"
#include "cpu.h"

/* A copy of so many bytes or more is written past the caches: nobody reads the target soon. */
#define CHECKSUM_STREAM_BYTES UINT64_C(262144)

/* Bytes that are taken together: they stay in the first cache. */
enum { CHECKSUM_PIECE = 16384 };

/* Takes `bytes` bytes, which lie at `at` of the source. */
typedef void (*checksum_take)(const void *context, uint64_t at, uint64_t bytes,
                              const uint8_t *piece);

/* Memory that is read after a copy: its lines are asked for while the copy goes on. A burst of so
 * many requests would wait for the processor's few buffers. */
typedef struct checksum_next {
    const uint8_t *runs[2]; /* CHECKSUM_NEXT_BYTES each */
} checksum_next;

enum { CHECKSUM_NEXT_BYTES = 4096 };

typedef struct checksum_kernels {
    uint64_t (*of)(const void *bytes, uint64_t count);
    uint64_t (*copy)(void *target, const void *source, uint64_t count, const void *after,
                     uint64_t after_count, bool stream, const checksum_next *next);
    uint64_t (*walk)(const void *source, uint64_t count, uint64_t after_count, checksum_take take,
                     const void *context);
} checksum_kernels;

extern const checksum_kernels checksum_kernels_scalar;
#if defined(__x86_64__)
extern const checksum_kernels checksum_kernels_avx2;
extern const checksum_kernels checksum_kernels_avx512;
#endif

/* The checksum of `count` bytes. */
uint64_t checksum_of(const void *bytes, uint64_t count);

/* Copies `count` bytes; gives the checksum of them and of the bytes `after`. stream: the target is
 * written past the caches, and other threads see all of it. next: NULL, or what a streamed copy
 * asks for. */
uint64_t checksum_copy(void *target, const void *source, uint64_t count, const void *after,
                       uint64_t after_count, bool stream, const checksum_next *next);

/* Gives `count` bytes to `take`, piece by piece; the checksum of them and of the `after_count`
 * bytes behind them. */
uint64_t checksum_walk(const void *source, uint64_t count, uint64_t after_count, checksum_take take,
                       const void *context);

#endif
