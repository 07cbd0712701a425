/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.h - a record as chunks of an engine: their keys, their heads, how they are cut
 * (docs/REMOTE.md, Object). Pure; re-entrant.
 */
#ifndef STORE_OBJECT_H
#define STORE_OBJECT_H

#include <kvterrace/types.h>
#include <stdbool.h>

#define OBJECT_HEAD_BYTES  160u
#define OBJECT_CHUNK_BYTES ((1u << 20) - 16) /* a value, by default */
#define OBJECT_CHUNK_LEAST 4096u
#define OBJECT_CHUNK_MOST  (8u << 20)
#define OBJECT_CHUNKS_MAX  1024u
#define OBJECT_NAME_BYTES  160u /* with its end */
#define OBJECT_SPACE_BYTES 33u  /* same */

#define OBJECT_HAS_PARENT 1u

/* The head of a chunk. */
typedef struct object_head {
    uint32_t index, count;
    uint32_t flags;
    uint32_t full_bytes; /* payload of a chunk that is not one of the last two */
    uint64_t generation, writer;
    uint64_t record_bytes, offset, bytes;
    kvt_key key, parent;
    double recompute_seconds;
    uint32_t class_id, request_tokens;
} object_head;

/* A part of a record. */
typedef struct object_chunk {
    uint64_t offset, bytes;
} object_chunk;

void object_head_pack(const object_head *head, uint8_t bytes[OBJECT_HEAD_BYTES]);

/* KVT_OK: all numbers are within their ranges; KVT_E_CORRUPT; KVT_E_VERSION. */
KVT_NODISCARD kvt_status object_head_unpack(const uint8_t bytes[OBJECT_HEAD_BYTES],
                                            object_head *out);

/* Cuts a record. full_bytes: payload of a whole chunk. Returns the number of chunks; 0: more than
 * OBJECT_CHUNKS_MAX, or nothing to cut. */
uint32_t object_cut(uint64_t record_bytes, uint32_t full_bytes,
                    object_chunk chunks[OBJECT_CHUNKS_MAX]);

/* The namespace of a text and a tenant. */
void object_space(const char *text, uint32_t tenant, char space[OBJECT_SPACE_BYTES]);

/* The engine's key of a chunk of a copy of an epoch (epochs.h). Returns its length. */
uint32_t object_name(const char *space, const kvt_key *key, uint64_t epoch, uint32_t chunk,
                     char name[OBJECT_NAME_BYTES]);

/* The engine's key of the claim on an entry: whoever has it writes. */
uint32_t object_claim_name(const char *space, const kvt_key *key, uint64_t epoch,
                           char name[OBJECT_NAME_BYTES]);

/* The entry's key in such a name. False: it is none. */
bool object_name_key(const char *name, size_t bytes, kvt_key *out);

#endif
