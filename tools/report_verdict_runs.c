/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict_runs.c - verdicts on replays and comparisons: the engine beside the strongest of
 * the others, seed by seed.
 *
 * A ratio is the geometric mean over the seeds that both policies ran; its interval is Student's,
 * on logarithms, at 95 %. One seed has no interval, and no sentence then claims more than an order.
 * One thread.
 */
#include "profile_document.h"
#include "report.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define VERDICT_OURS         "utility"
#define VERDICT_QUALITY_STEP 1e-4 /* a smaller difference of mean quality is none */
#define VERDICT_P99_REQUESTS 500u /* below, a 99th percentile is one or two requests */
#define VERDICT_SEEDS        5u   /* fewer make wide intervals */

/* One policy beside another, over the seeds of both. */
typedef struct verdict_pair {
    const char *other;
    unsigned seeds;
    double ours, others; /* means */
    double ratio, low, high;
} verdict_pair;

static const struct {
    const char *key, *name, *in_short;
} verdict_metrics[] = {
    {"ttft_s_mean", "Mean time to first token", "the mean"},
    {"ttft_s_p50", "Median", "the median"},
    {"ttft_s_p99", "99th percentile", "the 99th percentile"},
};

#define VERDICT_METRICS (sizeof verdict_metrics / sizeof verdict_metrics[0])

/* The quantile of Student's distribution for a two-sided interval of 95 %. */
static double verdict_quantile(unsigned freedom)
{
    static const double quantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                       2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                       2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                       2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    const unsigned count = sizeof quantiles / sizeof quantiles[0];
    if (freedom == 0) return NAN;
    return quantiles[(freedom < count ? freedom : count) - 1];
}

/* The run of a policy with the seed of `like`; NULL when there is none. */
static const json_t *verdict_find(const json_t *results, const char *policy, const json_t *like)
{
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        if (strcmp(view_text(row, "policy"), policy) == 0 &&
            json_equal(json_object_get(row, "seed"), json_object_get(like, "seed")))
            return row;
    }
    return NULL;
}

static verdict_pair verdict_compare_pair(const json_t *results, const char *ours, const char *other,
                                         const char *key)
{
    verdict_pair pair = {.other = other};
    double sum = 0.0, squares = 0.0;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        if (strcmp(view_text(row, "policy"), ours) != 0) continue;
        double a = view_number(row, key, 0.0);
        double b = view_number(verdict_find(results, other, row), key, 0.0);
        if (a <= 0.0 || b <= 0.0) continue;
        double step = log(a / b);
        pair.ours += a;
        pair.others += b;
        sum += step;
        squares += step * step;
        pair.seeds++;
    }
    if (pair.seeds == 0) return pair;
    const double count = pair.seeds;
    double variance = pair.seeds > 1 ? fmax(0.0, squares - sum * sum / count) / (count - 1.0) : 0.0;
    double reach = verdict_quantile(pair.seeds - 1) * sqrt(variance / count);
    pair.ours /= count;
    pair.others /= count;
    pair.ratio = exp(sum / count);
    pair.low = exp(sum / count - reach);
    pair.high = exp(sum / count + reach);
    return pair;
}

/* The other policy with the lowest value, the engine's bound and an empty store left out, as long
 * as there is one. */
static verdict_pair verdict_strongest(const json_t *results, const char *ours, const char *key)
{
    verdict_pair best = {0};
    for (int round = 0; round < 2 && best.seeds == 0; round++) {
        const json_t *row;
        size_t i;
        json_array_foreach(results, i, row)
        {
            const char *other = view_text(row, "policy");
            if (strcmp(other, ours) == 0 || strcmp(other, "oracle") == 0) continue;
            if (round == 0 && strcmp(other, "none") == 0) continue;
            verdict_pair pair = verdict_compare_pair(results, ours, other, key);
            if (pair.seeds > 0 && (best.seeds == 0 || pair.ratio > best.ratio)) best = pair;
        }
    }
    return best;
}

static double verdict_mean_of(const json_t *results, const char *policy, const char *key)
{
    double sum = 0.0;
    unsigned count = 0;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        double value = view_number(row, key, NAN);
        if (strcmp(view_text(row, "policy"), policy) != 0 || !isfinite(value)) continue;
        sum += value;
        count++;
    }
    return count > 0 ? sum / count : NAN;
}

/* What may be said of a pair: an order needs an interval that leaves out 1, and quality. */
static const char *verdict_state(const verdict_pair *pair, double quality_less)
{
    if (pair->seeds < 2) return "note";
    if (pair->low > 1.0) return "behind";
    if (pair->high >= 1.0) return "level";
    return quality_less > VERDICT_QUALITY_STEP ? "note" : "ahead";
}

