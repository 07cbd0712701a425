/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_read.h - what the readers of one trace format share; private to them. One thread.
 */
#ifndef REPLAY_TRACE_READ_H
#define REPLAY_TRACE_READ_H

#include "line_reader.h"
#include "workload_build.h"

typedef struct trace_reader {
    replay_line_reader *lines;
    const char *path;
    const replay_trace_options *options;
    workload_builder builder;
    char *message;
    size_t message_size;
} trace_reader;

/* Writes "path:line: reason" and returns KVT_E_PARSE. */
KVT_NODISCARD kvt_status trace_fail(trace_reader *reader, const char *reason);

/* Turns what the builder said into a message; KVT_OK stays. */
KVT_NODISCARD kvt_status trace_check_build(trace_reader *reader, kvt_status status);

/* Reads every line; the first one is given. KVT_OK or an error with its message. */
KVT_NODISCARD kvt_status trace_read_jsonl(trace_reader *reader, char *line, size_t bytes);

#endif
