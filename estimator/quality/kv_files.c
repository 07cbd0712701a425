/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_files.c - codecs on KV dumps that lie in files, and the dumps as memory. Any thread.
 */
#include "kv_files.h"

#include "estimator/exchange/file_kind.h"

#include "codecs/codecs.h"
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "codecs/transform_basis.h"
#include "estimator/model/safetensors.h"
#include "estimator/model/whole_file.h"
#include "estimator/quality/quality_round_trip.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The note of a record of 8-bit floats: the name of their type, which a layout has not. */
enum { FILE_NOTE_BYTES = 8 };
static const char file_notes[][FILE_NOTE_BYTES] = {"F8_E4M3", "F8_E5M2"};

enum { FILE_NAME_BYTES = 32, FILE_TENSORS = 3 /* per layer: K, V, positions or queries */ };

/* ---- encoding ---- */

static kvt_status file_probe(const quality_dump *dump, const quality_round_trip *round_trip,
                             double *error_out)
{
    const kvt_layout *layout = &dump->layout;
    const uint32_t layers = layout->layers, rows = dump->query_rows, width = layout->head_dim;
    const model_config config = {.layers = layers,
                                 .heads = dump->query_heads,
                                 .kv_heads = layout->kv_heads,
                                 .head_dim = width};
    const uint64_t each = (uint64_t)rows * dump->query_heads * width;
    quality_round_trip_kv kv = {.memory = NULL};
    model_probe_result found;
    float *queries = malloc(layers * each * sizeof *queries);
    const float **places = malloc(layers * sizeof *places);
    kvt_status status = KVT_E_MEMORY;
    if (queries == NULL || places == NULL) goto out;
    for (uint32_t layer = 0; layer < layers; layer++) {
        places[layer] = queries + layer * each;
        quality_dump_layer_queries(dump, layer, queries + layer * each);
    }
    status = quality_round_trip_kv_open(round_trip, &kv);
    if (status != KVT_OK) goto out;
    const model_probe probe = {
        .exact = &kv.exact, .variant = &kv.variant, .rows = rows, .queries = places};
    model_set_blas_threads(1);
    status = model_probe_attention(&config, &probe, &found, NULL);
    *error_out = found.attention_error;
out:
    quality_round_trip_kv_close(&kv);
    free(places);
    free(queries);
    return status;
}

static kvt_status file_encode_dump(const quality_dump *dump, kvt_variant variant,
                                   kvt_record_bases bases, quality_round_trip *round_trip,
                                   kv_file_result *result)
{
    kvt_status status = quality_round_trip_open(&dump->layout, round_trip);
    if (status != KVT_OK) return status;
    round_trip->bases = bases;
    quality_dump_load(dump, round_trip->source);
    status = quality_round_trip_run(round_trip, variant, false);
    if (status != KVT_OK) return status;
    result->info = round_trip->info;
    result->nmse[0] = round_trip->nmse[0];
    result->nmse[1] = round_trip->nmse[1];
    /* Of 8-bit floats only `profile attention` computes it. */
    result->queried = dump->query_rows > 0 && dump->layout.dtype != KVT_DTYPE_FP8;
    result->query_rows = dump->query_rows;
    return result->queried ? file_probe(dump, round_trip, &result->attention_error) : KVT_OK;
}

static kvt_status file_note_type(const quality_dump *dump, void *record)
{
    for (size_t i = 0; i < sizeof file_notes / sizeof file_notes[0]; i++)
        if (strcmp(dump->type, file_notes[i]) == 0)
            return record_note_set(record, file_notes[i], FILE_NOTE_BYTES);
    return KVT_OK;
}

