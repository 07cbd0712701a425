/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_csv.c - traces of lengths in CSV, as Azure and BurstGPT publish them: a header names the
 * columns, of which instants, tokens of the request and of the response, and sessions are read.
 * One thread per reader.
 */
#include "trace_rows.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CSV_FIELDS_MAX 64u

typedef enum csv_column {
    CSV_INSTANT = 0,
    CSV_INPUT = 1,
    CSV_OUTPUT = 2,
    CSV_SESSION = 3,
    CSV_COLUMNS = 4
} csv_column;

/* Names of the columns; case, blanks and underscores do not count. */
static const char *const csv_names[CSV_COLUMNS][8] = {
    [CSV_INSTANT] = {"timestamp", "arrivaltime", "arrivedat", "arrivaltimestamp", NULL},
    [CSV_INPUT] = {"requesttokens", "contexttokens", "inputtokens", "inputlength", "prompttokens",
                   "promptlength", "numprefilltokens", NULL},
    [CSV_OUTPUT] = {"responsetokens", "generatedtokens", "outputtokens", "outputlength",
                    "completiontokens", "generatetokens", "numdecodetokens", NULL},
    [CSV_SESSION] = {"sessionid", "conversationid", "session", "conversation", "chatid", NULL},
};

typedef struct csv_layout {
    size_t fields;
    size_t at[CSV_COLUMNS]; /* SIZE_MAX: the file has no such column */
    bool twice;             /* two columns mean the same */
} csv_layout;

/* Cuts a line into its fields, in place; quotes around a field are taken away, and "" inside of
 * them is one. The number of fields, or 0: quotes do not end, or there are too many. */
static size_t csv_cut(char *line, char *fields[CSV_FIELDS_MAX])
{
    size_t count = 0;
    for (char *read = line;;) {
        if (count == CSV_FIELDS_MAX) return 0;
        char *write = read;
        fields[count++] = write;
        bool quoted = *read == '"';
        if (quoted) read++;
        for (; quoted ? *read != '\0' : *read != '\0' && *read != ','; read++) {
            if (quoted && *read == '"' && *++read != '"') {
                quoted = false;
                if (*read == ',' || *read == '\0') break;
            }
            *write++ = *read;
        }
        if (quoted) return 0;
        const bool more = *read == ',';
        *write = '\0';
        if (!more) return count;
        read++;
    }
}

/* A field without the blanks around it. */
static char *csv_trim(char *field)
{
    field += strspn(field, " \t");
    size_t length = strlen(field);
    while (length > 0 && (field[length - 1] == ' ' || field[length - 1] == '\t'))
        field[--length] = '\0';
    return field;
}

static bool csv_is_name(const char *field, const char *name)
{
    for (; *field != '\0'; field++) {
        if (*field == ' ' || *field == '_' || *field == '-') continue;
        if (tolower((unsigned char)*field) != *name) return false;
        name++;
    }
    return *name == '\0';
}

static void csv_find_columns(char *header, csv_layout *layout)
{
    char *fields[CSV_FIELDS_MAX];
    layout->fields = csv_cut(header, fields);
    layout->twice = false;
    for (csv_column column = 0; column < CSV_COLUMNS; column++) {
        layout->at[column] = SIZE_MAX;
        for (size_t f = layout->fields; f-- > 0;)
            for (size_t n = 0; csv_names[column][n] != NULL; n++)
                if (csv_is_name(fields[f], csv_names[column][n])) {
                    layout->twice |= layout->at[column] != SIZE_MAX && column != CSV_SESSION;
                    layout->at[column] = f;
                }
    }
}

/* strtod takes hexadecimal numbers and names, too. */
static bool csv_is_number(const char *field)
{
    return isdigit((unsigned char)*field) && field[strspn(field, "0123456789.eE+-")] == '\0';
}

/* A whole number of tokens; "906.0", as tables of floats write it, is one. */
static bool csv_read_tokens(const char *field, uint32_t *tokens_out)
{
    char *end;
    if (!csv_is_number(field)) return false;
    const double value = strtod(field, &end);
    if (*end != '\0' || !(value <= REPLAY_TOKENS_MAX) || value != floor(value)) return false;
    *tokens_out = (uint32_t)value;
    return true;
}

static kvt_status csv_read_instant(trace_reader *reader, const char *field, trace_row *row)
{
    char *end;
    row->has_instant = true;
    const long double number = strtold(field, &end);
    if (csv_is_number(field) && *end == '\0')
        return trace_take_number(reader, number, &row->instant_ns);
    return trace_take_date(reader, field, &row->instant_ns);
}

static kvt_status csv_add_row(trace_reader *reader, const csv_layout *layout, char *line)
{
    char *fields[CSV_FIELDS_MAX], reason[128];
    const size_t count = csv_cut(line, fields);
    trace_row row = {0};
    if (count != layout->fields) {
        snprintf(reason, sizeof reason, "%zu fields, and the header has %zu%s", count,
                 layout->fields, count == 0 ? ": quotes do not end" : "");
        return trace_fail(reader, reason);
    }
    if (!csv_read_tokens(csv_trim(fields[layout->at[CSV_INPUT]]), &row.input_tokens))
        return trace_fail(reader, "request tokens are not an integer from 0 to 2^24");
    if (layout->at[CSV_OUTPUT] != SIZE_MAX &&
        !csv_read_tokens(csv_trim(fields[layout->at[CSV_OUTPUT]]), &row.output_tokens))
        return trace_fail(reader, "response tokens are not an integer from 0 to 2^24");
    kvt_status status = csv_read_instant(reader, csv_trim(fields[layout->at[CSV_INSTANT]]), &row);
    if (status != KVT_OK) return status;
    if (row.input_tokens == 0) {
        reader->left_out++;
        return KVT_OK;
    }
    if (layout->at[CSV_SESSION] != SIZE_MAX) {
        const char *name = csv_trim(fields[layout->at[CSV_SESSION]]);
        row.has_session = name[0] != '\0';
        row.session = trace_key(name);
    }
    status = trace_add_request(reader, &row);
    return status == KVT_OK ? trace_add_own(reader, &row) : status;
}

kvt_status trace_read_csv(trace_reader *reader, char *line)
{
    csv_layout layout;
    size_t bytes;
    const char *fault =
        line[0] == '['              ? "a JSON array: a trace is one object per line, without "
                                      "brackets and commas around them"
        : strchr(line, ',') != NULL ? "no header of a CSV: it names at least a time and the tokens "
                                      "of the prompt: timestamp,session_id,prompt_tokens,"
                                      "completion_tokens"
        : strpbrk(line, ";\t") != NULL ? "no header of a CSV: commas separate its fields"
                                       : "the first line is no JSON object and no header of a CSV: "
                                         "a trace is one request per line";
    csv_find_columns(line, &layout);
    if (layout.at[CSV_INSTANT] == SIZE_MAX || layout.at[CSV_INPUT] == SIZE_MAX)
        return trace_fail(reader, fault);
    if (layout.twice)
        return trace_fail(reader, "two columns are timestamps, request tokens or response tokens");
    reader->unit = TRACE_SECONDS;
    reader->without_ids = true;
    for (;;) {
        if (trace_has_enough(reader)) return KVT_OK;
        kvt_status status =
            replay_lines_next(reader->lines, &line, &bytes, reader->message, reader->message_size);
        if (status == KVT_END) return KVT_OK;
        if (status != KVT_OK) return status;
        if (line[strspn(line, " \t")] == '\0') continue;
        status = csv_add_row(reader, &layout, line);
        if (status != KVT_OK) return status;
    }
}
