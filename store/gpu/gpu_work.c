/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_work.c - see gpu_work.h. Memory is given back, and verdicts are read, when a piece is waited
 * for; that happens when the owner says so, and when too much pinned memory is under copies.
 *
 * Thread rule: as the header says; `lock` guards the pieces and the open batch.
 */
#include "store/gpu/gpu_work.h"

#include "codecs/codecs.h"
#include "codecs/record_stored.h"
#include "store/gpu/gpu_batch.h"
#include "store/gpu/gpu_far.h"
#include "store/gpu/gpu_views.h"
#include "store/read/groups.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WORK_FLYING UINT64_C(67108864) /* pinned bytes of a work that copies use, about */
#define WORK_BATCH  UINT64_C(16777216) /* pinned bytes of a batch that is launched at once */

/* Work in the stream: a layer of an entry that the CPU has decoded, or a batch. */
struct gpu_piece {
    struct gpu_piece *next;
    load_entry *entry;
    gpu_host *host;
    store_gpu_batch *batch; /* instead of these two; or NULL */
    uint64_t bytes;         /* pinned */
    gpu_event *event;       /* NULL: it has failed, */
    kvt_status status;      /* so */
};

void store_gpu_work_open(store_gpu_work *work, kvt_store *store, gpu_site *site)
{
    *work = (store_gpu_work){.store = store, .site = site};
    pthread_mutex_init(&work->lock, NULL);
}

void store_gpu_work_close(store_gpu_work *work)
{
    assert(work->first == NULL && work->open == NULL);
    pthread_mutex_destroy(&work->lock);
}

/* ---- pieces ---- */

/* Takes the oldest piece off: all, or only while too much is in flight. NULL: there is none. */
static gpu_piece *gpu_take_piece(store_gpu_work *work, bool all)
{
    pthread_mutex_lock(&work->lock);
    gpu_piece *piece = all || work->flying_bytes > WORK_FLYING ? work->first : NULL;
    if (piece != NULL) {
        work->first = piece->next;
        if (work->first == NULL) work->last = NULL;
        work->flying_bytes -= piece->bytes;
    }
    pthread_mutex_unlock(&work->lock);
    return piece;
}

/* Reads the verdicts of a batch whose work has ended, or has failed, so. */
static void gpu_end_batch(store_gpu_work *work, store_gpu_batch *batch, kvt_status status)
{
    for (uint32_t i = 0; i < store_gpu_batch_count(batch); i++) {
        const store_gpu_part *part = store_gpu_batch_part(batch, i);
        const kvt_status how = status == KVT_OK ? store_gpu_batch_verdict(batch, part) : status;
        const bool ran = how == KVT_OK || how == KVT_E_CORRUPT;
        gpu_count(work->site, how == KVT_OK ? GPU_DECODED_BY_GPU : GPU_UNSOUND,
                  ran ? part->layers : 0);
        gpu_count(work->site, GPU_DECODED_IN_PLACE, how == KVT_OK && part->far ? part->layers : 0);
        gpu_count(work->site, GPU_SENT_IN_PLACE, how == KVT_OK && part->here ? part->layers : 0);
        if (how != KVT_OK) work->failed(work->context, part->owner, how);
    }
    store_gpu_batch_free(batch);
}

/* Waits for a piece that was taken off, and gives back what it has. */
static void gpu_end_piece(store_gpu_work *work, gpu_piece *piece)
{
    kvt_status status = piece->status;
    if (piece->event != NULL) status = gpu_await(work->site, piece->event);
    if (status != KVT_OK) gpu_rest(work->site, GPU_IN);
    if (piece->batch != NULL)
        gpu_end_batch(work, piece->batch, status);
    else if (status != KVT_OK)
        work->failed(work->context, piece->entry, status);
    gpu_host_give(work->site, piece->host);
    gpu_event_give(work->site, piece->event);
    free(piece);
}

/* Waits for pieces. */
static void gpu_end_pieces(store_gpu_work *work, bool all)
{
    for (gpu_piece *piece = gpu_take_piece(work, all); piece != NULL;
         piece = gpu_take_piece(work, all))
        gpu_end_piece(work, piece);
}

/* Marks a piece whose work is in the stream, and lists it. Both happen under the lock, so that the
 * list is in the order of marks. Lock held. */
static void gpu_list_piece(store_gpu_work *work, gpu_piece *piece)
{
    if (piece->status == KVT_OK) piece->status = gpu_mark(work->site, GPU_IN, &piece->event);
    work->flying_bytes += piece->bytes;
    if (work->last != NULL)
        work->last->next = piece;
    else
        work->first = piece;
    work->last = piece;
}

