/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backoff.c - moves that failed are not tried again at once.
 *
 * An entry whose move failed is pinned in the policy for a quarter of a second, which doubles with
 * each failure up to about a minute, so that the next plan chooses another one. It stays readable
 * where it is. After several failed plans in a row the policy's tick pauses in the same way: a
 * device that takes no writes costs a few moves a minute, not one a round.
 *
 * An entry that failed only because its target had no room is let go early when a put finds no room
 * either: as a victim of that put it may be given up (executor.c).
 *
 * The table is bounded. When it is full, the entry that is next to be released is released early.
 *
 * Thread rule: the store's lock, in every function.
 */
#include "store/core/store.h"

#include <assert.h>

#define BACKOFF_FIRST_NS      UINT64_C(250000000)
#define BACKOFF_DOUBLINGS     8u /* up to 64 s */
#define BACKOFF_TICKS_IN_VAIN 4u /* failed plans in a row before the tick pauses */

/* The pause after so many earlier failures in a row. */
static uint64_t backoff_pause_ns(uint32_t failures)
{
    return BACKOFF_FIRST_NS << (failures < BACKOFF_DOUBLINGS ? failures : BACKOFF_DOUBLINGS);
}

/* Removes an item and lets its entry into plans again. An item is stale when its entry has left, or
 * was pinned anew with another instant; a stale item unpins nothing. Lock held. */
static void backoff_release(kvt_store *store, uint32_t index)
{
    store_backoff *backoff = &store->backoff;
    store_backoff_item item = backoff->items[index];
    backoff->items[index] = backoff->items[--backoff->count];
    store_entry *entry = entry_find_handle(&store->table, item.handle);
    if (entry == NULL || entry_pinned_until_ns(entry) != item.until_ns) return;
    entry->rare->pinned_until_ns = 0;
    (void)!kvt_policy_unpin(store->policy, item.handle);
}

/* The index of the item whose pause ends first. There is at least one item. */
static uint32_t backoff_find_earliest(const store_backoff *backoff)
{
    uint32_t earliest = 0;
    for (uint32_t i = 1; i < backoff->count; i++) {
        if (backoff->items[i].until_ns < backoff->items[earliest].until_ns) earliest = i;
    }
    return earliest;
}

/* Sets the instant at which backoff_expire has work again; 0 without items. */
static void backoff_find_next(store_backoff *backoff)
{
    backoff->next_ns =
        backoff->count == 0 ? 0 : backoff->items[backoff_find_earliest(backoff)].until_ns;
}

void backoff_expire(kvt_store *store)
{
    assert(store_is_locked(store));
    store_backoff *backoff = &store->backoff;
    lease_expire(store);
    if (backoff->count == 0) return;
    uint64_t now_ns = store_now_ns(store);
    if (now_ns < backoff->next_ns) return;
    for (uint32_t i = backoff->count; i-- > 0;) {
        if (backoff->items[i].until_ns <= now_ns) backoff_release(store, i);
    }
    backoff_find_next(backoff);
}

bool backoff_yield(kvt_store *store)
{
    assert(store_is_locked(store));
    store_backoff *backoff = &store->backoff;
    uint32_t before = backoff->count;
    for (uint32_t i = before; i-- > 0;) {
        if (backoff->items[i].no_room) backoff_release(store, i);
    }
    backoff_find_next(backoff);
    return backoff->count < before;
}

void backoff_note_failure(kvt_store *store, store_entry *entry, bool no_room)
{
    assert(entry->state == ENTRY_RESIDENT);
    assert(store->backoff.count <= STORE_BACKOFFS);
    assert(store_is_locked(store));
    store_backoff *backoff = &store->backoff;
    backoff_expire(store);
    entry_rare *rare = entry_rare_make(entry);
    if (rare == NULL) return; /* the next plan may choose it again */
    bool pinned = rare->pinned_until_ns != 0;
    uint64_t until_ns = store_now_ns(store) + backoff_pause_ns(entry->failed_moves);
    if (entry->failed_moves < BACKOFF_DOUBLINGS) entry->failed_moves++;
    if (!pinned && backoff->count == STORE_BACKOFFS)
        backoff_release(store, backoff_find_earliest(backoff));
    if (!pinned && kvt_policy_pin(store->policy, entry->handle) != KVT_OK) return;
    uint32_t index = backoff->count;
    for (uint32_t i = 0; pinned && i < backoff->count; i++) {
        const store_backoff_item *item = &backoff->items[i];
        if (item->handle == entry->handle && item->until_ns == rare->pinned_until_ns) index = i;
    }
    if (index == backoff->count) backoff->count++;
    assert(backoff->count <= STORE_BACKOFFS);
    backoff->items[index] = (store_backoff_item){entry->handle, until_ns, no_room};
    rare->pinned_until_ns = until_ns;
    backoff_find_next(backoff);
}

void backoff_note_success(kvt_store *store, store_entry *entry)
{
    assert(store->backoff.count <= STORE_BACKOFFS);
    assert(store_is_locked(store));
    entry->failed_moves = 0;
    if (entry_pinned_until_ns(entry) == 0) return;
    entry->rare->pinned_until_ns = 0; /* its item is stale from here on */
    (void)!kvt_policy_unpin(store->policy, entry->handle);
}

void backoff_forget(store_entry *entry)
{
    entry->failed_moves = 0;
    if (entry->rare != NULL) entry->rare->pinned_until_ns = 0;
}

bool backoff_may_tick(kvt_store *store)
{
    assert(store_is_locked(store));
    backoff_expire(store);
    return store_now_ns(store) >= store->backoff.tick_resume_ns;
}

void backoff_note_tick(kvt_store *store, kvt_status status)
{
    assert(store_is_locked(store));
    store_backoff *backoff = &store->backoff;
    if (status == KVT_OK) {
        backoff->failed_ticks = 0;
        return;
    }
    if (++backoff->failed_ticks < BACKOFF_TICKS_IN_VAIN) return;
    backoff->tick_resume_ns =
        store_now_ns(store) + backoff_pause_ns(backoff->failed_ticks - BACKOFF_TICKS_IN_VAIN);
}
