/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_report.c - what the contenders came to: a table for a person, and the document
 * "kvterrace-loop-1". Times are seconds, sizes bytes, ratios shares of 1; what was not measured is
 * null. One thread.
 */
#include "replay/document.h"
#include "replay/loop/loop.h"
#include "replay/results.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char *const report_tiers[KVT_TIER_COUNT] = {"total", "hbm", "dram", "ssd"};

/* ---- text ---- */

static void text_seconds(FILE *file, double seconds)
{
    char text[RESULTS_TEXT_BYTES];
    fprintf(file, " %10s", results_format_seconds(seconds, text));
}

static void text_head(const loop_report *report, FILE *file)
{
    const loop_site *site = report->site;
    const profile_model *facts = &site->measured.facts;
    char text[RESULTS_TEXT_BYTES];
    uint32_t classes[LOOP_CLASSES_MAX] = {0};
    double seconds = 0.0, tokens = 0.0, bytes = 0.0;
    for (uint32_t i = 0; i < site->context_count; i++) {
        const loop_context *context = &site->contexts[i];
        if (!context->ready) continue;
        classes[context->class_index]++;
        seconds += context->prefill_seconds;
        tokens += context->entry->context_tokens;
        bytes += (double)context->kv_bytes;
    }
    fprintf(file, "%s: %.1f M parameters, %u layers x %u KV heads x %u; %llu requests over",
            facts->name, 1e-6 * (double)facts->parameters, facts->layers, facts->kv_heads,
            facts->head_dim, (unsigned long long)report->requests->count);
    for (uint32_t i = 0; i < site->options.text_count; i++)
        fprintf(file, "%s %u contexts of %s", i > 0 ? "," : "", classes[i],
                site->options.texts[i].class_name);
    fprintf(file, ": %.0f tokens, %s of KV", tokens, results_format_bytes(bytes, text));
    fprintf(file, "\nprefill: %s for all contexts once", results_format_seconds(seconds, text));
    fprintf(file, ", fitted model off by %.1f %% (median); answers of up to %u tokens\n\n",
            100.0 * site->prefill_error_p50, site->answer_max);
}

static void text_times(const loop_report *report, FILE *file)
{
    fprintf(file, "%-16s %4s %6s %5s %10s %10s %10s %10s %10s %10s %10s %7s %7s %6s %7s %7s %7s\n",
            "contender", "seed", "hits", "rho", "TTFT", "p50", "p99", "waiting", "loading",
            "prefill", "question", "ROUGE-L", "F1", "same", "top-1", "recall", "loss");
    for (size_t i = 0; i < report->result_count; i++) {
        const loop_result *r = &report->results[i];
        const double requests = r->requests > 0 ? (double)r->requests : 1.0;
        fprintf(file, "%-16s %4llu %5.1f%% %5.2f", r->contender, (unsigned long long)r->seed,
                100.0 * (double)r->hits / requests, r->rho);
        text_seconds(file, r->ttft_mean);
        text_seconds(file, r->ttft_p50);
        text_seconds(file, r->ttft_p99);
        text_seconds(file, r->wait_mean);
        text_seconds(file, r->load_mean);
        text_seconds(file, r->prefill_mean);
        text_seconds(file, r->question_mean);
        fprintf(file, " %7.4f %7.4f %5.1f%% %7.4f", r->rouge_l, r->f1,
                100.0 * (double)r->same_answers / requests, r->top1);
        if (isfinite(r->recall))
            fprintf(file, " %7.4f", r->recall);
        else
            fprintf(file, " %7s", "-");
        fprintf(file, " %7.4f\n", r->loss);
    }
}

