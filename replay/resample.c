/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resample.c - session bootstrap: sessions of a trace with replacement, their blocks made distinct.
 *
 * Requests of a trace are not exchangeable, sessions nearly are: their requests share blocks with
 * each other and with nobody else but the stem.
 *
 *     prefix    [s0 s1 | b2 b3 b4 ...]     s: stem, the same id in all copies
 *     copy k    [s0 s1 | (k,b2) (k,b3) ...]
 *
 * One thread.
 */
#include "random.h"
#include "workload.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLE_NONE   UINT32_MAX
#define RESAMPLE_STREAM UINT64_C(0x73657373696f6e)

typedef struct resample_state {
    const replay_workload *trace;
    uint32_t stem;    /* blocks */
    uint64_t stem_of; /* a request that begins with it */
    uint32_t *group;  /* of each request */
    uint64_t *first;  /* by group, and one past the last: where its requests begin in order */
    uint32_t *order;  /* requests, group after group, in arrival order within one */
    uint32_t group_count;
    workload_builder builder;
} resample_state;

static const uint32_t *resample_prefix(const replay_workload *trace, uint64_t request)
{
    return &trace->blocks[trace->requests[request].first_block];
}

/* How many blocks of the stem a request begins with. Ids stand for whole prefixes, so the last one
 * that agrees tells. */
static uint32_t resample_shared(const resample_state *state, uint64_t request)
{
    const uint32_t *prefix = resample_prefix(state->trace, request);
    const uint32_t *stem = resample_prefix(state->trace, state->stem_of);
    uint32_t length = state->trace->requests[request].block_count;
    if (length > state->stem) length = state->stem;
    while (length > 0 && prefix[length - 1] != stem[length - 1])
        length--;
    return length;
}

/* Extends the stem while one block continues it in at least half of all requests. */
static kvt_status resample_find_stem(resample_state *state)
{
    const replay_workload *trace = state->trace;
    uint32_t *uses = calloc((size_t)trace->distinct_blocks + 1, sizeof *uses);
    if (uses == NULL) return KVT_E_MEMORY;
    for (bool longer = true; longer;) {
        uint64_t of = state->stem_of;
        longer = false;
        for (uint64_t i = 0; i < trace->request_count; i++) {
            if (trace->requests[i].block_count <= state->stem) continue;
            if (resample_shared(state, i) < state->stem) continue;
            if (++uses[resample_prefix(trace, i)[state->stem]] * 2ull < trace->request_count)
                continue;
            of = i;
            longer = true;
        }
        state->stem_of = of;
        state->stem += longer;
    }
    free(uses);
    return KVT_OK;
}

/* Numbers the sessions by first appearance. */
static kvt_status resample_group(resample_state *state)
{
    const replay_workload *trace = state->trace;
    bool conversations = trace->conversations_per_s > 0.0;
    kvt_status status = conversations ? KVT_OK : resample_find_stem(state);
    if (status != KVT_OK) return status;
    uint64_t keys = trace->distinct_blocks + 1;
    for (uint64_t i = 0; conversations && i < trace->request_count; i++)
        if (trace->requests[i].session >= keys) keys = (uint64_t)trace->requests[i].session + 1;
    uint32_t *named = malloc((size_t)keys * sizeof *named);
    if (named == NULL) return KVT_E_MEMORY;
    memset(named, 0xff, (size_t)keys * sizeof *named);
    for (uint64_t i = 0; i < trace->request_count; i++) {
        const replay_request *request = &trace->requests[i];
        uint32_t at = resample_shared(state, i), fresh = RESAMPLE_NONE, *name = &fresh;
        if (conversations) {
            name = &named[request->session];
        } else if (request->block_count > at) {
            name = &named[resample_prefix(trace, i)[at]];
        }
        if (*name == RESAMPLE_NONE) *name = state->group_count++;
        state->group[i] = *name;
    }
    free(named);
    return KVT_OK;
}

