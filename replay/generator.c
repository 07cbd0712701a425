/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generator.c - a Poisson workload of sessions over popular contexts.
 *
 * A prefix is [system prompt | context | turns of one session]. A full block belongs to the segment
 * that its last token lies in: system blocks are shared by all, context blocks by the sessions on
 * that context, the rest by the turns of one session. A partial last block is private to its
 * request, because its content goes on differently in the next turn. A turn's input holds all
 * earlier inputs and answers.
 *
 * The event sources run in time order: the next session's start, a heap of the next turns of open
 * sessions, and where they are asked for the next request of a scan, the next session of a crowd
 * and the next trade of popularity. A source that is off draws nothing, so settings that leave all
 * three off give the workload that they gave before there were any. Only integers leave the draws
 * (nanoseconds, tokens), so equal seeds give equal workloads wherever log and exp agree to the last
 * printed nanosecond. One thread.
 */
#include "random.h"
#include "replay.h"
#include "workload.h"

#include "base/config_values.h"
#include "base/settings_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generator_context {
    uint32_t tokens;
    uint32_t block_count; /* full blocks that end inside the context; 0 until first used */
    uint32_t first_block; /* dense id of the first one */
    bool used;
} generator_context;

#define GENERATOR_NO_CONTEXT UINT32_MAX /* of a scan: the document is the request's own */

/* One open session: its next turn. */
typedef struct generator_turn {
    uint64_t arrival_ns;
    uint64_t last_request; /* index of the previous turn's request, or UINT64_MAX */
    uint32_t input_tokens;
    uint32_t session;
    uint32_t context;
} generator_turn;

/* Where a scan or a crowd stands. Its clock runs inside the windows alone, which keeps the arrivals
 * of each window Poisson. */
typedef struct generator_burst {
    const replay_burst *options;
    double clock_s;
    uint64_t window;  /* that the next arrival falls into */
    uint64_t next_ns; /* UINT64_MAX: off */
} generator_burst;

typedef struct generator_state {
    const replay_generator *options;
    workload_builder builder;
    replay_random random;
    generator_context *contexts;
    double *popularity;   /* cumulative, by rank; contexts entries */
    uint32_t *of_rank;    /* the context that has this rank now */
    generator_turn *heap; /* by (arrival, session) */
    uint64_t heap_room;
    size_t heap_count;
    uint32_t system_first; /* dense id of the system prompt's first block */
    bool system_used;
    generator_burst scan, crowd;
    uint64_t crowd_window; /* that crowd_context was drawn for */
    uint32_t crowd_context;
    uint64_t trade_ns; /* of the next trade of popularity; UINT64_MAX = never */
    uint32_t sessions;
} generator_state;

/* The order of the heap: by arrival, then by session. */
static bool turn_is_earlier(const generator_turn *a, const generator_turn *b)
{
    if (a->arrival_ns != b->arrival_ns) return a->arrival_ns < b->arrival_ns;
    return a->session < b->session;
}

static kvt_status heap_push(generator_state *state, const generator_turn *turn)
{
    void *heap = state->heap;
    kvt_status status =
        workload_grow(&heap, &state->heap_room, state->heap_count + 1, sizeof(generator_turn));
    state->heap = heap;
    if (status != KVT_OK) return status;
    size_t at = state->heap_count++;
    while (at > 0 && turn_is_earlier(turn, &state->heap[(at - 1) / 2])) {
        state->heap[at] = state->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    state->heap[at] = *turn;
    return KVT_OK;
}

static generator_turn heap_pop(generator_state *state)
{
    generator_turn top = state->heap[0], moved = state->heap[--state->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= state->heap_count) break;
        if (child + 1 < state->heap_count &&
            turn_is_earlier(&state->heap[child + 1], &state->heap[child])) {
            child++;
        }
        if (!turn_is_earlier(&state->heap[child], &moved)) break;
        state->heap[at] = state->heap[child];
        at = child;
    }
    state->heap[at] = moved;
    return top;
}

