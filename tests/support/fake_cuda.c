/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.c - the calls that the hbm device makes of libcuda.so.1, on host memory.
 *
 * A copy moves its bytes when it ends, not when it begins: whoever reads a target or reuses a
 * source too early gets wrong bytes. It ends after a number of questions, so no test waits for a
 * clock.
 *
 * One thread at a time, as the device has it; the current context is each thread's own.
 */
#include "fake_cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, BAD_VALUE = 1, OUT_OF_MEMORY = 2, BAD_CONTEXT = 201, NOT_READY = 600 };
enum { COPIES_MAX = 1024, BLOCKS_MAX = 64, ALREADY_REGISTERED = 712 };

EXPORT fake_cuda_state fake_cuda = {.gpu_count = 1};

typedef struct fake_copy {
    void *target;
    const void *source;
    size_t bytes;
    uint32_t questions;
} fake_copy;

typedef struct fake_stream {
    uint64_t begun; /* copies */
    uint64_t ended;
    fake_copy copies[COPIES_MAX];
} fake_stream;

typedef struct fake_event {
    fake_stream *stream;
    uint64_t after; /* copies of the stream that it comes behind */
} fake_event;

typedef struct fake_block {
    unsigned char *memory;
    size_t bytes;
    bool registered;
} fake_block;

static fake_block blocks[BLOCKS_MAX];
static int contexts;
static _Thread_local void *current;
static uint32_t flying;

static int result_of(const char *name)
{
    if (fake_cuda.fail_for_good && fake_cuda.failed > 0) return fake_cuda.fail_result;
    if (fake_cuda.fail_name != NULL && strcmp(fake_cuda.fail_name, name) != 0) return OK;
    const uint32_t call = ++fake_cuda.calls;
    const bool later = fake_cuda.fail_alike && call > fake_cuda.fail_call;
    if (fake_cuda.fail_call == 0 || (call != fake_cuda.fail_call && !later)) return OK;
    fake_cuda.failed++;
    return fake_cuda.fail_result;
}

#define BEGIN()                                                                                    \
    do {                                                                                           \
        int injected = result_of(__func__);                                                        \
        if (injected != OK) return injected;                                                       \
    } while (0)

#define BEGIN_IN_CONTEXT()                                                                         \
    do {                                                                                           \
        if (current == NULL) {                                                                     \
            fake_cuda.unbound++;                                                                   \
            return BAD_CONTEXT;                                                                    \
        }                                                                                          \
        BEGIN();                                                                                   \
    } while (0)

static void end_copy(fake_stream *stream)
{
    const fake_copy *copy = &stream->copies[stream->ended % COPIES_MAX];
    memcpy(copy->target, copy->source, copy->bytes);
    stream->ended++;
    flying--;
}

static fake_block *find_block(const void *memory, size_t bytes)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        const unsigned char *start = blocks[i].memory;
        const unsigned char *at = memory;
        if (start != NULL && at >= start && at + bytes <= start + blocks[i].bytes)
            return &blocks[i];
    }
    return NULL;
}

static int add_block(void *memory, size_t bytes, bool registered)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (blocks[i].memory != NULL) continue;
        blocks[i] = (fake_block){memory, bytes, registered};
        fake_cuda.live++;
        return OK;
    }
    return OUT_OF_MEMORY;
}

static int drop_block(const void *memory)
{
    fake_block *block = find_block(memory, 0);
    if (block == NULL || block->memory != memory) return BAD_VALUE;
    *block = (fake_block){0};
    fake_cuda.live--;
    return OK;
}

static int begin_copy(void *target, const void *source, const void *host, size_t bytes,
                      fake_stream *stream)
{
    const fake_block *block = find_block(host, bytes);
    if (stream == NULL || stream->begun - stream->ended == COPIES_MAX) return BAD_VALUE;
    stream->copies[stream->begun++ % COPIES_MAX] = (fake_copy){target, source, bytes, 0};
    fake_cuda.copies++;
    if (block == NULL) fake_cuda.pageable++;
    if (block != NULL && block->registered) fake_cuda.registered++;
    if (++flying > fake_cuda.flying_most) fake_cuda.flying_most = flying;
    return OK;
}

