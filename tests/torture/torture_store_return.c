/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_return.c - a device that goes and is back before a read that it failed has been
 * judged: the read's failure says nothing about what the device holds.
 */
#include "store/core/kill_note.h"
#include "store/core/store.h"
#include "store_site.h"

enum { ENTRIES = 12 };

/* The kill point at which the device comes back, and the times that it did. */
static const char *return_at;
static site *return_site;
static uint32_t return_count;

void kvt_kill_point(const char *const *point)
{
    if (return_at == NULL || strcmp(*point, return_at) != 0) return;
    return_at = NULL;
    return_count++;
    kvt_status status =
        kvt_device_add(return_site->store, KVT_TIER_SSD, &return_site->files[0], NULL, 0);
    assert_ok(status);
}

void kvt_kill_note(kill_note note, const kvt_key *key, kvt_tier tier)
{
    (void)note;
    (void)key;
    (void)tier;
}

/* SSD alone; every entry is striped over both disks. */
TEST_BEFORE_EACH
{
    return_site =
        site_new(state, (site_shape){.disks = 2, .disk_bytes = 2 << 20, .unit_bytes = 4096});
    return_site->options.tiers[KVT_TIER_SSD].rebalance_bytes_per_s = UINT64_C(1) << 40;
    site_open(return_site);
    site_put(return_site, 0, ENTRIES);
    return_count = 0;
}

/* The first disk answers KVT_E_GONE from now on, and is back at the point. */
static void go_until(site *s, const char *point)
{
    return_at = point;
    tiers_fault_set_gone(s->disks[0].device, true);
}

static void check_all(site *s)
{
    assert_int_equal(return_count, 1);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(a_get_finds_the_device_back)
{
    site *s = *state;
    go_until(s, "get: load failed");
    assert_ok(support_get(s->store, 3, NULL)); /* it reads again */
    check_all(s);
}

TEST(a_move_finds_its_source_back)
{
    site *s = *state;
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    go_until(s, "move: failed");
    assert_ok(kvt_store_maintain(s->store, NULL));
    check_all(s);
}

static void *delete_thread(void *argument)
{
    site *s = argument;
    kvt_key key = support_key(3);
    (void)!kvt_store_delete(s->store, &key);
    return NULL;
}

/* A delete waits for a move of its entry; meanwhile the device goes, and the entry is set aside for
 * its return. It does not come back with the device. */
TEST(a_deleted_entry_stays_away)
{
    site *s = *state;
    pthread_t thread;
    kvt_key key = support_key(3);
    pthread_mutex_lock(&s->store->lock);
    store_entry *entry = entry_find_key(&s->store->table, &key);
    assert_non_null(entry);
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_MOVING);
    pthread_mutex_unlock(&s->store->lock);
    assert_int_equal(pthread_create(&thread, NULL, delete_thread, s), 0);
    usleep(100000); /* until it waits; if it does not yet, the test shows nothing */
    pthread_mutex_lock(&s->store->lock);
    entry_set_state(entry, ENTRY_MOVING, ENTRY_RESIDENT);
    tiers_pool_retire(s->store->pools[KVT_TIER_SSD], 0);
    quarantine_refresh_tier(s->store, KVT_TIER_SSD);
    pthread_cond_broadcast(&s->store->changed);
    pthread_mutex_unlock(&s->store->lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(kvt_device_add(s->store, KVT_TIER_SSD, &s->files[0], NULL, 0));
    assert_int_equal(support_get(s->store, 3, NULL), KVT_MISS);
    assert_ok(support_get(s->store, 4, NULL));
}
