/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_views.h - views in a GPU's memory: what they name is checked, and an entry is copied between
 * them and packed pinned memory, for the codecs of the CPU (docs/GPU.md).
 *
 *     put   begin -> bring -> (put of the packed views) -> end        or gpu_put.h
 *     get   begin -> pack -> (get into the packed views) -> scatter -> end
 *
 * Thread rule: each belongs to one thread.
 */
#ifndef STORE_GPU_VIEWS_H
#define STORE_GPU_VIEWS_H

#include "gpu/gpu_site.h"
#include "store/core/store.h"

typedef struct store_gpu_views {
    gpu_site *site;
    const kvt_layout *layouts;
    const kvt_view *far; /* the caller's; one for each layout */
    uint32_t count;
    gpu_host *host;                  /* NULL: not packed */
    bool brought;                    /* packed has what the views have */
    uint32_t kept;                   /* tokens that the record of a get holds; 0: all of them */
    kvt_status failure;              /* of a put: why the views could not be read; or KVT_OK */
    kvt_view packed[KVT_GROUPS_MAX]; /* the same entry in pinned memory */
} store_gpu_views;

/* The site that views name, whose addresses have been checked; the views were checked for their
 * layouts, `count` of each: one for each group, or one. KVT_OK; KVT_E_ARGUMENT: an address that is
 * not of that GPU, views of several, a GPU that is not there; KVT_E_UNSUPPORTED: no driver;
 * KVT_E_GONE; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status store_gpu_site(kvt_store *store, const kvt_layout *layouts,
                                        const kvt_view *views, uint32_t count, gpu_site **site_out);

/* Takes views whose site is known. Nothing is held. */
void store_gpu_begin(gpu_site *site, const kvt_layout *layouts, const kvt_view *views,
                     uint32_t count, store_gpu_views *gpu);

/* Takes pinned memory for the entry, once. As gpu_host_take. */
KVT_NODISCARD kvt_status store_gpu_pack(store_gpu_views *gpu);

/* Packs the entry and copies it out of the views, once, after their events are over; it waits until
 * the copies have ended. KVT_OK; KVT_E_CANCELLED: `failure` says why not. */
KVT_NODISCARD kvt_status store_gpu_bring(store_gpu_views *gpu);

/* Copies layers of the entry into the views, as record_groups_range_of counts, and waits. KVT_OK;
 * KVT_E_GONE; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status store_gpu_scatter(const store_gpu_views *gpu, uint32_t first_layer,
                                           uint32_t layer_count);

/* Layers of these layouts, those of opaque bytes as one: what is counted. */
uint32_t store_gpu_layers(const kvt_layout *layouts, uint32_t count);

/* Gives back what was taken. */
void store_gpu_end(store_gpu_views *gpu);

/* Waits until the memory of a view may be used. */
KVT_NODISCARD kvt_status store_gpu_wait_ready(gpu_site *site, const kvt_view *view);

/* Queues copies of layers of an entry, layer_count of them from `first` on, into a view (GPU_IN) or
 * out of it. An opaque entry has one, which is all of it.
 *   tokens  the leading rows of each matrix that are copied; the others are not touched
 *   packed  the view of host memory, in which each of these matrices is one run */
KVT_NODISCARD kvt_status store_gpu_copy_layers(gpu_site *site, gpu_way way, const kvt_view *view,
                                               const kvt_layout *layout, uint32_t tokens,
                                               uint32_t first, uint32_t layer_count,
                                               const kvt_view *packed);

#endif
