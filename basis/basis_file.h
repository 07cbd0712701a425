/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_file.h - a basis of the transform codec as an object of bytes (.kvtbasis): read, checked
 * and written. docs/codecs/transform.md has the format.
 *
 * A basis comes from outside: any bytes give a view or a status. A view points into the bytes,
 * which stay where they are and unchanged for as long as it is used. No I/O, no allocation.
 *
 * Thread rule: every function is re-entrant.
 */
#ifndef BASIS_BASIS_FILE_H
#define BASIS_BASIS_FILE_H

#include "codecs/transform_basis.h"

#include <stdbool.h>

enum {
    BASIS_ALIGN = 4096, /* of the sections in the object; the object itself lies at 64 */
    BASIS_MODEL_BYTES = 96,
    BASIS_DIGEST_BYTES = 32
};

/* The origin of a basis, as its file says it. */
typedef struct basis_origin {
    char model[BASIS_MODEL_BYTES];      /* name, ends with a NUL */
    uint8_t digest[BASIS_DIGEST_BYTES]; /* of the texts or dumps that it was learnt on */
    uint64_t tokens;                    /* of them */
} basis_origin;

/* Bytes of an object of this shape. KVT_OK; KVT_E_ARGUMENT (numbers out of range). */
KVT_NODISCARD kvt_status basis_bytes(const transform_shape *shape, uint64_t *bytes_out);

/* The bytes of a whole object, from its first BASIS_ALIGN ones: of those nothing but the fields is
 * checked, and that the shape has this size. KVT_OK; KVT_E_VERSION; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status basis_read_head(const void *bytes, uint64_t count, uint64_t *bytes_out);

/*
 * Reads an object. KVT_OK; KVT_E_VERSION (another version); KVT_E_CORRUPT: cut short, the hash is
 * another one, a number is no number or out of range, a table is not sound, or the inverse does not
 * undo the forward matrix.
 *   bytes       aligned to 64
 *   origin_out  NULL allowed
 */
KVT_NODISCARD kvt_status basis_read(const void *bytes, uint64_t count, transform_basis *basis_out,
                                    basis_origin *origin_out);

/*
 * Writes the object of a basis into basis_bytes bytes, aligned to 64, and its hash into both.
 * KVT_OK, or the status with which basis_read refuses it.
 */
KVT_NODISCARD kvt_status basis_write(transform_basis *basis, const basis_origin *origin,
                                     void *target, uint64_t capacity);

/*
 * Whether the inverse undoes the forward matrix of a span: vectors of -1 and 1 that are drawn for
 * the span go there and back, and each comes back with at most 1/64 of its length as error.
 */
bool basis_inverse_holds(const transform_basis *basis, uint32_t span);

#endif
