/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prices.c - the search for prices of knapsack.h.
 *
 * A sample moves one price at a time to where its tier is just full: what is asked for falls as
 * the price rises. That is coordinate descent on a convex function with as many corners as there
 * are entries, so it ends close to the least value. A larger sample, and then all entries, correct
 * what the smaller one had by chance, all prices at once: Newton's method on log(asked / capacity)
 * over log price, with the sample's slopes. By itself that would be lost in a small sample, where
 * one entry is a step.
 *
 * An instance that can narrow itself is given a box of prices before the last stage. Most entries
 * have one best option in the whole box, so a look inside costs a fraction of a pass.
 *
 * The file knows no entries: it sees an instance through two questions (price_ask, price_narrow).
 * It promises nothing about how close it comes; a caller that reports a bound proves it by a pass
 * of its own.
 */
#include "sparse/decide/knapsack.h"

#include "base/number/number.h"

#include <assert.h>
#include <string.h>

#define SEARCH_SAMPLE 4096u /* entries of the first sample, about */
#define SEARCH_MIDDLE                                                                              \
    65536u /* and of the second; the first stage over all where there are fewer                    \
            */
/* Bounds of the first stage: rounds over all tiers, bisections of one price, and the price below
 * which a tier counts as free. */
#define SEARCH_CYCLES 60
#define SEARCH_HALVES 22
#define SEARCH_LOW    1e-60
#define SETTLE_NUDGE  1.05   /* of a price, to see how demand answers */
#define SETTLE_MIDDLE 6u     /* rounds over the second sample */
#define SETTLE_WIDTH  0x1p-3 /* octaves from the middle of a box to its sides */
#define SETTLE_GAIN   0.01   /* of the search's tolerance: a round that gains less is the last, */
#define SETTLE_NEAR   1e-3   /* with every tier this close to full, in octaves */
#define SETTLE_BOXES  4u     /* at most, one after the other */

/* Asks the instance once at the present prices, and keeps what was best so far. Any prices give an
 * upper bound; those that fit give a placement too. Sums of a sample are scaled by its stride, so
 * that they compare with the capacities. */
static price_pass search_look(price_search *search)
{
    assert(search->stride >= 1);
    price_pass pass = {0};
    search->ask(search->context, search->price, search->stride, &pass);
    double scale = (double)search->stride;
    double taken = pass.value;
    bool fits = true;
    pass.value *= scale;
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        fits = fits && pass.used[tier] <= search->capacity[tier];
        taken += search->price[tier] * pass.used[tier];
        pass.used[tier] *= scale;
        pass.value += search->price[tier] * search->capacity[tier];
    }
    if (search->stride == 1) search->passes++;
    if (search->stride == 1 && fits && taken > search->placed) search->placed = taken;
    if (pass.value < search->best) {
        search->best = pass.value;
        memcpy(search->best_price, search->price, sizeof search->price);
    }
    return pass;
}

/* Begins a stage over about so many entries. The best of a smaller sample says nothing of a larger
 * one. The stride is odd, so that a pattern of even length in the order of entries does not fall in
 * with the sample. */
static void search_begin(price_search *search, uint32_t entries)
{
    assert(entries >= 1);
    uint32_t stride = search->entries / entries | 1;
    if (stride != search->stride) search->best = PRICE_UNKNOWN;
    search->stride = stride;
}

/* Says whether more is asked of a tier than it holds, at the present prices. */
static bool search_overflows(price_search *search, int tier)
{
    assert(tier >= 0 && tier < KNAPSACK_ROWS);
    return search_look(search).used[tier] > search->capacity[tier];
}

/* Brackets the price at which a tier is just full; false when even price 0 leaves room. low is a
 * price at which the tier overflows and high one at which it does not, but for the two ends: low
 * may be next to 0, and high PRICE_CLOSED. */
static bool search_bracket(price_search *search, int tier, double *low, double *high)
{
    double *price = &search->price[tier];
    double start = *price > SEARCH_LOW ? *price : 1e-12;
    *low = *high = start;
    *price = start;
    if (search_overflows(search, tier)) {
        do {
            *low = *high;
            *high *= 4.0;
            *price = *high;
        } while (*high < PRICE_CLOSED && search_overflows(search, tier));
        return true;
    }
    for (;;) {
        *high = *low;
        *low /= 4.0;
        *price = *low;
        if (*low < SEARCH_LOW) {
            *price = 0.0;
            if (!search_overflows(search, tier)) return false;
            return true;
        }
        if (search_overflows(search, tier)) return true;
        /* A tier that never fills is found out at once, not after a hundred quarterings. */
        if (*high == start) {
            *price = 0.0;
            if (!search_overflows(search, tier)) return false;
        }
    }
}

/* Bisects the price of one tier in the log domain, the others held. It ends at the side on which
 * the tier is not overfull. */
