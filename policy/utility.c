/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utility.c - AdaptCache's greedy for the multiple-choice knapsack (AdaptCache, section 2), with
 * recompute and lower tiers among the steps and decayed reuse counters in the log domain.
 *
 * Step of an entry from option o to o', in a tier where that frees b bytes:
 *
 *     loss = f * (cost(o') - cost(o) + lasting) + price below * bytes below + write seconds / stay
 *     cost(o) = alpha * share * loss(o) + load(o) + decode(o)                             seconds
 *
 * A tier orders its entries by the moment when f * (cost(o') - cost(o)) / b of their cheapest step
 * falls to what steps there lose now: one order for steps that cost nothing else, one for those
 * that also write and may pay for room below. A choice takes the least true loss per byte among the
 * first few of both. f is that of reuse.c; docs/POLICY.md has the whole.
 *
 * The file keeps no prices of its own: step_price, shadow_price and the write costs live in the
 * engine, and every decision reads them through utility.h.
 *
 * Words: a free step costs nothing beside its loss (an eviction, planes dropped in place); a paid
 * one also writes, or takes room in a full tier below. The key of an entry is approximate by
 * design; a choice works the true cost out again for the few entries that it compares.
 */
#include "policy/utility.h"

#include <assert.h>

#define UTILITY_WORTHLESS (-65536.0f) /* log2 density of a step that loses nothing */
/* Bounds keep one choice at some microseconds among a million entries; larger ones find slightly
 * cheaper victims. */
#define UTILITY_LOOK       4     /* entries in order that one choice compares, */
#define UTILITY_LOOK_SMALL 16    /* and in a tier whose keys do not know what fits */
#define UTILITY_REFRESH    32    /* stale keys of a kind that one choice puts right */
#define UTILITY_STAY_LEAST 120.0 /* seconds that moves are paid off over */
#define UTILITY_STAY_MOST  36000.0
#define UTILITY_ROOM_PART  8u /* of the room of a tier that has been full costs nothing */
#define UTILITY_PRICE_NS   UINT64_C(5000000000) /* what a step lost is a price for so long */
#define UTILITY_SWEEP      4     /* entries that one choice sorts anew, wherever they stand, */
#define UTILITY_RESORT     32    /* and while a price has just moved; both within bounds */
#define UTILITY_MOVED      0.5   /* octaves that a price moves before all is sorted by it */
#define UTILITY_OLD        16.0  /* minutes: then it is set anew */
#define UTILITY_FAR        32.0  /* minutes ahead that are kept apart one by one */
#define UTILITY_OCTAVES    600.0 /* rates that a key is worked out for are above 2 to minus this */
#define UTILITY_FIRST      2.0   /* octaves below the first entry, before there is a price */
/* The stay is bounded on both sides: by what leaves the tier and by two limits, so that no move is
 * paid off over seconds or days. to NULL stands for any tier: only the entry's own uses bound the
 * stay then. */
double utility_stay(const kvt_policy *policy, const reuse_now *now, const stored_option *to)
{
    double stay = now->rate > 1e-200 ? now->uses / now->rate : UTILITY_STAY_MOST;
    int home = to != NULL ? option_home(to) : TIERS;
    if (home < TIERS && policy->stay[home] < stay) stay = policy->stay[home];
    if (stay < UTILITY_STAY_LEAST) return UTILITY_STAY_LEAST;
    return stay < UTILITY_STAY_MOST ? stay : UTILITY_STAY_MOST;
}

/* The bytes that a step frees in `tier`, 0 when it is no step there. A step must free bytes in the
 * tier and add none above. In contiguous mode it must leave no held child without its prefix, and
 * go below none: else a tier would fill with prefixes of what lies above, which all must stay. */
static uint64_t utility_freed(const kvt_policy *policy, const entry *e, uint8_t to, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    if (to == KVT_OPTION_NONE) {
        bool needed = policy->config.holes == KVT_HOLES_CONTIGUOUS && entry_children(e) > 0;
        return needed ? 0 : e->bytes[tier];
    }
    const stored_option *o = entry_option(policy, e, to);
    if (to == e->current || o->bytes[tier] >= e->bytes[tier]) return 0;
    for (int above = 0; above < tier; above++)
        if (o->bytes[above] > e->bytes[above]) return 0;
    int home = option_home(o);
    if (policy->config.holes == KVT_HOLES_CONTIGUOUS && entry_has_child_above(e, home) &&
        home > option_home(entry_option(policy, e, e->current)))
        return 0;
    return utility_is_reachable(policy, e, to) ? e->bytes[tier] - o->bytes[tier] : 0;
}

/* Returns what a step costs beside its loss: the write, paid off over the stay, and the bytes below
 * at the shadow price there. The last step of a tier stands for its price, because a key must not
 * cost a choice in every tier below. The same sum with the prices of the moment is
 * utility_beside_loss. */
static double utility_standing_cost(const kvt_policy *policy, const write_costs *now,
                                    const entry *e, uint8_t to, int tier, const reuse_now *use)
{
    if (to == KVT_OPTION_NONE) return 0.0;
    uint64_t need[TIERS];
    entry_needs(policy, e, to, need);
    const stored_option *o = entry_option(policy, e, to);
    double beside = utility_write_at(policy, now, e, o, need) / utility_stay(policy, use, o);
    for (int below = tier + 1; below < TIERS; below++)
        beside += policy->shadow_price[below] * (double)need[below];
    return beside;
}

/* A step that codes an entry anew inside a tier has to hold both options for a while. The room kept
 * for that is enough, unless the tier is small or the entry large: then it must be there now. A
 * step that drops planes in place needs none. */
static bool utility_has_room_inside(const kvt_policy *policy, const entry *e, uint8_t to, int tier)
{
    uint64_t need = entry_need(policy, e, to, tier);
    if (need <= policy->staging[tier]) return true;
    return (int64_t)need <= policy_room(policy, tier);
}

/* Seconds that a step costs for each use a second; `cost` is that of the present option. Evicting
 * costs the next use alone, which stores the entry anew. Coding costs beside it what lasts: loss
 * and decoding for the rest of its life, less the price of the bytes that it frees for as long. */
static double utility_lost(const kvt_policy *policy, const entry *e, uint8_t to, double cost)
{
    double lost = entry_cost(policy, e, to) - cost;
    if (to == KVT_OPTION_NONE) return lost;
    const stored_option *from = entry_option(policy, e, e->current);
    const stored_option *then = entry_option(policy, e, to);
    double alpha = entry_alpha(policy, e);
    double again = utility_again(policy, e, then, alpha);
    double more = option_cost(then, e, alpha) + again - then->load_seconds -
                  (option_cost(from, e, alpha) - from->load_seconds);
    lost += again;
    if (!(more > 0.0)) return lost;
    for (int tier = 0; tier < TIERS; tier++) {
        if (e->bytes[tier] <= then->bytes[tier]) continue;
        double freed = (double)(e->bytes[tier] - then->bytes[tier]);
        more -= policy->lives.gap_seconds * policy->shadow_price[tier] * freed;
    }
    return more > 0.0 ? lost + more * policy->lives.more[reuse_ages_turn(e->turn)] : lost;
}

/*
 * Finds the step of an entry that is cheapest now in a tier; its loss per byte at rate 1 in log2
 * is the entry's density. Steps without room inside the tier give no key: entries that cannot move
 * would stand in front of those that can.
 *
 * *next receives that step and whether it is paid; it is not touched when no step is found.
 */
static float utility_density(const kvt_policy *policy, const entry *e, int tier,
                             const reuse_now *use, uint8_t *next)
{
    double cost = entry_cost(policy, e, e->current);
    double least = UNLIMITED;
    double density = 0.0;
    double rate = use->rate;
    write_costs now = utility_write_costs(policy);
    for (uint8_t to = 0; to < e->option_count; to++) {
        uint64_t freed = utility_freed(policy, e, to, tier);
        if (freed == 0 || !utility_has_room_inside(policy, e, to, tier)) continue;
        double lost = utility_lost(policy, e, to, cost) / (double)freed;
        if (rate * lost >= least) continue;
        double beside = utility_standing_cost(policy, &now, e, to, tier, use) / (double)freed;
        if (rate * lost + beside >= least) continue;
        least = rate * lost + beside;
        density = lost;
        *next = (uint8_t)(to | (beside > 0.0 ? NEXT_PAID : 0u));
    }
    if (least >= UNLIMITED) return DENSITY_NONE;
    return density > 1e-200 ? (float)number_log2(density) : UTILITY_WORTHLESS;
}

/* Returns the buckets that an entry stands in, or would: its tenant's group, and free or paid by
 * its cheapest step. The caller changes next[] or the group only while the entry is outside, or it
 * would be looked for in the wrong buckets. */
static buckets *utility_buckets(const kvt_policy *policy, const entry *e, int tier)
{
    victims *group = policy->groups[policy->tenants[e->tenant].group];
    return &group->of[tier][(e->next[tier] & NEXT_PAID) != 0 ? STEPS_PAID : STEPS_FREE];
}

/* Takes an entry out of all tiers' orders. */
static void utility_remove(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    for (int tier = 0; tier < TIERS; tier++)
        buckets_remove(utility_buckets(policy, e, tier), engine_links(policy, tier), index);
}

/* When the entry's loss per byte falls to what the tier's steps lose now, by the age of its last
 * use. An entry below already stands in order of its loss, before the moment when the price was
 * set: that order does not change with time. The key is in minutes of the engine's time; a smaller
 * one is a better victim. */
static double utility_key(kvt_policy *policy, const entry *e, int tier, double log_rate,
                          const reuse_now *use)
{
    int kind = (e->next[tier] & NEXT_PAID) != 0 ? STEPS_PAID : STEPS_FREE;
    double density = log_rate + (double)e->density[tier];
    double *price = &policy->step_price[tier][kind];
    if (*price >= UNLIMITED) { /* until something has gone */
        *price = density - UTILITY_FIRST;
        policy->step_priced[tier][kind] = reuse_seconds(policy, policy->now_ns) / ORDER_SECONDS;
    }
    double above = density - *price;
    if (above <= 0.0) return policy->step_priced[tier][kind] + above;
    double least = *price - (double)e->density[tier];
    if (least < -UTILITY_OCTAVES) least = -UTILITY_OCTAVES;
    double ahead = reuse_falls_in(policy, e, use, number_exp2(least)) / ORDER_SECONDS;
    /* An entry far ahead stands nearer, in the same order: it is sorted anew before its time. */
    if (ahead > UTILITY_FAR) ahead = UTILITY_FAR + (ahead - UTILITY_FAR) / 256.0;
    return reuse_seconds(policy, policy->now_ns) / ORDER_SECONDS + ahead;
}

/* log2 of an entry's rate; that of nothing is 2^-700, below every real one and finite. */
static double utility_log_rate(const reuse_now *use)
{
    return use->rate > 1e-200 ? number_log2(use->rate) : -700.0;
}

/* Puts the entry where its counter and its densities say, in each tier that holds bytes of it; only
 * utility_index works these out again. */
static void utility_sort(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    reuse_now use = reuse_look(policy, e);
    double log_rate = utility_log_rate(&use);
    for (int tier = 0; tier < TIERS; tier++) {
        buckets *b = utility_buckets(policy, e, tier);
        if (e->density[tier] < DENSITY_NONE) {
            buckets_set(b, engine_links(policy, tier), index,
                        utility_key(policy, e, tier, log_rate, &use));
        } else {
            buckets_remove(b, engine_links(policy, tier), index);
        }
    }
}

/* Finds the entry's cheapest step in each tier and puts the entry where its loss belongs; an entry
 * that cannot move leaves the index. The weighing of all options runs here alone: when an entry is
 * stored, moved, pinned or its figures change, not at a use. */
static void utility_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        utility_remove(policy, index);
        return;
    }
    reuse_now use = reuse_look(policy, e);
    for (int tier = 0; tier < TIERS; tier++) {
        uint8_t next = KVT_OPTION_NONE;
        float density = DENSITY_NONE;
        if (e->bytes[tier] > 0) density = utility_density(policy, e, tier, &use, &next);
        if ((next ^ e->next[tier]) & NEXT_PAID) {
            buckets_remove(utility_buckets(policy, e, tier), engine_links(policy, tier), index);
        }
        e->density[tier] = density;
        e->next[tier] = next;
    }
    utility_sort(policy, index);
}

/* Sorts an entry whose turn it is. What a copy elsewhere is worth changes with its age alone, so an
 * entry with one is weighed again. */
static void utility_sort_anew(kvt_policy *policy, uint32_t index)
{
    if (policy->copies.notes != NULL && policy->copies.notes[index].load_seconds > 0.0f)
        utility_index(policy, index);
    else
        utility_sort(policy, index);
}

/* A prefix is used whenever its continuation is: f(parent) >= f(child) always. A caller that feeds
 * prefixes root first has raised the parent already, and the walk ends at once. The densities do
 * not change with a use: only the rate does. */
static void utility_counted(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    if (entry_is_movable(e)) utility_sort(policy, index);
    for (uint32_t up = e->parent; up != NIL; up = e->parent) {
        entry *above = entry_at(policy, up);
        if (!reuse_raise(policy, above, e)) return;
        if (entry_is_movable(above)) utility_sort(policy, up);
        e = above;
    }
}

/* An entry that was on the disk before a restart counts as used once, one half life ago, unless
 * more is remembered: otherwise all such entries would go before anything new does. Its prefixes
 * are raised with it. */
static void utility_adopted(kvt_policy *policy, uint32_t index)
{
    reuse_adopt(policy, entry_at(policy, index));
    utility_counted(policy, index);
}

/* The first entry of a kind in a tier, of all groups or of the plan's own group; NIL when there is
 * none. *from_out is the buckets that it was found in, for buckets_next. */
static uint32_t utility_first(const kvt_policy *policy, int tier, int kind, int own_group,
                              const buckets **from_out)
{
    uint32_t first = NIL;
    double least = UNLIMITED;
    for (uint32_t group = 0; group < policy->group_count; group++) {
        const buckets *b = &policy->groups[group]->of[tier][kind];
        if ((own_group >= 0 && (uint32_t)own_group != group) || b->count == 0) continue;
        uint32_t candidate = buckets_first(b);
        if (policy->group_count > 1) {
            double floor = buckets_floor(b, engine_links(policy, tier), candidate);
            if (first != NIL && floor >= least) continue;
            least = floor;
        }
        first = candidate;
        *from_out = b;
    }
    if (first != NIL) entry_prefetch(policy, first);
    return first;
}

/* Says whether any entry of a tier could give way. */
static bool utility_has_victims(const kvt_policy *policy, int tier)
{
    for (uint32_t group = 0; group < policy->group_count; group++)
        for (int kind = 0; kind < STEP_KINDS; kind++)
            if (policy->groups[group]->of[tier][kind].count > 0) return true;
    return false;
}

/* At least what a byte costs in a full tier: the first free step, or the first paid one without its
 * other costs. It is 0 where the tier has no victims, because then nothing can be said. */
static double utility_price_bound(const kvt_policy *policy, int tier)
{
    double least = UNLIMITED;
    for (int kind = 0; kind < STEP_KINDS; kind++) {
        const buckets *from = NULL;
        uint32_t first = utility_first(policy, tier, kind, -1, &from);
        if (first == NIL) continue;
        const entry *e = entry_at(policy, first);
        double price = reuse_rate(policy, e) * number_exp2((double)e->density[tier]);
        if (kind == STEPS_PAID && price < policy->shadow_price[tier])
            price = policy->shadow_price[tier];
        if (price < least) least = price;
    }
    return least < UNLIMITED ? least : 0.0;
}

/* Whether a tier is as full as the watermarks let it be: what they keep free is not without cost,
 * others were driven out for it. */
static bool utility_is_tight(const kvt_policy *policy, const int64_t room[TIERS], int tier)
{
    double kept = (1.0 - policy->config.low_watermark) * (double)policy->capacity[tier];
    return (double)room[tier] < kept;
}

/* The prices below a tier as one choice sees them: what a byte costs at least in each tier where
 * room has to be made, and what one written costs. */
typedef struct choice_prices {
    const int64_t *room;
    double price[TIERS]; /* below 0: not looked up yet */
    write_costs write_costs;
} choice_prices;

/* Begins a choice: no price is looked up yet. Prices of tiers that no step of the choice needs are
 * never looked up. */
static choice_prices choice_prices_open(const kvt_policy *policy, const int64_t room[TIERS])
{
    return (choice_prices){
        .room = room, .price = {-1.0, -1.0, -1.0}, .write_costs = utility_write_costs(policy)};
}

/* The cost of a step beside its utility: its write, and the shadow price of room in full tiers
 * below. A price is a lower bound, so a step is never refused for a price that nobody would pay. */
static double utility_beside_loss(const kvt_policy *policy, choice_prices *known, double write,
                                  const uint64_t need[TIERS], int tier)
{
    double beside = write;
    for (int below = tier + 1; below < TIERS; below++) {
        int64_t bytes = (int64_t)need[below];
        if (bytes == 0) continue;
        bool fits = bytes + (int64_t)policy->staging[below] <= known->room[below];
        if (fits && !utility_is_tight(policy, known->room, below)) continue;
        if (known->price[below] < 0.0) known->price[below] = utility_price_bound(policy, below);
        beside += known->price[below] * (double)bytes;
    }
    return beside;
}

/* Says whether the bytes of a step can be had. In its own tier and above they must fit as things
 * are; below, they may also be had by making room, unless only what fits now is asked for. Room
 * that a step needs above its tier cannot be made by it: that would drive out better entries for a
 * worse place. */
static bool utility_can_place(const kvt_policy *policy, const int64_t room[TIERS],
                              const uint64_t need[TIERS], int tier, uint64_t spare, bool now)
{
    for (int other = 0; other < TIERS; other++) {
        int64_t bytes = (int64_t)need[other];
        if (bytes == 0) continue;
        if (other > tier) bytes += (int64_t)policy->staging[other];
        if (other == tier) bytes += (int64_t)spare;
        if (room[other] >= bytes) continue;
        if (now || other <= tier || !utility_has_victims(policy, other)) return false;
    }
    return true;
}

/* An entry as a victim in one tier, with what all of its steps have in common. now: the choice must
 * not count on room that a later step would make below. */
typedef struct victim {
    uint32_t index;
    int tier;
    bool now;       /* only steps that need no more room below */
    uint64_t spare; /* bytes of the tier that a step inside it leaves free */
    double rate;
    const reuse_now *use;
    double cost; /* of its present option */
} victim;

/* One step of an entry; false when it is none. Taken when it loses less than *per_byte, by byte
 * freed in the tier. *per_byte falls to the step's cost per byte when it is taken, and *out is the
 * step; true without a change means that the step can be had but costs more. */
static bool utility_try(const kvt_policy *policy, choice_prices *known, const victim *of,
                        uint8_t to, step *out, double *per_byte)
{
    assert(of->rate >= 0.0);
    const entry *e = entry_at(policy, of->index);
    uint64_t freed = utility_freed(policy, e, to, of->tier);
    if (freed == 0) return false;
    uint64_t need[TIERS] = {0};
    if (to != KVT_OPTION_NONE) {
        entry_needs(policy, e, to, need);
        if (!utility_can_place(policy, known->room, need, of->tier, of->spare, of->now))
            return false;
    }
    double loss = of->rate * utility_lost(policy, e, to, of->cost);
    double limit = *per_byte * (double)freed;
    if (loss >= limit) return true;
    double write = 0.0;
    if (to != KVT_OPTION_NONE) {
        const stored_option *o = entry_option(policy, e, to);
        write = utility_write_at(policy, &known->write_costs, e, o, need) /
                utility_stay(policy, of->use, o);
    }
    double cost_in_all = loss + utility_beside_loss(policy, known, write, need, of->tier);
    if (cost_in_all >= limit) return true;
    *per_byte = cost_in_all / (double)freed;
    /* The plan spends the loss and the write; room below is paid for by the steps there. */
    *out = (step){.entry = of->index, .to = to, .cost = loss + write, .gain = -loss};
    return true;
}

/* The cheapest step of one entry per byte freed in a tier, if it is cheaper than *per_byte: the one
 * behind its key or, when shadow prices have changed since, giving it up; any other only when
 * neither can be had. Two options are tried in nearly every call, so a choice does not grow with
 * the length of ladders. */
static bool utility_cheapest(const kvt_policy *policy, choice_prices *known, uint32_t index,
                             int tier, bool now, step *out, double *per_byte)
{
    const entry *e = entry_at(policy, index);
    reuse_now use = reuse_look(policy, e);
    victim of = {.index = index,
                 .tier = tier,
                 .now = now,
                 .rate = use.rate,
                 .use = &use,
                 .cost = entry_cost(policy, e, e->current)};
    double before = *per_byte;
    uint8_t first = e->next[tier] & (uint8_t)~NEXT_PAID;
    bool found = utility_try(policy, known, &of, first, out, per_byte);
    if (first != KVT_OPTION_NONE &&
        utility_try(policy, known, &of, KVT_OPTION_NONE, out, per_byte)) {
        found = true;
    }
    /* A small tier keeps too little room for coding inside it, and the key, which is of an earlier
     * moment, does not know what is there: it may name the coarsest variant alone. Others leave
     * that room free, since a tier that is full to the byte has room too scattered for a record. */
    const bool small = policy->staging[tier] == 0 || policy->staging_short[tier];
    if (policy->staging_short[tier]) of.spare = policy->staging[tier];
    for (uint8_t to = 1; (small || !found) && to < e->option_count; to++)
        if (to != first) found = utility_try(policy, known, &of, to, out, per_byte) || found;
    return *per_byte < before;
}

/* Finds the cheapest step among the first few entries of each kind. Returns the entry that was
 * looked at first, NIL when the tier has no victims, so that the caller can skip it. Entries of
 * equal cost are taken in order, so the result is a function of the state. */
static uint32_t utility_look(const kvt_policy *policy, choice_prices *known, int tier,
                             int own_group, step *out, double *best)
{
    uint32_t looked = NIL;
    bucket_links links = engine_links(policy, tier);
    const int looks = policy->staging_short[tier] ? UTILITY_LOOK_SMALL : UTILITY_LOOK;
    *best = UNLIMITED;
    for (int kind = 0; kind < STEP_KINDS; kind++) {
        const buckets *from = NULL;
        uint32_t index = utility_first(policy, tier, kind, own_group, &from);
        if (index != NIL) looked = index;
        for (int look = 0; look < looks && index != NIL; look++) {
            step other;
            double per_byte = *best;
            /* The next one is looked at now, or stands first when this one has gone. */
            uint32_t next = buckets_next(from, links, index);
            if (next != NIL) entry_prefetch(policy, next);
            if (utility_cheapest(policy, known, index, tier, false, &other, &per_byte) &&
                tentative_fits_share(policy, index, other.to)) {
                *best = per_byte;
                *out = other;
            }
            index = next;
        }
    }
    return looked;
}

/* Returns what a byte costs in a tier that is full: what the next step there would lose. Looks at
 * the same entries as a choice does, and changes nothing. The price of a tier without a victim is
 * 0. */
double utility_root_price(const kvt_policy *policy, const int64_t room[TIERS], int tier)
{
    step cheapest;
    double per_byte;
    choice_prices known = choice_prices_open(policy, room);
    (void)utility_look(policy, &known, tier, -1, &cheapest, &per_byte);
    return per_byte < UNLIMITED && per_byte > 0.0 ? per_byte : 0.0;
}

/* Returns 0 where another entry such as the first victim would fit without driving anything out.
 * The figure is for explanations and statistics; decisions use utility_look_up_price, which
 * remembers what it found. */
double utility_price(const kvt_policy *policy, int tier)
{
    int64_t room[TIERS];
    for (int other = 0; other < TIERS; other++)
        room[other] = policy_room(policy, other);
    const buckets *from = NULL;
    uint32_t first = utility_first(policy, tier, STEPS_FREE, -1, &from);
    if (first == NIL) first = utility_first(policy, tier, STEPS_PAID, -1, &from);
    if (first == NIL) return 0.0;
    if ((int64_t)entry_at(policy, first)->bytes[tier] <= room[tier] &&
        !utility_is_tight(policy, room, tier)) {
        return 0.0;
    }
    return utility_root_price(policy, room, tier);
}

/* Fills in the price of a byte in one tier for a decision, or the bytes there that cost nothing: a
 * part of the room of a tier that has been full, because what fills the rest drives out the next
 * entry. A price of the last five seconds stands for the present one: a decision would else walk
 * the front of every full tier. */
void utility_look_up_price(kvt_policy *policy, shadow_prices *known, int tier, uint64_t need)
{
    int64_t room = known->room[tier] - (int64_t)policy->staging[tier];
    if (room > 0 && (known->giving || !utility_is_tight(policy, known->room, tier))) {
        const bool was_full = policy->shadow_price_ns[tier] > 0 && !known->giving;
        known->free[tier] = (uint64_t)room / (was_full ? UTILITY_ROOM_PART : 1u);
        if (need <= known->free[tier]) return;
    }
    /* The price is the loss of the last step there, unless that is long ago: while it is too much
     * nothing comes there, so that it would never be found out. */
    if (!(policy->shadow_price[tier] > 0.0) ||
        policy->now_ns - policy->shadow_price_ns[tier] > UTILITY_PRICE_NS) {
        policy->shadow_price[tier] = utility_root_price(policy, known->room, tier);
        policy->shadow_price_ns[tier] = policy->now_ns;
    }
    known->price[tier] = policy->shadow_price[tier];
}

/* Gives entries at the front another key that have not fallen as far as theirs said, or that count
 * on room inside the tier that is gone. Only keys that were too early are put right here; one that
 * is too late waits for the sweep. */
static void utility_refresh_front(kvt_policy *policy, tentative_plan *work, int tier)
{
    for (uint32_t turn = 0; turn < UTILITY_REFRESH && work->refreshes > 0; turn++) {
        work->refreshes--;
        /* Either front may have gone stale; both are looked at before the next turn. */
        bool stale = false;
        for (int kind = 0; kind < STEP_KINDS; kind++) {
            const buckets *from = NULL;
            uint32_t first = utility_first(policy, tier, kind, -1, &from);
            if (first == NIL) continue;
            const entry *e = entry_at(policy, first);
            uint8_t to = e->next[tier] & (uint8_t)~NEXT_PAID;
            if (!utility_has_room_inside(policy, e, to, tier)) {
                utility_index(policy, first);
                stale = true;
                continue;
            }
            int32_t before = e->link[tier].number;
            utility_sort_anew(policy, first);
            if (e->link[tier].number > before) stale = true;
        }
        if (!stale) return;
    }
}

/* An entry that a plan has skipped stays outside; its old densities may be used for sorting. */
static bool utility_is_sorted(const entry *e)
{
    for (int tier = 0; tier < TIERS; tier++)
        if (e->state == POLICY_ENTRY_HELD && e->link[tier].number != BUCKETS_ABSENT) return true;
    return false;
}

/* Sorts some entries anew: their slopes, the weights and the price have changed since. The hand
 * goes around all slots, so every entry is reached within entries_used turns. */
void utility_sweep(kvt_policy *policy, tentative_plan *work, uint32_t turns)
{
    if (turns > work->sweeps) turns = work->sweeps;
    work->sweeps -= turns;
    for (uint32_t turn = 0; turn < turns; turn++) {
        policy->sweep = policy->sweep + 1 < policy->entries_used ? policy->sweep + 1 : 0;
        if (utility_is_sorted(entry_at(policy, policy->sweep)))
            utility_sort_anew(policy, policy->sweep);
    }
    policy->sweep_left -= policy->sweep_left < turns ? policy->sweep_left : turns;
}

/* Follows what steps lose; when that has moved, all entries are sorted anew, some at a time. The
 * price follows by a sixteenth of the distance per step, which smooths single odd victims away. All
 * entries are sorted anew only when it has moved by UTILITY_MOVED octaves, or is older than
 * UTILITY_OLD. */
static void utility_note(kvt_policy *policy, const step *chosen, int tier)
{
    const entry *e = entry_at(policy, chosen->entry);
    int kind = (e->next[tier] & NEXT_PAID) != 0 ? STEPS_PAID : STEPS_FREE;
    reuse_now use = reuse_look(policy, e);
    double seen = utility_log_rate(&use) + (double)e->density[tier];
    if (seen < -600.0 || e->density[tier] >= DENSITY_NONE) return;
    double *lately = &policy->step_price_lately[tier][kind];
    *lately = *lately < UNLIMITED ? *lately + (seen - *lately) / 16.0 : seen;
    double moved = *lately - policy->step_price[tier][kind];
    double now = reuse_seconds(policy, policy->now_ns) / ORDER_SECONDS;
    bool old = now - policy->step_priced[tier][kind] > UTILITY_OLD;
    if (!old && moved < UTILITY_MOVED && moved > -UTILITY_MOVED) return;
    /* One sorting ends before the next begins. */
    if (policy->sweep_left > 0) return;
    policy->step_price[tier][kind] = *lately;
    policy->step_priced[tier][kind] = now;
    policy->sweep_left = policy->entries_used;
}

/* Takes the step with the least loss per byte among the first few entries in order. Entries without
 * any step are skipped for the rest of the plan. False: no entry of the tier can give way, or the
 * plan has skipped as many as it may. */
static bool utility_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    choice_prices known = choice_prices_open(policy, work->room);
    utility_sweep(policy, work, policy->sweep_left > 0 ? UTILITY_RESORT : UTILITY_SWEEP);
    utility_refresh_front(policy, work, tier);
    for (;;) {
        double best;
        uint32_t looked = utility_look(policy, &known, tier, work->own_group, out, &best);
        if (best < UNLIMITED) {
            assert(out->entry < policy->entries_used);
            policy->shadow_price[tier] = best > 0.0 ? best : 0.0;
            policy->shadow_price_ns[tier] = policy->now_ns;
            utility_note(policy, out, tier);
            return true;
        }
        if (looked == NIL || work->skipped_count == TENTATIVE_SKIPS) return false;
        tentative_skip(policy, work, looked);
    }
}

/* The entry's cheapest step that needs no more room below, for when that could not be made. */
static bool utility_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index,
                             int tier, step *out)
{
    double per_byte = UNLIMITED;
    choice_prices known = choice_prices_open(policy, work->room);
    return utility_cheapest(policy, &known, index, tier, true, out, &per_byte);
}

/* The engine's own policy: utilities, shadow prices, learned reuse. */
const policy_ops policy_utility_ops = {.name = "utility",
                                       .counts = true,
                                       .learns = true,
                                       .remembers = true,
                                       .tree = true,
                                       .buckets = true,
                                       .index = utility_index,
                                       .remove = utility_remove,
                                       .touch = utility_counted,
                                       .choose = utility_choose,
                                       .fallback = utility_fallback,
                                       .place = utility_place,
                                       .adopted = utility_adopted,
                                       .improve = utility_improve,
                                       .promote = utility_promote,
                                       .tick = utility_tick};
