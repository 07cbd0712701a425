/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_filesystem.h - a file system of a few megabytes that a test fills. Its mount belongs to the
 * test's own mount namespace, so it goes with the test. One thread; cmocka's headers come first.
 */
#ifndef TESTS_SMALL_FILESYSTEM_H
#define TESTS_SMALL_FILESYSTEM_H

#include "cases.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* Mounts a tmpfs on a folder. False, with a line in the log, where that is refused. */
static inline bool small_filesystem_mount(const char *folder, const char *size_option)
{
    bool mounted = unshare(CLONE_NEWNS) == 0 &&
                   mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("none", folder, "tmpfs", 0, size_option) == 0;
    if (!mounted) print_message("no file system can be mounted here: %s\n", strerror(errno));
    return mounted;
}

/* Takes what is left of the file system, to the last page. */
static inline void small_filesystem_fill(const char *folder)
{
    static const char block[65536];
    char path[160];
    snprintf(path, sizeof path, "%s/ballast", folder);
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(file >= 0);
    size_t bytes = sizeof block;
    while (bytes >= 4096) {
        if (write(file, block, bytes) <= 0) bytes /= 2;
    }
    assert_int_equal(close(file), 0);
}

static inline void small_filesystem_make_room(const char *folder)
{
    char path[160];
    snprintf(path, sizeof path, "%s/ballast", folder);
    assert_int_equal(unlink(path), 0);
}

static inline void small_filesystem_unmount(const char *folder)
{
    assert_int_equal(umount2(folder, MNT_DETACH), 0);
}

#endif
