/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_claim.h - one user of a file at a time, and files that are made whole or not at all.
 *
 * A claim is a flock on an open file. A process that was killed keeps its locks until the kernel
 * has freed its memory and taken its io_uring down, which takes seconds on a busy machine, so an
 * acquisition waits. A file that this process holds itself is refused at once: nobody who waits in
 * this process can be waiting for the kernel.
 *
 * Thread rule: any thread; a claim belongs to one.
 */
#ifndef TIERS_FILE_CLAIM_H
#define TIERS_FILE_CLAIM_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Longest wait for another process. */
#define TIERS_CLAIM_WAIT_NS UINT64_C(10000000000)

/* Zeroed before its first use, so that a release is allowed at any time. A claim that is held
 * stands in the list of its process, and must not move. */
typedef struct tiers_claim {
    struct tiers_claim *next;
    int fd;
    bool held;
    bool lock_only; /* fd serves nothing but the lock: a child of fork closes it */
    dev_t device;
    ino_t inode;
} tiers_claim;

/* Locks the open file. KVT_OK; KVT_E_LOCKED (at once when this process holds it, else after the
 * wait); KVT_E_IO. */
KVT_NODISCARD kvt_status tiers_claim_acquire(tiers_claim *claim, int fd, bool lock_only);

/* Whether this process has the file by a claim. */
bool tiers_claim_is_ours(dev_t device, ino_t inode);

/* Unlocks at once, even while a child of fork still has the open file. The file stays open. */
void tiers_claim_release(tiers_claim *claim);

/* The parent folder of a path, made durable: the name of a new file lasts only then. 0 or errno. */
int tiers_sync_folder(const char *path);

/* Gives a file that is whole its own name, which must not be taken. 0, EEXIST, or another errno. */
int tiers_publish_file(const char *draft, const char *path);

#endif
