/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - run a workload against policies and report what came out. The room's API for tools.
 *
 *     replay_options options;                     replay_options_read(config, &options, ...);
 *     replay_workload workload;                   replay_workload_read(path, ...) or _generate(...)
 *     replay_result result;                       replay_run_sim(&options, &workload, "lru", ...)
 *     replay_print_json(&report, stdout);         or _text, _html
 *     replay_result_free(&result);                replay_workload_free(&workload);
 *
 * The simulation models, in virtual time:
 *   - `servers` prefill instances behind one FIFO queue. A request holds its server from the start
 *     of its service to its first token; decoding runs elsewhere.
 *   - Each tier has one read queue and one write queue, affine: seconds per request + bytes over
 *     bandwidth. Reads queue behind reads of the tier, writes behind writes. Tiers overlap.
 *   - A request gets the leading stored blocks one after the other, up to the point that makes the
 *     first token earliest; the rest is recomputed. Without overlap the service time is load +
 *     prefill. With overlap (replay.overlap) it is that of a pipeline of replay.layers layers, each
 *     computing while the next one loads: the longer of load and prefill, and one layer's share of
 *     the other; without end of layers the maximum. Decoding is added to the load.
 *   - With replay.layered the SSDs are one drive that reads and writes over one bus, in the order
 *     store.io_order (drive_model.h): a layer computes when it has come, and the window of a
 *     layered load lets two more be on their way. Blocks are chosen by the estimates above.
 *   - What a request has computed exists for others from its first token on, in the put's staging,
 *     which is bounded (docs/STORE.md, Put): four executors and a background round carry moves out
 *     one by one, and a move is committed when it has been written.
 *   - A promotion from SSD leaves its record there as long as there is room (store.copies).
 *   - With replay.prefetch a request that has to wait offers the blocks of its leading run that lie
 *     below DRAM for a move up, when it arrives; the policy takes what is worth it.
 *
 * With several hosts, or beside a shared tier, each host has servers, queues, tiers and a policy of
 * its own, and:
 *   - Each request goes to the host that options->route names when it arrives, and waits there.
 *   - A leading run goes on into the shared tier where the host itself has no block. One round trip
 *     asks for all blocks that the host has not; their loads then queue for their nodes and for the
 *     host's link. A host knows neither queue: it loads what its predictions, learned by node
 *     (online_device), say is faster than computing.
 *   - What a host publishes is read by others when it has passed the host's link and the node. The
 *     shared tier evicts the block that was read or written least recently.
 *   - Policies without a prefix tree see a request's blocks last to first, so that their order of
 *     recency ends a prefix from behind; so does the shared tier.
 *   - A restart empties a host's tiers and its learned counters; requests in service go on.
 *
 * Thread rule: options, workloads and results belong to one thread at a time; runs on different
 * result objects may share one workload.
 */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include "estimator/predict/predict.h"
#include "workload.h"

#include <kvterrace/config.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/load.h>

#include <stdio.h>

#define REPLAY_CDF_POINTS 101u /* TTFT at 0 %, 1 %, ... 100 % of the requests */
#define REPLAY_NOTE_BYTES 2048u
#define REPLAY_ORACLE     "oracle" /* simulation: utility with the future's rates; a bound */

/* One tier as the simulator sees it. */
typedef struct replay_tier {
    uint64_t capacity_bytes; /* 0 = absent */
    kvt_affine read;
    kvt_affine write;
    char source[160]; /* of the speeds: "as set", "nvme0 measured, nvme1 by default" */
} replay_tier;

/* Two variants per tier, drawn by a hash of the entry: what a store offers that knows its ladder
 * but nothing of its entries. The policy sees one variant per tier and a sensitivity of 1. One hash
 * serves all tiers, so with equal shares an entry keeps its variant when it changes its tier. */
typedef struct replay_blend {
    bool set;
    uint8_t rung[KVT_TIER_COUNT][2]; /* indexes into model.variants */
    double share[KVT_TIER_COUNT];    /* of the entries that get the second one */
} replay_blend;

