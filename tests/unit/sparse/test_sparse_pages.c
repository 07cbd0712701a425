/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_pages.c - plans of pages against a brute search over thetas, windows against a full
 * sort, sizes against every choice.
 */
#include "cases.h"

#include "base/number/number.h"
#include "replay/rivals/window_rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 200 };

static uint64_t below(uint64_t *dice, uint64_t n)
{
    *dice = number_mix(*dice + UINT64_C(0x9E3779B97F4A7C15));
    return *dice % n;
}

typedef struct drawn {
    float weight[MOST];
    uint16_t tokens[MOST];
    uint8_t held[MOST];
    pages_terms terms;
    pages_problem problem;
} drawn;

static void drawn_make(drawn *x, uint64_t *dice, uint32_t count)
{
    const uint32_t variants = 1 + (uint32_t)below(dice, 15); /* 2, 4, 8 bits, raw */
    pages_terms_init(&x->terms, 8 * (1 + (uint32_t)below(dice, 16)), 2, variants << 1,
                     below(dice, 2) ? 4096 : 1);
    for (uint32_t i = 0; i < count; i++) {
        x->weight[i] =
            below(dice, 8) == 0 ? 0.0f : (float)pow(0.5, (double)below(dice, 4000) / 200);
        x->tokens[i] = (uint16_t)(1 + below(dice, 40));
        x->held[i] = 0;
        if (below(dice, 3) == 0) {
            const uint8_t v = (uint8_t)(1 + below(dice, 4));
            if (variants << 1 >> v & 1u) x->held[i] = v;
        }
    }
    x->problem = (pages_problem){.count = count,
                                 .weight = x->weight,
                                 .tokens = below(dice, 2) ? x->tokens : NULL,
                                 .page_tokens = 32,
                                 .last_tokens = (uint32_t)below(dice, 33),
                                 .held = below(dice, 2) ? x->held : NULL,
                                 .budget_bytes =
                                     below(dice, 3) == 0 ? below(dice, 4096) : below(dice, 400000),
                                 .terms = &x->terms};
}

static uint32_t tokens_of(const pages_problem *p, uint32_t i)
{
    if (p->tokens != NULL) return p->tokens[i];
    return i + 1 == p->count && p->last_tokens > 0 ? p->last_tokens : p->page_tokens;
}

/* The key in sixteenths of an octave, by way of frexp. */
static int key_of(const pages_problem *p, uint32_t i)
{
    int exponent;
    const float density = p->weight[i] / (float)tokens_of(p, i);
    if (density <= 0.0f) return INT32_MIN;
    const double mantissa = frexp((double)density, &exponent) * 2.0;
    return (exponent - 1) * 16 + (int)floor((mantissa - 1.0) * 16.0);
}

static uint8_t wanted_at(const pages_problem *p, uint32_t i, int theta)
{
    const int key = key_of(p, i);
    uint8_t wanted = PAGES_ABSENT;
    if (key == INT32_MIN) return wanted;
    for (uint8_t v = 1; v < PAGES_VARIANTS; v++)
        if (p->terms->octaves[v] < 31.0f && key - (int)(p->terms->octaves[v] * 16.0f) >= theta)
            wanted = v;
    return wanted;
}

static uint64_t bytes_at(const pages_problem *p, int theta)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const pages_variant held = p->held != NULL ? (pages_variant)p->held[i] : PAGES_ABSENT;
        bytes += pages_read_bytes(p->terms, tokens_of(p, i), held,
                                  (pages_variant)wanted_at(p, i, theta));
    }
    return bytes;
}

/* Every page is at least what the least theta that fits gives, at most what the next one would, and
 * no page that could step up within the budget's rest before the others was left behind. */
