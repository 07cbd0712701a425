/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder.c - the lossy variants that a store may keep: the calibrated variants of one layout,
 * within the limits of loss. Without a ladder, and for entries of any other layout, there are exact
 * variants alone.
 *
 * A variant that is beyond a limit for want of observations alone waits: it is in the ladder, so
 * that its losses can be observed, and the policy's limit keeps every entry from it until the
 * entry's class has shown that it loses little enough (kvt_quality_observe).
 *
 * Variants stand in the order of what they ask of an entry: exact, lossy, lossy with fewer tokens,
 * the same by the caller's scores. So an entry's variants are the leading ones, up to what it
 * allows (docs/STORE.md, Token drop). A row of the catalog whose variant is not among the present
 * ones, as after the limit was lowered, is dropped at open: a record that was stored under a weaker
 * promise is not served under a stronger one.
 *
 * Thread rule: the opener's thread; ladder_allows and ladder_variants any, on what is fixed after
 * open and, of the entry, under the control lock.
 */
#include "store/learn/ladder.h"
#include "codecs/codecs.h"
#include "store/learn/costs.h"
#include "store/learn/token_drop.h"
#include "store/read/groups.h"

#include "estimator/profile/profile.h"

#include <kvterrace/basis.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The variants that a ladder may add to raw and lossless. */
#define LADDER_VARIANTS_MAX (KVT_VARIANTS_MAX - 2u)

/* Says in a note that is empty how many rungs a layout leaves out that lets no token go. */
static void ladder_note_left_out(const kvt_store_options *options, kvt_profile *profile,
                                 const kvt_layout *layout, char *note, size_t note_size)
{
    kvt_layout dropping = *layout;
    kvt_codec_curve rungs[PROFILE_RUNGS_MAX];
    uint32_t count = 0, left_out = 0;
    char unused[256];
    dropping.tokens_may_drop = 1;
    if (layout->tokens_may_drop || note_size == 0 || note[0] != '\0') return;
    if (profile_rungs_read(profile, &dropping, options->loss.ladder_model,
                           options->loss.ladder_class, rungs, PROFILE_RUNGS_MAX, &count, unused,
                           sizeof unused) != KVT_OK)
        return;
    for (uint32_t i = 0; i < count; i++)
        left_out += kvt_variant_drops_tokens(rungs[i].variant);
    if (left_out == 0) return;
    (void)snprintf(note, note_size,
                   "the ladder has %u variants that drop tokens: no entry is offered them, because "
                   "the ladder's layout does not say that tokens may be dropped",
                   (unsigned)left_out);
}

/* Warns in a note that is empty of rungs that rest on other models. */
static void ladder_note_other_models(const kvt_store *store, const kvt_store_options *options,
                                     char *note, size_t note_size)
{
    const char *model = options->loss.ladder_model;
    if (model == NULL || strcmp(model, PROFILE_ANY_8_BIT) != 0) return;
    if (note_size == 0 || note[0] != '\0') return;
    if (store->ladder_count == 0)
        (void)snprintf(note, note_size,
                       "the ladder is empty: the bounds of 8 bits of other models pass "
                       "store.loss_limit");
    else
        (void)snprintf(note, note_size,
                       "8-bit variants are offered without a calibration of this model: its loss "
                       "is taken to be below %g, the largest bound of the models in the profile",
                       store->ladder[0].loss_upper);
}

/* Brings a variant's bound for entries to the scale of the mean limit, so that one comparison with
 * one bound keeps both limits, also once observed losses scale it. A variant whose entries were not
 * looked at keeps no limit of theirs: false. */
static bool ladder_scale(const kvt_store_options *options, kvt_codec_curve *variant)
{
    const double mean = options->loss.loss_limit, entry = options->loss.entry_loss_limit;
    if (entry >= 1.0) return true;
    if (variant->loss_entry == 0.0) return false;
    variant->loss_upper = fmax(variant->loss_upper, variant->loss_entry / entry * mean);
    return true;
}

/* Whether a variant is beyond the limit only because its class was not measured: once observations
 * have taken the place of the widening (kvt_offer_build), its bound may be within. A bound of 1 was
 * cut, so it does not tell. */
static bool ladder_waits(double limit, const kvt_codec_curve *variant)
{
    const double measured = variant->loss_upper / fmax(variant->loss_widening, 1.0);
    return fmax(measured, variant->loss) <= limit && variant->loss_entry < 1.0;
}

