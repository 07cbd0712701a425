/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_model.c - the versions of every key, and what a later open must find (expected.h).
 *
 * Thread rule: the worker's calls take one lock of the process; the parent reads and judges while
 * the worker is dead or waits.
 */
#include "codecs/view_rows.h"
#include "expected.h"

#include "queued.h"

#include <kvterrace/load.h>

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static expected_model *model_at;
static expected_totals *model_totals;
static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- kill points ---- */

uint32_t expected_point_count(void)
{
    size_t count = (size_t)(__stop_kvt_kill_points - __start_kvt_kill_points);
    return count < EXPECTED_POINTS_MAX ? (uint32_t)count : EXPECTED_POINTS_MAX;
}

void expected_attach(expected_model *model, expected_totals *totals)
{
    model_at = model;
    model_totals = totals;
}

void kvt_kill_point(const char *const *point)
{
    size_t index = (size_t)(point - __start_kvt_kill_points);
    if (model_at == NULL || index >= EXPECTED_POINTS_MAX) return;
    atomic_fetch_add(&model_totals->reached[index], 1);
    if (atomic_load(&model_at->point) != index + 1) return;
    if (atomic_fetch_sub(&model_at->passes, 1) != 1) return;
    atomic_fetch_add(&model_totals->killed[index], 1);
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

void expected_report(atomic_uint *counter, const char *format, ...)
{
    char line[400];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    if (model_at != NULL) atomic_fetch_add(&model_at->reports, 1);
    if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
    line[length] = '\n';
    if (atomic_fetch_add(counter, 1) < 40) (void)!write(2, line, (size_t)length + 1);
}

static uint32_t model_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void expected_remember(expected_key *key, char what, int value)
{
    uint32_t at = atomic_fetch_add(&key->event_count, 1) % EXPECTED_EVENTS;
    key->events[at] = (expected_event){.us = model_clock_us(), .what = what, .value = value};
}

void expected_tell(uint32_t number)
{
    expected_key *key = &model_at->keys[number];
    uint32_t end = atomic_load(&key->event_count), now = model_clock_us();
    char line[1000];
    size_t used = (size_t)snprintf(line, sizeof line, "  key %u (us ago):", number);
    for (uint32_t i = end < EXPECTED_EVENTS ? 0 : end - EXPECTED_EVENTS; i < end; i++) {
        const expected_event *event = &key->events[i % EXPECTED_EVENTS];
        if (used + 40 > sizeof line) break;
        used += (size_t)snprintf(line + used, 40, " %u%c%d", now - event->us, event->what,
                                 event->value);
    }
    line[used++] = '\n';
    (void)!write(2, line, used);
}

/* ---- the store's notes ---- */

/* A flushed version went without a word from the store. */
static void model_lost(expected_key *key, uint32_t number, const char *how)
{
    bool fault = atomic_load(&model_at->faulty);
    expected_report(fault ? &model_totals->lost_by_fault : &model_totals->lost_flushed,
                    "LOST%s: key %u version %u, which was flushed: %s", fault ? " by a fault" : "",
                    number, atomic_load(&key->required), how);
    expected_tell(number);
    atomic_store(&key->required, 0);
}

static void model_note(expected_key *key, uint32_t number, kill_note note, kvt_tier tier)
{
    if (note == KILL_NOTE_EVICTS && atomic_load(&key->required) != 0) {
        atomic_store(&key->held, atomic_load(&key->required));
        atomic_store(&key->required, 0);
    }
    if (note == KILL_NOTE_GIVES_WAY) {
        atomic_store(&key->required, 0);
        atomic_store(&key->held, 0);
        atomic_store(&key->tier, KVT_TIER_NONE);
    }
    if (note == KILL_NOTE_PLACED) {
        if (atomic_load(&key->required) != 0)
            model_lost(key, number, "a put of its key found nothing");
        atomic_store(&key->stored, atomic_load(&key->putting));
    }
    if (note == KILL_NOTE_PLACED || note == KILL_NOTE_MOVED || note == KILL_NOTE_COPIED) {
        atomic_store(&key->held, 0);
        atomic_store(&key->tier, (unsigned)tier);
    }
    /* An entry that is being evicted gives its copy up first; it leaves all the same. */
    if (note != KILL_NOTE_GIVES_WAY) atomic_store(&key->leaving, note == KILL_NOTE_EVICTS);
    if (note == KILL_NOTE_ABORTED && atomic_load(&key->held) != 0) {
        if (!atomic_load(&key->deleting)) atomic_store(&key->required, atomic_load(&key->held));
        atomic_store(&key->held, 0);
    }
}

void kvt_kill_note(kill_note note, const kvt_key *name, kvt_tier tier)
{
    uint32_t number;
    memcpy(&number, name->bytes, sizeof number);
    if (model_at == NULL || number >= EXPECTED_KEYS) return;
    expected_key *key = &model_at->keys[number];
    pthread_mutex_lock(&model_lock);
    atomic_fetch_add(&key->change, 1);
    expected_remember(key, (char)('0' + (int)note), (int)tier);
    if (note == KILL_NOTE_EVICTS || note == KILL_NOTE_GIVES_WAY || note == KILL_NOTE_DROPPED)
        atomic_fetch_add(&key->weakened, 1);
    if (note == KILL_NOTE_PLACED || note == KILL_NOTE_DROPPED)
        atomic_store(&key->dropped, note == KILL_NOTE_DROPPED);
    if (note != KILL_NOTE_DROPPED) model_note(key, number, note, tier);
    pthread_mutex_unlock(&model_lock);
}

/* ---- calls of the worker ---- */

void expected_begin_life(expected_model *model)
{
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_key *key = &model->keys[i];
        expected_remember(key, 'L', 0);
        atomic_store(&key->putting, 0);
        atomic_store(&key->stored, 0);
        atomic_store(&key->floor, atomic_load(&key->dead));
        atomic_store(&key->held, 0);
        atomic_store(&key->tier, KVT_TIER_SSD);
        atomic_store(&key->leaving, false);
        atomic_store(&key->dropped, false);
        atomic_store(&key->deleting, false);
        atomic_store(&key->found, -1);
    }
    atomic_store(&model->devices_out, 0);
    atomic_store(&model->stop, false);
}

