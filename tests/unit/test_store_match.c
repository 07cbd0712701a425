/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_match.c - a long scan for a prefix lets the lock go in between. Holds are counted by a
 * pthread_mutex_lock of the test's own, which the library is linked with.
 */
#include "store_support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { KEYS = 1200, STEP = 256 };

static _Thread_local bool counting;
static _Thread_local uint32_t holds;

/* Not under sanitizers, which have one of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MATCH_COUNTS false
#else
#define MATCH_COUNTS true
static int (*real_lock)(pthread_mutex_t *);

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (real_lock == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        memcpy(&real_lock, &found, sizeof found);
    }
    if (counting) holds++;
    return real_lock(mutex);
}
#endif

static kvt_status put_small(kvt_store *store, uint32_t number)
{
    static const char data[64];
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof data},
                       .recompute_seconds = 1};
    return kvt_put(store, &entry, data, sizeof data);
}

static void test_a_long_scan_lets_the_lock_go(void **state)
{
    (void)state;
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0; /* a put says how its write went */
    options.staging_bytes = 4 << 20;
    options.policy = "lru";
    options.tick_seconds = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    kvt_store *store = NULL;
    assert_int_equal(kvt_open(&options, &store, NULL, 0), KVT_OK);
    kvt_key *keys = malloc((KEYS + 1) * sizeof *keys);
    for (uint32_t i = 0; i <= KEYS; i++)
        keys[i] = support_key(i);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_int_equal(put_small(store, i), KVT_OK);
    size_t matched = 0;
    counting = true;
    assert_int_equal(kvt_match_prefix(store, keys, KEYS + 1, &matched), KVT_OK);
    counting = false;
    assert_int_equal(matched, KEYS);
    if (MATCH_COUNTS) assert_true(holds >= KEYS / STEP);
    /* Wherever the run ends: inside a step, at its end, at the first key. */
    static const uint32_t holes[] = {STEP + 7, STEP, STEP - 1, 1, 0};
    for (size_t i = 0; i < sizeof holes / sizeof holes[0]; i++) {
        assert_int_equal(kvt_delete(store, &keys[holes[i]]), KVT_OK);
        assert_int_equal(kvt_match_prefix(store, keys, KEYS + 1, &matched), KVT_OK);
        assert_int_equal(matched, holes[i]);
    }
    free(keys);
    kvt_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_long_scan_lets_the_lock_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
