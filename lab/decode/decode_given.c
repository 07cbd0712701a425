/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_given.c - decode steps of a model that selects by itself, on drives: what pages, windows
 * and hints do for selections that an engine gives, beside an LRU of fixed blocks.
 *
 * The selections are made from a dump's own attention: the tokens with the most weight in a layer
 * and step, mean over its query heads, as one list for the layer. K and V of all heads are one
 * latent row, as in a model with one side. Every row of every step is compared with the dump.
 *
 *     bytes       that a step (all layers) read from the drives
 *     hit_ratio   of the bytes of the asked pages, those that were in DRAM
 *     seconds     of a step: median of select, wait and done, and of computing where there is some;
 *                 comparing is left out
 *     wrong       rows that were missing or differed
 *
 * The first WARM steps stand for the prompt's last tokens: OURS is given their lists, which order
 * and warm its pages. A case that computes waits as long after each layer as the reads of OURS
 * take, for a GPU would do it. A hint is for the next layer, meanwhile, from weights with noise;
 * `guessed` is the share of its numbers that are right.
 *
 * Thread rule: one case at a time.
 */
#include <stdlib.h>
#include <string.h>

#include <kvterrace/kvterrace.h>
#include <kvterrace/sparse.h>

#include "decode.h"
#include "lab/bench/bench_parts.h"
#include "lab/bench/bench_reads.h"
#include "lab/private.h"
#include "replay/rivals/window_rules.h"

#define MIB ((uint64_t)1 << 20)

enum {
    LAYERS_MAX = 32,
    WARM = 32,        /* steps that nobody is judged by */
    WINDOW_SHARE = 8, /* of the KV, in DRAM: one part of so many */
    KEY_BYTES = 128,  /* of an index key: a latent's first bytes stand for it */
    OWN_DRIVE_MIB = 64
};

static const double shares[] = {0.0156, 0.0312, 0.0625}; /* of the tokens, in a list */

/* Octaves that a guess's weights are off, at most: with 1.5 a layer knows 80 to 85 % of the next
 * one's list, as much as was measured of a model (docs/SPARSE.md). */
#define GUESS_OCTAVES 1.5f

/* The part of a guess that a hint is for: its surest numbers, which are the first. */
#define GUESS_PART 0.75

typedef struct given_case {
    const char *name;
    uint32_t page_tokens; /* 0: the library's */
    windows_rule rule;
    float copies;
    bool ordered, computes, hint;
} given_case;

enum { OURS = 4 };
static const given_case given_cases[] = {
    {"LRU, blocks of 64", 64, WINDOWS_LRU, 0, false, false, false},
    {"LRU, blocks of 16", 16, WINDOWS_LRU, 0, false, false, false},
    {"LRU, our pages", 0, WINDOWS_LRU, 0, false, false, false},
    {"ours, by position", 0, WINDOWS_DECAYED, 0.25f, false, false, false},
    {"ours", 0, WINDOWS_DECAYED, 0.25f, true, false, false},
    {"ours, no copies", 0, WINDOWS_DECAYED, 0, true, false, false},
    {"LRU, blocks of 16, computing", 16, WINDOWS_LRU, 0, false, true, false},
    {"ours, computing", 0, WINDOWS_DECAYED, 0.25f, true, true, false},
    {"ours, computing, hints", 0, WINDOWS_DECAYED, 0.25f, true, true, true},
};
enum { CASES = sizeof given_cases / sizeof given_cases[0] };

typedef struct given_site {
    const bench_options *options;
    bench_report *report;
    decode_source source;
    uint32_t layers, steps, width; /* width: elements of a latent */
    uint16_t *rows[LAYERS_MAX];    /* [all][width] */
    float *weight[LAYERS_MAX];     /* [steps][all]: of the attention, mean over the heads */
    uint32_t count;                /* of a list */
    uint32_t *lists[LAYERS_MAX];   /* [steps][count] */
    uint32_t *guesses[LAYERS_MAX]; /* as lists */
    double compute_seconds, guessed;
    double samples[DECODE_ROWS];
} given_site;

/* ---- selections ---- */

