/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow_get.c - gets of a follower.
 *
 *     look (row) -> read (extents) -> decode (key, generation, every checksum) -> hit
 *        ^                               | not proven
 *        +------ the row has changed ----+------ it has not -> miss, a failure
 *
 * Nothing keeps a record where it is while it is read: its owner may move it, remove it and write
 * other bytes over it. What is accepted is what the record itself proves; another row is looked up
 * at once, a few times.
 *
 * Thread rule: any thread.
 */
#include "base/clock.h"
#include "base/struct_size.h"
#include "codecs/record_groups.h"
#include "codecs/view_rows.h"
#include "store/core/place.h"
#include "store/follow/follow_internal.h"
#include "store/read/access_get.h"
#include "store/read/groups.h"

#include <assert.h>
#include <kvterrace/lookup.h>
#include <stdlib.h>
#include <string.h>

#define GET_TRIES 8u /* rows of one get, each another one */

/* A read under way. A device may still write to it when the get has given it up. */
typedef struct get_read {
    tiers_transfer transfer;
    tiers_location *location;
    follow_buffer record;
} get_read;

/* One get. */
typedef struct get_try {
    const kvt_key *key;
    const kvt_view *view;
    uint64_t deadline_ns;
    follow_row row;
    follow_devices *devices;
    kvt_record_bases bases;
    kvt_get_info told;
} get_try;

/* Takes spare memory that is large enough, or fresh one. */
static kvt_status buffer_take(follow_store *store, uint64_t bytes, follow_buffer *out)
{
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < FOLLOW_SPARE && out->memory == NULL; i++) {
        if (store->spare[i].bytes < bytes) continue;
        *out = store->spare[i];
        store->spare[i] = (follow_buffer){NULL, 0};
    }
    pthread_mutex_unlock(&store->lock);
    if (out->memory != NULL) return KVT_OK;
    if (posix_memalign(&out->memory, TIERS_GRAIN_BYTES, bytes) == 0) {
        out->bytes = bytes;
        return KVT_OK;
    }
    out->memory = NULL;
    return KVT_E_MEMORY;
}

/* Gives memory back, in the place of the smallest that is kept. */
static void buffer_give(follow_store *store, follow_buffer *buffer)
{
    uint32_t least = 0;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 1; i < FOLLOW_SPARE; i++)
        if (store->spare[i].bytes < store->spare[least].bytes) least = i;
    const follow_buffer other = store->spare[least];
    const bool kept = other.bytes < buffer->bytes;
    if (kept) store->spare[least] = *buffer;
    pthread_mutex_unlock(&store->lock);
    free(kept ? other.memory : buffer->memory);
    *buffer = (follow_buffer){NULL, 0};
}

static void read_free(get_read *read)
{
    tiers_location_free(read->location);
    free(read->record.memory);
    free(read);
}

/* The last word on a read that was given up. The pool waits for it, so the get leaves the devices
 * before. */
static void read_released(void *context)
{
    read_free(context);
}

/* Reads the row's record. Takes the row's location over. KVT_OK: *record_out is to be given back;
 * KVT_E_TIMEOUT; KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY. */
static kvt_status get_bring(follow_store *store, get_try *get, follow_buffer *record_out)
{
    get_read *read = calloc(1, sizeof *read);
    if (read == NULL) return KVT_E_MEMORY;
    read->location = get->row.location;
    get->row.location = NULL;
    const uint64_t bytes = read->location->bytes;
    kvt_status status = KVT_OK;
    if (bytes != get->row.row.record_bytes || !follow_devices_hold(get->devices, read->location))
        status = KVT_E_GONE;
    else
        status = buffer_take(store, bytes, &read->record);
    if (status == KVT_OK) {
        tiers_pool *pool = get->devices->pool;
        read->transfer = (tiers_transfer){.kind = KVT_IO_READ,
                                          .waited = true,
                                          .location = read->location,
                                          .buffer = read->record.memory,
                                          .bytes = bytes};
        const uint64_t from_ns = base_clock_ns();
        tiers_transfer_start_until(pool, &read->transfer, get->deadline_ns);
        status = tiers_transfer_wait_until(pool, &read->transfer, get->deadline_ns);
        if (status != KVT_OK) {
            tiers_transfer_abandon(pool, &read->transfer, read_released, read);
            return status;
        }
        status = read->transfer.status;
        get->told.read_ns = base_clock_ns() - from_ns;
        get->told.stored_bytes = bytes;
    }
    if (status == KVT_OK) {
        *record_out = read->record;
        read->record = (follow_buffer){NULL, 0};
    }
    read_free(read);
    return status;
}

/* Decodes the record to where the caller's view says. KVT_OK: it has proven itself. KVT_E_MISMATCH:
 * it is sound, and needs a basis that is not there. KVT_E_CORRUPT and others: it has not. */
