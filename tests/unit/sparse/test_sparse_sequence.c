/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_sequence.c - sequences larger than memory, end to end: exact when everything is read,
 * less to read with windows, and what remains when drives lie, go or fall silent.
 */
#include "sequence_site.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { MIB = 1 << 20 };

#define RAW_ONLY (1u << KVT_SPARSE_RAW)

/* Every row of a page is the source's, bit for bit, and no position comes twice. */
static uint32_t check_rows(const sequence_site *s, const kvt_sparse_pages *pages)
{
    uint32_t tokens = 0;
    for (uint32_t h = 0; h < pages->kv_heads; h++) {
        unsigned char seen[SITE_TOKENS] = {0};
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            assert_int_equal(page->variant, KVT_SPARSE_RAW);
            for (uint32_t t = 0; t < page->tokens; t++) {
                const uint32_t position = page->positions[t];
                assert_true(position < SITE_TOKENS && !seen[position]);
                seen[position] = 1;
                const size_t at = (size_t)position * SITE_ROW + h * SITE_DIM;
                const uint16_t *k = (const uint16_t *)page->k + (size_t)t * SITE_DIM;
                const uint16_t *v = (const uint16_t *)page->v + (size_t)t * SITE_DIM;
                assert_memory_equal(k, s->k[pages->layer] + at, SITE_DIM * sizeof *k);
                assert_memory_equal(v, s->v[pages->layer] + at, SITE_DIM * sizeof *v);
            }
            tokens += page->tokens;
        }
    }
    return tokens;
}

/* ---- exact ---- */

TEST(budget_all_of_raw_pages_is_exact)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    options.variants = RAW_ONLY;
    options.budget_bytes = KVT_SPARSE_ALL;
    kvt_sparse *sequence = site_sequence(s, &options);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        float queries[SITE_QUERY], output[SITE_QUERY];
        double exact[SITE_QUERY];
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        site_query(s, layer, 7, queries);
        assert_ok(kvt_sparse_select(sequence, layer, queries, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        assert_int_equal(pages->lost_count, 0);
        assert_int_equal(check_rows(s, pages), SITE_HEADS * SITE_TOKENS);
        assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
        site_exact(s, layer, SITE_TOKENS, queries, exact);
        for (uint32_t i = 0; i < SITE_QUERY; i++)
            assert_true(fabs((double)output[i] - exact[i]) < 1e-5);
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
}

TEST(a_budget_bounds_what_is_read)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    const uint64_t budgets[] = {0, 32 << 10, 128 << 10, 512 << 10};
    double error[4] = {0};
    for (int i = 0; i < 4; i++) {
        kvt_sparse_options options = site_options();
        options.budget_bytes = budgets[i];
        options.window_bytes[KVT_TIER_DRAM] = 0;
        kvt_sparse *sequence = site_sequence(s, &options);
        for (uint32_t topic = 0; topic < 8; topic++) {
            float queries[SITE_QUERY];
            uint64_t read_bytes;
            uint32_t lost;
            site_query(s, topic % SITE_LAYERS, topic, queries);
            error[i] +=
                site_step(s, sequence, topic % SITE_LAYERS, queries, &read_bytes, &lost) / 8;
            assert_true(read_bytes <= budgets[i] && lost == 0);
            assert_true(i == 0 || read_bytes > budgets[i] / 2);
        }
        kvt_sparse_close(sequence);
    }
    assert_true(error[3] < error[2] && error[2] < error[0]);
    assert_true(error[3] < 0.05 && error[0] < 1.0);
}

TEST(a_short_context_is_all_resident)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    options.layout.tokens = 80;
    options.window_bytes[KVT_TIER_DRAM] = 0;
    kvt_sparse *sequence = site_sequence(s, &options);
    float queries[SITE_QUERY], output[SITE_QUERY];
    double exact[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    site_query(s, 0, 1, queries);
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    assert_int_equal(check_rows(s, pages), SITE_HEADS * 80);
    assert_int_equal(pages->read_bytes, 0);
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    site_exact(s, 0, 80, queries, exact);
    assert_true(site_error(output, exact) < 1e-5);
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
}

/* ---- windows, warm-up ---- */

