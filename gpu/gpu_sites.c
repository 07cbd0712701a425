/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_sites.c - see gpu_sites.h. A GPU that could not be opened is tried again when it is asked for
 * again. Any thread.
 */
#include "gpu_sites.h"

#include "gpu_regions.h"

void gpu_sites_init(gpu_sites *gpus, uint64_t scratch_bytes, uint64_t pinned_bytes)
{
    pthread_mutex_init(&gpus->lock, NULL);
    gpus->scratch_bytes = scratch_bytes;
    gpus->pinned_bytes = pinned_bytes;
}

void gpu_sites_close(gpu_sites *gpus)
{
    for (uint32_t i = 0; i < GPU_SITES_MAX; i++) {
        if (gpus->sites[i] != NULL) gpu_region_forget(gpus->sites[i], NULL);
        gpu_site_close(gpus->sites[i]);
    }
    pthread_mutex_destroy(&gpus->lock);
}

void gpu_sites_forget(gpu_sites *gpus, const void *memory)
{
    pthread_mutex_lock(&gpus->lock);
    for (uint32_t i = 0; i < GPU_SITES_MAX && memory != NULL; i++)
        if (gpus->sites[i] != NULL) gpu_region_forget(gpus->sites[i], memory);
    pthread_mutex_unlock(&gpus->lock);
}

kvt_status gpu_sites_take(gpu_sites *gpus, uint64_t gpu, gpu_site **site_out)
{
    kvt_status status = KVT_OK;
    if (gpu >= GPU_SITES_MAX) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&gpus->lock);
    if (gpus->sites[gpu] == NULL) {
        gpus->refusals[gpu][0] = '\0';
        status = gpu_site_open((uint32_t)gpu, gpus->scratch_bytes, gpus->pinned_bytes,
                               &gpus->sites[gpu], gpus->refusals[gpu], sizeof gpus->refusals[gpu]);
    }
    *site_out = gpus->sites[gpu];
    pthread_mutex_unlock(&gpus->lock);
    return status;
}
