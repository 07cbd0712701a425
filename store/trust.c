/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.c - keeps figures from shutting the store.
 *
 * A policy that weighs costs refuses what takes longer to load than to recompute. When the figures
 * that it weighs are wrong, nothing is stored, so nothing is loaded, so nothing corrects them. This
 * file breaks the circle by what the store offers; the policy stays as it is.
 *
 *     refused by learned figures    the measured curves would have taken it: of eight such puts the
 *                                   first is offered at the curves' figures
 *     refused for long, whatever    of the puts that find a tier half empty one is offered as worth
 *     the figures                   storing at any cost: the 24th, then after 8, 16, 32, 64 and 128
 *     in either case                the entry, or where none found room another one, is read back a
 *                                   few times in the background, which times its device and codec
 *
 * An entry that was stored so gets the figures of now at once: it is the first to leave when room
 * is needed. Each attempt counts as a use of the entry, as each put does.
 *
 * Thread rule: under the control lock; trust_round in the background round without it.
 */
#include "store/store.h"

#include <string.h>

#define TRUST_SHARE        8u   /* of puts that learned figures refuse, one in so many is tried */
#define TRUST_LONG         24u  /* puts refused in a row until one is tried whatever they say */
#define TRUST_WAIT_MOST    128u /* puts from one such trial to the next */
#define TRUST_READS        4u   /* of each entry: so many prove a figure wrong (online.c) */
#define TRUST_WORTH        1e6  /* seconds that recomputing is taken to cost in a trial */
#define TRUST_GAIN         0.125
#define TRUST_LOOK_BUCKETS 256u

void trust_open(kvt_store *store)
{
    store_trust *trust = &store->trust;
    /* A policy that counts no uses weighs nothing either. */
    trust->weighs = kvt_policy_set_rate(store->policy, 0, 0) != KVT_E_UNSUPPORTED;
    trust->next = TRUST_LONG;
    trust->wait = TRUST_SHARE;
}

void trust_note_taken(kvt_store *store)
{
    store_trust *trust = &store->trust;
    trust->in_a_row = 0;
    trust->next = TRUST_LONG;
    trust->wait = TRUST_SHARE;
}

/* ---- why ---- */

static const char *const trust_by_curve =
    "It is not stored: at the measured speeds and the prefill model's its last put saved nothing "
    "over recomputing it, or too little for the room. While all puts are refused, one now and then "
    "is stored all the same and timed.";
static const char *const trust_by_learned =
    "It is not stored: at the speeds that this store has learned lately, loading it takes longer "
    "than recomputing it, while the measured curves say otherwise. Of eight such puts one is "
    "stored all the same and timed.";

static void trust_remember(store_trust *trust, uint64_t handle, const char *reason)
{
    uint64_t at = trust->refusals++ % STORE_REFUSALS;
    trust->refused[at].handle = handle;
    trust->refused[at].reason = reason;
}

const char *trust_reason(const kvt_store *store, uint64_t handle)
{
    const store_trust *trust = &store->trust;
    uint64_t known = trust->refusals < STORE_REFUSALS ? trust->refusals : STORE_REFUSALS;
    for (uint64_t back = 1; back <= known; back++) {
        uint64_t at = (trust->refusals - back) % STORE_REFUSALS;
        if (trust->refused[at].handle == handle) return trust->refused[at].reason;
    }
    return NULL;
}

/* Whether some option saves enough of recomputing to be worth its write. */
static bool trust_gains(const kvt_option *options, uint32_t count)
{
    double most = (1.0 - TRUST_GAIN) * options[KVT_OPTION_NONE].load_seconds;
    for (uint32_t i = 1; i < count; i++)
        if (options[i].load_seconds + options[i].decode_seconds < most) return true;
    return false;
}

/* ---- trials ---- */

static void trust_queue(store_trust *trust, const kvt_key *key)
{
    if (trust->trial_count < STORE_TRIALS) trust->trials[trust->trial_count++] = *key;
}

/* An entry that is at rest, from where the last search ended; NULL when none was near. */
static const store_entry *trust_find_entry(kvt_store *store)
{
    size_t buckets = store->table.bucket_count;
    for (uint32_t i = 0; i < TRUST_LOOK_BUCKETS && i < buckets; i++) {
        const store_entry *entry = store->table.buckets[store->trust.bucket++ & (buckets - 1)];
        while (entry != NULL && entry->state != ENTRY_RESIDENT)
            entry = entry->next;
        if (entry != NULL) return entry;
    }
    return NULL;
}

