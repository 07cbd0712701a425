/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_passes.c - announced passes of a session's channels, by numbers of the session: no client
 * names another one's, nor one of its own that it has begun at an earlier server.
 *
 * Thread rule: the channel's thread; passes of a session under its lock.
 */
#include "serve/server/channel_internal.h"
#include "serve/wire/key_records.h"

#include <kvterrace/load.h>

/* The place of a session's pass, or NULL; number 0: a free place. Lock held. */
static server_pass *pass_find(server_session *session, uint64_t number)
{
    for (uint32_t i = 0; i < SERVER_PASSES; i++)
        if (session->passes[i].number == number) return &session->passes[i];
    return NULL;
}

/* Frees the places of passes that no longer count: the store has no layer of them. Lock held. */
static void passes_drop(server_session *session)
{
    kvt_store *store = session->lends->store;
    for (uint32_t i = 0; i < SERVER_PASSES; i++) {
        server_pass *pass = &session->passes[i];
        if (kvt_pass_layer(store, pass->store_number, UINT32_MAX) != KVT_MISS) continue;
        (void)kvt_pass_end(store, pass->store_number);
        *pass = (server_pass){.number = 0};
    }
}

kvt_status server_channel_pass_begin(server_channel *channel, const void *record, size_t bytes,
                                     uint64_t *number_out)
{
    server_session *session = channel->session;
    kvt_pass asked;
    kvt_status status = wire_pass_read(record, bytes, &asked);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&session->lock);
    server_pass *pass = pass_find(session, 0);
    if (pass == NULL) passes_drop(session);
    if (pass == NULL) pass = pass_find(session, 0);
    uint64_t store_number;
    status = pass != NULL ? kvt_pass_begin(session->lends->store, &asked, &store_number) : KVT_BUSY;
    if (status == KVT_OK) {
        *pass = (server_pass){
            .number = ++session->number_last, .store_number = store_number, .channel = channel};
        *number_out = pass->number;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

uint64_t server_channel_pass(server_channel *channel, uint64_t number)
{
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    const server_pass *pass = number != 0 ? pass_find(session, number) : NULL;
    const uint64_t store_number = pass != NULL ? pass->store_number : 0;
    pthread_mutex_unlock(&session->lock);
    return store_number;
}

kvt_status server_channel_pass_layer(server_channel *channel, const void *record, size_t bytes)
{
    wire_pass_layer asked;
    const kvt_status status = wire_pass_layer_read(record, bytes, &asked);
    if (status != KVT_OK) return status;
    return kvt_pass_layer(channel->session->lends->store, server_channel_pass(channel, asked.pass),
                          asked.layer);
}

kvt_status server_channel_pass_end(server_channel *channel, uint64_t number)
{
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    server_pass *pass = number != 0 ? pass_find(session, number) : NULL;
    /* No pass of the store has the number 0. */
    const kvt_status status =
        kvt_pass_end(session->lends->store, pass != NULL ? pass->store_number : 0);
    if (pass != NULL) *pass = (server_pass){.number = 0};
    pthread_mutex_unlock(&session->lock);
    return status;
}

void server_channel_passes_end(server_channel *channel)
{
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < SERVER_PASSES; i++) {
        server_pass *pass = &session->passes[i];
        if (pass->number == 0 || pass->channel != channel) continue;
        (void)kvt_pass_end(session->lends->store, pass->store_number);
        *pass = (server_pass){.number = 0};
    }
    pthread_mutex_unlock(&session->lock);
}
