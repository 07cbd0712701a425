/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timeout.c - how the time without an answer adds up; the rule and the thread rule are in
 * timeout.h.
 */
#include "timeout.h"

#include <assert.h>

/* A step counts as 100 ms at most, and as an eighth of a short limit, so that eight checks at least
 * are needed for any verdict. */
enum { TIMEOUT_STEP_NS_MAX = 100 * 1000 * 1000, TIMEOUT_STEPS_MIN = 8 };

/* The time before now_ns never counts against the device. */
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
