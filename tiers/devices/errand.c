/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errand.c - see errand.h.
 *
 * Thread rule: `mutex` guards done and orphan; progress and timeless are atomic.
 */
#include "errand.h"

#include "base/thread.h"
#include "base/wait.h"
#include "device_internal.h"
#include "timeout.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct errand {
    pthread_mutex_t mutex;
    pthread_cond_t returned;
    tiers_errand_call *run;
    tiers_errand_call *late;
    void *state;
    _Atomic uint64_t progress;
    atomic_bool timeless;
    bool done;
    bool orphan; /* nobody waits: the thread cleans up */
} errand;

static _Thread_local errand *errand_here;

void tiers_errand_progress(void)
{
    if (errand_here != NULL) atomic_fetch_add(&errand_here->progress, 1);
}

void tiers_errand_take_time(void)
{
    if (errand_here != NULL) atomic_store(&errand_here->timeless, true);
}

static void errand_free(errand *self)
{
    pthread_cond_destroy(&self->returned);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static void *errand_main(void *argument)
{
    errand *self = argument;
    errand_here = self;
    self->run(self->state);
    errand_here = NULL;
    pthread_mutex_lock(&self->mutex);
    self->done = true;
    bool orphan = self->orphan;
    pthread_cond_signal(&self->returned);
    pthread_mutex_unlock(&self->mutex);
    if (!orphan) return NULL; /* it is the waiting thread's from here on */
    self->late(self->state);
    errand_free(self);
    return NULL;
}

static bool errand_spawn(errand *self, pthread_t *thread)
{
    return base_thread_start(thread, errand_main, self) == 0;
}

bool tiers_errand_run(tiers_errand_call *run, tiers_errand_call *late, void *state,
                      uint64_t limit_ns)
{
    pthread_t thread;
    errand *self = calloc(1, sizeof *self);
    if (self == NULL) {
        run(state);
        return true;
    }
    self->run = run;
    self->late = late;
    self->state = state;
    pthread_mutex_init(&self->mutex, NULL);
    base_condition_init(&self->returned);
    if (!errand_spawn(self, &thread)) {
        errand_free(self);
        run(state);
        return true;
    }
    tiers_timeout timeout;
    tiers_timeout_init(&timeout, limit_ns, base_clock_ns());
    pthread_mutex_lock(&self->mutex);
    while (!self->done && !self->orphan) {
        uint64_t now_ns = base_clock_ns();
        if (tiers_timeout_check(&timeout, now_ns, !atomic_load(&self->timeless),
                                atomic_load(&self->progress)))
            self->orphan = true;
        else
            base_condition_wait_until(&self->returned, &self->mutex, now_ns + TIERS_CHECK_NS);
    }
    bool orphan = self->orphan;
    pthread_mutex_unlock(&self->mutex); /* an orphan may be freed from here on */
    if (orphan) {
        pthread_detach(thread);
        return false;
    }
    pthread_join(thread, NULL);
    errand_free(self);
    return true;
}
