/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_profile.c - a measurement with a model, into a profile. Rows of all classes lie behind
 * each other, so that the pooled set is the same rows once more. Thread rule: callbacks come from
 * measuring threads, one at a time.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/model/model_internal.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/quality.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROFILE_QUALITY_SEED = 1 };

#define QUALITY_METHOD "continuation"
#define QUALITY_POOLED "pooled"

/* One class at work, and where its rows lie. */
typedef struct run_class {
    quality_entries entries;
    uint32_t first; /* of all entries */
    int64_t set;
} run_class;

typedef struct profile_quality_run {
    kvt_profile *profile;
    const quality_profile_options *options;
    quality_report *report;
    char *message;
    size_t message_size;
    quality_model measured;
    int64_t model, run;
    run_class classes[QUALITY_CLASSES_MAX];
    uint32_t entry_count;
    quality_row *rows;    /* [entry_count][variant_count] */
    quality_exact *exact; /* [entry_count] */
    /* While measuring. */
    const run_class *at;
    uint64_t done; /* rows */
} profile_quality_run;

/* ---- what is measured ---- */

static kvt_status run_read_texts(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    kvt_status status = KVT_OK;
    bool asked = false;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        run_class *at = &run->classes[i];
        at->first = run->entry_count;
        status = quality_entries_read(
            o->classes[i].texts, o->classes[i].text_count, run->measured.tokens, o->context_tokens,
            o->continuation_tokens, o->contexts, &at->entries, run->message, run->message_size);
        run->entry_count += at->entries.count;
        for (uint32_t j = 0; j < at->entries.count; j++)
            asked = asked || at->entries.entries[j].question_count > 0;
    }
    if (status == KVT_OK && o->metric == QUALITY_ANSWERS && !asked) {
        (void)snprintf(run->message, run->message_size, "no text has questions with answers");
        return KVT_E_ARGUMENT;
    }
    if (status != KVT_OK) return status;
    run->rows = calloc((size_t)run->entry_count * o->variant_count, sizeof *run->rows);
    run->exact = calloc(run->entry_count, sizeof *run->exact);
    return run->rows != NULL && run->exact != NULL ? KVT_OK : KVT_E_MEMORY;
}

static kvt_status run_check(const quality_profile_options *o, char *message, size_t message_size)
{
    const char *wrong = NULL;
    if (o->class_count < 1 || o->class_count > QUALITY_CLASSES_MAX) wrong = "1 to 8 classes";
    if (o->variant_count < 1 || o->variant_count > QUALITY_VARIANTS_MAX)
        wrong = "1 to 128 variants";
    if (o->contexts < 1 || o->context_tokens < 1 || o->continuation_tokens < 4)
        wrong = "at least one entry of 1 + 4 tokens";
    if (o->metric >= QUALITY_METRICS) wrong = "a metric";
    if ((o->metric == QUALITY_ROUGE_L || o->metric == QUALITY_F1) && o->answer_tokens == 0)
        wrong = "answers to compare";
    for (uint32_t i = 0; wrong == NULL && i < o->class_count; i++) {
        size_t length = strlen(o->classes[i].name);
        if (length < 1 || length > 63 || strcmp(o->classes[i].name, QUALITY_POOLED) == 0)
            wrong = "names of classes of 1 to 63 bytes, none of them 'pooled'";
    }
    if (wrong == NULL) return KVT_OK;
    (void)snprintf(message, message_size, "a measurement of quality takes %s", wrong);
    return KVT_E_ARGUMENT;
}

/* ---- sets in the database ---- */

/* What a run that goes on with this one must share. The caller frees it. */
static char *run_settings(const profile_quality_run *run, uint64_t digest, uint32_t entries)
{
    const quality_profile_options *o = run->options;
    char text[24];
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:i}", "texts", text, "entries",
                             (json_int_t)entries, "context_tokens", (json_int_t)o->context_tokens,
                             "continuation_tokens", (json_int_t)o->continuation_tokens,
                             "answer_tokens", (json_int_t)o->answer_tokens, "metric",
                             quality_metric_name(o->metric), "seed", PROFILE_QUALITY_SEED);
    char *settings = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    return settings;
}

