/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_record_basis.c - records that need a basis, against any edits.
 *
 * The first 8 bytes choose basis, layout and step of a sound record; the rest is applied as edits
 * {u16 place, u8 value}, the checksums are made right again, and the record is parsed, decoded as a
 * whole, in one matrix and layer by layer, and derived, with its basis, with another one and
 * without. Nothing may be read or written out of bounds. What decodes as a whole decodes in parts
 * to the same elements.
 */
#include "codecs/kv_sample.h"
#include "codecs/record_format.h"
#include "codecs/transform.h"
#include "codecs/view_rows.h"
#include "fuzz_arena.h"
#include "tests/support/basis_support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 8, FUZZ_EDIT_BYTES = 3, FUZZ_BASES = 4, FUZZ_RECORD_MAX = 1 << 19 };

static const transform_basis *fuzz_basis_of(uint32_t which)
{
    static basis_made made[FUZZ_BASES];
    static const transform_shape shapes[FUZZ_BASES] = {
        {.layers = 2, .kv_heads = 2, .head_dim = 8, .rotary_dim = 8, .sides = 2, .span = 1},
        {.layers = 3, .kv_heads = 1, .head_dim = 6, .rotary_dim = 2, .sides = 1, .span = 2},
        {.layers = 5, .kv_heads = 1, .head_dim = 4, .sides = 2, .span = 3, .pairing = 1},
        {.layers = 3, .kv_heads = 2, .head_dim = 8, .rotary_dim = 8, .sides = 2, .span = 2},
    };
    if (made[which].means == NULL) {
        made[which] = basis_made_of(shapes[which], which);
        made[which].basis.hash[0] = (uint8_t)(which + 1);
    }
    return &made[which].basis;
}

static const transform_basis *fuzz_list[FUZZ_BASES];

static kvt_record_spec fuzz_spec(const uint8_t *head)
{
    const transform_basis *basis = fuzz_basis_of(head[0] % FUZZ_BASES);
    static const uint16_t steps[] = {1, 3, 9, 16, 32, 64, 300, 1023};
    return (kvt_record_spec){
        .generation = 1,
        .layout = {.layers = (uint16_t)basis->shape.layers,
                   .kv_heads = (uint16_t)basis->shape.kv_heads,
                   .head_dim = (uint16_t)basis->shape.head_dim,
                   .dtype = (uint8_t)(KVT_DTYPE_FP16 + head[1] % 3),
                   .order = head[1] / 3 % 2,
                   .sides = basis->shape.sides == 1,
                   .tokens = 1u + (head[2] | head[3] << 8) % 300u},
        .variant = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE,
                    transform_hash_start(basis->hash) << 10 | steps[head[4] % 8]},
        .first_position = head[5] % 8u,
        .bases = {fuzz_list, FUZZ_BASES}};
}

/* Makes every checksum right that lies where the header and table say. */
static void fuzz_seal(uint8_t *record, uint64_t bytes)
{
    record_header header;
    memcpy(&header, record, sizeof header);
    for (uint32_t i = 0; i < header.segment_count; i++) {
        const uint64_t at = RECORD_TABLE_OFFSET + (uint64_t)i * sizeof(record_segment);
        if (at + sizeof(record_segment) > bytes) break;
        record_segment segment = record_segment_at(record, i);
        if (segment.offset > bytes || segment.padded_bytes > bytes - segment.offset) continue;
        segment.checksum = checksum_of(record + segment.offset, segment.padded_bytes);
        memcpy(record + at, &segment, sizeof segment);
    }
    if (header.table_bytes <= bytes - RECORD_TABLE_OFFSET) {
        header.table_checksum = checksum_of(record + RECORD_TABLE_OFFSET, header.table_bytes);
        memcpy(record, &header, sizeof header);
    }
    record_seal_slot(record);
}

static uint64_t fuzz_build(const uint8_t *data, const uint8_t **record_out)
{
    static uint8_t built_of[FUZZ_HEAD_BYTES];
    static _Alignas(64) uint8_t built[FUZZ_RECORD_MAX];
    static uint64_t built_bytes = 0;
    uint64_t source_bytes, bound, need;
    *record_out = built;
    if (built_bytes > 0 && memcmp(built_of, data, FUZZ_HEAD_BYTES) == 0) return built_bytes;
    const kvt_record_spec spec = fuzz_spec(data);
    if (kvt_layout_bytes(&spec.layout, &source_bytes) != KVT_OK) abort();
    if (kvt_record_bound(&spec, &bound, &need) != KVT_OK || bound > FUZZ_RECORD_MAX) abort();
    uint8_t *source = fuzz_arena_take(source_bytes);
    void *scratch = fuzz_arena_take(need);
    codecs_kv_sample_fill(&spec.layout, data[6], source);
    const kvt_status status =
        kvt_record_encode(&spec, source, source_bytes, built, bound, scratch, need, &built_bytes);
    if (status != KVT_OK && status != KVT_RAW) abort();
    memcpy(built_of, data, FUZZ_HEAD_BYTES);
    return built_bytes;
}

