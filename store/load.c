/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - layered loads: reads layer by layer over a group of entries, within the window that the
 * caller's releases open. What the owner calls is in load_calls.c; docs/CALLS.md has the picture.
 *
 *     entry   held -> head read [-> heads of its groups read] -> layers decoded -> complete
 *                \-> failed (its reads in flight end, and count for nothing)
 *     cell    idle -> flying -> landed: its task waits for a thread of the queue -> idle
 *                         \-> given up -> idle
 *
 *     part    ready -> running -> ended
 *
 * A cell is one layer of one entry on its way, or the entry's head. The layers of an entry with
 * groups are those of its sections, one behind the other; an opaque group comes with the layer
 * before it, or with the first one. Entries in memory have no
 * reads: a part is one layer of a group of them, and is run by a thread of the queue or by the
 * owner while it waits, whoever comes first. The entry's place is held as a reader from begin to
 * end, so that what was found is what is read, wherever the entry moves meanwhile. The head of a
 * record is parsed and checked once; every segment is verified as it is decoded.
 *
 *     field                                     guarded by
 *     entries' status, cells' states, parts,    load->lock
 *     pokes, pending, issued, released
 *     entries' heads                            begin, or the task of the cell that reads it
 *     complete                                  written under the lock, read by anybody
 *     a cell's transfer and buffer              the thread that runs its task, once it has landed
 *     busy                                      atomic: threads inside, beside the caller
 *
 * Lock order: load->lock before the queue's. No store lock is taken under load->lock.
 */
#include "store/load_internal.h"

#include "base/clock.h"
#include "codecs/codecs.h"
#include "codecs/record_groups.h"
#include "codecs/view_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_START_GROUP 64u             /* reads that are started together */
#define LOAD_PAUSE_NS    UINT64_C(20000) /* between two looks at threads that are leaving */

/* ---- cells ---- */

/* The cell of an entry that a layer uses. */
static load_cell *load_cell_of(kvt_load *load, size_t entry, uint32_t layer)
{
    assert(entry < load->count && load->slots > 0);
    return &load->cells[load->entries[entry].cells_at + layer % load->slots];
}

/* The last word on a cell's reads, on any thread: a thread of the queue goes on with it. */
static void load_landed(void *context)
{
    load_cell *cell = context;
    queue_post(cell->load->queue, &cell->task);
}

/* An entry fails: what is in flight of it ends, and counts for nothing. Lock held. */
static void load_fail(load_entry *entry, kvt_status status)
{
    assert(status != KVT_OK);
    if (entry->status == KVT_QUEUED) entry->status = status;
}

/* ---- sections ---- */

/* The section that has a layer of an entry. */
static const load_section *load_section_of(const load_entry *entry, uint32_t layer)
{
    const load_section *section = entry->sections;
    while (layer - section->first_layer >= section->layout.layers)
        section++;
    assert(section < entry->sections + entry->section_count);
    return section;
}

/* Opaque sections that come with a layer, neighbours in the record. */
typedef struct load_extra {
    const load_section *first;
    const load_section *end;
} load_extra;

/* The opaque sections before the first layer of an entry, and those behind the last layer of a
 * section. Returns how many runs of them there are. */
static uint32_t load_extras(const load_entry *entry, const load_section *section, uint32_t layer,
                            load_extra *extras)
{
    const load_section *last = entry->sections + entry->section_count, *next = section + 1;
    uint32_t count = 0;
    if (layer == 0 && section != entry->sections)
        extras[count++] = (load_extra){entry->sections, section};
    if (layer - section->first_layer != section->layout.layers - 1u) return count;
    while (next != last && next->layout.layers == 0)
        next++;
    if (next != section + 1) extras[count++] = (load_extra){section + 1, next};
    return count;
}

/* Bytes of a run in the record. */
static uint64_t load_extra_bytes(const load_extra *extra)
{
    const load_section *last = extra->end - 1;
    assert(extra->first < extra->end);
    return last->offset + last->bytes - extra->first->offset;
}

