/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - the decision engine alone: numbers in, plan out.
 *
 * The engine never touches a byte, a clock, a lock or the heap after open. You tell it what each
 * entry could become (options), what happens (admit, access, tick), and it answers with plans:
 * bounded lists of moves, in order. You carry a move out and then commit or abort it. Entries are
 * named by 64-bit handles of your choosing (not 0).
 *
 *     kvt_policy_admit(policy, now_ns, &entry, &plan);       what happens to make room, then PUT
 *     for (i = 0; i < plan.count; i++)
 *         if (carry_out(&plan.moves[i]) == KVT_OK)
 *             kvt_policy_commit(policy, plan.moves[i].id, actual_bytes);
 *         else
 *             kvt_policy_abort(policy, plan.moves[i].id);    abort the rest of the plan too
 *
 * Capacity rule: a move holds its source and its target bytes until it is committed or aborted.
 * Carried out in order, one after another, a plan never passes any tier's capacity at any instant,
 * whatever other plans are still in flight.
 *
 * Same calls, same arguments: the same plans, byte for byte, on every compiler and build type.
 *
 * Thread rule: one thread at a time per engine; the caller's lock. No call blocks.
 * Source of the utility engine: AdaptCache section 2 (greedy multiple-choice knapsack).
 */
#ifndef KVTERRACE_POLICY_H
#define KVTERRACE_POLICY_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_OPTIONS_MAX 32u
#define KVT_OPTION_NONE 0u /* index of the option "not stored: recompute" */

/*
 * What one entry could be. bytes is a vector because an option may span tiers: planes split over
 * two tiers, or a copy on both.
 *
 * An exact stored option (loss 0) can become any other; a lossy one only its own variant elsewhere,
 * unless made_from says more: bit i is set when option i's stored bytes are enough to make this,
 * as they nest it (planes dropped, a coarser step derived), or lost little beside what it loses.
 * kept_from, within the same bits and those of exact options or those of the same variant: option
 * i's bytes that this one also has in a tier stay where they are; a move from there holds and
 * writes only the rest.
 */
typedef struct kvt_option {
    kvt_variant variant;
    uint64_t bytes[KVT_TIER_PLACES];      /* stored bytes by tier; all 0 for NONE */
    uint64_t read_bytes[KVT_TIER_PLACES]; /* bytes read from each tier by one get */
    double load_seconds;                  /* from the request until the stored bytes are in memory;
                                            for NONE the seconds of recomputing the entry */
    double decode_seconds;                /* 0 for NONE */
    double encode_seconds;                /* to make this option from the exact entry */
    double loss;                          /* 1 - quality, in [0,1]; 0 for exact options and NONE */
    double loss_upper;                    /* confidence bound of loss, in [loss,1]; 0 = loss. What
                                            loss limits are compared with */
    uint32_t made_from;                   /* bit i: option i gives the bytes for this one */
    uint32_t kept_from;                   /* bit i: and what both hold in a tier stays in place */
} kvt_option;

/* One tier. capacity_bytes 0 = the tier is absent. */
typedef struct kvt_tier_facts {
    uint64_t capacity_bytes;
    double read_bytes_per_s;
    double write_bytes_per_s;
    double request_seconds; /* fixed cost of one read */
} kvt_tier_facts;

#define KVT_TENANTS_MAX 256u

/* What one tenant wants. Tenant 0 is everybody who names none, with the engine's alpha. */
typedef struct kvt_tenant {
    uint32_t struct_size;
    double alpha_seconds;      /* as in the configuration */
    double loss_limit;         /* no option whose loss_upper passes this; 1 = any */
    double load_limit_seconds; /* no stored option slower than this, while one or NONE is
                                             faster; 0 = any */
    uint64_t share_bytes[KVT_TIER_PLACES]; /* of each tier at most; 0 = no limit */
} kvt_tenant;

