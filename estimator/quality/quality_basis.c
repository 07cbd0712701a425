/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis.c - judges bases on contexts that they were not learnt on: see quality_basis.h.
 */
#include "estimator/quality/quality_basis.h"

#include "base/clock.h"
#include "basis/basis_file.h"
#include "codecs/kernels/checksum.h"
#include "codecs/transform.h"
#include "estimator/model/whole_file.h"
#include "estimator/quality/basis_rows.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASIS_TURN = 5,    /* of so many documents one judges and one makes tables */
    BASIS_READ = 16,   /* entries that are read for each that may be needed */
    BASIS_CODES = 8192 /* that are told apart where their entropy is counted */
};

static const char *const basis_entropy[QUALITY_BASIS_ENTROPY] = {
    "entropy:k0.25v0.5", "entropy:k0.25v1", "entropy:k0.333v0.75",
    "entropy:k0.5v0.5",  "entropy:k0.5v1",  "entropy:k0.5v0.5,vchan"};

/* Steps that the first context is tried at, in 64ths of the unit, and where the rows lie around the
 * step with the KL of the reference there. */
enum { BASIS_TRIALS = 3 };
static const uint16_t basis_trials[BASIS_TRIALS] = {32, 128, 512};
static const double basis_around[QUALITY_BASIS_STEPS] = {0.45, 0.7, 1.05, 1.6, 2.5};

typedef struct basis_run {
    const quality_basis_options *options;
    quality_basis_report *report;
    char *message;
    size_t message_size;
    quality_model target;
    quality_entries entries[QUALITY_CLASSES_MAX];
    uint32_t *documents[QUALITY_CLASSES_MAX]; /* of each entry, numbered from 0 in each class */
    const quality_entry **teach, **tables;
    uint32_t teach_count, table_count;
    const quality_entry **judges[QUALITY_CLASSES_MAX];
    uint32_t judge_counts[QUALITY_CLASSES_MAX];
    quality_bases bases;
    basis_rows *rows;
    const quality_entry *cut; /* the present context */
    double started;
    uint32_t fresh; /* forms that were judged now */
    model_session *session;
    evaluate_variant changed;
    void *scratch;    /* of the widest span */
    uint32_t *counts; /* [TRANSFORM_CLASSES][BASIS_CODES] */
    uint16_t steps[QUALITY_BASIS_SPANS][QUALITY_BASIS_STEPS];
    quality_basis_sums sums[QUALITY_CLASSES_MAX][QUALITY_BASIS_ROWS];
    uint32_t runs, runs_all; /* of the model, for the progress */
} basis_run;

static bool basis_step(void *context, const char *what)
{
    basis_run *run = context;
    const quality_basis_options *o = run->options;
    const double share = (double)run->runs++ / run->runs_all;
    if (o->seconds > 0.0 && run->fresh > 0 && base_clock_seconds() - run->started >= o->seconds)
        return false;
    return o->progress == NULL || o->progress(o->progress_context, fmin(share, 1.0), what);
}

static kvt_layout basis_layout(const basis_run *run, uint32_t tokens)
{
    const model_config *c = model_config_of(run->target.weights);
    return (kvt_layout){.layers = (uint16_t)c->layers,
                        .kv_heads = (uint16_t)c->kv_heads,
                        .head_dim = (uint16_t)c->head_dim,
                        .dtype = KVT_DTYPE_FP16,
                        .tokens = tokens};
}

/* ---- roles ---- */

typedef enum basis_role { ROLE_JUDGE, ROLE_TABLES, ROLE_TEACH } basis_role;

static basis_role basis_role_of(uint32_t document)
{
    const uint32_t turn = document % BASIS_TURN;
    return turn == 0 ? ROLE_JUDGE : turn == 1 ? ROLE_TABLES : ROLE_TEACH;
}

static bool basis_teaches(const basis_run *run, uint32_t class_index)
{
    return run->options->teaches == NULL || run->options->teaches[class_index];
}

