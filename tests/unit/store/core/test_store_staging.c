/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_staging.c - memory for records in motion: one arena, the heap behind it, the bound.
 */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <store/core/staging.h>

enum { KIB = 1024, LIMIT = 8192 * KIB };

static store_staging *staging;

TEST_BEFORE_EACH
{
    assert_ok(staging_open(LIMIT, &staging));
    staging_make_arena(staging, true);
    assert_non_null(staging->arena);
    assert_int_equal(staging->arena_bytes, LIMIT);
    assert_int_equal((uintptr_t)staging->arena % (2048 * KIB), 0);
}

TEST_AFTER_EACH
{
    assert_int_equal(staging->out_bytes, 0);
    staging_close(staging);
}

static bool in_arena(const staging_buffer *buffer)
{
    const char *at = buffer->memory;
    return at >= staging->arena && at + buffer->bytes <= staging->arena + staging->arena_bytes;
}

static staging_buffer take(uint64_t bytes, bool wait)
{
    staging_buffer buffer;
    if (wait)
        assert_ok(staging_acquire(staging, bytes, STAGING_NO_DEADLINE, &buffer));
    else
        assert_ok(staging_acquire_now(staging, bytes, &buffer));
    assert_true(buffer.bytes >= bytes);
    assert_int_equal((uintptr_t)buffer.memory % STAGING_ALIGN, 0);
    memset(buffer.memory, 0x5A, buffer.bytes);
    return buffer;
}

/* All of the bound is arena, and comes together again. */
TEST(arena)
{
    enum { PIECES = LIMIT / (64 * KIB) };
    staging_buffer pieces[PIECES];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PIECES; i++) {
            pieces[i] = take(64 * KIB - (uint64_t)(i % 5), true); /* rounded up to pages */
            assert_true(in_arena(&pieces[i]));
        }
        staging_buffer beyond = take(64 * KIB, false);
        assert_false(in_arena(&beyond));
        staging_release(staging, &beyond);
        for (int i = 0; i < PIECES; i++)
            staging_release(staging, &pieces[(i * 37 + round) % PIECES]);
        staging_buffer all = take(LIMIT, true);
        assert_true(in_arena(&all));
        staging_release(staging, &all);
        assert_null(all.memory);
        staging_release(staging, &all); /* a cleared one is allowed */
    }
}

/* Room for it in sum but not in one piece: the heap, within the bound. */
TEST(fragments)
{
    enum { PIECES = LIMIT / (512 * KIB) };
    staging_buffer pieces[PIECES];
    for (int i = 0; i < PIECES; i++)
        pieces[i] = take(512 * KIB, true);
    for (int i = 0; i < PIECES; i += 2)
        staging_release(staging, &pieces[i]);
    staging_buffer wide = take(1024 * KIB, true);
    assert_false(in_arena(&wide));
    staging_buffer narrow = take(512 * KIB, true);
    assert_true(in_arena(&narrow));
    staging_release(staging, &wide);
    staging_release(staging, &narrow);
    for (int i = 1; i < PIECES; i += 2)
        staging_release(staging, &pieces[i]);
}

/* Larger than the bound: granted alone, from the heap. Too large for any machine: refused. */
TEST(large)
{
    staging_buffer large = take(LIMIT + 4096, true);
    assert_false(in_arena(&large));
    staging_release(staging, &large);
    const uint64_t sizes[] = {UINT64_C(1) << 62, UINT64_MAX};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(staging_acquire(staging, sizes[i], STAGING_NO_DEADLINE, &large),
                         KVT_E_MEMORY);
        assert_int_equal(staging_acquire_now(staging, sizes[i], &large), KVT_E_MEMORY);
    }
    assert_null(large.memory);
}

static atomic_int granted;

static void *waiter(void *argument)
{
    staging_buffer buffer = take(*(const uint64_t *)argument, true);
    atomic_fetch_add(&granted, 1);
    staging_release(staging, &buffer);
    return NULL;
}

