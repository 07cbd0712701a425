/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_history.c - the judge of gets that the torture of the calls relies on: it accepts what
 * an order of the calls explains, and finds each violation that is planted.
 */
#include "cases.h"

#include "tests/torture/history.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static int make(void **state)
{
    *state = history_make(2);
    return *state != NULL ? 0 : -1;
}

TEST_AFTER_EACH
{
    history_free(*state);
}

/* A put that was kept, from `call` to `back`. */
static uint32_t put(history *all, uint64_t call, uint64_t back)
{
    uint32_t version = history_put_begin(all, 0, call);
    assert_true(version > 0);
    assert_null(history_put_end(all, 0, version, back, HISTORY_KEPT));
    return version;
}

static void expect_wrong(const char *said, const char *part)
{
    assert_non_null(said);
    assert_non_null(strstr(said, part));
}

TEST_EACH(make, NULL);

TEST(what_an_order_explains)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    assert_int_equal(one, 1);
    assert_null(history_get(all, 0, one, 21, 30));
    assert_null(history_get(all, 0, one, 5, 12)); /* overlaps the put */
    history_removed(all, 0, 40, 50);
    assert_null(history_get(all, 0, one, 45, 60)); /* overlaps the delete */
    assert_null(history_get(all, 0, one, 50, 60)); /* begins at the instant of its return */
    uint32_t two = history_put_begin(all, 0, 70);
    assert_null(history_get(all, 0, two, 72, 75)); /* before its put has returned */
    assert_null(history_put_end(all, 0, two, 80, HISTORY_KEPT));
    assert_null(history_found(all, 0, 90, 95));
    assert_null(history_get(all, 1, history_put_begin(all, 1, 1), 2, 3)); /* keys are apart */
}

TEST(a_version_that_was_never_put)
{
    history *all = *state;
    expect_wrong(history_get(all, 0, 1, 10, 20), "never put");
    (void)put(all, 10, 20);
    expect_wrong(history_get(all, 0, 0, 30, 40), "never put");
    expect_wrong(history_get(all, 0, 2, 30, 40), "never put");
}

TEST(a_version_of_the_future)
{
    history *all = *state;
    uint32_t one = put(all, 30, 40);
    expect_wrong(history_get(all, 0, one, 10, 20), "before it was put");
}

TEST(after_a_delete)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    history_removed(all, 0, 30, 40);
    expect_wrong(history_get(all, 0, one, 41, 50), "removed or replaced");
    expect_wrong(history_found(all, 0, 41, 50), "not stored");
    uint32_t two = put(all, 60, 70);
    assert_null(history_get(all, 0, two, 71, 80));
    expect_wrong(history_get(all, 0, one, 71, 80), "removed or replaced");
}

/* A delete and a put that overlap may come in either order. */
TEST(a_delete_beside_a_put)
{
    history *all = *state;
    uint32_t one = history_put_begin(all, 0, 10);
    history_removed(all, 0, 15, 25);
    assert_null(history_put_end(all, 0, one, 20, HISTORY_KEPT));
    assert_null(history_get(all, 0, one, 30, 40));
}

/* The get shows that the version was stored before the delete began, though its put went on. */
TEST(a_delete_behind_a_get)
{
    history *all = *state;
    uint32_t one = history_put_begin(all, 0, 10);
    assert_null(history_get(all, 0, one, 11, 14));
    history_removed(all, 0, 15, 25);
    assert_null(history_put_end(all, 0, one, 60, HISTORY_KEPT));
    expect_wrong(history_get(all, 0, one, 30, 40), "removed or replaced");
}

/* A second version that was kept says that the first one had gone, whoever removed it. */
TEST(a_version_that_was_replaced)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    uint32_t two = history_put_begin(all, 0, 30);
    assert_null(history_get(all, 0, one, 31, 35)); /* the put has not kept anything yet */
    assert_null(history_get(all, 0, two, 36, 40)); /* but now */
    expect_wrong(history_get(all, 0, one, 41, 45), "removed or replaced");
    assert_null(history_put_end(all, 0, two, 50, HISTORY_KEPT));
    /* Puts that overlap may come in either order. */
    uint32_t three = history_put_begin(all, 0, 60), four = history_put_begin(all, 0, 61);
    assert_null(history_put_end(all, 0, four, 65, HISTORY_KEPT));
    assert_null(history_put_end(all, 0, three, 66, HISTORY_KEPT));
    assert_null(history_get(all, 0, four, 70, 75));
    assert_null(history_get(all, 0, three, 76, 80));
    expect_wrong(history_get(all, 0, two, 76, 80), "removed or replaced");
}

