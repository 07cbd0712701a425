/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_profile.c - opens what a calibration is of (calibrate_internal.h); and ladders into a
 * profile (calibrate.h): asks, tries the limits, says what ladders lack, and stores them. Thread
 * rule: see calibrate_internal.h.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/basis_learners.h"
#include "estimator/quality/calibrate_internal.h"
#include "estimator/quality/quality_rows.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static kvt_status calibrate_check(const calibration *c)
{
    const calibrate_options *o = c->options;
    const uint32_t wanted_max =
        c->curves ? (uint32_t)QUALITY_VARIANTS_MAX : (uint32_t)CALIBRATE_WANTED_MAX;
    const bool compares = o->metric == QUALITY_ROUGE_L || o->metric == QUALITY_F1;
    const char *wrong = NULL;
    if (o->metric >= QUALITY_METRICS) wrong = "a metric";
    if (o->use >= QUALITY_USES) wrong = "a use";
    if (o->model == NULL && (o->dump_count == 0 || o->name == NULL)) wrong = "a model, or dumps";
    if (o->lesson && (o->model == NULL || !o->basis)) wrong = "a model where it learns alone";
    if (o->model != NULL && ((o->contexts < (c->curves ? 1 : 2) && !o->lesson) ||
                             o->context_tokens < 1 || o->continuation_tokens < 4))
        wrong = c->curves ? "an entry or more, of 1 + 4 tokens"
                          : "two entries or more, of 1 + 4 tokens";
    if (o->model != NULL && compares && o->answer_tokens == 0) wrong = "answers to compare";
    if (c->curves && o->model == NULL && o->class_count > 1) wrong = "dumps of one class";
    if (o->class_count < 1 || o->class_count > QUALITY_CLASSES_MAX) wrong = "1 to 8 classes";
    for (uint32_t i = 0; o->dump_classes != NULL && i < o->dump_count; i++)
        if (o->dump_classes[i] >= o->class_count) wrong = "dumps of its classes";
    if (o->basis && (o->teach_contexts < 4 || o->teach_tokens < 1))
        wrong = "four contexts or more that teach, where it learns bases";
    if (o->wanted != NULL ? o->wanted->count < 1 || o->wanted->count > wanted_max : c->curves)
        wrong = c->curves ? "1 to 128 variants" : "1 to 40 variants of the ladder";
    for (uint32_t i = 0; wrong == NULL && i < o->class_count; i++) {
        const size_t length = strlen(o->classes[i].name);
        if (length < 1 || length > 63 - strlen(PROFILE_PASSAGES) ||
            ((o->class_count > 1 || c->curves) && strcmp(o->classes[i].name, QUALITY_POOLED) == 0))
            wrong = "names of classes of 1 to 56 bytes, of several none 'pooled'";
        if (o->model != NULL && o->classes[i].text_count == 0) wrong = "texts";
    }
    if (wrong == NULL) return KVT_OK;
    (void)snprintf(c->message, c->message_size, "a %s takes %s",
                   c->curves ? "measurement of quality" : "calibration", wrong);
    return KVT_E_ARGUMENT;
}

static uint32_t calibrate_dump_class(const calibrate_options *o, uint32_t dump)
{
    return o->dump_classes != NULL ? o->dump_classes[dump] : 0;
}

const void *calibrate_candidate(const calibration *c, uint32_t class_index, uint32_t number)
{
    const calibrate_options *o = c->options;
    const quality_entries *texts = &c->texts[class_index];
    if (o->model != NULL) return number < texts->count ? &texts->entries[number] : NULL;
    for (uint32_t i = 0; i < o->dump_count; i++)
        if (calibrate_dump_class(o, i) == class_index && number-- == 0) return o->dumps[i];
    return NULL;
}

