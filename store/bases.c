/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bases.c - the bases of the transform codec that a store has: in memory until it is closed, and as
 * files beside its catalog. A file is complete when it has its name: it is written under another
 * one, synced and renamed before the first record can need it, so that a kill leaves a basis whole
 * or absent.
 *
 * Thread rule: any thread. bases.lock is a leaf and held over the write of a file; the list only
 * grows, and is read without the lock.
 */
#include "basis/basis_file.h"
#include "codecs/codecs.h"
#include "store/fork_guard.h"
#include "store/store.h"

#include <kvterrace/basis.h>

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

_Static_assert(KVT_BASES_MAX == STORE_BASES_MAX, "the public limit is the list's length");

#define BASES_SUFFIX ".basis-"
enum { BASES_DIGITS = 5, BASES_ALIGN = 64 };

kvt_record_bases bases_of(const kvt_store *store)
{
    return (kvt_record_bases){store->bases.list,
                              __atomic_load_n(&store->bases.count, __ATOMIC_ACQUIRE)};
}

/* The basis whose hash begins with 20 bits, or NULL. */
static const transform_basis *bases_find(const kvt_store *store, uint32_t start)
{
    const kvt_record_bases bases = bases_of(store);
    for (uint32_t i = 0; i < bases.count; i++)
        if (transform_hash_start(bases.list[i]->hash) == start) return bases.list[i];
    return NULL;
}

bool bases_has(const kvt_store *store, kvt_variant variant)
{
    if (variant.codec != KVT_CODEC_TRANSFORM) return true;
    return bases_find(store, variant.rate >> CODECS_BASIS_SHIFT) != NULL;
}

/* ---- files ---- */

static kvt_status bases_failure(void)
{
    return errno == ENOSPC || errno == EDQUOT ? KVT_E_SPACE : KVT_E_IO;
}

/* Writes all bytes and syncs them. */
static kvt_status bases_write_all(int file, const uint8_t *bytes, uint64_t size)
{
    while (size > 0) {
        const ssize_t wrote = write(file, bytes, size < 1u << 30 ? size : 1u << 30);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return bases_failure();
        bytes += wrote;
        size -= (uint64_t)wrote;
    }
    return fsync(file) == 0 ? KVT_OK : bases_failure();
}

/* Syncs the folder of a path, so that a rename in it lasts. */
static kvt_status bases_sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *end = strrchr(path, '/');
    (void)snprintf(folder, sizeof folder, "%.*s", end == NULL ? 1 : (int)(end - path + 1),
                   end == NULL ? "." : path);
    const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return KVT_E_IO;
    const kvt_status status = fsync(file) == 0 ? KVT_OK : bases_failure();
    (void)close(file);
    return status;
}

static kvt_status bases_keep(const kvt_store *store, uint32_t start, const void *bytes,
                             uint64_t size)
{
    char path[PATH_MAX], partial[PATH_MAX];
    if (store->bases.catalog_path == NULL) return KVT_OK;
    const int length = snprintf(path, sizeof path, "%s" BASES_SUFFIX "%05X",
                                store->bases.catalog_path, (unsigned)start);
    const int longer = snprintf(partial, sizeof partial, "%s" BASES_SUFFIX "%05X.new",
                                store->bases.catalog_path, (unsigned)start);
    if (length < 0 || longer < 0 || (size_t)longer >= sizeof partial) return KVT_E_IO;
    const int file =
        open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (file < 0) return bases_failure();
    kvt_status status = bases_write_all(file, bytes, size);
    if (close(file) != 0 && status == KVT_OK) status = bases_failure();
    if (status == KVT_OK && rename(partial, path) != 0) status = bases_failure();
    if (status == KVT_OK) return bases_sync_folder(path);
    (void)unlink(partial);
    return status;
}

/* Reads a file into memory of its own, aligned. */
static kvt_status bases_read_file(const char *path, uint8_t **bytes_out, uint64_t *size_out)
{
    struct stat facts;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    *bytes_out = NULL;
    if (file < 0) return KVT_E_IO;
    kvt_status status = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) ? KVT_OK : KVT_E_IO;
    if (status == KVT_OK) {
        *size_out = (uint64_t)facts.st_size;
        *bytes_out = aligned_alloc(BASES_ALIGN, (*size_out / BASES_ALIGN + 1) * BASES_ALIGN);
        if (*bytes_out == NULL) status = KVT_E_MEMORY;
    }
    for (uint64_t at = 0; status == KVT_OK && at < *size_out;) {
        const ssize_t got = read(file, *bytes_out + at, *size_out - at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) status = KVT_E_IO;
        at += got > 0 ? (uint64_t)got : 0;
    }
    (void)close(file);
    return status;
}

