/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.c - gets: their reads and their ends. access_begin.c has their beginning.
 *
 *     get   begin -> read, or join a read -> decode into the target -> observe
 *     get   begin -> read and decode, part by part: a large record (docs/READS.md)
 *     get   begin -> decode into the target from where the record lies in memory
 *     get   begin -> copy, of an entry that a put has handed over
 *     get   begin -> not here -> asked for on other hosts (remote_get.c)
 *
 * When a get's deadline passes before its read completes, the pool keeps the read and its staging
 * buffer until the device answers. The caller's buffer is written only by the decoder. A get that
 * had joined such a read and still has time starts a new one.
 *
 * A record that lies in memory in one piece is lent by its pool (tiers_pool_lend). A get of it
 * neither wakes a thread nor waits, has no read, and joins none: several gets read the record at
 * once.
 *
 * A get holds its place as a reader, under the control lock, and uses its read, if it has one.
 *
 * Thread rule: any thread.
 */
#include "base/copy.h"
#include "base/kill_point.h"
#include "base/struct_size.h"
#include "base/wait.h"
#include "codecs/view_rows.h"
#include "store/background/lifetime.h"
#include "store/core/plans.h"
#include "store/gpu/gpu_far.h"
#include "store/gpu/gpu_get.h"
#include "store/gpu/gpu_views.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/learn/uses.h"
#include "store/read/access_get.h"
#include "store/read/groups.h"
#include "store/read/lookups.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- reads ---- */

/* Decodes the record into the target; arrival: of one that is on its way, else NULL. The scratch of
 * a read's owner lies behind the record in the same staging buffer, and so does that of a record
 * which was brought from a GPU; every other get has staging for scratch alone. */
static kvt_status access_decode_record(const kvt_store *store, access_get *get,
                                       kvt_record_arrival *arrival)
{
    const access_target *target = &get->target;
    assert(get->record != NULL && (get->read == NULL || get->read->status == KVT_OK));
    const staging_buffer *staging = get->owner ? &get->flying : &get->staging;
    uint64_t before = get->owner || get->far ? staging_round(get->record_bytes) : 0;
    void *scratch = staging->memory == NULL ? NULL : (char *)staging->memory + before;
    if (arrival != NULL) {
        const kvt_view packed = codecs_packed_view(&get->layout, target->data);
        return kvt_record_decode_arriving(
            get->record, get->record_bytes, &get->expected, store->workers, arrival, &get->layout,
            target->view != NULL ? target->view : &packed, target->first_layer, target->layer_count,
            scratch, staging->bytes - before);
    }
    if (kvt_variant_drops_tokens(get->variant))
        return token_drop_decode(store, get, target, scratch, staging->bytes - before);
    if (target->view != NULL && target->group_count != 0)
        return record_groups_decode_views(get->record, get->record_bytes, &get->expected,
                                          store->workers, target->groups, target->view,
                                          target->group_count, target->first_layer,
                                          target->layer_count, scratch, staging->bytes - before);
    if (get->of_many && target->view != NULL)
        return kvt_record_decode_of_many(get->record, get->record_bytes, &get->expected,
                                         store->workers, &target->layout, target->view,
                                         target->first_layer, target->layer_count, get->next_record,
                                         scratch, staging->bytes - before);
    if (target->view != NULL)
        return kvt_record_decode_view(get->record, get->record_bytes, &get->expected,
                                      store->workers, &target->layout, target->view,
                                      target->first_layer, target->layer_count, scratch,
                                      staging->bytes - before);
    return kvt_record_decode_parallel(get->record, get->record_bytes, &get->expected,
                                      store->workers, target->data, target->bytes, scratch,
                                      staging->bytes - before);
}

/* Lets kernels of the target's GPU decode the record, once. */
static void access_try_gpu(kvt_store *store, access_get *get, kvt_record_arrival *arrival)
{
    if (get->by_cpu || get->by_gpu) return;
    kvt_status status = KVT_OK;
    if (kvt_variant_drops_tokens(get->variant))
        status = token_drop_turns(&get->target) ? KVT_E_UNSUPPORTED : token_drop_list(get);
    if (status == KVT_OK) status = store_gpu_get(store, get, arrival);
    get->by_gpu = status == KVT_OK;
    get->by_cpu = !get->by_gpu;
    get->unsound = status == KVT_E_CORRUPT;
}

