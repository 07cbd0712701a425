/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - see schedule.h. All state belongs to the thread that has the baton.
 */
#include "schedule.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SCHEDULE_BEGIN_NS    UINT64_C(1000000000000)
#define SCHEDULE_CALENDAR_NS UINT64_C(1700000000000000000)
#define SCHEDULE_CALL_NS     60u
#define SCHEDULE_STALL_NS    40000000u
#define SCHEDULE_NS_MAX      UINT64_C(900000000000)
#define SCHEDULE_STEPS_MAX   UINT64_C(20000000)
#define SCHEDULE_HANG_S      120u

enum { SCHEDULE_THREADS_MAX = 512, SCHEDULE_HELD_MAX = 512 };

typedef enum thread_state {
    THREAD_READY,
    THREAD_LOCKING, /* object: the mutex */
    THREAD_WAITING, /* object: the condition */
    THREAD_SLEEPING,
    THREAD_JOINING, /* object: the other thread */
    THREAD_ENDED
} thread_state;

typedef struct schedule_thread {
    sem_t baton;
    pthread_t real;
    thread_state state;
    const void *object;
    const void *place; /* the caller, for reports */
    uint64_t wake_ns;
    uint32_t priority;
    bool expired; /* its deadline ended the last wait */
    bool known;   /* neither joined nor detached yet */
    void *(*run)(void *argument);
    void *argument;
} schedule_thread;

typedef struct schedule_event {
    uint64_t now_ns;
    const char *word;
    uint64_t a, b;
    uint32_t thread;
} schedule_event;

static struct {
    bool on;
    schedule_options options;
    uint64_t random, now_ns, steps, hash;
    uint32_t switch_one_in; /* 0: by priorities */
    uint32_t stall_one_in;  /* the whole machine stands still; 0: never */
    uint32_t pause_one_in;  /* one thread gets no processor; 0: never */
    uint32_t count, current;
    schedule_thread threads[SCHEDULE_THREADS_MAX];
    struct {
        const void *mutex;
        uint32_t owner;
    } held[SCHEDULE_HELD_MAX];
    uint32_t held_count;
    schedule_event *log;
    size_t log_count, log_room;
} plan;

/* What the linker calls the functions: as they are, and as this file defines them. */
#define SCHEDULE_WRAPS(name) extern __typeof__(name) __real_##name, __wrap_##name

SCHEDULE_WRAPS(pthread_create);
SCHEDULE_WRAPS(pthread_join);
SCHEDULE_WRAPS(pthread_detach);
SCHEDULE_WRAPS(pthread_mutex_lock);
SCHEDULE_WRAPS(pthread_mutex_unlock);
SCHEDULE_WRAPS(pthread_mutex_trylock);
SCHEDULE_WRAPS(pthread_cond_wait);
SCHEDULE_WRAPS(pthread_cond_timedwait);
SCHEDULE_WRAPS(pthread_cond_signal);
SCHEDULE_WRAPS(pthread_cond_broadcast);
SCHEDULE_WRAPS(base_clock_ns);
SCHEDULE_WRAPS(base_clock_seconds);
SCHEDULE_WRAPS(base_calendar_ns);
SCHEDULE_WRAPS(base_cpu_seconds);
SCHEDULE_WRAPS(base_sleep);
SCHEDULE_WRAPS(base_sleep_until);
SCHEDULE_WRAPS(getrandom);

/* ---- chance and the log ---- */

