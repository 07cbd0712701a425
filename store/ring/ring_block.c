/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_block.c - what a block of a ring reads, and where it goes.
 *
 *     contexts   copied once and checked; sorted by object, layer, side
 *     holds      the entries that they name, as readers of their places: one look-up each
 *     heads      of records that no block has read before; kept with the object
 *     pieces     a matrix each, whatever the number of contexts that name it
 *     rounds     pieces whose ranges fill half of the staging: the ranges of all of them go to all
 *                devices as one gather, while those of the round before are verified, decoded and
 *                copied to their targets
 *
 * Staging is taken before a place is held, because a holder of staging may wait for readers. What
 * needs more than that - a matrix larger than a round, a round behind one that a device did not
 * answer - is taken past the bound.
 *
 * Thread rule: a worker belongs to one thread.
 */
#include "store/ring/ring_internal.h"

#include "base/clock.h"
#include "codecs/codecs.h"
#include "codecs/record_groups.h"
#include "store/background/lifetime.h"
#include "store/learn/token_drop.h"
#include "store/read/access_get.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RING_LOT_BYTES UINT64_C(16777216)
#define RING_STEP      256u /* entries under one hold of a lock */

/* ---- contexts ---- */

/* Copies the contexts of a block. Those that are unsound have failed. */
static void ring_read_contexts(ring_worker *worker, const kvt_ring_block *block)
{
    const ring_head *head = &worker->ring->head;
    const kvt_ring_context *contexts =
        (const kvt_ring_context *)(const void *)(worker->ring->memory + head->tables_at) +
        (uint64_t)block->table * head->contexts + block->first;
    worker->count = block->count;
    for (uint32_t i = 0; i < block->count; i++)
        worker->statuses[i] =
            (signed char)ring_context_read(&contexts[i], block, &worker->wants[i]);
}

