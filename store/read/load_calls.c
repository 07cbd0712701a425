/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_calls.c - what the owner of a layered load calls: begin, wait, release, status, end. The
 * file starts no read and decodes nothing; load.c does.
 *
 * Thread rule: as the public header says. The store's lock is taken alone.
 */
#include "store/background/lifetime.h"
#include "store/read/load_internal.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "base/wait.h"
#include "codecs/codecs.h"
#include "codecs/record_stored.h"
#include "codecs/view_rows.h"
#include "store/gpu/gpu_far.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/learn/uses.h"
#include "store/read/groups.h"
#include "store/read/lookups.h"
#include "store/read/queue_internal.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <kvterrace/coding.h>
#include <kvterrace/gpu.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_ENTRIES_MAX   65536u
#define LOAD_AHEAD_DEFAULT 2u
#define LOAD_AHEAD_MAX     64u
#define LOAD_STEP          256u                /* entries under one hold of the store's lock */
#define LOAD_CHECK_NS      UINT64_C(100000000) /* between two looks at devices */
#define LOAD_OPTIONS_LEAST STRUCT_SIZE_THROUGH(kvt_load_options, announced_context)
#define LOAD_RESULT_LEAST  STRUCT_SIZE_THROUGH(kvt_load_result, bytes_shared)

/* ---- holding entries ---- */

bool store_load_take_layouts(load_entry *entry, const entry_kind *kind)
{
    entry->grouped = kind->group_count != 0;
    if (entry->section_count != (entry->grouped ? kind->group_count : 1)) return false;
    uint32_t layers = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < entry->section_count; i++) {
        load_section *section = &entry->sections[i];
        section->layout = entry->grouped ? kind->groups[i] : kind->layout;
        section->first_layer = layers;
        section->packed_at = at;
        layers += section->layout.layers;
        at += entry->grouped ? groups_bytes(&section->layout) : kind->source_bytes;
    }
    return true;
}

/* Holds the entry under a key, and counts the use. KVT_QUEUED: it is held; KVT_MISS;
 * KVT_E_MISMATCH: the store lacks its basis; KVT_E_ARGUMENT: it has another number of groups. The
 * store's lock is held. */
static kvt_status load_hold(kvt_load *load, load_entry *entry, store_entry *found,
                            uint64_t *clock_ns)
{
    kvt_store *store = load->store;
    assert(store_is_locked(store) && entry->place == NULL && entry->staged == NULL);
    if (!lifetime_shows(store, found) || token_drop_is_uncounted(found)) return KVT_MISS;
    if (access_loses_too_much(store, found, load->options.loss_max)) return KVT_MISS;
    if (lookup_lacks_basis(store, found)) {
        entry->tier = found->place->tier;
        entry->variant = found->place->variant;
        return KVT_E_MISMATCH;
    }
    if (!store_load_take_layouts(entry, found->kind)) return KVT_E_ARGUMENT;
    entry->layout = found->kind->layout;
    entry->data_bytes = found->kind->source_bytes;
    entry->tier = KVT_TIER_DRAM;
    entry->variant.codec = KVT_CODEC_RAW;
    if (found->state == ENTRY_STAGED) {
        entry->staged = found->staged;
        handover_join(entry->staged);
        uses_count(store, found, clock_ns);
        return KVT_QUEUED;
    }
    store_place *place = found->place;
    tiers_pool *pool = store->pools[place->tier];
    entry->lent = tiers_pool_lends(pool, place->location);
    if (entry->lent) {
        entry->record = tiers_pool_lend(pool, place->location);
        if (entry->record == NULL) return KVT_MISS;
        if (load->gpu != NULL) entry->home = store_gpu_home(pool, place->location);
    } else if (load->gpu != NULL && load->options.as_stored == 0)
        entry->far = store_gpu_load_lend(load, place);
    /* The count keeps the place and its extents until load_let_go, wherever the entry moves. */
    place->readers++;
    entry->place = place;
    entry->tier = place->tier;
    entry->variant = place->variant;
    entry->record_bytes = place->record_bytes;
    entry->scratch_bytes = place->scratch_bytes;
    entry->expected = place_expects(store, &found->key, place);
    entry->by_cpu = place->by_cpu;
    store_coarse_hold(load, entry, found);
    if (!load_is_near(entry)) load_share_enter(entry, found->read, load_take_offer);
    uses_count(store, found, clock_ns);
    return KVT_QUEUED;
}

