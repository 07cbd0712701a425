/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild_scan.c - finds the header slots on the members: every block of 4 KiB is looked at.
 *
 * One thread a member keeps two reads in flight. A range that cannot be read is tried again in
 * sixteenths, down to a block. Every byte that was read is hostile: a slot counts when its checksum
 * is right, its note unpacks, and the note names the place where the slot was found.
 *
 * Thread rule: the members' threads touch their own rebuild_member and atomics; the caller's thread
 * waits for them and reports progress.
 */
#include "base/clock.h"
#include "store/catalog/rebuild.h"

#include "base/thread.h"
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "tiers/pool/location.h"
#include "tiers/pool/stripe.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_READ_BYTES (UINT64_C(4) << 20)
#define SCAN_SPLIT      16u
#define SCAN_NAP_NS     20000000L

/* ---- reads ---- */

rebuild_read *rebuild_read_new(uint64_t capacity)
{
    rebuild_read *read = calloc(1, sizeof *read);
    if (read == NULL) return NULL;
    if (posix_memalign(&read->buffer, REBUILD_GRAIN_BYTES, capacity) != 0) {
        free(read);
        return NULL;
    }
    read->capacity = capacity;
    return read;
}

void rebuild_read_free(rebuild_read *read)
{
    if (read == NULL) return;
    if (read->owned) tiers_location_free(read->location);
    free(read->buffer);
    free(read);
}

/* Frees a read that was abandoned, once its device has answered. */
static void read_released(void *context)
{
    rebuild_read_free(context);
}

kvt_status rebuild_read_range(rebuild_read *read, uint32_t member, uint64_t offset, uint64_t bytes)
{
    assert(bytes > 0 && offset % TIERS_GRAIN_BYTES == 0);
    const tiers_share share = {.member = member, .units = 1};
    if (read->owned) tiers_location_free(read->location);
    read->owned = true;
    read->location = tiers_location_make(bytes, (uint32_t)bytes, &share, 1);
    if (read->location == NULL) return KVT_E_MEMORY;
    kvt_status status = tiers_location_room(read->location, 1);
    if (status != KVT_OK) return status;
    read->location->extents[0] = (tiers_extent){.member = member, .offset = offset, .bytes = bytes};
    read->location->extent_count = 1;
    return KVT_OK;
}

void rebuild_read_start(rebuild_state *state, rebuild_read *read, uint64_t bytes)
{
    memset(&read->transfer, 0, sizeof read->transfer);
    read->transfer.kind = KVT_IO_READ;
    read->transfer.location = read->location;
    read->transfer.buffer = read->buffer;
    read->transfer.bytes = bytes;
    tiers_transfer_start(state->pool, &read->transfer);
}

kvt_status rebuild_read_wait(rebuild_state *state, rebuild_read **read)
{
    kvt_status status = tiers_transfer_wait_until(state->pool, &(*read)->transfer, UINT64_MAX);
    if (status == KVT_OK) return KVT_OK;
    tiers_transfer_abandon(state->pool, &(*read)->transfer, read_released, *read);
    *read = NULL;
    return status;
}

/* ---- one member ---- */

/* One member while it is scanned: its thread's alone, but for the three shared atomics, until the
 * thread was joined. */
typedef struct rebuild_member {
    rebuild_state *state;
    uint32_t member;
    uint64_t end;
    pthread_t thread;
    bool started;
    atomic_bool *stop;
    _Atomic uint64_t *done_bytes; /* of all members */
    _Atomic uint32_t *running;
    rebuild_list list;
    uint64_t headers, without_note, other_store, elsewhere;
    uint64_t scanned_bytes, unreadable_bytes;
    bool failed; /* it does not answer any more */
    kvt_status status;
} rebuild_member;

/* Appends a slot to a list. */
static kvt_status list_add(rebuild_list *list, const rebuild_found *found)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 256 : list->capacity * 2;
        rebuild_found *grown = realloc(list->found, capacity * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        list->found = grown;
        list->capacity = capacity;
    }
    list->found[list->count++] = *found;
    return KVT_OK;
}

bool rebuild_names_place(const tiers_location *location, uint32_t member, uint64_t offset)
{
    if (location->bytes < RECORD_TABLE_OFFSET) return false;
    /* Both slots; a unit of the object begins at 0. */
    for (uint32_t i = 0; i < location->share_count; i++) {
        tiers_walk walk;
        tiers_piece piece;
        if (location->shares[i].member != member) continue;
        tiers_walk_init(&walk, location, i, 0, RECORD_TABLE_OFFSET);
        while (tiers_walk_next(&walk, (uint32_t)RECORD_TABLE_OFFSET, &piece)) {
            if (offset >= piece.device_offset && offset - piece.device_offset < piece.bytes)
                return true;
        }
    }
    return false;
}