TEST(what_no_put_kept)
{
    history *all = *state;
    uint32_t one = history_put_begin(all, 0, 10);
    assert_null(history_put_end(all, 0, one, 20, HISTORY_REJECTED));
    expect_wrong(history_get(all, 0, one, 30, 40), "not kept");
    expect_wrong(history_found(all, 0, 30, 40), "not stored");
    uint32_t two = history_put_begin(all, 0, 50);
    assert_null(history_get(all, 0, two, 51, 55));
    expect_wrong(history_put_end(all, 0, two, 60, HISTORY_REJECTED), "kept nothing");
}

/* Nobody knows whether a put was carried out that its queue's close has ended. */
TEST(what_a_close_has_ended)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    uint32_t two = history_put_begin(all, 0, 30);
    assert_null(history_put_end(all, 0, two, 40, HISTORY_UNKNOWN));
    assert_null(history_get(all, 0, one, 50, 60)); /* it was not */
    uint32_t three = history_put_begin(all, 0, 70);
    assert_null(history_put_end(all, 0, three, 80, HISTORY_UNKNOWN));
    assert_null(history_get(all, 0, three, 90, 95)); /* it was */
    expect_wrong(history_get(all, 0, one, 96, 99), "removed or replaced");
    history_removed(all, 0, 100, 110);
    expect_wrong(history_get(all, 0, two, 111, 120), "removed or replaced");
    expect_wrong(history_get(all, 0, three, 111, 120), "removed or replaced");
}

TEST(a_clear_spares_puts_beside_it)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    uint32_t two = history_put_begin(all, 1, 10);
    assert_null(history_get(all, 1, two, 11, 12));
    history_cleared(all, 0, 30, 40);
    history_cleared(all, 1, 30, 40);
    expect_wrong(history_get(all, 0, one, 41, 50), "removed or replaced");
    assert_null(history_get(all, 1, two, 41, 50)); /* its put had not returned */
}

TEST(a_lifetime)
{
    history *all = *state;
    uint32_t one = put(all, 10, 20);
    history_expire(all, 0, one, 100);
    assert_null(history_get(all, 0, one, 99, 120));
    expect_wrong(history_get(all, 0, one, 101, 120), "removed or replaced");
}

/* Many versions: those that have ended are found all the same. */
TEST(a_long_history)
{
    history *all = *state;
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t version = put(all, 100 * i + 1, 100 * i + 10);
        assert_null(history_get(all, 0, version, 100 * i + 11, 100 * i + 20));
        if (i % 2 == 0) history_removed(all, 0, 100 * i + 30, 100 * i + 40);
    }
    expect_wrong(history_get(all, 0, 1, 99999, 100000), "removed or replaced");
    expect_wrong(history_get(all, 0, 999, 99999, 100000), "removed or replaced");
    assert_null(history_get(all, 0, 1000, 99999, 100000));
}

/* ---- a register of threads: what it gives is right until a delete forgets to remove ---- */

typedef struct toy {
    history *all;
    pthread_mutex_t lock;
    uint32_t stored; /* version; 0 = none */
    uint32_t forgetful;
    atomic_ullong clock;
    atomic_uint wrong;
} toy;

static void *toy_main(void *argument)
{
    toy *self = argument;
    for (uint32_t i = 0; i < 3000; i++) {
        uint64_t call = atomic_fetch_add(&self->clock, 1);
        if (i % 3 == 0) {
            uint32_t version = history_put_begin(self->all, 0, call);
            pthread_mutex_lock(&self->lock);
            bool kept = self->stored == 0;
            if (kept) self->stored = version;
            pthread_mutex_unlock(&self->lock);
            if (history_put_end(self->all, 0, version, atomic_fetch_add(&self->clock, 1),
                                kept ? HISTORY_KEPT : HISTORY_REJECTED) != NULL)
                self->wrong++;
        } else if (i % 3 == 1) {
            pthread_mutex_lock(&self->lock);
            uint32_t version = self->stored;
            pthread_mutex_unlock(&self->lock);
            uint64_t back = atomic_fetch_add(&self->clock, 1);
            if (version != 0 && history_get(self->all, 0, version, call, back) != NULL)
                self->wrong++;
        } else {
            pthread_mutex_lock(&self->lock);
            if (self->forgetful == 0 || i % self->forgetful != 2) self->stored = 0;
            pthread_mutex_unlock(&self->lock);
            history_removed(self->all, 0, call, atomic_fetch_add(&self->clock, 1));
        }
    }
    return NULL;
}

static uint32_t toy_run(history *all, uint32_t forgetful)
{
    toy self = {.all = all, .lock = PTHREAD_MUTEX_INITIALIZER, .forgetful = forgetful, .clock = 1};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, toy_main, &self), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return self.wrong;
}

TEST(a_sound_register)
{
    assert_int_equal(toy_run(*state, 0), 0);
}

TEST(a_forgetful_register)
{
    assert_true(toy_run(*state, 9) > 0);
}