/* How much of each session's future the policy is told by hints: sim_hints.c. */
typedef enum replay_hints {
    REPLAY_HINTS_NONE = 0,
    REPLAY_HINTS_TRUE = 1,
    REPLAY_HINTS_HALF = 2, /* one in two says the contrary */
    REPLAY_HINTS_WRONG = 3 /* all do */
} replay_hints;

/* How the host of a request is chosen. */
typedef enum replay_route {
    REPLAY_ROUTE_STICKY = 0, /* by a hash of its second block, so a session stays on a host */
    REPLAY_ROUTE_RANDOM = 1,
    REPLAY_ROUTE_SPILL = 2,       /* sticky, but for a share that goes to any host */
    REPLAY_ROUTE_LEAST_LOADED = 3 /* the fewest requests waiting and in service */
} replay_route;

/* Which entries a host copies to the shared tier. */
typedef enum replay_publish {
    REPLAY_PUBLISH_ALL = 0,        /* each block that it has computed */
    REPLAY_PUBLISH_SECOND_USE = 1, /* blocks that some host used before: an engine that counts */
    REPLAY_PUBLISH_LEAVING = 2     /* what its own tiers evict; no setting names it */
} replay_publish;

#define REPLAY_HOSTS_MAX 256u
#define REPLAY_NODES_MAX 64u

/* The tier that all hosts share: an LRU cache spread over nodes by key. */
typedef struct replay_remote {
    uint64_t capacity_bytes; /* 0 = absent */
    uint32_t nodes;
    uint32_t publish;           /* replay_publish */
    uint64_t node_bytes_per_s;  /* of one node; its reads and writes interleave */
    uint64_t host_bytes_per_s;  /* of one host's link, in each direction */
    double latency_seconds;     /* of a round trip */
    uint64_t write_bytes_per_s; /* of one host's publishing; 0 = any */
} replay_remote;

typedef struct replay_options {
    uint32_t servers; /* of each host */
    uint64_t bytes_per_token;
    uint32_t block_tokens; /* of generated workloads */
    double scale;          /* live: factor on bytes and seconds */
    bool load_all;         /* live: load the whole leading run, even where recomputing is faster */
    uint64_t seed;         /* of the workload: arrivals in a step, generated bytes */
    uint64_t policy_seed;  /* of policies that draw */
    double warmup;         /* share of the requests that are served but not counted, [0,1) */
    bool partial_exact;    /* a partial last block is charged its own tokens, not a whole block */
    bool overlap;          /* loads overlap the prefill, layer by layer */
    uint32_t layers;       /* simulation, with overlap: of the model; 0 = without end */
    bool layered;          /* simulation, with overlap and layers: passes load from SSD through a
                              model of its drives (drive_model.h) */
    double mix;            /* with layered: share of the drives' speed that both directions lose */
    kvt_io_options io;     /* with layered: as the store's */
    kvt_pass_row *pass_rows; /* with layered: announced seconds of a layer; NULL: the prefill
                                      model's. Owned by these options */
    size_t pass_row_count;
    bool prefetch;        /* simulation: a request that waits has its blocks brought up to DRAM */
    uint64_t limit;       /* requests; 0 = all */
    uint32_t seeds;       /* runs per policy; the caller loops */
    const char *plan_log; /* a path, or NULL; owned by the configuration */

    replay_tier tiers[KVT_TIER_COUNT];
    kvt_cost_model model; /* tiers, variants and prefill; what options are built from */
    char prefill_name[64];

    kvt_variant variant; /* of the fixed policies */
    char ladder[128];    /* path of the ladder that the variants come from, or "" */
    double sensitivity;  /* sigma of the lognormal factor (mean 1) on an entry's losses; 0 = none */
    double repeatability; /* correlation of what the policy knows of log factors with them, [0,1] */
    double loss_limit;    /* no variant whose loss_upper passes it; 1 = any */
    replay_blend blend;   /* set: restricts what the policy may choose from */
    double alpha_seconds; /* what loss costs, as in kvt_policy_config */
    double alpha_prefills;
    double half_life_seconds; /* policy/trial.h */
    double clock_scale; /* policy/trial.h: how much shorter the workload is than its traffic */
    double hysteresis;
    kvt_hole_mode holes;
    double high_watermark;
    double low_watermark;
    uint32_t explain;    /* stored blocks that the result explains; at most REPLAY_EXPLAIN_MAX */
    double tick_seconds; /* of virtual time between two policy ticks */
    uint32_t moves_per_tick;
    uint64_t move_bytes_per_s; /* 0 = unlimited */
    bool copies; /* promotions from SSD leave their records there while there is room */
    uint64_t put_staging_bytes; /* entries that were put and are not written, as
                                   kvt_put_staging_limit allows; 0 = any */
    double put_backlog_seconds; /* writes that wait for one tier; 0 = any */
    double copy_bytes_per_s;    /* of a put, by its caller, and of a get while it is staged */
    double put_fixed_seconds;   /* of these, whatever the entry's size */

    uint32_t hosts;     /* simulation */
    replay_route route; /* of several hosts */
    double spill_share; /* with REPLAY_ROUTE_SPILL, 0 to 1 */
    bool restart;       /* each host once, cold */
    replay_remote remote;

    replay_hints hints; /* simulation */
    bool bounds;        /* sum up the regrets; the caller also finds the bound */
    /* Told of the share of the requests that is served, by one thread at a time; false ends a
     * simulation. Or NULL. */
    bool (*proceed)(void *context, double done);
    void *proceed_context;

    char note[REPLAY_NOTE_BYTES]; /* what was assumed, one sentence after the other */
    char profile[128];            /* path of the profile that curves came from, or "" */
} replay_options;