static uint64_t schedule_next(void)
{
    plan.random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = plan.random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t schedule_draw(uint32_t below)
{
    return (uint32_t)((schedule_next() >> 32) * below >> 32);
}

static void schedule_mix(uint64_t value)
{
    plan.hash = (plan.hash ^ value) * UINT64_C(0x100000001b3);
    plan.hash ^= plan.hash >> 29;
}

static void schedule_log(const char *word, uint64_t a, uint64_t b)
{
    if (!plan.options.keep_log) return;
    if (plan.log_count == plan.log_room) {
        plan.log_room = plan.log_room * 2 + 4096;
        plan.log = realloc(plan.log, plan.log_room * sizeof *plan.log);
        if (plan.log == NULL) abort();
    }
    plan.log[plan.log_count++] = (schedule_event){plan.now_ns, word, a, b, plan.current};
}

void schedule_note(const char *word, uint64_t a, uint64_t b)
{
    for (const char *at = word; *at != '\0'; at++)
        schedule_mix((unsigned char)*at);
    schedule_mix(plan.now_ns);
    schedule_mix(a);
    schedule_mix(b);
    schedule_log(word, a, b);
}

void schedule_print_log(void)
{
    for (size_t i = 0; i < plan.log_count; i++) {
        const schedule_event *event = &plan.log[i];
        printf("%12.6f ms  thread %-3u %-18s %llu %llu\n",
               1e-6 * (double)(event->now_ns - SCHEDULE_BEGIN_NS), event->thread, event->word,
               (unsigned long long)event->a, (unsigned long long)event->b);
    }
}

_Noreturn void schedule_fail(const char *reason)
{
    plan.on = false;
    fprintf(stderr, "seed %llu, step %llu, %.6f ms: %s\n", (unsigned long long)plan.options.seed,
            (unsigned long long)plan.steps, 1e-6 * (double)(plan.now_ns - SCHEDULE_BEGIN_NS),
            reason);
    static const char *const states[] = {"can run",         "wants a lock", "waits",
                                         "sleeps or waits", "joins",        "has ended"};
    for (uint32_t i = 0; i < plan.count; i++) {
        const schedule_thread *thread = &plan.threads[i];
        char name[32] = "";
        if (thread->state == THREAD_ENDED) continue;
        (void)pthread_getname_np(thread->real, name, sizeof name);
        fprintf(stderr, "  thread %u (%s) %s %p", i, name, states[thread->state],
                (void *)(uintptr_t)thread->object);
        for (uint32_t h = 0; h < plan.held_count; h++) {
            if (plan.held[h].mutex == thread->object)
                fprintf(stderr, ", held by thread %u", plan.held[h].owner);
            if (plan.held[h].owner == i)
                fprintf(stderr, ", holds %p", (void *)(uintptr_t)plan.held[h].mutex);
        }
        fprintf(stderr, ", in ");
        const void *place = thread->place;
        Dl_info info;
        char command[512];
        fflush(stderr);
        if (place != NULL && dladdr(place, &info) != 0 && info.dli_fname != NULL) {
            snprintf(command, sizeof command, "addr2line -f -p -s -e '%s' %lx 1>&2 2>/dev/null",
                     info.dli_fname,
                     (unsigned long)((const char *)place - (const char *)info.dli_fbase - 1));
            if (system(command) != 0) fprintf(stderr, "at %p\n", place);
        }
    }
    if (plan.options.keep_log) schedule_print_log();
    fflush(stdout);
    _exit(SCHEDULE_EXIT_FAILED);
}

static void schedule_hangs(int signal_number)
{
    (void)signal_number;
    schedule_fail("a step takes real time without end");
}

/* ---- who runs ---- */

static schedule_thread *schedule_me(void)
{
    return &plan.threads[plan.current];
}

static uint64_t schedule_next_deadline(void)
{
    uint64_t next = BASE_CLOCK_NEVER;
    for (uint32_t i = 0; i < plan.count; i++) {
        const schedule_thread *thread = &plan.threads[i];
        bool timed = thread->state == THREAD_WAITING || thread->state == THREAD_SLEEPING;
        if (timed && thread->wake_ns < next) next = thread->wake_ns;
    }
    return next;
}

static void schedule_await_baton(schedule_thread *thread)
{
    while (sem_wait(&thread->baton) != 0)
        continue;
}

static void schedule_hand_over(uint32_t next)
{
    schedule_mix(next);
    if (next != plan.current) schedule_log("-> thread", next, 0);
    plan.current = next;
    sem_post(&plan.threads[next].baton);
}

/* The next thread that runs, once time has passed until one can. */
static uint32_t schedule_find(void)
{
    for (;;) {
        /* Threads whose deadline has come can run. */
        for (uint32_t i = 0; i < plan.count; i++) {
            schedule_thread *thread = &plan.threads[i];
            bool timed = thread->state == THREAD_WAITING || thread->state == THREAD_SLEEPING;
            if (!timed || thread->wake_ns > plan.now_ns) continue;
            thread->expired = true;
            thread->state = THREAD_READY;
        }
        /* One of the threads that can run, or SCHEDULE_THREADS_MAX. */
        uint32_t ready = 0, chosen = SCHEDULE_THREADS_MAX;
        for (uint32_t i = 0; i < plan.count; i++) {
            if (plan.threads[i].state != THREAD_READY) continue;
            ready++;
            bool takes = plan.switch_one_in != 0
                             ? schedule_draw(ready) == 0
                             : chosen == SCHEDULE_THREADS_MAX ||
                                   plan.threads[i].priority > plan.threads[chosen].priority;
            if (takes) chosen = i;
        }
        uint32_t next = chosen;
        if (next != SCHEDULE_THREADS_MAX) return next;
        uint64_t deadline_ns = schedule_next_deadline();
        if (deadline_ns == BASE_CLOCK_NEVER) schedule_fail("deadlock: no thread can run");
        if (deadline_ns > SCHEDULE_BEGIN_NS + SCHEDULE_NS_MAX)
            schedule_fail("some thread waits for ever, while others only wait for the time");
        plan.now_ns = deadline_ns;
    }
}

/* Gives the baton away, and comes back when it is this thread's again. */
static void schedule_block(void)
{
    schedule_thread *me = schedule_me();
    uint32_t self = plan.current;
    uint32_t next = schedule_find();
    if (next == self) return;
    schedule_hand_over(next);
    schedule_await_baton(me);
}

#if defined(__SANITIZE_THREAD__)
/* A life that is stopped ends with threads that nobody has joined. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}
#endif

static void schedule_count_step(void)
{
    if (++plan.steps > SCHEDULE_STEPS_MAX) schedule_fail("no end in sight: too many steps");
    plan.now_ns += SCHEDULE_CALL_NS;
    if (plan.steps != plan.options.stop_step) return;
    *plan.options.stop_hash = plan.hash;
    if (plan.options.keep_log) schedule_print_log();
    fflush(stdout);
    _exit(SCHEDULE_EXIT_STOPPED);
}

void schedule_step(uint64_t lasts_ns)
{
    schedule_count_step();
    if (plan.pause_one_in != 0 && schedule_draw(plan.pause_one_in) == 0)
        lasts_ns += schedule_draw(SCHEDULE_STALL_NS >> schedule_draw(10));
    if (lasts_ns != 0) {
        schedule_me()->state = THREAD_SLEEPING;
        schedule_me()->wake_ns = plan.now_ns + lasts_ns;
        schedule_block();
        return;
    }
    if (plan.stall_one_in != 0 && schedule_draw(plan.stall_one_in) == 0)
        plan.now_ns += schedule_draw(SCHEDULE_STALL_NS);
    if (plan.switch_one_in != 0) {
        if (schedule_draw(plan.switch_one_in) != 0) return;
    } else if (schedule_draw(256) == 0) {
        schedule_me()->priority = schedule_draw(1000);
    }
    schedule_block();
}

/* ---- begin and end ---- */

void schedule_begin(const schedule_options *options)
{
    static const uint32_t strategies[] = {2, 6, 24, 0};
    memset(&plan, 0, sizeof plan);
    plan.options = *options;
    plan.random = options->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    plan.now_ns = SCHEDULE_BEGIN_NS;
    plan.hash = UINT64_C(0xcbf29ce484222325);
    plan.switch_one_in = strategies[schedule_draw(4)];
    plan.stall_one_in = schedule_draw(2) == 0 ? 0 : 400;
    plan.pause_one_in = schedule_draw(3) == 0 ? 0 : 25u << schedule_draw(5);
    plan.count = 1;
    plan.threads[0] = (schedule_thread){.real = pthread_self(), .priority = schedule_draw(1000)};
    sem_init(&plan.threads[0].baton, 0, 0);
    /* A baton that changes processors waits for the other one to wake up: with one processor a run
     * takes a fifth of the time on a machine that has other work. */
    cpu_set_t here;
    int processor = sched_getcpu();
    if (processor >= 0) {
        CPU_ZERO(&here);
        CPU_SET((size_t)processor, &here);
        (void)sched_setaffinity(0, sizeof here, &here);
    }
    signal(SIGALRM, schedule_hangs);
    alarm(SCHEDULE_HANG_S);
    plan.on = true;
}

void schedule_end(uint64_t *steps_out, uint64_t *hash_out)
{
    for (uint32_t i = 1; i < plan.count; i++)
        if (plan.threads[i].state != THREAD_ENDED) schedule_fail("a thread is left behind");
    if (plan.held_count != 0) schedule_fail("a lock is still held");
    plan.on = false;
    alarm(0);
    *steps_out = plan.steps;
    *hash_out = plan.hash;
}

/* ---- threads ---- */

static void schedule_thread_ends(void *argument)
{
    schedule_thread *thread = argument;
    thread->state = THREAD_ENDED;
    for (uint32_t i = 0; i < plan.count; i++) {
        if (plan.threads[i].state == THREAD_JOINING && plan.threads[i].object == thread)
            plan.threads[i].state = THREAD_READY;
    }
    schedule_count_step();
    schedule_hand_over(schedule_find());
}

static void *schedule_thread_main(void *argument)
{
    schedule_thread *thread = argument;
    void *result;
    schedule_await_baton(thread);
    pthread_cleanup_push(schedule_thread_ends, thread);
    result = thread->run(thread->argument);
    pthread_cleanup_pop(1);
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    if (!plan.on) return __real_pthread_create(thread, attributes, run, argument);
    if (plan.count == SCHEDULE_THREADS_MAX) schedule_fail("too many threads");
    schedule_thread *made = &plan.threads[plan.count];
    *made = (schedule_thread){
        .run = run, .argument = argument, .known = true, .priority = schedule_draw(1000)};
    sem_init(&made->baton, 0, 0);
    int error = __real_pthread_create(&made->real, attributes, schedule_thread_main, made);
    if (error != 0) return error;
    *thread = made->real;
    plan.count++;
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    return 0;
}

static schedule_thread *schedule_thread_of(pthread_t real)
{
    for (uint32_t i = 0; i < plan.count; i++)
        if (plan.threads[i].known && pthread_equal(plan.threads[i].real, real))
            return &plan.threads[i];
    schedule_fail("a thread is joined or detached twice");
}

int __wrap_pthread_join(pthread_t real, void **result)
{
    if (!plan.on) return __real_pthread_join(real, result);
    schedule_thread *other = schedule_thread_of(real);
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    while (other->state != THREAD_ENDED) {
        schedule_me()->state = THREAD_JOINING;
        schedule_me()->object = other;
        schedule_block();
    }
    other->known = false;
    return __real_pthread_join(real, result);
}

int __wrap_pthread_detach(pthread_t real)
{
    if (plan.on) schedule_thread_of(real)->known = false;
    return __real_pthread_detach(real);
}

/* ---- locks ---- */

static bool schedule_try_lock(const void *mutex)
{
    for (uint32_t i = 0; i < plan.held_count; i++) {
        if (plan.held[i].mutex != mutex) continue;
        if (plan.held[i].owner == plan.current) schedule_fail("a thread locks what it holds");
        return false;
    }
    if (plan.held_count == SCHEDULE_HELD_MAX) schedule_fail("too many locks are held");
    plan.held[plan.held_count].mutex = mutex;
    plan.held[plan.held_count++].owner = plan.current;
    return true;
}

static void schedule_lock(const void *mutex)
{
    while (!schedule_try_lock(mutex)) {
        schedule_me()->state = THREAD_LOCKING;
        schedule_me()->object = mutex;
        schedule_block();
    }
}

static void schedule_unlock(const void *mutex)
{
    uint32_t at = 0;
    while (at < plan.held_count && plan.held[at].mutex != mutex)
        at++;
    if (at == plan.held_count || plan.held[at].owner != plan.current)
        schedule_fail("a thread unlocks what it does not hold");
    plan.held[at] = plan.held[--plan.held_count];
    for (uint32_t i = 0; i < plan.count; i++) {
        schedule_thread *thread = &plan.threads[i];
        if (thread->state == THREAD_LOCKING && thread->object == mutex)
            thread->state = THREAD_READY;
    }
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!plan.on) return __real_pthread_mutex_lock(mutex);
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    schedule_lock(mutex);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    if (!plan.on) return __real_pthread_mutex_trylock(mutex);
    /* An assert that asks for a lock which this thread holds is no step of the schedule. */
    for (uint32_t i = 0; i < plan.held_count; i++)
        if (plan.held[i].mutex == mutex && plan.held[i].owner == plan.current) return EBUSY;
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    return schedule_try_lock(mutex) ? 0 : EBUSY;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!plan.on) return __real_pthread_mutex_unlock(mutex);
    schedule_me()->place = __builtin_return_address(0);
    schedule_unlock(mutex);
    schedule_step(0);
    return 0;
}

