/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_json.c - traces of one JSON object per line.
 *
 *   Mooncake    {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
 *   Dynamo      the same with ids of 64 bits, and turns: "session_id", "delay" (ms) for "timestamp"
 *   Bailian     the same with "chat_id" and "parent_chat_id", and seconds
 *   agentic     the same with "conv", whose clock starts anew in each conversation
 *
 * The first row tells which. One thread per reader.
 */
#include "trace_rows.h"

#include "base/nearest.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_ROW                                                                                   \
    "{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens} "                    \
    "with \"hash_ids\" or \"session_id\""

typedef struct json_rows {
    trace_reader *reader;
    const char *session; /* the member that names sessions; NULL: rows have none */
    bool chats;          /* rows name their parents */
    char *wide;          /* a line with integers above 2^63-1 as strings */
    size_t wide_room;
} json_rows;

static const char *const json_members[] = {"timestamp", "input_length", "output_length",
                                           "hash_ids",  "session_id",   "delay",
                                           "chat_id",   "conv",         "parent_chat_id"};

/* A member that is missing or wrong, and what it was probably called. */
static kvt_status json_fail_member(json_rows *rows, json_t *object, const char *name,
                                   const char *wanted)
{
    char reason[256];
    nearest search = {.text = name, .length = strlen(name)};
    const char *key;
    json_t *value;
    const bool there = json_object_get(object, name) != NULL;
    json_object_foreach(object, key, value)
    {
        /* Another member of the format is not this one, misspelt. */
        bool known = there;
        for (size_t i = 0; i < sizeof json_members / sizeof *json_members; i++)
            known |= strcmp(json_members[i], key) == 0;
        if (!known) nearest_offer(&search, key);
    }
    /* The first row of a file that nobody wrote as a trace. */
    const bool foreign =
        rows->reader->builder.workload->request_count == 0 && !there && search.best == NULL;
    snprintf(reason, sizeof reason, "%s is %s%s%s%.80s%s%s", name, there ? "not " : "missing",
             there ? wanted : "", search.best != NULL ? "; '" : "",
             search.best != NULL ? search.best : "", search.best != NULL ? "' is there" : "",
             foreign ? ": a row is " JSON_ROW : "");
    return trace_fail(rows->reader, reason);
}

/* A whole number from `least` to REPLAY_TOKENS_MAX. */
static bool json_read_tokens(const json_t *value, uint32_t least, uint32_t *tokens_out)
{
    if (!json_is_integer(value)) return false;
    json_int_t tokens = json_integer_value(value);
    if (tokens < (json_int_t)least || tokens > (json_int_t)REPLAY_TOKENS_MAX) return false;
    *tokens_out = (uint32_t)tokens;
    return true;
}

static kvt_status json_read_instant(json_rows *rows, const json_t *object, trace_row *row)
{
    trace_reader *reader = rows->reader;
    const json_t *value = json_object_get(object, "timestamp");
    const json_t *pause = json_object_get(object, "delay");
    if (pause != NULL && !json_is_null(pause)) {
        const double ns = json_is_number(pause) ? json_number_value(pause) * 1e6 : -1.0;
        if (!(ns >= 0.0 && ns <= (double)REPLAY_ARRIVAL_MAX_NS))
            return trace_fail(reader, "delay is not 0 to 100 days of milliseconds");
        row->pause_ns = (uint64_t)ns;
        row->has_pause = true;
    }
    if (value == NULL || json_is_null(value)) return KVT_OK;
    row->has_instant = true;
    if (json_is_integer(value))
        return trace_take_number(reader, (long double)json_integer_value(value), &row->instant_ns);
    if (json_is_real(value))
        return trace_take_number(reader, json_real_value(value), &row->instant_ns);
    const char *text = json_string_value(value);
    return trace_take_date(reader, text != NULL ? text : "", &row->instant_ns);
}

/* Names are strings or integers. */
static bool json_read_key(const json_t *value, uint64_t *key_out)
{
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    if (!json_is_integer(value) && !json_is_string(value)) return false;
    *key_out = trace_key(json_is_string(value) ? json_string_value(value) : number);
    return true;
}

/* The session: what names it, or that of the chat which this one goes on. */
static kvt_status json_read_session(json_rows *rows, const json_t *object, trace_row *row)
{
    char reason[80];
    if (rows->session == NULL) return KVT_OK;
    const json_t *name = json_object_get(object, rows->session);
    /* Of turns by session, rows that name none are requests of their own. */
    if (name == NULL && rows->reader->by_session && !rows->reader->own_clocks) return KVT_OK;
    if (!json_read_key(name, &row->session) ||
        (rows->reader->own_clocks && !json_is_string(name))) {
        snprintf(reason, sizeof reason, "%s is missing, or neither a string nor an integer",
                 rows->session);
        return trace_fail(rows->reader, reason);
    }
    row->has_session = true;
    const json_t *parent = rows->chats ? json_object_get(object, "parent_chat_id") : NULL;
    uint64_t key;
    if (parent == NULL || json_is_null(parent) ||
        (json_is_integer(parent) && json_integer_value(parent) < 0))
        return KVT_OK;
    if (!json_read_key(parent, &key))
        return trace_fail(rows->reader, "parent_chat_id is neither a string nor an integer");
    return trace_join(rows->reader, row->session, key);
}

static kvt_status json_add_blocks(json_rows *rows, json_t *object, const trace_row *row)
{
    trace_reader *reader = rows->reader;
    const json_t *ids = json_object_get(object, "hash_ids");
    if (reader->without_ids && ids == NULL) return trace_add_own(reader, row);
    if (reader->without_ids) return trace_fail(reader, "hash_ids, where the first row has none");
    if (!json_is_array(ids)) return json_fail_member(rows, object, "hash_ids", "an array");
    kvt_status status = trace_count_ids(reader, json_array_size(ids));
    uint64_t chain = 0;
    for (size_t i = 0; i < json_array_size(ids) && status == KVT_OK; i++) {
        const json_t *id = json_array_get(ids, i);
        if (json_is_string(id))
            status = trace_add_id(reader, &chain, trace_key(json_string_value(id)));
        else if (json_is_integer(id) && json_integer_value(id) >= 0)
            status = trace_add_id(reader, &chain, (uint64_t)json_integer_value(id));
        else
            status = trace_fail(reader, "a hash id is not an integer from 0 to 2^64-1 or a string");
    }
    return status;
}

/* What the first row tells of all. */
static void json_find_shape(json_rows *rows, const json_t *object)
{
    trace_reader *reader = rows->reader;
    rows->chats = json_object_get(object, "chat_id") != NULL;
    reader->own_clocks = json_object_get(object, "conv") != NULL;
    reader->unit = rows->chats ? TRACE_SECONDS : TRACE_MILLISECONDS;
    reader->without_ids = json_object_get(object, "hash_ids") == NULL;
    reader->next_number = reader->own_clocks; /* as results that are kept have numbered them */
    rows->session = reader->own_clocks                              ? "conv"
                    : rows->chats                                   ? "chat_id"
                    : json_object_get(object, "session_id") != NULL ? "session_id"
                                                                    : NULL;
    reader->by_session = rows->session != NULL && !rows->chats;
    reader->drawn = rows->session != NULL && !reader->own_clocks &&
                    json_object_get(object, "timestamp") == NULL;
}

static kvt_status json_add_request(json_rows *rows, json_t *object)
{
    trace_reader *reader = rows->reader;
    trace_row row = {0};
    if (!json_is_object(object)) return trace_fail(reader, "not a JSON object");
    if (reader->builder.workload->request_count == 0) json_find_shape(rows, object);
    kvt_status status = json_read_instant(rows, object, &row);
    if (status != KVT_OK) return status;
    if (!row.has_instant && rows->session == NULL)
        return json_fail_member(rows, object, "timestamp", "a time");
    if (!json_read_tokens(json_object_get(object, "input_length"), 1, &row.input_tokens))
        return json_fail_member(rows, object, "input_length", "an integer from 1 to 2^24");
    if (!json_read_tokens(json_object_get(object, "output_length"), 0, &row.output_tokens))
        return json_fail_member(rows, object, "output_length", "an integer from 0 to 2^24");
    status = json_read_session(rows, object, &row);
    if (status == KVT_OK) status = trace_add_request(reader, &row);
    if (status != KVT_OK) return status;
    return json_add_blocks(rows, object, &row);
}

/* Hashes of 64 bits are integers that no parser of signed ones takes: they become strings. Copies
 * the line only where it has one; NULL when memory has ended. */
static const char *json_widen(json_rows *rows, const char *line, size_t *bytes)
{
    size_t used = 0, taken = 0;
    bool quoted = false;
    for (size_t i = 0; i < *bytes; i++) {
        if (line[i] == '\\' && quoted) {
            i++;
        } else if (line[i] == '"') {
            quoted = !quoted;
        } else if (!quoted && line[i] >= '0' && line[i] <= '9') {
            const size_t begin = i;
            i += strspn(line + i, "0123456789+-.eE");
            const size_t length = i-- - begin;
            char *end;
            errno = 0;
            if (length < 19 || length > 20 || (begin > 0 && line[begin - 1] == '-')) continue;
            const unsigned long long value = strtoull(line + begin, &end, 10);
            if (end != line + begin + length || errno != 0 || value <= INT64_MAX) continue;
            if (used + (begin - taken) + length + 3 + (*bytes - begin) > rows->wide_room) {
                const size_t room = 2 * (used + *bytes) + 64;
                char *grown = realloc(rows->wide, room);
                if (grown == NULL) return NULL;
                rows->wide = grown;
                rows->wide_room = room;
            }
            memcpy(rows->wide + used, line + taken, begin - taken);
            used += begin - taken;
            used += (size_t)snprintf(rows->wide + used, rows->wide_room - used, "\"%llu\"", value);
            taken = begin + length;
        }
    }
    if (taken == 0) return line;
    memcpy(rows->wide + used, line + taken, *bytes - taken);
    *bytes = used + (*bytes - taken);
    return rows->wide;
}

static kvt_status json_add_line(json_rows *rows, const char *line, size_t bytes)
{
    json_error_t error;
    line = json_widen(rows, line, &bytes);
    if (line == NULL) return KVT_E_MEMORY;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) {
        const enum json_error_code code = json_error_code(&error);
        char reason[JSON_ERROR_TEXT_LENGTH + 96];
        snprintf(reason, sizeof reason, "column %d: %s%s", error.column, error.text,
                 code == json_error_premature_end_of_input ||
                         code == json_error_end_of_input_expected
                     ? ": each request is an object on one line, and nothing behind it"
                     : "");
        return trace_fail(rows->reader, reason);
    }
    kvt_status status = json_add_request(rows, object);
    json_decref(object);
    return status;
}

kvt_status trace_read_json(trace_reader *reader, char *line, size_t bytes)
{
    json_rows rows = {.reader = reader};
    kvt_status status = KVT_OK;
    replay_random_seed(&reader->random, reader->options->seed ^ UINT64_C(0x636f6e76));
    while (status == KVT_OK) {
        /* Lines of nothing but blanks at the end are how editors leave files. */
        if (line[strspn(line, " \t")] != '\0') status = json_add_line(&rows, line, bytes);
        if (status != KVT_OK || trace_has_enough(reader)) break;
        status =
            replay_lines_next(reader->lines, &line, &bytes, reader->message, reader->message_size);
    }
    free(rows.wide);
    return status == KVT_END ? KVT_OK : status;
}
