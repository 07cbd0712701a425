/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_drop.c - entries that may lose tokens: every method and codec in every tier and view,
 * against an encoding of the test's own; who is given fewer tokens; what counts no such entry; keys
 * turned on; scores. Tokens lost after the put: under pressure, on the way to a lower tier, and
 * what a restart and a rebuilt catalog find of such entries.
 */
#include "codecs/keys_rerotate.h"
#include "codecs/view_rows.h"
#include "drop_site.h"
#include "engine_views.h"
#include "metrics_support.h"

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <kvterrace/recover.h>
#include <kvterrace/rope.h>
#include <kvterrace/watch.h>
#include <math.h>

/* The same into every layout that engines have. */
static void check_views(kvt_store *store, uint32_t number, uint32_t first)
{
    static uint8_t data[ENTRY];
    static uint32_t positions[POSITIONS];
    static expected e;
    const kvt_key key = support_key(number);
    fill_entry(number, data);
    for (uint32_t i = 0; i < ENGINE_VIEWS; i += 3) {
        engine_pool pool;
        kvt_kept_tokens kept = {
            .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
        kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
        assert_true(engine_pool_open(&pool, &engine_views[i], &drop_layout, 1, FILL));
        assert_ok(kvt_store_get(store, &key, &pool.view, UINT64_MAX, &info));
        expect(data, number, first, info.variant, &e);
        check_positions(&e, first, info.variant, positions);
        for (uint32_t m = 0; m < MATRICES; m++) {
            for (uint32_t at = 0; at < 2 * TOKENS; at++) {
                const uint32_t token = at / 2, head = at % 2;
                const uint8_t *had = engine_head_at(&pool.view, 2, m / 2, m % 2, token, head);
                const uint8_t *row = e.rows + ((size_t)m * e.tokens + token) * ROW + head * 128;
                if (token < e.tokens)
                    assert_memory_equal(had, row, 128);
                else
                    assert_true(had[0] == FILL && had[127] == FILL);
            }
        }
        engine_pool_close(&pool);
    }
}

/* A store whose one tier has room for a record of the form, and none for all of the entry. */
static void check_form(const char *name, double bits, kvt_tier tier, uint32_t first)
{
    const test_rung rung = {name, bits, 0.01, 0.02, true};
    kvt_variant wanted;
    site s;
    assert_ok(kvt_variant_parse(name, &wanted));
    site_prepare(&s, tier, ENTRY * 15 / 16, &rung, 1);
    site_open(&s);
    kvt_status status = put_entry(s.store, 1, first, true);
    if (status != KVT_OK) fail_msg("%s in tier %d: %d", name, tier, status);
    kvt_variant variant = check_entry(s.store, 1, first);
    assert_memory_equal(&variant, &wanted, sizeof wanted);
    check_views(s.store, 1, first);
    kvt_store_close(s.store);
}

typedef struct test_form {
    const char *name;
    double bits;
} test_form;

static const test_form forms[] = {
    {"drop:stream,50", 8.2},
    {"drop:stream,75+lossless", 9.5},
    {"drop:stream,50+planes:k8v8,g64", 4.6},
    {"drop:stream,25+entropy:k0.25v0.5,vchan", 1.5},
    {"drop:stream,50+kivi:k4v4,g64", 2.8},
    {"drop:scores,50", 8.2},
    {"drop:scores,25+lossless", 4},
    {"drop:scores,50+planes:k4v4,g64", 2.8},
    {"drop:scores,75+entropy:k0.25v0.5", 4},
    {"drop:knorm,50", 8.2},
    {"drop:keydiff,25+planes:k8v8,g64", 2.6},
    {"drop:lagkv,50+entropy:k0.25v0.5", 3},
};

TEST_EACH(store_folder_make, NULL);

TEST(every_form_comes_back_from_every_tier)
{
    for (uint32_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const kvt_tier tier = (kvt_tier)(KVT_TIER_HBM + i % 3);
        check_form(forms[i].name, forms[i].bits, tier, 0);
        check_form(forms[i].name, forms[i].bits, i % 3 == 2 ? KVT_TIER_DRAM : KVT_TIER_SSD, 0);
        /* The end of a longer chain has no sinks. */
        check_form(forms[i].name, forms[i].bits, KVT_TIER_DRAM, 100);
    }
}

/* ---- who is given fewer tokens, and who sees the entry ---- */

/* A store with entry 1 by StreamingLLM at a half, in DRAM. */
static void open_dropped(site *s, const char *form)
{
    const test_rung rung = {form, 8.2, 0.01, 0.02, true};
    site_prepare(s, KVT_TIER_DRAM, ENTRY * 15 / 16, &rung, 1);
    site_open(s);
    assert_ok(put_entry(s->store, 1, 0, true));
}

/* Gets that the metrics count as misses for a reason. */
static uint64_t count_misses(kvt_store *store, const char *reason)
{
    const size_t room = kvt_metrics_write(store, NULL, 0) + 4096;
    char *text = test_alloc(room);
    assert_true(kvt_metrics_write(store, text, room) <= room);
    metrics_text *parsed = metrics_parse(text);
    const double count = metrics_sum(parsed, "kvterrace_misses_total", reason);
    free(parsed);
    return (uint64_t)count;
}

static void assert_untouched(const uint8_t *got)
{
    for (size_t i = 0; i < ENTRY; i++)
        assert_int_equal(got[i], FILL);
}

TEST(only_gets_that_ask_are_given_fewer_tokens)
{
    static uint8_t got[ENTRY];
    static uint32_t positions[POSITIONS];
    const kvt_key key = support_key(1);
    site s;
    open_dropped(&s, "drop:knorm,50");
    memset(got, FILL, sizeof got);
    const kvt_store_stats before = support_stats(s.store);
    assert_int_equal(kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, NULL),
                     KVT_MISS);
    kvt_kept_tokens kept = {.struct_size = sizeof kept};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info), KVT_MISS);
    assert_true(info.refused_tokens && !info.timed_out);
    assert_int_equal(kept.count, 0);
    /* A set of one layer has room, that of the other has not. */
    kept = (kvt_kept_tokens){
        .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS - 1};
    info = (kvt_get_info){.struct_size = sizeof info, .kept = &kept};
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_ARGUMENT);
    assert_false(info.refused_tokens);
    kept.positions = NULL;
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_ARGUMENT);
    assert_untouched(got);
    const kvt_store_stats after = support_stats(s.store);
    assert_int_equal(after.misses - before.misses, 2);
    assert_int_equal(after.refused.tokens - before.refused.tokens, 2);
    assert_int_equal(count_misses(s.store, "refused_tokens"), 2);
    assert_int_equal(count_misses(s.store, "absent"), 0);
    assert_int_equal(after.load_failures, 0);
    check_entry(s.store, 1, 0);
    kvt_store_close(s.store);
    /* One set needs room for one. */
    open_dropped(&s, "drop:stream,50");
    kept.positions = positions;
    kept.capacity = TOKENS;
    assert_ok(kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info));
    assert_int_equal(kept.sets, 1);
    kept.capacity = TOKENS - 1;
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_ARGUMENT);
    kvt_store_close(s.store);
}

