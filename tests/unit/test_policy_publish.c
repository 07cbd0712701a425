/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_publish.c - what is worth a copy: gains, prices, the write rate, and what is learned.
 */
#include "policy/publish.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define BYTES (UINT64_C(64) << 20)

static publish_candidate candidate_of(uint32_t uses)
{
    return (publish_candidate){.handle = 12345,
                               .bytes = BYTES,
                               .saved_s = 0.05,
                               .uses = uses,
                               .found_tokens = 512,
                               .request_tokens = 8192,
                               .parent_shared = true};
}

static void open_state(publish_state *state, double write_bytes_per_s)
{
    publish_open(state, &(publish_config){.link_s_per_byte = 1.0 / 3.125e9,
                                          .write_s_per_byte = 1.0 / 3.125e9,
                                          .write_bytes_per_s = write_bytes_per_s});
}

/* The sum of gain and price is worked out by hand. */
static void a_copy_is_worth_what_others_save(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 0.0);
    publish_candidate candidate = candidate_of(1);
    publish_decision decision = publish_decide(&state, 10.0, &candidate);
    assert_true(decision.publish);
    assert_int_equal(decision.reason, PUBLISH_WORTH);
    assert_true(fabs(decision.loads - 0.3) < 1e-12);
    assert_true(fabs(decision.gain_s - 0.015) < 1e-12);
    double price_s = 2.0 * (double)BYTES / 3.125e9 * PUBLISH_DELAY_LEAST;
    assert_true(fabs(decision.price_s - price_s) < 1e-12);
    candidate.saved_s = 0.0;
    assert_int_equal(publish_decide(&state, 10.0, &candidate).reason, PUBLISH_NO_GAIN);
    candidate.saved_s = -1.0;
    assert_int_equal(publish_decide(&state, 10.0, &candidate).reason, PUBLISH_NO_GAIN);
    candidate.saved_s = 0.05;
    candidate.parent_shared = false;
    assert_int_equal(publish_decide(&state, 10.0, &candidate).reason, PUBLISH_NO_PARENT);
    assert_false(publish_decide(&state, 10.0, &candidate).publish);
}

/* Loads of published bytes: planted at 0.02 and 1.5, found within a tenth after 1,000 entries. */
static void a_class_is_learned_from_its_loads(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 0.0);
    publish_candidate once = candidate_of(1), twice = candidate_of(2);
    uint8_t rare = publish_class(&once), common = publish_class(&twice);
    assert_int_not_equal(rare, common);
    double now_s = 0.0;
    for (int i = 0; i < 4000; i++) {
        now_s = (double)i;
        publish_written(&state, now_s, rare, BYTES);
        publish_written(&state, now_s, common, BYTES);
        if (i % 50 == 0) publish_hit(&state, now_s, rare, BYTES);
        publish_hit(&state, now_s, common, BYTES);
        if (i % 2 == 0) publish_hit(&state, now_s, common, BYTES);
    }
    double few = publish_loads(&state, now_s, rare), many = publish_loads(&state, now_s, common);
    if (fabs(few - 0.02) > 0.02) fail_msg("%.4f loads, planted 0.02", few);
    /* What is fresh has not counted yet: its loads are there already, here. */
    if (many < 1.5 || many > 2.1) fail_msg("%.4f loads, planted 1.5", many);
    /* Without evidence a class returns to what all begin with. */
    double later = publish_loads(&state, now_s + 20000.0, rare);
    if (fabs(later - 0.3) > 0.05) fail_msg("%.4f loads, began with 0.3", later);
    assert_true(fabs(publish_loads(&state, now_s + 1e9, common) - 0.9) < 1e-9);
}

/* A class that nobody loads is given up, but for one path in PUBLISH_EXPLORE. */
static void what_nobody_loads_is_explored_alone(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 0.0);
    publish_candidate candidate = candidate_of(1);
    for (int i = 0; i < 4000; i++)
        publish_written(&state, (double)i, publish_class(&candidate), 100 * BYTES);
    uint32_t explored = 0;
    for (uint64_t i = 0; i < 3200; i++) {
        candidate.handle = i;
        publish_decision decision = publish_decide(&state, 4000.0, &candidate);
        assert_int_equal(decision.publish, decision.reason == PUBLISH_EXPLORED);
        if (!decision.publish) assert_int_equal(decision.reason, PUBLISH_PRICE);
        explored += decision.publish;
    }
    assert_in_range(explored, 60, 150);
}

