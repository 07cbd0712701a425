/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual.c - how far the present placement is from the best one with the same predicted rates: what
 * the engine knows (dual_instance.h) as an instance of knapsack.h. Reads only.
 *
 * The search adds up in plain numbers. The reported bound is one more pass at its best prices,
 * whose every rounding goes up, so that no placement is worth more than the bound by an error of
 * sums.
 *
 * No decision depends on the bound or its prices. It says how far the engine is from the best that
 * anybody could do with the same rates, which is what the gaps of dual_bound report.
 */
#include "replay/rivals/dual.h"

#include "replay/rivals/dual_instance.h"

#include <assert.h>
#include <string.h>

#define DUAL_ROUNDS 12              /* of the last stage; inside a box they cost little */
#define DUAL_ERROR  0x1p-49         /* of a score, in terms of its parts: sixteen roundings */
#define DUAL_SUM    (1.0 + 0x1p-48) /* on a compensated sum of numbers that are not negative */

/* The context that the search hands on: it asks and narrows the same instance. */
typedef struct dual_view {
    dual_instance *instance;
} dual_view;

/* Counts the options up to the last one that the entry may take; those between that it may not
 * take are left out by their bits. */
static uint32_t dual_option_count(const dual_entry *e)
{
    return e->allowed == 0 ? 0 : 32u - (uint32_t)__builtin_clz(e->allowed);
}

/* The options' scores at some prices. The loops run over plain arrays without a branch, so that a
 * compiler uses vectors. The tiers are written out for the same reason. */
static void dual_weigh(const dual_instance *instance, const dual_entry *e, uint32_t count,
                       const double price[TIERS], double score[KVT_OPTIONS_MAX])
{
    assert(count <= KVT_OPTIONS_MAX);
    const double *time = &instance->time[e->options];
    const double *losses = &instance->loss[e->options];
    const double *hbm = &instance->bytes[0][e->options];
    const double *dram = &instance->bytes[1][e->options];
    const double *ssd = &instance->bytes[2][e->options];
    double sense = e->sense, alpha = e->alpha, none = e->none, rate = e->rate;
    double p0 = price[0], p1 = price[1], p2 = price[2];
    for (uint32_t o = 0; o < count; o++) {
        double loss = sense * losses[o];
        double cost = time[o] + (loss < alpha ? loss : alpha);
        score[o] = rate * (none - cost) - p0 * hbm[o] - p1 * dram[o] - p2 * ssd[o];
    }
}

/* Returns the utility of one option over storing nothing: seconds saved per second, quality
 * included. */
static double dual_value(const dual_instance *instance, const dual_entry *e, uint32_t o)
{
    assert(o < instance->options);
    double loss = e->sense * instance->loss[o];
    double cost = instance->time[o] + (loss < e->alpha ? loss : e->alpha);
    return e->rate * (e->none - cost);
}

/* Returns the utility of one option less the shadow price of its bytes. */
static double dual_score(const dual_instance *instance, const dual_entry *e, uint32_t o,
                         const double price[TIERS])
{
    return dual_value(instance, e, o) - price[0] * instance->bytes[0][o] -
           price[1] * instance->bytes[1][o] - price[2] * instance->bytes[2][o];
}

/* The highest of `count` scores and what stands behind them up to the next multiple of four. Four
 * lanes are compared at once: the maximum of a list has no order, so the result is the same as one
 * after the other. */
static double dual_highest(double score[KVT_OPTIONS_MAX], uint32_t count)
{
    assert(count <= KVT_OPTIONS_MAX);
    double most[4] = {-UNLIMITED, -UNLIMITED, -UNLIMITED, -UNLIMITED};
    for (uint32_t o = count; o % 4 != 0; o++)
        score[o] = -UNLIMITED;
    for (uint32_t o = 0; o < count; o += 4)
        for (uint32_t lane = 0; lane < 4; lane++)
            most[lane] = score[o + lane] > most[lane] ? score[o + lane] : most[lane];
    double left = most[0] > most[1] ? most[0] : most[1];
    double right = most[2] > most[3] ? most[2] : most[3];
    return left > right ? left : right;
}

/* Weighs the options; the one with the highest score above `least`, NIL without one. Ties go to the
 * first option, so a pass has one answer. The bytes stored now are weighed beside the options where
 * they are none of them. */