/* Says why a dump is not encoded in a variant; KVT_E_MISMATCH: the basis is of another shape. */
static kvt_status file_say_unsupported(const char *path, const kvt_layout *layout,
                                       kvt_variant variant, kvt_record_bases bases, char *message,
                                       size_t message_size)
{
    for (uint32_t i = 0; i < bases.count && variant.codec == KVT_CODEC_TRANSFORM; i++) {
        const transform_shape *shape = &bases.list[i]->shape;
        if (transform_hash_start(bases.list[i]->hash) !=
            codecs_rate_field(variant, CODECS_BASIS_SHIFT, CODECS_BASIS_BITS))
            continue;
        if (shape->layers == layout->layers && shape->kv_heads == layout->kv_heads &&
            shape->head_dim == layout->head_dim && shape->sides == kvt_layout_sides(layout))
            break;
        snprintf(message, message_size,
                 "%s: %u layers x %u sides x %u heads x %u, and the basis is of %u x %u x %u x %u",
                 path, layout->layers, (unsigned)kvt_layout_sides(layout), layout->kv_heads,
                 layout->head_dim, (unsigned)shape->layers, shape->sides, (unsigned)shape->kv_heads,
                 (unsigned)shape->head_dim);
        return KVT_E_MISMATCH;
    }
    snprintf(message, message_size,
             "%s: this codec does not take %u heads x %u of that element type%s", path,
             layout->kv_heads, layout->head_dim,
             layout->dtype == KVT_DTYPE_FP8 ? "; F8_E5M2 is stored exact alone" : "");
    return KVT_E_UNSUPPORTED;
}

kvt_status kv_file_encode(const char *path, kvt_variant variant, kvt_record_bases bases,
                          const char *target, kv_file_result *result_out, char *message,
                          size_t message_size)
{
    quality_dump dump;
    quality_round_trip round_trip = {.source = NULL};
    *result_out = (kv_file_result){.queried = false};
    message[0] = '\0';
    kvt_status status = quality_dump_open_bytes(path, &dump, message, message_size);
    if (status != KVT_OK) return status;
    result_out->ignored = dump.ignored;
    /* Lossy codecs read E4M3. */
    if (strcmp(dump.type, file_notes[1]) == 0 && !kvt_codec_is_exact(variant))
        status = KVT_E_UNSUPPORTED;
    if (status == KVT_OK) status = file_encode_dump(&dump, variant, bases, &round_trip, result_out);
    if (status == KVT_E_UNSUPPORTED)
        status = file_say_unsupported(path, &dump.layout, variant, bases, message, message_size);
    if (status == KVT_OK) status = file_note_type(&dump, round_trip.record);
    if (status == KVT_OK && target != NULL)
        status = whole_file_write(target, round_trip.record, round_trip.info.record_bytes, message,
                                  message_size);
    quality_round_trip_close(&round_trip);
    quality_dump_close(&dump);
    return status;
}

/* ---- decoding ---- */

typedef struct file_record {
    uint8_t *bytes, *decoded, *scratch;
    uint64_t bytes_capacity, decoded_capacity, scratch_capacity;
    uint64_t byte_count;
    kvt_record_info info;
    const char *type; /* of 8-bit floats; NULL: the dtype says it */
    uint32_t *kept;   /* [stored_tokens] */
    float *positions; /* [layers][stored_tokens] */
    char (*names)[FILE_NAME_BYTES];
    safetensors_tensor *tensors;
    size_t tensor_count;
} file_record;

static kvt_status file_read(const char *path, file_record *record, char *message,
                            size_t message_size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        return errno == ENOENT ? KVT_E_GONE : KVT_E_IO;
    }
    kvt_status status = KVT_E_IO;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        record->byte_count = (uint64_t)size;
        status =
            quality_round_trip_room(&record->bytes, &record->bytes_capacity, record->byte_count);
        if (status == KVT_OK &&
            fread(record->bytes, 1, record->byte_count, file) != record->byte_count)
            status = KVT_E_IO;
    }
    if (status != KVT_OK) snprintf(message, message_size, "%s: cannot be read as a record", path);
    fclose(file);
    return status;
}

