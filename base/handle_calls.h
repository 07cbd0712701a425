/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_calls.h - stores of other processes under the public handles: a table of calls stands at
 * the begin of each kvt_store, kvt_queue, kvt_load and kvt_events. It is NULL in those of this
 * process, and each public function looks at it first; so a room that carries calls out elsewhere
 * (serve/client) is known to no room of the store (docs/SERVE.md, Who owns what). A public function
 * without a place in a table is KVT_E_UNSUPPORTED for such handles.
 *
 * A store that is being opened has a table, too, until it is open (store/follow/early.h): `wait` is
 * what a function calls that this table does not answer.
 *
 * Each member takes and gives what the public function of its name does, its thread rule included.
 *
 * Thread rule: tables are constant.
 */
#ifndef BASE_HANDLE_CALLS_H
#define BASE_HANDLE_CALLS_H

#include "base/fork_guard.h"

#include <kvterrace/basis.h>
#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/remote.h>
#include <kvterrace/watch.h>
#include <pthread.h>

typedef struct base_store_calls {
    kvt_status lacks; /* what a call without a place here says; KVT_OK: KVT_E_UNSUPPORTED */
    /* NULL, or: waits until the store is open or has failed to be, and returns its table then. */
    const struct base_store_calls *(*wait)(const kvt_store *store);
    /* The open's end and its message: kvt_store_wait. */
    kvt_status (*opened)(kvt_store *store, uint64_t deadline_ns, char *message, size_t size);
    void (*close)(kvt_store *store);
    /* one entry */
    kvt_status (*put)(kvt_store *store, const kvt_entry *entry, const kvt_view *view);
    kvt_status (*get)(kvt_store *store, const kvt_key *key, const kvt_view *view,
                      uint64_t deadline_ns, kvt_get_info *info);
    kvt_status (*exists)(kvt_store *store, const kvt_key *key);
    kvt_status (*delete)(kvt_store *store, const kvt_key *key);
    kvt_status (*describe)(kvt_store *store, const kvt_key *key, kvt_description *out);
    kvt_status (*explain)(kvt_store *store, const kvt_key *key, kvt_explanation *out);
    kvt_status (*prefetch)(kvt_store *store, const kvt_key *key, kvt_tier tier);
    /* several */
    kvt_status (*touch)(kvt_store *store, const kvt_key *keys, size_t count, size_t *touched_out);
    kvt_status (*match)(kvt_store *store, const kvt_key *keys, size_t count, const kvt_match *match,
                        size_t *matched_out);
    kvt_status (*prefix_get)(kvt_store *store, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out);
    kvt_status (*hint)(kvt_store *store, const kvt_key *keys, size_t count,
                       const kvt_expectation *expected, size_t *hinted_out);
    kvt_status (*lease_begin)(kvt_store *store, kvt_queue *owner, const kvt_key *keys, size_t count,
                              uint64_t until_ns, bool *held_out, uint64_t *lease_out);
    kvt_status (*lease_extend)(kvt_store *store, uint64_t lease, uint64_t until_ns);
    kvt_status (*lease_end)(kvt_store *store, uint64_t lease);
    kvt_status (*clear)(kvt_store *store, const kvt_clear_filter *filter, uint64_t *removed_out);
    /* the store */
    kvt_status (*flush)(kvt_store *store);
    kvt_status (*persist)(kvt_store *store, uint64_t deadline_ns, kvt_persist_info *info_out);
    kvt_status (*maintain)(kvt_store *store, uint32_t *moves_out);
    kvt_status (*space_set)(kvt_store *store, uint64_t space, uint32_t tenant);
    kvt_status (*space_stats)(kvt_store *store, uint64_t space, kvt_space_stats *stats);
    kvt_status (*list)(kvt_store *store, const kvt_clear_filter *filter, uint64_t *cursor,
                       kvt_list_item *items, size_t capacity, size_t *count_out);
    kvt_status (*tenant_set)(kvt_store *store, uint32_t tenant, const kvt_tenant *limits);
    kvt_status (*stats)(kvt_store *store, kvt_store_stats *stats);
    kvt_status (*device_stats)(kvt_store *store, size_t index, kvt_device_stats *out);
    kvt_status (*class_stats)(kvt_store *store, uint32_t class_id, kvt_class_stats *out);
    kvt_status (*health)(kvt_store *store, kvt_health_item *items, size_t capacity,
                         size_t *count_out, kvt_status *overall_out);
    kvt_status (*device_change)(kvt_store *store, const char *name, kvt_device_action action);
    size_t (*metrics)(kvt_store *store, char *text, size_t size);
    kvt_status (*operations)(kvt_store *store, kvt_operation *out, size_t capacity,
                             size_t *count_out);
    kvt_status (*observe)(kvt_store *store, const kvt_key *key, kvt_variant variant, double loss,
                          double weight);
    kvt_status (*pass_begin)(kvt_store *store, const kvt_pass *pass, uint64_t *pass_out);
    kvt_status (*pass_layer)(kvt_store *store, uint64_t pass, uint32_t layer);
    kvt_status (*pass_end)(kvt_store *store, uint64_t pass);
    kvt_status (*pass_table_set)(kvt_store *store, const kvt_pass_row *rows, size_t count);
    kvt_status (*basis_add)(kvt_store *store, const void *bytes, uint64_t size);
    kvt_status (*basis_remove)(kvt_store *store, const uint8_t *hash);
    kvt_status (*basis_get)(kvt_store *store, size_t index, kvt_basis_info *out);
    kvt_status (*remote_flush)(kvt_store *store, uint64_t deadline_ns);
    kvt_status (*remote_stats)(kvt_store *store, kvt_remote_stats *stats);
    kvt_status (*remote_node)(kvt_store *store, uint32_t index, kvt_remote_node *node);
    pthread_mutex_t *(*file_lock)(kvt_store *store); /* held by kvt_watch_write over its file */
    kvt_status (*events_open)(kvt_store *store, uint32_t capacity, kvt_events **events_out);
    kvt_status (*queue_open)(kvt_store *store, const kvt_queue_options *options,
                             kvt_queue **queue_out);
} base_store_calls;

