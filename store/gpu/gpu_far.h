/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_far.h - records that lie in the memory of the GPU into which they are decoded: their heads
 * are copied to the host, and the rest stays where kernels read it (docs/GPU.md).
 *
 * Thread rule: as of the get, load or move.
 */
#ifndef STORE_GPU_FAR_H
#define STORE_GPU_FAR_H

#include "gpu/gpu_site.h"
#include "store/read/load_internal.h"

/* Lends a record to kernels of the GPU in whose memory it lies in one piece, as
 * tiers_pool_lend_address: its address. 0: it lies elsewhere, or is the CPU's to decode. The
 * store's lock is held. */
uint64_t store_gpu_far_lend(kvt_store *store, const store_place *place, uint64_t gpu);

/* The memory of the device that has lent a record of the host's, from which kernels' bytes may be
 * sent while the loan lasts. */
gpu_region store_gpu_home(tiers_pool *pool, const tiers_location *location);

/* Copies ranges of a record of so many bytes into pinned memory, each to its `at`, and waits.
 * KVT_OK; KVT_E_CORRUPT: a range that the record does not have; statuses of gpu_site.h. */
KVT_NODISCARD kvt_status store_gpu_far_fetch(gpu_site *site, uint64_t record, uint64_t record_bytes,
                                             const kvt_record_range *ranges, uint32_t count,
                                             gpu_host **host_out);

/* Opens the heads of those entries whose records lie there and that are on their way; of many, in
 * one wait. One that fails has the status. */
void store_gpu_far_open(gpu_site *site, load_entry *entries, size_t count);

#endif
