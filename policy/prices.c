/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prices.c - the search for prices of knapsack.h.
 *
 * A sample moves one price at a time to where its tier is just full: what is asked for falls as
 * the price rises. That is coordinate descent on a convex function with as many corners as there
 * are entries, so it ends close to the least value. All entries then correct what the sample had by
 * chance, all prices at once: Newton's method on log(asked / capacity) over log price, with the
 * sample's slopes. By itself that would be lost in a sample, where one entry is a step.
 */
#include "policy/knapsack.h"

#include <string.h>

#define SEARCH_SAMPLE 8192u /* entries of a sample, about */
#define SEARCH_CYCLES 60
#define SEARCH_HALVES 22
#define SEARCH_LOW    1e-60
#define SETTLE_NUDGE  1.05 /* of a price, to see how demand answers */

static price_pass search_look(price_search *search)
{
    price_pass pass = {0};
    search->ask(search->context, search->price, search->stride, &pass);
    double scale = (double)search->stride;
    double taken = pass.value;
    bool fits = true;
    pass.value *= scale;
    for (int level = 0; level < LEVELS; level++) {
        fits = fits && pass.used[level] <= search->capacity[level];
        taken += search->price[level] * pass.used[level];
        pass.used[level] *= scale;
        pass.value += search->price[level] * search->capacity[level];
    }
    if (search->stride > 1) return pass;
    search->passes++;
    if (fits && taken > search->placed) search->placed = taken;
    if (pass.value < search->best) {
        search->best = pass.value;
        memcpy(search->best_price, search->price, sizeof search->price);
    }
    return pass;
}

static bool search_overflows(price_search *search, int level)
{
    return search_look(search).used[level] > search->capacity[level];
}

/* Brackets the price at which a level is just full; false when even price 0 leaves room. */
static bool search_bracket(price_search *search, int level, double *low, double *high)
{
    double *price = &search->price[level];
    double start = *price > SEARCH_LOW ? *price : 1e-12;
    *low = *high = start;
    *price = start;
    if (search_overflows(search, level)) {
        do {
            *low = *high;
            *high *= 4.0;
            *price = *high;
        } while (*high < PRICE_CLOSED && search_overflows(search, level));
        return true;
    }
    for (;;) {
        *high = *low;
        *low /= 4.0;
        *price = *low;
        if (*low < SEARCH_LOW) {
            *price = 0.0;
            if (!search_overflows(search, level)) return false;
            return true;
        }
        if (search_overflows(search, level)) return true;
        /* A tier that never fills is found out at once, not after a hundred quarterings. */
        if (*high == start) {
            *price = 0.0;
            if (!search_overflows(search, level)) return false;
        }
    }
}

static void search_balance(price_search *search, int level, int halves)
{
    double low;
    double high;
    if (!search_bracket(search, level, &low, &high)) return;
    double a = number_log2(low > SEARCH_LOW ? low : SEARCH_LOW);
    double b = number_log2(high);
    for (int i = 0; i < halves; i++) {
        double middle = 0.5 * (a + b);
        search->price[level] = number_exp2(middle);
        if (search_overflows(search, level))
            a = middle;
        else
            b = middle;
    }
    search->price[level] = number_exp2(b);
}

/* Balances one tier after the other until a round gains next to nothing. Where tiers compete for
 * the same entries that takes many rounds; with one tier it takes one. */
static void search_descend(price_search *search)
{
    double before = UNLIMITED;
    int present = 0;
    for (int level = 0; level < LEVELS; level++)
        present += search->capacity[level] > 0.0;
    for (int cycle = 0; cycle < SEARCH_CYCLES; cycle++) {
        bool rough = search->stride > 1 || (cycle == 0 && present > 1);
        int halves = rough ? SEARCH_HALVES / 2 : SEARCH_HALVES;
        for (int level = LEVELS - 1; level >= 0; level--)
            if (search->capacity[level] > 0.0) search_balance(search, level, halves);
        double value = search_look(search).value;
        if (present <= 1 || before - value <= search->tolerance * value) return;
        before = value;
    }
}

/* slope[i][j]: how log2 of what tier i is asked for moves with log2 of the price of tier j. */
typedef struct slopes {
    double of[LEVELS][LEVELS];
} slopes;