static void text_checks(const loop_report *report, FILE *file)
{
    fputc('\n', file);
    for (size_t i = 0; i < report->result_count; i++) {
        const loop_result *r = &report->results[i];
        fprintf(file, "%s, seed %llu: %s;", r->contender, (unsigned long long)r->seed,
                r->forms_text);
        if (r->load_predictions > 0)
            fprintf(file,
                    " predicted seconds of %llu loads off by %.1f %% (median), %.1f %% (p90);",
                    (unsigned long long)r->load_predictions, 100.0 * r->load_error_p50,
                    100.0 * r->load_error_p90);
        else
            fputs(" no load was predicted;", file);
        fprintf(file, " %llu exact gets checked, %llu differ; %llu loads declined, %llu puts, ",
                (unsigned long long)r->exact_checked, (unsigned long long)r->exact_wrong,
                (unsigned long long)r->loads_declined, (unsigned long long)r->puts);
        if (r->positions_checked > 0)
            fprintf(file, "kept tokens of %llu gets checked, %llu wrong; ",
                    (unsigned long long)r->positions_checked,
                    (unsigned long long)r->positions_wrong);
        fprintf(file, "%llu refused, %llu busy, %llu failed; %.1f s\n",
                (unsigned long long)r->refused, (unsigned long long)r->busy,
                (unsigned long long)r->failed_puts, r->wall_s);
    }
    fprintf(
        file,
        "\nTTFT = waiting + loading (read and decode) + prefill + question. ROUGE-L and F1: "
        "answers beside those from\nexact KV, over all requests; top-1: tokens of the text "
        "behind a context, and of a passage of the context (recall), after\nwhich the model "
        "expects what it does on exact KV. Loss: by %s (%s). By form, with intervals and beside "
        "the ladder's: --json, and its\npage.\n",
        quality_metric_name(report->site->options.metric),
        quality_use_name(report->site->options.use));
}

kvt_status loop_print_text(const loop_report *report, FILE *file)
{
    text_head(report, file);
    text_times(report, file);
    text_checks(report, file);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}

/* ---- JSON ---- */

static json_t *report_text(const char *text)
{
    json_t *string = text != NULL ? json_string(text) : json_null();
    return string != NULL ? string : json_string("?");
}

static json_t *report_hex(uint64_t value)
{
    return json_sprintf("%016llx", (unsigned long long)value);
}

static json_t *report_by_tier(const uint64_t *counts, int first, bool *sound)
{
    json_t *object = json_object();
    for (int tier = first; tier < KVT_TIER_COUNT; tier++)
        document_put(object, report_tiers[tier], json_integer((json_int_t)counts[tier]), sound);
    return object;
}

typedef struct report_number {
    const char *key;
    double value;
} report_number;

static void report_numbers(json_t *object, const report_number *numbers, size_t count, bool *sound)
{
    for (size_t i = 0; i < count; i++)
        document_put(object, numbers[i].key, document_number(numbers[i].value), sound);
}

typedef struct report_counter {
    const char *key;
    uint64_t value;
} report_counter;

static void report_counters(json_t *object, const report_counter *counters, size_t count,
                            bool *sound)
{
    for (size_t i = 0; i < count; i++)
        document_put(object, counters[i].key, json_integer((json_int_t)counters[i].value), sound);
}

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

static json_t *report_form(const loop_form *form, bool *sound)
{
    json_t *object = json_object();
    const report_number numbers[] = {
        {"stored_share", form->stored_share},
        {"rouge_l", form->rouge_l},
        {"f1", form->f1},
        {"top1", form->top1},
        {"recall", form->recall},
        {"loss", form->loss},
        {"loss_low", form->loss_low},
        {"loss_high", form->loss_high},
        {"loss_predicted", form->loss_predicted},
        {"loss_upper", form->loss_upper},
        {"load_s_p50", form->load_p50},
        {"load_predicted_s_p50", form->load_predicted_p50},
        {"decode_s_p50", form->decode_p50},
    };
    document_put(object, "form", report_text(form->name), sound);
    document_put(object, "hits", report_by_tier(form->hits, 0, sound), sound);
    document_put(object, "stored", report_by_tier(form->stored, 0, sound), sound);
    document_put(object, "staged", json_integer((json_int_t)form->staged), sound);
    document_put(object, "same_answers", json_integer((json_int_t)form->same), sound);
    document_put(object, "contexts", json_integer((json_int_t)form->contexts), sound);
    report_numbers(object, numbers, COUNT_OF(numbers), sound);
    const bool known = isfinite(form->loss_predicted) && isfinite(form->loss_low);
    const bool within =
        form->loss_low <= form->loss_predicted && form->loss_predicted <= form->loss_high;
    document_put(object, "loss_within", known ? json_boolean(within) : json_null(), sound);
    return object;
}

