/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coding.c - the public calls on single records: each checks what its caller gave, which the calls
 * of record.h take for granted, and makes one of them.
 *
 * Thread rule: re-entrant; no allocation.
 */
#include <kvterrace/coding.h>

#include "base/struct_size.h"
#include "codecs/codecs.h"
#include "codecs/record.h"
#include "codecs/record_groups.h"

#define CODING_LEAST   STRUCT_SIZE_THROUGH(kvt_coding, reserved)
#define SIZES_LEAST    STRUCT_SIZE_THROUGH(kvt_coding_sizes, scratch_bytes)
#define INFO_LEAST     STRUCT_SIZE_THROUGH(kvt_coding_info, reserved)
#define DECODING_LEAST STRUCT_SIZE_THROUGH(kvt_decoding, reserved2)
#define WORKERS_LEAST  STRUCT_SIZE_THROUGH(kvt_codec_workers, context)

/* Scratch for all workers is counted in 64 bits: a lane has less than 2^48 bytes. */
enum { CODING_WORKERS_MAX = 4096 };

/* The description of one encoding, in the words of record.h. */
typedef struct coding_given {
    kvt_coding whole;
    kvt_record_spec spec;
    kvt_codec_extras extras_of;
    const kvt_codec_extras *extras; /* NULL: all defaults */
    kvt_codec_workers workers_of;
    const kvt_codec_workers *workers;
} coding_given;

static bool coding_is_aligned(const void *memory)
{
    return (uintptr_t)memory % KVT_CODING_ALIGN == 0;
}

/* A record that a call reads. */
static bool coding_is_record(const void *record)
{
    return record != NULL && coding_is_aligned(record);
}

/* Scratch that a call is given: none, or some that is aligned. */
static bool coding_is_scratch(const void *scratch, uint64_t bytes)
{
    return coding_is_aligned(scratch) && (scratch != NULL || bytes == 0);
}

static kvt_status coding_read_workers(const kvt_codec_workers *given, kvt_codec_workers *whole,
                                      const kvt_codec_workers **workers_out)
{
    *workers_out = NULL;
    if (given == NULL) return KVT_OK;
    given = struct_size_in(given, whole, sizeof *whole, WORKERS_LEAST);
    if (given == NULL || given->count == 0 || given->count > CODING_WORKERS_MAX ||
        given->run == NULL)
        return KVT_E_ARGUMENT;
    *workers_out = given;
    return KVT_OK;
}

/* The bases that a call was given. */
static kvt_status coding_read_bases(const kvt_coding_basis *const *list, uint32_t count,
                                    kvt_record_bases *bases_out)
{
    if (list == NULL && count > 0) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == NULL) return KVT_E_ARGUMENT;
    *bases_out = (kvt_record_bases){list, count};
    return KVT_OK;
}

/* The members of a coding that record.h has in its extras. Where none is set there are no extras,
 * which means the usual sinks. */
static void coding_read_extras(const kvt_coding *coding, coding_given *given_out)
{
    given_out->extras = NULL;
    if ((coding->sink_tokens | coding->recent_tokens | coding->chain_tokens |
         coding->score_layers) == 0 &&
        coding->scores == NULL && coding->levels == NULL) {
        return;
    }
    const kvt_codec *codec = kvt_codec_find(coding->variant.codec);
    const bool sinks = codec != NULL && (codec->flags & KVT_CODEC_FLAG_PARTS) != 0 &&
                       !kvt_variant_drops_tokens(coding->variant);
    kvt_codec_extras *extras = &given_out->extras_of;
    *extras = (kvt_codec_extras){
        .struct_size = sizeof *extras,
        .chain_tokens = coding->chain_tokens,
        .sink_tokens = coding->sink_tokens,
        .recent_tokens = coding->recent_tokens,
        .levels = coding->levels,
        .scores = coding->scores,
        .score_layers = coding->score_layers,
    };
    if (coding->sink_tokens == 0) extras->sink_tokens = sinks ? KVT_SINK_TOKENS : 0;
    if (coding->sink_tokens == KVT_CODING_NO_SINKS) extras->sink_tokens = 0;
    given_out->extras = extras;
}

static kvt_status coding_read(const kvt_coding *coding, coding_given *given_out)
{
    if (coding == NULL) return KVT_E_ARGUMENT;
    given_out->whole = (kvt_coding){.struct_size = sizeof given_out->whole};
    coding = struct_size_in(coding, &given_out->whole, sizeof given_out->whole, CODING_LEAST);
    if (coding == NULL || coding->reserved != 0) return KVT_E_ARGUMENT;
    given_out->spec = (kvt_record_spec){
        .key = coding->key,
        .generation = coding->generation != 0 ? coding->generation : 1,
        .layout = coding->layout,
        .variant = coding->variant,
        .first_position = coding->first_position,
    };
    coding_read_extras(coding, given_out);
    const kvt_status status =
        coding_read_bases(coding->bases, coding->basis_count, &given_out->spec.bases);
    if (status != KVT_OK) return status;
    return coding_read_workers(coding->workers, &given_out->workers_of, &given_out->workers);
}

