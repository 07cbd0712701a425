/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resp.h - reads the replies of RESP2 and RESP3 from any bytes: a server is not trusted. The reader
 * knows no socket: resp_space says where the next bytes go, resp_got how many came.
 *
 *     a reply = one token, or an aggregate and its elements; `ends` marks its last token
 *
 * Bounds: RESP_LINE_MAX bytes of a head line; RESP_DEPTH_MAX aggregates in each other;
 * RESP_ELEMENTS_MAX elements of a reply; a bulk text of at most REMOTE_VALUE_MAX bytes. A longer
 * value that a server may hold ends resp_got with KVT_E_SPACE, bulk_bytes being its length.
 *
 * Thread rule: one thread at a time per reader.
 */
#ifndef REMOTE_RESP_H
#define REMOTE_RESP_H

#include "remote/client.h"

#define RESP_BUFFER_BYTES 16384u
#define RESP_LINE_MAX     16000u       /* of a head line */
#define RESP_TEXT_MAX     8192u        /* a bulk text up to this is given with its token */
#define RESP_BULK_MAX     (512u << 20) /* a longer one is none that a server holds */
#define RESP_DEPTH_MAX    8u
#define RESP_ELEMENTS_MAX 65536u

/* One part of a reply. */
typedef struct resp_token {
    char type;        /* + - : $ * _ # , ( ! = % ~ > */
    bool ends;        /* the reply ends with this token */
    bool placed;      /* a bulk text that has gone where `place` said */
    uint32_t depth;   /* 0: the reply itself */
    int64_t number;   /* of ':'; elements of * % ~ >; bytes of a bulk text; -1 for no value */
    const char *text; /* until the hook returns; NULL where there is none, or it was placed or
                            passed over */
    uint32_t text_bytes;
} resp_token;

/* Where a bulk text of depth 0 goes. */
typedef struct resp_target {
    const struct iovec *parts;
    uint32_t part_count;
} resp_target;

typedef struct resp_hooks {
    /* A bulk text of depth 0 begins. False: it is given with its token, or passed over when it is
     * long. True: it goes to the target, which has room for it and stays until the token, or until
     * resp_forget. */
    bool (*place)(void *context, uint64_t bytes, resp_target *target_out);
    /* Takes a token. Another status than KVT_OK ends resp_got. */
    kvt_status (*token)(void *context, const resp_token *token);
} resp_hooks;

typedef enum resp_bulk { RESP_NO_BULK = 0, RESP_TEXT, RESP_PLACED, RESP_PASSED } resp_bulk;

typedef struct resp_reader {
    const resp_hooks *hooks;
    void *context;
    uint32_t begin, end; /* of the bytes in the buffer that are not read yet */
    uint32_t depth;
    uint32_t elements;             /* of the reply so far */
    uint32_t left[RESP_DEPTH_MAX]; /* elements that each open aggregate lacks */
    resp_bulk bulk;                /* under way */
    char bulk_type;
    uint64_t bulk_bytes, bulk_left;
    resp_target target;
    uint32_t target_part;
    size_t target_at;
    char buffer[RESP_BUFFER_BYTES];
} resp_reader;

#define RESP_SPACES (REMOTE_PARTS_MAX + 1u)

void resp_init(resp_reader *reader, const resp_hooks *hooks, void *context);

/* Where the next bytes go, in order; at least one byte of room. Returns how many pieces. */
uint32_t resp_space(resp_reader *reader, struct iovec spaces[RESP_SPACES]);

/* So many bytes have come. KVT_OK; KVT_E_CORRUPT: no reply goes on like this, and nothing more can
 * be read; or what the token hook said. */
KVT_NODISCARD kvt_status resp_got(resp_reader *reader, size_t bytes);

/* The target of the bulk text under way is not to be written any more; the rest is passed over. */
void resp_forget(resp_reader *reader);

/* Whether it is under way into a target. */
static inline bool resp_is_placing(const resp_reader *reader)
{
    return reader->bulk == RESP_PLACED;
}

#endif
