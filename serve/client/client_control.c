/* SPDX-License-Identifier: Apache-2.0 */
/* client_control.c - the calls of a connected store that go by the socket: its state, and orders
 * to it. */
#include "serve/client/client_calls.h"

#include "base/struct_size.h"
#include "serve/client/client_control.h"
#include "serve/wire/shared_memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_LIST_MOST 8192u /* items asked for at once */

/* Copies a result. Under the lock: the server writes the next one to the same memory. KVT_OK;
 * KVT_E_CORRUPT; KVT_E_MEMORY. */
static kvt_status take_result(const wire_message *answer, int descriptor, void **bytes_out)
{
    const uint32_t bytes = answer->result.bytes;
    void *mapped = NULL;
    if (bytes == 0) return KVT_OK;
    if (bytes > WIRE_RESULT_MAX) return KVT_E_CORRUPT;
    if (answer->head.kind == WIRE_RESULT_MEMORY &&
        wire_memory_map(descriptor, 0, WIRE_RESULT_MAX, WIRE_SEALED_SIZE, &mapped) != KVT_OK)
        return KVT_E_CORRUPT;
    *bytes_out = malloc(bytes);
    if (*bytes_out != NULL)
        memcpy(*bytes_out, mapped != NULL ? mapped : answer->result.result, bytes);
    wire_memory_unmap(mapped, WIRE_RESULT_MAX);
    return *bytes_out != NULL ? KVT_OK : KVT_E_MEMORY;
}

/* Makes a call; memory: its argument is a wire_memory_argument of the region that begins there. */
static kvt_status control_ask(kvt_store *handle, wire_call_number call, const void *argument,
                              const void *memory, control_result *result)
{
    client_store *store;
    wire_message question, answer;
    int received[WIRE_DESCRIPTORS_MAX] = {-1, -1, -1};
    *result = (control_result){0};
    kvt_status status = client_enter(handle, &store);
    if (status == KVT_OK) status = client_restore(store, NULL);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    wire_call_make(&question, call, store->protocol, 1, argument);
    if (memory != NULL) {
        const uint32_t number = client_region_number(store, memory);
        memcpy((char *)question.call.argument + offsetof(wire_memory_argument, region), &number,
               sizeof number);
        /* A server that has come meanwhile may have taken fewer regions. */
        if (number == WIRE_REGIONS_MAX) {
            pthread_mutex_unlock(&store->lock);
            return KVT_E_SPACE;
        }
    }
    status = client_ask_locked(store, &question, NULL, 0, WIRE_RESULT, &answer, received);
    const bool answered = status != KVT_E_GONE && answer.head.kind != WIRE_DONE;
    kvt_status taken = KVT_OK;
    if (answered) taken = take_result(&answer, received[0], &result->bytes);
    pthread_mutex_unlock(&store->lock);
    if (received[0] >= 0) close(received[0]);
    if (answered && taken == KVT_OK)
        taken = wire_result_check(&answer.result, call, argument, result->bytes, &result->count);
    if (taken == KVT_OK) return status;
    free(result->bytes);
    *result = (control_result){0};
    return taken == KVT_E_MEMORY ? taken : KVT_E_GONE;
}

kvt_status client_control(kvt_store *handle, wire_call_number call, const void *argument,
                          control_result *result)
{
    return control_ask(handle, call, argument, NULL, result);
}

kvt_status client_order_with(kvt_store *handle, wire_call_number call, const void *bytes,
                             uint64_t size)
{
    const wire_memory_argument argument = {.at = {sizeof argument, 0}, .bytes = size};
    control_result result;
    void *memory = NULL;
    kvt_status status = KVT_OK;
    if (size != 0) status = kvt_region_make(handle, size, &memory);
    if (status != KVT_OK) return status == KVT_E_ARGUMENT ? KVT_E_SPACE : status;
    if (size != 0) memcpy(memory, bytes, size);
    status = control_ask(handle, call, &argument, memory, &result);
    free(result.bytes);
    if (memory != NULL) (void)!kvt_region_free(handle, memory);
    return status;
}

kvt_status client_fill(kvt_store *handle, wire_call_number call, const void *argument, void *out,
                       size_t size)
{
    control_result result;
    const kvt_status status = client_control(handle, call, argument, &result);
    if (status == KVT_OK && result.bytes != NULL) struct_size_out(out, result.bytes, size);
    free(result.bytes);
    return status;
}

