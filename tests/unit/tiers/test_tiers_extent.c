/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_extent.c - the extent allocator against a bitmap of grains that is too simple to be
 * wrong.
 */

#include "cases.h"
#include "dice.h"

#include <stdlib.h>
#include <string.h>

#include "tiers/pool/extent.h"
#include "tiers/pool/pool.h"

enum { GRAINS = 2048, HELD_MAX = 1024, OPERATIONS = 1000000, AUDIT_EVERY = 4999 };

#define GRAIN ((uint64_t)TIERS_GRAIN_BYTES)
#define BEGIN (3 * GRAIN)

typedef struct model {
    tiers_space *space;
    uint8_t used[GRAINS];
    tiers_range held[HELD_MAX];
    uint32_t held_count;
    uint64_t used_grains;
} model;

/* Marks a range in the model; every grain must change. */
static void model_mark(model *m, tiers_range range, uint8_t used)
{
    assert_true(range.bytes > 0 && range.bytes % GRAIN == 0 && range.offset % GRAIN == 0);
    assert_true(range.offset >= BEGIN && range.offset + range.bytes <= BEGIN + GRAINS * GRAIN);
    uint64_t first = (range.offset - BEGIN) / GRAIN;
    for (uint64_t i = first; i < first + range.bytes / GRAIN; i++) {
        assert_int_not_equal(m->used[i], used);
        m->used[i] = used;
    }
    m->used_grains =
        used ? m->used_grains + range.bytes / GRAIN : m->used_grains - range.bytes / GRAIN;
}

/* Largest free run, number of free runs, and the start of the smallest run that fits. */
static uint64_t model_scan(const model *m, uint64_t fit, uint64_t *largest, uint32_t *runs)
{
    uint64_t best_size = UINT64_MAX;
    uint64_t best_at = UINT64_MAX;
    *largest = 0;
    *runs = 0;
    for (uint64_t i = 0; i < GRAINS;) {
        uint64_t end = i;
        while (end < GRAINS && !m->used[end])
            end++;
        if (end > i) {
            (*runs)++;
            if (end - i > *largest) *largest = end - i;
            if (end - i >= fit && end - i < best_size) {
                best_size = end - i;
                best_at = i;
            }
        }
        i = end + 1;
    }
    return best_at;
}

static void model_audit(const model *m)
{
    uint64_t largest;
    uint32_t runs;
    tiers_space_facts facts;
    model_scan(m, 1, &largest, &runs);
    tiers_space_facts_get(m->space, &facts);
    assert_int_equal(facts.capacity_bytes, GRAINS * GRAIN);
    assert_int_equal(facts.free_bytes, (GRAINS - m->used_grains) * GRAIN);
    assert_int_equal(facts.largest_bytes, largest * GRAIN);
    assert_int_equal(facts.fragments, runs);
    assert_int_equal(facts.held, m->held_count);
}

static void model_acquire(model *m, uint64_t grains, bool check_fit)
{
    uint64_t largest = 0;
    uint32_t runs = 0;
    uint64_t expected = check_fit ? model_scan(m, grains, &largest, &runs) : 0;
    tiers_range range;
    if (m->held_count == HELD_MAX) return;
    kvt_status status = tiers_space_acquire(m->space, grains * GRAIN, &range);
    if (m->used_grains == GRAINS) {
        assert_int_equal(status, KVT_E_SPACE);
        return;
    }
    assert_ok(status);
    if (check_fit && expected != UINT64_MAX) {
        assert_int_equal(range.offset, BEGIN + expected * GRAIN);
        assert_int_equal(range.bytes, grains * GRAIN);
    } else if (check_fit) {
        assert_int_equal(range.bytes, largest * GRAIN);
    }
    assert_true(range.bytes <= grains * GRAIN);
    model_mark(m, range, 1);
    m->held[m->held_count++] = range;
}

static void model_adopt(model *m, uint64_t first, uint64_t grains)
{
    if (m->held_count == HELD_MAX) return;
    bool expect = grains > 0 && first + grains <= GRAINS;
    for (uint64_t i = first; expect && i < first + grains; i++)
        expect = !m->used[i];
    tiers_range range = {.offset = BEGIN + first * GRAIN, .bytes = grains * GRAIN};
    kvt_status status = tiers_space_adopt(m->space, range);
    assert_int_equal(status, expect ? KVT_OK : KVT_E_CORRUPT);
    if (status != KVT_OK) return;
    model_mark(m, range, 1);
    m->held[m->held_count++] = range;
}

static void model_release(model *m, uint64_t pick)
{
    if (m->held_count == 0) return;
    uint32_t at = (uint32_t)(pick % m->held_count);
    model_mark(m, m->held[at], 0);
    tiers_space_release(m->space, m->held[at]);
    m->held[at] = m->held[--m->held_count];
}

