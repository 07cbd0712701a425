/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.c - devices that are drained, retired, removed and added while the store serves.
 *
 * A device that is added is judged by its label, as at open. With the label of this store, tier,
 * member and epoch it kept its content, and the entries quarantined on it return. With another
 * label of this store, or none, it counts as empty: the entries quarantined on it leave the
 * catalog, durably, before a new label says that the device is current.
 *
 * Thread rule: any thread; members_lock lets one change happen at a time.
 */
#include "base/clock.h"
#include "base/kill_point.h"
#include "store/core/bringup.h"
#include "store/core/given_options.h"
#include "store/learn/costs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define MEMBERS_EJECT_TRIES                                                                        \
    100 /* times 10 ms that a device which is gone may take for its last answers */

/* A device on its way in. */
typedef struct members_joining {
    kvt_store *store;
    kvt_tier tier;
    uint32_t member;
    bool known;         /* the member was there before */
    kvt_device *device; /* NULL once the pool owns it */
    bool labelled;
    bool ours;  /* it carries this store's label, so recover may find records on it */
    bool keeps; /* its content is the one that the catalog lists */
    const kvt_device_config *config;
    tiers_wear wear;
    char *message;
    size_t message_size;
} members_joining;

/* Finds a member by the name of its device, in all tiers. KVT_E_ARGUMENT: there is none. */
static kvt_status members_find(kvt_store *store, const char *name, kvt_tier *tier_out,
                               uint32_t *member_out, tiers_member_stats *stats_out)
{
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        for (uint32_t i = 0; tiers_pool_member(store->pools[tier], i, stats_out) == KVT_OK; i++) {
            if (strcmp(stats_out->name, name) != 0) continue;
            *tier_out = (kvt_tier)tier;
            *member_out = i;
            return KVT_OK;
        }
    }
    return KVT_E_ARGUMENT;
}

/* Updates the policy's capacity of a tier, and the speed that new entries are costed with. Lock
 * held. */
static void members_update_policy(kvt_store *store, kvt_tier tier)
{
    learn_cost_tier(store, tier);
    (void)!kvt_policy_capacity_set(store->policy, tier, store_policy_capacity(store, tier));
}

void members_note_wear(kvt_store *store, uint64_t bytes)
{
    tiers_pool *pool = store->pools[KVT_TIER_SSD];
    tiers_member_stats stats;
    const tiers_wear *wear = &stats.wear;
    pthread_mutex_lock(&store->wear_lock); /* to the end, so that no older figure is queued last */
    for (uint32_t i = 0; pool != NULL && tiers_pool_member(pool, i, &stats) == KVT_OK; i++) {
        if (wear->written_bytes < store->wear_noted[i]) store->wear_noted[i] = 0;
        if (wear->written_bytes == 0 || wear->written_bytes - store->wear_noted[i] < bytes)
            continue;
        if (catalog_note_wear(store->catalog, stats.name, wear) == KVT_OK)
            store->wear_noted[i] = wear->written_bytes; /* else with the next batch */
    }
    pthread_mutex_unlock(&store->wear_lock);
}

/* Takes the device out of a member and closes it. */
static kvt_status members_eject(kvt_store *store, kvt_tier tier, uint32_t member)
{
    kvt_device *device;
    kvt_status status = tiers_pool_eject(store->pools[tier], member, &device);
    tiers_member_stats stats;
    for (int i = 0; status == KVT_BUSY && i < MEMBERS_EJECT_TRIES; i++) {
        (void)!tiers_pool_member(store->pools[tier], member, &stats);
        if (stats.state != KVT_DEVICE_GONE) break; /* it holds something: no use in waiting */
        base_sleep(10000000);
        status = tiers_pool_eject(store->pools[tier], member, &device);
    }
    if (status == KVT_OK && device != NULL) { /* else the member had none */
        gpu_sites_forget(&store->gpus, kvt_device_memory(device));
        kvt_device_close(device);
    }
    return status;
}

