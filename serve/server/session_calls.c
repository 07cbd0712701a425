/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_calls.c - carries out a client's calls on the store, by a function for each shape of
 * call. It runs on the session's thread, which a long call (flush, persist, clear) keeps for as
 * long as it takes: the session's channels go on, its messages wait.
 *
 * A result is made in memory of the server's own, because calls read what they fill; what is too
 * large for a message is copied to the memory that the session shares with its client.
 */
#include "serve/server/server_internal.h"

#include "serve/wire/control.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <kvterrace/load.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a call gives back: `bytes` of memory that the answer's maker frees. */
typedef struct call_result {
    char *memory;
    uint32_t bytes;
} call_result;

/* Makes room for a result, zeroed, of which the public structure at `at` has the size asked for. */
static kvt_status result_make(call_result *out, size_t bytes, size_t at, uint32_t asked)
{
    assert(bytes <= WIRE_RESULT_MAX && (asked == 0 || at + asked <= bytes));
    out->memory = calloc(1, bytes + 8);
    if (out->memory == NULL) return KVT_E_MEMORY;
    out->bytes = (uint32_t)bytes;
    if (asked != 0) memcpy(out->memory + at, &asked, sizeof asked);
    return KVT_OK;
}

/* Calls that fill one public structure. */
static kvt_status call_fill(kvt_store *store, uint32_t call, const wire_argument *argument,
                            call_result *out)
{
    const uint32_t asked = argument->at.result_size;
    const kvt_status status = result_make(out, asked, 0, asked);
    if (status != KVT_OK) return status;
    void *fills = out->memory;
    switch (call) {
    case WIRE_CALL_STATS: return kvt_store_stats_get(store, fills);
    case WIRE_CALL_DEVICE_STATS: return kvt_device_stats_get(store, argument->index.index, fills);
    case WIRE_CALL_CLASS_STATS: return kvt_class_stats_get(store, argument->index.index, fills);
    case WIRE_CALL_SPACE_STATS: return kvt_space_stats_get(store, argument->space.space, fills);
    case WIRE_CALL_REMOTE_STATS: return kvt_remote_stats_get(store, fills);
    case WIRE_CALL_REMOTE_NODE: return kvt_remote_node_get(store, argument->index.index, fills);
    case WIRE_CALL_BASIS_GET: return kvt_basis_get(store, argument->index.index, fills);
    default: return kvt_store_persist(store, argument->deadline.deadline_ns, fills);
    }
}

static kvt_status call_health(kvt_store *store, const wire_argument *argument, call_result *out)
{
    const uint32_t asked = argument->at.result_size;
    kvt_status overall;
    size_t count;
    kvt_status status = kvt_health_get(store, NULL, 0, &count, &overall);
    if (status != KVT_OK) return status;
    const size_t most = (WIRE_RESULT_MAX - sizeof(wire_health)) / asked;
    size_t room = count < argument->index.index ? count : argument->index.index;
    if (room > most) room = most;
    status =
        result_make(out, sizeof(wire_health) + room * asked, sizeof(wire_health), room ? asked : 0);
    if (status != KVT_OK) return status;
    wire_health *health = (wire_health *)(void *)out->memory;
    if (room > 0)
        status =
            kvt_health_get(store, (kvt_health_item *)(void *)(health + 1), room, &count, &overall);
    if (status != KVT_OK) return status;
    *health = (wire_health){.count = count, .overall = overall};
    if (count < room) out->bytes = (uint32_t)(sizeof *health + count * asked);
    return KVT_OK;
}

/* Moves a text out of a structure that may be too short for the pointer to it. */
static void text_take(char *item, uint32_t asked, size_t offset, char *text, size_t size)
{
    const char *from;
    if (offset + sizeof from > asked) return;
    memcpy(&from, item + offset, sizeof from);
    memset(item + offset, 0, sizeof from);
    for (size_t i = 0; from != NULL && i + 1 < size && from[i] != '\0'; i++)
        text[i] = from[i];
}

static kvt_status call_explain(kvt_store *store, const wire_argument *argument, call_result *out)
{
    const uint32_t asked = argument->at.result_size;
    kvt_status status =
        result_make(out, sizeof(wire_explained) + asked, sizeof(wire_explained), asked);
    if (status != KVT_OK) return status;
    wire_explained *explained = (wire_explained *)(void *)out->memory;
    char *item = (char *)(explained + 1);
    status = kvt_store_explain(store, &argument->key.key, (kvt_explanation *)(void *)item);
    text_take(item, asked, offsetof(kvt_explanation, reason), explained->reason,
              sizeof explained->reason);
    text_take(item, asked, offsetof(kvt_explanation, reuse_expert), explained->reuse_expert,
              sizeof explained->reuse_expert);
    return status;
}

