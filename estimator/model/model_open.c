/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_open.c - what the loaders share: checks of a configuration, the one block of weights, and
 * the choice of a loader. Thread rule: see model.h.
 */
#include "base/half.h"
#include "estimator/model/model_internal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MODEL_TERNARY_MAGIC = 0x616b3432 };

const char *model_config_fault(const model_config *c)
{
    if (c->dim == 0 || c->dim > 1u << 16) return "the width is outside 1..65536";
    if (c->ffn_dim == 0 || c->ffn_dim > 1u << 18) return "the ffn width is outside 1..262144";
    if (c->layers == 0 || c->layers > 1024) return "the layers are outside 1..1024";
    if (c->heads == 0 || c->heads > 1024) return "the heads are outside 1..1024";
    if (c->kv_heads == 0 || c->heads % c->kv_heads != 0) return "kv_heads do not divide the heads";
    if (c->head_dim == 0 || c->head_dim > 1024 || c->head_dim % 2 != 0) {
        return "head_dim is no even number in 2..1024";
    }
    if (c->vocab == 0 || c->vocab > 1u << 20) return "the vocabulary is outside 1..1048576";
    if (c->context == 0 || c->context > 1u << 30) return "the context is outside 1..2^30";
    if (!(c->norm_eps >= 0.0f && c->norm_eps < 1.0f)) return "the norm epsilon is outside 0..1";
    if (!(c->rope_theta >= 1.0 && c->rope_theta < 1e12)) return "the rope base is outside 1..1e12";
    return NULL;
}

const char *model_header_config(const model_header *h, model_config *config_out)
{
    if (h->dim <= 0 || h->heads <= 0 || h->vocab == 0 || h->vocab == INT32_MIN) {
        return "a size in the header is not positive";
    }
    if (h->dim % h->heads != 0) return "the heads do not divide the width";
    /* Negative numbers turn into ones above every bound. */
    *config_out = (model_config){.dim = (uint32_t)h->dim,
                                 .ffn_dim = (uint32_t)h->ffn_dim,
                                 .layers = (uint32_t)h->layers,
                                 .heads = (uint32_t)h->heads,
                                 .kv_heads = (uint32_t)h->kv_heads,
                                 .head_dim = (uint32_t)(h->dim / h->heads),
                                 .vocab = (uint32_t)(h->vocab < 0 ? -h->vocab : h->vocab),
                                 .context = (uint32_t)h->context,
                                 .norm_eps = 1e-5f,
                                 .rope_theta = 10000.0,
                                 .tied = h->vocab > 0};
    return model_config_fault(config_out);
}

model_shape model_matrix_shape(const model_config *c, int matrix)
{
    switch (matrix) {
    case MODEL_WQ: return (model_shape){model_query_dim(c), c->dim};
    case MODEL_WK:
    case MODEL_WV: return (model_shape){model_kv_dim(c), c->dim};
    case MODEL_WO: return (model_shape){c->dim, model_query_dim(c)};
    case MODEL_W2: return (model_shape){c->dim, c->ffn_dim};
    default: assert(matrix == MODEL_W1 || matrix == MODEL_W3);
    }
    return (model_shape){c->ffn_dim, c->dim};
}

static float **model_matrix_place(model_layer *layer, int matrix)
{
    float **const places[MODEL_MATRICES] = {&layer->wq, &layer->wk, &layer->wv, &layer->wo,
                                            &layer->w1, &layer->w2, &layer->w3};
    assert(matrix >= 0 && matrix < MODEL_MATRICES);
    return places[matrix];
}

float *model_matrix(model_layer *layer, int matrix)
{
    return *model_matrix_place(layer, matrix);
}

static uint64_t model_layer_count(const model_config *c)
{
    uint64_t count = c->bare_norm ? 0 : 2 * (uint64_t)c->dim;
    for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
        model_shape shape = model_matrix_shape(c, matrix);
        count += (uint64_t)shape.rows * shape.columns;
    }
    return count;
}

uint64_t model_weight_count(const model_config *c)
{
    uint64_t table = (uint64_t)c->vocab * c->dim;
    return table * (c->tied ? 1 : 2) + c->dim + c->layers * model_layer_count(c);
}

static float *model_take(float **at, uint64_t count)
{
    float *taken = *at;
    *at += count;
    return taken;
}

