/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild_choose.c - chooses which of the records that were found become entries.
 *
 * Newest serial first: the first record of a key that verifies is the key's entry, and the first
 * one that verifies has its extents. Claims are the pool's: what was adopted stays so to the end,
 * and nothing is ever given back in a way that a device would trim. Several records are read at
 * once; one whose key or extents depend on a record still being read waits for it.
 *
 * Thread rule: the caller's thread.
 */
#include "store/catalog/rebuild.h"

#include "codecs/record_format.h"
#include "codecs/record_groups.h"
#include "codecs/record_note.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHOOSE_BATCH 32u

/* A record being read. */
typedef struct choose_job {
    rebuild_read *read;
    placement_note note; /* its location is adopted */
    uint64_t key_hash;
} choose_job;

typedef struct choose_walk {
    rebuild_state *state;
    rebuild_read *slots[CHOOSE_BATCH]; /* header slots of the next records */
    choose_job jobs[CHOOSE_BATCH];
    uint32_t job_count;
    uint64_t job_bytes;
    uint64_t *keys; /* hashes of the keys that were recovered; 0 = free */
    size_t key_room;
    size_t key_count;
} choose_walk;

/* ---- keys ---- */

/* A hash of a key, never 0. Two keys with one hash count as one: the older record is lost. */
static uint64_t choose_hash(const uint8_t key[32])
{
    uint64_t hash = XXH3_64bits(key, 32);
    return hash != 0 ? hash : 1;
}

/* Whether a record of the key was recovered already. */
static bool choose_has_key(const choose_walk *walk, uint64_t hash)
{
    assert(walk != NULL);
    for (size_t at = hash & (walk->key_room - 1); walk->keys[at] != 0;
         at = (at + 1) & (walk->key_room - 1)) {
        if (walk->keys[at] == hash) return true;
    }
    return false;
}

/* Adds a hash to a table with a free slot; room is a power of two. */
static void choose_put_key(uint64_t *keys, size_t room, uint64_t hash)
{
    size_t at = hash & (room - 1);
    while (keys[at] != 0)
        at = (at + 1) & (room - 1);
    keys[at] = hash;
}

/* Adds a hash, doubling the table when it is half full. */
static kvt_status choose_add_key(choose_walk *walk, uint64_t hash)
{
    if (2 * (walk->key_count + 1) > walk->key_room) {
        uint64_t *keys = calloc(2 * walk->key_room, sizeof *keys);
        if (keys == NULL) return KVT_E_MEMORY;
        for (size_t i = 0; i < walk->key_room; i++) {
            if (walk->keys[i] != 0) choose_put_key(keys, 2 * walk->key_room, walk->keys[i]);
        }
        free(walk->keys);
        walk->keys = keys;
        walk->key_room *= 2;
    }
    choose_put_key(walk->keys, walk->key_room, hash);
    walk->key_count++;
    return KVT_OK;
}

/* ---- records that have been read ---- */

/* Whether the record in the buffer is the one that its note promised. */
static bool choose_verify(const choose_job *job, kvt_record_info *info)
{
    static const uint64_t serial_most = INT64_MAX; /* as the catalog keeps them */
    placement_note note;
    const void *bytes;
    uint64_t length;
    const tiers_location *location = job->note.location;
    if (kvt_record_verify(job->read->buffer, location->bytes, info) != KVT_OK) return false;
    if (info->record_bytes != location->bytes || info->spec.generation > serial_most) return false;
    if (choose_hash(info->spec.key.bytes) != job->key_hash) return false;
    if (record_note_get(job->read->buffer, &bytes, &length) != KVT_OK) return false;
    if (placement_note_unpack(bytes, length, &note) != KVT_OK) return false;
    tiers_location_free(note.location);
    return note.serial == job->note.serial &&
           memcmp(note.pool, job->note.pool, sizeof note.pool) == 0;
}

/* Takes the layouts of a sound record of groups. The scan has counted the slots of the groups'
 * records as headers without a note, which they are not. */
