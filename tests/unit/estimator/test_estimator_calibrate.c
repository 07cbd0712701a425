/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_calibrate.c - the choices of a ladder from made-up measurements whose truth is
 * known: which candidate wins and when the default stays, rungs that a cheaper one beats, losses
 * that do not fall, forms that a layout does not take.
 */
#include "cases.h"

#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 24 };

/* A model of losses: KL = 4^-bits x what its family and settings are worth, times noise of the
 * entry (shared by all variants) and of the pair. */
typedef struct world {
    double v_more;      /* factor on k4v6 over k6v4 */
    double v_channel;   /* factor on planes with V per channel */
    double v_head;      /* the same, V inside heads */
    double token;       /* factor on entropy with V per token */
    double noise;       /* of a pair, sigma of the logarithm */
    bool attention;     /* no KL: dumps */
    double shared_bits; /* of tables of others */
    double of_class;    /* what entries of the second class lose more */
    double class_token; /* factor on `token` there */
    double basis[2];    /* factor of a basis' KL at even bits, in each class */
    bool taught[2];
    bool asks_half;
    const char *lacks; /* variants whose names begin so have rows for questions alone */
    calibrate_wanted wanted;
    /* Rows that were asked for, each once. */
    uint32_t rows, seen_count, seen_entries[CALIBRATE_VARIANTS_MAX];
    char seen[CALIBRATE_VARIANTS_MAX][QUALITY_NAME_BYTES];
} world;

static uint64_t hash(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double hash_normal(uint64_t seed)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < 12; i++)
        sum += (double)(hash(seed * 16 + i) >> 11) * 0x1p-53;
    return sum - 6.0;
}

static double between(const char *name, const char *mark)
{
    const char *at = strstr(name, mark);
    return at != NULL ? strtod(at + strlen(mark), NULL) : 0.0;
}

static double world_bits(const char *name)
{
    double k = between(name, ":k"), v = strtod(strchr(strstr(name, ":k") + 2, 'v') + 1, NULL);
    return strncmp(name, "planes", 6) == 0 ? (k + v) / 2 + 0.5 : 2.0 - (log2(k) + log2(v)) / 2;
}

static quality_row world_row(const world *w, uint32_t entry, const quality_variant *variant)
{
    const char *name = variant->name;
    quality_row row = {.present = true};
    double worth = 1.0;
    uint64_t seed = 0;
    const bool second = w->of_class > 0.0 && entry % 2 == 1;
    if (strncmp(name, "transform:", 10) == 0) {
        /* 00001, 00002 and 00003: the wider, the better. */
        row.bits_per_element = 2.0 - log2(between(name, ",s"));
        worth = 0.4 * w->basis[entry % 2] / (name[14] - '0');
    } else if (strncmp(name, "drop:", 5) == 0) {
        double kept = strtod(strchr(name, ',') + 1, NULL) / 100.0;
        row.bits_per_element = kept * world_bits(strchr(name, '+') + 1);
        worth = (strstr(name, "keydiff") != NULL ? 1.0 : 3.0) * 1e3 * (1.0 - kept);
    } else {
        row.bits_per_element = world_bits(name);
        if (name[0] == 'e') worth = 0.2 * (strstr(name, "vchan") == NULL ? w->token : 1.0);
        if (name[0] == 'e' && second && strstr(name, "vchan") == NULL) worth *= w->class_token;
        if (name[0] == 'p' && strstr(name, "k4v6") != NULL) worth = w->v_more;
        if (name[0] == 'p' && strstr(name, "vchan") != NULL) worth *= w->v_channel;
        if (name[0] == 'p' && strstr(name, "vhead") != NULL) worth *= w->v_head;
    }
    for (const char *c = name; *c != '\0'; c++)
        seed = hash(seed + (uint8_t)*c);
    double effect = exp(0.5 * hash_normal(entry) + w->noise * hash_normal(seed + entry));
    if (second) worth *= w->of_class;
    double kl = worth * pow(4.0, -row.bits_per_element) * effect;
    row.physical_bits_per_element = row.bits_per_element;
    row.kl = w->attention ? (double)NAN : kl;
    row.attention_error = sqrt(kl);
    row.loss = fmin(sqrt(kl), 1.0);
    return row;
}