uint32_t ladder_limit(const kvt_store_options *options, kvt_codec_curve *rungs, uint32_t count)
{
    const double limit = options->loss.loss_limit;
    kvt_codec_curve waiting[PROFILE_RUNGS_MAX];
    uint32_t kept = 0, waiting_count = 0;
    assert(count <= PROFILE_RUNGS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        if (!ladder_scale(options, &rungs[i])) continue;
        if (rungs[i].loss_upper <= limit)
            rungs[kept++] = rungs[i];
        else if (ladder_waits(limit, &rungs[i]))
            waiting[waiting_count++] = rungs[i];
    }
    profile_ladder_choose(rungs, &kept, LADDER_VARIANTS_MAX);
    if (kept == LADDER_VARIANTS_MAX) return kept;
    profile_ladder_choose(waiting, &waiting_count, LADDER_VARIANTS_MAX - kept);
    memcpy(&rungs[kept], waiting, waiting_count * sizeof waiting[0]);
    return kept + waiting_count;
}

kvt_status ladder_open(kvt_store *store, const kvt_store_options *options, kvt_profile *profile,
                       char *note, size_t note_size, char *message, size_t message_size)
{
    kvt_layout layout = options->loss.ladder_layout;
    char reason[256] = "";
    if (!options->loss.ladder) return KVT_OK;
    if (profile == NULL) {
        (void)snprintf(message, message_size, "a calibrated ladder needs a profile");
        return KVT_E_ARGUMENT;
    }
    if (layout.tokens_may_drop > 1) {
        (void)snprintf(message, message_size, "ladder_layout: tokens_may_drop is 0 or 1");
        return KVT_E_ARGUMENT;
    }
    layout.tokens = 256;
    store->ladder_layout = layout;
    kvt_codec_curve rungs[PROFILE_RUNGS_MAX];
    uint32_t count = 0;
    kvt_status status =
        profile_rungs_read(profile, &layout, options->loss.ladder_model, options->loss.ladder_class,
                           rungs, PROFILE_RUNGS_MAX, &count, reason, sizeof reason);
    _Static_assert(STORE_PLANES_MAX == PROFILE_RUNGS_MAX, "all rungs of a calibration");
    if (status == KVT_OK)
        status =
            profile_planes_read(profile, &layout, options->loss.ladder_model,
                                options->loss.ladder_class, store->planes, &store->planes_count);
    store->ladder_count = ladder_limit(options, rungs, count);
    memcpy(store->ladder, rungs, store->ladder_count * sizeof rungs[0]);
    if (status == KVT_OK) ladder_note_other_models(store, options, note, note_size);
    if (status == KVT_OK) ladder_note_left_out(options, profile, &layout, note, note_size);
    if (status == KVT_OK) return KVT_OK;
    if (reason[0] == '\0') (void)snprintf(reason, sizeof reason, "%s", kvt_status_text(status));
    (void)snprintf(message, message_size, "profile %s: no ladder: %s",
                   options->learning.profile_path, reason);
    return status == KVT_MISS ? KVT_E_MISMATCH : status;
}

kvt_status ladder_take_bases(kvt_store *store, kvt_profile *profile, char *note, size_t note_size)
{
    for (uint32_t i = 0; i < store->ladder_count; i++) {
        kvt_codec_curve rung = store->ladder[i];
        profile_basis basis;
        if (bases_has(store, rung.variant)) continue;
        kvt_status status =
            profile_basis_get(profile, rung.variant.rate >> PROFILE_BASIS_SHIFT, &basis);
        if (status == KVT_OK) status = kvt_basis_add(store, basis.object, basis.bytes);
        profile_basis_free(&basis);
        if (status == KVT_OK || status == KVT_EXISTS || status == KVT_MISS) continue;
        if (status == KVT_E_MEMORY) return status;
        if (note_size != 0 && note[0] == '\0')
            (void)snprintf(
                note, note_size, "the basis %05X of the ladder was not taken from the profile: %s",
                (unsigned)(rung.variant.rate >> PROFILE_BASIS_SHIFT), kvt_status_text(status));
    }
    return KVT_OK;
}

/* The condition under which an entry may have a variant. */
typedef enum ladder_need {
    LADDER_NEEDS_LOSS = 0,   /* a layout of the ladder */
    LADDER_NEEDS_DROP = 1,   /* and that tokens may go, */
    LADDER_NEEDS_SCORES = 2, /* and scores */
    LADDER_NEEDS = 3
} ladder_need;

