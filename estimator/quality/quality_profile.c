/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_profile.c - a measurement with a model, into a profile. Rows of all classes lie behind
 * each other, so that the pooled set is the same rows once more. Entries are measured in turns of
 * the classes, so that a measurement that is stopped has about as many of each.
 *
 * An entry that is whole is not run again when a stopped measurement goes on: what its exact run
 * gave is a row of its own, under a variant that no record has (QUALITY_EXACT_KEY).
 *
 * Thread rule: callbacks come from measuring threads, one at a time.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/model/model_internal.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/promise.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One class at work, and where its rows lie. */
typedef struct run_class {
    quality_entries entries;
    uint32_t first;          /* of all entries */
    int64_t set, recall_set; /* 0: no entry has a passage */
} run_class;

typedef struct profile_quality_run {
    kvt_profile *profile;
    const quality_profile_options *options;
    quality_report *report;
    char *message;
    size_t message_size;
    double started; /* seconds of the clock */
    quality_model measured;
    int64_t model, run;
    run_class classes[QUALITY_CLASSES_MAX];
    uint32_t entry_count;
    quality_row *rows;    /* [entry_count][variant_count] */
    quality_exact *exact; /* [entry_count]; nll 0: not known */
    /* While measuring. */
    quality_entry *turns; /* [entry_count], in the order of measuring */
    uint32_t *numbers;    /* [entry_count]: of a turn, the entry's place among all */
    const run_class *at;
    uint64_t done;                               /* rows */
    bool measures;                               /* a row was measured by this call */
    int64_t stored[2 * QUALITY_CLASSES_MAX + 2]; /* of each set of the report; 0: pooled */
    kvt_status judged;                           /* whether the model understands each class */
} profile_quality_run;

/* ---- what is measured ---- */

/* Entries of the classes in turn. */
static void run_take_turns(profile_quality_run *run)
{
    uint32_t count = 0;
    for (uint32_t turn = 0; count < run->entry_count; turn++) {
        for (uint32_t i = 0; i < run->options->class_count; i++) {
            const run_class *at = &run->classes[i];
            if (turn >= at->entries.count) continue;
            run->numbers[count] = at->first + turn;
            run->turns[count++] = at->entries.entries[turn];
        }
    }
}

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
    run->turns = calloc(run->entry_count, sizeof *run->turns);
    run->numbers = calloc(run->entry_count, sizeof *run->numbers);
    if (run->rows == NULL || run->exact == NULL || run->turns == NULL || run->numbers == NULL)
        return KVT_E_MEMORY;
    run_take_turns(run);
    return KVT_OK;
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
    if (o->use >= QUALITY_USES) wrong = "a use";
    if ((o->metric == QUALITY_ROUGE_L || o->metric == QUALITY_F1) && o->answer_tokens == 0)
        wrong = "answers to compare";
    for (uint32_t i = 0; wrong == NULL && i < o->class_count; i++) {
        size_t length = strlen(o->classes[i].name);
        if (length < 1 || length > 63 - strlen(PROFILE_PASSAGES) ||
            strcmp(o->classes[i].name, QUALITY_POOLED) == 0)
            wrong = "names of classes of 1 to 56 bytes, none of them 'pooled'";
    }
    if (wrong == NULL) return KVT_OK;
    (void)snprintf(message, message_size, "a measurement of quality takes %s", wrong);
    return KVT_E_ARGUMENT;
}

/* The class that an entry of all belongs to. */
static const run_class *run_class_of(const profile_quality_run *run, uint32_t number)
{
    uint32_t i = 0;
    while (i + 1 < run->options->class_count && number >= run->classes[i + 1].first)
        i++;
    return &run->classes[i];
}

static const quality_entry *run_entry(const profile_quality_run *run, uint32_t number)
{
    const run_class *at = run_class_of(run, number);
    return &at->entries.entries[number - at->first];
}

/* ---- sets in the database ---- */

/* Finds the set of an interrupted run, or makes one, with the rows that an import has; the first
 * decides which run it is. */
