/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_profile.c - curves over entries that calibrate_internal.h opens and measures: of each
 * class, of its passages and of all classes together, into a profile and as a report.
 *
 * Losses of dumps follow from their attention errors, by fits to losses that the profile has.
 *
 * Thread rule: calibrate_internal.h.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate_internal.h"
#include "estimator/quality/quality_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CURVES_ALL = QUALITY_CLASSES_MAX /* the classes together */ };

typedef struct curves_run {
    calibration *c;
    quality_report *report;
    quality_row *rows;                           /* [entry_count][variants] */
    int64_t stored[2 * QUALITY_CLASSES_MAX + 2]; /* of each set of the report; 0: pooled */
    double uppers[QUALITY_VARIANTS_MAX];         /* of dumps: upper bounds of the losses */
    kvt_status judged;                           /* whether the model understands each class */
} curves_run;

static uint32_t curves_variants(const curves_run *run)
{
    return run->c->options->wanted->count;
}

static quality_row *curves_row(const curves_run *run, uint32_t entry, uint32_t variant)
{
    return &run->rows[(size_t)entry * curves_variants(run) + variant];
}

/* ---- entries that are whole ---- */

/* The entries that were measured whole: sums are made of these. */
typedef struct curves_whole {
    const quality_entry **judged; /* [judged_count], those whose exact run is known */
    double *nats;                 /* likewise */
    uint32_t judged_count;
    quality_row *rows;   /* [count][variants] */
    uint64_t *documents; /* [count] */
    uint32_t count;
    double nll, right, questions;
} curves_whole;

static void curves_whole_free(curves_whole *whole)
{
    free((void *)whole->judged);
    free(whole->nats);
    free(whole->rows);
    free(whole->documents);
}

/* Rows that an entry can have: a variant that does not take the layout has none in any. */
static uint32_t curves_count_rows(const curves_run *run, uint32_t entry)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < curves_variants(run); i++)
        count += curves_row(run, entry, i)->present;
    return count;
}

static void curves_take(const curves_run *run, uint32_t index, bool recall, curves_whole *whole)
{
    const calibration *c = run->c;
    const quality_entry *entry = &c->entries[index];
    const quality_exact *exact = &c->exact[index];
    const uint32_t variants = curves_variants(run);
    for (uint32_t v = 0; v < variants; v++) {
        const quality_row *row = curves_row(run, index, v);
        whole->rows[(size_t)whole->count * variants + v] =
            recall ? quality_row_passage(c->options->metric, row) : *row;
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
    /* An entry without a document is one of its own. */
    whole->documents[whole->count++] = entry->document != 0 ? entry->document : index + 1u;
}

/* Whole entries of a class, or of all of them one behind the other. */
static kvt_status curves_gather(const curves_run *run, uint32_t class_index, bool recall,
                                curves_whole *whole)
{
    const calibration *c = run->c;
    const uint32_t count = c->entry_count;
    const bool all = class_index == CURVES_ALL;
    uint32_t most = 0;
    *whole =
        (curves_whole){.judged = calloc(count, sizeof *whole->judged),
                       .nats = calloc(count, sizeof *whole->nats),
                       .rows = calloc((size_t)count * curves_variants(run), sizeof *whole->rows),
                       .documents = calloc(count, sizeof *whole->documents)};
    if (whole->judged == NULL || whole->nats == NULL || whole->rows == NULL ||
        whole->documents == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t present = curves_count_rows(run, i);
        if (present > most) most = present;
    }
    const uint32_t last = all ? c->options->class_count : class_index + 1;
    for (uint32_t at = all ? 0 : class_index; most > 0 && at < last; at++)
        for (uint32_t i = 0; i < count; i++)
            if (c->classes[i] == at && curves_count_rows(run, i) == most &&
                !(recall && c->entries[i].recall == NULL))
                curves_take(run, i, recall, whole);
    return KVT_OK;
}

/* ---- the report ---- */

/* One set of the report from its rows. KVT_MISS: no entry is whole. */
static kvt_status curves_summarise(curves_run *run, const char *class_name, int64_t set,
                                   uint32_t class_index, bool recall)
{
    const calibration *c = run->c;
    const uint32_t variants = curves_variants(run);
    quality_set_report *report = &run->report->sets[run->report->set_count];
    const quality_entry *entry =
        &c->entries[class_index == CURVES_ALL ? 0 : calibrate_first(c, class_index)];
    curves_whole whole;
    kvt_status status = curves_gather(run, class_index, recall, &whole);
    if (status == KVT_OK && whole.count == 0) status = KVT_MISS;
    uint32_t *numbers = calloc((size_t)whole.count + 1, sizeof *numbers);
    if (status != KVT_OK || numbers == NULL) goto out;
    run->stored[run->report->set_count++] = set;
    (void)snprintf(report->class_name, sizeof report->class_name, "%s", class_name);
    report->entries = whole.count;
    report->context_tokens = entry->context_tokens;
    report->continuation_tokens = recall ? entry->recall_tokens : entry->continuation_tokens;
    report->curves = calloc(variants, sizeof *report->curves);
    report->sensitivity = calloc((size_t)whole.count + 1, sizeof *report->sensitivity);
    if (report->curves == NULL || report->sensitivity == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        report->documents = quality_number_documents(whole.documents, whole.count, numbers);
        report->spread.nll_nats = c->options->model != NULL ? whole.nll / whole.count : (double)NAN;
        report->spread.answers =
            whole.questions > 0.0 ? whole.right / whole.questions : (double)NAN;
        status = quality_summarise(whole.rows, whole.documents, whole.count, variants, QUALITY_SEED,
                                   report->curves, &report->spread);
    }
    if (status == KVT_OK)
        status = quality_sensitivity(whole.rows, whole.count, variants, report->sensitivity,
                                     &report->spread);
    if (status == KVT_OK)
        status = quality_likelihood_of(whole.judged, whole.nats, whole.judged_count,
                                       c->measured.facts.vocab, &report->likelihood);
out:
    curves_whole_free(&whole);
    if (status == KVT_OK && numbers == NULL) status = KVT_E_MEMORY;
    free(numbers);
    return status;
}

static void curves_free_sets(quality_report *report)
{
    for (uint32_t i = 0; i < report->set_count; i++) {
        free(report->sets[i].curves);
        free(report->sets[i].sensitivity);
    }
    report->set_count = 0;
}

/* The sets of the report, and whether the model understands the texts of every class. KVT_MISS: a
 * class has no entry that is whole. */
static kvt_status curves_report(curves_run *run)
{
    const calibration *c = run->c;
    const calibrate_options *o = c->options;
    char passages[64];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        const quality_set_report *report = &run->report->sets[run->report->set_count];
        status = curves_summarise(run, o->classes[i].name, c->sets[i], i, false);
        if (status == KVT_OK && run->judged == KVT_OK && !o->unjudged)
            run->judged = quality_likelihood_check(&report->likelihood, o->classes[i].name,
                                                   c->message, c->message_size);
        (void)snprintf(passages, sizeof passages, "%s" PROFILE_PASSAGES, o->classes[i].name);
        if (status == KVT_OK && c->passages[i] != 0) {
            status = curves_summarise(run, passages, c->passages[i], i, true);
            if (status == KVT_MISS) status = KVT_OK; /* none of the whole entries has a passage */
        }
    }
    if (status != KVT_OK || o->class_count < 2) return status;
    return curves_summarise(run, QUALITY_POOLED, 0, CURVES_ALL, false);
}

