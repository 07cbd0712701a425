/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_site.c - see gpu_site.h: the context, streams, pinned memory and events of one GPU.
 *
 * Events and pinned memory that nobody has are kept in lists, because the driver takes long to make
 * them; the list of pinned memory is bounded.
 *
 * Thread rule: any thread. `lock` guards the two lists and is held over no call of the driver but
 * those that make or free what they hold.
 */
#include "gpu_site.h"

#include "base/clock.h"
#include "codecs/kernels/view_kernels.h"
#include "gpu_site_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define GPU_HOST_GRAIN UINT64_C(65536)
#define GPU_SPIN_NS    UINT64_C(50000) /* a wait that is longer naps */
#define GPU_NAP_NS     UINT64_C(10000)

/* ---- contexts and errors ---- */

kvt_status gpu_site_status(gpu_site *site, int error)
{
    if (error == GPU_SUCCESS) return KVT_OK;
    if (gpu_error_is_fatal(error)) atomic_store(&site->gone, true);
    if (atomic_load(&site->gone)) return KVT_E_GONE;
    return error == GPU_OUT_OF_MEMORY ? KVT_E_MEMORY : KVT_E_IO;
}

kvt_status gpu_site_enter(gpu_site *site)
{
    if (atomic_load(&site->gone)) return KVT_E_GONE;
    return gpu_site_status(site, site->driver.context_push(site->context));
}

kvt_status gpu_site_leave(gpu_site *site, int error)
{
    void *ours;
    (void)site->driver.context_pop(&ours);
    return gpu_site_status(site, error);
}

/* ---- open and close ---- */

kvt_status gpu_site_open(uint32_t ordinal, uint64_t scratch_bytes, uint64_t pinned_bytes,
                         gpu_site **site_out, char *reason, size_t reason_size)
{
    int count = 0, error;
    gpu_site *site = calloc(1, sizeof *site);
    if (site == NULL) return KVT_E_MEMORY;
    pthread_mutex_init(&site->lock, NULL);
    pthread_mutex_init(&site->kernel_lock, NULL);
    pthread_mutex_init(&site->basis_lock, NULL);
    pthread_mutex_init(&site->region_lock, NULL);
    site->ordinal = ordinal;
    site->scratch_limit = scratch_bytes;
    site->kept_limit = pinned_bytes;
    kvt_status status = KVT_OK;
    if (!gpu_driver_load(&site->driver, &count, reason, reason_size))
        status = KVT_E_UNSUPPORTED;
    else if (ordinal >= (uint32_t)count)
        status = KVT_E_ARGUMENT;
    if (status == KVT_E_ARGUMENT)
        snprintf(reason, reason_size, "there is no GPU %u of %d", ordinal, count);
    if (status == KVT_OK) {
        const gpu_driver *driver = &site->driver;
        error = driver->device_get(&site->device, (int)ordinal);
        if (error == GPU_SUCCESS) error = driver->context_retain(&site->context, site->device);
        status = gpu_site_status(site, error);
        if (status == KVT_OK) status = gpu_site_enter(site);
        if (status == KVT_OK) {
            for (int i = 0; i < 2 && error == GPU_SUCCESS; i++)
                error = driver->stream_create(&site->streams[i], GPU_STREAM_NON_BLOCKING);
            status = gpu_site_leave(site, error);
        }
        if (status != KVT_OK)
            snprintf(reason, reason_size, "GPU %u refused: CUDA error %d", ordinal, error);
    }
    if (status == KVT_OK)
        *site_out = site;
    else
        gpu_site_close(site);
    return status;
}

