/* SPDX-License-Identifier: Apache-2.0 */
/*
 * early.c - see early.h for the two threads; here are the calls of a store that is being opened,
 * then its open.
 *
 *     a row, of an exact variant     read by the reader, verified as every record is
 *     no row                         a miss
 *     anything else                  the call waits for the end of the open, and is made then: a
 *                                    lossy variant may no longer be offered, damage costs an entry
 *
 * `lock` guards the members; it is held over neither a lookup nor a read. `elsewhere` of the store
 * is written twice: by early_begin, before the caller has the handle, and by early_end.
 */
#include "store/follow/early.h"
#include "base/kill_point.h"
#include "base/struct_size.h"
#include "base/thread.h"
#include "base/wait.h"
#include "store/core/given_options.h"
#include "store/follow/follow.h"
#include "store/follow/follow_internal.h"
#include "store/read/access_get.h"

#include <assert.h>
#include <kvterrace/lookup.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct store_early {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread; /* the opening one, */
    pthread_t self;   /* as it knows itself */
    given_options given;
    kvt_store *store;  /* from early_begin on, or from the end */
    kvt_store *reader; /* NULL once it is closed */
    uint32_t readers;  /* calls that are in it */
    bool serving;      /* the caller has the handle, or may have it */
    bool retired;      /* no further call enters the reader */
    bool over;         /* the open has ended, */
    kvt_status status; /* so */
    base_store_calls failed;
    char message[512];
};

/* ---- calls while it is being opened ---- */

/* Takes hold of the reader; NULL: the open is about to end. */
static kvt_store *early_enter(store_early *early)
{
    pthread_mutex_lock(&early->lock);
    kvt_store *reader = early->retired ? NULL : early->reader;
    early->readers += reader != NULL;
    pthread_mutex_unlock(&early->lock);
    return reader;
}

static void early_leave(store_early *early)
{
    pthread_mutex_lock(&early->lock);
    assert(early->readers > 0);
    if (--early->readers == 0) pthread_cond_broadcast(&early->changed);
    pthread_mutex_unlock(&early->lock);
}

/* Waits for the end of the open; false: the deadline has come before. */
static bool early_await(store_early *early, uint64_t deadline_ns)
{
    bool in_time = true;
    pthread_mutex_lock(&early->lock);
    while (!early->over && in_time)
        in_time = base_condition_wait_until(&early->changed, &early->lock, deadline_ns);
    const bool over = early->over;
    pthread_mutex_unlock(&early->lock);
    return over;
}

/* The wait of every function that is not below. The opening thread's own calls are those of a store
 * of this process, and in a child of fork every function says KVT_E_STATE. */
static const base_store_calls *early_wait(const kvt_store *store)
{
    if (!fork_guard_is_ours(store) || pthread_equal(store->early->self, pthread_self()))
        return NULL;
    (void)early_await(store->early, BASE_CLOCK_NEVER);
    return base_calls_at(store);
}

typedef enum early_found { EARLY_ASK = 0, EARLY_MISS, EARLY_ROW } early_found;

static void early_visit(void *context, const catalog_row *row)
{
    const bool ends = row->expires_ns != 0 && row->expires_ns <= base_calendar_ns();
    const bool exact = row->location != NULL && kvt_codec_is_exact(row->variant);
    *(early_found *)context = !exact ? EARLY_ASK : ends ? EARLY_MISS : EARLY_ROW;
}

/* What the catalog says of a key; EARLY_ASK: the open store is to be asked. */
static early_found early_look(kvt_store *handle, const kvt_key *key)
{
    follow_store *reader = (follow_store *)(void *)handle;
    early_found found = EARLY_ASK;
    char message[256];
    pthread_mutex_lock(&reader->lock);
    if (follow_catalog(reader, message, sizeof message) == KVT_OK &&
        catalog_find_entry(reader->catalog, key, early_visit, &found) == KVT_MISS)
        found = EARLY_MISS;
    pthread_mutex_unlock(&reader->lock);
    return found;
}

static void early_tell(kvt_get_info *info, bool timed_out)
{
    const kvt_get_info whole = {.struct_size = sizeof whole, .timed_out = timed_out};
    if (info != NULL) struct_size_out(info, &whole, sizeof whole);
}

