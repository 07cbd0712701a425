/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epochs.c - epochs of spaces and tenants (epochs.h): a table of what the engine has said, and the
 * list of clears that it has not taken.
 *
 * An epoch is never guessed: where the engine has lost one, the next that is drawn is another one,
 * so that no copy of before comes back.
 */
#include "store/hosts/epochs.h"

#include "base/clock.h"
#include "base/wait.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <kvterrace/key.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const uint8_t epoch_magic[8] = "KVTE\r\n\x1a\n";

kvt_status epochs_open(remote_epochs *epochs)
{
    epochs->items = calloc(EPOCHS_ROOM, sizeof *epochs->items);
    base_brief_lock_init(&epochs->lock);
    return epochs->items != NULL ? KVT_OK : KVT_E_MEMORY;
}

void epochs_close(remote_epochs *epochs)
{
    if (epochs->items == NULL) return;
    free(epochs->items);
    epochs->items = NULL;
    pthread_mutex_destroy(&epochs->lock);
}

void epochs_of_key(const kvt_key *key, uint32_t tenant, epoch_id ids[2])
{
    const uint8_t part = key->bytes[sizeof key->bytes - 1] % EPOCH_PARTS;
    ids[0] = (epoch_id){.number = kvt_key_space(key), .part = part};
    ids[1] = (epoch_id){.number = tenant, .tenant = true, .part = part};
}

static bool epoch_is(const epoch_id *id, const epoch_id *other)
{
    return id->number == other->number && id->tenant == other->tenant && id->part == other->part;
}

/* A new epoch, random but for the upper half, which is the second of the calendar. */
static uint64_t epoch_draw(void)
{
    uint32_t drawn = 0;
    while (drawn == 0)
        if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) drawn = 0;
    return base_calendar_ns() / 1000000000 << 32 | drawn;
}

/* Whether an epoch was drawn before a clear. Clocks of hosts differ, so a later one may seem to be:
 * then the clear is drawn anew, and copies of no more than those seconds are given up. */
static bool epoch_is_before(uint64_t value, const epoch_bump *bump)
{
    return value != 0 && value >> 32 < bump->value >> 32;
}

/* The item of an epoch, or the oldest of its set. Lock held. */
static epoch_item *epochs_find(const remote_epochs *epochs, const epoch_id *id)
{
    uint64_t mixed = id->number ^ id->number >> 32 ^ (uint64_t)id->part << 8 ^ id->tenant;
    mixed = mixed * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    epoch_item *set = &epochs->items[mixed % (EPOCHS_ROOM / EPOCHS_WAYS) * EPOCHS_WAYS];
    epoch_item *oldest = set;
    for (uint32_t i = 0; i < EPOCHS_WAYS; i++) {
        if (set[i].asked_ns != 0 && epoch_is(&set[i].id, id)) return &set[i];
        if (set[i].asked_ns < oldest->asked_ns) oldest = &set[i];
    }
    return oldest;
}

/* The last clear of an epoch that is kept; NULL: there is none. Lock held. */
static const epoch_bump *epochs_bumped(const remote_epochs *epochs, const epoch_id *id)
{
    for (uint32_t i = epochs->bump_count; i > 0; i--) {
        const epoch_bump *bump = &epochs->bumps[i - 1];
        const bool every = bump->tenant && bump->number == EPOCH_EVERY;
        if (bump->tenant == id->tenant && (every || bump->number == id->number)) return bump;
    }
    return NULL;
}

/* One of the two epochs of a key. least_ns: an answer to an older question does not count. Lock
 * held. */
static epoch_state epochs_look(const remote_epochs *epochs, const epoch_id *id, uint64_t least_ns,
                               uint64_t *value_out)
{
    const epoch_bump *bump = epochs_bumped(epochs, id);
    const epoch_item *item = epochs_find(epochs, id);
    const bool known = item->asked_ns != 0 && item->asked_ns >= least_ns && epoch_is(&item->id, id);
    if (bump != NULL && (bump->paid_ns == 0 || (known && epoch_is_before(item->value, bump)))) {
        *value_out = bump->value;
        return EPOCH_KNOWN;
    }
    if (!known) return EPOCH_UNKNOWN;
    *value_out = item->value;
    return item->value != 0 ? EPOCH_KNOWN : EPOCH_ABSENT;
}

