/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.h - calls that name entries and read none of their bytes: the description of an entry, uses
 * that are counted without a read, the entries of a space or tenant as a whole, and a listing.
 *
 *     kvt_description what = {.struct_size = sizeof what};
 *     if (kvt_store_describe(store, &key, &what) == KVT_OK) buffer = reserve(what.bytes);
 *
 *     kvt_clear_filter model = {.struct_size = sizeof model, .by_space = true};
 *     model.space = kvt_space_id(&hash); // key.h
 *     if (kvt_store_clear(store, &model, &removed) == KVT_OK) status = kvt_store_flush(store);
 *
 * Thread rule: any thread. Nothing here does I/O; kvt_store_clear alone waits.
 */
#ifndef KVTERRACE_NAMES_H
#define KVTERRACE_NAMES_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one entry, and uses ---- */

/* What is stored under a key. */
typedef struct kvt_description {
    uint32_t struct_size;
    kvt_tier tier; /* that a get reads from; DRAM for an entry whose put is not written yet */
    kvt_layout layout;
    uint64_t bytes; /* decoded: the data_bytes of a get */
    kvt_variant variant;
    uint64_t stored_bytes; /* of its record */
    uint64_t copy_bytes;   /* of the record that it has on SSD besides; 0 = none */
    kvt_key parent;        /* zero without one */
    bool has_parent;
    bool moving; /* to another place, or its put is not written yet */
    uint32_t first_position;
    uint32_t request_tokens;
    uint32_t tenant;
    uint32_t class_id;
    double age_seconds;       /* since its put, or since the open that found it; to 1/16 s */
    double lifetime_seconds;  /* that are left; 0 = no end */
    uint32_t tokens_kept;     /* of the layout's tokens, in the record; 0 of an opaque entry */
    uint32_t lacks_basis;     /* 1: gets are KVT_E_MISMATCH, because the store lacks the basis that
                                 the variant names (basis.h) */
    uint32_t group_count;     /* of an entry of groups, whose layout here is opaque; else 0 */
    uint32_t groups_capacity; /* set by the caller, as groups is */
    kvt_layout *groups;       /* gets the groups' layouts when all fit; NULL with a capacity of 0 */
} kvt_description;

/* Says what is stored under a key. Not a use.
 *   out   struct_size, groups and groups_capacity are set by the caller; all else is overwritten,
 *         with zeros unless KVT_OK
 * KVT_OK; KVT_MISS; KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork). */
KVT_API KVT_NODISCARD kvt_status kvt_store_describe(kvt_store *store, const kvt_key *key,
                                                    kvt_description *out);

/* Counts a use of each key that is stored, as a get does, without reading it: for an engine that
 * found the entries in its own memory. A prefix goes root first. The lock is held for 256 keys at
 * a time. Plans no move; the background may.
 *   touched_out   how many of them are stored; may be NULL
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork). */
KVT_API KVT_NODISCARD kvt_status kvt_store_touch(kvt_store *store, const kvt_key *keys,
                                                 size_t count, size_t *touched_out);

/* ---- spaces and tenants ---- */

/* Which entries kvt_store_clear removes: those that meet all conditions that are set, which are at
 * least one, or `everything` alone. */
typedef struct kvt_clear_filter {
    uint32_t struct_size;
    bool by_space;
    bool by_tenant;
    bool everything; /* of all spaces and tenants */
    uint32_t tenant; /* with by_tenant; 0 = those whose put named none */
    uint64_t space;  /* with by_space: kvt_space_id, or kvt_key_space of one of its keys */
} kvt_clear_filter;