/* Gives up the hold of an entry. The store's lock is held. */
static void load_let_go(kvt_load *load, load_entry *entry)
{
    kvt_store *store = load->store;
    store_place *place = entry->place;
    assert(store_is_locked(store) && (place == NULL || entry->staged == NULL));
    if (entry->staged != NULL) handover_leave(store, entry->staged);
    entry->staged = NULL;
    if (place == NULL) return;
    load_share_leave(entry);
    if (entry->lent || entry->far != 0)
        tiers_pool_take_back(store->pools[place->tier], place->location, KVT_IO_READ,
                             place->record_bytes);
    place_leave(store, place);
    entry->place = NULL;
}

/* Whether an entry was not waited for any longer. */
static bool load_is_late(const load_entry *entry)
{
    return entry->status == KVT_QUEUED || entry->status == KVT_E_TIMEOUT;
}

/* Counts how an entry ended, as a get. The store's lock is held. */
static void load_count(kvt_store *store, const load_entry *entry)
{
    assert(store_is_locked(store));
    store->counters.gets++;
    if (entry->status != KVT_OK && entry->status != KVT_COARSE) {
        store->counters.misses++;
        if (load_is_late(entry)) store->counters.timeouts++;
        store->counters.refused.basis += entry->status == KVT_E_MISMATCH;
        return;
    }
    if (entry->tier != KVT_TIER_REMOTE) store->counters.tiers[entry->tier].hits++;
    if (entry->staged != NULL) store->counters.staged_hits++;
}

/* Tells the store's watchers how an entry ended, as of a get. No lock held. */
static void load_note(const kvt_load *load, const load_entry *entry)
{
    kvt_store *store = load->store;
    const bool coarse = entry->status == KVT_COARSE;
    const bool said = entry->status == KVT_OK || entry->status == KVT_E_MISMATCH;
    const kvt_get_info info = {.struct_size = sizeof info,
                               .tier = entry->tier,
                               .variant =
                                   coarse ? entry->coarse->said.coarse_variant : entry->variant,
                               .stored_bytes = entry->record_bytes,
                               .timed_out = load_is_late(entry),
                               .elapsed_ns = store_now_ns(store) - load->began_ns};
    watch_note_get(store, &(watch_get){.key = &entry->key,
                                       .info = &info,
                                       .began_ns = load->began_ns,
                                       .status = coarse ? KVT_OK
                                                 : said ? entry->status
                                                        : KVT_MISS,
                                       .tokens = entry->layout.tokens,
                                       .data_bytes = entry->data_bytes});
}

/* Gives everything back, counts, and looks once more at the entries whose load failed: damaged ones
 * leave the store. */
static void load_free_entries(kvt_load *load, bool counts)
{
    kvt_store *store = load->store;
    uint64_t came = 0;
    assert(load->flying == 0 && load->heads == 0);
    for (size_t from = 0; from < load->count; from += LOAD_STEP) {
        pthread_mutex_lock(&store->lock);
        for (size_t i = from; i < load->count && i < from + LOAD_STEP; i++) {
            load_entry *entry = &load->entries[i];
            const kvt_status fault =
                entry->status == KVT_COARSE ? entry->coarse->fault : entry->status;
            entry->damaged = entry->place != NULL && fault == KVT_MISS;
            /* A record that the CPU takes and kernels do not is no miss for good. */
            if (entry->unsound && entry->place != NULL) entry->place->by_cpu = true;
            if (counts) load_count(store, entry);
            came += entry->status == KVT_OK || entry->status == KVT_COARSE;
            load_let_go(load, entry);
        }
        pthread_mutex_unlock(&store->lock);
    }
    if (came != 0) {
        learn_notes_begin(store);
        learn_note_targets(store, load->gpu != NULL, came);
        learn_notes_end(store);
    }
    for (size_t i = 0; i < load->count; i++) {
        if (load->entries[i].ask != NULL) load_end_remote(load, &load->entries[i]);
        for (uint32_t k = 0; k < load->entries[i].section_count; k++)
            free(load->entries[i].sections[k].head);
        if (counts) load_note(load, &load->entries[i]);
        /* A get of its own finds out whether the record or a device failed, and drops the entry. */
        if (load->entries[i].damaged) access_time_entry(store, &load->entries[i].key);
    }
}