void gpu_site_close(gpu_site *site)
{
    if (site == NULL) return;
    const gpu_driver *driver = &site->driver;
    void *ours;
    assert(site->pinned_here == 0);
    if (site->context != NULL) {
        const bool entered = driver->context_push(site->context) == GPU_SUCCESS;
        for (int i = 0; i < 2; i++)
            if (site->streams[i] != NULL) (void)driver->stream_destroy(site->streams[i]);
        gpu_kernels_close(site);
        gpu_bases_close(site);
        for (gpu_event *event = site->events; event != NULL; event = site->events) {
            site->events = event->next;
            (void)driver->event_destroy(event->event);
            free(event);
        }
        for (gpu_host *host = site->hosts; host != NULL; host = site->hosts) {
            site->hosts = host->next;
            (void)driver->host_free(host->memory);
            free(host);
        }
        if (entered) (void)driver->context_pop(&ours);
        (void)driver->context_release(site->device);
    }
    gpu_driver_unload(&site->driver);
    pthread_mutex_destroy(&site->lock);
    pthread_mutex_destroy(&site->kernel_lock);
    free(site->used);
    pthread_mutex_destroy(&site->basis_lock);
    pthread_mutex_destroy(&site->region_lock);
    free(site);
}

kvt_status gpu_site_identity(gpu_site *site, char *text, size_t text_size)
{
    const int error = gpu_driver_identity(&site->driver, site->device, text, text_size);
    return gpu_site_status(site, error);
}

/* ---- what the engine names ---- */

/* Whether an address is this GPU's. */
static bool site_has(const gpu_site *site, gpu_address address)
{
    unsigned type = 0;
    int ordinal = -1;
    return site->driver.memory_ask(&type, GPU_POINTER_MEMORY_TYPE, address) == GPU_SUCCESS &&
           type == GPU_MEMORY_DEVICE &&
           site->driver.memory_ask(&ordinal, GPU_POINTER_DEVICE, address) == GPU_SUCCESS &&
           ordinal == (int)site->ordinal;
}

kvt_status gpu_site_check(gpu_site *site, const void *address, uint64_t bytes)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    const gpu_address first = (uintptr_t)address;
    const bool has = site_has(site, first) && (bytes <= 1 || site_has(site, first + bytes - 1));
    status = gpu_site_leave(site, GPU_SUCCESS);
    return status == KVT_OK && !has ? KVT_E_ARGUMENT : status;
}

/* How a query of an event ended. */
static kvt_status site_query(gpu_site *site, void *event)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    const int error = site->driver.event_query(event);
    if (error != GPU_NOT_READY) return gpu_site_leave(site, error);
    status = gpu_site_leave(site, GPU_SUCCESS);
    return status == KVT_OK ? KVT_QUEUED : status;
}

kvt_status gpu_site_ready(gpu_site *site, void *event)
{
    return site_query(site, event);
}

kvt_status gpu_follow(gpu_site *site, void *stream, const gpu_event *event)
{
    void *context = NULL;
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    int error = site->driver.stream_context(stream, &context);
    const bool ours = error == GPU_SUCCESS && context == site->context;
    if (ours) error = site->driver.stream_wait_event(stream, event->event, 0);
    status = gpu_site_leave(site, error);
    return ours || status == KVT_E_GONE ? status : KVT_E_ARGUMENT;
}

/* ---- pinned memory ---- */

/* Takes the first memory off the list that is large enough and not four times too large. */
static gpu_host *site_take_kept(gpu_site *site, uint64_t bytes)
{
    pthread_mutex_lock(&site->lock);
    gpu_host **link = &site->hosts;
    while (*link != NULL && ((*link)->bytes < bytes || (*link)->bytes / 4 > bytes))
        link = &(*link)->next;
    gpu_host *host = *link;
    if (host != NULL) {
        *link = host->next;
        site->kept_bytes -= host->bytes;
    }
    pthread_mutex_unlock(&site->lock);
    return host;
}

