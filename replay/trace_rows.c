/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_rows.c - instants, sessions and blocks of a trace's rows: trace_rows.h.
 * One thread per reader.
 */
#include "trace_rows.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What an instant may be when its first row is at once the begin: longer than any trace, shorter
 * than the time since 1970 in any unit. */
#define TRACE_BASE_MAX_NS (UINT64_C(100) * 366 * 86400 * 1000000000)

kvt_status trace_fail(trace_reader *reader, const char *reason)
{
    snprintf(reader->message, reader->message_size, "%s:%llu: %s", reader->path,
             (unsigned long long)replay_lines_number(reader->lines), reason);
    return KVT_E_PARSE;
}

static kvt_status trace_fail_memory(trace_reader *reader)
{
    snprintf(reader->message, reader->message_size, "%s: out of memory", reader->path);
    return KVT_E_MEMORY;
}

/* Turns what the builder said into a message; KVT_OK stays. */
static kvt_status trace_check_build(trace_reader *reader, kvt_status status)
{
    switch (status) {
    case KVT_OK: return KVT_OK;
    case KVT_E_PARSE: return trace_fail(reader, "two prefixes of one prompt have the same hash");
    case KVT_E_SPACE: return trace_fail(reader, "more block references than a replay can hold");
    default: return trace_fail_memory(reader);
    }
}

/* ---- instants ---- */

/* Of these, a number of the decade that has our time is of 1970. */
static const struct {
    const char *name;
    double least;
    uint64_t ns;
} trace_epochs[] = {
    {"seconds", 1e9, 1000000000},
    {"milliseconds", 1e12, 1000000},
    {"microseconds", 1e15, 1000},
    {"nanoseconds", 1e18, 1},
};

static uint64_t trace_unit_ns(const trace_reader *reader)
{
    for (size_t i = 0; reader->epoch != NULL && i < sizeof trace_epochs / sizeof *trace_epochs; i++)
        if (trace_epochs[i].name == reader->epoch) return trace_epochs[i].ns;
    return reader->unit == TRACE_SECONDS ? 1000000000 : 1000000;
}

/* The first instant tells what all count in. */
static void trace_find_epoch(trace_reader *reader, double value)
{
    for (size_t i = 0; i < sizeof trace_epochs / sizeof *trace_epochs; i++)
        if (value >= trace_epochs[i].least && value < trace_epochs[i].least * 10)
            reader->epoch = trace_epochs[i].name;
}

static const char *trace_unit_name(const trace_reader *reader)
{
    if (reader->epoch != NULL) return reader->epoch;
    return reader->unit == TRACE_SECONDS ? "seconds" : "milliseconds";
}

static kvt_status trace_fail_instant(trace_reader *reader)
{
    char reason[160];
    snprintf(reason, sizeof reason,
             "timestamp is not a number of %s from 0 on, a date with a time, or of the time since "
             "1970",
             trace_unit_name(reader));
    return trace_fail(reader, reason);
}

/* Takes the base away, which is the first instant where it is one of 1970 or far away. */
static kvt_status trace_from_base(trace_reader *reader, uint64_t ns, uint64_t *instant_ns)
{
    if (!reader->based) {
        bool far = ns > REPLAY_ARRIVAL_MAX_NS && !reader->own_clocks;
        if (far && reader->epoch == NULL && ns > TRACE_BASE_MAX_NS)
            return trace_fail_instant(reader);
        reader->base_ns = far ? ns : 0;
        reader->based = true;
    }
    if (ns < reader->base_ns) return trace_fail(reader, "timestamp is before the first one");
    *instant_ns = ns - reader->base_ns;
    if (*instant_ns > REPLAY_ARRIVAL_MAX_NS)
        return trace_fail(reader, "timestamp is more than 100 days behind the begin of the trace, "
                                  "and no replay is longer: replay.limit takes the first requests");
    return KVT_OK;
}

kvt_status trace_take_number(trace_reader *reader, long double value, uint64_t *instant_ns)
{
    if (reader->epoch != NULL && strcmp(reader->epoch, "dates") == 0)
        return trace_fail(reader, "timestamp is a number, and the rows above have dates");
    if (!reader->based && !reader->own_clocks) trace_find_epoch(reader, (double)value);
    const long double ns = value * (long double)trace_unit_ns(reader);
    if (!(ns >= 0 && ns < 1.8e19L)) return trace_fail_instant(reader);
    return trace_from_base(reader, (uint64_t)(ns + 0.5L), instant_ns);
}

/* The digits behind a point, as nanoseconds; moves *text behind them. */
static uint64_t trace_fraction_ns(const char **text)
{
    uint64_t ns = 0, place = 100000000;
    for (; **text >= '0' && **text <= '9'; (*text)++, place /= 10)
        ns += (uint64_t)(**text - '0') * place;
    return ns;
}