static uint32_t draw_tokens(double tokens, uint32_t most)
{
    if (!(tokens > 1.0)) return 1;
    return tokens >= (double)most ? most : (uint32_t)tokens;
}

static uint64_t draw_ns(replay_random *random, double mean_seconds)
{
    double ns = replay_random_exponential(random, mean_seconds) * 1e9;
    return ns < 1e18 ? (uint64_t)ns : UINT64_C(1000000000000000000);
}

/* Draws the next arrival. One behind the longest workload there may be ends the source. */
static void burst_draw(generator_burst *burst, replay_random *random)
{
    const replay_burst *options = burst->options;
    burst->clock_s += replay_random_exponential(random, 1.0 / options->per_s);
    double window = floor(burst->clock_s / options->window_seconds);
    double begin_s = (window + 0.5) * options->period_seconds;
    double at_s = begin_s + (burst->clock_s - window * options->window_seconds);
    burst->next_ns = UINT64_MAX;
    if (!(at_s * 1e9 < (double)REPLAY_ARRIVAL_MAX_NS)) return;
    burst->window = (uint64_t)window;
    burst->next_ns = (uint64_t)(at_s * 1e9);
}

/* Draws the first arrival of a burst; UINT64_MAX when there is none. */
static void burst_start(generator_burst *burst, const replay_burst *options, replay_random *random)
{
    *burst = (generator_burst){.options = options, .next_ns = UINT64_MAX};
    if (options->per_s > 0.0) burst_draw(burst, random);
}

/* Draws the lengths of all contexts and sums up their popularity. */
static kvt_status generator_prepare(generator_state *state)
{
    const replay_generator *options = state->options;
    state->contexts = calloc(options->contexts, sizeof *state->contexts);
    state->popularity = malloc(options->contexts * sizeof *state->popularity);
    state->of_rank = malloc(options->contexts * sizeof *state->of_rank);
    if (state->contexts == NULL || state->popularity == NULL || state->of_rank == NULL)
        return KVT_E_MEMORY;
    double sum = 0.0;
    for (uint32_t i = 0; i < options->contexts; i++) {
        double length = options->tokens_median *
                        exp(options->tokens_sigma * replay_random_normal(&state->random));
        state->contexts[i].tokens = draw_tokens(length, options->tokens_max);
        sum += pow((double)i + 1.0, -options->zipf);
        state->popularity[i] = sum;
        state->of_rank[i] = i;
    }
    burst_start(&state->scan, &options->scan, &state->random);
    burst_start(&state->crowd, &options->crowd, &state->random);
    state->crowd_window = UINT64_MAX;
    state->trade_ns = UINT64_MAX;
    if (options->drift_per_s > 0.0)
        state->trade_ns = draw_ns(&state->random, 1.0 / options->drift_per_s);
    return KVT_OK;
}

/* Draws a rank by popularity, in logarithmic time. */
static uint32_t generator_draw_rank(generator_state *state)
{
    uint32_t low = 0, high = state->options->contexts - 1;
    double point = replay_random_unit(&state->random) * state->popularity[high];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (state->popularity[middle] > point) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* A context drawn by its popularity and one drawn uniformly trade their ranks. */
static void generator_trade(generator_state *state)
{
    uint32_t one = generator_draw_rank(state);
    uint32_t other = (uint32_t)replay_random_below(&state->random, state->options->contexts);
    uint32_t context = state->of_rank[one];
    state->of_rank[one] = state->of_rank[other];
    state->of_rank[other] = context;
    state->trade_ns += draw_ns(&state->random, 1.0 / state->options->drift_per_s);
}

/* Adds blocks [begin, end) of a shared segment whose ids are consecutive; the first use makes
 * them. */
static kvt_status generator_add_shared(generator_state *state, bool used, uint32_t first,
                                       uint32_t count)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        status = used ? workload_build_dense_block(&state->builder, first + i)
                      : workload_build_new_block(&state->builder);
    }
    return status;
}

