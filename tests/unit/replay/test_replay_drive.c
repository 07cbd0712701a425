/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_drive.c - the model of drives: what passes wait for follows from the numbers; orders
 * begin writes as the gate of live members says; whatever waits ends.
 */
#include "cases.h"
#include "dice.h"
#include "replay/drive_model.h"
#include "tiers/pool/slack_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MB        UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

enum { LAYERS = 10, WRITES = 100 };

typedef struct world {
    drive_model *model;
    drive_loaded loaded[4];
    bool has_loaded[4], ended[WRITES];
    uint64_t ended_ns[WRITES];
} world;

static void note_loaded(void *context, uint32_t tag, const drive_loaded *result)
{
    world *w = context;
    assert_true(tag < 4 && !w->has_loaded[tag]);
    w->has_loaded[tag] = true;
    w->loaded[tag] = *result;
}

static void note_ended(void *context, uint32_t tag, uint64_t now_ns)
{
    world *w = context;
    assert_true(tag < WRITES && !w->ended[tag]);
    w->ended[tag] = true;
    w->ended_ns[tag] = now_ns;
}

static FILE *decided; /* what the next model's gate decides, or NULL */

/* A drive of 100 MB/s in both directions. */
static void begin(world *w, tiers_order order, double mix)
{
    const drive_settings settings = {.order = order,
                                     .read_bytes_per_s = 1e8,
                                     .write_bytes_per_s = 1e8,
                                     .mix = mix,
                                     .grain_seconds = 0.002,
                                     .patience_seconds = 10,
                                     .log = decided};
    memset(w, 0, sizeof *w);
    const drive_calls calls = {note_loaded, note_ended, w};
    assert_ok(drive_open(&settings, &calls, &w->model));
}

/* Ten layers of 10 MB, 0.1 s each to read. */
static drive_pass pass_of(double layer_seconds)
{
    return (drive_pass){.layers = LAYERS,
                        .layer_bytes = 10 * MB,
                        .layer_seconds = layer_seconds,
                        .announced_seconds = layer_seconds};
}

/* Runs until nothing is left to happen; instants ascend. */
static uint64_t run_out(world *w)
{
    uint64_t now_ns = 0;
    for (uint32_t steps = 0; drive_next_ns(w->model) != UINT64_MAX; steps++) {
        assert_true(drive_next_ns(w->model) >= now_ns && steps < 1000000);
        now_ns = drive_next_ns(w->model);
        assert_ok(drive_advance(w->model, now_ns));
    }
    return now_ns;
}

static bool is_near(double value, double wanted)
{
    return fabs(value - wanted) < 1e-6 * (1 + fabs(wanted));
}

TEST(a_pass_alone_waits_for_what_its_computing_does_not_hide)
{
    /* Slower and faster than the drive, and both with a latency and with decoding behind it. */
    static const double computes[] = {0.04, 0.1, 0.25};
    for (size_t i = 0; i < sizeof computes / sizeof computes[0]; i++) {
        world w;
        begin(&w, TIERS_SLACK, 0);
        const double c = computes[i], wait = c < 0.1 ? 0.1 - c : 0;
        const drive_pass pass = pass_of(c);
        assert_ok(drive_load(w.model, 0, 0, &pass));
        (void)run_out(&w);
        assert_true(w.has_loaded[0]);
        assert_true(is_near(w.loaded[0].blocked_seconds, 0.1 + (LAYERS - 1) * wait));
        assert_true(
            is_near((double)w.loaded[0].computed_ns * 1e-9, 0.1 + (LAYERS - 1) * (c + wait) + c));
        assert_int_equal(drive_waited_bytes(w.model), 0);
        drive_close(w.model);
    }
    /* Other tiers' part comes in even steps, and each layer is decoded behind the one before. */
    world w;
    begin(&w, TIERS_READS_FIRST, 0);
    drive_pass pass = pass_of(0.01);
    pass.other_seconds = 3;
    pass.decode_seconds = 0.5;
    assert_ok(drive_load(w.model, 0, 0, &pass));
    (void)run_out(&w);
    assert_true(is_near((double)w.loaded[0].loaded_ns * 1e-9, 0.3 + LAYERS * 0.5));
    drive_close(w.model);
}

