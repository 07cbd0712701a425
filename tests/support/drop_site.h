/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_site.h - stores whose entries may lose tokens, and what is to come back of an entry in a
 * form by an encoding of the test's own.
 */
#ifndef TESTS_DROP_SITE_H
#define TESTS_DROP_SITE_H

#include "codecs/codecs.h"
#include "ladder_support.h"
#include "steady_costs.h"
#include "store_folder.h"

#include <kvterrace/names.h>

enum {
    TOKENS = 512,
    LAYERS = 2,
    MATRICES = 2 * LAYERS,
    ROW = 2 * 64 * 2,
    MATRIX = TOKENS * ROW,
    ENTRY = MATRICES * MATRIX,
    FILL = 0xee,
    POSITIONS = LAYERS * TOKENS
};

static const kvt_layout drop_layout = {.layers = LAYERS,
                                       .kv_heads = 2,
                                       .head_dim = 64,
                                       .dtype = KVT_DTYPE_BF16,
                                       .tokens = TOKENS,
                                       .tokens_may_drop = 1};

/* ---- what is put, and what is to come back ---- */

static inline void fill_entry(uint32_t number, uint8_t *data)
{
    codecs_kv_sample_fill(&drop_layout, 1000 + number, data);
}

/* Scores with ties, and below 0. */
static inline void fill_scores(uint32_t number, float *scores)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        scores[i] = (float)((i * 7919 + number * 104729) % 211) - 100;
}

/* An entry as one encoding of the test's own gives it back. */
typedef struct expected {
    uint32_t tokens, sets;
    uint32_t positions[POSITIONS];
    uint8_t rows[ENTRY]; /* [matrix][kept token] */
} expected;

static inline void expect(const uint8_t *data, uint32_t number, uint32_t first, kvt_variant variant,
                          expected *out)
{
    static _Alignas(4096) uint8_t record[2 * ENTRY], scratch[4 << 20];
    static float scores[TOKENS];
    const kvt_record_spec spec = {
        .generation = 1, .layout = drop_layout, .variant = variant, .first_position = first};
    const bool scored = codecs_drop_method(variant) == KVT_DROP_SCORES;
    kvt_codec_extras extras = {.struct_size = sizeof extras};
    kvt_record_info info;
    uint64_t bytes;
    fill_scores(number, scores);
    if (scored) extras.scores = scores;
    if (scored) extras.score_layers = 1;
    kvt_status status = kvt_record_encode_with(&spec, &extras, data, ENTRY, record, sizeof record,
                                               scratch, sizeof scratch, &bytes);
    assert_true(status == KVT_OK || status == KVT_RAW);
    assert_ok(kvt_record_verify(record, bytes, &info));
    out->tokens = info.stored_tokens;
    out->sets = 0;
    if (kvt_variant_drops_tokens(variant))
        out->sets = scored || variant.mode >> 13 == 1 ? 1 : LAYERS;
    for (uint32_t set = 0; set < out->sets; set++)
        assert_ok(
            kvt_record_kept_tokens(record, bytes, set, out->positions + set * out->tokens, TOKENS));
    assert_ok(kvt_record_decode(record, bytes, NULL, out->rows, info.decoded_bytes, scratch,
                                sizeof scratch));
}

/* Sinks and the chain's last tokens stay, positions ascend. */
static inline void check_positions(const expected *e, uint32_t first, kvt_variant variant,
                                   const uint32_t *positions)
{
    assert_memory_equal(positions, e->positions, (size_t)e->sets * e->tokens * sizeof *positions);
    for (uint32_t set = 0; set < e->sets; set++) {
        const uint32_t *own = positions + set * e->tokens;
        for (uint32_t i = 0; i < e->tokens; i++)
            assert_true(own[i] < TOKENS && (i == 0 || own[i] > own[i - 1]));
        for (uint32_t i = 0; first == 0 && i < 4; i++)
            assert_int_equal(own[i], i);
        /* Of StreamingLLM the rest is the end of the chain, which is the entry's. */
        if (variant.mode >> 13 != KVT_DROP_STREAM) continue;
        for (uint32_t i = first == 0 ? 4 : 0; i < e->tokens; i++)
            assert_int_equal(own[i], TOKENS - e->tokens + i);
    }
}

/* ---- stores ---- */

typedef struct site {
    kvt_store_options options;
    kvt_device_config device;
    kvt_store *store;
    char message[256];
} site;

