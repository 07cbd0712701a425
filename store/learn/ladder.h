/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder.h - variants that entries may take, by the loss that is accepted (ladder.c).
 *
 * Thread rule: the opener's thread; ladder_variants under the control lock.
 */
#ifndef STORE_LADDER_H
#define STORE_LADDER_H

#include "store/learn/costs.h"

/* Looks the ladder up, before a device is touched. An empty note says afterwards which variants the
 * layout leaves out. KVT_OK, also without a ladder; KVT_E_ARGUMENT; KVT_E_MISMATCH (no calibration,
 * or one of another layout or class); KVT_E_DATABASE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status ladder_open(kvt_store *store, const kvt_store_options *options,
                                     kvt_profile *profile, char *note, size_t note_size,
                                     char *message, size_t message_size);

/* Leaves the rungs of one calibration that are within both limits of loss, then those that wait for
 * observations, as many as a store takes beside raw and lossless. Returns how many. */
uint32_t ladder_limit(const kvt_store_options *options, kvt_codec_curve *rungs, uint32_t count);

/* Puts the variants of the ladder behind the exact variants, whose number it keeps. */
KVT_NODISCARD kvt_status ladder_add_costs(kvt_store *store, const cost_profile *profile);

/* Whether entries of a layout may be lossy. */
bool ladder_allows(const kvt_store *store, const kvt_layout *layout);

/* How many of the variants, from the first on, an entry may take. scored: it is about to be taken
 * in with a record by scores. Lock held. */
uint32_t ladder_variants(const kvt_store *store, const store_entry *entry, bool scored);

/* Whether an entry of a layout has a use for scores. */
bool ladder_wants_scores(const kvt_store *store, const kvt_layout *layout);

#endif
