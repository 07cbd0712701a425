/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_config.c - config.json of a HF folder as a model_config. Every key is read here, or stands
 * in a table as one that cannot change what the decoder computes, either with any value or with the
 * values named; any other key is an error that names it. A default is taken only where every
 * version of transformers that leaves the key out means the same by it. Thread rule: see model.h.
 */
#include "estimator/model/model_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_CONFIG_BYTES_MAX (UINT64_C(1) << 20)

enum { CONFIG_VALUE_BYTES = 80 };

/* A config.json that is being read. */
typedef struct config_file {
    const char *path;
    char *message;
    size_t message_size;
    const json_t *root;
    const char *family; /* model_type; NULL until it is known */
} config_file;

/* Keys of config.json, one word for why they may be there, and their values: NULL, any; else the
 * neutral ones. Names and values have blanks between them. Of an array each element is a value. */
typedef struct config_key {
    const char *reason, *values, *names;
} config_key;

#define CONFIG_READ "read" /* by the functions below, which judge the value */

static const config_key config_keys[] = {
    {CONFIG_READ, "llama mistral qwen2", "model_type"},
    {CONFIG_READ, "silu swish", "hidden_act"},
    {CONFIG_READ, "true false", "tie_word_embeddings"},
    {CONFIG_READ, NULL,
     "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
     "head_dim vocab_size max_position_embeddings rms_norm_eps rope_theta rope_scaling "
     "rope_parameters transformers_version"},
    /* Neutral with these values alone: others are another forward pass. */
    {"class", "null LlamaForCausalLM LLaMAForCausalLM MistralForCausalLM Qwen2ForCausalLM",
     "architectures"},
    {"class", "null true", "is_llama_config"},
    {"code", "null {}", "auto_map"},
    {"bias", "null false", "attention_bias mlp_bias bias qkv_bias"},
    {"window", "null false", "sliding_window use_sliding_window"},
    {"window", "null full_attention", "layer_types"},
    {"rotation", "null false", "rope_interleaved use_mrope"},
    {"rotation", "null 1", "partial_rotary_factor"},
    {"scale", "null 1",
     "logit_scale logits_scaling embedding_multiplier residual_multiplier scale_emb"},
    {"scale", "null", "attention_multiplier"},
    {"clamp", "null", "clip_qkv attn_logit_softcapping final_logit_softcapping"},
    {"norm", "null false", "qk_norm use_qk_norm"},
    {"encoder", "null false", "add_cross_attention is_encoder_decoder tie_encoder_decoder"},
    {"encoder", "null", "cross_attention_hidden_size"},
    {"splitting", "null 1", "pretraining_tp"},
    {"pruning", "null {}", "pruned_heads"},
    {"quantisation", "null", "quantization_config compression_config"},
    {"precision", "null float32 float16 bfloat16", "torch_dtype dtype"},
    /* Neutral with any value. */
    {"precision", NULL, "use_bfloat16"},
    {"unused", NULL, "is_decoder"},
    {"training", NULL,
     "attention_dropout gradient_checkpointing initializer_range neftune_noise_alpha "
     "tf_legacy_loss"},
    {"information", NULL,
     "max_sequence_length _name_or_path name_or_path _commit_hash unsloth_fixed unsloth_version"},
    {"export", NULL, "transformers.js_config torchscript"},
    {"speed", NULL,
     "_attn_implementation _attn_implementation_autoset attn_implementation "
     "_flash_attn_2_enabled chunk_size_feed_forward use_cache"},
    {"output", NULL,
     "output_attentions output_hidden_states output_scores return_dict return_dict_in_generate"},
    {"labels", NULL, "finetuning_task id2label label2id problem_type"},
    {"tokens", NULL,
     "bos_token_id decoder_start_token_id eos_token_id pad_token_id sep_token_id tokenizer_class"},
    {"generation", NULL,
     "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping "
     "encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id "
     "forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size "
     "num_beam_groups num_beams num_return_sequences prefix remove_invalid_values "
     "repetition_penalty suppress_tokens task_specific_params temperature top_k top_p typical_p"},
};

