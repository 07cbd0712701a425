/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_command.c - kvterrace encode and decode: any codec on a KV dump of one's own. One thread.
 */
#include "command.h"
#include "output_file.h"

#include "lab/bench/bench_codecs_file.h"

#include <jansson.h>
#include <math.h>

#define CODEC_USUAL_VARIANT "planes:k4v4,g64"

typedef struct codec_arguments {
    command_common common;
    const char *input;
    const char *output;
    const char *variant; /* NULL: decode */
} codec_arguments;

static const struct argp_option codec_encode_options[] = {
    {"variant", 'V', "NAME", 0,
     "Codec and setting, such as kivi:k4v4,g64 (default " CODEC_USUAL_VARIANT ")", 0},
    {"output", 'o', "FILE", 0, "Write the record to FILE; without it only measure", 0},
    {0},
};

static const struct argp_option codec_decode_options[] = {
    {"output", 'o', "FILE", 0, "Write the decoded KV to FILE, as safetensors", 0},
    {0},
};

static error_t codec_parse(int key, char *argument, struct argp_state *state)
{
    codec_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'V': arguments->variant = argument; return 0;
    case 'o': arguments->output = argument; return 0;
    case ARGP_KEY_ARG:
        if (arguments->input != NULL) argp_error(state, "more than one FILE");
        arguments->input = argument;
        command_add_input(&arguments->common, argument);
        return 0;
    case ARGP_KEY_END:
        if (arguments->input == NULL) argp_error(state, "which FILE?");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int codec_load(const struct argp_option *options, const char *doc, int argc, char **argv,
                      codec_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = options,
                              .parser = codec_parse,
                              .args_doc = "FILE",
                              .doc = doc,
                              .children = children};
    int code = command_load(&argp, argc, argv, arguments);
    if (code != EXIT_FINE) return code;
    code = command_report_unused(&arguments->common, no_sections);
    if (code != EXIT_FINE) command_unload(&arguments->common);
    return code;
}

static const char *codec_dtype(uint8_t dtype)
{
    return dtype == KVT_DTYPE_BF16 ? "bf16" : dtype == KVT_DTYPE_FP16 ? "fp16" : "fp32";
}

static double codec_ratio(const kvt_record_info *info)
{
    double bits = 8.0 * kvt_dtype_bytes(info->spec.layout.dtype);
    return info->bits_per_element > 0 ? bits / info->bits_per_element : 0;
}

/* ---- output ---- */

static json_t *codec_number(double value, bool present)
{
    return present && isfinite(value) ? json_real(value) : json_null();
}

static json_t *codec_describe(const char *schema, const codec_arguments *arguments,
                              const kvt_record_info *info)
{
    const kvt_layout *layout = &info->spec.layout;
    char name[128];
    (void)kvt_variant_format(info->spec.variant, name, sizeof name);
    return json_pack(
        "{s:s, s:s, s:s?, s:s, s:i, s:I, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I,"
        " s:o, s:o, s:o}",
        "schema", schema, "input", arguments->input, "output", arguments->output, "variant", name,
        "layers", (int)layout->layers, "tokens", (json_int_t)layout->tokens, "kv_heads",
        (int)layout->kv_heads, "head_dim", (int)layout->head_dim, "dtype",
        codec_dtype(layout->dtype), "source_bytes", (json_int_t)info->source_bytes, "payload_bytes",
        (json_int_t)info->payload_bytes, "record_bytes", (json_int_t)info->record_bytes,
        "stored_tokens", (json_int_t)info->stored_tokens, "segments",
        (json_int_t)info->segment_count, "raw_segments", (json_int_t)info->raw_segments,
        "bits_per_element", codec_number(info->bits_per_element, true), "physical_bits_per_element",
        codec_number(info->physical_bits_per_element, true), "ratio",
        codec_number(codec_ratio(info), true));
}

