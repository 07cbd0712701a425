/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_calls.c - requests that wait for nothing, carried out where they are taken: lookups,
 * uses, hints and leases.
 *
 * Thread rule: the channel's thread; leases of a session under its lock.
 */
#include "serve/server/channel_internal.h"
#include "serve/wire/key_records.h"

#include "base/clock.h"

#include <assert.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <stdlib.h>
#include <string.h>

/* Of a session. */
#define LEASES_MAX     4096u
#define LEASE_KEYS_MAX (1u << 20) /* of all its leases */

/* A call: its copy of a record, and the completion that it fills. */
typedef struct channel_asked {
    server_channel *channel;
    const wire_request *request;
    void *record;
    wire_completion *done;
} channel_asked;

static kvt_store *store_of(const channel_asked *asked)
{
    return asked->channel->session->lends->store;
}

/* ---- one key ---- */

/* As an exists of a queue: what other hosts are known to have is a guess. */
static kvt_status call_exists(const channel_asked *asked)
{
    kvt_store *store = store_of(asked);
    const kvt_key *key = &asked->request->key;
    const kvt_match known = {.struct_size = sizeof known, .hosts = true};
    size_t matched = 0;
    kvt_status status = kvt_store_exists(store, key);
    if (status != KVT_MISS) return status;
    status = kvt_store_match(store, key, 1, &known, &matched);
    if (status != KVT_OK || matched == 0) return status == KVT_OK ? KVT_MISS : status;
    asked->done->flags = WIRE_GUESS;
    return KVT_OK;
}

static kvt_status call_prefetch(const channel_asked *asked)
{
    const uint64_t tier = asked->request->argument;
    if (tier == KVT_TIER_NONE || tier >= KVT_TIER_PLACES) return KVT_E_ARGUMENT;
    return kvt_store_prefetch(store_of(asked), &asked->request->key, (kvt_tier)tier);
}

static kvt_status call_describe(const channel_asked *asked)
{
    wire_describe describe;
    kvt_layout groups[KVT_GROUPS_MAX];
    kvt_description description = {.struct_size = sizeof description, .groups = groups};
    kvt_status status =
        wire_describe_read(asked->record, asked->request->argument_bytes, &describe);
    if (status != KVT_OK) return status;
    description.groups_capacity = describe.groups_capacity;
    status = kvt_store_describe(store_of(asked), &asked->request->key, &description);
    if (status != KVT_OK) return status;
    asked->done->answer_bytes = (uint32_t)wire_describe_answer_write(
        &describe, &description, channel_record(asked->channel, asked->request));
    return KVT_OK;
}

/* ---- lists of keys ---- */

static kvt_status call_touch(const channel_asked *asked)
{
    wire_list list = {.count = 1};
    const kvt_key *keys = &asked->request->key;
    const bool one = asked->record == NULL;
    size_t touched = 0;
    kvt_status status = KVT_OK;
    if (!one)
        status =
            wire_list_read(WIRE_TOUCH, asked->record, asked->request->argument_bytes, &list, &keys);
    if (status == KVT_OK) status = kvt_store_touch(store_of(asked), keys, list.count, &touched);
    asked->done->answer = touched;
    return status == KVT_OK && one && touched == 0 ? KVT_MISS : status;
}

static kvt_status call_hint(const channel_asked *asked)
{
    wire_list list;
    const kvt_key *keys;
    size_t hinted = 0;
    kvt_status status =
        wire_list_read(WIRE_HINT, asked->record, asked->request->argument_bytes, &list, &keys);
    if (status != KVT_OK) return status;
    const kvt_expectation expected = {
        .struct_size = sizeof expected, .kind = list.hint, .seconds = list.seconds};
    status = kvt_store_hint(store_of(asked), keys, list.count, &expected, &hinted);
    asked->done->answer = hinted;
    return status;
}

