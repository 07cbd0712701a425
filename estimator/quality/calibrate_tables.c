/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_tables.c - what entropy tables of other entries cost, beside each matrix' own. Thread
 * rule: see calibrate.h.
 */
#include "codecs/codec_table.h"
#include "codecs/record.h"
#include "estimator/quality/calibrate.h"

#include <stdlib.h>

enum { TABLES_ALIGN = 4096 };

static void *tables_room(uint64_t bytes)
{
    return aligned_alloc(TABLES_ALIGN, (bytes / TABLES_ALIGN + 1) * TABLES_ALIGN);
}

static size_t tables_count(const calibrate_tables *t)
{
    return (size_t)t->layout.layers * 2 * KVT_ENTROPY_SYMBOLS;
}

kvt_status calibrate_tables_open(kvt_variant variant, const kvt_layout *layout, calibrate_tables *t)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    *t = (calibrate_tables){.variant = variant, .layout = *layout};
    if (codec == NULL || codec->id != KVT_CODEC_ENTROPY || variant.mode >> 8 != 0 ||
        codec->check(variant, layout) != KVT_OK) {
        return KVT_E_UNSUPPORTED;
    }
    t->counts = malloc(tables_count(t) * sizeof *t->counts);
    if (t->counts == NULL) return KVT_E_MEMORY;
    /* One of everything, so that no symbol is without a place. */
    for (size_t i = 0; i < tables_count(t); i++)
        t->counts[i] = 1;
    return KVT_OK;
}

void calibrate_tables_close(calibrate_tables *t)
{
    free(t->counts);
    t->counts = NULL;
}

kvt_status calibrate_tables_count(calibrate_tables *t, uint32_t tokens, const void *entry)
{
    const kvt_codec *codec = kvt_codec_find(t->variant.codec);
    kvt_layout layout = t->layout;
    void *widened;
    layout.tokens = tokens;
    kvt_status status = quality_widen(&layout, &entry, &widened);
    if (status != KVT_OK) return status;
    kvt_matrix matrix = {.tokens = tokens,
                         .kv_heads = layout.kv_heads,
                         .head_dim = layout.head_dim,
                         .dtype = layout.dtype,
                         .planes = 1};
    uint64_t bytes = codec->matrix_scratch(t->variant, &matrix);
    matrix.side = KVT_SIDE_V;
    uint64_t of_v = codec->matrix_scratch(t->variant, &matrix);
    if (of_v > bytes) bytes = of_v;
    void *scratch = tables_room(bytes);
    if (scratch == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; status >= 0 && i < 2u * layout.layers; i++) {
        matrix.layer = (uint16_t)(i / 2);
        matrix.side = (uint8_t)(i % 2);
        const uint8_t *source =
            (const uint8_t *)entry + kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2));
        status = kvt_entropy_count(t->variant, &matrix, source, scratch, bytes,
                                   t->counts + (size_t)i * KVT_ENTROPY_SYMBOLS);
    }
    free(scratch);
    free(widened);
    return status == KVT_RAW ? KVT_OK : status;
}

kvt_status calibrate_tables_code(calibrate_tables *t, uint32_t tokens, const void *entry)
{
    kvt_record_spec spec = {.generation = 1, .layout = t->layout, .variant = t->variant};
    const kvt_codec_extras shared = {.struct_size = sizeof shared,
                                     .sink_tokens = KVT_SINK_TOKENS, /* as without extras */
                                     .symbol_counts = t->counts,
                                     .count_layers = t->layout.layers};
    uint64_t source_bytes, bound, scratch_bytes, bytes;
    kvt_record_info info;
    spec.layout.tokens = tokens;
    kvt_status status = kvt_layout_bytes(&spec.layout, &source_bytes);
    if (status == KVT_OK) status = kvt_record_bound(&spec, &bound, &scratch_bytes);
    if (status != KVT_OK) return status;
    void *record = tables_room(bound), *scratch = tables_room(scratch_bytes);
    if (record == NULL || scratch == NULL) status = KVT_E_MEMORY;
    for (int way = 0; status >= 0 && way < 2; way++) {
        status = kvt_record_encode_with(&spec, way == 0 ? NULL : &shared, entry, source_bytes,
                                        record, bound, scratch, scratch_bytes, &bytes);
        if (status >= 0) status = kvt_record_parse(record, bytes, &info);
        if (status >= 0) *(way == 0 ? &t->own_bits : &t->shared_bits) += info.bits_per_element;
    }
    free(record);
    free(scratch);
    if (status >= 0) t->coded++;
    return status < 0 ? status : KVT_OK;
}
