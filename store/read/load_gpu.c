/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_gpu.c - layered loads into a GPU's memory (docs/GPU.md): what is stored of a layer of an
 * entry is sent to the GPU, where kernels decode it in a batch with that of other entries; or the
 * CPU decodes it into pinned memory, and it is copied from there. A layer of the load is announced
 * when all its work is in the stream, with an event behind it. The file reads no device and issues
 * no layer.
 *
 *     batch   open: layers of entries are added -> launched, then a piece
 *     piece   its work in the stream, marked -> over: verdicts are read, memory is given back
 *
 * Nothing is copied before the events of all views are over, so the stream never waits for the
 * engine, and a wait for a piece ends by itself.
 *
 * Thread rule: store_gpu_load_decode by any thread of the load; `lock` guards the pieces and the
 * open batch, and comes after the load's. store_gpu_load_mark and store_gpu_load_is_ready with the
 * load's lock held.
 */
#include "codecs/codecs.h"
#include "codecs/record_groups.h"
#include "store/read/gpu_batch.h"
#include "store/read/gpu_views.h"
#include "store/read/groups.h"
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_GPU_FLYING UINT64_C(67108864) /* pinned bytes of a load that copies use, about */
#define LOAD_GPU_BATCH  UINT64_C(16777216) /* pinned bytes of a batch that is launched at once */

/* Work in the stream: a layer of an entry that the CPU has decoded, or a batch. */
typedef struct load_piece {
    struct load_piece *next;
    load_entry *entry;
    gpu_host *host;
    store_gpu_batch *batch; /* instead of these two; or NULL */
    uint64_t bytes;         /* pinned */
    gpu_event *event;       /* NULL: it has failed, */
    kvt_status status;      /* so */
} load_piece;

struct load_gpu {
    gpu_site *site;
    uint64_t ordinal;
    pthread_mutex_t lock;
    load_piece *first, *last; /* in the order of their marks */
    load_piece *open;         /* a batch that is not launched yet; or NULL */
    uint64_t flying_bytes;
    size_t ready_entries; /* whose events are over */
    bool ready;
    uint32_t marked; /* layers whose events are there */
    gpu_event **marks;
};

kvt_status store_gpu_load_open(kvt_load *load, const kvt_view *view)
{
    if (view->bases_kind == KVT_BASES_GROUPS && view->group_count != 0) view = view->groups[0];
    load_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return KVT_E_MEMORY;
    const kvt_status status = gpu_sites_take(&load->store->gpus, view->gpu, &gpu->site);
    if (status != KVT_OK) {
        free(gpu);
        return status;
    }
    gpu->ordinal = view->gpu;
    pthread_mutex_init(&gpu->lock, NULL);
    load->gpu = gpu;
    return KVT_OK;
}

kvt_status store_gpu_load_check(const kvt_load *load, const load_section *section)
{
    gpu_site *site;
    if (section->view->gpu != load->gpu->ordinal) return KVT_E_ARGUMENT;
    return store_gpu_site(load->store, &section->layout, section->view, 1, &site);
}

bool store_gpu_load_make_marks(kvt_load *load)
{
    load->gpu->marks = calloc(load->layers, sizeof *load->gpu->marks);
    return load->gpu->marks != NULL;
}

/* Whether the event of a section's view is over. An error counts as over: the copies meet it. */
static bool gpu_section_is_ready(const load_gpu *gpu, const load_section *section)
{
    if (section->view == NULL || section->view->ready == NULL) return true;
    return gpu_site_ready(gpu->site, section->view->ready) != KVT_QUEUED;
}

bool store_gpu_load_is_ready(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    for (; !gpu->ready && gpu->ready_entries < load->count; gpu->ready_entries++) {
        const load_entry *entry = &load->entries[gpu->ready_entries];
        if (entry->status != KVT_QUEUED) continue;
        for (uint32_t k = 0; k < entry->section_count; k++)
            if (!gpu_section_is_ready(gpu, &entry->sections[k])) return false;
    }
    gpu->ready = true;
    return true;
}

/* ---- pieces ---- */