/* Launches the batch that is open. One that fails fails its entries when it is taken off. Lock
 * held. */
static void gpu_launch_open(store_gpu_work *work)
{
    gpu_piece *piece = work->open;
    if (piece == NULL) return;
    work->open = NULL;
    piece->bytes = store_gpu_batch_bytes(piece->batch);
    piece->status = store_gpu_batch_launch(piece->batch);
    gpu_list_piece(work, piece);
}

/* ---- layers ---- */

/* An entry whose views of what comes with a layer are packed, in pinned memory. */
typedef struct gpu_shadow {
    load_entry entry;
    load_section *sections;
    kvt_view *views;
    void **bases; /* of the layers of the layer's own section */
} gpu_shadow;

static void gpu_free_shadow(gpu_shadow *shadow)
{
    free(shadow->sections);
    free(shadow->views);
    free(shadow->bases);
}

/* Makes a view of the layers [first, first + count) of a section, which lie one behind the other at
 * `at`. Returns the bytes behind them. */
static uint64_t gpu_view_layers(const kvt_layout *layout, uint32_t first, uint32_t count,
                                void **bases, uint8_t *at, kvt_view *view)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint64_t layer = matrix * kvt_layout_sides(layout);
    *view = codecs_packed_view(layout, NULL);
    view->bases_kind = KVT_BASES_LAYERS;
    view->base_bytes[0] = layer;
    view->bases = bases;
    view->side_stride = (int64_t)matrix;
    for (uint32_t i = 0; i < count; i++)
        bases[first + i] = at + i * layer;
    return count * layer;
}

/* Bytes of what comes with a layer: its section's layers, and the opaque sections around. */
static uint64_t gpu_bytes_of(const load_entry *entry, const load_section *own, uint32_t layers)
{
    uint64_t bytes =
        layers * kvt_layout_matrix_bytes(&own->layout) * kvt_layout_sides(&own->layout);
    for (uint32_t i = 0; i < entry->section_count; i++)
        if (entry->sections[i].layout.layers == 0)
            bytes += groups_bytes(&entry->sections[i].layout);
    return bytes;
}

/* Makes the shadow of an entry for a layer. False: no memory. */
static bool gpu_make_shadow(const load_entry *entry, const load_section *own, uint32_t layer,
                            uint32_t layers, uint8_t *at, gpu_shadow *shadow)
{
    const uint32_t count = entry->section_count;
    *shadow = (gpu_shadow){.entry = *entry,
                           .sections = malloc(count * sizeof *shadow->sections),
                           .views = calloc(count, sizeof *shadow->views),
                           .bases = calloc(own->layout.layers, sizeof *shadow->bases)};
    if (shadow->sections == NULL || shadow->views == NULL || shadow->bases == NULL) {
        gpu_free_shadow(shadow);
        return false;
    }
    memcpy(shadow->sections, entry->sections, count * sizeof *shadow->sections);
    shadow->entry.sections = shadow->sections;
    for (uint32_t i = 0; i < count; i++) {
        load_section *section = &shadow->sections[i];
        section->view = &shadow->views[i];
        if (&entry->sections[i] == own)
            at += gpu_view_layers(&own->layout, layer - own->first_layer, layers, shadow->bases, at,
                                  &shadow->views[i]);
        if (section->layout.layers != 0) continue;
        shadow->views[i] = codecs_packed_view(&section->layout, at);
        at += groups_bytes(&section->layout);
    }
    return true;
}

/* Copies what came with a layer out of the shadow. */
static kvt_status gpu_copy_shadow(const store_gpu_work *work, const load_entry *entry,
                                  const load_section *own, uint32_t layer, uint32_t layers,
                                  const gpu_shadow *shadow)
{
    const size_t index = (size_t)(own - entry->sections);
    const uint32_t first = layer - own->first_layer;
    const bool last = first + layers == own->layout.layers;
    const uint32_t tokens =
        own->head != NULL ? kvt_record_head_tokens(own->head) : own->layout.tokens;
    kvt_status status = store_gpu_copy_layers(work->site, GPU_IN, own->view, &own->layout, tokens,
                                              first, layers, &shadow->views[index]);
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        const load_section *section = &entry->sections[i];
        /* Opaque sections before the first layer come with it, others with the layer before. */
        const bool comes =
            section < own ? layer == 0 : last && section->first_layer == layer + layers;
        if (section->layout.layers != 0 || !comes) continue;
        status = store_gpu_copy_layers(work->site, GPU_IN, section->view, &section->layout, 0, 0, 1,
                                       &shadow->views[i]);
    }
    return status;
}

