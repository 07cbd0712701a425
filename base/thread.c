/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - how the library starts its threads.
 *
 * Thread rule: any thread.
 */
#include "thread.h"

#include <signal.h>

/* All signals are blocked while the thread is made, and it inherits that: signals are the
 * application's threads' to handle. But for those of a thread's own faults: of a blocked one no
 * handler is told, and the process ends. */
kvt_status base_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? KVT_OK : KVT_E_THREAD;
}