/* Prints the document and lets go of it. */
static int codec_dump(json_t *document)
{
    int failed = document == NULL ||
                 json_dumpf(document, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(document);
    if (failed) return command_fail(KVT_E_MEMORY, "");
    putchar('\n');
    return EXIT_FINE;
}

static void codec_print(const kvt_record_info *info)
{
    const kvt_layout *layout = &info->spec.layout;
    char name[128], source[32], record[32];
    (void)kvt_variant_format(info->spec.variant, name, sizeof name);
    printf("variant    %s\n", name);
    printf("entry      %u layers x %u tokens x %u heads x %u, %s, %s\n", layout->layers,
           (unsigned)layout->tokens, layout->kv_heads, layout->head_dim, codec_dtype(layout->dtype),
           format_bytes(source, info->source_bytes));
    printf("record     %s, %u segments", format_bytes(record, info->record_bytes),
           (unsigned)info->segment_count);
    if (info->raw_segments > 0) printf(", %u of them raw", (unsigned)info->raw_segments);
    printf("\nbits       %.3f per element, %.3f with padding\n", info->bits_per_element,
           info->physical_bits_per_element);
    printf("ratio      %.2f\n", codec_ratio(info));
    if (info->stored_tokens < layout->tokens)
        printf("tokens     %u kept\n", (unsigned)info->stored_tokens);
}

static int codec_show_encoded(const codec_arguments *arguments, const bench_file_result *result)
{
    if (!arguments->common.json) {
        codec_print(&result->info);
        printf("nmse       K %.3e, V %.3e\n", result->nmse[0], result->nmse[1]);
        if (result->queried)
            printf("attention  %.3e off, over %u queries\n", result->attention_error,
                   (unsigned)result->query_rows);
        return EXIT_FINE;
    }
    json_t *document = codec_describe("kvterrace-encode-1", arguments, &result->info);
    if (document != NULL) {
        (void)json_object_set_new(document, "nmse_k", codec_number(result->nmse[0], true));
        (void)json_object_set_new(document, "nmse_v", codec_number(result->nmse[1], true));
        (void)json_object_set_new(document, "attention_error",
                                  codec_number(result->attention_error, result->queried));
    }
    return codec_dump(document);
}

/* ---- the commands ---- */

int command_encode(int argc, char **argv)
{
    codec_arguments arguments = {.variant = CODEC_USUAL_VARIANT};
    char message[COMMAND_MESSAGE_BYTES] = "";
    bench_file_result result;
    kvt_variant variant;
    int code = codec_load(
        codec_encode_options,
        "Encodes a KV dump in safetensors: tensors k.LAYER and v.LAYER of shape [tokens, kv_heads, "
        "head_dim] in F16, BF16 or F32, layers from 0, and optional q.LAYER of shape [rows, heads, "
        "head_dim]. Says what it costs and what is lost.",
        argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    kvt_status status = kvt_variant_parse(arguments.variant, &variant);
    if (status != KVT_OK)
        snprintf(message, sizeof message, "unknown variant '%s'", arguments.variant);
    else if (arguments.output != NULL)
        status = command_check_target(&arguments.common, "--output", arguments.output, message,
                                      sizeof message);
    if (status == KVT_OK) {
        status = bench_file_encode(arguments.input, variant, arguments.output, &result, message,
                                   sizeof message);
    }
    if (status != KVT_OK) {
        code = command_fail_content(status, message);
    } else {
        if (result.ignored > 0)
            command_note(&arguments.common, "%s: %u tensors of other names are left out",
                         arguments.input, (unsigned)result.ignored);
        code = codec_show_encoded(&arguments, &result);
    }
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_decode(int argc, char **argv)
{
    codec_arguments arguments = {.variant = NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_record_info info;
    int code = codec_load(codec_decode_options,
                          "Decodes a record that encode wrote into a KV dump in safetensors: "
                          "k.LAYER and v.LAYER, and positions.LAYER where tokens were dropped.",
                          argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    kvt_status status = KVT_E_ARGUMENT;
    if (arguments.output == NULL)
        snprintf(message, sizeof message, "--output says where to");
    else
        status = command_check_target(&arguments.common, "--output", arguments.output, message,
                                      sizeof message);
    if (status == KVT_OK)
        status =
            bench_file_decode(arguments.input, arguments.output, &info, message, sizeof message);
    if (status != KVT_OK) {
        code = command_fail_content(status, message);
    } else if (arguments.common.json) {
        code = codec_dump(codec_describe("kvterrace-decode-1", &arguments, &info));
    } else {
        codec_print(&info);
    }
    command_unload(&arguments.common);
    return command_finish(code);
}
