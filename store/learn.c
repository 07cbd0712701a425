/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.c - see learn.h.
 *
 * A transfer is watched part by part: what each member is asked for, what it has to do first, and
 * when it was done. The slowest member's prediction, what a get takes beside its devices, and the
 * decoding add up to the load; the figures of new options follow once a second or so, those of old
 * ones when a curve has drifted.
 *
 * Thread rule: as learn.h.
 */
#include "store/learn.h"

#include "store/store.h"
#include "tiers/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEARN_OVERHEAD_SHARE (1.0 / 32)
#define LEARN_CODEC_SHARE    (1.0 / 32)
#define LEARN_FEW            24u  /* observations until a member's own figures count */
#define LEARN_CODEC_OFF      0.25 /* a form's seconds are off by more: its options are made anew */
#define LEARN_PRIORS_NS      UINT64_C(30000000000)
#define LEARN_SWEEP_STEP     64u /* entries under one hold of the lock */
#define LEARN_SWEEP_ROUND    8192u
#define LEARN_SWEEP_BUCKETS  4096u

kvt_status learn_open(kvt_store *store)
{
    store->learn = calloc(1, sizeof *store->learn);
    if (store->learn == NULL) return KVT_E_MEMORY;
    pthread_mutex_init(&store->learn->lock, NULL);
    pthread_mutex_init(&store->learn->reuse_lock, NULL);
    kvt_status status = kvt_reuse_open(0, &store->learn->reuse);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        learn_codec *codec = &store->learn->codecs[i];
        codec->decode_curve = 1.0 / store->costs.variants[i].decode_bytes_per_s;
        codec->encode_curve = 1.0 / store->costs.variants[i].encode_bytes_per_s;
        codec->decode.value = codec->encode.value = 1.0;
    }
    return KVT_OK;
}

void learn_close(kvt_store *store)
{
    if (store->learn == NULL) return;
    kvt_reuse_close(store->learn->reuse);
    free(store->learn->profile_path);
    pthread_mutex_destroy(&store->learn->reuse_lock);
    pthread_mutex_destroy(&store->learn->lock);
    free(store->learn);
    store->learn = NULL;
}

void learn_set_member(kvt_store *store, kvt_tier tier, uint32_t member,
                      const kvt_device_facts *facts, const kvt_affine *read,
                      const kvt_affine *write, uint64_t in_flight_bytes_max)
{
    learn_member *slot = &store->learn->tiers[tier].members[member];
    pthread_mutex_lock(&store->learn->lock);
    slot->known = true;
    memcpy(slot->identity, facts->identity, sizeof slot->identity);
    slot->in_flight_bytes =
        in_flight_bytes_max != 0 ? in_flight_bytes_max : TIERS_IN_FLIGHT_BYTES_DEFAULT;
    online_device_init(&slot->kinds[KVT_IO_READ], read->request_seconds, read->bytes_per_s);
    online_device_init(&slot->kinds[KVT_IO_WRITE], write->request_seconds, write->bytes_per_s);
    pthread_mutex_unlock(&store->learn->lock);
}

/* ---- transfers ---- */

static online_work learn_work(const learn_member *member, kvt_io_kind kind, const tiers_part *part)
{
    /* Reads overtake queued writes: only those that the device has are in front. A write waits for
     * all reads. */
    bool reads = kind == KVT_IO_READ;
    uint64_t other = reads ? part->flying_bytes[KVT_IO_WRITE] : part->ahead_bytes[KVT_IO_READ];
    if (other > member->in_flight_bytes) other = member->in_flight_bytes;
    return (online_work){.bytes = (double)part->bytes,
                         .ahead_bytes = (double)part->ahead_bytes[kind],
                         .other_bytes = (double)other,
                         .since_seconds = (double)part->since_ns * 1e-9};
}

/* When the slowest member will have been done, and when it would be with nothing ahead. learn.lock
 * held. */
