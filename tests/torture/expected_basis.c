/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_basis.c - a basis that comes and goes, and what a later open must find of it
 * (expected.h). No entry is stored in its form, so nothing but the calls here decides whether it is
 * there.
 *
 * Thread rule: one thread of the worker calls; the parent judges while the worker is dead or waits.
 */
#include "expected.h"

#include "basis_support.h"

#include <kvterrace/basis.h>

/* Single heads, which make the smallest object. */
static const transform_shape basis_shape = {.layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 32,
                                            .rotary_dim = 32,
                                            .sides = 2,
                                            .span = TRANSFORM_SPAN_HEAD};

static const basis_made *basis_of_worker(void)
{
    static basis_made made;
    if (made.object != NULL) return &made;
    made = basis_made_of(basis_shape, 11);
    if (basis_made_write(&made) != KVT_OK) abort();
    return &made;
}

static expected_basis basis_find(kvt_store *store)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    if (kvt_basis_at(store, 0, &info) != KVT_OK) return EXPECTED_BASIS_ABSENT;
    if (info.state != KVT_BASIS_PRESENT) return EXPECTED_BASIS_DAMAGED;
    return memcmp(info.hash, basis_of_worker()->basis.hash, sizeof info.hash) == 0
               ? EXPECTED_BASIS_PRESENT
               : EXPECTED_BASIS_DAMAGED;
}

void expected_look_at_basis(expected_model *model, kvt_store *store)
{
    atomic_store(&model->basis_found, basis_find(store));
}

/* The state is in doubt while a call is under way, and after one that failed. */
void expected_change_basis(expected_model *model, expected_totals *totals, kvt_store *store,
                           bool add)
{
    const basis_made *made = basis_of_worker();
    const unsigned before = atomic_load(&model->basis);
    atomic_store(&model->basis, EXPECTED_BASIS_IN_DOUBT);
    const kvt_status status = add ? kvt_basis_add(store, made->object, made->bytes)
                                  : kvt_basis_remove(store, made->basis.hash);
    const kvt_status nothing_to_do = add ? KVT_EXISTS : KVT_MISS;
    const bool was = before == (add ? EXPECTED_BASIS_PRESENT : EXPECTED_BASIS_ABSENT);
    atomic_fetch_add(&totals->basis_changes, 1);
    if (status == KVT_OK || status == nothing_to_do) {
        const expected_basis after = add ? EXPECTED_BASIS_PRESENT : EXPECTED_BASIS_ABSENT;
        if (basis_find(store) != after)
            expected_report(&totals->odd, "ODD: a basis that was %s is not",
                            add ? "added" : "removed");
        atomic_store(&model->basis, after);
    }
    /* A removal flushes the catalog, which a fault of a device may keep from it. */
    const bool expected = was ? status == nothing_to_do : status == KVT_OK;
    if (before == EXPECTED_BASIS_IN_DOUBT || expected) return;
    if (!add && status < 0 && atomic_load(&model->faulty)) return;
    expected_report(&totals->odd, "ODD: %s a basis that was %s: %s", add ? "adding" : "removing",
                    before == EXPECTED_BASIS_PRESENT ? "there" : "not there",
                    kvt_status_name(status));
}

void expected_judge_basis(expected_model *model, expected_totals *totals)
{
    const unsigned found = atomic_load(&model->basis_found);
    const unsigned required = atomic_load(&model->basis);
    atomic_fetch_add(&totals->checks, 1);
    if (found == EXPECTED_BASIS_DAMAGED)
        expected_report(&totals->wrong_bytes, "WRONG: the file of a basis is damaged");
    if (required == EXPECTED_BASIS_PRESENT && found != EXPECTED_BASIS_PRESENT)
        expected_report(&totals->lost_flushed, "LOST: a basis that was added");
    if (required == EXPECTED_BASIS_ABSENT && found != EXPECTED_BASIS_ABSENT)
        expected_report(&totals->came_back, "CAME BACK: a basis that was removed");
    atomic_store(&model->basis, found == EXPECTED_BASIS_DAMAGED ? EXPECTED_BASIS_IN_DOUBT : found);
}
