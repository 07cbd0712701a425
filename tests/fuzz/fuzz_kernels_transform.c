/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_kernels_transform.c - the kernels of codec transform against any bytes, on this processor.
 * The first 8 bytes choose basis, segment, step and view, the rest is the stored segment, behind a
 * head that fits. The kernels leave no memory that they were given, say whether the bytes are sound
 * as the CPU's decoder does, and leave the same elements.
 */
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
#include "codecs/transform.h"
#include "codecs/transform_image.h"
#include "fuzz_arena.h"

#include "tests/support/basis_support.h"
#include "tests/support/kernel_lanes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 8, FUZZ_BASES = 3, FUZZ_TOKENS = 290 };

/* A basis and its image. */
typedef struct fuzz_basis {
    basis_made made;
    uint8_t *image;
    uint64_t bytes;
} fuzz_basis;

static const fuzz_basis *fuzz_basis_of(uint32_t which)
{
    static fuzz_basis bases[FUZZ_BASES];
    static const transform_shape shapes[FUZZ_BASES] = {
        {.layers = 2, .kv_heads = 2, .head_dim = 8, .rotary_dim = 8, .sides = 2, .span = 1},
        {.layers = 2, .kv_heads = 1, .head_dim = 6, .rotary_dim = 2, .sides = 1, .span = 2},
        {.layers = 5, .kv_heads = 1, .head_dim = 4, .sides = 2, .span = 3, .pairing = 1},
    };
    fuzz_basis *basis = &bases[which];
    if (basis->image != NULL) return basis;
    basis->made = basis_made_of(shapes[which], which);
    basis->bytes = transform_image_of(&shapes[which]).bytes;
    basis->image = test_aligned(64, basis->bytes);
    transform_image_write(&basis->made.basis, 0, basis->bytes, basis->image);
    return basis;
}

/* What the CPU makes of the segment, matrix after matrix. */
static kvt_status fuzz_on_cpu(const transform_segment *segment, const uint8_t *stored,
                              uint64_t bytes, uint32_t count, uint8_t *elements)
{
    view_rows rows[TRANSFORM_MATRICES_MAX];
    const view_rows *targets[TRANSFORM_MATRICES_MAX];
    const uint64_t matrix = transform_bound(segment) / count;
    for (uint32_t m = 0; m < count; m++) {
        rows[m] = view_rows_packed(elements + m * matrix, matrix);
        targets[m] = &rows[m];
    }
    return transform_decode(segment, stored, bytes, 0, segment->tokens, targets,
                            fuzz_arena_take(transform_scratch_bytes(&segment->basis->shape)));
}

/* What the kernels make of it, into pages with a gap behind each row: they say what the CPU says,
 * and leave the same elements. */