static bool is_asked(uint32_t entry)
{
    return entry % 4 < 2;
}

/* Which entries a variant has rows of, a bit each. */
static uint32_t *world_seen(world *w, const char *name)
{
    for (uint32_t i = 0; i < w->seen_count; i++)
        if (strcmp(w->seen[i], name) == 0) return &w->seen_entries[i];
    (void)snprintf(w->seen[w->seen_count], QUALITY_NAME_BYTES, "%s", name);
    return &w->seen_entries[w->seen_count++];
}

static uint32_t bits_set(uint32_t word)
{
    return (uint32_t)__builtin_popcount(word);
}

/* As a calibration does: rows that were measured for something else are there as well. */
static kvt_status world_measure(void *context, const quality_variant *variants, uint32_t count,
                                const bool *mask, quality_row *rows_out)
{
    world *w = context;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = variants[i].name;
        uint32_t *seen = world_seen(w, name);
        const bool lacks =
            mask == NULL && w->lacks != NULL && strncmp(name, w->lacks, strlen(w->lacks)) == 0;
        for (uint32_t e = 0; e < ENTRIES; e++) {
            const uint32_t bit = UINT32_C(1) << e;
            if ((mask == NULL || mask[e]) && !lacks) {
                w->rows += (*seen & bit) == 0;
                *seen |= bit;
            }
            if ((*seen & bit) != 0) rows_out[e * count + i] = world_row(w, e, &variants[i]);
        }
    }
    return KVT_OK;
}

static kvt_status world_tables(void *context, const quality_variant *variant, double *own_bits_out,
                               double *shared_bits_out)
{
    *own_bits_out = world_bits(variant->name);
    *shared_bits_out = *own_bits_out + ((const world *)context)->shared_bits;
    return KVT_OK;
}

static world plain_world(void)
{
    return (world){.v_more = 2.0,
                   .v_channel = 2.0,
                   .v_head = 1.3,
                   .token = 2.0,
                   .noise = 0.2,
                   .shared_bits = 0.01};
}

static calibrate_ladder ladders[CALIBRATE_LADDERS_MAX];
static calibrate_rows made; /* of the last run, its rows freed */

