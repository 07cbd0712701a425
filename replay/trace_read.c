/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_read.c - lines out of fread and an optional streaming zstd decoder, and traces of JSON
 * lines out of those.
 * One thread per reader.
 */
#include "trace_read.h"

#include "random.h"
#include "workload.h"

#include "estimator/exchange/file_kind.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LINES_INPUT_BYTES (128u << 10)
#define LINES_CHUNK_BYTES (256u << 10)

struct replay_line_reader {
    FILE *file;
    ZSTD_DStream *decoder; /* NULL = plain text */
    const char *path;
    uint8_t *input; /* compressed bytes, LINES_INPUT_BYTES */
    ZSTD_inBuffer input_view;
    bool frame_open; /* the decoder is inside a frame */
    bool input_ended;
    char *text; /* decoded bytes not yet returned: text[begin..end) */
    size_t text_room;
    size_t begin, end;
    size_t scanned; /* bytes after begin that hold no line end */
    uint64_t number;
    char *path_copy;
};

static kvt_status lines_fail(const replay_line_reader *reader, kvt_status status,
                             const char *reason, char *message, size_t message_size)
{
    snprintf(message, message_size, "%s:%llu: %s", reader->path,
             (unsigned long long)reader->number + 1, reason);
    return status;
}

kvt_status replay_lines_open(const char *path, replay_line_reader **reader_out, char *message,
                             size_t message_size)
{
    static const uint8_t zstd_magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    kvt_status status = KVT_E_MEMORY;
    snprintf(message, message_size, "%s: out of memory", path);
    replay_line_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) return KVT_E_MEMORY;
    reader->input = malloc(LINES_INPUT_BYTES);
    reader->path_copy = strdup(path);
    if (reader->input == NULL || reader->path_copy == NULL) goto fail;
    reader->path = reader->path_copy;
    reader->file = fopen(path, "rb");
    if (reader->file == NULL) {
        status = errno == ENOENT || errno == ENOTDIR ? KVT_E_GONE : KVT_E_IO;
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        goto fail;
    }
    reader->input_view.src = reader->input;
    reader->input_view.size = fread(reader->input, 1, LINES_INPUT_BYTES, reader->file);
    if (ferror(reader->file)) {
        status = KVT_E_IO;
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (reader->input_view.size >= 4 && memcmp(reader->input, zstd_magic, 4) == 0) {
        reader->decoder = ZSTD_createDStream();
        if (reader->decoder == NULL) goto fail;
        size_t set = ZSTD_DCtx_setParameter(reader->decoder, ZSTD_d_windowLogMax, 27);
        assert(!ZSTD_isError(set));
        (void)set;
    } else {
        const char *kind = file_kind_of(reader->input, reader->input_view.size);
        status = KVT_E_PARSE;
        if (kind != NULL) snprintf(message, message_size, "%s:1: this is %s", path, kind);
        if (kind != NULL) goto fail;
    }
    *reader_out = reader;
    message[0] = '\0';
    return KVT_OK;
fail:
    replay_lines_close(reader);
    return status;
}

/* Fills the input view when it is used up. KVT_OK, or KVT_E_IO. */
static kvt_status lines_refill(replay_line_reader *reader, char *message, size_t message_size)
{
    if (reader->input_view.pos < reader->input_view.size || reader->input_ended) return KVT_OK;
    reader->input_view.pos = 0;
    reader->input_view.size = fread(reader->input, 1, LINES_INPUT_BYTES, reader->file);
    if (reader->input_view.size == 0) {
        if (ferror(reader->file)) {
            return lines_fail(reader, KVT_E_IO, "read failed", message, message_size);
        }
        reader->input_ended = true;
    }
    return KVT_OK;
}