/* ---- losses of dumps ---- */

/* Fits, the rows' losses by them, and how far these may be off. */
static kvt_status curves_map(curves_run *run)
{
    const calibration *c = run->c;
    const calibrate_wanted *wanted = c->options->wanted;
    quality_report *report = run->report;
    quality_spread spread;
    quality_curve *curves = calloc(wanted->count, sizeof *curves);
    if (curves == NULL) return KVT_E_MEMORY;
    kvt_status status = quality_summarise(run->rows, NULL, c->entry_count, wanted->count,
                                          QUALITY_SEED, curves, &spread);
    if (status == KVT_OK)
        status = quality_map_make(c->profile, c->options->name, c->options->classes[0].name,
                                  wanted->variants, curves, wanted->count, &report->map);
    for (uint32_t i = 0; status == KVT_OK && i < wanted->count; i++) {
        const quality_variant *variant = &wanted->variants[i];
        double loss, upper;
        for (uint32_t e = 0; status == KVT_OK && e < c->entry_count; e++) {
            quality_row *row = curves_row(run, e, i);
            if (!row->present) continue;
            quality_map_loss(&report->map, variant->variant, row->attention_error,
                             row->attention_error_high, &row->loss, &upper);
            run->uppers[i] += upper / curves[i].entries;
            status = profile_entry_insert(c->profile, c->sets[c->classes[e]], c->numbers[e],
                                          quality_variant_key(variant), row);
        }
        quality_map_loss(&report->map, variant->variant, curves[i].attention_error,
                         curves[i].attention_error_high, &loss, &upper);
        report->mapped[i] = loss < upper;
    }
    free(curves);
    return status;
}

/* The interval over entries does not know how far the map itself may be off. */
static void curves_widen(curves_run *run)
{
    for (uint32_t i = 0; i < curves_variants(run); i++) {
        quality_curve *curve = &run->report->sets[0].curves[i];
        if (curve->entries < 2) curve->loss_high = run->uppers[i];
        curve->loss_high = fmin(fmax(curve->loss_high, run->uppers[i]), 1.0);
        if (!run->report->mapped[i]) curve->loss_low = 0.0;
    }
}

