/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_kept.c - sequences that read the pages of a kept sequence where its entries lie: in
 * memory, on one drive, across drives; beside each other, under pressure, and while the kept
 * sequence is deleted or a drive goes. Kept sequences of forged bytes, of another shape, and their
 * end by a call.
 */
#include "sequence_site.h"
#include "sparse/kept.h"
#include "sparse/page_table.h"

#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <pthread.h>
#include <unistd.h>
#include <xxhash.h>

enum { MIB = 1 << 20, STEPS = 8, PASSING_BYTES = 256 << 10 };

/* As site_start, with a stripe unit, and memory that is lent or not. */
static sequence_site *start(uint32_t unit_bytes, support_fault *dram)
{
    static kvt_device_config memory;
    sequence_site *s = site_start(16 * MIB, 12 * MIB);
    kvt_store_close(s->store);
    s->options.tiers[KVT_TIER_SSD].unit_bytes = unit_bytes;
    if (dram != NULL) {
        *dram = (support_fault){.capacity_bytes = 12 * MIB};
        memory = support_fault_config(dram, "memory");
        s->options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.devices = &memory, .device_count = 1};
    }
    assert_ok(site_open_store(s));
    return s;
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
        const kvt_status status = kvt_store_put(s->store, &entry, KVT_PACKED(bytes, sizeof bytes));
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
}

static void delete_passing(sequence_site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const kvt_key key = passing_key(i);
        (void)!kvt_store_delete(s->store, &key);
    }
}

/* All that is in memory goes down to the drives. */
static void push_down(sequence_site *s)
{
    put_passing(s, 0, 12 * MIB / PASSING_BYTES);
    delete_passing(s, 0, 12 * MIB / PASSING_BYTES);
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

/* ---- where entries lie ---- */

TEST(pages_on_drives_are_read_in_place)
{
    /* Slots of 24 KiB: whole in a unit now and then, and each of them over several drives. */
    const uint32_t units[] = {256 << 10, 4096, 16384, 24576};
    for (int i = 0; i < 4; i++) {
        sequence_site *s = start(units[i], NULL);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        options.replica_share = 0;
        options.tokens_max = SITE_TOKENS;
        options.window_bytes[KVT_TIER_DRAM] = 0; /* so that the same steps read the same again */
        expect_errors(s, &options, errors);
        site_keep(s, &options, &key);
        push_down(s);
        const kvt_store_stats before = support_stats(s->store);
        kvt_sparse *one = site_open_kept(s, &options, &key),
                   *two = site_open_kept(s, &options, &key);
        const kvt_store_stats during = support_stats(s->store);
        const kvt_sparse_stats stats = site_stats(one);
        assert_true(stats.pages > 100 && stats.in_place_pages == stats.pages);
        assert_int_equal(during.lent_bytes[KVT_TIER_SSD], 0);
        assert_int_equal(during.tiers[KVT_TIER_SSD].used_bytes,
                         before.tiers[KVT_TIER_SSD].used_bytes);
        assert_int_equal(during.in_place.entries, SITE_LAYERS * SITE_HEADS);
        assert_true(during.in_place.bytes[KVT_TIER_SSD] > stats.page_bytes);
        check_steps(s, one, errors);
        check_steps(s, two, errors);
        kvt_sparse_close(one);
        check_steps(s, two, errors);
        kvt_sparse_close(two);
        site_check_unheld(s);
        assert_ok(kvt_sparse_delete(s->store, &key));
        assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
        site_stop(s);
    }
}

TEST(pages_in_memory_are_read_in_place)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(s, &options, errors);
    site_keep(s, &options, &key);
    kvt_sparse *sequence = site_open_kept(s, &options, &key);
    assert_int_equal(site_stats(sequence).in_place_pages, site_stats(sequence).pages);
    assert_true(support_stats(s->store).in_place.bytes[KVT_TIER_DRAM] > 4 * MIB);
    check_steps(s, sequence, errors);
    assert_int_equal(site_stats(sequence).reads, 0); /* no drive was asked */
    site_warm(s, sequence);
    assert_int_equal(site_stats(sequence).copied_pages, 0);
    float queries[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    uint32_t read = 0;
    site_query(s, 0, 33, queries);
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_ok(kvt_sparse_wait(sequence, step, 0, &pages)); /* nothing to wait for */
    for (uint32_t h = 0; h < SITE_HEADS; h++)
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++)
            read += pages->heads[h].pages[i].tier == KVT_TIER_DRAM;
    assert_true(read > 0 && pages->read_bytes == 0);
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
    site_check_unheld(s);
}

