/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.c - the exact run of an entry, and what a transform of its KV does to the continuation.
 * Thread rule: see evaluate.h.
 */
#include "estimator/quality/evaluate.h"
#include "base/half.h"
#include "estimator/model/model.h"
#include "estimator/quality/quality.h"

#include <stdlib.h>
#include <string.h>

/* Elements of one layer's K or V of the context. */
static size_t evaluate_matrix(const evaluate_entry *e)
{
    return (size_t)e->context_tokens * e->config->kv_heads * e->config->head_dim;
}

static size_t evaluate_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* One block of memory: the pointers, logits and tokens, then what there is per layer. */
static kvt_status evaluate_entry_make(const model_config *c, uint32_t context,
                                      uint32_t continuation, evaluate_entry **entry_out)
{
    evaluate_entry *e = calloc(1, sizeof *e);
    if (e == NULL) return KVT_E_MEMORY;
    e->config = c;
    e->context_tokens = context;
    e->continuation_tokens = continuation;
    size_t pointers = evaluate_round_up((size_t)c->layers * sizeof(void *));
    size_t logits = evaluate_round_up((size_t)continuation * c->vocab * sizeof(float));
    size_t queries =
        evaluate_round_up((size_t)continuation * c->heads * c->head_dim * sizeof(float));
    size_t tokens = evaluate_round_up(((size_t)context + continuation) * sizeof(uint32_t));
    size_t matrix = evaluate_round_up(evaluate_matrix(e) * sizeof(uint16_t));
    size_t own =
        evaluate_round_up((size_t)continuation * c->kv_heads * c->head_dim * sizeof(float));
    size_t layer = 2 * queries + 2 * own + 2 * matrix;
    uint8_t *at = malloc(6 * pointers + logits + tokens + c->layers * layer);
    e->memory = at;
    if (at == NULL) {
        evaluate_entry_close(e);
        return KVT_E_MEMORY;
    }
    e->k = (uint16_t **)(void *)at;
    e->v = (uint16_t **)(void *)(at + pointers);
    e->queries = (float **)(void *)(at + 2 * pointers);
    e->own_k = (float **)(void *)(at + 3 * pointers);
    e->own_v = (float **)(void *)(at + 4 * pointers);
    e->attended = (float **)(void *)(at + 5 * pointers);
    at += 6 * pointers;
    e->logits = (float *)(void *)at;
    e->tokens = (uint32_t *)(void *)(at + logits);
    at += logits + tokens;
    for (uint32_t l = 0; l < c->layers; l++, at += layer) {
        e->queries[l] = (float *)(void *)at;
        e->attended[l] = (float *)(void *)(at + queries);
        e->own_k[l] = (float *)(void *)(at + 2 * queries);
        e->own_v[l] = (float *)(void *)(at + 2 * queries + own);
        e->k[l] = (uint16_t *)(void *)(at + 2 * queries + 2 * own);
        e->v[l] = (uint16_t *)(void *)(at + 2 * queries + 2 * own + matrix);
    }
    *entry_out = e;
    return KVT_OK;
}

static bool evaluate_round(const float *from, size_t count, uint16_t *to)
{
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        to[i] = half_from_float(from[i]);
        fits = fits && (to[i] & 0x7c00u) != 0x7c00u;
    }
    return fits;
}

kvt_status evaluate_prefill(model_session *session, const uint32_t *tokens, uint32_t count,
                            uint16_t *const *k, uint16_t *const *v)
{
    const model_config *c = model_session_config(session);
    const size_t matrix = (size_t)count * c->kv_heads * c->head_dim;
    bool fits = true;
    float **places = malloc(2 * c->layers * sizeof *places);
    float *exact = malloc(2 * c->layers * matrix * sizeof *exact);
    kvt_status status = KVT_E_MEMORY;
    if (places == NULL || exact == NULL) goto out;
    for (uint32_t i = 0; i < 2 * c->layers; i++)
        places[i] = exact + i * matrix;
    status = model_forward(session, &(model_request){.tokens = tokens,
                                                     .token_count = count,
                                                     .k_out = places,
                                                     .v_out = places + c->layers});
    for (uint32_t l = 0; status == KVT_OK && l < c->layers; l++) {
        fits = evaluate_round(places[l], matrix, k[l]) && fits;
        fits = evaluate_round(places[c->layers + l], matrix, v[l]) && fits;
    }
    if (status == KVT_OK && !fits) status = KVT_E_UNSUPPORTED;
out:
    free(places);
    free(exact);
    return status;
}