kvt_status kvt_coding_plan(const kvt_coding *coding, kvt_coding_sizes *sizes_out)
{
    coding_given given;
    if (sizes_out == NULL || !struct_size_is_sound(sizes_out, SIZES_LEAST)) return KVT_E_ARGUMENT;
    kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
    kvt_status status = coding_read(coding, &given);
    if (status == KVT_OK) status = kvt_layout_bytes(&given.spec.layout, &sizes.source_bytes);
    if (status == KVT_OK)
        status = kvt_record_bound_with(&given.spec, given.extras,
                                       given.workers != NULL ? given.workers->count : 0,
                                       &sizes.record_bytes, &sizes.scratch_bytes);
    if (status != KVT_OK) sizes = (kvt_coding_sizes){.struct_size = sizeof sizes};
    struct_size_out(sizes_out, &sizes, sizeof sizes);
    return status;
}

kvt_status kvt_coding_encode(const kvt_coding *coding, const void *source, uint64_t source_bytes,
                             void *record, uint64_t capacity, void *scratch, uint64_t scratch_bytes,
                             uint64_t *record_bytes_out)
{
    coding_given given;
    if (record_bytes_out == NULL) return KVT_E_ARGUMENT;
    *record_bytes_out = 0;
    kvt_status status = coding_read(coding, &given);
    if (status != KVT_OK) return status;
    if (source == NULL || !coding_is_record(record)) return KVT_E_ARGUMENT;
    if (!coding_is_scratch(scratch, scratch_bytes)) return KVT_E_ARGUMENT;
    return kvt_record_encode_parallel(&given.spec, given.extras, given.workers, source,
                                      source_bytes, record, capacity, scratch, scratch_bytes,
                                      record_bytes_out);
}

/* Scratch for decoding and deriving: what the record says, and what its spec does. A record with a
 * basis says what both need; its spec alone does not know the span. */
static uint64_t coding_scratch(const kvt_record_info *info)
{
    uint64_t record, bound, most = info->scratch_bytes;
    if (info->basis_span == 0 && kvt_record_bound(&info->spec, &record, &bound) == KVT_OK &&
        bound > most)
        most = bound;
    return codecs_align(most, KVT_CODING_ALIGN);
}

static kvt_status coding_look(const void *record, uint64_t bytes, bool verify,
                              kvt_coding_info *info_out)
{
    kvt_record_info info;
    if (!coding_is_record(record) || info_out == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(info_out, INFO_LEAST)) return KVT_E_ARGUMENT;
    kvt_status status =
        verify ? kvt_record_verify(record, bytes, &info) : kvt_record_parse(record, bytes, &info);
    if (status != KVT_OK) return status;
    kvt_coding_info own = {
        .struct_size = sizeof own,
        .first_position = info.spec.first_position,
        .key = info.spec.key,
        .generation = info.spec.generation,
        .layout = info.spec.layout,
        .variant = info.spec.variant,
        .record_bytes = info.record_bytes,
        .payload_bytes = info.payload_bytes,
        .source_bytes = info.source_bytes,
        .decoded_bytes = info.decoded_bytes,
        .scratch_bytes = coding_scratch(&info),
        .stored_tokens = info.stored_tokens,
        .segment_count = info.segment_count,
        .raw_segments = info.raw_segments,
        .group_count = info.group_count,
        .bits_per_element = info.bits_per_element,
        .basis_span = info.basis_span,
    };
    memcpy(own.basis, info.basis, sizeof own.basis);
    struct_size_out(info_out, &own, sizeof own);
    return KVT_OK;
}

kvt_status kvt_coding_inspect(const void *record, uint64_t bytes, kvt_coding_info *info_out)
{
    return coding_look(record, bytes, false, info_out);
}

kvt_status kvt_coding_verify(const void *record, uint64_t bytes, kvt_coding_info *info_out)
{
    return coding_look(record, bytes, true, info_out);
}

/* The facts that a decoder is told beside the record, in the words of record.h. */
typedef struct coding_expected {
    kvt_record_spec spec; /* key, generation and bases */
    bool keyed;           /* key and generation count */
    kvt_codec_workers workers_of;
    const kvt_codec_workers *workers;
} coding_expected;

