/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis.h - bases of the transform codec in a store. A basis is learnt once per model
 * (docs/codecs/transform.md); entries that are stored with it can be read with it alone.
 *
 * A store with a catalog keeps each basis as the file CATALOG.basis-XXXXX beside the catalog, with
 * the first five hexadecimal digits of its hash, and takes all of them at open. A store is moved by
 * copying catalog, device files and these files together (docs/STORE.md).
 *
 * An entry whose variant needs a basis that the store lacks stays and cannot be read. Gets, views,
 * layered loads and the requests of a queue return KVT_E_MISMATCH for it, and the variant that they
 * report names the basis: transform:1F3A9,s2 needs the one whose hash begins with 1F3A9.
 * kvt_store_exists, kvt_store_match, kvt_store_touch,
 * kvt_store_hint, kvt_store_prefetch and leases take the entry as absent; kvt_store_describe finds
 * it and says lacks_basis; kvt_store_put of its key stores the entry anew. kvt_basis_get lists the
 * bases that are lacking, kvt_health_get reports them, and kvt_basis_add brings the entries back.
 *
 * Thread rule: any thread.
 */
#ifndef KVTERRACE_BASIS_H
#define KVTERRACE_BASIS_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_BASES_MAX 64u /* of one store */

/*
 * Gives a basis to a store, which copies it and keeps the copy until it is removed or the store is
 * closed. With a catalog the file beside it is written durably before the basis is used; a damaged
 * file of that name is replaced.
 *
 * From this call on lookups find the entries whose variant needs the basis, and the store may use
 * such a variant for new entries. The ladder offers it when the profile has its speeds, or when the
 * basis was there at open.
 *   bytes   of a whole .kvtbasis object; not kept
 * KVT_OK; KVT_EXISTS (this very basis is there); KVT_E_ARGUMENT (NULL, or a folder has the name of
 * the basis's file); KVT_E_CORRUPT,
 * KVT_E_VERSION (the object; nothing was taken); KVT_E_UNSUPPORTED (another basis whose hash begins
 * with the same 20 bits is there); KVT_E_SPACE (KVT_BASES_MAX, or the disk is full); KVT_E_IO;
 * KVT_E_MEMORY; KVT_E_STATE (in a child of fork). Blocking.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_basis_add(kvt_store *store, const void *bytes,
                                                                uint64_t size);

/*
 * Removes a basis that nothing needs: memory, and the file beside the catalog. Before the file goes
 * the catalog is flushed, so that no entry that was deleted can come back without its basis.
 *   hash   KVT_BASIS_HASH_BYTES, as kvt_basis_get gives it; of a basis whose file is damaged the
 *          known bits count
 * KVT_OK; KVT_MISS (the store does not have it); KVT_BUSY (records need it, copies and those that a
 * read still holds included, or the store may code with it: kvt_basis_info.records, in_ladder);
 * what kvt_store_flush says of the catalog, and KVT_E_IO of the file: it is kept then;
 * KVT_E_ARGUMENT; KVT_E_STATE. Blocking.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_basis_remove(kvt_store *store,
                                                                   const uint8_t *hash);

typedef enum kvt_basis_state {
    KVT_BASIS_PRESENT = 1, /* in use */
    KVT_BASIS_DAMAGED = 2, /* its file is there and cannot be used: status says why */
    KVT_BASIS_MISSING = 3  /* records need it, and it is not there */
} kvt_basis_state;

/* A basis that a store has, or lacks. From `bytes` on all is zero unless the basis is present. */
typedef struct kvt_basis_info {
    uint32_t struct_size; /* set by the caller */
    kvt_basis_state state;
    kvt_status status;  /* of a damaged file; else KVT_OK */
    uint32_t hash_bits; /* known ones of the hash: 256, or 20 where only variants name it */
    uint8_t hash[KVT_BASIS_HASH_BYTES]; /* its name; the bits that are not known are 0 */
    uint64_t records;  /* stored now in variants that need it, copies on SSD included */
    bool in_ladder;    /* the store may code with it */
    uint8_t sides;     /* 2, or 1 */
    uint16_t reserved; /* zero */
    kvt_basis_span span;
    uint64_t bytes; /* of the object, in memory and in its file */
    uint32_t layers, kv_heads, head_dim, rotary_dim;
    uint64_t tokens;    /* that it was learnt on */
    uint8_t digest[32]; /* of the texts that it was learnt on */
    char model[96];
} kvt_basis_info;

/*
 * Copies what is known of one basis: those that are present, then damaged files, then those that
 * records need and that are missing. index counts from 0; a basis that comes or goes between two
 * calls shifts the ones behind it. KVT_OK; KVT_END past the last; KVT_E_ARGUMENT (struct_size,
 * NULL); KVT_E_STATE. Any thread; takes short locks, does no I/O.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_basis_get(kvt_store *store, size_t index,
                                                                kvt_basis_info *out);

#ifdef __cplusplus
}
#endif

#endif
