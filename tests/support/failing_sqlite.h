/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_sqlite.h - SQLite's allocations, which fail from a chosen one on. One thread; installed
 * before SQLite is first used.
 */
#ifndef TESTS_FAILING_SQLITE_H
#define TESTS_FAILING_SQLITE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>

static sqlite3_mem_methods real_memory;
static long allocations_left = -1; /* negative: never fails */

static inline bool allocation_fails(void)
{
    if (allocations_left < 0) return false;
    if (allocations_left > 0) allocations_left--;
    return allocations_left == 0;
}

static inline void *failing_malloc(int bytes)
{
    return allocation_fails() ? NULL : real_memory.xMalloc(bytes);
}

static inline void *failing_realloc(void *memory, int bytes)
{
    return allocation_fails() ? NULL : real_memory.xRealloc(memory, bytes);
}

/* False when SQLite does not take it. */
static inline bool failing_sqlite_install(void)
{
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory) != SQLITE_OK) return false;
    sqlite3_mem_methods failing = real_memory;
    failing.xMalloc = failing_malloc;
    failing.xRealloc = failing_realloc;
    return sqlite3_config(SQLITE_CONFIG_MALLOC, &failing) == SQLITE_OK;
}

#endif
