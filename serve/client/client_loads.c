/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_loads.c - layered loads of a connected queue, into views that lie in regions, where the
 * server decodes: begin, wait, end.
 *
 * Thread rule: as load.h; kvt_load_layers and kvt_load_release take no lock.
 */
#include "serve/client/client_load_state.h"
#include "serve/client/client_transfer.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "base/wait.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LOADS_AHEAD_MAX     64u
#define LOADS_COARSE_MAX    4u
#define LOADS_OPTIONS_LEAST STRUCT_SIZE_THROUGH(kvt_load_options, announced_context)
#define LOADS_RESULT_LEAST  STRUCT_SIZE_THROUGH(kvt_load_result, bytes_shared)
#define LOADS_VIEW_LEAST    STRUCT_SIZE_THROUGH(kvt_view, reserved)

static client_load *load_of(const kvt_load *handle)
{
    return (client_load *)(uintptr_t)handle;
}

/* ---- begin ---- */

/* A load on its way to the server. */
typedef struct load_way {
    client_load *load;
    const kvt_key *keys;
    const kvt_view **views; /* of all entries, those of groups one by one */
    kvt_view *copies;
    uint32_t *group_counts;
    uint64_t pass;               /* that the caller names */
    uint64_t number;             /* at the server; 0: it has none of it */
    size_t sent, sent_views;     /* entries, and their views, that the server has */
    size_t posted, posted_views; /* the same with those of the record that is made */
} load_way;

static void way_free(load_way *way)
{
    free((void *)way->views);
    free(way->copies);
    free(way->group_counts);
}

/* Takes one view in. */
static kvt_status way_take_view(load_way *way, size_t at, const kvt_view *view)
{
    way->copies[at] = (kvt_view){.struct_size = sizeof(kvt_view)};
    if (view == NULL) return KVT_E_ARGUMENT;
    way->views[at] = struct_size_in(view, &way->copies[at], sizeof(kvt_view), LOADS_VIEW_LEAST);
    if (way->views[at] == NULL || way->views[at]->bases_kind == KVT_BASES_GROUPS)
        return KVT_E_ARGUMENT;
    return way->views[at]->memory == KVT_MEMORY_HOST ? KVT_OK : KVT_E_UNSUPPORTED;
}

/* Takes the views of all entries in. KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED; KVT_E_MEMORY. */
static kvt_status way_take_views(load_way *way, const kvt_view *const *views, size_t count)
{
    size_t all = 0;
    way->group_counts = calloc(count, sizeof *way->group_counts);
    if (way->group_counts == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const kvt_view *view = views[i];
        if (view == NULL || !struct_size_is_sound(view, LOADS_VIEW_LEAST)) return KVT_E_ARGUMENT;
        if (view->bases_kind == KVT_BASES_GROUPS) {
            if (view->groups == NULL || view->group_count == 0 ||
                view->group_count > KVT_GROUPS_MAX)
                return KVT_E_ARGUMENT;
            way->group_counts[i] = view->group_count;
        }
        all += way->group_counts[i] != 0 ? way->group_counts[i] : 1;
    }
    way->views = (const kvt_view **)calloc(all, sizeof *way->views);
    way->copies = calloc(all, sizeof *way->copies);
    if (way->views == NULL || way->copies == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    size_t at = 0;
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        if (way->group_counts[i] == 0) status = way_take_view(way, at++, views[i]);
        for (uint32_t k = 0; k < way->group_counts[i] && status == KVT_OK; k++)
            status = way_take_view(way, at++, views[i]->groups[k]);
    }
    return status;
}

static size_t way_entry_bytes(const load_way *way, size_t entry, size_t view)
{
    size_t bytes = sizeof(wire_load_entry);
    for (uint32_t k = 0; k == 0 || k < way->group_counts[entry]; k++)
        bytes += wire_view_bytes(way->views[view + k], wire_view_bases(way->views[view + k]));
    return bytes;
}

static size_t way_views(const load_way *way, size_t entry)
{
    return way->group_counts[entry] != 0 ? way->group_counts[entry] : 1;
}

/* Looks whether all entries can go: their views lie in regions, and each fits into a record. Under
 * the lock. KVT_OK; KVT_E_UNSUPPORTED; KVT_E_SPACE. */
static kvt_status way_check(const load_way *way, const client_channel *channel, size_t capacity)
{
    size_t view = 0;
    way->load->regions = 0;
    for (size_t i = 0; i < way->load->count; i++) {
        for (size_t end = view + way_views(way, i), k = view; k < end; k++)
            if (!client_view_is_direct(channel, way->views[k], &way->load->regions))
                return KVT_E_UNSUPPORTED;
        if (way_entry_bytes(way, i, view) > capacity - sizeof(wire_load)) return KVT_E_SPACE;
        view += way_views(way, i);
    }
    return KVT_OK;
}