TEST(plans_are_those_of_the_least_theta)
{
    uint64_t dice = 1;
    for (int round = 0; round < 3000; round++) {
        drawn x;
        uint8_t variant[MOST];
        pages_plan plan;
        drawn_make(&x, &dice, 1 + (uint32_t)below(&dice, MOST));
        pages_choose(&x.problem, variant, &plan);
        int theta = 40 * 16;
        while (theta > -100 * 16 && bytes_at(&x.problem, theta - 1) <= x.problem.budget_bytes)
            theta--;
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < x.problem.count; i++) {
            const uint8_t held = x.problem.held != NULL ? x.held[i] : 0;
            const uint8_t least = wanted_at(&x.problem, i, theta);
            const uint8_t most = wanted_at(&x.problem, i, theta - 1);
            assert_true(variant[i] >= held);
            assert_true(variant[i] >= least && variant[i] <= (most > held ? most : held));
            bytes += pages_read_bytes(&x.terms, tokens_of(&x.problem, i), (pages_variant)held,
                                      (pages_variant)variant[i]);
        }
        assert_int_equal(bytes, plan.bytes);
        assert_true(bytes <= x.problem.budget_bytes);
        /* The first page that the next theta would lift is lifted when its bytes are left. */
        for (uint32_t i = 0; theta > -100 * 16 && i < x.problem.count; i++) {
            const uint8_t held = x.problem.held != NULL ? x.held[i] : 0;
            const uint8_t least = wanted_at(&x.problem, i, theta);
            const uint8_t most = wanted_at(&x.problem, i, theta - 1);
            if (most <= least || most <= held) continue;
            const uint64_t all = bytes_at(&x.problem, theta);
            const uint64_t more = pages_read_bytes(&x.terms, tokens_of(&x.problem, i),
                                                   (pages_variant)held, (pages_variant)most) -
                                  pages_read_bytes(&x.terms, tokens_of(&x.problem, i),
                                                   (pages_variant)held, (pages_variant)least);
            if (all + more <= x.problem.budget_bytes) assert_true(variant[i] > least);
            break;
        }
    }
}

TEST(budgets_of_nothing_and_of_everything)
{
    uint64_t dice = 2;
    for (int round = 0; round < 200; round++) {
        drawn x;
        uint8_t variant[MOST];
        pages_plan plan;
        drawn_make(&x, &dice, 1 + (uint32_t)below(&dice, MOST));
        x.problem.budget_bytes = 0;
        pages_choose(&x.problem, variant, &plan);
        assert_int_equal(plan.bytes, 0);
        for (uint32_t i = 0; i < x.problem.count; i++)
            assert_int_equal(variant[i], x.problem.held != NULL ? x.held[i] : 0);
        x.problem.budget_bytes = PAGES_BUDGET_ALL;
        pages_choose(&x.problem, variant, &plan);
        uint8_t best = 0;
        for (uint8_t v = 1; v < PAGES_VARIANTS; v++)
            if (x.terms.octaves[v] < 31.0f) best = v;
        for (uint32_t i = 0; i < x.problem.count; i++)
            assert_int_equal(variant[i], best);
        assert_true(plan.theta == 0.0);
    }
    pages_terms terms;
    pages_terms_init(&terms, 64, 2, 1u << PAGES_BITS_4, 1);
    const pages_problem none = {.count = 0, .page_tokens = 32, .budget_bytes = 5, .terms = &terms};
    pages_plan plan;
    pages_choose(&none, NULL, &plan);
    assert_int_equal(plan.bytes, 0);
}

TEST(bytes_of_what_is_missing)
{
    pages_terms terms;
    pages_terms_init(&terms, 128, 2, 0x1e, 1);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_ABSENT, PAGES_BITS_4), 4096);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_4, PAGES_BITS_8), 4096);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_2, PAGES_BITS_8), 6144);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_8, PAGES_BITS_4), 0);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_8, PAGES_RAW), 16384);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_RAW, PAGES_BITS_8), 0);
    terms.rows_stay = true;
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_4, PAGES_BITS_8), 8192);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_8, PAGES_BITS_8), 0);
    pages_terms_init(&terms, 64, 2, 0x1e, 4096);
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_ABSENT, PAGES_BITS_2), 4096);
    /* The block with the end of the 4 bits is read again. */
    assert_int_equal(pages_read_bytes(&terms, 32, PAGES_BITS_4, PAGES_BITS_8), 4096);
    assert_int_equal(pages_read_bytes(&terms, 64, PAGES_BITS_4, PAGES_BITS_8), 4096);
}