/* Finds the set of an interrupted run, or makes one; the first decides which run it is. */
static kvt_status run_open_set(profile_quality_run *run, const char *class_name, uint64_t digest,
                               const quality_entry *first, uint32_t entries, int64_t *set_out)
{
    char *settings = run_settings(run, digest, entries);
    int64_t found = 0;
    if (settings == NULL) return KVT_E_MEMORY;
    const profile_set set = {.model = run->model,
                             .class_name = class_name,
                             .method = QUALITY_METHOD,
                             .settings = settings,
                             .context_tokens = first->context_tokens,
                             .continuation_tokens = first->continuation_tokens,
                             .entries = entries};
    kvt_status status = profile_set_find(run->profile, &set, &found, set_out);
    if (status == KVT_OK && run->run == 0) run->run = found;
    if (status == KVT_OK && run->run != found) status = KVT_MISS;
    if (status == KVT_MISS && run->run == 0) {
        status = profile_run_begin(run->profile, "quality", run->options->command_line,
                                   PROFILE_QUALITY_SEED, &run->run);
        if (status == KVT_OK) status = KVT_MISS;
    }
    if (status == KVT_MISS) status = profile_set_insert(run->profile, run->run, &set, set_out);
    free(settings);
    return status;
}

/* Takes over a row that an earlier run has left. */
static void run_take_row(void *context, uint32_t entry, kvt_variant variant, const quality_row *row)
{
    profile_quality_run *run = context;
    const quality_profile_options *o = run->options;
    if (entry >= run->at->entries.count) return;
    for (uint32_t i = 0; i < o->variant_count; i++) {
        kvt_variant key = quality_variant_key(&o->variants[i]);
        if (key.codec != variant.codec || key.mode != variant.mode || key.rate != variant.rate)
            continue;
        run->rows[(size_t)(run->at->first + entry) * o->variant_count + i] = *row;
        run->report->resumed++;
    }
}

static kvt_status run_open_sets(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    kvt_status status = profile_model_put(run->profile, &run->report->model, &run->model);
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        run_class *at = &run->classes[i];
        run->at = at;
        status = run_open_set(run, o->classes[i].name, at->entries.digest, at->entries.entries,
                              at->entries.count, &at->set);
        if (status == KVT_OK)
            status = profile_entries_read(run->profile, at->set, run_take_row, run);
    }
    run->done = run->report->resumed;
    return status;
}

/* ---- measuring ---- */

static bool run_wanted(void *context, uint32_t entry, uint32_t variant)
{
    const profile_quality_run *run = context;
    size_t row = (size_t)(run->at->first + entry) * run->options->variant_count + variant;
    return !run->rows[row].present;
}

static bool run_progress(const profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    double all = (double)run->entry_count * o->variant_count;
    if (o->progress == NULL) return true;
    return o->progress(o->progress_context, (double)run->done / all,
                       o->classes[run->at - run->classes].name);
}

static kvt_status run_opened(void *context, uint32_t entry, const quality_exact *exact)
{
    profile_quality_run *run = context;
    run->exact[run->at->first + entry] = *exact;
    run->exact[run->at->first + entry].entry = NULL;
    return run_progress(run) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_status run_done(void *context, uint32_t entry, uint32_t variant, const quality_row *row)
{
    profile_quality_run *run = context;
    const quality_profile_options *o = run->options;
    uint32_t index = run->at->first + entry;
    quality_row *to = &run->rows[(size_t)index * o->variant_count + variant];
    *to = *row;
    to->loss = quality_row_loss(o->metric, row, run->exact[index].answers);
    kvt_status status = profile_entry_insert(run->profile, run->at->set, entry,
                                             quality_variant_key(&o->variants[variant]), to);
    run->done++;
    if (status == KVT_OK && !run_progress(run)) status = KVT_E_CANCELLED;
    return status;
}

static kvt_status run_measure(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        run->at = &run->classes[i];
        const quality_request request = {.model = run->measured.weights,
                                         .tokenizer = run->measured.tokens,
                                         .entries = run->at->entries.entries,
                                         .entry_count = run->at->entries.count,
                                         .variants = o->variants,
                                         .variant_count = o->variant_count,
                                         .threads = o->threads,
                                         .answer_tokens = o->answer_tokens,
                                         .wanted = run_wanted,
                                         .opened = run_opened,
                                         .done = run_done,
                                         .context = run};
        status = quality_measure(&request, run->message, run->message_size);
    }
    return status;
}

/* ---- curves ---- */

static void run_exact_means(const quality_exact *exact, uint32_t count, quality_spread *spread)
{
    double nll = 0.0, right = 0.0, questions = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        nll += exact[i].nll / count;
        if (exact[i].questions == 0) continue;
        right += exact[i].answers * exact[i].questions;
        questions += exact[i].questions;
    }
    spread->nll_nats = nll;
    spread->answers = questions > 0.0 ? right / questions : (double)NAN;
}

