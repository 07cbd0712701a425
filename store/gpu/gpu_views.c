/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_views.c - see gpu_views.h; and the public calls of gpu.h that ask a store. The file decodes
 * nothing and knows no table.
 *
 * Thread rule: as the header says.
 */
#include "store/gpu/gpu_views.h"

#include "gpu/gpu_regions.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "codecs/record_groups.h"
#include "gpu/gpu_kernels.h"
#include "store/read/groups.h"

#include <assert.h>
#include <kvterrace/gpu.h>
#include <stdio.h>
#include <string.h>

#define GPU_READY_NAP_NS UINT64_C(10000)

/* ---- what views name ---- */

/* Whether all addresses of a view are memory of the site's GPU. */
static kvt_status gpu_check_addresses(gpu_site *site, const kvt_view *view,
                                      const kvt_layout *layout)
{
    kvt_status status = KVT_OK;
    if (view->bases == NULL) {
        for (int i = 0; i < 2 && status == KVT_OK; i++)
            if (view->base[i] != NULL)
                status = gpu_site_check(site, view->base[i], view->base_bytes[i]);
        return status;
    }
    const bool sides = view->bases_kind == KVT_BASES_LAYERS_SIDES;
    const uint32_t count = layout->layers * (sides ? kvt_layout_sides(layout) : 1);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status =
            gpu_site_check(site, view->bases[i],
                           view->bases_bytes != NULL ? view->bases_bytes[i] : view->base_bytes[0]);
    return status;
}

kvt_status store_gpu_site(kvt_store *store, const kvt_layout *layouts, const kvt_view *views,
                          uint32_t count, gpu_site **site_out)
{
    kvt_status status = KVT_OK;
    assert(count > 0 && count <= KVT_GROUPS_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (views[i].memory != KVT_MEMORY_GPU || views[i].gpu != views[0].gpu)
            return KVT_E_ARGUMENT;
    status = gpu_sites_take(&store->gpus, views[0].gpu, site_out);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = gpu_check_addresses(*site_out, &views[i], &layouts[i]);
    return status;
}

kvt_status store_gpu_wait_ready(gpu_site *site, const kvt_view *view)
{
    kvt_status status = KVT_OK;
    while (view->ready != NULL && (status = gpu_site_ready(site, view->ready)) == KVT_QUEUED)
        base_sleep(GPU_READY_NAP_NS);
    return status;
}

/* ---- one entry ---- */

void store_gpu_begin(gpu_site *site, const kvt_layout *layouts, const kvt_view *views,
                     uint32_t count, store_gpu_views *gpu)
{
    assert(count > 0 && count <= KVT_GROUPS_MAX);
    gpu->site = site;
    gpu->layouts = layouts;
    gpu->far = views;
    gpu->count = count;
    gpu->host = NULL;
    gpu->brought = false;
    gpu->kept = 0;
    gpu->failure = KVT_OK;
}

kvt_status store_gpu_pack(store_gpu_views *gpu)
{
    uint64_t bytes = 0;
    if (gpu->host != NULL) return KVT_OK;
    for (uint32_t i = 0; i < gpu->count; i++)
        bytes += groups_bytes(&gpu->layouts[i]);
    const kvt_status status = gpu_host_take(gpu->site, bytes, &gpu->host);
    if (status != KVT_OK) return status;
    uint8_t *at = gpu->host->memory;
    for (uint32_t i = 0; i < gpu->count; i++) {
        gpu->packed[i] = codecs_packed_view(&gpu->layouts[i], at);
        at += groups_bytes(&gpu->layouts[i]);
    }
    return KVT_OK;
}

uint32_t store_gpu_layers(const kvt_layout *layouts, uint32_t count)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < count; i++)
        layers += layouts[i].dtype == KVT_DTYPE_OPAQUE ? 1 : layouts[i].layers;
    return layers;
}

kvt_status store_gpu_copy_layers(gpu_site *site, gpu_way way, const kvt_view *view,
                                 const kvt_layout *layout, uint32_t tokens, uint32_t first,
                                 uint32_t layer_count, const kvt_view *packed)
{
    kvt_status status = KVT_OK;
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        const view_rows all = view_rows_packed(view->base[0], layout->opaque_bytes);
        return gpu_copy_rows(site, way, &all, packed->base[0]);
    }
    const uint32_t sides = kvt_layout_sides(layout);
    const uint32_t end = (first + layer_count) * sides;
    for (uint32_t m = first * sides; m < end && status == KVT_OK; m++) {
        const kvt_side side = (kvt_side)(m % sides);
        const view_rows rows = view_rows_of(view, layout, tokens, m / sides, side);
        const view_rows near = view_rows_of(packed, layout, tokens, m / sides, side);
        status = gpu_copy_rows(site, way, &rows, near.start);
    }
    return status;
}

