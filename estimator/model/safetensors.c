/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c - checks a safetensors header and gives out its tensors. No byte is trusted:
 * the tensors must tile the data part exactly, so none can reach outside it or overlap another.
 * Thread rule: see safetensors.h.
 */
#include "estimator/model/safetensors.h"
#include "base/half.h"
#include "estimator/model/whole_file.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct safetensors {
    model_map map;  /* zero when the bytes are the caller's */
    json_t *header; /* owns the names */
    safetensors_tensor *tensors;
    size_t count;
};

enum { SAFETENSORS_MEMBERS = 3 /* of a tensor: dtype, shape, data_offsets */ };

/* Where messages go, and the file's name for them. */
typedef struct safetensors_source {
    const char *name;
    const uint8_t *data; /* after the header */
    uint64_t data_bytes;
    char *message;
    size_t message_size;
} safetensors_source;

static const struct {
    char name[8];
    uint8_t dtype, bytes;
} safetensors_types[] = {
    {"F16", KVT_DTYPE_FP16, 2},    {"BF16", KVT_DTYPE_BF16, 2},   {"F32", KVT_DTYPE_FP32, 4},
    {"F8_E4M3", KVT_DTYPE_FP8, 1}, {"F8_E5M2", KVT_DTYPE_FP8, 1}, {"BOOL", KVT_DTYPE_OPAQUE, 1},
    {"U8", KVT_DTYPE_OPAQUE, 1},   {"I8", KVT_DTYPE_OPAQUE, 1},   {"I16", KVT_DTYPE_OPAQUE, 2},
    {"U16", KVT_DTYPE_OPAQUE, 2},  {"I32", KVT_DTYPE_OPAQUE, 4},  {"U32", KVT_DTYPE_OPAQUE, 4},
    {"I64", KVT_DTYPE_OPAQUE, 8},  {"U64", KVT_DTYPE_OPAQUE, 8},  {"F64", KVT_DTYPE_OPAQUE, 8},
};

static kvt_status safetensors_fail(const safetensors_source *source, kvt_status status,
                                   const char *tensor, const char *reason)
{
    /* Names are cut short: a message is for a person, and a name may be as long as the header. */
    return model_map_say(status, source->message, source->message_size, source->name, "%.80s%s%s",
                         tensor, tensor[0] != '\0' ? ": " : "", reason);
}

/* A JSON integer that is not negative. */
static bool safetensors_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static kvt_status safetensors_parse_shape(const safetensors_source *source, const json_t *shape,
                                          safetensors_tensor *tensor)
{
    if (!json_is_array(shape)) {
        return safetensors_fail(source, KVT_E_PARSE, tensor->name, "no shape");
    }
    if (json_array_size(shape) > SAFETENSORS_RANK_MAX) {
        return safetensors_fail(source, KVT_E_CORRUPT, tensor->name, "more than 8 dimensions");
    }
    tensor->rank = (uint8_t)json_array_size(shape);
    tensor->elements = 1;
    for (size_t i = 0; i < tensor->rank; i++) {
        if (!safetensors_number(json_array_get(shape, i), &tensor->shape[i])) {
            return safetensors_fail(source, KVT_E_PARSE, tensor->name,
                                    "a dimension is no whole number");
        }
        if (__builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements)) {
            return safetensors_fail(source, KVT_E_CORRUPT, tensor->name, "the shape overflows");
        }
    }
    return KVT_OK;
}