/* Submits one get and returns what became of it. */
static kvt_completion get_queued(kvt_queue *queue, const kvt_view *view, kvt_get_info *info)
{
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(1),
                                 .view = view,
                                 .info = info};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, UINT64_MAX));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    return done;
}

TEST(gets_of_queues_ask_with_an_info)
{
    static uint8_t got[ENTRY], data[ENTRY];
    static uint32_t positions[POSITIONS];
    static expected e;
    kvt_queue *queue;
    site s;
    open_dropped(&s, "drop:scores,50+planes:k8v8,g64");
    assert_ok(kvt_queue_open(s.store, NULL, &queue));
    const kvt_view view = codecs_packed_view(&drop_layout, got);
    memset(got, FILL, sizeof got);
    kvt_completion done = get_queued(queue, &view, NULL);
    assert_true(done.status == KVT_MISS && done.refused_tokens && !done.timed_out);
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .positions = positions};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    done = get_queued(queue, &view, &info);
    assert_true(done.status == KVT_MISS && done.refused_tokens);
    assert_int_equal(support_stats(s.store).refused.tokens, 2);
    assert_int_equal(count_misses(s.store, "refused_tokens"), 2);
    kept.capacity = 7;
    done = get_queued(queue, &view, &info);
    assert_true(done.status == KVT_E_ARGUMENT && !done.refused_tokens);
    info.struct_size = 8;
    assert_int_equal(get_queued(queue, &view, &info).status, KVT_E_ARGUMENT);
    assert_untouched(got);
    kept = (kvt_kept_tokens){
        .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
    info = (kvt_get_info){.struct_size = sizeof info, .kept = &kept};
    done = get_queued(queue, &view, &info);
    assert_ok(done.status);
    fill_entry(1, data);
    expect(data, 1, 0, done.variant, &e);
    assert_int_equal(kept.count, e.tokens);
    assert_int_equal(info.tier, KVT_TIER_DRAM);
    check_positions(&e, 0, done.variant, positions);
    for (uint32_t m = 0; m < MATRICES; m++)
        assert_memory_equal(got + m * MATRIX, e.rows + (size_t)m * e.tokens * ROW, e.tokens * ROW);
    kvt_queue_close(queue);
    kvt_store_close(s.store);
}

