/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_work.h - layers of entries on their way into a GPU's memory (docs/GPU.md), for layered loads
 * and for gets: what is stored of a layer is sent to the GPU, where kernels decode it in a batch
 * with other layers; or the CPU decodes it into pinned memory, and it is copied from there.
 *
 *     batch   open: layers of entries are added -> launched, then a piece
 *     piece   its work in the stream, marked -> over: verdicts are read, memory is given back
 *
 * Work is put into the stream after the events of all views are over, so the stream never waits for
 * the engine, and a wait for a piece ends by itself.
 *
 * Thread rule: any thread; open and close alone.
 */
#ifndef STORE_GPU_WORK_H
#define STORE_GPU_WORK_H

#include "gpu/gpu_site.h"
#include "store/read/load_internal.h"

typedef struct gpu_piece gpu_piece;

typedef struct store_gpu_work {
    kvt_store *store;
    gpu_site *site;
    /* The owner's. Called for each layer whose pages have not got what they should have:
     * KVT_E_CORRUPT: kernels have found its bytes unsound; or how copies or launches failed. No
     * lock of the work is held. */
    void (*failed)(void *context, load_entry *entry, kvt_status status);
    void *context;
    bool as_stored; /* layers are not decoded: stored bytes go to packed views */
    pthread_mutex_t lock;
    gpu_piece *first, *last; /* in the order of their marks */
    gpu_piece *open;         /* a batch that is not launched yet; or NULL */
    uint64_t flying_bytes;
} store_gpu_work;

void store_gpu_work_open(store_gpu_work *work, kvt_store *store, gpu_site *site);
void store_gpu_work_close(store_gpu_work *work); /* once it has finished */

/* Whether kernels decode a layer of a record whose heads are open, and the driver takes them.
 * KVT_OK; KVT_E_UNSUPPORTED; statuses of kvt_record_head_jobs and gpu_kernel_load. */
KVT_NODISCARD kvt_status store_gpu_work_takes(store_gpu_work *work, const load_entry *entry,
                                              uint32_t layer);

/* Decodes or copies a layer as load_decode and load_copy_staged do; of a record in the GPU's memory
 * from there, whatever the payload. KVT_OK: its work is in the stream, or in the batch that is
 * open. Also KVT_E_GONE, KVT_E_IO. */
KVT_NODISCARD kvt_status store_gpu_work_layer(store_gpu_work *work, load_entry *entry,
                                              uint32_t layer, load_form form,
                                              const load_ranges *own_ranges,
                                              const uint8_t *payload);

/* Launches the batch that is open. */
void store_gpu_work_launch(store_gpu_work *work);

/* Waits until all that was launched has ended. */
void store_gpu_work_settle(store_gpu_work *work);

/* Launches the batch that is open, then waits until all work has ended. */
void store_gpu_work_finish(store_gpu_work *work);

#endif
