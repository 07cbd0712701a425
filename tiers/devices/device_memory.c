/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory.c - host memory as a device: one arena, transfers are copies.
 *
 * First touch costs far more than a copy, and a big arena takes seconds. Opening touches the front
 * alone; a thread touches the rest behind it, front to back, so that the memory is the device's
 * soon and few writes pay for a page. A write may come before the thread.
 *
 * The arena consists of huge pages where the machine has them: of its pool (hugetlb) if that holds
 * so many, else transparent ones. With a node set, its pages come from that NUMA node alone, a
 * thread on the node touches them, and from attach to detach the worker runs there. Large copies go
 * around the caches (device_memory_copy.h). The engine says what was achieved:
 *
 *     memcpy[+nt][+hugetlb|+huge][+nodeN]
 *
 * Operations are done when submit returns, so nothing is ever in flight. Emulated GPU memory is one
 * of these behind the throttle (device_hbm.c).
 */
#include "base/clock.h"
#include "base/thread.h"
#include "device_internal.h"
#include "device_memory_copy.h"
#include "device_memory_node.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MEMORY_ALIGN_BYTES = 64, /* a cache line: copies never share one */
    MEMORY_REQUEST_BYTES_MAX = 64 << 20,
    MEMORY_PAGE_BYTES = 4096,
    MEMORY_HUGE_BYTES = 2 << 20,
    MEMORY_FRONT_BYTES = 128 << 20, /* touched at open */
    MEMORY_CHUNK_BYTES = 2 << 20    /* touched at once; no thread can map meanwhile */
};

/* arena_bytes is at least the capacity, a multiple of a huge page. cpus and before matter only with
 * on_node; moved says that the worker runs on the node now and has to be moved back. */
typedef struct memory_device {
    kvt_device base;
    unsigned char *arena;
    size_t arena_bytes; /* mapped; the capacity rounded up to huge pages */
    bool hugetlb;
    bool on_node;
    uint32_t node;
    node_cpus cpus;   /* of the node */
    node_cpus before; /* of the worker, while moved */
    bool moved;
    memory_stream_copy *stream_copy; /* NULL = memcpy for all sizes */
    pthread_t filler;                /* touches what lies behind the front, where there is any */
    bool filling;                    /* the thread was started */
    atomic_bool closing;             /* the thread is to end */
} memory_device;

/* ---- the arena ---- */

/* Bytes that could be had without swapping; UINT64_MAX when the system does not say. Pre-faulting
 * more would end in the out-of-memory killer instead of a status. A capacity above it is refused,
 * although other processes may give memory back later. */
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

static size_t memory_front(const memory_device *memory)
{
    return memory->arena_bytes < MEMORY_FRONT_BYTES ? memory->arena_bytes : MEMORY_FRONT_BYTES;
}

/* Faults the pages of a chunk in without changing what they hold. 0 or an errno. The loop stands in
 * for the kernel's call on older kernels. */
static int memory_touch_chunk(const memory_device *memory, size_t first, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory->arena + first, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
    if (memory->hugetlb) return ENOTSUP; /* a page that cannot be had would end in a signal */
    for (size_t at = first; at < first + bytes; at += MEMORY_PAGE_BYTES)
        (void)__atomic_fetch_or(memory->arena + at, 0, __ATOMIC_RELAXED);
    return 0;
}

/* Touches [first, end), as far as it gets before the device closes. 0 or an errno. */
static int memory_touch(const memory_device *memory, size_t first, size_t end)
{
    int error = 0;
    for (size_t at = first; at < end && error == 0 && !memory->closing; at += MEMORY_CHUNK_BYTES)
        error = memory_touch_chunk(memory, at,
                                   end - at < MEMORY_CHUNK_BYTES ? end - at : MEMORY_CHUNK_BYTES);
    return error;
}

/* A thread of the node touches its pages fastest, whose zeroes then need not cross to it. */
static void memory_go_there(const memory_device *memory)
{
    node_cpus before;
    if (memory->on_node) (void)node_move_thread(&memory->cpus, &before);
}

