/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_read.c - a trace file as a workload: the first line tells the format, which trace_json.c or
 * trace_csv.c reads.
 * One thread per reader.
 */
#include "trace_rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return line[0] == '{' ? trace_read_json(reader, line, bytes) : trace_read_csv(reader, line);
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
    if (status == KVT_OK && workload->block_refs == 0) {
        snprintf(message, message_size, "%s: hash_ids is empty in every row", path);
        status = KVT_E_PARSE;
    }
    if (status == KVT_OK) {
        trace_settle(&reader);
        status = workload_build_finish(&reader.builder, options->seed, options->limit);
    }
    if (status == KVT_E_MEMORY) snprintf(message, message_size, "%s: out of memory", path);
    replay_lines_close(reader.lines);
    workload_build_free(&reader.builder);
    free(reader.keys.ids);
    free(reader.keys.dense);
    free(reader.sessions);
    if (status != KVT_OK) {
        replay_workload_free(workload);
        return status;
    }
    trace_name(workload, path);
    return KVT_OK;
}
