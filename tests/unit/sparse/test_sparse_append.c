/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_append.c - appended tokens: which page each joins, and a sequence that stays exact
 * while its pages are written behind, cannot be written, or never end being written.
 */
#include "sequence_site.h"
#include "sparse/index_added.h"
#include "sparse/joining.h"

#include <time.h>

enum { MIB = 1 << 20, GIVEN = 1200 };

/* ---- which page a token joins ---- */

enum { PAGE = 32, DIM = 64 };

static uint64_t dice = 7;

static float draw(void)
{
    dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(dice >> 40) / (float)(1 << 23) - 1.0f;
}

/* A token about a topic; its value is its position. */
static void take(sparse_joining *joining, float topics[][DIM], uint32_t topic, uint32_t position)
{
    float key[DIM], value[DIM];
    for (uint32_t d = 0; d < DIM; d++) {
        key[d] = topics[topic][d] + 0.05f * draw();
        value[d] = (float)position;
    }
    assert_ok(sparse_joining_reserve(joining, 1));
    sparse_joining_take(joining, (const uint8_t *)key, (const uint8_t *)value, position);
}

/* Notes the tokens of a page; each comes once, with its value. */
static void note(const sparse_joined *page, unsigned char *seen, uint32_t count)
{
    const float *values = (const float *)(const void *)page->values;
    for (uint32_t i = 0; i < page->tokens; i++) {
        assert_true(page->positions[i] < count && !seen[page->positions[i]]);
        seen[page->positions[i]] = 1;
        assert_true(values[(size_t)i * DIM] == (float)page->positions[i]);
    }
}

TEST(tokens_join_the_nearest_page)
{
    enum { TOPICS = 5, TOKENS = 900 };
    float topics[TOPICS][DIM];
    unsigned char seen[TOKENS] = {0};
    sparse_joining joining;
    for (uint32_t i = 0; i < TOPICS * DIM; i++)
        topics[i / DIM][i % DIM] = draw();
    sparse_joining_open(DIM, KVT_DTYPE_FP32, PAGE, &joining);
    for (uint32_t i = 0; i < TOKENS; i++)
        take(&joining, topics, (uint32_t)(dice >> 33) % TOPICS, i);
    uint32_t full = 0, pure = 0;
    for (sparse_joined *page; (page = sparse_joining_next(&joining)) != NULL; full++) {
        assert_int_equal(page->tokens, PAGE);
        note(page, seen, TOKENS);
        /* All keys of a page are near its mean when it has one topic. */
        const float *keys = (const float *)(const void *)page->keys;
        bool one = true;
        for (uint32_t i = 0; i < PAGE * DIM; i++)
            one = one && fabsf(keys[i] - page->sum[i % DIM] / PAGE) < 0.2f;
        pure += one;
        sparse_joining_retire(&joining, page);
    }
    assert_true(full >= TOKENS / PAGE - SPARSE_OPEN_PAGES);
    assert_true(pure + 2 >= full);
    for (uint32_t i = 0; i < joining.open_count; i++)
        note(joining.open[i], seen, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++)
        assert_true(seen[i]);
    sparse_joining_close(&joining);
}

/* More topics than open pages: near ones share a page, and none is lost or torn. */
TEST(pages_merge_when_there_are_too_many)
{
    enum { TOPICS = 40, TOKENS = 4000 };
    float topics[TOPICS][DIM];
    unsigned char seen[TOKENS] = {0};
    sparse_joining joining;
    for (uint32_t i = 0; i < TOPICS * DIM; i++)
        topics[i / DIM][i % DIM] = draw();
    sparse_joining_open(DIM, KVT_DTYPE_FP32, PAGE, &joining);
    for (uint32_t i = 0; i < TOKENS; i++) {
        take(&joining, topics, (uint32_t)(dice >> 33) % TOPICS, i);
        assert_true(joining.open_tokens <= SPARSE_OPEN_PAGES * (PAGE - 1));
    }
    sparse_joined *page = joining.full;
    uint32_t full = 0;
    for (; page != NULL; page = page->next, full++)
        note(page, seen, TOKENS);
    assert_int_equal(full, joining.full_count);
    for (uint32_t i = 0; i < joining.open_count; i++)
        note(joining.open[i], seen, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++)
        assert_true(seen[i]);
    /* A page put back comes last. */
    page = sparse_joining_next(&joining);
    sparse_joining_return(&joining, page);
    assert_ptr_equal(joining.full_last, page);
    sparse_joining_close(&joining);
}

