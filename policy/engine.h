/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the inside of the decision engine: entries, options, ledger, plans, the policy table.
 *
 *     policy.c     life of an engine, and the calls on entries: arguments, entries, ledger, ops
 *     advise.c     the calls that update what it knows: ladders, tenants, priors, rates, speeds
 *     recost.c     new seconds and losses of a stored entry's options
 *     entries.c    handle -> entry, prefix tree, remembered entries, memory
 *     option_runs.c  the pool of options: entries with equal options share them
 *     remembered.c what is kept of the options of an entry that left
 *     reuse.c      the reuse counters and the rates that they give
 *     reuse_model.c  what the counters mean: weights of terms, learned from a sample
 *     hints.c      hints of next uses, and how far they are trusted; elsewhere.c copies
 *     ledger.c     moves in flight and bytes per tier
 *     write_queue.c  what waits to be written to each tier: write prices, how long bytes stay
 *     tentative.c  a tentative plan: moves are reserved as they are added, or taken back
 *     room.c       makes room in a tier by the policy's steps, lowest tier first
 *     recency.c    none, lru, lru-leaf
 *     utility.c    AdaptCache's greedy with reuse counters; utility_improve.c its promotions
 *     plan.c       plans as data: the check and the text of a move
 *     explain.c    explanations and statistics; recall.c  what the next engine is to know of uses
 *
 * Inside the engine a tier is a number 0..2 (HBM, DRAM, SSD), one less than its kvt_tier: the
 * virtual tier NONE holds no bytes.
 * Pointers to entries and options are valid until the next entries_reserve or options_reserve,
 * which run only at the start of a public call. Thread rule: the caller's lock, as in policy.h.
 */
#ifndef KVT_POLICY_ENGINE_H
#define KVT_POLICY_ENGINE_H

#include "base/number/number.h"
#include "base/struct_size.h"
#include "kvterrace/policy.h"
#include "policy/buckets.h"
#include "policy/elsewhere.h"
#include "policy/heap.h"
#include "policy/hints.h"

#include <assert.h>

/* The tiers that hold bytes. Entries and options are stored by the million, and arrays that begin
 * with the tier NONE would cost each of them eight bytes that are always 0. */
#define TIERS 3
#define NIL   UINT32_MAX
/* Bounds on the work of one decision. A plan gives up after so many skipped victims or refused
 * steps, so that one among millions of entries takes microseconds; ticks do what is left. */
#define TENTATIVE_SKIPS    32u
#define TENTATIVE_SORTS    4u /* a decision waits for no more of each kind; ticks do the rest */
#define TENTATIVE_REFUSALS 4u /* victims come in order: when so many cost too much, others do too */
#define CAPACITY_LIMIT     (UINT64_C(1) << 61) /* twice this fits a signed number, see ledger.c */
#define UNLIMITED          1e300
#define SECONDS_LIMIT      1e12 /* keeps every product of costs and rates finite */

#define HALF_LIVES    KVT_REUSE_HALF_LIVES /* half-lives that are counted side by side */
#define ORDER_SECONDS 60.0                 /* unit of the victims' order */
/* Seconds of a request in one of background work: a prefill server has ten idle cores or more. */
#define BACKGROUND_SHARE 0.1

#define REUSE_LN2 0x1.62e42fefa39efp-1 /* a rate is ln 2 times the count over the half life */

/* One stored option; NONE has the entry's recompute_seconds alone. made_from and kept_from have a
 * bit for each option of the same list. Bit i of made_from: this option can be made of option i
 * without another loss. Bit i of kept_from, a part of it: bytes of option i stay in place then.
 * bytes counts against the capacities, read_bytes is what a load reads. The seconds and losses are
 * of one use; encode_seconds are paid once. loss_upper is what tenants' limits are held against. */
typedef struct stored_option {
    kvt_variant variant;
    uint64_t bytes[TIERS];
    uint64_t read_bytes[TIERS];
    double load_seconds;
    double decode_seconds;
    double encode_seconds;
    double loss;
    double loss_upper;
    uint32_t made_from;
    uint32_t kept_from;
    /* The fields from here on are derived, or the pool's: equal options may differ in them. */
    double base_cost; /* seconds of one use, without loss */
    bool fits;        /* each tier's whole capacity */
    uint8_t length;   /* of the run that begins here */
    uint32_t users;   /* of that run: entries */
} stored_option;
_Static_assert(sizeof(stored_option) == 120, "options are stored by the thousand");
#define OPTION_FACTS_BYTES offsetof(stored_option, base_cost)

/* A ladder: options that many entries share. It lives as long as the engine. options is the index
 * of the first stored option, NIL without any; option_count counts NONE, not in the pool. */
typedef struct ladder {
    uint32_t options;
    uint32_t option_count;
} ladder;