static kvt_status safetensors_parse_tensor(const safetensors_source *source, const char *name,
                                           const json_t *value, safetensors_tensor *tensor)
{
    const json_t *offsets = json_object_get(value, "data_offsets");
    const char *type = json_string_value(json_object_get(value, "dtype"));
    uint64_t begin, end;
    *tensor = (safetensors_tensor){.name = name};
    if (type == NULL) return safetensors_fail(source, KVT_E_PARSE, name, "no dtype");
    if (json_object_size(value) > SAFETENSORS_MEMBERS)
        return safetensors_fail(source, KVT_E_PARSE, name,
                                "more than dtype, shape and data_offsets");
    for (size_t i = 0; i < sizeof safetensors_types / sizeof safetensors_types[0]; i++) {
        if (strcmp(type, safetensors_types[i].name) != 0) continue;
        tensor->dtype = safetensors_types[i].dtype;
        tensor->element_bytes = safetensors_types[i].bytes;
        tensor->type = safetensors_types[i].name;
    }
    if (tensor->element_bytes == 0) {
        return safetensors_fail(source, KVT_E_CORRUPT, name, "an unknown dtype");
    }
    kvt_status status = safetensors_parse_shape(source, json_object_get(value, "shape"), tensor);
    if (status != KVT_OK) return status;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !safetensors_number(json_array_get(offsets, 0), &begin) ||
        !safetensors_number(json_array_get(offsets, 1), &end)) {
        return safetensors_fail(source, KVT_E_PARSE, name, "no pair of data_offsets");
    }
    if (begin > end || end > source->data_bytes) {
        return safetensors_fail(source, KVT_E_CORRUPT, name, "outside the file");
    }
    if (__builtin_mul_overflow(tensor->elements, tensor->element_bytes, &tensor->bytes) ||
        tensor->bytes != end - begin) {
        return safetensors_fail(source, KVT_E_CORRUPT, name, "shape and data_offsets differ");
    }
    tensor->data = source->data + begin;
    return KVT_OK;
}

/* By place, and at the same place the empty ones first. */
static int safetensors_by_place(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    if (a->data != b->data) return (uintptr_t)a->data < (uintptr_t)b->data ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int safetensors_by_name(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static kvt_status safetensors_check_tiling(const safetensors_source *source, safetensors *file)
{
    const uint8_t *place = source->data;
    qsort(file->tensors, file->count, sizeof *file->tensors, safetensors_by_place);
    for (size_t i = 0; i < file->count; i++) {
        const safetensors_tensor *tensor = &file->tensors[i];
        if ((const uint8_t *)tensor->data != place) {
            return safetensors_fail(source, KVT_E_CORRUPT, tensor->name,
                                    "overlaps another tensor or leaves a gap");
        }
        place += tensor->bytes;
    }
    if (place != source->data + source->data_bytes) {
        return safetensors_fail(source, KVT_E_CORRUPT, "", "bytes after the last tensor");
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, safetensors_by_name);
    return KVT_OK;
}

static kvt_status safetensors_check_metadata(const safetensors_source *source, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        return safetensors_fail(source, KVT_E_PARSE, "__metadata__", "no object");
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return safetensors_fail(source, KVT_E_PARSE, "__metadata__", "holds more than strings");
        }
    }
    return KVT_OK;
}

static kvt_status safetensors_parse(const safetensors_source *source, safetensors *file)
{
    const char *name;
    json_t *value;
    size_t names = json_object_size(file->header);
    file->tensors = calloc(names + 1, sizeof *file->tensors);
    if (file->tensors == NULL) return KVT_E_MEMORY;
    json_object_foreach(file->header, name, value)
    {
        kvt_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = safetensors_check_metadata(source, value);
        } else if (!json_is_object(value)) {
            status = safetensors_fail(source, KVT_E_PARSE, name, "no object");
        } else {
            status = safetensors_parse_tensor(source, name, value, &file->tensors[file->count++]);
        }
        if (status != KVT_OK) return status;
    }
    return safetensors_check_tiling(source, file);
}

kvt_status safetensors_open_bytes(const char *name, const void *bytes, uint64_t size,
                                  safetensors **file_out, char *message, size_t message_size)
{
    const uint8_t *at = bytes;
    safetensors_source source = {.name = name, .message = message, .message_size = message_size};
    uint64_t header_bytes = 0;
    json_error_t error;
    *file_out = NULL;
    if (size < 8) return safetensors_fail(&source, KVT_E_CORRUPT, "", "shorter than its header");
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | at[i];
    if (header_bytes > SAFETENSORS_HEADER_MAX || header_bytes > size - 8) {
        return safetensors_fail(
            &source, KVT_E_CORRUPT, "",
            "not safetensors: its header would be longer than the file or than allowed");
    }
    source.data = at + 8 + header_bytes;
    source.data_bytes = size - 8 - header_bytes;
    safetensors *file = calloc(1, sizeof *file);
    if (file == NULL) return KVT_E_MEMORY;
    file->header = json_loadb((const char *)at + 8, header_bytes, JSON_REJECT_DUPLICATES, &error);
    kvt_status status;
    if (file->header == NULL) {
        status = safetensors_fail(&source, KVT_E_PARSE, "header", error.text);
    } else if (!json_is_object(file->header)) {
        status = safetensors_fail(&source, KVT_E_PARSE, "header", "no object");
    } else {
        status = safetensors_parse(&source, file);
    }
    if (status != KVT_OK) {
        safetensors_close(file);
        return status;
    }
    *file_out = file;
    return KVT_OK;
}

