/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_dumps_make.c - KV dumps of a model over texts. One thread.
 */
#include "estimator/quality/evaluate.h"
#include "estimator/quality/quality_dump.h"
#include "estimator/quality/quality_dumps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* `count` of the continuation's query rows, evenly spread, as quality_dump_content takes them. */
static kvt_status make_queries(const evaluate_entry *entry, uint32_t count, float ***queries_out)
{
    const model_config *c = entry->config;
    const size_t row = (size_t)c->heads * c->head_dim;
    float **places = malloc(c->layers * sizeof *places);
    float *memory = malloc(c->layers * count * row * sizeof *memory);
    *queries_out = places;
    if (places == NULL || memory == NULL) {
        free(memory);
        free(places);
        *queries_out = NULL;
        return KVT_E_MEMORY;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        places[l] = memory + (size_t)l * count * row;
        for (uint32_t r = 0; r < count; r++) {
            size_t at = (2 * (size_t)r + 1) * entry->continuation_tokens / (2 * (size_t)count);
            memcpy(places[l] + r * row, entry->queries[l] + at * row, row * sizeof *memory);
        }
    }
    return KVT_OK;
}

static kvt_status make_write(const evaluate_entry *entry, uint32_t queries, const char *path,
                             char *message, size_t message_size)
{
    const model_config *c = entry->config;
    float **places = NULL;
    kvt_status status = make_queries(entry, queries, &places);
    if (status != KVT_OK) return status;
    const quality_dump_content content = {.layout = {.layers = (uint16_t)c->layers,
                                                     .kv_heads = (uint16_t)c->kv_heads,
                                                     .head_dim = (uint16_t)c->head_dim,
                                                     .dtype = KVT_DTYPE_FP16,
                                                     .tokens = entry->context_tokens},
                                          .k = (const void *const *)(const void *)entry->k,
                                          .v = (const void *const *)(const void *)entry->v,
                                          .queries = (const float *const *)(const void *)places,
                                          .query_heads = c->heads,
                                          .query_rows = queries};
    status = quality_dump_write(path, &content, message, message_size);
    free(places[0]);
    free(places);
    return status;
}

static kvt_status make_one(const quality_dumps_make_options *o, model_session *session,
                           const quality_entry *cut, uint32_t index, char *message,
                           size_t message_size)
{
    evaluate_entry *entry = NULL;
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/%04u.safetensors", o->folder, (unsigned)index);
    if (length < 0 || (size_t)length >= sizeof path) return KVT_E_ARGUMENT;
    kvt_status status = evaluate_entry_open(session, cut->tokens, cut->context_tokens,
                                            cut->continuation_tokens, &entry);
    if (status == KVT_OK) {
        uint32_t queries =
            o->queries < cut->continuation_tokens ? o->queries : cut->continuation_tokens;
        status = make_write(entry, queries, path, message, message_size);
    }
    evaluate_entry_close(entry);
    return status;
}

static kvt_status make_all(const quality_dumps_make_options *o, const quality_model *measured,
                           const quality_entries *entries, uint32_t *count_out, char *message,
                           size_t message_size)
{
    model_session *session = NULL;
    if (mkdir(o->folder, 0777) != 0 && errno != EEXIST) {
        (void)snprintf(message, message_size, "%s: %s", o->folder, strerror(errno));
        return KVT_E_IO;
    }
    kvt_status status = model_session_open(measured->weights, &session);
    for (uint32_t i = 0; status == KVT_OK && i < entries->count; i++) {
        status = make_one(o, session, &entries->entries[i], i, message, message_size);
        if (status != KVT_OK) break;
        ++*count_out;
        if (o->progress != NULL &&
            !o->progress(o->progress_context, (double)*count_out / entries->count, "dumps"))
            status = KVT_E_CANCELLED;
    }
    model_session_close(session);
    return status;
}

kvt_status quality_dumps_make(const quality_dumps_make_options *options, uint32_t *count_out,
                              char *message, size_t message_size)
{
    quality_model measured;
    quality_entries entries = {.entries = NULL};
    *count_out = 0;
    message[0] = '\0';
    if (options->queries == 0) return KVT_E_ARGUMENT;
    kvt_status status = quality_model_open(options->model, options->tokenizer, NULL, &measured,
                                           message, message_size);
    if (status != KVT_OK) return status;
    status = quality_entries_read(options->texts, options->text_count, measured.tokens,
                                  options->context_tokens, options->continuation_tokens,
                                  options->contexts, &entries, message, message_size);
    if (status == KVT_OK)
        status = make_all(options, &measured, &entries, count_out, message, message_size);
    quality_entries_free(&entries);
    quality_model_close(&measured);
    return status;
}
