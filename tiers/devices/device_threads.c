/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_threads.c - threads that make blocking calls, where io_uring is refused or unwanted.
 *
 * One thread per operation in flight, started by attach and ended by detach. A machine with
 * io_uring never comes here.
 *
 * A thread holds at most one operation, so the number of threads is the depth that is really
 * achieved.
 *
 * Thread rule: `lock` guards the lists; an operation is its thread's between them.
 */
#include "base/thread.h"
#include "base/wait.h"
#include "device_queue.h"

#include <assert.h>

/* A thread: takes operations in the order of their submission until the queue stops and is empty.
 * The lock is not held during a blocking call. An operation is run outside the lock, so as many run
 * at once as there are threads. */
static void *threads_main(void *argument)
{
    tiers_queue *queue = argument;
    tiers_threads *threads = &queue->threads;
    pthread_mutex_lock(&threads->lock);
    for (;;) {
        while (threads->todo.head == NULL && !threads->stop)
            pthread_cond_wait(&threads->work, &threads->lock);
        kvt_io *io = tiers_io_list_pop(&threads->todo);
        if (io == NULL) break;
        pthread_mutex_unlock(&threads->lock);
        queue->calls->run(queue->device, io, 0);
        pthread_mutex_lock(&threads->lock);
        tiers_io_list_push(&threads->finished, io);
        threads->finished_count++;
        pthread_cond_signal(&threads->done);
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* Fewer threads than wanted are enough: the depth is achieved in part. The condition `done` counts
 * in CLOCK_MONOTONIC, because reap waits on it with a deadline. */
bool tiers_threads_start(tiers_queue *queue)
{
    tiers_threads *threads = &queue->threads;
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->work, NULL);
    base_condition_init(&threads->done);
    assert(threads->count == 0 && threads->todo.head == NULL && threads->finished_count == 0);
    threads->stop = threads->woken = false;
    threads->count = 0;
    uint32_t wanted =
        queue->depth < TIERS_QUEUE_THREADS_MAX ? queue->depth : TIERS_QUEUE_THREADS_MAX;
    while (threads->count < wanted &&
           base_thread_start(&threads->threads[threads->count], threads_main, queue) == 0)
        threads->count++;
    if (threads->count != 0) return true;
    tiers_threads_stop(queue);
    return false;
}

void tiers_threads_stop(tiers_queue *queue)
{
    tiers_threads *threads = &queue->threads;
    pthread_mutex_lock(&threads->lock);
    assert(threads->todo.head == NULL && threads->finished_count == 0);
    threads->stop = true;
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    for (uint32_t i = 0; i < threads->count; i++)
        pthread_join(threads->threads[i], NULL);
    threads->count = 0;
    pthread_cond_destroy(&threads->done);
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->lock);
}

void tiers_threads_submit(tiers_queue *queue, kvt_io *io)
{
    tiers_threads *threads = &queue->threads;
    pthread_mutex_lock(&threads->lock);
    assert(threads->count > 0 && !threads->stop && "a thread is there to take it");
    tiers_io_list_push(&threads->todo, io);
    pthread_cond_signal(&threads->work);
    pthread_mutex_unlock(&threads->lock);
}

size_t tiers_threads_reap(tiers_queue *queue, kvt_io **done, size_t min, size_t max,
                          uint64_t timeout_ns)
{
    tiers_threads *threads = &queue->threads;
    uint64_t deadline_ns = tiers_device_deadline(base_clock_ns(), timeout_ns);
    size_t count = 0;
    bool waiting = true;
    pthread_mutex_lock(&threads->lock);
    while (threads->finished_count < min && waiting && !threads->woken)
        waiting = base_condition_wait_until(&threads->done, &threads->lock, deadline_ns);
    threads->woken = false;
    while (count < max && threads->finished_count != 0) {
        done[count++] = tiers_io_list_pop(&threads->finished);
        threads->finished_count--;
    }
    assert((threads->finished.head == NULL) == (threads->finished_count == 0));
    pthread_mutex_unlock(&threads->lock);
    return count;
}

void tiers_threads_wake(tiers_queue *queue)
{
    tiers_threads *threads = &queue->threads;
    pthread_mutex_lock(&threads->lock);
    threads->woken = true;
    pthread_cond_signal(&threads->done);
    pthread_mutex_unlock(&threads->lock);
}
