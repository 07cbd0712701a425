/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_answer.c - answers on top of a context's KV, and the cache of them. The question is run on
 * the KV as it came back; the rest of an answer starts from a draft: one batch over it says where
 * the model first departs from it, and only what follows is generated token by token.
 *
 * The journal of a cache is a file of JSON lines, each written whole and flushed: a context with
 * its prefill seconds, or an answer. A line that cannot be read, as after a kill, is passed over.
 *
 * One thread.
 */
#include "estimator/model/model_internal.h"
#include "replay/loop/loop.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_ROWS 128u /* of logits at a time */

/* ---- generation ---- */

static size_t generator_row(const loop_generator *g)
{
    return (size_t)g->config->kv_heads * g->config->head_dim;
}

kvt_status loop_generator_open(model_session *session, uint32_t rows, uint32_t answer_tokens,
                               loop_generator *g)
{
    const model_config *c = model_session_config(session);
    const size_t pointers = (size_t)c->layers * sizeof(float *);
    const uint32_t logit_rows = answer_tokens > FOLLOW_ROWS ? answer_tokens : FOLLOW_ROWS;
    const size_t logits = (size_t)logit_rows * c->vocab * sizeof(float);
    *g = (loop_generator){
        .session = session, .config = c, .rows_max = rows, .logit_rows = logit_rows};
    const size_t matrix = rows * generator_row(g) * sizeof(float);
    uint8_t *at = malloc(4 * pointers + 2 * c->layers * matrix + logits);
    g->memory = at;
    if (at == NULL) return KVT_E_MEMORY;
    g->k = (float **)(void *)at;
    g->v = (float **)(void *)(at + pointers);
    g->k_next = (float **)(void *)(at + 2 * pointers);
    g->v_next = (float **)(void *)(at + 3 * pointers);
    at += 4 * pointers;
    for (uint32_t l = 0; l < c->layers; l++, at += 2 * matrix) {
        g->k[l] = (float *)(void *)at;
        g->v[l] = (float *)(void *)(at + matrix);
    }
    g->logits = (float *)(void *)at;
    return KVT_OK;
}

void loop_generator_close(loop_generator *g)
{
    free(g->memory);
    *g = (loop_generator){.memory = NULL};
}

void loop_generator_load(loop_generator *g, const uint8_t *kv, uint32_t tokens, uint32_t kept)
{
    const size_t count = kept * generator_row(g);
    const size_t bytes = tokens * generator_row(g) * sizeof(uint16_t);
    for (uint32_t l = 0; l < g->config->layers; l++, kv += 2 * bytes) {
        model_convert(KVT_DTYPE_FP16, kv, count, g->k[l]);
        model_convert(KVT_DTYPE_FP16, kv + bytes, count, g->v[l]);
    }
    g->held = kept;
    g->position = tokens;
}

/* Runs tokens on the rows held; their rows are held then, too. Logits of the last `wanted`. */
static kvt_status generator_run(loop_generator *g, const uint32_t *ids, uint32_t count,
                                uint32_t wanted)
{
    const model_past past = {.tokens = g->held,
                             .dtype = KVT_DTYPE_FP32,
                             .k = (const void *const *)g->k,
                             .v = (const void *const *)g->v};
    if (g->held + count > g->rows_max) return KVT_E_ARGUMENT;
    for (uint32_t l = 0; l < g->config->layers; l++) {
        g->k_next[l] = g->k[l] + g->held * generator_row(g);
        g->v_next[l] = g->v[l] + g->held * generator_row(g);
    }
    const model_request request = {.tokens = ids,
                                   .token_count = count,
                                   .first_position = g->position,
                                   .past = &past,
                                   .k_out = g->k_next,
                                   .v_out = g->v_next,
                                   .logits_first = count - wanted,
                                   .logits_count = wanted,
                                   .logits_out = g->logits};
    kvt_status status = model_forward(g->session, &request);
    g->held += count;
    g->position += count;
    return status;
}

