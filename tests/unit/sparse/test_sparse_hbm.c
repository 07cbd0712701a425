/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_hbm.c - windows in a GPU's memory, on a stand-in for the driver (fake_cuda.c) whose
 * memory is the host's: what lies there, how it gets there, and what remains when copies fail, take
 * their time, or the device is lost.
 */
#include "sequence_site.h"

#include "cases.h"
#include "fake_cuda.h"
#include "sparse/sequence.h"
#include "store/core/store.h"

enum {
    MIB = 1 << 20,
    PAGE = 64 * SITE_DIM * 4, /* rows of one: 64 tokens, K and V of 2 bytes */
    UNITS = SITE_LAYERS * SITE_HEADS,
    SLOTS = 6,
    PLACES = 8,
    PASSING = 3, /* a driver's error that passes */
    LOST = 719   /* and one that does not */
};

#define RAW_ONLY (1u << KVT_SPARSE_RAW)

static int reset(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){.gpu_count = 1, .open = 1};
    return 0;
}

/* A store with a GPU of so many bytes; 0: without one. */
static sequence_site *hbm_start(uint64_t hbm_bytes)
{
    static kvt_device_config gpu;
    gpu = (kvt_device_config){.struct_size = sizeof gpu,
                              .name = "gpu",
                              .backend = "hbm",
                              .capacity_bytes = hbm_bytes,
                              .timeout_ns = UINT64_MAX};
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    if (hbm_bytes == 0) return s;
    kvt_store_close(s->store);
    s->options.tiers[KVT_TIER_HBM] = (kvt_tier_options){.devices = &gpu, .device_count = 1};
    assert_ok(site_open_store(s));
    return s;
}

static kvt_sparse_options hbm_options(uint32_t slots, uint32_t places)
{
    kvt_sparse_options options = site_options();
    options.page_tokens = 64;
    options.divide_windows = false;
    options.window_bytes[KVT_TIER_HBM] = (uint64_t)slots * UNITS * PAGE;
    options.window_bytes[KVT_TIER_DRAM] = (uint64_t)places * UNITS * PAGE;
    return options;
}

/* No tier's window is beyond its bytes, and every page that is held is in one place. */
static void check_windows(const kvt_sparse *sequence)
{
    const kvt_sparse_stats stats = site_stats(sequence);
    const kvt_sparse_options *options = &sequence->options;
    for (int tier = 0; tier < KVT_TIER_PLACES; tier++)
        assert_true(stats.tier_window_bytes[tier] <= options->window_bytes[tier]);
    for (uint32_t u = 0; u < UNITS; u++) {
        const sparse_unit *unit = &sequence->units[u];
        uint32_t held = 0, places = 0;
        for (uint32_t page = 0; page < unit->window.pages; page++) {
            const bool place = unit->place[page] != SPARSE_NOT_HELD;
            const bool slot = unit->slot != NULL && unit->slot[page] != SPARSE_NOT_HELD;
            assert_false(place && slot);
            assert_int_equal(place || slot, unit->window.held[page] != PAGES_ABSENT);
            held += place || slot;
            places += place;
        }
        assert_int_equal(unit->window.used_bytes, (uint64_t)held * PAGE);
        assert_int_equal(unit->dram_pages, places);
        assert_true(places + unit->coming_down <= unit->window.capacity_bytes / PAGE - unit->slots);
    }
}

typedef struct outcome {
    float output[SITE_QUERY];
    uint64_t read_bytes;
    uint32_t hbm_pages, dram_pages, lost;
} outcome;

/* The rows of a step's pages are the source's, bit for bit or nearly; the stand-in's memory is the
 * host's, so that this is what a kernel would find. */