TEST(a_window_saves_reads_and_keeps_its_bytes)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    uint64_t read[2] = {0, 0};
    double error[2] = {0, 0};
    for (int window = 0; window < 2; window++) {
        kvt_sparse_options options = site_options();
        options.window_bytes[KVT_TIER_DRAM] = window ? 512 << 10 : 0;
        kvt_sparse *sequence = site_sequence(s, &options);
        s->random = 99;
        for (uint32_t i = 0; i < 60; i++) {
            float queries[SITE_QUERY];
            uint64_t bytes;
            site_query(s, i % SITE_LAYERS, i / 12, queries);
            error[window] += site_step(s, sequence, i % SITE_LAYERS, queries, &bytes, NULL) / 60;
            assert_true(bytes <= options.budget_bytes);
            read[window] += bytes;
        }
        kvt_sparse_stats stats = site_stats(sequence);
        assert_int_equal(stats.lost_pages, 0);
        assert_int_equal(stats.steps, 60);
        if (window) assert_true(stats.hit_bytes > 0);
        kvt_sparse_close(sequence);
    }
    /* The budget is spent with and without a window; the window's part comes on top. */
    assert_true(read[1] < read[0] + read[0] / 16);
    assert_true(error[1] < 0.9 * error[0]);
}

/* Lines of a text that end as `end`. */
static uint32_t lines_ending(const char *text, const char *end)
{
    uint32_t count = 0;
    for (const char *at = strstr(text, end); at != NULL; at = strstr(at + 1, end))
        count += at[strlen(end)] == '\n';
    return count;
}

TEST(a_step_explains_its_pages)
{
    static char text[1 << 18], cut[64];
    size_t length, again;
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = site_sequence(s, &options);
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    float queries[SITE_QUERY];
    assert_int_equal(kvt_sparse_explain(sequence, 0, 0, text, sizeof text, &length), KVT_MISS);
    assert_int_equal(kvt_sparse_explain(sequence, SITE_LAYERS, 0, text, sizeof text, &length),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_explain(sequence, 0, SITE_HEADS, text, sizeof text, &length),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_explain(sequence, 0, 0, NULL, 5, &length), KVT_E_ARGUMENT);
    for (int round = 0; round < 2; round++) { /* the second one finds pages in the window */
        site_query(s, 0, 3, queries);
        assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
        assert_ok(kvt_sparse_explain(sequence, 0, 1, text, sizeof text, &length));
        assert_true(length < sizeof text && strlen(text) == length);
        assert_true(strncmp(text, "layer 0 head 1: pages ", 22) == 0);
        const uint32_t coming = lines_ending(text, ", being read");
        assert_true(round > 0 || coming > 0);
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        assert_ok(kvt_sparse_explain(sequence, 0, 1, text, sizeof text, &length));
        assert_int_equal(lines_ending(text, ", read"), coming);
        uint32_t brought = 0, resident = 0;
        for (uint32_t i = 0; i < pages->heads[1].page_count; i++) {
            brought += pages->heads[1].pages[i].tier == KVT_TIER_SSD;
            resident += pages->heads[1].pages[i].tier == KVT_TIER_DRAM;
        }
        assert_int_equal(brought, coming);
        assert_int_equal(lines_ending(text, ", resident in DRAM"), resident);
        if (round > 0) assert_true(resident > 0);
        assert_ok(kvt_sparse_explain(sequence, 0, 1, cut, sizeof cut, &again));
        assert_int_equal(again, length);
        assert_int_equal(strlen(cut), sizeof cut - 1);
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
}

TEST(observed_queries_warm_the_window_and_copy_hot_pages)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = site_sequence(s, &options);
    float rows[16 * SITE_QUERY];
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 16; i++)
            site_query(s, layer, i % 3, rows + i * SITE_QUERY);
        assert_ok(kvt_sparse_observe(sequence, layer, rows, 16));
    }
    kvt_sparse_stats stats = site_stats(sequence);
    assert_true(stats.copied_pages > stats.pages / 5 && stats.copied_pages <= stats.pages / 4 + 4);
    assert_true(stats.missed_bytes > 0);
    float queries[SITE_QUERY];
    site_query(s, 0, 1, queries);
    (void)site_step(s, sequence, 0, queries, NULL, NULL);
    assert_true(site_stats(sequence).hit_bytes > stats.hit_bytes);
    rows[5] = NAN;
    assert_int_equal(kvt_sparse_observe(sequence, 0, rows, 16), KVT_E_ARGUMENT);
    kvt_sparse_close(sequence);
}

