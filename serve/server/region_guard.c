/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_guard.c - the table of guarded mappings, which the handler reads without a lock. A mapping
 * is in use by the thread that faults in it, so its row stays while the handler looks at it; any
 * other row may change meanwhile, and is read as none then.
 */
#include "serve/server/region_guard.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_ROWS 65536u /* sessions at most, times regions of one */

typedef struct guard_row {
    _Atomic uintptr_t begin; /* 0: the row is free; written last, and cleared first */
    _Atomic uintptr_t end;
    _Atomic uint64_t page_bytes;
    atomic_int bell;
} guard_row;

static guard_row rows[GUARD_ROWS];
static _Atomic uint32_t row_count; /* rows from there on were never used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* written while the handler is not installed */
static _Thread_local bool passing;

/* Puts a page where a guarded one is not there. False: none is guarded at the address. Called by
 * the handler: mmap and write are plain calls of the system here. */
static bool guard_mend(uintptr_t address)
{
    const uint32_t count = atomic_load(&row_count);
    const uint64_t one = 1;
    for (uint32_t i = 0; i < count; i++) {
        const uintptr_t begin = atomic_load(&rows[i].begin), end = atomic_load(&rows[i].end);
        const uint64_t page_bytes = atomic_load(&rows[i].page_bytes);
        const int bell = atomic_load(&rows[i].bell);
        if (begin == 0 || address < begin || address >= end) continue;
        if (atomic_load(&rows[i].begin) != begin) continue;
        const uintptr_t page = begin + (address - begin) / page_bytes * page_bytes;
        if (mmap((void *)page, page_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            return false;
        const ssize_t result = write(bell, &one, sizeof one);
        (void)result;
        return true;
    }
    return false;
}

/* What would have happened without this handler. */
static void guard_pass_on(int number, siginfo_t *info, void *context)
{
    static const struct sigaction usual = {.sa_handler = SIG_DFL};
    const bool again = passing; /* a handler that was installed over this one passes on, too */
    passing = true;
    if (!again && (before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    } else if (again || before.sa_handler == SIG_DFL ||
               (before.sa_handler == SIG_IGN && info->si_code > 0)) {
        /* The access is made again, or the signal sent again, and ends the process. */
        (void)sigaction(number, &usual, NULL);
        if (info->si_code <= 0) (void)raise(number);
    } else if (before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    }
    passing = again;
}

static void guard_handle(int number, siginfo_t *info, void *context)
{
    const int error = errno;
    /* Of a signal that a process has sent the address says nothing. */
    if (info->si_code <= 0 || !guard_mend((uintptr_t)info->si_addr))
        guard_pass_on(number, info, context);
    errno = error;
}

kvt_status server_guard_install(void)
{
    const struct sigaction action = {.sa_sigaction = guard_handle,
                                     .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction now;
    pthread_mutex_lock(&lock);
    bool done = sigaction(SIGBUS, NULL, &now) == 0;
    if (done && ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != guard_handle)) {
        before = now;
        done = sigaction(SIGBUS, &action, NULL) == 0;
    }
    pthread_mutex_unlock(&lock);
    return done ? KVT_OK : KVT_E_IO;
}

kvt_status server_guard_add(const void *address, uint64_t bytes, uint64_t page_bytes, int bell)
{
    assert(address != NULL && page_bytes > 0 && bytes % page_bytes == 0);
    pthread_mutex_lock(&lock);
    uint32_t i = 0;
    while (i < GUARD_ROWS && atomic_load(&rows[i].begin) != 0)
        i++;
    if (i < GUARD_ROWS) {
        if (i >= atomic_load(&row_count)) atomic_store(&row_count, i + 1);
        atomic_store(&rows[i].end, (uintptr_t)address + bytes);
        atomic_store(&rows[i].page_bytes, page_bytes);
        atomic_store(&rows[i].bell, bell);
        atomic_store(&rows[i].begin, (uintptr_t)address);
    }
    pthread_mutex_unlock(&lock);
    return i < GUARD_ROWS ? KVT_OK : KVT_E_MEMORY;
}

void server_guard_remove(const void *address)
{
    pthread_mutex_lock(&lock);
    const uint32_t count = atomic_load(&row_count);
    uint32_t i = 0;
    while (i < count && atomic_load(&rows[i].begin) != (uintptr_t)address)
        i++;
    assert(i < count);
    if (i < count) atomic_store(&rows[i].begin, 0);
    pthread_mutex_unlock(&lock);
}
