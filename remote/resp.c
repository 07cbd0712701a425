/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resp.c - the reader of replies (resp.h). The buffer holds head lines and short texts; a bulk text
 * that is placed goes from the socket to its target without it, but for what came with its head.
 *
 * Thread rule: one thread at a time per reader.
 */
#include "remote/resp.h"

#include <assert.h>
#include <string.h>

void resp_init(resp_reader *reader, const resp_hooks *hooks, void *context)
{
    *reader = (resp_reader){.hooks = hooks, .context = context};
}

void resp_forget(resp_reader *reader)
{
    if (reader->bulk == RESP_PLACED) reader->bulk = RESP_PASSED;
}

uint32_t resp_space(resp_reader *reader, struct iovec spaces[RESP_SPACES])
{
    uint32_t count = 0;
    uint64_t left = reader->bulk == RESP_PLACED ? reader->bulk_left : 0;
    assert(left == 0 || reader->begin == reader->end);
    for (uint32_t i = reader->target_part; left > 0 && i < reader->target.part_count; i++) {
        const size_t at = i == reader->target_part ? reader->target_at : 0;
        size_t bytes = reader->target.parts[i].iov_len - at;
        if (bytes > left) bytes = (size_t)left;
        if (bytes == 0) continue;
        spaces[count++] = (struct iovec){(char *)reader->target.parts[i].iov_base + at, bytes};
        left -= bytes;
    }
    assert(left == 0 && reader->end < RESP_BUFFER_BYTES);
    spaces[count++] = (struct iovec){reader->buffer + reader->end, RESP_BUFFER_BYTES - reader->end};
    return count;
}

/* Goes on in the target by so many bytes, which are copied from `from` unless they are there. */
static void resp_place(resp_reader *reader, const char *from, size_t bytes)
{
    assert(bytes <= reader->bulk_left);
    reader->bulk_left -= bytes;
    while (bytes > 0) {
        assert(reader->target_part < reader->target.part_count);
        const struct iovec *part = &reader->target.parts[reader->target_part];
        size_t step = part->iov_len - reader->target_at;
        if (step > bytes) step = bytes;
        if (from != NULL && step > 0)
            memcpy((char *)part->iov_base + reader->target_at, from, step);
        if (from != NULL) from += step;
        reader->target_at += step;
        bytes -= step;
        if (reader->target_at < part->iov_len) continue;
        reader->target_part++;
        reader->target_at = 0;
    }
}

/* Gives a token to the hook. opens: elements of an aggregate that follow. */
static kvt_status resp_give(resp_reader *reader, resp_token *token, uint32_t opens)
{
    token->depth = reader->depth;
    if (opens > 0) {
        if (reader->depth == RESP_DEPTH_MAX) return KVT_E_CORRUPT;
        if (opens > RESP_ELEMENTS_MAX - reader->elements) return KVT_E_CORRUPT;
        reader->elements += opens;
        reader->left[reader->depth++] = opens;
        return reader->hooks->token(reader->context, token);
    }
    while (reader->depth > 0 && --reader->left[reader->depth - 1] == 0)
        reader->depth--;
    token->ends = reader->depth == 0;
    if (token->ends) reader->elements = 0;
    return reader->hooks->token(reader->context, token);
}

/* A number in decimal that fills the text. */
static bool resp_number(const char *text, size_t bytes, int64_t *out)
{
    const bool negative = bytes > 0 && text[0] == '-';
    int64_t number = 0;
    if (negative) text++, bytes--;
    if (bytes == 0 || bytes > 18) return false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (text[i] - '0');
    }
    *out = negative ? -number : number;
    return true;
}

/* A bulk text of so many bytes begins. */
static kvt_status resp_begin_bulk(resp_reader *reader, char type, uint64_t bytes)
{
    const bool value = type == '$' && reader->depth == 0 && bytes <= RESP_BULK_MAX;
    reader->bulk_type = type;
    reader->bulk_bytes = reader->bulk_left = bytes;
    if (bytes > REMOTE_VALUE_MAX) return value ? KVT_E_SPACE : KVT_E_CORRUPT;
    reader->bulk = bytes <= RESP_TEXT_MAX ? RESP_TEXT : RESP_PASSED;
    reader->target = (resp_target){.part_count = 0};
    reader->target_part = 0;
    reader->target_at = 0;
    if (type == '$' && reader->depth == 0 &&
        reader->hooks->place(reader->context, bytes, &reader->target))
        reader->bulk = RESP_PLACED;
    return KVT_OK;
}