/*
 * Removes the entries of a space, of a tenant, of a tenant in a space, or all, with their copies on
 * SSD, those on devices that are out of service included. Waits for moves of these entries, as
 * kvt_store_delete does. The lock is held for 256 entries at a time.
 *
 * Every entry whose put had returned before the call, and that the filter covers, is gone at the
 * return, unless it was put again meanwhile, or a lease holds it (lookup.h): a put that runs during
 * the call may survive. After the next kvt_store_flush no crash brings a removed entry back from
 * SSD; before it one may. Bytes on devices are not erased, so kvt_store_recover may bring removed
 * entries back.
 * With other hosts (remote.h) copies of the space or tenant that were published before the return
 * no longer count: here from the return on, on other hosts from a second after the engine has been
 * told of the clear. kvt_remote_flush waits until it has been told; kvt_remote_stats.owed_clears
 * counts the clears that it has not. A clear of a tenant in a space takes the space's copies of all
 * tenants. Entries in the stores of other hosts stay (docs/REMOTE.md, Epochs).
 *   removed_out   entries removed; may be NULL
 * KVT_OK, also when there was none; KVT_BUSY (all but what leases hold: call again when they have
 * ended); KVT_E_ARGUMENT (NULL, struct_size, no condition, a tenant beyond KVT_TENANTS_MAX);
 * KVT_E_STATE (in a child of fork). Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_clear(kvt_store *store, const kvt_clear_filter *filter,
                                                 uint64_t *removed_out);

/*
 * Gives a space to a tenant: entries whose put names tenant 0 are the tenant's when their keys
 * begin with the space (kvt_space_id), and count in the tenant's shares. Several spaces may be one
 * tenant's, such as those of a model's ranks. Holds for puts from now on; entries keep the tenant
 * that they were put for, also over a restart. The gift itself ends with the store: give the spaces
 * again after an open.
 *   tenant   0 = takes the space back
 * KVT_OK; KVT_E_ARGUMENT (beyond KVT_TENANTS_MAX); KVT_E_SPACE (4,096 spaces are given);
 * KVT_E_MEMORY; KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_space_set(kvt_store *store, uint64_t space, uint32_t tenant);

/* What the entries of a space hold. */
typedef struct kvt_space_stats {
    uint32_t struct_size;
    uint64_t entries;
    uint64_t bytes; /* decoded */
    uint64_t tier_entries[KVT_TIER_PLACES];
    uint64_t tier_bytes[KVT_TIER_PLACES]; /* of their records */
    uint64_t copies, copy_bytes;          /* on SSD, beside those in HBM and DRAM */
} kvt_space_stats;

/* Counts the readable entries whose keys begin with a space (kvt_space_id). The whole table is
 * walked, 256 buckets under one hold of the lock: what moves meanwhile may be counted as before or
 * after.
 *   stats   struct_size is set by the caller; all else is overwritten
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork). */
KVT_API KVT_NODISCARD kvt_status kvt_space_stats_get(kvt_store *store, uint64_t space,
                                                     kvt_space_stats *stats);

/* ---- a listing ---- */

#define KVT_LIST_HELD   UINT32_C(1) /* a lease holds it where it is (lookup.h) */
#define KVT_LIST_COPY   UINT32_C(2) /* it has a record on SSD besides */
#define KVT_LIST_MOVING UINT32_C(4) /* to another place, or its put is not written yet */

/* One entry, as kvt_store_describe has it. */
typedef struct kvt_list_item {
    uint32_t struct_size;
    kvt_tier tier;
    kvt_key key;
    kvt_variant variant;
    uint64_t stored_bytes; /* of its record */
    uint64_t bytes;        /* decoded */
    uint64_t copy_bytes;   /* of the record that it has on SSD besides; 0 = none */
    double age_seconds;    /* since its put, or since the open that found it */
    uint32_t tokens;       /* of its layout */
    uint32_t tenant;
    uint32_t class_id;
    uint32_t flags; /* KVT_LIST_* */
} kvt_list_item;

/*
 * Lists the readable entries, some with each call and in no order:
 *
 *     uint64_t cursor = 0;
 *     items[0].struct_size = sizeof items[0];
 *     while (kvt_store_list(store, NULL, &cursor, items, 256, &count) == KVT_OK)
 *         for (size_t i = 0; i < count; i++) show(&items[i]);
 *
 * The table is walked, 256 buckets under one hold of the lock. An entry that is there from the
 * first call to the last comes at least once; it may come twice when the table grows or when it is
 * put again. What comes, goes or moves meanwhile may be missed, and with room for fewer items than
 * a bucket has (a few) so may its neighbours.
 *   filter     as kvt_store_clear takes it; NULL = everything
 *   cursor     0 at the begin; then what the call before has left there
 *   items      items[0].struct_size is set by the caller, the distance from one item to the next,
 *              and is written to each
 *   capacity   of them; 0 is KVT_E_ARGUMENT
 *   count_out  how many came; may be fewer than fit, while there are more
 * KVT_OK (one came at least); KVT_END (no more; the cursor stays); KVT_E_ARGUMENT; KVT_E_STATE (in
 * a child of fork).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_store_list(kvt_store *store, const kvt_clear_filter *filter, uint64_t *cursor,
               kvt_list_item *items, size_t capacity, size_t *count_out);

#ifdef __cplusplus
}
#endif

#endif