/* Of qwen2 these say nothing where use_sliding_window, which is checked, is false or absent. */
static const char config_qwen2_window[] = "sliding_window max_window_layers";

/* Keys of rope_parameters and of rope_scaling, which are the same object under two names. The last
 * row is of llama3 alone. */
static const config_key config_rope_keys[] = {
    {CONFIG_READ, "default llama3", "rope_type type"},
    {CONFIG_READ, NULL, "rope_theta"},
    {"rotation", "null 1", "partial_rotary_factor"},
    {CONFIG_READ, NULL, "factor low_freq_factor high_freq_factor original_max_position_embeddings"},
};

enum {
    CONFIG_KEYS = sizeof config_keys / sizeof config_keys[0],
    CONFIG_ROPE_KEYS = sizeof config_rope_keys / sizeof config_rope_keys[0]
};

/* The rotation as one place of the file has it. */
typedef struct config_rope {
    double theta;           /* NaN: nothing */
    bool typed;             /* `scale` says something, be it that there is none */
    model_rope_scale scale; /* of llama3 */
} config_rope;

static kvt_status config_fail(const config_file *file, kvt_status status, const char *name,
                              const char *reason)
{
    return model_map_say(status, file->message, file->message_size, file->path, "%s: %s", name,
                         reason);
}

/* ---- keys and their values ---- */

/* A value as it stands in the file, cut short. */
static void config_print_value(const json_t *value, char text[CONFIG_VALUE_BYTES])
{
    char *whole = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const int shown = CONFIG_VALUE_BYTES - 4;
    (void)snprintf(text, CONFIG_VALUE_BYTES, "%.*s%s", shown, whole != NULL ? whole : "?",
                   whole != NULL && strlen(whole) > (size_t)shown ? "..." : "");
    free(whole);
}

/* Whether a list with blanks between its words has a word. */
static bool config_has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; *at != '\0'; at += strspn(at, " ")) {
        const size_t next = strcspn(at, " ");
        if (next == length && memcmp(at, word, length) == 0) return true;
        at += next;
    }
    return false;
}

static bool config_is_one_of(const json_t *value, const char *values)
{
    switch (json_typeof(value)) {
    case JSON_NULL: return config_has_word(values, "null");
    case JSON_TRUE: return config_has_word(values, "true");
    case JSON_FALSE: return config_has_word(values, "false");
    case JSON_STRING:
        return config_has_word(values, json_string_value(value)) &&
               !config_has_word("null true false {} 1", json_string_value(value));
    case JSON_OBJECT: return json_object_size(value) == 0 && config_has_word(values, "{}");
    case JSON_INTEGER:
    case JSON_REAL: return json_number_value(value) == 1.0 && config_has_word(values, "1");
    case JSON_ARRAY: break;
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_string(json_array_get(value, i)) ||
            !config_is_one_of(json_array_get(value, i), values))
            return false;
    return json_array_size(value) > 0;
}

/* Whether a key and its value are ones that the decoder knows. `prefix` stands before the names in
 * messages. */
static kvt_status config_check_key(const config_file *file, const char *prefix,
                                   const config_key *keys, size_t count, const char *name,
                                   const json_t *value)
{
    char shown[CONFIG_VALUE_BYTES];
    config_print_value(value, shown);
    for (size_t i = 0; i < count; i++) {
        if (!config_has_word(keys[i].names, name)) continue;
        if (keys[i].values == NULL || config_is_one_of(value, keys[i].values)) return KVT_OK;
        return model_map_say(KVT_E_UNSUPPORTED, file->message, file->message_size, file->path,
                             "%s%s: %s is not supported, but one of: %s", prefix, name, shown,
                             keys[i].values);
    }
    return model_map_say(KVT_E_UNSUPPORTED, file->message, file->message_size, file->path,
                         "%s%.60s: %s is no setting that the decoder knows; if it changes nothing "
                         "that the model computes, take it out of the file",
                         prefix, name, shown);
}