static kvt_status calibrate_make_room(calibration *c, uint32_t entries)
{
    const size_t room = (size_t)entries + 1; /* a lesson alone judges none */
    c->classes = calloc(room, sizeof *c->classes);
    c->numbers = calloc(room, sizeof *c->numbers);
    c->documents = calloc(room, sizeof *c->documents);
    c->asked = calloc(room, sizeof *c->asked);
    c->exact = calloc(room, sizeof *c->exact);
    c->entries = calloc(room, sizeof *c->entries);
    c->handles = calloc(room, sizeof *c->handles);
    c->identities = calloc(room, sizeof *c->identities);
    if (c->classes == NULL || c->numbers == NULL || c->documents == NULL || c->asked == NULL ||
        c->exact == NULL || c->entries == NULL || c->handles == NULL || c->identities == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < entries; i++)
        c->exact[i].answers = (double)NAN;
    return KVT_OK;
}

/* Entries of the classes in turn, and what each is. The rungs of a use that looks at answers alone
 * need no passages. */
static kvt_status calibrate_take_turns(calibration *c)
{
    const calibrate_options *o = c->options;
    const uint32_t asked = o->question_contexts != 0 ? o->question_contexts : UINT32_MAX;
    uint32_t all = 0, count = 0;
    for (uint32_t i = 0; i < o->class_count; i++)
        all += c->taken[i];
    kvt_status status = calibrate_make_room(c, all);
    for (uint32_t turn = 0; status == KVT_OK && count < all; turn++) {
        for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
            if (turn >= c->taken[i]) continue;
            const void *handle = calibrate_candidate(c, i, turn);
            if (o->model != NULL) {
                c->entries[count] = *(const quality_entry *)handle;
                if (o->use == QUALITY_USE_ANSWERS && !c->curves) c->entries[count].recall = NULL;
                handle = &c->entries[count];
            }
            status = c->source.type->identify(&c->source, handle, &c->identities[count]);
            c->entries[count].context_tokens = c->identities[count].layout.tokens;
            c->handles[count] = handle;
            c->classes[count] = i;
            c->numbers[count] = turn;
            c->documents[count] = c->identities[count].document;
            c->asked[count++] = turn < asked;
        }
    }
    c->entry_count = count;
    return status;
}

typedef struct longest_set {
    const calibrate_options *options;
    uint32_t entries;
} longest_set;

/* Texts are read so far as any measurement did that could share their beginning. */
static void calibrate_see_set(void *context, int64_t set, int64_t passages, const char *settings)
{
    longest_set *longest = context;
    quality_cuts cuts;
    (void)set, (void)passages;
    if (!quality_cuts_read(settings, &cuts) || cuts.entries <= longest->entries) return;
    if (cuts.context_tokens == longest->options->context_tokens &&
        cuts.continuation_tokens == longest->options->continuation_tokens)
        longest->entries = cuts.entries;
}

static kvt_status calibrate_read_texts(calibration *c)
{
    const calibrate_options *o = c->options;
    longest_set longest = {.options = o, .entries = 0};
    bool questions = false;
    kvt_status status = KVT_OK;
    if (!c->curves)
        status = profile_sets_of_texts(c->profile, c->model, calibrate_see_set, &longest);
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++) {
        quality_entries *texts = &c->texts[i];
        const uint32_t wanted = calibrate_entries_read(o, i);
        status = quality_entries_read(o->classes[i].texts, o->classes[i].text_count,
                                      c->measured.tokens, o->context_tokens, o->continuation_tokens,
                                      longest.entries > wanted ? longest.entries : wanted, texts,
                                      c->message, c->message_size);
        c->taken[i] = texts->count < o->contexts ? texts->count : o->contexts;
        for (uint32_t j = 0; j < c->taken[i]; j++)
            questions = questions || texts->entries[j].question_count > 0;
    }
    if (status == KVT_OK && o->metric == QUALITY_ANSWERS && !questions) {
        (void)snprintf(c->message, c->message_size, "no text has questions with answers");
        status = KVT_E_ARGUMENT;
    }
    return status == KVT_OK ? calibrate_take_turns(c) : status;
}

