/*
 * fuzz_round_trip.c - any content through every codec and back. The first 6 bytes choose codec and
 * layout, the rest is repeated to fill the entry. An exact codec must give the same bytes back,
 * and the record must fit its bound and verify.
 */
#include <kvterrace/codec.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6 };

static void *fuzz_alloc(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory == NULL) abort();
    return memory;
}

static bool fuzz_spec(const uint8_t *head, kvt_record_spec *spec)
{
    size_t codecs = 0;
    while (kvt_codec_at(codecs) != NULL) {
        codecs++;
    }
    const kvt_codec *codec = kvt_codec_at(head[0] % codecs);
    memset(spec, 0, sizeof *spec);
    if (kvt_variant_parse(codec->name, &spec->variant) != KVT_OK) abort();
    spec->generation = 1;
    spec->layout.dtype = head[1] % 5;
    if (spec->layout.dtype == KVT_DTYPE_OPAQUE) {
        spec->layout.opaque_bytes = 1u + head[2] + 256u * head[3];
    } else {
        spec->layout.layers = (uint16_t)(1 + head[1] / 5 % 4);
        spec->layout.kv_heads = (uint16_t)(1 + head[2] % 8);
        spec->layout.head_dim = (uint16_t)(1 + head[3] % 128);
        spec->layout.tokens = 1u + head[4];
        spec->layout.order = head[5] % 2;
    }
    return codec->check(spec->variant, &spec->layout) == KVT_OK;
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
    uint8_t *source = fuzz_alloc(bytes);
    uint8_t *record = fuzz_alloc(bound);
    uint8_t *target = fuzz_alloc(bytes);
    void *scratch = fuzz_alloc(need);
    for (uint64_t i = 0; i < bytes; i++) {
        source[i] = data[FUZZ_HEAD_BYTES + i % (size - FUZZ_HEAD_BYTES)];
    }
    kvt_status status =
        kvt_record_encode(&spec, source, bytes, record, bound, scratch, need, &written);
    if (status != KVT_OK && status != KVT_RAW) abort();
    if (written > bound || kvt_record_verify(record, written, &info) != KVT_OK) abort();
    status = kvt_record_decode(record, written, &spec, target, bytes, scratch, need);
    if (status != KVT_OK) abort();
    if (kvt_codec_find(spec.variant.codec)->flags & KVT_CODEC_FLAG_EXACT) {
        if (memcmp(source, target, bytes) != 0) abort();
    }
    free(scratch);
    free(target);
    free(record);
    free(source);
    return 0;
}
