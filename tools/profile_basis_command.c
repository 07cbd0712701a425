/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_basis_command.c - kvterrace profile basis: what bases of the transform codec, learnt on a
 * model's KV, save on other texts of the same classes and of others. Nothing is stored. One thread.
 */
#include "estimator/quality/quality_basis.h"
#include "profile_document.h"
#include "profile_measure.h"

#include <math.h>
#include <string.h>

enum { BASIS_TEACH = 32, BASIS_TABLES = 8, BASIS_JUDGE = 8 };

typedef struct basis_arguments {
    measure_arguments measure;
    const char *learn, *output, *basis, *rows;
    uint32_t teach, tables, judge, longest;
} basis_arguments;

/* What the options of the measurement point into. */
typedef struct basis_work {
    measure_classes classes;
    bool teaches[QUALITY_CLASSES_MAX];
    quality_basis_options options;
    quality_basis_report report;
} basis_work;

#define BASIS_COUNT(field, name, help) COUNT_OPTION(basis_arguments, field, name, 1, 100000, help)

static const command_option basis_rows[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", QUALITY_CLASSES_MAX *MEASURE_TEXTS_MAX),
    MEASURE_CLASS_ROW,
    TEXT_OPTION(basis_arguments, learn, "learn", 0, "LIST",
                "Classes that teach, with commas between them; the others judge alone (all)"),
    BASIS_COUNT(teach, "teach", "Contexts that teach, of all classes together (32)"),
    BASIS_COUNT(tables, "tables", "Contexts that make tables, of all classes together (8)"),
    BASIS_COUNT(judge, "judge", "Contexts of each class that judge (8)"),
    BASIS_COUNT(longest, "longest", "Pass over contexts of more tokens (none is passed over)"),
    MEASURE_LENGTHS,
    TEXT_OPTION(basis_arguments, basis, "basis", 0, "FILE",
                "Judge the bases of FILE-head.kvtbasis and so on, which --output wrote, instead of "
                "learning them again"),
    TEXT_OPTION(basis_arguments, rows, "rows", 0, "FILE",
                "Keep what was judged in FILE, and do not judge it again"),
    COUNT_OPTION(basis_arguments, measure.minutes, "minutes", 1, 100000,
                 "Stop judging after so many; with --rows the same command goes on"),
    OUTPUT_OPTION(basis_arguments, output, "Write the bases to FILE-head.kvtbasis and so on"),
    {0},
};

/* ---- the report ---- */

static void basis_print_row(const quality_basis_row *row)
{
    printf("%-26s %6.3f %10.6f %6.3f", row->name, row->bits, row->kl, row->top1);
    if (isnan(row->recall_kl))
        printf("  %10s %11s", "", "");
    else
        printf("  %10.6f %11.3f", row->recall_kl, row->recall_top1);
    if (!isnan(row->order0_bits))
        printf("  %+.1f %%", 100.0 * (row->bits / row->order0_bits - 1.0));
    printf("\n");
}

static void basis_print_judged(const quality_basis_report *report,
                               const quality_basis_judged *judged)
{
    printf("\n%s, %u contexts%s\n", judged->name, (unsigned)judged->contexts,
           judged->taught ? "" : "; none of this class taught");
    printf("%-26s %6s %10s %6s  %10s %11s  %s\n", "form", "bits", "KL", "top-1", "recall KL",
           "recall top-1", "over order 0");
    for (uint32_t i = 0; i < report->row_count; i++)
        basis_print_row(&judged->rows[i]);
    if (isnan(judged->reference_kl)) {
        printf("no two settings of entropy have %.1f bits between them\n", QUALITY_BASIS_BITS);
        return;
    }
    printf("at the KL of entropy at %.1f bits, %.6f:", QUALITY_BASIS_BITS, judged->reference_kl);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (report->bytes[s] == 0) continue;
        printf("%s %s", s > 0 ? "," : "", quality_basis_span_name(s + 1));
        if (isnan(judged->bits[s]))
            printf(" not between its rows");
        else
            printf(" %.2f bits, %.2f of them", judged->bits[s],
                   judged->bits[s] / QUALITY_BASIS_BITS);
    }
    printf("\n");
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (!isnan(judged->recall_top1[s]))
            printf("recall top-1 of %s at %.1f bits: %.3f\n", quality_basis_span_name(s + 1),
                   quality_basis_recall_bits[s], judged->recall_top1[s]);
    }
}

static void basis_print(const quality_basis_report *report)
{
    printf("%s: %u contexts of %llu tokens taught, %u others made tables, %.0f s\n",
           report->model.name, (unsigned)report->taught, (unsigned long long)report->taught_tokens,
           (unsigned)report->tables, report->seconds);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (report->bytes[s] != 0)
            printf("basis %-8s %.2f MB, %.16s\n", quality_basis_span_name(s + 1),
                   (double)report->bytes[s] * 1e-6, report->hashes[s]);
    }
    for (uint32_t i = 0; i < report->judged_count; i++)
        basis_print_judged(report, &report->judged[i]);
}

