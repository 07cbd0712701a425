/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_direct.c - the blocking calls of the torture: gets, puts, removals, lookups of prefixes,
 * leases, and what keeps a store.
 */
#include "calls.h"
#include "codecs/view_rows.h"

#include <kvterrace/lookup.h>

#include <stdlib.h>
#include <string.h>

enum { DIRECT_KEYS = 6, DIRECT_TEXT = 8192 };

static uint32_t direct_number(calls_thread *self)
{
    return calls_draw(self, calls_draw(self, 2) == 0 ? CALLS_KEYS / 6 : CALLS_KEYS);
}

/* ---- gets ---- */

static void direct_get(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t number = direct_number(self);
    kvt_key key = calls_key_of(number);
    uint64_t bytes = calls_bytes_of(number), call = base_clock_ns();
    kvt_get_info info = {.struct_size = sizeof info};
    uint64_t deadline_ns =
        calls_draw(self, 4) == 0 ? call + calls_draw(self, 3000000) : KVT_NO_DEADLINE;
    kvt_status status =
        kvt_store_get(self->store, &key, KVT_PACKED(self->bytes, bytes), deadline_ns, &info);
    uint64_t back = base_clock_ns();
    atomic_fetch_add(&site->counts.gets, 1);
    if (info.timed_out) atomic_fetch_add(&site->counts.timed_out, 1);
    if (status == KVT_MISS) return;
    if (status != KVT_OK) calls_violate(site, number, "a get ended with", status);
    atomic_fetch_add(&site->counts.hits, 1);
    double bound = calls_bound_of(site, number, 0, info.variant);
    uint32_t layers = calls_layout_of(number)->layers;
    uint32_t version =
        calls_read(site, number, self->bytes, 0, layers != 0 ? layers : 1, bound, self->wanted);
    calls_judge(site, number, history_get(site->history, number, version, call, back), version);
}

static void direct_get_view(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t number = direct_number(self), layers = calls_layout_of(number)->layers;
    kvt_key key = calls_key_of(number);
    calls_place place = {.pool = self->pool};
    calls_place_make(self, number, &place);
    kvt_get_info info = {.struct_size = sizeof info};
    uint64_t call = base_clock_ns();
    const uint32_t groups = calls_place_cut(number, &place);
    kvt_status status = groups > 1
                            ? kvt_store_get(self->store, &key, KVT_GROUPED(place.pointers, groups),
                                            KVT_NO_DEADLINE, &info)
                            : kvt_store_get(self->store, &key, &place.view, KVT_NO_DEADLINE, &info);
    uint64_t back = base_clock_ns();
    if (layers == 0) layers = 1;
    atomic_fetch_add(&site->counts.gets, 1);
    if (status == KVT_OK) {
        atomic_fetch_add(&site->counts.hits, 1);
        calls_place_gather(&place, number, 0, layers, self->bytes);
        uint32_t version = calls_read(site, number, self->bytes, 0, layers,
                                      calls_bound_of(site, number, 0, info.variant), self->wanted);
        calls_judge(site, number, history_get(site->history, number, version, call, back), version);
    } else if (status != KVT_MISS) {
        calls_violate(site, number, "a get into a view ended with", status);
    }
    calls_place_wipe(site, &place, number, 0, layers);
}

/* The run of a prefix, packed one behind the other. */
static void direct_get_prefix(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t first = direct_number(self) % (CALLS_KEYS - DIRECT_KEYS);
    kvt_key keys[DIRECT_KEYS];
    kvt_view views[DIRECT_KEYS];
    const kvt_view *given[DIRECT_KEYS];
    uint64_t at[DIRECT_KEYS], sum = 0;
    uint32_t count = 0;
    for (; count < DIRECT_KEYS; count++) {
        uint64_t bytes = calls_bytes_of(first + count);
        if (sum + bytes > CALLS_POOL_BYTES) break;
        if (calls_groups_of(first + count) != NULL) break; /* it has more than one view */
        keys[count] = calls_key_of(first + count);
        views[count] = codecs_packed_view(calls_layout_of(first + count), self->pool + sum);
        given[count] = &views[count];
        at[count] = sum;
        sum += bytes;
    }
    size_t loaded = 0;
    uint64_t call = base_clock_ns();
    uint64_t deadline_ns =
        calls_draw(self, 3) == 0 ? call + calls_draw(self, 3000000) : KVT_NO_DEADLINE;
    kvt_status status = kvt_prefix_get(self->store, keys, given, count, deadline_ns, &loaded);
    uint64_t back = base_clock_ns();
    if (status != KVT_OK || loaded > count)
        calls_violate(site, first, "a get of a prefix ended with", status);
    atomic_fetch_add(&site->counts.gets, 1);
    for (uint32_t i = 0; i < loaded; i++) {
        uint32_t number = first + i, layers = calls_layout_of(number)->layers;
        /* No variant is told: the widest bound that there is. */
        uint32_t version = calls_read(site, number, self->pool + at[i], 0, layers != 0 ? layers : 1,
                                      calls_bound(number, 0) * 1.1, self->wanted);
        calls_judge(site, number, history_get(site->history, number, version, call, back), version);
        atomic_fetch_add(&site->counts.hits, 1);
    }
    memset(self->pool, CALLS_UNTOUCHED, CALLS_POOL_BYTES);
}

