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

/* The bin of a weight per token, 0 of none. */
static int32_t bin_of_density(float density)
{
    uint32_t bits;
    memcpy(&bits, &density, sizeof bits);
    const int32_t bin = (int32_t)((bits & 0x7fffffffu) >> BIN_SHIFT);
    return bin < BIN_MOST ? bin : BIN_MOST - 1;
}

static int32_t bin_of(const pages_problem *p, float inverse, uint32_t page)
{
    return bin_of_density(density_of(p, inverse, page));
}

/* The least weight per token of a bin. */
static float bin_least(int32_t bin)
{
    const uint32_t bits = (uint32_t)bin << BIN_SHIFT;
    float density;
    memcpy(&density, &bits, sizeof density);
    return density;
}

/* The variants on offer, ascending, with their octaves in bins. */
typedef struct pages_ladder {
    uint32_t count;
    pages_variant variant[PAGES_VARIANTS];
    int32_t bins[PAGES_VARIANTS];
    /* Bytes that a whole page reads, by the variant held and the one wanted. */
    uint64_t bytes[PAGES_VARIANTS][PAGES_VARIANTS];
    float inverse; /* as bin_of takes it */
} pages_ladder;

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
    for (uint32_t held = 0; held < PAGES_VARIANTS; held++)
        for (uint32_t v = 0; v < PAGES_VARIANTS; v++)
            ladder->bytes[held][v] =
                pages_read_bytes(p->terms, whole, (pages_variant)held, (pages_variant)v);
}

static uint64_t ladder_bytes(const pages_problem *p, const pages_ladder *ladder, uint32_t page,
                             pages_variant wanted)
{
    const uint32_t tokens = tokens_of(p, page);
    if (tokens == p->page_tokens) return ladder->bytes[held_of(p, page)][wanted];
    return pages_read_bytes(p->terms, tokens, held_of(p, page), wanted);
}

/* Bytes that a page reads in variant i, beyond those in the one before. */
static int64_t ladder_step(const pages_problem *p, const pages_ladder *ladder, uint32_t page,
                           uint32_t i)
{
    const uint64_t before = i > 0 ? ladder_bytes(p, ladder, page, ladder->variant[i - 1]) : 0;
    return (int64_t)(ladder_bytes(p, ladder, page, ladder->variant[i]) - before);
}

/*
 * A key so low that the pages of its bin and above, each in the first variant, pass the budget: the
 * pages below it are not read. Most pages of a large unit lie there, and are looked at no further.
 * Two counters of each bin take turns, since neighbours are alike. Only of whole pages, of a power
 * of 2 of tokens; the last page may be shorter, and is left out.
 */
static int32_t least_key(const pages_problem *p, const pages_ladder *ladder)
{
    uint32_t count[BIN_MOST - BIN_LEAST][2] = {{0}};
    const uint64_t bytes = ladder->count > 0 ? ladder->bytes[PAGES_ABSENT][ladder->variant[0]] : 0;
    if (bytes == 0) return BIN_LEAST;
    for (uint32_t page = 0; page + 1 < p->count; page++) {
        const int32_t bin = bin_of_density(p->weight[page] * ladder->inverse);
        const int32_t at = bin > BIN_LEAST ? bin - BIN_LEAST : 0;
        count[at][page & 1] += held_of(p, page) == PAGES_ABSENT;
    }
    uint64_t pages = 0;
    for (int32_t bin = BIN_MOST; bin-- > BIN_LEAST + 1;) {
        pages += count[bin - BIN_LEAST][0] + count[bin - BIN_LEAST][1];
        if (pages > p->budget_bytes / bytes) return bin;
    }
    return BIN_LEAST;
}

/* Pages whose keys are not below the least one, in the order of their numbers. */
enum { CANDIDATES_MOST = 8192 };
typedef struct pages_candidates {
    bool all; /* there are as many as the list holds: every page is one */
    uint32_t count;
    uint32_t page[CANDIDATES_MOST + 1]; /* and the last one */
} pages_candidates;

static uint32_t candidate_count(const pages_problem *p, const pages_candidates *candidates)
{
    return candidates->all ? p->count : candidates->count;
}

static uint32_t candidate_page(const pages_candidates *candidates, uint32_t i)
{
    return candidates->all ? i : candidates->page[i];
}

/* Lists the pages of at least this key, and the last one, which may be shorter. Without branches on
 * weights, which no history foretells. */