/*
 * The remains of the options of an entry that left, when no ladder has them: at most so many
 * points, none of which promises less than an option did. See remembered.c.
 */
#define REMEMBERED_POINTS 6u
/* The tier stands in the two lowest bits of bytes, which are cleared for it. */
typedef struct remembered_point {
    uint16_t seconds; /* load and decode; the upper half of a float, cut off */
    uint16_t loss;    /* the same */
    uint32_t bytes;   /* a float, cut off; the two lowest bits are the tier */
} remembered_point;

/* The states of a handle's slot. A slot is free, then held; an entry that leaves is remembered
 * as a ghost, if the policy remembers any, until its slot is free again or it comes back. */
typedef enum policy_entry_state {
    POLICY_ENTRY_FREE = 0,
    POLICY_ENTRY_GHOST = 1,
    POLICY_ENTRY_HELD = 2
} policy_entry_state;

/*
 * POLICY_ENTRY_HELD: stored, or its first PUT is in flight. POLICY_ENTRY_GHOST: left; its counter
 * and its options are remembered: the ladder's, or option_count - 1 points.
 * An entry is in its policy's victim index exactly when entry_is_movable says so.
 */
typedef struct entry {
    /* The fields that finding, counting and appraising an entry touch lie together. */
    /* The caller's name of the entry; 0 in a free slot alone. */
    uint64_t handle;
    /* Time of the last counted use; every count below is as of this time. */
    uint64_t last_access_ns;
    union {
        uint16_t uses[HALF_LIVES]; /* each halved once a half life, as of the last access */
        float count[3];            /* a plain counter, and what baselines keep */
    };
    float density[TIERS]; /* log2 of the least cost per byte freed; DENSITY_NONE without step */
    uint32_t parent;      /* tree links join held entries only */
    uint32_t options;     /* first of option_count - 1 options */
    /* Facts that the caller gave when the entry was admitted. */
    float sensitivity; /* factor on losses */
    float share;       /* of the tokens of the requests that use it */
    uint32_t excluded; /* bit i: a loss or load limit rules option i out */
    uint8_t tenant;
    uint8_t current;      /* option; KVT_OPTION_NONE until the first PUT commits */
    uint8_t state : 2;    /* policy_entry_state */
    uint8_t shares : 1;   /* its options belong to a ladder */
    uint8_t used : 1;     /* at least once */
    uint8_t again : 1;    /* used twice or more */
    uint8_t rate_set : 1; /* a caller has set its rate: it has a plain counter */
    uint8_t watched : 1;  /* its terms are in the model's sums */
    uint8_t missed : 1; /* an access has counted a use that found no bytes: an admission is of it */
    uint8_t option_count;
    /* Then its place. */
    uint64_t recency;        /* number of its last use, counted over the engine */
    bucket_link link[TIERS]; /* place in each tier's buckets or heap; [0] also in a recency list
                                 or among the ghosts, when the policy keeps no buckets for it */
    float recompute_seconds; /* of option NONE */
    uint8_t next[TIERS];     /* the step behind each density, and its kind in the highest bit */
    uint8_t listed;          /* number of the recency list that holds it, 0 outside */
    uint32_t hint;           /* number of its latest open hint, from 1 on; 0 = none */
    union {
        /* A held entry has bytes and a place in the tree. One that left has neither, so its
         * points lie in the same memory: entries_leave and entries_hold change one to the other. */
        struct {                   /* held */
            uint64_t bytes[TIERS]; /* really stored in the present option */
            uint32_t move;         /* slot of the move in flight, NIL when there is none */
            uint32_t pins;
            uint32_t children; /* held ones; inside a tentative plan less those that it evicts */
            uint32_t first_child;
            uint32_t older_sibling;
            uint32_t newer_sibling;
        };
        remembered_point points[REMEMBERED_POINTS]; /* left, without a ladder */
    };
} entry;
_Static_assert(sizeof(entry) == 168, "with its part of the tables an entry stays below 192 bytes");

#define DENSITY_NONE (1e30f)
#define NEXT_PAID    0x80u

/* One move in flight; the entry holds its from_bytes. id 0 marks a free slot. The source bytes are
 * the entry's own until the move ends, so they are not repeated here. kept is at most either end's
 * bytes: what stays in place is counted once. */
typedef struct move_in_flight {
    uint64_t id;
    uint64_t to_bytes[TIERS];
    uint64_t kept[TIERS]; /* of both ends, in place */
    uint32_t entry;
    uint8_t kind;
    uint8_t from;
    uint8_t to;
} move_in_flight;

/* A tenant with limits of its own. used counts what will be stored once all moves in flight have
 * ended. A tenant with a share has buckets of its own, so that its own entries make its room. The
 * used of all tenants add up to what each tier holds then. */
