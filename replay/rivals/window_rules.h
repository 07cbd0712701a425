/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window_rules.h - rules of windows to compare the decayed mean with. Pure; the caller's lock.
 *
 *     lookahead        a page's expected weight per token in this step (KVDrive)
 *     lru, fifo, lfu   last step of use, step of arrival, number of uses while resident
 */
#ifndef REPLAY_WINDOW_RULES_H
#define REPLAY_WINDOW_RULES_H

#include "sparse/decide/windows.h"

typedef enum windows_rule {
    WINDOWS_DECAYED = 0,
    WINDOWS_LOOKAHEAD = 1,
    WINDOWS_LRU = 2,
    WINDOWS_FIFO = 3,
    WINDOWS_LFU = 4
} windows_rule;
#define WINDOWS_RULES 5u

/* By rule, for windows_unit.rate. */
extern windows_rate *const window_rules[WINDOWS_RULES];

#endif
