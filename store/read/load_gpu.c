/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_gpu.c - layered loads into a GPU's memory (docs/GPU.md): gpu_work.c brings the layers; a
 * layer of the load is announced when all its work is in the stream, with an event behind it. The
 * file reads no device and issues no layer.
 *
 * Thread rule: store_gpu_load_decode by any thread of the load; store_gpu_load_mark and
 * store_gpu_load_is_ready with the load's lock held, which comes before the work's.
 */
#include "store/gpu/gpu_far.h"
#include "store/gpu/gpu_views.h"
#include "store/gpu/gpu_work.h"

#include <assert.h>
#include <stdlib.h>

struct load_gpu {
    store_gpu_work work;
    uint64_t ordinal;
    size_t ready_entries; /* whose events are over */
    bool ready;
    uint32_t marked; /* layers whose events are there */
    gpu_event **marks;
};

/* An entry's pages have not got what they should have. The load's lock is not held. */
static void gpu_fail_entry(void *context, load_entry *entry, kvt_status status)
{
    kvt_load *load = context;
    pthread_mutex_lock(&load->lock);
    if (entry->status == KVT_QUEUED || entry->status == KVT_OK || entry->status == KVT_COARSE)
        entry->status = KVT_MISS;
    entry->unsound = entry->unsound || status == KVT_E_CORRUPT;
    pthread_mutex_unlock(&load->lock);
}

kvt_status store_gpu_load_open(kvt_load *load, const kvt_view *view)
{
    if (view->bases_kind == KVT_BASES_GROUPS && view->group_count != 0) view = view->groups[0];
    load_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return KVT_E_MEMORY;
    gpu_site *site;
    const kvt_status status = gpu_sites_take(&load->store->gpus, view->gpu, &site);
    if (status != KVT_OK) {
        free(gpu);
        return status;
    }
    gpu->ordinal = view->gpu;
    store_gpu_work_open(&gpu->work, load->store, site);
    gpu->work.failed = gpu_fail_entry;
    gpu->work.context = load;
    gpu->work.as_stored = load->options.as_stored != 0;
    load->gpu = gpu;
    return KVT_OK;
}

kvt_status store_gpu_load_check(const kvt_load *load, const load_section *section)
{
    gpu_site *site;
    if (section->view->gpu != load->gpu->ordinal) return KVT_E_ARGUMENT;
    return store_gpu_site(load->store, &section->layout, section->view, 1, &site);
}

uint64_t store_gpu_load_lend(const kvt_load *load, const store_place *place)
{
    return store_gpu_far_lend(load->store, place, load->gpu->ordinal);
}

void store_gpu_load_open_far(kvt_load *load)
{
    store_gpu_far_open(load->gpu->work.site, load->entries, load->count);
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        const kvt_status how = entry->status;
        /* A fault found in a record is a miss, as of one that is read. */
        if (entry->far != 0 && how < 0 && how != KVT_E_ARGUMENT && how != KVT_E_MEMORY)
            entry->status = KVT_MISS;
    }
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
    return gpu_site_ready(gpu->work.site, section->view->ready) != KVT_QUEUED;
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

kvt_status store_gpu_load_decode(kvt_load *load, load_entry *entry, uint32_t layer, load_form form,
                                 const load_ranges *own_ranges, const uint8_t *payload)
{
    return store_gpu_work_layer(&load->gpu->work, entry, layer, form, own_ranges, payload);
}

void store_gpu_load_settle(kvt_load *load)
{
    store_gpu_work_settle(&load->gpu->work);
}

/* ---- announcements, the end ---- */

kvt_status store_gpu_load_mark(kvt_load *load, uint32_t layers)
{
    load_gpu *gpu = load->gpu;
    kvt_status status = KVT_OK;
    assert(layers <= load->layers);
    store_gpu_work_launch(&gpu->work);
    for (; gpu->marked < layers && status == KVT_OK; gpu->marked += status == KVT_OK)
        status = gpu_mark(gpu->work.site, GPU_IN, &gpu->marks[gpu->marked]);
    return status;
}

kvt_status store_gpu_load_follow(kvt_load *load, uint32_t layer, void *stream)
{
    pthread_mutex_lock(&load->lock);
    const gpu_event *mark = layer < load->gpu->marked ? load->gpu->marks[layer] : NULL;
    pthread_mutex_unlock(&load->lock);
    return mark != NULL ? gpu_follow(load->gpu->work.site, stream, mark) : KVT_E_STATE;
}

void store_gpu_load_finish(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    store_gpu_work_finish(&gpu->work);
    for (; gpu->marked != 0; gpu->marked--)
        gpu_event_give(gpu->work.site, gpu->marks[gpu->marked - 1]);
    gpu->work.site = NULL; /* the store's, which may be closed before the load is freed */
}

void store_gpu_load_free(kvt_load *load)
{
    load_gpu *gpu = load->gpu;
    assert(gpu->marked == 0);
    store_gpu_work_close(&gpu->work);
    free(gpu->marks);
    free(gpu);
}