static kvt_status get_decode(get_try *get, const kvt_view *views, const void *record)
{
    const follow_row *found = &get->row;
    const uint64_t bytes = found->row.record_bytes;
    const kvt_record_spec expected = {
        .key = *get->key, .generation = found->row.generation, .bases = get->bases};
    kvt_record_info info;
    void *scratch = NULL;
    kvt_status status = kvt_record_parse(record, bytes, &info);
    if (status != KVT_OK) return status;
    get->told.variant = info.spec.variant;
    /* Planes may have been dropped since the row was read; tokens are dropped by a new record. */
    if (kvt_variant_drops_tokens(info.spec.variant)) return KVT_E_CORRUPT;
    const uint64_t room = info.scratch_bytes;
    if (room != 0 && posix_memalign(&scratch, 64, room) != 0) return KVT_E_MEMORY;
    if (views == NULL)
        status = kvt_record_decode(record, bytes, &expected, get->view->base[0],
                                   found->source_bytes, scratch, room);
    else if (found->row.group_count != 0)
        status = record_groups_decode_views(record, bytes, &expected, NULL, found->groups, views,
                                            found->row.group_count, 0, 0, scratch, room);
    else
        status = kvt_record_decode_view(record, bytes, &expected, NULL, &found->row.layout, views,
                                        0, 0, scratch, room);
    free(scratch);
    return status == KVT_OK ? status : place_judge(&expected, record, bytes, status);
}

/* Checks the caller's view for the row. *views_out: `room`, filled, or NULL for packed bytes. */
static kvt_status get_check_view(const get_try *get, kvt_view *room, const kvt_view **views_out)
{
    const kvt_view *view = get->view;
    const catalog_row *row = &get->row.row;
    *views_out = NULL;
    if (view->bases_kind == KVT_BASES_PACKED && view->dtype == 0) {
        const kvt_layout any = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = view->base_bytes[0]};
        const kvt_status status = kvt_view_check(view, &any, NULL, 0);
        if (status != KVT_OK) return status;
        return view->base_bytes[0] == get->row.source_bytes ? KVT_OK : KVT_E_ARGUMENT;
    }
    *views_out = room;
    const bool grouped = row->group_count != 0;
    return groups_take_view(grouped ? get->row.groups : &row->layout,
                            grouped ? row->group_count : 1, grouped, view, room);
}

/* Looks a row up, and takes hold of the devices and bases for it. KVT_OK; what follow_look says;
 * KVT_REFUSED: it has not all of its tokens. */
static kvt_status get_look(follow_store *store, get_try *get)
{
    pthread_mutex_lock(&store->lock);
    kvt_status status = follow_look(store, get->key, &get->row);
    if (status == KVT_OK) {
        get->told.variant = get->row.row.variant;
        (void)follow_has_basis(store, get->row.row.variant); /* looks for it */
        get->bases = (kvt_record_bases){store->bases, store->base_count};
        get->devices = store->devices;
        get->devices->users++;
    }
    pthread_mutex_unlock(&store->lock);
    if (status == KVT_OK && kvt_variant_drops_tokens(get->row.row.variant)) status = KVT_REFUSED;
    return status;
}

/* Gives back what get_look has taken. */
static void get_leave(follow_store *store, get_try *get)
{
    tiers_location_free(get->row.location);
    get->row.location = NULL;
    if (get->devices == NULL) return;
    pthread_mutex_lock(&store->lock);
    const bool last = follow_devices_leave(get->devices);
    pthread_mutex_unlock(&store->lock);
    if (last) follow_devices_close(get->devices);
    get->devices = NULL;
}

/* After a record that has not proven itself: opens devices anew that have moved or gone out of
 * service. True: they are others now. */
static bool get_renew(follow_store *store, const follow_devices *used, kvt_status failure)
{
    char message[256];
    follow_devices *old = NULL;
    pthread_mutex_lock(&store->lock);
    bool other = store->devices != used;
    const uint64_t now_ns = base_clock_ns();
    const bool due = store->catalog != NULL && now_ns >= store->devices_due_ns &&
                     (failure == KVT_E_GONE || failure == KVT_E_IO ||
                      follow_devices_moved(store, store->devices));
    if (!other && due) {
        follow_devices *fresh;
        store->devices_due_ns = now_ns + FOLLOW_PAUSE_NS;
        if (follow_devices_open(store, &fresh, message, sizeof message) == KVT_OK) {
            old = store->devices;
            store->devices = fresh;
            other = true;
            if (!follow_devices_leave(old)) old = NULL;
        }
    }
    pthread_mutex_unlock(&store->lock);
    if (old != NULL) follow_devices_close(old);
    return other;
}

