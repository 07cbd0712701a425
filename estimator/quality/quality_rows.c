/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_rows.c - see quality_rows.h.
 */
#include "estimator/quality/quality_rows.h"

#include "estimator/profile/profile_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static quality_row row_exact(double nll, double answers)
{
    const double nan = (double)NAN;
    return (quality_row){.present = true,
                         .bits_per_element = 16.0,
                         .physical_bits_per_element = nan,
                         .loss = 0.0,
                         .kl = 0.0,
                         .kl_first = nan,
                         .kl_second = nan,
                         .top1 = 1.0,
                         .nll_delta = nll,
                         .rouge_l = nan,
                         .f1 = nan,
                         .answers = answers,
                         .attention_error = nan,
                         .attention_error_high = nan,
                         .retained_mass = nan,
                         .flip_rate = nan};
}

quality_row quality_row_passage(quality_metric metric, const quality_row *row)
{
    quality_row passage = row_exact(row->recall_nll_delta, (double)NAN);
    passage.present = row->present && isfinite(row->recall_kl);
    passage.bits_per_element = row->bits_per_element;
    passage.physical_bits_per_element = row->physical_bits_per_element;
    passage.loss = quality_recall_loss(metric, row);
    passage.kl = row->recall_kl;
    passage.kl_first = row->recall_kl_first;
    passage.kl_second = row->recall_kl_second;
    passage.top1 = row->recall_top1;
    passage.nmse[0] = passage.nmse[1] = (double)NAN;
    return passage;
}

kvt_status quality_row_put(kvt_profile *profile, int64_t set, int64_t passages, uint32_t entry,
                           kvt_variant key, quality_metric metric, const quality_row *row)
{
    const quality_row passage = quality_row_passage(metric, row);
    kvt_status status = KVT_OK;
    if (passages != 0 && passage.present)
        status = profile_entry_insert(profile, passages, entry, key, &passage);
    return status == KVT_OK ? profile_entry_insert(profile, set, entry, key, row) : status;
}

kvt_status quality_row_put_exact(kvt_profile *profile, int64_t set, int64_t passages,
                                 uint32_t entry, const quality_exact *exact)
{
    const quality_row passage = row_exact(exact->recall_nll, (double)NAN);
    const quality_row row = row_exact(exact->nll, exact->answers);
    kvt_status status = KVT_OK;
    if (passages != 0)
        status = profile_entry_insert(profile, passages, entry, QUALITY_EXACT_KEY, &passage);
    if (status != KVT_OK) return status;
    return profile_entry_insert(profile, set, entry, QUALITY_EXACT_KEY, &row);
}

kvt_status quality_set_open(kvt_profile *profile, const profile_set *set, const char *kind,
                            const char *command_line, int64_t *run, int64_t *set_out)
{
    int64_t found = 0;
    kvt_status status = profile_set_find(profile, set, &found, set_out);
    if (status == KVT_OK && *run == 0) *run = found;
    if (status == KVT_OK && *run != found) status = KVT_MISS;
    if (status != KVT_MISS) return status;
    status = *run == 0 ? profile_run_begin(profile, kind, command_line, QUALITY_SEED, run) : KVT_OK;
    return status == KVT_OK ? profile_set_insert(profile, *run, set, set_out) : status;
}

char *quality_cuts_write(const quality_cuts *cuts)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)cuts->texts);
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:i}", "texts", text, "entries",
                  (json_int_t)cuts->entries, "context_tokens", (json_int_t)cuts->context_tokens,
                  "continuation_tokens", (json_int_t)cuts->continuation_tokens, "answer_tokens",
                  (json_int_t)cuts->answer_tokens, "metric", quality_metric_name(cuts->metric),
                  "use", quality_use_name(cuts->use), "seed", (int)QUALITY_SEED);
    if (root != NULL && cuts->calibration)
        (void)json_object_set_new(root, "calibration", json_true());
    char *settings = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    return settings;
}

bool quality_cuts_read(const char *settings, quality_cuts *cuts)
{
    json_t *root = json_loads(settings, 0, NULL);
    const char *text = NULL;
    json_int_t numbers[5] = {0};
    *cuts = (quality_cuts){.entries = 0};
    int failed = json_unpack(root, "{s:s, s:I, s:I, s:I, s:I, s:I}", "texts", &text, "entries",
                             &numbers[0], "context_tokens", &numbers[1], "continuation_tokens",
                             &numbers[2], "answer_tokens", &numbers[3], "seed", &numbers[4]);
    char *end = NULL;
    if (failed == 0) cuts->texts = strtoull(text, &end, 16);
    bool sound = failed == 0 && end != text && *end == '\0' && numbers[4] == QUALITY_SEED;
    for (int i = 0; i < 4; i++)
        sound = sound && numbers[i] >= 0 && numbers[i] <= UINT32_MAX;
    json_decref(root);
    if (!sound) return false;
    cuts->entries = (uint32_t)numbers[0];
    cuts->context_tokens = (uint32_t)numbers[1];
    cuts->continuation_tokens = (uint32_t)numbers[2];
    cuts->answer_tokens = (uint32_t)numbers[3];
    return true;
}
