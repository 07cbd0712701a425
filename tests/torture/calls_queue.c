/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_queue.c - the requests of the torture: mixed batches into queues that threads share and
 * into queues of their own, cancelled now and then, and closed with requests in flight.
 *
 * A request has a slot, which its user word names. Whoever drains the completion judges it and
 * frees the slot, so each request completes once or its slot says otherwise.
 */
#include "calls.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_SLOTS = 24, QUEUE_BATCH = 12, QUEUE_DRAINED = 16, QUEUE_KIND_UNKNOWN = 77 };

typedef enum slot_state { SLOT_FREE, SLOT_IN_FLIGHT } slot_state;

struct calls_slot {
    atomic_int state;
    atomic_bool cancelled; /* a cancel of its batch has begun */
    atomic_ullong batch;   /* for its owner */
    kvt_queue *queue;
    uint32_t index;
    uint32_t kind;
    uint32_t number;
    uint32_t version; /* of a put */
    bool unsound;     /* it must not succeed */
    uint64_t call;
    kvt_entry entry;
    kvt_key parent;
    kvt_request request;
    kvt_view grouped; /* of the request, of an entry with groups */
    calls_place place;
};

/* ---- completions ---- */

static void slot_free(calls_slot *slot)
{
    atomic_store(&slot->state, SLOT_FREE);
}

static uint32_t slot_layers(const calls_slot *slot)
{
    uint32_t all = calls_layout_of(slot->number)->layers;
    if (all == 0) return 1;
    return slot->request.layer_count != 0 ? slot->request.layer_count
                                          : all - slot->request.first_layer;
}

static void slot_judge_get(calls_thread *self, calls_slot *slot, const kvt_completion *done,
                           uint64_t back)
{
    calls_site *site = self->site;
    uint32_t number = slot->number, first = slot->request.first_layer, count = slot_layers(slot);
    atomic_fetch_add(&site->counts.gets, 1);
    if (done->timed_out) atomic_fetch_add(&site->counts.timed_out, 1);
    if (done->refused_loss) atomic_fetch_add(&site->counts.refused_loss, 1);
    if (done->status == KVT_OK) {
        atomic_fetch_add(&site->counts.hits, 1);
        double bound = calls_bound_of(site, number, slot->request.loss_max, done->variant);
        calls_place_gather(&slot->place, number, first, count, self->bytes);
        uint32_t version = calls_read(site, number, self->bytes, first, count, bound, self->wanted);
        calls_judge(site, number, history_get(site->history, number, version, slot->call, back),
                    version);
    } else if (done->status != KVT_MISS && done->status != KVT_E_CANCELLED && !slot->unsound) {
        calls_violate(site, number, "a request's get ended with", done->status);
    }
    calls_place_wipe(site, &slot->place, number, first, count);
}

static void slot_judge_found(calls_thread *self, const calls_slot *slot, kvt_status status,
                             uint64_t back)
{
    calls_site *site = self->site;
    bool usual = status >= 0 || status == KVT_E_TIMEOUT || status == KVT_E_CANCELLED;
    if (!usual) calls_violate(site, slot->number, "a request ended with", status);
    if (status == KVT_OK)
        calls_judge(site, slot->number,
                    history_found(site->history, slot->number, slot->call, back), slot->kind);
}

/* What a request of a kind says, after it has been drained. */
static void slot_judge(calls_thread *self, calls_slot *slot, const kvt_completion *done,
                       uint64_t back)
{
    calls_site *site = self->site;
    bool moves = slot->kind == KVT_REQUEST_GET || slot->kind == KVT_REQUEST_PUT;
    if (slot->unsound && !moves) return;
    switch (slot->kind) {
    case KVT_REQUEST_GET: slot_judge_get(self, slot, done, back); break;
    case KVT_REQUEST_PUT:
        if (!slot->unsound)
            calls_note_put(site, slot->number, slot->version, slot->call, back, done->status,
                           slot->entry.lifetime_seconds);
        calls_place_wipe(site, &slot->place, slot->number, 0, CALLS_LAYERS);
        break;
    case KVT_REQUEST_DELETE:
        atomic_fetch_add(&site->counts.deletes, 1);
        if (done->status == KVT_OK || done->status == KVT_MISS)
            history_removed(site->history, slot->number, slot->call, back);
        else if (done->status < 0 && done->status != KVT_E_TIMEOUT &&
                 done->status != KVT_E_CANCELLED)
            calls_violate(site, slot->number, "a request's delete ended with", done->status);
        break;
    case KVT_REQUEST_EXISTS:
    case KVT_REQUEST_TOUCH:
    case KVT_REQUEST_PREFETCH: slot_judge_found(self, slot, done->status, back); break;
    default: break;
    }
}