static uint32_t dual_best(const dual_instance *instance, const dual_entry *e,
                          const double price[TIERS], double score[KVT_OPTIONS_MAX], double least,
                          double *best_out)
{
    uint32_t found = NIL, count = dual_option_count(e);
    dual_weigh(instance, e, count, price, score);
    if ((e->allowed & (e->allowed + 1u)) != 0) {
        for (uint32_t o = 0; o < count; o++)
            if ((e->allowed >> o & 1) == 0) score[o] = -UNLIMITED;
    }
    double best = dual_highest(score, count);
    if (best > least) {
        for (found = 0; score[found] != best;)
            found++;
        found += e->options;
    } else {
        best = least;
    }
    if (e->stored != NIL) {
        double stored = dual_score(instance, e, e->stored, price);
        if (stored > best) {
            best = stored;
            found = e->stored;
        }
    }
    *best_out = best;
    return found;
}

/* The search spends most of its passes close to the best prices. Prices that stay inside a small
 * box leave most entries no choice, so such entries are summed once and later passes look at the
 * rest. */
/* ---- inside a box of prices ---- */

/*
 * The most that a score off by rounding, or two of them, can hide: a score is off by no more than
 * DUAL_ERROR of its parts, rate * (none + cost) + room, which are 2 * rate * none - score.
 */
static double dual_error(const dual_entry *e, double score)
{
    return DUAL_ERROR * (2.0 * e->rate * e->none - score);
}

/*
 * Scores are linear in the prices. With r as the farthest that a price goes from the middle, option
 * o can pass w somewhere in the box only if score(o) + sum of r * |bytes(o) - bytes(w)| reaches
 * score(w), both at the middle. Adds that sum, and four errors for the roundings on both sides:
 * an option that stays below is left out of the proof.
 *
 * An option that stays below cannot be best anywhere in the box, rounding included.
 */
static void dual_reach(const dual_instance *instance, const dual_entry *e, uint32_t first,
                       uint32_t count, const double bytes[TIERS], const double r[TIERS],
                       double *score)
{
    const double *hbm = &instance->bytes[0][first];
    const double *dram = &instance->bytes[1][first];
    const double *ssd = &instance->bytes[2][first];
    double w0 = bytes[0], w1 = bytes[1], w2 = bytes[2];
    double r0 = r[0], r1 = r[1], r2 = r[2];
    double most = 2.0 * e->rate * e->none;
    for (uint32_t o = 0; o < count; o++) {
        double d0 = hbm[o] - w0, d1 = dram[o] - w1, d2 = ssd[o] - w2;
        score[o] += r0 * (d0 < 0.0 ? -d0 : d0) + r1 * (d1 < 0.0 ? -d1 : d1) +
                    r2 * (d2 < 0.0 ? -d2 : d2) + 4.0 * DUAL_ERROR * (most - score[o]);
    }
}

/* Notes what may be best somewhere. Returns whether anything but what is best in the middle may.
 * *found_out is the best option in the middle of the box, NIL for none. */
static bool dual_is_open(const dual_instance *instance, dual_entry *e, const double price[TIERS],
                         const double r[TIERS], uint32_t *found_out)
{
    double score[KVT_OPTIONS_MAX], best, bytes[TIERS] = {0.0};
    uint32_t found = dual_best(instance, e, price, score, 0.0, &best), count = dual_option_count(e);
    for (int tier = 0; tier < TIERS && found != NIL; tier++)
        bytes[tier] = instance->bytes[tier][found];
    dual_reach(instance, e, e->options, count, bytes, r, score);
    e->open = 0;
    for (uint32_t o = 0; o < count; o++)
        e->open |= (uint32_t)(score[o] >= best) << o;
    e->open &= e->allowed;
    if (e->stored != NIL) {
        double stored = dual_score(instance, e, e->stored, price);
        dual_reach(instance, e, e->stored, 1, bytes, r, &stored);
        if (stored >= best) e->open |= DUAL_STORED;
    }
    *found_out = found;
    if (found == NIL) return e->open != 0;
    double none = r[0] * bytes[0] + r[1] * bytes[1] + r[2] * bytes[2];
    return none >= best || (e->open & (e->open - 1u)) != 0;
}

/* Takes a box of prices and decides every entry that has one best option in all of it. The bytes
 * that such entries take are summed up once; the passes that follow look at the others alone. An
 * entry that is decided has the same option at every price of the box, so its bytes and value are
 * constants of every later pass. */
static void dual_narrow(const void *context, const double price[TIERS], const double low[TIERS],
                        const double high[TIERS])
{
    dual_instance *instance = ((const dual_view *)context)->instance;
    double r[TIERS];
    for (int tier = 0; tier < TIERS; tier++) {
        double down = price[tier] - low[tier], up = high[tier] - price[tier];
        r[tier] = down > up ? down : up;
        instance->low[tier] = low[tier];
        instance->high[tier] = high[tier];
        instance->decided_bytes[tier] = 0.0;
    }
    instance->narrowed = true;
    instance->open_count = 0;
    instance->decided_value = 0.0;
    for (uint32_t i = 0; i < instance->count; i++) {
        dual_entry *e = &instance->entries[i];
        uint32_t found;
        if (dual_is_open(instance, e, price, r, &found)) {
            instance->open[instance->open_count++] = i;
            continue;
        }
        if (found == NIL) continue;
        instance->decided_value += dual_value(instance, e, found);
        for (int tier = 0; tier < TIERS; tier++)
            instance->decided_bytes[tier] += instance->bytes[tier][found];
    }
}

