/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_memory.c - every request for memory fails once: the call that needed it reports it
 * or does without, and the engine goes on exactly as if the call had not been made.
 */
#include "policy_support.h"

#define STEPS 600

typedef struct outcome {
    uint64_t hash; /* of every status and plan line */
    long requests;
    int failures;
} outcome;

static void outcome_add(outcome *o, const void *data, size_t bytes)
{
    const uint8_t *byte = data;
    for (size_t i = 0; i < bytes; i++)
        o->hash = (o->hash ^ byte[i]) * UINT64_C(1099511628211);
}

static kvt_status admit_retrying(kvt_policy *policy, test_memory *memory, uint64_t now_ns,
                                 const kvt_policy_entry *entry, kvt_plan *plan, outcome *o)
{
    kvt_policy_stats before;
    kvt_policy_stats after;
    kvt_policy_stats_get(policy, &before);
    kvt_status status = kvt_policy_admit(policy, now_ns, entry, plan);
    if (status != KVT_E_MEMORY) return status;
    o->failures++;
    assert_int_equal(plan->count, 0);
    kvt_policy_stats_get(policy, &after);
    assert_memory_equal(&before, &after, sizeof before);
    memory->left = -1;
    return kvt_policy_admit(policy, now_ns, entry, plan);
}

/* A seeded run whose nth request for memory fails; the failed call is repeated. */
static outcome run(const char *name, long nth)
{
    test_memory memory = {.left = -1};
    outcome o = {.hash = 1469598103934665603u};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = name;
    config.holes = KVT_HOLES_MIXED;
    config.entries_expected = 0;
    config.ghosts_max = 400;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 4000;
    config.tiers[KVT_TIER_SSD].capacity_bytes = 9000;
    config.allocator = test_allocator(&memory);
    memory.left = nth;
    kvt_policy *policy = NULL;
    char message[80];
    kvt_status status = kvt_policy_open(&config, &policy, message, sizeof message);
    if (status == KVT_E_MEMORY) {
        o.failures++;
        assert_null(policy);
        assert_int_equal(memory.held_bytes, 0);
        memory.left = -1;
        status = kvt_policy_open(&config, &policy, message, sizeof message);
    }
    assert_ok(status);
    uint64_t dice = 77;
    for (uint64_t i = 0; i < STEPS; i++) {
        uint64_t handle = 1 + test_below(&dice, 300);
        kvt_option options[4] = {test_none(1.0 + (double)(handle % 7)),
                                 test_option(1, KVT_TIER_DRAM, 30 + handle % 50, 0.01),
                                 test_option(1, KVT_TIER_SSD, 30 + handle % 50, 0.1),
                                 test_option(2, KVT_TIER_SSD, 20 + handle % 50, 0.2)};
        kvt_policy_entry entry = test_entry(handle, options, 3 + (uint32_t)(handle & 1), 1);
        entry.parent = handle / 3;
        kvt_move moves[64];
        kvt_plan plan = {moves, 64, 0};
        status = admit_retrying(policy, &memory, i * SECOND, &entry, &plan, &o);
        outcome_add(&o, &status, sizeof status);
        outcome_add(&o, moves, sizeof moves[0] * plan.count);
        /* Every third plan stays in flight for good, so that the ledger grows too. */
        if (i % 3 != 0) test_carry_out(policy, &plan);
    }
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
    o.requests = memory.requests;
    return o;
}

TEST(every_failed_allocation_leaves_the_engine_as_it_was)
{
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        const char *name = kvt_policy_name_get(i);
        outcome whole = run(name, -1);
        assert_int_equal(whole.failures, 0);
        assert_true(whole.requests >= 4);
        for (long nth = 0; nth < whole.requests; nth++) {
            outcome failed = run(name, nth);
            assert_int_equal(failed.failures, 1);
            assert_true(failed.hash == whole.hash);
        }
        if (strcmp(name, "utility") == 0) assert_true(whole.requests > 15);
    }
}

/* A promotion or a tick that cannot get memory is a promotion or a tick without moves. */
TEST(optional_moves_do_without_memory)
{
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.high_watermark = config.low_watermark = 0.5;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 200;
    config.tiers[KVT_TIER_SSD].capacity_bytes = 100;
    config.allocator = test_allocator(&memory);
    kvt_policy *policy = test_open(&config);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 0.5)};
    for (uint64_t handle = 1; handle <= 2; handle++) {
        kvt_policy_entry entry = test_entry(handle, options, 3, 1);
        assert_ok(kvt_policy_adopt(policy, SECOND, &entry, (uint8_t)handle));
    }
    kvt_move moves[4];
    kvt_plan plan = {moves, 4, 0};
    memory.left = 0;
    assert_ok(kvt_policy_access(policy, SECOND, 2, &plan));
    assert_int_equal(plan.count, 0);
    assert_ok(kvt_policy_tick(policy, SECOND, 4, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 0);
    memory.left = -1;
    assert_ok(kvt_policy_access(policy, SECOND, 2, &plan));
    assert_int_equal(plan.count, 1);
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}