/* Lists a piece of layers whose work is in the stream, or drops one that has failed. */
static kvt_status gpu_list_or_drop(store_gpu_work *work, gpu_piece *piece, kvt_status status)
{
    if (status != KVT_OK) {
        gpu_host_give(work->site, piece->host);
        free(piece);
        return status;
    }
    pthread_mutex_lock(&work->lock);
    gpu_list_piece(work, piece);
    pthread_mutex_unlock(&work->lock);
    return KVT_OK;
}

/* Where a segment lies in what was read, or in a whole record. NULL: it is in no range. */
static const uint8_t *gpu_find_stored(const load_entry *entry, const load_ranges *own,
                                      const uint8_t *payload, const kvt_load_segment *segment)
{
    const uint64_t end = segment->offset + segment->bytes;
    if (own == NULL) return end <= entry->record_bytes ? payload + segment->offset : NULL;
    for (uint32_t i = 0; i < own->count; i++) {
        const kvt_record_range *range = &own->ranges[i];
        if (segment->offset >= range->offset && end <= range->offset + range->bytes)
            return payload + range->at + (segment->offset - range->offset);
    }
    return NULL;
}

/* Copies the segments of a layer, which are sound, to their places in the entry's view, by way of
 * pinned memory from *at_out on. */
static kvt_status gpu_send_stored(store_gpu_work *work, const load_entry *entry, uint32_t layer,
                                  const load_ranges *own, const uint8_t *payload,
                                  const gpu_host *host, uint64_t *at_out)
{
    const load_section *section = entry->sections;
    const uint64_t room = (uint64_t)section->view->base_bytes[0];
    kvt_load_segment segments[KVT_LOAD_SEGMENTS_MAX];
    uint32_t count;
    kvt_status status =
        kvt_record_head_segments(section->head, layer, segments, KVT_LOAD_SEGMENTS_MAX, &count);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const kvt_load_segment *segment = &segments[i];
        const uint8_t *from = gpu_find_stored(entry, own, payload, segment);
        if (from == NULL || segment->offset + segment->bytes > room ||
            *at_out + segment->bytes > host->bytes)
            return KVT_E_CORRUPT;
        uint8_t *pinned = (uint8_t *)host->memory + *at_out;
        memcpy(pinned, from, segment->bytes);
        status =
            gpu_copy_bytes(work->site, GPU_IN, (uintptr_t)section->view->base[0] + segment->offset,
                           pinned, segment->bytes);
        *at_out += segment->bytes;
    }
    return status;
}

/* Verifies what is stored of layers, and copies it into the entry's view. Ranges are whole grains,
 * and have bytes of other layers, too, which are not looked at. */
static kvt_status gpu_keep(store_gpu_work *work, load_entry *entry, uint32_t layer, uint32_t layers,
                           const load_ranges *own, const uint8_t *payload)
{
    const kvt_record_head *head = entry->sections->head;
    load_ranges all;
    uint64_t at = 0;
    kvt_status status =
        kvt_record_head_ranges(head, layer, layers, all.ranges, KVT_RECORD_RANGES_MAX, &all.count);
    if (status == KVT_OK)
        status =
            kvt_record_head_verify(head, layer, layers, payload, own != NULL ? own->ranges : NULL,
                                   own != NULL ? own->count : 0);
    if (status != KVT_OK) return status;
    gpu_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL) return KVT_E_MEMORY;
    piece->entry = entry;
    const kvt_record_range *last = &all.ranges[all.count - 1];
    status = gpu_host_take(work->site, last->at + last->bytes, &piece->host);
    if (status != KVT_OK) return gpu_list_or_drop(work, piece, status);
    piece->bytes = piece->host->bytes;
    for (uint32_t i = 0; i < layers && status == KVT_OK; i++)
        status = gpu_send_stored(work, entry, layer + i, own, payload, piece->host, &at);
    if (status != KVT_OK) gpu_rest(work->site, GPU_IN);
    return gpu_list_or_drop(work, piece, status);
}

