/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - the location table: handle -> entry, key -> entry; the memory of entries; and the entry
 * state machine. The file decides no transition; it asserts that each one is legal.
 *
 *     from          to
 *     ARRIVING      STAGED (handed over), RESIDENT (published), LEAVING
 *     STAGED        RESIDENT (published), LEAVING (called off, or no plan succeeded)
 *     RESIDENT      MOVING (a change is planned), LEAVING (an eviction is planned, or dropped),
 *                   QUARANTINED (a member is gone)
 *     MOVING        RESIDENT (published, or failed), LEAVING
 *     LEAVING       RESIDENT (the eviction was aborted, or the copy is the place now)
 *     QUARANTINED   RESIDENT (the member is back), LEAVING (dropped)
 *
 * Thread rule: the store's control lock.
 */
#include "store/core/entry.h"

#include <assert.h>
#include <kvterrace/policy.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ENTRY_BUCKETS_FIRST 1024u
#define ENTRY_KINDS_FIRST   16u

/* ---- handles ---- */

/* Rotates a word to the left. */
static uint64_t entry_turn(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

/* One round of SipHash over its four words. */
static void entry_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = entry_turn(v[1], 13) ^ v[0];
    v[0] = entry_turn(v[0], 32);
    v[2] += v[3];
    v[3] = entry_turn(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = entry_turn(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = entry_turn(v[1], 17) ^ v[2];
    v[2] = entry_turn(v[2], 32);
}

/* Takes one word of the message in: one round, as SipHash-1-3 has it. */
static void entry_absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    entry_round(v);
    v[0] ^= word;
}

/* SipHash-1-3 of 32 bytes. Without the secret a caller cannot choose two keys with one handle. */
uint64_t entry_handle(const entry_secret *secret, const kvt_key *key)
{
    uint64_t words[4];
    memcpy(words, key->bytes, sizeof words);
    uint64_t v[4] = {secret->words[0] ^ UINT64_C(0x736f6d6570736575),
                     secret->words[1] ^ UINT64_C(0x646f72616e646f6d),
                     secret->words[0] ^ UINT64_C(0x6c7967656e657261),
                     secret->words[1] ^ UINT64_C(0x7465646279746573)};
    for (int i = 0; i < 4; i++)
        entry_absorb(v, words[i]);
    entry_absorb(v, (uint64_t)sizeof words << 56);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        entry_round(v);
    /* 0 is no handle: the policy refuses it. */
    uint64_t hash = v[0] ^ v[1] ^ v[2] ^ v[3];
    return hash != 0 ? hash : 1;
}

/* ---- memory ---- */

kvt_status entry_memory_open(entry_memory *memory)
{
    memset(memory, 0, sizeof *memory);
    memory->kinds = calloc(ENTRY_KINDS_FIRST, sizeof(entry_kind *));
    if (memory->kinds == NULL) return KVT_E_MEMORY;
    memory->kind_buckets = ENTRY_KINDS_FIRST;
    base_slab_open(&memory->entries, sizeof(store_entry));
    base_slab_open(&memory->places, sizeof(store_place));
    return KVT_OK;
}

void entry_memory_close(entry_memory *memory)
{
    assert(memory->kind_count == 0);
    base_slab_close(&memory->entries);
    base_slab_close(&memory->places);
    for (uint32_t i = 0; i < ENTRY_BASES_PAGES; i++)
        free(memory->bases.pages[i]);
    free(memory->kinds);
    memset(memory, 0, sizeof *memory);
}

_Static_assert(ENTRY_BASES_PAGES *ENTRY_BASES_PAGES == 1u << CODECS_BASIS_BITS,
               "the pages have a count for every beginning");

/* The count of places that need a basis whose hash begins so, or NULL without memory. */
static uint32_t *entry_basis_count(entry_bases *bases, uint32_t start)
{
    uint32_t **at = &bases->pages[start / ENTRY_BASES_PAGES];
    uint32_t *page = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (page == NULL) {
        uint32_t *made = calloc(ENTRY_BASES_PAGES, sizeof *made);
        if (made == NULL) return NULL;
        if (__atomic_compare_exchange_n(at, &page, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            page = made;
        else
            free(made); /* another thread was first */
    }
    return &page[start % ENTRY_BASES_PAGES];
}

store_place *entry_place_new(entry_memory *memory, kvt_variant variant)
{
    uint32_t start, *count = NULL;
    if (entry_basis_of(variant, &start)) {
        count = entry_basis_count(&memory->bases, start);
        if (count == NULL) return NULL;
    }
    store_place *place = base_slab_take(&memory->places);
    if (place == NULL) return NULL;
    place->variant = variant;
    if (count != NULL) (void)__atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
    return place;
}

void entry_place_free(entry_memory *memory, store_place *place)
{
    uint32_t start;
    if (place != NULL && entry_basis_of(place->variant, &start)) {
        uint32_t *count = entry_basis_count(&memory->bases, start);
        assert(count != NULL && *count > 0 && "the place was counted when it was made");
        (void)__atomic_fetch_sub(count, 1, __ATOMIC_ACQ_REL);
    }
    base_slab_give(&memory->places, place);
}

uint32_t entry_basis_places(const entry_memory *memory, uint32_t start)
{
    const uint32_t *page =
        __atomic_load_n(&memory->bases.pages[start / ENTRY_BASES_PAGES], __ATOMIC_ACQUIRE);
    if (page == NULL) return 0;
    return __atomic_load_n(&page[start % ENTRY_BASES_PAGES], __ATOMIC_ACQUIRE);
}

bool entry_basis_next(const entry_memory *memory, uint32_t *start)
{
    for (uint32_t at = *start; at < 1u << CODECS_BASIS_BITS;) {
        const uint32_t *const *page = (const uint32_t *const *)&memory->bases.pages;
        if (__atomic_load_n(&page[at / ENTRY_BASES_PAGES], __ATOMIC_ACQUIRE) == NULL) {
            at = (at / ENTRY_BASES_PAGES + 1) * ENTRY_BASES_PAGES;
        } else if (entry_basis_places(memory, at) == 0) {
            at++;
        } else {
            *start = at;
            return true;
        }
    }
    return false;
}

/* The shape of a kind. */
static entry_shape entry_kind_shape(const entry_kind *kind)
{
    return (entry_shape){&kind->layout, kind->groups, kind->group_count};
}

/* The head of a shape's chain. */
static entry_kind **entry_kind_chain(entry_kind **kinds, size_t buckets, const entry_shape *shape)
{
    uint64_t hash = XXH3_64bits(shape->layout, sizeof *shape->layout);
    if (shape->group_count != 0)
        hash =
            XXH3_64bits_withSeed(shape->groups, shape->group_count * sizeof *shape->groups, hash);
    return &kinds[hash & (buckets - 1)];
}

/* Doubles the buckets of the kinds. Failing to is harmless: chains grow. */
static void entry_grow_kinds(entry_memory *memory)
{
    size_t count = memory->kind_buckets * 2;
    entry_kind **kinds = calloc(count, sizeof(entry_kind *));
    if (kinds == NULL) return;
    for (size_t i = 0; i < memory->kind_buckets; i++) {
        for (entry_kind *kind = memory->kinds[i], *next; kind != NULL; kind = next) {
            next = kind->next;
            const entry_shape shape = entry_kind_shape(kind);
            entry_kind **head = entry_kind_chain(kinds, count, &shape);
            kind->next = *head;
            *head = kind;
        }
    }
    free(memory->kinds);
    memory->kinds = kinds;
    memory->kind_buckets = count;
}

/* The kind of a shape, with one user more; NULL without memory. */
static const entry_kind *entry_kind_join(entry_memory *memory, const entry_shape *shape)
{
    entry_kind *kind = *entry_kind_chain(memory->kinds, memory->kind_buckets, shape);
    while (kind != NULL &&
           !(memcmp(&kind->layout, shape->layout, sizeof *shape->layout) == 0 &&
             kind->group_count == shape->group_count &&
             (shape->group_count == 0 || memcmp(kind->groups, shape->groups,
                                                shape->group_count * sizeof *shape->groups) == 0)))
        kind = kind->next;
    if (kind == NULL) {
        const size_t group_bytes = shape->group_count * sizeof kind->groups[0];
        kind = malloc(sizeof *kind + group_bytes);
        if (kind == NULL) return NULL;
        if (memory->kind_count >= memory->kind_buckets) entry_grow_kinds(memory);
        entry_kind **head = entry_kind_chain(memory->kinds, memory->kind_buckets, shape);
        *kind = (entry_kind){
            .next = *head, .layout = *shape->layout, .group_count = shape->group_count};
        if (group_bytes != 0) memcpy(kind->groups, shape->groups, group_bytes);
        kvt_status status = kvt_layout_bytes(&kind->layout, &kind->source_bytes);
        assert(status == KVT_OK);
        (void)status;
        *head = kind;
        memory->kind_count++;
    }
    kind->users++;
    return kind;
}

/* Takes one user away from a kind. */
static void entry_kind_leave(entry_memory *memory, const entry_kind *left)
{
    const entry_shape shape = entry_kind_shape(left);
    entry_kind **link = entry_kind_chain(memory->kinds, memory->kind_buckets, &shape);
    while (*link != left)
        link = &(*link)->next;
    entry_kind *kind = *link;
    assert(kind->users > 0);
    if (--kind->users != 0) return;
    *link = kind->next;
    memory->kind_count--;
    free(kind);
}

/* Frees an entry that is in no table. */
static void entry_free(entry_memory *memory, store_entry *entry)
{
    entry_kind_leave(memory, entry->kind);
    if (entry->rare != NULL) free(entry->rare->scores);
    free(entry->rare);
    base_slab_give(&memory->entries, entry);
}

entry_rare *entry_rare_make(store_entry *entry)
{
    if (entry->rare == NULL) entry->rare = calloc(1, sizeof *entry->rare);
    return entry->rare;
}

/* ---- the table ---- */

/* Empty buckets, in large pages when they are many; NULL without memory. */
static store_entry **entry_make_buckets(size_t count)
{
    store_entry **buckets = kvt_memory_resize(NULL, NULL, 0, count * sizeof(store_entry *));
    if (buckets != NULL) memset(buckets, 0, count * sizeof(store_entry *));
    return buckets;
}

kvt_status entry_table_init(entry_table *table, const entry_secret *secret, entry_memory *memory)
{
    assert(secret != NULL && memory != NULL);
    memset(table, 0, sizeof *table);
    table->secret = secret;
    table->memory = memory;
    table->buckets = entry_make_buckets(ENTRY_BUCKETS_FIRST);
    if (table->buckets == NULL) return KVT_E_MEMORY;
    table->bucket_count = ENTRY_BUCKETS_FIRST;
    return KVT_OK;
}

void entry_table_deinit(entry_table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (store_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            entry_place_free(table->memory, entry->copy);
            entry_place_free(table->memory, entry->place);
            entry_free(table->memory, entry);
        }
    }
    free(table->buckets);
    memset(table, 0, sizeof *table);
}

store_entry *entry_find_handle(const entry_table *table, uint64_t handle)
{
    assert(table->bucket_count != 0 && (table->bucket_count & (table->bucket_count - 1)) == 0);
    store_entry *entry = table->buckets[handle & (table->bucket_count - 1)];
    while (entry != NULL && entry->handle != handle) {
        entry = entry->next;
    }
    return entry;
}

store_entry *entry_find_key(const entry_table *table, const kvt_key *key)
{
    return entry_find_hashed(table, entry_handle(table->secret, key), key);
}

store_entry *entry_find_hashed(const entry_table *table, uint64_t handle, const kvt_key *key)
{
    store_entry *entry = entry_find_handle(table, handle);
    return entry != NULL && memcmp(&entry->key, key, sizeof *key) == 0 ? entry : NULL;
}

/* ---- looking up many ---- */

/* Keys ahead of the present one whose bucket, entry and place are prefetched. Each prefetch needs
 * the one before it, so they lie far enough apart for it to have arrived. */
enum { SIGHT_BUCKET = 24, SIGHT_ENTRY = 16, SIGHT_PLACE = 8 };

void entry_sight_begin(entry_sight *sight, const entry_secret *secret, const kvt_key *keys,
                       size_t count)
{
    assert(count <= ENTRY_SIGHT_KEYS);
    sight->keys = keys;
    sight->count = count;
    for (size_t i = 0; i < count; i++)
        sight->handles[i] = entry_handle(secret, &keys[i]);
}

/* The bucket of a key, or NULL beyond the last one. */
static store_entry **entry_sight_bucket(const entry_table *table, const entry_sight *sight,
                                        size_t i)
{
    return i < sight->count ? &table->buckets[sight->handles[i] & (table->bucket_count - 1)] : NULL;
}

/* Prefetches the part of an entry that lookups and predictions read; NULL: nothing. */
static void entry_prefetch(const store_entry *entry)
{
    const char *first = (const char *)entry;
    if (entry == NULL) return; /* an empty bucket */
    __builtin_prefetch(first);
    __builtin_prefetch(first + 64);
    __builtin_prefetch(first + offsetof(store_entry, since));
}

store_entry *entry_sight_find(const entry_table *table, const entry_sight *sight, size_t i)
{
    assert(i < sight->count);
    for (size_t at = 0; i == 0 && at < SIGHT_BUCKET && at < sight->count; at++)
        __builtin_prefetch(entry_sight_bucket(table, sight, at));
    for (size_t at = 0; i == 0 && at < SIGHT_ENTRY && at < sight->count; at++)
        entry_prefetch(*entry_sight_bucket(table, sight, at));
    /* Prefetch memory for the keys behind this one. Entries that are not the first of their chain
     * are left out. */
    store_entry **bucket = entry_sight_bucket(table, sight, i + SIGHT_BUCKET);
    if (bucket != NULL) __builtin_prefetch(bucket);
    bucket = entry_sight_bucket(table, sight, i + SIGHT_ENTRY);
    if (bucket != NULL && *bucket != NULL) entry_prefetch(*bucket);
    bucket = entry_sight_bucket(table, sight, i + SIGHT_PLACE);
    if (bucket != NULL && *bucket != NULL) __builtin_prefetch((*bucket)->place);
    return entry_find_hashed(table, sight->handles[i], &sight->keys[i]);
}

/* ---- changes ---- */

/* Spreads the entries over more buckets, which are at least twice the entries: every further entry
 * of a chain is a miss of the caches. Failing to is harmless: chains grow. */
static void entry_spread(entry_table *table, size_t count)
{
    assert(count > table->bucket_count && (count & (count - 1)) == 0);
    store_entry **buckets = entry_make_buckets(count);
    if (buckets == NULL) return;
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (store_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            store_entry **head = &buckets[entry->handle & (count - 1)];
            entry->next = *head;
            *head = entry;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->bucket_count = count;
}

/* Doubles the buckets. */
static void entry_grow_buckets(entry_table *table)
{
    assert(table->count >= table->bucket_count / 2);
    entry_spread(table, table->bucket_count * 2);
}

void entry_table_reserve(entry_table *table, size_t entries)
{
    size_t count = table->bucket_count;
    while (count / 2 < entries && count <= SIZE_MAX / 4 / sizeof *table->buckets)
        count *= 2;
    if (count != table->bucket_count) entry_spread(table, count);
}

kvt_status entry_insert(entry_table *table, const kvt_key *key, const entry_shape *shape,
                        store_entry **entry_out)
{
    assert(table->secret != NULL);
    *entry_out = NULL;
    uint64_t handle = entry_handle(table->secret, key);
    if (entry_find_handle(table, handle) != NULL) return KVT_REFUSED;
    if (table->count >= table->bucket_count / 2) entry_grow_buckets(table);
    const entry_kind *kind = entry_kind_join(table->memory, shape);
    if (kind == NULL) return KVT_E_MEMORY;
    store_entry *entry = base_slab_take(&table->memory->entries);
    if (entry == NULL) {
        entry_kind_leave(table->memory, kind);
        return KVT_E_MEMORY;
    }
    entry->kind = kind;
    entry->handle = handle;
    entry->key = *key;
    entry->state = ENTRY_ARRIVING;
    entry->copy_index = UINT32_MAX;
    store_entry **head = &table->buckets[handle & (table->bucket_count - 1)];
    entry->next = *head;
    *head = entry;
    table->count++;
    *entry_out = entry;
    return KVT_OK;
}

/* Takes an entry out of its hash chain. The entry is in the table. */
static void entry_unlink(entry_table *table, store_entry *entry)
{
    assert(table->count > 0);
    store_entry **link = &table->buckets[entry->handle & (table->bucket_count - 1)];
    while (*link != entry) {
        link = &(*link)->next;
    }
    *link = entry->next;
    table->count--;
}

void entry_transfer(entry_table *from, entry_table *to, store_entry *entry)
{
    assert(from != to);
    assert(entry->place != NULL);
    entry_unlink(from, entry);
    if (to->count >= to->bucket_count / 2) entry_grow_buckets(to);
    store_entry **head = &to->buckets[entry->handle & (to->bucket_count - 1)];
    entry->next = *head;
    *head = entry;
    to->count++;
}

void entry_erase(entry_table *table, store_entry *entry)
{
    assert(entry->state == ENTRY_ARRIVING || entry->state == ENTRY_LEAVING);
    assert(entry->place == NULL && entry->copy == NULL && entry->read == NULL);
    assert(!entry->announced);
    entry_unlink(table, entry);
    entry_free(table->memory, entry);
}

void entry_set_state(store_entry *entry, entry_state from, entry_state to)
{
    static const bool legal[7][7] = {
        [ENTRY_ARRIVING] = {[ENTRY_RESIDENT] = true, [ENTRY_STAGED] = true, [ENTRY_LEAVING] = true},
        [ENTRY_STAGED] = {[ENTRY_RESIDENT] = true, [ENTRY_LEAVING] = true},
        [ENTRY_RESIDENT] =
            {[ENTRY_MOVING] = true, [ENTRY_LEAVING] = true, [ENTRY_QUARANTINED] = true},
        [ENTRY_QUARANTINED] = {[ENTRY_RESIDENT] = true, [ENTRY_LEAVING] = true},
        [ENTRY_MOVING] = {[ENTRY_RESIDENT] = true, [ENTRY_LEAVING] = true},
        [ENTRY_LEAVING] = {[ENTRY_RESIDENT] = true}, /* the plan with its eviction was aborted */
    };
    assert(entry->state == from);
    assert(legal[from][to]);
    (void)from;
    (void)legal;
    entry->state = (uint8_t)to;
    assert((to == ENTRY_STAGED) <= (from == ENTRY_ARRIVING));
    if (from == ENTRY_RESIDENT) entry->moves++;
}
