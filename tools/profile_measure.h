/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_measure.h - what the subcommands of `profile` that judge variants by a model or by KV
 * dumps share: one set of arguments, and the rows of their option tables. One thread.
 */
#ifndef TOOLS_PROFILE_MEASURE_H
#define TOOLS_PROFILE_MEASURE_H

#include "profile_document.h"
#include "tools/command/variants.h"

#include "estimator/quality/calibrate.h"

#include <jansson.h>

#define MEASURE_CLASS "text" /* of texts that name none */

enum { MEASURE_TEXTS_MAX = 32 /* of a class */ };

/* A command uses the fields that its table fills; 0 and NULL: not given. */
typedef struct measure_arguments {
    command_common common;
    command_progress bar;
    bool quick;
    const char *model, *tokenizer, *name, *class_name, *variants, *output;
    command_list texts, dumps;
    unsigned metric, use; /* quality_metric, quality_use */
    uint32_t minutes;
    bool finish;
    const char *learn; /* classes that teach */
    const char *rope;  /* how keys of dumps turn */
    uint32_t teach, teach_tokens;
    uint32_t contexts, question_contexts, context_tokens, continuation_tokens, answer_tokens;
    uint32_t queries, threads;
} measure_arguments;

/* Texts by class, and what the classes point into. */
typedef struct measure_classes {
    char names[QUALITY_CLASSES_MAX][64];
    const char *paths[QUALITY_CLASSES_MAX][MEASURE_TEXTS_MAX];
    quality_class classes[QUALITY_CLASSES_MAX];
    uint32_t count;
} measure_classes;

/* Reads each --text [CLASS=]FILE; --class names those that name none. KVT_OK; KVT_E_ARGUMENT (the
 * message says what). */
KVT_NODISCARD kvt_status command_parse_classes(const measure_arguments *arguments,
                                               measure_classes *classes_out, char *message,
                                               size_t message_size);

/* The class of [CLASS=]PATH, which is added when there is none of that name, and where the path
 * begins. KVT_OK; KVT_E_ARGUMENT (the message says what). */
KVT_NODISCARD kvt_status command_class_of(measure_classes *classes, const char *standard,
                                          const char *text, uint32_t *class_out,
                                          const char **path_out, char *message,
                                          size_t message_size);

/* KV dumps by class; a folder stands for the *.safetensors in it, in the order of their names. */
typedef struct measure_dumps {
    char **paths;      /* [count] */
    uint32_t *classes; /* likewise */
    uint32_t count, room;
} measure_dumps;

/* Reads each --kv [CLASS=]PATH; --class names those that name none. KVT_OK; KVT_E_ARGUMENT (the
 * message says what); KVT_E_GONE, KVT_E_IO (of a folder); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status command_parse_dumps(const measure_arguments *arguments,
                                             measure_classes *classes, measure_dumps *dumps_out,
                                             char *message, size_t message_size);
void measure_dumps_free(measure_dumps *dumps); /* zeroed is allowed */

/* Marks the classes of a list with commas between them; NULL: all. KVT_OK; KVT_E_ARGUMENT (one is
 * no class: the message says which). */
KVT_NODISCARD kvt_status command_choose_classes(const char *list, const measure_classes *classes,
                                                bool chosen[QUALITY_CLASSES_MAX], char *message,
                                                size_t message_size);

/* ---- a measurement ---- */

/* Memory that the options of a measurement point into. */
typedef struct measure_work {
    measure_classes classes;
    quality_variant variants[QUALITY_VARIANTS_MAX];
    calibrate_wanted wanted;
    measure_dumps dumps;
    bool teaches[QUALITY_CLASSES_MAX];
    calibrate_options options;
} measure_work;

/* Reads the classes of texts, and sets what every measurement takes of the arguments. KVT_OK;
 * KVT_E_ARGUMENT (the message says what). */
KVT_NODISCARD kvt_status measure_prepare(measure_arguments *arguments, measure_work *work,
                                         char *message, size_t message_size);

/* Prepares, opens the profile and measures into it: `more` sets what is the command's own, `run`
 * measures and prints. Returns the exit code. */
int measure_into_profile(measure_arguments *arguments,
                         kvt_status (*more)(measure_arguments *arguments, measure_work *work,
                                            char *message, size_t message_size),
                         int (*run)(measure_arguments *arguments, measure_work *work,
                                    kvt_profile *profile));

