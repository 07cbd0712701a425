/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_match.c - a long scan for a prefix lets the lock go in between.
 */
#include "lock_count.h"
#include "store_support.h"

enum { KEYS = 1200, STEP = 256 };

TEST(a_long_scan_lets_the_lock_go)
{
    /* Without staging a put says how its write went. */
    kvt_store *store = support_open_memory("lru", 64 << 20, 0);
    kvt_key *keys = malloc((KEYS + 1) * sizeof *keys);
    for (uint32_t i = 0; i <= KEYS; i++)
        keys[i] = support_key(i);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_int_equal(support_put_small(store, &keys[i], 0), KVT_OK);
    size_t matched = 0;
    lock_count_begin();
    assert_int_equal(kvt_match_prefix(store, keys, KEYS + 1, &matched), KVT_OK);
    uint32_t holds = lock_count_end();
    assert_int_equal(matched, KEYS);
    if (LOCK_COUNTS) assert_true(holds >= KEYS / STEP);
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