/* Copies layers of the views one way, and waits. */
static kvt_status gpu_move(const store_gpu_views *gpu, gpu_way way,
                           const record_groups_range *range)
{
    kvt_status status = KVT_OK;
    uint32_t before = 0;
    assert(gpu->host != NULL);
    for (uint32_t i = 0; i < gpu->count && status == KVT_OK; i++) {
        uint32_t first, layers;
        const kvt_layout *layout = &gpu->layouts[i];
        const bool has = record_groups_part(range, layout, before, &first, &layers);
        before += layout->layers;
        if (!has) continue;
        status = store_gpu_wait_ready(gpu->site, &gpu->far[i]);
        if (status == KVT_OK)
            status = store_gpu_copy_layers(gpu->site, way, &gpu->far[i], layout,
                                           gpu->kept != 0 ? gpu->kept : layout->tokens, first,
                                           layers, &gpu->packed[i]);
    }
    return gpu_settle(gpu->site, way, status);
}

kvt_status store_gpu_bring(store_gpu_views *gpu)
{
    record_groups_range all;
    const bool has = record_groups_range_of(gpu->layouts, gpu->count, 0, 0, &all);
    assert(has);
    (void)has;
    if (gpu->brought) return KVT_OK;
    gpu->failure = store_gpu_pack(gpu);
    if (gpu->failure == KVT_OK) gpu->failure = gpu_move(gpu, GPU_OUT, &all);
    gpu->brought = gpu->failure == KVT_OK;
    if (!gpu->brought) return KVT_E_CANCELLED;
    gpu_count(gpu->site, GPU_ENCODED_BY_CPU, store_gpu_layers(gpu->layouts, gpu->count));
    return KVT_OK;
}

kvt_status store_gpu_scatter(const store_gpu_views *gpu, uint32_t first_layer, uint32_t layer_count)
{
    record_groups_range range;
    const bool has =
        record_groups_range_of(gpu->layouts, gpu->count, first_layer, layer_count, &range);
    assert(has);
    (void)has;
    return gpu_move(gpu, GPU_IN, &range);
}

void store_gpu_end(store_gpu_views *gpu)
{
    gpu_host_give(gpu->site, gpu->host);
    gpu->host = NULL;
}

/* ---- the public calls ---- */

kvt_status kvt_gpu_stats_get(kvt_store *store, uint32_t gpu, kvt_gpu_stats *stats_out)
{
    if (store == NULL || stats_out == NULL || gpu >= GPU_SITES_MAX) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(stats_out, STRUCT_SIZE_THROUGH(kvt_gpu_stats, decoded_by_gpu)))
        return KVT_E_ARGUMENT;
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    kvt_gpu_stats whole = {.struct_size = sizeof whole};
    pthread_mutex_lock(&store->gpus.lock);
    gpu_site *site = store->gpus.sites[gpu];
    if (site != NULL) {
        whole.open = true;
        whole.bytes_in = gpu_bytes_copied(site, GPU_IN);
        whole.bytes_out = gpu_bytes_copied(site, GPU_OUT);
        whole.kernels_refused = gpu_kernels_refused(site);
        gpu_kernels_engine(site, whole.engine, sizeof whole.engine);
        whole.decoded_by_cpu = gpu_counted(site, GPU_DECODED_BY_CPU);
        whole.decoded_by_gpu = gpu_counted(site, GPU_DECODED_BY_GPU);
        whole.unsound = gpu_counted(site, GPU_UNSOUND);
        whole.encoded_by_cpu = gpu_counted(site, GPU_ENCODED_BY_CPU);
        whole.encoded_by_gpu = gpu_counted(site, GPU_ENCODED_BY_GPU);
        whole.decoded_in_place = gpu_counted(site, GPU_DECODED_IN_PLACE);
        whole.sent_in_place = gpu_counted(site, GPU_SENT_IN_PLACE);
        whole.registered_bytes = gpu_region_bytes(site);
        learn_notes_begin(store);
        whole.gets_share = store->learn->gpu_share;
        learn_notes_end(store);
    } else if (store->gpus.refusals[gpu][0] != '\0') {
        snprintf(whole.engine, sizeof whole.engine, "cpu: %s", store->gpus.refusals[gpu]);
    }
    pthread_mutex_unlock(&store->gpus.lock);
    struct_size_out(stats_out, &whole, sizeof whole);
    return KVT_OK;
}