/* ---- puts and removals ---- */

kvt_entry calls_entry_of(uint32_t number, const kvt_key *parent)
{
    static const kvt_layout none;
    const kvt_layout *groups = calls_groups_of(number);
    return (kvt_entry){.struct_size = sizeof(kvt_entry),
                       .key = calls_key_of(number),
                       .parent = parent,
                       .layout = groups == NULL ? *calls_layout_of(number) : none,
                       .groups = groups,
                       .group_count = groups != NULL ? CALLS_GROUPS : 0,
                       .first_position = 64,
                       .recompute_seconds = calls_is_lossy(number) ? 1e4 : 1 + number % 5,
                       .class_id = number % 5,
                       .tenant = calls_tenant_of(number)};
}

void calls_note_put(calls_site *site, uint32_t number, uint32_t version, uint64_t call,
                    uint64_t back, kvt_status status, double lifetime_seconds)
{
    history *all = site->history;
    atomic_fetch_add(&site->counts.puts, 1);
    bool kept = status == KVT_OK;
    calls_judge(site, number,
                history_put_end(all, number, version, back, kept ? HISTORY_KEPT : HISTORY_REJECTED),
                status);
    if (kept) atomic_fetch_add(&site->counts.kept, 1);
    if (kept && lifetime_seconds > 0)
        history_expire(all, number, version, back + (uint64_t)(lifetime_seconds * 1e9) + 1);
    if (status == KVT_EXISTS)
        calls_judge(site, number, history_found(all, number, call, back), status);
    bool usual = status >= 0 || status == KVT_E_SPACE || status == KVT_E_TIMEOUT ||
                 status == KVT_E_CANCELLED;
    if (!usual) calls_violate(site, number, "a put ended with", status);
}

static void direct_put(calls_thread *self, bool by_view)
{
    calls_site *site = self->site;
    uint32_t number = direct_number(self);
    kvt_key parent = calls_key_of(number - number % 4);
    kvt_entry entry = calls_entry_of(number, number % 4 == 0 ? NULL : &parent);
    if (calls_may_expire(number) && calls_draw(self, 4) == 0)
        entry.lifetime_seconds = 0.02 + 0.05 * calls_draw(self, 8);
    uint64_t call = base_clock_ns();
    uint32_t version = history_put_begin(site->history, number, call);
    calls_fill(number, version, self->bytes);
    kvt_status status;
    if (by_view) {
        calls_place place = {.pool = self->pool};
        calls_place_make(self, number, &place);
        calls_place_scatter(&place, number, self->bytes);
        const uint32_t groups = calls_place_cut(number, &place);
        status = groups > 1
                     ? kvt_store_put(self->store, &entry, KVT_GROUPED(place.pointers, groups))
                     : kvt_store_put(self->store, &entry, &place.view);
        memset(self->pool, CALLS_UNTOUCHED, CALLS_POOL_BYTES);
    } else {
        status =
            kvt_store_put(self->store, &entry, KVT_PACKED(self->bytes, calls_bytes_of(number)));
        memset(self->bytes, 0xdd, calls_bytes_of(number));
    }
    calls_note_put(site, number, version, call, base_clock_ns(), status, entry.lifetime_seconds);
}

