/* SPDX-License-Identifier: Apache-2.0 */
/* client_connect.c - makes and ends a connected store; which calls stand for which public function.
 */
#include "serve/client/client_calls.h"

#include "base/struct_size.h"
#include "base/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define CLIENT_DEPTH         256u
#define CLIENT_PATIENCE_MAX  1e6
#define CLIENT_ANSWER_NS     UINT64_C(60000000000)
#define CLIENT_STAGING       (UINT64_C(64) << 20)
#define CLIENT_OPTIONS_LEAST STRUCT_SIZE_THROUGH(kvt_connect_options, patience_seconds)

static void client_store_close(kvt_store *handle)
{
    client_store *store;
    if (client_enter(handle, &store) != KVT_OK) return;
    client_link_end(store);
    client_regions_leave(store);
    client_let_go(store);
}

static pthread_mutex_t *client_file_lock(kvt_store *handle)
{
    return &((client_store *)(void *)handle)->file_lock;
}

static const base_store_calls client_store_calls = {.close = client_store_close,
                                                    .put = client_put,
                                                    .get = client_get,
                                                    .exists = client_exists,
                                                    .delete = client_delete,
                                                    .describe = client_describe,
                                                    .explain = client_explain,
                                                    .prefetch = client_prefetch,
                                                    .touch = client_touch,
                                                    .match = client_match,
                                                    .prefix_get = client_prefix_get,
                                                    .hint = client_hint,
                                                    .lease_begin = client_lease_begin,
                                                    .lease_extend = client_lease_extend,
                                                    .lease_end = client_lease_end,
                                                    .clear = client_clear,
                                                    .flush = client_flush,
                                                    .persist = client_persist,
                                                    .maintain = client_maintain,
                                                    .space_set = client_space_set,
                                                    .space_stats = client_space_stats,
                                                    .list = client_list,
                                                    .tenant_set = client_tenant_set,
                                                    .stats = client_stats,
                                                    .device_stats = client_device_stats,
                                                    .class_stats = client_class_stats,
                                                    .health = client_health,
                                                    .device_change = client_device_change,
                                                    .metrics = client_metrics,
                                                    .operations = client_operations,
                                                    .observe = client_observe,
                                                    .pass_begin = client_pass_begin,
                                                    .pass_layer = client_pass_layer,
                                                    .pass_end = client_pass_end,
                                                    .pass_table_set = client_pass_table_set,
                                                    .basis_add = client_basis_add,
                                                    .basis_remove = client_basis_remove,
                                                    .basis_get = client_basis_get,
                                                    .remote_flush = client_remote_flush,
                                                    .remote_stats = client_remote_stats,
                                                    .remote_node = client_remote_node,
                                                    .file_lock = client_file_lock,
                                                    .events_open = client_events_open,
                                                    .queue_open = client_queue_open};

static kvt_status store_fill(client_store *store, const char *address,
                             const kvt_connect_options *options)
{
    *store = (client_store){.elsewhere = &client_store_calls,
                            .forks = base_fork_guard_start(),
                            .holders = 1,
                            .socket = -1,
                            .poller = -1,
                            .pause_ns = CLIENT_PAUSE_FIRST_NS,
                            .answer_by_ns = KVT_NO_DEADLINE,
                            .patience_ns = (uint64_t)(options->patience_seconds * 1e9),
                            .answer_ns = CLIENT_ANSWER_NS};
    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->file_lock, NULL);
    const uint32_t depth = options->depth != 0 ? options->depth : CLIENT_DEPTH;
    if (!(options->patience_seconds >= 0 && options->patience_seconds <= CLIENT_PATIENCE_MAX))
        return KVT_E_ARGUMENT;
    if (!(options->answer_seconds >= 0 && options->answer_seconds <= CLIENT_PATIENCE_MAX))
        return KVT_E_ARGUMENT;
    if (options->answer_seconds > 0)
        store->answer_ns = (uint64_t)(options->answer_seconds * 1e9) + 1;
    if (!base_ring_is_size(depth) || strlen(address) >= sizeof store->path) return KVT_E_ARGUMENT;
    (void)snprintf(store->path, sizeof store->path, "%s", address);
    if (options->name != NULL)
        (void)snprintf(store->name, sizeof store->name, "%s", options->name);
    else if (prctl(PR_GET_NAME, store->name) != 0)
        (void)snprintf(store->name, sizeof store->name, "?");
    if (options->users != NULL) {
        store->users = calloc((size_t)options->user_count + 1, sizeof *store->users);
        if (store->users == NULL) return KVT_E_MEMORY;
        memcpy(store->users, options->users, options->user_count * sizeof *store->users);
        store->user_count = options->user_count;
    }
    store->calls =
        (client_channel){.entries = depth,
                         .staging_bytes = options->staging_bytes != 0
                                              ? options->staging_bytes / WIRE_PAGE * WIRE_PAGE
                                              : CLIENT_STAGING,
                         .poller = -1,
                         .store = store};
    pthread_mutex_init(&store->calls.lock, NULL);
    base_condition_init(&store->calls.arrived);
    base_spin_init(&store->calls.spin, CLIENT_SPIN_NS);
    store->channels = &store->calls;
    return KVT_OK;
}

kvt_status kvt_connect(const char *address, const kvt_connect_options *options,
                       kvt_store **store_out, char *message, size_t message_size)
{
    kvt_connect_options whole = {.struct_size = sizeof whole};
    if (message == NULL) message_size = 0;
    if (message_size > 0) message[0] = '\0';
    if (address == NULL || store_out == NULL) return KVT_E_ARGUMENT;
    *store_out = NULL;
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole, CLIENT_OPTIONS_LEAST);
    if (options == NULL) return KVT_E_ARGUMENT;
    client_store *store = malloc(sizeof *store);
    if (store == NULL) return KVT_E_MEMORY;
    kvt_status status = store_fill(store, address, options);
    if (status == KVT_E_ARGUMENT)
        (void)snprintf(
            message, message_size, "%s",
            "the address is too long, the depth no power of two, or the patience negative");
    if (status == KVT_OK) status = client_link_begin(store, message, message_size);
    if (status != KVT_OK) {
        if (message_size > 0 && message[0] == '\0')
            (void)snprintf(message, message_size, "%s", kvt_status_text(status));
        client_let_go(store);
        return status;
    }
    *store_out = (kvt_store *)(void *)store;
    return KVT_OK;
}
