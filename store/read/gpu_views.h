/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_views.h - gets and puts whose views are memory of a GPU: the entry lies packed in pinned
 * memory, for the codecs, and is copied between there and the views (docs/GPU.md).
 *
 *     put   begin -> gather -> (put of the packed views) -> end
 *     get   begin -> (get into the packed views) -> scatter -> end
 *
 * Thread rule: each belongs to one thread.
 */
#ifndef STORE_GPU_VIEWS_H
#define STORE_GPU_VIEWS_H

#include "store/core/store.h"

typedef struct store_gpu_views {
    gpu_site *site;
    const kvt_layout *layouts;
    uint32_t count;
    kvt_view far[KVT_GROUPS_MAX];    /* the caller's; their arrays stay the caller's */
    kvt_view packed[KVT_GROUPS_MAX]; /* the same entry in pinned memory */
    gpu_host *host;
} store_gpu_views;

/* Takes views that were checked for their layouts, `count` of each: one for each group, or one. All
 * of them name one GPU. KVT_OK; KVT_E_ARGUMENT: an address that is not of that GPU, views of
 * several, a GPU that is not there; KVT_E_UNSUPPORTED: no driver; KVT_E_GONE; KVT_E_MEMORY;
 * KVT_E_IO. After a failure there is nothing to end. */
KVT_NODISCARD kvt_status store_gpu_begin(kvt_store *store, const kvt_layout *layouts,
                                         const kvt_view *views, uint32_t count,
                                         store_gpu_views *gpu);

/* The site that views name, whose addresses have been checked; statuses as above. */
KVT_NODISCARD kvt_status store_gpu_site(kvt_store *store, const kvt_layout *layouts,
                                        const kvt_view *views, uint32_t count, gpu_site **site_out);

/* Copies the entry out of the views, once their event is over, and into them; both wait until the
 * copies have ended. KVT_OK; KVT_E_GONE; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status store_gpu_gather(const store_gpu_views *gpu);
KVT_NODISCARD kvt_status store_gpu_scatter(const store_gpu_views *gpu);

void store_gpu_end(store_gpu_views *gpu);

/* Waits until the memory of a view may be used. */
KVT_NODISCARD kvt_status store_gpu_wait_ready(gpu_site *site, const kvt_view *view);

/* Queues copies of layers of an entry, layer_count of them from `first` on, into a view (GPU_IN) or
 * out of it. An opaque entry has one, which is all of it.
 *   packed  the view of host memory, in which each of these matrices is one run */
KVT_NODISCARD kvt_status store_gpu_copy_layers(gpu_site *site, gpu_way way, const kvt_view *view,
                                               const kvt_layout *layout, uint32_t first,
                                               uint32_t layer_count, const kvt_view *packed);

#endif
