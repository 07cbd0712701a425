/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#include "base/clock.h"

#include <sched.h>

#define SPIN_LEAST_NS 4000u /* less is not worth a look at the clock */
#define SPIN_LOOKS    32    /* at the word, for one at the clock */

/* Gives the other thread of a core its share. */
static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

void base_spin_init(base_spin *spin, uint32_t most_ns)
{
    cpu_set_t allowed;
    /* A machine with more processors than the set holds has several. */
    const bool alone =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) == 1;
    *spin = (base_spin){.most_ns = alone ? 0 : most_ns};
}

bool base_spin_until_not(const base_spin *spin, const _Atomic uint64_t *word, uint64_t value)
{
    if (spin->ns == 0) return false;
    const uint64_t until_ns = base_clock_ns() + spin->ns;
    do {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            spin_pause();
        }
    } while (base_clock_ns() < until_ns);
    return false;
}

void base_spin_learn(base_spin *spin, uint64_t waited_ns)
{
    if (waited_ns <= spin->most_ns)
        spin->ns = spin->most_ns;
    else
        spin->ns = spin->ns / 2 < SPIN_LEAST_NS ? 0 : spin->ns / 2;
}
