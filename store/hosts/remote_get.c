/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_get.c - a caller's get of a key that is not here: asked for in the engine, checked,
 * decoded into the caller's place, and offered to the local tiers as a put.
 *
 * Nothing that comes from the engine is trusted: chunk heads and record must be of the key, every
 * checksum is verified by the decoder, and the layout must be the target's.
 *
 * Thread rule: any thread; no lock held at entry.
 */
#include "base/clock.h"
#include "codecs/codec_table.h"
#include "store/core/executor.h"
#include "store/core/put_plan.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/read/groups.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REMOTE_GET_MOST (UINT64_C(1) << 30) /* bytes of an entry that is asked for */

/* The tenant of a key. */
static uint32_t remote_get_tenant(kvt_store *store, const kvt_key *key)
{
    pthread_mutex_lock(&store->lock);
    const uint32_t tenant = spaces_tenant(store, key);
    pthread_mutex_unlock(&store->lock);
    return tenant;
}

bool remote_get_is_worth(kvt_store *store, const access_get *get)
{
    store_remote *remote = store->remote;
    if (get->quiet || get->source_bytes > REMOTE_GET_MOST) return false;
    if (get->target.group_count != 0) return false; /* entries of groups are not published */
    const bool absent = remote_match_hint(store, get->key) == HINT_ABSENT;
    const uint32_t tenant = remote_get_tenant(store, get->key);
    if (!absent && remote_costs_beat(remote, get->key, tenant, get->source_bytes)) return true;
    pthread_mutex_lock(&remote->lock);
    remote->counts.known_misses += absent;
    remote->counts.not_worth += !absent;
    pthread_mutex_unlock(&remote->lock);
    return false;
}

bool remote_get_is_sound(const remote_fetch *fetch, const kvt_record_info *record)
{
    return memcmp(&record->spec.key, &fetch->key, sizeof fetch->key) == 0 &&
           record->spec.generation == fetch->head.generation &&
           record->record_bytes == fetch->head.record_bytes && record->group_count == 0 &&
           kvt_codec_is_exact(record->spec.variant);
}

/* Decodes a record into the target, whose view `own` is from then on. *view_status: a fault of the
 * caller's view. */
static kvt_status remote_get_decode(kvt_store *store, remote_fetch *fetch,
                                    const kvt_record_info *record, access_target *target,
                                    kvt_view *own, kvt_status *view_status)
{
    uint64_t bytes = 0, scratch_bytes = 0;
    if (target->view != NULL) {
        target->layout = record->spec.layout;
        target->bytes = record->source_bytes;
        *view_status = groups_take_view(&target->layout, 1, false, target->view, own);
        if (*view_status != KVT_OK) return KVT_E_MISMATCH;
        target->view = own;
    }
    if (target->bytes != record->source_bytes) return KVT_E_MISMATCH;
    kvt_status status = executor_bound(store, &record->spec, &bytes, &scratch_bytes);
    if (status != KVT_OK) return KVT_E_UNSUPPORTED;
    void *scratch = NULL;
    if (scratch_bytes != 0 && posix_memalign(&scratch, 64, scratch_bytes) != 0) return KVT_E_MEMORY;
    const kvt_record_spec expected = {.key = fetch->key, .generation = fetch->head.generation};
    if (target->view != NULL)
        status = kvt_record_decode_view(fetch->read.buffer.memory, record->record_bytes, &expected,
                                        store->workers, &target->layout, target->view,
                                        target->first_layer, target->layer_count, scratch,
                                        scratch_bytes);
    else
        status = kvt_record_decode_parallel(fetch->read.buffer.memory, record->record_bytes,
                                            &expected, store->workers, target->data, target->bytes,
                                            scratch, scratch_bytes);
    free(scratch);
    if (status == KVT_OK) return status;
    return place_judge(&expected, fetch->read.buffer.memory, record->record_bytes, status);
}

/* Whether some tier could keep a record at all. */
static bool remote_get_has_room(kvt_store *store, uint64_t record_bytes)
{
    bool has_room = false;
    pthread_mutex_lock(&store->lock);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && !has_room; tier++)
        has_room = store->pools[tier] != NULL &&
                   store_policy_capacity(store, (kvt_tier)tier) >= record_bytes;
    pthread_mutex_unlock(&store->lock);
    return has_room;
}

/* Offers the bytes of a get to the local tiers. A view of some layers alone is not the whole
 * entry. */
static void remote_get_offer(kvt_store *store, const object_head *head, uint32_t tenant,
                             uint64_t epoch, const kvt_record_info *record,
                             const access_target *target)
{
    if (target->view != NULL && (target->first_layer != 0 || target->layer_count != 0)) return;
    if (!remote_get_has_room(store, record->record_bytes)) return;
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = head->key,
                       .parent = (head->flags & OBJECT_HAS_PARENT) != 0 ? &head->parent : NULL,
                       .layout = record->spec.layout,
                       .first_position = record->spec.first_position,
                       .recompute_seconds = head->recompute_seconds,
                       .class_id = head->class_id,
                       .tenant = tenant,
                       .request_tokens = head->request_tokens};
    const kvt_view packed = codecs_packed_view(&entry.layout, target->data);
    (void)put_take_in(store, &entry, target->view != NULL ? target->view : &packed);
    /* A clear that began meanwhile may have passed the place of this entry. */
    if (epochs_passed(&store->remote->epochs, &head->key, tenant, epoch))
        (void)!kvt_store_delete(store, &head->key);
}