/* A get's own read while it is under way, on the caller's thread. */
typedef struct access_flight {
    kvt_store *store;
    access_get *get;
    store_transfer *transfer; /* NULL: the read has ended */
    uint64_t waited_ns;       /* for bytes to decode */
} access_flight;

/* Waits for the whole record, and ends the read. */
static void access_end_flight(access_flight *flight)
{
    transfer_report report;
    store_read *read = flight->get->read;
    const kvt_status status =
        transfer_end(flight->transfer, flight->get->deadline_ns, &read->buffer, &report);
    flight->transfer = NULL;
    read_end(flight->store, read, status, report.finished_ns - report.started_ns, false);
}

/* Waits for the first bytes of a record that is decoded as it comes. The read ends here, for those
 * who have joined it, before the decoding does. */
static kvt_status access_await(void *context, uint64_t bytes, uint64_t *arrived_out)
{
    access_flight *flight = context;
    const access_get *get = flight->get;
    const uint64_t from_ns = store_now_ns(flight->store);
    kvt_status status = KVT_OK;
    if (flight->transfer != NULL)
        status = transfer_await(flight->transfer, bytes, get->deadline_ns, arrived_out);
    if (status != KVT_QUEUED) {
        if (flight->transfer != NULL) access_end_flight(flight);
        *arrived_out = get->record_bytes;
        status = get->read->status;
    }
    flight->waited_ns += store_now_ns(flight->store) - from_ns;
    return status == KVT_QUEUED ? KVT_OK : status;
}

uint64_t access_piece_bytes(access_get *get)
{
    if (get->grouped) return 0;
    /* A thread of a queue does not wait for a GPU once for each piece. */
    if (get->target.gpu != NULL && get->waiter.ended != NULL) return 0;
    get->transfer.steps = codecs_arriving_steps(&get->layout, get->variant, get->record_bytes);
    return get->transfer.steps > 1 ? tiers_piece_bytes(get->record_bytes) : 0;
}

/* Reads the record of a get that owns its read and, where that pays, decodes it meanwhile. */
static void access_fly(kvt_store *store, access_get *get)
{
    access_flight flight = {.store = store, .get = get};
    const tiers_transfer wanted = access_transfer(get);
    const transfer_watch *watch = learn_watch(store, get->tier, KVT_IO_READ, &get->transfer);
    const uint64_t piece_bytes = access_piece_bytes(get);
    const kvt_status status =
        transfer_begin(store->staging, store->pools[get->tier], &wanted, piece_bytes,
                       get->deadline_ns, watch, &flight.transfer);
    if (status != KVT_OK) {
        read_end(store, get->read, status, 0, false);
        return;
    }
    if (piece_bytes != 0) {
        kvt_record_arrival arrival = {access_await, &flight, 0};
        const uint64_t from_ns = store_now_ns(store);
        get->record = get->flying.memory;
        if (get->target.gpu != NULL)
            access_try_gpu(store, get, &arrival);
        else
            get->decode_status = access_decode_record(store, get, &arrival);
        get->decode_ns = store_now_ns(store) - from_ns - flight.waited_ns;
        get->decoded = get->target.gpu == NULL;
    }
    if (flight.transfer != NULL) access_end_flight(&flight);
}

/* Brings the record of a get on the caller's thread: reads it, or waits for the get that is reading
 * it. No lock held. */
static kvt_status access_bring(kvt_store *store, access_get *get)
{
    if (get->owner) access_fly(store, get);
    const kvt_status status = read_wait(store, get->read, get->deadline_ns);
    get->record = status == KVT_OK ? get->read->buffer.memory : NULL;
    return status;
}

/* Resources that a get gives back without a lock, because freeing heap memory takes time. */
typedef struct access_freed {
    staging_buffer staging;
    store_read *read;
} access_freed;

static void access_free(kvt_store *store, access_freed *freed)
{
    if (freed->staging.memory != NULL) staging_release(store->staging, &freed->staging);
    read_drop(store, freed->read);
}