TEST(the_explanation_names_the_choice)
{
    pages_terms terms;
    pages_terms_init(&terms, 128, 2, 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8, 1);
    const float weight[] = {0.5f, 0.25f, 0.001f};
    const pages_problem p = {
        .count = 3, .weight = weight, .page_tokens = 32, .budget_bytes = 12288, .terms = &terms};
    uint8_t variant[3];
    pages_plan plan;
    char line[512], cut[20];
    pages_choose(&p, variant, &plan);
    const size_t length = pages_explain(&p, variant, &plan, 0, line, sizeof line);
    assert_int_equal(length, strlen(line));
    assert_non_null(strstr(line, "page 0 tokens 32 weight 0x1p-1 theta "));
    assert_non_null(strstr(line, "4 bits from "));
    assert_null(strstr(line, "raw from"));
    assert_non_null(strstr(line, "chosen 8 bits"));
    assert_int_equal(pages_explain(&p, variant, &plan, 0, cut, sizeof cut), length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
}

/* ---- windows ---- */

typedef struct standing {
    float value;
    uint32_t page;
} standing;

static int compare_standings(const void *left, const void *right)
{
    const standing *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->page < b->page ? -1 : 1;
}

enum { PAGE = 16, LAST = 3 }; /* tokens */

/* The same window, with a full sort. */
typedef struct model {
    uint8_t held[MOST];
    float value[MOST];
    uint64_t used_bytes, hit_bytes, read_bytes;
} model;

static uint64_t model_bytes(const windows_unit *unit, uint32_t page, uint32_t variant)
{
    return (page + 1 == unit->pages ? LAST : PAGE) * (uint64_t)unit->terms->token_bytes[variant];
}

/* Of the window: rows of any variant are as long as raw ones. */
static uint64_t model_stay(const windows_unit *unit, uint32_t page, uint32_t variant)
{
    return model_bytes(unit, page, unit->terms->rows_stay ? PAGES_RAW : variant);
}

static void model_rate(model *m, const windows_unit *unit, uint32_t step, uint32_t p, float weight,
                       bool used)
{
    const bool resident = m->held[p] != 0;
    const float density = weight / (float)(p + 1 == unit->pages ? LAST : PAGE);
    if (unit->rate == NULL)
        m->value[p] =
            0.75f * m->value[p] + 0.25f * weight / (float)(p + 1 == unit->pages ? LAST : PAGE);
    if (!used && !resident) return;
    if (unit->rate == window_rules[WINDOWS_LOOKAHEAD]) m->value[p] = density;
    if (unit->rate == window_rules[WINDOWS_LRU] && used) m->value[p] = (float)step;
    if (unit->rate == window_rules[WINDOWS_FIFO] && !resident) m->value[p] = (float)step;
    if (unit->rate == window_rules[WINDOWS_LFU])
        m->value[p] = (resident ? m->value[p] : 0.0f) + (used ? 1 : 0);
}

static void model_step(model *m, const windows_unit *unit, uint32_t step, const float *weight,
                       const uint8_t *wanted)
{
    standing all[MOST];
    uint8_t next[MOST] = {0};
    uint32_t count = 0;
    m->used_bytes = m->hit_bytes = m->read_bytes = 0;
    for (uint32_t p = 0; p < unit->pages; p++) {
        model_rate(m, unit, step, p, weight[p], wanted[p] != 0);
        if ((wanted[p] | m->held[p]) == 0) continue;
        all[count++] = (standing){m->value[p], p};
        if (wanted[p] == 0) continue;
        const bool more = wanted[p] != m->held[p];
        const bool apart = more && (wanted[p] == PAGES_RAW || unit->terms->rows_stay);
        const uint64_t had = apart ? 0 : model_bytes(unit, p, m->held[p]);
        m->hit_bytes += had;
        m->read_bytes += model_bytes(unit, p, wanted[p]) - had;
    }
    qsort(all, count, sizeof all[0], compare_standings);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t p = all[i].page;
        const uint8_t v = wanted[p] > m->held[p] ? wanted[p] : m->held[p];
        if (m->used_bytes + model_stay(unit, p, v) > unit->capacity_bytes) break;
        m->used_bytes += model_stay(unit, p, v);
        next[p] = v;
    }
    memcpy(m->held, next, sizeof next);
}

