/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - a test program lists its cases where it defines them:
 *
 *     TEST(an_entry_comes_up)
 *     {
 *         assert_int_equal(1 + 1, 2);
 *     }
 *
 * A case is a function of cmocka's, test_an_entry_comes_up here, whose parameter is `state`. Cases
 * run in the order of their lines. The program needs no main: the one of cases.c runs them all. A
 * program with a main of its own calls tests_run() there.
 */
#ifndef KVT_TESTS_SUPPORT_CASES_H
#define KVT_TESTS_SUPPORT_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_memory.h"

typedef enum test_row_kind {
    TEST_CASE,
    TEST_CASE_OWN,
    TEST_FIXTURE_EACH,
    TEST_FIXTURE_ALL
} test_row_kind;

/* A line of the program's table, which the linker makes of the pointers of one section. */
typedef struct test_row {
    const char *name;
    CMUnitTestFunction run;
    CMFixtureFunction set_up, tear_down;
    unsigned line;
    test_row_kind kind;
} test_row;

/* A call's status is KVT_OK, which is 0. */
#define assert_ok(call) assert_int_equal(call, 0)

#define TEST(name) TEST_FUNCTION(TEST_CASE, name, NULL, NULL)

/* A case with a set-up and a tear-down of its own in the place of those of TEST_EACH; NULL where it
 * has none. */
#define TEST_WITH(set_up, tear_down, name) TEST_FUNCTION(TEST_CASE_OWN, name, set_up, tear_down)

/* The set-up and the tear-down of every TEST of the program. */
#define TEST_EACH(set_up, tear_down) TEST_ROW(TEST_FIXTURE_EACH, each_case, NULL, set_up, tear_down)

/* What comes before the first case and after the last one. */
#define TEST_ALL(set_up, tear_down) TEST_ROW(TEST_FIXTURE_ALL, all_cases, NULL, set_up, tear_down)

/* The same, whose bodies follow: TEST_BEFORE_EACH { ... }. */
#define TEST_BEFORE_EACH TEST_FIXTURE(TEST_FIXTURE_EACH, before_each, call_before_each, NULL)
#define TEST_AFTER_EACH  TEST_FIXTURE(TEST_FIXTURE_EACH, after_each, NULL, call_after_each)
#define TEST_BEFORE_ALL  TEST_FIXTURE(TEST_FIXTURE_ALL, before_all, call_before_all, NULL)
#define TEST_AFTER_ALL   TEST_FIXTURE(TEST_FIXTURE_ALL, after_all, NULL, call_after_all)

/* Runs the cases; 0 when none failed. */
int tests_run(void);

#define TEST_FUNCTION(kind, name, set_up, tear_down)                                               \
    static void test_##name(void **state);                                                         \
    TEST_ROW(kind, name, test_##name, set_up, tear_down);                                          \
    static void test_##name(__attribute__((unused)) void **state)

#define TEST_FIXTURE(kind, name, set_up, tear_down)                                                \
    static void name(void **state);                                                                \
    static int call_##name(void **state)                                                           \
    {                                                                                              \
        name(state);                                                                               \
        return 0;                                                                                  \
    }                                                                                              \
    TEST_ROW(kind, name, NULL, set_up, tear_down);                                                 \
    static void name(__attribute__((unused)) void **state)

#define TEST_ROW(kind, name, run, set_up, tear_down)                                               \
    static const test_row row_of_##name = {#name, run, set_up, tear_down, __LINE__, kind};         \
    static const test_row *const place_of_##name __attribute__((used, section("test_rows"))) =     \
        &row_of_##name

#endif