static const char *verdict_words(const char *state, const verdict_pair *pair)
{
    if (strcmp(state, "ahead") == 0) return "is ahead of";
    if (strcmp(state, "behind") == 0) return "is behind";
    if (strcmp(state, "level") == 0) return "cannot be told from";
    if (pair->ratio > 1.0) return "takes longer than";
    return pair->ratio < 1.0 ? "takes less than" : "takes as long as";
}

/* How much mean quality the engine gives away to the other policy, and the words for it. */
static double verdict_quality(const json_t *results, const char *other, char *text, size_t size)
{
    double ours = verdict_mean_of(results, VERDICT_OURS, "quality_mean");
    double others = verdict_mean_of(results, other, "quality_mean");
    text[0] = '\0';
    if (!isfinite(ours) || !isfinite(others)) return 0.0;
    (void)snprintf(text, size, "; quality %.4f against %.4f%s", ours, others,
                   others - ours > VERDICT_QUALITY_STEP ? ", so it pays with quality" : "");
    return others - ours;
}

static const char *verdict_say_metric(const json_t *results, size_t metric, json_t *verdict)
{
    const char *key = verdict_metrics[metric].key;
    verdict_pair pair = verdict_strongest(results, VERDICT_OURS, key);
    if (pair.seeds == 0) return "";
    char ours[VERDICT_NUMBER_BYTES], others[VERDICT_NUMBER_BYTES], interval[96], quality[96];
    double less = verdict_quality(results, pair.other, quality, sizeof quality);
    const char *state = verdict_state(&pair, less);
    if (pair.seeds > 1)
        (void)snprintf(interval, sizeof interval, " [%.3f, %.3f] over %u seeds", pair.low,
                       pair.high, pair.seeds);
    else
        (void)snprintf(interval, sizeof interval, ", one seed, so without an interval");
    verdict_say(verdict, state,
                "%s: %s %s %s, the strongest of the others: %s against %s, ratio %.3f%s%s.",
                verdict_metrics[metric].name, VERDICT_OURS, verdict_words(state, &pair), pair.other,
                verdict_seconds(ours, pair.ours), verdict_seconds(others, pair.others), pair.ratio,
                interval, quality);
    if (strcmp(state, "behind") == 0)
        verdict_next(verdict,
                     "Keep store.policy = %s for this workload, or give utility's tiers another "
                     "size and replay again.",
                     pair.other);
    return state;
}

static void verdict_say_overload(const json_t *results, json_t *verdict)
{
    char names[VERDICT_NAMES_BYTES] = "";
    double most = 0.0;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        if (!json_is_null(json_object_get(row, "ttft_s_mean"))) continue;
        verdict_list(names, view_text(row, "policy"));
        most = fmax(most, fmax(view_number(row, "rho", 0.0), view_number(row, "rho_peak", 0.0)));
    }
    if (names[0] == '\0') return;
    verdict_say(verdict, "warning",
                "No mean exists for %s: the offered load reaches %.2f of the servers, so that the "
                "queue grows as long as it lasts.",
                names, most);
    verdict_next(verdict, "Lower workload.rate or raise replay.servers until every peak rho stays "
                          "below 1.");
}

/* The share of what could be saved at most, and how much that is. */
static void verdict_say_bound(const json_t *results, json_t *verdict)
{
    char most[VERDICT_NUMBER_BYTES], got[VERDICT_NUMBER_BYTES];
    double bound = verdict_mean_of(results, VERDICT_OURS, "bound_saved_s_per_request");
    double saved = verdict_mean_of(results, VERDICT_OURS, "achieved_saved_s_per_request");
    if (!isfinite(bound) || !isfinite(saved) || bound <= 0.0) return;
    verdict_say(verdict, "note",
                "Distance: no policy that keeps an entry's form between two uses can save more "
                "than %s a request; utility saves %s, %.1f %% of that.",
                verdict_seconds(most, bound), verdict_seconds(got, saved), 100.0 * saved / bound);
}

static void verdict_say_live(const json_t *results, json_t *verdict)
{
    double wrong = 0.0, checked = 0.0;
    bool live = false, agree = true;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        if (strcmp(view_text(row, "mode"), "live") != 0) continue;
        live = true;
        wrong += view_number(row, "wrong_bytes", 0.0);
        checked += view_number(row, "verified_gets", 0.0);
        agree = agree && !json_is_false(json_object_get(row, "moves_match"));
    }
    if (!live) return;
    bool sound = wrong == 0.0 && agree;
    verdict_say(verdict, sound ? "note" : "warning",
                "Bytes: %.0f gets were compared with what was put, %.0f gave back wrong bytes; the "
                "moves %s the store's counters.",
                checked, wrong, agree ? "agree with" : "differ from");
    if (!sound)
        verdict_next(verdict, "Keep the command and its seed, and report this as a defect.");
}