/* One set of the report from its rows, and into the database. */
static kvt_status run_report_set(profile_quality_run *run, const char *class_name, int64_t set,
                                 const quality_entry *entry, uint32_t first, uint32_t count)
{
    const quality_profile_options *o = run->options;
    quality_set_report *report = &run->report->sets[run->report->set_count++];
    const quality_row *rows = run->rows + (size_t)first * o->variant_count;
    (void)snprintf(report->class_name, sizeof report->class_name, "%s", class_name);
    report->entries = count;
    report->context_tokens = entry->context_tokens;
    report->continuation_tokens = entry->continuation_tokens;
    report->curves = calloc(o->variant_count, sizeof *report->curves);
    report->sensitivity = calloc(count, sizeof *report->sensitivity);
    if (report->curves == NULL || report->sensitivity == NULL) return KVT_E_MEMORY;
    run_exact_means(run->exact + first, count, &report->spread);
    kvt_status status = quality_summarise(rows, count, o->variant_count, PROFILE_QUALITY_SEED,
                                          report->curves, &report->spread);
    if (status == KVT_OK)
        status = quality_sensitivity(rows, count, o->variant_count, report->sensitivity,
                                     &report->spread);
    for (uint32_t i = 0; status == KVT_OK && i < o->variant_count; i++) {
        const quality_curve *curve = &report->curves[i];
        if (curve->entries == 0 || !isfinite(curve->loss_mean)) continue;
        status = profile_curve_insert(run->profile, set, quality_variant_key(&o->variants[i]),
                                      o->variants[i].name, quality_metric_name(o->metric), curve);
    }
    if (status == KVT_OK) status = profile_set_finish(run->profile, set, &report->spread);
    return status;
}

static kvt_status run_report_pooled(profile_quality_run *run)
{
    const uint32_t class_count = run->options->class_count;
    const quality_entry *first = run->classes[0].entries.entries;
    uint64_t digests[QUALITY_CLASSES_MAX];
    int64_t set = 0;
    for (uint32_t i = 0; i < class_count; i++)
        digests[i] = run->classes[i].entries.digest;
    kvt_status status =
        run_open_set(run, QUALITY_POOLED, checksum_of(digests, class_count * sizeof *digests),
                     first, run->entry_count, &set);
    if (status != KVT_OK) return status;
    return run_report_set(run, QUALITY_POOLED, set, first, 0, run->entry_count);
}

static kvt_status run_report(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        const run_class *at = &run->classes[i];
        status = run_report_set(run, o->classes[i].name, at->set, at->entries.entries, at->first,
                                at->entries.count);
    }
    if (status == KVT_OK && o->class_count > 1) status = run_report_pooled(run);
    if (status == KVT_OK) status = profile_run_complete(run->profile, run->run);
    return status;
}

kvt_status quality_profile_run(kvt_profile *profile, const quality_profile_options *options,
                               quality_report *report_out, char *message, size_t message_size)
{
    profile_quality_run run = {.profile = profile,
                               .options = options,
                               .report = report_out,
                               .message = message,
                               .message_size = message_size};
    double start = base_clock_seconds();
    *report_out = (quality_report){.metric = options->metric};
    message[0] = '\0';
    kvt_status status = run_check(options, message, message_size);
    if (status == KVT_OK)
        status = quality_model_open(options->model, options->tokenizer, options->name,
                                    &run.measured, message, message_size);
    report_out->model = run.measured.facts;
    if (status == KVT_OK) status = run_read_texts(&run);
    if (status == KVT_OK) status = run_open_sets(&run);
    if (status == KVT_OK) status = run_measure(&run);
    if (status == KVT_OK) status = run_report(&run);
    report_out->seconds = base_clock_seconds() - start;
    for (uint32_t i = 0; i < QUALITY_CLASSES_MAX; i++)
        quality_entries_free(&run.classes[i].entries);
    free(run.rows);
    free(run.exact);
    quality_model_close(&run.measured);
    return status;
}

void quality_report_free(quality_report *report)
{
    for (uint32_t i = 0; i < QUALITY_CLASSES_MAX + 1; i++) {
        free(report->sets[i].curves);
        free(report->sets[i].sensitivity);
    }
    *report = (quality_report){.set_count = 0};
}
