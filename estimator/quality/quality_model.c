/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_model.c - see quality_model.h. Thread rule: as there.
 */
#include "estimator/quality/quality_model.h"
#include "codecs/kernels/checksum.h"
#include "estimator/model/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    uint64_t weights = model_weight_count(c);
    if (name != NULL) {
        (void)snprintf(facts->name, sizeof facts->name, "%s", name);
    } else {
        measured_name(path, facts->name, sizeof facts->name);
    }
    (void)snprintf(
        facts->digest, sizeof facts->digest, "%016llx",
        (unsigned long long)checksum_of(measured->weights->weights, weights * sizeof(float)));
    facts->parameters = weights;
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
    int length = snprintf(beside, sizeof beside, "%s/tokenizer.bin", path);
    if (tokenizer_path == NULL && (length < 0 || (size_t)length >= sizeof beside)) {
        status = KVT_E_ARGUMENT;
    } else {
        status = tokenizer_open(tokenizer_path != NULL ? tokenizer_path : beside,
                                model_config_of(measured->weights)->vocab, &measured->tokens,
                                message, message_size);
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
