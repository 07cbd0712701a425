/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_wait.c - the clock of the library, sleeps, and condition waits with deadlines.
 */
#include "cases.h"

#include "base/thread.h"
#include "base/wait.h"

typedef struct wait_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} wait_gate;

static void *gate_open(void *argument)
{
    wait_gate *gate = argument;
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_signal(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
    return NULL;
}

/* The clocks go forward, and a sleep ends no earlier than it was asked to. */
TEST(clock_goes_forward)
{
    uint64_t begin_ns = base_clock_ns();
    double begin = base_clock_seconds();
    assert_true(begin >= 1e-9 * (double)begin_ns - 1e-6);
    base_sleep(1000000);
    assert_true(base_clock_ns() >= begin_ns + 1000000);
    base_sleep_until(begin_ns); /* has passed */
    assert_true(base_calendar_ns() > UINT64_C(1600000000000000000));
    assert_true(base_cpu_seconds() >= 0);
}

/* A deadline that has passed ends the wait before it begins; a later one ends it, and not early. */
TEST(wait_ends_at_its_deadline)
{
    wait_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    base_condition_init(&gate.changed);
    pthread_mutex_lock(&gate.lock);
    assert_false(base_condition_wait_until(&gate.changed, &gate.lock, base_clock_ns()));
    uint64_t deadline_ns = base_clock_ns() + 2000000;
    while (base_condition_wait_until(&gate.changed, &gate.lock, deadline_ns))
        continue;
    assert_true(base_clock_ns() >= deadline_ns);
    pthread_mutex_unlock(&gate.lock);
    pthread_cond_destroy(&gate.changed);
}

/* A wait ends when the condition is signalled, with a deadline and without one. */
TEST(wait_ends_when_signalled)
{
    const uint64_t deadlines_ns[] = {BASE_CLOCK_NEVER, base_clock_ns() + UINT64_C(600000000000)};
    for (int i = 0; i < 2; i++) {
        wait_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
        pthread_t opener;
        base_condition_init(&gate.changed);
        pthread_mutex_lock(&gate.lock);
        assert_int_equal(base_thread_start(&opener, gate_open, &gate), 0);
        while (!gate.open)
            assert_true(base_condition_wait_until(&gate.changed, &gate.lock, deadlines_ns[i]));
        pthread_mutex_unlock(&gate.lock);
        pthread_join(opener, NULL);
        pthread_cond_destroy(&gate.changed);
    }
}

/* A leap puts the clock ahead by as much as it says; what is waited for after it comes as it would
 * have come, also where the system waits. */
TEST(clock_leaps)
{
    const uint64_t leap_ns = UINT64_C(3600000000000);
    wait_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const uint64_t begin_ns = base_clock_ns(), system_ns = base_clock_system_ns(begin_ns);
    base_clock_leap(leap_ns);
    const uint64_t now_ns = base_clock_ns();
    assert_true(now_ns >= begin_ns + leap_ns && now_ns < begin_ns + 2 * leap_ns);
    assert_int_equal(base_clock_system_ns(begin_ns + leap_ns), system_ns);
    assert_int_equal(base_clock_system_ns(1), 0);
    base_sleep_until(begin_ns + leap_ns - 1); /* has passed */
    base_sleep(1000000);
    assert_true(base_clock_ns() >= now_ns + 1000000);
    base_condition_init(&gate.changed);
    pthread_mutex_lock(&gate.lock);
    const uint64_t deadline_ns = base_clock_ns() + 2000000;
    while (base_condition_wait_until(&gate.changed, &gate.lock, deadline_ns))
        continue;
    assert_true(base_clock_ns() >= deadline_ns && base_clock_ns() < deadline_ns + leap_ns / 2);
    pthread_mutex_unlock(&gate.lock);
    pthread_cond_destroy(&gate.changed);
}
