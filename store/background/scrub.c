/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - the background reads records on SSD that nothing has verified for long, and treats
 * damage as a get would (docs/STORE.md, Scrub).
 *
 *     lap 1 -> 2 -> 3 -> 1: a third of the period each, or longer where the budget asks for it
 *
 * A place remembers the lap in which its whole record was verified last, by a get or by the scrub.
 * A lap reads those that neither it nor the lap before has verified: each record is verified within
 * three laps. The walk over the table keeps a bucket alone, and begins the bucket again after each
 * record: what it has read carries the lap's number.
 *
 * Thread rule: the background round; the store's lock for the moments in which state is touched.
 */
#include "store/background/scrub.h"
#include "store/core/executor.h"
#include "store/core/place.h"
#include "store/hosts/remote_tier.h"
#include "tiers/pool/stripe.h"

#include <assert.h>
#include <math.h>

#define SCRUB_LOOK 1024u /* buckets under one hold of the lock */

/* A record that the scrub reads. */
typedef struct scrub_record {
    kvt_key key;
    store_place *place; /* the scrub is one of its readers */
    kvt_record_spec expected;
    uint64_t bytes;
    uint32_t tenant;
    bool shared;        /* other hosts may have it */
    uint64_t bad_bytes; /* of the damage, from bad_offset on */
    uint64_t bad_offset;
} scrub_record;

/* Adds the bytes that each device has earned since the last round; at most a second's worth is
 * saved. Lock held. */
static void scrub_earn(kvt_store *store)
{
    store_scrub *scrub = &store->scrub;
    tiers_member_stats stats;
    const uint64_t now_ns = store_now_ns(store);
    const double seconds = (double)(now_ns - scrub->earned_ns) * 1e-9;
    for (uint32_t i = 0; tiers_pool_member(store->pools[KVT_TIER_SSD], i, &stats) == KVT_OK; i++) {
        const double rate = stats.weight_bytes_per_s * scrub->share;
        scrub->tokens[i] = fmin(scrub->tokens[i] + rate * seconds, rate);
    }
    scrub->earned_ns = now_ns;
}

/* Takes the bytes of a record from its devices' budgets, which may go below 0; false: one of them
 * is there already. */
static bool scrub_pays(store_scrub *scrub, const tiers_location *location)
{
    const uint32_t odd = tiers_stripe_odd(location);
    for (uint32_t i = 0; i < location->share_count; i++)
        if (scrub->tokens[location->shares[i].member] <= 0) return false;
    for (uint32_t i = 0; i < location->share_count; i++)
        scrub->tokens[location->shares[i].member] -=
            (double)tiers_stripe_share_bytes(location, i, odd);
    return true;
}

/* Whether a lap is under way; begins the next one when it is due. Lock held. */
static bool scrub_laps(kvt_store *store)
{
    store_scrub *scrub = &store->scrub;
    if (scrub->bucket < store->table.bucket_count && scrub->lap != 0) return true;
    const uint64_t now_ns = store_now_ns(store);
    if (scrub->lap != 0 && now_ns - scrub->lap_began_ns < scrub->lap_ns) return false;
    scrub->lap = (uint8_t)(scrub->lap % SCRUB_LAPS + 1);
    scrub->lap_began_ns = now_ns;
    scrub->bucket = 0;
    return true;
}

/* The record on SSD of an entry at rest that this lap is to read, or NULL. Lock held. */
static store_place *scrub_due(const kvt_store *store, const store_entry *entry)
{
    const uint8_t lap = store->scrub.lap;
    if (entry->state != ENTRY_RESIDENT) return NULL;
    store_place *place = entry->place->tier == KVT_TIER_SSD ? entry->place : entry->copy;
    if (place == NULL || place->verified_lap == lap) return NULL;
    /* Of the lap before. */
    return place->verified_lap % SCRUB_LAPS + 1 == lap && place->verified_lap != 0 ? NULL : place;
}

/* Finds the next record, and takes its bytes from the budgets. False: none now. Lock held. */
static bool scrub_next(kvt_store *store, scrub_record *record)
{
    store_scrub *scrub = &store->scrub;
    if (store->stopping || pressure_defers_any(store) || !scrub_laps(store)) return false;
    for (uint32_t i = 0; i < SCRUB_LOOK && scrub->bucket < store->table.bucket_count; i++) {
        store_entry *entry = store->table.buckets[scrub->bucket];
        store_place *place = NULL;
        for (; entry != NULL && place == NULL; entry = place == NULL ? entry->next : entry)
            place = scrub_due(store, entry);
        if (place == NULL) {
            scrub->bucket++;
            continue;
        }
        if (!scrub_pays(scrub, place->location)) return false;
        place->readers++;
        place->verified_lap =
            scrub->lap & 3u; /* so that the walk goes on behind it, come what may */
        *record = (scrub_record){.key = entry->key,
                                 .place = place,
                                 .expected = place_expects(store, &entry->key, place),
                                 .bytes = place->record_bytes,
                                 .tenant = entry->tenant,
                                 .shared = entry->shared};
        return true;
    }
    return false;
}

