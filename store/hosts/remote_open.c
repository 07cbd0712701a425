/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_open.c - the engine's options, its opening and closing, and what it has counted. No secret
 * is here: the client reads its files itself.
 *
 * Thread rule: open and close are not concurrent with anything; statistics are any thread's.
 */
#include "base/clock.h"
#include "base/secret.h"
#include "base/struct_size.h"
#include "base/wait.h"
#include "remote/resolve.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define REMOTE_OPTIONS_LEAST STRUCT_SIZE_THROUGH(kvt_remote_options, write_bytes_per_s)
#define REMOTE_STATS_LEAST   STRUCT_SIZE_THROUGH(kvt_remote_stats, message)
#define REMOTE_NODE_LEAST    STRUCT_SIZE_THROUGH(kvt_remote_node, load_error)

void kvt_remote_options_init_sized(kvt_remote_options *options, uint32_t struct_size)
{
    const kvt_remote_options whole = {.backend = "valkey",
                                      .publish = KVT_PUBLISH_ALL,
                                      .hint_ttl_seconds = 10,
                                      .deadline_seconds = 0.05,
                                      .chunk_bytes = OBJECT_CHUNK_BYTES,
                                      .queue = 4096};
    options->struct_size = struct_size;
    struct_size_out(options, &whole, sizeof whole);
}

/* The engine says that a key has changed: earlier answers about it are void. */
static void remote_invalidate(void *context, const char *name, size_t bytes)
{
    store_remote *remote = context;
    kvt_key key;
    if (name == NULL) remote_hints_clear(&remote->hints);
    /* A name without a key is an epoch's. */
    if (name == NULL || memchr(name, '{', bytes) == NULL)
        epochs_forget(&remote->epochs);
    else if (object_name_key(name, bytes, &key))
        remote_hints_forget(&remote->hints, entry_handle(&remote->store->secret, &key));
}

kvt_status remote_tier_open(kvt_store *store, const kvt_remote_options *given, char *message,
                            size_t message_size)
{
    kvt_remote_options whole;
    char reason[200] = "";
    kvt_remote_options_init(&whole);
    const kvt_remote_options *options =
        struct_size_in(given, &whole, sizeof whole, REMOTE_OPTIONS_LEAST);
    const char *fault = options == NULL ? "the options were not made by kvt_remote_options_init"
                                        : remote_options_fault(options);
    if (fault == NULL && !remote_settings_hold(options, reason, sizeof reason)) fault = reason;
    if (fault != NULL) {
        snprintf(message, message_size, "the remote tier: %s", fault);
        return KVT_E_ARGUMENT;
    }
    store_remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL) return KVT_E_MEMORY;
    /* Take the options into a new object. */
    remote->store = store;
    pthread_mutex_init(&remote->lock, NULL);
    base_condition_init(&remote->changed);
    base_condition_init(&remote->link_turn);
    base_condition_init(&remote->due);
    remote->deadline_ns = (uint64_t)(options->deadline_seconds * 1e9);
    remote->write_bytes_per_s = options->write_bytes_per_s;
    remote->full_bytes = options->chunk_bytes - OBJECT_HEAD_BYTES;
    /* The engine counts whole seconds, and 0 would be none. */
    remote->ttl_seconds = (uint32_t)ceil(options->ttl_seconds);
    remote->publish = (kvt_publish)options->publish;
    remote->feed = options->feed;
    remote->found = remote->lost = 1;
    for (uint32_t i = 0; i < REMOTE_NODES_MAX; i++)
        online_device_init(&remote->loads[i], REMOTE_REQUEST_S, REMOTE_NETWORK);
    store->remote = remote;
    kvt_status status = KVT_OK;
    if (getrandom(&remote->writer, sizeof remote->writer, 0) != (ssize_t)sizeof remote->writer)
        status = KVT_E_IO;
    remote->text = strdup(options->namespace_text);
    if (status == KVT_OK && remote->text == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) object_space(remote->text, 0, remote->space);
    if (status == KVT_OK)
        status = remote_hints_open(&remote->hints, (uint64_t)(options->hint_ttl_seconds * 1e9));
    if (status == KVT_OK) status = epochs_open(&remote->epochs);
    if (status == KVT_OK) {
        /* Open the client. The secret stays in its file, which the client reads. */
        const remote_config config = {.backend = options->backend,
                                      .addresses = options->address,
                                      .cluster = options->cluster,
                                      .user = options->user,
                                      .password_file = options->password_file,
                                      .tls = options->tls,
                                      .ca = options->ca,
                                      .cert = options->cert,
                                      .cert_key = options->cert_key,
                                      .feed_prefix = options->feed ? "kvt1:" : NULL,
                                      .invalidated = remote_invalidate,
                                      .invalidated_context = remote};
        status = remote_open(&config, &remote->client, reason, sizeof reason);
    }
    if (status == KVT_OK) status = publisher_open(remote, options->queue);
    if (status != KVT_OK)
        snprintf(message, message_size, "the remote tier: %s",
                 reason[0] != '\0' ? reason : kvt_status_text(status));
    return status;
}