/* Whether a version may exist at all, by what was put. */
static bool model_may_exist(expected_key *key, uint32_t version)
{
    uint32_t attempted = atomic_load(&key->attempted);
    if (version == 0 || version > attempted) return false;
    return attempted - version >= 63 || (atomic_load(&key->valid) >> (version % 64) & 1) != 0;
}

static _Thread_local kvt_queue *model_queue;

/* A get by a layered load of one entry. */
static kvt_status model_load(const kvt_key *name, const kvt_layout *layout, void *data)
{
    const kvt_view view = codecs_packed_view(layout, data);
    const kvt_view *const views[] = {&view};
    kvt_load *load = NULL;
    kvt_status one = KVT_MISS;
    kvt_status status = kvt_load_begin(model_queue, name, views, 1, NULL, &load);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 1; layer <= layout->layers && status == KVT_OK; layer++) {
        status = kvt_load_wait(load, layer, KVT_NO_DEADLINE);
        kvt_load_release(load, layer);
    }
    status = kvt_load_end(load, &one, NULL);
    return status == KVT_OK ? one : status;
}

/* A get by the thread's doors, in turn. */
static kvt_status model_get(kvt_store *store, const kvt_key *name, const kvt_layout *layout,
                            void *data, uint64_t bytes)
{
    static _Thread_local uint32_t turn;
    if (model_queue == NULL) {
        kvt_get_info info = {.struct_size = sizeof info};
        const kvt_status status =
            kvt_store_get(store, name, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, &info);
        if (status == KVT_OK && info.variant.codec == KVT_CODEC_TRANSFORM)
            atomic_fetch_add(&model_totals->transform_hits, 1);
        return status;
    }
    return turn++ % 2 == 0 ? model_load(name, layout, data)
                           : queued_get(model_queue, name, layout, data);
}

void expected_use_queue(kvt_queue *queue)
{
    model_queue = queue;
}

/* Whether a miss that began at `change` says that the entry is gone. While a plan is to evict an
 * entry no call sees it, and when the plan is aborted it is back where it was (docs/STORE.md, Entry
 * states). Lock held. */
static bool model_is_sure(expected_key *key, uint32_t change)
{
    const bool on_its_way = atomic_load(&key->leaving) && !atomic_load(&key->dropped);
    return !on_its_way && atomic_load(&key->change) == change;
}

