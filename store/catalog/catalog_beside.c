/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_beside.c - the catalog of a store that runs, or does not, read by another process that
 * leaves no trace of it.
 *
 *     -wal absent   no writer: SQLite is told that the file does not change. A writer that comes
 *                   makes a -wal, or changes the file; catalog_has_moved sees either
 *     -wal there    a writer, or one that was killed: read by SQLite's log and its index, which is
 *                   mapped for reading alone
 *
 * SQLite makes a -wal where it opens a database in WAL mode, whatever the connection may do; so
 * files are reached through calls that open for reading alone. For a writer, such a reader is
 * a reader of WAL mode: it waits for none, and a transaction of one row keeps the log from being
 * cut for that long. A writer that closes meanwhile leaves its log, which the next one takes over.
 *
 * Within one process SQLite shares the index of a log among connections, so a writer must not be
 * opened in the process of such a reader: it would find the index read-only. A reader of the
 * writer's own process (CATALOG_WITHIN) is a plain connection.
 *
 * Thread rule: the opener's thread, or one at a time.
 */
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BESIDE_CALLS "kvterrace-beside"

static sqlite3_vfs beside_calls; /* once made, constant */

/* Opens a file of a database for reading alone. Files without a name are SQLite's own. */
static int beside_open(sqlite3_vfs *calls, sqlite3_filename name, sqlite3_file *file, int flags,
                       int *flags_out)
{
    sqlite3_vfs *system = calls->pAppData;
    if (name != NULL) {
        flags &= ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
        flags |= SQLITE_OPEN_READONLY;
    }
    return system->xOpen(system, name, file, flags, flags_out);
}

static void beside_register(void)
{
    sqlite3_vfs *system = sqlite3_vfs_find(NULL);
    if (system == NULL) return;
    beside_calls = *system;
    beside_calls.pNext = NULL;
    beside_calls.zName = BESIDE_CALLS;
    beside_calls.pAppData = system;
    beside_calls.xOpen = beside_open;
    (void)sqlite3_vfs_register(&beside_calls, 0);
}

/* Looks at the catalog's file and its log. */
static void beside_look(const store_catalog *catalog, struct stat facts[2])
{
    char log[PATH_MAX + 8];
    memset(facts, 0, 2 * sizeof *facts);
    (void)snprintf(log, sizeof log, "%s-wal", catalog->path);
    if (stat(catalog->path, &facts[0]) != 0) facts[0] = (struct stat){.st_mode = 0};
    if (lstat(log, &facts[1]) != 0) facts[1] = (struct stat){.st_mode = 0};
}

static bool beside_is_same(const struct stat *a, const struct stat *b)
{
    return (a->st_mode == 0) == (b->st_mode == 0) && a->st_dev == b->st_dev &&
           a->st_ino == b->st_ino;
}

bool catalog_has_moved(const store_catalog *catalog)
{
    struct stat now[2];
    const struct stat *then = catalog->beside;
    if (catalog->within) return false;
    beside_look(catalog, now);
    if (!beside_is_same(&now[0], &then[0]) || !beside_is_same(&now[1], &then[1])) return true;
    if (then[1].st_mode != 0) return false;
    return now[0].st_size != then[0].st_size || now[0].st_mtim.tv_sec != then[0].st_mtim.tv_sec ||
           now[0].st_mtim.tv_nsec != then[0].st_mtim.tv_nsec;
}

kvt_status catalog_reach_beside(store_catalog *catalog)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, beside_register);
    assert(catalog->db == NULL && catalog->lock_file < 0);
    if (strlen(catalog->path) >= PATH_MAX) return KVT_E_ARGUMENT;
    beside_look(catalog, catalog->beside);
    const struct stat *facts = catalog->beside;
    if (facts[0].st_mode == 0) return KVT_E_GONE;
    if (!S_ISREG(facts[0].st_mode) || (facts[1].st_mode != 0 && !S_ISREG(facts[1].st_mode))) {
        catalog->reason = "it, or its log (-wal), is no regular file";
        return KVT_E_ARGUMENT;
    }
    char *uri = catalog_uri(catalog, facts[1].st_mode == 0 ? "?immutable=1" : "?readonly_shm=1");
    if (uri == NULL) return KVT_E_MEMORY;
    const int code =
        sqlite3_open_v2(uri, &catalog->db,
                        SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, BESIDE_CALLS);
    free(uri);
    return catalog_status(code);
}