/* The best of what the box leaves open, or stored; NIL where nothing scores above `least`. Options
 * that the box leaves open number one or two for most entries. */
static uint32_t dual_best_open(const dual_instance *instance, const dual_entry *e,
                               const double price[TIERS], double least, double *best_out)
{
    assert(e->open == (e->open & (e->allowed | DUAL_STORED)));
    uint32_t found = NIL;
    *best_out = least;
    for (uint32_t left = e->open; left != 0; left &= left - 1) {
        uint32_t bit = (uint32_t)__builtin_ctz(left);
        uint32_t o = UINT32_C(1) << bit == DUAL_STORED ? e->stored : e->options + bit;
        double score = dual_score(instance, e, o, price);
        if (score <= *best_out) continue;
        *best_out = score;
        found = o;
    }
    return found;
}

/* Answers a pass inside the box: the sums of the decided entries, and the best options of the
 * open ones. */
static void dual_ask_open(const dual_instance *instance, const double price[TIERS], price_pass *out)
{
    assert(instance->narrowed && instance->open_count <= instance->count);
    double value = instance->decided_value, best;
    for (int tier = 0; tier < TIERS; tier++) {
        out->used[tier] += instance->decided_bytes[tier];
        value -= price[tier] * instance->decided_bytes[tier];
    }
    for (uint32_t i = 0; i < instance->open_count; i++) {
        const dual_entry *e = &instance->entries[instance->open[i]];
        uint32_t found = dual_best_open(instance, e, price, 0.0, &best);
        if (found == NIL) continue;
        value += best;
        for (int tier = 0; tier < TIERS; tier++)
            out->used[tier] += instance->bytes[tier][found];
    }
    out->value += value;
}

/* Answers a pass of the search: what the entries take at these prices. A sample is every stride-th
 * entry. The result is a function of the prices alone; nothing of the instance changes. */
static void dual_ask(const void *context, const double price[TIERS], uint32_t stride,
                     price_pass *out)
{
    assert(stride >= 1);
    const dual_instance *instance = ((const dual_view *)context)->instance;
    if (stride == 1 && instance->narrowed) {
        dual_ask_open(instance, price, out);
        return;
    }
    for (uint32_t i = 0; i < instance->count; i += stride) {
        double score[KVT_OPTIONS_MAX], best;
        uint32_t found = dual_best(instance, &instance->entries[i], price, score, 0.0, &best);
        if (found == NIL) continue;
        out->value += best;
        for (int tier = 0; tier < TIERS; tier++)
            out->used[tier] += instance->bytes[tier][found];
    }
}

/* The bound that is reported does not rest on the search: it holds at any prices, and is only less
 * tight at bad ones. */
/* ---- the proof ---- */

/* The last pass: the bound rounded up, and a placement in the entries' order, each taking the best
 * that still fits. */
typedef struct dual_proof {
    double sum, lost; /* Neumaier's sum and what it lost */
    double room[TIERS];
    double placed; /* utility of the placement */
} dual_proof;

/* Adds with compensation (Neumaier), so that a million terms lose no more than one rounding. The
 * sums of a plain loop over a million terms could lose more than the gap that is reported. */
static void dual_proof_add(dual_proof *proof, double number)
{
    double sum = proof->sum + number;
    double large = proof->sum >= number ? proof->sum : number;
    double small = proof->sum >= number ? number : proof->sum;
    proof->lost += (large - sum) + small;
    proof->sum = sum;
}

/* Says whether an option fits what the placement has left. */
static bool dual_has_room(const dual_instance *instance, const dual_proof *proof, uint32_t o)
{
    assert(o < instance->options);
    for (int tier = 0; tier < TIERS; tier++)
        if (instance->bytes[tier][o] > proof->room[tier]) return false;
    return true;
}

/* The best option that fits; NIL when nothing with a score above 0 does. The placement asks here
 * only where the best option lacks room. */
