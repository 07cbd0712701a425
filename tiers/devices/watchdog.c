/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchdog.c - the thread that makes a watchdog call, and the caller that waits for the thread or
 * abandons it. The file ends no call; a call that hangs keeps its thread until the device answers.
 *
 *     running --- run returns -------> done       the caller joins the thread and frees the call
 *        \------- no progress -------> abandoned --- run returns ---> late(state); the thread frees
 *
 * Thread rule: `mutex` guards done and abandoned; progress and timeless are atomic. Exactly one
 * side frees the call: the caller when run is done, else the thread.
 */
#include "watchdog.h"

#include "base/thread.h"
#include "base/wait.h"
#include "device_internal.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- timeouts ---- */

/* A step counts as 100 ms at most, and as an eighth of a short limit, so that eight checks at least
 * are needed for any verdict. */
enum { TIMEOUT_STEP_NS_MAX = 100 * 1000 * 1000, TIMEOUT_STEPS_MIN = 8 };

uint64_t tiers_timeout_of(kvt_device *device, uint64_t timeout_ns)
{
    if (kvt_device_memory(device) != NULL) return TIERS_TIMEOUT_NEVER;
    return timeout_ns != 0 ? timeout_ns : TIERS_TIMEOUT_NS_DEFAULT;
}

void tiers_timeout_init(tiers_timeout *timeout, uint64_t limit_ns, uint64_t now_ns)
{
    assert(limit_ns > 0 && "a timeout of 0 would retire a device at once");
    *timeout = (tiers_timeout){.limit_ns = limit_ns, .checked_ns = now_ns};
}

/* Progress of any size starts the count again: the timeout is for devices that stand still, not for
 * slow ones. */
bool tiers_timeout_check(tiers_timeout *timeout, uint64_t now_ns, bool busy, uint64_t progress)
{
    uint64_t step = now_ns > timeout->checked_ns ? now_ns - timeout->checked_ns : 0;
    uint64_t most = timeout->limit_ns / TIMEOUT_STEPS_MIN;
    if (most > TIMEOUT_STEP_NS_MAX) most = TIMEOUT_STEP_NS_MAX;
    timeout->checked_ns = now_ns;
    if (!busy || progress != timeout->progress) {
        timeout->progress = progress;
        timeout->stalled_ns = 0;
        return false;
    }
    timeout->stalled_ns += step < most ? step : most;
    return timeout->limit_ns != TIERS_TIMEOUT_NEVER && timeout->stalled_ns >= timeout->limit_ns;
}

/* ---- calls ---- */

/* One call, shared by the thread that makes it and the one that waits. The mutex orders `done`
 * against `abandoned`: exactly one of the two sides finds the other gone. */
typedef struct watched_call {
    pthread_mutex_t mutex;
    pthread_cond_t returned;
    tiers_watchdog_call *run;
    tiers_watchdog_call *late;
    void *state;
    _Atomic uint64_t progress;
    atomic_bool timeless;
    bool done;
    bool abandoned; /* nobody waits: the thread cleans up */
} watched_call;

/* The call that this thread makes, NULL on every other thread. It lets code deep inside a device
 * report progress without a handle. */
static _Thread_local watched_call *watchdog_here;

void tiers_watchdog_progress(void)
{
    if (watchdog_here != NULL) atomic_fetch_add(&watchdog_here->progress, 1);
}

void tiers_watchdog_suspend(void)
{
    if (watchdog_here != NULL) atomic_store(&watchdog_here->timeless, true);
}

/* Frees the call. The other side has gone. It runs exactly once for each call. */
static void watchdog_free(watched_call *self)
{
    pthread_cond_destroy(&self->returned);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

/* The thread of one call: runs it, then cleans up if the caller has abandoned it. The device is
 * used by this thread alone until run has returned. */
static void *watchdog_main(void *argument)
{
    watched_call *self = argument;
    watchdog_here = self;
    self->run(self->state);
    watchdog_here = NULL;
    pthread_mutex_lock(&self->mutex);
    assert(!self->done && "the thread makes one call");
    self->done = true;
    bool abandoned = self->abandoned;
    pthread_cond_signal(&self->returned);
    pthread_mutex_unlock(&self->mutex);
    if (!abandoned) return NULL; /* it is the waiting thread's from here on */
    self->late(self->state);
    watchdog_free(self);
    return NULL;
}

/* The caller looks at the progress every TIERS_CHECK_NS. A machine that stood still is not held
 * against the device (watchdog.h). `thread` must not be used after an abandoned call was let go, so
 * its handle is a copy on this stack. */
bool tiers_watchdog_run(tiers_watchdog_call *run, tiers_watchdog_call *late, void *state,
                        uint64_t limit_ns)
{
    assert(run != NULL && late != NULL && limit_ns > 0);
    pthread_t thread;
    watched_call *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->run = run;
        self->late = late;
        self->state = state;
        pthread_mutex_init(&self->mutex, NULL);
        base_condition_init(&self->returned);
    }
    if (self == NULL || base_thread_start(&thread, watchdog_main, self) != 0) {
        if (self != NULL) watchdog_free(self);
        run(state);
        return true;
    }
    tiers_timeout timeout;
    tiers_timeout_init(&timeout, limit_ns, base_clock_ns());
    pthread_mutex_lock(&self->mutex);
    while (!self->done && !self->abandoned) {
        uint64_t now_ns = base_clock_ns();
        if (tiers_timeout_check(&timeout, now_ns, !atomic_load(&self->timeless),
                                atomic_load(&self->progress)))
            self->abandoned = true;
        else
            base_condition_wait_until(&self->returned, &self->mutex, now_ns + TIERS_CHECK_NS);
    }
    bool abandoned = self->abandoned;
    pthread_mutex_unlock(&self->mutex); /* an abandoned call may be freed from here on */
    if (abandoned) {
        pthread_detach(thread);
        return false;
    }
    pthread_join(thread, NULL);
    watchdog_free(self);
    return true;
}
