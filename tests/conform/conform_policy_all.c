/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_policy_all.c - one checklist over every policy in the table, by random calls against a
 * simple model: the bytes really held by an executor that carries plans out late, interleaved,
 * and sometimes fails half-way.
 *
 * After each call: the engine's used bytes equal the model's; no tier's bytes ever pass its
 * capacity; no plan names a pinned or busy entry; each move says truly where the entry is and how
 * large it is; policies with a tree rule never drop a prefix that a held entry needs.
 */
#include "policy_support.h"

#include "policy/engine.h"
#include "policy/plan.h"
#include "replay/rivals/dual.h"

#include <stdio.h>

#define HANDLES   96
#define PLANS     6
#define PLAN_MAX  12
#define OPTIONS   8
#define TENANTS   4
#define CALLS     130000
#define SMALL_RUN 20000

#define HINTED 3u /* every third handle gets hints */

typedef struct model_entry {
    bool held;
    bool flying;
    bool leaving; /* its eviction is in move_in_flight */
    uint8_t option;
    uint32_t pins;
    uint64_t parent;                  /* held when this one was admitted, and since */
    uint64_t stored[KVT_TIER_PLACES]; /* really, in its option */
    kvt_option options[OPTIONS];
} model_entry;

typedef struct model_plan {
    kvt_move moves[PLAN_MAX];
    uint32_t count;
    uint32_t next;
    bool started; /* the next move's target bytes are being written */
} model_plan;

typedef struct model {
    kvt_policy *policy;
    kvt_policy_config config;
    bool tree_rule;
    uint64_t dice;
    uint64_t now_ns;
    uint64_t real[KVT_TIER_COUNT];    /* bytes on the devices now */
    uint64_t claimed[KVT_TIER_COUNT]; /* stored, and targets of all planned moves */
    model_entry entries[HANDLES + 1];
    model_plan plans[PLANS];
    uint64_t log_hash;
    uint64_t moves;
} model;

static void model_options(uint64_t handle, kvt_option options[OPTIONS])
{
    uint64_t dice = handle * 77 + 5;
    uint64_t bytes = 40 + test_below(&dice, 80);
    options[0] = test_none(0.001 * (double)(1 + test_below(&dice, 100)));
    options[1] = test_option(1, KVT_TIER_HBM, bytes, 1e-5);
    options[2] = test_option(1, KVT_TIER_DRAM, bytes, 1e-3);
    options[3] = test_option(1, KVT_TIER_SSD, bytes, 2e-2);
    options[4] = test_option(2, handle % 3 == 0 ? KVT_TIER_SSD : KVT_TIER_DRAM, bytes / 2, 2e-3);
    if (handle % 3 == 1) options[4].loss = 0.001;
    options[5] = test_option(4, KVT_TIER_DRAM, bytes / 3, 5e-3);
    options[5].bytes[KVT_TIER_SSD] = bytes / 2; /* planes over two tiers */
    options[5].loss = 0.001;
    options[6] = test_option(4, KVT_TIER_DRAM, bytes / 3, 4e-3); /* the first planes of it */
    options[6].variant.rate = 2;
    options[6].loss = 0.01;
    options[6].kept_from = 1u << 5;
    options[7] = test_option(1, KVT_TIER_DRAM, bytes, 1e-3); /* a copy on two tiers */
    options[7].bytes[KVT_TIER_SSD] = bytes;
    options[7].kept_from = 1u << 2 | 1u << 3;
    options[2].kept_from = options[3].kept_from = 1u << 7;
}