/* Looks at one block. KVT_OK, whatever it holds; KVT_E_MEMORY. */
static kvt_status scan_block(rebuild_member *self, const uint8_t *block, uint64_t offset)
{
    const void *bytes;
    uint64_t length;
    placement_note note;
    if (memcmp(block, RECORD_MAGIC, sizeof RECORD_MAGIC - 1) != 0) return KVT_OK;
    kvt_status status = record_note_of_slot(block, &bytes, &length);
    if (status == KVT_E_CORRUPT) return KVT_OK;
    self->headers++;
    if (status == KVT_OK) status = placement_note_unpack(bytes, length, &note);
    if (status == KVT_E_MEMORY) return status;
    if (status != KVT_OK) {
        self->without_note++;
        return KVT_OK;
    }
    const rebuild_found found = {.serial = note.serial, .offset = offset, .member = self->member};
    if (memcmp(note.pool, self->state->report->pool, sizeof note.pool) != 0) {
        self->other_store++;
    } else if (!rebuild_names_place(note.location, self->member, offset)) {
        self->elsewhere++;
    } else {
        status = list_add(&self->list, &found);
    }
    tiers_location_free(note.location);
    return status;
}

/* Looks at every block of a range that was read. */
static kvt_status scan_blocks(rebuild_member *self, const uint8_t *bytes, uint64_t count,
                              uint64_t offset)
{
    kvt_status status = KVT_OK;
    for (uint64_t at = 0; at < count && status == KVT_OK; at += REBUILD_GRAIN_BYTES)
        status = scan_block(self, bytes + at, offset + at);
    self->scanned_bytes += count;
    return status;
}

/* Reads a range whose read failed in parts, down to a block, so that only the bad sectors' own
 * blocks are lost. */
static kvt_status scan_in_parts(rebuild_member *self, uint64_t offset, uint64_t bytes)
{
    if (bytes <= REBUILD_GRAIN_BYTES) {
        self->unreadable_bytes += bytes;
        return KVT_OK;
    }
    uint64_t part = bytes / SCAN_SPLIT / REBUILD_GRAIN_BYTES * REBUILD_GRAIN_BYTES;
    if (part == 0) part = REBUILD_GRAIN_BYTES;
    kvt_status status = KVT_OK;
    for (uint64_t at = 0; at < bytes && status == KVT_OK && !atomic_load(self->stop); at += part) {
        uint64_t count = bytes - at < part ? bytes - at : part;
        rebuild_read *read = rebuild_read_new(count);
        if (read == NULL) return KVT_E_MEMORY;
        status = rebuild_read_range(read, self->member, offset + at, count);
        if (status == KVT_OK) {
            rebuild_read_start(self->state, read, count);
            status = rebuild_read_wait(self->state, &read);
            if (status == KVT_OK) {
                status = scan_blocks(self, read->buffer, count, offset + at);
            } else if (status != KVT_E_GONE && status != KVT_E_MEMORY) {
                status = scan_in_parts(self, offset + at, count);
            }
        }
        rebuild_read_free(read);
    }
    return status;
}

/* One of the two reads in flight. */
typedef struct scan_read {
    rebuild_read *read;
    uint64_t offset;
    uint64_t bytes; /* 0: none under way */
} scan_read;

/* Starts the next read of the member; one->bytes is 0 when the member is read to its end. */
static kvt_status scan_start_read(rebuild_member *self, scan_read *one, uint64_t *next)
{
    uint64_t left = self->end - *next;
    one->bytes = 0;
    if (left == 0 || atomic_load(self->stop)) return KVT_OK;
    if (one->read == NULL) one->read = rebuild_read_new(SCAN_READ_BYTES);
    if (one->read == NULL) return KVT_E_MEMORY;
    uint64_t bytes = left < SCAN_READ_BYTES ? left : SCAN_READ_BYTES;
    kvt_status status = rebuild_read_range(one->read, self->member, *next, bytes);
    if (status != KVT_OK) return status;
    one->offset = *next;
    one->bytes = bytes;
    *next += bytes;
    rebuild_read_start(self->state, one->read, bytes);
    return KVT_OK;
}

/* A member's thread: reads the member once from its label to its end, two reads at a time. A member
 * that is gone ends its own scan alone; any other failure stops all threads. */
static void *scan_member(void *argument)
{
    rebuild_member *self = argument;
    scan_read reads[2] = {{0}};
    uint64_t next = TIERS_SUPERBLOCK_BYTES;
    kvt_status status = scan_start_read(self, &reads[0], &next);
    if (status == KVT_OK) status = scan_start_read(self, &reads[1], &next);
    for (uint32_t turn = 0; status == KVT_OK && reads[turn].bytes != 0; turn ^= 1u) {
        scan_read *one = &reads[turn];
        assert(one->bytes > 0 && one->read != NULL);
        const uint64_t bytes = one->bytes;
        status = rebuild_read_wait(self->state, &one->read);
        one->bytes = 0;
        if (status == KVT_OK) {
            status = scan_blocks(self, one->read->buffer, bytes, one->offset);
        } else if (status != KVT_E_GONE && status != KVT_E_MEMORY) {
            status = scan_in_parts(self, one->offset, bytes);
        }
        atomic_fetch_add(self->done_bytes, bytes);
        if (status == KVT_OK) status = scan_start_read(self, &reads[turn], &next);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (reads[i].bytes != 0) (void)!rebuild_read_wait(self->state, &reads[i].read);
        rebuild_read_free(reads[i].read);
    }
    self->failed = status == KVT_E_GONE;
    self->status = self->failed ? KVT_OK : status;
    if (self->status != KVT_OK) atomic_store(self->stop, true);
    atomic_fetch_sub(self->running, 1);
    return NULL;
}

