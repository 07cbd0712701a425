/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_load_state.c - takes over what the server writes of loads, as far as a server may have
 * written it, and tells the loads' owners.
 */
#include "serve/client/client_load_state.h"

kvt_status client_load_take(client_load *load, bool *moved)
{
    if (!load->begun || load->lost) return KVT_OK;
    /* The server writes the layers last. */
    const uint32_t layers = atomic_load(&load->state->layers);
    const uint32_t total = atomic_load(&load->state->total);
    const uint32_t flags = atomic_load(&load->state->flags);
    if (flags > WIRE_LOAD_FLAGS || layers > total || layers < load->complete) return KVT_E_CORRUPT;
    if (load->total != 0 && total != load->total) return KVT_E_CORRUPT;
    const bool empty = (flags & WIRE_LOAD_EMPTY) != 0;
    if (layers != load->complete || empty != load->empty) *moved = true;
    load->total = total;
    load->reads = (flags & WIRE_LOAD_READS) != 0;
    load->empty = empty;
    atomic_store(&load->complete, layers);
    return KVT_OK;
}

kvt_status client_loads_take(client_channel *channel, bool *moved)
{
    kvt_status status = KVT_OK;
    for (client_load *load = channel->loads; load != NULL && status == KVT_OK; load = load->next)
        status = client_load_take(load, moved);
    return status;
}

/* A status that a load's entry may have; another one is a miss. */
static kvt_status load_known(int8_t said)
{
    switch (said) {
    case KVT_OK:
    case KVT_QUEUED:
    case KVT_COARSE:
    case KVT_E_MISMATCH:
    case KVT_E_ARGUMENT:
    case KVT_E_MEMORY:
    case KVT_E_TIMEOUT: return (kvt_status)said;
    default: return KVT_MISS;
    }
}

void client_load_settle(client_load *load)
{
    bool moved = false;
    if (!load->begun || load->lost) return;
    (void)!client_load_take(load, &moved);
    const _Atomic int8_t *statuses = wire_load_statuses(load->state);
    for (size_t i = 0; i < load->count; i++)
        load->statuses[i] = (int8_t)load_known(atomic_load(&statuses[i]));
    atomic_store(&load->lost, true);
}

void client_loads_lose(client_channel *channel)
{
    for (client_load *load = channel->loads; load != NULL; load = load->next)
        client_load_settle(load);
}

bool client_loads_name(const client_channel *channel, uint32_t region)
{
    for (const client_load *load = channel->loads; load != NULL; load = load->next)
        if (!load->lost && (load->regions >> region & 1) != 0) return true;
    return false;
}

bool client_loads_are_open(const client_channel *channel)
{
    for (const client_load *load = channel->loads; load != NULL; load = load->next)
        if (!load->lost) return true;
    return false;
}

void client_loads_announce(client_channel *channel)
{
    client_load *load = channel->loads;
    while (load != NULL) {
        const uint32_t layers = load->complete;
        const bool further = layers > load->announced_layers;
        const bool empty = load->empty && !load->announced_empty;
        if (load->announced == NULL || load->calling || (!further && !empty)) {
            load = load->next;
            continue;
        }
        load->calling = true;
        load->announced_layers = layers;
        load->announced_empty = load->empty;
        pthread_mutex_unlock(&channel->lock);
        load->announced(load->announced_context, layers);
        pthread_mutex_lock(&channel->lock);
        load->calling = false;
        pthread_cond_broadcast(&channel->arrived);
        load = channel->loads; /* others may have gone */
    }
}

kvt_status client_load_status(const client_load *load, size_t index)
{
    if (!load->lost) return load_known(atomic_load(&wire_load_statuses(load->state)[index]));
    const kvt_status status = (kvt_status)load->statuses[index];
    const bool gone = load->channel != NULL && !load->channel->store->closed;
    return status == KVT_QUEUED && gone ? KVT_MISS : status;
}
