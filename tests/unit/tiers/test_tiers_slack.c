/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_slack.c - the gate's arithmetic: what layers leave, who begins, and that nobody waits
 * for ever. Everything happens on a clock that the test keeps.
 */

#include "cases.h"

#include <math.h>
#include <string.h>

#include "dice.h"
#include "tiers/pool/slack.h"

#define MS UINT64_C(1000000)
#define MB 1e6

static bool is_near(double seconds, double wanted)
{
    return fabs(seconds - wanted) < 1e-9;
}

/* One of so many numbers from 0 on. */
static uint64_t roll(uint64_t *dice, uint64_t count)
{
    return (dice_next(dice) >> 33) % count;
}

static const slack_settings gate_slack = {.order = TIERS_SLACK,
                                          .grain_ns = 2 * MS,
                                          .patience_ns = 10000 * MS,
                                          .guard_ns = MS / 2,
                                          .mix_loss = 0.6};

/* A drive of 100 MB/s in both directions at 1 s. */
static slack_state gate_state(const slack_need *needs, uint32_t count)
{
    return (slack_state){.now_ns = 1000 * MS,
                         .read_bytes_per_s = 100 * MB,
                         .write_bytes_per_s = 100 * MB,
                         .needs = needs,
                         .need_count = count};
}

TEST(least_is_the_tightest_layer)
{
    /* Layers of 10 ms on the drive, needed every 8 ms from 50 ms on: the last one is tightest. */
    slack_need need = {.due_ns = 50 * MS, .step_ns = 8 * MS, .layers = 4, .ahead = 64};
    need.layer_bytes = 1000000;
    assert_true(is_near(slack_least(&need, 1, 0, 100 * MB), 0.074 - 0.040));
    /* Every 20 ms: the first one is. */
    need.step_ns = 20 * MS;
    assert_true(is_near(slack_least(&need, 1, 0, 100 * MB), 0.050 - 0.010));
    /* What has landed of it counts. */
    need.landed_bytes = 500000;
    assert_true(is_near(slack_least(&need, 1, 0, 100 * MB), 0.045));
    /* A busy member begins later. */
    assert_true(is_near(slack_least(&need, 1, 30 * MS, 100 * MB), 0.015));
    assert_true(isinf(slack_least(NULL, 0, 0, 100 * MB)));
    need.layers = 0;
    assert_true(isinf(slack_least(&need, 1, 0, 100 * MB)));
}

TEST(window_opens_late)
{
    /* Needed at 100 ms, and asked for 30 ms before: until 70 ms a write costs nothing. */
    const slack_need need = {
        .due_ns = 100 * MS, .step_ns = 30 * MS, .layers = 1, .ahead = 1, .layer_bytes = 1000000};
    const double early = slack_least(&need, 1, 0, 100 * MB);
    assert_true(is_near(early, 0.020));
    assert_true(is_near(slack_least(&need, 1, 60 * MS, 100 * MB), early));
    assert_true(is_near(slack_least(&need, 1, 80 * MS, 100 * MB), 0.010));
}

TEST(two_passes_share_a_member)
{
    const slack_need needs[2] = {
        {.due_ns = 40 * MS, .step_ns = 40 * MS, .layers = 2, .ahead = 64, .layer_bytes = 1000000},
        {.due_ns = 15 * MS, .step_ns = 40 * MS, .layers = 2, .ahead = 64, .layer_bytes = 1000000}};
    /* 15: at 10; 40: at 20; 55: at 30; 80: at 40. */
    assert_true(is_near(slack_least(needs, 2, 0, 100 * MB), 0.005));
}

TEST(write_begins_when_it_fits)
{
    slack_account account = {0};
    slack_need need = {
        .due_ns = 1012 * MS, .step_ns = 20 * MS, .layers = 3, .ahead = 64, .layer_bytes = 1000000};
    slack_state at = gate_state(&need, 1);
    /* 2 ms are left: a write of 1 ms and the guard fit, one of 2 ms does not. */
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 100000), SLACK_FITS);
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 200000), SLACK_LATE);
    /* What is written already comes before it. */
    at.writing_bytes = 80000;
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 100000), SLACK_LATE);
    at.writing_bytes = 0;
    /* Reads under way end first where the device loses by mixing, and only there. */
    at.reading_bytes = 4096;
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 100000), SLACK_TURN);
    slack_settings gate = gate_slack;
    gate.mix_loss = 0.01;
    assert_int_equal(slack_may_write(&gate, &account, &at, 100000), SLACK_FITS);
    gate.mix_loss = NAN;
    assert_int_equal(slack_may_write(&gate, &account, &at, 100000), SLACK_TURN);
    /* A read waits for its turn, too. */
    at.reading_bytes = 0;
    at.writing_bytes = 4096;
    assert_int_equal(slack_may_read(&gate_slack, &account, &at, true, 0), SLACK_TURN);
    at.writing_bytes = 0;
    assert_int_equal(slack_may_read(&gate_slack, &account, &at, true, 0), SLACK_FITS);
    /* A read that nobody waits for must fit as a write must. */
    assert_int_equal(slack_may_read(&gate_slack, &account, &at, false, 200000), SLACK_LATE);
    assert_int_equal(slack_may_read(&gate_slack, &account, &at, false, 100000), SLACK_FITS);
}