static bool basis_has_role(const basis_run *run, uint32_t class_index, uint32_t entry,
                           basis_role role)
{
    const quality_entry *cut = &run->entries[class_index].entries[entry];
    if (run->options->longest != 0 && cut->context_tokens > run->options->longest) return false;
    return cut->context_tokens > KVT_SINK_TOKENS &&
           basis_role_of(run->documents[class_index][entry]) == role;
}

/* Takes entries of a role from the classes that teach in turn, at most `limit`. */
static uint32_t basis_take(const basis_run *run, basis_role role, uint32_t limit,
                           const quality_entry **taken)
{
    uint32_t next[QUALITY_CLASSES_MAX] = {0}, count = 0, before;
    do {
        before = count;
        for (uint32_t c = 0; c < run->options->class_count && count < limit; c++) {
            if (!basis_teaches(run, c)) continue;
            while (next[c] < run->entries[c].count && !basis_has_role(run, c, next[c], role))
                next[c]++;
            if (next[c] < run->entries[c].count)
                taken[count++] = &run->entries[c].entries[next[c]++];
        }
    } while (count > before && count < limit);
    return count;
}

static kvt_status basis_number_documents(basis_run *run, uint32_t class_index)
{
    const quality_entries *entries = &run->entries[class_index];
    uint64_t *names = calloc(entries->count, sizeof *names);
    run->documents[class_index] = calloc(entries->count, sizeof **run->documents);
    run->judges[class_index] = calloc(run->options->judge_contexts, sizeof **run->judges);
    const bool room =
        names != NULL && run->documents[class_index] != NULL && run->judges[class_index] != NULL;
    for (uint32_t i = 0; room && i < entries->count; i++)
        names[i] = entries->entries[i].document;
    if (room) (void)quality_number_documents(names, entries->count, run->documents[class_index]);
    free(names);
    return room ? KVT_OK : KVT_E_MEMORY;
}

static kvt_status basis_read_texts(basis_run *run)
{
    const quality_basis_options *o = run->options;
    const uint32_t needed = o->teach_contexts + o->table_contexts + BASIS_TURN * o->judge_contexts;
    kvt_status status = KVT_OK;
    for (uint32_t c = 0; status == KVT_OK && c < o->class_count; c++) {
        status =
            quality_entries_read(o->classes[c].texts, o->classes[c].text_count, run->target.tokens,
                                 o->context_tokens, o->continuation_tokens, BASIS_READ * needed,
                                 &run->entries[c], run->message, run->message_size);
        if (status == KVT_OK) status = basis_number_documents(run, c);
        for (uint32_t i = 0; status == KVT_OK && i < run->entries[c].count; i++) {
            quality_entry *entry = &run->entries[c].entries[i];
            if (entry->continuation_tokens > o->continuation_tokens)
                entry->continuation_tokens = o->continuation_tokens;
        }
        for (uint32_t i = 0; status == KVT_OK && i < run->entries[c].count; i++) {
            if (run->judge_counts[c] < o->judge_contexts && basis_has_role(run, c, i, ROLE_JUDGE))
                run->judges[c][run->judge_counts[c]++] = &run->entries[c].entries[i];
        }
    }
    return status;
}

/* Gives each entry its role. */
static kvt_status basis_share_out(basis_run *run)
{
    const quality_basis_options *o = run->options;
    const char *lacks = NULL;
    kvt_status status = basis_read_texts(run);
    run->teach = calloc(o->teach_contexts, sizeof *run->teach);
    run->tables = calloc(o->table_contexts, sizeof *run->tables);
    if (status == KVT_OK && (run->teach == NULL || run->tables == NULL)) status = KVT_E_MEMORY;
    if (status != KVT_OK) return status;
    run->teach_count = basis_take(run, ROLE_TEACH, o->teach_contexts, run->teach);
    run->table_count = basis_take(run, ROLE_TABLES, o->table_contexts, run->tables);
    if (run->teach_count == 0) lacks = "that teaches";
    if (run->table_count == 0) lacks = "for tables";
    for (uint32_t c = 0; c < o->class_count; c++) {
        if (run->judge_counts[c] == 0) lacks = "that judges";
    }
    if (lacks == NULL) return KVT_OK;
    (void)snprintf(run->message, run->message_size,
                   "the texts give no context %s: of five documents of a class one judges, one "
                   "makes tables and three teach",
                   lacks);
    return KVT_E_ARGUMENT;
}