static json_t *report_result(const loop_result *r, bool *sound)
{
    json_t *object = json_object(), *forms = json_array(), *tiers = json_object();
    const report_number numbers[] = {
        {"ttft_s_mean", r->ttft_mean},
        {"ttft_s_p50", r->ttft_p50},
        {"ttft_s_p90", r->ttft_p90},
        {"ttft_s_p99", r->ttft_p99},
        {"wait_s_mean", r->wait_mean},
        {"load_s_mean", r->load_mean},
        {"prefill_s_mean", r->prefill_mean},
        {"question_s_mean", r->question_mean},
        {"put_s_mean", r->put_mean},
        {"rho", r->rho},
        {"rouge_l", r->rouge_l},
        {"rouge_l_p10", r->rouge_l_p10},
        {"f1", r->f1},
        {"top1", r->top1},
        {"recall", r->recall},
        {"loss", r->loss},
        {"loss_predicted", r->loss_predicted},
        {"load_error_p50", r->load_error_p50},
        {"load_error_p90", r->load_error_p90},
        {"span_s", r->span_s},
        {"paused_s", r->paused_s},
        {"leapt_s", r->leapt_s},
        {"wall_s", r->wall_s},
    };
    const report_counter counters[] = {
        {"seed", r->seed},
        {"requests", r->requests},
        {"loads_declined", r->loads_declined},
        {"same_answers", r->same_answers},
        {"load_predictions", r->load_predictions},
        {"exact_checked", r->exact_checked},
        {"exact_wrong", r->exact_wrong},
        {"tokens_wrong", r->tokens_wrong},
        {"positions_checked", r->positions_checked},
        {"positions_wrong", r->positions_wrong},
        {"puts", r->puts},
        {"puts_refused", r->refused},
        {"puts_busy", r->busy},
        {"puts_failed", r->failed_puts},
        {"load_failures", r->load_failures},
        {"promotions", r->promotions},
        {"demotions", r->demotions},
        {"evictions", r->evictions},
    };
    document_put(object, "contender", report_text(r->contender), sound);
    document_put(object, "stores", report_text(r->forms_text), sound);
    report_counters(object, counters, COUNT_OF(counters), sound);
    report_numbers(object, numbers, COUNT_OF(numbers), sound);
    document_put(object, "hits", report_by_tier(r->hits_by_tier, 0, sound), sound);
    document_put(object, "bytes_read", report_by_tier(r->bytes_read, 1, sound), sound);
    document_put(object, "bytes_written", report_by_tier(r->bytes_written, 1, sound), sound);
    document_put(object, "capacity_bytes", report_by_tier(r->capacity_bytes, 1, sound), sound);
    document_put(object, "used_bytes", report_by_tier(r->used_bytes, 1, sound), sound);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        document_put(tiers, report_tiers[tier], json_boolean(r->emulated[tier]), sound);
    document_put(object, "emulated", tiers, sound);
    document_put(object, "answers_fingerprint", report_hex(r->answers_fingerprint), sound);
    for (uint32_t i = 0; i < r->form_count; i++)
        document_add(forms, report_form(&r->forms[i], sound), sound);
    document_put(object, "forms", forms, sound);
    return object;
}

static json_t *report_model(const loop_report *report, bool *sound)
{
    const loop_site *site = report->site;
    const profile_model *facts = &site->measured.facts;
    json_t *object = json_object();
    const report_counter counters[] = {
        {"parameters", facts->parameters},
        {"layers", facts->layers},
        {"kv_heads", facts->kv_heads},
        {"head_dim", facts->head_dim},
        {"answers_made", site->answers_made},
        {"answers_known", site->answers_known},
        {"contexts_known", site->contexts_known},
        {"answer_tokens", site->answer_max},
    };
    document_put(object, "name", report_text(facts->name), sound);
    document_put(object, "digest", report_text(facts->digest), sound);
    report_counters(object, counters, COUNT_OF(counters), sound);
    document_put(object, "prefill", report_text(site->options.prefill_each ? "each" : "once"),
                 sound);
    document_put(object, "prefill_error_p50", document_number(site->prefill_error_p50), sound);
    return object;
}

