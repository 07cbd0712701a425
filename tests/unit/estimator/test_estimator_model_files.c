/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model_files.c - whatever a model's files hold is understood, known to change
 * nothing, or an error that names it: keys of config.json, tensors, files beside the weights, and
 * the rotation in a file of llama2.c.
 */
#include "model_folder.h"
#include "model_support.h"

#include "estimator/model/model_internal.h"
#include "estimator/model/model_tensors.h"

#include <unistd.h>

static void write_text(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    naive_put(file, text, strlen(text));
    assert_int_equal(fclose(file), 0);
}

static void refused(const char *path, kvt_status wanted, const char *words)
{
    model *loaded = NULL;
    char message[256] = "";
    const kvt_status status = model_open(path, &loaded, message, sizeof message);
    assert_null(loaded);
    if (status != wanted || strstr(message, words) == NULL)
        fail_msg("%s, not %s of '%s': %s", kvt_status_name(status), kvt_status_name(wanted), words,
                 message);
}

/* ---- config.json ---- */

#define THETA "\"rope_theta\": 500000.0"

static const char config_text[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 20,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 1,"
    " \"head_dim\": 8, \"vocab_size\": 70, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 0.001, " THETA ", \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": false}";

/* The file with one place changed. */
static kvt_status read_edited(const char *from, const char *to, model_config *config,
                              char message[256])
{
    char changed[2048];
    const char *place = strstr(config_text, from);
    assert_non_null(place);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(place - config_text), config_text, to,
             place + strlen(from));
    write_text("config.json", changed);
    message[0] = '\0';
    return model_config_read(in_folder("config.json"), config, message, 256);
}

#define VERSION_5 "\"transformers_version\": \"5.19.0\""
/* Llama 3.1's rotation: its type, and the numbers from the first factor on. */
#define LLAMA3 "\"rope_type\": \"llama3\", "
#define ODD(factor, low, high, context)                                                            \
    "\"rope_parameters\": {" LLAMA3 THETA ", \"factor\": " factor ", \"low_freq_factor\": " low    \
    ", \"high_freq_factor\": " high ", \"original_max_position_embeddings\": " context "}"
#define SCALED                                                                                     \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                       \
    "\"original_max_position_embeddings\": 512"
/* A key more; another base; something else changed. */
#define MORE(text, words)                                                                          \
    {                                                                                              \
        "\"head_dim\": 8", "\"head_dim\": 8, " text, KVT_E_UNSUPPORTED, words                      \
    }
#define ROPE(text, status, words)                                                                  \
    {                                                                                              \
        THETA, text, status, words                                                                 \
    }

