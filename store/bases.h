/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bases.h - the bases of the transform codec that a store has.
 *
 * Thread rule: any thread. A basis that is there stays until the store is closed.
 */
#ifndef STORE_BASES_H
#define STORE_BASES_H

#include "codecs/record.h"

#include <kvterrace/kvterrace.h>
#include <pthread.h>

#define STORE_BASES_MAX 64u

/* Bases of the transform codec (bases.c). */
typedef struct store_bases {
    pthread_mutex_t lock; /* a leaf: of those who add */
    const struct transform_basis *list[STORE_BASES_MAX];
    struct transform_basis *owned[STORE_BASES_MAX]; /* the same */
    void *objects[STORE_BASES_MAX];                 /* the bytes that they point into */
    uint32_t count;                                 /* only grows */
    char *catalog_path; /* files lie beside it; NULL: there are none. Fixed after open */
} store_bases;

/* The bases that there are now. They stay until the store is closed. Any thread. */
kvt_record_bases bases_of(const kvt_store *store);

/* Whether the store can code a variant: it needs no basis, or the store has it. Any thread. */
bool bases_has(const kvt_store *store, kvt_variant variant);

/* Takes the files beside a catalog; a note says which of them is damaged. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status bases_open(kvt_store *store, const char *catalog_path, char *note,
                                    size_t note_size);
void bases_close(kvt_store *store);

struct kvt_profile;

/* Gives the store the bases of the ladder's variants within both limits, out of the profile
 * (ladder.c). A basis that cannot be taken leaves a note, and its variants are none. KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status ladder_take_bases(kvt_store *store, const kvt_store_options *options,
                                           struct kvt_profile *profile, char *note,
                                           size_t note_size);

#endif
