/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_likelihood.c - whether a model understands the texts that it is judged on. A wrong rope
 * base, weights in another order or another model's tokenizer give numbers all the same, and what a
 * codec takes from a model that knows nothing looks small. Thread rule: any thread.
 */
#include "estimator/quality/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Mean over the tokens that an entry's likelihood is a mean of: those behind the continuation's
 * first. */
static double likelihood_unigram(const quality_entry *entry, const uint64_t *counts, double all)
{
    const uint32_t first = entry->context_tokens + 1;
    const uint32_t end = entry->context_tokens + entry->continuation_tokens;
    double sum = 0.0;
    for (uint32_t i = first; i < end; i++)
        sum -= log(((double)counts[entry->tokens[i]] + 1.0) / all);
    return end > first ? sum / (end - first) : 0.0;
}

kvt_status quality_likelihood_of(const quality_entry *const *entries, const double *nats,
                                 uint32_t count, uint32_t vocab, quality_likelihood *out)
{
    uint64_t *counts = calloc(vocab, sizeof *counts);
    double all = vocab;
    *out = (quality_likelihood){.nats = (double)NAN, .unigram_nats = (double)NAN};
    if (counts == NULL) return KVT_E_MEMORY;
    for (uint32_t e = 0; e < count; e++) {
        const uint32_t tokens = entries[e]->context_tokens + entries[e]->continuation_tokens;
        all += tokens;
        for (uint32_t i = 0; i < tokens; i++) {
            if (entries[e]->tokens[i] >= vocab) {
                free(counts);
                return KVT_E_ARGUMENT;
            }
            counts[entries[e]->tokens[i]]++;
        }
    }
    for (uint32_t e = 0; e < count; e++) {
        out->nats = (e == 0 ? 0.0 : out->nats) + nats[e] / count;
        out->unigram_nats = (e == 0 ? 0.0 : out->unigram_nats) +
                            likelihood_unigram(entries[e], counts, all) / count;
    }
    free(counts);
    return KVT_OK;
}

bool quality_understands(const quality_likelihood *likelihood)
{
    if (isnan(likelihood->unigram_nats)) return true;
    return likelihood->nats < QUALITY_UNDERSTOOD_SHARE * likelihood->unigram_nats;
}

kvt_status quality_likelihood_check(const quality_likelihood *likelihood, const char *class_name,
                                    char *message, size_t message_size)
{
    if (quality_understands(likelihood)) return KVT_OK;
    (void)snprintf(message, message_size,
                   "%s%s%sthe model does not understand these texts: %.3f nats per token from "
                   "exact KV, where a unigram model of the texts has %.3f; no ladder is made, "
                   "since a loss against this means nothing (are weights, rope_theta and tokenizer "
                   "of one model?)",
                   class_name != NULL ? "class " : "", class_name != NULL ? class_name : "",
                   class_name != NULL ? ": " : "", likelihood->nats, likelihood->unigram_nats);
    return KVT_E_MISMATCH;
}
