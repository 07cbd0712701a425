/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_costs.c - what loads from the engine's nodes take, learned for each node as a device's
 * seconds are, and what follows from it: a get that recomputing beats asks nobody, and an entry
 * with a copy is weighed against loading that copy.
 *
 * A size of entry that has been loaded from there brings its record's bytes, its decoding and its
 * recomputing along; of a size that has not, nothing is known, and a get asks. What is declined is
 * asked for all the same once in COSTS_EXPLORE, so that a node that has become fast is found out.
 *
 * Thread rule: any thread; remote->lock inside, also under the control lock.
 */
#include "base/clock.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <math.h>

#define COSTS_EXPLORE 32u
#define COSTS_SAMPLE  1048576u /* bytes of the load that statistics name */

uint32_t remote_costs_node(const store_remote *remote, const kvt_key *key, uint32_t tenant)
{
    char space[OBJECT_SPACE_BYTES], name[OBJECT_NAME_BYTES];
    remote_space(remote, tenant, space);
    const uint32_t length = object_name(space, key, 0, 0, name);
    const uint32_t node = remote_node_of(remote->client, name, length);
    return node < REMOTE_NODES_MAX ? node : 0;
}

remote_size *remote_costs_size(store_remote *remote, uint64_t source_bytes)
{
    if (source_bytes == 0) return remote->last_size;
    for (uint32_t i = 0; i < REMOTE_SIZES; i++)
        if (remote->sizes[i].source_bytes == source_bytes) return &remote->sizes[i];
    return NULL;
}

void remote_costs_note_size(store_remote *remote, uint64_t source_bytes, uint64_t record_bytes)
{
    remote_size *size = remote_costs_size(remote, source_bytes);
    if (size == NULL) {
        size = &remote->sizes[remote->size_turn++ % REMOTE_SIZES];
        *size = (remote_size){.source_bytes = source_bytes};
    }
    size->record_bytes = record_bytes;
    size->most_bytes -= size->most_bytes / 16;
    if (size->most_bytes < record_bytes) size->most_bytes = record_bytes;
    remote->last_size = size;
}

void remote_costs_note_use(store_remote *remote, uint64_t source_bytes, double recompute_seconds,
                           double decode_seconds)
{
    pthread_mutex_lock(&remote->lock);
    remote_size *size = remote_costs_size(remote, source_bytes);
    if (size != NULL) {
        /* The largest of late: entries of one size are recomputed at many positions. */
        size->recompute_seconds = fmax(recompute_seconds, 0.9 * size->recompute_seconds);
        size->decode_seconds = decode_seconds;
    }
    pthread_mutex_unlock(&remote->lock);
}

/* Seconds of a load of so many bytes from a node, behind what is on its way from there. Lock held.
 */
static double costs_predict(const store_remote *remote, uint32_t node, uint64_t bytes)
{
    const online_work work = {.bytes = (double)bytes, .ahead_bytes = (double)remote->ahead[node]};
    return online_device_predict(&remote->loads[node], &work);
}

double remote_costs_load(store_remote *remote, uint32_t node, uint64_t bytes)
{
    pthread_mutex_lock(&remote->lock);
    if (bytes == 0 && remote->last_size != NULL) bytes = remote->last_size->record_bytes;
    const double seconds = costs_predict(remote, node, bytes != 0 ? bytes : COSTS_SAMPLE);
    pthread_mutex_unlock(&remote->lock);
    return seconds;
}

void remote_costs_begin(store_remote *remote, remote_fetch *fetch)
{
    const remote_size *size = remote_costs_size(remote, fetch->source_bytes);
    fetch->expected_bytes = size != NULL ? size->record_bytes : fetch->source_bytes;
    fetch->ahead_bytes = remote->ahead[fetch->node];
    remote->ahead[fetch->node] += fetch->expected_bytes;
}

void remote_costs_end(store_remote *remote, const remote_fetch *fetch, kvt_status status)
{
    const uint64_t bytes = status == KVT_OK ? fetch->record_bytes : fetch->expected_bytes;
    remote->ahead[fetch->node] -= fetch->expected_bytes;
    /* A load that ended at its deadline took at least so long; others brought no record. */
    if ((status != KVT_OK && status != KVT_E_TIMEOUT) || bytes == 0) return;
    const double seconds = learn_seconds(remote->store->learn, LEARN_TIME_REMOTE, (double)bytes,
                                         (double)(fetch->finished_ns - fetch->began_ns) * 1e-9);
    const online_work work = {.bytes = (double)bytes, .ahead_bytes = (double)fetch->ahead_bytes};
    online_device *loads = &remote->loads[fetch->node];
    if (status == KVT_OK)
        online_error_observe(&remote->load_errors[fetch->node], online_device_predict(loads, &work),
                             seconds);
    (void)online_device_observe(loads, &work, seconds);
}

bool remote_costs_beat(store_remote *remote, const kvt_key *key, uint32_t tenant,
                       uint64_t source_bytes)
{
    const uint32_t node = remote_costs_node(remote, key, tenant);
    pthread_mutex_lock(&remote->lock);
    const remote_size *size = remote_costs_size(remote, source_bytes);
    bool beats = true;
    if (size != NULL && size->recompute_seconds > 0)
        beats = costs_predict(remote, node, size->record_bytes) + size->decode_seconds <
                size->recompute_seconds;
    pthread_mutex_unlock(&remote->lock);
    if (beats) return true;
    /* The same answer for a second, so that a get which is looked at twice keeps it. */
    const uint64_t draw = entry_handle(&remote->store->secret, key) ^ base_clock_ns() >> 30;
    return draw % COSTS_EXPLORE == 0;
}

bool remote_costs_guess(store_remote *remote, const kvt_key *key, uint32_t tenant,
                        remote_guess *out)
{
    const uint32_t node = remote_costs_node(remote, key, tenant);
    pthread_mutex_lock(&remote->lock);
    const remote_size *size = remote->last_size;
    if (size != NULL)
        *out = (remote_guess){.load_seconds = costs_predict(remote, node, size->record_bytes),
                              .byte_seconds = remote->loads[node].used[1],
                              .decode_seconds = size->decode_seconds,
                              .recompute_seconds = size->recompute_seconds,
                              .record_bytes = size->record_bytes};
    pthread_mutex_unlock(&remote->lock);
    return size != NULL;
}

void remote_costs_tell(kvt_store *store, uint64_t handle, double load_seconds)
{
    assert(store_is_locked(store));
    const kvt_status status =
        kvt_policy_copy_set(store->policy, store_now_ns(store), handle, load_seconds);
    store->remote->counts.copies_told += status == KVT_OK;
}

double remote_costs_of_entry(const kvt_store *store, const store_entry *entry)
{
    store_remote *remote = store->remote;
    assert(store_is_locked(store));
    if (remote == NULL) return 0;
    if (remote_hints_get(&remote->hints, entry->handle, base_clock_ns()) != HINT_THERE) return 0;
    return remote_costs_load(remote, remote_costs_node(remote, &entry->key, entry->tenant),
                             entry->kind->source_bytes);
}

double remote_costs_error(const store_remote *remote, uint32_t node)
{
    return online_error_quantile(&remote->load_errors[node], 0.5);
}

double remote_costs_sample(const store_remote *remote, uint32_t node)
{
    return costs_predict(remote, node, COSTS_SAMPLE);
}