/* Two classes in turn, in documents of two entries of a class each. */
static void run_classes(world *w)
{
    static const char *const names[] = {"one", "two"};
    uint32_t classes[ENTRIES];
    uint64_t documents[ENTRIES];
    bool asked[ENTRIES];
    w->rows = w->seen_count = 0;
    memset(w->seen_entries, 0, sizeof w->seen_entries);
    for (uint32_t e = 0; e < ENTRIES; e++) {
        classes[e] = e % 2;
        documents[e] = 1 + e % 2 + e / 4 * 2;
        asked[e] = is_asked(e);
    }
    calibrate_bases bases = {.starts = {1, 2, 3},
                             .present = {true, true, true},
                             .taught = {w->taught[0], w->taught[1]},
                             .metric = "made up"};
    const calibrate_source source = {.entries = ENTRIES,
                                     .bases = w->basis[0] > 0.0 ? &bases : NULL,
                                     .classes = classes,
                                     .class_count = 2,
                                     .class_names = names,
                                     .documents = documents,
                                     .asked = w->asks_half ? asked : NULL,
                                     .trials = 200,
                                     .measure = world_measure,
                                     .tables = world_tables,
                                     .context = w};
    calibrate_rows rows;
    char message[256] = "";
    kvt_status status = calibrate_run(&source, 1, w->wanted.count > 0 ? &w->wanted : NULL, ladders,
                                      &rows, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    made = rows;
    calibrate_rows_free(&rows);
}

static calibrate_ladder run(world *w)
{
    const calibrate_source source = {.entries = ENTRIES,
                                     .trials = 200,
                                     .measure = world_measure,
                                     .tables = world_tables,
                                     .context = w};
    calibrate_rows rows;
    char message[256] = "";
    kvt_status status = calibrate_run(&source, 1, NULL, ladders, &rows, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(w->seen_count, rows.count);
    calibrate_rows_free(&rows);
    return ladders[0];
}

static const calibrate_choice *choice_of(const calibrate_ladder *ladder, const char *question)
{
    for (uint32_t i = 0; i < ladder->choice_count; i++)
        if (strcmp(ladder->choices[i].question, question) == 0) return &ladder->choices[i];
    fail_msg("no choice '%s'", question);
    return NULL;
}

static const calibrate_rung *rung_of(const calibrate_ladder *ladder, const char *name)
{
    for (uint32_t i = 0; i < ladder->rung_count; i++)
        if (strcmp(ladder->rungs[i].variant.name, name) == 0) return &ladder->rungs[i];
    fail_msg("no rung '%s'", name);
    return NULL;
}

static void assert_chosen(const calibrate_ladder *ladder, const char *question, const char *wanted)
{
    const calibrate_choice *choice = choice_of(ladder, question);
    assert_string_equal(choice->chosen, wanted);
    assert_true(choice->evidence[0] != '\0');
}

static void assert_order(const calibrate_ladder *ladder)
{
    double bits = (double)INFINITY, loss[2] = {0.0, 0.0}, upper[2] = {0.0, 0.0};
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        int drops = quality_variant_drops(rung->variant.variant);
        assert_true(rung->bits_per_element <= bits);
        bits = rung->bits_per_element;
        assert_true(rung->loss > 0.0 && rung->loss_upper >= rung->loss && rung->loss_upper <= 1.0);
        assert_true(rung->evidence[0] != '\0');
        if (!rung->accepted) continue;
        assert_true(rung->loss >= loss[drops] && rung->loss_upper >= upper[drops]);
        loss[drops] = rung->loss;
        upper[drops] = rung->loss_upper;
    }
}

TEST(defaults_stay_where_they_are_right)
{
    world w = plain_world();
    calibrate_ladder ladder = run(&w);
    assert_chosen(&ladder, "planes: V axis", "row");
    assert_chosen(&ladder, "planes: K:V bits", "k6v4");
    assert_chosen(&ladder, "entropy: V axis", "channel");
    assert_chosen(&ladder, "entropy: tables", "own");
    assert_chosen(&ladder, "drop: score", "keydiff");
    assert_order(&ladder);
    /* The entropy code has a fifth of the KL at the same bits: planes near it are beaten. */
    assert_true(rung_of(&ladder, "planes:k8v8,g64")->accepted);
    const calibrate_rung *beaten = rung_of(&ladder, "planes:k4v4,g64");
    assert_false(beaten->accepted);
    assert_non_null(strstr(beaten->evidence, "worse than entropy:"));
    bool fine = false;
    for (uint32_t i = 0; i < ladder.rung_count; i++)
        fine |= strncmp(ladder.rungs[i].variant.name, "entropy:k0.063v", 15) == 0;
    assert_true(fine);
    assert_true(ladder.rung_count > 10);
}

TEST(answers_invert_with_the_model)
{
    world w = plain_world();
    w.v_more = 0.5;
    w.v_channel = 0.5;
    w.token = 0.4;
    w.shared_bits = -0.02;
    calibrate_ladder ladder = run(&w);
    assert_chosen(&ladder, "planes: V axis", "channel");
    assert_chosen(&ladder, "planes: K:V bits", "k4v6");
    assert_chosen(&ladder, "entropy: V axis", "token");
    assert_chosen(&ladder, "entropy: tables", "shared");
    /* One family of planes: the same axis and order, so that each is made of those before it. */
    for (uint32_t i = 0; i < ladder.rung_count; i++) {
        const char *name = ladder.rungs[i].variant.name;
        if (strncmp(name, "planes", 6) == 0) assert_non_null(strstr(name, ",vchan,vfirst"));
    }
    assert_order(&ladder);
}

/* A difference of 3 % under noise of 60 % is not seen with 24 entries. */
TEST(doubt_leaves_the_default)
{
    world w = plain_world();
    w.v_more = 0.97;
    w.noise = 0.6;
    calibrate_ladder ladder = run(&w);
    assert_chosen(&ladder, "planes: K:V bits", "k6v4");
    assert_non_null(
        strstr(choice_of(&ladder, "planes: K:V bits")->evidence, "no clear difference"));
    assert_order(&ladder);
}

TEST(layouts_and_methods)
{
    world w = plain_world();
    w.attention = true;
    calibrate_ladder ladder = run(&w);
    assert_chosen(&ladder, "planes: K:V bits", "k6v4");
    assert_non_null(strstr(choice_of(&ladder, "planes: V axis")->evidence, "attention error"));
    assert_order(&ladder);
}

/* ---- pairs ---- */

static kvt_status fixed_measure(void *context, const quality_variant *variants, uint32_t count,
                                const bool *mask, quality_row *rows_out)
{
    const double *kl = context; /* [variant][entry] */
    (void)variants, (void)mask;
    for (uint32_t e = 0; e < 4; e++)
        for (uint32_t i = 0; i < count; i++)
            rows_out[e * count + i] = (quality_row){.present = kl[i * 4 + e] >= 0.0,
                                                    .bits_per_element = 4.0 - i,
                                                    .kl = kl[i * 4 + e],
                                                    .loss = kl[i * 4 + e]};
    return KVT_OK;
}

static kvt_status pair_measure(void *context, const quality_variant *variants, uint32_t count,
                               const bool *mask, quality_row *rows_out)
{
    const double *kl = context;
    (void)variants, (void)mask;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t e = 0; e < 2; e++)
            rows_out[e * count + i] = (quality_row){.present = true,
                                                    .bits_per_element = 4.0 - i,
                                                    .kl = kl[i * 2 + e],
                                                    .loss = kl[i * 2 + e]};
    return KVT_OK;
}

