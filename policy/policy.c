/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - the public calls of the decision engine that concern entries and plans.
 *
 * Each call checks its arguments, reserves all memory that it could need, and only then changes
 * state: a call that fails has changed nothing. The calls decide nothing themselves. They find the
 * entry, count the use, and let the policy's functions (policy_ops) place, improve or give up.
 * Calls that change what the engine knows beside entries are in advise.c. Thread rule: the caller's
 * lock.
 */
#include "policy/engine.h"
#include "policy/recency.h"
#include "policy/reuse.h"
#include "policy/reuse_model.h"
#include "policy/utility.h"
#include "policy/write_queue.h"

#include <assert.h>
#include <string.h>

/* Sizes of tables that a configuration may ask for; entries are named by 32 bits. */
#define TABLES_LIMIT (UINT64_C(1) << 28)

/* The policies of the library. The order is that of kvt_policy_name_get; a program's rivals follow.
 */
static const policy_ops *const policy_table[] = {
    &policy_none_ops,
    &policy_lru_ops,
    &policy_utility_ops,
};
#define POLICY_COUNT (sizeof policy_table / sizeof policy_table[0])

/* The ops at a place of the table, or of the rivals behind it; NULL past the end. */
static const policy_ops *policy_ops_at(size_t index)
{
    if (index < POLICY_COUNT) return policy_table[index];
    if (policy_rivals == NULL) return NULL;
    for (size_t i = 0; policy_rivals[i] != NULL; i++)
        if (i == index - POLICY_COUNT) return policy_rivals[i];
    return NULL;
}

/* Names come in the order of the table; the first past its end is NULL. */
const char *kvt_policy_name_get(size_t index)
{
    const policy_ops *ops = policy_ops_at(index);
    return ops != NULL ? ops->name : NULL;
}

/* Fills in the defaults that docs/POLICY.md explains. The allocator is left empty, because the
 * library has none of its own: open refuses a configuration without one. */
void kvt_policy_config_init_sized(kvt_policy_config *config, uint32_t struct_size)
{
    assert(config != NULL);
    /* Codec 1 is raw: codec ids are append-only, docs/FORMAT.md. */
    const kvt_policy_config defaults = {.struct_size = sizeof defaults,
                                        .name = "utility",
                                        .variant.codec = 1,
                                        .alpha_prefills = 10.0,
                                        .hysteresis = 1.25,
                                        .holes = KVT_HOLES_CONTIGUOUS,
                                        .high_watermark = 0.995,
                                        .low_watermark = 0.99,
                                        .entries_expected = 1024,
                                        .ghosts_max = 65536,
                                        .seed = 1};
    config->struct_size = struct_size;
    struct_size_out(config, &defaults, sizeof defaults);
}

/* Returns the fault of the configuration, or NULL. The text is a whole message for a person. */
static const char *policy_config_fault(const kvt_policy_config *config)
{
    if (config->name == NULL) return "a policy name is required";
    if (config->allocator.resize == NULL) return "an allocator is required";
    if (!number_is_within(config->alpha_seconds, 0.0, SECONDS_LIMIT) ||
        !number_is_within(config->alpha_prefills, 0.0, ALPHA_PREFILLS_LIMIT)) {
        return "alpha_seconds and alpha_prefills must be numbers, 0 or more";
    }
    if (!number_is_within(config->hysteresis, 0.0, 1e6)) {
        return "hysteresis must be a number, 0 or more";
    }
    if (config->holes > KVT_HOLES_MIXED) return "holes is not a kvt_hole_mode";
    if (!number_is_within(config->high_watermark, 0.0, 1.0) ||
        !number_is_within(config->low_watermark, 0.0, config->high_watermark)) {
        return "the watermarks must be 0 <= low <= high <= 1; low is 0.99 where it is not set";
    }
    if (config->entries_expected > TABLES_LIMIT || config->entries_reserved > TABLES_LIMIT ||
        config->ghosts_max > TABLES_LIMIT) {
        return "entries_expected, entries_reserved and ghosts_max must not pass 2^28";
    }
    return advise_tier_fault(config);
}

/* Finds a policy by its name; NULL when there is none of that name. */
static const policy_ops *policy_find_ops(const char *name)
{
    assert(name != NULL);
    const policy_ops *ops;
    for (size_t i = 0; (ops = policy_ops_at(i)) != NULL; i++)
        if (text_equal(ops->name, name)) break;
    return ops;
}