static kvt_status coding_expect(const kvt_decoding *decoding, coding_expected *expected_out)
{
    kvt_decoding whole = {.struct_size = sizeof whole};
    if (decoding == NULL) decoding = &whole;
    decoding = struct_size_in(decoding, &whole, sizeof whole, DECODING_LEAST);
    if (decoding == NULL || decoding->reserved != 0 || decoding->reserved2 != 0)
        return KVT_E_ARGUMENT;
    expected_out->keyed = decoding->key != NULL;
    expected_out->spec = (kvt_record_spec){
        .generation = decoding->generation != 0 ? decoding->generation : 1,
    };
    if (decoding->key != NULL) expected_out->spec.key = *decoding->key;
    const kvt_status status =
        coding_read_bases(decoding->bases, decoding->basis_count, &expected_out->spec.bases);
    if (status != KVT_OK) return status;
    return coding_read_workers(decoding->workers, &expected_out->workers_of,
                               &expected_out->workers);
}

/* Where any key will do, the record's own is expected: the calls of record.h take bases and key
 * together. */
static kvt_status coding_meet(const void *record, uint64_t bytes, coding_expected *expected)
{
    kvt_record_info info;
    const kvt_status status = kvt_record_parse(record, bytes, &info);
    if (status != KVT_OK) return status;
    if (!expected->keyed) {
        expected->spec.key = info.spec.key;
        expected->spec.generation = info.spec.generation;
    }
    const bool same = memcmp(&expected->spec.key, &info.spec.key, sizeof info.spec.key) == 0 &&
                      expected->spec.generation == info.spec.generation;
    return same ? KVT_OK : KVT_E_MISMATCH;
}

kvt_status kvt_coding_decode(const kvt_decoding *decoding, const void *record, uint64_t bytes,
                             void *target, uint64_t target_bytes, void *scratch,
                             uint64_t scratch_bytes)
{
    coding_expected expected;
    kvt_status status = coding_expect(decoding, &expected);
    if (status != KVT_OK) return status;
    if (!coding_is_record(record) || target == NULL) return KVT_E_ARGUMENT;
    if (!coding_is_scratch(scratch, scratch_bytes)) return KVT_E_ARGUMENT;
    const bool with_bases = expected.spec.bases.count > 0;
    if (!expected.keyed && with_bases) status = coding_meet(record, bytes, &expected);
    if (status != KVT_OK) return status;
    return kvt_record_decode_parallel(
        record, bytes, expected.keyed || with_bases ? &expected.spec : NULL, expected.workers,
        target, target_bytes, scratch, scratch_bytes);
}

/* Planes that go from a copy of the record; whether the variant has fewer of them is not known
 * before the record has been read. */
static kvt_status coding_drop_planes(const void *record, uint64_t bytes, kvt_variant variant,
                                     void *target, uint64_t capacity, uint64_t *record_bytes_out)
{
    kvt_record_info info;
    kvt_record_drop drop;
    kvt_status status = kvt_record_parse(record, bytes, &info);
    if (status != KVT_OK) return status;
    if (capacity < info.record_bytes) return KVT_E_SPACE;
    memcpy(target, record, info.record_bytes);
    status = kvt_record_drop_planes(target, info.record_bytes, variant, &drop);
    if (status == KVT_OK) status = kvt_record_verify(target, drop.record_bytes, &info);
    if (status == KVT_OK) *record_bytes_out = drop.record_bytes;
    return status;
}

kvt_status kvt_coding_derive(const kvt_decoding *decoding, const void *record, uint64_t bytes,
                             kvt_variant variant, void *target, uint64_t capacity, void *scratch,
                             uint64_t scratch_bytes, uint64_t *record_bytes_out)
{
    coding_expected expected;
    if (record_bytes_out == NULL) return KVT_E_ARGUMENT;
    *record_bytes_out = 0;
    kvt_status status = coding_expect(decoding, &expected);
    if (status != KVT_OK) return status;
    if (!coding_is_record(record) || !coding_is_record(target)) return KVT_E_ARGUMENT;
    if (!coding_is_scratch(scratch, scratch_bytes)) return KVT_E_ARGUMENT;
    if (expected.keyed) status = coding_meet(record, bytes, &expected);
    kvt_record_info info;
    if (status == KVT_OK) status = kvt_record_parse(record, bytes, &info);
    const bool grouped = status == KVT_OK && info.group_count > 0;
    if (grouped) status = kvt_record_verify(record, bytes, &info); /* nothing damaged is copied */
    if (status != KVT_OK) return status;
    if (grouped)
        return record_groups_derive(record, bytes, &expected.spec.bases, variant, target, capacity,
                                    scratch, scratch_bytes, record_bytes_out);
    if (variant.codec == KVT_CODEC_PLANES)
        return coding_drop_planes(record, bytes, variant, target, capacity, record_bytes_out);
    return kvt_record_derive(record, bytes, &expected.spec.bases, variant, target, capacity,
                             scratch, scratch_bytes, record_bytes_out);
}

kvt_status kvt_coding_tokens_read(const void *record, uint64_t bytes, uint32_t layer,
                                  uint32_t *tokens_out, uint32_t count)
{
    if (!coding_is_record(record) || tokens_out == NULL) return KVT_E_ARGUMENT;
    return kvt_record_kept_tokens(record, bytes, layer, tokens_out, count);
}