static kvt_status resample_index(resample_state *state)
{
    uint64_t count = state->trace->request_count;
    state->group = malloc((size_t)(count + 1) * sizeof *state->group);
    state->order = malloc((size_t)(count + 1) * sizeof *state->order);
    if (state->group == NULL || state->order == NULL) return KVT_E_MEMORY;
    kvt_status status = resample_group(state);
    if (status != KVT_OK) return status;
    state->first = calloc((size_t)state->group_count + 2, sizeof *state->first);
    if (state->first == NULL) return KVT_E_MEMORY;
    /* Counts one place further on, so that filling leaves each begin where it belongs. */
    for (uint64_t i = 0; i < count; i++)
        state->first[state->group[i] + 2]++;
    for (uint32_t g = 2; g < state->group_count + 2; g++)
        state->first[g] += state->first[g - 1];
    for (uint64_t i = 0; i < count; i++)
        state->order[state->first[state->group[i] + 1]++] = (uint32_t)i;
    return KVT_OK;
}

/* Ids of copies lie above all of the trace's, which the stem keeps. */
static kvt_status resample_copy(resample_state *state, uint32_t group, uint32_t copy,
                                uint64_t start_ns)
{
    const replay_workload *trace = state->trace;
    bool conversations = trace->conversations_per_s > 0.0;
    uint64_t base_ns = trace->requests[state->order[state->first[group]]].arrival_ns;
    for (uint64_t i = state->first[group]; i < state->first[group + 1]; i++) {
        const replay_request *request = &trace->requests[state->order[i]];
        const uint32_t *prefix = &trace->blocks[request->first_block];
        uint32_t shared = resample_shared(state, state->order[i]);
        uint64_t arrival_ns = request->arrival_ns;
        if (conversations) arrival_ns = start_ns + (arrival_ns - base_ns);
        kvt_status status = workload_build_request(
            &state->builder, arrival_ns, request->input_tokens, request->output_tokens, copy);
        for (uint32_t j = 0; j < request->block_count && status == KVT_OK; j++) {
            uint64_t id = prefix[j];
            if (j >= shared) id |= ((uint64_t)copy + 1) << 32;
            status = workload_build_block(&state->builder, id);
        }
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static kvt_status resample_draw(resample_state *state, uint64_t seed, uint32_t sessions)
{
    const replay_workload *trace = state->trace;
    replay_random random;
    double start_s = 0.0;
    replay_random_seed(&random, seed ^ RESAMPLE_STREAM);
    for (uint32_t copy = 0; copy < sessions; copy++) {
        uint32_t group = (uint32_t)replay_random_below(&random, state->group_count);
        if (trace->conversations_per_s > 0.0) {
            start_s += replay_random_exponential(&random, 1.0 / trace->conversations_per_s);
        }
        kvt_status status = resample_copy(state, group, copy, (uint64_t)(start_s * 1e9));
        if (status != KVT_OK) return status;
    }
    return workload_build_finish(&state->builder, seed, 0);
}

kvt_status replay_resample(const replay_workload *trace, uint64_t seed, uint32_t sessions,
                           replay_workload *workload)
{
    assert(trace != NULL && workload != NULL && trace->request_count > 0);
    resample_state state = {.trace = trace};
    workload_build_start(&state.builder, workload, trace->block_tokens);
    kvt_status status = resample_index(&state);
    if (sessions == 0) sessions = state.group_count;
    if (status == KVT_OK) status = resample_draw(&state, seed, sessions);
    workload_build_free(&state.builder);
    free(state.group);
    free(state.order);
    free(state.first);
    if (status != KVT_OK) {
        replay_workload_free(workload);
        return status;
    }
    memcpy(workload->name, trace->name, sizeof workload->name);
    workload->merged = trace->merged;
    memcpy(workload->note, trace->note, sizeof workload->note);
    workload->conversations_per_s = trace->conversations_per_s;
    return KVT_OK;
}
