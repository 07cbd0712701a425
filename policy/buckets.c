/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buckets.c - the ring of buckets that buckets.h describes.
 *
 * A bit says for each bucket whether it holds entries, and a second bitmap says so for each word of
 * the first, so the next used bucket is found in at most three look-ups. The number of an entry's
 * bucket is kept with the entry: a key that changes by less than a bucket moves nothing, and an
 * entry is taken out without knowing its key. The file knows nothing of entries beside their links,
 * and never compares keys inside a bucket.
 *
 * Invariants: a bucket's bit is set exactly when its list holds an entry; an entry's link names the
 * number that it came with, which the ring may have left behind; every number is below low + 8192,
 * and all below low are in the sink.
 */
#include "policy/buckets.h"

#include <assert.h>
#include <string.h>

#define NONE_LEFT  UINT32_MAX
#define NUMBER_MAX 1000000000.0 /* numbers and the ring above them stay inside 32 bits */

/* Returns the link of an entry, which lies inside the caller's own table. */
static bucket_link *link_of(bucket_links links, uint32_t entry)
{
    assert(links.stride >= sizeof(bucket_link));
    return (bucket_link *)(void *)(links.first + links.stride * entry);
}

/* Rounds a key down to the number of its bucket. Keys beyond the range, NaN among them, fall into
 * the outermost buckets. Flooring, not truncation: keys below 0 must keep their order too. */
static int32_t bucket_number(double key)
{
    double scaled = key * BUCKETS_PER_UNIT;
    if (!(scaled > -NUMBER_MAX)) return -(int32_t)NUMBER_MAX;
    if (scaled > NUMBER_MAX) return (int32_t)NUMBER_MAX;
    int32_t whole = (int32_t)scaled;
    return whole - (scaled < (double)whole);
}

/* Empties the ring and the sink. All entries that were inside must have left before. */
void buckets_init(buckets *b)
{
    memset(b, 0, sizeof *b);
    memset(b->ring, 0xFF, sizeof b->ring);
    b->sink = (bucket_list){NONE_LEFT, NONE_LEFT};
    b->low = -(int32_t)(BUCKETS_RING / 2);
}

/* The list of a number; *slot_out is its place in the ring, or the ring's size for the sink. */
static bucket_list *bucket_list_of(buckets *b, int32_t number, uint32_t *slot_out)
{
    assert(b->low >= -(int32_t)NUMBER_MAX - (int32_t)BUCKETS_RING);
    *slot_out = BUCKETS_RING;
    if (number < b->low) return &b->sink;
    int32_t top = b->low + (int32_t)BUCKETS_RING - 1;
    *slot_out = (uint32_t)(number < top ? number : top) % BUCKETS_RING;
    return &b->ring[*slot_out];
}

/* Notes that a slot holds entries. The sink has no bit: it is looked at first anyway. */
static void bucket_mark(buckets *b, uint32_t slot)
{
    assert(slot <= BUCKETS_RING);
    if (slot == BUCKETS_RING) return;
    b->words[slot / 64] |= UINT64_C(1) << slot % 64;
    b->groups[slot / 4096] |= UINT64_C(1) << slot / 64 % 64;
}

