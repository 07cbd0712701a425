/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_members.c - the members of a pool: states, leaving and coming back, figures. The states are
 * in docs/TIERS.md.
 *
 * Thread rule: all functions from any thread; members are changed under the pool's mutex.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "pool_internal.h"
#include "pool_slots.h"
#include "tiers/devices/device_limits.h"

/* The nap of a worker that finds the mutex taken, or that somebody waits for room. */
enum { POOL_TRIM_NAP_NS = 50000 };

tiers_member_options tiers_member_options_of(const kvt_device_config *config, kvt_device *device,
                                             double read_bytes_per_s, double write_bytes_per_s,
                                             const tiers_wear *wear)
{
    tiers_member_options options = {.device = device,
                                    .read_bytes_per_s = read_bytes_per_s,
                                    .write_bytes_per_s = write_bytes_per_s,
                                    .in_flight_bytes_max = config->in_flight_bytes_max,
                                    .timeout_ns = config->timeout_ns,
                                    .mix_kept = config->mix_kept,
                                    .present = device != NULL,
                                    .align_bytes = tiers_limits_path_start(config->path)};
    assert(read_bytes_per_s > 0 && "placement divides by the weight");
    if (wear != NULL) options.wear = *wear;
    options.wear.budget_bytes_per_day = config->write_bytes_per_day;
    options.wear.shadow = config->write_budget_shadow;
    if (!config->emulated && strcmp(config->backend, "hbm") == 0) options.gpu = config->gpu + 1;
    return options;
}

/* A state is never stored: it follows from the device, the worker and `draining`, so it cannot
 * contradict them. */
/* ---- states ---- */

/* The state in docs/TIERS.md that the fields of a member amount to. The mutex is held. GONE and
 * ABSENT differ by bytes that are still held there. */
static kvt_device_state pool_member_state(const pool_member *member)
{
    if (member->device == NULL || member->worker == NULL)
        return member->used_bytes == 0 ? KVT_DEVICE_ABSENT : KVT_DEVICE_GONE;
    if (!pool_member_serves(member)) return KVT_DEVICE_GONE;
    return member->draining ? KVT_DEVICE_DRAINING : KVT_DEVICE_SERVING;
}

bool tiers_pool_stalls(tiers_pool *pool, const tiers_location *location)
{
    bool stalls = false, others = false;
    uint64_t members = 0;
    if (location->on_late) return false;
    for (uint32_t i = 0; i < location->share_count; i++)
        members |= UINT64_C(1) << location->shares[i].member;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        const bool late = member->worker != NULL && tiers_worker_stalls(member->worker);
        stalls = stalls || (late && (members >> i & 1) != 0);
        others = others || (!late && pool_member_takes(member));
    }
    pthread_mutex_unlock(&pool->mutex);
    return stalls && others;
}

void tiers_pool_retire(tiers_pool *pool, uint32_t member)
{
    assert(member < pool->member_count);
    pthread_mutex_lock(&pool->mutex);
    if (pool->members[member].worker != NULL)
        tiers_worker_retire(pool->members[member].worker, TIERS_RETIRED_ASKED);
    pthread_mutex_unlock(&pool->mutex);
}

kvt_status tiers_pool_drain(tiers_pool *pool, uint32_t member, bool drain)
{
    assert(member < pool->member_count);
    pthread_mutex_lock(&pool->mutex);
    bool serves = pool_member_serves(&pool->members[member]);
    if (serves) pool->members[member].draining = drain;
    pthread_mutex_unlock(&pool->mutex);
    return serves ? KVT_OK : KVT_E_GONE;
}