static void list_candidates(const pages_problem *p, int32_t least, pages_candidates *candidates)
{
    const float light = bin_least(least) * (float)(int32_t)p->page_tokens;
    const uint32_t last = p->count - 1;
    uint32_t count = 0;
    for (uint32_t page = 0; page < last && count < CANDIDATES_MOST; page++) {
        candidates->page[count] = page;
        count += p->weight[page] >= light;
    }
    candidates->all = count == CANDIDATES_MOST;
    candidates->page[count] = last;
    candidates->count = count + 1;
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

/* A page stays as it is held where that is better. */
static void take(const pages_ladder *ladder, uint32_t page, uint32_t steps, uint8_t *variant_out)
{
    const uint8_t wanted = steps > 0 ? (uint8_t)ladder->variant[steps - 1] : PAGES_ABSENT;
    if (wanted > variant_out[page]) variant_out[page] = wanted;
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
        if (key < least || key < BIN_LEAST) continue;
        uint32_t steps = steps_at(ladder, key, theta);
        for (const uint32_t more = steps_at(ladder, key, theta - 1); steps < more; steps++) {
            const int64_t bytes = ladder_step(p, ladder, page, steps);
            if (bytes > 0 && (uint64_t)bytes > left) break;
            left -= (uint64_t)(bytes > 0 ? bytes : 0);
        }
        take(ladder, page, steps, variant_out);
    }
}

static void take_best(const pages_problem *p, const pages_ladder *ladder, uint8_t *variant_out)
{
    for (uint32_t page = 0; page < p->count; page++)
        take(ladder, page, ladder->count, variant_out);
}

/* Bytes that the pages read in their variants; all but the candidates are as they were. */
static uint64_t plan_bytes(const pages_problem *p, const pages_ladder *ladder,
                           const pages_candidates *candidates, const uint8_t *variant)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < candidate_count(p, candidates); c++) {
        const uint32_t page = candidate_page(candidates, c);
        bytes += ladder_bytes(p, ladder, page, (pages_variant)variant[page]);
    }
    return bytes;
}

static double bin_value(int32_t bin)
{
    return number_exp2((double)(bin / BIN_OCTAVE - 127)) *
           (1.0 + (double)(bin % BIN_OCTAVE) / BIN_OCTAVE);
}

/* By weight and budget; what is held costs nothing. All but the candidates is counted then. */
static void choose_within(const pages_problem *p, const pages_ladder *ladder,
                          pages_candidates *candidates, uint8_t *variant_out, pages_plan *plan_out)
{
    const int32_t lowest = BIN_LEAST - OCTAVES_MOST * BIN_OCTAVE;
    int64_t bytes[THETAS];
    if (p->budget_bytes == PAGES_BUDGET_ALL) {
        candidates->all = true;
        take_best(p, ladder, variant_out);
    } else {
        const bool alike = p->tokens == NULL && ladder->inverse > 0.0f;
        const int32_t least = alike ? least_key(p, ladder) : BIN_LEAST;
        candidates->all = !alike;
        if (alike) list_candidates(p, least, candidates);
        file_steps(p, ladder, least, candidates, bytes);
        uint64_t left = p->budget_bytes;
        int32_t theta = THETAS;
        while (theta > 0 && (bytes[theta - 1] <= 0 || (uint64_t)bytes[theta - 1] <= left)) {
            theta--;
            left -= (uint64_t)(bytes[theta] > 0 ? bytes[theta] : 0);
        }
        take_all(p, ladder, candidates, theta + lowest, left, variant_out);
        if (theta > 0) plan_out->theta = bin_value(theta + lowest);
    }
}

void pages_choose(const pages_problem *p, uint8_t *variant_out, pages_plan *plan_out)
{
    pages_problem bare = *p;
    pages_candidates candidates;
    pages_ladder ladder;
    *plan_out = (pages_plan){.bytes = 0};
    if (p->count == 0) return;
    if (p->held_counts) bare.held = NULL;
    if (p->held != NULL)
        memcpy(variant_out, p->held, p->count);
    else
        memset(variant_out, PAGES_ABSENT, p->count);
    ladder_make(p, &ladder);
    choose_within(&bare, &ladder, &candidates, variant_out, plan_out);
    plan_out->bytes = plan_bytes(p, &ladder, &candidates, variant_out);
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