/* Takes the oldest piece off: all, or only while too much is in flight. NULL: there is none. */
static load_piece *gpu_take_piece(load_gpu *gpu, bool all)
{
    pthread_mutex_lock(&gpu->lock);
    load_piece *piece = all || gpu->flying_bytes > LOAD_GPU_FLYING ? gpu->first : NULL;
    if (piece != NULL) {
        gpu->first = piece->next;
        if (gpu->first == NULL) gpu->last = NULL;
        gpu->flying_bytes -= piece->bytes;
    }
    pthread_mutex_unlock(&gpu->lock);
    return piece;
}

/* An entry's pages have not got what they should have. The load's lock is not held. */
static void gpu_fail_entry(kvt_load *load, load_entry *entry)
{
    pthread_mutex_lock(&load->lock);
    if (entry->status == KVT_QUEUED || entry->status == KVT_OK) entry->status = KVT_MISS;
    pthread_mutex_unlock(&load->lock);
}

/* Reads the verdicts of a batch whose work has ended, or has failed, so. */
static void gpu_end_batch(kvt_load *load, store_gpu_batch *batch, kvt_status status)
{
    for (uint32_t i = 0; i < store_gpu_batch_count(batch); i++) {
        const store_gpu_part *part = store_gpu_batch_part(batch, i);
        if (status == KVT_OK && store_gpu_batch_verdict(batch, part) == KVT_OK)
            gpu_count_decoded(load->gpu->site, true);
        else
            gpu_fail_entry(load, part->owner);
    }
    store_gpu_batch_free(batch);
}

/* Waits for a piece that was taken off, and gives back what it has. The load's lock is not held. */
static void gpu_end_piece(kvt_load *load, load_piece *piece)
{
    load_gpu *gpu = load->gpu;
    kvt_status status = piece->status;
    if (piece->event != NULL) status = gpu_await(gpu->site, piece->event);
    if (status != KVT_OK) gpu_rest(gpu->site, GPU_IN);
    if (piece->batch != NULL)
        gpu_end_batch(load, piece->batch, status);
    else if (status != KVT_OK)
        gpu_fail_entry(load, piece->entry);
    gpu_host_give(gpu->site, piece->host);
    gpu_event_give(gpu->site, piece->event);
    free(piece);
}

/* Waits for pieces. The load's lock is not held. */
static void gpu_end_pieces(kvt_load *load, bool all)
{
    for (load_piece *piece = gpu_take_piece(load->gpu, all); piece != NULL;
         piece = gpu_take_piece(load->gpu, all))
        gpu_end_piece(load, piece);
}

/* Marks a piece whose work is in the stream, and lists it. Both happen under the lock, so that the
 * list is in the order of marks. Lock held. */
static void gpu_list_piece(load_gpu *gpu, load_piece *piece)
{
    if (piece->status == KVT_OK) piece->status = gpu_mark(gpu->site, GPU_IN, &piece->event);
    gpu->flying_bytes += piece->bytes;
    if (gpu->last != NULL)
        gpu->last->next = piece;
    else
        gpu->first = piece;
    gpu->last = piece;
}

/* Launches the batch that is open. One that fails fails its entries when it is taken off. Lock
 * held. */
static void gpu_launch_open(load_gpu *gpu)
{
    load_piece *piece = gpu->open;
    if (piece == NULL) return;
    gpu->open = NULL;
    piece->bytes = store_gpu_batch_bytes(piece->batch);
    piece->status = store_gpu_batch_launch(piece->batch);
    gpu_list_piece(gpu, piece);
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
static kvt_status gpu_copy_shadow(const load_gpu *gpu, const load_entry *entry,
                                  const load_section *own, uint32_t layer, uint32_t layers,
                                  const gpu_shadow *shadow)
{
    const size_t index = (size_t)(own - entry->sections);
    const uint32_t first = layer - own->first_layer;
    const bool last = first + layers == own->layout.layers;
    kvt_status status = store_gpu_copy_layers(gpu->site, GPU_IN, own->view, &own->layout, first,
                                              layers, &shadow->views[index]);
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        const load_section *section = &entry->sections[i];
        /* Opaque sections before the first layer come with it, others with the layer before. */
        const bool comes =
            section < own ? layer == 0 : last && section->first_layer == layer + layers;
        if (section->layout.layers != 0 || !comes) continue;
        status = store_gpu_copy_layers(gpu->site, GPU_IN, section->view, &section->layout, 0, 1,
                                       &shadow->views[i]);
    }
    return status;
}

