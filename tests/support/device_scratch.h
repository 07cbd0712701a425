/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_scratch.h - what the device tests share: a folder of their own, buffers, random bytes.
 *
 * Thread rule: one thread.
 */
#ifndef SUPPORT_DEVICE_SCRATCH_H
#define SUPPORT_DEVICE_SCRATCH_H

#include "cases.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tiers/devices/device_ops.h"

/* A new folder in the working directory. */
static inline void scratch_make(char *folder, size_t size)
{
    snprintf(folder, size, "device-scratch-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static inline int scratch_remove_one(const char *path, const struct stat *facts, int kind,
                                     struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

static inline void scratch_remove(const char *folder)
{
    nftw(folder, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void *scratch_buffer(size_t bytes)
{
    return test_aligned(4096, bytes);
}

/* splitmix64: the same bytes on every machine. */
static inline uint64_t scratch_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline void scratch_fill(void *buffer, size_t bytes, uint64_t seed)
{
    unsigned char *at = buffer;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)scratch_random(&seed);
}

static inline kvt_device *scratch_open(const kvt_device_config *config)
{
    char message[256];
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(config, &device, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    return device;
}

static inline kvt_device_config scratch_memory(uint64_t capacity_bytes)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = "m0",
                               .backend = "memory",
                               .capacity_bytes = capacity_bytes};
}

/* Opens, expects the status and a message that contains `words`. */
static inline void scratch_refused(const kvt_device_config *config, kvt_status expected,
                                   const char *words)
{
    char message[256] = "";
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(config, &device, message, sizeof message);
    if (status == KVT_OK) kvt_device_close(device);
    assert_int_equal(status, expected);
    assert_null(device);
    if (strstr(message, words) == NULL) fail_msg("'%s' is not in '%s'", words, message);
    assert_null(strchr(message, '\n'));
}

/* True when `body` ends in an abort, as a failed assert does. Runs it in a child. */
static inline bool scratch_aborts(void (*body)(void *), void *argument)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        body(argument);
        _exit(0);
    }
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT;
}

#endif