/* Both epochs of a key, put together. Lock held. */
static epoch_state epochs_both(const remote_epochs *epochs, const kvt_key *key, uint32_t tenant,
                               uint64_t least_ns, uint64_t *epoch_out)
{
    epoch_id ids[2];
    uint64_t values[2] = {0, 0};
    epoch_state worst = EPOCH_KNOWN;
    epochs_of_key(key, tenant, ids);
    for (int i = 0; i < 2; i++) {
        const epoch_state state = epochs_look(epochs, &ids[i], least_ns, &values[i]);
        if (state < worst) worst = state;
    }
    *epoch_out = values[0] ^ (values[1] << 1 | values[1] >> 63);
    return worst;
}

epoch_state epochs_get(remote_epochs *epochs, const kvt_key *key, uint32_t tenant, uint64_t now_ns,
                       uint64_t *epoch_out)
{
    const uint64_t least_ns = now_ns > EPOCH_FRESH ? now_ns - EPOCH_FRESH : 1;
    pthread_mutex_lock(&epochs->lock);
    const epoch_state state = epochs_both(epochs, key, tenant, least_ns, epoch_out);
    pthread_mutex_unlock(&epochs->lock);
    return state;
}

bool epochs_passed(remote_epochs *epochs, const kvt_key *key, uint32_t tenant, uint64_t epoch)
{
    uint64_t last = 0;
    pthread_mutex_lock(&epochs->lock);
    const epoch_state state = epochs_both(epochs, key, tenant, 1, &last);
    pthread_mutex_unlock(&epochs->lock);
    return state == EPOCH_ABSENT || (state == EPOCH_KNOWN && last != epoch);
}

void epochs_want(store_remote *remote, const kvt_key *key, uint32_t tenant, epochs_asking *asking,
                 uint64_t deadline_ns)
{
    remote_epochs *epochs = &remote->epochs;
    epoch_id ids[2];
    const uint64_t now_ns = base_clock_ns();
    const uint64_t least_ns = now_ns > EPOCH_FRESH ? now_ns - EPOCH_FRESH : 1;
    epochs_of_key(key, tenant, ids);
    if (asking->count + 2 > EPOCHS_ASKING) epochs_run(remote, asking, deadline_ns);
    for (int i = 0; i < 2; i++) {
        uint64_t value;
        pthread_mutex_lock(&epochs->lock);
        const epoch_state state = epochs_look(epochs, &ids[i], least_ns, &value);
        pthread_mutex_unlock(&epochs->lock);
        bool wanted = state == EPOCH_UNKNOWN || (asking->creates && state == EPOCH_ABSENT);
        for (uint32_t j = 0; j < asking->count && wanted; j++)
            wanted = !epoch_is(&asking->ids[j], &ids[i]);
        if (wanted) asking->ids[asking->count++] = ids[i];
    }
}

/* ---- objects ---- */

uint32_t epochs_name(const store_remote *remote, const epoch_id *id, char name[EPOCH_NAME_BYTES])
{
    return (uint32_t)snprintf(name, EPOCH_NAME_BYTES, "kvt1:%s:%c%016llx:%u", remote->space,
                              id->tenant ? 't' : 's', (unsigned long long)id->number,
                              (unsigned)id->part);
}

static uint64_t epochs_unpack(const uint8_t bytes[EPOCH_BYTES], uint64_t value_bytes)
{
    uint64_t value = 0;
    if (value_bytes != EPOCH_BYTES || memcmp(bytes, epoch_magic, sizeof epoch_magic) != 0) return 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)bytes[8 + i] << 8 * i;
    return value;
}