/* Decodes a layer by the CPU, into pinned memory, and copies it from there. */
static kvt_status gpu_decode_here(kvt_load *load, load_entry *entry, uint32_t layer,
                                  uint32_t layers, const load_ranges *own_ranges,
                                  const uint8_t *payload)
{
    load_gpu *gpu = load->gpu;
    const load_section *own = store_load_section(entry, layer);
    gpu_shadow shadow;
    load_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL) return KVT_E_MEMORY;
    piece->entry = entry;
    kvt_status status = gpu_host_take(gpu->site, gpu_bytes_of(entry, own, layers), &piece->host);
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
            status = load_decode(load, &shadow.entry, layer, own_ranges, payload);
        if (status == KVT_OK) {
            status = gpu_copy_shadow(gpu, entry, own, layer, layers, &shadow);
            if (status != KVT_OK) gpu_rest(gpu->site, GPU_IN);
        }
        gpu_free_shadow(&shadow);
    }
    if (status == KVT_OK) {
        gpu_count_decoded(gpu->site, false);
        pthread_mutex_lock(&gpu->lock);
        gpu_list_piece(gpu, piece);
        pthread_mutex_unlock(&gpu->lock);
        return KVT_OK;
    }
    gpu_host_give(gpu->site, piece->host);
    free(piece);
    return status;
}

/* ---- layers that kernels decode ---- */

/* Appends a part to the open batch, or to a new one. Lock held. */
static kvt_status gpu_append(load_gpu *gpu, const store_gpu_layer *layer,
                             const store_gpu_part *part)
{
    kvt_status status = KVT_E_SPACE;
    if (gpu->open != NULL) status = store_gpu_batch_add(gpu->open->batch, layer, part);
    if (status == KVT_E_SPACE) {
        gpu_launch_open(gpu);
        load_piece *piece = calloc(1, sizeof *piece);
        if (piece == NULL) return KVT_E_MEMORY;
        status = store_gpu_batch_make(gpu->site, &piece->batch);
        if (status == KVT_OK) {
            status = store_gpu_batch_add(piece->batch, layer, part);
            if (status != KVT_OK) store_gpu_batch_free(piece->batch);
        }
        if (status != KVT_OK) {
            free(piece);
            return status;
        }
        gpu->open = piece;
    }
    if (status == KVT_OK && store_gpu_batch_bytes(gpu->open->batch) > LOAD_GPU_BATCH)
        gpu_launch_open(gpu);
    return status;
}

/* Sends a layer to the scratch. Where others have that, this load's own work goes before it. */
static kvt_status gpu_send(kvt_load *load, const store_gpu_layer *layer, const uint8_t *payload,
                           bool whole, store_gpu_part *part)
{
    load_gpu *gpu = load->gpu;
    kvt_status status;
    while ((status = store_gpu_part_take(gpu->site, layer, payload, whole, part)) == KVT_BUSY) {
        pthread_mutex_lock(&gpu->lock);
        gpu_launch_open(gpu);
        pthread_mutex_unlock(&gpu->lock);
        load_piece *piece = gpu_take_piece(gpu, true);
        if (piece == NULL) break;
        gpu_end_piece(load, piece);
    }
    return status;
}

/* Whether an opaque section comes with a layer. */
static bool gpu_brings_more(const load_entry *entry, const load_section *own, uint32_t layer)
{
    const bool first = layer == 0 && own != entry->sections;
    const bool last = layer + 1 - own->first_layer == own->layout.layers;
    const load_section *next = own + 1;
    return first ||
           (last && next != entry->sections + entry->section_count && next->layout.layers == 0);
}

/* Lets kernels decode a layer. KVT_E_UNSUPPORTED or KVT_BUSY: the CPU does, and nothing has been
 * done. */