kvt_status load_open_table(load_entry *entry, const void *head, uint64_t bytes)
{
    record_groups groups;
    load_section *sections = entry->sections;
    if (!entry->grouped) {
        sections->bytes = entry->record_bytes;
        sections->head_bytes = codecs_head_bytes(&sections->layout, entry->variant);
        bool fits = sections->head_bytes != 0 && sections->head_bytes <= entry->record_bytes;
        return fits ? KVT_OK : KVT_E_CORRUPT;
    }
    kvt_status status = record_groups_open(head, bytes, &groups);
    if (status != KVT_OK) return status;
    if (groups.generation != entry->expected.generation ||
        memcmp(&groups.key, &entry->expected.key, sizeof groups.key) != 0)
        return KVT_E_MISMATCH;
    if (groups.count != entry->section_count || groups.record_bytes > entry->record_bytes)
        return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < groups.count; i++) {
        if ((groups.groups[i].layout.dtype == KVT_DTYPE_OPAQUE) != (sections[i].layout.layers == 0))
            return KVT_E_CORRUPT;
        sections[i].offset = groups.groups[i].offset;
        sections[i].bytes = groups.groups[i].bytes;
        sections[i].head_bytes = record_groups_head_bytes(&groups, i);
    }
    return KVT_OK;
}

#define LOAD_HEAD_ROOM 1024u /* words, of heads that are opened without a second try */

kvt_status load_open_head(const load_entry *entry, load_section *section, const void *head,
                          uint64_t bytes, bool whole)
{
    uint64_t room[LOAD_HEAD_ROOM], needed;
    assert(section->head == NULL);
    kvt_status status =
        kvt_record_head_open(head, bytes, whole, &entry->expected, room, sizeof room, &needed);
    if (status != KVT_OK && status != KVT_E_SPACE) return status;
    section->head = malloc(needed);
    if (section->head == NULL) return KVT_E_MEMORY;
    if (status == KVT_E_SPACE)
        return kvt_record_head_open(head, bytes, whole, &entry->expected, section->head, needed,
                                    &needed);
    memcpy(section->head, room, needed);
    return KVT_OK;
}

/* ---- announcements ---- */

/* Moves `complete` on over the layers that nothing is missing of. Lock held. True when it moved. */
static bool load_advance(kvt_load *load)
{
    if (load->ending) return false; /* what is given up is not complete */
    uint32_t before = atomic_load(&load->complete), now = before;
    while (now < load->issued && load->pending[now % load->slots] == 0)
        now++;
    /* When all entries have failed, no layer is to come: waiters are not kept. */
    bool any = false;
    for (size_t i = 0; i < load->count && !any; i++)
        any = load->entries[i].status == KVT_QUEUED;
    if (!any && load->flying == 0) now = load->layers; /* nothing is left to come */
    assert(now >= before && now <= load->layers);
    if (now == before) return false;
    for (size_t i = 0; now == load->layers && i < load->count; i++)
        if (load->entries[i].status == KVT_QUEUED) load->entries[i].status = KVT_OK;
    atomic_store(&load->complete, now);
    pthread_cond_broadcast(&load->changed);
    return true;
}

/* Calls the announcer with ever larger numbers. No lock held but its own. */
static void load_announce(kvt_load *load)
{
    if (load->options.announced == NULL) return;
    pthread_mutex_lock(&load->announce_lock);
    uint32_t now = atomic_load(&load->complete);
    if (now > load->announced) {
        load->announced = now;
        load->options.announced(load->options.announced_context, now);
    }
    pthread_mutex_unlock(&load->announce_lock);
}

/* ---- issue ---- */

/* Reads that are about to be started. */
typedef struct load_starts {
    store_transfer *transfers[LOAD_START_GROUP];
    uint32_t count;
} load_starts;

/* Starts the reads that were collected. The load's lock may be held: a read that lands at once only
 * posts a task, and the queue's lock comes after the load's. */
static void load_start(load_starts *starts)
{
    transfer_start_all(starts->transfers, starts->count);
    starts->count = 0;
}

/* Makes a cell fly with ranges of the entry's record; at_once: past the bound of staging. KVT_OK;
 * KVT_BUSY: no staging now; KVT_E_MEMORY; KVT_E_CORRUPT: a range that the record does not have.
 * Lock held. */