static json_t *report_classes(const loop_report *report, bool *sound)
{
    const loop_site *site = report->site;
    json_t *classes = json_array();
    for (uint32_t i = 0; i < site->options.text_count; i++) {
        json_t *object = json_object();
        uint64_t contexts = 0, tokens = 0, bytes = 0;
        double seconds = 0.0;
        for (uint32_t c = 0; c < site->context_count; c++) {
            const loop_context *context = &site->contexts[c];
            if (!context->ready || context->class_index != i) continue;
            contexts++;
            tokens += context->entry->context_tokens;
            bytes += context->kv_bytes;
            seconds += context->prefill_seconds;
        }
        const report_counter counters[] = {
            {"contexts", contexts}, {"tokens", tokens}, {"kv_bytes", bytes}};
        document_put(object, "class", report_text(site->options.texts[i].class_name), sound);
        report_counters(object, counters, COUNT_OF(counters), sound);
        document_put(object, "prefill_s", document_number(seconds), sound);
        document_add(classes, object, sound);
    }
    return classes;
}

static json_t *report_ladder(const loop_ladder *ladder, bool *sound)
{
    json_t *rungs = json_array();
    for (uint32_t i = 0; i < ladder->all; i++) {
        const kvt_codec_curve *curve = &ladder->curves[i];
        json_t *object = json_object();
        char name[QUALITY_NAME_BYTES];
        (void)kvt_variant_format(curve->variant, name, sizeof name);
        document_put(object, "form", report_text(name), sound);
        document_put(object, "stored_share", document_number(curve->stored_share), sound);
        document_put(object, "loss", document_number(curve->loss), sound);
        document_put(object, "loss_upper", document_number(curve->loss_upper), sound);
        document_put(object, "of_ladder", json_boolean(i < ladder->count), sound);
        document_add(rungs, object, sound);
    }
    return rungs;
}

kvt_status loop_print_json(const loop_report *report, FILE *file)
{
    bool sound = true;
    json_t *root = json_object(), *results = json_array(), *workload = json_object();
    document_put(root, "schema", json_string("kvterrace-loop-1"), &sound);
    document_put(root, "version", report_text(report->version), &sound);
    document_put(root, "command", report_text(report->command), &sound);
    document_put(root, "machine", report_text(report->machine), &sound);
    document_put(root, "date", report_text(report->date), &sound);
    document_put(root, "model", report_model(report, &sound), &sound);
    document_put(root, "classes", report_classes(report, &sound), &sound);
    document_put(workload, "name", report_text(report->workload), &sound);
    document_put(workload, "requests", json_integer((json_int_t)report->requests->count), &sound);
    document_put(workload, "contexts", json_integer((json_int_t)report->requests->distinct),
                 &sound);
    document_put(workload, "fingerprint", report_hex(report->requests->fingerprint), &sound);
    document_put(root, "workload", workload, &sound);
    document_put(root, "ladder_class", report_text(report->ladder->class_name), &sound);
    document_put(root, "ladder", report_ladder(report->ladder, &sound), &sound);
    document_put(root, "loss_metric",
                 report_text(quality_metric_name(report->site->options.metric)), &sound);
    document_put(root, "loss_use", report_text(quality_use_name(report->site->options.use)),
                 &sound);
    document_put(root, "loss_limit", document_number(report->store->loss_limit), &sound);
    document_put(root, "alpha_s", document_number(report->store->alpha_seconds), &sound);
    for (size_t i = 0; i < report->result_count; i++)
        document_add(results, report_result(&report->results[i], &sound), &sound);
    document_put(root, "results", results, &sound);
    return document_print(root, sound, 10, file);
}
