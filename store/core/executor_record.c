/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_record.c - the stages that make a record and bring it to its tier: read, recode, encode,
 * reserve, write. None of them changes the entry.
 *
 * Thread rule: as executor.c; the control lock for the moments in which shared state is touched.
 */
#include "base/wait.h"
#include "codecs/codecs.h"
#include "codecs/view_rows.h"
#include "store/background/lifetime.h"
#include "store/catalog/placement_note.h"
#include "store/core/executor.h"
#include "store/core/executor_internal.h"
#include "store/gpu/gpu_put.h"
#include "store/gpu/gpu_views.h"
#include "store/learn/token_drop.h"
#include "store/read/groups.h"

#include <assert.h>
#include <string.h>

/* The next serial. Every record that is encoded gets a generation of its own, and every place a
 * serial, so that older bytes of the same key can never pass for it. Takes the lock. */
static uint64_t executor_next_serial(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    uint64_t serial = store->next_serial++;
    pthread_mutex_unlock(&store->lock);
    return serial;
}

/* Fills the specification of the groups' records from that of the whole. Called again when its
 * generation has been set. */
static void executor_fill_groups(store_op *op)
{
    const entry_kind *kind = op->entry->kind;
    memset(&op->groups, 0, sizeof op->groups);
    if (kind->group_count != 0)
        op->groups =
            groups_spec(op->store, &op->spec, kind->groups, kind->group_count, op->group_variants);
}

/* Fills the specification of the new record from the entry and the move; the generation is set by
 * the stages. */
static void executor_fill_spec(store_op *op)
{
    assert(op->entry != NULL && op->move != NULL);
    const store_entry *entry = op->entry;
    memset(&op->spec, 0, sizeof op->spec);
    op->spec.key = entry->key;
    op->spec.layout = entry->kind->layout;
    op->spec.variant = op->move->to_variant;
    op->spec.first_position = entry->first_position;
    op->spec.bases = bases_of(op->store, op->spec.variant);
    executor_fill_groups(op);
}

kvt_status executor_bound(const kvt_store *store, const kvt_record_spec *spec, uint64_t *bytes_out,
                          uint64_t *scratch_bytes_out)
{
    kvt_status status = kvt_record_bound(spec, bytes_out, scratch_bytes_out);
    if (status != KVT_OK || store->workers == NULL) return status;
    return kvt_record_scratch_parallel(spec, store->workers->count, scratch_bytes_out);
}

/* The same of an operation's record, with scratch to make it from the views of a put. */
static kvt_status executor_bound_op(store_op *op)
{
    if (op->groups.count != 0)
        return groups_bound(op->store, &op->groups, op->views, &op->bound_bytes,
                            &op->scratch_bytes);
    return executor_bound(op->store, &op->spec, &op->bound_bytes, &op->scratch_bytes);
}

/* Gives the new record a generation of its own. */
static void executor_set_generation(store_op *op)
{
    op->spec.generation = executor_next_serial(op->store);
    executor_fill_groups(op);
}

/* A variant that cannot be made (its basis is lacking or of another shape, or the entry is too
 * large to be coded anew) counts as one that came out as large as the source bytes: later plans do
 * without it. */
static kvt_status executor_refuse_form(store_op *op)
{
    op->record_bytes = op->entry->kind->source_bytes;
    op->larger = true;
    return KVT_E_SPACE;
}

/* Lets kernels of a GPU make the record in staging. Any other status than KVT_OK: they have not,
 * and nothing is held. */
static kvt_status executor_encode_there(store_op *op, const store_gpu_source *source)
{
    if (op->groups.count != 0 || !store_gpu_may_encode(source->site, op->spec.variant))
        return KVT_E_UNSUPPORTED;
    kvt_status status = executor_bound_op(op);
    if (status != KVT_OK) return status;
    const uint64_t bound = staging_round(op->bound_bytes);
    status = executor_take_staging(op, bound);
    if (status != KVT_OK) return status;
    op->record = op->staging.memory;
    status = store_gpu_encode(source, &op->spec, op->record, bound, &op->record_bytes);
    if (status == KVT_OK) return KVT_OK;
    staging_release(op->store->staging, &op->staging);
    op->record = NULL;
    op->record_bytes = 0;
    return status;
}

