/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_call.c - what a request is in calls of Mooncake's library (mooncake_call.h).
 *
 * Mooncake's put leaves an object that is there as it is, so an object is removed before it is
 * replaced; and a put of a fresh object reads it back: of several hosts the first one's stays. An
 * object whose life is over is found by EXISTS until somebody replaces it.
 *
 * Thread rule: as the header says.
 */
#include "remote/mooncake_call.h"

#include "base/clock.h"

#include <string.h>

/* A status of the library in our words. */
static kvt_status mooncake_status(int64_t result)
{
    if (result >= 0) return KVT_OK;
    if (result == MOONCAKE_NOT_FOUND || result == MOONCAKE_NOT_READY) return KVT_MISS;
    return result == MOONCAKE_FULL ? KVT_E_SPACE : KVT_E_GONE;
}

/* The slots whose requests have no status yet, as arrays for a call. */
typedef struct mooncake_list {
    const char *keys[MOONCAKE_BATCH];
    void *buffers[MOONCAKE_BATCH];
    size_t bytes[MOONCAKE_BATCH];
    uint32_t slots[MOONCAKE_BATCH];
    uint32_t count;
} mooncake_list;

static void mooncake_list_make(mooncake_call *call, mooncake_list *list)
{
    list->count = 0;
    for (uint32_t i = 0; i < call->count; i++) {
        const mooncake_slot *slot = &call->slots[i];
        if (slot->status != KVT_QUEUED) continue;
        list->keys[list->count] = slot->key;
        list->buffers[list->count] = call->memory + slot->offset;
        list->bytes[list->count] = slot->room;
        list->slots[list->count++] = i;
    }
}

void mooncake_call_fail(mooncake_call *call)
{
    for (uint32_t i = 0; i < call->count; i++)
        if (call->slots[i].status == KVT_QUEUED) call->slots[i].status = KVT_E_GONE;
}

/* Takes the trailer off a value that was read. An object whose life is over is none. */
static void mooncake_take_value(mooncake_call *call, mooncake_slot *slot, uint64_t bytes)
{
    uint64_t until_ns;
    slot->status = KVT_E_CORRUPT;
    if (bytes < MOONCAKE_TRAILER || bytes > slot->room) return;
    slot->value_bytes = bytes - MOONCAKE_TRAILER;
    memcpy(&until_ns, call->memory + slot->offset + slot->value_bytes, sizeof until_ns);
    slot->status = until_ns != 0 && until_ns <= base_calendar_ns() ? KVT_MISS : KVT_OK;
    if (slot->status == KVT_MISS) slot->value_bytes = 0;
}

static void mooncake_get(mooncake_call *call)
{
    mooncake_list list;
    int64_t results[MOONCAKE_BATCH];
    mooncake_list_make(call, &list);
    if (call->library->batch_get_into(call->store, list.keys, list.buffers, list.bytes, list.count,
                                      results) != 0) {
        mooncake_call_fail(call);
        return;
    }
    for (uint32_t i = 0; i < list.count; i++) {
        mooncake_slot *slot = &call->slots[list.slots[i]];
        slot->status = mooncake_status(results[i]);
        if (slot->status == KVT_OK) mooncake_take_value(call, slot, (uint64_t)results[i]);
        if (slot->status != KVT_E_GONE) continue;
        /* A value that is longer than its room fails as a broken node does. */
        const int64_t whole = call->library->get_size(call->store, list.keys[i]);
        if (whole <= (int64_t)slot->room) continue;
        slot->status = KVT_E_SPACE;
        slot->value_bytes = (uint64_t)whole - MOONCAKE_TRAILER;
    }
}

static void mooncake_exists(mooncake_call *call)
{
    mooncake_list list;
    int results[MOONCAKE_BATCH];
    mooncake_list_make(call, &list);
    if (call->library->batch_is_exist(call->store, list.keys, list.count, results) != 0) {
        mooncake_call_fail(call);
        return;
    }
    for (uint32_t i = 0; i < list.count; i++)
        call->slots[list.slots[i]].status = results[i] > 0    ? KVT_OK
                                            : results[i] == 0 ? KVT_MISS
                                                              : KVT_E_GONE;
}

/* Writes the slots without a status. */
static void mooncake_write(mooncake_call *call)
{
    mooncake_list list;
    int results[MOONCAKE_BATCH];
    mooncake_list_make(call, &list);
    if (list.count == 0) return;
    if (call->library->batch_put_from(call->store, list.keys, list.buffers, list.bytes, list.count,
                                      NULL, results) != 0) {
        mooncake_call_fail(call);
        return;
    }
    for (uint32_t i = 0; i < list.count; i++) {
        mooncake_slot *slot = &call->slots[list.slots[i]];
        slot->status = mooncake_status(results[i]);
        if (slot->status == KVT_MISS) slot->status = KVT_E_GONE;
    }
}

