/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_scratch.c - makes and removes a bench's folder. Thread rule: as bench_scratch.h.
 */
#include "bench_scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SCRATCH_NOTED_BYTES = 4096 };

static char scratch_own[SCRATCH_NOTED_BYTES];
static char *scratch_noted = scratch_own; /* the folder that is there; "" = none */

int bench_scratch_share(void)
{
    char *shared =
        mmap(NULL, SCRATCH_NOTED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    scratch_noted = shared;
    return 0;
}

int bench_scratch_make(const char *parent, const char *name, char *folder, size_t size)
{
    if (parent == NULL) parent = "/var/tmp";
    int length = snprintf(folder, size, "%s/kvterrace-%s-XXXXXX", parent, name);
    if (length < 0 || (size_t)length >= size) {
        errno = ENAMETOOLONG;
        return 1;
    }
    if (mkdtemp(folder) == NULL) return 1;
    (void)snprintf(scratch_noted, SCRATCH_NOTED_BYTES, "%s", folder);
    return 0;
}

void bench_scratch_remove(void)
{
    if (scratch_noted[0] == '\0') return;
    DIR *list = opendir(scratch_noted);
    const struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(list), entry->d_name, 0);
    }
    if (list != NULL) (void)closedir(list);
    if (rmdir(scratch_noted) != 0)
        fprintf(stderr, "kvterrace bench: %s: %s\n", scratch_noted, strerror(errno));
    scratch_noted[0] = '\0';
}