static const struct {
    const char *from, *to;
    kvt_status status;
    const char *words;
} refusals[] = {
    {"\"hidden_size\"", "\"hidden\"", KVT_E_UNSUPPORTED, "hidden: 24 is no setting"},
    {": false}", ": 1}", KVT_E_UNSUPPORTED, "tie_word_embeddings: 1 is not supported, but one of"},
    {": false}", ": null}", KVT_E_UNSUPPORTED, "tie_word_embeddings: null"},
    {": false}", ": false, \"vocab_size\": 70}", KVT_E_PARSE, "duplicate"},
    {": false}", ": false} x", KVT_E_PARSE, "line 1"},
    {"0.001", "null", KVT_E_PARSE, "rms_norm_eps: no number"},
    {"0.001", "NaN", KVT_E_PARSE, "line 1"},
    {"0.001", "1e999", KVT_E_PARSE, "line 1"},
    {"0.001", "true", KVT_E_PARSE, "rms_norm_eps: no number"},
    {"layers\": 2", "layers\": 2.0", KVT_E_PARSE, "num_hidden_layers: no positive whole"},
    {"layers\": 2", "layers\": true", KVT_E_PARSE, "num_hidden_layers: no positive whole"},
    {"\"vocab_size\": 70, ", "", KVT_E_PARSE, "vocab_size: is missing"},
    {"\"model_type\": \"llama\", ", "", KVT_E_UNSUPPORTED, "model_type: is missing"},
    {"\"llama\"", "\"qwen3\"", KVT_E_UNSUPPORTED, "model_type: \"qwen3\" is not supported"},
    {"\"llama\"", "\"qwen2\", \"use_sliding_window\": true", KVT_E_UNSUPPORTED,
     "use_sliding_window: true is not supported"},
    {"\"llama\"", "\"qwen2\", \"layer_types\": [\"sliding_attention\"]", KVT_E_UNSUPPORTED,
     "layer_types: [\"sliding_attention\"]"},
    {"\"llama\"", "\"mistral\", \"use_sliding_window\": false, \"sliding_window\": 64",
     KVT_E_UNSUPPORTED, "sliding_window: 64"},
    {"\"num_key_value_heads\": 1", "\"model_type\": \"qwen2\"", KVT_E_PARSE, "duplicate"},
    {"\"llama\"", "null", KVT_E_UNSUPPORTED, "model_type: null"},
    {"\"llama\"", "\"mistral\"", KVT_E_UNSUPPORTED, "sliding_window: is missing"},
    {"\"num_key_value_heads\": 1", "\"model_types\": 1", KVT_E_UNSUPPORTED, "model_types"},
    ROPE("\"rope_scaling\": {" LLAMA3 "\"factor\": 8.0}, " THETA, KVT_E_UNSUPPORTED,
         "low_freq_factor: is missing"),
    ROPE("\"rope_scaling\": {" LLAMA3 SCALED ", \"beta_fast\": 32}, " THETA, KVT_E_UNSUPPORTED,
         "rope_scaling.beta_fast: 32 is no setting"),
    ROPE("\"rope_scaling\": {" SCALED "}, " THETA, KVT_E_UNSUPPORTED,
         "rope_scaling: has no rope_type"),
    ROPE("\"rope_scaling\": {\"type\": \"default\", " LLAMA3 SCALED "}, " THETA, KVT_E_CORRUPT,
         "rope_scaling: has two types that differ"),
    ROPE("\"rope_scaling\": {" LLAMA3 SCALED "}, \"rope_parameters\": {" THETA "}", KVT_E_CORRUPT,
         "rope_scaling: differs from rope_parameters"),
    ROPE("\"rope_scaling\": {" LLAMA3 SCALED "}", KVT_E_UNSUPPORTED, "rope_theta: is neither"),
    ROPE("\"rope_parameters\": {" SCALED ", " THETA "}", KVT_E_UNSUPPORTED,
         "rope_parameters.factor: 8.0 is no setting"),
    ROPE("\"rope_parameters\": {" LLAMA3 THETA ", \"factor\": true}", KVT_E_PARSE,
         "factor: no number"),
    ROPE(ODD("0", "1", "4", "512"), KVT_E_CORRUPT, "the rope factor is outside"),
    ROPE(ODD("0.5", "1", "4", "512"), KVT_E_CORRUPT, "the rope factor is outside"),
    ROPE(ODD("-8", "1", "4", "512"), KVT_E_CORRUPT, "the rope factor is outside"),
    ROPE(ODD("8", "4", "4", "512"), KVT_E_CORRUPT, "do not ascend"),
    ROPE(ODD("8", "0", "4", "512"), KVT_E_CORRUPT, "do not ascend"),
    ROPE(ODD("8", "1", "1e7", "512"), KVT_E_CORRUPT, "do not ascend"),
    ROPE(ODD("8", "1", "4", "0"), KVT_E_CORRUPT, "the rope's original context"),
    ROPE(ODD("8", "1", "4", "1e10"), KVT_E_CORRUPT, "the rope's original context"),
    ROPE(ODD("8", "1", "4", "\"512\""), KVT_E_PARSE, "original_max_position_embeddings: no number"),
    ROPE("\"rope_scaling\": {\"factor\": 8.0, \"type\": \"linear\"}, " THETA, KVT_E_UNSUPPORTED,
         "rope_scaling.type: \"linear\" is not supported"),
    ROPE("\"rope_scaling\": {\"type\": \"default\", \"factor\": 8.0}, " THETA, KVT_E_UNSUPPORTED,
         "rope_scaling.factor: 8.0 is no setting"),
    ROPE("\"rope_scaling\": {}, " THETA, KVT_E_UNSUPPORTED, "rope_scaling: has no rope_type"),
    ROPE("\"rope_parameters\": {\"rope_type\": \"yarn\", " THETA "}", KVT_E_UNSUPPORTED,
         "rope_parameters.rope_type: \"yarn\" is not supported, but one of: default llama3"),
    ROPE("\"rope_parameters\": {\"full_attention\": {" THETA "}}", KVT_E_UNSUPPORTED,
         "rope_parameters.full_attention: rotary positions of a kind of layers"),
    ROPE("\"rope_parameters\": {" THETA ", \"partial_rotary_factor\": 0.5}", KVT_E_UNSUPPORTED,
         "rope_parameters.partial_rotary_factor: 0.5"),
    ROPE("\"rope_parameters\": [1], " THETA, KVT_E_PARSE, "rope_parameters: no object"),
    ROPE("\"rope_parameters\": {\"rope_theta\": \"x\"}", KVT_E_PARSE, "rope_theta: no number"),
    ROPE("\"rope_parameters\": {\"rope_theta\": 0}", KVT_E_CORRUPT, "the rope base"),
    ROPE("\"rope_parameters\": {\"rope_theta\": 10000.0}, " THETA, KVT_E_CORRUPT,
         "rope_theta: two that differ"),
    ROPE("\"rope_theta\": 0.5", KVT_E_CORRUPT, "the rope base is outside"),
    ROPE("\"rope_theta\": null, \"transformers_version\": \"4.40.0\"", KVT_E_PARSE, "no number"),
    ROPE("\"use_cache\": true", KVT_E_UNSUPPORTED, "rope_theta: is neither there nor in"),
    ROPE(VERSION_5, KVT_E_UNSUPPORTED, "rope_theta: is neither there nor in"),
    ROPE(VERSION_5 ", \"rope_parameters\": {\"rope_type\": \"default\"}", KVT_E_UNSUPPORTED,
         "rope_theta: is neither there nor in"),
    MORE("\"logit_scale\": 0.1", "logit_scale: 0.1"),
    MORE("\"logit_scale\": true", "logit_scale: true"),
    MORE("\"attention_bias\": true", "attention_bias: true"),
    MORE("\"attention_bias\": 0", "attention_bias: 0"),
    MORE("\"mlp_bias\": true", "mlp_bias: true"),
    MORE("\"pretraining_tp\": 2", "pretraining_tp: 2"),
    MORE("\"sliding_window\": 64", "sliding_window: 64"),
    MORE("\"max_window_layers\": 1", "max_window_layers: 1 is no setting"),
    MORE("\"use_mrope\": true", "use_mrope: true"),
    MORE("\"sliding_window\": \"null\"", "sliding_window: \"null\""),
    MORE("\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "layer_types"),
    MORE("\"layer_types\": []", "layer_types"),
    MORE("\"quantization_config\": {\"bits\": 4}", "quantization_config: {\"bits\":4}"),
    MORE("\"auto_map\": {\"AutoModel\": \"m.M\"}", "auto_map"),
    MORE("\"architectures\": [\"LlamaForSequenceClassification\"]", "architectures"),
    MORE("\"torch_dtype\": \"float8_e4m3fn\"", "torch_dtype"),
    MORE("\"pruned_heads\": {\"1\": [0]}", "pruned_heads"),
    MORE("\"\": 1", ": 1 is no setting"),
    MORE("\"a_setting_of_tomorrow\": {\"b\": [1, 2]}",
         "a_setting_of_tomorrow: {\"b\":[1,2]} is no setting that the decoder knows"),
};

TEST_ALL(make_folder, remove_folder);

TEST(settings_are_known_or_named)
{
    model_config config;
    char message[256];
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const kvt_status status = read_edited(refusals[i].from, refusals[i].to, &config, message);
        if (status != refusals[i].status || strstr(message, refusals[i].words) == NULL)
            fail_msg("%s: %s '%s'", refusals[i].to, kvt_status_name(status), message);
    }
}

