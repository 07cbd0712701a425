/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.c - keeps figures from shutting the store.
 *
 * A policy that weighs costs refuses entries that take longer to load than to recompute. When its
 * figures are wrong, nothing is stored, so nothing is loaded, so nothing corrects the figures. This
 * file breaks the circle by changing the store's offers; the policy stays as it is.
 *
 *     refused by learned figures    the measured curves would have taken it: of eight such puts the
 *                                   first is offered at the curves' figures
 *     refused by a tier for long    the tier counts the entries that are lost without it: refused
 *                                   puts, evictions above it. At the 24th, then after 8, 16, 32, 64
 *                                   and 128 more, a put is offered to that tier alone as worth
 *                                   storing at any cost, when the tier is half empty
 *     in either case                the entry, or where none found room another one, is read back a
 *                                   few times in the background, which times its device and codec
 *
 * Each tier has a count of its own, because a tier that takes puts by evicting hides a tier below
 * it that takes nothing. An entry that a tier takes on its merit undoes eight losses.
 *
 * An entry that was stored for a trial gets its present figures at once, so it is the first to
 * leave when room is needed. Each attempt counts as a use of the entry, as each put does.
 *
 * Thread rule: under the control lock; trust_take_trials in the background round without it.
 */
#include "store/core/store.h"
#include "store/core/store_offer.h"

#include <assert.h>
#include <string.h>

#define TRUST_SHARE        8u   /* of puts that learned figures refuse, one in so many is tried */
#define TRUST_LONG         24u  /* entries lost to a tier until one is tried whatever they say */
#define TRUST_WAIT_MOST    128u /* losses from one such trial to the next, times the tiers */
#define TRUST_UNDONE       8u   /* losses that one entry taken on its merit undoes */
#define TRUST_WORTH        1e6  /* seconds that recomputing is taken to cost in a trial */
#define TRUST_GAIN         0.125
#define TRUST_LOOK_BUCKETS 256u

/* ---- puts that were refused ---- */

static const char *const trust_by_curve =
    "It is not stored: at the measured and modelled speeds, storing it would have saved nothing "
    "over recomputing it, or too little for the room. While a tier with room takes nothing, one "
    "put now and then is stored there all the same and timed.";
static const char *const trust_by_learned =
    "It is not stored: at the speeds that this store has learned lately, loading it takes longer "
    "than recomputing it, while the measured curves say otherwise. Of eight such puts one is "
    "stored all the same and timed.";

static const char *const trust_by_parent =
    "It is not stored: the entry of the preceding tokens, its parent, is not stored, and with "
    "store.holes = contiguous nothing is kept behind a hole. Put parents before children.";

static const char *const trust_by_nothing =
    "It is not stored: nothing says how long recomputing it takes, so storing it would save "
    "nothing. An entry without a layout, which is opaque, needs recompute_seconds in its put.";

/* Keeps why a put was refused, one of the texts above, in a ring of STORE_REFUSALS. Lock held. */
static void trust_remember(kvt_store *store, uint64_t handle, const char *why)
{
    store_trust *trust = &store->trust;
    uint64_t at = trust->refusals++ % STORE_REFUSALS;
    trust->refused[at].handle = handle;
    trust->refused[at].reason = why;
}

const char *trust_reason(const kvt_store *store, uint64_t handle)
{
    assert(store_is_locked(store));
    const store_trust *trust = &store->trust;
    uint64_t known = trust->refusals < STORE_REFUSALS ? trust->refusals : STORE_REFUSALS;
    /* From the newest one back: a key may have been refused for different reasons in turn. */
    for (uint64_t back = 1; back <= known; back++) {
        uint64_t at = (trust->refusals - back) % STORE_REFUSALS;
        if (trust->refused[at].handle == handle) return trust->refused[at].reason;
    }
    return NULL;
}

void trust_count_refused(kvt_store *store, uint64_t handle)
{
    assert(store_is_locked(store));
    store_refusal why = STORE_REFUSAL_POLICY;
    if (!store_has_capacity(store))
        why = STORE_REFUSAL_NO_DEVICE;
    else if (trust_reason(store, handle) == trust_by_learned)
        why = STORE_REFUSAL_LEARNED;
    else if (trust_reason(store, handle) == trust_by_parent)
        why = STORE_REFUSAL_PARENT;
    store->counters.puts_refused++;
    store->tallies.refusals[why]++;
}