kvt_status remote_tier_start(kvt_store *store)
{
    store_remote *remote = store->remote;
    if (remote == NULL) return KVT_OK;
    const kvt_status status = link_start(remote);
    return status == KVT_OK ? publisher_start(remote) : status;
}

void remote_tier_close(kvt_store *store)
{
    store_remote *remote = store->remote;
    if (remote == NULL) return;
    publisher_stop(remote);
    link_stop(remote);
    remote_close(remote->client);
    remote_prefetch_close(remote);
    assert(remote->fetches == NULL);
    remote_hints_close(&remote->hints);
    epochs_close(&remote->epochs);
    free(remote->text);
    pthread_mutex_destroy(&remote->lock);
    pthread_cond_destroy(&remote->changed);
    pthread_cond_destroy(&remote->link_turn);
    pthread_cond_destroy(&remote->due);
    free(remote);
    store->remote = NULL;
}

/* ---- what it has counted ---- */

void remote_tier_stats(kvt_store *store, kvt_remote_stats *out)
{
    store_remote *remote = store->remote;
    pthread_mutex_lock(&store->lock);
    pthread_mutex_lock(&remote->lock);
    *out = remote->counts;
    const remote_stats *seen = &remote->seen;
    out->struct_size = sizeof *out;
    out->nodes = seen->node_count;
    for (uint32_t i = 0; i < seen->node_count; i++) {
        out->nodes_open += remote->nodes[i].breaker != REMOTE_CLOSED;
        out->bytes_in += remote->nodes[i].bytes_in;
        out->bytes_out += remote->nodes[i].bytes_out;
    }
    out->probes = seen->requests[REMOTE_EXISTS];
    out->probe_batches = seen->batches[REMOTE_EXISTS];
    out->invalidations = seen->invalidations;
    out->waiting = remote->queue_count;
    out->owed_clears = epochs_owed(&remote->epochs);
    out->repeated_clears = epochs_repeated(&remote->epochs);
    out->owed_deletes = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    out->dropped_deletes += remote->owed_lost;
    out->survival = remote->found / (remote->found + remote->lost);
    memcpy(out->message, seen->message, sizeof out->message);
    double errors = 0;
    uint64_t loads = 0;
    for (uint32_t i = 0; i < seen->node_count; i++) {
        const uint64_t own = remote->load_errors[i].observations;
        errors += (double)own * remote_costs_error(remote, i);
        loads += own;
    }
    out->load_error = loads != 0 ? errors / (double)loads : 0;
    pthread_mutex_unlock(&remote->lock);
    pthread_mutex_unlock(&store->lock);
}

kvt_status kvt_remote_stats_get(kvt_store *store, kvt_remote_stats *stats)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, remote_stats, store, stats);
    if (store == NULL || stats == NULL || !struct_size_is_sound(stats, REMOTE_STATS_LEAST))
        return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (store->remote == NULL) return KVT_E_UNSUPPORTED;
    kvt_remote_stats whole;
    remote_tier_stats(store, &whole);
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}

kvt_status kvt_remote_node_get(kvt_store *store, uint32_t index, kvt_remote_node *node)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, remote_node, store, index, node);
    if (store == NULL || node == NULL || !struct_size_is_sound(node, REMOTE_NODE_LEAST))
        return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    store_remote *remote = store->remote;
    if (remote == NULL) return KVT_E_UNSUPPORTED;
    kvt_remote_node whole = {.struct_size = sizeof whole};
    pthread_mutex_lock(&remote->lock);
    const bool known = index < remote->seen.node_count;
    if (known) {
        const remote_node_stats *from = &remote->nodes[index];
        whole.breaker = (uint32_t)from->breaker;
        whole.opened = from->opened;
        whole.requests = from->requests;
        whole.timeouts = from->timeouts;
        whole.failures = from->failures;
        whole.bytes_in = from->bytes_in;
        whole.bytes_out = from->bytes_out;
        memcpy(whole.address, from->address, sizeof whole.address);
        memcpy(whole.message, from->message, sizeof whole.message);
        whole.memory_bytes = from->memory_bytes;
        whole.memory_bytes_max = from->memory_bytes_max;
        memcpy(whole.eviction, from->eviction, sizeof whole.eviction);
        whole.loads = remote->load_errors[index].observations;
        whole.load_seconds = remote_costs_sample(remote, index);
        whole.load_error = remote_costs_error(remote, index);
    }
    pthread_mutex_unlock(&remote->lock);
    if (!known) return KVT_END;
    struct_size_out(node, &whole, sizeof whole);
    return KVT_OK;
}
