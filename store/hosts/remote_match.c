/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_match.c - kvt_match.hosts: how much of a prefix is here or on other hosts, with one
 * batch of questions to each node of the engine.
 *
 * Keys behind the first that is known to be nowhere are not asked for: the run ends there.
 *
 * Thread rule: any thread; the control lock for at most 256 keys at a time.
 */
#include "base/clock.h"
#include "store/background/lifetime.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MATCH_STEP 256u
#define MATCH_MOST 65536u /* keys that are asked for at once */

/* Whether a key of the prefix is stored here, known elsewhere, or to be asked for. */
typedef enum match_place { MATCH_NOWHERE = 0, MATCH_HERE, MATCH_THERE, MATCH_ASKED } match_place;

typedef struct match_run {
    kvt_store *store;
    const kvt_key *keys;
    size_t count; /* that the run may still have */
    uint8_t *places;
    uint32_t *tenants;
    uint64_t *handles;
    size_t *asked; /* indices of the keys that are asked for */
    size_t asked_count;
    uint64_t known;
} match_run;

/* Looks a step of keys up here. Lock held. */
static void match_look_here(match_run *run, const entry_sight *sight, size_t from)
{
    for (size_t i = 0; i < sight->count && from + i < run->count; i++) {
        const store_entry *entry = entry_sight_find(&run->store->table, sight, i);
        run->handles[from + i] = sight->handles[i];
        run->tenants[from + i] = spaces_tenant(run->store, &sight->keys[i]);
        run->places[from + i] = MATCH_ASKED;
        if (!lifetime_shows(run->store, entry)) {
            if (owed_has(run->store->remote, sight->handles[i])) run->count = from + i;
            continue;
        }
        if (token_drop_is_uncounted(entry) || lookup_lacks_basis(run->store, entry)) {
            run->count = from + i; /* as of kvt_store_match: a get would not ask others */
            return;
        }
        run->places[from + i] = MATCH_HERE;
    }
}

/* Chooses the keys to ask for: all that are neither here nor known, up to the first one that is
 * known to be on no host. */
static void match_choose(match_run *run)
{
    const uint64_t now_ns = base_clock_ns();
    for (size_t i = 0; i < run->count; i++) {
        if (run->places[i] == MATCH_HERE) continue;
        const remote_hint hint =
            remote_hints_get(&run->store->remote->hints, run->handles[i], now_ns);
        run->known += hint != HINT_UNKNOWN;
        if (hint == HINT_ABSENT || run->asked_count == MATCH_MOST) {
            run->count = i;
            return;
        }
        if (hint == HINT_THERE)
            run->places[i] = MATCH_THERE;
        else
            run->asked[run->asked_count++] = i;
    }
}

/* The policy is told of copies of entries that it remembers: it may weigh those alone. */
static void match_tell(match_run *run, const remote_request *requests)
{
    kvt_store *store = run->store;
    for (size_t from = 0; from < run->asked_count; from += MATCH_STEP) {
        double seconds[MATCH_STEP];
        const size_t left = run->asked_count - from;
        const size_t step = left < MATCH_STEP ? left : MATCH_STEP;
        for (size_t i = 0; i < step; i++) {
            const kvt_status status = requests[from + i].status;
            seconds[i] = status == KVT_OK
                             ? remote_costs_load(store->remote, requests[from + i].node, 0)
                         : status == KVT_MISS ? 0
                                              : -1;
        }
        pthread_mutex_lock(&store->lock);
        for (size_t i = 0; i < step; i++)
            if (seconds[i] >= 0)
                remote_costs_tell(store, run->handles[run->asked[from + i]], seconds[i]);
        pthread_mutex_unlock(&store->lock);
    }
}

/* Asks for the epochs of the keys that are not known lately. */
static void match_learn(match_run *run, uint64_t deadline_ns)
{
    store_remote *remote = run->store->remote;
    epochs_asking asking = {.creates = false};
    for (size_t i = 0; i < run->asked_count; i++) {
        const size_t at = run->asked[i];
        epochs_want(remote, &run->keys[at], run->tenants[at], &asking, deadline_ns);
    }
    epochs_run(remote, &asking, deadline_ns);
}

