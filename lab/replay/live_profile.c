/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_profile.c - makes and removes a live run's own copy of the profile.
 *
 * A store that keeps what it learns writes its profile. The runs of a comparison are to begin alike
 * and to leave nothing behind, so each one has a copy.
 */
#include "live_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

kvt_status live_profile_make(live_profile *copy, const char *path, char *message,
                             size_t message_size)
{
    *copy = (live_profile){.path = ""};
    if (path == NULL) return KVT_OK;
    (void)snprintf(copy->folder, sizeof copy->folder, "%s/kvterrace-live-%ld-XXXXXX", P_tmpdir,
                   (long)getpid());
    if (mkdtemp(copy->folder) == NULL) {
        copy->folder[0] = '\0';
        snprintf(message, message_size, "%s: no folder can be made for the run's profile",
                 P_tmpdir);
        return KVT_E_IO;
    }
    (void)snprintf(copy->path, sizeof copy->path, "%s/profile.db", copy->folder);
    kvt_profile *profile = NULL;
    /* Whose figures count is the store's to say. */
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile,
                                         message, message_size);
    if (status == KVT_MISS) {
        snprintf(message, message_size, "%.300s: no such profile", path);
        status = KVT_E_GONE;
    }
    if (status == KVT_OK) status = kvt_profile_copy(profile, copy->path, message, message_size);
    kvt_profile_close(profile);
    if (status != KVT_OK) live_profile_remove(copy);
    return status;
}

void live_profile_remove(live_profile *copy)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-journal"};
    if (copy->folder[0] == '\0') return;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char path[sizeof copy->path + 16];
        (void)snprintf(path, sizeof path, "%s%s", copy->path, parts[i]);
        (void)unlink(path);
    }
    (void)rmdir(copy->folder);
    *copy = (live_profile){.path = ""};
}
