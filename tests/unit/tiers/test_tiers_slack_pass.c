/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_slack_pass.c - a pass that loads layers from one member, and writes beside it, in each
 * order, on a clock that the test keeps: what the pass waits, and what is written meanwhile.
 *
 * The member is a drive with one bus and a latency behind it, which loses a share of its speed
 * while both directions are in it. Its worker sees a completion or a mail some time after it,
 * because threads have to wake up, and asks the gate (slack.h) as worker_order.c does.
 */
#include "cases.h"

#include <math.h>
#include <string.h>

#include "tiers/pool/needs.h"
#include "tiers/pool/slack.h"

enum {
    LAYERS = 8,
    AHEAD = 2, /* layers that a load reads ahead */
    ENTRIES = 32,
    FLIGHT_MAX = 256,
    DEPTH = 32
};

#define KIB          1024.0
#define RATE         100e6      /* of the member, in either direction */
#define LAYER_BYTES  (32 * KIB) /* of an entry on the member */
#define WRITE_BYTES  (256 * KIB)
#define CROSSOVER    6.0 /* as in kvlab slack */
#define LATENCY_NS   80000.0
#define ASK_AGAIN_NS 250000.0
#define GUARD_NS     500000u

typedef struct sim_request {
    bool write;
    double bytes, due; /* when its answer comes */
} sim_request;

typedef struct sim_case {
    tiers_order order;
    double mix, hit, asked;         /* of what the pass leaves; 0: no writes */
    double wakes;                   /* ns until the worker sees what happened */
    double read_known, write_known; /* rates that the worker counts on, over the true ones */
    double table;                   /* announced seconds of a layer over the true ones */
    bool grains_alone;              /* the batch stays the grain */
} sim_case;

typedef struct sim {
    const sim_case *of;
    double now;
    /* The drive. */
    sim_request flight[FLIGHT_MAX];
    uint32_t in_flight;
    double bus_free;
    /* The worker. */
    slack_settings gate;
    slack_account account;
    double reads_queued, reads_flying, writes_flying; /* bytes */
    double read_left[LAYERS];                         /* of layers that were asked for, to issue */
    double read_open[LAYERS];                         /* and to come */
    double write_left;                                /* of those that were asked for, to issue */
    double write_begun_bytes, write_ended_bytes;
    uint32_t writes, writes_asked, writes_ended, passed;
    double wake_at, ask_at;
    bool held;
    /* The pass. */
    uint32_t layer, issued, arrived, released;
    bool computes, ended;
    double compute, compute_end, wait_from, pace_began, step;
    /* Results. */
    double blocked, length, share;
} sim;

static double sim_layer_bytes(const sim *s)
{
    const double entries = fmax(1, round(s->of->hit * ENTRIES));
    return entries * LAYER_BYTES;
}

/* ---- the drive ---- */

static void sim_submit(sim *s, bool write, double bytes)
{
    const bool mixed = write ? s->reads_flying > 0 : s->writes_flying > 0;
    const double rate = mixed ? RATE * (1 - s->of->mix) : RATE;
    assert_true(s->in_flight < FLIGHT_MAX);
    s->bus_free = fmax(s->bus_free, s->now) + bytes / rate * 1e9;
    s->flight[s->in_flight++] =
        (sim_request){.write = write, .bytes = bytes, .due = s->bus_free + LATENCY_NS};
    *(write ? &s->writes_flying : &s->reads_flying) += bytes;
}

/* ---- the worker ---- */

static void sim_pump(sim *s, tiers_needs *needs, uint64_t need)
{
    while (s->issued < LAYERS && s->issued <= s->released + AHEAD &&
           s->issued < s->arrived + AHEAD + 1) {
        s->read_left[s->issued] = s->read_open[s->issued] = sim_layer_bytes(s);
        s->reads_queued += sim_layer_bytes(s);
        s->issued++;
        s->wake_at = fmin(s->wake_at, s->now + s->of->wakes);
    }
    needs_progress(needs, need, s->arrived, s->issued);
}

