/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_kept.c - sequences that read the pages of a kept sequence where its entries lie: in
 * memory, on one drive, across drives; beside each other, under pressure, and while the kept
 * sequence is deleted or a drive goes. And the end of kept sequences, by a call and by a crash in
 * its middle.
 */
#include "sequence_site.h"

#include <kvterrace/lookup.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, STEPS = 8, PASSING_BYTES = 256 << 10 };

static kvt_sparse_stats stats_of(const kvt_sparse *sequence)
{
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvt_sparse_stats_get(sequence, &stats), KVT_OK);
    return stats;
}

/* As site_start, with a stripe unit, and memory that is lent or not. */
static void start(sequence_site *s, uint32_t unit_bytes, support_fault *dram)
{
    static kvt_device_config memory;
    site_start(s, 16 * MIB, 12 * MIB);
    kvt_close(s->store);
    s->options.tiers[KVT_TIER_SSD].unit_bytes = unit_bytes;
    if (dram != NULL) {
        *dram = (support_fault){.capacity_bytes = 12 * MIB};
        memory = support_fault_config(dram, "memory");
        s->options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.devices = &memory, .device_count = 1};
    }
    assert_int_equal(kvt_open(&s->options, &s->store, NULL, 0), KVT_OK);
}

static kvt_key passing_key(uint32_t number)
{
    return support_key(10000 + number);
}

/* Puts other entries; those that are oldest leave memory for the drives, then the store. */
static void put_passing(sequence_site *s, uint32_t from, uint32_t to)
{
    static char bytes[PASSING_BYTES];
    for (uint32_t i = from; i < to; i++) {
        const kvt_entry entry = {
            .struct_size = sizeof entry,
            .key = passing_key(i),
            .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof bytes},
            .recompute_seconds = 1};
        const kvt_status status = kvt_put(s->store, &entry, bytes, sizeof bytes);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
}

static void delete_passing(sequence_site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const kvt_key key = passing_key(i);
        (void)!kvt_delete(s->store, &key);
    }
}

/* All that is in memory goes down to the drives. */
static void push_down(sequence_site *s)
{
    put_passing(s, 0, 12 * MIB / PASSING_BYTES);
    delete_passing(s, 0, 12 * MIB / PASSING_BYTES);
}

/* Keeps a sequence of the whole context under a key, and ends it. */
static void keep_one(sequence_site *s, const kvt_sparse_options *options, const kvt_key *key)
{
    kvt_sparse *sequence = site_sequence(s, options);
    assert_int_equal(kvt_sparse_keep(sequence, key), KVT_OK);
    kvt_sparse_close(sequence);
}

static kvt_sparse *open_one(sequence_site *s, const kvt_sparse_options *options, const kvt_key *key)
{
    char message[256] = "";
    kvt_sparse *sequence = NULL;
    const kvt_status status =
        kvt_sparse_open_kept(s->store, options, key, &sequence, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %d, %s", status, message);
    return sequence;
}

/* Errors of some steps against exact attention; no page may be lost. */
static void run_steps(sequence_site *s, kvt_sparse *sequence, double *errors)
{
    const uint64_t random = s->random;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        uint32_t lost;
        site_query(s, i % SITE_LAYERS, i, queries);
        errors[i] = site_step(s, sequence, i % SITE_LAYERS, queries, NULL, &lost);
        assert_int_equal(lost, 0);
    }
    s->random = random;
}

/* The same steps give the same pages. */
static void check_steps(sequence_site *s, kvt_sparse *sequence, const double *errors)
{
    double own[STEPS];
    run_steps(s, sequence, own);
    for (uint32_t i = 0; i < STEPS; i++)
        assert_true(own[i] == errors[i]);
}

static void expect_errors(sequence_site *s, const kvt_sparse_options *options, double *errors)
{
    kvt_sparse *sequence = site_sequence(s, options);
    run_steps(s, sequence, errors);
    kvt_sparse_close(sequence);
}

static void warm(sequence_site *s, kvt_sparse *sequence)
{
    float rows[16 * SITE_QUERY];
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 16; i++)
            site_query(s, layer, i, rows + i * SITE_QUERY);
        assert_int_equal(kvt_sparse_observe(sequence, layer, rows, 16), KVT_OK);
    }
}

static void check_nothing_is_held(sequence_site *s)
{
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place_entries, 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        assert_int_equal(stats.in_place_bytes[tier] + stats.lent_bytes[tier], 0);
}

