/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.c - the calls that the engine makes of libcuda.so.1, on host memory.
 *
 * Work of a stream, a copy or a launch, is done when it ends, not when it begins: whoever reads a
 * target or reuses a source too early gets wrong bytes. It ends after a number of questions, so no
 * test waits for a clock. A stream that waits for an event does nothing until the event is over; a
 * question to a stream that waits is one to the stream that it waits for. A launch runs a function
 * of the host that the test has named as a kernel.
 *
 * The memory of a GPU has no access rights but while work runs, so a program that touches it from
 * the host dies, unless the test says that the host plays the kernels.
 *
 * Any thread; one lock around every call. The current context is each thread's own.
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, BAD_VALUE = 1, OUT_OF_MEMORY = 2, BAD_CONTEXT = 201, BAD_HANDLE = 400 };
enum { NOT_FOUND = 500, NOT_READY = 600, ALREADY_REGISTERED = 712 };
enum { BLOCKS_MAX = 256, CONTEXTS_MAX = 8, STACK_MAX = 8, PAGE = 4096 };

EXPORT fake_cuda_state fake_cuda = {.gpu_count = 1};

typedef enum fake_kind { FAKE_COPY, FAKE_LAUNCH, FAKE_WAIT } fake_kind;

typedef struct fake_context {
    int retained;
} fake_context;

typedef struct fake_stream fake_stream;

typedef struct fake_work {
    struct fake_work *next;
    fake_kind kind;
    uint32_t questions;
    void *target;
    const void *source;
    size_t bytes;
    const fake_cuda_kernel *kernel;
    fake_cuda_launch launch;
    fake_stream *awaited; /* of a wait: until so much of this stream's work has ended */
    uint64_t after;
    uint32_t losses; /* when it was begun */
} fake_work;

struct fake_stream {
    fake_stream *next; /* streams that were destroyed stay: events may name them */
    const fake_context *context;
    uint64_t begun;
    uint64_t ended;
    fake_work *first;
    fake_work *last;
};

typedef struct fake_event {
    fake_stream *stream;
    uint64_t after; /* work of the stream that it comes behind */
} fake_event;

typedef enum fake_place { FAKE_NONE = 0, FAKE_GPU, FAKE_HOST, FAKE_REGISTERED } fake_place;

typedef struct fake_block {
    unsigned char *memory;
    size_t bytes;
    fake_place place;
    int ordinal; /* of a GPU's, */
    bool open;   /* which the host may touch */
} fake_block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_block blocks[BLOCKS_MAX];
static fake_context contexts[CONTEXTS_MAX];
static fake_stream *streams;
static _Thread_local fake_context *stack[STACK_MAX];
static _Thread_local int depth;
static uint32_t flying;
static uint32_t losses; /* of all contexts: work that was begun before the last one is never done */

#define current (depth > 0 ? stack[depth - 1] : NULL)

static int result_of(const char *name)
{
    if (fake_cuda.fail_for_good && fake_cuda.failed > 0) return fake_cuda.fail_result;
    if (fake_cuda.fail_name != NULL && strcmp(fake_cuda.fail_name, name) != 0) return OK;
    const uint32_t call = ++fake_cuda.calls;
    const bool later = fake_cuda.fail_alike && call > fake_cuda.fail_call;
    if (fake_cuda.fail_call == 0 || (call != fake_cuda.fail_call && !later)) return OK;
    fake_cuda.failed++;
    if (fake_cuda.fail_for_good) losses++;
    return fake_cuda.fail_result;
}

static void unlock(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&lock);
}

#define LOCKED()                                                                                   \
    const int locked __attribute__((cleanup(unlock), unused)) = pthread_mutex_lock(&lock)

#define BEGIN()                                                                                    \
    LOCKED();                                                                                      \
    do {                                                                                           \
        int injected = result_of(__func__);                                                        \
        if (injected != OK) return injected;                                                       \
    } while (0)

#define BEGIN_IN_CONTEXT()                                                                         \
    LOCKED();                                                                                      \
    do {                                                                                           \
        if (current == NULL) {                                                                     \
            fake_cuda.unbound++;                                                                   \
            return BAD_CONTEXT;                                                                    \
        }                                                                                          \
        int injected = result_of(__func__);                                                        \
        if (injected != OK) return injected;                                                       \
    } while (0)

/* ---- memory ---- */