/* Whether a simulation is of several hosts, or of one beside a shared tier. */
static inline bool replay_has_hosts(const replay_options *options)
{
    return options->hosts > 1 || options->remote.capacity_bytes > 0 || options->restart;
}

/* Every field at the default of its setting, no tier present. */
void replay_options_init(replay_options *options);

/*
 * Fills options from the settings and checks them. A simulation is of the store that the settings
 * describe: tiers, ladder and limits of loss are what kvt_store_options_read and the functions of
 * store/core/options.h make of them, and a file that was read is a store's, with the store's
 * pauses between background rounds. Every present
 * tier needs its read and write model: from tier.*.read_bandwidth and its kin, else from the
 * profile, by the names of the tier's devices or, without any, of all that were measured of that
 * tier, else a default that note states. What of a store's settings is not simulated, note names.
 * When no tier is set at all, the evaluation host of
 * the AdaptCache paper is taken (100 GB of DRAM, 400 GB of SSD at 1 GB/s) with the profile's speeds
 * where it has them, and note says so.
 * Release with replay_options_free. KVT_OK; KVT_E_CONFIG; the profile's and the ladder's errors.
 */
KVT_NODISCARD kvt_status replay_options_read(kvt_config *config, bool live, replay_options *options,
                                             char *message, size_t message_size);
void replay_options_free(replay_options *options);

/* Reads a blend such as "dram=0,ssd=1/3@0.4": by tier a place on the ladder, or two and the share
 * of the second; tiers that are not named have the first place. KVT_OK; KVT_E_CONFIG. */
KVT_NODISCARD kvt_status replay_mix_read(const char *text, replay_options *options, char *message,
                                         size_t message_size);

/* The factor of a block's losses under options->sensitivity, and the factor that a policy knows;
 * either may be NULL. */
void replay_sensitivity(const replay_options *options, uint64_t block, float *true_out,
                        float *known_out);

/* Seconds that 1.0 of a request's quality is worth; tokens: of its context. */
double replay_alpha(const replay_options *options, uint32_t tokens);

/* Checks ranges and fills model.present, read and write from tiers. KVT_OK; KVT_E_CONFIG. */
KVT_NODISCARD kvt_status replay_options_check(replay_options *options, char *message,
                                              size_t message_size);

