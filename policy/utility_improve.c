/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utility_improve.c - moves that nobody forces: promotions and better options, and the tick.
 *
 * Rule (research: switch only if the gain over the expected stay exceeds the cost of the move):
 *
 *     (f * (cost(o) - cost(o')) - losses of making room) * stay  >  hysteresis * move seconds
 *
 * Both sides are seconds. The move seconds are those of encoding and writing; the tick adds those
 * of reading, which a use has paid already. A use that is expected now counts as one beside those
 * that f predicts over the stay; reading ahead of it is background work.
 *
 * The file chooses moves and never victims: room for a promotion is made by room.c through the
 * policy's own steps, and its cost is charged against the gain. A move that only reading would pay
 * for is left to the tick.
 */
#include "policy/reuse.h"
#include "policy/room.h"
#include "policy/utility.h"
#include "policy/write_queue.h"

#include <assert.h>

#define IMPROVE_SCAN   1024u /* entries that one tick looks at, from where the last one stopped */
#define IMPROVE_CHOICE 16u   /* and how many of them it keeps, best first */
#define TICK_SORTS     1024u /* entries that a tick may sort anew: at first, and for its choices */

/* One candidate of a tick. All rates are seconds saved per second. */
typedef struct improvement {
    uint32_t entry;
    uint8_t to;
    double gain;  /* U(to) - U(from) */
    double net;   /* gain less the cost of room and the hysteresis share of the move */
    double spare; /* that share: seconds of reading, where it is asked for, encoding and writing */
} improvement;

/* The question that improve_find answers: from which tier on down, for which use. */
typedef struct improve_question {
    double read_seconds; /* of the present bytes, as far as the move pays for them */
    double uses;         /* expected now, beside those at the entry's rate */
    int top;             /* no option above this tier, */
    int below;           /* and none at this one or lower */
    bool room_only;      /* the option must fit as things are */
} improve_question;

/* Says whether an option's bytes fit into the room as it is. The caller applies the watermarks:
 * room[] has the bytes that it is ready to give. */
static bool improve_fits(const uint64_t need[TIERS], const int64_t room[TIERS])
{
    for (int tier = 0; tier < TIERS; tier++) {
        int64_t bytes = (int64_t)need[tier];
        if (bytes > 0 && bytes > room[tier]) return false;
    }
    return true;
}

/* The stored option with the highest net gain, above 0. Candidates are cut early, in the
 * order of the work that they cost: by the best that any option could save, then by the read, then
 * by room. False: *out is not to be used. */
static bool improve_find(kvt_policy *policy, uint32_t index, shadow_prices *known,
                         const improve_question *ask, improvement *out)
{
    assert(ask->read_seconds >= 0.0 && ask->uses >= 0.0);
    const entry *e = entry_at(policy, index);
    double cost = entry_cost(policy, e, e->current);
    double alpha = entry_alpha(policy, e);
    reuse_now use = {.rate = -1.0};
    out->net = 0.0;
    double most = cost - policy->least_base_cost;
    if (most <= 0.0) return false;
    if (ask->read_seconds > 0.0 && !(ask->uses > 0.0)) {
        /* Most of what a tick scans is hardly used, and ends here. */
        use = reuse_look(policy, e);
        double read =
            policy->config.hysteresis * ask->read_seconds / utility_stay(policy, &use, NULL);
        if (use.rate * most <= read) return false;
    }
    write_costs now = utility_write_costs(policy);
    for (uint8_t to = 1; to < e->option_count; to++) {
        const stored_option *o = entry_option(policy, e, to);
        double saved = cost - option_cost(o, e, alpha);
        if (to == e->current || saved <= 0.0 || !utility_is_reachable(policy, e, to)) continue;
        saved -= utility_again(policy, e, o, alpha);
        if (saved <= 0.0) continue;
        int home = option_home(o);
        if (home < ask->top || home >= ask->below) continue;
        if (use.rate < 0.0) use = reuse_look(policy, e);
        uint64_t need[TIERS];
        entry_needs(policy, e, to, need);
        double stay = utility_stay(policy, &use, o);
        double move = ask->read_seconds + utility_write_at(policy, &now, e, o, need);
        double spare = policy->config.hysteresis * move / stay;
        double gain = (use.rate + ask->uses / stay) * saved;
        double net = gain - spare;
        if (net <= out->net) continue;
        if (ask->room_only && !improve_fits(need, known->room)) continue;
        net -= utility_shadow_cost(policy, known, need);
        if (net <= out->net) continue;
        *out = (improvement){.entry = index, .to = to, .gain = gain, .net = net, .spare = spare};
    }
    return out->net > 0.0;
}

/* Plans the best place for one entry, when that gains more than it costs others. A plan that does
 * not pay is cut back to nothing and returned empty. */
static void improve_entry(kvt_policy *policy, uint32_t index, const improve_question *ask,
                          kvt_plan *plan)
{
    int64_t room[TIERS];
    for (int tier = 0; tier < TIERS; tier++)
        room[tier] = policy_room(policy, tier);
    improvement found;
    shadow_prices known = utility_prices(room, false);
    if (!improve_find(policy, index, &known, ask, &found)) return;
    tentative_plan work;
    if (!tentative_begin(policy, &work, plan)) return;
    work.budget = found.gain - found.spare;
    /* Its present bytes stay held until the move is done, so it must not be its own victim. */
    tentative_exclude(policy, index);
    bool made = room_make_for(policy, &work, index, found.to) && work.spent < work.budget;
    tentative_include(policy, index);
    step change = {.entry = index, .to = found.to, .gain = found.gain};
    if (!made || !tentative_add(policy, &work, &change)) tentative_cut(policy, &work, 0, 0.0);
    tentative_end(policy, &work);
}

/* Promotes an entry that was just used: its bytes were read for that. */
void utility_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan)
{
    const improve_question ask = {.below = TIERS};
    improve_entry(policy, index, &ask, plan);
}

/* Promotes an entry ahead of a use that is expected now. The bytes are read while nobody waits. */
void utility_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan)
{
    const entry *e = entry_at(policy, index);
    const stored_option *now = entry_option(policy, e, e->current);
    const improve_question ask = {.read_seconds = BACKGROUND_SHARE * now->load_seconds,
                                  .uses = 1.0,
                                  .top = top,
                                  .below = option_home(now)};
    improve_entry(policy, index, &ask, plan);
}

/* Bytes above the low watermark, when the tier is above the high one; what moves in flight will
 * release counts as gone already. A tier between the two watermarks is left as it is, so that room
 * is made in batches. */
static int64_t tick_excess(const kvt_policy *policy, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    double capacity = (double)policy->capacity[tier] - (double)policy->withheld[tier];
    uint64_t used = policy->used[tier] - policy->releasing[tier];
    assert(policy->used[tier] >= policy->releasing[tier]);
    double most = capacity - (double)policy->staging[tier];
    double high = policy->config.high_watermark * capacity;
    double low = policy->config.low_watermark * capacity;
    if ((double)used <= (high < most ? high : most)) return 0;
    return (int64_t)used - (int64_t)(low < most ? low : most);
}

/* Inserts into the choice, best first, equal ones in the order found. The last one falls out when
 * the choice is full. */
static void tick_keep(improvement choice[IMPROVE_CHOICE], uint32_t *count, const improvement *found)
{
    assert(*count <= IMPROVE_CHOICE && found->net > 0.0);
    uint32_t at = *count;
    if (at == IMPROVE_CHOICE && choice[at - 1].net >= found->net) return;
    if (at == IMPROVE_CHOICE)
        at--;
    else
        ++*count;
    for (; at > 0 && choice[at - 1].net < found->net; at--)
        choice[at] = choice[at - 1];
    choice[at] = *found;
}

/* Free room that a tick may give to improvements: up to the high watermark, so that it does not
 * call for room-making in the next tick. */
static void tick_spare_room(const kvt_policy *policy, const tentative_plan *work,
                            int64_t room[TIERS])
{
    for (int tier = 0; tier < TIERS; tier++) {
        double kept = (1.0 - policy->config.high_watermark) * (double)policy->capacity[tier];
        if (kept < (double)policy->staging[tier]) kept = (double)policy->staging[tier];
        room[tier] = work->room[tier] - (int64_t)kept;
    }
}

/* Looks at the next entries in turn, keeps the best improvements, and plans those that still fit.
 * Each candidate is checked against the room again, because those before it have used some. */
static void tick_improve(kvt_policy *policy, tentative_plan *work)
{
    improvement choice[IMPROVE_CHOICE];
    uint32_t count = 0;
    int64_t room[TIERS];
    tick_spare_room(policy, work, room);
    shadow_prices known = utility_prices(room, true);
    uint32_t scan = policy->entries_used < IMPROVE_SCAN ? policy->entries_used : IMPROVE_SCAN;
    for (uint32_t i = 0; i < scan; i++) {
        policy->hand = policy->hand + 1 < policy->entries_used ? policy->hand + 1 : 0;
        const entry *e = entry_at(policy, policy->hand);
        if (!entry_is_movable(e)) continue;
        const stored_option *now = entry_option(policy, e, e->current);
        improvement found;
        const improve_question ask = {.read_seconds = now->load_seconds + now->decode_seconds,
                                      .below = TIERS,
                                      .room_only = true};
        if (improve_find(policy, policy->hand, &known, &ask, &found))
            tick_keep(choice, &count, &found);
    }
    for (uint32_t i = 0; i < count; i++) {
        step change = {.entry = choice[i].entry, .to = choice[i].to, .gain = choice[i].gain};
        tick_spare_room(policy, work, room);
        uint64_t need[TIERS];
        entry_needs(policy, entry_at(policy, change.entry), change.to, need);
        if (improve_fits(need, room)) (void)tentative_add(policy, work, &change);
    }
}

/* Room above the watermarks first, lowest tier first, then what free room can improve. A tick that
 * made room plans no improvements: they would fill what it freed. Sorting comes first, so that
 * victims and candidates are seen at present prices. */
void utility_tick(kvt_policy *policy, tentative_plan *work)
{
    bool roomy = true;
    work->sweeps = work->refreshes = TICK_SORTS;
    utility_sweep(policy, work, policy->sweep_left < TICK_SORTS ? policy->sweep_left : TICK_SORTS);
    work->sweeps = TICK_SORTS;
    for (int tier = TIERS - 1; tier >= 0; tier--) {
        int64_t excess = tick_excess(policy, tier);
        if (policy->capacity[tier] == 0 || excess <= 0) continue;
        roomy = false;
        (void)room_make(policy, work, tier, work->room[tier] + excess);
    }
    if (roomy) tick_improve(policy, work);
}