static int ring_compare_words(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The object, layer and side of a context, and then its place in the block. */
static uint64_t ring_order_of(const ring_want *want, uint32_t index)
{
    return ((uint64_t)(uint32_t)want->object << 28) | ((uint64_t)want->layer << 12) |
           ((uint64_t)want->side << 11) | index;
}
_Static_assert(RING_LAYERS_MAX <= 1u << 16 && KVT_RING_CONTEXTS_MAX <= 1u << 11,
               "bits of an order");

/* Sorts the sound contexts. Returns how many there are. */
static uint32_t ring_sort_contexts(ring_worker *worker)
{
    uint32_t sound = 0;
    bool sorted = true;
    for (uint32_t i = 0; i < worker->count; i++) {
        if (worker->statuses[i] != KVT_OK) continue;
        worker->order[sound] = ring_order_of(&worker->wants[i], i);
        if (sound > 0) sorted = sorted && worker->order[sound - 1] < worker->order[sound];
        sound++;
    }
    if (!sorted) qsort(worker->order, sound, sizeof worker->order[0], ring_compare_words);
    return sound;
}

/* ---- what contexts name ---- */

/* The hold of the next object in the order. */
static ring_hold *ring_name_object(ring_worker *worker, const ring_want *want)
{
    ring_hold *last = worker->hold_count > 0 ? &worker->holds[worker->hold_count - 1] : NULL;
    if (last != NULL && last->slot == (uint32_t)want->object) return last;
    ring_object *object = ring_find_object(worker->ring, want->object);
    if (object == NULL) return NULL;
    ring_hold *hold = &worker->holds[worker->hold_count++];
    *hold = (ring_hold){.slot = (uint32_t)want->object,
                        .key = object->key,
                        .handle = object->handle,
                        .near = object->near,
                        .opened = object->opened};
    if (hold->opened != NULL) atomic_fetch_add(&hold->opened->users, 1);
    object->users++;
    return hold;
}

/* Looks objects and regions up, and keeps them. Contexts that name none have failed. */
static void ring_find_names(ring_worker *worker, uint32_t sound)
{
    kvt_ring *ring = worker->ring;
    memset(worker->regions, 0, sizeof worker->regions);
    for (uint32_t from = 0; from < sound; from += RING_STEP) {
        pthread_mutex_lock(&ring->lock);
        for (uint32_t k = from; k < sound && k < from + RING_STEP; k++) {
            const uint32_t i = worker->order[k] & (KVT_RING_CONTEXTS_MAX - 1);
            const ring_want *want = &worker->wants[i];
            ring_region *region = ring_find_region(ring, want->region);
            const ring_hold *hold = region != NULL ? ring_name_object(worker, want) : NULL;
            /* Two numbers of one place: the second is of another time. */
            const ring_object *object = ring_find_object(ring, want->object);
            if (hold == NULL || object == NULL) {
                worker->statuses[i] = KVT_E_ARGUMENT;
                continue;
            }
            const uint32_t place = want->region % RING_REGIONS_MAX;
            const uint64_t bit = UINT64_C(1) << place % 64;
            if ((worker->regions[place / 64] & bit) == 0) region->users++;
            worker->regions[place / 64] |= bit;
            worker->targets[i] = region->memory;
            worker->region_bytes[i] = region->bytes;
            worker->hold_of[i] = (uint32_t)(hold - worker->holds);
        }
        pthread_mutex_unlock(&ring->lock);
    }
}

void ring_opened_leave(ring_opened *opened)
{
    if (opened == NULL || atomic_fetch_sub(&opened->users, 1) != 1) return;
    for (uint32_t i = 0; i < opened->entry.section_count; i++)
        free(opened->sections[i].head);
    tiers_unit_map_free(opened->map);
    free(opened);
}

void ring_object_settle(kvt_ring *ring, ring_object *object)
{
    if (object->open || object->users != 0) return;
    ring_opened_leave(object->opened);
    *object = (ring_object){.generation = object->generation, .next_free = ring->free_object};
    ring->free_object = (uint32_t)(object - ring->objects) + 1;
}

/* Gives up what a block has named, and leaves with each object what was found out about it. */
static void ring_leave_names(ring_worker *worker)
{
    kvt_ring *ring = worker->ring;
    for (uint32_t from = 0; from < worker->hold_count; from += RING_STEP) {
        pthread_mutex_lock(&ring->lock);
        for (uint32_t i = from; i < worker->hold_count && i < from + RING_STEP; i++) {
            ring_hold *hold = &worker->holds[i];
            ring_object *object = &ring->objects[hold->slot];
            object->near = hold->near;
            ring_opened *before = hold->opened;
            if (before != NULL && before->ready && !hold->damaged && before != object->opened) {
                before = object->opened;
                object->opened = hold->opened;
            } else if (hold->damaged && object->opened == hold->opened && before != NULL) {
                object->opened = NULL; /* the next block looks at the heads again */
                atomic_fetch_sub(&before->users, 1);
            }
            ring_opened_leave(before);
            assert(object->users > 0);
            object->users--;
            ring_object_settle(ring, object);
        }
        pthread_mutex_unlock(&ring->lock);
    }
    pthread_mutex_lock(&ring->lock);
    for (uint32_t i = 0; i < RING_REGIONS_MAX; i++)
        ring->regions[i].users -= (uint32_t)(worker->regions[i / 64] >> i % 64 & 1);
    pthread_mutex_unlock(&ring->lock);
}

/* ---- holding entries ---- */

/* The layouts of an entry, whose heads are not open. NULL: no memory. The store's lock is held. */
static ring_opened *ring_open_entry(kvt_store *store, const store_entry *found)
{
    const entry_kind *kind = found->kind;
    const uint32_t sections = kind->group_count != 0 ? kind->group_count : 1;
    ring_opened *opened = calloc(1, sizeof *opened + sections * sizeof opened->sections[0]);
    if (opened == NULL) return NULL;
    atomic_init(&opened->users, 1);
    load_entry *entry = &opened->entry;
    entry->key = found->key;
    entry->sections = opened->sections;
    entry->section_count = sections;
    store_load_take_layouts(entry, kind);
    if (found->state == ENTRY_STAGED) return opened;
    const store_place *place = found->place;
    opened->serial = place->serial;
    entry->tier = place->tier;
    entry->variant = place->variant;
    entry->record_bytes = place->record_bytes;
    entry->scratch_bytes = place->scratch_bytes;
    entry->expected = place_expects(store, &found->key, place);
    return opened;
}

/* Becomes a reader of an entry. The store's lock is held. */
static kvt_status ring_hold_entry(ring_worker *worker, ring_hold *hold)
{
    kvt_store *store = worker->store;
    store_entry *found = entry_find_hashed(&store->table, hold->handle, &hold->key);
    assert(store_is_locked(store) && hold->place == NULL && hold->staged == NULL);
    if (!lifetime_shows(store, found) || token_drop_is_uncounted(found)) return KVT_MISS;
    if (access_loses_too_much(store, found, worker->ring->loss_max)) return KVT_MISS;
    if (lookup_lacks_basis(store, found)) return KVT_E_MISMATCH;
    const bool staged = found->state == ENTRY_STAGED;
    if (hold->opened != NULL && (staged || hold->opened->serial != found->place->serial)) {
        ring_opened_leave(hold->opened);
        hold->opened = NULL;
    }
    if (hold->opened == NULL) hold->opened = ring_open_entry(store, found);
    if (hold->opened == NULL) return KVT_E_MEMORY;
    if (staged) {
        hold->near = true;
        hold->staged = found->staged;
        handover_join(hold->staged);
        return KVT_OK;
    }
    store_place *place = found->place;
    tiers_pool *pool = store->pools[place->tier];
    hold->near = tiers_pool_lends(pool, place->location);
    assert(hold->near || !hold->opened->ready || hold->opened->map != NULL);
    if (hold->near) {
        hold->record = tiers_pool_lend(pool, place->location);
        if (hold->record == NULL) return KVT_MISS;
    }
    place->readers++;
    hold->place = place;
    return KVT_OK;
}

/* Gives entries up. No lock held. */
static void ring_let_go(ring_worker *worker)
{
    kvt_store *store = worker->store;
    for (uint32_t from = 0; from < worker->hold_count; from += RING_STEP) {
        pthread_mutex_lock(&store->lock);
        for (uint32_t i = from; i < worker->hold_count && i < from + RING_STEP; i++) {
            ring_hold *hold = &worker->holds[i];
            store_place *place = hold->place;
            if (hold->staged != NULL) handover_leave(store, hold->staged);
            hold->staged = NULL;
            hold->place = NULL;
            if (place == NULL) continue;
            if (hold->damaged) store_count_load_failure(store, KVT_E_IO);
            if (hold->record != NULL)
                tiers_pool_take_back(store->pools[place->tier], place->location, KVT_IO_READ, 0);
            hold->record = NULL;
            place_leave(store, place);
        }
        pthread_mutex_unlock(&store->lock);
    }
}

/* Holds all entries that are here. False: some of them are read, and the block has no staging. */
static bool ring_hold_all(ring_worker *worker)
{
    kvt_store *store = worker->store;
    bool reads = false;
    for (uint32_t from = 0; from < worker->hold_count; from += RING_STEP) {
        pthread_mutex_lock(&store->lock);
        for (uint32_t i = from; i < worker->hold_count && i < from + RING_STEP; i++) {
            ring_hold *hold = &worker->holds[i];
            hold->status = ring_hold_entry(worker, hold);
            reads = reads || (hold->status == KVT_OK && !hold->near);
        }
        pthread_mutex_unlock(&store->lock);
    }
    return !reads || worker->lot != NULL;
}

/* Takes staging where something is read, and then holds all entries. KVT_OK, or why there is no
 * staging. */
static kvt_status ring_enter(ring_worker *worker)
{
    bool near = true;
    for (uint32_t i = 0; i < worker->hold_count; i++)
        near = near && worker->holds[i].near;
    worker->lot = NULL;
    if (near && ring_hold_all(worker)) return KVT_OK;
    if (near) ring_let_go(worker);
    uint64_t bytes = worker->store->staging->limit_bytes / 4;
    if (bytes > RING_LOT_BYTES) bytes = RING_LOT_BYTES;
    bytes = staging_round(bytes < 4 * STAGING_ALIGN ? 4 * STAGING_ALIGN : bytes);
    const kvt_status status = ring_lot_take(worker, bytes, false, &worker->lot);
    if (status == KVT_OK) (void)ring_hold_all(worker);
    return status == KVT_E_TIMEOUT ? ring_late(worker) : status;
}

/* ---- heads ---- */

/* A read or a record failed: what its contexts are told. */
static kvt_status ring_blame(ring_hold *hold, kvt_status status)
{
    if (status == KVT_OK || status == KVT_E_MEMORY || status == KVT_E_TIMEOUT ||
        status == KVT_E_CANCELLED)
        return status;
    hold->damaged = true;
    return KVT_MISS;
}

/* What is to be read of an object's head next. heads: of its groups, whose table is open. Returns
 * KVT_E_MEMORY without memory. */
static kvt_status ring_want_heads(ring_round *round, ring_hold *hold, uint32_t index, bool heads)
{
    load_entry *entry = &hold->opened->entry;
    kvt_status status = KVT_OK;
    if (!entry->grouped) status = load_open_table(entry, NULL, 0);
    if (status != KVT_OK) return status;
    if (entry->grouped && !heads)
        return ring_add_read(round, index, 0, RECORD_GROUPS_HEAD_BYTES) ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; i < entry->section_count; i++) {
        const load_section *section = &entry->sections[i];
        if (section->head_bytes == 0 || section->head != NULL) continue;
        if (!ring_add_read(round, index, section->offset, section->head_bytes)) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* Opens what has come of heads. */
static void ring_use_heads(ring_worker *worker, const ring_round *round, bool heads)
{
    for (uint32_t i = 0; i < round->read_count; i++) {
        const ring_read *read = &round->reads[i];
        ring_hold *hold = &worker->holds[read->hold];
        load_entry *entry = &hold->opened->entry;
        kvt_status status = read->status;
        load_section *section = entry->sections;
        while (section->offset != read->offset && entry->grouped && heads)
            section++;
        if (hold->status != KVT_OK) continue;
        if (status == KVT_OK && entry->grouped && !heads)
            status = load_open_table(entry, read->data, RECORD_GROUPS_HEAD_BYTES);
        else if (status == KVT_OK)
            status = load_open_head(entry, section, read->data, section->head_bytes, false);
        hold->status = ring_blame(hold, status);
    }
}

/* Whether the heads of a hold are to be read. */
static bool ring_lacks_heads(const ring_hold *hold)
{
    return hold->status == KVT_OK && !hold->near && !hold->opened->ready;
}

/* Reads heads, as many at once as there is staging for. heads: those of groups; else tables of
 * groups, and the heads of entries without them. */
static void ring_read_heads(ring_worker *worker, bool heads)
{
    ring_round *round = &worker->rounds[0];
    for (uint32_t next = 0; next < worker->hold_count;) {
        uint64_t bytes = 0;
        for (; next < worker->hold_count && (bytes == 0 || bytes < ring_half(worker) / 2); next++) {
            ring_hold *hold = &worker->holds[next];
            if (!ring_lacks_heads(hold) || (heads && !hold->opened->entry.grouped)) continue;
            const uint32_t before = round->read_count;
            hold->status = ring_blame(hold, ring_want_heads(round, hold, next, heads));
            for (uint32_t i = before; i < round->read_count; i++)
                bytes += round->reads[i].bytes;
        }
        ring_start_round(worker, round);
        ring_wait_round(worker, round);
        ring_use_heads(worker, round, heads);
        ring_end_round(round);
    }
}

/* Opens the heads of all records. */
static void ring_open_heads(ring_worker *worker)
{
    bool reads = false, grouped = false;
    for (uint32_t i = 0; i < worker->hold_count; i++) {
        ring_hold *hold = &worker->holds[i];
        if (hold->status != KVT_OK || hold->staged != NULL || hold->opened->ready) continue;
        load_entry *entry = &hold->opened->entry;
        kvt_status status = KVT_OK;
        if (hold->near) {
            entry->record = hold->record;
            status = store_load_open_lent(entry);
        } else {
            status = tiers_unit_map_make(hold->place->location, &hold->opened->map);
            reads = true;
            grouped = grouped || entry->grouped;
        }
        hold->status = ring_blame(hold, status);
    }
    if (reads) ring_read_heads(worker, false);
    if (grouped) ring_read_heads(worker, true);
    for (uint32_t i = 0; i < worker->hold_count; i++) {
        const ring_hold *hold = &worker->holds[i];
        if (hold->status != KVT_OK || hold->staged != NULL || hold->opened->ready) continue;
        hold->opened->ready = true;
    }
}

/* ---- pieces ---- */

/* The section of an entry's layer; NULL: it has no such layer. */
static const load_section *ring_section_of(const ring_hold *hold, uint32_t layer)
{
    const load_entry *entry = &hold->opened->entry;
    const load_section *last = &entry->sections[entry->section_count - 1];
    if (layer >= last->first_layer + last->layout.layers) return NULL;
    return store_load_section(entry, layer);
}

/* Checks contexts against what they name, and makes the pieces. */
static void ring_make_pieces(ring_worker *worker, uint32_t sound)
{
    for (uint32_t k = 0; k < sound; k++) {
        const uint32_t i = worker->order[k] & (KVT_RING_CONTEXTS_MAX - 1);
        if (worker->statuses[i] != KVT_OK) continue;
        const ring_hold *hold = &worker->holds[worker->hold_of[i]];
        ring_want *want = &worker->wants[i];
        kvt_status status = hold->status;
        if (status == KVT_OK) {
            const load_section *section = ring_section_of(hold, want->layer);
            status = section == NULL
                         ? KVT_E_ARGUMENT
                         : ring_want_check(want, &section->layout, worker->region_bytes[i]);
        }
        worker->statuses[i] = (signed char)status;
    }
    ring_check_overlaps(worker->wants, worker->statuses, worker->count, worker->spots,
                        worker->open_spots);
    worker->piece_count = 0;
    uint32_t kept = 0;
    uint64_t before = UINT64_MAX;
    for (uint32_t k = 0; k < sound; k++) {
        const uint64_t order = worker->order[k];
        const uint32_t i = order & (KVT_RING_CONTEXTS_MAX - 1);
        if (worker->statuses[i] != KVT_OK) continue;
        if (order / KVT_RING_CONTEXTS_MAX != before)
            worker->pieces[worker->piece_count++] =
                (ring_piece){.hold = worker->hold_of[i], .first = kept};
        before = order / KVT_RING_CONTEXTS_MAX;
        worker->pieces[worker->piece_count - 1].count++;
        worker->order[kept++] = order;
    }
}

static int ring_compare_reads(const void *a, const void *b)
{
    const ring_read *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Joins the ranges of one hold from `first` on, so that no byte is read twice. */
static void ring_join_reads(ring_round *round, uint32_t first)
{
    uint32_t kept = first;
    if (round->read_count == first) return; /* there may be no memory for them yet */
    qsort(&round->reads[first], round->read_count - first, sizeof *round->reads,
          ring_compare_reads);
    for (uint32_t i = first; i < round->read_count; i++) {
        const ring_read *read = &round->reads[i];
        ring_read *last = kept > first ? &round->reads[kept - 1] : NULL;
        if (last == NULL || read->offset > last->offset + last->bytes ||
            read->bytes + last->bytes > UINT32_MAX) {
            round->reads[kept++] = *read;
            continue;
        }
        const uint64_t end = read->offset + read->bytes;
        if (end > last->offset + last->bytes) last->bytes = end - last->offset;
    }
    round->read_count = kept;
}

/* Adds the ranges of a piece to a round. */
static kvt_status ring_want_piece(ring_worker *worker, ring_round *round, const ring_piece *piece,
                                  uint64_t *bytes)
{
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    uint32_t count = 0;
    const ring_want *want = ring_first_want(worker, piece);
    const load_section *section = ring_section_of(&worker->holds[piece->hold], want->layer);
    kvt_status status =
        kvt_record_head_matrix_ranges(section->head, want->layer - section->first_layer,
                                      (kvt_side)want->side, ranges, KVT_RECORD_RANGES_MAX, &count);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        if (!ring_add_read(round, piece->hold, section->offset + ranges[i].offset, ranges[i].bytes))
            status = KVT_E_MEMORY;
        *bytes += ranges[i].bytes;
    }
    return status;
}

/* Gives a status to the contexts of a piece. */
static void ring_settle_piece(ring_worker *worker, const ring_piece *piece, kvt_status status)
{
    for (uint32_t k = piece->first; k < piece->first + piece->count; k++)
        worker->statuses[worker->order[k] & (KVT_RING_CONTEXTS_MAX - 1)] = (signed char)status;
}

/* Fills a round with the next pieces. Returns the piece behind them. */
static uint32_t ring_fill_round(ring_worker *worker, ring_round *round, uint32_t next)
{
    uint64_t bytes = 0;
    uint32_t first_read = 0, first_piece = next;
    const uint64_t most = worker->lot != NULL ? ring_half(worker) : 0;
    round->first_piece = next;
    for (; next < worker->piece_count; next++) {
        ring_piece *piece = &worker->pieces[next];
        ring_hold *hold = &worker->holds[piece->hold];
        if (!hold->near) {
            const uint32_t before = round->read_count;
            uint64_t more = 0;
            const kvt_status status = ring_want_piece(worker, round, piece, &more);
            if (bytes > 0 && bytes + more > most) {
                round->read_count = before; /* it begins the next round */
                break;
            }
            bytes += more;
            if (status != KVT_OK) ring_settle_piece(worker, piece, ring_blame(hold, status));
        }
        const bool last =
            next + 1 == worker->piece_count || worker->pieces[next + 1].hold != piece->hold;
        if (!last) continue;
        ring_join_reads(round, first_read);
        for (; first_piece <= next; first_piece++) {
            worker->pieces[first_piece].first_read = first_read;
            worker->pieces[first_piece].read_count = round->read_count - first_read;
        }
        first_read = round->read_count;
    }
    if (first_piece < next) {
        ring_join_reads(round, first_read);
        for (; first_piece < next; first_piece++) {
            worker->pieces[first_piece].first_read = first_read;
            worker->pieces[first_piece].read_count = round->read_count - first_read;
        }
    }
    round->end_piece = next;
    return next;
}

/* ---- bytes ---- */

/* Room for a decoded matrix, and for the codec's scratch behind it. */
static kvt_status ring_make_room(ring_worker *worker, uint64_t bytes)
{
    if (bytes <= worker->decoded_bytes) return KVT_OK;
    free(worker->decoded);
    worker->decoded = aligned_alloc(STAGING_ALIGN, staging_round(bytes));
    worker->decoded_bytes = worker->decoded != NULL ? staging_round(bytes) : 0;
    return worker->decoded != NULL ? KVT_OK : KVT_E_MEMORY;
}

/* The ranges of a section's record that have come. *late: how the first of the others failed. */
static kvt_status ring_find_bytes(ring_worker *worker, const ring_round *round,
                                  const ring_piece *piece, const load_section *section,
                                  uint32_t *count_out, kvt_status *late)
{
    uint32_t count = 0;
    *late = KVT_OK;
    if (piece->read_count > worker->range_room) {
        free(worker->ranges);
        worker->ranges = calloc(piece->read_count, sizeof *worker->ranges);
        worker->range_room = worker->ranges != NULL ? piece->read_count : 0;
        if (worker->ranges == NULL) return KVT_E_MEMORY;
    }
    for (uint32_t i = 0; i < piece->read_count; i++) {
        const ring_read *read = &round->reads[piece->first_read + i];
        if (read->status != KVT_OK && *late == KVT_OK) *late = read->status;
        if (read->status != KVT_OK) continue;
        if (read->offset + read->bytes <= section->offset) continue;
        /* A range that begins in the section before has a part of both. */
        const uint64_t skip = read->offset < section->offset ? section->offset - read->offset : 0;
        worker->ranges[count++] =
            (kvt_record_range){.offset = read->offset + skip - section->offset,
                               .bytes = read->bytes - skip,
                               .at = (uint64_t)(read->data - round->memory) + skip};
    }
    *count_out = count;
    return KVT_OK;
}

/* Finds the packed bytes of a piece's matrix, verified. */
static kvt_status ring_bring(ring_worker *worker, const ring_round *round, const ring_piece *piece,
                             const void **matrix_out)
{
    ring_hold *hold = &worker->holds[piece->hold];
    const ring_want *want = ring_first_want(worker, piece);
    const load_section *section = ring_section_of(hold, want->layer);
    const uint32_t layer = want->layer - section->first_layer;
    const uint64_t matrix_bytes = kvt_layout_matrix_bytes(&section->layout);
    const uint64_t room = staging_round(matrix_bytes);
    if (hold->staged != NULL) {
        *matrix_out = (const uint8_t *)hold->staged->buffer.memory + section->packed_at +
                      kvt_layout_matrix_offset(&section->layout, layer, (kvt_side)want->side);
        return KVT_OK;
    }
    uint32_t count = 0;
    kvt_status late = KVT_OK, status = KVT_OK;
    const uint8_t *payload = round->memory;
    if (hold->near)
        payload = (const uint8_t *)hold->record + section->offset;
    else
        status = ring_find_bytes(worker, round, piece, section, &count, &late);
    if (status == KVT_OK && count == 0 && !hold->near) status = late;
    const bool raw = hold->opened->entry.variant.codec == KVT_CODEC_RAW;
    if (status == KVT_OK && !raw)
        status = ring_make_room(worker, room + hold->opened->entry.scratch_bytes);
    if (status != KVT_OK) return ring_blame(hold, status);
    status = kvt_record_head_matrix(section->head, layer, (kvt_side)want->side, payload,
                                    hold->near ? NULL : worker->ranges, count, worker->decoded,
                                    raw ? 0 : matrix_bytes, raw ? NULL : worker->decoded + room,
                                    raw ? 0 : worker->decoded_bytes - room, matrix_out);
    if (status == KVT_E_CORRUPT && late != KVT_OK) status = late;
    return ring_blame(hold, status);
}

/* Copies bytes of a matrix to where a context wants them. */
static void ring_deliver(ring_worker *worker, uint32_t index, const uint8_t *matrix)
{
    const ring_want *want = &worker->wants[index];
    uint8_t *target = worker->targets[index] + want->target;
    const uint8_t *source = matrix + want->offset;
    for (uint64_t done = 0; done < want->bytes; done += want->row) {
        memcpy(target, source + done, want->row);
        target += want->stride;
    }
    worker->bytes += want->bytes;
}

static void ring_use_round(ring_worker *worker, const ring_round *round)
{
    for (uint32_t p = round->first_piece; p < round->end_piece; p++) {
        const ring_piece *piece = &worker->pieces[p];
        const uint32_t first = worker->order[piece->first] & (KVT_RING_CONTEXTS_MAX - 1);
        const void *matrix = NULL;
        if (worker->statuses[first] != KVT_OK) continue; /* it has no ranges */
        kvt_status status = ring_bring(worker, round, piece, &matrix);
        if (status == KVT_OK && atomic_load(&worker->ring->stopping)) status = KVT_E_CANCELLED;
        ring_settle_piece(worker, piece, status);
        for (uint32_t k = piece->first; status == KVT_OK && k < piece->first + piece->count; k++)
            ring_deliver(worker, worker->order[k] & (KVT_RING_CONTEXTS_MAX - 1), matrix);
    }
}

/* Reads all pieces: while one round is decoded, the next one is on its way. */
static void ring_run_rounds(ring_worker *worker)
{
    uint32_t next = ring_fill_round(worker, &worker->rounds[0], 0);
    ring_start_round(worker, &worker->rounds[0]);
    for (uint32_t i = 0;; i++) {
        ring_round *round = &worker->rounds[i % 2], *ahead = &worker->rounds[(i + 1) % 2];
        const bool more = next < worker->piece_count;
        if (more) {
            next = ring_fill_round(worker, ahead, next);
            ring_start_round(worker, ahead);
        }
        ring_wait_round(worker, round);
        ring_use_round(worker, round);
        ring_end_round(round);
        if (!more) break;
    }
}

/* ---- a block ---- */

/* Writes statuses and result of a block. */
static void ring_tell(ring_worker *worker, ring_slot *slot)
{
    const ring_head *head = &worker->ring->head;
    kvt_ring_result *result = &slot->result;
    result->user = slot->block.user;
    result->bytes = worker->bytes;
    result->read_bytes = worker->read_bytes;
    for (uint32_t i = 0; i < worker->count; i++) {
        if (worker->statuses[i] == KVT_OK) continue;
        if (result->failed++ == 0) result->status = worker->statuses[i];
    }
    if (worker->count != 0)
        memcpy(worker->ring->memory + head->statuses_at +
                   (slot->position & (head->depth - 1)) * head->contexts,
               worker->statuses, worker->count);
}

void ring_run_block(ring_worker *worker, ring_slot *slot)
{
    worker->bytes = worker->read_bytes = worker->requests = 0;
    worker->deadline_ns = slot->block.deadline_ns;
    ring_read_contexts(worker, &slot->block);
    const uint32_t sound = ring_sort_contexts(worker);
    worker->hold_count = 0;
    if (sound != 0) {
        ring_find_names(worker, sound);
        const kvt_status status = ring_enter(worker);
        if (status == KVT_OK) ring_open_heads(worker);
        for (uint32_t i = 0; status != KVT_OK && i < worker->hold_count; i++)
            worker->holds[i].status = status;
        if (status == KVT_OK) {
            ring_make_pieces(worker, sound);
            if (slot->block.pass != 0) ring_join_pass(worker, slot->block.pass);
            if (worker->piece_count != 0) ring_run_rounds(worker);
            if (slot->block.pass != 0) ring_leave_pass(worker, slot->block.pass);
        } else {
            for (uint32_t i = 0; i < worker->count; i++)
                if (worker->statuses[i] == KVT_OK) worker->statuses[i] = (signed char)status;
        }
        ring_lot_leave(worker->lot);
        worker->lot = NULL;
        ring_let_go(worker);
        ring_leave_names(worker);
    }
    ring_tell(worker, slot);
}

void ring_settle_damaged(ring_worker *worker)
{
    for (uint32_t i = 0; i < worker->hold_count; i++)
        if (worker->holds[i].damaged && !atomic_load(&worker->ring->stopping))
            access_time_entry(worker->store, &worker->holds[i].key);
}

bool ring_worker_make(ring_worker *worker, kvt_ring *ring, kvt_store *store)
{
    const size_t count = ring->head.contexts;
    *worker = (ring_worker){.ring = ring,
                            .store = store,
                            .wants = calloc(count, sizeof *worker->wants),
                            .targets = calloc(count, sizeof *worker->targets),
                            .region_bytes = calloc(count, sizeof *worker->region_bytes),
                            .statuses = calloc(count, sizeof *worker->statuses),
                            .order = calloc(count, sizeof *worker->order),
                            .spots = calloc(count, sizeof *worker->spots),
                            .open_spots = calloc(count, sizeof *worker->open_spots),
                            .holds = calloc(count, sizeof *worker->holds),
                            .hold_of = calloc(count, sizeof *worker->hold_of),
                            .pieces = calloc(count, sizeof *worker->pieces)};
    return worker->wants != NULL && worker->targets != NULL && worker->region_bytes != NULL &&
           worker->statuses != NULL && worker->order != NULL && worker->spots != NULL &&
           worker->open_spots != NULL && worker->holds != NULL && worker->hold_of != NULL &&
           worker->pieces != NULL;
}

void ring_worker_free(ring_worker *worker)
{
    free(worker->wants);
    free(worker->targets);
    free(worker->region_bytes);
    free(worker->statuses);
    free(worker->order);
    free(worker->spots);
    free(worker->open_spots);
    free(worker->holds);
    free(worker->hold_of);
    free(worker->pieces);
    free(worker->ranges);
    free(worker->decoded);
    for (uint32_t i = 0; i < 2; i++)
        free(worker->rounds[i].reads);
}