typedef struct tenant {
    kvt_tenant limits;
    uint64_t used[TIERS];
    hint_trust hints[KVT_HINT_KINDS]; /* by kind, of those that it gave */
    bool known;
    bool limited; /* has a share in some tier */
    uint8_t group;
} tenant;

/* The victims of one group of tenants by tier; group 0 is everybody without a share. Steps that
 * cost nothing beside their loss (evictions, planes dropped in place) stand apart from those that
 * also write, and may pay for room below: inside each kind the losses alone give the right order.
 */
enum { STEPS_FREE = 0, STEPS_PAID = 1, STEP_KINDS = 2 };
typedef struct victims {
    /* Entry i stands in of[tier][kind] exactly when it is movable, holds bytes in the tier and has
     * a step of that kind there. */
    buckets of[TIERS][STEP_KINDS];
} victims;

typedef bucket_list recency_list;

/* A plan being built. room is capacity minus all bytes held, counting this plan's own releases in
 * order; it may be negative while other plans are in flight. At any moment room[tier] = capacity -
 * used at the start - what the plan's moves write there + what they will release there. A plan that
 * is cut back to no moves has room, ids, bytes and index as at its begin. */
typedef struct tentative_plan {
    /* The caller's plan, its bounds, and what is left of them. */
    kvt_plan *plan;
    uint32_t limit;      /* moves */
    uint64_t bytes_left; /* that may still be written */
    int64_t room[TIERS];
    bool bounded; /* the length or the bytes of the plan ran out */
    /* A move whose cost would pass the budget is refused and counted in refusals; the plan goes on
     * with others until there are too many. */
    double spent;       /* utility lost by the steps so far, s/s */
    double budget;      /* and what they may lose at most */
    uint32_t refusals;  /* steps that would have lost more */
    uint32_t sweeps;    /* victims that may still be sorted anew in turn, */
    uint32_t refreshes; /* and at the front: few in a decision, more in a tick */
    int own_group;      /* only victims of this group count, for its tenant's share; below 0: all */
    /* State at the begin: the check in debug builds starts from used_before, and a plan that is
     * taken back whole gives its ids back. */
    uint64_t used_before[KVT_TIER_COUNT];
    uint64_t next_id_before;
    /* Victims that no step could move; they are put back into the index at the end. */
    uint32_t skipped[TENTATIVE_SKIPS];
    uint32_t skipped_count;
} tentative_plan;

/* One way to give up bytes: an entry goes to option `to` and loses `cost` seconds per second. cost
 * is what the plan's budget is charged; room below is paid for by the steps that make it, so cost
 * leaves it out. */
typedef struct step {
    uint32_t entry;
    uint8_t to;
    double cost;
    double gain; /* U(to) - U(from), for the plan log */
} step;

/*
 * The definition of one policy: flags that say what the engine keeps for it, and its decisions.
 *
 *     index     brings an entry's place in the victim index up to date
 *     remove    takes an entry out of the index
 *     touch     an entry was used
 *     choose    the next step that makes room in a tier; false when there is none
 *     fallback  another step of one entry, which needs no room below
 *     place     plans where a new entry goes, and what makes its room; false refuses it
 *     improve   may plan a better place for an entry that was just used
 *     promote   may plan a higher place, not above `top`, for an entry that is used soon
 *     tick      plans background work
 *
 * index works from the entry's state alone, so it may be called at any time.
 *
 * A policy changes the engine's state through the functions of this header alone. choose and
 * fallback return a step without carrying it out; place, improve and tick add moves to a plan by
 * tentative_add.
 */
typedef struct policy_ops {
    const char *name;
    bool counts;        /* keeps reuse counters */
    bool recency;       /* keeps the order of last uses alone */
    bool learns;        /* and learns what they mean */
    bool remembers;     /* entries that left stay as ghosts */
    bool heaps;         /* its index is a heap per tier */
    bool buckets;       /* or buckets per group and tier */
    bool tree;          /* keeps a prefix while its continuation is held, in contiguous mode */
    const char *reason; /* why an entry is where it is; NULL: utility's own reasons */
    bool (*open)(kvt_policy *policy);  /* optional: its state; false without memory */
    void (*close)(kvt_policy *policy); /* optional; the state may be missing */
    void (*index)(kvt_policy *policy, uint32_t entry);
    void (*remove)(kvt_policy *policy, uint32_t entry);
    void (*touch)(kvt_policy *policy, uint32_t entry);
    bool (*choose)(kvt_policy *policy, tentative_plan *work, int tier, step *out);
    bool (*fallback)(kvt_policy *policy, const tentative_plan *work, uint32_t entry, int tier,
                     step *out);
    bool (*place)(kvt_policy *policy, tentative_plan *work, uint32_t entry);
    void (*adopted)(kvt_policy *policy, uint32_t entry); /* optional: none needed */
    void (*leaving)(kvt_policy *policy, uint32_t entry); /* optional: none needed */
    void (*improve)(kvt_policy *policy, uint32_t entry, kvt_plan *plan);
    void (*promote)(kvt_policy *policy, uint32_t entry, int top, kvt_plan *plan); /* optional */
    void (*tick)(kvt_policy *policy, tentative_plan *work);
} policy_ops;