/* Calls that count tokens see no such entry, not even while its form is exact. */
static void check_uncounted(kvt_store *store)
{
    static uint8_t got[ENTRY];
    const kvt_key key = support_key(1);
    const kvt_view view = codecs_packed_view(&drop_layout, got);
    const kvt_view *views[] = {&view};
    kvt_worth worth = {.struct_size = sizeof worth};
    kvt_queue *queue;
    kvt_load *load;
    size_t count = 7;
    assert_ok(kvt_store_match(store, &key, 1, NULL, &count));
    assert_int_equal(count, 0);
    assert_ok(kvt_store_match(store, &key, 1, KVT_MATCH(.worth = &worth), NULL));
    assert_int_equal(worth.stored, 0);
    count = 7;
    assert_ok(kvt_prefix_get(store, &key, views, 1, UINT64_MAX, &count));
    assert_int_equal(count, 0);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    assert_int_equal(kvt_load_begin(queue, &key, views, 1, NULL, &load), KVT_MISS);
    kvt_queue_close(queue);
    assert_ok(kvt_store_exists(store, &key));
    count = 0;
    assert_ok(kvt_store_touch(store, &key, 1, &count));
    assert_int_equal(count, 1);
    double seconds;
    assert_ok(kvt_store_match(store, &key, 1, KVT_MATCH(.load_seconds = &seconds), NULL));
    assert_true(seconds > 0);
}

TEST(token_counts_leave_such_entries_out)
{
    static uint8_t data[ENTRY];
    const test_rung rung = {"drop:stream,50", 8.2, 0.01, 0.02, true};
    const kvt_key parent = support_key(1);
    site s;
    for (int exact = 0; exact < 2; exact++) {
        site_prepare(&s, KVT_TIER_DRAM, exact ? 8 * ENTRY : ENTRY * 15 / 16, &rung, 1);
        site_open(&s);
        kvt_events *events;
        kvt_event event;
        size_t count;
        assert_ok(kvt_events_open(s.store, 16, &events));
        assert_ok(put_entry(s.store, 1, 0, false));
        assert_ok(kvt_events_drain(events, &event, 1, &count, NULL));
        assert_true(count == 1 && event.kind == KVT_EVENT_STORED && event.tokens == 0);
        kvt_events_close(events);
        kvt_variant variant = check_entry(s.store, 1, 0);
        assert_int_equal(kvt_variant_drops_tokens(variant), !exact);
        check_uncounted(s.store);
        /* Nothing is counted behind it. */
        kvt_entry child = make_entry(2, NULL);
        child.parent = &parent;
        child.first_position = TOKENS;
        fill_entry(2, data);
        assert_int_equal(kvt_store_put(s.store, &child, KVT_PACKED(data, ENTRY)), KVT_E_ARGUMENT);
        kvt_store_close(s.store);
    }
}

/* ---- keys turned on ---- */

