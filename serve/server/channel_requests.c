/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_requests.c - gets, puts and deletes of a channel: from a record in the client's memory to
 * a request of the store's queue, and from its completion back.
 *
 * Thread rule: the channel's thread.
 */
#include "serve/server/channel_internal.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Whether a request may go to the queue. */
static bool channel_admits(server_channel *channel, channel_request *one, bool late)
{
    one->held = !server_channel_admits(channel, one->bytes, late, true);
    return !one->held;
}

/* The bytes of KV that a request moves. */
static uint64_t channel_bytes(server_channel *channel, const channel_request *one)
{
    const kvt_entry *entry = &one->record.entry;
    uint64_t bytes = 0, sum = 0;
    if (one->request.kind != WIRE_PUT)
        return server_channel_view_bytes(channel, &one->request.key, &one->record.view);
    const uint32_t parts = entry->group_count != 0 ? entry->group_count : 1;
    for (uint32_t i = 0; i < parts; i++) {
        const kvt_layout *layout = entry->group_count != 0 ? &entry->groups[i] : &entry->layout;
        if (kvt_layout_bytes(layout, &bytes) == KVT_OK) sum += bytes;
    }
    return sum;
}

static void channel_hold(server_channel *channel, channel_request *one)
{
    const uint32_t class = wire_request_class(&one->request);
    const uint32_t place = (uint32_t)(one - channel->requests);
    if (channel->held[class].count++ == 0)
        channel->held[class].first = place;
    else
        channel->requests[channel->held[class].last].next_held = place;
    channel->held[class].last = place;
}

/* Takes a request out of the list of a class, `before` being the one before it; NULL: it is the
 * first. */
static void channel_unhold(server_channel *channel, uint32_t class, channel_request *before,
                           const channel_request *one)
{
    assert(channel->held[class].count > 0);
    channel->held[class].count--;
    if (before == NULL)
        channel->held[class].first = one->next_held;
    else
        before->next_held = one->next_held;
    if (channel->held[class].last == (uint32_t)(one - channel->requests) && before != NULL)
        channel->held[class].last = (uint32_t)(before - channel->requests);
}

/* Gives a request to the queue with those of its batch. */
static kvt_status channel_join(server_channel *channel, const channel_request *one)
{
    const uint32_t count = channel->waiting_count;
    const channel_request *first = count > 0 ? &channel->requests[channel->waiting[0].user] : NULL;
    if (first != NULL && (first->batch != one->batch || count == CHANNEL_BATCH)) {
        const kvt_status status = server_channel_submit(channel);
        if (status != KVT_OK) return status;
    }
    channel->waiting[channel->waiting_count++] = one->asks;
    return KVT_OK;
}

kvt_status server_channel_release(server_channel *channel, uint64_t *until_ns_out)
{
    const uint64_t now_ns = base_clock_ns();
    kvt_status status = KVT_OK;
    assert(channel->waiting_count == 0);
    *until_ns_out = KVT_NO_DEADLINE;
    for (uint32_t class = 0; class < CHANNEL_CLASSES; class ++) {
        channel_request *before = NULL;
        bool full = server_channel_loads_wait(channel);
        uint32_t place = channel->held[class].first;
        for (uint32_t left = channel->held[class].count; left > 0 && status == KVT_OK; left--) {
            channel_request *one = &channel->requests[place];
            const bool late = one->asks.deadline_ns <= now_ns && one->request.kind != WIRE_DELETE;
            place = one->next_held;
            if ((full && !late) || !channel_admits(channel, one, late)) {
                full = true;
                before = one;
                if (one->asks.deadline_ns < *until_ns_out && one->request.kind != WIRE_DELETE)
                    *until_ns_out = one->asks.deadline_ns;
                continue;
            }
            channel_unhold(channel, class, before, one);
            status = channel_join(channel, one);
        }
    }
    return status == KVT_OK ? server_channel_submit(channel) : status;
}

static void channel_forget(server_channel *channel, channel_request *one)
{
    assert(one->open && channel->in_flight > 0);
    if (!one->held) server_channel_arrives(channel, one->bytes, true);
    if (one->memory != NULL) {
        server_channel_regions_leave(channel, one->record.bases.regions);
        assert(channel->copied_bytes >= one->request.argument_bytes);
        channel->copied_bytes -= one->request.argument_bytes;
        free(one->memory);
        free(one->kept.positions);
    }
    one->open = false;
    one->next_free = channel->first_free;
    channel->first_free = (uint32_t)(one - channel->requests);
    channel->in_flight--;
}

