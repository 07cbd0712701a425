/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model.c - the reference decoder on small random models: all three loaders against
 * a plain forward pass in double, prefill in pieces, dropped tokens, 16-bit KV, hostile files.
 */
#include "base/half.h"
#include "codecs/keys_rerotate.h"
#include "estimator/model/safetensors.h"
#include "model_folder.h"
#include "model_support.h"

#include <kvterrace/codec.h>
#include <kvterrace/rope.h>

#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 150 }; /* more than two attention blocks */

static uint32_t tokens[TOKENS];

static int make_folder_and_tokens(void **state)
{
    uint64_t random = 9;
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = naive_random(&random) % naive_config().vocab;
    return make_folder(state);
}

/* What a forward pass gives for all tokens. */
typedef struct outcome {
    float *logits, *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX], *queries[NAIVE_LAYERS_MAX];
} outcome;

static outcome outcome_make(const model_config *c)
{
    outcome o = {.logits = test_zeros((size_t)TOKENS * c->vocab * sizeof(float))};
    for (uint32_t l = 0; l < c->layers; l++) {
        o.k[l] = test_zeros((size_t)TOKENS * c->kv_heads * c->head_dim * sizeof(float));
        o.v[l] = test_zeros((size_t)TOKENS * c->kv_heads * c->head_dim * sizeof(float));
        o.queries[l] = test_zeros((size_t)TOKENS * c->heads * c->head_dim * sizeof(float));
    }
    return o;
}

/* Runs tokens [first, first + count) on top of those before, whose KV is in `o`. */
static void outcome_run(model_session *session, outcome *o, uint32_t first, uint32_t count)
{
    const model_config *c = model_session_config(session);
    size_t row = (size_t)c->kv_heads * c->head_dim;
    float *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX], *queries[NAIVE_LAYERS_MAX];
    for (uint32_t l = 0; l < c->layers; l++) {
        k[l] = o->k[l] + first * row;
        v[l] = o->v[l] + first * row;
        queries[l] = o->queries[l] + (size_t)first * c->heads * c->head_dim;
    }
    model_past past = {.tokens = first,
                       .dtype = KVT_DTYPE_FP32,
                       .k = (const void *const *)o->k,
                       .v = (const void *const *)o->v};
    model_request request = {.tokens = tokens + first,
                             .token_count = count,
                             .first_position = first,
                             .past = first > 0 ? &past : NULL,
                             .k_out = k,
                             .v_out = v,
                             .logits_count = count,
                             .logits_out = o->logits + (size_t)first * c->vocab,
                             .queries_count = count,
                             .queries_out = queries};
    assert_ok(model_forward(session, &request));
}

static void assert_close(double is, double wanted, double tolerance, const char *what)
{
    if (!(fabs(is - wanted) <= tolerance)) fail_msg("%s: %.9g, not %.9g", what, is, wanted);
}

static void outcomes_agree(const model_config *c, const outcome *a, const outcome *b)
{
    for (size_t i = 0; i < (size_t)TOKENS * c->vocab; i++)
        assert_close((double)a->logits[i], (double)b->logits[i], 2e-5, "logit");
    for (uint32_t l = 0; l < c->layers; l++) {
        for (size_t i = 0; i < (size_t)TOKENS * c->kv_heads * c->head_dim; i++) {
            assert_close((double)a->k[l][i], (double)b->k[l][i], 2e-5, "key");
            assert_close((double)a->v[l][i], (double)b->v[l][i], 2e-5, "value");
        }
        for (size_t i = 0; i < (size_t)TOKENS * c->heads * c->head_dim; i++)
            assert_close((double)a->queries[l][i], (double)b->queries[l][i], 2e-5, "query");
    }
}