static void check_rows(const sequence_site *s, const kvt_sparse_pages *pages, outcome *out)
{
    for (uint32_t h = 0; h < pages->kv_heads; h++) {
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            out->hbm_pages += page->tier == KVT_TIER_HBM;
            out->dram_pages += page->tier == KVT_TIER_DRAM;
            for (uint32_t t = 0; t < page->tokens; t++) {
                const size_t at = (size_t)page->positions[t] * SITE_ROW + h * SITE_DIM;
                const uint16_t *k = (const uint16_t *)page->k + (size_t)t * SITE_DIM;
                const uint16_t *v = (const uint16_t *)page->v + (size_t)t * SITE_DIM;
                for (uint32_t d = 0; d < SITE_DIM; d++) {
                    const float near = page->variant == KVT_SPARSE_RAW ? 0.0f : 1.0f;
                    assert_true(fabsf(site_float(k[d]) - site_float(s->k[pages->layer][at + d])) <=
                                near);
                    assert_true(fabsf(site_float(v[d]) - site_float(s->v[pages->layer][at + d])) <=
                                near);
                }
            }
        }
    }
}

/* A step of a layer; between says what happens between select and wait. */
static outcome run_step(sequence_site *s, kvt_sparse *sequence, uint32_t layer,
                        const float *queries, void (*between)(sequence_site *))
{
    outcome out = {.read_bytes = 0};
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_ok(kvt_sparse_select(sequence, layer, queries, &step));
    if (between != NULL) between(s);
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    check_rows(s, pages, &out);
    assert_ok(kvt_sparse_attend(pages, queries, out.output, NULL));
    out.read_bytes = pages->read_bytes;
    out.lost = pages->lost_count;
    kvt_sparse_done(sequence, step);
    check_windows(sequence);
    return out;
}

/* Ends what is under way, so that the next step finds it where it belongs. */
static void settle(kvt_sparse *sequence)
{
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        sparse_hbm_settle(sequence, layer);
    check_windows(sequence);
}

/* Topics that return, as attention does. */
static uint32_t topic_of(uint32_t number)
{
    return number % 5 < 3 ? number % 7 : number * 5;
}

static void warm_up(sequence_site *s, kvt_sparse *sequence)
{
    float rows[16 * SITE_QUERY];
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 16; i++)
            site_query(s, layer, i % 7, rows + i * SITE_QUERY);
        assert_ok(kvt_sparse_observe(sequence, layer, rows, 16));
        check_windows(sequence);
    }
}

/* ---- the same outputs ---- */

/* Two sequences side by side, step by step; `settles` ends all moves between steps. */
static outcome compare(const kvt_sparse_options *options, const kvt_sparse_options *others,
                       uint32_t steps, bool settles, bool same)
{
    outcome sum = {.read_bytes = 0};
    double error[2] = {0.0, 0.0};
    sequence_site *s = hbm_start(4 * MIB);
    kvt_sparse *one = site_sequence(s, options), *other = site_sequence(s, others);
    const uint64_t before = s->random;
    warm_up(s, one);
    s->random = before;
    warm_up(s, other);
    for (uint32_t i = 0; i < steps; i++) {
        const uint32_t layer = i % SITE_LAYERS;
        float queries[SITE_QUERY];
        double exact[SITE_QUERY];
        site_query(s, layer, topic_of(i), queries);
        const outcome a = run_step(s, one, layer, queries, NULL);
        const outcome b = run_step(s, other, layer, queries, NULL);
        assert_int_equal(a.lost + b.lost, 0);
        assert_int_equal(b.hbm_pages, 0);
        if (same) {
            assert_memory_equal(a.output, b.output, sizeof a.output);
            if (settles) assert_int_equal(a.read_bytes, b.read_bytes);
        }
        site_exact(s, layer, SITE_TOKENS, queries, exact);
        error[0] += site_error(a.output, exact);
        error[1] += site_error(b.output, exact);
        sum.hbm_pages += a.hbm_pages;
        sum.dram_pages += a.dram_pages;
        if (settles) settle(one);
    }
    assert_true(error[0] <= error[1] * 1.01);
    const kvt_sparse_stats stats = site_stats(one);
    assert_int_equal(stats.hit_bytes,
                     stats.tier_hit_bytes[KVT_TIER_HBM] + stats.tier_hit_bytes[KVT_TIER_DRAM]);
    assert_int_equal(stats.move_failures, 0);
    assert_true(stats.moves > 0);
    kvt_sparse_close(one);
    kvt_sparse_close(other);
    site_stop(s);
    return sum;
}

