/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.c - observes transfers, gets and encodings, and predicts the seconds of a get.
 *
 * A transfer is watched part by part: the bytes that each member is asked for, the bytes ahead of
 * them, and the instant of completion. The prediction of a get is the slowest member's seconds,
 * plus the mean seconds beside the devices, plus the decoding. The file changes no option:
 * learn_round.c does.
 */
#include "store/learn/learn.h"
#include "base/wait.h"

#include "codecs/codecs.h"
#include "store/core/store.h"
#include "tiers/pool/worker.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEARN_OVERHEAD_SHARE (1.0 / 32)
#define LEARN_CODEC_SHARE    (1.0 / 32)
#define LEARN_TARGET_SHARE   (1.0 / 64)
#define LEARN_OVERHEAD_LEAST 1e-3  /* seconds beside a get's devices that are never too much */
#define LEARN_HALF_LIFE      600.0 /* seconds without evidence: half the way to the curve */

kvt_status learn_open(kvt_store *store)
{
    store->learn = calloc(1, sizeof *store->learn);
    if (store->learn == NULL) return KVT_E_MEMORY;
    base_brief_lock_init(&store->learn->lock);
    pthread_mutex_init(&store->learn->reuse_lock, NULL);
    kvt_status status = kvt_reuse_open(0, &store->learn->reuse);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        learn_codec *codec = &store->learn->codecs[i];
        codec->decode_curve = 1.0 / store->costs.variants[i].decode_bytes_per_s;
        codec->encode_curve = 1.0 / store->costs.variants[i].encode_bytes_per_s;
        online_factor_init(&codec->decode);
        online_factor_init(&codec->encode);
    }
    store->curve_costs = store->costs;
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
    assert(member < TIERS_MEMBERS_MAX);
    learn_member *slot = &store->learn->tiers[tier].members[member];
    pthread_mutex_lock(&store->learn->lock);
    slot->known = true;
    memcpy(slot->identity, facts->identity, sizeof slot->identity);
    slot->in_flight_bytes =
        in_flight_bytes_max != 0 ? in_flight_bytes_max : TIERS_IN_FLIGHT_BYTES_DEFAULT;
    slot->measured[KVT_IO_READ] = *read;
    slot->measured[KVT_IO_WRITE] = *write;
    online_device_init(&slot->kinds[KVT_IO_READ], read->request_seconds, read->bytes_per_s);
    online_device_init(&slot->kinds[KVT_IO_WRITE], write->request_seconds, write->bytes_per_s);
    slot->option_seconds[KVT_IO_READ] =
        read->request_seconds + ONLINE_LOAD_BYTES / read->bytes_per_s;
    slot->option_seconds[KVT_IO_WRITE] =
        write->request_seconds + ONLINE_LOAD_BYTES / write->bytes_per_s;
    pthread_mutex_unlock(&store->learn->lock);
}

double learn_seconds(const store_learn *learn, learn_timing what, double bytes,
                     double measured_seconds)
{
    if (learn->clock == NULL) return online_timed(measured_seconds);
    return online_timed(learn->clock(learn->clock_context, what, bytes, measured_seconds));
}

/* ---- transfers ---- */

/* One part of a transfer as the model of its device sees it: its own bytes, the bytes of the same
 * direction ahead of it, and the bytes of the other direction that it has to wait for. */
static online_work learn_work(const learn_member *member, kvt_io_kind kind, const tiers_part *part)
{
    uint64_t other = part->ahead_bytes[kind == KVT_IO_READ ? KVT_IO_WRITE : KVT_IO_READ];
    if (other > member->in_flight_bytes) other = member->in_flight_bytes;
    return (online_work){.bytes = (double)part->bytes,
                         .ahead_bytes = (double)part->ahead_bytes[kind],
                         .other_bytes = (double)other,
                         .since_seconds = (double)part->since_ns * 1e-9};
}

/* The predicted seconds of the slowest member, and in *alone_out those with nothing ahead of the
 * parts. learn.lock held. */
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

/* Predicts the transfer's seconds at its start, from the queues of its members at that moment. */
static void learn_started(void *context, const tiers_part *parts, uint32_t count)
{
    learn_transfer *transfer = context;
    store_learn *learn = transfer->store->learn;
    const learn_tier *tier = &learn->tiers[transfer->tier];
    double alone;
    pthread_mutex_lock(&learn->lock);
    transfer->slowest_seconds = learn_slowest(tier, transfer->kind, parts, count, &alone);
    transfer->waiting_seconds = transfer->slowest_seconds - alone;
    transfer->overhead_seconds = tier->overhead.value;
    pthread_mutex_unlock(&learn->lock);
}