static uint64_t waiting(void)
{
    uint64_t count = 0;
    pthread_mutex_lock(&staging->lock);
    for (const staging_waiter *one = staging->waiters; one != NULL; one = one->next)
        count++;
    pthread_mutex_unlock(&staging->lock);
    return count;
}

/* A waiter beyond the bound waits, and a smaller one behind it does not overtake. */
TEST(bound)
{
    const uint64_t sizes[2] = {LIMIT, 4096};
    pthread_t threads[2];
    staging_buffer held = take(LIMIT / 2, true);
    atomic_store(&granted, 0);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, waiter, (void *)(uintptr_t)&sizes[i]),
                         0);
        while (waiting() != i + 1)
            sched_yield();
    }
    assert_int_equal(atomic_load(&granted), 0);
    staging_release(staging, &held);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&granted), 2);
}

/* Who leaves the queue at his deadline holds up nobody behind him. */
TEST(deadline)
{
    const uint64_t bytes = LIMIT / 4;
    pthread_t thread;
    staging_buffer held = take(LIMIT / 2, true);
    staging_buffer none;
    atomic_store(&granted, 0);
    assert_int_equal(staging_acquire(staging, LIMIT, 0, &none), KVT_E_TIMEOUT);
    assert_null(none.memory);
    assert_int_equal(waiting(), 0);
    assert_int_equal(pthread_create(&thread, NULL, waiter, (void *)(uintptr_t)&bytes), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&granted), 1);
    staging_release(staging, &held);
}

/* What is abandoned no longer counts against the bound, and is out until it comes back. */
TEST(abandon)
{
    staging_buffer kept = take(LIMIT, true);
    staging_abandon(staging, &kept);
    staging_abandon(staging, &kept); /* once */
    staging_buffer other = take(LIMIT, true);
    assert_false(in_arena(&other));
    assert_int_equal(staging_bytes_out(staging), 2 * LIMIT);
    memset(kept.memory, 0x77, kept.bytes); /* a device may still write */
    staging_release(staging, &kept);
    staging_release(staging, &other);
    assert_int_equal(staging_bytes_out(staging), 0);
    other = take(LIMIT, true);
    assert_true(in_arena(&other));
    staging_release(staging, &other);
}

/* Loads keep as much beside the bound as the bound is; half of it a further one may have. */
TEST(keep)
{
    staging_buffer kept[3] = {take(LIMIT / 4, true), take(3 * LIMIT / 4, true)};
    assert_int_equal(staging_room_to_keep(staging), LIMIT / 2);
    staging_keep(staging, &kept[0]);
    staging_keep(staging, &kept[0]); /* once */
    assert_int_equal(staging_room_to_keep(staging), LIMIT / 4);
    staging_keep(staging, &kept[1]);
    assert_int_equal(staging_room_to_keep(staging), 0);
    kept[2] = take(64 * KIB, true);
    staging_keep(staging, &kept[2]); /* counts as before */
    assert_int_equal(staging->out_bytes, 64 * KIB);
    for (int i = 0; i < 3; i++)
        staging_release(staging, &kept[i]);
    assert_int_equal(staging_bytes_out(staging), 0);
    assert_int_equal(staging_room_to_keep(staging), LIMIT / 2);
}

/* Closed staging lives until the last buffer has come back. */
TEST_WITH(NULL, NULL, close_with_a_buffer_out)
{
    assert_ok(staging_open(LIMIT, &staging));
    staging_make_arena(staging, true);
    staging_buffer kept = take(LIMIT / 2, true);
    staging_abandon(staging, &kept);
    staging_close(staging);
    memset(kept.memory, 0x77, kept.bytes);
    staging_release(staging, &kept);
}

/* Without an arena, as where the system refuses it, everything works from the heap. */
TEST_WITH(NULL, NULL, heap_only)
{
    assert_ok(staging_open(LIMIT, &staging));
    staging_buffer buffer = take(LIMIT / 2, true);
    assert_false(in_arena(&buffer));
    staging_release(staging, &buffer);
    staging_close(staging);
}
