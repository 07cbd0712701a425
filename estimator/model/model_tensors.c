/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_tensors.c - reads the index of a model in several files, and holds it and the files to each
 * other: both are put in order of the tensors' names and walked side by side. Thread rule: see
 * model_tensors.h.
 */
#include "estimator/model/model_tensors.h"
#include "estimator/model/whole_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_FILE_NAME_MAX = 255 };

static bool tensors_ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), ends = strlen(end);
    return length > ends && strcmp(text + length - ends, end) == 0;
}

/* ---- the index ---- */

/* A name of a file in the index's folder: none that leads elsewhere, and none that a terminal would
 * not show. */
static bool index_is_file_name(const char *name)
{
    if (name[0] == '.' || strlen(name) > INDEX_FILE_NAME_MAX) return false;
    for (const char *at = name; *at != '\0'; at++)
        if (*at == '/' || *at == '\\' || (unsigned char)*at < ' ' || *at == 0x7f) return false;
    return tensors_ends_with(name, ".safetensors");
}

static int index_by_file(const void *left, const void *right)
{
    const model_index_entry *a = left, *b = right;
    return strcmp(a->file_name, b->file_name);
}

static int index_by_tensor(const void *left, const void *right)
{
    const model_index_entry *a = left, *b = right;
    return strcmp(a->tensor, b->tensor);
}

/* Numbers the files and puts the entries in order. */
static kvt_status index_number_files(const char *name, model_index *index, char *message,
                                     size_t message_size)
{
    qsort(index->entries, index->count, sizeof *index->entries, index_by_file);
    for (size_t i = 0; i < index->count; i++) {
        model_index_entry *entry = &index->entries[i];
        const bool another = i == 0 || strcmp(entry[-1].file_name, entry->file_name) != 0;
        if (another && index->file_count == MODEL_FILES_MAX)
            return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                                 "names more than %u files", MODEL_FILES_MAX);
        if (another) index->files[index->file_count++] = entry->file_name;
        entry->file = (uint32_t)index->file_count - 1;
    }
    qsort(index->entries, index->count, sizeof *index->entries, index_by_tensor);
    return KVT_OK;
}

static kvt_status index_read(const char *name, model_index *index, char *message,
                             size_t message_size)
{
    const char *key;
    json_t *value, *map = json_object_get(index->root, "weight_map");
    json_object_foreach(index->root, key, value)
    {
        if (strcmp(key, "metadata") == 0 || strcmp(key, "weight_map") == 0) continue;
        return model_map_say(KVT_E_PARSE, message, message_size, name,
                             "%.80s: is nothing that an index has", key);
    }
    if (!json_is_object(map))
        return model_map_say(KVT_E_PARSE, message, message_size, name, "has no weight_map");
    const size_t count = json_object_size(map);
    if (count == 0)
        return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                             "its weight_map names no tensor");
    index->entries = calloc(count, sizeof *index->entries);
    index->files = calloc(MODEL_FILES_MAX, sizeof *index->files);
    if (index->entries == NULL || index->files == NULL) return KVT_E_MEMORY;
    json_object_foreach(map, key, value)
    {
        const char *file = json_string_value(value);
        if (file == NULL || !index_is_file_name(file))
            return model_map_say(KVT_E_PARSE, message, message_size, name,
                                 "%.80s: its file is no name of a .safetensors file in this folder",
                                 key);
        index->entries[index->count++] = (model_index_entry){.tensor = key, .file_name = file};
    }
    return index_number_files(name, index, message, message_size);
}

kvt_status model_index_parse(const char *name, const void *bytes, uint64_t size,
                             model_index *index_out, char *message, size_t message_size)
{
    json_error_t error;
    kvt_status status;
    *index_out = (model_index){.root = NULL};
    if (size > MODEL_INDEX_BYTES_MAX)
        return model_map_say(KVT_E_PARSE, message, message_size, name, "larger than 32 MiB");
    index_out->root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    if (index_out->root == NULL) {
        status = model_map_say(KVT_E_PARSE, message, message_size, name, "line %d: %s", error.line,
                               error.text);
    } else if (!json_is_object(index_out->root)) {
        status = model_map_say(KVT_E_PARSE, message, message_size, name, "no object");
    } else {
        status = index_read(name, index_out, message, message_size);
    }
    if (status != KVT_OK) model_index_free(index_out);
    return status;
}

void model_index_free(model_index *index)
{
    json_decref(index->root);
    free(index->entries);
    free(index->files);
    *index = (model_index){.root = NULL};
}

/* ---- index and files ---- */

static int tensors_by_name(const void *left, const void *right)
{
    const model_tensor *a = left, *b = right;
    return strcmp(a->tensor->name, b->tensor->name);
}