/* change: the same from the source's record, where that lies in the memory of a GPU and its
 * elements are to be coded anew. */
static kvt_status executor_recode_there(store_op *op)
{
    const store_place *source = op->source;
    const entry_kind *kind = op->entry->kind;
    tiers_pool *pool = op->store->pools[source->tier];
    gpu_site *site = NULL;
    uint32_t gpu;
    if (codecs_made_from(source->variant, op->spec.variant) != CODECS_WAY_RECODE ||
        kvt_variant_drops_tokens(source->variant))
        return KVT_E_UNSUPPORTED;
    const uint64_t address = tiers_pool_lend_address(pool, source->location, &gpu);
    if (address == 0) return KVT_E_UNSUPPORTED;
    kvt_status status =
        gpu == 0 ? KVT_E_UNSUPPORTED : gpu_sites_take(&op->store->gpus, gpu - 1, &site);
    if (status == KVT_OK) {
        const store_gpu_source from = {.site = site,
                                       .layout = &kind->layout,
                                       .record = address,
                                       .record_bytes = source->record_bytes,
                                       .variant = source->variant,
                                       .expected = &op->expected};
        executor_set_generation(op);
        status = executor_encode_there(op, &from);
        if (status != KVT_OK) {
            op->spec.generation = source->generation;
            gpu_count(site, GPU_ENCODED_BY_CPU,
                      kind->group_count != 0 ? store_gpu_layers(kind->groups, kind->group_count)
                                             : store_gpu_layers(&kind->layout, 1));
        }
    }
    tiers_pool_take_back(pool, source->location, KVT_IO_READ, 0);
    return status;
}

/* change: brings the source record into staging and verifies it, room for recoding included; or the
 * new one, where a GPU in whose memory the source lies makes it. */
kvt_status stage_read(store_op *op)
{
    assert(op->source != NULL && op->source->location != NULL);
    assert(op->staging.memory == NULL);
    kvt_store *store = op->store;
    const store_place *source = op->source;
    uint64_t bytes = staging_round(source->record_bytes);
    executor_fill_spec(op);
    op->spec.generation = source->generation;
    op->expected = place_expects(store, &op->key, source);
    op->scratch_bytes = source->scratch_bytes;
    kvt_status status = KVT_OK;
    if (memcmp(&source->variant, &op->move->to_variant, sizeof source->variant) != 0) {
        /* A change of variant takes the record, the decoded bytes and the new record at once. An
         * entry that passes the bound of staging by itself keeps its variant. */
        if (op->entry->kind->source_bytes > store->staging->limit_bytes)
            return executor_refuse_form(op);
        executor_fill_groups(op);
        op->recoded = executor_recode_there(op) == KVT_OK;
        if (op->recoded) return KVT_OK;
        status = executor_bound_op(op);
        if (status != KVT_OK) return status;
        uint64_t scratch = op->scratch_bytes;
        if (source->scratch_bytes > scratch) scratch = source->scratch_bytes;
        bytes += staging_round(op->entry->kind->source_bytes) + staging_round(op->bound_bytes) +
                 staging_round(scratch);
    }
    status = executor_take_staging(op, bytes);
    if (status != KVT_OK) return status;
    op->record = op->staging.memory;
    op->record_bytes = source->record_bytes;
    op->source_asked = true;
    learn_transfer transfer;
    const transfer_watch *watch = learn_watch(store, source->tier, KVT_IO_READ, &transfer);
    const tiers_transfer read = {.kind = KVT_IO_READ,
                                 .location = source->location,
                                 .buffer = op->record,
                                 .bytes = source->record_bytes};
    status = transfer_move(store->staging, store->pools[source->tier], &read, watch, &op->staging);
    if (status != KVT_OK) return status;
    return place_check(&op->expected, op->record, op->record_bytes);
}

/*
 * Makes the record of another lossy variant from the codes of the present one, where the codec can
 * (codecs_made_from). KVT_E_UNSUPPORTED: it cannot, and the elements have to be coded, which the
 * policy asks for only where they are exact, or as good as that (planes at 8 bits).
 */
