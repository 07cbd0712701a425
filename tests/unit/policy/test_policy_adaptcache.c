/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_adaptcache.c - the rival's greedy against one written down directly, on a list of
 * entries without any index; and what only it does: coding anew what is lossy, for good.
 */
#include "policy_support.h"

#include <stdio.h>

#define ENTRIES 60
#define OPTIONS 9 /* NONE; four forms in DRAM; the same in SSD */
#define FORMS   4u

typedef struct plain_entry {
    kvt_option options[OPTIONS];
    double uses;
    uint8_t at; /* 0: not stored */
    bool excluded;
    bool moved; /* in the present plan: an entry moves once in each */
} plain_entry;

/* The greedy, written down: what each tier has left, and what it keeps for coding anew. */
typedef struct plain {
    plain_entry entries[ENTRIES];
    int64_t capacity[KVT_TIER_COUNT];
    int64_t room[KVT_TIER_COUNT];
    int64_t kept[KVT_TIER_COUNT];
} plain;

static const double alpha = 2.0;

static double unit(uint64_t *dice)
{
    return ((double)(test_draw(dice) >> 11) + 0.5) * 0x1p-53;
}

/* Losses and sizes differ from entry to entry; each form is smaller and worse than the one before.
 * None is made from another. */
static void plain_options(uint64_t *dice, kvt_option options[OPTIONS])
{
    uint64_t bytes = 2000 + test_below(dice, 6000);
    double share = 1.0, loss = 0.0;
    memset(options, 0, sizeof *options * OPTIONS);
    options[0] = test_none(0.5 + unit(dice));
    for (uint16_t i = 0; i < FORMS; i++) {
        uint64_t stored = (uint64_t)(share * (double)bytes);
        options[1 + i] =
            test_option((uint16_t)(i + 1), KVT_TIER_DRAM, stored, 1e-6 * (double)stored);
        options[5 + i] =
            test_option((uint16_t)(i + 1), KVT_TIER_SSD, stored, 2e-5 * (double)stored);
        options[1 + i].loss = options[5 + i].loss = loss;
        share *= 0.4 + 0.4 * unit(dice);
        loss = loss * 1.5 + 0.02 * unit(dice);
    }
}

static double plain_cost(const plain_entry *e, uint8_t at)
{
    return e->options[at].load_seconds + alpha * e->options[at].loss;
}

static int64_t plain_bytes(const plain_entry *e, uint8_t at, int tier)
{
    return (int64_t)e->options[at].bytes[tier];
}

static bool plain_fits(const plain *p, const plain_entry *e, uint8_t o)
{
    return plain_bytes(e, o, KVT_TIER_DRAM) <= p->capacity[KVT_TIER_DRAM] &&
           plain_bytes(e, o, KVT_TIER_SSD) <= p->capacity[KVT_TIER_SSD];
}

/* The change of an entry that loses least per byte freed; to = at: none. */
static double plain_change(const plain *p, const plain_entry *e, uint8_t at, int tier, bool now,
                           uint8_t *to_out)
{
    double least = 1e300;
    for (uint8_t to = 0; to < OPTIONS; to++) {
        int64_t freed = plain_bytes(e, at, tier) - plain_bytes(e, to, tier);
        bool above = tier == KVT_TIER_SSD && e->options[to].bytes[KVT_TIER_DRAM] > 0;
        if (to == at || freed <= 0 || above) continue;
        if (to != 0 && (e->options[to].loss < e->options[at].loss || !plain_fits(p, e, to)))
            continue;
        if (now && (plain_bytes(e, to, KVT_TIER_DRAM) > p->room[KVT_TIER_DRAM] ||
                    plain_bytes(e, to, KVT_TIER_SSD) > p->room[KVT_TIER_SSD]))
            continue;
        double lost = e->uses * (plain_cost(e, to) - plain_cost(e, at)) / (double)freed;
        if (lost < least) {
            least = lost;
            *to_out = to;
        }
    }
    return least;
}

static void plain_set(plain *p, plain_entry *e, uint8_t to)
{
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++)
        p->room[tier] += plain_bytes(e, e->at, tier) - plain_bytes(e, to, tier);
    e->at = to;
    e->moved = true;
}

