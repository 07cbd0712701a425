/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_kernels.c - the kernels of a GPU against any bytes, on this processor. The first 8 bytes
 * choose codec, variant, layout and view, the rest are the parts of a matrix, or a segment. The
 * kernel leaves no memory that it was given, says whether the bytes are sound as the CPU's decoder
 * does, and leaves the same bytes where they are.
 */
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kernels/kernel_table.h"
#include "fuzz_arena.h"

#include "tests/support/kernel_lanes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 8, FUZZ_TOKENS = 80 };

static const char *const fuzz_variants[] = {
    "kivi:k2v8,g32",     "kivi:k8v2,g128,half",           "kivi:k4v4,g64",     "planes:k2v2,g32",
    "planes:k3v4",       "planes:k6v8,g64,vhead",         "planes:k8v6,vchan", "lossless:fast",
    "entropy:k0.25v0.5", "entropy:k0.1v0.1,middle,vchan", "lossless",
};

/* A matrix that was chosen, with its bytes. */
typedef struct fuzz_matrix {
    const kvt_codec *codec;
    kvt_variant variant;
    kvt_layout layout;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
} fuzz_matrix;

static bool fuzz_choose(fuzz_input *input, fuzz_matrix *m)
{
    const size_t variants = sizeof fuzz_variants / sizeof fuzz_variants[0];
    if (kvt_variant_parse(fuzz_variants[fuzz_byte(input) % variants], &m->variant) != KVT_OK)
        abort();
    const uint8_t flags = fuzz_byte(input);
    m->codec = kvt_codec_find(m->variant.codec);
    m->layout = (kvt_layout){.layers = 1,
                             .kv_heads = (uint16_t)(1 + fuzz_byte(input) % 3),
                             .head_dim = (uint16_t)(1 + fuzz_byte(input) % 96),
                             .dtype = (uint8_t)(KVT_DTYPE_FP16 + flags % 3),
                             .tokens = 1u + fuzz_byte(input) % FUZZ_TOKENS};
    if (m->codec->flags & KVT_CODEC_FLAG_PARTS)
        m->layout.head_dim = (uint16_t)(m->layout.head_dim / 8 * 8 + 8);
    if (m->codec->check(m->variant, &m->layout) != KVT_OK) return false;
    m->matrix = (kvt_matrix){.tokens = m->layout.tokens,
                             .kv_heads = m->layout.kv_heads,
                             .head_dim = m->layout.head_dim,
                             .dtype = m->layout.dtype,
                             .side = flags / 4 % 2,
                             .planes = 1,
                             .span = 1};
    if (m->codec->flags & KVT_CODEC_FLAG_PARTS) {
        m->matrix.planes = m->codec->matrix_planes(m->variant, (kvt_side)m->matrix.side, 0);
        m->count = m->codec->matrix_parts(m->variant, &m->matrix, m->parts);
        if (!(m->codec->flags & KVT_CODEC_FLAG_FIXED)) m->parts[0].bytes = input->size;
    } else {
        m->count = 1;
        m->parts[0] = (kvt_part){.kind = KVT_PART_CODED, .bytes = input->size};
    }
    return true;
}

/* Hands the bytes out as parts, which lie in whole lines of zeros as a record's do. */
static void fuzz_hand_out(fuzz_input *input, fuzz_matrix *m, lanes_memory *memory)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const uint64_t taken = m->parts[i].bytes < input->size ? m->parts[i].bytes : input->size;
        const uint64_t room = (m->parts[i].bytes + 63) / 64 * 64;
        m->parts[i].data = fuzz_arena_take(room);
        memset(m->parts[i].data, 0, room);
        if (taken > 0) memcpy(m->parts[i].data, input->data, taken);
        input->data += taken;
        input->size -= taken;
        memory[i] = (lanes_memory){m->parts[i].data, room, false};
    }
}