static double learn_slowest(const learn_tier *tier, kvt_io_kind kind, const tiers_part *parts,
                            uint32_t count, double *alone_out)
{
    double slowest = 0;
    *alone_out = 0;
    for (uint32_t i = 0; i < count; i++) {
        const learn_member *member = &tier->members[parts[i].member];
        if (!member->known) continue;
        const online_device *device = &member->kinds[kind];
        online_work work = learn_work(member, kind, &parts[i]);
        slowest = fmax(slowest, online_device_predict(device, &work));
        work.ahead_bytes = work.other_bytes = 0;
        *alone_out = fmax(*alone_out, online_device_predict(device, &work));
    }
    return slowest;
}

static void learn_started(void *context, const tiers_part *parts, uint32_t count)
{
    learn_flight *flight = context;
    store_learn *learn = flight->store->learn;
    const learn_tier *tier = &learn->tiers[flight->tier];
    double alone;
    pthread_mutex_lock(&learn->lock);
    flight->slowest_seconds = learn_slowest(tier, flight->kind, parts, count, &alone);
    flight->waiting_seconds = flight->slowest_seconds - alone;
    flight->overhead_seconds = tier->overhead.value;
    pthread_mutex_unlock(&learn->lock);
}

static void learn_finished(void *context, const tiers_part *parts, uint32_t count,
                           uint64_t started_ns)
{
    const learn_flight *flight = context;
    store_learn *learn = flight->store->learn;
    learn_tier *tier = &learn->tiers[flight->tier];
    pthread_mutex_lock(&learn->lock);
    for (uint32_t i = 0; i < count; i++) {
        learn_member *member = &tier->members[parts[i].member];
        if (!member->known || parts[i].finished_ns <= started_ns) continue;
        online_device *device = &member->kinds[flight->kind];
        online_work work = learn_work(member, flight->kind, &parts[i]);
        double seconds = (double)(parts[i].finished_ns - started_ns) * 1e-9;
        online_error_observe(&tier->kinds[flight->kind], online_device_predict(device, &work),
                             seconds);
        if (online_device_observe(device, &work, seconds)) learn->reopened++;
    }
    pthread_mutex_unlock(&learn->lock);
}

const flight_watch *learn_watch(kvt_store *store, kvt_tier tier, kvt_io_kind kind,
                                learn_flight *flight)
{
    *flight = (learn_flight){.store = store, .tier = tier, .kind = kind};
    flight->watch = (flight_watch){learn_started, learn_finished, flight};
    return &flight->watch;
}

/* ---- codecs and whole gets ---- */

/* NULL for a form that this store does not make any more. */
static learn_codec *learn_find_codec(const kvt_store *store, kvt_variant variant)
{
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        if (memcmp(&store->costs.variants[i].variant, &variant, sizeof variant) == 0)
            return &store->learn->codecs[i];
    }
    return NULL;
}

double learn_note_get(kvt_store *store, const learn_flight *flight, kvt_variant variant,
                      uint64_t source_bytes, double decode_seconds, double all_seconds)
{
    store_learn *learn = store->learn;
    learn_tier *tier = &learn->tiers[flight->tier];
    learn_codec *codec = learn_find_codec(store, variant);
    pthread_mutex_lock(&learn->lock);
    double curve = codec != NULL ? codec->decode_curve * (double)source_bytes : decode_seconds;
    double decode = codec != NULL ? codec->decode.value * curve : decode_seconds;
    /* What a device was taken to be slower by is in the overhead for a while, below 0. */
    double predicted = fmax(flight->slowest_seconds + flight->overhead_seconds, 0.0) + decode;
    online_error_observe(&tier->loads, predicted, all_seconds);
    online_average_observe(&tier->overhead, all_seconds - decode_seconds - flight->slowest_seconds,
                           LEARN_OVERHEAD_SHARE);
    online_average_observe(&tier->waiting, flight->waiting_seconds, LEARN_OVERHEAD_SHARE);
    if (codec != NULL)
        online_average_observe(&codec->decode, decode_seconds / curve, LEARN_CODEC_SHARE);
    pthread_mutex_unlock(&learn->lock);
    return predicted;
}