typedef enum kvt_hole_mode {
    KVT_HOLES_CONTIGUOUS = 0, /* a child is useless without its ancestors (vLLM, SGLang) */
    KVT_HOLES_MIXED = 1       /* holes in a prefix are recomputed; no ancestor rule */
} kvt_hole_mode;

/* Memory for the engine, asked for at open and when its tables grow, never per decision.
 * resize works as realloc (old_bytes tells the present size); bytes 0 releases. */
typedef struct kvt_allocator {
    void *context;
    void *(*resize)(void *context, void *memory, size_t old_bytes, size_t bytes);
} kvt_allocator;

/* A resize for callers without one of their own: malloc's memory, in large pages from 2 MiB on
 * where the system has them. Any thread. */
KVT_API void *kvt_memory_resize(void *context, void *memory, size_t old_bytes, size_t bytes);

typedef struct kvt_policy kvt_policy;

/* Made by kvt_policy_config_init, then changed. */
typedef struct kvt_policy_config {
    uint32_t struct_size;
    const char *name; /* one of kvt_policy_name_at; "utility" */
    kvt_tier_facts tiers[KVT_TIER_PLACES];
    kvt_variant variant;       /* what policies that choose no variant store; all do but "utility"
                                  and "adaptcache"; raw */
    double alpha_seconds;      /* seconds of delay paid for 1.0 of a request's quality; 10 */
    double hysteresis;         /* a switch must gain this many times its cost; 1.25 */
    uint8_t holes;             /* kvt_hole_mode; CONTIGUOUS */
    double high_watermark;     /* tick makes room above this share of a tier, 0..1; 0.995 */
    double low_watermark;      /* and stops at this one; 0.99 */
    uint64_t entries_expected; /* sizes the tables at open; they grow when it is passed; 1024 */
    uint64_t ghosts_max;       /* entries remembered (counter, options) after they left; 65536 */
    uint64_t seed;             /* for policies that draw; 1 */
    kvt_allocator allocator;   /* required */
} kvt_policy_config;

typedef enum kvt_move_kind {
    KVT_MOVE_PUT = 1,    /* a new entry goes from the caller's buffer to an option */
    KVT_MOVE_CHANGE = 2, /* a stored entry goes to another stored option (promote, demote) */
    KVT_MOVE_EVICT = 3   /* a stored entry goes to NONE; instant */
} kvt_move_kind;

typedef struct kvt_move {
    uint64_t id; /* unique in this engine, ascending from 1; names the move in commit and abort */
    uint64_t handle;
    uint8_t kind; /* kvt_move_kind */
    uint8_t from; /* option index */
    uint8_t to;   /* option index */
    uint8_t reserved[5];
    kvt_variant to_variant;
    uint64_t from_bytes[KVT_TIER_PLACES]; /* stored now; all but kept_bytes is released at commit */
    uint64_t to_bytes[KVT_TIER_PLACES];   /* stored then; all but kept_bytes was reserved when the
                                            move was planned, and has to be written */
    uint64_t kept_bytes[KVT_TIER_PLACES]; /* of both: stays where it is */
    double gain; /* utility of `to` minus utility of `from`, seconds saved per second; 0 in lru */
} kvt_move;

/* The caller's array; the engine fills moves[0..count-1]. count <= capacity always. */
typedef struct kvt_plan {
    kvt_move *moves;
    uint32_t capacity;
    uint32_t count;
} kvt_plan;

/* One entry to admit. parent is the handle of the entry that holds the preceding tokens, or 0. Its
 * options are given here, or by a ladder that many entries share (kvt_policy_ladder_add). */
