/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_match.c - which of our configurations stands against a contender, and what the paired
 * figures say. One thread.
 *
 * Matching uses the tuning seeds alone, judging the others alone.
 */
#include "base/order.h"
#include "compare.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

#define MATCH_DRAWS     4000u
#define MATCH_SEED      UINT64_C(0x636f6d70617265)
#define MATCH_SEEDS_MAX 1000u

bool compare_tuned(const compare_state *state, size_t trial, double *ttft_out, double *quality_out)
{
    const compare_sample *samples = state->trials[trial].samples;
    *ttft_out = *quality_out = 0.0;
    for (uint32_t seed = state->plan->seeds; seed < state->seed_count; seed++) {
        if (!samples[seed].done || !samples[seed].stable) return false;
        *ttft_out += samples[seed].ttft_s;
        *quality_out += samples[seed].quality;
    }
    /* Divided once, so that a mean of ones is one. */
    *ttft_out /= (double)state->plan->tuning_seeds;
    *quality_out /= (double)state->plan->tuning_seeds;
    return true;
}

/* Whether a trial's quality is at least the floor's on every tuning seed. */
static bool match_is_as_good(const compare_state *state, size_t trial, size_t floor)
{
    const compare_sample *ours = state->trials[trial].samples;
    const compare_sample *theirs = state->trials[floor].samples;
    for (uint32_t seed = state->plan->seeds; seed < state->seed_count; seed++)
        if (ours[seed].quality < theirs[seed].quality) return false;
    return true;
}

size_t compare_pick(const compare_state *state, size_t floor)
{
    const compare_setup *wanted = &state->trials[floor].setup;
    size_t best = COMPARE_NONE;
    double least = 0.0, ttft, quality;
    /* A contender without loss is matched by exact variants: a lossy one that is as good on these
     * seeds is so by chance. */
    bool exact = compare_tuned(state, floor, &ttft, &quality) && quality >= 1.0;
    for (size_t i = 0; i < state->trial_count; i++) {
        const compare_setup *setup = &state->trials[i].setup;
        if (setup->role != COMPARE_OURS || setup->ssd_bytes_per_s != wanted->ssd_bytes_per_s ||
            setup->ssd_capacity_bytes != wanted->ssd_capacity_bytes ||
            (exact && setup->loss_limit > 0.0) || setup->spread.sigma != wanted->spread.sigma ||
            setup->spread.repeatability != wanted->spread.repeatability ||
            !compare_tuned(state, i, &ttft, &quality) || !match_is_as_good(state, i, floor)) {
            continue;
        }
        if (best != COMPARE_NONE && ttft >= least) continue;
        best = i;
        least = ttft;
    }
    return best;
}

void compare_match_again(const compare_state *state, compare_matches *matches)
{
    for (size_t i = 0; i < matches->count; i++) {
        compare_match *match = &matches->list[i];
        size_t ours = compare_pick(state, match->against);
        double ttft, quality;
        if (ours != COMPARE_NONE && compare_tuned(state, match->against, &ttft, &quality)) {
            match->ours = ours;
        }
    }
}

void compare_mark_fastest(const compare_state *state, compare_matches *matches)
{
    double levels[REPLAY_LEVELS_MAX], ttft, quality;
    uint32_t count = compare_levels(state->plan, levels);
    for (uint32_t level = 0; level < count; level++) {
        compare_match *fastest = NULL;
        double least = 0.0;
        for (size_t i = 0; i < matches->count; i++) {
            compare_match *match = &matches->list[i];
            if (match->kind != REPLAY_ROW_BASELINE) continue;
            if (!compare_tuned(state, match->against, &ttft, &quality)) continue;
            if (quality < levels[level] || (fastest != NULL && ttft >= least)) continue;
            fastest = match;
            least = ttft;
        }
        if (fastest != NULL) fastest->fastest_at |= UINT32_C(1) << level;
    }
}

/* The 95 % interval of drawn values, which it sorts. */
static compare_interval match_quantiles(double *drawn)
{
    qsort(drawn, MATCH_DRAWS, sizeof *drawn, base_order_doubles);
    size_t cut = MATCH_DRAWS / 40; /* 2.5 % on either side */
    return (compare_interval){drawn[cut], drawn[MATCH_DRAWS - 1 - cut]};
}

void compare_bootstrap(const double *theirs, const double *ours, uint32_t count,
                       compare_interval *difference_out, compare_interval *ratio_out)
{
    static const compare_interval nothing = {0.0, 0.0};
    double *drawn = malloc(2 * MATCH_DRAWS * sizeof *drawn);
    *difference_out = *ratio_out = nothing;
    if (drawn == NULL || count == 0) {
        free(drawn);
        return;
    }
    replay_random random;
    replay_random_seed(&random, MATCH_SEED); /* equal samples, equal intervals */
    for (uint32_t draw = 0; draw < MATCH_DRAWS; draw++) {
        double their_sum = 0.0, our_sum = 0.0;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t pair = replay_random_below(&random, count);
            their_sum += theirs[pair];
            our_sum += ours[pair];
        }
        drawn[draw] = (their_sum - our_sum) / (double)count;
        drawn[MATCH_DRAWS + draw] = their_sum > 0.0 ? our_sum / their_sum : 1.0;
    }
    *difference_out = match_quantiles(drawn);
    *ratio_out = match_quantiles(drawn + MATCH_DRAWS);
    free(drawn);
}

static double match_mean(const double *values, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return count > 0 ? sum / (double)count : 0.0;
}