/* Checks the configuration, then asks for all tables at once: an engine that is open needs no
 * memory for a decision. An open that fails halfway is closed like an open one: every part may be
 * missing. */
kvt_status kvt_policy_open(const kvt_policy_config *given, kvt_policy **policy_out, char *message,
                           size_t message_size)
{
    assert(given != NULL && policy_out != NULL);
    text out;
    text_start(&out, message, message_size);
    *policy_out = NULL;
    kvt_policy_config whole;
    kvt_policy_config_init(&whole);
    const kvt_policy_config *config = struct_size_in(
        given, &whole, sizeof whole, STRUCT_SIZE_THROUGH(kvt_policy_config, allocator));
    const char *fault = config == NULL ? "struct_size is not one that this library knows"
                                       : policy_config_fault(config);
    if (fault != NULL) {
        text_add(&out, fault);
        return KVT_E_ARGUMENT;
    }
    for (int tier = KVT_TIER_COUNT; tier < KVT_TIER_PLACES; tier++) {
        if (config->tiers[tier].capacity_bytes == 0) continue;
        text_add(&out, "a tier has a capacity that this version does not have");
        return KVT_E_UNSUPPORTED;
    }
    const policy_ops *ops = policy_find_ops(config->name);
    if (ops == NULL) {
        text_add(&out, "unknown policy: ");
        text_add(&out, config->name);
        return KVT_E_UNSUPPORTED;
    }
    kvt_policy *policy =
        config->allocator.resize(config->allocator.context, NULL, 0, sizeof *policy);
    if (policy != NULL) {
        memset(policy, 0, sizeof *policy);
        policy->ops = ops;
        policy->config = *config;
        policy_try_half_life(policy, TRIAL_HALF_LIFE);
        policy->config.name = ops->name; /* the caller's string may go away */
        policy->next_id = 1;
        policy->least_base_cost = UNLIMITED;
        for (int tier = 0; tier < TIERS; tier++)
            policy->capacity[tier] = config->tiers[tier + 1].capacity_bytes;
        write_queue_open(policy);
        hints_open(policy);
        for (int at = 0; at < TIERS * STEP_KINDS; at++)
            policy->step_price[at / STEP_KINDS][at % STEP_KINDS] =
                policy->step_price_lately[at / STEP_KINDS][at % STEP_KINDS] = UNLIMITED;
        if (advise_open(policy) && (ops->open == NULL || ops->open(policy)) &&
            entries_open(policy) && reuse_model_open(policy)) {
            *policy_out = policy;
            return KVT_OK;
        }
        kvt_policy_close(policy);
    }
    text_add(&out, "out of memory for the policy's tables");
    return KVT_E_MEMORY;
}

void policy_try(kvt_policy *policy, const policy_trial *trial)
{
    assert(trial->half_life_seconds > 0.0 && trial->clock_scale >= 0.0);
    policy->trial = *trial;
    if (policy->trial.clock_scale == 0.0) policy->trial.clock_scale = 1.0;
}

/* Releases all that the engine asked for. Moves in flight are forgotten; nothing is carried out.
 * Every table may be missing, as after an open that failed. */
void kvt_policy_close(kvt_policy *policy)
{
    if (policy == NULL) return;
    hints_close(policy);
    reuse_model_close(policy);
    if (policy->ops->close != NULL) policy->ops->close(policy);
    entries_close(policy);
    advise_close(policy);
    if (policy->in_flight != NULL) {
        engine_resize(policy, policy->in_flight,
                      sizeof *policy->in_flight * policy->in_flight_capacity, 0);
    }
    engine_resize(policy, policy, sizeof *policy, 0);
}

/* The entry as this library knows it; `whole` has room for it and is zero. NULL: unsound. */
static const kvt_policy_entry *policy_entry_in(const kvt_policy_entry *given,
                                               kvt_policy_entry *whole)
{
    return struct_size_in(given, whole, sizeof *whole,
                          STRUCT_SIZE_THROUGH(kvt_policy_entry, copy_seconds));
}

/* Checks an entry as a caller offers it: handles, numbers, and options or a ladder, never both.
 * Loads and losses are the options' own and are checked with them. */