static void direct_delete(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t number = direct_number(self);
    if (calls_is_lossy(number) && calls_draw(self, 4) != 0) return; /* it gets coarser by and by */
    kvt_key key = calls_key_of(number);
    uint64_t call = base_clock_ns();
    kvt_status status = kvt_store_delete(self->store, &key);
    atomic_fetch_add(&site->counts.deletes, 1);
    if (status == KVT_OK || status == KVT_MISS)
        history_removed(site->history, number, call, base_clock_ns());
    else if (status != KVT_BUSY)
        calls_violate(site, number, "a delete ended with", status);
}

static void direct_clear(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t of = direct_number(self);
    kvt_clear_filter filter = {.struct_size = sizeof filter, .by_space = calls_draw(self, 2) == 0};
    filter.by_tenant = !filter.by_space || calls_draw(self, 2) == 0;
    if (filter.by_space) filter.space = calls_space_of(of);
    if (filter.by_tenant) filter.tenant = calls_tenant_of(of);
    uint64_t call = base_clock_ns(), removed = 0;
    kvt_status status = kvt_store_clear(self->store, &filter, &removed);
    uint64_t back = base_clock_ns();
    if (status == KVT_BUSY) return;
    if (status != KVT_OK) calls_violate(site, of, "a clear ended with", status);
    for (uint32_t i = 0; i < CALLS_KEYS; i++)
        if ((!filter.by_space || calls_space_of(i) == filter.space) &&
            (!filter.by_tenant || calls_tenant_of(i) == filter.tenant))
            history_cleared(site->history, i, call, back);
}

/* ---- lookups ---- */

static void direct_describe(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t number = direct_number(self);
    kvt_key key = calls_key_of(number);
    kvt_description what = {.struct_size = sizeof what};
    uint64_t call = base_clock_ns();
    kvt_status status = kvt_store_describe(self->store, &key, &what);
    uint64_t back = base_clock_ns();
    if (status == KVT_MISS) return;
    if (status != KVT_OK) calls_violate(site, number, "a description ended with", status);
    calls_judge(site, number, history_found(site->history, number, call, back), 0);
    const kvt_layout *layout = calls_layout_of(number);
    const uint32_t layers = calls_groups_of(number) == NULL ? layout->layers : 0;
    if (what.bytes != calls_bytes_of(number) || what.tenant != calls_tenant_of(number) ||
        what.layout.tokens != layout->tokens || what.layout.layers != layers)
        calls_violate(site, number, "a description is not the entry's", (int64_t)what.bytes);
    (void)calls_bound_of(site, number, 0, what.variant);
}

/* A run of keys: what is said to be stored was, at some time during the call. */
static void direct_match(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t first = direct_number(self) % (CALLS_KEYS - DIRECT_KEYS);
    kvt_key keys[DIRECT_KEYS];
    double seconds[DIRECT_KEYS];
    for (uint32_t i = 0; i < DIRECT_KEYS; i++)
        keys[i] = calls_key_of(first + i);
    size_t stored = 0;
    kvt_worth worth = {.struct_size = sizeof worth};
    uint64_t call = base_clock_ns();
    kvt_status status = KVT_OK;
    switch (calls_draw(self, 4)) {
    case 0: status = kvt_store_match(self->store, keys, DIRECT_KEYS, NULL, &stored); break;
    case 1:
        status = kvt_store_match(self->store, keys, DIRECT_KEYS, KVT_MATCH(.worth = &worth), NULL);
        stored = worth.stored;
        if (worth.to_load > worth.stored || !(worth.load_seconds >= 0))
            calls_violate(site, first, "a worth does not add up", (int64_t)worth.to_load);
        break;
    case 2: stored = kvt_store_exists(self->store, keys) == KVT_OK ? 1 : 0; break;
    default:
        status = kvt_store_match(self->store, keys, DIRECT_KEYS, KVT_MATCH(.load_seconds = seconds),
                                 NULL);
    }
    uint64_t back = base_clock_ns();
    if (status != KVT_OK || stored > DIRECT_KEYS)
        calls_violate(site, first, "a lookup ended with", status);
    for (uint32_t i = 0; i < stored; i++)
        calls_judge(site, first + i, history_found(site->history, first + i, call, back), i);
}