/* Whether both say the same; each is in order of the names. */
static kvt_status tensors_check(const char *name, const model_tensors *t, char *message,
                                size_t message_size)
{
    const model_index *index = &t->index;
    for (size_t i = 0; i < t->count || i < index->count; i++) {
        const model_tensor *is = i < t->count ? &t->list[i] : NULL;
        const model_index_entry *said = i < index->count ? &index->entries[i] : NULL;
        const int order = is == NULL     ? 1
                          : said == NULL ? -1
                                         : strcmp(is->tensor->name, said->tensor);
        if (i + 1 < t->count && strcmp(is->tensor->name, is[1].tensor->name) == 0)
            return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                                 "%.80s: is in %s and in %s", is->tensor->name,
                                 index->files[is->file], index->files[is[1].file]);
        if (order < 0)
            return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                                 "%.80s: is in %s and not in the index", is->tensor->name,
                                 index->files[is->file]);
        if (order > 0)
            return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                                 "%.80s: is not in %s, nor in another file", said->tensor,
                                 said->file_name);
        if (is->file != said->file)
            return model_map_say(KVT_E_CORRUPT, message, message_size, name,
                                 "%.80s: is in %s instead of %s", said->tensor,
                                 index->files[is->file], said->file_name);
    }
    return KVT_OK;
}

kvt_status model_tensors_gather(const char *name, model_tensors *t, char *message,
                                size_t message_size)
{
    size_t count = 0;
    for (size_t f = 0; f < t->file_count; f++)
        count += safetensors_count(t->files[f]);
    t->list = calloc(count + 1, sizeof *t->list);
    if (t->list == NULL) return KVT_E_MEMORY;
    for (size_t f = 0; f < t->file_count; f++)
        for (size_t i = 0; i < safetensors_count(t->files[f]); i++)
            t->list[t->count++] =
                (model_tensor){.tensor = safetensors_at(t->files[f], i), .file = (uint32_t)f};
    qsort(t->list, t->count, sizeof *t->list, tensors_by_name);
    if (t->index.count == 0) return KVT_OK;
    return tensors_check(name, t, message, message_size);
}

static kvt_status tensors_read_index(const char *path, model_index *index_out, char *message,
                                     size_t message_size)
{
    model_map map;
    kvt_status status = model_map_open(path, &map, message, message_size);
    if (status != KVT_OK) return status;
    status = model_index_parse(path, map.bytes, map.size, index_out, message, message_size);
    model_map_close(&map);
    return status;
}

/* Opens the files that the index names, which lie beside it. */
static kvt_status tensors_open_files(const char *path, model_tensors *t, char *message,
                                     size_t message_size)
{
    const char *slash = strrchr(path, '/');
    const int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    kvt_status status = KVT_OK;
    for (size_t f = 0; status == KVT_OK && f < t->index.file_count; f++) {
        char file[4096 + INDEX_FILE_NAME_MAX + 1];
        const int length = snprintf(file, sizeof file, "%.*s%s", folder, path, t->index.files[f]);
        if (length < 0 || (size_t)length >= sizeof file)
            return model_map_say(KVT_E_GONE, message, message_size, t->index.files[f],
                                 "the path is too long");
        status = safetensors_open(file, &t->files[f], message, message_size);
        if (status == KVT_OK) t->file_count++;
    }
    return status;
}

kvt_status model_tensors_open(const char *path, model_tensors *t, char *message,
                              size_t message_size)
{
    const bool several = tensors_ends_with(path, ".json");
    kvt_status status = KVT_OK;
    *t = (model_tensors){.count = 0};
    if (several) status = tensors_read_index(path, &t->index, message, message_size);
    if (status != KVT_OK) return status;
    t->files = calloc(several ? t->index.file_count : 1, sizeof(safetensors *));
    if (t->files == NULL) {
        status = KVT_E_MEMORY;
    } else if (several) {
        status = tensors_open_files(path, t, message, message_size);
    } else {
        status = safetensors_open(path, &t->files[0], message, message_size);
        t->file_count = status == KVT_OK;
    }
    if (status == KVT_OK) status = model_tensors_gather(path, t, message, message_size);
    if (status != KVT_OK) model_tensors_close(t);
    return status;
}

void model_tensors_close(model_tensors *t)
{
    for (size_t f = 0; f < t->file_count; f++)
        safetensors_close(t->files[f]);
    free(t->files);
    free(t->list);
    model_index_free(&t->index);
    *t = (model_tensors){.count = 0};
}

model_tensor *model_tensors_find(const model_tensors *t, const char *name)
{
    const safetensors_tensor named = {.name = name};
    const model_tensor wanted = {.tensor = &named};
    return bsearch(&wanted, t->list, t->count, sizeof *t->list, tensors_by_name);
}
