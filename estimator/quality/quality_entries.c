/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_entries.c - evaluation entries from texts: those that say what is their context and what
 * is asked about it, in bytes or in tokens, are entries of their own; all others are joined and
 * cut.
 *
 * Thread rule: see quality.h.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/model/model_internal.h"
#include "estimator/quality/quality.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Grows by parts; entries point into these once all have been read. */
typedef struct entries_work {
    const tokenizer *tokens;
    evaluate_texts texts; /* of all files */
    uint32_t limit;
    uint32_t *ids;
    size_t id_count, id_capacity;
    quality_entry *entries; /* tokens and questions are set at the end */
    uint32_t count;
    quality_question *questions;
    size_t question_count;
} entries_work;

static kvt_status entries_add_texts(evaluate_texts *texts, evaluate_texts *more)
{
    size_t count = texts->count + more->count;
    char **grown = realloc(texts->texts, (count + 1) * sizeof *grown);
    if (grown != NULL) texts->texts = grown;
    evaluate_marks *marks = realloc(texts->marks, (count + 1) * sizeof *marks);
    if (marks != NULL) texts->marks = marks;
    if (grown == NULL || marks == NULL) {
        evaluate_texts_free(more);
        return KVT_E_MEMORY;
    }
    if (more->count > 0) {
        memcpy(grown + texts->count, more->texts, more->count * sizeof *grown);
        memcpy(marks + texts->count, more->marks, more->count * sizeof *marks);
    }
    texts->count = count;
    free(more->texts); /* what they point to has moved */
    free(more->marks);
    return KVT_OK;
}

