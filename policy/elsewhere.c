/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elsewhere.c - copies of entries that somebody else keeps: what an entry that is not stored costs.
 *
 *     cost(NONE) = p * min(load of the copy, recompute) + (1 - p) * recompute
 *
 * p is the chance that the copy is there, by the time since it was known to be (survival.h). So
 * room goes to what nobody else keeps. The notes stand beside the entries, 8 bytes each, from the
 * first one on; an engine that is told of no copy asks for no memory and does not differ by a bit.
 *
 * An entry with a copy stays a part of its prefix as before: its children are not stored without
 * it. The caller's lock.
 */
#include "policy/engine.h"
#include "policy/reuse.h"

#include <assert.h>
#include <string.h>

/* Seconds since the engine's base, as a note has them. */
static double elsewhere_now(const kvt_policy *policy)
{
    return reuse_seconds(policy, policy->now_ns);
}

bool elsewhere_grow(kvt_policy *policy, uint32_t capacity)
{
    copy_note *notes =
        engine_resize(policy, policy->copies.notes, sizeof *notes * policy->copies.capacity,
                      sizeof *notes * capacity);
    if (notes == NULL) return false;
    memset(notes + policy->copies.capacity, 0,
           sizeof *notes * (capacity - policy->copies.capacity));
    if (policy->copies.capacity == 0) survival_open(&policy->copies.life);
    policy->copies.notes = notes;
    policy->copies.capacity = capacity;
    return true;
}

void elsewhere_close(kvt_policy *policy)
{
    if (policy->copies.notes == NULL) return;
    engine_resize(policy, policy->copies.notes,
                  sizeof *policy->copies.notes * policy->copies.capacity, 0);
}

bool elsewhere_reserve(kvt_policy *policy)
{
    return policy->copies.notes != NULL || elsewhere_grow(policy, policy->entries_capacity);
}

double elsewhere_cost(const kvt_policy *policy, const entry *e)
{
    const copy_note *note = &policy->copies.notes[e - policy->entries];
    double recompute = (double)e->recompute_seconds, load = (double)note->load_seconds;
    if (load <= 0.0 || load >= recompute) return recompute;
    double age = elsewhere_now(policy) - (double)note->known_s;
    double chance = survival_chance(&policy->copies.life, age > 0.0 ? age : 0.0);
    return recompute - chance * (recompute - load);
}

void elsewhere_note(kvt_policy *policy, uint32_t index, double load_seconds)
{
    assert(policy->copies.notes != NULL && index < policy->copies.capacity);
    double now = elsewhere_now(policy);
    copy_note *note = &policy->copies.notes[index];
    if (note->load_seconds > 0.0f)
        survival_observe(&policy->copies.life, now, now - (double)note->known_s,
                         load_seconds > 0.0);
    note->load_seconds = (float)load_seconds;
    note->known_s = (float)now;
}

double kvt_policy_copy_chance(const kvt_policy *policy, double age_seconds)
{
    assert(policy != NULL);
    if (policy->copies.notes == NULL || !(age_seconds >= 0.0)) return 0.5;
    return survival_chance(&policy->copies.life, age_seconds);
}