static kvt_status run_open_set(profile_quality_run *run, const char *class_name, uint64_t digest,
                               const quality_entry *first, uint32_t entries, int64_t *set_out)
{
    const quality_profile_options *o = run->options;
    const quality_cuts cuts = {.texts = digest,
                               .entries = entries,
                               .context_tokens = o->context_tokens,
                               .continuation_tokens = o->continuation_tokens,
                               .answer_tokens = o->answer_tokens,
                               .metric = o->metric,
                               .use = o->use};
    char *settings = quality_cuts_write(&cuts);
    if (settings == NULL) return KVT_E_MEMORY;
    const profile_set set = {.model = run->model,
                             .class_name = class_name,
                             .method = QUALITY_METHOD,
                             .settings = settings,
                             .context_tokens = first->context_tokens,
                             .continuation_tokens = first->continuation_tokens,
                             .entries = entries};
    kvt_status status =
        quality_set_open(run->profile, &set, "quality", o->command_line, &run->run, set_out);
    if (status == KVT_OK) status = profile_set_take_imports(run->profile, &set, *set_out);
    free(settings);
    return status;
}

/* Takes over a row that an earlier run has left. */
static void run_take_row(void *context, uint32_t entry, kvt_variant variant, const quality_row *row)
{
    profile_quality_run *run = context;
    const quality_profile_options *o = run->options;
    if (entry >= run->at->entries.count) return;
    const uint32_t number = run->at->first + entry;
    if (quality_same_variant(variant, QUALITY_EXACT_KEY)) {
        run->exact[number] =
            (quality_exact){.nll = row->nll_delta,
                            .answers = row->answers,
                            .questions = run->at->entries.entries[entry].question_count,
                            .recall_nll = row->recall_nll_delta};
        return;
    }
    for (uint32_t i = 0; i < o->variant_count; i++) {
        if (!quality_same_variant(quality_variant_key(&o->variants[i]), variant)) continue;
        run->rows[(size_t)number * o->variant_count + i] = *row;
        run->report->resumed++;
    }
}

static bool run_has_passages(const run_class *at)
{
    for (uint32_t i = 0; i < at->entries.count; i++)
        if (at->entries.entries[i].recall != NULL) return true;
    return false;
}

static kvt_status run_open_class(profile_quality_run *run, run_class *at, const char *name)
{
    char passages[64];
    const quality_entries *entries = &at->entries;
    kvt_status status =
        run_open_set(run, name, entries->digest, entries->entries, entries->count, &at->set);
    run->at = at;
    (void)snprintf(passages, sizeof passages, "%s" PROFILE_PASSAGES, name);
    if (status == KVT_OK && run_has_passages(at))
        status = run_open_set(run, passages, entries->digest, entries->entries, entries->count,
                              &at->recall_set);
    if (status == KVT_OK)
        status = profile_entries_read(run->profile, at->set, at->recall_set, run_take_row, run);
    return status;
}

static kvt_status run_open_sets(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    kvt_status status = profile_model_put(run->profile, &run->report->model, &run->model);
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++)
        status = run_open_class(run, &run->classes[i], o->classes[i].name);
    run->done = run->report->resumed;
    return status;
}

/* ---- measuring ---- */

static bool run_wanted(void *context, uint32_t turn, uint32_t variant)
{
    const profile_quality_run *run = context;
    size_t row = (size_t)run->numbers[turn] * run->options->variant_count + variant;
    return !run->rows[row].present;
}

/* False when the caller, or the time that it gave, says stop. */
static bool run_progress(const profile_quality_run *run, uint32_t turn)
{
    const quality_profile_options *o = run->options;
    const run_class *at = run_class_of(run, run->numbers[turn]);
    double all = (double)run->entry_count * o->variant_count;
    /* A run that is given less than its first row takes would never go on. */
    if (o->seconds > 0.0 && run->measures && base_clock_seconds() - run->started >= o->seconds)
        return false;
    if (o->progress == NULL) return true;
    return o->progress(o->progress_context, (double)run->done / all,
                       o->classes[at - run->classes].name);
}

