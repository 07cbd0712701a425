/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_sample.h - synthetic KV entries that look like real ones to a codec.
 *
 * Each channel of a (layer, side) has its own scale, lognormal over the channels, and one channel
 * in ten has a mean well away from zero, as keys of real models do. Scales and means belong to the
 * "model": they depend on layer, side and channel only. The seed chooses the tokens' values.
 *
 * The same call gives the same bytes on every machine: integer hashing, no libm, and float
 * arithmetic in single rounded steps. Thread rule: re-entrant, no state.
 */
#ifndef CODECS_KV_SAMPLE_H
#define CODECS_KV_SAMPLE_H

#include <kvterrace/types.h>

/* Fills target, kvt_layout_bytes(layout) long and aligned to the element, with values drawn by
 * seed. Opaque layouts get random bytes. The layout has been checked. */
void codecs_kv_sample_fill(const kvt_layout *layout, uint64_t seed, void *target);

#endif