kvt_status expected_get(kvt_store *store, uint32_t number)
{
    static _Thread_local char data[EXPECTED_BYTES_MAX], right[EXPECTED_BYTES_MAX];
    expected_key *key = &model_at->keys[number];
    kvt_key name = expected_key_of(number);
    uint64_t bytes = expected_bytes_of(number);
    uint32_t floor = atomic_load(&key->floor), change = atomic_load(&key->change);
    uint32_t required = atomic_load(&key->required);
    uint32_t retirements = atomic_load(&model_at->retirements);
    uint32_t out = atomic_load(&model_at->devices_out);
    memset(data, 0xee, 64);
    const kvt_layout layout = expected_layout_of(number);
    kvt_status status = model_get(store, &name, &layout, data, bytes);
    bool looked = atomic_load(&key->found) != -1;
    atomic_fetch_add(&model_totals->gets, 1);
    if (status == KVT_OK) {
        uint32_t version = expected_version_of(data);
        expected_fill(number, version, right);
        if (!expected_same(number, data, right)) {
            expected_report(&model_totals->wrong_bytes, "WRONG: key %u: bytes of no version",
                            number);
        } else if (version < floor || version > atomic_load(&key->attempted)) {
            expected_report(&model_totals->wrong_bytes,
                            "WRONG: key %u: version %u, but %u to %u were possible", number,
                            version, floor, atomic_load(&key->attempted));
            expected_tell(number);
        }
        if (!looked) {
            expected_remember(key, 'G', status);
            atomic_store(&key->stored, version);
            if (version > floor) atomic_store(&key->floor, version);
            atomic_store(&key->found, (int)version);
        }
        return status;
    }
    if (status != KVT_MISS) {
        expected_report(&model_totals->odd, "ODD: get of key %u: %s", number,
                        kvt_status_name(status));
        return status;
    }
    pthread_mutex_lock(&model_lock);
    if (!looked && model_is_sure(key, change)) {
        expected_remember(key, 'G', status);
        atomic_store(&key->found, 0);
    }
    bool still = required != 0 && atomic_load(&key->required) == required &&
                 atomic_load(&key->change) == change && !atomic_load(&key->deleting);
    /* A device may have gone and come back within this call. */
    bool served = out == 0 && atomic_load(&model_at->retirements) == retirements;
    if (looked && still && served && !atomic_load(&model_at->faulty))
        model_lost(key, number, "a get missed it");
    pthread_mutex_unlock(&model_lock);
    return status;
}

void expected_look(kvt_store *store, uint32_t number)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (expected_get(store, number) == KVT_MISS &&
           atomic_load(&model_at->keys[number].found) == -1)
        nanosleep(&moment, NULL);
}

void expected_put(kvt_store *store, uint32_t number)
{
    static _Thread_local char data[EXPECTED_BYTES_MAX];
    expected_key *key = &model_at->keys[number];
    kvt_key parent = expected_key_of(number - 1);
    kvt_layout layout = expected_layout_of(number);
    bool root = number % 4 == 0;
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = expected_key_of(number),
                       .parent = root ? NULL : &parent,
                       .layout = layout,
                       .first_position = number % 4 * 32,
                       .recompute_seconds = 1};
    pthread_mutex_lock(&model_lock);
    uint32_t version = atomic_load(&key->attempted) + 1;
    atomic_store(&key->putting, version);
    atomic_fetch_or(&key->valid, UINT64_C(1) << version % 64);
    atomic_store(&key->attempted, version);
    pthread_mutex_unlock(&model_lock);
    expected_remember(key, 'P', (int)version);
    expected_fill(number, version, data);
    kvt_status status =
        model_queue != NULL
            ? queued_put(model_queue, &entry, data)
            : kvt_store_put(store, &entry, KVT_PACKED(data, expected_bytes_of(number)));
    atomic_fetch_add(&model_totals->puts, 1);
    expected_remember(key, 'p', status);
    pthread_mutex_lock(&model_lock);
    if (status == KVT_OK) {
        atomic_store(&key->floor, version);
    } else {
        atomic_fetch_and(&key->valid, ~(UINT64_C(1) << version % 64));
    }
    atomic_store(&key->putting, 0);
    pthread_mutex_unlock(&model_lock);
    if (status == KVT_E_ARGUMENT || status == KVT_E_MEMORY)
        expected_report(&model_totals->odd, "ODD: put of key %u: %s", number,
                        kvt_status_name(status));
}

void expected_delete(kvt_store *store, uint32_t number)
{
    expected_key *key = &model_at->keys[number];
    kvt_key name = expected_key_of(number);
    pthread_mutex_lock(&model_lock);
    atomic_store(&key->required, 0);
    atomic_store(&key->held, 0);
    atomic_store(&key->deleting, true);
    atomic_fetch_add(&key->change, 1);
    atomic_fetch_add(&key->weakened, 1);
    pthread_mutex_unlock(&model_lock);
    expected_remember(key, 'D', 0);
    kvt_status status =
        model_queue != NULL ? queued_delete(model_queue, &name) : kvt_store_delete(store, &name);
    expected_remember(key, 'd', status);
    pthread_mutex_lock(&model_lock);
    atomic_fetch_add(&key->change, 1);
    if (status == KVT_OK || status == KVT_MISS) {
        atomic_store(&key->floor, atomic_load(&key->attempted) + 1);
        atomic_store(&key->stored, 0);
    }
    atomic_store(&key->deleting, false);
    pthread_mutex_unlock(&model_lock);
    if (status != KVT_OK && status != KVT_MISS)
        expected_report(&model_totals->odd, "ODD: delete of key %u: %s", number,
                        kvt_status_name(status));
}

