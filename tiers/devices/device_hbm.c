/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_hbm.c - a GPU's memory as a device: one allocation, and copies on two streams.
 *
 *     write              caller --memcpy--> pinned slot --stream 1--> GPU
 *     read               GPU --stream 0--> pinned slot --memcpy--> caller
 *     registered memory  caller --stream 1--> GPU, GPU --stream 0--> caller
 *
 *     slot    unused -> copy started, event recorded, in its stream's line -> event over -> unused
 *
 * Each direction has a stream, because a GPU has a copy engine for each. An operation records an
 * event behind its copy; reap asks the events of a stream in the order of submission and never
 * blocks in the driver, so a caller decodes one part while the next ones are under way. Memory that
 * was announced (register_buffers) is pinned and copied from and to directly; all else goes through
 * a slot of pinned memory, because the driver copies pageable memory while its caller waits.
 *
 * An emulated device is memory of the host behind the throttle, and its facts say so. A device is
 * emulated only when the configuration asks for it; a GPU that does not answer is an error.
 *
 * Invariants: a slot is in exactly one of `unused` and its line; a line is in the order of
 * submission, so the first event that is not over ends a look at it; pinned slot i begins at i *
 * HBM_SLOT_BYTES and belongs to slot i for good.
 *
 * Thread rule: as device_ops.h. The context is made current on whichever thread uses the device.
 */
#include "base/clock.h"
#include "device_internal.h"
#include "gpu/gpu_driver.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HBM_ALIGN_BYTES = 64,
    HBM_SLOT_BYTES = 1 << 20, /* pinned, per operation in flight; the largest request */
    HBM_DEPTH_DEFAULT = 16,
    HBM_DEPTH_MAX = 256,
    HBM_NAP_NS = 10000 /* a copy of 256 KiB over PCIe 4.0 x16 takes as long */
};

/* The bandwidth of PCIe 4.0 x16 in practice, so that emulated memory of a GPU is no faster than the
 * real one. */
#define HBM_EMULATED_BYTES_PER_S UINT64_C(25000000000)

/* One operation in flight and its megabyte of pinned memory. staged: the bytes go through `pinned`
 * and not straight to the caller's buffer. */
typedef struct hbm_slot {
    struct hbm_slot *next;
    kvt_io *io;
    void *event;
    unsigned char *pinned;
    bool staged;
} hbm_slot;

/* The operations of one direction. head is the oldest; tail is NULL exactly when head is. */
typedef struct hbm_line {
    void *stream;
    hbm_slot *head; /* in flight, in order */
    hbm_slot *tail;
} hbm_line;

/* Memory that was announced and is pinned while the list stands. Regions do not overlap. */
typedef struct hbm_region {
    unsigned char *memory;
    uint64_t bytes;
    bool ours; /* false: somebody else had pinned it already */
} hbm_region;

/* gone is set once and never cleared: a context that broke stays broken for its process. */
typedef struct hbm_device {
    kvt_device base;
    gpu_driver driver;
    int gpu;
    void *context;
    pthread_t bound; /* the thread on which the context is current */
    bool is_bound;
    bool gone; /* the context is broken for good */
    gpu_address memory;
    unsigned char *pinned;
    hbm_line lines[2]; /* by kvt_io_kind */
    hbm_slot *unused;
    hbm_region *regions;
    uint32_t region_count;
    uint32_t slot_count;
    hbm_slot slots[];
} hbm_device;

/* A CUDA error may belong to the call, to an earlier copy, or to the whole context. Only the last
 * kind ends the device. */
/* ---- errors ---- */

/* Ends an operation with a CUDA result. After a fatal error every later submission is KVT_E_GONE.
 * A failure of a device that is gone is KVT_E_GONE, whatever the error says. */
static void hbm_finish(hbm_device *hbm, kvt_io *io, int error)
{
    if (gpu_error_is_fatal(error)) hbm->gone = true;
    kvt_status status = error == GPU_SUCCESS ? KVT_OK : hbm->gone ? KVT_E_GONE : KVT_E_IO;
    tiers_io_finish(io, status, 0, base_clock_ns());
}

/* Makes the context current on the calling thread. The context belongs to the process, but each
 * thread chooses the one that it uses. The thread that bound it last is remembered, so the driver
 * is asked once per thread and not per operation. */
