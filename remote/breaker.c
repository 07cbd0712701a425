/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.c - counts a node's failures, and draws its pauses. The file knows no socket and no
 * clock.
 *
 * Thread rule: one thread at a time per breaker.
 */
#include "remote/breaker.h"

#include <assert.h>

void remote_breaker_init(remote_breaker *breaker, uint64_t seed)
{
    *breaker = (remote_breaker){
        .pause_ns = REMOTE_PAUSE_LEAST_NS, .most_ns = REMOTE_PAUSE_MOST_NS, .draw = seed | 1};
}

bool remote_breaker_probes(remote_breaker *breaker, uint64_t now_ns)
{
    if (breaker->state != REMOTE_OPEN || now_ns < breaker->until_ns) return false;
    breaker->state = REMOTE_PROBING;
    return true;
}

void remote_breaker_reached(remote_breaker *breaker)
{
    if (breaker->state == REMOTE_PROBING) breaker->state = REMOTE_CLOSED;
}

bool remote_breaker_suspects(const remote_breaker *breaker, remote_cause cause)
{
    return breaker->running[cause] >= REMOTE_BREAKER_FAILURES;
}

bool remote_breaker_suspects_work(const remote_breaker *breaker)
{
    for (remote_cause kind = 0; kind < REMOTE_KINDS; kind++)
        if (remote_breaker_suspects(breaker, kind)) return true;
    return false;
}

void remote_breaker_good(remote_breaker *breaker, remote_cause cause)
{
    /* A late answer on an earlier connection says nothing about the present one. */
    if (breaker->state == REMOTE_OPEN) return;
    breaker->state = REMOTE_CLOSED;
    breaker->running[cause] = 0;
    for (int other = 0; other < REMOTE_CAUSES; other++)
        if (remote_breaker_suspects(breaker, (remote_cause)other)) return;
    breaker->pause_ns = REMOTE_PAUSE_LEAST_NS;
    breaker->failing_ns = 0;
}

bool remote_breaker_bad(remote_breaker *breaker, remote_cause cause, uint64_t now_ns)
{
    if (breaker->state == REMOTE_OPEN) return false;
    if (breaker->running[cause] < REMOTE_BREAKER_FAILURES) breaker->running[cause]++;
    if (breaker->state == REMOTE_CLOSED && !remote_breaker_suspects(breaker, cause)) return false;
    breaker->state = REMOTE_OPEN;
    breaker->opened++;
    if (breaker->failing_ns == 0) breaker->failing_ns = now_ns;
    /* A pause of 75 to 125 %: many hosts do not come back at one moment. */
    breaker->draw = breaker->draw * UINT64_C(6364136223846793005) + 1442695040888963407u;
    const uint64_t share = 768 + (breaker->draw >> 33) % 513; /* in 1024ths */
    breaker->until_ns = now_ns + breaker->pause_ns / 1024 * share;
    breaker->pause_ns *= 2;
    if (breaker->pause_ns > breaker->most_ns) breaker->pause_ns = breaker->most_ns;
    assert(breaker->until_ns > now_ns);
    return true;
}