static void direct_evidence(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t first = direct_number(self) % (CALLS_KEYS - DIRECT_KEYS);
    kvt_key keys[DIRECT_KEYS];
    for (uint32_t i = 0; i < DIRECT_KEYS; i++)
        keys[i] = calls_key_of(first + i);
    size_t counted = 0;
    kvt_expectation expected = {.struct_size = sizeof expected,
                                .kind = calls_draw(self, KVT_HINT_KINDS),
                                .seconds = calls_draw(self, 2) == 0 ? 0 : 0.5};
    kvt_status status = KVT_OK;
    switch (calls_draw(self, 3)) {
    case 0: status = kvt_store_touch(self->store, keys, DIRECT_KEYS, &counted); break;
    case 1: status = kvt_store_hint(self->store, keys, DIRECT_KEYS, &expected, &counted); break;
    default:
        status =
            kvt_store_prefetch(self->store, keys, (kvt_tier)(KVT_TIER_HBM + calls_draw(self, 2)));
    }
    if (status < 0 && status != KVT_E_ARGUMENT)
        calls_violate(site, first, "evidence ended with", status);
    if (counted > DIRECT_KEYS)
        calls_violate(site, first, "too many were counted", (int64_t)counted);
}

/* ---- leases ---- */

/* What the store says of trouble that may end the hold of an entry. */
static uint64_t direct_trouble(const calls_thread *self)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(self->store, &stats) != KVT_OK) return UINT64_MAX;
    return stats.quarantined + stats.load_failures + stats.leases.lost + stats.expired;
}

/* A held entry is got and cannot be deleted, as long as no drive is disturbed. */
static void direct_use_lease(calls_thread *self, uint32_t number, uint32_t faults, uint64_t trouble,
                             uint64_t until)
{
    calls_site *site = self->site;
    kvt_key key = calls_key_of(number);
    uint64_t bytes = calls_bytes_of(number);
    uint64_t call = base_clock_ns();
    bool deletes = calls_draw(self, 2) == 0;
    kvt_status status = deletes ? kvt_store_delete(self->store, &key)
                                : kvt_store_get(self->store, &key, KVT_PACKED(self->bytes, bytes),
                                                KVT_STORE_DEADLINE, NULL);
    uint64_t back = base_clock_ns();
    if (deletes && (status == KVT_OK || status == KVT_MISS))
        history_removed(site->history, number, call, back);
    bool held = status == (deletes ? KVT_BUSY : KVT_OK);
    if (held || back >= until || calls_may_expire(number)) return;
    if (faults % 2 != 0 || faults != site->faults) return;
    if (direct_trouble(self) != trouble) return;
    calls_violate(site, number, deletes ? "a held entry was deleted" : "a held entry is a miss",
                  status);
}

static void direct_lease(calls_thread *self)
{
    calls_site *site = self->site;
    uint32_t first = direct_number(self) % (CALLS_KEYS - DIRECT_KEYS), faults = site->faults;
    kvt_key keys[DIRECT_KEYS];
    bool held[DIRECT_KEYS] = {false};
    uint64_t trouble = direct_trouble(self), lease = 0, call = base_clock_ns();
    uint64_t until = call + (1 + calls_draw(self, 40)) * CALLS_MS;
    for (uint32_t i = 0; i < DIRECT_KEYS; i++)
        keys[i] = calls_key_of(first + i);
    kvt_queue *owner = calls_draw(self, 2) == 0 ? NULL : self->shared[0];
    kvt_status status = kvt_lease_begin(self->store, owner, keys, DIRECT_KEYS, until, held, &lease);
    uint64_t back = base_clock_ns();
    bool late = status == KVT_E_ARGUMENT && back >= until;
    if (status != KVT_OK && status != KVT_MISS && !late)
        calls_violate(site, first, "a lease ended with", status);
    if ((status == KVT_OK) != (lease != 0)) calls_violate(site, first, "a lease has no number", 0);
    if (status != KVT_OK) return;
    atomic_fetch_add(&site->counts.leases, 1);
    for (uint32_t i = 0; i < DIRECT_KEYS; i++) {
        if (!held[i]) continue;
        calls_judge(site, first + i, history_found(site->history, first + i, call, back), i);
        direct_use_lease(self, first + i, faults, trouble, until);
    }
    if (calls_draw(self, 4) == 0)
        status = kvt_lease_extend(self->store, lease, base_clock_ns() + 5 * CALLS_MS);
    if (status < 0 && status != KVT_E_ARGUMENT)
        calls_violate(site, first, "a lease's extension ended with", status);
    if (calls_draw(self, 4) == 0) return; /* it runs out */
    status = kvt_lease_end(self->store, lease);
    if (status != KVT_OK && status != KVT_MISS)
        calls_violate(site, first, "a release ended with", status);
    if (kvt_lease_end(self->store, lease) != KVT_MISS)
        calls_violate(site, first, "a lease was released twice", 0);
}

