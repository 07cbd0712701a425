/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_files.h - bases of the transform codec in files: read with a reason where one cannot be
 * used, and those that a catalog's records need against the files beside it.
 *
 * Reads only. One thread.
 */
#ifndef INSPECT_BASIS_FILES_H
#define INSPECT_BASIS_FILES_H

#include "basis/basis_file.h"
#include "codecs/record.h"
#include "store/catalog/catalog.h"

#define BASIS_FILES_MAX 64u

/* Bases that were read. */
typedef struct basis_files {
    const transform_basis *list[BASIS_FILES_MAX]; /* into `bases`, as records take them */
    transform_basis *bases[BASIS_FILES_MAX];
    basis_origin origins[BASIS_FILES_MAX];
    uint64_t bytes[BASIS_FILES_MAX];
    void *objects[BASIS_FILES_MAX];
    uint32_t count;
} basis_files;

/* Adds the basis of a file; one that is there already is not added twice. The message is one line
 * on failure. KVT_OK; KVT_E_GONE; KVT_E_ARGUMENT (no regular file); KVT_E_IO; KVT_E_CORRUPT (cut
 * short, or no sound basis); KVT_E_VERSION; KVT_E_SPACE (BASIS_FILES_MAX); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_files_add(basis_files *files, const char *path, char *message,
                                         size_t message_size);

/* The same for several; the first failure ends it. */
KVT_NODISCARD kvt_status basis_files_read(basis_files *files, const char *const *paths,
                                          size_t count, char *message, size_t message_size);
void basis_files_free(basis_files *files); /* zeroed is allowed */

/* All of them, as calls on records take them. */
kvt_record_bases basis_files_all(const basis_files *files);

/* Whether a variant needs no basis, or one of these. False: the message says which. */
bool basis_files_serve(const basis_files *files, kvt_variant variant, char *message,
                       size_t message_size);

/* The same for a record, by its basis's whole hash. */
bool basis_files_serve_record(const basis_files *files, const kvt_record_info *info, char *message,
                              size_t message_size);

/* ---- the bases that a catalog's records need ---- */

typedef enum basis_file_state {
    BASIS_FILE_PRESENT = 0,
    BASIS_FILE_DAMAGED = 1, /* the file beside the catalog cannot be used */
    BASIS_FILE_MISSING = 2
} basis_file_state;

typedef struct basis_needed {
    uint32_t start;     /* first 20 bits of the hash */
    uint32_t hash_bits; /* 256, or 20 where only forms name it */
    uint8_t hash[KVT_BASIS_HASH_BYTES];
    basis_file_state state;
    kvt_status status; /* of a damaged one */
    uint64_t records;  /* rows in forms that need it */
    uint32_t span;     /* transform_span of one that is present */
    uint64_t bytes;
} basis_needed;

typedef struct basis_needs {
    basis_needed *items; /* by start */
    uint32_t count;
    uint32_t room;
    basis_files files; /* those that are present */
} basis_needs;

/* Counts a row. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_needs_count(basis_needs *needs, kvt_variant variant);

/* Looks at the files beside the catalog, which is open for reading, and fills what is known of each
 * basis. After the rows. KVT_OK; KVT_E_MEMORY; what reading the catalog says. */
KVT_NODISCARD kvt_status basis_needs_look(basis_needs *needs, store_catalog *catalog,
                                          const char *catalog_path);
void basis_needs_free(basis_needs *needs);

#endif
