/*
 * fuzz_segment.c - every codec's segment decoder against any bytes. The first 6 bytes choose codec
 * and layout, the rest is the stored segment. The target is watched by its exact size.
 */
#include <kvterrace/codec.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvt_variant variant;
    kvt_layout layout = {.dtype = 0};
    if (size < FUZZ_HEAD_BYTES) return 0;
    size_t codecs = 0;
    while (kvt_codec_at(codecs) != NULL) {
        codecs++;
    }
    const kvt_codec *codec = kvt_codec_at(data[0] % codecs);
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
        bytes = kvt_layout_matrix_bytes(&layout);
    }
    if (codec->flags & KVT_CODEC_FLAG_PARTS) return 0; /* fuzz_parts */
    if (codec->check(variant, &layout) != KVT_OK) return 0;
    uint64_t need = codec->segment_scratch(variant, &layout, bytes);
    void *scratch = aligned_alloc(64, (need + 64) / 64 * 64);
    uint8_t *target = malloc(bytes);
    uint8_t *stored = malloc(size - FUZZ_HEAD_BYTES + 1);
    if (scratch == NULL || target == NULL || stored == NULL) abort();
    memcpy(stored, data + FUZZ_HEAD_BYTES, size - FUZZ_HEAD_BYTES);
    kvt_status status = codec->decode_segment(variant, &layout, stored, size - FUZZ_HEAD_BYTES,
                                              target, bytes, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    free(stored);
    free(target);
    free(scratch);
    return 0;
}