static kvt_status fuzz_on_cpu(const fuzz_matrix *m, uint8_t *target, uint64_t bytes)
{
    const view_rows rows = view_rows_packed(target, bytes);
    if ((m->codec->flags & KVT_CODEC_FLAG_PARTS) == 0) {
        const uint64_t room = m->codec->segment_scratch(m->variant, &m->layout, bytes);
        return m->codec->decode_segment(m->variant, &m->layout, m->parts[0].data, m->parts[0].bytes,
                                        &rows, fuzz_arena_take(room), room);
    }
    const uint64_t need = m->codec->matrix_scratch(m->variant, &m->matrix);
    return m->codec->decode_matrix(m->variant, &m->matrix, m->parts, &rows, fuzz_arena_take(need),
                                   need);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_matrix m;
    lanes_memory memory[KVT_PARTS_MAX + 2];
    fuzz_input input = {data, size};
    uint32_t blocks[FUZZ_TOKENS];
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    codecs_cpu_force(CODECS_CPU_SCALAR);
    const uint32_t block_tokens = 1u + fuzz_byte(&input) % 20;
    const uint32_t heads_apart = fuzz_byte(&input) % 2, shift = fuzz_byte(&input) % 3;
    if (!fuzz_choose(&input, &m)) return 0;
    fuzz_hand_out(&input, &m, memory);
    const uint64_t bytes = kvt_layout_matrix_bytes(&m.layout);
    uint8_t *packed = fuzz_arena_take(bytes);
    const kvt_status status = fuzz_on_cpu(&m, packed, bytes);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();

    /* Pages in falling order; heads apart by an element; the start off a line by some elements. */
    const uint64_t element = kvt_dtype_bytes(m.layout.dtype);
    const uint64_t head_bytes = m.layout.head_dim * element;
    const uint64_t gap = heads_apart != 0 ? element : 0;
    const uint64_t head_stride = head_bytes + gap, row = head_stride * m.layout.kv_heads;
    const uint32_t pages = (m.layout.tokens + block_tokens - 1) / block_tokens;
    const uint64_t pool_bytes = pages * block_tokens * row + shift * element;
    uint8_t *pool = fuzz_arena_take(pool_bytes);
    memset(pool, 0x5a, pool_bytes);
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = pages - 1 - i;
    kernel_target target = {.start = (uint64_t)(uintptr_t)(pool + shift * element),
                            .blocks = (uint64_t)(uintptr_t)blocks,
                            .block_stride = block_tokens * row,
                            .token_stride = row,
                            .head_stride = head_stride,
                            .head_bytes = head_bytes,
                            .block_tokens = block_tokens,
                            .heads = m.layout.kv_heads};
    const uint64_t all = target.start | target.block_stride | row | head_stride | 16;
    kernel_work work;
    uint32_t verdict = KERNEL_SOUND;
    memset(&work, 0, sizeof work);
    if (m.codec->plan_job(m.variant, &m.matrix, m.parts, &target, (uint32_t)(all & (0 - all)),
                          m.layout.dtype, &work) != KVT_OK)
        abort();
    memory[m.count] = (lanes_memory){pool, pool_bytes, true};
    memory[m.count + 1] = (lanes_memory){blocks, sizeof blocks, false};
    if (!lanes_launch(work.kernel, &work.job, 1, (uint32_t)work.blocks, &verdict, 1, memory,
                      m.count + 2))
        abort();
    if (verdict != (status == KVT_OK ? KERNEL_SOUND : KERNEL_CORRUPT)) abort();
    for (uint64_t i = 0; status == KVT_OK && i < (uint64_t)m.layout.tokens * m.layout.kv_heads;
         i++) {
        const uint64_t token = i / m.layout.kv_heads, head = i % m.layout.kv_heads;
        const uint8_t *at = pool + shift * element +
                            blocks[token / block_tokens] * target.block_stride +
                            token % block_tokens * row + head * head_stride;
        if (memcmp(at, packed + i * head_bytes, head_bytes) != 0) abort();
    }
    return 0;
}
