/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.h - whether a node is asked at all: CLOSED -> OPEN -> PROBING (docs/REMOTE.md). Time is
 * an argument.
 *
 * Failures are counted by what has failed, and only the same thing done well takes them back: a
 * login says nothing of gets, and an answered probe nothing of deletions. A breaker that closes
 * again keeps its counts, so one more failure of a suspect opens it for twice as long.
 *
 * Thread rule: one thread at a time per breaker.
 */
#ifndef REMOTE_BREAKER_H
#define REMOTE_BREAKER_H

#include "remote/client.h"

#define REMOTE_BREAKER_FAILURES 3u
#define REMOTE_PAUSE_LEAST_NS   UINT64_C(100000000)
#define REMOTE_PAUSE_MOST_NS    UINT64_C(30000000000)

/* The kinds of work that can fail: requests by kind, and connections. */
typedef uint32_t remote_cause;
#define REMOTE_CAUSE_CONNECTION ((remote_cause)REMOTE_KINDS)
#define REMOTE_CAUSES           (REMOTE_KINDS + 1)

typedef struct remote_breaker {
    remote_breaker_state state;
    uint32_t running[REMOTE_CAUSES]; /* failures since it went well last, up to the bound */
    uint64_t pause_ns;               /* of the next opening, without its jitter; */
    uint64_t most_ns;                /* it doubles up to this */
    uint64_t until_ns;               /* OPEN: the pause's end */
    uint64_t opened;                 /* times, ever */
    uint64_t failing_ns; /* OPEN for the first time since no cause was suspect; 0: none is */
    uint64_t draw;       /* of the jitter */
} remote_breaker;

void remote_breaker_init(remote_breaker *breaker, uint64_t seed);

/* OPEN, and the pause is over: it is PROBING from now on. */
bool remote_breaker_probes(remote_breaker *breaker, uint64_t now_ns);

/* The node that is PROBING can be asked: CLOSED again, and nothing is taken back. */
void remote_breaker_reached(remote_breaker *breaker);

/* Whether a cause has failed so often that one more failure opens: one piece of such work at a time
 * is enough. */
bool remote_breaker_suspects(const remote_breaker *breaker, remote_cause cause);

/* Whether a kind of work is suspect. */
bool remote_breaker_suspects_work(const remote_breaker *breaker);

/* The node has done it. */
void remote_breaker_good(remote_breaker *breaker, remote_cause cause);

/* It has not. True: the breaker is OPEN since now. */
bool remote_breaker_bad(remote_breaker *breaker, remote_cause cause, uint64_t now_ns);

#endif