static kvt_status early_get(kvt_store *store, const kvt_key *key, const kvt_view *view,
                            uint64_t deadline_ns, kvt_get_info *info)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || view == NULL || !access_info_is_sound(info)) return KVT_E_ARGUMENT;
    deadline_ns = access_deadline(store, deadline_ns);
    const bool asks = info != NULL && info->kept != NULL;
    kvt_store *reader = asks ? NULL : early_enter(store->early);
    if (reader != NULL) {
        kvt_status status = KVT_MISS;
        const early_found found = early_look(reader, key);
        if (found == EARLY_ROW) status = follow_get(reader, key, view, deadline_ns, info);
        if (found == EARLY_MISS) early_tell(info, false);
        early_leave(store->early);
        if (found == EARLY_MISS || status == KVT_OK) return status;
    }
    if (early_await(store->early, deadline_ns))
        return kvt_store_get(store, key, view, deadline_ns, info);
    if (!asks) early_tell(info, true);
    return KVT_MISS;
}

/* Looks at leading keys until one has no row. False: the open store is to be asked. */
static bool early_count(kvt_store *store, const kvt_key *keys, size_t count, size_t *matched_out)
{
    early_found found = EARLY_ROW;
    kvt_store *reader = early_enter(store->early);
    if (reader == NULL) return false;
    for (*matched_out = 0; *matched_out < count; ++*matched_out) {
        found = early_look(reader, &keys[*matched_out]);
        if (found != EARLY_ROW) break;
    }
    early_leave(store->early);
    return found != EARLY_ASK;
}

static kvt_status early_exists(kvt_store *store, const kvt_key *key)
{
    size_t matched;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL) return KVT_E_ARGUMENT;
    if (early_count(store, key, 1, &matched)) return matched == 1 ? KVT_OK : KVT_MISS;
    (void)early_await(store->early, BASE_CLOCK_NEVER);
    return kvt_store_exists(store, key);
}

static kvt_status early_match(kvt_store *store, const kvt_key *keys, size_t count,
                              const kvt_match *match, size_t *matched_out)
{
    size_t matched;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    /* Predictions are of the policy and of learned figures. */
    const bool plain = match == NULL || (match->struct_size == sizeof *match &&
                                         match->worth == NULL && match->load_seconds == NULL);
    if (plain && matched_out != NULL && (keys != NULL || count == 0) &&
        early_count(store, keys, count, &matched)) {
        *matched_out = matched;
        return KVT_OK;
    }
    (void)early_await(store->early, BASE_CLOCK_NEVER);
    return kvt_store_match(store, keys, count, match, matched_out);
}