/* "2023-11-16 18:17:03.9799600", with 'T' for the blank too, and behind it nothing, 'Z' or
 * "+02:00". false: it is something else. */
static bool trace_date_ns(const char *text, uint64_t *ns_out)
{
    int year, month, day, hour, minute, second, used = 0;
    char between;
    if (sscanf(text, "%4d-%2d-%2d%c%2d:%2d:%2d%n", &year, &month, &day, &between, &hour, &minute,
               &second, &used) != 7 ||
        used == 0)
        return false;
    if ((between != ' ' && between != 'T') || year < 1971 || year > 2200 || month < 1 ||
        month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 || minute < 0 || minute > 59 ||
        second < 0 || second > 60)
        return false;
    struct tm calendar = {.tm_year = year - 1900,
                          .tm_mon = month - 1,
                          .tm_mday = day,
                          .tm_hour = hour,
                          .tm_min = minute,
                          .tm_sec = second};
    int64_t seconds = (int64_t)timegm(&calendar);
    text += used;
    uint64_t fraction = 0;
    if (*text == '.') fraction = (text++, trace_fraction_ns(&text));
    int zone_hour, zone_minute;
    if (strcmp(text, "Z") == 0) {
        text++;
    } else if ((*text == '+' || *text == '-') &&
               sscanf(text + 1, "%2d:%2d%n", &zone_hour, &zone_minute, &used) == 2 && used == 5 &&
               zone_hour >= 0 && zone_hour < 24 && zone_minute >= 0 && zone_minute < 60) {
        int64_t away = zone_hour * 3600 + zone_minute * 60;
        seconds += *text == '+' ? -away : away;
        text += 1 + used;
    }
    *ns_out = (uint64_t)seconds * 1000000000 + fraction;
    return *text == '\0';
}

kvt_status trace_take_date(trace_reader *reader, const char *text, uint64_t *instant_ns)
{
    uint64_t ns;
    if (!trace_date_ns(text, &ns)) return trace_fail_instant(reader);
    if (!reader->based) reader->epoch = "dates";
    if (reader->epoch == NULL || strcmp(reader->epoch, "dates") != 0)
        return trace_fail(reader, "timestamp is a date, and the rows above have numbers");
    return trace_from_base(reader, ns, instant_ns);
}

/* ---- sessions ---- */

uint64_t trace_key(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++)
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    return replay_mix(~hash);
}

/* The session that a key names, made anew where none does. */
static kvt_status trace_find_session(trace_reader *reader, uint64_t key, uint32_t **slot_out,
                                     bool *made)
{
    if (workload_id_map_slot(&reader->keys, key, slot_out) != KVT_OK)
        return trace_fail_memory(reader);
    *made = **slot_out == UINT32_MAX;
    if (!*made) return KVT_OK;
    void *sessions = reader->sessions;
    if (reader->session_count >= UINT32_MAX - 1 ||
        workload_grow(&sessions, &reader->session_room, reader->session_count + 1,
                      sizeof(trace_session)) != KVT_OK)
        return trace_fail_memory(reader);
    reader->sessions = sessions;
    reader->sessions[reader->session_count] = (trace_session){.number = reader->next_number++};
    **slot_out = (uint32_t)reader->session_count++;
    reader->keys.used++;
    return KVT_OK;
}

kvt_status trace_join(trace_reader *reader, uint64_t key, uint64_t parent)
{
    uint32_t *slot, session;
    bool made;
    kvt_status status = trace_find_session(reader, parent, &slot, &made);
    if (status != KVT_OK) return status;
    session = *slot;
    if (workload_id_map_slot(&reader->keys, key, &slot) != KVT_OK) return trace_fail_memory(reader);
    if (*slot == UINT32_MAX) reader->keys.used++;
    *slot = session;
    return KVT_OK;
}

/* A session without an instant begins when a Poisson process says. */
static void trace_draw_start(trace_reader *reader, trace_session *session)
{
    double gap = 1.0 / reader->options->conversations_per_s;
    reader->start_seconds += replay_random_exponential(&reader->random, gap);
    session->start_seconds = reader->start_seconds;
}

