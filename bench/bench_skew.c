/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_skew.c - many readers of few small objects, each on one drive: what second copies and the
 * choice of the shorter queue are worth to a pool.
 *
 * Popularity is Zipf's (exponent 1) over objects whose rank has nothing to do with their drive, and
 * turns to other objects several times, so that each drive has its turn with the most popular one.
 * Straight through the pool: a store lets concurrent reads of one entry share one, which takes a
 * part of the skew away. Who reads what follows from the reader's number.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_drift.h"

#include "bench_rate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SKEW_OBJECT_BYTES ((uint64_t)TIERS_UNIT_BYTES_DEFAULT)
#define SKEW_HEAD_BYTES   ((uint64_t)1 << 20) /* labels stay */

enum { SKEW_OBJECTS = 32, SKEW_STRIDE = 13, SKEW_TURNS = 8, SKEW_READERS = 16 };

typedef struct skew_state {
    tiers_pool *pool;
    tiers_location *firsts[SKEW_OBJECTS];
    tiers_location *replicas[SKEW_OBJECTS];
    double popularity[SKEW_OBJECTS]; /* cumulated */
    bool with_replicas;
    uint32_t turn;
    atomic_bool stop;
    _Atomic uint64_t reads, read_ns, wrong;
} skew_state;

typedef struct skew_reader {
    skew_state *state;
    uint64_t seed;
} skew_reader;

static void skew_fill(uint32_t object, uint64_t *words)
{
    for (uint64_t i = 0; i < SKEW_OBJECT_BYTES / 8; i++)
        words[i] = (object * SKEW_OBJECT_BYTES + i) * UINT64_C(0x9E3779B97F4A7C15);
}

static bool skew_holds(uint32_t object, const uint64_t *words)
{
    for (uint64_t i = 0; i < SKEW_OBJECT_BYTES / 8; i++) {
        if (words[i] != (object * SKEW_OBJECT_BYTES + i) * UINT64_C(0x9E3779B97F4A7C15))
            return false;
    }
    return true;
}

/* One read of the object that so large a part of all reads goes beyond. */
static void skew_read_one(skew_state *state, double drawn, void *buffer)
{
    uint32_t rank = 0;
    while (rank + 1 < SKEW_OBJECTS && state->popularity[rank] < drawn)
        rank++;
    uint32_t object = (rank * SKEW_STRIDE + state->turn) % SKEW_OBJECTS;
    tiers_transfer transfer = {.kind = KVT_IO_READ,
                               .location = state->firsts[object],
                               .replica = state->with_replicas ? state->replicas[object] : NULL,
                               .buffer = buffer,
                               .bytes = SKEW_OBJECT_BYTES};
    uint64_t start = bench_now_ns();
    tiers_transfer_start(state->pool, &transfer);
    kvt_status status = tiers_transfer_wait(state->pool, &transfer);
    atomic_fetch_add(&state->read_ns, bench_now_ns() - start);
    atomic_fetch_add(&state->reads, 1);
    if (status != KVT_OK || !skew_holds(object, buffer)) atomic_fetch_add(&state->wrong, 1);
}

static void *skew_read(void *argument)
{
    skew_reader *reader = argument;
    void *buffer = bench_buffer(SKEW_OBJECT_BYTES);
    uint64_t seed = reader->seed;
    while (buffer != NULL && !atomic_load(&reader->state->stop)) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        skew_read_one(reader->state, (double)(seed >> 11) * 0x1p-53, buffer);
    }
    free(buffer);
    return NULL;
}

/* One turn: bytes per second of all readers, and the mean seconds of a read. */
static bool skew_measure(skew_state *state, double seconds, double *rate, double *mean)
{
    pthread_t threads[SKEW_READERS];
    skew_reader readers[SKEW_READERS];
    struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    uint32_t started = 0;
    atomic_store(&state->stop, false);
    atomic_store(&state->reads, 0);
    atomic_store(&state->read_ns, 0);
    uint64_t start = bench_now_ns();
    for (; started < SKEW_READERS; started++) {
        readers[started] = (skew_reader){.state = state, .seed = started + 1};
        if (pthread_create(&threads[started], NULL, skew_read, &readers[started]) != 0) break;
    }
    nanosleep(&pause, NULL);
    atomic_store(&state->stop, true);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    double reads = (double)atomic_load(&state->reads);
    *rate = reads * (double)SKEW_OBJECT_BYTES / ((double)(bench_now_ns() - start) * 1e-9);
    *mean = reads > 0 ? (double)atomic_load(&state->read_ns) * 1e-9 / reads : 0;
    return started == SKEW_READERS;
}

