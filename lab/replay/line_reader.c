/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line_reader.c - fread, an optional streaming zstd decoder, and lines cut out of its output.
 * One thread per reader.
 */
#include "line_reader.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LINES_INPUT_BYTES (128u << 10)
#define LINES_CHUNK_BYTES (256u << 10)

struct replay_line_reader {
    FILE *file;
    ZSTD_DStream *decoder; /* NULL = plain text */
    const char *path;
    uint8_t *input; /* compressed bytes, LINES_INPUT_BYTES */
    ZSTD_inBuffer input_view;
    bool frame_open; /* the decoder is inside a frame */
    bool input_ended;
    char *text; /* decoded bytes not yet returned: text[begin..end) */
    size_t text_room;
    size_t begin, end;
    size_t scanned; /* bytes after begin that hold no line end */
    uint64_t number;
    char *path_copy;
};

static kvt_status lines_fail(const replay_line_reader *reader, kvt_status status,
                             const char *reason, char *message, size_t message_size)
{
    snprintf(message, message_size, "%s:%llu: %s", reader->path,
             (unsigned long long)reader->number + 1, reason);
    return status;
}

kvt_status replay_lines_open(const char *path, replay_line_reader **reader_out, char *message,
                             size_t message_size)
{
    static const uint8_t zstd_magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    kvt_status status = KVT_E_MEMORY;
    snprintf(message, message_size, "%s: out of memory", path);
    replay_line_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) return KVT_E_MEMORY;
    reader->input = malloc(LINES_INPUT_BYTES);
    reader->path_copy = strdup(path);
    if (reader->input == NULL || reader->path_copy == NULL) goto fail;
    reader->path = reader->path_copy;
    reader->file = fopen(path, "rb");
    if (reader->file == NULL) {
        status = errno == ENOENT || errno == ENOTDIR ? KVT_E_GONE : KVT_E_IO;
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        goto fail;
    }
    reader->input_view.src = reader->input;
    reader->input_view.size = fread(reader->input, 1, LINES_INPUT_BYTES, reader->file);
    if (ferror(reader->file)) {
        status = KVT_E_IO;
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (reader->input_view.size >= 4 && memcmp(reader->input, zstd_magic, 4) == 0) {
        reader->decoder = ZSTD_createDStream();
        if (reader->decoder == NULL) goto fail;
        size_t set = ZSTD_DCtx_setParameter(reader->decoder, ZSTD_d_windowLogMax, 27);
        assert(!ZSTD_isError(set));
        (void)set;
    }
    *reader_out = reader;
    message[0] = '\0';
    return KVT_OK;
fail:
    replay_lines_close(reader);
    return status;
}

/* Fills the input view when it is used up. KVT_OK, or KVT_E_IO. */
static kvt_status lines_refill(replay_line_reader *reader, char *message, size_t message_size)
{
    if (reader->input_view.pos < reader->input_view.size || reader->input_ended) return KVT_OK;
    reader->input_view.pos = 0;
    reader->input_view.size = fread(reader->input, 1, LINES_INPUT_BYTES, reader->file);
    if (reader->input_view.size == 0) {
        if (ferror(reader->file)) {
            return lines_fail(reader, KVT_E_IO, "read failed", message, message_size);
        }
        reader->input_ended = true;
    }
    return KVT_OK;
}

/* Appends decoded bytes to text. KVT_OK; KVT_END when the input is used up; an error. */
static kvt_status lines_decode(replay_line_reader *reader, char *message, size_t message_size)
{
    if (reader->begin > 0) {
        memmove(reader->text, reader->text + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->text_room - reader->end < LINES_CHUNK_BYTES + 1) {
        size_t room = reader->text_room * 2 + LINES_CHUNK_BYTES + 1;
        char *grown = realloc(reader->text, room);
        if (grown == NULL) {
            return lines_fail(reader, KVT_E_MEMORY, "out of memory", message, message_size);
        }
        reader->text = grown;
        reader->text_room = room;
    }
    kvt_status status = lines_refill(reader, message, message_size);
    if (status != KVT_OK) return status;
    ZSTD_inBuffer *view = &reader->input_view;
    if (reader->decoder == NULL) {
        if (reader->input_ended) return KVT_END;
        size_t room = reader->text_room - reader->end - 1, bytes = view->size - view->pos;
        if (bytes > room) bytes = room;
        memcpy(reader->text + reader->end, reader->input + view->pos, bytes);
        view->pos += bytes;
        reader->end += bytes;
        return KVT_OK;
    }
    if (reader->input_ended && !reader->frame_open) return KVT_END;
    ZSTD_outBuffer out = {.dst = reader->text + reader->end, .size = LINES_CHUNK_BYTES};
    size_t rest = ZSTD_decompressStream(reader->decoder, &out, view);
    if (ZSTD_isError(rest)) {
        return lines_fail(reader, KVT_E_PARSE, "damaged zstd data", message, message_size);
    }
    reader->frame_open = rest != 0;
    reader->end += out.pos;
    if (reader->input_ended && out.pos == 0 && rest != 0) {
        return lines_fail(reader, KVT_E_PARSE, "zstd data ends inside a frame", message,
                          message_size);
    }
    return KVT_OK;
}

kvt_status replay_lines_next(replay_line_reader *reader, char **line_out, size_t *bytes_out,
                             char *message, size_t message_size)
{
    char *newline = NULL;
    for (;;) {
        size_t have = reader->end - reader->begin;
        if (have > reader->scanned) {
            newline = memchr(reader->text + reader->begin + reader->scanned, '\n',
                             have - reader->scanned);
        }
        reader->scanned = have;
        size_t length = newline != NULL ? (size_t)(newline - reader->text) - reader->begin : have;
        if (length > REPLAY_LINE_BYTES_MAX) {
            return lines_fail(reader, KVT_E_PARSE, "line longer than 4 MiB", message, message_size);
        }
        if (newline != NULL) break;
        kvt_status status = lines_decode(reader, message, message_size);
        if (status == KVT_END && have > 0) break;
        if (status != KVT_OK) return status;
    }
    char *line = reader->text + reader->begin;
    size_t bytes = newline != NULL ? (size_t)(newline - line) : reader->end - reader->begin;
    reader->begin += bytes + (newline != NULL);
    reader->scanned = 0;
    if (memchr(line, '\0', bytes) != NULL) {
        return lines_fail(reader, KVT_E_PARSE, "the line holds a NUL byte", message, message_size);
    }
    if (bytes > 0 && line[bytes - 1] == '\r') bytes--;
    line[bytes] = '\0';
    reader->number++;
    *line_out = line;
    *bytes_out = bytes;
    return KVT_OK;
}

uint64_t replay_lines_number(const replay_line_reader *reader)
{
    return reader->number;
}

void replay_lines_close(replay_line_reader *reader)
{
    if (reader == NULL) return;
    if (reader->file != NULL) fclose(reader->file);
    if (reader->decoder != NULL) ZSTD_freeDStream(reader->decoder);
    free(reader->input);
    free(reader->text);
    free(reader->path_copy);
    free(reader);
}