static void choose_take_groups(kvt_recover_report *report, const choose_job *job,
                               kvt_layout layouts[KVT_GROUPS_MAX])
{
    record_groups groups;
    const uint8_t *record = job->read->buffer;
    kvt_status status = record_groups_open(record, job->note.location->bytes, &groups);
    assert(status == KVT_OK);
    (void)status;
    for (uint32_t i = 0; i < groups.count; i++) {
        layouts[i] = groups.groups[i].layout;
        for (uint32_t slot = 0; slot < 2; slot++) {
            const uint8_t *at = record + groups.groups[i].offset + slot * RECORD_NOTE_BLOCK_BYTES;
            const void *note;
            uint64_t bytes;
            if (record_note_of_slot(at, &note, &bytes) != KVT_MISS) continue;
            report->headers -= report->headers > 0;
            report->without_note -= report->without_note > 0;
        }
    }
}

/* Has the draft remember the name of the basis that a record needs: a row has 20 bits of it. */
static kvt_status choose_note_basis(rebuild_state *state, const kvt_record_info *info)
{
    if (info->basis_span == 0) return KVT_OK;
    if (memcmp(state->noted.hash, info->basis, sizeof info->basis) == 0) return KVT_OK;
    memcpy(state->noted.hash, info->basis, sizeof info->basis);
    return catalog_note_basis(state->draft, &state->noted);
}

/* Counts a record as an entry, and adds its row to the draft unless this is a dry run. */
static kvt_status choose_take(choose_walk *walk, const choose_job *job, const kvt_record_info *info)
{
    kvt_recover_report *report = walk->state->report;
    const placement_note *note = &job->note;
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_status status = choose_add_key(walk, job->key_hash);
    if (info->group_count != 0) choose_take_groups(report, job, layouts);
    report->entries++;
    report->bytes += info->record_bytes;
    if (status != KVT_OK || walk->state->draft == NULL) return status;
    catalog_row row = {.key = info->spec.key,
                       .serial = note->serial,
                       .generation = info->spec.generation,
                       .parent = note->parent,
                       .has_parent = note->has_parent,
                       .layout = info->spec.layout,
                       .groups = layouts,
                       .group_count = info->group_count,
                       .first_position = info->spec.first_position,
                       .recompute_seconds = note->recompute_seconds,
                       .variant = info->spec.variant,
                       .record_bytes = info->record_bytes,
                       .expires_ns = note->expires_ns,
                       .tenant = note->tenant,
                       .class_id = note->class_id,
                       .request_tokens = note->request_tokens};
    uint8_t location[PLACEMENT_NOTE_BYTES_MAX];
    row.location = location;
    row.location_bytes = tiers_location_pack(note->location, location, sizeof location);
    status = choose_note_basis(walk->state, info);
    return status == KVT_OK ? rebuild_add_row(walk->state, &row) : status;
}

/* Finishes the read that was begun first. Reads end in the order of their serials, because the
 * first record of a key and of an extent counts. */
static kvt_status choose_finish_first(choose_walk *walk)
{
    const uint64_t bytes = walk->jobs[0].note.location->bytes;
    /* A sound record becomes an entry and keeps its extents; a damaged one loses its claims. */
    choose_job *job = &walk->jobs[0];
    tiers_pool *pool = walk->state->pool;
    kvt_record_info info;
    kvt_status status = rebuild_read_wait(walk->state, &job->read);
    bool sound = status == KVT_OK && choose_verify(job, &info);
    status = status == KVT_E_MEMORY ? status : KVT_OK;
    if (sound) {
        status = choose_take(walk, job, &info);
        tiers_pool_forget(pool, job->note.location); /* its extents stay claimed */
    } else {
        walk->state->report->damaged++;
        tiers_pool_disown(pool, job->note.location);
    }
    rebuild_read_free(job->read);
    memset(job, 0, sizeof *job);
    walk->job_count--;
    walk->job_bytes -= bytes;
    memmove(&walk->jobs[0], &walk->jobs[1], walk->job_count * sizeof walk->jobs[0]);
    return status;
}

