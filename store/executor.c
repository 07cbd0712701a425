/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.c - carries plans out: one operation, named stages, one table from stage to function.
 *
 *     put      encode -> reserve -> write -> prepare -> publish
 *     change   read -> recode -> reserve -> write -> prepare -> publish
 *     change   adopt                      onto a copy that is on SSD already
 *     copy     read -> reserve -> write -> prepare -> keep      to SSD, beside a place above
 *     evict    unlist                     or, from above, onto a copy that is on SSD already
 *
 * The executor never decides: it does what a move says, then commits or aborts it in the policy.
 * A stage that fails leaves its work to `executor_undo`, which gives back in reverse order what the
 * operation holds. Nothing of a put is visible, and nothing of a change replaces its source, before
 * `publish`.
 *
 * Thread rule: any thread; stages take store->lock for the short moments in which they touch shared
 * state, and hold it over no I/O.
 */
#include "codecs/codecs.h"
#include "store/kill_note.h"
#include "store/placement_note.h"
#include "store/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum store_stage {
    STAGE_READ,
    STAGE_RECODE,
    STAGE_ENCODE,
    STAGE_RESERVE,
    STAGE_WRITE,
    STAGE_PREPARE,
    STAGE_PUBLISH,
    STAGE_ADOPT,
    STAGE_KEEP,
    STAGE_UNLIST,
    STAGE_COUNT
} store_stage;

/* One move under way. Zeroed at the start; what it holds is what the fields say. */
typedef struct store_op {
    kvt_store *store;
    const kvt_move *move;
    store_entry *entry;
    const void *data; /* put: the caller's buffer */
    kvt_tier tier;    /* target */
    kvt_record_spec spec;
    staging_buffer staging;
    void *record; /* in staging: what is to be written */
    uint64_t record_bytes;
    uint64_t bound_bytes;   /* of a record that is encoded anew, at most */
    uint64_t scratch_bytes; /* of encoding and decoding the new record */
    tiers_location *location;
    uint64_t serial;        /* of the new place; in the record's note */
    store_place *source;    /* change: held as a reader */
    store_place *place;     /* the new place, before it is the entry's */
    catalog_insertion *row; /* its catalog row, before it is queued */
    bool owes;              /* a new layout: until it ends, room that others may wait for */
    bool for_put;           /* its plan ends with a put, which needs the room */
    bool source_asked;      /* change: the source was read from, or that was tried */
    bool no_room;           /* pool or policy had none for the new record */
    bool larger;            /* that, or nothing gained: the record is larger than was planned */
    uint32_t stages_done;   /* mask; a stuck operation prints its own history in a debugger */
} store_op;

/* Every record that is encoded gets a generation of its own, so that older bytes of the same key
 * can never pass for it. */
static uint64_t executor_next_serial(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    uint64_t serial = store->next_serial++;
    pthread_mutex_unlock(&store->lock);
    return serial;
}

static void executor_fill_spec(store_op *op)
{
    const store_entry *entry = op->entry;
    memset(&op->spec, 0, sizeof op->spec);
    op->spec.key = entry->key;
    op->spec.layout = entry->layout;
    op->spec.variant = op->move->to_variant;
    op->spec.first_position = entry->first_position;
}

kvt_status executor_bound(const kvt_store *store, const kvt_record_spec *spec, uint64_t *bytes_out,
                          uint64_t *scratch_bytes_out)
{
    kvt_status status = kvt_record_bound(spec, bytes_out, scratch_bytes_out);
    if (status != KVT_OK || store->workers == NULL) return status;
    return kvt_record_scratch_parallel(spec, store->workers->count, scratch_bytes_out);
}

/* ---- stages ---- */

