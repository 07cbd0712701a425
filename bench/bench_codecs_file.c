/*
 * bench_codecs_file.c - see bench_codecs_file.h. Thread rule: any thread.
 */
#include "bench_codecs_file.h"

#include "estimator/quality_trip.h"
#include "estimator/safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_NAME_BYTES = 32, FILE_TENSORS = 3 /* per layer: K, V, positions or queries */ };

/* A dump that is being read. */
typedef struct file_dump {
    safetensors *file;
    const char *path;
    kvt_layout layout;
    uint32_t query_heads, query_rows; /* 0: there are no queries */
    char *message;
    size_t message_size;
} file_dump;

__attribute__((format(printf, 2, 3))) static kvt_status file_refuse(const file_dump *dump,
                                                                    const char *format, ...)
{
    va_list arguments;
    int used = snprintf(dump->message, dump->message_size, "%s: ", dump->path);
    if (used < 0 || (size_t)used >= dump->message_size) return KVT_E_PARSE;
    va_start(arguments, format);
    vsnprintf(dump->message + used, dump->message_size - (size_t)used, format, arguments);
    va_end(arguments);
    return KVT_E_PARSE;
}

static const safetensors_tensor *file_tensor(const file_dump *dump, const char *side,
                                             uint32_t layer, char name[FILE_NAME_BYTES])
{
    snprintf(name, FILE_NAME_BYTES, "%s.%u", side, (unsigned)layer);
    return safetensors_find(dump->file, name);
}

/* The layer that a name such as "k.12" is of; false for any other name. */
static bool file_layer(const char *name, char side, uint32_t *layer_out)
{
    uint32_t layer = 0;
    if (name[0] != side || name[1] != '.' || name[2] == '\0') return false;
    if (name[2] == '0' && name[3] != '\0') return false; /* k.01 is not k.1 */
    for (const char *at = name + 2; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || layer > UINT16_MAX) return false;
        layer = layer * 10 + (uint32_t)(*at - '0');
    }
    *layer_out = layer;
    return layer < UINT16_MAX;
}

/* Counts layers by the highest number, and tensors that are neither K, V nor queries. */
static uint32_t file_count_layers(const file_dump *dump, bool *queries_out, uint32_t *ignored_out)
{
    uint32_t layers = 0, layer;
    *queries_out = false;
    *ignored_out = 0;
    for (size_t i = 0; i < safetensors_count(dump->file); i++) {
        const char *name = safetensors_at(dump->file, i)->name;
        if (file_layer(name, 'k', &layer) || file_layer(name, 'v', &layer)) {
            if (layer + 1 > layers) layers = layer + 1;
        } else if (file_layer(name, 'q', &layer)) {
            *queries_out = true;
        } else {
            (*ignored_out)++;
        }
    }
    return layers;
}

/* ---- checking ---- */

static kvt_status file_first(file_dump *dump, uint32_t layers)
{
    char name[FILE_NAME_BYTES];
    const safetensors_tensor *tensor = file_tensor(dump, "k", 0, name);
    if (tensor == NULL) return file_refuse(dump, "k.0 is missing");
    if (tensor->dtype == KVT_DTYPE_OPAQUE)
        return file_refuse(dump, "k.0: the element type is not F16, BF16 or F32");
    if (tensor->rank != 3) return file_refuse(dump, "k.0 has %u axes, not 3", tensor->rank);
    const uint64_t *shape = tensor->shape;
    if (shape[0] == 0 || shape[1] == 0 || shape[2] == 0)
        return file_refuse(dump, "k.0 has no elements");
    if (shape[0] > UINT32_MAX || shape[1] > UINT16_MAX || shape[2] > UINT16_MAX)
        return file_refuse(dump, "k.0 is too large");
    dump->layout = (kvt_layout){.layers = (uint16_t)layers,
                                .kv_heads = (uint16_t)shape[1],
                                .head_dim = (uint16_t)shape[2],
                                .dtype = tensor->dtype,
                                .tokens = (uint32_t)shape[0]};
    return KVT_OK;
}

/* One K or V tensor against the first. */
static kvt_status file_check_matrix(const file_dump *dump, const char *side, uint32_t layer)
{
    char name[FILE_NAME_BYTES];
    const kvt_layout *layout = &dump->layout;
    const safetensors_tensor *tensor = file_tensor(dump, side, layer, name);
    if (tensor == NULL) return file_refuse(dump, "%s is missing", name);
    if (tensor->dtype == KVT_DTYPE_OPAQUE)
        return file_refuse(dump, "%s: the element type is not F16, BF16 or F32", name);
    if (tensor->dtype != layout->dtype)
        return file_refuse(dump, "%s has another element type than k.0", name);
    if (tensor->rank != 3 || tensor->shape[0] != layout->tokens ||
        tensor->shape[1] != layout->kv_heads || tensor->shape[2] != layout->head_dim) {
        return file_refuse(dump, "%s has another shape than k.0", name);
    }
    return KVT_OK;
}