/* ---- begin ---- */

kvt_status store_load_open_lent(load_entry *entry)
{
    kvt_status status = load_open_table(entry, entry->record, entry->record_bytes);
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        load_section *section = &entry->sections[i];
        if (section->head_bytes != 0)
            status =
                load_open_head(entry, section, (const uint8_t *)entry->record + section->offset,
                               section->bytes, true);
    }
    return status;
}

/* Checks the view of a section, and gives a packed buffer the strides of its layout. */
static kvt_status load_take_view(const kvt_load *load, load_section *section)
{
    if (section->view == NULL) return KVT_E_ARGUMENT;
    kvt_status status;
    if (section->view->bases_kind != KVT_BASES_PACKED) {
        status = kvt_view_check(section->view, &section->layout, NULL, 0);
    } else {
        kvt_view *own = &load->packed[section - load->sections];
        status = groups_take_view(&section->layout, 1, false, section->view, own);
        section->view = own;
    }
    return status == KVT_OK && load->gpu != NULL ? store_gpu_load_check(load, section) : status;
}

/* The same for stored bytes. */
static kvt_status load_take_run(const kvt_load *load, const load_entry *entry)
{
    const load_section *section = entry->sections;
    const kvt_view *view = section->view;
    if (entry->grouped || view == NULL || view->bases_kind != KVT_BASES_PACKED ||
        view->base[0] == NULL || (uintptr_t)view->base[0] % KVT_CODING_ALIGN != 0)
        return KVT_E_ARGUMENT;
    if (entry->staged != NULL) return KVT_BUSY;
    if (view->base_bytes[0] < entry->record_bytes) return KVT_E_SPACE;
    return store_gpu_load_check(load, section);
}

/* Checks a held entry against the load: its layers, its views. KVT_QUEUED: sound. */
static kvt_status load_check_entry(kvt_load *load, load_entry *entry)
{
    const load_section *last = &entry->sections[entry->section_count - 1];
    const uint32_t layers = last->first_layer + last->layout.layers;
    kvt_status status = KVT_OK;
    if (layers == 0) return KVT_E_ARGUMENT;
    if (load->layers == 0) load->layers = layers;
    if (layers != load->layers) return KVT_E_ARGUMENT;
    if (load->options.as_stored != 0) {
        status = load_take_run(load, entry);
    } else {
        for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++)
            status = load_take_view(load, &entry->sections[i]);
    }
    if (status != KVT_OK) return status;
    if (entry->staged != NULL) return KVT_QUEUED;
    if (entry->lent) {
        status = store_load_open_lent(entry);
        if (status == KVT_OK) store_coarse_open(entry);
    } else
        status = load_open_table(entry, NULL, 0);
    if (status == KVT_OK) return KVT_QUEUED;
    return status == KVT_E_MEMORY ? status : KVT_MISS;
}

/* Fails entries that would be written over an earlier one, or twice in one place. Without memory
 * for the check none fails: bytes of overlapping views are undefined, no more. */