kvt_status safetensors_open(const char *path, safetensors **file_out, char *message,
                            size_t message_size)
{
    model_map map;
    *file_out = NULL;
    kvt_status status = model_map_open(path, &map, message, message_size);
    if (status != KVT_OK) return status;
    status = safetensors_open_bytes(path, map.bytes, map.size, file_out, message, message_size);
    if (status != KVT_OK) {
        model_map_close(&map);
        return status;
    }
    (*file_out)->map = map;
    return KVT_OK;
}

void safetensors_close(safetensors *file)
{
    if (file == NULL) return;
    json_decref(file->header);
    model_map_close(&file->map);
    free(file->tensors);
    free(file);
}

size_t safetensors_count(const safetensors *file)
{
    return file->count;
}

const safetensors_tensor *safetensors_at(const safetensors *file, size_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    const safetensors_tensor wanted = {.name = name};
    return bsearch(&wanted, file->tensors, file->count, sizeof *file->tensors, safetensors_by_name);
}

const char *safetensors_metadata(const safetensors *file, const char *name)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), name));
}

void safetensors_read_fp32(const safetensors_tensor *tensor, uint64_t first, uint64_t count,
                           float *out)
{
    const uint8_t *at = (const uint8_t *)tensor->data + first * tensor->element_bytes;
    assert(first <= tensor->elements && count <= tensor->elements - first);
    if (tensor->dtype == KVT_DTYPE_FP32) {
        memcpy(out, at, count * sizeof *out);
        return;
    }
    assert(tensor->dtype == KVT_DTYPE_FP16 || tensor->dtype == KVT_DTYPE_BF16);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        out[i] = tensor->dtype == KVT_DTYPE_FP16 ? half_to_float(half) : half_bf16_to_float(half);
    }
}

/* ---- writing ---- */

/*
 * Writes safetensors files: KV dumps for tools and tests. The header is padded with blanks so that
 * the data starts on a multiple of 64 bytes.
 */

enum { SAFETENSORS_ALIGN = 64 };

/* NULL: none of ours, or 8-bit floats that are not said to be of either kind. */
static const char *safetensors_type_name(const safetensors_tensor *tensor)
{
    const char *name = NULL;
    for (size_t i = 0; i < sizeof safetensors_types / sizeof safetensors_types[0]; i++) {
        if (tensor->dtype == KVT_DTYPE_OPAQUE || safetensors_types[i].dtype != tensor->dtype)
            continue;
        if (tensor->type == NULL ? tensor->dtype != KVT_DTYPE_FP8
                                 : strcmp(tensor->type, safetensors_types[i].name) == 0)
            name = safetensors_types[i].name;
    }
    return name;
}

/* Bytes of a tensor to be written; false when the shape overflows or the dtype is none of ours. */
static bool safetensors_written_bytes(const safetensors_tensor *tensor, uint64_t *bytes_out)
{
    uint64_t bytes = kvt_dtype_bytes(tensor->dtype);
    if (safetensors_type_name(tensor) == NULL || tensor->rank > SAFETENSORS_RANK_MAX) {
        return false;
    }
    for (unsigned i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes)) return false;
    *bytes_out = bytes;
    return bytes <= INT64_MAX;
}