/* ---- numbers ---- */

/* A positive integer; `fallback` where the key is absent or null, 0 meaning that it must be there.
 */
static kvt_status config_u32(const config_file *file, const char *key, uint32_t fallback,
                             uint32_t *out)
{
    const json_t *value = json_object_get(file->root, key);
    *out = fallback;
    if ((value == NULL || json_is_null(value)) && fallback != 0) return KVT_OK;
    if (value == NULL) return config_fail(file, KVT_E_PARSE, key, "is missing");
    if (!json_is_integer(value) || json_integer_value(value) <= 0 ||
        json_integer_value(value) > INT32_MAX) {
        return config_fail(file, KVT_E_PARSE, key, "no positive whole number");
    }
    *out = (uint32_t)json_integer_value(value);
    return KVT_OK;
}

static kvt_status config_number(const config_file *file, const json_t *object, const char *key,
                                double *out)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL) return KVT_OK;
    if (!json_is_number(value)) return config_fail(file, KVT_E_PARSE, key, "no number");
    *out = json_number_value(value);
    return KVT_OK;
}

/* ---- rotary positions ---- */

/* The major version of transformers that wrote the file; 0 when it does not say so. */
static long config_version(const config_file *file)
{
    const char *text = json_string_value(json_object_get(file->root, "transformers_version"));
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

/* The keys of a rope object whose type is `type`, and that there are no others. */
static kvt_status config_check_rope(const config_file *file, const char *prefix, const json_t *rope,
                                    const char *type)
{
    const size_t keys = CONFIG_ROPE_KEYS - (size_t)(strcmp(type, "llama3") != 0);
    kvt_status status = KVT_OK;
    /* The object is not changed; jansson's macro takes no const one. */
    for (void *at = json_object_iter((json_t *)(uintptr_t)rope); status == KVT_OK && at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)rope, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *member = json_object_iter_value(at);
        status =
            json_is_object(member)
                ? model_map_say(KVT_E_UNSUPPORTED, file->message, file->message_size, file->path,
                                "%s%.60s: rotary positions of a kind of layers are not "
                                "supported, but those of all layers",
                                prefix, key)
                : config_check_key(file, prefix, config_rope_keys, keys, key, member);
    }
    return status;
}

/* The four numbers of llama3, of which none has a default. */
static kvt_status config_read_scale(const config_file *file, const json_t *rope,
                                    model_rope_scale *scale)
{
    const struct {
        const char *key;
        double *out;
    } numbers[] = {{"factor", &scale->factor},
                   {"low_freq_factor", &scale->low},
                   {"high_freq_factor", &scale->high},
                   {"original_max_position_embeddings", &scale->context}};
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < sizeof numbers / sizeof numbers[0]; i++) {
        if (json_object_get(rope, numbers[i].key) == NULL)
            return config_fail(file, KVT_E_UNSUPPORTED, numbers[i].key,
                               "is missing, and rotary positions of llama3 need it");
        status = config_number(file, rope, numbers[i].key, numbers[i].out);
    }
    /* 0 means that nothing is scaled, and is not what the file may say. */
    if (status == KVT_OK && scale->factor == 0.0)
        status = config_fail(file, KVT_E_CORRUPT, "factor", "the rope factor is outside 1..1e6");
    return status;
}

/* rope_scaling of transformers 4 or rope_parameters of transformers 5, which has the base as well.
 * Where the type is absent version 5 means "default"; version 4 takes no such object. */
