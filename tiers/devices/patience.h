/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patience.h - the watch over a device that may have fallen silent.
 *
 * Thread rule: a watch belongs to one lock.
 */
#ifndef TIERS_PATIENCE_H
#define TIERS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#define TIERS_SILENCE_NS_DEFAULT (UINT64_C(5) * 1000 * 1000 * 1000)
#define TIERS_SILENCE_NEVER      UINT64_MAX

/* Who waits for a device looks after it this often. */
#define TIERS_LOOK_NS (UINT64_C(20) * 1000 * 1000)

/*
 * Adds up the time for which a device has had work and finished none of it. Each look counts the
 * time since the look before, but never more than a small step: while the whole process stood
 * still, or the machine did, nobody could have answered.
 */
typedef struct tiers_watch {
    uint64_t limit_ns; /* TIERS_SILENCE_NEVER: it never falls silent */
    uint64_t looked_ns;
    uint64_t quiet_ns;
    uint64_t progress; /* at the last look */
} tiers_watch;

void tiers_watch_init(tiers_watch *watch, uint64_t limit_ns, uint64_t now_ns);

/* busy: it has work; progress: any number that changes when it finishes some. Whether it has been
 * silent for the limit. */
bool tiers_watch_look(tiers_watch *watch, uint64_t now_ns, bool busy, uint64_t progress);

#endif
