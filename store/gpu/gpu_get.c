/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_get.c - see gpu_get.h: the record of a get is that of an entry of a load which lies in
 * memory, of the host or of the GPU, and its layers are brought one after the other. The file reads
 * no device.
 *
 * Thread rule: as the header says.
 */
#include "store/gpu/gpu_get.h"

#include "codecs/record_groups.h"
#include "store/gpu/gpu_far.h"
#include "store/gpu/gpu_views.h"
#include "store/gpu/gpu_work.h"
#include "store/read/groups.h"

#include <assert.h>
#include <stdlib.h>

/* A get as an entry of a load. */
typedef struct gpu_get {
    store_gpu_work work;
    load_entry entry;
    const uint8_t *record;
    kvt_record_arrival *arrival;
    kvt_status failure; /* of the first layer that failed */
} gpu_get;

static void get_failed(void *context, load_entry *entry, kvt_status status)
{
    gpu_get *get = context;
    (void)entry;
    if (get->failure == KVT_OK) get->failure = status;
}

/* Waits for the first bytes of a record that is on its way. */
static kvt_status get_await(const gpu_get *get, uint64_t bytes)
{
    uint64_t arrived;
    if (get->arrival == NULL) return KVT_OK;
    return get->arrival->await(get->arrival->context, bytes, &arrived);
}

/* Opens the heads of the record. */
static kvt_status get_open(gpu_get *get)
{
    load_entry *entry = &get->entry;
    const void *first = entry->far == 0 ? get->record : NULL;
    kvt_status status = load_open_table(entry, first, entry->record_bytes);
    if (status != KVT_OK) return status;
    if (entry->far != 0) {
        store_gpu_far_open(get->work.site, entry, 1);
        return entry->status == KVT_QUEUED ? KVT_OK : entry->status;
    }
    if (get->arrival == NULL) return load_use_heads(entry, get->record, true);
    assert(!entry->grouped);
    status = get_await(get, entry->sections->head_bytes);
    return status == KVT_OK ? load_use_heads(entry, get->record, false) : status;
}

/* Brings a layer, once its bytes are here. */
static kvt_status get_layer(gpu_get *get, uint32_t layer)
{
    load_ranges own;
    kvt_record_range ranges[LOAD_RANGES_MAX];
    uint32_t count;
    uint64_t end = 0;
    if (get->arrival != NULL && load_together(&get->entry, layer) != 0) {
        kvt_status status = load_find_ranges(&get->entry, layer, LOAD_WHOLE, &own, ranges, &count);
        for (uint32_t i = 0; status == KVT_OK && i < count; i++)
            if (ranges[i].offset + ranges[i].bytes > end) end = ranges[i].offset + ranges[i].bytes;
        if (status == KVT_OK && end > get->entry.record_bytes) status = KVT_E_CORRUPT;
        if (status == KVT_OK) status = get_await(get, end);
        if (status != KVT_OK) return status;
    }
    return store_gpu_work_layer(&get->work, &get->entry, layer, LOAD_WHOLE, NULL, get->record);
}

/* Whether layers of a span lie on both sides of an end of the layers. */
static bool get_cuts_span(const gpu_get *get, uint32_t first, uint32_t end)
{
    uint32_t layer = first;
    while (layer < end) {
        const uint32_t together = load_together(&get->entry, layer);
        if (together == 0) return true;
        layer += together;
    }
    return layer != end;
}

/* Brings layers, if kernels take any of them. */
static kvt_status get_layers(gpu_get *get, const access_target *target, uint32_t first,
                             uint32_t end)
{
    kvt_status status = KVT_E_UNSUPPORTED;
    if (get_cuts_span(get, first, end)) return status;
    for (uint32_t layer = first; layer < end && status != KVT_OK; layer++)
        status = store_gpu_work_takes(&get->work, &get->entry, layer);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < get->entry.section_count && status == KVT_OK; i++)
        status = store_gpu_wait_ready(get->work.site, &target->view[i]);
    for (uint32_t layer = first; layer < end && status == KVT_OK; layer++)
        status = get_layer(get, layer);
    store_gpu_work_finish(&get->work);
    return status == KVT_OK ? get->failure : status;
}

/* Gives the entry its sections. Returns their layers; 0: there are opaque ones of which some may
 * not be wanted. */
static uint32_t get_fill(load_entry *entry, const access_target *target, load_section *sections)
{
    const bool part = target->first_layer != 0 || target->layer_count != 0;
    uint32_t layers = 0;
    entry->sections = sections;
    for (uint32_t i = 0; i < entry->section_count; i++) {
        load_section *section = &sections[i];
        section->layout = entry->grouped ? target->groups[i] : target->layout;
        section->view = &target->view[i];
        section->first_layer = layers;
        layers += section->layout.layers;
        if (section->layout.layers == 0 && part) return 0;
    }
    return layers;
}

kvt_status store_gpu_get(kvt_store *store, const access_get *get, kvt_record_arrival *arrival)
{
    const access_target *target = &get->target;
    const uint32_t count = target->group_count != 0 ? target->group_count : 1;
    assert(target->gpu != NULL && target->view != NULL && get->place != NULL);
    if (get->by_cpu) return KVT_E_UNSUPPORTED;
    load_section *sections = calloc(count, sizeof *sections);
    if (sections == NULL) return KVT_E_MEMORY;
    gpu_get own = {.entry = {.section_count = count,
                             .grouped = target->group_count != 0,
                             .variant = get->variant,
                             .expected = get->expected,
                             .status = KVT_QUEUED,
                             .lent = !get->far,
                             .record = get->record,
                             .far = get->far ? (uintptr_t)get->record : 0,
                             .record_bytes = get->record_bytes,
                             .scratch_bytes = get->place->scratch_bytes},
                   .record = get->record,
                   .arrival = arrival};
    if (own.entry.lent && get->in_memory)
        own.entry.home = store_gpu_home(store->pools[get->place->tier], get->place->location);
    const uint32_t layers = get_fill(&own.entry, target, sections);
    const uint32_t wanted = target->layer_count;
    const uint32_t end = wanted != 0 ? target->first_layer + wanted : layers;
    store_gpu_work_open(&own.work, store, target->gpu);
    own.work.failed = get_failed;
    own.work.context = &own;
    kvt_status status = layers != 0 ? KVT_OK : KVT_E_UNSUPPORTED;
    if (status == KVT_OK) status = get_open(&own);
    if (status == KVT_OK) status = get_layers(&own, target, target->first_layer, end);
    store_gpu_work_close(&own.work);
    for (uint32_t i = 0; i < count; i++)
        free(sections[i].head);
    free(sections);
    return status;
}