#define MEASURE_COUNT(field, name, most, help)                                                     \
    COUNT_OPTION(measure_arguments, field, name, 1, most, help)
#define MEASURE_TEXT(field, name, operand, help)                                                   \
    TEXT_OPTION(measure_arguments, field, name, 0, operand, help)

#define MEASURE_MODEL                                                                              \
    {                                                                                              \
        .name = "model", .argument = "FILE",                                                       \
        .text = "The model: a folder, a file of llama2.c, or a socket", .kind = OPTION_TEXT,       \
        .flags = OPTION_DATA, .offset = offsetof(measure_arguments, model)                         \
    }
#define MEASURE_TOKENIZER                                                                          \
    MEASURE_TEXT(tokenizer, "tokenizer", "FILE", "Its vocabulary (tokenizer.bin beside it)")
#define MEASURE_TEXTS(operand, limit)                                                              \
    LIST_OPTION(measure_arguments, texts, "text", operand, limit, OPTION_DATA,                     \
                "JSONL with texts; may be repeated")
#define MEASURE_CLASS_ROW                                                                          \
    MEASURE_TEXT(class_name, "class", "NAME",                                                      \
                 "The class of texts that name none (" MEASURE_CLASS ")")
#define MEASURE_VARIANTS(standard)                                                                 \
    MEASURE_TEXT(variants, "variants", "LIST", "Variants, with blanks or ';' between them" standard)
#define MEASURE_METRIC                                                                             \
    {                                                                                              \
        .name = "loss", .argument = "METRIC",                                                      \
        .text = "What a loss is: top1, rouge_l, f1, kl or answers (top1)", .kind = OPTION_CHOICE,  \
        .offset = offsetof(measure_arguments, metric), .extra = "top1|rouge_l|f1|kl|answers"       \
    }
#define MEASURE_USE                                                                                \
    {                                                                                              \
        .name = "use", .argument = "USE",                                                          \
        .text = "What the KV is for: answers, recall or the worse (worse)", .kind = OPTION_CHOICE, \
        .offset = offsetof(measure_arguments, use), .extra = "worse|answers|recall"                \
    }
#define MEASURE_MINUTES(help)        MEASURE_COUNT(minutes, "minutes", 100000, help)
#define MEASURE_CONTEXTS(most, help) MEASURE_COUNT(contexts, "contexts", most, help)
#define MEASURE_LENGTHS                                                                            \
    MEASURE_COUNT(context_tokens, "context-tokens", 65536, "Tokens of a context (768)"),           \
        MEASURE_COUNT(continuation_tokens, "continuation-tokens", 65536, "Tokens after it (200)")
#define MEASURE_QUERIES                                                                            \
    MEASURE_COUNT(queries, "queries", 65536, "Queries of each layer and head (8)")
#define MEASURE_THREADS                                                                            \
    THREADS_OPTION(measure_arguments, threads, QUALITY_THREADS_MAX,                                \
                   "Threads (default: one per processor)")

#define MEASURE_TEACH                                                                              \
    MEASURE_COUNT(teach, "teach", 100000, "Documents that teach, of all classes together (32)"),   \
        MEASURE_COUNT(teach_tokens, "teach-tokens", 100000000, "Tokens of them, about (80000)")

/* Defaults that the tables above state. */
#define MEASURE_TEACH_CONTEXTS      32u
#define MEASURE_TEACH_TOKENS        80000u
#define MEASURE_CONTEXT_TOKENS      768u
#define MEASURE_CONTINUATION_TOKENS 200u

static inline uint32_t measure_or(uint32_t given, uint32_t standard)
{
    return given != 0 ? given : standard;
}

/* EXIT_FINE, or what is missing was said. */
static inline int measure_need_model(void *context)
{
    const measure_arguments *arguments = context;
    if (arguments->model == NULL) return command_misuse("--model is missing");
    return arguments->texts.count > 0 ? EXIT_FINE : command_misuse("--text is missing");
}

/* Begins something long: OpenBLAS' kernels, interruptions, the bar. */
static inline void measure_begin(measure_arguments *arguments)
{
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
}

/* The exit code of a measurement that was not finished, after a message. */
static inline int measure_fail(kvt_status status, const char *message)
{
    return command_fail_content(status, status == KVT_E_CANCELLED
                                            ? "stopped; the same command goes on with what was "
                                              "measured"
                                            : message);
}

#endif
