/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window_rules.c - the rules of window_rules.h. Pure.
 */
#include "replay/rivals/window_rules.h"

static void rate_lookahead(windows_unit *unit, uint32_t page, float weight, bool used,
                           bool resident)
{
    (void)used;
    (void)resident;
    unit->standing[page] = weight / (float)windows_page_tokens(unit, page);
}

static void rate_lru(windows_unit *unit, uint32_t page, float weight, bool used, bool resident)
{
    (void)weight;
    (void)resident;
    if (used) unit->standing[page] = (float)unit->step;
}

static void rate_fifo(windows_unit *unit, uint32_t page, float weight, bool used, bool resident)
{
    (void)weight;
    (void)used;
    if (!resident) unit->standing[page] = (float)unit->step;
}

static void rate_lfu(windows_unit *unit, uint32_t page, float weight, bool used, bool resident)
{
    (void)weight;
    if (!resident) unit->standing[page] = 0.0f;
    if (used) unit->standing[page] += 1.0f;
}

windows_rate *const window_rules[WINDOWS_RULES] = {[WINDOWS_LOOKAHEAD] = rate_lookahead,
                                                   [WINDOWS_LRU] = rate_lru,
                                                   [WINDOWS_FIFO] = rate_fifo,
                                                   [WINDOWS_LFU] = rate_lfu};
