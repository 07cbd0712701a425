/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_folder.c - a folder with config.json and model.safetensors, or with an index of several
 * files, with the names that HF Llama and Qwen2 models use. Settings that would
 * change the forward pass and are not done here are refused by name (model_config.c), and so are
 * tensors that no place of the model is for. Thread rule: model.h.
 */
#include "estimator/model/model_internal.h"
#include "estimator/model/model_tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* State of the loading of a folder. */
typedef struct model_folder {
    char path[4096]; /* of the file that is being read, for messages */
    char *message;
    size_t message_size;
    model_tensors tensors;
} model_folder;

static kvt_status folder_fail(model_folder *folder, kvt_status status, const char *name,
                              const char *reason)
{
    return model_map_say(status, folder->message, folder->message_size, folder->path, "%s: %s",
                         name, reason);
}

static kvt_status folder_enter(model_folder *folder, const char *path, const char *file)
{
    int length = snprintf(folder->path, sizeof folder->path, "%s/%s", path, file);
    if (length > 0 && (size_t)length < sizeof folder->path) return KVT_OK;
    return model_map_say(KVT_E_GONE, folder->message, folder->message_size, file,
                         "the path is too long");
}

/* Reads a matrix, or with rows == 1 a vector, after checking that it has exactly this shape. */
static kvt_status folder_read(model_folder *folder, const char *name, model_shape shape,
                              float *target)
{
    model_tensor *found = model_tensors_find(&folder->tensors, name);
    if (found == NULL) return folder_fail(folder, KVT_E_CORRUPT, name, "is missing");
    const safetensors_tensor *tensor = found->tensor;
    found->used = true;
    bool fits = shape.rows == 1 ? tensor->rank == 1 && tensor->shape[0] == shape.columns
                                : tensor->rank == 2 && tensor->shape[0] == shape.rows &&
                                      tensor->shape[1] == shape.columns;
    if (!fits)
        return folder_fail(folder, KVT_E_CORRUPT, name, "has another shape than config.json");
    if (kvt_dtype_bytes(tensor->dtype) < 2) {
        return folder_fail(folder, KVT_E_UNSUPPORTED, name, "is none of F32, F16 and BF16");
    }
    safetensors_read_fp32(tensor, 0, tensor->elements, target);
    return KVT_OK;
}

static kvt_status folder_read_layer(model_folder *folder, model *m, uint32_t l)
{
    static const char *const names[MODEL_MATRICES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.down_proj",    "mlp.up_proj"};
    char name[128];
    model_shape vector = {1, m->config.dim};
    snprintf(name, sizeof name, "model.layers.%u.input_layernorm.weight", l);
    kvt_status status = folder_read(folder, name, vector, m->layers[l].norm_attention);
    if (status != KVT_OK) return status;
    snprintf(name, sizeof name, "model.layers.%u.post_attention_layernorm.weight", l);
    status = folder_read(folder, name, vector, m->layers[l].norm_ffn);
    for (int matrix = 0; status == KVT_OK && matrix < MODEL_MATRICES; matrix++) {
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, names[matrix]);
        const model_shape shape = model_matrix_shape(&m->config, matrix);
        status = folder_read(folder, name, shape, model_matrix(&m->layers[l], matrix));
        if (status != KVT_OK || !m->config.biased || matrix > MODEL_WV) continue;
        snprintf(name, sizeof name, "model.layers.%u.%s.bias", l, names[matrix]);
        status = folder_read(folder, name, (model_shape){1, shape.rows}, m->layers[l].bias[matrix]);
    }
    return status;
}

static kvt_status folder_read_weights(model_folder *folder, model *m)
{
    model_shape table = {m->config.vocab, m->config.dim};
    kvt_status status = folder_read(folder, "model.embed_tokens.weight", table, m->embedding);
    if (status == KVT_OK) {
        status = folder_read(folder, "model.norm.weight", (model_shape){1, m->config.dim},
                             m->norm_final);
    }
    if (status == KVT_OK && !m->config.tied)
        status = folder_read(folder, "lm_head.weight", table, m->output);
    for (uint32_t l = 0; status == KVT_OK && l < m->config.layers; l++)
        status = folder_read_layer(folder, m, l);
    return status;
}

/* ---- tensors that the forward pass does not read ---- */

/* Whether an output matrix beside a tied embedding is the embedding. */
static bool folder_is_embedding(const safetensors_tensor *tensor, const model *m)
{
    enum { PART = 4096 };
    float part[PART];
    const uint64_t elements = (uint64_t)m->config.vocab * m->config.dim;
    if (tensor->elements != elements || kvt_dtype_bytes(tensor->dtype) < 2) return false;
    for (uint64_t at = 0; at < elements; at += PART) {
        const uint64_t count = elements - at < PART ? elements - at : PART;
        safetensors_read_fp32(tensor, at, count, part);
        if (memcmp(part, m->embedding + at, count * sizeof *part) != 0) return false;
    }
    return true;
}