static void queue_handle(calls_thread *self, const kvt_completion *done, uint64_t back)
{
    calls_site *site = self->site;
    calls_slot *slot = (calls_slot *)(uintptr_t)done->user;
    atomic_fetch_add(&site->counts.completions, 1);
    if (atomic_load(&slot->state) != SLOT_IN_FLIGHT)
        calls_violate(site, slot->number, "a request has completed twice", done->status);
    if (done->kind != slot->kind || done->index != slot->index || done->batch == 0)
        calls_violate(site, slot->number, "a completion is another request's", done->index);
    if (slot->queue == self->queue && done->batch != slot->batch)
        calls_violate(site, slot->number, "a completion is another batch's", done->index);
    if (done->status == KVT_E_CANCELLED) {
        atomic_fetch_add(&site->counts.cancelled, 1);
        if (!slot->cancelled && !site->closing)
            calls_violate(site, slot->number, "a request was cancelled by nobody", 0);
    }
    if (done->status == KVT_E_TIMEOUT && slot->request.deadline_ns == KVT_NO_DEADLINE)
        calls_violate(site, slot->number, "a request without a deadline is late", 0);
    if (slot->unsound && done->status == KVT_OK)
        calls_violate(site, slot->number, "an unsound request has succeeded", slot->kind);
    slot_judge(self, slot, done, back);
    slot_free(slot);
}

static uint32_t queue_drain_some(calls_thread *self, kvt_queue *queue)
{
    kvt_completion done[QUEUE_DRAINED] = {{.struct_size = sizeof(kvt_completion)}};
    size_t count = kvt_queue_drain(queue, done, 1 + calls_draw(self, QUEUE_DRAINED));
    uint64_t back = base_clock_ns();
    for (size_t i = 0; i < count; i++)
        queue_handle(self, &done[i], back);
    return (uint32_t)count;
}

/* ---- requests ---- */

static uint32_t queue_kind(calls_thread *self)
{
    uint32_t choice = calls_draw(self, 100);
    if (choice < 50) return KVT_REQUEST_GET;
    if (choice < 75) return KVT_REQUEST_PUT;
    if (choice < 82) return KVT_REQUEST_DELETE;
    if (choice < 89) return KVT_REQUEST_EXISTS;
    if (choice < 95) return KVT_REQUEST_PREFETCH;
    return KVT_REQUEST_TOUCH;
}