/* The policy with the lowest mean, in a run without the engine. */
static void verdict_say_lowest(const json_t *results, json_t *verdict)
{
    const char *lowest = NULL;
    double least = INFINITY;
    char text[VERDICT_NUMBER_BYTES];
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        double mean = verdict_mean_of(results, view_text(row, "policy"), "ttft_s_mean");
        if (!(mean < least) || strcmp(view_text(row, "policy"), "oracle") == 0) continue;
        least = mean;
        lowest = view_text(row, "policy");
    }
    if (lowest != NULL)
        verdict_say(verdict, "note",
                    "Of these policies %s has the lowest mean time to first token, %s.", lowest,
                    verdict_seconds(text, least));
    verdict_next(verdict, "Run again with utility among the policies: --policy "
                          "none,lru,lru-leaf,gdsf,utility.");
}

/* Every other policy in every metric, for the page's figure: "ratios" of the verdict. */
static void verdict_add_ratios(const json_t *results, size_t metrics, json_t *verdict)
{
    json_t *list = json_array();
    char names[VERDICT_NAMES_BYTES] = VERDICT_OURS;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        const char *other = view_text(row, "policy");
        const size_t before = strlen(names);
        verdict_list(names, other);
        if (strlen(names) == before || strcmp(other, "oracle") == 0) continue;
        for (size_t metric = 0; metric < metrics; metric++) {
            const char *key = verdict_metrics[metric].key;
            verdict_pair pair = verdict_compare_pair(results, VERDICT_OURS, other, key);
            if (pair.seeds == 0) continue;
            (void)json_array_append_new(
                list, json_pack("{s:s, s:s, s:o, s:o, s:o, s:I}", "policy", other, "metric", key,
                                "ratio", view_real(pair.ratio), "low", view_real(pair.low), "high",
                                view_real(pair.high), "seeds", (json_int_t)pair.seeds));
        }
    }
    (void)json_object_set_new(verdict, "ratios", list);
}

static void verdict_say_metrics(const json_t *document, const json_t *results, json_t *verdict)
{
    char behind[VERDICT_NAMES_BYTES] = "", behind_count = 0;
    double requests = view_number(json_object_get(document, "workload"), "requests", 0.0);
    unsigned judged = 0, seeds = 0;
    bool p99 = requests >= VERDICT_P99_REQUESTS;
    for (size_t metric = 0; metric < VERDICT_METRICS; metric++) {
        if (!p99 && strcmp(verdict_metrics[metric].key, "ttft_s_p99") == 0) continue;
        const char *state = verdict_say_metric(results, metric, verdict);
        judged += state[0] != '\0' && strcmp(state, "note") != 0;
        if (strcmp(state, "behind") != 0) continue;
        verdict_list(behind, verdict_metrics[metric].in_short);
        behind_count++;
    }
    verdict_add_ratios(results, p99 ? VERDICT_METRICS : VERDICT_METRICS - 1, verdict);
    seeds = verdict_strongest(results, VERDICT_OURS, "ttft_s_p50").seeds;
    if (behind_count > 0)
        verdict_say(verdict, "behind", "Where it is behind: %s.", behind);
    else if (judged > 0)
        verdict_say(verdict, "note", "Where it is behind: nowhere that %u seeds can tell.", seeds);
    if (!p99)
        verdict_say(verdict, "note", "%.0f requests are too few for a 99th percentile.", requests);
    if (seeds > 0 && seeds < VERDICT_SEEDS)
        verdict_next(verdict, "Run again with --seeds 10: %u seed%s %s.", seeds,
                     seeds == 1 ? "" : "s",
                     seeds == 1 ? "gives no interval" : "give wide intervals");
    if (seeds == 0)
        verdict_next(verdict, "Run again with rivals: --policy none,lru,lru-leaf,gdsf,utility.");
}

void verdict_replay(const json_t *document, json_t *verdict)
{
    const json_t *results = json_object_get(document, "results");
    bool live = false, engine = false;
    const json_t *row;
    size_t i;
    if (json_array_size(results) == 0) return;
    json_array_foreach(results, i, row)
    {
        live = live || strcmp(view_text(row, "mode"), "live") == 0;
        engine = engine || strcmp(view_text(row, "policy"), VERDICT_OURS) == 0;
    }
    if (json_is_true(json_object_get(document, "profile_busy"))) {
        verdict_say(verdict, "warning",
                    "The machine was busy while its profile was measured: these times are too "
                    "uncertain to compare anything by.");
        verdict_next(verdict, "Measure the profile again when the machine is quiet.");
    }
    if (live) verdict_say_live(results, verdict);
    verdict_say_overload(results, verdict);
    if (engine) {
        verdict_say_metrics(document, results, verdict);
        verdict_say_bound(results, verdict);
    } else {
        verdict_say_lowest(results, verdict);
    }
    verdict_next(verdict, live ? "Run the policies in the other order: a difference counts when it "
                                 "repeats."
                               : "Run the same workload on this machine's devices: --mode live.");
}

