/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_gpu.c - a ring whose blocks kernels of a GPU post (codecs/kernels/ring.cu; docs/CALLS.md,
 * Rings). The GPU reaches the ring's memory; its kernels claim positions in memory of their own.
 * The file carries no block out, and knows nothing of what they read.
 *
 * A kernel uses the ring's memory until it ends, so the ring's end waits for the events behind all
 * launches. They come, because kernels wait no longer than ten seconds and a ring that was given up
 * has completed all blocks.
 *
 * Thread rule: as the public header says; `gpu.lock` is held over calls of the driver and over no
 * other lock.
 */
#include "store/ring/ring_internal.h"

#include "codecs/kernels/jobs.h"
#include "gpu/gpu_kernels.h"
#include "store/core/store.h"
#include "store/gpu/gpu_views.h"

#include <kvterrace/ring.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING_GPU_POLL_NS   UINT64_C(100000)
#define RING_GPU_POSTS_MAX 65536u

_Static_assert(sizeof(kvt_ring_post) == sizeof(kernel_ring_post), "the kernel's words");
_Static_assert(offsetof(kvt_ring_post, block) == offsetof(kernel_ring_post, block), "of the block");
_Static_assert(offsetof(kvt_ring_post, result) == offsetof(kernel_ring_post, result), "its result");
_Static_assert(KVT_MISS == 1 && KVT_BUSY == 2 && KVT_QUEUED == 4 && KVT_E_ARGUMENT == -10 &&
                   KVT_E_STATE == -13 && KVT_E_TIMEOUT == -34 && KVT_E_CORRUPT == -40,
               "the kernel's statuses");

/* Why a ring is not given to a GPU, or takes no launch. gpu.lock is held. */
static kvt_status ring_gpu_state(const kvt_ring *ring, bool open)
{
    if (ring->gpu.ended || atomic_load(&ring->stopping)) return KVT_E_STATE;
    return (ring->gpu.site != NULL) == open ? KVT_OK : KVT_E_STATE;
}

/* Copies the gate into the scratch, and waits. */
static kvt_status ring_gpu_send_gate(const kvt_ring *ring, gpu_site *site, uint64_t memory,
                                     uint64_t gate_at)
{
    const uint64_t first = offsetof(base_ring_words, entry);
    const kernel_ring_gate gate = {.submissions = memory + ring->head.submissions_at + first,
                                   .completions = memory + ring->head.completions_at + first,
                                   .tables = memory + ring->head.tables_at,
                                   .statuses = memory + ring->head.statuses_at,
                                   .depth = ring->head.depth,
                                   .contexts = ring->head.contexts};
    gpu_host *host;
    kvt_status status = gpu_host_take(site, sizeof gate, &host);
    if (status != KVT_OK) return status;
    memcpy(host->memory, &gate, sizeof gate);
    status = gpu_copy_bytes(site, GPU_IN, gate_at, host->memory, sizeof gate);
    status = gpu_settle(site, GPU_IN, status);
    gpu_host_give(site, host);
    return status;
}

/* Makes the ring's memory the GPU's, too. Nothing is held after a failure. */
static kvt_status ring_gpu_map(kvt_ring *ring, gpu_site *site, uint64_t *gate_out)
{
    uint64_t memory, gate;
    kvt_status status = gpu_kernel_load(site, KERNEL_RING);
    if (status == KVT_OK) status = gpu_host_map(site, ring->memory, ring->head.bytes, &memory);
    if (status != KVT_OK) return status;
    status = gpu_scratch_take(site, sizeof(kernel_ring_gate), &gate);
    if (status == KVT_OK) {
        status = ring_gpu_send_gate(ring, site, memory, gate);
        if (status != KVT_OK) gpu_scratch_give(site, gate, sizeof(kernel_ring_gate));
    }
    if (status == KVT_OK)
        *gate_out = gate;
    else
        gpu_host_unmap(site, ring->memory);
    return status;
}