/* Memory that is not lent is read by nobody in place; what the tier's half does not hold is not
 * either. The pages are copied then, and the second sequence copies them again. */
TEST(pages_that_cannot_be_read_in_place_are_copied)
{
    for (int lent = 0; lent < 2; lent++) {
        support_fault dram;
        sequence_site *s = start(0, lent ? NULL : &dram);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        options.replica_share = 0;
        options.tokens_max = SITE_TOKENS;
        /* The window leaves memory of which half holds two of four units. */
        options.window_bytes[KVT_TIER_DRAM] = lent ? 6 * MIB : 512 << 10;
        expect_errors(s, &options, errors);
        site_keep(s, &options, &key);
        kvt_sparse *sequence = site_open_kept(s, &options, &key);
        const kvt_sparse_stats stats = site_stats(sequence);
        const uint64_t slot = stats.page_bytes / stats.pages;
        assert_true(lent ? stats.in_place_pages > 0 : stats.in_place_pages == 0);
        assert_true(stats.in_place_pages < stats.pages);
        assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD],
                         (stats.pages - stats.in_place_pages) * slot);
        check_steps(s, sequence, errors);
        kvt_sparse_close(sequence);
        site_check_unheld(s);
        site_stop(s);
    }
}

/* The bytes that copying lacks are named. */
TEST(a_copy_without_room_is_refused)
{
    support_fault dram;
    sequence_site *s = start(0, &dram);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    char message[256] = "";
    kvt_sparse *sequence = NULL;
    site_keep(s, &options, &key);
    for (uint32_t i = 0; i < SITE_DRIVES - 1; i++)
        tiers_fault_set_gone(s->drives[i].device, true);
    options.replica_share = 1;
    kvt_sparse *all[8] = {NULL};
    kvt_status status = KVT_OK;
    uint32_t count = 0;
    while (status == KVT_OK && count < 8) {
        status = kvt_sparse_open_kept(s->store, &options, &key, &sequence, message, sizeof message);
        if (status == KVT_OK) all[count++] = sequence;
    }
    assert_true(status == KVT_E_SPACE || status == KVT_E_IO || status == KVT_E_GONE);
    assert_true(message[0] != '\0');
    while (count > 0)
        kvt_sparse_close(all[--count]);
    site_check_unheld(s);
}

/* ---- what goes on beside it ---- */

TEST(open_pages_are_not_evicted)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(s, &options, errors);
    site_keep(s, &options, &key);
    push_down(s);
    kvt_sparse *sequence = site_open_kept(s, &options, &key), *more = NULL;
    put_passing(s, 0, 400); /* 100 MiB through 76 */
    check_steps(s, sequence, errors);
    assert_int_equal(site_stats(sequence).in_place_pages, site_stats(sequence).pages);
    delete_passing(s, 0, 400); /* the window needs free memory */
    /* The head entry is small and not pinned: without it nobody else opens the rest. */
    const kvt_status again = kvt_sparse_open_kept(s->store, &options, &key, &more, NULL, 0);
    assert_true(again == KVT_OK || again == KVT_MISS);
    kvt_sparse_close(more);
    kvt_sparse_close(sequence);
    site_check_unheld(s);
    put_passing(s, 0, 400);
    delete_passing(s, 0, 400);
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &more, NULL, 0), KVT_MISS);
}

TEST(a_sequence_outlives_what_is_kept)
{
    for (int memory = 0; memory < 2; memory++) {
        sequence_site *s = start(0, NULL);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        double errors[STEPS];
        expect_errors(s, &options, errors);
        site_keep(s, &options, &key);
        if (!memory) push_down(s);
        kvt_sparse *one = site_open_kept(s, &options, &key),
                   *two = site_open_kept(s, &options, &key);
        assert_ok(kvt_sparse_delete(s->store, &key));
        assert_int_equal(kvt_sparse_delete(s->store, &key), KVT_MISS);
        const kvt_tier tier = memory ? KVT_TIER_DRAM : KVT_TIER_SSD;
        assert_true(support_stats(s->store).lent_bytes[tier] > 4 * MIB);
        check_steps(s, one, errors);
        /* One that still runs is kept again under the key, from pages whose entries are gone. */
        assert_ok(kvt_sparse_keep(one, &key));
        kvt_sparse_close(one);
        kvt_sparse *three = site_open_kept(s, &options, &key);
        check_steps(s, two, errors);
        check_steps(s, three, errors);
        kvt_sparse_close(three);
        kvt_sparse_close(two);
        site_check_unheld(s);
        assert_ok(kvt_sparse_delete(s->store, &key));
        const kvt_store_stats stats = support_stats(s->store);
        assert_int_equal(stats.tiers[KVT_TIER_SSD].used_bytes, 0);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].used_bytes, 0);
        site_stop(s);
    }
}

