/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_measure.c - the rows of a calibration: those that the profile has, of whatever
 * measurement, and those that are measured now. Thread rule: see calibrate_internal.h.
 */
#include "base/clock.h"
#include "codecs/codec_table.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate_internal.h"
#include "estimator/quality/quality_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a row says here ---- */

/* Loss by the metric and the use; distortion, which rungs are compared by, likewise: KL of the
 * answers, of the passage, or the larger. Of dumps the loss by the fits that the profile has. */
static quality_row calibrate_judge(const calibration *c, uint32_t entry, kvt_variant variant,
                                   const quality_row *row)
{
    const calibrate_options *o = c->options;
    quality_row judged = *row;
    double upper;
    if (o->model == NULL) {
        quality_map_loss(&c->maps[c->classes[entry]], variant, row->attention_error,
                         row->attention_error_high, &judged.loss, &upper);
        return judged;
    }
    judged.loss = quality_row_loss_used(o->use, o->metric, row, c->exact[entry].answers);
    if (c->curves || o->use == QUALITY_USE_ANSWERS || !isfinite(row->recall_kl)) return judged;
    if (o->use == QUALITY_USE_RECALL || !(row->kl > row->recall_kl)) judged.kl = row->recall_kl;
    return judged;
}

/* Whether a row has all that this calibration needs of it. */
static bool calibrate_is_enough(const calibration *c, uint32_t entry, const quality_row *row)
{
    const calibrate_options *o = c->options;
    const bool compares = o->metric == QUALITY_ROUGE_L || o->metric == QUALITY_F1;
    if (o->model == NULL) return isfinite(row->attention_error);
    if (!isfinite(row->kl) || !isfinite(row->top1)) return false;
    if (compares && !(c->compares && isfinite(row->rouge_l) && isfinite(row->f1))) return false;
    return c->entries[entry].recall == NULL || isfinite(row->recall_kl);
}

/* ---- rows of the profile ---- */

static void calibrate_keep(calibration *c, uint32_t entry, kvt_variant variant, bool fresh,
                           const quality_row *row)
{
    if (c->kept_count == c->kept_capacity) {
        size_t capacity = c->kept_capacity * 2 + 256;
        calibrate_kept *grown = realloc(c->kept, capacity * sizeof *grown);
        c->failed |= grown == NULL;
        if (grown == NULL) return;
        c->kept = grown;
        c->kept_capacity = capacity;
    }
    c->kept[c->kept_count++] =
        (calibrate_kept){.variant = variant, .entry = entry, .counted = fresh, .row = *row};
}

/* Which of all an entry of the present class is; entry_count: none. */
static uint32_t calibrate_find(const calibration *c, uint32_t number)
{
    if (number >= c->taken[c->at]) return c->entry_count;
    uint32_t low = number; /* each turn has one of this class at most */
    while (low < c->entry_count && (c->classes[low] != c->at || c->numbers[low] != number))
        low++;
    return low;
}

/* The exact run of an entry, whose answers losses are of, comes before its other rows. */
static void calibrate_take_row(void *context, uint32_t number, kvt_variant variant,
                               const quality_row *row)
{
    calibration *c = context;
    const uint32_t entry = calibrate_find(c, number);
    if (entry == c->entry_count) return;
    if (quality_same_variant(variant, QUALITY_EXACT_KEY)) {
        c->exact[entry] = (quality_exact){.nll = row->nll_delta,
                                          .answers = row->answers,
                                          .questions = c->entries[entry].question_count,
                                          .recall_nll = row->recall_nll_delta};
    } else if (calibrate_is_enough(c, entry, row)) {
        calibrate_keep(c, entry, variant, false, row);
    }
}

typedef struct take_sets {
    calibration *c;
    kvt_status status;
} take_sets;

static void calibrate_take_set(void *context, int64_t set, int64_t passages, const char *settings)
{
    take_sets *take = context;
    calibration *c = take->c;
    const calibrate_options *o = c->options;
    quality_cuts cuts;
    if (take->status != KVT_OK || !quality_cuts_read(settings, &cuts)) return;
    if (cuts.context_tokens != o->context_tokens ||
        cuts.continuation_tokens != o->continuation_tokens)
        return;
    c->compares = cuts.answer_tokens == o->answer_tokens;
    for (c->at = 0; c->at < o->class_count; c->at++) {
        const quality_entries *texts = &c->texts[c->at];
        if (cuts.entries == 0 || cuts.entries > texts->count) continue;
        if (quality_entries_digest(texts, cuts.entries) != cuts.texts) continue;
        take->status = profile_entries_read(c->profile, set, passages, calibrate_take_row, c);
        if (take->status != KVT_OK) return;
    }
}

/* Takes up the rows that a stopped measurement of the same settings has left. */
static kvt_status calibrate_take_own(calibration *c)
{
    kvt_status status = KVT_OK;
    c->compares = true;
    for (c->at = 0; status == KVT_OK && c->at < c->options->class_count; c->at++)
        status = profile_entries_read(c->profile, c->sets[c->at], c->passages[c->at],
                                      calibrate_take_row, c);
    return status;
}

