/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_views.c - gets into views on the caller's thread: the views are checked for what is stored
 * under the key, then access.c carries the get out.
 *
 * Thread rule: any thread.
 */
#include "store/background/lifetime.h"
#include "store/learn/token_drop.h"
#include "store/read/access_get.h"
#include "store/read/groups.h"

#include <assert.h>
#include <string.h>

bool access_take_layout(const kvt_store *store, const store_entry *entry, access_target *target,
                        kvt_layout *groups)
{
    assert(store_is_locked(store));
    if (!lifetime_shows(store, entry)) return false;
    target->layout = entry->kind->layout;
    target->bytes = entry->kind->source_bytes;
    target->group_count = entry->kind->group_count;
    target->groups = groups;
    if (groups != NULL && target->group_count != 0)
        memcpy(groups, entry->kind->groups, target->group_count * sizeof *groups);
    return true;
}

/* The same, without the lock. */
static bool access_find_layout(kvt_store *store, const kvt_key *key, access_target *target,
                               kvt_layout *groups)
{
    pthread_mutex_lock(&store->lock);
    bool found = access_take_layout(store, entry_find_key(&store->table, key), target, groups);
    pthread_mutex_unlock(&store->lock);
    return found;
}

kvt_status kvt_get_view(kvt_store *store, const kvt_key *key, const kvt_view *view,
                        uint64_t deadline_ns, kvt_get_info *info)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || view == NULL || !access_info_is_sound(info)) return KVT_E_ARGUMENT;
    kvt_status status;
    bool answered = false;
    /* The view is checked for the entry's layout under no lock; the entry may have become another
     * one meanwhile. */
    while (!answered) {
        access_target target = {.view = view};
        status = token_drop_ask(info, &target);
        if (status != KVT_OK) return status;
        if (access_find_layout(store, key, &target, NULL)) {
            if (target.group_count != 0) return KVT_E_ARGUMENT;
            status = kvt_view_check(view, &target.layout, NULL, 0);
            if (status != KVT_OK) return status;
        }
        answered = access_answer(store, key, &target, deadline_ns, info, &status);
    }
    return status;
}

kvt_status kvt_get_views(kvt_store *store, const kvt_key *key, const kvt_view *const *views,
                         uint32_t count, uint64_t deadline_ns, kvt_get_info *info)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || views == NULL || !access_info_is_sound(info)) return KVT_E_ARGUMENT;
    if (count == 0 || count > KVT_GROUPS_MAX) return KVT_E_ARGUMENT;
    kvt_status status;
    bool answered = false;
    kvt_layout groups[KVT_GROUPS_MAX];
    kvt_view copies[KVT_GROUPS_MAX];
    /* As in kvt_get_view: the entry may have become another one meanwhile. */
    while (!answered) {
        access_target target = {.view = copies};
        status = token_drop_ask(info, &target);
        if (status != KVT_OK) return status;
        if (access_find_layout(store, key, &target, groups)) {
            const bool grouped = target.group_count != 0;
            if (count != (grouped ? target.group_count : 1)) return KVT_E_ARGUMENT;
            status = groups_take_views(grouped ? groups : &target.layout, views, count, copies);
            if (status != KVT_OK) return status;
        }
        answered = access_answer(store, key, &target, deadline_ns, info, &status);
    }
    return status;
}
