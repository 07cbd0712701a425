/*
 * record_decode.c - a record becomes the entry again, whole or one matrix of it. Every segment is
 * verified before it is decoded. Re-entrant; no allocation.
 */
#include "record_format.h"

#include <assert.h>

static uint64_t record_scratch_needed(const kvt_record_info *info)
{
    record_shape shape;
    const kvt_codec *codec = kvt_codec_find(info->spec.variant.codec);
    kvt_status status = record_shape_of(&info->spec.layout, &shape);
    assert(codec != NULL && status == KVT_OK);
    (void)status;
    return codec->segment_scratch(info->spec.variant, &info->spec.layout, shape.segment_bytes);
}

static kvt_status record_decode_segment(const void *record, const kvt_record_info *info,
                                        uint32_t index, uint8_t *target, void *scratch,
                                        uint64_t scratch_bytes)
{
    const record_segment segment = record_segment_at(record, index);
    const uint8_t *stored = (const uint8_t *)record + segment.offset;
    kvt_status status = record_segment_check(record, &segment);
    if (status != KVT_OK) return status;
    if (segment.kind == RECORD_KIND_RAW) {
        memcpy(target, stored, segment.raw_bytes);
        return KVT_OK;
    }
    const kvt_codec *codec = kvt_codec_find(info->spec.variant.codec);
    return codec->decode_segment(info->spec.variant, &info->spec.layout, stored,
                                 segment.stored_bytes, target, segment.raw_bytes, scratch,
                                 scratch_bytes);
}

kvt_status kvt_record_decode(const void *record, uint64_t bytes, const kvt_record_spec *expected,
                             void *target, uint64_t target_bytes, void *scratch,
                             uint64_t scratch_bytes)
{
    kvt_record_info info;
    assert(record != NULL && target != NULL && (uintptr_t)scratch % 64 == 0);
    kvt_status status = record_parse(record, bytes, false, &info);
    if (status != KVT_OK) return status;
    if (expected != NULL && (memcmp(&expected->key, &info.spec.key, sizeof info.spec.key) != 0 ||
                             expected->generation != info.spec.generation)) {
        return KVT_E_MISMATCH;
    }
    if (target_bytes != info.source_bytes) return KVT_E_SPACE;
    if (scratch_bytes < record_scratch_needed(&info)) return KVT_E_SPACE;
    const kvt_layout *layout = &info.spec.layout;
    for (uint32_t i = 0; status == KVT_OK && i < info.segment_count; i++) {
        uint64_t offset = layout->dtype == KVT_DTYPE_OPAQUE
                              ? i * RECORD_OPAQUE_BYTES
                              : kvt_layout_matrix_offset(layout, i / 2, (kvt_side)(i % 2));
        status = record_decode_segment(record, &info, i, (uint8_t *)target + offset, scratch,
                                       scratch_bytes);
    }
    return status;
}

kvt_status kvt_record_decode_matrix(const void *record, uint64_t bytes, uint32_t layer,
                                    kvt_side side, void *target, uint64_t target_bytes,
                                    void *scratch, uint64_t scratch_bytes)
{
    kvt_record_info info;
    assert(record != NULL && target != NULL && (uintptr_t)scratch % 64 == 0);
    kvt_status status = record_parse(record, bytes, false, &info);
    if (status != KVT_OK) return status;
    const kvt_layout *layout = &info.spec.layout;
    if (layout->dtype == KVT_DTYPE_OPAQUE || layer >= layout->layers) return KVT_E_ARGUMENT;
    if (side != KVT_SIDE_K && side != KVT_SIDE_V) return KVT_E_ARGUMENT;
    if (target_bytes != kvt_layout_matrix_bytes(layout)) return KVT_E_SPACE;
    if (scratch_bytes < record_scratch_needed(&info)) return KVT_E_SPACE;
    return record_decode_segment(record, &info, layer * 2 + (uint32_t)side, target, scratch,
                                 scratch_bytes);
}