kvt_status kvt_device_change(kvt_store *store, const char *name, kvt_device_action action)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, device_change, store, name, action);
    kvt_tier tier;
    uint32_t member;
    tiers_member_stats stats;
    if (store == NULL || name == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    pthread_mutex_lock(&store->members_lock);
    kvt_status status = members_find(store, name, &tier, &member, &stats);
    if (status == KVT_OK) {
        switch (action) {
        case KVT_DEVICE_DRAIN:
        case KVT_DEVICE_SERVE:
            status = tiers_pool_drain(store->pools[tier], member, action == KVT_DEVICE_DRAIN);
            if (status == KVT_E_GONE) status = KVT_E_STATE;
            break;
        case KVT_DEVICE_RETIRE: tiers_pool_retire(store->pools[tier], member); break;
        case KVT_DEVICE_REMOVE: status = members_eject(store, tier, member); break;
        default: status = KVT_E_ARGUMENT;
        }
    }
    if (status == KVT_OK) {
        KILL_POINT("device: state changed");
        pthread_mutex_lock(&store->lock);
        quarantine_refresh_tier(store, tier);
        members_update_policy(store, tier);
        pthread_mutex_unlock(&store->lock);
        KILL_POINT("device: entries quarantined");
    }
    pthread_mutex_unlock(&store->members_lock);
    return status;
}

/* ---- add ---- */

/* Finds the member that the device is to be, empty of its old device. */
static kvt_status members_make_place(members_joining *joining, const char *name)
{
    kvt_store *store = joining->store;
    kvt_tier tier;
    tiers_member_stats stats;
    joining->known = members_find(store, name, &tier, &joining->member, &stats) == KVT_OK;
    if (!joining->known) {
        tiers_pool_facts facts;
        tiers_pool_facts_get(store->pools[joining->tier], &facts);
        joining->member = facts.member_count;
        return facts.member_count < TIERS_MEMBERS_MAX ? KVT_OK : KVT_E_ARGUMENT;
    }
    if (tier != joining->tier) return KVT_E_ARGUMENT;
    joining->wear = stats.wear;
    if (stats.state == KVT_DEVICE_SERVING || stats.state == KVT_DEVICE_DRAINING) return KVT_E_STATE;
    pthread_mutex_lock(&store->lock);
    quarantine_refresh_tier(store, tier);
    pthread_mutex_unlock(&store->lock);
    return members_eject(store, tier, joining->member);
}

/* Reads the label of a device that can have one. */
static kvt_status members_evaluate(members_joining *joining)
{
    kvt_store *store = joining->store;
    tiers_superblock label;
    tiers_label_state found;
    const kvt_device_facts *facts = &joining->device->facts;
    if ((facts->flags & KVT_DEVICE_NO_DATA) != 0) return KVT_E_ARGUMENT;
    joining->labelled = (facts->flags & KVT_DEVICE_DURABLE) != 0;
    if (!joining->labelled) return KVT_OK;
    kvt_status status =
        bringup_read_label(&joining->device, joining->config->timeout_ns, &label, &found);
    if (status == KVT_E_VERSION && store->format) {
        status = KVT_OK;
        found = TIERS_LABEL_FOREIGN;
    }
    if (status != KVT_OK) return status;
    bool ours = found == TIERS_LABEL_SOUND &&
                memcmp(label.pool, store->pool_id, sizeof label.pool) == 0 &&
                label.tier == (uint32_t)joining->tier && label.member == joining->member;
    /* Some file systems begin behind the place of the label, so it looks blank. */
    if (found == TIERS_LABEL_BLANK && (facts->flags & KVT_DEVICE_FOREIGN) != 0)
        found = TIERS_LABEL_FOREIGN;
    if (!ours && found != TIERS_LABEL_BLANK && !store->format) return KVT_E_MISMATCH;
    joining->ours = ours;
    joining->keeps = ours && joining->known && label.epoch == store->epoch &&
                     label.capacity_bytes == facts->capacity_bytes;
    return KVT_OK;
}

/* Drops every entry of the member, and waits until the deletion of their rows is committed.
 * KVT_BUSY: extents of the member are still held. No lock held. */
static kvt_status members_forget(members_joining *joining)
{
    kvt_store *store = joining->store;
    tiers_member_stats stats;
    uint64_t members = UINT64_C(1) << joining->member;
    if (!joining->known) return KVT_OK;
    pthread_mutex_lock(&store->lock);
    quarantine_drop_members(store, joining->tier, members);
    pthread_mutex_unlock(&store->lock);
    kvt_status status = store->catalog != NULL ? catalog_settle(store->catalog) : KVT_OK;
    if (status != KVT_OK) return status;
    status = tiers_pool_member(store->pools[joining->tier], joining->member, &stats);
    return status == KVT_OK && stats.used_bytes != 0 ? KVT_BUSY : status;
}

/* Measures and labels the device, notes it in the catalog, and makes it a member of its pool, which
 * owns it from then on. */