/* Decodes a layer by the CPU, into pinned memory, and copies it from there. */
static kvt_status gpu_decode_here(store_gpu_work *work, load_entry *entry, uint32_t layer,
                                  uint32_t layers, load_form form, const load_ranges *own_ranges,
                                  const uint8_t *payload)
{
    const load_section *own = store_load_section(entry, layer);
    gpu_shadow shadow;
    gpu_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL) return KVT_E_MEMORY;
    piece->entry = entry;
    kvt_status status = gpu_host_take(work->site, gpu_bytes_of(entry, own, layers), &piece->host);
    if (status != KVT_OK) {
        free(piece);
        return status;
    }
    piece->bytes = piece->host->bytes;
    if (!gpu_make_shadow(entry, own, layer, layers, piece->host->memory, &shadow)) {
        status = KVT_E_MEMORY;
    } else {
        if (entry->staged != NULL)
            load_copy_staged(&shadow.entry, layer);
        else
            status = load_decode(work->store, &shadow.entry, layer, form, own_ranges, payload);
        if (status == KVT_OK) {
            status = gpu_copy_shadow(work, entry, own, layer, layers, &shadow);
            if (status != KVT_OK) gpu_rest(work->site, GPU_IN);
        }
        gpu_free_shadow(&shadow);
    }
    if (status == KVT_OK) gpu_count(work->site, GPU_DECODED_BY_CPU, layers);
    return gpu_list_or_drop(work, piece, status);
}

/* ---- layers that kernels decode ---- */

/* Appends a part to the open batch, or to a new one. Lock held. */
static kvt_status gpu_append(store_gpu_work *work, const store_gpu_layer *layer,
                             const store_gpu_part *part)
{
    kvt_status status = KVT_E_SPACE;
    if (work->open != NULL) status = store_gpu_batch_add(work->open->batch, layer, part);
    if (status == KVT_E_SPACE) {
        gpu_launch_open(work);
        gpu_piece *piece = calloc(1, sizeof *piece);
        if (piece == NULL) return KVT_E_MEMORY;
        status = store_gpu_batch_make(work->site, &piece->batch);
        if (status == KVT_OK) {
            status = store_gpu_batch_add(piece->batch, layer, part);
            if (status != KVT_OK) store_gpu_batch_free(piece->batch);
        }
        if (status != KVT_OK) {
            free(piece);
            return status;
        }
        work->open = piece;
    }
    if (status == KVT_OK && store_gpu_batch_bytes(work->open->batch) > WORK_BATCH)
        gpu_launch_open(work);
    return status;
}

/* Sends a layer to the scratch. Where others have the scratch, this work's own goes before it. */
static kvt_status gpu_send(store_gpu_work *work, const store_gpu_layer *layer,
                           const uint8_t *payload, bool whole, store_gpu_part *part)
{
    kvt_status status;
    while ((status = store_gpu_part_take(work->site, layer, payload, whole, part)) == KVT_BUSY) {
        pthread_mutex_lock(&work->lock);
        gpu_launch_open(work);
        pthread_mutex_unlock(&work->lock);
        gpu_piece *piece = gpu_take_piece(work, true);
        if (piece == NULL) break;
        gpu_end_piece(work, piece);
    }
    return status;
}

/* Whether an opaque section comes with layers. */
static bool gpu_brings_more(const load_entry *entry, const load_section *own, uint32_t layer,
                            uint32_t layers)
{
    const bool first = layer == 0 && own != entry->sections;
    const bool last = layer + layers - own->first_layer == own->layout.layers;
    const load_section *next = own + 1;
    return first ||
           (last && next != entry->sections + entry->section_count && next->layout.layers == 0);
}

/* Names the ranges of a layer in a record that lies there whole, or in one of the host. Kernels
 * trust what they are told of the former. */
static kvt_status gpu_find_ranges(const load_section *own, store_gpu_layer *there)
{
    kvt_status status =
        kvt_record_head_ranges(there->head, there->layer, there->layers, there->ranges,
                               KVT_RECORD_RANGES_MAX, &there->range_count);
    for (uint32_t i = 0; i < there->range_count && status == KVT_OK && there->far != 0; i++) {
        const kvt_record_range *range = &there->ranges[i];
        if (range->offset > own->bytes || range->bytes > own->bytes - range->offset)
            status = KVT_E_CORRUPT;
    }
    return status;
}

/* Names a layer for kernels, with those that come together with it. KVT_E_UNSUPPORTED: it is none
 * for them, or comes with the span of a layer before. */