/* Takes the engine's answer to a question of an instant: the value, or 0 for none. set: the epoch
 * was set then, and is there now. */
static void epochs_take(store_remote *remote, const epoch_id *id, uint64_t value, uint64_t asked_ns,
                        bool set)
{
    remote_epochs *epochs = &remote->epochs;
    assert(asked_ns != 0);
    pthread_mutex_lock(&epochs->lock);
    epoch_item *item = epochs_find(epochs, id);
    const bool same = item->asked_ns != 0 && epoch_is(&item->id, id);
    const bool changed = same && item->value != 0 && item->value != value;
    const uint64_t set_ns = set ? base_clock_ns() : same ? item->set_ns : 0;
    if (!same || set || (item->asked_ns <= asked_ns && item->set_ns < asked_ns))
        *item = (epoch_item){*id, value, asked_ns, set_ns};
    pthread_mutex_unlock(&epochs->lock);
    if (changed) remote_hints_clear(&remote->hints); /* they are of copies that do not count */
}

void epochs_forget(remote_epochs *epochs)
{
    pthread_mutex_lock(&epochs->lock);
    for (uint32_t i = 0; i < EPOCHS_ROOM; i++)
        if (epochs->items[i].asked_ns > 1) epochs->items[i].asked_ns = 1;
    pthread_mutex_unlock(&epochs->lock);
}

/* The memory of a batch of requests for epochs. */
typedef struct epochs_batch {
    remote_request requests[EPOCHS_ASKING];
    epoch_question questions[EPOCHS_ASKING];
} epochs_batch;

void epochs_question(const store_remote *remote, const epoch_id *id, uint64_t deadline_ns,
                     epoch_question *question, remote_request *request)
{
    question->id = *id;
    question->part = (struct iovec){question->value, EPOCH_BYTES};
    *request = (remote_request){.kind = REMOTE_GET,
                                .key = question->name,
                                .key_bytes = epochs_name(remote, id, question->name),
                                .parts = &question->part,
                                .part_count = 1,
                                .deadline_ns = deadline_ns};
}

kvt_status epochs_answer(store_remote *remote, const epoch_question *question,
                         const remote_request *request, uint64_t asked_ns)
{
    const bool there = request->status == KVT_OK || request->status == KVT_E_SPACE ||
                       request->status == KVT_E_MISMATCH;
    if (!there && request->status != KVT_MISS) return request->status;
    const uint64_t value =
        request->status == KVT_OK ? epochs_unpack(question->value, request->value_bytes) : 0;
    epochs_take(remote, &question->id, value, asked_ns, false);
    return value != 0 ? KVT_OK : there ? KVT_E_MISMATCH : KVT_MISS;
}

/* Prepares the setting of an epoch. */
static void epochs_prepare_put(const store_remote *remote, epochs_batch *batch, uint32_t at,
                               const epoch_id *id, uint64_t value, uint64_t deadline_ns)
{
    epochs_question(remote, id, deadline_ns, &batch->questions[at], &batch->requests[at]);
    uint8_t *bytes = batch->questions[at].value; /* little-endian */
    memcpy(bytes, epoch_magic, sizeof epoch_magic);
    for (int i = 0; i < 8; i++)
        bytes[8 + i] = (uint8_t)(value >> 8 * i);
    batch->requests[at].kind = REMOTE_PUT;
}

/* Asks for the epochs of a list; the list then has the absent ones. *foreign_out: a bit for each
 * whose name holds another object. */
