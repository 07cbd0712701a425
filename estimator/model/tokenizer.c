/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.c - byte-pair encoding and decoding (model.h). Merging keeps the symbols in a linked
 * list and the possible merges in a heap, so a text of n bytes takes O(n log n); the order of
 * merges is that of repeatedly scanning for the best pair. Thread rule: model.h.
 */
#include "estimator/model/model_internal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_NONE UINT32_MAX

struct tokenizer {
    model_map map;
    uint32_t vocab;
    tokenizer_piece *pieces;  /* by id */
    tokenizer_piece *ordered; /* by bytes, of equals the lowest id first; NULL: it only decodes */
    uint8_t *bytes;           /* of the pieces, where they are not the mapped file's; or NULL */
};

/* One symbol of the text being encoded; ends of the list are TOKENIZER_NONE. */
typedef struct tokenizer_symbol {
    uint32_t id;
    uint32_t before, after;
} tokenizer_symbol;

/* A possible merge of two neighbours; out of date when either has another id by now. */
typedef struct tokenizer_merge {
    float score;
    uint32_t left, right; /* places */
    uint32_t left_id, right_id, joined_id;
} tokenizer_merge;

typedef struct tokenizer_work {
    const tokenizer *tokens;
    tokenizer_symbol *symbols;
    tokenizer_merge *heap;
    size_t heap_count;
} tokenizer_work;

static int tokenizer_compare(const uint8_t *a, uint32_t a_length, const uint8_t *b,
                             uint32_t b_length)
{
    uint32_t shorter = a_length < b_length ? a_length : b_length;
    int order = shorter > 0 ? memcmp(a, b, shorter) : 0;
    if (order != 0) return order;
    return (a_length > b_length) - (a_length < b_length);
}

static int tokenizer_piece_order(const void *left, const void *right)
{
    const tokenizer_piece *a = left, *b = right;
    int order = tokenizer_compare(a->bytes, a->length, b->bytes, b->length);
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

static uint32_t tokenizer_find(const tokenizer *tokens, const uint8_t *bytes, uint32_t length)
{
    uint32_t low = 0, high = tokens->vocab;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_piece *piece = &tokens->ordered[middle];
        if (tokenizer_compare(piece->bytes, piece->length, bytes, length) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == tokens->vocab) return TOKENIZER_NONE;
    const tokenizer_piece *piece = &tokens->ordered[low];
    return tokenizer_compare(piece->bytes, piece->length, bytes, length) == 0 ? piece->id
                                                                              : TOKENIZER_NONE;
}

/* Walks the pieces; with `pieces` NULL it only counts them. NULL, or why the bytes are wrong. */
static const char *tokenizer_walk(const model_map *map, tokenizer_piece *pieces, uint32_t *count)
{
    int32_t longest;
    uint64_t at = sizeof longest;
    *count = 0;
    if (map->size < sizeof longest) return "shorter than its header";
    memcpy(&longest, map->bytes, sizeof longest);
    if (longest < 1 || longest > TOKENIZER_PIECE_BYTES_MAX)
        return "no vocabulary of llama2.c (the longest piece is outside 1..256 bytes)";
    while (at < map->size) {
        float score;
        int32_t length;
        if (map->size - at < sizeof score + sizeof length) return "cut off inside a piece";
        memcpy(&score, map->bytes + at, sizeof score);
        memcpy(&length, map->bytes + at + sizeof score, sizeof length);
        at += sizeof score + sizeof length;
        if (length < 0 || length > longest) return "a piece is longer than the longest";
        if ((uint64_t)length > map->size - at) return "cut off inside a piece";
        if (!isfinite(score)) return "a score is no number";
        if (*count == TOKENIZER_VOCAB_MAX) return "more than a million pieces";
        if (pieces != NULL) {
            pieces[*count] = (tokenizer_piece){map->bytes + at, (uint32_t)length, *count, score};
        }
        ++*count;
        at += (uint64_t)length;
    }
    return *count < TOKENIZER_PIECE_FIRST ? "fewer pieces than bytes" : NULL;
}

kvt_status tokenizer_say_count(const char *path, uint32_t is, uint32_t wanted, char *message,
                               size_t message_size)
{
    return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                         "%u pieces, and the model has %u: is it of another model?", (unsigned)is,
                         (unsigned)wanted);
}

static bool tokenizer_is_json(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".json") == 0;
}

