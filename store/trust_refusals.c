/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust_refusals.c - puts that were refused: the reasons of the last ones, and counts by reason.
 * The trials against figures that refuse too much are trust.c's.
 *
 * Thread rule: under the control lock.
 */
#include "store/store.h"

#include <assert.h>

static const char *const trust_by_curve =
    "It is not stored: at the measured and modelled speeds, storing it would have saved nothing "
    "over recomputing it, or too little for the room. While a tier with room takes nothing, one "
    "put now and then is stored there all the same and timed.";
static const char *const trust_by_learned =
    "It is not stored: at the speeds that this store has learned lately, loading it takes longer "
    "than recomputing it, while the measured curves say otherwise. Of eight such puts one is "
    "stored all the same and timed.";

static const char *const trust_by_parent =
    "It is not stored: the entry of the preceding tokens, its parent, is not stored, and with "
    "store.holes = contiguous nothing is kept behind a hole. Put parents before children.";

void trust_remember(kvt_store *store, uint64_t handle, store_refusal why)
{
    assert(store_is_locked(store));
    assert(why == STORE_REFUSAL_POLICY || why == STORE_REFUSAL_LEARNED ||
           why == STORE_REFUSAL_PARENT);
    store_trust *trust = &store->trust;
    uint64_t at = trust->refusals++ % STORE_REFUSALS;
    trust->refused[at].handle = handle;
    trust->refused[at].reason = why == STORE_REFUSAL_PARENT    ? trust_by_parent
                                : why == STORE_REFUSAL_LEARNED ? trust_by_learned
                                                               : trust_by_curve;
}

const char *trust_reason(const kvt_store *store, uint64_t handle)
{
    assert(store_is_locked(store));
    const store_trust *trust = &store->trust;
    uint64_t known = trust->refusals < STORE_REFUSALS ? trust->refusals : STORE_REFUSALS;
    /* From the newest one back: a key may have been refused for different reasons in turn. */
    for (uint64_t back = 1; back <= known; back++) {
        uint64_t at = (trust->refusals - back) % STORE_REFUSALS;
        if (trust->refused[at].handle == handle) return trust->refused[at].reason;
    }
    return NULL;
}

void trust_count_refused(kvt_store *store, uint64_t handle)
{
    assert(store_is_locked(store));
    store_refusal why = STORE_REFUSAL_POLICY;
    if (!store_has_capacity(store))
        why = STORE_REFUSAL_NO_DEVICE;
    else if (trust_reason(store, handle) == trust_by_learned)
        why = STORE_REFUSAL_LEARNED;
    else if (trust_reason(store, handle) == trust_by_parent)
        why = STORE_REFUSAL_PARENT;
    store->counters.puts_refused++;
    store->counters.refusals[why]++;
}