TEST(without_a_pass_writes_take_idle_time)
{
    slack_account account = {0};
    slack_state at = gate_state(NULL, 0);
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 200000), SLACK_IDLE);
    at.reads_queued = true;
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 200000), SLACK_BEHIND_READS);
    assert_int_equal(slack_may_read(&gate_slack, &account, &at, true, 0), SLACK_ORDERED);
}

TEST(grain_bounds_what_a_read_waits_for)
{
    slack_account account = {0};
    slack_state at = gate_state(NULL, 0);
    const uint64_t piece = slack_write_bytes(&gate_slack, &account, at.write_bytes_per_s);
    assert_int_equal(piece, 12 * 4096);
    uint32_t pieces = 0;
    while (slack_begins(slack_may_write(&gate_slack, &account, &at, piece)) && pieces++ < 100)
        at.writing_bytes += piece;
    assert_int_equal(pieces, 4);
    assert_true((double)at.writing_bytes / at.write_bytes_per_s <= 0.002);
    /* A drive that is too slow for any grain still gets one request. */
    assert_int_equal(slack_write_bytes(&gate_slack, &account, 1), 4096);
    at.writing_bytes = 0;
    at.write_bytes_per_s = 1;
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 4096), SLACK_IDLE);
}

/* Fills the batch; returns the writes that began. */
static uint32_t fill_batch(slack_account *account, slack_state *at)
{
    uint32_t begun = 0;
    const uint64_t bytes = slack_write_bytes(&gate_slack, account, at->write_bytes_per_s);
    while (slack_begins(slack_may_write(&gate_slack, account, at, bytes))) {
        at->writing_bytes += bytes;
        assert_true(++begun < 1000);
    }
    return begun;
}

/* The worker that comes back when all has ended gets twice as much, up to eight grains; one that
 * comes back early, the grain again. */
TEST(batch_lasts_until_the_worker_comes_back)
{
    slack_account account = {0};
    slack_state at = gate_state(NULL, 0);
    assert_int_equal(slack_batch_ns(&gate_slack, &account), 2 * MS);
    for (uint64_t grains = 1; grains <= 64; grains *= 2) {
        at.writing_bytes = 0;
        (void)fill_batch(&account, &at);
        const uint64_t most = (grains < 8 ? grains : 8) * 2 * MS;
        assert_int_equal(slack_batch_ns(&gate_slack, &account), most);
        const double writing = (double)at.writing_bytes / at.write_bytes_per_s;
        assert_true(writing <= (double)most * 1e-9 && writing > (double)most * 0.7e-9);
    }
    for (uint32_t i = 0; i < 1000; i++) {
        at.writing_bytes -= at.writing_bytes / 5;
        (void)fill_batch(&account, &at);
    }
    assert_int_equal(slack_batch_ns(&gate_slack, &account), 2 * MS);
    /* Writes that end because a read waits say nothing, nor do single ones that fill nothing. */
    (void)slack_may_read(&gate_slack, &account, &at, true, 0);
    for (uint32_t i = 0; i < 10; i++) {
        at.writing_bytes = 0;
        assert_int_equal(slack_may_write(&gate_slack, &account, &at, 4096), SLACK_IDLE);
    }
    for (uint32_t i = 0; i < 10; i++) {
        at.writing_bytes = 0;
        (void)fill_batch(&account, &at);
        assert_int_equal(slack_may_read(&gate_slack, &account, &at, true, 0), SLACK_ORDERED);
    }
    assert_int_equal(slack_batch_ns(&gate_slack, &account), 2 * MS);
}

/* Grains that nobody would set. */
TEST(batch_of_any_grain)
{
    static const uint64_t grains[] = {0, 1, UINT64_MAX / 8, UINT64_MAX / 8 + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof grains / sizeof grains[0]; i++) {
        slack_settings gate = gate_slack;
        slack_account account = {0};
        slack_state at = gate_state(NULL, 0);
        gate.grain_ns = grains[i];
        for (uint32_t round = 0; round < 10; round++) {
            at.writing_bytes = 0;
            assert_int_equal(slack_may_write(&gate, &account, &at, 4096), SLACK_IDLE);
            account.filled = true;
            assert_true(slack_batch_ns(&gate, &account) >= grains[i]);
            assert_true(slack_write_bytes(&gate, &account, 1e9) >= 4096);
        }
    }
}

