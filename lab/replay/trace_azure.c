/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_azure.c - Azure's LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens.
 *
 * TIMESTAMP is "YYYY-MM-DD hh:mm:ss" with an optional fraction and an optional "+00:00". Arrivals
 * count from the first request. There are no block ids: every block is private to its request, so
 * nothing can be reused; the trace gives arrivals and lengths. One thread.
 */
#include "trace_read.h"

#include <string.h>

static bool azure_digits(const char **text, int count, uint32_t *value_out)
{
    uint32_t value = 0;
    for (int i = 0; i < count; i++, (*text)++) {
        if (**text < '0' || **text > '9') return false;
        value = value * 10 + (uint32_t)(**text - '0');
    }
    *value_out = value;
    return true;
}

static bool azure_literal(const char **text, char wanted)
{
    if (**text != wanted) return false;
    (*text)++;
    return true;
}

/* Days from 1970-01-01 of a date of the Gregorian calendar, years from 1970 on. */
static uint64_t azure_days(uint32_t year, uint32_t month, uint32_t day)
{
    static const uint16_t before[12] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    uint64_t past = year - 1;
    uint64_t days = past * 365 + past / 4 - past / 100 + past / 400 - 719162;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days + before[month - 1] + (leap && month > 2) + day - 1;
}

static bool azure_read_time(const char **text, uint64_t *ns_out)
{
    uint32_t year, month, day, hour, minute, second, digit;
    bool sound =
        azure_digits(text, 4, &year) && azure_literal(text, '-') && azure_digits(text, 2, &month) &&
        azure_literal(text, '-') && azure_digits(text, 2, &day) &&
        (azure_literal(text, ' ') || azure_literal(text, 'T')) && azure_digits(text, 2, &hour) &&
        azure_literal(text, ':') && azure_digits(text, 2, &minute) && azure_literal(text, ':') &&
        azure_digits(text, 2, &second);
    if (!sound || year < 1970 || year > 2200 || month < 1 || month > 12) return false;
    if (day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) return false;
    uint64_t ns = azure_days(year, month, day) * 86400;
    ns = (ns + hour * 3600 + minute * 60 + second) * 1000000000;
    if (azure_literal(text, '.')) {
        uint64_t unit = 100000000;
        int digits = 0;
        for (; azure_digits(text, 1, &digit); digits++, unit /= 10)
            ns += digit * unit;
        if (digits == 0) return false;
    }
    if (strncmp(*text, "+00:00", 6) == 0) *text += 6;
    *ns_out = ns;
    return azure_literal(text, ',');
}

static bool azure_read_tokens(const char **text, uint32_t least, char end, uint32_t *tokens_out)
{
    uint32_t value = 0, digit;
    const char *first = *text;
    while (azure_digits(text, 1, &digit)) {
        value = value * 10 + digit;
        if (value > REPLAY_TOKENS_MAX) return false;
    }
    *tokens_out = value;
    return *text != first && value >= least && **text == end;
}

static kvt_status azure_add_line(trace_reader *reader, const char *line, uint64_t *first_ns,
                                 uint64_t *last_ns)
{
    uint64_t ns;
    uint32_t input, output;
    if (!azure_read_time(&line, &ns)) {
        return trace_fail(reader, "TIMESTAMP is not a date and time such as "
                                  "2023-11-16 18:17:03.9799600");
    }
    if (!azure_read_tokens(&line, 1, ',', &input)) {
        return trace_fail(reader, "ContextTokens is not an integer from 1 to 2^24");
    }
    line++;
    if (!azure_read_tokens(&line, 0, '\0', &output)) {
        return trace_fail(reader, "GeneratedTokens is not an integer from 0 to 2^24");
    }
    replay_workload *workload = reader->builder.workload;
    if (workload->request_count == 0) *first_ns = *last_ns = ns;
    if (ns < *last_ns) return trace_fail(reader, "TIMESTAMP is before the one above");
    if (ns - *first_ns > REPLAY_ARRIVAL_MAX_NS) {
        return trace_fail(reader, "the trace is longer than 31 days");
    }
    *last_ns = ns;
    kvt_status status = workload_build_request(&reader->builder, ns - *first_ns, input, output,
                                               (uint32_t)workload->request_count);
    uint32_t unit = workload->block_tokens;
    uint32_t blocks = input / unit + (input % unit != 0);
    for (uint32_t i = 0; i < blocks && status == KVT_OK; i++) {
        status = workload_build_new_block(&reader->builder);
    }
    return trace_check_build(reader, status);
}

kvt_status trace_read_azure(trace_reader *reader, char *line, size_t bytes)
{
    uint64_t first_ns = 0, last_ns = 0;
    if (strcmp(line, "TIMESTAMP,ContextTokens,GeneratedTokens") != 0) {
        return trace_fail(reader, "the columns are not TIMESTAMP,ContextTokens,GeneratedTokens");
    }
    reader->builder.workload->block_tokens = reader->options->block_tokens;
    reader->builder.workload->private_blocks = true;
    for (;;) {
        kvt_status status =
            replay_lines_next(reader->lines, &line, &bytes, reader->message, reader->message_size);
        if (status == KVT_END) return KVT_OK;
        if (status != KVT_OK) return status;
        if (bytes == 0) continue;
        status = azure_add_line(reader, line, &first_ns, &last_ns);
        if (status != KVT_OK) return status;
        uint64_t limit = reader->options->limit;
        if (limit > 0 && reader->builder.workload->request_count >= limit) return KVT_OK;
    }
}
