/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_basis_threads.c - a basis that comes while threads read entries which need it, list
 * bases, put and delete: before it comes gets name it, from then on every get has the entry's
 * bytes, and it cannot be removed under them. For ThreadSanitizer, too.
 */
#include "basis_site.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { ENTRIES = 3, READERS = 3, ROUNDS = 3, AFTER = 6 };

static char saved_path[160];
static char coded[ENTRIES][BASIS_SITE_BYTES]; /* what the stored form gives back */

/* What a thread saw; other threads only wait for the counts. */
typedef struct seen {
    pthread_t thread;
    kvt_store *store;
    uint32_t number;
    _Atomic uint32_t lacking, read; /* gets that named the basis, and that gave right bytes */
    uint32_t wrong;                 /* neither */
    char got[BASIS_SITE_BYTES];
} seen;

static _Atomic bool added, stopped;

static void read_entry(seen *self, uint32_t entry)
{
    const kvt_key key = support_key(entry);
    kvt_get_info info = {.struct_size = sizeof info};
    const bool was_there = atomic_load(&added);
    const kvt_status status = kvt_store_get(
        self->store, &key, KVT_PACKED(self->got, sizeof self->got), KVT_STORE_DEADLINE, &info);
    if (status == KVT_OK) {
        const bool right = memcmp(self->got, coded[entry], sizeof self->got) == 0;
        self->wrong += !right;
        if (right) atomic_fetch_add(&self->read, 1);
    } else {
        const bool named = status == KVT_E_MISMATCH && info.variant.codec == KVT_CODEC_TRANSFORM &&
                           info.variant.rate == site.form.rate;
        self->wrong += was_there || !named;
        atomic_fetch_add(&self->lacking, 1);
    }
    const bool found = kvt_store_exists(self->store, &key) == KVT_OK;
    self->wrong += was_there && !found;
}

static void *reader(void *argument)
{
    seen *self = argument;
    for (uint32_t turn = self->number; !atomic_load(&stopped); turn++)
        read_entry(self, turn % ENTRIES);
    return NULL;
}

/* Lists, puts and deletes beside the readers; a basis that is needed stays. */
static void *meddler(void *argument)
{
    seen *self = argument;
    const kvt_key key = support_key(100);
    while (!atomic_load(&stopped)) {
        kvt_basis_info info = {.struct_size = sizeof info};
        const bool was_there = atomic_load(&added);
        const kvt_status listed = kvt_basis_get(self->store, 0, &info);
        self->wrong += listed != KVT_OK || info.records < ENTRIES;
        self->wrong += was_there && info.state != KVT_BASIS_PRESENT;
        const kvt_status removed = kvt_basis_remove(self->store, site.made.basis.hash);
        self->wrong += removed != KVT_BUSY && (was_there || removed != KVT_MISS);
        self->wrong += basis_site_put(self->store, 100) < 0;
        self->wrong += kvt_store_delete(self->store, &key) < 0;
        atomic_fetch_add(&self->read, 1);
    }
    return NULL;
}

static void wait_for(_Atomic uint32_t *count, uint32_t least)
{
    while (atomic_load(count) < least)
        (void)sched_yield();
}

static void run_round(void)
{
    static seen threads[READERS + 1];
    assert_int_equal(rename(site.basis_path, saved_path), 0);
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    atomic_store(&added, false);
    atomic_store(&stopped, false);
    for (uint32_t i = 0; i <= READERS; i++) {
        seen *one = &threads[i];
        one->store = store;
        one->number = i;
        one->wrong = 0;
        atomic_store(&one->lacking, 0);
        atomic_store(&one->read, 0);
        assert_int_equal(pthread_create(&one->thread, NULL, i < READERS ? reader : meddler, one),
                         0);
    }
    for (uint32_t i = 0; i < READERS; i++)
        wait_for(&threads[i].lacking, 2);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    atomic_store(&added, true);
    for (uint32_t i = 0; i <= READERS; i++)
        wait_for(&threads[i].read, atomic_load(&threads[i].read) + AFTER);
    assert_int_equal(kvt_basis_add(store, site.made.object, site.made.bytes), KVT_EXISTS);
    atomic_store(&stopped, true);
    for (uint32_t i = 0; i <= READERS; i++) {
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
        assert_int_equal(threads[i].wrong, 0);
    }
    assert_int_equal(support_stats(store).load_failures, 0);
    kvt_store_close(store);
}

TEST(a_basis_comes_under_readers)
{
    static char data[BASIS_SITE_BYTES];
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        basis_site_fill(i, data);
        (void)basis_site_code(&site, data, coded[i]);
    }
    for (uint32_t round = 0; round < ROUNDS; round++)
        run_round();
}

TEST_BEFORE_ALL
{
    basis_site_make(&site);
    (void)snprintf(saved_path, sizeof saved_path, "%s/saved", site.folder);
}

TEST_ALL(NULL, basis_site_tear_down);
