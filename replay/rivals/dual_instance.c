/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual_instance.c - copies what the engine knows into an instance.
 *
 * Every choice that a placement could make is in it: all options that the tenant's limits allow,
 * whether the entry can reach them from where it is or not, and the option that is stored now, even
 * one that a limit has excluded since, with the bytes that it really takes.
 *
 * The instance is a copy in arrays of one number each, because the search passes over it some
 * hundreds of times and reads every field of a pass in order. Making it takes one walk over the
 * entry table and no decision.
 */
#include "replay/rivals/dual_instance.h"

#include "policy/reuse.h"

#include <assert.h>
#include <string.h>

#define DUAL_NUMBERS (2 + TIERS) /* of a option */

/* The present option is not what the option says: other bytes were stored, or a limit excludes it.
 * Its value now is that of the bytes really stored, so the instance needs an option of its own for
 * it. */
static bool dual_differs(const kvt_policy *policy, const entry *e)
{
    if (e->current == KVT_OPTION_NONE) return false;
    const stored_option *o = entry_option(policy, e, e->current);
    return (e->excluded >> e->current & 1) != 0 || !o->fits ||
           memcmp(e->bytes, o->bytes, sizeof e->bytes) != 0;
}

/* Says whether an entry is remembered with points of its own instead of a ladder. */
static bool dual_points(const entry *e)
{
    return e->state == POLICY_ENTRY_GHOST && !e->shares;
}

/* Counts entries and options, so that each array is asked for once. It has to agree with
 * dual_add_entry to the option: an assert at the end of dual_instance_make holds them together. */
static void dual_count(const kvt_policy *policy, dual_instance *out)
{
    out->options_capacity = policy->options_used;
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        if (e->state == POLICY_ENTRY_FREE) continue;
        out->entries_capacity++;
        if (dual_points(e)) out->options_capacity += e->option_count - 1u;
        if (e->state == POLICY_ENTRY_HELD) out->options_capacity += dual_differs(policy, e);
    }
}

/* Copies one option. An option that fits no tier takes infinitely long, so no price makes it
 * best. */
static void dual_add_one(dual_instance *to, const stored_option *from, const uint64_t bytes[TIERS])
{
    uint32_t at = to->options++;
    assert(at < to->options_capacity);
    to->time[at] = from->fits ? from->base_cost : UNLIMITED;
    to->loss[at] = from->loss;
    for (int tier = 0; tier < TIERS; tier++)
        to->bytes[tier][at] = (double)bytes[tier];
}

/* Names the options that an entry may take: its run in the table, the points of a remembered entry,
 * and what is stored now where that is no option any more. A ladder's options are in the table once
 * for all of its entries. */
static void dual_add_options(const kvt_policy *policy, const entry *e, dual_instance *out,
                             dual_entry *to)
{
    assert(e->option_count >= 1);
    to->stored = NIL;
    to->allowed = ((UINT32_C(1) << (e->option_count - 1u)) - 1u) & ~(e->excluded >> 1);
    to->options = e->options == NIL ? 0 : e->options;
    if (dual_points(e)) {
        to->options = out->options;
        for (uint32_t i = 0; i + 1 < e->option_count; i++) {
            stored_option point;
            remembered_option(policy, e, i, &point);
            dual_add_one(out, &point, point.bytes);
        }
        return;
    }
    if (e->state != POLICY_ENTRY_HELD || !dual_differs(policy, e)) return;
    stored_option now = *entry_option(policy, e, e->current);
    now.fits = true;
    to->allowed &= ~(UINT32_C(1) << (e->current - 1u));
    to->stored = out->options;
    dual_add_one(out, &now, e->bytes);
}

/* Copies what the passes need of one entry, and adds what it saves now. A remembered entry has no
 * present option and adds nothing to what is saved now. */
static void dual_add_entry(const kvt_policy *policy, const entry *e, dual_instance *out)
{
    assert(out->count < out->entries_capacity);
    dual_entry *to = &out->entries[out->count++];
    to->rate = reuse_rate(policy, e);
    to->none = entry_cost(policy, e, KVT_OPTION_NONE);
    to->alpha = entry_alpha(policy, e);
    to->sense = to->alpha * (double)e->sensitivity;
    dual_add_options(policy, e, out, to);
    if (e->state == POLICY_ENTRY_GHOST) out->remembered++;
    if (e->current != KVT_OPTION_NONE) {
        out->primal += to->rate * (to->none - entry_cost(policy, e, e->current));
    }
}

/* Asks for the arrays and fills them. KVT_E_MEMORY leaves nothing behind. Every array is as long as
 * its count says and one more, so that an empty instance has pointers too. */
kvt_status dual_instance_make(kvt_policy *policy, dual_instance *out)
{
    memset(out, 0, sizeof *out);
    out->policy = policy;
    dual_count(policy, out);
    size_t stride = out->options_capacity + (size_t)1;
    out->entries =
        engine_resize(policy, NULL, 0, sizeof *out->entries * (out->entries_capacity + (size_t)1));
    out->open =
        engine_resize(policy, NULL, 0, sizeof *out->open * (out->entries_capacity + (size_t)1));
    out->numbers = engine_resize(policy, NULL, 0, sizeof *out->numbers * DUAL_NUMBERS * stride);
    if (out->entries == NULL || out->open == NULL || out->numbers == NULL) {
        dual_instance_free(out);
        return KVT_E_MEMORY;
    }
    out->time = out->numbers;
    out->loss = out->numbers + stride;
    for (int tier = 0; tier < TIERS; tier++)
        out->bytes[tier] = out->numbers + (size_t)(tier + 2) * stride;
    /* Released runs hold what they held; no entry names them. */
    for (uint32_t i = 0; i < policy->options_used; i++)
        dual_add_one(out, &policy->options[i], policy->options[i].bytes);
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        if (e->state != POLICY_ENTRY_FREE) dual_add_entry(policy, e, out);
    }
    assert(out->count == out->entries_capacity && out->options == out->options_capacity);
    return KVT_OK;
}

/* Releases the arrays; those that could not be had are NULL. */
void dual_instance_free(dual_instance *instance)
{
    kvt_policy *policy = instance->policy;
    size_t stride = instance->options_capacity + (size_t)1;
    if (instance->entries != NULL) {
        engine_resize(policy, instance->entries,
                      sizeof *instance->entries * (instance->entries_capacity + (size_t)1), 0);
    }
    if (instance->open != NULL) {
        engine_resize(policy, instance->open,
                      sizeof *instance->open * (instance->entries_capacity + (size_t)1), 0);
    }
    if (instance->numbers != NULL) {
        engine_resize(policy, instance->numbers, sizeof *instance->numbers * DUAL_NUMBERS * stride,
                      0);
    }
}