static void play(windows_unit *unit, uint64_t *dice)
{
    model m = {.used_bytes = 0};
    uint8_t wanted[MOST];
    float weight[MOST];
    uint32_t left[MOST];
    windows_change change;
    for (uint32_t step = 1; step < 20; step++) {
        uint8_t before[MOST];
        uint32_t expected_left = 0;
        for (uint32_t p = 0; p < unit->pages; p++) {
            weight[p] = (float)below(dice, 100) / 100.0f;
            wanted[p] = (uint8_t)(below(dice, 3) ? 0 : 1 + below(dice, 4));
            if (wanted[p] != 0 && wanted[p] < m.held[p]) wanted[p] = m.held[p];
        }
        memcpy(before, m.held, sizeof before);
        model_step(&m, unit, step, weight, wanted);
        for (uint32_t p = 0; p < unit->pages; p++)
            expected_left += before[p] != 0 && m.held[p] == 0;
        windows_step(unit, weight, wanted, left, &change);
        assert_memory_equal(unit->held, m.held, unit->pages);
        assert_int_equal(unit->used_bytes, m.used_bytes);
        assert_int_equal(change.left, expected_left);
        assert_int_equal(change.hit_bytes, m.hit_bytes);
        assert_int_equal(change.read_bytes, m.read_bytes);
        for (uint32_t i = 0; i < change.left; i++)
            assert_true(before[left[i]] != 0 && m.held[left[i]] == 0);
    }
}

static uint64_t bytes_in_window(const windows_unit *unit, uint32_t page)
{
    const uint32_t tokens = page + 1 == unit->pages ? unit->last_tokens : unit->page_tokens;
    return (uint64_t)tokens *
           unit->terms->token_bytes[unit->terms->rows_stay ? PAGES_RAW : unit->held[page]];
}

/* The head stands above the rest, and the next page does not fit. */
static void check_head(windows_unit *unit, uint64_t bytes)
{
    uint32_t head[MOST];
    bool inside[MOST] = {false};
    uint64_t used = 0;
    const uint32_t count = windows_head(unit, bytes, head);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(unit->held[head[i]] != PAGES_ABSENT && !inside[head[i]]);
        inside[head[i]] = true;
        used += bytes_in_window(unit, head[i]);
    }
    assert_true(used <= bytes);
    uint32_t next = UINT32_MAX;
    for (uint32_t p = 0; p < unit->pages; p++) {
        if (unit->held[p] == PAGES_ABSENT || inside[p]) continue;
        if (next == UINT32_MAX || unit->standing[p] > unit->standing[next]) next = p;
        for (uint32_t i = 0; i < count; i++)
            assert_true(unit->standing[head[i]] > unit->standing[p] ||
                        (unit->standing[head[i]] == unit->standing[p] && head[i] < p));
    }
    if (next != UINT32_MAX) assert_true(used + bytes_in_window(unit, next) > bytes);
}