static kvt_status executor_derive(store_op *op, void *target, uint64_t target_bytes, void *scratch,
                                  uint64_t scratch_bytes)
{
    assert(op->source != NULL && target != NULL);
    const kvt_variant to = op->move->to_variant;
    const codecs_way way = codecs_made_from(op->source->variant, to);
    kvt_record_drop drop;
    kvt_status status;
    if (op->groups.count != 0 && (way == CODECS_WAY_DROP || way == CODECS_WAY_DERIVE)) {
        status = record_groups_derive(op->record, op->record_bytes, &op->expected.bases, to, target,
                                      target_bytes, scratch, scratch_bytes, &op->record_bytes);
        if (status == KVT_OK) op->record = target;
        return status == KVT_E_UNSUPPORTED ? KVT_E_SPACE : status;
    }
    switch (way) {
    case CODECS_WAY_DROP:
        status = kvt_record_drop_planes(op->record, op->record_bytes, to, &drop);
        if (status == KVT_OK) op->record_bytes = drop.record_bytes;
        return status;
    case CODECS_WAY_DERIVE:
        status = kvt_record_derive(op->record, op->record_bytes, &op->expected.bases, to, target,
                                   target_bytes, scratch, scratch_bytes, &op->record_bytes);
        if (status == KVT_OK) op->record = target;
        /* A derived record that would not be smaller is not used; coding the elements anew would
         * lose a second time. */
        return status == KVT_E_UNSUPPORTED ? KVT_E_SPACE : status;
    default: return KVT_E_UNSUPPORTED;
    }
}

/* Notes the size of a record that was encoded, for later plans. KVT_RAW, an encoding that did not
 * shrink, is no failure. */
static kvt_status executor_note_size(const store_op *op, kvt_status status)
{
    assert(status < 0 || op->record_bytes > 0);
    if (status != KVT_OK && status != KVT_RAW) return status;
    learn_note_size(op->store, op->entry, op->spec.variant, op->record_bytes);
    return KVT_OK;
}

/* Encodes packed bytes. */
static kvt_status executor_encode_packed(store_op *op, void *packed, void *target,
                                         uint64_t target_bytes, void *scratch,
                                         uint64_t scratch_bytes)
{
    kvt_view views[KVT_GROUPS_MAX];
    const record_groups_spec *groups = &op->groups;
    if (groups->count == 0)
        return kvt_record_encode_parallel(&op->spec, NULL, op->store->workers, packed,
                                          op->entry->kind->source_bytes, target, target_bytes,
                                          scratch, scratch_bytes, &op->record_bytes);
    record_groups_pack(groups->layouts, groups->count, packed, views);
    return record_groups_encode(groups, op->store->workers, views, target, target_bytes, scratch,
                                scratch_bytes, &op->record_bytes);
}

/* Encodes what a put's views have. */
static kvt_status executor_encode_views(store_op *op, void *record, uint64_t capacity,
                                        void *scratch, uint64_t scratch_bytes)
{
    if (op->groups.count != 0)
        return record_groups_encode(&op->groups, op->store->workers, op->views, record, capacity,
                                    scratch, scratch_bytes, &op->record_bytes);
    return kvt_record_encode_view(&op->spec, op->store->workers, op->views, record, capacity,
                                  scratch, scratch_bytes, &op->record_bytes);
}

/* change: when the variant differs, makes the new record inside the staging buffer. The source's
 * record is sound, so no failure from here on says that its bytes are damaged. */
