/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_tensors.h - the tensors of a model's folder: of its one safetensors file, or of several
 * that an index names.
 *
 *     model.safetensors.index.json
 *         {"metadata": {...},          any; not looked at
 *          "weight_map": {"TENSOR": "FILE", ...}}
 *
 * FILE is a name in the index's own folder. Every tensor that the index names is in the file that
 * it says, and the files hold no others; files that it does not name are not opened. Nothing of an
 * index is trusted.
 *
 * Thread rule: open tensors may be read by any number of threads.
 */
#ifndef ESTIMATOR_MODEL_TENSORS_H
#define ESTIMATOR_MODEL_TENSORS_H

#include "estimator/model/safetensors.h"

#define MODEL_INDEX_BYTES_MAX (UINT64_C(32) << 20)
#define MODEL_FILES_MAX       1024u

typedef struct model_index_entry {
    const char *tensor, *file_name;
    uint32_t file; /* among model_index.files */
} model_index_entry;

typedef struct model_index {
    struct json_t *root;        /* owns the names */
    model_index_entry *entries; /* [count], in order of their tensors */
    size_t count;
    const char **files; /* [file_count], each once */
    size_t file_count;
} model_index;

typedef struct model_tensor {
    const safetensors_tensor *tensor;
    uint32_t file;
    bool used; /* for the caller */
} model_tensor;

typedef struct model_tensors {
    model_tensor *list; /* [count], in order of their names, each once */
    size_t count;
    safetensors **files;
    size_t file_count;
    model_index index; /* without entries where there is one file */
} model_tensors;

/* Checks an index; `name` is for messages. KVT_OK; KVT_E_PARSE (no JSON of this form, or a FILE
 * that is no name of a file beside it); KVT_E_CORRUPT (no tensors, more files than
 * MODEL_FILES_MAX); KVT_E_MEMORY. On failure *index_out is empty. */
KVT_NODISCARD kvt_status model_index_parse(const char *name, const void *bytes, uint64_t size,
                                           model_index *index_out, char *message,
                                           size_t message_size);
void model_index_free(model_index *index);

/* Fills `list` from open files, [file_count] as the index has them. KVT_OK; KVT_E_CORRUPT (a tensor
 * that is missing, in two files, in another file than the index says, or not in the index);
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_tensors_gather(const char *name, model_tensors *tensors,
                                              char *message, size_t message_size);

/* Opens the file at `path`: one of weights, or an index where the name ends with .json, with all
 * that it names. What safetensors_open and the functions above give. On failure *tensors_out is
 * empty. */
KVT_NODISCARD kvt_status model_tensors_open(const char *path, model_tensors *tensors_out,
                                            char *message, size_t message_size);
void model_tensors_close(model_tensors *tensors); /* an empty one is allowed */

/* NULL when there is none. */
model_tensor *model_tensors_find(const model_tensors *tensors, const char *name);

#endif