/* Makes the record of as many entries as one takes. Under the lock. */
static kvt_status way_write(load_way *way, client_channel *channel, client_request *request,
                            size_t capacity)
{
    client_load *load = way->load;
    size_t bytes = sizeof(wire_load), entry = way->sent, view = way->sent_views;
    while (entry < load->count) {
        const size_t more = way_entry_bytes(way, entry, view);
        if (more > capacity - bytes) break;
        bytes += more;
        view += way_views(way, entry++);
    }
    kvt_status status = client_request_room(channel, request, bytes, 0);
    if (status != KVT_OK) return status;
    load->asked.flags = entry < load->count ? WIRE_LOAD_MORE : 0;
    load->asked.load = way->number;
    load->asked.pass = atomic_load(&channel->store->takes_passes) ? way->pass : 0;
    way->posted = entry;
    uint8_t *record = client_record_of(request);
    size_t at = wire_load_write(&load->asked, record);
    entry = way->sent;
    view = way->sent_views;
    for (; entry < way->posted && status == KVT_OK; view += way_views(way, entry++))
        status = wire_load_add(record, bytes, &way->keys[entry], &way->views[view],
                               way->group_counts[entry], channel->regions, &at);
    way->posted_views = view;
    request->body.argument_bytes = (uint32_t)bytes;
    if (status != KVT_OK) client_request_free(channel, request);
    return status;
}

/* Makes the next record of a load ready. KVT_E_STATE: the server that has a part of it is gone. */
static kvt_status way_ready(client_channel *channel, client_request *request, void *context)
{
    load_way *way = context;
    client_load *load = way->load;
    client_area *area = channel->area;
    if (area == NULL) return way->number != 0 ? KVT_E_STATE : KVT_E_GONE;
    if (way->number != 0 && load->room.area != area) return KVT_E_STATE;
    uint64_t capacity = area->places.argument_bytes / 2;
    const uint64_t most = atomic_load(&channel->store->record_bytes);
    if (capacity > most) capacity = most;
    if (capacity < sizeof(wire_load)) return KVT_E_SPACE;
    if (way->number == 0) {
        const kvt_status status = way_check(way, channel, capacity);
        if (status != KVT_OK) return status;
    }
    if (load->room.area != area) {
        client_request_free(channel, &load->room);
        const kvt_status status = client_request_room(
            channel, &load->room, wire_load_state_bytes((uint32_t)load->count), 0);
        if (status != KVT_OK) return status;
        load->state = client_record_of(&load->room);
        memset(load->state, 0, sizeof *load->state);
        memset(load->state + 1, KVT_QUEUED, load->count);
        load->asked.state = load->room.record_at;
    }
    return way_write(way, channel, request, capacity);
}

/* Sends all records of a load. KVT_OK: the server has begun it. */
static kvt_status way_go(load_way *way, client_channel *channel)
{
    client_load *load = way->load;
    kvt_status status = KVT_OK;
    while (way->sent < load->count && status == KVT_OK) {
        client_request request = {.body.kind = WIRE_LOAD_BEGIN};
        status = client_call_do(channel, &request, way_ready, way, KVT_NO_DEADLINE);
        pthread_mutex_lock(&channel->lock);
        if (status == KVT_OK) status = request.done.status;
        if (status == KVT_OK) {
            way->number = request.done.answer;
            way->sent = way->posted;
            way->sent_views = way->posted_views;
        }
        client_request_free(channel, &request);
        load->begun = status == KVT_OK && way->sent == load->count && load->room.area != NULL;
        if (load->begun && load->room.area != channel->area) client_load_settle(load);
        pthread_mutex_unlock(&channel->lock);
    }
    load->asked.load = way->number;
    return status == KVT_E_GONE || status == KVT_E_STATE ? KVT_MISS : status;
}

static void load_unlist(client_load *load)
{
    client_load **at = &load->channel->loads;
    while (*at != load)
        at = &(*at)->next;
    *at = load->next;
}

static void load_free(client_load *load)
{
    free(load->statuses);
    free(load);
}

static const base_load_calls client_load_calls;