static int compare_weights(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Adds the attention of a head's queries to the layer's. */
static kvt_status add_head(given_site *site, uint32_t layer, const uint16_t *keys,
                           const float *queries)
{
    const decode_source *source = &site->source;
    const uint32_t dim = source->head_dim;
    float *scores = malloc(source->all * sizeof *scores);
    if (scores == NULL) return KVT_E_MEMORY;
    for (uint32_t r = 0; r < site->steps * source->group; r++) {
        const uint32_t step = r / source->group;
        const uint32_t seen = source->tokens + (source->grows ? step + 1 : 0);
        float most = -INFINITY, sum = 0, *weight = site->weight[layer] + (size_t)step * source->all;
        sparse_kernels_in_use()->dots(keys, dim * 2, seen, KVT_DTYPE_FP16,
                                      queries + (size_t)r * dim, dim, 1.0f / sqrtf((float)dim),
                                      scores);
        for (uint32_t t = 0; t < seen; t++)
            most = fmaxf(most, scores[t]);
        for (uint32_t t = 0; t < seen; t++)
            sum += scores[t] = expf(scores[t] - most);
        for (uint32_t t = 0; t < seen; t++)
            weight[t] += scores[t] / sum;
    }
    free(scores);
    return KVT_OK;
}

/* Latents and weights of a layer. */
static kvt_status load_layer(given_site *site, uint32_t layer)
{
    const decode_source *source = &site->source;
    const uint32_t dim = source->head_dim, heads = source->kv_heads;
    const size_t side = (size_t)source->all * dim;
    uint16_t *keys = malloc(side * 2), *values = malloc(side * 2);
    float *queries = malloc((size_t)source->rows * source->group * dim * sizeof *queries);
    site->rows[layer] = malloc((size_t)source->all * site->width * 2);
    site->weight[layer] = calloc((size_t)site->steps * source->all, sizeof(float));
    kvt_status status = keys && values && queries && site->rows[layer] && site->weight[layer]
                            ? KVT_OK
                            : KVT_E_MEMORY;
    for (uint32_t h = 0; h < heads && status == KVT_OK; h++) {
        decode_source_unit(source, layer, h, keys, values, queries);
        for (uint32_t t = 0; t < source->all; t++) {
            uint16_t *row = site->rows[layer] + (size_t)t * site->width;
            memcpy(row + h * dim, keys + (size_t)t * dim, dim * 2);
            memcpy(row + (heads + h) * dim, values + (size_t)t * dim, dim * 2);
        }
        status = add_head(site, layer, keys, queries);
    }
    free(keys);
    free(values);
    free(queries);
    return status;
}

/* The heaviest tokens of a step; guess: by weights that are off by chance. */
static void choose_list(const given_site *site, uint32_t layer, uint32_t step, bool guess,
                        uint64_t *order, uint32_t *list)
{
    const uint32_t all = site->source.all;
    const float *weight = site->weight[layer] + (size_t)step * all;
    for (uint32_t t = 0; t < all; t++) {
        const uint64_t random = lab_mix(((uint64_t)(layer * 977 + step) << 24) + t);
        const float octaves = GUESS_OCTAVES * (float)(int32_t)(random >> 32) * 0x1p-31f;
        const float own = guess ? weight[t] * exp2f(octaves) : weight[t];
        uint32_t bits; /* of positive numbers, in their order */
        memcpy(&bits, &own, sizeof bits);
        order[t] = (uint64_t)bits << 32 | (UINT32_MAX - t);
    }
    qsort(order, all, sizeof *order, compare_weights);
    for (uint32_t n = 0; n < site->count; n++)
        list[n] = UINT32_MAX - (uint32_t)order[n];
}

static uint32_t count_common(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    uint32_t common = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++)
            common += a[i] == b[j];
    return common;
}

/* The lists of all layers and steps, for a share of the tokens, and guesses of them. */
static kvt_status choose_lists(given_site *site, double share)
{
    uint64_t *order = malloc(site->source.all * sizeof *order);
    kvt_status status = order != NULL ? KVT_OK : KVT_E_MEMORY;
    double common = 0;
    site->count = (uint32_t)(share * site->source.tokens);
    for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++) {
        const size_t bytes = (size_t)site->steps * site->count * sizeof(uint32_t);
        free(site->lists[layer]);
        free(site->guesses[layer]);
        site->lists[layer] = malloc(bytes);
        site->guesses[layer] = malloc(bytes);
        if (site->lists[layer] == NULL || site->guesses[layer] == NULL) status = KVT_E_MEMORY;
        for (uint32_t step = 0; step < site->steps && status == KVT_OK; step++) {
            uint32_t *list = site->lists[layer] + (size_t)step * site->count;
            uint32_t *guess = site->guesses[layer] + (size_t)step * site->count;
            choose_list(site, layer, step, false, order, list);
            choose_list(site, layer, step, true, order, guess);
            common += count_common(list, guess, site->count);
        }
    }
    site->guessed = common / ((double)site->count * site->steps * site->layers);
    free(order);
    return status;
}

