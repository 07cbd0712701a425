/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_sparse_sequence.c - fails the nth allocation and the nth operation of a fixed run over a
 * sparse sequence, for n in turn: no row is wrong, nothing hangs, and after the close the store has
 * everything back. In another run a sequence is kept, opened twice and deleted meanwhile.
 *
 * Only allocations of the thread that calls fail; under a sanitizer only operations do.
 */
#include "sequence_site.h"

#include <errno.h>
#include <kvterrace/names.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define TORTURE_ALLOCATIONS 0
#else
#define TORTURE_ALLOCATIONS 1
#endif

enum { TOKENS = 700, APPENDED = 40, MIB = 1 << 20 };

/* Allocations of this thread until one fails; negative = none does. */
static _Thread_local int64_t allocations_left = -1;

#if TORTURE_ALLOCATIONS
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static bool allocation_fails(void)
{
    if (allocations_left < 0 || allocations_left-- != 0) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return allocation_fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return allocation_fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return allocation_fails() ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return allocation_fails() ? NULL : __libc_memalign(align, bytes);
}
#endif

static kvt_sparse_options torture_options(void)
{
    kvt_sparse_options options = site_options();
    options.layout.tokens = TOKENS;
    options.segment_tokens = 256;
    options.budget_bytes = 48 << 10;
    options.window_bytes[KVT_TIER_DRAM] = 96 << 10;
    options.window_bytes[KVT_TIER_HBM] = 64 << 10;
    options.hedge_ns = 0;
    options.local_tokens = options.join_tokens = 16;
    options.page_tokens = 32;
    options.single_share = 0.2f;
    return options;
}

static bool expected(kvt_status status, uint32_t *failures)
{
    if (status == KVT_OK) return true;
    ++*failures;
    return status == KVT_E_MEMORY || status == KVT_E_IO || status == KVT_E_STATE ||
           status == KVT_E_SPACE;
}

/* Raw rows are the source's; coded ones are near it. */
static void check_pages(const sequence_site *s, const kvt_sparse_pages *pages)
{
    for (uint32_t h = 0; h < pages->kv_heads; h++) {
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            for (uint32_t t = 0; t < page->tokens; t++) {
                const size_t at = (size_t)page->positions[t] * SITE_ROW + h * SITE_DIM;
                const uint16_t *k = (const uint16_t *)page->k + (size_t)t * SITE_DIM;
                for (uint32_t d = 0; d < SITE_DIM; d++) {
                    const float wanted = site_float(s->k[pages->layer][at + d]);
                    const float got = site_float(k[d]);
                    assert_true(page->variant == KVT_SPARSE_RAW ? got == wanted
                                                                : fabsf(got - wanted) < 1.0f);
                }
            }
        }
    }
}

/* One step of a layer. */
static bool torture_step(sequence_site *s, kvt_sparse *sequence, uint32_t number,
                         uint32_t *failures)
{
    float queries[SITE_QUERY], output[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    const uint32_t layer = number % SITE_LAYERS;
    site_query(s, layer, number, queries);
    kvt_status status = kvt_sparse_select(sequence, layer, queries, &step);
    if (!expected(status, failures)) return false;
    if (status != KVT_OK) return true;
    status = kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages);
    if (!expected(status, failures)) return false;
    if (status == KVT_OK) {
        const int64_t left = allocations_left;
        allocations_left = -1; /* the checks are the test's own */
        check_pages(s, pages);
        assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
        allocations_left = left;
    }
    kvt_sparse_done(sequence, step);
    return true;
}

/* The whole run; the number of calls that failed. */
static uint32_t torture_run(sequence_site *s)
{
    const kvt_sparse_options options = torture_options();
    float rows[4 * SITE_QUERY];
    uint32_t failures = 0;
    kvt_sparse *sequence = NULL;
    kvt_status status = kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0);
    assert_true(expected(status, &failures));
    if (status != KVT_OK) return failures;
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_true(
            expected(kvt_sparse_give(sequence, layer, s->k[layer], s->v[layer]), &failures));
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 4; i++)
            site_query(s, layer, i, rows + i * SITE_QUERY);
        assert_true(expected(kvt_sparse_observe(sequence, layer, rows, 4), &failures));
    }
    for (uint32_t i = 0; i < 6; i++)
        assert_true(torture_step(s, sequence, i, &failures));
    for (uint32_t i = 0, tokens = TOKENS; i < 5; i++) { /* pages of them are written behind */
        const size_t at = (size_t)tokens * SITE_ROW;
        status = kvt_sparse_append(sequence, 0, s->k[0] + at, s->v[0] + at, APPENDED);
        assert_true(expected(status, &failures));
        if (status == KVT_OK) tokens += APPENDED;
        assert_true(torture_step(s, sequence, 2 * i, &failures));
    }
    const int64_t left = allocations_left;
    kvt_sparse_close(sequence);
    allocations_left = left;
    return failures;
}