static plain_entry *plain_first(plain *p, int tier, double *least_out, uint8_t *to_out)
{
    plain_entry *first = NULL;
    double least = 1e300;
    for (int i = 0; i < ENTRIES; i++) {
        plain_entry *e = &p->entries[i];
        uint8_t to = 0;
        if (e->at == 0 || e->excluded || e->moved || plain_bytes(e, e->at, tier) == 0) continue;
        double lost = plain_change(p, e, e->at, tier, false, &to);
        if (lost >= least) continue;
        least = lost;
        *to_out = to;
        first = e;
    }
    *least_out = least;
    return first;
}

static void plain_make_room(plain *p, int tier, int64_t need)
{
    while (p->room[tier] < need) {
        double least;
        uint8_t to;
        plain_entry *e = plain_first(p, tier, &least, &to);
        if (e == NULL) return;
        static plain
            kept_state[KVT_TIER_COUNT]; /* room below that turns out not to be enough is not made */
        plain *before = &kept_state[tier];
        *before = *p;
        e->excluded = true;
        if (tier == KVT_TIER_DRAM)
            plain_make_room(p, KVT_TIER_SSD, plain_bytes(e, to, KVT_TIER_SSD));
        e->excluded = false;
        bool fits = plain_bytes(e, to, KVT_TIER_DRAM) <= p->room[KVT_TIER_DRAM] &&
                    plain_bytes(e, to, KVT_TIER_SSD) <= p->room[KVT_TIER_SSD];
        if (!fits) *p = *before;
        if (!fits) (void)plain_change(p, e, e->at, tier, true, &to);
        plain_set(p, e, to);
    }
}

static void plain_keep(plain *p, const plain_entry *e, int tier)
{
    int64_t kept = plain_bytes(e, tier == KVT_TIER_DRAM ? 2 : 6, tier);
    double least;
    uint8_t to;
    if (kept > p->capacity[tier] / 64) kept = p->capacity[tier] / 64;
    if (kept > p->kept[tier]) p->kept[tier] = kept;
    if (plain_first(p, tier, &least, &to) != NULL) plain_make_room(p, tier, p->kept[tier]);
}

static void plain_admit(plain *p, plain_entry *e)
{
    uint8_t at = 1;
    for (int i = 0; i < ENTRIES; i++)
        p->entries[i].moved = false;
    static plain untouched;
    untouched = *p;
    for (uint8_t o = 2; o < OPTIONS; o++)
        if (plain_cost(e, o) < plain_cost(e, at)) at = o;
    plain_keep(p, e, KVT_TIER_SSD);
    plain_keep(p, e, KVT_TIER_DRAM);
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        for (;;) {
            double least;
            uint8_t to, own = 0;
            const plain_entry *first = plain_first(p, tier, &least, &to);
            int64_t need = plain_bytes(e, at, tier);
            if (need == 0 || p->room[tier] >= need + (first != NULL ? p->kept[tier] : 0)) break;
            if (first == NULL || plain_change(p, e, at, tier, false, &own) <= least)
                at = own;
            else
                plain_make_room(p, tier, p->room[tier] + 1);
        }
    }
    if (at == 0) { /* a refusal changes nothing but what is kept */
        memcpy(untouched.kept, p->kept, sizeof p->kept);
        *p = untouched;
        return;
    }
    plain_set(p, e, at);
}

static kvt_policy *open_two(test_memory *memory, uint64_t dram, uint64_t ssd)
{
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = "adaptcache";
    config.alpha_seconds = alpha;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = dram;
    config.tiers[KVT_TIER_SSD].capacity_bytes = ssd;
    *memory = (test_memory){.left = -1};
    config.allocator = test_allocator(memory);
    return test_open(&config);
}