/* ---- conditions ---- */

static int schedule_wait(const void *condition, const void *mutex, uint64_t wake_ns,
                         const void *place)
{
    schedule_count_step();
    schedule_unlock(mutex);
    schedule_thread *me = schedule_me();
    me->state = THREAD_WAITING;
    me->object = condition;
    me->place = place;
    me->wake_ns = wake_ns;
    me->expired = false;
    schedule_block();
    bool expired = me->expired;
    schedule_lock(mutex);
    return expired ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    if (!plan.on) return __real_pthread_cond_wait(condition, mutex);
    return schedule_wait(condition, mutex, BASE_CLOCK_NEVER, __builtin_return_address(0));
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *deadline)
{
    if (!plan.on) return __real_pthread_cond_timedwait(condition, mutex, deadline);
    uint64_t wake_ns =
        (uint64_t)deadline->tv_sec * UINT64_C(1000000000) + (uint64_t)deadline->tv_nsec;
    return schedule_wait(condition, mutex, wake_ns, __builtin_return_address(0));
}

/* Wakes one of those that wait for the condition, whichever chance picks. */
static void schedule_wake_one(const void *condition)
{
    uint32_t waiting = 0;
    schedule_thread *chosen = NULL;
    for (uint32_t i = 0; i < plan.count; i++) {
        schedule_thread *thread = &plan.threads[i];
        bool waits =
            thread->state == THREAD_WAITING && (condition == NULL || thread->object == condition);
        if (waits && schedule_draw(++waiting) == 0) chosen = thread;
    }
    if (chosen != NULL) chosen->state = THREAD_READY;
}

