/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_views.c - gets on the caller's thread: the view is checked for what is stored under the
 * key, then access.c carries the get out.
 *
 * Thread rule: any thread.
 */
#include "base/clock.h"
#include "codecs/view_rows.h"
#include "store/background/lifetime.h"
#include "store/gpu/gpu_views.h"
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

/* Counts a get of nothing that is here. */
static kvt_status views_miss(kvt_store *store, const kvt_key *key, kvt_get_info *given)
{
    const access_get get = {.key = key};
    kvt_get_info info = {0};
    const kvt_status status = access_refuse(store, &get, KVT_MISS, &info);
    if (given != NULL) access_give_info(&info, given);
    return status;
}

/* Gets an entry into a view with strides or bases, or into the views of its groups. */
static kvt_status views_get(kvt_store *store, const kvt_key *key, const kvt_view *view,
                            uint64_t deadline_ns, kvt_get_info *info)
{
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_view copies[KVT_GROUPS_MAX];
    kvt_status status;
    /* The view is checked for the entry's layouts under no lock; the entry may have become another
     * one meanwhile. */
    do {
        access_target target = {.view = copies};
        status = token_drop_ask(info, &target);
        if (status != KVT_OK) return status;
        pthread_mutex_lock(&store->lock);
        const store_entry *entry = entry_find_key(&store->table, key);
        const bool found = access_take_layout(store, entry, &target, layouts);
        pthread_mutex_unlock(&store->lock);
        const bool grouped = target.group_count != 0, far = view_is_far(view);
        const kvt_layout *own = grouped ? layouts : &target.layout;
        const uint32_t count = grouped ? target.group_count : 1;
        if (found) status = groups_take_view(own, count, grouped, view, copies);
        if (status == KVT_OK && found && far)
            status = store_gpu_site(store, own, copies, count, &target.gpu);
        if (status != KVT_OK) return status;
        if (far && !found) return views_miss(store, key, info);
        if (!found) { /* it may be on another host, whose entries have no groups */
            target.view = view;
            const bool many = groups_are_named(view) && view->group_count > 1;
            target.group_count = many ? view->group_count : 0;
        }
        if (access_answer(store, key, &target, deadline_ns, info, &status)) return status;
    } while (true);
}

uint64_t access_deadline(const kvt_store *store, uint64_t deadline_ns)
{
    if (deadline_ns != KVT_STORE_DEADLINE) return deadline_ns;
    if (store->get_deadline_ns == KVT_NO_DEADLINE) return KVT_NO_DEADLINE;
    return base_clock_ns() + store->get_deadline_ns;
}

kvt_status kvt_store_get(kvt_store *store, const kvt_key *key, const kvt_view *view,
                         uint64_t deadline_ns, kvt_get_info *info)
{
    const base_store_calls *other = base_store_calls_now(store);
    if (other != NULL) return BASE_CALL(other, get, store, key, view, deadline_ns, info);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || view == NULL || !access_info_is_sound(info)) return KVT_E_ARGUMENT;
    deadline_ns = access_deadline(store, deadline_ns);
    if (view->bases_kind != KVT_BASES_PACKED || view->dtype != 0 || view_is_far(view))
        return views_get(store, key, view, deadline_ns, info);
    const kvt_layout any = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = view->base_bytes[0]};
    access_target target = {.data = view->base[0], .bytes = view->base_bytes[0]};
    kvt_status status = token_drop_ask(info, &target);
    if (status == KVT_OK) status = kvt_view_check(view, &any, NULL, 0);
    /* A packed buffer has no layout that could have changed. */
    if (status == KVT_OK) (void)access_answer(store, key, &target, deadline_ns, info, &status);
    return status;
}