typedef struct kvt_policy_entry {
    uint32_t struct_size;
    uint64_t handle;
    uint64_t parent;
    const kvt_option *options; /* [0] is NONE; copied; NULL with a ladder */
    uint32_t option_count;     /* 1..KVT_OPTIONS_MAX; 0 with a ladder */
    uint32_t tokens;
    uint32_t request_tokens;  /* of the requests that use it; 0 = it is all of them. The loss of a
                                 request is the mean over its tokens, so alpha counts for the
                                 share tokens / request_tokens, at most 1 */
    uint32_t ladder;          /* 0 = options are given here */
    double recompute_seconds; /* of NONE, with a ladder */
    double sensitivity;       /* factor on every option's loss for this entry; 0 = 1 */
    uint32_t class_id;        /* whose prior a first-seen entry starts from; 0 = none */
    uint32_t tenant;          /* below KVT_TENANTS_MAX */
    double copy_seconds;      /* to load a copy of it that is kept elsewhere, as a tier that hosts
                                 share; 0 = there is none. See kvt_policy_set_copy */
} kvt_policy_entry;

/* Fills every field of a configuration of struct_size bytes with its default; tiers, allocator stay
 * zero. config is not NULL. kvt_policy_config_init is the form for C and C++. */
KVT_API void kvt_policy_config_init_sized(kvt_policy_config *config, uint32_t struct_size);

static inline void kvt_policy_config_init(kvt_policy_config *config)
{
    kvt_policy_config_init_sized(config, (uint32_t)sizeof *config);
}

/* Opens an engine. message gets one line on failure. KVT_OK; KVT_E_ARGUMENT (a field out of range,
 * NaN included); KVT_E_UNSUPPORTED (unknown name); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_open(const kvt_policy_config *config,
                                                 kvt_policy **policy_out, char *message,
                                                 size_t message_size);

/* Ends an engine and gives all its memory back to the allocator; plans and moves in flight are
 * forgotten without a call. NULL is allowed. No other call may run or follow. */
KVT_API void kvt_policy_close(kvt_policy *policy);

/*
 * Registers options that many entries share, [0] being NONE, whose load_seconds each entry brings
 * itself. Entries of a ladder cost no memory for options. The number is valid until close.
 * KVT_OK; KVT_E_ARGUMENT (as in admit); KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_ladder_add(kvt_policy *policy,
                                                       const kvt_option *options, uint32_t count,
                                                       uint32_t *ladder_out);

/* Sets a tenant's limits; they hold for decisions from now on, nothing is moved by the call. Tenant
 * 0 too. KVT_OK; KVT_E_ARGUMENT (out of range, NaN); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_tenant(kvt_policy *policy, uint32_t tenant,
                                                       const kvt_tenant *limits);

/* Sets how many uses beside its first one a new entry of a class is taken to have had just now: 0.5
 * for one that comes back with probability one half within a half life. KVT_OK; KVT_E_ARGUMENT
 * (class 0 or beyond 65535, a number outside [0, 1e6]); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_prior(kvt_policy *policy, uint32_t class_id,
                                                      double uses);

/* Sets how often an entry is used, in place of what was counted so far: for callers that know
 * better, a scheduler's queue or an oracle. Uses counted from now on add to it and all of it
 * decays, so set again what changes. KVT_OK; KVT_MISS (neither stored nor remembered);
 * KVT_E_UNSUPPORTED (the policy counts no uses); KVT_E_ARGUMENT (NaN, outside [0, 1e12]). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_rate(kvt_policy *policy, uint64_t handle,
                                                     double uses_per_s);

/*
 * Says whether a copy of a stored or remembered entry is kept elsewhere, where this engine has no
 * say, and what loading it takes now; 0 = it is not there (any more). Then not storing the entry
 * costs p * load_seconds + (1 - p) * recomputing, with p the chance that the copy is still there:
 * so room goes to what nobody else keeps. The chance is learned by age from these calls, each of
 * which says whether the copy that the call before it spoke of has survived until now: call it when
 * a copy was made, read, or looked for. Policies other than "utility" weigh no copies: KVT_OK, and
 * nothing is kept. KVT_OK; KVT_MISS (neither stored nor remembered); KVT_E_ARGUMENT (NaN, outside
 * [0, 1e12]); KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_copy(kvt_policy *policy, uint64_t now_ns,
                                                     uint64_t handle, double load_seconds);

/* The chance that a copy is still there so many seconds after it was known to be, as learned so
 * far: 1/64 to 63/64; one half before anything was told, and of a negative age. */
