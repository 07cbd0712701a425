/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.h - the parts of a live run: its devices, its copy of the profile, the content of its
 * entries, and a block as an offer. Private to the room.
 *
 * Thread rule: devices and profile on one thread, while no store has the devices open; content and
 * offers are pure.
 */
#ifndef REPLAY_LIVE_H
#define REPLAY_LIVE_H

#include "estimator/predict/predict.h"
#include "policy/trial.h"
#include "replay.h"

#include <kvterrace/kvterrace.h>

/* The devices of a run, which it leaves as blank as it found them. */
typedef struct live_devices {
    const kvt_store_options *store;
    bool *blank;  /* by device, tier after tier: absent, or zeros where a label goes */
    bool *absent; /* by device: the run makes its file */
    uint32_t count;
} live_devices;

/* Notes which devices are blank. A device that cannot be read is not blank; opening the store says
 * why. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status live_devices_note(live_devices *devices, const kvt_store_options *store);

/* ---- a run's own copy of the profile, in a temporary folder that goes with it ---- */

/* Makes the copy; with path NULL there is none, and nothing is done. KVT_OK; KVT_E_GONE (no such
 * profile); KVT_E_IO (no folder can be made); what kvt_profile_open and kvt_profile_copy say. */
KVT_NODISCARD kvt_status live_profile_make(live_profile *copy, const char *path, char *message,
                                           size_t message_size);

/* Puts the path of the source in the place of the copy's in a message for the user. */
void live_profile_name_source(const live_profile *copy, char *message, size_t message_size);

/* Removes what was made, and what SQLite left beside it. */
void live_profile_remove(live_profile *copy);

/* Ends a run whose store is closed: removes the copy, zeroes the labels on the devices that were
 * blank and removes files that were absent, since nothing of a live run is worth keeping and a
 * label would keep the next run out. A message of a run that failed names the profile and not its
 * copy. Returns status, or the first failure. */
kvt_status live_site_end(live_devices *devices, live_profile *copy, kvt_status status,
                         char *message, size_t message_size);

/* ---- the bytes, keys and layout of a run's entries ---- */

/*
 * A block's content follows from the run's seed and the block's id alone, so that any get can be
 * checked without keeping what was put.
 */

/* A bf16 layout of `tokens` tokens whose entry has bytes_per_token bytes each, or an opaque one
 * when that is no multiple of four. */
kvt_layout live_layout(uint64_t bytes_per_token, uint32_t tokens);

kvt_key live_key(uint64_t seed, uint32_t block);

/* bf16-like values: random sign and mantissa, exponents in a narrow range, so that a lossless codec
 * has something to win. bytes is a multiple of 2 or the tail is filled byte by byte. */
void live_fill(uint64_t seed, uint32_t block, void *data, uint64_t bytes);

/* Whether data is exactly what live_fill makes. */
bool live_matches(uint64_t seed, uint32_t block, const void *data, uint64_t bytes);

/* ---- forms of a store's ladder: live_forms.c ---- */

/* State of one server: it knows which bytes each variant of a block has to give back. */
typedef struct live_forms {
    kvt_layout layout;
    uint64_t bytes; /* of a block */
    uint64_t room_bytes;
    kvt_kept_tokens given; /* by the get that is to be checked */
    float *scores;
    uint32_t *kept;
    uint8_t *source, *decoded, *record, *scratch;
} live_forms;

/* Whether a run can have the store's ladder, if there is one. KVT_OK; KVT_E_CONFIG with a message.
 */
KVT_NODISCARD kvt_status live_forms_check(const replay_options *options,
                                          const replay_workload *workload,
                                          const kvt_store_options *store, char *message,
                                          size_t message_size);

/* Gives the engine of a store what public options do not: before its first put. */
void live_try(kvt_store *store, const policy_trial *trial);

/* The layout of blocks of a store with a ladder. */
kvt_layout live_forms_layout(const kvt_store_options *store, uint32_t tokens);

/* KVT_OK; KVT_E_MEMORY. close also after an error. */
KVT_NODISCARD kvt_status live_forms_open(live_forms *forms, const kvt_layout *layout);
void live_forms_close(live_forms *forms);

/* The scores of a block, until the next call on the forms. */
const float *live_forms_scores(live_forms *forms, uint64_t seed, uint32_t block);

/* Whether a get gave every byte and kept position that the form has of the block. data is as the
 * get left it, its positions in the forms' own. */
bool live_forms_match(live_forms *forms, uint64_t seed, uint32_t block, const kvt_get_info *info,
                      const uint8_t *data);

/* Counts a get that was served. */
void live_forms_count(replay_result *result, const kvt_get_info *info, uint32_t tokens);

/* ---- a block of a workload as an entry that is offered to an engine ---- */

/*
 * A live run puts blocks of the same layout, so its store offers the same.
 */

/* A block from first_position on that a request of request_tokens uses. The caller sets handle and
 * parent. */
kvt_offer block_offer(const replay_options *options, uint32_t first_position, uint32_t tokens,
                      uint32_t request_tokens);

/* The options of a block of so many tokens, as all blocks of that length have them but for the
 * seconds of NONE, which are those of a first block, and for a first block's sinks (KVT_SINK_TOKENS
 * raw tokens), which are left out. As kvt_offer_build. */
KVT_NODISCARD kvt_status block_options(const replay_options *options, uint32_t tokens,
                                       kvt_option built[KVT_OPTIONS_MAX], uint32_t *count_out);

#endif
