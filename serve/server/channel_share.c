/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_share.c - the share that a session has of the KV in flight: of its gets, its puts and the
 * layers that its loads read now (docs/SERVE.md, Limits of a client).
 *
 * All that counts as in flight ends without the client: a load whose window is full of layers that
 * have come has nothing in flight. So what waits for room always gets some.
 *
 * Thread rule: the channel's thread.
 */
#include "serve/server/channel_internal.h"

#include <assert.h>
#include <kvterrace/names.h>

/* What a session may have in flight: an nth of all while n sessions have some. One that has got
 * less than the others has up to half as much again, one that has got more up to half of it less:
 * what it has in flight does not decide alone how much it gets. Lock held. */
static uint64_t session_share(server_session *session)
{
    server *lends = session->lends;
    const uint32_t others = atomic_load(&lends->busy) - (session->in_flight_bytes > 0 ? 1 : 0);
    const uint64_t share = lends->in_flight_bytes / (others + 1), most = share / 2;
    const uint64_t fair = atomic_load(&lends->fair_bytes);
    const bool idle = session->in_flight_bytes == 0;
    int64_t behind = idle ? 0 : (int64_t)(fair - session->fair_bytes);
    if (others == 0) behind = 0;
    if (behind > (int64_t)most) behind = (int64_t)most;
    if (behind < -(int64_t)most) behind = -(int64_t)most;
    session->fair_bytes = fair - (uint64_t)behind;
    return (uint64_t)((int64_t)share + behind);
}

bool server_channel_admits(server_channel *channel, uint64_t bytes, bool always, bool begins)
{
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    const uint64_t share = session_share(session);
    const bool fits = session->in_flight_bytes < share && bytes <= share - session->in_flight_bytes;
    const bool admits = fits || always || channel->begun == 0;
    if (admits) {
        if (session->in_flight_bytes == 0 && bytes > 0) atomic_fetch_add(&session->lends->busy, 1);
        session->in_flight_bytes += bytes;
        channel->begun += begins;
    }
    pthread_mutex_unlock(&session->lock);
    return admits;
}

void server_channel_arrives(server_channel *channel, uint64_t bytes, bool ends)
{
    server_session *session = channel->session;
    server *lends = session->lends;
    assert(channel->begun >= ends);
    channel->begun -= ends;
    if (bytes == 0) return;
    pthread_mutex_lock(&session->lock);
    assert(session->in_flight_bytes >= bytes);
    atomic_fetch_add(&lends->fair_bytes, bytes / atomic_load(&lends->busy));
    session->fair_bytes += bytes;
    session->in_flight_bytes -= bytes;
    if (session->in_flight_bytes == 0) atomic_fetch_sub(&lends->busy, 1);
    pthread_mutex_unlock(&session->lock);
}

uint64_t server_channel_view_bytes(server_channel *channel, const kvt_key *key,
                                   const kvt_view *view)
{
    kvt_description description = {.struct_size = sizeof description};
    if (view->bases_kind == KVT_BASES_PACKED) return view->base_bytes[0];
    (void)!kvt_store_describe(channel->session->lends->store, key, &description);
    return description.bytes; /* 0 of a miss, which moves none */
}
