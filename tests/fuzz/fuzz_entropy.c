/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_entropy.c - codec 5's decoder and step derivation against any bytes, and round trips of any
 * values. The first 6 bytes choose what to do and the shape. Buffers are as large as promised, so
 * that a sanitizer sees every byte too many.
 */
#include "codecs/entropy.h"
#include "codecs/kernels/cpu.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6, FUZZ_BYTES_MAX = 1 << 17, FUZZ_SMALL = 4 };

typedef struct fuzz_room {
    entropy_shape shape;
    uint64_t bytes;
    void *scratch;
    uint8_t *first;
    uint8_t *second;
} fuzz_room;

static void fuzz_decode(fuzz_room *room, const uint8_t *data, size_t size)
{
    uint64_t written;
    uint64_t again;
    void *stored = fuzz_arena_copy(data, size);
    kvt_status status = entropy_decode(&room->shape, stored, size,
                                       VIEW_ROWS_PACKED(room->first, room->bytes), room->scratch);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    kvt_status derived = entropy_derive_step3(&room->shape, stored, size, room->second, room->bytes,
                                              room->scratch, &written);
    if (derived == KVT_OK) {
        /* What was derived decodes, and from exactly its bytes. */
        void *exact = fuzz_arena_copy(room->second, written);
        if (entropy_decode(&room->shape, exact, written, VIEW_ROWS_PACKED(room->first, room->bytes),
                           room->scratch) != KVT_OK) {
            abort();
        }
        if (entropy_derive_step3(&room->shape, stored, size, room->second, written, room->scratch,
                                 &again) != KVT_OK ||
            again != written || memcmp(exact, room->second, written) != 0) {
            abort();
        }
    }
}

static void fuzz_round_trip(fuzz_room *room, const uint8_t *data, size_t size, uint8_t choice)
{
    uint64_t written;
    const entropy_settings settings = {(uint16_t)(4 + choice % 64 * 12), choice >> 6 & 1,
                                       choice >> 7, NULL};
    uint8_t *source = fuzz_arena_take(room->bytes);
    for (uint64_t at = 0; at < room->bytes; at++) {
        source[at] = size == 0 ? 0 : data[at % size];
    }
    kvt_status status = entropy_encode(&settings, &room->shape, source, room->first, room->bytes,
                                       room->scratch, &written);
    if (status == KVT_OK) {
        void *exact = fuzz_arena_copy(room->first, written);
        if (written >= room->bytes ||
            entropy_decode(&room->shape, exact, written,
                           VIEW_ROWS_PACKED(room->second, room->bytes), room->scratch) != KVT_OK) {
            abort();
        }
    } else if (status != KVT_RAW) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_room room = {.bytes = 0};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    room.shape.dtype = (uint8_t)(1 + data[0] % 3);
    room.shape.row = 1u + data[1] + (data[2] & 1 ? 512u : 0u);
    room.shape.tokens = 1u + data[3] + 256u * (data[4] & 3);
    if (data[4] & FUZZ_SMALL) {
        room.shape.row = 1u + data[1] % 64;
        room.shape.tokens = 1u + data[3] % 16;
    }
    room.bytes = entropy_bound(&room.shape);
    if (room.bytes > FUZZ_BYTES_MAX) return 0;
    codecs_cpu_force((codecs_cpu)(data[0] / 3 % 3));
    room.scratch = fuzz_arena_take(entropy_scratch_bytes(&room.shape));
    room.first = fuzz_arena_take(room.bytes);
    room.second = fuzz_arena_take(room.bytes);
    if (data[2] & 2) {
        fuzz_round_trip(&room, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES, data[5]);
    } else {
        fuzz_decode(&room, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    }
    return 0;
}