/* Books what has ended. */
static void sim_reap(sim *s, tiers_needs *needs, uint64_t need)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->in_flight; i++) {
        const sim_request *request = &s->flight[i];
        if (request->due > s->now) {
            s->flight[kept++] = *request;
            continue;
        }
        *(request->write ? &s->writes_flying : &s->reads_flying) -= request->bytes;
        if (request->write) {
            s->write_ended_bytes += request->bytes;
            while ((s->writes_ended + 1) * WRITE_BYTES <= s->write_ended_bytes + 1)
                s->writes_ended++;
        } else {
            s->reads_queued -= request->bytes;
            uint32_t layer = s->arrived;
            while (s->read_open[layer] <= 0)
                layer++;
            s->read_open[layer] -= request->bytes;
            while (s->arrived < s->issued && s->read_open[s->arrived] <= 0)
                s->arrived++;
        }
    }
    s->in_flight = kept;
    sim_pump(s, needs, need);
}

static slack_state sim_state(sim *s, tiers_needs *needs, slack_need *list)
{
    slack_state state = {.now_ns = (uint64_t)s->now,
                         .reads_queued = s->reads_queued > 0,
                         .reading_bytes = (uint64_t)s->reads_flying,
                         .writing_bytes = (uint64_t)s->writes_flying,
                         .read_bytes_per_s = RATE * s->of->read_known,
                         .write_bytes_per_s = RATE * s->of->write_known,
                         .needs = list};
    state.need_count = needs_list(needs, 0, state.now_ns, (uint64_t)s->reads_queued, list);
    return state;
}

/* Begins what the order lets begin. */
static void sim_serve(sim *s, tiers_needs *needs)
{
    if (s->of->grains_alone) s->account.batch_ns = 0;
    const double cut =
        s->gate.order == TIERS_SLACK
            ? (double)slack_write_bytes(&s->gate, &s->account, RATE * s->of->write_known)
            : WRITE_BYTES;
    s->held = false;
    while (s->in_flight < DEPTH) {
        uint32_t layer = s->arrived;
        while (layer < s->issued && s->read_left[layer] <= 0)
            layer++;
        const bool reads = layer<s->issued, writes = s->write_left> 0;
        const double piece = fmin(cut, WRITE_BYTES - fmod(s->write_begun_bytes, WRITE_BYTES));
        bool begins_read = reads, begins_write = writes && !reads;
        if (!reads && !writes) return;
        if (s->gate.order >= TIERS_TABLE) {
            slack_need list[SLACK_NEEDS_MAX];
            const slack_state state = sim_state(s, needs, list);
            begins_read =
                reads && slack_begins(slack_may_read(&s->gate, &s->account, &state, true, 0));
            begins_write = false;
            if (!begins_read && writes) {
                if (s->of->grains_alone) s->account.batch_ns = 0;
                begins_write =
                    slack_begins(slack_may_write(&s->gate, &s->account, &state, (uint64_t)cut));
            }
        } else if (reads && writes && s->passed >= 15) {
            begins_read = false;
            begins_write = true;
        }
        s->held = !begins_read && !begins_write;
        if (s->held) return;
        s->passed = begins_read && writes ? s->passed + 1 : 0;
        if (begins_read) {
            s->read_left[layer] -= LAYER_BYTES;
            sim_submit(s, false, LAYER_BYTES);
        } else {
            s->write_left -= piece;
            s->write_begun_bytes += piece;
            sim_submit(s, true, piece);
        }
    }
}

/* ---- the pass ---- */

/* Computes what has come; false at the end of the pass. */
static bool sim_compute(sim *s, tiers_needs *needs, uint64_t need)
{
    if (s->computes && s->now >= s->compute_end) {
        s->computes = false;
        s->released = ++s->layer;
        s->wait_from = s->now;
        sim_pump(s, needs, need);
    }
    if (s->layer == LAYERS) return false;
    if (s->computes || s->arrived <= s->layer) return true;
    s->blocked += s->now - s->wait_from;
    const tiers_pace pace = {.layers = LAYERS,
                             .layer = s->layer,
                             .began_ns = (uint64_t)s->now,
                             .step_ns = (uint64_t)(s->compute * s->of->table)};
    needs_set_pace(needs, need, &pace);
    s->computes = true;
    s->compute_end = s->now + s->compute;
    return true;
}

