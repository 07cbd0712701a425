/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_sites.h - the GPUs of a machine, each opened by the first that asks for it and closed with
 * all the others.
 *
 * Thread rule: any thread; own lock, which is held while a GPU is opened. init and close alone.
 */
#ifndef GPU_SITES_H
#define GPU_SITES_H

#include "gpu_site.h"

#include <pthread.h>

#define GPU_SITES_MAX 16u

typedef struct gpu_sites {
    pthread_mutex_t lock;
    uint64_t scratch_bytes; /* of each, as gpu_site_open */
    uint64_t pinned_bytes;
    gpu_site *sites[GPU_SITES_MAX];
    char refusals[GPU_SITES_MAX][72]; /* why one could not be opened when it was asked for last */
} gpu_sites;

void gpu_sites_init(gpu_sites *gpus, uint64_t scratch_bytes, uint64_t pinned_bytes);
void gpu_sites_close(gpu_sites *gpus);

/* Memory of the host goes: no GPU's driver has it registered any more (gpu_regions.h). */
void gpu_sites_forget(gpu_sites *gpus, const void *memory);

/* The site of a GPU, opened now or before. As gpu_site_open. */
KVT_NODISCARD kvt_status gpu_sites_take(gpu_sites *gpus, uint64_t gpu, gpu_site **site_out);

#endif
