/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_paths.c - paths of entries over two tiers, the lower one smaller, with a ladder: no
 * plan takes an entry below its children, full tiers go on coding and taking, and what is refused
 * says why.
 */
#include "policy/engine.h"

#include "policy_site.h"

TEST_EACH(NULL, policy_site_close);

#define SESSIONS   96
#define PATH_MOST  16
#define REQUESTS   4000
#define DRAM_BYTES UINT64_C(10000)
#define SSD_BYTES  UINT64_C(8000)

static int lengths[SESSIONS];

static uint64_t handle_of(int session, int block)
{
    return 1 + (uint64_t)session * PATH_MOST + (uint64_t)block;
}

/* Raw, exact and smaller, lossy and smaller still: each in DRAM and on SSD. Any of them can be made
 * from what is raw. */
static void ladder_of(kvt_option options[7])
{
    const uint64_t bytes[3] = {100, 66, 30};
    options[0] = test_none(1.0);
    for (int variant = 0; variant < 3; variant++) {
        for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
            kvt_option *o = &options[1 + 2 * variant + (tier == KVT_TIER_SSD)];
            *o = test_option((uint16_t)(1 + variant), tier, bytes[variant],
                             tier == KVT_TIER_DRAM ? 0.001 : 0.01);
            o->loss = variant == 2 ? 0.002 : 0.0;
        }
    }
}

static int home_of(uint64_t handle)
{
    const entry *e = entry_at(policy, entries_find(policy, handle));
    return option_home(entry_option(policy, e, e->current));
}

static bool is_stored(uint64_t handle)
{
    return kvt_policy_option_get(policy, handle) != KVT_OPTION_NONE;
}

/* Carries a plan out, move by move: one that goes down leaves no child above. Returns the changes
 * that stay in DRAM. */
static uint32_t carry_out_checked(void)
{
    uint32_t inside = 0;
    for (uint32_t i = 0; i < plan.count; i++) {
        const kvt_move *move = &moves[i];
        const uint64_t handle = move->handle;
        const bool change = move->kind == KVT_MOVE_CHANGE;
        const int before = change ? home_of(handle) : TIERS;
        assert_ok(kvt_policy_commit(policy, move->id, NULL));
        if (!change) continue;
        const int after = home_of(handle);
        inside += before == after;
        const bool last = handle % PATH_MOST == 0;
        if (after > before && !last && is_stored(handle + 1))
            assert_true(home_of(handle + 1) >= after);
    }
    plan.count = 0;
    return inside;
}

/* A request of a session: what is stored of its path is used, what is missing behind is offered. */
static uint32_t request(uint64_t now_ns, int session, const kvt_option options[7])
{
    uint32_t inside = 0;
    for (int block = 0; block < lengths[session]; block++) {
        const uint64_t handle = handle_of(session, block);
        kvt_status status = kvt_policy_access(policy, now_ns, handle, &plan);
        inside += carry_out_checked();
        if (status != KVT_MISS) continue;
        status = admit(now_ns, handle, block > 0 ? handle - 1 : 0, options, 7);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        inside += carry_out_checked();
    }
    return inside;
}

/* Two tiers of which the lower one is smaller used to stand still: it filled with prefixes of what
 * lay in DRAM, so that nothing there could be evicted and nothing came down. */
TEST(a_small_lower_tier_does_not_stand_still)
{
    kvt_policy_config config = policy_site_config(DRAM_BYTES, SSD_BYTES);
    policy = test_open(&config);
    kvt_option options[7];
    ladder_of(options);
    uint64_t dice = 11, now_ns = SECOND;
    uint32_t inside = 0;
    for (int i = 0; i < REQUESTS; i++, now_ns += SECOND) {
        const int session = (int)test_below(&dice, SESSIONS);
        if (lengths[session] == PATH_MOST || test_below(&dice, 8) == 0) lengths[session] = 0;
        lengths[session] += 1 + (int)test_below(&dice, 3);
        if (lengths[session] > PATH_MOST) lengths[session] = PATH_MOST;
        inside += request(now_ns, session, options);
        assert_ok(kvt_policy_tick(policy, now_ns, 64, UINT64_MAX, &plan));
        inside += carry_out_checked();
    }
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    uint64_t refused = 0;
    for (int reason = 0; reason < KVT_REFUSALS; reason++)
        refused += stats.refused_for[reason];
    assert_int_equal(refused, stats.refused);
    assert_int_equal(stats.refused_for[KVT_REFUSAL_ROOM], 0);
    assert_int_equal(stats.refused_for[KVT_REFUSAL_PLAN], 0);
    assert_true(stats.admitted > REQUESTS / 4);
    /* Both tiers are used, but for the room of one variant that is coded anew inside. */
    assert_true(stats.used_bytes[KVT_TIER_DRAM] > DRAM_BYTES * 8 / 10);
    assert_true(stats.used_bytes[KVT_TIER_DRAM] <= DRAM_BYTES - 66);
    assert_true(stats.used_bytes[KVT_TIER_SSD] <= SSD_BYTES - 66);
    assert_true(inside > 100);
}

/* A child whose parent is not stored is refused for its prefix alone. */
TEST(a_refusal_names_the_missing_prefix)
{
    policy_site_open(DRAM_BYTES, 0);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.001)};
    assert_int_equal(admit(SECOND, 2, 1, options, 2), KVT_REFUSED);
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(stats.refused_for[KVT_REFUSAL_PREFIX], 1);
    assert_int_equal(stats.refused, 1);
}

/* Lives: of four that went on and four that ended, with the prior of one in four. */
TEST(uses_that_follow_are_learned_of_lives)
{
    lives all = {0};
    for (int i = 0; i < 4; i++) {
        lives_go_on(&all, REUSE_TURNS - 1, 30.0);
        lives_end(&all, REUSE_TURNS - 1);
    }
    const double chance = 5.0 / 12.0, more = chance / (1.0 - chance);
    assert_true(all.more[REUSE_TURNS - 1] == more && all.more[REUSE_TURNS - 2] == more);
    assert_true(all.more[0] == 0.25 * (1.0 + 0.25 * (1.0 + more)));
    for (int i = 0; i < 100000; i++)
        lives_go_on(&all, REUSE_TURNS - 1, 30.0);
    assert_true(all.more[REUSE_TURNS - 1] < 9.001); /* a stem does not count without end */
    assert_true(all.gap_seconds > 29.9 && all.gap_seconds < 30.1);
}
