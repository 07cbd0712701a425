/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual.c - how far the present placement is from the best one with the same predicted rates: what
 * the engine knows (dual_instance.h) as an instance of knapsack.h. Reads only, but for the prices
 * that it keeps.
 *
 * The search adds up in plain numbers. What is reported is one more pass at its best prices, whose
 * every rounding goes up, so that no placement is worth more than the bound by an error of sums.
 */
#include "policy/dual_instance.h"

#include <assert.h>
#include <string.h>

#define DUAL_ROUNDS 3               /* passes over all entries */
#define DUAL_ERROR  0x1p-49         /* of a score, in terms of its parts: sixteen roundings */
#define DUAL_SUM    (1.0 + 0x1p-48) /* on a compensated sum of numbers that are not negative */

/* The options' scores at some prices. */
static void dual_weigh(const dual_instance *instance, const dual_entry *e,
                       const double price[LEVELS], double score[KVT_OPTIONS_MAX])
{
    const double *time = &instance->time[e->forms];
    const double *losses = &instance->loss[e->forms];
    const double *hbm = &instance->bytes[0][e->forms];
    const double *dram = &instance->bytes[1][e->forms];
    const double *ssd = &instance->bytes[2][e->forms];
    double sense = e->sense, alpha = e->alpha, none = e->none, rate = e->rate;
    double p0 = price[0], p1 = price[1], p2 = price[2];
    uint32_t count = e->option_count - 1u;
    for (uint32_t o = 0; o < count; o++) {
        double loss = sense * losses[o];
        double cost = time[o] + (loss < alpha ? loss : alpha);
        score[o] = rate * (none - cost) - p0 * hbm[o] - p1 * dram[o] - p2 * ssd[o];
    }
}

static double dual_cost(const dual_instance *instance, const dual_entry *e, uint32_t o)
{
    double loss = e->sense * instance->loss[o];
    return instance->time[o] + (loss < e->alpha ? loss : e->alpha);
}

static double dual_rent(const dual_instance *instance, uint32_t o, const double price[LEVELS])
{
    return price[0] * instance->bytes[0][o] + price[1] * instance->bytes[1][o] +
           price[2] * instance->bytes[2][o];
}

static double dual_score(const dual_instance *instance, const dual_entry *e, uint32_t o,
                         const double price[LEVELS])
{
    return e->rate * (e->none - dual_cost(instance, e, o)) - dual_rent(instance, o, price);
}

static void dual_ask(const void *context, const double price[LEVELS], uint32_t stride,
                     price_pass *out)
{
    const dual_instance *instance = context;
    for (uint32_t i = 0; i < instance->count; i += stride) {
        const dual_entry *e = &instance->entries[i];
        double score[KVT_OPTIONS_MAX];
        uint32_t found = NIL;
        double best = 0.0;
        dual_weigh(instance, e, price, score);
        for (uint32_t o = 0; o + 1 < e->option_count; o++) {
            if (score[o] <= best || (e->barred >> o & 1) != 0) continue;
            best = score[o];
            found = e->forms + o;
        }
        if (e->stored != NIL) {
            double stored = dual_score(instance, e, e->stored, price);
            if (stored > best) {
                best = stored;
                found = e->stored;
            }
        }
        if (found == NIL) continue;
        out->value += best;
        for (int level = 0; level < LEVELS; level++)
            out->used[level] += instance->bytes[level][found];
    }
}

/* The last pass: the bound rounded up, and a placement in the entries' order, each taking the best
 * that still fits. */
typedef struct dual_proof {
    double sum, lost; /* Neumaier's sum and what it lost */
    double room[LEVELS];
    double placed; /* utility of the placement */
} dual_proof;

static void dual_proof_add(dual_proof *proof, double number)
{
    double sum = proof->sum + number;
    double large = proof->sum >= number ? proof->sum : number;
    double small = proof->sum >= number ? number : proof->sum;
    proof->lost += (large - sum) + small;
    proof->sum = sum;
}

static bool dual_has_room(const dual_instance *instance, const dual_proof *proof, uint32_t o)
{
    for (int level = 0; level < LEVELS; level++)
        if (instance->bytes[level][o] > proof->room[level]) return false;
    return true;
}

/* Looks at one form: *upper becomes at least its score; *best and *choice follow what fits. */
static void dual_consider(const dual_instance *instance, const dual_entry *e, uint32_t o,
                          const double price[LEVELS], const dual_proof *proof, double *upper,
                          double *best, uint32_t *choice)
{
    double score = dual_score(instance, e, o, price);
    double parts = e->rate * (e->none + dual_cost(instance, e, o)) + dual_rent(instance, o, price);
    double most = score + DUAL_ERROR * parts;
    if (most > *upper) *upper = most;
    if (score <= *best || !dual_has_room(instance, proof, o)) return;
    *best = score;
    *choice = o;
}

static double dual_prove(const dual_instance *instance, const double price[LEVELS],
                         double *placed_out)
{
    dual_proof proof = {.sum = 0.0};
    for (int level = 0; level < LEVELS; level++) {
        double capacity = (double)instance->policy->capacity[level];
        proof.room[level] = capacity;
        dual_proof_add(&proof, price[level] * capacity * DUAL_SUM);
    }
    for (uint32_t i = 0; i < instance->count; i++) {
        const dual_entry *e = &instance->entries[i];
        double upper = 0.0, best = 0.0;
        uint32_t choice = NIL;
        for (uint32_t o = 0; o + 1 < e->option_count; o++) {
            if ((e->barred >> o & 1) != 0) continue;
            dual_consider(instance, e, e->forms + o, price, &proof, &upper, &best, &choice);
        }
        if (e->stored != NIL) {
            dual_consider(instance, e, e->stored, price, &proof, &upper, &best, &choice);
        }
        dual_proof_add(&proof, upper);
        if (choice == NIL) continue;
        proof.placed += e->rate * (e->none - dual_cost(instance, e, choice));
        for (int level = 0; level < LEVELS; level++)
            proof.room[level] -= instance->bytes[level][choice];
    }
    *placed_out = proof.placed;
    return (proof.sum + proof.lost) * DUAL_SUM;
}

static void dual_search(kvt_policy *policy, const dual_instance *instance,
                        kvt_policy_bound *bound_out)
{
    price_search search = {
        .ask = dual_ask, .context = instance, .entries = instance->count, .tolerance = 1e-6};
    for (int level = 0; level < LEVELS; level++) {
        search.capacity[level] = (double)policy->capacity[level];
        search.price[level] = policy->priced ? policy->price[level] : 1e-12;
    }
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
    for (int level = 0; level < LEVELS; level++)
        policy->price[level] = bound_out->price[level + 1] = search.best_price[level];
    policy->priced = true;
    bound_out->entries = instance->count;
    bound_out->remembered = instance->remembered;
    bound_out->passes = search.passes + 1;
}

kvt_status kvt_policy_solve(kvt_policy *policy, uint64_t now_ns, kvt_policy_bound *bound_out)
{
    assert(policy != NULL && bound_out != NULL);
    memset(bound_out, 0, sizeof *bound_out);
    if (!policy->ops->counts) return KVT_E_UNSUPPORTED;
    if (policy->started) engine_set_clock(policy, now_ns);
    dual_instance instance;
    kvt_status status = dual_instance_make(policy, &instance);
    if (status != KVT_OK) return status;
    dual_search(policy, &instance, bound_out);
    dual_instance_free(&instance);
    return KVT_OK;
}