/* Other hosts are not asked: what they have answered before counts. */
static kvt_status call_match(const channel_asked *asked)
{
    wire_list list;
    const kvt_key *keys;
    kvt_worth worth = {.struct_size = sizeof worth};
    double *seconds = NULL;
    size_t matched = 0;
    kvt_status status =
        wire_list_read(WIRE_MATCH, asked->record, asked->request->argument_bytes, &list, &keys);
    if (status != KVT_OK) return status;
    if ((list.flags & WIRE_MATCH_SECONDS) != 0) {
        seconds = calloc(list.count + 1, sizeof *seconds);
        if (seconds == NULL) return KVT_E_MEMORY;
    }
    const kvt_match match = {.struct_size = sizeof match,
                             .hosts = (list.flags & WIRE_MATCH_HOSTS) != 0,
                             .worth = list.worth_bytes != 0 ? &worth : NULL,
                             .load_seconds = seconds};
    status = kvt_store_match(store_of(asked), keys, list.count, &match, &matched);
    if (status == KVT_OK) {
        wire_match_answer_write(&list, &worth, seconds,
                                channel_record(asked->channel, asked->request));
        asked->done->answer = matched;
        asked->done->answer_bytes = (uint32_t)wire_list_answer(WIRE_MATCH, &list);
    }
    free(seconds);
    return status;
}

/* ---- leases ---- */

/* Takes a lease out of a session's list. Lock held. */
static server_lease *lease_take(server_session *session, server_lease **at)
{
    server_lease *lease = *at;
    if (lease == NULL) return NULL;
    assert(session->lease_count > 0 && session->lease_keys >= lease->key_count);
    session->lease_count--;
    session->lease_keys -= lease->key_count;
    *at = lease->next;
    return lease;
}

/* The pointer to a lease of a session, or to the NULL at the end. Lock held. */
static server_lease **lease_find(server_session *session, uint64_t number)
{
    server_lease **at = &session->leases;
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

/* Takes leases out of a session's list: those of a channel, or those that have run out. */
static void leases_drop(server_session *session, const server_channel *channel, uint64_t now_ns)
{
    pthread_mutex_lock(&session->lock);
    for (server_lease **at = &session->leases; *at != NULL;) {
        server_lease *lease = *at;
        if (channel != NULL ? lease->channel != channel : lease->until_ns > now_ns)
            at = &lease->next;
        else
            free(lease_take(session, at));
    }
    pthread_mutex_unlock(&session->lock);
}

void server_channel_leases_forget(server_channel *channel)
{
    leases_drop(channel->session, channel, 0);
}

/* Gives a lease of the store a number of the session. False: it has as many as it may. */
static bool lease_enter(server_session *session, server_lease *lease)
{
    leases_drop(session, NULL, base_clock_ns());
    pthread_mutex_lock(&session->lock);
    const bool fits = session->lease_count < LEASES_MAX &&
                      lease->key_count <= LEASE_KEYS_MAX - session->lease_keys;
    if (fits) {
        lease->number = ++session->number_last;
        lease->next = session->leases;
        session->leases = lease;
        session->lease_count++;
        session->lease_keys += lease->key_count;
    }
    pthread_mutex_unlock(&session->lock);
    return fits;
}

static kvt_status call_lease_begin(const channel_asked *asked)
{
    server_session *session = asked->channel->session;
    wire_list list;
    const kvt_key *keys;
    kvt_status status = wire_list_read(WIRE_LEASE_BEGIN, asked->record,
                                       asked->request->argument_bytes, &list, &keys);
    if (status != KVT_OK) return status;
    server_lease *lease = malloc(sizeof *lease);
    bool *held = malloc(list.count + 1);
    status = lease != NULL && held != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) {
        *lease = (server_lease){
            .channel = asked->channel, .until_ns = list.instant_ns, .key_count = list.count};
        status = kvt_lease_begin(store_of(asked), asked->channel->queue, keys, list.count,
                                 list.instant_ns, held, &lease->store_number);
    }
    if (status == KVT_OK && !lease_enter(session, lease)) {
        (void)!kvt_lease_end(store_of(asked), lease->store_number);
        status = KVT_E_MEMORY;
    }
    if (status == KVT_OK) {
        asked->done->answer = lease->number;
        asked->done->answer_bytes = list.count;
        memcpy(channel_record(asked->channel, asked->request), held, list.count);
        lease = NULL;
    }
    free(lease);
    free(held);
    return status;
}