static void load_check_overlaps(kvt_load *load)
{
    queue_view *views =
        malloc(load->section_count * sizeof *views + load->count * sizeof(kvt_status));
    uint32_t sound = 0;
    if (views == NULL) return;
    kvt_status *statuses = (kvt_status *)(void *)(views + load->section_count);
    for (size_t i = 0; i < load->count; i++) {
        const load_entry *entry = &load->entries[i];
        statuses[i] = entry->status;
        if (statuses[i] != KVT_QUEUED) continue;
        for (uint32_t k = 0; k < entry->section_count; k++) {
            const kvt_layout *layout = &entry->sections[k].layout;
            const kvt_view *view = entry->sections[k].view;
            uint64_t bytes = entry->grouped ? groups_bytes(layout) : entry->data_bytes;
            if (load->options.as_stored != 0) bytes = view->base_bytes[0];
            views[sound++] = (queue_view){
                .view = view, .tokens = layout->tokens, .bytes = bytes, .status = &statuses[i]};
        }
    }
    queue_views_check(views, sound);
    for (size_t i = 0; i < load->count; i++)
        load->entries[i].status = statuses[i];
    free(views);
}

/* Holds all entries that are here. */
static void load_hold_all(kvt_load *load, const kvt_key *keys)
{
    kvt_store *store = load->store;
    _Static_assert(LOAD_STEP <= ENTRY_SIGHT_KEYS, "a step is one look-up");
    for (size_t from = 0; from < load->count; from += LOAD_STEP) {
        const size_t step = load->count - from < LOAD_STEP ? load->count - from : LOAD_STEP;
        uint64_t clock_ns = 0;
        entry_sight sight;
        entry_sight_begin(&sight, &store->secret, &keys[from], step);
        pthread_mutex_lock(&store->lock);
        for (size_t i = 0; i < step; i++) {
            load_entry *entry = &load->entries[from + i];
            store_entry *found = entry_sight_find(&store->table, &sight, i);
            entry->status = load_hold(load, entry, found, &clock_ns);
        }
        pthread_mutex_unlock(&store->lock);
    }
}

/* Checks all entries that are held. False: none is left to load. */
static bool load_check_all(kvt_load *load)
{
    bool any = false;
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        /* The next record's head comes while this one is looked at. */
        if (i + 1 < load->count && load->entries[i + 1].lent)
            kvt_record_prefetch(load->entries[i + 1].record);
        if (entry->status == KVT_QUEUED) entry->status = load_check_entry(load, entry);
    }
    load_check_overlaps(load);
    if (load->gpu != NULL) store_gpu_load_open_far(load);
    for (size_t i = 0; i < load->count && !any; i++)
        any = load->entries[i].status == KVT_QUEUED;
    return any;
}

/* Frees a load whose entries hold nothing. */
static void load_free(kvt_load *load)
{
    assert(load->flying == 0);
    pthread_mutex_destroy(&load->lock);
    pthread_mutex_destroy(&load->announce_lock);
    pthread_cond_destroy(&load->changed);
    free(load->entries);
    free(load->sections);
    free(load->packed);
    store_coarse_free(load);
    free(load->layer_states);
    free(load->cells);
    free(load->groups);
    free(load->parts);
    free(load->pending);
    if (load->gpu != NULL) store_gpu_load_free(load);
    free(load);
}

/* Makes the groups of entries that lie in memory: neighbours, as long as a layer of them all is
 * short work. */
static bool load_make_groups(kvt_load *load)
{
    uint64_t bytes = 0;
    load->groups = calloc(load->count, sizeof *load->groups);
    if (load->groups == NULL) return false;
    for (size_t i = 0; i < load->count; i++) {
        const load_entry *entry = &load->entries[i];
        if (entry->status != KVT_QUEUED || !load_is_near(entry)) continue;
        load_group *group = load->group_count != 0 ? &load->groups[load->group_count - 1] : NULL;
        if (group == NULL || i - group->first >= LOAD_GROUP_ENTRIES || bytes > LOAD_GROUP_BYTES) {
            group = &load->groups[load->group_count++];
            group->first = i;
            bytes = 0;
        }
        bytes += entry->data_bytes / load->plain;
        group->end = i + 1;
    }
    load->parts = calloc(load->group_count * load->slots + 1, sizeof *load->parts);
    for (uint32_t i = 0; i < LOAD_POKES; i++) {
        load_poke *poke = &load->pokes[i];
        *poke = (load_poke){.task = {.run = load_poked, .context = poke}, .load = load};
    }
    return load->parts != NULL;
}