/* ---- trials ---- */

/* Begins a tier's count anew: no losses, and the first trial at TRUST_LONG of them. */
static void trust_begin_count(trust_tier *count)
{
    *count = (trust_tier){.next = TRUST_LONG, .wait = TRUST_SHARE};
}

void trust_open(kvt_store *store)
{
    store_trust *trust = &store->trust;
    /* A policy that counts no uses weighs nothing either. */
    trust->weighs = kvt_policy_rate_set(store->policy, 0, 0) != KVT_E_UNSUPPORTED;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        trust_begin_count(&trust->tiers[tier]);
}

/* ---- entries that each tier takes, and entries lost without it ---- */

/* Whether a move takes bytes from a tier above this one. */
static bool trust_is_above(const kvt_move *move, kvt_tier tier)
{
    for (int above = KVT_TIER_HBM; above < (int)tier; above++)
        if (move->from_bytes[above] != 0) return true;
    return false;
}

/* Counts losses of a tier, and undoes TRUST_UNDONE of them for each entry that the tier took. */
static void trust_count(trust_tier *count, uint64_t lost, uint64_t taken)
{
    count->lost += lost;
    uint64_t undone = taken * TRUST_UNDONE;
    if (undone == 0) return;
    if (undone < count->lost)
        count->lost -= undone;
    else
        trust_begin_count(count);
}

void trust_note_plan(kvt_store *store, const kvt_plan *plan)
{
    assert(store_is_locked(store));
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        uint64_t lost = 0, taken = 0;
        for (uint32_t i = 0; i < plan->count; i++) {
            const kvt_move *move = &plan->moves[i];
            taken += move->to_bytes[tier] != 0 && move->from_bytes[tier] == 0;
            lost += move->kind == KVT_MOVE_EVICT && trust_is_above(move, (kvt_tier)tier);
        }
        trust_count(&store->trust.tiers[tier], lost, taken);
    }
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

/* Queues an entry to be read back in the background; dropped when the queue is full. */
static void trust_queue(store_trust *trust, const kvt_key *key)
{
    if (trust->trial_count < STORE_TRIALS) trust->trials[trust->trial_count++] = *key;
}

/* An entry at rest in a tier, from where the last search ended; NULL when none was near. */
static const store_entry *trust_find_entry(kvt_store *store, kvt_tier tier)
{
    size_t buckets = store->table.bucket_count;
    for (uint32_t i = 0; i < TRUST_LOOK_BUCKETS && i < buckets; i++) {
        const store_entry *entry = store->table.buckets[store->trust.bucket++ & (buckets - 1)];
        while (entry != NULL && (entry->state != ENTRY_RESIDENT || entry->place->tier != tier))
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
    /* Once it is stored, the entry has the options of the real figures. */
    (void)!kvt_policy_recost(store->policy, entry->handle, offer->options, offer->option_count);
    trust_queue(&store->trust, &entry->key);
    store->counters.learned.puts_tried++;
    return KVT_OK;
}

/* Whether a tier is half empty with the entry in it. */
static bool trust_has_room(kvt_store *store, const kvt_policy_entry *offer, kvt_tier tier)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(store->policy, &stats);
    for (uint32_t i = 1; i < offer->option_count; i++) {
        uint64_t bytes = offer->options[i].bytes[tier];
        uint64_t used = stats.used_bytes[tier] + bytes;
        if (bytes != 0 && used <= store_policy_capacity(store, tier) / 2) return true;
    }
    return false;
}

/* Offers the entry to one tier, whatever the figures: it may take free room alone. */
static kvt_status trust_try_tier(kvt_store *store, const store_entry *entry,
                                 const kvt_policy_entry *offer, kvt_tier tier, kvt_plan *plan)
{
    kvt_option options[KVT_OPTIONS_MAX];
    memcpy(options, offer->options, offer->option_count * sizeof *options);
    options[KVT_OPTION_NONE].load_seconds = TRUST_WORTH;
    /* An option that saves nothing is not chosen. */
    for (uint32_t i = 1; i < offer->option_count; i++)
        if (options[i].bytes[tier] == 0) options[i].load_seconds = TRUST_WORTH;
    uint32_t capacity = plan->capacity;
    plan->capacity = 1;
    kvt_status status = trust_try(store, entry, offer, options, plan);
    plan->capacity = capacity;
    return status;
}