/* change: brings the source record into staging and verifies it, room for recoding included. */
static kvt_status stage_read(store_op *op)
{
    kvt_store *store = op->store;
    const store_place *source = op->source;
    uint64_t bytes = staging_round(source->record_bytes);
    executor_fill_spec(op);
    op->spec.generation = source->generation;
    op->scratch_bytes = source->scratch_bytes;
    kvt_status status = KVT_OK;
    if (memcmp(&source->variant, &op->move->to_variant, sizeof source->variant) != 0) {
        status = executor_bound(store, &op->spec, &op->bound_bytes, &op->scratch_bytes);
        if (status != KVT_OK) return status;
        uint64_t scratch = op->scratch_bytes;
        if (source->scratch_bytes > scratch) scratch = source->scratch_bytes;
        bytes += staging_round(op->entry->source_bytes) + staging_round(op->bound_bytes) +
                 staging_round(scratch);
    }
    status = staging_take(store->staging, bytes, STAGING_PATIENT, &op->staging);
    if (status != KVT_OK) return status;
    op->record = op->staging.memory;
    op->record_bytes = source->record_bytes;
    op->source_asked = true;
    learn_flight flight;
    const flight_watch *watch = learn_watch(store, source->tier, KVT_IO_READ, &flight);
    status = flight_move(store->staging, store->pools[source->tier], KVT_IO_READ, source->location,
                         op->record, source->record_bytes, watch, &op->staging);
    if (status != KVT_OK) return status;
    kvt_record_info info;
    status = kvt_record_verify(op->record, op->record_bytes, &info);
    if (status == KVT_OK && (memcmp(&info.spec.key, &op->entry->key, sizeof info.spec.key) != 0 ||
                             info.spec.generation != source->generation)) {
        status = KVT_E_MISMATCH;
    }
    return status;
}

/*
 * Makes the record of another lossy variant from the codes of the present one, where the codec can
 * (codecs_made_from). KVT_E_UNSUPPORTED: it cannot, and the elements have to be coded, which the
 * policy asks for only where they are exact, or as good as that (planes at 8 bits).
 */
static kvt_status executor_derive(store_op *op, void *target, uint64_t target_bytes, void *scratch,
                                  uint64_t scratch_bytes)
{
    const kvt_variant to = op->move->to_variant;
    kvt_record_drop drop;
    kvt_status status;
    switch (codecs_made_from(op->source->variant, to)) {
    case CODECS_WAY_DROP:
        status = kvt_record_drop_planes(op->record, op->record_bytes, to, &drop);
        if (status == KVT_OK) op->record_bytes = drop.record_bytes;
        return status;
    case CODECS_WAY_DERIVE:
        status = kvt_record_derive(op->record, op->record_bytes, to, target, target_bytes, scratch,
                                   scratch_bytes, &op->record_bytes);
        if (status == KVT_OK) op->record = target;
        /* A derived record that would not be smaller is no place to go to; coding the elements
         * anew would lose a second time. */
        return status == KVT_E_UNSUPPORTED ? KVT_E_SPACE : status;
    default: return KVT_E_UNSUPPORTED;
    }
}

/* What encoding a record has said, which is of a size now. */
static kvt_status executor_note_size(const store_op *op, kvt_status status)
{
    if (status != KVT_OK && status != KVT_RAW) return status;
    learn_note_size(op->store, op->entry, op->spec.variant, op->record_bytes);
    return KVT_OK;
}

/* change: when the variant differs, makes the new record inside the staging buffer. */
static kvt_status stage_recode(store_op *op)
{
    const store_place *source = op->source;
    if (memcmp(&source->variant, &op->move->to_variant, sizeof source->variant) == 0) return KVT_OK;
    uint64_t target_bytes = op->bound_bytes;
    char *decoded = (char *)op->staging.memory + staging_round(source->record_bytes);
    char *target = decoded + staging_round(op->entry->source_bytes);
    char *scratch = target + staging_round(target_bytes);
    uint64_t scratch_bytes = (uint64_t)((char *)op->staging.memory + op->staging.bytes - scratch);
    kvt_status status = executor_derive(op, target, target_bytes, scratch, scratch_bytes);
    op->larger = status == KVT_E_SPACE;
    if (status != KVT_E_UNSUPPORTED) return status;
    kvt_record_spec expected = op->spec;
    status = kvt_record_decode_parallel(op->record, op->record_bytes, &expected, op->store->workers,
                                        decoded, op->entry->source_bytes, scratch, scratch_bytes);
    if (status != KVT_OK) return status;
    op->spec.generation = executor_next_serial(op->store);
    status = kvt_record_encode_parallel(&op->spec, NULL, op->store->workers, decoded,
                                        op->entry->source_bytes, target, target_bytes, scratch,
                                        scratch_bytes, &op->record_bytes);
    op->record = target;
    return executor_note_size(op, status);
}