static kvt_status file_check_queries(file_dump *dump)
{
    char name[FILE_NAME_BYTES];
    for (uint32_t layer = 0; layer < dump->layout.layers; layer++) {
        const safetensors_tensor *tensor = file_tensor(dump, "q", layer, name);
        if (tensor == NULL) return file_refuse(dump, "%s is missing", name);
        if (tensor->dtype == KVT_DTYPE_OPAQUE)
            return file_refuse(dump, "%s: the element type is not F16, BF16 or F32", name);
        if (tensor->rank != 3 || tensor->shape[0] == 0 || tensor->shape[0] > 1u << 20 ||
            tensor->shape[2] != dump->layout.head_dim || tensor->shape[1] == 0 ||
            tensor->shape[1] > UINT16_MAX || tensor->shape[1] % dump->layout.kv_heads != 0) {
            return file_refuse(dump,
                               "%s is not [rows, heads, head_dim] with the head_dim of k.0 and a "
                               "multiple of its heads",
                               name);
        }
        if (layer == 0) {
            dump->query_rows = (uint32_t)tensor->shape[0];
            dump->query_heads = (uint32_t)tensor->shape[1];
        }
        if (tensor->shape[0] != dump->query_rows || tensor->shape[1] != dump->query_heads)
            return file_refuse(dump, "%s has another shape than q.0", name);
    }
    return KVT_OK;
}

/* The layout, once every tensor has been found to fit it. */
static kvt_status file_check(file_dump *dump, uint32_t *ignored_out)
{
    bool queries;
    uint32_t layers = file_count_layers(dump, &queries, ignored_out);
    if (layers == 0) return file_refuse(dump, "there is no k.<layer> and no v.<layer>");
    kvt_status status = file_first(dump, layers);
    for (uint32_t layer = 0; status == KVT_OK && layer < layers; layer++) {
        status = file_check_matrix(dump, "k", layer);
        if (status == KVT_OK) status = file_check_matrix(dump, "v", layer);
    }
    if (status == KVT_OK && queries) status = file_check_queries(dump);
    return status;
}

/* ---- encoding ---- */

static void file_load(const file_dump *dump, quality_trip *trip)
{
    char name[FILE_NAME_BYTES];
    for (uint32_t layer = 0; layer < dump->layout.layers; layer++) {
        const safetensors_tensor *k = file_tensor(dump, "k", layer, name);
        const safetensors_tensor *v = file_tensor(dump, "v", layer, name);
        memcpy(trip->source + kvt_layout_matrix_offset(&dump->layout, layer, KVT_SIDE_K), k->data,
               trip->matrix_bytes);
        memcpy(trip->source + kvt_layout_matrix_offset(&dump->layout, layer, KVT_SIDE_V), v->data,
               trip->matrix_bytes);
    }
}

static kvt_status file_probe(const file_dump *dump, const quality_trip *trip, double *error_out)
{
    const kvt_layout *layout = &dump->layout;
    const model_config config = {.layers = layout->layers,
                                 .heads = dump->query_heads,
                                 .kv_heads = layout->kv_heads,
                                 .head_dim = layout->head_dim};
    const uint64_t each = (uint64_t)dump->query_rows * dump->query_heads * layout->head_dim;
    char name[FILE_NAME_BYTES];
    quality_trip_kv kv = {.memory = NULL};
    model_probe_result found;
    float *queries = malloc(layout->layers * each * sizeof *queries);
    const float **places = malloc(layout->layers * sizeof *places);
    kvt_status status = KVT_E_MEMORY;
    if (queries == NULL || places == NULL) goto out;
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        places[layer] = queries + layer * each;
        safetensors_read_fp32(file_tensor(dump, "q", layer, name), 0, each, queries + layer * each);
    }
    status = quality_trip_kv_open(trip, &kv);
    if (status != KVT_OK) goto out;
    const model_probe probe = {
        .exact = &kv.exact, .variant = &kv.variant, .rows = dump->query_rows, .queries = places};
    model_set_blas_threads(1);
    status = model_probe_attention(&config, &probe, &found, NULL);
    *error_out = found.attention_error;
out:
    quality_trip_kv_close(&kv);
    free(places);
    free(queries);
    return status;
}