/* Gives up the place, and the read or the memory of the record. Lock held. */
static void access_end(kvt_store *store, access_get *get, access_freed *freed)
{
    assert(get->place->readers > 0 && (get->read == NULL || !get->in_memory));
    assert(store_is_locked(store));
    store_place *place = get->place;
    if (get->in_memory && get->record != NULL)
        tiers_pool_take_back(store->pools[place->tier], place->location, KVT_IO_READ,
                             place->record_bytes);
    const bool last = place->readers == 1;
    place_leave(store, place);
    *freed = (access_freed){get->staging, get->read};
    if (last && !get->in_memory) pthread_cond_broadcast(&store->changed);
}

/* ---- ends ---- */

/* Settles an entry whose read failed, as quarantine_note_failure says. It stays as it is when it
 * moved on or left meanwhile, when its device came back, or when another get still reads the place
 * and will find the failure itself; nor is it settled for a queue's get while it is in motion. True
 * when the get may try again, at another place or at this one. Lock held. The caller's staging is
 * released before the call, because the move that this waits for may be waiting for staging. */
static bool access_settle_failed(kvt_store *store, const access_get *get, kvt_status failure)
{
    assert(failure != KVT_OK && get->place != NULL);
    assert(store_is_locked(store));
    bool waiting = true;
    while (waiting) {
        store_entry *entry = entry_find_hashed(&store->table, get->handle, get->key);
        if (entry == NULL || !entry_is_visible(entry)) return false;
        if (entry->place->serial != get->serial) return true;
        if (quarantine_is_back(store, entry->place, failure)) return true;
        if (entry->state == ENTRY_RESIDENT) {
            if (entry->place->readers != 0 && entry->copy == NULL) return false;
            if (!quarantine_note_failure(store, entry, failure)) return false;
            continue;
        }
        if (plan_cancel(store, entry->handle)) continue;
        /* No thread of a queue waits: the move may wait for room of another get in its hands. */
        if (get->waiter.ended != NULL) return false;
        waiting = base_condition_wait_until(&store->changed, &store->lock, get->deadline_ns);
    }
    return false;
}

/* Counts a get that had held its place. Lock held. */
static void access_count_end(kvt_store *store, const access_get *get, kvt_status status, bool lost)
{
    bool late = status == KVT_E_TIMEOUT;
    if (get->quiet) return;
    store->counters.gets++;
    if (status == KVT_OK) store->counters.tiers[get->tier].hits++;
    if (lost || late || get->lacks_basis) store->counters.misses++;
    store->counters.refused.basis += get->lacks_basis;
    if (late) store->counters.timeouts++;
}

/* Settles the entry of a get whose read failed, and counts the get. KVT_BUSY: the read failed at a
 * place that is no longer the entry's, and the get begins again, which it does once. No lock held.
 */
static kvt_status access_lose(kvt_store *store, access_get *get, kvt_status status)
{
    KILL_POINT("get: load failed");
    pthread_mutex_lock(&store->lock);
    const bool again = access_settle_failed(store, get, status) && !get->again;
    get->again = get->again || again;
    quarantine_refresh_tier(store, get->tier);
    if (!again) access_count_end(store, get, status, true);
    pthread_mutex_unlock(&store->lock);
    return again ? KVT_BUSY : KVT_MISS;
}

/* Gives up read, place and staging of a get that ends, and counts it. True when the load has
 * failed: the get is counted when its entry has been settled. An entry whose record is sound and
 * needs another basis stays. Lock held. */
static bool access_close(kvt_store *store, access_get *get, kvt_status status, access_freed *freed)
{
    assert(get->place != NULL);
    bool whole = status == KVT_E_MEMORY || status == KVT_E_CANCELLED || status == KVT_E_TIMEOUT ||
                 get->gpu_failure != KVT_OK;
    bool lost = status != KVT_OK && !whole && !get->lacks_basis;
    if (status == KVT_OK) {
        get->place->unread = false;
        get->place->verified_lap = store->scrub.lap & 3u;
    }
    /* Kernels do not try a record again that the CPU takes and they do not. */
    if (get->unsound) get->place->by_cpu = true;
    access_end(store, get, freed);
    if (lost) store_count_load_failure(store, status);
    if (lost) get->failure = status;
    if (!lost) access_count_end(store, get, status, false);
    return lost;
}

