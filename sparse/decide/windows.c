/* SPDX-License-Identifier: Apache-2.0 */
/*
 * windows.c - ends a step of a window: who stays.
 *
 * Candidates are pages that were resident and pages of the step. They are put in order only as far
 * as needed: partitions around pivots, summing bytes, until the capacity falls between two pages.
 * Pure; the caller's lock.
 */
#include "sparse/decide/windows.h"

#include <assert.h>
#include <string.h>

/* Of a page's `held` during a step: it was not resident before. */
#define WINDOW_ARRIVES 0x80u
#define VARIANT_MASK   0x7fu

static uint64_t page_bytes(const windows_unit *unit, uint32_t page, uint32_t variant)
{
    return (uint64_t)windows_page_tokens(unit, page) *
           unit->terms->token_bytes[variant & VARIANT_MASK];
}

/* Bytes of the window that a page takes. */
static uint64_t stay_bytes(const windows_unit *unit, uint32_t page)
{
    return page_bytes(unit, page, unit->terms->rows_stay ? PAGES_RAW : unit->held[page]);
}

/* Candidates in order: the highest standing first, of equals the lower page. Standings are not
 * negative, so that their bits are in the order of their values. */
static uint64_t order_of(const windows_unit *unit, uint32_t page)
{
    uint32_t bits;
    memcpy(&bits, &unit->standing[page], sizeof bits);
    return (uint64_t)~bits << 32 | page;
}

static void swap(uint64_t *a, uint64_t *b)
{
    const uint64_t held = *a;
    *a = *b;
    *b = held;
}

/* Splits [begin, end) at the median of three; returns the place of the pivot. */
static uint32_t partition(uint64_t *order, uint32_t begin, uint32_t end)
{
    const uint32_t middle = begin + (end - begin) / 2, last = end - 1;
    if (order[middle] < order[begin]) swap(&order[middle], &order[begin]);
    if (order[last] < order[begin]) swap(&order[last], &order[begin]);
    if (order[middle] < order[last]) swap(&order[middle], &order[last]);
    const uint64_t pivot = order[last];
    uint32_t at = begin;
    for (uint32_t i = begin; i < last; i++) { /* no branch: half of them would be mispredicted */
        const uint64_t own = order[i];
        order[i] = order[at];
        order[at] = own;
        at += own < pivot;
    }
    swap(&order[at], &order[last]);
    return at;
}

/* How many candidates fit into `most` bytes, the first ones in order; they are at the front then.
 * unit->held has the variant of each. */
static uint32_t select_fitting(windows_unit *unit, uint32_t count, uint64_t most,
                               uint64_t *bytes_out)
{
    uint32_t begin = 0, end = count;
    uint64_t left = most;
    while (begin < end) {
        const uint32_t pivot = partition(unit->order, begin, end);
        uint64_t bytes = 0;
        for (uint32_t i = begin; i <= pivot; i++) {
            const uint32_t page = (uint32_t)unit->order[i];
            bytes += stay_bytes(unit, page);
        }
        if (bytes <= left) {
            left -= bytes;
            begin = pivot + 1;
        } else {
            end = pivot;
        }
    }
    *bytes_out = most - left;
    return begin;
}

/* All pages but the last are alike, which a compiler makes vectors of. */
static void decay_all(windows_unit *unit, const float *weight)
{
    const float past = unit->decay, now = 1.0f - unit->decay;
    const float share = now / (float)unit->page_tokens;
    const uint32_t alike = unit->tokens == NULL && unit->pages > 0 ? unit->pages - 1 : 0;
    float *restrict standing = unit->standing;
    uint32_t page = 0;
    for (; page < alike; page++)
        standing[page] = past * standing[page] + share * weight[page];
    for (; page < unit->pages; page++)
        standing[page] =
            past * standing[page] + now * weight[page] / (float)windows_page_tokens(unit, page);
}