/* Adds one tensor to the header; *offset moves behind it. */
static kvt_status safetensors_describe(json_t *header, const safetensors_tensor *tensor,
                                       uint64_t *offset)
{
    uint64_t bytes, end;
    if (tensor->name[0] == '\0' || strcmp(tensor->name, "__metadata__") == 0) return KVT_E_ARGUMENT;
    if (json_object_get(header, tensor->name) != NULL) return KVT_E_ARGUMENT;
    if (!safetensors_written_bytes(tensor, &bytes)) return KVT_E_ARGUMENT;
    if (__builtin_add_overflow(*offset, bytes, &end) || end > INT64_MAX) return KVT_E_ARGUMENT;
    json_t *shape = json_array();
    if (shape == NULL) return KVT_E_MEMORY;
    for (unsigned i = 0; i < tensor->rank; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return KVT_E_MEMORY;
        }
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", safetensors_type_name(tensor),
                              "shape", shape, "data_offsets", (json_int_t)*offset, (json_int_t)end);
    /* A name that is not UTF-8 is refused by jansson. */
    if (entry == NULL) return KVT_E_MEMORY;
    if (json_object_set_new(header, tensor->name, entry) != 0) return KVT_E_ARGUMENT;
    *offset = end;
    return KVT_OK;
}

static kvt_status safetensors_put(FILE *file, const char *text, const safetensors_tensor *tensors,
                                  size_t count)
{
    static const char blanks[SAFETENSORS_ALIGN + 1] =
        "                                                                ";
    size_t length = strlen(text);
    size_t padding = (SAFETENSORS_ALIGN - (8 + length) % SAFETENSORS_ALIGN) % SAFETENSORS_ALIGN;
    uint64_t total = length + padding;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)(total >> 8 * i);
    if (fwrite(prefix, 1, 8, file) != 8 || fwrite(text, 1, length, file) != length ||
        fwrite(blanks, 1, padding, file) != padding) {
        return KVT_E_IO;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = 0;
        if (!safetensors_written_bytes(&tensors[i], &bytes)) return KVT_E_ARGUMENT;
        if (bytes > 0 && fwrite(tensors[i].data, 1, bytes, file) != bytes) return KVT_E_IO;
    }
    return KVT_OK;
}

static kvt_status safetensors_save(const char *path, const char *text,
                                   const safetensors_tensor *tensors, size_t count, char *message,
                                   size_t message_size)
{
    char *partial = NULL;
    kvt_status status = whole_file_begin(path, &partial, message, message_size);
    if (status != KVT_OK) return status == KVT_E_CONFIG ? KVT_E_IO : status;
    FILE *file = fopen(partial, "wbe");
    status = file != NULL ? safetensors_put(file, text, tensors, count) : KVT_E_IO;
    if (file != NULL && fclose(file) != 0 && status == KVT_OK) status = KVT_E_IO;
    if (status != KVT_OK) model_map_say(status, message, message_size, path, "%s", strerror(errno));
    return whole_file_end(&partial, path, status, message, message_size);
}

/* The metadata, where there is any. */
static kvt_status safetensors_annotate(json_t *header, const safetensors_note *notes, size_t count)
{
    if (count == 0) return KVT_OK;
    json_t *metadata = json_object();
    if (metadata == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        if (json_object_set_new(metadata, notes[i].name, json_string(notes[i].text)) == 0) continue;
        json_decref(metadata);
        return KVT_E_ARGUMENT;
    }
    return json_object_set_new(header, "__metadata__", metadata) == 0 ? KVT_OK : KVT_E_MEMORY;
}

kvt_status safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                             const safetensors_note *notes, size_t note_count, char *message,
                             size_t message_size)
{
    uint64_t offset = 0;
    char *text = NULL;
    json_t *header = json_object();
    kvt_status status = header == NULL ? KVT_E_MEMORY : KVT_OK;
    if (status == KVT_OK) status = safetensors_annotate(header, notes, note_count);
    if (status == KVT_E_ARGUMENT)
        model_map_say(status, message, message_size, path, "the metadata cannot be written");
    for (size_t i = 0; status == KVT_OK && i < count; i++) {
        status = safetensors_describe(header, &tensors[i], &offset);
        if (status == KVT_E_ARGUMENT) {
            model_map_say(status, message, message_size, path, "tensor %zu cannot be written", i);
        }
    }
    if (status != KVT_OK) goto out;
    text = json_dumps(header, JSON_COMPACT);
    status = text == NULL ? KVT_E_MEMORY
                          : safetensors_save(path, text, tensors, count, message, message_size);
out:
    free(text);
    json_decref(header);
    return status;
}