static void sim_run(sim *s, const sim_case *of)
{
    tiers_needs needs;
    memset(s, 0, sizeof *s);
    s->of = of;
    s->gate = (slack_settings){.order = of->order,
                               .grain_ns = 2000000,
                               .patience_ns = UINT64_C(10000000000),
                               .guard_ns = GUARD_NS + (uint64_t)LATENCY_NS,
                               .mix_loss = of->mix};
    const double reading = sim_layer_bytes(s) / RATE * 1e9;
    s->compute = CROSSOVER * (1 - of->hit) * ENTRIES * LAYER_BYTES / RATE * 1e9;
    s->length = fmax(s->compute, reading) * (LAYERS - 1) + reading + s->compute;
    const double left = s->length - reading * LAYERS;
    const double asked = of->asked * fmax(left, 0.1 * s->length);
    s->writes = asked > 0 ? (uint32_t)fmax(1, round(asked * 1e-9 * RATE / WRITE_BYTES)) : 0;
    const double step = s->writes > 0 ? 0.8 * s->length / s->writes : INFINITY;
    const double start = 1e9;
    tiers_share one = {.member = 0, .units = 1};
    tiers_location location = {.shares = &one, .share_count = 1};
    const tiers_pace pace = {.layers = LAYERS,
                             .began_ns = (uint64_t)start,
                             .step_ns = (uint64_t)(s->compute * of->table)};
    needs_init(&needs, s->gate.patience_ns);
    const uint64_t need = needs_begin(&needs, &pace, 0, pace.layers, AHEAD, (uint64_t)start);
    needs_add(&needs, need, &location, (uint64_t)(LAYERS * sim_layer_bytes(s)));
    s->now = s->wait_from = start;
    s->wake_at = s->ask_at = INFINITY;
    sim_pump(s, &needs, need);
    while (sim_compute(s, &needs, need)) {
        double next = fmin(s->wake_at, s->held ? s->ask_at : INFINITY);
        for (uint32_t i = 0; i < s->in_flight; i++)
            next = fmin(next, s->flight[i].due + of->wakes);
        const double ask = s->writes_asked < s->writes ? start + s->writes_asked * step : INFINITY;
        const bool works = next <= fmin(ask, s->computes ? s->compute_end : INFINITY);
        s->now = fmax(s->now, works ? next : fmin(ask, s->computes ? s->compute_end : INFINITY));
        if (!works && s->now >= ask) {
            s->writes_asked++;
            s->write_left += WRITE_BYTES;
            s->wake_at = fmin(s->wake_at, s->now + of->wakes);
        }
        if (!works) continue;
        s->wake_at = INFINITY;
        sim_reap(s, &needs, need);
        sim_serve(s, &needs);
        s->ask_at = s->now + ASK_AGAIN_NS + of->wakes;
    }
    s->share = s->writes > 0 ? (double)s->writes_ended / s->writes : 1;
    needs_destroy(&needs);
}

/* ---- what comes of it ---- */

static sim run_one, run_alone;

/* Runs a case and its loads without writes. Returns the blocked time over theirs. */
static double run_case(const sim_case *of)
{
    sim_case alone = *of;
    alone.asked = 0;
    sim_run(&run_alone, &alone);
    sim_run(&run_one, of);
    return run_one.blocked / run_alone.blocked;
}

/* What the pass leaves of the member over what the writes take: above 1 all of them fit. */
static double run_bound(void)
{
    const double left = run_one.length - LAYERS * sim_layer_bytes(&run_one) / RATE * 1e9;
    return left / (run_one.writes * WRITE_BYTES / RATE * 1e9);
}