/* put: makes the record from the caller's bytes. */
static kvt_status stage_encode(store_op *op)
{
    executor_fill_spec(op);
    op->spec.generation = executor_next_serial(op->store);
    kvt_status status = executor_bound(op->store, &op->spec, &op->bound_bytes, &op->scratch_bytes);
    if (status != KVT_OK) return status;
    uint64_t bound = staging_round(op->bound_bytes);
    status =
        staging_take(op->store->staging, bound + op->scratch_bytes, STAGING_PATIENT, &op->staging);
    if (status != KVT_OK) return status;
    op->record = op->staging.memory;
    uint64_t started_ns = store_now_ns(op->store);
    status = kvt_record_encode_parallel(
        &op->spec, NULL, op->store->workers, op->data, op->entry->source_bytes, op->record, bound,
        (char *)op->record + bound, op->staging.bytes - bound, &op->record_bytes);
    if (status == KVT_OK)
        learn_note_encode(op->store, op->spec.variant, op->entry->source_bytes,
                          (double)(store_now_ns(op->store) - started_ns) * 1e-9);
    return executor_note_size(op, status);
}

/* A new layout has two places for a while, which the policy does not know of: who lacks that room
 * meanwhile waits for it, as for a reader. It never waits itself. */
static kvt_status executor_reserve_relayout(store_op *op)
{
    kvt_store *store = op->store;
    op->owes = true;
    pthread_mutex_lock(&store->lock);
    store->draining[op->tier]++;
    pthread_mutex_unlock(&store->lock);
    kvt_status status = tiers_pool_reserve(store->pools[op->tier], op->record_bytes, &op->location);
    op->no_room = status == KVT_E_SPACE;
    return status;
}

/* Lock held. */
static void executor_settle_debt(store_op *op)
{
    if (!op->owes) return;
    op->owes = false;
    op->store->draining[op->tier]--;
    op->store->drained++;
    pthread_cond_broadcast(&op->store->changed);
}

/*
 * Takes extents. Room that the policy counts as free may be owed: by the catalog, which hands
 * extents back with the commit of the row's deletion, or by a reader of a place that was replaced.
 * Both are waited for; then copies make way; only a tier without those is full.
 */
static kvt_status stage_reserve(store_op *op)
{
    kvt_store *store = op->store;
    if (op->move->id == RELAYOUT_ID) return executor_reserve_relayout(op);
    for (;;) {
        /* Looked at in the order in which room passes: reader, catalog, pool. */
        pthread_mutex_lock(&store->lock);
        uint64_t drained = store->drained;
        bool draining = store->draining[op->tier] != 0;
        pthread_mutex_unlock(&store->lock);
        bool owed = store->catalog != NULL && op->tier == KVT_TIER_SSD &&
                    catalog_pending_release(store->catalog);
        kvt_status status =
            tiers_pool_reserve(store->pools[op->tier], op->record_bytes, &op->location);
        if (status == KVT_OK && op->tier == KVT_TIER_SSD) {
            pthread_mutex_lock(&store->lock);
            copies_trim(store);
            pthread_mutex_unlock(&store->lock);
        }
        if (status != KVT_E_SPACE) return status;
        if (!owed && !draining) {
            if (op->tier == KVT_TIER_SSD && copies_reclaim(store, op->record_bytes)) continue;
            if (park_reclaim(store, op->tier, op->record_bytes)) continue;
            op->no_room = true;
            return status;
        }
        if (owed) {
            status = catalog_settle(store->catalog);
            if (status != KVT_OK) return status;
            continue;
        }
        pthread_mutex_lock(&store->lock);
        while (store->drained == drained) {
            pthread_cond_wait(&store->changed, &store->lock);
        }
        pthread_mutex_unlock(&store->lock);
    }
}

/* A record that goes to SSD says where it lies, for when the catalog is lost. */
static void executor_note_place(const store_op *op)
{
    const store_entry *entry = op->entry;
    placement_note note = {.serial = op->serial,
                           .has_parent = entry->has_parent,
                           .parent = entry->parent,
                           .recompute_seconds = entry->recompute_seconds,
                           .location = op->location};
    memcpy(note.pool, op->store->pool_id, sizeof note.pool);
    placement_note_attach(&note, op->record);
}