/* Offers the entry with these options, which are those of the offer but for their seconds. */
static kvt_status trust_try(kvt_store *store, const store_entry *entry,
                            const kvt_policy_entry *offer, const kvt_option *options,
                            kvt_plan *plan)
{
    kvt_policy_entry trial = *offer;
    trial.options = options;
    plan->count = 0;
    kvt_status status = kvt_policy_admit(store->policy, store_now_ns(store), &trial, plan);
    if (status != KVT_OK) return KVT_REFUSED;
    /* It is kept as what it is by the figures of now. */
    (void)!kvt_policy_recost(store->policy, entry->handle, offer->options, offer->option_count);
    trust_queue(&store->trust, &entry->key);
    store->counters.puts_tried++;
    return KVT_OK;
}

/* Whether a tier is half empty with the entry in it. */
static bool trust_has_room(kvt_store *store, const kvt_policy_entry *offer)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(store->policy, &stats);
    for (uint32_t i = 1; i < offer->option_count; i++) {
        kvt_tier tier = store_tier_of(offer->options[i].bytes);
        uint64_t used = stats.used_bytes[tier] + offer->options[i].bytes[tier];
        if (used <= store_policy_capacity(store, tier) / 2) return true;
    }
    return false;
}

/* One of the puts that are refused whatever the figures: it may take free room alone. */
static kvt_status trust_try_anything(kvt_store *store, const store_entry *entry,
                                     const kvt_policy_entry *offer, kvt_plan *plan)
{
    store_trust *trust = &store->trust;
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_status status = KVT_REFUSED;
    uint32_t capacity = plan->capacity;
    if (trust_has_room(store, offer)) {
        memcpy(options, offer->options, offer->option_count * sizeof *options);
        options[KVT_OPTION_NONE].load_seconds = TRUST_WORTH;
        plan->capacity = 1;
        status = trust_try(store, entry, offer, options, plan);
        plan->capacity = capacity;
    }
    const store_entry *other = status != KVT_OK ? trust_find_entry(store) : NULL;
    if (other != NULL) trust_queue(trust, &other->key);
    trust->next = trust->in_a_row + trust->wait;
    trust->wait = trust->wait < TRUST_WAIT_MOST ? 2 * trust->wait : TRUST_WAIT_MOST;
    return status;
}

/* As the offer, at the seconds of the measured curves; false when these save nothing either. */
static bool trust_build_curve(kvt_store *store, const store_entry *entry,
                              const kvt_policy_entry *offer, kvt_option *options)
{
    uint32_t count;
    if (store_build_options_at(store, &store->curve_costs, entry, options, &count) != KVT_OK)
        return false;
    for (uint32_t i = 1; i < count; i++) {
        memcpy(options[i].bytes, offer->options[i].bytes, sizeof options[i].bytes);
        memcpy(options[i].read_bytes, offer->options[i].read_bytes, sizeof options[i].read_bytes);
    }
    return count == offer->option_count && trust_gains(options, count);
}

kvt_status trust_note_refused(kvt_store *store, store_entry *entry, const kvt_policy_entry *offer,
                              kvt_plan *plan)
{
    store_trust *trust = &store->trust;
    kvt_option options[KVT_OPTIONS_MAX];
    if (!trust->weighs) return KVT_REFUSED;
    bool learned = !trust_gains(offer->options, offer->option_count) &&
                   trust_build_curve(store, entry, offer, options);
    trust->in_a_row++;
    trust_remember(trust, entry->handle, learned ? trust_by_learned : trust_by_curve);
    if (learned) {
        store->counters.puts_refused_learned++;
        if (trust->learned++ % TRUST_SHARE != 0) return KVT_REFUSED;
        return trust_try(store, entry, offer, options, plan);
    }
    if (trust->in_a_row < trust->next) return KVT_REFUSED;
    return trust_try_anything(store, entry, offer, plan);
}

void trust_round(kvt_store *store)
{
    kvt_key keys[STORE_TRIALS];
    pthread_mutex_lock(&store->lock);
    uint32_t count = store->stopping ? 0 : store->trust.trial_count;
    memcpy(keys, store->trust.trials, count * sizeof *keys);
    store->trust.trial_count = 0;
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < count * TRUST_READS; i++)
        access_time_entry(store, &keys[i / TRUST_READS]);
}
