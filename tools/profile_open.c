/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_open.c - see profile_open.h. One thread.
 */
#include "profile_open.h"
#include "base/config_values.h"

#include <unistd.h>

const char *command_profile_path(kvt_config *config)
{
    const char *path = kvt_config_text(config, "store.profile");
    return path ? path : PROFILE_STANDARD_PATH;
}

static kvt_status open_path(const char *path, uint32_t flags, kvt_profile **profile_out,
                            char *message, size_t message_size)
{
    kvt_status status = kvt_profile_open(path, flags, profile_out, message, message_size);
    if (status != KVT_MISS) return status;
    (void)snprintf(message, message_size, "%.400s: no such profile", path);
    return KVT_E_GONE;
}

kvt_status command_profile_open(kvt_config *config, uint32_t flags, kvt_profile **profile_out,
                                char *message, size_t message_size)
{
    if (kvt_config_switch(config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    return open_path(command_profile_path(config), flags, profile_out, message, message_size);
}

kvt_status command_profile_look(const char *path, kvt_profile **profile_out, char *message,
                                size_t message_size)
{
    return open_path(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, profile_out, message,
                     message_size);
}

kvt_status command_profile_begin(kvt_config *config, command_profile *out, char *message,
                                 size_t message_size)
{
    *out = (command_profile){.path = command_profile_path(config)};
    out->made = access(out->path, F_OK) != 0;
    return command_profile_open(config, KVT_PROFILE_WRITE, &out->profile, message, message_size);
}

/* Ends the listing at the first run. */
static bool open_see_run(void *context, const char *table, const kvt_profile_cell *cells,
                         size_t count)
{
    (void)table, (void)cells, (void)count;
    *(bool *)context = true;
    return false;
}

int command_profile_finish(command_profile *profile, int code)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    bool has_runs = true;
    if (profile->profile != NULL && profile->made && code != EXIT_FINE) {
        has_runs = false;
        kvt_status status = kvt_profile_list(profile->profile, "runs", open_see_run, &has_runs);
        has_runs = has_runs || status != KVT_OK;
    }
    kvt_profile_close(profile->profile);
    profile->profile = NULL;
    for (size_t i = 0; !has_runs && i < sizeof tails / sizeof tails[0]; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s%s", profile->path, tails[i]);
        if (length > 0 && (size_t)length < sizeof path) (void)unlink(path);
    }
    return code;
}