TEST(pairs_are_compared_by_entry)
{
    /* The second is twice the first in three entries, and missing in one; 1 bit less. */
    double kl[] = {0.1, 0.2, 0.4, 0.3, 0.2, 0.4, 0.8, -1.0};
    const calibrate_source source = {
        .entries = 4, .trials = 10, .measure = fixed_measure, .context = kl};
    const char *const names[] = {"planes:k4v4,g64", "planes:k3v3,g64"};
    uint32_t at[2];
    calibrate_rows rows;
    assert_ok(calibrate_rows_make(&rows, &source, 1));
    assert_ok(calibrate_measure(&rows, names, 2, CALIBRATE_ASKED, at));
    calibrate_pair pair = calibrate_compare(&rows, at[1], at[0], false, CALIBRATE_ALL_CLASSES);
    assert_int_equal(pair.entries, 3);
    assert_true(fabs(pair.mean - log(2.0)) < 1e-12);
    assert_true(pair.high - pair.low < 1e-6); /* no spread */
    pair = calibrate_compare(&rows, at[1], at[0], true, CALIBRATE_ALL_CLASSES);
    assert_true(fabs(pair.mean - (log(2.0) - log(4.0))) < 1e-12);
    uint32_t again;
    assert_ok(calibrate_measure(&rows, &names[1], 1, CALIBRATE_ASKED, &again));
    assert_int_equal(again, at[1]);
    assert_int_equal(
        calibrate_measure(&rows, &(const char *const){"nothing:1"}, 1, CALIBRATE_ASKED, &again),
        KVT_E_ARGUMENT);
    calibrate_rows_free(&rows);
}

/* Two entries have one degree of freedom: 12.7 standard errors, not 2. */
TEST(two_entries_prove_little)
{
    double kl[] = {0.1, 0.1, 0.2, 0.3};
    const calibrate_source source = {
        .entries = 2, .trials = 10, .measure = pair_measure, .context = kl};
    const char *const names[] = {"planes:k4v4,g64", "planes:k3v3,g64"};
    uint32_t at[2];
    calibrate_rows rows;
    assert_ok(calibrate_rows_make(&rows, &source, 1));
    assert_ok(calibrate_measure(&rows, names, 2, CALIBRATE_ASKED, at));
    calibrate_pair pair = calibrate_compare(&rows, at[1], at[0], false, CALIBRATE_ALL_CLASSES);
    double error = 0.5 * log(1.5); /* of the mean of log 2 and log 3 */
    assert_int_equal(pair.entries, 2);
    assert_true(fabs(pair.high - pair.mean - 12.706 * error) < 1e-9);
    assert_true(pair.low < 0.0); /* twice and three times are not beyond doubt */
    calibrate_rows_free(&rows);
}

