/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - the wrapper that checks every call on an object back end, and the table of back ends.
 * Only this file calls the pointers of remote_ops.
 *
 * Thread rule: as client.h says.
 */
#include "remote/client.h"

#include "base/clock.h"
#include "base/secret.h"
#include "remote/backends.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const remote_ops *const remote_backends[] = {&remote_valkey_ops, &remote_mooncake_ops,
                                                    &remote_memory_ops, &remote_fault_ops};

const remote_ops *remote_backend_at(size_t index)
{
    const size_t count = sizeof remote_backends / sizeof remote_backends[0];
    return index < count ? remote_backends[index] : NULL;
}

kvt_status remote_open(const remote_config *config, remote_client **client_out, char *message,
                       size_t message_size)
{
    assert(config != NULL && client_out != NULL && message_size > 0);
    *client_out = NULL;
    const remote_ops *ops = NULL;
    for (size_t i = 0; (ops = remote_backend_at(i)) != NULL; i++)
        if (config->backend != NULL && strcmp(ops->name, config->backend) == 0) break;
    if (ops == NULL) {
        snprintf(message, message_size, "no such back end");
        return KVT_E_UNSUPPORTED;
    }
    message[0] = '\0';
    if (config->password_file != NULL) {
        base_password secret;
        const char *fault = base_password_read(config->password_file, &secret);
        explicit_bzero(&secret, sizeof secret); /* a back end that logs in reads it itself */
        if (fault != NULL) {
            snprintf(message, message_size, "password_file %s %s", config->password_file, fault);
            return KVT_E_ARGUMENT;
        }
    }
    kvt_status status = ops->open(config, client_out, message, message_size);
    assert((status == KVT_OK) == (*client_out != NULL));
    if (status != KVT_OK && message[0] == '\0')
        snprintf(message, message_size, "%s", kvt_status_text(status));
    return status;
}

void remote_close(remote_client *client)
{
    if (client == NULL) return;
    assert(client->in_flight == 0);
    client->ops->close(client);
}

int remote_fd(const remote_client *client)
{
    return client->ops->fd(client);
}

void remote_submit(remote_client *client, remote_request *request)
{
    assert(request->state == REMOTE_IDLE && (unsigned)request->kind < REMOTE_KINDS);
    assert(request->key != NULL && request->key_bytes > 0 && request->key_bytes <= REMOTE_KEY_MAX);
    assert(request->part_count <= REMOTE_PARTS_MAX);
    assert(request->kind != REMOTE_PUT || remote_parts_bytes(request) <= REMOTE_VALUE_MAX);
    request->status = KVT_QUEUED;
    request->value_bytes = 0;
    request->redirected = false;
    request->sent_bytes = 0;
    request->next = NULL;
    request->submitted_ns = base_clock_ns();
    client->in_flight++;
    client->ops->submit(client, request);
}

void remote_flush(remote_client *client)
{
    client->ops->flush(client);
}

size_t remote_reap(remote_client *client, remote_request **done, size_t min, size_t max,
                   uint64_t timeout_ns)
{
    assert(min <= max);
    size_t count = client->ops->reap(client, done, min, max, timeout_ns);
    assert(count <= max && count <= client->in_flight);
    client->in_flight -= count;
    for (size_t i = 0; i < count; i++) {
        assert(done[i]->state == REMOTE_DONE && done[i]->status != KVT_QUEUED);
        assert(done[i]->kind != REMOTE_GET || done[i]->status != KVT_OK ||
               done[i]->value_bytes <= remote_parts_bytes(done[i]));
        done[i]->state = REMOTE_IDLE;
    }
    return count;
}

void remote_wake(remote_client *client)
{
    client->ops->wake(client);
}

bool remote_is_calm(const remote_client *client)
{
    return client->in_flight == 0 && client->ops->is_calm != NULL && client->ops->is_calm(client);
}

void remote_stats_get(const remote_client *client, remote_stats *out)
{
    *out = (remote_stats){.node_count = 0};
    client->ops->stats(client, out);
}

bool remote_node_stats_get(const remote_client *client, uint32_t node, remote_node_stats *out)
{
    *out = (remote_node_stats){.requests = 0};
    return client->ops->node_stats(client, node, out);
}

uint32_t remote_node_of(const remote_client *client, const char *key, size_t key_bytes)
{
    return client->ops->node_of != NULL ? client->ops->node_of(client, key, key_bytes) : 0;
}
