/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_process.h - a store with an SSD in a folder, lent by a process of its own, which a test
 * kills and begins again:
 *
 *     serve_process at;
 *     serve_process_place(&at);
 *     pid_t process = serve_process_begin(&at);
 *     status = serve_process_connect(&at, NULL, &store);
 *     serve_process_kill(process);
 *     support_remove_folder(at.folder);
 */
#ifndef TESTS_SERVE_PROCESS_H
#define TESTS_SERVE_PROCESS_H

#include "store_support.h"

#include "base/clock.h"
#include "serve/server/server.h"

#include <kvterrace/connect.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

typedef struct serve_process {
    char folder[64], path[96], disk[96], catalog[96];
    server_options lent;           /* of the next server; its path is set here */
    void (*beside)(server *lends); /* called in the process before it serves; NULL: nothing */
} serve_process;

static server *serve_process_lends; /* of the child */

static inline void serve_process_leaves(int number)
{
    (void)number;
    server_stop(serve_process_lends);
}

/* Makes the folder. */
static inline void serve_process_place(serve_process *at)
{
    *at = (serve_process){.beside = NULL};
    support_make_folder(at->folder, sizeof at->folder);
    snprintf(at->path, sizeof at->path, "%s/socket", at->folder);
    snprintf(at->disk, sizeof at->disk, "%s/disk", at->folder);
    snprintf(at->catalog, sizeof at->catalog, "%s/catalog.db", at->folder);
}

/* The child: serves until it is killed or, by SIGTERM, leaves. */
static inline void serve_process_run(const serve_process *at)
{
    char message[256] = "";
    kvt_store *own;
    const struct sigaction action = {.sa_handler = serve_process_leaves};
    kvt_store_options options;
    server_options lent = at->lent;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kvt_store_options_init(&options);
    const kvt_device_config file = support_file_config("disk", at->disk, 64 << 20);
    options.policy = "lru";
    options.durability.catalog_path = at->catalog;
    options.limits.staging_bytes = 8 << 20;
    options.limits.put_staging_bytes = 8 << 20;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = &file, .device_count = 1};
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 16 << 20;
    lent.path = at->path;
    if (kvt_store_open(&options, &own, message, sizeof message) != KVT_OK ||
        server_open(own, &lent, &serve_process_lends, message, sizeof message) != KVT_OK) {
        (void)fprintf(stderr, "server: %s\n", message);
        _exit(1);
    }
    (void)sigaction(SIGTERM, &action, NULL);
    if (at->beside != NULL) at->beside(serve_process_lends);
    const kvt_status status = server_run(serve_process_lends);
    server_close(serve_process_lends);
    kvt_store_close(own);
    _exit(status == KVT_OK ? 0 : 1);
}

static inline pid_t serve_process_begin(const serve_process *at)
{
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) serve_process_run(at);
    return process;
}

static inline void serve_process_kill(pid_t process)
{
    int how;
    assert_int_equal(kill(process, SIGKILL), 0);
    assert_int_equal(waitpid(process, &how, 0), process);
}

/* Stops a server, wholly: before the last of its threads has stopped it may answer still. */
static inline void serve_process_stop(pid_t process)
{
    int how;
    assert_int_equal(kill(process, SIGSTOP), 0);
    assert_int_equal(waitpid(process, &how, WUNTRACED), process);
    assert_true(WIFSTOPPED(how));
}

/* Connects as soon as the server listens. */
static inline kvt_status serve_process_connect(const serve_process *at,
                                               const kvt_connect_options *options,
                                               kvt_store **store_out)
{
    char message[256];
    const uint64_t until_ns = base_clock_ns() + UINT64_C(60000000000);
    kvt_status status = KVT_E_GONE;
    while (status == KVT_E_GONE && base_clock_ns() < until_ns) {
        status = kvt_connect(at->path, options, store_out, message, sizeof message);
        if (status == KVT_E_GONE) usleep(1000);
    }
    return status;
}

#endif