/* Copies and appended pages are the sequence's own, beside pages in place. */
TEST(copies_and_appended_pages_lie_beside)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1), longer = support_key(2);
    options.replica_share = 1;
    options.join_tokens = 16;
    site_keep(s, &options, &key);
    push_down(s);
    kvt_sparse *sequence = site_open_kept(s, &options, &key);
    site_warm(s, sequence);
    assert_int_equal(site_stats(sequence).copied_pages, site_stats(sequence).pages);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        for (uint32_t i = 0; i < 40; i++)
            assert_ok(kvt_sparse_append(sequence, layer, s->k[layer] + (size_t)i * 20 * SITE_ROW,
                                        s->v[layer] + (size_t)i * 20 * SITE_ROW, 20));
    for (uint32_t i = 0; i < 200 && site_stats(sequence).appended_pages == 0; i++) {
        usleep(1000); /* pages are written behind */
        assert_ok(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 1));
    }
    assert_true(site_stats(sequence).appended_pages > 0);
    /* With a copy of every page a drive may lie. */
    const tiers_fault_rule lie = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 12345};
    assert_ok(tiers_fault_add(s->drives[1].device, &lie));
    uint32_t lost = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        site_query(s, i % SITE_LAYERS, i + 7, queries);
        (void)site_step(s, sequence, i % SITE_LAYERS, queries, NULL, &lost);
    }
    tiers_fault_clear(s->drives[1].device);
    assert_true(site_stats(sequence).checksum_failures > 0);
    /* What it has become is kept as any. */
    assert_ok(kvt_sparse_keep(sequence, &longer));
    kvt_sparse *second = site_open_kept(s, &options, &longer);
    kvt_sparse_close(second);
    kvt_sparse_close(sequence);
    site_check_unheld(s);
}

TEST(a_drive_that_goes_loses_its_pages)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    options.window_bytes[KVT_TIER_DRAM] = 0;
    options.replica_share = 0;
    site_keep(s, &options, &key);
    push_down(s);
    kvt_sparse *sequence = site_open_kept(s, &options, &key);
    tiers_fault_set_gone(s->drives[2].device, true);
    uint32_t all = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        uint32_t lost;
        site_query(s, i % SITE_LAYERS, i, queries);
        assert_true(site_step(s, sequence, i % SITE_LAYERS, queries, NULL, &lost) < 0.9);
        all += lost;
    }
    assert_true(all > 0 && site_stats(sequence).lost_pages == all);
    assert_int_equal(site_stats(sequence).checksum_failures, 0);
    kvt_sparse *none = NULL;
    assert_true(kvt_sparse_open_kept(s->store, &options, &key, &none, NULL, 0) < 0 || none == NULL);
    kvt_sparse_close(sequence);
    site_check_unheld(s);
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

TEST(several_open_it_at_once)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    double errors[STEPS];
    expect_errors(s, &options, errors);
    site_keep(s, &options, &key);
    push_down(s);
    opener openers[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        openers[i] = (opener){.s = s, .options = &options, .errors = errors};
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, &openers[i]), 0);
    }
    usleep(20000);
    assert_ok(kvt_sparse_delete(s->store, &key));
    uint32_t opened = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        opened += openers[i].opened;
    }
    assert_true(opened > 0);
    site_check_unheld(s);
    assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
}

/* ---- forged bytes ---- */

static void put_opaque(sequence_site *s, const kvt_key *key, const uint8_t *bytes, uint64_t size)
{
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = *key,
                             .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = size},
                             .recompute_seconds = 1};
    assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(bytes, size)));
}

/* A head with a sound checksum, of more parts than anybody could go through. */
TEST(a_forged_head_is_left_alone)
{
    static const uint32_t shapes[][2] = {{65535, 65535},  {65536, 65536},      {UINT32_MAX, 1},
                                         {1, UINT32_MAX}, {UINT32_MAX, 65535}, {0, 1}};
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1);
    kvt_sparse *sequence = site_sequence(s, &options), *none = NULL;
    alarm(60);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        uint8_t head[SPARSE_KEPT_HEAD_BYTES];
        const sparse_kept_shape shape = {
            .layers = shapes[i][0], .kv_heads = shapes[i][1], .tokens = SITE_TOKENS};
        sparse_kept_write_head(&shape, head);
        put_opaque(s, &key, head, sizeof head);
        assert_int_equal(kvt_sparse_delete(s->store, &key), KVT_E_CORRUPT);
        assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_EXISTS);
        assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &none, NULL, 0),
                         KVT_E_CORRUPT);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    alarm(0);
    kvt_sparse_close(sequence);
    /* What a head may not name is not opened either. */
    char message[256] = "";
    options.layout.layers = 65535;
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &none, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "65,536"));
}