static kvt_status run_opened(void *context, uint32_t turn, const quality_exact *exact)
{
    profile_quality_run *run = context;
    const uint32_t number = run->numbers[turn];
    const run_class *at = run_class_of(run, number);
    quality_exact *to = &run->exact[number];
    *to = *exact;
    to->entry = NULL;
    const int64_t passages = run_entry(run, number)->recall != NULL ? at->recall_set : 0;
    kvt_status status =
        quality_row_put_exact(run->profile, at->set, passages, number - at->first, exact);
    if (status != KVT_OK) return status;
    return run_progress(run, turn) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_status run_done(void *context, uint32_t turn, uint32_t variant, const quality_row *row)
{
    profile_quality_run *run = context;
    const quality_profile_options *o = run->options;
    const uint32_t number = run->numbers[turn];
    const run_class *at = run_class_of(run, number);
    const kvt_variant key = quality_variant_key(&o->variants[variant]);
    quality_row *to = &run->rows[(size_t)number * o->variant_count + variant];
    *to = *row;
    to->loss = quality_row_loss_used(o->use, o->metric, row, run->exact[number].answers);
    kvt_status status = quality_row_put(run->profile, at->set, at->recall_set, number - at->first,
                                        key, o->metric, to);
    run->done++;
    run->measures = true;
    if (status == KVT_OK && !run_progress(run, turn)) status = KVT_E_CANCELLED;
    return status;
}

static kvt_status run_measure(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    const quality_request request = {.model = run->measured.weights,
                                     .tokenizer = run->measured.tokens,
                                     .entries = run->turns,
                                     .entry_count = run->entry_count,
                                     .variants = o->variants,
                                     .variant_count = o->variant_count,
                                     .threads = o->threads,
                                     .answer_tokens = o->answer_tokens,
                                     .wanted = run_wanted,
                                     .opened = run_opened,
                                     .done = run_done,
                                     .context = run};
    if (o->finish) return KVT_OK;
    return quality_measure(&request, run->message, run->message_size);
}

/* ---- curves ---- */

/* Entries that are whole, as what is summarised is made of. */
typedef struct run_whole {
    const quality_entry **judged; /* [judged_count], those whose exact run is known */
    double *nats;                 /* likewise */
    uint32_t judged_count;
    quality_row *rows;   /* [count][variant_count] */
    uint64_t *documents; /* [count] */
    uint32_t *classes;   /* [count] */
    uint32_t count;
    double nll, right, questions;
} run_whole;

static void run_whole_free(run_whole *whole)
{
    free((void *)whole->judged);
    free(whole->nats);
    free(whole->rows);
    free(whole->documents);
    free(whole->classes);
}

/* Rows that an entry can have: a variant that does not take the layout has none in any. */
static uint32_t run_count_rows(const profile_quality_run *run, uint32_t number)
{
    const uint32_t variants = run->options->variant_count;
    uint32_t count = 0;
    for (uint32_t i = 0; i < variants; i++)
        count += run->rows[(size_t)number * variants + i].present;
    return count;
}

static kvt_status run_gather(const profile_quality_run *run, uint32_t first, uint32_t count,
                             bool recall, run_whole *whole)
{
    const quality_profile_options *o = run->options;
    uint32_t most = 0;
    *whole = (run_whole){.judged = calloc(count, sizeof *whole->judged),
                         .nats = calloc(count, sizeof *whole->nats),
                         .rows = calloc((size_t)count * o->variant_count, sizeof *whole->rows),
                         .documents = calloc(count, sizeof *whole->documents),
                         .classes = calloc(count, sizeof *whole->classes)};
    if (whole->judged == NULL || whole->nats == NULL || whole->rows == NULL ||
        whole->documents == NULL || whole->classes == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < run->entry_count; i++) {
        const uint32_t present = run_count_rows(run, i);
        if (present > most) most = present;
    }
    for (uint32_t i = first; i < first + count; i++) {
        const quality_entry *entry = run_entry(run, i);
        const quality_exact *exact = &run->exact[i];
        if (most == 0 || run_count_rows(run, i) < most) continue;
        if (recall && entry->recall == NULL) continue;
        for (uint32_t v = 0; v < o->variant_count; v++) {
            const quality_row *row = &run->rows[(size_t)i * o->variant_count + v];
            whole->rows[(size_t)whole->count * o->variant_count + v] =
                recall ? quality_row_passage(o->metric, row) : *row;
        }
        whole->nll += recall ? exact->recall_nll : exact->nll;
        if (!recall && exact->nll > 0.0) {
            whole->judged[whole->judged_count] = entry;
            whole->nats[whole->judged_count++] = exact->nll;
        }
        if (!recall && exact->questions > 0) {
            whole->right += exact->answers * exact->questions;
            whole->questions += exact->questions;
        }
        whole->classes[whole->count] = (uint32_t)(run_class_of(run, i) - run->classes);
        /* An entry without a document is one of its own. */
        whole->documents[whole->count++] = entry->document != 0 ? entry->document : i + 1u;
    }
    return KVT_OK;
}

/* One set of the report from its rows. KVT_MISS: no entry is whole. */
static kvt_status run_summarise_set(profile_quality_run *run, const char *class_name, int64_t set,
                                    uint32_t first, uint32_t count, bool recall)
{
    const quality_profile_options *o = run->options;
    quality_set_report *report = &run->report->sets[run->report->set_count];
    const quality_entry *entry = run_entry(run, first);
    run_whole whole;
    kvt_status status = run_gather(run, first, count, recall, &whole);
    if (status == KVT_OK && whole.count == 0) status = KVT_MISS;
    uint32_t *numbers = calloc((size_t)whole.count + 1, sizeof *numbers);
    if (status != KVT_OK || numbers == NULL) goto out;
    run->stored[run->report->set_count++] = set;
    (void)snprintf(report->class_name, sizeof report->class_name, "%s", class_name);
    report->entries = whole.count;
    report->context_tokens = entry->context_tokens;
    report->continuation_tokens = recall ? entry->recall_tokens : entry->continuation_tokens;
    report->curves = calloc(o->variant_count, sizeof *report->curves);
    report->sensitivity = calloc((size_t)whole.count + 1, sizeof *report->sensitivity);
    if (report->curves == NULL || report->sensitivity == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        report->documents = quality_number_documents(whole.documents, whole.count, numbers);
        report->spread.nll_nats = whole.nll / whole.count;
        report->spread.answers =
            whole.questions > 0.0 ? whole.right / whole.questions : (double)NAN;
        status = quality_summarise(whole.rows, whole.documents, whole.count, o->variant_count,
                                   QUALITY_SEED, report->curves, &report->spread);
    }
    if (status == KVT_OK)
        status = quality_sensitivity(whole.rows, whole.count, o->variant_count, report->sensitivity,
                                     &report->spread);
    if (status == KVT_OK)
        status = quality_likelihood_of(whole.judged, whole.nats, whole.judged_count,
                                       run->measured.facts.vocab, &report->likelihood);
out:
    run_whole_free(&whole);
    if (status == KVT_OK && numbers == NULL) status = KVT_E_MEMORY;
    free(numbers);
    return status;
}

static kvt_status run_store_set(profile_quality_run *run, const quality_set_report *report,
                                int64_t set)
{
    const quality_profile_options *o = run->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->variant_count; i++) {
        const quality_curve *curve = &report->curves[i];
        if (curve->entries == 0 || !isfinite(curve->loss_mean)) continue;
        status = profile_curve_insert(run->profile, set, quality_variant_key(&o->variants[i]),
                                      o->variants[i].name, quality_metric_name(o->metric), curve);
    }
    return status == KVT_OK ? profile_set_finish(run->profile, set, &report->spread) : status;
}