/* The loaded model against the plain forward pass: every logit, key and value. */
static void compare_with_naive(const naive_model *m, const model *loaded)
{
    const model_config *c = &m->c;
    size_t layer = (size_t)TOKENS * c->kv_heads * c->head_dim;
    double *logits = test_zeros((size_t)TOKENS * c->vocab * sizeof *logits), spread = 0.0;
    double *k = test_zeros(c->layers * layer * sizeof *k),
           *v = test_zeros(c->layers * layer * sizeof *v);
    naive_forward(m, tokens, TOKENS, logits, k, v);
    model_session *session;
    assert_ok(model_session_open(loaded, &session));
    outcome o = outcome_make(c);
    outcome_run(session, &o, 0, TOKENS);
    for (size_t i = 0; i < (size_t)TOKENS * c->vocab; i++) {
        assert_close((double)o.logits[i], logits[i], 2e-5, "logit");
        spread = fmax(spread, fabs(logits[i]));
    }
    assert_true(spread > 0.5); /* logits of nearly nothing would agree with anything */
    for (uint32_t l = 0; l < c->layers; l++) {
        for (size_t i = 0; i < layer; i++) {
            assert_close((double)o.k[l][i], k[l * layer + i], 2e-5, "key");
            assert_close((double)o.v[l][i], v[l * layer + i], 2e-5, "value");
        }
    }
    model_session_close(session);
}

/* ---- keys at other positions ---- */

/* Keys of layer 0, which depend on nothing but their token and its position. */
static void model_keys(model_session *session, const uint32_t *context, uint32_t count, float *keys)
{
    const model_config *c = model_session_config(session);
    float *out[NAIVE_LAYERS_MAX] = {0};
    float *rest = test_zeros((size_t)count * c->kv_heads * c->head_dim * sizeof(float));
    for (uint32_t l = 0; l < c->layers; l++) {
        out[l] = l == 0 ? keys : rest;
    }
    const model_request request = {.tokens = context, .token_count = count, .k_out = out};
    assert_ok(model_forward(session, &request));
}

/* Kept keys that were turned to contiguous positions are those of a run of the kept tokens alone.
 */
static void keys_turn_like_the_decoder(const naive_model *m, const model *loaded)
{
    uint32_t context[40];
    uint32_t kept[20];
    uint32_t alone[20];
    model_session *session;
    assert_ok(model_session_open(loaded, &session));
    const kvt_layout layout = {.layers = 1,
                               .kv_heads = (uint16_t)m->c.kv_heads,
                               .head_dim = (uint16_t)m->c.head_dim,
                               .dtype = KVT_DTYPE_FP32,
                               .tokens = 40};
    const size_t row = (size_t)m->c.kv_heads * m->c.head_dim;
    float *whole = test_zeros(40 * row * sizeof *whole);
    float *short_run = test_zeros(20 * row * sizeof *short_run);
    for (uint32_t i = 0; i < 40; i++) {
        context[i] = i * 29 % m->c.vocab;
    }
    for (uint32_t i = 0; i < 20; i++) {
        kept[i] = i < 4 ? i : i * 2 + 1;
        alone[i] = context[kept[i]];
    }
    model_keys(session, context, 40, whole);
    model_keys(session, alone, 20, short_run);
    for (uint32_t i = 0; i < 20; i++) {
        memmove(whole + i * row, whole + kept[i] * row, row * sizeof *whole);
    }
    double frequencies[NAIVE_WIDE];
    for (uint32_t i = 0; i < layout.head_dim / 2u; i++)
        frequencies[i] = naive_frequency(&m->c, i);
    const kvt_rope rope = {.struct_size = sizeof rope,
                           .rotary_dim = layout.head_dim,
                           .pairing = m->c.rope_halves ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS,
                           .base = m->c.rope_theta,
                           .frequencies = m->c.rope_scale.factor != 0.0 ? frequencies : NULL};
    assert_ok(kvt_keys_rerotate(&layout, &rope, kept, 20, 0, 0, whole, 20 * row * sizeof *whole));
    for (size_t i = 0; i < 20 * row; i++) {
        assert_true(fabsf(whole[i] - short_run[i]) < 2e-5f * (1.0f + fabsf(short_run[i])));
    }
    model_session_close(session);
}

TEST_ALL(make_folder_and_tokens, remove_folder);

