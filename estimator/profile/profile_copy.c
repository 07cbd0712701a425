/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_copy.c - a profile's content in another file, by SQLite's backup: sound while others
 * write it, and with what still lies in its -wal file. Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <fcntl.h>
#include <unistd.h>

kvt_status kvt_profile_copy(kvt_profile *profile, const char *path, char *message,
                            size_t message_size)
{
    sqlite3 *target = NULL;
    /* The file is made here, so that nobody's file is written over, and for its owner alone. */
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
        profile_say(message, message_size, "%s: cannot be made", path);
        return KVT_E_IO;
    }
    (void)close(file);
    int result = sqlite3_open_v2(path, &target, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    sqlite3_backup *backup = NULL;
    if (result == SQLITE_OK) {
        backup = sqlite3_backup_init(target, "main", profile->database, "main");
        if (backup == NULL) result = sqlite3_errcode(target);
    }
    if (backup != NULL) {
        result = sqlite3_backup_step(backup, -1);
        int finished = sqlite3_backup_finish(backup);
        if (result == SQLITE_DONE) result = finished;
    }
    sqlite3_close(target);
    if (result == SQLITE_OK) return KVT_OK;
    profile_say(message, message_size, "%s: %s", path, sqlite3_errstr(result));
    (void)unlink(path);
    return profile_status(result);
}