/* Ends a get: gives up read, place and staging, settles an entry whose read failed, and counts.
 * KVT_BUSY as access_lose. No lock held. */
static kvt_status access_finish(kvt_store *store, access_get *get, kvt_status status)
{
    access_freed freed = {0};
    pthread_mutex_lock(&store->lock);
    bool lost = access_close(store, get, status, &freed);
    pthread_mutex_unlock(&store->lock);
    access_free(store, &freed);
    if (lost) return access_lose(store, get, status);
    return status == KVT_E_TIMEOUT ? KVT_MISS : status;
}

kvt_status access_refuse(kvt_store *store, const access_get *get, kvt_status status,
                         kvt_get_info *info)
{
    assert(status != KVT_OK && get->place == NULL);
    const bool late = status == KVT_E_TIMEOUT, dropped = status == KVT_REFUSED;
    const bool missed = status == KVT_MISS || late || dropped, lacking = status == KVT_E_MISMATCH;
    if (get->quiet) return status;
    pthread_mutex_lock(&store->lock);
    store->counters.gets++;
    store->counters.misses += missed || lacking;
    store->counters.timeouts += late;
    store->counters.refused.tokens += dropped;
    store->counters.refused.basis += lacking;
    pthread_mutex_unlock(&store->lock);
    *info = (kvt_get_info){.timed_out = late, .refused_tokens = dropped};
    return missed ? KVT_MISS : status;
}

/* Ends a get's wait for a read that its owner gave up: a get that has time left begins again.
 * False: it has no time left, or the read ended otherwise. No lock held. */
static bool access_lets_go(kvt_store *store, access_get *get, kvt_status status)
{
    access_freed freed = {0};
    if (status != KVT_E_TIMEOUT || get->owner || base_clock_ns() >= get->deadline_ns) return false;
    pthread_mutex_lock(&store->lock);
    access_end(store, get, &freed);
    pthread_mutex_unlock(&store->lock);
    access_free(store, &freed);
    return true;
}

/* Says that all of a record has come. */
static kvt_status access_have_all(void *context, uint64_t bytes, uint64_t *arrived_out)
{
    (void)context, (void)bytes;
    *arrived_out = UINT64_MAX;
    return KVT_OK;
}

/* Decodes the record, or what is left of it. */
static kvt_status access_decode_here(const kvt_store *store, access_get *get)
{
    kvt_record_arrival rest = {access_have_all, NULL, get->decoded_tasks};
    if (get->decoded) return get->decode_status;
    return access_decode_record(store, get, get->decoded_tasks != 0 ? &rest : NULL);
}

/* Begins the views of a target in a GPU's memory. */
static void access_begin_gpu(const access_target *target, store_gpu_views *gpu)
{
    const bool grouped = target->group_count != 0;
    store_gpu_begin(target->gpu, grouped ? target->groups : &target->layout, target->view,
                    grouped ? target->group_count : 1, gpu);
}

/* Brings a record out of the GPU's memory for the CPU, and takes scratch behind it. */
static kvt_status access_fetch(kvt_store *store, access_get *get)
{
    const kvt_record_range all = {.bytes = get->record_bytes};
    const uint64_t before = staging_round(get->record_bytes);
    gpu_host *host;
    assert(get->staging.memory == NULL);
    kvt_status status = store_gpu_far_fetch(get->target.gpu, (uintptr_t)get->record,
                                            get->record_bytes, &all, 1, &host);
    if (status != KVT_OK) return status;
    status = staging_acquire_now(store->staging, before + get->place->scratch_bytes, &get->staging);
    if (status == KVT_OK) memcpy(get->staging.memory, host->memory, get->record_bytes);
    gpu_host_give(get->target.gpu, host);
    if (status == KVT_OK) get->record = get->staging.memory;
    return status;
}

/* The same for a target in a GPU's memory: by kernels, or here into pinned memory, and copied from
 * there. */