/* Requests that are cut smaller measure slower: the cut must not follow them down. */
TEST(cuts_do_not_shrink_without_end)
{
    const slack_account account = {0};
    double measured = 100 * MB;
    for (uint32_t i = 0; i < 100; i++) {
        const double rate = slack_write_rate(measured, 100 * MB);
        const uint64_t bytes = slack_write_bytes(&gate_slack, &account, rate);
        measured = (double)bytes / ((double)bytes / (100 * MB) + 0.0005);
    }
    const double rate = slack_write_rate(measured, 100 * MB);
    assert_int_equal(slack_write_bytes(&gate_slack, &account, rate), 24576);
    assert_true(slack_write_rate(200 * MB, 100 * MB) > 199 * MB);
    assert_true(slack_write_rate(0, 0) == 0);
}

/* A member whose reads never leave room: a write that waited gets a twentieth, not before. */
TEST(patience_and_watermark_give_a_share)
{
    const slack_need need = {
        .due_ns = 0, .step_ns = MS, .layers = 8, .ahead = 64, .layer_bytes = 1000000};
    for (int short_of_staging = 0; short_of_staging < 2; short_of_staging++) {
        slack_account account = {0};
        slack_state at = gate_state(&need, 1);
        at.reads_queued = true;
        at.short_of_staging = short_of_staging != 0;
        uint64_t written = 0, first_ns = 0;
        for (uint64_t ns = 0; ns < 30000 * MS; ns += MS / 10) {
            at.now_ns = 1000 * MS + ns;
            at.waited_ns = ns;
            const slack_reason reason = slack_may_write(&gate_slack, &account, &at, 48 * 1024);
            if (!slack_begins(reason)) continue;
            assert_int_equal(reason, SLACK_SHARE);
            if (written == 0) first_ns = ns;
            written += 48 * 1024;
        }
        assert_true(first_ns == (short_of_staging ? 0 : gate_slack.patience_ns));
        const double seconds = (30000 * 1e-3 - (double)first_ns * 1e-9);
        const double share = (double)written / (100 * MB) / seconds;
        assert_true(share >= 0.049 && share <= 0.051);
    }
}

TEST(before_reads_that_wait_a_write_has_its_share_alone)
{
    slack_account account = {0};
    const slack_need need = {
        .due_ns = 9000 * MS, .step_ns = 20 * MS, .layers = 3, .ahead = 1, .layer_bytes = 1000000};
    slack_state at = gate_state(&need, 1);
    assert_false(tiers_slack_share_is_due(&gate_slack, &account, &at));
    at.short_of_staging = true;
    /* A millisecond that fits, while no read is there, costs nothing of the share. */
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 100000), SLACK_FITS);
    assert_true(tiers_slack_share_is_due(&gate_slack, &account, &at));
    at.reads_queued = true;
    assert_int_equal(slack_may_write(&gate_slack, &account, &at, 100000), SLACK_FITS);
    at.now_ns += 20 * MS - 1;
    assert_false(tiers_slack_share_is_due(&gate_slack, &account, &at));
    at.now_ns++;
    assert_true(tiers_slack_share_is_due(&gate_slack, &account, &at));
}

TEST(clock_that_stands_still_stops_nobody)
{
    const slack_need need = {
        .due_ns = 0, .step_ns = MS, .layers = 100, .ahead = 64, .layer_bytes = 1000000};
    slack_account account = {0};
    const slack_state at = gate_state(&need, 1);
    uint32_t begun = 0;
    for (uint32_t i = 0; i < 10000; i++)
        begun += slack_begins(slack_may_write(&gate_slack, &account, &at, 4096));
    assert_in_range(begun, 5, 20);
    begun = 0;
    for (uint32_t i = 0; i < 10000; i++)
        begun += slack_begins(slack_may_read(&gate_slack, &account, &at, false, 4096));
    assert_in_range(begun, 5, 20);
    /* Reads that never end, without a pass; in both orders that hold writes. */
    for (uint32_t k = 0; k < 2; k++) {
        slack_settings gate = gate_slack;
        slack_state behind = gate_state(NULL, 0);
        behind.reads_queued = true;
        behind.waited_ns = gate.patience_ns; /* and its twentieth never falls due again */
        if (k == 1) gate.order = TIERS_TABLE;
        account = (slack_account){0};
        begun = 0;
        for (uint32_t i = 0; i < 10000; i++)
            begun += slack_begins(slack_may_write(&gate, &account, &behind, 4096));
        assert_in_range(begun, 5, 20);
    }
}

