/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_model_index.c - any bytes as the index of a model in several files, and as those files.
 * Parts end with a zero byte: the index first, then the headers of files, to which their lengths
 * and data of zeros are added. What is taken names tensors that can be found and read.
 */
#include "estimator/model/model_tensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES_MAX = 8, DATA = 64 /* bytes behind each header */ };

/* A part of the input, an exact copy so that a sanitizer sees a read past the end. */
static uint8_t *take_part(const uint8_t **at, size_t *left, size_t before, size_t behind,
                          size_t *length_out)
{
    const uint8_t *end = *left > 0 ? memchr(*at, 0, *left) : NULL;
    const size_t length = end != NULL ? (size_t)(end - *at) : *left;
    uint8_t *part = calloc(1, before + length + behind + (before + length + behind == 0));
    if (part == NULL) abort();
    if (length > 0) memcpy(part + before, *at, length);
    for (size_t i = 0; i < before; i++)
        part[i] = (uint8_t)((uint64_t)length >> 8 * i);
    *at += length + (end != NULL);
    *left -= length + (end != NULL);
    *length_out = length;
    return part;
}

static void check_index(const model_index *index)
{
    if (index->count == 0 || index->file_count == 0 || index->file_count > MODEL_FILES_MAX) abort();
    for (size_t i = 0; i < index->count; i++) {
        const model_index_entry *entry = &index->entries[i];
        if (entry->file >= index->file_count) abort();
        if (strcmp(entry->file_name, index->files[entry->file]) != 0) abort();
        if (strchr(entry->file_name, '/') != NULL || entry->file_name[0] == '.') abort();
        if (i > 0 && strcmp(entry[-1].tensor, entry->tensor) >= 0) abort();
    }
}

static void check_tensors(const model_tensors *tensors)
{
    if (tensors->count != tensors->index.count) abort();
    for (size_t i = 0; i < tensors->count; i++) {
        const model_tensor *one = &tensors->list[i];
        if (model_tensors_find(tensors, one->tensor->name) != one) abort();
        if (one->file != tensors->index.entries[i].file) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char message[128] = "";
    uint8_t *bytes[FILES_MAX] = {0};
    model_tensors tensors = {.count = 0};
    size_t length, opened = 0;
    uint8_t *text = take_part(&data, &size, 0, 0, &length);
    kvt_status status =
        model_index_parse("fuzz", text, length, &tensors.index, message, sizeof message);
    free(text);
    if (status != KVT_OK) {
        if (status == KVT_E_MEMORY || tensors.index.root != NULL || message[0] == '\0') abort();
        return 0;
    }
    check_index(&tensors.index);
    tensors.files = calloc(tensors.index.file_count, sizeof(safetensors *));
    if (tensors.files == NULL) abort();
    while (opened < tensors.index.file_count && opened < FILES_MAX) {
        bytes[opened] = take_part(&data, &size, 8, DATA, &length);
        status =
            safetensors_open_bytes("fuzz", bytes[opened], 8 + length + DATA,
                                   &tensors.files[tensors.file_count], message, sizeof message);
        opened++;
        if (status != KVT_OK) break;
        tensors.file_count++;
    }
    if (status == KVT_OK && tensors.file_count == tensors.index.file_count) {
        message[0] = '\0';
        status = model_tensors_gather("fuzz", &tensors, message, sizeof message);
        if (status == KVT_OK) check_tensors(&tensors);
        if (status != KVT_OK && (status != KVT_E_CORRUPT || message[0] == '\0')) abort();
    }
    model_tensors_close(&tensors);
    for (size_t i = 0; i < opened; i++)
        free(bytes[i]);
    return 0;
}