static kvt_status gpu_find_layer(const load_entry *entry, uint32_t layer, load_form form,
                                 const load_ranges *own_ranges, store_gpu_layer *there)
{
    const load_section *own = store_load_section(entry, layer);
    const kvt_record_head *head = form == LOAD_COARSE ? entry->coarse->head : own->head;
    if (entry->staged != NULL || entry->by_cpu) return KVT_E_UNSUPPORTED;
    *there = (store_gpu_layer){.far = entry->far != 0 ? entry->far + own->offset : 0,
                               .home = entry->home,
                               .head = head,
                               .layout = &own->layout,
                               .view = own->view,
                               .layer = layer - own->first_layer,
                               .layers = load_together(entry, layer)};
    if (there->layers == 0 || there->layers > KERNEL_LAYERS_MAX ||
        gpu_brings_more(entry, own, layer, there->layers))
        return KVT_E_UNSUPPORTED;
    if (own_ranges == NULL) return gpu_find_ranges(own, there);
    there->range_count = own_ranges->count;
    memcpy(there->ranges, own_ranges->ranges, own_ranges->count * sizeof *there->ranges);
    return KVT_OK;
}

kvt_status store_gpu_work_takes(store_gpu_work *work, const load_entry *entry, uint32_t layer)
{
    store_gpu_layer there;
    const kvt_status status = gpu_find_layer(entry, layer, LOAD_WHOLE, NULL, &there);
    return status == KVT_OK ? store_gpu_batch_takes(work->site, &there) : status;
}

/* Lets kernels decode a layer. KVT_E_UNSUPPORTED or KVT_BUSY: the CPU does, and nothing has been
 * done. */
static kvt_status gpu_decode_there(store_gpu_work *work, load_entry *entry, uint32_t layer,
                                   load_form form, const load_ranges *own_ranges,
                                   const uint8_t *payload)
{
    const bool whole = own_ranges == NULL;
    store_gpu_layer there;
    store_gpu_part part;
    kvt_status status = gpu_find_layer(entry, layer, form, own_ranges, &there);
    if (whole && entry->far == 0) payload += store_load_section(entry, layer)->offset;
    if (status == KVT_OK) status = store_gpu_batch_takes(work->site, &there);
    if (status == KVT_OK) status = gpu_send(work, &there, payload, whole, &part);
    if (status != KVT_OK) return status;
    part.owner = entry;
    pthread_mutex_lock(&work->lock);
    status = gpu_append(work, &there, &part);
    pthread_mutex_unlock(&work->lock);
    if (status == KVT_OK) return KVT_OK;
    gpu_rest(work->site, GPU_IN);
    store_gpu_part_give(work->site, &part);
    return status;
}

/* Brings a layer of a record in the GPU's memory here, for the CPU to decode. */
static kvt_status gpu_fetch_layer(store_gpu_work *work, load_entry *entry, uint32_t layer,
                                  uint32_t layers, load_form form)
{
    kvt_record_range ranges[LOAD_RANGES_MAX];
    load_ranges own;
    uint32_t count;
    gpu_host *host;
    kvt_status status = load_find_ranges(entry, layer, form, &own, ranges, &count);
    if (status == KVT_OK)
        status =
            store_gpu_far_fetch(work->site, entry->far, entry->record_bytes, ranges, count, &host);
    if (status != KVT_OK) return status;
    status = gpu_decode_here(work, entry, layer, layers, form, &own, host->memory);
    gpu_host_give(work->site, host);
    return status;
}

kvt_status store_gpu_work_layer(store_gpu_work *work, load_entry *entry, uint32_t layer,
                                load_form form, const load_ranges *own_ranges,
                                const uint8_t *payload)
{
    const uint32_t layers = entry->staged != NULL ? 1 : load_together(entry, layer);
    if (layers == 0) return KVT_OK;
    gpu_end_pieces(work, false);
    if (work->as_stored) return gpu_keep(work, entry, layer, layers, own_ranges, payload);
    kvt_status status = gpu_decode_there(work, entry, layer, form, own_ranges, payload);
    /* Without memory of the GPU, too, the CPU's way is left. */
    if (status != KVT_E_UNSUPPORTED && status != KVT_BUSY && status != KVT_E_MEMORY) return status;
    return entry->far != 0 ? gpu_fetch_layer(work, entry, layer, layers, form)
                           : gpu_decode_here(work, entry, layer, layers, form, own_ranges, payload);
}

void store_gpu_work_launch(store_gpu_work *work)
{
    pthread_mutex_lock(&work->lock);
    gpu_launch_open(work);
    pthread_mutex_unlock(&work->lock);
}

void store_gpu_work_settle(store_gpu_work *work)
{
    gpu_end_pieces(work, true);
}

void store_gpu_work_finish(store_gpu_work *work)
{
    store_gpu_work_launch(work);
    gpu_end_pieces(work, true);
}