static json_t *basis_pack_rows(const quality_basis_report *report,
                               const quality_basis_judged *judged)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->row_count; i++) {
        const quality_basis_row *row = &judged->rows[i];
        const view_member members[] = {{"bits", row->bits},
                                       {"order0_bits", row->order0_bits},
                                       {"kl", row->kl},
                                       {"top1", row->top1},
                                       {"recall_kl", row->recall_kl},
                                       {"recall_top1", row->recall_top1}};
        json_t *one = json_pack("{s:s}", "form", row->name);
        (void)view_put_numbers(one, members, sizeof members / sizeof members[0]);
        (void)json_array_append_new(rows, one);
    }
    return rows;
}

static json_t *basis_pack_judged(const quality_basis_report *report,
                                 const quality_basis_judged *judged)
{
    json_t *spans = json_object();
    const view_member reference[] = {{"reference_bits", QUALITY_BASIS_BITS},
                                     {"reference_kl", judged->reference_kl}};
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        const view_member members[] = {{"bits", judged->bits[s]},
                                       {"share", judged->bits[s] / QUALITY_BASIS_BITS},
                                       {"recall_bits", quality_basis_recall_bits[s]},
                                       {"recall_top1", judged->recall_top1[s]}};
        json_t *one = json_object();
        if (report->bytes[s] == 0) continue;
        (void)view_put_numbers(one, members, sizeof members / sizeof members[0]);
        (void)json_object_set_new(spans, quality_basis_span_name(s + 1), one);
    }
    json_t *all = json_pack("{s:s, s:b, s:I, s:o, s:o}", "class", judged->name, "taught",
                            (int)judged->taught, "contexts", (json_int_t)judged->contexts, "spans",
                            spans, "rows", basis_pack_rows(report, judged));
    (void)view_put_numbers(all, reference, sizeof reference / sizeof reference[0]);
    return all;
}

static json_t *basis_pack(const quality_basis_report *report)
{
    json_t *bases = json_array(), *judged = json_array();
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (report->bytes[s] == 0) continue;
        (void)json_array_append_new(
            bases, json_pack("{s:s, s:I, s:s}", "span", quality_basis_span_name(s + 1), "bytes",
                             (json_int_t)report->bytes[s], "hash", report->hashes[s]));
    }
    for (uint32_t i = 0; i < report->judged_count; i++)
        (void)json_array_append_new(judged, basis_pack_judged(report, &report->judged[i]));
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:f, s:o, s:o}", "schema",
                     "kvterrace-profile-basis-2", "model", view_string(report->model.name),
                     "taught", (json_int_t)report->taught, "taught_tokens",
                     (json_int_t)report->taught_tokens, "tables", (json_int_t)report->tables,
                     "seconds", report->seconds, "bases", bases, "judged", judged);
}

/* ---- the measurement ---- */

static kvt_status basis_measure(basis_arguments *arguments, basis_work *work, char *message,
                                size_t message_size)
{
    measure_arguments *measure = &arguments->measure;
    kvt_status status = command_parse_classes(measure, &work->classes, message, message_size);
    if (status == KVT_OK)
        status = command_choose_classes(arguments->learn, &work->classes, work->teaches, message,
                                        message_size);
    if (status != KVT_OK) return status;
    work->options = (quality_basis_options){
        .model = measure->model,
        .tokenizer = measure->tokenizer,
        .classes = work->classes.classes,
        .class_count = work->classes.count,
        .teaches = work->teaches,
        .teach_contexts = measure_or(arguments->teach, BASIS_TEACH),
        .table_contexts = measure_or(arguments->tables, BASIS_TABLES),
        .judge_contexts = measure_or(arguments->judge, BASIS_JUDGE),
        .longest = arguments->longest,
        .context_tokens = measure_or(measure->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(measure->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .output = arguments->output,
        .basis = arguments->basis,
        .rows = arguments->rows,
        .seconds = 60.0 * measure->minutes,
        .progress = progress_ask,
        .progress_context = &measure->bar};
    measure_begin(measure);
    status = quality_basis_run(&work->options, &work->report, message, message_size);
    progress_end(&measure->bar);
    return status;
}

static int basis_run(void *context)
{
    basis_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    basis_work *work = calloc(1, sizeof *work);
    if (work == NULL) return command_fail(KVT_E_MEMORY, "");
    command_choose_blas();
    const kvt_status status = basis_measure(arguments, work, message, sizeof message);
    int code = EXIT_FINE;
    if (status != KVT_OK)
        code = command_fail_content(status, status == KVT_E_CANCELLED ? "interrupted" : message);
    else if (arguments->measure.common.json)
        code = command_print_document(basis_pack(&work->report));
    else
        basis_print(&work->report);
    free(work);
    return code;
}

const command_spec profile_basis_spec = {
    .name = "basis",
    .summary = "what a basis learnt on a model's KV saves on other texts",
    .about = "Learns bases of the transform codec on KV of a model (a head, a layer, four layers) "
             "and compares them with entropy on other documents, of the classes that taught and of "
             "others: bits, KL, recall of a passage, and bits at equal KL. With --output the bases "
             "are written, which "
             "kvt_basis_add gives to a store; nothing else is stored.",
    .synopsis = "--model FILE --text [CLASS=]FILE...",
    .example = "  kvterrace profile basis --model reference_model/model \\\n"
               "    --text reference_model/texts/recall-768.jsonl",
    .options = basis_rows,
    .argument_bytes = sizeof(basis_arguments),
    .check = measure_need_model,
    .run = basis_run,
};