/* When a turn of a session arrives, by its own clock. */
static kvt_status trace_place_turn(trace_reader *reader, const trace_row *row,
                                   trace_session *session, bool first, uint64_t *ns_out)
{
    if (reader->own_clocks) {
        if (!row->has_instant) return trace_fail(reader, "timestamp is missing");
        if (!first && row->instant_ns < session->last_ns)
            return trace_fail(reader, "timestamp is before the one above");
        *ns_out = row->instant_ns;
    } else if (row->has_instant) {
        if (reader->drawn)
            return trace_fail(reader, "timestamp, where the first row has none: either each "
                                      "session begins at an instant or none does");
        *ns_out = row->instant_ns;
    } else if (first) {
        if (!reader->drawn) return trace_fail(reader, "timestamp is missing");
    } else if (!row->has_pause) {
        return trace_fail(reader, "timestamp and delay are missing");
    } else {
        *ns_out = session->last_ns + row->pause_ns;
        reader->paused = true;
    }
    return KVT_OK;
}

/* The instant and the number of the session of a row. */
static kvt_status trace_place(trace_reader *reader, const trace_row *row, uint64_t *ns_out,
                              uint32_t *number_out)
{
    *ns_out = row->instant_ns;
    if (!row->has_session) {
        if (!row->has_instant) return trace_fail(reader, "timestamp is missing");
        *number_out = reader->next_number++;
    } else {
        uint32_t *slot;
        bool first;
        kvt_status status = trace_find_session(reader, row->session, &slot, &first);
        if (status != KVT_OK) return status;
        trace_session *session = &reader->sessions[*slot];
        if (first && (reader->own_clocks || reader->drawn)) trace_draw_start(reader, session);
        uint64_t turn_ns = 0;
        status = trace_place_turn(reader, row, session, first, &turn_ns);
        if (status != KVT_OK) return status;
        session->last_ns = turn_ns;
        double arrival = (double)turn_ns + session->start_seconds * 1e9;
        if (arrival > (double)REPLAY_ARRIVAL_MAX_NS)
            return trace_fail(reader, "the trace is longer than 100 days");
        *ns_out = session->start_seconds > 0.0 ? (uint64_t)arrival : turn_ns;
        *number_out = session->number;
    }
    if (reader->by_session) return KVT_OK;
    if (*ns_out < reader->last_ns) return trace_fail(reader, "timestamp is before the one above");
    reader->last_ns = *ns_out;
    return KVT_OK;
}

kvt_status trace_add_request(trace_reader *reader, const trace_row *row)
{
    uint64_t arrival_ns;
    uint32_t number;
    kvt_status status = trace_place(reader, row, &arrival_ns, &number);
    if (status != KVT_OK) return status;
    if (reader->drawn || reader->own_clocks)
        reader->builder.workload->conversations_per_s = reader->options->conversations_per_s;
    status = workload_build_request(&reader->builder, arrival_ns, row->input_tokens,
                                    row->output_tokens, number);
    return trace_check_build(reader, status);
}

bool trace_has_enough(const trace_reader *reader)
{
    const uint64_t limit = reader->options->limit;
    if (reader->by_session) return false;
    return limit > 0 && reader->builder.workload->request_count >= limit;
}

/* ---- blocks ---- */

/*
 * No trace says how large its blocks are, but each row has a count of ids and one of tokens. Sizes
 * are powers of two from 16 to 4096, and the last block of a prompt has an id when it is partial
 * (the count is rounded up) or has none (down): 18 candidates, a bit each in reader->units, in
 * order of preference. A row removes those that it disagrees with, and some rows leave one.
 */
enum { UNITS_SIZES = 9, UNITS = 2 * UNITS_SIZES };

static const uint16_t unit_tokens[UNITS_SIZES] = {512, 16, 64, 256, 128, 32, 1024, 2048, 4096};

static size_t unit_count(uint32_t unit, uint32_t tokens)
{
    const uint32_t size = unit_tokens[unit % UNITS_SIZES];
    return tokens / size + (unit < UNITS_SIZES && tokens % size != 0);
}

/* The most likely of those that are left. */
static uint32_t unit_best(const trace_reader *reader)
{
    static const uint32_t agentic = UNITS_SIZES + 2; /* of 64 tokens, complete ones only */
    if (reader->own_clocks && (reader->units >> agentic & 1) != 0) return agentic;
    if (reader->unit == TRACE_SECONDS && (reader->units >> 1 & 1) != 0) return 1; /* Bailian */
    for (uint32_t unit = 0; unit < UNITS; unit++)
        if ((reader->units >> unit & 1) != 0) return unit;
    return 0;
}