/* Makes the cells of the entries that are read. */
static bool load_make_cells(kvt_load *load)
{
    size_t read = 0;
    for (size_t i = 0; i < load->count; i++)
        read += load->entries[i].status == KVT_QUEUED && !load_is_near(&load->entries[i]);
    load->cells = calloc(read * load->slots + 1, sizeof *load->cells);
    load->layer_states = calloc(read * load->layers + 1, sizeof *load->layer_states);
    if (load->cells == NULL || load->layer_states == NULL) return false;
    atomic_uchar *states = load->layer_states;
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        if (entry->status != KVT_QUEUED || load_is_near(entry)) continue;
        entry->cells_at = load->cell_count;
        entry->layers = states;
        states += load->layers;
        for (uint32_t k = 0; k < load->slots; k++) {
            load_cell *cell = &load->cells[load->cell_count++];
            cell->load = load;
            cell->entry = i;
            cell->task = (queue_task){.run = load_run, .context = cell};
            cell->waiter = (read_waiter){.ended = load_landed, .context = cell};
        }
    }
    assert(load->cell_count == read * load->slots);
    return true;
}

/* Makes the groups that carry the layers out, once their number is known. */
static bool load_make_window(kvt_load *load)
{
    uint64_t window = (uint64_t)load->options.layers_ahead + 1;
    load->slots = window < load->layers ? (uint32_t)window : load->layers;
    assert(load->slots > 0 && load->cells == NULL);
    load->pending = calloc(load->slots, sizeof *load->pending);
    if (load->gpu != NULL && !store_gpu_load_make_marks(load)) return false;
    return load->pending != NULL && load_make_groups(load) && load_make_cells(load);
}

/* Sections that an entry's view names: one for each group, or one. */
static uint32_t load_sections(const kvt_view *view)
{
    return groups_are_named(view) ? view->group_count : 1;
}

/* Gives the entries of a load their sections, and these their views. False: no memory. */
static bool load_make_sections(kvt_load *load, const kvt_view *const *views)
{
    bool packed = false;
    for (size_t i = 0; i < load->count; i++)
        load->section_count += load_sections(views[i]);
    load->sections = calloc(load->section_count, sizeof *load->sections);
    if (load->sections == NULL) return false;
    load_section *section = load->sections;
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        const bool named = groups_are_named(views[i]);
        entry->sections = section;
        entry->section_count = load_sections(views[i]);
        for (uint32_t k = 0; k < entry->section_count; k++, section++) {
            section->view = named ? views[i]->groups[k] : views[i];
            packed =
                packed || (section->view != NULL && section->view->bases_kind == KVT_BASES_PACKED);
        }
    }
    if (packed) load->packed = calloc(load->section_count, sizeof *load->packed);
    return !packed || load->packed != NULL;
}

/* Makes a load without cells. NULL without memory. */
static kvt_load *load_make(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                           size_t count, const kvt_load_options *options)
{
    kvt_load *load = calloc(1, sizeof *load);
    if (load == NULL) return NULL;
    pthread_mutex_init(&load->lock, NULL);
    pthread_mutex_init(&load->announce_lock, NULL);
    base_condition_init(&load->changed);
    load->queue = queue;
    load->forks = queue->forks;
    load->store = queue->store;
    load->began_ns = store_now_ns(queue->store);
    load->check_ns = base_clock_ns() + LOAD_CHECK_NS;
    load->options = *options;
    if (load->options.layers_ahead == 0) load->options.layers_ahead = LOAD_AHEAD_DEFAULT;
    load->count = count;
    load->entries = calloc(count, sizeof *load->entries);
    if (load->entries == NULL || !load_make_sections(load, views) || !store_coarse_make(load)) {
        load_free(load);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        load->entries[i].key = keys[i];
        load->entries[i].load = load;
    }
    return load;
}

