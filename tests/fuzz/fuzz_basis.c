/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_basis.c - the reader of a basis against any bytes, and against a sound object that was
 * edited and sealed again: edits {u32 place, u8 value} at the places that the input chooses. A
 * basis that is read is used: every number that its shape says is there is looked at, and it is
 * written again to the same bytes.
 */
#include "basis/basis_layout.h"
#include "fuzz_arena.h"
#include "tests/support/basis_support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_EDIT_BYTES = 5, FUZZ_SHAPES = 4, FUZZ_EDITS_MAX = 64 };

static void fuzz_read(const uint8_t *object, uint64_t bytes)
{
    transform_basis basis;
    basis_origin origin;
    const kvt_status status = basis_read(object, bytes, &basis, &origin);
    if (status == KVT_E_CORRUPT || status == KVT_E_VERSION) return;
    if (status != KVT_OK) abort();
    uint8_t *again = fuzz_arena_take(bytes);
    if (basis_write(&basis, &origin, again, bytes) != KVT_OK) abort();
    if (memcmp(again, object, BASIS_HASH_AT) != 0) abort();
    if (strlen(origin.model) >= sizeof origin.model) abort();
}

/* A few sound objects, made once. */
static const basis_made *fuzz_sound(uint32_t which)
{
    static basis_made made[FUZZ_SHAPES];
    static const transform_shape shapes[FUZZ_SHAPES] = {
        {.layers = 1, .kv_heads = 1, .head_dim = 4, .rotary_dim = 4, .sides = 2, .span = 1},
        {.layers = 2, .kv_heads = 2, .head_dim = 4, .sides = 1, .span = 1},
        {.layers = 2, .kv_heads = 1, .head_dim = 8, .rotary_dim = 2, .sides = 2, .span = 2},
        {.layers = 5, .kv_heads = 1, .head_dim = 2, .sides = 2, .span = 3},
    };
    if (made[which].object == NULL) {
        made[which] = basis_made_of(shapes[which], which);
        if (basis_made_write(&made[which]) != KVT_OK) abort();
    }
    return &made[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_arena_reset();
    fuzz_read(fuzz_arena_copy(data, size), size);
    if (size < 1) return 0;
    const basis_made *made = fuzz_sound(data[0] % FUZZ_SHAPES);
    uint8_t *object = fuzz_arena_copy(made->object, made->bytes);
    data++;
    size--;
    for (size_t i = 0; i + FUZZ_EDIT_BYTES <= size && i < FUZZ_EDITS_MAX * FUZZ_EDIT_BYTES;
         i += FUZZ_EDIT_BYTES) {
        uint32_t place;
        memcpy(&place, data + i, sizeof place);
        object[place % made->bytes] = data[i + 4];
    }
    basis_hash(object, made->bytes, object + BASIS_HASH_AT);
    fuzz_read(object, made->bytes);
    return 0;
}