TEST(llama2c_layout_agrees)
{
    for (int tied = 0; tied < 2; tied++) {
        model_config config = naive_config();
        config.tied = tied == 1;
        naive_model m = naive_make(config, 1 + (uint64_t)tied);
        naive_write(&m, in_folder("model.bin"));
        model *loaded = naive_open(in_folder("model.bin"));
        assert_int_equal(model_config_of(loaded)->tied, tied);
        compare_with_naive(&m, loaded);
        keys_turn_like_the_decoder(&m, loaded);
        model_close(loaded);
    }
}

static void write_ternary(const naive_model *m, const char *path)
{
    uint8_t header[256] = {'2', '4', 'k', 'a', 1};
    int32_t sizes[7];
    naive_header(&m->c, sizes);
    memcpy(header + 8, sizes, sizeof sizes);
    header[36] = 1;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    naive_put(file, header, sizeof header);
    naive_put(file, m->norm_final, m->c.dim * sizeof(float));
    naive_put(file, m->embedding, (size_t)m->c.vocab * m->c.dim * sizeof(float));
    for (int matrix = 0; matrix < NAIVE_MATRICES; matrix++) {
        for (uint32_t l = 0; l < m->c.layers; l++) {
            size_t rows, count = naive_matrix(&m->c, matrix, &rows);
            naive_put(file, &m->scale[l][matrix], sizeof(float));
            for (size_t i = 0; i < count; i += 4) {
                unsigned byte = 0;
                for (size_t part = 0; part < 4; part++) {
                    float weight = m->w[l][matrix][i + part];
                    byte = byte << 2 | (weight > 0 ? 1u : weight < 0 ? 3u : 0u);
                }
                naive_put(file, &(uint8_t){(uint8_t)byte}, 1);
            }
        }
    }
    assert_int_equal(fclose(file), 0);
}

TEST(ternary_layout_agrees)
{
    model_config config = naive_config();
    config.tied = true;
    config.bare_norm = true;
    naive_model m = naive_make(config, 3);
    write_ternary(&m, in_folder("model.bin"));
    model *loaded = naive_open(in_folder("model.bin"));
    assert_true(model_config_of(loaded)->bare_norm);
    compare_with_naive(&m, loaded);
    model_close(loaded);
}

/* ---- the HF folder ---- */

