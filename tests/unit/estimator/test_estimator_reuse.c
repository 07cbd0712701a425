/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_reuse.c - half lives by maximum likelihood: processes that are known, seeded.
 */
#include "cases.h"
#include "dice.h"

#include "estimator/predict/predict.h"
#include "estimator/profile/profile.h"

#include <math.h>
#include <stdlib.h>

typedef struct reuse_event {
    double at;
    uint64_t entry;
    uint32_t class_id;
} reuse_event;

typedef struct reuse_world {
    reuse_event *events;
    size_t count, capacity;
    uint64_t seed;
} reuse_world;

static void reuse_add(reuse_world *world, double at, uint64_t entry, uint32_t class_id)
{
    if (world->count == world->capacity) {
        world->capacity = world->capacity == 0 ? 1024 : 2 * world->capacity;
        world->events = realloc(world->events, world->capacity * sizeof *world->events);
        assert_non_null(world->events);
    }
    world->events[world->count++] = (reuse_event){at, entry, class_id};
}

/* Every use brings about others: a Poisson number of mean `branching`, each after an exponential
 * pause of the half life. Exactly the model, cluster by cluster. */
static void reuse_cluster(reuse_world *world, double at, double end, uint64_t entry,
                          uint32_t class_id, double half_life, double branching)
{
    if (at > end) return;
    reuse_add(world, at, entry, class_id);
    double product = dice_uniform(&world->seed);
    for (double limit = exp(-branching); product > limit; product *= dice_uniform(&world->seed)) {
        double pause = -half_life / 0.6931471805599453 * log(dice_uniform(&world->seed));
        reuse_cluster(world, at + pause, end, entry, class_id, half_life, branching);
    }
}

static int reuse_compare(const void *left, const void *right)
{
    double a = ((const reuse_event *)left)->at, b = ((const reuse_event *)right)->at;
    return (a > b) - (a < b);
}

static kvt_reuse *reuse_replay(reuse_world *world, uint32_t watched)
{
    kvt_reuse *reuse;
    assert_ok(kvt_reuse_open(watched, &reuse));
    qsort(world->events, world->count, sizeof *world->events, reuse_compare);
    for (size_t i = 0; i < world->count; i++) {
        const reuse_event *event = &world->events[i];
        kvt_reuse_use(reuse, (uint64_t)(event->at * 1e9), event->entry * 0x9e3779b97f4a7c15 + 1,
                      event->class_id);
    }
    free(world->events);
    return reuse;
}

TEST(finds_half_lives)
{
    static const struct {
        double half_life, branching;
    } classes[] = {{30, 0.5}, {300, 0.8}, {2000, 0.6}};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        reuse_world world = {.seed = seed};
        const double end = 20000;
        uint64_t entry = 0;
        for (uint32_t c = 0; c < 3; c++) {
            for (int i = 0; i < 1500; i++)
                reuse_cluster(&world, dice_uniform(&world.seed) * end, end, ++entry, c + 1,
                              classes[c].half_life, classes[c].branching);
        }
        kvt_reuse *reuse = reuse_replay(&world, 8192);
        for (uint32_t c = 0; c < 3; c++) {
            kvt_reuse_class found;
            assert_ok(kvt_reuse_read(reuse, (uint64_t)(end * 1e9), c + 1, &found));
            assert_int_equal(found.entries, 1500);
            if (fabs(found.half_life_seconds / classes[c].half_life - 1) > 0.15)
                fail_msg("seed %d class %u: half life %.1f", (int)seed, c + 1,
                         found.half_life_seconds);
            if (fabs(found.branching / classes[c].branching - 1) > 0.15)
                fail_msg("seed %d class %u: branching %.3f", (int)seed, c + 1, found.branching);
            assert_true(found.log_likelihood > found.log_likelihood_exponential + 0.1);
            assert_true(found.prior_uses < 0.2);
        }
        kvt_reuse_close(reuse);
    }
}

/* A watched part of many entries finds the same; memory stays what it was. */
TEST(a_sample_is_enough)
{
    reuse_world world = {.seed = 11};
    for (uint64_t entry = 1; entry <= 40000; entry++)
        reuse_cluster(&world, dice_uniform(&world.seed) * 20000, 20000, entry, 0, 120, 0.7);
    kvt_reuse *reuse = reuse_replay(&world, 2048);
    kvt_reuse_class found;
    assert_ok(kvt_reuse_read(reuse, UINT64_C(20000000000000), 0, &found));
    assert_true(found.entries < 40000);
    assert_true(fabs(found.half_life_seconds / 120 - 1) < 0.15);
    assert_true(fabs(found.branching / 0.7 - 1) < 0.15);
    kvt_reuse_close(reuse);
}

/* Entries that nearly always come back once, and then hardly: the first use is worth more. */
TEST(first_uses_have_a_prior)
{
    reuse_world world = {.seed = 3};
    for (uint64_t entry = 1; entry <= 2000; entry++) {
        double at = dice_uniform(&world.seed) * 15000;
        reuse_add(&world, at, entry, 5);
        at += -100 * log(dice_uniform(&world.seed));
        reuse_add(&world, at, entry, 5);
        if (dice_uniform(&world.seed) < 0.2)
            reuse_add(&world, at - 100 * log(dice_uniform(&world.seed)), entry, 5);
    }
    kvt_reuse *reuse = reuse_replay(&world, 8192);
    kvt_reuse_class found;
    assert_ok(kvt_reuse_read(reuse, UINT64_C(20000000000000), 5, &found));
    assert_true(found.prior_uses > 1);
    kvt_reuse_close(reuse);
}

TEST(nothing_and_bad_arguments)
{
    kvt_reuse *reuse;
    kvt_reuse_class found;
    assert_int_equal(kvt_reuse_open(3, &reuse), KVT_E_ARGUMENT);
    assert_ok(kvt_reuse_open(0, &reuse));
    assert_ok(kvt_reuse_read(reuse, 1, 0, &found));
    assert_int_equal(found.entries, 0);
    kvt_reuse_use(reuse, 5, 77, 1000); /* beyond the classes: class 0 */
    kvt_reuse_use(reuse, 3, 78, 0);    /* a clock that steps back is held */
    assert_ok(kvt_reuse_read(reuse, 1000000000, 0, &found));
    assert_int_equal(found.entries, 2);
    assert_int_equal(found.uses, 0);
    assert_true(found.half_life_seconds <= 0);
    kvt_reuse_use(reuse, 1000000000, 77, 1000);
    assert_ok(kvt_reuse_read(reuse, 1000000000, 0, &found));
    assert_int_equal(found.uses, 1);
    assert_true(isfinite(found.log_likelihood));
    assert_int_equal(kvt_reuse_read(reuse, 1, KVT_REUSE_CLASSES, &found), KVT_E_ARGUMENT);
    kvt_reuse_close(reuse);
    kvt_reuse_close(NULL);
}
