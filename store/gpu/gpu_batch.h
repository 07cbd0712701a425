/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_batch.h - layers of entries that kernels of a GPU decode in one launch each (docs/GPU.md):
 * what is stored of a layer is copied to scratch, its jobs are appended, and a launch takes all.
 *
 *     store_gpu_part_take -> store_gpu_batch_add -> store_gpu_batch_launch -> an event is over
 *                         -> store_gpu_batch_verdict -> store_gpu_batch_free
 *
 * Thread rule: one thread at a time has a batch; parts are their makers' until they are added.
 */
#ifndef STORE_GPU_BATCH_H
#define STORE_GPU_BATCH_H

#include "codecs/record_jobs.h"
#include "gpu/gpu_kernels.h"
#include "gpu/gpu_regions.h"

#include <kvterrace/view.h>

/* A layer of a record, and where it goes. */
typedef struct store_gpu_layer {
    uint64_t far; /* address of its record in the GPU's memory, a multiple of 64; 0: it is sent */
    gpu_region home; /* of a record that is lent in memory of the host, and is sent from there where
                        the driver registers that; memory NULL: it goes through pinned memory */
    const kvt_record_head *head;
    const kvt_layout *layout;
    const kvt_view *view; /* of the GPU's memory */
    uint32_t layer;
    uint32_t layers; /* that come together; at most KERNEL_LAYERS_MAX */
    uint32_t range_count;
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX]; /* of what is stored; `at` in the scratch */
} store_gpu_layer;

/* A layer whose stored bytes are in the scratch, or on their way in the stream. */
typedef struct store_gpu_part {
    void *owner;    /* the caller's */
    gpu_host *host; /* NULL: nothing was sent */
    uint64_t scratch;
    uint64_t scratch_bytes;
    uint64_t blocks; /* address of the block numbers; 0: the view has none */
    uint64_t room;   /* of the jobs themselves; and the basis in the GPU's memory, or 0 */
    uint64_t basis;
    uint32_t layers;
    bool far;       /* they are read where their record lies, */
    bool here;      /* or were sent from there */
    uint32_t first; /* of its verdicts, */
    uint32_t end;   /* and behind them */
} store_gpu_part;

typedef struct store_gpu_batch store_gpu_batch;

/* Whether kernels decode a layer, and the driver takes all of them. KVT_OK; KVT_E_UNSUPPORTED;
 * statuses of kvt_record_head_jobs and gpu_kernel_load. */
KVT_NODISCARD kvt_status store_gpu_batch_takes(gpu_site *site, const store_gpu_layer *layer);

/* Sends what is stored of a layer to the scratch, from payload + ranges[].at, or out of a whole
 * record at `payload`, which stays until the part has been given; of a record that is there the
 * block numbers alone. KVT_OK; KVT_BUSY: no
 * scratch now; KVT_E_UNSUPPORTED: never so much; statuses of gpu_site.h. After a failure the stream
 * has rested and there is no part. */
KVT_NODISCARD kvt_status store_gpu_part_take(gpu_site *site, const store_gpu_layer *layer,
                                             const uint8_t *payload, bool whole,
                                             store_gpu_part *part);
void store_gpu_part_give(gpu_site *site, store_gpu_part *part);

/* Makes a batch without parts. As gpu_host_take and gpu_scratch_take. */
KVT_NODISCARD kvt_status store_gpu_batch_make(gpu_site *site, store_gpu_batch **batch_out);

/* Appends a part, which is the batch's from then on. KVT_E_SPACE: the batch is full. */
KVT_NODISCARD kvt_status store_gpu_batch_add(store_gpu_batch *batch, const store_gpu_layer *layer,
                                             const store_gpu_part *part);

/* Pinned bytes of a batch and its parts; its parts. */
uint64_t store_gpu_batch_bytes(const store_gpu_batch *batch);
uint32_t store_gpu_batch_count(const store_gpu_batch *batch);
const store_gpu_part *store_gpu_batch_part(const store_gpu_batch *batch, uint32_t index);

/* Puts the launches of all parts into the stream: one for each kernel. */
KVT_NODISCARD kvt_status store_gpu_batch_launch(store_gpu_batch *batch);

/* How a part was decoded, once the launches have ended: KVT_OK or KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status store_gpu_batch_verdict(const store_gpu_batch *batch,
                                                 const store_gpu_part *part);

/* Gives back all that it has; no work in the stream uses it any more. */
void store_gpu_batch_free(store_gpu_batch *batch);

#endif