/* ---- into the profile ---- */

static kvt_status curves_store_set(curves_run *run, const quality_set_report *report, int64_t set)
{
    const calibration *c = run->c;
    const calibrate_options *o = c->options;
    const char *metric = o->model != NULL ? quality_metric_name(o->metric) : c->source.type->method;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->wanted->count; i++) {
        const quality_variant *variant = &o->wanted->variants[i];
        const quality_curve *curve = &report->curves[i];
        if (curve->entries == 0 || !isfinite(curve->loss_mean)) continue;
        status = profile_curve_insert(c->profile, set, quality_variant_key(variant), variant->name,
                                      metric, curve);
    }
    return status == KVT_OK ? profile_set_finish(c->profile, set, &report->spread) : status;
}

static kvt_status curves_open_pooled(curves_run *run, int64_t *set_out)
{
    calibration *c = run->c;
    const calibrate_options *o = c->options;
    uint64_t digests[QUALITY_CLASSES_MAX];
    for (uint32_t i = 0; i < o->class_count; i++)
        digests[i] = quality_entries_digest(&c->texts[i], c->taken[i]);
    const quality_cuts cuts = {.texts = checksum_of(digests, o->class_count * sizeof *digests),
                               .entries = c->entry_count,
                               .context_tokens = o->context_tokens,
                               .continuation_tokens = o->continuation_tokens,
                               .answer_tokens = o->answer_tokens,
                               .metric = o->metric,
                               .use = o->use};
    char *settings = quality_cuts_write(&cuts);
    if (settings == NULL) return KVT_E_MEMORY;
    kvt_status status =
        calibrate_open_set(c, QUALITY_POOLED, &c->entries[0], settings, c->entry_count, set_out);
    free(settings);
    return status;
}

/* The curves go into the database, and the run is complete. */
static kvt_status curves_store(curves_run *run)
{
    const calibration *c = run->c;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->report->set_count; i++) {
        if (run->stored[i] == 0) status = curves_open_pooled(run, &run->stored[i]);
        if (status == KVT_OK) status = curves_store_set(run, &run->report->sets[i], run->stored[i]);
    }
    if (status == KVT_OK && c->options->model == NULL)
        status = quality_map_put(c->profile, c->run, c->model, &run->report->map);
    return status == KVT_OK ? profile_run_complete(c->profile, c->run) : status;
}

/* After the measuring: curves of all, or of what a stopped measurement has. */
static kvt_status curves_conclude(curves_run *run, kvt_status status)
{
    const calibration *c = run->c;
    const bool dumps = c->options->model == NULL;
    if (status != KVT_OK && (status != KVT_E_CANCELLED || dumps)) return status;
    kvt_status reported = dumps ? curves_map(run) : KVT_OK;
    if (reported == KVT_OK) reported = curves_report(run);
    if (reported == KVT_MISS) {
        curves_free_sets(run->report);
        if (status == KVT_E_CANCELLED) return status;
        (void)snprintf(c->message, c->message_size, "no entry of some class is whole yet");
        return KVT_E_ARGUMENT;
    }
    if (reported == KVT_OK && dumps) curves_widen(run);
    if (status == KVT_OK) status = run->judged;
    if (status == KVT_OK) status = reported;
    return status == KVT_OK ? curves_store(run) : status;
}

kvt_status quality_profile_run(kvt_profile *profile, const calibrate_options *options,
                               quality_report *report_out, char *message, size_t message_size)
{
    calibrate_report *counts = calloc(1, sizeof *counts);
    calibration c = {.profile = profile,
                     .options = options,
                     .report = counts,
                     .curves = true,
                     .message = message,
                     .message_size = message_size,
                     .started = base_clock_seconds()};
    curves_run run = {.c = &c, .report = report_out};
    *report_out = (quality_report){.metric = options->metric, .use = options->use};
    message[0] = '\0';
    if (counts == NULL) return KVT_E_MEMORY;
    kvt_status status = calibrate_open(&c);
    if (status == KVT_OK) {
        const calibrate_wanted *wanted = options->wanted;
        run.rows = calloc((size_t)c.entry_count * wanted->count, sizeof *run.rows);
        status = run.rows != NULL ? calibrate_source_measure(&c, wanted->variants, wanted->count,
                                                             false, run.rows)
                                  : KVT_E_MEMORY;
        if (run.rows != NULL) status = curves_conclude(&run, status);
    }
    report_out->model = counts->model;
    report_out->queries = c.queries;
    report_out->resumed = counts->resumed;
    report_out->measured = c.done - counts->resumed;
    report_out->seconds = base_clock_seconds() - c.started;
    calibrate_close(&c);
    free(run.rows);
    free(counts);
    return status;
}

void quality_report_free(quality_report *report)
{
    curves_free_sets(report);
    *report = (quality_report){.set_count = 0};
}
