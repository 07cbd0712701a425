/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_record_groups.c - parser and decoder of records of groups against any bytes.
 *
 * The input is tried as a record as it is. Then a sound record is made of the groups that its first
 * bytes name, the rest is applied as edits {u16 block or place, u16 place, u8 value}, the checksums
 * of heads and tables are made right again, and it is tried once more.
 */
#include "codecs/kv_sample.h"
#include "codecs/record_format.h"
#include "codecs/record_groups.h"
#include "codecs/record_note.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FUZZ_HEAD_BYTES = 8,
    FUZZ_EDIT_BYTES = 4,
    FUZZ_GROUPS = 5,
    FUZZ_TARGET_MAX = 1 << 20,
    FUZZ_BUILT_MAX = 1 << 20
};

static const char *const fuzz_variants[] = {"raw", "lossless", "kivi:k4v4,g32", "planes:k4v3,g64",
                                            "entropy:k0.5v1"};

/* Parses, verifies, decodes whole and layer by layer, derives. */
static void fuzz_try(const uint8_t *record, size_t bytes)
{
    kvt_record_info info;
    record_groups groups;
    const kvt_status parsed = kvt_record_parse(record, bytes, &info);
    const kvt_status verified = kvt_record_verify(record, bytes, &info);
    if (verified == KVT_OK && parsed != KVT_OK) abort();
    if (parsed != KVT_OK || !record_is_grouped(record, bytes)) return;
    if (kvt_record_parse(record, bytes, &info) != KVT_OK || info.group_count == 0) abort();
    if (record_groups_open(record, bytes, &groups) != KVT_OK) abort();
    if (groups.count != info.group_count || info.record_bytes > bytes) abort();
    if (info.decoded_bytes > FUZZ_TARGET_MAX || info.scratch_bytes > FUZZ_TARGET_MAX) return;
    void *scratch = fuzz_arena_take(info.scratch_bytes);
    uint8_t *target = fuzz_arena_take(info.decoded_bytes);
    kvt_status status = kvt_record_decode(record, bytes, NULL, target, info.decoded_bytes, scratch,
                                          info.scratch_bytes);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    if (verified == KVT_OK && status != KVT_OK) abort();
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_view views[KVT_GROUPS_MAX];
    for (uint32_t i = 0; i < groups.count; i++)
        layouts[i] = groups.groups[i].layout;
    record_groups_pack(layouts, groups.count, target, views);
    const uint32_t layers = record_groups_layers(layouts, groups.count);
    for (uint32_t layer = 0; layer < layers && layer < 8; layer++) {
        status = record_groups_decode_views(record, bytes, NULL, NULL, layouts, views, groups.count,
                                            layer, 1, scratch, info.scratch_bytes);
        if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    }
    kvt_variant fewer;
    uint64_t made;
    if (kvt_variant_parse("planes:k2v2,g64", &fewer) != KVT_OK) abort();
    uint8_t *derived = fuzz_arena_take(info.record_bytes);
    (void)!record_groups_derive(record, bytes, NULL, fewer, derived, info.record_bytes, scratch,
                                info.scratch_bytes, &made);
}

static kvt_layout fuzz_layout(const uint8_t *head, uint32_t group)
{
    kvt_layout layout = {.dtype = (uint8_t)((head[1] + group) % 5)};
    if (layout.dtype == KVT_DTYPE_OPAQUE) {
        layout.opaque_bytes = 1u + head[2] + group;
        return layout;
    }
    layout.layers = (uint16_t)(1 + (head[3] + group) % 3);
    layout.kv_heads = (uint16_t)(1 + head[4] % 2);
    layout.head_dim = (uint16_t)(8 * (1 + head[5] % 4));
    layout.tokens = 1u + (uint32_t)(head[6] >> group) % 64;
    layout.order = (uint8_t)(head[4] >> 7);
    layout.sides = (uint8_t)((head[5] >> group) & 1);
    if (layout.sides == KVT_SIDES_ONE && (head[4] & 64) != 0) layout.sides = KVT_SIDES_V;
    return layout;
}

