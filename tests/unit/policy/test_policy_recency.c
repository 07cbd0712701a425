/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_recency.c - lru against a reference that a reader can check by eye, in one tier and
 * in two; lru-leaf keeps prefixes whole; none stores nothing.
 */
#include "policy_support.h"

#include "policy/trial.h"

#define KEYS 200

/* The reference: entries with a size and a time of last use, in tiers of bytes. Textbook LRU;
 * what leaves tier 0 goes to tier 1, and a hit in tier 1 comes back while its old copy is held. */
typedef struct reference {
    int tiers;
    uint64_t capacity[2];
    uint64_t used[2];
    int tier[KEYS];
    uint64_t size[KEYS];
    uint64_t time[KEYS];
    uint64_t clock;
} reference;

static int reference_oldest(const reference *r, int tier, int except)
{
    int oldest = -1;
    for (int key = 0; key < KEYS; key++)
        if (r->tier[key] == tier && key != except &&
            (oldest < 0 || r->time[key] < r->time[oldest])) {
            oldest = key;
        }
    return oldest;
}

static void reference_make_room(reference *r, int tier, uint64_t bytes, int except)
{
    while (r->capacity[tier] - r->used[tier] < bytes) {
        int victim = reference_oldest(r, tier, except);
        assert_true(victim >= 0);
        int below = -1;
        if (tier + 1 < r->tiers && r->size[victim] <= r->capacity[tier + 1]) {
            below = tier + 1;
            reference_make_room(r, below, r->size[victim], except);
            r->used[below] += r->size[victim];
        }
        r->used[tier] -= r->size[victim];
        r->tier[victim] = below;
    }
}

/* True on a hit. */
static bool reference_use(reference *r, int key)
{
    bool hit = r->tier[key] >= 0;
    int old = r->tier[key];
    r->time[key] = ++r->clock;
    if (old == 0) return true;
    int target = 0;
    while (target < r->tiers && r->size[key] > r->capacity[target])
        target++;
    if (target == r->tiers || target == old) return hit;
    reference_make_room(r, target, r->size[key], hit ? key : -1);
    if (hit) r->used[old] -= r->size[key];
    r->used[target] += r->size[key];
    r->tier[key] = target;
    return hit;
}

static void run_against_reference(int tiers, bool equal_sizes, uint64_t seed)
{
    static const int tier_of[] = {KVT_TIER_HBM, KVT_TIER_DRAM};
    int first = tiers == 1 ? 1 : 0; /* one tier: DRAM alone */
    reference r = {.tiers = tiers, .capacity = {1500, 2500}};
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = "lru";
    config.entries_expected = 4;
    config.allocator = test_allocator(&memory);
    for (int i = 0; i < tiers; i++)
        config.tiers[tier_of[first + i]].capacity_bytes = r.capacity[i];
    kvt_policy *policy = test_open(&config);
    uint64_t dice = seed;
    for (int key = 0; key < KEYS; key++) {
        r.tier[key] = -1;
        r.size[key] = equal_sizes ? 50 : 20 + test_below(&dice, 80);
    }
    r.size[7] = 5000; /* fits nowhere */
    if (tiers == 2) r.size[8] = 2000;
    kvt_move moves[256];
    kvt_plan plan = {moves, 256, 0};
    int hits = 0;
    for (int i = 0; i < 60000; i++) {
        /* Squared: low keys are used more. */
        uint64_t draw = test_below(&dice, KEYS);
        int key = (int)(draw * draw / KEYS);
        bool hit = reference_use(&r, key);
        hits += hit;
        uint64_t handle = (uint64_t)key + 1;
        kvt_status status = kvt_policy_access(policy, 1, handle, &plan);
        assert_int_equal(status, hit ? KVT_OK : KVT_MISS);
        if (!hit) {
            kvt_option options[3] = {test_none(1.0)};
            for (int k = 0; k < tiers; k++)
                options[k + 1] = test_option(1, tier_of[first + k], r.size[key], 0.1);
            kvt_policy_entry entry = test_entry(handle, options, (uint32_t)tiers + 1, 1);
            status = kvt_policy_admit(policy, 1, &entry, &plan);
            assert_int_equal(status, r.tier[key] >= 0 ? KVT_OK : KVT_REFUSED);
        }
        test_carry_out(policy, &plan);
        assert_int_equal(kvt_policy_option_get(policy, handle), r.tier[key] + 1);
        kvt_policy_stats stats;
        kvt_policy_stats_get(policy, &stats);
        for (int k = 0; k < tiers; k++)
            assert_int_equal(stats.used_bytes[tier_of[first + k]], r.used[k]);
    }
    assert_in_range(hits, 10000, 59000);
    for (int key = 0; key < KEYS; key++)
        assert_int_equal(kvt_policy_option_get(policy, (uint64_t)key + 1), r.tier[key] + 1);
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}

