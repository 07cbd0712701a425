/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_loads.c - layered loads of a channel: they are begun by records that come in parts, tell
 * how far they are by a state in the channel's area, and end by a request or with their channel.
 *
 *     made -> begun -> ended
 *         \-> ended       records lack, or the store has nothing to load
 *
 * Thread rule: the channel's thread, but for load_announced, which the store's threads call: it
 * wakes that thread.
 */
#include "serve/server/channel_internal.h"
#include "serve/wire/load_records.h"

#include "base/clock.h"

#include <assert.h>
#include <kvterrace/load.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a channel. */
#define LOADS_MAX      64u
#define LOADS_BYTES    SERVER_AREA_BYTES /* of the records of those that are open */
#define LOADS_CHECK_MS 100               /* between two looks whether a load's devices answer */

/* One record of a load, and what was made of it. */
typedef struct load_part {
    struct load_part *next;
    size_t bytes;
    wire_load_room room;
} load_part;

struct channel_load {
    struct channel_load *next;
    server_channel *channel;
    uint64_t number;
    kvt_load *load; /* NULL: not begun */
    wire_load asked;
    wire_load_state *state; /* in the client's memory: written, but for `released` */
    kvt_key *keys;
    const kvt_view **views;
    uint32_t filled; /* entries that have come */
    load_part *parts;
    uint64_t regions;          /* bits of those that it names */
    uint32_t released, layers; /* as the store was told, and as the client was */
    bool whole;                /* nothing more comes of it */
    atomic_bool empty;
};

/* ---- parts ---- */

static void load_free(channel_load *one)
{
    assert(one->load == NULL);
    server_channel_regions_leave(one->channel, one->regions);
    while (one->parts != NULL) {
        load_part *part = one->parts;
        one->parts = part->next;
        assert(one->channel->load_bytes >= part->bytes);
        one->channel->load_bytes -= part->bytes;
        free(part);
    }
    free(one->keys);
    free((void *)one->views);
    free(one);
}

/* Where the memory of a part's arrays lies, behind its head and the record's copy. */
static load_part *part_make(channel_load *one, size_t bytes)
{
    const size_t copy = (bytes + 7) / 8 * 8, bases = wire_record_bases(bytes);
    const size_t views = wire_load_views(bytes);
    uint8_t *memory = calloc(1, sizeof(load_part) + copy + bases * 2 * sizeof(void *) +
                                    views * (sizeof(kvt_view) + sizeof(kvt_view *)));
    if (memory == NULL) return NULL;
    load_part *part = (load_part *)(void *)memory;
    uint8_t *at = memory + sizeof *part + copy;
    part->bytes = bytes;
    part->room.keys = one->keys + one->filled;
    part->room.pointers = one->views + one->filled;
    part->room.views = (kvt_view *)(void *)at;
    at += views * sizeof(kvt_view);
    part->room.group_views = (const kvt_view **)(void *)at;
    at += views * sizeof(kvt_view *);
    part->room.bases.at = (void **)(void *)at;
    part->room.bases.bytes = (uint64_t *)(void *)(at + bases * sizeof(void *));
    return part;
}

/* Takes the entries of a record, whose head has been read; its regions stay mapped. */
static kvt_status load_take_part(channel_load *one, const void *record, size_t bytes,
                                 const wire_load *head)
{
    server_channel *channel = one->channel;
    if (head->part > one->asked.count - one->filled) return KVT_E_ARGUMENT;
    if (bytes > LOADS_BYTES - channel->load_bytes) return KVT_E_MEMORY;
    load_part *part = part_make(one, bytes);
    if (part == NULL) return KVT_E_MEMORY;
    part->next = one->parts;
    one->parts = part;
    channel->load_bytes += bytes;
    memcpy(part + 1, record, bytes);
    server_session *session = channel->session;
    wire_region regions[WIRE_REGIONS_MAX + 1];
    regions[WIRE_STAGING] = channel->staging;
    pthread_mutex_lock(&session->lock);
    memcpy(regions, session->regions, sizeof session->regions);
    const kvt_status status = wire_load_entries_read(part + 1, bytes, head, regions, &part->room);
    const uint64_t fresh = status == KVT_OK ? part->room.bases.regions & ~one->regions : 0;
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++)
        session->uses[i] += fresh >> i & 1;
    pthread_mutex_unlock(&session->lock);
    one->regions |= fresh;
    one->filled += head->part;
    return status;
}

/* ---- how far it is ---- */

/* Called by any thread of the store. */
static void load_announced(void *context, uint32_t layers)
{
    channel_load *one = context;
    if (layers == 0) atomic_store(&one->empty, true);
    server_channel_nudge(one->channel);
}

/* Writes what the client is to know: statuses before the layers that they belong to. */
static void load_tell(channel_load *one)
{
    wire_load_state *state = one->state;
    _Atomic int8_t *statuses = wire_load_statuses(state);
    bool reads;
    const uint32_t layers = kvt_load_layers(one->load);
    const uint32_t total = kvt_load_total(one->load, &reads);
    const bool empty = atomic_load(&one->empty);
    for (uint32_t i = 0; i < one->asked.count; i++)
        atomic_store_explicit(&statuses[i], (int8_t)kvt_load_status(one->load, i),
                              memory_order_relaxed);
    atomic_store(&state->flags, (reads ? WIRE_LOAD_READS : 0) | (empty ? WIRE_LOAD_EMPTY : 0));
    atomic_store(&state->total, total);
    atomic_store(&state->layers, layers);
    one->whole = empty || (total != 0 && layers == total);
    one->layers = layers;
    one->channel->posted = true; /* whoever sleeps at the bell looks at the state */
}