kvt_status model_make(const model_config *config, model **model_out)
{
    model *m = calloc(1, sizeof *m);
    *model_out = NULL;
    if (m == NULL) return KVT_E_MEMORY;
    m->config = *config;
    m->weights = calloc(model_weight_count(config), sizeof *m->weights);
    m->layers = calloc(config->layers, sizeof *m->layers);
    if (m->weights == NULL || m->layers == NULL) {
        model_close(m);
        return KVT_E_MEMORY;
    }
    float *at = m->weights;
    uint64_t table = (uint64_t)config->vocab * config->dim;
    m->embedding = model_take(&at, table);
    m->norm_final = model_take(&at, config->dim);
    m->output = config->tied ? m->embedding : model_take(&at, table);
    for (uint32_t l = 0; l < config->layers; l++) {
        if (!config->bare_norm) {
            m->layers[l].norm_attention = model_take(&at, config->dim);
            m->layers[l].norm_ffn = model_take(&at, config->dim);
        }
        for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
            model_shape shape = model_matrix_shape(config, matrix);
            *model_matrix_place(&m->layers[l], matrix) =
                model_take(&at, (uint64_t)shape.rows * shape.columns);
        }
    }
    assert(at == m->weights + model_weight_count(config));
    *model_out = m;
    return KVT_OK;
}

kvt_status model_check_weights(const model *m, const char *path, char *message, size_t message_size)
{
    uint64_t count = model_weight_count(&m->config);
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(m->weights[i])) continue;
        return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                             "a weight is infinite or no number");
    }
    return KVT_OK;
}

/* What a path names that is no model but is taken for one; NULL: nothing of that kind. */
static const char *model_other_kind(const char *path, const model_map *map)
{
    static const char weights[] = ".safetensors";
    const size_t length = strlen(path), ends = sizeof weights - 1;
    if (length > ends && strcmp(path + length - ends, weights) == 0)
        return "weights alone; the model is the folder with them and config.json";
    if (map->size >= 4 && memcmp(map->bytes, "GGUF", 4) == 0)
        return "GGUF is not read; reference_model/convert_gguf.py makes a folder of it";
    return NULL;
}

kvt_status model_open(const char *path, model **model_out, char *message, size_t message_size)
{
    struct stat facts;
    model_map map;
    uint32_t magic = 0;
    *model_out = NULL;
    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        return model_open_folder(path, model_out, message, message_size);
    }
    kvt_status status = model_map_open(path, &map, message, message_size);
    if (status == KVT_E_GONE)
        return model_map_say(status, message, message_size, path,
                             "%s; a model is a folder of this machine with config.json and "
                             "model.safetensors, or a file of llama2.c",
                             strerror(errno));
    if (status != KVT_OK) return status;
    const char *other = model_other_kind(path, &map);
    if (other != NULL) {
        model_map_close(&map);
        return model_map_say(KVT_E_CORRUPT, message, message_size, path, "no model: %s", other);
    }
    if (map.size >= sizeof magic) memcpy(&magic, map.bytes, sizeof magic);
    status = magic == MODEL_TERNARY_MAGIC
                 ? model_open_ternary(path, &map, model_out, message, message_size)
                 : model_open_llama2c(path, &map, model_out, message, message_size);
    model_map_close(&map);
    if (status == KVT_OK) status = model_check_weights(*model_out, path, message, message_size);
    if (status != KVT_OK) {
        model_close(*model_out);
        *model_out = NULL;
        if (status == KVT_E_MEMORY) {
            model_map_say(status, message, message_size, path, "out of memory");
        }
    }
    return status;
}

void model_close(model *m)
{
    if (m == NULL) return;
    free(m->weights);
    free(m->layers);
    free(m);
}

const model_config *model_config_of(const model *m)
{
    return &m->config;
}

/* ---- elements as fp32 ---- */

/*
 * KV of any float dtype as fp32, for the products. The integer path is the specification; vector
 * instructions give the same bits (NaN becomes quiet).
 */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*convert_half)(const uint16_t *source, size_t count, float *target);

static void convert_fp16_plain(const uint16_t *source, size_t count, float *target)
{
    for (size_t i = 0; i < count; i++)
        target[i] = half_to_float(source[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static void convert_fp16_f16c(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}

__attribute__((target("avx512f"))) static void convert_fp16_avx512(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 16 * 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm512_storeu_ps(target + i, _mm512_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}
#endif

#if defined(__x86_64__)
/* clang 14 has no name for it to ask by. */
static bool convert_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static convert_half convert_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return convert_fp16_avx512;
    if (__builtin_cpu_supports("avx2") && convert_has_f16c()) return convert_fp16_f16c;
#endif
    return convert_fp16_plain;
}

void model_convert(uint8_t dtype, const void *source, size_t count, float *target)
{
    const uint16_t *half = source;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, source, count * sizeof *target);
    } else if (dtype == KVT_DTYPE_FP16) {
        convert_choose()(half, count, target);
    } else {
        for (size_t i = 0; i < count; i++)
            target[i] = half_bf16_to_float(half[i]);
    }
}