static kvt_status stage_write(store_op *op)
{
    learn_flight flight;
    op->serial = executor_next_serial(op->store);
    if (op->store->catalog != NULL && op->tier == KVT_TIER_SSD) executor_note_place(op);
    const flight_watch *watch = learn_watch(op->store, op->tier, KVT_IO_WRITE, &flight);
    return flight_move(op->store->staging, op->store->pools[op->tier], KVT_IO_WRITE, op->location,
                       op->record, op->record_bytes, watch, &op->staging);
}

/* Makes the catalog row of a record on SSD, and the ticket for its deletion. */
static kvt_status executor_prepare_row(store_op *op)
{
    const store_entry *entry = op->entry;
    kvt_status status = catalog_ticket_new(&entry->key, op->place->serial, &op->place->ticket);
    if (status != KVT_OK) return status;
    catalog_row row = {.key = entry->key,
                       .serial = op->place->serial,
                       .generation = op->spec.generation,
                       .parent = entry->parent,
                       .has_parent = entry->has_parent,
                       .layout = entry->layout,
                       .first_position = entry->first_position,
                       .recompute_seconds = entry->recompute_seconds,
                       .variant = op->place->variant,
                       .record_bytes = op->record_bytes};
    row.location_bytes = tiers_location_pack(op->location, NULL, 0);
    row.location = malloc(row.location_bytes);
    if (row.location == NULL) return KVT_E_MEMORY;
    (void)tiers_location_pack(op->location, row.location, row.location_bytes);
    status = catalog_insertion_new(&row, &op->row);
    free(row.location);
    return status;
}

/* Everything that publishing needs and that can fail for memory. Gives staging back: what follows
 * may wait for readers, and a reader may be waiting for staging. */
static kvt_status stage_prepare(store_op *op)
{
    op->place = calloc(1, sizeof *op->place);
    if (op->place == NULL) return KVT_E_MEMORY;
    op->place->tier = op->tier;
    op->place->variant = op->move->to_variant;
    op->place->serial = op->serial;
    op->place->generation = op->spec.generation;
    op->place->record_bytes = op->record_bytes;
    op->place->scratch_bytes = op->scratch_bytes;
    staging_give(op->store->staging, &op->staging);
    if (op->store->catalog == NULL || op->tier != KVT_TIER_SSD) return KVT_OK;
    return executor_prepare_row(op);
}

/* What becomes of a place that was replaced: a promotion leaves its record on SSD, as room allows.
 * Lock held; it is released while waiting for readers. */
static void executor_leave_place(kvt_store *store, store_entry *entry, store_place *old)
{
    kvt_tier tier = entry->place->tier;
    if (tier == KVT_TIER_SSD) {
        copies_drop(store, entry); /* of another form than the one that was stored now */
    } else if (old->tier == KVT_TIER_SSD && copies_attach(store, entry, old)) {
        KILL_NOTE(KILL_NOTE_COPIED, &entry->key, KVT_TIER_SSD);
        store->counters.copies_kept++;
        copies_trim(store);
        return;
    } else if (old->tier == KVT_TIER_SSD) {
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, KVT_TIER_SSD);
    }
    place_drain(store, old);
}

