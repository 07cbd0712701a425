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
 * before it, or with the first one. Layers that are coded together come with the first of them,
 * which is read and decoded once for all: the others are complete when it is. Entries in memory
 * have no reads: a part is one layer of a group of them, and is run by a thread of the queue or by
 * the owner while it waits, whoever comes first. The entry's place is held as a reader from begin
 * to end, so that what was found is what is read, wherever the entry moves meanwhile. The head of a
 * record is parsed and checked once; every segment is verified as it is decoded.
 *
 *     field                                     guarded by
 *     entries' status                           written under the lock, read by anybody
 *     cells' states, parts, pokes, pending,     load->lock
 *     issued, released
 *     entries' heads                            begin, or the task of the cell that reads it
 *     complete                                  written under the lock, read by anybody
 *     a cell's transfer and buffer              the thread that runs its task, once it has landed
 *     busy                                      atomic: threads inside, beside the caller
 *
 * Lock order: load->lock before the queue's. No store lock is taken under load->lock.
 */
#include "store/read/load_internal.h"

#include "base/clock.h"
#include "codecs/record_groups.h"

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

/* On any thread: a thread of the queue goes on. */
void load_landed(void *context)
{
    load_cell *cell = context;
    queue_post(cell->load->queue, &cell->task);
}

/* An entry fails: its reads in flight end, and count for nothing. Lock held. */
static void load_fail(load_entry *entry, kvt_status status)
{
    const kvt_load *load = entry->load;
    assert(status != KVT_OK);
    if (entry->status != KVT_QUEUED) return;
    entry->status = status;
    /* A failure behind the coarse form leaves that. */
    if (atomic_load(&load->complete) < load->plain || !load_has_coarse(entry)) return;
    entry->coarse->fault = status;
    entry->status = KVT_COARSE;
}

/* ---- the pass ---- */

/* Tells the pass what its load will read, and from where. The entries are checked. */
static void load_join_pass(kvt_load *load)
{
    kvt_store *store = load->store;
    if (load->options.pass == 0) return;
    for (size_t i = 0; i < load->count; i++) {
        const load_entry *entry = &load->entries[i];
        if (entry->status != KVT_QUEUED || load_is_near(entry)) continue;
        tiers_pool *pool = store->pools[entry->place->tier];
        uint64_t *need = &load->needs[entry->place->tier];
        if (*need == 0)
            *need = pass_join(&store->passes, load->options.pass, pool, 0, load->plain,
                              load->options.layers_ahead);
        if (*need == 0) return;
        tiers_need_add(pool, *need, entry->place->location, entry->record_bytes);
    }
}

/* Tells the pass how far its load is. Lock held. */
static void load_note_pass(const kvt_load *load)
{
    const uint32_t complete = atomic_load(&load->complete);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        if (load->needs[tier] != 0)
            pass_note(&load->store->passes, load->options.pass, load->needs[tier],
                      complete < load->plain ? complete : load->plain,
                      load->issued < load->plain ? load->issued : load->plain);
}

/* The load reads no more. */
static void load_leave_pass(kvt_load *load)
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        if (load->needs[tier] == 0) continue;
        pass_leave(&load->store->passes, load->options.pass, load->needs[tier],
                   load->store->pools[tier]);
        load->needs[tier] = 0;
    }
}

/* ---- announcements ---- */

/* Makes the events of layers that are about to be announced. Without one no stream can wait for its
 * layer: all entries fail. Lock held. */
static void load_mark_layers(kvt_load *load, uint32_t layers)
{
    const kvt_status status = store_gpu_load_mark(load, layers);
    for (size_t i = 0; status != KVT_OK && i < load->count; i++)
        load_fail(&load->entries[i], status == KVT_E_MEMORY ? status : KVT_MISS);
}

/* So many steps are complete: makes the events of them, and ends the entries that have no further
 * one. Lock held. */
static void load_settle(kvt_load *load, uint32_t steps)
{
    if (load->gpu != NULL) load_mark_layers(load, steps);
    for (size_t i = 0; steps >= load->plain && i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        const bool whole = steps == load->layers || !load_has_coarse(entry);
        if (whole && entry->status == KVT_QUEUED) entry->status = KVT_OK;
    }
}

