/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tasks.h - batches of requests of one kind, as adapters of engines hand them over: 32 bytes for
 * each key and a place for each entry, made into requests, views and entries in one call.
 *
 *     made -> submitted -> (drained, a completion after the other) -> ended -> freed
 *
 * A task of more requests than its queue takes at once is submitted in pieces, by calls that follow
 * drains.
 *
 * A task borrows the memory that its places name until it has ended. The
 * requests that it has made of them are its own.
 *
 * Thread rule: any thread; one drain of a queue at a time, which the queue's handle sees to. A task
 * that has not been submitted, or has ended, is its owner's alone.
 */
#ifndef KVTERRACE_TASKS_H
#define KVTERRACE_TASKS_H

#include "bridge.h"

/*
 * Where the entries of a task lie, and what they are.
 *   layouts      of the groups of each entry, one entry after the other; or of all of them alike,
 *                when `alike`
 *   group_count  of each entry, where `counts` is NULL; else counts has one for each
 *   pattern      NULL: packed, at `addresses`, a group after the other. Else a view of entries of
 *                one group: with `blocks` that of one block of a pool, and `blocks` has each
 *                entry's; without them that of one entry, whose base is its address
 *   scattered    `addresses` has one for each group of each entry, in place of one for each entry
 *   shorter      of gets, one for each entry, or NULL: nonzero where an opaque entry that is stored
 *                with fewer bytes fills the first ones
 *   parents      of puts, the parent's key of each entry, NULL where it has none; or NULL
 *   positions    of puts, the first position of each entry; or NULL
 *   elsewhere    gets of one view ask other hosts for what is not stored here: the key of an entry
 *                says what its layout is, since nothing here does
 *   packed       gets into packed memory of as many bytes as the layout has, whatever the entry is
 */
typedef struct kvtpy_places {
    const kvt_layout *layouts;
    const uint32_t *counts;
    const kvt_view *pattern;
    const uint64_t *addresses;
    const uint32_t *blocks;
    const uint8_t *shorter;
    const uint8_t *const *parents;
    const uint32_t *positions;
    uint32_t group_count;
    bool alike;
    bool scattered;
    bool elsewhere;
    bool packed;
} kvtpy_places;

struct kvtpy_task;

/* One request: where its completion goes. */
typedef struct kvtpy_slot {
    struct kvtpy_task *task;
    int status;
} kvtpy_slot;

typedef struct kvtpy_task {
    uint32_t kind;
    size_t count; /* of its keys */
    size_t asked; /* requests, at the front of `requests`: those that were not decided at once */
    size_t sent;  /* of these, submitted */
    size_t left;  /* and not completed; read by others, so written atomically */
    uint64_t stored_bytes; /* of records that were read */
    uint64_t longest_ns;   /* from the submit to the last completion */
    kvt_request *requests;
    kvt_entry *entries;
    size_t *firsts;  /* count and one more: the first group of each entry, counted over all */
    kvt_view *views; /* one for each group */
    const kvt_view **given; /* pointers to these, */
    kvt_view *whole;        /* and the view of each entry that has several */
    kvt_layout *layouts;
    uint32_t *blocks;
    kvt_key *parents; /* of puts */
    kvtpy_slot slots[];
} kvtpy_task;

static void kvtpy_task_free(kvtpy_task *task)
{
    if (task == NULL) return;
    free(task->requests);
    free(task->entries);
    free(task->firsts);
    free(task->views);
    free(task->given);
    free(task->whole);
    free(task->layouts);
    free(task->blocks);
    free(task->parents);
    free(task);
}

