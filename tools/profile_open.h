/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_open.h - the profile that a subcommand of `profile` is about. One thread.
 */
#ifndef TOOLS_PROFILE_OPEN_H
#define TOOLS_PROFILE_OPEN_H

#include "command.h"

#include "estimator/profile/profile.h"

/* store.profile, or the usual name. */
const char *command_profile_path(kvt_config *config);

/* kvt_profile_open of command_profile_path with store.profile_foreign; a profile that is not there
 * is KVT_E_GONE. */
KVT_NODISCARD kvt_status command_profile_open(kvt_config *config, uint32_t flags,
                                              kvt_profile **profile_out, char *message,
                                              size_t message_size);

/* The profile at path for reading, of whatever host it is. */
KVT_NODISCARD kvt_status command_profile_look(const char *path, kvt_profile **profile_out,
                                              char *message, size_t message_size);

/* Opens the profile of a command that adds to it, and makes the file when it is not
 * there. Close it with command_profile_finish in every case. */
typedef struct command_profile {
    kvt_profile *profile;
    const char *path;
    bool made; /* it was not there before */
} command_profile;

KVT_NODISCARD kvt_status command_profile_begin(kvt_config *config, command_profile *out,
                                               char *message, size_t message_size);

/* Closes it. A profile that was made by a command that then failed is removed, unless a run is in
 * it already. Returns the code. */
int command_profile_finish(command_profile *profile, int code);

#endif
