/* SPDX-License-Identifier: Apache-2.0 */
/*
 * knapsack.c - the solver of knapsack.h for instances in arrays; prices.c finds its prices.
 *
 * At the best prices each entry takes the option with the highest score, which may ask too much of
 * a tier. Entries then give way by the steps that lose least score per byte, what room is left goes
 * to those who gain most, and a dozen entries are searched exactly. The solver divides windows
 * between units (windows_divide.c); benches and tests compare the engine with it.
 */
#include "sparse/decide/knapsack.h"

#include "base/number/number.h"

#include <assert.h>
#include <string.h>

#define KNAPSACK_EXACT   12u /* entries up to which the exact search is tried */
#define KNAPSACK_OPTIONS 32u
#define KNAPSACK_NODES   100000000u

/* Finds the option of an entry with the highest score above 0, KNAPSACK_NONE without one. Ties go
 * to the first option, so the passes of one search agree with each other. */
static uint32_t knapsack_best(const knapsack *k, uint32_t i, const double price[KNAPSACK_ROWS],
                              double *score_out)
{
    assert(k->first[i] <= k->first[i + 1]);
    uint32_t best = KNAPSACK_NONE;
    *score_out = 0.0;
    for (uint32_t o = k->first[i]; o < k->first[i + 1]; o++) {
        const uint64_t *bytes = &k->bytes[(size_t)o * KNAPSACK_ROWS];
        double score = k->value[o] - price[0] * (double)bytes[0] - price[1] * (double)bytes[1] -
                       price[2] * (double)bytes[2];
        if (score <= *score_out) continue;
        *score_out = score;
        best = o;
    }
    return best;
}

/* Answers a pass of the price search over every stride-th entry. */
static void knapsack_ask(const void *context, const double price[KNAPSACK_ROWS], uint32_t stride,
                         price_pass *out)
{
    assert(stride >= 1);
    const knapsack *k = context;
    for (uint32_t i = 0; i < k->entries; i += stride) {
        double score;
        uint32_t best = knapsack_best(k, i, price, &score);
        if (best == KNAPSACK_NONE) continue;
        out->value += score;
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
            out->used[tier] += (double)k->bytes[(size_t)best * KNAPSACK_ROWS + (size_t)tier];
    }
}

/* Bytes of a choice; KNAPSACK_NONE takes nothing. */
static uint64_t choice_bytes(const knapsack *k, uint32_t option, int tier)
{
    return option == KNAPSACK_NONE ? 0 : k->bytes[(size_t)option * KNAPSACK_ROWS + (size_t)tier];
}

/* Returns the value of a choice; KNAPSACK_NONE is worth nothing. */
static double choice_value(const knapsack *k, uint32_t option)
{
    return option == KNAPSACK_NONE ? 0.0 : k->value[option];
}

/* Returns the value of a choice less the shadow price of its bytes. */
static double choice_score(const knapsack *k, uint32_t option, const double price[KNAPSACK_ROWS])
{
    double score = choice_value(k, option);
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        score -= price[tier] * (double)choice_bytes(k, option, tier);
    return score;
}

/* Gives an entry another choice and brings the sums up to date. used and primal always describe
 * choice[]. */
static void choice_take(const knapsack *k, uint32_t *choice, knapsack_result *out, uint32_t i,
                        uint32_t option)
{
    assert(i < k->entries);
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        out->used[tier] += choice_bytes(k, option, tier) - choice_bytes(k, choice[i], tier);
    out->primal += choice_value(k, option) - choice_value(k, choice[i]);
    choice[i] = option;
}

/* Says whether a choice fits all tiers, and in here[] which of them. */
static bool choice_fits(const knapsack *k, const uint32_t *choice, const knapsack_result *out,
                        uint32_t i, uint32_t option, bool here[KNAPSACK_ROWS])
{
    assert(i < k->entries);
    bool fits = true;
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        uint64_t then =
            out->used[tier] + choice_bytes(k, option, tier) - choice_bytes(k, choice[i], tier);
        here[tier] = then <= k->capacity[tier];
        fits = fits && here[tier];
    }
    return fits;
}

/* Lets a step sink to its place in a heap whose least density stands first. */
void knapsack_sift(knapsack_step *steps, uint32_t count, uint32_t at)
{
    assert(at < count || count == 0);
    knapsack_step item = steps[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && steps[child + 1].density < steps[child].density) child++;
        if (steps[child].density >= item.density) break;
        steps[at] = steps[child];
        at = child;
    }
    steps[at] = item;
}

/* The step of an entry that loses least score per byte that it frees in an overfull tier. The
 * option KNAPSACK_NONE, which frees everything, is tried last. A step that would overfill another
 * tier is no step. */
