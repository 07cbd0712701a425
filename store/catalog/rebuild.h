/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild.h - the state of a kvt_store_recover, shared by its steps.
 *
 *     rebuild.c          labels -> pool -> scan -> choose -> write     the call, devices, labels
 *     rebuild_scan.c     every member at once, a thread each: header slots with notes
 *     rebuild_choose.c   newest first: read in whole, verified, claimed
 *     rebuild_write.c    the draft of the catalog, and its place
 *
 * Thread rule: the caller's thread, but for the scan's.
 */
#ifndef STORE_REBUILD_H
#define STORE_REBUILD_H

#include "store/catalog/placement_note.h"
#include "store/core/bringup.h"

#include <kvterrace/recover.h>

#include <stdatomic.h>

#define REBUILD_GRAIN_BYTES 4096u

/* A header slot whose note names the place where it was found. All that is kept of it. */
typedef struct rebuild_found {
    uint64_t serial;
    uint64_t offset;
    uint32_t member;
} rebuild_found;

typedef struct rebuild_list {
    rebuild_found *found;
    size_t count;
    size_t capacity;
} rebuild_list;

/* One rebuilding. The caller's thread alone changes it; the scan's threads read it. */
typedef struct rebuild_state {
    const kvt_store_options *store;
    const kvt_recover_options *options;
    kvt_recover_report *report;
    tiers_member_options members[TIERS_MEMBERS_MAX];
    uint64_t labelled_bytes[TIERS_MEMBERS_MAX]; /* what the store used of a member, by its label */
    uint32_t member_count;
    uint64_t used;       /* members that count, as a mask */
    uint64_t behind;     /* of these, one epoch behind the newest */
    tiers_undone undone; /* by the labels of the newest epoch */
    tiers_pool *pool;    /* owns the devices */
    rebuild_list list;
    store_catalog *held; /* the catalog's lock; NULL in a dry run, as the draft */
    store_catalog *draft;
    char *draft_path;
    catalog_basis noted; /* the last basis whose name the draft was given */
    char *message;
    size_t message_size;
} rebuild_state;

/* ---- reading ---- */

/* One read that may outlast its caller: a device need not answer. */
typedef struct rebuild_read {
    tiers_transfer transfer;
    tiers_location *location; /* freed with the read when `owned` */
    bool owned;
    void *buffer;
    uint64_t capacity;
} rebuild_read;

/* With room for so many bytes; NULL without memory. */
rebuild_read *rebuild_read_new(uint64_t capacity);
void rebuild_read_free(rebuild_read *read); /* not under way; NULL allowed */

/* A range of one member as a location of its own. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status rebuild_read_range(rebuild_read *read, uint32_t member, uint64_t offset,
                                            uint64_t bytes);

void rebuild_read_start(rebuild_state *state, rebuild_read *read, uint64_t bytes);

/* Waits for a read and returns the pool's status. A read whose device does not answer is left to
 * the pool, and *read is NULL. */
KVT_NODISCARD kvt_status rebuild_read_wait(rebuild_state *state, rebuild_read **read);

/* ---- steps ---- */

/* False when the caller wants to stop. */
bool rebuild_progress(const rebuild_state *state, kvt_recover_stage stage, uint64_t done,
                      uint64_t total);

/* Fills the list and the report's counts. KVT_OK; KVT_E_CANCELLED; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status rebuild_scan(rebuild_state *state);

/* Whether a location has its first block, or its second, at this place of a member. */
bool rebuild_names_place(const tiers_location *location, uint32_t member, uint64_t offset);

/* Sorts the list, reads and verifies, and hands sound records to rebuild_add_row. KVT_OK;
 * KVT_E_CANCELLED; KVT_E_MEMORY; a failure of the draft. */
KVT_NODISCARD kvt_status rebuild_choose(rebuild_state *state);

/* Locks the place of the new catalog. KVT_OK; KVT_EXISTS (there is one, or its log, and it is not
 * to be replaced); the statuses of catalog_open. */
KVT_NODISCARD kvt_status rebuild_hold_place(rebuild_state *state);

/* Makes the draft beside the place of the catalog. Returns the statuses of catalog_open. */
KVT_NODISCARD kvt_status rebuild_draft_open(rebuild_state *state);
KVT_NODISCARD kvt_status rebuild_add_row(rebuild_state *state, const catalog_row *row);

/* Closes the draft and gives it the catalog's name; an old catalog is kept under another one. */
KVT_NODISCARD kvt_status rebuild_publish(rebuild_state *state);

/* Closes and removes a draft that was not published, and lets the place go. */
void rebuild_discard(rebuild_state *state);

#endif