/* ---- calls out of order, bad arguments ---- */

TEST(wrong_calls_are_refused_and_change_nothing)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = NULL;
    char message[256];
    float queries[SITE_QUERY];
    kvt_sparse_step *step, *other;
    const kvt_sparse_pages *pages;
    site_query(s, 0, 3, queries);

    options.query_heads = 3;
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_true(message[0] != '\0');
    options = site_options();
    options.layout.head_dim = 60;
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message),
                     KVT_E_UNSUPPORTED);
    options = site_options();
    options.window_bytes[KVT_TIER_SSD] = 4096;
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0), KVT_E_ARGUMENT);

    options = site_options();
    assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_E_STATE);
    assert_int_equal(kvt_sparse_give(sequence, 1, s->k[1], s->v[1]), KVT_E_STATE);
    kvt_sparse_close(sequence); /* without any layer */

    sequence = site_sequence(s, &options);
    assert_int_equal(kvt_sparse_give(sequence, 0, s->k[0], s->v[0]), KVT_E_STATE);
    assert_int_equal(kvt_sparse_select(sequence, SITE_LAYERS, queries, &step), KVT_E_ARGUMENT);
    queries[17] = NAN;
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_E_ARGUMENT);
    queries[17] = INFINITY;
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_E_ARGUMENT);
    queries[17] = 0;
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_int_equal(kvt_sparse_select(sequence, 0, queries, &other), KVT_E_STATE);
    assert_int_equal(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 1), KVT_E_STATE);
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    assert_int_equal(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages), KVT_E_STATE);
    kvt_sparse_done(sequence, step);
    /* A step that nobody waits for. */
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    kvt_sparse_done(sequence, step);
    kvt_sparse_done(sequence, NULL);
    /* A close with a step under way. */
    assert_ok(kvt_sparse_select(sequence, 1, queries, &step));
    kvt_sparse_close(sequence);
    kvt_sparse_close(NULL);
}

TEST(no_room_is_told_at_open)
{
    sequence_site *s = site_start(600 << 10, 8 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = NULL;
    char message[256];
    assert_int_equal(kvt_sparse_open_live(s->store, &options, &sequence, message, sizeof message),
                     KVT_E_SPACE);
    assert_null(sequence);
    assert_non_null(strstr(message, "lacks"));
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
}

/* ---- appended tokens ---- */

TEST(appended_tokens_take_part)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    options.variants = RAW_ONLY;
    options.budget_bytes = KVT_SPARSE_ALL;
    options.layout.tokens = SITE_TOKENS - 100;
    options.tokens_max = SITE_TOKENS;
    kvt_sparse *sequence = site_sequence(s, &options);
    const size_t at = (size_t)(SITE_TOKENS - 100) * SITE_ROW;
    assert_ok(kvt_sparse_append(sequence, 0, s->k[0] + at, s->v[0] + at, 60));
    assert_ok(kvt_sparse_append(sequence, 0, s->k[0] + at + 60 * SITE_ROW,
                                s->v[0] + at + 60 * SITE_ROW, 40));
    assert_int_equal(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 1), KVT_E_STATE);
    float queries[SITE_QUERY];
    site_query(s, 0, 5, queries);
    assert_true(site_step(s, sequence, 0, queries, NULL, NULL) < 1e-5);
    kvt_sparse_close(sequence);
}

/* ---- from entries ---- */

