/*
 * utility.c - AdaptCache's greedy for the multiple-choice knapsack (AdaptCache, section 2), with
 * recompute and lower tiers among the steps and decayed reuse counters in the log domain.
 *
 * Counter: g = log2 of the sum over uses k of 2^(t_k/h), so that the rate of an entry is
 * f(t) = ln2/h * 2^(g - t/h), and g changes only when the entry is used. Every factor 2^(-t/h) is
 * common to all entries: an order by f-proportional losses never ages, and heap keys stay valid.
 *
 * Step of an entry from option o to o', in a tier where that frees b bytes:
 *
 *     loss = f * (cost(o') - cost(o)) + price below * bytes below + write seconds / expected stay
 *     cost(o) = alpha * loss(o) + load(o) + decode(o)                                     seconds
 *
 * The heap of a tier orders its entries by log2 of the least f * (cost(o') - cost(o)) / b: exact
 * where nothing is written below, and a lower bound otherwise. The choice therefore looks at the
 * root and at its children and takes the least true loss per byte among them.
 */
#include "policy/utility.h"

#define UTILITY_LN2       0x1.62e42fefa39efp-1
#define UTILITY_WORTHLESS (-65536.0) /* log2 density of an entry that loses nothing by the step */

double utility_rate(const kvt_policy *policy, const entry *e)
{
    double octaves = e->log_count - policy->now_half_lives;
    return UTILITY_LN2 / policy->config.half_life_seconds * number_exp2(octaves);
}

/* Two half lives: by then three quarters of what is known about an entry has decayed. */
double utility_stay_seconds(const kvt_policy *policy)
{
    return 2.0 * policy->config.half_life_seconds;
}

double utility_write_seconds(const kvt_policy *policy, const entry *e, uint8_t option)
{
    if (option == KVT_OPTION_NONE) return 0.0;
    const form *o = entry_form(policy, e, option);
    double seconds = o->encode_seconds;
    for (int level = 0; level < LEVELS; level++) {
        double rate = policy->config.tiers[level + 1].write_bytes_per_s;
        if (o->bytes[level] > 0 && rate > 0.0) seconds += (double)o->bytes[level] / rate;
    }
    return seconds;
}

bool utility_is_reachable(const kvt_policy *policy, const entry *e, uint8_t option)
{
    const form *to = entry_form(policy, e, option);
    if (!form_fits_capacity(policy, to)) return false;
    if (e->current == KVT_OPTION_NONE || e->current == option) return true;
    const form *from = entry_form(policy, e, e->current);
    if (from->loss <= 0.0) return true;
    return from->variant.codec == to->variant.codec && from->variant.mode == to->variant.mode &&
           from->variant.rate == to->variant.rate;
}

/* Bytes that a step frees in `level`, 0 when it is no step there: it must free bytes in the tier,
 * add none above, and leave no held child without its prefix. */
static uint64_t utility_freed(const kvt_policy *policy, const entry *e, uint8_t to, int level)
{
    const form *from = entry_form(policy, e, e->current);
    if (to == KVT_OPTION_NONE) {
        bool needed = policy->config.holes == KVT_HOLES_CONTIGUOUS && e->children > 0;
        return needed ? 0 : from->bytes[level];
    }
    if (to == e->current || !utility_is_reachable(policy, e, to)) return 0;
    const form *o = entry_form(policy, e, to);
    for (int above = 0; above < level; above++)
        if (o->bytes[above] > from->bytes[above]) return 0;
    return o->bytes[level] < from->bytes[level] ? from->bytes[level] - o->bytes[level] : 0;
}

/* log2 of the least (cost(o') - cost(o)) / freed over the steps in a level; false without steps. */
static bool utility_density(const kvt_policy *policy, const entry *e, int level, double *log_out)
{
    double cost = entry_cost(policy, e, e->current);
    double least = UNLIMITED;
    for (uint8_t to = 0; to < e->option_count; to++) {
        uint64_t freed = utility_freed(policy, e, to, level);
        if (freed == 0) continue;
        double density = (entry_cost(policy, e, to) - cost) / (double)freed;
        if (density < least) least = density;
    }
    if (least >= UNLIMITED) return false;
    *log_out = least > 1e-200 ? number_log2(least) : UTILITY_WORTHLESS;
    return true;
}

static void utility_remove(kvt_policy *policy, uint32_t index)
{
    for (int level = 0; level < LEVELS; level++)
        heap_remove(&policy->heaps[level], engine_places(policy, level), index);
}

static void utility_index(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        utility_remove(policy, index);
        return;
    }
    const form *now = entry_form(policy, e, e->current);
    for (int level = 0; level < LEVELS; level++) {
        double density;
        if (now->bytes[level] > 0 && utility_density(policy, e, level, &density)) {
            heap_set(&policy->heaps[level], engine_places(policy, level), index,
                     e->log_count + density);
        } else {
            heap_remove(&policy->heaps[level], engine_places(policy, level), index);
        }
    }
}