/*
 * The meaning of the counters of all entries: a weight for each kind of term and each half-life.
 * The model watches a sample of handles. A use of a watched entry is shared among the terms that
 * had led to expect it (found); time that passes shows what each term would have let expect
 * (exposed). A weight is the one over the other. reuse_model.c keeps it, reuse.c reads rate alone.
 *
 * found and exposed are forgotten alike, so their quotient has the memory of both; open and exposed
 * are the sums over the sample, never negative.
 */
typedef struct reuse_model {
    double rate[KVT_REUSE_KINDS][HALF_LIVES]; /* weight times ln 2 / h; AGAIN holds LAST as well */
    double weight[KVT_REUSE_KINDS][HALF_LIVES]; /* uses that a term of 1 lets expect in all */
    /* Seconds at stake in uses that were found, shared among the terms. */
    double found[KVT_REUSE_KINDS][HALF_LIVES];
    double exposed[KVT_REUSE_KINDS][HALF_LIVES]; /* and what a weight of 1 would have let expect */
    double open[KVT_REUSE_KINDS][HALF_LIVES];    /* still to come of that, as of seen_ns */
    uint64_t seen_ns;
    /* A handle is in the sample when the bits of its hash under mask are 0: one handle in mask + 1.
     * events counts the uses that the weights were learned from. */
    uint64_t mask; /* of the mixed handle: 0 in the sample */
    double events;
    double worth; /* uses that found and exposed stand for, once scaled; before shares of one */
    bool scaled;
} reuse_model;

/*
 * An engine. The parts, from top to bottom: time and what was learned of reuse; the order of the
 * victims; what writing costs and how long bytes stay; the entry table; the pool of options with
 * its ladders; tenants and priors; the ledger; the indexes of victims; the counters.
 *
 * Every pointer belongs to the engine, comes from the configured allocator through engine_resize,
 * and grows at the start of a public call alone.
 */
struct kvt_policy {
    const policy_ops *ops;
    kvt_policy_config config;
    uint64_t capacity[TIERS];

    /* The clock. All times inside are seconds since base_ns, so that doubles keep their digits for
     * years. */
    uint64_t base_ns; /* first time seen; t counts from here */
    uint64_t now_ns;  /* latest time seen: time never steps back */
    bool started;
    reuse_model *model; /* NULL unless the policy learns */
    /* The clock is never a whole unit of the order ahead of `advanced`, so keys of the present lie
     * near the middle of each ring. */
    double advanced; /* time in units of the order when the buckets were last moved up */
    /* log2 of what steps lose per byte: as all entries are sorted by it, and lately. */
    double step_price[TIERS][STEP_KINDS], step_price_lately[TIERS][STEP_KINDS];
    double step_priced[TIERS][STEP_KINDS]; /* when it was set, in units of the order */
    uint32_t sweep;                        /* where sorting all entries anew stands, */
    uint32_t sweep_left;                   /* and how many are left since a price moved */

    /* Writes that were planned, and what they cost the next one (write_queue.c). The queue falls by
     * one second each second and never below 0. */
    double write_byte_s[TIERS];  /* seconds of writing a byte; 0 without a bandwidth */
    double write_queue_s[TIERS]; /* seconds of planned writes that have not had their time yet */
    double write_price[TIERS];   /* what a byte costs, by how busy the tier is */
    double write_busy[TIERS];    /* share of the time that moves wrote, smoothed */
    uint64_t write_seen[TIERS];  /* bytes written when that was last looked at, */
    uint64_t write_ns;           /* and when */
    /* How long bytes stay in a tier: left counts all bytes that were released there, and the
     * smoothed sums give stay by Little's law. */
    uint64_t left[TIERS];       /* bytes that have left each tier so far */
    uint64_t left_seen[TIERS];  /* the same when that was last looked at */
    double left_bytes[TIERS];   /* of them, smoothed, */
    double left_seconds[TIERS]; /* in so many seconds, smoothed alike; 0 before any has left */
    double stay[TIERS];         /* seconds that a byte stays there, by these */
    /* The loss per byte of the last step in each tier, write and room included, and its time. */
    double shadow_price[TIERS];
    uint64_t shadow_price_ns[TIERS];

    /* The pool of entries and its hash table. A slot below entries_used is free, a ghost or held;
     * held + ghost_count + free slots = entries_used. */
    entry *entries;
    uint32_t entries_capacity;
    uint32_t entries_used; /* slots ever used; the free ones are chained through `older` */
    uint32_t entries_free;
    uint32_t *buckets; /* open addressing, linear probing; NIL is empty */
    uint32_t buckets_capacity;
    uint32_t held;
    recency_list ghosts;
    uint32_t ghost_count;