kvt_status client_order(kvt_store *handle, wire_call_number call, const void *argument,
                        uint64_t *count_out)
{
    control_result result;
    const kvt_status status = client_control(handle, call, argument, &result);
    wire_count told = {0};
    if (result.bytes != NULL) memcpy(&told, result.bytes, sizeof told);
    free(result.bytes);
    if (count_out != NULL) *count_out = told.count;
    return status;
}

static bool is_sound(const void *out)
{
    return out != NULL && struct_size_is_sound(out, sizeof(uint32_t));
}

/* A caller's filter as this library knows it; NULL: it is none. */
static const kvt_clear_filter *filter_take(const kvt_clear_filter *filter, kvt_clear_filter *whole)
{
    if (filter == NULL) return NULL;
    return struct_size_in(filter, whole, sizeof *whole,
                          STRUCT_SIZE_THROUGH(kvt_clear_filter, space));
}

static uint32_t filter_conditions(const kvt_clear_filter *filter)
{
    return (filter->by_space ? WIRE_CLEAR_SPACE : 0) | (filter->by_tenant ? WIRE_CLEAR_TENANT : 0) |
           (filter->everything ? WIRE_CLEAR_EVERYTHING : 0);
}

/* ---- what it is like ---- */

kvt_status client_stats(kvt_store *handle, kvt_store_stats *stats)
{
    const wire_argument_head argument = {sizeof argument, sizeof *stats};
    if (!is_sound(stats)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_STATS, &argument, stats, sizeof *stats);
}

kvt_status client_device_stats(kvt_store *handle, size_t index, kvt_device_stats *out)
{
    const wire_index_argument argument = {.at = {sizeof argument, sizeof *out},
                                          .index =
                                              index < UINT32_MAX ? (uint32_t)index : UINT32_MAX};
    if (!is_sound(out)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_DEVICE_STATS, &argument, out, sizeof *out);
}

kvt_status client_class_stats(kvt_store *handle, uint32_t class_id, kvt_class_stats *out)
{
    const wire_index_argument argument = {.at = {sizeof argument, sizeof *out}, .index = class_id};
    if (!is_sound(out)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_CLASS_STATS, &argument, out, sizeof *out);
}

kvt_status client_space_stats(kvt_store *handle, uint64_t space, kvt_space_stats *stats)
{
    const wire_space_argument argument = {.at = {sizeof argument, sizeof *stats}, .space = space};
    if (!is_sound(stats)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_SPACE_STATS, &argument, stats, sizeof *stats);
}

kvt_status client_remote_stats(kvt_store *handle, kvt_remote_stats *stats)
{
    const wire_argument_head argument = {sizeof argument, sizeof *stats};
    if (!is_sound(stats)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_REMOTE_STATS, &argument, stats, sizeof *stats);
}

kvt_status client_remote_node(kvt_store *handle, uint32_t index, kvt_remote_node *node)
{
    const wire_index_argument argument = {.at = {sizeof argument, sizeof *node}, .index = index};
    if (!is_sound(node)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_REMOTE_NODE, &argument, node, sizeof *node);
}

/* Gives `count` structures of a result, whose size is `size`, to a caller's of another size. */
static void give_items(void *items, const void *told, size_t count, uint32_t size)
{
    const uint32_t stride = struct_size_of(items);
    for (size_t i = 0; i < count; i++) {
        unsigned char *at = (unsigned char *)items + i * stride;
        memcpy(at, &stride, sizeof stride);
        struct_size_out(at, (const unsigned char *)told + i * size, size);
    }
}

kvt_status client_health(kvt_store *handle, kvt_health_item *items, size_t capacity,
                         size_t *count_out, kvt_status *overall_out)
{
    control_result result;
    const wire_index_argument argument = {.at = {sizeof argument, sizeof *items},
                                          .index = capacity < 64 ? (uint32_t)capacity : 64};
    if (count_out == NULL || (capacity > 0 && !is_sound(items))) return KVT_E_ARGUMENT;
    *count_out = 0;
    const kvt_status status = client_control(handle, WIRE_CALL_HEALTH, &argument, &result);
    if (status == KVT_OK && result.bytes != NULL) {
        const wire_health *health = result.bytes;
        const kvt_health_item *told = (const void *)(health + 1);
        const size_t given = result.count < capacity ? result.count : capacity;
        if (given > 0) give_items(items, told, given, sizeof *told);
        *count_out = health->count;
        if (overall_out != NULL) *overall_out = health->overall;
    }
    free(result.bytes);
    return status;
}

