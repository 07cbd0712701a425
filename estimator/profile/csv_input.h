/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv_input.h - small CSV files, plain or zstd-compressed, read whole and walked line by line with
 * positions for messages. Any bytes are safe to walk. Thread rule: one thread per csv_input.
 */
#ifndef ESTIMATOR_CSV_INPUT_H
#define ESTIMATOR_CSV_INPUT_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CSV_FIELDS_MAX 64u

typedef struct csv_field {
    const char *text; /* not terminated */
    size_t length;
} csv_field;

typedef struct csv_input {
    char path[4096];
    char *bytes;
    size_t byte_count;
    size_t position;
    uint32_t line; /* of the last line walked, from 1 */
    csv_field fields[CSV_FIELDS_MAX];
    size_t field_count;
    char *message;
    size_t message_size;
} csv_input;

/* Reads `path`, or `path`.zst when there is no `path`; what ends in .zst is unpacked. KVT_OK;
 * KVT_E_GONE (neither can be opened); KVT_E_PARSE (damaged or larger than 64 MiB unpacked);
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status csv_open(csv_input *input, const char *path, char *message,
                                  size_t message_size);
void csv_close(csv_input *input);

/* Walks to the next line that does not start with # and splits it at commas. A field in quotes may
 * hold commas and line ends; two quotes stand for one. KVT_OK; KVT_END; KVT_E_PARSE (not that many
 * fields, an empty line inside the file, a NUL byte, text behind a closing quote). */
KVT_NODISCARD kvt_status csv_next(csv_input *input, size_t field_count);

/* The same for lines of any number of fields; empty lines are skipped. */
KVT_NODISCARD kvt_status csv_next_any(csv_input *input);

/* Fields of the present line. KVT_OK or KVT_E_PARSE. */
KVT_NODISCARD kvt_status csv_u32(csv_input *input, size_t field, uint32_t *out);
KVT_NODISCARD kvt_status csv_number(csv_input *input, size_t field, double max, double *out);
bool csv_is(const csv_input *input, size_t field, const char *text);

/* Writes "path:line: reason" and gives KVT_E_PARSE. */
kvt_status csv_fail(csv_input *input, const char *reason);

#endif
