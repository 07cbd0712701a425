/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bases.c - the bases of the transform codec that a store has: taken at open, added, removed,
 * listed. What decides whether a basis may go is counted where places are made and freed (entry.c),
 * so the file walks through no entry.
 *
 * Thread rule: any thread. Locks as bases.h says.
 */
#include "store/learn/bases.h"
#include "base/kill_point.h"
#include "base/struct_size.h"
#include "store/core/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KVT_BASES_MAX == STORE_BASES_MAX, "the public limit is the list's length");
_Static_assert((int)KVT_BASIS_LAYERS4 == (int)TRANSFORM_SPAN_LAYERS4, "one numbering of spans");

#define BASES_INFO_LEAST STRUCT_SIZE_THROUGH(kvt_basis_info, model)

/* ---- slots ---- */

/* The slot of the basis whose hash begins with 20 bits; STORE_BASES_MAX: the store lacks it. */
static uint32_t bases_find(const kvt_store *store, uint32_t start)
{
    uint32_t slot = 0;
    while (slot < STORE_BASES_MAX &&
           __atomic_load_n(&store->bases.starts[slot], __ATOMIC_ACQUIRE) != start + 1)
        slot++;
    return slot;
}

kvt_record_bases bases_of(const kvt_store *store, kvt_variant variant)
{
    uint32_t start;
    if (!entry_basis_of(variant, &start)) return (kvt_record_bases){NULL, 0};
    const uint32_t slot = bases_find(store, start);
    if (slot == STORE_BASES_MAX) return (kvt_record_bases){NULL, 0};
    return (kvt_record_bases){&store->bases.list[slot], 1};
}

kvt_record_bases bases_at_open(const kvt_store *store)
{
    uint32_t count = 0;
    while (count < STORE_BASES_MAX && store->bases.owned[count] != NULL)
        count++;
    return (kvt_record_bases){store->bases.list, count};
}

bool bases_has(const kvt_store *store, kvt_variant variant)
{
    uint32_t start;
    return !entry_basis_of(variant, &start) || bases_find(store, start) != STORE_BASES_MAX;
}

/* Whether the store may code in a form of the basis. The store's lock is held. */
static bool bases_is_offered(const kvt_store *store, uint32_t start)
{
    uint32_t other;
    for (uint32_t i = 0; i < store->costs.variant_count; i++)
        if (entry_basis_of(store->costs.variants[i].variant, &other) && other == start) return true;
    return false;
}

/* Takes a damaged file off the list. The store's lock is held. */
static void bases_forget_damage(store_bases *bases, uint32_t start)
{
    for (uint32_t i = 0; i < bases->damaged_count; i++) {
        if (bases->damaged[i].start != start) continue;
        bases->damaged[i] = bases->damaged[--bases->damaged_count];
        return;
    }
}

/* The damage of a file, or NULL. */
static const store_damaged_basis *bases_damage(const store_bases *bases, uint32_t start)
{
    for (uint32_t i = 0; i < bases->damaged_count; i++)
        if (bases->damaged[i].start == start) return &bases->damaged[i];
    return NULL;
}

/* The name that the catalog knows, or NULL. */
static const catalog_basis *bases_known(const store_bases *bases, uint32_t start)
{
    for (uint32_t i = 0; i < bases->known_count; i++)
        if (transform_hash_start(bases->known[i].hash) == start) return &bases->known[i];
    return NULL;
}

/* ---- add ---- */

/* Whether a basis may be taken, and into which slot. bases.lock is held. */
static kvt_status bases_choose(const kvt_store *store, const store_basis *basis, uint32_t *slot_out)
{
    const uint32_t start = transform_hash_start(basis->view.hash);
    const uint32_t present = bases_find(store, start);
    if (present != STORE_BASES_MAX) {
        const uint8_t *hash = store->bases.owned[present]->view.hash;
        return memcmp(hash, basis->view.hash, KVT_BASIS_HASH_BYTES) == 0 ? KVT_EXISTS
                                                                         : KVT_E_UNSUPPORTED;
    }
    for (*slot_out = 0; *slot_out < STORE_BASES_MAX; ++*slot_out)
        if (store->bases.owned[*slot_out] == NULL) return KVT_OK;
    return KVT_E_SPACE;
}