static kvt_status run_open_pooled(profile_quality_run *run, int64_t *set_out)
{
    const uint32_t class_count = run->options->class_count;
    uint64_t digests[QUALITY_CLASSES_MAX];
    for (uint32_t i = 0; i < class_count; i++)
        digests[i] = run->classes[i].entries.digest;
    return run_open_set(run, QUALITY_POOLED, checksum_of(digests, class_count * sizeof *digests),
                        run_entry(run, 0), run->entry_count, set_out);
}

/* The curves go into the database, and the run is complete. */
static kvt_status run_store(profile_quality_run *run)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->report->set_count; i++) {
        if (run->stored[i] == 0) status = run_open_pooled(run, &run->stored[i]);
        if (status == KVT_OK) status = run_store_set(run, &run->report->sets[i], run->stored[i]);
    }
    return status == KVT_OK ? profile_run_complete(run->profile, run->run) : status;
}

/* Bounds for a class that was not measured, and how they hold on each class in turn. */
static kvt_status run_report_limits(profile_quality_run *run)
{
    static const double limits[] = {0.01, 0.02, 0.05};
    enum { LIMITS = sizeof limits / sizeof limits[0] };
    const quality_profile_options *o = run->options;
    quality_report *report = run->report;
    run_whole whole;
    if (o->class_count < 2) return KVT_OK;
    kvt_status status = run_gather(run, 0, run->entry_count, false, &whole);
    const promise_rows rows = {.rows = whole.rows,
                               .entry_count = whole.count,
                               .variant_count = o->variant_count,
                               .classes = whole.classes,
                               .documents = whole.documents,
                               .class_count = o->class_count,
                               .trials = report->sets[0].continuation_tokens};
    report->trials = calloc(LIMITS, sizeof *report->trials);
    report->bounds = calloc(o->variant_count, sizeof *report->bounds);
    if (report->trials == NULL || report->bounds == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < LIMITS; i++)
        report->trials[i].limit = limits[i];
    if (status == KVT_OK) status = promise_try(&rows, report->trials, LIMITS);
    if (status == KVT_OK) status = promise_of_others(&rows, 0, report->bounds);
    if (status == KVT_OK) report->trial_count = LIMITS;
    run_whole_free(&whole);
    return status;
}