KVT_API double kvt_policy_copy_chance(const kvt_policy *policy, double age_seconds);

/* Gives a stored entry's options new seconds and losses, because a curve was measured anew: the
 * same options as at admission, in the same order; their bytes stay as they are. KVT_OK; KVT_MISS;
 * KVT_E_ARGUMENT (other options, a ladder's, or a bad number); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_recost(kvt_policy *policy, uint64_t handle,
                                                   const kvt_option *options, uint32_t count);

/* Gives a stored entry's options new bytes, because a record came out in another size than was
 * planned: the same options as at admission, in the same order; seconds and losses stay as they
 * are, and so does what the entry holds now. KVT_OK; KVT_MISS; KVT_BUSY (a move of it is under
 * way); KVT_E_ARGUMENT (other options, a ladder's, or a bad number); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_resize(kvt_policy *policy, uint64_t handle,
                                                   const kvt_option *options, uint32_t count);

/*
 * Offers a new entry, whose exact bytes the caller holds now. Counts as one use, unless the last
 * call of access for the handle said KVT_MISS and counted it: the offer is then of that same use.
 * KVT_OK: the plan ends with the PUT of this entry. KVT_REFUSED: not worth storing, or no room
 * could be made within the plan's capacity, or "utility" in CONTIGUOUS mode was given a parent that
 * is not stored or leaves, without which the entry serves nobody; the plan is empty. KVT_EXISTS:
 * the handle is stored or being stored; the use was counted the same way, the plan is empty.
 * KVT_E_ARGUMENT: bad option or handle (NaN or negative cost, [0] not NONE); KVT_E_MEMORY. The
 * engine is unchanged on error. Every other policy, and each policy in MIXED mode, takes
 * an entry with such a parent in as a root.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_admit(kvt_policy *policy, uint64_t now_ns,
                                                  const kvt_policy_entry *entry, kvt_plan *plan);

/*
 * Takes over an entry that is stored already, as after a restart; no plan, no access counted.
 * KVT_OK; KVT_EXISTS; KVT_E_SPACE (would pass a capacity); KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_adopt(kvt_policy *policy, uint64_t now_ns,
                                                  const kvt_policy_entry *entry, uint8_t option);

/*
 * Counts one use of an entry and may plan its promotion (an empty plan is the common answer).
 * plan may be NULL: count only. KVT_OK; KVT_MISS when the handle is unknown or not resident
 * (one that is remembered or being stored is counted still, once with the admission that follows).
 * Feed a prefix root first: every entry of the path once.
 * Its stored bytes are taken to be in your hands, as after a get: the plan's move of this entry is
 * costs no read.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_access(kvt_policy *policy, uint64_t now_ns,
                                                   uint64_t handle, kvt_plan *plan);

/*
 * Offers to move a stored entry up to a tier, as for a promotion with a use that is expected now.
 * No use is counted. "utility" weighs the seconds that this one use saves beside those at the
 * entry's rate, and reading as background work; the other policies make the room that a use in a
 * lower tier makes, "none" and "adaptcache" offer nothing.
 * KVT_OK: the plan ends with the move of this entry, or is empty: the entry is there or above, or a
 * move takes it there. KVT_REFUSED: not worth it, no room, pinned, or on its way elsewhere; the
 * plan is empty. KVT_MISS (not stored, not being stored); KVT_E_UNSUPPORTED (no such tier).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_promote(kvt_policy *policy, uint64_t now_ns,
                                                    uint64_t handle, kvt_tier tier, kvt_plan *plan);

/*
 * What a caller says of an entry's next use. A hint is evidence, no order: it bends the predicted
 * rate of the entry by how often hints of that kind from that tenant came true, beyond what the
 * entries' counters let expect anyway: by one half at first. About the last 256 count; those of one
 * moment count as one together.
 */
