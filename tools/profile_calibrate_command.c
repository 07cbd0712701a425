/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_calibrate_command.c - kvterrace profile calibrate: the choices of a model's ladder,
 * measured, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "profile_document.h"
#include "profile_measure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALIBRATE_PATHS_MAX = 4096, CALIBRATE_ANSWER_TOKENS = 32 };

static const command_option calibrate_table[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", QUALITY_CLASSES_MAX *MEASURE_TEXTS_MAX),
    LIST_OPTION(measure_arguments, dumps, "kv", "[CLASS=]FILE", CALIBRATE_PATHS_MAX, 0,
                "A KV dump with queries instead of a model, or a folder of them; more may follow "
                "without the option"),
    OPERANDS(measure_arguments, dumps, "FILE", 0, CALIBRATE_PATHS_MAX, 0),
    MEASURE_TEXT(name, "name", "NAME", "What the profile calls the model (from its path; 'model')"),
    MEASURE_CLASS_ROW,
    MEASURE_VARIANTS(" (those that follow from the answers)"),
    MEASURE_METRIC,
    MEASURE_USE,
    MEASURE_CONTEXTS(100000, "Entries of each class (40)"),
    MEASURE_COUNT(question_contexts, "question-contexts", 100000,
                  "Of them, that questions are asked on (12)"),
    MEASURE_LENGTHS,
    MEASURE_QUERIES,
    MEASURE_THREADS,
    MEASURE_MINUTES(
        "Stop after so many and at least one variant of an entry; the same command goes on"),
    MEASURE_TEXT(learn, "basis", "LIST",
                 "Learn bases of the transform codec on documents of these classes, with commas "
                 "between them, and ask whether they pay"),
    MEASURE_TEACH,
    MEASURE_TEXT(rope, "rope", "ROPE",
                 "How keys of dumps turn, where these do not say it: THETA,halves or "
                 "THETA,neighbours[,DIM], or none"),
    FLAG_OPTION(measure_arguments, finish, "finish", 0,
                "Measure nothing more: answer by what any measurement of these texts has left"),
    DATABASE_OPTION,
    QUICK_OPTION(measure_arguments, quick, "12 entries of each class"),
    {0},
};

/* ---- the command line ---- */

static int calibrate_check(void *context)
{
    const measure_arguments *arguments = context;
    const bool named = arguments->model != NULL, dumps = arguments->dumps.count > 0;
    if (!named && !dumps) return command_misuse("--model or --kv is missing");
    if (named && dumps) return command_misuse("--model and --kv do not go together");
    if (named && arguments->texts.count == 0) return command_misuse("--text is missing");
    if (!named && arguments->texts.count > 0) return command_misuse("--text goes with --model");
    if (arguments->learn == NULL && (arguments->teach || arguments->teach_tokens))
        return command_misuse("--teach and --teach-tokens go with --basis");
    if (arguments->rope != NULL && (named || arguments->learn == NULL))
        return command_misuse("--rope goes with --kv and --basis");
    return EXIT_FINE;
}

/* ---- the report ---- */

static json_t *calibrate_pack_trials(const promise_trial *trials, uint32_t count)
{
    json_t *limits = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const promise_trial *trial = &trials[i];
        (void)json_array_append_new(
            limits,
            json_pack("{s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "limit", trial->limit, "mean_offered",
                      (json_int_t)trial->mean_offered, "mean_kept", (json_int_t)trial->mean_kept,
                      "entry_offered", (json_int_t)trial->entry_offered, "entry_kept",
                      (json_int_t)trial->entry_kept, "entries_offered",
                      (json_int_t)trial->entry_seen, "entries_within",
                      (json_int_t)trial->entry_within));
    }
    return limits;
}

static json_t *calibrate_pack_rungs(const calibrate_ladder *ladder)
{
    json_t *rungs = json_array();
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        (void)json_array_append_new(
            rungs, json_pack("{s:s, s:f, s:f, s:f, s:f, s:b, s:s}", "variant", rung->variant.name,
                             "bits_per_element", rung->bits_per_element, "loss", rung->loss,
                             "loss_upper", rung->loss_upper, "loss_entry", rung->loss_entry,
                             "accepted", (int)rung->accepted, "evidence", rung->evidence));
    }
    return rungs;
}

static json_t *calibrate_pack_ladders(const calibrate_report *report)
{
    json_t *ladders = json_array();
    for (uint32_t i = 0; i < report->ladder_count; i++) {
        const calibrate_ladder *ladder = &report->ladders[i];
        (void)json_array_append_new(
            ladders, json_pack("{s:o, s:I, s:f, s:o}", "class", view_string(report->names[i]),
                               "entries", (json_int_t)ladder->entries, "widening",
                               ladder->widening > 1.0 ? ladder->widening : 1.0, "rungs",
                               calibrate_pack_rungs(ladder)));
    }
    return ladders;
}

