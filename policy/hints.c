/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.c - hints of an entry's next use: they bend its predicted rate by how often hints of their
 * kind from their tenant came true.
 *
 *     p         (came true + 1) / (judged + 2)          the sums fade by 1/256 with each judgement;
 *     q         expected by the counters / (judged + 2) the hints of one moment are one together
 *     trust w   (p - q) / (1 - q), 0 at least
 *     retain    rate = max(f, w / span + (1 - w) f)
 *     next use  rate = w / max(seconds left, a quarter of those at first + 1) + (1 - w) f
 *     others    rate = (1 - w) f
 *
 * A use judges all open hints of its entry and ends them; without one a hint is judged when it is
 * due. A hint moves no entry: only the rate is bent, and prices decide as always. The file knows
 * nothing of tiers and options.
 */
#include "policy/engine.h"
#include "policy/reuse.h"

#include <assert.h>
#include <string.h>

#define HINTS_FIRST      1024u
#define HINTS_MOST       65536u
#define HINTS_JUDGED     16u /* that are due, by one call */
#define HINT_MEMORY      256.0
#define HINT_SMOOTH      16.0
#define HINT_CHANCES     65535.0 /* 1 in open_hint.expected */
#define HINT_SOON        300.0   /* seconds that "demote" means when it names none, */
#define HINT_ENDED       1200.0  /* and "end of session" */
#define HINT_SLACK_NS    UINT64_C(1000000000)
#define HINT_NO_NUMBER   0u /* entry.hint counts from 1 */
#define HINT_EARLY_SHARE 2u /* a use before a half of the time has passed is too early */

/* ---- the table ---- */

void hints_open(kvt_policy *policy)
{
    policy->hints = (hint_table){.free = HINT_NONE};
}

void hints_close(kvt_policy *policy)
{
    hint_table *table = &policy->hints;
    if (table->hints != NULL)
        engine_resize(policy, table->hints, sizeof *table->hints * table->capacity, 0);
    if (table->due.items != NULL)
        engine_resize(policy, table->due.items, sizeof *table->due.items * table->due.capacity, 0);
}

static heap_places hint_places(const hint_table *table)
{
    unsigned char *first = (unsigned char *)table->hints;
    return (heap_places){first + offsetof(open_hint, place), sizeof(open_hint)};
}

/* Makes room for one hint more, up to the bound. False without memory; what has grown stays. */
bool hints_reserve(kvt_policy *policy)
{
    hint_table *table = &policy->hints;
    if (table->free != HINT_NONE || table->used < table->capacity) return true;
    if (table->capacity == HINTS_MOST) return true;
    uint32_t wanted = table->capacity == 0 ? HINTS_FIRST : table->capacity * 2;
    if (table->due.capacity < wanted) {
        void *items =
            engine_resize(policy, table->due.items, sizeof *table->due.items * table->due.capacity,
                          sizeof *table->due.items * wanted);
        if (items == NULL) return false;
        table->due.items = items;
        table->due.capacity = wanted;
    }
    void *hints = engine_resize(policy, table->hints, sizeof *table->hints * table->capacity,
                                sizeof *table->hints * wanted);
    if (hints == NULL) return false;
    table->hints = hints;
    table->capacity = wanted;
    return true;
}

/* Takes a hint out of its entry's chain and the heap, and frees its number. */
static void hint_end(kvt_policy *policy, uint32_t number)
{
    hint_table *table = &policy->hints;
    open_hint *hint = &table->hints[number];
    entry *e = entry_at(policy, hint->entry);
    assert(e->hint != HINT_NO_NUMBER);
    uint32_t *at = NULL;
    if (e->hint == number + 1) {
        e->hint = hint->next == HINT_NONE ? HINT_NO_NUMBER : hint->next + 1;
    } else {
        at = &table->hints[e->hint - 1].next;
        while (*at != number)
            at = &table->hints[*at].next;
        *at = hint->next;
    }
    heap_remove(&table->due, hint_places(table), number);
    assert(table->counts.open[hint->kind] > 0);
    table->counts.open[hint->kind]--;
    hint->next = table->free;
    table->free = number;
}

/* Drops a hint without a judgement. */
static void hint_drop(kvt_policy *policy, uint32_t number)
{
    policy->hints.counts.dropped[policy->hints.hints[number].kind]++;
    hint_end(policy, number);
}