/* Encodes what the head names. It stays until another one is asked for. */
static uint64_t fuzz_build(const uint8_t *data, const uint8_t **record_out)
{
    static uint8_t built_of[FUZZ_HEAD_BYTES];
    static _Alignas(64) uint8_t built[FUZZ_BUILT_MAX];
    static uint64_t built_bytes = 0;
    kvt_layout layouts[FUZZ_GROUPS], all;
    kvt_variant variants[FUZZ_GROUPS];
    kvt_view views[FUZZ_GROUPS];
    uint64_t bound, need, bytes;
    *record_out = built;
    if (built_bytes > 0 && memcmp(built_of, data, FUZZ_HEAD_BYTES) == 0) return built_bytes;
    record_groups_spec spec = {.generation = 1,
                               .count = 1u + data[0] % FUZZ_GROUPS,
                               .layouts = layouts,
                               .variants = variants};
    if (kvt_variant_parse(fuzz_variants[data[7] % 5], &spec.variant) != KVT_OK) abort();
    for (uint32_t i = 0; i < spec.count; i++) {
        layouts[i] = fuzz_layout(data, i);
        variants[i] = spec.variant;
        const bool exact = layouts[i].dtype == KVT_DTYPE_OPAQUE;
        if (exact && spec.variant.codec != KVT_CODEC_RAW)
            variants[i] = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    }
    if (record_groups_layout(layouts, spec.count, &all) != KVT_OK) abort();
    if (record_groups_bound(&spec, 0, false, &bound, &need) != KVT_OK) return 0;
    if (bound > FUZZ_BUILT_MAX) return 0;
    uint8_t *source = fuzz_arena_take(all.opaque_bytes), *at = source;
    for (uint32_t i = 0; i < spec.count; i++) {
        if (kvt_layout_bytes(&layouts[i], &bytes) != KVT_OK) abort();
        codecs_kv_sample_fill(&layouts[i], data[2], at);
        at += bytes;
    }
    record_groups_pack(layouts, spec.count, source, views);
    kvt_status status = record_groups_encode(&spec, NULL, views, built, bound,
                                             fuzz_arena_take(need), need, &built_bytes);
    if (status != KVT_OK && status != KVT_RAW) abort();
    memcpy(built_of, data, FUZZ_HEAD_BYTES);
    return built_bytes;
}

/* Makes the checksums of every head and of its table right. */
static void fuzz_seal(uint8_t *record, uint64_t bytes)
{
    for (uint64_t at = 0; at + 2 * RECORD_SLOT_BYTES <= bytes; at += RECORD_SLOT_BYTES) {
        static const uint8_t magic[] = RECORD_MAGIC;
        record_header header;
        if (memcmp(record + at, magic, sizeof magic - 1) != 0) continue;
        memcpy(&header, record + at, sizeof header);
        if (header.table_offset < bytes - at && header.table_bytes <= bytes - at &&
            header.table_offset + header.table_bytes <= bytes - at) {
            header.table_checksum =
                checksum_of(record + at + header.table_offset, header.table_bytes);
            memcpy(record + at, &header, sizeof header);
        }
        record_seal_slot(record + at);
    }
}

static void fuzz_edited(const uint8_t *data, size_t size)
{
    const uint8_t *built;
    const uint64_t bytes = fuzz_build(data, &built);
    if (bytes == 0) return;
    uint8_t *record = fuzz_arena_copy(built, bytes);
    for (size_t i = FUZZ_HEAD_BYTES; i + FUZZ_EDIT_BYTES <= size; i += FUZZ_EDIT_BYTES) {
        const uint64_t block = data[i], in = (uint64_t)data[i + 1] | (uint64_t)data[i + 2] << 8;
        record[(block * RECORD_SLOT_BYTES + in % RECORD_SLOT_BYTES) % bytes] = data[i + 3];
    }
    fuzz_seal(record, bytes);
    fuzz_try(record, bytes);
    kvt_record_info info;
    static const uint64_t note[4] = {1, 2, 3, 4};
    const bool sound = kvt_record_verify(record, bytes, &info) == KVT_OK;
    if (record_note_set(record, note, 8u * (data[0] % 5)) == KVT_E_CORRUPT) return;
    if (sound && kvt_record_verify(record, bytes, &info) != KVT_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_arena_reset();
    fuzz_try(fuzz_arena_copy(data, size), size);
    if (size >= FUZZ_HEAD_BYTES) fuzz_edited(data, size);
    return 0;
}
