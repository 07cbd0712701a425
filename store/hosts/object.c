/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - heads, names and cuts of published records (object.h).
 *
 * Thread rule: re-entrant.
 */
#include "store/hosts/object.h"

#include "base/blake2b.h"
#include "codecs/record_format.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define OBJECT_MAGIC   "KVTO\r\n\x1a\n"
#define OBJECT_VERSION 1u

#define OBJECT_RESERVED_FLAGS 0xff00u /* set by writers, ignored by readers */

/* The bytes themselves; little-endian, as records are. */
typedef struct __attribute__((packed)) object_bytes {
    uint8_t magic[8];
    uint16_t version;
    uint16_t head_bytes;
    uint32_t index;
    uint32_t count;
    uint32_t flags;
    uint64_t generation;
    uint64_t writer;
    uint64_t record_bytes;
    uint64_t offset;
    uint64_t bytes;
    uint8_t key[32];
    uint8_t parent[32];
    double recompute_seconds;
    uint32_t class_id;
    uint32_t request_tokens;
    uint32_t full_bytes;
    uint32_t reserved;
    uint64_t checksum;
} object_bytes;

_Static_assert(sizeof(object_bytes) == OBJECT_HEAD_BYTES, "the head is part of the format");
_Static_assert(offsetof(object_bytes, key) == 64, "format");
_Static_assert(offsetof(object_bytes, checksum) == 152, "format");

void object_head_pack(const object_head *head, uint8_t bytes[OBJECT_HEAD_BYTES])
{
    object_bytes to = {.version = OBJECT_VERSION,
                       .head_bytes = OBJECT_HEAD_BYTES,
                       .index = head->index,
                       .count = head->count,
                       .flags = head->flags | OBJECT_RESERVED_FLAGS,
                       .generation = head->generation,
                       .writer = head->writer,
                       .record_bytes = head->record_bytes,
                       .offset = head->offset,
                       .bytes = head->bytes,
                       .recompute_seconds = head->recompute_seconds,
                       .class_id = head->class_id,
                       .request_tokens = head->request_tokens,
                       .full_bytes = head->full_bytes};
    memcpy(to.magic, OBJECT_MAGIC, sizeof to.magic);
    memcpy(to.key, &head->key, sizeof to.key);
    memcpy(to.parent, &head->parent, sizeof to.parent);
    to.checksum = XXH3_64bits(&to, offsetof(object_bytes, checksum));
    memcpy(bytes, &to, sizeof to);
}

kvt_status object_head_unpack(const uint8_t bytes[OBJECT_HEAD_BYTES], object_head *out)
{
    object_bytes from;
    memcpy(&from, bytes, sizeof from);
    if (memcmp(from.magic, OBJECT_MAGIC, sizeof from.magic) != 0) return KVT_E_CORRUPT;
    if (from.version != OBJECT_VERSION) return KVT_E_VERSION;
    if (from.checksum != XXH3_64bits(&from, offsetof(object_bytes, checksum))) return KVT_E_CORRUPT;
    *out = (object_head){.index = from.index,
                         .count = from.count,
                         .flags = from.flags & 0xff,
                         .full_bytes = from.full_bytes,
                         .generation = from.generation,
                         .writer = from.writer,
                         .record_bytes = from.record_bytes,
                         .offset = from.offset,
                         .bytes = from.bytes,
                         .recompute_seconds = from.recompute_seconds,
                         .class_id = from.class_id,
                         .request_tokens = from.request_tokens};
    memcpy(&out->key, from.key, sizeof from.key);
    memcpy(&out->parent, from.parent, sizeof from.parent);
    /* A sound checksum does not say who wrote the chunk. */
    const bool sound =
        from.head_bytes == OBJECT_HEAD_BYTES && from.count >= 1 &&
        from.count <= OBJECT_CHUNKS_MAX && from.index < from.count && from.full_bytes >= 1 &&
        from.full_bytes <= OBJECT_CHUNK_MOST &&
        from.record_bytes <= (uint64_t)OBJECT_CHUNKS_MAX * OBJECT_CHUNK_MOST &&
        from.offset <= from.record_bytes && from.bytes <= from.record_bytes - from.offset &&
        from.recompute_seconds >= 0 && from.recompute_seconds <= 1e9 && from.class_id <= UINT16_MAX;
    return sound ? KVT_OK : KVT_E_CORRUPT;
}

