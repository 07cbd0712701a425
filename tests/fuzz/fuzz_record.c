/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_record.c - record parser and decoder against any bytes.
 *
 * The input is tried as a record as it is. Then a sound record is made from its first bytes, the
 * rest is applied as edits {u16 place, u8 value}, the checksums are made right again, so that the
 * checks behind them are reached, and it is tried once more. Nothing may be read or written out of
 * bounds; what verifies must decode.
 */
#include "codecs/kv_sample.h"
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "fuzz_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FUZZ_HEAD_BYTES = 8,
    FUZZ_EDIT_BYTES = 3,
    FUZZ_TARGET_MAX = 1 << 20,
    FUZZ_BUILT_MAX = 1 << 20
};

/* What records of minor 1 are made with. */
static const char *const fuzz_variants[] = {
    "kivi:k2v4,g32,r32", "planes:k8v6,g64",    "planes:k4v3,vchan",          "entropy:k0.5v1,vchan",
    "drop:stream,50",    "drop:knorm,25+kivi", "drop:keydiff,75+planes:k2v2"};

/* The notes of both slots and of the one that counts lie inside the record. */
static void fuzz_try_notes(const uint8_t *record, size_t bytes)
{
    const void *note;
    uint64_t note_bytes;
    if (bytes < RECORD_TABLE_OFFSET) return;
    for (int i = 0; i < 3; i++) {
        kvt_status status = i == 2 ? record_note_get(record, &note, &note_bytes)
                                   : record_note_of_slot(record + (uint64_t)i * RECORD_SLOT_BYTES,
                                                         &note, &note_bytes);
        if (status != KVT_OK) continue;
        const uint8_t *first = note;
        if (first < record || note_bytes == 0) abort();
        if ((uint64_t)(first - record) + note_bytes > RECORD_TABLE_OFFSET) abort();
    }
}

/* Parses, verifies and decodes. */
static void fuzz_try(const uint8_t *record, size_t bytes)
{
    kvt_record_info info;
    kvt_status parsed = kvt_record_parse(record, bytes, &info);
    kvt_status verified = kvt_record_verify(record, bytes, &info);
    if (verified == KVT_OK && parsed != KVT_OK) abort();
    fuzz_try_notes(record, bytes);
    if (kvt_record_parse(record, bytes, &info) != KVT_OK) return;
    if (info.source_bytes > FUZZ_TARGET_MAX || info.record_bytes > bytes) return;
    if (info.decoded_bytes > info.source_bytes) abort();

    const uint64_t need = info.scratch_bytes;
    void *scratch = fuzz_arena_take(need);
    uint8_t *target = fuzz_arena_take(info.decoded_bytes);
    kvt_status status =
        kvt_record_decode(record, bytes, NULL, target, info.decoded_bytes, scratch, need);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    if (info.spec.layout.dtype != KVT_DTYPE_OPAQUE) {
        kvt_layout stored = info.spec.layout;
        stored.tokens = info.stored_tokens;
        uint64_t matrix = kvt_layout_matrix_bytes(&stored);
        uint8_t *last = fuzz_arena_take(matrix);
        const bool both = kvt_layout_sides(&stored) == 2;
        status =
            kvt_record_decode_matrix(record, bytes, NULL, stored.layers - 1u,
                                     both ? KVT_SIDE_V : KVT_SIDE_K, last, matrix, scratch, need);
        if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
        if (!both && kvt_record_decode_matrix(record, bytes, NULL, 0, KVT_SIDE_V, last, matrix,
                                              scratch, need) != KVT_E_ARGUMENT) {
            abort();
        }
        uint32_t *kept = fuzz_arena_take(stored.tokens * sizeof *kept);
        status = kvt_record_kept_tokens(record, bytes, 0, kept, stored.tokens);
        if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    }
}