kvt_status tokenizer_open(const char *path, uint32_t vocab, tokenizer **tokenizer_out,
                          char *message, size_t message_size)
{
    *tokenizer_out = NULL;
    tokenizer *tokens = calloc(1, sizeof *tokens);
    if (tokens == NULL) return KVT_E_MEMORY;
    kvt_status status = model_map_open(path, &tokens->map, message, message_size);
    if (status != KVT_OK) goto out;
    if (tokenizer_is_json(path)) {
        status = tokenizer_json_read(path, &tokens->map, vocab, &tokens->pieces, &tokens->vocab,
                                     &tokens->bytes, message, message_size);
        if (status != KVT_OK) goto out;
        *tokenizer_out = tokens;
        return KVT_OK;
    }
    const char *wrong = tokenizer_walk(&tokens->map, NULL, &tokens->vocab);
    if (wrong == NULL && vocab != 0 && vocab != tokens->vocab) {
        status = tokenizer_say_count(path, tokens->vocab, vocab, message, message_size);
        goto out;
    }
    if (wrong != NULL) {
        status = model_map_say(KVT_E_CORRUPT, message, message_size, path, "%s", wrong);
        goto out;
    }
    tokens->pieces = calloc(tokens->vocab, sizeof *tokens->pieces);
    tokens->ordered = calloc(tokens->vocab, sizeof *tokens->ordered);
    if (tokens->pieces == NULL || tokens->ordered == NULL) {
        status = KVT_E_MEMORY;
        goto out;
    }
    (void)tokenizer_walk(&tokens->map, tokens->pieces, &tokens->vocab);
    memcpy(tokens->ordered, tokens->pieces, tokens->vocab * sizeof *tokens->ordered);
    qsort(tokens->ordered, tokens->vocab, sizeof *tokens->ordered, tokenizer_piece_order);
    *tokenizer_out = tokens;
    return KVT_OK;
out:
    tokenizer_close(tokens);
    return status;
}

void tokenizer_close(tokenizer *tokens)
{
    if (tokens == NULL) return;
    model_map_close(&tokens->map);
    free(tokens->pieces);
    free(tokens->ordered);
    free(tokens->bytes);
    free(tokens);
}

bool tokenizer_encodes(const tokenizer *tokens)
{
    return tokens->ordered != NULL;
}

uint32_t tokenizer_vocab(const tokenizer *tokens)
{
    return tokens->vocab;
}

/* Bytes of the UTF-8 character at `text`; a stray continuation byte counts with what precedes it,
 * four bytes at most, as in llama2.c. */
static size_t tokenizer_character(const uint8_t *text, size_t bytes)
{
    size_t length = 1;
    while (length < 4 && length < bytes && (text[length] & 0xC0u) == 0x80u)
        length++;
    return length;
}

static size_t tokenizer_split(const tokenizer *tokens, const uint8_t *text, size_t bytes,
                              tokenizer_symbol *symbols)
{
    size_t count = 0;
    const uint8_t blank = ' ';
    uint32_t id = bytes > 0 ? tokenizer_find(tokens, &blank, 1) : TOKENIZER_NONE;
    if (bytes > 0)
        symbols[count++].id = id != TOKENIZER_NONE ? id : (uint32_t)(blank + TOKENIZER_BYTE_FIRST);
    for (size_t at = 0; at < bytes;) {
        size_t length = tokenizer_character(text + at, bytes - at);
        id = tokenizer_find(tokens, text + at, (uint32_t)length);
        if (id != TOKENIZER_NONE) {
            symbols[count++].id = id;
        } else {
            for (size_t i = 0; i < length; i++)
                symbols[count++].id = text[at + i] + (uint32_t)TOKENIZER_BYTE_FIRST;
        }
        at += length;
    }
    return count;
}