/* Quality counts as equal within what rounding does to a sum over a million requests. */
static replay_verdict match_verdict(const replay_compare_row *row)
{
    if (row->seeds < 2) return REPLAY_UNSTABLE;
    if (row->our_quality < row->quality - 1e-9) return REPLAY_UNMATCHED;
    if (row->ratio_high < 1.0) return REPLAY_WIN;
    return row->ratio_low > 1.0 ? REPLAY_LOSE : REPLAY_TIE;
}

void compare_judge(const compare_state *state, size_t against, size_t ours, replay_compare_row *row)
{
    const compare_sample *theirs = state->trials[against].samples;
    const compare_sample *mine = state->trials[ours].samples;
    double ttft[2][MATCH_SEEDS_MAX], quality[2][MATCH_SEEDS_MAX];
    compare_interval span, ratio;
    row->seeds = row->skipped = 0;
    row->rho = row->our_rho = 0.0;
    for (uint32_t seed = 0; seed < state->plan->seeds; seed++) {
        if (theirs[seed].rho_peak > row->rho) row->rho = theirs[seed].rho_peak;
        if (mine[seed].rho_peak > row->our_rho) row->our_rho = mine[seed].rho_peak;
        if (!theirs[seed].done || !mine[seed].done) continue; /* interrupted */
        if (!theirs[seed].stable || !mine[seed].stable) {
            row->skipped++;
            continue;
        }
        ttft[0][row->seeds] = theirs[seed].ttft_s;
        ttft[1][row->seeds] = mine[seed].ttft_s;
        quality[0][row->seeds] = theirs[seed].quality;
        quality[1][row->seeds++] = mine[seed].quality;
    }
    row->ttft_s = match_mean(ttft[0], row->seeds);
    row->our_ttft_s = match_mean(ttft[1], row->seeds);
    row->quality = match_mean(quality[0], row->seeds);
    row->our_quality = match_mean(quality[1], row->seeds);
    row->ratio = row->ttft_s > 0.0 ? row->our_ttft_s / row->ttft_s : 0.0;
    row->saved_s = row->ttft_s - row->our_ttft_s;
    compare_bootstrap(ttft[0], ttft[1], row->seeds, &span, &ratio);
    row->saved_s_low = span.low;
    row->saved_s_high = span.high;
    row->ratio_low = ratio.low;
    row->ratio_high = ratio.high;
    compare_bootstrap(quality[1], quality[0], row->seeds, &span, &ratio);
    row->quality_low = span.low;
    row->quality_high = span.high;
    row->verdict = match_verdict(row);
}

/* The variant's name at a place of the ladder. */
static void match_rung(const compare_state *state, uint32_t rung, char text[64])
{
    kvt_variant_format(state->plan->base->model.variants[rung].variant, text, 64);
}

/* A tier's part: "A", or "A/B 40%" where 40 % of the entries get B. */
static void match_label_tier(const compare_state *state, const replay_blend *blend, int tier,
                             char text[REPLAY_LABEL_BYTES])
{
    char first[64], second[64];
    match_rung(state, blend->rung[tier][0], first);
    match_rung(state, blend->rung[tier][1], second);
    if (blend->share[tier] <= 0.0 || strcmp(first, second) == 0) {
        snprintf(text, REPLAY_LABEL_BYTES, "%s", first);
    } else {
        snprintf(text, REPLAY_LABEL_BYTES, "%.36s/%.36s %.1f%%", first, second,
                 blend->share[tier] * 100.0);
    }
}

/* A mix's label: one part when all tiers have the same variants, else one per tier. */
static void match_label_mix(const compare_state *state, const replay_blend *blend,
                            char label[REPLAY_LABEL_BYTES])
{
    char parts[KVT_TIER_COUNT][REPLAY_LABEL_BYTES];
    int count = 0;
    bool same = true;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (!state->plan->base->model.present[tier]) continue;
        match_label_tier(state, blend, tier, parts[count]);
        if (count > 0 && strcmp(parts[count], parts[0]) != 0) same = false;
        count++;
    }
    if (same && count > 0) count = 1;
    size_t used = (size_t)snprintf(label, REPLAY_LABEL_BYTES, "mix");
    for (int i = 0; i < count && used < REPLAY_LABEL_BYTES; i++) {
        used += (size_t)snprintf(label + used, REPLAY_LABEL_BYTES - used, "%s%s",
                                 i > 0 ? " | " : " ", parts[i]);
    }
}

void compare_label(const compare_state *state, size_t trial, char label[REPLAY_LABEL_BYTES])
{
    const compare_setup *setup = &state->trials[trial].setup;
    char rung[64];
    if (setup->role == COMPARE_MIX) {
        match_label_mix(state, &setup->blend, label);
        return;
    }
    if (strcmp(setup->policy, "none") == 0) {
        snprintf(label, REPLAY_LABEL_BYTES, "none");
        return;
    }
    if (strcmp(setup->policy, "utility") != 0 && strcmp(setup->policy, "adaptcache") != 0) {
        match_rung(state, setup->variant, rung);
        snprintf(label, REPLAY_LABEL_BYTES, "%s %s", setup->policy, rung);
        return;
    }
    if (setup->loss_limit <= 0.0) {
        snprintf(label, REPLAY_LABEL_BYTES, "%s exact forms", setup->policy);
    } else if (setup->loss_limit < 1.0) {
        snprintf(label, REPLAY_LABEL_BYTES, "%s alpha %.3g limit %.3g", setup->policy,
                 setup->alpha_s, setup->loss_limit);
    } else {
        snprintf(label, REPLAY_LABEL_BYTES, "%s alpha %.3g", setup->policy, setup->alpha_s);
    }
}