/* A prefix is used whenever its continuation is: f(parent) >= f(child) always. A caller that feeds
 * paths root first has raised the parent already, and the walk ends at once. */
static void utility_set_count(kvt_policy *policy, uint32_t index, double count)
{
    entry_at(policy, index)->log_count = count;
    utility_index(policy, index);
    uint32_t up = entry_at(policy, index)->parent;
    while (up != NIL && entry_at(policy, up)->log_count < count) {
        entry_at(policy, up)->log_count = count;
        utility_index(policy, up);
        up = entry_at(policy, up)->parent;
    }
}

/* One use now. */
static void utility_touch(kvt_policy *policy, uint32_t index)
{
    double old = entry_at(policy, index)->log_count;
    utility_set_count(policy, index, number_log2_add(old, policy->now_half_lives));
}

/* What was on the disk before a restart counts as used once, one half life ago, unless more is
 * remembered: otherwise all of it would go before anything new does. */
static void utility_adopted(kvt_policy *policy, uint32_t index)
{
    double old = entry_at(policy, index)->log_count;
    double prior = policy->now_half_lives - 1.0;
    utility_set_count(policy, index, old > prior ? old : prior);
}

static double utility_key_rate(const kvt_policy *policy, double key)
{
    double octaves = key - policy->now_half_lives;
    return UTILITY_LN2 / policy->config.half_life_seconds * number_exp2(octaves);
}

/* At least what the bytes cost in a tier without room for them: the root's key, without charges. */
static double utility_price_bound(const kvt_policy *policy, int level, int64_t room, uint64_t bytes)
{
    const heap *h = &policy->heaps[level];
    if (bytes == 0 || h->count == 0 || (room >= 0 && bytes <= (uint64_t)room)) return 0.0;
    return utility_key_rate(policy, h->items[0].key);
}

/* What an option costs beside its utility: rent in the tiers below that are full, and its write. */
static double utility_step_charge(const kvt_policy *policy, const int64_t room[LEVELS],
                                  const entry *e, uint8_t to, int level)
{
    if (to == KVT_OPTION_NONE) return 0.0;
    double charge = utility_write_seconds(policy, e, to) / utility_stay_seconds(policy);
    for (int below = level + 1; below < LEVELS; below++) {
        uint64_t bytes = entry_bytes(policy, e, to, below);
        charge += utility_price_bound(policy, below, room[below], bytes) * (double)bytes;
    }
    return charge;
}

/* Whether the bytes of a step can be had: in its own tier now, below now or by room-making. */
static bool utility_can_place(const kvt_policy *policy, const int64_t room[LEVELS], const entry *e,
                              uint8_t to, int level, bool now)
{
    if (to == KVT_OPTION_NONE) return true;
    for (int other = 0; other < LEVELS; other++) {
        int64_t bytes = (int64_t)entry_bytes(policy, e, to, other);
        if (bytes == 0 || room[other] >= bytes) continue;
        if (now || other <= level || policy->heaps[other].count == 0) return false;
    }
    return true;
}

/* The cheapest step of one entry per byte freed in a level. */
static bool utility_cheapest(const kvt_policy *policy, const int64_t room[LEVELS], uint32_t index,
                             int level, bool now, step *out, double *per_byte)
{
    const entry *e = entry_at(policy, index);
    double rate = utility_rate(policy, e);
    double cost = entry_cost(policy, e, e->current);
    *per_byte = UNLIMITED;
    for (uint8_t to = 0; to < e->option_count; to++) {
        uint64_t freed = utility_freed(policy, e, to, level);
        if (freed == 0 || !utility_can_place(policy, room, e, to, level, now)) continue;
        double loss = rate * (entry_cost(policy, e, to) - cost);
        double charged = loss + utility_step_charge(policy, room, e, to, level);
        if (charged / (double)freed >= *per_byte) continue;
        *per_byte = charged / (double)freed;
        /* What is spent is the loss and the write; room below is paid for by the steps there. */
        double write = utility_write_seconds(policy, e, to) / utility_stay_seconds(policy);
        *out = (step){.entry = index, .to = to, .cost = loss + write, .gain = -loss};
    }
    return *per_byte < UNLIMITED;
}

/* What a byte costs in a tier that is full: the true loss of the root's cheapest step. */
static double utility_root_price(const kvt_policy *policy, const int64_t room[LEVELS], int level)
{
    const heap *h = &policy->heaps[level];
    step cheapest;
    double per_byte;
    if (h->count == 0) return 0.0;
    if (!utility_cheapest(policy, room, h->items[0].entry, level, false, &cheapest, &per_byte)) {
        return 0.0;
    }
    return per_byte > 0.0 ? per_byte : 0.0;
}

