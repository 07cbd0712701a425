/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the inside of the decision engine: its state, the policy table, costs of options.
 *
 *     policy.c     life of an engine, and the calls on entries: arguments, entries, ledger, ops
 *     advise.c     the calls that update what it knows: clock, ladders, tenants, hints, copies
 *     recost.c     new seconds and losses of a stored entry's options
 *     entries.c    handle -> entry, prefix tree, remembered entries, memory
 *     option_runs.c  the pool of options: entries with equal options share them
 *     remembered.c what is kept of the options of an entry that left
 *     reuse.c      the reuse counters and the rates that they give
 *     reuse_model.c  what the counters mean: weights of terms, learned from a sample
 *     reuse_age.c  what is due by the age of a last use, and how many uses follow one
 *     hints.c      hints of next uses, and how far they are trusted; elsewhere.c copies
 *     ledger.c     moves in flight and bytes per tier
 *     write_queue.c  what waits to be written to each tier: write prices, how long bytes stay
 *     tentative.c  a tentative plan: moves are reserved as they are added, or taken back
 *     room.c       makes room in a tier by the policy's steps, lowest tier first
 *     recency.c    none, lru
 *     utility.c    AdaptCache's greedy with reuse counters; utility_improve.c its promotions
 *     plan.c       plans as data: the check and the text of a move
 *     explain.c    explanations and statistics; recall.c  what the next engine is to know of uses
 *
 * Inside the engine a tier is a number 0..2 (HBM, DRAM, SSD), one less than its kvt_tier: the
 * virtual tier NONE holds no bytes.
 * Pointers to entries and options are valid until the next entries_reserve or options_reserve,
 * which run only at the start of a public call. Thread rule: the caller's lock, as in policy.h.
 */
#ifndef POLICY_ENGINE_H
#define POLICY_ENGINE_H

#include "base/number/number.h"
#include "base/struct_size.h"
#include "policy/advise.h"
#include "policy/elsewhere.h"
#include "policy/entries.h"
#include "policy/ledger.h"
#include "policy/reuse_age.h"
#include "policy/tentative.h"
#include "policy/trial.h"

#include <assert.h>

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
    policy_trial trial;
    uint64_t capacity[TIERS];

    /* The clock. All times inside are seconds since base_ns, so that doubles keep their digits for
     * years. */
    uint64_t base_ns; /* first time seen; t counts from here */
    uint64_t now_ns;  /* latest time seen: time never steps back */
    bool started;
    struct reuse_model *model; /* NULL unless the policy learns */
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
    /* Bytes that stay free in each tier for changes inside it: the largest variant but one. */
    uint64_t staging[TIERS];
    bool staging_short[TIERS]; /* the tier is too small for that: less or nothing stays free */
    /* The loss per byte of the last step in each tier, write and room included, and its time. */
    double shadow_price[TIERS];
    uint64_t shadow_price_ns[TIERS];

    /* The pool of entries and its hash table. A slot below entries_used is free, a ghost or held;
     * held + ghost_count + free slots = entries_used. */
    entry *entries;
    uint32_t entries_capacity;
    uint32_t entries_used; /* slots ever used; the free ones are chained through `older` */
    uint32_t entries_free;
    float *swept; /* by SWEPT_SLOTS slots: the second up to which reuse_model.c has counted them */
    size_t swept_count;
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
    uint64_t withheld[TIERS];  /* of the capacity, by the caller; beside used */

    lives lives; /* uses that follow one (reuse_age.c) */
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

    kvt_refusal refusal;       /* why the last new entry was refused */
    kvt_policy_stats counters; /* the running counts only; explain.c fills the rest */
};

/* Policies that a program adds to the library's own, to compare with: ends with NULL. The library
 * has none; programs that are linked with replay/rivals/ do. */
extern const policy_ops *const policy_rivals[] __attribute__((weak));

/* All memory of the engine comes through here: the caller's allocator works as realloc, and
 * old_bytes lets one without headers work; bytes 0 releases. */
static inline void *engine_resize(kvt_policy *policy, void *memory, size_t old_bytes, size_t bytes)
{
    assert(bytes != 0 || memory != NULL);
    const kvt_allocator *allocator = &policy->config.allocator;
    return allocator->resize(allocator->context, memory, old_bytes, bytes);
}

/* Bytes that plans may still give away in a tier; below 0 while it lacks some. */
static inline int64_t policy_room(const kvt_policy *policy, int tier)
{
    return (int64_t)policy->capacity[tier] - (int64_t)policy->used[tier] -
           (int64_t)policy->withheld[tier];
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

/* Seconds that all of an entry's quality is worth to one use: its share of the request's, or so
 * many times what computing the entry costs. */
static inline double entry_alpha(const kvt_policy *policy, const entry *e)
{
    const kvt_tenant *limits = &policy->tenants[e->tenant].limits;
    if (limits->alpha_seconds > 0.0) return limits->alpha_seconds * (double)e->share;
    return limits->alpha_prefills * (double)e->recompute_seconds;
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

/* Bytes that stay free in a tier when an entry takes room there. An entry that is in the tier
 * already only changes, which is what they are kept for. */
static inline uint64_t entry_staging(const kvt_policy *policy, const entry *e, int tier)
{
    return e->current != KVT_OPTION_NONE && e->bytes[tier] > 0 ? 0 : policy->staging[tier];
}

/* An entry's held children. */
static inline uint32_t entry_children(const entry *e)
{
    return e->below[0] + e->below[1] + e->below[2];
}

/* Whether a child is in a tier above this one, or on its way there. */
static inline bool entry_has_child_above(const entry *e, int tier)
{
    for (int above = 0; above < tier; above++)
        if (e->below[above] > 0) return true;
    return false;
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
