/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_rotate.c - codec 7's kernels against any bytes, on every instruction set that the machine
 * has. The first 6 bytes choose settings and shape. The rest is decoded as stored bytes, and
 * encoded as a matrix (repeated to its size): all instruction sets must agree, and what was encoded
 * must decode within its capacity.
 */
#include "codecs/kernels/cpu.h"
#include "codecs/rotate.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6 };

/* Decodes under every instruction set; aborts when they differ. Returns the status. */
static kvt_status fuzz_decode(const rotate_shape *shape, rotate_settings settings,
                              const uint8_t *stored, uint64_t bytes)
{
    const uint64_t matrix = rotate_source_bytes(shape);
    uint8_t *first = fuzz_arena_take(matrix);
    uint8_t *other = fuzz_arena_take(matrix);
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const kvt_status status =
        rotate_decode(shape, settings, stored, bytes, VIEW_ROWS_PACKED(first, matrix));
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        if (rotate_decode(shape, settings, stored, bytes, VIEW_ROWS_PACKED(other, matrix)) !=
            status)
            abort();
        if (status == KVT_OK && memcmp(first, other, matrix) != 0) abort();
    }
    return status;
}

static void fuzz_encode(const rotate_shape *shape, rotate_settings settings, const uint8_t *source)
{
    const uint64_t matrix = rotate_source_bytes(shape);
    uint8_t *first = fuzz_arena_take(matrix);
    uint8_t *other = fuzz_arena_take(matrix);
    uint64_t written;
    uint64_t again;
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const kvt_status status = rotate_encode(shape, settings, source, first, matrix, &written);
    if (status != KVT_OK && status != KVT_RAW) abort();
    for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        if (rotate_encode(shape, settings, source, other, matrix, &again) != status) abort();
        if (status != KVT_OK) continue;
        if (again != written || memcmp(first, other, written) != 0) abort();
    }
    if (status == KVT_OK && matrix > 0) {
        uint8_t *exact = fuzz_arena_take(written);
        memcpy(exact, first, written);
        if (fuzz_decode(shape, settings, exact, written) != KVT_OK) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t bits[] = {3, 4, 8, 4};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    const rotate_settings settings = {bits[data[0] % 4], data[0] / 4 % 2};
    const rotate_shape shape = {
        .tokens = data[1] % 8,
        .kv_heads = (uint16_t)(1 + data[2] % 4),
        .head_dim = (uint16_t)(8 * (1 + data[3] % 72)),
        .dtype = (uint8_t)(KVT_DTYPE_FP16 + data[4] % 3),
    };
    if (rotate_check(&shape, settings) != KVT_OK) abort();
    data += FUZZ_HEAD_BYTES;
    size -= FUZZ_HEAD_BYTES;
    uint8_t *stored = fuzz_arena_take(size);
    memcpy(stored, data, size);
    (void)fuzz_decode(&shape, settings, stored, size);
    const uint64_t matrix = rotate_source_bytes(&shape);
    uint8_t *source = fuzz_arena_take(matrix);
    memset(source, 0, matrix);
    for (uint64_t at = 0; size > 0 && at < matrix; at += size) {
        memcpy(source + at, data, matrix - at < size ? matrix - at : size);
    }
    fuzz_encode(&shape, settings, source);
    return 0;
}
