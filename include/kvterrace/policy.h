/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - the decision engine alone: numbers in, plan out.
 *
 * The engine never touches a byte, a clock, a lock or the heap after open. You tell it what each
 * entry could become (options), what happens (admit, access, tick), and it answers with plans:
 * bounded lists of moves, in order. You carry a move out and then commit or abort it. Entries are
 * named by 64-bit handles of your choosing (not 0).
 *
 *     kvt_policy_admit(policy, now_ns, &entry, &plan);       moves that make room, then the PUT
 *     for (i = 0; i < plan.count; i++)
 *         if (carry_out(&plan.moves[i]) == KVT_OK)
 *             kvt_policy_commit(policy, plan.moves[i].id, actual_bytes);
 *         else
 *             kvt_policy_abort(policy, plan.moves[i].id);    abort the rest of the plan too
 *
 * Capacity rule: a move holds its source and its target bytes until it is committed or aborted.
 * While the moves of a plan are carried out in order, no tier ever holds more than its capacity,
 * whatever other plans are in flight.
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
 * An exact stored option (loss 0) can become any other. A lossy one can become its own variant
 * elsewhere, and each option whose made_from has its bit: bit i of made_from is set when option i's
 * stored bytes are enough to make this option, because they contain it (planes dropped, a coarser
 * step derived) or because it may be coded from them: where the codec changes the losses of both
 * add up, and the engine counts both.
 * Bit i of kept_from: the bytes that this option shares with option i in a tier stay where they
 * are, and a move from i to this option holds and writes only the others. Such a bit may be set
 * where made_from has it, option i is exact, or both options have the same variant.
 */