typedef enum kvt_hint_kind {
    KVT_HINT_RETAIN = 0,   /* a use comes within so many seconds */
    KVT_HINT_NEXT_USE = 1, /* the next use comes in about so many seconds: in half to twice of them,
                              give or take a second */
    KVT_HINT_DEMOTE = 2,   /* no use comes within so many seconds; 0 = 300 */
    KVT_HINT_SESSION_END = 3, /* no use comes any more: none within so many seconds; 0 = 1200. Of
                                 entries that no other session uses */
    KVT_HINT_KINDS = 4
} kvt_hint_kind;

#define KVT_HINT_SECONDS_MAX 2.7e6 /* a month */

/* Hints by kind, since the open: given = came_true + failed + open + dropped. */
typedef struct kvt_hint_stats {
    uint32_t struct_size;
    uint64_t given[KVT_HINT_KINDS];
    uint64_t came_true[KVT_HINT_KINDS];
    uint64_t failed[KVT_HINT_KINDS];
    uint64_t open[KVT_HINT_KINDS];    /* now: neither yet */
    uint64_t dropped[KVT_HINT_KINDS]; /* their entry was forgotten, 65536 others were open, or the
                                         policy takes no hints */
    uint64_t skipped;                 /* of a store: keys of all kinds that were not stored */
} kvt_hint_stats;

/*
 * Gives a hint for a stored entry, by a tenant. The entry's latest hint bends its rate, until its
 * instant (of KVT_HINT_NEXT_USE twice as long) or the entry's next use, which ends all of its
 * hints. A hint of a kind that is open already changes the instant, and is judged when that one
 * would have been. Policies other than "utility" take hints and do nothing.
 *   seconds   above 0 where a use is expected; up to KVT_HINT_SECONDS_MAX
 * KVT_OK; KVT_MISS (not stored); KVT_E_ARGUMENT (kind, seconds, tenant); KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_hint(kvt_policy *policy, uint64_t now_ns,
                                                 uint64_t handle, kvt_hint_kind kind,
                                                 double seconds, uint32_t tenant);

/* KVT_OK; KVT_E_ARGUMENT (struct_size, NULL). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_hint_stats_get(const kvt_policy *policy,
                                                           kvt_hint_stats *out);

/* Background work: makes room above the watermarks, improves placement. At most moves_max moves and
 * bytes_max bytes written in total. KVT_OK, with an empty plan when there is nothing to do. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_tick(kvt_policy *policy, uint64_t now_ns,
                                                 uint32_t moves_max, uint64_t bytes_max,
                                                 kvt_plan *plan);

/*
 * Reports a move carried out. actual_bytes[KVT_TIER_PLACES] are the bytes really stored, or NULL
 * when they equal to_bytes; the entry's option is corrected to them. KVT_OK; KVT_E_SPACE when the
 * actual bytes do not fit, or KVT_E_ARGUMENT when they are in the tier NONE (the move
 * stays in flight: abort it); KVT_E_ARGUMENT for an unknown id, too.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_commit(kvt_policy *policy, uint64_t move_id,
                                                   const uint64_t *actual_bytes);

/* Reports a move not carried out: the entry is as before it (after a PUT: not stored).
 * KVT_OK; KVT_E_ARGUMENT for an unknown id. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_abort(kvt_policy *policy, uint64_t move_id);

/* Forgets an entry that is gone (deleted, failed to load). A move in flight on it is aborted.
 * KVT_OK; KVT_MISS when unknown. Children stay; they become roots. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_remove(kvt_policy *policy, uint64_t handle);

/* Keeps a stored entry out of every plan until it is unpinned as often as it was pinned. KVT_OK;
 * KVT_MISS (not stored). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_pin(kvt_policy *policy, uint64_t handle);

/* Takes one pin back. KVT_OK; KVT_MISS (not stored, or it has no pin). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_unpin(kvt_policy *policy, uint64_t handle);

/*
 * Changes a tier's capacity, as when one of its devices fails. Below what the tier holds now, it
 * keeps that as its capacity: nothing more comes in, and a later call can lower it further. KVT_OK;
 * KVT_E_ARGUMENT (no such tier, or beyond 2^61 bytes).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_capacity(kvt_policy *policy, kvt_tier tier,
                                                         uint64_t capacity_bytes);

/*
 * Gives a tier other speeds than those it was opened with, because its devices turned out faster or
 * slower: what is written and moved from now on costs by them. KVT_OK; KVT_E_ARGUMENT (no such
 * tier; as kvt_tier_facts).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_speed(kvt_policy *policy, kvt_tier tier,
                                                      double read_bytes_per_s,
                                                      double write_bytes_per_s,
                                                      double request_seconds);

/* Present option index of an entry, KVT_OPTION_NONE when it is not stored or unknown. */
KVT_API uint8_t kvt_policy_option(const kvt_policy *policy, uint64_t handle);