/* Whether the frequencies that old files carry are the model's; bf16 keeps 8 bits of one. */
static bool folder_is_frequencies(const safetensors_tensor *tensor, const model_config *c)
{
    if (tensor->elements != c->head_dim / 2 || kvt_dtype_bytes(tensor->dtype) < 2) return false;
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        float is;
        const double wanted = model_frequency(c, i);
        safetensors_read_fp32(tensor, i, 1, &is);
        if (!(fabs((double)is - wanted) <= wanted / 128 + 1e-6)) return false;
    }
    return true;
}

static kvt_status folder_check_unused(model_folder *folder, const model *m)
{
    static const char frequencies[] = "rotary_emb.inv_freq";
    for (size_t i = 0; i < folder->tensors.count; i++) {
        const safetensors_tensor *tensor = folder->tensors.list[i].tensor;
        const size_t length = strlen(tensor->name), ends = sizeof frequencies - 1;
        if (folder->tensors.list[i].used) continue;
        if (m->config.tied && strcmp(tensor->name, "lm_head.weight") == 0) {
            if (folder_is_embedding(tensor, m)) continue;
            return folder_fail(folder, KVT_E_UNSUPPORTED, tensor->name,
                               "is not the embedding, and tie_word_embeddings says so");
        }
        if (length >= ends && strcmp(tensor->name + length - ends, frequencies) == 0) {
            if (folder_is_frequencies(tensor, &m->config)) continue;
            return folder_fail(folder, KVT_E_UNSUPPORTED, tensor->name,
                               "are not the frequencies that config.json asks for");
        }
        return model_map_say(KVT_E_UNSUPPORTED, folder->message, folder->message_size, folder->path,
                             "%.100s: is no tensor that the decoder knows", tensor->name);
    }
    return KVT_OK;
}

/* Before memory is asked for: a small file must not claim a large model. */
static kvt_status folder_check_size(model_folder *folder, const model_config *config)
{
    const model_tensors *t = &folder->tensors;
    uint64_t elements = 0;
    for (size_t i = 0; i < t->count; i++)
        if (__builtin_add_overflow(elements, t->list[i].tensor->elements, &elements))
            elements = UINT64_MAX;
    if (elements >= model_weight_count(config)) return KVT_OK;
    return folder_fail(folder, KVT_E_CORRUPT, "weights", "fewer than config.json asks for");
}

/* Goes on to the folder's weights, or says why there are none to read. The first of these that is
 * there decides. */
static kvt_status folder_enter_weights(model_folder *folder, const char *path)
{
    static const struct {
        const char *file, *refused; /* NULL: it is read */
    } files[] = {
        {"adapter_config.json", "an adapter beside a model is not supported: merge it"},
        {"model.safetensors", NULL},
        {"model.safetensors.index.json", NULL},
        {"pytorch_model.bin", "weights that are not safetensors are not read"},
        {"pytorch_model.bin.index.json", "weights that are not safetensors are not read"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        kvt_status status = folder_enter(folder, path, files[i].file);
        if (status != KVT_OK) return status;
        if (access(folder->path, F_OK) != 0) continue;
        if (files[i].refused == NULL) return KVT_OK;
        return model_map_say(KVT_E_UNSUPPORTED, folder->message, folder->message_size, folder->path,
                             "%s", files[i].refused);
    }
    return folder_enter(folder, path, "model.safetensors");
}

kvt_status model_open_folder(const char *path, model **model_out, char *message,
                             size_t message_size)
{
    model_folder folder = {.message = message, .message_size = message_size};
    model_config config;
    *model_out = NULL;
    kvt_status status = folder_enter(&folder, path, "config.json");
    if (status == KVT_OK) status = model_config_read(folder.path, &config, message, message_size);
    if (status == KVT_OK) status = folder_enter_weights(&folder, path);
    if (status == KVT_OK)
        status = model_tensors_open(folder.path, &folder.tensors, message, message_size);
    if (status != KVT_OK) return status;
    status = folder_check_size(&folder, &config);
    if (status == KVT_OK) status = model_make(&config, model_out);
    if (status == KVT_OK) status = folder_read_weights(&folder, *model_out);
    if (status == KVT_OK) status = folder_check_unused(&folder, *model_out);
    if (status == KVT_OK) status = model_check_weights(*model_out, path, message, message_size);
    if (status != KVT_OK) {
        model_close(*model_out);
        *model_out = NULL;
    }
    model_tensors_close(&folder.tensors);
    return status;
}