static kvt_status load_fly(kvt_load *load, load_cell *cell, const kvt_record_range *ranges,
                           uint32_t count, load_starts *starts, bool at_once)
{
    const load_entry *entry = &load->entries[cell->entry];
    staging_buffer buffer = {0};
    uint64_t bytes = 0;
    assert(cell->state == LOAD_IDLE && cell->flight == NULL && entry->place != NULL && count > 0);
    for (uint32_t i = 0; i < count; i++) {
        assert(ranges[i].at == bytes);
        bytes += ranges[i].bytes;
        if (ranges[i].offset > entry->record_bytes ||
            ranges[i].bytes > entry->record_bytes - ranges[i].offset)
            return KVT_E_CORRUPT;
    }
    store_staging *staging = load->store->staging;
    kvt_status status = at_once ? staging_acquire_now(staging, bytes, &buffer)
                                : staging_acquire(staging, bytes, 0, &buffer);
    if (status != KVT_OK) return status == KVT_E_TIMEOUT ? KVT_BUSY : status;
    const store_place *place = entry->place;
    cell->flight =
        transfer_prepare_ranges(load->store->staging, load->store->pools[place->tier],
                                place->location, ranges, count, &buffer, load_landed, cell);
    if (cell->flight == NULL) {
        staging_release(load->store->staging, &buffer);
        return KVT_E_MEMORY;
    }
    cell->state = LOAD_FLYING;
    load->flying++;
    load->bytes_read += bytes;
    if (starts->count == LOAD_START_GROUP) load_start(starts);
    starts->transfers[starts->count++] = cell->flight;
    return KVT_OK;
}

/* Makes a cell fly for the first bytes of its entry's record. Lock held. */
static kvt_status load_fly_head(kvt_load *load, load_cell *cell, load_starts *starts)
{
    const load_entry *entry = &load->entries[cell->entry];
    const kvt_record_range range = {.bytes = entry->grouped ? RECORD_GROUPS_HEAD_BYTES
                                                            : entry->sections->head_bytes};
    cell->layer = LOAD_HEAD;
    return load_fly(load, cell, &range, 1, starts, true);
}

/* Makes a cell fly for the heads of all groups of its entry. Lock held. */
static kvt_status load_fly_heads(kvt_load *load, load_cell *cell, load_starts *starts)
{
    const load_entry *entry = &load->entries[cell->entry];
    kvt_record_range ranges[KVT_GROUPS_MAX];
    uint32_t count = 0;
    uint64_t at = 0;
    cell->layer = LOAD_HEADS;
    for (uint32_t i = 0; i < entry->section_count; i++) {
        const load_section *section = &entry->sections[i];
        if (section->head_bytes == 0) continue;
        ranges[count++] = (kvt_record_range){section->offset, section->head_bytes, at};
        at += section->head_bytes;
    }
    return load_fly(load, cell, ranges, count, starts, true);
}

/* Makes a cell fly for a layer. Lock held. */
static kvt_status load_fly_layer(kvt_load *load, load_cell *cell, uint32_t layer,
                                 load_starts *starts)
{
    const load_entry *entry = &load->entries[cell->entry];
    const load_section *section = load_section_of(entry, layer);
    kvt_record_range ranges[LOAD_RANGES_MAX];
    load_extra extras[2];
    uint64_t at = 0;
    assert(section->head != NULL);
    cell->layer = layer;
    kvt_status status =
        kvt_record_head_ranges(section->head, layer - section->first_layer, cell->ranges,
                               KVT_RECORD_RANGES_MAX, &cell->range_count);
    if (status != KVT_OK) return status;
    uint32_t count = cell->range_count;
    for (uint32_t i = 0; i < count; i++) {
        ranges[i] = cell->ranges[i];
        ranges[i].offset += section->offset;
        at += ranges[i].bytes;
    }
    const uint32_t extra_count = load_extras(entry, section, layer, extras);
    for (uint32_t i = 0; i < extra_count; i++) {
        const uint64_t bytes = load_extra_bytes(&extras[i]);
        ranges[count++] = (kvt_record_range){extras[i].first->offset, bytes, at};
        at += bytes;
    }
    return load_fly(load, cell, ranges, count, starts, false);
}

