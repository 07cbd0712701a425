/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_rerotate.h - keys of a record that dropped tokens, turned to contiguous positions.
 *
 * Thread rule: re-entrant.
 */
#ifndef CODECS_KEYS_REROTATE_H
#define CODECS_KEYS_REROTATE_H

#include <kvterrace/rope.h>

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
