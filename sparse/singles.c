/* SPDX-License-Identifier: Apache-2.0 */
/*
 * singles.c - codes of single keys, the choice of tokens by them, and the weights of those left.
 *
 * Build, part by part of 8 channels:
 *
 *     sample of keys less their centroids, each channel times the root mean square of its keys
 *     -> 256 clusters -> rows as int8 -> the nearest row of every token
 *
 * Queries are large where keys are, so errors there cost more: 2 points of recall on attention of a
 * model.
 *
 * Choice, token by token of the pages that bring single ones, for each query head:
 *
 *     weight = exp(centroid's score + away + lift(error)),  away = sum of its code's rows' scores
 *     left of a cluster: sum of weights,  tilt = mean of (away + error), by weight, over the
 *                        cluster's deviation. Of whole clusters of normal scores it is 1, and then
 *                        values follow the slopes as in sparse_choose_estimate
 *
 * Re-entrant.
 */
#include "singles.h"

#include "base/number/number.h"
#include "cluster.h"
#include "sparse_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { SINGLES_SAMPLE = 8192, SINGLES_ROUNDS = 6 };

#define SINGLES_FLOOR 0.1   /* of the mean square of all channels: the least that one has */
#define SINGLES_EXP   80.0f /* no exponent passes it */

/* ---- codes ---- */

typedef struct codes_draft {
    const sparse_index *index;
    const sparse_rows *keys;
    uint8_t dtype;
    cluster_work work;                /* of one part */
    float large[SPARSE_HEAD_DIM_MAX]; /* root mean square of a key's channel */
} codes_draft;

static kvt_status codes_open(const sparse_index *index, singles_codes *codes)
{
    const uint32_t dim = index->head_dim;
    const size_t book = (size_t)dim * SINGLES_ROWS, floats = dim * sizeof(float);
    const size_t code = (size_t)index->tokens * (dim / SINGLES_PART);
    *codes = (singles_codes){.bytes = book + 2 * floats + code};
    codes->book = calloc(codes->bytes, 1);
    if (codes->book == NULL) return KVT_E_MEMORY;
    codes->step = (float *)(void *)(codes->book + book);
    codes->error = codes->step + dim;
    codes->code = (uint8_t *)(codes->error + dim);
    return KVT_OK;
}

void sparse_singles_free(singles_codes *codes)
{
    free(codes->book);
    *codes = (singles_codes){.book = NULL};
}

/* How large keys are in each channel, by their clusters. */
static void find_large(const sparse_index *index, float *large)
{
    double square[SPARSE_HEAD_DIM_MAX] = {0.0}, mean = 0.0;
    for (uint32_t d = 0; d < index->head_dim; d++) {
        const double step = (double)index->key_step[d];
        for (uint32_t c = 0; c < index->clusters; c++) {
            const double key = step * index->centroids[(size_t)c * index->head_dim + d];
            square[d] += (double)(index->first[c + 1] - index->first[c]) * key * key;
        }
        square[d] = square[d] / index->tokens + (double)index->key_scatter[d];
        mean += square[d] / index->head_dim;
    }
    for (uint32_t d = 0; d < index->head_dim; d++)
        large[d] = mean > 0.0 ? (float)sqrt(square[d] / mean + SINGLES_FLOOR) : 1.0f;
}

/* Rows of the clusters' work: one part of keys less their centroids, each channel times `large`; of
 * every stride-th place from one on. Returns how many. */
static uint32_t take_rows(codes_draft *draft, uint32_t place, uint32_t stride, uint32_t from)
{
    const sparse_index *index = draft->index;
    uint32_t count = 0, c = 0;
    for (; place < index->tokens && count < SINGLES_SAMPLE; place += stride) {
        float *out = draft->work.rows + (size_t)count++ * SINGLES_PART;
        const uint8_t *row = (const uint8_t *)draft->keys->base +
                             sparse_index_token(index, place) * draft->keys->stride_bytes;
        while (index->first[c + 1] <= place)
            c++;
        const int8_t *centroid = index->centroids + (size_t)c * index->head_dim + from;
        sparse_kernels_in_use()->widen(row + (uint64_t)from * kvt_dtype_bytes(draft->dtype),
                                       SINGLES_PART, draft->dtype, out);
        for (uint32_t d = 0; d < SINGLES_PART; d++)
            out[d] =
                (out[d] - (float)centroid[d] * index->key_step[from + d]) * draft->large[from + d];
    }
    return count;
}