TEST(entries_at_rest_give_the_same_sequence)
{
    enum { ENTRIES = 3, EACH = SITE_TOKENS / ENTRIES };
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_key keys[ENTRIES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_layout layout = site_layout();
        layout.tokens = EACH;
        const uint64_t side = (uint64_t)EACH * SITE_ROW;
        uint16_t *data = test_alloc(SITE_LAYERS * 2 * side * sizeof *data);
        kvt_view view;
        assert_ok(kvt_view_make(&layout, "lsth", 0, EACH, &view));
        view.base[0] = data;
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
            memcpy(data + (layer * 2 + 0) * side, s->k[layer] + i * side, side * sizeof *data);
            memcpy(data + (layer * 2 + 1) * side, s->v[layer] + i * side, side * sizeof *data);
        }
        keys[i] = support_key(i + 1);
        kvt_entry entry = {.struct_size = sizeof entry,
                           .key = keys[i],
                           .parent = i > 0 ? &keys[i - 1] : NULL,
                           .layout = layout,
                           .first_position = i * EACH,
                           .recompute_seconds = 1};
        assert_ok(kvt_store_put(s->store, &entry, &view));
    }
    kvt_sparse_options options = site_options();
    char message[256];
    kvt_sparse *live = site_sequence(s, &options), *sequence = NULL;
    kvt_status status =
        kvt_sparse_open(s->store, &options, keys, ENTRIES, &sequence, message, sizeof message);
    if (status != KVT_OK) fail_msg("%d: %s", status, message);
    for (uint32_t i = 0; i < 6; i++) {
        float queries[SITE_QUERY];
        site_query(s, i % SITE_LAYERS, i, queries);
        const double one = site_step(s, live, i % SITE_LAYERS, queries, NULL, NULL);
        const double two = site_step(s, sequence, i % SITE_LAYERS, queries, NULL, NULL);
        assert_true(one == two);
    }
    kvt_sparse_close(sequence);
    /* An entry that is not there, and too few tokens. */
    const kvt_key missing = support_key(77);
    keys[2] = missing;
    assert_int_equal(
        kvt_sparse_open(s->store, &options, keys, ENTRIES, &sequence, message, sizeof message),
        KVT_MISS);
    assert_int_equal(
        kvt_sparse_open(s->store, &options, keys, 2, &sequence, message, sizeof message),
        KVT_E_MISMATCH);
    kvt_sparse_close(live);
}

/* ---- kept ---- */

static void compare_steps(sequence_site *s, kvt_sparse *one, kvt_sparse *other)
{
    for (uint32_t i = 0; i < 8; i++) {
        float queries[SITE_QUERY];
        uint32_t lost;
        site_query(s, i % SITE_LAYERS, i, queries);
        const double a = site_step(s, one, i % SITE_LAYERS, queries, NULL, &lost);
        assert_int_equal(lost, 0);
        const double b = site_step(s, other, i % SITE_LAYERS, queries, NULL, &lost);
        assert_int_equal(lost, 0);
        assert_true(a == b);
    }
}

TEST(a_kept_sequence_opens_as_it_was)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *first = site_sequence(s, &options), *second = NULL;
    assert_ok(kvt_sparse_append(first, 0, s->k[0], s->v[0], 3));
    const kvt_key key = support_key(5);
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &second, NULL, 0), KVT_MISS);
    assert_ok(kvt_sparse_keep(first, &key));
    assert_int_equal(kvt_sparse_keep(first, &key), KVT_EXISTS);
    char message[256];
    assert_ok(kvt_sparse_open_kept(s->store, &options, &key, &second, message, sizeof message));
    compare_steps(s, first, second);
    kvt_sparse_close(second);
    /* Another shape, and a foreign entry. */
    options.segment_tokens = 1024;
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &second, NULL, 0),
                     KVT_E_MISMATCH);
    options = site_options();
    options.tokens_max = SITE_TOKENS;
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &key, &second, NULL, 0),
                     KVT_E_MISMATCH); /* no room for the appended tokens */
    options = site_options();
    const kvt_key foreign = support_key(6);
    assert_ok(support_put_small(s->store, &foreign, 0));
    assert_int_equal(kvt_sparse_open_kept(s->store, &options, &foreign, &second, NULL, 0),
                     KVT_E_CORRUPT);
    kvt_sparse_close(first);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
}

/* The child keeps a sequence, and dies with another one open. */
TEST(a_kept_sequence_survives_a_kill)
{
    char folder[64], paths[SITE_DRIVES][96], catalog[96];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_store_close(s->store);
    s->options.durability.catalog_path = catalog;
    for (int i = 0; i < SITE_DRIVES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/drive%d", folder, i);
        s->drives[i].path = paths[i];
    }
    kvt_sparse_options options = site_options();
    const kvt_key key = support_key(9);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (site_open_store(s) != KVT_OK) _exit(1);
        kvt_sparse *kept = site_sequence(s, &options);
        if (kvt_sparse_keep(kept, &key) != KVT_OK || kvt_store_flush(s->store) != KVT_OK ||
            kvt_store_persist(s->store, KVT_NO_DEADLINE, NULL) != KVT_OK)
            _exit(2);
        kill(getpid(), SIGKILL);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_ok(site_open_store(s));
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
    kvt_sparse *sequence = NULL;
    assert_ok(kvt_sparse_open_kept(s->store, &options, &key, &sequence, NULL, 0));
    kvt_sparse *fresh = site_sequence(s, &options);
    compare_steps(s, sequence, fresh);
    kvt_sparse_close(fresh);
    kvt_sparse_close(sequence);
    site_stop(s);
}