static void fuzz_check(kvt_status status)
{
    if (status != KVT_OK && status != KVT_E_CORRUPT && status != KVT_E_MISMATCH) abort();
}

/* Each layer through an opened head gives what the whole gave. */
static void fuzz_layers(const uint8_t *record, uint64_t bytes, const kvt_record_info *info,
                        const kvt_record_spec *spec, const uint8_t *whole, void *scratch)
{
    const kvt_layout *layout = &info->spec.layout;
    _Alignas(8) static uint8_t memory[32768];
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    uint8_t *target = fuzz_arena_take(info->decoded_bytes);
    uint64_t kept;
    uint32_t count;
    const kvt_view view = codecs_packed_view(layout, target);
    const kvt_status opened =
        kvt_record_head_open(record, bytes, true, spec, memory, sizeof memory, &kept);
    if (opened != KVT_OK) return;
    const kvt_record_head *head = (const kvt_record_head *)(const void *)memory;
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        if (kvt_record_head_ranges(head, layer, 1, ranges, KVT_RECORD_RANGES_MAX, &count) != KVT_OK)
            abort();
        const kvt_status status = kvt_record_head_decode(head, layout, &view, layer, 1, record,
                                                         NULL, 0, scratch, info->scratch_bytes);
        fuzz_check(status);
        if (whole != NULL && status != KVT_OK) abort();
    }
    if (whole != NULL && memcmp(target, whole, info->decoded_bytes) != 0) abort();
}

static void fuzz_try(const uint8_t *record, uint64_t bytes, kvt_record_spec spec)
{
    kvt_record_info info;
    if (kvt_record_parse(record, bytes, &info) != KVT_OK) return;
    if (info.spec.variant.codec != KVT_CODEC_TRANSFORM) return;
    if (info.source_bytes > FUZZ_RECORD_MAX) return;
    void *scratch = fuzz_arena_take(info.scratch_bytes);
    uint8_t *whole = fuzz_arena_take(info.decoded_bytes);
    spec.key = info.spec.key;
    spec.generation = info.spec.generation;
    const kvt_status status = kvt_record_decode(record, bytes, &spec, whole, info.decoded_bytes,
                                                scratch, info.scratch_bytes);
    fuzz_check(status);
    if (kvt_record_decode(record, bytes, NULL, whole, info.decoded_bytes, scratch,
                          info.scratch_bytes) != KVT_E_MISMATCH)
        abort();
    const kvt_status again = kvt_record_decode(record, bytes, &spec, whole, info.decoded_bytes,
                                               scratch, info.scratch_bytes);
    if (again != status) abort();
    fuzz_layers(record, bytes, &info, &spec, status == KVT_OK ? whole : NULL, scratch);
    kvt_variant coarser = info.spec.variant;
    const uint32_t step = coarser.rate & 1023u;
    if (3 * step > 1023) return;
    coarser.rate += 2 * step;
    uint8_t *derived = fuzz_arena_take(FUZZ_RECORD_MAX);
    uint64_t made;
    const kvt_status thirds =
        kvt_record_derive(record, bytes, &spec.bases, coarser, derived, FUZZ_RECORD_MAX, scratch,
                          info.scratch_bytes, &made);
    if (thirds == KVT_OK && kvt_record_verify(derived, made, &info) != KVT_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *built;
    if (size < FUZZ_HEAD_BYTES) return 0;
    fuzz_arena_reset();
    for (uint32_t i = 0; i < FUZZ_BASES; i++)
        fuzz_list[i] = fuzz_basis_of(i);
    const uint64_t bytes = fuzz_build(data, &built);
    uint8_t *record = fuzz_arena_copy(built, bytes);
    for (size_t i = FUZZ_HEAD_BYTES; i + FUZZ_EDIT_BYTES <= size; i += FUZZ_EDIT_BYTES) {
        const uint64_t place = (uint64_t)data[i] | (uint64_t)data[i + 1] << 8;
        record[place % bytes] = data[i + 2];
    }
    fuzz_seal(record, bytes);
    kvt_record_spec spec = fuzz_spec(data);
    fuzz_try(record, bytes, spec);
    spec.bases.count = data[7] % FUZZ_BASES; /* the right one may be absent */
    fuzz_try(record, bytes, spec);
    return 0;
}
