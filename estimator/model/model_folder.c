/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_folder.c - a folder with config.json and model.safetensors, with the names that HF Llama
 * models use. What would change the forward pass and is not done here is refused by name: biases,
 * other activations, sliding windows, rope scaling other than none. Thread rule: see model.h.
 */
#include "estimator/model/model_internal.h"
#include "estimator/model/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define MODEL_CONFIG_BYTES_MAX (UINT64_C(1) << 20)

/* What the loading of a folder works on. */
typedef struct model_folder {
    char path[4096]; /* of the file that is being read, for messages */
    char *message;
    size_t message_size;
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

/* A positive integer; `fallback` where the key is absent or null, 0 meaning that it must be there.
 */
static kvt_status folder_u32(model_folder *folder, const json_t *root, const char *key,
                             uint32_t fallback, uint32_t *out)
{
    const json_t *value = json_object_get(root, key);
    *out = fallback;
    if ((value == NULL || json_is_null(value)) && fallback != 0) return KVT_OK;
    if (!json_is_integer(value) || json_integer_value(value) <= 0 ||
        json_integer_value(value) > INT32_MAX) {
        return folder_fail(folder, KVT_E_PARSE, key, "no positive whole number");
    }
    *out = (uint32_t)json_integer_value(value);
    return KVT_OK;
}

static kvt_status folder_number(model_folder *folder, const json_t *root, const char *key,
                                double fallback, double *out)
{
    const json_t *value = json_object_get(root, key);
    *out = fallback;
    if (value == NULL || json_is_null(value)) return KVT_OK;
    if (!json_is_number(value)) return folder_fail(folder, KVT_E_PARSE, key, "no number");
    *out = json_number_value(value);
    return KVT_OK;
}

/* Settings under which this forward pass would be another model's. */
static kvt_status folder_check_kind(model_folder *folder, const json_t *root)
{
    static const char *const off[] = {"attention_bias", "mlp_bias", "rope_scaling",
                                      "sliding_window", "quantization_config"};
    const char *kind = json_string_value(json_object_get(root, "model_type"));
    const json_t *act = json_object_get(root, "hidden_act");
    if (kind == NULL || (strcmp(kind, "llama") != 0 && strcmp(kind, "mistral") != 0)) {
        return folder_fail(folder, KVT_E_UNSUPPORTED, "model_type", "neither llama nor mistral");
    }
    if (act != NULL && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)) {
        return folder_fail(folder, KVT_E_UNSUPPORTED, "hidden_act", "not silu");
    }
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        const json_t *value = json_object_get(root, off[i]);
        if (value == NULL || json_is_null(value) || json_is_false(value)) continue;
        return folder_fail(folder, KVT_E_UNSUPPORTED, off[i], "is not supported");
    }
    return KVT_OK;
}

static kvt_status folder_read_config(model_folder *folder, const json_t *root, model_config *c)
{
    double eps;
    struct {
        const char *key;
        uint32_t fallback;
        uint32_t *out;
    } sizes[] = {
        {"hidden_size", 0, &c->dim},          {"intermediate_size", 0, &c->ffn_dim},
        {"num_hidden_layers", 0, &c->layers}, {"num_attention_heads", 0, &c->heads},
        {"vocab_size", 0, &c->vocab},         {"max_position_embeddings", 2048, &c->context}};
    *c = (model_config){.rope_halves = true,
                        .tied = json_is_true(json_object_get(root, "tie_word_embeddings"))};
    kvt_status status = folder_check_kind(folder, root);
    for (size_t i = 0; status == KVT_OK && i < sizeof sizes / sizeof sizes[0]; i++)
        status = folder_u32(folder, root, sizes[i].key, sizes[i].fallback, sizes[i].out);
    if (status == KVT_OK)
        status = folder_u32(folder, root, "num_key_value_heads", c->heads, &c->kv_heads);
    if (status == KVT_OK) {
        uint32_t even = c->dim / c->heads;
        status = folder_u32(folder, root, "head_dim", even, &c->head_dim);
    }
    if (status == KVT_OK) status = folder_number(folder, root, "rms_norm_eps", 1e-6, &eps);
    if (status == KVT_OK)
        status = folder_number(folder, root, "rope_theta", 10000.0, &c->rope_theta);
    if (status != KVT_OK) return status;
    c->norm_eps = (float)eps;
    const char *fault = model_config_fault(c);
    return fault == NULL ? KVT_OK : folder_fail(folder, KVT_E_CORRUPT, "config", fault);
}