static client_load *load_make(client_channel *channel, const kvt_load_options *options,
                              size_t count)
{
    client_load *load = calloc(1, sizeof *load);
    int8_t *statuses = load != NULL ? malloc(count) : NULL;
    if (statuses == NULL) {
        free(load);
        return NULL;
    }
    memset(statuses, KVT_QUEUED, count);
    *load = (client_load){.elsewhere = &client_load_calls,
                          .forks = channel->store->forks,
                          .channel = channel,
                          .statuses = statuses,
                          .count = count,
                          .announced = options->announced,
                          .announced_context = options->announced_context,
                          .asked = {.count = (uint32_t)count,
                                    .layers_ahead = options->layers_ahead,
                                    .coarse_planes = options->coarse_planes,
                                    .deadline_ns = options->deadline_ns,
                                    .loss_max = options->loss_max}};
    return load;
}

/* KVT_E_STATE: the server that has the load is gone. */
static kvt_status end_ready(client_channel *channel, client_request *request, void *context)
{
    const client_load *load = context;
    (void)request;
    return load->room.area == channel->area ? KVT_OK : KVT_E_STATE;
}

/* Has the server forget what it has of a load that did not begin. */
static void way_drop(const load_way *way, client_channel *channel)
{
    client_request request = {.body = {.kind = WIRE_LOAD_END, .argument = way->number}};
    if (way->number == 0) return;
    (void)!client_call_do(channel, &request, end_ready, way->load, KVT_NO_DEADLINE);
}

kvt_status client_load_begin(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, const kvt_load_options *options, kvt_load **load_out)
{
    client_channel *channel = client_queue_channel(queue);
    client_store *store;
    kvt_load_options whole = {.struct_size = sizeof whole, .deadline_ns = KVT_NO_DEADLINE};
    kvt_status status = client_enter((kvt_store *)(void *)channel->store, &store);
    if (status != KVT_OK) return status;
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole, LOADS_OPTIONS_LEAST);
    if (keys == NULL || views == NULL || load_out == NULL || options == NULL) return KVT_E_ARGUMENT;
    if (count == 0 || count > WIRE_LOAD_ENTRIES || options->layers_ahead > LOADS_AHEAD_MAX ||
        !(options->loss_max <= 1) || options->coarse_planes > LOADS_COARSE_MAX ||
        options->as_stored != 0)
        return KVT_E_ARGUMENT;
    load_way way = {.keys = keys, .pass = options->pass};
    status = way_take_views(&way, views, count);
    if (status == KVT_OK) {
        way.load = load_make(channel, options, count);
        if (way.load == NULL) status = KVT_E_MEMORY;
    }
    if (status != KVT_OK) {
        way_free(&way);
        return status;
    }
    client_load *load = way.load;
    pthread_mutex_lock(&channel->lock);
    load->next = channel->loads;
    channel->loads = load;
    pthread_mutex_unlock(&channel->lock);
    status = way_go(&way, channel);
    if (status != KVT_OK && status != KVT_MISS) way_drop(&way, channel);
    way_free(&way);
    pthread_mutex_lock(&channel->lock);
    if (status != KVT_OK) {
        load_unlist(load);
        client_request_free(channel, &load->room);
    }
    client_queue_rearm(channel);
    pthread_mutex_unlock(&channel->lock);
    if (status == KVT_OK)
        *load_out = (kvt_load *)(void *)load;
    else
        load_free(load);
    return status;
}

void client_loads_leave(client_channel *channel)
{
    while (channel->loads != NULL) {
        client_load *load = channel->loads;
        channel->loads = load->next;
        assert(load->lost && !load->calling);
        client_request_free(channel, &load->room);
        load->channel = NULL;
    }
}

/* ---- layers, wait, release, status ---- */

static uint32_t load_layers(const kvt_load *handle)
{
    const client_load *load = load_of(handle);
    if (!fork_guard_is_current(load->forks)) return 0;
    const uint32_t known = atomic_load(&load->complete);
    if (atomic_load(&load->lost)) return known;
    const uint32_t layers = atomic_load(&load->state->layers);
    const bool sound = layers >= known && layers <= atomic_load(&load->state->total);
    return sound ? layers : known;
}

static uint32_t load_total(kvt_load *handle, bool *reads_out)
{
    client_load *load = load_of(handle);
    if (!fork_guard_is_current(load->forks)) return 0;
    if (load->channel != NULL) pthread_mutex_lock(&load->channel->lock);
    bool moved = false;
    (void)!client_load_take(load, &moved);
    const uint32_t total = load->total;
    if (reads_out != NULL) *reads_out = load->reads;
    if (load->channel != NULL) pthread_mutex_unlock(&load->channel->lock);
    return total;
}