kvt_status load_open(kvt_load *load)
{
    assert(!load->asks && !load->empty);
    load->reads = false;
    if (!load_check_all(load)) return KVT_MISS;
    load->plain = load->layers;
    if (load->options.coarse_planes != 0) load->layers *= 2;
    if (!load_make_window(load)) return KVT_E_MEMORY;
    if (load->released > load->layers) load->released = load->layers;
    load_begin_reads(load);
    return KVT_OK;
}

/* Opens a load within its begin. */
static kvt_status load_open_now(kvt_load *load)
{
    if (load->asks) load_take_answers(load);
    pthread_mutex_lock(&load->lock);
    if (load->asks) load_use_answers(load);
    const kvt_status status = load_open(load);
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* Checks the arguments of a begin. */
static kvt_status load_check_begin(kvt_queue *queue, const kvt_key *keys,
                                   const kvt_view *const *views, size_t count,
                                   const kvt_load_options *options, kvt_load *const *load_out)
{
    if (queue == NULL || keys == NULL || views == NULL || load_out == NULL) return KVT_E_ARGUMENT;
    if (count == 0 || count > LOAD_ENTRIES_MAX || options == NULL) return KVT_E_ARGUMENT;
    if (options->layers_ahead > LOAD_AHEAD_MAX || !(options->loss_max <= 1)) return KVT_E_ARGUMENT;
    if (options->coarse_planes >= KVT_PLANES_MAX || options->as_stored > 1) return KVT_E_ARGUMENT;
    for (size_t i = 0; i < count; i++)
        if (views[i] == NULL || view_is_far(views[i]) != view_is_far(views[0]))
            return KVT_E_ARGUMENT;
    if (options->as_stored != 0 && (!view_is_far(views[0]) || options->coarse_planes != 0))
        return KVT_E_ARGUMENT;
    return queue_is_ours(queue) ? KVT_OK : KVT_E_STATE;
}

kvt_status kvt_load_begin(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                          size_t count, const kvt_load_options *options, kvt_load **load_out)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->load_begin(queue, keys, views, count, options, load_out);
    kvt_load_options whole = {.struct_size = sizeof whole, .deadline_ns = KVT_NO_DEADLINE};
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole, LOAD_OPTIONS_LEAST);
    kvt_status status = load_check_begin(queue, keys, views, count, options, load_out);
    if (status != KVT_OK) return status;
    if (queue->blocks) return KVT_E_UNSUPPORTED;
    kvt_load *load = load_make(queue, keys, views, count, options);
    if (load == NULL) return KVT_E_MEMORY;
    if (view_is_far(views[0])) status = store_gpu_load_open(load, views[0]);
    if (status != KVT_OK) {
        load_free(load);
        return status;
    }
    load_hold_all(load, keys);
    load->asks = queue->store->remote != NULL && load_may_ask(load);
    if (!queue_enter_load(queue, load))
        status = KVT_E_STATE;
    else if (!load->asks || load_ask_others(load))
        status = load_open_now(load);
    if (status != KVT_OK) {
        (void)queue_leave_load(queue, load);
        load_free_entries(load, status == KVT_MISS);
        load_free(load);
        return status;
    }
    *load_out = load;
    return KVT_OK;
}

/* ---- wait, release, status ---- */

uint32_t kvt_load_layers(const kvt_load *load)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (other != NULL) return other->layers(load);
    return fork_guard_is_current(load->forks) ? atomic_load(&load->complete) : 0;
}

uint32_t kvt_load_total(kvt_load *load, bool *reads_out)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (reads_out != NULL) *reads_out = false;
    if (other != NULL) return other->total(load, reads_out);
    if (load == NULL || !fork_guard_is_current(load->forks)) return 0;
    pthread_mutex_lock(&load->lock);
    const uint32_t layers = load->asks ? 0 : load->layers;
    if (reads_out != NULL) *reads_out = load->reads;
    pthread_mutex_unlock(&load->lock);
    return layers;
}

