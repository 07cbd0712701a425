/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_load.c - the layered loads of the torture: groups of entries, read layer by layer and
 * judged as they are announced; some end in the middle, some lose their queue.
 */
#include "calls.h"

#include <stdlib.h>
#include <string.h>

enum { LOAD_KEYS = 6 };

typedef struct load_try {
    calls_thread *self;
    kvt_load *load;
    uint32_t count;
    uint32_t numbers[LOAD_KEYS];
    kvt_key keys[LOAD_KEYS];
    calls_place places[LOAD_KEYS];
    const kvt_view *views[LOAD_KEYS];
    kvt_view grouped[LOAD_KEYS];
    uint32_t versions[LOAD_KEYS]; /* 0: not known yet */
    double loss_max;
    uint64_t call;
    atomic_uint announced;
} load_try;

/* On a thread of the queue. */
static void load_announced(void *context, uint32_t layers)
{
    load_try *try = context;
    uint32_t before = atomic_exchange(&try->announced, layers);
    if (before >= layers || layers > CALLS_LAYERS)
        calls_violate(try->self->site, try->numbers[0], "announcements do not ascend", layers);
}

void calls_load_begin(calls_thread *self)
{
    if (kvt_queue_open(self->store, NULL, &self->queue) != KVT_OK)
        calls_violate(self->site, CALLS_KEYS, "a queue cannot be opened", self->number);
}

void calls_load_end(calls_thread *self)
{
    kvt_queue_close(self->queue);
    self->queue = NULL;
}

/* Judges some layers of an entry, which are of the version of those before. */
static void load_judge(load_try *try, uint32_t index, uint32_t first, uint32_t count)
{
    calls_thread *self = try->self;
    calls_site *site = self->site;
    uint32_t number = try->numbers[index];
    uint64_t back = base_clock_ns();
    calls_place_gather(&try->places[index], number, first, count, self->bytes);
    uint32_t version = calls_read(site, number, self->bytes, first, count,
                                  calls_bound(number, try->loss_max) * 1.1, self->wanted);
    if (try->versions[index] != 0 && try->versions[index] != version)
        calls_violate(site, number, "layers of a load are of two versions", version);
    try->versions[index] = version;
    calls_judge(site, number, history_get(site->history, number, version, try->call, back),
                version);
}

static bool load_begin(load_try *try)
{
    calls_thread *self = try->self;
    calls_site *site = self->site;
    static const double losses[] = {0, 0, -1, 0.01};
    uint32_t at = calls_draw(self, CALLS_KEYS), wanted = 1 + calls_draw(self, LOAD_KEYS);
    for (; try->count < wanted; at = (at + 1) % CALLS_KEYS) {
        if (calls_layout_of(at)->layers == 0) continue;
        uint32_t i = try->count++;
        try->numbers[i] = at;
        try->keys[i] = calls_key_of(at);
        try->places[i].pool = malloc(CALLS_POOL_BYTES);
        if (try->places[i].pool == NULL) abort();
        memset(try->places[i].pool, CALLS_UNTOUCHED, CALLS_POOL_BYTES);
        calls_place_make(self, at, &try->places[i]);
        const uint32_t count = calls_place_cut(at, &try->places[i]);
        try->grouped[i] = kvt_view_grouped(try->places[i].pointers, count);
        try->views[i] = count > 1 ? &try->grouped[i] : &try->places[i].view;
    }
    kvt_load_options options = {.struct_size = sizeof options,
                                .layers_ahead = calls_draw(self, 4),
                                .deadline_ns = KVT_NO_DEADLINE,
                                .announced = load_announced,
                                .announced_context = try};
    try->loss_max = losses[calls_draw(self, sizeof losses / sizeof losses[0])];
    options.loss_max = try->loss_max;
    try->call = base_clock_ns();
    if (calls_draw(self, 6) == 0) options.deadline_ns = try->call + calls_draw(self, 5000000);
    kvt_status status =
        kvt_load_begin(self->queue, try->keys, try->views, try->count, &options, &try->load);
    if (status == KVT_OK) {
        atomic_fetch_add(&site->counts.loads, 1);
        return true;
    }
    if (status != KVT_MISS) calls_violate(site, try->numbers[0], "a load ended with", status);
    return false;
}

static void load_follow(load_try *try)
{
    calls_thread *self = try->self;
    uint32_t stop = calls_draw(self, 4) == 0 ? calls_draw(self, CALLS_LAYERS) : CALLS_LAYERS;
    for (uint32_t layer = 0; layer < stop; layer++) {
        uint64_t patience = calls_draw(self, 8) == 0 ? CALLS_MS : 120 * CALLS_SECOND;
        kvt_status status = kvt_load_wait(try->load, layer + 1, base_clock_ns() + patience);
        if (status == KVT_E_TIMEOUT && patience > CALLS_SECOND &&
            base_clock_ns() > try->call + patience)
            calls_violate(self->site, try->numbers[0], "a load does not end", layer);
        if (status != KVT_OK) return;
        if (kvt_load_layers(try->load) <= layer)
            calls_violate(self->site, try->numbers[0], "a layer was taken back", layer);
        atomic_fetch_add(&self->site->counts.layers, 1);
        for (uint32_t i = 0; i < try->count; i++) {
            kvt_status now = kvt_load_status(try->load, i);
            if (now == KVT_OK || now == KVT_QUEUED) load_judge(try, i, layer, 1);
        }
        kvt_load_release(try->load, layer + 1 + calls_draw(self, 2));
    }
}

static void load_end(load_try *try)
{
    calls_thread *self = try->self;
    calls_site *site = self->site;
    kvt_status statuses[LOAD_KEYS];
    kvt_load_result result = {.struct_size = sizeof result};
    uint32_t whole = 0;
    if (kvt_load_end(try->load, statuses, &result) != KVT_OK)
        calls_violate(site, try->numbers[0], "a load cannot be ended", 0);
    while (whole < try->count && statuses[whole] == KVT_OK)
        whole++;
    if (result.entries != whole || result.layers > CALLS_LAYERS)
        calls_violate(site, try->numbers[0], "a load's result does not add up", whole);
    for (uint32_t i = 0; i < try->count; i++) {
        bool usual =
            statuses[i] == KVT_OK || statuses[i] == KVT_MISS || statuses[i] == KVT_E_TIMEOUT;
        if (!usual) calls_violate(site, try->numbers[i], "an entry's load ended with", statuses[i]);
        if (statuses[i] == KVT_OK) load_judge(try, i, 0, CALLS_LAYERS);
        if (statuses[i] == KVT_OK) atomic_fetch_add(&site->counts.hits, 1);
    }
}

void calls_load_step(calls_thread *self)
{
    load_try try = {.self = self};
    if (load_begin(&try)) {
        load_follow(&try);
        if (calls_draw(self, 24) == 0) { /* the queue goes first */
            kvt_queue_close(self->queue);
            load_end(&try);
            calls_load_begin(self);
        } else {
            load_end(&try);
        }
    }
    for (uint32_t i = 0; i < try.count; i++) {
        calls_place_wipe(self->site, &try.places[i], try.numbers[i], 0, CALLS_LAYERS);
        free(try.places[i].pool);
    }
}
