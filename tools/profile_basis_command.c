/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_basis_command.c - kvterrace profile basis: what bases of the transform codec, learnt on a
 * model's KV, would save. Nothing is stored. One thread.
 */
#include "estimator/quality/quality_basis.h"
#include "profile_document.h"
#include "profile_measure.h"

#include <math.h>

enum { BASIS_TEXTS_MAX = 32 };

static const command_option basis_rows[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("FILE", BASIS_TEXTS_MAX),
    MEASURE_CONTEXTS(100000, "Contexts: three of five teach, one makes tables, one judges (40)"),
    MEASURE_LENGTHS,
    {0},
};

static const char *const basis_spans[QUALITY_BASIS_SPANS] = {"head", "layer", "layers4"};

static void basis_print(const quality_basis_report *report)
{
    printf("%s: learnt on %u contexts, tables of %u others, judged on %u others, %.0f s\n",
           report->model.name, (unsigned)report->learnt, (unsigned)report->counted,
           (unsigned)report->judged, report->seconds);
    printf("%-26s %6s %10s %6s %10s %11s\n", "form", "bits", "KL", "top-1", "recall KL",
           "recall top-1");
    for (uint32_t i = 0; i < report->row_count; i++) {
        const quality_basis_row *row = &report->rows[i];
        printf("%-26s %6.3f %10.6f %6.3f", row->name, row->bits, row->kl, row->top1);
        if (isnan(row->recall_kl))
            printf("\n");
        else
            printf(" %10.6f %11.3f\n", row->recall_kl, row->recall_top1);
    }
    printf("bits at the KL of entropy at %.2f bits:", report->reference_bits);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (report->bytes[s] == 0)
            printf("%s %s too wide", s > 0 ? "," : "", basis_spans[s]);
        else if (isnan(report->share[s]))
            printf("%s %s not between its rows", s > 0 ? "," : "", basis_spans[s]);
        else
            printf("%s %s %.2f (%.2f of them)", s > 0 ? "," : "", basis_spans[s],
                   report->share[s] * report->reference_bits, report->share[s]);
    }
    printf("\n");
}

static json_t *basis_pack(const quality_basis_report *report)
{
    json_t *rows = json_array();
    json_t *spans = json_object();
    for (uint32_t i = 0; i < report->row_count; i++) {
        const quality_basis_row *row = &report->rows[i];
        const view_member members[] = {{"bits", row->bits},
                                       {"kl", row->kl},
                                       {"top1", row->top1},
                                       {"recall_kl", row->recall_kl},
                                       {"recall_top1", row->recall_top1}};
        json_t *one = json_pack("{s:s}", "form", row->name);
        (void)view_put_numbers(one, members, sizeof members / sizeof members[0]);
        (void)json_array_append_new(rows, one);
    }
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        const view_member members[] = {{"share", report->share[s]},
                                       {"bytes", (double)report->bytes[s]}};
        json_t *one = json_object();
        if (report->bytes[s] != 0)
            (void)view_put_numbers(one, members, sizeof members / sizeof members[0]);
        (void)json_object_set_new(spans, basis_spans[s], one);
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "schema",
                     "kvterrace-profile-basis-1", "model", view_string(report->model.name),
                     "learnt", (json_int_t)report->learnt, "counted", (json_int_t)report->counted,
                     "judged", (json_int_t)report->judged, "seconds", report->seconds,
                     "reference_bits", report->reference_bits, "reference_kl", report->reference_kl,
                     "spans", spans, "rows", rows);
}

static int basis_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_basis_report report;
    command_choose_blas();
    const quality_basis_options options = {
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .texts = arguments->texts.items,
        .text_count = (uint32_t)arguments->texts.count,
        .contexts = measure_or(arguments->contexts, 40),
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    measure_begin(arguments);
    const kvt_status status = quality_basis_run(&options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK)
        return command_fail_content(status, status == KVT_E_CANCELLED ? "interrupted" : message);
    if (arguments->common.json) return command_print_document(basis_pack(&report));
    basis_print(&report);
    return EXIT_FINE;
}

const command_spec profile_basis_spec = {
    .name = "basis",
    .summary = "what a basis learnt on a model's KV would save",
    .about = "Learns bases of the transform codec on KV of a model (a head, a layer, four layers) "
             "and compares them with entropy on other contexts: bits, KL, and bits at equal KL. "
             "No store takes a basis yet, and nothing is stored.",
    .synopsis = "--model FILE --text FILE...",
    .example = "  kvterrace profile basis --model reference_model/model \\\n"
               "    --text reference_model/texts/recall-768.jsonl --contexts 20",
    .options = basis_rows,
    .argument_bytes = sizeof(measure_arguments),
    .check = measure_need_model,
    .run = basis_run,
};