static kvt_status config_read_rope(const config_file *file, const char *name, bool typed,
                                   config_rope *out)
{
    static const char *const types[] = {"rope_type", "type"};
    const json_t *rope = json_object_get(file->root, name);
    const char *type = NULL;
    char prefix[32];
    if (rope == NULL || json_is_null(rope)) return KVT_OK;
    if (!json_is_object(rope)) return config_fail(file, KVT_E_PARSE, name, "no object");
    (void)snprintf(prefix, sizeof prefix, "%s.", name);
    /* The type first: it says what the others are for. */
    for (size_t i = 0; i < 2; i++) {
        const json_t *member = json_object_get(rope, types[i]);
        if (member == NULL) continue;
        kvt_status status =
            config_check_key(file, prefix, config_rope_keys, CONFIG_ROPE_KEYS, types[i], member);
        if (status != KVT_OK) return status;
        if (type != NULL && strcmp(type, json_string_value(member)) != 0)
            return config_fail(file, KVT_E_CORRUPT, name, "has two types that differ");
        type = json_string_value(member);
    }
    if (type == NULL && typed)
        return config_fail(file, KVT_E_UNSUPPORTED, name, "has no rope_type");
    if (type == NULL) type = "default";
    kvt_status status = config_check_rope(file, prefix, rope, type);
    if (status == KVT_OK) status = config_number(file, rope, "rope_theta", &out->theta);
    if (status == KVT_OK && strcmp(type, "llama3") == 0)
        status = config_read_scale(file, rope, &out->scale);
    out->typed = true;
    return status;
}

static bool config_scales_differ(const model_rope_scale *a, const model_rope_scale *b)
{
    return a->factor != b->factor || a->low != b->low || a->high != b->high ||
           a->context != b->context;
}

/* Where no base is given transformers 1 to 4 mean 10000. Later ones always write one. */
static kvt_status config_read_rotation(const config_file *file, model_config *c)
{
    config_rope given[] = {{.theta = (double)NAN}, {.theta = (double)NAN}, {.theta = (double)NAN}};
    const long version = config_version(file);
    kvt_status status = config_number(file, file->root, "rope_theta", &given[0].theta);
    if (status == KVT_OK) status = config_read_rope(file, "rope_scaling", true, &given[1]);
    if (status == KVT_OK) status = config_read_rope(file, "rope_parameters", false, &given[2]);
    if (status != KVT_OK) return status;
    if (given[1].typed && given[2].typed && config_scales_differ(&given[1].scale, &given[2].scale))
        return config_fail(file, KVT_E_CORRUPT, "rope_scaling", "differs from rope_parameters");
    c->rope_scale = given[1].typed ? given[1].scale : given[2].scale;
    c->rope_theta = (double)NAN;
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (isnan(given[i].theta)) continue;
        if (!isnan(c->rope_theta) && c->rope_theta != given[i].theta)
            return config_fail(file, KVT_E_CORRUPT, "rope_theta", "two that differ");
        c->rope_theta = given[i].theta;
    }
    if (!isnan(c->rope_theta)) return KVT_OK;
    if (version < 1 || version > 4)
        return config_fail(file, KVT_E_UNSUPPORTED, "rope_theta",
                           "is neither there nor in rope_parameters, and transformers_version does "
                           "not say that 10000 is meant");
    c->rope_theta = 10000.0;
    return KVT_OK;
}

/* ---- the whole ---- */

/* Keys that must be there in a family because its defaults are none that this reader takes. */
static kvt_status config_check_family(const config_file *file)
{
    static const char *const explicit[] = {"num_key_value_heads", "sliding_window"};
    const size_t count = strcmp(file->family, "mistral") == 0 ? 2
                         : strcmp(file->family, "qwen2") == 0 ? 1
                                                              : 0;
    for (size_t i = 0; i < count; i++)
        if (json_object_get(file->root, explicit[i]) == NULL)
            return model_map_say(KVT_E_UNSUPPORTED, file->message, file->message_size, file->path,
                                 "%s: is missing, and a %s's default is not supported", explicit[i],
                                 file -> family);
    return KVT_OK;
}