    /* The pool of options. options_take takes a run, for a ladder or for all entries with equal
     * options; a run that was released waits in the chain of its length. runs finds the runs of
     * entries by what they say: open addressing, at most half full, NIL is empty. */
    stored_option *options;
    uint32_t options_capacity;
    uint32_t options_used;
    double least_base_cost; /* no option has a lower one; some that did may be gone */
    uint32_t options_free[KVT_OPTIONS_MAX]; /* chains of released runs by length */
    uint32_t *runs;
    uint32_t runs_capacity; /* a power of two */
    uint32_t run_count;

    /* Ladders and tenants are named by number from outside and are never released one by one, so a
     * number stays valid as long as the engine lives. */
    ladder *ladders;
    uint32_t ladders_capacity;
    uint32_t ladder_count;
    tenant *tenants; /* tenant_count of them; [0] always exists */
    uint32_t tenant_count;
    float *priors; /* by class, in uses; prior_count of them */
    uint32_t prior_count;

    /* The ledger (ledger.c). used <= 2 * capacity, and releasing <= used. */
    move_in_flight *in_flight;
    uint32_t in_flight_capacity; /* a power of two: move id modulo it is the slot */
    uint32_t in_flight_count;
    uint64_t next_id;
    uint64_t used[TIERS];      /* stored and reserved */
    uint64_t releasing[TIERS]; /* share of used that moves in flight will release */

    hint_table hints;
    copy_table copies; /* that somebody else keeps */
    /* The indexes of victims. A policy uses heaps, groups or lists by its flags; the others stay
     * empty. */
    heap heaps[TIERS];
    victims **groups; /* group_count of them; [0] everybody without a share */
    uint32_t group_count;
    recency_list lists[TIERS];
    void *rival; /* state of a policy of replay/rivals/ */
    uint64_t recency;
    uint32_t hand; /* where the next tick goes on looking for promotions */

    kvt_policy_stats counters; /* the running counts only; explain.c fills the rest */
};

/* entries.c */
/* All tables are asked for at open; entries_close may follow an entries_open that has failed. */
bool entries_open(kvt_policy *policy);
void entries_close(kvt_policy *policy);
/* Everything below but add_group cannot fail once reserve has made room, so a public call reserves
 * before it changes anything. */
bool entries_reserve(kvt_policy *policy); /* room for one entry more */
/* Look-up and creation by handle. entries_add gives the handle a slot in state GHOST, outside the
 * list of ghosts; the caller has looked the handle up and reserved room. */
uint32_t entries_find(const kvt_policy *policy, uint64_t handle); /* NIL when unknown */
uint32_t entries_add(kvt_policy *policy, uint64_t handle);        /* a ghost outside the FIFO */
/* The life of a slot: a ghost becomes held, a held one leaves and is remembered or not, a ghost is
 * forgotten or becomes the last to be forgotten. hold takes the options from the caller's
 * description and links the entry under its parent. leave needs an entry without a move in flight
 * and gives its options back. */
void entries_hold(kvt_policy *policy, uint32_t index, const kvt_policy_entry *given);
void entries_leave(kvt_policy *policy, uint32_t index, bool remember);
void entries_drop_ghost(kvt_policy *policy, uint32_t index);
void entries_refresh_ghost(kvt_policy *policy, uint32_t index);
/* Counts an entry in (by 1) or out (by -1) of the numbers by tier: around every change of its
 * option. */
void engine_tally(kvt_policy *policy, const entry *e, int by);
/* Every call that brings a time sets the clock with it before it does anything else. */
void engine_set_clock(kvt_policy *policy, uint64_t now_ns);
/* All memory of the engine comes through here; bytes 0 releases. */
void *engine_resize(kvt_policy *policy, void *memory, size_t old_bytes, size_t bytes);
/* Lists of recency use link[0] of their entries; an entry is in one of them at most. The state and
 * `listed` of an entry say which. */
void list_add_newest(kvt_policy *policy, recency_list *list, uint32_t index);
void list_remove(kvt_policy *policy, recency_list *list, uint32_t index);

/* option_runs.c */
bool options_open(kvt_policy *policy);
void options_close(kvt_policy *policy);
/* Room for a run more; the one call besides open that can fail. */
bool options_reserve(kvt_policy *policy, uint32_t count);
/* An entry has the options of this run, which was taken and filled. Returns the run that the entry
 * is a user of now: this one, or an older one that says the same. */
uint32_t options_join(kvt_policy *policy, uint32_t first, uint32_t count);
/* An entry has them no longer. */
void options_leave(kvt_policy *policy, uint32_t first, uint32_t count);
/* Takes an entry's options out of sharing, to be changed and joined again: the run itself, or a
 * copy when it has more users, for which room was made. */