/* Two kinds are offered, ten times what may be written; the rate's price lies between them. */
static void the_write_rate_takes_the_best(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 0.2 * (double)BYTES);
    publish_candidate good = candidate_of(1), poor = candidate_of(1);
    poor.saved_s = 0.01;
    good.queue_share = poor.queue_share = 0.5;
    uint32_t good_published = 0, poor_published = 0;
    for (int i = 0; i < 2000; i++) {
        good.handle = (uint64_t)i * 2 + 1;
        poor.handle = (uint64_t)i * 2 + 2;
        if (i % 10 == 0 && publish_decide(&state, (double)i, &good).reason == PUBLISH_WORTH)
            good_published += i > 600;
        if (publish_decide(&state, (double)i, &poor).reason == PUBLISH_WORTH)
            poor_published += i > 600;
    }
    assert_true(good_published > 130);
    assert_true(poor_published < 20);
    /* A queue with room takes what is worth its way. */
    poor.queue_share = 0.0;
    assert_int_equal(publish_decide(&state, 2000.0, &poor).reason, PUBLISH_WORTH);
}

/* Loads on the same path make publishing dearer. */
static void a_busy_path_costs_more(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 0.0);
    publish_candidate candidate = candidate_of(1);
    double idle_s = publish_decide(&state, 0.0, &candidate).price_s;
    for (int i = 0; i < 1000; i++)
        publish_hit(&state, (double)i, PUBLISH_UNKNOWN, 20 * BYTES); /* 1.3 of 3.1 GB/s */
    double busy_s = publish_decide(&state, 1000.0, &candidate).price_s;
    if (busy_s < 150.0 * idle_s || busy_s > 280.0 * idle_s) fail_msg("%g and %g", idle_s, busy_s);
}

static void a_step_back_of_time_is_held(void **unused)
{
    (void)unused;
    publish_state state;
    open_state(&state, 1e6);
    publish_candidate candidate = candidate_of(3);
    for (int i = 0; i < 100; i++) {
        double now_s = i % 2 == 0 ? 1000.0 : 1.0;
        publish_decision decision = publish_decide(&state, now_s, &candidate);
        publish_written(&state, now_s, decision.class_id, BYTES);
        publish_hit(&state, now_s, decision.class_id, BYTES);
        assert_true(isfinite(decision.gain_s) && isfinite(decision.price_s));
    }
}

static void classes_fill_a_byte(void **unused)
{
    (void)unused;
    bool seen[PUBLISH_CLASSES] = {false};
    uint32_t count = 0;
    for (uint32_t uses = 1; uses < 6; uses++) {
        for (uint32_t found = 0; found < 21; found++) {
            for (uint32_t length = 0; length < 32; length++) {
                publish_candidate candidate = candidate_of(uses);
                candidate.found_tokens = found == 0 ? 0 : 1u << (found - 1);
                candidate.request_tokens = length == 31 ? UINT32_MAX : 1u << length;
                uint8_t id = publish_class(&candidate);
                assert_true(id < PUBLISH_CLASSES);
                count += !seen[id];
                seen[id] = true;
            }
        }
    }
    assert_int_equal(count, 60);
}

static void a_decision_is_a_sentence(void **unused)
{
    (void)unused;
    publish_state state;
    char text[256];
    open_state(&state, 0.0);
    publish_candidate candidate = candidate_of(1);
    publish_decision decision = publish_decide(&state, 0.0, &candidate);
    assert_string_equal(publish_explain(&decision, text, sizeof text),
                        "published; class 7, 0.30 loads by others expected, saving 15.000 ms for "
                        "0.086 ms");
    char small[8];
    assert_string_equal(publish_explain(&decision, small, sizeof small), "publish");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_worth_what_others_save),
        cmocka_unit_test(a_class_is_learned_from_its_loads),
        cmocka_unit_test(what_nobody_loads_is_explored_alone),
        cmocka_unit_test(the_write_rate_takes_the_best),
        cmocka_unit_test(a_busy_path_costs_more),
        cmocka_unit_test(a_step_back_of_time_is_held),
        cmocka_unit_test(classes_fill_a_byte),
        cmocka_unit_test(a_decision_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
