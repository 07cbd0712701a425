/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_keeps.c - keeps of one key beside each other, and keeps and deletes that die in their
 * middle: what is left is a whole kept sequence, or a miss.
 */
#include "sequence_site.h"

#include <kvterrace/lookup.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

/* ---- several keeps of one key ---- */

typedef struct keeper {
    kvt_sparse *sequence;
    pthread_barrier_t *barrier;
    kvt_status status;
} keeper;

static void *keep_at_once(void *context)
{
    keeper *self = context;
    const kvt_key key = support_key(1);
    pthread_barrier_wait(self->barrier);
    self->status = kvt_sparse_keep(self->sequence, &key);
    return NULL;
}

/* One is kept, whole; the other one leaves nothing. Two of one origin have one id, and still do not
 * mix. */
TEST(keeps_at_once_leave_one)
{
    for (int origin = 0; origin < 2; origin++) {
        sequence_site s;
        site_start(&s, 16 * MIB, 12 * MIB);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1), first = support_key(2);
        const uint32_t whole = SITE_LAYERS * SITE_HEADS + 1;
        keeper keepers[2];
        pthread_barrier_t barrier;
        options.window_bytes[KVT_TIER_DRAM] = 0;
        if (origin) site_keep(&s, &options, &first);
        for (uint32_t i = 0; i < 2; i++) {
            keepers[i].sequence =
                origin ? site_open_kept(&s, &options, &first) : site_sequence(&s, &options);
            keepers[i].barrier = &barrier;
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
                assert_int_equal(
                    kvt_sparse_append(keepers[i].sequence, layer, s.k[layer], s.v[layer], 1 + i),
                    KVT_OK);
        }
        for (uint32_t round = 0; round < 12; round++) {
            pthread_t threads[2];
            assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
            /* Now and then in the place of one that nobody can open. */
            if (round % 3 == 1) {
                assert_int_equal(kvt_sparse_keep(keepers[0].sequence, &key), KVT_OK);
                const kvt_key part = site_part_key(s.store, &key, 1);
                assert_int_equal(kvt_delete(s.store, &part), KVT_OK);
            }
            for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, keep_at_once, &keepers[i]), 0);
            for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
            (void)pthread_barrier_destroy(&barrier);
            const uint32_t winner = keepers[0].status == KVT_OK ? 0 : 1;
            assert_int_equal(keepers[winner].status, KVT_OK);
            assert_int_equal(keepers[1 - winner].status, KVT_EXISTS);
            assert_int_equal(support_stats(s.store).policy.entries, whole * (origin ? 2 : 1));
            kvt_sparse_close(site_open_kept(&s, &options, &key));
            assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
            assert_int_equal(support_stats(s.store).policy.entries, origin ? whole : 0);
        }
        for (uint32_t i = 0; i < 2; i++)
            kvt_sparse_close(keepers[i].sequence);
        site_check_unheld(&s);
        site_stop(&s);
    }
}

/* A lease holds the head of one that nobody can open: it is not replaced, and nothing is left. */
TEST(a_leased_head_is_not_replaced)
{
    sequence_site s;
    site_start(&s, 16 * MIB, 12 * MIB);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    kvt_sparse *sequence = site_sequence(&s, &options);
    uint64_t lease;
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_OK);
    const kvt_key part = site_part_key(s.store, &key, 1);
    assert_int_equal(
        kvt_lease(s.store, NULL, &key, 1, base_clock_ns() + UINT64_C(60000000000), NULL, &lease),
        KVT_OK);
    assert_int_equal(kvt_delete(s.store, &part), KVT_OK);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_EXISTS);
    assert_int_equal(support_stats(s.store).policy.entries, 1);
    assert_int_equal(kvt_lease_end(s.store, lease), KVT_OK);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_OK);
    kvt_sparse_close(sequence);
    kvt_sparse_close(site_open_kept(&s, &options, &key));
    site_stop(&s);
}

/* ---- crashes ---- */

static void *delete_kept(void *context)
{
    sequence_site *s = context;
    const kvt_key key = support_key(1);
    (void)!kvt_sparse_delete(s->store, &key);
    (void)!kvt_flush(s->store);
    return NULL;
}