/* Compares keys of a get with a rope to those without, turned by the codecs' own call. */
static void check_turned(kvt_store *store, const kvt_rope *rope, uint32_t first)
{
    static uint8_t plain[ENTRY], turned[ENTRY];
    static uint32_t positions[POSITIONS];
    const kvt_key key = support_key(1);
    kvt_kept_tokens kept = {
        .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    engine_pool pool;
    assert_ok(kvt_store_get(store, &key, KVT_PACKED(plain, ENTRY), KVT_STORE_DEADLINE, &info));
    assert_int_equal(kept.sets, LAYERS);
    const uint32_t count = kept.count;
    kept.rope = rope;
    assert_ok(kvt_store_get(store, &key, KVT_PACKED(turned, ENTRY), KVT_STORE_DEADLINE, &info));
    assert_ptr_equal(kept.rope, rope);
    assert_true(engine_pool_open(&pool, &engine_views[5], &drop_layout, 1, FILL));
    assert_ok(kvt_store_get(store, &key, &pool.view, UINT64_MAX, &info));
    for (uint32_t m = 0; m < MATRICES; m++) {
        uint8_t *rows = plain + (size_t)m * MATRIX;
        if (m % 2 == KVT_SIDE_K) {
            assert_memory_not_equal(rows, turned + (size_t)m * MATRIX, (size_t)count * ROW);
            assert_ok(kvt_keys_rerotate(&drop_layout, rope, positions + m / 2 * count, count, first,
                                        first, rows, (uint64_t)count * ROW));
        }
        assert_memory_equal(rows, turned + (size_t)m * MATRIX, (size_t)count * ROW);
        for (uint32_t at = 0; at < 2 * count; at++)
            assert_memory_equal(rows + at * 128,
                                engine_head_at(&pool.view, 2, m / 2, m % 2, at / 2, at % 2), 128);
    }
    engine_pool_close(&pool);
}

TEST(keys_are_turned_on_request)
{
    static uint8_t got[ENTRY];
    static uint32_t positions[POSITIONS];
    const test_rung rung = {"drop:knorm,50", 8.2, 0.01, 0.02, true};
    const kvt_rope halves = {.struct_size = sizeof halves, .rotary_dim = 64, .base = 1e4};
    const kvt_rope bad[] = {
        {.struct_size = 4, .rotary_dim = 64, .base = 1e4},
        {.struct_size = sizeof bad[0], .rotary_dim = 63, .base = 1e4},
        {.struct_size = sizeof bad[0], .rotary_dim = 64, .base = (double)NAN},
        {.struct_size = sizeof bad[0], .rotary_dim = 64, .base = 1e4, .pairing = 2},
    };
    const kvt_rope wide = {.struct_size = sizeof wide, .rotary_dim = 128, .base = 1e4};
    const kvt_key key = support_key(1);
    site s;
    for (uint32_t first = 0; first < 200; first += 100) {
        site_prepare(&s, KVT_TIER_DRAM, ENTRY * 15 / 16, &rung, 1);
        site_open(&s);
        assert_ok(put_entry(s.store, 1, first, false));
        check_turned(s.store, &halves, first);
        kvt_kept_tokens kept = {
            .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
        kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
        for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            kept.rope = &bad[i];
            assert_int_equal(
                kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
                KVT_E_ARGUMENT);
        }
        kept.rope = &wide;
        assert_int_equal(
            kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
            KVT_E_UNSUPPORTED);
        kvt_store_close(s.store);
    }
    /* Where every token is there, nothing is turned. */
    site_prepare(&s, KVT_TIER_DRAM, 4 * ENTRY, &rung, 1);
    site_open(&s);
    assert_ok(put_entry(s.store, 1, 0, false));
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .rope = &halves};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    assert_ok(kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info));
    static uint8_t data[ENTRY];
    fill_entry(1, data);
    assert_memory_equal(got, data, ENTRY);
    kept.rope = &bad[0];
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_ARGUMENT);
    kept.rope = &wide; /* said of this form, too */
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_UNSUPPORTED);
    /* A later version's struct is taken while it asks for nothing that is not known here. */
    struct {
        kvt_rope rope;
        uint64_t later;
    } longer = {.rope = halves};
    longer.rope.struct_size = sizeof longer;
    kept.rope = &longer.rope;
    assert_ok(kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info));
    longer.later = 1;
    assert_int_equal(
        kvt_store_get(s.store, &key, KVT_PACKED(got, ENTRY), KVT_STORE_DEADLINE, &info),
        KVT_E_ARGUMENT);
    kvt_store_close(s.store);
}

/* ---- scores, and entries that keep every token ---- */

