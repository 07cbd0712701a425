/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bases_file.c - the files of bases beside a catalog. A file is whole when it has its name: it is
 * written under another one, synced and renamed, so that a kill leaves the old file, the new one or
 * none, and maybe a draft, which the next open removes. A draft's name is nobody's before it is
 * made, whatever lies beside the catalog.
 *
 * Files come from outside: one that is no regular file is refused and not waited for, and no more
 * is read, or asked for in memory, than its own head and its size agree on.
 *
 * Thread rule: as bases.h says; inspection reads without a store.
 */
#include "store/learn/bases.h"

#include "base/kill_point.h"
#include "tiers/devices/file_claim.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASES_DRAFT ".new"

static kvt_status bases_failure(int error)
{
    if (error == EISDIR || error == ENOTEMPTY || error == EEXIST) return KVT_E_ARGUMENT;
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? KVT_E_SPACE : KVT_E_IO;
}

/* The path of a basis's file, or of its draft. False: it is too long. */
static bool bases_file_path(char path[PATH_MAX], const char *catalog_path, uint32_t start,
                            const char *end)
{
    const int length = snprintf(path, PATH_MAX, "%s" BASES_SUFFIX "%0*X%s", catalog_path,
                                BASES_DIGITS, (unsigned)start, end);
    return length > 0 && length < PATH_MAX;
}

/* Writes all bytes and syncs them. */
static kvt_status bases_write_all(int file, const uint8_t *bytes, uint64_t size)
{
    while (size > 0) {
        const ssize_t wrote = write(file, bytes, size < 1u << 30 ? size : 1u << 30);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return bases_failure(errno);
        if (wrote == 0) return KVT_E_IO;
        bytes += wrote;
        size -= (uint64_t)wrote;
    }
    return fsync(file) == 0 ? KVT_OK : bases_failure(errno);
}

kvt_status bases_file_write(const char *catalog_path, uint32_t start, const void *object,
                            uint64_t bytes)
{
    char path[PATH_MAX], draft[PATH_MAX];
    if (catalog_path == NULL) return KVT_OK;
    if (!bases_file_path(path, catalog_path, start, "")) return KVT_E_IO;
    if (!bases_file_path(draft, catalog_path, start, BASES_DRAFT "-XXXXXX")) return KVT_E_IO;
    const int file = mkostemp(draft, O_CLOEXEC);
    if (file < 0) return bases_failure(errno);
    kvt_status status = bases_write_all(file, object, bytes);
    if (close(file) != 0 && status == KVT_OK) status = bases_failure(errno);
    KILL_POINT("basis: file written, not named");
    if (status == KVT_OK && rename(draft, path) != 0) status = bases_failure(errno);
    if (status != KVT_OK) {
        (void)unlink(draft);
        return status;
    }
    KILL_POINT("basis: file named, folder not synced");
    if (tiers_sync_folder(path) != 0) return KVT_E_IO;
    return KVT_OK;
}

kvt_status bases_file_remove(const char *catalog_path, uint32_t start)
{
    char path[PATH_MAX];
    if (catalog_path == NULL) return KVT_OK;
    if (!bases_file_path(path, catalog_path, start, "")) return KVT_E_IO;
    if (unlink(path) != 0 && errno != ENOENT) return KVT_E_IO;
    KILL_POINT("basis: file removed");
    /* A file that a power cut brings back is whole, and nothing needs it. */
    (void)tiers_sync_folder(path);
    return KVT_OK;
}

/* Reads so many bytes. KVT_E_CORRUPT: the file has fewer. */
static kvt_status bases_read_all(int file, uint8_t *bytes, uint64_t count)
{
    while (count > 0) {
        const ssize_t got = read(file, bytes, count < 1u << 30 ? count : 1u << 30);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return KVT_E_IO;
        if (got == 0) return KVT_E_CORRUPT;
        bytes += got;
        count -= (uint64_t)got;
    }
    return KVT_OK;
}

/* The rest of a file whose head has been read, into memory of its own. */
static kvt_status bases_read_object(int file, const uint8_t *head, uint64_t bytes,
                                    uint8_t **object_out)
{
    uint8_t *object = aligned_alloc(BASES_ALIGN, (bytes / BASES_ALIGN + 1) * BASES_ALIGN);
    *object_out = NULL;
    if (object == NULL) return KVT_E_MEMORY;
    memcpy(object, head, BASIS_ALIGN);
    kvt_status status = bases_read_all(file, object + BASIS_ALIGN, bytes - BASIS_ALIGN);
    if (status == KVT_OK)
        *object_out = object;
    else
        free(object);
    return status;
}