kvt_status tiers_pool_eject(tiers_pool *pool, uint32_t index, kvt_device **device_out)
{
    assert(index < pool->member_count);
    pool_member *member = &pool->members[index];
    kvt_status status = KVT_OK;
    *device_out = NULL;
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    (void)pool_settle_trim(member);
    bool trimming = member->trims.out.bytes != 0; /* a drive that hangs would hold us */
    bool empty = member->used_bytes == 0;
    if (!pool_member_takes(member)) pool_slots_leave(pool, index);
    if (member->worker == NULL) {
        *device_out = member->device;
        member->device = NULL;
    } else if ((pool_member_serves(member) && !(member->draining && empty)) || member->syncs > 0 ||
               trimming || atomic_load(&member->lent) != 0 || !tiers_worker_idle(member->worker)) {
        status = KVT_BUSY;
    } else if (member->device != NULL) {
        status = tiers_worker_change_device(member->worker, NULL, NULL);
    }
    if (status == KVT_OK && member->worker != NULL && member->device != NULL) {
        *device_out = member->device;
        member->device = NULL;
        atomic_store(&member->memory, NULL);
        atomic_store(&member->address, 0);
        member->draining = false;
    }
    pthread_mutex_unlock(&pool->mutex);
    return status;
}

kvt_status tiers_pool_insert(tiers_pool *pool, uint32_t index, const tiers_member_options *options)
{
    assert(index <= pool->member_count && options->present);
    if (index == TIERS_MEMBERS_MAX || pool_member_fault(options) != NULL) return KVT_E_ARGUMENT;
    pool_member *member = &pool->members[index];
    const uint64_t grain = TIERS_GRAIN_BYTES;
    uint64_t end = options->device->facts.capacity_bytes / grain * grain;
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    if (member->device != NULL) status = KVT_E_STATE;
    if (member->used_bytes != 0 && end != member->facts.capacity_bytes / grain * grain)
        status = KVT_E_MISMATCH;
    if (status == KVT_OK) status = pool_start_member(pool, member, options);
    if (status == KVT_OK && index == pool->member_count) pool->member_count = index + 1;
    assert(pool->member_count <= TIERS_MEMBERS_MAX && "masks of members have 64 bits");
    pthread_mutex_unlock(&pool->mutex);
    return status;
}

/* Wear is kept by the store across runs; the pool only counts on from what it was given. */
/* ---- wear ---- */

/* A range on its way to the drive is neither free nor held by an object. It counts as used, so that
 * nothing is reserved in it. */
/* ---- trimming ---- */

/* A note that finds no room is lost, and the drive learns of the range when it is written again. */
void pool_release_range(pool_member *member, tiers_range range, bool trim)
{
    assert(range.bytes <= member->used_bytes && "what is given back was held");
    tiers_space_release(member->space, range);
    member->used_bytes -= range.bytes;
    if (!trim || (member->facts.flags & KVT_DEVICE_TRIM) == 0 || !pool_member_serves(member))
        return;
    if (tiers_trim_note(&member->trims, range)) tiers_worker_ask_spare(member->worker);
}

/* A thread that changes a member's device holds the mutex and waits for the worker. So a worker
 * never waits for the mutex: it naps and looks at its mail. False after a nap. */
static bool pool_try_lock(tiers_pool *pool)
{
    if (pthread_mutex_trylock(&pool->mutex) == 0) return true;
    base_sleep(POOL_TRIM_NAP_NS);
    return false;
}

/* The member that a worker serves, or NULL while the pool is still being opened. The table is small
 * and members never move. */
static pool_member *pool_member_of(tiers_pool *pool, const tiers_worker *worker)
{
    for (uint32_t i = 0; i < pool->member_count; i++) {
        if (pool->members[i].worker == worker) return &pool->members[i];
    }
    return NULL;
}

/* A trim that is still under way leaves the range out. */
bool pool_settle_trim(pool_member *member)
{
    if (member->trims.out.bytes == 0 || !atomic_load(&member->trimmed)) return false;
    assert(member->trims.out.bytes <= member->used_bytes && "a range out counts as used");
    member->used_bytes -= tiers_trim_end(&member->trims, member->space);
    return true;
}

/* A member that drains, or that has not the room that somebody waits for, is left alone. True asks
 * the worker to call again. The drive is asked without the mutex, because a trim may take long. */
