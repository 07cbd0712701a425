/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_hints.c - hints that an agent or router would give: after each request, when its session
 * comes back, or that it does not. The workload knows; replay.hints says how much of it is told.
 *
 *     true    the next use in its true seconds times exp(0.3 normal), or the end of the session
 *     half    one request in two says the contrary
 *     wrong   every request does: an end where a turn follows, a turn where none does
 *
 * A request's hints are of the blocks that no other session has used so far; those that its next
 * turn does not begin with have ended. The policy is told nothing of how the hints were made. One
 * thread.
 */
#include "random.h"
#include "sim_state.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define HINTS_NOISE  0.3
#define HINTS_NOBODY UINT32_MAX
#define HINTS_SHARED (UINT32_MAX - 1)
#define HINTS_LEAST  0.001 /* seconds: the next turn waits already */

static uint32_t hints_sessions(const replay_workload *workload)
{
    uint32_t most = 0;
    for (uint64_t i = 0; i < workload->request_count; i++)
        if (workload->requests[i].session >= most) most = workload->requests[i].session + 1;
    return most;
}

/* Finds each request's next turn and the mean pause before one. */
static kvt_status hints_find_turns(sim_hints *hints, const replay_workload *workload)
{
    uint32_t sessions = hints_sessions(workload);
    uint64_t *later = malloc(((size_t)sessions + 1) * sizeof *later);
    if (later == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < sessions; i++)
        later[i] = UINT64_MAX;
    double seconds = 0.0;
    uint64_t turns = 0;
    for (uint64_t i = workload->request_count; i-- > 0;) {
        const replay_request *request = &workload->requests[i];
        uint64_t next = later[request->session];
        hints->next[i] = next;
        later[request->session] = i;
        if (next == UINT64_MAX) continue;
        seconds += (double)(workload->requests[next].arrival_ns - request->arrival_ns) * 1e-9;
        turns++;
    }
    free(later);
    hints->pause_s = turns > 0 ? seconds / (double)turns : 0.0;
    return turns > 0 ? KVT_OK : KVT_E_UNSUPPORTED;
}

kvt_status sim_hints_open(sim_state *sim, char *message, size_t message_size)
{
    const replay_workload *workload = sim->workload;
    sim_hints *hints = &sim->hints;
    if (sim->options->hints == REPLAY_HINTS_NONE || sim->oracle.on) return KVT_OK;
    snprintf(message, message_size, "out of memory");
    hints->next = malloc((size_t)(workload->request_count + 1) * sizeof *hints->next);
    hints->owner = malloc((size_t)(workload->distinct_blocks + 1) * sizeof *hints->owner);
    if (hints->next == NULL || hints->owner == NULL) return KVT_E_MEMORY;
    for (uint64_t i = 0; i <= workload->distinct_blocks; i++)
        hints->owner[i] = HINTS_NOBODY;
    replay_random_seed(&hints->random, sim->options->seed ^ UINT64_C(0x68696e7473));
    kvt_status status = hints_find_turns(hints, workload);
    if (status == KVT_E_UNSUPPORTED)
        snprintf(message, message_size, "replay.hints: the workload has no sessions of two turns");
    hints->on = status == KVT_OK;
    return status;
}

void sim_hints_close(sim_state *sim)
{
    free(sim->hints.next);
    free(sim->hints.owner);
}

/* How many leading blocks two requests have in common. */
static uint32_t hints_common(const replay_workload *workload, const replay_request *a,
                             const replay_request *b)
{
    uint32_t most = a->block_count < b->block_count ? a->block_count : b->block_count;
    uint32_t same = 0;
    while (same < most &&
           workload->blocks[a->first_block + same] == workload->blocks[b->first_block + same])
        same++;
    return same;
}

/* What is said of the blocks that the session's next turn begins with, and how many those are. */
typedef struct hints_saying {
    uint32_t used;
    double seconds;
} hints_saying;

/* The truth, or the contrary. The dice fall alike whatever is told, so that modes differ in it
 * alone. */
static hints_saying hints_say(sim_state *sim, const sim_visit *visit, uint64_t now_ns)
{
    sim_hints *hints = &sim->hints;
    const replay_workload *workload = sim->workload;
    uint64_t next = hints->next[visit->request - workload->requests];
    double noise = exp(HINTS_NOISE * replay_random_normal(&hints->random));
    double invented_s = replay_random_exponential(&hints->random, hints->pause_s);
    bool lies = replay_random_unit(&hints->random) < 0.5;
    if (sim->options->hints != REPLAY_HINTS_HALF) lies = sim->options->hints == REPLAY_HINTS_WRONG;
    hints_saying saying = {0};
    if (next != UINT64_MAX && !lies) {
        const replay_request *turn = &workload->requests[next];
        saying.used = hints_common(workload, visit->request, turn);
        if (turn->arrival_ns > now_ns)
            saying.seconds = (double)(turn->arrival_ns - now_ns) * 1e-9 * noise;
    } else if (next == UINT64_MAX && lies) {
        saying.used = visit->request->block_count;
        saying.seconds = invented_s;
    }
    if (saying.seconds < HINTS_LEAST) saying.seconds = HINTS_LEAST;
    if (saying.seconds > KVT_HINT_SECONDS_MAX) saying.seconds = KVT_HINT_SECONDS_MAX;
    return saying;
}

kvt_status sim_hints_give(sim_state *sim, const sim_visit *visit, uint64_t now_ns)
{
    sim_hints *hints = &sim->hints;
    if (!hints->on) return KVT_OK;
    hints_saying saying = hints_say(sim, visit, now_ns);
    for (uint32_t i = 0; i < visit->request->block_count; i++) {
        uint32_t block = visit->prefix[i], session = visit->request->session;
        if (hints->owner[block] == HINTS_NOBODY) hints->owner[block] = session;
        if (hints->owner[block] != session) hints->owner[block] = HINTS_SHARED;
        if (hints->owner[block] == HINTS_SHARED) continue;
        bool used = i < saying.used;
        kvt_status status = kvt_policy_hint(sim->policy, now_ns, sim_handle(block),
                                            used ? KVT_HINT_NEXT_USE : KVT_HINT_SESSION_END,
                                            used ? saying.seconds : 0.0, 0);
        if (status != KVT_OK && status != KVT_MISS) return status;
    }
    return KVT_OK;
}