static kvt_status policy_entry_check(const kvt_policy *policy, const kvt_policy_entry *given)
{
    assert(given != NULL);
    if (given->handle == 0 || given->handle == given->parent) return KVT_E_ARGUMENT;
    if (!number_is_within(given->sensitivity, 0.0, 1e6)) return KVT_E_ARGUMENT;
    if (given->tenant >= KVT_TENANTS_MAX) return KVT_E_ARGUMENT;
    if (!number_is_within(given->copy_seconds, 0.0, SECONDS_LIMIT)) return KVT_E_ARGUMENT;
    if (given->ladder == 0) return policy_options_check(given->options, given->option_count);
    bool sound = given->ladder <= policy->ladder_count && given->options == NULL &&
                 given->option_count == 0 &&
                 number_is_within(given->recompute_seconds, 0.0, SECONDS_LIMIT);
    return sound ? KVT_OK : KVT_E_ARGUMENT;
}

/* One use now, and `prior` more by the prior of its class. The policy may sort the entry anew in
 * touch, so nothing of the order may be held across this call. */
static void policy_count_use(kvt_policy *policy, uint32_t index, double prior)
{
    assert(prior >= 0.0);
    entry *e = entry_at(policy, index);
    policy->counters.accesses++;
    if (e->hint != 0) hints_use(policy, index);
    if (policy->ops->counts)
        reuse_use(policy, e, 1.0 + prior);
    else
        e->last_access_ns = policy->now_ns;
    e->recency = ++policy->recency;
    policy->ops->touch(policy, index);
}

/* A use that an access has counted already, when the entry is offered for it. Without this, a miss
 * and the put that follows it would count as two uses of one request. */
static void policy_follow_use(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    e->missed = false;
    if (e->current != KVT_OPTION_NONE || e->move != NIL) return; /* it has its place */
    e->recency = ++policy->recency;
    /* Baselines count in touch itself. */
    if (!policy->ops->counts) return;
    reuse_use(policy, e, 0.0);
    policy->ops->touch(policy, index);
}

/* Whether an entry comes with a copy that the policy weighs. */
static bool policy_tells_copy(const kvt_policy *policy, const kvt_policy_entry *given)
{
    return given->copy_seconds > 0.0 && policy->ops->learns;
}

/* Memory for one entry more and a plan for it. A call that fails here has grown tables at most,
 * which no decision can notice. */
static bool policy_reserve(kvt_policy *policy, uint32_t index, const kvt_policy_entry *given,
                           uint32_t moves)
{
    if (index == NIL && !entries_reserve(policy)) return false;
    if (given->ladder == 0 && !options_reserve(policy, given->option_count - 1)) return false;
    if (!advise_knows_tenant(policy, given->tenant)) return false;
    if (policy_tells_copy(policy, given) && !elsewhere_reserve(policy)) return false;
    if (moves > policy->held + 1) moves = policy->held + 1;
    return ledger_reserve(policy, moves);
}

/* The entry of a new or remembered handle becomes held; memory is reserved. A remembered entry
 * brings its counters along; a new one starts at 0. */
static uint32_t policy_take_in(kvt_policy *policy, uint32_t index, const kvt_policy_entry *given)
{
    if (index == NIL) {
        index = entries_add(policy, given->handle);
    } else {
        list_remove(policy, &policy->ghosts, index);
        policy->ghost_count--;
    }
    entries_hold(policy, index, given);
    if (policy_tells_copy(policy, given)) elsewhere_note(policy, index, given->copy_seconds);
    assert(entry_at(policy, index)->handle == given->handle);
    return index;
}

/* Counts the use first, so that the entry is weighed with it, then lets the policy place the entry.
 * A refused entry stays as a remembered one. An entry that is held already is only counted:
 * KVT_EXISTS. */
