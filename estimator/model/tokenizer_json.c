/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_json.c - the pieces of a tokenizer.json with a byte-level vocabulary, for decoding. A
 * byte is written in it as one character: itself where it is printable, else a character from
 * U+0100 on, counted in the order of the bytes (GPT-2's table). Encoding such a vocabulary is left
 * to the package that wrote the file: texts come as token ids. Thread rule: any thread.
 */
#include "estimator/model/model_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_pieces {
    const char *path;
    char *message;
    size_t message_size;
    uint16_t byte_of[512]; /* by character; 256: no byte */
    tokenizer_piece *pieces;
    uint32_t count;
    uint8_t *bytes;
    size_t used;
} json_pieces;

static kvt_status json_pieces_fail(const json_pieces *work, kvt_status status, const char *reason)
{
    return model_map_say(status, work->message, work->message_size, work->path, "%s", reason);
}

static void json_pieces_characters(json_pieces *work)
{
    uint32_t next = 256;
    for (uint32_t i = 0; i < 512; i++)
        work->byte_of[i] = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        work->byte_of[printable ? byte : next++] = (uint16_t)byte;
    }
}

/* Adds one piece. Every character of its text stands for a byte; an added token has none. */
static kvt_status json_pieces_add(json_pieces *work, const char *text, const json_t *id,
                                  bool is_added)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)work->count) {
        return json_pieces_fail(work, KVT_E_CORRUPT, "an id is beyond the number of pieces");
    }
    tokenizer_piece *piece = &work->pieces[json_integer_value(id)];
    const uint8_t *at = (const uint8_t *)text;
    *piece = (tokenizer_piece){.bytes = work->bytes + work->used,
                               .id = (uint32_t)json_integer_value(id)};
    while (!is_added && *at != '\0') {
        uint32_t character = *at++;
        /* Two bytes of UTF-8 reach U+07FF; jansson gives sound UTF-8 only. */
        if (character >= 0xe0) character = 512;
        if (character >= 0xc0 && character < 0xe0)
            character = (character & 0x1fu) << 6 | (*at++ & 0x3fu);
        uint32_t byte = character < 512 ? work->byte_of[character] : 256;
        if (byte == 256)
            return json_pieces_fail(work, KVT_E_UNSUPPORTED, "a piece is not in byte-level form");
        work->bytes[work->used++] = (uint8_t)byte;
        piece->length++;
    }
    if (piece->length > TOKENIZER_PIECE_BYTES_MAX)
        return json_pieces_fail(work, KVT_E_CORRUPT, "a piece is longer than 256 bytes");
    return KVT_OK;
}

static kvt_status json_pieces_fill(json_pieces *work, json_t *vocab, const json_t *added)
{
    const char *text;
    json_t *id;
    kvt_status status = KVT_OK;
    /* Added tokens first: their texts need not be in byte-level form. */
    for (size_t i = 0; status == KVT_OK && i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        status = json_pieces_add(work, "", json_object_get(token, "id"), true);
    }
    json_object_foreach(vocab, text, id)
    {
        bool is_added = json_is_integer(id) && json_integer_value(id) >= 0 &&
                        json_integer_value(id) < (json_int_t)work->count &&
                        work->pieces[json_integer_value(id)].bytes != NULL;
        if (status == KVT_OK) status = json_pieces_add(work, text, id, is_added);
    }
    for (uint32_t i = 0; status == KVT_OK && i < work->count; i++)
        if (work->pieces[i].bytes == NULL)
            status = json_pieces_fail(work, KVT_E_CORRUPT, "an id below the largest has no piece");
    return status;
}

/* Ids are 0 to the largest; added tokens may be part of the vocabulary or follow it. */
static uint32_t json_pieces_count(json_t *vocab, const json_t *added)
{
    const char *text;
    json_t *id;
    json_int_t most = -1;
    json_object_foreach(vocab, text, id)
    {
        if (json_integer_value(id) > most) most = json_integer_value(id);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_int_t value = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (value > most) most = value;
    }
    return most < (json_int_t)TOKENIZER_VOCAB_MAX ? (uint32_t)(most + 1) : 0;
}

kvt_status tokenizer_json_read(const char *path, const model_map *map, uint32_t vocab,
                               tokenizer_piece **pieces_out, uint32_t *count_out,
                               uint8_t **bytes_out, char *message, size_t message_size)
{
    json_pieces work = {.path = path, .message = message, .message_size = message_size};
    json_error_t error;
    json_t *root = json_loadb((const char *)map->bytes, map->size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) return json_pieces_fail(&work, KVT_E_PARSE, error.text);
    const json_t *bpe = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    const char *kind = json_string_value(json_object_get(json_object_get(root, "decoder"), "type"));
    json_t *pieces = json_object_get(bpe, "vocab");
    kvt_status status = KVT_OK;
    json_pieces_characters(&work);
    const json_t *type = json_object_get(bpe, "type");
    if (!json_is_object(pieces) || kind == NULL || strcmp(kind, "ByteLevel") != 0 ||
        (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))) {
        status = json_pieces_fail(&work, KVT_E_UNSUPPORTED, "no byte-level vocabulary");
        goto out;
    }
    work.count = json_pieces_count(pieces, added);
    if (work.count == 0) {
        status = json_pieces_fail(&work, KVT_E_CORRUPT, "no pieces, or more than a million");
        goto out;
    }
    if (vocab != 0 && vocab != work.count) {
        status = tokenizer_say_count(path, work.count, vocab, message, message_size);
        goto out;
    }
    /* No piece has more bytes than its text in the file. */
    *pieces_out = work.pieces = calloc(work.count, sizeof *work.pieces);
    *bytes_out = work.bytes = malloc(map->size);
    *count_out = work.count;
    status = work.pieces == NULL || work.bytes == NULL ? KVT_E_MEMORY
                                                       : json_pieces_fill(&work, pieces, added);
out:
    json_decref(root);
    return status;
}