/* Spellings of the same model, keys that change nothing, and what an absent key means. */
TEST(settings_that_change_nothing)
{
    static const struct {
        const char *from, *to;
        double theta;
    } edits[] = {
        {THETA, "\"rope_parameters\": {\"rope_type\": \"default\", " THETA "}", 500000.0},
        {THETA, VERSION_5 ", \"rope_parameters\": {" THETA "}", 500000.0},
        {THETA, "\"rope_parameters\": {\"type\": \"default\"}, " THETA, 500000.0},
        {THETA, "\"rope_scaling\": {\"rope_type\": \"default\"}, " THETA, 500000.0},
        {THETA, THETA ", \"rope_parameters\": null, \"rope_scaling\": null", 500000.0},
        {THETA, THETA ", \"rope_parameters\": {" THETA "}", 500000.0},
        {THETA, "\"transformers_version\": \"4.28.1\"", 10000.0},
        {THETA, "\"transformers_version\": \"4.57.3\"", 10000.0},
        {"\"llama\"", "\"mistral\", \"sliding_window\": null", 500000.0},
        {"\"llama\"", "\"qwen2\"", 500000.0},
        {"\"llama\"", "\"qwen2\", \"sliding_window\": 32768, \"max_window_layers\": 28", 500000.0},
        {"\"silu\"", "\"swish\"", 500000.0},
        {", \"hidden_act\": \"silu\"", "", 500000.0},
        {"\"head_dim\": 8",
         "\"head_dim\": 8, \"mlp_bias\": false, \"pretraining_tp\": 1, \"logit_scale\": 1.0, "
         "\"layer_types\": [\"full_attention\", \"full_attention\"], \"sliding_window\": null, "
         "\"partial_rotary_factor\": 1, \"architectures\": [\"LlamaForCausalLM\"], "
         "\"torch_dtype\": \"bfloat16\", \"is_llama_config\": true, \"rope_interleaved\": false, "
         "\"initializer_range\": 0.02, \"eos_token_id\": [1, 2], \"pruned_heads\": {}",
         500000.0},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        model_config config;
        char message[256];
        if (read_edited(edits[i].from, edits[i].to, &config, message) != KVT_OK)
            fail_msg("%s: '%s'", edits[i].to, message);
        assert_true(config.rope_theta == edits[i].theta && config.norm_eps == 0.001f);
        assert_true(config.dim == 24 && config.head_dim == 8 && !config.tied);
        assert_true(config.biased == (strstr(edits[i].to, "qwen2") != NULL));
    }
}

