/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_queue.c - the batches of a run under a schedule: what a caller asks for through a queue
 * of its own is judged as its blocking calls are.
 */
#include "codecs/view_rows.h"
#include "schedule_run.h"

#include "base/clock.h"
#include "expected.h"
#include "queued.h"
#include "schedule.h"

#include <string.h>

/* A batch of gets of any keys, and in its middle a put or a delete of the caller's own key. */
typedef struct run_request_batch {
    kvt_request requests[RUN_BATCH];
    uint32_t numbers[RUN_BATCH];
    kvt_view views[RUN_BATCH];
    run_key before[RUN_BATCH];
    kvt_entry entry;
    uint32_t version; /* of the put; 0: there is none */
} run_request_batch;

static void run_make_batch(run_caller *caller, uint32_t own, run_request_batch *batch)
{
    run_site *site = caller->site;
    for (uint32_t i = 0; i < RUN_BATCH; i++) {
        uint32_t number = i == 1 ? own : run_draw(site, RUN_HOT_KEYS);
        const kvt_layout layout = expected_layout_of(number);
        batch->numbers[i] = number;
        batch->views[i] = codecs_packed_view(&layout, caller->places[i]);
        batch->requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                           .kind = KVT_REQUEST_GET,
                                           .urgency = run_draw(site, 3),
                                           .key = expected_key_of(number),
                                           .view = &batch->views[i],
                                           .deadline_ns = KVT_NO_DEADLINE,
                                           .user = i};
        if (run_draw(site, 4) == 0)
            batch->requests[i].deadline_ns = base_clock_ns() + run_draw(site, 6000000);
    }
    uint32_t kind = run_draw(site, 4);
    if (kind == 0) batch->requests[1].kind = KVT_REQUEST_DELETE;
    if (kind == 1) batch->version = run_begin_version(site, own);
    if (batch->version == 0) return;
    batch->entry = run_entry(own);
    batch->requests[1].kind = KVT_REQUEST_PUT;
    batch->requests[1].entry = &batch->entry;
    expected_fill(own, batch->version, caller->places[1]);
}

static void run_judge_batch(run_caller *caller, const run_request_batch *batch, uint32_t i,
                            kvt_status status)
{
    run_site *site = caller->site;
    uint32_t number = batch->numbers[i], kind = batch->requests[i].kind;
    bool ended = status == KVT_E_CANCELLED || status == KVT_E_TIMEOUT;
    if (kind == KVT_REQUEST_PUT) {
        run_end_version(site, number, batch->version, ended ? KVT_REFUSED : status);
    } else if (kind == KVT_REQUEST_DELETE) {
        if (!ended) run_end_delete(site, number, batch->before[i].begun, status);
    } else if (status == KVT_OK) {
        memcpy(caller->data, caller->places[i], expected_bytes_of(number));
        expected_fill(number, expected_version_of(caller->data), caller->expected);
        run_check_value(caller, number, &batch->before[i]);
    } else if (status != KVT_MISS && !ended && (status != KVT_E_MEMORY || !site->faulty)) {
        run_complain("a request's get ended with", number, (uint64_t)-status);
    }
    schedule_note("request", (uint64_t)number << 8 | kind, (uint64_t)(int64_t)status);
}

void run_batch(run_caller *caller, uint32_t own)
{
    run_site *site = caller->site;
    run_request_batch batch = {.version = 0};
    kvt_completion done[RUN_BATCH];
    uint64_t number = 0;
    run_make_batch(caller, own, &batch);
    for (uint32_t i = 0; i < RUN_BATCH; i++)
        batch.before[i] = site->keys[batch.numbers[i]];
    kvt_status status = kvt_queue_submit(caller->queue, batch.requests, RUN_BATCH, &number);
    if (status != KVT_OK) run_complain("a submit failed", own, (uint64_t)-status);
    if (run_draw(site, 6) == 0) {
        base_sleep(run_draw(site, 4) * RUN_MS);
        (void)!kvt_queue_cancel(caller->queue, number);
    }
    queued_await(caller->queue, RUN_BATCH, done);
    for (uint32_t i = 0; i < RUN_BATCH; i++)
        run_judge_batch(caller, &batch, i, done[i].status);
    site->counts.batches++;
}