static kvt_status folder_load_config(model_folder *folder, model_config *config)
{
    model_map map;
    json_error_t error;
    kvt_status status = model_map_open(folder->path, &map, folder->message, folder->message_size);
    if (status != KVT_OK) return status;
    json_t *root = NULL;
    if (map.size > MODEL_CONFIG_BYTES_MAX) {
        status = folder_fail(folder, KVT_E_PARSE, "config", "larger than 1 MiB");
        goto out;
    }
    root = json_loadb((const char *)map.bytes, map.size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        status = model_map_say(KVT_E_PARSE, folder->message, folder->message_size, folder->path,
                               "line %d: %s", error.line, error.text);
        goto out;
    }
    status = folder_read_config(folder, root, config);
out:
    json_decref(root);
    model_map_close(&map);
    return status;
}

/* Reads a matrix, or with rows == 1 a vector, after checking that it has exactly this shape. */
static kvt_status folder_read(model_folder *folder, const safetensors *file, const char *name,
                              model_shape shape, float *target)
{
    const safetensors_tensor *tensor = safetensors_find(file, name);
    if (tensor == NULL) return folder_fail(folder, KVT_E_CORRUPT, name, "is missing");
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

static kvt_status folder_read_layer(model_folder *folder, const safetensors *file, model *m,
                                    uint32_t l)
{
    static const char *const names[MODEL_MATRICES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.down_proj",    "mlp.up_proj"};
    char name[128];
    model_shape vector = {1, m->config.dim};
    snprintf(name, sizeof name, "model.layers.%u.input_layernorm.weight", l);
    kvt_status status = folder_read(folder, file, name, vector, m->layers[l].norm_attention);
    if (status != KVT_OK) return status;
    snprintf(name, sizeof name, "model.layers.%u.post_attention_layernorm.weight", l);
    status = folder_read(folder, file, name, vector, m->layers[l].norm_ffn);
    for (int matrix = 0; status == KVT_OK && matrix < MODEL_MATRICES; matrix++) {
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, names[matrix]);
        status = folder_read(folder, file, name, model_matrix_shape(&m->config, matrix),
                             model_matrix(&m->layers[l], matrix));
    }
    return status;
}

static kvt_status folder_read_weights(model_folder *folder, const safetensors *file, model *m)
{
    model_shape table = {m->config.vocab, m->config.dim};
    kvt_status status = folder_read(folder, file, "model.embed_tokens.weight", table, m->embedding);
    if (status == KVT_OK) {
        status = folder_read(folder, file, "model.norm.weight", (model_shape){1, m->config.dim},
                             m->norm_final);
    }
    if (status == KVT_OK && !m->config.tied)
        status = folder_read(folder, file, "lm_head.weight", table, m->output);
    for (uint32_t l = 0; status == KVT_OK && l < m->config.layers; l++)
        status = folder_read_layer(folder, file, m, l);
    return status;
}

/* Before memory is asked for: a small file must not claim a large model. */
static kvt_status folder_check_size(model_folder *folder, const safetensors *file,
                                    const model_config *config)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < safetensors_count(file); i++)
        if (__builtin_add_overflow(elements, safetensors_at(file, i)->elements, &elements))
            elements = UINT64_MAX;
    if (elements >= model_weight_count(config)) return KVT_OK;
    return folder_fail(folder, KVT_E_CORRUPT, "weights", "fewer than config.json asks for");
}

kvt_status model_open_folder(const char *path, model **model_out, char *message,
                             size_t message_size)
{
    model_folder folder = {.message = message, .message_size = message_size};
    model_config config;
    safetensors *file = NULL;
    *model_out = NULL;
    kvt_status status = folder_enter(&folder, path, "config.json");
    if (status == KVT_OK) status = folder_load_config(&folder, &config);
    if (status == KVT_OK) status = folder_enter(&folder, path, "model.safetensors");
    if (status == KVT_OK) status = safetensors_open(folder.path, &file, message, message_size);
    if (status != KVT_OK) return status;
    status = folder_check_size(&folder, file, &config);
    if (status == KVT_OK) status = model_make(&config, model_out);
    if (status == KVT_OK) status = folder_read_weights(&folder, file, *model_out);
    if (status == KVT_OK) status = model_check_weights(*model_out, path, message, message_size);
    if (status != KVT_OK) {
        model_close(*model_out);
        *model_out = NULL;
    }
    safetensors_close(file);
    return status;
}