static size_t pages_of(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void open_memory(int rights)
{
    for (int i = 0; i < BLOCKS_MAX; i++)
        if (blocks[i].place == FAKE_GPU && !blocks[i].open &&
            mprotect(blocks[i].memory, blocks[i].bytes, rights) != 0)
            abort();
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

static int add_block(void *memory, size_t bytes, fake_place place)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (blocks[i].memory != NULL) continue;
        blocks[i] =
            (fake_block){memory, bytes, place, current != NULL ? (int)(current - contexts) : 0,
                         fake_cuda.open != 0};
        fake_cuda.live++;
        return OK;
    }
    return OUT_OF_MEMORY;
}

static int drop_block(const void *memory, fake_place place)
{
    fake_block *block = find_block(memory, 1);
    if (block == NULL || block->memory != memory || block->place != place) return BAD_VALUE;
    *block = (fake_block){0};
    fake_cuda.live--;
    return OK;
}

/* ---- work ---- */

static void end_first(fake_stream *stream)
{
    fake_work *work = stream->first;
    const bool done = work->kind != FAKE_WAIT && work->losses == losses;
    if (done) open_memory(PROT_READ | PROT_WRITE);
    if (done && work->kind == FAKE_COPY) memcpy(work->target, work->source, work->bytes);
    if (done && work->kind == FAKE_LAUNCH) work->kernel->run(work->kernel, &work->launch);
    if (done) open_memory(PROT_NONE);
    flying -= work->kind == FAKE_COPY;
    fake_cuda.launches += work->kind == FAKE_LAUNCH;
    stream->first = work->next;
    if (stream->first == NULL) stream->last = NULL;
    stream->ended++;
    free(work);
}

/* One question to a stream. */
static void ask_stream(fake_stream *stream)
{
    fake_work *work = stream->first;
    while (work != NULL && work->kind == FAKE_WAIT && work->awaited->ended >= work->after) {
        end_first(stream);
        work = stream->first;
    }
    if (work == NULL) return;
    if (work->kind == FAKE_WAIT)
        ask_stream(work->awaited);
    else if (work->questions++ >= fake_cuda.queries_until_done)
        end_first(stream);
}

static void run_stream(fake_stream *stream, uint64_t until)
{
    while (stream->ended < until) {
        const fake_work *work = stream->first;
        if (work->kind == FAKE_WAIT) run_stream(work->awaited, work->after);
        end_first(stream);
    }
}

static int begin_work(fake_stream *stream, const fake_work *wanted)
{
    fake_work *work = stream != NULL ? malloc(sizeof *work) : NULL;
    if (work == NULL) return stream == NULL ? BAD_HANDLE : OUT_OF_MEMORY;
    *work = *wanted;
    work->losses = losses;
    if (stream->last != NULL)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->begun++;
    return OK;
}

static int begin_copy(void *target, const void *source, const void *host, const void *gpu,
                      size_t bytes, fake_stream *stream)
{
    const fake_block *block = find_block(host, bytes), *far = find_block(gpu, bytes);
    if (far == NULL || far->place != FAKE_GPU) return BAD_VALUE;
    if (block != NULL && block->place == FAKE_GPU) return BAD_VALUE;
    const fake_work work = {.kind = FAKE_COPY, .target = target, .source = source, .bytes = bytes};
    const int result = begin_work(stream, &work);
    if (result != OK) return result;
    fake_cuda.copies++;
    *(target == gpu ? &fake_cuda.bytes_in : &fake_cuda.bytes_out) += bytes;
    if (block == NULL) fake_cuda.pageable++;
    if (block != NULL && block->place == FAKE_REGISTERED) fake_cuda.registered++;
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
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
EXPORT int cuMemFree_v2(uint64_t address);
EXPORT int cuPointerGetAttribute(void *answer, int attribute, uint64_t address);
EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
EXPORT int cuMemFreeHost(void *memory);
EXPORT int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
EXPORT int cuMemHostUnregister(void *memory);
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
EXPORT int cuStreamGetCtx(void *stream, void **context);
EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventDestroy_v2(void *event);
EXPORT int cuEventRecord(void *event, void *stream);
EXPORT int cuEventQuery(void *event);
EXPORT int cuEventElapsedTime(float *milliseconds, void *begin, void *end);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream);
EXPORT int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream);
EXPORT int cuModuleLoadData(void **module, const void *image);
EXPORT int cuModuleUnload(void *module);
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name);
EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, void *stream, void **parameters, void **extra);
EXPORT void *fake_cuda_bind(int ordinal, int turn);
EXPORT void fake_cuda_touch(void *host, uint64_t address, size_t bytes, int to_gpu);

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
    if (device < 100 || device >= 100 + CONTEXTS_MAX) return BAD_VALUE;
    *context = &contexts[device - 100];
    contexts[device - 100].retained++;
    fake_cuda.live++;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    LOCKED();
    if (device < 100 || contexts[device - 100].retained == 0) return BAD_VALUE;
    contexts[device - 100].retained--;
    fake_cuda.live--;
    return OK;
}