/* Takes a number for a new hint; when there is none, the hint that is due first gives its own. */
static uint32_t hint_take(kvt_policy *policy)
{
    hint_table *table = &policy->hints;
    if (table->free == HINT_NONE && table->used == table->capacity)
        hint_drop(policy, table->due.items[0].entry);
    uint32_t number = table->free;
    if (number == HINT_NONE) return table->used++;
    table->free = table->hints[number].next;
    return number;
}

/* ---- judging ---- */

/* The share of hints that tell something: p come true, q would have by the counters alone, and
 * those that tell nothing come true as often as q says. One half before anything is known. */
static double hint_trusted(const hint_trust *trust)
{
    double p = (trust->came_true + 1.0) / (trust->judged + 2.0);
    double q = trust->expected / (trust->judged + 2.0);
    return p > q ? (p - q) / (1.0 - q) : 0.0;
}

/* Counts a hint that was given now among those of this moment. */
static void hint_count(const kvt_policy *policy, hint_trust *trust)
{
    if (trust->given != 0 && trust->given_ns == policy->now_ns) {
        trust->given++;
        return;
    }
    if (trust->given != 0)
        trust->usual += (trust->given - trust->usual) / (trust->usual > 0.0 ? HINT_SMOOTH : 1.0);
    trust->given_ns = policy->now_ns;
    trust->given = 1;
}

/* Counts an outcome. */
static void hint_judge(kvt_policy *policy, const open_hint *hint, bool came_true)
{
    kvt_hint_stats *counts = &policy->hints.counts;
    (came_true ? counts->came_true : counts->failed)[hint->kind]++;
    hint_trust *trust = &policy->tenants[hint->tenant].hints[hint->kind];
    double weight = 1.0 / (trust->usual > 0.0 ? trust->usual : (double)trust->given);
    double kept = 1.0 - weight / HINT_MEMORY;
    trust->judged = kept * trust->judged + weight;
    trust->came_true = kept * trust->came_true + (came_true ? weight : 0.0);
    trust->expected = kept * trust->expected + weight * hint->expected / HINT_CHANCES;
}

/* Whether a use now is what the hint said. */
static bool hint_fits_use(const kvt_policy *policy, const open_hint *hint)
{
    uint64_t now_ns = policy->now_ns;
    if (!hints_expect_use(hint->kind)) return now_ns > hint->due_ns;
    if (now_ns > hint->due_ns) return false;
    if (hint->kind == KVT_HINT_RETAIN) return true;
    uint64_t early = (hint->at_ns - hint->given_ns) / HINT_EARLY_SHARE;
    return now_ns + HINT_SLACK_NS >= hint->given_ns + early;
}

void hints_use(kvt_policy *policy, uint32_t index)
{
    while (entry_at(policy, index)->hint != HINT_NO_NUMBER) {
        uint32_t number = entry_at(policy, index)->hint - 1;
        const open_hint *hint = &policy->hints.hints[number];
        hint_judge(policy, hint, hint_fits_use(policy, hint));
        hint_end(policy, number);
    }
}

void hints_forget(kvt_policy *policy, uint32_t index)
{
    while (entry_at(policy, index)->hint != HINT_NO_NUMBER)
        hint_drop(policy, entry_at(policy, index)->hint - 1);
}

static void hint_set_due(kvt_policy *policy, uint32_t number)
{
    heap_set(&policy->hints.due, hint_places(&policy->hints), number,
             reuse_seconds(policy, policy->hints.hints[number].due_ns));
}

/* One that was given again meanwhile, and whose instant is still to come, goes on and is judged
 * anew. */
void hints_pass(kvt_policy *policy)
{
    hint_table *table = &policy->hints;
    for (uint32_t turn = 0; turn < HINTS_JUDGED && table->due.count > 0; turn++) {
        uint32_t number = table->due.items[0].entry;
        open_hint *hint = &table->hints[number];
        uint32_t index = hint->entry;
        if (hint->due_ns >= policy->now_ns) return;
        hint_judge(policy, hint, !hints_expect_use(hint->kind));
        if (hint->at_ns > policy->now_ns) {
            table->counts.given[hint->kind]++;
            hint->given_ns = policy->now_ns;
            hint->due_ns = hint->until_ns;
            hint_set_due(policy, number);
        } else {
            hint_end(policy, number);
        }
        if (entry_at(policy, index)->state == POLICY_ENTRY_HELD) policy->ops->index(policy, index);
    }
}

/* ---- what a hint says ---- */

