/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_read.c - opens a trace, checks that its first line is JSON and hands over to the reader.
 * One thread.
 */
#include "trace_read.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

kvt_status trace_fail(trace_reader *reader, const char *reason)
{
    snprintf(reader->message, reader->message_size, "%s:%llu: %s", reader->path,
             (unsigned long long)replay_lines_number(reader->lines), reason);
    return KVT_E_PARSE;
}

kvt_status trace_check_build(trace_reader *reader, kvt_status status)
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

static void trace_name(replay_workload *workload, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(workload->name, sizeof workload->name, "%s", slash != NULL ? slash + 1 : path);
}

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