static void model_open(model *m, const char *name, uint8_t holes, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    kvt_policy_config_init(&m->config);
    m->config.name = name;
    m->config.holes = holes;
    m->config.high_watermark = 0.9;
    m->config.low_watermark = 0.8;
    m->config.ghosts_max = 20;
    m->config.tiers[KVT_TIER_DRAM].read_bytes_per_s = 1e6;
    m->config.entries_expected = 1;
    m->config.tiers[KVT_TIER_HBM].capacity_bytes = seed % 2 == 0 ? 300 : 0;
    m->config.tiers[KVT_TIER_DRAM].capacity_bytes = 900;
    m->config.tiers[KVT_TIER_SSD].capacity_bytes = seed % 3 == 0 ? 0 : 1500;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        m->config.tiers[tier].write_bytes_per_s = 1e5;
    static test_memory memory;
    memory = (test_memory){.left = -1};
    m->config.allocator = test_allocator(&memory);
    m->policy = test_open(&m->config);
    policy_try_half_life(m->policy, 30.0);
    m->dice = seed * 1000003 + 17;
    m->now_ns = SECOND;
    m->tree_rule = strcmp(name, "lru-leaf") == 0 ||
                   (strcmp(name, "utility") == 0 && holes == KVT_HOLES_CONTIGUOUS);
    for (uint64_t handle = 1; handle <= HANDLES; handle++)
        model_options(handle, m->entries[handle].options);
}

static void model_forget(model *m, uint64_t handle)
{
    model_entry *e = &m->entries[handle];
    e->held = e->flying = e->leaving = false;
    e->option = KVT_OPTION_NONE;
    e->pins = 0;
    e->parent = 0;
    for (uint64_t child = 1; child <= HANDLES; child++)
        if (m->entries[child].parent == handle) m->entries[child].parent = 0;
}

static void model_check_used(const model *m)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(m->policy, &stats);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        assert_int_equal(stats.used_bytes[tier], m->claimed[tier]);
        assert_true(m->real[tier] <= m->config.tiers[tier].capacity_bytes);
    }
}

/* Whether a held entry other than the ones that `plan` evicts before move `at` needs this one. */
static void model_check_tree(const model *m, const kvt_plan *plan, uint32_t at)
{
    for (uint64_t child = 1; child <= HANDLES; child++) {
        const model_entry *e = &m->entries[child];
        if (!e->held || e->parent != plan->moves[at].handle) continue;
        bool evicted_before = false;
        for (uint32_t i = 0; i < at; i++)
            if (plan->moves[i].handle == child && plan->moves[i].kind == KVT_MOVE_EVICT) {
                evicted_before = true;
            }
        if (!evicted_before) fail_msg("entry %u loses its prefix", (unsigned)child);
    }
}

static void model_check_move(model *m, const kvt_plan *plan, uint32_t at)
{
    const kvt_move *move = &plan->moves[at];
    assert_in_range(move->handle, 1, HANDLES);
    model_entry *e = &m->entries[move->handle];
    if (e->flying) fail_msg("a second move of entry %u", (unsigned)move->handle);
    assert_int_equal(e->pins, 0);
    assert_int_equal(move->from, e->option);
    assert_int_equal(e->held, move->kind != KVT_MOVE_PUT);
    static const uint64_t nothing[KVT_TIER_PLACES];
    const uint64_t *from = move->from == 0 ? nothing : e->stored;
    const uint64_t *to = move->to == 0 ? nothing : e->options[move->to].bytes;
    assert_memory_equal(move->from_bytes, from, sizeof move->from_bytes);
    assert_memory_equal(move->to_bytes, to, sizeof move->to_bytes);
    bool made =
        move->kind == KVT_MOVE_CHANGE && (e->options[move->to].kept_from >> move->from & 1) != 0;
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        uint64_t both = from[tier] < to[tier] ? from[tier] : to[tier];
        assert_int_equal(move->kept_bytes[tier], made ? both : 0);
    }
    bool reencodes = strcmp(m->config.name, "adaptcache") == 0;
    if (reencodes && move->kind == KVT_MOVE_CHANGE) {
        assert_true(e->options[move->to].loss >= e->options[move->from].loss);
    } else if (move->kind == KVT_MOVE_CHANGE && !made && e->options[move->from].loss > 0.0) {
        assert_memory_equal(&move->to_variant, &e->options[move->from].variant,
                            sizeof move->to_variant);
    }
    if (m->tree_rule && move->kind == KVT_MOVE_EVICT) model_check_tree(m, plan, at);
}

