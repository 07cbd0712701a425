/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_file.c - reads and unpacks; what a frame claims of its size is not believed. Thread rule:
 * any thread.
 */
#include "estimator/exchange/text_file.h"

#include "estimator/exchange/file_kind.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define TEXT_BYTES_MAX (UINT64_C(64) << 20)
#define TEXT_CHUNK     (UINT64_C(256) << 10)

/* Room for more bytes behind the first `count`; NULL: there is none, and the bytes are as before.
 */
static char *text_grow(char **bytes, size_t count, size_t *capacity)
{
    if (count < *capacity) return *bytes;
    const size_t more = *capacity == 0 ? TEXT_CHUNK : 2 * *capacity;
    char *grown = realloc(*bytes, more);
    if (grown == NULL) return NULL;
    *bytes = grown;
    *capacity = more;
    return grown;
}

/* A text that says what is wrong; NULL with *status KVT_OK. */
static const char *text_take(text_file *file, FILE *input, kvt_status *status)
{
    size_t capacity = 0, got;
    do {
        *status = KVT_E_MEMORY;
        if (text_grow(&file->bytes, file->size, &capacity) == NULL) return "out of memory";
        got = fread(file->bytes + file->size, 1, capacity - file->size, input);
        file->size += got;
        *status = KVT_E_PARSE;
        if (file->size > TEXT_BYTES_MAX) return "larger than 64 MiB";
    } while (got > 0);
    *status = ferror(input) ? KVT_E_IO : KVT_OK;
    return ferror(input) ? strerror(errno) : NULL;
}

/* The same for all frames of a packed file. */
static const char *text_unpack(text_file *file, kvt_status *status)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer source = {file->bytes, file->size, 0};
    size_t capacity = 0, count = 0, hint = stream != NULL;
    char *unpacked = NULL;
    const char *fault = NULL;
    *status = KVT_E_PARSE;
    while (fault == NULL && hint != 0) {
        if (text_grow(&unpacked, count, &capacity) == NULL) break;
        ZSTD_outBuffer target = {unpacked, capacity, count};
        const size_t before = source.pos;
        hint = ZSTD_decompressStream(stream, &target, &source);
        const bool stuck = source.pos == before && target.pos == count && hint != 0;
        count = target.pos;
        if (ZSTD_isError(hint))
            fault = ZSTD_getErrorName(hint);
        else if (stuck)
            fault = "the compressed file is cut off";
        else if (count > TEXT_BYTES_MAX)
            fault = "larger than 64 MiB unpacked";
        else if (hint == 0 && source.pos < source.size)
            hint = 1; /* another frame follows */
    }
    if (fault == NULL && (stream == NULL || hint != 0)) {
        *status = KVT_E_MEMORY;
        fault = "out of memory";
    }
    ZSTD_freeDStream(stream);
    free(file->bytes);
    file->bytes = unpacked;
    file->size = count;
    if (fault == NULL) *status = KVT_OK;
    return fault;
}

kvt_status text_file_read(text_file *file, const char *path, char *message, size_t message_size)
{
    char reason[96];
    *file = (text_file){.bytes = NULL};
    kvt_status status = KVT_E_GONE;
    const char *fault = "the path is too long";
    const int length = snprintf(file->path, sizeof file->path, "%s", path);
    if (length >= 0 && (size_t)length + sizeof ".zst" <= sizeof file->path) {
        bool packed = length > 4 && strcmp(path + length - 4, ".zst") == 0;
        FILE *input = fopen(file->path, "rbe");
        if (input == NULL && !packed) {
            memcpy(file->path + length, ".zst", sizeof ".zst");
            packed = (input = fopen(file->path, "rbe")) != NULL;
            if (!packed) file->path[length] = '\0';
        }
        fault = input == NULL ? strerror(errno) : text_take(file, input, &status);
        if (input != NULL) (void)fclose(input);
        if (fault == NULL && packed) fault = text_unpack(file, &status);
    }
    const char *kind = fault == NULL ? file_kind_of(file->bytes, file->size) : NULL;
    if (kind != NULL) {
        (void)snprintf(reason, sizeof reason, "this is %s", kind);
        fault = reason;
        status = KVT_E_PARSE;
    }
    if (fault == NULL) return KVT_OK;
    if (message != NULL && message_size > 0)
        (void)snprintf(message, message_size, "%s: %s", file->path, fault);
    text_file_free(file);
    return status;
}

void text_file_free(text_file *file)
{
    free(file->bytes);
    file->bytes = NULL;
    file->size = 0;
}
