/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_mark.h - how a file is, to see later whether it is another one or has been written to.
 *
 * Thread rule: any thread.
 */
#ifndef BASE_FILE_MARK_H
#define BASE_FILE_MARK_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

/* All zeros: there is no file. Two marks of a file that has not changed have equal bytes. */
typedef struct base_file_mark {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec written, changed;
} base_file_mark;

/* Notes how a file is now. False: there is none at the path, or path is NULL. */
bool base_file_look(const char *path, base_file_mark *mark_out);

#endif
