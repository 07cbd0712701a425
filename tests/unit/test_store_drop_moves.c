/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_drop_moves.c - entries that lose tokens after their put: under pressure, on the way to
 * a lower tier, and what a restart and a rebuilt catalog find of them.
 */
#include "drop_site.h"

#include <kvterrace/recover.h>

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
            assert_int_equal(kvt_maintain(s->store, NULL), KVT_OK);
    }
    for (uint32_t i = 0; i < PRESSED; i++) {
        const kvt_key key = support_key(i);
        if (kvt_exists(s->store, &key) != KVT_OK) continue;
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

TEST_EACH(make_folder, remove_folder);

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
    kvt_close(s.store);
    /* What may lose less than the drop forms stays whole. */
    s.options.loss_limit = 0.001;
    seen = (seen_moves){0};
    site_open(&s);
    assert_int_equal(press(&s), 0);
    kvt_close(s.store);
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
    s.options.put_staging_bytes = 4 * ENTRY;
    s.options.observer.call = note_move;
    s.options.observer.context = &seen;
    site_open(&s);
    for (uint32_t i = 0; i < PRESSED; i++) {
        kvt_status status = put_entry(s.store, i, 0, i % 2 == 0);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        assert_int_equal(kvt_flush(s.store), KVT_OK);
        assert_int_equal(kvt_maintain(s.store, NULL), KVT_OK);
    }
    uint32_t dropped[KVT_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < PRESSED; i++) {
        const kvt_key key = support_key(i);
        kvt_description description = {.struct_size = sizeof description};
        if (kvt_describe(s.store, &key, &description) != KVT_OK) continue;
        dropped[description.tier] += kvt_variant_drops_tokens(check_entry(s.store, i, 0));
    }
    assert_true(dropped[KVT_TIER_SSD] > 0);
    assert_true(seen.dropped > 0);
    assert_int_equal(seen.wrong, 0);
    kvt_close(s.store);
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
        assert_int_equal(put_entry(s.store, 1, 100, true), KVT_OK);
        const kvt_variant before = check_entry(s.store, 1, 100);
        kvt_close(s.store);
        site_open(&s);
        assert_int_equal(support_stats(s.store).recovered, 1);
        kvt_variant after = check_entry(s.store, 1, 100);
        assert_memory_equal(&after, &before, sizeof after);
        kvt_close(s.store);
        assert_int_equal(unlink(catalog_path), 0);
        kvt_recover_options_init(&options);
        assert_int_equal(
            kvt_store_recover(&s.options, &options, &report, s.message, sizeof s.message), KVT_OK);
        assert_int_equal(report.entries, 1);
        site_open(&s);
        after = check_entry(s.store, 1, 100);
        assert_memory_equal(&after, &before, sizeof after);
        kvt_close(s.store);
        /* A store that lets no token go serves none of it. */
        s.options.ladder_layout.tokens_may_drop = 0;
        site_open(&s);
        assert_int_equal(support_stats(s.store).recovery_drops, 1);
        assert_int_equal(kvt_exists(s.store, &key), KVT_MISS);
        kvt_close(s.store);
    }
}
