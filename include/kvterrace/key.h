/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.h - keys that are made from a space and a name.
 *
 * A key names content. A space is everything beside the tokens that decides what an entry's bytes
 * are: model, revision, element type, layout, ranks, block size, and a salt that keeps tenants
 * apart. A name is what an engine calls a block within its space: the hash of the tokens up to its
 * end. Programs that fill the same space and use the same names make the same keys, in any
 * language: docs/FORMAT.md ("Keys") has the hash and its test vectors.
 *
 *     kvt_space space;
 *     kvt_space_init(&space);
 *     space.model = "meta-llama/Llama-3.1-8B";
 *     space.dtype = "bf16";
 *     space.block_tokens = 256;
 *     kvt_space_hash hash;
 *     if (kvt_space_make(&space, &hash) != KVT_OK) return fail();
 *     kvt_key key;
 *     if (kvt_key_make(&hash, block_hash, block_hash_bytes, 0, &key) != KVT_OK) return fail();
 *
 * The first 8 bytes of a key are those of the hash of its space, so that a store can count, bound
 * and clear a space (kvt_store_clear). A store also takes keys that were made in another way, and
 * takes their first 8 bytes for a space.
 *
 * The file stores nothing and knows no store. Thread rule: any thread; no call blocks or allocates.
 */
#ifndef KVTERRACE_KEY_H
#define KVTERRACE_KEY_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_SPACE_TEXT_MAX  4096u  /* bytes of a text without its end */
#define KVT_SPACE_EXTRA_MAX 65536u /* bytes of kvt_space.extra */
#define KVT_NAME_MAX        4096u  /* bytes of a name */

/*
 * What decides the bytes of all entries of a space. Two spaces are the same when every field is;
 * NULL and "" are the same text, and NULL and 0 bytes the same extra. Texts end with a NUL and are
 * taken as bytes: programs that share a space spell them alike.
 */
typedef struct kvt_space {
    uint32_t struct_size;
    uint32_t block_tokens; /* of a full entry, not of a page of the pool; 0: not said, as in all
                              numbers below */
    const char *model;     /* such as "meta-llama/Llama-3.1-8B" */
    const char
        *revision;     /* of the model's weights, such as a commit; adapters are named here too */
    const char *dtype; /* such as "bf16", "fp8_e4m3" */
    const char *salt;  /* keeps apart what must not be shared, such as tenants */
    uint32_t layers;   /* of this rank */
    uint32_t kv_heads; /* of this rank */
    uint32_t head_dim;
    uint32_t sides;                     /* 2: K and V; 1: a latent */
    uint32_t order;                     /* kvt_order */
    uint32_t tensor_rank, tensor_ranks; /* the rank is below the number of ranks, or both are 0 */
    uint32_t pipeline_rank, pipeline_ranks;
    uint32_t extra_bytes;
    const void *extra; /* whatever else decides, as bytes: rope scaling, quantization scales */
} kvt_space;

/* The hash of a space: made once per space, used for each of its keys. */
typedef struct kvt_space_hash {
    uint8_t bytes[32];
} kvt_space_hash;

/* Clears every field of a space of struct_size bytes and sets struct_size. space is not NULL.
 * kvt_space_init is the form for C and C++. */
KVT_API void kvt_space_init_sized(kvt_space *space, uint32_t struct_size);

static inline void kvt_space_init(kvt_space *space)
{
    kvt_space_init_sized(space, (uint32_t)sizeof *space);
}

/*
 * Hashes a space: BLAKE2b-256 over the fields that are set. All memory that the space points to is
 * read before the return and not kept. KVT_OK; KVT_E_ARGUMENT: a NULL, another struct_size, a text
 * longer than KVT_SPACE_TEXT_MAX, extra longer than KVT_SPACE_EXTRA_MAX or NULL with bytes, a rank
 * that is not below its number of ranks, an unknown order. *hash_out is zero then.
 */
KVT_API KVT_NODISCARD kvt_status kvt_space_make(const kvt_space *space, kvt_space_hash *hash_out);

/* The first 8 bytes of a space's hash as a number, the first byte highest: its 16 hexadecimal
 * digits are those that the keys of the space begin with. Two spaces have the same number once in
 * 2^64 pairs; their keys still differ. space is not NULL. */
KVT_API uint64_t kvt_space_id(const kvt_space_hash *space);

/* The same of a key: its first 8 bytes. key is not NULL. */
KVT_API uint64_t kvt_key_space(const kvt_key *key);

/*
 * Makes the key of a name: the first 8 bytes of the space's hash, then BLAKE2b-192 over the whole
 * hash, the group and the name. To find two names, spaces or groups with the same key takes about
 * 2^96 tries.
 *   name    name_bytes of it, 1 to KVT_NAME_MAX; read until return
 *   group   tells the entries apart that hold different groups of layers of one block; 0 = all, or
 *           the first
 * KVT_OK; KVT_E_ARGUMENT (a NULL, another length): *key_out is zero then.
 */
KVT_API KVT_NODISCARD kvt_status kvt_key_make(const kvt_space_hash *space, const void *name,
                                              size_t name_bytes, uint32_t group, kvt_key *key_out);

#ifdef __cplusplus
}
#endif

#endif