/* ---- drives that fail ---- */

static void add_rule(sequence_site *s, int drive, tiers_fault_action action, uint64_t skip)
{
    const tiers_fault_rule rule = {.action = action,
                                   .kinds = TIERS_FAULT_READS,
                                   .skip = skip,
                                   .status = KVT_E_IO,
                                   .flip_bit = 12345};
    assert_ok(tiers_fault_add(s->drives[drive].device, &rule));
}

/* A drive that lies or fails costs pages at most; no row is ever wrong. */
TEST(no_fault_gives_a_wrong_row)
{
    const tiers_fault_action actions[] = {TIERS_FAULT_FLIP, TIERS_FAULT_FAIL};
    for (int copies = 0; copies < 2; copies++) {
        for (int action = 0; action < 2; action++) {
            sequence_site *s = site_start(8 * MIB, 8 * MIB);
            kvt_sparse_options options = site_options();
            options.variants = RAW_ONLY;
            options.budget_bytes = 512 << 10;
            options.window_bytes[KVT_TIER_DRAM] = 0;
            options.replica_share = copies ? 1 : 0;
            kvt_sparse *sequence = site_sequence(s, &options);
            site_warm(s, sequence);
            add_rule(s, 1, actions[action], 0);
            uint32_t lost = 0;
            for (uint32_t i = 0; i < 12; i++) {
                float queries[SITE_QUERY];
                kvt_sparse_step *step;
                const kvt_sparse_pages *pages;
                site_query(s, i % SITE_LAYERS, i, queries);
                assert_ok(kvt_sparse_select(sequence, i % SITE_LAYERS, queries, &step));
                assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
                (void)check_rows(s, pages);
                lost += pages->lost_count;
                kvt_sparse_done(sequence, step);
            }
            /* With a copy of every page elsewhere nothing is lost. */
            if (copies)
                assert_int_equal(lost, 0);
            else
                assert_true(lost > 0);
            assert_int_equal(site_stats(sequence).lost_pages, lost);
            if (actions[action] == TIERS_FAULT_FLIP)
                assert_true(site_stats(sequence).checksum_failures > 0);
            kvt_sparse_close(sequence);
            site_stop(s);
        }
    }
}

TEST(a_silent_drive_ends_at_the_deadline)
{
    for (int copies = 0; copies < 2; copies++) {
        sequence_site *s = site_start(8 * MIB, 8 * MIB);
        kvt_sparse_options options = site_options();
        options.window_bytes[KVT_TIER_DRAM] = 0;
        options.replica_share = copies ? 1 : 0;
        options.hedge_ns = 2000000;
        kvt_sparse *sequence = site_sequence(s, &options);
        site_warm(s, sequence);
        const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
        assert_ok(tiers_fault_add(s->drives[2].device, &hang));
        uint32_t lost = 0;
        for (uint32_t i = 0; i < 4; i++) {
            float queries[SITE_QUERY], output[SITE_QUERY];
            kvt_sparse_step *step;
            const kvt_sparse_pages *pages;
            site_query(s, i % SITE_LAYERS, i, queries);
            assert_ok(kvt_sparse_select(sequence, i % SITE_LAYERS, queries, &step));
            const uint64_t deadline_ns =
                copies ? KVT_NO_DEADLINE : base_clock_ns() + 50 * UINT64_C(1000000);
            const kvt_status status = kvt_sparse_wait(sequence, step, deadline_ns, &pages);
            assert_true(status == KVT_OK || (status == KVT_E_TIMEOUT && !copies));
            assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
            lost += pages->lost_count;
            kvt_sparse_done(sequence, step);
        }
        assert_true(copies ? lost == 0 : lost > 0);
        /* The drive still has buffers of steps that are done, and of the close. */
        tiers_fault_clear(s->drives[2].device);
        kvt_sparse_close(sequence);
        site_stop(s);
    }
}

