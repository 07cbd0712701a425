/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_plans.c - the same rows, queries and seed give the same plans: in two runs here, and
 * with --print under two compilers, whose outputs tests/compare_plans.sh compares.
 */
#include "sequence_site.h"

enum { MIB = 1 << 20, GIVEN = 2400, STEPS = 60, TEXT_BYTES = 1 << 16 };

typedef struct plan_log {
    char *text;
    size_t length, room;
} plan_log;

static void log_add(plan_log *log, const char *text)
{
    const size_t length = strlen(text);
    if (log->length + length + 1 > log->room) {
        log->room = 2 * (log->room + length);
        log->text = realloc(log->text, log->room);
        assert_non_null(log->text);
    }
    memcpy(log->text + log->length, text, length + 1);
    log->length += length;
}

/* Plans of a sequence that is warmed up and appended to. */
static void log_plans(plan_log *log)
{
    static char text[TEXT_BYTES];
    float rows[8 * SITE_QUERY];
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = site_options();
    options.layout.tokens = GIVEN;
    options.tokens_max = SITE_TOKENS;
    options.join_tokens = SITE_TOKENS; /* when a page is written behind is the drives' matter */
    options.budget_bytes = 64 << 10;
    options.seed = 5;
    options.single_share = 0.1f;
    kvt_sparse *sequence = site_sequence(s, &options);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 8; i++)
            site_query(s, layer, i, rows + (size_t)i * SITE_QUERY);
        assert_ok(kvt_sparse_observe(sequence, layer, rows, 8));
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t layer = i % SITE_LAYERS;
        const size_t at = (size_t)(GIVEN + i / SITE_LAYERS * 17) * SITE_ROW;
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        size_t length;
        site_query(s, layer, i / 5, rows);
        assert_ok(kvt_sparse_append(sequence, layer, s->k[layer] + at, s->v[layer] + at, 17));
        assert_ok(kvt_sparse_select(sequence, layer, rows, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        for (uint32_t h = 0; h < SITE_HEADS; h++) {
            assert_ok(kvt_sparse_explain(sequence, layer, h, text, sizeof text, &length));
            assert_true(length < sizeof text);
            log_add(log, text);
            for (uint32_t p = 0; p < pages->heads[h].page_count; p++) {
                const kvt_sparse_page *page = &pages->heads[h].pages[p];
                (void)snprintf(text, sizeof text, "%u of %u\n", page->tokens, page->positions[0]);
                log_add(log, text);
            }
        }
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
}

TEST(the_same_seed_gives_the_same_plans)
{
    plan_log logs[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    for (int i = 0; i < 2; i++)
        log_plans(&logs[i]);
    assert_true(logs[0].length > 10000);
    assert_string_equal(logs[0].text, logs[1].text);
    for (int i = 0; i < 2; i++)
        free(logs[i].text);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        plan_log log = {NULL, 0, 0};
        log_plans(&log);
        const bool fine = fputs(log.text, stdout) >= 0;
        free(log.text);
        return fine ? 0 : 1;
    }
    return tests_run();
}
