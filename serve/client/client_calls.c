/* SPDX-License-Identifier: Apache-2.0 */
/* client_calls.c - the blocking calls of a connected store, by the channel that all its threads
 * share. */
#include "serve/client/client_calls.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "serve/client/client_transfer.h"
#include "serve/wire/key_records.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define CALLS_DESCRIPTION_LEAST STRUCT_SIZE_THROUGH(kvt_description, groups)
#define CALLS_MATCH_LEAST       STRUCT_SIZE_THROUGH(kvt_match, load_seconds)
#define CALLS_WORTH_LEAST       STRUCT_SIZE_THROUGH(kvt_worth, guessed)
#define CALLS_EXPECTED_LEAST    STRUCT_SIZE_THROUGH(kvt_expectation, seconds)
#define CALLS_PREFIX_MAX        (UINT32_C(1) << 20)
#define CALLS_LATE_NS           UINT64_C(1000000000) /* of the server's answer to a get */
#define CALLS_KEYS              1024u                /* of one request's record */

/* ---- one request ---- */

/* Connects where there is no connection, for as long as the store has patience. KVT_OK: look
 * again. */
static kvt_status call_connect(client_channel *channel, uint64_t deadline_ns, uint64_t *lost_ns)
{
    client_store *store = channel->store;
    const uint64_t now_ns = base_clock_ns();
    const bool first = *lost_ns == 0;
    if (first) *lost_ns = now_ns;
    if (!first && now_ns - *lost_ns >= store->patience_ns) return KVT_E_GONE;
    if (!first && now_ns >= deadline_ns) return KVT_E_GONE;
    pthread_mutex_unlock(&channel->lock);
    const kvt_status status = client_restore(store, channel);
    if (status == KVT_E_GONE && store->patience_ns > 0) base_sleep(CLIENT_LOOK_NS);
    pthread_mutex_lock(&channel->lock);
    return status == KVT_E_GONE && store->patience_ns > 0 ? KVT_OK : status;
}

/* Waits for room, and connects where there is no connection. KVT_OK: look again. */
static kvt_status call_wait(client_channel *channel, kvt_status why, uint64_t deadline_ns,
                            uint64_t *lost_ns)
{
    if (why == KVT_E_GONE) return call_connect(channel, deadline_ns, lost_ns);
    channel->roomless++;
    const kvt_status status = client_channel_wait(channel, deadline_ns);
    channel->roomless--;
    return status;
}

/* Until when a request that was posted is waited for. A server that is stopped may still read or
 * write the regions that one names; all others can be left to it. */
static uint64_t call_until(const client_channel *channel, const client_request *request,
                           uint64_t deadline_ns)
{
    const uint32_t kind = request->body.kind;
    const uint64_t now_ns = base_clock_ns();
    if ((kind == WIRE_GET || kind == WIRE_PUT) && request->staging_bytes == 0)
        return KVT_NO_DEADLINE;
    if (kind != WIRE_GET) return now_ns + channel->store->answer_ns;
    if (deadline_ns == KVT_NO_DEADLINE) return deadline_ns;
    return (deadline_ns > now_ns ? deadline_ns : now_ns) + CALLS_LATE_NS;
}

/* One try of call_do; the lock is held. KVT_OK: it has completed. */
static kvt_status call_once(client_channel *channel, client_request *request,
                            client_prepare *prepare, void (*fill)(void *context), void *context,
                            uint64_t deadline_ns, uint64_t *lost_ns)
{
    kvt_status status = KVT_OK;
    while (prepare != NULL) {
        status = prepare(channel, request, context);
        /* Too large for the staging of a server that may be gone: the next one may have more. */
        if (status == KVT_E_SPACE && client_channel_look(channel)) status = KVT_E_GONE;
        if (status != KVT_BUSY && status != KVT_E_GONE) break;
        status = call_wait(channel, status, deadline_ns, lost_ns);
        if (status != KVT_OK) break;
    }
    if (status == KVT_OK && fill != NULL) {
        pthread_mutex_unlock(&channel->lock);
        fill(context);
        pthread_mutex_lock(&channel->lock);
    }
    while (status == KVT_OK) {
        status = client_request_post(channel, request);
        if (status != KVT_BUSY && (status != KVT_E_GONE || prepare != NULL)) break;
        status = call_wait(channel, status, deadline_ns, lost_ns);
    }
    const uint64_t until_ns = call_until(channel, request, deadline_ns);
    while (status == KVT_OK && !request->completed) {
        status = client_channel_wait(channel, until_ns);
        if (status != KVT_E_TIMEOUT) continue;
        if (request->completed || !client_request_abandon(channel, request)) status = KVT_OK;
    }
    return status;
}

