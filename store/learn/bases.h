/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bases.h - the bases of the transform codec that a store has: in memory until they are removed,
 * and as files beside its catalog.
 *
 * A slot is filled before a record can need its basis, and emptied when no place and no variant of
 * the store does; so whoever holds a place, or codes for the store, may use the slot's basis
 * without a lock.
 *
 * Lock order: bases.lock, which is held over the I/O of a file, before the store's lock. Slots
 * change under both; either is enough to look through them.
 */
#ifndef STORE_BASES_H
#define STORE_BASES_H

#include "basis/basis_file.h"
#include "codecs/record.h"
#include "store/catalog/catalog.h"

#include <kvterrace/basis.h>
#include <pthread.h>

#define STORE_BASES_MAX   64u
#define STORE_BASES_KNOWN 256u /* names of bases that the catalog remembers, at most */

/* A basis in memory. */
typedef struct store_basis {
    transform_basis view; /* into the object */
    basis_origin origin;
    void *object;
    uint64_t bytes;
} store_basis;

/* A file beside the catalog that cannot be used. */
typedef struct store_damaged_basis {
    uint32_t start; /* of the hash, by the file's name */
    kvt_status status;
} store_damaged_basis;

typedef struct store_bases {
    pthread_mutex_t lock; /* of those who add and remove */
    const transform_basis
        *list[STORE_BASES_MAX];          /* the views of those owned, as records take them */
    store_basis *owned[STORE_BASES_MAX]; /* NULL: the slot is free */
    uint32_t starts[STORE_BASES_MAX];    /* of its hash + 1, or 0: atomic */
    store_damaged_basis damaged[STORE_BASES_MAX];
    uint32_t damaged_count;
    catalog_basis *known; /* that the catalog knew at open, by their beginnings; or NULL */
    uint32_t known_count;
    const char *catalog_path; /* files lie beside it; NULL: there are none. Fixed after open */
} store_bases;

/* ---- bases.c ---- */

/* The basis of a variant, or none. It stays while the caller holds a place of such a variant, or
 * codes in a variant of the store's. Any thread. */
kvt_record_bases bases_of(const kvt_store *store, kvt_variant variant);

/* All of them, while the store is being opened and none has been removed. */
kvt_record_bases bases_at_open(const kvt_store *store);

/* Whether the store can code a variant: it needs no basis, or the store has it. Any thread. */
bool bases_has(const kvt_store *store, kvt_variant variant);

/* Takes the files beside the catalog, and the names that it remembers; a note says which file is
 * damaged. Before the catalog's writer starts. KVT_OK; KVT_E_MEMORY; what reading the catalog
 * says. */
KVT_NODISCARD kvt_status bases_open(kvt_store *store, char *note, size_t note_size);
void bases_close(kvt_store *store);

/* Counts the places that need a basis which the store lacks, and gives the beginning of the hash of
 * one of them; 0: there are none. The store's lock is held. */
uint64_t bases_lacking(const kvt_store *store, uint32_t *start_out);

struct kvt_profile;

/* Gives the store the bases of the ladder's variants within both limits, out of the profile
 * (ladder.c). A basis that cannot be taken leaves a note, and its variants wait for it. KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status ladder_take_bases(kvt_store *store, struct kvt_profile *profile,
                                           char *note, size_t note_size);

/* ---- bases_file.c: the files; bases.lock is held, or nobody else knows the store ---- */

#define BASES_SUFFIX ".basis-"
enum { BASES_DIGITS = 5, BASES_ALIGN = 64 };

/* Writes the file of a basis durably: whole under another name, then renamed. KVT_OK, also without
 * a catalog; KVT_E_SPACE; KVT_E_ARGUMENT (a folder has the name); KVT_E_IO. */
KVT_NODISCARD kvt_status bases_file_write(const char *catalog_path, uint32_t start,
                                          const void *object, uint64_t bytes);

/* Removes it; one that is not there is none. KVT_OK; KVT_E_IO:
 * it is there still. */
KVT_NODISCARD kvt_status bases_file_remove(const char *catalog_path, uint32_t start);

/*
 * Reads a whole file into memory at BASES_ALIGN, to be freed: of the size that its head says, and
 * no more. KVT_OK; KVT_E_CORRUPT (cut short, or no basis); KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status bases_file_read(const char *path, void **object_out, uint64_t *bytes_out);

/* Calls visit for each file of a basis beside the catalog, in no order, until it returns an error,
 * which is returned. A folder that cannot be read has none. */
KVT_NODISCARD kvt_status bases_file_each(const char *catalog_path,
                                         kvt_status (*visit)(void *context, const char *path,
                                                             uint32_t start),
                                         void *context);

/* Removes what killed writers have left. Who holds the catalog's lock is the only writer. */
void bases_file_clean(const char *catalog_path);

#endif
