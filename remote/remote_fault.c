/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_fault.c - a client that fails as it is told (remote_fault.h).
 *
 * Thread rule: the client's thread.
 */
#include "remote/remote_fault.h"

#include "base/clock.h"
#include "remote/backends.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_LAST_BYTES (2u << 20)
#define FAULT_LOOK_NS    UINT64_C(1000000) /* between two looks at what waits */

typedef struct fault_client {
    remote_client base;
    remote_client *inner;
    remote_fault *faults;
    remote_request *held, *last; /* never answered, or answered by this file */
    uint64_t counts[REMOTE_KINDS], flips;
    char *value; /* of the GET before */
    size_t value_bytes;
} fault_client;

static remote_fault *fault_given;

void remote_fault_use(remote_fault *faults)
{
    fault_given = faults;
}

static bool fault_hits(unsigned each, uint64_t count)
{
    return each != 0 && count % each == 0;
}

static void fault_hold(fault_client *client, remote_request *request, kvt_status status)
{
    request->status = status;
    request->state = REMOTE_SENT;
    if (client->last != NULL)
        client->last->next = request;
    else
        client->held = request;
    client->last = request;
    request->next = NULL;
}

static void fault_submit(remote_client *base, remote_request *request)
{
    fault_client *client = (fault_client *)base;
    const remote_fault *faults = client->faults;
    const uint64_t count = ++client->counts[request->kind];
    const bool put = request->kind == REMOTE_PUT;
    atomic_fetch_add(&client->faults->count, 1);
    const uint64_t patience_ns = request->deadline_ns - base_clock_ns();
    if (put && patience_ns > atomic_load(&faults->patience_ns))
        atomic_store(&client->faults->patience_ns, patience_ns);
    if (atomic_load(&faults->gone))
        fault_hold(client, request, KVT_E_GONE);
    else if (atomic_load(&faults->silent))
        fault_hold(client, request, KVT_E_TIMEOUT);
    else if (request->kind == REMOTE_GET && atomic_load(&faults->holds))
        fault_hold(client, request, KVT_QUEUED);
    else if (fault_hits(atomic_load(&faults->fail_each), count))
        fault_hold(client, request, atomic_load(&faults->failure));
    else if (put && fault_hits(atomic_load(&faults->lose_each), count))
        fault_hold(client, request, KVT_OK);
    else
        remote_submit(client->inner, request);
}

/* Spoils what a GET has received. */
static void fault_spoil(fault_client *client, remote_request *request)
{
    const remote_fault *faults = client->faults;
    const uint64_t count = ++client->flips;
    const struct iovec *last = NULL;
    uint64_t before = 0;
    for (uint32_t i = 0; i < request->part_count; i++) {
        last = &request->parts[i];
        if (before + last->iov_len >= request->value_bytes) break;
        before += last->iov_len;
    }
    if (last == NULL || request->value_bytes == 0) return;
    if (fault_hits(atomic_load(&faults->flip_each), count)) {
        uint64_t at = count * 7919 % request->value_bytes, part = 0;
        while (at >= request->parts[part].iov_len)
            at -= request->parts[part++].iov_len;
        ((char *)request->parts[part].iov_base)[at] ^= (char)(1 << count % 8);
    }
    if (fault_hits(atomic_load(&faults->short_each), count)) request->value_bytes--;
    const bool others = fault_hits(atomic_load(&faults->other_each), count);
    char *const first = request->parts[0].iov_base;
    const size_t first_bytes = request->parts[0].iov_len < request->value_bytes
                                   ? request->parts[0].iov_len
                                   : (size_t)request->value_bytes;
    if (others && client->value_bytes != 0) {
        memcpy(first, client->value,
               first_bytes < client->value_bytes ? first_bytes : client->value_bytes);
    } else {
        client->value_bytes = first_bytes < FAULT_LAST_BYTES ? first_bytes : FAULT_LAST_BYTES;
        memcpy(client->value, first, client->value_bytes);
    }
}

static void fault_flush(remote_client *base)
{
    remote_flush(((fault_client *)base)->inner);
}

/* A request that waits goes on to the client that is wrapped when none waits any more. */
static bool fault_lets_go(fault_client *client, remote_request *request)
{
    if (request->status != KVT_QUEUED) return false;
    if (request->deadline_ns <= base_clock_ns()) request->status = KVT_E_TIMEOUT;
    if (request->status != KVT_QUEUED || atomic_load(&client->faults->holds)) return false;
    request->state = REMOTE_IDLE;
    remote_submit(client->inner, request);
    return true;
}