/* Makes one layer of a group ready. Lock held. */
static void load_issue_group(kvt_load *load, size_t index, uint32_t layer)
{
    load_group *group = &load->groups[index];
    load_part *part = &load->parts[index * load->slots + layer % load->slots];
    if (group->issued > layer) return;
    *part = (load_part){.group = group, .layer = layer};
    if (load->ready == NULL)
        load->ready = part;
    else
        load->last_ready->next = part;
    load->last_ready = part;
    load->ready_count++;
    group->issued = layer + 1;
    load->pending[layer % load->slots]++;
    load->flying++;
}

/* Calls a thread for each part that is ready, as far as there are threads. Lock held. */
static void load_call_threads(kvt_load *load)
{
    for (uint32_t i = 0; i < LOAD_POKES && i < load->queue->thread_count; i++) {
        load_poke *poke = &load->pokes[i];
        if (load->poked >= load->ready_count) break;
        if (poke->posted) continue;
        poke->posted = true;
        load->poked++;
        queue_post(load->queue, &poke->task);
    }
}

/* Issues one layer of one entry. KVT_OK: it is on its way, or the entry has failed. KVT_BUSY: there
 * was no staging. Lock held. */
static kvt_status load_issue_cell(kvt_load *load, size_t index, uint32_t layer, load_starts *starts)
{
    load_entry *entry = &load->entries[index];
    /* An earlier call has issued the cell, and found no staging for another entry of the layer. */
    if (entry->status != KVT_QUEUED || load_is_near(entry) || entry->issued > layer) return KVT_OK;
    load_cell *cell = load_cell_of(load, index, layer);
    kvt_status status = load_fly_layer(load, cell, layer, starts);
    if (status == KVT_BUSY) return KVT_BUSY;
    entry->issued = layer + 1;
    if (status == KVT_OK)
        load->pending[layer % load->slots]++;
    else
        load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    return KVT_OK;
}

/* Issues what the window allows. Lock held. */
void load_pump(kvt_load *load)
{
    load_starts starts = {.count = 0};
    load->starved = false;
    while (!load->ending && load->heads == 0 && load->issued < load->layers && !load->starved) {
        uint32_t layer = load->issued;
        if (layer > load->released + load->options.layers_ahead) break;
        /* The cells of this layer are those of a layer that has not come. */
        if (layer >= atomic_load(&load->complete) + load->slots) break;
        if (load->reads && base_clock_ns() >= load->options.deadline_ns) break;
        for (size_t i = 0; i < load->group_count; i++)
            load_issue_group(load, i, layer);
        for (size_t i = 0; load->cell_count != 0 && i < load->count && !load->starved; i++)
            load->starved = load_issue_cell(load, i, layer, &starts) == KVT_BUSY;
        if (load->starved) break;
        load->issued = layer + 1;
        (void)load_advance(load); /* entries that failed leave nothing pending */
    }
    assert(load->issued <= load->layers && load->released <= load->layers);
    assert(load->issued <= atomic_load(&load->complete) + load->slots);
    load_start(&starts);
    load_call_threads(load);
    if (load->starved) queue_note_starved(load->queue);
}

/* ---- tasks ---- */

/* Decodes a whole opaque section, whose record is here. */
static kvt_status load_decode_opaque(const load_entry *entry, const load_section *section,
                                     const uint8_t *record, const staging_buffer *scratch)
{
    return kvt_record_decode_view(record, section->bytes, &entry->expected, NULL, &section->layout,
                                  section->view, 0, 0, scratch->memory, scratch->bytes);
}

/* Decodes one layer of an entry into its view, and what comes with it. `cell` has the ranges that
 * lie in `payload`; NULL: payload is the record. No lock held. */