/* By class how the model understands the texts; null of dumps. */
static json_t *calibrate_pack_likelihoods(const calibrate_report *report,
                                          const calibrate_options *options)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < options->class_count; i++) {
        const quality_likelihood *likelihood = &report->likelihoods[i];
        (void)json_array_append_new(
            rows, json_pack("{s:o, s:o, s:o, s:b}", "class", view_string(options->classes[i].name),
                            "nll_nats", view_real(likelihood->nats), "unigram_nats",
                            view_real(likelihood->unigram_nats), "understood",
                            (int)quality_understands(likelihood)));
    }
    return rows;
}

/* What a calibration says that made no ladder, since the model does not understand the texts. */
static json_t *calibrate_refusal(const calibrate_report *report, const calibrate_options *options)
{
    return json_pack("{s:s, s:o, s:s, s:o, s:[], s:[]}", "schema", "kvterrace-profile-calibrate-2",
                     "model", view_string(report->model.name), "digest", report->model.digest,
                     "likelihood", calibrate_pack_likelihoods(report, options), "rungs", "ladders");
}

/* ---- what it means ---- */

/* What a limit leaves of a ladder. */
typedef struct verdict_choice {
    uint32_t count;
    const calibrate_rung *smallest; /* NULL: none */
} verdict_choice;

__attribute__((format(printf, 2, 3))) static void verdict_say(json_t *sentences, const char *format,
                                                              ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)json_array_append_new(sentences, view_string(text));
}

static verdict_choice verdict_choose(const calibrate_ladder *ladder, double limit)
{
    verdict_choice choice = {0};
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        if (!rung->accepted || rung->loss_upper > limit) continue;
        choice.count++;
        if (choice.smallest == NULL || rung->bits_per_element < choice.smallest->bits_per_element)
            choice.smallest = rung;
    }
    return choice;
}

/* What a limit leaves to entries of a class, or of none that was measured. */
static void verdict_say_limit(json_t *sentences, const char *whose, const calibrate_ladder *ladder,
                              double limit)
{
    const verdict_choice choice = verdict_choose(ladder, limit);
    if (choice.smallest == NULL) {
        verdict_say(sentences,
                    "A loss limit of %g leaves no lossy variant to %s: such entries "
                    "stay raw or lossless.",
                    limit, whose);
        return;
    }
    verdict_say(sentences,
                "A loss limit of %g leaves %u lossy variant%s to %s; the smallest, %s, "
                "has %.3g bits an element and loses at most %.4f in the mean.",
                limit, choice.count, choice.count == 1 ? "" : "s", whose,
                choice.smallest->variant.name, choice.smallest->bits_per_element,
                choice.smallest->loss_upper);
}

/* The least of the limits that leaves something to any class; 0: none does. */
static double verdict_least_limit(const calibrate_report *report)
{
    for (size_t limit = 0; limit < CALIBRATE_LIMITS; limit++)
        for (uint32_t i = 0; i < report->ladder_count; i++)
            if (verdict_choose(&report->ladders[i], report->documents[limit].limit).count > 0)
                return report->documents[limit].limit;
    return 0.0;
}

/* What limits on loss leave of the ladders, and what takes them into use. */
static json_t *verdict_of_ladders(const calibrate_report *report, const char *database)
{
    json_t *sentences = json_array();
    const uint32_t top = report->ladder_count - 1;
    const double least = verdict_least_limit(report);
    const char *whose = top > 0 ? "a class that was not measured" : "these texts";
    for (size_t limit = 0; limit < CALIBRATE_LIMITS; limit++)
        verdict_say_limit(sentences, whose, &report->ladders[top], report->documents[limit].limit);
    for (uint32_t i = 0; i < top && least > 0.0; i++)
        verdict_say_limit(sentences, report->names[i], &report->ladders[i], least);
    if (least > 0.0)
        verdict_say(sentences,
                    "These lines of [store] take the ladder: profile = %s, "
                    "ladder = calibrated, loss_limit = %g.",
                    database, least);
    else
        verdict_say(sentences, "Keep store.ladder = none: more entries, or entries that are "
                               "longer, would show smaller losses with confidence.");
    return sentences;
}

/* ---- the document ---- */

/* The last ladder, of classes that were not measured or of the only one, stands at the top. */
static json_t *calibrate_document(const calibrate_report *report, const calibrate_options *options,
                                  const char *database)
{
    const uint32_t top = report->ladder_count - 1;
    const calibrate_ladder *ladder = &report->ladders[top];
    json_t *choices = json_array(), *notes = json_array();
    for (uint32_t i = 0; i < report->note_count; i++)
        (void)json_array_append_new(notes, json_string(report->notes[i]));
    for (uint32_t i = 0; i < ladder->choice_count; i++) {
        const calibrate_choice *choice = &ladder->choices[i];
        (void)json_array_append_new(choices, json_pack("{s:s, s:s, s:s}", "question",
                                                       choice->question, "chosen", choice->chosen,
                                                       "evidence", choice->evidence));
    }
    return json_pack(
        "{s:s, s:o, s:s, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, "
        "s:o}",
        "schema", "kvterrace-profile-calibrate-2", "model", view_string(report->model.name),
        "digest", report->model.digest, "class", view_string(report->names[top]), "metric",
        options->model != NULL ? quality_metric_name(options->metric) : "attention", "use",
        quality_use_name(options->use), "entries", (json_int_t)report->entries, "variants",
        (json_int_t)report->measured, "rows", (json_int_t)report->rows, "resumed_rows",
        (json_int_t)report->resumed, "seconds", report->seconds, "choices", choices, "rungs",
        calibrate_pack_rungs(ladder), "ladders", calibrate_pack_ladders(report), "left_out",
        calibrate_pack_trials(report->classes, report->ladder_count > 1 ? CALIBRATE_LIMITS : 0),
        "documents_left_out", calibrate_pack_trials(report->documents, CALIBRATE_LIMITS),
        "likelihood", calibrate_pack_likelihoods(report, options), "verdict",
        verdict_of_ladders(report, database), "notes", notes);
}