static kvt_status access_decode_gpu(kvt_store *store, access_get *get)
{
    const access_target target = get->target;
    store_gpu_views gpu;
    access_try_gpu(store, get, NULL);
    if (get->by_gpu) return KVT_OK;
    if (get->far) get->gpu_failure = access_fetch(store, get);
    if (get->gpu_failure != KVT_OK) return get->gpu_failure;
    access_begin_gpu(&target, &gpu);
    get->gpu_failure = store_gpu_pack(&gpu);
    if (get->gpu_failure != KVT_OK) return get->gpu_failure;
    get->target.view = gpu.packed;
    get->transfer.steps = 1; /* the CPU decodes for a GPU once all has come */
    const uint64_t from_ns = store_now_ns(store);
    const kvt_status status = access_decode_here(store, get);
    get->cpu_ns = store_now_ns(store) - from_ns;
    get->target.view = target.view;
    if (kvt_variant_drops_tokens(get->variant)) gpu.kept = get->tokens;
    if (status == KVT_OK)
        get->gpu_failure = store_gpu_scatter(&gpu, target.first_layer, target.layer_count);
    if (status == KVT_OK)
        gpu_count(target.gpu, GPU_DECODED_BY_CPU, store_gpu_layers(gpu.layouts, gpu.count));
    store_gpu_end(&gpu);
    return status == KVT_OK ? get->gpu_failure : status;
}

/* Decodes the record, and says whether it is sound and needs another basis than the store's. */
static kvt_status access_decode(kvt_store *store, access_get *get)
{
    kvt_status status =
        get->target.gpu != NULL ? access_decode_gpu(store, get) : access_decode_here(store, get);
    if (get->gpu_failure != KVT_OK) return get->gpu_failure;
    if (status != KVT_OK)
        status = place_judge(&get->expected, get->record, get->record_bytes, status);
    get->lacks_basis = status == KVT_E_MISMATCH;
    if (status == KVT_OK) token_drop_give(&get->target, get->tokens, get->position_sets);
    return status;
}

/* Copies packed bytes into the views of a target. */
static void access_scatter(const access_target *target, const void *packed)
{
    if (target->view != NULL && target->group_count != 0)
        groups_scatter(target->groups, target->view, target->group_count, target->first_layer,
                       target->layer_count, packed);
    else if (target->view != NULL)
        view_scatter_entry(target->view, &target->layout, target->first_layer, target->layer_count,
                           packed);
    else
        base_copy_past(target->data, packed, target->bytes);
}

/* The same for a target in a GPU's memory. */
static kvt_status access_scatter_gpu(const access_target *target, const void *packed)
{
    store_gpu_views gpu;
    access_begin_gpu(target, &gpu);
    kvt_status status = store_gpu_pack(&gpu);
    if (status != KVT_OK) return status;
    base_copy(gpu.host->memory, packed, target->bytes);
    status = store_gpu_scatter(&gpu, target->first_layer, target->layer_count);
    if (status == KVT_OK)
        gpu_count(target->gpu, GPU_DECODED_BY_CPU, store_gpu_layers(gpu.layouts, gpu.count));
    store_gpu_end(&gpu);
    return status;
}

/* Copies the staged bytes of a put into the target, counts a hit of DRAM, and ends the use
 * of the staged object. KVT_OK; statuses of copies to a GPU. No lock held. */
static kvt_status access_copy_staged(kvt_store *store, access_get *get, kvt_get_info *info)
{
    const access_target *target = &get->target;
    assert(get->place == NULL && target->bytes <= get->staged->buffer.bytes);
    uint32_t class_id = get->staged->source.class_id;
    uint64_t handle = get->staged->handle;
    const void *packed = get->staged->buffer.memory;
    if (target->gpu != NULL)
        get->gpu_failure = access_scatter_gpu(target, packed);
    else
        access_scatter(target, packed);
    const bool hit = get->gpu_failure == KVT_OK;
    pthread_mutex_lock(&store->lock);
    handover_leave(store, get->staged);
    if (!get->quiet) {
        store->counters.gets++;
        store->counters.tiers[KVT_TIER_DRAM].hits += hit;
        store->counters.staged_hits += hit;
    }
    pthread_mutex_unlock(&store->lock);
    if (!get->quiet) learn_note_use(store, handle, class_id);
    if (!hit) return get->gpu_failure;
    token_drop_give(target, get->tokens, 0);
    *info = (kvt_get_info){.tier = KVT_TIER_DRAM,
                           .variant = {.codec = KVT_CODEC_RAW},
                           .stored_bytes = target->bytes,
                           .elapsed_ns = store_now_ns(store) - get->began_ns};
    return KVT_OK;
}