/* Entries that pass through until what was kept before is on drives. */
static void push_down(sequence_site *s)
{
    static char bytes[128 << 10];
    const int64_t left = allocations_left;
    allocations_left = -1;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < 4 * MIB / sizeof bytes; i++) {
            const kvt_entry entry = {
                .struct_size = sizeof entry,
                .key = support_key(100 + i),
                .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof bytes},
                .recompute_seconds = 1};
            if (pass == 0) (void)!kvt_store_put(s->store, &entry, KVT_PACKED(bytes, sizeof bytes));
            if (pass == 1) (void)!kvt_store_delete(s->store, &entry.key);
        }
    }
    allocations_left = left;
}

static uint32_t opened_in_place; /* ever */

static void open_and_use(sequence_site *s, const kvt_key *key, uint32_t *failures)
{
    const kvt_sparse_options options = torture_options();
    kvt_sparse *sequence = NULL;
    kvt_status status = kvt_sparse_open_kept(s->store, &options, key, &sequence, NULL, 0);
    assert_true(status == KVT_MISS || expected(status, failures));
    if (status != KVT_OK) return;
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_sparse_stats_get(sequence, &stats));
    opened_in_place += stats.in_place_pages > 0;
    for (uint32_t i = 0; i < 3; i++)
        assert_true(torture_step(s, sequence, i, failures));
    status = kvt_sparse_delete(s->store, key);
    assert_true(status == KVT_MISS || expected(status, failures));
    assert_true(torture_step(s, sequence, 3, failures));
    const int64_t left = allocations_left;
    kvt_sparse_close(sequence);
    allocations_left = left;
}

/* One key is in memory when it is opened, the other on drives. */
static uint32_t torture_kept(sequence_site *s)
{
    const kvt_key keys[2] = {support_key(1), support_key(2)};
    const kvt_sparse_options options = torture_options();
    uint32_t failures = 0;
    for (int drives = 0; drives < 2; drives++) {
        kvt_sparse *sequence = NULL;
        kvt_status status = kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0);
        assert_true(expected(status, &failures));
        if (status != KVT_OK) continue;
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
            assert_true(
                expected(kvt_sparse_give(sequence, layer, s->k[layer], s->v[layer]), &failures));
        assert_true(expected(kvt_sparse_keep(sequence, &keys[drives]), &failures));
        int64_t left = allocations_left;
        kvt_sparse_close(sequence);
        allocations_left = left;
        if (drives == 1) push_down(s);
        open_and_use(s, &keys[drives], &failures);
    }
    return failures;
}

/* What a failure has left of the kept sequences, parts without a head among them. */
static void clear_store(sequence_site *s)
{
    const kvt_clear_filter all = {.struct_size = sizeof all, .by_tenant = true};
    assert_ok(kvt_store_clear(s->store, &all, NULL));
    assert_int_equal(support_stats(s->store).policy.entries, 0);
}

static void check_store(sequence_site *s)
{
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 0);
    for (int tier = KVT_TIER_HBM; tier <= KVT_TIER_SSD; tier++) {
        assert_int_equal(stats.lent_bytes[tier], 0);
        assert_int_equal(stats.tiers[tier].used_bytes, 0);
    }
}

/* A sequence whose model selects: it is warmed up, asked, appended to, kept and opened again. */
static bool torture_given(sequence_site *s, kvt_sparse *sequence, uint32_t layer, uint32_t tokens,
                          uint32_t *failures)
{
    enum { COUNT = 24 };
    uint32_t numbers[COUNT];
    const uint32_t counts[] = {COUNT / 2, COUNT / 2};
    const kvt_sparse_given given = {.struct_size = sizeof given,
                                    .block_tokens = 1,
                                    .lists = 2,
                                    .counts = counts,
                                    .numbers = numbers};
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    for (uint32_t i = 0; i < COUNT; i++)
        numbers[i] = i % 3 == 0 ? tokens - 1 - i : (i * 37 + tokens) % tokens;
    kvt_status status = tokens % 3 == 0 ? kvt_sparse_hint_given(sequence, layer, &given) : KVT_OK;
    if (!expected(status, failures)) return false;
    numbers[1] = 5;
    status = kvt_sparse_select_given(sequence, layer, &given, &step);
    if (!expected(status, failures)) return false;
    if (status != KVT_OK) return true;
    status = kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages);
    if (!expected(status, failures)) return false;
    if (status == KVT_OK) check_pages(s, pages);
    kvt_sparse_done(sequence, step);
    return true;
}

