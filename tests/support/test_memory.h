/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.h - what a case need not give back: memory, and whatever else test_after is told of,
 * ends with the case, passed or failed. In a program without cases it ends with the program.
 *
 * Thread rule: any thread; test_end is the runner's of cases.c.
 */
#ifndef TESTS_TEST_MEMORY_H
#define TESTS_TEST_MEMORY_H

#include <stddef.h>
#include <string.h>

/* Calls end(what) when the case ends, the last that was told first; what the set-up told comes
 * after the tear-down. The result is `what`. */
void *test_after(void (*end)(void *), void *what);

/* Memory of the case, never NULL. */
void *test_zeros(size_t bytes);

/* The same, full of what no test expects to find. */
void *test_alloc(size_t bytes);

/* The same, from a multiple of `alignment` on. */
void *test_aligned(size_t alignment, size_t bytes);

/* How many ends there are, and the calls of those past the first `count`. */
size_t test_ends(void);
void test_end(size_t count);

#endif