static const document_table ladder_tables[] = {
    {"", "model entries variants metric use rows resumed_rows seconds"},
    {"choices", "question chosen evidence"},
    {"ladders", "class entries widening"},
    {"ladders/rungs", "variant accepted bits=bits_per_element loss mean=loss_upper "
                      "90%=loss_entry evidence"},
    {"left_out", "limit mean_offered mean_kept entry_offered entry_kept entries_offered "
                 "entries_within"},
    {"documents_left_out", "limit mean_offered mean_kept entry_offered entry_kept entries_offered "
                           "entries_within"},
    {0},
};

/* ---- the calibration ---- */

/* All dumps judge unless some are to teach. */
static uint32_t calibrate_contexts(const measure_arguments *arguments)
{
    if (arguments->model == NULL && arguments->learn == NULL) return arguments->contexts;
    return measure_or(arguments->contexts, arguments->quick ? 12 : 40);
}

static kvt_status calibrate_prepare(measure_arguments *arguments, measure_work *work, char *message,
                                    size_t message_size)
{
    calibrate_options *options = &work->options;
    const bool answers = options->metric == QUALITY_ROUGE_L || options->metric == QUALITY_F1;
    kvt_status status =
        command_parse_dumps(arguments, &work->classes, &work->dumps, message, message_size);
    if (status == KVT_OK)
        status = command_choose_classes(arguments->learn, &work->classes, work->teaches, message,
                                        message_size);
    if (status == KVT_OK && arguments->variants != NULL)
        status =
            command_parse_variants(arguments->variants, false, work->variants, CALIBRATE_WANTED_MAX,
                                   &work->wanted.count, message, message_size);
    options->class_count = work->classes.count;
    options->wanted = work->wanted.count > 0 ? &work->wanted : NULL;
    options->contexts = calibrate_contexts(arguments);
    options->question_contexts = measure_or(arguments->question_contexts, 12);
    options->answer_tokens = answers ? (uint32_t)CALIBRATE_ANSWER_TOKENS : 0;
    options->basis = arguments->learn != NULL;
    options->dumps = (const char *const *)work->dumps.paths;
    options->dump_count = work->dumps.count;
    options->dump_classes = work->dumps.classes;
    return status;
}

static int calibrate_measure_all(measure_arguments *arguments, measure_work *work,
                                 kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    int code = EXIT_FINE;
    calibrate_report *report = calloc(1, sizeof *report);
    if (report == NULL) return command_fail(KVT_E_MEMORY, "");
    measure_begin(arguments);
    kvt_status status =
        calibrate_profile_run(profile, &work->options, report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status == KVT_E_MISMATCH && arguments->common.json)
        (void)command_print_document(calibrate_refusal(report, &work->options));
    if (status != KVT_OK)
        code = measure_fail(status, message);
    else
        code =
            command_print_tables(&arguments->common,
                                 calibrate_document(report, &work->options,
                                                    command_profile_path(arguments->common.config)),
                                 ladder_tables);
    for (uint32_t i = 0; status == KVT_OK && !arguments->common.json && i < report->note_count; i++)
        printf("%s%s\n", i == 0 ? "\n" : "", report->notes[i]);
    free(report);
    return code;
}

static int calibrate_start(void *context)
{
    return measure_into_profile(context, calibrate_prepare, calibrate_measure_all);
}

const command_spec profile_calibrate_spec = {
    .name = "calibrate",
    .summary = "choose and measure a model's ladder of variants",
    .about = "Measures the choices of a model's ladder of variants (K:V bits, axes, steps, "
             "rotation, drop score) pair by pair on the same entries, and stores the ladder of "
             "each class with the evidence for each variant; one that a cheaper variant beats is "
             "refused. With two classes and more there is one for other classes as well, "
             "\"pooled\". The store takes them with store.ladder = calibrated, the simulation "
             "with replay.ladder = profile:NAME:CLASS. What profile quality, or a calibration that "
             "was stopped, has measured of these texts is not measured again.",
    .synopsis = "--model FILE --text [CLASS=]FILE...\n--kv [CLASS=]FILE...",
    .example = "  kvterrace profile calibrate --model reference_model/model \\\n"
               "    --text chat=reference_model/texts/recall-768.jsonl --quick",
    .options = calibrate_table,
    .argument_bytes = sizeof(measure_arguments),
    .check = calibrate_check,
    .run = calibrate_start,
    .settings = SETTINGS_PROFILE,
    .lists = LISTS_VARIANTS,
};