/* POSIX lets a wait end for no reason. */
static void schedule_wake_somebody(void)
{
    if (schedule_draw(128) == 0) schedule_wake_one(NULL);
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition)
{
    if (!plan.on) return __real_pthread_cond_signal(condition);
    schedule_wake_one(condition);
    schedule_wake_somebody();
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    if (!plan.on) return __real_pthread_cond_broadcast(condition);
    if (plan.options.signals_narrow) return __wrap_pthread_cond_signal(condition);
    for (uint32_t i = 0; i < plan.count; i++) {
        schedule_thread *thread = &plan.threads[i];
        if (thread->state == THREAD_WAITING && thread->object == condition)
            thread->state = THREAD_READY;
    }
    schedule_wake_somebody();
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(0);
    return 0;
}

/* ---- time ---- */

/* No other thread runs when the clock is read, but time passes, so that a loop that reads it ends.
 */
uint64_t __wrap_base_clock_ns(void)
{
    if (!plan.on) return __real_base_clock_ns();
    schedule_count_step();
    return plan.now_ns;
}

double __wrap_base_clock_seconds(void)
{
    return plan.on ? 1e-9 * (double)__wrap_base_clock_ns() : __real_base_clock_seconds();
}

uint64_t __wrap_base_calendar_ns(void)
{
    return plan.on ? SCHEDULE_CALENDAR_NS + __wrap_base_clock_ns() : __real_base_calendar_ns();
}

double __wrap_base_cpu_seconds(void)
{
    return plan.on ? __wrap_base_clock_seconds() : __real_base_cpu_seconds();
}

void __wrap_base_sleep_until(uint64_t wake_ns)
{
    if (!plan.on) {
        __real_base_sleep_until(wake_ns);
        return;
    }
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(wake_ns > plan.now_ns ? wake_ns - plan.now_ns : 0);
}

void __wrap_base_sleep(uint64_t nanoseconds)
{
    if (!plan.on) {
        __real_base_sleep(nanoseconds);
        return;
    }
    schedule_me()->place = __builtin_return_address(0);
    schedule_step(nanoseconds);
}

/* ---- chance ---- */

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
    if (!plan.on) return __real_getrandom(out, bytes, flags);
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = (unsigned char)schedule_draw(256);
    return (ssize_t)bytes;
}
