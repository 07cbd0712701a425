/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queued.h - blocking calls by way of a queue: one request each, submitted and waited for, for
 * programs that try the store's two doors alike. The queue is the caller's alone.
 */
#ifndef TESTS_QUEUED_H
#define TESTS_QUEUED_H

#include "base/clock.h"
#include "codecs/view_rows.h"

#include <kvterrace/queue.h>
#include <stdlib.h>

#define QUEUED_PATIENCE_NS UINT64_C(50000000) /* of a put, while the store cannot keep up */

/* Takes all completions of `count` requests, whose user words are their indices. */
static inline void queued_await(kvt_queue *queue, uint32_t count, kvt_completion *done)
{
    for (uint32_t seen = 0; seen < count;) {
        kvt_completion some[8] = {{.struct_size = sizeof(kvt_completion)}};
        if (kvt_queue_wait(queue, KVT_NO_DEADLINE) != KVT_OK) abort();
        size_t got = kvt_queue_drain(queue, some, 8);
        for (size_t i = 0; i < got; i++) {
            if (some[i].user >= count) abort();
            done[some[i].user] = some[i];
        }
        seen += (uint32_t)got;
    }
}

static inline kvt_completion queued_call(kvt_queue *queue, const kvt_request *request)
{
    kvt_completion done = {.struct_size = sizeof done};
    if (kvt_queue_submit(queue, request, 1, NULL) != KVT_OK) abort();
    queued_await(queue, 1, &done);
    return done;
}

/* kvt_store_get of a packed buffer. */
static inline kvt_status queued_get(kvt_queue *queue, const kvt_key *key, const kvt_layout *layout,
                                    void *data)
{
    const kvt_view view = codecs_packed_view(layout, data);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = *key,
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    return queued_call(queue, &request).status;
}

/* kvt_store_put of a packed buffer, which waits a little while the store is busy. */
static inline kvt_status queued_put(kvt_queue *queue, const kvt_entry *entry, const void *data)
{
    const kvt_view view = codecs_packed_view(&entry->layout, (void *)(uintptr_t)data);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_PUT,
                                 .entry = entry,
                                 .view = &view,
                                 .deadline_ns = base_clock_ns() + QUEUED_PATIENCE_NS};
    return queued_call(queue, &request).status;
}

static inline kvt_status queued_delete(kvt_queue *queue, const kvt_key *key)
{
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_DELETE,
                                 .key = *key,
                                 .deadline_ns = KVT_NO_DEADLINE};
    return queued_call(queue, &request).status;
}

#endif