/*
 * Checks everything that replays of either mode would read beside what the store reads, and reads
 * it, so that a setting which nothing needs shows as unused. Opens no profile and no
 * device. KVT_OK; KVT_E_CONFIG; KVT_E_ARGUMENT.
 */
KVT_NODISCARD kvt_status replay_settings_check(kvt_config *config, const kvt_store_options *store,
                                               char *message, size_t message_size);

/* The generator's settings from [workload], replay.seed and replay.block_tokens. */
void replay_generator_read(kvt_config *config, replay_generator *generator);

/* How long the first tokens took, of the counted requests; seconds. */
typedef struct replay_times {
    double ttft_mean, ttft_p50, ttft_p90, ttft_p99, ttft_max;
    double wait_mean;    /* in the queue */
    double service_mean; /* from the start of service to the first token */
    double blocked_mean; /* part of the service in which a load was not hidden by compute */
    double compute_mean; /* prefill, its fixed part included */
    double ttft_cdf[REPLAY_CDF_POINTS];
} replay_times;

/*
 * The most that any policy could save, in seconds per counted request against recomputing
 * everything. Saved is: prefill that was not computed, less loads and decoding, less alpha times
 * the request's loss. Waiting is not in it. docs/decisions/0007-regrets.md has the proof.
 */
typedef struct replay_bound {
    double recompute_s; /* mean service that computes everything: a mean cost is this less saved */
    double ideal_s;     /* saved by a store without limits */
    double interval_s;  /* no policy that keeps or worsens an entry's variant between two uses saves
                           more */
    double moving_s;    /* nor does any at all, variants improved ahead of a use included */
    double belady_block_ratio;    /* hits of a store that knows the future and has all tiers' bytes
                                     for the fixed policies' variant; whole workload */
    double price[KVT_TIER_COUNT]; /* of interval_s, seconds per byte and second */
    uint64_t intervals;
    double seconds; /* that finding it took */
    bool known;
} replay_bound;

/* Finds the bound. KVT_OK; KVT_E_ARGUMENT (options of a block cannot be built); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status replay_bound_find(const replay_options *options,
                                           const replay_workload *workload, replay_bound *out);

/* The engine's explanation of a stored block at the end of a simulation. */
#define REPLAY_EXPLAIN_MAX 32u
typedef struct replay_explained {
    uint32_t block;
    kvt_tier tier; /* the highest that holds bytes of it */
    kvt_explanation why;
} replay_explained;

/* A form that gets of a live run were served, by tier. */
typedef struct replay_form {
    kvt_variant variant;
    uint64_t gets[KVT_TIER_COUNT];
    uint64_t tokens, tokens_kept; /* of the entries, and in what was read */
} replay_form;

#define REPLAY_FORMS_MAX 16u

/* One host of a simulation of several, over the counted requests. */
typedef struct replay_host {
    uint64_t requests;
    uint64_t block_refs;
    uint64_t local_blocks;                  /* of the leading runs: in its own tiers */
    uint64_t remote_blocks;                 /* and in the shared tier alone */
    uint64_t fetched_blocks, fetched_bytes; /* of these, loaded: the rest was recomputed */
    uint64_t published_blocks, published_bytes;
    double ttft_mean;
} replay_host;

/* All hosts together. */
typedef struct replay_hosts {
    replay_host *rows; /* NULL: the run was of one host without a shared tier */
    uint32_t count;
    replay_host all;        /* sums; mean of all requests */
    double found_ratio;     /* blocks of the leading runs over block references, local and remote */
    double local_ratio;     /* of these, in the host's own tiers */
    double remote_ratio;    /* and in the shared tier alone */
    double written_per_use; /* published blocks over block references */
    uint64_t probes;        /* requests that asked the shared tier for blocks */
    uint64_t offered;       /* blocks that publishing was decided on, absent from the shared tier */
    uint64_t deduplicated;  /* computed, and the shared tier had them already */
    uint64_t declined;      /* not worth a copy */
    uint64_t dropped;       /* the write rate's queue was full */
    uint64_t twice;      /* written while another host's write of the same block was on its way */
    uint64_t evicted;    /* by the shared tier */
    uint64_t peak_bytes; /* of the shared tier */
    double load_error;   /* median relative error of the predicted seconds of remote loads */
} replay_hosts;