static void write_text(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    naive_put(file, text, strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* Exact, as all weights are multiples of 1/128 below 1/2. */
static void *to_dtype(const float *from, size_t count, uint8_t dtype)
{
    uint16_t *half = test_alloc(count * sizeof(float));
    memcpy(half, from, count * sizeof(float));
    for (size_t i = 0; i < count && dtype != KVT_DTYPE_FP32; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
        uint32_t fp16 = rest == 0 ? 0 : (rest - (112u << 23)) >> 13;
        half[i] = (uint16_t)(dtype == KVT_DTYPE_BF16 ? bits >> 16 : sign | fp16);
    }
    return half;
}

typedef struct tensor_list {
    safetensors_tensor tensors[64];
    char names[64][80];
    size_t count;
    uint8_t dtype;
} tensor_list;

static void list_add(tensor_list *list, const char *name, const float *data, uint64_t rows,
                     uint64_t elements)
{
    safetensors_tensor *tensor = &list->tensors[list->count];
    snprintf(list->names[list->count], sizeof list->names[0], "%s", name);
    *tensor = (safetensors_tensor){.name = list->names[list->count++],
                                   .dtype = list->dtype,
                                   .rank = rows == 1 ? 1 : 2,
                                   .data = to_dtype(data, elements, list->dtype)};
    tensor->shape[0] = rows == 1 ? elements : rows;
    tensor->shape[1] = rows == 1 ? 0 : elements / rows;
}

static tensor_list *list_model(const naive_model *m, uint8_t dtype)
{
    static const char *const parts[NAIVE_MATRICES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.down_proj",    "mlp.up_proj"};
    tensor_list *list = test_zeros(sizeof *list);
    char name[80];
    size_t table = (size_t)m->c.vocab * m->c.dim;
    list->dtype = dtype;
    list_add(list, "model.embed_tokens.weight", m->embedding, m->c.vocab, table);
    if (!m->c.tied) list_add(list, "lm_head.weight", m->output, m->c.vocab, table);
    list_add(list, "model.norm.weight", m->norm_final, 1, m->c.dim);
    for (uint32_t l = 0; l < m->c.layers; l++) {
        snprintf(name, sizeof name, "model.layers.%u.input_layernorm.weight", l);
        list_add(list, name, m->norm_attention[l], 1, m->c.dim);
        snprintf(name, sizeof name, "model.layers.%u.post_attention_layernorm.weight", l);
        list_add(list, name, m->norm_ffn[l], 1, m->c.dim);
        for (int i = 0; i < NAIVE_MATRICES; i++) {
            size_t rows, count = naive_matrix(&m->c, i, &rows);
            snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, parts[i]);
            list_add(list, name, m->w[l][i], rows, count);
            if (!m->c.biased || i > 2) continue;
            snprintf(name, sizeof name, "model.layers.%u.%s.bias", l, parts[i]);
            list_add(list, name, m->bias[l][i], 1, rows);
        }
    }
    return list;
}

static void write_tensors(const tensor_list *list)
{
    char message[256] = "";
    if (safetensors_write(in_folder("model.safetensors"), list->tensors, list->count, NULL, 0,
                          message, sizeof message) != KVT_OK) {
        fail_msg("%s", message);
    }
}

static const char folder_config[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 20,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 1,"
    " \"head_dim\": 8, \"vocab_size\": 70, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 0.001, \"rope_theta\": 500000.0, \"hidden_act\": \"silu\","
    " \"attention_bias\": false, \"rope_scaling\": null, \"tie_word_embeddings\": %s}";

/* Puts `to` in the place of `from`. */
static void edit(char text[2048], const char *from, const char *to)
{
    char changed[2048];
    const char *place = strstr(text, from);
    assert_non_null(place);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(place - text), text, to,
             place + strlen(from));
    snprintf(text, 2048, "%s", changed);
}

static model_config folder_shape(bool tied)
{
    return (model_config){.dim = 24,
                          .ffn_dim = 20,
                          .layers = 2,
                          .heads = 4,
                          .kv_heads = 1,
                          .head_dim = 8,
                          .vocab = 70,
                          .context = 64,
                          .norm_eps = 1e-3f,
                          .rope_theta = 500000.0,
                          .rope_halves = true,
                          .tied = tied};
}

static naive_model folder_model(bool tied, uint64_t seed)
{
    return naive_make(folder_shape(tied), seed);
}

TEST(folder_agrees_in_every_dtype)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP32, KVT_DTYPE_FP16, KVT_DTYPE_BF16};
    for (size_t i = 0; i < 3; i++) {
        char text[1024];
        naive_model m = folder_model(i == 1, 20 + i);
        tensor_list *list = list_model(&m, dtypes[i]);
        snprintf(text, sizeof text, folder_config, m.c.tied ? "true" : "false");
        write_text("config.json", text);
        write_tensors(list);
        model *loaded = naive_open(folder);
        compare_with_naive(&m, loaded);
        keys_turn_like_the_decoder(&m, loaded);
        model_close(loaded);
    }
}

/* Llama 3.1's rotation, with a pair in each of its three parts. */
TEST(folder_with_scaled_rotation_agrees)
{
    char text[2048];
    naive_model m = folder_model(true, 41);
    m.c.rope_theta = 1000.0;
    m.c.rope_scale = (model_rope_scale){.factor = 8.0, .low = 1.0, .high = 4.0, .context = 64.0};
    assert_true(naive_frequency(&m.c, 0) == 1.0);
    assert_true(naive_frequency(&m.c, 1) < 0.17 && naive_frequency(&m.c, 1) > 0.03);
    snprintf(text, sizeof text, folder_config, "true");
    edit(text, "500000.0", "1000.0");
    edit(text, "\"rope_scaling\": null",
         "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
         "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}");
    write_text("config.json", text);
    write_tensors(list_model(&m, KVT_DTYPE_FP32));
    model *loaded = naive_open(folder);
    compare_with_naive(&m, loaded);
    keys_turn_like_the_decoder(&m, loaded);
    model_close(loaded);
}