#define FORGE_SINKS (UINT64_MAX - 1)

/* Puts a byte in all of a part's code metadata from an offset on, or in the first bytes of its
 * sinks, and seals it anew. */
static void forge_code(sequence_site *s, const kvt_key *part, uint64_t from, uint64_t count,
                       uint8_t value)
{
    kvt_description what = {.struct_size = sizeof what};
    assert_ok(kvt_store_describe(s->store, part, &what));
    const uint64_t size = what.layout.opaque_bytes;
    uint8_t *bytes = test_alloc(size);
    assert_ok(kvt_store_get(s->store, part, KVT_PACKED(bytes, size), KVT_STORE_DEADLINE, NULL));
    uint64_t index, code, sums;
    uint32_t slot;
    memcpy(&slot, bytes + 76, sizeof slot);
    memcpy(&index, bytes + 80, sizeof index);
    memcpy(&code, bytes + 88, sizeof code);
    memcpy(&sums, bytes + 96, sizeof sums);
    const uint64_t front = size - sums / (SPARSE_SECTIONS * 4) * slot;
    if (from == FORGE_SINKS) from = code + sums;
    memset(bytes + SPARSE_KEPT_HEAD_BYTES + index + from, value,
           count < code ? count : code - from);
    const uint64_t seal = XXH3_64bits_withSeed(
        bytes + SPARSE_KEPT_HEAD_BYTES, front - SPARSE_KEPT_HEAD_BYTES, XXH3_64bits(bytes, 120));
    memcpy(bytes + 120, &seal, sizeof seal);
    assert_ok(kvt_store_delete(s->store, part));
    put_opaque(s, part, bytes, size);
}

/* Pages whose code gives no rows are lost and named, in every step; the others come. */
TEST(forged_code_loses_its_pages)
{
    for (int window = 0; window < 2; window++) {
        sequence_site *s = start(0, NULL);
        kvt_sparse_options options = site_options();
        const kvt_key key = support_key(1);
        options.variants = 1u << KVT_SPARSE_BITS_4 | 1u << KVT_SPARSE_BITS_8;
        if (!window) options.window_bytes[KVT_TIER_DRAM] = 0;
        site_keep(s, &options, &key);
        const kvt_key part = site_part_key(s->store, &key, 1); /* the first layer's second head */
        forge_code(s, &part, 64, UINT64_MAX, 0xff);
        kvt_sparse *sequence = site_open_kept(s, &options, &key);
        if (window) site_warm(s, sequence);
        uint32_t all = 0;
        for (uint32_t i = 0; i < STEPS; i++) {
            float queries[SITE_QUERY], output[SITE_QUERY];
            kvt_sparse_step *step;
            const kvt_sparse_pages *pages;
            site_query(s, i % SITE_LAYERS, i, queries);
            assert_ok(kvt_sparse_select(sequence, i % SITE_LAYERS, queries, &step));
            assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
            const kvt_sparse_head *heads = pages->heads;
            if (i % SITE_LAYERS == 0) {
                assert_true(heads[0].lost_count == 0 && heads[0].page_count > 2);
                assert_true(heads[1].lost_count > 0 && heads[1].page_count <= 2);
                for (uint32_t l = 1; l < heads[1].lost_count; l++)
                    assert_true(heads[1].lost[l] > heads[1].lost[l - 1]);
            }
            assert_int_equal(pages->lost_count, heads[0].lost_count + heads[1].lost_count);
            all += pages->lost_count;
            assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
            for (uint32_t d = 0; d < SITE_QUERY; d++)
                assert_true(isfinite(output[d]));
            kvt_sparse_done(sequence, step);
        }
        assert_true(all > 0 && site_stats(sequence).lost_pages >= all);
        kvt_sparse_close(sequence);
        /* Resident rows beyond the bound, which are in no page. */
        kvt_sparse *none = NULL;
        forge_code(s, &part, FORGE_SINKS, 2, 0x7f);
        assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &none, NULL, 0),
                         KVT_E_CORRUPT);
        forge_code(s, &part, FORGE_SINKS, 2, 0);
        sequence = site_open_kept(s, &options, &key);
        kvt_sparse_close(sequence);
        /* A segment that says it has no code, of a sequence without raw pages. */
        forge_code(s, &part, 0, 1, 0);
        assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &none, NULL, 0),
                         KVT_E_CORRUPT);
        site_check_unheld(s);
        site_stop(s);
    }
}