/* ---- learning ---- */

/* One object of a file, checked, of the model and of these texts. */
static kvt_status basis_load_one(basis_run *run, uint32_t span, const char *path, uint64_t digest)
{
    const model_config *c = model_config_of(run->target.weights);
    quality_bases *bases = &run->bases;
    basis_origin origin;
    model_map map;
    const char *wrong = NULL;
    kvt_status status = model_map_open(path, &map, run->message, run->message_size);
    if (status != KVT_OK) return status;
    bases->bytes[span] = map.size;
    bases->objects[span] = aligned_alloc(64, (map.size / 64 + 1) * 64);
    if (bases->objects[span] == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) memcpy(bases->objects[span], map.bytes, map.size);
    model_map_close(&map);
    if (status == KVT_OK)
        status = basis_read(bases->objects[span], bases->bytes[span], &bases->bases[span], &origin);
    if (status != KVT_OK) wrong = kvt_status_text(status);
    const transform_shape *shape = &bases->bases[span].shape;
    if (status == KVT_OK &&
        (shape->layers != c->layers || shape->kv_heads != c->kv_heads ||
         shape->head_dim != c->head_dim || shape->sides != 2 || shape->span != span + 1))
        wrong = "a basis of another model or span";
    else if (status == KVT_OK && memcmp(origin.digest, &digest, sizeof digest) != 0)
        wrong = "learnt on other texts: contexts that judge may have taught it";
    run->report->taught_tokens = origin.tokens;
    if (wrong != NULL) (void)snprintf(run->message, run->message_size, "%.300s: %s", path, wrong);
    return status == KVT_OK && wrong != NULL ? KVT_E_ARGUMENT : status;
}

/* The files BASIS-SPAN.kvtbasis; that of heads is there, others where they are. */
static kvt_status basis_load(basis_run *run, uint64_t digest)
{
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s-%s.kvtbasis", run->options->basis,
                       quality_basis_span_name(s + 1));
        status = basis_load_one(run, s, path, digest);
        if (status == KVT_E_GONE && s > 0) status = KVT_OK;
    }
    return status;
}

static kvt_status basis_learn_all(basis_run *run)
{
    quality_basis_report *report = run->report;
    quality_basis_lesson lesson = {.target = &run->target,
                                   .teach = run->teach,
                                   .teach_count = run->teach_count,
                                   .tables = run->tables,
                                   .table_count = run->table_count,
                                   .step = basis_step,
                                   .context = run};
    uint32_t judges = 0;
    for (uint32_t c = 0; c < run->options->class_count; c++) {
        const uint64_t parts[2] = {lesson.digest, run->entries[c].digest};
        if (basis_teaches(run, c)) lesson.digest = checksum_of(parts, sizeof parts);
        judges += run->judge_counts[c];
    }
    run->runs_all = quality_bases_runs(&lesson) + judges * (1 + (uint32_t)QUALITY_BASIS_ROWS) +
                    QUALITY_BASIS_ENTROPY + QUALITY_BASIS_SPANS * (uint32_t)BASIS_TRIALS;
    report->taught = run->teach_count;
    report->tables = run->table_count;
    for (uint32_t i = 0; run->options->basis == NULL && i < run->teach_count; i++)
        report->taught_tokens += run->teach[i]->context_tokens - KVT_SINK_TOKENS;
    kvt_status status = run->options->basis != NULL ? basis_load(run, lesson.digest)
                                                    : quality_bases_learn(&lesson, &run->bases);
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        report->bytes[s] = run->bases.bytes[s];
        for (uint32_t i = 0; report->bytes[s] != 0 && i < TRANSFORM_HASH_BYTES; i++)
            (void)snprintf(&report->hashes[s][2 * i], 3, "%02x",
                           (unsigned)run->bases.bases[s].hash[i]);
    }
    return status;
}

