/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.h - one read under way, those who wait for it and those who use what it has brought: of a
 * place on devices, for a get or a layered load, or of a key on other hosts (docs/READS.md).
 *
 *     made -> (started) -> ended: what it waits for has come, or it was given up -> freed
 *
 * A call that wants the bytes of a read under way joins it: as a user, and mostly as a waiter,
 * which is told once when the read has ended, or takes itself off. The last user frees the read,
 * with its bytes.
 *
 * Lock: the reads' lock of the store guards the lists of waiters and of shares (load_share.c), and
 * how reads ended. It comes after the store's, a load's and the hosts' lock, and before a queue's;
 * it is held for a few steps.
 */
#ifndef STORE_READ_H
#define STORE_READ_H

#include "store/core/transfer.h"

#include <stdatomic.h>

struct kvt_store;
struct load_entry;
struct load_share;

/* One that waits for a read, a part of whatever wants its bytes. */
typedef struct read_waiter {
    struct read_waiter *next;     /* of the read's */
    struct store_read *read;      /* NULL: it was told, or takes part in none */
    void (*ended)(void *context); /* on any thread, under no lock of the reads */
    void *context;
} read_waiter;

#define READ_WHOLE (UINT32_MAX - 2) /* the whole record */

typedef struct store_read {
    atomic_uint users;      /* the owner, those who joined, and those who use what came */
    uint32_t what;          /* READ_WHOLE, or what of its entry a layered load reads */
    uint64_t handle;        /* of the entry whose gets may join it; 0: none may */
    staging_buffer buffer;  /* what it has brought, with room of its owner's behind it */
    store_transfer *flight; /* the owner's, until it has landed or is given up */
    bool started;           /* others may look at the transfer */
    bool finished;          /* `status` says how; the buffer is empty unless bytes have come */
    kvt_status status;
    uint64_t read_ns;
    read_waiter *waiters;
    struct store_read *next;               /* of the share's that it is listed in */
    struct load_share *share;              /* or NULL */
    const struct load_entry *loader;       /* the entry of a layered load that reads; or NULL */
    void (*free)(struct store_read *read); /* instead of free, what it is the first member of */
} store_read;

/* A read with one user, zero but for what it is to bring. NULL without memory. */
store_read *read_make(uint32_t what);

/* Becomes a user of a read that has not ended and, unless it is NULL, a waiter. Whoever calls knows
 * that somebody else uses it. */
void read_join(struct kvt_store *store, store_read *read, read_waiter *waiter);

/* The same with the reads' lock held. */
void read_join_locked(store_read *read, read_waiter *waiter);

/*
 * Gives a read up: its owner the read, without a waiter; one that has joined, its wait. The use
 * stays. What an owner gives up it ends by read_end, and it is lost to those who have joined: each
 * begins again while it has time.
 *   stuck_alone   only if the read waits for a device that is out of service
 * False: not so, or the read has ended, or is about to: the owner's transfer has landed, or the
 * waiter is told.
 */
bool read_give_up(struct kvt_store *store, store_read *read, read_waiter *waiter, bool stuck_alone);

/* Takes what an owner's transfer has brought, and ends the read. No lock held. */
kvt_status read_land(struct kvt_store *store, store_read *read);

/* A read has ended: nobody joins it any more, those who wait are told, and layered loads of its
 * place are offered what came. leaves: the owner is no user any more. No lock held but a load's. */
void read_end(struct kvt_store *store, store_read *read, kvt_status status, uint64_t read_ns,
              bool leaves);

/* Waits on the caller's thread until a read has ended, or an instant. KVT_E_TIMEOUT, or how it
 * ended. */
kvt_status read_wait(struct kvt_store *store, store_read *read, uint64_t deadline_ns);

/* Ends a use; NULL is allowed. No lock held but a load's. */
void read_drop(struct kvt_store *store, store_read *read);

/* ---- load_share.c; the reads' lock is held ---- */

/* A read that is listed in a share has ended: it is taken off, and the loads that have the place
 * open are offered what they lack of what came. */
void load_share_ended(store_read *read);

#endif
