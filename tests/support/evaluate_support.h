/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate_support.h - what tests ask of estimator/quality/evaluate.h in one call. Single thread.
 */
#ifndef SUPPORT_EVALUATE_SUPPORT_H
#define SUPPORT_EVALUATE_SUPPORT_H

#include "estimator/quality/evaluate.h"

/* Leaves everything as it is: exact against exact, the noise floor. */
static inline kvt_status evaluate_exact(void *context, evaluate_kv *kv)
{
    (void)context, (void)kv;
    return KVT_OK;
}

/* Opens, runs and closes a variant. */
static inline kvt_status evaluate_entry_run(model_session *session, const evaluate_entry *entry,
                                            evaluate_transform transform, void *context,
                                            evaluate_result *result, evaluate_token *tokens)
{
    evaluate_variant variant = {.memory = NULL};
    *result = (evaluate_result){.kl = 0.0};
    kvt_status status = evaluate_variant_open(entry, transform, context, &variant);
    if (status != KVT_OK) return status;
    status = evaluate_variant_run(session, entry, &variant, result, tokens);
    evaluate_variant_close(&variant);
    return status;
}

#endif
