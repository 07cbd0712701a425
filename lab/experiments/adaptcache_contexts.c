/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_contexts.c - the contexts of AdaptCache's experiment: lengths drawn from real texts,
 * or from a table of their lengths, and each context's own factor on its task's losses. One thread.
 *
 * Tokens are characters / 4.2 (English prose with the Llama-3 tokenizer, a rule of thumb). A text
 * is drawn by its file first, so that a file with many documents does not stand for a whole task.
 * No code is among the texts: its lengths come from the table in any case.
 */
#include "adaptcache_experiment.h"

#include "replay/random.h"
#include "replay/trace_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define CHARS_PER_TOKEN 4.2
#define TEXT_FILES      6u
#define TEXTS_MAX       4096u
#define TOKENS_MIN      64u
#define TOKENS_MAX      131072u
#define DECILES         11u

/*
 * The tasks in the order of experiment_task: question answering, summarisation, and code or agents,
 * which no text here stands for.
 *
 * Tokens at 0 %, 10 %, ... 100 % of the contexts. The first two rows are those of the files below.
 * Code: LongBench's mean lengths of LCC and RepoBench-P, 1,235 and 4,206 words, in equal parts; 3
 * tokens a word and a lognormal spread of 0.5 are assumed.
 */
static const uint32_t deciles[EXPERIMENT_TASKS][DECILES] = {
    {2932, 3405, 4632, 5415, 6278, 6531, 7439, 9925, 16814, 26005, 64766},
    {144, 2555, 3535, 4401, 5435, 7926, 11970, 14517, 18795, 20252, 34160},
    {1035, 2128, 2879, 3635, 4625, 6047, 7852, 10080, 12734, 17068, 35168},
};

static const char *const text_files[EXPERIMENT_TASKS - 1][TEXT_FILES] = {
    {"leval/natural_question", "leval/multidoc_qa", "leval/legal_contract_qa", "leval/financial_qa",
     "leval/quality", "leval/paper_assistant"},
    {"qmsum/val", "leval/meeting_summ", "leval/gov_report_summ", "leval/news_summ",
     "leval/review_summ", "longbench/multi_news"},
};

static size_t text_characters(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t count = 0;
    for (; text != NULL && *text != '\0'; text++)
        if ((*text & 0xC0) != 0x80) count++; /* the first byte of each character */
    return count;
}

/* Characters of one document's context: a text, or the turns of a meeting. */
static size_t text_length(const json_t *document)
{
    size_t count = text_characters(json_object_get(document, "input"));
    const json_t *turns = json_object_get(document, "meeting_transcripts");
    if (count == 0) count = text_characters(json_object_get(document, "context"));
    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *turn = json_array_get(turns, i);
        count += text_characters(json_object_get(turn, "speaker")) + 3;
        count += text_characters(json_object_get(turn, "content"));
    }
    return count;
}

typedef struct text_lengths {
    uint32_t *tokens;
    uint32_t count;
} text_lengths;

static kvt_status text_read(const char *folder, const char *name, text_lengths *out, char *message,
                            size_t message_size)
{
    char path[1024];
    replay_line_reader *reader;
    snprintf(path, sizeof path, "%s/%s.jsonl.zst", folder, name);
    out->count = 0;
    out->tokens = malloc(TEXTS_MAX * sizeof *out->tokens);
    if (out->tokens == NULL) return KVT_E_MEMORY;
    kvt_status status = replay_lines_open(path, &reader, message, message_size);
    if (status != KVT_OK) return status;
    while (out->count < TEXTS_MAX) {
        char *line;
        size_t bytes;
        status = replay_lines_next(reader, &line, &bytes, message, message_size);
        if (status != KVT_OK) break;
        json_t *document = json_loadb(line, bytes, 0, NULL);
        double tokens = (double)text_length(document) / CHARS_PER_TOKEN;
        json_decref(document);
        if (tokens < 1.0) {
            snprintf(message, message_size, "%s, line %llu: no text", path,
                     (unsigned long long)replay_lines_number(reader));
            status = KVT_E_PARSE;
            break;
        }
        out->tokens[out->count++] = (uint32_t)tokens;
    }
    replay_lines_close(reader);
    if (status == KVT_END && out->count == 0) {
        snprintf(message, message_size, "%s: no text", path);
        return KVT_E_PARSE;
    }
    return status == KVT_END ? KVT_OK : status;
}

static uint32_t table_tokens(uint32_t task, double share)
{
    double at = share * (DECILES - 1);
    uint32_t below = (uint32_t)at;
    double rest = at - (double)below;
    double low = (double)deciles[task][below], high = (double)deciles[task][below + 1];
    return (uint32_t)(low + rest * (high - low));
}

double experiment_setting_zipf(uint32_t setting)
{
    return setting < EXPERIMENT_SETTINGS / 2 ? 0.0 : 0.9;
}