/* The rows of one part: centroids as int8, in steps of the largest in a channel. */
static void put_book(const codes_draft *draft, uint32_t from, uint32_t rows, singles_codes *codes)
{
    float centre[SINGLES_ROWS][SINGLES_PART];
    for (uint32_t r = 0; r < rows; r++)
        sparse_cluster_centre(&draft->work, r, centre[r]);
    for (uint32_t d = 0; d < SINGLES_PART; d++) {
        float most = 0.0f;
        for (uint32_t r = 0; r < rows; r++)
            most = fmaxf(most, fabsf(centre[r][d]));
        const float inverse = most >= 1e-30f ? 127.0f / most : 0.0f;
        for (uint32_t r = 0; r < rows; r++)
            codes->book[(size_t)(from + d) * SINGLES_ROWS + r] =
                (int8_t)half_round_integer(centre[r][d] * inverse);
        codes->step[from + d] = most / 127.0f / draft->large[from + d];
    }
}

static void code_part(codes_draft *draft, uint32_t part, uint64_t seed, singles_codes *codes)
{
    const uint32_t tokens = draft->index->tokens, parts = draft->index->head_dim / SINGLES_PART;
    const uint32_t from = part * SINGLES_PART;
    const uint32_t sample =
        take_rows(draft, 0, (tokens + SINGLES_SAMPLE - 1) / SINGLES_SAMPLE, from);
    const uint32_t rows = sample < SINGLES_ROWS ? sample : SINGLES_ROWS;
    double error[SINGLES_PART] = {0.0};
    sparse_cluster_find(&draft->work, sample, rows, SINGLES_ROUNDS, number_mix(seed + part));
    put_book(draft, from, rows, codes);
    for (uint32_t first = 0; first < tokens; first += SINGLES_SAMPLE) {
        const uint32_t count = take_rows(draft, first, 1, from);
        sparse_cluster_nearest(&draft->work, count, rows);
        for (uint32_t i = 0; i < count * SINGLES_PART; i++) {
            const uint32_t d = from + i % SINGLES_PART, row = draft->work.owner[i / SINGLES_PART];
            const float off = draft->work.rows[i] / draft->large[d] -
                              (float)codes->book[(size_t)d * SINGLES_ROWS + row] * codes->step[d];
            error[d - from] += (double)off * (double)off;
            codes->code[(size_t)(first + i / SINGLES_PART) * parts + part] = (uint8_t)row;
        }
    }
    for (uint32_t d = 0; d < SINGLES_PART; d++)
        codes->error[from + d] = (float)(error[d] / tokens);
}

kvt_status sparse_singles_build(const sparse_index *index, const sparse_rows *keys, uint8_t dtype,
                                uint64_t seed, singles_codes *codes)
{
    codes_draft draft = {.index = index, .keys = keys, .dtype = dtype};
    kvt_status status = codes_open(index, codes);
    if (status != KVT_OK || index->tokens == 0) return status;
    status = cluster_work_open(SINGLES_PART, SINGLES_SAMPLE, SINGLES_ROWS, &draft.work);
    if (status != KVT_OK) {
        sparse_singles_free(codes);
        return status;
    }
    find_large(index, draft.large);
    for (uint32_t part = 0; part < index->head_dim / SINGLES_PART; part++)
        code_part(&draft, part, seed, codes);
    cluster_work_close(&draft.work);
    return KVT_OK;
}

/* ---- memory ---- */

kvt_status sparse_singles_work_open(uint32_t tokens, uint32_t group, uint32_t head_dim,
                                    singles_work *work)
{
    const size_t table = (size_t)group * (head_dim / SINGLES_PART) * SINGLES_ROWS;
    const size_t room = tokens + 1u;
    float *at = malloc((table + (2 * (size_t)group + 2) * room) * sizeof *at);
    *work = (singles_work){.table = at};
    if (at == NULL) return KVT_E_MEMORY;
    work->weight = at + table;
    work->away = work->weight + group * room;
    work->place = (uint32_t *)(void *)(work->away + group * room);
    work->keys = (int16_t *)(void *)(work->place + room);
    return KVT_OK;
}

void sparse_singles_work_close(singles_work *work)
{
    free(work->table);
    *work = (singles_work){.table = NULL};
}