static void epochs_ask(store_remote *remote, epochs_batch *batch, epochs_asking *asking,
                       uint64_t *foreign_out, uint64_t deadline_ns)
{
    const uint64_t asked_ns = base_clock_ns();
    uint32_t absent = 0;
    for (uint32_t i = 0; i < asking->count; i++)
        epochs_question(remote, &asking->ids[i], deadline_ns, &batch->questions[i],
                        &batch->requests[i]);
    link_batch link = {.requests = batch->requests, .count = asking->count};
    link_run(remote, &link);
    *foreign_out = 0;
    for (uint32_t i = 0; i < asking->count; i++) {
        const kvt_status status =
            epochs_answer(remote, &batch->questions[i], &batch->requests[i], asked_ns);
        if (status != KVT_MISS && status != KVT_E_MISMATCH) continue;
        if (status == KVT_E_MISMATCH) *foreign_out |= UINT64_C(1) << absent;
        asking->ids[absent++] = asking->ids[i];
    }
    asking->count = absent;
}

void epochs_run(store_remote *remote, epochs_asking *asking, uint64_t deadline_ns)
{
    epochs_batch batch;
    uint64_t foreign = 0;
    /* When another host has drawn the epoch first, the engine is asked once more. */
    for (int round = 0; round < 2 && asking->count != 0; round++) {
        epochs_ask(remote, &batch, asking, &foreign, deadline_ns);
        if (!asking->creates || asking->count == 0) break;
        uint64_t drawn[EPOCHS_ASKING];
        const uint64_t asked_ns = base_clock_ns();
        for (uint32_t i = 0; i < asking->count; i++) {
            drawn[i] = epoch_draw();
            epochs_prepare_put(remote, &batch, i, &asking->ids[i], drawn[i], deadline_ns);
            batch.requests[i].fresh = (foreign >> i & 1) == 0;
        }
        link_batch link = {.requests = batch.requests, .count = asking->count};
        link_run(remote, &link);
        uint32_t left = 0;
        for (uint32_t i = 0; i < asking->count; i++) {
            if (batch.requests[i].status == KVT_OK)
                epochs_take(remote, &asking->ids[i], drawn[i], asked_ns, true);
            else if (batch.requests[i].status == KVT_EXISTS)
                asking->ids[left++] = asking->ids[i];
        }
        asking->count = left;
    }
    asking->count = 0;
}

/* ---- clears ---- */

/* Drops bumps: those of a value, or with 0 those that the engine has. Lock held. */
static void epochs_drop(remote_epochs *epochs, uint64_t value)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < epochs->bump_count; i++) {
        const epoch_bump *one = &epochs->bumps[i];
        if (value != 0 ? one->value != value : one->paid_ns == 0) epochs->bumps[kept++] = *one;
    }
    epochs->bump_count = kept;
}

/* Draws an epoch of a space or tenant anew. Lock held. */
static void epochs_clear(remote_epochs *epochs, uint64_t number, bool tenant)
{
    epoch_bump bump = {.number = number, .tenant = tenant, .value = epoch_draw()};
    for (uint32_t i = epochs->bump_count; i > 0; i--) {
        const epoch_bump *one = &epochs->bumps[i - 1];
        if (one->tenant == tenant && one->number == number) epochs_drop(epochs, one->value);
    }
    if (epochs->bump_count == EPOCHS_BUMPS) epochs_drop(epochs, 0);
    /* More than can be kept apart: everything goes. */
    if (epochs->bump_count == EPOCHS_BUMPS) {
        bump.tenant = true;
        bump.number = EPOCH_EVERY;
        epochs->bump_count = 0;
    }
    epochs->bumps[epochs->bump_count++] = bump;
    epochs->bumped++;
}

void epochs_bump(store_remote *remote, const kvt_clear_filter *filter)
{
    const bool tenant = !filter->by_space;
    const uint64_t number = filter->by_space    ? filter->space
                            : filter->by_tenant ? filter->tenant
                                                : EPOCH_EVERY;
    pthread_mutex_lock(&remote->epochs.lock);
    epochs_clear(&remote->epochs, number, tenant);
    pthread_mutex_unlock(&remote->epochs.lock);
    remote_hints_clear(&remote->hints);
}

uint32_t epochs_owed(remote_epochs *epochs)
{
    uint32_t count = 0;
    pthread_mutex_lock(&epochs->lock);
    for (uint32_t i = 0; i < epochs->bump_count; i++)
        count += epochs->bumps[i].paid_ns == 0;
    pthread_mutex_unlock(&epochs->lock);
    return count;
}

