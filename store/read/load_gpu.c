/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_gpu.c - layered loads into a GPU's memory (docs/GPU.md): a layer of an entry is decoded into
 * pinned memory and copied from there; a layer of the load is announced when all its copies are in
 * the stream, with an event behind them. The file reads no device and issues no layer.
 *
 *     piece   decoded -> copies in the stream, marked -> over: its pinned memory is given back
 *
 * Nothing is copied before the events of all views are over, so the stream never waits for the
 * engine, and a wait for a piece ends by itself.
 *
 * Thread rule: store_gpu_load_decode by any thread of the load; `lock` guards the pieces, and comes
 * after the load's. store_gpu_load_mark and store_gpu_load_is_ready with the load's lock held.
 */
#include "codecs/codecs.h"
#include "codecs/record_groups.h"
#include "store/read/gpu_views.h"
#include "store/read/groups.h"
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_GPU_FLYING UINT64_C(67108864) /* pinned bytes of a load that copies use, about */

typedef struct load_piece {
    struct load_piece *next;
    load_entry *entry;
    gpu_host *host;
    gpu_event *event;
} load_piece;

struct load_gpu {
    gpu_site *site;
    uint64_t ordinal;
    pthread_mutex_t lock;
    load_piece *first, *last; /* in the order of their marks */
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
        gpu->flying_bytes -= piece->host->bytes;
    }
    pthread_mutex_unlock(&gpu->lock);
    return piece;
}

/* Waits for pieces, and gives back what they have. The load's lock is not held. */
static void gpu_end_pieces(kvt_load *load, bool all)
{
    load_gpu *gpu = load->gpu;
    for (load_piece *piece = gpu_take_piece(gpu, all); piece != NULL;
         piece = gpu_take_piece(gpu, all)) {
        const kvt_status status = gpu_await(gpu->site, piece->event);
        if (status != KVT_OK) {
            gpu_rest(gpu->site, GPU_IN);
            pthread_mutex_lock(&load->lock);
            if (piece->entry->status == KVT_QUEUED || piece->entry->status == KVT_OK)
                piece->entry->status = KVT_MISS;
            pthread_mutex_unlock(&load->lock);
        }
        gpu_host_give(gpu->site, piece->host);
        gpu_event_give(gpu->site, piece->event);
        free(piece);
    }
}

/* Lists a piece whose copies are in the stream. The mark is made under the lock, so that the list
 * is in the order of marks. */
static kvt_status gpu_list_piece(load_gpu *gpu, load_piece *piece)
{
    pthread_mutex_lock(&gpu->lock);
    const kvt_status status = gpu_mark(gpu->site, GPU_IN, &piece->event);
    if (status == KVT_OK) {
        gpu->flying_bytes += piece->host->bytes;
        if (gpu->last != NULL)
            gpu->last->next = piece;
        else
            gpu->first = piece;
        gpu->last = piece;
    }
    pthread_mutex_unlock(&gpu->lock);
    return status;
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

/* Copies a layer's own section. */
static kvt_status gpu_copy_own(const load_gpu *gpu, const load_section *own,
                               const load_section *packed, uint32_t first, uint32_t layers)
{
    kvt_status status = KVT_OK;
    const uint32_t sides = kvt_layout_sides(&own->layout);
    for (uint32_t m = first * sides; m < (first + layers) * sides && status == KVT_OK; m++) {
        const kvt_side side = (kvt_side)(m % sides);
        const uint32_t tokens = own->layout.tokens;
        const view_rows rows = view_rows_of(own->view, &own->layout, tokens, m / sides, side);
        const view_rows from = view_rows_of(packed->view, &own->layout, tokens, m / sides, side);
        status = gpu_copy_rows(gpu->site, GPU_IN, &rows, from.start);
    }
    return status;
}

/* Copies what came with a layer out of the shadow. */
static kvt_status gpu_copy_shadow(const load_gpu *gpu, const load_entry *entry,
                                  const load_section *own, uint32_t layer, uint32_t layers,
                                  const gpu_shadow *shadow)
{
    const size_t index = (size_t)(own - entry->sections);
    const uint32_t first = layer - own->first_layer;
    const bool last = first + layers == own->layout.layers;
    kvt_status status = gpu_copy_own(gpu, own, &shadow->sections[index], first, layers);
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        const load_section *section = &entry->sections[i];
        /* Opaque sections before the first layer come with it, others with the layer before. */
        const bool comes =
            section < own ? layer == 0 : last && section->first_layer == layer + layers;
        if (section->layout.layers != 0 || !comes) continue;
        status = store_gpu_copy_layers(gpu->site, GPU_IN, section->view, &section->layout, 0, 1,
                                       shadow->views[i].base[0]);
    }
    return status;
}

kvt_status store_gpu_load_decode(kvt_load *load, load_entry *entry, uint32_t layer,
                                 const load_ranges *own_ranges, const uint8_t *payload)
{
    load_gpu *gpu = load->gpu;
    const uint32_t layers = entry->staged != NULL ? 1 : load_together(entry, layer);
    const load_section *own = store_load_section(entry, layer);
    gpu_shadow shadow;
    if (layers == 0) return KVT_OK;
    gpu_end_pieces(load, false);
    load_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL) return KVT_E_MEMORY;
    piece->entry = entry;
    kvt_status status = gpu_host_take(gpu->site, gpu_bytes_of(entry, own, layers), &piece->host);
    if (status != KVT_OK) {
        free(piece);
        return status;
    }
    if (!gpu_make_shadow(entry, own, layer, layers, piece->host->memory, &shadow)) {
        status = KVT_E_MEMORY;
    } else {
        if (entry->staged != NULL)
            load_copy_staged(&shadow.entry, layer);
        else
            status = load_decode(load, &shadow.entry, layer, own_ranges, payload);
        if (status == KVT_OK) {
            status = gpu_copy_shadow(gpu, entry, own, layer, layers, &shadow);
            if (status == KVT_OK) status = gpu_list_piece(gpu, piece);
            if (status != KVT_OK) gpu_rest(gpu->site, GPU_IN);
        }
        gpu_free_shadow(&shadow);
    }
    if (status == KVT_OK) {
        gpu_count_decoded(gpu->site);
        return KVT_OK;
    }
    gpu_host_give(gpu->site, piece->host);
    free(piece);
    return status;
}

/* ---- announcements, the end ---- */

kvt_status store_gpu_load_mark(kvt_load *load, uint32_t layers)
{
    load_gpu *gpu = load->gpu;
    kvt_status status = KVT_OK;
    assert(layers <= load->layers);
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
    gpu_end_pieces(load, true);
    for (; gpu->marked != 0; gpu->marked--)
        gpu_event_give(gpu->site, gpu->marks[gpu->marked - 1]);
    gpu->site = NULL; /* the store's, which may be closed before the load is freed */
}

void store_gpu_load_free(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    assert(gpu->first == NULL && gpu->marked == 0);
    free(gpu->marks);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}