/* Writes of the SSD tier in a simulation with layered loads, of the counted requests' time. */
typedef struct replay_drive {
    bool known;
    uint64_t writes, writes_deferred; /* deferred: later reads began sooner, or the gate held it */
    uint64_t bytes_deferred;
    double write_wait_s_mean, write_wait_s_max; /* from asked for to written */
    kvt_io_decisions decisions;                 /* of the whole run */
} replay_drive;

typedef struct replay_result {
    char policy[32];
    char mode[8]; /* "sim" or "live" */
    char workload[96];
    uint64_t seed;
    uint64_t requests;         /* counted */
    uint64_t requests_skipped; /* served during warm-up */
    uint64_t block_refs;       /* of all requests */
    uint64_t distinct_blocks;
    double ideal_block_ratio; /* what an unlimited cache would hit, whole workload */
    double span_s;            /* first to last counted arrival */
    double rho;      /* busy seconds, service and puts, over servers x span: offered load */
    double rho_peak; /* the same in the busiest part of the span: a tenth of it, or what holds 200
                        requests; at 1 and above, as of rho, the queue grows and no mean exists */
    replay_times times;
    double hit_block_ratio[KVT_TIER_COUNT]; /* [0] is the total */
    double hit_token_ratio[KVT_TIER_COUNT]; /* leading run; [0] is the total */
    double used_token_ratio;                /* tokens really loaded over input tokens */
    double quality_mean; /* 1 - loss of a request: mean over its tokens; what is computed on top of
                            a lossy prefix inherits the prefix's loss */
    double quality_p10;
    uint64_t prefetch_offered; /* blocks of waiting requests, and of these the ones that */
    uint64_t prefetch_moved;   /* the policy took */
    uint64_t bytes_read[KVT_TIER_COUNT]; /* loads and moves */
    uint64_t bytes_written[KVT_TIER_COUNT];
    uint64_t moved_bytes_read[KVT_TIER_COUNT]; /* moves alone */
    double write_lag_s_max[KVT_TIER_COUNT];    /* how far a tier's writes fell behind */
    uint64_t capacity_bytes[KVT_TIER_COUNT];
    uint64_t peak_bytes[KVT_TIER_COUNT];
    double footprint_bytes; /* all distinct blocks as raw entries */
    uint64_t decisions;     /* calls into the policy */
    uint64_t decision_ns_p50, decision_ns_p99;
    uint64_t puts_busy; /* computed blocks that the store could not take in time */
    uint64_t puts, refused, promotions, demotions, evictions, moves;
    uint64_t refused_for[KVT_REFUSALS]; /* of them, by the engine's reason */
    double loop_s;                      /* wall seconds of the replay loop alone */
    double block_refs_per_s;
    uint64_t plan_hash;          /* simulation, over every move: equal runs, equal hashes */
    kvt_reuse_weights reuse;     /* what the engine had learned when the run ended */
    kvt_hint_stats hints;        /* simulation */
    replay_explained *explained; /* simulation with options.explain: soonest used first */
    uint32_t explained_count;

    uint64_t moves_committed, moves_aborted; /* of all moves planned */

    /* Simulation, seconds per counted request; see replay_bound. */
    double saved_s; /* achieved: prefill not computed, less loads, less alpha * loss */
    /* Distances by what they bound, docs/decisions/0007-regrets.md, and the same over what is at
     * stake. NAN: bounds are off or, of the first two, the policy counts no uses. */
    double regret_solver_s, regret_counters_s, regret_foresight_s;
    double gap_solver, gap_counters, gap_foresight;
    replay_bound bound; /* of the workload; filled by the caller */

    /* Live only. */
    double scale;
    double wall_s;
    uint64_t verified_gets, wrong_bytes, failed_puts, load_failures;
    replay_form forms[REPLAY_FORMS_MAX]; /* with store.ladder */
    uint32_t form_count;
    replay_hosts hosts; /* simulation of several hosts */
    replay_drive drive; /* simulation with layered loads */
    bool moves_match;   /* the plan log's lines equal the store's own counters */
    double put_mean_s;  /* seconds a server spends putting after the first token, unscaled clock */
    char plan_log[256];
    bool emulated[KVT_TIER_COUNT];        /* a tier that stands in for absent hardware */
    kvt_load_stats loads[KVT_TIER_COUNT]; /* of single gets, by the store; [0]: of requests' heads,
                                             all their gets together */
    uint64_t reopened;                    /* curves of devices that had drifted */
} replay_result;