/* The thread that touches the front. Returns the errno as a pointer. */
static void *memory_touch_there(void *argument)
{
    const memory_device *memory = argument;
    memory_go_there(memory); /* the pages are the node's in any case */
    return (void *)(intptr_t)memory_touch(memory, 0, memory_front(memory));
}

/* Without a thread the caller touches the front: the pages come from the node all the same, only
 * slower. */
static int memory_touch_front(memory_device *memory)
{
    pthread_t thread;
    void *result = NULL;
    if (!memory->on_node || base_thread_start(&thread, memory_touch_there, memory) != 0)
        return memory_touch(memory, 0, memory_front(memory));
    pthread_join(thread, &result);
    return (int)(intptr_t)result;
}

/* The thread that touches the rest. Where it fails, writes fault pages in themselves. */
static void *memory_fill(void *argument)
{
    memory_device *memory = argument;
    memory_go_there(memory);
    (void)memory_touch(memory, memory_front(memory), memory->arena_bytes);
    return NULL;
}

/* Maps the arena with or without pages of the huge page pool, and touches its front. 0 or an errno.
 * An arena that cannot be bound or touched is unmapped again. */
static int memory_map(memory_device *memory, bool hugetlb)
{
    /* Pages of the pool are reserved at once, so that the mapping fails and not a touch. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (hugetlb ? MAP_HUGETLB : MAP_NORESERVE);
    void *arena = mmap(NULL, memory->arena_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (arena == MAP_FAILED) return errno;
    assert(memory->arena == NULL && "it is mapped once");
    memory->arena = arena;
    memory->hugetlb = hugetlb;
    if (!hugetlb) (void)madvise(arena, memory->arena_bytes, MADV_HUGEPAGE); /* a wish */
    int error = 0;
    if (memory->on_node) {
        error = node_bind_memory(memory->node, arena, memory->arena_bytes);
        /* With a single node it makes no difference, and sandboxes forbid the call. */
        if (error != 0 && node_count() == 1) error = 0;
    }
    if (error == 0) error = memory_touch_front(memory);
    if (error != 0) {
        munmap(arena, memory->arena_bytes);
        memory->arena = NULL;
    }
    return error;
}

/* Whether at least half of the front is in transparent huge pages, as the kernel says. Transparent
 * huge pages are a wish that the kernel may refuse, so the engine says what came of it. */
static bool memory_is_huge(const memory_device *memory)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    uint64_t huge_kilobytes = 0;
    bool inside = false;
    if (file == NULL) return false;
    while (fgets(line, sizeof line, file) != NULL) {
        uint64_t begin;
        uint64_t end;
        uint64_t kilobytes;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2)
            inside = begin < (uintptr_t)memory->arena + memory->arena_bytes &&
                     end > (uintptr_t)memory->arena;
        else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kilobytes) == 1)
            huge_kilobytes += kilobytes;
    }
    fclose(file);
    return huge_kilobytes * 1024 >= memory_front(memory) / 2;
}

/* ---- opening and closing ---- */

/* Pages of the pool are tried first and ordinary ones second. The time that touching took is a fact
 * of the device (prepare_ns). */
