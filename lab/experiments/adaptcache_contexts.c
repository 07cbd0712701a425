/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_contexts.c - the contexts of AdaptCache's experiment: lengths drawn from real texts,
 * or from a table of their lengths. One thread.
 *
 * Tokens are characters / 4.2 (English prose with the Llama-3 tokenizer, a rule of thumb). A text
 * is drawn by its file first, so that a file with many documents does not stand for a whole task.
 * No code is among the texts: its lengths come from the table in any case.
 */
#include "adaptcache_experiment.h"

#include "lab/replay/random.h"
#include "lab/replay/trace_read.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define CHARS_PER_TOKEN 4.2
#define TEXT_FILES      6u
#define TEXTS_MAX       4096u
#define TOKENS_MIN      64u
#define TOKENS_MAX      131072u
#define DECILES         11u

const char *const experiment_tasks[EXPERIMENT_TASKS] = {"qa", "summarization", "code"};

/*
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

/* A third of the contexts for each task, in turn, so that popularity is the same in all. */
static void contexts_fill(experiment *run, uint64_t seed,
                          const text_lengths lengths[EXPERIMENT_TASKS - 1][TEXT_FILES])
{
    replay_random random;
    double sum = 0.0;
    replay_random_seed(&random, replay_mix(seed));
    for (uint32_t i = 0; i < run->options->contexts; i++) {
        experiment_context *context = &run->contexts[i];
        context->task = i % EXPERIMENT_TASKS;
        double share = replay_random_unit(&random);
        context->tokens = table_tokens(context->task, share);
        if (run->real_texts && context->task < EXPERIMENT_TASKS - 1) {
            uint64_t file = replay_random_below(&random, TEXT_FILES);
            const text_lengths *from = &lengths[context->task][file];
            context->tokens = from->tokens[(uint32_t)(share * from->count)];
        }
        if (context->tokens < TOKENS_MIN) context->tokens = TOKENS_MIN;
        if (context->tokens > TOKENS_MAX) context->tokens = TOKENS_MAX;
        context->upto = sum += pow((double)(i / EXPERIMENT_TASKS + 1), -run->options->zipf);
    }
}

kvt_status experiment_draw(experiment *run, uint64_t seed, char *message, size_t message_size)
{
    text_lengths lengths[EXPERIMENT_TASKS - 1][TEXT_FILES] = {{{NULL, 0}}};
    kvt_status status = KVT_OK;
    run->real_texts = run->options->texts != NULL;
    for (uint32_t task = 0; run->real_texts && task < EXPERIMENT_TASKS - 1; task++) {
        for (uint32_t file = 0; file < TEXT_FILES && status == KVT_OK; file++) {
            status = text_read(run->options->texts, text_files[task][file], &lengths[task][file],
                               message, message_size);
        }
    }
    if (status == KVT_OK) contexts_fill(run, seed, lengths);
    for (uint32_t task = 0; task < EXPERIMENT_TASKS - 1; task++)
        for (uint32_t file = 0; file < TEXT_FILES; file++)
            free(lengths[task][file].tokens);
    return status;
}