static int kept_order(const void *left, const void *right)
{
    const calibrate_kept *a = left, *b = right;
    if (a->variant.codec != b->variant.codec) return a->variant.codec < b->variant.codec ? -1 : 1;
    if (a->variant.mode != b->variant.mode) return a->variant.mode < b->variant.mode ? -1 : 1;
    if (a->variant.rate != b->variant.rate) return a->variant.rate < b->variant.rate ? -1 : 1;
    return (a->entry > b->entry) - (a->entry < b->entry);
}

kvt_status calibrate_take_rows(calibration *c)
{
    take_sets take = {.c = c, .status = KVT_OK};
    const bool of_texts = c->options->model != NULL;
    kvt_status status = of_texts && !c->curves
                            ? profile_sets_of_texts(c->profile, c->model, calibrate_take_set, &take)
                            : calibrate_take_own(c);
    if (status == KVT_OK) status = take.status;
    if (status == KVT_OK && c->failed) status = KVT_E_MEMORY;
    for (size_t i = 0; i < c->kept_count && of_texts; i++)
        c->kept[i].row = calibrate_judge(c, c->kept[i].entry, c->kept[i].variant, &c->kept[i].row);
    if (c->kept_count > 1) qsort(c->kept, c->kept_count, sizeof *c->kept, kept_order);
    return status;
}

/* A variant that this build knows, as it is stored. */
static bool known_is_lossy(kvt_variant variant)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    if (codec == NULL || (variant.mode & QUALITY_MERGED_MODE) != 0) return false;
    return !kvt_codec_is_exact(variant);
}

uint32_t calibrate_known_variants(const calibration *c, quality_variant *variants,
                                  uint32_t capacity)
{
    uint32_t count = 0, most = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0, next; i < c->kept_count; i = next) {
            const calibrate_kept *kept = &c->kept[i];
            uint32_t entries = 0;
            for (next = i;
                 next < c->kept_count && quality_same_variant(c->kept[next].variant, kept->variant);
                 next++)
                entries += next == i || c->kept[next].entry != c->kept[next - 1].entry;
            char name[QUALITY_NAME_BYTES];
            if (!known_is_lossy(kept->variant)) continue;
            if (pass == 0 && entries > most) most = entries;
            quality_variant known;
            if (pass == 0 || 2 * entries < most) continue;
            (void)kvt_variant_format(kept->variant, name, sizeof name);
            if (quality_variant_parse(name, &known) != KVT_OK) continue;
            if (count < capacity) variants[count] = known;
            count++;
        }
    }
    return count;
}

