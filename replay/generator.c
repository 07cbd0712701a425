/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generator.c - a Poisson workload of sessions over popular contexts.
 *
 * A path is [system prompt | context | turns of one session]. A full block belongs to the segment
 * that its last token lies in: system blocks are shared by all, context blocks by the sessions on
 * that context, the rest by the turns of one session. A partial last block is private to its
 * request, because its content goes on differently in the next turn. A turn's input holds all
 * earlier inputs and answers.
 *
 * Two event sources run in time order: the next session's start, and a heap of the next turns of
 * open sessions. Only integers leave the draws (nanoseconds, tokens), so equal seeds give equal
 * workloads wherever log and exp agree to the last printed nanosecond. One thread.
 */
#include "random.h"
#include "workload_build.h"

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

/* One open session: its next turn. */
typedef struct generator_turn {
    uint64_t arrival_ns;
    uint64_t last_request; /* index of the previous turn's request, or UINT64_MAX */
    uint32_t input_tokens;
    uint32_t session;
    uint32_t context;
} generator_turn;

typedef struct generator_state {
    const replay_generator *options;
    workload_builder builder;
    replay_random random;
    generator_context *contexts;
    double *popularity;   /* cumulative, contexts entries */
    generator_turn *heap; /* by (arrival, session) */
    uint64_t heap_room;
    size_t heap_count;
    uint32_t system_first; /* dense id of the system prompt's first block */
    bool system_used;
} generator_state;

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

static kvt_status generator_prepare(generator_state *state)
{
    const replay_generator *options = state->options;
    state->contexts = calloc(options->contexts, sizeof *state->contexts);
    state->popularity = malloc(options->contexts * sizeof *state->popularity);
    if (state->contexts == NULL || state->popularity == NULL) return KVT_E_MEMORY;
    double sum = 0.0;
    for (uint32_t i = 0; i < options->contexts; i++) {
        double length = options->tokens_median *
                        exp(options->tokens_sigma * replay_random_normal(&state->random));
        state->contexts[i].tokens = draw_tokens(length, options->tokens_max);
        sum += pow((double)i + 1.0, -options->zipf);
        state->popularity[i] = sum;
    }
    return KVT_OK;
}

static uint32_t generator_draw_context(generator_state *state)
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
    generator_context *shared = &state->contexts[context];
    uint32_t unit = state->options->block_tokens;
    uint32_t system_blocks = state->options->system_tokens / unit;
    if (!state->system_used) state->system_first = (uint32_t)workload->distinct_blocks;
    kvt_status status =
        generator_add_shared(state, state->system_used, state->system_first, system_blocks);
    if (status != KVT_OK) return status;
    state->system_used = true;
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
    if (last || grown > REPLAY_TOKENS_MAX || pause > REPLAY_ARRIVAL_MAX_NS) return KVT_OK;
    turn->last_request = workload->request_count - 1;
    turn->input_tokens = (uint32_t)grown;
    turn->arrival_ns += pause;
    return heap_push(state, turn);
}

static generator_turn generator_open_session(generator_state *state, uint64_t arrival_ns,
                                             uint32_t session)
{
    const replay_generator *options = state->options;
    uint32_t context = generator_draw_context(state);
    uint32_t asked = draw_tokens(replay_random_exponential(&state->random, options->turn_tokens),
                                 REPLAY_TOKENS_MAX / 4);
    return (generator_turn){.arrival_ns = arrival_ns,
                            .last_request = UINT64_MAX,
                            .input_tokens =
                                options->system_tokens + state->contexts[context].tokens + asked,
                            .session = session,
                            .context = context};
}

static kvt_status generator_run(generator_state *state)
{
    const replay_generator *options = state->options;
    double session_gap = options->turns_mean / options->requests_per_s;
    uint64_t session_ns = draw_ns(&state->random, session_gap);
    uint32_t sessions = 0;
    while (state->builder.workload->request_count < options->requests) {
        generator_turn turn;
        if (state->heap_count > 0 && state->heap[0].arrival_ns <= session_ns) {
            turn = heap_pop(state);
        } else {
            turn = generator_open_session(state, session_ns, sessions++);
            session_ns += draw_ns(&state->random, session_gap);
        }
        if (turn.arrival_ns > REPLAY_ARRIVAL_MAX_NS) return KVT_E_ARGUMENT;
        kvt_status status = generator_add_turn(state, &turn);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static const char *generator_fault(const replay_generator *o)
{
    if (!(o->requests_per_s > 0.0 && o->requests_per_s <= 1e6))
        return "rate: above 0, up to 1e6 per second";
    if (o->requests < 1 || o->requests > (1u << 24)) return "requests: 1 to 2^24";
    if (o->contexts < 1 || o->contexts > (1u << 20)) return "contexts: 1 to 2^20";
    if (!(o->zipf >= 0.0 && o->zipf <= 10.0)) return "zipf: 0 to 10";
    if (!(o->tokens_median >= 1.0 && o->tokens_median <= 1e7)) return "tokens_median: 1 to 1e7";
    if (!(o->tokens_sigma >= 0.0 && o->tokens_sigma <= 4.0)) return "tokens_sigma: 0 to 4";
    if (o->tokens_max < 1 || o->tokens_max > (1u << 22)) return "tokens_max: 1 to 2^22";
    if (!(o->turns_mean >= 1.0 && o->turns_mean <= 1e4)) return "turns_mean: 1 to 10000";
    if (!(o->turn_tokens >= 1.0 && o->turn_tokens <= 1e5)) return "turn_tokens: 1 to 100000";
    if (o->system_tokens > (1u << 20)) return "system_tokens: 0 to 2^20";
    if (!(o->think_seconds >= 0.0 && o->think_seconds <= 1e5)) return "think_time: 0 to 1e5 s";
    if (o->block_tokens < 1 || o->block_tokens > 65536) return "block_tokens: 1 to 65536";
    return NULL;
}

kvt_status replay_generator_check(const replay_generator *generator, char *message,
                                  size_t message_size)
{
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
    free(state.heap);
    if (status != KVT_OK) {
        replay_workload_free(workload);
        snprintf(message, message_size, "workload: %s",
                 status == KVT_E_MEMORY  ? "out of memory"
                 : status == KVT_E_SPACE ? "more block references than a replay can hold"
                                         : "the arrivals span more than 31 days");
        return status;
    }
    snprintf(workload->name, sizeof workload->name, "poisson, %u contexts, zipf %g",
             generator->contexts, generator->zipf);
    return KVT_OK;
}
