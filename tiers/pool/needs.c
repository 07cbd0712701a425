/* SPDX-License-Identifier: Apache-2.0 */
/*
 * needs.c - the table of needs of a pool. The contract is needs.h's.
 *
 * Thread rule: as needs.h.
 */
#include "needs.h"

#include "base/clock.h"
#include "pool_internal.h"

#include <assert.h>
#include <string.h>

void needs_init(tiers_needs *needs, uint64_t patience_ns)
{
    memset(needs, 0, sizeof *needs);
    pthread_mutex_init(&needs->mutex, NULL);
    needs->patience_ns = patience_ns;
}

void needs_destroy(tiers_needs *needs)
{
    pthread_mutex_destroy(&needs->mutex);
}

/* The load of a number, or NULL. The mutex is held. */
static need_load *needs_find(tiers_needs *needs, uint64_t number)
{
    need_load *load = &needs->loads[number % SLACK_NEEDS_MAX];
    return number != 0 && load->number == number ? load : NULL;
}

/* What a load still needs of a member, but for what has landed. */
static slack_need needs_of(const need_load *load, uint32_t member)
{
    const tiers_pace *pace = &load->pace;
    uint64_t due_ns = pace->began_ns, distance;
    assert(load->first <= load->arrived && load->arrived <= load->end);
    if (load->arrived >= pace->layer) {
        const uint64_t steps = load->arrived - pace->layer;
        if (__builtin_mul_overflow(steps, pace->step_ns, &distance) ||
            __builtin_add_overflow(due_ns, distance, &due_ns))
            due_ns = UINT64_MAX;
    } else {
        const uint64_t steps = pace->layer - load->arrived;
        if (__builtin_mul_overflow(steps, pace->step_ns, &distance) || distance > due_ns)
            distance = due_ns;
        due_ns -= distance;
    }
    return (slack_need){.due_ns = due_ns,
                        .step_ns = pace->step_ns,
                        .layers = load->end - load->arrived,
                        .ahead = load->ahead,
                        .layer_bytes = load->bytes[member] / (load->end - load->first)};
}

/* Frees the places of loads whose pass has stopped. The mutex is held. */
static void needs_forget(tiers_needs *needs, uint64_t now_ns)
{
    for (uint32_t i = 0; i < SLACK_NEEDS_MAX; i++) {
        need_load *load = &needs->loads[i];
        if (load->number == 0) continue;
        const slack_need need = needs_of(load, 0);
        if (now_ns <= slack_need_ends(&need, needs->patience_ns)) continue;
        load->number = 0;
        assert(needs->count > 0);
        needs->count--;
    }
}

uint64_t needs_begin(tiers_needs *needs, const tiers_pace *pace, uint32_t first, uint32_t end,
                     uint32_t ahead, uint64_t now_ns)
{
    uint64_t number = 0;
    if (first >= end || end > pace->layers || pace->layer > pace->layers) return 0;
    pthread_mutex_lock(&needs->mutex);
    if (needs->count == SLACK_NEEDS_MAX) needs_forget(needs, now_ns);
    for (uint32_t i = 0; i < SLACK_NEEDS_MAX && number == 0; i++) {
        need_load *load = &needs->loads[i];
        if (load->number != 0) continue;
        needs->numbers++;
        number = needs->numbers * SLACK_NEEDS_MAX + i;
        *load = (need_load){.number = number,
                            .pace = *pace,
                            .first = first,
                            .end = end,
                            .ahead = ahead,
                            .arrived = first,
                            .issued = first};
        needs->count++;
        atomic_store(&needs->seen_ns, now_ns != 0 ? now_ns : 1);
    }
    pthread_mutex_unlock(&needs->mutex);
    return number;
}

void needs_add(tiers_needs *needs, uint64_t number, const tiers_location *location, uint64_t bytes)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < location->share_count; i++)
        units += location->shares[i].units;
    assert(units > 0);
    pthread_mutex_lock(&needs->mutex);
    need_load *load = needs_find(needs, number);
    for (uint32_t i = 0; load != NULL && i < location->share_count; i++) {
        const double share = (double)location->shares[i].units / (double)units;
        load->bytes[location->shares[i].member] += (uint64_t)((double)bytes * share);
    }
    pthread_mutex_unlock(&needs->mutex);
}

void needs_set_pace(tiers_needs *needs, uint64_t number, const tiers_pace *pace)
{
    pthread_mutex_lock(&needs->mutex);
    need_load *load = needs_find(needs, number);
    if (load != NULL && pace->layers == load->pace.layers && pace->layer <= pace->layers)
        load->pace = *pace;
    pthread_mutex_unlock(&needs->mutex);
}

void needs_progress(tiers_needs *needs, uint64_t number, uint32_t arrived, uint32_t issued)
{
    pthread_mutex_lock(&needs->mutex);
    need_load *load = needs_find(needs, number);
    if (load != NULL && arrived > load->arrived)
        load->arrived = arrived < load->end ? arrived : load->end;
    if (load != NULL && issued > load->issued) load->issued = issued;
    pthread_mutex_unlock(&needs->mutex);
}

void needs_end(tiers_needs *needs, uint64_t number)
{
    pthread_mutex_lock(&needs->mutex);
    need_load *load = needs_find(needs, number);
    if (load != NULL) {
        load->number = 0;
        assert(needs->count > 0);
        needs->count--;
    }
    pthread_mutex_unlock(&needs->mutex);
}

uint32_t needs_list(tiers_needs *needs, uint32_t member, uint64_t now_ns, uint64_t queued_bytes,
                    slack_need out[SLACK_NEEDS_MAX])
{
    uint32_t count = 0;
    assert(member < TIERS_MEMBERS_MAX);
    pthread_mutex_lock(&needs->mutex);
    for (uint32_t i = 0; needs->count != 0 && i < SLACK_NEEDS_MAX; i++) {
        const need_load *load = &needs->loads[i];
        if (load->number == 0) continue;
        slack_need need = needs_of(load, member);
        if (need.layers == 0 || need.layer_bytes == 0) continue;
        if (now_ns > slack_need_ends(&need, needs->patience_ns)) continue;
        const uint64_t asked = load->issued > load->arrived ? load->issued - load->arrived : 0;
        const uint64_t asked_bytes = asked * need.layer_bytes;
        if (asked_bytes > queued_bytes) need.landed_bytes = asked_bytes - queued_bytes;
        out[count++] = need;
    }
    pthread_mutex_unlock(&needs->mutex);
    return count;
}

/* ---- of a pool ---- */

uint64_t tiers_need_begin(tiers_pool *pool, const tiers_pace *pace, uint32_t first, uint32_t end,
                          uint32_t ahead)
{
    return needs_begin(&pool->needs, pace, first, end, ahead, base_clock_ns());
}

void tiers_need_add(tiers_pool *pool, uint64_t number, const tiers_location *location,
                    uint64_t bytes)
{
    needs_add(&pool->needs, number, location, bytes);
}

void tiers_need_set_pace(tiers_pool *pool, uint64_t number, const tiers_pace *pace)
{
    needs_set_pace(&pool->needs, number, pace);
}

void tiers_need_progress(tiers_pool *pool, uint64_t number, uint32_t arrived, uint32_t issued)
{
    needs_progress(&pool->needs, number, arrived, issued);
}

void tiers_need_end(tiers_pool *pool, uint64_t number)
{
    needs_end(&pool->needs, number);
}