static kvt_record_spec fuzz_spec(const uint8_t *head)
{
    kvt_record_spec spec = {.generation = 1};
    spec.layout.dtype = head[0] % 5;
    if (spec.layout.dtype == KVT_DTYPE_OPAQUE) {
        spec.layout.opaque_bytes = 1u + head[1] + 256u * head[2];
    } else {
        spec.layout.layers = (uint16_t)(1 + head[1] % 3);
        spec.layout.kv_heads = (uint16_t)(1 + head[2] % 4);
        spec.layout.head_dim = (uint16_t)(1 + head[3] % 64);
        spec.layout.tokens = 1u + head[4] % 128;
        spec.layout.order = head[5] % 2;
        spec.layout.sides = head[5] >> 6 & 1;
        if (spec.layout.sides == KVT_SIDES_ONE && (head[5] & 2) != 0)
            spec.layout.sides = KVT_SIDES_V;
        if (head[5] >> 7 != 0) spec.layout.tokens = 1u + head[4] % 16u;
    }
    spec.variant.codec = KVT_CODEC_RAW;
    if (head[6] >= 128) {
        const size_t variants = sizeof fuzz_variants / sizeof fuzz_variants[0];
        if (kvt_variant_parse(fuzz_variants[head[6] % variants], &spec.variant) != KVT_OK) abort();
        if (spec.layout.dtype != KVT_DTYPE_OPAQUE) {
            spec.layout.head_dim = (uint16_t)(8 * (1 + head[3] % 8));
            spec.layout.tokens_may_drop = spec.variant.mode >> 8 != 0;
        }
    } else if (head[6] % 4 != 0) {
        spec.variant.codec = KVT_CODEC_LOSSLESS;
        spec.variant.mode = KVT_LOSSLESS_DENSE;
    }
    return spec;
}

/* Makes every checksum right that lies where the header and table say. */
static void fuzz_seal(uint8_t *record, uint64_t bytes)
{
    record_header header;
    memcpy(&header, record, sizeof header);
    for (uint32_t i = 0; i < header.segment_count; i++) {
        uint64_t at = RECORD_TABLE_OFFSET + (uint64_t)i * sizeof(record_segment);
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
    for (uint64_t slot = 0; slot < RECORD_TABLE_OFFSET; slot += RECORD_SLOT_BYTES) {
        static const uint8_t magic[] = RECORD_MAGIC;
        if (memcmp(record + slot, magic, sizeof magic - 1) != 0) continue;
        uint64_t checksum = checksum_of(record + slot, RECORD_CHECKSUM_AT);
        memcpy(record + slot + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
    }
}

/* Encodes what the head names. The record stays until another one is asked for: edits of one record
 * are many, and encoding is most of the work. Its bytes; 0 when there is no such record. */
static uint64_t fuzz_build(const uint8_t *data, const uint8_t **record_out)
{
    static uint8_t built_of[FUZZ_HEAD_BYTES];
    static _Alignas(64) uint8_t built[FUZZ_BUILT_MAX];
    static uint64_t built_bytes = 0;
    uint64_t source_bytes;
    uint64_t bound;
    uint64_t need;
    *record_out = built;
    if (built_bytes > 0 && memcmp(built_of, data, FUZZ_HEAD_BYTES) == 0) return built_bytes;
    kvt_record_spec spec = fuzz_spec(data);
    if (kvt_layout_bytes(&spec.layout, &source_bytes) != KVT_OK) abort();
    if (kvt_record_bound(&spec, &bound, &need) != KVT_OK) return 0;
    if (bound > FUZZ_BUILT_MAX) return 0;
    uint8_t *source = fuzz_arena_take(source_bytes);
    void *scratch = fuzz_arena_take(need);
    codecs_kv_sample_fill(&spec.layout, data[7], source);
    kvt_status status =
        kvt_record_encode(&spec, source, source_bytes, built, bound, scratch, need, &built_bytes);
    if (status != KVT_OK && status != KVT_RAW) abort();
    memcpy(built_of, data, FUZZ_HEAD_BYTES);
    return built_bytes;
}

static void fuzz_edited(const uint8_t *data, size_t size)
{
    const uint8_t *built;
    const uint64_t bytes = fuzz_build(data, &built);
    if (bytes == 0) return;
    /* An exact copy, so that a sanitizer sees a read past the record. */
    uint8_t *record = fuzz_arena_copy(built, bytes);
    for (size_t i = FUZZ_HEAD_BYTES; i + FUZZ_EDIT_BYTES <= size; i += FUZZ_EDIT_BYTES) {
        uint64_t place = (uint64_t)data[i] | (uint64_t)data[i + 1] << 8;
        record[place % bytes] = data[i + 2];
    }
    fuzz_seal(record, bytes);
    fuzz_try(record, bytes);
    /* What verifies does so with a note too, and without it again. */
    kvt_record_info info;
    static const uint64_t note[4] = {1, 2, 3, 4};
    bool sound = kvt_record_verify(record, bytes, &info) == KVT_OK;
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