/* Keys that are no numbers join somewhere, and stay what they are. */
TEST(keys_that_are_no_numbers)
{
    float key[DIM], value[DIM] = {0};
    sparse_joining joining;
    sparse_joining_open(DIM, KVT_DTYPE_FP32, PAGE, &joining);
    for (uint32_t i = 0; i < 3 * PAGE; i++) {
        for (uint32_t d = 0; d < DIM; d++)
            key[d] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : 3e38f;
        assert_ok(sparse_joining_reserve(&joining, 1));
        sparse_joining_take(&joining, (uint8_t *)key, (uint8_t *)value, i);
    }
    assert_int_equal(joining.full_count * PAGE + joining.open_tokens, 3 * PAGE);
    assert_true(isnan(((float *)(void *)joining.full->keys)[0]));
    sparse_joining_close(&joining);
}

/* A mean beyond the steps of an index widens them, and moves nothing by more than half a step. */
TEST(added_clusters_widen_the_steps)
{
    enum { TOKENS = 640 };
    float *keys = test_alloc(TOKENS * DIM * sizeof *keys), mean[DIM], other[DIM];
    sparse_index index;
    sparse_added added;
    const sparse_index_options options = {.head_dim = DIM, .dtype = KVT_DTYPE_FP32};
    for (uint32_t i = 0; i < TOKENS * DIM; i++)
        keys[i] = draw();
    const sparse_rows rows = {.base = keys, .stride_bytes = DIM * sizeof *keys};
    assert_ok(sparse_index_build(&options, &rows, &rows, TOKENS, &index));
    assert_ok(sparse_added_open(DIM, 2, 2, &added));
    index.added = &added;
    const float before = index.key_step[3];
    const int8_t held = index.centroids[3];
    for (uint32_t d = 0; d < DIM; d++)
        mean[d] = other[d] = 0.1f;
    mean[3] = 1000.0f * before;
    const uint32_t tokens[2] = {20, 12};
    const float scatter[2] = {1.0f, 2.0f};
    sparse_added_page(&index, mean, other, tokens, scatter, 1);
    assert_int_equal(added.pages, 1);
    assert_true(index.key_step[3] > 7.8f * before && index.key_step[3] < 10.0f * before);
    const int8_t now = index.centroids[3];
    assert_true(fabsf((float)now * index.key_step[3] - (float)held * before) <=
                0.51f * index.key_step[3]);
    assert_true(fabsf((float)added.centroids[3] * index.key_step[3] - mean[3]) <=
                0.51f * index.key_step[3]);
    assert_int_equal(added.tokens[0], 20);
    assert_int_equal(added.tokens[1], 0);
    sparse_added_close(&added);
    sparse_index_free(&index);
}

/* ---- sequences ---- */

static kvt_sparse_options append_options(bool raw)
{
    kvt_sparse_options options = site_options();
    options.layout.tokens = GIVEN;
    options.tokens_max = SITE_TOKENS;
    options.join_tokens = 40;
    options.local_tokens = 24;
    options.page_tokens = 32;
    if (raw) {
        options.variants = 1u << KVT_SPARSE_RAW;
        options.budget_bytes = KVT_SPARSE_ALL;
    }
    return options;
}

static kvt_status append(const sequence_site *s, kvt_sparse *sequence, uint32_t layer,
                         uint32_t from, uint32_t tokens)
{
    const size_t at = (size_t)from * SITE_ROW;
    return kvt_sparse_append(sequence, layer, s->k[layer] + at, s->v[layer] + at, tokens);
}