/* Checks a new plan, adopts its claims and queues it in a free place of the executor. */
static void model_take_plan(model *m, const kvt_plan *plan, model_plan *place)
{
    uint64_t capacity[KVT_TIER_COUNT];
    char line[256];
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        capacity[tier] = m->config.tiers[tier].capacity_bytes;
    if (plan_check(plan, m->claimed, capacity, line, sizeof line) != KVT_OK) {
        fail_msg("unsound plan: %s", line);
    }
    for (uint32_t i = 0; i < plan->count; i++)
        model_check_move(m, plan, i);
    for (uint32_t i = 0; i < plan->count; i++) {
        const kvt_move *move = &plan->moves[i];
        model_entry *e = &m->entries[move->handle];
        e->held = e->flying = true;
        e->leaving = move->kind == KVT_MOVE_EVICT;
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
            m->claimed[tier] += move->to_bytes[tier] - move->kept_bytes[tier];
        size_t length = kvt_move_format(move, line, sizeof line);
        assert_true(length < sizeof line);
        for (size_t k = 0; k < length; k++)
            m->log_hash = (m->log_hash ^ (uint8_t)line[k]) * UINT64_C(1099511628211);
        place->moves[i] = *move;
    }
    m->moves += plan->count;
    place->count = plan->count;
    place->next = 0;
    place->started = false;
}

static void model_abort_rest(model *m, model_plan *p)
{
    for (; p->next < p->count; p->next++) {
        const kvt_move *move = &p->moves[p->next];
        model_entry *e = &m->entries[move->handle];
        kvt_status status = kvt_policy_abort(m->policy, move->id);
        if (status == KVT_E_ARGUMENT) continue; /* the entry was removed meanwhile */
        assert_ok(status);
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
            m->claimed[tier] -= move->to_bytes[tier] - move->kept_bytes[tier];
        e->flying = e->leaving = false;
        if (move->kind == KVT_MOVE_PUT) model_forget(m, move->handle);
    }
    p->count = p->next = 0;
    p->started = false;
}

/* What was really written: as planned, or less, or a little more. */
static const uint64_t *model_actual(model *m, const kvt_move *move,
                                    uint64_t actual[KVT_TIER_PLACES])
{
    uint64_t kind = test_below(&m->dice, 8);
    if (move->kind == KVT_MOVE_EVICT || kind < 4) return NULL;
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        actual[tier] = move->to_bytes[tier];
        if (actual[tier] < 8) continue;
        if (kind < 7)
            actual[tier] -= test_below(&m->dice, 4);
        else
            actual[tier] += test_below(&m->dice, 4);
    }
    return actual;
}

static void model_commit(model *m, model_plan *p)
{
    kvt_move *move = &p->moves[p->next];
    model_entry *e = &m->entries[move->handle];
    uint64_t room[KVT_TIER_PLACES] = {0};
    const uint64_t *actual = model_actual(m, move, room);
    kvt_status status = kvt_policy_commit(m->policy, move->id, actual);
    if (status == KVT_E_SPACE) {
        assert_non_null(actual);
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
            m->real[tier] -= move->to_bytes[tier] - move->kept_bytes[tier];
        model_abort_rest(m, p);
        return;
    }
    assert_ok(status);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        uint64_t stored = actual != NULL ? actual[tier] : move->to_bytes[tier];
        /* Both ends were held but for what is kept; the target alone is left. */
        uint64_t both = move->to_bytes[tier] - move->kept_bytes[tier] + move->from_bytes[tier];
        m->real[tier] = m->real[tier] - both + stored;
        m->claimed[tier] = m->claimed[tier] - both + stored;
        e->stored[tier] = stored;
    }
    e->flying = e->leaving = false;
    e->option = move->to;
    if (move->kind == KVT_MOVE_EVICT) model_forget(m, move->handle);
    p->next++;
    p->started = false;
    if (p->next == p->count) p->next = p->count = 0;
}

