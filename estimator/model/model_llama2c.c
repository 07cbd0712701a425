/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_llama2c.c - the two single-file layouts, little-endian. Thread rule: see model.h.
 *
 * llama2.c (version 0):
 *   7 int32: dim, ffn_dim, layers, heads, kv_heads, vocab (negative: own output matrix), context
 *   fp32: embedding, norm_attention of all layers, wq of all layers, wk, wv, wo, norm_ffn, w1, w2,
 *   w3, norm_final, context * head_dim / 2 cosines of the rotation and as many sines, [output]
 *
 *   The rotation is not read from there: the factors are those of base 10000, or all zero.
 *
 * ternary:
 *   256 bytes: uint32 magic, int32 version 1, the 7 int32, one byte 1 (shared output), zeros
 *   fp32: norm_final, embedding (also the output matrix)
 *   for wq of all layers, then wk, wv, wo, w1, w2, w3: fp32 scale, rows * columns / 4 bytes with
 *   four weights each, the first in the highest bits: 01 = +scale, 11 = -scale, 00 = 0
 */
#include "estimator/model/model_internal.h"

#include <math.h>
#include <string.h>

enum { MODEL_TERNARY_HEADER = 256, MODEL_TERNARY_FLAG = 36 };

enum { MODEL_ROTATION_ROWS = 256 /* positions that are compared: further ones only round more */ };

/* Reads on from a place in the file; the whole size has been checked before. */
typedef struct model_cursor {
    const uint8_t *at;
} model_cursor;

static void model_read(model_cursor *cursor, float *target, uint64_t count)
{
    memcpy(target, cursor->at, count * sizeof *target);
    cursor->at += count * sizeof *target;
}

static void model_read_layers(model_cursor *cursor, model *m, int matrix)
{
    model_shape shape = model_matrix_shape(&m->config, matrix);
    for (uint32_t l = 0; l < m->config.layers; l++)
        model_read(cursor, model_matrix(&m->layers[l], matrix),
                   (uint64_t)shape.rows * shape.columns);
}

static kvt_status model_size_fault(const char *path, uint64_t is, uint64_t wanted, char *message,
                                   size_t message_size)
{
    return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                         "%llu bytes, but its header asks for %llu", (unsigned long long)is,
                         (unsigned long long)wanted);
}

/* Whether the rotation factors of a file are those that the forward pass computes, or not filled
 * in. */
static bool model_rotation_fits(const uint8_t *factors, const model_config *c)
{
    const uint64_t pairs = c->head_dim / 2, count = (uint64_t)c->context * pairs;
    const uint32_t rows = c->context < MODEL_ROTATION_ROWS ? c->context : MODEL_ROTATION_ROWS;
    bool fits = true, zero = true;
    for (uint64_t at = 0; zero && at < 2 * count * sizeof(float); at++)
        zero = factors[at] == 0;
    for (uint64_t i = 0; fits && !zero && i < rows * pairs; i++) {
        float cosine, sine;
        const double angle = (double)(i / pairs) * model_frequency(c, (uint32_t)(i % pairs));
        memcpy(&cosine, factors + i * sizeof cosine, sizeof cosine);
        memcpy(&sine, factors + (count + i) * sizeof sine, sizeof sine);
        fits = fabs((double)cosine - cos(angle)) < 1e-3 && fabs((double)sine - sin(angle)) < 1e-3;
    }
    return fits;
}

kvt_status model_open_llama2c(const char *path, const model_map *map, model **model_out,
                              char *message, size_t message_size)
{
    model_header header;
    model_config config;
    if (map->size < sizeof header) {
        return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                             "no model: a folder of safetensors, or a file of llama2.c, which is "
                             "not as short as this one");
    }
    memcpy(&header, map->bytes, sizeof header);
    const char *fault = model_header_config(&header, &config);
    if (fault != NULL) {
        return model_map_say(
            KVT_E_CORRUPT, message, message_size, path,
            "no model: neither a folder of safetensors nor a file of llama2.c (%s)", fault);
    }
    uint64_t unused = (uint64_t)config.context * config.head_dim;
    uint64_t wanted = sizeof header + (model_weight_count(&config) + unused) * sizeof(float);
    if (map->size != wanted) {
        return model_size_fault(path, map->size, wanted, message, message_size);
    }
    kvt_status status = model_make(&config, model_out);
    if (status != KVT_OK) return status;
    model *m = *model_out;
    model_cursor cursor = {map->bytes + sizeof header};
    model_read(&cursor, m->embedding, (uint64_t)config.vocab * config.dim);
    for (uint32_t l = 0; l < config.layers; l++)
        model_read(&cursor, m->layers[l].norm_attention, config.dim);
    for (int matrix = MODEL_WQ; matrix <= MODEL_WO; matrix++)
        model_read_layers(&cursor, m, matrix);
    for (uint32_t l = 0; l < config.layers; l++)
        model_read(&cursor, m->layers[l].norm_ffn, config.dim);
    for (int matrix = MODEL_W1; matrix <= MODEL_W3; matrix++)
        model_read_layers(&cursor, m, matrix);
    model_read(&cursor, m->norm_final, config.dim);
    if (!model_rotation_fits(cursor.at, &config))
        return model_map_say(KVT_E_UNSUPPORTED, message, message_size, path,
                             "its rotation is not that of base 10000, which a file of llama2.c has "
                             "no setting for");
    cursor.at += unused * sizeof(float);
    if (!config.tied) model_read(&cursor, m->output, (uint64_t)config.vocab * config.dim);
    return KVT_OK;
}

