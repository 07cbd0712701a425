/*
 * device_memory.c - host memory as a device: one pre-faulted arena, transfers are memcpy.
 *
 * Operations are done when submit returns, so nothing is ever in flight. Also stands in for GPU
 * memory (config.emulated), behind the throttle.
 *
 * Thread rule: as device.h.
 */
#include "device_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MEMORY_ALIGN_BYTES = 64, /* a cache line: copies never share one */
    MEMORY_REQUEST_BYTES_MAX = 64 << 20,
    MEMORY_PAGE_BYTES = 4096,
    MEMORY_HUGE_BYTES = 2 << 20
};

typedef struct memory_device {
    kvt_device base;
    unsigned char *arena;
    size_t arena_bytes; /* mapped; the capacity rounded up to huge pages */
} memory_device;

/* Bytes that could be had without swapping; UINT64_MAX when the system does not say. Pre-faulting
 * more would end in the out-of-memory killer instead of a status. */
static uint64_t memory_available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return UINT64_MAX;
    char line[128];
    uint64_t kilobytes = UINT64_MAX / 1024;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kilobytes) == 1) break;
    }
    fclose(file);
    return kilobytes * 1024;
}

/* First touch costs far more than a copy, so it is paid here and not in the first writes. */
static bool memory_arena_fault_in(unsigned char *arena, size_t bytes)
{
    (void)madvise(arena, bytes, MADV_HUGEPAGE); /* a wish; small pages work too */
#ifdef MADV_POPULATE_WRITE
    if (madvise(arena, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;
#endif
    for (size_t at = 0; at < bytes; at += MEMORY_PAGE_BYTES) {
        ((volatile unsigned char *)arena)[at] = 0;
    }
    return true;
}

static kvt_status memory_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size)
{
    uint64_t capacity = config->capacity_bytes / MEMORY_ALIGN_BYTES * MEMORY_ALIGN_BYTES;
    if (capacity == 0) {
        tiers_device_message(message, message_size, config,
                             "a capacity of %" PRIu64 " bytes is too small",
                             config->capacity_bytes);
        return KVT_E_SPACE;
    }
    if (capacity > memory_available_bytes()) {
        tiers_device_message(message, message_size, config,
                             "%" PRIu64 " bytes are more memory than is available", capacity);
        return KVT_E_MEMORY;
    }
    memory_device *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        tiers_device_message(message, message_size, config, "out of memory");
        return KVT_E_MEMORY;
    }
    memory->arena_bytes =
        (size_t)((capacity + MEMORY_HUGE_BYTES - 1) / MEMORY_HUGE_BYTES * MEMORY_HUGE_BYTES);
    void *arena = mmap(NULL, memory->arena_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED || !memory_arena_fault_in(arena, memory->arena_bytes)) {
        tiers_device_message(message, message_size, config, "%zu bytes of memory refused: %s",
                             memory->arena_bytes, strerror(errno));
        if (arena != MAP_FAILED) munmap(arena, memory->arena_bytes);
        free(memory);
        return KVT_E_MEMORY;
    }
    memory->arena = arena;
    tiers_device_init(&memory->base, &tiers_memory_ops, config);
    kvt_device_facts *facts = &memory->base.facts;
    facts->capacity_bytes = capacity;
    facts->align_bytes = MEMORY_ALIGN_BYTES;
    facts->request_bytes_max = MEMORY_REQUEST_BYTES_MAX;
    facts->depth_max = 1; /* done at once: a second one cannot overlap */
    snprintf(facts->engine, sizeof facts->engine, "memcpy");
    snprintf(facts->identity, sizeof facts->identity, "host-memory");
    *device_out = &memory->base;
    return KVT_OK;
}

static void memory_close(kvt_device *device)
{
    memory_device *memory = (memory_device *)device;
    munmap(memory->arena, memory->arena_bytes);
    free(memory);
}

static kvt_status memory_submit(kvt_device *device, kvt_io *io)
{
    memory_device *memory = (memory_device *)device;
    tiers_io_begin(io, tiers_device_now_ns());
    unsigned char *place = memory->arena + io->offset;
    if (io->kind == KVT_IO_READ) {
        memcpy(io->buffer, place, io->bytes);
    } else {
        memcpy(place, io->buffer, io->bytes);
    }
    tiers_io_finish(io, KVT_OK, 0, tiers_device_now_ns());
    return KVT_OK;
}

const kvt_device_ops tiers_memory_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .submit = memory_submit,
};
