/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.c - runs the cases of a test program in the order of their lines, and is the main of the
 * programs that have none.
 */
#include "cases.h"

#include <errno.h>

/* The bounds of the section; both NULL in a program without a row. */
extern const test_row *const __start_test_rows[] __attribute__((weak));
extern const test_row *const __stop_test_rows[] __attribute__((weak));

static int compare_lines(const void *left, const void *right)
{
    const test_row *a = *(const test_row *const *)left, *b = *(const test_row *const *)right;
    return (a->line > b->line) - (a->line < b->line);
}

/* The fixtures of the cases, in the order in which the cases run: that of the case that runs, and
 * test_ends() before and after its set-up. */
static const test_row **next_fixture, *fixture;
static size_t ends_before, ends_set_up;

static int set_up_case(void **state)
{
    fixture = *next_fixture++;
    ends_before = test_ends();
    const int failed = fixture->set_up != NULL ? fixture->set_up(state) : 0;
    ends_set_up = test_ends();
    return failed;
}

static int tear_down_case(void **state)
{
    test_end(ends_set_up);
    const int failed = fixture->tear_down != NULL ? fixture->tear_down(state) : 0;
    test_end(ends_before);
    return failed;
}

int tests_run(void)
{
    const size_t rows = (size_t)(__stop_test_rows - __start_test_rows);
    const test_row **sorted = calloc(rows + 1, sizeof(test_row *));
    struct CMUnitTest *cases = calloc(rows + 1, sizeof *cases);
    if (sorted == NULL || cases == NULL) return 1;
    if (rows > 0) memcpy(sorted, __start_test_rows, rows * sizeof(test_row *));
    qsort(sorted, rows, sizeof(test_row *), compare_lines);
    test_row each = {0}, all = {0};
    for (size_t i = 0; i < rows; i++) {
        if (sorted[i]->kind < TEST_FIXTURE_EACH) continue;
        test_row *fixtures = sorted[i]->kind == TEST_FIXTURE_EACH ? &each : &all;
        if (sorted[i]->set_up != NULL) fixtures->set_up = sorted[i]->set_up;
        if (sorted[i]->tear_down != NULL) fixtures->tear_down = sorted[i]->tear_down;
    }
    size_t count = 0;
    for (size_t i = 0; i < rows; i++) {
        const test_row *row = sorted[i];
        if (row->kind > TEST_CASE_OWN) continue;
        sorted[count] = row->kind == TEST_CASE ? &each : row;
        cases[count++] =
            (struct CMUnitTest){row->name, row->run, set_up_case, tear_down_case, NULL};
    }
    next_fixture = sorted;
    int failed = 1;
    if (count == 0)
        print_error("%s: no cases\n", program_invocation_short_name);
    else
        failed = _cmocka_run_group_tests(program_invocation_short_name, cases, count, all.set_up,
                                         all.tear_down);
    test_end(0);
    free(cases);
    free(sorted);
    return failed;
}

__attribute__((weak)) int main(void)
{
    return tests_run();
}