kvt_status client_list(kvt_store *handle, const kvt_clear_filter *filter, uint64_t *cursor,
                       kvt_list_item *items, size_t capacity, size_t *count_out)
{
    control_result result;
    kvt_clear_filter whole = {.struct_size = sizeof whole};
    if (count_out == NULL) return KVT_E_ARGUMENT;
    *count_out = 0;
    if (cursor == NULL || items == NULL || capacity == 0 ||
        !struct_size_is_sound(items, STRUCT_SIZE_THROUGH(kvt_list_item, flags)))
        return KVT_E_ARGUMENT;
    if (filter == NULL) {
        whole.everything = true;
        filter = &whole;
    }
    filter = filter_take(filter, &whole);
    if (filter == NULL || filter_conditions(filter) == 0) return KVT_E_ARGUMENT;
    const wire_list_argument argument = {
        .at = {sizeof argument, sizeof *items},
        .conditions = filter_conditions(filter),
        .tenant = filter->tenant,
        .space = filter->space,
        .cursor = *cursor,
        .capacity = capacity < CONTROL_LIST_MOST ? (uint32_t)capacity : CONTROL_LIST_MOST};
    kvt_status status = client_control(handle, WIRE_CALL_LIST, &argument, &result);
    if (status == KVT_OK && result.bytes != NULL) {
        const size_t count = result.count < argument.capacity ? result.count : argument.capacity;
        memcpy(cursor, result.bytes, sizeof *cursor);
        give_items(items, (const wire_cursor *)result.bytes + 1, count, sizeof *items);
        *count_out = count;
    }
    free(result.bytes);
    return status;
}

size_t client_metrics(kvt_store *handle, char *text, size_t size)
{
    control_result result;
    const wire_argument_head argument = {sizeof argument, 0};
    if (size > 0 && text != NULL) text[0] = '\0';
    const kvt_status status = client_control(handle, WIRE_CALL_METRICS, &argument, &result);
    const size_t bytes = status == KVT_OK ? result.count : 0;
    if (bytes > 0 && size > 0 && text != NULL) {
        const size_t part = bytes < size ? bytes : size;
        memcpy(text, result.bytes, part);
        text[part - 1] = '\0';
    }
    free(result.bytes);
    return bytes;
}

kvt_status client_operations(kvt_store *handle, kvt_operation *out, size_t capacity,
                             size_t *count_out)
{
    control_result result;
    const uint32_t most = 4096;
    const wire_index_argument argument = {.at = {sizeof argument, 0},
                                          .index = capacity < most ? (uint32_t)capacity : most};
    if (count_out == NULL || (out == NULL && capacity != 0)) return KVT_E_ARGUMENT;
    *count_out = 0;
    const kvt_status status = client_control(handle, WIRE_CALL_OPERATIONS, &argument, &result);
    if (status == KVT_OK && result.count > 0) {
        const size_t count = result.count < capacity ? result.count : capacity;
        memcpy(out, result.bytes, count * sizeof *out);
        *count_out = count;
    }
    free(result.bytes);
    return status;
}

/* A text that lives as long as its store, as the texts of an explanation do; NULL when it is empty,
 * or when a server has sent more than any has. */
static const char *kept_text(kvt_store *handle, const char *text)
{
    client_store *store;
    const char *kept = NULL;
    if (text[0] == '\0' || client_enter(handle, &store) != KVT_OK) return NULL;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < CLIENT_TEXTS && kept == NULL; i++) {
        if (store->texts[i] == NULL) store->texts[i] = strdup(text);
        if (store->texts[i] == NULL) break;
        if (strcmp(store->texts[i], text) == 0) kept = store->texts[i];
    }
    pthread_mutex_unlock(&store->lock);
    return kept;
}

kvt_status client_explain(kvt_store *handle, const kvt_key *key, kvt_explanation *out)
{
    control_result result;
    wire_key_argument argument = {.at = {sizeof argument, sizeof *out}};
    kvt_explanation told = {.struct_size = sizeof told};
    if (key == NULL || !is_sound(out)) return KVT_E_ARGUMENT;
    argument.key = *key;
    const kvt_status status = client_control(handle, WIRE_CALL_EXPLAIN, &argument, &result);
    if (result.bytes != NULL) {
        const wire_explained *texts = result.bytes;
        memcpy(&told, texts + 1, sizeof told);
        told.reason = kept_text(handle, texts->reason);
        told.reuse_expert = kept_text(handle, texts->reuse_expert);
    }
    struct_size_out(out, &told, sizeof told);
    free(result.bytes);
    return status;
}