bool pool_trim_step(void *context, tiers_worker *worker, kvt_device *device)
{
    tiers_pool *pool = context;
    if (!pool_try_lock(pool)) return true;
    pool_member *member = pool_member_of(pool, worker);
    tiers_range out = {0, 0};
    bool again = false;
    if (member != NULL) {
        (void)pool_settle_trim(member);
        bool may = device != NULL && pool_member_takes(member);
        again = may && pool->trim_waiters != 0;
        if (may && !again && tiers_trim_begin(&member->trims, member->space)) {
            out = member->trims.out;
            member->used_bytes += out.bytes;
            atomic_store(&member->trimmed, false);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    if (again) base_sleep(POOL_TRIM_NAP_NS);
    if (out.bytes == 0) return again;
    /* A drive that refuses has lost nothing. */
    kvt_status ignored = kvt_device_trim(device, out.offset, out.bytes);
    (void)ignored;
    atomic_store(&member->trimmed, true);
    if (!pool_try_lock(pool)) return true; /* the next step gives it back, or whoever wants it */
    (void)pool_settle_trim(member);
    pthread_mutex_unlock(&pool->mutex);
    return true;
}

/* Capacity and use count the members that take new units, so that a drained tier shrinks for its
 * policy. */
/* ---- figures ---- */

void tiers_pool_facts_get(tiers_pool *pool, tiers_pool_facts *out)
{
    uint32_t takers = 0;
    double slowest = 0, sum = 0;
    *out = (tiers_pool_facts){.member_count = pool->member_count, .durable = true};
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    pool_sum(pool, &out->capacity_bytes, &out->used_bytes);
    out->padding_bytes = pool_slots_padding(pool);
    for (uint32_t i = 0; i < out->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (member->worker == NULL) continue;
        out->bytes_read += tiers_worker_bytes(member->worker, KVT_IO_READ);
        out->bytes_written += tiers_worker_bytes(member->worker, KVT_IO_WRITE);
        if (pool_member_takes(member)) {
            const double weight = pool_member_weight(member);
            if (++takers == 1 || weight < slowest) slowest = weight;
            sum += weight;
        }
        out->emulated = out->emulated || (member->facts.flags & KVT_DEVICE_EMULATED) != 0;
        out->durable = out->durable && (member->facts.flags & KVT_DEVICE_DURABLE) != 0;
    }
    /* Proportional shares add the members up; equal ones wait for the slowest; an object on one
     * member is read at the mean of them all, by the bytes that each has. */
    out->read_bytes_per_s = pool_is_weighted(pool) ? sum : takers * slowest;
    if (pool->striping == TIERS_STRIPE_ENTRY && takers != 0) out->read_bytes_per_s = sum / takers;
    pthread_mutex_unlock(&pool->mutex);
}

uint64_t tiers_pool_withheld(tiers_pool *pool)
{
    uint64_t capacity, used, bytes = 0, left = 0;
    if (pool->member_count == 1 && atomic_load(&pool->left_objects) == 0) return 0;
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    pool_sum(pool, &capacity, &used);
    const uint64_t late = pool_lagging(pool);
    pthread_mutex_lock(&pool->done_mutex);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (!pool_member_takes(member)) continue;
        bytes += (late >> i & 1) != 0 ? member->used_bytes : member->capacity_bytes;
        left += member->left_bytes;
    }
    pthread_mutex_unlock(&pool->done_mutex);
    pthread_mutex_unlock(&pool->mutex);
    assert(left <= used);
    return left + (bytes < capacity ? capacity - bytes : 0);
}

kvt_status tiers_pool_member(tiers_pool *pool, uint32_t index, tiers_member_stats *out)
{
    if (index >= pool->member_count) return KVT_END;
    pool_member *member = &pool->members[index];
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    pool_count_wear(member);
    *out = (tiers_member_stats){.state = pool_member_state(member),
                                .facts = member->facts,
                                .used_bytes = member->used_bytes,
                                .wear = member->wear};
    memcpy(out->name, member->name, sizeof out->name);
    if (member->worker != NULL) {
        tiers_space_facts space;
        tiers_space_facts_get(member->space, &space);
        out->free_bytes = space.free_bytes + member->slot_bytes;
        out->free_bytes_largest = space.largest_bytes;
        out->free_ranges = space.fragments;
        tiers_worker_stats_get(member->worker, out);
    }
    pthread_mutex_unlock(&pool->mutex);
    return KVT_OK;
}