/* As client_call_do, with a fill between prepare and post, without the lock; it may be NULL. */
static kvt_status call_do(client_channel *channel, client_request *request, client_prepare *prepare,
                          void (*fill)(void *context), void *context, uint64_t deadline_ns)
{
    uint64_t lost_ns = 0;
    kvt_status status;
    request->waited = true;
    pthread_mutex_lock(&channel->lock);
    for (;;) {
        status = call_once(channel, request, prepare, fill, context, deadline_ns, &lost_ns);
        const bool lost = status == KVT_E_GONE || (status == KVT_OK && request->untaken);
        if (!lost) break;
        /* The server has not seen it: it may go to the next one. */
        client_request_free(channel, request);
        request->untaken = false;
        status = call_connect(channel, deadline_ns, &lost_ns);
        if (status != KVT_OK) break;
    }
    pthread_mutex_unlock(&channel->lock);
    return status;
}

kvt_status client_call_do(client_channel *channel, client_request *request, client_prepare *prepare,
                          void *context, uint64_t deadline_ns)
{
    return call_do(channel, request, prepare, NULL, context, deadline_ns);
}

static void call_end(client_channel *channel, client_request *request)
{
    pthread_mutex_lock(&channel->lock);
    client_request_free(channel, request);
    pthread_mutex_unlock(&channel->lock);
}

/* The status of a request that was not posted, for calls that answer as a store without entries. */
static kvt_status call_status(const client_request *request, kvt_status status)
{
    if (status == KVT_OK) return request->done.status;
    return status == KVT_E_GONE ? client_lost(request->body.kind, false) : status;
}

/* A request of one key without a record. */
static kvt_status call_key(kvt_store *handle, uint32_t kind, const kvt_key *key, uint64_t argument,
                           client_request *request)
{
    client_store *store;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (key == NULL) return KVT_E_ARGUMENT;
    *request =
        (client_request){.body = {.kind = (uint16_t)kind, .key = *key, .argument = argument}};
    status = call_do(&store->calls, request, NULL, NULL, NULL, KVT_NO_DEADLINE);
    return call_status(request, status);
}

kvt_status client_exists(kvt_store *handle, const kvt_key *key)
{
    client_request request;
    const kvt_status status = call_key(handle, WIRE_EXISTS, key, 0, &request);
    /* The blocking call is of this host alone. */
    return status == KVT_OK && (request.done.flags & WIRE_GUESS) != 0 ? KVT_MISS : status;
}

kvt_status client_delete(kvt_store *handle, const kvt_key *key)
{
    client_request request;
    return call_key(handle, WIRE_DELETE, key, 0, &request);
}

kvt_status client_prefetch(kvt_store *handle, const kvt_key *key, kvt_tier tier)
{
    client_request request;
    if ((uint32_t)tier >= KVT_TIER_PLACES) return KVT_E_ARGUMENT;
    return call_key(handle, WIRE_PREFETCH, key, (uint64_t)tier, &request);
}

kvt_status client_lease_end(kvt_store *handle, uint64_t lease)
{
    client_request request;
    static const kvt_key none;
    return call_key(handle, WIRE_LEASE_END, &none, lease, &request);
}

/* ---- get and put ---- */

static kvt_status transfer_ready(client_channel *channel, client_request *request, void *context)
{
    (void)request;
    return client_transfer_prepare(channel, context);
}

static void transfer_fills(void *context)
{
    client_transfer_fill(context);
}

