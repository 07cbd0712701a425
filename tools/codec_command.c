/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_command.c - kvterrace encode and decode: any codec on a KV dump of one's own. One thread.
 */
#include "commands.h"
#include "profile_document.h"

#include "estimator/quality/kv_files.h"
#include "tools/command/variants.h"
#include "tools/inspect/basis_files.h"

#include <math.h>
#include <string.h>

#define CODEC_USUAL_VARIANT "planes:k4v4,g64"

typedef struct codec_arguments {
    command_common common;
    command_list inputs; /* one */
    command_list bases;
    const char *output;
    const char *variant;
} codec_arguments;

static const command_option codec_encode_rows[] = {
    TEXT_OPTION(codec_arguments, variant, "variant", 0, "NAME",
                "Codec and setting, such as kivi:k4v4,g64 (default " CODEC_USUAL_VARIANT ")"),
    COMMAND_BASIS_OPTION(
        codec_arguments, bases,
        "Basis (.kvtbasis) for transform:BASIS,sSTEP, or transform:sSTEP of the one given; "
        "may be repeated"),
    OUTPUT_OPTION(codec_arguments, output, "Write the record to FILE; without it only measure"),
    OPERANDS(codec_arguments, inputs, "FILE", 1, 1, OPTION_READS),
    {0},
};

static const command_option codec_decode_rows[] = {
    COMMAND_BASIS_OPTION(codec_arguments, bases,
                         "Basis (.kvtbasis) that the record needs; may be repeated"),
    OUTPUT_OPTION(codec_arguments, output, "Write the decoded KV to FILE, as safetensors"),
    OPERANDS(codec_arguments, inputs, "FILE", 1, 1, OPTION_READS),
    {0},
};

static const char *codec_dtype(uint8_t dtype)
{
    static const char *const names[] = {"opaque", "fp16", "bf16", "fp32", "fp8"};
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

static double codec_ratio(const kvt_record_info *info)
{
    double bits = 8.0 * kvt_dtype_bytes(info->spec.layout.dtype);
    return info->bits_per_element > 0 ? bits / info->bits_per_element : 0;
}

/* ---- output ---- */

static json_t *codec_describe(const char *schema, const codec_arguments *arguments,
                              const kvt_record_info *info)
{
    const kvt_layout *layout = &info->spec.layout;
    char name[128];
    (void)kvt_variant_format(info->spec.variant, name, sizeof name);
    return json_pack(
        "{s:s, s:s, s:s?, s:s, s:i, s:I, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I,"
        " s:o, s:o, s:o}",
        "schema", schema, "input", arguments->inputs.items[0], "output", arguments->output,
        "variant", name, "layers", (int)layout->layers, "tokens", (json_int_t)layout->tokens,
        "kv_heads", (int)layout->kv_heads, "head_dim", (int)layout->head_dim, "dtype",
        codec_dtype(layout->dtype), "source_bytes", (json_int_t)info->source_bytes, "payload_bytes",
        (json_int_t)info->payload_bytes, "record_bytes", (json_int_t)info->record_bytes,
        "stored_tokens", (json_int_t)info->stored_tokens, "segments",
        (json_int_t)info->segment_count, "raw_segments", (json_int_t)info->raw_segments,
        "bits_per_element", view_real(info->bits_per_element), "physical_bits_per_element",
        view_real(info->physical_bits_per_element), "ratio", view_real(codec_ratio(info)));
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

static int codec_show_encoded(const codec_arguments *arguments, const kv_file_result *result)
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
        (void)json_object_set_new(document, "nmse_k", view_real(result->nmse[0]));
        (void)json_object_set_new(document, "nmse_v", view_real(result->nmse[1]));
        (void)json_object_set_new(document, "attention_error",
                                  result->queried ? view_real(result->attention_error)
                                                  : json_null());
    }
    return command_print_document(document);
}

/* ---- the commands ---- */

/* Parses the variant that was asked for. "transform" and "transform:sSTEP" are of the one basis
 * that was given. */
static kvt_status codec_take_variant(const char *name, const basis_files *bases,
                                     kvt_variant *variant_out, char *message, size_t message_size)
{
    char whole[64];
    const bool bare = strcmp(name, "transform") == 0,
               stepped = strncmp(name, "transform:s", 11) == 0;
    if ((bare || stepped) && bases->count != 1) {
        (void)snprintf(message, message_size, "%.60s needs one --basis", name);
        return KVT_E_ARGUMENT;
    }
    if (bare || stepped) {
        (void)snprintf(whole, sizeof whole, "transform:%05X%s%.40s",
                       (unsigned)transform_hash_start(bases->list[0]->hash), bare ? "" : ",",
                       bare ? "" : name + 10);
        name = whole;
    }
    const kvt_status status = kvt_variant_parse(name, variant_out);
    if (status != KVT_OK) command_unknown_variant(name, message, message_size);
    return status;
}

