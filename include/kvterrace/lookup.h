/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.h - calls for a scheduler before it computes: how much of a prefix is stored, how much of
 * it loads faster than it is recomputed, and leases that keep entries in their place until then.
 *
 *     kvt_worth worth = {.struct_size = sizeof worth};
 *     uint64_t lease;
 *     kvt_status status = kvt_store_match(store, keys, count, KVT_MATCH(.worth = &worth), NULL);
 *     if (status == KVT_OK && worth.to_load != 0)
 *         status = kvt_lease_begin(store, NULL, keys, worth.to_load, soon_ns, NULL, &lease);
 *
 * Thread rule: any thread. Nothing here does I/O; each call takes a short lock, for at most 512
 * keys at a time.
 */
#ifndef KVTERRACE_LOOKUP_H
#define KVTERRACE_LOOKUP_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvt_queue;

/* ---- prefixes ---- */

/* What loading a stored run is worth. */
typedef struct kvt_worth {
    uint32_t struct_size;
    size_t stored;       /* leading keys that are stored, here or, by what is known, elsewhere */
    size_t to_load;      /* leading keys to load, so that the stored run is in memory soonest */
    double load_seconds; /* of loading these to_load entries together, into host memory */
    double recompute_seconds; /* of recomputing them instead */
    double saved_seconds;     /* recompute_seconds - load_seconds */
    size_t guessed; /* of the stored ones, those that other hosts are known to have and this one
                       has not (remote.h). Each is assumed to be like the last entry that came
                       from another host; a prefetch makes it sure */
} kvt_worth;

/* What kvt_store_match takes and tells beside the count. Zero but for struct_size: nothing. */
typedef struct kvt_match {
    uint32_t struct_size;
    bool hosts; /* entries that other hosts have published count, too (remote.h). Each node of the
                   engine is sent one batch of questions, for the keys that are not here and have no
                   recent answer. Blocking */
    uint64_t deadline_ns; /* with hosts: an instant of CLOCK_MONOTONIC; an answer that has not come
                             by then counts as no. 0 asks nobody and counts earlier answers;
                             KVT_NO_DEADLINE: kvt_remote_options.deadline_seconds from now */
    kvt_worth *worth;     /* NULL, or told how much of the run to load; struct_size is set by the
                             caller. Entries that other hosts are known to have count as stored */
    double *load_seconds; /* NULL, or one for each key: how long a get of it alone would take that
                             begins now, by the speeds that devices and variants have lately shown
                             and the requests that are queued at the devices; NAN where nothing is
                             stored, or on a device that is out of service */
} kvt_match;

#ifndef __cplusplus
/* One as an argument, as in KVT_MATCH(.worth = &worth). */
#define KVT_MATCH(...) (&(const kvt_match){.struct_size = sizeof(kvt_match), __VA_ARGS__})
#endif

/*
 * How many leading keys are stored, by scanning from the first, and as much more as `match` asks.
 * The run ends at a key that is not stored, and at an entry whose layout says tokens_may_drop,
 * because a prefix needs all its tokens. The lock is held for at most 512 keys at a time: each key
 * counted was stored when it was looked up. The entries are not pinned, and a later get may still
 * miss. Not a use.
 *   keys         count of them, in the order of the prefix
 *   match        NULL: the count alone, of what is stored here
 *   matched_out  the count; may be NULL when `match` asks for more
 *
 * kvt_worth: the entries before a cut of the stored run are loaded together, and then the ones
 * behind it are recomputed; the call takes the cut with which the whole run is in memory soonest.
 * Loads of several tiers and devices overlap, and wait for the requests that are queued at their
 * devices now. Recomputing an entry takes its kvt_entry.recompute_seconds, or else what the prefill
 * model says for its positions. An entry whose device is out of service ends the part that is worth
 * loading, not the stored run.
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY (with hosts); KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_match(kvt_store *store, const kvt_key *keys,
                                                 size_t count, const kvt_match *match,
                                                 size_t *matched_out);

/*
 * Reads the stored run of a prefix, as kvt_store_match has it with hosts, into views, all of it at
 * once, on the caller's thread: reads of all entries are queued before a device is woken. Entries
 * behind the first that fails may have been written, too.
 *   views        one for each key; what they name is undefined beyond *loaded_out entries
 *   count        at most 2^20
 *   deadline_ns  an instant of CLOCK_MONOTONIC in nanoseconds, KVT_NO_DEADLINE for none: the call
 *                waits for no device after it; entries that lie in memory are read all the same
 *   loaded_out   leading entries that are whole
 * KVT_OK, also when nothing is stored; KVT_E_ARGUMENT (also a view that does not fit its entry, or
 * an entry of groups, which has more than one; *loaded_out counts the entries before it);
 * KVT_E_MEMORY; KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_prefix_get(kvt_store *store, const kvt_key *keys,
                                                const struct kvt_view *const *views, size_t count,
                                                uint64_t deadline_ns, size_t *loaded_out);

/* ---- prefetch ---- */