/* Every position of the first `tokens` comes once, bit for bit; returns tokens that are always
 * resident, of all heads. */
static uint32_t check_rows(const sequence_site *s, const kvt_sparse_pages *pages, uint32_t tokens)
{
    uint32_t resident = 0;
    for (uint32_t h = 0; h < pages->kv_heads; h++) {
        unsigned char seen[SITE_TOKENS] = {0};
        uint32_t count = 0;
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            if (page->tier == KVT_TIER_NONE) resident += page->tokens;
            for (uint32_t t = 0; t < page->tokens; t++, count++) {
                const uint32_t position = page->positions[t];
                assert_true(position < tokens && !seen[position]);
                seen[position] = 1;
                if (page->variant != KVT_SPARSE_RAW) continue;
                const size_t at = (size_t)position * SITE_ROW + h * SITE_DIM;
                assert_memory_equal((const uint16_t *)page->k + (size_t)t * SITE_DIM,
                                    s->k[pages->layer] + at, SITE_DIM * sizeof(uint16_t));
                assert_memory_equal((const uint16_t *)page->v + (size_t)t * SITE_DIM,
                                    s->v[pages->layer] + at, SITE_DIM * sizeof(uint16_t));
            }
        }
        if (pages->lost_count == 0) assert_true(count <= tokens);
    }
    return resident;
}

/* A step over the first `tokens` tokens; its error against full attention. */
static double step(sequence_site *s, kvt_sparse *sequence, uint32_t layer, uint32_t topic,
                   uint32_t tokens, bool all, uint32_t *resident_out)
{
    float queries[SITE_QUERY], output[SITE_QUERY];
    double exact[SITE_QUERY];
    kvt_sparse_step *under_way;
    const kvt_sparse_pages *pages;
    site_query(s, layer, topic, queries);
    assert_ok(kvt_sparse_select(sequence, layer, queries, &under_way));
    assert_ok(kvt_sparse_wait(sequence, under_way, KVT_NO_DEADLINE, &pages));
    assert_int_equal(pages->lost_count, 0);
    const uint32_t resident = check_rows(s, pages, tokens);
    if (resident_out != NULL) *resident_out = resident;
    uint32_t count = 0;
    for (uint32_t i = 0; i < pages->heads[0].page_count; i++)
        count += pages->heads[0].pages[i].tokens;
    if (all) assert_int_equal(count, tokens);
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    kvt_sparse_done(sequence, under_way);
    site_exact(s, layer, tokens, queries, exact);
    return site_error(output, exact);
}

/* Writes end while the test does something else. */
static void let_writes_end(void)
{
    const struct timespec pause = {.tv_nsec = 300000};
    nanosleep(&pause, NULL);
}

/* Waits until so many pages of a layer are at rest: however long that takes, within reason. */
static void wait_for_pages(const sequence_site *s, kvt_sparse *sequence, uint32_t layer,
                           uint64_t pages)
{
    for (uint32_t i = 0; i < 50000 && site_stats(sequence).appended_pages < pages; i++) {
        assert_ok(append(s, sequence, layer, 0, 0));
        let_writes_end();
    }
    assert_true(site_stats(sequence).appended_pages >= pages);
}

/* Appends in pieces up to `until`, with steps between them that are exact. */
static uint32_t grow_exactly(sequence_site *s, kvt_sparse *sequence, uint32_t layer, uint32_t from,
                             uint32_t until)
{
    uint32_t resident = 0;
    for (uint32_t at = from, i = 0; at < until; i++) {
        const uint32_t pieces[] = {1, 1, 3, 1, 17}, piece = pieces[i % 5];
        const uint32_t tokens = piece < until - at ? piece : until - at;
        assert_ok(append(s, sequence, layer, at, tokens));
        at += tokens;
        let_writes_end();
        if (i % 25 == 0 || at == until)
            assert_true(step(s, sequence, layer, i, at, true, &resident) < 1e-5);
    }
    return resident;
}