kvt_status stage_recode(store_op *op)
{
    if (op->recoded) return executor_note_size(op, KVT_OK);
    assert(op->record != NULL && op->record_bytes == op->source->record_bytes);
    const store_place *source = op->source;
    if (memcmp(&source->variant, &op->move->to_variant, sizeof source->variant) == 0) return KVT_OK;
    if (!bases_has(op->store, source->variant) || !bases_has(op->store, op->spec.variant))
        return executor_refuse_form(op);
    uint64_t target_bytes = op->bound_bytes;
    char *decoded = (char *)op->staging.memory + staging_round(source->record_bytes);
    char *target = decoded + staging_round(op->entry->kind->source_bytes);
    char *scratch = target + staging_round(target_bytes);
    uint64_t scratch_bytes = (uint64_t)((char *)op->staging.memory + op->staging.bytes - scratch);
    kvt_status status = executor_derive(op, target, target_bytes, scratch, scratch_bytes);
    if (status == KVT_E_MISMATCH) return executor_refuse_form(op);
    op->larger = status == KVT_E_SPACE;
    if (status != KVT_E_UNSUPPORTED) return status;
    if (kvt_variant_drops_tokens(source->variant))
        status = token_drop_restore(op, decoded, scratch, scratch_bytes);
    else
        status = kvt_record_decode_parallel(op->record, op->record_bytes, &op->expected,
                                            op->store->workers, decoded,
                                            op->entry->kind->source_bytes, scratch, scratch_bytes);
    /* The store has another basis than the record's, whose hash begins alike. */
    if (status == KVT_E_MISMATCH) return executor_refuse_form(op);
    if (status != KVT_OK) return status;
    executor_set_generation(op);
    if (kvt_variant_drops_tokens(op->spec.variant))
        status = token_drop_encode(op, decoded, target, target_bytes, scratch, scratch_bytes);
    else
        status = executor_encode_packed(op, decoded, target, target_bytes, scratch, scratch_bytes);
    op->record = target;
    return executor_note_size(op, status);
}

/* Whether the record of a put can be made in its tier at once: the tier is memory, and the record
 * is the bytes themselves, whose size is known before. A record on SSD gets a note when its place
 * is known. */
static bool executor_may_encode_in_place(const store_op *op)
{
    const kvt_variant variant = op->spec.variant;
    return op->tier != KVT_TIER_SSD && op->scratch_bytes == 0 && variant.codec == KVT_CODEC_RAW &&
           variant.mode == 0 && tiers_pool_in_memory(op->store->pools[op->tier]);
}

/* Takes extents in one piece and encodes into them. KVT_MISS: there are none now, or they are not
 * to be had as memory; nothing is held then. */
static kvt_status executor_encode_in_place(store_op *op)
{
    assert(op->location == NULL && op->staging.memory == NULL);
    tiers_pool *pool = op->store->pools[op->tier];
    tiers_location *location = NULL;
    uint64_t head_bytes, bytes;
    kvt_status status = op->groups.count != 0
                            ? record_groups_raw_bytes(op->groups.layouts, op->groups.count, &bytes)
                            : codecs_raw_record_bytes(&op->spec.layout, &head_bytes, &bytes);
    if (status == KVT_OK) status = tiers_pool_reserve(pool, bytes, &location);
    if (status != KVT_OK) return KVT_MISS;
    uint64_t started_ns = store_now_ns(op->store);
    void *record = tiers_pool_lend(pool, location);
    status = KVT_MISS;
    if (record != NULL) {
        status = executor_encode_views(op, record, bytes, NULL, 0);
        tiers_pool_take_back(pool, location, KVT_IO_WRITE, op->record_bytes);
    }
    op->written = status == KVT_OK;
    if (!op->written) {
        tiers_pool_release(pool, location);
        return status;
    }
    assert(op->record_bytes == bytes && "the size of a raw record is known before");
    op->location = location;
    learn_note_encode_in_memory(op->store, op->tier, location, op->spec.variant,
                                op->entry->kind->source_bytes,
                                (double)(store_now_ns(op->store) - started_ns) * 1e-9);
    return KVT_OK;
}

/* Codes the bytes of a put into staging. packed has room for the entry where a drop stage wants the
 * bytes of an apart view in one run. */
static kvt_status executor_encode_into(store_op *op, uint64_t bound, char *packed, char *scratch)
{
    const uint64_t left = (uint64_t)((char *)op->staging.memory + op->staging.bytes - scratch);
    if (!kvt_variant_drops_tokens(op->spec.variant))
        return executor_encode_views(op, op->record, bound, scratch, left);
    view_gather_entry(op->views, &op->spec.layout, packed);
    return token_drop_encode(op, packed, op->record, bound, scratch, left);
}