/* The tables follow what is held, not what has come and gone. */
TEST(turnover_needs_no_more_memory)
{
    for (size_t i = 1; kvt_policy_name_get(i) != NULL; i++) {
        test_memory memory = {.left = -1};
        kvt_policy_config config;
        kvt_policy_config_init(&config);
        config.name = kvt_policy_name_get(i);
        /* The engine lets few displace others before it has seen a use. */
        bool at_once = strcmp(config.name, "lru-twice") != 0 && strcmp(config.name, "utility") != 0;
        config.entries_expected = 256;
        config.ghosts_max = 50;
        config.tiers[KVT_TIER_DRAM].capacity_bytes = 4000;
        config.allocator = test_allocator(&memory);
        kvt_policy *policy = test_open(&config);
        long requests = 0;
        for (uint64_t handle = 1; handle <= 20000; handle++) {
            kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 50, 0.01),
                                     test_option(2, KVT_TIER_DRAM, 40, 0.02)};
            kvt_policy_entry entry = test_entry(handle, options, 3, 1);
            kvt_move moves[8];
            kvt_plan plan = {moves, 8, 0};
            kvt_status status = kvt_policy_admit(policy, handle * SECOND, &entry, &plan);
            if (at_once) assert_ok(status);
            test_carry_out(policy, &plan);
            if (handle == 2000) requests = memory.requests;
        }
        assert_int_equal(memory.requests, requests);
        kvt_policy_close(policy);
    }
}

/* Entries with equal options take no memory for them, and an entry that gets other figures changes
 * nobody else's. Options that nobody has any more are used again. */
TEST(entries_with_equal_options_share_them)
{
    enum { ENTRIES = 2000 };
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.entries_expected = ENTRIES;
    config.ghosts_max = 0;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    config.allocator = test_allocator(&memory);
    kvt_policy *policy = test_open(&config);
    size_t held_bytes = memory.held_bytes;
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 50, 0.01),
                             test_option(2, KVT_TIER_DRAM, 40, 0.02)};
    for (uint64_t handle = 1; handle <= ENTRIES; handle++) {
        kvt_policy_entry entry = test_entry(handle, options, 3, 1);
        options[0].load_seconds = (double)handle; /* each entry's own */
        assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 1));
    }
    assert_int_equal(memory.held_bytes, held_bytes);
    static kvt_explanation seen = {.struct_size = sizeof seen};
    for (int change = 0; change < 300; change++) { /* more runs than the tables hold */
        options[1].load_seconds = 0.02 + change * 1e-6;
        assert_ok(kvt_policy_recost(policy, 7, options, 3));
        assert_ok(kvt_policy_explain(policy, SECOND, 7, &seen));
        assert_true(seen.options[1].option.load_seconds == options[1].load_seconds);
        assert_ok(kvt_policy_explain(policy, SECOND, 8, &seen));
        assert_true(seen.options[1].option.load_seconds == 0.01);
    }
    options[2].bytes[KVT_TIER_DRAM] = 45;
    assert_ok(kvt_policy_resize(policy, 9, options, 3));
    assert_ok(kvt_policy_explain(policy, SECOND, 9, &seen));
    assert_int_equal(seen.options[2].option.bytes[KVT_TIER_DRAM], 45);
    assert_ok(kvt_policy_explain(policy, SECOND, 10, &seen));
    assert_int_equal(seen.options[2].option.bytes[KVT_TIER_DRAM], 40);
    assert_int_equal(memory.held_bytes, held_bytes);
    for (uint64_t handle = 1; handle <= ENTRIES; handle++)
        assert_ok(kvt_policy_remove(policy, handle));
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}

/* Every entry has figures of its own, which come and go in another order. */
TEST(different_options_stay_apart)
{
    enum { ENTRIES = 700 };
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.ghosts_max = 0;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    config.allocator = test_allocator(&memory);
    kvt_policy *policy = test_open(&config);
    static kvt_explanation seen = {.struct_size = sizeof seen};
    for (uint64_t i = 0; i < 2 * ENTRIES; i++) {
        uint64_t handle = 1 + i % ENTRIES * 3 % ENTRIES;
        uint64_t figure = handle % 97; /* some have the same */
        kvt_option options[3] = {test_none(1.0),
                                 test_option(1, KVT_TIER_DRAM, 50, 0.01 + (double)figure * 1e-5),
                                 test_option(2, KVT_TIER_DRAM, 40, 0.02)};
        kvt_policy_entry entry = test_entry(handle, options, handle % 2 == 0 ? 3 : 2, 1);
        if (i >= ENTRIES) {
            assert_ok(kvt_policy_explain(policy, SECOND, handle, &seen));
            assert_true(seen.options[1].option.load_seconds == options[1].load_seconds);
            assert_ok(kvt_policy_remove(policy, handle));
        }
        if (i < ENTRIES || handle % 5 != 0) assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 1));
    }
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}