/* Compares each part's seconds with the prediction, then lets the member's model observe them. */
static void learn_finished(void *context, const tiers_part *parts, uint32_t count,
                           uint64_t started_ns)
{
    const learn_transfer *transfer = context;
    store_learn *learn = transfer->store->learn;
    learn_tier *tier = &learn->tiers[transfer->tier];
    pthread_mutex_lock(&learn->lock);
    for (uint32_t i = 0; i < count; i++) {
        learn_member *member = &tier->members[parts[i].member];
        if (!member->known || parts[i].finished_ns <= started_ns) continue;
        online_device *device = &member->kinds[transfer->kind];
        online_work work = learn_work(member, transfer->kind, &parts[i]);
        double seconds = learn_seconds(learn, (learn_timing)transfer->kind, work.bytes,
                                       (double)(parts[i].finished_ns - started_ns) * 1e-9);
        online_error_observe(&tier->kinds[transfer->kind], online_device_predict(device, &work),
                             seconds);
        if (online_device_observe(device, &work, seconds)) learn->reopened++;
    }
    pthread_mutex_unlock(&learn->lock);
}

const transfer_watch *learn_watch(kvt_store *store, kvt_tier tier, kvt_io_kind kind,
                                  learn_transfer *transfer)
{
    assert(tier != KVT_TIER_NONE && store->learn != NULL);
    *transfer = (learn_transfer){.store = store, .tier = tier, .kind = kind};
    transfer->watch = (transfer_watch){learn_started, learn_finished, transfer};
    return &transfer->watch;
}

void learn_begin_in_memory(kvt_store *store, kvt_tier tier, const tiers_location *location,
                           learn_transfer *transfer)
{
    assert(location->extent_count == 1);
    *transfer = (learn_transfer){.store = store,
                                 .tier = tier,
                                 .kind = KVT_IO_READ,
                                 .in_memory = true,
                                 .member = location->extents[0].member,
                                 .bytes = location->bytes};
}

#define LEARN_PART_LEAST                                                                           \
    (1.0 / 64) /* of work in memory: what device and codec have each at least */

/*
 * Work that a thread did in a member's memory itself: reading and decoding were one, or encoding
 * and writing. Its seconds are shared out as the measured curves of device and codec say, because
 * nothing else corrects a device's figures in a tier that no worker is asked for. The curves are
 * those of the open: were the parts those of curves that learning replaces, the part of one that
 * turned out faster would shrink with its curve, and again with what the smaller part makes of the
 * curve, down to nothing. Observes the device; *predicted_out is what its model expected. Returns
 * the device's part. learn.lock held.
 */
static double learn_observe_memory(store_learn *learn, learn_tier *tier, kvt_io_kind kind,
                                   uint32_t member, uint64_t bytes, double codec_seconds,
                                   double seconds, double *predicted_out)
{
    *predicted_out = 0;
    if (!tier->members[member].known) return 0;
    online_device *device = &tier->members[member].kinds[kind];
    const online_work work = {.bytes = (double)bytes};
    const kvt_affine *measured = &tier->members[member].measured[kind];
    const double curve = measured->request_seconds + work.bytes / measured->bytes_per_s;
    const double part = curve / (curve + codec_seconds);
    const double own = seconds * fmin(fmax(part, LEARN_PART_LEAST), 1.0 - LEARN_PART_LEAST);
    const double timed = learn_seconds(learn, (learn_timing)kind, work.bytes, own);
    *predicted_out = online_device_predict(device, &work);
    online_error_observe(&tier->kinds[kind], *predicted_out, timed);
    if (online_device_observe(device, &work, timed)) learn->reopened++;
    return own;
}

/* ---- codecs and whole gets ---- */

/*
 * The seconds of a get: those of its devices, of its decoding behind them, and an overhead. The
 * overhead counts for at most three times the rest, or a millisecond. It is negative for a while
 * when the devices turn out faster than their model; at least a quarter of the devices' seconds
 * remains.
 */
static double learn_get_seconds(double devices, double overhead, double decode)
{
    double most = fmax((ONLINE_FACTOR_MOST - 1.0) * (devices + decode), LEARN_OVERHEAD_LEAST);
    double least = -(1.0 - 1.0 / ONLINE_FACTOR_MOST) * devices;
    return devices + fmin(fmax(overhead, least), most) + decode;
}

/* NULL for a variant that this store does not make any more. */
static learn_codec *learn_find_codec(const kvt_store *store, kvt_variant variant)
{
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        if (memcmp(&store->costs.variants[i].variant, &variant, sizeof variant) == 0)
            return &store->learn->codecs[i];
    }
    return NULL;
}

void learn_notes_begin(kvt_store *store)
{
    pthread_mutex_lock(&store->learn->lock);
}