kvt_status gpu_host_take(gpu_site *site, uint64_t bytes, gpu_host **host_out)
{
    if (bytes > UINT64_MAX - GPU_HOST_GRAIN) return KVT_E_MEMORY;
    if (atomic_load(&site->gone)) return KVT_E_GONE;
    bytes = (bytes + GPU_HOST_GRAIN - 1) / GPU_HOST_GRAIN * GPU_HOST_GRAIN;
    gpu_host *host = site_take_kept(site, bytes);
    kvt_status status = host != NULL ? KVT_OK : gpu_site_enter(site);
    if (host == NULL && status == KVT_OK) {
        host = calloc(1, sizeof *host);
        int error = GPU_OUT_OF_MEMORY;
        if (host != NULL) {
            host->bytes = bytes;
            error = site->driver.host_allocate(&host->memory, bytes, GPU_HOST_PORTABLE);
        }
        status = gpu_site_leave(site, error);
        if (status != KVT_OK) free(host);
    }
    if (status == KVT_OK) *host_out = host;
    return status;
}

void gpu_host_give(gpu_site *site, gpu_host *host)
{
    if (host == NULL) return;
    pthread_mutex_lock(&site->lock);
    const bool keep = host->bytes <= site->kept_limit - site->kept_bytes;
    if (keep) {
        host->next = site->hosts;
        site->hosts = host;
        site->kept_bytes += host->bytes;
    }
    pthread_mutex_unlock(&site->lock);
    if (keep) return;
    void *ours;
    const bool entered = site->driver.context_push(site->context) == GPU_SUCCESS;
    (void)site->driver.host_free(host->memory);
    if (entered) (void)site->driver.context_pop(&ours);
    free(host);
}

kvt_status gpu_host_map(gpu_site *site, void *memory, uint64_t bytes, uint64_t *address_out)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    int error = site->driver.host_register(memory, bytes, GPU_HOST_PORTABLE | GPU_HOST_MAPPED);
    if (error == GPU_SUCCESS) {
        error = site->driver.host_address(address_out, memory, 0);
        if (error != GPU_SUCCESS) (void)site->driver.host_unregister(memory);
    }
    return gpu_site_leave(site, error);
}

void gpu_host_unmap(gpu_site *site, void *memory)
{
    void *ours;
    const bool entered = site->driver.context_push(site->context) == GPU_SUCCESS;
    (void)site->driver.host_unregister(memory);
    if (entered) (void)site->driver.context_pop(&ours);
}

/* ---- copies ---- */

/* Queues one copy. */
static int site_copy(gpu_site *site, gpu_way way, uint8_t *gpu, void *host, uint64_t bytes)
{
    const gpu_address address = (uintptr_t)gpu;
    void *stream = site->streams[way];
    atomic_fetch_add(&site->copied[way], bytes);
    return way == GPU_IN ? site->driver.copy_in(address, host, bytes, stream)
                         : site->driver.copy_out(host, address, bytes, stream);
}

/* Queues the copies of one row, which has gaps between its heads. */
static int site_copy_heads(gpu_site *site, gpu_way way, const view_rows *rows, uint8_t *row,
                           uint8_t *packed)
{
    int error = GPU_SUCCESS;
    for (uint32_t head = 0; head < rows->heads && error == GPU_SUCCESS; head++)
        error = site_copy(site, way, row + head * rows->head_stride,
                          packed + head * rows->head_bytes, rows->head_bytes);
    return error;
}

/* Queues the copies of a matrix whose rows are not one run: a block's rows at once, where they are
 * dense. */
static int site_copy_apart(gpu_site *site, gpu_way way, const view_rows *rows, uint8_t *packed)
{
    const uint64_t count = rows->bytes / rows->row_bytes;
    int error = GPU_SUCCESS;
    for (uint64_t token = 0; token < count && error == GPU_SUCCESS;) {
        const view_rows_place place = view_rows_place_of(rows, token);
        const uint64_t left = count - token;
        const uint64_t run = !rows->dense ? 1 : place.left < left ? place.left : left;
        uint8_t *from = packed + token * rows->row_bytes;
        assert(run > 0);
        error = rows->heads == 1 ? site_copy(site, way, place.row, from, run * rows->row_bytes)
                                 : site_copy_heads(site, way, rows, place.row, from);
        token += run;
    }
    return error;
}

