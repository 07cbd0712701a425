/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_spin.c - how long a thread looks before it sleeps.
 */
#include "cases.h"

#include "base/clock.h"
#include "base/spin.h"
#include "base/thread.h"

#include <sched.h>

/* A spin as of a process with several processors. */
static base_spin spin_of_several(void)
{
    base_spin spin;
    base_spin_init(&spin, 50000);
    if (spin.most_ns == 0) spin.most_ns = 50000;
    return spin;
}

/* One that has not waited yet does not look; after a short wait it looks for as long as it may. */
TEST(short_waits_are_looked_through)
{
    base_spin spin = spin_of_several();
    assert_int_equal(spin.ns, 0);
    base_spin_learn(&spin, 1000);
    assert_int_equal(spin.ns, spin.most_ns);
    base_spin_learn(&spin, spin.most_ns);
    assert_int_equal(spin.ns, spin.most_ns);
}

/* Long waits end the looking within a few of them, and one short wait brings it back. */
TEST(long_waits_are_slept_through)
{
    base_spin spin = spin_of_several();
    base_spin_learn(&spin, 1000);
    uint32_t before = spin.ns;
    int waits = 0;
    for (; spin.ns > 0; waits++) {
        base_spin_learn(&spin, UINT64_C(1) << 33);
        assert_true(spin.ns < before);
        before = spin.ns;
    }
    assert_in_range(waits, 2, 6);
    base_spin_learn(&spin, 1000);
    assert_int_equal(spin.ns, spin.most_ns);
}

/* A look ends with its time, and not before when the word stays. */
TEST(a_look_has_an_end)
{
    _Atomic uint64_t word = 7;
    base_spin spin = spin_of_several();
    assert_false(base_spin_until_not(&spin, &word, 7)); /* without a look */
    base_spin_learn(&spin, 0);
    const uint64_t began_ns = base_clock_ns();
    assert_false(base_spin_until_not(&spin, &word, 7));
    assert_true(base_clock_ns() - began_ns >= spin.most_ns);
    assert_true(base_spin_until_not(&spin, &word, 8));
}

static void *word_write(void *argument)
{
    _Atomic uint64_t *word = argument;
    base_sleep(1000000);
    atomic_store(word, 8);
    return NULL;
}

/* A word that another thread writes is seen. */
TEST(a_change_is_seen)
{
    _Atomic uint64_t word = 7;
    base_spin spin = {.ns = UINT32_MAX, .most_ns = UINT32_MAX};
    pthread_t thread;
    assert_int_equal(base_thread_start(&thread, word_write, &word), KVT_OK);
    assert_true(base_spin_until_not(&spin, &word, 7));
    pthread_join(thread, NULL);
}

/* A process with one processor never looks: the other side could not run meanwhile. */
TEST(one_processor_is_not_kept_busy)
{
    cpu_set_t before, one;
    base_spin spin;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    base_spin_init(&spin, 50000);
    base_spin_learn(&spin, 0);
    assert_int_equal(spin.ns, 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}
