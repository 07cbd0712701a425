/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_round_trip.c - any content through every codec and back. The first 6 bytes choose variant,
 * instruction set and layout, the rest is repeated to fill the entry. An exact codec must give the
 * same bytes back, and the record must fit its bound and verify.
 */
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
#include "codecs/record.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6 };

/* Settings that make a codec do different things; the codec's usual ones where there are none. */
static const char *const fuzz_variants[][4] = {
    {"kivi", "kivi:k2v8,g32", "kivi:k8v2,g32,r64,half", "kivi:k4v4,half"},
    {"planes", "planes:k8v8,g32", "planes:k6v3,g128,vchan", "planes:k2v2,vhead,vfirst"},
    {"entropy", "entropy:k0.5v1,vchan", "entropy:k0.1v0.1,middle", "entropy:k3v3"},
    {"lossless", "lossless:fast", "lossless", "lossless:fast"},
    {"drop:stream,50", "drop:knorm,25+planes:k4v2", "drop:lagkv,75+entropy",
     "drop:keydiff,50+kivi"},
};

/* The variant that the first byte names: a codec with its usual settings, or one of the list. */
static void fuzz_variant(uint8_t choice, kvt_variant *variant)
{
    const size_t families = sizeof fuzz_variants / sizeof fuzz_variants[0];
    size_t codecs = 0; /* those without a basis, which is not any content */
    while (kvt_codec_at(codecs) != NULL && kvt_codec_at(codecs)->id != KVT_CODEC_TRANSFORM) {
        codecs++;
    }
    const char *name = choice < 128 ? kvt_codec_at(choice % codecs)->name
                                    : fuzz_variants[choice / 4 % families][choice % 4];
    if (kvt_variant_parse(name, variant) != KVT_OK) abort();
}

/* Bit 7 of the last head byte asks for a large entry, bits 5 and 6 for an instruction set, 1 and 2
 * for sides. */
static bool fuzz_spec(const uint8_t *head, kvt_record_spec *spec)
{
    const bool small = head[5] >> 7 == 0;
    uint64_t bound;
    uint64_t need;
    memset(spec, 0, sizeof *spec);
    fuzz_variant(head[0], &spec->variant);
    spec->generation = 1;
    spec->layout.dtype = head[1] % 5;
    if (spec->layout.dtype == KVT_DTYPE_OPAQUE) {
        spec->layout.opaque_bytes = 1u + head[2] + 256u * head[3];
    } else {
        spec->layout.layers = (uint16_t)(1u + head[1] / 5u % (small ? 2u : 4u));
        spec->layout.kv_heads = (uint16_t)(1u + head[2] % (small ? 2u : 8u));
        spec->layout.head_dim = (uint16_t)(small ? 8u * (1u + head[3] % 8u) : 1u + head[3] % 128u);
        spec->layout.tokens = 1u + head[4] % (small ? 16u : 256u);
        spec->layout.order = head[5] % 2;
        spec->layout.sides = head[5] >> 1 & 3;
        spec->layout.tokens_may_drop = spec->variant.mode >> 8 != 0;
    }
    static const codecs_cpu levels[] = {CODECS_CPU_AVX512, CODECS_CPU_SCALAR, CODECS_CPU_AVX2,
                                        CODECS_CPU_AVX512};
    codecs_cpu_force(levels[head[5] >> 5 & 3]);
    return kvt_record_bound(spec, &bound, &need) == KVT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvt_record_spec spec;
    kvt_record_info info;
    uint64_t bytes;
    uint64_t bound;
    uint64_t need;
    uint64_t written;
    if (size <= FUZZ_HEAD_BYTES || !fuzz_spec(data, &spec)) return 0;
    if (kvt_layout_bytes(&spec.layout, &bytes) != KVT_OK) abort();
    if (kvt_record_bound(&spec, &bound, &need) != KVT_OK) abort();
    fuzz_arena_reset();
    uint8_t *source = fuzz_arena_take(bytes);
    uint8_t *record = fuzz_arena_take(bound);
    uint8_t *target;
    void *scratch = fuzz_arena_take(need);
    for (uint64_t i = 0; i < bytes; i++) {
        source[i] = data[FUZZ_HEAD_BYTES + i % (size - FUZZ_HEAD_BYTES)];
    }
    kvt_status status =
        kvt_record_encode(&spec, source, bytes, record, bound, scratch, need, &written);
    if (status != KVT_OK && status != KVT_RAW) abort();
    if (written > bound || kvt_record_verify(record, written, &info) != KVT_OK) abort();
    if (info.decoded_bytes > bytes) abort();
    target = fuzz_arena_take(info.decoded_bytes);
    status = kvt_record_decode(record, written, &spec, target, info.decoded_bytes, scratch, need);
    if (status != KVT_OK) abort();
    if (info.decoded_bytes == bytes &&
        kvt_codec_find(spec.variant.codec)->flags & KVT_CODEC_FLAG_EXACT) {
        if (memcmp(source, target, bytes) != 0) abort();
    }
    return 0;
}