/* ---- where entries lie ---- */

static void test_pages_on_drives_are_read_in_place(void **state)
{
    (void)state;
    /* Slots of 24 KiB: whole in a unit now and then, and each of them over several drives. */
    const uint32_t units[] = {256 << 10, 4096, 16384, 24576};
    for (int i = 0; i < 4; i++) {
        sequence_site s;
        start(&s, units[i], NULL);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        options.replica_share = 0;
        options.tokens_max = SITE_TOKENS;
        options.window_bytes[KVT_TIER_DRAM] = 0; /* so that the same steps read the same again */
        expect_errors(&s, &options, errors);
        keep_one(&s, &options, &key);
        push_down(&s);
        const kvt_store_stats before = support_stats(s.store);
        kvt_sparse *one = open_one(&s, &options, &key), *two = open_one(&s, &options, &key);
        const kvt_store_stats during = support_stats(s.store);
        const kvt_sparse_stats stats = stats_of(one);
        assert_true(stats.pages > 100 && stats.in_place_pages == stats.pages);
        assert_int_equal(during.lent_bytes[KVT_TIER_SSD], 0);
        assert_int_equal(during.tiers[KVT_TIER_SSD].used_bytes,
                         before.tiers[KVT_TIER_SSD].used_bytes);
        assert_int_equal(during.in_place_entries, SITE_LAYERS * SITE_HEADS);
        assert_true(during.in_place_bytes[KVT_TIER_SSD] > stats.page_bytes);
        check_steps(&s, one, errors);
        check_steps(&s, two, errors);
        kvt_sparse_close(one);
        check_steps(&s, two, errors);
        kvt_sparse_close(two);
        check_nothing_is_held(&s);
        assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
        assert_int_equal(support_stats(s.store).tiers[KVT_TIER_SSD].used_bytes, 0);
        site_stop(&s);
    }
}

static void test_pages_in_memory_are_read_in_place(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(&s, &options, errors);
    keep_one(&s, &options, &key);
    kvt_sparse *sequence = open_one(&s, &options, &key);
    assert_int_equal(stats_of(sequence).in_place_pages, stats_of(sequence).pages);
    assert_true(support_stats(s.store).in_place_bytes[KVT_TIER_DRAM] > 4 * MIB);
    check_steps(&s, sequence, errors);
    assert_int_equal(stats_of(sequence).reads, 0); /* no drive was asked */
    warm(&s, sequence);
    assert_int_equal(stats_of(sequence).copied_pages, 0);
    float queries[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    uint32_t read = 0;
    site_query(&s, 0, 33, queries);
    assert_int_equal(kvt_sparse_hint(sequence, 0, queries), KVT_OK);
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_OK);
    assert_int_equal(kvt_sparse_wait(sequence, step, 0, &pages), KVT_OK); /* nothing to wait for */
    for (uint32_t h = 0; h < SITE_HEADS; h++)
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++)
            read += pages->heads[h].pages[i].tier == KVT_TIER_DRAM;
    assert_true(read > 0 && pages->read_bytes == 0);
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
    check_nothing_is_held(&s);
    site_stop(&s);
}

/* Memory that is not lent is read by nobody in place; what the tier's half does not hold is not
 * either. The pages are copied then, and the second sequence copies them again. */
static void test_pages_that_cannot_be_read_in_place_are_copied(void **state)
{
    (void)state;
    for (int lent = 0; lent < 2; lent++) {
        sequence_site s;
        support_fault dram;
        start(&s, 0, lent ? NULL : &dram);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        options.replica_share = 0;
        options.tokens_max = SITE_TOKENS;
        /* The window leaves memory of which half holds two of four units. */
        options.window_bytes[KVT_TIER_DRAM] = lent ? 6 * MIB : 512 << 10;
        expect_errors(&s, &options, errors);
        keep_one(&s, &options, &key);
        kvt_sparse *sequence = open_one(&s, &options, &key);
        const kvt_sparse_stats stats = stats_of(sequence);
        const uint64_t slot = stats.page_bytes / stats.pages;
        assert_true(lent ? stats.in_place_pages > 0 : stats.in_place_pages == 0);
        assert_true(stats.in_place_pages < stats.pages);
        assert_int_equal(support_stats(s.store).lent_bytes[KVT_TIER_SSD],
                         (stats.pages - stats.in_place_pages) * slot);
        check_steps(&s, sequence, errors);
        kvt_sparse_close(sequence);
        check_nothing_is_held(&s);
        site_stop(&s);
    }
}