/* Releases what a result owns: explanations and rows of hosts. */
void replay_result_free(replay_result *result);

/* Runs one policy in virtual time, one thread. Release the result with replay_result_free.
 * KVT_OK; KVT_E_CANCELLED (options->proceed said so); KVT_E_UNSUPPORTED (unknown policy);
 * KVT_E_ARGUMENT; KVT_E_MEMORY; KVT_E_IO (plan log). */
KVT_NODISCARD kvt_status replay_run_sim(const replay_options *options,
                                        const replay_workload *workload, const char *policy,
                                        replay_result *result, char *message, size_t message_size);

/* A private copy of a profile. */
typedef struct live_profile {
    const char *source; /* what it is a copy of */
    char folder[96];    /* empty: there is none */
    char path[128];
} live_profile;

/* The store of a live run. */
typedef struct replay_live {
    const kvt_store_options *store; /* devices and tiers at full scale, as the settings say */
    bool (*interrupted)(void);      /* or NULL: whether the run is to end now */
    /* or NULL: told of the run's copy of the profile before its store is opened, and after it was
     * closed. For tests. */
    void (*profile_seen)(void *context, const char *path, bool after);
    void *context;
} replay_live;

/*
 * Runs one policy on a real store: `servers` threads serve the requests at their scaled arrival
 * times, get the head of the leading run that is worth it, compare every byte with what was put,
 * let the scaled prefill of the rest pass and put what was missing as it is computed. Bytes per
 * token, tier capacities, arrivals, prefill and alpha are multiplied by options->scale, and the
 * engine's clock is divided by it, so that break-even points stay. Times in the result are divided
 * by it; bytes are those really moved. The catalog is not used, and nothing survives the run:
 * devices that were blank before it are blank again after it, files that it made are gone, and its
 * store has a copy of the profile of its own, so that runs begin alike and what one learns
 * (store.learn) ends with it. options->plan_log
 * receives every move with its outcome. KVT_OK (also when bytes differed: see wrong_bytes);
 * KVT_E_CANCELLED (interrupted; nothing is left behind then either); kvt_store_open's errors;
 * KVT_E_MEMORY; KVT_E_IO.
 */
KVT_NODISCARD kvt_status replay_run_live(const replay_options *options,
                                         const replay_workload *workload, const replay_live *live,
                                         const char *policy, replay_result *result, char *message,
                                         size_t message_size);

/* ---- reports ---- */

/* Everything that one document says. */
typedef struct replay_report {
    const char *version;
    const char *command; /* the command line, or NULL */
    const char *machine; /* one line, or NULL */
    const char *date;    /* or NULL; absent in reproducible output */
    const replay_options *options;
    const kvt_store_options *store; /* of live runs; NULL in simulation */
    const replay_workload *workload;
    const replay_result *results;
    size_t result_count;
    bool profile_busy;   /* the machine was busy while the profile's devices were measured */
    double others_share; /* of a live run: what other programs took of the processors meanwhile */
} replay_report;

/* One JSON document, schema "kvterrace-replay-1". KVT_OK; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status replay_print_json(const replay_report *report, FILE *file);

/* The meaning of the runs in words, and the table of their times; verbose: hits, traffic and moves
 * too. KVT_OK; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status replay_print_text(const replay_report *report, bool verbose, FILE *file);

#endif