/* Reads a record behind all else, and verifies it. No lock held. */
static kvt_status scrub_read(kvt_store *store, scrub_record *record)
{
    staging_buffer buffer;
    kvt_status status =
        staging_acquire(store->staging, staging_round(record->bytes), STAGING_NO_DEADLINE, &buffer);
    if (status != KVT_OK) return status;
    void *const memory = buffer.memory;
    learn_transfer transfer;
    const tiers_transfer read = {.kind = KVT_IO_READ,
                                 .location = record->place->location,
                                 .buffer = memory,
                                 .bytes = record->bytes};
    status = transfer_move(store->staging, store->pools[KVT_TIER_SSD], &read,
                           learn_watch(store, KVT_TIER_SSD, KVT_IO_READ, &transfer), &buffer);
    if (status == KVT_OK) {
        status = place_check(&record->expected, memory, record->bytes);
        if (status == KVT_E_CORRUPT)
            kvt_record_damage(memory, record->bytes, &record->bad_offset, &record->bad_bytes);
    }
    staging_release(store->staging, &buffer);
    return status;
}

/* The only member that has bytes of the damage; false: several have. */
static bool scrub_blames(const scrub_record *record, uint32_t *member_out)
{
    const tiers_location *location = record->place->location;
    uint32_t found = 0;
    const uint64_t begin = record->bad_offset / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES;
    for (uint32_t i = 0; i < location->share_count; i++) {
        tiers_walk walk;
        tiers_walk_init(&walk, location, i, begin, record->bad_offset + record->bad_bytes - begin);
        if (!tiers_walk_has(&walk, UINT32_MAX / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES)) continue;
        *member_out = location->shares[i].member;
        found++;
    }
    return found == 1;
}

/* Counts damage by its device, and says which device has too much of it now, while another one of
 * its tier serves. Lock held. */
static bool scrub_count(kvt_store *store, const scrub_record *record, uint32_t *member_out)
{
    store_scrub *scrub = &store->scrub;
    scrub->damaged++;
    if (!scrub_blames(record, member_out)) return false;
    const uint64_t bit = UINT64_C(1) << *member_out;
    if (++scrub->faults[*member_out] < scrub->faults_most || scrub->faults_most == 0) return false;
    if ((scrub->drains & bit) != 0) return false;
    scrub->drains |= bit;
    return true;
}

/* Ends a record: one that is damaged, or cannot be read, is treated as by a get. Lock held. */
static void scrub_settle(kvt_store *store, const scrub_record *record, kvt_status status)
{
    store_place *place = record->place;
    store_entry *entry = entry_find_key(&store->table, &record->key);
    const bool ours = entry != NULL && entry->state == ENTRY_RESIDENT &&
                      (entry->place == place || entry->copy == place);
    store->scrub.read.records++;
    store->scrub.read.bytes += record->bytes;
    if (status == KVT_OK) place->unread = false;
    place_leave(store, place);
    if (status == KVT_OK || !ours) return;
    if (entry->copy == place) {
        if (status == KVT_E_CORRUPT) copies_drop(store, entry); /* the write-back makes another */
    } else if (place->readers == 0) { /* else those who read it now find out */
        (void)quarantine_note_failure(store, entry, status);
    }
}

/* Drains a device that rots, as long as another one of the tier can take its records. No lock
 * held. */
static void scrub_drain(kvt_store *store, uint32_t member)
{
    tiers_pool *pool = store->pools[KVT_TIER_SSD];
    tiers_member_stats stats;
    bool others = false;
    pthread_mutex_lock(&store->members_lock);
    for (uint32_t i = 0; tiers_pool_member(pool, i, &stats) == KVT_OK; i++)
        others = others || (i != member && stats.state == KVT_DEVICE_SERVING);
    if (others && tiers_pool_drain(pool, member, true) == KVT_OK) {
        pthread_mutex_lock(&store->lock);
        learn_cost_tier(store, KVT_TIER_SSD);
        (void)!kvt_policy_capacity_set(store->policy, KVT_TIER_SSD,
                                       store_policy_capacity(store, KVT_TIER_SSD));
        pthread_mutex_unlock(&store->lock);
    }
    pthread_mutex_unlock(&store->members_lock);
}

void scrub_round(kvt_store *store)
{
    if (store->catalog != NULL) catalog_check_late(store->catalog);
    if (store->scrub.lap_ns == 0 || store->pools[KVT_TIER_SSD] == NULL) return;
    pthread_mutex_lock(&store->lock);
    scrub_earn(store);
    pthread_mutex_unlock(&store->lock);
    for (;;) {
        scrub_record record;
        uint32_t member = 0;
        bool rots = false;
        pthread_mutex_lock(&store->lock);
        const bool found = scrub_next(store, &record);
        pthread_mutex_unlock(&store->lock);
        if (!found) return;
        const kvt_status status = scrub_read(store, &record);
        pthread_mutex_lock(&store->lock);
        if (status == KVT_E_CORRUPT) rots = scrub_count(store, &record, &member);
        scrub_settle(store, &record, status);
        pthread_mutex_unlock(&store->lock);
        if (rots) scrub_drain(store, member);
        if (status == KVT_E_CORRUPT && record.shared && store->remote != NULL)
            (void)!remote_prefetch_ask(store, &record.key, record.tenant);
        if (status == KVT_E_MEMORY) return;
    }
}