uint32_t options_part(kvt_policy *policy, uint32_t first, uint32_t count);
/* Copies options as the public calls give them, of entries and of ladders. */
void options_copy(stored_option *to, const kvt_option *options, uint32_t count);
/* Takes a run of that many options out of the pool, which options_reserve has made room for. The
 * run is the taker's until it is given back; a ladder keeps its own for good. */
uint32_t options_take(kvt_policy *policy, uint32_t count);
/* Brings options up to date with weights and capacities. */
void options_refresh(kvt_policy *policy, uint32_t first, uint32_t count);
/* Weights or capacities have changed: refreshes all options and calls index on every held entry. */
void entries_index_all(kvt_policy *policy);
/* Adds a group of victims; false without memory. */
bool entries_add_group(kvt_policy *policy);

/* remembered.c */
/* keep fills the points of an entry that leaves, from options that are still its own; option turns
 * one of them back into a stored option whose bytes all lie in one tier. */
void remembered_keep(const kvt_policy *policy, entry *e); /* before the options are given back */
void remembered_option(const kvt_policy *policy, const entry *e, uint32_t point,
                       stored_option *out);

/* advise.c */
/* open makes tenant 0, who stands for every caller without a tenant; close releases ladders,
 * tenants and priors, also after an open that failed. exclude works out which options the tenant's
 * limits rule out: it runs whenever options or limits change. knows_tenant makes room for a
 * tenant's number. */
bool advise_open(kvt_policy *policy);
void advise_close(kvt_policy *policy);
void advise_exclude(kvt_policy *policy, entry *e);
bool advise_knows_tenant(kvt_policy *policy, uint32_t number);  /* false without memory */
const char *policy_tier_fault(const kvt_policy_config *config); /* NULL when the tiers are sound */
kvt_status policy_options_check(const kvt_option *options, uint32_t count);

/* reuse.c: uses per second, and log2 of the count in the order in use, as of the engine's base. */
extern const double reuse_half_lives[HALF_LIVES];
/* Seconds from the engine's first moment to another. */
double reuse_seconds(const kvt_policy *policy, uint64_t at_ns);
/* 2^(-seconds / h) of each half life. */
void reuse_decays(double seconds, double decay[HALF_LIVES]);
/* The count of one half-life, unpacked, as of the entry's last use. */
double reuse_count(const entry *e, int k);
/* Counts `weight` uses now; 0 brings the counters up to the time alone. It is the only call that
 * changes the counters of a known entry by a use. */
void reuse_use(kvt_policy *policy, entry *e, double weight);
/* Gives an entry that was stored before the engine began a first use one half-life ago. */
void reuse_adopt(kvt_policy *policy, entry *e);
/* From now on the entry has a plain counter, with this rate now. */
void reuse_set_rate(kvt_policy *policy, entry *e, double uses_per_s);
/* Brings the victims' orders up to the clock. */
void reuse_set_now(kvt_policy *policy);
/* Keeps f(parent) >= f(child): raises `up` to its child where it is lower. */
bool reuse_raise(kvt_policy *policy, entry *up, const entry *child);
double reuse_log_count(const kvt_policy *policy, const entry *e); /* of a plain counter */
/* The rate of reuse_look alone, in uses per second. */
double reuse_rate(const kvt_policy *policy, const entry *e);
/* An entry's rate now, how soon it falls by half, and how many uses are to come in all. */
typedef struct reuse_now {
    double rate;
    double half_life;
    double uses;
} reuse_now;
reuse_now reuse_look(const kvt_policy *policy, const entry *e);
reuse_now reuse_look_unhinted(const kvt_policy *policy, const entry *e); /* by its uses alone */

/* reuse_model.c */
/* open does nothing for a policy that learns nothing; false without memory. close releases what
 * open made. */
bool reuse_model_open(kvt_policy *policy);
void reuse_model_close(kvt_policy *policy);
/* Puts what the entry lets expect into the model's open sums (sign 1), or takes it out (-1): around
 * every change of its counters. */
void reuse_expose(kvt_policy *policy, entry *e, double sign);
/* Nothing will be known of its uses from now on. */
void reuse_forget(kvt_policy *policy, entry *e);
/* A use of a known entry, before it is counted. */
void reuse_learn(kvt_policy *policy, const entry *e);

/* ledger.c */
/*
 * A move is in flight from ledger_begin to ledger_end. Begin reserves the target bytes, end
 * releases the source (done) or the target (not done). ledger_correct puts the bytes right that
 * were really stored, which the caller has found to fit.
 */
/* reserve makes room for so many moves beside those in flight and is the one call that can fail.
 * find returns NULL for an id that has ended. fits says whether bytes fit beside all that is stored
 * and reserved. */