/* The largest size below or at `bytes` that the engine's allocator has: four an octave. */
static uint64_t object_class_below(uint64_t bytes)
{
    const uint32_t octave = 63u - (uint32_t)__builtin_clzll(bytes);
    const uint64_t step = octave >= 2 ? UINT64_C(1) << (octave - 2) : 1;
    return bytes / step * step;
}

/* How much of the last part of a record goes into a chunk of its own, because the allocator would
 * round its value up by more than a 32nd; else all of it. */
static uint64_t object_last_cut(uint64_t bytes)
{
    const uint64_t value = bytes + OBJECT_HEAD_BYTES + 16; /* with the engine's own bytes */
    const uint64_t below = object_class_below(value);
    const uint32_t octave = 63u - (uint32_t)__builtin_clzll(value);
    const uint64_t above = below == value ? value : below + (UINT64_C(1) << (octave - 2));
    if (value < 16384 || above - value <= value / 32) return bytes;
    return below - OBJECT_HEAD_BYTES - 16;
}

uint32_t object_cut(uint64_t record_bytes, uint32_t full_bytes,
                    object_chunk chunks[OBJECT_CHUNKS_MAX])
{
    uint32_t count = 0;
    uint64_t at = 0;
    assert(full_bytes > 0);
    while (at < record_bytes) {
        const uint64_t left = record_bytes - at;
        uint64_t bytes = full_bytes;
        if (left <= full_bytes)
            bytes =
                count > 0 && chunks[count - 1].bytes != full_bytes ? left : object_last_cut(left);
        if (count == OBJECT_CHUNKS_MAX) return 0;
        chunks[count++] = (object_chunk){at, bytes};
        at += bytes;
    }
    return count;
}

void object_space(const char *text, uint32_t tenant, char space[OBJECT_SPACE_BYTES])
{
    blake2b hash;
    uint8_t digest[16];
    const uint8_t major[2] = {RECORD_MAJOR & 0xff, RECORD_MAJOR >> 8};
    const uint8_t owner[4] = {(uint8_t)tenant, (uint8_t)(tenant >> 8), (uint8_t)(tenant >> 16),
                              (uint8_t)(tenant >> 24)};
    blake2b_begin(&hash, sizeof digest);
    blake2b_add(&hash, text, strlen(text) + 1);
    blake2b_add(&hash, major, sizeof major);
    blake2b_add(&hash, owner, sizeof owner);
    blake2b_end(&hash, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(space + 2 * i, 3, "%02x", digest[i]);
}

/* The begin of a name, up to the part behind the epoch. */
static uint32_t object_name_begin(const char *space, const kvt_key *key, uint64_t epoch,
                                  char name[OBJECT_NAME_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = (const uint8_t *)key;
    int used = snprintf(name, OBJECT_NAME_BYTES, "kvt1:%s:{", space);
    for (size_t i = 0; i < sizeof *key; i++) {
        name[used++] = digits[bytes[i] >> 4];
        name[used++] = digits[bytes[i] & 15];
    }
    used += snprintf(name + used, OBJECT_NAME_BYTES - (size_t)used,
                     "}:%016llx:", (unsigned long long)epoch);
    return (uint32_t)used;
}

uint32_t object_name(const char *space, const kvt_key *key, uint64_t epoch, uint32_t chunk,
                     char name[OBJECT_NAME_BYTES])
{
    const uint32_t used = object_name_begin(space, key, epoch, name);
    return used + (uint32_t)snprintf(name + used, OBJECT_NAME_BYTES - used, "%u", chunk);
}

uint32_t object_claim_name(const char *space, const kvt_key *key, uint64_t epoch,
                           char name[OBJECT_NAME_BYTES])
{
    const uint32_t used = object_name_begin(space, key, epoch, name);
    return used + (uint32_t)snprintf(name + used, OBJECT_NAME_BYTES - used, "w");
}

bool object_name_key(const char *name, size_t bytes, kvt_key *out)
{
    const char *open = memchr(name, '{', bytes);
    uint8_t *to = (uint8_t *)out;
    if (open == NULL || (size_t)(name + bytes - open) < 2 * sizeof *out + 2) return false;
    for (size_t i = 0; i < 2 * sizeof *out; i++) {
        const char c = open[1 + i];
        const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0) return false;
        to[i / 2] = (uint8_t)(i % 2 == 0 ? value << 4 : to[i / 2] | value);
    }
    return open[1 + 2 * sizeof *out] == '}';
}