/* Both spellings of Llama 3.1's rotation, and both beside each other. */
TEST(scaled_rotation_in_every_spelling)
{
    static const char *const spellings[] = {
        "\"rope_scaling\": {" LLAMA3 SCALED "}, " THETA,
        "\"rope_scaling\": {" SCALED ", \"type\": \"llama3\"}, " THETA,
        "\"rope_parameters\": {" LLAMA3 SCALED ", " THETA "}",
        "\"rope_parameters\": {" LLAMA3 SCALED ", \"partial_rotary_factor\": 1.0}, " THETA,
        "\"rope_scaling\": {" LLAMA3 SCALED "}, \"rope_parameters\": {" LLAMA3 SCALED ", " THETA
        "}"};
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        model_config config;
        char message[256];
        if (read_edited(THETA, spellings[i], &config, message) != KVT_OK)
            fail_msg("%s: '%s'", spellings[i], message);
        const model_rope_scale *s = &config.rope_scale;
        assert_true(s->factor == 8.0 && s->low == 1.0 && s->high == 4.0 && s->context == 512.0);
        assert_true(config.rope_theta == 500000.0);
        /* 81 turns in 512 tokens stay; 3.1 do by 0.69; 0.1 are slowed down. */
        assert_true(model_frequency(&config, 0) == 1.0);
        assert_true(fabs(model_frequency(&config, 1) - 0.027344) < 1e-6);
        assert_true(fabs(model_frequency(&config, 2) * 8.0 - pow(500000.0, -0.5)) < 1e-12);
    }
}

/* ---- tensors and other files ---- */

static const char *reference_file(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/reference_model/model/%s", getenv("KVT_SOURCE_DIR"), name);
    return path;
}

