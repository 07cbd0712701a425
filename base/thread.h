/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - how the library starts its threads.
 *
 * Thread rule: any thread.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <kvterrace/status.h>
#include <pthread.h>

/* As pthread_create without attributes, but the new thread takes no signals: they are the
 * application's, whose handlers run on its own threads alone. KVT_OK; KVT_E_THREAD. */
KVT_NODISCARD kvt_status base_thread_start(pthread_t *thread, void *(*run)(void *argument),
                                           void *argument);

#endif
