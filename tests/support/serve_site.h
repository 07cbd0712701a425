/* SPDX-License-Identifier: Apache-2.0 */
/* serve_site.h - a store that is lent by a server in this process, in a folder of its own. */
#ifndef TESTS_SERVE_SITE_H
#define TESTS_SERVE_SITE_H

#include "serve_client.h"
#include "store_support.h"

#include "serve/server/server.h"

#include <pthread.h>

typedef struct serve_site {
    char folder[64], path[96];
    kvt_store *store;
    server *lends;
    pthread_t thread;
    uint32_t descriptors; /* open before the first client */
} serve_site;

static inline void *serve_site_runs(void *argument)
{
    return server_run(argument) == KVT_OK ? NULL : argument;
}

/* Lends a store, which serve_site_end closes. */
static inline void serve_site_begin(serve_site *at, kvt_store *store)
{
    char message[256];
    *at = (serve_site){.store = store};
    snprintf(at->folder, sizeof at->folder, "server_XXXXXX");
    assert_non_null(mkdtemp(at->folder));
    snprintf(at->path, sizeof at->path, "%s/s", at->folder);
    const server_options options = {.path = at->path,
                                    .sessions = 4,
                                    .registered_bytes = 16 << 20,
                                    .staging_bytes = 2 << 20,
                                    .depth = 64};
    const kvt_status status = server_open(store, &options, &at->lends, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(pthread_create(&at->thread, NULL, serve_site_runs, at->lends), 0);
    at->descriptors = open_descriptors();
}

/* Nothing of the clients, which have closed, has stayed. */
static inline void serve_site_end(serve_site *at)
{
    void *failed;
    while (server_sessions(at->lends) != 0)
        usleep(1000);
    assert_int_equal(open_descriptors(), at->descriptors);
    server_stop(at->lends);
    assert_int_equal(pthread_join(at->thread, &failed), 0);
    assert_null(failed);
    server_close(at->lends);
    kvt_store_close(at->store);
    support_remove_folder(at->folder);
}

#endif