double learn_load_seconds(kvt_store *store, const store_entry *entry, bool now)
{
    tiers_part parts[TIERS_MEMBERS_MAX];
    store_learn *learn = store->learn;
    const store_place *place = entry->place;
    const learn_tier *tier = &learn->tiers[place->tier];
    const learn_codec *codec = learn_find_codec(store, place->variant);
    tiers_pool *pool = store->pools[place->tier];
    uint32_t count = tiers_pool_parts(pool, place->location, parts);
    if (count == 0) return (double)NAN;
    double alone, seconds;
    pthread_mutex_lock(&learn->lock);
    seconds = learn_slowest(tier, KVT_IO_READ, parts, count, &alone);
    if (!now) seconds = alone + tier->waiting.value;
    seconds = fmax(seconds + tier->overhead.value, 0);
    if (codec != NULL)
        seconds += codec->decode_curve * codec->decode.value * (double)entry->source_bytes;
    pthread_mutex_unlock(&learn->lock);
    return seconds;
}

void learn_note_encode(kvt_store *store, kvt_variant variant, uint64_t source_bytes, double seconds)
{
    learn_codec *codec = learn_find_codec(store, variant);
    if (codec == NULL) return;
    pthread_mutex_lock(&store->learn->lock);
    online_average_observe(&codec->encode, seconds / (codec->encode_curve * (double)source_bytes),
                           LEARN_CODEC_SHARE);
    pthread_mutex_unlock(&store->learn->lock);
}

/* ---- statistics ---- */

static kvt_load_stats learn_load_stats(const online_error *error)
{
    return (kvt_load_stats){.loads = error->observations,
                            .predicted_seconds = error->predicted_seconds,
                            .achieved_seconds = error->achieved_seconds,
                            .error_p50 = online_error_quantile(error, 0.5),
                            .error_p90 = online_error_quantile(error, 0.9)};
}

void learn_fill_stats(kvt_store *store, kvt_store_stats *stats)
{
    store_learn *learn = store->learn;
    pthread_mutex_lock(&learn->lock);
    stats->reopened = learn->reopened;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        stats->tiers[tier].loads = learn_load_stats(&learn->tiers[tier].loads);
    pthread_mutex_unlock(&learn->lock);
}

void learn_fill_device(kvt_store *store, kvt_tier tier, uint32_t member, kvt_device_stats *out)
{
    store_learn *learn = store->learn;
    const learn_member *slot = &learn->tiers[tier].members[member];
    pthread_mutex_lock(&learn->lock);
    const online_device *read = &slot->kinds[KVT_IO_READ], *write = &slot->kinds[KVT_IO_WRITE];
    if (read->observations != 0) {
        out->read_learned = online_device_affine(read);
        out->read_drift = online_device_drift(read, LEARN_DRIFT_BYTES);
    }
    if (write->observations != 0) out->write_learned = online_device_affine(write);
    out->reopened = read->reopened + write->reopened != 0;
    pthread_mutex_unlock(&learn->lock);
}

/* ---- costs ---- */

/* What decisions count on for one member: what was learned of it, else its weight. */
static kvt_affine learn_member_figures(const learn_member *member, kvt_io_kind kind,
                                       double weight_bytes_per_s)
{
    const online_device *device = &member->kinds[kind];
    kvt_affine figures = {.request_seconds = device->used[0], .bytes_per_s = weight_bytes_per_s};
    if (device->observations >= LEARN_FEW) figures.bytes_per_s = 1.0 / device->used[1];
    return figures;
}

void learn_cost_tier(kvt_store *store, kvt_tier tier)
{
    store_learn *learn = store->learn;
    tiers_speed speeds[TIERS_MEMBERS_MAX];
    cost_device devices[TIERS_MEMBERS_MAX];
    uint32_t members = 0, count = 0;
    while (members < TIERS_MEMBERS_MAX &&
           tiers_pool_speed(store->pools[tier], members, &speeds[members]) == KVT_OK)
        members++;
    pthread_mutex_lock(&learn->lock);
    for (uint32_t i = 0; i < members; i++) {
        const learn_member *member = &learn->tiers[tier].members[i];
        if (!speeds[i].takes || !member->known) continue;
        devices[count].read = learn_member_figures(member, KVT_IO_READ, speeds[i].read_bytes_per_s);
        devices[count].write =
            learn_member_figures(member, KVT_IO_WRITE, speeds[i].write_bytes_per_s);
        count++;
    }
    pthread_mutex_unlock(&learn->lock);
    if (count == 0) return;
    store->costs.read[tier] = costs_combine(devices, count, KVT_IO_READ, store->striping[tier]);
    store->costs.write[tier] = costs_combine(devices, count, KVT_IO_WRITE, store->striping[tier]);
}