bool ledger_reserve(kvt_policy *policy, uint32_t moves);
move_in_flight *ledger_find(kvt_policy *policy, uint64_t id);
move_in_flight *ledger_begin(kvt_policy *policy, uint32_t index, uint8_t to);
void ledger_correct(kvt_policy *policy, move_in_flight *move, const uint64_t actual[TIERS]);
void ledger_end(kvt_policy *policy, move_in_flight *move, bool done);
bool ledger_fits(const kvt_policy *policy, const uint64_t bytes[TIERS]);

/* write_queue.c */
/* open sets the prices of an idle engine; set_speed and pass keep them true when a bandwidth
 * changes or time passes. */
void write_queue_open(kvt_policy *policy);
void write_queue_set_speed(kvt_policy *policy, int tier); /* to what the tier's facts say now */
/* Adds the seconds of a move's writes (by 1.0), or takes them out again (-1.0). */
void write_queue_add(kvt_policy *policy, const move_in_flight *move, double by);
void write_queue_pass(kvt_policy *policy, double passed);

/* tentative.c */
/*
 * begin, then add and cut as often as wanted, then end, which makes the plan the caller's. exclude
 * and include bracket work during which an entry must not be a victim; skip does so until the end.
 * cut takes back all moves after the first `count` and restores what was spent.
 *
 * begin returns false, and nothing is to be ended, when no move could be made. add returns false
 * and changes nothing when the move passes a bound.
 */
bool tentative_begin(kvt_policy *policy, tentative_plan *work, kvt_plan *plan);
bool tentative_add(kvt_policy *policy, tentative_plan *work, const step *move);
void tentative_exclude(kvt_policy *policy, uint32_t index);
void tentative_include(kvt_policy *policy, uint32_t index);
void tentative_skip(kvt_policy *policy, tentative_plan *work, uint32_t index);
void tentative_cut(kvt_policy *policy, tentative_plan *work, uint32_t count, double spent);
void tentative_end(kvt_policy *policy, tentative_plan *work);
/* fits: room in every tier and in the tenant's share, as the plan stands now. fits_share: the share
 * alone. */
bool tentative_fits(const kvt_policy *policy, const tentative_plan *work, uint32_t index,
                    uint8_t option);
bool tentative_fits_share(const kvt_policy *policy, uint32_t index, uint8_t option);

/* room.c: true when room[tier] >= need. Complete steps stay in the plan when it fails. The caller
 * cuts the plan back when half of the room is no use to it. */
bool room_make(kvt_policy *policy, tentative_plan *work, int tier, int64_t need);
/* The same in every tier of an option, from the top: room below may be used up from above. */
bool room_make_for(kvt_policy *policy, tentative_plan *work, uint32_t index, uint8_t option);

/* recency.c: what policies with one variant share */
/* Members of policy_ops that several rivals share. option_at finds the configured variant in one
 * tier, step_down the move of a victim to the next tier that takes it. */
void lru_remove(kvt_policy *policy, uint32_t index);
void lru_index(kvt_policy *policy, uint32_t index);
void lru_touch(kvt_policy *policy, uint32_t index);
bool lru_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out);
uint8_t lru_option_at(const kvt_policy *policy, const entry *e, int tier);
step lru_step_down(const kvt_policy *policy, uint32_t index, int tier);
bool lru_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index, int tier,
                  step *out);
bool lru_place(kvt_policy *policy, tentative_plan *work, uint32_t index);
void lru_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void lru_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan);
void none_tick(kvt_policy *policy, tentative_plan *work);

/* recency.c, utility.c */
extern const policy_ops policy_none_ops;
extern const policy_ops policy_lru_ops;
extern const policy_ops policy_utility_ops;

/* Policies that a program adds to the library's own, to compare with: ends with NULL. The library
 * has none; programs that are linked with replay/rivals/ do. */
extern const policy_ops *const policy_rivals[] __attribute__((weak));

/* Says whether an entry has one plain counter: in policies that learn nothing, and where a
 * caller has set the rate. */
static inline bool reuse_is_plain(const kvt_policy *policy, const entry *e)
{
    return !policy->ops->learns || e->rate_set;
}

/* The pointer is valid until the pool grows. */
static inline entry *entry_at(const kvt_policy *policy, uint32_t index)
{
    assert(index < policy->entries_capacity);
    return &policy->entries[index];
}

/* All of an entry is wanted soon: its lines come side by side instead of one after the other. */
static inline void entry_prefetch(const kvt_policy *policy, uint32_t index)
{
    const char *first = (const char *)entry_at(policy, index);
    __builtin_prefetch(first, 1);
    __builtin_prefetch(first + 64, 1);
    __builtin_prefetch(first + sizeof(entry) - 1, 1);
}

/* A stored option, 1..option_count-1. Option NONE has no stored option: a caller handles it
 * first. */