kvt_status loop_generator_ask(loop_generator *g, const uint32_t *question, uint32_t count,
                              uint32_t *first_out)
{
    kvt_status status = generator_run(g, question, count, 1);
    if (status == KVT_OK) *first_out = model_best(g->logits, g->config->vocab);
    return status;
}

kvt_status loop_generator_answer(loop_generator *g, const uint32_t *draft, uint32_t answer_tokens,
                                 uint32_t *answer)
{
    const uint32_t vocab = g->config->vocab, begin = g->held, position = g->position;
    uint32_t done = 1;
    kvt_status status = KVT_OK;
    if (answer_tokens > 1 && answer[0] == draft[0]) {
        status = generator_run(g, draft, answer_tokens - 1, answer_tokens - 1);
        for (bool kept = true; status == KVT_OK && kept && done < answer_tokens; done++) {
            answer[done] = model_best(g->logits + (size_t)(done - 1) * vocab, vocab);
            kept = answer[done] == draft[done];
        }
    }
    /* Rows of the draft behind the first departure are dropped. */
    g->held = begin + done - 1;
    g->position = position + done - 1;
    for (; status == KVT_OK && done < answer_tokens; done++) {
        status = generator_run(g, &answer[done - 1], 1, 1);
        answer[done] = model_best(g->logits, vocab);
    }
    return status;
}

/* Runs skipped + scored tokens, and keeps what is expected after each of the scored ones. */
static kvt_status generator_follow(loop_generator *g, const uint32_t *tokens, uint32_t skipped,
                                   uint32_t scored, uint32_t *ids)
{
    const uint32_t vocab = g->config->vocab;
    kvt_status status = KVT_OK;
    for (uint32_t at = 0, rows; status == KVT_OK && at < skipped + scored; at += rows) {
        rows = skipped + scored - at;
        if (rows > g->logit_rows) rows = g->logit_rows;
        status = generator_run(g, tokens + at, rows, rows);
        for (uint32_t r = 0; status == KVT_OK && r < rows; r++)
            if (at + r >= skipped)
                ids[at + r - skipped] = model_best(g->logits + (size_t)r * vocab, vocab);
    }
    return status;
}

kvt_status loop_generator_follow(loop_generator *g, const loop_context *context, uint32_t *ids)
{
    const quality_entry *entry = context->entry;
    const uint32_t held = g->held, position = g->position;
    kvt_status status = generator_follow(g, entry->tokens + entry->context_tokens, 0,
                                         entry->continuation_tokens, ids);
    g->held = held;
    g->position = position;
    if (status != KVT_OK || entry->recall == NULL) return status;
    /* The row before a token says what is expected there. */
    status = generator_follow(g, entry->recall, entry->recall_tokens - entry->recall_scored - 1,
                              entry->recall_scored, ids + entry->continuation_tokens);
    g->held = held;
    g->position = position;
    return status;
}

/* ---- the answers that are known ---- */

loop_answer *loop_answer_find(loop_site *site, const loop_context *context,
                              const loop_question *question, uint64_t kv_checksum)
{
    for (size_t i = 0; i < site->answer_count; i++) {
        loop_answer *answer = &site->answers[i];
        if (answer->context == context->digest && answer->kv_checksum == kv_checksum &&
            answer->first == question->first && answer->count == question->count &&
            answer->answer_tokens == question->answer_tokens)
            return answer;
    }
    return NULL;
}