TEST_ALL(fake_cuda_load, NULL);
TEST_EACH(reset, fake_cuda_is_empty);

TEST(all_raw_pages_are_exact)
{
    kvt_sparse_options options = hbm_options(SLOTS, PLACES), plain = hbm_options(0, 0);
    options.variants = plain.variants = RAW_ONLY;
    options.budget_bytes = plain.budget_bytes = KVT_SPARSE_ALL;
    const outcome sum = compare(&options, &plain, 24, false, true);
    assert_true(sum.hbm_pages > 0 && sum.dram_pages > 0);
}

/* A window of both tiers brings what one of DRAM with as many bytes brings. */
TEST(two_windows_are_one_in_two_places)
{
    const kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    const kvt_sparse_options plain = hbm_options(0, SLOTS + PLACES);
    const outcome sum = compare(&options, &plain, 60, true, true);
    assert_true(sum.hbm_pages > 60 * SITE_HEADS * SLOTS / 2);
    assert_true(sum.dram_pages > 0);
}

TEST(a_window_in_hbm_alone)
{
    const kvt_sparse_options options = hbm_options(SLOTS, 0), plain = hbm_options(0, SLOTS);
    const outcome sum = compare(&options, &plain, 40, false, false);
    assert_true(sum.hbm_pages > 0);
}

/* Sizes in DRAM are divided behind what all have in HBM. */
TEST(divided_windows)
{
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.divide_windows = true;
    options.budget_bytes = 64 << 10;
    kvt_sparse_options plain = hbm_options(0, 0);
    plain.budget_bytes = options.budget_bytes;
    (void)compare(&options, &plain, 80, false, false);
}

/* ---- what lies where ---- */

TEST(the_warm_up_fills_hbm_and_then_dram)
{
    sequence_site *s = hbm_start(4 * MIB);
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.variants = RAW_ONLY; /* so that no page is read again */
    kvt_sparse *sequence = site_sequence(s, &options);
    warm_up(s, sequence);
    const kvt_sparse_stats stats = site_stats(sequence);
    assert_int_equal(stats.tier_window_bytes[KVT_TIER_HBM], UNITS * SLOTS * PAGE);
    assert_int_equal(stats.tier_window_bytes[KVT_TIER_DRAM], UNITS * PLACES * PAGE);
    for (uint32_t u = 0; u < UNITS; u++) {
        const sparse_unit *unit = &sequence->units[u];
        float least = INFINITY, next = -INFINITY, rest = -INFINITY;
        for (uint32_t page = 0; page < unit->window.pages; page++) {
            const float heat = unit->heat[page];
            if (unit->slot[page] != SPARSE_NOT_HELD) {
                least = heat < least ? heat : least;
            } else if (unit->place[page] != SPARSE_NOT_HELD) {
                next = heat > next ? heat : next;
            } else {
                rest = heat > rest ? heat : rest;
            }
        }
        assert_true(least >= next && next > 0.0f && next >= rest);
    }
    /* The first step finds it all there. */
    float queries[SITE_QUERY];
    char text[20000];
    size_t length;
    kvt_sparse_step *step;
    site_query(s, 0, 1, queries);
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_ok(kvt_sparse_explain(sequence, 0, 0, text, sizeof text, &length));
    assert_non_null(strstr(text, ", in HBM up to 98304"));
    assert_non_null(strstr(text, ", resident in HBM\n"));
    assert_non_null(strstr(text, ", resident in DRAM\n"));
    kvt_sparse_done(sequence, step);
    const outcome out = run_step(s, sequence, 0, queries, NULL);
    assert_int_equal(out.hbm_pages, SITE_HEADS * SLOTS);
    assert_true(site_stats(sequence).tier_hit_bytes[KVT_TIER_HBM] > 0);
    kvt_sparse_close(sequence);
}