/*
 * What "utility" has learned of how soon entries are used again. A rate is a sum of reuse experts,
 * one for each kind and half-life; the weight of one is the number of further uses that it lets
 * expect of one counted use (docs/POLICY.md, "How soon an entry comes back").
 */
#define KVT_REUSE_HALF_LIVES 6
typedef enum kvt_reuse_kind {
    KVT_REUSE_COUNT = 0, /* how an entry's uses add up: documents of steady popularity */
    KVT_REUSE_LAST = 1,  /* its last use alone, however many came before: turns of conversations */
    KVT_REUSE_AGAIN = 2, /* the same, of entries used twice or more, beside KVT_REUSE_LAST */
    KVT_REUSE_KINDS = 3
} kvt_reuse_kind;

typedef struct kvt_reuse_weights {
    uint64_t uses; /* that were learned from; 0 = nothing is learned, or not yet */
    double half_life_seconds[KVT_REUSE_HALF_LIVES];
    double weight[KVT_REUSE_KINDS][KVT_REUSE_HALF_LIVES];
} kvt_reuse_weights;

/*
 * An engine's knowledge of one entry's uses. A caller that ends and begins again keeps these
 * numbers beside its entries, and gives them to the next engine, in the order of `order`.
 */
typedef struct kvt_policy_uses {
    uint32_t struct_size;
    uint32_t used;       /* 0 = never, 1 = once, 2 = twice or more */
    uint64_t order;      /* number of its last use: rises over all entries of the engine */
    double idle_seconds; /* since the last use */
    double count[KVT_REUSE_HALF_LIVES]; /* its uses, each halved once a half life (those of
                                           kvt_reuse_weights), as of the last use */
} kvt_policy_uses;

/* Says what is known of a stored entry's uses. Of policies that count none: order and idle_seconds.
 * KVT_OK; KVT_MISS (not stored); KVT_E_UNSUPPORTED (its rate was set, or the policy's counters are
 * others: "adaptcache"); KVT_E_ARGUMENT (struct_size, NULL). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_uses_get(const kvt_policy *policy, uint64_t now_ns,
                                                     uint64_t handle, kvt_policy_uses *out);

/*
 * Gives an adopted entry the uses that an earlier engine knew of, in place of what adoption
 * assumes; no use is counted. Call it for entries in rising `order`, which is what "lru" and
 * "lru-leaf" take; other policies that count no uses take nothing. An idle time that reaches
 * before the engine's first time counts as that: let an engine's first call be a tick without moves
 * at an earlier time. KVT_OK; KVT_MISS (not stored); KVT_E_UNSUPPORTED (as above); KVT_E_ARGUMENT
 * (a number outside [0, 1e12], NaN).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_uses_set(kvt_policy *policy, uint64_t now_ns,
                                                     uint64_t handle, const kvt_policy_uses *uses);

/* Gives an engine the weights that an earlier one has learned (kvt_policy_stats.reuse), before it
 * has learned any. They are learned on from there. KVT_OK; KVT_E_UNSUPPORTED (the policy learns
 * none); KVT_E_STATE (it has learned already); KVT_E_ARGUMENT (a weight outside [0, 1e6], NaN). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_set_weights(kvt_policy *policy,
                                                        const kvt_reuse_weights *weights);

/* One option's terms, as explain prints them. */
typedef struct kvt_explained_option {
    kvt_option option;
    double utility; /* f * (-alpha * share * loss - load - decode), s/s; of NONE f * -recompute */
    double shadow_cost; /* sum over tiers of price * bytes, s/s */
    double score;       /* utility - shadow_cost */
    bool feasible; /* it fits the tiers' capacities, the tenant's limits and the tree rule, and the
                       present bytes are enough to make it */
} kvt_explained_option;