static void write_reference_config(void)
{
    model_map map;
    char text[4096];
    assert_ok(model_map_open(reference_file("config.json"), &map, NULL, 0));
    snprintf(text, sizeof text, "%.*s", (int)map.size, (const char *)map.bytes);
    model_map_close(&map);
    write_text("config.json", text);
}

enum { TENSORS = 64, HALF = 16 /* pairs of a head of the reference model */ };

static void put_file(const char *name, const safetensors_tensor *tensors, size_t count)
{
    char message[256] = "";
    if (safetensors_write(in_folder(name), tensors, count, NULL, 0, message, sizeof message) !=
        KVT_OK)
        fail_msg("%s", message);
}

static void put_tensors(const safetensors_tensor *tensors, size_t count)
{
    put_file("model.safetensors", tensors, count);
}

/* What a tensor without a place in the model says must be what the model is. */
TEST(tensors_without_a_place)
{
    static const char *const names[] = {
        "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias",
        "model.layers.4.input_layernorm.weight", "model.layers.0.self_attn.q_norm.weight"};
    safetensors_tensor tensors[TENSORS];
    safetensors *file = NULL;
    float frequencies[HALF];
    char message[256] = "";
    size_t count;
    assert_ok(
        safetensors_open(reference_file("model.safetensors"), &file, message, sizeof message));
    write_reference_config();
    for (count = 0; count < safetensors_count(file); count++)
        tensors[count] = *safetensors_at(file, count);
    assert_true(count < TENSORS - 2);
    safetensors_tensor *head = &tensors[count++], *turned = &tensors[count++];
    *head = *safetensors_find(file, "model.embed_tokens.weight");
    head->name = "lm_head.weight";
    *turned = (safetensors_tensor){.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                   .dtype = KVT_DTYPE_FP32,
                                   .rank = 1,
                                   .shape = {HALF},
                                   .data = frequencies};
    for (uint32_t i = 0; i < HALF; i++)
        frequencies[i] = (float)pow(500000.0, -(double)i / HALF);
    put_tensors(tensors, count);
    model_close(naive_open(folder));
    head->data = (const uint8_t *)head->data + 2;
    put_tensors(tensors, count);
    refused(folder, KVT_E_UNSUPPORTED, "lm_head.weight: is not the embedding");
    head->data = (const uint8_t *)head->data - 2;
    for (uint32_t i = 0; i < HALF; i++)
        frequencies[i] = (float)pow(10000.0, -(double)i / HALF);
    put_tensors(tensors, count);
    refused(folder, KVT_E_UNSUPPORTED, "inv_freq: are not the frequencies");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        turned->name = names[i];
        put_tensors(tensors, count);
        refused(folder, KVT_E_UNSUPPORTED, names[i]);
    }
    safetensors_close(file);
}

/* What somebody takes for a model, and what lies beside one and would change it. */
TEST(other_kinds_are_named)
{
    write_reference_config();
    write_text("model.safetensors", "not looked at");
    write_text("adapter_config.json", "{}");
    refused(folder, KVT_E_UNSUPPORTED, "adapter_config.json: an adapter");
    (void)unlink(in_folder("adapter_config.json"));
    refused(in_folder("model.safetensors"), KVT_E_CORRUPT, "the model is the folder");
    refused("meta-llama/Llama-3.1-8B", KVT_E_GONE, "a model is a folder of this machine");
    write_text("model.bin", "GGUF and so on, and more than a header of seven numbers");
    refused(in_folder("model.bin"), KVT_E_CORRUPT, "convert_gguf.py");
    (void)unlink(in_folder("model.safetensors"));
    write_text("pytorch_model.bin.index.json", "{}");
    refused(folder, KVT_E_UNSUPPORTED, "weights that are not safetensors");
    (void)unlink(in_folder("pytorch_model.bin.index.json"));
    write_text("pytorch_model.bin", "{}");
    refused(folder, KVT_E_UNSUPPORTED, "weights that are not safetensors");
    (void)unlink(in_folder("pytorch_model.bin"));
    refused(folder, KVT_E_GONE, "model.safetensors");
}

/* ---- weights in several files ---- */

#define INDEX "model.safetensors.index.json"