/* Notes that a slot is empty; its group of words is cleared with its last word. */
static void bucket_clear(buckets *b, uint32_t slot)
{
    assert(slot <= BUCKETS_RING);
    if (slot == BUCKETS_RING) return;
    b->words[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    if (b->words[slot / 64] == 0) b->groups[slot / 4096] &= ~(UINT64_C(1) << slot / 64 % 64);
}

/* The first used slot in [from, BUCKETS_RING), or BUCKETS_RING. It reads the rest of the slot's own
 * word, then the second bitmap, then the word that the second bitmap names. */
static uint32_t bucket_scan(const buckets *b, uint32_t from)
{
    if (from >= BUCKETS_RING) return BUCKETS_RING;
    uint32_t word = from / 64;
    uint64_t here = b->words[word] >> from % 64;
    if (here != 0) return from + (uint32_t)__builtin_ctzll(here);
    for (uint32_t group = ++word / 64; group < 2; group++) {
        uint64_t left = b->groups[group];
        if (group == word / 64) left &= ~UINT64_C(0) << word % 64;
        if (left == 0) continue;
        word = group * 64 + (uint32_t)__builtin_ctzll(left);
        return word * 64 + (uint32_t)__builtin_ctzll(b->words[word]);
    }
    return BUCKETS_RING;
}

/* The first used slot from a number upwards, once around the ring; BUCKETS_RING when none is. The
 * ring has no end of its own: the slot of `low` lies anywhere, so a look-up runs to the end of the
 * array and goes on at its start. */
static uint32_t bucket_first_used(const buckets *b, int32_t from)
{
    uint32_t start = (uint32_t)from % BUCKETS_RING;
    uint32_t bottom = (uint32_t)b->low % BUCKETS_RING;
    uint32_t slot = bucket_scan(b, start);
    if (start >= bottom) {
        if (slot != BUCKETS_RING) return slot;
        slot = bucket_scan(b, 0);
        return slot < bottom ? slot : BUCKETS_RING;
    }
    return slot < bottom ? slot : BUCKETS_RING;
}

/* Moves the low end of the ring up with the time. Buckets that fall below it are joined to the
 * sink in order, so that what was first stays first. An entry keeps its number in its link, so
 * it is found in the sink without a walk. The cost is one step for each bucket in use that falls
 * below. */
void buckets_advance(buckets *b, bucket_links links, double now)
{
    int32_t low = bucket_number(now) - (int32_t)(BUCKETS_RING / 2);
    if (low <= b->low) return;
    int64_t steps = (int64_t)low - b->low;
    int32_t number = b->low;
    while (b->count > 0 && steps > 0) {
        uint32_t slot = bucket_first_used(b, number);
        if (slot == BUCKETS_RING) break;
        int64_t above = (slot - (uint32_t)number) % BUCKETS_RING;
        if (above >= steps) break;
        bucket_list *list = &b->ring[slot];
        if (b->sink.newest == NONE_LEFT) {
            b->sink = *list;
        } else {
            link_of(links, b->sink.newest)->newer = list->oldest;
            link_of(links, list->oldest)->older = b->sink.newest;
            b->sink.newest = list->newest;
        }
        *list = (bucket_list){NONE_LEFT, NONE_LEFT};
        bucket_clear(b, slot);
        number += (int32_t)above;
        steps -= above;
        /* Entries above the top of the old ring have lain in its top bucket: they go down with it,
         * which only a key far above all others ever sees. */
    }
    b->low = low;
    assert(b->count > 0 || b->sink.oldest == NONE_LEFT);
}

/* Puts an entry into the bucket of its key, behind all that are there. An entry that stays in its
 * bucket keeps its place. A key above the ring goes to the top bucket and stays there until its
 * entry is sorted anew. */
void buckets_set(buckets *b, bucket_links links, uint32_t entry, double key)
{
    bucket_link *link = link_of(links, entry);
    int32_t number = bucket_number(key);
    int32_t top = b->low + (int32_t)BUCKETS_RING - 1;
    if (number > top) number = top;
    if (link->number == number) return;
    if (link->number != BUCKETS_ABSENT) buckets_remove(b, links, entry);
    uint32_t slot;
    bucket_list *list = bucket_list_of(b, number, &slot);
    link->number = number;
    link->newer = NONE_LEFT;
    link->older = list->newest;
    if (list->newest != NONE_LEFT)
        link_of(links, list->newest)->newer = entry;
    else
        list->oldest = entry;
    list->newest = entry;
    bucket_mark(b, slot);
    b->count++;
    assert(b->count < NONE_LEFT && list->newest == entry);
}

/* Takes an entry out, if it is inside. The list is found by the number in the link: below the ring
 * it is the sink, else the bucket's own. */
void buckets_remove(buckets *b, bucket_links links, uint32_t entry)
{
    bucket_link *link = link_of(links, entry);
    if (link->number == BUCKETS_ABSENT) return;
    uint32_t slot;
    bucket_list *list = bucket_list_of(b, link->number, &slot);
    assert(list->oldest != NONE_LEFT && list->newest != NONE_LEFT);
    if (link->newer != NONE_LEFT)
        link_of(links, link->newer)->older = link->older;
    else
        list->newest = link->older;
    if (link->older != NONE_LEFT)
        link_of(links, link->older)->newer = link->newer;
    else
        list->oldest = link->newer;
    if (list->newest == NONE_LEFT) bucket_clear(b, slot);
    *link = (bucket_link){NONE_LEFT, NONE_LEFT, BUCKETS_ABSENT};
    assert(b->count > 0);
    b->count--;
}

/* Returns the first entry in order, or NONE_LEFT when there is none. The sink is older than every
 * bucket of the ring. */
uint32_t buckets_first(const buckets *b)
{
    if (b->sink.oldest != NONE_LEFT) return b->sink.oldest;
    uint32_t slot = bucket_first_used(b, b->low);
    return slot == BUCKETS_RING ? NONE_LEFT : b->ring[slot].oldest;
}

/* Returns the entry behind another in order: in its list, else the first of the next used bucket. A
 * caller that changes or removes the entry asks for the next one before it does. */
uint32_t buckets_next(const buckets *b, bucket_links links, uint32_t entry)
{
    const bucket_link *link = link_of(links, entry);
    assert(link->number != BUCKETS_ABSENT);
    if (link->newer != NONE_LEFT) return link->newer;
    int32_t from = link->number < b->low ? b->low : link->number + 1;
    if (from == b->low + (int32_t)BUCKETS_RING) return NONE_LEFT;
    uint32_t slot = bucket_first_used(b, from);
    return slot == BUCKETS_RING ? NONE_LEFT : b->ring[slot].oldest;
}

/* Returns the lower end of the bucket that holds an entry, in units of the key. */
double buckets_floor(const buckets *b, bucket_links links, uint32_t entry)
{
    int32_t number = link_of(links, entry)->number;
    assert(number != BUCKETS_ABSENT);
    return number < b->low ? -1e6 : (double)number / BUCKETS_PER_UNIT;
}