TEST(appended_and_joined_tokens_are_exact)
{
    for (int warm = 0; warm < 2; warm++) {
        sequence_site *s = site_start(16 * MIB, 8 * MIB);
        kvt_sparse_options options = append_options(true);
        if (!warm) options.window_bytes[KVT_TIER_DRAM] = 0;
        kvt_sparse *sequence = site_sequence(s, &options);
        uint32_t resident;
        (void)grow_exactly(s, sequence, 1, GIVEN, SITE_TOKENS);
        wait_for_pages(s, sequence, 1, 88); /* of 1,736 tokens of 2 heads, 8 pages of each open */
        assert_true(step(s, sequence, 1, 4, SITE_TOKENS, true, &resident) < 1e-5);
        assert_int_equal(append(s, sequence, 1, 0, 1), KVT_E_STATE);
        const kvt_sparse_stats stats = site_stats(sequence);
        assert_int_equal(stats.append_failures, 0);
        /* Sinks, local ones, open pages and a few that are full. */
        assert_true(resident < SITE_HEADS * (4 + 64 + SPARSE_OPEN_PAGES * 31 + 4 * 32));
        assert_true(step(s, sequence, 0, 3, GIVEN, true, NULL) < 1e-5);
        kvt_sparse_close(sequence);
        assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
        site_stop(s);
    }
}

/* A budget, coded pages, estimates: appended pages are read where queries want them. */
TEST(appended_pages_are_chosen_by_weight)
{
    for (int zone = 0; zone < 2; zone++) {
        sequence_site *s = site_start(16 * MIB, 8 * MIB);
        kvt_sparse_options options = append_options(false);
        const uint32_t given = zone ? GIVEN : 40; /* without any page at first */
        options.layout.tokens = given;
        kvt_sparse *sequence = site_sequence(s, &options);
        for (uint32_t at = given; at < SITE_TOKENS; at++) {
            assert_ok(append(s, sequence, 0, at, 1));
            if (at % 16 == 0) let_writes_end();
        }
        wait_for_pages(s, sequence, 0, 60);
        double error = 0;
        for (uint32_t topic = 0; topic < 20; topic++)
            error += step(s, sequence, 0, topic, SITE_TOKENS, false, NULL) / 20;
        if (error > 0.2) fail_msg("error %g", error);
        assert_true(site_stats(sequence).hit_bytes > 0);
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

/* ---- writes that fail, or never end ---- */

static void fail_writes(sequence_site *s, tiers_fault_action action, uint64_t skip, uint64_t hits)
{
    for (int i = 0; i < SITE_DRIVES; i++) {
        const tiers_fault_rule rule = {.action = action,
                                       .kinds = TIERS_FAULT_WRITES,
                                       .skip = skip,
                                       .hits = hits,
                                       .status = KVT_E_IO};
        assert_ok(tiers_fault_add(s->drives[i].device, &rule));
    }
}

TEST(a_failed_write_leaves_its_page_in_memory)
{
    for (int forever = 0; forever < 2; forever++) {
        sequence_site *s = site_start(16 * MIB, 8 * MIB);
        kvt_sparse_options options = append_options(true);
        kvt_sparse *sequence = site_sequence(s, &options);
        fail_writes(s, TIERS_FAULT_FAIL, forever ? 0 : 3, forever ? 0 : 2);
        (void)grow_exactly(s, sequence, 0, GIVEN, GIVEN + 900);
        const kvt_sparse_stats stats = site_stats(sequence);
        assert_true(stats.append_failures > 0);
        if (forever)
            assert_int_equal(stats.appended_pages, 0);
        else
            wait_for_pages(s, sequence, 0, 10);
        assert_int_equal(stats.lost_pages, 0);
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

TEST(a_silent_drive_holds_no_token_back)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = append_options(true);
    options.replica_share = 1;
    options.hedge_ns = 2000000;
    kvt_sparse *sequence = site_sequence(s, &options);
    float rows[4 * SITE_QUERY];
    for (uint32_t i = 0; i < 4; i++)
        site_query(s, 0, i, rows + (size_t)i * SITE_QUERY);
    assert_ok(kvt_sparse_observe(sequence, 0, rows, 4));
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES};
    assert_ok(tiers_fault_add(s->drives[2].device, &hang));
    (void)grow_exactly(s, sequence, 0, GIVEN, GIVEN + 500);
    /* A page in four lies there, and none comes after it. */
    assert_true(site_stats(sequence).appended_pages <= SITE_HEADS * 4);
    /* What the drive has is written now; a close with a write under way waits for it. */
    tiers_fault_clear(s->drives[2].device);
    kvt_sparse_close(sequence);
    assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
}

/* The room of pages to come is the sequence's from the start. */
TEST(room_for_appended_pages_is_taken_at_open)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = append_options(true);
    kvt_sparse *sequence = NULL;
    uint64_t lent[2];
    for (int more = 0; more < 2; more++) {
        options.tokens_max = more ? SITE_TOKENS : GIVEN + 8;
        assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
        lent[more] = support_stats(s->store).lent_bytes[KVT_TIER_SSD];
        kvt_sparse_close(sequence);
    }
    const uint64_t page = 32 * 2 * SITE_DIM * sizeof(uint16_t);
    assert_true(lent[1] >= lent[0] + SITE_LAYERS * SITE_HEADS * 50 * page);
    char message[256];
    options.tokens_max = 1 << 20;
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message),
                     KVT_E_SPACE);
    assert_non_null(strstr(message, "lacks"));
}