TEST(a_drive_that_vanishes_leaves_the_others)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    options.replica_share = 1;
    kvt_sparse *sequence = site_sequence(s, &options);
    site_warm(s, sequence);
    tiers_fault_set_gone(s->drives[0].device, true);
    for (uint32_t i = 0; i < 8; i++) {
        float queries[SITE_QUERY];
        uint32_t lost;
        site_query(s, i % SITE_LAYERS, i + 20, queries);
        assert_true(site_step(s, sequence, i % SITE_LAYERS, queries, NULL, &lost) < 0.6);
        assert_int_equal(lost, 0);
    }
    kvt_sparse_close(sequence);
}

/* Of a sequence of which so many layers and a part of the next one were given: no layer follows,
 * and statistics are of the whole ones. */
static void check_half_given(sequence_site *s, kvt_sparse *sequence, uint32_t given)
{
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_int_equal(kvt_sparse_give(sequence, layer, s->k[layer], s->v[layer]), KVT_E_STATE);
    assert_ok(kvt_sparse_stats_get(sequence, &stats));
    assert_true((stats.pages > 0) == (given > 0) && (stats.index_bytes > 0) == (given > 0));
}

/* The nth write of an open fails: the open says so, and gives everything back. */
TEST(a_failed_write_fails_the_open)
{
    for (uint64_t nth = 0; nth < 24; nth += 5) {
        sequence_site *s = site_start(8 * MIB, 8 * MIB);
        kvt_sparse_options options = site_options();
        kvt_sparse *sequence = NULL;
        const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                       .kinds = TIERS_FAULT_WRITES,
                                       .skip = nth,
                                       .hits = 1,
                                       .status = KVT_E_IO};
        assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
        assert_ok(tiers_fault_add(s->drives[0].device, &rule));
        kvt_status status = KVT_OK;
        uint32_t given = 0;
        while (given < SITE_LAYERS &&
               (status = kvt_sparse_give(sequence, given, s->k[given], s->v[given])) == KVT_OK)
            given++;
        assert_true(status == KVT_E_IO || (status == KVT_OK && nth > 5));
        float queries[SITE_QUERY];
        kvt_sparse_step *step;
        site_query(s, 0, 0, queries);
        if (status != KVT_OK) {
            assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), KVT_E_STATE);
            check_half_given(s, sequence, given);
        }
        kvt_sparse_close(sequence);
        assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
        assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
        site_stop(s);
    }
}

/* ---- several sequences ---- */

typedef struct worker {
    sequence_site *site;
    kvt_sparse *sequence;
    uint32_t number;
    double error;
} worker;

/* The site's generator is shared, so each has queries of its own from the start. */
static void *work(void *context)
{
    worker *w = context;
    sequence_site own = *w->site;
    own.random = w->number;
    for (uint32_t i = 0; i < 20; i++) {
        float queries[SITE_QUERY];
        site_query(&own, i % SITE_LAYERS, w->number + i / 4, queries);
        w->error += site_step(&own, w->sequence, i % SITE_LAYERS, queries, NULL, NULL) / 20;
    }
    return NULL;
}