TEST(pass_that_never_ends_is_forgotten)
{
    slack_need need = {.due_ns = 5 * MS, .step_ns = MS, .layers = 11};
    assert_int_equal(slack_need_ends(&need, 10000 * MS), 10015 * MS);
    need.layers = 0;
    assert_int_equal(slack_need_ends(&need, MS), 6 * MS);
    need = (slack_need){.due_ns = UINT64_MAX - 3, .step_ns = UINT64_MAX / 2, .layers = 5};
    assert_true(slack_need_ends(&need, MS) == UINT64_MAX);
    need.layer_bytes = 1;
    need.ahead = UINT32_MAX;
    assert_true(slack_least(&need, 1, 0, 1e-300) < 0);
}

TEST(other_orders)
{
    slack_account account = {0};
    slack_settings gate = gate_slack;
    slack_need need = {
        .due_ns = 1000 * MS, .step_ns = 30 * MS, .layers = 9, .ahead = 64, .layer_bytes = 2000000};
    slack_state at = gate_state(&need, 1);
    for (int order = TIERS_READS_FIRST; order < TIERS_TABLE; order++) {
        gate.order = (tiers_order)order;
        at.reads_queued = true;
        at.writing_bytes = UINT32_MAX;
        assert_int_equal(slack_may_write(&gate, &account, &at, 1 << 20), SLACK_ORDERED);
    }
    /* table: a window of 30 ms whose reads take 20 leaves 10, and the next window 10 more. */
    gate.order = TIERS_TABLE;
    at.writing_bytes = 0;
    assert_int_equal(slack_may_write(&gate, &account, &at, 100000), SLACK_BEHIND_READS);
    at.reads_queued = false;
    for (int window = 0; window < 2; window++) {
        uint32_t begun = 0;
        while (slack_may_write(&gate, &account, &at, 100000) == SLACK_FITS && begun < 100)
            begun++;
        assert_in_range(begun, 9, 10);
        need.due_ns += need.step_ns;
    }
    need.layer_bytes = 4000000;
    need.due_ns += need.step_ns;
    assert_int_equal(slack_may_write(&gate, &account, &at, 4096), SLACK_LATE);
    at.need_count = 0;
    assert_int_equal(slack_may_write(&gate, &account, &at, 4096), SLACK_IDLE);
    assert_int_equal(slack_may_read(&gate, &account, &at, true, 0), SLACK_ORDERED);
}

/* One drive that serves a request after the other, a pass over it, and writes that wait: with the
 * gate no layer comes later than without writes, but for the share. */
TEST(writes_make_no_layer_late)
{
    for (uint32_t seed = 1; seed <= 200; seed++) {
        uint64_t dice = seed;
        slack_need need = {.due_ns = (1 + roll(&dice, 40)) * MS,
                           .step_ns = (2 + roll(&dice, 30)) * MS,
                           .layers = 40,
                           .ahead = 1 + (uint32_t)roll(&dice, 4),
                           .layer_bytes = 100000 * (1 + roll(&dice, 25))};
        const double bytes_per_s = 100 * MB;
        const double without = slack_least(&need, 1, 0, bytes_per_s);
        const uint64_t piece = 4096 * (1 + roll(&dice, 48));
        const uint64_t piece_ns = (uint64_t)((double)piece / bytes_per_s * 1e9) + 1;
        const uint64_t layer_ns = (uint64_t)((double)need.layer_bytes / bytes_per_s * 1e9) + 1;
        slack_account account = {0};
        uint64_t now_ns = 0, written = 0;
        double least = INFINITY;
        while (need.layers > 0) {
            const uint64_t before = need.ahead * need.step_ns;
            const bool open = need.due_ns <= now_ns + before;
            slack_state at = gate_state(&need, 1);
            at.now_ns = now_ns;
            at.reads_queued = open;
            if (slack_begins(slack_may_write(&gate_slack, &account, &at, piece))) {
                written++;
                now_ns += piece_ns;
            } else if (open) {
                now_ns += layer_ns;
                const double left = ((double)need.due_ns - (double)now_ns) * 1e-9;
                if (left < least) least = left;
                need.due_ns += need.step_ns;
                need.layers--;
            } else {
                now_ns += MS / 10;
            }
        }
        /* Late layers are late without writes, too; in time they stay by the guard. */
        assert_true(least >= fmin(without, 0.0005) - 0.0001 - 40e-9 * 40);
        const double spare = (double)need.step_ns * 1e-9 - (double)need.layer_bytes / bytes_per_s;
        if (without > 0.004 && spare > 0.004) assert_true(written > 0);
    }
}

TEST(reasons_have_names)
{
    for (int reason = 0; reason < SLACK_REASONS; reason++)
        for (int other = 0; other < reason; other++)
            assert_string_not_equal(slack_reason_name((slack_reason)reason),
                                    slack_reason_name((slack_reason)other));
    assert_true(slack_begins(SLACK_SHARE) && !slack_begins(SLACK_BEHIND_READS));
}
