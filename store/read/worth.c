/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worth.c - how much of a stored prefix loads faster than it is recomputed (kvt_worth). The
 * file starts no load.
 *
 * The entries before a cut are loaded at once, those behind it are recomputed after that. Reads of
 * different tiers overlap, and so does decoding, on one thread, with the reads: a run takes as long
 * as the slowest of these. The first entry of a tier pays its latency and what its devices have to
 * do first, the others its bytes alone.
 *
 * Thread rule: any thread; the control lock for at most WORTH_STEP keys at a time.
 */
#include "base/struct_size.h"
#include "store/core/handover.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <math.h>

#define WORTH_STEP  ENTRY_SIGHT_KEYS
#define WORTH_LEAST STRUCT_SIZE_THROUGH(kvt_worth, saved_seconds)

/* The sums over the keys looked at so far. */
typedef struct worth_run {
    double tier_seconds[KVT_TIER_COUNT]; /* of reads; 0 = nothing of the tier yet */
    double decode_seconds;
    double per_byte[KVT_VARIANTS_MAX]; /* decoding seconds, by variant, where known */
    kvt_variant variants[KVT_VARIANTS_MAX];
    uint32_t variant_count;
    double remote_seconds; /* of loads from other hosts; 0 = none yet */
    double recompute_seconds;
    double last_seconds; /* recomputing of the entry before */
    bool unreachable;    /* an entry could not be read: nothing behind it is worth loading */
    double best;         /* of load - recompute over the cuts so far */
    kvt_worth found;
} worth_run;

/* Seconds to decode so many bytes, looked up once a variant and run. Lock held. */
static double worth_decode(const kvt_store *store, worth_run *run, kvt_variant variant,
                           uint64_t bytes)
{
    for (uint32_t i = 0; i < run->variant_count; i++) {
        const kvt_variant *known = &run->variants[i];
        if (known->codec == variant.codec && known->mode == variant.mode &&
            known->rate == variant.rate)
            return run->per_byte[i] * (double)bytes;
    }
    assert(store_is_locked(store) && run->variant_count <= KVT_VARIANTS_MAX);
    const uint64_t sample = UINT64_C(1) << 20;
    double per_byte = learn_decode_seconds(store, variant, sample) / (double)sample;
    if (run->variant_count < KVT_VARIANTS_MAX) {
        run->variants[run->variant_count] = variant;
        run->per_byte[run->variant_count++] = per_byte;
    }
    return per_byte * (double)bytes;
}

/* Seconds to recompute an entry on top of the ones before it. */
static double worth_recompute(const kvt_store *store, const store_entry *entry)
{
    const entry_kind *kind = entry->kind;
    /* Nothing but the caller says what recomputing opaque bytes costs. */
    const bool opaque = kind->layout.dtype == KVT_DTYPE_OPAQUE && kind->group_count == 0;
    if (entry->recompute_seconds > 0 || opaque) return (double)entry->recompute_seconds;
    uint32_t end = entry->first_position + entry->kind->layout.tokens;
    return kvt_prefill_seconds(&store->costs.prefill, entry->first_position, end);
}

/* Adds the reading and decoding of an entry. Lock held. */
static void worth_add_load(kvt_store *store, worth_run *run, const store_entry *entry)
{
    if (entry->state == ENTRY_STAGED) {
        run->decode_seconds += store_copy_seconds(store, entry->kind->source_bytes);
        return;
    }
    const store_place *place = entry->place;
    assert(store_is_locked(store) && place != NULL);
    double *seconds = &run->tier_seconds[place->tier];
    /* The first entry of a tier pays what its devices have to do first. */
    if (*seconds == 0) {
        *seconds = learn_load_seconds(store, entry, true);
        if (isnan(*seconds)) run->unreachable = true;
        return;
    }
    *seconds += (double)place->record_bytes / store->costs.read[place->tier].bytes_per_s;
    run->decode_seconds += worth_decode(store, run, place->variant, entry->kind->source_bytes);
}

/* The seconds of the loads so far, all together. */
static double worth_load(const worth_run *run)
{
    double seconds = run->decode_seconds;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (run->tier_seconds[tier] > seconds) seconds = run->tier_seconds[tier];
    return run->remote_seconds > seconds ? run->remote_seconds : seconds;
}

/* Cuts behind the run's last entry if that is the best so far. */
static void worth_cut(worth_run *run)
{
    kvt_worth *found = &run->found;
    if (run->unreachable) return;
    double load = worth_load(run);
    /* A longer run that saves no more is not loaded: its entries would load for nothing. */
    if (load - run->recompute_seconds >= run->best) return;
    assert(found->to_load < found->stored);
    run->best = load - run->recompute_seconds;
    found->to_load = found->stored;
    found->load_seconds = load;
    found->recompute_seconds = run->recompute_seconds;
}

/* Adds an entry to the run. Lock held. */
static void worth_add(kvt_store *store, worth_run *run, const store_entry *entry)
{
    run->found.stored++;
    if (!run->unreachable) worth_add_load(store, run, entry);
    run->last_seconds = worth_recompute(store, entry);
    run->recompute_seconds += run->last_seconds;
    worth_cut(run);
}

/* Adds an entry that another host is known to have, with a guess of its size and of its
 * recomputing. False: no host is known to have it. Lock held. */
static bool worth_add_guess(kvt_store *store, worth_run *run, const kvt_key *key)
{
    remote_guess guess;
    if (remote_match_hint(store, key) != HINT_THERE) return false;
    run->found.stored++;
    run->found.guessed++;
    if (!remote_costs_guess(store->remote, key, spaces_tenant(store, key), &guess)) {
        run->unreachable = true;
        return true;
    }
    run->remote_seconds += run->remote_seconds == 0
                               ? guess.load_seconds
                               : guess.byte_seconds * (double)guess.record_bytes;
    run->decode_seconds += guess.decode_seconds;
    if (run->last_seconds <= 0) run->last_seconds = guess.recompute_seconds;
    run->recompute_seconds += run->last_seconds;
    worth_cut(run);
    return true;
}

bool worth_is_sound(const kvt_worth *worth)
{
    return struct_size_is_sound(worth, WORTH_LEAST);
}

void worth_find(kvt_store *store, const kvt_key *keys, size_t count, kvt_worth *worth)
{
    worth_run run = {.found = {.struct_size = sizeof run.found}};
    bool whole = true;
    for (size_t from = 0; whole && from < count; from += WORTH_STEP) {
        size_t end = count - from < WORTH_STEP ? count : from + WORTH_STEP;
        entry_sight sight;
        entry_sight_begin(&sight, &store->secret, &keys[from], end - from);
        pthread_mutex_lock(&store->lock);
        for (size_t i = 0; whole && i < end - from; i++) {
            const store_entry *entry = entry_sight_find(&store->table, &sight, i);
            whole = lookup_finds(store, entry) && !token_drop_is_uncounted(entry);
            if (whole)
                worth_add(store, &run, entry);
            else if (entry == NULL)
                whole = worth_add_guess(store, &run, &keys[from + i]);
        }
        pthread_mutex_unlock(&store->lock);
    }
    run.found.saved_seconds = run.found.recompute_seconds - run.found.load_seconds;
    struct_size_out(worth, &run.found, sizeof run.found);
}
