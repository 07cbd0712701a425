/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_open.c - see profile_open.h. One thread.
 */
#include "profile_open.h"

const char *command_profile_path(kvt_config *config)
{
    const char *path = kvt_config_text(config, "store.profile");
    return path ? path : PROFILE_STANDARD_PATH;
}

kvt_status command_profile_open(kvt_config *config, uint32_t flags, kvt_profile **profile_out,
                                char *message, size_t message_size)
{
    const char *path = command_profile_path(config);
    if (kvt_config_switch(config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    kvt_status status = kvt_profile_open(path, flags, profile_out, message, message_size);
    if (status != KVT_MISS) return status;
    (void)snprintf(message, message_size, "%.400s: no such profile", path);
    return KVT_E_GONE;
}