/* ---- comparisons ---- */

#define COMPARE_ROWS_NAMED 5u

typedef struct compare_sums {
    unsigned rows, win, tie, lose, unmatched, unstable;
    double least, most; /* of the ratios of rows with a mean */
    char hardest[VERDICT_NAMES_BYTES];
} compare_sums;

static void compare_say_behind(const char *table, const json_t *row, json_t *verdict)
{
    const json_t *interval = json_object_get(row, "ratio_95");
    verdict_say(verdict, "behind",
                "Against %s (%s, SSD at %.3g GB/s): %s takes %.3f [%.3f, %.3f] of its mean time to "
                "first token, at quality %.4f against %.4f.",
                view_text(row, "against"), table, view_number(row, "ssd_bytes_per_s", 0.0) * 1e-9,
                view_text(row, "ours"), view_number(row, "ratio", NAN),
                json_number_value(json_array_get(interval, 0)),
                json_number_value(json_array_get(interval, 1)),
                view_number(row, "our_quality_mean", NAN), view_number(row, "quality_mean", NAN));
}

static void compare_count(const json_t *row, compare_sums *sums)
{
    const char *state = view_text(row, "verdict");
    double ratio = view_number(row, "ratio", NAN);
    sums->rows++;
    sums->win += strcmp(state, "win") == 0;
    sums->tie += strcmp(state, "tie") == 0;
    sums->lose += strcmp(state, "lose") == 0;
    sums->unmatched += strcmp(state, "unmatched") == 0;
    sums->unstable += strcmp(state, "unstable") == 0;
    if (!isfinite(ratio)) return;
    sums->least = fmin(sums->least, ratio);
    if (ratio <= sums->most) return;
    sums->most = ratio;
    (void)snprintf(sums->hardest, sizeof sums->hardest, "%s", view_text(row, "against"));
}

void verdict_compare(const json_t *document, json_t *verdict)
{
    static const char *const tables[] = {"baselines", "mixes", "footprint"};
    compare_sums sums = {.least = INFINITY};
    const json_t *row;
    size_t i;
    for (size_t table = 0; table < 3; table++)
        json_array_foreach(json_object_get(document, tables[table]), i, row)
        {
            compare_count(row, &sums);
        }
    if (sums.rows == 0) return;
    verdict_say(verdict, sums.lose == 0 ? "ahead" : "note",
                "At equal or better quality the engine is ahead in %u of %u comparisons, level in "
                "%u and behind in %u (mean time to first token, 95 %% intervals over %.0f seeds); "
                "%u have no match and %u no mean.",
                sums.win, sums.rows, sums.tie, sums.lose,
                view_number(json_object_get(document, "configuration"), "seeds", 0.0),
                sums.unmatched, sums.unstable);
    const json_t *set = json_object_get(document, "configuration");
    if (view_number(set, "capacity_over_footprint", 0.0) >= 1.0) {
        verdict_say(verdict, "warning",
                    "The tiers hold %.2f times the raw bytes of the workload: nothing has to "
                    "leave, so that these ratios say little about policies.",
                    view_number(set, "capacity_over_footprint", 0.0));
        verdict_next(verdict, "Replay more of the workload, or set smaller tier capacities.");
    }
    if (isfinite(sums.least))
        verdict_say(verdict, "note",
                    "Its ratios lie from %.3f to %.3f; the strongest rival is %s. Medians and 99th "
                    "percentiles are not part of this comparison.",
                    sums.least, sums.most, sums.hardest);
    unsigned named = 0;
    for (size_t table = 0; table < 3; table++)
        json_array_foreach(json_object_get(document, tables[table]), i, row)
        {
            if (strcmp(view_text(row, "verdict"), "lose") != 0) continue;
            if (named++ < COMPARE_ROWS_NAMED) compare_say_behind(tables[table], row, verdict);
        }
    if (sums.lose == 0)
        verdict_say(verdict, "note", "Where it is behind: in none of these comparisons.");
    else if (named > COMPARE_ROWS_NAMED)
        verdict_say(verdict, "behind",
                    "It is behind in %u more comparisons, which the tables name.",
                    named - COMPARE_ROWS_NAMED);
    if (json_is_true(json_object_get(json_object_get(document, "configuration"), "quick")))
        verdict_next(verdict, "Run again without --quick: coarse grids and 3 seeds decide little.");
    verdict_next(verdict, sums.lose > 0 ? "Replay the cases where it is behind with --mode live "
                                          "before choosing a policy."
                                        : "Replay a trace of your own with --compare.");
}
