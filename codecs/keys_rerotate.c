/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_rerotate.c - turns the keys that a dropped record gave back to contiguous positions; checks
 * what the caller hands over, the turning itself is drop_rope.c. Re-entrant.
 */
#include "keys_rerotate.h"

#include "base/struct_size.h"
#include "drop.h"

#include <assert.h>

enum { KEYS_ROTARY_MAX = 1024 }; /* with frequencies that are made here, on the stack */

static bool keys_index_sound(const uint32_t *kept, uint32_t count, uint32_t tokens)
{
    for (uint32_t i = 0; i < count; i++) {
        if (kept[i] >= tokens || (i > 0 && kept[i] <= kept[i - 1])) return false;
    }
    return true;
}

kvt_status kvt_keys_rerotate(const kvt_layout *layout, const kvt_rope *rope, const uint32_t *kept,
                             uint32_t count, uint32_t old_first, uint32_t new_first, void *keys,
                             uint64_t keys_bytes)
{
    double made[KEYS_ROTARY_MAX / 2];
    uint64_t unused;
    assert(layout != NULL && rope != NULL && kept != NULL && keys != NULL);
    const drop_shape shape = {count, layout->kv_heads, layout->head_dim, layout->dtype};
    drop_rope turn = {rope->frequencies, rope->rotary_dim, rope->pairing};
    kvt_rope whole;
    if (struct_size_in(rope, &whole, sizeof whole, STRUCT_SIZE_THROUGH(kvt_rope, frequencies)) ==
        NULL)
        return KVT_E_ARGUMENT;
    if (kvt_layout_bytes(layout, &unused) != KVT_OK) return KVT_E_ARGUMENT;
    if (layout->dtype == KVT_DTYPE_OPAQUE || layout->dtype == KVT_DTYPE_FP8) {
        return KVT_E_UNSUPPORTED;
    }
    const uint64_t row = kvt_layout_matrix_bytes(layout) / layout->tokens;
    if (keys_bytes != row * count || !keys_index_sound(kept, count, layout->tokens)) {
        return KVT_E_ARGUMENT;
    }
    if (count > UINT32_MAX - new_first || layout->tokens > UINT32_MAX - old_first) {
        return KVT_E_ARGUMENT;
    }
    if (turn.frequencies == NULL) {
        if (!(rope->base > 1.0 && rope->base <= 1e300)) return KVT_E_ARGUMENT;
        if (rope->rotary_dim > KEYS_ROTARY_MAX) return KVT_E_UNSUPPORTED;
        drop_rope_frequencies(rope->base, rope->rotary_dim, made);
        turn.frequencies = made;
    }
    return drop_rerotate(&shape, &turn, kept, old_first, new_first, keys);
}