static model_request evaluate_continuation(const evaluate_entry *e, const model_past *past,
                                           uint32_t position, float *logits)
{
    return (model_request){.tokens = e->tokens + e->context_tokens,
                           .token_count = e->continuation_tokens,
                           .first_position = position,
                           .past = past,
                           .logits_count = e->continuation_tokens,
                           .logits_out = logits};
}

/* Mean over the tokens whose successor is in the entry. */
static double evaluate_nll(const evaluate_entry *e, const float *logits)
{
    const uint32_t *next = e->tokens + e->context_tokens + 1;
    uint32_t vocab = e->config->vocab, rows = e->continuation_tokens - 1;
    double nll = 0.0;
    for (uint32_t r = 0; r < rows; r++, logits += vocab)
        nll += model_log_sum(logits, vocab) - (double)logits[next[r]];
    return nll / rows;
}

static model_past evaluate_past(const evaluate_entry *e)
{
    return (model_past){.tokens = e->context_tokens,
                        .dtype = KVT_DTYPE_FP16,
                        .k = (const void *const *)e->k,
                        .v = (const void *const *)e->v};
}

kvt_status evaluate_entry_open(model_session *session, const uint32_t *tokens,
                               uint32_t context_tokens, uint32_t continuation_tokens,
                               evaluate_entry **entry_out)
{
    evaluate_entry *e;
    *entry_out = NULL;
    if (context_tokens < 1 || continuation_tokens < 2) return KVT_E_ARGUMENT;
    kvt_status status =
        evaluate_entry_make(model_session_config(session), context_tokens, continuation_tokens, &e);
    if (status != KVT_OK) return status;
    memcpy(e->tokens, tokens, ((size_t)context_tokens + continuation_tokens) * sizeof *e->tokens);
    status = evaluate_prefill(session, e->tokens, context_tokens, e->k, e->v);
    if (status == KVT_OK) {
        model_past past = evaluate_past(e);
        model_request request = evaluate_continuation(e, &past, context_tokens, e->logits);
        request.k_out = e->own_k;
        request.v_out = e->own_v;
        request.queries_count = continuation_tokens;
        request.queries_out = e->queries;
        request.attended_out = e->attended;
        status = model_forward(session, &request);
    }
    if (status != KVT_OK) {
        evaluate_entry_close(e);
        return status;
    }
    e->nll = evaluate_nll(e, e->logits);
    *entry_out = e;
    return KVT_OK;
}

void evaluate_entry_close(evaluate_entry *entry)
{
    if (entry == NULL) return;
    free(entry->memory);
    free(entry);
}

static kvt_status evaluate_variant_make(const evaluate_entry *e, evaluate_variant *variant)
{
    const model_config *c = e->config;
    size_t pointers = evaluate_round_up((size_t)c->layers * sizeof(void *));
    size_t logits = evaluate_round_up((size_t)e->continuation_tokens * c->vocab * sizeof(float));
    size_t matrix = evaluate_round_up(evaluate_matrix(e) * sizeof(uint16_t));
    size_t kept = evaluate_round_up((size_t)c->kv_heads * e->context_tokens);
    const size_t bytes = 3 * pointers + logits + c->layers * (2 * matrix + kept);
    if (bytes > variant->memory_bytes) {
        evaluate_variant_close(variant);
        variant->memory = malloc(bytes);
        if (variant->memory == NULL) return KVT_E_MEMORY;
        variant->memory_bytes = bytes;
    }
    uint8_t *at = variant->memory;
    *variant = (evaluate_variant){.k = (uint16_t **)(void *)at,
                                  .v = (uint16_t **)(void *)(at + pointers),
                                  .kept = (uint8_t **)(void *)(at + 2 * pointers),
                                  .logits = (float *)(void *)(at + 3 * pointers),
                                  .memory = at,
                                  .memory_bytes = variant->memory_bytes};
    at += 3 * pointers + logits;
    for (uint32_t l = 0; l < c->layers; l++, at += 2 * matrix + kept) {
        variant->k[l] = (uint16_t *)(void *)at;
        variant->v[l] = (uint16_t *)(void *)(at + matrix);
        variant->kept[l] = at + 2 * matrix;
        memcpy(variant->k[l], e->k[l], evaluate_matrix(e) * sizeof(uint16_t));
        memcpy(variant->v[l], e->v[l], evaluate_matrix(e) * sizeof(uint16_t));
        memset(variant->kept[l], 1, (size_t)c->kv_heads * e->context_tokens);
    }
    return KVT_OK;
}

