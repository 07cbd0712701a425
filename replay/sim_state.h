/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_state.h - one policy on one host of a simulation; private to simulator.c and the sim_ files.
 *
 * Virtual time is nanoseconds from the workload's start. One thread.
 */
#ifndef REPLAY_SIM_STATE_H
#define REPLAY_SIM_STATE_H

#include "bound.h"
#include "random.h"
#include "replay.h"
#include "replay/rivals/dual.h"

#define SIM_PLAN_MOVES  256u
#define SIM_BLEND_MASKS (1u << (KVT_TIER_COUNT - 1)) /* a bit per tier: its second variant */

/* The regrets so far. An epoch is a tenth of the counted requests. */
typedef struct sim_regret {
    bound_source source;
    uint64_t *first_seen; /* by block: request; UINT64_MAX = none */
    uint32_t *item;       /* by block: stay of the present window + 1, or 0 */
    uint64_t skip;
    uint64_t next; /* request at which the next epoch begins; UINT64_MAX = none */
    uint32_t epoch;
    double solver_s, counters_s, foresight_s;   /* sums */
    double counters_stake_s, foresight_stake_s; /* of the duals behind them */
    bool solved;                                /* the policy has a solver: bound is */
    dual_bound bound; /* the last one, from whose prices the next search starts */
    double spent_s;   /* wall seconds, which are no part of the replay's own */
} sim_regret;

/* A bound run: the utility engine with true future rates. */
typedef struct sim_oracle {
    bool on;
    uint64_t
        *first; /* by block: its uses, as requests, are uses[first[b]] .. uses[first[b + 1] - 1] */
    uint32_t *uses;
    double horizon_s;
    uint64_t refresh_ns; /* when all rates are told anew */
} sim_oracle;

/* State of the hints that are given about the future. */
typedef struct sim_hints {
    bool on;
    replay_random random;
    uint64_t *next;  /* by request: the next one of its session; UINT64_MAX = none */
    uint32_t *owner; /* by block: the session that used it so far, or a mark */
    double pause_s;  /* mean, between two requests of a session */
} sim_hints;

typedef struct sim_state {
    const replay_options *options;
    const replay_workload *workload;
    kvt_policy *policy;
    replay_result *result;

    uint8_t *stored; /* by block: the option that it has been written in; KVT_OPTION_NONE = none */
    uint64_t used_bytes[KVT_TIER_COUNT]; /* of these records */
    double *prefill_s; /* seconds from 0 to each block boundary of the longest prefix */
    kvt_option whole[KVT_OPTIONS_MAX]; /* options of a whole block */
    uint32_t *held_tokens;             /* by block, of partial blocks charged their own; or NULL */
    kvt_option exact[KVT_OPTIONS_MAX]; /* of a partial block charged its own tokens */
    uint32_t option_count;
    uint8_t tier_of[KVT_OPTIONS_MAX]; /* the tier that an option's reads count for */
    uint32_t ladder;                  /* of whole blocks, registered with the policy; 0 = none */
    uint32_t blend_ladder[SIM_BLEND_MASKS];
    uint8_t blend_option[SIM_BLEND_MASKS][KVT_TIER_COUNT]; /* the policy's index to ours */
    float *inherited; /* by block: loss of the prefix that it was computed on */
    uint64_t read_free_ns[KVT_TIER_COUNT]; /* when a tier has read all that it was asked for */
    uint64_t write_free_ns[KVT_TIER_COUNT];
    float *carried;     /* by block: losses of lossy variants that its present one was coded from */
    float *sensitivity; /* by block: factor on losses; NULL: 1 */
    float *known;       /* and what the policy knows of it */

    kvt_move moves[SIM_PLAN_MOVES];
    kvt_plan plan;
    FILE *plan_log;

    uint32_t sample_every; /* policy calls between two that are timed */
    uint32_t until_sample;
    uint64_t *samples_ns;
    size_t sample_count, sample_room;
    bool counting;  /* past the warm-up */
    double saved_s; /* sum over the counted requests */
    sim_regret regret;
    sim_oracle oracle;
    sim_hints hints;
    struct sim_remote *remote; /* NULL: no other host has anything */
    struct sim_link *link;     /* this host's part of it */
    bool backwards;            /* a request's blocks are touched last to first */
} sim_state;

/* One request on its way through the simulator. */
typedef struct sim_visit {
    const replay_request *request;
    const uint32_t *prefix;
    uint64_t start_ns;
    uint32_t run;    /* leading resident blocks */
    uint32_t loaded; /* of them, loaded; the rest is recomputed */
    double load_s;   /* from the start until the last loaded block is decoded */
    double prefill_s;
    double service_s;
    double saved_s; /* against computing everything, without loss */
    double loss;    /* mean over the loaded tokens, which the computed ones inherit */
    uint8_t
        *found; /* by position, of the loaded blocks: the option that was read; KVT_OPTION_NONE =
                       copied from a put's staging; or SIM_FOUND_SHARED */
    uint32_t local; /* of the run, up to the first block that the shared tier alone has */
    bool probed;    /* has asked the shared tier */
} sim_visit;

/* Options of a block of so many tokens, whose read_bytes are what its records take; the seconds of
 * NONE are not the block's. Valid until the next call. */
const kvt_option *sim_options(sim_state *sim, uint32_t tokens);