static const char *const shard_names[] = {"model-00001-of-00002.safetensors",
                                          "model-00002-of-00002.safetensors"};

/* The reference model's tensors in turn in one of two files. */
typedef struct shards {
    safetensors *file;
    safetensors_tensor tensors[2][TENSORS];
    size_t count[2];
} shards;

static void shards_open(shards *s)
{
    char message[256] = "";
    s->count[0] = s->count[1] = 0;
    assert_ok(
        safetensors_open(reference_file("model.safetensors"), &s->file, message, sizeof message));
    for (size_t i = 0; i < safetensors_count(s->file); i++)
        s->tensors[i % 2][s->count[i % 2]++] = *safetensors_at(s->file, i);
    write_reference_config();
}

static void shards_put(const shards *s)
{
    for (size_t f = 0; f < 2; f++)
        put_file(shard_names[f], s->tensors[f], s->count[f]);
}

/* The index of both files; `first` where that is not NULL instead of the first entry, and `more`
 * before all. */
static void put_index(const shards *s, const char *first, const char *more)
{
    FILE *file = fopen(in_folder(INDEX), "wb");
    const char *comma = *more != '\0' ? ", " : "";
    assert_non_null(file);
    (void)fprintf(file, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s", more);
    for (size_t i = 0; i < s->count[0] + s->count[1]; i++) {
        const size_t f = i % 2;
        if (i == 0 && first != NULL) {
            (void)fprintf(file, "%s%s", comma, first);
            if (*first == '\0') continue;
        } else {
            (void)fprintf(file, "%s\"%s\": \"%s\"", comma, s->tensors[f][i / 2].name,
                          shard_names[f]);
        }
        comma = ", ";
    }
    (void)fputs("}}", file);
    assert_int_equal(fclose(file), 0);
}

static void shards_remove(shards *s)
{
    safetensors_close(s->file);
    (void)unlink(in_folder(INDEX));
    for (size_t f = 0; f < 2; f++)
        (void)unlink(in_folder(shard_names[f]));
}

/* The same weights as of one file; files that the index does not name are not looked at. */
TEST(weights_in_several_files)
{
    char path[512];
    shards s;
    snprintf(path, sizeof path, "%s/reference_model/model", getenv("KVT_SOURCE_DIR"));
    model *whole = naive_open(path);
    shards_open(&s);
    shards_put(&s);
    put_index(&s, NULL, "");
    write_text("consolidated.safetensors", "not looked at");
    model *loaded = naive_open(folder);
    assert_int_equal(model_digest(loaded), model_digest(whole));
    model_close(loaded);
    write_text("model.safetensors", "goes before the index");
    refused(folder, KVT_E_CORRUPT, "model.safetensors: ");
    (void)unlink(in_folder("model.safetensors"));
    (void)unlink(in_folder("consolidated.safetensors"));
    shards_remove(&s);
    model_close(whole);
}

TEST(indexes_that_do_not_fit_their_files)
{
    static const char *const away[] = {"/etc/model.safetensors",
                                       "../model.safetensors",
                                       "sub/model.safetensors",
                                       "..",
                                       ".safetensors",
                                       ".hidden.safetensors",
                                       "",
                                       "model.bin",
                                       "a\\\\b.safetensors",
                                       "a\\nb.safetensors"};
    shards s;
    char text[256];
    shards_open(&s);
    shards_put(&s);
    const char *name = s.tensors[0][0].name;
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
        snprintf(text, sizeof text, "\"%s\": \"%s\"", name, away[i]);
        put_index(&s, text, "");
        refused(folder, KVT_E_PARSE, "is no name of a .safetensors file");
    }
    snprintf(text, sizeof text, "\"%s\": 1", name);
    put_index(&s, text, "");
    refused(folder, KVT_E_PARSE, "is no name of a .safetensors file");
    snprintf(text, sizeof text, "\"%s\": \"%s\"", name, shard_names[1]);
    put_index(&s, text, "");
    refused(folder, KVT_E_CORRUPT, "is in model-00001-of-00002.safetensors instead of");
    put_index(&s, "", "");
    refused(folder, KVT_E_CORRUPT, "is in model-00001-of-00002.safetensors and not in the index");
    put_index(&s, NULL, "\"zzz\": \"model-00001-of-00002.safetensors\"");
    refused(folder, KVT_E_CORRUPT, "zzz: is not in model-00001-of-00002.safetensors, nor in");
    put_index(&s, NULL, "\"a\": \"model-00003-of-00002.safetensors\"");
    refused(folder, KVT_E_GONE, "model-00003-of-00002.safetensors");
    snprintf(text, sizeof text, "\"%s\": \"%s\"", name, shard_names[0]);
    put_index(&s, NULL, text);
    refused(folder, KVT_E_PARSE, "duplicate");
    put_index(&s, NULL, "");
    s.tensors[1][s.count[1]++] = s.tensors[0][1];
    shards_put(&s);
    refused(folder, KVT_E_CORRUPT, "safetensors and in model-0000");
    put_file(shard_names[1], s.tensors[1], s.count[1] - 2);
    refused(folder, KVT_E_CORRUPT, "nor in another file");
    write_text(shard_names[1], "no safetensors");
    refused(folder, KVT_E_CORRUPT, "model-00002-of-00002.safetensors");
    shards_remove(&s);
}