/* ---- all of them ---- */

/* Adds a member's counts and slots to the report and the list. Its thread has ended. */
static kvt_status scan_collect(rebuild_state *state, rebuild_member *self)
{
    kvt_recover_report *report = state->report;
    kvt_recover_device *device = &report->devices[self->member];
    kvt_status status = self->status;
    report->headers += self->headers;
    report->without_note += self->without_note;
    report->other_store += self->other_store;
    report->elsewhere += self->elsewhere;
    report->scanned_bytes += self->scanned_bytes;
    report->unreadable_bytes += self->unreadable_bytes;
    device->scanned_bytes = self->scanned_bytes;
    device->unreadable_bytes = self->unreadable_bytes;
    if (self->failed) {
        device->state = KVT_RECOVER_FAILED;
        state->used &= ~(UINT64_C(1) << self->member);
    }
    for (size_t i = 0; i < self->list.count && status == KVT_OK; i++)
        status = list_add(&state->list, &self->list.found[i]);
    free(self->list.found);
    return status;
}

/* The scan of all members. The atomics are what their threads share. */
typedef struct scan_group {
    rebuild_member members[TIERS_MEMBERS_MAX];
    atomic_bool stop;
    _Atomic uint64_t done_bytes;
    _Atomic uint32_t running;
    uint64_t total_bytes;
} scan_group;

/* Starts the thread of a member. The scan ends where the label says that the store's use of the
 * device ended, or at the end of the device; the missing rest counts as unreadable. */
static kvt_status scan_start(rebuild_state *state, scan_group *group, uint32_t member)
{
    rebuild_member *self = &group->members[member];
    tiers_member_stats stats;
    kvt_status status = tiers_pool_member(state->pool, member, &stats);
    if (status != KVT_OK) return status;
    uint64_t labelled = state->labelled_bytes[member], end = stats.facts.capacity_bytes;
    *self = (rebuild_member){.state = state,
                             .member = member,
                             .end = end < labelled ? end : labelled,
                             .unreadable_bytes = end < labelled ? labelled - end : 0,
                             .stop = &group->stop,
                             .done_bytes = &group->done_bytes,
                             .running = &group->running};
    self->end -= self->end % REBUILD_GRAIN_BYTES;
    if (self->end < TIERS_SUPERBLOCK_BYTES) self->end = TIERS_SUPERBLOCK_BYTES;
    group->total_bytes += self->end - TIERS_SUPERBLOCK_BYTES;
    atomic_fetch_add(&group->running, 1);
    status = base_thread_start(&self->thread, scan_member, self);
    self->started = status == KVT_OK;
    if (!self->started) atomic_fetch_sub(&group->running, 1);
    return status;
}

/* Reports progress until the threads have ended. Stops them when the caller cancels, or when
 * starting one failed. */
static kvt_status scan_watch(const rebuild_state *state, scan_group *group, kvt_status status)
{
    if (status != KVT_OK) atomic_store(&group->stop, true);
    while (atomic_load(&group->running) != 0) {
        base_sleep(SCAN_NAP_NS);
        if (status != KVT_OK ||
            rebuild_progress(state, KVT_RECOVER_SCAN, atomic_load(&group->done_bytes),
                             group->total_bytes))
            continue;
        status = KVT_E_CANCELLED;
        atomic_store(&group->stop, true);
    }
    return status;
}

kvt_status rebuild_scan(rebuild_state *state)
{
    scan_group *group = calloc(1, sizeof *group);
    if (group == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < state->member_count && status == KVT_OK; i++) {
        if ((state->used >> i & 1) != 0) status = scan_start(state, group, i);
    }
    status = scan_watch(state, group, status);
    for (uint32_t i = 0; i < state->member_count; i++) {
        if (!group->members[i].started) continue;
        pthread_join(group->members[i].thread, NULL);
        kvt_status collected = scan_collect(state, &group->members[i]);
        if (status == KVT_OK) status = collected;
    }
    free(group);
    return status;
}

bool rebuild_progress(const rebuild_state *state, kvt_recover_stage stage, uint64_t done,
                      uint64_t total)
{
    const kvt_recover_options *options = state->options;
    return options->progress == NULL || options->progress(options->context, stage, done, total);
}