/*
 * Offers to move an entry up to a tier now, ahead of a get. The policy weighs it as a promotion
 * with one use that is expected now, and may leave the entry where it is, or bring it to a tier in
 * between. The background carries the move out at once, within `move_bytes_per_s`; without a
 * background the next kvt_store_maintain does. Not a use: no get is counted. An entry that a put
 * has handed over and that is not written yet counts as being in DRAM. An entry that is not here is
 * asked for on other hosts (remote.h); when it has come, the background offers it to the tiers as a
 * put. From then on lookups know whether it is stored. KVT_OK: the entry is in that tier or above,
 * or on its way up, or asked for. KVT_REFUSED: not worth it, no room, or held; also while the
 * background has as many plans waiting as it takes. KVT_MISS; KVT_E_UNSUPPORTED (the store has no
 * such tier); KVT_E_ARGUMENT; KVT_E_MEMORY; KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_prefetch(kvt_store *store, const kvt_key *key,
                                                    kvt_tier tier);

/* ---- hints ---- */

/* What an agent or a router expects of entries' next use; policy.h has the kinds. */
typedef struct kvt_expectation {
    uint32_t struct_size;
    uint32_t kind;  /* kvt_hint_kind */
    double seconds; /* above 0 where a use is expected; 0 = the kind's own. At most
                       KVT_HINT_SECONDS_MAX */
} kvt_expectation;

/*
 * Gives the policy a hint for each of the keys, on behalf of the tenant of its entry. A hint is
 * evidence and no order: the policy weighs it by how often hints of that kind from that tenant came
 * true, and nothing moves in this call. Keys that are not stored are skipped and counted. Say the
 * end of a session for its own entries, not for those that others use too. Not a use.
 *   count       any number; the lock is held for 256 keys at a time, which are hinted at one moment
 *   hinted_out  how many of the keys got the hint; may be NULL
 * KVT_OK (at least one did, or count is 0); KVT_MISS (none); KVT_E_ARGUMENT; KVT_E_MEMORY (keys
 * that got their hint before keep it); KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_hint(kvt_store *store, const kvt_key *keys, size_t count,
                                                const kvt_expectation *expected,
                                                size_t *hinted_out);

/* ---- leases ---- */

/*
 * Keeps entries where they are until an instant: a held entry is neither evicted nor moved, nor
 * given up for a put. A move that has begun is finished first. A lease ends at its instant, by
 * kvt_lease_end, or with the queue that owns it; a single entry leaves it when its load fails or
 * its device goes. An entry that a put has handed over and that is not written yet is not held.
 *   owner      a queue of this store, whose close ends the lease; NULL = none
 *   count      at most 2^20
 *   until_ns   an instant of CLOCK_MONOTONIC in nanoseconds
 *   held_out   count of them, which of the keys are held; may be NULL
 *   lease_out  the lease's number, above 0; 0 when nothing is held
 * An entry may be in several leases. Leases hold at most half of each tier's capacity; entries
 * beyond that are not held. While an entry is held, kvt_store_delete returns KVT_BUSY.
 * KVT_OK (some are held); KVT_MISS (none is); KVT_E_ARGUMENT (also an instant that has passed);
 * KVT_E_MEMORY; KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_lease_begin(kvt_store *store, struct kvt_queue *owner,
                                                 const kvt_key *keys, size_t count,
                                                 uint64_t until_ns, bool *held_out,
                                                 uint64_t *lease_out);

/* Moves a lease's end. KVT_OK; KVT_MISS (it has ended); KVT_E_ARGUMENT; KVT_E_STATE. */
KVT_API KVT_NODISCARD kvt_status kvt_lease_extend(kvt_store *store, uint64_t lease,
                                                  uint64_t until_ns);

/* Ends a lease. KVT_OK; KVT_MISS (it has ended); KVT_E_STATE. */
KVT_API KVT_NODISCARD kvt_status kvt_lease_end(kvt_store *store, uint64_t lease);

#ifdef __cplusplus
}
#endif

#endif