uint32_t epochs_kept(remote_epochs *epochs)
{
    pthread_mutex_lock(&epochs->lock);
    const uint32_t count = epochs->bump_count;
    pthread_mutex_unlock(&epochs->lock);
    return count;
}

uint64_t epochs_repeated(remote_epochs *epochs)
{
    pthread_mutex_lock(&epochs->lock);
    const uint64_t repeated = epochs->repeated;
    pthread_mutex_unlock(&epochs->lock);
    return repeated;
}

uint64_t epochs_bumped_ever(remote_epochs *epochs)
{
    pthread_mutex_lock(&epochs->lock);
    const uint64_t bumped = epochs->bumped;
    pthread_mutex_unlock(&epochs->lock);
    return bumped;
}

bool epochs_tried(remote_epochs *epochs, uint64_t bumped)
{
    pthread_mutex_lock(&epochs->lock);
    const bool tried = epochs->tried >= bumped || epochs->tried == epochs->bumped;
    pthread_mutex_unlock(&epochs->lock);
    return tried;
}

static bool epoch_is_every(const epoch_bump *bump)
{
    return bump->tenant && bump->number == EPOCH_EVERY;
}

/* How many epoch objects a clear sets. */
static uint32_t epoch_parts(const epoch_bump *bump)
{
    return (epoch_is_every(bump) ? KVT_TENANTS_MAX : 1) * EPOCH_PARTS;
}

/* One of them. */
static epoch_id epoch_part(const epoch_bump *bump, uint32_t at)
{
    return (epoch_id){.number = epoch_is_every(bump) ? at / EPOCH_PARTS : bump->number,
                      .tenant = bump->tenant,
                      .part = (uint8_t)(at % EPOCH_PARTS)};
}

/* Sets the epoch objects of a clear. False: not all of them. */
static bool epochs_set(store_remote *remote, const epoch_bump *bump, uint64_t wait_ns)
{
    const uint32_t count = epoch_parts(bump);
    epochs_batch batch;
    bool good = true;
    for (uint32_t from = 0; from < count && good; from += EPOCHS_ASKING) {
        const uint32_t step = count - from < EPOCHS_ASKING ? count - from : EPOCHS_ASKING;
        const uint64_t asked_ns = base_clock_ns();
        epoch_id ids[EPOCHS_ASKING];
        for (uint32_t i = 0; i < step; i++) {
            ids[i] = epoch_part(bump, from + i);
            epochs_prepare_put(remote, &batch, i, &ids[i], bump->value, asked_ns + wait_ns);
        }
        link_batch link = {.requests = batch.requests, .count = step};
        link_run(remote, &link);
        /* A full engine takes no number, but gives the old one up: copies are misses either way. */
        bool full = false;
        for (uint32_t i = 0; i < step; i++)
            full = full || batch.requests[i].status == KVT_E_SPACE;
        for (uint32_t i = 0; i < step && full; i++) {
            epochs_question(remote, &ids[i], asked_ns + wait_ns, &batch.questions[i],
                            &batch.requests[i]);
            batch.requests[i].kind = REMOTE_DELETE;
            batch.requests[i].part_count = 0;
        }
        if (full) link_run(remote, &link);
        for (uint32_t i = 0; i < step; i++) {
            const kvt_status status = batch.requests[i].status;
            const bool done = status == KVT_OK || (full && status == KVT_MISS);
            good = good && done;
            if (done) epochs_take(remote, &ids[i], full ? 0 : bump->value, asked_ns, true);
        }
    }
    return good;
}