static void model_require(expected_key *key, char why)
{
    if (atomic_load(&key->required) != atomic_load(&key->stored))
        expected_remember(key, why, (int)atomic_load(&key->stored));
    atomic_store(&key->required, atomic_load(&key->stored));
}

/* On SSD, at rest. Lock held. */
static bool model_is_settled(expected_key *key)
{
    return atomic_load(&key->stored) != 0 && atomic_load(&key->tier) == KVT_TIER_SSD &&
           !atomic_load(&key->leaving) && !atomic_load(&key->deleting);
}

void expected_flush(kvt_store *store)
{
    uint32_t changes[EXPECTED_KEYS], floors[EXPECTED_KEYS];
    pthread_mutex_lock(&model_lock);
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        changes[i] = atomic_load(&model_at->keys[i].change);
        floors[i] = atomic_load(&model_at->keys[i].floor);
    }
    pthread_mutex_unlock(&model_lock);
    kvt_status status = kvt_store_flush(store);
    atomic_fetch_add(&model_totals->flushes, 1);
    if (status != KVT_OK) return;
    pthread_mutex_lock(&model_lock);
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_key *key = &model_at->keys[i];
        if (atomic_load(&key->change) == changes[i] && model_is_settled(key))
            model_require(key, 'F');
        if (atomic_load(&key->dead) < floors[i]) atomic_store(&key->dead, floors[i]);
    }
    pthread_mutex_unlock(&model_lock);
}

void expected_persist(kvt_store *store)
{
    uint32_t weakened[EXPECTED_KEYS], stored[EXPECTED_KEYS];
    kvt_persist_info info = {.struct_size = sizeof info};
    pthread_mutex_lock(&model_lock);
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_key *key = &model_at->keys[i];
        bool sure = atomic_load(&key->putting) == 0 && !atomic_load(&key->leaving) &&
                    !atomic_load(&key->deleting) && !atomic_load(&key->dropped);
        weakened[i] = atomic_load(&key->weakened);
        stored[i] = sure ? atomic_load(&key->stored) : 0;
    }
    uint32_t out = atomic_load(&model_at->devices_out);
    pthread_mutex_unlock(&model_lock);
    kvt_status status = kvt_store_persist(store, KVT_NO_DEADLINE, &info);
    if (status != KVT_OK || info.left != 0 || info.without_room != 0) return;
    if (atomic_load(&model_at->faulty)) return; /* what lies on a device that failed is set aside */
    atomic_fetch_add(&model_totals->persists, 1);
    pthread_mutex_lock(&model_lock);
    out += atomic_load(&model_at->devices_out);
    for (uint32_t i = 0; i < EXPECTED_KEYS && out == 0; i++) {
        expected_key *key = &model_at->keys[i];
        if (stored[i] == 0 || atomic_load(&key->stored) != stored[i]) continue;
        if (atomic_load(&key->weakened) != weakened[i]) continue;
        if (atomic_load(&key->required) != stored[i])
            atomic_fetch_add(&model_totals->persisted_keys, 1);
        model_require(key, 'W');
    }
    pthread_mutex_unlock(&model_lock);
    KILL_POINT("persist: promised");
}

void expected_note_close(void)
{
    if (atomic_load(&model_at->faulty)) return;
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_key *key = &model_at->keys[i];
        if (model_is_settled(key)) atomic_store(&key->required, atomic_load(&key->stored));
        if (atomic_load(&key->dead) < atomic_load(&key->floor))
            atomic_store(&key->dead, atomic_load(&key->floor));
    }
}

/* ---- the parent ---- */

void expected_judge(expected_model *model, expected_totals *totals, bool after_faults)
{
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_key *key = &model->keys[i];
        int found = atomic_load(&key->found);
        uint32_t required = atomic_load(&key->required);
        if (found == -1) continue;
        atomic_fetch_add(&totals->checks, 1);
        if (found > 0 && !model_may_exist(key, (uint32_t)found)) {
            expected_report(&totals->wrong_bytes,
                            "WRONG: key %u: version %d came back, which was never stored", i,
                            found);
        } else if (found > 0 && (uint32_t)found < atomic_load(&key->dead)) {
            expected_report(&totals->came_back,
                            "CAME BACK: key %u: version %d, but all below %u were gone by a flush",
                            i, found, atomic_load(&key->dead));
            expected_tell(i);
        }
        if (required == 0 || (uint32_t)found == required) continue;
        expected_report(after_faults ? &totals->lost_by_fault : &totals->lost_flushed,
                        "LOST%s: key %u version %u, which was flushed; found %d",
                        after_faults ? " by a fault" : "", i, required, found);
        expected_tell(i);
        atomic_store(&key->required, 0);
    }
}
