/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_contender.c - what is compared: a policy with raw, with one variant, with the best uniform
 * mix, or with the whole ladder; and what the variants are predicted to lose. One thread.
 *
 * A store takes lossy variants from a calibration in its profile. A contender of one variant or of
 * a mix gets a calibration of these alone, written into the run's own copy of the profile.
 */
#include "codecs/codec_table.h"
#include "estimator/exchange/exchange.h"
#include "estimator/profile/profile_internal.h"
#include "replay/loop/loop.h"
#include "store/learn/ladder.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static const struct {
    const char *name, *variant;
} contender_short[] = {
    {"raw", "raw"},
    {"lossless", "lossless"},
    {"kivi-4", "kivi:k4v4"},
    {"kivi-2", "kivi:k2v2"},
};

/* A variant's name as it stands in a list with commas between its items. */
static kvt_status contender_variant(const char *text, kvt_variant *variant_out)
{
    char name[LOOP_NAME_BYTES];
    for (size_t i = 0; i < sizeof contender_short / sizeof contender_short[0]; i++)
        if (strcmp(text, contender_short[i].name) == 0) text = contender_short[i].variant;
    (void)snprintf(name, sizeof name, "%s", text);
    for (char *at = name; *at != '\0'; at++)
        if (*at == '/') *at = ',';
    return kvt_variant_parse(name, variant_out);
}

static bool contender_policy_known(const char *name)
{
    const char *known;
    for (size_t i = 0; (known = kvt_policy_name_get(i)) != NULL; i++)
        if (strcmp(known, name) == 0) return true;
    return false;
}

kvt_status loop_contender_parse(const char *name, loop_contender *contender, char *message,
                                size_t size)
{
    const char *plus = strchr(name, '+');
    const size_t length = plus != NULL ? (size_t)(plus - name) : strlen(name);
    *contender =
        (loop_contender){.variant = {.codec = KVT_CODEC_RAW}, .other = {.codec = KVT_CODEC_RAW}};
    if (strlen(name) >= sizeof contender->name || length >= sizeof contender->policy) {
        (void)snprintf(message, size, "%.60s...: a name that is too long", name);
        return KVT_E_ARGUMENT;
    }
    (void)snprintf(contender->name, sizeof contender->name, "%s", name);
    (void)snprintf(contender->policy, sizeof contender->policy, "%.*s", (int)length, name);
    if (!contender_policy_known(contender->policy)) {
        (void)snprintf(message, size, "unknown policy '%s'", contender->policy);
        return KVT_E_ARGUMENT;
    }
    const bool chooses =
        strcmp(contender->policy, "utility") == 0 || strcmp(contender->policy, "adaptcache") == 0;
    if (chooses) contender->forms = LOOP_FORMS_LADDER;
    if (plus == NULL) return KVT_OK;
    if (chooses) {
        (void)snprintf(message, size, "%s: %s chooses among the whole ladder", name,
                       contender->policy);
        return KVT_E_ARGUMENT;
    }
    if (strcmp(plus + 1, "mix") == 0) {
        contender->forms = LOOP_FORMS_MIX;
        return KVT_OK;
    }
    if (contender_variant(plus + 1, &contender->variant) != KVT_OK) {
        (void)snprintf(message, size, "%s: '%s' is no variant", name, plus + 1);
        return KVT_E_ARGUMENT;
    }
    if (contender->variant.codec != KVT_CODEC_RAW || !kvt_codec_is_exact(contender->variant))
        contender->forms = LOOP_FORMS_ONE;
    return KVT_OK;
}

/* ---- the ladder ---- */

uint32_t loop_ladder_find(const loop_ladder *ladder, kvt_variant variant)
{
    uint32_t at = 0;
    while (at < ladder->all && memcmp(&ladder->curves[at].variant, &variant, sizeof variant) != 0)
        at++;
    return at;
}

/* A calibration of other weights under the same name would predict another model's losses. */
static kvt_status ladder_check_weights(const loop_site *site, kvt_profile *profile, char *message,
                                       size_t size)
{
    const profile_model *facts = &site->measured.facts;
    char found[24] = "";
    bool same = false, any = false;
    profile_row row = profile_row_begin(
        profile, "SELECT DISTINCT m.digest FROM calibration c JOIN model m ON m.id = c.model_id "
                 "WHERE m.name = ?1");
    profile_row_text(&row, facts->name);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    for (; row.result == SQLITE_ROW; row.result = sqlite3_step(row.statement)) {
        const char *digest = (const char *)sqlite3_column_text(row.statement, 0);
        if (digest == NULL) digest = "";
        any = true;
        same = same || digest[0] == '\0' || strcmp(digest, facts->digest) == 0;
        (void)snprintf(found, sizeof found, "%s", digest);
    }
    const int result = row.result;
    sqlite3_finalize(row.statement);
    if (result != SQLITE_DONE) return KVT_E_DATABASE;
    if (same || !any) return KVT_OK;
    (void)snprintf(message, size, "the profile's calibration of %s is of other weights: %s, not %s",
                   facts->name, found, facts->digest);
    return KVT_E_MISMATCH;
}