static const double hits[] = {0.25, 0.5, 0.75, 0.9, 0.99}, asks[] = {0.3, 0.6, 0.9};

#define EACH(i, list)                                                                              \
    size_t i = 0;                                                                                  \
    i < sizeof(list) / sizeof(list)[0];                                                            \
    i++

/* The bar: where the arithmetic leaves a tenth, nearly all is written and the pass waits no more
 * than a tenth longer, whether the drive mixes or not. */
TEST(slack_writes_what_the_pass_leaves)
{
    static const double wakes[] = {2e4, 2e5, 5e5};
    uint32_t cases = 0;
    for (EACH(w, wakes))
        for (EACH(h, hits))
            for (EACH(k, asks))
                for (int mixes = 0; mixes < 2; mixes++) {
                    const sim_case of = {.order = TIERS_SLACK,
                                         .mix = mixes ? 0.6 : 0,
                                         .hit = hits[h],
                                         .asked = asks[k],
                                         .wakes = wakes[w],
                                         .read_known = 1,
                                         .write_known = 1,
                                         .table = 1};
                    assert_true(run_case(&of) <= 1.10);
                    if (run_bound() < 1.1) continue;
                    cases++;
                    assert_true(run_one.share >= 0.95);
                }
    assert_int_equal(cases, 66);
}

/* A worker that wakes up 4 ms late, as on a busy machine: by grains alone the drive idles half of
 * the time, and the writes wait, although nothing needs the drive. */
TEST(a_late_worker_gets_a_batch)
{
    for (size_t h = 0; h < 3; h++)
        for (size_t k = 1; k < 3; k++)
            for (int mixes = 0; mixes < 2; mixes++) {
                sim_case of = {.order = TIERS_SLACK,
                               .mix = mixes ? 0.6 : 0,
                               .hit = hits[h],
                               .asked = asks[k],
                               .wakes = 4e6,
                               .read_known = 1,
                               .write_known = 1,
                               .table = 1,
                               .grains_alone = true};
                assert_true(run_case(&of) <= 1.01);
                assert_true(run_one.share >= (k == 1 ? 0.60 : 0.40) &&
                            run_one.share <= (k == 1 ? 0.70 : 0.48));
                of.grains_alone = false;
                assert_true(run_case(&of) <= 1.01);
                assert_true(run_one.share >= (k == 1 ? 0.99 : 0.90));
            }
}

/* A drive that mixes without loss: slack is as good as reads_first in both. */
TEST(without_a_loss_slack_loses_nothing)
{
    for (EACH(h, hits))
        for (EACH(k, asks)) {
            sim_case of = {.order = TIERS_READS_FIRST,
                           .hit = hits[h],
                           .asked = asks[k],
                           .wakes = 2e5,
                           .read_known = 1,
                           .write_known = 1,
                           .table = 1};
            (void)run_case(&of);
            const double blocked = run_one.blocked, share = run_one.share;
            of.order = TIERS_SLACK;
            (void)run_case(&of);
            assert_true(run_one.blocked <= 1.02 * blocked);
            if (run_bound() > 1) assert_true(run_one.share >= share - 0.02);
        }
}

/* Announced seconds of half or double, and rates measured at half. */
TEST(wrong_figures_cost_little)
{
    static const double wrong[][3] = {
        {0.5, 1, 1}, {2, 1, 1}, {1, 0.5, 1}, {1, 1, 0.5}, {1, 0.5, 0.5}};
    for (EACH(i, wrong))
        for (int mixes = 0; mixes < 2; mixes++) {
            const sim_case of = {.order = TIERS_SLACK,
                                 .mix = mixes ? 0.6 : 0,
                                 .hit = 0.5,
                                 .asked = 0.6,
                                 .wakes = 2e5,
                                 .table = wrong[i][0],
                                 .read_known = wrong[i][1],
                                 .write_known = wrong[i][2]};
            assert_true(run_case(&of) <= 1.15);
            assert_true(run_one.share >= 0.85);
        }
}