/* Seconds that a get into a GPU's memory was expected to take, for the layers that it brings; 0: a
 * figure of them is not there. Lets the store learn from what the CPU did alone: kernels and copies
 * say nothing about its decoding. As access_note. */
static double access_note_gpu(kvt_store *store, const access_get *get, uint64_t decode_ns,
                              uint64_t elapsed_ns)
{
    const access_target *target = &get->target;
    const bool grouped = target->group_count != 0;
    const uint32_t all = store_gpu_layers(grouped ? target->groups : &target->layout,
                                          grouped ? target->group_count : 1);
    const uint32_t behind = all - (target->first_layer < all ? target->first_layer : all);
    const uint32_t layers = target->layer_count != 0 ? target->layer_count : behind;
    const double share = all != 0 && layers < all ? (double)layers / all : 1;
    const uint64_t stored = get->far ? 0 : (uint64_t)(share * (double)get->record_bytes);
    const uint64_t made = (uint64_t)(share * (double)get->source_bytes);
    if (get->by_gpu) return learn_kernel_seconds(store, &get->transfer, get->variant, stored, made);
    if (get->far) return 0; /* it went to the host and back */
    const double link = learn_link_seconds(store, made);
    const double seconds = learn_note_get(store, &get->transfer, get->variant, get->source_bytes,
                                          (double)get->cpu_ns * 1e-9,
                                          (double)(elapsed_ns - (decode_ns - get->cpu_ns)) * 1e-9);
    return link > 0 ? seconds + link : 0;
}

/* Lets the store learn from a get that joined no other read, and fills the caller's info. Between
 * learn_notes_begin and learn_notes_end. */
static void access_note(kvt_store *store, const access_get *get, kvt_status status,
                        uint64_t decode_ns, uint64_t elapsed_ns, kvt_get_info *info)
{
    bool late = status == KVT_E_TIMEOUT, joined = !get->owner && !get->in_memory;
    double predicted_seconds = 0;
    /* A get that left early may not look into a read that others still finish. */
    const uint64_t read_ns = status != KVT_OK || get->in_memory ? 0 : get->read->read_ns;
    if (status == KVT_OK) learn_note_targets(store, get->target.gpu != NULL, 1);
    if (status == KVT_OK && !joined && get->target.gpu != NULL)
        predicted_seconds = access_note_gpu(store, get, decode_ns, elapsed_ns);
    else if (status == KVT_OK && !joined)
        predicted_seconds = learn_note_get(store, &get->transfer, get->variant, get->source_bytes,
                                           (double)decode_ns * 1e-9, (double)elapsed_ns * 1e-9);
    *info = (kvt_get_info){.tier = get->tier,
                           .variant = get->variant,
                           .stored_bytes = get->record_bytes,
                           .read_ns = read_ns,
                           .decode_ns = decode_ns,
                           .predicted_ns = (uint64_t)(predicted_seconds * 1e9),
                           .elapsed_ns = elapsed_ns,
                           .shared = joined,
                           .timed_out = late};
}

/* Decodes the record, or copies staged bytes, counts, and gives everything up. status: how the read
 * ended. KVT_BUSY as access_lose. No lock held. */
static kvt_status access_complete(kvt_store *store, access_get *get, kvt_status status,
                                  kvt_get_info *info)
{
    if (get->staged != NULL) return access_copy_staged(store, get, info);
    uint64_t decode_started_ns = store_now_ns(store);
    if (status == KVT_OK) status = access_decode(store, get);
    uint64_t decoded_ns = store_now_ns(store);
    learn_notes_begin(store);
    access_note(store, get, status, get->decode_ns + decoded_ns - decode_started_ns,
                decoded_ns - get->began_ns, info);
    learn_notes_end(store);
    return access_finish(store, get, status);
}