typedef struct kvt_option {
    kvt_variant variant;
    uint64_t bytes[KVT_TIER_PLACES];      /* stored bytes by tier; all 0 for NONE */
    uint64_t read_bytes[KVT_TIER_PLACES]; /* bytes read from each tier by one get */
    double load_seconds;                  /* from the request until the stored bytes are in memory;
                                            for NONE the seconds of recomputing the entry */
    double decode_seconds;                /* that decoding adds; 0 for NONE */
    double encode_seconds;                /* to make this option from the exact entry */
    double loss;                          /* 1 - quality, in [0,1]; 0 for exact options and NONE */
    double loss_upper;                    /* confidence bound of loss, in [loss,1]; 0 = loss. What
                                            loss limits are compared with */
    uint32_t made_from;                   /* bit i: option i's bytes are enough to make this one */
    uint32_t kept_from;                   /* bit i: bytes shared with option i stay in place */
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
    double alpha_prefills;     /* as in the configuration */
    double loss_limit;         /* no option whose loss_upper passes this; 1 = any */
    double load_limit_seconds; /* no stored option slower than this, unless all options, NONE too,
                                  are; 0 = any */
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
    const char *name; /* one of kvt_policy_name_get; "utility" */
    kvt_tier_facts tiers[KVT_TIER_PLACES];
    kvt_variant variant;       /* what policies that choose no variant store; all do but "utility"
                                  and "adaptcache"; raw */
    double alpha_seconds;      /* seconds of delay paid for 1.0 of a request's quality; 0 = what
                                  alpha_prefills says; 0 */
    double alpha_prefills;     /* the same in times that it takes to compute the entry again: with
                                  10, 1 % of quality is worth 10 % of a prefill; 10 */
    double hysteresis;         /* a move must gain this many times its cost; 1.25 */
    uint8_t holes;             /* kvt_hole_mode; CONTIGUOUS */
    double high_watermark;     /* tick makes room above this share of a tier, 0..1; 0.995 */
    double low_watermark;      /* and stops at this one; 0.99 */
    uint64_t entries_expected; /* sizes the tables at open; they grow when it is passed; 1024 */
    uint64_t ghosts_max;       /* entries remembered (counter, options) after they left; 65536 */
    uint64_t seed;             /* for policies that draw; 1 */
    kvt_allocator allocator;   /* required */
    uint64_t entries_reserved; /* room for so many entries at open, when that is more than
                                  entries_expected; decides nothing; 0 */
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
    uint64_t to_bytes[KVT_TIER_PLACES];   /* stored after it; all but kept_bytes was reserved when
                                            the move was planned, and has to be written */
    uint64_t kept_bytes[KVT_TIER_PLACES]; /* part of from_bytes and to_bytes that stays in place */
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
    uint32_t request_tokens;  /* of the requests that use it; 0 = no more than this entry's. The
                                 loss of a request is the mean over its tokens, so this entry's loss
                                 counts for tokens / request_tokens of it, at most 1 */
    uint32_t ladder;          /* 0 = options are given here */
    double recompute_seconds; /* of NONE, with a ladder */
    double sensitivity;       /* factor on every option's loss for this entry; 0 = 1 */
    uint32_t class_id;        /* whose prior a first-seen entry starts from; 0 = none */
    uint32_t tenant;          /* below KVT_TENANTS_MAX */
    double copy_seconds;      /* to load the copy of it that is kept elsewhere, such as in an engine
                                 that hosts share; 0 = there is none. See kvt_policy_copy_set */
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
KVT_API KVT_NODISCARD kvt_status kvt_policy_tenant_set(kvt_policy *policy, uint32_t tenant,
                                                       const kvt_tenant *limits);

/* Sets the prior of a class: the number of uses, beside its first one, that a new entry is taken to
 * have had just now. 0.5 fits entries of which half come back within a half-life. KVT_OK;
 * KVT_E_ARGUMENT (class 0 or beyond 65535, a number outside [0, 1e6]); KVT_E_MEMORY. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_policy_prior_set(kvt_policy *policy,
                                                                       uint32_t class_id,
                                                                       double uses);

/* Sets an entry's rate of use in place of the counted one, for a caller that knows the rate better,
 * such as a scheduler's queue or an oracle. Later uses add to the rate and all of it decays, so set
 * it again when it changes. KVT_OK; KVT_MISS (neither stored nor remembered);
 * KVT_E_UNSUPPORTED (the policy counts no uses); KVT_E_ARGUMENT (NaN, outside [0, 1e12]). */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_policy_rate_set(kvt_policy *policy,
                                                                      uint64_t handle,
                                                                      double uses_per_s);

/*
 * Says whether a copy of a stored or remembered entry is kept elsewhere, where this engine has no
 * say, and how long loading the copy takes now; 0 = there is no copy (any more). With a copy, not
 * storing the entry costs p * load_seconds + (1 - p) * recomputing, with p the chance that the copy
 * is still there: so room goes to entries without copies. The engine learns p by the copy's age
 * from these calls, each of which says whether the copy named by the call before has survived:
 * call it when a copy was made, read, or looked for. Policies other than "utility" weigh no copies:
 * KVT_OK, and nothing is kept. KVT_OK; KVT_MISS (neither stored nor remembered); KVT_E_ARGUMENT
 * (NaN, outside [0, 1e12]); KVT_E_MEMORY.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_policy_copy_set(kvt_policy *policy,
                                                                      uint64_t now_ns,
                                                                      uint64_t handle,
                                                                      double load_seconds);

/* The learned chance that a copy is still there age_seconds after it was last seen: 1/64 to 63/64;
 * one half before the first call of kvt_policy_copy_set, and for a negative age. */
KVT_API KVT_EXPERIMENTAL double kvt_policy_copy_chance(const kvt_policy *policy,
                                                       double age_seconds);

/* Gives a stored entry's options new seconds and losses, because a curve was measured anew: the
 * same options as at admission, in the same order; bytes are not changed. KVT_OK; KVT_MISS;
 * KVT_E_ARGUMENT (other options, a ladder's, or a bad number); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_recost(kvt_policy *policy, uint64_t handle,
                                                   const kvt_option *options, uint32_t count);

/* Gives a stored entry's options new bytes, because a record came out in another size than was
 * planned: the same options as at admission, in the same order; seconds, losses and the bytes that
 * the entry holds now are not changed. KVT_OK; KVT_MISS; KVT_BUSY (a move of it is under
 * way); KVT_E_ARGUMENT (other options, a ladder's, or a bad number); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_resize(kvt_policy *policy, uint64_t handle,
                                                   const kvt_option *options, uint32_t count);

/*
 * Offers a new entry, whose exact bytes the caller holds now. Counts as one use, unless
 * kvt_policy_access has just returned KVT_MISS for the handle: that call has counted the use.
 * KVT_OK: the plan ends with the PUT of this entry. KVT_REFUSED: not worth storing, or no room
 * could be made within the plan's capacity, or the entry's parent is not stored or is about to
 * leave ("utility" in CONTIGUOUS mode; every other policy, and each one in MIXED mode, takes such
 * an entry as a root); the plan is empty. KVT_EXISTS: the handle is stored or being stored; the use
 * was counted the same way, the plan is empty. KVT_E_ARGUMENT: bad option or handle (NaN or
 * negative cost, [0] not NONE); KVT_E_MEMORY. The engine is unchanged on error.
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
 * Counts one use of an entry and may plan its promotion (an empty plan is the common answer). plan
 * may be NULL: count only. KVT_OK; KVT_MISS when the handle is unknown or not stored (the use of a
 * remembered entry, or of one that is being stored, is counted all the same, and the admission that
 * follows does not count it again). For a prefix call it once for every entry of the path, the root
 * first. The engine assumes that you hold the stored bytes, as after a get, so a move of this entry
 * costs no read.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_access(kvt_policy *policy, uint64_t now_ns,
                                                   uint64_t handle, kvt_plan *plan);

/*
 * Offers to move a stored entry up to a tier, for one use that is expected now. No use is counted.
 * "utility" adds the seconds that this use saves to those saved at the entry's rate, and charges
 * the read as background work. "none" and "adaptcache" plan nothing; the other policies plan what
 * they would plan for a use of an entry in a lower tier. KVT_OK: the plan ends with the move of
 * this entry, or is empty because the entry is in that tier or above, or a move takes it there.
 * KVT_REFUSED: not worth it, no room, pinned, or on its way elsewhere; the plan is empty. KVT_MISS
 * (not stored, not being stored); KVT_E_UNSUPPORTED (no such tier).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_promote(kvt_policy *policy, uint64_t now_ns,
                                                    uint64_t handle, kvt_tier tier, kvt_plan *plan);

/*
 * A caller's expectation of an entry's next use. A hint is evidence and no order: it changes the
 * entry's predicted rate in the measure in which hints of its kind and tenant have come true more
 * often than the entries' counters predict, by one half at first. The measure is learned from about
 * the last 256 hints; hints of one moment count as one.
 */
typedef enum kvt_hint_kind {
    KVT_HINT_RETAIN = 0,   /* a use comes within so many seconds */
    KVT_HINT_NEXT_USE = 1, /* the next use comes in about so many seconds: in half to twice of them,
                              give or take a second */
    KVT_HINT_DEMOTE = 2,   /* no use comes within so many seconds; 0 = 300 */
    KVT_HINT_SESSION_END = 3, /* no use comes any more, at least not within so many seconds;
                                 0 = 1200. For entries that no other session uses */
    KVT_HINT_KINDS = 4
} kvt_hint_kind;

#define KVT_HINT_SECONDS_MAX 2.7e6 /* a month */

/*
 * Gives a hint for a stored entry, by a tenant. The entry's latest hint changes its predicted rate
 * until its instant (of KVT_HINT_NEXT_USE twice as long) or the entry's next use, which ends all of
 * its hints. A second hint of a kind that is open sets a new instant and does not put off the
 * judgement of the first. Policies other than "utility" take hints and do nothing.
 *   seconds   above 0 where a use is expected; up to KVT_HINT_SECONDS_MAX
 * KVT_OK; KVT_MISS (not stored); KVT_E_ARGUMENT (kind, seconds, tenant); KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_hint(kvt_policy *policy, uint64_t now_ns,
                                                 uint64_t handle, kvt_hint_kind kind,
                                                 double seconds, uint32_t tenant);

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
 * Changes a tier's capacity, as when one of its devices fails. A capacity below the bytes that the
 * tier holds now is set to these: nothing more comes in, and a later call can lower it further.
 * KVT_OK; KVT_E_ARGUMENT (no such tier, or beyond 2^61 bytes).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_capacity_set(kvt_policy *policy, kvt_tier tier,
                                                         uint64_t capacity_bytes);

/*
 * Withholds bytes of a tier's capacity from plans, while the caller can give nobody their room; 0
 * when the policy is opened. Stored entries stay; where the tier lacks the bytes, the next plan
 * that needs room there makes them up first. O(1). KVT_OK; KVT_E_ARGUMENT (no such tier, or beyond
 * 2^61 bytes).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_withheld_set(kvt_policy *policy, kvt_tier tier,
                                                         uint64_t withheld_bytes);

/*
 * Gives a tier other speeds than those it was opened with, because its devices turned out faster or
 * slower. Writes and moves are priced by them from now on. KVT_OK; KVT_E_ARGUMENT (no such tier, or
 * a speed that an open would refuse).
 */
KVT_API KVT_NODISCARD kvt_status kvt_policy_speed_set(kvt_policy *policy, kvt_tier tier,
                                                      double read_bytes_per_s,
                                                      double write_bytes_per_s,
                                                      double request_seconds);

/* Present option index of an entry, KVT_OPTION_NONE when it is not stored or unknown. */
KVT_API uint8_t kvt_policy_option_get(const kvt_policy *policy, uint64_t handle);

/*
 * How soon entries are used again, as "utility" has learned it (docs/POLICY.md, "How soon an entry
 * comes back"). A predicted rate is what the entry's uses add up to, over several half-lives, and
 * what is due by the age of its last use: a hazard for each age, in a row for each number of uses
 * that its path has seen.
 */
#define KVT_REUSE_HALF_LIVES 6
#define KVT_REUSE_TURNS      4  /* rows: one use, two, three or four, more */
#define KVT_REUSE_AGES       32 /* bins of ages: a second, then half octaves up to 13 hours */
typedef enum kvt_reuse_kind {
    KVT_REUSE_COUNT = 0, /* how an entry's uses add up: documents of steady popularity */
    KVT_REUSE_AGE = 1,   /* how long ago its last use was: turns of conversations, loops */
    KVT_REUSE_KINDS = 2
} kvt_reuse_kind;

typedef struct kvt_reuse_weights {
    uint64_t uses; /* that were learned from; 0 = nothing is learned, or not yet */
    double half_life_seconds[KVT_REUSE_HALF_LIVES];
    double weight[KVT_REUSE_HALF_LIVES];    /* further uses that a counted use predicts */
    double age_seconds[KVT_REUSE_AGES + 1]; /* where the bins of ages begin and the last one ends */
    double hazard[KVT_REUSE_TURNS][KVT_REUSE_AGES]; /* uses a second at an age not yet used again */
} kvt_reuse_weights;

/*
 * An engine's knowledge of one entry's uses. A caller that ends and begins again keeps these
 * numbers beside its entries, and gives them to the next engine, in the order of `order`.
 */
typedef struct kvt_policy_uses {
    uint32_t struct_size;
    uint32_t used;       /* uses that its path has seen; 7 = seven or more */
    uint64_t order;      /* number of its last use: rises over all entries of the engine */
    double idle_seconds; /* since the last use */
    double count[KVT_REUSE_HALF_LIVES]; /* its uses, each halved once a half life (those of
                                           kvt_reuse_weights), as of the last use */
} kvt_policy_uses;

/* Reads a stored entry's uses. A policy that counts no uses fills order and idle_seconds alone.
 * KVT_OK; KVT_MISS (not stored); KVT_E_UNSUPPORTED (its rate was set, or the policy counts in
 * another way: "adaptcache"); KVT_E_ARGUMENT (struct_size, NULL). */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_policy_uses_get(const kvt_policy *policy,
                                                                      uint64_t now_ns,
                                                                      uint64_t handle,
                                                                      kvt_policy_uses *out);

/*
 * Gives an adopted entry the uses that an earlier engine knew of, in place of those that adoption
 * assumes; no use is counted. Call it for entries in rising `order`: "lru" and "lru-leaf" take the
 * order alone, other policies that count no uses take nothing. A last use before the engine's first
 * call counts as if it had been at that call; to avoid this, let the first call be a tick without
 * moves at an earlier time. KVT_OK; KVT_MISS (not stored); KVT_E_UNSUPPORTED (as of
 * kvt_policy_uses_get); KVT_E_ARGUMENT (a number outside [0, 1e12], NaN).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_policy_uses_set(kvt_policy *policy,
                                                                      uint64_t now_ns,
                                                                      uint64_t handle,
                                                                      const kvt_policy_uses *uses);

/* Gives an engine that has learned nothing yet the weights that an earlier one has learned
 * (kvt_policy_stats.reuse). Learning goes on from them. KVT_OK; KVT_E_UNSUPPORTED (the policy
 * learns none); KVT_E_STATE (it has learned); KVT_E_ARGUMENT (a weight or hazard outside [0, 1e6],
 * NaN). */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_policy_weights_set(kvt_policy *policy, const kvt_reuse_weights *weights);

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
    double reuse_half_life_seconds; /* of a count; 0 of an age */
    double reuse_weight;            /* of a count as in kvt_reuse_weights; of an age its hazard */
    double reuse_share;             /* of accesses_per_s, 0..1 */
} kvt_explanation;

