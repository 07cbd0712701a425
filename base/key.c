/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.c - spaces and names become keys (docs/FORMAT.md, Keys). The file keeps no key and looks
 * none up.
 *
 * Thread rule: any thread.
 */
#include "base/blake2b.h"
#include "base/struct_size.h"

#include <kvterrace/key.h>
#include <string.h>

#define KEY_SPACE_LEAST STRUCT_SIZE_THROUGH(kvt_space, extra)

/* The beginnings of the two messages, their NUL included: no space's message is a key's. */
static const char key_space_begin[] = "kvterrace space";
static const char key_name_begin[] = "kvterrace name";

/* The fields of a space by their tags. A tag's meaning never changes; new ones are appended. */
enum key_tag {
    KEY_MODEL = 1,
    KEY_REVISION = 2,
    KEY_DTYPE = 3,
    KEY_SALT = 4,
    KEY_BLOCK_TOKENS = 5,
    KEY_LAYERS = 6,
    KEY_KV_HEADS = 7,
    KEY_HEAD_DIM = 8,
    KEY_SIDES = 9,
    KEY_ORDER = 10,
    KEY_TENSOR_RANK = 11,
    KEY_TENSOR_RANKS = 12,
    KEY_PIPELINE_RANK = 13,
    KEY_PIPELINE_RANKS = 14,
    KEY_EXTRA = 15
};

/* A number of the format: 32 bits, little-endian. */
static void key_add_word(blake2b *hash, uint32_t word)
{
    const uint8_t bytes[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16),
                              (uint8_t)(word >> 24)};
    blake2b_add(hash, bytes, sizeof bytes);
}

/* Adds tag, length and bytes of a field. A field without bytes is left out, so that a field of a
 * later version changes no hash until it is set. */
static void key_add_bytes(blake2b *hash, enum key_tag tag, const void *bytes, uint32_t count)
{
    if (count == 0) return;
    key_add_word(hash, tag);
    key_add_word(hash, count);
    blake2b_add(hash, bytes, count);
}

/* Adds a number, unless it is 0. */
static void key_add_number(blake2b *hash, enum key_tag tag, uint32_t number)
{
    if (number == 0) return;
    key_add_word(hash, tag);
    key_add_word(hash, sizeof number);
    key_add_word(hash, number);
}

/* Adds a text. KVT_E_ARGUMENT: it is too long. */
static kvt_status key_add_text(blake2b *hash, enum key_tag tag, const char *text)
{
    size_t length = text == NULL ? 0 : strnlen(text, KVT_SPACE_TEXT_MAX + 1);
    if (length > KVT_SPACE_TEXT_MAX) return KVT_E_ARGUMENT;
    key_add_bytes(hash, tag, text, (uint32_t)length);
    return KVT_OK;
}

/* Whether a rank exists among so many; 0 of 0 is "not said". */
static bool key_rank_is_sound(uint32_t rank, uint32_t ranks)
{
    return rank < ranks || (rank == 0 && ranks == 0);
}

void kvt_space_init_sized(kvt_space *space, uint32_t struct_size)
{
    const kvt_space whole = {.struct_size = struct_size};
    space->struct_size = struct_size;
    struct_size_out(space, &whole, sizeof whole);
}

kvt_status kvt_space_make(const kvt_space *space, kvt_space_hash *hash_out)
{
    if (hash_out == NULL) return KVT_E_ARGUMENT;
    memset(hash_out, 0, sizeof *hash_out);
    kvt_space whole = {.struct_size = sizeof whole};
    if (space != NULL) space = struct_size_in(space, &whole, sizeof whole, KEY_SPACE_LEAST);
    if (space == NULL || space->extra_bytes > KVT_SPACE_EXTRA_MAX ||
        (space->extra_bytes != 0 && space->extra == NULL) || space->order > KVT_ORDER_SIDE_LAYER ||
        !key_rank_is_sound(space->tensor_rank, space->tensor_ranks) ||
        !key_rank_is_sound(space->pipeline_rank, space->pipeline_ranks))
        return KVT_E_ARGUMENT;
    blake2b hash;
    blake2b_begin(&hash, sizeof hash_out->bytes);
    blake2b_add(&hash, key_space_begin, sizeof key_space_begin);
    kvt_status status = key_add_text(&hash, KEY_MODEL, space->model);
    if (status == KVT_OK) status = key_add_text(&hash, KEY_REVISION, space->revision);
    if (status == KVT_OK) status = key_add_text(&hash, KEY_DTYPE, space->dtype);
    if (status == KVT_OK) status = key_add_text(&hash, KEY_SALT, space->salt);
    if (status != KVT_OK) return status;
    key_add_number(&hash, KEY_BLOCK_TOKENS, space->block_tokens);
    key_add_number(&hash, KEY_LAYERS, space->layers);
    key_add_number(&hash, KEY_KV_HEADS, space->kv_heads);
    key_add_number(&hash, KEY_HEAD_DIM, space->head_dim);
    key_add_number(&hash, KEY_SIDES, space->sides);
    key_add_number(&hash, KEY_ORDER, space->order);
    key_add_number(&hash, KEY_TENSOR_RANK, space->tensor_rank);
    key_add_number(&hash, KEY_TENSOR_RANKS, space->tensor_ranks);
    key_add_number(&hash, KEY_PIPELINE_RANK, space->pipeline_rank);
    key_add_number(&hash, KEY_PIPELINE_RANKS, space->pipeline_ranks);
    key_add_bytes(&hash, KEY_EXTRA, space->extra, space->extra_bytes);
    blake2b_end(&hash, hash_out->bytes);
    return KVT_OK;
}

/* The first 8 bytes of a hash or key as a number, the first byte highest. */
static uint64_t key_first_word(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word = word << 8 | bytes[i];
    return word;
}

uint64_t kvt_space_id(const kvt_space_hash *space)
{
    return key_first_word(space->bytes);
}

uint64_t kvt_key_space(const kvt_key *key)
{
    return key_first_word(key->bytes);
}

kvt_status kvt_key_make(const kvt_space_hash *space, const void *name, size_t name_bytes,
                        uint32_t group, kvt_key *key_out)
{
    if (key_out == NULL) return KVT_E_ARGUMENT;
    memset(key_out, 0, sizeof *key_out);
    if (space == NULL || name == NULL) return KVT_E_ARGUMENT;
    if (name_bytes == 0 || name_bytes > KVT_NAME_MAX) return KVT_E_ARGUMENT;
    const size_t prefix = 8;
    blake2b hash;
    blake2b_begin(&hash, sizeof key_out->bytes - prefix);
    blake2b_add(&hash, key_name_begin, sizeof key_name_begin);
    blake2b_add(&hash, space->bytes, sizeof space->bytes);
    key_add_word(&hash, group);
    blake2b_add(&hash, name, name_bytes);
    blake2b_end(&hash, key_out->bytes + prefix);
    memcpy(key_out->bytes, space->bytes, prefix);
    return KVT_OK;
}
