/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.h - byte-pair encoding with a llama2.c vocabulary (SentencePiece style): int32 longest
 * piece, then for each piece fp32 score, int32 length, bytes. Ids: 0 unknown, 1 begin, 2 end,
 * 3..258 the bytes 0..255, the rest pieces.
 *
 * Thread rule: an open tokenizer may be used by any number of threads.
 */
#ifndef ESTIMATOR_TOKENIZER_H
#define ESTIMATOR_TOKENIZER_H

#include <kvterrace/status.h>

#include <stddef.h>
#include <stdint.h>

enum {
    TOKENIZER_UNKNOWN = 0,
    TOKENIZER_BEGIN = 1,
    TOKENIZER_END = 2,
    TOKENIZER_BYTE_FIRST = 3,
    TOKENIZER_PIECE_FIRST = 259,
    TOKENIZER_PIECE_BYTES_MAX = 256
};

typedef struct tokenizer tokenizer;

/* Reads a vocabulary; `vocab` is how many pieces it must have, 0 for as many as there are.
 * KVT_OK; KVT_E_CORRUPT (message says where); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tokenizer_open(const char *path, uint32_t vocab, tokenizer **tokenizer_out,
                                        char *message, size_t message_size);
void tokenizer_close(tokenizer *tokens); /* NULL is allowed */
uint32_t tokenizer_vocab(const tokenizer *tokens);

/* The most ids that a text of `bytes` bytes can become, begin token and leading blank included. */
static inline size_t tokenizer_bound(size_t bytes)
{
    return bytes + 2;
}

/*
 * Encodes any bytes: the begin token, the piece for a leading blank (unless the text is empty), one
 * piece per UTF-8 character or bytes where a character has none; then the adjacent pair whose
 * joined piece has the highest score, the leftmost of equals, is merged until no pair has one.
 * ids_out has room for tokenizer_bound(bytes). KVT_OK or KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status tokenizer_encode(const tokenizer *tokens, const char *text, size_t bytes,
                                          uint32_t *ids_out, size_t *count_out);

/* Decodes ids into bytes, without a terminator; begin and end tokens give nothing, and the blank
 * that encoding puts first in a text (after a begin token, or at the start) is taken away.
 * KVT_OK; KVT_E_ARGUMENT (an id outside the vocabulary); KVT_E_SPACE (*bytes_out is what is
 * needed). */
KVT_NODISCARD kvt_status tokenizer_decode(const tokenizer *tokens, const uint32_t *ids,
                                          size_t count, char *text_out, size_t capacity,
                                          size_t *bytes_out);

#endif