static kvt_status load_decode(const kvt_load *load, const load_entry *entry, uint32_t layer,
                              const load_cell *cell, const uint8_t *payload)
{
    const load_section *section = load_section_of(entry, layer);
    staging_buffer scratch = {0};
    load_extra extras[2];
    uint64_t at = 0; /* of the next bytes behind the layer's, in a cell */
    kvt_status status = KVT_OK;
    if (entry->scratch_bytes != 0)
        status = staging_acquire_now(load->store->staging, entry->scratch_bytes, &scratch);
    if (status != KVT_OK) return status;
    status = kvt_record_head_decode(
        section->head, &section->layout, section->view, layer - section->first_layer,
        cell != NULL ? payload : payload + section->offset, cell != NULL ? cell->ranges : NULL,
        cell != NULL ? cell->range_count : 0, scratch.memory, scratch.bytes);
    for (uint32_t i = 0; cell != NULL && i < cell->range_count; i++)
        at += cell->ranges[i].bytes;
    const uint32_t extra_count = load_extras(entry, section, layer, extras);
    for (uint32_t i = 0; i < extra_count; i++) {
        const uint64_t start = extras[i].first->offset;
        for (const load_section *one = extras[i].first; one != extras[i].end; one++) {
            const uint64_t from = cell != NULL ? at + (one->offset - start) : one->offset;
            if (status == KVT_OK) status = load_decode_opaque(entry, one, payload + from, &scratch);
        }
        at += load_extra_bytes(&extras[i]);
    }
    if (scratch.memory != NULL) staging_release(load->store->staging, &scratch);
    return status;
}

/* Copies one layer of bytes that a put has handed over, and what comes with it. */
static void load_copy_staged(const load_entry *entry, uint32_t layer)
{
    const load_section *section = load_section_of(entry, layer);
    const uint8_t *bytes = entry->staged->buffer.memory;
    const uint32_t own = layer - section->first_layer;
    load_extra extras[2];
    for (uint32_t side = 0; side < kvt_layout_sides(&section->layout); side++) {
        view_rows rows = view_rows_of(section->view, &section->layout, section->layout.tokens, own,
                                      (kvt_side)side);
        uint64_t at = kvt_layout_matrix_offset(&section->layout, own, (kvt_side)side);
        view_rows_scatter(&rows, 0, rows.bytes, bytes + section->packed_at + at);
        view_rows_close(&rows);
    }
    const uint32_t extra_count = load_extras(entry, section, layer, extras);
    for (uint32_t i = 0; i < extra_count; i++)
        for (const load_section *one = extras[i].first; one != extras[i].end; one++)
            view_scatter_entry(one->view, &one->layout, 0, 0, bytes + one->packed_at);
}

/* Looks at the heads of an entry's groups, which lie one behind the other. */
static kvt_status load_use_heads(const load_entry *entry, const uint8_t *heads)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        load_section *section = &entry->sections[i];
        if (section->head_bytes != 0)
            status = load_open_head(entry, section, heads, section->head_bytes, false);
        heads += section->head_bytes;
    }
    return status;
}

/* What a cell's reads brought: its layer is decoded, or its head looked at. No lock held. */
static kvt_status load_use(const kvt_load *load, load_entry *entry, load_cell *cell,
                           const staging_buffer *buffer)
{
    if (cell->layer == LOAD_HEADS) return load_use_heads(entry, buffer->memory);
    if (cell->layer != LOAD_HEAD)
        return load_decode(load, entry, cell->layer, cell, buffer->memory);
    if (entry->grouped) return load_open_table(entry, buffer->memory, RECORD_GROUPS_HEAD_BYTES);
    return load_open_head(entry, entry->sections, buffer->memory, entry->sections->head_bytes,
                          false);
}

/* Whether a cell is there for a head or heads. */
static bool load_is_head(const load_cell *cell)
{
    return cell->layer == LOAD_HEAD || cell->layer == LOAD_HEADS;
}

/* Whether the counts include a cell that is not idle. It is for asserts alone. Lock held. */
static inline bool load_counts_cell(const kvt_load *load, const load_cell *cell)
{
    if (load_is_head(cell)) return load->heads > 0;
    return load->pending[cell->layer % load->slots] > 0;
}

/* Ends the work of a cell. A head with a table of groups flies on for the heads of these, before
 * the deadline. Lock held. */
