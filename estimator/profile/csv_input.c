/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv_input.c - reads and splits CSV. Numbers are parsed here because strtod follows the locale of
 * the program that the library lives in. Thread rule: one thread per csv_input.
 */
#include "estimator/profile/csv.h"

#include "estimator/profile/file_kind.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define CSV_BYTES_MAX (UINT64_C(64) << 20)
#define CSV_CHUNK     (UINT64_C(256) << 10)

static void csv_say(csv_input *input, const char *reason)
{
    if (input->message == NULL || input->message_size == 0) return;
    snprintf(input->message, input->message_size, "%s: %s", input->path, reason);
}

kvt_status csv_fail(csv_input *input, const char *reason)
{
    if (input->message != NULL && input->message_size > 0) {
        snprintf(input->message, input->message_size, "%s:%u: %s", input->path, input->line,
                 reason);
    }
    return KVT_E_PARSE;
}

static kvt_status csv_read_all(csv_input *input, FILE *file)
{
    size_t capacity = 0;
    for (;;) {
        if (input->byte_count == capacity) {
            capacity = capacity == 0 ? CSV_CHUNK : 2 * capacity;
            char *grown = realloc(input->bytes, capacity);
            if (grown == NULL) return KVT_E_MEMORY;
            input->bytes = grown;
        }
        size_t got = fread(input->bytes + input->byte_count, 1, capacity - input->byte_count, file);
        input->byte_count += got;
        if (input->byte_count > CSV_BYTES_MAX) {
            csv_say(input, "larger than 64 MiB");
            return KVT_E_PARSE;
        }
        if (got > 0) continue;
        if (!ferror(file)) return KVT_OK;
        csv_say(input, strerror(errno));
        return KVT_E_IO;
    }
}

/* Unpacks all frames; a frame's claimed size is not believed. */
static kvt_status csv_unpack_stream(csv_input *input, ZSTD_DStream *stream, char **unpacked,
                                    size_t *unpacked_count)
{
    ZSTD_inBuffer source = {input->bytes, input->byte_count, 0};
    size_t capacity = 0, hint = 1, count = 0;
    while (source.pos < source.size || hint != 0) {
        if (count == capacity) {
            capacity = capacity == 0 ? CSV_CHUNK : 2 * capacity;
            char *grown = realloc(*unpacked, capacity);
            if (grown == NULL) return KVT_E_MEMORY;
            *unpacked = grown;
        }
        ZSTD_outBuffer target = {*unpacked, capacity, count};
        size_t before = source.pos;
        hint = ZSTD_decompressStream(stream, &target, &source);
        bool stuck = source.pos == before && target.pos == count;
        count = target.pos;
        if (ZSTD_isError(hint) || (stuck && hint != 0) || count > CSV_BYTES_MAX) {
            csv_say(input, ZSTD_isError(hint) ? ZSTD_getErrorName(hint)
                           : stuck            ? "the compressed file is cut off"
                                              : "larger than 64 MiB unpacked");
            return KVT_E_PARSE;
        }
    }
    *unpacked_count = count;
    return KVT_OK;
}

static kvt_status csv_unpack(csv_input *input)
{
    char *unpacked = NULL;
    size_t unpacked_count = 0;
    ZSTD_DStream *stream = ZSTD_createDStream();
    if (stream == NULL) return KVT_E_MEMORY;
    kvt_status status = csv_unpack_stream(input, stream, &unpacked, &unpacked_count);
    ZSTD_freeDStream(stream);
    if (status != KVT_OK) {
        free(unpacked);
        return status;
    }
    free(input->bytes);
    input->bytes = unpacked;
    input->byte_count = unpacked_count;
    return KVT_OK;
}

/* The bytes of the UTF-8 character at text, of which `left` are there; 0 when it is none. Overlong
 * forms, surrogates and what is above U+10FFFF are none (RFC 3629). */
