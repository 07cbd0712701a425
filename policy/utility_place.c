/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utility_place.c - which option a new entry takes: the best by the tiers' prices, if what it gains
 * pays for its write and for the steps that make its room (docs/POLICY.md, Admit).
 *
 * A price is that of the first bytes. In a tier of few entries a plan drives out better and better
 * ones, so what its room has cost becomes the price there, and other options are tried by it.
 */
#include "policy/utility.h"

#include "policy/reuse_model.h"
#include "policy/room.h"

#include <assert.h>
#include <string.h>

#define UTILITY_REPLACE   1.3 /* a new entry is worth this many times what its room costs, */
#define UTILITY_CONTINUE  1.0 /* and so many times behind a prefix that was used just now */
#define UTILITY_JUST      1.0 /* seconds that a request's prefix counts as used just now */
#define UTILITY_FEW       64u /* entries of a tier that are few: one is a part of what is there */
#define UTILITY_AS_PRICED 1.5 /* room that costs no more times its price is priced well enough */
#define UTILITY_OTHERS    6   /* options that one decision makes room for beside the first */

/* How many times what its room costs a new entry must be worth. The margin stands against entries
 * that tie, as those of a loop longer than the tier: they would drive each other out in turn. Where
 * its prefix was used just now the entry goes on what a request has begun, and to refuse it would
 * lose all that follows it, too. */
static double utility_margin(const kvt_policy *policy, const entry *e)
{
    const double margin = UTILITY_REPLACE * reuse_guessed_lead(policy, e);
    if (e->parent == NIL) return margin;
    const entry *up = entry_at(policy, e->parent);
    double ago = reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, up->last_access_ns);
    return ago <= UTILITY_JUST ? UTILITY_CONTINUE : margin;
}

/* Looks the prices anew that have kept an entry out: a refused entry ends its path, and one dear
 * victim must not decide that for seconds. False when none has fallen. */
static bool utility_look_again(kvt_policy *policy, shadow_prices *known)
{
    bool fallen = false;
    for (int tier = 0; tier < TIERS; tier++) {
        if (!(known->price[tier] > 0.0)) continue;
        double now = utility_root_price(policy, known->room, tier);
        if (now >= known->price[tier]) continue;
        known->price[tier] = policy->shadow_price[tier] = now;
        policy->shadow_price_ns[tier] = policy->now_ns;
        fallen = true;
    }
    return fallen;
}

/* Best first: score = gain over NONE - share of the write - shadow price of room in tight tiers. A
 * tier that the watermarks have made room in is tight as well: an entry that only ties with what
 * lies there would drive it out, and a loop longer than the tier would find nothing of itself.
 * *tried has a bit for each option that was offered before; NONE marks itself when nothing is left.
 * out->cost is the write, out->gain the utility over NONE. */
static bool utility_next_option(kvt_policy *policy, shadow_prices *known, const entry *e,
                                uint32_t *tried, step *out)
{
    reuse_now use = reuse_look(policy, e);
    double rate = use.rate;
    double alpha = entry_alpha(policy, e);
    double none = entry_cost(policy, e, KVT_OPTION_NONE);
    double best = -UNLIMITED;
    uint8_t found = KVT_OPTION_NONE;
    write_costs now = utility_write_costs(policy);
    double margin = utility_margin(policy, e);
    for (uint8_t option = 1; option < e->option_count; option++) {
        if ((*tried >> option & 1) != 0 || !utility_is_reachable(policy, e, option)) continue;
        const stored_option *o = entry_option(policy, e, option);
        double gain = rate * (none - option_cost(o, e, alpha));
        if (gain <= best || gain <= 0.0) continue;
        uint64_t need[TIERS];
        entry_needs(policy, e, option, need);
        double write = utility_write_at(policy, &now, e, o, need) / utility_stay(policy, &use, o);
        if (gain <= write || gain - write <= best) continue;
        double price = utility_shadow_cost(policy, known, need);
        if (gain - write < margin * price || gain - write - price <= best) continue;
        found = option;
        best = gain - write - price;
        out->to = option;
        out->cost = write;
        out->gain = gain;
    }
    *tried |= UINT32_C(1) << found;
    assert(found == KVT_OPTION_NONE || out->to == found);
    return found != KVT_OPTION_NONE;
}

/* The options whose highest tier is `home`, as bits. */
static uint32_t utility_options_at(const kvt_policy *policy, const entry *e, int home)
{
    uint32_t options = 0;
    for (uint8_t option = 1; option < e->option_count; option++)
        if (option_home(entry_option(policy, e, option)) == home) options |= UINT32_C(1) << option;
    return options;
}