/* ---- kept ---- */

TEST(a_kept_sequence_has_its_appended_tokens)
{
    sequence_site *s = site_start(32 * MIB, 8 * MIB);
    kvt_sparse_options options = append_options(true);
    kvt_sparse *first = site_sequence(s, &options), *second = NULL;
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        (void)grow_exactly(s, first, layer, GIVEN, GIVEN + 700 + layer * 50);
    wait_for_pages(s, first, 0, 20);
    const kvt_key key = support_key(5);
    assert_ok(kvt_sparse_keep(first, &key));
    kvt_sparse_close(first);
    assert_ok(kvt_sparse_open_kept(s->store, &options, &key, &second, NULL, 0));
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        const uint32_t tokens = GIVEN + 700 + layer * 50;
        assert_true(step(s, second, layer, 9, tokens, true, NULL) < 1e-5);
        (void)grow_exactly(s, second, layer, tokens, tokens + 200);
    }
    wait_for_pages(s, second, 0, 20);
    kvt_sparse_close(second);
}

/* A prompt that is all sinks and local tokens has no clusters, live and kept; what is appended
 * makes some. */
TEST(a_short_prompt_grows_after_it_was_kept)
{
    const uint32_t prompts[] = {1, 60, 68, 90, 131};
    const kvt_key key = support_key(78);
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        sequence_site *s = site_start(16 * MIB, 8 * MIB);
        kvt_sparse_options options = append_options(true);
        options.layout.tokens = prompts[i];
        options.local_tokens = 64;
        kvt_sparse *sequence;
        assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
            assert_ok(kvt_sparse_give(sequence, layer, s->k[layer], s->v[layer]));
        assert_ok(kvt_sparse_keep(sequence, &key));
        kvt_sparse_close(sequence);
        assert_ok(kvt_sparse_open_kept(s->store, &options, &key, &sequence, NULL, 0));
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
            (void)grow_exactly(s, sequence, layer, prompts[i], 900);
        assert_true(site_stats(sequence).appended_pages > 0);
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

/* Far more tokens than there is room for are refused before anything is made for them. */
TEST(too_many_tokens_are_refused_at_once)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = append_options(true);
    kvt_sparse *sequence = NULL;
    const uint32_t most[] = {1u << 24, 409600000, UINT32_MAX};
    const uint64_t begin_ns = base_clock_ns();
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        options.tokens_max = most[i];
        assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0), KVT_E_SPACE);
        assert_null(sequence);
    }
    assert_true(base_clock_ns() - begin_ns < UINT64_C(5000000000));
}