/* Copies that do not end: steps attend to rows where they still are, select waits for nothing, and
 * neither window is beyond its bytes. */
TEST(moves_that_take_their_time)
{
    sequence_site *s = hbm_start(4 * MIB);
    const kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY];
    uint32_t hbm_pages = 0;
    for (int round = 0; round < 3; round++) {
        fake->queries_until_done = round == 1 ? UINT32_MAX : 0;
        for (uint32_t i = 0; i < 20; i++) {
            const uint32_t layer = i % SITE_LAYERS;
            double exact[SITE_QUERY];
            kvt_sparse_step *step;
            const kvt_sparse_pages *pages;
            outcome out = {.read_bytes = 0};
            site_query(s, layer, topic_of(i + 20 * (uint32_t)round), queries);
            assert_ok(kvt_sparse_select(sequence, layer, queries, &step));
            assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
            check_rows(s, pages, &out);
            hbm_pages += out.hbm_pages;
            if (round != 1) { /* rows in HBM cannot be read back meanwhile */
                assert_ok(kvt_sparse_attend(pages, queries, out.output, NULL));
                site_exact(s, layer, SITE_TOKENS, queries, exact);
                assert_true(site_error(out.output, exact) < 0.5);
            }
            kvt_sparse_done(sequence, step);
            check_windows(sequence);
            assert_int_equal(pages->lost_count, 0);
            if (round == 0) settle(sequence);
        }
        if (round != 1) continue;
        uint32_t under_way = 0;
        for (uint32_t i = 0; i < SPARSE_MOVES_MAX; i++)
            under_way += sequence->hbm.moves[i].state != MOVE_FREE;
        assert_true(under_way > 0);
    }
    assert_true(hbm_pages > 0);
    settle(sequence);
    assert_int_equal(site_stats(sequence).move_failures, 0);
    kvt_sparse_close(sequence);
}

/* Better variants of pages in HBM take the place of the rows there. */
TEST(pages_in_hbm_get_better)
{
    sequence_site *s = hbm_start(4 * MIB);
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.variants = 1u << KVT_SPARSE_BITS_4 | RAW_ONLY;
    options.budget_bytes = 48 << 10;
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY];
    uint32_t coarse = 0, fine = 0;
    warm_up(s, sequence);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 6; i++) {
            site_query(s, 0, 2, queries);
            (void)run_step(s, sequence, 0, queries, NULL);
            settle(sequence);
        }
        const sparse_unit *unit = sequence->units;
        for (uint32_t page = 0; page < unit->window.pages; page++) {
            if (unit->slot[page] == SPARSE_NOT_HELD) continue;
            coarse += round == 0 && unit->window.held[page] != PAGES_RAW;
            fine += round == 1 && unit->window.held[page] == PAGES_RAW;
        }
        sequence->options.budget_bytes = KVT_SPARSE_ALL;
    }
    assert_true(coarse > 0);
    assert_int_equal(fine, SLOTS);
    kvt_sparse_close(sequence);
}

/* Appended pages are as any other. */
TEST(appended_pages_enter_hbm)
{
    sequence_site *s = hbm_start(4 * MIB);
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.layout.tokens = 700;
    options.local_tokens = options.join_tokens = 16;
    options.budget_bytes = KVT_SPARSE_ALL;
    options.variants = RAW_ONLY;
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY];
    for (uint32_t i = 0; i < 30; i++) {
        const size_t at = (size_t)(700 + 30 * i) * SITE_ROW;
        assert_ok(kvt_sparse_append(sequence, 0, s->k[0] + at, s->v[0] + at, 30));
        double exact[SITE_QUERY];
        site_query(s, 0, topic_of(i), queries);
        const outcome out = run_step(s, sequence, 0, queries, NULL);
        site_exact(s, 0, 730 + 30 * i, queries, exact);
        assert_true(site_error(out.output, exact) < 1e-5);
    }
    assert_true(site_stats(sequence).appended_pages > 0);
    kvt_sparse_close(sequence);
}

