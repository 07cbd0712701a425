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
};

/* All zeros. */
static void *fuzz_alloc(uint64_t bytes)
{
    void *memory = fuzz_arena_take(bytes);
    memset(memory, 0, bytes);
    return memory;
}

/* The same matrix packed, and in a pool that has its heads or its tokens apart. */
typedef struct fuzz_targets {
    view_rows packed;
    view_rows apart;
} fuzz_targets;

static fuzz_targets fuzz_targets_of(const kvt_layout *layout, uint64_t bytes, uint32_t choice)
{
    static const char *const axes[] = {"lht", "ltsh", "lbhst", "lbtsh"};
    fuzz_targets targets = {.packed = view_rows_packed(fuzz_arena_take(bytes), bytes)};
    kvt_view view;
    targets.apart = view_rows_packed(fuzz_arena_take(bytes), bytes);
    if (layout->dtype == KVT_DTYPE_OPAQUE) return targets;
    const bool paged = choice % 4 > 1;
    const uint64_t blocks = paged ? layout->tokens / 3 + 1 : layout->tokens;
    if (kvt_view_make(layout, axes[choice % 4], paged ? 3 : 0, blocks, &view) != KVT_OK) abort();
    view.base[0] = view.base[1] = fuzz_arena_take(view.base_bytes[0]);
    targets.apart = view_rows_of(&view, layout, layout->tokens, 0, KVT_SIDE_K);
    return targets;
}

static void fuzz_targets_compare(const fuzz_targets *targets)
{
    uint8_t *gathered = fuzz_arena_take(targets->apart.bytes);
    view_rows_gather(&targets->apart, 0, targets->apart.bytes, gathered);
    if (memcmp(gathered, targets->packed.start, targets->packed.bytes) != 0) abort();
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
    fuzz_targets targets = fuzz_targets_of(layout, kvt_layout_matrix_bytes(layout), choice);
    kvt_status status =
        codec->decode_matrix(variant, &matrix, parts, &targets.packed, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    kvt_status apart = codec->decode_matrix(variant, &matrix, parts, &targets.apart, scratch, need);
    if (apart != status) abort();
    if (status == KVT_OK) fuzz_targets_compare(&targets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvt_variant variant;
    kvt_layout layout = {.dtype = 0};
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    size_t codecs = 0; /* fuzz_transform has the one with spans */
    while (kvt_codec_at(codecs) != NULL && kvt_codec_at(codecs)->id != KVT_CODEC_TRANSFORM) {
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
        if (layout.dtype == KVT_DTYPE_FP8) layout.dtype = KVT_DTYPE_BF16; /* as the record does */
        layout.head_dim = (uint16_t)(8 + data[3] / 16 * 8 % (data[5] & FUZZ_SMALL ? 64 : 256));
        fuzz_parts(codec, &layout, data[5] / 2u, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
        return 0;
    }
    if (codec->check(variant, &layout) != KVT_OK) return 0;
    uint64_t need = codec->segment_scratch(variant, &layout, bytes);
    void *scratch = fuzz_arena_take(need);
    fuzz_targets targets = fuzz_targets_of(&layout, bytes, data[5]);
    const uint8_t *stored = fuzz_arena_copy(data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    kvt_status status = codec->decode_segment(variant, &layout, stored, size - FUZZ_HEAD_BYTES,
                                              &targets.packed, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    kvt_status apart = codec->decode_segment(variant, &layout, stored, size - FUZZ_HEAD_BYTES,
                                             &targets.apart, scratch, need);
    if (apart != status) abort();
    if (status == KVT_OK) fuzz_targets_compare(&targets);
    return 0;
}