/* Options of a store with one tier. Its ladder is the rungs. */
static inline void site_prepare(site *s, kvt_tier tier, uint64_t bytes, const test_rung *rungs,
                                uint32_t count)
{
    memset(s, 0, sizeof *s);
    (void)unlink(profile_path);
    (void)unlink(ssd_path);
    (void)unlink(catalog_path);
    ladder_make_profile(profile_path, rungs, count);
    kvt_store_options_init(&s->options);
    s->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    s->options.limits.staging_bytes = 32 << 20;
    s->options.limits.tick_seconds = 0;
    s->options.learning.profile_path = profile_path;
    s->options.lossless = false;
    s->options.loss.ladder = true;
    s->options.loss.ladder_layout = drop_layout;
    s->options.loss.loss_limit = 0.5;
    s->options.loss.alpha_seconds = 1;
    if (tier == KVT_TIER_HBM) s->options.tiers[tier].emulated = true;
    if (tier != KVT_TIER_SSD) s->options.tiers[tier].capacity_bytes = bytes;
    if (tier != KVT_TIER_SSD) return;
    s->device = support_file_config("ssd0", ssd_path, bytes);
    support_tier(&s->options, tier, &s->device, 1);
    s->options.durability.catalog_path = catalog_path;
}

static inline void site_open(site *s)
{
    if (kvt_store_open(&s->options, &s->store, s->message, sizeof s->message) != KVT_OK)
        fail_msg("%s", s->message);
}

static inline kvt_entry make_entry(uint32_t number, const float *scores)
{
    return (kvt_entry){.struct_size = sizeof(kvt_entry),
                       .key = support_key(number),
                       .layout = drop_layout,
                       .recompute_seconds = 1e4,
                       .token_scores = scores,
                       .token_score_count = scores != NULL ? TOKENS : 0};
}

static inline kvt_status put_entry(kvt_store *store, uint32_t number, uint32_t first, bool scored)
{
    static uint8_t data[ENTRY];
    static float scores[TOKENS];
    fill_entry(number, data);
    fill_scores(number, scores);
    kvt_entry entry = make_entry(number, scored ? scores : NULL);
    entry.first_position = first;
    entry.recompute_seconds = 1e3 * (number + 1); /* the later ones are worth more */
    kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
    memset(scores, 0, sizeof scores); /* the store has its own */
    return status;
}

/* Whether the kept rows are at the front of each matrix, and nothing behind them was written. */
static inline bool rows_match(const uint8_t *got, const expected *e)
{
    const size_t kept = (size_t)e->tokens * ROW;
    for (uint32_t m = 0; m < MATRICES; m++) {
        if (memcmp(got + m * MATRIX, e->rows + m * kept, kept) != 0) return false;
        for (size_t i = kept; i < MATRIX; i++)
            if (got[m * MATRIX + i] != FILL) return false;
    }
    return true;
}

/* Gets an entry packed, with room for positions, and compares every byte with what its form gives
 * of the entry, or of planes at 8 bits of it, which count as exact. Returns the form. */
static inline kvt_variant check_entry(kvt_store *store, uint32_t number, uint32_t first)
{
    static uint8_t data[ENTRY], got[ENTRY];
    static uint32_t positions[POSITIONS];
    static expected e;
    const kvt_key key = support_key(number);
    kvt_kept_tokens kept = {
        .struct_size = sizeof kept, .positions = positions, .capacity = POSITIONS};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    memset(got, FILL, sizeof got);
    memset(positions, 0xff, sizeof positions);
    assert_ok(kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info));
    fill_entry(number, data);
    expect(data, number, first, info.variant, &e);
    assert_int_equal(kept.count, e.tokens);
    assert_int_equal(kept.sets, e.sets);
    check_positions(&e, first, info.variant, positions);
    if (!rows_match(got, &e)) {
        static expected fine;
        kvt_variant planes;
        assert_ok(kvt_variant_parse("planes:k8v8,g64", &planes));
        expect(data, number, first, planes, &fine);
        expect(fine.rows, number, first, info.variant, &e);
        check_positions(&e, first, info.variant, positions);
        assert_true(rows_match(got, &e));
    }
    kvt_description description = {.struct_size = sizeof description};
    assert_ok(kvt_store_describe(store, &key, &description));
    assert_int_equal(description.tokens_kept, e.tokens);
    return info.variant;
}

#endif
