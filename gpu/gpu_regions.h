/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_regions.h - memory of the host that a GPU copies from where it lies: the driver registers
 * (pins) it in pieces, each at its first use.
 *
 *     a copy from it -> its pieces registered -> copies -> gpu_region_forget -> the memory goes
 *
 * A piece that the driver refuses stays refused while the memory is known. Statuses as of
 * gpu_site.h.
 *
 * Thread rule: any thread; the memory stays while the calls run and while copies from it do.
 */
#ifndef GPU_REGIONS_H
#define GPU_REGIONS_H

#include "gpu_site.h"

#define GPU_REGIONS_MAX  64u
#define GPU_REGION_PIECE (UINT64_C(64) << 20) /* bytes that are registered at once */

/* Memory of which pieces are registered, by its first byte, which is aligned to 4 KiB. */
typedef struct gpu_region {
    uint8_t *memory;
    uint64_t bytes;
} gpu_region;

/* Registers the pieces that hold bytes of a region. False: one of them is refused, or there are
 * too many regions; the bytes are then to be copied through pinned memory. */
bool gpu_region_pin(gpu_site *site, const gpu_region *region, const void *at, uint64_t bytes);

/* Queues a copy of bytes that gpu_region_pin has registered, in a piece's part at a time, because a
 * copy may not cross from one registration to the next. */
KVT_NODISCARD kvt_status gpu_region_copy(gpu_site *site, const gpu_region *region, uint64_t address,
                                         const void *at, uint64_t bytes);

/* Ends the registrations of a region by its first byte, NULL: of all, before the site is closed: no
 * copy from it is under way. An unknown one is allowed. */
void gpu_region_forget(gpu_site *site, const void *memory);

/* Bytes of the host that are registered now. */
uint64_t gpu_region_bytes(gpu_site *site);

#endif
