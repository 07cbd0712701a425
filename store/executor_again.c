/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_again.c - records that are written once more, by moves that the policy does not know of:
 * laid out anew in their tier, or copied from above to the SSD.
 *
 * Thread rule: any thread; no lock held.
 */
#include "store/store.h"

/* Writes the record of a RESIDENT entry once more, to a tier: a move that the policy does not know
 * of. from NONE: it is anywhere above, without a copy. */
static kvt_status executor_write_again(kvt_store *store, uint64_t handle, kvt_tier from,
                                       kvt_tier to)
{
    kvt_move move = {.id = RELAYOUT_ID, .handle = handle, .kind = KVT_MOVE_CHANGE};
    executor_result result = {0};
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, handle);
    bool fits = entry != NULL && entry->state == ENTRY_RESIDENT;
    if (fits && from != KVT_TIER_NONE) fits = entry->place->tier == from;
    if (fits && from == KVT_TIER_NONE) fits = entry->place->tier < to && entry->copy == NULL;
    if (!fits) {
        pthread_mutex_unlock(&store->lock);
        return KVT_MISS;
    }
    move.to_variant = entry->place->variant;
    move.to_bytes[to] = entry->place->record_bytes;
    (void)!kvt_policy_pin(store->policy, handle); /* no plan touches it meanwhile */
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_MOVING);
    pthread_mutex_unlock(&store->lock);
    kvt_status status = executor_run_plan(store, &move, 1, NULL, &result);
    if (status == KVT_E_SPACE && !result.no_room) status = KVT_E_IO; /* a device said so */
    pthread_mutex_lock(&store->lock);
    (void)!kvt_policy_unpin(store->policy, handle); /* a miss when it could not be read */
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status executor_relayout(kvt_store *store, uint64_t handle, kvt_tier tier)
{
    return executor_write_again(store, handle, tier, tier);
}

kvt_status executor_copy(kvt_store *store, uint64_t handle)
{
    return executor_write_again(store, handle, KVT_TIER_NONE, KVT_TIER_SSD);
}
