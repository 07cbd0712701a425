/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_coding.c - the public call that reads a basis for single records (kvterrace/coding.h): the
 * view that the codec takes lies in the caller's memory and points into the caller's object.
 *
 * Thread rule: re-entrant; no allocation.
 */
#include "basis/basis_file.h"

#include "base/struct_size.h"

#include <kvterrace/coding.h>

#include <string.h>

#define INFO_LEAST STRUCT_SIZE_THROUGH(kvt_coding_basis_info, model)

_Static_assert(sizeof(transform_basis) <= KVT_CODING_BASIS_BYTES, "a view fits in its memory");
_Static_assert(KVT_BASIS_HEAD == (int)TRANSFORM_SPAN_HEAD &&
                   KVT_BASIS_LAYERS4 == (int)TRANSFORM_SPAN_LAYERS4,
               "spans of the header are those of the codec");

static void basis_describe(const transform_basis *basis, const basis_origin *origin,
                           kvt_coding_basis_info *info_out)
{
    const transform_shape *shape = &basis->shape;
    kvt_coding_basis_info own = {
        .struct_size = sizeof own,
        .span = (kvt_basis_span)shape->span,
        .layers = shape->layers,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .rotary_dim = shape->rotary_dim,
        .sides = shape->sides,
        .tokens = origin->tokens,
    };
    _Static_assert(sizeof own.model == BASIS_MODEL_BYTES, "model names are as long as the file's");
    _Static_assert(sizeof own.digest == BASIS_DIGEST_BYTES, "digests are as long as the file's");
    memcpy(own.hash, basis->hash, sizeof own.hash);
    memcpy(own.digest, origin->digest, sizeof own.digest);
    memcpy(own.model, origin->model, sizeof own.model);
    struct_size_out(info_out, &own, sizeof own);
}

static bool basis_is_aligned(const void *memory)
{
    return memory != NULL && (uintptr_t)memory % KVT_CODING_ALIGN == 0;
}

kvt_status kvt_coding_basis_read(const void *object, uint64_t bytes, void *memory,
                                 kvt_coding_basis_info *info_out,
                                 const kvt_coding_basis **basis_out)
{
    basis_origin origin;
    transform_basis *basis = memory;
    if (basis_out == NULL) return KVT_E_ARGUMENT;
    *basis_out = NULL;
    if (!basis_is_aligned(object) || !basis_is_aligned(memory)) return KVT_E_ARGUMENT;
    if (info_out != NULL && !struct_size_is_sound(info_out, INFO_LEAST)) return KVT_E_ARGUMENT;
    const kvt_status status = basis_read(object, bytes, basis, &origin);
    if (status != KVT_OK) return status;
    if (info_out != NULL) basis_describe(basis, &origin, info_out);
    *basis_out = basis;
    return KVT_OK;
}
