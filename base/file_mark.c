/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_mark.c - looks at a file.
 *
 * Thread rule: as file_mark.h says.
 */
#include "base/file_mark.h"

#include <string.h>
#include <sys/stat.h>

bool base_file_look(const char *path, base_file_mark *mark_out)
{
    struct stat facts;
    memset(mark_out, 0, sizeof *mark_out);
    if (path == NULL || stat(path, &facts) != 0) return false;
    mark_out->device = facts.st_dev;
    mark_out->inode = facts.st_ino;
    mark_out->bytes = facts.st_size;
    mark_out->written = facts.st_mtim;
    mark_out->changed = facts.st_ctim;
    return true;
}
