/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_rope.c - turns kept keys from their old positions to contiguous ones. See drop.h.
 *
 * Turning a key that stands at position p by (q - p) times each pair's frequency gives the key at
 * position q. Angles are counted in turns of 2^-64, so that a difference of positions multiplies
 * them exactly and whole turns fall away. Re-entrant.
 */
#include "drop.h"

#include "drop_number.h"
#include "element.h"

void drop_rope_frequencies(double base, uint32_t rotary_dim, double *frequencies)
{
    const double log_base = drop_log(base);
    for (uint32_t j = 0; j < rotary_dim / 2; j++) {
        const double share = (double)(2 * j) / (double)rotary_dim;
        frequencies[j] = drop_exp(-(share * log_base));
    }
}

/* Turns per position, in 2^-64. */
static uint64_t drop_turns_of(double frequency)
{
    const double turns = frequency * 0x1.45f306dc9c883p-3; /* 1 / (2 pi) */
    return (uint64_t)(turns * 0x1p64);
}

static bool drop_rope_fits(const drop_shape *shape, const drop_rope *rope)
{
    if (shape->dtype != KVT_DTYPE_FP16 && shape->dtype != KVT_DTYPE_BF16 &&
        shape->dtype != KVT_DTYPE_FP32) {
        return false;
    }
    if (rope->rotary_dim % 2 != 0 || rope->rotary_dim > shape->head_dim) return false;
    if (rope->pairing > DROP_PAIRING_INTERLEAVED) return false;
    for (uint32_t j = 0; j < rope->rotary_dim / 2u; j++) {
        if (!(rope->frequencies[j] >= 0.0 && rope->frequencies[j] <= 6.28)) return false;
    }
    return true;
}

static void drop_turn_pair(uint8_t *row, uint64_t first, uint64_t second, uint8_t dtype, float c,
                           float s)
{
    const float x = codecs_element_load(row, first, dtype);
    const float y = codecs_element_load(row, second, dtype);
    const float xc = x * c;
    const float ys = y * s;
    const float yc = y * c;
    const float xs = x * s;
    codecs_element_store(row, first, dtype, xc - ys);
    codecs_element_store(row, second, dtype, yc + xs);
}

static void drop_turn_row(const drop_shape *shape, const drop_rope *rope, uint64_t difference,
                          uint8_t *row)
{
    const uint32_t half = rope->rotary_dim / 2u;
    for (uint32_t j = 0; j < half; j++) {
        const bool apart = rope->pairing == DROP_PAIRING_HALF;
        const uint32_t first = apart ? j : 2 * j;
        const uint32_t second = apart ? j + half : 2 * j + 1;
        double c;
        double s;
        drop_cos_sin(drop_turns_of(rope->frequencies[j]) * difference, &c, &s);
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            const uint64_t at = (uint64_t)head * shape->head_dim;
            drop_turn_pair(row, at + first, at + second, shape->dtype, (float)c, (float)s);
        }
    }
}

kvt_status drop_rerotate(const drop_shape *shape, const drop_rope *rope, const uint32_t *index,
                         uint32_t old_first, uint32_t new_first, void *k)
{
    const uint64_t row_bytes =
        (uint64_t)shape->kv_heads * shape->head_dim * kvt_dtype_bytes(shape->dtype);
    uint8_t *rows = k;
    if (!drop_rope_fits(shape, rope)) return KVT_E_UNSUPPORTED;
    for (uint64_t i = 0; i < shape->tokens; i++) {
        const uint64_t from = (uint64_t)old_first + index[i];
        const uint64_t to = new_first + i;
        if (from == to) continue; /* the very same bits */
        drop_turn_row(shape, rope, to - from, rows + i * row_bytes);
    }
    return KVT_OK;
}