static void search_balance(price_search *search, int tier, int halves)
{
    assert(halves >= 0);
    double low;
    double high;
    if (!search_bracket(search, tier, &low, &high)) return;
    assert(low <= high);
    double a = number_log2(low > SEARCH_LOW ? low : SEARCH_LOW);
    double b = number_log2(high);
    for (int i = 0; i < halves; i++) {
        double middle = 0.5 * (a + b);
        search->price[tier] = number_exp2(middle);
        if (search_overflows(search, tier))
            a = middle;
        else
            b = middle;
    }
    search->price[tier] = number_exp2(b);
}

/* Balances one tier after the other until a round gains next to nothing. Where tiers compete for
 * the same entries that takes many rounds; with one tier it takes one. */
static void search_descend(price_search *search)
{
    double before = PRICE_UNKNOWN;
    int present = 0;
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        present += search->capacity[tier] > 0.0;
    for (int cycle = 0; cycle < SEARCH_CYCLES; cycle++) {
        bool rough = search->stride > 1 || (cycle == 0 && present > 1);
        int halves = rough ? SEARCH_HALVES / 2 : SEARCH_HALVES;
        for (int tier = KNAPSACK_ROWS - 1; tier >= 0; tier--)
            if (search->capacity[tier] > 0.0) search_balance(search, tier, halves);
        double value = search_look(search).value;
        if (present <= 1 || before - value <= search->tolerance * value) return;
        before = value;
    }
}

/* slope[i][j]: how log2 of what tier i is asked for moves with log2 of the price of tier j. */
typedef struct slopes {
    double of[KNAPSACK_ROWS][KNAPSACK_ROWS];
} slopes;

/* Octaves by which a tier is asked for more than it has; 0 where nothing is to be balanced. */
static double settle_excess(const price_search *search, const price_pass *pass, int tier)
{
    if (search->price[tier] <= 0.0 || search->capacity[tier] <= 0.0) return 0.0;
    double share = pass->used[tier] / search->capacity[tier];
    return share > 0.5 ? number_log2(share) : -1.0;
}

/* Measures how demand answers when each price rises a little. The answers of a pass are steps, not
 * slopes: a tier's slope by its own price that is not negative counts as -1. */
static void settle_measure(price_search *search, slopes *out)
{
    price_pass here = search_look(search);
    for (int j = 0; j < KNAPSACK_ROWS; j++) {
        double price = search->price[j];
        bool moves = price > 0.0 && search->capacity[j] > 0.0;
        price_pass pass = here;
        search->price[j] = price * SETTLE_NUDGE;
        if (moves) pass = search_look(search);
        search->price[j] = price;
        for (int i = 0; i < KNAPSACK_ROWS; i++) {
            bool known = moves && pass.used[i] > 0.0 && here.used[i] > 0.0;
            double octaves = known ? number_log2(pass.used[i] / here.used[i]) : 0.0;
            out->of[i][j] = octaves / number_log2(SETTLE_NUDGE);
        }
        if (!(out->of[j][j] < 0.0)) out->of[j][j] = -1.0;
    }
}

/* The octaves that every price has to move for the excess to be gone, were logarithms straight. The
 * system is solved by elimination without pivoting; the diagonal is kept away from 0 for that. No
 * price moves more than an octave a round. */
static void settle_aim(const slopes *given, const double excess[KNAPSACK_ROWS],
                       double move[KNAPSACK_ROWS])
{
    double a[KNAPSACK_ROWS][KNAPSACK_ROWS];
    memcpy(a, given->of, sizeof a);
    for (int i = 0; i < KNAPSACK_ROWS; i++)
        move[i] = -excess[i];
    for (int i = 0; i < KNAPSACK_ROWS; i++) {
        /* A rise of one price frees its tier even where the others follow: noise says otherwise. */
        if (a[i][i] > -1e-3) a[i][i] = -1e-3;
        for (int k = i + 1; k < KNAPSACK_ROWS; k++) {
            double factor = a[k][i] / a[i][i];
            for (int j = i; j < KNAPSACK_ROWS; j++)
                a[k][j] -= factor * a[i][j];
            move[k] -= factor * move[i];
        }
    }
    for (int i = KNAPSACK_ROWS - 1; i >= 0; i--) {
        for (int j = i + 1; j < KNAPSACK_ROWS; j++)
            move[i] -= a[i][j] * move[j];
        move[i] /= a[i][i];
        assert(number_is_finite(move[i]));
        if (move[i] > 1.0) move[i] = 1.0;
        if (move[i] < -1.0) move[i] = -1.0;
    }
}

/* Corrects the slopes along a step by what the step has shown (Broyden). known->of * move then
 * equals change exactly, and slopes across the step stay as they were. */