/* Makes the new place the entry's: the policy's commit first, because it alone can still refuse. */
static kvt_status stage_publish(store_op *op)
{
    kvt_store *store = op->store;
    store_entry *entry = op->entry;
    uint64_t actual[KVT_TIER_COUNT] = {0};
    actual[op->tier] = op->record_bytes;
    pthread_mutex_lock(&store->lock);
    kvt_status status = KVT_OK;
    if (op->move->id != RELAYOUT_ID)
        status = kvt_policy_commit(store->policy, op->move->id, actual);
    op->no_room = status == KVT_E_SPACE;
    if (status == KVT_OK) {
        store_place *old = entry->place;
        assert((old != NULL) == (entry->state == ENTRY_MOVING));
        op->place->location = op->location;
        entry->place = op->place;
        entry->load = NULL; /* later gets must not join a read of the old place */
        op->location = NULL;
        op->place = NULL;
        if (op->record_bytes > store->record_bytes_max) store->record_bytes_max = op->record_bytes;
        if (op->row != NULL) catalog_insert(store->catalog, op->row);
        op->row = NULL;
        KILL_NOTE(old == NULL ? KILL_NOTE_PLACED : KILL_NOTE_MOVED, &entry->key, op->tier);
        KILL_POINT("publish: row queued");
        if (old != NULL) {
            if (op->tier < old->tier) store->counters.promotions++;
            if (op->tier > old->tier) store->counters.demotions++;
            old->readers--;
            op->source = NULL;
        }
        entry_set_state(entry, entry->state, ENTRY_RESIDENT);
        entry->staged = NULL; /* later gets read the record */
        backoff_note_success(store, entry);
        if (op->record_bytes > store_bytes_of(op->move->to_bytes)) store_resize(store, entry);
        pthread_cond_broadcast(&store->changed);
        if (old != NULL) executor_leave_place(store, entry, old);
        executor_settle_debt(op);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* change: the copy that is on SSD already becomes the place; not a byte is written. */
static kvt_status stage_adopt(store_op *op)
{
    kvt_store *store = op->store;
    store_entry *entry = op->entry;
    store_place *old = op->source;
    uint64_t actual[KVT_TIER_COUNT] = {0};
    pthread_mutex_lock(&store->lock);
    actual[KVT_TIER_SSD] = entry->copy->record_bytes;
    kvt_status status = kvt_policy_commit(store->policy, op->move->id, actual);
    if (status == KVT_OK) {
        entry->place = copies_detach(store, entry);
        entry->load = NULL; /* later gets must not join a read of the old place */
        store->counters.demotions++;
        store->counters.copy_demotions++;
        KILL_NOTE(KILL_NOTE_MOVED, &entry->key, KVT_TIER_SSD);
        old->readers--;
        op->source = NULL;
        entry_set_state(entry, ENTRY_MOVING, ENTRY_RESIDENT);
        backoff_note_success(store, entry);
        pthread_cond_broadcast(&store->changed);
        place_drain(store, old);
    } else {
        copies_let_go(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* copy: what was written hangs beside the place that it was read from. */
static kvt_status stage_keep(store_op *op)
{
    kvt_store *store = op->store;
    pthread_mutex_lock(&store->lock);
    op->place->location = op->location;
    bool kept = copies_attach(store, op->entry, op->place);
    if (kept) {
        catalog_insert(store->catalog, op->row);
        KILL_NOTE(KILL_NOTE_COPIED, &op->entry->key, KVT_TIER_SSD);
        KILL_POINT("copy: row queued");
        op->row = NULL;
        op->location = NULL;
        op->place = NULL;
        op->source->readers--;
        op->source = NULL;
        entry_set_state(op->entry, ENTRY_MOVING, ENTRY_RESIDENT);
        executor_settle_debt(op);
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    return kept ? KVT_OK : KVT_E_GONE;
}

/* evict: the entry has been invisible since the plan was made; who reads it still may finish. An
 * eviction from above is to free room there: it costs no record on SSD that is in nobody's way. */
static kvt_status stage_unlist(store_op *op)
{
    kvt_store *store = op->store;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = op->entry;
    entry->load = NULL;
    kvt_status status = kvt_policy_commit(store->policy, op->move->id, NULL);
    assert(status == KVT_OK);
    if (!copies_outlast(store, entry)) {
        store_place *place = entry->place;
        entry->place = NULL; /* others look at the entry while this waits for readers */
        place_drain(store, place);
        copies_drop(store, entry);
        entry_erase(&store->table, entry);
        store->counters.evictions++;
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- the table ---- */

static kvt_status (*const stage_functions[STAGE_COUNT])(store_op *) = {
    [STAGE_READ] = stage_read,       [STAGE_RECODE] = stage_recode, [STAGE_ENCODE] = stage_encode,
    [STAGE_RESERVE] = stage_reserve, [STAGE_WRITE] = stage_write,   [STAGE_PREPARE] = stage_prepare,
    [STAGE_PUBLISH] = stage_publish, [STAGE_ADOPT] = stage_adopt,   [STAGE_KEEP] = stage_keep,
    [STAGE_UNLIST] = stage_unlist,
};

/* The stages of each kind of move, in order, ended by STAGE_COUNT. */
static const store_stage executor_stages[4][7] = {
    [KVT_MOVE_PUT] = {STAGE_ENCODE, STAGE_RESERVE, STAGE_WRITE, STAGE_PREPARE, STAGE_PUBLISH,
                      STAGE_COUNT},
    [KVT_MOVE_CHANGE] = {STAGE_READ, STAGE_RECODE, STAGE_RESERVE, STAGE_WRITE, STAGE_PREPARE,
                         STAGE_PUBLISH, STAGE_COUNT},
    [KVT_MOVE_EVICT] = {STAGE_UNLIST, STAGE_COUNT},
};

/* Of a change that finds what it would write. */
static const store_stage executor_onto_copy[] = {STAGE_ADOPT, STAGE_COUNT};

/* Of a copy in the making. */
static const store_stage executor_write_copy[] = {STAGE_READ,    STAGE_RESERVE, STAGE_WRITE,
                                                  STAGE_PREPARE, STAGE_KEEP,    STAGE_COUNT};

/* ---- giving back ---- */

/* A change that failed because its source could not be read, or was not what it should be. */
static bool executor_lost_source(const store_op *op, kvt_status status)
{
    bool read = (op->stages_done & (1u << STAGE_READ)) != 0;
    bool recoded = (op->stages_done & (1u << STAGE_RECODE)) != 0;
    bool rotten = status == KVT_E_CORRUPT || status == KVT_E_MISMATCH || status == KVT_E_VERSION;
    if (op->move->kind != KVT_MOVE_CHANGE || status == KVT_E_MEMORY) return false;
    if (park_is_back(op->store, op->entry->place, status)) return false;
    return (op->source_asked && !read) || (!recoded && rotten);
}

/*
 * A record that came out larger than its plan reserved is no lack of room: the plan was made with a
 * wrong size. Pool and policy refuse it where they have no more than what was planned.
 */
static bool executor_is_larger(const store_op *op)
{
    if (op->move->id == RELAYOUT_ID) return false;
    return op->larger || (op->no_room && op->record_bytes > store_bytes_of(op->move->to_bytes));
}

/* The entry's options get the size that its record in this form has. Lock held. */
static void executor_note_larger(store_op *op)
{
    op->entry->larger_variant = op->move->to_variant;
    op->entry->larger_bytes = op->record_bytes;
    store_resize(op->store, op->entry);
}

/*
 * Whether the entry of a change that failed goes, so that the put behind it has its room: the
 * change was to free bytes of its tier for that put, and pool or policy had no room for the new
 * record. A device that fails a write, for lack of space too, never costs a stored entry, and no
 * other plan does: its entry backs off, and the next plan is made with others.
 */
static bool executor_gives_up(const store_op *op, kvt_tier source)
{
    const kvt_move *move = op->move;
    if (!op->for_put || !op->no_room || move->kind != KVT_MOVE_CHANGE) return false;
    if (op->larger) return false;
    return source != KVT_TIER_NONE && move->to_bytes[source] < move->from_bytes[source];
}

/* Lock held. */
static void executor_count_failure(store_counters *counters, const store_op *op, kvt_status status)
{
    if (op->move->id == RELAYOUT_ID) return;
    if (op->larger) {
        counters->moves_failed_larger++;
        return;
    }
    switch (status) {
    case KVT_E_IO:
    case KVT_E_GONE:
    case KVT_E_READ_ONLY: counters->moves_failed_io++; break;
    case KVT_E_SPACE: counters->moves_failed_space++; break;
    case KVT_E_MEMORY: counters->moves_failed_memory++; break;
    default: break;
    }
}

/* What becomes of the entry of a change that failed; it is RESIDENT again. Lock held. */
static void executor_judge_entry(store_op *op, kvt_tier source, kvt_status status)
{
    kvt_store *store = op->store;
    if (executor_lost_source(op, status)) {
        store->counters.load_failures++;
        park_lose_entry(store, op->entry);
    } else if (op->larger) {
        /* With that known, no plan asks for the same again. */
        executor_note_larger(op);
    } else if (executor_gives_up(op, source)) {
        store->counters.given_up++;
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &op->entry->key, source);
        park_lose_entry(store, op->entry);
    } else if (op->move->id != RELAYOUT_ID || !op->no_room) {
        /* A new layout may wait for room as long as need be. */
        backoff_note_failure(store, op->entry, op->no_room);
    }
}

static void executor_undo(store_op *op, kvt_status status)
{
    kvt_store *store = op->store;
    kvt_tier source = op->source != NULL ? op->source->tier : KVT_TIER_NONE;
    staging_give(store->staging, &op->staging);
    catalog_insertion_free(op->row);
    if (op->place != NULL) catalog_ticket_free(op->place->ticket);
    free(op->place);
    if (op->location != NULL) tiers_pool_release(store->pools[op->tier], op->location);
    KILL_POINT("move: failed");
    pthread_mutex_lock(&store->lock);
    executor_settle_debt(op);
    if (op->source != NULL) op->source->readers--;
    op->larger = executor_is_larger(op);
    executor_count_failure(&store->counters, op, status);
    plan_abort_moves(store, op->move, 1);
    if (op->move->kind == KVT_MOVE_CHANGE) executor_judge_entry(op, source, status);
    park_refresh_tier(store, op->tier);
    park_refresh_tier(store, source);
    pthread_mutex_unlock(&store->lock);
}

/* ---- plans ---- */

/* Names every stage that ended well, for the tests that kill the process there. */
static void executor_pass_kill_point(store_stage stage)
{
    switch (stage) {
    case STAGE_RESERVE: KILL_POINT("publish: reserved"); break;
    case STAGE_WRITE: KILL_POINT("publish: written"); break;
    case STAGE_PREPARE: KILL_POINT("publish: prepared"); break;
    case STAGE_UNLIST: KILL_POINT("evict: unlisted"); break;
    default: break;
    }
}

static kvt_status executor_run_move(kvt_store *store, const kvt_move *move, const void *data,
                                    bool for_put, executor_result *result)
{
    store_op op = {.store = store, .move = move, .data = data, .for_put = for_put};
    op.tier = store_tier_of(move->to_bytes);
    pthread_mutex_lock(&store->lock);
    op.entry = entry_find_handle(&store->table, move->handle);
    assert(op.entry != NULL);
    bool copies = false;
    const store_stage *stages = executor_stages[move->kind];
    if (move->kind == KVT_MOVE_CHANGE) {
        op.source = op.entry->place;
        op.source->readers++;
        copies = move->id == RELAYOUT_ID && op.tier != op.source->tier;
        if (copies)
            stages = executor_write_copy;
        else if (copies_hold(store, op.entry, move))
            stages = executor_onto_copy;
    }
    pthread_mutex_unlock(&store->lock);

    kvt_status status = KVT_OK;
    for (const store_stage *stage = stages; *stage != STAGE_COUNT; stage++) {
        status = stage_functions[*stage](&op);
        if (status != KVT_OK) break;
        executor_pass_kill_point(*stage);
        op.stages_done |= 1u << *stage;
    }
    if (move->kind == KVT_MOVE_PUT) result->put_bytes = op.record_bytes;
    result->no_room = op.no_room;
    if (status != KVT_OK) {
        executor_undo(&op, status);
        result->larger = op.larger;
    } else if (!copies) {
        pthread_mutex_lock(&store->lock);
        if (move->id == RELAYOUT_ID) {
            store->counters.relayouts++;
            store->counters.relayout_bytes += op.record_bytes;
        } else {
            store->counters.moves_committed++;
        }
        pthread_mutex_unlock(&store->lock);
    }
    if (move->id != RELAYOUT_ID) plan_report(store, move, status);
    return status;
}

kvt_status executor_run_plan(kvt_store *store, const kvt_move *moves, uint32_t count,
                             const void *data, executor_result *result_out)
{
    kvt_status status = KVT_OK;
    uint32_t done = 0;
    memset(result_out, 0, sizeof *result_out);
    bool for_put = count != 0 && moves[count - 1].kind == KVT_MOVE_PUT;
    while (done < count) {
        const void *bytes = moves[done].kind == KVT_MOVE_PUT ? data : NULL;
        status = executor_run_move(store, &moves[done], bytes, for_put, result_out);
        if (status != KVT_OK) break;
        done++;
    }
    result_out->committed = done;
    if (status != KVT_OK) {
        /* The failed move was aborted where it failed; the ones after it depend on its room. */
        result_out->failed = done;
        pthread_mutex_lock(&store->lock);
        plan_abort_moves(store, moves + done + 1, count - done - 1);
        pthread_mutex_unlock(&store->lock);
        for (uint32_t i = done + 1; i < count; i++) {
            plan_report(store, &moves[i], KVT_E_CANCELLED);
        }
    }
    return status;
}
