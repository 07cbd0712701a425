/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.h - whether a node is asked at all: CLOSED -> OPEN -> PROBING (docs/REMOTE.md). Time is
 * an argument.
 *
 * Thread rule: one thread at a time per breaker.
 */
#ifndef REMOTE_BREAKER_H
#define REMOTE_BREAKER_H

#include "remote/client.h"

#define REMOTE_BREAKER_FAILURES 3u
#define REMOTE_PAUSE_LEAST_NS   UINT64_C(100000000)
#define REMOTE_PAUSE_MOST_NS    UINT64_C(30000000000)

typedef struct remote_breaker {
    remote_breaker_state state;
    uint32_t running;  /* failures since the last answer */
    uint64_t pause_ns; /* of the next opening, without its jitter; */
    uint64_t most_ns;  /* it doubles up to this */
    uint64_t until_ns; /* OPEN: the pause's end */
    uint64_t opened;   /* times, ever */
    uint64_t draw;     /* of the jitter */
} remote_breaker;

void remote_breaker_init(remote_breaker *breaker, uint64_t seed);

/* OPEN, and the pause is over: it is PROBING from now on. */
bool remote_breaker_probes(remote_breaker *breaker, uint64_t now_ns);

/* The node has answered. */
void remote_breaker_good(remote_breaker *breaker);

/* It has not. True: the breaker is OPEN since now. */
bool remote_breaker_bad(remote_breaker *breaker, uint64_t now_ns);

#endif
