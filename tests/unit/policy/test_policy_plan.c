/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_plan.c - the plan validator finds each fault that it promises to find, and a move's
 * line says all of it. The heap is checked against sorting.
 */
#include "policy_support.h"

#include "policy/heap.h"
#include "policy/plan.h"

static kvt_move moves[4];
static uint64_t used[KVT_TIER_COUNT];
static uint64_t capacity[KVT_TIER_COUNT];
static kvt_plan plan;

/* A sound plan: EVICT 3 from SSD, 7 moves DRAM -> SSD, PUT 9 into DRAM. All tiers are full. */
static int set_up(void **state)
{
    (void)state;
    memset(moves, 0, sizeof moves);
    moves[0] = (kvt_move){.id = 1, .handle = 3, .kind = KVT_MOVE_EVICT, .from = 2};
    moves[0].from_bytes[KVT_TIER_SSD] = 50;
    moves[1] = (kvt_move){.id = 2, .handle = 7, .kind = KVT_MOVE_CHANGE, .from = 1, .to = 2};
    moves[1].from_bytes[KVT_TIER_DRAM] = moves[1].to_bytes[KVT_TIER_SSD] = 50;
    moves[2] = (kvt_move){.id = 5, .handle = 9, .kind = KVT_MOVE_PUT, .to = 1};
    moves[2].to_bytes[KVT_TIER_DRAM] = 50;
    used[KVT_TIER_DRAM] = capacity[KVT_TIER_DRAM] = 100;
    used[KVT_TIER_SSD] = capacity[KVT_TIER_SSD] = 80;
    plan = (kvt_plan){moves, 4, 3};
    return 0;
}

static void expect(kvt_status status, const char *words)
{
    char message[96];
    assert_int_equal(plan_check(&plan, used, capacity, message, sizeof message), status);
    if (strstr(message, words) == NULL) fail_msg("got \"%s\", not \"%s\"", message, words);
    assert_int_equal(plan_check(&plan, used, capacity, NULL, 0), status);
}

TEST_EACH(set_up, NULL);

TEST(a_sound_plan_passes)
{
    expect(KVT_OK, "");
    plan.count = 0;
    expect(KVT_OK, "");
}

TEST(each_fault_is_named)
{
    plan.count = 5;
    expect(KVT_E_STATE, "more moves than");
    set_up(state);
    moves[0].handle = 0;
    expect(KVT_E_STATE, "move 0 has handle 0");
    set_up(state);
    moves[2].handle = 7;
    expect(KVT_E_STATE, "move 2 names an entry a second time");
    set_up(state);
    moves[1].id = 1;
    expect(KVT_E_STATE, "move 1 has an id");
    set_up(state);
    moves[0].to = 1;
    expect(KVT_E_STATE, "move 0 evicts an entry to somewhere");
    set_up(state);
    moves[1].to = 1;
    expect(KVT_E_STATE, "to itself");
    set_up(state);
    moves[2].from = 1;
    expect(KVT_E_STATE, "puts an entry that is stored");
    set_up(state);
    moves[2].to_bytes[KVT_TIER_DRAM] = 0;
    expect(KVT_E_STATE, "puts an entry nowhere");
    set_up(state);
    moves[1].from_bytes[KVT_TIER_DRAM] = 0;
    expect(KVT_E_STATE, "changes an entry that is not there");
    set_up(state);
    moves[1].kind = 7;
    expect(KVT_E_STATE, "unknown kind");
    set_up(state);
    moves[1].to_bytes[KVT_TIER_NONE] = 1;
    expect(KVT_E_STATE, "tier none");
    set_up(state);
    moves[1].gain = 1e308 * 10.0;
    expect(KVT_E_STATE, "not a number");
    set_up(state);
    moves[1].to = KVT_OPTIONS_MAX;
    expect(KVT_E_STATE, "cannot exist");
}

TEST(capacity_is_checked_in_order)
{
    used[KVT_TIER_SSD] = 81;
    expect(KVT_E_STATE, "move 1 passes the capacity");
    set_up(state);
    /* The PUT before its room is free. */
    kvt_move put = moves[2];
    moves[2] = moves[1];
    moves[1] = put;
    moves[1].id = 2;
    moves[2].id = 5;
    expect(KVT_E_STATE, "move 1 passes the capacity");
    set_up(state);
    moves[0].from_bytes[KVT_TIER_SSD] = 81;
    expect(KVT_E_STATE, "releases more than");
    /* A change inside one tier needs both forms at once. */
    set_up(state);
    plan.count = 1;
    moves[0] = moves[1];
    moves[0].to_bytes[KVT_TIER_SSD] = 0;
    moves[0].to_bytes[KVT_TIER_DRAM] = 10;
    expect(KVT_E_STATE, "move 0 passes the capacity");
    used[KVT_TIER_DRAM] = 90;
    expect(KVT_OK, "");
    /* Sums that would wrap around. */
    moves[0].to_bytes[KVT_TIER_DRAM] = UINT64_MAX - 5;
    expect(KVT_E_STATE, "move 0 passes the capacity");
}

TEST(a_line_says_all_of_a_move)
{
    char line[160];
    moves[1].to_variant = (kvt_variant){.codec = 2, .mode = 1, .rate = 8};
    moves[1].gain = -0.25;
    const char *want = "2 CHANGE 7 1>2 variant 2/1/8 from 0,50,0 to 0,0,50 gain -0x1p-2";
    assert_int_equal(kvt_move_format(&moves[1], line, sizeof line), strlen(want));
    assert_string_equal(line, want);
    assert_int_equal(kvt_move_format(&moves[1], line, 5), strlen(want));
    assert_string_equal(line, "2 CH");
    assert_int_equal(kvt_move_format(&moves[1], NULL, 0), strlen(want));
}

enum { HEAP_ENTRIES = 64 };

TEST_WITH(NULL, NULL, the_heap_removes_in_order_of_key_then_entry)
{
    heap_item items[HEAP_ENTRIES];
    uint32_t place[HEAP_ENTRIES];
    double key[HEAP_ENTRIES];
    heap h = {items, 0, HEAP_ENTRIES};
    heap_places places = {(unsigned char *)place, sizeof place[0]};
    memset(place, 0xFF, sizeof place);
    uint64_t dice = 11;
    for (int round = 0; round < 20000; round++) {
        uint32_t entry = (uint32_t)test_below(&dice, HEAP_ENTRIES);
        if (test_below(&dice, 3) == 0) {
            heap_remove(&h, places, entry);
            assert_int_equal(place[entry], UINT32_MAX);
        } else {
            key[entry] = (double)test_below(&dice, 40);
            heap_set(&h, places, entry, key[entry]);
        }
        uint32_t count = 0;
        uint32_t least = UINT32_MAX;
        for (uint32_t i = 0; i < HEAP_ENTRIES; i++) {
            if (place[i] == UINT32_MAX) continue;
            count++;
            assert_int_equal(items[place[i]].entry, i);
            assert_true(items[place[i]].key == key[i]);
            if (least == UINT32_MAX || key[i] < key[least]) least = i;
        }
        assert_int_equal(h.count, count);
        if (count > 0) assert_int_equal(items[0].entry, least);
    }
}