static void evaluate_compare(const evaluate_entry *e, const float *logits, evaluate_result *result,
                             evaluate_token *tokens)
{
    uint32_t vocab = e->config->vocab, same = 0;
    double kl = 0.0;
    for (uint32_t r = 0; r < e->continuation_tokens; r++) {
        const float *exact = e->logits + (size_t)r * vocab;
        const float *other = logits + (size_t)r * vocab;
        double row = model_kl(exact, other, vocab);
        kl += row;
        uint32_t best = model_best(other, vocab);
        same += model_best(exact, vocab) == best;
        if (tokens != NULL) tokens[r] = (evaluate_token){row, best};
    }
    result->kl = kl / e->continuation_tokens;
    result->top1 = (double)same / e->continuation_tokens;
    result->nll_delta = evaluate_nll(e, logits) - e->nll;
}

kvt_status evaluate_variant_open(const evaluate_entry *e, evaluate_transform transform,
                                 void *context, evaluate_variant *variant)
{
    kvt_status status = evaluate_variant_make(e, variant);
    if (status != KVT_OK) return status;
    evaluate_kv kv = {.config = e->config,
                      .tokens = e->context_tokens,
                      .k = variant->k,
                      .v = variant->v,
                      .kept = variant->kept,
                      .next_position = e->context_tokens};
    status = transform(context, &kv);
    variant->next_position = kv.next_position;
    const size_t mask = (size_t)e->config->kv_heads * e->context_tokens;
    for (uint32_t l = 0; !variant->dropped && l < e->config->layers; l++)
        variant->dropped = memchr(variant->kept[l], 0, mask) != NULL;
    if (status != KVT_OK) evaluate_variant_close(variant);
    return status;
}

void evaluate_variant_close(evaluate_variant *variant)
{
    free(variant->memory);
    *variant = (evaluate_variant){.memory = NULL};
}

/* Compares the attention over the context with that over other KV. */
static kvt_status evaluate_probe(const evaluate_entry *e, const model_past *exact,
                                 const model_past *changed, evaluate_result *result)
{
    const size_t heads = (size_t)e->config->layers * e->config->heads;
    const model_probe probe = {.exact = exact,
                               .variant = changed,
                               .rows = e->continuation_tokens,
                               .queries = (const float *const *)e->queries,
                               .own_k = (const float *const *)e->own_k,
                               .own_v = (const float *const *)e->own_v,
                               .exact_out = (const float *const *)e->attended};
    model_probe_result probed;
    double *errors = malloc(heads * sizeof *errors);
    if (errors == NULL) return KVT_E_MEMORY;
    kvt_status status = model_probe_attention(e->config, &probe, &probed, errors);
    if (status == KVT_OK) {
        result->attention_error = probed.attention_error;
        result->attention_error_high = quality_quantile(errors, (uint32_t)heads, EVALUATE_HIGH);
        result->retained_mass = probed.retained_mass;
    }
    free(errors);
    return status;
}

/* The variant's KV as a past. */
static model_past evaluate_changed(const evaluate_entry *e, const evaluate_variant *variant)
{
    model_past changed = evaluate_past(e);
    changed.k = (const void *const *)variant->k;
    changed.v = (const void *const *)variant->v;
    if (variant->dropped) changed.kept = (const uint8_t *const *)variant->kept;
    return changed;
}

kvt_status evaluate_variant_go_on(model_session *session, const evaluate_entry *e,
                                  const evaluate_variant *variant, evaluate_result *result_out,
                                  evaluate_token *tokens_out)
{
    const model_past changed = evaluate_changed(e, variant);
    *result_out = (evaluate_result){.kl = 0.0};
    model_request request =
        evaluate_continuation(e, &changed, variant->next_position, variant->logits);
    const kvt_status status = model_forward(session, &request);
    if (status == KVT_OK) evaluate_compare(e, variant->logits, result_out, tokens_out);
    return status;
}

kvt_status evaluate_variant_run(model_session *session, const evaluate_entry *e,
                                const evaluate_variant *variant, evaluate_result *result_out,
                                evaluate_token *tokens_out)
{
    const model_past exact = evaluate_past(e), changed = evaluate_changed(e, variant);
    const kvt_status status = evaluate_variant_go_on(session, e, variant, result_out, tokens_out);
    return status == KVT_OK ? evaluate_probe(e, &exact, &changed, result_out) : status;
}
