/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_lossless_modes.c - the decoders of lossless fast and dense against any bytes, and round
 * trips of any values. The first 6 bytes choose what to do and the shape.
 */
#include "codecs/kernels/cpu.h"
#include "codecs/lossless_dense.h"
#include "codecs/lossless_fast.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6, FUZZ_BYTES_MAX = 1 << 18, FUZZ_SMALL = 2 };

typedef struct fuzz_room {
    lossless_dense_shape shape;
    uint64_t bytes;
    bool fast;
    void *scratch;
    uint8_t *stored;
    uint8_t *decoded;
} fuzz_room;

static kvt_status fuzz_decode(const fuzz_room *room, const uint8_t *data, size_t size)
{
    const uint8_t *exact = fuzz_arena_copy(data, size);
    kvt_status status =
        room->fast
            ? lossless_fast_decode(room->shape.dtype, exact, size,
                                   VIEW_ROWS_PACKED(room->decoded, room->bytes))
            : lossless_dense_decode(&room->shape, exact, size,
                                    VIEW_ROWS_PACKED(room->decoded, room->bytes), room->scratch);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    return status;
}

static void fuzz_round_trip(const fuzz_room *room, const uint8_t *data, size_t size)
{
    uint64_t written;
    uint8_t *source = fuzz_arena_take(room->bytes);
    for (uint64_t at = 0; at < room->bytes; at++) {
        source[at] = size == 0 ? 0 : data[at % size];
    }
    kvt_status status = room->fast ? lossless_fast_encode(room->shape.dtype, source, room->bytes,
                                                          room->stored, room->bytes, &written)
                                   : lossless_dense_encode(&room->shape, source, room->stored,
                                                           room->bytes, room->scratch, &written);
    if (status != KVT_OK && status != KVT_RAW) abort();
    if (status == KVT_OK) {
        if (fuzz_decode(room, room->stored, written) != KVT_OK) abort();
        if (memcmp(room->decoded, source, room->bytes) != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_room room = {.bytes = 0};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    room.shape.dtype = (uint8_t)(1 + data[0] % 4);
    room.shape.row = 1u + data[1] + (data[2] & 1 ? 1000u : 0u);
    room.shape.tokens = 1u + data[3] + (data[4] & 1 ? 256u : 0u);
    if (data[4] & FUZZ_SMALL) {
        room.shape.row = 1u + data[1] % 64;
        room.shape.tokens = 1u + data[3] % 16;
    }
    room.fast = (data[2] & 4) != 0 && room.shape.dtype != KVT_DTYPE_FP8;
    room.bytes = lossless_dense_bound(&room.shape);
    if (room.bytes > FUZZ_BYTES_MAX) return 0;
    codecs_cpu_force((codecs_cpu)(data[0] / 4 % 3));
    room.scratch = fuzz_arena_take(lossless_dense_scratch_bytes(&room.shape));
    room.stored = fuzz_arena_take(room.bytes);
    room.decoded = fuzz_arena_take(room.bytes);
    if (data[2] & 2) {
        fuzz_round_trip(&room, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    } else {
        (void)fuzz_decode(&room, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    }
    return 0;
}