/* Asks for the keys, and keeps the answers as hints. */
static kvt_status match_ask(match_run *run, uint64_t deadline_ns)
{
    store_remote *remote = run->store->remote;
    remote_request *requests = calloc(run->asked_count, sizeof *requests);
    char(*names)[OBJECT_NAME_BYTES] = calloc(run->asked_count, sizeof *names);
    kvt_status status = KVT_E_MEMORY;
    if (requests == NULL || names == NULL) goto out;
    match_learn(run, deadline_ns);
    size_t used = 0;
    const uint64_t asked_ns = base_clock_ns();
    for (size_t i = 0; i < run->asked_count; i++) {
        char space[OBJECT_SPACE_BYTES];
        uint64_t epoch = 0;
        const size_t at = run->asked[i];
        run->places[at] = MATCH_NOWHERE; /* no copy counts, or the answer comes too late */
        const epoch_state state =
            epochs_get(&remote->epochs, &run->keys[at], run->tenants[at], asked_ns, &epoch);
        if (state == EPOCH_ABSENT)
            remote_hints_set(&remote->hints, run->handles[at], HINT_ABSENT, asked_ns);
        if (state != EPOCH_KNOWN) continue;
        remote_space(remote, run->tenants[at], space);
        const uint32_t length = object_name(space, &run->keys[at], epoch, 0, names[used]);
        requests[used] = (remote_request){.kind = REMOTE_EXISTS,
                                          .key = names[used],
                                          .key_bytes = length,
                                          .deadline_ns = deadline_ns};
        run->asked[used++] = at;
    }
    run->asked_count = used;
    link_batch batch = {.requests = requests, .count = (uint32_t)run->asked_count};
    if (run->asked_count != 0) link_run(remote, &batch);
    const uint64_t now_ns = base_clock_ns();
    for (size_t i = 0; i < run->asked_count; i++) {
        const size_t at = run->asked[i];
        const bool answered = requests[i].status == KVT_OK || requests[i].status == KVT_MISS;
        run->places[at] = requests[i].status == KVT_OK ? MATCH_THERE : MATCH_NOWHERE;
        if (answered)
            remote_hints_set(&remote->hints, run->handles[at],
                             requests[i].status == KVT_OK ? HINT_THERE : HINT_ABSENT, now_ns);
    }
    match_tell(run, requests);
    status = KVT_OK;
out:
    free(requests);
    free(names);
    return status;
}

/* The prefix of one call with an engine. */
static kvt_status match_run_all(match_run *run, uint64_t deadline_ns, size_t *matched_out)
{
    kvt_status status = KVT_OK;
    store_remote *remote = run->store->remote;
    for (size_t from = 0; from < run->count; from += MATCH_STEP) {
        entry_sight sight;
        const size_t left = run->count - from;
        entry_sight_begin(&sight, &run->store->secret, &run->keys[from],
                          left < MATCH_STEP ? left : MATCH_STEP);
        pthread_mutex_lock(&run->store->lock);
        match_look_here(run, &sight, from);
        pthread_mutex_unlock(&run->store->lock);
    }
    match_choose(run);
    const uint64_t now_ns = base_clock_ns();
    if (deadline_ns == KVT_NO_DEADLINE) deadline_ns = now_ns + remote->deadline_ns;
    if (run->asked_count != 0 && deadline_ns > now_ns) status = match_ask(run, deadline_ns);
    pthread_mutex_lock(&remote->lock);
    remote->counts.known_probes += run->known;
    pthread_mutex_unlock(&remote->lock);
    size_t matched = 0;
    while (matched < run->count &&
           (run->places[matched] == MATCH_HERE || run->places[matched] == MATCH_THERE))
        matched++;
    *matched_out = matched;
    return status;
}

remote_hint remote_match_hint(kvt_store *store, const kvt_key *key)
{
    store_remote *remote = store->remote;
    if (remote == NULL) return HINT_UNKNOWN;
    const uint64_t handle = entry_handle(&store->secret, key);
    if (owed_has(remote, handle)) return HINT_ABSENT;
    return remote_hints_get(&remote->hints, handle, base_clock_ns());
}

kvt_status remote_match(kvt_store *store, const kvt_key *keys, size_t count, uint64_t deadline_ns,
                        size_t *matched_out)
{
    assert(store->remote != NULL && count != 0);
    match_run run = {.store = store, .keys = keys, .count = count};
    run.places = calloc(count, sizeof *run.places);
    run.tenants = calloc(count, sizeof *run.tenants);
    run.handles = calloc(count, sizeof *run.handles);
    run.asked = calloc(count, sizeof *run.asked);
    kvt_status status = KVT_E_MEMORY;
    *matched_out = 0;
    if (run.places != NULL && run.tenants != NULL && run.handles != NULL && run.asked != NULL)
        status = match_run_all(&run, deadline_ns, matched_out);
    free(run.places);
    free(run.tenants);
    free(run.handles);
    free(run.asked);
    return status;
}
