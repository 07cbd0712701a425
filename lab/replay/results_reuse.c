/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_reuse.c - the learned weights of the reuse experts, and why single blocks are where they
 * are. One thread.
 */
#include "results_reuse.h"

#include "results_text.h"

#include <string.h>

static const char *const reuse_keys[KVT_REUSE_KINDS] = {"count", "last", "again"};
static const char *const reuse_words[KVT_REUSE_KINDS] = {"how uses add up", "the last use alone",
                                                         "having been used again"};

static json_t *reuse_numbers(const double numbers[KVT_REUSE_HALF_LIVES])
{
    json_t *list = json_array();
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++) {
        if (json_array_append_new(list, json_real(numbers[k])) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *results_reuse_json(const kvt_reuse_weights *reuse)
{
    if (reuse->uses == 0) return json_null();
    json_t *object = json_pack("{s:I, s:o}", "uses", (json_int_t)reuse->uses, "half_life_s",
                               reuse_numbers(reuse->half_life_seconds));
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        if (json_object_set_new(object, reuse_keys[kind], reuse_numbers(reuse->weight[kind])) == 0)
            continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *reuse_explained(const replay_explained *row)
{
    const kvt_explanation *why = &row->why;
    char variant[64];
    kvt_variant_format(why->options[why->current].option.variant, variant, sizeof variant);
    json_t *expert = json_null();
    if (why->reuse_expert != NULL) {
        expert = json_pack("{s:s, s:s, s:f, s:f, s:f}", "kind", reuse_keys[why->reuse_kind], "says",
                           why->reuse_expert, "half_life_s", why->reuse_half_life_seconds, "weight",
                           why->reuse_weight, "share_of_rate", why->reuse_share);
    }
    return json_pack("{s:I, s:s, s:s, s:f, s:f, s:s, s:o}", "block", (json_int_t)row->block, "tier",
                     kvt_tier_name(row->tier), "variant", variant, "uses_per_s",
                     why->accesses_per_s, "last_use_s_ago", why->last_access_age_seconds, "reason",
                     why->reason != NULL ? why->reason : "", "reuse_expert", expert);
}

json_t *results_explained_json(const replay_result *result)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < result->explained_count; i++) {
        if (json_array_append_new(list, reuse_explained(&result->explained[i])) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

/* The expert with the largest weight. */
static void reuse_text_weights(const replay_result *result, FILE *file)
{
    const kvt_reuse_weights *reuse = &result->reuse;
    char half_life[RESULTS_TEXT_BYTES];
    int best_kind = 0, best = 0;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++) {
            if (reuse->weight[kind][k] <= reuse->weight[best_kind][best]) continue;
            best_kind = kind;
            best = k;
        }
    }
    fprintf(file,
            "\nreuse learned by %s, seed %llu, from %llu uses: %s has the largest weight, %.2f "
            "with a half-life of %s\n",
            result->policy, (unsigned long long)result->seed, (unsigned long long)reuse->uses,
            reuse_words[best_kind], reuse->weight[best_kind][best],
            results_format_seconds(reuse->half_life_seconds[best], half_life));
}

static void reuse_text_explained(const replay_explained *row, FILE *file)
{
    const kvt_explanation *why = &row->why;
    char variant[64], age[RESULTS_TEXT_BYTES], half_life[RESULTS_TEXT_BYTES];
    kvt_variant_format(why->options[why->current].option.variant, variant, sizeof variant);
    fprintf(file, "block %u: %s in %s, used %s ago", row->block, variant, kvt_tier_name(row->tier),
            results_format_seconds(why->last_access_age_seconds, age));
    if (why->accesses_per_s > 0.0) fprintf(file, ", %.2g uses/s expected", why->accesses_per_s);
    if (why->reuse_expert != NULL) {
        fprintf(file, "; reuse expert: %s, half-life %s, weight %.2f, %.0f %% of the rate",
                why->reuse_expert, results_format_seconds(why->reuse_half_life_seconds, half_life),
                why->reuse_weight, why->reuse_share * 100.0);
    }
    fprintf(file, ". %s\n", why->reason != NULL ? why->reason : "");
}

void results_reuse_text(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->reuse.uses > 0) reuse_text_weights(result, file);
        if (result->explained_count > 0)
            fprintf(
                file,
                "stored blocks with the highest rates, or used last where %s predicts none, seed "
                "%llu:\n",
                result->policy, (unsigned long long)result->seed);
        for (uint32_t row = 0; row < result->explained_count; row++)
            reuse_text_explained(&result->explained[row], file);
    }
}