/* The bytes that copying lacks are named. */
static void test_a_copy_without_room_is_refused(void **state)
{
    (void)state;
    sequence_site s;
    support_fault dram;
    start(&s, 0, &dram);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    char message[256] = "";
    kvt_sparse *sequence = NULL;
    keep_one(&s, &options, &key);
    for (uint32_t i = 0; i < SITE_DRIVES - 1; i++)
        tiers_fault_set_gone(s.drives[i].device, true);
    options.replica_share = 1;
    kvt_sparse *all[8] = {NULL};
    kvt_status status = KVT_OK;
    uint32_t count = 0;
    while (status == KVT_OK && count < 8) {
        status = kvt_sparse_open_kept(s.store, &options, &key, &sequence, message, sizeof message);
        if (status == KVT_OK) all[count++] = sequence;
    }
    assert_true(status == KVT_E_SPACE || status == KVT_E_IO || status == KVT_E_GONE);
    assert_true(message[0] != '\0');
    while (count > 0)
        kvt_sparse_close(all[--count]);
    check_nothing_is_held(&s);
    site_stop(&s);
}

/* ---- what goes on beside it ---- */

static void test_open_pages_are_not_evicted(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(&s, &options, errors);
    keep_one(&s, &options, &key);
    push_down(&s);
    kvt_sparse *sequence = open_one(&s, &options, &key), *more = NULL;
    put_passing(&s, 0, 400); /* 100 MiB through 76 */
    check_steps(&s, sequence, errors);
    assert_int_equal(stats_of(sequence).in_place_pages, stats_of(sequence).pages);
    delete_passing(&s, 0, 400); /* the window needs free memory */
    /* The head entry is small and not pinned: without it nobody else opens the rest. */
    const kvt_status again = kvt_sparse_open_kept(s.store, &options, &key, &more, NULL, 0);
    assert_true(again == KVT_OK || again == KVT_MISS);
    kvt_sparse_close(more);
    kvt_sparse_close(sequence);
    check_nothing_is_held(&s);
    put_passing(&s, 0, 400);
    delete_passing(&s, 0, 400);
    assert_int_equal(kvt_sparse_open_kept(s.store, &options, &key, &more, NULL, 0), KVT_MISS);
    site_stop(&s);
}

static void test_a_sequence_outlives_what_is_kept(void **state)
{
    (void)state;
    for (int memory = 0; memory < 2; memory++) {
        sequence_site s;
        start(&s, 0, NULL);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        expect_errors(&s, &options, errors);
        keep_one(&s, &options, &key);
        if (!memory) push_down(&s);
        kvt_sparse *one = open_one(&s, &options, &key), *two = open_one(&s, &options, &key);
        assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
        assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_MISS);
        const kvt_tier tier = memory ? KVT_TIER_DRAM : KVT_TIER_SSD;
        assert_true(support_stats(s.store).lent_bytes[tier] > 4 * MIB);
        check_steps(&s, one, errors);
        /* One that still runs is kept again under the key, from pages whose entries are gone. */
        assert_int_equal(kvt_sparse_keep(one, &key), KVT_OK);
        kvt_sparse_close(one);
        kvt_sparse *three = open_one(&s, &options, &key);
        check_steps(&s, two, errors);
        check_steps(&s, three, errors);
        kvt_sparse_close(three);
        kvt_sparse_close(two);
        check_nothing_is_held(&s);
        assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
        const kvt_store_stats stats = support_stats(s.store);
        assert_int_equal(stats.tiers[KVT_TIER_SSD].used_bytes, 0);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].used_bytes, 0);
        site_stop(&s);
    }
}