/* False for the code 10, which no weight has. */
static bool model_unpack_ternary(model_cursor *cursor, float *target, uint64_t count)
{
    float scale;
    bool sound = true;
    memcpy(&scale, cursor->at, sizeof scale);
    const uint8_t *codes = cursor->at + sizeof scale;
    const float values[4] = {0.0f, scale, 0.0f, -scale};
    for (uint64_t i = 0; i < count; i++) {
        unsigned code = (unsigned)codes[i / 4] >> (6 - 2 * (i % 4)) & 3u;
        sound = sound && code != 2u;
        target[i] = values[code];
    }
    cursor->at = codes + count / 4;
    return sound;
}

static bool model_read_ternary(model_cursor *cursor, model *m)
{
    for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
        model_shape shape = model_matrix_shape(&m->config, matrix);
        for (uint32_t l = 0; l < m->config.layers; l++) {
            if (!model_unpack_ternary(cursor, model_matrix(&m->layers[l], matrix),
                                      (uint64_t)shape.rows * shape.columns)) {
                return false;
            }
        }
    }
    return true;
}

/* The bytes that a ternary file of this configuration has; 0 when a matrix is no whole number of
 * bytes. */
static uint64_t model_ternary_bytes(const model_config *config)
{
    uint64_t table = (uint64_t)config->vocab * config->dim;
    uint64_t layer = 0;
    for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
        model_shape shape = model_matrix_shape(config, matrix);
        uint64_t count = (uint64_t)shape.rows * shape.columns;
        if (count % 4 != 0) return 0;
        layer += sizeof(float) + count / 4;
    }
    return MODEL_TERNARY_HEADER + (config->dim + table) * sizeof(float) + config->layers * layer;
}

kvt_status model_open_ternary(const char *path, const model_map *map, model **model_out,
                              char *message, size_t message_size)
{
    model_header header;
    model_config config;
    int32_t version;
    if (map->size < MODEL_TERNARY_HEADER) {
        return model_map_say(KVT_E_CORRUPT, message, message_size, path, "shorter than its header");
    }
    memcpy(&version, map->bytes + 4, sizeof version);
    memcpy(&header, map->bytes + 8, sizeof header);
    if (version != 1) {
        return model_map_say(KVT_E_UNSUPPORTED, message, message_size, path,
                             "layout version %d is not read", (int)version);
    }
    const char *fault = model_header_config(&header, &config);
    if (fault == NULL && (header.vocab < 0 || map->bytes[MODEL_TERNARY_FLAG] != 1)) {
        fault = "the output is not shared with the embedding";
    }
    for (size_t i = MODEL_TERNARY_FLAG + 1; fault == NULL && i < MODEL_TERNARY_HEADER; i++)
        if (map->bytes[i] != 0) fault = "its header has a field that is not known";
    if (fault != NULL) {
        return model_map_say(KVT_E_CORRUPT, message, message_size, path, "%s", fault);
    }
    config.bare_norm = true;
    uint64_t wanted = model_ternary_bytes(&config);
    if (map->size != wanted) {
        return model_size_fault(path, map->size, wanted, message, message_size);
    }
    kvt_status status = model_make(&config, model_out);
    if (status != KVT_OK) return status;
    model *m = *model_out;
    model_cursor cursor = {map->bytes + MODEL_TERNARY_HEADER};
    model_read(&cursor, m->norm_final, config.dim);
    model_read(&cursor, m->embedding, (uint64_t)config.vocab * config.dim);
    if (!model_read_ternary(&cursor, m)) {
        return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                             "a code that no weight has");
    }
    return KVT_OK;
}