kvt_status trace_count_ids(trace_reader *reader, size_t count)
{
    const replay_workload *workload = reader->builder.workload;
    const uint32_t tokens = workload->requests[workload->request_count - 1].input_tokens;
    uint32_t left = 0;
    if (workload->request_count == 1) reader->units = (UINT32_C(1) << UNITS) - 1;
    for (uint32_t unit = 0; unit < UNITS; unit++)
        if (unit_count(unit, tokens) == count) left |= UINT32_C(1) << unit;
    left &= reader->units;
    char reason[192];
    if (left != 0) {
        reader->units = left;
        return KVT_OK;
    }
    if (workload->request_count == 1) {
        snprintf(reason, sizeof reason,
                 "hash_ids holds %zu ids for %u tokens: blocks have 16 to 4096 tokens, a power of "
                 "two",
                 count, (unsigned)tokens);
    } else {
        const uint32_t unit = unit_best(reader);
        snprintf(reason, sizeof reason,
                 "hash_ids holds %zu ids, and %u tokens in blocks of %u, as the rows above have "
                 "them, make %zu",
                 count, (unsigned)tokens, (unsigned)unit_tokens[unit % UNITS_SIZES],
                 unit_count(unit, tokens));
    }
    return trace_fail(reader, reason);
}

kvt_status trace_add_id(trace_reader *reader, uint64_t *chain, uint64_t id)
{
    *chain = replay_mix(*chain ^ replay_mix(id));
    return trace_check_build(reader, workload_build_block(&reader->builder, *chain));
}

/* Whole blocks are the session's, by their place; a partial one is the row's alone. */
kvt_status trace_add_own(trace_reader *reader, const trace_row *row)
{
    const uint32_t unit = reader->options->block_tokens != 0 ? reader->options->block_tokens : 512;
    const uint32_t whole = row->input_tokens / unit;
    const uint64_t request = reader->builder.workload->request_count;
    const uint64_t own = replay_mix(request ^ UINT64_C(0x6f776e));
    const uint64_t base = row->has_session ? row->session : own;
    const uint64_t known = reader->builder.workload->distinct_blocks;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < whole && status == KVT_OK; i++)
        status = workload_build_block(&reader->builder, replay_mix(base + i));
    reader->shared |= reader->builder.workload->distinct_blocks - known < whole;
    if (status == KVT_OK && row->input_tokens % unit != 0)
        status = workload_build_block(&reader->builder, replay_mix(own ^ UINT64_C(0x7061727469)));
    return trace_check_build(reader, status);
}

/* Keeps every `merged`th block of each request. */
static void trace_merge(replay_workload *workload, uint32_t merged)
{
    uint64_t next = 0;
    for (uint64_t r = 0; r < workload->request_count; r++) {
        replay_request *request = &workload->requests[r];
        const uint64_t first = next;
        for (uint32_t i = merged - 1; i < request->block_count; i += merged)
            workload->blocks[next++] = workload->blocks[request->first_block + i];
        request->first_block = first;
        request->block_count /= merged;
    }
    workload->block_refs = next;
}

/* What a reader of the results must know of how the rows were taken. */
static void trace_note(const trace_reader *reader, replay_workload *workload)
{
    size_t used = 0;
#define ADD(...)                                                                                   \
    do {                                                                                           \
        if (used > 0 && used < sizeof workload->note - 1)                                          \
            used += (size_t)snprintf(workload->note + used, sizeof workload->note - used, "; ");   \
        if (used < sizeof workload->note - 1)                                                      \
            used += (size_t)snprintf(workload->note + used, sizeof workload->note - used,          \
                                     __VA_ARGS__);                                                 \
    } while (0)
    if (reader->without_ids)
        ADD("without ids of blocks each prompt is its own%s",
            reader->shared ? ", but that a session's turns begin with what was asked before"
                           : ", so a cache serves nothing");
    else if (workload->block_tokens != 512 && !reader->own_clocks)
        ADD("blocks of %u tokens", (unsigned)workload->block_tokens);
    const bool dates = reader->epoch != NULL && strcmp(reader->epoch, "dates") == 0;
    if (reader->unit == TRACE_SECONDS || reader->base_ns > 0)
        ADD("timestamps are %s%s%s", trace_unit_name(reader),
            reader->epoch != NULL && !dates ? " since 1970" : "",
            reader->base_ns > 0 ? ", counted from the first request on" : "");
    if (reader->paused) ADD("a delay counts from the arrival of the turn before");
    if (reader->left_out > 0)
        ADD("rows without request tokens, which are left out: %llu",
            (unsigned long long)reader->left_out);
#undef ADD
}

void trace_settle(trace_reader *reader)
{
    replay_workload *workload = reader->builder.workload;
    if (reader->without_ids) {
        workload->block_tokens =
            reader->options->block_tokens != 0 ? reader->options->block_tokens : 512;
    } else {
        const uint32_t size = unit_tokens[unit_best(reader) % UNITS_SIZES];
        const uint32_t wanted = reader->options->merge_to / size;
        workload->merged = wanted > 1 ? wanted : 1;
        if (wanted > 1) trace_merge(workload, wanted);
        workload->block_tokens = size * workload->merged;
    }
    trace_note(reader, workload);
}