static kvt_status calibrate_open_model(calibration *c)
{
    const calibrate_options *o = c->options;
    kvt_status status = quality_model_open(o->model, o->tokenizer, o->name, &c->measured,
                                           c->message, c->message_size);
    if (status != KVT_OK) return status;
    profile_model *facts = &c->report->model;
    *facts = c->measured.facts;
    c->source = quality_source_of_model(&c->measured, c->message, c->message_size);
    c->layout = (kvt_layout){.layers = (uint16_t)facts->layers,
                             .kv_heads = (uint16_t)facts->kv_heads,
                             .head_dim = (uint16_t)facts->head_dim,
                             .dtype = KVT_DTYPE_FP16,
                             .tokens = o->context_tokens};
    status = profile_model_put(c->profile, facts, &c->model);
    return status == KVT_OK ? calibrate_read_texts(c) : status;
}

static kvt_status calibrate_open_dumps(calibration *c)
{
    const calibrate_options *o = c->options;
    profile_model *facts = &c->report->model;
    (void)snprintf(facts->name, sizeof facts->name, "%s", o->name);
    c->source = quality_source_of_dumps(facts->name, c->message, c->message_size);
    for (uint32_t i = 0; i < o->dump_count; i++) {
        uint32_t *taken = &c->taken[calibrate_dump_class(o, i)];
        if (o->contexts == 0 || *taken < o->contexts) (*taken)++;
    }
    kvt_status status = calibrate_take_turns(c);
    if (status != KVT_OK) return status;
    const uint32_t rows = c->identities[0].queries;
    c->queries = o->queries != 0 ? o->queries : (uint32_t)QUALITY_DUMPS_QUERIES;
    if (o->queries == 0 && rows != 0 && rows < c->queries) c->queries = rows;
    c->layout = c->source.first;
    facts->heads = c->source.heads;
    facts->layers = c->layout.layers;
    facts->kv_heads = c->layout.kv_heads;
    facts->head_dim = c->layout.head_dim;
    if (o->rope != NULL) {
        c->source.given = true;
        if (quality_rope_parse(o->rope, c->layout.head_dim, &c->source.rope) != KVT_OK) {
            (void)snprintf(c->message, c->message_size,
                           "%.80s: keys turn by THETA,halves or THETA,neighbours[,DIM] of at most "
                           "%u channels, or none",
                           o->rope, (unsigned)c->layout.head_dim);
            return KVT_E_ARGUMENT;
        }
    }
    status = profile_model_of_shape(c->profile, facts, &c->model);
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++)
        status =
            quality_map_make(c->profile, o->name, o->classes[i].name, NULL, NULL, 0, &c->maps[i]);
    return status;
}

/* ---- sets in the database ---- */

kvt_status calibrate_open_set(calibration *c, const char *class_name, const quality_entry *first,
                              const char *settings, uint32_t entries, int64_t *set_out)
{
    const profile_set set = {.model = c->model,
                             .class_name = class_name,
                             .method = c->source.type->method,
                             .settings = settings,
                             .context_tokens = first->context_tokens,
                             .continuation_tokens = first->continuation_tokens,
                             .entries = entries};
    kvt_status status = quality_set_open(c->profile, &set, c->curves ? "quality" : "calibration",
                                         c->options->command_line, &c->run, set_out);
    if (status == KVT_OK && c->curves)
        status = profile_set_take_imports(c->profile, &set, *set_out);
    return status;
}

uint32_t calibrate_first(const calibration *c, uint32_t class_index)
{
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (c->classes[i] == class_index) return i;
    return 0;
}

static bool calibrate_has_passages(const calibration *c, uint32_t class_index)
{
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (c->classes[i] == class_index && c->entries[i].recall != NULL) return true;
    return false;
}

