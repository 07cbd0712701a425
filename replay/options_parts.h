/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_parts.h - the parts of replay_options.c: what the simulated tiers are. Private to the
 * room.
 *
 * Thread rule: as replay.h.
 */
#ifndef REPLAY_OPTIONS_PARTS_H
#define REPLAY_OPTIONS_PARTS_H

#include "replay.h"

/* tier.TIER.read_bandwidth, tier.TIER.write_bandwidth */
extern const char *const options_speed_keys[KVT_TIER_COUNT][2];

/* Puts a sentence behind the note. */
void options_note(replay_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The simulated host's speeds where neither a setting nor a profile says otherwise. */
void options_default_tiers(replay_options *options);

/*
 * The room and speeds of the tiers that a store with these options would have. profile: NULL =
 * none. checking: nothing is looked up, and a device whose size opening alone tells has any.
 * KVT_OK; KVT_E_CONFIG with a message; the profile's errors.
 */
KVT_NODISCARD kvt_status options_read_tiers(kvt_config *config, const kvt_store_options *store,
                                            kvt_profile *profile, bool checking,
                                            replay_options *options, char *message,
                                            size_t message_size);

#endif