/* Whether a wait is over, and how. Under the lock, if there is one. */
static kvt_status load_wait_status(const client_load *load, uint32_t layers)
{
    if (load->complete >= layers) return KVT_OK;
    if (load->channel == NULL) return KVT_E_STATE;
    if (load->lost) return load->channel->store->closed ? KVT_E_STATE : KVT_MISS;
    if (load->empty) return KVT_MISS;
    return load->total != 0 && layers > load->total ? KVT_E_ARGUMENT : KVT_QUEUED;
}

static kvt_status load_wait(kvt_load *handle, uint32_t layers, uint64_t deadline_ns)
{
    client_load *load = load_of(handle);
    client_channel *channel = load->channel;
    kvt_status status;
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    if (channel == NULL) return load_wait_status(load, layers);
    pthread_mutex_lock(&channel->lock);
    for (;;) {
        (void)client_channel_take(channel);
        client_loads_announce(channel);
        status = load_wait_status(load, layers);
        if (status != KVT_QUEUED) break;
        const bool own = load->reads && load->asked.deadline_ns < deadline_ns;
        const uint64_t until_ns = own ? load->asked.deadline_ns : deadline_ns;
        if (base_clock_ns() >= until_ns) {
            status = KVT_E_TIMEOUT;
            break;
        }
        status = client_channel_wait(channel, until_ns);
        (void)status; /* the clock is looked at again */
    }
    client_queue_rearm(channel);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

static void load_release(kvt_load *handle, uint32_t layers)
{
    const client_load *load = load_of(handle);
    if (!fork_guard_is_current(load->forks) || atomic_load(&load->lost)) return;
    client_area *area = load->room.area;
    uint32_t before = atomic_load(&load->state->released);
    while (before < layers &&
           !atomic_compare_exchange_weak(&load->state->released, &before, layers))
        continue;
    if (before < layers && base_ring_wakes(&area->submissions))
        (void)!wire_bell_ring(area->bells[0]);
}

static kvt_status load_status(kvt_load *handle, size_t index)
{
    client_load *load = load_of(handle);
    if (load == NULL || index >= load->count) return KVT_E_ARGUMENT;
    return fork_guard_is_current(load->forks) ? client_load_status(load, index) : KVT_E_STATE;
}

/* ---- end ---- */

/* Ends a load at its server, if that has it still. */
static void end_there(client_load *load, kvt_load_result *result)
{
    client_channel *channel = load->channel;
    client_request request = {.body = {.kind = WIRE_LOAD_END, .argument = load->asked.load}};
    pthread_mutex_lock(&channel->lock);
    while (load->calling)
        pthread_cond_wait(&channel->arrived, &channel->lock);
    pthread_mutex_unlock(&channel->lock);
    const kvt_status status = client_call_do(channel, &request, end_ready, load, KVT_NO_DEADLINE);
    if (status == KVT_OK && request.done.status == KVT_OK) {
        result->bytes_read = request.done.stored_bytes;
        result->bytes_shared = request.done.answer;
    }
}

static kvt_status load_end(kvt_load *handle, kvt_status *statuses, kvt_load_result *result_out)
{
    const bool sized = result_out == NULL || struct_size_is_sound(result_out, LOADS_RESULT_LEAST);
    client_load *load = load_of(handle);
    client_channel *channel = load->channel;
    kvt_load_result whole = {.struct_size = sizeof whole};
    bool leading = true;
    if (!fork_guard_is_current(load->forks)) return KVT_E_STATE;
    if (channel != NULL) {
        end_there(load, &whole);
        pthread_mutex_lock(&channel->lock);
    }
    for (size_t i = 0; i < load->count; i++) {
        kvt_status status = client_load_status(load, i);
        if (status == KVT_QUEUED) status = KVT_E_TIMEOUT;
        leading = leading && status == KVT_OK;
        if (leading) whole.entries++;
        if (statuses != NULL) statuses[i] = status;
    }
    if (channel != NULL) {
        client_load_settle(load);
        load_unlist(load);
        client_request_free(channel, &load->room);
        client_queue_rearm(channel);
        pthread_mutex_unlock(&channel->lock);
    }
    whole.layers = load->complete;
    if (result_out != NULL && sized) struct_size_out(result_out, &whole, sizeof whole);
    load_free(load);
    return sized ? KVT_OK : KVT_E_ARGUMENT;
}

static const base_load_calls client_load_calls = {.layers = load_layers,
                                                  .total = load_total,
                                                  .wait = load_wait,
                                                  .release = load_release,
                                                  .status = load_status,
                                                  .end = load_end};