static size_t csv_character(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (length == 0 || first > 0xf4 || length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    bool fits = (first != 0xe0 || text[1] >= 0xa0) && (first != 0xed || text[1] < 0xa0) &&
                (first != 0xf0 || text[1] >= 0x90) && (first != 0xf4 || text[1] < 0x90);
    return fits ? length : 0;
}

/* Names and sources are shown and exported as UTF-8, so nothing else comes in. */
static kvt_status csv_check_text(csv_input *input)
{
    const unsigned char *bytes = (const unsigned char *)input->bytes;
    const char *kind = file_kind_of(bytes, input->byte_count);
    uint32_t line = 1;
    if (kind != NULL) {
        char reason[96];
        (void)snprintf(reason, sizeof reason, "this is %s", kind);
        input->line = line;
        return csv_fail(input, reason);
    }
    for (size_t at = 0; at < input->byte_count;) {
        size_t length = csv_character(bytes + at, input->byte_count - at);
        if (length == 0) {
            input->line = line;
            return csv_fail(input, "not UTF-8");
        }
        line += bytes[at] == '\n';
        at += length;
    }
    return KVT_OK;
}

kvt_status csv_open(csv_input *input, const char *path, char *message, size_t message_size)
{
    memset(input, 0, sizeof *input);
    input->message = message;
    input->message_size = message_size;
    int length = snprintf(input->path, sizeof input->path, "%s", path);
    if (length < 0 || (size_t)length + sizeof ".zst" > sizeof input->path) {
        csv_say(input, "the path is too long");
        return KVT_E_GONE;
    }
    bool packed = length > 4 && strcmp(path + length - 4, ".zst") == 0;
    FILE *file = fopen(input->path, "rbe");
    if (file == NULL) {
        memcpy(input->path + length, ".zst", sizeof ".zst");
        file = fopen(input->path, "rbe");
        packed = true;
    }
    if (file == NULL) {
        int error = errno;
        input->path[length] = '\0';
        csv_say(input, strerror(error));
        return KVT_E_GONE;
    }
    kvt_status status = csv_read_all(input, file);
    fclose(file);
    if (status == KVT_OK && packed) status = csv_unpack(input);
    if (status == KVT_E_MEMORY) csv_say(input, "out of memory");
    if (status == KVT_OK) status = csv_check_text(input);
    if (status != KVT_OK) csv_close(input);
    return status;
}

void csv_close(csv_input *input)
{
    free(input->bytes);
    input->bytes = NULL;
    input->byte_count = 0;
}

/* Lines that start with # are for people. */
static void csv_skip_comments(csv_input *input)
{
    while (input->position < input->byte_count && input->bytes[input->position] == '#') {
        const char *start = input->bytes + input->position;
        const char *newline = memchr(start, '\n', input->byte_count - input->position);
        input->position +=
            newline != NULL ? (size_t)(newline - start) + 1 : input->byte_count - input->position;
        input->line++;
    }
}

/* A field in quotes, from its opening one: its text is moved together in place. The line counter
 * moves on over line ends, so that messages name the line on which the field stops. */
static kvt_status csv_quoted(csv_input *input, csv_field *field)
{
    char *bytes = input->bytes;
    size_t at = input->position + 1, written = at;
    field->text = bytes + written;
    for (;; at++) {
        if (at >= input->byte_count) return csv_fail(input, "a quote that is never closed");
        if (bytes[at] == '"') {
            if (at + 1 >= input->byte_count || bytes[at + 1] != '"') break;
            at++;
        }
        if (bytes[at] == '\0') return csv_fail(input, "a NUL byte");
        input->line += bytes[at] == '\n';
        bytes[written++] = bytes[at];
    }
    field->length = (size_t)(bytes + written - field->text);
    input->position = at + 1;
    if (input->position >= input->byte_count || memchr(",\r\n", bytes[input->position], 3) != NULL)
        return KVT_OK;
    return csv_fail(input, "text behind a closing quote");
}

/* A field up to a comma or the line's end. */
static kvt_status csv_plain(csv_input *input, csv_field *field)
{
    const char *bytes = input->bytes;
    size_t at = input->position, left = input->byte_count - at;
    const char *newline = memchr(bytes + at, '\n', left);
    size_t length = newline != NULL ? (size_t)(newline - (bytes + at)) : left;
    const char *comma = memchr(bytes + at, ',', length);
    if (comma != NULL) {
        length = (size_t)(comma - (bytes + at));
    } else if (length > 0 && bytes[at + length - 1] == '\r') {
        length--;
    }
    if (memchr(bytes + at, '\0', length) != NULL) return csv_fail(input, "a NUL byte");
    *field = (csv_field){bytes + at, length};
    input->position += length;
    return KVT_OK;
}

/* Behind a field: true when the line ends here, and then the position is at the next one. */
static bool csv_line_ends(csv_input *input)
{
    const char *bytes = input->bytes;
    size_t at = input->position, count = input->byte_count;
    if (at < count && bytes[at] == ',') {
        input->position++;
        return false;
    }
    if (at < count && bytes[at] == '\r') at++;
    if (at < count && bytes[at] == '\n') at++;
    input->position = at;
    return true;
}

/* Splits the line at the position, which is not the end. An empty one has one empty field. */
static kvt_status csv_split(csv_input *input)
{
    input->line++;
    input->field_count = 0;
    for (;;) {
        csv_field field = {NULL, 0};
        bool quoted = input->position < input->byte_count && input->bytes[input->position] == '"';
        if (input->field_count == CSV_FIELDS_MAX) return csv_fail(input, "too many fields");
        kvt_status status = quoted ? csv_quoted(input, &field) : csv_plain(input, &field);
        if (status != KVT_OK) return status;
        input->fields[input->field_count++] = field;
        if (csv_line_ends(input)) return KVT_OK;
    }
}

static bool csv_is_empty(const csv_input *input)
{
    return input->field_count == 1 && input->fields[0].length == 0;
}

/* Refuses a line by the columns that it should have. */
static kvt_status csv_fail_columns(csv_input *input, const char *const *names, size_t count)
{
    char reason[512];
    int used =
        snprintf(reason, sizeof reason,
                 "%u fields, where %u are meant: ", (unsigned)input->field_count, (unsigned)count);
    for (size_t i = 0; i < count && used > 0 && (size_t)used < sizeof reason; i++)
        used += snprintf(reason + used, sizeof reason - (size_t)used, "%s%s", i > 0 ? "," : "",
                         names[i]);
    return csv_fail(input, reason);
}

kvt_status csv_next(csv_input *input, const char *const *names, size_t count)
{
    csv_skip_comments(input);
    if (input->position >= input->byte_count) return KVT_END;
    kvt_status status = csv_split(input);
    if (status != KVT_OK) return status;
    if (csv_is_empty(input)) return csv_fail(input, "an empty line");
    return input->field_count == count ? KVT_OK : csv_fail_columns(input, names, count);
}

kvt_status csv_next_header(csv_input *input, const char *const *names, size_t count)
{
    kvt_status status = csv_next(input, names, count);
    for (size_t i = 0; status == KVT_OK && i < count; i++) {
        char reason[128];
        if (csv_is(input, i, names[i])) continue;
        (void)snprintf(reason, sizeof reason, "column %u of the header line is not '%s'",
                       (unsigned)i + 1, names[i]);
        status = csv_fail(input, reason);
    }
    return status;
}

kvt_status csv_next_any(csv_input *input)
{
    for (;;) {
        csv_skip_comments(input);
        if (input->position >= input->byte_count) return KVT_END;
        kvt_status status = csv_split(input);
        if (status != KVT_OK || !csv_is_empty(input)) return status;
    }
}

static bool csv_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

kvt_status csv_u32(csv_input *input, size_t field, uint32_t *out)
{
    const csv_field *text = &input->fields[field];
    uint64_t value = 0;
    if (text->length == 0 || text->length > 10) return csv_fail(input, "not a whole number");
    for (size_t i = 0; i < text->length; i++) {
        if (!csv_is_digit(text->text[i])) return csv_fail(input, "not a whole number");
        value = 10 * value + (uint64_t)(text->text[i] - '0');
    }
    if (value > UINT32_MAX) return csv_fail(input, "a number out of range");
    *out = (uint32_t)value;
    return KVT_OK;
}

/* digits [. digits] [e [sign] digits], not negative. */
kvt_status csv_number(csv_input *input, size_t field, double max, double *out)
{
    const char *text = input->fields[field].text;
    const char *end = text + input->fields[field].length;
    double value = 0.0;
    int exponent = 0, written = 0;
    size_t digits = 0;
    for (; text < end && csv_is_digit(*text); text++, digits++)
        value = 10.0 * value + (*text - '0');
    if (text < end && *text == '.') {
        for (text++; text < end && csv_is_digit(*text); text++, digits++, exponent--) {
            value = 10.0 * value + (*text - '0');
        }
    }
    if (digits == 0 || digits > 40) return csv_fail(input, "not a number");
    if (text < end && (*text == 'e' || *text == 'E')) {
        bool negative = ++text < end && *text == '-';
        if (text < end && (*text == '-' || *text == '+')) text++;
        const char *first = text;
        for (; text < end && csv_is_digit(*text) && written < 1000; text++) {
            written = 10 * written + (*text - '0');
        }
        if (text == first) return csv_fail(input, "not a number");
        exponent += negative ? -written : written;
    }
    if (text != end) return csv_fail(input, "not a number");
    value = exponent < 0 ? value / pow(10.0, -exponent) : value * pow(10.0, exponent);
    if (!isfinite(value) || value > max) return csv_fail(input, "a number out of range");
    *out = value;
    return KVT_OK;
}

bool csv_is(const csv_input *input, size_t field, const char *text)
{
    const csv_field *value = &input->fields[field];
    return value->length == strlen(text) && memcmp(value->text, text, value->length) == 0;
}