kvt_status sparse_singles_open(uint32_t tokens, uint32_t pages, uint32_t lanes, uint32_t group,
                               singles_choice *choice)
{
    const size_t room = lanes + 1u, words = tokens / 64 + 1u;
    uint64_t *at =
        calloc(words * sizeof *at + (2 * (size_t)group + 2) * room * sizeof(float) + pages + 1u, 1);
    *choice = (singles_choice){.chosen = at};
    if (at == NULL) return KVT_E_MEMORY;
    choice->left.weight = (float *)(void *)(at + words);
    choice->left.tilt = choice->left.weight + group * room;
    choice->left.lane = (uint32_t *)(void *)(choice->left.tilt + group * room);
    choice->end = choice->left.lane + room;
    choice->page = (uint8_t *)(choice->end + room);
    return KVT_OK;
}

void sparse_singles_close(singles_choice *choice)
{
    free(choice->chosen);
    *choice = (singles_choice){.chosen = NULL};
}

/* ---- the choice ---- */

/* One step's queries. */
typedef struct choose_site {
    const singles_codes *codes;
    const sparse_index *index;
    const sparse_paging *paging;
    const singles_work *scratch;
    const sparse_work *work;
    float error[SPARSE_GROUP_MAX];     /* mean square that a score by a code is off */
    float deviation[SPARSE_GROUP_MAX]; /* the same of a centroid's, in a cluster of scatter 1 */
} choose_site;

/* Scores of the rows of every part, side by side for the group. */
static void score_rows(choose_site *s, const float *queries, float scale)
{
    const singles_codes *codes = s->codes;
    const uint32_t dim = s->index->head_dim, group = s->work->group;
    for (uint32_t g = 0; g < group; g++) {
        s->error[g] = s->deviation[g] = 0.0f;
        for (uint32_t part = 0; part < dim / SINGLES_PART; part++) {
            float scores[SINGLES_ROWS] = {0.0f};
            for (uint32_t d = part * SINGLES_PART; d < (part + 1) * SINGLES_PART; d++) {
                const float query = queries[(size_t)g * dim + d] * scale;
                const float step = sparse_within(query * codes->step[d], SPARSE_ELEMENT_MAX);
                const int8_t *restrict book = codes->book + (size_t)d * SINGLES_ROWS;
                for (uint32_t r = 0; r < SINGLES_ROWS; r++)
                    scores[r] += step * (float)book[r];
                s->error[g] += query * query * codes->error[d];
                s->deviation[g] += query * query * s->index->key_scatter[d];
            }
            float *table = s->scratch->table + (size_t)part * SINGLES_ROWS * group + g;
            for (uint32_t r = 0; r < SINGLES_ROWS; r++)
                table[(size_t)r * group] = scores[r];
        }
        s->error[g] = sparse_within(s->error[g], SPARSE_DEVIATION_MAX);
        s->deviation[g] = sparse_within(s->deviation[g], SPARSE_DEVIATION_MAX);
    }
}

/* Tokens from a place on, of a cluster that was scored in full: their weights, and the order of
 * these over the group. */
static void weigh_tokens(const choose_site *s, uint32_t cluster, uint32_t place, uint32_t count,
                         uint32_t at)
{
    const sparse_work *work = s->work;
    const uint32_t group = work->group, parts = s->index->head_dim / SINGLES_PART;
    float centre[SPARSE_GROUP_MAX], lift[SPARSE_GROUP_MAX], share[SPARSE_GROUP_MAX];
    for (uint32_t g = 0; g < group; g++) {
        centre[g] =
            work->scores[(size_t)g * work->lanes + cluster] / (float)(int32_t)work->tokens[cluster];
        lift[g] =
            sparse_lift(s->error[g]) - sparse_lift(s->deviation[g] * s->index->scatter[cluster]);
        share[g] = work->sum[g] > 0.0f ? 1.0f / work->sum[g] : 0.0f;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *code = s->codes->code + (size_t)(place + i) * parts;
        float *weight = s->scratch->weight + (size_t)(at + i) * group;
        float *away = s->scratch->away + (size_t)(at + i) * group;
        float sums[SPARSE_GROUP_MAX], all = 0.0f;
        for (uint32_t g = 0; g < group; g++)
            sums[g] = 0.0f;
        for (uint32_t part = 0; part < parts; part++) {
            const float *row =
                s->scratch->table + ((size_t)part * SINGLES_ROWS + code[part]) * group;
            for (uint32_t g = 0; g < group; g++)
                sums[g] += row[g];
        }
        for (uint32_t g = 0; g < group; g++) {
            away[g] = sums[g];
            weight[g] = centre[g] * sparse_exp(sparse_within(sums[g] + lift[g], SINGLES_EXP));
            all += weight[g] * share[g];
        }
        uint32_t bits;
        all = sparse_within(all, SPARSE_ELEMENT_MAX);
        memcpy(&bits, &all, sizeof bits);
        s->scratch->keys[at + i] = (int16_t)(bits >> 16);
        s->scratch->place[at + i] = place + i;
    }
}