kvt_status gpu_copy_rows(gpu_site *site, gpu_way way, const view_rows *rows, void *packed)
{
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    const int error = rows->packed ? site_copy(site, way, rows->start, packed, rows->bytes)
                                   : site_copy_apart(site, way, rows, packed);
    return gpu_site_leave(site, error);
}

void gpu_count(gpu_site *site, gpu_counter counter, uint64_t more)
{
    assert(counter < GPU_COUNTERS);
    atomic_fetch_add(&site->counts[counter], more);
}

uint64_t gpu_counted(const gpu_site *site, gpu_counter counter)
{
    assert(counter < GPU_COUNTERS);
    return atomic_load(&site->counts[counter]);
}

uint64_t gpu_bytes_copied(const gpu_site *site, gpu_way way)
{
    return atomic_load(&site->copied[way]);
}

/* ---- events ---- */

kvt_status gpu_event_take(gpu_site *site, gpu_event **event_out)
{
    pthread_mutex_lock(&site->lock);
    gpu_event *event = site->events;
    if (event != NULL) site->events = event->next;
    pthread_mutex_unlock(&site->lock);
    int error = GPU_SUCCESS;
    if (event == NULL) {
        event = calloc(1, sizeof *event);
        if (event == NULL) return KVT_E_MEMORY;
        error = site->driver.event_create(&event->event, GPU_EVENT_NO_TIMING);
    }
    if (error == GPU_SUCCESS)
        *event_out = event;
    else
        free(event);
    return gpu_site_status(site, error);
}

kvt_status gpu_mark(gpu_site *site, gpu_way way, gpu_event **event_out)
{
    gpu_event *event;
    kvt_status status = gpu_site_enter(site);
    if (status != KVT_OK) return status;
    status = gpu_event_take(site, &event);
    const bool taken = status == KVT_OK;
    const int error =
        taken ? site->driver.event_record(event->event, site->streams[way]) : GPU_SUCCESS;
    const kvt_status left = gpu_site_leave(site, error);
    if (status == KVT_OK) status = left;
    if (status == KVT_OK)
        *event_out = event;
    else if (taken)
        gpu_event_give(site, event);
    return status;
}

kvt_status gpu_look(gpu_site *site, const gpu_event *event)
{
    return site_query(site, event->event);
}

kvt_status gpu_await(gpu_site *site, const gpu_event *event)
{
    const uint64_t from_ns = base_clock_ns();
    for (;;) {
        const kvt_status status = site_query(site, event->event);
        if (status != KVT_QUEUED) return status;
        if (base_clock_ns() - from_ns > GPU_SPIN_NS) base_sleep(GPU_NAP_NS);
    }
}

void gpu_event_give(gpu_site *site, gpu_event *event)
{
    if (event == NULL) return;
    pthread_mutex_lock(&site->lock);
    event->next = site->events;
    site->events = event;
    pthread_mutex_unlock(&site->lock);
}

void gpu_rest(gpu_site *site, gpu_way way)
{
    void *ours;
    bool rests = site->driver.context_push(site->context) == GPU_SUCCESS;
    if (rests) {
        rests = site->driver.stream_wait(site->streams[way]) == GPU_SUCCESS;
        (void)site->driver.context_pop(&ours);
    }
    /* Work that cannot be waited for may use memory for ever: none is given out any more. */
    if (!rests) atomic_store(&site->gone, true);
}

kvt_status gpu_settle(gpu_site *site, gpu_way way, kvt_status status)
{
    gpu_event *event = NULL;
    if (status == KVT_OK) status = gpu_mark(site, way, &event);
    if (status == KVT_OK) status = gpu_await(site, event);
    if (status != KVT_OK) gpu_rest(site, way);
    gpu_event_give(site, event);
    return status;
}