/* ---- refusals ---- */

static void refused(sequence_site *s, const kvt_sparse_options *options, kvt_status wanted,
                    const char *words)
{
    char message[256];
    kvt_sparse *sequence = NULL;
    const kvt_status status =
        kvt_sparse_open_live(s->store, options, &sequence, message, sizeof message);
    if (status != wanted || strstr(message, words) == NULL) fail_msg("%d, %s", status, message);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_HBM], 0);
}

TEST(what_is_refused)
{
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    sequence_site *s = hbm_start(0);
    refused(s, &options, KVT_E_UNSUPPORTED, "HBM");
    site_stop(s);

    s = hbm_start(MIB);
    options = hbm_options(MIB / UNITS / PAGE + 1, PLACES);
    refused(s, &options, KVT_E_SPACE, "65536 of HBM");
    options = hbm_options(1, PLACES);
    options.window_bytes[KVT_TIER_HBM]--;
    refused(s, &options, KVT_E_ARGUMENT, "one page");
    options = hbm_options(1, PLACES);
    options.window_bytes[KVT_TIER_SSD] = 4096;
    refused(s, &options, KVT_E_ARGUMENT, "alone");
    /* Two sequences have the tier's bytes together. */
    options = hbm_options(10, PLACES);
    kvt_sparse *one = site_sequence(s, &options);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_HBM], 10 * UNITS * PAGE);
    kvt_sparse *two = NULL;
    char message[256];
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &two, message, sizeof message),
                     KVT_E_SPACE);
    kvt_sparse_close(one);
    two = site_sequence(s, &options);
    kvt_sparse_close(two);
}

/* A tier whose device has no addresses. */
TEST(a_device_without_addresses)
{
    char path[] = "/tmp/kvt_hbm_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    unlink(path);
    support_fault fault = {.capacity_bytes = 4 * MIB, .path = path};
    const kvt_device_config config = support_fault_config(&fault, "slow");
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_store_close(s->store);
    s->options.tiers[KVT_TIER_HBM] = (kvt_tier_options){.devices = &config, .device_count = 1};
    assert_ok(site_open_store(s));
    const kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    refused(s, &options, KVT_E_UNSUPPORTED, "kernel");
    site_stop(s);
    unlink(path);
}

/* Rows of a selection lie inside of pages in HBM; the stand-in's memory is the host's, so that what
 * is read back is compared with what lies there. */
TEST(selected_rows_in_hbm)
{
    sequence_site *s = hbm_start(4 * MIB);
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.variants = RAW_ONLY;
    options.given = true;
    options.budget_bytes = KVT_SPARSE_ALL;
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY], there[SITE_QUERY];
    uint32_t hbm_runs = 0;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t numbers[12];
        const uint32_t count = 12, layer = i % SITE_LAYERS;
        for (uint32_t n = 0; n < count; n++)
            numbers[n] = (n < 8 ? n * 67 + i : 1000 + n * 150 + i * 40) % SITE_TOKENS;
        const kvt_sparse_given given = {.struct_size = sizeof given,
                                        .block_tokens = 1,
                                        .lists = 1,
                                        .counts = &count,
                                        .numbers = numbers};
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        outcome out = {.read_bytes = 0};
        site_query(s, layer, i, queries);
        assert_ok(kvt_sparse_select_given(sequence, layer, &given, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        check_rows(s, pages, &out);
        hbm_runs += out.hbm_pages;
        assert_ok(kvt_sparse_attend(pages, queries, out.output, NULL));
        kvt_sparse_pages own = *pages;
        own.step = NULL; /* rows are read where they lie */
        assert_ok(kvt_sparse_attend(&own, queries, there, NULL));
        assert_memory_equal(out.output, there, sizeof there);
        kvt_sparse_done(sequence, step);
        check_windows(sequence);
        settle(sequence);
    }
    assert_true(hbm_runs > 20);
    assert_true(site_stats(sequence).tier_hit_bytes[KVT_TIER_HBM] > 0);
    kvt_sparse_close(sequence);
}