void hints_bend(const kvt_policy *policy, uint32_t number, reuse_now *now)
{
    const open_hint *hint = &policy->hints.hints[number];
    if (policy->now_ns > hint->until_ns) return; /* it is judged soon */
    double w = hint_trusted(&policy->tenants[hint->tenant].hints[hint->kind]);
    double rate = (1.0 - w) * now->rate;
    if (!(w > 0.0)) return;
    if (!hints_expect_use(hint->kind)) {
        now->rate = rate;
        now->uses *= 1.0 - w;
        return;
    }
    assert(hint->given_ns <= hint->at_ns && hint->at_ns <= hint->until_ns);
    double at = reuse_seconds(policy, hint->at_ns);
    double span = at - reuse_seconds(policy, hint->given_ns);
    double left = at - reuse_seconds(policy, policy->now_ns);
    if (hint->kind == KVT_HINT_RETAIN) {
        rate += w / (span + 1.0);
        if (rate < now->rate) return;
    } else {
        rate += w / (left > 0.25 * span + 1.0 ? left : 0.25 * span + 1.0);
    }
    /* The rate that the hint adds does not decay until its instant. */
    double slope = (1.0 - w) * now->rate / now->half_life;
    now->half_life = slope > 1e-100 ? rate / slope : reuse_half_lives[HALF_LIVES - 1];
    now->rate = rate;
    now->uses += w;
}

/* ---- giving one ---- */

/* Enters an open hint, or changes what the entry's open one of this kind says. That one stays due
 * when it was, so that a caller who repeats himself is judged all the same. */
static void hint_enter(kvt_policy *policy, uint32_t index, const open_hint *given)
{
    hint_table *table = &policy->hints;
    entry *e = entry_at(policy, index);
    open_hint hint = *given;
    for (uint32_t at = e->hint; at != HINT_NO_NUMBER; at = table->hints[at - 1].next + 1) {
        const open_hint *known = &table->hints[at - 1];
        if (known->kind != hint.kind) continue;
        if (known->due_ns < hint.due_ns) hint.due_ns = known->due_ns;
        hint.given_ns = known->given_ns;
        hint.expected = known->expected;
        hint.tenant = known->tenant;
        table->counts.given[hint.kind]--;
        hint_end(policy, at - 1);
        break;
    }
    uint32_t number = hint_take(policy);
    hint.entry = index;
    hint.next = e->hint == HINT_NO_NUMBER ? HINT_NONE : e->hint - 1;
    hint.place = UINT32_MAX;
    table->hints[number] = hint;
    e->hint = number + 1;
    table->counts.given[hint.kind]++;
    table->counts.open[hint.kind]++;
    hint_set_due(policy, number);
}

/* The chance that an entry is not used within some seconds, by its uses alone. */
static double hint_unused(const kvt_policy *policy, const entry *e, const reuse_now *now,
                          double seconds)
{
    return number_exp2(-reuse_uses_within(policy, e, now, seconds) / REUSE_LN2);
}

/* The chance that a hint comes true, by the entry's uses alone. */
static double hint_chance(const kvt_policy *policy, const entry *e, uint8_t kind, double seconds)
{
    const reuse_now now = reuse_look_unhinted(policy, e);
    if (kind == KVT_HINT_RETAIN) return 1.0 - hint_unused(policy, e, &now, seconds);
    if (kind != KVT_HINT_NEXT_USE) return hint_unused(policy, e, &now, seconds);
    return hint_unused(policy, e, &now, seconds / HINT_EARLY_SHARE) -
           hint_unused(policy, e, &now, 2.0 * seconds);
}

/* Works out the instants of a hint. */
static open_hint hint_describe(const kvt_policy *policy, const entry *e, uint8_t kind,
                               double seconds)
{
    if (kind == KVT_HINT_DEMOTE && !(seconds > 0.0)) seconds = HINT_SOON;
    if (kind == KVT_HINT_SESSION_END && !(seconds > 0.0)) seconds = HINT_ENDED;
    uint64_t span = (uint64_t)(seconds * 1e9);
    open_hint hint = {.given_ns = policy->now_ns, .at_ns = policy->now_ns + span, .kind = kind};
    hint.until_ns = hint.at_ns;
    if (kind == KVT_HINT_NEXT_USE) hint.until_ns += span + HINT_SLACK_NS;
    hint.due_ns = hint.until_ns;
    hint.expected = (uint16_t)(hint_chance(policy, e, kind, seconds) * HINT_CHANCES);
    return hint;
}

void hints_give(kvt_policy *policy, uint32_t index, uint8_t kind, double seconds, uint8_t giver)
{
    open_hint hint = hint_describe(policy, entry_at(policy, index), kind, seconds);
    hint.tenant = giver;
    hint_enter(policy, index, &hint);
    hint_count(policy, &policy->tenants[giver].hints[kind]);
}