/* One random stage of one random plan: begin writing, finish, or fail. */
static void model_advance(model *m)
{
    model_plan *p = &m->plans[test_below(&m->dice, PLANS)];
    if (p->count == 0) return;
    kvt_move *move = &p->moves[p->next];
    if (!p->started) {
        p->started = true;
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
            m->real[tier] += move->to_bytes[tier] - move->kept_bytes[tier];
        return;
    }
    if (test_below(&m->dice, 16) != 0) {
        model_commit(m, p);
        return;
    }
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        m->real[tier] -= move->to_bytes[tier] - move->kept_bytes[tier];
    model_abort_rest(m, p);
}

static model_plan *model_free_place(model *m)
{
    for (int i = 0; i < PLANS; i++)
        if (m->plans[i].count == 0) return &m->plans[i];
    return NULL;
}

static void model_admit(model *m, uint64_t handle, model_plan *place)
{
    model_entry *e = &m->entries[handle];
    uint64_t parent = handle > 1 && handle % 5 != 0 ? handle / 2 : 0;
    if (!e->held) model_options(handle, e->options);
    kvt_move moves[PLAN_MAX];
    kvt_plan plan = {moves, (uint32_t)test_below(&m->dice, PLAN_MAX + 1), 99};
    kvt_policy_entry given = {.struct_size = sizeof given,
                              .handle = handle,
                              .parent = parent,
                              .options = e->options,
                              .option_count = OPTIONS,
                              .tokens = 256,
                              .sensitivity = 0.25 * (double)(handle % 9),
                              .class_id = (uint32_t)(handle % 5),
                              .tenant = (uint32_t)(handle % TENANTS)};
    kvt_status status = kvt_policy_admit(m->policy, m->now_ns, &given, &plan);
    if (e->held) {
        assert_int_equal(status, KVT_EXISTS);
        assert_int_equal(plan.count, 0);
        return;
    }
    if (status == KVT_REFUSED) {
        assert_int_equal(plan.count, 0);
        return;
    }
    assert_ok(status);
    assert_in_range(plan.count, 1, plan.capacity);
    assert_int_equal(plan.moves[plan.count - 1].kind, KVT_MOVE_PUT);
    assert_int_equal(plan.moves[plan.count - 1].handle, handle);
    bool linked = parent != 0 && m->entries[parent].held && !m->entries[parent].leaving;
    if (linked && m->tree_rule) {
        for (uint32_t i = 0; i < plan.count; i++)
            assert_false(moves[i].handle == parent && moves[i].kind == KVT_MOVE_EVICT);
    }
    model_take_plan(m, &plan, place);
    if (linked) e->parent = parent;
}

static void model_access(model *m, uint64_t handle, model_plan *place)
{
    kvt_move moves[PLAN_MAX];
    kvt_plan plan = {moves, (uint32_t)test_below(&m->dice, PLAN_MAX + 1), 99};
    bool count_only = test_below(&m->dice, 4) == 0;
    kvt_status status = kvt_policy_access(m->policy, m->now_ns, handle, count_only ? NULL : &plan);
    bool resident = m->entries[handle].held && m->entries[handle].option != 0;
    assert_int_equal(status, resident ? KVT_OK : KVT_MISS);
    if (!count_only) model_take_plan(m, &plan, place);
}

static void model_promote(model *m, uint64_t handle, model_plan *place)
{
    kvt_move moves[PLAN_MAX];
    kvt_plan plan = {moves, (uint32_t)test_below(&m->dice, PLAN_MAX + 1), 99};
    kvt_tier tier = (kvt_tier)(KVT_TIER_HBM + test_below(&m->dice, 3));
    kvt_status status = kvt_policy_promote(m->policy, m->now_ns, handle, tier, &plan);
    bool present = m->config.tiers[tier].capacity_bytes != 0;
    assert_int_equal(status == KVT_E_UNSUPPORTED, !present);
    if (present) assert_int_equal(status == KVT_MISS, !m->entries[handle].held);
    if (plan.count != 0) {
        assert_ok(status);
        const kvt_move *last = &plan.moves[plan.count - 1];
        assert_int_equal(last->handle, handle);
        for (int above = KVT_TIER_HBM; above < (int)tier; above++)
            assert_int_equal(last->to_bytes[above], 0);
    }
    model_take_plan(m, &plan, place);
}

