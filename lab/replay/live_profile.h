/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_profile.h - a live run's own copy of the profile, in a temporary folder that goes with it.
 * One thread per object.
 */
#ifndef REPLAY_LIVE_PROFILE_H
#define REPLAY_LIVE_PROFILE_H

#include "replay.h"

/* Makes the copy; with path NULL there is none, and nothing is done. KVT_OK; KVT_E_GONE (no such
 * profile); KVT_E_IO (no folder can be made); what kvt_profile_open and kvt_profile_copy say. */
KVT_NODISCARD kvt_status live_profile_make(live_profile *copy, const char *path, char *message,
                                           size_t message_size);

/* Removes what was made, and what SQLite left beside it. */
void live_profile_remove(live_profile *copy);

#endif
