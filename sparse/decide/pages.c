/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - chooses theta by bisection over sixteenths of an octave, then every page's variant.
 *
 * A page and a variant have one theta from which on the variant applies: the page's key less the
 * variant's octaves. The bytes that the step up to it adds are filed under that theta, so one pass
 * over the pages tells the bytes of every theta. The bin in which the budget ends is filled page
 * by page. Pages that lie too low for any budget like this one are looked at twice, the others,
 * the candidates, as often as it takes.
 *
 * Pure; any thread.
 */
#include "sparse/decide/pages.h"

#include "base/number/number.h"

#include <assert.h>
#include <string.h>

/* Bins of a key: the upper bits of a float, exponent and 4 bits of mantissa. */
#define BIN_SHIFT  19
#define BIN_OCTAVE 16
#define BIN_LEAST  ((127 - 64) * BIN_OCTAVE) /* 2^-64 */
#define BIN_MOST   (128 * BIN_OCTAVE)        /* weights per token stay below 2 */
/* Thetas lie as many octaves below the keys as a variant may ask. */
#define OCTAVES_MOST 32
#define THETAS       (BIN_MOST - BIN_LEAST + OCTAVES_MOST * BIN_OCTAVE)

void pages_terms_init(pages_terms *terms, uint32_t head_dim, uint32_t element_bytes,
                      uint32_t variants, uint32_t grain_bytes)
{
    static const float octaves[PAGES_VARIANTS] = {0.0f, 0.25f, 0.5f, 4.0f, 12.0f};
    const uint32_t elements = 2 * head_dim;
    *terms = (pages_terms){
        .token_bytes = {0, elements / 4, elements / 2, elements, elements * element_bytes},
        .grain_bytes = grain_bytes > 0 ? grain_bytes : 1};
    for (uint32_t v = 0; v < PAGES_VARIANTS; v++)
        terms->octaves[v] = variants >> v & 1u ? octaves[v] : PAGES_NEVER;
}

uint64_t pages_read_bytes(const pages_terms *terms, uint32_t tokens, pages_variant held,
                          pages_variant wanted)
{
    const uint64_t grain = terms->grain_bytes;
    if (wanted <= held) return 0;
    uint64_t begin = 0, end = (uint64_t)tokens * terms->token_bytes[wanted];
    if (wanted != PAGES_RAW && !terms->rows_stay)
        begin = (uint64_t)tokens * terms->token_bytes[held];
    begin -= begin % grain;
    end += (grain - end % grain) % grain;
    return end - begin;
}

static uint32_t tokens_of(const pages_problem *p, uint32_t page)
{
    if (p->tokens != NULL) return p->tokens[page];
    return page + 1 == p->count && p->last_tokens > 0 ? p->last_tokens : p->page_tokens;
}

static pages_variant held_of(const pages_problem *p, uint32_t page)
{
    return p->held != NULL ? (pages_variant)p->held[page] : PAGES_ABSENT;
}

/* A page's weight per token. inverse: of page_tokens when that is exact, else 0. */
static float density_of(const pages_problem *p, float inverse, uint32_t page)
{
    const uint32_t tokens = tokens_of(p, page);
    if (tokens == p->page_tokens && inverse > 0.0f) return p->weight[page] * inverse;
    return p->weight[page] / (float)(int32_t)tokens;
}

/* Its bin, 0 of none. */
static int32_t bin_of(const pages_problem *p, float inverse, uint32_t page)
{
    const float density = density_of(p, inverse, page);
    uint32_t bits;
    memcpy(&bits, &density, sizeof bits);
    const int32_t bin = (int32_t)((bits & 0x7fffffffu) >> BIN_SHIFT);
    return bin < BIN_MOST ? bin : BIN_MOST - 1;
}

/* The least weight per token of a bin. */
static float bin_least(int32_t bin)
{
    const uint32_t bits = (uint32_t)bin << BIN_SHIFT;
    float density;
    memcpy(&density, &bits, sizeof density);
    return density;
}

