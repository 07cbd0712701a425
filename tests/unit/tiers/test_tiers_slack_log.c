/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_slack_log.c - decisions of the gate are made again from their lines, and a line that
 * says something else is found.
 */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"
#include "tiers/pool/slack_log.h"

enum { QUESTIONS = 20000 };

static uint64_t roll(uint64_t *dice, uint64_t count)
{
    return (dice_next(dice) >> 33) % count;
}

/* A time or size of any magnitude. */
static uint64_t draw_word(uint64_t *dice)
{
    return dice_next(dice) >> roll(dice, 64);
}

static double draw_rate(uint64_t *dice)
{
    static const double odd[] = {1e-300, 1e300, INFINITY, 1};
    const uint64_t which = roll(dice, 40);
    return which < 4 ? odd[which] : 1e6 * (double)(1 + roll(dice, 10000)) / 7;
}

/* Any question that the gate takes. */
static slack_question draw_question(uint64_t *dice, slack_need *needs)
{
    static const double losses[] = {0, 0.6, NAN, 0.05, INFINITY};
    slack_question q = {.member = (uint32_t)roll(dice, TIERS_MEMBERS_MAX),
                        .rank = (tiers_rank)roll(dice, TIERS_RANKS),
                        .bytes = draw_word(dice),
                        .settings = {(tiers_order)roll(dice, TIERS_ORDERS), draw_word(dice),
                                     draw_word(dice), draw_word(dice), losses[roll(dice, 5)]},
                        .account = {draw_word(dice), draw_word(dice),
                                    (double)roll(dice, 1000) / 997, draw_word(dice),
                                    roll(dice, 2) != 0, draw_word(dice),
                                    (uint32_t)roll(dice, 1026)},
                        .state = {.now_ns = draw_word(dice),
                                  .waited_ns = draw_word(dice),
                                  .short_of_staging = roll(dice, 4) == 0,
                                  .reads_queued = roll(dice, 2) != 0,
                                  .reading_bytes = roll(dice, 2) * draw_word(dice),
                                  .writing_bytes = roll(dice, 2) * draw_word(dice),
                                  .read_bytes_per_s = draw_rate(dice),
                                  .write_bytes_per_s = draw_rate(dice),
                                  .needs = needs,
                                  .need_count = (uint32_t)roll(dice, SLACK_NEEDS_MAX + 1)}};
    for (uint32_t i = 0; i < q.state.need_count; i++)
        needs[i] =
            (slack_need){draw_word(dice),           draw_word(dice), (uint32_t)roll(dice, 100),
                         (uint32_t)draw_word(dice), draw_word(dice), draw_word(dice)};
    return q;
}

static slack_log_sums check_text(const char *line, size_t length, kvt_status wanted)
{
    slack_log_sums sums;
    FILE *log = tmpfile();
    assert_non_null(log);
    if (length > 0) assert_int_equal(fwrite(line, length, 1, log), 1);
    rewind(log);
    assert_int_equal(tiers_slack_log_check(log, &sums), wanted);
    assert_int_equal(fclose(log), 0);
    return sums;
}

TEST(decisions_are_made_again_from_their_lines)
{
    slack_need needs[SLACK_NEEDS_MAX];
    slack_log_sums sums;
    uint64_t dice = 38, reasons[SLACK_REASONS] = {0};
    FILE *log = tmpfile();
    assert_non_null(log);
    for (uint32_t i = 0; i < QUESTIONS; i++) {
        const slack_question q = draw_question(&dice, needs);
        slack_account account = q.account;
        const slack_reason reason = tiers_slack_ask(&q, &account);
        reasons[reason]++;
        tiers_slack_log_add(log, &q, reason);
        if (i % 100 == 0) fprintf(log, "%u committed 1 raw dram 0 -> 4096\n", i);
    }
    for (uint32_t reason = 0; reason < SLACK_REASONS; reason++)
        assert_true(reasons[reason] > 0);
    rewind(log);
    assert_ok(tiers_slack_log_check(log, &sums));
    assert_int_equal(sums.decisions, QUESTIONS);
    assert_int_equal(sums.lines, QUESTIONS + QUESTIONS / 100);
    assert_int_equal(sums.differ, 0);
    assert_int_equal(fclose(log), 0);
    /* Answers that the gate did not give are found, each. */
    log = tmpfile();
    assert_non_null(log);
    for (uint32_t i = 0; i < QUESTIONS / 10; i++) {
        const slack_question q = draw_question(&dice, needs);
        slack_account account = q.account;
        const uint32_t other = tiers_slack_ask(&q, &account) + 1 + (uint32_t)roll(&dice, 7);
        tiers_slack_log_add(log, &q, (slack_reason)(other % SLACK_REASONS));
    }
    rewind(log);
    assert_ok(tiers_slack_log_check(log, &sums));
    assert_int_equal(sums.differ, QUESTIONS / 10);
    assert_int_equal(fclose(log), 0);
}