/* The message says what differs. */
TEST(another_shape_is_named)
{
    static const char *const names[] = {
        "layers",      "kv_heads",       "head_dim",    "dtype",        "tokens",
        "sink_tokens", "segment_tokens", "page_tokens", "local_tokens", "variants"};
    sequence_site *s = start(0, NULL);
    const kvt_sparse_options kept = site_options();
    const kvt_key key = support_key(1);
    site_keep(s, &kept, &key);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kvt_sparse_options options = kept;
        kvt_sparse *none = NULL;
        char message[256] = "";
        if (i == 0) options.layout.layers = 1;
        if (i == 1) options.layout.kv_heads = 1;
        if (i == 2) options.layout.head_dim = 32;
        if (i == 3) options.layout.dtype = KVT_DTYPE_FP16;
        if (i == 4) options.layout.tokens--;
        if (i == 5) options.sink_tokens = 8;
        if (i == 6) options.segment_tokens = 1024;
        if (i == 7) options.page_tokens = 16;
        if (i == 8) options.local_tokens = 1000;
        if (i == 9) options.variants = 1u << KVT_SPARSE_RAW;
        assert_int_equal(
            kvt_sparse_open_kept(s->store, &options, &key, &none, message, sizeof message),
            KVT_E_MISMATCH);
        if (strstr(message, names[i]) == NULL) fail_msg("%s: %s", names[i], message);
    }
    /* Appended tokens need as large a tokens_max. */
    kvt_sparse_options options = kept;
    const kvt_key longer = support_key(2);
    kvt_sparse *sequence = site_open_kept(s, &options, &key), *none = NULL;
    char message[256] = "";
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_ok(kvt_sparse_append(sequence, layer, s->k[layer], s->v[layer], 5));
    assert_ok(kvt_sparse_keep(sequence, &longer));
    kvt_sparse_close(sequence);
    options.tokens_max = SITE_TOKENS + 4;
    assert_int_equal(
        kvt_sparse_open_kept(s->store, &options, &longer, &none, message, sizeof message),
        KVT_E_MISMATCH);
    assert_non_null(strstr(message, "tokens_max"));
    site_check_unheld(s);
}

/* ---- delete ---- */

TEST(a_delete_takes_every_part)
{
    sequence_site *s = start(0, NULL);
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(1), other = support_key(2), foreign = support_key(3);
    site_keep(s, &options, &key);
    site_keep(s, &options, &other);
    const uint64_t both = support_stats(s->store).policy.entries;
    assert_int_equal(both, 2 * (SITE_LAYERS * SITE_HEADS + 1));
    assert_ok(kvt_sparse_delete(s->store, &key));
    assert_int_equal(support_stats(s->store).policy.entries, both / 2);
    kvt_sparse_close(site_open_kept(s, &options, &other));
    /* Something else under the key stays. */
    assert_ok(support_put(s->store, 3));
    assert_int_equal(kvt_sparse_delete(s->store, &foreign), KVT_E_MISMATCH);
    assert_ok(support_get(s->store, 3, NULL));
    const kvt_key opaque = passing_key(0);
    put_passing(s, 0, 1);
    assert_int_equal(kvt_sparse_delete(s->store, &opaque), KVT_E_CORRUPT);
    assert_ok(kvt_store_exists(s->store, &opaque));
    /* A lease holds the head: the rest is a miss, and goes with the next call. */
    uint64_t lease;
    assert_ok(kvt_lease_begin(s->store, NULL, &other, 1, base_clock_ns() + UINT64_C(60000000000),
                              NULL, &lease));
    assert_int_equal(kvt_sparse_delete(s->store, &other), KVT_BUSY);
    kvt_sparse *none = NULL;
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &other, &none, NULL, 0), KVT_MISS);
    assert_ok(kvt_lease_end(s->store, lease));
    assert_ok(kvt_sparse_delete(s->store, &other));
    assert_int_equal(kvt_sparse_delete(s->store, &other), KVT_MISS);
    assert_int_equal(kvt_sparse_delete(NULL, &other), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_delete(s->store, NULL), KVT_E_ARGUMENT);
    assert_int_equal(support_stats(s->store).policy.entries, 2);
}