kvt_status kvt_ring_gpu_open(kvt_ring *ring, uint32_t gpu)
{
    static const uint64_t one = 1;
    gpu_site *site;
    uint64_t gate = 0, none = 0;
    if (ring == NULL) return KVT_E_ARGUMENT;
    kvt_status status = ring_state(ring);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&ring->gpu.lock);
    status = ring_gpu_state(ring, false);
    if (status == KVT_OK) status = gpu_sites_take(&ring->store->gpus, gpu, &site);
    if (status == KVT_OK) status = ring_gpu_map(ring, site, &gate);
    if (status == KVT_OK && !atomic_compare_exchange_strong(&ring->submissions.words->claimed,
                                                            &none, RING_CLAIMS_OF_GPU)) {
        gpu_scratch_give(site, gate, sizeof(kernel_ring_gate));
        gpu_host_unmap(site, ring->memory);
        status = KVT_E_STATE;
    }
    if (status == KVT_OK) {
        ring->gpu.site = site;
        ring->gpu.gate = gate;
        pthread_mutex_lock(&ring->lock);
        if (ring->poll_ns == RING_POLL_NS) ring->poll_ns = RING_GPU_POLL_NS;
        pthread_mutex_unlock(&ring->lock);
        (void)!write(ring->bell, &one, sizeof one); /* its sleep is shorter from now on */
    }
    pthread_mutex_unlock(&ring->gpu.lock);
    return status;
}

/* Gives the events of kernels that have ended back, and makes room for one more. gpu.lock is
 * held. */
static kvt_status ring_gpu_reap(ring_gpu *gpu)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < gpu->launch_count; i++) {
        if (gpu_look(gpu->site, gpu->launches[i]) == KVT_QUEUED)
            gpu->launches[kept++] = gpu->launches[i];
        else
            gpu_event_give(gpu->site, gpu->launches[i]);
    }
    gpu->launch_count = kept;
    if (kept < gpu->launch_room) return KVT_OK;
    const uint32_t room = 2 * kept + 16;
    gpu_event **launches = realloc(gpu->launches, room * sizeof(gpu_event *));
    if (launches == NULL) return KVT_E_MEMORY;
    gpu->launches = launches;
    gpu->launch_room = room;
    return KVT_OK;
}

kvt_status kvt_ring_gpu_launch(kvt_ring *ring, void *posts, uint32_t count, void *stream)
{
    gpu_event *event;
    if (ring == NULL || posts == NULL || (uintptr_t)posts % 8 != 0) return KVT_E_ARGUMENT;
    if (count == 0 || count > RING_GPU_POSTS_MAX) return KVT_E_ARGUMENT;
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    ring_gpu *gpu = &ring->gpu;
    pthread_mutex_lock(&gpu->lock);
    kvt_status status = ring_gpu_state(ring, true);
    if (status == KVT_OK) status = gpu_site_check(gpu->site, posts, count * sizeof(kvt_ring_post));
    if (status == KVT_OK) status = ring_gpu_reap(gpu);
    if (status == KVT_OK)
        status = gpu_kernel_launch_for(gpu->site, stream, KERNEL_RING, (uintptr_t)posts, count,
                                       (count + KERNEL_RING_BLOCK - 1) / KERNEL_RING_BLOCK,
                                       gpu->gate, &event);
    if (status == KVT_OK) gpu->launches[gpu->launch_count++] = event;
    pthread_mutex_unlock(&gpu->lock);
    return status;
}

void ring_gpu_end(kvt_ring *ring)
{
    ring_gpu *gpu = &ring->gpu;
    pthread_mutex_lock(&gpu->lock);
    gpu->ended = true;
    for (uint32_t i = 0; i < gpu->launch_count; i++) {
        (void)!gpu_await(gpu->site, gpu->launches[i]);
        gpu_event_give(gpu->site, gpu->launches[i]);
    }
    if (gpu->site != NULL) {
        gpu_scratch_give(gpu->site, gpu->gate, sizeof(kernel_ring_gate));
        gpu_host_unmap(gpu->site, ring->memory);
    }
    free(gpu->launches);
    gpu->launches = NULL;
    gpu->site = NULL;
    gpu->launch_count = gpu->launch_room = 0;
    pthread_mutex_unlock(&gpu->lock);
}
