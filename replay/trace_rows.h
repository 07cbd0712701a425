/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_rows.h - requests of a trace out of its rows: instants, sessions and blocks, whatever the
 * format of the rows. Private to the readers of traces.
 *
 * A row has a request's lengths and, where the trace has them, its instant, its pause behind the
 * turn before, its session and the ids of its blocks. From these:
 *   - Instants count from the begin of the trace, or from the first row's when that lies in the
 *     time since 1970 or is further away than a trace may be long.
 *   - Turns of a session that have a pause arrive that long after the turn before arrived; sessions
 *     that have no instant begin at drawn ones.
 *   - A block is the chain of all ids up to its own, so ids may name blocks or prefixes, and a
 *     prompt may hold one block twice.
 *   - Rows without ids are prompts of their own; of a session, each turn's prompt begins with the
 *     whole blocks of the longest turn before.
 * One thread per reader.
 */
#ifndef REPLAY_TRACE_ROWS_H
#define REPLAY_TRACE_ROWS_H

#include "random.h"
#include "trace_lines.h"
#include "workload.h"

/* How a trace writes its instants, beside what a date is. */
typedef enum trace_unit { TRACE_SECONDS = 0, TRACE_MILLISECONDS = 1 } trace_unit;

typedef struct trace_session {
    uint64_t last_ns;     /* arrival of its last turn, before start_seconds is added */
    double start_seconds; /* drawn; 0: the trace has its instants */
    uint32_t number;
} trace_session;

typedef struct trace_reader {
    replay_line_reader *lines;
    const char *path;
    const replay_trace_options *options;
    workload_builder builder;
    char *message;
    size_t message_size;

    trace_unit unit;
    bool own_clocks; /* instants start anew in each session, whose start is drawn */
    bool drawn;      /* sessions have pauses and no instant */
    bool by_session; /* rows may be in the order of their sessions, not of time */
    bool paused;     /* some turn came by its pause */
    bool based;      /* base_ns and what it counts in are known */
    uint64_t base_ns;
    const char *epoch; /* what instants since 1970 are written in; NULL: they are not */
    uint64_t last_ns;  /* of the rows with one clock */

    workload_id_map keys; /* from session and chat ids to sessions */
    trace_session *sessions;
    uint64_t session_count, session_room;
    uint32_t next_number;
    double start_seconds; /* of the session that was drawn last */
    replay_random random;

    bool without_ids;
    uint32_t units; /* sizes of blocks that all rows agree with, see trace_rows.c */
    uint64_t left_out;
    bool shared; /* some turn's prompt began with that of the turn before */
} trace_reader;

/* One row, without its ids. */
typedef struct trace_row {
    bool has_instant, has_pause, has_session;
    uint64_t instant_ns, pause_ns;
    uint64_t session; /* a key: trace_key of what names it */
    uint32_t input_tokens, output_tokens;
} trace_row;

/* Writes "path:line: reason" and returns KVT_E_PARSE. */
kvt_status trace_fail(trace_reader *reader, const char *reason);

/* A session's key, from what names it. */
uint64_t trace_key(const char *text);

/* The instant of a row: a number in the trace's unit (long double holds any whole one exactly), or
 * a date with a time. The first one says whether instants are of 1970. KVT_OK; KVT_E_PARSE. */
kvt_status trace_take_number(trace_reader *reader, long double value, uint64_t *instant_ns);
kvt_status trace_take_date(trace_reader *reader, const char *text, uint64_t *instant_ns);

/* Makes `key` name the session of `parent`, which is made when it is not known: chats that answer
 * each other. KVT_OK; KVT_E_MEMORY. */
kvt_status trace_join(trace_reader *reader, uint64_t key, uint64_t parent);

/* Appends the row's request, without blocks. KVT_OK; KVT_E_PARSE; KVT_E_MEMORY. */
kvt_status trace_add_request(trace_reader *reader, const trace_row *row);

/* Blocks of the request that was appended last. First the count of its ids, which must agree with
 * its tokens, then each; or none, for a prompt without ids. KVT_OK; KVT_E_PARSE; KVT_E_MEMORY. */
kvt_status trace_count_ids(trace_reader *reader, size_t count);
kvt_status trace_add_id(trace_reader *reader, uint64_t *chain, uint64_t id);
kvt_status trace_add_own(trace_reader *reader, const trace_row *row);

/* Whether options->limit is reached, of rows that are in order of time. */
bool trace_has_enough(const trace_reader *reader);

/* Settles the size of blocks, merges them (options->merge_to) and writes what was assumed into the
 * workload's note. */
void trace_settle(trace_reader *reader);

/* The formats: every row from the given line on. */
kvt_status trace_read_json(trace_reader *reader, char *line, size_t bytes);
kvt_status trace_read_csv(trace_reader *reader, char *line);

#endif