static int codec_encode(void *context)
{
    codec_arguments *arguments = context;
    const char *input = arguments->inputs.items[0];
    const char *name = arguments->variant != NULL ? arguments->variant : CODEC_USUAL_VARIANT;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kv_file_result result;
    kvt_variant variant;
    basis_files bases = {.count = 0};
    if (arguments->bases.count != 0 && strncmp(name, "transform", 9) != 0)
        return command_misuse("--basis is for variants of transform");
    kvt_status status = basis_files_read(&bases, arguments->bases.items, arguments->bases.count,
                                         message, sizeof message);
    if (status == KVT_OK)
        status = codec_take_variant(name, &bases, &variant, message, sizeof message);
    if (status == KVT_OK && arguments->output != NULL)
        status = command_check_target(&arguments->common, "--output", arguments->output, message,
                                      sizeof message);
    if (status == KVT_OK && !basis_files_serve(&bases, variant, message, sizeof message))
        status = KVT_E_MISMATCH;
    if (status == KVT_OK)
        status = kv_file_encode(input, variant, basis_files_all(&bases), arguments->output, &result,
                                message, sizeof message);
    basis_files_free(&bases);
    if (status != KVT_OK) return command_fail_content(status, message);
    if (result.ignored > 0)
        command_note(&arguments->common, "%s: %u tensors of other names are left out", input,
                     (unsigned)result.ignored);
    return codec_show_encoded(arguments, &result);
}

const command_spec encode_spec = {
    .name = "encode",
    .summary = "encode a KV dump into a record, and say what it costs",
    .about = "Encodes a KV dump in safetensors: tensors k.LAYER and v.LAYER of shape [tokens, "
             "kv_heads, head_dim] in F16, BF16 or F32, layers from 0, and optional q.LAYER of "
             "shape [rows, heads, head_dim]. K and V in F8_E4M3 are taken, too, by exact codecs "
             "in F8_E5M2. Says what it costs and what is lost.",
    .example = "  kvterrace encode kv.safetensors --variant planes:k4v4,g32 -o kv.kvt\n"
               "  kvterrace encode kv.safetensors --basis m.kvtbasis --variant "
               "transform:s0.5",
    .options = codec_encode_rows,
    .argument_bytes = sizeof(codec_arguments),
    .run = codec_encode,
    .lists = LISTS_VARIANTS,
};

static int codec_check_decode(void *context)
{
    const codec_arguments *arguments = context;
    return arguments->output != NULL ? EXIT_FINE : command_misuse("--output says where to");
}

static int codec_decode(void *context)
{
    codec_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_record_info info;
    kvt_status status = command_check_target(&arguments->common, "--output", arguments->output,
                                             message, sizeof message);
    basis_files bases = {.count = 0};
    if (status == KVT_OK)
        status = basis_files_read(&bases, arguments->bases.items, arguments->bases.count, message,
                                  sizeof message);
    if (status == KVT_OK)
        status = kv_file_decode(arguments->inputs.items[0], basis_files_all(&bases),
                                arguments->output, &info, message, sizeof message);
    if (status == KVT_E_MISMATCH) {
        char reason[256] = "";
        if (!basis_files_serve_record(&bases, &info, reason, sizeof reason))
            (void)snprintf(message, sizeof message, "%.300s: %s", arguments->inputs.items[0],
                           reason);
    }
    basis_files_free(&bases);
    if (status != KVT_OK) return command_fail_content(status, message);
    if (arguments->common.json)
        return command_print_document(codec_describe("kvterrace-decode-1", arguments, &info));
    codec_print(&info);
    return EXIT_FINE;
}

const command_spec decode_spec = {
    .name = "decode",
    .summary = "decode a record into a KV dump",
    .about = "Decodes a record that encode wrote into a KV dump in safetensors: k.LAYER and "
             "v.LAYER, and positions.LAYER where tokens were dropped. A record of the transform "
             "codec needs its basis, which kvterrace inspect names.",
    .example = "  kvterrace decode kv.kvt -o back.safetensors",
    .options = codec_decode_rows,
    .argument_bytes = sizeof(codec_arguments),
    .check = codec_check_decode,
    .run = codec_decode,
};