/* The variants on offer, ascending, with their octaves in bins and the bytes of each step up. */
typedef struct pages_ladder {
    uint32_t count;
    pages_variant variant[PAGES_VARIANTS];
    int32_t bins[PAGES_VARIANTS];
    /* Of whole pages, by what is held: beyond the step before. */
    int64_t step[PAGES_VARIANTS][PAGES_VARIANTS];
    float inverse; /* as bin_of takes it */
} pages_ladder;

static int64_t step_bytes(const pages_problem *p, const pages_ladder *ladder, uint32_t tokens,
                          pages_variant held, uint32_t i)
{
    const uint64_t before =
        i > 0 ? pages_read_bytes(p->terms, tokens, held, ladder->variant[i - 1]) : 0;
    return (int64_t)(pages_read_bytes(p->terms, tokens, held, ladder->variant[i]) - before);
}

static void ladder_make(const pages_problem *p, pages_ladder *ladder)
{
    const uint32_t whole = p->page_tokens;
    ladder->count = 0;
    ladder->inverse = whole > 0 && (whole & (whole - 1)) == 0 ? 1.0f / (float)(int32_t)whole : 0.0f;
    for (uint32_t v = PAGES_BITS_2; v < PAGES_VARIANTS; v++) {
        const float octaves = p->terms->octaves[v];
        if (octaves >= (float)OCTAVES_MOST || octaves < 0.0f) continue;
        const uint32_t i = ladder->count++;
        ladder->variant[i] = (pages_variant)v;
        ladder->bins[i] = (int32_t)(octaves * BIN_OCTAVE);
        assert(i == 0 || ladder->bins[i] >= ladder->bins[i - 1]);
    }
    for (uint32_t held = 0; held < PAGES_VARIANTS && p->page_tokens > 0; held++)
        for (uint32_t i = 0; i < ladder->count; i++)
            ladder->step[held][i] = step_bytes(p, ladder, p->page_tokens, (pages_variant)held, i);
}

static int64_t ladder_step(const pages_problem *p, const pages_ladder *ladder, uint32_t page,
                           uint32_t i)
{
    const uint32_t tokens = tokens_of(p, page);
    if (tokens == p->page_tokens) return ladder->step[held_of(p, page)][i];
    return step_bytes(p, ladder, tokens, held_of(p, page), i);
}

/*
 * A key so low that the pages of its bin and above, each in the first variant, pass the budget: the
 * pages below it are not read. Most pages of a large unit lie there, and are looked at no further.
 */
static int32_t least_key(const pages_problem *p, const pages_ladder *ladder)
{
    uint32_t count[BIN_MOST] = {0};
    const int64_t bytes = ladder->count > 0 ? ladder->step[PAGES_ABSENT][0] : 0;
    if (p->tokens != NULL || bytes <= 0) return BIN_LEAST;
    for (uint32_t page = 0; page + 1 < p->count; page++)
        if (p->weight[page] > 0.0f && held_of(p, page) == PAGES_ABSENT)
            count[bin_of(p, ladder->inverse, page)]++;
    uint64_t pages = 0;
    for (int32_t bin = BIN_MOST; bin-- > BIN_LEAST;) {
        pages += count[bin];
        if (pages > p->budget_bytes / (uint64_t)bytes) return bin;
    }
    return BIN_LEAST;
}

/* Pages whose keys are not below the least one, in the order of their numbers. */
enum { CANDIDATES_MOST = 8192 };
typedef struct pages_candidates {
    bool all; /* there are more than the list holds: every page is one */
    uint32_t count;
    uint32_t page[CANDIDATES_MOST];
} pages_candidates;

static uint32_t candidate_count(const pages_problem *p, const pages_candidates *candidates)
{
    return candidates->all ? p->count : candidates->count;
}

static uint32_t candidate_page(const pages_candidates *candidates, uint32_t i)
{
    return candidates->all ? i : candidates->page[i];
}

