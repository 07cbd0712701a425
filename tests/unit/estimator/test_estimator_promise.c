/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_promise.c - bounds of losses hold for classes that were not measured as often as
 * they say, worlds of classes drawn at random; what was promised before does not; they tighten with
 * more classes and loosen where these differ.
 */
#include "cases.h"

#include "estimator/quality/promise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 40, CLASSES = 6, VARIANTS = 5, TRIALS = 200 };

static quality_row rows[CLASSES * ENTRIES * VARIANTS];
static uint32_t classes[CLASSES * ENTRIES];
static uint64_t documents[CLASSES * ENTRIES];

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 33) + 0.5) / 2147483648.0;
}

static double normal(uint64_t *state)
{
    const double radius = sqrt(-2.0 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

/* Classes that differ by exp(+-class_sd), documents of two entries, entries by exp(+-entry_sd). */
static promise_rows world(uint64_t seed, uint32_t class_count, double class_sd, double entry_sd)
{
    uint64_t state = seed * 7919 + 1;
    for (uint32_t c = 0; c < class_count; c++) {
        const double of_class = class_sd * normal(&state);
        for (uint32_t e = 0; e < ENTRIES; e++) {
            const uint32_t at = c * ENTRIES + e;
            const double of_entry = entry_sd * normal(&state);
            classes[at] = c;
            documents[at] = 1 + at / 2;
            for (uint32_t v = 0; v < VARIANTS; v++) {
                const double loss = 0.001 * pow(3.0, v) * exp(of_class + of_entry);
                rows[at * VARIANTS + v] = (quality_row){.present = true, .loss = fmin(loss, 1.0)};
            }
        }
    }
    return (promise_rows){.rows = rows,
                          .entry_count = class_count * ENTRIES,
                          .variant_count = VARIANTS,
                          .classes = classes,
                          .documents = documents,
                          .class_count = class_count,
                          .trials = TRIALS};
}

TEST(classes_left_out_keep_the_limits)
{
    promise_trial sum[3] = {{.limit = 0.01}, {.limit = 0.02}, {.limit = 0.05}}, trials[3];
    for (uint64_t seed = 0; seed < 60; seed++) {
        promise_rows of = world(seed, CLASSES, 0.6, 0.5);
        for (int t = 0; t < 3; t++)
            trials[t] = (promise_trial){.limit = sum[t].limit};
        assert_ok(promise_try(&of, trials, 3));
        for (int t = 0; t < 3; t++) {
            sum[t].mean_offered += trials[t].mean_offered;
            sum[t].mean_kept += trials[t].mean_kept;
            sum[t].entry_offered += trials[t].entry_offered;
            sum[t].entry_kept += trials[t].entry_kept;
        }
    }
    for (int t = 0; t < 3; t++) {
        assert_true(sum[t].mean_offered > 100);
        assert_true(sum[t].mean_kept >= PROMISE_CONFIDENCE * sum[t].mean_offered);
        assert_true(sum[t].entry_kept >= PROMISE_CONFIDENCE * sum[t].entry_offered);
    }
    assert_true(sum[2].entry_offered > 100);
}

TEST(more_and_likelier_classes_tighten)
{
    promise_bound few[VARIANTS], many[VARIANTS], apart[VARIANTS], one[VARIANTS];
    promise_rows of = world(1, 2, 0.1, 0.4);
    assert_ok(promise_of_others(&of, 0, few));
    of = world(1, CLASSES, 0.1, 0.4);
    assert_ok(promise_of_others(&of, 0, many));
    assert_true(many[2].widening < few[2].widening && many[2].widening > 1.0);
    of = world(1, CLASSES, 1.5, 0.4);
    assert_ok(promise_of_others(&of, 0, apart));
    assert_true(apart[2].widening > 1.3 * many[2].widening);
    of = world(1, 1, 0.1, 0.4);
    assert_ok(promise_of_others(&of, 0, one));
    assert_true(one[2].widening > few[2].widening);
    /* A class left out is as one that was never there. */
    promise_bound without[VARIANTS];
    of = world(1, 2, 0.1, 0.4);
    assert_ok(promise_of_others(&of, 2, without));
    assert_true(without[2].mean == one[2].mean && without[2].entry == one[2].entry);
}

/* Whatever classes' log means spread by, no more than one class in twenty passes the bound that
 * three or four others give; the coarsest variant that a limit offers is kept as often. */
TEST(widening_holds_for_any_spread)
{
    enum { WORLDS = 2000 };
    static const double spreads[] = {0.1, 0.3, 0.6, 1.0};
    for (uint32_t known = 3; known <= 4; known++) {
        for (size_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++) {
            uint32_t within = 0, offered = 0, kept = 0;
            for (uint64_t seed = 0; seed < WORLDS; seed++) {
                promise_bound bounds[VARIANTS];
                const promise_rows of = world(seed, known + 1, spreads[s], 0.05);
                const double new_loss = rows[(size_t)known * ENTRIES * VARIANTS].loss;
                assert_ok(promise_of_others(&of, UINT64_C(1) << known, bounds));
                within += new_loss <= bounds[0].mean;
                for (int v = VARIANTS; v-- > 0;) {
                    if (bounds[v].mean > 0.02) continue;
                    offered++;
                    kept += new_loss * pow(3.0, v) <= 0.02;
                    break;
                }
            }
            assert_true(within >= 0.94 * WORLDS);
            assert_true(offered > WORLDS / 2 && kept >= PROMISE_CONFIDENCE * offered);
        }
    }
}

/* Three classes whose means differ by half are promised about twice their mean, not 3.6 times. */
TEST(widening_is_as_small_as_classes_allow)
{
    static const double means[] = {1.0, 1.25, 1.5};
    promise_bound bounds[VARIANTS];
    promise_rows of = world(1, 3, 0.0, 0.0);
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < of.entry_count * VARIANTS; i++)
        rows[i].loss *= means[classes[i / VARIANTS]];
    for (int c = 0; c < 3; c++)
        sum += log(means[c]) / 3.0;
    for (int c = 0; c < 3; c++)
        squares += pow(log(means[c]) - sum, 2.0);
    assert_ok(promise_of_others(&of, 0, bounds));
    /* 2.92 is Student's point with two degrees of freedom. */
    const double wanted = exp(2.92 * sqrt(squares / 2.0) * sqrt(4.0 / 3.0));
    assert_true(fabs(bounds[0].widening / wanted - 1.0) < 0.01);
    assert_true(bounds[0].widening > 1.9 && bounds[0].widening < 2.1);
    assert_true(fabs(bounds[1].mean / (0.003 * exp(sum) * wanted) - 1.0) < 0.01);
    /* Variants in which nothing was lost, or nearly all, say nothing of how classes differ. */
    for (uint32_t e = 0; e < of.entry_count; e++) {
        rows[e * VARIANTS].loss = 0.0;
        rows[e * VARIANTS + 4].loss = 0.9;
    }
    const double before = bounds[0].widening;
    assert_ok(promise_of_others(&of, 0, bounds));
    assert_true(fabs(bounds[0].widening / before - 1.0) < 1e-9);
    /* Where no variant says anything, it is as with one class. */
    for (uint32_t i = 0; i < of.entry_count * VARIANTS; i++)
        rows[i].loss = 0.0;
    assert_ok(promise_of_others(&of, 0, bounds));
    assert_true(bounds[0].widening > 6.0 && bounds[0].widening < 7.0);
    /* One class alone, and two that are far apart: nothing of use is promised, and no overflow. */
    of = world(1, 1, 0.0, 0.0);
    assert_ok(promise_of_others(&of, 0, bounds));
    assert_true(bounds[0].widening > 10.0 && bounds[0].widening < 10.5);
    of = world(1, 2, 0.0, 0.0);
    for (uint32_t i = 0; i < of.entry_count; i++)
        rows[i * VARIANTS + 1].loss = classes[i] == 0 ? 1e-6 : 0.4;
    assert_ok(promise_of_others(&of, 0, bounds));
    assert_true(bounds[0].widening == 1e3 && bounds[0].mean > 0.99 && bounds[0].mean <= 1.0);
    assert_true(fabs(quality_student(1.6449, 1.0) / 6.314 - 1.0) < 1e-3);
}

TEST(bounds_of_a_class_that_was_seen)
{
    promise_bound own[VARIANTS], others[VARIANTS];
    promise_rows of = world(3, CLASSES, 0.3, 0.5);
    assert_ok(promise_of_class(&of, 1, own));
    assert_ok(promise_of_others(&of, 0, others));
    for (int v = 0; v < VARIANTS; v++) {
        double sum = 0.0;
        uint32_t within = 0;
        for (int e = 0; e < ENTRIES; e++)
            sum += rows[(ENTRIES + e) * VARIANTS + v].loss / ENTRIES;
        for (int e = 0; e < ENTRIES; e++)
            within += rows[(ENTRIES + e) * VARIANTS + v].loss <= own[v].entry;
        assert_true(fabs(own[v].loss - sum) < 1e-12 && own[v].widening == 1.0);
        assert_true(own[v].mean > own[v].loss && own[v].entry >= own[v].mean);
        assert_true(within >= PROMISE_ENTRIES * ENTRIES);
        assert_true(own[v].mean < others[v].mean && others[v].entry <= 1.0);
        assert_true(v == 0 || own[v].mean > own[v - 1].mean);
    }
}

/* The mean over all documents that a class could have is known here: 20 of them bound it nearly as
 * often as the bound says, though losses are skewed. So it is with the half that was left out. */
TEST(bounds_hold_for_documents_that_were_not_seen)
{
    enum { WORLDS = 1000 };
    const double sd = 0.6, whole = exp(sd * sd / 2.0);
    uint32_t means = 0, offered = 0, kept = 0, seen = 0, within = 0;
    for (uint64_t seed = 0; seed < WORLDS; seed++) {
        promise_bound own[VARIANTS];
        promise_trial trials[1] = {{.limit = 0.02}};
        promise_rows of = world(seed, 1, 0.0, sd);
        assert_ok(promise_of_class(&of, 0, own));
        means += own[2].mean >= 0.009 * whole;
        assert_ok(promise_try_documents(&of, trials, 1));
        offered += trials[0].mean_offered;
        kept += trials[0].mean_kept;
        seen += trials[0].entry_seen;
        within += trials[0].entry_within;
    }
    assert_true(means >= 0.93 * WORLDS);
    assert_true(offered > WORLDS &&
                kept >= 0.9 * offered); /* the other half's mean is chance, too */
    assert_true(seen > WORLDS && within >= PROMISE_ENTRIES * seen);
    /* Three documents have no halves to compare. */
    promise_rows of = world(1, 1, 0.0, sd);
    promise_trial none[1] = {{.limit = 1.0}};
    of.entry_count = 6;
    assert_ok(promise_try_documents(&of, none, 1));
    assert_int_equal(none[0].mean_offered, 0);
}

TEST(little_evidence_promises_little)
{
    promise_bound bounds[VARIANTS];
    promise_rows of = world(5, 1, 0.0, 0.5);
    for (uint32_t e = 0; e < ENTRIES; e++)
        documents[e] = 9; /* all of one document */
    assert_ok(promise_of_class(&of, 0, bounds));
    assert_true(bounds[0].mean == 1.0 && bounds[0].entry == 1.0);
    /* No loss in 40 entries is no proof that there is none. */
    of = world(5, 1, 0.0, 0.5);
    for (uint32_t e = 0; e < ENTRIES; e++)
        rows[e * VARIANTS].loss = 0.0;
    rows[1].present = false;
    for (uint32_t e = 0; e < ENTRIES; e++)
        rows[e * VARIANTS + 4].present = false;
    assert_ok(promise_of_class(&of, 0, bounds));
    assert_true(bounds[0].loss > 0.0 && bounds[0].mean > bounds[0].loss);
    assert_true(bounds[1].loss > 0.0);
    assert_true(isnan(bounds[4].loss) && isnan(bounds[4].mean));
    promise_trial trial = {.limit = 0.5};
    assert_ok(promise_try(&of, &trial, 1));
    assert_int_equal(trial.mean_offered, 0); /* there is no other class */
}