/* ---- judging ---- */

/* A form that is judged: a variant through a record, or segments of a basis. */
typedef struct basis_form {
    basis_run *run;
    const transform_basis *basis; /* NULL: the variant */
    kvt_variant variant;
    uint16_t step;
    quality_round_trip *round_trip;
    double bits, order0_bits; /* of the last context, an element behind the sinks */
} basis_form;

/* The order-0 entropy of a segment's codes in their classes, bits; NAN when it is not taken. */
static double basis_order0(const basis_form *form, const transform_segment *segment,
                           const void *const *matrices)
{
    const transform_basis *basis = form->basis;
    const uint32_t elements = transform_segment_matrices(&basis->shape, segment->index, NULL) *
                              transform_row(&basis->shape);
    const bool heads = basis->shape.span == TRANSFORM_SPAN_HEAD;
    const uint64_t first = (uint64_t)segment->index *
                           (heads ? transform_row(&basis->shape) : transform_width(&basis->shape));
    uint32_t *counts = form->run->counts;
    memset(counts, 0, sizeof *counts * TRANSFORM_CLASSES * BASIS_CODES);
    for (uint32_t start = 0; start < segment->tokens; start += TRANSFORM_BLOCK_TOKENS) {
        const uint32_t left = segment->tokens - start;
        const uint32_t tokens = left < TRANSFORM_BLOCK_TOKENS ? left : TRANSFORM_BLOCK_TOKENS;
        const int16_t *codes;
        if (transform_block_codes(segment, matrices, start / TRANSFORM_BLOCK_TOKENS,
                                  form->run->scratch, &codes) != KVT_OK)
            return (double)NAN;
        for (uint32_t e = 0; e < elements; e++, codes += TRANSFORM_BLOCK_TOKENS) {
            uint32_t *row =
                counts + transform_class(basis->spreads[first + e], segment->step) * BASIS_CODES;
            for (uint32_t t = 0; t < tokens; t++)
                row[((uint32_t)(int32_t)codes[t] + BASIS_CODES / 2) % BASIS_CODES]++;
        }
    }
    double bits = 0.0;
    for (uint32_t class = 0; class < TRANSFORM_CLASSES; class ++, counts += BASIS_CODES) {
        double all = 0.0;
        for (uint32_t i = 0; i < BASIS_CODES; i++)
            all += counts[i];
        for (uint32_t i = 0; i < BASIS_CODES; i++)
            bits += counts[i] > 0 ? counts[i] * log2(all / counts[i]) : 0.0;
    }
    return bits;
}

