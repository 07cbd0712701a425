/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_report.c - what the contenders came to: a table for a person, and the document
 * "kvterrace-loop-1". Times are seconds, sizes bytes, ratios shares of 1; what was not measured is
 * null. One thread.
 */
#include "replay/document.h"
#include "replay/loop/loop.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* ---- JSON ---- */

static json_t *report_hex(uint64_t value)
{
    return json_sprintf("%016llx", (unsigned long long)value);
}

#define NAMED(key, member) DOCUMENT_FIELD(REPORT_TYPE, key, member)
#define FIELD(member)      NAMED(#member, member)

#define REPORT_TYPE loop_form
static json_t *report_form(const loop_form *form, bool *sound)
{
    json_t *object = json_object();
    DOCUMENT_PUT_FIELDS(
        object, form, sound, NAMED("form", name), FIELD(staged), NAMED("same_answers", same),
        FIELD(contexts), FIELD(stored_share), FIELD(rouge_l), FIELD(f1), FIELD(top1), FIELD(recall),
        FIELD(loss), FIELD(loss_low), FIELD(loss_high), FIELD(loss_predicted), FIELD(loss_upper),
        NAMED("load_s_p50", load_p50), NAMED("load_predicted_s_p50", load_predicted_p50),
        NAMED("decode_s_p50", decode_p50));
    document_put(object, "hits", DOCUMENT_TIERS(form->hits, 0, sound), sound);
    document_put(object, "stored", DOCUMENT_TIERS(form->stored, 0, sound), sound);
    const bool known = isfinite(form->loss_predicted) && isfinite(form->loss_low);
    const bool within =
        form->loss_low <= form->loss_predicted && form->loss_predicted <= form->loss_high;
    document_put(object, "loss_within", known ? json_boolean(within) : json_null(), sound);
    return object;
}

#undef REPORT_TYPE
#define REPORT_TYPE loop_result
static json_t *report_result(const loop_result *r, bool *sound)
{
    json_t *object = json_object(), *forms = json_array();
    DOCUMENT_PUT_FIELDS(object, r, sound, FIELD(contender), NAMED("stores", forms_text),
                        FIELD(seed), FIELD(requests), FIELD(loads_declined), FIELD(same_answers),
                        FIELD(load_predictions), FIELD(exact_checked), FIELD(exact_wrong),
                        FIELD(tokens_wrong), FIELD(positions_checked), FIELD(positions_wrong),
                        FIELD(puts), NAMED("puts_refused", refused), NAMED("puts_busy", busy),
                        NAMED("puts_failed", failed_puts), FIELD(load_failures), FIELD(promotions),
                        FIELD(demotions), FIELD(evictions));
    DOCUMENT_PUT_FIELDS(
        object, r, sound, NAMED("ttft_s_mean", ttft_mean), NAMED("ttft_s_p50", ttft_p50),
        NAMED("ttft_s_p90", ttft_p90), NAMED("ttft_s_p99", ttft_p99),
        NAMED("wait_s_mean", wait_mean), NAMED("load_s_mean", load_mean),
        NAMED("prefill_s_mean", prefill_mean), NAMED("question_s_mean", question_mean),
        NAMED("put_s_mean", put_mean), FIELD(rho), FIELD(rouge_l), FIELD(rouge_l_p10), FIELD(f1),
        FIELD(top1), FIELD(recall), FIELD(loss), FIELD(loss_predicted), FIELD(load_error_p50),
        FIELD(load_error_p90), FIELD(span_s), FIELD(paused_s), FIELD(leapt_s), FIELD(wall_s));
    document_put(object, "hits", DOCUMENT_TIERS(r->hits_by_tier, 0, sound), sound);
    document_put(object, "bytes_read", DOCUMENT_TIERS(r->bytes_read, 1, sound), sound);
    document_put(object, "bytes_written", DOCUMENT_TIERS(r->bytes_written, 1, sound), sound);
    document_put(object, "capacity_bytes", DOCUMENT_TIERS(r->capacity_bytes, 1, sound), sound);
    document_put(object, "used_bytes", DOCUMENT_TIERS(r->used_bytes, 1, sound), sound);
    document_put(object, "emulated", DOCUMENT_TIERS(r->emulated, 1, sound), sound);
    document_put(object, "answers_fingerprint", report_hex(r->answers_fingerprint), sound);
    for (uint32_t i = 0; i < r->form_count; i++)
        document_add(forms, report_form(&r->forms[i], sound), sound);
    document_put(object, "forms", forms, sound);
    return object;
}

#undef REPORT_TYPE
#define REPORT_TYPE loop_site
static json_t *report_model(const loop_site *site, bool *sound)
{
    json_t *object = json_object();
    DOCUMENT_PUT_FIELDS(
        object, site, sound, NAMED("name", measured.facts.name),
        NAMED("digest", measured.facts.digest), NAMED("parameters", measured.facts.parameters),
        NAMED("layers", measured.facts.layers), NAMED("kv_heads", measured.facts.kv_heads),
        NAMED("head_dim", measured.facts.head_dim), FIELD(answers_made), FIELD(answers_known),
        FIELD(contexts_known), NAMED("answer_tokens", answer_max), FIELD(prefill_error_p50));
    document_put(object, "prefill", json_string(site->options.prefill_each ? "each" : "once"),
                 sound);
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
        document_put(object, "class", document_text(site->options.texts[i].class_name), sound);
        document_put(object, "contexts", json_integer((json_int_t)contexts), sound);
        document_put(object, "tokens", json_integer((json_int_t)tokens), sound);
        document_put(object, "kv_bytes", json_integer((json_int_t)bytes), sound);
        document_put(object, "prefill_s", document_number(seconds), sound);
        document_add(classes, object, sound);
    }
    return classes;
}

