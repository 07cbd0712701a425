/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_basis.c - a basis that comes and goes, and what a later open must find of it
 * (expected.h). No entry is stored in its form, so nothing but the calls here decides whether it is
 * there. And the ladder of a lossy series, with the two bases that its forms need.
 *
 * Thread rule: one thread of the worker calls; the parent judges while the worker is dead or waits.
 */
#include "expected.h"

#include "basis_support.h"
#include "ladder_support.h"
#include "store/learn/bases.h"

#include <kvterrace/basis.h>

/* Single heads, which make the smallest object. */
static const transform_shape basis_shape = {.layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 32,
                                            .rotary_dim = 32,
                                            .sides = 2,
                                            .span = TRANSFORM_SPAN_HEAD};

/* ---- the ladder of a lossy series ---- */

/* The forms, %A and %B for the names of the bases, with bits and losses that are made up. */
static const struct {
    const char *name;
    double bits, loss;
} ladder_forms[] = {{"planes:k8v8,g64", 9, 0.001},      {"planes:k6v6,g64", 7, 0.002},
                    {"entropy:k0.25v0.5", 4, 0.004},    {"transform:%A,s0.25", 3.8, 0.005},
                    {"transform:%B,s0.25", 3.6, 0.006}, {"transform:%A,s0.75", 2.4, 0.010},
                    {"transform:%B,s0.75", 2.2, 0.012}};
enum { LADDER_FORMS = sizeof ladder_forms / sizeof ladder_forms[0], LADDER_BASES = 2 };

/* Two bases for the entries' layout; the same in every process. */
static const basis_made *ladder_basis(int index)
{
    static basis_made made[LADDER_BASES];
    static const transform_span spans[LADDER_BASES] = {TRANSFORM_SPAN_HEAD, TRANSFORM_SPAN_LAYER};
    if (made[index].object != NULL) return &made[index];
    const kvt_layout layout = expected_layout_of(0);
    const transform_shape shape = {.layers = layout.layers,
                                   .kv_heads = layout.kv_heads,
                                   .head_dim = layout.head_dim,
                                   .rotary_dim = layout.head_dim,
                                   .sides = 2,
                                   .span = spans[index]};
    made[index] = basis_made_of(shape, 30 + (uint64_t)index);
    if (basis_made_write(&made[index]) != KVT_OK) abort();
    return &made[index];
}

static void ladder_name(size_t form, char *name, size_t size)
{
    const char *given = ladder_forms[form].name, *at = strchr(given, '%');
    if (at == NULL)
        (void)snprintf(name, size, "%s", given);
    else
        (void)snprintf(name, size, "%.*s%05X%s", (int)(at - given), given,
                       (unsigned)transform_hash_start(ladder_basis(at[1] == 'B')->basis.hash),
                       at + 2);
}

static void ladder_path(const expected_series *series, const char *file, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s", series->folder, file);
}

void expected_make_ladder(const expected_series *series)
{
    char path[240], names[LADDER_FORMS][48];
    test_rung rungs[LADDER_FORMS];
    for (size_t i = 0; i < LADDER_FORMS; i++) {
        ladder_name(i, names[i], sizeof names[i]);
        rungs[i] = (test_rung){names[i], ladder_forms[i].bits, ladder_forms[i].loss,
                               1.5 * ladder_forms[i].loss, true};
    }
    ladder_path(series, "profile.db", path, sizeof path);
    ladder_make_profile(path, rungs, LADDER_FORMS);
    ladder_path(series, "catalog.db", path, sizeof path);
    for (int i = 0; i < LADDER_BASES; i++) {
        const basis_made *made = ladder_basis(i);
        if (bases_file_write(path, transform_hash_start(made->basis.hash), made->object,
                             made->bytes) != KVT_OK)
            abort();
    }
}

void expected_use_ladder(const expected_series *series, uint64_t choice, kvt_store_options *options)
{
    static char profile[240];
    char name[48];
    ladder_path(series, "profile.db", profile, sizeof profile);
    options->learning.profile_path = profile;
    options->learning.learn = false;
    options->loss.ladder = true;
    options->loss.loss_limit = 1;
    options->loss.ladder_layout = expected_layout_of(0);
    if (choice % (LADDER_FORMS + 1) == LADDER_FORMS) return;
    ladder_name(choice % (LADDER_FORMS + 1), name, sizeof name);
    if (kvt_variant_parse(name, &options->variant) != KVT_OK) abort();
}

/* ---- a basis that comes and goes ---- */

static const basis_made *basis_of_worker(void)
{
    static basis_made made;
    if (made.object != NULL) return &made;
    made = basis_made_of(basis_shape, 11);
    if (basis_made_write(&made) != KVT_OK) abort();
    return &made;
}

/* Those of a ladder are always there. */
static expected_basis basis_find(kvt_store *store)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    expected_basis found = EXPECTED_BASIS_ABSENT;
    for (size_t i = 0; kvt_basis_get(store, i, &info) == KVT_OK; i++) {
        if (info.state != KVT_BASIS_PRESENT) return EXPECTED_BASIS_DAMAGED;
        if (memcmp(info.hash, basis_of_worker()->basis.hash, sizeof info.hash) == 0)
            found = EXPECTED_BASIS_PRESENT;
    }
    return found;
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
