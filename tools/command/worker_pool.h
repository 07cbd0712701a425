/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_pool.h - a pool of threads as an engine has one, behind the codecs' hook: a parallel loop
 * whose threads wait between loops. The thread that calls run works too. The tests use it as well.
 *
 * Thread rule: one loop at a time.
 */
#ifndef TOOLS_WORKER_POOL_H
#define TOOLS_WORKER_POOL_H

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <kvterrace/codec.h>

enum { WORKER_POOL_MAX = 64 };

typedef struct worker_pool {
    kvt_codec_workers workers;
    pthread_mutex_t lock; /* over what follows, but the threads */
    pthread_cond_t changed;
    kvt_codec_task task;
    void *argument;
    uint32_t tasks;
    uint32_t next;   /* task to be taken */
    uint32_t active; /* tasks that run */
    uint32_t named;  /* worker numbers given out */
    uint64_t calls;  /* tasks of all loops */
    bool ending;
    pthread_t threads[WORKER_POOL_MAX];
} worker_pool;

/* Threads for work that takes as many as there are processors: 1 to WORKER_POOL_MAX. */
static inline uint32_t worker_pool_threads(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (processors < 1) return 1;
    return processors > WORKER_POOL_MAX ? (uint32_t)WORKER_POOL_MAX : (uint32_t)processors;
}

/* Takes and runs one task. The lock is held before and after. */
static inline void worker_pool_step(worker_pool *pool, uint32_t worker)
{
    const uint32_t index = pool->next++;
    kvt_codec_task task = pool->task;
    void *argument = pool->argument;
    pool->active++;
    pool->calls++;
    pthread_mutex_unlock(&pool->lock);
    task(argument, index, worker);
    pthread_mutex_lock(&pool->lock);
    pool->active--;
    pthread_cond_broadcast(&pool->changed);
}

static inline void *worker_pool_thread(void *context)
{
    worker_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    const uint32_t worker = ++pool->named;
    while (!pool->ending) {
        if (pool->next < pool->tasks) {
            worker_pool_step(pool, worker);
        } else {
            pthread_cond_wait(&pool->changed, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static inline void worker_pool_run(void *context, uint32_t tasks, kvt_codec_task task,
                                   void *argument)
{
    worker_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    pool->task = task;
    pool->argument = argument;
    pool->tasks = tasks;
    pool->next = 0;
    pthread_cond_broadcast(&pool->changed);
    while (pool->next < pool->tasks) {
        worker_pool_step(pool, 0);
    }
    while (pool->active > 0) {
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pool->tasks = 0;
    pool->next = 0;
    pthread_mutex_unlock(&pool->lock);
}

static inline void worker_pool_open(worker_pool *pool, uint32_t count)
{
    assert(count > 0 && count <= WORKER_POOL_MAX);
    *pool = (worker_pool){.workers = {sizeof pool->workers, count, worker_pool_run, pool}};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    for (uint32_t i = 1; i < count; i++) {
        if (pthread_create(&pool->threads[i], NULL, worker_pool_thread, pool) != 0) abort();
    }
}

static inline void worker_pool_close(worker_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i < pool->workers.count; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
}

#endif
