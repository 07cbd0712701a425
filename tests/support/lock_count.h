/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock_count.h - counts how often the calling thread takes a lock, by a pthread_mutex_lock of the
 * test's own, which the library is linked with. Included by one file of a program.
 */
#ifndef TESTS_LOCK_COUNT_H
#define TESTS_LOCK_COUNT_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static _Thread_local bool lock_counting;
static _Thread_local uint32_t lock_holds;

/* Not under sanitizers, which have one of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCK_COUNTS false
#else
#define LOCK_COUNTS true
static int (*lock_real)(pthread_mutex_t *);

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (lock_real == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        memcpy(&lock_real, &found, sizeof found);
    }
    if (lock_counting) lock_holds++;
    return lock_real(mutex);
}
#endif

static inline void lock_count_begin(void)
{
    lock_holds = 0;
    lock_counting = true;
}

/* Returns how many since the begin; 0 where nothing counts. */
static inline uint32_t lock_count_end(void)
{
    lock_counting = false;
    return lock_holds;
}

#endif
