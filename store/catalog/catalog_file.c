/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_file.c - the files of a catalog: path, lock, log, making and removing.
 *
 *     CATALOG        the database, 0600
 *     CATALOG-lock   empty; the writer of the catalog holds it under flock. Made with the catalog
 *                    and never removed, or two openers could hold two files of that name
 *     CATALOG-wal    SQLite's log, and CATALOG-shm beside it
 *     CATALOG-rows   the rows as a close left them (catalog_kept.c)
 *
 * Only SQLite opens the database itself: closing any descriptor of a file drops the locks that
 * SQLite holds on it for the whole process, other connections included.
 *
 * Thread rule: the opener's thread.
 */
#include "base/kill_point.h"
#include "store/catalog/catalog_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The status of a failed system call on one of the catalog's files. */
static kvt_status catalog_errno_status(int os_error)
{
    switch (os_error) {
    case ENOENT:
    case ENOTDIR: return KVT_E_GONE;
    case EACCES:
    case EPERM:
    case EROFS: return KVT_E_READ_ONLY;
    case ENOSPC:
    case EDQUOT: return KVT_E_SPACE;
    case ENOMEM: return KVT_E_MEMORY;
    case ELOOP: return KVT_E_ARGUMENT;
    default: return KVT_E_IO;
    }
}

/* Sets catalog->path: a link is followed to its end when that is wanted, so that every way to a
 * catalog leads to the same lock. */
static kvt_status catalog_resolve(store_catalog *catalog, const char *path, bool follow)
{
    struct stat facts;
    if (lstat(path, &facts) == 0 && S_ISLNK(facts.st_mode)) {
        if (!follow) {
            catalog->reason = "it is a symbolic link; store.follow_symlinks = yes opens what it "
                              "leads to";
            return KVT_E_ARGUMENT;
        }
        catalog->path = realpath(path, NULL);
        if (catalog->path == NULL && errno == ENOENT)
            catalog->reason = "it is a symbolic link that leads nowhere";
        return catalog->path != NULL ? KVT_OK : catalog_errno_status(errno);
    }
    catalog->path = strdup(path);
    return catalog->path != NULL ? KVT_OK : KVT_E_MEMORY;
}

/* Opens the lock's file; a writer makes it. -1 with errno. O_NONBLOCK, because the open of a fifo
 * would wait. */
static int catalog_open_lock(const store_catalog *catalog, bool writes)
{
    char *path;
    if (asprintf(&path, "%s-lock", catalog->path) < 0) {
        errno = ENOMEM;
        return -1;
    }
    int flags = writes ? O_RDWR | O_CREAT : O_RDONLY;
    int file = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    int os_error = errno;
    free(path);
    errno = os_error;
    return file;
}