/* Puts a basis into its slot. bases.lock is held. */
static void bases_enter(kvt_store *store, store_basis *basis, uint32_t slot)
{
    store_bases *bases = &store->bases;
    const uint32_t start = transform_hash_start(basis->view.hash);
    pthread_mutex_lock(&store->lock);
    assert(bases->owned[slot] == NULL && bases->starts[slot] == 0);
    bases->owned[slot] = basis;
    bases->list[slot] = &basis->view;
    __atomic_store_n(&bases->starts[slot], start + 1, __ATOMIC_RELEASE);
    bases_forget_damage(bases, start);
    /* The options of entries were made as if the form were not to be had. */
    if (bases_is_offered(store, start)) learn_begin_epoch(store);
    pthread_mutex_unlock(&store->lock);
}

/* Takes an object whose memory becomes the store's with KVT_OK. file_start: it comes from the file
 * of that name; NULL: it is written to its own. bases.lock is held, or nobody else knows the store.
 * Statuses as of kvt_basis_add; KVT_E_MISMATCH (the file has another's name, and would be lost when
 * that one is added). */
static kvt_status bases_take(kvt_store *store, void *object, uint64_t bytes,
                             const uint32_t *file_start)
{
    uint32_t slot;
    store_basis *basis = malloc(sizeof *basis);
    if (basis == NULL) return KVT_E_MEMORY;
    basis->object = object;
    basis->bytes = bytes;
    kvt_status status = basis_read(object, bytes, &basis->view, &basis->origin);
    const uint32_t start = status == KVT_OK ? transform_hash_start(basis->view.hash) : 0;
    if (status == KVT_OK && file_start != NULL && *file_start != start) status = KVT_E_MISMATCH;
    if (status == KVT_OK) status = bases_choose(store, basis, &slot);
    if (status == KVT_OK && file_start == NULL)
        status = bases_file_write(store->bases.catalog_path, start, object, bytes);
    if (status != KVT_OK) {
        free(basis);
        return status;
    }
    KILL_POINT("basis: file durable, name not noted");
    /* The catalog remembers the name. A failure is none: 20 bits of it are in every row. */
    catalog_basis note;
    const catalog_basis *known = bases_known(&store->bases, start);
    memcpy(note.hash, basis->view.hash, sizeof note.hash);
    if (store->catalog != NULL && (known == NULL || memcmp(known, &note, sizeof note) != 0))
        (void)!catalog_note_basis(store->catalog, &note);
    bases_enter(store, basis, slot);
    return KVT_OK;
}

kvt_status kvt_basis_add(kvt_store *store, const void *bytes, uint64_t size)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, basis_add, store, bytes, size);
    if (store == NULL || bytes == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    uint64_t said;
    if (size < BASIS_ALIGN) return KVT_E_CORRUPT;
    /* A size that the object does not have is found before it is asked for in memory. */
    kvt_status status = basis_read_head(bytes, BASIS_ALIGN, &said);
    if (status == KVT_OK && said != size) status = KVT_E_CORRUPT;
    if (status != KVT_OK) return status;
    void *copy = aligned_alloc(BASES_ALIGN, (size / BASES_ALIGN + 1) * BASES_ALIGN);
    if (copy == NULL) return KVT_E_MEMORY;
    memcpy(copy, bytes, size);
    pthread_mutex_lock(&store->bases.lock);
    status = bases_take(store, copy, size, NULL);
    pthread_mutex_unlock(&store->bases.lock);
    if (status != KVT_OK) free(copy);
    return status;
}

/* ---- remove ---- */

/* Whether nothing needs a basis; if so its slot is emptied, so that nothing can from here on. The
 * slot may be STORE_BASES_MAX. bases.lock is held. */