/* Highest score first, of equal scores the leftmost. */
static bool tokenizer_is_before(const tokenizer_merge *a, const tokenizer_merge *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

static void tokenizer_heap_push(tokenizer_work *work, tokenizer_merge merge)
{
    size_t at = work->heap_count++;
    while (at > 0 && tokenizer_is_before(&merge, &work->heap[(at - 1) / 2])) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = merge;
}

static tokenizer_merge tokenizer_heap_pop(tokenizer_work *work)
{
    tokenizer_merge first = work->heap[0], last = work->heap[--work->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= work->heap_count) break;
        if (child + 1 < work->heap_count &&
            tokenizer_is_before(&work->heap[child + 1], &work->heap[child])) {
            child++;
        }
        if (!tokenizer_is_before(&work->heap[child], &last)) break;
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = last;
    return first;
}

/* Puts the merge of `left` and its right neighbour on the heap when there is a piece for it. */
static void tokenizer_consider(tokenizer_work *work, uint32_t left)
{
    uint8_t joined[2 * TOKENIZER_PIECE_BYTES_MAX];
    const tokenizer_symbol *symbols = work->symbols;
    if (left == TOKENIZER_NONE || symbols[left].after == TOKENIZER_NONE) return;
    uint32_t right = symbols[left].after;
    const tokenizer_piece *a = &work->tokens->pieces[symbols[left].id];
    const tokenizer_piece *b = &work->tokens->pieces[symbols[right].id];
    memcpy(joined, a->bytes, a->length);
    memcpy(joined + a->length, b->bytes, b->length);
    uint32_t id = tokenizer_find(work->tokens, joined, a->length + b->length);
    if (id == TOKENIZER_NONE) return;
    tokenizer_heap_push(work, (tokenizer_merge){work->tokens->pieces[id].score, left, right,
                                                symbols[left].id, symbols[right].id, id});
}

static void tokenizer_merge_all(tokenizer_work *work, size_t count)
{
    tokenizer_symbol *symbols = work->symbols;
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].before = i == 0 ? TOKENIZER_NONE : i - 1;
        symbols[i].after = i + 1 == count ? TOKENIZER_NONE : i + 1;
    }
    for (uint32_t i = 0; i < count; i++)
        tokenizer_consider(work, i);
    while (work->heap_count > 0) {
        tokenizer_merge merge = tokenizer_heap_pop(work);
        tokenizer_symbol *left = &symbols[merge.left], *right = &symbols[merge.right];
        if (left->id != merge.left_id || right->id != merge.right_id ||
            left->after != merge.right) {
            continue;
        }
        left->id = merge.joined_id;
        left->after = right->after;
        if (right->after != TOKENIZER_NONE) symbols[right->after].before = merge.left;
        right->id = TOKENIZER_NONE;
        tokenizer_consider(work, left->before);
        tokenizer_consider(work, merge.left);
    }
}

kvt_status tokenizer_encode(const tokenizer *tokens, const char *text, size_t bytes,
                            uint32_t *ids_out, size_t *count_out)
{
    *count_out = 0;
    if (!tokenizer_encodes(tokens)) return KVT_E_UNSUPPORTED;
    if (bytes >= TOKENIZER_NONE / 4) return KVT_E_MEMORY;
    /* A merge removes a symbol and adds at most two candidates: 3 per symbol are enough. */
    tokenizer_work work = {.tokens = tokens,
                           .symbols = malloc((bytes + 1) * sizeof *work.symbols),
                           .heap = malloc((bytes + 1) * 3 * sizeof *work.heap)};
    if (work.symbols == NULL || work.heap == NULL) {
        free(work.symbols);
        free(work.heap);
        return KVT_E_MEMORY;
    }
    size_t count = tokenizer_split(tokens, (const uint8_t *)text, bytes, work.symbols);
    tokenizer_merge_all(&work, count);
    ids_out[(*count_out)++] = TOKENIZER_BEGIN;
    /* The first symbol is never the right one of a merge, so it starts the list. */
    for (uint32_t at = count > 0 ? 0 : TOKENIZER_NONE; at != TOKENIZER_NONE;
         at = work.symbols[at].after) {
        ids_out[(*count_out)++] = work.symbols[at].id;
    }
    free(work.symbols);
    free(work.heap);
    return KVT_OK;
}

kvt_status tokenizer_decode(const tokenizer *tokens, const uint32_t *ids, size_t count,
                            char *text_out, size_t capacity, size_t *bytes_out)
{
    const bool byte_level = tokens->bytes != NULL;
    bool at_start = true;
    size_t bytes = 0;
    *bytes_out = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= tokens->vocab) return KVT_E_ARGUMENT;
        if (byte_level) {
            const tokenizer_piece *piece = &tokens->pieces[ids[i]];
            if (piece->length <= capacity && bytes <= capacity - piece->length)
                memcpy(text_out + bytes, piece->bytes, piece->length);
            bytes += piece->length;
            continue;
        }
        if (ids[i] == TOKENIZER_BEGIN || ids[i] == TOKENIZER_END) {
            at_start = true;
            continue;
        }
        const tokenizer_piece *piece = &tokens->pieces[ids[i]];
        uint8_t byte = (uint8_t)(ids[i] - TOKENIZER_BYTE_FIRST);
        bool is_byte = ids[i] >= TOKENIZER_BYTE_FIRST && ids[i] < TOKENIZER_PIECE_FIRST;
        const uint8_t *from = is_byte ? &byte : piece->bytes;
        size_t length = is_byte ? 1 : piece->length;
        if (at_start && length > 0 && from[0] == ' ') {
            from++;
            length--;
        }
        at_start = false;
        if (length <= capacity && bytes <= capacity - length)
            memcpy(text_out + bytes, from, length);
        bytes += length;
    }
    *bytes_out = bytes;
    return bytes > capacity ? KVT_E_SPACE : KVT_OK;
}