/* Some handles alone, because a hint of a continuation does not raise its prefix. */
static void model_hint(model *m, uint64_t handle)
{
    if (handle % HINTED != 0) return;
    kvt_hint_kind kind = (kvt_hint_kind)test_below(&m->dice, KVT_HINT_KINDS);
    double seconds = 1.0 + (double)test_below(&m->dice, 40);
    uint32_t giver = (uint32_t)test_below(&m->dice, TENANTS);
    assert_int_equal(kvt_policy_hint(m->policy, m->now_ns, handle, kind, seconds, giver),
                     m->entries[handle].held ? KVT_OK : KVT_MISS);
}

static void model_tick(model *m, model_plan *place)
{
    kvt_move moves[PLAN_MAX];
    kvt_plan plan = {moves, PLAN_MAX, 99};
    uint32_t moves_max = (uint32_t)test_below(&m->dice, PLAN_MAX);
    uint64_t bytes_max = test_below(&m->dice, 600);
    assert_ok(kvt_policy_tick(m->policy, m->now_ns, moves_max, bytes_max, &plan));
    assert_true(plan.count <= moves_max);
    uint64_t written = 0;
    for (uint32_t i = 0; i < plan.count; i++)
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
            written += moves[i].to_bytes[tier] - moves[i].kept_bytes[tier];
    assert_true(written <= bytes_max);
    model_take_plan(m, &plan, place);
}

/* Gone behind the engine's back. Only entries that no plan has begun to move, to keep the model of
 * the devices simple; those in flight are covered by test_policy_calls. */
static void model_remove(model *m, uint64_t handle)
{
    model_entry *e = &m->entries[handle];
    if (e->flying) return;
    kvt_status status = kvt_policy_remove(m->policy, handle);
    if (!e->held) {
        assert_true(status == KVT_OK || status == KVT_MISS); /* remembered or unknown */
        return;
    }
    assert_ok(status);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        m->real[tier] -= e->stored[tier];
        m->claimed[tier] -= e->stored[tier];
    }
    model_forget(m, handle);
}

static void model_pin(model *m, uint64_t handle, bool pin)
{
    model_entry *e = &m->entries[handle];
    if (pin && e->pins >= 2) return;
    kvt_status status =
        pin ? kvt_policy_pin(m->policy, handle) : kvt_policy_unpin(m->policy, handle);
    bool known = e->held && (pin || e->pins > 0);
    assert_int_equal(status, known ? KVT_OK : KVT_MISS);
    if (known) e->pins += pin ? 1u : UINT32_MAX;
}

static void model_check_rates(const model *m, uint64_t handle)
{
    kvt_explanation child = {.struct_size = sizeof child};
    kvt_explanation parent = {.struct_size = sizeof parent};
    if (kvt_policy_explain(m->policy, m->now_ns, handle, &child) != KVT_OK) return;
    assert_non_null(child.reason);
    assert_int_equal(child.current, m->entries[handle].option);
    assert_int_equal(child.parent, m->entries[handle].held ? m->entries[handle].parent : 0);
    if (child.parent == 0 || handle % HINTED == 0 || child.parent % HINTED == 0) return;
    assert_ok(kvt_policy_explain(m->policy, m->now_ns, child.parent, &parent));
    assert_true(parent.resident_children > 0);
    if (m->policy->ops->learns) /* hazards rise and fall with age; the uses are those of all */
        assert_true(parent.last_access_age_seconds <= child.last_access_age_seconds + 0.2);
    else
        assert_true(parent.accesses_per_s >= child.accesses_per_s * (1.0 - 1e-5));
}

/* An entry's key in the victim index of a tier, made positive; 0 outside. */
static double model_key(const kvt_policy *policy, const entry *e, int tier)
{
    if (policy->ops->buckets) {
        int32_t number = e->link[tier].number;
        return number == BUCKETS_ABSENT ? 0.0 : (double)number + 4e9;
    }
    if (!policy->ops->heaps || e->link[tier].newer == NIL) return 0.0;
    return policy->heaps[tier].items[e->link[tier].newer].key + 1.0;
}