double utility_price(const kvt_policy *policy, int level)
{
    const heap *h = &policy->heaps[level];
    if (h->count == 0) return 0.0;
    int64_t room[LEVELS];
    for (int other = 0; other < LEVELS; other++)
        room[other] = (int64_t)policy->capacity[other] - (int64_t)policy->used[other];
    const entry *root = entry_at(policy, h->items[0].entry);
    if ((int64_t)entry_bytes(policy, root, root->current, level) <= room[level]) return 0.0;
    return utility_root_price(policy, room, level);
}

rents utility_rents(const int64_t room[LEVELS])
{
    rents known;
    for (int level = 0; level < LEVELS; level++) {
        known.room[level] = room[level];
        known.price[level] = -1.0;
    }
    return known;
}

double utility_rent(const kvt_policy *policy, rents *known, const entry *e, uint8_t option)
{
    double rent = 0.0;
    for (int level = 0; level < LEVELS; level++) {
        int64_t bytes = (int64_t)entry_bytes(policy, e, option, level);
        if (bytes == 0 || bytes <= known->room[level]) continue;
        if (known->price[level] < 0.0) {
            known->price[level] = utility_root_price(policy, known->room, level);
        }
        rent += known->price[level] * (double)bytes;
    }
    return rent;
}

static bool utility_choose(kvt_policy *policy, draft *work, int level, step *out)
{
    const heap *h = &policy->heaps[level];
    while (h->count > 0) {
        double best;
        bool found =
            utility_cheapest(policy, work->room, h->items[0].entry, level, false, out, &best);
        double bound = utility_key_rate(policy, h->items[0].key);
        if (found && best <= bound * (1.0 + 1e-9)) return true;
        for (uint32_t child = 1; child < 5 && child < h->count; child++) {
            step other;
            double per_byte;
            if (!utility_cheapest(policy, work->room, h->items[child].entry, level, false, &other,
                                  &per_byte) ||
                per_byte >= best) {
                continue;
            }
            best = per_byte;
            *out = other;
            found = true;
        }
        if (found) return true;
        if (work->aside_count == DRAFT_ASIDE) return false;
        draft_set_aside(policy, work, h->items[0].entry);
    }
    return false;
}

static bool utility_fallback(kvt_policy *policy, const draft *work, uint32_t index, int level,
                             step *out)
{
    double per_byte;
    return utility_cheapest(policy, work->room, index, level, true, out, &per_byte);
}

/* Best first: score = gain over NONE - share of the write - rent in the tiers without room. */
static bool utility_next_option(const kvt_policy *policy, rents *known, const entry *e,
                                uint32_t *tried, step *out)
{
    double rate = utility_rate(policy, e);
    double best = 0.0;
    uint8_t found = KVT_OPTION_NONE;
    for (uint8_t option = 1; option < e->option_count; option++) {
        if ((*tried >> option & 1) != 0 || !utility_is_reachable(policy, e, option)) continue;
        double gain = rate * (e->recompute_seconds - entry_cost(policy, e, option));
        double write = utility_write_seconds(policy, e, option) / utility_stay_seconds(policy);
        if (gain <= write) continue;
        double score = gain - write - utility_rent(policy, known, e, option);
        if (found != KVT_OPTION_NONE && score <= best) continue;
        found = option;
        best = score;
        out->to = option;
        out->cost = write;
        out->gain = gain;
    }
    *tried |= UINT32_C(1) << found;
    return found != KVT_OPTION_NONE;
}

/* The first option whose gain pays for its write and for the steps that make its room. */
static bool utility_place(kvt_policy *policy, draft *work, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    rents known = utility_rents(work->room);
    uint32_t tried = 0;
    step put = {.entry = index};
    while (utility_next_option(policy, &known, e, &tried, &put)) {
        work->budget = put.gain - put.cost;
        put.cost = 0.0; /* it is in the budget */
        if (room_make_for(policy, work, index, put.to) && work->spent < work->budget &&
            draft_add(policy, work, &put)) {
            return true;
        }
        draft_cut(policy, work, 0, 0.0);
        work->bounded = false;
    }
    return false;
}

const policy_ops policy_utility_ops = {.name = "utility",
                                       .counts = true,
                                       .heaps = true,
                                       .index = utility_index,
                                       .remove = utility_remove,
                                       .touch = utility_touch,
                                       .choose = utility_choose,
                                       .fallback = utility_fallback,
                                       .place = utility_place,
                                       .adopted = utility_adopted,
                                       .improve = utility_improve,
                                       .tick = utility_tick};
