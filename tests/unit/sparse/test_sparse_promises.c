/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_promises.c - what the header says of calls that cannot be served: options that no
 * open takes, a kept sequence that has lost a part, pages whose own drive fails while they are
 * kept. Keeps of one key beside each other, and keeps and deletes that die in their middle: what is
 * left is a whole kept sequence, or a miss.
 */
#include "sequence_site.h"

#include <kvterrace/lookup.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

TEST(options_are_refused_with_a_reason)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    for (int i = 0; i < 21; i++) {
        kvt_sparse_options options = site_options();
        kvt_sparse *sequence = NULL;
        char message[256] = "";
        if (i == 0) options.cluster_tokens = 257;
        if (i == 1) options.iterations = 101;
        if (i == 2) options.segment_tokens = 1000;
        if (i == 3) options.segment_tokens = 65536;
        if (i == 4) options.page_tokens = 17;
        if (i == 5) options.page_tokens = 256;
        if (i == 6) options.layout.order = 7;
        if (i == 7) options.layout.sides = 1;
        if (i == 8) options.layout.tokens_may_drop = 1;
        if (i == 9) options.worth_per_byte = -1;
        if (i == 10) options.worth_per_byte = NAN;
        if (i == 11) options.layout.sides = 3;
        if (i == 12) options.layout.reserved[0] = 1;
        if (i == 13) options.layout.opaque_bytes = 1;
        if (i == 14) options.segment_tokens = 64;
        if (i == 15) options.index_share = NAN;
        if (i == 16) options.index_share = -0.01f;
        if (i == 17) options.index_share = 1.01f;
        if (i == 18) options.single_share = NAN;
        if (i == 19) options.single_share = 1.01f;
        if (i >= 19) options.estimate = false;
        if (i == 20) options.single_share = 0.1f;
        assert_int_equal(
            kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message),
            KVT_E_ARGUMENT);
        assert_true(message[0] != '\0' && strchr(message, '\n') == NULL);
        assert_null(sequence);
        if (options.segment_tokens == 64) assert_non_null(strstr(message, "a multiple of 128"));
    }
    /* What cannot be known from the options has a line as well. */
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = NULL;
    char message[256] = "";
    const kvt_key key = support_key(9);
    assert_int_equal(
        kvt_sparse_open(s->store, &options, &key, 1, &sequence, message, sizeof message), KVT_MISS);
    assert_true(message[0] != '\0');
    message[0] = '\0';
    assert_int_equal(
        kvt_sparse_open_kept(s->store, &options, &key, &sequence, message, sizeof message),
        KVT_MISS);
    assert_true(message[0] != '\0');
}

TEST(nothing_is_a_programmers_error_alone)
{
    float queries[SITE_QUERY] = {0};
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_int_equal(kvt_sparse_select(NULL, 0, queries, &step), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_wait(NULL, NULL, 0, &pages), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_observe(NULL, 0, queries, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_append(NULL, 0, queries, queries, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_keep(NULL, NULL), KVT_E_ARGUMENT);
}

TEST(a_keep_replaces_one_that_lost_a_part)
{
    sequence_site *s = site_start(16 * MIB, 16 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = site_sequence(s, &options), *again = NULL;
    const kvt_key key = support_key(5), foreign = support_key(6);
    assert_ok(kvt_sparse_keep(sequence, &key));
    const kvt_key part = site_part_key(s->store, &key, 2);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_EXISTS);
    assert_ok(kvt_store_delete(s->store, &part));
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &again, NULL, 0), KVT_MISS);
    assert_ok(kvt_sparse_keep(sequence, &key));
    assert_ok(kvt_sparse_open_kept(s->store, &options, &key, &again, NULL, 0));
    kvt_sparse_close(again);
    /* Somebody else's entry is left alone. */
    assert_ok(support_put(s->store, 6));
    assert_int_equal(kvt_sparse_keep(sequence, &foreign), KVT_EXISTS);
    assert_ok(support_get(s->store, 6, NULL));
    kvt_sparse_close(sequence);
}