/* One segment there and back, in place; adds what it takes. */
static kvt_status basis_code_segment(basis_form *form, uint32_t index, evaluate_kv *kv,
                                     uint8_t *stored)
{
    const transform_shape *shape = &form->basis->shape;
    const uint64_t sinks = (uint64_t)KVT_SINK_TOKENS * transform_row(shape);
    const uint32_t tokens = kv->tokens - KVT_SINK_TOKENS;
    const transform_segment segment = {.basis = form->basis,
                                       .index = index,
                                       .first_position = KVT_SINK_TOKENS,
                                       .tokens = tokens,
                                       .step = form->step,
                                       .dtype = KVT_DTYPE_FP16};
    const void *matrices[TRANSFORM_MATRICES_MAX];
    view_rows rows[TRANSFORM_MATRICES_MAX];
    const view_rows *targets[TRANSFORM_MATRICES_MAX];
    uint32_t layer;
    const uint32_t count = transform_segment_matrices(shape, index, &layer);
    const uint32_t first = shape->span == TRANSFORM_SPAN_HEAD ? index : 2 * layer;
    for (uint32_t m = 0; m < count; m++) {
        uint16_t *const *side = (first + m) % 2 == KVT_SIDE_K ? kv->k : kv->v;
        uint16_t *elements = side[(first + m) / 2] + sinks;
        matrices[m] = elements;
        rows[m] =
            view_rows_packed(elements, (uint64_t)tokens * transform_row(shape) * sizeof *elements);
        targets[m] = &rows[m];
    }
    const uint64_t bound = transform_bound(&segment);
    uint64_t bytes = bound;
    form->order0_bits += basis_order0(form, &segment, matrices);
    kvt_status status =
        transform_encode(&segment, matrices, stored, bound, form->run->scratch, &bytes);
    form->bits += 8.0 * (double)(status == KVT_OK ? bytes : bound);
    if (status == KVT_RAW) return KVT_OK;
    if (status == KVT_OK)
        status = transform_decode(&segment, stored, bytes, 0, tokens, targets, form->run->scratch);
    return status;
}

static kvt_status basis_code(void *context, evaluate_kv *kv)
{
    basis_form *form = context;
    const transform_shape *shape = &form->basis->shape;
    const double elements =
        (double)transform_elements(shape) * (double)(kv->tokens - KVT_SINK_TOKENS);
    kvt_status status = KVT_OK;
    uint8_t *stored = malloc(TRANSFORM_MATRICES_MAX * (uint64_t)kv->tokens * transform_row(shape) *
                             sizeof(uint16_t));
    if (stored == NULL) return KVT_E_MEMORY;
    form->bits = form->order0_bits = 0.0;
    for (uint32_t i = 0; status == KVT_OK && i < transform_segment_count(shape); i++)
        status = basis_code_segment(form, i, kv, stored);
    form->bits /= elements;
    form->order0_bits /= elements;
    free(stored);
    return status;
}

static kvt_status basis_record(void *context, evaluate_kv *kv)
{
    basis_form *form = context;
    quality_round_trip *trip = form->round_trip;
    for (uint32_t i = 0; i < 2u * trip->layout.layers; i++) {
        const uint16_t *from = i % 2 == KVT_SIDE_K ? kv->k[i / 2] : kv->v[i / 2];
        memcpy(trip->source + kvt_layout_matrix_offset(&trip->layout, i / 2, (kvt_side)(i % 2)),
               from, trip->matrix_bytes);
    }
    const kvt_status status = quality_round_trip_run(trip, form->variant, false);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < 2u * trip->layout.layers; i++) {
        uint16_t *to = i % 2 == KVT_SIDE_K ? kv->k[i / 2] : kv->v[i / 2];
        memcpy(to,
               trip->decoded + kvt_layout_matrix_offset(&trip->layout, i / 2, (kvt_side)(i % 2)),
               trip->matrix_bytes);
    }
    form->bits = quality_coded_bits(&trip->info);
    return KVT_OK;
}

/* What a row of the form on the present context is found by. */
static uint64_t basis_form_key(const basis_form *form, bool recall)
{
    const basis_run *run = form->run;
    char text[128];
    if (form->basis == NULL) {
        (void)kvt_variant_format(form->variant, text, sizeof text);
    } else {
        uint64_t start;
        memcpy(&start, form->basis->hash, sizeof start);
        (void)snprintf(text, sizeof text, "basis %016llx step %u", (unsigned long long)start,
                       (unsigned)form->step);
    }
    return basis_rows_key(run->target.facts.digest, run->cut, recall, text);
}