/* The settings that a set of a class is found by, as JSON; the caller frees it. NULL: no memory. */
static char *calibrate_settings(const calibration *c, uint32_t class_index)
{
    const calibrate_options *o = c->options;
    const uint32_t entries = c->taken[class_index];
    quality_cuts cuts = {.entries = entries,
                         .context_tokens = o->context_tokens,
                         .continuation_tokens = o->continuation_tokens,
                         .answer_tokens = o->answer_tokens,
                         .metric = o->metric,
                         .use = o->use,
                         .calibration = !c->curves};
    char settings[160];
    uint64_t digest = 0;
    if (o->model != NULL) {
        cuts.texts = quality_entries_digest(&c->texts[class_index], entries);
        return quality_cuts_write(&cuts);
    }
    for (uint32_t i = 0; i < c->entry_count; i++)
        if (c->classes[i] == class_index)
            digest = quality_identity_chain(&c->identities[i], digest);
    (void)snprintf(settings, sizeof settings, "{\"%s\":\"%016llx\",\"entries\":%u,\"queries\":%u}",
                   c->curves ? "dumps" : "calibration", (unsigned long long)digest,
                   (unsigned)entries, (unsigned)c->queries);
    return strdup(settings);
}

static kvt_status calibrate_open_class(calibration *c, uint32_t class_index)
{
    const char *name = c->options->classes[class_index].name;
    const quality_entry *first = &c->entries[calibrate_first(c, class_index)];
    const uint32_t entries = c->taken[class_index];
    char passages[64], *settings = calibrate_settings(c, class_index);
    if (settings == NULL) return KVT_E_MEMORY;
    kvt_status status =
        calibrate_open_set(c, name, first, settings, entries, &c->sets[class_index]);
    (void)snprintf(passages, sizeof passages, "%s" PROFILE_PASSAGES, name);
    if (status == KVT_OK && calibrate_has_passages(c, class_index))
        status =
            calibrate_open_set(c, passages, first, settings, entries, &c->passages[class_index]);
    free(settings);
    return status;
}

kvt_status calibrate_open(calibration *c)
{
    const calibrate_options *o = c->options;
    kvt_status status = calibrate_check(c);
    if (status == KVT_OK)
        status = o->model != NULL ? calibrate_open_model(c) : calibrate_open_dumps(c);
    if (status == KVT_OK && o->lesson)
        return profile_run_begin(c->profile, "calibration", o->command_line, QUALITY_SEED, &c->run);
    for (uint32_t i = 0; status == KVT_OK && i < o->class_count; i++)
        status = calibrate_open_class(c, i);
    if (status != KVT_OK) return status;
    c->report->entries = c->entry_count;
    c->expected = (uint64_t)c->entry_count *
                  (c->curves ? o->wanted->count : (uint32_t)CALIBRATE_VARIANTS_MAX / 2);
    return calibrate_take_rows(c);
}

void calibrate_close(calibration *c)
{
    for (uint32_t i = 0; i < QUALITY_CLASSES_MAX; i++)
        quality_entries_free(&c->texts[i]);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        profile_basis_free(&c->owned[s]);
    quality_source_end(&c->source);
    quality_model_close(&c->measured);
    free(c->entries);
    free((void *)c->handles);
    free(c->identities);
    free(c->classes);
    free(c->numbers);
    free(c->documents);
    free(c->asked);
    free(c->exact);
    free(c->kept);
}

/* ---- what was found ---- */

/* What a row's loss is a mean of: tokens of the continuation, of the passage, or the fewer of both;
 * of dumps queries. */
static uint32_t calibrate_trials(const calibration *c)
{
    const calibrate_options *o = c->options;
    double answers = 0.0, recall = 0.0;
    uint32_t passages = 0;
    if (o->model == NULL) {
        return c->queries * c->report->model.heads * c->report->model.layers;
    }
    for (uint32_t i = 0; i < c->entry_count; i++) {
        answers += c->entries[i].continuation_tokens;
        if (c->entries[i].recall != NULL) recall += c->entries[i].recall_scored;
        passages += c->entries[i].recall != NULL;
    }
    answers /= c->entry_count;
    if (passages == 0 || o->use == QUALITY_USE_ANSWERS) return (uint32_t)answers;
    recall /= passages;
    return (uint32_t)(o->use == QUALITY_USE_RECALL ? recall : fmin(answers, recall));
}

/* ---- what the ladders lack ---- */