TEST(a_head_comes_before_any_layer_is_asked_for)
{
    /* A write that comes while the head is read is before the layers in the order of coming. */
    static const double blocked[TIERS_ORDERS] = {[TIERS_READS_FIRST] = 0.25,
                                                 [TIERS_FIFO] = 0.25,
                                                 [TIERS_ROUND_ROBIN] = 0.25,
                                                 [TIERS_TABLE] = 0.2,
                                                 [TIERS_SLACK] = 0.2};
    for (int order = TIERS_READS_FIRST; order < TIERS_ORDERS; order++) {
        world w;
        begin(&w, (tiers_order)order, 0);
        drive_pass pass = pass_of(0.25);
        pass.head_bytes = 10 * MB;
        assert_ok(drive_load(w.model, 0, 0, &pass));
        assert_ok(drive_add(w.model, SECOND_NS / 20, TIERS_RANK_WRITE, 5 * MB, 0, true));
        (void)run_out(&w);
        assert_true(w.has_loaded[0] && w.ended[0]);
        assert_true(is_near(w.loaded[0].blocked_seconds, blocked[order]));
        assert_int_equal(drive_waited_bytes(w.model), 0);
        drive_close(w.model);
    }
}

TEST(directions_share_the_bus_and_lose_while_they_mix)
{
    for (int mix = 0; mix < 2; mix++) {
        world w;
        begin(&w, TIERS_FIFO, mix == 0 ? 0 : 0.5);
        assert_ok(drive_add(w.model, 0, TIERS_RANK_WRITE, 100 * MB, 0, true));
        const double end = (double)run_out(&w) * 1e-9;
        assert_true(w.ended[0] && is_near(end, 1)); /* alone nothing is lost */
        const uint64_t now_ns = w.ended_ns[0];
        assert_ok(drive_add(w.model, now_ns, TIERS_RANK_READ, 100 * MB, 1, false));
        assert_ok(drive_add(w.model, now_ns, TIERS_RANK_WRITE, 100 * MB, 2, true));
        (void)run_out(&w);
        const double both = (double)(w.ended_ns[2] - now_ns) * 1e-9;
        assert_true(mix == 0 ? is_near(both, 2) : both > 2.01);
        const drive_figures *figures = drive_figures_of(w.model);
        assert_int_equal(figures->writes, 2);
        assert_int_equal(figures->bytes_written, 200 * MB);
        assert_int_equal(figures->writes_deferred, 0);
        drive_close(w.model);
    }
}

/* Blocked seconds of a pass that computes 0.15 s a layer, beside writes of 2 MB that ask for more
 * than its loads leave of the drive. */
static double blocked_beside_writes(tiers_order order, double mix, drive_figures *figures_out)
{
    world w;
    begin(&w, order, mix);
    const drive_pass pass = pass_of(0.15);
    assert_ok(drive_load(w.model, 0, 0, &pass));
    for (uint32_t i = 0; i < 40; i++)
        assert_ok(drive_add(w.model, i * SECOND_NS / 20,
                            i % 2 == 0 ? TIERS_RANK_WRITE : TIERS_RANK_BACKGROUND, 2 * MB, i,
                            true));
    (void)run_out(&w);
    assert_true(w.has_loaded[0]);
    for (uint32_t i = 0; i < 40; i++)
        assert_true(w.ended[i]);
    *figures_out = *drive_figures_of(w.model);
    assert_int_equal(figures_out->writes, 40);
    assert_int_equal(figures_out->bytes_written, 80 * MB);
    drive_close(w.model);
    return w.loaded[0].blocked_seconds;
}

TEST(slack_writes_without_a_late_layer_where_others_are_late)
{
    drive_figures figures;
    for (int mix = 0; mix < 2; mix++) {
        const double loss = mix == 0 ? 0 : 0.6;
        const double slack = blocked_beside_writes(TIERS_SLACK, loss, &figures);
        assert_true(slack < 0.1 * 1.05); /* the first layer alone takes 0.1 s */
        assert_true(figures.writes_deferred > 0 && figures.bytes_deferred > 0);
        assert_true(figures.decisions[SLACK_FITS] > 0);
        assert_int_equal(figures.decisions[SLACK_SHARE], 0);
        const double fifo = blocked_beside_writes(TIERS_FIFO, loss, &figures);
        assert_true(fifo > slack * (mix == 0 ? 1.05 : 10));
        assert_int_equal(figures.writes_deferred, 0);
        assert_true(blocked_beside_writes(TIERS_ROUND_ROBIN, loss, &figures) >= slack);
        assert_true(blocked_beside_writes(TIERS_READS_FIRST, loss, &figures) >= slack);
        assert_true(blocked_beside_writes(TIERS_TABLE, loss, &figures) >= slack);
    }
}