/* One row's try. KVT_BUSY: another may follow; else the get's status, KVT_E_TIMEOUT included. */
static kvt_status get_once(follow_store *store, get_try *get, uint64_t *serial, bool *failed)
{
    kvt_view room[KVT_GROUPS_MAX];
    const kvt_view *views;
    follow_buffer record = {NULL, 0};
    kvt_status status = get_look(store, get);
    if (status == KVT_OK) status = get_check_view(get, room, &views);
    if (status != KVT_OK) {
        get_leave(store, get);
        return status;
    }
    const bool same = get->row.row.serial == *serial;
    *serial = get->row.row.serial;
    /* As kvt_store_get: with 0 no device is started. */
    status = get->deadline_ns == 0 ? KVT_E_TIMEOUT : get_bring(store, get, &record);
    const uint64_t from_ns = base_clock_ns();
    if (status == KVT_OK) status = get_decode(get, views, record.memory);
    get->told.decode_ns = base_clock_ns() - from_ns;
    if (record.memory != NULL) buffer_give(store, &record);
    const follow_devices *used = get->devices;
    const bool proven = status == KVT_OK || status == KVT_E_MISMATCH || status == KVT_E_MEMORY ||
                        status == KVT_E_TIMEOUT;
    const bool renewed = !proven && get_renew(store, used, status);
    get_leave(store, get);
    if (proven) return status;
    /* The same row again: what lies there is not its record. */
    if (same && !renewed) {
        *failed = true;
        return KVT_MISS;
    }
    return KVT_BUSY;
}

static void get_count(follow_store *store, kvt_status status, const get_try *get, bool failed)
{
    pthread_mutex_lock(&store->lock);
    store->gets++;
    store->hits += status == KVT_OK;
    store->misses += status == KVT_MISS || status == KVT_REFUSED || status == KVT_E_TIMEOUT ||
                     status == KVT_E_MISMATCH;
    store->timeouts += status == KVT_E_TIMEOUT;
    store->tokens_refused += status == KVT_REFUSED;
    store->bases_lacking += status == KVT_E_MISMATCH;
    store->load_failures += failed;
    if (status == KVT_OK) store->bytes_read += get->told.stored_bytes;
    pthread_mutex_unlock(&store->lock);
}

kvt_status follow_get(kvt_store *handle, const kvt_key *key, const kvt_view *view,
                      uint64_t deadline_ns, kvt_get_info *info)
{
    follow_store *store = follow_enter(handle);
    if (store == NULL) return KVT_E_STATE;
    if (key == NULL || view == NULL || !access_info_is_sound(info)) return KVT_E_ARGUMENT;
    if ((info != NULL && info->kept != NULL) || view_is_far(view)) return KVT_E_UNSUPPORTED;
    const uint64_t began_ns = base_clock_ns();
    if (deadline_ns == KVT_STORE_DEADLINE)
        deadline_ns = store->get_deadline_ns == KVT_NO_DEADLINE ? KVT_NO_DEADLINE
                                                                : began_ns + store->get_deadline_ns;
    get_try get = {.key = key, .view = view, .deadline_ns = deadline_ns};
    get.row.wants_location = true;
    uint64_t serial = 0;
    bool failed = false;
    kvt_status status = KVT_BUSY;
    for (uint32_t i = 0; i < GET_TRIES && status == KVT_BUSY; i++)
        status = get_once(store, &get, &serial, &failed);
    if (status == KVT_BUSY) status = KVT_MISS; /* it moves faster than it can be read */
    get_count(store, status, &get, failed);
    if (info != NULL) {
        kvt_get_info whole = {.struct_size = sizeof whole};
        if (status == KVT_OK) {
            whole = get.told;
            whole.tier = KVT_TIER_SSD;
            whole.elapsed_ns = base_clock_ns() - began_ns;
        }
        if (status == KVT_E_MISMATCH) whole.variant = get.told.variant;
        whole.timed_out = status == KVT_E_TIMEOUT;
        whole.refused_tokens = status == KVT_REFUSED;
        struct_size_out(info, &whole, sizeof whole);
    }
    return status == KVT_REFUSED || status == KVT_E_TIMEOUT ? KVT_MISS : status;
}

kvt_status follow_prefix_get(kvt_store *handle, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out)
{
    if (follow_enter(handle) == NULL) return KVT_E_STATE;
    if (loaded_out == NULL || count > QUEUE_DEPTH_MAX) return KVT_E_ARGUMENT;
    if (count != 0 && (keys == NULL || views == NULL)) return KVT_E_ARGUMENT;
    *loaded_out = 0;
    for (size_t i = 0; i < count; i++)
        if (views[i] == NULL) return KVT_E_ARGUMENT;
    for (; *loaded_out < count; ++*loaded_out) {
        const kvt_status status =
            follow_get(handle, &keys[*loaded_out], views[*loaded_out], deadline_ns, NULL);
        if (status == KVT_E_ARGUMENT || status == KVT_E_MEMORY) return status;
        if (status != KVT_OK) break;
    }
    return KVT_OK;
}