static bool repair_step(const knapsack *k, const uint32_t *choice, const knapsack_result *out,
                        uint32_t i, int tier, knapsack_step *way)
{
    assert(i < k->entries && tier >= 0 && tier < KNAPSACK_ROWS);
    uint64_t now = choice_bytes(k, choice[i], tier);
    double score = choice_score(k, choice[i], out->price);
    bool found = false;
    if (now == 0) return false;
    for (uint32_t o = k->first[i]; o <= k->first[i + 1]; o++) {
        uint32_t option = o < k->first[i + 1] ? o : KNAPSACK_NONE;
        uint64_t then = choice_bytes(k, option, tier);
        bool fits = then < now;
        for (int other = 0; fits && other < KNAPSACK_ROWS; other++) {
            uint64_t more = choice_bytes(k, option, other);
            uint64_t less = choice_bytes(k, choice[i], other);
            if (other != tier && more > less) {
                fits = out->used[other] + (more - less) <= k->capacity[other];
            }
        }
        if (!fits) continue;
        double density = (score - choice_score(k, option, out->price)) / (double)(now - then);
        if (found && density >= way->density) continue;
        *way = (knapsack_step){density, i, option};
        found = true;
    }
    return found;
}

/* Makes an overfull placement fit, tier by tier, by the steps that lose least score per byte. A
 * tier that was made to fit stays so, because a step adds no bytes to a tier beyond its
 * capacity. */
static void knapsack_repair(const knapsack *k, uint32_t *choice, knapsack_step *steps,
                            knapsack_result *out)
{
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        uint32_t count = 0;
        if (out->used[tier] <= k->capacity[tier]) continue;
        for (uint32_t i = 0; i < k->entries; i++)
            if (repair_step(k, choice, out, i, tier, &steps[count])) count++;
        for (uint32_t at = count / 2; at-- > 0;)
            knapsack_sift(steps, count, at);
        while (out->used[tier] > k->capacity[tier] && count > 0) {
            knapsack_step way;
            /* The room that a step counted on may have gone to another. */
            bool again = repair_step(k, choice, out, steps[0].entry, tier, &way);
            if (again && way.density <= steps[0].density + 1e-300) {
                choice_take(k, choice, out, way.entry, way.option);
                again = repair_step(k, choice, out, way.entry, tier, &way);
            }
            if (again)
                steps[0] = way;
            else
                steps[0] = steps[--count];
            if (count > 0) knapsack_sift(steps, count, 0);
        }
    }
}

/* The option that an entry would rather have, among those that fit: most value for the least score
 * lost. A gain that costs no priced room comes first. */
static bool fill_step(const knapsack *k, const uint32_t *choice, const knapsack_result *out,
                      uint32_t i, knapsack_step *way)
{
    double value = choice_value(k, choice[i]);
    bool found = false;
    bool here[KNAPSACK_ROWS];
    for (uint32_t o = k->first[i]; o < k->first[i + 1]; o++) {
        if (k->value[o] <= value || !choice_fits(k, choice, out, i, o, here)) continue;
        double shadow_cost = 0.0;
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
            double more =
                (double)choice_bytes(k, o, tier) - (double)choice_bytes(k, choice[i], tier);
            shadow_cost += out->price[tier] * more;
        }
        double density = shadow_cost > 0.0 ? -(k->value[o] - value) / shadow_cost : -PRICE_UNKNOWN;
        if (found && density >= way->density) continue;
        *way = (knapsack_step){density, i, o};
        found = true;
    }
    return found;
}

/* Gives away what room is left, to the entries that gain most by it. Each turn either takes the
 * first step or puts it back with its present density, so the loop ends. */
static void knapsack_fill(const knapsack *k, uint32_t *choice, knapsack_step *steps,
                          knapsack_result *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < k->entries; i++)
        if (fill_step(k, choice, out, i, &steps[count])) count++;
    for (uint32_t at = count / 2; at-- > 0;)
        knapsack_sift(steps, count, at);
    while (count > 0) {
        knapsack_step way;
        bool again = fill_step(k, choice, out, steps[0].entry, &way);
        if (again && way.density <= steps[0].density) {
            choice_take(k, choice, out, way.entry, way.option);
            again = fill_step(k, choice, out, way.entry, &way);
        }
        if (again)
            steps[0] = way;
        else
            steps[0] = steps[--count];
        if (count > 0) knapsack_sift(steps, count, 0);
    }
}

/* An exact search for few entries: depth first, options in order of score, cut by the bound that
 * the prices give for the entries still to come. An option is looked at only if it beats every
 * smaller one, so what is dominated costs nothing. */
typedef struct exact_search {
    const knapsack *k;
    const double *price;
    uint32_t order[KNAPSACK_EXACT]
                  [KNAPSACK_OPTIONS + 1]; /* by falling score; KNAPSACK_NONE is none */
    double score[KNAPSACK_EXACT][KNAPSACK_OPTIONS + 1];
    uint32_t count[KNAPSACK_EXACT];
    uint32_t choice[KNAPSACK_EXACT];
    uint32_t best[KNAPSACK_EXACT];
    double rest[KNAPSACK_EXACT + 1]; /* best scores of the entries from here on */
    double best_value;
    uint64_t nodes;
} exact_search;

/* Tries the options of entry i and of all that follow it. The depth is at most KNAPSACK_EXACT. A
 * search that has looked at KNAPSACK_NODES options ends with the best choice so far, which is a
 * valid one. */