/* One get after the other, and as many as have ended well. */
static kvt_status early_prefix_get(kvt_store *store, const kvt_key *keys,
                                   const kvt_view *const *views, size_t count, uint64_t deadline_ns,
                                   size_t *loaded_out)
{
    if (loaded_out == NULL || count > QUEUE_DEPTH_MAX) return KVT_E_ARGUMENT;
    if (count != 0 && (keys == NULL || views == NULL)) return KVT_E_ARGUMENT;
    *loaded_out = 0;
    for (size_t i = 0; i < count; i++)
        if (views[i] == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    for (; *loaded_out < count; ++*loaded_out) {
        const kvt_status status =
            kvt_store_get(store, &keys[*loaded_out], views[*loaded_out], deadline_ns, NULL);
        if (status == KVT_E_ARGUMENT || status == KVT_E_MEMORY) return status;
        if (status != KVT_OK) break;
    }
    return KVT_OK;
}

static kvt_status early_opened(kvt_store *store, uint64_t deadline_ns, char *message, size_t size)
{
    store_early *early = store->early;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (!early_await(early, deadline_ns)) return KVT_BUSY;
    if (message != NULL && size != 0) (void)snprintf(message, size, "%s", early->message);
    return early->status;
}

static const base_store_calls early_calls = {.wait = early_wait,
                                             .opened = early_opened,
                                             .get = early_get,
                                             .exists = early_exists,
                                             .match = early_match,
                                             .prefix_get = early_prefix_get};

kvt_status kvt_store_wait(kvt_store *store, uint64_t deadline_ns, char *message, size_t size)
{
    const base_store_calls *other = base_store_calls_now(store);
    if (store == NULL) return KVT_E_ARGUMENT;
    if (message != NULL && size != 0) message[0] = '\0';
    if (other != NULL && other->opened != NULL)
        return other->opened(store, deadline_ns, message, size);
    if (base_calls_lack(store, KVT_OK) == KVT_E_STATE) return KVT_E_STATE;
    if (other == NULL && store->early != NULL)
        return early_opened(store, deadline_ns, message, size);
    return KVT_OK;
}

/* ---- the open ---- */

bool early_is_wanted(const kvt_store_options *options)
{
    return options->serve_early && !options->follow && !options->format &&
           options->durability.catalog_path != NULL && options->remote == NULL;
}

/* Whether what is there is what an earlier life has left: no device is new, stale or given up. */
static bool early_is_whole(const open_state *state)
{
    bool whole = state->epoch != 0;
    for (uint32_t i = 0; i < state->device_count; i++) {
        const open_device *device = &state->devices[i];
        whole = whole && (!device->labelled || !device->blank);
    }
    return whole;
}

void early_begin(open_state *state)
{
    store_early *early = state->early;
    char message[256] = "";
    kvt_store *reader;
    if (early == NULL || !early_is_whole(state) ||
        follow_open(state->options, true, &reader, message, sizeof message) != KVT_OK)
        return;
    state->store->early = early;
    state->store->elsewhere = &early_calls;
    pthread_mutex_lock(&early->lock);
    early->reader = reader;
    early->store = state->store;
    early->serving = true;
    pthread_cond_broadcast(&early->changed);
    pthread_mutex_unlock(&early->lock);
    KILL_POINT("open: early");
}

bool early_retire(store_early *early)
{
    if (early == NULL) return false;
    pthread_mutex_lock(&early->lock);
    early->retired = true;
    while (early->readers != 0)
        pthread_cond_wait(&early->changed, &early->lock);
    kvt_store *reader = early->reader;
    early->reader = NULL;
    const bool serving = early->serving;
    pthread_mutex_unlock(&early->lock);
    kvt_store_close(reader);
    return serving;
}

/* Of a store whose open has failed: its parts are closed already. */
static void early_close_failed(kvt_store *store)
{
    if (!fork_guard_is_ours(store)) return;
    early_free(store->early);
    free(store);
}

/* Ends the open for everybody who waits. */
static void early_end(store_early *early, kvt_store *store, kvt_status status)
{
    pthread_mutex_lock(&early->lock);
    early->over = true;
    early->status = status;
    early->failed =
        (base_store_calls){.lacks = status, .opened = early_opened, .close = early_close_failed};
    if (early->serving)
        __atomic_store_n(&early->store->elsewhere, status == KVT_OK ? NULL : &early->failed,
                         __ATOMIC_RELEASE);
    else
        early->store = store;
    pthread_cond_broadcast(&early->changed);
    pthread_mutex_unlock(&early->lock);
    (void)early_retire(early);
}

static void *early_run(void *argument)
{
    store_early *early = argument;
    kvt_store *store = NULL;
    early->self = pthread_self();
    const kvt_status status =
        open_store(&early->given.options, early, &store, early->message, sizeof early->message);
    early_end(early, store, status);
    return NULL;
}

static void early_discard(store_early *early)
{
    given_options_release(&early->given);
    pthread_cond_destroy(&early->changed);
    pthread_mutex_destroy(&early->lock);
    free(early);
}

void early_free(store_early *early)
{
    if (early == NULL) return;
    pthread_join(early->thread, NULL);
    early_discard(early);
}

kvt_status early_open(const kvt_store_options *options, kvt_store **store_out, char *message,
                      size_t message_size)
{
    store_early *early = calloc(1, sizeof *early);
    if (early == NULL) return KVT_E_MEMORY;
    kvt_status status = given_options_take(options, &early->given, message, message_size);
    if (status == KVT_OK) status = given_options_keep(&early->given);
    pthread_mutex_init(&early->lock, NULL);
    base_condition_init(&early->changed);
    if (status == KVT_OK) status = base_thread_start(&early->thread, early_run, early);
    if (status != KVT_OK) {
        if (message[0] == '\0')
            (void)snprintf(message, message_size, "%s", kvt_status_text(status));
        early_discard(early);
        return status;
    }
    pthread_mutex_lock(&early->lock);
    while (!early->serving && !early->over)
        pthread_cond_wait(&early->changed, &early->lock);
    const bool serving = early->serving;
    *store_out = early->store;
    pthread_mutex_unlock(&early->lock);
    if (serving) return KVT_OK;
    /* The open has gone its way without a reader. */
    status = early->status;
    (void)snprintf(message, message_size, "%s", early->message);
    early_free(early);
    return status;
}
