/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_files.c - bases in files, and what is wrong with them.
 *
 * A file is read as a store reads it (store/learn/bases_file.c); where it refuses one, the file is
 * looked at once more for a reason that a person can use.
 */
#include "tools/inspect/basis_files.h"

#include "codecs/codecs.h"
#include "store/learn/bases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one file ---- */

/* Says why a file is no basis. Returns the status to give. */
static kvt_status basis_file_refuse(const char *path, kvt_status status, char *message,
                                    size_t message_size)
{
    _Alignas(64) uint8_t head[BASIS_ALIGN];
    struct stat facts;
    uint64_t said = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        const int error = errno;
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(error));
        return error == ENOENT || error == ENOTDIR ? KVT_E_GONE : KVT_E_IO;
    }
    const bool regular = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
    const ssize_t got = regular ? pread(file, head, sizeof head, 0) : 0;
    (void)close(file);
    if (!regular) {
        (void)snprintf(message, message_size, "%.300s: not a regular file", path);
        return KVT_E_ARGUMENT;
    }
    const kvt_status looked =
        got == (ssize_t)sizeof head ? basis_read_head(head, sizeof head, &said) : KVT_E_CORRUPT;
    if (looked == KVT_E_VERSION)
        (void)snprintf(message, message_size, "%.300s: a basis of another version", path);
    else if (looked != KVT_OK)
        (void)snprintf(message, message_size,
                       "%.300s: not a basis (.kvtbasis), or cut short in its head", path);
    else if (said != (uint64_t)facts.st_size)
        (void)snprintf(message, message_size,
                       "%.300s: cut short or grown: %llu bytes, its head says %llu", path,
                       (unsigned long long)facts.st_size, (unsigned long long)said);
    else if (status == KVT_E_CORRUPT)
        (void)snprintf(message, message_size,
                       "%.300s: damaged: its content is not what its hash names, or its matrices "
                       "do not undo each other",
                       path);
    else
        (void)snprintf(message, message_size, "%.300s: %s", path, kvt_status_text(status));
    return status;
}

/* Takes an object that was read; it is the list's with KVT_OK, and freed with KVT_EXISTS. */
static kvt_status basis_files_take(basis_files *files, void *object, uint64_t bytes)
{
    if (files->count == BASIS_FILES_MAX) return KVT_E_SPACE;
    transform_basis *basis = malloc(sizeof *basis);
    if (basis == NULL) return KVT_E_MEMORY;
    kvt_status status = basis_read(object, bytes, basis, &files->origins[files->count]);
    for (uint32_t i = 0; status == KVT_OK && i < files->count; i++)
        if (memcmp(files->list[i]->hash, basis->hash, sizeof basis->hash) == 0) status = KVT_EXISTS;
    if (status != KVT_OK) {
        free(basis);
        return status;
    }
    files->list[files->count] = files->bases[files->count] = basis;
    files->objects[files->count] = object;
    files->bytes[files->count++] = bytes;
    return KVT_OK;
}

/* The same of a file, without words. */
static kvt_status basis_files_try(basis_files *files, const char *path)
{
    void *object;
    uint64_t bytes;
    kvt_status status = bases_file_read(path, &object, &bytes);
    if (status == KVT_OK) status = basis_files_take(files, object, bytes);
    if (status != KVT_OK) free(object);
    return status;
}

kvt_status basis_files_add(basis_files *files, const char *path, char *message, size_t message_size)
{
    const kvt_status status = basis_files_try(files, path);
    if (status == KVT_EXISTS) return KVT_OK;
    if (status == KVT_E_SPACE)
        (void)snprintf(message, message_size, "%.300s: more than %u bases", path, BASIS_FILES_MAX);
    return status >= 0 || status == KVT_E_SPACE
               ? status
               : basis_file_refuse(path, status, message, message_size);
}

kvt_status basis_files_read(basis_files *files, const char *const *paths, size_t count,
                            char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++)
        status = basis_files_add(files, paths[i], message, message_size);
    return status;
}

void basis_files_free(basis_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        free(files->bases[i]);
        free(files->objects[i]);
    }
    files->count = 0;
}

kvt_record_bases basis_files_all(const basis_files *files)
{
    return (kvt_record_bases){files->list, files->count};
}

/* The basis whose hash begins so, or NULL. */
static const transform_basis *basis_files_find(const basis_files *files, uint32_t start)
{
    for (uint32_t i = 0; i < files->count; i++)
        if (transform_hash_start(files->list[i]->hash) == start) return files->list[i];
    return NULL;
}

