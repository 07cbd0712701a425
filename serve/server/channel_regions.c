/* SPDX-License-Identifier: Apache-2.0 */
/* channel_regions.c - memory that requests and loads no longer name, and the wake of a thread. */
#include "serve/server/channel_internal.h"

#include <assert.h>
#include <unistd.h>

void server_channel_regions_leave(server_channel *channel, uint64_t regions)
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

void server_channel_nudge(server_channel *channel)
{
    const uint64_t one = 1;
    const ssize_t result = write(channel->nudge, &one, sizeof one);
    (void)result;
}
