/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_requests.c - gets, puts and deletes of a channel: from a record in the client's memory to
 * a request of the store's queue, and from its completion back.
 *
 * Thread rule: the channel's thread.
 */
#include "serve/server/channel_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Notes that a request no longer names regions. */
static void channel_release_regions(server_channel *channel, uint64_t regions)
{
    server_session *session = channel->session;
    if (regions == 0) return;
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++) {
        if ((regions >> i & 1) == 0) continue;
        assert(session->uses[i] > 0);
        session->uses[i]--;
    }
    pthread_mutex_unlock(&session->lock);
}

static void channel_forget(server_channel *channel, channel_request *one)
{
    assert(one->open && channel->in_flight > 0);
    if (one->memory != NULL) {
        channel_release_regions(channel, one->record.regions);
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
    one->record =
        (wire_record){.bases = (void **)(void *)(memory + copy),
                      .bases_bytes = (uint64_t *)(void *)(memory + copy + bases * sizeof(void *))};
    server_session *session = channel->session;
    wire_region regions[WIRE_REGIONS_MAX + 1];
    regions[WIRE_STAGING] = channel->staging;
    pthread_mutex_lock(&session->lock);
    memcpy(regions, session->regions, sizeof session->regions);
    const kvt_status status = wire_record_read(request->kind, memory, bytes, regions, &one->record);
    for (uint32_t i = 0; status == KVT_OK && i < WIRE_REGIONS_MAX; i++)
        session->uses[i] += one->record.regions >> i & 1;
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
    *one = (channel_request){.request = *request, .batch = channel->batch, .open = true};
    kvt_request *out = &channel->waiting[channel->waiting_count];
    *out = (kvt_request){.struct_size = sizeof *out,
                         .kind = request->kind,
                         .urgency = wire_request_class(request),
                         .key = request->key,
                         .user = place};
    kvt_status status = KVT_OK;
    if (request->kind != WIRE_DELETE) {
        status = channel_read_record(channel, one);
        if (status == KVT_OK) status = channel_fill(one, out);
    }
    if (status == KVT_OK) {
        channel->waiting_count++;
        return KVT_OK;
    }
    channel_forget(channel, one);
    return server_channel_answer(channel, request, status);
}

kvt_status server_channel_submit(server_channel *channel)
{
    const uint32_t count = channel->waiting_count;
    uint64_t batch;
    channel->waiting_count = 0;
    if (count == 0) return KVT_OK;
    const kvt_status refused = kvt_queue_submit(channel->queue, channel->waiting, count, &batch);
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

kvt_status server_channel_cancel(server_channel *channel, uint64_t number)
{
    const uint32_t entries = channel->places.entries;
    uint32_t named = 0;
    kvt_status status = KVT_MISS;
    assert(channel->waiting_count == 0);
    while (named < entries &&
           (!channel->requests[named].open || channel->requests[named].request.number != number))
        named++;
    if (named == entries) return KVT_MISS;
    const uint64_t batch = channel->requests[named].batch;
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
    *moved_out = *moved_out || count > 0;
    return status;
}