TEST(lru_is_textbook_lru)
{
    run_against_reference(1, true, 21);
    run_against_reference(1, false, 22);
}

TEST(lru_in_two_tiers_is_two_lists)
{
    run_against_reference(2, true, 23);
    run_against_reference(2, false, 24);
}

static kvt_policy *open_dram(const char *name, uint64_t capacity, test_memory *memory)
{
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = name;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = capacity;
    config.allocator = test_allocator(memory);
    return test_open(&config);
}

static kvt_status put(kvt_policy *policy, uint64_t handle, uint64_t parent, uint64_t bytes)
{
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, bytes, 0.01)};
    kvt_policy_entry entry = test_entry(handle, options, 2, 1);
    entry.parent = parent;
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    kvt_status status = kvt_policy_admit(policy, handle, &entry, &plan);
    test_carry_out(policy, &plan);
    return status;
}

TEST(lru_drops_a_prefix_and_lru_leaf_does_not)
{
    for (int leaf = 0; leaf < 2; leaf++) {
        test_memory memory = {.left = -1};
        kvt_policy *policy = open_dram(leaf ? "lru-leaf" : "lru", 300, &memory);
        /* 1 - 2 - 3 is one path: 1 is the least recent, 3 the only leaf. */
        for (uint64_t handle = 1; handle <= 3; handle++)
            assert_ok(put(policy, handle, handle - 1, 100));
        assert_ok(put(policy, 9, 0, 100));
        assert_int_equal(kvt_policy_option_get(policy, 1), leaf ? 1 : 0);
        assert_int_equal(kvt_policy_option_get(policy, 3), leaf ? 0 : 1);
        kvt_policy_close(policy);
    }
}

TEST(lru_leaf_peels_a_path_in_one_plan)
{
    test_memory memory = {.left = -1};
    kvt_policy *policy = open_dram("lru-leaf", 300, &memory);
    for (uint64_t handle = 1; handle <= 3; handle++)
        assert_ok(put(policy, handle, handle - 1, 100));
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 200, 0.01)};
    kvt_policy_entry entry = test_entry(9, options, 2, 1);
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    assert_ok(kvt_policy_admit(policy, 9, &entry, &plan));
    assert_int_equal(plan.count, 3);
    assert_int_equal(moves[0].handle, 3);
    assert_int_equal(moves[1].handle, 2);
    /* The plan fails half-way: everything that was not done is as before. */
    assert_ok(kvt_policy_commit(policy, moves[0].id, NULL));
    assert_ok(kvt_policy_abort(policy, moves[1].id));
    assert_ok(kvt_policy_abort(policy, moves[2].id));
    assert_int_equal(kvt_policy_option_get(policy, 2), 1);
    assert_int_equal(kvt_policy_option_get(policy, 9), 0);
    /* A path may not push out its own head. */
    assert_int_equal(put(policy, 4, 2, 250), KVT_REFUSED);
    assert_ok(put(policy, 5, 2, 100));
    kvt_policy_close(policy);
}

TEST(aborted_victims_are_the_oldest_again)
{
    test_memory memory = {.left = -1};
    kvt_policy *policy = open_dram("lru", 20000, &memory);
    for (uint64_t handle = 1; handle <= 200; handle++)
        assert_ok(put(policy, handle, 0, 100));
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 300, 0.01)};
    kvt_policy_entry entry = test_entry(999, options, 2, 1);
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    for (int round = 0; round < 2; round++) {
        assert_ok(kvt_policy_admit(policy, 1000, &entry, &plan));
        assert_int_equal(plan.count, 4);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(moves[i].handle, i + 1);
        for (uint32_t i = 0; i < 4; i++)
            assert_ok(kvt_policy_abort(policy, moves[i].id));
    }
    kvt_policy_close(policy);
}