/* Memory of the host in a GPU's place. */
TEST(an_emulated_device)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_store_close(s->store);
    s->options.tiers[KVT_TIER_HBM] =
        (kvt_tier_options){.capacity_bytes = 4 * MIB, .emulated = true};
    assert_ok(site_open_store(s));
    kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    options.variants = RAW_ONLY;
    kvt_sparse *sequence = site_sequence(s, &options);
    warm_up(s, sequence);
    float queries[SITE_QUERY];
    site_query(s, 0, 1, queries);
    const outcome out = run_step(s, sequence, 0, queries, NULL);
    assert_int_equal(out.hbm_pages, SITE_HEADS * SLOTS);
    kvt_sparse_close(sequence);
}

/* ---- failures ---- */

/* From now on a call fails, of this name or any (NULL), and with for_good all like it. */
static void fail_from_now(const char *name, int result, bool for_good)
{
    fake->calls = fake->failed = 0;
    fake->fail_name = name;
    fake->fail_result = result;
    fake->fail_for_good = for_good && name == NULL;
    fake->fail_alike = for_good;
    fake->fail_call = 1;
}

static void fail_no_more(void)
{
    fake->fail_call = 0;
    fake->fail_for_good = fake->fail_alike = 0;
}

TEST(uploads_that_fail)
{
    sequence_site *s = hbm_start(4 * MIB);
    const kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY];
    fail_from_now("cuMemcpyHtoDAsync_v2", PASSING, true);
    for (uint32_t i = 0; i < 20; i++) {
        double exact[SITE_QUERY];
        site_query(s, i % SITE_LAYERS, topic_of(i), queries);
        const outcome out = run_step(s, sequence, i % SITE_LAYERS, queries, NULL);
        site_exact(s, i % SITE_LAYERS, SITE_TOKENS, queries, exact);
        assert_true(site_error(out.output, exact) < 0.5 && out.hbm_pages == 0);
    }
    settle(sequence);
    assert_true(site_stats(sequence).move_failures > 0);
    assert_int_equal(site_stats(sequence).tier_window_bytes[KVT_TIER_HBM], 0);
    fail_no_more();
    warm_up(s, sequence);
    assert_int_equal(site_stats(sequence).tier_window_bytes[KVT_TIER_HBM], UNITS * SLOTS * PAGE);
    kvt_sparse_close(sequence);
}

/* Rows that do not come back to the CPU are a status. */
TEST(rows_that_cannot_be_read_back)
{
    sequence_site *s = hbm_start(4 * MIB);
    const kvt_sparse_options options = hbm_options(SLOTS, PLACES);
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY], output[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    warm_up(s, sequence);
    site_query(s, 0, 1, queries);
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    fail_from_now("cuMemcpyDtoHAsync_v2", PASSING, false);
    assert_int_equal(kvt_sparse_attend(pages, queries, output, NULL), KVT_E_IO);
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
}

static void retire(sequence_site *s)
{
    tiers_pool_retire(s->store->pools[KVT_TIER_HBM], 0);
}