kvt_status client_transfer_run(client_store *store, client_transfer *transfer, uint64_t deadline_ns)
{
    client_channel *channel = &store->calls;
    kvt_status status;
    do {
        status = call_do(channel, &transfer->request, transfer_ready, transfer_fills, transfer,
                         deadline_ns);
        if (status == KVT_OK) {
            status = client_transfer_finish(transfer);
            call_end(channel, &transfer->request);
        } else if (status == KVT_E_GONE) {
            status = client_lost(transfer->entry != NULL ? WIRE_PUT : WIRE_GET, false);
        }
    } while (status == KVT_QUEUED);
    pthread_mutex_lock(&channel->lock);
    client_transfer_end(channel, transfer);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

kvt_status client_get(kvt_store *handle, const kvt_key *key, const kvt_view *view,
                      uint64_t deadline_ns, kvt_get_info *info)
{
    client_store *store;
    client_transfer transfer;
    kvt_status status = client_enter(handle, &store);
    if (status == KVT_OK)
        status = client_transfer_init_get(&transfer, key, view, deadline_ns, info);
    if (status != KVT_OK) return status;
    const uint64_t until_ns = deadline_ns == KVT_STORE_DEADLINE ? KVT_NO_DEADLINE : deadline_ns;
    status = client_transfer_run(store, &transfer, until_ns);
    if (status != KVT_E_TIMEOUT) return status;
    if (info != NULL) info->timed_out = true;
    return KVT_MISS;
}

kvt_status client_put(kvt_store *handle, const kvt_entry *entry, const kvt_view *view)
{
    client_store *store;
    client_transfer transfer;
    kvt_status status = client_enter(handle, &store);
    /* The deadline bounds the wait for room in the store, and a blocking put has none. */
    if (status == KVT_OK) status = client_transfer_init_put(&transfer, entry, view, 0);
    return status == KVT_OK ? client_transfer_run(store, &transfer, KVT_NO_DEADLINE) : status;
}

/* ---- lists of keys ---- */

/* A request with a record of keys, or of a few numbers. */
typedef struct listed {
    wire_list list;
    const kvt_key *keys;
    uint64_t lease; /* of an extension */
    kvt_description *description;
    size_t room;
} listed;

static kvt_status listed_ready(client_channel *channel, client_request *request, void *context)
{
    listed *call = context;
    size_t bytes = 0;
    kvt_status status = client_request_room(channel, request, call->room, 0);
    if (status != KVT_OK) return status;
    void *out = client_record_of(request);
    if (request->body.kind == WIRE_LEASE_EXTEND)
        status = wire_extend_write(call->lease, call->list.instant_ns, out, call->room, &bytes);
    else if (request->body.kind == WIRE_DESCRIBE)
        status = wire_describe_write(call->description, out, call->room, &bytes);
    else
        status =
            wire_list_write(request->body.kind, &call->list, call->keys, out, call->room, &bytes);
    request->body.argument_bytes = (uint32_t)bytes;
    if (status != KVT_OK) client_request_free(channel, request);
    return status;
}

/* Carries a call out; the answer is in the request until call_end, which follows in any case. */
static kvt_status listed_do(client_channel *channel, uint32_t kind, const kvt_key *key,
                            listed *call, client_request *request)
{
    *request = (client_request){.body.kind = (uint16_t)kind};
    if (key != NULL) request->body.key = *key;
    const kvt_status status = call_do(channel, request, listed_ready, NULL, call, KVT_NO_DEADLINE);
    return call_status(request, status);
}

/* The keys of a call that go into one record. */
static size_t listed_part(listed *call, uint32_t kind, const kvt_key *keys, size_t done,
                          size_t count)
{
    const size_t part = count - done < CALLS_KEYS ? count - done : CALLS_KEYS;
    call->keys = keys + done;
    call->list.count = (uint32_t)part;
    call->room = sizeof(wire_list) + part * sizeof(kvt_key) +
                 (size_t)wire_list_answer(kind, &call->list) + 64;
    return part;
}

/* Sums the answers of a call over all its keys. A KVT_MISS of one part is none of the whole. */
static kvt_status listed_sum(kvt_store *handle, uint32_t kind, listed *call, const kvt_key *keys,
                             size_t count, size_t *sum_out)
{
    client_store *store;
    client_request request;
    size_t sum = 0;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (keys == NULL && count != 0) return KVT_E_ARGUMENT;
    for (size_t done = 0; done < count;) {
        const size_t part = listed_part(call, kind, keys, done, count);
        status = listed_do(&store->calls, kind, NULL, call, &request);
        if (status == KVT_OK) sum += request.done.answer < part ? request.done.answer : part;
        call_end(&store->calls, &request);
        if (status != KVT_OK && status != KVT_MISS) break;
        done += part;
    }
    if (sum_out != NULL) *sum_out = sum;
    return status == KVT_MISS ? KVT_OK : status;
}

kvt_status client_touch(kvt_store *handle, const kvt_key *keys, size_t count, size_t *touched_out)
{
    listed call = {0};
    return listed_sum(handle, WIRE_TOUCH, &call, keys, count, touched_out);
}

kvt_status client_hint(kvt_store *handle, const kvt_key *keys, size_t count,
                       const kvt_expectation *expected, size_t *hinted_out)
{
    size_t hinted = 0;
    kvt_expectation whole = {.struct_size = sizeof whole};
    if (hinted_out != NULL) *hinted_out = 0;
    if (expected == NULL) return KVT_E_ARGUMENT;
    expected = struct_size_in(expected, &whole, sizeof whole, CALLS_EXPECTED_LEAST);
    if (expected == NULL) return KVT_E_ARGUMENT;
    listed call = {.list = {.hint = expected->kind, .seconds = expected->seconds}};
    const kvt_status status = listed_sum(handle, WIRE_HINT, &call, keys, count, &hinted);
    if (hinted_out != NULL) *hinted_out = hinted;
    return status == KVT_OK && hinted == 0 && count != 0 ? KVT_MISS : status;
}

/* ---- match ---- */

/* Adds a part of a match to the sum of all. */
static void worth_add(kvt_worth *sum, const kvt_worth *part, bool goes_on)
{
    sum->stored += part->stored;
    sum->guessed += part->guessed;
    if (!goes_on) return;
    sum->to_load += part->to_load;
    sum->load_seconds += part->load_seconds;
    sum->recompute_seconds += part->recompute_seconds;
    sum->saved_seconds += part->saved_seconds;
}

/* One part of a match. KVT_OK: *matched_out of its keys. */
static kvt_status match_part(client_store *store, listed *call, size_t part, kvt_worth *worth,
                             double *seconds, size_t *matched_out)
{
    client_request request;
    kvt_status status = listed_do(&store->calls, WIRE_MATCH, NULL, call, &request);
    *matched_out = 0;
    if (status == KVT_OK) {
        const size_t matched = request.done.answer;
        status = wire_match_answer_read(&call->list, client_record_of(&request),
                                        request.done.answer_bytes, worth, seconds);
        if (status == KVT_OK) *matched_out = matched < part ? matched : part;
    }
    call_end(&store->calls, &request);
    /* A connection that is lost stores nothing; an answer that is none, neither. */
    return status == KVT_MISS || status == KVT_E_CORRUPT ? KVT_OK : status;
}

/* A match of any length, in parts. A run that goes over parts is worth what its parts are worth one
 * after the other, as long as each is loaded whole. */
static kvt_status match_all(client_store *store, const kvt_key *keys, size_t count,
                            const kvt_match *match, kvt_worth *worth, size_t *matched_out)
{
    kvt_status status = KVT_OK;
    bool runs = true, goes_on = true;
    listed call = {.list = {.instant_ns = match->deadline_ns}};
    if (match->hosts) call.list.flags |= WIRE_MATCH_HOSTS;
    if (match->load_seconds != NULL) call.list.flags |= WIRE_MATCH_SECONDS;
    for (size_t done = 0; done < count && status == KVT_OK;) {
        kvt_worth told = {.struct_size = sizeof told};
        size_t matched;
        call.list.worth_bytes = worth != NULL && runs ? sizeof told : 0;
        const size_t part = listed_part(&call, WIRE_MATCH, keys, done, count);
        if (!runs && match->load_seconds == NULL) break;
        status =
            match_part(store, &call, part, worth != NULL && runs ? &told : NULL,
                       match->load_seconds != NULL ? match->load_seconds + done : NULL, &matched);
        if (worth != NULL && runs) {
            worth_add(worth, &told, goes_on);
            goes_on = goes_on && told.to_load == part;
        }
        if (runs) *matched_out += matched;
        runs = runs && matched == part;
        done += part;
    }
    return status;
}

kvt_status client_match(kvt_store *handle, const kvt_key *keys, size_t count,
                        const kvt_match *match, size_t *matched_out)
{
    client_store *store;
    const kvt_match nothing = {.struct_size = sizeof nothing};
    kvt_match whole = nothing;
    kvt_worth worth = {.struct_size = sizeof worth};
    size_t matched = 0;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (match == NULL) match = &nothing;
    match = struct_size_in(match, &whole, sizeof whole, CALLS_MATCH_LEAST);
    if (match == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
    if (matched_out == NULL && match->worth == NULL && match->load_seconds == NULL)
        return KVT_E_ARGUMENT;
    if (match->worth != NULL && !struct_size_is_sound(match->worth, CALLS_WORTH_LEAST))
        return KVT_E_ARGUMENT;
    for (size_t i = 0; match->load_seconds != NULL && i < count; i++)
        match->load_seconds[i] = NAN;
    status = match_all(store, keys, count, match, match->worth != NULL ? &worth : NULL, &matched);
    if (match->worth != NULL) struct_size_out(match->worth, &worth, sizeof worth);
    if (matched_out != NULL) *matched_out = matched;
    return status;
}

/* ---- leases, descriptions ---- */

kvt_status client_lease_begin(kvt_store *handle, kvt_queue *owner, const kvt_key *keys,
                              size_t count, uint64_t until_ns, bool *held_out, uint64_t *lease_out)
{
    client_store *store;
    client_request request;
    listed call = {.list = {.instant_ns = until_ns}};
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (lease_out == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
    *lease_out = 0;
    if (held_out != NULL) memset(held_out, 0, count * sizeof *held_out);
    client_channel *channel = owner != NULL ? client_queue_channel(owner) : &store->calls;
    /* Keys beyond one record are not held. */
    const size_t most =
        (atomic_load(&store->record_bytes) - sizeof(wire_list) - 64) / (sizeof(kvt_key) + 1);
    if (count > CALLS_PREFIX_MAX) return KVT_E_ARGUMENT;
    call.keys = keys;
    call.list.count = (uint32_t)(count < most ? count : most);
    call.room = sizeof(wire_list) + call.list.count * (sizeof(kvt_key) + 1) + 64;
    status = listed_do(channel, WIRE_LEASE_BEGIN, NULL, &call, &request);
    if (status == KVT_OK)
        status = wire_lease_answer_read(&call.list, client_record_of(&request),
                                        request.done.answer_bytes, held_out);
    if (status == KVT_OK) *lease_out = request.done.answer;
    call_end(channel, &request);
    return status == KVT_E_CORRUPT ? KVT_MISS : status;
}

kvt_status client_lease_extend(kvt_store *handle, uint64_t lease, uint64_t until_ns)
{
    client_store *store;
    client_request request;
    listed call = {.list = {.instant_ns = until_ns}, .lease = lease, .room = sizeof(wire_extend)};
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    status = listed_do(&store->calls, WIRE_LEASE_EXTEND, NULL, &call, &request);
    call_end(&store->calls, &request);
    return status;
}

kvt_status client_describe(kvt_store *handle, const kvt_key *key, kvt_description *out)
{
    client_store *store;
    client_request request;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (key == NULL || out == NULL || !struct_size_is_sound(out, CALLS_DESCRIPTION_LEAST))
        return KVT_E_ARGUMENT;
    kvt_description told = {.struct_size = sizeof told,
                            .groups_capacity = out->groups_capacity < KVT_GROUPS_MAX
                                                   ? out->groups_capacity
                                                   : KVT_GROUPS_MAX,
                            .groups = out->groups};
    listed call = {.description = &told,
                   .room =
                       sizeof(wire_describe) + sizeof told + KVT_GROUPS_MAX * sizeof(kvt_layout)};
    if (told.groups == NULL && told.groups_capacity != 0) return KVT_E_ARGUMENT;
    status = listed_do(&store->calls, WIRE_DESCRIBE, key, &call, &request);
    if (status == KVT_OK)
        status =
            wire_describe_answer_read(client_record_of(&request), request.done.answer_bytes, &told);
    call_end(&store->calls, &request);
    if (status == KVT_E_CORRUPT) status = KVT_MISS;
    if (status != KVT_OK) told = (kvt_description){.struct_size = sizeof told};
    told.groups = out->groups;
    told.groups_capacity = out->groups_capacity;
    struct_size_out(out, &told, sizeof told);
    return status;
}