TEST(random_operations_match_a_bitmap)
{
    model *m = test_zeros(sizeof *m);
    uint64_t seed = 0x1234567;
    assert_ok(tiers_space_open(BEGIN, BEGIN + GRAINS * GRAIN, &m->space));
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        uint64_t what = dice_shift(&seed) % 100;
        uint64_t size = dice_shift(&seed);
        /* The mix drifts between nearly empty and nearly full. */
        uint64_t takes = (i / 50000) % 2 == 0 ? 50 : 35;
        if (what < takes)
            model_acquire(m, 1 + size % (size % 16 == 0 ? 200 : 9), i % 101 == 0);
        else if (what < takes + 40)
            model_release(m, size);
        else
            model_adopt(m, size % (GRAINS + 4), dice_shift(&seed) % 12);
        if (i % AUDIT_EVERY == 0) model_audit(m);
    }
    while (m->held_count > 0)
        model_release(m, dice_shift(&seed));
    model_audit(m);
    tiers_space_facts facts;
    tiers_space_facts_get(m->space, &facts);
    assert_int_equal(facts.fragments, 1);
    tiers_space_close(m->space);
}

TEST(acquire_is_best_fit_and_falls_back_to_pieces)
{
    tiers_space *space;
    tiers_range ranges[8];
    assert_ok(tiers_space_open(0, 16 * GRAIN, &space));
    for (int i = 0; i < 8; i++)
        assert_ok(tiers_space_acquire(space, 2 * GRAIN, &ranges[i]));
    tiers_range none;
    assert_int_equal(tiers_space_acquire(space, GRAIN, &none), KVT_E_SPACE);
    tiers_space_release(space, ranges[0]); /* grains 0-1 */
    tiers_space_release(space, ranges[2]); /* 4-7 with the next */
    tiers_space_release(space, ranges[3]);
    tiers_space_release(space, ranges[6]); /* 12-13 */
    tiers_range got;
    assert_ok(tiers_space_acquire(space, 2 * GRAIN, &got));
    assert_int_equal(got.offset, 0);
    assert_ok(tiers_space_acquire(space, 5 * GRAIN, &got));
    assert_int_equal(got.offset, 4 * GRAIN);
    assert_int_equal(got.bytes, 4 * GRAIN);
    assert_ok(tiers_space_acquire(space, GRAIN, &got));
    assert_int_equal(got.offset, 12 * GRAIN);
    tiers_space_close(space);
}

TEST(adopt_refuses_what_is_not_there)
{
    tiers_space *space;
    assert_ok(tiers_space_open(2 * GRAIN, 10 * GRAIN, &space));
    const tiers_range wrong[] = {
        {.offset = 2 * GRAIN, .bytes = 0},
        {.offset = 2 * GRAIN + 512, .bytes = GRAIN},
        {.offset = 2 * GRAIN, .bytes = GRAIN + 1},
        {.offset = GRAIN, .bytes = 2 * GRAIN},
        {.offset = 10 * GRAIN, .bytes = GRAIN},
        {.offset = 9 * GRAIN, .bytes = 2 * GRAIN},
        {.offset = UINT64_MAX - GRAIN + 1, .bytes = GRAIN},
        {.offset = 9 * GRAIN, .bytes = UINT64_MAX - GRAIN + 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(tiers_space_adopt(space, wrong[i]), KVT_E_CORRUPT);
    tiers_range middle = {.offset = 5 * GRAIN, .bytes = 2 * GRAIN};
    assert_ok(tiers_space_adopt(space, middle));
    assert_int_equal(tiers_space_adopt(space, middle), KVT_E_CORRUPT);
    tiers_space_facts facts;
    tiers_space_facts_get(space, &facts);
    assert_int_equal(facts.fragments, 2);
    assert_int_equal(facts.free_bytes, 6 * GRAIN);
    tiers_space_release(space, middle);
    tiers_space_facts_get(space, &facts);
    assert_int_equal(facts.largest_bytes, 8 * GRAIN);
    tiers_space_close(space);
}

TEST(an_empty_space_gives_nothing)
{
    tiers_space *space;
    tiers_range range;
    assert_ok(tiers_space_open(GRAIN, GRAIN, &space));
    assert_int_equal(tiers_space_acquire(space, GRAIN, &range), KVT_E_SPACE);
    tiers_space_facts facts;
    tiers_space_facts_get(space, &facts);
    assert_int_equal(facts.largest_bytes, 0);
    tiers_space_close(space);
    tiers_space_close(NULL);
}