/* ---- the list ---- */

/* Takes an object whose memory becomes the store's with KVT_OK. kept: it comes from its file. */
static kvt_status bases_take(kvt_store *store, uint8_t *bytes, uint64_t size, bool kept)
{
    store_bases *bases = &store->bases;
    transform_basis *basis = malloc(sizeof *basis);
    if (basis == NULL) return KVT_E_MEMORY;
    kvt_status status = basis_read(bytes, size, basis, NULL);
    pthread_mutex_lock(&bases->lock);
    if (status == KVT_OK) {
        const uint32_t start = transform_hash_start(basis->hash);
        const transform_basis *present = bases_find(store, start);
        if (present != NULL)
            status = memcmp(present->hash, basis->hash, sizeof basis->hash) == 0
                         ? KVT_EXISTS
                         : KVT_E_UNSUPPORTED;
        else if (bases->count == STORE_BASES_MAX)
            status = KVT_E_SPACE;
        else if (!kept)
            status = bases_keep(store, start, bytes, size);
    }
    if (status == KVT_OK) {
        bases->list[bases->count] = basis;
        bases->owned[bases->count] = basis;
        bases->objects[bases->count] = bytes;
        __atomic_store_n(&bases->count, bases->count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&bases->lock);
    if (status != KVT_OK) free(basis);
    return status;
}

kvt_status kvt_basis_add(kvt_store *store, const void *bytes, uint64_t size)
{
    if (store == NULL || bytes == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (size > UINT64_MAX / 2) return KVT_E_CORRUPT;
    uint8_t *copy = aligned_alloc(BASES_ALIGN, (size / BASES_ALIGN + 1) * BASES_ALIGN);
    if (copy == NULL) return KVT_E_MEMORY;
    memcpy(copy, bytes, size);
    const kvt_status status = bases_take(store, copy, size, false);
    if (status != KVT_OK) free(copy);
    return status;
}

/* Whether a file's name is that of a basis of this catalog. */
static bool bases_is_name(const char *name, const char *catalog)
{
    const size_t length = strlen(catalog), suffix = sizeof BASES_SUFFIX - 1;
    if (strncmp(name, catalog, length) != 0) return false;
    if (strncmp(name + length, BASES_SUFFIX, suffix) != 0) return false;
    name += length + suffix;
    return strlen(name) == BASES_DIGITS && strspn(name, "0123456789ABCDEF") == BASES_DIGITS;
}

/* Takes one file. A damaged one is left where it is: its entries are misses. */
static kvt_status bases_load(kvt_store *store, const char *path, char *note, size_t note_size)
{
    uint8_t *bytes;
    uint64_t size = 0;
    kvt_status status = bases_read_file(path, &bytes, &size);
    if (status == KVT_OK) status = bases_take(store, bytes, size, true);
    if (status != KVT_OK) free(bytes);
    if (status == KVT_OK || status == KVT_EXISTS || status == KVT_E_MEMORY) return status;
    if (note_size != 0 && note[0] == '\0')
        (void)snprintf(note, note_size, "%.180s: %s; entries that need it are misses", path,
                       kvt_status_text(status));
    return KVT_OK;
}

kvt_status bases_open(kvt_store *store, const char *catalog_path, char *note, size_t note_size)
{
    char folder[PATH_MAX], path[PATH_MAX];
    if (catalog_path == NULL) return KVT_OK;
    store->bases.catalog_path = strdup(catalog_path);
    if (store->bases.catalog_path == NULL) return KVT_E_MEMORY;
    const char *end = strrchr(catalog_path, '/');
    const char *name = end == NULL ? catalog_path : end + 1;
    (void)snprintf(folder, sizeof folder, "%.*s", end == NULL ? 2 : (int)(end - catalog_path + 1),
                   end == NULL ? "./" : catalog_path);
    DIR *all = opendir(folder);
    if (all == NULL) return KVT_OK; /* the catalog's own open says why */
    kvt_status status = KVT_OK;
    for (struct dirent *one = readdir(all); status >= 0 && one != NULL; one = readdir(all)) {
        if (!bases_is_name(one->d_name, name)) continue;
        const int length = snprintf(path, sizeof path, "%s%s", folder, one->d_name);
        if (length > 0 && (size_t)length < sizeof path)
            status = bases_load(store, path, note, note_size);
    }
    (void)closedir(all);
    return status < 0 ? status : KVT_OK;
}

void bases_close(kvt_store *store)
{
    store_bases *bases = &store->bases;
    for (uint32_t i = 0; i < bases->count; i++) {
        free(bases->owned[i]);
        free(bases->objects[i]);
    }
    free(bases->catalog_path);
    pthread_mutex_destroy(&bases->lock);
}