/* Entries of one document are no proof of each other. */
TEST(documents_are_what_counts)
{
    double kl[] = {0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3};
    static const uint64_t documents[4] = {5, 5, 7, 7};
    const calibrate_source source = {.entries = 4,
                                     .documents = documents,
                                     .trials = 10,
                                     .measure = fixed_measure,
                                     .context = kl};
    const char *const names[] = {"planes:k4v4,g64", "planes:k3v3,g64"};
    uint32_t at[2];
    calibrate_rows rows;
    assert_ok(calibrate_rows_make(&rows, &source, 1));
    assert_ok(calibrate_measure(&rows, names, 2, CALIBRATE_ASKED, at));
    calibrate_pair pair = calibrate_compare(&rows, at[1], at[0], false, CALIBRATE_ALL_CLASSES);
    assert_int_equal(pair.entries, 4);
    assert_int_equal(pair.documents, 2);
    /* As of the two documents alone: one degree of freedom. */
    assert_true(fabs(pair.high - pair.mean - 12.706 * 0.5 * log(1.5)) < 1e-9);
    calibrate_rows_free(&rows);
}

TEST(each_class_has_a_ladder)
{
    world w = plain_world();
    w.of_class = 4.0;
    w.class_token = 1.0;
    run_classes(&w);
    for (int i = 0; i < 3; i++) {
        assert_order(&ladders[i]);
        assert_int_equal(ladders[i].rung_count, ladders[0].rung_count);
        assert_int_equal(ladders[i].choice_count, ladders[0].choice_count);
        assert_int_equal(ladders[i].entries, i < 2 ? ENTRIES / 2 : ENTRIES);
    }
    const calibrate_rung *one = rung_of(&ladders[0], "planes:k2v2,g64");
    const calibrate_rung *two = rung_of(&ladders[1], "planes:k2v2,g64");
    const calibrate_rung *any = rung_of(&ladders[2], "planes:k2v2,g64");
    assert_true(two->loss > 1.5 * one->loss && any->loss > one->loss && any->loss < two->loss);
    /* One that was not measured may lie beyond both. */
    assert_true(ladders[0].widening == 0.0 && ladders[2].widening > 2.0);
    one = rung_of(&ladders[0], "planes:k8v8,g64");
    two = rung_of(&ladders[1], "planes:k8v8,g64");
    any = rung_of(&ladders[2], "planes:k8v8,g64");
    assert_true(any->accepted && any->loss_upper > two->loss_upper && two->loss_entry > 0.0);
    assert_true(any->loss_entry >= any->loss_upper && two->loss_upper > one->loss_upper);
    assert_null(strstr(choice_of(&ladders[2], "entropy: V axis")->evidence, "disagrees"));
}

TEST(a_class_that_disagrees_is_named)
{
    world w = plain_world();
    w.of_class = 1.0;
    w.token = 0.25;
    w.class_token = 8.0;
    run_classes(&w);
    const calibrate_choice *choice = choice_of(&ladders[0], "entropy: V axis");
    assert_non_null(strstr(choice->evidence, "disagrees: channel"));
    assert_non_null(strstr(choice->evidence, "two disagrees"));
    assert_null(strstr(choice->evidence, "one disagrees"));
    assert_null(strstr(choice_of(&ladders[0], "planes: K:V bits")->evidence, "disagrees"));
}

