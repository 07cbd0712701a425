/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_kernels.c - see gpu_kernels.h. Scratch is one piece of the GPU's memory, taken at its first
 * use: the site's bound, or by halves what the engine has left; it is given out in runs of grains.
 *
 * Thread rule: any thread. `kernel_lock` is held while a module is loaded or the scratch is taken,
 * and over no other call of the driver.
 */
#include "gpu_kernels.h"

#include "codecs/kernels/kernel_table.h"
#include "gpu_site_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_SCRATCH_GRAIN  UINT64_C(16384)    /* bytes, at least */
#define GPU_SCRATCH_GRAINS 16384u             /* at most */
#define GPU_SCRATCH_LEAST  UINT64_C(16777216) /* bytes that are not halved */

/* ---- modules ---- */

/* Loads a module and finds its function; the context is current. Every error but these of memory
 * and of the context is the driver's refusal of this text. */
static kvt_status kernels_load(gpu_site *site, kernel_id id)
{
    const kernel_facts *facts = kernel_facts_of(id);
    gpu_kernel *kernel = &site->kernels[id];
    int error = site->driver.module_load(&kernel->module, facts->ptx);
    if (error == GPU_SUCCESS) {
        error = site->driver.module_function(&kernel->function, kernel->module, facts->function);
        if (error != GPU_SUCCESS) (void)site->driver.module_unload(kernel->module);
    }
    if (error == GPU_SUCCESS) return KVT_OK;
    kernel->module = NULL;
    const kvt_status status = gpu_site_status(site, error);
    if (status != KVT_E_IO) return status;
    kernel->refused = error;
    return KVT_E_UNSUPPORTED;
}

kvt_status gpu_kernel_load(gpu_site *site, kernel_id id)
{
    assert(id < KERNEL_COUNT);
    gpu_kernel *kernel = &site->kernels[id];
    kvt_status status = KVT_OK;
    if (site->scratch_limit == 0) return KVT_E_UNSUPPORTED;
    pthread_mutex_lock(&site->kernel_lock);
    if (kernel->refused != 0)
        status = KVT_E_UNSUPPORTED;
    else if (kernel->module == NULL && (status = gpu_site_enter(site)) == KVT_OK) {
        status = kernels_load(site, id);
        (void)gpu_site_leave(site, GPU_SUCCESS);
    }
    pthread_mutex_unlock(&site->kernel_lock);
    return status;
}

/* The error of the first kernel that the driver has refused; 0: there is none. */
static int kernels_refusal(gpu_site *site, kernel_id *first_out)
{
    int error = 0;
    pthread_mutex_lock(&site->kernel_lock);
    for (uint32_t i = 0; i < KERNEL_COUNT && error == 0; i++) {
        error = site->kernels[i].refused;
        *first_out = (kernel_id)i;
    }
    pthread_mutex_unlock(&site->kernel_lock);
    return error;
}

bool gpu_kernels_refused(gpu_site *site)
{
    kernel_id first;
    return kernels_refusal(site, &first) != 0;
}

void gpu_kernels_engine(gpu_site *site, char *text, size_t size)
{
    kernel_id first;
    const int error = kernels_refusal(site, &first);
    const char *reason = error == GPU_NO_COMPILER  ? "the driver has no compiler"
                         : error == GPU_NEWER_PTX  ? "the driver is too old"
                         : error == GPU_HIGHER_PTX ? "the GPU takes no PTX for compute 8.0"
                                                   : "the driver refuses it";
    if (site->scratch_limit == 0)
        (void)snprintf(text, size, "cpu: gpu.scratch is 0");
    else if (error == 0)
        (void)snprintf(text, size, "cuda");
    else if (first == KERNEL_CHECK) /* every layer needs it */
        (void)snprintf(text, size, "cpu: %s (%d)", reason, error);
    else
        (void)snprintf(text, size, "cuda without %s: %s (%d)", kernel_facts_of(first)->function,
                       reason, error);
}

bool gpu_has_scratch(gpu_site *site)
{
    return site->scratch_limit != 0 && !gpu_kernels_refused(site);
}

void gpu_kernels_close(gpu_site *site)
{
    for (uint32_t i = 0; i < KERNEL_COUNT; i++)
        if (site->kernels[i].module != NULL)
            (void)site->driver.module_unload(site->kernels[i].module);
    if (site->scratch != 0) (void)site->driver.memory_free(site->scratch);
}

/* ---- scratch ---- */

/* Takes as many grains as the site has, and room to count them. */
static kvt_status kernels_allocate(gpu_site *site)
{
    uint8_t *used = calloc(site->grains, 1);
    if (used == NULL) return KVT_E_MEMORY;
    kvt_status status = gpu_site_enter(site);
    if (status == KVT_OK)
        status = gpu_site_leave(
            site, site->driver.memory_allocate(&site->scratch, site->grains * site->grain));
    if (status == KVT_OK) {
        site->used = used;
        return KVT_OK;
    }
    site->scratch = 0;
    free(used);
    return status;
}

