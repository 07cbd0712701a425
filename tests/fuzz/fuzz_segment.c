/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_segment.c - every codec's decoder against any bytes. The first 6 bytes choose codec, layout
 * and settings, the rest is the stored segment, or the parts of a matrix. The target is watched by
 * its exact size.
 */
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6, FUZZ_VARIANTS = 4, FUZZ_SMALL = 128 };

/* Settings that make a codec do different things. */
static const char *const fuzz_variants[][FUZZ_VARIANTS] = {
    {"kivi", "kivi:k2v8,g32", "kivi:k8v2,g128,half", "kivi:k4v4,half"},
    {"planes", "planes:k8v8,g32", "planes:k6v3,g128,vchan", "planes:k2v2,vhead"},
    {"entropy", "entropy:k0.5v1,vchan", "entropy:k0.1v0.1,middle", "entropy:k3v3"},
    {"rotate", "rotate:b3", "rotate:b8,row", "rotate:b4,row"},
};

/* All zeros. */
static void *fuzz_alloc(uint64_t bytes)
{
    void *memory = fuzz_arena_take(bytes);
    memset(memory, 0, bytes);
    return memory;
}

/* Hands the bytes out as the parts of one matrix: parts of fixed size are filled up with zeros. */
static void fuzz_parts(const kvt_codec *codec, const kvt_layout *layout, unsigned choice,
                       const uint8_t *data, size_t size)
{
    kvt_variant variant;
    kvt_part parts[KVT_PARTS_MAX];
    size_t family = 0;
    while (family < 3 && strncmp(fuzz_variants[family][0], codec->name, 4) != 0) {
        family++;
    }
    if (kvt_variant_parse(fuzz_variants[family][choice % 4], &variant) != KVT_OK) abort();
    if (variant.codec != codec->id || codec->check(variant, layout) != KVT_OK) return;
    kvt_matrix matrix = {.tokens = layout->tokens,
                         .kv_heads = layout->kv_heads,
                         .head_dim = layout->head_dim,
                         .dtype = layout->dtype,
                         .side = choice / 4 % 2};
    matrix.planes = codec->matrix_planes(variant, (kvt_side)matrix.side, 0);
    uint32_t count = codec->matrix_parts(variant, &matrix, parts);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t taken = parts[i].bytes < size ? parts[i].bytes : size;
        if (!(codec->flags & KVT_CODEC_FLAG_FIXED)) parts[i].bytes = taken;
        parts[i].data = fuzz_alloc(parts[i].bytes);
        memcpy(parts[i].data, data, taken);
        data += taken;
        size -= taken;
    }
    uint64_t need = codec->matrix_scratch(variant, &matrix);
    void *scratch = fuzz_arena_take(need);
    uint8_t *target = fuzz_arena_take(kvt_layout_matrix_bytes(layout));
    kvt_status status = codec->decode_matrix(variant, &matrix, parts, target, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvt_variant variant;
    kvt_layout layout = {.dtype = 0};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    size_t codecs = 0;
    while (kvt_codec_at(codecs) != NULL) {
        codecs++;
    }
    const kvt_codec *codec = kvt_codec_at(data[0] % codecs);
    codecs_cpu_force((codecs_cpu)(data[5] >> 5 & 3));
    if (kvt_variant_parse(codec->name, &variant) != KVT_OK) abort();
    layout.dtype = data[1] % 5;
    uint64_t bytes = 1u + data[2] + 256u * data[3];
    if (layout.dtype == KVT_DTYPE_OPAQUE) {
        layout.opaque_bytes = bytes;
    } else {
        layout.layers = 1;
        layout.kv_heads = (uint16_t)(1 + data[2] % 8);
        layout.head_dim = (uint16_t)(1 + data[3]);
        layout.tokens = 1u + data[4] + (data[5] & 1u) * 256u;
        if (data[5] & FUZZ_SMALL) {
            layout.kv_heads = (uint16_t)(1 + data[2] % 2);
            layout.tokens = 1u + data[4] % 16u;
        }
        bytes = kvt_layout_matrix_bytes(&layout);
    }
    if (codec->flags & KVT_CODEC_FLAG_PARTS) {
        if (layout.dtype == KVT_DTYPE_OPAQUE) return 0;
        layout.head_dim = (uint16_t)(8 + data[3] / 16 * 8 % (data[5] & FUZZ_SMALL ? 64 : 256));
        fuzz_parts(codec, &layout, data[5] / 2u, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
        return 0;
    }
    if (codec->check(variant, &layout) != KVT_OK) return 0;
    uint64_t need = codec->segment_scratch(variant, &layout, bytes);
    void *scratch = fuzz_arena_take(need);
    uint8_t *target = fuzz_arena_take(bytes);
    const uint8_t *stored = fuzz_arena_copy(data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    kvt_status status = codec->decode_segment(variant, &layout, stored, size - FUZZ_HEAD_BYTES,
                                              target, bytes, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    return 0;
}