static kvt_status basis_judge_form(basis_form *form, const evaluate_entry *entry,
                                   const evaluate_recall *recall, quality_basis_sums *sums)
{
    basis_run *run = form->run;
    evaluate_result result;
    evaluate_recall_result recalled = {.kl = 0.0};
    quality_basis_sums kept;
    const uint64_t key = basis_form_key(form, recall->tokens != NULL);
    if (!basis_step(run, "judging")) return KVT_E_CANCELLED;
    if (basis_rows_find(run->rows, key, &kept)) {
        quality_basis_add(sums, &kept);
        return KVT_OK;
    }
    kvt_status status = evaluate_variant_open(
        entry, form->basis != NULL ? basis_code : basis_record, form, &run->changed);
    if (status == KVT_OK)
        status = evaluate_variant_go_on(run->session, entry, &run->changed, &result, NULL);
    if (status == KVT_OK && recall->tokens != NULL)
        status = evaluate_recall_run(run->session, entry, recall, &run->changed, &recalled);
    if (status != KVT_OK) return status;
    const bool recalls = recall->tokens != NULL;
    const quality_basis_sums one = {.bits = form->bits,
                                    .order0_bits = form->order0_bits,
                                    .log_kl = log(fmax(result.kl, 1e-9)),
                                    .top1 = result.top1,
                                    .log_recall = recalls ? log(fmax(recalled.kl, 1e-9)) : 0.0,
                                    .recall_top1 = recalled.top1,
                                    .contexts = 1,
                                    .recalls = recalls};
    quality_basis_add(sums, &one);
    run->fresh++;
    return basis_rows_add(run->rows, key, &one);
}

/* Tries spans on a context: of each the step at which its KL is that of the reference, along the
 * line of log KL over log step, and the steps around it. */
static kvt_status basis_choose_steps(basis_run *run, const evaluate_entry *entry,
                                     quality_round_trip *trip)
{
    const evaluate_recall none = {.tokens = NULL};
    quality_basis_row rows[QUALITY_BASIS_ENTROPY] = {{.span = 0}};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < QUALITY_BASIS_ENTROPY; i++) {
        basis_form form = {.run = run, .round_trip = trip};
        quality_basis_sums sums = {.bits = 0.0};
        status = kvt_variant_parse(basis_entropy[i], &form.variant);
        if (status == KVT_OK) status = basis_judge_form(&form, entry, &none, &sums);
        rows[i].bits = sums.bits;
        rows[i].kl = exp(sums.log_kl);
    }
    const double wanted = quality_basis_reference(rows, QUALITY_BASIS_ENTROPY);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        double logs[BASIS_TRIALS] = {0.0};
        if (run->bases.objects[s] == NULL) continue;
        for (uint32_t i = 0; status == KVT_OK && i < BASIS_TRIALS; i++) {
            basis_form form = {.run = run, .basis = &run->bases.bases[s], .step = basis_trials[i]};
            quality_basis_sums sums = {.bits = 0.0};
            status = basis_judge_form(&form, entry, &none, &sums);
            logs[i] = sums.log_kl;
        }
        const uint32_t at = logs[1] > wanted ? 0 : 1;
        const double rise = logs[at + 1] - logs[at];
        double share = rise > 0.0 ? (wanted - logs[at]) / rise : 0.5;
        if (isnan(share)) share = 0.5; /* no reference */
        const double middle = basis_trials[at] * pow(4.0, fmin(fmax(share, -0.5), 1.25));
        for (uint32_t i = 0; i < QUALITY_BASIS_STEPS; i++) {
            const double step = round(middle * basis_around[i]);
            run->steps[s][i] = (uint16_t)fmin(fmax(step, i + 1.0), TRANSFORM_STEP_MAX - 4.0 + i);
        }
    }
    return status;
}

/* The row of the next form, which is the same of all that is judged. */
static void basis_name_row(basis_run *run, uint32_t at, uint32_t span, const char *name)
{
    quality_basis_row *row = &run->report->judged[0].rows[at];
    row->span = (uint8_t)span;
    (void)snprintf(row->name, sizeof row->name, "%s", name);
    if (at >= run->report->row_count) run->report->row_count = at + 1;
}

