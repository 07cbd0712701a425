/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_open.h - the profile that a subcommand of `profile` is about. One thread.
 */
#ifndef TOOLS_PROFILE_OPEN_H
#define TOOLS_PROFILE_OPEN_H

#include "command.h"

#include <kvterrace/profile.h>

#define PROFILE_STANDARD_PATH "kvterrace-profile.db"

/* The row of an option table that every subcommand with a database has; its key is 'd'. */
#define PROFILE_DATABASE_OPTION                                                                    \
    {                                                                                              \
        "database", 'd', "FILE", 0, "Profile database (store.profile; " PROFILE_STANDARD_PATH ")", \
            0                                                                                      \
    }

/* store.profile, or the usual name. */
const char *command_profile_path(kvt_config *config);

/* kvt_profile_open of command_profile_path with store.profile_foreign; a profile that is not there
 * is KVT_E_GONE. */
KVT_NODISCARD kvt_status command_profile_open(kvt_config *config, uint32_t flags,
                                              kvt_profile **profile_out, char *message,
                                              size_t message_size);

#endif