int cuCtxSetCurrent(void *context)
{
    if (context == NULL) { /* nothing but what was pushed is taken off */
        if (depth > 0) depth--;
        return OK;
    }
    BEGIN();
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    return OK;
}

int cuCtxPushCurrent_v2(void *context)
{
    BEGIN();
    if (context == NULL || depth == STACK_MAX) return BAD_CONTEXT;
    stack[depth++] = context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context)
{
    if (depth == 0) return BAD_CONTEXT;
    *context = stack[--depth];
    return OK;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    BEGIN_IN_CONTEXT();
    if (bytes == 0) return BAD_VALUE;
    bytes = pages_of(bytes);
    const int rights = fake_cuda.open ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *memory = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    *address = (uintptr_t)memory;
    return add_block(memory, bytes, FAKE_GPU);
}

int cuMemFree_v2(uint64_t address)
{
    LOCKED();
    void *memory = (void *)(uintptr_t)address;
    const fake_block *block = find_block(memory, 0);
    const size_t bytes = block != NULL ? block->bytes : 0;
    const int result = drop_block(memory, FAKE_GPU);
    if (result == OK) munmap(memory, bytes);
    return result;
}

int cuPointerGetAttribute(void *answer, int attribute, uint64_t address)
{
    BEGIN_IN_CONTEXT();
    const fake_block *block = find_block((void *)(uintptr_t)address, 1);
    if (block == NULL) return BAD_VALUE;
    if (attribute == 2) /* type of memory: host 1, device 2 */
        *(unsigned *)answer = block->place == FAKE_GPU ? 2 : 1;
    else if (attribute == 9)
        *(int *)answer = block->ordinal;
    else
        return BAD_VALUE;
    return OK;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    (void)flags;
    *memory = aligned_alloc(PAGE, pages_of(bytes));
    return *memory == NULL ? OUT_OF_MEMORY : add_block(*memory, bytes, FAKE_HOST);
}

int cuMemFreeHost(void *memory)
{
    LOCKED();
    int result = drop_block(memory, FAKE_HOST);
    if (result == OK) free(memory);
    return result;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    (void)flags;
    if (find_block(memory, bytes) != NULL) return ALREADY_REGISTERED;
    return add_block(memory, bytes, FAKE_REGISTERED);
}

int cuMemHostUnregister(void *memory)
{
    LOCKED();
    return drop_block(memory, FAKE_REGISTERED);
}

int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    const fake_block *block = find_block(memory, 1);
    if (flags != 0 || block == NULL || block->place == FAKE_GPU) return BAD_VALUE;
    *address = (uintptr_t)memory;
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    fake_stream *one = flags == 1 ? calloc(1, sizeof *one) : NULL;
    if (one == NULL) return OUT_OF_MEMORY;
    one->context = current;
    one->next = streams;
    streams = one;
    *stream = one;
    fake_cuda.live++;
    return OK;
}

int cuStreamDestroy_v2(void *stream)
{
    LOCKED();
    run_stream(stream, ((fake_stream *)stream)->begun);
    fake_cuda.live--;
    return OK;
}

int cuStreamSynchronize(void *stream)
{
    BEGIN_IN_CONTEXT();
    run_stream(stream, ((fake_stream *)stream)->begun);
    return OK;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    const fake_event *one = event;
    if (flags != 0 || event == NULL) return BAD_VALUE;
    if (one->stream == NULL) return OK;
    const fake_work work = {.kind = FAKE_WAIT, .awaited = one->stream, .after = one->after};
    return begin_work(stream, &work);
}