TEST(bad_scores_are_refused)
{
    static uint8_t data[ENTRY];
    static float scores[TOKENS];
    const test_rung rung = {"drop:scores,50", 8.2, 0.01, 0.02, true};
    const kvt_key key = support_key(1);
    site s;
    site_prepare(&s, KVT_TIER_DRAM, 4 * ENTRY, &rung, 1);
    site_open(&s);
    fill_entry(1, data);
    for (int fault = 0; fault < 8; fault++) {
        fill_scores(1, scores);
        kvt_entry entry = make_entry(1, scores);
        if (fault == 0) entry.token_score_count = TOKENS - 1;
        if (fault == 1) entry.token_score_count = TOKENS + 1;
        if (fault == 2) entry.token_score_count = 0;
        if (fault == 3) entry.token_scores = NULL;
        if (fault == 4) scores[77] = (float)NAN;
        if (fault == 5) scores[TOKENS - 1] = (float)INFINITY;
        if (fault == 6) memset(scores, 0, sizeof scores);
        if (fault == 7) entry.layout.tokens_may_drop = 0;
        assert_int_equal(kvt_store_put(s.store, &entry, KVT_PACKED(data, ENTRY)), KVT_E_ARGUMENT);
        assert_int_equal(kvt_store_exists(s.store, &key), KVT_MISS);
    }
    kvt_entry opaque = make_entry(1, scores);
    opaque.layout = (kvt_layout){
        .dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = ENTRY, .tokens = TOKENS, .tokens_may_drop = 1};
    fill_scores(1, scores);
    assert_int_equal(kvt_store_put(s.store, &opaque, KVT_PACKED(data, ENTRY)), KVT_E_ARGUMENT);
    assert_int_equal(support_stats(s.store).tiers[KVT_TIER_DRAM].entries, 0);
    kvt_store_close(s.store);
}

/* Only the drop form would fit: an entry that may not take it is refused, and others are exact. */
TEST(others_keep_every_token)
{
    static uint8_t data[ENTRY];
    const test_rung rungs[] = {{"drop:scores,50", 8.2, 0.01, 0.02, true},
                               {"drop:stream,50", 8.2, 0.03, 0.04, true}};
    kvt_entry entry = make_entry(1, NULL);
    site s;
    fill_entry(1, data);
    /* Without scores there is no form by scores. */
    site_prepare(&s, KVT_TIER_DRAM, ENTRY * 15 / 16, rungs, 1);
    site_open(&s);
    assert_string_equal(s.message, "");
    assert_int_equal(kvt_store_put(s.store, &entry, KVT_PACKED(data, ENTRY)), KVT_REFUSED);
    assert_ok(put_entry(s.store, 1, 0, true));
    kvt_store_close(s.store);
    /* The layout does not say that tokens may go. */
    site_prepare(&s, KVT_TIER_DRAM, ENTRY * 15 / 16, rungs, 2);
    site_open(&s);
    entry.layout.tokens_may_drop = 0;
    assert_int_equal(kvt_store_put(s.store, &entry, KVT_PACKED(data, ENTRY)), KVT_REFUSED);
    entry.layout.tokens_may_drop = 1;
    assert_ok(kvt_store_put(s.store, &entry, KVT_PACKED(data, ENTRY)));
    kvt_store_close(s.store);
    /* The ladder's does not, and the open says so. */
    s.options.loss.ladder_layout.tokens_may_drop = 0;
    site_open(&s);
    assert_non_null(strstr(s.message, "2 variants that drop tokens"));
    assert_int_equal(put_entry(s.store, 1, 0, true), KVT_REFUSED);
    kvt_store_close(s.store);
    /* The limit of loss holds. */
    s.options.loss.ladder_layout.tokens_may_drop = 1;
    s.options.loss.loss_limit = 0.015;
    site_open(&s);
    assert_int_equal(put_entry(s.store, 1, 0, true), KVT_REFUSED);
    kvt_store_close(s.store);
    s.options.loss.ladder_layout.tokens_may_drop = 2;
    assert_int_equal(kvt_store_open(&s.options, &s.store, s.message, sizeof s.message),
                     KVT_E_ARGUMENT);
}