/* Whether a form's seconds are far enough from what options were made with. Lock held. */
static bool learn_cost_codec(kvt_codec_curve *curve, const learn_codec *codec)
{
    if (codec->decode.observations < LEARN_FEW) return false;
    double decode = 1.0 / (codec->decode_curve * codec->decode.value);
    double encode = 1.0 / (codec->encode_curve * codec->encode.value);
    /* A clock that stood still measures no rate. */
    if (!isfinite(decode) || !isfinite(encode)) return false;
    if (fabs(decode / curve->decode_bytes_per_s - 1.0) < LEARN_CODEC_OFF) return false;
    curve->decode_bytes_per_s = decode;
    if (codec->encode.observations >= LEARN_FEW) curve->encode_bytes_per_s = encode;
    return true;
}

void learn_begin_epoch(kvt_store *store)
{
    store->curve_epoch++;
    store->curve_left = store->table.bucket_count;
}

/* Gives the entries of a part of the table options of this epoch. False when the epoch is through.
 * Lock held. */
static bool learn_sweep_step(kvt_store *store, uint32_t *entries_done)
{
    uint32_t before = *entries_done;
    for (uint32_t i = 0; i < LEARN_SWEEP_BUCKETS; i++) {
        /* A table that grew has split its buckets: another round, for those on both sides. */
        size_t buckets = store->table.bucket_count;
        if (buckets != store->curve_buckets) store->curve_left = store->curve_buckets = buckets;
        if (store->curve_left == 0) {
            store->curve_swept = store->curve_epoch;
            return false;
        }
        /* Entries that are on their way in, or may come back, have options as well. */
        store->curve_left--;
        store_entry *entry = store->table.buckets[store->curve_bucket++ & (buckets - 1)];
        for (; entry != NULL; entry = entry->next) {
            if (entry->curve_epoch == store->curve_epoch) continue;
            learn_recost_entry(store, entry);
            ++*entries_done;
        }
        if (*entries_done - before >= LEARN_SWEEP_STEP) return true;
    }
    return true;
}

void learn_recost_entry(kvt_store *store, store_entry *entry)
{
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count;
    entry->curve_epoch = store->curve_epoch;
    if (store_build_options(store, entry, options, &count) != KVT_OK) return;
    if (kvt_policy_recost(store->policy, entry->handle, options, count) == KVT_OK)
        store->counters.recosted++;
}

static void learn_sweep(kvt_store *store)
{
    uint32_t done = 0;
    bool more = true;
    while (more && done < LEARN_SWEEP_ROUND) {
        pthread_mutex_lock(&store->lock);
        more = store->curve_swept != store->curve_epoch && !store->stopping &&
               learn_sweep_step(store, &done);
        pthread_mutex_unlock(&store->lock);
    }
}

void learn_round(kvt_store *store)
{
    bool off = false;
    pthread_mutex_lock(&store->lock);
    pthread_mutex_lock(&store->learn->lock);
    off = store->learn->reopened != store->reopened_seen;
    store->reopened_seen = store->learn->reopened;
    for (uint32_t i = 0; i < store->costs.variant_count; i++)
        off |= learn_cost_codec(&store->costs.variants[i], &store->learn->codecs[i]);
    pthread_mutex_unlock(&store->learn->lock);
    /* A round may have done much since it looked at the tiers last. */
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && off; tier++)
        if (store->pools[tier] != NULL) learn_cost_tier(store, (kvt_tier)tier);
    if (off) learn_begin_epoch(store);
    pthread_mutex_unlock(&store->lock);
    learn_sweep(store);
    if (store_now_ns(store) - store->learn->told_ns > LEARN_PRIORS_NS) {
        store->learn->told_ns = store_now_ns(store);
        learn_tell_priors(store);
    }
    learn_save_due(store);
}
