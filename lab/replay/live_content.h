/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_content.h - the bytes, keys and layout of a live run's entries; private to the room.
 *
 * A block's content follows from the run's seed and the block's id alone, so that any get can be
 * checked without keeping what was put. Pure; any thread.
 */
#ifndef REPLAY_LIVE_CONTENT_H
#define REPLAY_LIVE_CONTENT_H

#include <kvterrace/types.h>

/* A bf16 layout of `tokens` tokens whose entry has bytes_per_token bytes each, or an opaque one
 * when that is no multiple of four. */
kvt_layout live_layout(uint64_t bytes_per_token, uint32_t tokens);

kvt_key live_key(uint64_t seed, uint32_t block);

/* bf16-like values: random sign and mantissa, exponents in a narrow range, so that a lossless codec
 * has something to win. bytes is a multiple of 2 or the tail is filled byte by byte. */
void live_fill(uint64_t seed, uint32_t block, void *data, uint64_t bytes);

/* Whether data is exactly what live_fill makes. */
bool live_matches(uint64_t seed, uint32_t block, const void *data, uint64_t bytes);

#endif