TEST(a_keep_reads_copies)
{
    const tiers_fault_action actions[] = {TIERS_FAULT_FLIP, TIERS_FAULT_FAIL};
    for (int action = 0; action < 2; action++) {
        for (int copies = 0; copies < 2; copies++) {
            float rows[16 * SITE_QUERY];
            sequence_site *s = site_start(16 * MIB, 16 * MIB);
            kvt_sparse_options options = site_options();
            options.replica_share = copies ? 1 : 0;
            kvt_sparse *sequence = site_sequence(s, &options), *again = NULL;
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
                for (uint32_t i = 0; i < 16; i++)
                    site_query(s, layer, i, rows + i * SITE_QUERY);
                assert_ok(kvt_sparse_observe(sequence, layer, rows, 16));
            }
            const tiers_fault_rule rule = {.action = actions[action],
                                           .kinds = TIERS_FAULT_READS,
                                           .status = KVT_E_IO,
                                           .flip_bit = 12345};
            assert_ok(tiers_fault_add(s->drives[1].device, &rule));
            const kvt_key key = support_key(5);
            assert_int_equal(kvt_sparse_keep(sequence, &key), copies ? KVT_OK : KVT_E_IO);
            tiers_fault_clear(s->drives[1].device);
            const kvt_status opened =
                kvt_sparse_open_kept(s->store, &options, &key, &again, NULL, 0);
            assert_int_equal(opened, copies ? KVT_OK : KVT_MISS);
            kvt_sparse_close(again);
            kvt_sparse_close(sequence);
            site_stop(s);
        }
    }
}

/* ---- keeps ---- */

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
        sequence_site *s = site_start(16 * MIB, 12 * MIB);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1), first = support_key(2);
        const uint32_t whole = SITE_LAYERS * SITE_HEADS + 1;
        keeper keepers[2];
        pthread_barrier_t barrier;
        options.window_bytes[KVT_TIER_DRAM] = 0;
        if (origin) site_keep(s, &options, &first);
        for (uint32_t i = 0; i < 2; i++) {
            keepers[i].sequence =
                origin ? site_open_kept(s, &options, &first) : site_sequence(s, &options);
            keepers[i].barrier = &barrier;
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
                assert_ok(
                    kvt_sparse_append(keepers[i].sequence, layer, s->k[layer], s->v[layer], 1 + i));
        }
        for (uint32_t round = 0; round < 12; round++) {
            pthread_t threads[2];
            assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
            /* Now and then in the place of one that nobody can open. */
            if (round % 3 == 1) {
                assert_ok(kvt_sparse_keep(keepers[0].sequence, &key));
                const kvt_key part = site_part_key(s->store, &key, 1);
                assert_ok(kvt_store_delete(s->store, &part));
            }
            for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, keep_at_once, &keepers[i]), 0);
            for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
            (void)pthread_barrier_destroy(&barrier);
            const uint32_t winner = keepers[0].status == KVT_OK ? 0 : 1;
            assert_ok(keepers[winner].status);
            assert_int_equal(keepers[1 - winner].status, KVT_EXISTS);
            assert_int_equal(support_stats(s->store).policy.entries, whole * (origin ? 2 : 1));
            kvt_sparse_close(site_open_kept(s, &options, &key));
            assert_ok(kvt_sparse_delete(s->store, &key));
            assert_int_equal(support_stats(s->store).policy.entries, origin ? whole : 0);
        }
        for (uint32_t i = 0; i < 2; i++)
            kvt_sparse_close(keepers[i].sequence);
        site_check_unheld(s);
        site_stop(s);
    }
}