/* Takes the lock as a writer. KVT_E_LOCKED: another store has the catalog. */
static kvt_status catalog_lock(store_catalog *catalog)
{
    struct stat facts;
    catalog->lock_file = catalog_open_lock(catalog, true);
    if (catalog->lock_file < 0) {
        if (errno == ELOOP) catalog->reason = "its lock file (-lock) is a symbolic link";
        return catalog_errno_status(errno);
    }
    if (fstat(catalog->lock_file, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        catalog->reason = "its lock file (-lock) is no regular file";
        return KVT_E_ARGUMENT;
    }
    (void)fchmod(catalog->lock_file, 0600); /* another owner's stays as it is */
    kvt_status status = tiers_claim_acquire(&catalog->claim, catalog->lock_file, true);
    if (status == KVT_E_IO) catalog->reason = "its lock file (-lock) cannot be locked";
    return status;
}

/* Makes an absent catalog, empty. Its descriptor may be closed: no connection has the file yet. */
static kvt_status catalog_make_file(store_catalog *catalog)
{
    int file = open(catalog->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 && errno == EEXIST) return KVT_OK;
    if (file < 0) return catalog_errno_status(errno);
    catalog->made = true;
    KILL_POINT("first open: catalog empty");
    (void)fchmod(file, 0600);
    close(file);
    return KVT_OK;
}

/* Refuses a catalog whose log, index or journal is no regular file. */
static kvt_status catalog_check_beside(store_catalog *catalog)
{
    static const struct {
        const char *suffix, *reason;
    } beside[] = {{"-wal", "its log (-wal) is no regular file"},
                  {"-shm", "the index of its log (-shm) is no regular file"},
                  {"-journal", "its journal (-journal) is no regular file"}};
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        struct stat facts;
        char *path;
        if (asprintf(&path, "%s%s", catalog->path, beside[i].suffix) < 0) return KVT_E_MEMORY;
        bool other = lstat(path, &facts) == 0 && !S_ISREG(facts.st_mode);
        free(path);
        if (!other) continue;
        catalog->reason = beside[i].reason;
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

uint64_t catalog_log_bytes(const store_catalog *catalog)
{
    struct stat facts;
    char *path;
    if (asprintf(&path, "%s-wal", catalog->path) < 0) return 0;
    const bool there = lstat(path, &facts) == 0;
    free(path);
    return there ? (uint64_t)facts.st_size : 0;
}

/* Checks the catalog's files before SQLite opens them, because SQLite would carry the log over or
 * throw it away. Lock and log are found by the catalog's name, so a second name is refused. */
static kvt_status catalog_check_files(store_catalog *catalog)
{
    struct stat facts;
    bool there = stat(catalog->path, &facts) == 0;
    if (there && !S_ISREG(facts.st_mode)) {
        catalog->reason = "it is no regular file";
        return KVT_E_ARGUMENT;
    }
    if (there && facts.st_nlink > 1) {
        catalog->reason =
            "it has a second name (a hard link), which lock and log would not follow; "
            "remove one, or make it a copy";
        return KVT_E_ARGUMENT;
    }
    kvt_status beside = catalog_check_beside(catalog);
    if (beside != KVT_OK) return beside;
    catalog->log_bytes = catalog_log_bytes(catalog);
    if (there || catalog->log_bytes == 0) return KVT_OK;
    catalog->reason = "it is gone, but its log (-wal) is there; kvterrace recover makes a new "
                      "catalog from the devices";
    return KVT_E_CORRUPT;
}

/* Opens the connection, without SQLite's own mutexes: one thread uses it at a time. */
static kvt_status catalog_connect(store_catalog *catalog, const char *name, int flags)
{
    int code = sqlite3_open_v2(name, &catalog->db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    return catalog_status(code);
}

char *catalog_uri(const store_catalog *catalog, const char *parameters)
{
    static const char digits[] = "0123456789abcdef";
    char *uri = malloc(3 * strlen(catalog->path) + strlen(parameters) + 8);
    if (uri == NULL) return NULL;
    size_t used = (size_t)snprintf(uri, 6, "file:");
    for (const unsigned char *at = (const unsigned char *)catalog->path; *at != '\0'; at++) {
        uri[used++] = '%';
        uri[used++] = digits[*at >> 4];
        uri[used++] = digits[*at & 15];
    }
    memcpy(uri + used, parameters, strlen(parameters) + 1);
    return uri;
}

/*
 * Connects for reading without leaving a file beside the catalog. SQLite makes a -shm and a -wal
 * file for any database in WAL mode, unless the connection says that the file does not change
 * (immutable). The catalog does not change while the shared lock keeps stores from opening it and
 * no -wal file holds rows that belong into it.
 */
static kvt_status catalog_connect_unchanging(store_catalog *catalog)
{
    char *uri = catalog_uri(catalog, "?immutable=1");
    if (uri == NULL) return KVT_E_MEMORY;
    kvt_status status = catalog_connect(catalog, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
    free(uri);
    return status;
}

static kvt_status catalog_reach_reader(store_catalog *catalog)
{
    /* Shared with other readers. Not still: a store has the catalog open for writing. A catalog
     * without a lock file was copied, or was written by an earlier version. */
    catalog->lock_file = catalog_open_lock(catalog, false);
    const bool still = catalog->lock_file < 0 ? errno == ENOENT
                                              : flock(catalog->lock_file, LOCK_SH | LOCK_NB) == 0;
    kvt_status status = still ? catalog_check_files(catalog) : KVT_OK;
    if (status != KVT_OK) return status;
    if (still && catalog->log_bytes == 0 && catalog_connect_unchanging(catalog) == KVT_OK)
        return KVT_OK;
    sqlite3_close(catalog->db);
    catalog->db = NULL;
    return catalog_connect(catalog, catalog->path, SQLITE_OPEN_READONLY);
}

kvt_status catalog_reach(store_catalog *catalog, const char *path, uint32_t flags)
{
    struct stat facts;
    bool reads = (flags & CATALOG_READ) != 0;
    kvt_status status = catalog_resolve(catalog, path, reads || (flags & CATALOG_FOLLOW) != 0);
    if (status != KVT_OK) return status;
    if ((flags & CATALOG_BESIDE) != 0) return catalog_reach_beside(catalog);
    if ((flags & CATALOG_WITHIN) != 0)
        return catalog_connect(catalog, catalog->path, SQLITE_OPEN_READONLY);
    if (reads) return catalog_reach_reader(catalog);
    status = catalog_lock(catalog);
    KILL_POINT("open: catalog locked");
    if ((flags & CATALOG_LOCK) != 0) return status;
    if (status == KVT_OK) status = catalog_check_files(catalog);
    if (status == KVT_OK) status = catalog_make_file(catalog);
    if (status == KVT_OK && stat(catalog->path, &facts) == 0) {
        catalog->device = facts.st_dev;
        catalog->inode = facts.st_ino;
    }
    if (status == KVT_OK) status = catalog_connect(catalog, catalog->path, SQLITE_OPEN_READWRITE);
    return status;
}

const char *catalog_place(const store_catalog *catalog)
{
    return catalog->path;
}

bool catalog_is_file(const store_catalog *catalog, const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && facts.st_dev == catalog->device &&
           facts.st_ino == catalog->inode;
}

void catalog_discard_new(store_catalog *catalog)
{
    catalog->discard = catalog->made;
}

void catalog_leave(store_catalog *catalog)
{
    sqlite3_finalize(catalog->finding);
    sqlite3_close(catalog->db); /* removes the log */
    KILL_POINT("catalog close: database closed");
    if (catalog->kept_file >= 0) close(catalog->kept_file);
    if (catalog_log_bytes(catalog) == 0) catalog_keep(catalog);
    KILL_POINT("catalog close: rows kept");
    if (catalog->discard) (void)unlink(catalog->path);
    free(catalog->path);
    tiers_claim_release(&catalog->claim);
    if (catalog->lock_file >= 0) close(catalog->lock_file);
}
