/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_regions.c - see gpu_regions.h. Pieces are those of the region from its first byte on, so that
 * two registrations share no page. Registering takes the driver milliseconds a piece; others that
 * need a piece wait meanwhile.
 *
 *     piece   unseen -> ours: unregistered at the end
 *                   \-> other's: somebody else has registered it, and keeps it
 *                   \-> refused
 *
 * Thread rule: as the header says; `region_lock` guards the table, and is held over the driver's
 * calls that register.
 */
#include "gpu_regions.h"

#include "gpu_site_internal.h"

#include <assert.h>
#include <stdlib.h>

enum { PIECE_UNSEEN, PIECE_OURS, PIECE_OTHERS, PIECE_REFUSED };

static uint64_t region_pieces(const gpu_region *region)
{
    return (region->bytes + GPU_REGION_PIECE - 1) / GPU_REGION_PIECE;
}

static uint64_t region_piece_bytes(const gpu_region *region, uint64_t piece)
{
    const uint64_t left = region->bytes - piece * GPU_REGION_PIECE;
    return left < GPU_REGION_PIECE ? left : GPU_REGION_PIECE;
}

/* Finds a region, or adds it. NULL: there is no room for it. Lock held. */
static gpu_pinned *region_find(gpu_site *site, const gpu_region *region)
{
    gpu_pinned *unused = NULL;
    for (uint32_t i = 0; i < GPU_REGIONS_MAX; i++) {
        gpu_pinned *one = &site->regions[i];
        if (one->pieces != NULL && one->region.memory == region->memory) return one;
        if (one->pieces == NULL && unused == NULL) unused = one;
    }
    if (unused == NULL) return NULL;
    unused->pieces = calloc(region_pieces(region), 1);
    unused->region = *region;
    return unused->pieces != NULL ? unused : NULL;
}

/* Registers one piece. Lock held, the context is current. */
static void region_register(gpu_site *site, gpu_pinned *pinned, uint64_t piece)
{
    const uint64_t bytes = region_piece_bytes(&pinned->region, piece);
    const int error = site->driver.host_register(pinned->region.memory + piece * GPU_REGION_PIECE,
                                                 bytes, GPU_HOST_PORTABLE);
    pinned->pieces[piece] = PIECE_REFUSED;
    if (error == GPU_SUCCESS) {
        pinned->pieces[piece] = PIECE_OURS;
        site->pinned_here += bytes;
    } else if (error == GPU_ALREADY_REGISTERED) {
        pinned->pieces[piece] = PIECE_OTHERS;
    } else {
        (void)gpu_site_status(site, error); /* it may have ended the context */
    }
}

bool gpu_region_pin(gpu_site *site, const gpu_region *region, const void *at, uint64_t bytes)
{
    const uint64_t from = (uint64_t)((const uint8_t *)at - region->memory);
    assert(bytes != 0 && from < region->bytes && bytes <= region->bytes - from);
    const uint64_t first = from / GPU_REGION_PIECE, last = (from + bytes - 1) / GPU_REGION_PIECE;
    pthread_mutex_lock(&site->region_lock);
    gpu_pinned *pinned = region_find(site, region);
    bool is_pinned = pinned != NULL;
    for (uint64_t piece = first; piece <= last && is_pinned; piece++) {
        if (pinned->pieces[piece] == PIECE_UNSEEN && gpu_site_enter(site) == KVT_OK) {
            region_register(site, pinned, piece);
            (void)gpu_site_leave(site, GPU_SUCCESS);
        }
        is_pinned = pinned->pieces[piece] == PIECE_OURS || pinned->pieces[piece] == PIECE_OTHERS;
    }
    pthread_mutex_unlock(&site->region_lock);
    return is_pinned;
}

kvt_status gpu_region_copy(gpu_site *site, const gpu_region *region, uint64_t address,
                           const void *at, uint64_t bytes)
{
    const uint8_t *from = at;
    kvt_status status = KVT_OK;
    while (bytes != 0 && status == KVT_OK) {
        const uint64_t offset = (uint64_t)(from - region->memory);
        const uint64_t left = GPU_REGION_PIECE - offset % GPU_REGION_PIECE;
        const uint64_t step = bytes < left ? bytes : left;
        status = gpu_copy_bytes(site, GPU_IN, address, from, step);
        from += step;
        address += step;
        bytes -= step;
    }
    return status;
}

/* Ends the registrations of a region. Lock held, the context is current. */
static void region_end(gpu_site *site, gpu_pinned *pinned)
{
    for (uint64_t piece = 0; piece < region_pieces(&pinned->region); piece++) {
        if (pinned->pieces[piece] != PIECE_OURS) continue;
        (void)site->driver.host_unregister(pinned->region.memory + piece * GPU_REGION_PIECE);
        site->pinned_here -= region_piece_bytes(&pinned->region, piece);
    }
    free(pinned->pieces);
    *pinned = (gpu_pinned){.pieces = NULL};
}

void gpu_region_forget(gpu_site *site, const void *memory)
{
    void *ours;
    const bool entered = site->driver.context_push(site->context) == GPU_SUCCESS;
    pthread_mutex_lock(&site->region_lock);
    for (uint32_t i = 0; i < GPU_REGIONS_MAX; i++)
        if (site->regions[i].pieces != NULL &&
            (memory == NULL || site->regions[i].region.memory == memory))
            region_end(site, &site->regions[i]);
    pthread_mutex_unlock(&site->region_lock);
    if (entered) (void)site->driver.context_pop(&ours);
}

uint64_t gpu_region_bytes(gpu_site *site)
{
    pthread_mutex_lock(&site->region_lock);
    const uint64_t bytes = site->pinned_here;
    pthread_mutex_unlock(&site->region_lock);
    return bytes;
}
