/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_select.c - which tokens stay, and their rows. See drop.h. Re-entrant.
 */
#include "drop.h"

#include <assert.h>
#include <string.h>

uint32_t drop_keep_count(uint32_t tokens, uint32_t keep_permille)
{
    return (uint32_t)(((uint64_t)tokens * keep_permille + 999) / 1000);
}

kvt_status drop_plan_of(const drop_settings *settings, const drop_place *place, drop_plan *plan_out)
{
    const uint64_t chain = place->chain_tokens;
    const uint64_t first = place->first_position;
    const uint64_t end = first + place->tokens;
    uint64_t recent = settings->recent;
    memset(plan_out, 0, sizeof *plan_out);
    if (settings->method < DROP_METHOD_STREAM || settings->method > DROP_METHOD_CALLER) {
        return KVT_E_ARGUMENT;
    }
    if (settings->keep_permille == 0 || settings->keep_permille > 1000) return KVT_E_ARGUMENT;
    if (settings->method == DROP_METHOD_LAGKV && settings->lag == 0) return KVT_E_ARGUMENT;
    if (end > chain) return KVT_E_ARGUMENT;
    if (settings->method == DROP_METHOD_STREAM) {
        const uint64_t keep = drop_keep_count(place->chain_tokens, settings->keep_permille);
        const uint64_t window = keep > settings->sinks ? keep - settings->sinks : 0;
        if (window > recent) recent = window;
    }
    const uint64_t recent_start = chain > recent ? chain - recent : 0;
    uint64_t head = settings->sinks > first ? settings->sinks - first : 0;
    uint64_t tail = recent_start > first ? recent_start - first : 0;
    if (head > place->tokens) head = place->tokens;
    if (tail > place->tokens) tail = place->tokens;
    if (tail < head) tail = head;
    uint32_t keep = (uint32_t)(head + place->tokens - tail);
    if (settings->method != DROP_METHOD_STREAM) {
        const uint32_t share = drop_keep_count(place->tokens, settings->keep_permille);
        if (share > keep) keep = share;
    }
    plan_out->head = (uint32_t)head;
    plan_out->tail = (uint32_t)tail;
    plan_out->keep = keep;
    return KVT_OK;
}

/* A number that grows with the score: NaN is 0, both zeros are the same. */
static uint64_t drop_order(double score)
{
    uint64_t bits;
    if (score != score) return 0;
    if (score == 0.0) score = 0.0;
    memcpy(&bits, &score, sizeof bits);
    if (bits == UINT64_C(1) << 63) bits = 0;
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

/*
 * Among tokens [first, end) the order of the one with exactly `wanted` - 1 tokens before it, 1 <=
 * wanted <= end - first, found a byte at a time from the top. *equals_out is how many of the
 * tokens of that very order belong to the wanted ones.
 */
static uint64_t drop_threshold(const double *scores, uint32_t first, uint32_t end, uint32_t wanted,
                               uint32_t *equals_out)
{
    uint64_t found = 0;
    uint64_t mask = 0;
    for (uint32_t shift = 64; shift > 0;) {
        uint32_t counts[256] = {0};
        uint32_t byte = 255;
        shift -= 8;
        for (uint32_t t = first; t < end; t++) {
            const uint64_t order = drop_order(scores[t]);
            if ((order & mask) == found) counts[(order >> shift) & 255u]++;
        }
        while (counts[byte] < wanted) {
            wanted -= counts[byte--];
        }
        found |= (uint64_t)byte << shift;
        mask |= UINT64_C(255) << shift;
    }
    *equals_out = wanted;
    return found;
}

void drop_select(const double *scores, uint32_t tokens, const drop_plan *plan, uint32_t *index_out)
{
    const uint32_t fixed = plan->head + (tokens - plan->tail);
    const uint32_t wanted = plan->keep - fixed;
    uint32_t equals = 0;
    uint32_t count = 0;
    assert(plan->head <= plan->tail && plan->tail <= tokens);
    assert(fixed <= plan->keep && plan->keep <= tokens);
    assert(scores != NULL || wanted == 0);
    for (uint32_t t = 0; t < plan->head; t++) {
        index_out[count++] = t;
    }
    if (wanted > 0) {
        const uint64_t least = drop_threshold(scores, plan->head, plan->tail, wanted, &equals);
        for (uint32_t t = plan->head; t < plan->tail; t++) {
            const uint64_t order = drop_order(scores[t]);
            if (order < least || (order == least && equals == 0)) continue;
            if (order == least) equals--;
            index_out[count++] = t;
        }
    }
    for (uint32_t t = plan->tail; t < tokens; t++) {
        index_out[count++] = t;
    }
    assert(count == plan->keep);
}

void drop_gather(const void *source, uint64_t row_bytes, const uint32_t *index, uint32_t count,
                 void *target)
{
    const uint8_t *from = source;
    uint8_t *to = target;
    for (uint32_t i = 0; i < count;) {
        uint32_t run = 1;
        while (i + run < count && index[i + run] == index[i] + run)
            run++;
        memcpy(to + i * row_bytes, from + index[i] * row_bytes, run * row_bytes);
        i += run;
    }
}

kvt_status drop_scatter(const void *rows, uint64_t row_bytes, const uint32_t *index, uint32_t count,
                        uint32_t tokens, void *target)
{
    const uint8_t *from = rows;
    uint8_t *to = target;
    uint32_t end = tokens; /* rows from here on are done */
    for (uint32_t i = 0; i < count; i++) {
        if (index[i] >= tokens || (i > 0 && index[i] <= index[i - 1])) return KVT_E_CORRUPT;
    }
    /* From the last one: a row never lies before its place among the kept ones. */
    for (uint32_t i = count; i-- > 0;) {
        const uint64_t after = (uint64_t)index[i] + 1;
        memmove(to + index[i] * row_bytes, from + i * row_bytes, row_bytes);
        memset(to + after * row_bytes, 0, (end - after) * row_bytes);
        end = index[i];
    }
    if (end > 0) memset(to, 0, end * row_bytes);
    return KVT_OK;
}