/* One page of a step: what it read, and what it has now. */
static void use(windows_unit *unit, uint32_t page, uint8_t wanted, windows_change *change)
{
    const uint8_t held = unit->held[page];
    if (wanted == PAGES_ABSENT) return;
    assert(wanted >= held && wanted < PAGES_VARIANTS);
    const uint64_t all = page_bytes(unit, page, wanted);
    const bool shares = wanted == held || (wanted != PAGES_RAW && !unit->terms->rows_stay);
    const uint64_t hit = shares ? page_bytes(unit, page, held) : 0;
    change->hit_bytes += hit;
    change->read_bytes += all - hit;
    unit->held[page] = held == PAGES_ABSENT ? wanted | WINDOW_ARRIVES : wanted;
}

/* Lists the pages that are resident or of the step. Few are, so eight are passed over at a time;
 * among eight without branches, which no history foretells. */
static uint32_t list_candidates(windows_unit *unit, const uint8_t *wanted)
{
    const uint8_t *held = unit->held;
    uint64_t *order = unit->order;
    uint32_t count = 0;
    for (uint32_t first = 0; first < unit->pages; first += 8) {
        const uint32_t end = unit->pages - first < 8 ? unit->pages : first + 8;
        uint64_t one = 1, other = 0;
        if (end == first + 8) {
            memcpy(&one, held + first, 8);
            memcpy(&other, wanted + first, 8);
        }
        for (uint32_t page = first; (one | other) != 0 && page < end; page++) {
            order[count] = page;
            count += (held[page] | wanted[page]) != PAGES_ABSENT;
        }
    }
    return count;
}

/* The pages behind the first `kept` ones go. */
static void leave(windows_unit *unit, uint32_t kept, uint32_t count, uint32_t *left_out,
                  windows_change *change)
{
    for (uint32_t i = 0; i < kept; i++)
        unit->held[(uint32_t)unit->order[i]] &= VARIANT_MASK;
    for (uint32_t i = kept; i < count; i++) {
        const uint32_t page = (uint32_t)unit->order[i];
        if (unit->held[page] & WINDOW_ARRIVES) {
            change->turned++;
        } else {
            if (left_out != NULL) left_out[change->left] = page;
            change->left++;
        }
        unit->held[page] = PAGES_ABSENT;
    }
    change->kept = kept;
}

void windows_step(windows_unit *unit, const float *weight, const uint8_t *wanted,
                  uint32_t *left_out, windows_change *change_out)
{
    *change_out = (windows_change){.kept = 0};
    unit->step++;
    if (unit->rate == NULL) decay_all(unit, weight);
    const uint32_t count = list_candidates(unit, wanted);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t page = (uint32_t)unit->order[i];
        if (unit->rate != NULL)
            unit->rate(unit, page, weight[page], wanted[page] != PAGES_ABSENT,
                       unit->held[page] != PAGES_ABSENT);
        use(unit, page, wanted[page], change_out);
        unit->order[i] = order_of(unit, page);
    }
    const uint32_t kept = select_fitting(unit, count, unit->capacity_bytes, &unit->used_bytes);
    leave(unit, kept, count, left_out, change_out);
    assert(unit->used_bytes <= unit->capacity_bytes);
}

/* All resident pages as candidates. */
static uint32_t list_held(windows_unit *unit)
{
    uint32_t count = 0;
    for (uint32_t page = 0; page < unit->pages; page++)
        if (unit->held[page] != PAGES_ABSENT) unit->order[count++] = order_of(unit, page);
    return count;
}

uint32_t windows_head(windows_unit *unit, uint64_t bytes, uint32_t *pages_out)
{
    uint64_t used;
    const uint32_t head = select_fitting(unit, list_held(unit), bytes, &used);
    for (uint32_t i = 0; i < head; i++)
        pages_out[i] = (uint32_t)unit->order[i];
    assert(used <= bytes);
    return head;
}

uint32_t windows_resize(windows_unit *unit, uint64_t capacity_bytes, uint32_t *left_out)
{
    windows_change change = {.kept = 0};
    unit->capacity_bytes = capacity_bytes;
    const uint32_t count = list_held(unit);
    const uint32_t kept = select_fitting(unit, count, capacity_bytes, &unit->used_bytes);
    leave(unit, kept, count, left_out, &change);
    return change.left;
}