typedef struct kvt_explanation {
    uint32_t struct_size;
    uint64_t handle;
    uint64_t parent;
    uint32_t resident_children;
    uint32_t pins;
    uint8_t current; /* option index */
    uint8_t best;    /* option index with the highest score among feasible ones */
    uint8_t option_count;
    bool in_flight;
    double accesses_per_s;
    double last_access_age_seconds;
    double price[KVT_TIER_PLACES]; /* s/s per byte */
    const char *reason;            /* one sentence, static storage */
    kvt_explained_option options[KVT_OPTIONS_MAX];
    /* The reuse expert with the largest part of accesses_per_s. NULL and zeros where the policy
     * learns none, and where a caller has set the rate. */
    const char *reuse_expert; /* its kind in words, static storage */
    kvt_reuse_kind reuse_kind;
    double reuse_half_life_seconds;
    double reuse_weight; /* as in kvt_reuse_weights */
    double reuse_share;  /* of accesses_per_s, 0..1 */
} kvt_explanation;

/* Explains one entry. KVT_OK; KVT_MISS when unknown. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_explain(const kvt_policy *policy, uint64_t now_ns,
                                                    uint64_t handle, kvt_explanation *out);

/* What keeping an entry in one tier is worth. A policy that counts no uses takes one second as
 * saved by every use, and the seconds since the last use as the time between two. */
typedef struct kvt_policy_worth {
    uint32_t struct_size;
    uint32_t resident_children; /* stored continuations, which are useless without it */
    double uses_per_s;          /* predicted */
    double saved_seconds; /* by a use: recomputing less the tier's best option, with quality */
    double per_byte;      /* their product over the bytes of that option; 0 = none saves */
} kvt_policy_worth;

/* Reads only, as of the latest time that the engine was given. KVT_OK; KVT_MISS (not stored);
 * KVT_E_ARGUMENT (no such tier). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_worth_get(const kvt_policy *policy, uint64_t handle,
                                                      kvt_tier tier, kvt_policy_worth *out);

typedef struct kvt_policy_stats {
    uint64_t entries; /* resident or in flight */
    uint64_t ghosts;
    uint64_t moves_in_flight;
    uint64_t used_bytes[KVT_TIER_PLACES]; /* stored and reserved */
    uint64_t entries_by_tier[KVT_TIER_PLACES];
    uint64_t admitted, refused, accesses, puts, promotions, demotions, evictions, aborts;
    double price[KVT_TIER_PLACES];
    uint64_t limited; /* options excluded by a loss or load limit, counted per admission */
    uint64_t written_bytes[KVT_TIER_PLACES]; /* by committed moves */
    kvt_reuse_weights reuse;
    uint64_t reserved[8];
} kvt_policy_stats;

/* Copies the engine's counters since its open, and its present gauges, into *out. Changes nothing
 * and plans nothing; neither pointer is NULL. */
KVT_API void kvt_policy_stats_get(const kvt_policy *policy, kvt_policy_stats *out);

/* Writes one move as one line without a newline, for plan logs; always terminated. Returns the
 * length it would need. */
KVT_API size_t kvt_move_format(const kvt_move *move, char *text, size_t size);

/* Names of the policies; NULL past the end. */
KVT_API const char *kvt_policy_name_at(size_t index);

#ifdef __cplusplus
}
#endif

#endif
