/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_transform.c - codec 8's segments against any bytes, on every instruction set that the
 * machine has. The first 8 bytes choose basis, segment and step. The rest is decoded and derived as
 * a stored segment, behind a head that fits, and encoded as matrices (repeated to their size): all
 * instruction sets must agree, and what was encoded must decode, and derive to what encoding gives.
 */
#include "codecs/kernels/cpu.h"
#include "codecs/transform.h"
#include "fuzz_arena.h"
#include "tests/support/basis_support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 8, FUZZ_BASES = 3 };

static const transform_basis *fuzz_basis_of(uint32_t which)
{
    static basis_made made[FUZZ_BASES];
    static const transform_shape shapes[FUZZ_BASES] = {
        {.layers = 2, .kv_heads = 2, .head_dim = 8, .rotary_dim = 8, .sides = 2, .span = 1},
        {.layers = 2, .kv_heads = 1, .head_dim = 6, .rotary_dim = 2, .sides = 1, .span = 2},
        {.layers = 5, .kv_heads = 1, .head_dim = 4, .sides = 2, .span = 3, .pairing = 1},
    };
    if (made[which].means == NULL) made[which] = basis_made_of(shapes[which], which);
    return &made[which].basis;
}

static kvt_status fuzz_decode_once(const transform_segment *segment, const uint8_t *stored,
                                   uint64_t bytes, uint8_t *elements, void *scratch)
{
    view_rows rows[TRANSFORM_MATRICES_MAX];
    const view_rows *targets[TRANSFORM_MATRICES_MAX];
    const uint32_t count = transform_segment_matrices(&segment->basis->shape, segment->index, NULL);
    const uint64_t matrix = transform_bound(segment) / count;
    for (uint32_t m = 0; m < count; m++) {
        rows[m] = view_rows_packed(elements + m * matrix, matrix);
        targets[m] = &rows[m];
    }
    return transform_decode(segment, stored, bytes, 0, segment->tokens, targets, scratch);
}

/* Decodes under every instruction set; aborts when they differ. Returns the status. */
static kvt_status fuzz_decode(const transform_segment *segment, const uint8_t *stored,
                              uint64_t bytes, void *scratch)
{
    const uint64_t size = transform_bound(segment);
    uint8_t *first = fuzz_arena_take(size);
    uint8_t *other = fuzz_arena_take(size);
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const kvt_status status = fuzz_decode_once(segment, stored, bytes, first, scratch);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        if (fuzz_decode_once(segment, stored, bytes, other, scratch) != status) abort();
        if (status == KVT_OK && memcmp(first, other, size) != 0) abort();
    }
    return status;
}

/* A segment at three times the step, made of the encoding, is what encoding the elements gives. */
static void fuzz_derive(transform_segment segment, const void *const *matrices,
                        const uint8_t *stored, uint64_t bytes, void *scratch)
{
    const uint64_t size = transform_bound(&segment);
    uint8_t *derived = fuzz_arena_take(size);
    uint8_t *encoded = fuzz_arena_take(size);
    uint64_t derived_bytes;
    uint64_t encoded_bytes;
    const kvt_status status =
        transform_derive_step3(&segment, stored, bytes, derived, size, scratch, &derived_bytes);
    if (matrices == NULL || status == KVT_E_ARGUMENT) return;
    segment.step = (uint16_t)(3 * segment.step);
    if (transform_encode(&segment, matrices, encoded, size, scratch, &encoded_bytes) != status)
        abort();
    if (status != KVT_OK) return;
    if (derived_bytes != encoded_bytes || memcmp(derived, encoded, encoded_bytes) != 0) abort();
}

static void fuzz_encode(const transform_segment *segment, const uint8_t *source, void *scratch)
{
    const uint64_t size = transform_bound(segment);
    const uint32_t count = transform_segment_matrices(&segment->basis->shape, segment->index, NULL);
    const void *matrices[TRANSFORM_MATRICES_MAX];
    uint8_t *first = fuzz_arena_take(size);
    uint8_t *other = fuzz_arena_take(size);
    uint64_t written;
    uint64_t again;
    for (uint32_t m = 0; m < count; m++)
        matrices[m] = source + m * (size / count);
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const kvt_status status = transform_encode(segment, matrices, first, size, scratch, &written);
    if (status != KVT_OK && status != KVT_RAW) abort();
    for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        if (transform_encode(segment, matrices, other, size, scratch, &again) != status) abort();
        if (status != KVT_OK) continue;
        if (again != written || memcmp(first, other, written) != 0) abort();
    }
    if (status != KVT_OK) return;
    uint8_t *exact = fuzz_arena_take(written);
    memcpy(exact, first, written);
    if (fuzz_decode(segment, exact, written, scratch) != KVT_OK) abort();
    fuzz_derive(*segment, matrices, exact, written, scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint16_t steps[] = {1, 3, 20, 64, 81, 300, 341, 1023};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    const transform_basis *basis = fuzz_basis_of(data[0] % FUZZ_BASES);
    const transform_segment segment = {
        .basis = basis,
        .index = data[1] % transform_segment_count(&basis->shape),
        .first_position = data[2] * 1000u,
        .tokens = 1 + (data[3] | data[4] << 8) % 600u,
        .step = steps[data[5] % 8],
        .dtype = (uint8_t)(KVT_DTYPE_FP16 + data[6] % 3),
    };
    void *scratch = fuzz_arena_take(transform_scratch_bytes(&basis->shape));
    data += FUZZ_HEAD_BYTES;
    size -= FUZZ_HEAD_BYTES;
    /* The segment's own head is put before the bytes, so that what follows it is reached. */
    const uint32_t blocks = (segment.tokens + 255) / 256;
    const uint8_t head[8] = {
        (uint8_t)blocks,  0, 0, 0, (uint8_t)segment.step, (uint8_t)(segment.step >> 8),
        basis->shape.span};
    uint8_t *stored = fuzz_arena_take(size + sizeof head);
    memcpy(stored, head, sizeof head);
    memcpy(stored + sizeof head, data, size);
    (void)fuzz_decode(&segment, stored, size + sizeof head, scratch);
    fuzz_derive(segment, NULL, stored, size + sizeof head, scratch);
    const uint64_t matrices = transform_bound(&segment);
    uint8_t *source = fuzz_arena_take(matrices);
    memset(source, 0, matrices);
    for (uint64_t at = 0; size > 0 && at < matrices; at += size)
        memcpy(source + at, data, matrices - at < size ? matrices - at : size);
    fuzz_encode(&segment, source, scratch);
    return 0;
}