static kvt_status config_check_keys(config_file *file)
{
    json_t *root = (json_t *)(uintptr_t)file->root;
    /* What kind of model it is first, so that its other keys are not what is complained about. */
    const json_t *kind = json_object_get(root, "model_type");
    if (kind == NULL) return config_fail(file, KVT_E_UNSUPPORTED, "model_type", "is missing");
    kvt_status status = config_check_key(file, "", config_keys, CONFIG_KEYS, "model_type", kind);
    if (status != KVT_OK) return status;
    file->family = json_string_value(kind);
    for (void *at = json_object_iter(root); status == KVT_OK && at != NULL;
         at = json_object_iter_next(root, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(file->family, "qwen2") == 0 && config_has_word(config_qwen2_window, name))
            continue;
        status =
            config_check_key(file, "", config_keys, CONFIG_KEYS, name, json_object_iter_value(at));
    }
    return status;
}

static kvt_status config_read(config_file *file, model_config *c)
{
    double eps = 1e-6;
    struct {
        const char *key;
        uint32_t fallback;
        uint32_t *out;
    } sizes[] = {
        {"hidden_size", 0, &c->dim},          {"intermediate_size", 0, &c->ffn_dim},
        {"num_hidden_layers", 0, &c->layers}, {"num_attention_heads", 0, &c->heads},
        {"vocab_size", 0, &c->vocab},         {"max_position_embeddings", 2048, &c->context}};
    *c = (model_config){.rope_halves = true,
                        .tied = json_is_true(json_object_get(file->root, "tie_word_embeddings"))};
    if (!json_is_object(file->root)) return config_fail(file, KVT_E_PARSE, "line 1", "no object");
    kvt_status status = config_check_keys(file);
    if (status == KVT_OK) status = config_check_family(file);
    c->biased = status == KVT_OK && strcmp(file->family, "qwen2") == 0;
    for (size_t i = 0; status == KVT_OK && i < sizeof sizes / sizeof sizes[0]; i++)
        status = config_u32(file, sizes[i].key, sizes[i].fallback, sizes[i].out);
    if (status == KVT_OK) status = config_u32(file, "num_key_value_heads", c->heads, &c->kv_heads);
    if (status == KVT_OK && json_object_get(file->root, "head_dim") == NULL &&
        c->dim % c->heads != 0)
        status = config_fail(file, KVT_E_CORRUPT, "config", "the heads do not divide the width");
    if (status == KVT_OK) {
        const uint32_t even = c->dim / c->heads;
        status = config_u32(file, "head_dim", even, &c->head_dim);
    }
    if (status == KVT_OK) status = config_number(file, file->root, "rms_norm_eps", &eps);
    if (status == KVT_OK) status = config_read_rotation(file, c);
    if (status != KVT_OK) return status;
    c->norm_eps = (float)eps;
    const char *fault = model_config_fault(c);
    return fault == NULL ? KVT_OK : config_fail(file, KVT_E_CORRUPT, "config", fault);
}

kvt_status model_config_parse(const char *name, const void *bytes, uint64_t size,
                              model_config *config_out, char *message, size_t message_size)
{
    json_error_t error;
    config_file file = {.path = name, .message = message, .message_size = message_size};
    if (size > MODEL_CONFIG_BYTES_MAX)
        return config_fail(&file, KVT_E_PARSE, "config", "larger than 1 MiB");
    json_t *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return model_map_say(KVT_E_PARSE, message, message_size, name, "line %d: %s", error.line,
                             error.text);
    file.root = root;
    const kvt_status status = config_read(&file, config_out);
    json_decref(root);
    return status;
}

kvt_status model_config_read(const char *path, model_config *config_out, char *message,
                             size_t message_size)
{
    model_map map;
    kvt_status status = model_map_open(path, &map, message, message_size);
    if (status != KVT_OK) return status;
    status = model_config_parse(path, map.bytes, map.size, config_out, message, message_size);
    model_map_close(&map);
    return status;
}