/* The loss of a plan's steps for a new entry. Room that they free beyond its need is not lost, and
 * counts at the tier's price: so a tier of large variants, in which nothing can be coded smaller
 * for want of room, gives way to smaller ones. */
static double utility_spent(const kvt_policy *policy, const tentative_plan *work, const entry *e,
                            const step *put, const int64_t *before)
{
    double lost = work->spent;
    for (int tier = 0; tier < TIERS; tier++) {
        int64_t freed = work->room[tier] - before[tier];
        int64_t spare = work->room[tier] - (int64_t)entry_need(policy, e, put->to, tier);
        if (spare > freed) spare = freed;
        if (spare > 0) lost -= policy->shadow_price[tier] * (double)spare;
    }
    return lost;
}

/* Raises the price of the tier of an option to what a byte of its room has cost in a plan. False
 * where the price has said as much, and in a tier of many entries, where a price is that of the
 * last one: an entry that takes a large part of its tier drives out better and better ones. */
static bool utility_raise_price(const kvt_policy *policy, shadow_prices *known, const entry *e,
                                uint8_t to, double lost)
{
    int home = option_home(entry_option(policy, e, to));
    uint64_t need = entry_need(policy, e, to, home);
    if (need <= policy->capacity[home] / UTILITY_FEW) return false;
    double price = lost / (double)need;
    bool paid = need > known->free[home];
    if (price <= (paid ? UTILITY_AS_PRICED * known->price[home] : 0.0)) return false;
    known->price[home] = price;
    known->free[home] = 0;
    return true;
}

/* Makes the room of an option, and takes it when it gains so much more than the steps lose that it
 * takes their place. False: *lost_out is above what it gains, or no room could be made; the plan
 * holds what has been tried. */
static bool utility_make(kvt_policy *policy, tentative_plan *work, const step *put,
                         const int64_t *before, double *lost_out)
{
    const entry *e = entry_at(policy, put->entry);
    work->budget = (put->gain - put->cost) * UTILITY_REPLACE;
    bool made = room_make_for(policy, work, put->entry, put->to);
    if (made) *lost_out = utility_spent(policy, work, e, put, before);
    if (made && *lost_out < (put->gain - put->cost) / utility_margin(policy, e)) return true;
    policy->refusal = made             ? KVT_REFUSAL_COST
                      : work->bounded  ? KVT_REFUSAL_PLAN
                      : work->refusals ? KVT_REFUSAL_COST
                                       : KVT_REFUSAL_ROOM;
    return false;
}

/* Adds the entry itself to a plan that has made its room. */
static bool utility_put(kvt_policy *policy, tentative_plan *work, const step *put)
{
    step move = *put;
    move.cost = 0.0; /* it was in what the entry gains */
    work->budget = UNLIMITED;
    if (tentative_add(policy, work, &move)) return true;
    policy->refusal = KVT_REFUSAL_COST;
    return false;
}

/* The best option of some tier, best tier first, whose gain pays for its write and for the steps
 * that make its room. An option whose room cannot be made rules its whole tier out, so at most
 * three rooms are made; where room costs more than the price said, a smaller option may gain more,
 * and some others are tried. False leaves the plan empty. */
bool utility_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    shadow_prices known = utility_prices(work->room, false);
    uint32_t tried = 0;
    step put = {.entry = index}, best = put;
    double lost = 0.0, best_net = 0.0;
    int others = UTILITY_OTHERS;
    int64_t before[TIERS];
    memcpy(before, work->room, sizeof before);
    bool found = utility_next_option(policy, &known, e, &tried, &put);
    if (!found && utility_look_again(policy, &known)) {
        tried = 0;
        found = utility_next_option(policy, &known, e, &tried, &put);
    }
    if (!found) policy->refusal = KVT_REFUSAL_PRICE;
    for (; found; found = utility_next_option(policy, &known, e, &tried, &put)) {
        if (best_net > 0.0 && (others <= 0 || put.gain - put.cost <= best_net)) break;
        if (utility_make(policy, work, &put, before, &lost)) {
            const double net = put.gain - put.cost - lost;
            const bool again = others > 0 && utility_raise_price(policy, &known, e, put.to, lost);
            if (net > best_net) {
                if (!again && utility_put(policy, work, &put)) return true;
                best_net = net;
                best = put;
            }
            others--;
        } else {
            tried |= utility_options_at(policy, e, option_home(entry_option(policy, e, put.to)));
        }
        tentative_cut(policy, work, 0, 0.0);
        work->bounded = false;
        work->refusals = 0;
    }
    if (best_net > 0.0 && utility_make(policy, work, &best, before, &lost) &&
        utility_put(policy, work, &best))
        return true;
    tentative_cut(policy, work, 0, 0.0);
    return false;
}