/* The shared head of a session's first request: system blocks, then the context's. */
static kvt_status generator_add_head(generator_state *state, uint32_t context)
{
    replay_workload *workload = state->builder.workload;
    uint32_t unit = state->options->block_tokens;
    uint32_t system_blocks = state->options->system_tokens / unit;
    if (!state->system_used) state->system_first = (uint32_t)workload->distinct_blocks;
    kvt_status status =
        generator_add_shared(state, state->system_used, state->system_first, system_blocks);
    if (status != KVT_OK) return status;
    state->system_used = true;
    if (context == GENERATOR_NO_CONTEXT) return KVT_OK;
    generator_context *shared = &state->contexts[context];
    if (!shared->used) {
        shared->first_block = (uint32_t)workload->distinct_blocks;
        shared->block_count =
            (state->options->system_tokens + shared->tokens) / unit - system_blocks;
    }
    status = generator_add_shared(state, shared->used, shared->first_block, shared->block_count);
    shared->used = true;
    return status;
}

/* The earlier turn's full blocks; its partial one is gone. */
static kvt_status generator_add_history(generator_state *state, uint64_t last_request)
{
    const replay_workload *workload = state->builder.workload;
    replay_request last = workload->requests[last_request];
    uint32_t full = last.input_tokens / state->options->block_tokens;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < full && status == KVT_OK; i++) {
        uint32_t id = workload->blocks[last.first_block + i];
        status = workload_build_dense_block(&state->builder, id);
    }
    return status;
}

/* Adds a turn's request with its blocks, which the next turn of the session extends. */
static kvt_status generator_add_turn(generator_state *state, generator_turn *turn)
{
    const replay_generator *options = state->options;
    replay_workload *workload = state->builder.workload;
    uint32_t output = draw_tokens(replay_random_exponential(&state->random, options->turn_tokens),
                                  REPLAY_TOKENS_MAX / 4);
    kvt_status status = workload_build_request(&state->builder, turn->arrival_ns,
                                               turn->input_tokens, output, turn->session);
    if (status != KVT_OK) return status;
    status = turn->last_request == UINT64_MAX ? generator_add_head(state, turn->context)
                                              : generator_add_history(state, turn->last_request);
    replay_request *request = &workload->requests[workload->request_count - 1];
    uint32_t unit = options->block_tokens;
    uint32_t wanted = turn->input_tokens / unit + (turn->input_tokens % unit != 0);
    while (status == KVT_OK && request->block_count < wanted) {
        status = workload_build_new_block(&state->builder);
    }
    if (status != KVT_OK) return status;

    bool last = replay_random_unit(&state->random) < 1.0 / options->turns_mean;
    uint64_t pause = draw_ns(&state->random, options->think_seconds);
    uint32_t asked = draw_tokens(replay_random_exponential(&state->random, options->turn_tokens),
                                 REPLAY_TOKENS_MAX / 4);
    uint64_t grown = (uint64_t)turn->input_tokens + output + asked;
    if (turn->context == GENERATOR_NO_CONTEXT) return KVT_OK;
    if (last || grown > REPLAY_TOKENS_MAX || pause > REPLAY_ARRIVAL_MAX_NS) return KVT_OK;
    turn->last_request = workload->request_count - 1;
    turn->input_tokens = (uint32_t)grown;
    turn->arrival_ns += pause;
    return heap_push(state, turn);
}

/* The first turn of a session on a context. */
static generator_turn generator_open_session(generator_state *state, uint64_t arrival_ns,
                                             uint32_t context)
{
    const replay_generator *options = state->options;
    uint32_t asked = draw_tokens(replay_random_exponential(&state->random, options->turn_tokens),
                                 REPLAY_TOKENS_MAX / 4);
    return (generator_turn){.arrival_ns = arrival_ns,
                            .last_request = UINT64_MAX,
                            .input_tokens =
                                options->system_tokens + state->contexts[context].tokens + asked,
                            .session = state->sessions++,
                            .context = context};
}