typedef struct base_queue_calls {
    void (*close)(kvt_queue *queue);
    int (*fd)(const kvt_queue *queue);
    kvt_status (*submit)(kvt_queue *queue, const kvt_request *requests, size_t count,
                         uint64_t *batch_out);
    size_t (*drain)(kvt_queue *queue, kvt_completion *completions, size_t capacity);
    kvt_status (*wait)(kvt_queue *queue, uint64_t deadline_ns);
    kvt_status (*cancel)(kvt_queue *queue, uint64_t batch);
    kvt_status (*stats)(kvt_queue *queue, kvt_queue_stats *stats);
    kvt_status (*load_begin)(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, const kvt_load_options *options, kvt_load **load_out);
} base_queue_calls;

typedef struct base_load_calls {
    uint32_t (*layers)(const kvt_load *load);
    uint32_t (*total)(kvt_load *load, bool *reads_out);
    kvt_status (*wait)(kvt_load *load, uint32_t layers, uint64_t deadline_ns);
    void (*release)(kvt_load *load, uint32_t layers);
    kvt_status (*status)(kvt_load *load, size_t index);
    kvt_status (*end)(kvt_load *load, kvt_status *statuses, kvt_load_result *result_out);
} base_load_calls;

typedef struct base_events_calls {
    void (*close)(kvt_events *reader);
    int (*fd)(const kvt_events *reader);
    kvt_status (*drain)(kvt_events *reader, kvt_event *events, size_t capacity, size_t *count_out,
                        uint64_t *lost_out);
} base_events_calls;

/* How every handle with a table begins. */
typedef struct base_handle {
    const void *calls;
    uint32_t forks; /* base_fork_guard_count of the process that made it */
} base_handle;

/* The status of a call that the table of a handle lacks; says is the table's `lacks`. */
static inline kvt_status base_calls_lack(const void *handle, kvt_status says)
{
    const base_handle *head = handle;
    if (!fork_guard_is_current(head->forks)) return KVT_E_STATE;
    return says == KVT_OK ? KVT_E_UNSUPPORTED : says;
}

/* Makes a call of a store's table whose member may be NULL; the arguments begin with the handle. */
#define BASE_CALL(calls, call, handle, ...)                                                        \
    ((calls)->call != NULL ? (calls)->call(handle, __VA_ARGS__)                                    \
                           : base_calls_lack(handle, (calls)->lacks))

/* The first member of a handle, whatever it is; NULL for a handle that is NULL. */
static inline const void *base_calls_at(const void *handle)
{
    return handle != NULL ? __atomic_load_n((const void *const *)handle, __ATOMIC_ACQUIRE) : NULL;
}

/* The table of a store, NULL of one of this process. It waits for a store that is being opened. */
static inline const base_store_calls *base_store_calls_of(const kvt_store *store)
{
    const base_store_calls *calls = base_calls_at(store);
    return calls != NULL && calls->wait != NULL ? calls->wait(store) : calls;
}

/* The same for the few calls that a store answers while it is being opened. */
static inline const base_store_calls *base_store_calls_now(const kvt_store *store)
{
    return base_calls_at(store);
}

static inline const base_queue_calls *base_queue_calls_of(const kvt_queue *queue)
{
    return base_calls_at(queue);
}

static inline const base_load_calls *base_load_calls_of(const kvt_load *load)
{
    return base_calls_at(load);
}

static inline const base_events_calls *base_events_calls_of(const kvt_events *reader)
{
    return base_calls_at(reader);
}

#endif