static kvt_sparse_given given_of(const given_site *site, const uint32_t *numbers)
{
    return (kvt_sparse_given){.struct_size = sizeof(kvt_sparse_given),
                              .block_tokens = 1,
                              .lists = 1,
                              .counts = &site->count,
                              .numbers = numbers};
}

static const uint32_t *list_of(const given_site *site, uint32_t layer, uint32_t step)
{
    return site->lists[layer] + (size_t)step * site->count;
}

/* ---- one case ---- */

/* The warm steps' lists in the place of the prompt's last ones; the first token stands for those
 * that come later. */
static void warm_lists(const given_site *site, uint32_t layer, uint32_t *numbers,
                       kvt_sparse_given given[WARM])
{
    for (uint32_t i = 0; i < WARM; i++) {
        uint32_t *own = numbers + (size_t)i * site->count;
        given[i] = given_of(site, own);
        for (uint32_t n = 0; n < site->count; n++) {
            const uint32_t token = list_of(site, layer, i)[n];
            own[n] = token < site->source.tokens ? token : 0;
        }
    }
}

/* Gives all layers, by position or in the order of the warm lists, and warms them up. */
static kvt_status give_layers(const given_site *site, const given_case *one, kvt_sparse *sequence)
{
    uint32_t *numbers = malloc((size_t)WARM * site->count * sizeof *numbers);
    kvt_status status = numbers != NULL ? KVT_OK : KVT_E_MEMORY;
    kvt_sparse_given given[WARM];
    for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++) {
        warm_lists(site, layer, numbers, given);
        status = kvt_sparse_give_selected(sequence, layer, site->rows[layer], NULL, given,
                                          one->ordered ? WARM : 0);
        sequence->units[layer].window.rate = window_rules[one->rule];
        if (status == KVT_OK)
            status = kvt_sparse_give_keys(sequence, layer, site->rows[layer], site->source.tokens);
    }
    for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++) {
        if (one->rule == WINDOWS_LRU) break;
        warm_lists(site, layer, numbers, given);
        status = kvt_sparse_observe_given(sequence, layer, given, WARM);
    }
    free(numbers);
    return status;
}

/* Whether the index keys are what they were. */
static bool keys_are_sound(const given_site *site, const kvt_sparse *sequence)
{
    for (uint32_t layer = 0; layer < site->layers; layer++) {
        const void *keys;
        uint32_t tokens;
        if (kvt_sparse_keys(sequence, layer, &keys, &tokens) != KVT_OK ||
            tokens != site->source.tokens ||
            memcmp(keys, site->rows[layer], (size_t)tokens * KEY_BYTES) != 0)
            return false;
    }
    return true;
}

static kvt_status open_case(given_site *site, const given_case *one, kvt_store **store,
                            kvt_sparse **sequence)
{
    const decode_source *source = &site->source;
    const uint64_t bytes = (uint64_t)site->layers * source->tokens * site->width * 2;
    const kvt_layout layout = {.layers = (uint16_t)site->layers,
                               .kv_heads = 1,
                               .head_dim = (uint16_t)site->width,
                               .dtype = KVT_DTYPE_FP16,
                               .sides = KVT_SIDES_ONE,
                               .tokens = source->tokens};
    kvt_sparse_options options;
    kvt_sparse_options_init(&options, &layout);
    options.given = true;
    options.variants = 1u << KVT_SPARSE_RAW;
    options.budget_bytes = KVT_SPARSE_ALL;
    options.page_tokens = one->page_tokens;
    options.key_bytes = KEY_BYTES;
    options.window_bytes[KVT_TIER_DRAM] = bytes / WINDOW_SHARE;
    options.replica_share = one->copies;
    options.divide_windows = one->rule == WINDOWS_DECAYED;
    const tiers_striping striping =
        one->rule == WINDOWS_LRU ? TIERS_STRIPE_ROUND_ROBIN : TIERS_STRIPE_PROPORTIONAL;
    kvt_status status =
        bench_reads_store(site->options, striping, bytes / 4 + 16 * MIB, store, site->report);
    if (status == KVT_OK)
        status = kvt_sparse_open_live(*store, &options, sequence, site->report->message,
                                      BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) status = give_layers(site, one, *sequence);
    return status;
}

