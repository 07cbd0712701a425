/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.c - runs the cases of a test program in the order of their lines, and is the main of the
 * programs that have none.
 */
#include "cases.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The bounds of the section; both NULL in a program without a row. */
extern const test_row *const __start_test_rows[] __attribute__((weak));
extern const test_row *const __stop_test_rows[] __attribute__((weak));

static int compare_lines(const void *left, const void *right)
{
    const test_row *a = *(const test_row *const *)left, *b = *(const test_row *const *)right;
    return (a->line > b->line) - (a->line < b->line);
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
        if (sorted[i]->kind == TEST_FIXTURE_EACH) each = *sorted[i];
        if (sorted[i]->kind == TEST_FIXTURE_ALL) all = *sorted[i];
    }
    size_t count = 0;
    for (size_t i = 0; i < rows; i++) {
        const test_row *row = sorted[i];
        if (row->kind > TEST_CASE_OWN) continue;
        const test_row *fixture = row->kind == TEST_CASE ? &each : row;
        cases[count++] =
            (struct CMUnitTest){row->name, row->run, fixture->set_up, fixture->tear_down, NULL};
    }
    int failed = 1;
    if (count == 0)
        print_error("%s: no cases\n", program_invocation_short_name);
    else
        failed = _cmocka_run_group_tests(program_invocation_short_name, cases, count, all.set_up,
                                         all.tear_down);
    free(cases);
    free(sorted);
    return failed;
}

__attribute__((weak)) int main(void)
{
    return tests_run();
}