/* Copies and appended pages are the sequence's own, beside pages in place. */
static void test_copies_and_appended_pages_lie_beside(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1), longer = support_key(2);
    options.replica_share = 1;
    options.join_tokens = 16;
    keep_one(&s, &options, &key);
    push_down(&s);
    kvt_sparse *sequence = open_one(&s, &options, &key);
    warm(&s, sequence);
    assert_int_equal(stats_of(sequence).copied_pages, stats_of(sequence).pages);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(kvt_sparse_append(sequence, layer,
                                               s.k[layer] + (size_t)i * 20 * SITE_ROW,
                                               s.v[layer] + (size_t)i * 20 * SITE_ROW, 20),
                             KVT_OK);
    for (uint32_t i = 0; i < 200 && stats_of(sequence).appended_pages == 0; i++) {
        usleep(1000); /* pages are written behind */
        assert_int_equal(kvt_sparse_append(sequence, 0, s.k[0], s.v[0], 1), KVT_OK);
    }
    assert_true(stats_of(sequence).appended_pages > 0);
    /* With a copy of every page a drive may lie. */
    const tiers_fault_rule lie = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 12345};
    assert_int_equal(tiers_fault_add(s.drives[1].device, &lie), KVT_OK);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        site_query(&s, i % SITE_LAYERS, i + 7, queries);
        (void)site_step(&s, sequence, i % SITE_LAYERS, queries, NULL, &lost);
    }
    tiers_fault_clear(s.drives[1].device);
    assert_true(stats_of(sequence).checksum_failures > 0);
    /* What it has become is kept as any. */
    assert_int_equal(kvt_sparse_keep(sequence, &longer), KVT_OK);
    kvt_sparse *second = open_one(&s, &options, &longer);
    kvt_sparse_close(second);
    kvt_sparse_close(sequence);
    check_nothing_is_held(&s);
    site_stop(&s);
}

static void test_a_drive_that_goes_loses_its_pages(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    options.window_bytes[KVT_TIER_DRAM] = 0;
    options.replica_share = 0;
    keep_one(&s, &options, &key);
    push_down(&s);
    kvt_sparse *sequence = open_one(&s, &options, &key);
    tiers_fault_set_gone(s.drives[2].device, true);
    uint32_t all = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        uint32_t lost;
        site_query(&s, i % SITE_LAYERS, i, queries);
        assert_true(site_step(&s, sequence, i % SITE_LAYERS, queries, NULL, &lost) < 0.9);
        all += lost;
    }
    assert_true(all > 0 && stats_of(sequence).lost_pages == all);
    assert_int_equal(stats_of(sequence).checksum_failures, 0);
    kvt_sparse *none = NULL;
    assert_true(kvt_sparse_open_kept(s.store, &options, &key, &none, NULL, 0) < 0 || none == NULL);
    kvt_sparse_close(sequence);
    check_nothing_is_held(&s);
    site_stop(&s);
}

typedef struct opener {
    sequence_site *s;
    const kvt_sparse_options *options;
    const double *errors;
    uint32_t opened;
} opener;

static void *open_and_close(void *context)
{
    opener *self = context;
    const kvt_key key = support_key(1);
    for (uint32_t i = 0; i < 6; i++) {
        kvt_sparse *sequence = NULL;
        const kvt_status status =
            kvt_sparse_open_kept(self->s->store, self->options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status != KVT_OK) continue;
        self->opened++;
        sequence_site own = *self->s; /* the random numbers are the thread's */
        check_steps(&own, sequence, self->errors);
        kvt_sparse_close(sequence);
    }
    return NULL;
}

static void test_several_open_it_at_once(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(&s, &options, errors);
    keep_one(&s, &options, &key);
    push_down(&s);
    opener openers[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        openers[i] = (opener){.s = &s, .options = &options, .errors = errors};
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, &openers[i]), 0);
    }
    usleep(20000);
    assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
    uint32_t opened = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        opened += openers[i].opened;
    }
    assert_true(opened > 0);
    check_nothing_is_held(&s);
    assert_int_equal(support_stats(s.store).tiers[KVT_TIER_SSD].used_bytes, 0);
    site_stop(&s);
}

/* ---- delete ---- */

