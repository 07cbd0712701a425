/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_resp.c - any bytes of a server, cut anywhere: the reader ends, nothing is written beyond a
 * target, and all ways to cut them give the same tokens.
 *
 * The first byte of the input chooses how it is cut.
 */
#include "remote/resp.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROOM 300u

typedef struct reading {
    uint8_t target[ROOM + 16]; /* with a guard behind */
    struct iovec parts[2];
    uint64_t sum; /* over the tokens */
    uint32_t open, tokens;
} reading;

static bool reading_place(void *context, uint64_t bytes, resp_target *target_out)
{
    reading *at = context;
    if (bytes > ROOM || bytes % 3 == 0) return false;
    at->parts[0] = (struct iovec){at->target, 100};
    at->parts[1] = (struct iovec){at->target + 100, ROOM - 100};
    *target_out = (resp_target){at->parts, 2};
    return true;
}

static kvt_status reading_token(void *context, const resp_token *token)
{
    reading *at = context;
    if (token->depth > RESP_DEPTH_MAX) abort();
    if (token->text != NULL && token->text_bytes > RESP_BUFFER_BYTES) abort();
    uint64_t sum = at->sum * 31 + (uint64_t)token->type + token->depth * 7u +
                   (uint64_t)token->number * 13u + (token->ends ? 3u : 0u);
    for (uint32_t i = 0; token->text != NULL && i < token->text_bytes; i++)
        sum = sum * 131 + (uint8_t)token->text[i];
    for (int64_t i = 0; token->placed && i < token->number; i++)
        sum = sum * 137 + at->target[i];
    at->sum = sum;
    at->tokens++;
    return KVT_OK;
}

static const resp_hooks reading_hooks = {reading_place, reading_token};

static void read_all(reading *at, const uint8_t *data, size_t size, size_t step)
{
    static resp_reader reader;
    resp_init(&reader, &reading_hooks, at);
    memset(at->target, 0xa5, sizeof at->target);
    kvt_status status = KVT_OK;
    while (size > 0 && status == KVT_OK) {
        struct iovec spaces[RESP_SPACES];
        const uint32_t count = resp_space(&reader, spaces);
        size_t given = 0;
        for (uint32_t i = 0; i < count && given < step && given < size; i++) {
            size_t part = spaces[i].iov_len;
            if (part > step - given) part = step - given;
            if (part > size - given) part = size - given;
            memcpy(spaces[i].iov_base, data + given, part);
            given += part;
        }
        if (given == 0) abort();
        status = resp_got(&reader, given);
        data += given;
        size -= given;
    }
    if (status != KVT_OK && status != KVT_E_CORRUPT && status != KVT_E_SPACE) abort();
    for (size_t i = ROOM; i < sizeof at->target; i++)
        if (at->target[i] != 0xa5) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static reading whole, cut;
    if (size < 2) return 0;
    memset(&whole, 0, sizeof whole);
    memset(&cut, 0, sizeof cut);
    read_all(&whole, data + 1, size - 1, size);
    read_all(&cut, data + 1, size - 1, data[0] % 37 + 1u);
    if (whole.tokens != cut.tokens || whole.sum != cut.sum) abort();
    return 0;
}
