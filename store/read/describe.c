/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe.c - kvt_store_describe, which says what is stored under a key, and kvt_store_touch,
 * which counts uses. Neither reads a byte of an entry.
 *
 * Thread rule: any thread; the control lock for a few hash steps, or for TOUCH_STEP keys.
 */
#include "base/struct_size.h"
#include "codecs/codecs.h"
#include "store/background/lifetime.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <kvterrace/names.h>
#include <string.h>

#define DESCRIBE_LEAST STRUCT_SIZE_THROUGH(kvt_description, groups)

/* Fills in where an entry lies. The bytes of a put that was handed over lie in memory, as they were
 * put. */
static void describe_place(const store_entry *entry, kvt_description *out)
{
    if (entry->state == ENTRY_STAGED) {
        out->tier = KVT_TIER_DRAM;
        out->variant = (kvt_variant){.codec = KVT_CODEC_RAW};
        out->stored_bytes = entry->kind->source_bytes;
        return;
    }
    out->tier = entry->place->tier;
    out->variant = entry->place->variant;
    out->stored_bytes = entry->place->record_bytes;
    out->copy_bytes = entry->copy != NULL ? entry->copy->record_bytes : 0;
}

/* Fills in what is known of a readable entry. Lock held. */
static void describe_entry(const kvt_store *store, const store_entry *entry, kvt_description *out)
{
    const entry_kind *kind = entry->kind;
    out->layout = kind->layout;
    out->group_count = kind->group_count;
    if (kind->group_count != 0 && kind->group_count <= out->groups_capacity)
        memcpy(out->groups, kind->groups, kind->group_count * sizeof *kind->groups);
    out->bytes = entry->kind->source_bytes;
    out->has_parent = entry->has_parent;
    out->parent = entry->parent;
    out->first_position = entry->first_position;
    out->request_tokens = entry->request_tokens;
    out->tenant = entry->tenant;
    out->class_id = entry->class_id;
    out->moving = entry->state != ENTRY_RESIDENT;
    out->age_seconds = lifetime_age_seconds(store, entry);
    out->lifetime_seconds = lifetime_left_seconds(store, entry);
    out->lacks_basis = lookup_lacks_basis(store, entry) ? 1 : 0;
    describe_place(entry, out);
}

/* The number of tokens in the record follows from the other fields. No lock held. */
static void describe_tokens(kvt_description *out)
{
    uint32_t sets;
    /* No group drops tokens, and the variant is not one of the layout that stands for them. */
    if (out->group_count != 0) {
        out->tokens_kept = out->layout.tokens;
        return;
    }
    kvt_status status = codecs_kept_tokens(&out->layout, out->first_position, out->variant,
                                           &out->tokens_kept, &sets);
    assert(status == KVT_OK && "it is stored");
    (void)status;
}

kvt_status kvt_store_describe(kvt_store *store, const kvt_key *key, kvt_description *out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, describe, store, key, out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || out == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(out, DESCRIBE_LEAST)) return KVT_E_ARGUMENT;
    if (out->groups == NULL && out->groups_capacity != 0) return KVT_E_ARGUMENT;
    kvt_description whole = {.struct_size = sizeof whole,
                             .groups_capacity = out->groups_capacity,
                             .groups = out->groups};
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    bool there = lifetime_shows(store, entry);
    if (there) describe_entry(store, entry, &whole);
    pthread_mutex_unlock(&store->lock);
    if (there) describe_tokens(&whole);
    struct_size_out(out, &whole, sizeof whole);
    return there ? KVT_OK : KVT_MISS;
}

/* ---- touch ---- */

#define TOUCH_STEP 256u /* keys under one hold of the lock */

/* The uses of one hold of the lock, for what is learned of reuse, which has a lock of its own. */
typedef struct touch_uses {
    uint32_t count;
    struct {
        uint64_t handle;
        uint32_t class_id;
    } uses[TOUCH_STEP];
} touch_uses;

/* Counts uses of the keys that are stored. No promotion is planned, because the bytes are not in
 * anybody's hands; the next background round may. Lock held. */
static void touch_step(kvt_store *store, const kvt_key *keys, size_t count, touch_uses *uses)
{
    uses->count = 0;
    for (size_t i = 0; i < count; i++) {
        const store_entry *entry = entry_find_key(&store->table, &keys[i]);
        if (!lookup_finds(store, entry)) continue;
        (void)!kvt_policy_access(store->policy, store_now_ns(store), entry->handle, NULL);
        uses->uses[uses->count].handle = entry->handle;
        uses->uses[uses->count++].class_id = entry->class_id;
    }
}

kvt_status kvt_store_touch(kvt_store *store, const kvt_key *keys, size_t count, size_t *touched_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, touch, store, keys, count, touched_out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (touched_out != NULL) *touched_out = 0;
    if (keys == NULL && count != 0) return KVT_E_ARGUMENT;
    size_t touched = 0;
    touch_uses uses;
    for (size_t at = 0; at < count; at += TOUCH_STEP) {
        size_t step = count - at < TOUCH_STEP ? count - at : TOUCH_STEP;
        pthread_mutex_lock(&store->lock);
        touch_step(store, &keys[at], step, &uses);
        pthread_mutex_unlock(&store->lock);
        for (uint32_t i = 0; i < uses.count; i++)
            learn_note_use(store, uses.uses[i].handle, uses.uses[i].class_id);
        touched += uses.count;
    }
    if (touched_out != NULL) *touched_out = touched;
    return KVT_OK;
}