/* put: makes the record in staging. */
static kvt_status executor_encode_staged(store_op *op)
{
    const bool drops = kvt_variant_drops_tokens(op->spec.variant);
    const uint64_t bound = staging_round(op->bound_bytes);
    const uint64_t gathered = drops ? staging_round(op->entry->kind->source_bytes) : 0;
    kvt_status status = executor_take_staging(op, bound + gathered + op->scratch_bytes);
    if (status != KVT_OK) return status;
    op->record = op->staging.memory;
    uint64_t started_ns = store_now_ns(op->store);
    char *packed = (char *)op->record + bound;
    status = executor_encode_into(op, bound, packed, packed + gathered);
    if (status == KVT_OK)
        learn_note_encode(op->store, op->spec.variant, op->entry->kind->source_bytes,
                          (double)(store_now_ns(op->store) - started_ns) * 1e-9);
    return status;
}

/* Room for a record that is in staging. By its tensors where the tier is placed so. Room that is
 * none in time is not taken, unless the operation may lie anywhere. */
static kvt_status executor_take(store_op *op)
{
    tiers_pool *pool = op->store->pools[op->tier];
    uint64_t tensor = 0;
    kvt_status status;
    if (op->store->placement[op->tier] == KVT_PLACE_TENSOR)
        tensor = codecs_tensor_bytes(op->record, op->record_bytes);
    if (tensor == 0 || tensor > UINT32_MAX)
        status = tiers_pool_reserve(pool, op->record_bytes, &op->location);
    else
        status =
            tiers_pool_reserve_tensors(pool, op->record_bytes, (uint32_t)tensor, &op->location);
    op->late = status == KVT_OK && op->location->unwanted && !op->anywhere;
    if (!op->late) return status;
    tiers_pool_release(pool, op->location);
    op->location = NULL;
    return KVT_E_SPACE;
}

/* Room for the record of a put, and scratch to make it from where the view has the bytes. */
static kvt_status executor_bound_put(store_op *op)
{
    const kvt_codec_workers *workers = op->store->workers;
    kvt_status status = executor_bound_op(op);
    if (status != KVT_OK || op->groups.count != 0 || op->spec.variant.codec == KVT_CODEC_RAW ||
        kvt_variant_drops_tokens(op->spec.variant) || !view_is_apart(op->views, &op->spec.layout))
        return status;
    return kvt_record_scratch_view(&op->spec, workers != NULL ? workers->count : 1,
                                   &op->scratch_bytes);
}

/* put: makes the record from the caller's bytes, in its tier or in staging. */
kvt_status stage_encode(store_op *op)
{
    assert((op->views != NULL) != (op->gpu != NULL) && op->move->kind == KVT_MOVE_PUT);
    assert(op->source == NULL && op->staging.memory == NULL);
    executor_fill_spec(op);
    if (!bases_has(op->store, op->spec.variant)) return executor_refuse_form(op);
    executor_set_generation(op);
    if (op->gpu != NULL) {
        const store_gpu_source source = {
            .site = op->gpu->site, .layout = op->gpu->layouts, .view = op->gpu->far};
        if (op->gpu->count == 1 && executor_encode_there(op, &source) == KVT_OK)
            return executor_note_size(op, KVT_OK);
        const kvt_status brought = store_gpu_bring(op->gpu);
        if (brought != KVT_OK) return brought;
        op->views = op->gpu->packed;
    }
    kvt_status status = executor_bound_put(op);
    if (status == KVT_E_UNSUPPORTED && op->spec.variant.codec == KVT_CODEC_TRANSFORM)
        return executor_refuse_form(op);
    if (status != KVT_OK) return status;
    status = executor_may_encode_in_place(op) ? executor_encode_in_place(op) : KVT_MISS;
    if (status == KVT_MISS) status = executor_encode_staged(op);
    return executor_note_size(op, status);
}

/* Reserves the second place of a relayout or a copy. The policy does not know of that room, so
 * `draining` counts it meanwhile, and a planned move that lacks room waits for it as for a reader.
 * The unplanned move itself never waits. */
static kvt_status executor_reserve_relayout(store_op *op)
{
    assert(!op->planned && !op->owes);
    kvt_store *store = op->store;
    op->owes = true;
    pthread_mutex_lock(&store->lock);
    store->draining[op->tier]++;
    pthread_mutex_unlock(&store->lock);
    kvt_status status = executor_take(op);
    op->no_room = status == KVT_E_SPACE;
    return status;
}

/* How long a move waits for readers of places that were replaced. */
#define RESERVE_PATIENCE_NS UINT64_C(1000000000)