/* A document of a context's length, in a request of its own. */
static generator_turn generator_scan(generator_state *state)
{
    const replay_generator *options = state->options;
    double length =
        options->tokens_median * exp(options->tokens_sigma * replay_random_normal(&state->random));
    generator_turn turn = {.arrival_ns = state->scan.next_ns,
                           .last_request = UINT64_MAX,
                           .input_tokens =
                               options->system_tokens + draw_tokens(length, options->tokens_max),
                           .session = state->sessions++,
                           .context = GENERATOR_NO_CONTEXT};
    burst_draw(&state->scan, &state->random);
    return turn;
}

/* The next arrival of a crowd; all of one window begin with the same context. */
static generator_turn generator_crowd(generator_state *state)
{
    uint64_t arrival_ns = state->crowd.next_ns;
    if (state->crowd.window != state->crowd_window) {
        state->crowd_window = state->crowd.window;
        state->crowd_context =
            (uint32_t)replay_random_below(&state->random, state->options->contexts);
    }
    burst_draw(&state->crowd, &state->random);
    return generator_open_session(state, arrival_ns, state->crowd_context);
}

/* The earliest of what comes next, but trades; a turn of an open session goes before a new one. */
static generator_turn generator_next(generator_state *state, uint64_t *session_ns,
                                     double session_gap)
{
    uint64_t start_ns = *session_ns, scan_ns = state->scan.next_ns, crowd_ns = state->crowd.next_ns;
    uint64_t first_ns = start_ns < scan_ns ? start_ns : scan_ns;
    first_ns = first_ns < crowd_ns ? first_ns : crowd_ns;
    if (state->heap_count > 0 && state->heap[0].arrival_ns <= first_ns) return heap_pop(state);
    if (first_ns < start_ns && first_ns == scan_ns) return generator_scan(state);
    if (first_ns < start_ns) return generator_crowd(state);
    uint32_t context = state->of_rank[generator_draw_rank(state)];
    generator_turn turn = generator_open_session(state, start_ns, context);
    *session_ns += draw_ns(&state->random, session_gap);
    return turn;
}

