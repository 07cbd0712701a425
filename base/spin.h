/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin.h - how long a thread looks for what it waits for before it sleeps. Sleeping and waking take
 * 10 to 60 us; a wait that ends sooner is cheaper to look through. A thread whose last waits were
 * short looks again, one whose waits were long does not.
 *
 *     const uint64_t began_ns = base_clock_ns();
 *     if (!base_spin_until_not(&spin, &word, value)) ... sleep ...
 *     base_spin_learn(&spin, base_clock_ns() - began_ns);
 *
 * Thread rule: a base_spin belongs to one thread at a time.
 */
#ifndef BASE_SPIN_H
#define BASE_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct base_spin {
    uint32_t ns;      /* of looking, in the next wait */
    uint32_t most_ns; /* 0: never, because the process has one processor */
} base_spin;

/* Makes one that has not looked yet, and looks no longer than so many nanoseconds. */
void base_spin_init(base_spin *spin, uint32_t most_ns);

/* Looks until a word has another value, or the time to look is over. True: it has. */
bool base_spin_until_not(const base_spin *spin, const _Atomic uint64_t *word, uint64_t value);

/* Tells how long a wait took from its begin to its end, with looking and sleeping. */
void base_spin_learn(base_spin *spin, uint64_t waited_ns);

#endif