bool basis_files_serve(const basis_files *files, kvt_variant variant, char *message,
                       size_t message_size)
{
    char name[64];
    if (variant.codec != KVT_CODEC_TRANSFORM) return true;
    const uint32_t start = codecs_rate_field(variant, CODECS_BASIS_SHIFT, CODECS_BASIS_BITS);
    if (basis_files_find(files, start) != NULL) return true;
    (void)kvt_variant_format(variant, name, sizeof name);
    int length = snprintf(message, message_size, "%s needs the basis %05X: --basis names its file",
                          name, (unsigned)start);
    for (uint32_t i = 0; i < files->count && length > 0 && (size_t)length < message_size; i++)
        length += snprintf(message + length, message_size - (size_t)length, "%s %05X",
                           i == 0 ? ", and those given are" : ",",
                           (unsigned)transform_hash_start(files->list[i]->hash));
    return false;
}

bool basis_files_serve_record(const basis_files *files, const kvt_record_info *info, char *message,
                              size_t message_size)
{
    char digits[2 * KVT_BASIS_HASH_BYTES + 1];
    if (info->basis_span == 0) return true;
    for (uint32_t i = 0; i < files->count; i++)
        if (memcmp(files->list[i]->hash, info->basis, sizeof info->basis) == 0) return true;
    for (size_t i = 0; i < KVT_BASIS_HASH_BYTES; i++)
        (void)snprintf(digits + 2 * i, 3, "%02x", info->basis[i]);
    (void)snprintf(message, message_size, "the record needs the basis %s: --basis names its file",
                   digits);
    return false;
}

/* ---- the bases that a catalog's records need ---- */

/* The item of a basis, made where there is none. NULL without memory. */
static basis_needed *basis_needs_item(basis_needs *needs, uint32_t start)
{
    uint32_t at = 0;
    while (at < needs->count && needs->items[at].start < start)
        at++;
    if (at < needs->count && needs->items[at].start == start) return &needs->items[at];
    if (needs->count == needs->room) {
        const uint32_t room = needs->room == 0 ? 8 : 2 * needs->room;
        basis_needed *items = realloc(needs->items, room * sizeof *items);
        if (items == NULL) return NULL;
        needs->items = items;
        needs->room = room;
    }
    memmove(&needs->items[at + 1], &needs->items[at], (needs->count - at) * sizeof *needs->items);
    needs->count++;
    needs->items[at] = (basis_needed){
        .start = start,
        .hash_bits = CODECS_BASIS_BITS,
        .hash = {(uint8_t)(start >> 12), (uint8_t)(start >> 4), (uint8_t)(start << 4)},
        .state = BASIS_FILE_MISSING};
    return &needs->items[at];
}

kvt_status basis_needs_count(basis_needs *needs, kvt_variant variant)
{
    if (variant.codec != KVT_CODEC_TRANSFORM) return KVT_OK;
    basis_needed *item =
        basis_needs_item(needs, codecs_rate_field(variant, CODECS_BASIS_SHIFT, CODECS_BASIS_BITS));
    if (item == NULL) return KVT_E_MEMORY;
    item->records++;
    return KVT_OK;
}

/* Takes one file beside the catalog. */
static kvt_status basis_needs_visit(void *context, const char *path, uint32_t start)
{
    basis_needs *needs = context;
    const uint32_t before = needs->files.count;
    kvt_status status = basis_files_try(&needs->files, path);
    basis_needed *item = basis_needs_item(needs, start);
    if (item == NULL) return KVT_E_MEMORY;
    if (status == KVT_OK && transform_hash_start(needs->files.list[before]->hash) != start)
        status = KVT_E_MISMATCH;
    item->state = status == KVT_OK ? BASIS_FILE_PRESENT : BASIS_FILE_DAMAGED;
    item->status = status == KVT_EXISTS ? KVT_E_MISMATCH : status;
    if (status != KVT_OK) return KVT_OK;
    item->hash_bits = 8 * KVT_BASIS_HASH_BYTES;
    memcpy(item->hash, needs->files.list[before]->hash, sizeof item->hash);
    item->span = needs->files.list[before]->shape.span;
    item->bytes = needs->files.bytes[before];
    return KVT_OK;
}

/* Takes a name that the catalog keeps. One that nothing needs and that has no file was removed. */
static bool basis_needs_take(void *context, const void *hash, size_t size)
{
    basis_needs *needs = context;
    for (uint32_t i = 0; i < needs->count && size == KVT_BASIS_HASH_BYTES; i++) {
        if (needs->items[i].state == BASIS_FILE_PRESENT ||
            transform_hash_start(hash) != needs->items[i].start)
            continue;
        needs->items[i].hash_bits = 8 * KVT_BASIS_HASH_BYTES;
        memcpy(needs->items[i].hash, hash, KVT_BASIS_HASH_BYTES);
    }
    return true;
}

kvt_status basis_needs_look(basis_needs *needs, store_catalog *catalog, const char *catalog_path)
{
    kvt_status status = bases_file_each(catalog_path, basis_needs_visit, needs);
    if (status == KVT_OK) status = catalog_each_blob(catalog, "basis:*", basis_needs_take, needs);
    return status;
}

void basis_needs_free(basis_needs *needs)
{
    basis_files_free(&needs->files);
    free(needs->items);
    *needs = (basis_needs){.count = 0};
}