static kvt_status bases_leave(kvt_store *store, uint32_t start, uint32_t slot, store_basis **out)
{
    store_bases *bases = &store->bases;
    kvt_status status = KVT_OK;
    *out = NULL;
    pthread_mutex_lock(&store->lock);
    if (entry_basis_places(&store->memory, start) != 0 || bases_is_offered(store, start))
        status = KVT_BUSY;
    if (status == KVT_OK && slot != STORE_BASES_MAX) {
        *out = bases->owned[slot];
        __atomic_store_n(&bases->starts[slot], 0, __ATOMIC_RELEASE);
        bases->owned[slot] = NULL;
        bases->list[slot] = NULL;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* bases.lock is held. */
static kvt_status bases_remove(kvt_store *store, const uint8_t *hash)
{
    store_bases *bases = &store->bases;
    store_basis *basis;
    const uint32_t start = transform_hash_start(hash);
    const uint32_t slot = bases_find(store, start);
    if (slot == STORE_BASES_MAX && bases_damage(bases, start) == NULL) return KVT_MISS;
    if (slot != STORE_BASES_MAX &&
        memcmp(bases->owned[slot]->view.hash, hash, KVT_BASIS_HASH_BYTES) != 0)
        return KVT_MISS;
    kvt_status status = bases_leave(store, start, slot, &basis);
    if (status != KVT_OK) return status;
    /* The catalog's queued deletions are of records that needed the basis. */
    if (store->catalog != NULL) status = catalog_settle(store->catalog);
    KILL_POINT("basis: catalog settled, file there");
    if (status == KVT_OK) status = bases_file_remove(store->bases.catalog_path, start);
    if (status != KVT_OK) {
        if (basis != NULL) bases_enter(store, basis, slot);
        return status;
    }
    pthread_mutex_lock(&store->lock);
    bases_forget_damage(bases, start);
    pthread_mutex_unlock(&store->lock);
    if (basis != NULL) free(basis->object);
    free(basis);
    return KVT_OK;
}

kvt_status kvt_basis_remove(kvt_store *store, const uint8_t *hash)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, basis_remove, store, hash);
    if (store == NULL || hash == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    pthread_mutex_lock(&store->bases.lock);
    kvt_status status = bases_remove(store, hash);
    pthread_mutex_unlock(&store->bases.lock);
    return status;
}

/* The basis of an index, by the beginning of its hash; its slot, or STORE_BASES_MAX. False: past
 * the last. The store's lock is held. */
static bool bases_at(const kvt_store *store, size_t index, uint32_t *start_out, uint32_t *slot_out)
{
    const store_bases *bases = &store->bases;
    for (*slot_out = 0; *slot_out < STORE_BASES_MAX; ++*slot_out) {
        if (bases->owned[*slot_out] == NULL || index-- != 0) continue;
        *start_out = transform_hash_start(bases->owned[*slot_out]->view.hash);
        return true;
    }
    if (index < bases->damaged_count) {
        *start_out = bases->damaged[index].start;
        return true;
    }
    index -= bases->damaged_count;
    for (*start_out = 0; entry_basis_next(&store->memory, start_out); ++*start_out) {
        if (bases_find(store, *start_out) != STORE_BASES_MAX) continue;
        if (bases_damage(bases, *start_out) != NULL || index-- != 0) continue;
        return true;
    }
    return false;
}

kvt_status kvt_basis_get(kvt_store *store, size_t index, kvt_basis_info *out)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, basis_get, store, index, out);
    if (store == NULL || out == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(out, BASES_INFO_LEAST)) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    kvt_basis_info whole = {.struct_size = sizeof whole};
    uint32_t start, slot;
    pthread_mutex_lock(&store->lock);
    const bool found = bases_at(store, index, &start, &slot);
    if (found) {
        if (slot != STORE_BASES_MAX) {
            const store_basis *basis = store->bases.owned[slot];
            const transform_shape *shape = &basis->view.shape;
            whole.state = KVT_BASIS_PRESENT;
            whole.hash_bits = 8 * KVT_BASIS_HASH_BYTES;
            memcpy(whole.hash, basis->view.hash, sizeof whole.hash);
            whole.span = (kvt_basis_span)shape->span;
            whole.sides = shape->sides;
            whole.bytes = basis->bytes;
            whole.layers = shape->layers;
            whole.kv_heads = shape->kv_heads;
            whole.head_dim = shape->head_dim;
            whole.rotary_dim = shape->rotary_dim;
            whole.tokens = basis->origin.tokens;
            memcpy(whole.digest, basis->origin.digest, sizeof whole.digest);
            memcpy(whole.model, basis->origin.model, sizeof whole.model);
        } else {
            /* The name of a basis that is not there, as far as it is known. */
            const store_damaged_basis *damage = bases_damage(&store->bases, start);
            const catalog_basis *known = bases_known(&store->bases, start);
            whole.state = damage != NULL ? KVT_BASIS_DAMAGED : KVT_BASIS_MISSING;
            whole.status = damage != NULL ? damage->status : KVT_OK;
            whole.hash_bits = known != NULL ? 8 * KVT_BASIS_HASH_BYTES : CODECS_BASIS_BITS;
            whole.hash[0] = (uint8_t)(start >> 12);
            whole.hash[1] = (uint8_t)(start >> 4);
            whole.hash[2] = (uint8_t)(start << 4);
            if (known != NULL) memcpy(whole.hash, known->hash, sizeof whole.hash);
        }
        whole.records = entry_basis_places(&store->memory, start);
        whole.in_ladder = bases_is_offered(store, start);
    }
    pthread_mutex_unlock(&store->lock);
    struct_size_out(out, &whole, sizeof whole);
    return found ? KVT_OK : KVT_END;
}