/* Writes under another name first, so that `path` is whole or as it was. */
static kvt_status file_write(const char *path, const void *bytes, uint64_t count, char *message,
                             size_t message_size)
{
    char *partial = NULL;
    if (asprintf(&partial, "%s.part", path) < 0) return KVT_E_MEMORY;
    FILE *file = fopen(partial, "wb");
    bool sound = file != NULL && fwrite(bytes, 1, count, file) == count;
    if (file != NULL && fclose(file) != 0) sound = false;
    if (sound && rename(partial, path) != 0) sound = false;
    if (!sound) {
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        if (file != NULL) (void)remove(partial);
    }
    free(partial);
    return sound ? KVT_OK : KVT_E_IO;
}

static kvt_status file_encode_dump(const file_dump *dump, kvt_variant variant, quality_trip *trip,
                                   bench_file_result *result)
{
    kvt_status status = quality_trip_open(&dump->layout, trip);
    if (status != KVT_OK) return status;
    file_load(dump, trip);
    status = quality_trip_run(trip, variant, false);
    if (status == KVT_E_UNSUPPORTED)
        snprintf(dump->message, dump->message_size,
                 "%s: this codec does not take %u heads x %u of that element type", dump->path,
                 dump->layout.kv_heads, dump->layout.head_dim);
    if (status != KVT_OK) return status;
    result->info = trip->info;
    result->nmse[0] = trip->nmse[0];
    result->nmse[1] = trip->nmse[1];
    result->queried = dump->query_rows > 0;
    result->query_rows = dump->query_rows;
    return result->queried ? file_probe(dump, trip, &result->attention_error) : KVT_OK;
}

kvt_status bench_file_encode(const char *path, kvt_variant variant, const char *target,
                             bench_file_result *result_out, char *message, size_t message_size)
{
    file_dump dump = {.path = path, .message = message, .message_size = message_size};
    quality_trip trip = {.source = NULL};
    *result_out = (bench_file_result){.queried = false};
    message[0] = '\0';
    kvt_status status = safetensors_open(path, &dump.file, message, message_size);
    if (status != KVT_OK) return status;
    status = file_check(&dump, &result_out->ignored);
    if (status == KVT_OK) status = file_encode_dump(&dump, variant, &trip, result_out);
    if (status == KVT_OK && target != NULL)
        status = file_write(target, trip.record, trip.info.record_bytes, message, message_size);
    quality_trip_close(&trip);
    safetensors_close(dump.file);
    return status;
}

/* ---- decoding ---- */

typedef struct file_record {
    uint8_t *bytes, *decoded, *scratch;
    uint64_t bytes_capacity, decoded_capacity, scratch_capacity;
    uint64_t byte_count;
    kvt_record_info info;
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
        status = quality_trip_room(&record->bytes, &record->bytes_capacity, record->byte_count);
        if (status == KVT_OK &&
            fread(record->bytes, 1, record->byte_count, file) != record->byte_count)
            status = KVT_E_IO;
    }
    if (status != KVT_OK) snprintf(message, message_size, "%s: cannot be read as a record", path);
    fclose(file);
    return status;
}

/* Decodes the whole record; its layout then has stored_tokens tokens. */
static kvt_status file_decode_record(file_record *record)
{
    uint64_t bound, scratch;
    kvt_status status = kvt_record_parse(record->bytes, record->byte_count, &record->info);
    if (status != KVT_OK) return status;
    const kvt_record_spec *spec = &record->info.spec;
    if (spec->layout.dtype == KVT_DTYPE_OPAQUE || spec->layout.dtype == KVT_DTYPE_FP8)
        return KVT_E_UNSUPPORTED;
    status = kvt_record_bound(spec, &bound, &scratch);
    if (status == KVT_OK)
        status = quality_trip_room(&record->scratch, &record->scratch_capacity, scratch);
    if (status == KVT_OK)
        status = quality_trip_room(&record->decoded, &record->decoded_capacity,
                                   record->info.decoded_bytes);
    if (status != KVT_OK) return status;
    return kvt_record_decode(record->bytes, record->byte_count, NULL, record->decoded,
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
        for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
            safetensors_tensor *tensor = file_add(record, side == KVT_SIDE_K ? "k" : "v", layer);
            tensor->dtype = stored.dtype;
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

kvt_status bench_file_decode(const char *path, const char *target, kvt_record_info *info_out,
                             char *message, size_t message_size)
{
    file_record record = {.bytes = NULL};
    message[0] = '\0';
    kvt_status status = file_read(path, &record, message, message_size);
    if (status == KVT_OK) {
        status = file_decode_record(&record);
        if (status == KVT_OK) status = file_list(&record);
        if (status == KVT_E_UNSUPPORTED) {
            snprintf(message, message_size, "%s: the record holds no K and V matrices", path);
        } else if (status != KVT_OK) {
            snprintf(message, message_size, "%s: %s", path, kvt_status_text(status));
        }
    }
    if (status == KVT_OK)
        status =
            safetensors_write(target, record.tensors, record.tensor_count, message, message_size);
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