/* Rows that are not those of the list. */
static uint64_t count_wrong(const given_site *site, uint32_t layer, const uint32_t *list,
                            const kvt_sparse_pages *pages)
{
    const kvt_sparse_head *head = &pages->heads[0];
    const size_t row = (size_t)site->width * 2;
    uint8_t *asked = calloc(site->source.all, 1);
    uint64_t wrong = asked == NULL, found = 0;
    for (uint32_t n = 0; asked != NULL && n < site->count; n++)
        asked[list[n]] = 1;
    for (uint32_t i = 0; asked != NULL && i < head->page_count; i++)
        for (uint32_t t = 0; t < head->pages[i].tokens; t++, found++) {
            const uint32_t position = head->pages[i].positions[t];
            const uint16_t *wanted = site->rows[layer] + (size_t)position * site->width;
            wrong += !asked[position] ||
                     memcmp((const uint8_t *)head->pages[i].k + t * row, wanted, row) != 0;
            asked[position] = 0;
        }
    free(asked);
    return wrong + (found < site->count ? site->count - found : found - site->count);
}

/* One layer of a step. *seconds grows by what an engine would wait for. */
static kvt_status run_layer(const given_site *site, const given_case *one, kvt_sparse *sequence,
                            uint32_t layer, uint32_t step, double *seconds, uint64_t *wrong)
{
    const uint32_t *list = list_of(site, layer, step);
    const kvt_sparse_given given = given_of(site, list);
    kvt_sparse_step *at;
    const kvt_sparse_pages *pages;
    uint64_t begin_ns = base_clock_ns();
    kvt_status status = kvt_sparse_select_given(sequence, layer, &given, &at);
    if (status != KVT_OK) return status;
    status = kvt_sparse_wait(sequence, at, KVT_NO_DEADLINE, &pages);
    *seconds += (double)(base_clock_ns() - begin_ns) * 1e-9;
    if (status == KVT_OK) *wrong += count_wrong(site, layer, list, pages);
    begin_ns = base_clock_ns();
    if (one->computes) {
        const uint64_t end_ns = begin_ns + (uint64_t)(site->compute_seconds * 1e9);
        if (one->hint && layer + 1 < site->layers) {
            const uint32_t surest = (uint32_t)(GUESS_PART * site->count);
            kvt_sparse_given next =
                given_of(site, site->guesses[layer + 1] + (size_t)step * site->count);
            next.counts = &surest;
            status = kvt_sparse_hint_given(sequence, layer + 1, &next);
        }
        base_sleep_until(end_ns);
    }
    kvt_sparse_done(sequence, at);
    *seconds += (double)(base_clock_ns() - begin_ns) * 1e-9;
    return status;
}

