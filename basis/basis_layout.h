/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_layout.h - the bytes of a basis:
 *
 *   0            4096          each section at a multiple of 4096, zeros between them
 *   +------------+-------------+-------+---------+---------+---------+--------+
 *   | header, 0  | frequencies | means | forward | inverse | spreads | tables |
 *   +------------+-------------+-------+---------+---------+---------+--------+
 *
 * The struct is the little-endian bytes; it is copied in and out. Pure functions.
 */
#ifndef BASIS_BASIS_LAYOUT_H
#define BASIS_BASIS_LAYOUT_H

#include "basis_file.h"

#include <stddef.h>

#define BASIS_MAGIC "KVTBASIS"
enum { BASIS_VERSION = 2, BASIS_HASH_AT = 16 };

typedef struct __attribute__((packed)) basis_header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t header_bytes;              /* BASIS_ALIGN */
    uint8_t hash[TRANSFORM_HASH_BYTES]; /* BLAKE2b-256 of the object with zeros here */
    uint64_t bytes;                     /* of the object */
    uint8_t span;
    uint8_t sides;
    uint8_t pairing;
    uint8_t metric;
    uint32_t reserved;
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rotary_dim;
    uint64_t tokens;
    uint8_t digest[BASIS_DIGEST_BYTES];
    char model[BASIS_MODEL_BYTES];
} basis_header;

_Static_assert(sizeof(basis_header) == 216, "the header is part of the format");
_Static_assert(offsetof(basis_header, hash) == BASIS_HASH_AT, "format");
_Static_assert(offsetof(basis_header, span) == 56, "format");
_Static_assert(offsetof(basis_header, layers) == 64, "format");
_Static_assert(offsetof(basis_header, digest) == 88, "format");

/* One table: low bits, bytes of the table, the table as rans_write_table writes it, zeros. */
enum { BASIS_TABLE_BYTES = 256, BASIS_TABLE_AT = 2 };
_Static_assert(RANS_TABLE_BYTES_MAX + BASIS_TABLE_AT <= BASIS_TABLE_BYTES, "a table has its room");

/* Where the sections start, and the object's end. */
typedef struct basis_places {
    uint64_t frequencies;
    uint64_t means;
    uint64_t forward;
    uint64_t inverse;
    uint64_t spreads;
    uint64_t tables;
    uint64_t end;
} basis_places;

/* False: numbers out of range. */
bool basis_place(const transform_shape *shape, basis_places *places_out);

/* The object's own hash. */
void basis_hash(const void *bytes, uint64_t count, uint8_t hash_out[TRANSFORM_HASH_BYTES]);

#endif