void access_complete_all(kvt_store *store, access_get *const *gets, uint32_t count,
                         kvt_get_info *const *infos, kvt_status *statuses_out)
{
    access_freed freed[ACCESS_ALL_MOST];
    uint64_t lost = 0, clock_ns[ACCESS_ALL_MOST + 1];
    assert(count <= ACCESS_ALL_MOST && ACCESS_ALL_MOST <= 64);
    if (count == 0) return;
    if (gets[0]->record != NULL) kvt_record_prefetch(gets[0]->record);
    clock_ns[0] = store_now_ns(store);
    for (uint32_t i = 0; i < count; i++) {
        access_get *get = gets[i];
        assert(get->in_memory && get->read == NULL && get->staged == NULL);
        /* Prefetches the next record's head while this one is decoded. */
        get->next_record = i + 1 < count ? gets[i + 1]->record : NULL;
        if (get->next_record != NULL && !get->of_many) kvt_record_prefetch(get->next_record);
        statuses_out[i] = get->record != NULL ? access_decode(store, get) : KVT_E_GONE;
        clock_ns[i + 1] = store_now_ns(store);
    }
    learn_notes_begin(store);
    for (uint32_t i = 0; i < count; i++)
        access_note(store, gets[i], statuses_out[i], clock_ns[i + 1] - clock_ns[i],
                    clock_ns[i + 1] - gets[i]->began_ns, infos[i]);
    learn_notes_end(store);
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < count; i++)
        lost |= (uint64_t)access_close(store, gets[i], statuses_out[i], &freed[i]) << i;
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < count; i++) {
        access_free(store, &freed[i]);
        if ((lost >> i & 1) != 0) statuses_out[i] = access_lose(store, gets[i], statuses_out[i]);
    }
}

/* ---- gets that no thread waits for ---- */

/* What has come of a get that flies; the wait is its waiter's. */
static kvt_status access_look(void *context, uint64_t bytes, uint64_t *arrived_out)
{
    const access_get *get = context;
    *arrived_out = transfer_arrived(get->read->flight, bytes);
    return *arrived_out >= bytes && base_clock_ns() < get->deadline_ns ? KVT_OK : KVT_BUSY;
}

void access_decode_some(kvt_store *store, access_get *get)
{
    kvt_record_arrival arrival = {access_look, get, get->decoded_tasks};
    const uint64_t from_ns = store_now_ns(store);
    assert(get->stage == ACCESS_FLIES && get->owner && get->read->flight != NULL);
    assert(get->target.gpu == NULL);
    if (get->decoded) return;
    get->record = get->flying.memory;
    get->decode_status = access_decode_record(store, get, &arrival);
    get->decoded = get->decode_status != KVT_BUSY;
    get->decoded_tasks = arrival.done;
    get->decode_ns += store_now_ns(store) - from_ns;
}

void access_land(kvt_store *store, access_get *get)
{
    assert(get->stage == ACCESS_FLIES);
    get->stage = ACCESS_READY;
    if (get->remote != NULL) {
        if (!remote_get_land(store, get)) get->stage = ACCESS_STARVES;
        return;
    }
    if (get->owner) (void)!read_land(store, get->read);
    assert(get->read->finished);
    if (access_lets_go(store, get, get->read->status)) get->stage = ACCESS_STARVES;
}

kvt_status access_end_ready(kvt_store *store, access_get *get, kvt_get_info *info)
{
    assert(get->stage == ACCESS_READY);
    kvt_status status = KVT_OK;
    if (get->remote != NULL) {
        status = remote_get_finish(store, get, info);
        return status == KVT_OK ? KVT_OK : access_refuse(store, get, status, info);
    }
    if (get->in_memory && get->record == NULL) status = KVT_E_GONE;
    if (get->read != NULL) {
        assert(get->read->finished && get->read->flight == NULL);
        status = get->read->status;
        get->record = get->read->buffer.memory;
    }
    return access_complete(store, get, status, info);
}

bool access_give_up(kvt_store *store, access_get *get, kvt_status status, kvt_get_info *info)
{
    assert(get->stage == ACCESS_FLIES && status != KVT_OK);
    if (get->remote != NULL) {
        if (!remote_get_give_up(store, get)) return false;
        get->status = access_refuse(store, get, status, info);
        get->stage = ACCESS_ENDED;
        return true;
    }
    if (!read_give_up(store, get->read, get->owner ? NULL : &get->waiter, false)) return false;
    /* Gets that have joined may begin anew, whatever ends this one: a cancel is this get's alone,
     * the others see a read that took too long. */
    if (get->owner)
        read_end(store, get->read, status == KVT_E_CANCELLED ? KVT_E_TIMEOUT : status, 0, false);
    get->again = true; /* it does not begin again */
    get->status = access_complete(store, get, status, info);
    get->stage = ACCESS_ENDED;
    return true;
}

