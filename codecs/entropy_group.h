/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_group.h - deviations and means of a group, a run of up to 256 tokens of a matrix.
 *
 * A group has one entry per channel or per token. Stored:
 *
 *   +-----------+-----------+------+------------------------+---------------------------------+
 *   | base, u16 | mode, u8  | 0    | deviation, u8 an entry | mean, mode bytes an entry       |
 *   +-----------+-----------+------+------------------------+---------------------------------+
 *
 *   deviation  0: zero. Else the fp32 whose exponent and 3 leading mantissa bits are the number
 *              base + deviation: steps of 6 to 12 %.
 *   mean       mode 0: all zero. Mode 1: int8, in eighths of the deviation. Mode 2: bf16.
 *
 * Where the mean is not stored the deviation counts it in. Re-entrant.
 */
#ifndef CODECS_ENTROPY_GROUP_H
#define CODECS_ENTROPY_GROUP_H

#include "codecs/kernels/entropy_kernels.h"
#include "entropy.h"

enum { ENTROPY_GROUP_TOKENS = 256, ENTROPY_GROUP_HEAD_BYTES = 4 };

/* Per entry. All arrays have room for max(row, ENTROPY_GROUP_TOKENS) entries. */
typedef struct entropy_entries {
    float *pilots;
    float *sums;
    float *squares;
    float *means;
    float *deviations;
} entropy_entries;

/* A group in place. */
typedef struct entropy_group {
    const entropy_shape *shape;
    entropy_axis axis;
    uint32_t tokens;
} entropy_group;

static inline uint32_t entropy_group_entries(const entropy_group *group)
{
    return group->axis == ENTROPY_AXIS_CHANNEL ? group->shape->row : group->tokens;
}

/* Measures the group whose first row is source and writes its stored form; meta has room for
 * ENTROPY_GROUP_HEAD_BYTES + 3 per entry. Returns its bytes, or 0 for values that are not taken. */
uint64_t entropy_group_measure(const entropy_group *group, const entropy_kernels *kernels,
                               const uint8_t *source, const entropy_entries *entries,
                               uint8_t *meta);

/* The stored bytes of a group that starts at source; 0 when it is not sound or does not fit. */
uint64_t entropy_group_bytes(const entropy_group *group, const uint8_t *source, uint64_t bytes);

/* Fills means and deviations from a stored group whose bytes are known. False = not sound. */
bool entropy_group_read(const entropy_group *group, const uint8_t *source,
                        const entropy_entries *entries);

#endif