TEST(windows_keep_the_first_in_order)
{
    uint64_t dice = 3;
    for (int round = 0; round < 200; round++) {
        uint8_t held[MOST] = {0};
        float standings[MOST] = {0};
        uint64_t order[MOST];
        uint32_t left[MOST];
        pages_terms terms;
        pages_terms_init(&terms, 64, 2, 0x1e, 1);
        terms.rows_stay = round / (int)WINDOWS_RULES % 2 != 0;
        windows_unit unit = {.pages = 1 + (uint32_t)below(&dice, MOST),
                             .page_tokens = PAGE,
                             .last_tokens = LAST,
                             .terms = &terms,
                             .rate = window_rules[round % (int)WINDOWS_RULES],
                             .decay = 0.75f,
                             .capacity_bytes = below(&dice, 100000),
                             .held = held,
                             .standing = standings,
                             .order = order};
        play(&unit, &dice);
        check_head(&unit, below(&dice, unit.used_bytes + 1));
        const uint64_t before = unit.used_bytes;
        (void)windows_resize(&unit, before / 2, left);
        assert_true(unit.used_bytes <= before / 2);
        (void)windows_resize(&unit, 0, NULL);
        assert_int_equal(unit.used_bytes, 0);
    }
}

static double brute(const windows_curve *curves, uint32_t unit, uint32_t units, uint32_t sizes,
                    uint64_t capacity)
{
    if (unit == units) return 0.0;
    double best = brute(curves, unit + 1, units, sizes, capacity);
    for (uint32_t i = 0; i < sizes; i++) {
        if (curves[unit].bytes[i] > capacity) continue;
        const double rest = brute(curves, unit + 1, units, sizes, capacity - curves[unit].bytes[i]);
        best = fmax(best, curves[unit].benefit[i] + rest);
    }
    return best;
}

TEST(sizes_come_close_to_the_best)
{
    enum { UNITS = 6, SIZES = 4 };
    uint64_t dice = 4;
    double got = 0.0, best = 0.0;
    void *memory = test_alloc(windows_divide_memory(UNITS, SIZES));
    for (int round = 0; round < 200; round++) {
        uint64_t bytes[UNITS][SIZES], capacity = below(&dice, 3000), used = 0;
        double benefit[UNITS][SIZES], bound, sum = 0.0;
        windows_curve curves[UNITS];
        uint32_t choice[UNITS];
        for (uint32_t u = 0; u < UNITS; u++) {
            double gain = 0.0;
            for (uint32_t i = 0; i < SIZES; i++) {
                bytes[u][i] = 100 * (i + 1);
                benefit[u][i] = gain += (double)below(&dice, 100);
            }
            curves[u] = (windows_curve){bytes[u], benefit[u]};
        }
        const double value = windows_divide(curves, UNITS, SIZES, capacity, choice, memory, &bound);
        for (uint32_t u = 0; u < UNITS; u++) {
            if (choice[u] == UINT32_MAX) continue;
            assert_true(choice[u] < SIZES);
            used += bytes[u][choice[u]];
            sum += benefit[u][choice[u]];
        }
        const double exact = brute(curves, 0, UNITS, SIZES, capacity);
        assert_true(used <= capacity);
        assert_true(fabs(sum - value) < 1e-9);
        assert_true(value <= exact + 1e-9 && exact <= bound + 1e-6);
        got += value;
        best += exact;
    }
    assert_true(got >= 0.97 * best);
}

/* What is held counts: the choice is that of nothing held, joined with what is, and reads less. */
TEST(what_is_held_counts)
{
    uint64_t dice = 9;
    uint32_t fewer = 0;
    for (int round = 0; round < 300; round++) {
        drawn x;
        uint8_t variant[MOST], bare[MOST];
        pages_plan plan, bare_plan;
        drawn_make(&x, &dice, 1 + (uint32_t)below(&dice, MOST));
        x.problem.held = NULL;
        pages_choose(&x.problem, bare, &bare_plan);
        x.problem.held = x.held;
        x.problem.held_counts = true;
        pages_choose(&x.problem, variant, &plan);
        for (uint32_t i = 0; i < x.problem.count; i++)
            assert_int_equal(variant[i], bare[i] > x.held[i] ? bare[i] : x.held[i]);
        assert_true(plan.bytes <= bare_plan.bytes && plan.bytes <= x.problem.budget_bytes);
        assert_true(plan.theta == bare_plan.theta);
        fewer += plan.bytes < bare_plan.bytes;
    }
    assert_true(fewer > 50);
}