#undef REPORT_TYPE
#define REPORT_TYPE kvt_codec_curve
static json_t *report_ladder(const loop_ladder *ladder, bool *sound)
{
    json_t *rungs = json_array();
    for (uint32_t i = 0; i < ladder->all; i++) {
        const kvt_codec_curve *curve = &ladder->curves[i];
        json_t *object = json_object();
        char name[QUALITY_NAME_BYTES];
        (void)kvt_variant_format(curve->variant, name, sizeof name);
        document_put(object, "form", document_text(name), sound);
        DOCUMENT_PUT_FIELDS(object, curve, sound, FIELD(stored_share), FIELD(loss),
                            FIELD(loss_upper));
        document_put(object, "of_ladder", json_boolean(i < ladder->count), sound);
        document_add(rungs, object, sound);
    }
    return rungs;
}

static json_t *report_document(const loop_report *report, bool *sound)
{
    json_t *root = json_object(), *results = json_array(), *workload = json_object();
    document_put(root, "schema", json_string("kvterrace-loop-1"), sound);
    document_put(root, "version", document_text(report->version), sound);
    document_put(root, "command", document_text(report->command), sound);
    document_put(root, "machine", document_text(report->machine), sound);
    document_put(root, "date", document_text(report->date), sound);
    document_put(root, "others_share", document_number(report->others_share), sound);
    document_put(root, "model", report_model(report->site, sound), sound);
    document_put(root, "classes", report_classes(report, sound), sound);
    document_put(workload, "name", document_text(report->workload), sound);
    document_put(workload, "requests", json_integer((json_int_t)report->requests->count), sound);
    document_put(workload, "contexts", json_integer((json_int_t)report->requests->distinct), sound);
    document_put(workload, "fingerprint", report_hex(report->requests->fingerprint), sound);
    document_put(root, "workload", workload, sound);
    document_put(root, "ladder_class", document_text(report->ladder->class_name), sound);
    document_put(root, "ladder", report_ladder(report->ladder, sound), sound);
    document_put(root, "loss_metric",
                 document_text(quality_metric_name(report->site->options.metric)), sound);
    document_put(root, "loss_use", document_text(quality_use_name(report->site->options.use)),
                 sound);
    document_put(root, "loss_limit", document_number(report->store->loss.loss_limit), sound);
    document_put(root, "alpha_s", document_number(report->store->loss.alpha_seconds), sound);
    document_put(root, "alpha_prefills", document_number(report->store->loss.alpha_prefills),
                 sound);
    for (size_t i = 0; i < report->result_count; i++)
        document_add(results, report_result(&report->results[i], sound), sound);
    document_put(root, "results", results, sound);
    return root;
}

kvt_status loop_print_json(const loop_report *report, FILE *file)
{
    bool sound = true;
    json_t *root = report_document(report, &sound);
    return document_print(root, sound, 10, file);
}

/* ---- text ---- */

#define RUN "contender seed "

static const document_table report_tables[] = {
    {"model", "name layers kv_heads head_dim answer_tokens prefill_error=prefill_error_p50"},
    {"classes", "class contexts tokens kv_bytes prefill_s"},
    {"results", RUN "requests hits=hits.total rho TTFT=ttft_s_mean p50=ttft_s_p50 p99=ttft_s_p99 "
                    "waiting=wait_s_mean loading=load_s_mean prefill=prefill_s_mean "
                    "question=question_s_mean ROUGE-L=rouge_l F1=f1 same=same_answers top-1=top1 "
                    "recall loss"},
    {"results", RUN "predicted_loads=load_predictions off_p50=load_error_p50 "
                    "off_p90=load_error_p90 checked=exact_checked differ=exact_wrong "
                    "positions=positions_checked wrong=positions_wrong declined=loads_declined "
                    "puts refused=puts_refused busy=puts_busy failed=puts_failed wall_s stores"},
    {0},
};

kvt_status loop_print_text(const loop_report *report, FILE *file)
{
    bool sound = true;
    json_t *root = report_document(report, &sound);
    if (sound) document_print_tables(root, report_tables, file);
    json_decref(root);
    if (!sound) return KVT_E_MEMORY;
    fprintf(
        file,
        "\nTTFT = waiting + loading (read and decode) + prefill + question. ROUGE-L and F1: "
        "answers beside those from\nexact KV, over all requests; top-1: tokens of the text "
        "behind a context, and of a passage of the context (recall), after\nwhich the model "
        "expects what it does on exact KV. Loss: by %s (%s). By variant, with intervals and beside "
        "the ladder's: --json, and its\npage.\n",
        quality_metric_name(report->site->options.metric),
        quality_use_name(report->site->options.use));
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
