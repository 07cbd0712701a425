/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patience.c - see patience.h.
 */
#include "patience.h"

enum { PATIENCE_STEP_NS_MAX = 100 * 1000 * 1000, PATIENCE_STEPS_MIN = 8 };

void tiers_watch_init(tiers_watch *watch, uint64_t limit_ns, uint64_t now_ns)
{
    *watch = (tiers_watch){.limit_ns = limit_ns, .looked_ns = now_ns};
}

bool tiers_watch_look(tiers_watch *watch, uint64_t now_ns, bool busy, uint64_t progress)
{
    uint64_t step = now_ns > watch->looked_ns ? now_ns - watch->looked_ns : 0;
    uint64_t most = watch->limit_ns / PATIENCE_STEPS_MIN;
    if (most > PATIENCE_STEP_NS_MAX) most = PATIENCE_STEP_NS_MAX;
    watch->looked_ns = now_ns;
    if (!busy || progress != watch->progress) {
        watch->progress = progress;
        watch->quiet_ns = 0;
        return false;
    }
    watch->quiet_ns += step < most ? step : most;
    return watch->limit_ns != TIERS_SILENCE_NEVER && watch->quiet_ns >= watch->limit_ns;
}
