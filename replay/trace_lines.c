/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_lines.c - lines out of fread and an optional streaming decoder of zstd or gzip.
 * One thread per reader.
 */
#include "trace_lines.h"

#include "estimator/exchange/file_kind.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#define LINES_INPUT_BYTES (128u << 10)
#define LINES_CHUNK_BYTES (256u << 10)

static const char lines_mark[] = "\xef\xbb\xbf"; /* of UTF-8, which some editors begin with */

struct replay_line_reader {
    FILE *file;
    const char *packing; /* "zstd" or "gzip"; NULL = plain text */
    ZSTD_DStream *zstd;
    z_stream gzip;
    const char *path;
    uint8_t *input; /* bytes of the file, LINES_INPUT_BYTES */
    ZSTD_inBuffer input_view;
    bool frame_open; /* the decoder is inside a frame, or a member */
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

/* Makes the decoder that the file's first bytes ask for. KVT_OK; KVT_E_MEMORY. */
static kvt_status lines_choose(replay_line_reader *reader)
{
    static const uint8_t zstd_magic[4] = {0x28, 0xb5, 0x2f, 0xfd}, gzip_magic[2] = {0x1f, 0x8b};
    if (reader->input_view.size >= 4 && memcmp(reader->input, zstd_magic, 4) == 0) {
        reader->packing = "zstd";
        reader->zstd = ZSTD_createDStream();
        if (reader->zstd == NULL) return KVT_E_MEMORY;
        size_t set = ZSTD_DCtx_setParameter(reader->zstd, ZSTD_d_windowLogMax, 27);
        assert(!ZSTD_isError(set));
        (void)set;
    } else if (reader->input_view.size >= 2 && memcmp(reader->input, gzip_magic, 2) == 0) {
        if (inflateInit2(&reader->gzip, 16 + MAX_WBITS) != Z_OK) return KVT_E_MEMORY;
        reader->packing = "gzip";
    }
    return KVT_OK;
}

kvt_status replay_lines_open(const char *path, replay_line_reader **reader_out, char *message,
                             size_t message_size)
{
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
    status = lines_choose(reader);
    if (status != KVT_OK) goto fail;
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

/* The decoders take what the view holds, write at most LINES_CHUNK_BYTES to `out`, and say how many
 * these are; false: the bytes are damaged. */
static bool lines_unpack_zstd(replay_line_reader *reader, char *out, size_t *bytes_out)
{
    ZSTD_outBuffer view = {.dst = out, .size = LINES_CHUNK_BYTES};
    size_t rest = ZSTD_decompressStream(reader->zstd, &view, &reader->input_view);
    if (ZSTD_isError(rest)) return false;
    reader->frame_open = rest != 0;
    *bytes_out = view.pos;
    return true;
}

/* Members follow each other, as `cat a.gz b.gz` and parallel packers leave them. */
static bool lines_unpack_gzip(replay_line_reader *reader, char *out, size_t *bytes_out)
{
    ZSTD_inBuffer *view = &reader->input_view;
    z_stream *stream = &reader->gzip;
    *bytes_out = 0;
    if (view->pos < view->size && !reader->frame_open && inflateReset(stream) != Z_OK) return false;
    if (view->pos < view->size) reader->frame_open = true;
    stream->next_in = reader->input + view->pos;
    stream->avail_in = (uInt)(view->size - view->pos);
    stream->next_out = (Bytef *)out;
    stream->avail_out = LINES_CHUNK_BYTES;
    int code = inflate(stream, Z_NO_FLUSH);
    view->pos = view->size - stream->avail_in;
    *bytes_out = LINES_CHUNK_BYTES - stream->avail_out;
    if (code == Z_STREAM_END) reader->frame_open = false;
    /* Without input and output nothing is wrong but the end of the file, which the caller sees. */
    return code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR;
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
    if (reader->input_ended && !reader->frame_open) return KVT_END;
    char *out = reader->text + reader->end;
    if (reader->packing == NULL) {
        size_t room = reader->text_room - reader->end - 1, bytes = view->size - view->pos;
        if (bytes > room) bytes = room;
        memcpy(out, reader->input + view->pos, bytes);
        view->pos += bytes;
        reader->end += bytes;
        return KVT_OK;
    }
    char reason[64];
    size_t bytes = 0;
    if (reader->zstd != NULL ? !lines_unpack_zstd(reader, out, &bytes)
                             : !lines_unpack_gzip(reader, out, &bytes)) {
        snprintf(reason, sizeof reason, "damaged %s data", reader->packing);
        return lines_fail(reader, KVT_E_PARSE, reason, message, message_size);
    }
    reader->end += bytes;
    if (reader->input_ended && bytes == 0 && reader->frame_open) {
        snprintf(reason, sizeof reason, "the %s data ends too early: the file was cut",
                 reader->packing);
        return lines_fail(reader, KVT_E_PARSE, reason, message, message_size);
    }
    return KVT_OK;
}

/* Takes a byte order mark away and refuses what is no text. KVT_OK; KVT_E_PARSE. */
static kvt_status lines_begin(replay_line_reader *reader, char *message, size_t message_size)
{
    const char *text = reader->text + reader->begin;
    size_t bytes = reader->end - reader->begin;
    if (bytes >= 3 && memcmp(text, lines_mark, 3) == 0) {
        reader->begin += 3;
        return KVT_OK;
    }
    const char *kind = file_kind_of(text, bytes);
    if (kind == NULL) return KVT_OK;
    char reason[128];
    snprintf(reason, sizeof reason, "%s is %s", reader->packing != NULL ? "the content" : "this",
             kind);
    return lines_fail(reader, KVT_E_PARSE, reason, message, message_size);
}

kvt_status replay_lines_next(replay_line_reader *reader, char **line_out, size_t *bytes_out,
                             char *message, size_t message_size)
{
    char *newline = NULL;
    for (;;) {
        size_t have = reader->end - reader->begin;
        if (reader->number == 0 && reader->scanned == 0 && have > 0) {
            kvt_status status = lines_begin(reader, message, message_size);
            if (status != KVT_OK) return status;
            have = reader->end - reader->begin;
        }
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
    if (reader->zstd != NULL)
        ZSTD_freeDStream(reader->zstd);
    else if (reader->packing != NULL)
        (void)inflateEnd(&reader->gzip);
    free(reader->input);
    free(reader->text);
    free(reader->path_copy);
    free(reader);
}
