/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_rerotate.h - keys of a record that dropped tokens, turned to contiguous positions.
 *
 * Thread rule: re-entrant.
 */
#ifndef CODECS_KEYS_REROTATE_H
#define CODECS_KEYS_REROTATE_H

#include <kvterrace/types.h>

/* Which channels of a head turn together. */
typedef enum kvt_rope_pairing {
    KVT_ROPE_HALVES = 0,    /* j with j + rotary_dim / 2, as in Hugging Face's Llama */
    KVT_ROPE_NEIGHBOURS = 1 /* 2 j with 2 j + 1, as in llama2.c and the paper */
} kvt_rope_pairing;

/* How a model turns its keys by their positions. */
typedef struct kvt_rope {
    uint32_t struct_size; /* sizeof(kvt_rope) of the caller */
    uint16_t rotary_dim;  /* channels of a head that turn: even, at most head_dim */
    uint8_t pairing;      /* kvt_rope_pairing */
    uint8_t reserved;
    double base;               /* theta; pair j turns by base^(-2 j / rotary_dim) a position */
    const double *frequencies; /* NULL; else [rotary_dim / 2] in radians a position, for scaled
                                * models: 0 to 6.28, base is not looked at */
} kvt_rope;

/*
 * Turns the keys of one layer of a dropped record to contiguous positions, in place: row i, which
 * the model made for position old_first + kept[i], to position new_first + i. For engines that tie
 * a position to a slot; attention at the original positions needs no turning.
 *   layout        of the record, tokens as stored in info.spec
 *   kept, count   of kvt_record_kept_tokens: token numbers, ascending
 *   old_first     info.spec.first_position
 *   keys          count rows [kv_heads][head_dim] as decoded, keys_bytes in all
 * Angles in double, the turn in fp32, one rounding to the dtype; a row that stays where it was
 * keeps its bits. KVT_OK; KVT_E_ARGUMENT (layout, sizes, an index that is not ascending or outside
 * the layout, positions past 2^32, a base that is not above 1); KVT_E_UNSUPPORTED (dtype, rotary
 * width, pairing, a frequency out of range, more than 1024 channels without frequencies).
 * Source: RoFormer (arXiv 2104.09864).
 */
KVT_NODISCARD kvt_status kvt_keys_rerotate(const kvt_layout *layout, const kvt_rope *rope,
                                           const uint32_t *kept, uint32_t count, uint32_t old_first,
                                           uint32_t new_first, void *keys, uint64_t keys_bytes);

#endif