/* Appends decoded bytes to text. KVT_OK; KVT_END when the input is used up; an error. */
static kvt_status lines_decode(replay_line_reader *reader, char *message, size_t message_size)
{
    if (reader->begin > 0) {
        memmove(reader->text, reader->text + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->text_room - reader->end < LINES_CHUNK_BYTES + 1) {
        size_t room = reader->text_room * 2 + LINES_CHUNK_BYTES + 1;
        char *grown = realloc(reader->text, room);
        if (grown == NULL) {
            return lines_fail(reader, KVT_E_MEMORY, "out of memory", message, message_size);
        }
        reader->text = grown;
        reader->text_room = room;
    }
    kvt_status status = lines_refill(reader, message, message_size);
    if (status != KVT_OK) return status;
    ZSTD_inBuffer *view = &reader->input_view;
    if (reader->decoder == NULL) {
        if (reader->input_ended) return KVT_END;
        size_t room = reader->text_room - reader->end - 1, bytes = view->size - view->pos;
        if (bytes > room) bytes = room;
        memcpy(reader->text + reader->end, reader->input + view->pos, bytes);
        view->pos += bytes;
        reader->end += bytes;
        return KVT_OK;
    }
    if (reader->input_ended && !reader->frame_open) return KVT_END;
    ZSTD_outBuffer out = {.dst = reader->text + reader->end, .size = LINES_CHUNK_BYTES};
    size_t rest = ZSTD_decompressStream(reader->decoder, &out, view);
    if (ZSTD_isError(rest)) {
        return lines_fail(reader, KVT_E_PARSE, "damaged zstd data", message, message_size);
    }
    reader->frame_open = rest != 0;
    reader->end += out.pos;
    if (reader->input_ended && out.pos == 0 && rest != 0) {
        return lines_fail(reader, KVT_E_PARSE, "zstd data ends inside a frame", message,
                          message_size);
    }
    return KVT_OK;
}

kvt_status replay_lines_next(replay_line_reader *reader, char **line_out, size_t *bytes_out,
                             char *message, size_t message_size)
{
    char *newline = NULL;
    for (;;) {
        size_t have = reader->end - reader->begin;
        if (have > reader->scanned) {
            newline = memchr(reader->text + reader->begin + reader->scanned, '\n',
                             have - reader->scanned);
        }
        reader->scanned = have;
        size_t length = newline != NULL ? (size_t)(newline - reader->text) - reader->begin : have;
        if (length > REPLAY_LINE_BYTES_MAX) {
            return lines_fail(reader, KVT_E_PARSE, "line longer than 4 MiB", message, message_size);
        }
        if (newline != NULL) break;
        kvt_status status = lines_decode(reader, message, message_size);
        if (status == KVT_END && have > 0) break;
        if (status != KVT_OK) return status;
    }
    char *line = reader->text + reader->begin;
    size_t bytes = newline != NULL ? (size_t)(newline - line) : reader->end - reader->begin;
    reader->begin += bytes + (newline != NULL);
    reader->scanned = 0;
    if (memchr(line, '\0', bytes) != NULL) {
        return lines_fail(reader, KVT_E_PARSE, "the line holds a NUL byte", message, message_size);
    }
    if (bytes > 0 && line[bytes - 1] == '\r') bytes--;
    line[bytes] = '\0';
    reader->number++;
    *line_out = line;
    *bytes_out = bytes;
    return KVT_OK;
}

uint64_t replay_lines_number(const replay_line_reader *reader)
{
    return reader->number;
}

void replay_lines_close(replay_line_reader *reader)
{
    if (reader == NULL) return;
    if (reader->file != NULL) fclose(reader->file);
    if (reader->decoder != NULL) ZSTD_freeDStream(reader->decoder);
    free(reader->input);
    free(reader->text);
    free(reader->path_copy);
    free(reader);
}

/* ---- a trace ---- */

typedef struct trace_reader {
    replay_line_reader *lines;
    const char *path;
    const replay_trace_options *options;
    workload_builder builder;
    char *message;
    size_t message_size;
} trace_reader;

/* Writes "path:line: reason" and returns KVT_E_PARSE. */
static kvt_status trace_fail(trace_reader *reader, const char *reason)
{
    snprintf(reader->message, reader->message_size, "%s:%llu: %s", reader->path,
             (unsigned long long)replay_lines_number(reader->lines), reason);
    return KVT_E_PARSE;
}

/* Turns what the builder said into a message; KVT_OK stays. */
static kvt_status trace_check_build(trace_reader *reader, kvt_status status)
{
    switch (status) {
    case KVT_OK: return KVT_OK;
    case KVT_E_PARSE: return trace_fail(reader, "hash_ids names one block twice");
    case KVT_E_SPACE: return trace_fail(reader, "more block references than a replay can hold");
    default:
        snprintf(reader->message, reader->message_size, "%s: out of memory", reader->path);
        return status;
    }
}

/* ---- JSON lines ---- */

/*
 * One JSON object per line: Mooncake's traces and the agentic conversations.
 *
 * Mooncake: {"timestamp": ms from the start, "input_length", "output_length", "hash_ids": [...]},
 * blocks of 512 tokens, the last one partial: ceil(input_length / 512) ids. Agentic: the same and
 * "conv"; blocks of 64 tokens, complete ones only: floor(input_length / 64); timestamps start anew
 * in each conversation, whose starts are drawn (Poisson, by the seed). One thread.
 */

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

/* A whole number from `least` to REPLAY_TOKENS_MAX. */
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

/* Adds the request's ids and checks their number against its tokens. */
static kvt_status jsonl_add_blocks(trace_reader *reader, const jsonl_state *state,
                                   const json_t *ids, uint32_t input_tokens)
{
    if (!json_is_array(ids)) return trace_fail(reader, "hash_ids is missing or not an array");
    uint32_t unit = state->agentic ? JSONL_BLOCK_AGENTIC : JSONL_BLOCK_MOONCAKE;
    uint32_t whole = input_tokens / unit;
    uint32_t wanted = state->agentic ? whole : whole + (input_tokens % unit != 0);
    size_t count = json_array_size(ids);
    if (count != wanted) {
        char reason[160];
        (void)snprintf(reason, sizeof reason,
                       "hash_ids holds %zu ids, and %u tokens in blocks of %u make %u, rounded %s: "
                       "blocks of another size cannot be replayed",
                       count, (unsigned)input_tokens, (unsigned)unit, (unsigned)wanted,
                       state->agentic ? "down" : "up");
        return trace_fail(reader, reason);
    }
    const uint32_t merged = reader->builder.workload->block_tokens / unit;
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0) {
            return trace_fail(reader, "a hash id is not an integer from 0 to 2^63-1");
        }
        /* An id stands for the whole prefix, so the last one of a merged block is that of all. */
        if ((i + 1) % merged != 0) continue;
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
        return trace_fail(reader, "timestamp is missing or not 0 to 31 days of milliseconds: it "
                                  "counts from the begin of the trace, not from 1970");
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
        const uint32_t unit = state->agentic ? JSONL_BLOCK_AGENTIC : JSONL_BLOCK_MOONCAKE;
        const uint32_t merged = reader->options->merge_to / unit;
        reader->builder.workload->block_tokens = unit * (merged > 0 ? merged : 1);
        if (state->agentic) {
            reader->builder.workload->conversations_per_s = reader->options->conversations_per_s;
        }
    }
    kvt_status status = jsonl_add_request(reader, state, object);
    json_decref(object);
    return status;
}