/* A task without requests. NULL without memory. */
static kvtpy_task *kvtpy_task_make(uint32_t kind, size_t count, const kvtpy_places *places)
{
    const size_t some = count != 0 ? count : 1;
    kvtpy_task *task = calloc(1, sizeof *task + some * sizeof task->slots[0]);
    if (task == NULL) return NULL;
    task->kind = kind;
    task->count = count;
    task->firsts = calloc(some + 1, sizeof *task->firsts);
    for (size_t i = 0; i < count && task->firsts != NULL && places != NULL; i++)
        task->firsts[i + 1] =
            task->firsts[i] + (places->counts != NULL ? places->counts[i] : places->group_count);
    const size_t groups = task->firsts != NULL ? task->firsts[count] + 1 : 1;
    task->requests = calloc(some, sizeof *task->requests);
    task->entries = calloc(some, sizeof *task->entries);
    task->views = calloc(groups, sizeof *task->views);
    task->given = calloc(groups, sizeof *task->given);
    task->whole = calloc(some, sizeof *task->whole);
    task->layouts = calloc(groups, sizeof *task->layouts);
    task->blocks = calloc(some, sizeof *task->blocks);
    task->parents = calloc(some, sizeof *task->parents);
    if (task->firsts == NULL || task->requests == NULL || task->entries == NULL ||
        task->views == NULL || task->given == NULL || task->whole == NULL ||
        task->layouts == NULL || task->blocks == NULL || task->parents == NULL) {
        kvtpy_task_free(task);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        task->slots[i] = (kvtpy_slot){.task = task, .status = KVT_MISS};
    return task;
}

/* Groups of one entry. */
static uint32_t kvtpy_task_groups(const kvtpy_task *task, size_t index)
{
    return (uint32_t)(task->firsts[index + 1] - task->firsts[index]);
}

static bool kvtpy_layout_equal(const kvt_layout *a, const kvt_layout *b)
{
    if (a->dtype != b->dtype) return false;
    if (a->dtype == KVT_DTYPE_OPAQUE) return a->opaque_bytes == b->opaque_bytes;
    return a->layers == b->layers && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->order == b->order && a->tokens == b->tokens &&
           kvt_layout_sides(a) == kvt_layout_sides(b) &&
           (a->sides == KVT_SIDES_V) == (b->sides == KVT_SIDES_V);
}

/* Whether what is stored under a key is what the caller takes it for. KVT_MISS: it is not stored;
 * KVT_E_MISMATCH: it is something else. Of bytes that may be fewer the layout becomes the stored
 * one. */
static kvt_status kvtpy_task_compare(kvt_store *store, const kvt_key *key, kvt_layout *layouts,
                                     uint32_t count, bool shorter)
{
    kvt_layout groups[KVT_GROUPS_MAX];
    kvt_description is = {
        .struct_size = sizeof is, .groups = groups, .groups_capacity = KVT_GROUPS_MAX};
    kvt_status status = kvt_store_describe(store, key, &is);
    if (status != KVT_OK) return status;
    const kvt_layout *stored = is.group_count != 0 ? groups : &is.layout;
    if ((is.group_count != 0 ? is.group_count : 1) != count) return KVT_E_MISMATCH;
    if (shorter && count == 1 && stored->dtype == KVT_DTYPE_OPAQUE &&
        layouts->dtype == KVT_DTYPE_OPAQUE && stored->opaque_bytes < layouts->opaque_bytes)
        *layouts = *stored;
    for (uint32_t i = 0; i < count; i++)
        if (!kvtpy_layout_equal(&layouts[i], &stored[i])) return KVT_E_MISMATCH;
    return KVT_OK;
}

/* The views of one entry of a task, from its layouts and its place. */
static void kvtpy_task_place(kvtpy_task *task, const kvtpy_places *places, size_t index)
{
    const size_t first = task->firsts[index];
    kvt_view *views = &task->views[first];
    if (places->pattern != NULL) {
        views[0] = *places->pattern;
        if (places->blocks == NULL) {
            views[0].base[0] = (void *)(uintptr_t)places->addresses[index];
            return;
        }
        task->blocks[index] = places->blocks[index];
        views[0].blocks = &task->blocks[index];
        views[0].block_count = 1;
        return;
    }
    const kvt_layout *layouts = &task->layouts[first];
    const uint64_t *addresses = &places->addresses[places->scattered ? first : index];
    unsigned char *at = (unsigned char *)(uintptr_t)addresses[0];
    for (uint32_t i = 0; i < kvtpy_task_groups(task, index); i++) {
        uint64_t bytes = 0;
        if (places->scattered) at = (unsigned char *)(uintptr_t)addresses[i];
        (void)!kvt_layout_bytes(&layouts[i], &bytes); /* an unsound one has no bytes */
        views[i] = kvt_view_packed(at, bytes);
        at += bytes;
    }
}

/* The request for one key of a task. */
static kvt_request kvtpy_task_request(kvtpy_task *task, size_t index, const kvt_key *key)
{
    kvt_request request = {.struct_size = sizeof request,
                           .kind = task->kind,
                           .key = *key,
                           .user = (uint64_t)(uintptr_t)&task->slots[index]};
    const uint32_t groups = kvtpy_task_groups(task, index);
    const size_t first = task->firsts[index];
    if (groups == 1) request.view = &task->views[first];
    if (groups < 2) return request;
    for (uint32_t i = 0; i < groups; i++)
        task->given[first + i] = &task->views[first + i];
    task->whole[index] = kvt_view_grouped(&task->given[first], groups);
    request.view = &task->whole[index];
    return request;
}

/* The entry of one key of a task of puts. */
static const kvt_entry *kvtpy_task_entry(kvtpy_task *task, const kvtpy_places *places,
                                         const kvt_entry *like, const uint8_t *keys, size_t index)
{
    kvt_entry *entry = &task->entries[index];
    const kvt_layout *layouts = &task->layouts[task->firsts[index]];
    *entry = *like;
    memcpy(entry->key.bytes, keys + 32 * index, 32);
    if (kvtpy_task_groups(task, index) == 1) {
        entry->layout = layouts[0];
    } else {
        entry->groups = layouts;
        entry->group_count = kvtpy_task_groups(task, index);
    }
    if (places->positions != NULL) entry->first_position = places->positions[index];
    if (places->parents == NULL || places->parents[index] == NULL) return entry;
    memcpy(task->parents[index].bytes, places->parents[index], 32);
    entry->parent = &task->parents[index];
    return entry;
}

/*
 * Makes a task.
 *   kind    kvt_request_kind: get, put, exists, delete, touch
 *   keys    count of them
 *   places  of gets and puts; else NULL
 *   like    of puts: what all entries have in common; key, layout and groups are set here
 * A get of an entry that is stored with another layout is decided here, as KVT_E_MISMATCH. KVT_OK;
 * KVT_E_MEMORY; KVT_E_STATE.
 */
static kvt_status kvtpy_task_new(kvtpy_handle *store, uint32_t kind, const uint8_t *keys,
                                 size_t count, const kvtpy_places *places, const kvt_entry *like,
                                 uint64_t deadline_ns, kvtpy_task **task_out)
{
    *task_out = NULL;
    kvtpy_task *task = kvtpy_task_make(kind, count, places);
    if (task == NULL) return KVT_E_MEMORY;
    void *object = kvtpy_enter_shared(store);
    if (object == NULL) {
        kvtpy_task_free(task);
        return KVT_E_STATE;
    }
    for (size_t i = 0; i < count; i++) {
        const kvt_key *key = (const kvt_key *)keys + i;
        const uint32_t groups = kvtpy_task_groups(task, i);
        if (groups != 0) {
            kvt_layout *layouts = &task->layouts[task->firsts[i]];
            memcpy(layouts, places->layouts + (places->alike ? 0 : task->firsts[i]),
                   groups * sizeof *layouts);
            if (kind == KVT_REQUEST_GET && !places->packed) {
                const bool shorter = places->shorter != NULL && places->shorter[i] != 0;
                const kvt_status is = kvtpy_task_compare(object, key, layouts, groups, shorter);
                task->slots[i].status = is;
                const bool asks = is == KVT_MISS && places->elsewhere && groups == 1;
                if (is != KVT_OK && !asks) continue;
            }
            kvtpy_task_place(task, places, i);
        }
        kvt_request request = kvtpy_task_request(task, i, key);
        request.deadline_ns = deadline_ns;
        if (kind == KVT_REQUEST_PUT) request.entry = kvtpy_task_entry(task, places, like, keys, i);
        task->requests[task->asked++] = request;
    }
    kvtpy_leave_shared(store);
    *task_out = task;
    return KVT_OK;
}

/* What has not been submitted of a task, and never will be, has a status. True: the task has ended
 * with it, because all that was submitted has completed. */
static bool kvtpy_task_give_up(kvtpy_task *task, kvt_status status)
{
    const size_t rest = task->asked - task->sent;
    for (size_t i = task->sent; i < task->asked; i++)
        ((kvtpy_slot *)(uintptr_t)task->requests[i].user)->status = status;
    task->sent = task->asked;
    return __atomic_sub_fetch(&task->left, rest, __ATOMIC_ACQ_REL) == 0;
}

/*
 * Hands a task to a queue in pieces of the queue's depth at most. KVT_OK; KVT_BUSY: not all of it
 * was accepted, call again after a drain; KVT_END: it has ended already, because its requests were
 * all decided, or because kvt_queue_submit fails, whose status they have then.
 */
static kvt_status kvtpy_task_submit(kvtpy_handle *queue, kvtpy_task *task, size_t depth)
{
    if (task->asked == 0) return KVT_END;
    if (task->sent == 0) __atomic_store_n(&task->left, task->asked, __ATOMIC_RELEASE);
    kvt_status status = KVT_OK;
    void *object = kvtpy_enter_shared(queue);
    if (object == NULL) status = KVT_E_STATE;
    while (status == KVT_OK && task->sent < task->asked) {
        const size_t rest = task->asked - task->sent, count = rest < depth ? rest : depth;
        status = kvt_queue_submit(object, task->requests + task->sent, count, NULL);
        if (status == KVT_OK) task->sent += count;
    }
    if (object != NULL) kvtpy_leave_shared(queue);
    if (status == KVT_OK || status == KVT_BUSY) return status;
    return kvtpy_task_give_up(task, status) ? KVT_END : KVT_OK;
}

#define KVTPY_TASK_DRAIN 256u

/* Takes the completions of a queue to their tasks. ended_out: addresses of tasks that have ended,
 * `capacity` at most, which is at least 256. Returns how many; fewer than 256 less than the
 * capacity: none is left. */
static size_t kvtpy_task_drain(kvtpy_handle *queue, uint64_t *ended_out, size_t capacity)
{
    kvt_completion done[KVTPY_TASK_DRAIN] = {{.struct_size = sizeof done[0]}};
    size_t ended = 0, got = KVTPY_TASK_DRAIN;
    void *object = kvtpy_enter_alone(queue);
    if (object == NULL) return 0;
    while (got == KVTPY_TASK_DRAIN && ended + KVTPY_TASK_DRAIN <= capacity) {
        got = kvt_queue_drain(object, done, KVTPY_TASK_DRAIN);
        for (size_t i = 0; i < got; i++) {
            kvtpy_slot *slot = (kvtpy_slot *)(uintptr_t)done[i].user;
            slot->status = done[i].status;
            slot->task->stored_bytes += done[i].stored_bytes;
            if (slot->task->longest_ns < done[i].elapsed_ns)
                slot->task->longest_ns = done[i].elapsed_ns;
            if (__atomic_sub_fetch(&slot->task->left, 1, __ATOMIC_ACQ_REL) == 0)
                ended_out[ended++] = (uint64_t)(uintptr_t)slot->task;
        }
    }
    kvtpy_leave_alone(queue);
    return ended;
}

/* Carries a task out, on a queue that this thread alone drains: its tasks all run this way. KVT_OK:
 * it has ended; KVT_E_STATE: the queue was closed. */
static kvt_status kvtpy_task_run(kvtpy_handle *queue, kvtpy_task *task, size_t depth)
{
    uint64_t ended[KVTPY_TASK_DRAIN];
    void *object = kvtpy_enter_shared(queue);
    if (object == NULL) return KVT_E_STATE;
    kvt_status status = kvtpy_task_submit(queue, task, depth);
    while (status == KVT_BUSY ||
           (status == KVT_OK && __atomic_load_n(&task->left, __ATOMIC_ACQUIRE) != 0)) {
        kvt_status waited = kvt_queue_wait(object, KVT_NO_DEADLINE);
        if (waited != KVT_OK) {
            status = waited == KVT_END ? KVT_E_STATE : waited;
            break;
        }
        (void)kvtpy_task_drain(queue, ended, KVTPY_TASK_DRAIN);
        if (status == KVT_BUSY) status = kvtpy_task_submit(queue, task, depth);
    }
    kvtpy_leave_shared(queue);
    return status == KVT_END ? KVT_OK : status;
}

/* Statuses of a task that has ended, one for each key; returns how many are KVT_OK. */
static size_t kvtpy_task_statuses(const kvtpy_task *task, int *statuses)
{
    size_t whole = 0;
    for (size_t i = 0; i < task->count; i++) {
        statuses[i] = task->slots[i].status;
        whole += statuses[i] == KVT_OK;
    }
    return whole;
}

/* What a task that has ended has cost: bytes of records that were read, and nanoseconds. */
static void kvtpy_task_cost(const kvtpy_task *task, uint64_t *stored_bytes, uint64_t *longest_ns)
{
    *stored_bytes = task->stored_bytes;
    *longest_ns = task->longest_ns;
}

/*
 * A lease for each key that is stored, so that each ends by itself.
 *   found_out   count of them: whether the key is stored
 *   leases_out  count of them: its lease, or 0 where it is not held
 * Returns how many are stored.
 */
static size_t kvtpy_lease_each(kvtpy_handle *store, const uint8_t *keys, size_t count,
                               uint64_t until_ns, bool *found_out, uint64_t *leases_out)
{
    size_t found = 0;
    void *object = kvtpy_enter_shared(store);
    for (size_t i = 0; i < count; i++) {
        const kvt_key *key = (const kvt_key *)keys + i;
        found_out[i] = false;
        leases_out[i] = 0;
        if (object == NULL) continue;
        if (kvt_lease_begin(object, NULL, key, 1, until_ns, NULL, &leases_out[i]) != KVT_OK)
            leases_out[i] = 0;
        found_out[i] = leases_out[i] != 0 || kvt_store_exists(object, key) == KVT_OK;
        found += found_out[i];
    }
    if (object != NULL) kvtpy_leave_shared(store);
    return found;
}

/* Ends leases; those that have ended, and 0, are passed over. */
static void kvtpy_lease_end_each(kvtpy_handle *store, const uint64_t *leases, size_t count)
{
    void *object = kvtpy_enter_shared(store);
    if (object == NULL) return;
    for (size_t i = 0; i < count; i++) {
        if (leases[i] == 0) continue;
        kvt_status ignored = kvt_lease_end(object, leases[i]);
        (void)ignored;
    }
    kvtpy_leave_shared(store);
}

/* Keys of names that are equally long, one after the other. KVT_OK; as kvt_key_make. */
static kvt_status kvtpy_keys_make(const kvt_space_hash *space, const uint8_t *names,
                                  size_t name_bytes, size_t count, uint32_t group,
                                  uint8_t *keys_out)
{
    for (size_t i = 0; i < count; i++) {
        kvt_status status =
            kvt_key_make(space, names + i * name_bytes, name_bytes, group, (kvt_key *)keys_out + i);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Drains events and gives the keys of entries that went by themselves, evicted, lost, or at the end
 * of their life, or that moved. Returns how many; fewer than `capacity`: no event is left.
 * *lost_out: events that this reader was too slow for, since the last call. */
static size_t kvtpy_events_gone(kvtpy_handle *events, uint8_t *keys_out, size_t capacity,
                                uint64_t *lost_out)
{
    kvt_event event;
    size_t gone = 0, got = 1;
    uint64_t lost = 0;
    *lost_out = 0;
    void *object = kvtpy_enter_alone(events);
    if (object == NULL) return 0;
    while (gone < capacity) {
        if (kvt_events_drain(object, &event, 1, &got, &lost) != KVT_OK || got == 0) break;
        *lost_out += lost;
        if (event.kind == KVT_EVENT_STORED) continue;
        memcpy(keys_out + 32 * gone++, event.key.bytes, 32);
    }
    kvtpy_leave_alone(events);
    return gone;
}

#if 0
/* cdef: from here */
typedef struct kvtpy_places {
    const kvt_layout *layouts;
    const uint32_t *counts;
    const kvt_view *pattern;
    const uint64_t *addresses;
    const uint32_t *blocks;
    const uint8_t *shorter;
    const uint8_t *const *parents;
    const uint32_t *positions;
    uint32_t group_count;
    bool alike;
    bool scattered;
    bool elsewhere;
    bool packed;
} kvtpy_places;
typedef struct kvtpy_task kvtpy_task;
void kvtpy_task_free(kvtpy_task *task);
kvt_status kvtpy_task_new(kvtpy_handle *store, uint32_t kind, const uint8_t *keys, size_t count,
                          const kvtpy_places *places, const kvt_entry *like, uint64_t deadline_ns,
                          kvtpy_task **task_out);
kvt_status kvtpy_task_submit(kvtpy_handle *queue, kvtpy_task *task, size_t depth);
size_t kvtpy_task_drain(kvtpy_handle *queue, uint64_t *ended_out, size_t capacity);
kvt_status kvtpy_task_run(kvtpy_handle *queue, kvtpy_task *task, size_t depth);
size_t kvtpy_task_statuses(const kvtpy_task *task, int *statuses);
void kvtpy_task_cost(const kvtpy_task *task, uint64_t *stored_bytes, uint64_t *longest_ns);
size_t kvtpy_lease_each(kvtpy_handle *store, const uint8_t *keys, size_t count, uint64_t until_ns,
                        bool *found_out, uint64_t *leases_out);
void kvtpy_lease_end_each(kvtpy_handle *store, const uint64_t *leases, size_t count);
kvt_status kvtpy_keys_make(const kvt_space_hash *space, const uint8_t *names, size_t name_bytes,
                           size_t count, uint32_t group, uint8_t *keys_out);
size_t kvtpy_events_gone(kvtpy_handle *events, uint8_t *keys_out, size_t capacity,
                         uint64_t *lost_out);
/* cdef: to here */
#endif

#endif