/* A lease holds the head of one that nobody can open: it is not replaced, and nothing is left. */
TEST(a_leased_head_is_not_replaced)
{
    sequence_site *s = site_start(16 * MIB, 12 * MIB);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    kvt_sparse *sequence = site_sequence(s, &options);
    uint64_t lease;
    assert_ok(kvt_sparse_keep(sequence, &key));
    const kvt_key part = site_part_key(s->store, &key, 1);
    assert_ok(kvt_lease_begin(s->store, NULL, &key, 1, base_clock_ns() + UINT64_C(60000000000),
                              NULL, &lease));
    assert_ok(kvt_store_delete(s->store, &part));
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_EXISTS);
    assert_int_equal(support_stats(s->store).policy.entries, 1);
    assert_ok(kvt_lease_end(s->store, lease));
    assert_ok(kvt_sparse_keep(sequence, &key));
    kvt_sparse_close(sequence);
    kvt_sparse_close(site_open_kept(s, &options, &key));
}

/* ---- crashes ---- */

static void *delete_kept(void *context)
{
    sequence_site *s = context;
    const kvt_key key = support_key(1);
    (void)!kvt_sparse_delete(s->store, &key);
    (void)!kvt_store_flush(s->store);
    return NULL;
}

/* A site whose drives and catalog outlive a process; the store is closed. */
static sequence_site *start_durable(char folder[64])
{
    static char paths[SITE_DRIVES][96], catalog[96];
    support_make_folder(folder, 64);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    site_stop(s);
    s->options.durability.catalog_path = catalog;
    for (int i = 0; i < SITE_DRIVES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/drive%d", folder, i);
        s->drives[i].path = paths[i];
    }
    return s;
}

/* Opens the store of a child that has killed itself. */
static void open_after(sequence_site *s, pid_t child)
{
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_ok(site_open_store(s));
    site_check_unheld(s);
}

/* The child dies somewhere in a delete, with a sequence open on what is deleted: the kept sequence
 * is whole, or a miss that another delete ends. */