/* What a short cut relies on: no form of a held entry has a base cost below the least one. */
static void model_check_shortcuts(const kvt_policy *policy)
{
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        for (uint8_t o = 1; e->state == POLICY_ENTRY_HELD && o < e->option_count; o++)
            assert_true(entry_option(policy, e, o)->base_cost >= policy->least_base_cost);
    }
}

/* The engine's inside: the victim index follows from the entries' state alone, so that bringing it
 * up to date finds nothing to do; the ledger and the tree are what their parts add up to. */
static void model_check_index(model *m)
{
    kvt_policy *policy = m->policy;
    uint64_t used[TIERS] = {0};
    uint32_t held = 0;
    uint32_t ghosts = 0;
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        held += e->state == POLICY_ENTRY_HELD;
        ghosts += e->state == POLICY_ENTRY_GHOST;
        if (e->state != POLICY_ENTRY_HELD) continue;
        uint32_t children = 0, below[TIERS] = {0};
        for (uint32_t child = e->first_child; child != NIL; children++) {
            assert_int_equal(entry_at(policy, child)->parent, i);
            below[entry_at(policy, child)->rank]++;
            child = entry_at(policy, child)->older_sibling;
        }
        assert_memory_equal(e->below, below, sizeof below);
        uint8_t listed = e->listed;
        double key[TIERS] = {0};
        bool heaped = false;
        for (int tier = 0; tier < TIERS; tier++) {
            used[tier] += entry_bytes(policy, e, e->current, tier);
            key[tier] = model_key(policy, e, tier);
            if (key[tier] > 0.0) heaped = true;
        }
        bool any_may_go = policy->config.holes == KVT_HOLES_MIXED && policy->ops->counts;
        if (!entry_is_movable(e))
            assert_true(!heaped && listed == 0);
        else if ((policy->ops->heaps || policy->ops->buckets) && (children == 0 || any_may_go))
            assert_true(heaped);
        policy->ops->index(policy, i);
        assert_int_equal(e->listed, listed);
        for (int tier = 0; tier < TIERS; tier++) {
            /* Which of its steps gives an entry its bucket depends on the time and the room; that
             * one which can leave has one does not. */
            bool in = model_key(policy, e, tier) > 0.0;
            bool leaves = children == 0 && entry_is_movable(e) && e->bytes[tier] > 0;
            if (policy->ops->buckets)
                assert_true((in && key[tier] > 0.0) || !leaves);
            else
                assert_true(model_key(policy, e, tier) == key[tier]);
        }
    }
    for (uint32_t i = 0; i < policy->in_flight_capacity; i++)
        for (int tier = 0; tier < TIERS; tier++)
            if (policy->in_flight[i].id != 0) {
                used[tier] += policy->in_flight[i].to_bytes[tier] - policy->in_flight[i].kept[tier];
            }
    assert_memory_equal(used, policy->used, sizeof used);
    assert_int_equal(held, policy->held);
    assert_int_equal(ghosts, policy->ghost_count);
}

static void model_set_tenant(model *m)
{
    kvt_tenant limits = {.struct_size = sizeof limits,
                         .alpha_seconds = (double)test_below(&m->dice, 100),
                         .loss_limit = test_below(&m->dice, 3) == 0 ? 0.002 : 1.0,
                         .load_limit_seconds = test_below(&m->dice, 3) == 0 ? 0.003 : 0.0};
    if (test_below(&m->dice, 3) == 0) {
        limits.share_bytes[KVT_TIER_DRAM] = 100 + test_below(&m->dice, 400);
    }
    uint32_t number = (uint32_t)test_below(&m->dice, TENANTS);
    assert_ok(kvt_policy_tenant_set(m->policy, number, &limits));
}