/* Questions are pairs, so they need fewer entries than the rungs. */
TEST(questions_are_asked_on_fewer_entries)
{
    world all = plain_world(), half = plain_world();
    all.of_class = half.of_class = all.class_token = half.class_token = 1.0;
    run_classes(&all);
    calibrate_ladder of_all = ladders[0];
    half.asks_half = true;
    run_classes(&half);
    assert_true(half.rows < all.rows);
    for (uint32_t i = 0; i < of_all.choice_count; i++)
        assert_string_equal(ladders[0].choices[i].chosen, of_all.choices[i].chosen);
    /* What the first three documents of each class settle is asked no further. */
    assert_non_null(strstr(choice_of(&ladders[0], "planes: K:V bits")->evidence, ", 6 entries"));
    assert_non_null(strstr(choice_of(&ladders[0], "entropy: centroids")->evidence, ", 12 entries"));
    assert_int_equal(bits_set(*world_seen(&half, "planes:k4v6,g64,vfirst")), 6);
    assert_int_equal(bits_set(*world_seen(&half, "entropy:k1v2,vchan")), 12);
    assert_int_equal(ladders[0].rung_count, of_all.rung_count);
    for (uint32_t i = 0; i < of_all.rung_count; i++)
        assert_true(ladders[0].rungs[i].loss == of_all.rungs[i].loss);
    assert_int_equal(ladders[0].entries, ENTRIES / 2);
}

/* A rung that loses to a cheaper one on the pilot beyond doubt is measured no further. It is
 * refused on every ladder, and its losses are no part of anybody's bounds. */
TEST(beaten_rungs_are_measured_no_further)
{
    world w = plain_world();
    w.of_class = 1.0;
    w.class_token = 1.0;
    w.asks_half = true;
    run_classes(&w);
    const calibrate_ladder *any = &ladders[2];
    uint32_t beaten = 0;
    for (uint32_t i = 0; i < any->rung_count; i++) {
        const calibrate_rung *rung = &any->rungs[i];
        const uint32_t rows = bits_set(*world_seen(&w, rung->variant.name));
        if (rung->accepted) assert_int_equal(rows, ENTRIES);
        if (rows == ENTRIES) continue;
        beaten++;
        assert_false(rung->accepted);
        assert_non_null(strstr(rung->evidence, "worse than entropy:"));
        assert_true(rung->loss > 0.0 && rung->loss_upper >= rung->loss);
    }
    assert_true(beaten >= 3);
    assert_int_equal(any->entries, ENTRIES);
    assert_int_equal(bits_set(*world_seen(&w, "planes:k2v2,g64")), 6);
}

/* Nobody asks what cannot name a rung: of named variants the question about bases alone. */
TEST(named_variants_need_no_answers)
{
    static const char *const name = "planes:k8v8,g64";
    quality_variant variant;
    world w = plain_world();
    assert_ok(quality_variant_parse(name, &variant));
    w.wanted = (calibrate_wanted){.variants = &variant, .count = 1};
    w.basis[0] = w.basis[1] = 0.2;
    w.taught[0] = w.asks_half = true;
    run_classes(&w);
    assert_int_equal(ladders[0].choice_count, 1);
    assert_string_equal(ladders[0].choices[0].question, "entropy: basis");
    /* Entropy and three bases are asked; the steps of the bases and the named one are rungs. */
    assert_int_equal(w.seen_count, 2 + 3 * CALIBRATE_BASIS_STEPS);
    assert_int_equal(bits_set(*world_seen(&w, "entropy:k0.5v1")), 12);
    assert_int_equal(bits_set(*world_seen(&w, name)), ENTRIES);
    /* With the rows that are there every question has its answer. */
    w.wanted.answers = true;
    run_classes(&w);
    assert_int_equal(ladders[0].choice_count, 8);
}

/* A basis that loses on the pilot beyond doubt is asked about no further. */
TEST(bases_that_lose_are_asked_little)
{
    world w = plain_world();
    w.basis[0] = w.basis[1] = 3.0;
    w.taught[0] = w.asks_half = true;
    run_classes(&w);
    assert_chosen(&ladders[0], "entropy: basis", "none");
    assert_int_equal(bits_set(*world_seen(&w, "transform:00001,s1")), 6);
    assert_non_null(strstr(choice_of(&ladders[0], "entropy: basis")->evidence, "no clear gain"));
}

static uint32_t count_rungs(const calibrate_ladder *ladder, const char *start)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ladder->rung_count; i++)
        count += ladder->rungs[i].accepted &&
                 strncmp(ladder->rungs[i].variant.name, start, strlen(start)) == 0;
    return count;
}