kvt_status kvt_policy_admit(kvt_policy *policy, uint64_t now_ns, const kvt_policy_entry *given,
                            kvt_plan *plan)
{
    assert(policy != NULL && given != NULL && plan != NULL);
    plan->count = 0;
    kvt_policy_entry whole = {0};
    given = policy_entry_in(given, &whole);
    kvt_status status = given != NULL ? policy_entry_check(policy, given) : KVT_E_ARGUMENT;
    if (status != KVT_OK) return status;
    if (policy->entries_free != NIL) entry_prefetch(policy, policy->entries_free);
    uint32_t index = entries_find(policy, given->handle);
    if (index != NIL && entry_at(policy, index)->state == POLICY_ENTRY_HELD) {
        engine_set_clock(policy, now_ns);
        if (entry_at(policy, index)->missed)
            policy_follow_use(policy, index);
        else
            policy_count_use(policy, index, 0.0);
        return KVT_EXISTS;
    }
    if (!policy_reserve(policy, index, given, plan->capacity)) return KVT_E_MEMORY;
    engine_set_clock(policy, now_ns);
    bool first_seen = index == NIL;
    index = policy_take_in(policy, index, given);
    double prior = first_seen && given->class_id < policy->prior_count
                       ? (double)policy->priors[given->class_id]
                       : 0.0;
    if (entry_at(policy, index)->missed)
        policy_follow_use(policy, index);
    else
        policy_count_use(policy, index, prior);
    tentative_plan work;
    bool placed = false;
    policy->refusal = KVT_REFUSAL_ROOM;
    /* Where holes end a prefix, bytes behind one serve nobody. */
    bool orphan = policy->ops->tree && policy->config.holes == KVT_HOLES_CONTIGUOUS &&
                  given->parent != 0 && entry_at(policy, index)->parent == NIL;
    if (!orphan && tentative_begin(policy, &work, plan)) {
        placed = policy->ops->place(policy, &work, index);
        tentative_end(policy, &work);
    }
    if (placed) {
        assert(plan->count > 0 && plan->moves[plan->count - 1].kind == KVT_MOVE_PUT);
        policy->counters.admitted++;
        return KVT_OK;
    }
    policy->counters.refused++;
    policy->counters.refused_for[orphan ? KVT_REFUSAL_PREFIX : policy->refusal]++;
    entries_leave(policy, index, true);
    return KVT_REFUSED;
}

/* Takes bytes into the ledger as they are. Nothing is weighed: an entry that lies on a device is
 * there whether it pays or not. The tenants' shares are not asked either, and the index sorts the
 * entry like any other from then on. */
kvt_status kvt_policy_adopt(kvt_policy *policy, uint64_t now_ns, const kvt_policy_entry *given,
                            uint8_t option)
{
    assert(policy != NULL && given != NULL);
    kvt_policy_entry whole = {0};
    given = policy_entry_in(given, &whole);
    kvt_status status = given != NULL ? policy_entry_check(policy, given) : KVT_E_ARGUMENT;
    if (status != KVT_OK) return status;
    const ladder *shared = given->ladder != 0 ? &policy->ladders[given->ladder - 1] : NULL;
    uint32_t count = shared != NULL ? shared->option_count : given->option_count;
    if (option == KVT_OPTION_NONE || option >= count) return KVT_E_ARGUMENT;
    uint32_t index = entries_find(policy, given->handle);
    if (index != NIL && entry_at(policy, index)->state == POLICY_ENTRY_HELD) return KVT_EXISTS;
    const uint64_t *bytes = shared != NULL ? policy->options[shared->options + option - 1u].bytes
                                           : &given->options[option].bytes[KVT_TIER_HBM];
    if (!ledger_fits(policy, bytes)) return KVT_E_SPACE;
    if (!policy_reserve(policy, index, given, 0)) return KVT_E_MEMORY;
    engine_set_clock(policy, now_ns);
    index = policy_take_in(policy, index, given);
    entry *e = entry_at(policy, index);
    engine_tally(policy, e, -1);
    e->current = option;
    engine_tally(policy, e, 1);
    for (int tier = 0; tier < TIERS; tier++) {
        e->bytes[tier] = entry_option(policy, e, option)->bytes[tier];
        policy->used[tier] += e->bytes[tier];
        policy->tenants[e->tenant].used[tier] += e->bytes[tier];
    }
    if (e->last_access_ns == 0) e->last_access_ns = policy->now_ns;
    entries_rank(policy, index);
    e->recency = ++policy->recency;
    if (policy->ops->adopted != NULL) policy->ops->adopted(policy, index);
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Counts the use, also of an entry that is only remembered, and lets the policy improve the entry's
 * place. A use of an entry without bytes is noted as missed: an admission that follows is of the
 * same use. */
kvt_status kvt_policy_access(kvt_policy *policy, uint64_t now_ns, uint64_t handle, kvt_plan *plan)
{
    assert(policy != NULL);
    if (plan != NULL) plan->count = 0;
    engine_set_clock(policy, now_ns);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL) return KVT_MISS;
    entry *e = entry_at(policy, index);
    uint64_t last_ns = e->last_access_ns;
    int turn = reuse_ages_turn(e->turn);
    policy_count_use(policy, index, 0.0);
    if (e->state == POLICY_ENTRY_GHOST) entries_refresh_ghost(policy, index);
    e->missed = e->current == KVT_OPTION_NONE;
    e->idle = 0;
    if (e->missed) return KVT_MISS;
    if (policy->ops->learns && last_ns != policy->now_ns)
        lives_go_on(&policy->lives, turn, (double)(policy->now_ns - last_ns) * 1e-9);
    if (plan != NULL && entry_is_movable(e)) {
        policy->ops->improve(policy, index, plan);
    }
    return KVT_OK;
}

