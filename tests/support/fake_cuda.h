/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - how a test steers the stand-in for NVIDIA's driver library (fake_cuda.c).
 *
 * The test finds the object `fake_cuda` in the library by name. The library's calls may come from
 * any thread; the test sets the state while no other thread calls.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A launch that has begun to run: all its threads, one after the other or as it likes. */
typedef struct fake_cuda_launch {
    uint32_t grid;  /* blocks */
    uint32_t block; /* threads */
    uint64_t parameters[4];
} fake_cuda_launch;

/* A kernel that modules have: the host's build of it. It runs while the memory of GPUs may be
 * touched. */
typedef struct fake_cuda_kernel {
    const char *name;
    void (*run)(const struct fake_cuda_kernel *kernel, const fake_cuda_launch *launch);
    uint32_t parameter_bytes[4]; /* 0: no more */
} fake_cuda_kernel;

typedef struct fake_cuda_state {
    /* The test's. */
    int gpu_count;
    uint32_t queries_until_done; /* work ends when its stream was asked that often */
    uint32_t fail_call;          /* the fail_call-th call fails, counted from 1; 0 = none */
    const char *fail_name;       /* count only calls of this name; NULL = all */
    int fail_result;
    int fail_for_good; /* every later call fails as well, and no work that was begun is done */
    int fail_alike;    /* every later call of that name does */
    int open;          /* the host plays the kernels: what is allocated then may be touched */
    const fake_cuda_kernel *kernels;
    uint32_t kernel_count;

    /* The library's. */
    uint32_t calls;       /* that fail_call counts */
    uint32_t failed;      /* calls that were made to fail */
    int live;             /* contexts, allocations, streams, events, modules and registrations */
    uint32_t copies;      /* begun, */
    uint64_t bytes_in;    /* of so many bytes to GPUs, */
    uint64_t bytes_out;   /* and from them */
    uint32_t launches;    /* run */
    uint32_t flying_most; /* copies begun and not ended, at most */
    uint32_t pageable;    /* copies of host memory that is neither allocated nor registered here */
    uint32_t registered;  /* copies of registered memory */
    uint32_t unbound;     /* calls on a thread without a context that need one */
} fake_cuda_state;

/* A symbol of the library, which stays loaded, so that its counters outlive a device. NULL: it is
 * not on LD_LIBRARY_PATH. */
static inline void *fake_cuda_symbol(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, name) : NULL;
}

static inline fake_cuda_state *fake_cuda_find(void)
{
    return fake_cuda_symbol("fake_cuda");
}

/* Copies between the host and a GPU's memory, which the host cannot touch, at once. */
static inline void fake_cuda_move(void *host, uint64_t address, size_t bytes, int to_gpu)
{
    void *symbol = fake_cuda_symbol("fake_cuda_touch");
    void (*touch)(void *, uint64_t, size_t, int);
    memcpy(&touch, &symbol, sizeof touch);
    touch(host, address, bytes, to_gpu);
}

/* The engine's side: makes the primary context of a GPU current on this thread (1), or takes it off
 * again (-1). Returns the one that is current then, or NULL. */
static inline void *fake_cuda_turn(int ordinal, int turn)
{
    void *symbol = fake_cuda_symbol("fake_cuda_bind");
    void *(*bind)(int, int);
    memcpy(&bind, &symbol, sizeof bind);
    return bind(ordinal, turn);
}

/* For TEST_ALL and TEST_EACH of tests that need the stand-in. */
static fake_cuda_state *fake;

static inline int fake_cuda_load(void **state)
{
    (void)state;
    fake = fake_cuda_find();
    if (fake == NULL) fputs("the stand-in for libcuda.so.1 is not on LD_LIBRARY_PATH\n", stderr);
    return fake == NULL;
}

static inline int fake_cuda_is_empty(void **state)
{
    (void)state;
    return fake->live == 0 ? 0 : -1;
}

#endif