static kvt_status entries_grow_ids(entries_work *work, size_t more)
{
    if (more <= work->id_capacity - work->id_count) return KVT_OK;
    size_t wanted = 2 * (work->id_count + more);
    uint32_t *grown = realloc(work->ids, wanted * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    work->ids = grown;
    work->id_capacity = wanted;
    return KVT_OK;
}

/* ---- texts with questions ---- */

/* Bytes of the text that token `index` ends at, given where the one before it ends. The decoder
 * takes a leading blank away, so each is decoded behind its neighbour. */
static kvt_status entries_token_end(const tokenizer *tokens, const uint32_t *ids, size_t index,
                                    size_t before, size_t *end_out)
{
    char text[2 * TOKENIZER_PIECE_BYTES_MAX];
    size_t both = 0, first = 0;
    *end_out = before;
    if (index == 0) return KVT_OK; /* the begin token */
    kvt_status status = tokenizer_decode(tokens, ids + index - 1, 2, text, sizeof text, &both);
    if (status == KVT_OK)
        status = tokenizer_decode(tokens, ids + index - 1, 1, text, sizeof text, &first);
    *end_out = before + both - first;
    return status;
}

/* For each offset in bytes, ascending, how many tokens lie before it: a token that goes over an
 * offset belongs to what follows. */
static kvt_status entries_place(const tokenizer *tokens, const uint32_t *ids, size_t count,
                                const size_t *offsets, size_t offset_count, uint32_t *places)
{
    size_t end = 0, next = 0;
    for (size_t i = 0; i < count && next < offset_count; i++) {
        size_t before = end;
        kvt_status status = entries_token_end(tokens, ids, i, before, &end);
        if (status != KVT_OK) return status;
        while (next < offset_count && end > offsets[next])
            places[next++] = (uint32_t)i;
    }
    while (next < offset_count)
        places[next++] = (uint32_t)count;
    return KVT_OK;
}

static kvt_status entries_add_questions(entries_work *work, const evaluate_marks *marks,
                                        const uint32_t *places, quality_entry *entry)
{
    size_t wanted = work->question_count + marks->count;
    quality_question *grown = realloc(work->questions, (wanted + 1) * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    work->questions = grown;
    for (size_t i = 0; i < marks->count; i++, places += 3) {
        quality_question question = {places[0], places[1], places[2]};
        if (question.first >= question.answer || question.answer >= question.end) continue;
        work->questions[work->question_count++] = question;
        entry->question_count++;
    }
    return KVT_OK;
}

static kvt_status entries_cut(entries_work *work, size_t index, const uint32_t *ids, size_t count,
                              quality_entry *entry)
{
    const evaluate_marks *marks = &work->texts.marks[index];
    size_t offset_count = 1 + 3 * marks->count;
    size_t *offsets = calloc(offset_count, sizeof *offsets);
    uint32_t *places = calloc(offset_count, sizeof *places);
    kvt_status status = KVT_E_MEMORY;
    if (offsets == NULL || places == NULL) goto out;
    offsets[0] = marks->context;
    for (size_t i = 0; i < marks->count; i++) {
        offsets[1 + 3 * i] = marks->questions[i].first;
        offsets[2 + 3 * i] = marks->questions[i].answer;
        offsets[3 + 3 * i] = marks->questions[i].end;
    }
    status = entries_place(work->tokens, ids, count, offsets, offset_count, places);
    entry->context_tokens = places[0];
    entry->continuation_tokens = (uint32_t)count - places[0];
    if (status == KVT_OK) status = entries_add_questions(work, marks, places + 1, entry);
out:
    free(offsets);
    free(places);
    return status;
}

/* The text as an entry of its own; none where context or continuation are too short. */
static kvt_status entries_add_asked(entries_work *work, size_t index)
{
    const char *text = work->texts.texts[index];
    size_t bytes = strlen(text), count = 0, questions = work->question_count;
    quality_entry entry = {.tokens = NULL};
    kvt_status status = entries_grow_ids(work, tokenizer_bound(bytes));
    if (status != KVT_OK) return status;
    uint32_t *ids = work->ids + work->id_count;
    status = tokenizer_encode(work->tokens, text, bytes, ids, &count);
    if (status == KVT_OK) status = entries_cut(work, index, ids, count, &entry);
    if (status != KVT_OK) return status;
    if (entry.context_tokens < 1 || entry.continuation_tokens < 2) {
        work->question_count = questions;
        return KVT_OK;
    }
    work->entries[work->count++] = entry;
    work->id_count += count;
    return KVT_OK;
}

/* ---- texts as token ids ---- */

static kvt_status entries_add_ids(entries_work *work, size_t index)
{
    const evaluate_marks *marks = &work->texts.marks[index];
    const evaluate_tokens *tokens = marks->tokens;
    const size_t all = (size_t)tokens->count + tokens->recall_count;
    quality_entry entry = {.context_tokens = (uint32_t)marks->context,
                           .continuation_tokens = tokens->count - (uint32_t)marks->context,
                           .recall_tokens = tokens->recall_count,
                           .recall_scored = tokens->recall_scored,
                           .document = tokens->document};
    kvt_status status = entries_grow_ids(work, all);
    uint32_t *places = calloc(3 * marks->count + 1, sizeof *places);
    if (places == NULL) status = KVT_E_MEMORY;
    for (size_t i = 0; status == KVT_OK && i < marks->count; i++) {
        places[3 * i] = (uint32_t)marks->questions[i].first;
        places[3 * i + 1] = (uint32_t)marks->questions[i].answer;
        places[3 * i + 2] = (uint32_t)marks->questions[i].end;
    }
    if (status == KVT_OK) status = entries_add_questions(work, marks, places, &entry);
    free(places);
    if (status != KVT_OK) return status;
    memcpy(work->ids + work->id_count, tokens->ids, all * sizeof *work->ids);
    work->id_count += all;
    work->entries[work->count++] = entry;
    return KVT_OK;
}

/* ---- texts without ---- */

/* They follow each other. An entry starts at the begin token of a text, and the last text of one is
 * cut. */
static kvt_status entries_add_joined(entries_work *work, uint32_t context, uint32_t continuation)
{
    const size_t each = (size_t)context + continuation;
    size_t used = 0, count = 0; /* ids behind those of whole entries */
    for (size_t i = 0; i < work->texts.count && work->count < work->limit; i++) {
        const char *text = work->texts.texts[i];
        const size_t bytes = strlen(text);
        if (work->texts.marks[i].context > 0) continue;
        kvt_status status = entries_grow_ids(work, used + tokenizer_bound(bytes));
        if (status == KVT_OK)
            status = tokenizer_encode(work->tokens, text, bytes, work->ids + work->id_count + used,
                                      &count);
        if (status != KVT_OK) return status;
        used += count;
        if (used < each) continue;
        work->entries[work->count++] =
            (quality_entry){.context_tokens = context, .continuation_tokens = continuation};
        work->id_count += each;
        used = 0;
    }
    return KVT_OK;
}

/* ---- the whole ---- */

uint64_t quality_entries_digest(const quality_entries *entries, uint32_t count)
{
    size_t ids = 0, questions = 0;
    uint64_t parts[3] = {0, 0, 0};
    for (uint32_t i = 0; i < count; i++) {
        const quality_entry *entry = &entries->entries[i];
        const uint32_t cut[4] = {entry->context_tokens, entry->continuation_tokens,
                                 entry->recall_tokens, entry->recall_scored};
        /* An entry without a passage to recall keeps the digest that it always had. */
        size_t bytes = entry->recall_tokens == 0 ? 2 * sizeof cut[0] : sizeof cut;
        uint64_t link[2] = {parts[2], checksum_of(cut, bytes)};
        parts[2] = checksum_of(link, sizeof link);
        ids += (size_t)entry->context_tokens + entry->continuation_tokens + entry->recall_tokens;
        questions += entry->question_count;
    }
    parts[0] = checksum_of(entries->tokens, ids * sizeof *entries->tokens);
    parts[1] = checksum_of(entries->questions, questions * sizeof *entries->questions);
    return checksum_of(parts, sizeof parts);
}

/* Hands over what was gathered, with entries that point into it. */
static void entries_finish(entries_work *work, quality_entries *out)
{
    const uint32_t *ids = work->ids;
    const quality_question *questions = work->questions;
    for (uint32_t i = 0; i < work->count; i++) {
        quality_entry *entry = &work->entries[i];
        entry->tokens = ids;
        entry->questions = questions;
        ids += (size_t)entry->context_tokens + entry->continuation_tokens;
        entry->recall = entry->recall_tokens > 0 ? ids : NULL;
        ids += entry->recall_tokens;
        questions += entry->question_count;
    }
    *out = (quality_entries){work->entries, work->count, 0, work->ids, work->questions};
    out->digest = quality_entries_digest(out, out->count);
}

void quality_entries_free(quality_entries *entries)
{
    free(entries->entries);
    free(entries->tokens);
    free(entries->questions);
    *entries = (quality_entries){.count = 0};
}

/* Token ids outside the vocabulary are texts of another model. */
static kvt_status entries_check_ids(const entries_work *work, char *message, size_t message_size)
{
    const uint32_t vocab = work->tokens != NULL ? tokenizer_vocab(work->tokens) : UINT32_MAX;
    for (size_t i = 0; i < work->texts.count; i++) {
        const evaluate_tokens *tokens = work->texts.marks[i].tokens;
        const uint32_t count = tokens != NULL ? tokens->count + tokens->recall_count : 0;
        for (uint32_t t = 0; t < count; t++) {
            if (tokens->ids[t] < vocab) continue;
            (void)snprintf(message, message_size,
                           "text %zu has the token id %u, and the model's vocabulary ends at %u: "
                           "is it of another model?",
                           i + 1, (unsigned)tokens->ids[t], (unsigned)vocab - 1);
            return KVT_E_ARGUMENT;
        }
    }
    return KVT_OK;
}

static kvt_status entries_check_tokenizer(const entries_work *work, char *message,
                                          size_t message_size)
{
    if (work->tokens != NULL && tokenizer_encodes(work->tokens)) return KVT_OK;
    for (size_t i = 0; i < work->texts.count; i++) {
        if (work->texts.marks[i].tokens != NULL) continue;
        (void)snprintf(message, message_size,
                       "text %zu is no list of token ids, and the model's tokenizer only decodes",
                       i + 1);
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

kvt_status quality_entries_read(const char *const *paths, uint32_t path_count,
                                const tokenizer *tokens, uint32_t context_tokens,
                                uint32_t continuation_tokens, uint32_t limit,
                                quality_entries *entries_out, char *message, size_t message_size)
{
    entries_work work = {.tokens = tokens, .limit = limit};
    kvt_status status = KVT_OK;
    *entries_out = (quality_entries){.count = 0};
    for (uint32_t i = 0; status == KVT_OK && i < path_count; i++) {
        evaluate_texts more;
        status = evaluate_texts_read(paths[i], &more, message, message_size);
        if (status == KVT_OK) status = entries_add_texts(&work.texts, &more);
    }
    if (status == KVT_OK) status = entries_check_tokenizer(&work, message, message_size);
    if (status == KVT_OK) status = entries_check_ids(&work, message, message_size);
    /* No text gives more than one entry. */
    if (work.limit > work.texts.count) work.limit = (uint32_t)work.texts.count;
    work.entries = calloc((size_t)work.limit + 1, sizeof *work.entries);
    if (work.entries == NULL) status = KVT_E_MEMORY;
    for (size_t i = 0; status == KVT_OK && i < work.texts.count && work.count < work.limit; i++) {
        if (work.texts.marks[i].tokens != NULL) {
            status = entries_add_ids(&work, i);
        } else if (work.texts.marks[i].context > 0) {
            status = entries_add_asked(&work, i);
        }
    }
    if (status == KVT_OK && work.count < work.limit)
        status = entries_add_joined(&work, context_tokens, continuation_tokens);
    evaluate_texts_free(&work.texts);
    if (status == KVT_OK && work.count == 0) {
        (void)snprintf(message, message_size, "the texts do not give one entry of %u + %u tokens",
                       (unsigned)context_tokens, (unsigned)continuation_tokens);
        status = KVT_E_ARGUMENT;
    }
    entries_finish(&work, entries_out);
    if (status != KVT_OK) quality_entries_free(entries_out);
    return status;
}

/* ---- names of what is measured, and the usual list ---- */

/* Ends the name of a variant that is shown the row as one head. */
#define QUALITY_MERGED "@row"

/* The quick list is what stands first. K has more bits than V, V's step is twice K's and V is coded
 * token by token: what a real model asks for (docs/BENCHMARKS.md). The others stand beside. */
static const char *const quality_usual[] = {
    "planes:k8v8,g64",
    "planes:k4v4,g64",
    "planes:k2v2,g64",
    "entropy:k0.25v0.5",
    "drop:stream,50+entropy:k0.25v0.5",
    "planes:k6v6,g64",
    "planes:k6v4,g64",
    "planes:k4v6,g64,vfirst",
    "planes:k4v3,g64",
    "planes:k3v3,g64",
    "entropy:k0.125v0.25",
    "entropy:k0.25v0.5,vchan",
    "entropy:k0.333v0.75",
    "entropy:k0.25v1",
    "entropy:k0.5v1",
    "entropy:k1v1",
    "kivi:k8v8,g64",
    "kivi:k4v4,g64",
    "kivi:k4v4,g64@row",
    "kivi:k2v2,g64",
    "drop:stream,50",
    "drop:keydiff,50+entropy:k0.25v0.5",
    "drop:stream,25+entropy:k0.25v0.5",
};

enum {
    QUALITY_USUAL_COUNT = sizeof quality_usual / sizeof quality_usual[0],
    QUALITY_QUICK_COUNT = 5
};

const char *quality_variant_usual(uint32_t index, bool quick)
{
    uint32_t count = quick ? (uint32_t)QUALITY_QUICK_COUNT : (uint32_t)QUALITY_USUAL_COUNT;
    return index < count ? quality_usual[index] : NULL;
}

kvt_status quality_variant_parse(const char *name, quality_variant *variant)
{
    const char *at = strchr(name, '@');
    size_t length = at != NULL ? (size_t)(at - name) : strlen(name);
    char plain[QUALITY_NAME_BYTES];
    *variant = (quality_variant){.merged = at != NULL};
    if (length >= sizeof plain - sizeof QUALITY_MERGED) return KVT_E_PARSE;
    if (at != NULL && strcmp(at, QUALITY_MERGED) != 0) return KVT_E_PARSE;
    memcpy(plain, name, length);
    plain[length] = '\0';
    if (kvt_variant_parse(plain, &variant->variant) != KVT_OK) return KVT_E_PARSE;
    (void)kvt_variant_format(variant->variant, plain, sizeof plain);
    (void)snprintf(variant->name, sizeof variant->name, "%.*s%s",
                   (int)(sizeof plain - sizeof QUALITY_MERGED), plain,
                   variant->merged ? QUALITY_MERGED : "");
    return KVT_OK;
}

kvt_variant quality_variant_key(const quality_variant *variant)
{
    kvt_variant key = variant->variant;
    if (variant->merged) key.mode |= QUALITY_MERGED_MODE;
    return key;
}

/* ---- the model that is measured ---- */

const char *quality_metric_name(unsigned metric)
{
    static const char *const names[] = {"top1", "rouge_l", "f1", "kl", "answers"};
    return metric < QUALITY_METRICS ? names[metric] : NULL;
}

double quality_row_loss(quality_metric metric, const quality_row *row, double exact_answers)
{
    switch (metric) {
    case QUALITY_TOP1: return 1.0 - row->top1;
    case QUALITY_ROUGE_L: return 1.0 - row->rouge_l;
    case QUALITY_F1: return 1.0 - row->f1;
    case QUALITY_KL: return row->kl > 0.0 ? 1.0 - exp(-row->kl) : 0.0;
    case QUALITY_ANSWERS:
    case QUALITY_METRICS: break;
    }
    if (!(exact_answers > 0.0)) return (double)NAN;
    return row->answers < exact_answers ? 1.0 - row->answers / exact_answers : 0.0;
}

const char *quality_use_name(unsigned use)
{
    static const char *const names[] = {"worse", "answers", "recall"};
    return use < QUALITY_USES ? names[use] : NULL;
}

double quality_recall_loss(quality_metric metric, const quality_row *row)
{
    if (metric != QUALITY_KL) return 1.0 - row->recall_top1;
    if (isnan(row->recall_kl)) return (double)NAN;
    return row->recall_kl > 0.0 ? 1.0 - exp(-row->recall_kl) : 0.0;
}

double quality_row_loss_used(quality_use use, quality_metric metric, const quality_row *row,
                             double exact_answers)
{
    const double answers = quality_row_loss(metric, row, exact_answers);
    const double recall = quality_recall_loss(metric, row);
    if (use == QUALITY_USE_ANSWERS || isnan(recall)) return answers;
    if (use == QUALITY_USE_RECALL || isnan(answers)) return recall;
    return fmax(answers, recall);
}

/* The last part of a path that says something: without ".bin", and of ".../NAME/model" NAME. */
static void measured_name(const char *path, char *name, size_t size)
{
    char copy[512];
    (void)snprintf(copy, sizeof copy, "%s", path);
    size_t length = strlen(copy);
    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = '\0';
    char *slash = strrchr(copy, '/');
    if (slash != NULL && slash != copy && strcmp(slash, "/model") == 0) {
        *slash = '\0';
        slash = strrchr(copy, '/');
    }
    const char *last = slash != NULL ? slash + 1 : copy;
    length = strlen(last);
    if (length > 4 && strcmp(last + length - 4, ".bin") == 0) length -= 4;
    if (length > size - 1) length = size - 1;
    (void)snprintf(name, size, "%.*s", (int)length, last);
}

static void measured_describe(quality_model *measured, const char *path, const char *name)
{
    profile_model *facts = &measured->facts;
    const model_config *c = model_config_of(measured->weights);
    if (name != NULL) {
        (void)snprintf(facts->name, sizeof facts->name, "%s", name);
    } else {
        measured_name(path, facts->name, sizeof facts->name);
    }
    (void)snprintf(facts->digest, sizeof facts->digest, "%016llx",
                   (unsigned long long)model_digest(measured->weights));
    facts->parameters = model_parameters(measured->weights);
    facts->layers = c->layers;
    facts->heads = c->heads;
    facts->kv_heads = c->kv_heads;
    facts->head_dim = c->head_dim;
    facts->vocab = c->vocab;
}

kvt_status quality_model_open(const char *path, const char *tokenizer_path, const char *name,
                              quality_model *measured, char *message, size_t message_size)
{
    char beside[1024];
    *measured = (quality_model){.weights = NULL};
    kvt_status status = model_open(path, &measured->weights, message, message_size);
    if (status != KVT_OK) return status;
    /* A program behind a socket may have more rows of logits than its vocabulary has pieces, and
     * texts of token ids need no vocabulary. */
    const bool hosted = measured->weights->host != NULL;
    int length = snprintf(beside, sizeof beside, "%s/tokenizer.json", path);
    /* Where neither is there the message names the first. */
    if (access(beside, F_OK) != 0)
        length = snprintf(beside, sizeof beside, "%s/tokenizer.bin", path);
    if (tokenizer_path == NULL && (length < 0 || (size_t)length >= sizeof beside)) {
        status = KVT_E_ARGUMENT;
    } else if (tokenizer_path != NULL || !hosted) {
        status = tokenizer_open(tokenizer_path != NULL ? tokenizer_path : beside,
                                hosted ? 0 : model_config_of(measured->weights)->vocab,
                                &measured->tokens, message, message_size);
    }
    if (status == KVT_OK) measured_describe(measured, path, name);
    if (status != KVT_OK) quality_model_close(measured);
    return status;
}

void quality_model_close(quality_model *measured)
{
    tokenizer_close(measured->tokens);
    model_close(measured->weights);
    *measured = (quality_model){.weights = NULL};
}