void server_channel_forget_all(server_channel *channel)
{
    for (uint32_t i = 0; i < channel->places.entries; i++)
        if (channel->requests[i].open) channel_forget(channel, &channel->requests[i]);
}

/* Copies a request's record and reads the copy; the regions that it names stay mapped. A client
 * that gives each open request a record of its own never has more in flight than its area holds. */
static kvt_status channel_read_record(server_channel *channel, channel_request *one)
{
    const wire_request *request = &one->request;
    const size_t bytes = request->argument_bytes;
    const size_t bases = wire_record_bases(bytes), copy = (bytes + 7) / 8 * 8;
    if (bytes > channel->places.argument_bytes - channel->copied_bytes) return KVT_E_ARGUMENT;
    uint8_t *memory = malloc(copy + bases * 2 * sizeof(void *) + 8);
    if (memory == NULL) return KVT_E_MEMORY;
    memcpy(memory, channel_record(channel, request), bytes);
    one->record.bases =
        (wire_bases){.at = (void **)(void *)(memory + copy),
                     .bytes = (uint64_t *)(void *)(memory + copy + bases * sizeof(void *))};
    server_session *session = channel->session;
    wire_region regions[WIRE_REGIONS_MAX + 1];
    regions[WIRE_STAGING] = channel->staging;
    pthread_mutex_lock(&session->lock);
    memcpy(regions, session->regions, sizeof session->regions);
    const kvt_status status = wire_record_read(request->kind, memory, bytes, regions, &one->record);
    for (uint32_t i = 0; status == KVT_OK && i < WIRE_REGIONS_MAX; i++)
        session->uses[i] += one->record.bases.regions >> i & 1;
    pthread_mutex_unlock(&session->lock);
    if (status != KVT_OK) {
        free(memory);
        return status;
    }
    channel->copied_bytes += bytes;
    one->memory = memory;
    return KVT_OK;
}

/* Gives a get what it tells how it was served, with as many positions as its record has room for.
 * They are the store's to write: not in the client's memory. */
static kvt_status channel_ask_info(channel_request *one, kvt_request *out)
{
    const wire_get *get = &one->record.get;
    const uint64_t positions = wire_get_positions(get, one->request.argument_bytes);
    if (get->got_bytes == 0) return KVT_OK;
    one->kept = (kvt_kept_tokens){.struct_size = sizeof one->kept, .capacity = positions};
    if (positions > 0) {
        one->kept.positions = malloc(positions * sizeof *one->kept.positions);
        if (one->kept.positions == NULL) return KVT_E_MEMORY;
    }
    one->info = (kvt_get_info){.struct_size = sizeof one->info, .kept = &one->kept};
    out->info = &one->info;
    return KVT_OK;
}

/* Fills the queue's request of a get or a put, whose record has been read. */
static kvt_status channel_fill(channel_request *one, kvt_request *out)
{
    const wire_get *get = &one->record.get;
    out->view = &one->record.view;
    if (one->request.kind == WIRE_PUT) {
        one->record.entry.key = one->request.key;
        out->entry = &one->record.entry;
        out->deadline_ns = one->record.put.deadline_ns;
        return KVT_OK;
    }
    out->deadline_ns = get->deadline_ns;
    out->loss_max = get->loss_max;
    out->first_layer = get->first_layer;
    out->layer_count = get->layer_count;
    return channel_ask_info(one, out);
}

kvt_status server_channel_begin(server_channel *channel, const wire_request *request)
{
    const uint32_t place = channel->first_free;
    channel_request *one = &channel->requests[place];
    assert(place < channel->places.entries && !one->open);
    assert(channel->waiting_count < CHANNEL_BATCH);
    channel->first_free = one->next_free;
    channel->in_flight++;
    *one =
        (channel_request){.request = *request, .batch = channel->batch, .open = true, .held = true};
    one->asks = (kvt_request){.struct_size = sizeof one->asks,
                              .kind = request->kind,
                              .urgency = wire_request_class(request),
                              .key = request->key,
                              .user = place};
    kvt_status status = KVT_OK;
    if (request->kind != WIRE_DELETE) {
        status = channel_read_record(channel, one);
        if (status == KVT_OK) status = channel_fill(one, &one->asks);
    }
    if (status != KVT_OK) {
        channel_forget(channel, one);
        return server_channel_answer(channel, request, status);
    }
    if (request->kind != WIRE_DELETE) one->bytes = channel_bytes(channel, one);
    /* Puts and deletes of a class keep their order. */
    if (channel->held[one->asks.urgency].count > 0 || server_channel_loads_wait(channel) ||
        !channel_admits(channel, one, false))
        channel_hold(channel, one);
    else
        channel->waiting[channel->waiting_count++] = one->asks;
    return KVT_OK;
}