static kvt_status run_case(given_site *site, double share, const given_case *one)
{
    kvt_store *store = NULL;
    kvt_sparse *sequence = NULL;
    kvt_sparse_stats before = {.struct_size = sizeof before}, after = before;
    uint64_t wrong = 0;
    kvt_status status = open_case(site, one, &store, &sequence);
    for (uint32_t step = 0; step < site->steps && status == KVT_OK; step++) {
        double seconds = 0;
        if (step == WARM) status = kvt_sparse_stats_get(sequence, &before);
        for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++) {
            const size_t at = (size_t)(site->source.tokens + step) * site->width;
            if (site->source.grows)
                status = kvt_sparse_append(sequence, layer, site->rows[layer] + at, NULL, 1);
        }
        for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++)
            status = run_layer(site, one, sequence, layer, step, &seconds, &wrong);
        if (step >= WARM) site->samples[step - WARM] = seconds;
    }
    if (status == KVT_OK) status = kvt_sparse_stats_get(sequence, &after);
    if (status == KVT_OK && !keys_are_sound(site, sequence)) wrong++;
    if (status == KVT_OK) {
        const uint32_t steps = site->steps - WARM;
        const uint64_t keys = (uint64_t)site->layers * site->source.tokens * KEY_BYTES;
        const double hits = (double)(after.hit_bytes - before.hit_bytes);
        const double missed = (double)(after.missed_bytes - before.missed_bytes);
        const double io = (double)(after.io_ns - before.io_ns) * 1e-9 / steps;
        if (one == &given_cases[OURS]) site->compute_seconds = io / site->layers;
        bench_report_row(site->report, "results",
                         json_pack("{s:s, s:s, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
                                   "source", site->source.name, "case", one->name, "share", share,
                                   "page_tokens", (json_int_t)sequence->tail_page.page_tokens,
                                   "bytes", (double)(after.read_bytes - before.read_bytes) / steps,
                                   "hit_ratio", hits + missed > 0 ? hits / (hits + missed) : 0,
                                   "io_seconds", io, "seconds",
                                   bench_rate_of(site->samples, steps).median, "index_share",
                                   (double)(after.index_bytes - keys) / (double)after.page_bytes,
                                   "guessed", site->guessed, "wrong", (json_int_t)wrong));
        if (wrong > 0) status = KVT_E_CORRUPT;
    }
    kvt_sparse_close(sequence);
    kvt_store_close(store);
    return status;
}

/* ---- all of it ---- */

static kvt_status run_dump(given_site *site, const char *path)
{
    kvt_status status = decode_source_dump(path, site->options->quick ? WARM + 8 : 0, &site->source,
                                           site->report->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    site->width = 2 * site->source.kv_heads * site->source.head_dim;
    site->layers = site->source.layers < LAYERS_MAX ? site->source.layers : LAYERS_MAX;
    site->steps = site->source.rows;
    if (site->width > KVT_SPARSE_ROW_DIM_MAX || site->steps <= WARM)
        status = bench_blame(site->report, KVT_E_ARGUMENT, path,
                             "a latent is wider than 1,024, or there are too few queries");
    for (uint32_t layer = 0; layer < site->layers && status == KVT_OK; layer++)
        status = load_layer(site, layer);
    const uint32_t sizes = site->options->quick ? 1 : sizeof shares / sizeof shares[0];
    for (uint32_t i = 0; i < sizes && status == KVT_OK; i++) {
        status = choose_lists(site, shares[i]);
        for (uint32_t n = 0; n < CASES && status == KVT_OK; n++) {
            (void)bench_tell(site->options, i * CASES + n, sizes * CASES, given_cases[n].name);
            status = run_case(site, shares[i], &given_cases[n]);
        }
    }
    for (uint32_t layer = 0; layer < LAYERS_MAX; layer++) {
        free(site->rows[layer]);
        free(site->weight[layer]);
        free(site->lists[layer]);
        free(site->guesses[layer]);
        site->rows[layer] = NULL;
        site->weight[layer] = NULL;
        site->lists[layer] = site->guesses[layer] = NULL;
    }
    decode_source_close(&site->source);
    return status;
}

static kvt_status given_run(const bench_options *wanted, bench_report *report)
{
    static kvt_device_config own[BENCH_OWN_DRIVES];
    const decode_given_options *dumps = wanted->own;
    bench_options options = *wanted;
    kvt_status status = bench_take_drives(&options, OWN_DRIVE_MIB * MIB, 80000, own, report);
    if (status != KVT_OK) return status;
    given_site site = {.options = &options, .report = report};
    for (uint32_t i = 0; i < dumps->count && status == KVT_OK; i++)
        status = run_dump(&site, dumps->paths[i]);
    bench_report_add(report, json_pack("{s:i, s:i, s:i}", "repetitions", 1, "warm_steps", WARM,
                                       "window_share", WINDOW_SHARE));
    return status;
}

const bench_case decode_given_case = {
    .name = "given",
    .schema = "kvterrace-bench-given-1",
    .tables = (const document_table[]){{"", "warm_steps window_share"},
                                       {"results", "source case share page_tokens bytes hit_ratio "
                                                   "io_seconds seconds index_share guessed wrong"},
                                       {0}},
    .run = given_run,
};
