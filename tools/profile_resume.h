/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_resume.h - what an interrupted command has measured to its end. One thread.
 */
#ifndef TOOLS_PROFILE_RESUME_H
#define TOOLS_PROFILE_RESUME_H

#include "device_list.h"

#include "estimator/profile/profile.h"

typedef struct profile_done {
    bool complete;
    char identity[96]; /* of the device that was measured */
} profile_done;

/*
 * Marks the devices of the list that the same command line has measured before it was interrupted,
 * at most max_age_seconds ago; done has list->count places, zeroed. Nothing is marked when it was
 * not interrupted: its last run, of the codecs if it measures them too, is complete. KVT_OK;
 * KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status profile_resume_find(kvt_profile *profile, const device_list *list,
                                             const char *command_line, bool codecs_too,
                                             double max_age_seconds, profile_done *done);

#endif