__attribute__((format(printf, 2, 3))) static void note(calibrate_report *report, const char *format,
                                                       ...)
{
    va_list arguments;
    assert(report->note_count < CALIBRATE_NOTES_MAX);
    va_start(arguments, format);
    (void)vsnprintf(report->notes[report->note_count++], CALIBRATE_TEXT_BYTES, format, arguments);
    va_end(arguments);
}

/* One sentence about all variants of a kind that are no rungs. `partly`: there are rows of them. */
static void note_left(calibration *c, const calibrate_rows *rows, bool named, bool partly)
{
    char list[CALIBRATE_TEXT_BYTES - 160] = "";
    const char *reason = "the layout does not take it";
    if (c->options->finish)
        reason = partly ? "measured on too few entries; the same command without --finish goes on"
                        : "not measured; the same command without --finish does it";
    else if (partly)
        reason = "the layout of most entries does not take it";
    for (uint32_t i = 0; i < rows->left_count; i++) {
        const struct calibrate_left *left = &rows->left[i];
        const size_t used = strlen(list);
        if (left->named == named && (left->entries > 0) == partly)
            (void)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "",
                           left->name);
    }
    if (list[0] != '\0')
        note(c->report, "No ladder has %s, %s: %s.", list,
             named ? "which was named" : "of an accepted basis", reason);
}

/* The first integer of a query with a number bound; -1: no row, or an error. */
static int64_t note_ask(calibration *c, const char *sql, uint64_t value)
{
    profile_row row = profile_row_begin(c->profile, sql);
    int64_t found = -1;
    profile_row_integer(&row, value);
    if (row.result == SQLITE_OK && sqlite3_step(row.statement) == SQLITE_ROW)
        found = sqlite3_column_int64(row.statement, 0);
    (void)sqlite3_finalize(row.statement);
    return found;
}

/* Ladders of a calibration without --basis take the place of those that have variants of one. */
static void note_forgotten(calibration *c)
{
    const calibrate_ladder *ladder = &c->report->ladders[0];
    for (uint32_t i = 0; i < ladder->rung_count; i++)
        if (ladder->rungs[i].variant.variant.codec == KVT_CODEC_TRANSFORM) return;
    const int64_t start = note_ask(
        c,
        "SELECT g.rate >> 10 FROM calibration_rung g WHERE g.codec = 8 AND g.accepted = 1 AND "
        "g.calibration_id = (SELECT max(k.id) FROM calibration k JOIN run r ON r.id = k.run_id "
        "WHERE r.complete = 1 AND k.model_id = ?1) ORDER BY g.position LIMIT 1",
        (uint64_t)c->model);
    if (start >= 0)
        note(c->report,
             "The calibration before this one has variants of accepted bases (transform:%05X), and "
             "this one none: the same command with --basis CLASS,... as then keeps them.",
             (unsigned)start);
}

static void note_speeds(calibration *c, const calibrate_rows *rows)
{
    for (uint32_t s = 0; s < TRANSFORM_SPAN_LAYERS4; s++) {
        const uint32_t start = c->bases.starts[s];
        if (!rows->accepted[s] ||
            note_ask(c, "SELECT 1 FROM codec_curve WHERE codec = 8 AND rate >> 10 = ?1 LIMIT 1",
                     start) == 1)
            continue;
        note(c->report,
             "The profile has no speed of the basis %05X (%s), which a simulation asks for: "
             "kvterrace profile codecs measures it.",
             (unsigned)start, quality_basis_span_name(s + 1));
        return;
    }
}

static void calibrate_note(calibration *c, const calibrate_rows *rows, uint32_t known)
{
    static_assert(KVT_CODEC_TRANSFORM == 8 && PROFILE_BASIS_SHIFT == 10, "the queries say so");
    for (int named = 1; named >= 0; named--) {
        note_left(c, rows, named != 0, false);
        note_left(c, rows, named != 0, true);
    }
    if (known > CALIBRATE_KNOWN_MAX)
        note(c->report,
             "A ladder takes %u variants and %u were measured: --variants names those that count.",
             (unsigned)CALIBRATE_KNOWN_MAX, (unsigned)known);
    if (!c->options->basis) note_forgotten(c);
    if (c->options->basis && c->listed.count == 0)
        note(c->report, "The profile has no basis of these documents, and none was asked about: "
                        "the same command without --finish learns one.");
    note_speeds(c, rows);
}