/* Takes a copy of the ids. */
static kvt_status answers_put(loop_site *site, const loop_answer *given, const uint32_t *ids,
                              loop_answer **answer_out)
{
    if (site->answer_count == site->answer_room) {
        const size_t more = site->answer_room == 0 ? 64 : 2 * site->answer_room;
        loop_answer *grown = realloc(site->answers, more * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        site->answers = grown;
        site->answer_room = more;
    }
    loop_answer *answer = &site->answers[site->answer_count];
    *answer = *given;
    answer->ids = malloc((given->answer_tokens + 1) * sizeof *answer->ids);
    if (answer->ids == NULL) return KVT_E_MEMORY;
    memcpy(answer->ids, ids, given->answer_tokens * sizeof *answer->ids);
    site->answer_count++;
    *answer_out = answer;
    return KVT_OK;
}

/* The share of equal ids in [from, from + count); NAN of none. */
static double answer_agreement(const uint32_t *exact, const uint32_t *ids, uint32_t from,
                               uint32_t count)
{
    uint32_t same = 0;
    for (uint32_t i = from; i < from + count; i++)
        same += exact[i] == ids[i];
    return count > 0 ? (double)same / count : (double)NAN;
}

kvt_status loop_answer_compare(loop_site *site, const loop_context *context,
                               const loop_question *question, loop_answer *answer)
{
    const uint32_t told = context->entry->continuation_tokens;
    if (question->exact == NULL) return KVT_OK;
    if (question == &context->text) {
        answer->top1 = answer_agreement(question->exact, answer->ids, 0, told);
        answer->recall =
            answer_agreement(question->exact, answer->ids, told, question->answer_tokens - told);
        return KVT_OK;
    }
    if (!isnan(answer->rouge_l)) return KVT_OK;
    const tokenizer *words = site->measured.tokens;
    const uint32_t exact = quality_answer_length(words, question->exact, question->answer_tokens);
    const uint32_t given = quality_answer_length(words, answer->ids, answer->answer_tokens);
    answer->same =
        exact == given && memcmp(question->exact, answer->ids, given * sizeof *answer->ids) == 0;
    return quality_compare_texts(words, question->exact, exact, answer->ids, given,
                                 &answer->rouge_l, &answer->f1);
}

/* ---- the journal ---- */

static kvt_status journal_write(loop_site *site, json_t *line)
{
    kvt_status status = line != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK &&
        (json_dumpf(line, site->journal, JSON_COMPACT | JSON_REAL_PRECISION(17)) != 0 ||
         fputc('\n', site->journal) == EOF || fflush(site->journal) != 0))
        status = KVT_E_IO;
    json_decref(line);
    return status;
}

static json_t *journal_hex(uint64_t value)
{
    return json_sprintf("%016llx", (unsigned long long)value);
}

kvt_status loop_journal_context(loop_site *site, const loop_context *context)
{
    if (site->journal == NULL) return KVT_OK;
    return journal_write(site, json_pack("{s:o, s:o, s:f}", "context", journal_hex(context->digest),
                                         "kv", journal_hex(context->kv_checksum), "prefill_seconds",
                                         context->prefill_seconds));
}

static kvt_status journal_answer(loop_site *site, const loop_answer *answer)
{
    json_t *ids = json_array();
    if (site->journal == NULL) {
        json_decref(ids);
        return KVT_OK;
    }
    for (uint32_t i = 0; i < answer->answer_tokens; i++)
        (void)json_array_append_new(ids, json_integer((json_int_t)answer->ids[i]));
    return journal_write(
        site,
        json_pack("{s:o, s:o, s:I, s:I, s:f, s:o}", "context", journal_hex(answer->context), "kv",
                  journal_hex(answer->kv_checksum), "first", (json_int_t)answer->first, "count",
                  (json_int_t)answer->count, "ask_seconds", answer->ask_seconds, "answer", ids));
}

/* Of a question whose exact answer may not be there yet. */
static loop_answer answer_of(const loop_context *context, const loop_question *question,
                             uint64_t kv_checksum, double ask_seconds)
{
    return (loop_answer){.context = context->digest,
                         .kv_checksum = kv_checksum,
                         .first = question->first,
                         .count = question->count,
                         .answer_tokens = question->answer_tokens,
                         .ask_seconds = ask_seconds,
                         .rouge_l = (double)NAN,
                         .f1 = (double)NAN,
                         .top1 = (double)NAN,
                         .recall = (double)NAN};
}