TEST(a_crash_leaves_all_or_a_miss)
{
    static const useconds_t pauses[] = {0, 0, 200, 1000, 5000}; /* of the first, before it */
    uint32_t whole = 0;
    for (uint32_t round = 0; round < 5; round++) {
        char folder[64];
        sequence_site *s = start_durable(folder);
        kvt_sparse_options options = site_options();
        options.layout.tokens = 1000;
        const kvt_key key = support_key(1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            pthread_t thread;
            if (site_open_store(s) != KVT_OK) _exit(1);
            site_keep(s, &options, &key);
            if (kvt_store_persist(s->store, KVT_NO_DEADLINE, NULL) != KVT_OK) _exit(2);
            if (site_open_kept(s, &options, &key) == NULL) _exit(3);
            if (round > 0 && pthread_create(&thread, NULL, delete_kept, s) != 0) _exit(4);
            if (pauses[round] > 0) usleep(pauses[round]);
            kill(getpid(), SIGKILL);
        }
        open_after(s, child);
        kvt_sparse *sequence = NULL;
        const kvt_status status =
            kvt_sparse_open_kept(s->store, &options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status == KVT_OK) whole++;
        kvt_sparse_close(sequence);
        const kvt_status deleted = kvt_sparse_delete(s->store, &key);
        assert_true(deleted == KVT_OK || (deleted == KVT_MISS && status == KVT_MISS));
        assert_int_equal(support_stats(s->store).policy.entries, 0);
        site_stop(s);
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
    (void)!kvt_store_persist(self->s->store, KVT_NO_DEADLINE, NULL);
    return NULL;
}

/* The child dies somewhere in a keep: a whole sequence, or a miss under a key that the next keep
 * takes. It draws the ids that the child's sequences had, and has other tokens. */
TEST(a_crash_in_a_keep_leaves_all_or_a_miss)
{
    static const useconds_t pauses[] = {0, 300, 1000, 3000, 10000, 300000}; /* as above */
    const uint32_t parts = SITE_LAYERS * SITE_HEADS;
    uint32_t missed = 0;
    for (uint32_t round = 0; round < 6; round++) {
        char folder[64];
        sequence_site *s = start_durable(folder);
        kvt_sparse_options options = site_options();
        options.layout.tokens = 1000;
        const kvt_key key = support_key(1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            pthread_t thread;
            if (site_open_store(s) != KVT_OK) _exit(1);
            durable_keep keeping = {.s = s, .sequence = site_sequence(s, &options)};
            if (round > 0 && pthread_create(&thread, NULL, keep_durably, &keeping) != 0) _exit(2);
            if (pauses[round] > 0) usleep(pauses[round]);
            kill(getpid(), SIGKILL);
        }
        open_after(s, child);
        kvt_sparse *sequence = NULL;
        const kvt_status status =
            kvt_sparse_open_kept(s->store, &options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_MISS);
        kvt_sparse_close(sequence);
        if (status == KVT_MISS) {
            missed++;
            sequence = site_sequence(s, &options);
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
                assert_ok(kvt_sparse_append(sequence, layer, s->k[layer], s->v[layer], 3));
            assert_ok(kvt_sparse_keep(sequence, &key));
            kvt_sparse_close(sequence);
            kvt_sparse_close(site_open_kept(s, &options, &key));
        }
        assert_ok(kvt_sparse_delete(s->store, &key));
        /* What no head names is at most what one keep stores. */
        assert_true(support_stats(s->store).policy.entries <= (status == KVT_OK ? 0 : parts));
        site_stop(s);
        support_remove_folder(folder);
    }
    assert_true(missed > 0);
}

#define RAW_ALONE (1u << KVT_SPARSE_RAW)

TEST(a_model_that_selects_has_options_of_its_own)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse *sequence = NULL;
    char message[256];
    static const struct {
        bool given;
        uint8_t sides, dtype;
        uint16_t head_dim;
        uint32_t variants, key_bytes;
        kvt_status wanted;
    } rows[] = {
        {true, 0, KVT_DTYPE_BF16, 64, RAW_ALONE | 1u << KVT_SPARSE_BITS_4, 0, KVT_E_ARGUMENT},
        {true, KVT_SIDES_V, KVT_DTYPE_BF16, 64, RAW_ALONE, 0, KVT_E_ARGUMENT},
        {true, 0, KVT_DTYPE_BF16, 64, RAW_ALONE, 65537, KVT_E_ARGUMENT},
        {true, 0, KVT_DTYPE_OPAQUE, 64, RAW_ALONE, 0, KVT_E_UNSUPPORTED},
        {true, 0, KVT_DTYPE_BF16, 1032, RAW_ALONE, 0, KVT_E_UNSUPPORTED},
        {true, 0, KVT_DTYPE_BF16, 60, RAW_ALONE, 0, KVT_E_UNSUPPORTED},
        {false, 0, KVT_DTYPE_BF16, 64, RAW_ALONE, 16, KVT_E_ARGUMENT},
        {false, 0, KVT_DTYPE_FP8, 64, RAW_ALONE, 0, KVT_E_UNSUPPORTED},
        {false, 0, KVT_DTYPE_BF16, 520, RAW_ALONE, 0, KVT_E_UNSUPPORTED},
        {false, KVT_SIDES_ONE, KVT_DTYPE_BF16, 64, RAW_ALONE, 0, KVT_E_ARGUMENT},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvt_sparse_options options = site_options();
        options.given = rows[i].given;
        options.layout.sides = rows[i].sides;
        options.layout.dtype = rows[i].dtype;
        options.layout.head_dim = rows[i].head_dim;
        options.variants = rows[i].variants;
        options.key_bytes = rows[i].key_bytes;
        const kvt_status status =
            kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message);
        if (status != rows[i].wanted || message[0] == '\0') fail_msg("row %u: %d", i, status);
    }
    site_check_unheld(s);
}