/* ---- storing ---- */

/* Ladders and choices appear together with the run's completion, or not at all. */
static kvt_status calibrate_store(calibration *c)
{
    sqlite3 *database = c->profile->database;
    int result = sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < c->report->ladder_count; i++)
        status = calibrate_put_ladder(c->profile, c->run, c->model, c->report->names[i],
                                      &c->report->ladders[i]);
    if (status == KVT_OK) status = profile_run_complete(c->profile, c->run);
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static kvt_status calibrate_ask(calibration *c)
{
    const calibrate_options *o = c->options;
    calibrate_report *report = c->report;
    calibrate_rows rows = {.source = NULL};
    const char *names[QUALITY_CLASSES_MAX];
    quality_variant variants[CALIBRATE_KNOWN_MAX];
    calibrate_wanted known = {.variants = variants}, named;
    const calibrate_wanted *wanted = o->wanted;
    uint32_t known_count = 0;
    for (uint32_t i = 0; i < o->class_count; i++)
        names[i] = o->classes[i].name;
    if (o->finish && wanted == NULL) {
        known_count = calibrate_known_variants(c, variants, CALIBRATE_KNOWN_MAX);
        known.count = known_count < CALIBRATE_KNOWN_MAX ? known_count : CALIBRATE_KNOWN_MAX;
        wanted = &known;
    }
    if (o->finish) {
        named = *wanted;
        named.answers = true;
        wanted = &named;
    }
    if (o->finish && c->kept_count == 0) {
        (void)snprintf(c->message, c->message_size, "nothing was measured of these texts yet");
        return KVT_E_ARGUMENT;
    }
    const uint32_t trials = calibrate_trials(c);
    const calibrate_source source = {.entries = c->entry_count,
                                     .classes = c->classes,
                                     .class_count = o->class_count,
                                     .class_names = names,
                                     .documents = c->documents,
                                     .asked = c->asked,
                                     .trials = trials > 0 ? trials : 1,
                                     .bases = c->listed.count > 0 ? &c->bases : NULL,
                                     .measure = calibrate_source_measure,
                                     .tables = o->finish ? NULL : calibrate_source_tables,
                                     .context = c};
    kvt_status status = calibrate_run(&source, QUALITY_SEED, wanted, report->ladders, &rows,
                                      c->message, c->message_size);
    report->measured = rows.count;
    report->rows = c->done - report->resumed;
    report->ladder_count = calibrate_ladder_count(&source);
    for (uint32_t i = 0; i < report->ladder_count; i++)
        (void)snprintf(report->names[i], sizeof report->names[i], "%s",
                       i < o->class_count ? names[i] : QUALITY_POOLED);
    if (status == KVT_OK)
        status = calibrate_try(&rows, &report->ladders[0], report->classes, report->documents);
    if (status == KVT_OK) calibrate_note(c, &rows, known_count);
    calibrate_rows_free(&rows);
    return status;
}

kvt_status calibrate_profile_run(kvt_profile *profile, const calibrate_options *options,
                                 calibrate_report *report_out, char *message, size_t message_size)
{
    calibration c = {.profile = profile,
                     .options = options,
                     .report = report_out,
                     .message = message,
                     .message_size = message_size,
                     .started = base_clock_seconds()};
    memset(report_out, 0, sizeof *report_out);
    for (uint32_t i = 0; i < QUALITY_CLASSES_MAX; i++)
        report_out->likelihoods[i] = (quality_likelihood){(double)NAN, (double)NAN};
    message[0] = '\0';
    kvt_status status = calibrate_open(&c);
    if (status == KVT_OK && options->basis) status = calibrate_learn(&c);
    if (status == KVT_OK && !options->lesson) status = calibrate_ask(&c);
    if (status == KVT_OK && !options->lesson) status = calibrate_store(&c);
    report_out->seconds = base_clock_seconds() - c.started;
    calibrate_close(&c);
    return status;
}