static void slot_make(calls_thread *self, calls_slot *slot, kvt_queue *queue, uint32_t index)
{
    static const double losses[] = {0, 0, 0, -1, 0.0015, 0.01};
    calls_site *site = self->site;
    uint32_t number = calls_draw(self, calls_draw(self, 2) == 0 ? CALLS_KEYS / 6 : CALLS_KEYS);
    uint32_t layers = calls_layout_of(number)->layers;
    slot->queue = queue;
    slot->index = index;
    slot->kind = queue_kind(self);
    slot->number = number;
    slot->version = 0;
    slot->unsound = false;
    slot->cancelled = false;
    slot->batch = 0;
    calls_place_make(self, number, &slot->place);
    slot->call = base_clock_ns();
    slot->request = (kvt_request){.struct_size = sizeof slot->request,
                                  .kind = slot->kind,
                                  .urgency = calls_draw(self, 3),
                                  .deadline_ns = KVT_NO_DEADLINE,
                                  .key = calls_key_of(number),
                                  .user = (uint64_t)(uintptr_t)slot};
    kvt_request *request = &slot->request;
    uint32_t late = calls_draw(self, 8);
    if (late == 0) request->deadline_ns = slot->call + calls_draw(self, 20) * CALLS_MS;
    if (late == 1) request->deadline_ns = slot->call + calls_draw(self, 500000);
    if (slot->kind == KVT_REQUEST_PREFETCH) request->tier = KVT_TIER_HBM + calls_draw(self, 2);
    if (slot->kind == KVT_REQUEST_GET) {
        request->view = &slot->place.view;
        request->loss_max = losses[calls_draw(self, sizeof losses / sizeof losses[0])];
        if (layers > 1 && calls_draw(self, 3) == 0) {
            request->first_layer = calls_draw(self, layers);
            request->layer_count = calls_draw(self, layers - request->first_layer + 1);
        }
    }
    if (calls_draw(self, 40) == 0) {
        /* Make a sound request one that cannot succeed. */
        slot->unsound = true;
        bool moves = slot->kind == KVT_REQUEST_GET || slot->kind == KVT_REQUEST_PUT;
        switch (calls_draw(self, 4)) {
        case 0:
            slot->kind = QUEUE_KIND_UNKNOWN;
            slot->request.kind = QUEUE_KIND_UNKNOWN;
            break;
        case 1: slot->request.urgency = 3; break;
        case 2: slot->request.loss_max = NAN; break;
        default:
            if (moves)
                slot->place.view.base_bytes[0] = 64; /* elements leave their buffer */
            else
                slot->request.urgency = UINT32_MAX;
        }
    }
    if (slot->kind != KVT_REQUEST_PUT) return;
    slot->parent = calls_key_of(number - number % 4);
    slot->entry = calls_entry_of(number, number % 4 == 0 ? NULL : &slot->parent);
    if (calls_may_expire(number) && calls_draw(self, 4) == 0)
        slot->entry.lifetime_seconds = 0.02 + 0.05 * calls_draw(self, 8);
    request->view = &slot->place.view;
    request->entry = &slot->entry;
    if (!slot->unsound) slot->version = history_put_begin(site->history, number, slot->call);
    calls_fill(number, slot->version, self->bytes);
    calls_place_scatter(&slot->place, number, self->bytes);
}

/* What a submit has not accepted ends here. */
static void slot_refuse(calls_thread *self, calls_slot *slot)
{
    if (slot->kind == KVT_REQUEST_PUT && !slot->unsound)
        (void)history_put_end(self->site->history, slot->number, slot->version, base_clock_ns(),
                              HISTORY_REJECTED);
    calls_place_wipe(self->site, &slot->place, slot->number, 0, CALLS_LAYERS);
    slot_free(slot);
}

static void queue_submit(calls_thread *self, kvt_queue *queue)
{
    kvt_request requests[QUEUE_BATCH];
    calls_slot *slots[QUEUE_BATCH];
    uint32_t count = 0, wanted = 1 + calls_draw(self, QUEUE_BATCH);
    for (uint32_t i = 0; i < QUEUE_SLOTS && count < wanted; i++) {
        calls_slot *slot = &self->slots[i];
        if (atomic_load(&slot->state) != SLOT_FREE) continue;
        slot_make(self, slot, queue, count);
        /* A request of a key with groups has a view for each. */
        kvt_request *request = &slot->request;
        if (request->view != NULL && calls_groups_of(slot->number) != NULL) {
            slot->grouped =
                kvt_view_grouped(slot->place.pointers, calls_place_cut(slot->number, &slot->place));
            request->view = &slot->grouped;
        }
        requests[count] = slot->request;
        slots[count++] = slot;
    }
    for (uint32_t i = 0; i < count; i++)
        atomic_store(&slots[i]->state, SLOT_IN_FLIGHT);
    uint64_t batch = 0;
    kvt_status status = kvt_queue_submit(queue, requests, count, &batch);
    if (status == KVT_OK) {
        atomic_fetch_add(&self->site->counts.requests, count);
        for (uint32_t i = 0; i < count; i++)
            slots[i]->batch = batch;
        return;
    }
    if (status != KVT_BUSY) calls_violate(self->site, CALLS_KEYS, "a submit ended with", status);
    for (uint32_t i = 0; i < count; i++)
        slot_refuse(self, slots[i]);
}

static void queue_cancel(calls_thread *self)
{
    calls_slot *chosen = &self->slots[calls_draw(self, QUEUE_SLOTS)];
    uint64_t batch = chosen->batch;
    if (atomic_load(&chosen->state) != SLOT_IN_FLIGHT || batch == 0) return;
    kvt_queue *queue = chosen->queue;
    for (uint32_t i = 0; i < QUEUE_SLOTS; i++)
        if (self->slots[i].batch == batch && self->slots[i].queue == queue)
            self->slots[i].cancelled = true;
    kvt_status status = kvt_queue_cancel(queue, batch);
    atomic_fetch_add(&self->site->counts.cancels, 1);
    if (status != KVT_OK && status != KVT_MISS)
        calls_violate(self->site, chosen->number, "a cancel ended with", status);
}