void learn_notes_end(kvt_store *store)
{
    pthread_mutex_unlock(&store->learn->lock);
}

void learn_note_targets(kvt_store *store, bool gpu, uint64_t count)
{
    store_learn *learn = store->learn;
    const double share = gpu ? 1.0 : 0.0;
    const double kept = learn->targets_noted ? pow(1.0 - LEARN_TARGET_SHARE, (double)count) : 0.0;
    learn->targets_noted = true;
    if (learn->gpu_share != share) learn->gpu_share = share + kept * (learn->gpu_share - share);
}

void learn_note_put_from_gpu(kvt_store *store)
{
    pthread_mutex_lock(&store->learn->lock);
    if (!store->learn->targets_noted) store->learn->gpu_share = 1.0;
    pthread_mutex_unlock(&store->learn->lock);
}

double learn_note_get(kvt_store *store, const learn_transfer *transfer, kvt_variant variant,
                      uint64_t source_bytes, double decode_seconds, double all_seconds)
{
    assert(source_bytes > 0 && decode_seconds >= 0 && all_seconds >= decode_seconds);
    store_learn *learn = store->learn;
    learn_tier *tier = &learn->tiers[transfer->tier];
    learn_codec *codec = learn_find_codec(store, variant);
    double slowest = transfer->slowest_seconds, overhead = transfer->overhead_seconds;
    if (transfer->in_memory) {
        double measured = codec != NULL ? codec->decode_curve * (double)source_bytes : 0;
        overhead = tier->overhead.value;
        decode_seconds -= learn_observe_memory(learn, tier, KVT_IO_READ, transfer->member,
                                               transfer->bytes, measured, decode_seconds, &slowest);
    }
    decode_seconds = learn_seconds(learn, LEARN_TIME_DECODE, (double)source_bytes, decode_seconds);
    all_seconds = learn_seconds(learn, LEARN_TIME_GET, (double)source_bytes, all_seconds);
    double curve = codec != NULL ? codec->decode_curve * (double)source_bytes : decode_seconds;
    double decode = codec != NULL ? online_factor_value(&codec->decode) * curve : decode_seconds;
    const double read = slowest - transfer->waiting_seconds; /* of its own bytes */
    double predicted =
        learn_get_seconds(slowest, overhead, offer_decode_beside(read, decode, transfer->steps));
    online_error_observe(&tier->loads, predicted, all_seconds);
    online_average_observe(&tier->overhead,
                           all_seconds - slowest -
                               offer_decode_beside(read, decode_seconds, transfer->steps),
                           LEARN_OVERHEAD_SHARE);
    online_average_observe(&tier->waiting, transfer->waiting_seconds, LEARN_OVERHEAD_SHARE);
    if (codec != NULL)
        online_factor_observe(&codec->decode, decode_seconds / curve, LEARN_CODEC_SHARE);
    return predicted;
}

double learn_load_seconds(kvt_store *store, const store_entry *entry, bool now)
{
    assert(store_is_locked(store));
    if (entry->state == ENTRY_STAGED) return store_copy_seconds(store, entry->kind->source_bytes);
    assert(entry->place != NULL);
    tiers_part parts[TIERS_MEMBERS_MAX];
    store_learn *learn = store->learn;
    const store_place *place = entry->place;
    const learn_tier *tier = &learn->tiers[place->tier];
    const learn_codec *codec = learn_find_codec(store, place->variant);
    tiers_pool *pool = store->pools[place->tier];
    uint32_t count = tiers_pool_parts(pool, place->location, parts);
    if (count == 0) return (double)NAN;
    /* A record that is decoded where it lies waits for nothing. */
    bool lent = tiers_pool_lends(pool, place->location);
    if (lent) parts[0] = (tiers_part){.member = parts[0].member, .bytes = parts[0].bytes};
    const uint32_t steps =
        lent || entry->kind->group_count != 0
            ? 1
            : codecs_arriving_steps(&entry->kind->layout, place->variant, place->record_bytes);
    double alone, seconds, decode = 0;
    pthread_mutex_lock(&learn->lock);
    seconds = learn_slowest(tier, KVT_IO_READ, parts, count, &alone);
    if (!now && !lent) seconds = alone + tier->waiting.value;
    if (codec != NULL)
        decode = codec->decode_curve * online_factor_value(&codec->decode) *
                 (double)entry->kind->source_bytes;
    decode = offer_decode_beside(alone, decode, steps);
    seconds = learn_get_seconds(seconds, tier->overhead.value, decode);
    pthread_mutex_unlock(&learn->lock);
    return seconds;
}