static int hbm_bind(hbm_device *hbm)
{
    if (hbm->is_bound && pthread_equal(hbm->bound, pthread_self())) return GPU_SUCCESS;
    int error = hbm->driver.context_set(hbm->context);
    hbm->bound = pthread_self();
    hbm->is_bound = error == GPU_SUCCESS;
    return error;
}

/* The thread that used the device last has no context any more, if it is this one. */
static void hbm_unbind(hbm_device *hbm)
{
    if (hbm->is_bound && pthread_equal(hbm->bound, pthread_self()))
        (void)hbm->driver.context_set(NULL);
    hbm->is_bound = false;
}

/* The same for one call on a thread that is not the device's: it may have a context of its own,
 * such as an engine's, which is current again after hbm_leave. */
static int hbm_enter(const hbm_device *hbm)
{
    return hbm->driver.context_push(hbm->context);
}

static void hbm_leave(const hbm_device *hbm)
{
    void *ours;
    (void)hbm->driver.context_pop(&ours);
}

/* A device takes its context, its memory and its slots at open and keeps them, so that no copy ever
 * has to ask the driver for memory. */
/* ---- opening and closing ---- */

/* Unpins the regions that this device pinned, and forgets all. Memory that somebody else had pinned
 * stays pinned. */
static void hbm_forget_regions(hbm_device *hbm)
{
    for (uint32_t i = 0; i < hbm->region_count; i++) {
        if (hbm->regions[i].ours) (void)hbm->driver.host_unregister(hbm->regions[i].memory);
    }
    free(hbm->regions);
    hbm->regions = NULL;
    hbm->region_count = 0;
}

/* Frees whatever an open got to; nothing is in flight. Each part may be missing, in the order in
 * which hbm_set_up makes them. */
static void hbm_close(kvt_device *device)
{
    hbm_device *hbm = (hbm_device *)device;
    const gpu_driver *driver = &hbm->driver;
    if (hbm->context != NULL) {
        hbm_unbind(hbm);
        const bool entered = hbm_enter(hbm) == GPU_SUCCESS;
        hbm_forget_regions(hbm);
        for (uint32_t i = 0; i < hbm->slot_count; i++)
            if (hbm->slots[i].event != NULL) (void)driver->event_destroy(hbm->slots[i].event);
        for (int i = 0; i < 2; i++)
            if (hbm->lines[i].stream != NULL) (void)driver->stream_destroy(hbm->lines[i].stream);
        if (hbm->pinned != NULL) (void)driver->host_free(hbm->pinned);
        if (hbm->memory != 0) (void)driver->memory_free(hbm->memory);
        if (entered) hbm_leave(hbm);
        (void)driver->context_release(hbm->gpu);
    }
    gpu_driver_unload(&hbm->driver);
    free(hbm);
}

/* Makes everything that a copy needs, with the context current. Returns a CUDA error; hbm_close
 * frees the parts that were made. The steps stop at the first error. */
static int hbm_set_up(hbm_device *hbm, uint64_t capacity)
{
    const gpu_driver *driver = &hbm->driver;
    int error = driver->memory_allocate(&hbm->memory, capacity);
    void *pinned = NULL;
    if (error == GPU_SUCCESS)
        error = driver->host_allocate(&pinned, (size_t)hbm->slot_count * HBM_SLOT_BYTES,
                                      GPU_HOST_PORTABLE);
    hbm->pinned = pinned;
    for (int i = 0; i < 2 && error == GPU_SUCCESS; i++)
        error = driver->stream_create(&hbm->lines[i].stream, GPU_STREAM_NON_BLOCKING);
    for (uint32_t i = hbm->slot_count; i-- > 0 && error == GPU_SUCCESS;) {
        hbm_slot *slot = &hbm->slots[i];
        error = driver->event_create(&slot->event, GPU_EVENT_NO_TIMING);
        slot->pinned = hbm->pinned + (size_t)i * HBM_SLOT_BYTES;
        slot->next = hbm->unused;
        hbm->unused = slot;
    }
    return error;
}