/* Waits until a place has been given back since `drained` was counted. False at the instant. */
static bool executor_await_drain(kvt_store *store, uint64_t drained, uint64_t until_ns)
{
    bool waiting = true;
    pthread_mutex_lock(&store->lock);
    while (waiting && store->drained == drained)
        waiting = base_condition_wait_until(&store->changed, &store->lock, until_ns);
    waiting = store->drained != drained;
    pthread_mutex_unlock(&store->lock);
    return waiting;
}

/*
 * Takes extents. Room that the policy counts as free may be owed: by the catalog, which hands
 * extents back with the commit of the row's deletion, or by a reader of a place that was replaced.
 * Both are waited for; then copies make way; only a tier without those is full. The wait for
 * readers is bounded: the reader may be a load whose owner's thread waits here.
 */
kvt_status stage_reserve(store_op *op)
{
    uint64_t until_ns = 0;
    assert(op->tier != KVT_TIER_NONE && op->record_bytes > 0);
    assert((op->location != NULL) == op->written);
    if (op->written) return KVT_OK;
    kvt_store *store = op->store;
    if (!op->planned) return executor_reserve_relayout(op);
    for (;;) {
        /* Looked at in the order in which room passes: reader, catalog, pool. */
        pthread_mutex_lock(&store->lock);
        uint64_t drained = store->drained;
        bool draining = store->draining[op->tier] != 0;
        pthread_mutex_unlock(&store->lock);
        bool owed = store->catalog != NULL && op->tier == KVT_TIER_SSD &&
                    catalog_pending_release(store->catalog);
        kvt_status status = executor_take(op);
        if (status == KVT_OK && op->tier == KVT_TIER_SSD) {
            pthread_mutex_lock(&store->lock);
            copies_trim(store);
            pthread_mutex_unlock(&store->lock);
        }
        if (status != KVT_E_SPACE) return status;
        if (!owed && !draining) {
            if (op->tier == KVT_TIER_SSD && copies_reclaim(store, op->record_bytes)) continue;
            if (quarantine_reclaim(store, op->tier, op->record_bytes)) continue;
            op->no_room = true;
            return status;
        }
        executor_before_wait(op);
        if (owed) {
            status = catalog_settle(store->catalog);
            if (status != KVT_OK) return status;
            continue;
        }
        if (until_ns == 0) until_ns = base_clock_ns() + RESERVE_PATIENCE_NS;
        op->held = !executor_await_drain(store, drained, until_ns);
        if (op->held) return KVT_E_SPACE;
    }
}

/* Writes the record to its extents, with its note where a catalog exists. */
kvt_status stage_write(store_op *op)
{
    assert(op->location != NULL && (op->record == NULL) == op->written);
    if (op->serial != 0) return executor_fly(op); /* a flight that has landed */
    learn_transfer transfer;
    op->serial = executor_next_serial(op->store);
    if (op->written) return KVT_OK;
    if (op->store->catalog != NULL && op->tier == KVT_TIER_SSD) {
        /* The placement note, from which a lost catalog is rebuilt. */
        assert(op->serial != 0 && op->tier == KVT_TIER_SSD);
        const store_entry *entry = op->entry;
        placement_note note = {.serial = op->serial,
                               .has_parent = entry->has_parent,
                               .parent = entry->parent,
                               .recompute_seconds = entry->recompute_seconds,
                               .expires_ns = lifetime_to_calendar(op->store, entry),
                               .tenant = entry->tenant,
                               .class_id = entry->class_id,
                               .request_tokens = entry->request_tokens,
                               .location = op->location};
        memcpy(note.pool, op->store->pool_id, sizeof note.pool);
        placement_note_attach(&note, op->record);
    }
    if (op->flight != NULL && !tiers_pool_in_memory(op->store->pools[op->tier]))
        return executor_fly(op);
    const transfer_watch *watch = learn_watch(op->store, op->tier, KVT_IO_WRITE, &transfer);
    const tiers_transfer write = {.kind = KVT_IO_WRITE,
                                  .waited = op->for_put,
                                  .location = op->location,
                                  .buffer = op->record,
                                  .bytes = op->record_bytes};
    return transfer_write(op->store->staging, op->store->pools[op->tier], &write, watch,
                          &op->staging);
}