static bool skew_turns(skew_state *state, bool with_replicas, bool quick, drift_skew_row *row)
{
    double rates[SKEW_TURNS];
    double means[SKEW_TURNS];
    state->with_replicas = with_replicas;
    for (state->turn = 0; state->turn < SKEW_TURNS; state->turn++) {
        if (!skew_measure(state, quick ? 0.1 : 0.5, &rates[state->turn], &means[state->turn]))
            return false;
    }
    row->read = bench_rate_of(rates, SKEW_TURNS);
    row->seconds = bench_rate_of(means, SKEW_TURNS).median;
    return true;
}

static kvt_status skew_open(const drift_site *site, tiers_pool **pool_out)
{
    const bench_options *given = site->options;
    const tiers_pool_options options = {.replica_share = 1};
    tiers_member_options members[DRIFT_DRIVES_MAX] = {{0}};
    char message[256] = "";
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < site->drive_count && status == KVT_OK; i++) {
        status = kvt_device_open(&given->devices[i], &members[i].device, message, sizeof message);
        members[i].read_bytes_per_s = members[i].write_bytes_per_s = site->rates[i];
        members[i].reserved_head_bytes = SKEW_HEAD_BYTES;
        members[i].silence_ns = given->devices[i].silence_ns;
        members[i].present = true;
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, site->drive_count, &options, pool_out, message,
                                 sizeof message);
    if (status == KVT_OK) return KVT_OK;
    for (uint32_t i = 0; i < site->drive_count; i++)
        kvt_device_close(members[i].device);
    if (message[0] != '\0') fprintf(stderr, "kvterrace bench drift: %s\n", message);
    return status;
}

/* Writes every object twice. */
static kvt_status skew_write(skew_state *state, void *buffer)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < SKEW_OBJECTS && status == KVT_OK; i++) {
        status = tiers_pool_reserve(state->pool, SKEW_OBJECT_BYTES, &state->firsts[i]);
        if (status == KVT_OK)
            status = tiers_pool_reserve_replica(state->pool, state->firsts[i], &state->replicas[i]);
        if (status != KVT_OK) break;
        skew_fill(i, buffer);
        const tiers_location *copies[2] = {state->firsts[i], state->replicas[i]};
        for (int copy = 0; copy < 2 && status == KVT_OK; copy++)
            status = tiers_pool_transfer(state->pool, KVT_IO_WRITE, copies[copy], buffer,
                                         SKEW_OBJECT_BYTES);
    }
    return status;
}

int bench_drift_skew(drift_site *site, drift_skew *out)
{
    skew_state state = {.with_replicas = false};
    double sum = 0;
    for (uint32_t i = 0; i < SKEW_OBJECTS; i++)
        sum += 1.0 / (i + 1);
    for (uint32_t i = 0; i < SKEW_OBJECTS; i++)
        state.popularity[i] = (i > 0 ? state.popularity[i - 1] : 0) + 1.0 / (i + 1) / sum;
    *out = (drift_skew){
        .objects = SKEW_OBJECTS, .object_bytes = SKEW_OBJECT_BYTES, .readers = SKEW_READERS};
    void *buffer = bench_buffer(SKEW_OBJECT_BYTES);
    kvt_status status = buffer != NULL ? skew_open(site, &state.pool) : KVT_E_MEMORY;
    if (status == KVT_OK) status = skew_write(&state, buffer);
    bool measured = status == KVT_OK &&
                    skew_turns(&state, false, site->options->quick, &out->without) &&
                    skew_turns(&state, true, site->options->quick, &out->with);
    out->wrong = atomic_load(&state.wrong);
    for (uint32_t i = 0; i < SKEW_OBJECTS; i++) {
        tiers_pool_release(state.pool, state.replicas[i]);
        tiers_pool_release(state.pool, state.firsts[i]);
    }
    (void)tiers_pool_close(state.pool);
    free(buffer);
    if (measured) return 0;
    fprintf(stderr, "kvterrace bench drift: skew: %s\n", kvt_status_text(status));
    return 1;
}
