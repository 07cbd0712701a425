/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_internal.h - a store that is being opened: what open.c (the order of the steps) and
 * open_labels.c share.
 *
 * Thread rule: the opener's thread.
 */
#ifndef STORE_OPEN_INTERNAL_H
#define STORE_OPEN_INTERNAL_H

#include "store/catalog/recovery.h"
#include "store/core/bringup.h"
#include "store/learn/costs.h"

/* One device while the store is being opened. */
typedef struct open_device {
    kvt_tier tier;
    uint32_t member;
    kvt_device *device; /* NULL once a pool owns it */
    cost_device cost;
    bool labelled;            /* durable: carries a superblock */
    bool blank;               /* none of its content is taken over: new, stale, or given up */
    bool stale;               /* ours, of an older epoch: taken back empty */
    bool new;                 /* it carries nothing yet */
    bool given_up;            /* new, or of no use to recover: a measurement may write to it */
    bool measure;             /* the profile lacks it */
    kvt_device_config config; /* its texts last until the open returns */
    tiers_wear wear;          /* as the catalog has it */
} open_device;

typedef struct store_early store_early; /* early.h */

typedef struct open_state {
    const kvt_store_options *options;
    store_early *early; /* of serve_early, else NULL */
    kvt_store *store;
    kvt_profile *profile;
    open_device *devices;
    uint32_t device_count;
    uint8_t pool_id[16];
    uint64_t epoch;
    recover_list *rows;     /* what the catalog lists, from open_read_rows on */
    uint64_t newest_serial; /* of it */
    uint64_t row_count;     /* of entries that it lists, but for those of stale members */
    pthread_t touching;     /* the thread of open_touch; */
    bool touches;           /* it was started, and is to be joined */
    bool labelling;         /* a device may carry the catalog's identity */
    char note[320];         /* for a person, when the open succeeds */
    char *message;
    size_t message_size;
} open_state;

/* Opens a store; the options have this library's size. early: of serve_early, else NULL. */
KVT_NODISCARD kvt_status open_store(const kvt_store_options *options, store_early *early,
                                    kvt_store **store_out, char *message, size_t message_size);

/* Fills in the exact variants and those of the ladder, and checks that the fixed policies have
 * theirs among them. */
KVT_NODISCARD kvt_status open_variants(kvt_store *store, const kvt_store_options *options,
                                       const cost_profile *profile);

/* Writes the catalog's failure into the message. */
void open_say_catalog(const open_state *state, kvt_status status);

/* ---- open_labels.c; what kvt_store_open says ---- */

/* Before a device is opened, which would make its file: members that the catalog counts on. */
KVT_NODISCARD kvt_status open_check_missing(open_state *state);

/* Reads the labels: blank, ours, stale, or somebody else's; then members that came back empty. */
KVT_NODISCARD kvt_status open_check_labels(open_state *state);
KVT_NODISCARD kvt_status open_check_new(open_state *state);

/* Reads the rows of entries, and takes those on stale members out of the catalog before a label can
 * call the members current. */
KVT_NODISCARD kvt_status open_read_rows(open_state *state);

/* Works out what of the lives before counts no more; the labels say so. */
void open_note_undone(open_state *state);

/* Says in the catalog that labels of the new epoch are to come, before one does. */
KVT_NODISCARD kvt_status open_announce(open_state *state);

/* Writes the new epoch to every device, then to the catalog. */
KVT_NODISCARD kvt_status open_write_labels(open_state *state);
KVT_NODISCARD kvt_status open_write_epoch(open_state *state);

#endif