/* Pages that are no candidates are as they were. */
static void list_candidates(const pages_problem *p, float inverse, int32_t least,
                            pages_candidates *candidates, uint8_t *variant_out,
                            pages_plan *plan_out)
{
    const float least_density = bin_least(least);
    double absent = 0.0;
    uint32_t absent_count = 0;
    candidates->all = false;
    candidates->count = 0;
    for (uint32_t page = 0; page < p->count; page++) {
        const pages_variant held = held_of(p, page);
        if (density_of(p, inverse, page) >= least_density) {
            if (candidates->count < CANDIDATES_MOST) candidates->page[candidates->count] = page;
            candidates->count++;
            continue;
        }
        variant_out[page] = (uint8_t)held;
        if (held == PAGES_ABSENT) {
            absent += (double)p->weight[page];
            absent_count++;
        } else {
            plan_out->counts[held]++;
            plan_out->read_weight += (double)p->weight[page];
        }
    }
    if (candidates->count > CANDIDATES_MOST) {
        candidates->all = true;
        *plan_out = (pages_plan){.bytes = 0};
        return;
    }
    plan_out->absent_weight = absent;
    plan_out->counts[PAGES_ABSENT] = absent_count;
}

/* Bytes that each theta adds to those above it. */
static void file_steps(const pages_problem *p, const pages_ladder *ladder, int32_t least,
                       const pages_candidates *candidates, int64_t bytes[THETAS])
{
    memset(bytes, 0, THETAS * sizeof *bytes);
    for (uint32_t c = 0; c < candidate_count(p, candidates); c++) {
        const uint32_t page = candidate_page(candidates, c);
        const int32_t key = bin_of(p, ladder->inverse, page);
        if (key < least) continue;
        for (uint32_t i = 0; i < ladder->count; i++) {
            const int32_t theta = key - ladder->bins[i] - BIN_LEAST + OCTAVES_MOST * BIN_OCTAVE;
            bytes[theta] += ladder_step(p, ladder, page, i);
        }
    }
}

/* The steps of a page at this theta. */
static uint32_t steps_at(const pages_ladder *ladder, int32_t key, int32_t theta)
{
    uint32_t steps = 0;
    while (steps < ladder->count && key - ladder->bins[steps] >= theta)
        steps++;
    return steps;
}

static void take(const pages_problem *p, const pages_ladder *ladder, uint32_t page, uint32_t steps,
                 uint8_t *variant_out)
{
    const pages_variant held = held_of(p, page);
    const pages_variant wanted = steps > 0 ? ladder->variant[steps - 1] : PAGES_ABSENT;
    variant_out[page] = (uint8_t)(wanted > held ? wanted : held);
}

/* All thetas from `theta` on fit, with `left` bytes over; of the next one the first pages do. Most
 * pages lie below both. */
static void take_all(const pages_problem *p, const pages_ladder *ladder,
                     const pages_candidates *candidates, int32_t theta, uint64_t left,
                     uint8_t *variant_out)
{
    const int32_t least = ladder->count > 0 ? theta - 1 + ladder->bins[0] : INT32_MAX;
    for (uint32_t c = 0; c < candidate_count(p, candidates); c++) {
        const uint32_t page = candidate_page(candidates, c);
        const int32_t key = bin_of(p, ladder->inverse, page);
        if (key < least || key < BIN_LEAST) {
            variant_out[page] = (uint8_t)held_of(p, page);
            continue;
        }
        uint32_t steps = steps_at(ladder, key, theta);
        for (const uint32_t more = steps_at(ladder, key, theta - 1); steps < more; steps++) {
            const int64_t bytes = ladder_step(p, ladder, page, steps);
            if (bytes > 0 && (uint64_t)bytes > left) break;
            left -= (uint64_t)(bytes > 0 ? bytes : 0);
        }
        take(p, ladder, page, steps, variant_out);
    }
}

static void take_best(const pages_problem *p, const pages_ladder *ladder, uint8_t *variant_out)
{
    for (uint32_t page = 0; page < p->count; page++)
        take(p, ladder, page, ladder->count, variant_out);
}

static void plan_count(const pages_problem *p, const pages_candidates *candidates,
                       const uint8_t *variant, pages_plan *plan)
{
    for (uint32_t c = 0; c < candidate_count(p, candidates); c++) {
        const uint32_t page = candidate_page(candidates, c);
        plan->bytes += pages_read_bytes(p->terms, tokens_of(p, page), held_of(p, page),
                                        (pages_variant)variant[page]);
        plan->counts[variant[page]]++;
        *(variant[page] != PAGES_ABSENT ? &plan->read_weight : &plan->absent_weight) +=
            (double)p->weight[page];
    }
}