/* ---- watching ---- */

/* Lists all, few at a time, while entries come and go. */
static void direct_list(calls_thread *self)
{
    kvt_list_item items[5] = {{.struct_size = sizeof items[0]}};
    uint64_t cursor = 0;
    size_t count;
    while (kvt_store_list(self->store, NULL, &cursor, items, 5, &count) == KVT_OK)
        for (size_t i = 0; i < count; i++)
            if (items[i].stored_bytes == 0 || kvt_tier_name((int)items[i].tier) == NULL)
                calls_violate(self->site, 0, "a list gave what is no entry", KVT_OK);
}

static void direct_watch(calls_thread *self)
{
    uint32_t number = direct_number(self);
    kvt_key key = calls_key_of(number);
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    kvt_class_stats class_stats = {.struct_size = sizeof class_stats};
    kvt_device_stats device = {.struct_size = sizeof device};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_space_stats space = {.struct_size = sizeof space};
    kvt_health_item items[4] = {{.struct_size = sizeof(kvt_health_item)}};
    kvt_operation operations[32];
    char text[DIRECT_TEXT];
    size_t count;
    const kvt_tenant limits = {
        .struct_size = sizeof limits, .alpha_seconds = 10, .loss_limit = 0.05};
    switch (calls_draw(self, 12)) {
    case 0: (void)!kvt_store_explain(self->store, &key, &explanation); break;
    case 1: (void)!kvt_class_stats_get(self->store, number % 5, &class_stats); break;
    case 2: (void)!kvt_device_stats_get(self->store, number % 5, &device); break;
    case 3: (void)!kvt_space_stats_get(self->store, calls_space_of(number), &space); break;
    case 4:
    case 5: (void)!kvt_health_get(self->store, items, 4, &count, NULL); break;
    case 6: (void)!kvt_operations_get(self->store, operations, 32, &count); break;
    case 7: (void)kvt_metrics_write(self->store, text, sizeof text); break;
    case 8: (void)!kvt_tenant_set(self->store, 1 + number % 2, &limits); break;
    case 10: direct_list(self); break;
    case 9: (void)!kvt_space_set(self->store, calls_space_of(number), 0); break;
    default: (void)!kvt_store_stats_get(self->store, &stats);
    }
}

/* ---- steps ---- */

void calls_direct_step(calls_thread *self)
{
    uint32_t choice = calls_draw(self, 1000);
    if (choice < 250)
        direct_get(self);
    else if (choice < 420)
        direct_get_view(self);
    else if (choice < 470)
        direct_get_prefix(self);
    else if (choice < 700)
        direct_put(self, choice % 2 == 0);
    else if (choice < 760)
        direct_delete(self);
    else if (choice < 840)
        direct_match(self);
    else if (choice < 870)
        direct_describe(self);
    else if (choice < 910)
        direct_evidence(self);
    else if (choice < 960)
        direct_lease(self);
    else if (choice < 998)
        direct_watch(self);
    else
        direct_clear(self);
}

/* A thread that also flushes, persists and maintains, and reads the events. */
void calls_keeper_step(calls_thread *self)
{
    calls_site *site = self->site;
    kvt_persist_info info = {.struct_size = sizeof info};
    kvt_event events[64];
    kvt_events *reader = NULL;
    size_t count = 0;
    kvt_status status = KVT_OK;
    switch (calls_draw(self, 24)) {
    case 0:
    case 1: status = kvt_store_flush(self->store); break;
    case 2:
        status = kvt_store_persist(self->store, base_clock_ns() + calls_draw(self, 40) * CALLS_MS,
                                   &info);
        break;
    case 3:
    case 4: status = kvt_store_maintain(self->store, NULL); break;
    case 5:
        if (kvt_events_open(self->store, 64, &reader) != KVT_OK) break;
        for (uint32_t i = 0; i < 20; i++)
            calls_direct_step(self);
        (void)!kvt_events_drain(reader, events, 64, &count, NULL);
        kvt_events_close(reader);
        break;
    default: calls_direct_step(self);
    }
    if (status == KVT_E_ARGUMENT || status == KVT_E_STATE || status == KVT_E_DATABASE)
        calls_violate(site, CALLS_KEYS, "flush, persist or maintain ended with", status);
}
