/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_mixed_command.c - kvterrace profile mixed: the loss of contexts whose parts are stored in
 * different variants, predicted and measured. Nothing is stored. One thread waits.
 */
#include "estimator/quality/quality.h"
#include "profile_document.h"
#include "profile_measure.h"

enum { MIXED_TEXTS_MAX = 32, MIXED_VARIANTS_MAX = 64 };

/* A ladder whose losses lie a decade and a half apart. */
#define MIXED_USUAL                                                                                \
    "planes:k8v8,g64; planes:k4v4,g64; planes:k3v3,g64; planes:k2v2,g64; "                         \
    "entropy:k0.25v0.5,vchan; entropy:k0.5v1,vchan; entropy:k1v2,vchan"

static const command_option mixed_rows[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("FILE", MIXED_TEXTS_MAX),
    MEASURE_VARIANTS(" (7 of the ladder)"),
    MEASURE_COUNT(blocks, "blocks", 64, "Blocks of a context (4)"),
    MEASURE_COUNT(mixes, "mixes", 4096, "Draws of variants for the blocks (16)"),
    MEASURE_CONTEXTS(100000, "Contexts (24)"),
    MEASURE_LENGTHS,
    MEASURE_THREADS,
    {0},
};

static json_t *mixed_pack(const quality_mixed_fit *fit)
{
    const view_member members[] = {{"predicted", fit->predicted},
                                   {"measured", fit->measured},
                                   {"pearson", fit->pearson},
                                   {"spearman", fit->spearman},
                                   {"spearman_mixes", fit->spearman_mixes},
                                   {"error_p50", fit->error_p50},
                                   {"error_p90", fit->error_p90},
                                   {"error_context_p50", fit->error_context_p50}};
    json_t *object = json_object();
    (void)view_put_numbers(object, members, sizeof members / sizeof members[0]);
    return object;
}

static void mixed_print_fit(const char *name, const quality_mixed_fit *fit)
{
    printf("%-5s predicted %.4g, measured %.4g; correlation %.3f (rank %.3f; of draws %.3f); "
           "error of a draw %.0f %% (p90 %.0f %%), of one context %.0f %%\n",
           name, fit->predicted, fit->measured, fit->pearson, fit->spearman, fit->spearman_mixes,
           100.0 * fit->error_p50, 100.0 * fit->error_p90, 100.0 * fit->error_context_p50);
}

static int mixed_show(const measure_arguments *arguments, const quality_mixed_options *options,
                      const quality_mixed_report *report)
{
    if (!arguments->common.json) {
        printf("%s: %u contexts in %u blocks, %u draws of %u variants, %.0f s\n",
               report->model.name, (unsigned)report->contexts, (unsigned)options->blocks,
               (unsigned)report->mixes, (unsigned)options->variant_count, report->seconds);
        mixed_print_fit("loss", &report->loss);
        mixed_print_fit("KL", &report->kl);
        return EXIT_FINE;
    }
    return command_print_document(json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "schema", "kvterrace-profile-mixed-1",
        "model", view_string(report->model.name), "contexts", (json_int_t)report->contexts,
        "blocks", (json_int_t)options->blocks, "mixes", (json_int_t)report->mixes, "variants",
        (json_int_t)options->variant_count, "seconds", report->seconds, "loss",
        mixed_pack(&report->loss), "kl", mixed_pack(&report->kl)));
}

static int mixed_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_variant variants[MIXED_VARIANTS_MAX];
    quality_mixed_report report;
    command_choose_blas();
    quality_mixed_options options = {
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .texts = arguments->texts.items,
        .text_count = (uint32_t)arguments->texts.count,
        .variants = variants,
        .contexts = measure_or(arguments->contexts, 24),
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .blocks = measure_or(arguments->blocks, 4),
        .mixes = measure_or(arguments->mixes, 16),
        .seed = 1,
        .threads = arguments->threads,
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    kvt_status status = command_parse_variants(
        arguments->variants != NULL ? arguments->variants : MIXED_USUAL, false, variants,
        MIXED_VARIANTS_MAX, &options.variant_count, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    measure_begin(arguments);
    status = quality_mixed_run(&options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    return status == KVT_OK ? mixed_show(arguments, &options, &report)
                            : command_fail_content(status, message);
}

const command_spec profile_mixed_spec = {
    .name = "mixed",
    .summary = "predict and measure contexts in several variants",
    .about = "Cuts contexts into blocks, stores each in a variant drawn for it, and compares the "
             "loss that is predicted (the token-weighted mean of the variants' losses on other "
             "contexts) with the one that is measured by going on from the whole. Stores nothing.",
    .synopsis = "--model FILE --text FILE...",
    .example = "  kvterrace profile mixed --model reference_model/model \\\n"
               "    --text reference_model/texts/recall-768.jsonl --contexts 4",
    .options = mixed_rows,
    .argument_bytes = sizeof(measure_arguments),
    .check = measure_need_model,
    .run = mixed_run,
    .lists = LISTS_VARIANTS,
};