/* Moves `complete` on over steps that are complete. Lock held. True when it moved. */
static bool load_advance(kvt_load *load)
{
    if (load->ending || load->asks || load->empty) return false; /* given up is not complete */
    uint32_t before = atomic_load(&load->complete), now = before;
    while (now < load->issued && load->pending[now % load->slots] == 0)
        now++;
    if (now != before) load_settle(load, now);
    /* When all entries have failed, or have come, no further step will: waiters are told. */
    bool any = false;
    for (size_t i = 0; i < load->count && !any; i++)
        any = load->entries[i].status == KVT_QUEUED;
    if (!any && load->flying == 0 && now != load->layers) load_settle(load, now = load->layers);
    assert(now >= before && now <= load->layers);
    if (now == before) return false;
    atomic_store(&load->complete, now);
    load_note_pass(load);
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
    load_cell *cells[LOAD_START_GROUP];
    uint32_t count;
} load_starts;

/* Starts the reads that were collected. Lock held: a read that lands at once only posts a task, and
 * the queue's lock comes after the load's; the task waits for the lock. */
static void load_start(const kvt_load *load, load_starts *starts)
{
    if (starts->count == 0) return;
    store_transfer *transfers[LOAD_START_GROUP];
    for (uint32_t i = 0; i < starts->count; i++)
        transfers[i] = starts->cells[i]->read->flight;
    transfer_start_all(transfers, starts->count);
    pthread_mutex_lock(&load->store->reads_lock);
    for (uint32_t i = 0; i < starts->count; i++)
        starts->cells[i]->read->started = true;
    pthread_mutex_unlock(&load->store->reads_lock);
    starts->count = 0;
}

/* Prepares the read of ranges of an entry's record, in staging that is taken over. NULL without
 * memory. */
static store_read *load_make_read(kvt_load *load, load_cell *cell, const kvt_record_range *ranges,
                                  uint32_t count, staging_buffer *buffer)
{
    const load_entry *entry = &load->entries[cell->entry];
    const store_place *place = entry->place;
    store_read *read = read_make(cell->layer);
    if (read == NULL) return NULL;
    read->loader = entry;
    read->flight =
        transfer_prepare_ranges(load->store->staging, load->store->pools[place->tier],
                                place->location, ranges, count, buffer, load_landed, cell);
    if (read->flight != NULL) return read;
    read_drop(load->store, read);
    return NULL;
}

/* Makes a cell fly with ranges of the entry's record, or wait for a read that brings them; at_once:
 * past the bound of staging. KVT_OK; KVT_BUSY: no staging now; KVT_E_MEMORY; KVT_E_CORRUPT: a range
 * that the record does not have. Lock held. */