/* The first of the kept rows of a variant. */
static size_t kept_find(const calibration *c, kvt_variant variant)
{
    const calibrate_kept wanted = {.variant = variant, .entry = 0};
    size_t low = 0, high = c->kept_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (kept_order(&c->kept[middle], &wanted) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Fills in what is there; returns how many rows that are wanted are missing. */
static size_t calibrate_fill_kept(calibration *c)
{
    size_t missing = 0;
    for (uint32_t v = 0; v < c->count; v++) {
        const kvt_variant key = quality_variant_key(&c->variants[v]);
        for (size_t i = kept_find(c, key);
             i < c->kept_count && quality_same_variant(c->kept[i].variant, key); i++) {
            c->report->resumed += !c->kept[i].counted;
            c->done += !c->kept[i].counted;
            c->kept[i].counted = true;
            c->rows[(size_t)c->kept[i].entry * c->count + v] = c->kept[i].row;
        }
        for (uint32_t e = 0; e < c->entry_count; e++)
            missing +=
                !c->rows[(size_t)e * c->count + v].present && (c->mask == NULL || c->mask[e]);
    }
    return missing;
}

/* ---- measuring ---- */

static bool calibrate_progress(const calibration *c)
{
    const calibrate_options *o = c->options;
    /* How much there is depends on the answers; the share never falls. */
    double share = (double)c->done / (double)c->expected;
    if (o->seconds > 0.0 && c->measures && base_clock_seconds() - c->started >= o->seconds)
        return false;
    return o->progress == NULL || o->progress(o->progress_context, share < 1.0 ? share : 1.0,
                                              c->curves ? "quality" : "calibration");
}

static bool calibrate_wants(void *context, uint32_t entry, uint32_t variant)
{
    const calibration *c = context;
    if (c->mask != NULL && !c->mask[entry]) return false;
    return !c->rows[(size_t)entry * c->count + variant].present;
}

static kvt_status calibrate_opened(void *context, uint32_t entry, const quality_exact *exact)
{
    calibration *c = context;
    const uint32_t at = c->classes[entry];
    c->exact[entry] = *exact;
    c->exact[entry].entry = NULL;
    kvt_status status = quality_row_put_exact(
        c->profile, c->sets[at], c->entries[entry].recall != NULL ? c->passages[at] : 0,
        c->numbers[entry], exact);
    if (status == KVT_OK && !calibrate_progress(c)) status = KVT_E_CANCELLED;
    return status;
}

/* The row goes into the profile as it was measured, here as it is judged; a later question may ask
 * for it again. */
static kvt_status calibrate_done(void *context, uint32_t entry, uint32_t variant,
                                 const quality_row *row)
{
    calibration *c = context;
    const uint32_t at = c->classes[entry];
    const kvt_variant key = quality_variant_key(&c->variants[variant]);
    const quality_row judged = calibrate_judge(c, entry, c->variants[variant].variant, row);
    quality_row stored = *row;
    stored.loss = judged.loss;
    c->rows[(size_t)entry * c->count + variant] = judged;
    calibrate_keep(c, entry, key, true, &judged);
    c->done++;
    c->measures = true;
    kvt_status status = quality_row_put(c->profile, c->sets[at], c->passages[at], c->numbers[entry],
                                        key, c->options->metric, &stored);
    if (status == KVT_OK && !calibrate_progress(c)) status = KVT_E_CANCELLED;
    return status;
}

static kvt_status calibrate_now(calibration *c)
{
    const calibrate_options *o = c->options;
    const quality_request request = {.model = c->measured.weights,
                                     .tokenizer = c->measured.tokens,
                                     .entries = c->entries,
                                     .dumps = (const char *const *)c->handles,
                                     .queries = c->queries,
                                     .entry_count = c->entry_count,
                                     .variants = c->variants,
                                     .variant_count = c->count,
                                     .threads = o->threads,
                                     .answer_tokens = o->answer_tokens,
                                     .bases = c->listed,
                                     .wanted = calibrate_wants,
                                     .opened = calibrate_opened,
                                     .done = calibrate_done,
                                     .context = c};
    return quality_measure(&request, c->message, c->message_size);
}

/* Whether the model understands the texts, by all exact runs that are known: after the first
 * question, so that nobody waits for the ladder of a model that does not. */
static kvt_status calibrate_judge_model(calibration *c)
{
    const calibrate_options *o = c->options;
    const quality_entry **entries = calloc(c->entry_count, sizeof *entries);
    double *nats = calloc(c->entry_count, sizeof *nats);
    kvt_status status = entries == NULL || nats == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        quality_likelihood *likelihood = &c->report->likelihoods[i];
        uint32_t count = 0;
        for (uint32_t e = 0; e < c->entry_count; e++) {
            if (c->classes[e] != i || !(c->exact[e].nll > 0.0)) continue;
            entries[count] = &c->entries[e];
            nats[count++] = c->exact[e].nll;
        }
        status = quality_likelihood_of(entries, nats, count, c->measured.facts.vocab, likelihood);
        if (status == KVT_OK && !o->unjudged)
            status = quality_likelihood_check(likelihood, o->classes[i].name, c->message,
                                              c->message_size);
    }
    free((void *)entries);
    free(nats);
    return status;
}

kvt_status calibrate_source_measure(void *context, const quality_variant *variants, uint32_t count,
                                    const bool *mask, quality_row *rows_out)
{
    calibration *c = context;
    c->variants = variants;
    c->count = count;
    c->mask = mask;
    c->rows = rows_out;
    kvt_status status = KVT_OK;
    if (calibrate_fill_kept(c) > 0 && !c->options->finish)
        status = calibrate_now(c);
    else if (!calibrate_progress(c))
        status = KVT_E_CANCELLED;
    if (status == KVT_OK && c->options->model != NULL && !c->curves)
        status = calibrate_judge_model(c);
    if (c->kept_count > 1) qsort(c->kept, c->kept_count, sizeof *c->kept, kept_order);
    return status == KVT_OK && c->failed ? KVT_E_MEMORY : status;
}

/* ---- entropy tables ---- */

kvt_status calibrate_source_tables(void *context, const quality_variant *variant,
                                   double *own_bits_out, double *shared_bits_out)
{
    calibration *c = context;
    const uint32_t half = c->entry_count / 2;
    const uint32_t each =
        half < CALIBRATE_TABLES_ENTRIES ? half : (uint32_t)CALIBRATE_TABLES_ENTRIES;
    calibrate_tables tables;
    kvt_status status = calibrate_tables_open(variant->variant, &c->layout, &tables);
    for (uint32_t i = 0; status == KVT_OK && i < 2 * each; i++) {
        quality_kv kv;
        status = quality_source_open(&c->source, c->handles[i], &kv);
        if (status == KVT_OK)
            status = i < each ? calibrate_tables_count(&tables, kv.layout.tokens, kv.bytes)
                              : calibrate_tables_code(&tables, kv.layout.tokens, kv.bytes);
        quality_source_close(&kv);
        if (status == KVT_OK && !calibrate_progress(c)) status = KVT_E_CANCELLED;
    }
    if (status == KVT_OK && tables.coded > 0) {
        *own_bits_out = tables.own_bits / tables.coded;
        *shared_bits_out = tables.shared_bits / tables.coded;
    }
    calibrate_tables_close(&tables);
    return status;
}