uint64_t bases_lacking(const kvt_store *store, uint32_t *start_out)
{
    uint64_t places = 0;
    assert(store_is_locked(store));
    for (uint32_t start = 0; entry_basis_next(&store->memory, &start); start++) {
        if (bases_find(store, start) != STORE_BASES_MAX) continue;
        if (places == 0) *start_out = start;
        places += entry_basis_places(&store->memory, start);
    }
    return places;
}

/* ---- open and close ---- */

typedef struct bases_walk {
    kvt_store *store;
    char *note;
    size_t note_size;
} bases_walk;

/* Takes one file. A damaged one is left where it is: its entries cannot be read until the basis is
 * added again. One that lacked memory is as good as damaged: the store serves without it. */
static kvt_status bases_visit(void *context, const char *path, uint32_t start)
{
    bases_walk *walk = context;
    store_bases *bases = &walk->store->bases;
    void *object;
    uint64_t bytes;
    kvt_status status = bases_file_read(path, &object, &bytes);
    if (status == KVT_OK) status = bases_take(walk->store, object, bytes, &start);
    if (status == KVT_OK) return KVT_OK;
    free(object);
    if (bases->damaged_count < STORE_BASES_MAX)
        bases->damaged[bases->damaged_count++] = (store_damaged_basis){start, status};
    if (walk->note_size != 0 && walk->note[0] == '\0')
        (void)snprintf(walk->note, walk->note_size,
                       "%.180s: %s; entries that need it cannot be read", path,
                       kvt_status_text(status));
    return KVT_OK;
}

/* Takes a name that the catalog keeps. Of a row that cannot be read, 20 bits are known. */
static bool bases_visit_known(void *context, const void *bytes, size_t size)
{
    store_bases *bases = context;
    if (size == sizeof *bases->known) memcpy(&bases->known[bases->known_count++], bytes, size);
    return bases->known_count < STORE_BASES_KNOWN;
}

kvt_status bases_open(kvt_store *store, char *note, size_t note_size)
{
    store_bases *bases = &store->bases;
    bases_walk walk = {store, note, note_size};
    if (store->catalog == NULL) return KVT_OK;
    bases->catalog_path = catalog_place(store->catalog);
    bases_file_clean(bases->catalog_path);
    bases->known = calloc(STORE_BASES_KNOWN, sizeof *bases->known);
    if (bases->known == NULL) return KVT_E_MEMORY;
    kvt_status status = catalog_each_blob(store->catalog, "basis:*", bases_visit_known, bases);
    if (status == KVT_OK) status = bases_file_each(bases->catalog_path, bases_visit, &walk);
    return status;
}

void bases_close(kvt_store *store)
{
    store_bases *bases = &store->bases;
    for (uint32_t i = 0; i < STORE_BASES_MAX; i++) {
        if (bases->owned[i] == NULL) continue;
        free(bases->owned[i]->object);
        free(bases->owned[i]);
    }
    free(bases->known);
    pthread_mutex_destroy(&bases->lock);
}