/* ---- orders ---- */

kvt_status client_flush(kvt_store *handle)
{
    const wire_argument_head argument = {sizeof argument, 0};
    return client_order(handle, WIRE_CALL_FLUSH, &argument, NULL);
}

kvt_status client_persist(kvt_store *handle, uint64_t deadline_ns, kvt_persist_info *info_out)
{
    control_result result;
    const wire_deadline_argument argument = {.at = {sizeof argument, sizeof *info_out},
                                             .deadline_ns = deadline_ns};
    if (info_out != NULL && !is_sound(info_out)) return KVT_E_ARGUMENT;
    const kvt_status status = client_control(handle, WIRE_CALL_PERSIST, &argument, &result);
    const kvt_persist_info none = {.struct_size = sizeof none};
    if (info_out != NULL)
        struct_size_out(info_out, result.bytes != NULL ? result.bytes : &none, sizeof none);
    free(result.bytes);
    return status;
}

kvt_status client_maintain(kvt_store *handle, uint32_t *moves_out)
{
    uint64_t moves = 0;
    const wire_argument_head argument = {sizeof argument, 0};
    const kvt_status status = client_order(handle, WIRE_CALL_MAINTAIN, &argument, &moves);
    if (moves_out != NULL) *moves_out = (uint32_t)moves;
    return status;
}

kvt_status client_clear(kvt_store *handle, const kvt_clear_filter *filter, uint64_t *removed_out)
{
    kvt_clear_filter whole = {.struct_size = sizeof whole};
    if (removed_out != NULL) *removed_out = 0;
    filter = filter_take(filter, &whole);
    if (filter == NULL) return KVT_E_ARGUMENT;
    const wire_clear_argument argument = {.at = {sizeof argument, 0},
                                          .conditions = filter_conditions(filter),
                                          .tenant = filter->tenant,
                                          .space = filter->space};
    return client_order(handle, WIRE_CALL_CLEAR, &argument, removed_out);
}

kvt_status client_remote_flush(kvt_store *handle, uint64_t deadline_ns)
{
    const wire_deadline_argument argument = {.at = {sizeof argument, 0},
                                             .deadline_ns = deadline_ns};
    return client_order(handle, WIRE_CALL_REMOTE_FLUSH, &argument, NULL);
}

kvt_status client_observe(kvt_store *handle, const kvt_key *key, kvt_variant variant, double loss,
                          double weight)
{
    wire_observe_argument argument = {
        .at = {sizeof argument, 0}, .loss = loss, .weight = weight, .variant = variant};
    if (key == NULL) return KVT_E_ARGUMENT;
    argument.key = *key;
    return client_order(handle, WIRE_CALL_OBSERVE, &argument, NULL);
}

kvt_status client_space_set(kvt_store *handle, uint64_t space, uint32_t tenant)
{
    const wire_space_argument argument = {
        .at = {sizeof argument, 0}, .space = space, .tenant = tenant};
    return client_order(handle, WIRE_CALL_SPACE_SET, &argument, NULL);
}

kvt_status client_tenant_set(kvt_store *handle, uint32_t tenant, const kvt_tenant *limits)
{
    wire_tenant_argument argument = {.at = {sizeof argument, 0}, .tenant = tenant};
    if (limits == NULL) return KVT_E_ARGUMENT;
    argument.limits.struct_size = sizeof argument.limits;
    limits = struct_size_in(limits, &argument.limits, sizeof argument.limits, sizeof(uint32_t));
    if (limits == NULL) return KVT_E_ARGUMENT;
    argument.limits = *limits;
    return client_order(handle, WIRE_CALL_TENANT_SET, &argument, NULL);
}

kvt_status client_device_change(kvt_store *handle, const char *name, kvt_device_action action)
{
    wire_device_argument argument = {.at = {sizeof argument, 0}, .action = action};
    if (name == NULL || strlen(name) >= sizeof argument.name) return KVT_E_ARGUMENT;
    memcpy(argument.name, name, strlen(name));
    return client_order(handle, WIRE_CALL_DEVICE_CHANGE, &argument, NULL);
}