static double bin_value(int32_t bin)
{
    return number_exp2((double)(bin / BIN_OCTAVE - 127)) *
           (1.0 + (double)(bin % BIN_OCTAVE) / BIN_OCTAVE);
}

/* By weight and budget; what is held costs nothing. All but the candidates is counted then. */
static void choose_within(const pages_problem *p, pages_candidates *candidates,
                          uint8_t *variant_out, pages_plan *plan_out)
{
    const int32_t lowest = BIN_LEAST - OCTAVES_MOST * BIN_OCTAVE;
    int64_t bytes[THETAS];
    pages_ladder ladder;
    ladder_make(p, &ladder);
    if (p->budget_bytes == PAGES_BUDGET_ALL) {
        candidates->all = true;
        candidates->count = 0;
        take_best(p, &ladder, variant_out);
    } else {
        const int32_t least = least_key(p, &ladder);
        list_candidates(p, ladder.inverse, least, candidates, variant_out, plan_out);
        file_steps(p, &ladder, least, candidates, bytes);
        uint64_t left = p->budget_bytes;
        int32_t theta = THETAS;
        while (theta > 0 && (bytes[theta - 1] <= 0 || (uint64_t)bytes[theta - 1] <= left)) {
            theta--;
            left -= (uint64_t)(bytes[theta] > 0 ? bytes[theta] : 0);
        }
        take_all(p, &ladder, candidates, theta + lowest, left, variant_out);
        if (theta > 0) plan_out->theta = bin_value(theta + lowest);
    }
}

/* Pages that are held better than they were chosen stay so, whatever the budget. */
static void keep_held(const pages_problem *p, uint8_t *variant_out, pages_plan *plan_out)
{
    for (uint32_t page = 0; page < p->count; page++) {
        const uint8_t held = p->held[page], chosen = variant_out[page];
        if (held <= chosen) continue;
        variant_out[page] = held;
        plan_out->counts[chosen]--;
        plan_out->counts[held]++;
        if (chosen != PAGES_ABSENT) continue;
        plan_out->absent_weight -= (double)p->weight[page];
        plan_out->read_weight += (double)p->weight[page];
    }
}

void pages_choose(const pages_problem *p, uint8_t *variant_out, pages_plan *plan_out)
{
    pages_problem bare = *p;
    pages_candidates candidates;
    *plan_out = (pages_plan){.bytes = 0};
    if (p->held_counts) bare.held = NULL;
    choose_within(&bare, &candidates, variant_out, plan_out);
    plan_count(p, &candidates, variant_out, plan_out);
    if (p->held_counts && p->held != NULL) keep_held(p, variant_out, plan_out);
    assert(plan_out->bytes <= p->budget_bytes);
}

size_t pages_explain(const pages_problem *p, const uint8_t *variant, const pages_plan *plan,
                     uint32_t page, char *to, size_t size)
{
    static const char *const names[PAGES_VARIANTS] = {"absent", "2 bits", "4 bits", "8 bits",
                                                      "raw"};
    const uint32_t tokens = tokens_of(p, page);
    text line;
    assert(page < p->count);
    text_start(&line, to, size);
    text_add(&line, "page ");
    text_add_number(&line, page);
    text_add(&line, " tokens ");
    text_add_number(&line, tokens);
    text_add(&line, " weight ");
    text_add_double(&line, (double)p->weight[page]);
    text_add(&line, " theta ");
    text_add_double(&line, plan->theta);
    for (uint32_t v = PAGES_BITS_2; v < PAGES_VARIANTS; v++) {
        const float octaves = p->terms->octaves[v];
        if (octaves >= (float)OCTAVES_MOST || octaves < 0.0f) continue;
        text_add(&line, ", ");
        text_add(&line, names[v]);
        text_add(&line, " from ");
        text_add_double(&line, plan->theta * number_exp2((double)octaves) * (double)tokens);
        text_add(&line, " reads ");
        text_add_number(&line,
                        pages_read_bytes(p->terms, tokens, held_of(p, page), (pages_variant)v));
    }
    text_add(&line, "; held ");
    text_add(&line, names[held_of(p, page)]);
    text_add(&line, ", chosen ");
    text_add(&line, names[variant[page]]);
    return line.length;
}