/* The clears that are kept now, and how many there have been ever. Returns their number. */
static uint32_t epochs_list(remote_epochs *epochs, epoch_bump bumps[EPOCHS_BUMPS],
                            uint64_t *bumped_out)
{
    pthread_mutex_lock(&epochs->lock);
    const uint32_t count = epochs->bump_count;
    memcpy(bumps, epochs->bumps, count * sizeof *bumps);
    *bumped_out = epochs->bumped;
    pthread_mutex_unlock(&epochs->lock);
    return count;
}

void epochs_pay(store_remote *remote, uint64_t wait_ns)
{
    remote_epochs *epochs = &remote->epochs;
    epoch_bump bumps[EPOCHS_BUMPS];
    uint64_t bumped;
    const uint32_t count = epochs_list(epochs, bumps, &bumped);
    /* In order: of two clears that overlap the later one stays in the engine, as it counts here. */
    bool good = true;
    for (uint32_t i = 0; i < count && good; i++) {
        if (bumps[i].paid_ns != 0) continue;
        good = epochs_set(remote, &bumps[i], wait_ns);
        pthread_mutex_lock(&epochs->lock);
        for (uint32_t j = 0; j < epochs->bump_count && good; j++) /* else drawn anew meanwhile */
            if (epochs->bumps[j].value == bumps[i].value)
                epochs->bumps[j].paid_ns = base_clock_ns();
        pthread_mutex_unlock(&epochs->lock);
    }
    pthread_mutex_lock(&epochs->lock);
    epochs->tried = bumped;
    pthread_mutex_unlock(&epochs->lock);
}

/* Whether an epoch from before a clear is there again. *answered_out: all of them were told. */
static bool epochs_lost(store_remote *remote, const epoch_bump *bump, uint64_t wait_ns,
                        bool *answered_out)
{
    const uint32_t count = epoch_parts(bump);
    epochs_batch batch;
    bool lost = false;
    *answered_out = true;
    for (uint32_t from = 0; from < count && !lost; from += EPOCHS_ASKING) {
        const uint32_t step = count - from < EPOCHS_ASKING ? count - from : EPOCHS_ASKING;
        const uint64_t asked_ns = base_clock_ns();
        for (uint32_t i = 0; i < step; i++) {
            const epoch_id id = epoch_part(bump, from + i);
            epochs_question(remote, &id, asked_ns + wait_ns, &batch.questions[i],
                            &batch.requests[i]);
        }
        link_batch link = {.requests = batch.requests, .count = step};
        link_run(remote, &link);
        for (uint32_t i = 0; i < step; i++) {
            const remote_request *request = &batch.requests[i];
            const kvt_status status = epochs_answer(remote, &batch.questions[i], request, asked_ns);
            if (status == KVT_OK)
                lost = lost ||
                       epoch_is_before(
                           epochs_unpack(batch.questions[i].value, request->value_bytes), bump);
            else if (status != KVT_MISS && status != KVT_E_MISMATCH)
                *answered_out = false;
        }
    }
    return lost;
}

void epochs_look_after(store_remote *remote, uint64_t wait_ns)
{
    remote_epochs *epochs = &remote->epochs;
    epoch_bump bumps[EPOCHS_BUMPS];
    uint64_t bumped;
    const uint32_t count = epochs_list(epochs, bumps, &bumped);
    for (uint32_t i = 0; i < count; i++) {
        bool answered, there = false;
        if (bumps[i].paid_ns == 0) continue;
        const bool lost = epochs_lost(remote, &bumps[i], wait_ns, &answered);
        const bool over = answered && base_clock_ns() - bumps[i].paid_ns >= EPOCH_WATCHED;
        pthread_mutex_lock(&epochs->lock);
        for (uint32_t j = 0; j < epochs->bump_count; j++)
            there = there || epochs->bumps[j].value == bumps[i].value;
        if (there && lost) {
            epochs_clear(epochs, bumps[i].number, bumps[i].tenant);
            epochs->repeated++;
        } else if (there && over) {
            epochs_drop(epochs, bumps[i].value);
        }
        pthread_mutex_unlock(&epochs->lock);
        if (there && lost) remote_hints_clear(&remote->hints);
    }
}