/* Reads every line; the first one is given. */
static kvt_status trace_read_jsonl(trace_reader *reader, char *line, size_t bytes)
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

/* ---- a file ---- */

/* Names the workload after the file. */
static void trace_name(replay_workload *workload, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(workload->name, sizeof workload->name, "%s", slash != NULL ? slash + 1 : path);
}

/* Reads the first line, which tells the format, and all others. */
static kvt_status trace_read_lines(trace_reader *reader)
{
    char *line;
    size_t bytes;
    kvt_status status =
        replay_lines_next(reader->lines, &line, &bytes, reader->message, reader->message_size);
    if (status == KVT_END) {
        snprintf(reader->message, reader->message_size, "%s:1: the file is empty", reader->path);
        return KVT_E_PARSE;
    }
    if (status != KVT_OK) return status;
    if (line[0] == '{') return trace_read_jsonl(reader, line, bytes);
    return trace_fail(reader, "the first line is no JSON object: a trace is one object per line");
}

kvt_status replay_workload_read(const char *path, const replay_trace_options *options,
                                replay_workload *workload, char *message, size_t message_size)
{
    assert(path != NULL && options != NULL && workload != NULL && message_size > 0);
    trace_reader reader = {
        .path = path, .options = options, .message = message, .message_size = message_size};
    workload_build_start(&reader.builder, workload, 0);
    reader.builder.keep_steps = options->keep_steps;
    kvt_status status = replay_lines_open(path, &reader.lines, message, message_size);
    if (status == KVT_OK) status = trace_read_lines(&reader);
    if (status == KVT_OK && workload->request_count == 0) {
        snprintf(message, message_size, "%s: no requests", path);
        status = KVT_E_PARSE;
    }
    if (status == KVT_OK) {
        status = workload_build_finish(&reader.builder, options->seed, options->limit);
        if (status != KVT_OK) snprintf(message, message_size, "%s: out of memory", path);
    }
    replay_lines_close(reader.lines);
    workload_build_free(&reader.builder);
    if (status != KVT_OK) {
        replay_workload_free(workload);
        return status;
    }
    trace_name(workload, path);
    return KVT_OK;
}