static ladder_need ladder_need_of(kvt_variant variant)
{
    if (!kvt_variant_drops_tokens(variant)) return LADDER_NEEDS_LOSS;
    return codecs_drop_method(variant) == KVT_DROP_SCORES ? LADDER_NEEDS_SCORES : LADDER_NEEDS_DROP;
}

/* The speed of a rung that can be measured nowhere, because its basis is not there: that of a wide
 * span on a processor without AVX-512 (docs/codecs/transform.md), until gets have shown another. */
#define LADDER_UNTIMED_BYTES_PER_S 6e7

/* Adds a rung to the variants, with speeds that are measured where the profile has none. */
static kvt_status ladder_add_rung(kvt_store *store, const cost_profile *profile,
                                  kvt_codec_curve *rung)
{
    kvt_cost_model *costs = &store->costs;
    if (costs->variant_count == KVT_VARIANTS_MAX) return KVT_OK;
    if (!(rung->encode_bytes_per_s > 0) || !(rung->decode_bytes_per_s > 0)) {
        /* Measure the speeds of a rung that the profile has none of. A rung without its basis stays
         * one: entries may have its form, and the basis may come. */
        kvt_codec_curve speeds;
        kvt_status status = costs_measure_variant(profile, rung->variant, &speeds);
        if (status == KVT_E_MISMATCH && !bases_has(store, rung->variant)) {
            speeds.encode_bytes_per_s = speeds.decode_bytes_per_s = LADDER_UNTIMED_BYTES_PER_S;
            status = KVT_OK;
        }
        if (status != KVT_OK) return status;
        rung->encode_bytes_per_s = speeds.encode_bytes_per_s;
        rung->decode_bytes_per_s = speeds.decode_bytes_per_s;
    }
    costs->variants[costs->variant_count++] = *rung;
    return KVT_OK;
}

kvt_status ladder_add_costs(kvt_store *store, const cost_profile *profile)
{
    uint32_t *const ends[LADDER_NEEDS] = {&store->whole_variants, &store->unscored_variants, NULL};
    store->exact_variants = store->costs.variant_count;
    for (int need = 0; need < LADDER_NEEDS; need++) {
        for (uint32_t i = 0; i < store->ladder_count; i++) {
            kvt_codec_curve *rung = &store->ladder[i];
            if ((int)ladder_need_of(rung->variant) != need) continue;
            kvt_status status = ladder_add_rung(store, profile, rung);
            if (status != KVT_OK) return status;
        }
        if (ends[need] != NULL) *ends[need] = store->costs.variant_count;
    }
    assert(store->exact_variants <= store->whole_variants);
    assert(store->unscored_variants <= store->costs.variant_count);
    return KVT_OK;
}

bool ladder_allows(const kvt_store *store, const kvt_layout *layout)
{
    const kvt_layout *ours = &store->ladder_layout;
    return layout->layers == ours->layers && groups_has_shape(ours, layout) &&
           kvt_layout_sides(layout) == kvt_layout_sides(ours);
}

/* Whether every drop variant keeps some of an entry: under a small share a short entry late in its
 * chain has none of the tokens that the chain keeps. */
static bool ladder_keeps_some(const kvt_store *store, const kvt_layout *layout,
                              uint32_t first_position)
{
    for (uint32_t i = store->whole_variants; i < store->costs.variant_count; i++) {
        uint32_t tokens, sets;
        if (codecs_kept_tokens(layout, first_position, store->costs.variants[i].variant, &tokens,
                               &sets) != KVT_OK)
            return false;
    }
    return true;
}

bool ladder_wants_scores(const kvt_store *store, const kvt_layout *layout)
{
    return store->unscored_variants < store->costs.variant_count && layout->tokens_may_drop &&
           ladder_allows(store, layout);
}

uint32_t ladder_variants(const kvt_store *store, const store_entry *entry, bool scored)
{
    const kvt_layout *layout = &entry->kind->layout;
    if (!ladder_allows(store, layout)) return store->exact_variants;
    const uint32_t all = store->costs.variant_count;
    if (!layout->tokens_may_drop || store->whole_variants == all) return store->whole_variants;
    if (!ladder_keeps_some(store, layout, entry->first_position)) return store->whole_variants;
    return scored || token_drop_is_scored(entry) ? all : store->unscored_variants;
}
