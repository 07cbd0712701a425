/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_loads.c - layered loads of a channel: they are begun by records that come in parts, tell
 * how far they are by a state in the channel's area, and end by a request or with their channel.
 *
 *     made -> waits -> begun -> ended    waits: for the session's share (channel_share.c)
 *         \---------------------> ended    records lack, or the store has nothing to load
 *
 * Thread rule: the channel's thread, but for load_announced, which the store's threads call: it
 * wakes that thread.
 */
#include "serve/server/channel_internal.h"
#include "serve/wire/load_records.h"

#include "base/clock.h"

#include <assert.h>
#include <kvterrace/load.h>
#include <kvterrace/names.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a channel. */
#define LOADS_MAX      64u
#define LOADS_BYTES    SERVER_AREA_BYTES /* of the records of those that are open */
#define LOADS_CHECK_MS 100               /* between two looks whether a load's devices answer */
#define LOADS_AHEAD    2u                /* as kvt_load_options says of 0 */

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
    bool waits;                /* for room; its entries are all there */
    uint64_t bytes;            /* of all entries' KV, or a guess */
    uint64_t flight;           /* of them in flight */
    bool reads;                /* it counts among what the channel has begun */
    atomic_bool empty;
};

/* ---- parts ---- */

static void load_free(channel_load *one)
{
    assert(one->load == NULL);
    if (one->reads) server_channel_arrives(one->channel, one->flight, true);
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

/* ---- what is in flight ---- */

/* Layers that the store may bring, when so many are released. */
static uint64_t load_window(const channel_load *one, uint32_t total, uint32_t released)
{
    const uint32_t ahead = one->asked.layers_ahead != 0 ? one->asked.layers_ahead : LOADS_AHEAD;
    const uint64_t most = (uint64_t)released + ahead + 1;
    return most < total ? most : total;
}

/* Counts what has come. Where other hosts are asked no layer is known, and all stays in flight. */
static void load_arrives(channel_load *one)
{
    const uint32_t total = kvt_load_total(one->load, NULL);
    const uint64_t window = load_window(one, total, one->released);
    const uint32_t layers = kvt_load_layers(one->load);
    uint64_t flight = one->flight;
    if (!one->reads) return;
    if (total != 0) flight = layers < window ? one->bytes * (window - layers) / total : 0;
    /* Nothing is read for it any more. */
    if (atomic_load(&one->empty) || base_clock_ns() >= one->asked.deadline_ns) flight = 0;
    if (flight >= one->flight && flight != 0) return;
    one->reads = flight != 0;
    server_channel_arrives(one->channel, one->flight - flight, !one->reads);
    one->flight = flight;
}

/* Whether so many released layers may be passed on, and counts what they let come. */
static bool load_may_release(channel_load *one, uint32_t released)
{
    const uint32_t total = kvt_load_total(one->load, NULL);
    const uint64_t more =
        load_window(one, total, released) - load_window(one, total, one->released);
    if (more == 0) return true;
    const uint64_t bytes = one->bytes * more / total;
    if (!server_channel_admits(one->channel, bytes, false, !one->reads)) return false;
    one->flight += bytes;
    one->reads = true;
    return true;
}

/* Whether a load may begin to read its first window. The layers of its first entry, if it is stored
 * and has no groups, say how much that is; else it counts whole. */
static bool load_may_begin(channel_load *one)
{
    kvt_description first = {.struct_size = sizeof first};
    uint64_t bytes = one->bytes;
    const kvt_status status =
        kvt_store_describe(one->channel->session->lends->store, &one->keys[0], &first);
    if (status == KVT_OK && first.group_count == 0 && first.layout.layers != 0)
        bytes = bytes * load_window(one, first.layout.layers, 0) / first.layout.layers;
    if (!server_channel_admits(one->channel, bytes, false, true)) return false;
    one->flight = bytes;
    one->reads = true;
    return true;
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

/* Begins a load whose entries are all there. What kvt_load_begin says. */
static kvt_status load_begin(channel_load *one)
{
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .layers_ahead = one->asked.layers_ahead,
                                      .coarse_planes = one->asked.coarse_planes,
                                      .deadline_ns = one->asked.deadline_ns,
                                      .loss_max = one->asked.loss_max,
                                      .pass = server_channel_pass(one->channel, one->asked.pass),
                                      .announced = load_announced,
                                      .announced_context = one};
    const kvt_status status = kvt_load_begin(one->channel->queue, one->keys, one->views,
                                             one->asked.count, &options, &one->load);
    if (status == KVT_OK) load_tell(one);
    return status;
}

/* Says of a load that has waited that none of its entries comes, and why. */
static void load_tell_none(channel_load *one, kvt_status status)
{
    for (uint32_t i = 0; i < one->asked.count; i++)
        atomic_store(&wire_load_statuses(one->state)[i], (int8_t)status);
    atomic_store(&one->state->flags, WIRE_LOAD_EMPTY);
    one->whole = true;
    one->channel->posted = true;
    server_channel_arrives(one->channel, one->flight, true);
    one->flight = 0;
    one->reads = false;
}

/* The load that has waited longest; NULL: none waits. */
static channel_load *load_next(const server_channel *channel)
{
    channel_load *first = NULL;
    for (channel_load *one = channel->loads; one != NULL; one = one->next)
        if (one->waits && (first == NULL || one->number < first->number)) first = one;
    return first;
}

bool server_channel_loads_wait(const server_channel *channel)
{
    return load_next(channel) != NULL;
}

/* Begins loads that have waited, as far as there is room, in their order. True: there was one. */
static bool loads_start(server_channel *channel)
{
    bool moved = false;
    for (channel_load *one = load_next(channel); one != NULL && load_may_begin(one);
         one = load_next(channel)) {
        one->waits = false;
        const kvt_status status = load_begin(one);
        if (status != KVT_OK) load_tell_none(one, status);
        moved = true;
    }
    return moved;
}

bool server_channel_loads_turn(server_channel *channel)
{
    bool moved = false;
    for (channel_load *one = channel->loads; one != NULL; one = one->next) {
        if (one->load == NULL) continue;
        load_arrives(one);
        const uint32_t released = atomic_load(&one->state->released);
        if (released > one->released && load_may_release(one, released)) {
            one->released = released;
            kvt_load_release(one->load, released);
            moved = true;
        }
        if (one->whole) continue;
        if (kvt_load_layers(one->load) == one->layers && !atomic_load(&one->empty)) continue;
        load_tell(one);
        moved = true;
    }
    return loads_start(channel) || moved;
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

/* Begins a load whose entries have all come, or has it wait for its turn. What kvt_load_begin says.
 */
static kvt_status load_complete(channel_load *one)
{
    if (one->filled != one->asked.count) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < one->asked.count; i++)
        one->bytes += server_channel_view_bytes(one->channel, &one->keys[i], one->views[i]);
    if (!server_channel_loads_wait(one->channel) && load_may_begin(one)) return load_begin(one);
    one->waits = true;
    /* Its deadline counts from now on. */
    atomic_store(&one->state->flags, WIRE_LOAD_READS);
    return KVT_OK;
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
    if (one == NULL || one->filled == one->asked.count || head.count != one->asked.count)
        return KVT_E_ARGUMENT;
    status = load_take_part(one, record, bytes, &head);
    if (status == KVT_OK && (head.flags & WIRE_LOAD_MORE) == 0) status = load_complete(one);
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