static kvt_status gpu_decode_there(kvt_load *load, load_entry *entry, uint32_t layer,
                                   const load_ranges *own_ranges, const uint8_t *payload)
{
    load_gpu *gpu = load->gpu;
    const load_section *own = store_load_section(entry, layer);
    const bool whole = own_ranges == NULL;
    store_gpu_layer there = {.head = own->head,
                             .layout = &own->layout,
                             .view = own->view,
                             .layer = layer - own->first_layer};
    store_gpu_part part;
    kvt_status status = KVT_OK;
    if (entry->staged != NULL || gpu_brings_more(entry, own, layer)) return KVT_E_UNSUPPORTED;
    if (whole) {
        payload += own->offset;
        status = kvt_record_head_ranges(own->head, there.layer, 1, there.ranges,
                                        KVT_RECORD_RANGES_MAX, &there.range_count);
    } else {
        there.range_count = own_ranges->count;
        memcpy(there.ranges, own_ranges->ranges, own_ranges->count * sizeof *there.ranges);
    }
    if (status == KVT_OK) status = store_gpu_batch_takes(gpu->site, &there);
    if (status == KVT_OK) status = gpu_send(load, &there, payload, whole, &part);
    if (status != KVT_OK) return status;
    part.owner = entry;
    pthread_mutex_lock(&gpu->lock);
    status = gpu_append(gpu, &there, &part);
    pthread_mutex_unlock(&gpu->lock);
    if (status == KVT_OK) return KVT_OK;
    gpu_rest(gpu->site, GPU_IN);
    store_gpu_part_give(gpu->site, &part);
    return status;
}

kvt_status store_gpu_load_decode(kvt_load *load, load_entry *entry, uint32_t layer,
                                 const load_ranges *own_ranges, const uint8_t *payload)
{
    const uint32_t layers = entry->staged != NULL ? 1 : load_together(entry, layer);
    kvt_status status = KVT_E_UNSUPPORTED;
    if (layers == 0) return KVT_OK;
    gpu_end_pieces(load, false);
    if (layers == 1) status = gpu_decode_there(load, entry, layer, own_ranges, payload);
    /* Without memory of the GPU, too, the CPU's way is left. */
    if (status == KVT_E_UNSUPPORTED || status == KVT_BUSY || status == KVT_E_MEMORY)
        status = gpu_decode_here(load, entry, layer, layers, own_ranges, payload);
    return status;
}

/* ---- announcements, the end ---- */

kvt_status store_gpu_load_mark(kvt_load *load, uint32_t layers)
{
    load_gpu *gpu = load->gpu;
    kvt_status status = KVT_OK;
    assert(layers <= load->layers);
    pthread_mutex_lock(&gpu->lock);
    gpu_launch_open(gpu);
    pthread_mutex_unlock(&gpu->lock);
    for (; gpu->marked < layers && status == KVT_OK; gpu->marked += status == KVT_OK)
        status = gpu_mark(gpu->site, GPU_IN, &gpu->marks[gpu->marked]);
    return status;
}

kvt_status store_gpu_load_follow(kvt_load *load, uint32_t layer, void *stream)
{
    pthread_mutex_lock(&load->lock);
    const gpu_event *mark = layer < load->gpu->marked ? load->gpu->marks[layer] : NULL;
    pthread_mutex_unlock(&load->lock);
    return mark != NULL ? gpu_follow(load->gpu->site, stream, mark) : KVT_E_STATE;
}

void store_gpu_load_finish(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    pthread_mutex_lock(&gpu->lock);
    gpu_launch_open(gpu);
    pthread_mutex_unlock(&gpu->lock);
    gpu_end_pieces(load, true);
    for (; gpu->marked != 0; gpu->marked--)
        gpu_event_give(gpu->site, gpu->marks[gpu->marked - 1]);
    gpu->site = NULL; /* the store's, which may be closed before the load is freed */
}

void store_gpu_load_free(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    assert(gpu->first == NULL && gpu->open == NULL && gpu->marked == 0);
    free(gpu->marks);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}