/* All forms of one context. */
static kvt_status basis_judge_entry(basis_run *run, const evaluate_entry *entry,
                                    const evaluate_recall *recall, quality_round_trip *trip,
                                    quality_basis_sums *sums)
{
    uint32_t at = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < QUALITY_BASIS_ENTROPY; i++, at++) {
        basis_form form = {.run = run, .round_trip = trip};
        basis_name_row(run, at, 0, basis_entropy[i]);
        status = kvt_variant_parse(basis_entropy[i], &form.variant);
        if (status == KVT_OK) status = basis_judge_form(&form, entry, recall, &sums[at]);
    }
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (run->bases.objects[s] == NULL) continue;
        for (uint32_t i = 0; status == KVT_OK && i < QUALITY_BASIS_STEPS; i++, at++) {
            const uint16_t step = run->steps[s][i];
            basis_form form = {.run = run, .basis = &run->bases.bases[s], .step = step};
            char name[48];
            (void)snprintf(name, sizeof name, "transform:%s,s%g", quality_basis_span_name(s + 1),
                           (double)step / TRANSFORM_STEP_ONE);
            basis_name_row(run, at, s + 1, name);
            status = basis_judge_form(&form, entry, recall, &sums[at]);
        }
    }
    return status;
}

static kvt_status basis_judge_context(basis_run *run, const quality_entry *cut,
                                      quality_basis_sums *sums)
{
    const kvt_layout layout = basis_layout(run, cut->context_tokens);
    evaluate_entry *entry = NULL;
    evaluate_recall recall = {.tokens = NULL};
    quality_round_trip trip = {.source = NULL};
    kvt_status status = basis_step(run, "contexts") ? KVT_OK : KVT_E_CANCELLED;
    run->cut = cut;
    if (status == KVT_OK)
        status = evaluate_entry_open(run->session, cut->tokens, cut->context_tokens,
                                     cut->continuation_tokens, &entry);
    if (status == KVT_OK && cut->recall != NULL)
        status = evaluate_recall_open(run->session, entry, cut->recall, cut->recall_tokens,
                                      cut->recall_scored, &recall);
    if (status == KVT_OK) status = quality_round_trip_open(&layout, &trip);
    if (status == KVT_OK && run->steps[0][0] == 0) status = basis_choose_steps(run, entry, &trip);
    if (status == KVT_OK) status = basis_judge_entry(run, entry, &recall, &trip, sums);
    quality_round_trip_close(&trip);
    evaluate_recall_close(&recall);
    evaluate_entry_close(entry);
    return status;
}

static kvt_status basis_judge(basis_run *run)
{
    uint64_t scratch = 0;
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        const uint64_t bytes =
            run->bases.objects[s] != NULL ? transform_scratch_bytes(&run->bases.bases[s].shape) : 0;
        scratch = bytes > scratch ? bytes : scratch;
    }
    run->scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
    run->counts = malloc(sizeof *run->counts * TRANSFORM_CLASSES * BASIS_CODES);
    if (run->scratch == NULL || run->counts == NULL) return KVT_E_MEMORY;
    kvt_status status = model_session_open(run->target.weights, &run->session);
    for (uint32_t c = 0; c < run->options->class_count; c++) {
        for (uint32_t i = 0; status == KVT_OK && i < run->judge_counts[c]; i++)
            status = basis_judge_context(run, run->judges[c][i], run->sums[c]);
    }
    return status;
}

/* ---- the report ---- */

/* One more that was judged: the sums of the classes that taught, or of those that did not, or of
 * one. Nothing of a set that would be another one again. */