static uint32_t torture_model(sequence_site *s)
{
    const uint32_t count = 1, blocks[] = {0, 1, 3, 5};
    const kvt_sparse_given observed[] = {{sizeof observed[0], 64, 1, &count, blocks},
                                         {sizeof observed[0], 64, 1, &count, blocks + 2}};
    const kvt_key key = support_key(3);
    kvt_sparse_options options = torture_options();
    uint32_t failures = 0, tokens[SITE_LAYERS] = {TOKENS, TOKENS};
    kvt_sparse *sequence = NULL;
    options.given = true;
    options.single_share = 0.0f;
    options.variants = 1u << KVT_SPARSE_RAW;
    options.budget_bytes = KVT_SPARSE_ALL;
    options.key_bytes = 16;
    kvt_status status = kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0);
    assert_true(expected(status, &failures));
    for (uint32_t opened = 0; opened < 2 && status == KVT_OK; opened++) {
        for (uint32_t layer = 0; layer < SITE_LAYERS && opened == 0; layer++) {
            status = kvt_sparse_give_selected(sequence, layer, s->k[layer], s->v[layer], observed,
                                              layer == 1 ? 2 : 0);
            assert_true(expected(status, &failures));
            assert_ok(kvt_sparse_give_keys(sequence, layer, s->k[layer], TOKENS));
        }
        for (uint32_t i = 0; i < 12; i++) {
            const uint32_t layer = i % SITE_LAYERS;
            const size_t at = (size_t)tokens[layer] * SITE_ROW;
            if (i < 2)
                assert_true(
                    expected(kvt_sparse_observe_given(sequence, layer, observed, 2), &failures));
            status = kvt_sparse_append(sequence, layer, s->k[layer] + at, s->v[layer] + at, 20);
            assert_true(expected(status, &failures));
            if (status == KVT_OK) tokens[layer] += 20;
            assert_true(torture_given(s, sequence, layer, tokens[layer], &failures));
        }
        if (opened == 0) {
            status = kvt_sparse_keep(sequence, &key);
            assert_true(expected(status, &failures));
        }
        int64_t left = allocations_left;
        kvt_sparse_close(sequence);
        allocations_left = left;
        sequence = NULL;
        if (opened == 1 || status != KVT_OK) break;
        status = kvt_sparse_open_kept(s->store, &options, &key, &sequence, NULL, 0);
        assert_true(status == KVT_MISS || expected(status, &failures));
    }
    return failures;
}

/* A store whose HBM is memory of the host, where rows can be looked at. */
static sequence_site *torture_start(void)
{
    sequence_site *s = site_start(4 * MIB, 2 * MIB);
    kvt_store_close(s->store);
    s->options.tiers[KVT_TIER_HBM] = (kvt_tier_options){.capacity_bytes = MIB, .emulated = true};
    assert_ok(site_open_store(s));
    return s;
}

typedef uint32_t torture_life(sequence_site *s);

static void torture_allocations(torture_life *life, int64_t stride)
{
    if (!TORTURE_ALLOCATIONS) skip();
    sequence_site *s = torture_start();
    uint32_t runs = 0, failed = 0;
    for (int64_t n = 0;; n += n < 120 ? 1 : stride, runs++) {
        allocations_left = n;
        const uint32_t failures = life(s);
        const bool reached = allocations_left < 0;
        allocations_left = -1;
        failed += failures > 0;
        clear_store(s);
        check_store(s);
        if (!reached) { /* the run has fewer allocations */
            assert_int_equal(failures, 0);
            break;
        }
    }
    assert_true(runs > 60 && failed > runs / 2); /* memory for second reads may lack unnoticed */
}

TEST(the_nth_allocation_fails)
{
    torture_allocations(torture_run, 7);
}

TEST(the_nth_allocation_of_a_kept_one_fails)
{
    opened_in_place = 0;
    torture_allocations(torture_kept, 11);
    assert_true(opened_in_place > 20);
}

TEST(the_nth_allocation_of_a_model_that_selects_fails)
{
    torture_allocations(torture_model, 7);
}

static void torture_operations(torture_life *life, uint32_t kinds, uint64_t stride)
{
    sequence_site *s = torture_start();
    for (uint64_t n = 0;; n += stride) {
        const tiers_fault_rule rule = {
            .action = TIERS_FAULT_FAIL, .kinds = kinds, .skip = n, .hits = 1, .status = KVT_E_IO};
        tiers_fault_counts before, after;
        tiers_fault_counts_get(s->drives[1].device, &before);
        assert_ok(tiers_fault_add(s->drives[1].device, &rule));
        (void)life(s);
        tiers_fault_counts_get(s->drives[1].device, &after);
        tiers_fault_clear(s->drives[1].device);
        clear_store(s);
        check_store(s);
        if (after.hits == before.hits) break;
    }
}

TEST(the_nth_read_fails)
{
    torture_operations(torture_run, TIERS_FAULT_READS, 3);
}

TEST(the_nth_write_fails)
{
    torture_operations(torture_run, TIERS_FAULT_WRITES, 2);
}

TEST(the_nth_operation_of_a_kept_one_fails)
{
    opened_in_place = 0;
    torture_operations(torture_kept, TIERS_FAULT_READS, 1);
    torture_operations(torture_kept, TIERS_FAULT_WRITES, 2);
    assert_true(opened_in_place > 20);
}

TEST(the_nth_operation_of_a_model_that_selects_fails)
{
    torture_operations(torture_model, TIERS_FAULT_READS, 3);
    torture_operations(torture_model, TIERS_FAULT_WRITES, 2);
}
