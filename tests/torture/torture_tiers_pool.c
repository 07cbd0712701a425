/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_tiers_pool.c - fails the nth allocation and the nth operation of a fixed workload, for
 * every n in turn, and checks after each run that nothing leaked, lied or stayed held.
 *
 * Allocation failures are made by standing in for malloc, calloc and realloc, which a sanitizer
 * does as well; under one, only the operations fail.
 */

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "fault_device.h"
#include "pool_scratch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define TORTURE_ALLOCATIONS 0
#else
#define TORTURE_ALLOCATIONS 1
#endif

enum { UNIT = 16384, MEMBERS = 3, OBJECTS = 6 };

/* Allocations until one fails; negative = none does. */
static _Atomic int64_t allocations_left = -1;

#if TORTURE_ALLOCATIONS
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

static bool allocation_fails(void)
{
    if (atomic_load(&allocations_left) < 0) return false;
    if (atomic_fetch_sub(&allocations_left, 1) != 0) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return allocation_fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return allocation_fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return allocation_fails() ? NULL : __libc_realloc(old, bytes);
}
#endif

typedef struct torture {
    tiers_member_options members[MEMBERS];
    kvt_device *faulty; /* member 1 */
    char *buffer;
    uint32_t failures; /* statuses that were not KVT_OK */
} torture;

static void torture_set_up(torture *t)
{
    const uint64_t sizes[MEMBERS] = {40 * UNIT, 90 * UNIT, 20 * UNIT + 4096};
    const double speeds[MEMBERS] = {1e9, 2e9, 1.5e9};
    memset(t, 0, sizeof *t);
    t->buffer = pool_scratch_buffer(64 * UNIT);
    for (int i = 0; i < MEMBERS; i++) {
        kvt_device *device = pool_scratch_memory(sizes[i]);
        if (i == 1) {
            assert_ok(tiers_fault_open(device, &t->faulty));
            device = t->faulty;
        }
        t->members[i] = pool_scratch_member(device, speeds[i]);
    }
}

/* The failures that the workload may meet. */
static bool torture_expected(torture *t, kvt_status status)
{
    if (status == KVT_OK) return true;
    t->failures++;
    return status == KVT_E_MEMORY || status == KVT_E_IO || status == KVT_E_GONE ||
           status == KVT_E_SPACE;
}

/* Writes an object, reads it back and checks it. A good write comes back or fails openly. */
static void torture_object(torture *t, tiers_pool *pool, const tiers_location *location,
                           uint64_t fill)
{
    pool_scratch_fill(t->buffer, location->bytes, fill);
    kvt_status status =
        tiers_pool_transfer(pool, KVT_IO_WRITE, location, t->buffer, location->bytes);
    assert_true(torture_expected(t, status) && status != KVT_E_MEMORY);
    if (status != KVT_OK) return;
    memset(t->buffer, 0, location->bytes);
    status = tiers_pool_transfer(pool, KVT_IO_READ, location, t->buffer, location->bytes);
    assert_true(torture_expected(t, status) && status != KVT_E_MEMORY);
    if (status == KVT_OK) assert_true(pool_scratch_holds(t->buffer, location->bytes, fill));
}

/* Packs, releases and takes over again, as a restart does. */
static void torture_readopt(torture *t, tiers_pool *pool, tiers_location **location)
{
    uint8_t flat[4096];
    size_t bytes = tiers_location_pack(*location, flat, sizeof flat);
    assert_true(bytes <= sizeof flat);
    tiers_pool_release(pool, *location);
    *location = NULL;
    tiers_location *copy = NULL;
    kvt_status status = tiers_location_unpack(flat, bytes, &copy);
    assert_true(torture_expected(t, status));
    if (status != KVT_OK) return;
    status = tiers_pool_adopt(pool, copy);
    assert_true(torture_expected(t, status));
    if (status == KVT_OK)
        *location = copy;
    else
        tiers_location_free(copy);
}

static void torture_workload(torture *t, tiers_pool *pool)
{
    const uint64_t sizes[OBJECTS] = {30 * UNIT, 4096, 11 * UNIT + 8192, 40 * UNIT, UNIT, 50 * UNIT};
    tiers_location *locations[OBJECTS] = {NULL};
    for (int i = 0; i < OBJECTS; i++) {
        kvt_status status = tiers_pool_reserve(pool, sizes[i], &locations[i]);
        assert_true(torture_expected(t, status));
        if (status != KVT_OK) continue;
        torture_object(t, pool, locations[i], (uint64_t)i);
        if (i == 2) {
            tiers_pool_release(pool, locations[0]); /* a hole, so that extents are in pieces */
            locations[0] = NULL;
        }
        if (i % 3 == 2) torture_readopt(t, pool, &locations[i]);
    }
    assert_true(torture_expected(t, tiers_pool_sync(pool)));
    for (int i = 0; i < OBJECTS; i++)
        tiers_pool_release(pool, locations[i]);
    assert_int_equal(pool_scratch_used(pool), 0);
}

/* One run; false when the pool could not be opened. */
static bool torture_run(torture *t)
{
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool = NULL;
    kvt_status status = tiers_pool_open(t->members, MEMBERS, &options, &pool, NULL, 0);
    assert_true(torture_expected(t, status));
    if (status == KVT_OK) {
        torture_workload(t, pool);
        tiers_pool_close(pool);
    } else {
        for (int i = 0; i < MEMBERS; i++)
            kvt_device_close(t->members[i].device);
    }
    return status == KVT_OK;
}

TEST(every_allocation_fails_once)
{
    if (!TORTURE_ALLOCATIONS) {
        print_message("allocations are the sanitizer's: not failed here\n");
        skip();
    }
    uint32_t opened = 0;
    int64_t nth = 0;
    for (;; nth++) {
        torture t;
        torture_set_up(&t);
        atomic_store(&allocations_left, nth);
        if (torture_run(&t)) opened++;
        int64_t left = atomic_exchange(&allocations_left, -1);
        if (left >= 0) break; /* the workload needs fewer than nth */
        assert_int_not_equal(t.failures, 0);
        assert_true(nth < 10000);
    }
    assert_true(nth > 20 && opened > 10 && opened < nth);
}

static void torture_operations(kvt_status injected, tiers_fault_action action)
{
    uint64_t nth = 0;
    for (;; nth++) {
        torture t;
        torture_set_up(&t);
        tiers_fault_rule rule = {.action = action,
                                 .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES |
                                          (action == TIERS_FAULT_FAIL ? TIERS_FAULT_SYNCS : 0),
                                 .skip = nth,
                                 .hits = 1,
                                 .status = injected,
                                 .os_error = EIO};
        assert_ok(tiers_fault_add(t.faulty, &rule));
        assert_true(torture_run(&t));
        if (action == TIERS_FAULT_FAIL && t.failures == 0) break;
        if (action == TIERS_FAULT_BUSY) {
            assert_int_equal(t.failures, 0);
            if (nth == 60) break;
        }
        assert_true(nth < 10000);
    }
    assert_true(nth > 30);
}

TEST(every_operation_fails_once)
{
    torture_operations(KVT_E_IO, TIERS_FAULT_FAIL);
}

TEST(the_member_goes_at_every_operation)
{
    torture_operations(KVT_E_GONE, TIERS_FAULT_FAIL);
}

TEST(the_device_is_busy_at_every_operation)
{
    torture_operations(KVT_OK, TIERS_FAULT_BUSY);
}