kvt_status trust_try_due(kvt_store *store, const store_entry *entry, const kvt_policy_entry *offer,
                         kvt_plan *plan)
{
    assert(store_is_locked(store));
    store_trust *trust = &store->trust;
    if (!trust->weighs) return KVT_REFUSED;
    /* All tiers together make at most one trial of TRUST_WAIT_MOST losses at the end. */
    uint64_t tiers = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        tiers += store->pools[tier] != NULL;
    for (int number = KVT_TIER_COUNT - 1; number >= KVT_TIER_HBM; number--) {
        kvt_tier tier = (kvt_tier)number;
        trust_tier *count = &trust->tiers[tier];
        if (store->pools[tier] == NULL || count->lost < count->next) continue;
        const uint64_t most = tiers * TRUST_WAIT_MOST;
        count->next = count->lost + count->wait;
        count->wait = 2 * count->wait < most ? 2 * count->wait : most;
        if (trust_has_room(store, offer, tier) &&
            trust_try_tier(store, entry, offer, tier, plan) == KVT_OK) {
            return KVT_OK;
        }
        const store_entry *other = trust_find_entry(store, tier);
        if (other != NULL) trust_queue(trust, &other->key);
    }
    return KVT_REFUSED;
}

/* Builds the offer's options at the seconds of the measured curves. False when the curves save
 * nothing either. */
static bool trust_build_curve(kvt_store *store, const store_entry *entry,
                              const kvt_policy_entry *offer, kvt_option *options)
{
    kvt_policy_entry built;
    if (store_offer_at(store, &store->curve_costs, entry, NULL, options, &built) != KVT_OK)
        return false;
    for (uint32_t i = 1; i < built.option_count; i++) {
        memcpy(options[i].bytes, offer->options[i].bytes, sizeof options[i].bytes);
        memcpy(options[i].read_bytes, offer->options[i].read_bytes, sizeof options[i].read_bytes);
    }
    return built.option_count == offer->option_count && trust_gains(options, built.option_count);
}

kvt_status trust_note_refused(kvt_store *store, store_entry *entry, const kvt_policy_entry *offer,
                              kvt_plan *plan)
{
    assert(store_is_locked(store));
    store_trust *trust = &store->trust;
    kvt_option options[KVT_OPTIONS_MAX];
    if (!trust->weighs) return KVT_REFUSED;
    /* Behind a hole in its prefix no figure counts. */
    if (offer->parent != 0 && store->holes == KVT_HOLES_CONTIGUOUS &&
        entry_find_handle(&store->table, offer->parent) == NULL) {
        trust_remember(store, entry->handle, trust_by_parent);
        return KVT_REFUSED;
    }
    bool learned = !trust_gains(offer->options, offer->option_count) &&
                   trust_build_curve(store, entry, offer, options);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        trust_count(&trust->tiers[tier], 1, 0);
    const bool costless = offer->options[KVT_OPTION_NONE].load_seconds <= 0.0;
    trust_remember(store, entry->handle,
                   learned    ? trust_by_learned
                   : costless ? trust_by_nothing
                              : trust_by_curve);
    if (learned) {
        store->counters.learned.puts_refused++;
        if (trust->learned++ % TRUST_SHARE != 0) return KVT_REFUSED;
        return trust_try(store, entry, offer, options, plan);
    }
    return trust_try_due(store, entry, offer, plan);
}

uint32_t trust_take_trials(kvt_store *store, kvt_key keys[STORE_TRIALS])
{
    pthread_mutex_lock(&store->lock);
    const bool waits = store->stopping || pressure_defers_any(store);
    const uint32_t count = waits ? 0 : store->trust.trial_count;
    memcpy(keys, store->trust.trials, count * sizeof *keys);
    store->trust.trial_count -= count;
    pthread_mutex_unlock(&store->lock);
    return count;
}