/* Explains one entry. KVT_OK; KVT_MISS when unknown. */
KVT_API KVT_NODISCARD kvt_status kvt_policy_explain(const kvt_policy *policy, uint64_t now_ns,
                                                    uint64_t handle, kvt_explanation *out);

/* The worth of keeping an entry in one tier. A policy that counts no uses assumes that a use saves
 * one second and that uses are as far apart as now is from the last one. */
typedef struct kvt_policy_worth {
    uint32_t struct_size;
    uint32_t resident_children; /* stored continuations, which are useless without it */
    double uses_per_s;          /* predicted */
    double saved_seconds; /* by a use: recomputing less the tier's best option, with quality */
    double per_byte;      /* uses_per_s * saved_seconds / bytes of that option; 0 = none saves */
} kvt_policy_worth;

/* Reads only, as of the latest time that the engine was given. KVT_OK; KVT_MISS (not stored);
 * KVT_E_ARGUMENT (no such tier). */
KVT_API KVT_NODISCARD kvt_status kvt_policy_worth_get(const kvt_policy *policy, uint64_t handle,
                                                      kvt_tier tier, kvt_policy_worth *out);

/* Hints by kind, since the open: given = came_true + failed + open + dropped. */
typedef struct kvt_hint_stats {
    uint64_t given[KVT_HINT_KINDS];
    uint64_t came_true[KVT_HINT_KINDS];
    uint64_t failed[KVT_HINT_KINDS];
    uint64_t open[KVT_HINT_KINDS];    /* now: neither true nor false yet */
    uint64_t dropped[KVT_HINT_KINDS]; /* their entry was forgotten, 65536 others were open, or the
                                         policy takes no hints */
} kvt_hint_stats;

