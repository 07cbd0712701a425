/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_jsonl.c - one JSON object per line: Mooncake's traces and the agentic conversations.
 *
 * Mooncake: {"timestamp": ms from the start, "input_length", "output_length", "hash_ids": [...]},
 * blocks of 512 tokens, the last one partial: ceil(input_length / 512) ids.
 * Agentic: the same and "conv"; blocks of 64 tokens, complete ones only: floor(input_length / 64);
 * timestamps start anew in each conversation, whose starts are drawn (Poisson, by the seed).
 * One thread.
 */
#include "random.h"
#include "trace_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JSONL_BLOCK_MOONCAKE 512u
#define JSONL_BLOCK_AGENTIC  64u

typedef struct jsonl_state {
    bool agentic;
    uint64_t last_ns; /* of the trace, or of the conversation, before its start is added */
    char conversation[64];
    uint32_t session;
    double start_seconds; /* of the conversation */
    replay_random random;
} jsonl_state;

/* Milliseconds from 0 up to REPLAY_ARRIVAL_MAX_NS; integers stay exact. */
static bool jsonl_read_time(const json_t *value, uint64_t *ns_out)
{
    if (json_is_integer(value)) {
        json_int_t ms = json_integer_value(value);
        if (ms < 0 || (uint64_t)ms > REPLAY_ARRIVAL_MAX_NS / 1000000) return false;
        *ns_out = (uint64_t)ms * 1000000;
        return true;
    }
    if (!json_is_real(value)) return false;
    double ns = json_real_value(value) * 1e6;
    if (!(ns >= 0.0 && ns <= (double)REPLAY_ARRIVAL_MAX_NS)) return false;
    *ns_out = (uint64_t)ns;
    return true;
}

static bool jsonl_read_tokens(const json_t *value, uint32_t least, uint32_t *tokens_out)
{
    if (!json_is_integer(value)) return false;
    json_int_t tokens = json_integer_value(value);
    if (tokens < (json_int_t)least || tokens > (json_int_t)REPLAY_TOKENS_MAX) return false;
    *tokens_out = (uint32_t)tokens;
    return true;
}

/* A conversation's first line draws its start; its clock then only advances. */
static kvt_status jsonl_enter_conversation(trace_reader *reader, jsonl_state *state,
                                           const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "conv"));
    if (name == NULL) return trace_fail(reader, "conv is missing or not a string");
    if (strlen(name) >= sizeof state->conversation) return trace_fail(reader, "conv is too long");
    if (strcmp(name, state->conversation) == 0) return KVT_OK;
    memcpy(state->conversation, name, strlen(name) + 1);
    state->session++;
    state->last_ns = 0;
    double gap = 1.0 / reader->options->conversations_per_s;
    state->start_seconds += replay_random_exponential(&state->random, gap);
    return KVT_OK;
}

static kvt_status jsonl_add_blocks(trace_reader *reader, const jsonl_state *state,
                                   const json_t *ids, uint32_t input_tokens)
{
    if (!json_is_array(ids)) return trace_fail(reader, "hash_ids is missing or not an array");
    uint32_t unit = state->agentic ? JSONL_BLOCK_AGENTIC : JSONL_BLOCK_MOONCAKE;
    uint32_t whole = input_tokens / unit;
    uint32_t wanted = state->agentic ? whole : whole + (input_tokens % unit != 0);
    size_t count = json_array_size(ids);
    if (count != wanted) {
        return trace_fail(reader, state->agentic
                                      ? "hash_ids must hold input_length / 64 ids, rounded down"
                                      : "hash_ids must hold input_length / 512 ids, rounded up");
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0) {
            return trace_fail(reader, "a hash id is not an integer from 0 to 2^63-1");
        }
        kvt_status status =
            workload_build_block(&reader->builder, (uint64_t)json_integer_value(id));
        if (status != KVT_OK) return trace_check_build(reader, status);
    }
    return KVT_OK;
}

static kvt_status jsonl_add_request(trace_reader *reader, jsonl_state *state, const json_t *object)
{
    uint64_t time_ns;
    uint32_t input, output;
    if (!json_is_object(object)) return trace_fail(reader, "not a JSON object");
    if (!jsonl_read_time(json_object_get(object, "timestamp"), &time_ns)) {
        return trace_fail(reader, "timestamp is missing or not 0 to 31 days of milliseconds");
    }
    if (!jsonl_read_tokens(json_object_get(object, "input_length"), 1, &input)) {
        return trace_fail(reader, "input_length is missing or not an integer from 1 to 2^24");
    }
    if (!jsonl_read_tokens(json_object_get(object, "output_length"), 0, &output)) {
        return trace_fail(reader, "output_length is missing or not an integer from 0 to 2^24");
    }
    if (state->agentic) {
        kvt_status status = jsonl_enter_conversation(reader, state, object);
        if (status != KVT_OK) return status;
    }
    if (time_ns < state->last_ns) return trace_fail(reader, "timestamp is before the one above");
    state->last_ns = time_ns;
    double arrival = (double)time_ns + state->start_seconds * 1e9;
    if (arrival > (double)REPLAY_ARRIVAL_MAX_NS) {
        return trace_fail(reader, "the trace is longer than 31 days");
    }
    if (state->agentic) time_ns = (uint64_t)arrival;
    uint32_t session =
        state->agentic ? state->session : (uint32_t)reader->builder.workload->request_count;
    kvt_status status = workload_build_request(&reader->builder, time_ns, input, output, session);
    if (status != KVT_OK) return trace_check_build(reader, status);
    return jsonl_add_blocks(reader, state, json_object_get(object, "hash_ids"), input);
}

static kvt_status jsonl_add_line(trace_reader *reader, jsonl_state *state, const char *line,
                                 size_t bytes)
{
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) {
        char reason[JSON_ERROR_TEXT_LENGTH + 32];
        snprintf(reason, sizeof reason, "column %d: %s", error.column, error.text);
        return trace_fail(reader, reason);
    }
    if (reader->builder.workload->request_count == 0) {
        state->agentic = json_object_get(object, "conv") != NULL;
        reader->builder.workload->block_tokens =
            state->agentic ? JSONL_BLOCK_AGENTIC : JSONL_BLOCK_MOONCAKE;
        if (state->agentic) {
            reader->builder.workload->conversations_per_s = reader->options->conversations_per_s;
        }
    }
    kvt_status status = jsonl_add_request(reader, state, object);
    json_decref(object);
    return status;
}

kvt_status trace_read_jsonl(trace_reader *reader, char *line, size_t bytes)
{
    jsonl_state state = {0};
    kvt_status status = KVT_OK;
    replay_random_seed(&state.random, reader->options->seed ^ UINT64_C(0x636f6e76));
    for (;;) {
        /* Lines of nothing but blanks at the end are how editors leave files. */
        if (line[strspn(line, " \t")] != '\0') {
            status = jsonl_add_line(reader, &state, line, bytes);
            if (status != KVT_OK) return status;
        }
        /* A trace with one clock is cut while reading; others only after they are put in order. */
        uint64_t limit = reader->options->limit;
        if (!state.agentic && limit > 0 && reader->builder.workload->request_count >= limit) {
            return KVT_OK;
        }
        status =
            replay_lines_next(reader->lines, &line, &bytes, reader->message, reader->message_size);
        if (status == KVT_END) return KVT_OK;
        if (status != KVT_OK) return status;
    }
}