/* ---- life ---- */

static void queue_open_own(calls_thread *self)
{
    const kvt_queue_options options = {.struct_size = sizeof options,
                                       .threads = 1 + calls_draw(self, 3),
                                       .depth = QUEUE_BATCH + calls_draw(self, 32)};
    if (kvt_queue_open(self->store, &options, &self->queue) != KVT_OK)
        calls_violate(self->site, CALLS_KEYS, "a queue cannot be opened", self->number);
}

void calls_queue_begin(calls_thread *self)
{
    if (self->slots == NULL) {
        self->slots = calloc(QUEUE_SLOTS, sizeof *self->slots);
        for (uint32_t i = 0; self->slots != NULL && i < QUEUE_SLOTS; i++) {
            self->slots[i].place.pool = malloc(CALLS_POOL_BYTES);
            if (self->slots[i].place.pool == NULL) abort();
            memset(self->slots[i].place.pool, CALLS_UNTOUCHED, CALLS_POOL_BYTES);
        }
        if (self->slots == NULL) abort();
    }
    queue_open_own(self);
}

void calls_queue_end(calls_thread *self)
{
    if (self->queue == NULL) return;
    kvt_queue_close(self->queue);
    atomic_fetch_add(&self->site->counts.closes, 1);
    for (uint32_t i = 0; self->slots != NULL && i < QUEUE_SLOTS; i++) {
        calls_slot *slot = &self->slots[i];
        if (slot->queue == self->queue && atomic_load(&slot->state) == SLOT_IN_FLIGHT) {
            /* The close has ended what was in flight; nobody says how. */
            if (slot->kind == KVT_REQUEST_PUT && !slot->unsound)
                (void)history_put_end(self->site->history, slot->number, slot->version,
                                      base_clock_ns(), HISTORY_UNKNOWN);
            calls_place_wipe(self->site, &slot->place, slot->number, 0, CALLS_LAYERS);
            slot_free(slot);
        }
        if (slot->queue == self->queue) slot->queue = NULL; /* another may get its address */
    }
    self->queue = NULL;
}

void calls_queue_drain(calls_thread *helper, kvt_queue *queue)
{
    for (;;) {
        kvt_status status = kvt_queue_wait(queue, base_clock_ns() + 120 * CALLS_SECOND);
        if (status == KVT_END) return;
        if (status != KVT_OK)
            calls_violate(helper->site, CALLS_KEYS, "a queue does not end its requests", status);
        (void)queue_drain_some(helper, queue);
    }
}

void calls_queue_check(calls_thread *self)
{
    for (uint32_t i = 0; self->slots != NULL && i < QUEUE_SLOTS; i++)
        if (atomic_load(&self->slots[i].state) != SLOT_FREE)
            calls_violate(self->site, self->slots[i].number, "a request has not completed", i);
}

static void queue_look(calls_thread *self, kvt_queue *queue)
{
    kvt_queue_stats stats = {.struct_size = sizeof stats};
    struct pollfd poller = {.fd = kvt_queue_fd(queue), .events = POLLIN};
    switch (calls_draw(self, 3)) {
    case 0: (void)!kvt_queue_wait(queue, base_clock_ns() + CALLS_MS); break;
    case 1: (void)!poll(&poller, 1, 1); break;
    default:
        if (kvt_queue_stats_get(queue, &stats) != KVT_OK || stats.completed > stats.requests)
            calls_violate(self->site, CALLS_KEYS, "a queue's counts do not add up",
                          (int64_t)stats.completed);
    }
}

void calls_queue_step(calls_thread *self)
{
    kvt_queue *queue = self->queue;
    if (calls_draw(self, 2) == 0) queue = self->shared[calls_draw(self, CALLS_SHARED_QUEUES)];
    uint32_t choice = calls_draw(self, 1000);
    if (choice < 400) {
        queue_submit(self, queue);
    } else if (choice < 900) {
        if (queue_drain_some(self, queue) == 0) queue_look(self, queue);
    } else if (choice < 960) {
        queue_look(self, queue);
    } else if (choice < 995) {
        queue_cancel(self);
    } else {
        calls_queue_end(self);
        queue_open_own(self);
    }
}