/* Tokens that a request's block holds. */
static inline uint32_t sim_block_tokens(const sim_state *sim, const replay_request *request,
                                        uint32_t position)
{
    uint32_t unit = sim->workload->block_tokens;
    uint32_t rest = request->input_tokens - position * unit;
    return rest < unit ? rest : unit;
}

/* The same of the record that a block has, or would have. */
const kvt_option *sim_block_options(sim_state *sim, uint32_t block);

/* Seconds of loading and computing together. Layer by layer, layer n computes while n + 1 loads:
 * nothing hides the first layer's load, nor the last layer's computing. */
static inline double sim_together(const replay_options *options, double load_s, double compute_s)
{
    if (!options->overlap) return load_s + compute_s;
    double share = options->layers > 0 ? 1.0 / (double)options->layers : 0.0;
    double loads_s = load_s + share * compute_s, computes_s = compute_s + share * load_s;
    return loads_s > computes_s ? loads_s : computes_s;
}

static inline uint64_t sim_handle(uint32_t block)
{
    return (uint64_t)block + 1;
}

static inline uint64_t sim_to_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9 + 0.5);
}

/* The bytes of the record at a move's target, by tier; a plan reserves a little more where they are
 * estimated. NULL of an eviction. Valid until the next call of sim_options. */
const uint64_t *sim_record_bytes(sim_state *sim, const kvt_move *move);

/* Brackets one policy call. Every sample_every-th is timed. */
uint64_t sim_call_begin(sim_state *sim);
void sim_call_end(sim_state *sim, uint64_t begin_ns);

/* Offers a block that the request has computed to the policy, whose answer it returns; the plan is
 * the simulator's present one. */
KVT_NODISCARD kvt_status sim_offer(sim_state *sim, const sim_visit *visit, uint32_t position,
                                   uint64_t now_ns);

/* Seconds to compute what the first `blocks` blocks do not give. The last token is always
 * computed: its output is the first token. whole_s: of computing everything. */
double sim_prefill_after(const sim_state *sim, const replay_request *request, uint32_t blocks,
                         double whole_s);

/* Notes a committed move: the variant of its block, bytes, peaks and losses. */
void sim_note_stored(sim_state *sim, const kvt_move *move);

/* One move with its outcome, into hash, counters and plan log. */
void sim_log_move(sim_state *sim, uint64_t now_ns, const kvt_move *move, bool committed);

/* Makes all that a policy on one host needs, and the policy; release also after an error. */
KVT_NODISCARD kvt_status sim_open(sim_state *sim, const char *policy, char *message,
                                  size_t message_size);
void sim_release(sim_state *sim);
/* Closes the plan log. Whether all of it was written, or there is none. */
bool sim_close_log(sim_state *sim);
/* Adds the policy's counters to the result. */
void sim_add_policy(sim_state *sim);
KVT_NODISCARD kvt_status sim_open_policy(sim_state *sim, const char *name, char *message,
                                         size_t message_size);

/* Which variants a blend gives a block, its ladders, and an option of the policy among ours. */
uint32_t sim_blend_mask(const sim_state *sim, uint32_t block);
uint32_t sim_blend_options(const sim_state *sim, uint32_t mask, const kvt_option *all,
                           kvt_option out[KVT_TIER_COUNT]);
KVT_NODISCARD kvt_status sim_blend_open(sim_state *sim);
uint8_t sim_move_option(const sim_state *sim, uint32_t block, uint8_t option);

/* sim_quality.c */
KVT_NODISCARD kvt_status sim_quality_open(sim_state *sim);
void sim_quality_close(sim_state *sim);
void sim_quality_sum(const sim_state *sim, sim_visit *visit);
void sim_quality_move(sim_state *sim, const kvt_move *move); /* a committed one */

/* sim_hints.c: hints of a request's blocks, when it has been served. open says in the message what
 * is missing. */
KVT_NODISCARD kvt_status sim_hints_open(sim_state *sim, char *message, size_t message_size);
void sim_hints_close(sim_state *sim);
KVT_NODISCARD kvt_status sim_hints_give(sim_state *sim, const sim_visit *visit, uint64_t now_ns);

/* sim_prefetch.c: offers a block of a waiting request, which lies in this option, for a move up to
 * DRAM. The plan is the simulator's present one, and empty when the policy declines. */
KVT_NODISCARD kvt_status sim_prefetch_offer(sim_state *sim, uint32_t block, uint8_t option,
                                            uint64_t now_ns);

/* Fills the result's explanations, when the options ask for some. */
KVT_NODISCARD kvt_status sim_explain(sim_state *sim);

/* sim_regret.c: what is known before the run, at the start of an epoch, and in the end. */
KVT_NODISCARD kvt_status sim_regret_open(sim_state *sim);
void sim_regret_close(sim_state *sim);
KVT_NODISCARD kvt_status sim_regret_look(sim_state *sim, uint64_t request, uint64_t now_ns);
void sim_regret_finish(sim_state *sim);

/* Uses of a block within the horizon after a request; what the policy is told of
 * them, less those that it is about to count itself; and of all blocks it holds, now and then. */
KVT_NODISCARD kvt_status sim_oracle_open(sim_state *sim);
void sim_oracle_close(sim_state *sim);
uint32_t sim_oracle_uses(const sim_state *sim, uint32_t block, uint64_t request);
KVT_NODISCARD kvt_status sim_oracle_tell(sim_state *sim, uint32_t block, double uses);
KVT_NODISCARD kvt_status sim_oracle_refresh(sim_state *sim, uint64_t request, uint64_t now_ns);

#endif
