/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_planted.c - schedules find bugs of order: three are planted, one at a time. Each
 * must be found within a number of seeds, and the seed that found it passes without it.
 *
 * early publish   a record is published before its write is complete: transfer_write, by which the
 *                     executor writes, does not wait for the device
 *     early release   a place that was replaced gives its extents back while a get still holds it:
 *                     place_drain does not wait for readers
 *     lost wake-up    a broadcast wakes one of the threads that wait
 *
 * The first two show as loads that fail although no disk did, the third as a wait without end. The
 * linker puts the functions below in the place of the library's; they pass on what they are asked
 * until a child process plants a bug.
 */
#include "base/thread.h"
#include "schedule.h"
#include "schedule_store.h"
#include "store/core/store.h"
#include "store/core/transfer.h"
#include "tiers/pool/location.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANTED_SEEDS = 1000, PLANTED_LATE_MAX = 4096 };

extern __typeof__(transfer_write) __real_transfer_write, __wrap_transfer_write;
extern __typeof__(tiers_pool_close) __real_tiers_pool_close, __wrap_tiers_pool_close;
extern __typeof__(place_drain) __real_place_drain, __wrap_place_drain;

typedef struct late_transfer {
    tiers_pool *pool;
    tiers_transfer transfer;
    pthread_t thread;
} late_transfer;

typedef enum planted_bug {
    PLANTED_NONE,
    PLANTED_EARLY_PUBLISH,
    PLANTED_EARLY_RELEASE,
    PLANTED_LOST_WAKE_UP,
    PLANTED_COUNT
} planted_bug;

static const char *const planted_names[PLANTED_COUNT] = {"none", "early publish", "early release",
                                                         "lost wake-up"};

static planted_bug planted; /* fixed before a child process begins */
static late_transfer *late[PLANTED_LATE_MAX];
static uint32_t late_count;

static void *late_wait(void *argument)
{
    late_transfer *self = argument;
    (void)!tiers_transfer_wait_until(self->pool, &self->transfer, UINT64_MAX);
    return NULL;
}

kvt_status __wrap_transfer_write(store_staging *staging, tiers_pool *pool,
                                 const tiers_transfer *wanted, const transfer_watch *watch,
                                 staging_buffer *buffer)
{
    const bool early = planted == PLANTED_EARLY_PUBLISH;
    if (!early || late_count == PLANTED_LATE_MAX)
        return __real_transfer_write(staging, pool, wanted, watch, buffer);
    late_transfer *self = calloc(1, sizeof *self);
    void *copy = aligned_alloc(4096, (wanted->bytes + 4095) / 4096 * 4096);
    if (self == NULL || copy == NULL) abort();
    memcpy(copy, wanted->buffer, wanted->bytes);
    self->pool = pool;
    self->transfer = (tiers_transfer){
        .kind = wanted->kind, .location = wanted->location, .buffer = copy, .bytes = wanted->bytes};
    tiers_transfer_start_until(pool, &self->transfer, UINT64_MAX);
    if (base_thread_start(&self->thread, late_wait, self) != 0) abort();
    late[late_count++] = self;
    return KVT_OK;
}

bool __wrap_tiers_pool_close(tiers_pool *pool)
{
    for (uint32_t i = 0; i < late_count; i++) {
        if (late[i] == NULL || late[i]->pool != pool) continue;
        (void)pthread_join(late[i]->thread, NULL);
        free(late[i]->transfer.buffer);
        free(late[i]);
        late[i] = NULL;
    }
    return __real_tiers_pool_close(pool);
}

/* The readers keep the place, which nobody frees then. */
void __wrap_place_drain(kvt_store *store, store_place *place)
{
    if (planted != PLANTED_EARLY_RELEASE || place->readers == 0) {
        __real_place_drain(store, place);
        return;
    }
    store_place *given_back = malloc(sizeof *given_back);
    if (given_back == NULL) abort();
    *given_back = *place;
    given_back->readers = 0;
    /* A copy that readers of a place go on with when its location is given back: they find the
     * same extents, which belong to others by then. */
    const tiers_location *location = place->location;
    tiers_location *copy = tiers_location_make(location->bytes, location->unit_bytes,
                                               location->shares, location->share_count);
    if (copy == NULL || tiers_location_room(copy, location->extent_count) != KVT_OK) abort();
    memcpy(copy->extents, location->extents, location->extent_count * sizeof *copy->extents);
    copy->extent_count = location->extent_count;
    copy->turn = location->turn;
    place->location = copy;
    place->ticket = NULL;
    __real_place_drain(store, given_back);
}

static bool planted_passes(planted_bug bug, uint64_t seed)
{
    planted = bug;
    const schedule_try try = {.seed = seed,
                              .quiet = bug != PLANTED_NONE,
                              .signals_narrow = bug == PLANTED_LOST_WAKE_UP,
                              .faultless = true};
    return schedule_store_try(&try).passed;
}

int main(void)
{
    int wrong = 0;
    for (int bug = PLANTED_NONE + 1; bug < PLANTED_COUNT; bug++) {
        uint64_t seed = 1;
        while (seed <= PLANTED_SEEDS && planted_passes((planted_bug)bug, seed))
            seed++;
        bool found = seed <= PLANTED_SEEDS;
        bool sound = found && planted_passes(PLANTED_NONE, seed);
        printf("%s: %s, seed %llu of %d\n", planted_names[bug],
               sound   ? "found"
               : found ? "found by a seed that fails without it"
                       : "not found",
               (unsigned long long)seed, PLANTED_SEEDS);
        if (!found || !sound) wrong++;
    }
    return wrong == 0 ? 0 : 1;
}