/* Takes the GPU's primary context, and makes everything in it. */
static int hbm_set_up_in_context(hbm_device *hbm, uint32_t ordinal, uint64_t capacity)
{
    int error = hbm->driver.device_get(&hbm->gpu, (int)ordinal);
    if (error == GPU_SUCCESS) error = hbm->driver.context_retain(&hbm->context, hbm->gpu);
    if (error == GPU_SUCCESS) error = hbm_enter(hbm);
    if (error != GPU_SUCCESS) return error;
    error = hbm_set_up(hbm, capacity);
    hbm_leave(hbm);
    return error;
}

/* Opens a device on a GPU that is there. The driver library is the device's on success. depth
 * bounds the pinned memory: one megabyte for each operation in flight. */
static kvt_status hbm_open_gpu(const kvt_device_config *config, const gpu_driver *driver,
                               kvt_device **device_out, char *message, size_t message_size)
{
    uint64_t capacity = config->capacity_bytes / HBM_ALIGN_BYTES * HBM_ALIGN_BYTES;
    uint32_t depth = config->depth != 0 ? config->depth : HBM_DEPTH_DEFAULT;
    if (depth > HBM_DEPTH_MAX) depth = HBM_DEPTH_MAX;
    hbm_device *hbm = calloc(1, sizeof *hbm + depth * sizeof hbm->slots[0]);
    if (hbm == NULL) {
        tiers_device_message(message, message_size, config, "out of memory");
        return KVT_E_MEMORY;
    }
    hbm->driver = *driver;
    hbm->slot_count = depth;
    int error = hbm_set_up_in_context(hbm, config->gpu, capacity);
    if (error == GPU_SUCCESS) {
        tiers_device_init(&hbm->base, &tiers_hbm_ops, config);
        kvt_device_facts *facts = &hbm->base.facts;
        facts->capacity_bytes = capacity;
        facts->align_bytes = HBM_ALIGN_BYTES;
        facts->request_bytes_max = HBM_SLOT_BYTES;
        facts->depth_max = hbm->slot_count;
        snprintf(facts->engine, sizeof facts->engine, "cuda+staged");
        error =
            gpu_driver_identity(&hbm->driver, hbm->gpu, facts->identity, sizeof facts->identity);
    }
    if (error == GPU_SUCCESS) {
        *device_out = &hbm->base;
        return KVT_OK;
    }
    tiers_device_message(message, message_size, config,
                         "GPU %" PRIu32 " refused %" PRIu64 " bytes: CUDA error %d", config->gpu,
                         capacity, error);
    hbm->driver.library = NULL; /* the caller's until we succeed */
    hbm_close(&hbm->base);
    return error == GPU_OUT_OF_MEMORY ? KVT_E_MEMORY : KVT_E_GONE;
}

/* Memory of the host that keeps to a GPU's bus. The throttle is added here unless the caller's caps
 * add it anyway. */
static kvt_status hbm_open_emulated(const kvt_device_config *config, kvt_device **device_out,
                                    char *message, size_t message_size)
{
    kvt_device_config own = *config;
    own.emulated = true;
    kvt_status status = tiers_memory_ops.open(&own, device_out, message, message_size);
    if (status != KVT_OK) return status;
    kvt_device *inner = *device_out;
    snprintf(inner->facts.engine, sizeof inner->facts.engine, "emulated-hbm");
    snprintf(inner->facts.identity, sizeof inner->facts.identity, "emulated-hbm");
    if (config->read_bytes_per_s != 0 || config->write_bytes_per_s != 0 || config->latency_ns != 0)
        return KVT_OK; /* kvt_device_open adds the throttle */
    own.read_bytes_per_s = HBM_EMULATED_BYTES_PER_S;
    own.write_bytes_per_s = HBM_EMULATED_BYTES_PER_S;
    status = tiers_throttle_wrap(inner, &own, device_out);
    if (status == KVT_OK) return KVT_OK;
    tiers_device_message(message, message_size, config, "no memory for the throttle");
    kvt_device_close(inner);
    return status;
}

/* The driver is loaded for each device and unloaded when no open device keeps it. A machine without
 * a GPU is told how to emulate one. */