static void load_end_cell(kvt_load *load, load_cell *cell)
{
    load_entry *entry = &load->entries[cell->entry];
    bool on = cell->layer == LOAD_HEAD && entry->grouped && entry->status == KVT_QUEUED &&
              !load->ending && base_clock_ns() < load->options.deadline_ns;
    assert(load->flying > 0 && load_counts_cell(load, cell));
    cell->state = LOAD_IDLE;
    if (on) {
        load_starts starts = {.count = 0};
        kvt_status status = load_fly_heads(load, cell, &starts);
        load_start(&starts);
        on = status == KVT_OK;
        if (!on) load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    }
    if (load_is_head(cell))
        load->heads -= !on;
    else
        load->pending[cell->layer % load->slots]--;
    load->flying--;
}

/* A cell that has landed: its task, on a thread of the queue. */
void load_run(void *context)
{
    load_cell *cell = context;
    kvt_load *load = cell->load;
    load_entry *entry = &load->entries[cell->entry];
    staging_buffer buffer = {0};
    transfer_report report;
    kvt_status status = KVT_OK;
    atomic_fetch_add(&load->busy, 1);
    pthread_mutex_lock(&load->lock);
    bool live = entry->status == KVT_QUEUED && !load->ending;
    assert(cell->state == LOAD_FLYING);
    cell->state = LOAD_RUNNING; /* nobody gives it up any more */
    pthread_mutex_unlock(&load->lock);
    /* No lock: the cell is this thread's while it runs. */
    if (cell->flight != NULL) status = transfer_take(cell->flight, &buffer, &report);
    cell->flight = NULL;
    if (live && status == KVT_OK) status = load_use(load, entry, cell, &buffer);
    staging_release(load->store->staging, &buffer);
    pthread_mutex_lock(&load->lock);
    if (status != KVT_OK)
        load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    else if (!live)
        load_fail(entry, KVT_E_TIMEOUT);
    load_end_cell(load, cell);
    bool moved = load_advance(load);
    load_pump(load);
    if (load->ending) pthread_cond_broadcast(&load->changed); /* load_stop counts what flies */
    pthread_mutex_unlock(&load->lock);
    if (moved || load->options.announced != NULL) load_announce(load);
    atomic_fetch_sub(&load->busy, 1);
}

/* Carries one layer of a group out, but for the entries of which `skipped` says so. Returns those
 * that failed, and how the first of them did. No lock held. */
static uint64_t load_run_group(const kvt_load *load, const load_part *part, uint64_t skipped,
                               kvt_status *status_out)
{
    const load_group *group = part->group;
    uint64_t failed = 0;
    for (size_t i = group->first; i < group->end; i++) {
        const load_entry *entry = &load->entries[i];
        kvt_status status = KVT_OK;
        if ((skipped >> (i - group->first) & 1) != 0) continue;
        if (entry->staged != NULL)
            load_copy_staged(entry, part->layer);
        else
            status = load_decode(load, entry, part->layer, NULL, entry->record);
        if (status != KVT_OK && failed == 0) *status_out = status;
        if (status != KVT_OK) failed |= UINT64_C(1) << (i - group->first);
    }
    return failed;
}

/* Ends a part: the entries that failed, and those that the end of the load has overtaken. Lock
 * held. */
static void load_end_part(kvt_load *load, const load_part *part, uint64_t skipped, uint64_t failed,
                          kvt_status status)
{
    const load_group *group = part->group;
    for (size_t i = group->first; (failed | skipped) != 0 && i < group->end; i++) {
        load_entry *entry = &load->entries[i];
        if ((failed >> (i - group->first) & 1) != 0)
            load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
        else if ((skipped >> (i - group->first) & 1) != 0 && load_is_near(entry))
            load_fail(entry, KVT_E_TIMEOUT);
    }
    assert(load->flying > 0 && load->pending[part->layer % load->slots] > 0);
    load->pending[part->layer % load->slots]--;
    load->flying--;
}