/* The filter of a call. */
static kvt_clear_filter call_filter(uint32_t conditions, uint32_t tenant, uint64_t space)
{
    return (kvt_clear_filter){.struct_size = sizeof(kvt_clear_filter),
                              .by_space = (conditions & WIRE_CLEAR_SPACE) != 0,
                              .by_tenant = (conditions & WIRE_CLEAR_TENANT) != 0,
                              .everything = (conditions & WIRE_CLEAR_EVERYTHING) != 0,
                              .tenant = tenant,
                              .space = space};
}

static kvt_status call_count(kvt_store *store, uint32_t call, const wire_argument *argument,
                             call_result *out)
{
    kvt_status status = result_make(out, sizeof(wire_count), 0, 0);
    if (status != KVT_OK) return status;
    wire_count *count = (wire_count *)(void *)out->memory;
    if (call == WIRE_CALL_MAINTAIN) {
        uint32_t moves = 0;
        status = kvt_store_maintain(store, &moves);
        count->count = moves;
        return status;
    }
    const kvt_clear_filter filter =
        call_filter(argument->clear.conditions, argument->clear.tenant, argument->clear.space);
    return kvt_store_clear(store, &filter, &count->count);
}

static kvt_status call_list(kvt_store *store, const wire_argument *argument, call_result *out)
{
    const wire_list_argument *list = &argument->list;
    const uint32_t asked = argument->at.result_size;
    const size_t most = (WIRE_RESULT_MAX - sizeof(wire_cursor)) / asked;
    const size_t room = list->capacity < most ? list->capacity : most;
    const kvt_clear_filter filter = call_filter(list->conditions, list->tenant, list->space);
    size_t count;
    kvt_status status = result_make(out, sizeof(wire_cursor) + room * asked, sizeof(wire_cursor),
                                    room != 0 ? asked : 0);
    if (status != KVT_OK) return status;
    wire_cursor *cursor = (wire_cursor *)(void *)out->memory;
    cursor->cursor = list->cursor;
    status = kvt_store_list(store, list->conditions != 0 ? &filter : NULL, &cursor->cursor,
                            (kvt_list_item *)(void *)(cursor + 1), room, &count);
    out->bytes = (uint32_t)(sizeof *cursor + count * asked);
    return status;
}

/* The metrics grow between the two calls by a few bytes at most. */
static kvt_status call_metrics(kvt_store *store, call_result *out)
{
    const size_t room = kvt_metrics_write(store, NULL, 0) + 4096;
    kvt_status status = room <= WIRE_RESULT_MAX ? result_make(out, room, 0, 0) : KVT_E_SPACE;
    if (status != KVT_OK) return status;
    const size_t bytes = kvt_metrics_write(store, out->memory, room);
    out->bytes = (uint32_t)(bytes < room ? bytes : room);
    return bytes != 0 ? KVT_OK : KVT_E_STATE;
}

static kvt_status call_operations(kvt_store *store, const wire_argument *argument, call_result *out)
{
    const size_t most = WIRE_RESULT_MAX / sizeof(kvt_operation);
    const size_t room = argument->index.index < most ? argument->index.index : most;
    size_t count = 0;
    kvt_status status = result_make(out, room * sizeof(kvt_operation), 0, 0);
    if (status != KVT_OK) return status;
    status = kvt_operations_get(store, (kvt_operation *)(void *)out->memory, room, &count);
    out->bytes = (uint32_t)(count * sizeof(kvt_operation));
    return status;
}

/* The session's reader of events. Its descriptor stays here: a client could make a write to it
 * wait, which the store does under its lock. */
static kvt_status call_events(server_session *session, uint32_t call, const wire_argument *argument,
                              call_result *out)
{
    const uint32_t asked = argument->index.index;
    const uint32_t room = asked < WIRE_EVENTS_MAX ? asked : WIRE_EVENTS_MAX;
    size_t count = 0;
    if ((session->events == NULL) != (call == WIRE_CALL_EVENTS_OPEN)) return KVT_E_STATE;
    if (session->events == NULL)
        return kvt_events_open(session->lends->store, room, &session->events);
    kvt_status status = result_make(out, sizeof(wire_events) + room * sizeof(kvt_event), 0, 0);
    if (status != KVT_OK) return status;
    wire_events *events = (wire_events *)(void *)out->memory;
    status = kvt_events_drain(session->events, (kvt_event *)(void *)(events + 1), room, &count,
                              &events->lost);
    out->bytes = (uint32_t)(sizeof *events + count * sizeof(kvt_event));
    session->events_told = false;
    return status;
}

/* Calls that read what lies in a region: a copy of it, which the client cannot change any more. */
static kvt_status call_memory(server_session *session, uint32_t call,
                              const wire_memory_argument *argument)
{
    kvt_store *store = session->lends->store;
    const wire_region region = session->regions[argument->region];
    const uint64_t bytes = argument->bytes;
    if (bytes > region.bytes && bytes != 0) return KVT_E_ARGUMENT;
    if (call == WIRE_CALL_PASS_TABLE && bytes % sizeof(kvt_pass_row) != 0) return KVT_E_ARGUMENT;
    void *copy = malloc(bytes + 1);
    if (copy == NULL) return KVT_E_MEMORY;
    if (bytes != 0) memcpy(copy, region.address, bytes);
    const kvt_status status = call == WIRE_CALL_BASIS_ADD
                                  ? kvt_basis_add(store, copy, bytes)
                                  : kvt_pass_table_set(store, copy, bytes / sizeof(kvt_pass_row));
    free(copy);
    return status;
}