/* Asks for nothing where the entry lies high enough already, or will. The policy weighs the rest.
 */
kvt_status kvt_policy_promote(kvt_policy *policy, uint64_t now_ns, uint64_t handle, kvt_tier tier,
                              kvt_plan *plan)
{
    assert(policy != NULL && plan != NULL);
    plan->count = 0;
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_UNSUPPORTED;
    int top = (int)tier - 1;
    if (policy->capacity[top] == 0) return KVT_E_UNSUPPORTED;
    engine_set_clock(policy, now_ns);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL || entry_at(policy, index)->state != POLICY_ENTRY_HELD) return KVT_MISS;
    const entry *e = entry_at(policy, index);
    uint8_t option = e->move != NIL ? policy->in_flight[e->move].to : e->current;
    int home = option == KVT_OPTION_NONE ? TIERS : option_home(entry_option(policy, e, option));
    if (home <= top) return KVT_OK;
    if (entry_is_movable(e) && policy->ops->promote != NULL)
        policy->ops->promote(policy, index, top, plan);
    return plan->count != 0 ? KVT_OK : KVT_REFUSED;
}

/* Bounds what the background may move in this call. moves_max 0 lets time pass alone. */
kvt_status kvt_policy_tick(kvt_policy *policy, uint64_t now_ns, uint32_t moves_max,
                           uint64_t bytes_max, kvt_plan *plan)
{
    assert(policy != NULL && plan != NULL);
    plan->count = 0;
    engine_set_clock(policy, now_ns);
    tentative_plan work;
    if (moves_max == 0 || !tentative_begin(policy, &work, plan)) return KVT_OK;
    if (work.limit > moves_max) work.limit = moves_max;
    work.bytes_left = bytes_max;
    if (policy->copies.notes != NULL)
        survival_pass(&policy->copies.life, reuse_seconds(policy, policy->now_ns));
    policy->ops->tick(policy, &work);
    tentative_end(policy, &work);
    assert(plan->count <= moves_max);
    return KVT_OK;
}

/* Corrects a move to the bytes really stored; false when they do not fit. Bytes up to the plan's
 * always fit, because they are reserved; only the bytes beyond are checked. */
static bool policy_correct(kvt_policy *policy, move_in_flight *move, const uint64_t actual[TIERS])
{
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t others = policy->used[tier] - (move->to_bytes[tier] - move->kept[tier]);
        if (actual[tier] <= move->to_bytes[tier]) continue;
        uint64_t more = actual[tier] - move->kept[tier];
        if (others > policy->capacity[tier]) return false;
        if (more > policy->capacity[tier] - others) return false;
    }
    ledger_correct(policy, move, actual);
    return true;
}

/* Counts a change as a promotion when the entry rises, or has more bytes in its highest tier. The
 * rest are demotions, also a move at equal height that keeps fewer bytes there. */
static void policy_count_change(kvt_policy *policy, const entry *e, uint8_t from, uint8_t to)
{
    assert(from != KVT_OPTION_NONE && to != KVT_OPTION_NONE);
    const stored_option *old = entry_option(policy, e, from);
    const stored_option *new = entry_option(policy, e, to);
    int home = option_home(old);
    int rise = home - option_home(new);
    if (rise > 0 || (rise == 0 && new->bytes[home] > old->bytes[home])) {
        policy->counters.promotions++;
    } else {
        policy->counters.demotions++;
    }
}

/* A life ends with the first step that makes its entry worse. */
static void policy_end_life(kvt_policy *policy, const move_in_flight *move)
{
    entry *e = entry_at(policy, move->entry);
    if (!policy->ops->learns || move->kind == KVT_MOVE_PUT || e->idle != 0) return;
    if (entry_cost(policy, e, move->to) <= entry_cost(policy, e, move->from)) return;
    e->idle = 1;
    lives_end(&policy->lives, reuse_ages_turn(e->turn));
}

/* Ends a move that was carried out: the ledger releases its source, the entry is where the move
 * took it. actual_bytes is an array by kvt_tier, or NULL when the plan's bytes were stored.
 * KVT_E_SPACE leaves the move in flight, for the caller to abort. */