static kvt_status generator_run(generator_state *state)
{
    const replay_generator *options = state->options;
    double session_gap = options->turns_mean / options->requests_per_s;
    uint64_t session_ns = draw_ns(&state->random, session_gap);
    while (state->builder.workload->request_count < options->requests) {
        while (state->trade_ns <= session_ns)
            generator_trade(state);
        generator_turn turn = generator_next(state, &session_ns, session_gap);
        if (turn.arrival_ns > REPLAY_ARRIVAL_MAX_NS) return KVT_E_ARGUMENT;
        kvt_status status = generator_add_turn(state, &turn);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* ---- from settings ---- */

#define GENERATOR_FIELD(name, member) SETTINGS_FIELD(replay_generator, name, member, .modes = 0)

static const settings_field generator_fields[] = {
    GENERATOR_FIELD("workload.rate", requests_per_s),
    GENERATOR_FIELD("workload.requests", requests),
    GENERATOR_FIELD("workload.contexts", contexts),
    GENERATOR_FIELD("workload.zipf", zipf),
    GENERATOR_FIELD("workload.tokens_median", tokens_median),
    GENERATOR_FIELD("workload.tokens_sigma", tokens_sigma),
    GENERATOR_FIELD("workload.tokens_max", tokens_max),
    GENERATOR_FIELD("workload.turns_mean", turns_mean),
    GENERATOR_FIELD("workload.turn_tokens", turn_tokens),
    GENERATOR_FIELD("workload.system_tokens", system_tokens),
    GENERATOR_FIELD("workload.think_time", think_seconds),
    GENERATOR_FIELD("replay.block_tokens", block_tokens),
    GENERATOR_FIELD("replay.seed", seed),
    GENERATOR_FIELD("workload.drift", drift_per_s),
    GENERATOR_FIELD("workload.scan_rate", scan.per_s),
    GENERATOR_FIELD("workload.scan_time", scan.window_seconds),
    GENERATOR_FIELD("workload.scan_period", scan.period_seconds),
    GENERATOR_FIELD("workload.crowd_rate", crowd.per_s),
    GENERATOR_FIELD("workload.crowd_time", crowd.window_seconds),
    GENERATOR_FIELD("workload.crowd_period", crowd.period_seconds),
};

void replay_generator_read(kvt_config *config, replay_generator *generator)
{
    memset(generator, 0, sizeof *generator);
    settings_read(config, NULL, generator_fields,
                  sizeof generator_fields / sizeof generator_fields[0], 0, generator);
    uint64_t limit = kvt_config_bytes(config, "replay.limit");
    if (limit > 0 && limit < generator->requests) generator->requests = limit;
}

static bool is_within(double value, double low, double high)
{
    return value >= low && value <= high; /* false for a value that is no number */
}

/* Times of a burst that never comes may be anything. */
static const char *burst_fault(const replay_burst *burst, const char *const faults[3])
{
    if (burst->per_s <= 0.0) return NULL;
    if (!is_within(burst->window_seconds, 1e-3, 1e6)) return faults[0];
    if (!is_within(burst->period_seconds, 1e-3, 1e6)) return faults[1];
    return burst->period_seconds < burst->window_seconds ? faults[2] : NULL;
}

static const char *generator_fault(const replay_generator *o)
{
    static const char *const scan[] = {"scan_time: 1 ms to 1e6 s", "scan_period: 1 ms to 1e6 s",
                                       "scan_period: at least workload.scan_time, up to 1e6 s"};
    static const char *const crowd[] = {"crowd_time: 1 ms to 1e6 s", "crowd_period: 1 ms to 1e6 s",
                                        "crowd_period: at least workload.crowd_time, up to 1e6 s"};
    const char *fault = burst_fault(&o->scan, scan);
    return fault != NULL ? fault : burst_fault(&o->crowd, crowd);
}

kvt_status replay_generator_check(const replay_generator *generator, char *message,
                                  size_t message_size)
{
    const size_t count = sizeof generator_fields / sizeof generator_fields[0];
    if (!settings_hold(generator_fields, count, generator, message, message_size))
        return KVT_E_ARGUMENT;
    const char *fault = generator_fault(generator);
    if (fault == NULL) return KVT_OK;
    snprintf(message, message_size, "workload.%s", fault);
    return KVT_E_ARGUMENT;
}

kvt_status replay_workload_generate(const replay_generator *generator, replay_workload *workload,
                                    char *message, size_t message_size)
{
    generator_state state = {.options = generator};
    memset(workload, 0, sizeof *workload);
    kvt_status status = replay_generator_check(generator, message, message_size);
    if (status != KVT_OK) return status;
    workload_build_start(&state.builder, workload, generator->block_tokens);
    replay_random_seed(&state.random, generator->seed);
    status = generator_prepare(&state);
    if (status == KVT_OK) status = generator_run(&state);
    /* Poisson arrivals that happen to look quantised are left as they are drawn: spreading needs
     * shared times, which nanoseconds do not give. */
    if (status == KVT_OK) status = workload_build_finish(&state.builder, generator->seed, 0);
    workload_build_free(&state.builder);
    free(state.contexts);
    free(state.popularity);
    free(state.of_rank);
    free(state.heap);
    if (status != KVT_OK) {
        replay_workload_free(workload);
        snprintf(message, message_size, "workload: %s",
                 status == KVT_E_MEMORY  ? "out of memory"
                 : status == KVT_E_SPACE ? "more block references than a replay can hold"
                                         : "the arrivals span more than 100 days");
        return status;
    }
    snprintf(workload->name, sizeof workload->name, "poisson, %u contexts, zipf %g",
             generator->contexts, generator->zipf);
    return KVT_OK;
}