double learn_decode_seconds(const kvt_store *store, kvt_variant variant, uint64_t source_bytes)
{
    const learn_codec *codec = learn_find_codec(store, variant);
    if (codec == NULL) return 0;
    pthread_mutex_lock(&store->learn->lock);
    double seconds =
        codec->decode_curve * online_factor_value(&codec->decode) * (double)source_bytes;
    pthread_mutex_unlock(&store->learn->lock);
    return seconds;
}

double learn_link_seconds(const kvt_store *store, uint64_t bytes)
{
    const kvt_affine *link = &store->costs.link;
    if (!(link->bytes_per_s > 0)) return 0;
    return link->request_seconds + (double)bytes / link->bytes_per_s;
}

double learn_kernel_seconds(const kvt_store *store, const learn_transfer *transfer,
                            kvt_variant variant, uint64_t stored_bytes, uint64_t source_bytes)
{
    const learn_codec *codec = learn_find_codec(store, variant);
    if (codec == NULL) return 0;
    const double rate = store->costs.variants[codec - store->learn->codecs].gpu_bytes_per_s;
    const double link = stored_bytes != 0 ? learn_link_seconds(store, stored_bytes) : 0;
    if (!(rate > 0) || (stored_bytes != 0 && !(link > 0))) return 0;
    const double behind = link + (double)source_bytes / rate;
    /* The copy to the GPU is the read of a record in memory. */
    if (transfer->in_memory) return behind;
    const double read = transfer->slowest_seconds - transfer->waiting_seconds;
    return transfer->slowest_seconds + offer_decode_beside(read, behind, transfer->steps);
}

void learn_note_encode(kvt_store *store, kvt_variant variant, uint64_t source_bytes, double seconds)
{
    assert(source_bytes > 0 && seconds >= 0);
    learn_codec *codec = learn_find_codec(store, variant);
    if (codec == NULL) return;
    pthread_mutex_lock(&store->learn->lock);
    seconds = learn_seconds(store->learn, LEARN_TIME_ENCODE, (double)source_bytes, seconds);
    online_factor_observe(&codec->encode, seconds / (codec->encode_curve * (double)source_bytes),
                          LEARN_CODEC_SHARE);
    pthread_mutex_unlock(&store->learn->lock);
}

void learn_note_encode_in_memory(kvt_store *store, kvt_tier tier, const tiers_location *location,
                                 kvt_variant variant, uint64_t source_bytes, double seconds)
{
    assert(location->extent_count == 1 && seconds >= 0);
    store_learn *learn = store->learn;
    const learn_codec *codec = learn_find_codec(store, variant);
    double predicted;
    pthread_mutex_lock(&learn->lock);
    double measured = codec != NULL ? codec->encode_curve * (double)source_bytes : 0;
    double own =
        learn_observe_memory(learn, &learn->tiers[tier], KVT_IO_WRITE, location->extents[0].member,
                             location->bytes, measured, seconds, &predicted);
    pthread_mutex_unlock(&learn->lock);
    learn_note_encode(store, variant, source_bytes, seconds - own);
}

/* ---- statistics ---- */

void learn_fill_stats(kvt_store *store, kvt_store_stats *stats)
{
    store_learn *learn = store->learn;
    pthread_mutex_lock(&learn->lock);
    stats->learned.reopened = learn->reopened;
    for (uint32_t i = 0; i < store->costs.variant_count; i++)
        stats->learned.curves_rebased +=
            learn->codecs[i].decode.rebased + learn->codecs[i].encode.rebased;
    for (int i = KVT_TIER_HBM; i < KVT_TIER_COUNT; i++) {
        const learn_tier *tier = &learn->tiers[i];
        stats->tiers[i].loads =
            (kvt_load_stats){.loads = tier->loads.observations,
                             .predicted_seconds = tier->loads.predicted_seconds,
                             .achieved_seconds = tier->loads.achieved_seconds,
                             .error_p50 = online_error_quantile(&tier->loads, 0.5),
                             .error_p90 = online_error_quantile(&tier->loads, 0.9)};
        for (uint32_t k = 0; k < TIERS_MEMBERS_MAX; k++)
            stats->learned.curves_rebased += tier->members[k].kinds[KVT_IO_READ].rebased +
                                             tier->members[k].kinds[KVT_IO_WRITE].rebased;
    }
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
        out->read_drift = online_device_drift(read, ONLINE_LOAD_BYTES);
    }
    if (write->observations != 0) out->write_learned = online_device_affine(write);
    out->reopened = read->reopened + write->reopened != 0;
    pthread_mutex_unlock(&learn->lock);
}

double learn_kept(double idle_seconds)
{
    assert(idle_seconds >= 0);
    return exp2(-idle_seconds / LEARN_HALF_LIFE);
}

void learn_begin_epoch(kvt_store *store)
{
    assert(store_is_locked(store));
    store->curve_epoch++;
    store->curve_left = store->table.bucket_count;
}