/* What cannot move down, because all below is pinned, leaves. */
TEST(lru_evicts_when_nothing_below_may_move)
{
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = "lru";
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 100;
    config.tiers[KVT_TIER_SSD].capacity_bytes = 100;
    config.allocator = test_allocator(&memory);
    kvt_policy *policy = test_open(&config);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 0.1)};
    kvt_policy_entry entry = test_entry(1, options, 3, 1);
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    assert_ok(kvt_policy_adopt(policy, 1, &entry, 2));
    assert_ok(kvt_policy_pin(policy, 1));
    entry.handle = 2;
    assert_ok(kvt_policy_adopt(policy, 1, &entry, 1));
    entry.handle = 3;
    assert_ok(kvt_policy_admit(policy, 1, &entry, &plan));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 2);
    assert_int_equal(moves[0].kind, KVT_MOVE_EVICT);
    kvt_policy_close(policy);
}

/* New seconds put an entry into another class of pensieve's; the lists stay whole. */
TEST(pensieve_follows_new_seconds)
{
    test_memory memory = {.left = -1};
    kvt_policy *policy = open_dram("pensieve", 300, &memory);
    for (uint64_t handle = 1; handle <= 3; handle++)
        assert_ok(put(policy, handle, 0, 100));
    kvt_option options[2] = {test_none(64.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    assert_ok(kvt_policy_recost(policy, 1, options, 2));
    for (uint64_t turn = 0; turn < 4; turn++)
        assert_ok(kvt_policy_access(policy, 10 + turn, 1, NULL));
    assert_ok(put(policy, 4, 0, 100));
    assert_ok(put(policy, 5, 0, 100));
    assert_int_not_equal(kvt_policy_option_get(policy, 1), KVT_OPTION_NONE);
    assert_int_equal(kvt_policy_option_get(policy, 2), KVT_OPTION_NONE);
    assert_int_equal(kvt_policy_option_get(policy, 3), KVT_OPTION_NONE);
    kvt_policy_close(policy);
}

/* Of a thousand entries about as many as the share take the other variant, each the same one
 * whenever it is asked for. */
TEST(a_share_of_the_entries_takes_the_other_variant)
{
    enum { ENTRIES = 1000 };
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = "lru";
    config.allocator = test_allocator(&memory);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 100 * ENTRIES;
    config.variant.codec = 1;
    kvt_policy *policy = test_open(&config);
    const policy_trial trial = {
        .half_life_seconds = TRIAL_HALF_LIFE, .other_share = 0.25, .other_variant.codec = 2};
    policy_try(policy, &trial);
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    uint32_t others = 0;
    for (uint64_t i = 0; i < ENTRIES; i++) {
        const kvt_option options[] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.1),
                                      test_option(2, KVT_TIER_DRAM, 50, 0.1)};
        const kvt_policy_entry entry =
            test_entry((i + 1) * UINT64_C(0x9e3779b97f4a7c15), options, 3, 1);
        for (int round = 0; round < 2; round++) {
            assert_ok(kvt_policy_admit(policy, 1, &entry, &plan));
            test_carry_out(policy, &plan);
            const uint8_t option = kvt_policy_option_get(policy, entry.handle);
            static uint8_t first;
            if (round == 0) first = option;
            assert_int_equal(option, first);
            others += round == 0 && option == 2;
            if (round == 0) assert_ok(kvt_policy_remove(policy, entry.handle));
        }
    }
    assert_true(others > 200 && others < 300);
    kvt_policy_close(policy);
}

TEST(none_refuses_all)
{
    test_memory memory = {.left = -1};
    kvt_policy *policy = open_dram("none", 300, &memory);
    assert_int_equal(put(policy, 1, 0, 100), KVT_REFUSED);
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(stats.refused, 1);
    assert_int_equal(stats.entries + stats.ghosts, 0);
    kvt_policy_close(policy);
}
