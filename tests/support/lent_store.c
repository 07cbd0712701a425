/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent_store.c - a store of this process behind a server on a thread of this process, and the
 * connection to it that a test has in its place.
 */
#include "lent_store.h"

#include "serve/server/server.h"

#include <kvterrace/connect.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENT_STORES 64

typedef struct lent_store {
    kvt_store *own, *connected;
    server *lends;
    pthread_t thread;
    char folder[32], path[48];
} lent_store;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lent_store stores[LENT_STORES];

static void *lent_runs(void *argument)
{
    return server_run(argument) == KVT_OK ? NULL : argument;
}

static kvt_status lent_begin(lent_store *lent, char *message, size_t message_size)
{
    (void)snprintf(lent->folder, sizeof lent->folder, "/tmp/kvt_lent_XXXXXX");
    if (mkdtemp(lent->folder) == NULL) return KVT_E_IO;
    char path[48];
    (void)snprintf(path, sizeof path, "%s/s", lent->folder);
    memcpy(lent->path, path, sizeof path);
    const server_options options = {.path = lent->path};
    kvt_status status = server_open(lent->own, &options, &lent->lends, message, message_size);
    if (status != KVT_OK) return status;
    if (pthread_create(&lent->thread, NULL, lent_runs, lent->lends) != 0) return KVT_E_THREAD;
    return kvt_connect(lent->path, NULL, &lent->connected, message, message_size);
}

static void lent_end(lent_store *lent)
{
    char beside[64];
    void *failed = NULL;
    kvt_store_close(lent->connected);
    server_stop(lent->lends);
    (void)pthread_join(lent->thread, &failed);
    server_close(lent->lends);
    (void)snprintf(beside, sizeof beside, "%s.lock", lent->path);
    (void)unlink(beside);
    (void)rmdir(lent->folder);
    kvt_store_close(lent->own);
    if (failed != NULL) abort();
}

kvt_store *lent_store_open(kvt_store *own)
{
    char message[256];
    lent_store *lent = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LENT_STORES && lent == NULL; i++)
        if (stores[i].own == NULL) lent = &stores[i];
    if (lent != NULL) *lent = (lent_store){.own = own};
    pthread_mutex_unlock(&lock);
    if (lent == NULL) abort();
    const kvt_status status = lent_begin(lent, message, sizeof message);
    if (status != KVT_OK) {
        (void)fprintf(stderr, "lent store: %s: %s\n", kvt_status_name(status), message);
        abort();
    }
    return lent->connected;
}

bool lent_store_close(kvt_store *store)
{
    lent_store ends = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LENT_STORES; i++) {
        if (store == NULL || stores[i].connected != store) continue;
        ends = stores[i];
        stores[i] = (lent_store){0};
    }
    pthread_mutex_unlock(&lock);
    if (ends.own == NULL) return false;
    lent_end(&ends);
    return true;
}

kvt_store *lent_store_own(kvt_store *store)
{
    kvt_store *own = store;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LENT_STORES; i++)
        if (stores[i].own != NULL && stores[i].connected == store) own = stores[i].own;
    pthread_mutex_unlock(&lock);
    return own;
}