/* Whether a wait is over, and how. Lock held. */
static kvt_status load_wait_status(const kvt_load *load, uint32_t layers, bool waiting)
{
    if (atomic_load(&load->complete) >= layers) return KVT_OK;
    if (load->orphan) return KVT_E_STATE;
    if (load->empty) return KVT_MISS;
    if (!load->asks && layers > load->layers) return KVT_E_ARGUMENT;
    return waiting ? KVT_QUEUED : KVT_E_TIMEOUT;
}

kvt_status kvt_load_wait(kvt_load *load, uint32_t layers, uint64_t deadline_ns)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (load == NULL) return KVT_E_ARGUMENT;
    if (other != NULL) return other->wait(load, layers, deadline_ns);
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    const uint64_t given_ns = deadline_ns;
    bool waiting = true;
    pthread_mutex_lock(&load->lock);
    kvt_status status;
    while ((status = load_wait_status(load, layers, waiting)) == KVT_QUEUED) {
        uint64_t now_ns = base_clock_ns();
        const bool own = load->reads && load->options.deadline_ns < given_ns;
        deadline_ns = own ? load->options.deadline_ns : given_ns;
        if (now_ns >= load->check_ns) {
            load->check_ns = now_ns + LOAD_CHECK_NS;
            pthread_mutex_unlock(&load->lock);
            load_check_devices(load);
            pthread_mutex_lock(&load->lock);
        }
        waiting = base_clock_ns() < deadline_ns;
        if (load_wait_status(load, layers, waiting) != KVT_QUEUED) continue;
        /* The owner's thread has nothing else to do; a wake of another one would take longer. */
        if (load_step(load)) continue;
        base_condition_wait_until(&load->changed, &load->lock,
                                  load->check_ns < deadline_ns ? load->check_ns : deadline_ns);
    }
    pthread_mutex_unlock(&load->lock);
    return status;
}

kvt_status kvt_load_wait_layer(kvt_load *load, uint32_t layer, void *stream)
{
    if (load == NULL || layer == UINT32_MAX) return KVT_E_ARGUMENT;
    if (base_load_calls_of(load) != NULL) { /* of another process's store: into the host's memory */
        const base_handle *head = (const base_handle *)(const void *)load;
        return fork_guard_is_current(head->forks) ? KVT_E_ARGUMENT : KVT_E_STATE;
    }
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    if (load->gpu == NULL) return KVT_E_ARGUMENT;
    const kvt_status status = kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE);
    return status == KVT_OK ? store_gpu_load_follow(load, layer, stream) : status;
}

kvt_status kvt_load_stored_of(kvt_load *load, size_t index, uint32_t layer,
                              kvt_load_stored *stored_out)
{
    kvt_load_stored whole = {.struct_size = sizeof whole};
    if (load == NULL || stored_out == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(stored_out, sizeof whole)) return KVT_E_ARGUMENT;
    if (base_load_calls_of(load) != NULL) return KVT_E_STATE;
    if (!fork_guard_is_current(load->forks) || load->options.as_stored == 0) return KVT_E_STATE;
    if (index >= load->count) return KVT_E_ARGUMENT;
    const load_entry *entry = &load->entries[index];
    const load_section *section = entry->sections;
    pthread_mutex_lock(&load->lock);
    kvt_status status = entry->status;
    whole.variant = entry->variant;
    whole.record_bytes = entry->record_bytes;
    if (load->ending)
        status = KVT_E_STATE; /* its heads may be gone */
    else if (load->asks || load->heads != 0)
        status = KVT_BUSY;
    else if (status != KVT_QUEUED && status != KVT_OK)
        status = status == KVT_E_SPACE ? status : KVT_MISS;
    else if (section->head == NULL)
        status = KVT_BUSY;
    else if (layer >= section->layout.layers)
        status = KVT_E_ARGUMENT;
    else {
        whole.layers = kvt_record_head_together(section->head, layer);
        status = kvt_record_head_segments(section->head, layer, whole.segments,
                                          KVT_LOAD_SEGMENTS_MAX, &whole.segment_count);
    }
    pthread_mutex_unlock(&load->lock);
    if (status == KVT_OK || status == KVT_E_SPACE)
        struct_size_out(stored_out, &whole, sizeof whole);
    return status;
}