static uint32_t dual_fit(const dual_instance *instance, const dual_entry *e,
                         const double price[TIERS], const dual_proof *proof)
{
    double score[KVT_OPTIONS_MAX], best = 0.0;
    uint32_t choice = NIL, count = dual_option_count(e);
    dual_weigh(instance, e, count, price, score);
    for (uint32_t o = 0; o < count; o++) {
        if (score[o] <= best || (e->allowed >> o & 1) == 0) continue;
        if (!dual_has_room(instance, proof, e->options + o)) continue;
        best = score[o];
        choice = e->options + o;
    }
    if (e->stored == NIL || dual_score(instance, e, e->stored, price) <= best) return choice;
    return dual_has_room(instance, proof, e->stored) ? e->stored : choice;
}

/* The prices lie in the box: what is not open is worth less than what is, or than nothing. The
 * upper end of a score rises with the score, so the highest score has the highest. Each entry adds
 * at least 0, since storing nothing is always allowed. *placed_out is the value of a placement that
 * fits, found on the way by taking the entries in their order. */
static double dual_prove(const dual_instance *instance, const double price[TIERS],
                         double *placed_out)
{
    dual_proof proof = {.sum = 0.0};
    assert(instance->narrowed);
    for (int tier = 0; tier < TIERS; tier++) {
        double capacity = (double)instance->policy->capacity[tier];
        proof.room[tier] = capacity;
        assert(price[tier] >= instance->low[tier] && price[tier] <= instance->high[tier]);
        dual_proof_add(&proof, price[tier] * capacity * DUAL_SUM);
    }
    for (uint32_t i = 0; i < instance->count; i++) {
        const dual_entry *e = &instance->entries[i];
        double best;
        uint32_t choice = dual_best_open(instance, e, price, -UNLIMITED, &best);
        if (choice == NIL) continue;
        double upper = best + dual_error(e, best);
        if (upper > 0.0) dual_proof_add(&proof, upper);
        if (best <= 0.0) continue;
        if (!dual_has_room(instance, &proof, choice)) choice = dual_fit(instance, e, price, &proof);
        if (choice == NIL) continue;
        proof.placed += dual_value(instance, e, choice);
        for (int tier = 0; tier < TIERS; tier++)
            proof.room[tier] -= instance->bytes[tier][choice];
    }
    *placed_out = proof.placed;
    return (proof.sum + proof.lost) * DUAL_SUM;
}

/* Finds the prices, proves the bound at the best of them, and names the gaps. gap_counters
 * and gap_solver stay 0 when nothing is worth storing. A gap is never below 0, because the
 * placement is capped at the bound. */
static void dual_search(const kvt_policy *policy, dual_instance *instance, const double *start,
                        dual_bound *bound_out)
{
    const dual_view view = {instance};
    price_search search = {.ask = dual_ask,
                           .narrow = dual_narrow,
                           .context = &view,
                           .entries = instance->count,
                           .tolerance = 1e-6};
    for (int tier = 0; tier < TIERS; tier++) {
        search.capacity[tier] = (double)policy->capacity[tier];
        search.price[tier] = start != NULL ? start[tier + 1] : 1e-12;
    }
    memset(bound_out, 0, sizeof *bound_out);
    price_find(&search, DUAL_ROUNDS);
    bound_out->dual = dual_prove(instance, search.best_price, &bound_out->placed);
    bound_out->primal = instance->primal;
    /* The state is a placement, and so is what a pass took that fits. */
    if (bound_out->placed < bound_out->primal) bound_out->placed = bound_out->primal;
    if (bound_out->placed < search.placed) bound_out->placed = search.placed;
    if (bound_out->placed > bound_out->dual) bound_out->placed = bound_out->dual; /* rounding */
    if (bound_out->dual > 0.0) {
        bound_out->gap_counters = (bound_out->dual - bound_out->primal) / bound_out->dual;
        bound_out->gap_solver = (bound_out->dual - bound_out->placed) / bound_out->dual;
    }
    for (int tier = 0; tier < TIERS; tier++)
        bound_out->price[tier + 1] = search.best_price[tier];
    bound_out->entries = instance->count;
    bound_out->remembered = instance->remembered;
    bound_out->passes = search.passes + 1;
    assert(bound_out->placed <= bound_out->dual || bound_out->dual <= 0.0);
}

/* Copies the entries into arrays first, so that the many passes read nothing that they do not
 * need. */
kvt_status dual_solve(kvt_policy *policy, uint64_t now_ns, const double *start,
                      dual_bound *bound_out)
{
    assert(policy != NULL && bound_out != NULL);
    if (!policy->ops->counts) return KVT_E_UNSUPPORTED;
    if (policy->started) engine_set_clock(policy, now_ns);
    dual_instance instance;
    kvt_status status = dual_instance_make(policy, &instance);
    if (status != KVT_OK) return status;
    dual_search(policy, &instance, start, bound_out);
    dual_instance_free(&instance);
    return KVT_OK;
}