TEST(sequences_of_one_store_do_not_meet)
{
    enum { SEQUENCES = 4 };
    sequence_site *s = site_start(32 * MIB, 16 * MIB);
    kvt_sparse_options options = site_options();
    worker workers[SEQUENCES];
    pthread_t threads[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++)
        workers[i] = (worker){.site = s, .sequence = site_sequence(s, &options), .number = i + 1};
    for (uint32_t i = 0; i < SEQUENCES; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        pthread_join(threads[i], NULL);
        assert_true(workers[i].error < 0.6);
        assert_int_equal(site_stats(workers[i].sequence).lost_pages, 0);
        assert_int_equal(site_stats(workers[i].sequence).checksum_failures, 0);
        kvt_sparse_close(workers[i].sequence);
    }
    assert_int_equal(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
}

/* A caller with a smaller struct is not written past its end; one with a larger struct opens. */
TEST(options_of_other_sizes_are_taken)
{
    struct {
        kvt_sparse_options known;
        uint64_t unknown;
    } larger = {.unknown = 0};
    kvt_sparse_options smaller = {.seed = 7};
    kvt_sparse *sequence = NULL;
    char message[256];
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    const kvt_sparse_options usual = site_options();
    kvt_sparse_options_init_sized(&smaller, offsetof(kvt_sparse_options, seed), &usual.layout);
    assert_true(smaller.query_heads == usual.layout.kv_heads && smaller.seed == 7);
    assert_int_equal(kvt_sparse_open_live(s->store, &smaller, &sequence, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "struct_size"));
    larger.known = usual;
    larger.known.struct_size = sizeof larger;
    assert_ok(kvt_sparse_open_live(s->store, &larger.known, &sequence, message, sizeof message));
    kvt_sparse_close(sequence);
}

/* Queries are judged alike by every call that takes them, in a context that is all resident and in
 * one that has pages. */
TEST(queries_beyond_the_bound_are_refused)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    const float values[] = {NAN, INFINITY, 3.3e38f, 1.1e30f, -1.1e30f, 1e30f, -1e20f};
    for (uint32_t tokens = 80; tokens <= SITE_TOKENS; tokens += SITE_TOKENS - 80) {
        kvt_sparse_options options = site_options();
        options.layout.tokens = tokens;
        kvt_sparse *sequence = site_sequence(s, &options);
        for (uint32_t i = 0; i < sizeof values / sizeof *values; i++) {
            float queries[SITE_QUERY], output[SITE_QUERY];
            kvt_sparse_step *step = NULL;
            const kvt_sparse_pages *pages;
            const kvt_status wanted = i < 5 ? KVT_E_ARGUMENT : KVT_OK;
            site_query(s, 0, 1, queries);
            queries[7] = 1.0f;
            assert_ok(kvt_sparse_select(sequence, 1, queries, &step));
            assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
            queries[7] = values[i];
            assert_int_equal(kvt_sparse_attend(pages, queries, output, NULL), wanted);
            kvt_sparse_done(sequence, step);
            assert_int_equal(kvt_sparse_observe(sequence, 0, queries, 1), wanted);
            assert_int_equal(kvt_sparse_select(sequence, 0, queries, &step), wanted);
            if (wanted == KVT_OK) kvt_sparse_done(sequence, step);
        }
        kvt_sparse_close(sequence);
    }
}

/* Rows of every call that takes them; what is appended after a refusal has lost nothing. */
TEST(rows_beyond_the_bound_are_refused)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    static const uint16_t values[] = {0x7fc0, 0xff80, 0x7f80, 0x7f7f, 0x714a, 0x7149};
    static uint16_t rows[SITE_TOKENS * SITE_ROW];
    const kvt_sparse_options options = site_options();
    for (uint32_t i = 0; i < sizeof values / sizeof *values; i++) {
        const kvt_status wanted = i < 5 ? KVT_E_UNSUPPORTED : KVT_OK;
        kvt_sparse *sequence = site_sequence(s, &options);
        memcpy(rows, s->k[0], sizeof rows);
        rows[SITE_ROW + 70] = values[i]; /* the second token's second head */
        assert_int_equal(kvt_sparse_append(sequence, 0, rows, s->v[0], 2), wanted);
        assert_int_equal(kvt_sparse_append(sequence, 0, s->k[0], rows, 2), wanted);
        assert_ok(kvt_sparse_append(sequence, 0, s->k[0], s->v[0], 2));
        float queries[SITE_QUERY], output[SITE_QUERY];
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        site_query(s, 0, 1, queries);
        assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
        for (uint32_t d = 0; d < SITE_QUERY; d++)
            assert_true(isfinite(output[d]));
        kvt_sparse_done(sequence, step);
        kvt_sparse_close(sequence);
        for (int side = 0; side < 2; side++) {
            assert_ok(kvt_sparse_open_live(s->store, &options, &sequence, NULL, 0));
            rows[(side ? SITE_TOKENS - 1 : 700) * SITE_ROW + 3] = values[i];
            assert_int_equal(
                kvt_sparse_give(sequence, 0, side ? s->k[0] : rows, side ? rows : s->v[0]), wanted);
            if (wanted != KVT_OK) check_half_given(s, sequence, 0);
            kvt_sparse_close(sequence);
        }
    }
}