static kvt_status hbm_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                           size_t message_size)
{
    char reason[96];
    gpu_driver driver = {0};
    int gpu_count = 0;
    if (tiers_device_capacity(config, HBM_ALIGN_BYTES, message, message_size) == 0)
        return KVT_E_SPACE;
    if (config->emulated) return hbm_open_emulated(config, device_out, message, message_size);
    if (!gpu_driver_load(&driver, &gpu_count, reason, sizeof reason)) {
        tiers_device_message(message, message_size, config,
                             "no GPU answers: %s; emulated = yes takes memory of the host instead",
                             reason);
        return KVT_E_UNSUPPORTED;
    }
    kvt_status status = KVT_E_GONE;
    if (config->gpu >= (uint32_t)gpu_count)
        tiers_device_message(message, message_size, config, "there is no GPU %" PRIu32 " of %d",
                             config->gpu, gpu_count);
    else
        status = hbm_open_gpu(config, &driver, device_out, message, message_size);
    if (status != KVT_OK) gpu_driver_unload(&driver);
    return status;
}

/* Pinning costs more than many copies, so it is done once for memory that stays: staging and the
 * like. */
/* ---- registered memory ---- */

/* Whether the operation's buffer lies wholly in registered memory. The number of regions is small,
 * so a walk over them is enough. */
static bool hbm_is_pinned(const hbm_device *hbm, const kvt_io *io)
{
    const unsigned char *buffer = io->buffer;
    for (uint32_t i = 0; i < hbm->region_count; i++) {
        const hbm_region *region = &hbm->regions[i];
        if (buffer < region->memory) continue;
        uint64_t inside = (uint64_t)(buffer - region->memory);
        if (inside <= region->bytes && io->bytes <= region->bytes - inside) return true;
    }
    return false;
}

/* Pins one region. Memory that was pinned by somebody else already counts as pinned. */
static int hbm_pin(hbm_device *hbm, const kvt_device_region *region)
{
    const int error = hbm->driver.host_register(region->memory, region->bytes, GPU_HOST_PORTABLE);
    if (error != GPU_SUCCESS && error != GPU_ALREADY_REGISTERED) return error;
    hbm->regions[hbm->region_count++] = (hbm_region){
        .memory = region->memory, .bytes = region->bytes, .ours = error == GPU_SUCCESS};
    return GPU_SUCCESS;
}

/* Pins regions in place of those of before. When one cannot be pinned none is, and every operation
 * goes through a slot. */
static kvt_status hbm_register_buffers(kvt_device *device, const kvt_device_region *regions,
                                       uint32_t count)
{
    hbm_device *hbm = (hbm_device *)device;
    char *engine = hbm->base.facts.engine;
    if (hbm->gone || hbm_enter(hbm) != GPU_SUCCESS) return KVT_E_MEMORY;
    hbm_forget_regions(hbm);
    hbm->regions = count != 0 ? calloc(count, sizeof *hbm->regions) : NULL;
    int error = count != 0 && hbm->regions == NULL ? GPU_OUT_OF_MEMORY : GPU_SUCCESS;
    for (uint32_t i = 0; i < count && error == GPU_SUCCESS; i++)
        error = hbm_pin(hbm, &regions[i]);
    if (error != GPU_SUCCESS) hbm_forget_regions(hbm);
    hbm_leave(hbm);
    snprintf(engine, sizeof hbm->base.facts.engine,
             hbm->region_count != 0 ? "cuda+pinned" : "cuda+staged");
    return error == GPU_SUCCESS ? KVT_OK : KVT_E_MEMORY;
}

/* Slots go round: unused, in a line while the copy runs, unused again. An operation without a free
 * slot is refused as busy. */
/* ---- operations ---- */

/* Starts the copy of a slot and records its event. A CUDA error: nothing is under way. A failed
 * event leaves no copy behind: the stream is waited for. */
static int hbm_start(hbm_device *hbm, hbm_slot *slot)
{
    const gpu_driver *driver = &hbm->driver;
    const kvt_io *io = slot->io;
    void *stream = hbm->lines[io->kind].stream;
    void *host = slot->staged ? slot->pinned : io->buffer;
    assert(io->bytes <= HBM_SLOT_BYTES && "a staged operation fits into a slot");
    gpu_address place = hbm->memory + io->offset;
    int error = hbm_bind(hbm);
    if (error != GPU_SUCCESS) return error;
    error = io->kind == KVT_IO_READ ? driver->copy_out(host, place, io->bytes, stream)
                                    : driver->copy_in(place, host, io->bytes, stream);
    if (error != GPU_SUCCESS) return error;
    error = driver->event_record(slot->event, stream);
    /* The copy runs without an event: it must have ended before its memory is given back. */
    if (error != GPU_SUCCESS) (void)driver->stream_wait(stream);
    return error;
}