static kvt_status call_lease_extend(const channel_asked *asked)
{
    server_session *session = asked->channel->session;
    wire_extend extend;
    kvt_status status = wire_extend_read(asked->record, asked->request->argument_bytes, &extend);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&session->lock);
    server_lease *lease = *lease_find(session, extend.lease);
    /* No lease of the store has the number 0. */
    status =
        kvt_lease_extend(store_of(asked), lease != NULL ? lease->store_number : 0, extend.until_ns);
    if (status == KVT_OK && lease != NULL) lease->until_ns = extend.until_ns;
    pthread_mutex_unlock(&session->lock);
    return status;
}

static kvt_status call_lease_end(const channel_asked *asked)
{
    server_session *session = asked->channel->session;
    pthread_mutex_lock(&session->lock);
    server_lease *lease = lease_take(session, lease_find(session, asked->request->argument));
    pthread_mutex_unlock(&session->lock);
    if (lease == NULL) return KVT_MISS;
    const kvt_status status = kvt_lease_end(store_of(asked), lease->store_number);
    free(lease);
    return status;
}

/* ---- all of them ---- */

static kvt_status call_carry_out(const channel_asked *asked)
{
    switch (asked->request->kind) {
    case WIRE_EXISTS: return call_exists(asked);
    case WIRE_PREFETCH: return call_prefetch(asked);
    case WIRE_TOUCH: return call_touch(asked);
    case WIRE_MATCH: return call_match(asked);
    case WIRE_LEASE_BEGIN: return call_lease_begin(asked);
    case WIRE_LEASE_EXTEND: return call_lease_extend(asked);
    case WIRE_LEASE_END: return call_lease_end(asked);
    case WIRE_HINT: return call_hint(asked);
    case WIRE_DESCRIBE: return call_describe(asked);
    case WIRE_LOAD_BEGIN:
        return server_channel_load_begin(asked->channel, asked->record,
                                         asked->request->argument_bytes, &asked->done->answer);
    case WIRE_LOAD_END:
        return server_channel_load_end(asked->channel, asked->request->argument,
                                       &asked->done->stored_bytes, &asked->done->answer);
    case WIRE_PASS_BEGIN:
        return server_channel_pass_begin(asked->channel, asked->record,
                                         asked->request->argument_bytes, &asked->done->answer);
    case WIRE_PASS_LAYER:
        return server_channel_pass_layer(asked->channel, asked->record,
                                         asked->request->argument_bytes);
    case WIRE_PASS_END: return server_channel_pass_end(asked->channel, asked->request->argument);
    case WIRE_CANCEL: return server_channel_cancel(asked->channel, asked->request->argument);
    default: return KVT_E_UNSUPPORTED;
    }
}

kvt_status server_channel_call(server_channel *channel, const wire_request *request)
{
    wire_completion done = {.number = request->number, .kind = request->kind};
    channel_asked asked = {.channel = channel, .request = request, .done = &done};
    kvt_status status = KVT_OK;
    /* The batch so far is not to wait for this call; a cancel has to find all of it. */
    if (request->argument_bytes > 0 || request->kind == WIRE_CANCEL)
        status = server_channel_submit(channel);
    if (status != KVT_OK) return status;
    if (request->argument_bytes > 0) {
        asked.record = malloc(request->argument_bytes);
        if (asked.record == NULL) return server_channel_answer(channel, request, KVT_E_MEMORY);
        memcpy(asked.record, channel_record(channel, request), request->argument_bytes);
    }
    done.status = call_carry_out(&asked);
    free(asked.record);
    assert(done.answer_bytes <= request->argument_bytes);
    return server_channel_post(channel, &done);
}