/* Takes a head line, without its end. */
static kvt_status resp_take_head(resp_reader *reader, const char *line, size_t bytes)
{
    resp_token token = {.type = line[0], .number = -1};
    if (bytes == 0) return KVT_E_CORRUPT;
    const char *rest = line + 1;
    const size_t rest_bytes = bytes - 1;
    switch (token.type) {
    case '+':
    case '-':
    case ',':
    case '(':
        token.text = rest;
        token.text_bytes = (uint32_t)rest_bytes;
        return resp_give(reader, &token, 0);
    case '#':
        if (rest_bytes != 1 || (rest[0] != 't' && rest[0] != 'f')) return KVT_E_CORRUPT;
        token.number = rest[0] == 't';
        return resp_give(reader, &token, 0);
    case '_': return rest_bytes == 0 ? resp_give(reader, &token, 0) : KVT_E_CORRUPT;
    case ':':
        if (!resp_number(rest, rest_bytes, &token.number)) return KVT_E_CORRUPT;
        return resp_give(reader, &token, 0);
    case '$':
    case '!':
    case '=':
        if (!resp_number(rest, rest_bytes, &token.number)) return KVT_E_CORRUPT;
        if (token.number >= 0) return resp_begin_bulk(reader, token.type, (uint64_t)token.number);
        return token.number == -1 ? resp_give(reader, &token, 0) : KVT_E_CORRUPT;
    case '*':
    case '%':
    case '~':
    case '>':
        if (!resp_number(rest, rest_bytes, &token.number)) return KVT_E_CORRUPT;
        if (token.number < -1 || token.number > RESP_ELEMENTS_MAX / 2) return KVT_E_CORRUPT;
        if (token.number <= 0) return resp_give(reader, &token, 0);
        return resp_give(reader, &token, (uint32_t)token.number * (token.type == '%' ? 2u : 1u));
    default: return KVT_E_CORRUPT;
    }
}

/* Goes on in the bulk text under way. KVT_QUEUED: more bytes are needed. */
static kvt_status resp_take_bulk(resp_reader *reader)
{
    const char *from = reader->buffer + reader->begin;
    size_t here = reader->end - reader->begin;
    resp_token token = {.type = reader->bulk_type,
                        .placed = reader->bulk == RESP_PLACED,
                        .number = (int64_t)reader->bulk_bytes};
    if (reader->bulk != RESP_TEXT && reader->bulk_left > 0) {
        const size_t step = here < reader->bulk_left ? here : (size_t)reader->bulk_left;
        if (reader->bulk == RESP_PLACED)
            resp_place(reader, from, step);
        else
            reader->bulk_left -= step;
        reader->begin += (uint32_t)step;
        from += step;
        here -= step;
    }
    if (here < reader->bulk_left + 2) return KVT_QUEUED;
    if (reader->bulk == RESP_TEXT) {
        token.text = from;
        token.text_bytes = (uint32_t)reader->bulk_bytes;
        from += reader->bulk_bytes;
        reader->begin += token.text_bytes;
    }
    if (from[0] != '\r' || from[1] != '\n') return KVT_E_CORRUPT;
    reader->begin += 2;
    reader->bulk = RESP_NO_BULK;
    reader->bulk_left = 0;
    return resp_give(reader, &token, 0);
}

/* Takes the next head line. KVT_QUEUED: it is not whole. */
static kvt_status resp_take_line(resp_reader *reader)
{
    const char *from = reader->buffer + reader->begin;
    const size_t here = reader->end - reader->begin;
    const char *end = here >= 2 ? memchr(from, '\r', here - 1) : NULL;
    if (end == NULL) return here <= RESP_LINE_MAX + 1 ? KVT_QUEUED : KVT_E_CORRUPT;
    if (end[1] != '\n' || end - from > (ptrdiff_t)RESP_LINE_MAX) return KVT_E_CORRUPT;
    reader->begin += (uint32_t)(end - from) + 2;
    return resp_take_head(reader, from, (size_t)(end - from));
}

kvt_status resp_got(resp_reader *reader, size_t bytes)
{
    kvt_status status = KVT_OK;
    if (reader->bulk == RESP_PLACED) {
        const size_t step = bytes < reader->bulk_left ? bytes : (size_t)reader->bulk_left;
        resp_place(reader, NULL, step);
        bytes -= step;
    }
    assert(bytes <= RESP_BUFFER_BYTES - reader->end);
    reader->end += (uint32_t)bytes;
    while (status == KVT_OK)
        status = reader->bulk != RESP_NO_BULK ? resp_take_bulk(reader) : resp_take_line(reader);
    /* The bytes that are left begin a line or a short text; they move to the front. */
    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    return status == KVT_QUEUED ? KVT_OK : status;
}
