/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_claim.c - the list of files that this process has open as devices, and the lock that other
 * processes see. Why both are needed is in file_claim.h.
 *
 * The claims of this process are a list, so that a second opener is refused at once. The list is
 * inherited by a child of fork, where it keeps refusing: the child shares the open files, and the
 * locks with them.
 *
 * Thread rule: any thread; the list is under a lock that a fork takes too.
 */
#include "file_claim.h"

#include "base/clock.h"
#include "watchdog.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLAIM_NAP_NS = 10000000 };

/* The list of this process. It is empty in a process that opens no device. */
static pthread_mutex_t claim_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t claim_once = PTHREAD_ONCE_INIT;
static tiers_claim *claims;

/* A fork waits for the list, so that the child never inherits a list that is being changed. The
 * lock is held across the fork and released on both sides. */
static void claim_before_fork(void)
{
    pthread_mutex_lock(&claim_lock);
}

/* The fork is over; the list is free again. */
static void claim_in_parent(void)
{
    pthread_mutex_unlock(&claim_lock);
}

/* Closes lock files in a child, so that a lock ends with the parent and not with the last of its
 * children. A file that carries data stays open, because the child's copies of the devices still
 * use its number. The child must not unlock: the lock is the parent's. */
static void claim_in_child(void)
{
    for (tiers_claim *claim = claims; claim != NULL; claim = claim->next) {
        if (claim->lock_only) close(claim->fd);
    }
    pthread_mutex_unlock(&claim_lock);
}

/* Registers the handlers, once in a process. Without memory for the handlers a child keeps the lock
 * files open, which delays a later opener. */
static void claim_watch_forks(void)
{
    (void)pthread_atfork(claim_before_fork, claim_in_parent, claim_in_child);
}

/* Whether a claim of this file is in the list. Lock held. Files are compared by device and inode,
 * because one file has many paths. */
static bool claim_find(dev_t device, ino_t inode)
{
    const tiers_claim *claim = claims;
    while (claim != NULL && (claim->device != device || claim->inode != inode)) {
        claim = claim->next;
    }
    return claim != NULL;
}

/* The answer may be old when it arrives; callers use it to decide about waiting alone. */
bool tiers_claim_is_ours(dev_t device, ino_t inode)
{
    pthread_mutex_lock(&claim_lock);
    bool found = claim_find(device, inode);
    pthread_mutex_unlock(&claim_lock);
    return found;
}

/* Enters the claim, unless this process has another one of the file. False leaves the list as it
 * was. */
static bool claim_enter(tiers_claim *claim)
{
    pthread_mutex_lock(&claim_lock);
    bool found = claim_find(claim->device, claim->inode);
    if (!found) {
        assert(claim->next == NULL && !claim->held);
        claim->next = claims;
        claims = claim;
    }
    pthread_mutex_unlock(&claim_lock);
    return !found;
}

/* Takes a claim out of the list. The claim's `next` is not reset; a claim is initialized anew
 * before it is used again. */
static void claim_leave(tiers_claim *claim)
{
    pthread_mutex_lock(&claim_lock);
    tiers_claim **link = &claims;
    while (*link != claim) {
        assert(*link != NULL && "a claim that is held is in the list");
        link = &(*link)->next;
    }
    *link = claim->next;
    pthread_mutex_unlock(&claim_lock);
}

/* The claim is in the list before the lock is tried, so a second opener of this process is refused
 * without a wait. */
kvt_status tiers_claim_acquire(tiers_claim *claim, int fd, bool lock_only)
{
    struct stat facts;
    (void)pthread_once(&claim_once, claim_watch_forks);
    if (fstat(fd, &facts) != 0) return KVT_E_IO;
    *claim = (tiers_claim){
        .fd = fd, .lock_only = lock_only, .device = facts.st_dev, .inode = facts.st_ino};
    if (!claim_enter(claim)) return KVT_E_LOCKED;
    int failed = flock(fd, LOCK_EX | LOCK_NB);
    for (uint64_t waited = 0; failed != 0 && waited < TIERS_CLAIM_WAIT_NS; waited += CLAIM_NAP_NS) {
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        base_sleep(CLAIM_NAP_NS);
        tiers_watchdog_progress();
        failed = flock(fd, LOCK_EX | LOCK_NB);
    }
    claim->held = failed == 0;
    if (claim->held) return KVT_OK;
    kvt_status status = errno == EWOULDBLOCK ? KVT_E_LOCKED : KVT_E_IO;
    claim_leave(claim);
    return status;
}

void tiers_claim_release(tiers_claim *claim)
{
    if (!claim->held) return;
    claim->held = false;
    claim_leave(claim);
    (void)flock(claim->fd, LOCK_UN);
}

int tiers_sync_folder(const char *path)
{
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) return ENAMETOOLONG;
    memcpy(copy, path, strlen(path) + 1);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int os_error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return os_error == EINVAL ? 0 : os_error; /* EINVAL: the file system has nothing to do here */
}

int tiers_publish_file(const char *draft, const char *path)
{
    if (renameat2(AT_FDCWD, draft, AT_FDCWD, path, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    /* A file system that cannot do this in one step: a link refuses a name that is taken. */
    if (link(draft, path) != 0) return errno;
    return unlink(draft) == 0 ? 0 : errno;
}