/* Of a chain of 108 tokens a 32nd keeps the sinks alone, and the last 8 tokens have none. */
TEST(forms_that_would_keep_nothing_are_not_offered)
{
    static uint8_t data[8 * LAYERS * 2 * ROW];
    const test_rung rung = {"drop:stream,3.125", 0.6, 0.01, 0.02, true};
    kvt_entry entry = make_entry(1, NULL);
    site s;
    site_prepare(&s, KVT_TIER_DRAM, 16384, &rung, 1);
    site_open(&s);
    entry.layout.tokens = 8;
    entry.first_position = 100;
    assert_int_equal(kvt_store_put(s.store, &entry, KVT_PACKED(data, sizeof data)), KVT_REFUSED);
    entry.first_position = 0;
    kvt_status status = kvt_store_put(s.store, &entry, KVT_PACKED(data, sizeof data));
    assert_true(status == KVT_OK || status == KVT_REFUSED);
    kvt_store_close(s.store);
}

/* ---- after the put ---- */

/* Moves that were carried out, by what they did to the tokens. */
typedef struct seen_moves {
    uint32_t dropped;  /* from all tokens to some */
    uint32_t narrowed; /* from some to fewer */
    uint32_t coarser;  /* the same tokens in another form */
    uint32_t wrong;    /* to more tokens, or by another method */
    uint32_t count;    /* of the entries seen, and the forms that they had last */
    uint64_t handles[64];
    kvt_variant forms[64];
} seen_moves;

/* The form that an entry had last, raw before its first one. */
static kvt_variant *seen_form(seen_moves *seen, uint64_t handle)
{
    uint32_t i = 0;
    while (i < seen->count && seen->handles[i] != handle)
        i++;
    assert_true(i < 64);
    if (i == seen->count) {
        seen->handles[seen->count++] = handle;
        seen->forms[i] = (kvt_variant){.codec = KVT_CODEC_RAW};
    }
    return &seen->forms[i];
}

static void note_move(void *context, const kvt_move *move, kvt_status outcome)
{
    seen_moves *seen = context;
    if (outcome != KVT_OK || move->kind == KVT_MOVE_EVICT) return;
    kvt_variant *form = seen_form(seen, move->handle);
    const kvt_variant from = *form, to = move->to_variant;
    *form = to;
    if (move->kind != KVT_MOVE_CHANGE) return;
    const bool had = !kvt_variant_drops_tokens(from), has = !kvt_variant_drops_tokens(to);
    if (had || has) {
        seen->dropped += had && !has;
        seen->wrong += has && !had;
        return;
    }
    seen->narrowed += codecs_drop_keep(to) < codecs_drop_keep(from);
    seen->coarser += to.mode >> 8 == from.mode >> 8 && memcmp(&from, &to, sizeof to) != 0;
    seen->wrong +=
        codecs_drop_keep(to) > codecs_drop_keep(from) || to.mode >> 13 != from.mode >> 13;
}

enum { PRESSED = 60 };

/* Puts more than the store has room for, every other entry with scores. Every entry that is left
 * comes back as its form says. Returns how many have dropped tokens. */
static uint32_t press(site *s)
{
    uint32_t dropped = 0, held = 0;
    for (uint32_t i = 0; i < PRESSED; i++) {
        kvt_status status = put_entry(s->store, i, 0, i % 2 == 0);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        for (uint32_t round = 0; round < 2; round++)
            assert_ok(kvt_store_maintain(s->store, NULL));
    }
    for (uint32_t i = 0; i < PRESSED; i++) {
        const kvt_key key = support_key(i);
        if (kvt_store_exists(s->store, &key) != KVT_OK) continue;
        kvt_variant variant = check_entry(s->store, i, 0);
        const bool scored = codecs_drop_method(variant) == KVT_DROP_SCORES;
        assert_true(!scored || i % 2 == 0);
        dropped += kvt_variant_drops_tokens(variant);
        held++;
    }
    assert_true(held > 0);
    return dropped;
}

static const test_rung pressed_rungs[] = {
    {"drop:stream,50", 8.2, 0.001, 0.002, true},
    {"drop:stream,25", 4.1, 0.003, 0.004, true},
    {"drop:stream,25+planes:k8v8,g64", 2.4, 0.005, 0.006, true},
    {"drop:stream,25+planes:k4v4,g64", 1.4, 0.010, 0.012, true},
    {"drop:scores,50", 8.1, 0.0008, 0.0015, true},
    {"drop:scores,12.5", 2.2, 0.004, 0.005, true},
};