static void exact_visit(exact_search *search, uint32_t i, double value,
                        const uint64_t free[KNAPSACK_ROWS])
{
    assert(i <= search->k->entries && search->k->entries <= KNAPSACK_EXACT);
    const knapsack *k = search->k;
    if (i == k->entries) {
        if (value <= search->best_value) return;
        search->best_value = value;
        memcpy(search->best, search->choice, sizeof search->best);
        return;
    }
    double bound = value + search->rest[i + 1];
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        bound += search->price[tier] * (double)free[tier];
    for (uint32_t turn = 0; turn < search->count[i]; turn++) {
        uint32_t option = search->order[i][turn];
        if (bound + search->score[i][turn] <= search->best_value) return;
        if (++search->nodes > KNAPSACK_NODES) return;
        uint64_t left[KNAPSACK_ROWS];
        bool fits = true;
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
            uint64_t bytes = choice_bytes(k, option, tier);
            fits = fits && bytes <= free[tier];
            left[tier] = free[tier] - bytes;
        }
        if (!fits) continue;
        search->choice[i] = option;
        exact_visit(search, i + 1, value + choice_value(k, option), left);
    }
}

/* Says whether another option of the same entry is worth as much and takes no more. Of two equal
 * options the first one stays. */
static bool exact_dominated(const knapsack *k, uint32_t i, uint32_t option)
{
    if (k->value[option] <= 0.0) return true;
    for (uint32_t o = k->first[i]; o < k->first[i + 1]; o++) {
        bool no_larger = true;
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
            no_larger = no_larger && choice_bytes(k, o, tier) <= choice_bytes(k, option, tier);
        if (!no_larger || o == option) continue;
        if (k->value[o] > k->value[option] || (k->value[o] == k->value[option] && o < option)) {
            return true;
        }
    }
    return false;
}

/* Sorts the options of an entry by score, those that are dominated left out. KNAPSACK_NONE is
 * always in the list, so every entry can be left out. */
static void exact_sort(exact_search *search, uint32_t i)
{
    assert(i < KNAPSACK_EXACT);
    const knapsack *k = search->k;
    uint32_t count = 0;
    for (uint32_t o = k->first[i]; o <= k->first[i + 1]; o++) {
        uint32_t option = o < k->first[i + 1] ? o : KNAPSACK_NONE;
        if (option != KNAPSACK_NONE && exact_dominated(k, i, option)) continue;
        double score = choice_score(k, option, search->price);
        uint32_t at = count++;
        for (; at > 0 && search->score[i][at - 1] < score; at--) {
            search->score[i][at] = search->score[i][at - 1];
            search->order[i][at] = search->order[i][at - 1];
        }
        search->score[i][at] = score;
        search->order[i][at] = option;
    }
    search->count[i] = count;
    assert(count >= 1 && count <= KNAPSACK_OPTIONS + 1);
}

/* Improves a choice of few entries to the best one; with more it stays as it is. The choice never
 * gets worse, because the search starts with its value as the one to beat. */
static void knapsack_exact(const knapsack *k, uint32_t *choice, knapsack_result *out)
{
    if (k->entries > KNAPSACK_EXACT) return;
    exact_search search = {.k = k, .price = out->price, .best_value = out->primal};
    for (uint32_t i = k->entries; i-- > 0;) {
        if (k->first[i + 1] - k->first[i] > KNAPSACK_OPTIONS) return;
        exact_sort(&search, i);
        search.rest[i] = search.rest[i + 1] + search.score[i][0];
    }
    exact_visit(&search, 0, 0.0, k->capacity);
    if (search.best_value <= out->primal) return;
    for (uint32_t i = 0; i < k->entries; i++)
        choice_take(k, choice, out, i, search.best[i]);
}

/* Solves an instance: prices first, then the choices at these prices, made to fit, filled up, and
 * for a dozen entries exact. used <= capacity holds in every tier when it returns, and dual bounds
 * primal from above. */
void knapsack_solve(const knapsack *instance, uint32_t *choice, knapsack_step *steps,
                    knapsack_result *out)
{
    const knapsack *k = instance;
    price_search search = {
        .ask = knapsack_ask, .context = k, .entries = k->entries, .tolerance = 1e-10};
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        search.capacity[tier] = (double)k->capacity[tier];
        search.price[tier] = k->capacity[tier] > 0 ? 1e-12 : PRICE_CLOSED;
    }
    price_find(&search, 40);
    *out = (knapsack_result){.dual = search.best, .passes = search.passes};
    memcpy(out->price, search.best_price, sizeof out->price);
    for (uint32_t i = 0; i < k->entries; i++) {
        double score;
        choice[i] = KNAPSACK_NONE;
        choice_take(k, choice, out, i, knapsack_best(k, i, out->price, &score));
    }
    knapsack_repair(k, choice, steps, out);
    knapsack_fill(k, choice, steps, out);
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        assert(out->used[tier] <= k->capacity[tier] || k->entries == 0);
    knapsack_exact(k, choice, out);
}