/* Why a new entry was refused. */
typedef enum kvt_refusal {
    KVT_REFUSAL_PREFIX = 0, /* its parent is not stored, so nothing could load it */
    KVT_REFUSAL_PRICE = 1,  /* no option gains what its room costs at the tiers' prices */
    KVT_REFUSAL_COST = 2,   /* what would have to go is worth more */
    KVT_REFUSAL_ROOM = 3,   /* no entry that may move gives its room */
    KVT_REFUSAL_PLAN = 4,   /* the caller's plan has no place for the moves that make its room */
    KVT_REFUSALS = 5
} kvt_refusal;

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
    kvt_hint_stats hints;
    uint64_t refused_for[KVT_REFUSALS]; /* refused, by reason */
} kvt_policy_stats;

/* Copies the engine's counters since its open, and its present gauges, into *out. Changes nothing
 * and plans nothing; neither pointer is NULL. */
KVT_API void kvt_policy_stats_get(const kvt_policy *policy, kvt_policy_stats *out);

/* Writes one move as one line without a newline, for plan logs; always terminated. Returns the
 * length it would need. */
KVT_API size_t kvt_move_format(const kvt_move *move, char *text, size_t size);

/* Names of the policies; NULL past the end. */
KVT_API const char *kvt_policy_name_get(size_t index);

#ifdef __cplusplus
}
#endif

#endif
