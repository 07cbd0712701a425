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

/* Gets an entry into its view, or into the views of its groups. groups: the entry may have some. */
static kvt_status views_get(kvt_store *store, const kvt_key *key, const kvt_view *const *views,
                            uint32_t count, bool groups, uint64_t deadline_ns, kvt_get_info *info)
{
    if (!access_info_is_sound(info)) return KVT_E_ARGUMENT;
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_view copies[KVT_GROUPS_MAX];
    kvt_status status;
    /* The views are checked for the entry's layouts under no lock; the entry may have become
     * another one meanwhile. */
    do {
        access_target target = {.view = copies};
        status = token_drop_ask(info, &target);
        if (status != KVT_OK) return status;
        pthread_mutex_lock(&store->lock);
        const store_entry *entry = entry_find_key(&store->table, key);
        const bool found = access_take_layout(store, entry, &target, layouts);
        pthread_mutex_unlock(&store->lock);
        const bool grouped = target.group_count != 0;
        if (found && (grouped ? !groups || count != target.group_count : count != 1))
            return KVT_E_ARGUMENT;
        if (found)
            status = groups_take_views(grouped ? layouts : &target.layout, views, count, copies);
        else if (views[0] == NULL)
            status = KVT_E_ARGUMENT;
        if (status != KVT_OK) return status;
        if (!found) { /* it may be on another host, whose entries have no groups */
            target.view = views[0];
            target.group_count = count != 1 ? count : 0;
        }
        if (access_answer(store, key, &target, deadline_ns, info, &status)) return status;
    } while (true);
}

kvt_status kvt_get_view(kvt_store *store, const kvt_key *key, const kvt_view *view,
                        uint64_t deadline_ns, kvt_get_info *info)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || view == NULL) return KVT_E_ARGUMENT;
    return views_get(store, key, &view, 1, false, deadline_ns, info);
}

kvt_status kvt_get_views(kvt_store *store, const kvt_key *key, const kvt_view *const *views,
                         uint32_t count, uint64_t deadline_ns, kvt_get_info *info)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || views == NULL) return KVT_E_ARGUMENT;
    if (count == 0 || count > KVT_GROUPS_MAX) return KVT_E_ARGUMENT;
    return views_get(store, key, views, count, true, deadline_ns, info);
}