/* Which 8-bit floats a record holds; false: nobody noted it. */
static bool file_find_type(file_record *record)
{
    const void *note = NULL;
    uint64_t bytes = 0;
    if (record_note_get(record->bytes, &note, &bytes) != KVT_OK || bytes != FILE_NOTE_BYTES)
        return false;
    for (size_t i = 0; i < sizeof file_notes / sizeof file_notes[0]; i++)
        if (memcmp(note, file_notes[i], FILE_NOTE_BYTES) == 0) record->type = file_notes[i];
    return record->type != NULL;
}

/* Decodes the whole record; its layout then has stored_tokens tokens. */
static kvt_status file_decode_record(file_record *record, kvt_record_bases bases)
{
    uint64_t bound, scratch;
    kvt_status status = kvt_record_parse(record->bytes, record->byte_count, &record->info);
    if (status != KVT_OK) return status;
    const kvt_record_spec *spec = &record->info.spec;
    if (spec->layout.dtype == KVT_DTYPE_OPAQUE) return KVT_E_UNSUPPORTED;
    if (spec->layout.dtype == KVT_DTYPE_FP8 && !file_find_type(record)) return KVT_E_UNSUPPORTED;
    kvt_record_spec expected = *spec;
    expected.bases = bases;
    status = kvt_record_bound(&expected, &bound, &scratch);
    if (status == KVT_OK)
        status = quality_round_trip_room(&record->scratch, &record->scratch_capacity, scratch);
    if (status == KVT_OK)
        status = quality_round_trip_room(&record->decoded, &record->decoded_capacity,
                                         record->info.decoded_bytes);
    if (status != KVT_OK) return status;
    return kvt_record_decode(record->bytes, record->byte_count, &expected, record->decoded,
                             record->info.decoded_bytes, record->scratch, record->scratch_capacity);
}

/* The tensor that is next in the list. */
static safetensors_tensor *file_add(file_record *record, const char *side, uint32_t layer)
{
    safetensors_tensor *tensor = &record->tensors[record->tensor_count];
    char *name = record->names[record->tensor_count++];
    snprintf(name, FILE_NAME_BYTES, "%s.%u", side, (unsigned)layer);
    tensor->name = name;
    return tensor;
}

static kvt_status file_add_positions(file_record *record, uint32_t layer)
{
    const uint32_t tokens = record->info.stored_tokens;
    float *positions = record->positions + (size_t)layer * tokens;
    kvt_status status =
        kvt_record_kept_tokens(record->bytes, record->byte_count, layer, record->kept, tokens);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < tokens; i++)
        positions[i] = (float)(record->info.spec.first_position + record->kept[i]);
    safetensors_tensor *tensor = file_add(record, "positions", layer);
    tensor->dtype = KVT_DTYPE_FP32;
    tensor->rank = 1;
    tensor->shape[0] = tokens;
    tensor->data = positions;
    return KVT_OK;
}

static kvt_status file_list(file_record *record)
{
    kvt_layout stored = record->info.spec.layout;
    const bool dropped = record->info.stored_tokens < stored.tokens;
    stored.tokens = record->info.stored_tokens;
    size_t most = (size_t)stored.layers * FILE_TENSORS;
    record->tensors = calloc(most, sizeof *record->tensors);
    record->names = calloc(most, sizeof *record->names);
    record->kept = calloc(stored.tokens, sizeof *record->kept);
    record->positions = calloc((size_t)stored.layers * stored.tokens, sizeof *record->positions);
    if (!record->tensors || !record->names || !record->kept || !record->positions)
        return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    for (uint32_t layer = 0; status == KVT_OK && layer < stored.layers; layer++) {
        for (uint32_t side = 0; side < kvt_layout_sides(&stored); side++) {
            safetensors_tensor *tensor = file_add(record, side == KVT_SIDE_K ? "k" : "v", layer);
            tensor->dtype = stored.dtype;
            tensor->type = record->type;
            tensor->rank = 3;
            tensor->shape[0] = stored.tokens;
            tensor->shape[1] = stored.kv_heads;
            tensor->shape[2] = stored.head_dim;
            tensor->data =
                record->decoded + kvt_layout_matrix_offset(&stored, layer, (kvt_side)side);
        }
        if (dropped) status = file_add_positions(record, layer);
    }
    return status;
}