void remote_get_condemn(kvt_store *store, const remote_fetch *fetch)
{
    const uint64_t handle = entry_handle(&store->secret, &fetch->key);
    pthread_mutex_lock(&store->lock);
    publisher_delete(store, &fetch->key, fetch->tenant, 0);
    pthread_mutex_unlock(&store->lock);
    remote_hints_set(&store->remote->hints, handle, HINT_ABSENT, base_clock_ns());
}

double remote_get_recompute(const kvt_store *store, const remote_fetch *fetch,
                            const kvt_record_info *record)
{
    const kvt_layout *layout = &record->spec.layout;
    if (fetch->head.recompute_seconds > 0) return fetch->head.recompute_seconds;
    if (layout->dtype == KVT_DTYPE_OPAQUE) return 0;
    return kvt_prefill_seconds(&store->costs.prefill, record->spec.first_position,
                               record->spec.first_position + layout->tokens);
}

void remote_get_count(kvt_store *store, const access_get *get, kvt_status status, bool known,
                      double saved_seconds)
{
    store_remote *remote = store->remote;
    const remote_fetch *fetch = get->remote;
    const bool joined = get->remote_joined;
    const uint64_t handle = entry_handle(&store->secret, &fetch->key);
    if (status == KVT_OK || status == KVT_MISS)
        remote_hints_set(&remote->hints, handle, status == KVT_OK ? HINT_THERE : HINT_ABSENT,
                         base_clock_ns());
    pthread_mutex_lock(&remote->lock);
    kvt_remote_stats *counts = &remote->counts;
    counts->hits += status == KVT_OK && !get->quiet;
    counts->prefetched += status == KVT_OK && get->quiet;
    counts->shared += status == KVT_OK && joined;
    counts->hit_bytes += status == KVT_OK ? fetch->head.record_bytes : 0;
    counts->misses += status == KVT_MISS;
    counts->timeouts += status == KVT_E_TIMEOUT;
    counts->node_failures += status == KVT_E_GONE;
    counts->bad_records += status == KVT_E_CORRUPT || status == KVT_E_VERSION;
    counts->unfit += status == KVT_E_MISMATCH || status == KVT_E_SPACE;
    if (saved_seconds > 0) counts->saved_seconds += saved_seconds;
    if (known && (status == KVT_OK || status == KVT_MISS)) {
        remote->found = remote->found * 0.999 + (status == KVT_OK);
        remote->lost = remote->lost * 0.999 + (status == KVT_MISS);
    }
    pthread_mutex_unlock(&remote->lock);
    if (joined || (status != KVT_OK && status != KVT_MISS && status != KVT_E_CORRUPT)) return;
    const double load_seconds =
        status == KVT_OK ? remote_costs_load(remote, fetch->node, fetch->record_bytes) : 0;
    pthread_mutex_lock(&store->lock);
    remote_costs_tell(store, handle, load_seconds);
    pthread_mutex_unlock(&store->lock);
}

kvt_status remote_get_finish(kvt_store *store, access_get *get, kvt_get_info *info)
{
    remote_fetch *fetch = get->remote;
    store_remote *remote = store->remote;
    kvt_record_info record;
    kvt_status view_status = KVT_OK;
    access_target target = get->target;
    kvt_view own;
    double saved_seconds = 0;
    kvt_status status = fetch_wait(remote, fetch, 0);
    const uint64_t landed_ns = base_clock_ns();
    if (status == KVT_OK) {
        status = kvt_record_parse(fetch->read.buffer.memory, fetch->head.record_bytes, &record);
        if (status == KVT_OK && !remote_get_is_sound(fetch, &record)) status = KVT_E_CORRUPT;
        if (status == KVT_OK)
            status = remote_get_decode(store, fetch, &record, &target, &own, &view_status);
    }
    const uint64_t decoded_ns = base_clock_ns();
    if (status == KVT_E_CORRUPT || status == KVT_E_VERSION) get->failure = status;
    if (status == KVT_E_CORRUPT && !get->remote_joined) remote_get_condemn(store, fetch);
    if (status == KVT_OK) {
        get->layout = record.spec.layout;
        get->tokens = record.spec.layout.tokens;
        get->source_bytes = record.source_bytes;
        const double recompute_seconds = remote_get_recompute(store, fetch, &record);
        saved_seconds = recompute_seconds - (double)(decoded_ns - fetch->began_ns) * 1e-9;
        remote_costs_note_use(remote, fetch->source_bytes, recompute_seconds,
                              (double)(decoded_ns - landed_ns) * 1e-9);
        *info = (kvt_get_info){.tier = KVT_TIER_REMOTE,
                               .variant = record.spec.variant,
                               .stored_bytes = record.record_bytes,
                               .read_ns = fetch->finished_ns - fetch->began_ns,
                               .decode_ns = decoded_ns - landed_ns,
                               .elapsed_ns = store_now_ns(store) - get->began_ns,
                               .shared = get->remote_joined};
        token_drop_give(&get->target, get->tokens, 0);
    }
    if (!get->remote_counted)
        remote_get_count(store, get, status, get->remote_known, saved_seconds);
    if (status == KVT_OK && !get->quiet) {
        pthread_mutex_lock(&store->lock);
        store->counters.gets++;
        pthread_mutex_unlock(&store->lock);
    }
    /* The staging goes back first: the offer may wait for staging. */
    const object_head head = fetch->head;
    const uint32_t tenant = fetch->tenant;
    const uint64_t epoch = fetch->epoch;
    read_drop(store, &fetch->read);
    get->remote = NULL;
    if (status == KVT_OK && !get->remote_joined)
        remote_get_offer(store, &head, tenant, epoch, &record, &target);
    if (status == KVT_OK || status == KVT_E_TIMEOUT || status == KVT_E_MEMORY) return status;
    return view_status != KVT_OK ? view_status : KVT_MISS;
}