static void basis_report_classes(basis_run *run, const char *name, uint32_t first, uint32_t end,
                                 const bool *taught)
{
    quality_basis_report *report = run->report;
    quality_basis_sums sums[QUALITY_BASIS_ROWS] = {{.bits = 0.0}};
    quality_basis_judged *judged = &report->judged[report->judged_count];
    uint32_t classes = 0;
    for (uint32_t c = first; c < end; c++) {
        if (taught != NULL && basis_teaches(run, c) != *taught) continue;
        for (uint32_t i = 0; i < report->row_count; i++)
            quality_basis_add(&sums[i], &run->sums[c][i]);
        classes++;
    }
    if (classes == 0 || (taught != NULL && classes == 1)) return;
    *judged = report->judged[0];
    (void)snprintf(judged->name, sizeof judged->name, "%s", name);
    judged->taught = taught != NULL ? *taught : basis_teaches(run, first);
    quality_basis_sum_up(sums, report->row_count, judged);
    report->judged_count++;
}

static void basis_make_report(basis_run *run)
{
    const quality_basis_options *o = run->options;
    const bool yes = true, no = false;
    for (uint32_t c = 0; c < o->class_count; c++)
        basis_report_classes(run, o->classes[c].name, c, c + 1, NULL);
    basis_report_classes(run, "all that taught", 0, o->class_count, &yes);
    basis_report_classes(run, "all others", 0, o->class_count, &no);
}

static void basis_close(basis_run *run)
{
    for (uint32_t c = 0; c < QUALITY_CLASSES_MAX; c++) {
        quality_entries_free(&run->entries[c]);
        free(run->documents[c]);
        free((void *)run->judges[c]);
    }
    free((void *)run->teach);
    free((void *)run->tables);
    quality_bases_free(&run->bases);
    basis_rows_close(run->rows);
    evaluate_variant_close(&run->changed);
    free(run->scratch);
    free(run->counts);
    model_session_close(run->session);
    quality_model_close(&run->target);
    free(run);
}

/* Writes the bases to files, each of them whole or not there. */
static kvt_status basis_write_files(basis_run *run)
{
    const char *output = run->options->output;
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; output != NULL && status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        char path[4096], *partial = NULL;
        const uint64_t bytes = run->bases.bytes[s];
        if (bytes == 0) continue; /* too wide */
        (void)snprintf(path, sizeof path, "%s-%s.kvtbasis", output, quality_basis_span_name(s + 1));
        status = whole_file_begin(path, &partial, run->message, run->message_size);
        if (status != KVT_OK) return status;
        FILE *file = fopen(partial, "wbe");
        bool sound = file != NULL && fwrite(run->bases.objects[s], 1, bytes, file) == bytes;
        if (file != NULL && fclose(file) != 0) sound = false;
        if (!sound)
            (void)snprintf(run->message, run->message_size, "%.300s: cannot be written", path);
        status = whole_file_end(&partial, path, sound ? KVT_OK : KVT_E_IO, run->message,
                                run->message_size);
    }
    return status;
}

kvt_status quality_basis_run(const quality_basis_options *options, quality_basis_report *report_out,
                             char *message, size_t message_size)
{
    const double start = base_clock_seconds();
    memset(report_out, 0, sizeof *report_out);
    message[0] = '\0';
    basis_run *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    run->options = options;
    run->report = report_out;
    run->message = message;
    run->message_size = message_size;
    run->started = start;
    kvt_status status = basis_rows_open(options->rows, &run->rows, message, message_size);
    if (status == KVT_OK)
        status = quality_model_open(options->model, options->tokenizer, NULL, &run->target, message,
                                    message_size);
    if (status == KVT_OK) status = basis_share_out(run);
    if (status == KVT_OK) status = basis_learn_all(run);
    if (status == KVT_OK) status = basis_write_files(run);
    if (status == KVT_OK) status = basis_judge(run);
    if (status == KVT_OK) basis_make_report(run);
    report_out->model = run->target.facts;
    report_out->seconds = base_clock_seconds() - start;
    basis_close(run);
    return status;
}