int cuStreamGetCtx(void *stream, void **context)
{
    BEGIN_IN_CONTEXT();
    const fake_context *own = stream != NULL ? ((fake_stream *)stream)->context : current;
    *context = (void *)(uintptr_t)own;
    return OK;
}

int cuEventCreate(void **event, unsigned flags)
{
    BEGIN_IN_CONTEXT();
    *event = calloc(1, sizeof(fake_event));
    if (*event == NULL || (flags != 2 && flags != 0)) return OUT_OF_MEMORY;
    fake_cuda.live++;
    return OK;
}

int cuEventDestroy_v2(void *event)
{
    LOCKED();
    free(event);
    fake_cuda.live--;
    return OK;
}

int cuEventRecord(void *event, void *stream)
{
    fake_event *one = event;
    BEGIN_IN_CONTEXT();
    if (stream == NULL) return BAD_HANDLE;
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
    ask_stream(stream);
    return stream->ended >= one->after ? OK : NOT_READY;
}

/* Work has no length here: all of it takes a millisecond. */
int cuEventElapsedTime(float *milliseconds, void *begin, void *end)
{
    BEGIN_IN_CONTEXT();
    if (begin == NULL || end == NULL) return BAD_HANDLE;
    *milliseconds = 1;
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN();
    if (device < 100 || attribute != 16) return BAD_VALUE; /* its multiprocessors */
    *value = 2;
    return OK;
}

int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream)
{
    BEGIN_IN_CONTEXT();
    void *to = (void *)(uintptr_t)target;
    const void *from = (const void *)(uintptr_t)source;
    const fake_block *first = find_block(to, bytes), *second = find_block(from, bytes);
    if (first == NULL || first->place != FAKE_GPU || second == NULL || second->place != FAKE_GPU)
        return BAD_VALUE;
    const fake_work work = {.kind = FAKE_COPY, .target = to, .source = from, .bytes = bytes};
    flying++;
    return begin_work(stream, &work);
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream)
{
    BEGIN_IN_CONTEXT();
    void *gpu = (void *)(uintptr_t)target;
    return begin_copy(gpu, source, source, gpu, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream)
{
    BEGIN_IN_CONTEXT();
    const void *gpu = (const void *)(uintptr_t)source;
    return begin_copy(target, gpu, target, gpu, bytes, stream);
}

int cuModuleLoadData(void **module, const void *image)
{
    BEGIN_IN_CONTEXT();
    *module = image != NULL ? malloc(1) : NULL;
    if (*module == NULL) return BAD_VALUE;
    fake_cuda.live++;
    return OK;
}

int cuModuleUnload(void *module)
{
    LOCKED();
    free(module);
    fake_cuda.live--;
    return OK;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    BEGIN_IN_CONTEXT();
    if (module == NULL) return BAD_HANDLE;
    for (uint32_t i = 0; i < fake_cuda.kernel_count; i++) {
        if (strcmp(fake_cuda.kernels[i].name, name) != 0) continue;
        *function = (void *)(uintptr_t)&fake_cuda.kernels[i];
        return OK;
    }
    return NOT_FOUND;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **parameters, void **extra)
{
    BEGIN_IN_CONTEXT();
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024)
        return BAD_VALUE;
    if (block_y != 1 || block_z != 1 || shared_bytes != 0 || extra != NULL) return BAD_VALUE;
    fake_work work = {.kind = FAKE_LAUNCH, .kernel = function};
    work.launch.grid = grid_x;
    work.launch.block = block_x;
    for (int i = 0; i < 4 && work.kernel->parameter_bytes[i] != 0; i++)
        memcpy(&work.launch.parameters[i], parameters[i], work.kernel->parameter_bytes[i]);
    return begin_work(stream, &work);
}

/* ---- the test's ---- */

void *fake_cuda_bind(int ordinal, int turn)
{
    if (turn > 0 && depth < STACK_MAX) stack[depth++] = &contexts[ordinal];
    if (turn < 0 && depth > 0) depth--;
    return current;
}

void fake_cuda_touch(void *host, uint64_t address, size_t bytes, int to_gpu)
{
    LOCKED();
    void *gpu = (void *)(uintptr_t)address;
    open_memory(PROT_READ | PROT_WRITE);
    if (to_gpu)
        memcpy(gpu, host, bytes);
    else
        memcpy(host, gpu, bytes);
    open_memory(PROT_NONE);
}