static kvt_status ladder_add_raw(kvt_profile *profile, kvt_variant variant, loop_ladder *ladder)
{
    kvt_codec_curve *curve = &ladder->curves[ladder->count];
    kvt_status status = profile != NULL ? kvt_profile_codec(profile, variant, curve) : KVT_MISS;
    if (status < 0) return status;
    /* Where its size was not measured it takes no part in a mix. */
    const double share = variant.codec == KVT_CODEC_RAW ? 1.0 : (double)NAN;
    if (status != KVT_OK) *curve = (kvt_codec_curve){.stored_share = share};
    curve->variant = variant;
    curve->loss = curve->loss_upper = 0.0;
    ladder->all = ++ladder->count;
    return KVT_OK;
}

/* The rung of the calibration that is this variant, where the ladder has no room for it. KVT_MISS:
 * it has none. */
static kvt_status ladder_find_rung(const loop_site *site, kvt_profile *profile,
                                   const char *of_class, kvt_variant variant, kvt_codec_curve *rung)
{
    kvt_codec_curve all[PROFILE_RUNGS_MAX];
    const kvt_layout layout = loop_layout(site, 256);
    char ignored[256];
    uint32_t count = 0;
    kvt_status status = profile_rungs_read(profile, &layout, site->measured.facts.name, of_class,
                                           all, PROFILE_RUNGS_MAX, &count, ignored, sizeof ignored);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        if (memcmp(&all[i].variant, &variant, sizeof variant) != 0) continue;
        *rung = all[i];
        return KVT_OK;
    }
    return status == KVT_OK || status == KVT_E_MISMATCH ? KVT_MISS : status;
}

/* The loss of a calibration's rung, or that which `profile quality` measured, for a variant outside
 * the ladder. */
static kvt_status ladder_add_single(const loop_site *site, kvt_profile *profile,
                                    const loop_contender *contender, loop_ladder *ladder,
                                    char *message, size_t size)
{
    kvt_quality_curve quality;
    const kvt_layout layout = loop_layout(site, 1);
    if (contender->forms != LOOP_FORMS_ONE ||
        loop_ladder_find(ladder, contender->variant) < ladder->all)
        return KVT_OK;
    const char *of_class = ladder->class_name[0] != '\0' ? ladder->class_name : NULL;
    if (ladder->all == LOOP_FORMS_MAX) return KVT_E_ARGUMENT;
    kvt_status status =
        ladder_find_rung(site, profile, of_class, contender->variant, &ladder->curves[ladder->all]);
    if (status != KVT_MISS) {
        ladder->all += status == KVT_OK;
        return status;
    }
    status = kvt_profile_quality(profile, contender->variant, site->measured.facts.name, of_class,
                                 &quality);
    if (status == KVT_MISS)
        status = kvt_profile_quality(profile, contender->variant, site->measured.facts.name, NULL,
                                     &quality);
    if (status == KVT_MISS)
        (void)snprintf(message, size,
                       "%s: the profile has no measurement of this variant on %s; kvterrace "
                       "profile quality makes one",
                       contender->name, site->measured.facts.name);
    if (status == KVT_MISS) return KVT_E_ARGUMENT;
    if (status != KVT_OK) return status;
    ladder->curves[ladder->all++] = (kvt_codec_curve){
        .variant = contender->variant,
        .stored_share = quality.bits_per_element / (8.0 * kvt_dtype_bytes(layout.dtype)),
        .loss = quality.loss_mean,
        .loss_upper = quality.loss_high};
    return KVT_OK;
}

static bool rungs_have(const kvt_codec_curve *rungs, uint32_t count, kvt_variant variant)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&rungs[i].variant, &variant, sizeof variant) == 0) return true;
    return false;
}

/* The rungs of the calibration that matter most, and those that the store takes within its limits:
 * what it serves is found here. */
static kvt_status ladder_add_rungs(const loop_site *site, kvt_profile *profile,
                                   const kvt_store_options *store, const char *of_class,
                                   loop_ladder *ladder, char *message, size_t size)
{
    kvt_codec_curve all[PROFILE_RUNGS_MAX], most[PROFILE_RUNGS_MAX], within[PROFILE_RUNGS_MAX];
    const kvt_layout layout = loop_layout(site, 256);
    uint32_t count = 0;
    kvt_status status = profile_rungs_read(profile, &layout, site->measured.facts.name, of_class,
                                           all, PROFILE_RUNGS_MAX, &count, message, size);
    if (status != KVT_OK) return status == KVT_MISS ? KVT_E_MISMATCH : status;
    memcpy(most, all, count * sizeof all[0]);
    memcpy(within, all, count * sizeof all[0]);
    uint32_t most_count = count;
    profile_ladder_choose(most, &most_count, KVT_VARIANTS_MAX - 2);
    const uint32_t within_count = ladder_limit(store, within, count);
    for (uint32_t i = 0; i < count; i++)
        if (rungs_have(most, most_count, all[i].variant) ||
            rungs_have(within, within_count, all[i].variant))
            ladder->curves[ladder->count++] = all[i];
    ladder->all = ladder->count;
    return KVT_OK;
}