/* Finishes every read in flight, in order. */
static kvt_status choose_finish_all(choose_walk *walk)
{
    kvt_status status = KVT_OK;
    while (walk->job_count > 0) {
        kvt_status finished = choose_finish_first(walk);
        if (status == KVT_OK) status = finished;
    }
    return status;
}

/* ---- records to be read ---- */

/* Whether a part of the record lies on a member that is not there. */
static bool choose_is_absent(const rebuild_state *state, const tiers_location *location)
{
    for (uint32_t i = 0; i < location->share_count; i++) {
        if ((state->used >> location->shares[i].member & 1) == 0) return true;
    }
    return false;
}

/* Whether an open has found that nothing lists a record. */
static bool choose_is_undone(const tiers_undone *undone, uint64_t serial)
{
    for (uint32_t i = 0; i < undone->count; i++)
        if (serial > undone->ranges[i].after && serial < undone->ranges[i].before) return true;
    return false;
}

/* The report's count for a record that is refused unread; NULL: the record is read. */
static uint64_t *choose_refuses(const choose_walk *walk, const rebuild_found *found,
                                const placement_note *note)
{
    const rebuild_state *state = walk->state;
    kvt_recover_report *report = state->report;
    if (note->serial != found->serial || note->serial >> 32 > report->epoch ||
        memcmp(note->pool, report->pool, sizeof note->pool) != 0 ||
        !rebuild_names_place(note->location, found->member, found->offset))
        return &report->damaged;
    if (choose_is_undone(&state->undone, note->serial)) return &report->older;
    if (choose_is_absent(state, note->location)) return &report->absent;
    if (note->location->bytes > state->store->limits.staging_bytes) return &report->too_large;
    return NULL;
}

/* Whether a record of the same key is being read: its outcome decides on this one. */
static bool choose_depends(const choose_walk *walk, uint64_t key_hash)
{
    for (uint32_t i = 0; i < walk->job_count; i++) {
        if (walk->jobs[i].key_hash == key_hash) return true;
    }
    return false;
}

/* Claims the extents. KVT_OK; KVT_E_CORRUPT (they are claimed, or out of range); KVT_E_GONE;
 * KVT_E_MEMORY. A record that is being read may turn out to be damaged and lose its claim, so a
 * conflict is tried again after all reads have ended. */
static kvt_status choose_claim(choose_walk *walk, tiers_location *location)
{
    kvt_status status = tiers_pool_adopt(walk->state->pool, location);
    if (status != KVT_E_CORRUPT || walk->job_count == 0) return status;
    status = choose_finish_all(walk);
    return status == KVT_OK ? tiers_pool_adopt(walk->state->pool, location) : status;
}

/* Begins to read one record; the note's location is taken over. */
static kvt_status choose_begin(choose_walk *walk, placement_note *note, uint64_t key_hash)
{
    kvt_recover_report *report = walk->state->report;
    const uint64_t bytes = note->location->bytes;
    kvt_status status = choose_depends(walk, key_hash) ? choose_finish_all(walk) : KVT_OK;
    while (status == KVT_OK && walk->job_count > 0 &&
           (walk->job_count == CHOOSE_BATCH ||
            walk->job_bytes + bytes > walk->state->store->limits.staging_bytes))
        status = choose_finish_first(walk);
    if (status == KVT_OK && choose_has_key(walk, key_hash)) {
        report->older++;
        tiers_location_free(note->location);
        return KVT_OK;
    }
    if (status == KVT_OK) status = choose_claim(walk, note->location);
    if (status != KVT_OK) {
        report->overlapped += status == KVT_E_CORRUPT;
        report->absent += status == KVT_E_GONE;
        tiers_location_free(note->location);
        return status == KVT_E_CORRUPT || status == KVT_E_GONE ? KVT_OK : status;
    }
    rebuild_read *read = rebuild_read_new(bytes);
    if (read == NULL) {
        tiers_pool_disown(walk->state->pool, note->location);
        return KVT_E_MEMORY;
    }
    read->location = note->location;
    walk->jobs[walk->job_count++] = (choose_job){.read = read, .note = *note, .key_hash = key_hash};
    walk->job_bytes += bytes;
    rebuild_read_start(walk->state, read, bytes);
    return KVT_OK;
}