/* Biases of q, k and v, and the keys that Qwen2's files have. */
TEST(folder_of_qwen2_agrees)
{
    for (int tied = 0; tied < 2; tied++) {
        char text[2048];
        model_config config = folder_shape(tied == 1);
        config.biased = true;
        naive_model m = naive_make(config, 51);
        tensor_list *list = list_model(&m, tied == 1 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP32);
        snprintf(text, sizeof text, folder_config, tied == 1 ? "true" : "false");
        edit(text, "\"llama\"",
             "\"qwen2\", \"sliding_window\": 32768, \"max_window_layers\": 1, "
             "\"use_sliding_window\": false, \"use_mrope\": false");
        write_text("config.json", text);
        write_tensors(list);
        model *loaded = naive_open(folder);
        compare_with_naive(&m, loaded);
        assert_int_equal(model_parameters(loaded),
                         (tied == 1 ? 1 : 2) * 70 * 24 + 24 +
                             2 * (2 * 24 + 24 * (2 * 32 + 2 * 8 + 3 * 20) + 32 + 2 * 8));
        model_close(loaded);
    }
}

static void refused(const char *path, kvt_status wanted, const char *words)
{
    model *loaded = NULL;
    char message[256] = "";
    kvt_status status = model_open(path, &loaded, message, sizeof message);
    if (status != wanted) {
        fail_msg("%s, not %s: %s", kvt_status_name(status), kvt_status_name(wanted), message);
    }
    assert_null(loaded);
    if (strstr(message, words) == NULL) fail_msg("'%s' is not in '%s'", words, message);
}

TEST(folder_refuses_what_it_cannot_run)
{
    static const struct {
        const char *from, *to;
        kvt_status status;
        const char *words;
    } edits[] = {
        {"\"llama\"", "\"gpt2\"", KVT_E_UNSUPPORTED, "model_type"},
        {"\"silu\"", "\"gelu\"", KVT_E_UNSUPPORTED, "hidden_act"},
        {"\"attention_bias\": false", "\"attention_bias\": true", KVT_E_UNSUPPORTED, "bias"},
        {"\"rope_scaling\": null", "\"rope_scaling\": {}", KVT_E_UNSUPPORTED, "rope_scaling"},
        {"\"hidden_size\": 24", "\"hidden_size\": -24", KVT_E_PARSE, "hidden_size"},
        {"\"hidden_size\": 24", "\"hidden_size\": 24.5", KVT_E_PARSE, "hidden_size"},
        {"\"hidden_size\": 24", "\"hidden_size\": 24, \"hidden_size\": 24", KVT_E_PARSE, "line"},
        {"\"hidden_size\": 24", "\"hidden_size\": 22", KVT_E_CORRUPT, "shape"},
        {"\"hidden_size\": 24", "\"hidden_size\": 65536", KVT_E_CORRUPT, "fewer"},
        {"\"hidden_size\": 24", "\"hidden_size\": 65537", KVT_E_CORRUPT, "width"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", KVT_E_CORRUPT, "kv_heads"},
        {"\"head_dim\": 8", "\"head_dim\": 7", KVT_E_CORRUPT, "head_dim"},
        {"\"rope_theta\": 500000.0", "\"rope_theta\": \"x\"", KVT_E_PARSE, "rope_theta"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", KVT_E_CORRUPT, ""},
        {"{\"model", "[\"model", KVT_E_PARSE, "line 1"},
    };
    naive_model m = folder_model(false, 31);
    tensor_list *list = list_model(&m, KVT_DTYPE_FP32);
    char text[1024], changed[2048];
    write_tensors(list);
    snprintf(text, sizeof text, folder_config, "false");
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        snprintf(changed, sizeof changed, "%s", text);
        edit(changed, edits[i].from, edits[i].to);
        write_text("config.json", changed);
        refused(folder, edits[i].status, edits[i].words);
    }
    snprintf(changed, sizeof changed, "%s", text);
    edit(changed, "\"llama\"", "\"qwen2\"");
    write_text("config.json", changed);
    refused(folder, KVT_E_CORRUPT, "fewer"); /* than there are with biases */
    write_text("config.json", text);
    list->tensors[3].name = "another";
    write_tensors(list);
    refused(folder, KVT_E_CORRUPT, "input_layernorm.weight: is missing");
    (void)unlink(in_folder("model.safetensors"));
    refused(folder, KVT_E_GONE, "model.safetensors");
}

/* ---- running ---- */

TEST(pieces_equal_the_whole)
{
    static const uint32_t steps[] = {1, 7, 64, 149};
    naive_model m = naive_make(naive_config(), 5);
    naive_write(&m, in_folder("model.bin"));
    model *loaded = naive_open(in_folder("model.bin"));
    model_session *session;
    assert_ok(model_session_open(loaded, &session));
    outcome whole = outcome_make(&m.c), again = outcome_make(&m.c);
    outcome_run(session, &whole, 0, TOKENS);
    outcome_run(session, &again, 0, TOKENS);
    /* The same request gives the same bytes. */
    assert_memory_equal(whole.logits, again.logits, (size_t)TOKENS * m.c.vocab * sizeof(float));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        outcome pieces = outcome_make(&m.c);
        for (uint32_t first = 0; first < TOKENS; first += steps[i]) {
            uint32_t left = TOKENS - first;
            outcome_run(session, &pieces, first, left < steps[i] ? left : steps[i]);
        }
        outcomes_agree(&m.c, &pieces, &whole);
    }
    model_session_close(session);
    model_close(loaded);
}