void kvt_load_release(kvt_load *load, uint32_t layers)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (other != NULL) {
        other->release(load, layers);
        return;
    }
    if (load == NULL || !fork_guard_is_current(load->forks)) return;
    pthread_mutex_lock(&load->lock);
    if (!load->asks && layers > load->layers) layers = load->layers;
    if (layers > load->released) load->released = layers;
    if (!load->orphan) load_pump(load);
    pthread_mutex_unlock(&load->lock);
}

/* An entry's status, as far as it has come. Lock held. */
static kvt_status load_status_now(const kvt_load *load, const load_entry *entry)
{
    const bool coarse = entry->status == KVT_QUEUED &&
                        atomic_load(&load->complete) >= load->plain && load_has_coarse(entry);
    return coarse ? KVT_COARSE : entry->status;
}

kvt_status kvt_load_status(kvt_load *load, size_t index)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (other != NULL) return other->status(load, index);
    if (load == NULL || index >= load->count) return KVT_E_ARGUMENT;
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    if (load->coarse == NULL && load->gpu == NULL) return load->entries[index].status;
    pthread_mutex_lock(&load->lock);
    const load_entry *entry = &load->entries[index];
    kvt_status status = load_status_now(load, entry);
    /* The GPU's verdicts are read at the end, or when all is there in its coarse form. */
    const bool said = status == KVT_OK || status == KVT_COARSE;
    if (said && load->gpu != NULL && !load->orphan) {
        status = KVT_QUEUED;
        if (load->coarse != NULL && atomic_load(&load->complete) >= load->plain) {
            load->busy++;
            pthread_mutex_unlock(&load->lock);
            store_gpu_load_settle(load);
            pthread_mutex_lock(&load->lock);
            load->busy--;
            status = load_status_now(load, entry);
        }
    }
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* ---- end ---- */

void load_orphan(kvt_load *load)
{
    pthread_mutex_lock(&load->lock);
    load->ending = true;
    pthread_mutex_unlock(&load->lock);
    load_stop(load);
    for (size_t i = 0; i < load->count; i++)
        load->entries[i].status = load_status_now(load, &load->entries[i]);
    if (load->gpu != NULL) store_gpu_load_finish(load);
    load_free_entries(load, true);
    pthread_mutex_lock(&load->lock);
    assert(load->ending && !load->orphan);
    load->orphan = true;
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
}

kvt_status kvt_load_end(kvt_load *load, kvt_status *statuses, kvt_load_result *result_out)
{
    const base_load_calls *other = base_load_calls_of(load);
    if (other != NULL) return other->end(load, statuses, result_out);
    bool sized = result_out == NULL || struct_size_is_sound(result_out, LOAD_RESULT_LEAST);
    if (load == NULL) return sized ? KVT_OK : KVT_E_ARGUMENT;
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    pthread_mutex_lock(&load->lock);
    bool orphan = load->orphan;
    pthread_mutex_unlock(&load->lock);
    if (!orphan && queue_leave_load(load->queue, load)) load_orphan(load);
    kvt_load_result whole = {.struct_size = sizeof whole,
                             .layers = atomic_load(&load->complete),
                             .bytes_read = load->bytes_read,
                             .bytes_shared = load->bytes_shared};
    bool leading = true;
    for (size_t i = 0; i < load->count; i++) {
        kvt_status status = load->entries[i].status;
        if (status == KVT_QUEUED) status = KVT_E_TIMEOUT;
        leading = leading && status == KVT_OK;
        if (leading) whole.entries++;
        if (statuses != NULL) statuses[i] = status;
        whole.coarse += load_has_coarse(&load->entries[i]);
    }
    if (result_out != NULL && sized) struct_size_out(result_out, &whole, sizeof whole);
    load_free(load);
    return sized ? KVT_OK : KVT_E_ARGUMENT;
}