static kvt_status load_fly(kvt_load *load, load_cell *cell, const kvt_record_range *ranges,
                           uint32_t count, load_starts *starts, bool at_once)
{
    const load_entry *entry = &load->entries[cell->entry];
    staging_buffer buffer = {0};
    uint64_t bytes = 0;
    assert(cell->state == LOAD_IDLE && cell->read == NULL && entry->place != NULL && count > 0);
    for (uint32_t i = 0; i < count; i++) {
        assert(ranges[i].at == bytes);
        bytes += ranges[i].bytes;
        if (ranges[i].offset > entry->record_bytes ||
            ranges[i].bytes > entry->record_bytes - ranges[i].offset)
            return KVT_E_CORRUPT;
    }
    cell->bytes = bytes;
    /* Reads of a form are nobody else's. */
    const bool alone = cell->layer < READ_WHOLE && load_has_coarse(entry);
    if (!alone && load_share_join(cell)) {
        cell->state = LOAD_FLYING;
        load->flying++;
        return KVT_OK;
    }
    store_staging *staging = load->store->staging;
    kvt_status status = at_once ? staging_acquire_now(staging, bytes + cell->room, &buffer)
                                : staging_acquire(staging, bytes + cell->room, 0, &buffer);
    if (status != KVT_OK) return status == KVT_E_TIMEOUT ? KVT_BUSY : status;
    store_read *read = load_make_read(load, cell, ranges, count, &buffer);
    if (read == NULL) {
        staging_release(staging, &buffer);
        return KVT_E_MEMORY;
    }
    cell->read = read;
    cell->state = LOAD_FLYING;
    load->flying++;
    load->bytes_read += bytes;
    if (!alone) load_share_fly(cell);
    if (starts->count == LOAD_START_GROUP) load_start(load, starts);
    starts->cells[starts->count++] = cell;
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

/* Makes a cell fly for a step. Lock held. */
static kvt_status load_fly_layer(kvt_load *load, load_cell *cell, uint32_t step,
                                 load_starts *starts, bool at_once)
{
    const load_entry *entry = &load->entries[cell->entry];
    const load_form form = load_form_of(load, entry, step);
    kvt_record_range ranges[LOAD_RANGES_MAX];
    uint32_t count;
    cell->layer = step;
    kvt_status status =
        load_find_ranges(entry, load_layer_of(load, step), form, &cell->own, ranges, &count);
    if (status != KVT_OK) return status;
    if (form == LOAD_REST)
        for (uint32_t i = count; i < cell->own.count; i++)
            cell->room += cell->own.ranges[i].bytes;
    status = load_fly(load, cell, ranges, count, starts, at_once);
    cell->room = 0;
    return status;
}

/* Makes a cell fly once more for the bytes that it wants. Lock held. */
static kvt_status load_fly_again(kvt_load *load, load_cell *cell)
{
    load_starts starts = {.count = 0};
    kvt_status status;
    if (cell->layer == LOAD_HEAD)
        status = load_fly_head(load, cell, &starts);
    else if (cell->layer == LOAD_HEADS)
        status = load_fly_heads(load, cell, &starts);
    else
        status = load_fly_layer(load, cell, cell->layer, &starts, true);
    load_start(load, &starts);
    return status;
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

/* Issues one step of one entry. KVT_OK: it is on its way, or the entry has failed. KVT_BUSY: there
 * was no staging. Lock held. */
static kvt_status load_issue_cell(kvt_load *load, size_t index, uint32_t layer, load_starts *starts)
{
    load_entry *entry = &load->entries[index];
    /* An earlier call has issued the cell, and found no staging for another entry of the layer. */
    if (entry->status != KVT_QUEUED || load_is_near(entry) || entry->issued > layer) return KVT_OK;
    if (store_coarse_lacks(load, entry, layer)) {
        entry->issued = layer + 1;
        return KVT_OK;
    }
    const uint8_t state = atomic_load(&entry->layers[layer]);
    kvt_status status = KVT_OK;
    assert(state != LOAD_ASKS);
    if (state == LOAD_LACKS)
        status = load_fly_layer(load, load_cell_of(load, index, layer), layer, starts, false);
    if (status == KVT_BUSY) return KVT_BUSY;
    entry->issued = layer + 1;
    if (status != KVT_OK) load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    if (status != KVT_OK || state == LOAD_HAS) return KVT_OK;
    if (state == LOAD_LACKS) atomic_store(&entry->layers[layer], LOAD_ASKS);
    load->pending[layer % load->slots]++;
    return KVT_OK;
}

/* Issues the cells that the window allows. Lock held. */
void load_pump(kvt_load *load)
{
    load_starts starts = {.count = 0};
    load->starved = false;
    if (load->asks || load->empty) return;
    load->starved = load->gpu != NULL && !store_gpu_load_is_ready(load);
    while (!load->ending && load->heads == 0 && load->issued < load->layers && !load->starved) {
        uint32_t layer = load->issued;
        if (layer > load->released + load->options.layers_ahead) break;
        /* The cells of this layer are those of a layer that has not come. */
        if (layer >= atomic_load(&load->complete) + load->slots) break;
        /* No layer is refined before all are there, and this one was computed with. */
        if (layer >= load->plain &&
            (atomic_load(&load->complete) < load->plain || load->released <= layer - load->plain))
            break;
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
    load_note_pass(load);
    load_start(load, &starts);
    load_call_threads(load);
    if (load->starved) queue_note_starved(load->queue);
}

/* ---- tasks ---- */

/* Brings one step of an entry into its view, and what comes with it: decodes it, or copies what a
 * put has handed over. Arguments as of load_decode. No lock held. */
static kvt_status load_bring(kvt_load *load, load_entry *entry, uint32_t step,
                             const load_ranges *own, const uint8_t *payload)
{
    const load_form form = load_form_of(load, entry, step);
    const uint32_t layer = load_layer_of(load, step);
    kvt_status status = KVT_OK;
    if (form == LOAD_NOTHING) return KVT_OK;
    /* Decoders write before they have verified: a coarse form that is in use stays sound. */
    if (form == LOAD_REST) status = store_coarse_verify(entry, layer, own, payload);
    if (status != KVT_OK) return status;
    if (load->gpu != NULL) {
        status = store_gpu_load_decode(load, entry, layer, form, own, payload);
        if (form == LOAD_REST && status != KVT_OK) { /* its pages may hold neither form */
            pthread_mutex_lock(&load->lock);
            entry->status = KVT_MISS;
            pthread_mutex_unlock(&load->lock);
        }
        return status;
    }
    if (entry->staged == NULL) return load_decode(load->store, entry, layer, form, own, payload);
    load_copy_staged(entry, layer);
    return KVT_OK;
}

/* Handles the bytes that a cell's reads have brought, ranges or the whole record: decodes its step,
 * or looks at its head. No lock held. */
static kvt_status load_use(kvt_load *load, load_entry *entry, load_cell *cell, uint8_t *payload,
                           bool whole)
{
    kvt_status status = KVT_OK;
    if (cell->layer < READ_WHOLE) {
        const load_form form = load_form_of(load, entry, cell->layer);
        const uint32_t layer = load_layer_of(load, cell->layer);
        if (form == LOAD_REST) store_coarse_join(entry, layer, &cell->own, cell->bytes, payload);
        status = load_bring(load, entry, cell->layer, whole ? NULL : &cell->own, payload);
        if (form == LOAD_COARSE && status == KVT_OK)
            store_coarse_keep(entry, layer, &cell->own, payload);
        return status;
    }
    if (cell->layer == LOAD_HEAD && entry->grouped) {
        status = load_open_table(entry, payload, RECORD_GROUPS_HEAD_BYTES);
        if (status != KVT_OK || !whole) return status;
        cell->layer = LOAD_HEADS; /* these are here, too */
    }
    status = load_use_heads(entry, payload, whole);
    if (status == KVT_OK && !whole) store_coarse_open(entry); /* else all of it is here */
    if (status == KVT_OK) load_share_opened(entry);
    return status;
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

/* Ends the work of a cell. Before the deadline it flies on: a head with a table of groups for the
 * heads of these, and what was lost with another load's read for a read of its own. Lock held. */
static void load_end_cell(kvt_load *load, load_cell *cell, bool lost)
{
    load_entry *entry = &load->entries[cell->entry];
    const bool live = entry->status == KVT_QUEUED && !load->ending;
    bool on = live && (lost || (cell->layer == LOAD_HEAD && entry->grouped)) &&
              base_clock_ns() < load->options.deadline_ns;
    assert(load->flying > 0 && load_counts_cell(load, cell));
    cell->state = LOAD_IDLE;
    cell->joins = false;
    if (on) {
        if (!lost) cell->layer = LOAD_HEADS;
        kvt_status status = load_fly_again(load, cell);
        on = status == KVT_OK;
        if (!on) load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    } else if (lost && live && !load_is_head(cell)) {
        on = true; /* the deadline has passed: the layer stays one that has not come */
    }
    if (load_is_head(cell))
        load->heads -= !on;
    else
        load->pending[cell->layer % load->slots] -= !on;
    load->flying--;
}

/* Ends the decoding of a layer that was offered. Where it failed, the entry reads the layer, in its
 * turn or now. Lock held. */
static void load_end_layer(kvt_load *load, load_entry *entry, uint32_t layer, kvt_status status)
{
    load_cell *cell = load_cell_of(load, (size_t)(entry - load->entries), layer);
    const bool asked = entry->issued > layer, failed = status != KVT_OK;
    bool done = true;
    atomic_store(&entry->layers[layer], failed ? LOAD_LACKS : LOAD_HAS);
    if (failed && asked && entry->status == KVT_QUEUED && !load->ending) {
        cell->layer = layer;
        atomic_store(&entry->layers[layer], LOAD_ASKS);
        done = false;
        if (base_clock_ns() < load->options.deadline_ns) {
            status = load_fly_again(load, cell);
            if (status != KVT_OK) load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
            done = status != KVT_OK;
        }
    }
    if (asked && done) load->pending[layer % load->slots]--;
    load->flying--;
}

/* Takes one layer of an offer, if the load still lacks it. No lock held. */
static void load_take_layer(kvt_load *load, load_entry *entry, uint32_t layer,
                            const store_read *read)
{
    kvt_record_range ranges[LOAD_RANGES_MAX];
    load_ranges own;
    uint32_t count;
    uint64_t bytes = 0;
    pthread_mutex_lock(&load->lock);
    const bool wants =
        entry->status == KVT_QUEUED && !load->ending &&
        (load->gpu == NULL || store_gpu_load_is_ready(load)) && !load_has_coarse(entry) &&
        atomic_load(&entry->layers[layer]) == LOAD_LACKS && load_together(entry, layer) != 0;
    if (wants) {
        atomic_store(&entry->layers[layer], LOAD_TAKES);
        load->flying++;
    }
    pthread_mutex_unlock(&load->lock);
    if (!wants) return;
    kvt_status status = load_find_ranges(entry, layer, LOAD_WHOLE, &own, ranges, &count);
    if (status == KVT_OK)
        status = load_bring(load, entry, layer, read->what == READ_WHOLE ? NULL : &own,
                            read->buffer.memory);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        bytes += ranges[i].bytes;
    pthread_mutex_lock(&load->lock);
    load->bytes_shared += bytes;
    load_end_layer(load, entry, layer, status);
    (void)load_advance(load);
    load_pump(load);
    if (load->ending) pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    load_announce(load);
}

/* Takes the layers that a read has brought, as far as the load lacks them. */
static void load_take_layers(kvt_load *load, load_entry *entry, const store_read *read)
{
    const bool all = read->what == READ_WHOLE;
    const uint32_t end = all ? load->plain : read->what + 1;
    for (uint32_t layer = all ? 0 : read->what; layer < end; layer++)
        load_take_layer(load, entry, layer, read);
}

void load_take_offer(void *context)
{
    load_offer *offer = context;
    kvt_load *load = offer->entry->load;
    load_take_layers(load, offer->entry, offer->read);
    read_drop(load->store, offer->read);
    free(offer);
    atomic_fetch_sub(&load->busy, 1);
}

/* A cell whose read has landed, or has ended where it is another's: its task, on a thread of the
 * queue. */
void load_run(void *context)
{
    load_cell *cell = context;
    kvt_load *load = cell->load;
    load_entry *entry = &load->entries[cell->entry];
    atomic_fetch_add(&load->busy, 1);
    pthread_mutex_lock(&load->lock);
    const bool live = entry->status == KVT_QUEUED && !load->ending;
    assert(cell->state == LOAD_FLYING);
    cell->state = LOAD_RUNNING; /* nobody gives it up any more */
    pthread_mutex_unlock(&load->lock);
    /* No lock: the cell is this thread's while it runs. */
    store_read *read = cell->read;
    const bool whole = read->what == READ_WHOLE;
    kvt_status status = cell->joins ? read->status : read_land(load->store, read);
    bool lost = cell->joins && status != KVT_OK;
    const bool shares = cell->joins && !lost;
    cell->read = NULL;
    if (live && status == KVT_OK) status = load_use(load, entry, cell, read->buffer.memory, whole);
    /* A whole record that has brought the head has brought the layers, too. */
    if (live && status == KVT_OK && whole && load_is_head(cell))
        load_take_layers(load, entry, read);
    read_drop(load->store, read);
    /* An entry fails by a read of its own alone. */
    if (shares && status != KVT_OK && status != KVT_E_MEMORY) lost = true;
    pthread_mutex_lock(&load->lock);
    if (status != KVT_OK && !lost)
        load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    else if (!live)
        load_fail(entry, KVT_E_TIMEOUT);
    if (shares && !lost) load->bytes_shared += cell->bytes;
    load_end_cell(load, cell, lost);
    bool moved = load_advance(load);
    load_pump(load);
    if (load->ending) pthread_cond_broadcast(&load->changed); /* load_stop counts flying cells */
    pthread_mutex_unlock(&load->lock);
    if (moved || load->options.announced != NULL) load_announce(load);
    atomic_fetch_sub(&load->busy, 1);
}

/* Carries one layer of a group out, without the entries that `skipped` names. Returns those that
 * failed, and how the first of them did. No lock held. */
static uint64_t load_run_group(kvt_load *load, const load_part *part, uint64_t skipped,
                               kvt_status *status_out)
{
    const load_group *group = part->group;
    uint64_t failed = 0;
    for (size_t i = group->first; i < group->end; i++) {
        load_entry *entry = &load->entries[i];
        if ((skipped >> (i - group->first) & 1) != 0) continue;
        const kvt_status status = load_bring(load, entry, part->layer, NULL, entry->record);
        if (status != KVT_OK && failed == 0) *status_out = status;
        if (status != KVT_OK) failed |= UINT64_C(1) << (i - group->first);
    }
    return failed;
}

/* Ends a part: entries that failed, and those that the end of the load has overtaken. Lock held. */
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
    if (load->ending) pthread_cond_broadcast(&load->changed); /* load_stop counts flying cells */
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
    load_ask_again(load);
    load_pump(load);
    pthread_mutex_unlock(&load->lock);
    atomic_fetch_sub(&load->busy, 1);
}

void load_begin_reads(kvt_load *load)
{
    load_starts starts = {.count = 0};
    assert(load->heads == 0 && load->flying == 0 && load->issued == 0);
    load_join_pass(load);
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        if (entry->status != KVT_QUEUED || load_is_near(entry)) continue;
        load->reads = true;
        if (base_clock_ns() >= load->options.deadline_ns) continue; /* nothing is issued, either */
        if (load_share_heads(entry)) {
            store_coarse_open(entry);
            continue;
        }
        kvt_status status = load_fly_head(load, load_cell_of(load, i, 0), &starts);
        if (status == KVT_OK)
            load->heads++;
        else
            load_fail(entry, status == KVT_E_MEMORY ? status : KVT_MISS);
    }
    load_start(load, &starts);
    load_pump(load);
}

/* ---- the end ---- */

/* Gives up the flying cells for which `stuck` holds, or all. Lock held. */
static void load_give_up(kvt_load *load, bool stuck_alone)
{
    for (size_t i = 0; i < load->cell_count; i++) {
        load_cell *cell = &load->cells[i];
        if (cell->state != LOAD_FLYING) continue;
        store_read *read = cell->read;
        if (!read_give_up(load->store, read, cell->joins ? &cell->waiter : NULL, stuck_alone))
            continue; /* or its task comes */
        if (!cell->joins) read_end(load->store, read, KVT_E_TIMEOUT, 0, false);
        read_drop(load->store, read);
        cell->read = NULL;
        assert(load->flying > 0 && load_counts_cell(load, cell));
        cell->state = LOAD_IDLE;
        cell->joins = false;
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
    load_stop_asking(load);
    pthread_mutex_lock(&load->lock);
    assert(load->ending && !load->asks);
    load_give_up(load, false);
    while (load->flying != 0 || load->poked != 0)
        pthread_cond_wait(&load->changed, &load->lock);
    assert(load->heads == 0);
    load_leave_pass(load);
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    for (size_t i = 0; i < load->count; i++)
        load_share_leave(&load->entries[i]); /* no offer comes any more */
    /* A thread that has ended its cell may be announcing still, and the caller frees the load. */
    while (atomic_load(&load->busy) != 0)
        base_sleep(LOAD_PAUSE_NS);
}