kvt_status kv_file_decode(const char *path, kvt_record_bases bases, const char *target,
                          kvt_record_info *info_out, char *message, size_t message_size)
{
    file_record record = {.bytes = NULL};
    message[0] = '\0';
    kvt_status status = file_read(path, &record, message, message_size);
    if (status == KVT_OK) {
        status = file_decode_record(&record, bases);
        if (status == KVT_OK) status = file_list(&record);
        if (status == KVT_E_UNSUPPORTED) {
            snprintf(message, message_size, "%s: the record %s", path,
                     record.info.spec.layout.dtype == KVT_DTYPE_FP8
                         ? "does not say which 8-bit floats it holds"
                         : "holds no K and V matrices");
        } else if (status != KVT_OK) {
            const char *kind = file_kind_of(record.bytes, record.byte_count);
            const bool begins =
                record.byte_count >= 8 && memcmp(record.bytes, RECORD_MAGIC, 8) == 0;
            snprintf(message, message_size, "%s: %s%s", path,
                     kind != NULL ? "no record: this is "
                     : begins     ? ""
                                  : "no record: it does not begin as one",
                     kind != NULL ? kind
                     : begins     ? kvt_status_text(status)
                                  : "");
        }
    }
    if (status == KVT_OK)
        status = safetensors_write(target, record.tensors, record.tensor_count, NULL, 0, message,
                                   message_size);
    *info_out = record.info;
    free(record.bytes);
    free(record.decoded);
    free(record.scratch);
    free(record.kept);
    free(record.positions);
    free(record.names);
    free(record.tensors);
    return status;
}

/* ---- KV dumps as memory ---- */

#define KV_ALIGN 4096u

/* Moves each matrix' first rows together; `kv` then has so many tokens. */
static void kv_shorten(kvt_profile_kv *kv, unsigned char *bytes, uint32_t tokens)
{
    const kvt_layout whole = kv->layout;
    kv->layout.tokens = tokens;
    const uint64_t kept = kvt_layout_matrix_bytes(&kv->layout);
    for (uint32_t layer = 0; layer < whole.layers; layer++) {
        for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
            memmove(bytes + kvt_layout_matrix_offset(&kv->layout, layer, (kvt_side)side),
                    bytes + kvt_layout_matrix_offset(&whole, layer, (kvt_side)side), kept);
        }
    }
}

kvt_status kv_file_read(const char *path, uint64_t most_bytes, kvt_profile_kv *out, char *message,
                        size_t message_size)
{
    quality_dump dump = {.file = NULL};
    uint64_t bytes = 0;
    unsigned char *memory = NULL;
    kvt_status status = quality_dump_open_bytes(path, &dump, message, message_size);
    if (status == KVT_OK) status = kvt_layout_bytes(&dump.layout, &bytes);
    if (status == KVT_OK) memory = aligned_alloc(KV_ALIGN, (bytes / KV_ALIGN + 1u) * KV_ALIGN);
    if (status == KVT_OK && memory == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        quality_dump_load(&dump, memory);
        *out = (kvt_profile_kv){.name = path, .layout = dump.layout, .bytes = memory};
        uint64_t tokens = most_bytes / (bytes / dump.layout.tokens);
        if (tokens < 1) tokens = 1;
        if (tokens < dump.layout.tokens) kv_shorten(out, memory, (uint32_t)tokens);
    }
    quality_dump_close(&dump);
    return status;
}

void kv_file_free(kvt_profile_kv *kv)
{
    union {
        const void *given;
        void *owned;
    } memory = {.given = kv->bytes};
    free(memory.owned);
    *kv = (kvt_profile_kv){.name = NULL};
}