/* Takes the memory, once. kernel_lock held. */
static kvt_status kernels_take_memory(gpu_site *site)
{
    kvt_status status = site->scratch != 0 ? KVT_OK : KVT_E_UNSUPPORTED;
    for (uint64_t bytes = site->scratch_limit;
         site->scratch == 0 && bytes >= GPU_SCRATCH_GRAIN && status != KVT_OK; bytes /= 2) {
        const uint64_t grains = (bytes - 1) / GPU_SCRATCH_GRAINS / GPU_SCRATCH_GRAIN + 1;
        site->grain = grains * GPU_SCRATCH_GRAIN;
        site->grains = (uint32_t)(bytes / site->grain);
        status = kernels_allocate(site);
        if (status != KVT_E_MEMORY || bytes < 2 * GPU_SCRATCH_LEAST) break;
    }
    return status;
}

/* The first run of so many free grains, or the number of all. */
static uint32_t kernels_find_run(const gpu_site *site, uint32_t count)
{
    uint32_t run = 0;
    for (uint32_t i = 0; i < site->grains; i++) {
        run = site->used[i] ? 0 : run + 1;
        if (run == count) return i + 1 - count;
    }
    return site->grains;
}

kvt_status gpu_scratch_take(gpu_site *site, uint64_t bytes, uint64_t *address_out)
{
    if (atomic_load(&site->gone)) return KVT_E_GONE;
    pthread_mutex_lock(&site->kernel_lock);
    kvt_status status = kernels_take_memory(site);
    const uint64_t count = status == KVT_OK ? bytes / site->grain + 1 : 0;
    if (status == KVT_OK && count > site->grains) status = KVT_E_UNSUPPORTED;
    if (status == KVT_OK) {
        const uint32_t first = kernels_find_run(site, (uint32_t)count);
        if (first == site->grains) {
            status = KVT_BUSY;
        } else {
            memset(&site->used[first], 1, count);
            *address_out = site->scratch + first * site->grain;
        }
    }
    pthread_mutex_unlock(&site->kernel_lock);
    return status;
}

void gpu_scratch_give(gpu_site *site, uint64_t address, uint64_t bytes)
{
    const uint64_t count = bytes / site->grain + 1;
    pthread_mutex_lock(&site->kernel_lock);
    const uint64_t first = (address - site->scratch) / site->grain;
    assert(first + count <= site->grains);
    memset(&site->used[first], 0, count);
    pthread_mutex_unlock(&site->kernel_lock);
}

/* ---- work ---- */

kvt_status gpu_copy_bytes(gpu_site *site, gpu_way stream, uint64_t address, const void *pinned,
                          uint64_t bytes)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    atomic_fetch_add(&site->copied[GPU_IN], bytes);
    return gpu_site_leave(site,
                          site->driver.copy_in(address, pinned, bytes, site->streams[stream]));
}

kvt_status gpu_copy_back(gpu_site *site, void *pinned, uint64_t address, uint64_t bytes)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    atomic_fetch_add(&site->copied[GPU_OUT], bytes);
    return gpu_site_leave(site,
                          site->driver.copy_out(pinned, address, bytes, site->streams[GPU_OUT]));
}

/* Queues a launch; the context is current. */
static int kernels_launch(gpu_site *site, void *stream, kernel_id kernel, uint64_t jobs,
                          uint32_t job_count, uint32_t blocks, uint64_t words)
{
    void *parameters[] = {&jobs, &job_count, &words};
    assert(blocks > 0 && site->kernels[kernel].function != NULL);
    return site->driver.launch(site->kernels[kernel].function, blocks, 1, 1, KERNEL_THREADS, 1, 1,
                               0, stream, parameters, NULL);
}

kvt_status gpu_kernel_launch(gpu_site *site, gpu_way stream, kernel_id kernel, uint64_t jobs,
                             uint32_t job_count, uint32_t blocks, uint32_t *verdicts)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    /* Pinned memory has one address for both. */
    return gpu_site_leave(site, kernels_launch(site, site->streams[stream], kernel, jobs, job_count,
                                               blocks, (uintptr_t)verdicts));
}

kvt_status gpu_kernel_launch_for(gpu_site *site, void *stream, kernel_id kernel, uint64_t jobs,
                                 uint32_t job_count, uint32_t blocks, uint64_t words,
                                 gpu_event **event_out)
{
    void *context = NULL;
    gpu_event *event = NULL;
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    int error = site->driver.stream_context(stream, &context);
    const bool ours = error == GPU_SUCCESS && context == site->context;
    if (!ours)
        status = error == GPU_SUCCESS || !gpu_error_is_fatal(error) ? KVT_E_ARGUMENT : KVT_OK;
    else
        status = gpu_event_take(site, &event);
    if (event != NULL) {
        error = kernels_launch(site, stream, kernel, jobs, job_count, blocks, words);
        if (error == GPU_SUCCESS) {
            error = site->driver.event_record(event->event, stream);
            /* Nobody could wait for what was launched. */
            if (error != GPU_SUCCESS) (void)site->driver.stream_wait(stream);
        }
    }
    const kvt_status left = gpu_site_leave(site, status == KVT_OK ? error : GPU_SUCCESS);
    if (status == KVT_OK) status = left;
    if (status == KVT_OK)
        *event_out = event;
    else
        gpu_event_give(site, event);
    return status;
}