/* Takes what is held and over. *next_ns: when more of it will be. */
static size_t fault_take(fault_client *client, remote_request **done, size_t max, uint64_t *next_ns)
{
    remote_request *list = client->held;
    const uint64_t now_ns = base_clock_ns();
    size_t count = 0;
    client->held = client->last = NULL;
    while (list != NULL) {
        remote_request *request = list;
        list = request->next;
        if (fault_lets_go(client, request)) continue;
        const bool waits = request->status == KVT_QUEUED;
        const bool over =
            !waits && (request->status != KVT_E_TIMEOUT || request->deadline_ns <= now_ns);
        if (over && count < max) {
            request->state = REMOTE_DONE;
            request->finished_ns = now_ns;
            done[count++] = request;
        } else {
            if (request->deadline_ns < *next_ns) *next_ns = request->deadline_ns;
            if (waits && now_ns + FAULT_LOOK_NS < *next_ns) *next_ns = now_ns + FAULT_LOOK_NS;
            fault_hold(client, request, request->status);
        }
    }
    return count;
}

static size_t fault_reap(remote_client *base, remote_request **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    fault_client *client = (fault_client *)base;
    const uint64_t began_ns = base_clock_ns();
    const uint64_t end_ns = timeout_ns < UINT64_MAX - began_ns ? began_ns + timeout_ns : UINT64_MAX;
    uint64_t next_ns = end_ns;
    size_t count = fault_take(client, done, max, &next_ns);
    const uint64_t now_ns = base_clock_ns();
    const uint64_t wait_ns = count >= min || next_ns <= now_ns ? 0 : next_ns - now_ns;
    const size_t least = count >= min ? 0 : min - count;
    const size_t got = remote_reap(client->inner, done + count, least, max - count, wait_ns);
    for (size_t i = 0; i < got; i++) {
        remote_request *request = done[count + i];
        if (request->kind == REMOTE_GET && request->status == KVT_OK) fault_spoil(client, request);
        request->state = REMOTE_DONE;
    }
    count += got;
    if (count < min) count += fault_take(client, done + count, max - count, &next_ns);
    return count;
}

static void fault_wake(remote_client *base)
{
    remote_wake(((fault_client *)base)->inner);
}

static int fault_fd(const remote_client *base)
{
    return remote_fd(((const fault_client *)base)->inner);
}

static void fault_stats(const remote_client *base, remote_stats *out)
{
    remote_stats_get(((const fault_client *)base)->inner, out);
}

static bool fault_node_stats(const remote_client *base, uint32_t node, remote_node_stats *out)
{
    return remote_node_stats_get(((const fault_client *)base)->inner, node, out);
}

static uint32_t fault_node_of(const remote_client *base, const char *key, size_t key_bytes)
{
    return remote_node_of(((const fault_client *)base)->inner, key, key_bytes);
}

static void fault_close(remote_client *base)
{
    fault_client *client = (fault_client *)base;
    remote_close(client->inner);
    free(client->value);
    free(client);
}

static kvt_status fault_open(const remote_config *config, remote_client **client_out, char *message,
                             size_t message_size)
{
    remote_fault *faults = config->faults != NULL ? config->faults : fault_given;
    if (faults == NULL) {
        snprintf(message, message_size, "fault: tests alone open it");
        return KVT_E_UNSUPPORTED;
    }
    fault_client *client = calloc(1, sizeof *client);
    if (client == NULL) return KVT_E_MEMORY;
    client->base.ops = &remote_fault_ops;
    client->faults = faults;
    client->value = malloc(FAULT_LAST_BYTES);
    kvt_status status = client->value != NULL
                            ? remote_open(&faults->inner, &client->inner, message, message_size)
                            : KVT_E_MEMORY;
    if (status == KVT_OK)
        *client_out = &client->base;
    else
        fault_close(&client->base);
    return status;
}

const remote_ops remote_fault_ops = {.struct_size = sizeof(remote_ops),
                                     .name = "fault",
                                     .open = fault_open,
                                     .close = fault_close,
                                     .fd = fault_fd,
                                     .submit = fault_submit,
                                     .flush = fault_flush,
                                     .reap = fault_reap,
                                     .wake = fault_wake,
                                     .stats = fault_stats,
                                     .node_stats = fault_node_stats,
                                     .node_of = fault_node_of};