/* Lists the clusters that have tokens in the pages, and weighs these. Returns how many it has
 * weighed. */
static uint32_t weigh_all(const choose_site *s, singles_choice *choice)
{
    const sparse_index *index = s->index;
    const sparse_work *work = s->work;
    sparse_left *left = &choice->left;
    uint32_t next = 0, at = 0;
    left->count = choice->tokens = 0;
    for (uint32_t c = 0; c < index->clusters; c++) {
        const bool full = sparse_choose_is_full(index, work, c, &next);
        const uint32_t end = index->first[c + 1];
        uint32_t own = 0;
        for (uint32_t p = index->first[c], stop; p < end; p = stop) {
            const uint32_t page = sparse_page_of(s->paging, p);
            stop = sparse_page_first(s->paging, page + 1);
            stop = stop < end ? stop : end;
            if (choice->page[page] == 0) continue;
            own += stop - p;
            if (!full) continue;
            weigh_tokens(s, c, p, stop - p, at);
            at += stop - p;
        }
        if (own == 0) continue;
        choice->tokens += own;
        for (uint32_t g = 0; g < work->group; g++) { /* those of clusters that are not in full */
            const size_t entry = (size_t)left->count * work->group + g;
            left->tilt[entry] = 1.0f;
            left->weight[entry] = work->scores[(size_t)g * work->lanes + c] *
                                  ((float)(int32_t)own / (float)(int32_t)work->tokens[c]);
        }
        left->lane[left->count] = c;
        choice->end[left->count++] = at;
    }
    return at;
}

/* The heaviest tokens; of equal ones those that come first. */
static void choose_heaviest(const choose_site *s, uint32_t count, uint32_t most,
                            singles_choice *choice)
{
    const int16_t *keys = s->scratch->keys;
    uint32_t above = 0;
    memset(choice->chosen, 0, (s->index->tokens / 64 + 1u) * sizeof *choice->chosen);
    choice->count = most < count ? most : count;
    if (choice->count == 0) return;
    const int16_t least = sparse_choose_rank(keys, count, choice->count);
    for (uint32_t i = 0; i < count; i++)
        above += keys[i] > least;
    uint32_t equal = choice->count - above;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t place = s->scratch->place[i];
        if (keys[i] < least || (keys[i] == least && equal == 0)) continue;
        equal -= keys[i] == least;
        choice->chosen[place / 64] |= UINT64_C(1) << place % 64;
    }
}

/* Weights and tilts of the tokens that were weighed and not chosen. */
static void sum_left(const choose_site *s, singles_choice *choice)
{
    const uint32_t group = s->work->group;
    sparse_left *left = &choice->left;
    for (uint32_t i = 0, at = 0; i < left->count; at = choice->end[i++]) {
        const float scatter = s->index->scatter[left->lane[i]];
        for (uint32_t g = 0; g < group && choice->end[i] > at; g++) {
            const float off = 2.0f * sparse_lift(s->error[g]);
            const float whole = s->deviation[g] * scatter;
            float sum = 0.0f, sum_away = 0.0f;
            for (uint32_t t = at; t < choice->end[i]; t++) {
                if (singles_is_chosen(choice, s->scratch->place[t])) continue;
                const float weight = s->scratch->weight[(size_t)t * group + g];
                sum += weight;
                sum_away += weight * (s->scratch->away[(size_t)t * group + g] + off);
            }
            const bool tilts = sum >= 1e-30f && whole >= 1e-9f;
            left->weight[(size_t)i * group + g] = sum;
            left->tilt[(size_t)i * group + g] =
                tilts ? sparse_within(sum_away / (sum * whole), 1.0f) : 0.0f;
        }
    }
}

void sparse_singles_choose(const singles_codes *codes, const sparse_index *index,
                           const sparse_paging *paging, const float *queries, float scale,
                           float share, const singles_work *scratch, sparse_work *work,
                           singles_choice *choice)
{
    choose_site s = {
        .codes = codes, .index = index, .paging = paging, .scratch = scratch, .work = work};
    assert(paging->tokens == index->tokens);
    sparse_choose_rest(index, work);
    score_rows(&s, queries, scale);
    const uint32_t count = weigh_all(&s, choice);
    choose_heaviest(&s, count, (uint32_t)((double)share * choice->tokens + 0.5), choice);
    sum_left(&s, choice);
    work->left = &choice->left;
}