/* Reads what is stored under a fresh object's key behind its value. Its bytes without the trailer;
 * SIZE_MAX: nothing that lasts. */
static size_t mooncake_read_back(mooncake_call *call, const mooncake_slot *slot)
{
    const char *key = slot->key;
    void *to = call->memory + slot->offset + slot->room;
    int64_t result = -1;
    mooncake_slot there = {.offset = slot->offset + slot->room, .room = slot->room};
    if (call->library->batch_get_into(call->store, &key, &to, &there.room, 1, &result) != 0 ||
        result < 0)
        return SIZE_MAX;
    mooncake_take_value(call, &there, (uint64_t)result);
    return there.status == KVT_OK ? (size_t)there.value_bytes : SIZE_MAX;
}

/* Puts the objects of which there is none. */
static void mooncake_put_fresh(mooncake_call *call)
{
    mooncake_exists(call);
    for (uint32_t i = 0; i < call->count; i++) {
        mooncake_slot *slot = &call->slots[i];
        const bool there = slot->status == KVT_OK;
        if (slot->status != KVT_OK && slot->status != KVT_MISS) continue;
        slot->status = KVT_QUEUED;
        if (!there) continue;
        /* One of another length cannot be read into this room, and is another's. */
        const int64_t bytes = call->library->get_size(call->store, slot->key);
        if (bytes > (int64_t)slot->room || mooncake_read_back(call, slot) != SIZE_MAX)
            slot->status = KVT_EXISTS;
        else
            (void)call->library->remove(call->store, slot->key, 1);
    }
    bool wrote[MOONCAKE_BATCH];
    for (uint32_t i = 0; i < call->count; i++)
        wrote[i] = call->slots[i].status == KVT_QUEUED;
    mooncake_write(call);
    for (uint32_t i = 0; i < call->count; i++) {
        mooncake_slot *slot = &call->slots[i];
        if (!wrote[i] || slot->status != KVT_OK) continue;
        const char *value = call->memory + slot->offset;
        if (mooncake_read_back(call, slot) != slot->room - MOONCAKE_TRAILER ||
            memcmp(value, value + slot->room, slot->room) != 0)
            slot->status = KVT_EXISTS;
    }
}

/* Puts objects in place of what is there. */
static void mooncake_put(mooncake_call *call)
{
    mooncake_exists(call);
    for (uint32_t i = 0; i < call->count; i++) {
        mooncake_slot *slot = &call->slots[i];
        if (slot->status == KVT_OK) (void)call->library->remove(call->store, slot->key, 1);
        if (slot->status == KVT_OK || slot->status == KVT_MISS) slot->status = KVT_QUEUED;
    }
    mooncake_write(call);
}

/* Copies the value of a PUT, and its trailer, into the thread's memory. */
void mooncake_call_gather(mooncake_call *call, const mooncake_slot *slot)
{
    const remote_request *request = slot->request;
    char *to = call->memory + slot->offset;
    const uint64_t until_ns =
        request->ttl_seconds == 0
            ? 0
            : base_calendar_ns() + request->ttl_seconds * UINT64_C(1000000000);
    for (uint32_t i = 0; i < request->part_count; i++) {
        if (request->parts[i].iov_len != 0)
            memcpy(to, request->parts[i].iov_base, request->parts[i].iov_len);
        to += request->parts[i].iov_len;
    }
    memcpy(to, &until_ns, sizeof until_ns);
}

/* Copies a value that was read into the parts of its GET. */
void mooncake_call_scatter(const mooncake_call *call, const mooncake_slot *slot)
{
    const remote_request *request = slot->request;
    const char *from = call->memory + slot->offset;
    size_t left = (size_t)slot->value_bytes;
    for (uint32_t i = 0; left != 0; i++) {
        const size_t step = request->parts[i].iov_len < left ? request->parts[i].iov_len : left;
        if (step != 0) memcpy(request->parts[i].iov_base, from, step);
        from += step;
        left -= step;
    }
}

size_t mooncake_call_room(const remote_request *request)
{
    if (request->kind != REMOTE_GET && request->kind != REMOTE_PUT) return 0;
    const size_t room = (size_t)remote_parts_bytes(request) + MOONCAKE_TRAILER;
    return request->fresh ? 2 * room : room;
}

void mooncake_call_run(mooncake_call *call)
{
    if (!call->registered)
        call->registered =
            call->library->register_buffer(call->store, call->memory, MOONCAKE_BYTES) == 0;
    if (!call->registered)
        mooncake_call_fail(call);
    else if (call->kind == REMOTE_GET)
        mooncake_get(call);
    else if (call->kind == REMOTE_EXISTS)
        mooncake_exists(call);
    else if (call->kind == REMOTE_DELETE)
        for (uint32_t i = 0; i < call->count; i++)
            call->slots[i].status =
                mooncake_status(call->library->remove(call->store, call->slots[i].key, 1));
    else if (call->fresh)
        mooncake_put_fresh(call);
    else
        mooncake_put(call);
}