static kvt_status members_insert(members_joining *joining)
{
    kvt_store *store = joining->store;
    uint64_t head = joining->labelled ? TIERS_SUPERBLOCK_BYTES : 0;
    cost_device cost;
    kvt_status status =
        bringup_measure(&joining->device, joining->config->timeout_ns, !joining->ours, head, &cost);
    if (status == KVT_OK && joining->labelled) {
        tiers_superblock label = {.tier = (uint32_t)joining->tier,
                                  .member = joining->member,
                                  .epoch = store->epoch,
                                  .capacity_bytes = joining->device->facts.capacity_bytes};
        memcpy(label.pool, store->pool_id, sizeof label.pool);
        if (joining->ours) label.undone = store->undone;
        status = bringup_write_label(&joining->device, joining->config->timeout_ns, &label);
    }
    KILL_POINT("device add: label written");
    if (status != KVT_OK) return status;
    if (store->staging->arena != NULL) {
        const kvt_device_region region = {store->staging->arena, store->staging->arena_bytes};
        (void)!kvt_device_register_buffers(joining->device, &region, 1);
    }
    tiers_member_options options =
        tiers_member_options_of(joining->config, joining->device, cost.read.bytes_per_s,
                                cost.write.bytes_per_s, &joining->wear);
    options.request_seconds = cost.read.request_seconds;
    options.reserved_head_bytes = head;
    catalog_device row = {.tier = joining->tier,
                          .member = joining->member,
                          .capacity_bytes = joining->device->facts.capacity_bytes};
    memcpy(row.name, joining->device->name, sizeof row.name);
    if (store->catalog != NULL && joining->labelled)
        status = catalog_note_device(store->catalog, &row);
    if (status == KVT_OK)
        status = tiers_pool_insert(store->pools[joining->tier], joining->member, &options);
    if (status != KVT_OK) return status;
    learn_set_member(store, joining->tier, joining->member, &joining->device->facts, &cost.read,
                     &cost.write, options.in_flight_bytes_max);
    joining->device = NULL;
    pthread_mutex_lock(&store->lock);
    store->retired_members[joining->tier] &= ~(UINT64_C(1) << joining->member);
    members_update_policy(store, joining->tier);
    pthread_mutex_unlock(&store->lock);
    return KVT_OK;
}

/* The steps of adding a device, in order. A device that the pool does not own at the end is closed.
 */
static kvt_status members_add(members_joining *joining, const kvt_device_config *config)
{
    kvt_status status = members_make_place(joining, config->name);
    if (status != KVT_OK) return status;
    joining->config = config;
    const store_catalog *catalog = joining->store->catalog;
    if (catalog != NULL && config->path != NULL && catalog_is_file(catalog, config->path)) {
        snprintf(joining->message, joining->message_size, "device %s: %s is the store's catalog",
                 config->name, config->path);
        return KVT_E_ARGUMENT;
    }
    status = bringup_open(config, &joining->device, joining->message, joining->message_size);
    KILL_POINT("device add: opened");
    if (status == KVT_OK) status = members_evaluate(joining);
    if (status == KVT_OK && !joining->keeps) status = members_forget(joining);
    KILL_POINT("device add: content judged");
    if (status == KVT_OK) status = members_insert(joining);
    KILL_POINT("device add: inserted");
    if (status == KVT_OK) quarantine_bring_back(joining->store, joining->tier);
    KILL_POINT("device add: entries back");
    kvt_device_close(joining->device);
    return status;
}

kvt_status kvt_device_add(kvt_store *store, kvt_tier tier, const kvt_device_config *given,
                          char *message, size_t message_size)
{
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    char unused[1];
    if (store == NULL || given == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    kvt_device_config whole;
    const kvt_device_config *config = &whole;
    if (given_device_take(given, &whole) != KVT_OK || config->name == NULL) return KVT_E_ARGUMENT;
    if (tier == KVT_TIER_REMOTE) return KVT_E_UNSUPPORTED;
    if (tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    if (store->pools[tier] == NULL) return KVT_E_UNSUPPORTED;
    members_joining joining = {
        .store = store, .tier = tier, .message = message, .message_size = message_size};
    if (message == NULL || message_size == 0) {
        joining.message = unused;
        joining.message_size = sizeof unused;
    }
    joining.message[0] = '\0';
    pthread_mutex_lock(&store->members_lock);
    kvt_status status = members_add(&joining, config);
    pthread_mutex_unlock(&store->members_lock);
    if (status != KVT_OK && joining.message[0] == '\0') {
        snprintf(joining.message, joining.message_size, "device %s: %s", config->name,
                 kvt_status_text(status));
    }
    return status;
}