static kvt_status call_run(server_session *session, uint32_t call, const wire_argument *argument,
                           call_result *out)
{
    kvt_store *store = session->lends->store;
    switch (call) {
    case WIRE_CALL_EVENTS_OPEN:
    case WIRE_CALL_EVENTS: return call_events(session, call, argument, out);
    case WIRE_CALL_OBSERVE:
        return kvt_quality_observe(store, &argument->observe.key, argument->observe.variant,
                                   argument->observe.loss, argument->observe.weight);
    case WIRE_CALL_PASS_TABLE:
    case WIRE_CALL_BASIS_ADD: return call_memory(session, call, &argument->memory);
    case WIRE_CALL_BASIS_REMOVE: return kvt_basis_remove(store, argument->key.key.bytes);
    case WIRE_CALL_HEALTH: return call_health(store, argument, out);
    case WIRE_CALL_EXPLAIN: return call_explain(store, argument, out);
    case WIRE_CALL_MAINTAIN:
    case WIRE_CALL_CLEAR: return call_count(store, call, argument, out);
    case WIRE_CALL_LIST: return call_list(store, argument, out);
    case WIRE_CALL_METRICS: return call_metrics(store, out);
    case WIRE_CALL_OPERATIONS: return call_operations(store, argument, out);
    case WIRE_CALL_FLUSH: return kvt_store_flush(store);
    case WIRE_CALL_REMOTE_FLUSH: return kvt_remote_flush(store, argument->deadline.deadline_ns);
    case WIRE_CALL_SPACE_SET:
        return kvt_space_set(store, argument->space.space, argument->space.tenant);
    case WIRE_CALL_TENANT_SET:
        return kvt_tenant_set(store, argument->tenant.tenant, &argument->tenant.limits);
    case WIRE_CALL_DEVICE_CHANGE:
        return kvt_device_change(store, argument->device.name,
                                 (kvt_device_action)argument->device.action);
    default: return call_fill(store, call, argument, out);
    }
}

/* Copies a result to the memory that the session and its client share, made at first need. The
 * server never reads it. */
static kvt_status result_share(server_session *session, const call_result *result)
{
    if (session->results == NULL) {
        int made;
        kvt_status status = wire_memory_make("kvterrace-results", WIRE_RESULT_MAX, &made);
        if (status != KVT_OK) return status;
        status = wire_memory_map(made, 0, WIRE_RESULT_MAX, WIRE_SEALED_SIZE, &session->results);
        if (status != KVT_OK) {
            close(made);
            return status;
        }
        session->results_memory = made;
    }
    memcpy(session->results, result->memory, result->bytes);
    return KVT_OK;
}

/* The store tells a failure to the first flush that follows it, whoever's put it was. So a flush
 * that fails is kept, and told to each other session by its own next one. */
static kvt_status call_flushed(server_session *session, kvt_status status)
{
    server *lends = session->lends;
    const bool failed = status == KVT_E_IO || status == KVT_E_SPACE || status == KVT_E_MEMORY ||
                        status == KVT_E_DATABASE;
    if (failed) {
        atomic_store(&lends->flush_failure, status);
        atomic_fetch_add(&lends->flush_failures, 1);
    }
    const uint64_t failures = atomic_load(&lends->flush_failures);
    const bool others = failures != session->flush_failures;
    session->flush_failures = failures;
    return status == KVT_OK && others ? (kvt_status)atomic_load(&lends->flush_failure) : status;
}

kvt_status server_call(server_session *session, const wire_message *asked)
{
    const uint32_t call = asked->call.call;
    call_result result = {0};
    wire_argument argument;
    wire_message answer;
    kvt_status status = wire_call_read(&asked->call, &argument);
    if (status == KVT_OK && wire_call_kinds[call].guarded && !session->is_operator)
        status = KVT_E_READ_ONLY;
    if (status == KVT_OK) status = call_run(session, call, &argument, &result);
    if (call == WIRE_CALL_FLUSH || call == WIRE_CALL_PERSIST)
        status = call_flushed(session, status);
    /* A persist that failed says how far it came. */
    if (status < 0 && (call != WIRE_CALL_PERSIST || status == KVT_E_ARGUMENT)) result.bytes = 0;
    if (result.bytes > WIRE_CALL_ROOM) {
        const kvt_status shared = result_share(session, &result);
        if (shared != KVT_OK) {
            status = shared;
            result.bytes = 0;
        }
    }
    wire_result_make(&answer, call, session->protocol, asked->head.number, status, result.memory,
                     result.bytes);
    free(result.memory);
    return wire_send(session->socket, &answer, &session->results_memory,
                     answer.head.kind == WIRE_RESULT_MEMORY ? 1 : 0);
}
