/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_serve.h - the file system of an emulated drive: one file `drive`, one file `control`.
 */
#ifndef SUPPORT_DRIVE_SERVE_H
#define SUPPORT_DRIVE_SERVE_H

#include "drive_settings.h"

/* Shared between the process that serves and the one that looks after it, so that a drive whose
 * server was killed comes back with the bytes and settings that it had. */
typedef struct drive_state {
    drive_settings settings;
    uint64_t requests[2]; /* answered, by direction */
    uint64_t bytes[2];
    uint64_t bytes_trimmed;
} drive_state;

/* Mounts at `folder` and serves until the process is killed; writes one byte to ready_fd once the
 * mount is there. Returns only on failure, after a message on stderr. */
void drive_serve(const char *folder, drive_state *state, unsigned char *content, uint64_t bytes,
                 int ready_fd);

#endif