bool load_step(kvt_load *load)
{
    load_part *part = load->ready;
    if (part == NULL) return false;
    const load_group *group = part->group;
    uint64_t skipped = 0;
    load->ready = part->next;
    load->ready_count--;
    assert(group->end - group->first <= LOAD_GROUP_ENTRIES && LOAD_GROUP_ENTRIES <= 64);
    for (size_t i = group->first; i < group->end; i++) {
        const load_entry *entry = &load->entries[i];
        bool live = entry->status == KVT_QUEUED && load_is_near(entry) && !load->ending;
        skipped |= (uint64_t)!live << (i - group->first);
    }
    atomic_fetch_add(&load->busy, 1);
    pthread_mutex_unlock(&load->lock);
    kvt_status status = KVT_OK;
    uint64_t failed = load_run_group(load, part, skipped, &status);
    pthread_mutex_lock(&load->lock);
    load_end_part(load, part, skipped, failed, status);
    bool moved = load_advance(load);
    load_pump(load);
    if (load->ending) pthread_cond_broadcast(&load->changed); /* load_stop counts what flies */
    if (moved && load->options.announced != NULL) {
        pthread_mutex_unlock(&load->lock);
        load_announce(load);
        pthread_mutex_lock(&load->lock);
    }
    atomic_fetch_sub(&load->busy, 1);
    return true;
}

void load_poked(void *context)
{
    load_poke *poke = context;
    kvt_load *load = poke->load;
    atomic_fetch_add(&load->busy, 1);
    pthread_mutex_lock(&load->lock);
    assert(poke->posted && load->poked > 0);
    while (load_step(load))
        continue;
    poke->posted = false;
    load->poked--;
    if (load->ending) pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    atomic_fetch_sub(&load->busy, 1);
}

void load_tick(kvt_load *load)
{
    assert(atomic_load(&load->busy) > 0);
    pthread_mutex_lock(&load->lock);
    load_pump(load);
    pthread_mutex_unlock(&load->lock);
    atomic_fetch_sub(&load->busy, 1);
}

void load_begin_reads(kvt_load *load)
{
    load_starts starts = {.count = 0};
    assert(load->heads == 0 && load->flying == 0 && load->issued == 0);
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        if (entry->status != KVT_QUEUED || load_is_near(entry)) continue;
        load->reads = true;
        if (base_clock_ns() >= load->options.deadline_ns) continue; /* nothing is issued, either */
        kvt_status status = load_fly_head(load, load_cell_of(load, i, 0), &starts);
        if (status == KVT_OK)
            load->heads++;
        else
            load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    }
    load_start(&starts);
    load_pump(load);
}

/* ---- the end ---- */

/* Gives up the cells that fly and of which `stuck` says so, or all. Lock held. */
static void load_give_up(kvt_load *load, bool stuck_alone)
{
    for (size_t i = 0; i < load->cell_count; i++) {
        load_cell *cell = &load->cells[i];
        if (cell->state != LOAD_FLYING || cell->flight == NULL) continue;
        if (stuck_alone && !transfer_is_stuck(cell->flight)) continue;
        if (!transfer_give_up(cell->flight)) continue; /* its task comes */
        assert(load->flying > 0 && load_counts_cell(load, cell));
        cell->flight = NULL;
        cell->state = LOAD_IDLE;
        load->flying--;
        if (load_is_head(cell))
            load->heads--;
        else
            load->pending[cell->layer % load->slots]--;
        load_fail(&load->entries[cell->entry], stuck_alone ? KVT_MISS : KVT_E_TIMEOUT);
    }
}

void load_check_devices(kvt_load *load)
{
    pthread_mutex_lock(&load->lock);
    load_give_up(load, true);
    (void)load_advance(load);
    load_pump(load);
    pthread_mutex_unlock(&load->lock);
    load_announce(load);
}

void load_stop(kvt_load *load)
{
    pthread_mutex_lock(&load->lock);
    assert(load->ending);
    load_give_up(load, false);
    while (load->flying != 0 || load->poked != 0)
        pthread_cond_wait(&load->changed, &load->lock);
    assert(load->heads == 0);
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    /* A thread that has ended its cell may be announcing still, and the caller frees the load. */
    while (atomic_load(&load->busy) != 0)
        base_sleep(LOAD_PAUSE_NS);
}