static void run_free_sets(quality_report *report)
{
    for (uint32_t i = 0; i < report->set_count; i++) {
        free(report->sets[i].curves);
        free(report->sets[i].sensitivity);
    }
    report->set_count = 0;
}

/* The sets of the report, and whether the model understands the texts of every class. KVT_MISS: a
 * class has no entry that is whole. */
static kvt_status run_report(profile_quality_run *run)
{
    const quality_profile_options *o = run->options;
    char passages[64];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        const run_class *at = &run->classes[i];
        const quality_set_report *report = &run->report->sets[run->report->set_count];
        const uint32_t count = at->entries.count;
        status = run_summarise_set(run, o->classes[i].name, at->set, at->first, count, false);
        if (status == KVT_OK && run->judged == KVT_OK && !o->unjudged)
            run->judged = quality_likelihood_check(&report->likelihood, o->classes[i].name,
                                                   run->message, run->message_size);
        (void)snprintf(passages, sizeof passages, "%s" PROFILE_PASSAGES, o->classes[i].name);
        if (status == KVT_OK && at->recall_set != 0) {
            status = run_summarise_set(run, passages, at->recall_set, at->first, count, true);
            if (status == KVT_MISS) status = KVT_OK; /* none of the whole entries has a passage */
        }
    }
    if (status == KVT_OK && o->class_count > 1)
        status = run_summarise_set(run, QUALITY_POOLED, 0, 0, run->entry_count, false);
    return status == KVT_OK ? run_report_limits(run) : status;
}

/* After the measuring: curves of all, or of what a stopped measurement has. */
static kvt_status run_conclude(profile_quality_run *run, kvt_status status)
{
    if (status != KVT_OK && status != KVT_E_CANCELLED) return status;
    const kvt_status reported = run_report(run);
    if (reported == KVT_MISS) {
        run_free_sets(run->report);
        if (status == KVT_E_CANCELLED) return status;
        (void)snprintf(run->message, run->message_size, "no entry of some class is whole yet");
        return KVT_E_ARGUMENT;
    }
    if (status == KVT_OK) status = run->judged;
    if (status == KVT_OK) status = reported;
    return status == KVT_OK ? run_store(run) : status;
}

kvt_status quality_profile_run(kvt_profile *profile, const quality_profile_options *options,
                               quality_report *report_out, char *message, size_t message_size)
{
    profile_quality_run run = {.profile = profile,
                               .options = options,
                               .report = report_out,
                               .message = message,
                               .message_size = message_size,
                               .started = base_clock_seconds()};
    *report_out = (quality_report){.metric = options->metric, .use = options->use};
    message[0] = '\0';
    kvt_status status = run_check(options, message, message_size);
    if (status == KVT_OK)
        status = quality_model_open(options->model, options->tokenizer, options->name,
                                    &run.measured, message, message_size);
    report_out->model = run.measured.facts;
    if (status == KVT_OK) status = run_read_texts(&run);
    if (status == KVT_OK) status = run_open_sets(&run);
    if (status == KVT_OK) status = run_conclude(&run, run_measure(&run));
    report_out->seconds = base_clock_seconds() - run.started;
    for (uint32_t i = 0; i < QUALITY_CLASSES_MAX; i++)
        quality_entries_free(&run.classes[i].entries);
    free(run.rows);
    free(run.exact);
    free(run.turns);
    free(run.numbers);
    quality_model_close(&run.measured);
    return status;
}

void quality_report_free(quality_report *report)
{
    run_free_sets(report);
    free(report->trials);
    free(report->bounds);
    *report = (quality_report){.set_count = 0};
}