bool server_channel_loads_turn(server_channel *channel)
{
    bool moved = false;
    for (channel_load *one = channel->loads; one != NULL; one = one->next) {
        if (one->load == NULL) continue;
        const uint32_t released = atomic_load(&one->state->released);
        if (released > one->released) {
            one->released = released;
            kvt_load_release(one->load, released);
            moved = true;
        }
        if (one->whole) continue;
        if (kvt_load_layers(one->load) == one->layers && !atomic_load(&one->empty)) continue;
        load_tell(one);
        moved = true;
    }
    return moved;
}

int server_channel_loads_pause(const server_channel *channel)
{
    for (const channel_load *one = channel->loads; one != NULL; one = one->next)
        if (one->load != NULL && !one->whole) return LOADS_CHECK_MS;
    return -1;
}

void server_channel_loads_check(server_channel *channel)
{
    for (channel_load *one = channel->loads; one != NULL; one = one->next) {
        if (one->load == NULL || one->whole) continue;
        /* A wait looks whether devices answer. */
        const kvt_status status = kvt_load_wait(one->load, one->layers + 1, 0);
        (void)status;
    }
}

/* ---- begin and end ---- */

/* The pointer to a load of a channel, or to the NULL at the end. */
static channel_load **load_find(server_channel *channel, uint64_t number)
{
    channel_load **at = &channel->loads;
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

/* Takes a load out of its channel's list. */
static channel_load *load_take(server_channel *channel, channel_load **at)
{
    channel_load *one = *at;
    *at = one->next;
    assert(channel->load_count > 0);
    channel->load_count--;
    return one;
}

/* Makes a load of which no entry has come. KVT_OK; KVT_BUSY; KVT_E_MEMORY. */
static kvt_status load_make(server_channel *channel, const wire_load *asked)
{
    if (channel->load_count == LOADS_MAX) return KVT_BUSY;
    channel_load *one = calloc(1, sizeof *one);
    if (one == NULL) return KVT_E_MEMORY;
    one->channel = channel;
    one->asked = *asked;
    one->state =
        (wire_load_state *)(void *)(channel->area + channel->places.arguments + asked->state);
    one->keys = calloc(asked->count, sizeof *one->keys);
    one->views = (const kvt_view **)calloc(asked->count, sizeof *one->views);
    if (one->keys == NULL || one->views == NULL) {
        load_free(one);
        return KVT_E_MEMORY;
    }
    one->number = ++channel->load_last;
    one->next = channel->loads;
    channel->loads = one;
    channel->load_count++;
    return KVT_OK;
}

/* Begins a load whose entries are all there. What kvt_load_begin says. */
static kvt_status load_begin(channel_load *one)
{
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .layers_ahead = one->asked.layers_ahead,
                                      .deadline_ns = one->asked.deadline_ns,
                                      .loss_max = one->asked.loss_max,
                                      .pass = server_channel_pass(one->channel, one->asked.pass),
                                      .announced = load_announced,
                                      .announced_context = one};
    if (one->filled != one->asked.count) return KVT_E_ARGUMENT;
    const kvt_status status = kvt_load_begin(one->channel->queue, one->keys, one->views,
                                             one->asked.count, &options, &one->load);
    if (status == KVT_OK) load_tell(one);
    return status;
}

kvt_status server_channel_load_begin(server_channel *channel, const void *record, size_t bytes,
                                     uint64_t *number_out)
{
    wire_load head;
    kvt_status status = wire_load_read(record, bytes, channel->places.argument_bytes, &head);
    if (status != KVT_OK) return status;
    channel_load **at = &channel->loads;
    if (head.load == 0)
        status = load_make(channel, &head);
    else
        at = load_find(channel, head.load);
    if (status != KVT_OK) return status;
    channel_load *one = *at;
    if (one == NULL || one->load != NULL || head.count != one->asked.count) return KVT_E_ARGUMENT;
    status = load_take_part(one, record, bytes, &head);
    if (status == KVT_OK && (head.flags & WIRE_LOAD_MORE) == 0) status = load_begin(one);
    *number_out = one->number;
    /* One that cannot begin is no load any more. */
    if (status != KVT_OK) load_free(load_take(channel, at));
    return status;
}

kvt_status server_channel_load_end(server_channel *channel, uint64_t number, uint64_t *read_out,
                                   uint64_t *shared_out)
{
    channel_load **at = load_find(channel, number);
    if (*at == NULL) return KVT_MISS;
    channel_load *one = load_take(channel, at);
    kvt_load_result result = {.struct_size = sizeof result};
    kvt_status *statuses = calloc(one->asked.count, sizeof *statuses);
    const kvt_status status = kvt_load_end(one->load, statuses, &result);
    assert(status == KVT_OK);
    (void)status;
    for (uint32_t i = 0; one->load != NULL && i < one->asked.count; i++)
        atomic_store(&wire_load_statuses(one->state)[i],
                     (int8_t)(statuses != NULL ? statuses[i] : KVT_E_MEMORY));
    if (one->load != NULL) atomic_store(&one->state->layers, result.layers);
    *read_out = result.bytes_read;
    *shared_out = result.bytes_shared;
    one->load = NULL;
    free(statuses);
    load_free(one);
    return KVT_OK;
}

void server_channel_loads_end(server_channel *channel)
{
    while (channel->loads != NULL) {
        channel_load *one = load_take(channel, &channel->loads);
        const kvt_status status = kvt_load_end(one->load, NULL, NULL);
        (void)status;
        one->load = NULL;
        load_free(one);
    }
}