kvt_status loop_ladder_read(const loop_site *site, const kvt_store_options *store,
                            const loop_contender *contenders, uint32_t count, loop_ladder *ladder,
                            char *message, size_t size)
{
    const kvt_variant raw = {.codec = KVT_CODEC_RAW};
    const kvt_variant lossless = {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_profile *profile = NULL;
    bool lossy = false;
    *ladder = (loop_ladder){.count = 0};
    for (uint32_t i = 0; i < count; i++)
        lossy = lossy || contenders[i].forms != LOOP_FORMS_RAW;
    if (store->learning.profile_path == NULL && lossy) {
        (void)snprintf(message, size, "a ladder needs a profile: --database, or store.profile");
        return KVT_E_ARGUMENT;
    }
    kvt_status status = KVT_OK;
    if (store->learning.profile_path != NULL)
        status = kvt_profile_open(store->learning.profile_path,
                                  KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile, message, size);
    if (status == KVT_MISS) {
        (void)snprintf(message, size, "%.300s: no such profile", store->learning.profile_path);
        status = KVT_E_GONE;
    }
    if (status == KVT_OK) status = ladder_add_raw(profile, raw, ladder);
    if (status == KVT_OK && store->lossless) status = ladder_add_raw(profile, lossless, ladder);
    const char *of_class = store->loss.ladder_class;
    if (of_class == NULL && site->options.text_count == 1)
        of_class = site->options.texts[0].class_name;
    if (of_class != NULL)
        (void)snprintf(ladder->class_name, sizeof ladder->class_name, "%s", of_class);
    if (status == KVT_OK && lossy) status = ladder_check_weights(site, profile, message, size);
    if (status == KVT_OK && lossy)
        status = ladder_add_rungs(site, profile, store, of_class, ladder, message, size);
    if (status == KVT_MISS) status = KVT_E_MISMATCH;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        status = ladder_add_single(site, profile, &contenders[i], ladder, message, size);
    kvt_profile_close(profile);
    return status;
}

/* ---- the best uniform mix ---- */

void loop_contender_mix(const loop_ladder *ladder, double loss, loop_contender *contender)
{
    double least = HUGE_VAL;
    for (uint32_t a = 0; a < ladder->count; a++) {
        for (uint32_t b = a; b < ladder->count; b++) {
            const kvt_codec_curve *fine = &ladder->curves[a], *coarse = &ladder->curves[b];
            if (fine->loss > loss) continue;
            double share = 1.0;
            if (coarse->loss > loss) share = (loss - fine->loss) / (coarse->loss - fine->loss);
            const double bytes =
                fine->stored_share + share * (coarse->stored_share - fine->stored_share);
            if (!(bytes < least)) continue;
            least = bytes;
            contender->variant = fine->variant;
            contender->other = coarse->variant;
            contender->other_share = share;
        }
    }
    /* Nothing of the finer one is left: one variant for all. */
    if (contender->other_share >= 1.0) {
        contender->variant = contender->other;
        contender->other_share = 0.0;
    }
}

/* ---- the calibration of a run ---- */

static void ladder_add_rung(const loop_site *site, const kvt_codec_curve *curve, json_t *rungs)
{
    const profile_model *facts = &site->measured.facts;
    char name[QUALITY_NAME_BYTES];
    if (kvt_codec_is_exact(curve->variant)) return;
    (void)kvt_variant_format(curve->variant, name, sizeof name);
    (void)json_array_append_new(
        rungs, json_pack("{s:s, s:s, s:s, s:i, s:s, s:f, s:f, s:f}", "model", facts->name, "digest",
                         facts->digest, "class", LOOP_CLASS_OWN, "position",
                         (int)json_array_size(rungs), "variant", name, "bits_per_element",
                         8.0 * kvt_dtype_bytes(KVT_DTYPE_FP16) * curve->stored_share, "loss",
                         curve->loss, "loss_upper", curve->loss_upper));
}

/* The larger variant comes first. */
kvt_status loop_ladder_write(const loop_site *site, const loop_ladder *ladder,
                             const loop_contender *contender, const char *path, char *message,
                             size_t size)
{
    const uint32_t first = loop_ladder_find(ladder, contender->variant);
    const uint32_t second = loop_ladder_find(ladder, contender->other);
    kvt_profile *profile = NULL;
    json_t *rungs = json_array();
    if (first < ladder->all) ladder_add_rung(site, &ladder->curves[first], rungs);
    if (contender->forms == LOOP_FORMS_MIX && contender->other_share > 0 && second < ladder->all)
        ladder_add_rung(site, &ladder->curves[second], rungs);
    json_t *tables = json_pack("{s:o}", "calibration", rungs);
    kvt_status status =
        kvt_profile_open(path, KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN, &profile, message, size);
    if (status == KVT_OK) status = exchange_import_tables(profile, tables, "replay", message, size);
    kvt_profile_close(profile);
    json_decref(tables);
    return status;
}