/* ---- the driver's names ---- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetName(char *name, int size, int device);
EXPORT int cuDeviceGetPCIBusId(char *bus, int size, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxSetCurrent(void *context);
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
EXPORT int cuMemFree_v2(uint64_t address);
EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
EXPORT int cuMemFreeHost(void *memory);
EXPORT int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
EXPORT int cuMemHostUnregister(void *memory);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventDestroy_v2(void *event);
EXPORT int cuEventRecord(void *event, void *stream);
EXPORT int cuEventQuery(void *event);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream);
EXPORT int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream);

int cuInit(unsigned flags)
{
    BEGIN();
    return flags == 0 ? OK : BAD_VALUE;
}

int cuDeviceGetCount(int *count)
{
    BEGIN();
    *count = fake_cuda.gpu_count;
    return OK;
}

int cuDeviceGet(int *device, int ordinal)
{
    BEGIN();
    if (ordinal < 0 || ordinal >= fake_cuda.gpu_count) return BAD_VALUE;
    *device = 100 + ordinal; /* handles are no ordinals */
    return OK;
}

int cuDeviceGetName(char *name, int size, int device)
{
    BEGIN();
    if (device < 100 || size < 9) return BAD_VALUE;
    memcpy(name, "Fake GPU", 9);
    return OK;
}

int cuDeviceGetPCIBusId(char *bus, int size, int device)
{
    BEGIN();
    if (device < 100 || size < 13) return BAD_VALUE;
    memcpy(bus, "0000:01:00.0", 13);
    bus[6] = (char)('0' + device % 10);
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN();
    if (device < 100) return BAD_VALUE;
    *context = &contexts;
    contexts++;
    fake_cuda.live++;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (device < 100 || contexts == 0) return BAD_VALUE;
    contexts--;
    fake_cuda.live--;
    return OK;
}

int cuCtxSetCurrent(void *context)
{
    if (context != NULL) BEGIN();
    current = context;
    return OK;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    BEGIN_IN_CONTEXT();
    void *memory = malloc(bytes);
    if (memory == NULL) return OUT_OF_MEMORY;
    *address = (uintptr_t)memory;
    fake_cuda.live++;
    return OK;
}

int cuMemFree_v2(uint64_t address)
{
    free((void *)(uintptr_t)address);
    fake_cuda.live--;
    return OK;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    (void)flags;
    *memory = aligned_alloc(4096, bytes);
    return *memory == NULL ? OUT_OF_MEMORY : add_block(*memory, bytes, false);
}

int cuMemFreeHost(void *memory)
{
    int result = drop_block(memory);
    if (result == OK) free(memory);
    return result;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    (void)flags;
    if (find_block(memory, bytes) != NULL) return ALREADY_REGISTERED;
    return add_block(memory, bytes, true);
}

int cuMemHostUnregister(void *memory)
{
    return drop_block(memory);
}

int cuStreamCreate(void **stream, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    *stream = calloc(1, sizeof(fake_stream));
    if (*stream == NULL || flags != 1) return OUT_OF_MEMORY;
    fake_cuda.live++;
    return OK;
}

int cuStreamDestroy_v2(void *stream)
{
    free(stream);
    fake_cuda.live--;
    return OK;
}

int cuStreamSynchronize(void *stream)
{
    fake_stream *one = stream;
    BEGIN_IN_CONTEXT();
    while (one->ended < one->begun)
        end_copy(one);
    return OK;
}

int cuEventCreate(void **event, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    *event = calloc(1, sizeof(fake_event));
    if (*event == NULL || flags != 2) return OUT_OF_MEMORY;
    fake_cuda.live++;
    return OK;
}

int cuEventDestroy_v2(void *event)
{
    free(event);
    fake_cuda.live--;
    return OK;
}

int cuEventRecord(void *event, void *stream)
{
    fake_event *one = event;
    BEGIN_IN_CONTEXT();
    one->stream = stream;
    one->after = one->stream->begun;
    return OK;
}

int cuEventQuery(void *event)
{
    const fake_event *one = event;
    BEGIN_IN_CONTEXT();
    fake_stream *stream = one->stream;
    if (stream == NULL || stream->ended >= one->after) return OK;
    fake_copy *copy = &stream->copies[stream->ended % COPIES_MAX];
    if (copy->questions++ >= fake_cuda.queries_until_done) end_copy(stream);
    return stream->ended >= one->after ? OK : NOT_READY;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream)
{
    BEGIN_IN_CONTEXT();
    return begin_copy((void *)(uintptr_t)target, source, source, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream)
{
    BEGIN_IN_CONTEXT();
    return begin_copy(target, (const void *)(uintptr_t)source, target, bytes, stream);
}