static void fuzz_on_kernels(const fuzz_basis *basis, const transform_segment *segment,
                            uint8_t *stored, uint64_t bytes, uint64_t gap_rows, kvt_status status,
                            const uint8_t *elements)
{
    const transform_shape *shape = &basis->made.basis.shape;
    const uint32_t count = transform_segment_matrices(shape, segment->index, NULL);
    const uint64_t matrix_bytes = transform_bound(segment) / count;
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_TRANSFORM);
    const kvt_variant variant = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE, segment->step};
    const uint64_t row = matrix_bytes / segment->tokens, gap = gap_rows * row;
    const kvt_matrix matrix = {.tokens = segment->tokens,
                               .kv_heads = (uint16_t)shape->kv_heads,
                               .head_dim = (uint16_t)shape->head_dim,
                               .dtype = segment->dtype,
                               .planes = 1,
                               .span = count,
                               .first_position = segment->first_position,
                               .index = segment->index,
                               .basis = segment->basis,
                               .layers = shape->layers,
                               .sides = shape->sides,
                               .basis_span = shape->span};
    const kvt_part part = {.kind = KVT_PART_DATA, .bytes = bytes, .data = stored};
    kernel_target targets[TRANSFORM_MATRICES_MAX];
    kernel_work works[1 + KVT_SPAN_MAX];
    const uint64_t room_bytes = codec->span_room(&matrix);
    const uint64_t pool_bytes = (row + gap) * segment->tokens;
    uint8_t *room = fuzz_arena_take(room_bytes);
    kvt_span_place place = {.basis = (uint64_t)(uintptr_t)basis->image,
                            .room = (uint64_t)(uintptr_t)room};
    lanes_memory memory[3 + TRANSFORM_MATRICES_MAX] = {
        {stored, bytes, false}, {basis->image, basis->bytes, false}, {room, room_bytes, true}};
    for (uint32_t m = 0; m < count; m++) {
        uint8_t *pool = fuzz_arena_take(pool_bytes);
        targets[m] = (kernel_target){.start = (uint64_t)(uintptr_t)pool,
                                     .token_stride = row + gap,
                                     .head_bytes = row,
                                     .block_tokens = UINT32_MAX,
                                     .heads = 1};
        memory[3 + m] = (lanes_memory){pool, pool_bytes, true};
        place.targets[m] = &targets[m];
        place.transfers[m] = (uint32_t)kvt_dtype_bytes(segment->dtype);
    }
    uint32_t work_count = 0, verdict = KERNEL_SOUND;
    memset(room, 0xc3, room_bytes);
    if (codec->plan_span(variant, &matrix, &part, &place, segment->dtype, works, &work_count) !=
            KVT_OK ||
        work_count != 1 + count)
        abort();
    for (uint32_t i = 0; i < work_count; i++)
        if (!lanes_launch(works[i].kernel, &works[i].job, 1, (uint32_t)works[i].blocks, &verdict, 1,
                          memory, 3 + count))
            abort();
    if (verdict != (status == KVT_OK ? KERNEL_SOUND : KERNEL_CORRUPT)) abort();
    for (uint32_t m = 0; status == KVT_OK && m < count; m++)
        for (uint32_t t = 0; t < segment->tokens; t++)
            if (memcmp((const uint8_t *)(uintptr_t)targets[m].start + t * (row + gap),
                       elements + m * matrix_bytes + t * row, row) != 0)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint16_t steps[] = {1, 3, 20, 64, 81, 300, 341, 1023};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const fuzz_basis *basis = fuzz_basis_of(data[0] % FUZZ_BASES);
    const transform_shape *shape = &basis->made.basis.shape;
    const transform_segment segment = {
        .basis = &basis->made.basis,
        .index = data[1] % transform_segment_count(shape),
        .first_position = data[2] * 1000u,
        .tokens = 1 + (data[3] | data[4] << 8) % (uint32_t)FUZZ_TOKENS,
        .step = steps[data[5] % 8],
        .dtype = (uint8_t)(KVT_DTYPE_FP16 + data[6] % 3),
    };
    const uint32_t count = transform_segment_matrices(shape, segment.index, NULL);
    const uint32_t blocks =
        (segment.tokens + TRANSFORM_BLOCK_TOKENS - 1) / (uint32_t)TRANSFORM_BLOCK_TOKENS;
    const uint8_t head[] = {
        (uint8_t)blocks, 0, 0, 0, (uint8_t)segment.step, (uint8_t)(segment.step >> 8), shape->span};
    const uint64_t bytes = size - FUZZ_HEAD_BYTES;
    uint8_t *stored = fuzz_arena_take(bytes);
    if (bytes > 0) memcpy(stored, data + FUZZ_HEAD_BYTES, bytes);
    if (data[7] % 8 != 0 && bytes >= sizeof head) memcpy(stored, head, sizeof head);
    uint8_t *elements = fuzz_arena_take(transform_bound(&segment));
    const kvt_status status = fuzz_on_cpu(&segment, stored, bytes, count, elements);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();

    fuzz_on_kernels(basis, &segment, stored, bytes, data[7] / 8 % 3, status, elements);
    return 0;
}