kvt_status bases_file_read(const char *path, void **object_out, uint64_t *bytes_out)
{
    _Alignas(BASES_ALIGN) uint8_t head[BASIS_ALIGN];
    struct stat facts;
    uint8_t *object = NULL;
    uint64_t said = 0;
    *object_out = NULL;
    *bytes_out = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return KVT_E_IO;
    kvt_status status = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) ? KVT_OK : KVT_E_IO;
    if (status == KVT_OK) status = bases_read_all(file, head, sizeof head);
    if (status == KVT_OK) status = basis_read_head(head, sizeof head, &said);
    if (status == KVT_OK && said != (uint64_t)facts.st_size) status = KVT_E_CORRUPT;
    if (status == KVT_OK) status = bases_read_object(file, head, said, &object);
    (void)close(file);
    if (status != KVT_OK) return status;
    *object_out = object;
    *bytes_out = said;
    return KVT_OK;
}

/* The beginning of the hash that a file's name says, and what follows it: "" for a basis. NULL: it
 * is no name of this catalog's. */
static const char *bases_take_name(const char *name, const char *catalog, uint32_t *start_out)
{
    const size_t length = strlen(catalog), suffix = sizeof BASES_SUFFIX - 1;
    char digits[BASES_DIGITS + 1];
    if (strncmp(name, catalog, length) != 0) return NULL;
    if (strncmp(name + length, BASES_SUFFIX, suffix) != 0) return NULL;
    name += length + suffix;
    if (strspn(name, "0123456789ABCDEF") != BASES_DIGITS) return NULL;
    memcpy(digits, name, BASES_DIGITS);
    digits[BASES_DIGITS] = '\0';
    *start_out = (uint32_t)strtoul(digits, NULL, 16);
    return name + BASES_DIGITS;
}

/* A walk over the files beside a catalog. */
typedef struct bases_walk_files {
    kvt_status (*visit)(void *context, const char *path, uint32_t start);
    void *context;
    bool drafts; /* these alone, else the bases alone */
} bases_walk_files;

static kvt_status bases_walk_folder(const char *catalog_path, const bases_walk_files *walk)
{
    char folder[PATH_MAX], path[PATH_MAX];
    const char *end = strrchr(catalog_path, '/');
    const char *name = end == NULL ? catalog_path : end + 1;
    if (strlen(catalog_path) >= sizeof folder) return KVT_OK;
    (void)snprintf(folder, sizeof folder, "%.*s", end == NULL ? 2 : (int)(end - catalog_path + 1),
                   end == NULL ? "./" : catalog_path);
    DIR *all = opendir(folder);
    if (all == NULL) return KVT_OK; /* the catalog's own open says why */
    kvt_status status = KVT_OK;
    for (struct dirent *one = readdir(all); status >= 0 && one != NULL; one = readdir(all)) {
        uint32_t start;
        const char *rest = bases_take_name(one->d_name, name, &start);
        const bool draft = rest != NULL && strncmp(rest, BASES_DRAFT, sizeof BASES_DRAFT - 1) == 0;
        if (rest == NULL || (walk->drafts ? !draft : rest[0] != '\0')) continue;
        const int length = snprintf(path, sizeof path, "%s%s", folder, one->d_name);
        if (length > 0 && (size_t)length < sizeof path)
            status = walk->visit(walk->context, path, start);
    }
    (void)closedir(all);
    return status < 0 ? status : KVT_OK;
}

kvt_status bases_file_each(const char *catalog_path,
                           kvt_status (*visit)(void *context, const char *path, uint32_t start),
                           void *context)
{
    return bases_walk_folder(catalog_path, &(bases_walk_files){visit, context, false});
}

/* Removes a draft, if it is a regular file: a store makes no other. */
static kvt_status bases_remove_draft(void *context, const char *path, uint32_t start)
{
    struct stat facts;
    (void)context;
    (void)start;
    if (lstat(path, &facts) == 0 && S_ISREG(facts.st_mode)) (void)unlink(path);
    return KVT_OK;
}

void bases_file_clean(const char *catalog_path)
{
    (void)!bases_walk_folder(catalog_path, &(bases_walk_files){bases_remove_draft, NULL, true});
}