uint32_t experiment_setting_task(uint32_t setting)
{
    return setting % (EXPERIMENT_SETTINGS / 2); /* EXPERIMENT_TASKS: all of them */
}

void experiment_setting_name(const experiment *run, uint32_t setting, char *name, size_t size)
{
    const uint32_t task = experiment_setting_task(setting);
    const double zipf = experiment_setting_zipf(setting);
    (void)snprintf(name, size, "%s, %s popularity",
                   task < EXPERIMENT_TASKS ? run->tasks[task].name : "all three tasks",
                   zipf > 0.0 ? "Zipf 0.9" : "even");
}

/*
 * A context's factor is lognormal with mean 1; what can be known of it beforehand has the measured
 * correlation with its logarithm, and mean 1 too (as replay/sim_quality.c).
 */
static void context_draw_losses(experiment_context *context, const experiment_task *task,
                                replay_random *random)
{
    const double sigma = task->sigma, r = task->repeatability;
    const double z = replay_random_normal(random), other = replay_random_normal(random);
    const double y = r * z + sqrt(fmax(0.0, 1.0 - r * r)) * other;
    context->sensitivity = exp(sigma * z - 0.5 * sigma * sigma);
    context->known = exp(sigma * r * y - 0.5 * sigma * r * sigma * r);
}

/* With all tasks a third of the contexts each, in turn, so that popularity is the same in all. */
static void contexts_fill(const experiment *run, uint32_t setting, uint64_t seed,
                          const text_lengths lengths[EXPERIMENT_TASKS - 1][TEXT_FILES],
                          experiment_context *contexts)
{
    const uint32_t only = experiment_setting_task(setting);
    const double zipf = experiment_setting_zipf(setting);
    replay_random random;
    double sum = 0.0;
    replay_random_seed(&random, replay_mix(seed));
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        experiment_context *context = &contexts[i];
        context->task = only < EXPERIMENT_TASKS ? only : i % EXPERIMENT_TASKS;
        double share = replay_random_unit(&random);
        context->tokens = table_tokens(context->task, share);
        if (run->real_texts && context->task < EXPERIMENT_TASKS - 1) {
            uint64_t file = replay_random_below(&random, TEXT_FILES);
            const text_lengths *from = &lengths[context->task][file];
            context->tokens = from->tokens[(uint32_t)(share * from->count)];
        }
        if (context->tokens < TOKENS_MIN) context->tokens = TOKENS_MIN;
        if (context->tokens > TOKENS_MAX) context->tokens = TOKENS_MAX;
        const uint32_t rank = only < EXPERIMENT_TASKS ? i : i / EXPERIMENT_TASKS;
        context->upto = sum += pow((double)(rank + 1), -zipf);
        context_draw_losses(context, &run->tasks[context->task], &random);
    }
}

/* Seconds that prefill alone takes for a request, by popularity. */
static double contexts_prefill_mean(const experiment *run, const experiment_context *contexts)
{
    double sum = 0.0, before = 0.0;
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        const kvt_prefill *prefill = &run->models[0][contexts[i].task].prefill;
        sum +=
            experiment_compute_seconds(prefill, contexts[i].tokens) * (contexts[i].upto - before);
        before = contexts[i].upto;
    }
    return sum / before;
}

static kvt_status contexts_read(const experiment *run,
                                text_lengths lengths[EXPERIMENT_TASKS - 1][TEXT_FILES],
                                char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    for (uint32_t task = 0; run->real_texts && task < EXPERIMENT_TASKS - 1; task++) {
        for (uint32_t file = 0; file < TEXT_FILES && status == KVT_OK; file++) {
            status = text_read(run->options->texts, text_files[task][file], &lengths[task][file],
                               message, message_size);
        }
    }
    return status;
}

kvt_status experiment_draw_all(experiment *run, char *message, size_t message_size)
{
    text_lengths lengths[EXPERIMENT_TASKS - 1][TEXT_FILES] = {{{NULL, 0}}};
    const experiment_options *options = run->options;
    run->real_texts = options->texts != NULL;
    kvt_status status = contexts_read(run, lengths, message, message_size);
    for (uint32_t i = 0; status == KVT_OK && i < EXPERIMENT_SETTINGS * options->seeds; i++) {
        experiment_draw *draw = &run->draws[i];
        draw->contexts = calloc(options->contexts, sizeof *draw->contexts);
        if (draw->contexts == NULL) {
            (void)snprintf(message, message_size, "out of memory");
            status = KVT_E_MEMORY;
            break;
        }
        contexts_fill(run, i / options->seeds, i % options->seeds + 1, lengths, draw->contexts);
        draw->prefill_mean_s = contexts_prefill_mean(run, draw->contexts);
    }
    for (uint32_t task = 0; task < EXPERIMENT_TASKS - 1; task++)
        for (uint32_t file = 0; file < TEXT_FILES; file++)
            free(lengths[task][file].tokens);
    return status;
}