static uint32_t compare_with_plain(uint64_t seed, uint64_t dram, uint64_t ssd)
{
    static plain p;
    static kvt_move moves[256];
    kvt_plan plan = {moves, 256, 0};
    test_memory memory;
    kvt_policy *policy = open_two(&memory, dram, ssd);
    uint64_t dice = seed * 77 + 1;
    uint32_t recoded = 0;
    memset(&p, 0, sizeof p);
    p.room[KVT_TIER_DRAM] = p.capacity[KVT_TIER_DRAM] = (int64_t)dram;
    p.room[KVT_TIER_SSD] = p.capacity[KVT_TIER_SSD] = (int64_t)ssd;
    for (uint64_t i = 0; i < ENTRIES; i++) {
        plain_entry *e = &p.entries[i];
        plain_options(&dice, e->options);
        /* Counted before it comes, as one that was remembered: rates differ by the prior. */
        double prior = 9.0 * unit(&dice);
        assert_ok(kvt_policy_prior_set(policy, 1, prior));
        e->uses = 1.0 + prior;
        const kvt_policy_entry given = {.struct_size = sizeof given,
                                        .handle = i + 1,
                                        .options = e->options,
                                        .option_count = OPTIONS,
                                        .class_id = 1};
        kvt_status status = kvt_policy_admit(policy, SECOND, &given, &plan);
        for (uint32_t k = 0; k < plan.count; k++) {
            const plain_entry *moved = &p.entries[moves[k].handle - 1];
            recoded += moves[k].kind == KVT_MOVE_CHANGE &&
                       moved->options[moves[k].from].loss > 0.0 &&
                       moves[k].to_variant.codec != moved->options[moves[k].from].variant.codec;
        }
        test_carry_out(policy, &plan);
        plain_admit(&p, e);
        assert_int_equal(status, e->at != 0 ? KVT_OK : KVT_REFUSED);
        for (uint64_t k = 0; k <= i; k++)
            if (kvt_policy_option_get(policy, k + 1) != p.entries[k].at) {
                fail_msg("seed %u, after %u: entry %u is in %u, should be in %u", (unsigned)seed,
                         (unsigned)i, (unsigned)k, kvt_policy_option_get(policy, k + 1),
                         p.entries[k].at);
            }
    }
    kvt_policy_close(policy);
    return recoded;
}

TEST(it_does_what_the_greedy_written_down_does)
{
    uint32_t recoded = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        recoded += compare_with_plain(seed, 60000, 0);
        recoded += compare_with_plain(seed, 50000, 60000);
        recoded += compare_with_plain(seed, 20000, 100000);
    }
    assert_true(recoded > 1000);
}

/* Two entries of which one has to shrink for each that comes; used often afterwards, the shrunken
 * one stays as it is. */
TEST(what_is_compressed_stays_compressed)
{
    kvt_move moves[16];
    kvt_plan plan = {moves, 16, 0};
    test_memory memory;
    kvt_policy *policy = open_two(&memory, 3400, 0);
    kvt_option options[4] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 1600, 1e-3),
                             test_option(2, KVT_TIER_DRAM, 800, 1e-3),
                             test_option(3, KVT_TIER_DRAM, 200, 1e-3)};
    options[2].loss = 0.01;
    options[3].loss = 0.2;
    for (uint64_t handle = 1; handle <= 5; handle++) {
        const kvt_policy_entry given = {
            .struct_size = sizeof given, .handle = handle, .options = options, .option_count = 4};
        assert_ok(kvt_policy_admit(policy, handle * 100 * SECOND, &given, &plan));
        test_carry_out(policy, &plan);
    }
    assert_int_equal(kvt_policy_option_get(policy, 1), 3);
    for (uint64_t handle = 2; handle <= 5; handle++)
        assert_ok(kvt_policy_remove(policy, handle));
    for (uint64_t use = 0; use < 50; use++) {
        assert_ok(kvt_policy_access(policy, (600 + use) * SECOND, 1, &plan));
        test_carry_out(policy, &plan);
        assert_ok(kvt_policy_tick(policy, (600 + use) * SECOND, 8, UINT64_MAX, &plan));
        test_carry_out(policy, &plan);
    }
    assert_int_equal(kvt_policy_option_get(policy, 1), 3);
    kvt_policy_close(policy);
}

TEST(a_use_brings_an_entry_up_in_its_present_form)
{
    kvt_move moves[16];
    kvt_plan plan = {moves, 16, 0};
    test_memory memory;
    kvt_policy *policy = open_two(&memory, 2000, 9000);
    uint64_t dice = 5;
    kvt_option options[OPTIONS];
    plain_options(&dice, options);
    for (uint8_t o = 1; o < OPTIONS; o++)
        options[o].bytes[o <= FORMS ? KVT_TIER_DRAM : KVT_TIER_SSD] = 1500;
    const kvt_policy_entry given = {
        .struct_size = sizeof given, .handle = 7, .options = options, .option_count = OPTIONS};
    assert_ok(kvt_policy_adopt(policy, SECOND, &given, 7));
    assert_ok(kvt_policy_access(policy, 2 * SECOND, 7, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 3);
    test_carry_out(policy, &plan);
    assert_ok(kvt_policy_access(policy, 3 * SECOND, 7, &plan));
    assert_int_equal(plan.count, 0);
    kvt_policy_close(policy);
}