/* Every span that pays has rungs: a wider one is better and slower, so that neither beats the
 * other, nor either of them what needs no basis. */
TEST(bases_join_the_ladder)
{
    world w = plain_world();
    w.basis[0] = w.basis[1] = 0.2;
    w.taught[0] = true;
    run_classes(&w);
    assert_chosen(&ladders[2], "entropy: basis", "layers4");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(count_rungs(&ladders[i], "transform:00001"), 5);
        assert_int_equal(count_rungs(&ladders[i], "transform:00002"), 5);
        assert_int_equal(count_rungs(&ladders[i], "transform:00003"), 5);
        assert_true(count_rungs(&ladders[i], "entropy") >= 3);
    }
    const char *evidence = choice_of(&ladders[0], "entropy: basis")->evidence;
    assert_non_null(strstr(evidence, "on two"));
    assert_null(strstr(evidence, "on one"));
    /* Without bases nobody asks. */
    w.basis[0] = 0.0;
    run_classes(&w);
    assert_int_equal(count_rungs(&ladders[0], "transform"), 0);
    for (uint32_t i = 0; i < ladders[0].choice_count; i++)
        assert_string_not_equal(ladders[0].choices[i].question, "entropy: basis");
}

/* Named variants take the place of those that follow from the answers, not of an accepted basis';
 * what is named and no rung is said. */
TEST(named_variants_leave_those_of_bases)
{
    static const char *const names[] = {"planes:k8v8,g64", "transform:00001,s1", "planes:k3v3,g64"};
    quality_variant variants[3];
    world w = plain_world();
    for (int i = 0; i < 3; i++)
        assert_ok(quality_variant_parse(names[i], &variants[i]));
    w.wanted = (calibrate_wanted){.variants = variants, .count = 3};
    w.basis[0] = w.basis[1] = 0.2;
    w.taught[0] = true;
    run_classes(&w);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ladders[i].rung_count, 2 + 3 * CALIBRATE_BASIS_STEPS);
        assert_int_equal(count_rungs(&ladders[i], "transform"), 3 * CALIBRATE_BASIS_STEPS);
    }
    assert_int_equal(made.left_count, 0);
    w.lacks = "planes:k3v3";
    run_classes(&w);
    assert_int_equal(made.left_count, 1);
    assert_string_equal(made.left[0].name, names[2]);
    assert_true(made.left[0].named && made.left[0].entries == 6); /* the pilot's */
    w.asks_half = true;
    w.lacks = "transform:00002";
    run_classes(&w);
    assert_int_equal(ladders[0].rung_count, 2 + 2 * CALIBRATE_BASIS_STEPS + 1); /* the asked */
    assert_int_equal(made.left_count, CALIBRATE_BASIS_STEPS - 1);
    assert_true(made.accepted[1] && !made.left[0].named);
    w.basis[0] = w.basis[1] = 3.0; /* refused: the named one alone */
    w.lacks = NULL;
    run_classes(&w);
    assert_int_equal(ladders[0].rung_count, 3);
}

TEST(bases_that_lose_elsewhere_are_refused)
{
    world w = plain_world();
    w.basis[0] = 0.0005;
    w.basis[1] = 2.0;
    w.taught[0] = true;
    run_classes(&w);
    assert_chosen(&ladders[0], "entropy: basis", "none");
    assert_int_equal(count_rungs(&ladders[0], "transform"), 0);
    assert_non_null(
        strstr(choice_of(&ladders[0], "entropy: basis")->evidence, "loses to entropy on two"));
    /* The same world, learnt on both: nobody could tell. */
    w.taught[1] = true;
    run_classes(&w);
    assert_chosen(&ladders[0], "entropy: basis", "none");
    assert_non_null(strstr(choice_of(&ladders[0], "entropy: basis")->evidence,
                           "judged on no class that did not teach"));
    /* A model whose KV shares nothing: a basis is as good as none. */
    w.taught[1] = false;
    w.basis[0] = w.basis[1] = 3.0;
    run_classes(&w);
    assert_chosen(&ladders[0], "entropy: basis", "none");
    assert_non_null(strstr(choice_of(&ladders[0], "entropy: basis")->evidence, "no clear gain"));
}