static void test_a_delete_takes_every_part(void **state)
{
    (void)state;
    sequence_site s;
    start(&s, 0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1), other = support_key(2), foreign = support_key(3);
    keep_one(&s, &options, &key);
    keep_one(&s, &options, &other);
    const uint64_t both = support_stats(s.store).policy.entries;
    assert_int_equal(both, 2 * (SITE_LAYERS * SITE_HEADS + 1));
    assert_int_equal(kvt_sparse_delete(s.store, &key), KVT_OK);
    assert_int_equal(support_stats(s.store).policy.entries, both / 2);
    kvt_sparse_close(open_one(&s, &options, &other));
    /* Something else under the key stays. */
    assert_int_equal(support_put(s.store, 3), KVT_OK);
    assert_int_equal(kvt_sparse_delete(s.store, &foreign), KVT_E_MISMATCH);
    assert_int_equal(support_get(s.store, 3, NULL), KVT_OK);
    const kvt_key opaque = passing_key(0);
    put_passing(&s, 0, 1);
    assert_int_equal(kvt_sparse_delete(s.store, &opaque), KVT_E_CORRUPT);
    assert_int_equal(kvt_exists(s.store, &opaque), KVT_OK);
    /* A lease holds the head: the rest is a miss, and goes with the next call. */
    uint64_t lease;
    assert_int_equal(
        kvt_lease(s.store, NULL, &other, 1, base_clock_ns() + UINT64_C(60000000000), NULL, &lease),
        KVT_OK);
    assert_int_equal(kvt_sparse_delete(s.store, &other), KVT_BUSY);
    kvt_sparse *none = NULL;
    assert_int_equal(kvt_sparse_open_kept(s.store, &options, &other, &none, NULL, 0), KVT_MISS);
    assert_int_equal(kvt_lease_end(s.store, lease), KVT_OK);
    assert_int_equal(kvt_sparse_delete(s.store, &other), KVT_OK);
    assert_int_equal(kvt_sparse_delete(s.store, &other), KVT_MISS);
    assert_int_equal(kvt_sparse_delete(NULL, &other), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_delete(s.store, NULL), KVT_E_ARGUMENT);
    assert_int_equal(support_stats(s.store).policy.entries, 2);
    site_stop(&s);
}

static void *delete_kept(void *context)
{
    sequence_site *s = context;
    const kvt_key key = support_key(1);
    (void)!kvt_sparse_delete(s->store, &key);
    (void)!kvt_flush(s->store);
    return NULL;
}

/* The child dies somewhere in a delete, with a sequence open on what is deleted: the kept sequence
 * is whole, or a miss that another delete ends. */
static void test_a_crash_leaves_all_or_a_miss(void **state)
{
    (void)state;
    static const useconds_t pauses[] = {0, 0, 200, 1000, 5000};
    uint32_t whole = 0;
    for (uint32_t round = 0; round < 5; round++) {
        sequence_site s;
        char folder[64], paths[SITE_DRIVES][96], catalog[96];
        support_make_folder(folder, sizeof folder);
        snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
        site_start(&s, 16 * MIB, 8 * MIB);
        kvt_close(s.store);
        s.options.catalog_path = catalog;
        for (int i = 0; i < SITE_DRIVES; i++) {
            snprintf(paths[i], sizeof paths[i], "%s/drive%d", folder, i);
            s.drives[i] = (support_fault){.capacity_bytes = 16 * MIB, .path = paths[i]};
        }
        kvt_sparse_options options = site_options();
        options.layout.tokens = 1000;
        const kvt_key key = support_key(1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            pthread_t thread;
            if (kvt_open(&s.options, &s.store, NULL, 0) != KVT_OK) _exit(1);
            keep_one(&s, &options, &key);
            if (kvt_persist(s.store, KVT_NO_DEADLINE, NULL) != KVT_OK) _exit(2);
            if (open_one(&s, &options, &key) == NULL) _exit(3);
            if (pthread_create(&thread, NULL, delete_kept, &s) != 0) _exit(4);
            if (round > 0) usleep(pauses[round]);
            kill(getpid(), SIGKILL);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        assert_int_equal(kvt_open(&s.options, &s.store, NULL, 0), KVT_OK);
        check_nothing_is_held(&s);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_on_drives_are_read_in_place),
        cmocka_unit_test(test_pages_in_memory_are_read_in_place),
        cmocka_unit_test(test_pages_that_cannot_be_read_in_place_are_copied),
        cmocka_unit_test(test_a_copy_without_room_is_refused),
        cmocka_unit_test(test_open_pages_are_not_evicted),
        cmocka_unit_test(test_a_sequence_outlives_what_is_kept),
        cmocka_unit_test(test_copies_and_appended_pages_lie_beside),
        cmocka_unit_test(test_a_drive_that_goes_loses_its_pages),
        cmocka_unit_test(test_several_open_it_at_once),
        cmocka_unit_test(test_a_delete_takes_every_part),
        cmocka_unit_test(test_a_crash_leaves_all_or_a_miss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