kvt_status server_channel_submit(server_channel *channel)
{
    const uint32_t count = channel->waiting_count;
    uint64_t batch;
    channel->waiting_count = 0;
    if (count == 0) return KVT_OK;
    const kvt_status refused = kvt_queue_submit(channel->queue, channel->waiting, count, &batch);
    channel->helps = true;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        channel_request *one = &channel->requests[channel->waiting[i].user];
        const wire_request request = one->request;
        one->queue_batch = batch;
        if (refused == KVT_OK) continue;
        channel_forget(channel, one);
        status = server_channel_answer(channel, &request, refused);
    }
    return status;
}

/* Answers what is held of a batch that is called off. KVT_OK; KVT_MISS: nothing is; KVT_E_CORRUPT.
 */
static kvt_status channel_drop_held(server_channel *channel, uint64_t batch)
{
    kvt_status status = KVT_MISS;
    for (uint32_t class = 0; class < CHANNEL_CLASSES; class ++) {
        channel_request *before = NULL;
        uint32_t place = channel->held[class].first;
        for (uint32_t left = channel->held[class].count; left > 0; left--) {
            channel_request *one = &channel->requests[place];
            const wire_request request = one->request;
            place = one->next_held;
            if (one->batch != batch) {
                before = one;
                continue;
            }
            channel_unhold(channel, class, before, one);
            channel_forget(channel, one);
            status = server_channel_answer(channel, &request, KVT_E_CANCELLED);
            if (status != KVT_OK) return status;
        }
    }
    return status;
}

kvt_status server_channel_cancel(server_channel *channel, uint64_t number)
{
    const uint32_t entries = channel->places.entries;
    uint32_t named = 0;
    assert(channel->waiting_count == 0);
    while (named < entries &&
           (!channel->requests[named].open || channel->requests[named].request.number != number))
        named++;
    if (named == entries) return KVT_MISS;
    const uint64_t batch = channel->requests[named].batch;
    kvt_status status = channel_drop_held(channel, batch);
    if (status == KVT_E_CORRUPT) return status;
    /* The queue has the client's batch in parts, whose numbers ascend. */
    for (uint64_t last = 0, next;; last = next) {
        next = UINT64_MAX;
        for (uint32_t i = 0; i < entries; i++) {
            const channel_request *one = &channel->requests[i];
            if (one->open && one->batch == batch && one->queue_batch > last &&
                one->queue_batch < next)
                next = one->queue_batch;
        }
        if (next == UINT64_MAX) return status;
        if (kvt_queue_cancel(channel->queue, next) == KVT_OK) status = KVT_OK;
    }
}

/* Posts what became of a request. */
static kvt_status channel_tell(server_channel *channel, channel_request *one,
                               const kvt_completion *done)
{
    wire_completion tells = {.number = one->request.number,
                             .status = done->status,
                             .kind = one->request.kind,
                             .tier = (uint8_t)done->tier,
                             .flags = (uint8_t)((done->timed_out ? WIRE_TIMED_OUT : 0) |
                                                (done->refused_loss ? WIRE_REFUSED_LOSS : 0) |
                                                (done->refused_tokens ? WIRE_REFUSED_TOKENS : 0)),
                             .variant = done->variant,
                             .stored_bytes = done->stored_bytes,
                             .elapsed_ns = done->elapsed_ns};
    if (done->status == KVT_OK && one->info.struct_size != 0) {
        assert((uint64_t)one->kept.sets * one->kept.count <= one->kept.capacity);
        tells.answer_bytes = (uint32_t)wire_got_write(&one->record.get, &one->info,
                                                      channel_record(channel, &one->request));
        assert(tells.answer_bytes <= one->request.argument_bytes);
    }
    channel_forget(channel, one);
    return server_channel_post(channel, &tells);
}

kvt_status server_channel_drain(server_channel *channel, bool *moved_out)
{
    kvt_completion done[CHANNEL_BATCH];
    done[0].struct_size = sizeof done[0];
    const size_t count = kvt_queue_drain(channel->queue, done, CHANNEL_BATCH);
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++)
        status = channel_tell(channel, &channel->requests[done[i].user], &done[i]);
    channel->helps = channel->helps || count > 0; /* what is left of their batch */
    *moved_out = *moved_out || count > 0;
    return status;
}
