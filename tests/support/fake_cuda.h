/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - how a test steers the stand-in for NVIDIA's driver library (fake_cuda.c).
 *
 * The test finds the object `fake_cuda` in the library by name. One thread.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct fake_cuda_state {
    /* The test's. */
    int gpu_count;
    uint32_t queries_until_done; /* a copy ends when its stream was asked that often */
    uint32_t fail_call;          /* the fail_call-th call fails, counted from 1; 0 = none */
    const char *fail_name;       /* count only calls of this name; NULL = all */
    int fail_result;
    int fail_for_good; /* every later call fails as well */
    int fail_alike;    /* every later call of that name does */

    /* The library's. */
    uint32_t calls;       /* that fail_call counts */
    uint32_t failed;      /* calls that were made to fail */
    int live;             /* contexts, allocations, streams, events and registrations */
    uint32_t copies;      /* begun */
    uint32_t flying_most; /* copies begun and not ended, at most */
    uint32_t pageable;    /* copies of host memory that is neither allocated nor registered here */
    uint32_t registered;  /* copies of registered memory */
    uint32_t unbound;     /* calls on a thread without a context that need one */
} fake_cuda_state;

/* The state of the library, which stays loaded, so that its counters outlive a device. NULL: it is
 * not on LD_LIBRARY_PATH. */
static inline fake_cuda_state *fake_cuda_find(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, "fake_cuda") : NULL;
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
