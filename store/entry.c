/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - the location table: handle -> entry, key -> entry, and the entry state machine. The
 * file decides no transition; it asserts that each one is legal.
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
#include "store/entry.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BUCKETS_FIRST 1024u

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
    uint64_t hash = v[0] ^ v[1] ^ v[2] ^ v[3];
    return hash != 0 ? hash : 1;
}

/* ---- the table ---- */

kvt_status entry_table_init(entry_table *table, const entry_secret *secret)
{
    assert(secret != NULL);
    memset(table, 0, sizeof *table);
    table->secret = secret;
    table->buckets = calloc(ENTRY_BUCKETS_FIRST, sizeof(store_entry *));
    if (table->buckets == NULL) return KVT_E_MEMORY;
    table->bucket_count = ENTRY_BUCKETS_FIRST;
    return KVT_OK;
}

void entry_table_deinit(entry_table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (store_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry->copy);
            free(entry->place);
            free(entry);
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
    store_entry *entry = entry_find_handle(table, entry_handle(table->secret, key));
    return entry != NULL && memcmp(&entry->key, key, sizeof *key) == 0 ? entry : NULL;
}

/* Doubles the buckets. Failing to is harmless: chains grow. */
static void entry_grow_buckets(entry_table *table)
{
    assert(table->count >= table->bucket_count);
    size_t count = table->bucket_count * 2;
    store_entry **buckets = calloc(count, sizeof(store_entry *));
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

kvt_status entry_insert(entry_table *table, const kvt_key *key, store_entry **entry_out)
{
    assert(table->secret != NULL);
    *entry_out = NULL;
    uint64_t handle = entry_handle(table->secret, key);
    if (entry_find_handle(table, handle) != NULL) return KVT_REFUSED;
    if (table->count >= table->bucket_count) entry_grow_buckets(table);
    store_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) return KVT_E_MEMORY;
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
    if (to->count >= to->bucket_count) entry_grow_buckets(to);
    store_entry **head = &to->buckets[entry->handle & (to->bucket_count - 1)];
    entry->next = *head;
    *head = entry;
    to->count++;
}

void entry_erase(entry_table *table, store_entry *entry)
{
    assert(entry->state == ENTRY_ARRIVING || entry->state == ENTRY_LEAVING);
    assert(entry->place == NULL && entry->copy == NULL && entry->load == NULL);
    assert(entry->staged == NULL && !entry->announced);
    entry_unlink(table, entry);
    free(entry);
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
    entry->state = to;
    assert((to == ENTRY_STAGED) <= (from == ENTRY_ARRIVING));
    if (from == ENTRY_RESIDENT) entry->moves++;
}