TEST(pressure_drops_more_and_more_tokens)
{
    seen_moves seen = {0};
    site s;
    site_prepare(&s, KVT_TIER_DRAM, 6 * ENTRY, pressed_rungs, 6);
    s.options.policy = "adaptcache"; /* compresses what is there, step by step */
    s.options.observer.call = note_move;
    s.options.observer.context = &seen;
    site_open(&s);
    assert_true(press(&s) > PRESSED / 4);
    assert_true(seen.dropped > 0 && seen.narrowed > 0);
    assert_int_equal(seen.wrong, 0);
    assert_int_equal(support_stats(s.store).load_failures, 0);
    kvt_store_close(s.store);
    /* What may lose less than the drop forms stays whole. */
    s.options.loss.loss_limit = 0.001;
    seen = (seen_moves){0};
    site_open(&s);
    assert_int_equal(press(&s), 0);
    kvt_store_close(s.store);
}

/* The same with a tier below, whose records are read by its device, and puts that are handed over.
 */
TEST(tokens_are_dropped_on_the_way_down)
{
    seen_moves seen = {0};
    site s;
    site_prepare(&s, KVT_TIER_SSD, ENTRY * 3 / 2, pressed_rungs, 6);
    s.options.policy = "adaptcache";
    s.options.tiers[KVT_TIER_DRAM].capacity_bytes = ENTRY * 3 / 2;
    s.options.limits.put_staging_bytes = 4 * ENTRY;
    s.options.observer.call = note_move;
    s.options.observer.context = &seen;
    site_open(&s);
    for (uint32_t i = 0; i < PRESSED; i++) {
        kvt_status status = put_entry(s.store, i, 0, i % 2 == 0);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        assert_ok(kvt_store_flush(s.store));
        assert_ok(kvt_store_maintain(s.store, NULL));
    }
    uint32_t dropped[KVT_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < PRESSED; i++) {
        const kvt_key key = support_key(i);
        kvt_description description = {.struct_size = sizeof description};
        if (kvt_store_describe(s.store, &key, &description) != KVT_OK) continue;
        dropped[description.tier] += kvt_variant_drops_tokens(check_entry(s.store, i, 0));
    }
    assert_true(dropped[KVT_TIER_SSD] > 0);
    assert_true(seen.dropped > 0);
    assert_int_equal(seen.wrong, 0);
    kvt_store_close(s.store);
}

/* Entries of an SSD with room for one record of the form alone, after a restart and after the
 * catalog was lost. */
TEST(dropped_entries_outlive_the_store)
{
    static const char *const names[] = {"drop:scores,50+planes:k8v8,g64", "drop:keydiff,50"};
    for (uint32_t i = 0; i < 2; i++) {
        const test_rung rung = {names[i], 8.2, 0.01, 0.02, true};
        const kvt_key key = support_key(1);
        kvt_recover_options options;
        kvt_recover_report report = {.struct_size = sizeof report};
        site s;
        site_prepare(&s, KVT_TIER_SSD, ENTRY * 15 / 16, &rung, 1);
        site_open(&s);
        assert_ok(put_entry(s.store, 1, 100, true));
        const kvt_variant before = check_entry(s.store, 1, 100);
        kvt_store_close(s.store);
        site_open(&s);
        assert_int_equal(support_stats(s.store).recovered, 1);
        kvt_variant after = check_entry(s.store, 1, 100);
        assert_memory_equal(&after, &before, sizeof after);
        kvt_store_close(s.store);
        assert_int_equal(unlink(catalog_path), 0);
        kvt_recover_options_init(&options);
        assert_ok(kvt_store_recover(&s.options, &options, &report, s.message, sizeof s.message));
        assert_int_equal(report.entries, 1);
        site_open(&s);
        after = check_entry(s.store, 1, 100);
        assert_memory_equal(&after, &before, sizeof after);
        kvt_store_close(s.store);
        /* A store that lets no token go serves none of it. */
        s.options.loss.ladder_layout.tokens_may_drop = 0;
        site_open(&s);
        assert_int_equal(support_stats(s.store).recovery_drops, 1);
        assert_int_equal(kvt_store_exists(s.store, &key), KVT_MISS);
        kvt_store_close(s.store);
    }
}