/* A context of `count` tokens of `o`, of which `drop` (or NULL) leaves some out, as fp32 copies. */
static void copy_rows(const model_config *c, const outcome *o, uint32_t count, const uint8_t *kept,
                      float *k[], float *v[], uint32_t *count_out)
{
    size_t row = (size_t)c->kv_heads * c->head_dim;
    for (uint32_t l = 0; l < c->layers; l++) {
        *count_out = 0;
        for (uint32_t t = 0; t < count; t++) {
            if (kept != NULL && kept[t] == 0) continue;
            memcpy(k[l] + *count_out * row, o->k[l] + t * row, row * sizeof(float));
            memcpy(v[l] + *count_out * row, o->v[l] + t * row, row * sizeof(float));
            ++*count_out;
        }
    }
}

/* Tokens masked out give what a context without them gives. */
TEST(dropped_tokens_are_not_seen)
{
    enum { CONTEXT = 100, REST = TOKENS - CONTEXT };
    naive_model m = naive_make(naive_config(), 6);
    naive_write(&m, in_folder("model.bin"));
    model *loaded = naive_open(in_folder("model.bin"));
    model_session *session;
    assert_ok(model_session_open(loaded, &session));
    outcome whole = outcome_make(&m.c), less = outcome_make(&m.c);
    outcome_run(session, &whole, 0, CONTEXT);
    uint8_t kept[2 * CONTEXT];
    const uint8_t *const masks[NAIVE_LAYERS_MAX] = {kept, kept, kept};
    for (uint32_t t = 0; t < CONTEXT; t++)
        kept[t] = kept[CONTEXT + t] = t < 3 || t % 3 != 0;
    model_past past = {.dtype = KVT_DTYPE_FP32};
    copy_rows(&m.c, &whole, CONTEXT, kept, less.k, less.v, &past.tokens);
    assert_int_equal(past.tokens, 67);
    past.k = (const void *const *)less.k;
    past.v = (const void *const *)less.v;
    float *logits = test_zeros((size_t)REST * m.c.vocab * sizeof *logits), most = 0.0f;
    float *masked = test_zeros((size_t)REST * m.c.vocab * sizeof *masked);
    float *full = test_zeros((size_t)REST * m.c.vocab * sizeof *full);
    model_request request = {.tokens = tokens + CONTEXT,
                             .token_count = REST,
                             .first_position = CONTEXT,
                             .past = &past,
                             .logits_count = REST,
                             .logits_out = logits};
    assert_ok(model_forward(session, &request));
    past = (model_past){.tokens = CONTEXT,
                        .dtype = KVT_DTYPE_FP32,
                        .k = (const void *const *)whole.k,
                        .v = (const void *const *)whole.v};
    request.logits_out = full;
    assert_ok(model_forward(session, &request));
    past.kept = masks;
    request.logits_out = masked;
    assert_ok(model_forward(session, &request));
    for (size_t i = 0; i < (size_t)REST * m.c.vocab; i++) {
        assert_close((double)masked[i], (double)logits[i], 2e-5, "masked logit");
        most = fmaxf(most, fabsf(masked[i] - full[i]));
    }
    assert_true(most > 1e-2f); /* dropping does change something */
    model_session_close(session);
    model_close(loaded);
}