/* What the step counted on there is read from the drives, and the window is that in DRAM. */
TEST(a_device_that_is_lost_during_a_step)
{
    for (int lost_by = 0; lost_by < 2; lost_by++) {
        sequence_site *s = hbm_start(4 * MIB);
        kvt_sparse_options options = hbm_options(SLOTS, PLACES);
        options.variants = RAW_ONLY;
        options.budget_bytes = KVT_SPARSE_ALL;
        kvt_sparse *sequence = site_sequence(s, &options);
        warm_up(s, sequence);
        float queries[SITE_QUERY];
        kvt_sparse_step *other = NULL;
        const kvt_sparse_pages *pages;
        double exact[SITE_QUERY];
        if (lost_by ==
            1) { /* a step of the other layer goes on meanwhile, and the driver says it */
            site_query(s, 1, 1, queries);
            assert_ok(kvt_sparse_select(sequence, 1, queries, &other));
            fail_from_now(NULL, LOST, true);
        }
        for (uint32_t i = 0; i < 6; i++) {
            site_query(s, 0, 3 * i, queries);
            outcome out = {.read_bytes = 0};
            if (lost_by == 0 || i > 0) {
                out = run_step(s, sequence, 0, queries, i == 0 ? retire : NULL);
                assert_int_equal(out.hbm_pages + out.lost, 0);
                site_exact(s, 0, SITE_TOKENS, queries, exact);
                assert_true(site_error(out.output, exact) < 1e-5);
            } else { /* nobody knows it until rows are wanted */
                kvt_sparse_step *step;
                assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
                assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
                assert_int_equal(kvt_sparse_attend(pages, queries, out.output, NULL), KVT_E_GONE);
                kvt_sparse_done(sequence, step);
            }
        }
        if (other != NULL) {
            outcome out = {.read_bytes = 0};
            site_query(s, 1, 1, queries);
            assert_ok(kvt_sparse_wait(sequence, other, KVT_NO_DEADLINE, &pages));
            assert_int_equal(pages->lost_count, 0);
            check_rows(s, pages, &out);
            assert_int_equal(out.hbm_pages, 0);
            kvt_sparse_done(sequence, other);
        }
        const kvt_sparse_stats stats = site_stats(sequence);
        assert_true(stats.tier_window_bytes[KVT_TIER_DRAM] > 0);
        for (uint32_t h = 0; h < SITE_HEADS; h++)
            assert_int_equal(sequence->units[h].window.capacity_bytes, PLACES * PAGE);
        kvt_sparse_close(sequence);
        fail_no_more();
        site_stop(s);
    }
}

/* The nth call of the driver fails, for one operation or for good: no row is wrong and nothing
 * hangs. Rows that kernels would find are looked at as long as the device is there. */
static void torture(int result, uint32_t stride)
{
    uint32_t runs = 0, failed = 0;
    sequence_site *s = hbm_start(4 * MIB);
    for (uint32_t n = 1;; n += stride, runs++) {
        if (result == LOST) { /* a GPU that is lost does not come back */
            site_stop(s);
            reset(NULL);
            s = hbm_start(4 * MIB);
        }
        kvt_sparse_options options = hbm_options(SLOTS, PLACES);
        options.layout.tokens = 1500;
        kvt_sparse *sequence = site_sequence(s, &options);
        fail_from_now(NULL, result, result == LOST);
        fake->fail_call = n;
        warm_up(s, sequence);
        for (uint32_t i = 0; i < 8; i++) {
            float queries[SITE_QUERY], output[SITE_QUERY];
            kvt_sparse_step *step;
            const kvt_sparse_pages *pages;
            outcome out = {.read_bytes = 0};
            site_query(s, i % SITE_LAYERS, topic_of(i), queries);
            assert_ok(kvt_sparse_select(sequence, i % SITE_LAYERS, queries, &step));
            assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
            assert_int_equal(pages->lost_count, 0);
            check_rows(s, pages, &out);
            const kvt_status status = kvt_sparse_attend(pages, queries, output, NULL);
            assert_true(status == KVT_OK || status == KVT_E_IO || status == KVT_E_GONE);
            kvt_sparse_done(sequence, step);
            check_windows(sequence);
        }
        const bool reached = fake->failed > 0;
        fail_no_more();
        failed += reached;
        kvt_sparse_close(sequence);
        assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_HBM], 0);
        if (!reached) break;
    }
    /* 24 moves and 8 steps make at least 300 calls, and more the longer copies take. */
    assert_true(runs >= 300 / stride && failed == runs);
}

TEST(the_nth_call_of_the_driver_fails)
{
    torture(PASSING, 11);
}

TEST(the_device_is_lost_in_the_nth_call)
{
    torture(LOST, 47);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    return 77; /* the stand-in is one thread's, and the test steers it from another */
#endif
    return tests_run();
}