static inline stored_option *entry_option(const kvt_policy *policy, const entry *e, uint8_t option)
{
    assert(option != KVT_OPTION_NONE && option < e->option_count);
    return &policy->options[e->options + option - 1u];
}

/* Stored bytes of an option in one tier; 0 for NONE. The present option counts with the bytes that
 * were really stored, every other one with its prediction. */
static inline uint64_t entry_bytes(const kvt_policy *policy, const entry *e, uint8_t option,
                                   int tier)
{
    if (option == KVT_OPTION_NONE) return 0;
    return option == e->current ? e->bytes[tier] : entry_option(policy, e, option)->bytes[tier];
}

/* Of them, what stays in place when the entry comes there from where it is. Only an option that
 * names the present one in kept_from keeps any. */
static inline uint64_t entry_kept(const kvt_policy *policy, const entry *e, uint8_t to, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    if (to == KVT_OPTION_NONE || e->current == KVT_OPTION_NONE) return 0;
    const stored_option *o = entry_option(policy, e, to);
    if ((o->kept_from >> e->current & 1) == 0) return 0;
    return o->bytes[tier] < e->bytes[tier] ? o->bytes[tier] : e->bytes[tier];
}

/* The bytes that a move there has to reserve in a tier. A move is planned when this fits; the bytes
 * of the source are released at its end. */
static inline uint64_t entry_need(const kvt_policy *policy, const entry *e, uint8_t to, int tier)
{
    return entry_bytes(policy, e, to, tier) - entry_kept(policy, e, to, tier);
}

/* The same of a stored option in every tier. */
static inline void entry_needs(const kvt_policy *policy, const entry *e, uint8_t to,
                               uint64_t need[TIERS])
{
    const stored_option *o = entry_option(policy, e, to);
    bool keeps = e->current != KVT_OPTION_NONE && (o->kept_from >> e->current & 1) != 0;
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t kept = o->bytes[tier] < e->bytes[tier] ? o->bytes[tier] : e->bytes[tier];
        uint64_t bytes = to == e->current ? e->bytes[tier] : o->bytes[tier];
        need[tier] = keeps ? bytes - kept : bytes;
    }
}

/* The cost of a byte written to a tier: write_queue_pass, and the queue of this moment. The unit is
 * seconds of a request per byte. */
static inline double engine_write_price(const kvt_policy *policy, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    return policy->write_price[tier] +
           BACKGROUND_SHARE * policy->write_queue_s[tier] * policy->write_byte_s[tier];
}

/* Seconds that all of an entry's quality is worth to one use: its share of the request's. */
static inline double entry_alpha(const kvt_policy *policy, const entry *e)
{
    return policy->tenants[e->tenant].limits.alpha_seconds * (double)e->share;
}

/* Seconds that one use of a option costs, quality included; alpha is the entry's. The loss of one
 * use never counts as more than all of its quality. */
static inline double option_cost(const stored_option *o, const entry *e, double alpha)
{
    assert(alpha >= 0.0);
    if (o->loss <= 0.0) return o->base_cost;
    double loss = (double)e->sensitivity * o->loss;
    return o->base_cost + alpha * (loss < 1.0 ? loss : 1.0);
}

/* The same of an option: U = -f * cost. Decisions and explanations weigh an option by this
 * function; the bound repeats the sum over its own arrays. */
static inline double entry_cost(const kvt_policy *policy, const entry *e, uint8_t option)
{
    if (option == KVT_OPTION_NONE)
        return policy->copies.notes != NULL ? elsewhere_cost(policy, e)
                                            : (double)e->recompute_seconds;
    return option_cost(entry_option(policy, e, option), e, entry_alpha(policy, e));
}

/* The highest tier that holds bytes of an option; TIERS when none does. */
static inline int option_home(const stored_option *o)
{
    for (int tier = 0; tier < TIERS; tier++)
        if (o->bytes[tier] != 0) return tier;
    return TIERS;
}

/* Only these are ever in a plan, and only these are in the victim index. An entry in flight or
 * pinned stays where it is until the move ends or the pin is gone. */
static inline bool entry_is_movable(const entry *e)
{
    return e->state == POLICY_ENTRY_HELD && e->current != KVT_OPTION_NONE && e->move == NIL &&
           e->pins == 0;
}

/* The memory where the heap or the buckets of a tier keep the places of entries. */
static inline heap_places engine_places(const kvt_policy *policy, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    unsigned char *first = (unsigned char *)policy->entries;
    return (heap_places){first + offsetof(entry, link) + sizeof(bucket_link) * (size_t)tier,
                         sizeof(entry)};
}

/* Returns the same places as the buckets see them. */
static inline bucket_links engine_links(const kvt_policy *policy, int tier)
{
    heap_places places = engine_places(policy, tier);
    return (bucket_links){places.first, places.stride};
}

#endif
