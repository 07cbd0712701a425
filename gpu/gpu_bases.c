/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_bases.c - see gpu_bases.h. A basis crosses in pieces through one pinned buffer, each behind
 * the event of the one before, so that a basis of a gigabyte takes no second one of the host's.
 *
 * Thread rule: any thread. `basis_lock` is held while a basis is sent; nothing that holds another
 * lock waits for it.
 */
#include "gpu_bases.h"

#include "codecs/transform_image.h"
#include "gpu_site_internal.h"

#include <assert.h>
#include <string.h>

#define BASES_PIECE UINT64_C(8388608)

/* Sends an image through a pinned buffer. All copies have ended when it returns. */
static kvt_status bases_send(gpu_site *site, const transform_basis *basis, uint64_t address,
                             uint64_t bytes, gpu_host *host)
{
    const uint64_t most = host->bytes / 8 * 8;
    kvt_status status = KVT_OK;
    for (uint64_t at = 0; at < bytes && status == KVT_OK; at += most) {
        const uint64_t count = bytes - at < most ? bytes - at : most;
        gpu_event *event = NULL;
        transform_image_write(basis, at, count, host->memory);
        status = gpu_copy_bytes(site, GPU_IN, address + at, host->memory, count);
        if (status == KVT_OK) status = gpu_mark(site, GPU_IN, &event);
        if (status == KVT_OK) status = gpu_await(site, event);
        gpu_event_give(site, event);
    }
    if (status != KVT_OK) gpu_rest(site, GPU_IN);
    return status;
}

/* Takes memory for a basis and sends it there. basis_lock held. */
static kvt_status bases_add(gpu_site *site, const transform_basis *basis)
{
    const uint64_t bytes = transform_image_of(&basis->shape).bytes;
    gpu_basis *own = &site->bases[site->basis_count];
    gpu_host *host;
    gpu_address address;
    if (site->scratch_limit == 0) return KVT_E_UNSUPPORTED; /* no kernel would read it */
    if (site->basis_count == GPU_BASES_MAX || bytes > GPU_BASES_BYTES - site->basis_bytes)
        return KVT_E_UNSUPPORTED;
    kvt_status status = gpu_host_take(site, bytes < BASES_PIECE ? bytes : BASES_PIECE, &host);
    if (status != KVT_OK) return status;
    status = gpu_site_enter(site);
    if (status == KVT_OK)
        status = gpu_site_leave(site, site->driver.memory_allocate(&address, bytes));
    if (status == KVT_OK) {
        status = bases_send(site, basis, address, bytes, host);
        if (status != KVT_OK && gpu_site_enter(site) == KVT_OK)
            (void)gpu_site_leave(site, site->driver.memory_free(address));
    }
    gpu_host_give(site, host);
    if (status != KVT_OK) return status == KVT_E_IO ? KVT_E_UNSUPPORTED : status;
    own->address = address;
    memcpy(own->hash, basis->hash, sizeof own->hash);
    site->basis_count++;
    site->basis_bytes += bytes;
    return KVT_OK;
}

kvt_status gpu_basis_take(gpu_site *site, const transform_basis *basis, uint64_t *address_out)
{
    kvt_status status = KVT_OK;
    uint32_t i = 0;
    pthread_mutex_lock(&site->basis_lock);
    while (i < site->basis_count &&
           memcmp(site->bases[i].hash, basis->hash, sizeof basis->hash) != 0)
        i++;
    if (i == site->basis_count) status = bases_add(site, basis);
    if (status == KVT_OK) *address_out = site->bases[i].address;
    pthread_mutex_unlock(&site->basis_lock);
    return status;
}

void gpu_bases_close(gpu_site *site)
{
    for (uint32_t i = 0; i < site->basis_count; i++)
        (void)site->driver.memory_free(site->bases[i].address);
}