kvt_status kvt_policy_commit(kvt_policy *policy, uint64_t move_id, const uint64_t *actual_bytes)
{
    assert(policy != NULL);
    move_in_flight *move = ledger_find(policy, move_id);
    if (move == NULL) return KVT_E_ARGUMENT;
    if (actual_bytes != NULL) {
        bool stored = false;
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
            if (actual_bytes[tier] != 0) stored = true;
        if (actual_bytes[KVT_TIER_NONE] != 0) return KVT_E_ARGUMENT;
        for (int tier = KVT_TIER_COUNT; tier < KVT_TIER_PLACES; tier++)
            if (actual_bytes[tier] != 0) return KVT_E_UNSUPPORTED;
        if (stored != (move->kind != KVT_MOVE_EVICT)) return KVT_E_ARGUMENT;
        if (stored && !policy_correct(policy, move, &actual_bytes[KVT_TIER_HBM])) {
            return KVT_E_SPACE;
        }
    }
    uint32_t index = move->entry;
    entry *e = entry_at(policy, index);
    uint8_t kind = move->kind;
    uint8_t from = move->from;
    for (int tier = 0; tier < TIERS; tier++)
        policy->counters.written_bytes[tier + 1] += move->to_bytes[tier] - move->kept[tier];
    engine_tally(policy, e, -1);
    policy_end_life(policy, move);
    ledger_end(policy, move, true);
    engine_tally(policy, e, 1);
    if (kind == KVT_MOVE_EVICT) {
        policy->counters.evictions++;
        entries_leave(policy, index, true);
        return KVT_OK;
    }
    if (kind == KVT_MOVE_PUT)
        policy->counters.puts++;
    else
        policy_count_change(policy, e, from, e->current);
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Ends a move that was not carried out. A new entry that is not stored is remembered like one that
 * has left. The entry is where it was before the move, and movable again. */
kvt_status kvt_policy_abort(kvt_policy *policy, uint64_t move_id)
{
    assert(policy != NULL);
    move_in_flight *move = ledger_find(policy, move_id);
    if (move == NULL) return KVT_E_ARGUMENT;
    uint32_t index = move->entry;
    policy->counters.aborts++;
    ledger_end(policy, move, false);
    entries_rank(policy, index);
    if (entry_at(policy, index)->current == KVT_OPTION_NONE)
        entries_leave(policy, index, true);
    else
        policy->ops->index(policy, index);
    return KVT_OK;
}

/* Takes an entry out of ledger and index whatever its state. Bytes that it stored count as gone. A
 * move in flight of the entry is ended too: a commit of it that comes later is KVT_E_ARGUMENT. */
kvt_status kvt_policy_remove(kvt_policy *policy, uint64_t handle)
{
    assert(policy != NULL);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL) return KVT_MISS;
    entry *e = entry_at(policy, index);
    if (e->state == POLICY_ENTRY_GHOST) {
        entries_drop_ghost(policy, index);
        return KVT_OK;
    }
    if (e->move != NIL) {
        policy->counters.aborts++;
        ledger_end(policy, &policy->in_flight[e->move], false);
    }
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t held = entry_bytes(policy, e, e->current, tier);
        assert(policy->used[tier] >= held);
        policy->used[tier] -= held;
        policy->tenants[e->tenant].used[tier] -= held;
    }
    entries_leave(policy, index, false);
    return KVT_OK;
}

/* Takes an entry out of the index until the last pin is gone. Pins are counted, so independent
 * callers may pin the same entry. */
kvt_status kvt_policy_pin(kvt_policy *policy, uint64_t handle)
{
    assert(policy != NULL);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL || entry_at(policy, index)->state != POLICY_ENTRY_HELD) return KVT_MISS;
    entry_at(policy, index)->pins++;
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Gives one pin back; an unpin without a pin is a miss. */
kvt_status kvt_policy_unpin(kvt_policy *policy, uint64_t handle)
{
    assert(policy != NULL);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL || entry_at(policy, index)->state != POLICY_ENTRY_HELD) return KVT_MISS;
    if (entry_at(policy, index)->pins == 0) return KVT_MISS;
    entry_at(policy, index)->pins--;
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Reads the present option of an entry. A handle that is not known has option NONE, like an entry
 * that is not stored. */
uint8_t kvt_policy_option_get(const kvt_policy *policy, uint64_t handle)
{
    assert(policy != NULL);
    uint32_t index = entries_find(policy, handle);
    return index == NIL ? KVT_OPTION_NONE : entry_at(policy, index)->current;
}
