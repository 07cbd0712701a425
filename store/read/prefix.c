/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix.c - kvt_prefix_get: the stored run of a prefix as one batch, on the caller's thread. The
 * file reads nothing itself: it is the only thread of a queue of its own.
 *
 * Thread rule: any thread.
 */
#include "store/read/queue_internal.h"

#include <assert.h>
#include <kvterrace/lookup.h>
#include <kvterrace/remote.h>
#include <stdlib.h>

#define PREFIX_CHUNK 1024u /* requests of one batch */

/* Gets entries in a queue of its own; *loaded_out has how many leading ones are whole. */
static kvt_status prefix_run(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out)
{
    static const kvt_status unseen = KVT_MISS;
    kvt_status *statuses = malloc(count * sizeof *statuses);
    kvt_request *requests = calloc(count, sizeof *requests);
    kvt_completion *done = calloc(count, sizeof *done);
    kvt_status status = KVT_E_MEMORY;
    if (statuses == NULL || requests == NULL || done == NULL) goto out;
    for (size_t i = 0; i < count; i++) {
        statuses[i] = unseen;
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = keys[i],
                                    .view = views[i],
                                    .deadline_ns = deadline_ns};
    }
    /* The queue is as deep as the batch, so it is never too full for it. */
    status = kvt_queue_submit(queue, requests, count, NULL);
    if (status != KVT_OK) goto out;
    queue_carry_out(queue);
    done[0].struct_size = sizeof done[0];
    size_t drained = kvt_queue_drain(queue, done, count);
    assert(drained == count);
    for (size_t i = 0; i < drained; i++) {
        assert(done[i].index < count);
        statuses[done[i].index] = done[i].status;
    }
    size_t loaded = 0;
    while (loaded < count && statuses[loaded] == KVT_OK)
        loaded++;
    *loaded_out = loaded;
    /* A failed get is the end of the prefix; a call that can never succeed is an error. */
    const kvt_status last = loaded < count ? statuses[loaded] : KVT_OK;
    if (last == KVT_E_ARGUMENT || last == KVT_E_MEMORY || last == KVT_E_UNSUPPORTED) status = last;
out:
    free(statuses);
    free(requests);
    free(done);
    return status;
}

kvt_status kvt_prefix_get(kvt_store *store, const kvt_key *keys,
                          const struct kvt_view *const *views, size_t count, uint64_t deadline_ns,
                          size_t *loaded_out)
{
    const base_store_calls *other = base_store_calls_now(store);
    if (other != NULL)
        return BASE_CALL(other, prefix_get, store, keys, views, count, deadline_ns, loaded_out);
    if (store == NULL || loaded_out == NULL || count > QUEUE_DEPTH_MAX) return KVT_E_ARGUMENT;
    if (count != 0 && (keys == NULL || views == NULL)) return KVT_E_ARGUMENT;
    *loaded_out = 0;
    for (size_t i = 0; i < count; i++)
        if (views[i] == NULL) return KVT_E_ARGUMENT;
    size_t stored;
    kvt_status status = kvt_store_match(
        store, keys, count, KVT_MATCH(.hosts = true, .deadline_ns = deadline_ns), &stored);
    if (status != KVT_OK || stored == 0) return status;
    assert(stored <= count);
    bool whole = true;
    for (size_t from = 0; whole && from < stored && status == KVT_OK; from += PREFIX_CHUNK) {
        size_t part = stored - from < PREFIX_CHUNK ? stored - from : PREFIX_CHUNK;
        size_t loaded = 0;
        kvt_queue *queue = queue_make(store, (uint32_t)part, false);
        if (queue == NULL) return KVT_E_MEMORY;
        status = prefix_run(queue, &keys[from], &views[from], part, deadline_ns, &loaded);
        queue_free(queue);
        assert(loaded <= part);
        *loaded_out += loaded;
        whole = loaded == part;
    }
    return status;
}