/* Joins a read of the key or begins one. KVT_OK; KVT_BUSY: there is no room for it now; KVT_MISS:
 * no memory. */
static kvt_status remote_get_begin(kvt_store *store, access_get *get, uint64_t deadline_ns,
                                   uint64_t staging_deadline_ns)
{
    const kvt_key *key = get->key;
    read_waiter *waiter = get->waiter.ended != NULL ? &get->waiter : NULL;
    store_remote *remote = store->remote;
    staging_buffer buffer = {0};
    const uint64_t handle = entry_handle(&store->secret, key);
    get->remote_known = remote_hints_get(&remote->hints, handle, base_clock_ns()) == HINT_THERE;
    uint64_t source_bytes = get->source_bytes;
    if (source_bytes == 0) source_bytes = FETCH_UNKNOWN; /* of a view: not known yet */
    get->remote_asked = waiter != NULL;
    if (staging_acquire(store->staging, fetch_staging_bytes(remote, source_bytes),
                        staging_deadline_ns, &buffer) != KVT_OK) {
        get->remote_asked = false;
        return KVT_BUSY;
    }
    bool drives = false;
    get->remote = fetch_begin(store, key, remote_get_tenant(store, key), source_bytes, deadline_ns,
                              &buffer, waiter, &get->remote_joined, &drives);
    if (drives) link_drive(remote, &get->remote->read.finished, deadline_ns);
    if (buffer.memory != NULL) staging_release(store->staging, &buffer);
    if (get->remote == NULL) get->remote_asked = false;
    return get->remote != NULL ? KVT_OK : KVT_MISS;
}

/* Until when a get may take. */
static uint64_t remote_get_deadline(const store_remote *remote, const access_get *get)
{
    const uint64_t end_ns = base_clock_ns() + remote->deadline_ns;
    return end_ns < get->deadline_ns ? end_ns : get->deadline_ns;
}

kvt_status remote_get_serve(kvt_store *store, access_get *get, kvt_get_info *info)
{
    store_remote *remote = store->remote;
    const uint64_t deadline_ns = remote_get_deadline(remote, get);
    kvt_status status = KVT_E_SPACE;
    /* A record that is larger than was expected is read once more, with the room that it needs. */
    for (uint32_t i = 0; i < FETCH_TRIES && status == KVT_E_SPACE; i++) {
        if (i > 0) read_drop(store, &get->remote->read);
        get->remote = NULL;
        if (base_clock_ns() >= deadline_ns) return KVT_MISS;
        if (remote_get_begin(store, get, deadline_ns, deadline_ns) != KVT_OK) return KVT_MISS;
        status = fetch_wait(remote, get->remote, deadline_ns);
    }
    if (status != KVT_E_TIMEOUT) return remote_get_finish(store, get, info);
    remote_get_count(store, get, status, false, 0);
    read_drop(store, &get->remote->read);
    get->remote = NULL;
    return KVT_E_TIMEOUT;
}

kvt_status remote_get_start(kvt_store *store, access_get *get)
{
    const uint64_t deadline_ns = remote_get_deadline(store->remote, get);
    if (base_clock_ns() >= deadline_ns) return KVT_MISS;
    return remote_get_begin(store, get, deadline_ns, 0);
}

bool remote_get_land(kvt_store *store, access_get *get)
{
    /* Sizes are known by now, so the next read has room, or is a miss for want of it. */
    if (fetch_wait(store->remote, get->remote, 0) != KVT_E_SPACE) return true;
    read_drop(store, &get->remote->read);
    get->remote = NULL;
    return false;
}

bool remote_get_give_up(kvt_store *store, access_get *get)
{
    if (!read_give_up(store, &get->remote->read, &get->waiter, false)) return false;
    remote_get_count(store, get, KVT_E_TIMEOUT, false, 0);
    read_drop(store, &get->remote->read);
    get->remote = NULL;
    return true;
}
