/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_vanish.c - a drive's server is killed while two threads read, and comes back: every read is
 * the right bytes or a miss, in time, and what other drives hold stays readable.
 *
 * While the drive is gone some objects are replaced by newer versions: its older bytes must not be
 * served when it is back.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "bench_drift.h"

#include "bench_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define VANISH_LARGE_BYTES ((uint64_t)4 << 20)
#define VANISH_SMALL_BYTES ((uint64_t)128 << 10) /* one unit: on one drive */

enum { VANISH_LARGE = 12, VANISH_SMALL = 64, VANISH_ALL = VANISH_LARGE + VANISH_SMALL };
enum { VANISH_READERS = 2, VANISH_REPLACED = 4, VANISH_VICTIM = 1 };

typedef struct vanish_state {
    drift_site *site;
    drift_object objects[VANISH_ALL];
    atomic_bool stop;
    _Atomic uint64_t reads, hits, misses, wrong, late;
    _Atomic uint64_t slowest_ns;
    double deadline_seconds;
} vanish_state;

static void vanish_note(vanish_state *state, const drift_reading *reading)
{
    uint64_t ns = (uint64_t)(reading->seconds * 1e9);
    uint64_t slowest = atomic_load(&state->slowest_ns);
    atomic_fetch_add(&state->reads, 1);
    if (reading->status == KVT_OK) {
        atomic_fetch_add(&state->hits, 1);
    } else if (reading->status == KVT_MISS) {
        atomic_fetch_add(&state->misses, 1);
    } else {
        atomic_fetch_add(&state->wrong, 1);
    }
    if (reading->seconds > state->deadline_seconds) atomic_fetch_add(&state->late, 1);
    while (ns > slowest && !atomic_compare_exchange_weak(&state->slowest_ns, &slowest, ns))
        continue;
}

static void *vanish_read(void *argument)
{
    vanish_state *state = argument;
    void *buffer = bench_buffer(VANISH_LARGE_BYTES);
    uint64_t seed = (uint64_t)(uintptr_t)buffer | 1;
    while (buffer != NULL && !atomic_load(&state->stop)) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        const drift_object *object = &state->objects[(seed >> 33) % VANISH_ALL];
        drift_reading reading = drift_get(state->site, object, buffer);
        vanish_note(state, &reading);
        if (reading.status == KVT_MISS) { /* an engine would compute now */
            base_sleep(200000);
        }
    }
    free(buffer);
    return NULL;
}

static uint32_t vanish_count_readable(vanish_state *state, void *buffer)
{
    uint32_t readable = 0;
    for (uint32_t i = 0; i < VANISH_ALL; i++) {
        drift_reading reading = drift_get(state->site, &state->objects[i], buffer);
        vanish_note(state, &reading);
        readable += reading.status == KVT_OK;
    }
    return readable;
}

static void vanish_pause(double seconds)
{
    base_sleep((uint64_t)(seconds * 1e9));
}

/* The drive goes with two threads reading, and stays away. */
static bool vanish_go(vanish_state *state, const char *path)
{
    pthread_t readers[VANISH_READERS];
    uint32_t started = 0;
    while (started < VANISH_READERS &&
           pthread_create(&readers[started], NULL, vanish_read, state) == 0)
        started++;
    vanish_pause(0.5);
    bool gone = bench_drive_vanish(path);
    vanish_pause(0.5);
    atomic_store(&state->stop, true);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(readers[i], NULL);
    return gone && started == VANISH_READERS;
}

static kvt_status vanish_replace(vanish_state *state, void *buffer)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < VANISH_REPLACED && status == KVT_OK; i++) {
        drift_delete(state->site, &state->objects[i]);
        state->objects[i].version++;
        status = drift_put(state->site, &state->objects[i], buffer);
    }
    return status;
}

static kvt_status vanish_come_back(vanish_state *state, const char *path, drift_vanishing *out)
{
    char message[256] = "";
    drift_site *site = state->site;
    if (!bench_drive_return(path)) return KVT_E_GONE;
    uint64_t start = base_clock_ns();
    kvt_status status = kvt_store_device_add(
        site->store, KVT_TIER_SSD, &site->options->devices[VANISH_VICTIM], message, sizeof message);
    out->add_seconds = (double)(base_clock_ns() - start) * 1e-9;
    if (status != KVT_OK) fprintf(stderr, "kvterrace bench drift: %s\n", message);
    return status;
}

int bench_drift_vanishing(drift_site *site, drift_vanishing *out)
{
    vanish_state state = {.site = site, .deadline_seconds = 1};
    const char *path = site->options->devices[VANISH_VICTIM].path;
    kvt_status status = KVT_OK;
    void *buffer = bench_buffer(VANISH_LARGE_BYTES);
    if (buffer == NULL) return 1;
    for (uint32_t i = 0; i < VANISH_ALL && status == KVT_OK; i++) {
        uint64_t bytes = i < VANISH_LARGE ? VANISH_LARGE_BYTES : VANISH_SMALL_BYTES;
        state.objects[i] = (drift_object){.number = 5000 + i, .version = 1, .bytes = bytes};
        status = drift_put(site, &state.objects[i], buffer);
    }
    if (status == KVT_OK) status = kvt_flush(site->store);
    if (status == KVT_OK && !vanish_go(&state, path)) status = KVT_E_GONE;
    if (status == KVT_OK) {
        out->readable_gone = vanish_count_readable(&state, buffer);
        out->quarantined = drift_stats(site).quarantined;
        uint32_t untouched = VANISH_ALL - (uint32_t)out->quarantined;
        out->unreadable_else = untouched - out->readable_gone;
        status = vanish_replace(&state, buffer);
    }
    if (status == KVT_OK) status = vanish_come_back(&state, path, out);
    if (status == KVT_OK) {
        out->readable_back = vanish_count_readable(&state, buffer);
        out->readmitted = drift_stats(site).readmitted;
    }
    *out = (drift_vanishing){.objects = VANISH_ALL,
                             .small_objects = VANISH_SMALL,
                             .reads = state.reads,
                             .hits = state.hits,
                             .misses = state.misses,
                             .wrong = state.wrong,
                             .late = state.late,
                             .deadline_seconds = state.deadline_seconds,
                             .slowest_seconds = (double)state.slowest_ns * 1e-9,
                             .quarantined = out->quarantined,
                             .readmitted = out->readmitted,
                             .replaced = VANISH_REPLACED,
                             .readable_gone = out->readable_gone,
                             .unreadable_else = out->unreadable_else,
                             .readable_back = out->readable_back,
                             .add_seconds = out->add_seconds};
    free(buffer);
    if (status == KVT_OK) return 0;
    fprintf(stderr, "kvterrace bench drift: a drive vanishes: %s\n", kvt_status_text(status));
    return 1;
}