static void settle_learn(slopes *known, const double move[KNAPSACK_ROWS],
                         const double change[KNAPSACK_ROWS])
{
    double square = 0.0;
    for (int j = 0; j < KNAPSACK_ROWS; j++)
        square += move[j] * move[j];
    for (int i = 0; i < KNAPSACK_ROWS && square > 0.0; i++) {
        double missed = change[i];
        for (int j = 0; j < KNAPSACK_ROWS; j++)
            missed -= known->of[i][j] * move[j];
        for (int j = 0; j < KNAPSACK_ROWS; j++)
            known->of[i][j] += missed * move[j] / square;
    }
}

/* Prices that the instance has to keep to; 0 and PRICE_UNKNOWN without a box. */
typedef struct box {
    double low[KNAPSACK_ROWS];
    double high[KNAPSACK_ROWS];
} box;

/* Around the best prices known, so that these lie in every box. A pass over all entries pays for
 * it, so it counts as one. */
static void settle_narrow(price_search *search, box *sides)
{
    assert(search->narrow != NULL);
    if (search->best < PRICE_UNKNOWN) {
        memcpy(search->price, search->best_price, sizeof search->price);
    }
    double factor = number_exp2(SETTLE_WIDTH);
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        sides->low[tier] = search->price[tier] / factor;
        sides->high[tier] = search->price[tier] * factor;
        assert(sides->low[tier] <= sides->high[tier]);
    }
    search->narrow(search->context, search->price, sides->low, sides->high);
    search->passes++;
}

/* Says whether all prices lie between the sides of the box; a price of 0 has no sides. A search
 * that touches a side may have its least value outside, and gets another box. */
static bool settle_is_inside(const double price[KNAPSACK_ROWS], const box *sides)
{
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        if (price[tier] <= 0.0) continue;
        if (price[tier] <= sides->low[tier] || price[tier] >= sides->high[tier]) return false;
    }
    return true;
}

/* Newton's method from the present prices, inside the box; ends at the best ones that it saw.
 * A round that gains nothing halves the step of the last one that did. */
static void settle_stage(price_search *search, slopes *known, const box *sides, uint32_t rounds)
{
    double from[KNAPSACK_ROWS];
    double move[KNAPSACK_ROWS] = {0.0};
    double excess[KNAPSACK_ROWS] = {0.0};
    for (uint32_t round = 0; round < rounds; round++) {
        double before = search->best, worst = 0.0;
        price_pass pass = search_look(search);
        bool gains = round == 0 || search->best < before;
        if (gains) {
            double change[KNAPSACK_ROWS];
            for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
                double now = settle_excess(search, &pass, tier), size = now < 0.0 ? -now : now;
                change[tier] = now - excess[tier];
                excess[tier] = now;
                worst = size > worst ? size : worst;
            }
            bool little = before - pass.value <= SETTLE_GAIN * search->tolerance * pass.value;
            if (worst < 1e-7 || (round > 0 && little && worst < SETTLE_NEAR)) break;
            if (!settle_is_inside(search->price, sides)) break;
            if (round > 0) settle_learn(known, move, change);
            memcpy(from, search->price, sizeof from);
            settle_aim(known, excess, move);
        }
        /* A step that went too far is taken back and halved. */
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
            if (!gains) move[tier] *= 0.5;
            double price = from[tier] * number_exp2(move[tier]);
            if (price < sides->low[tier]) price = sides->low[tier];
            if (price > sides->high[tier]) price = sides->high[tier];
            search->price[tier] = price;
        }
    }
    memcpy(search->price, search->best_price, sizeof search->price);
}

/* Finds prices over a small sample, corrects them over a larger one, and ends with all entries. A
 * box that the prices leave gets a new one around them. On return best is at least the least value
 * of L over all entries, and best_price are the prices where it was seen. */
void price_find(price_search *search, uint32_t refine)
{
    assert(search->ask != NULL);
    static const box open = {{0.0, 0.0, 0.0}, {PRICE_UNKNOWN, PRICE_UNKNOWN, PRICE_UNKNOWN}};
    slopes known;
    search->placed = 0.0;
    search->passes = 0;
    search->stride = 0;
    search_begin(search, SEARCH_SAMPLE);
    search_descend(search);
    search_begin(search, SEARCH_MIDDLE);
    settle_measure(search, &known);
    if (search->stride > 1) settle_stage(search, &known, &open, SETTLE_MIDDLE);
    search_begin(search, search->entries + 1);
    if (search->narrow == NULL) {
        settle_stage(search, &known, &open, refine);
        return;
    }
    for (uint32_t i = 0; i < SETTLE_BOXES; i++) {
        box sides;
        settle_narrow(search, &sides);
        settle_measure(search, &known);
        settle_stage(search, &known, &sides, refine);
        if (settle_is_inside(search->price, &sides)) break;
    }
}