/* A line of a drive of 100 MB/s with a need. */
static size_t one_line(char *line, size_t room)
{
    const slack_need need = {1012000000, 20000000, 3, 64, 1000000, 7};
    const slack_question q = {.member = 2,
                              .rank = TIERS_RANK_WRITE,
                              .bytes = 100000,
                              .settings = {TIERS_SLACK, 2000000, 1u << 30, 500000, 0.6},
                              .state = {.now_ns = 1000000000,
                                        .read_bytes_per_s = 1e8,
                                        .write_bytes_per_s = 1e8,
                                        .needs = &need,
                                        .need_count = 1}};
    slack_account account = q.account;
    FILE *log = fmemopen(line, room, "w");
    assert_non_null(log);
    tiers_slack_log_add(log, &q, tiers_slack_ask(&q, &account));
    assert_int_equal(fclose(log), 0);
    return strlen(line);
}

TEST(a_line_says_what_was_asked_and_why)
{
    char line[4096];
    const size_t length = one_line(line, sizeof line);
    static const char head[] = "1000000000 member=2 class=put seconds=0.001000000 "
                               "least=0.001000070 begins fits | member=2 rank=2 bytes=100000 ";
    assert_memory_equal(line, head, sizeof head - 1);
    assert_int_equal(check_text(line, length, KVT_OK).differ, 0);
    assert_int_equal(check_text("", 0, KVT_OK).lines, 0);
}

TEST(lines_that_are_none)
{
    static const struct {
        const char *from, *to;
        bool sound; /* it is a line, of another decision */
    } changes[] = {
        {"begins", "waits", true},
        {" fits ", " late ", true},
        {"least=0.0", "least=0.1", true},
        {"class=put", "class=load", true},
        {"| member=2", "| member=3", true},
        {"bytes=100000", "bytes=900000", true},
        {"| member=2", "| member=64", false},
        {"rank=2", "rank=4", false},
        {"order=4", "order=5", false},
        {"order=4", "order=-1", false},
        {"read_bytes_per_s=1", "read_bytes_per_s=-1", false},
        {"write_bytes_per_s=100000000", "write_bytes_per_s=0", false},
        {"write_bytes_per_s=100000000", "write_bytes_per_s=nan", false},
        {",3,64,", ",65537,64,", false},
        {",3,64,", ",3,", false},
        {",7\n", "\n", false},
        {",7\n", ",7,8\n", false},
        {",7\n", ",7", false},
        {"bytes=1", "bites=1", false},
        {"bytes=1", "bytes=", true}, /* 00000 */
        {"bytes=100000", "bytes=", false},
        {" | ", " ", false},
    };
    char line[4096], other[4096];
    const size_t length = one_line(line, sizeof line);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *at = strstr(line, changes[i].from);
        assert_non_null(at);
        const size_t before = (size_t)(at - line);
        const int size = snprintf(other, sizeof other, "%.*s%s%s", (int)before, line, changes[i].to,
                                  at + strlen(changes[i].from));
        const slack_log_sums sums =
            check_text(other, (size_t)size, changes[i].sound ? KVT_OK : KVT_E_CORRUPT);
        assert_int_equal(sums.differ, changes[i].sound ? 1 : 0);
    }
    /* Cut anywhere, and with needs that no gate has. */
    for (size_t cut = 1; cut < length; cut++) {
        slack_log_sums sums;
        FILE *log = fmemopen(line, cut, "r");
        assert_non_null(log);
        const kvt_status status = tiers_slack_log_check(log, &sums);
        /* As long as the word behind the instant is not whole, it is no decision's. */
        assert_int_equal(status, cut < sizeof "1000000000 member=" - 1 ? KVT_OK : KVT_E_CORRUPT);
        assert_int_equal(sums.decisions, 0);
        assert_int_equal(fclose(log), 0);
    }
    char *need = strstr(line, " need=");
    assert_non_null(need);
    memcpy(other, line, length);
    size_t size = length - 1;
    for (uint32_t i = 1; i <= SLACK_NEEDS_MAX; i++)
        size += (size_t)snprintf(other + size, sizeof other - size, "%.*s", (int)strlen(need) - 1,
                                 need);
    other[size++] = '\n';
    assert_int_equal(check_text(other, size, KVT_E_CORRUPT).lines, 1);
    /* A line longer than any. */
    memset(other, ' ', sizeof other);
    memcpy(other, line, length - 1);
    (void)check_text(other, sizeof other, KVT_E_CORRUPT);
}

TEST(bytes_at_random)
{
    char line[4096];
    const size_t length = one_line(line, sizeof line);
    uint64_t dice = 7;
    for (uint32_t i = 0; i < 20000; i++) {
        char other[4096];
        slack_log_sums sums;
        memcpy(other, line, length + 1);
        for (uint64_t changes = 1 + roll(&dice, 4); changes > 0; changes--)
            other[roll(&dice, length)] = "0123456789-.,=|e \n\xff"[roll(&dice, 19)];
        FILE *log = fmemopen(other, length, "r");
        assert_non_null(log);
        const kvt_status status = tiers_slack_log_check(log, &sums);
        assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
        assert_int_equal(fclose(log), 0);
    }
}