kvt_status loop_answer_add(loop_site *site, const loop_context *context,
                           const loop_question *question, uint64_t kv_checksum, const uint32_t *ids,
                           double ask_seconds, loop_answer **answer_out)
{
    const loop_answer given = answer_of(context, question, kv_checksum, ask_seconds);
    loop_answer *answer = NULL;
    kvt_status status = answers_put(site, &given, ids, &answer);
    if (status == KVT_OK) status = loop_answer_compare(site, context, question, answer);
    if (status == KVT_OK) status = journal_answer(site, answer);
    site->answers_made++;
    if (answer_out != NULL) *answer_out = answer;
    return status;
}

kvt_status loop_answer_time(loop_site *site, loop_answer *answer, double ask_seconds)
{
    answer->ask_seconds = ask_seconds;
    return journal_answer(site, answer);
}

static bool journal_number(const json_t *line, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(line, key));
    char *end = NULL;
    if (text == NULL || text[0] == '\0') return false;
    errno = 0;
    *out = strtoull(text, &end, 16);
    return errno == 0 && *end == '\0';
}

/* Takes over an answer to this question, or the seconds of one that is there. */
static kvt_status journal_take_answer(loop_site *site, const loop_context *context,
                                      const loop_question *question, uint64_t checksum,
                                      const json_t *line)
{
    const json_t *ids = json_object_get(line, "answer");
    const double ask_seconds = json_number_value(json_object_get(line, "ask_seconds"));
    if (question->first != json_integer_value(json_object_get(line, "first")) ||
        question->count != json_integer_value(json_object_get(line, "count")) ||
        json_array_size(ids) != question->answer_tokens)
        return KVT_OK;
    loop_answer *answer = loop_answer_find(site, context, question, checksum);
    if (answer != NULL) {
        if (ask_seconds > 0.0) answer->ask_seconds = ask_seconds;
        return KVT_OK;
    }
    uint32_t *copy = calloc(question->answer_tokens + 1, sizeof *copy);
    if (copy == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < question->answer_tokens; i++)
        copy[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    const loop_answer given = answer_of(context, question, checksum, ask_seconds);
    kvt_status status = answers_put(site, &given, copy, &answer);
    free(copy);
    site->answers_known += status == KVT_OK;
    return status;
}

/* Takes over what a line says of a context or question of this site. */
static kvt_status journal_take(loop_site *site, const json_t *line)
{
    uint64_t digest, checksum;
    uint32_t at = 0;
    if (!journal_number(line, "context", &digest) || !journal_number(line, "kv", &checksum))
        return KVT_OK;
    while (at < site->context_count && site->contexts[at].digest != digest)
        at++;
    if (at == site->context_count) return KVT_OK;
    loop_context *context = &site->contexts[at];
    const json_t *seconds = json_object_get(line, "prefill_seconds");
    if (json_is_real(seconds) && json_real_value(seconds) > 0.0) {
        context->prefill_seconds = json_real_value(seconds);
        context->kv_checksum = checksum;
        return KVT_OK;
    }
    kvt_status status = journal_take_answer(site, context, &context->text, checksum, line);
    for (uint32_t i = 0; status == KVT_OK && i < context->question_count; i++)
        status = journal_take_answer(site, context, &context->questions[i], checksum, line);
    return status;
}

kvt_status loop_journal_open(loop_site *site, char *message, size_t size)
{
    char path[sizeof site->folder + 32], *text = NULL;
    size_t room = 0;
    kvt_status status = KVT_OK;
    (void)snprintf(path, sizeof path, "%s/answers.jsonl", site->folder);
    site->journal = fopen(path, "a+");
    if (site->journal == NULL) {
        (void)snprintf(message, size, "%.250s: %s", path, strerror(errno));
        return KVT_E_IO;
    }
    rewind(site->journal);
    bool whole = true;
    for (ssize_t got; status == KVT_OK && (got = getline(&text, &room, site->journal)) > 0;) {
        whole = text[got - 1] == '\n';
        json_t *line = json_loadb(text, (size_t)got, 0, NULL);
        if (line != NULL) status = journal_take(site, line);
        json_decref(line);
    }
    free(text);
    (void)fseek(site->journal, 0, SEEK_END);
    if (!whole && fputc('\n', site->journal) == EOF) status = KVT_E_IO;
    return status;
}