static kvt_status memory_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size)
{
    uint64_t capacity = tiers_device_capacity(config, MEMORY_ALIGN_BYTES, message, message_size);
    node_cpus cpus = {{0}};
    /* Refuse a capacity or a node that cannot be had, before anything is mapped. The node is looked
     * up here, because its processors are needed before the first touch. */
    if (capacity == 0) return KVT_E_SPACE;
    if (capacity > memory_available_bytes()) {
        tiers_device_message(message, message_size, config,
                             "%" PRIu64 " bytes are more memory than is available", capacity);
        return KVT_E_MEMORY;
    }
    if (config->on_node && !node_find(config->node, &cpus)) {
        tiers_device_message(message, message_size, config,
                             "there is no NUMA node %" PRIu32
                             " with memory; this machine has %" PRIu32,
                             config->node, node_count());
        return KVT_E_GONE;
    }
    memory_device *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        tiers_device_message(message, message_size, config, "out of memory");
        return KVT_E_MEMORY;
    }
    memory->arena_bytes =
        (size_t)((capacity + MEMORY_HUGE_BYTES - 1) / MEMORY_HUGE_BYTES * MEMORY_HUGE_BYTES);
    memory->on_node = config->on_node;
    memory->node = config->node;
    memory->cpus = cpus;
    uint64_t started = base_clock_ns();
    int error = memory_map(memory, true);
    if (error != 0) error = memory_map(memory, false);
    if (error != 0) {
        tiers_device_message(message, message_size, config, "%zu bytes of memory refused: %s",
                             memory->arena_bytes, strerror(error));
        free(memory);
        return KVT_E_MEMORY;
    }
    memory->stream_copy = memory_stream_choose();
    tiers_device_init(&memory->base, &tiers_memory_ops, config);
    kvt_device_facts *facts = &memory->base.facts;
    facts->prepare_ns = base_clock_ns() - started;
    facts->capacity_bytes = capacity;
    facts->prepared_bytes = capacity < MEMORY_FRONT_BYTES ? capacity : MEMORY_FRONT_BYTES;
    facts->align_bytes = MEMORY_ALIGN_BYTES;
    facts->request_bytes_max = MEMORY_REQUEST_BYTES_MAX;
    facts->depth_max = 1; /* done at once: a second one cannot overlap */
    /* Name the engine after the copy, the pages and the node that were achieved. Profiles keep
     * curves by this name, so a machine that loses its huge pages measures anew. */
    char node[16] = "";
    const char *pages = memory->hugetlb ? "+hugetlb" : memory_is_huge(memory) ? "+huge" : "";
    if (memory->on_node) snprintf(node, sizeof node, "+node%" PRIu32, memory->node);
    snprintf(memory->base.facts.engine, sizeof memory->base.facts.engine, "memcpy%s%s%s",
             memory->stream_copy != NULL ? "+nt" : "", pages, node);
    snprintf(facts->identity, sizeof facts->identity, "host-memory");
    if (config->on_node)
        snprintf(facts->identity, sizeof facts->identity, "host-memory-node%" PRIu32, config->node);
    if (memory->arena_bytes > memory_front(memory))
        memory->filling = base_thread_start(&memory->filler, memory_fill, memory) == KVT_OK;
    *device_out = &memory->base;
    return KVT_OK;
}

/* The bytes are gone: a memory device keeps nothing. */
static void memory_close(kvt_device *device)
{
    memory_device *memory = (memory_device *)device;
    memory->closing = true;
    if (memory->filling) pthread_join(memory->filler, NULL);
    munmap(memory->arena, memory->arena_bytes);
    free(memory);
}

/* Moves the worker to the node's processors, as far as it may use any of them. Not being moved is
 * no error: copies only cross the node's border. */
static void memory_attach(kvt_device *device)
{
    memory_device *memory = (memory_device *)device;
    assert(!memory->moved && "detach has moved the thread back");
    if (memory->on_node) memory->moved = node_move_thread(&memory->cpus, &memory->before);
}

/* Gives the thread the processors back that it had. */
static void memory_detach(kvt_device *device)
{
    memory_device *memory = (memory_device *)device;
    if (memory->moved) node_move_back(&memory->before);
    memory->moved = false;
}

/* ---- operations ---- */

/* Copies of 256 KiB and more go around the caches, smaller ones through them. */
static kvt_status memory_submit(kvt_device *device, kvt_io *io)
{
    memory_device *memory = (memory_device *)device;
    tiers_io_begin(io, base_clock_ns());
    assert(io->offset <= memory->arena_bytes && io->bytes <= memory->arena_bytes - io->offset);
    unsigned char *place = memory->arena + io->offset;
    bool reads = io->kind == KVT_IO_READ;
    void *target = reads ? io->buffer : place;
    const void *source = reads ? place : io->buffer;
    if (io->bytes >= MEMORY_STREAM_BYTES_MIN && memory->stream_copy != NULL)
        memory->stream_copy(target, source, io->bytes);
    else
        memcpy(target, source, io->bytes);
    tiers_io_finish(io, KVT_OK, 0, base_clock_ns());
    return KVT_OK;
}

static void *memory_bytes(kvt_device *device)
{
    return ((memory_device *)device)->arena;
}

const kvt_device_ops tiers_memory_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .submit = memory_submit,
    .attach = memory_attach,
    .detach = memory_detach,
    .memory = memory_bytes,
};