/* Decides on one record by its header slot, which is read anew: it may have rotted meanwhile. */
static kvt_status choose_consider(choose_walk *walk, const rebuild_found *found,
                                  const uint8_t *slot)
{
    kvt_recover_report *report = walk->state->report;
    const void *bytes;
    uint64_t length;
    placement_note note = {.location = NULL};
    kvt_status status = record_note_of_slot(slot, &bytes, &length);
    if (status == KVT_OK) status = placement_note_unpack(bytes, length, &note);
    if (status == KVT_E_MEMORY) return status;
    uint64_t *reason = status == KVT_OK ? choose_refuses(walk, found, &note) : &report->damaged;
    if (reason != NULL) {
        ++*reason;
        tiers_location_free(note.location);
        return KVT_OK;
    }
    return choose_begin(walk, &note, choose_hash(slot + offsetof(record_header, key)));
}

/* Reads the slots of up to a batch of records, and decides on them in their order. */
static kvt_status choose_some(choose_walk *walk, const rebuild_found *found, uint32_t count)
{
    kvt_status status = KVT_OK;
    uint32_t begun = 0;
    for (; begun < count && status == KVT_OK; begun++) {
        rebuild_read **read = &walk->slots[begun];
        if (*read == NULL) *read = rebuild_read_new(REBUILD_GRAIN_BYTES);
        if (*read == NULL) return KVT_E_MEMORY;
        status = rebuild_read_range(*read, found[begun].member, found[begun].offset,
                                    REBUILD_GRAIN_BYTES);
        if (status == KVT_OK) rebuild_read_start(walk->state, *read, REBUILD_GRAIN_BYTES);
        if (status != KVT_OK) break;
    }
    for (uint32_t i = 0; i < begun; i++) {
        kvt_status landed = rebuild_read_wait(walk->state, &walk->slots[i]);
        if (status != KVT_OK) continue;
        if (landed == KVT_OK) {
            status = choose_consider(walk, &found[i], walk->slots[i]->buffer);
        } else if (landed == KVT_E_MEMORY) {
            status = landed;
        } else {
            walk->state->report->damaged++;
        }
    }
    return status;
}

/* Newest first; the rest only makes the order the same for equal bytes. */
static int choose_order(const void *left, const void *right)
{
    const rebuild_found *a = left, *b = right;
    if (a->serial != b->serial) return a->serial > b->serial ? -1 : 1;
    if (a->member != b->member) return a->member < b->member ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return 0;
}

kvt_status rebuild_choose(rebuild_state *state)
{
    choose_walk walk = {.state = state, .key_room = 1024};
    const rebuild_list *list = &state->list;
    walk.keys = calloc(walk.key_room, sizeof *walk.keys);
    kvt_status status = walk.keys != NULL ? KVT_OK : KVT_E_MEMORY;
    if (list->count > 0) qsort(list->found, list->count, sizeof *list->found, choose_order);
    for (size_t at = 0; at < list->count && status == KVT_OK; at += CHOOSE_BATCH) {
        size_t count = list->count - at < CHOOSE_BATCH ? list->count - at : CHOOSE_BATCH;
        if (!rebuild_progress(state, KVT_RECOVER_VERIFY, at, list->count)) {
            status = KVT_E_CANCELLED;
        } else {
            status = choose_some(&walk, list->found + at, (uint32_t)count);
        }
    }
    kvt_status finished = choose_finish_all(&walk);
    for (uint32_t i = 0; i < CHOOSE_BATCH; i++)
        rebuild_read_free(walk.slots[i]);
    free(walk.keys);
    return status == KVT_OK ? finished : status;
}