/* Starts a copy. The bytes of a staged write are copied into its slot first. An error of the driver
 * is the operation's status; submit itself succeeds. */
static kvt_status hbm_submit(kvt_device *device, kvt_io *io)
{
    hbm_device *hbm = (hbm_device *)device;
    hbm_slot *slot = hbm->unused;
    if (slot == NULL) return KVT_BUSY;
    tiers_io_begin(io, base_clock_ns());
    if (hbm->gone) {
        tiers_io_finish(io, KVT_E_GONE, 0, base_clock_ns());
        return KVT_OK;
    }
    slot->io = io;
    slot->staged = !hbm_is_pinned(hbm, io);
    if (slot->staged && io->kind == KVT_IO_WRITE) memcpy(slot->pinned, io->buffer, io->bytes);
    int error = hbm_start(hbm, slot);
    if (error != GPU_SUCCESS) {
        hbm_finish(hbm, io, error);
        return KVT_OK;
    }
    hbm->unused = slot->next;
    slot->next = NULL;
    hbm_line *line = &hbm->lines[io->kind];
    if (line->tail != NULL)
        line->tail->next = slot;
    else
        line->head = slot;
    line->tail = slot;
    return KVT_QUEUED;
}

/* Collects the copies that a stream has finished, in order. A staged read is copied out here. A
 * copy that failed may still be writing until its stream is idle, so the stream is waited for
 * before the memory is given back. */
static size_t hbm_collect(hbm_device *hbm, hbm_line *line, kvt_io **done, size_t max)
{
    size_t count = 0;
    while (line->head != NULL && count < max) {
        hbm_slot *slot = line->head;
        int error = hbm->driver.event_query(slot->event);
        if (error == GPU_NOT_READY) break;
        assert(line->tail != NULL && slot->io != NULL);
        kvt_io *io = slot->io;
        if (error != GPU_SUCCESS) (void)hbm->driver.stream_wait(line->stream); /* as in hbm_start */
        if (error == GPU_SUCCESS && slot->staged && io->kind == KVT_IO_READ)
            memcpy(io->buffer, slot->pinned, io->bytes);
        hbm_finish(hbm, io, error);
        line->head = slot->next;
        if (line->head == NULL) line->tail = NULL;
        slot->next = hbm->unused;
        hbm->unused = slot;
        done[count++] = io;
    }
    return count;
}

/* The driver has no way to wait for several streams at once without a thread of its own, so the
 * loop naps between looks. The nap is as long as one copy. */
static size_t hbm_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns)
{
    hbm_device *hbm = (hbm_device *)device;
    uint64_t deadline = tiers_device_deadline(base_clock_ns(), timeout_ns);
    size_t count = 0;
    (void)hbm_bind(hbm); /* an error comes back from every query */
    for (;;) {
        for (int kind = 0; kind < 2; kind++)
            count += hbm_collect(hbm, &hbm->lines[kind], done + count, max - count);
        uint64_t now = base_clock_ns();
        if (count >= min || now >= deadline) return count;
        base_sleep_until(now + HBM_NAP_NS < deadline ? now + HBM_NAP_NS : deadline);
    }
}

static void hbm_attach(kvt_device *device)
{
    (void)hbm_bind((hbm_device *)device); /* again with every operation, if it failed */
}

/* The next thread binds its own. */
static void hbm_detach(kvt_device *device)
{
    hbm_unbind((hbm_device *)device);
}

static uint64_t hbm_address_of(kvt_device *device)
{
    return ((hbm_device *)device)->memory;
}

const kvt_device_ops tiers_hbm_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "hbm",
    .open = hbm_open,
    .close = hbm_close,
    .submit = hbm_submit,
    .reap = hbm_reap,
    .attach = hbm_attach,
    .detach = hbm_detach,
    .register_buffers = hbm_register_buffers,
    .address = hbm_address_of,
};