/* 16-bit KV gives the bytes that the same values in fp32 give. */
TEST(half_precision_past_is_decoded)
{
    enum { CONTEXT = 40 };
    naive_model m = naive_make(naive_config(), 7);
    naive_write(&m, in_folder("model.bin"));
    model *loaded = naive_open(in_folder("model.bin"));
    model_session *session;
    assert_ok(model_session_open(loaded, &session));
    size_t count = (size_t)CONTEXT * m.c.kv_heads * m.c.head_dim;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        uint16_t half[NAIVE_LAYERS_MAX][2][CONTEXT * 12];
        const void *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX];
        float single[70], decoded[70];
        outcome o = outcome_make(&m.c);
        outcome_run(session, &o, 0, CONTEXT);
        assert_int_equal(count, CONTEXT * 12);
        for (uint32_t l = 0; l < m.c.layers; l++) {
            for (size_t i = 0; i < 2 * count; i++) {
                float *value = i < count ? &o.k[l][i] : &o.v[l][i - count];
                uint16_t bits = bf16 ? half_bf16_from_float(*value) : half_from_float(*value);
                half[l][i >= count][i % count] = bits;
                *value = bf16 ? half_bf16_to_float(bits) : half_to_float(bits);
            }
            k[l] = half[l][0];
            v[l] = half[l][1];
        }
        model_past past = {.tokens = CONTEXT,
                           .dtype = KVT_DTYPE_FP32,
                           .k = (const void *const *)o.k,
                           .v = (const void *const *)o.v};
        model_request request = {.tokens = tokens,
                                 .token_count = 1,
                                 .first_position = CONTEXT,
                                 .past = &past,
                                 .logits_count = 1,
                                 .logits_out = single};
        assert_ok(model_forward(session, &request));
        past.dtype = bf16 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP16;
        past.k = k;
        past.v = v;
        request.logits_out = decoded;
        assert_ok(model_forward(session, &request));
        assert_memory_equal(single, decoded, sizeof single);
    }
    model_session_close(session);
    model_close(loaded);
}