TEST(a_write_has_its_share_after_the_patience_and_a_pass_without_seconds_counts_for_none)
{
    for (int announced = 0; announced < 2; announced++) {
        const drive_settings settings = {.order = TIERS_SLACK,
                                         .read_bytes_per_s = 1e8,
                                         .write_bytes_per_s = 1e8,
                                         .grain_seconds = 0.002,
                                         .patience_seconds = 0.2};
        world w = {.model = NULL};
        const drive_calls calls = {note_loaded, note_ended, &w};
        assert_ok(drive_open(&settings, &calls, &w.model));
        /* Each layer is late from the beginning. */
        drive_pass pass = pass_of(1e-6);
        if (announced == 0) pass.announced_seconds = 0;
        assert_ok(drive_load(w.model, 0, 0, &pass));
        assert_ok(drive_add(w.model, 0, TIERS_RANK_WRITE, MB, 0, true));
        (void)run_out(&w);
        assert_true(w.ended[0] && w.has_loaded[0]);
        const drive_figures *figures = drive_figures_of(w.model);
        assert_true((figures->decisions[SLACK_SHARE] > 0) == (announced == 1));
        if (announced == 1) assert_true(figures->wait_seconds > 0.2);
        assert_int_equal(figures->writes_deferred, announced); /* else as reads_first */
        drive_close(w.model);
    }
}

TEST(what_is_forgotten_does_not_end_and_loads_go_on)
{
    for (int order = TIERS_READS_FIRST; order < TIERS_ORDERS; order++) {
        world w;
        begin(&w, (tiers_order)order, 0.3);
        const drive_pass pass = pass_of(0.05);
        for (uint32_t i = 0; i < 4; i++)
            assert_ok(drive_load(w.model, 0, i, &pass));
        for (uint32_t i = 0; i < WRITES; i++)
            assert_ok(drive_add(w.model, 0, i % 3 == 0 ? TIERS_RANK_READ : TIERS_RANK_WRITE, MB, i,
                                true));
        assert_ok(drive_advance(w.model, SECOND_NS / 3));
        bool ended[WRITES];
        memcpy(ended, w.ended, sizeof ended);
        drive_forget(w.model);
        (void)run_out(&w);
        assert_memory_equal(ended, w.ended, sizeof ended);
        for (uint32_t i = 0; i < 4; i++)
            assert_true(w.has_loaded[i]);
        assert_int_equal(drive_waited_bytes(w.model), 0);
        /* A model is closed with all kinds of work in it. */
        assert_ok(drive_load(w.model, 3600 * SECOND_NS, 0, &pass));
        assert_ok(drive_add(w.model, 3600 * SECOND_NS, TIERS_RANK_WRITE, 50 * MB, 0, true));
        assert_ok(drive_add(w.model, 3600 * SECOND_NS, TIERS_RANK_READ, 50 * MB, 1, true));
        drive_close(w.model);
    }
    drive_close(NULL);
}

/* Passes and writes at instants drawn from a seed; the text of what the gate decided. */
static char *decide(tiers_order order, uint64_t seed, size_t *size, uint64_t *counted)
{
    world w;
    char *lines = NULL;
    uint64_t dice = seed, now_ns = 0;
    decided = open_memstream(&lines, size);
    assert_non_null(decided);
    begin(&w, order, 0.6);
    for (uint32_t i = 0; i < WRITES; i++) {
        now_ns += (dice_next(&dice) >> 33) % (SECOND_NS / 50);
        const drive_pass pass = pass_of(0.08 + 0.01 * (double)(dice_next(&dice) >> 61));
        if (i % 25 == 0) assert_ok(drive_load(w.model, now_ns, i / 25, &pass));
        assert_ok(drive_add(w.model, now_ns, TIERS_RANK_WRITE + i % 2, MB, i, true));
    }
    (void)run_out(&w);
    const drive_figures *figures = drive_figures_of(w.model);
    *counted = 0;
    for (uint32_t reason = 0; reason < SLACK_REASONS; reason++)
        *counted += figures->decisions[reason];
    drive_close(w.model);
    assert_int_equal(fclose(decided), 0);
    decided = NULL;
    return lines;
}

TEST(a_seed_gives_the_same_decisions_and_each_can_be_made_again)
{
    for (int order = TIERS_TABLE; order <= TIERS_SLACK; order++) {
        uint64_t counted, again;
        size_t size, other_size;
        char *first = decide((tiers_order)order, 5, &size, &counted);
        char *same = decide((tiers_order)order, 5, &other_size, &again);
        assert_true(counted > WRITES && size == other_size && counted == again);
        assert_memory_equal(first, same, size);
        char *other = decide((tiers_order)order, 6, &other_size, &again);
        assert_true(size != other_size || memcmp(first, other, size) != 0);
        slack_log_sums sums;
        FILE *from = fmemopen(first, size, "r");
        assert_non_null(from);
        assert_ok(tiers_slack_log_check(from, &sums));
        assert_int_equal(sums.decisions, counted);
        assert_int_equal(sums.differ, 0);
        assert_int_equal(fclose(from), 0);
        free(first);
        free(same);
        free(other);
    }
}