/* Octaves by which a tier is asked for more than it has; 0 where nothing is to be balanced. */
static double settle_excess(const price_search *search, const price_pass *pass, int level)
{
    if (search->price[level] <= 0.0 || search->capacity[level] <= 0.0) return 0.0;
    double share = pass->used[level] / search->capacity[level];
    return share > 0.5 ? number_log2(share) : -1.0;
}

static void settle_measure(price_search *search, const price_pass *here, slopes *out)
{
    for (int j = 0; j < LEVELS; j++) {
        double price = search->price[j];
        bool moves = price > 0.0 && search->capacity[j] > 0.0;
        price_pass pass = *here;
        search->price[j] = price * SETTLE_NUDGE;
        if (moves) pass = search_look(search);
        search->price[j] = price;
        for (int i = 0; i < LEVELS; i++) {
            bool known = moves && pass.used[i] > 0.0 && here->used[i] > 0.0;
            double octaves = known ? number_log2(pass.used[i] / here->used[i]) : 0.0;
            out->of[i][j] = octaves / number_log2(SETTLE_NUDGE);
        }
        if (!(out->of[j][j] < 0.0)) out->of[j][j] = -1.0;
    }
}

/* The octaves that every price has to move for the excess to be gone, were logarithms straight. */
static void settle_aim(const slopes *given, const double excess[LEVELS], double move[LEVELS])
{
    double a[LEVELS][LEVELS];
    memcpy(a, given->of, sizeof a);
    for (int i = 0; i < LEVELS; i++)
        move[i] = -excess[i];
    for (int i = 0; i < LEVELS; i++) {
        /* A rise of one price frees its tier even where the others follow: noise says otherwise. */
        if (a[i][i] > -1e-3) a[i][i] = -1e-3;
        for (int k = i + 1; k < LEVELS; k++) {
            double factor = a[k][i] / a[i][i];
            for (int j = i; j < LEVELS; j++)
                a[k][j] -= factor * a[i][j];
            move[k] -= factor * move[i];
        }
    }
    for (int i = LEVELS - 1; i >= 0; i--) {
        for (int j = i + 1; j < LEVELS; j++)
            move[i] -= a[i][j] * move[j];
        move[i] /= a[i][i];
        if (move[i] > 1.0) move[i] = 1.0;
        if (move[i] < -1.0) move[i] = -1.0;
    }
}

/* What a step has shown corrects the slopes along it (Broyden). */
static void settle_learn(slopes *known, const double move[LEVELS], const double change[LEVELS])
{
    double square = 0.0;
    for (int j = 0; j < LEVELS; j++)
        square += move[j] * move[j];
    for (int i = 0; i < LEVELS && square > 0.0; i++) {
        double missed = change[i];
        for (int j = 0; j < LEVELS; j++)
            missed -= known->of[i][j] * move[j];
        for (int j = 0; j < LEVELS; j++)
            known->of[i][j] += missed * move[j] / square;
    }
}

void price_find(price_search *search, uint32_t refine)
{
    slopes known;
    search->best = UNLIMITED;
    search->placed = 0.0;
    search->passes = 0;
    search->stride = search->entries / SEARCH_SAMPLE | 1;
    search_descend(search);
    price_pass sample = search_look(search);
    settle_measure(search, &sample, &known);
    search->stride = 1;
    double from[LEVELS];
    double move[LEVELS] = {0.0};
    double excess[LEVELS] = {0.0};
    for (uint32_t round = 0; round < refine; round++) {
        double before = search->best;
        price_pass pass = search_look(search);
        bool gains = round == 0 || search->best < before;
        if (gains) {
            double change[LEVELS];
            bool balanced = true;
            for (int level = 0; level < LEVELS; level++) {
                double now = settle_excess(search, &pass, level);
                change[level] = now - excess[level];
                excess[level] = now;
                balanced = balanced && now < 1e-7 && now > -1e-7;
            }
            if (balanced) break;
            settle_learn(&known, move, change);
            memcpy(from, search->price, sizeof from);
            settle_aim(&known, excess, move);
        }
        /* A step that went too far is taken back and halved. */
        for (int level = 0; level < LEVELS; level++) {
            if (!gains) move[level] *= 0.5;
            search->price[level] = from[level] * number_exp2(move[level]);
        }
    }
    memcpy(search->price, search->best_price, sizeof search->price);
}