TEST(wrong_requests_are_refused)
{
    naive_model m = naive_make(naive_config(), 8);
    naive_write(&m, in_folder("model.bin"));
    model *loaded = naive_open(in_folder("model.bin"));
    model_session *session;
    float logits[70];
    const uint32_t beyond[] = {1, 70};
    model_past fp8 = {.dtype = KVT_DTYPE_FP8};
    assert_ok(model_session_open(loaded, &session));
    const model_request wrong[] = {
        {.tokens = beyond, .token_count = 2},
        {.tokens = tokens, .token_count = 0},
        {.tokens = tokens,
         .token_count = 2,
         .logits_first = 2,
         .logits_count = 1,
         .logits_out = logits},
        {.tokens = tokens, .token_count = 2, .queries_first = 3},
        {.tokens = tokens, .token_count = 2, .past = &fp8},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(model_forward(session, &wrong[i]), KVT_E_ARGUMENT);
    model_session_close(session);
    model_close(loaded);
}

static uint8_t *read_model(size_t *size_out)
{
    FILE *file = fopen(in_folder("model.bin"), "rb");
    uint8_t *bytes = test_alloc(1 << 20);
    assert_non_null(file);
    *size_out = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void write_model(const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(in_folder("model.bin"), "wb");
    assert_non_null(file);
    naive_put(file, bytes, size);
    assert_int_equal(fclose(file), 0);
}

/* Headers of any value and files of any length are refused, or load as what they say. */
TEST(hostile_files_are_refused)
{
    static const int32_t values[] = {0, -1, 1, 3, INT32_MIN, INT32_MAX, 65536, 1 << 20};
    for (int ternary = 0; ternary < 2; ternary++) {
        model_config config = naive_config();
        config.tied = config.bare_norm = ternary == 1;
        naive_model m = naive_make(config, 11);
        if (ternary)
            write_ternary(&m, in_folder("model.bin"));
        else
            naive_write(&m, in_folder("model.bin"));
        size_t size, head = ternary ? 8 : 0;
        uint8_t *bytes = read_model(&size);
        for (size_t cut = 0; cut < size; cut += cut < 300 ? 1 : 997) {
            write_model(bytes, cut);
            refused(in_folder("model.bin"), KVT_E_CORRUPT, "model.bin: ");
        }
        for (size_t field = 0; field < 7; field++) {
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
                int32_t before;
                memcpy(&before, bytes + head + 4 * field, 4);
                memcpy(bytes + head + 4 * field, &values[i], 4);
                write_model(bytes, size);
                if (values[i] != before &&
                    !(ternary && field == 6 && values[i] > 0 && values[i] <= 1 << 30)) {
                    refused(in_folder("model.bin"), KVT_E_CORRUPT, "model.bin: ");
                }
                memcpy(bytes + head + 4 * field, &before, 4);
            }
        }
        const float infinite = INFINITY;
        memcpy(bytes + size - (ternary ? size - 256 : 4), &infinite, 4);
        write_model(bytes, size);
        refused(in_folder("model.bin"), KVT_E_CORRUPT, "infinite");
    }
}

TEST(ternary_refuses_other_versions)
{
    model_config config = naive_config();
    config.tied = config.bare_norm = true;
    naive_model m = naive_make(config, 12);
    write_ternary(&m, in_folder("model.bin"));
    size_t size;
    uint8_t *bytes = read_model(&size);
    bytes[4] = 2;
    write_model(bytes, size);
    refused(in_folder("model.bin"), KVT_E_UNSUPPORTED, "version 2");
    bytes[4] = 1;
    bytes[36] = 0;
    write_model(bytes, size);
    refused(in_folder("model.bin"), KVT_E_CORRUPT, "shared");
    bytes[36] = 1;
    bytes[200] = 1;
    write_model(bytes, size);
    refused(in_folder("model.bin"), KVT_E_CORRUPT, "a field that is not known");
    bytes[200] = 0;
    bytes[size - 1] = 0x80;
    write_model(bytes, size);
    refused(in_folder("model.bin"), KVT_E_CORRUPT, "code");
}

/* ---- fp16 and bf16 ---- */

/* Every 16-bit value survives; between two neighbours the nearer wins, at the middle the even. */
TEST(halves_round_to_nearest)
{
    for (uint32_t bits = 0; bits < 0x10000u; bits++) {
        uint16_t half = (uint16_t)bits;
        float fp16 = half_to_float(half), bf16 = half_bf16_to_float(half);
        if (isnan(fp16))
            assert_true(isnan(half_to_float(half_from_float(fp16))));
        else
            assert_int_equal(half_from_float(fp16), half);
        if (isnan(bf16))
            assert_true(isnan(half_bf16_to_float(half_bf16_from_float(bf16))));
        else
            assert_int_equal(half_bf16_from_float(bf16), half);
    }
    for (uint16_t half = 0; half < 0x7bffu; half++) {
        float low = half_to_float(half), high = half_to_float((uint16_t)(half + 1));
        float middle = (low + high) / 2.0f;
        assert_int_equal(half_from_float(middle), half + (half & 1));
        assert_int_equal(half_from_float(nextafterf(middle, 0.0f)), half);
        assert_int_equal(half_from_float(-nextafterf(middle, high)), 0x8000 | (half + 1));
    }
    assert_true(half_to_float(1) == 0x1p-24f && half_to_float(0x7bff) == 65504.0f);
    assert_int_equal(half_from_float(65519.0f), 0x7bff);
    assert_int_equal(half_from_float(65520.0f), 0x7c00);
    assert_int_equal(half_bf16_from_float(1.00390625f), 0x3f80); /* half a step: to the even one */
    assert_int_equal(half_bf16_from_float(1.01171875f), 0x3f82);
}