TEST(files_that_are_no_index)
{
    static const struct {
        const char *text;
        kvt_status status;
        const char *words;
    } files[] = {
        {"{", KVT_E_PARSE, "line 1"},
        {"[]", KVT_E_PARSE, "no object"},
        {"{}", KVT_E_PARSE, "has no weight_map"},
        {"{\"weight_map\": []}", KVT_E_PARSE, "has no weight_map"},
        {"{\"weight_map\": {}}", KVT_E_CORRUPT, "names no tensor"},
        {"{\"weight_map\": {\"a\": \"a.safetensors\"}, \"b\": 1}", KVT_E_PARSE, "b: is nothing"},
    };
    model_index index;
    char message[256];
    write_reference_config();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_text(INDEX, files[i].text);
        refused(folder, files[i].status, files[i].words);
    }
    write_text(INDEX, "");
    refused(folder, KVT_E_CORRUPT, INDEX);
    (void)unlink(in_folder(INDEX));
    /* One file too many. */
    static char text[32 * (MODEL_FILES_MAX + 2)];
    size_t length = 0;
    for (uint32_t i = 0; i <= MODEL_FILES_MAX; i++)
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%s\"%u\": \"%u.safetensors\"",
                             i == 0 ? "{\"weight_map\": {" : ",", (unsigned)i, (unsigned)i);
    (void)snprintf(text + length, sizeof text - length, "}}");
    assert_int_equal(
        model_index_parse("index", text, strlen(text), &index, message, sizeof message),
        KVT_E_CORRUPT);
    assert_non_null(strstr(message, "more than 1024 files"));
    assert_null(index.root);
}

/* ---- llama2.c ---- */

/* The factors of the rotation, which are not read, are those that are computed, or zero. */
TEST(rotation_is_that_of_the_base)
{
    model_config config = naive_config();
    config.tied = true;
    naive_model m = naive_make(config, 15);
    const size_t pairs = m.c.head_dim / 2, half = m.c.context * pairs;
    float *factors = test_zeros(2 * half * sizeof *factors);
    naive_write(&m, in_folder("model.bin"));
    model_close(naive_open(in_folder("model.bin")));
    for (int filled = 0; filled < 2; filled++) {
        for (size_t i = 0; filled && i < half; i++) {
            const double angle =
                (double)(i / pairs) * pow(500000.0, -2.0 * (double)(i % pairs) / m.c.head_dim);
            factors[i] = (float)cos(angle);
            factors[half + i] = (float)sin(angle);
        }
        FILE *file = fopen(in_folder("model.bin"), "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, -(long)(2 * half * sizeof *factors), SEEK_END), 0);
        naive_put(file, factors, 2 * half * sizeof *factors);
        assert_int_equal(fclose(file), 0);
        if (!filled) model_close(naive_open(in_folder("model.bin")));
    }
    refused(in_folder("model.bin"), KVT_E_UNSUPPORTED, "not that of base 10000");
}