bool access_is_stuck(const access_get *get)
{
    return get->owner && transfer_is_stuck(get->read->flight);
}

/* ---- gets of a caller that waits ---- */

/* Ends a get that has found no readable entry here. */
static kvt_status access_answer_else(kvt_store *store, access_get *get, kvt_get_info *info)
{
    kvt_status status = get->status;
    if (status == KVT_MISS && store->remote != NULL && get->target.gpu == NULL &&
        remote_get_is_worth(store, get)) {
        status = remote_get_serve(store, get, info);
        if (status == KVT_OK) return KVT_OK;
    }
    status = access_refuse(store, get, status, info);
    if (get->lacks_basis && !get->quiet) {
        info->variant = get->variant;
        info->tier = get->tier;
    }
    return status;
}

/* Carries a get out. It begins again when another entry has come under its key since it was looked
 * up, when the read that it had joined was given up, and once when its entry was moved while its
 * read failed. */
static kvt_status access_carry_out(kvt_store *store, access_get *get, kvt_get_info *info)
{
    for (;;) {
        (void)access_begin_all(store, &get, 1);
        kvt_status status = KVT_OK;
        if (get->stage == ACCESS_CHANGED) return KVT_OK;
        if (get->stage == ACCESS_ENDED) return access_answer_else(store, get, info);
        if (get->stage == ACCESS_FLIES) status = access_bring(store, get);
        if (get->in_memory && get->record == NULL) status = KVT_E_GONE;
        if (get->stage != ACCESS_STARVES && !access_lets_go(store, get, status)) {
            status = access_complete(store, get, status, info);
            if (status != KVT_BUSY) return status;
        }
        *get = (access_get){.key = get->key,
                            .target = get->target,
                            .deadline_ns = get->deadline_ns,
                            .handle = get->handle,
                            .again = get->again,
                            .waited = get->waited,
                            .quiet = get->quiet,
                            .began_ns = get->began_ns};
    }
}

bool access_answer(kvt_store *store, const kvt_key *key, const access_target *target,
                   uint64_t deadline_ns, kvt_get_info *given, kvt_status *status_out)
{
    access_get get = {.key = key,
                      .handle = entry_handle(&store->secret, key),
                      .deadline_ns = deadline_ns,
                      .target = *target,
                      .waited = true};
    kvt_get_info info = {0};
    *status_out = access_carry_out(store, &get, &info);
    if (get.stage == ACCESS_CHANGED) return false;
    watch_note_get(store, &(watch_get){.key = key,
                                       .info = &info,
                                       .began_ns = get.began_ns,
                                       .status = *status_out,
                                       .failure = get.failure,
                                       .tokens = get.tokens,
                                       .data_bytes = target->bytes});
    if (given != NULL) access_give_info(&info, given);
    return true;
}

bool access_info_is_sound(const kvt_get_info *info)
{
    return info == NULL || struct_size_is_sound(info, STRUCT_SIZE_THROUGH(kvt_get_info, kept));
}

#define ACCESS_TIMING_NS UINT64_C(5000000000) /* a device that takes longer is not waited for */

void access_time_entry(kvt_store *store, const kvt_key *key)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    if (entry != NULL && entry_is_visible(entry)) bytes = entry->kind->source_bytes;
    pthread_mutex_unlock(&store->lock);
    void *data = bytes != 0 ? malloc(bytes) : NULL;
    if (data == NULL) return;
    access_get get = {.key = key,
                      .handle = entry_handle(&store->secret, key),
                      .deadline_ns = base_clock_ns() + ACCESS_TIMING_NS,
                      .target = {.data = data, .bytes = bytes, .takes_dropped = true},
                      .quiet = true};
    kvt_get_info info;
    (void)!access_carry_out(store, &get, &info);
    free(data);
}