/* A site whose drives and catalog outlive a process; the store is closed. */
static void start_durable(sequence_site *s, char folder[64])
{
    static char paths[SITE_DRIVES][96], catalog[96];
    support_make_folder(folder, 64);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    site_start(s, 16 * MIB, 8 * MIB);
    kvt_close(s->store);
    s->options.catalog_path = catalog;
    for (int i = 0; i < SITE_DRIVES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/drive%d", folder, i);
        s->drives[i].path = paths[i];
    }
}

/* Opens the store of a child that has killed itself. */
static void open_after(sequence_site *s, pid_t child)
{
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(site_open_store(s), KVT_OK);
    site_check_unheld(s);
}

/* The child dies somewhere in a delete, with a sequence open on what is deleted: the kept sequence
 * is whole, or a miss that another delete ends. */
TEST(a_crash_leaves_all_or_a_miss)
{
    static const useconds_t pauses[] = {0, 0, 200, 1000, 5000};
    uint32_t whole = 0;
    for (uint32_t round = 0; round < 5; round++) {
        sequence_site s;
        char folder[64];
        start_durable(&s, folder);
        kvt_sparse_options options = site_options();
        options.layout.tokens = 1000;
        const kvt_key key = support_key(1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            pthread_t thread;
            if (site_open_store(&s) != KVT_OK) _exit(1);
            site_keep(&s, &options, &key);
            if (kvt_persist(s.store, KVT_NO_DEADLINE, NULL) != KVT_OK) _exit(2);
            if (site_open_kept(&s, &options, &key) == NULL) _exit(3);
            if (pthread_create(&thread, NULL, delete_kept, &s) != 0) _exit(4);
            if (round > 0) usleep(pauses[round]);
            kill(getpid(), SIGKILL);
        }
        open_after(&s, child);
        kvt_sparse *sequence = NULL;
        const kvt_status status = kvt_sparse_open_kept(s.store, &options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status == KVT_OK) whole++;
        kvt_sparse_close(sequence);
        const kvt_status deleted = kvt_sparse_delete(s.store, &key);
        assert_true(deleted == KVT_OK || (deleted == KVT_MISS && status == KVT_MISS));
        assert_int_equal(support_stats(s.store).policy.entries, 0);
        site_stop(&s);
        support_remove_folder(folder);
    }
    assert_true(whole > 0);
}

typedef struct durable_keep {
    sequence_site *s;
    kvt_sparse *sequence;
} durable_keep;

static void *keep_durably(void *context)
{
    const durable_keep *self = context;
    const kvt_key key = support_key(1);
    (void)!kvt_sparse_keep(self->sequence, &key);
    (void)!kvt_persist(self->s->store, KVT_NO_DEADLINE, NULL);
    return NULL;
}

/* The child dies somewhere in a keep: a whole sequence, or a miss under a key that the next keep
 * takes. It draws the ids that the child's sequences had, and has other tokens. */
TEST(a_crash_in_a_keep_leaves_all_or_a_miss)
{
    static const useconds_t pauses[] = {0, 300, 1000, 3000, 10000, 300000};
    const uint32_t parts = SITE_LAYERS * SITE_HEADS;
    uint32_t missed = 0;
    for (uint32_t round = 0; round < 6; round++) {
        sequence_site s;
        char folder[64];
        start_durable(&s, folder);
        kvt_sparse_options options = site_options();
        options.layout.tokens = 1000;
        const kvt_key key = support_key(1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            pthread_t thread;
            if (site_open_store(&s) != KVT_OK) _exit(1);
            durable_keep keeping = {.s = &s, .sequence = site_sequence(&s, &options)};
            if (pthread_create(&thread, NULL, keep_durably, &keeping) != 0) _exit(2);
            usleep(pauses[round]);
            kill(getpid(), SIGKILL);
        }
        open_after(&s, child);
        kvt_sparse *sequence = NULL;
        const kvt_status status = kvt_sparse_open_kept(s.store, &options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_MISS);
        kvt_sparse_close(sequence);
        if (status == KVT_MISS) {
            missed++;
            sequence = site_sequence(&s, &options);
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
                assert_int_equal(kvt_sparse_append(sequence, layer, s.k[layer], s.v[layer], 3),
                                 KVT_OK);
            assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_OK);
            kvt_sparse_close(sequence);
            kvt_sparse_close(site_open_kept(&s, &options, &key));
        }
        assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
        /* What no head names is at most what one keep stores. */
        assert_true(support_stats(s.store).policy.entries <= (status == KVT_OK ? 0 : parts));
        site_stop(&s);
        support_remove_folder(folder);
    }
    assert_true(missed > 0);
}