/* Tells the engine something, which never makes a plan and never breaks a rule. */
static void model_advise(model *m)
{
    double unit = (double)test_below(&m->dice, 1000) * 1e-3;
    dual_bound bound;
    kvt_status status;
    switch (test_below(&m->dice, 3)) {
    case 0: model_set_tenant(m); return;
    case 1:
        status = kvt_policy_prior_set(m->policy, 1 + (uint32_t)test_below(&m->dice, 4), unit);
        break;
    default:
        status = dual_solve(m->policy, m->now_ns, NULL, &bound);
        if (status == KVT_E_UNSUPPORTED) return;
        /* A capacity lowered below what is held, and options a limit has excluded since, are still
         * stored; else nothing stored beats the bound. */
        break;
    }
    assert_ok(status);
}

static void model_call(model *m)
{
    uint64_t handle = 1 + test_below(&m->dice, HANDLES);
    model_plan *place = model_free_place(m);
    /* Mostly forward, now and then a step back, which must count as standing still. */
    if (test_below(&m->dice, 50) == 0)
        m->now_ns -= SECOND / 2;
    else
        m->now_ns += test_below(&m->dice, SECOND);
    uint64_t kind = test_below(&m->dice, 100);
    if (kind < 30 && place != NULL)
        model_admit(m, handle, place);
    else if (kind < 50 && place != NULL)
        model_access(m, handle, place);
    else if (kind < 54 && place != NULL)
        model_tick(m, place);
    else if (kind < 56)
        model_remove(m, handle);
    else if (kind < 58)
        model_pin(m, handle, true);
    else if (kind < 61)
        model_pin(m, handle, false);
    else if (kind < 63)
        model_check_rates(m, handle);
    else if (kind < 64)
        model_advise(m);
    else if (kind < 66)
        model_hint(m, handle);
    else if (kind < 68 && place != NULL)
        model_promote(m, handle, place);
    else
        model_advance(m);
    assert_int_equal(kvt_policy_option_get(m->policy, handle), m->entries[handle].option);
    model_check_used(m);
}

static uint64_t model_run(const char *name, uint8_t holes, uint64_t seed, int calls,
                          uint64_t *moves_out)
{
    model *m = test_alloc(sizeof *m);
    model_open(m, name, holes, seed);
    for (int i = 0; i < calls; i++) {
        model_call(m);
        if (i % 64 != 0) continue;
        model_check_index(m);
        model_check_shortcuts(m->policy);
    }
    uint64_t hash = m->log_hash;
    *moves_out = m->moves;
    kvt_policy_close(m->policy);
    return hash;
}

TEST(every_policy_keeps_the_rules)
{
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        const char *name = kvt_policy_name_get(i);
        for (uint64_t seed = 1; seed <= 4; seed++) {
            uint64_t moves;
            uint8_t holes = seed == 3 ? KVT_HOLES_MIXED : KVT_HOLES_CONTIGUOUS;
            model_run(name, holes, seed, CALLS, &moves);
            /* The run must have exercised something: only `none` plans nothing. */
            if (strcmp(name, "none") == 0)
                assert_int_equal(moves, 0);
            else
                assert_true(moves > CALLS / 25);
        }
    }
}

TEST(every_policy_repeats_itself)
{
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        const char *name = kvt_policy_name_get(i);
        uint64_t first;
        uint64_t second;
        uint64_t hash = model_run(name, KVT_HOLES_CONTIGUOUS, 8, SMALL_RUN, &first);
        assert_int_equal(model_run(name, KVT_HOLES_CONTIGUOUS, 8, SMALL_RUN, &second), hash);
        assert_int_equal(first, second);
    }
}

TEST(nothing_to_do_is_an_empty_plan)
{
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        model *m = test_alloc(sizeof *m);
        model_open(m, kvt_policy_name_get(i), KVT_HOLES_CONTIGUOUS, 2);
        kvt_move moves[4];
        kvt_plan plan = {moves, 4, 9};
        assert_ok(kvt_policy_tick(m->policy, SECOND, 4, UINT64_MAX, &plan));
        assert_int_equal(plan.count, 0);
        plan.count = 9;
        assert_int_equal(kvt_policy_access(m->policy, SECOND, 5, &plan), KVT_MISS);
        assert_int_equal(plan.count, 0);
        kvt_policy_close(m->policy);
    }
}
