/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_write.c - writes safetensors files: KV dumps for tools and tests. The header is
 * padded with blanks so that the data starts on a multiple of 64 bytes. Thread rule: any thread,
 * one per path.
 */
#include "estimator/model/model_map.h"
#include "estimator/model/safetensors.h"
#include "estimator/model/whole_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAFETENSORS_ALIGN = 64 };

static const char *safetensors_type_name(uint8_t dtype)
{
    switch (dtype) {
    case KVT_DTYPE_FP16: return "F16";
    case KVT_DTYPE_BF16: return "BF16";
    case KVT_DTYPE_FP32: return "F32";
    default: return NULL;
    }
}

/* Bytes of a tensor to be written; false when the shape overflows or the dtype is none of ours. */
static bool safetensors_written_bytes(const safetensors_tensor *tensor, uint64_t *bytes_out)
{
    uint64_t bytes = kvt_dtype_bytes(tensor->dtype);
    if (safetensors_type_name(tensor->dtype) == NULL || tensor->rank > SAFETENSORS_RANK_MAX) {
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
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", safetensors_type_name(tensor->dtype),
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

kvt_status safetensors_write(const char *path, const safetensors_tensor *tensors, size_t count,
                             char *message, size_t message_size)
{
    uint64_t offset = 0;
    char *text = NULL;
    json_t *header = json_object();
    kvt_status status = header == NULL ? KVT_E_MEMORY : KVT_OK;
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
