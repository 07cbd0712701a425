/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_host.h - one host of a simulation: its servers and what a store there does behind their puts;
 * and the run that all hosts are of. Private to the sim_ files.
 *
 *     request      arrives -> a host -> waits -> a server: lookup, loads, prefill -> puts
 *     put          staging, decision, backlog -> handed over, or refused at once; the next put
 *                  follows the copy
 *     executors    four, each with one plan at a time, move by move: read, then write; a put that
 *                  came while four were handed over is decided by the one that takes it
 *     background   pause -> promotions that gets asked for -> what the policy's tick plans ->
 *                  pause; a prefetch ends the pause for the promotions alone
 *     copies       a promotion from SSD leaves its record there while nothing else wants the room
 *
 * docs/STORE.md (Put, Copies) is what the numbers follow. Virtual time; one thread.
 */
#ifndef REPLAY_SIM_HOST_H
#define REPLAY_SIM_HOST_H

#include "drive_model.h"
#include "results.h"
#include "sim_remote.h"

#define SIM_EXECUTORS    4u  /* and puts in hand-over from which on the next are decided later */
#define SIM_PLANS_QUEUED 64u /* promotions that wait for the background */
#define SIM_NOBODY       UINT32_MAX

/* A plan on its way. */
typedef struct sim_plan {
    struct sim_plan *next; /* in a queue, or of the spare ones */
    uint32_t block;        /* of its put, or SIM_NOBODY */
    bool later;            /* the policy has not been asked yet */
    sim_visit visit;       /* what was put, for when it is asked */
    uint32_t position;
    uint64_t staged_bytes; /* of its put */
    double
        backlog_s[KVT_TIER_COUNT]; /* what it adds to each tier's writes, or may be expected to */
    uint32_t count, done;
    kvt_move *moves;
    uint32_t move_room;
} sim_plan;

typedef struct sim_queue {
    sim_plan *first, **last;
    uint32_t count;
} sim_queue;

/* Carries plans out: one of the executors, or the background. */
typedef struct sim_worker {
    sim_plan *plan;    /* NULL = idle */
    bool writing;      /* of the plan's present move; else it is read */
    bool ticked;       /* background: the tick of this round was asked for */
    bool woken;        /* background: between two rounds, for the promotions alone */
    uint64_t other_ns; /* the present move's parts off the drives have ended then */
} sim_worker;

/* The step that a server's next event ends, or begins. */
typedef enum sim_phase {
    SIM_FREE,      /* it takes the next request, or none */
    SIM_ASKING,    /* it knows what there is, and loads the head */
    SIM_LOADED,    /* it computes the rest */
    SIM_COMPUTING, /* it puts the next block that has been computed */
    SIM_COMPUTED,  /* the first token is there */
    SIM_PUTTING    /* it puts the next block, if there is one more */
} sim_phase;

/* One server and the request in its hands. */
typedef struct sim_server {
    sim_visit visit;
    uint64_t request;
    uint8_t *found;       /* the visit's, by position */
    uint32_t room;        /* positions in it */
    uint32_t chosen;      /* blocks to load */
    double whole_s;       /* of computing everything, without the fixed part */
    uint64_t first_ns;    /* when the first token is there */
    uint64_t put_free_ns; /* when the put before has ended */
    uint32_t put_at;      /* steps of putting that have been made */
    sim_phase phase;
    bool by_drive; /* the head came through the drives: */
    drive_loaded loaded;
} sim_server;

/* Records on SSD that promotions left behind. */
typedef struct sim_copies {
    uint8_t *option;  /* by block; KVT_OPTION_NONE = no copy */
    uint32_t *listed; /* blocks with a copy, in no order */
    uint32_t *index;  /* by block, of its place in the list */
    uint32_t count;
    uint64_t bytes;
    uint64_t draw; /* what is drawn next */
} sim_copies;

typedef struct sim_host {
    sim_state sim;
    sim_link link;
    struct sim_run *run;
    uint32_t first_actor; /* of its servers; its workers follow them */
    sim_server *servers;
    uint32_t *idle; /* servers, a stack */
    uint32_t idle_count;
    uint32_t first, last, waiting;         /* requests; the run's next links them */
    uint8_t *state;                        /* by block: SIM_STAGED, SIM_LEAVING */
    sim_worker workers[SIM_EXECUTORS + 1]; /* the background is the last one */
    sim_queue handed, promotions;
    uint64_t round_ns;    /* when the background's next round begins */
    uint32_t handed_over; /* puts whose plans have not ended */
    sim_plan *spare;
    uint64_t staged_bytes, staging_bound_bytes;
    double backlog_s[KVT_TIER_COUNT];
    double write_s_per_byte[KVT_TIER_COUNT]; /* that plans lately made, by bytes put: a mean */
    uint64_t writes_noted;                   /* plans in it */
    sim_copies copies;
    drive_model *drive; /* NULL: the tiers' queues are all there is */
    double ttft_sum;
} sim_host;

enum { SIM_STAGED = 1, SIM_LEAVING = 2 };

typedef struct sim_event {
    uint64_t at_ns;
    uint64_t order; /* of events at one time, that of their making */
    uint32_t actor;
} sim_event;

/* All hosts of one run of one policy. Actors are the servers, the workers and the arrivals. */
typedef struct sim_run {
    const replay_options *options;
    const replay_workload *workload;
    const char *policy;
    replay_result *result;
    results_collector collector;
    sim_event *heap; /* by time; an actor has at most one event in it */
    uint32_t heap_count;
    uint64_t events; /* made so far */
    uint64_t now_ns;
    uint64_t arrived;   /* requests */
    uint64_t under_way; /* of them, those that have not ended */
    sim_host *hosts;
    uint32_t *next; /* by request: the one behind it in its host's queue */
    sim_remote remote;
    replay_random random;
    uint32_t turn; /* least_loaded looks at this host first */
    char *message;
    size_t message_size;
} sim_run;

/* Worker i of a host among its actors; server i is actor i. */
static inline uint32_t sim_actor_of_worker(const sim_host *host, uint32_t worker)
{
    return host->sim.options->servers + worker;
}

/* Wakes one of a host's actors at a time. */
void sim_schedule(sim_host *host, uint64_t at_ns, uint32_t actor);

/* The drives' actor. */
static inline uint32_t sim_actor_of_drive(const sim_host *host)
{
    return sim_actor_of_worker(host, SIM_EXECUTORS + 1);
}

/* Wakes an actor at a time in place of the event that it has, if any. */
void sim_reschedule(sim_host *host, uint64_t at_ns, uint32_t actor);

/* Lets an actor's event come now; nothing for one that has none. */
void sim_hasten(sim_host *host, uint32_t actor);

/* ---- sim_requests.c ---- */

/* Makes all that a host's servers need; close also after an error. */
KVT_NODISCARD kvt_status sim_servers_open(sim_host *host);
void sim_servers_close(sim_host *host);

/* An idle server takes the first request that waits. */
KVT_NODISCARD kvt_status sim_begin(sim_host *host, uint32_t server);

/* Continues a server at its event. */
KVT_NODISCARD kvt_status sim_serve(sim_host *host, uint32_t server);

/* A request has to wait: the background brings up what lies below DRAM of its leading run, as far
 * as it takes plans. */
KVT_NODISCARD kvt_status sim_prefetch(sim_host *host, uint64_t request);

/* Asks the policy for the put of a block that the visit computed: as sim_offer. */
KVT_NODISCARD kvt_status sim_ask(sim_host *host, const sim_visit *visit, uint32_t position);

/* ---- sim_drive.c ---- */

/* Makes the model of the host's drives, where the options want one; close also after an error. */
KVT_NODISCARD kvt_status sim_drive_open(sim_host *host);
void sim_drive_close(sim_host *host);
KVT_NODISCARD kvt_status sim_drive_serve(sim_host *host); /* its event */

/* A server's head begins to load so many bytes of the drives, and the rest in other_s; the server
 * is woken when all layers have come. */
KVT_NODISCARD kvt_status sim_drive_load(sim_host *host, uint32_t server, uint64_t bytes,
                                        double other_s, double decode_s, double compute_s);

/* A worker's move reads or writes bytes of the drives; the worker is woken when that has ended, and
 * other_ns has come. */
KVT_NODISCARD kvt_status sim_drive_move(sim_host *host, uint32_t worker, bool write, uint64_t bytes,
                                        uint64_t other_ns);

/* When a read of the drives that is asked for now would begin. */
uint64_t sim_drive_free_ns(const sim_host *host);

/* Adds the drives' figures to the result. */
void sim_drive_finish(const sim_host *host);

/* ---- sim_plans.c ---- */

/*
 * Whether so many bytes fit into the staging of puts, and whether a plan's writes fit into what
 * waits for each tier: the store's two bounds. A bound of 0 holds nobody up.
 */
uint64_t sim_staging_bound(const replay_options *options);
bool sim_staging_takes(uint64_t staged_bytes, uint64_t bytes, uint64_t bound_bytes);
bool sim_backlog_takes(const double waiting_s[KVT_TIER_COUNT], const double added_s[KVT_TIER_COUNT],
                       double bound_s);

/* Whether a put of so many bytes, which would wait without a plan, passes the backlog's bound by
 * the writes that plans lately made. The policy is not asked about such a put. */
bool sim_lags_unplanned(const sim_host *host, uint64_t bytes);

/* Hands a put of so many bytes over. Unless enough are under way the policy is asked at once.
 * KVT_OK; KVT_REFUSED or KVT_EXISTS, its answer; KVT_BUSY when the backlog is full, the plan being
 * aborted then; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sim_hand_over(sim_host *host, const sim_visit *visit, uint32_t position,
                                       uint64_t bytes);

/* Queues the simulator's present plan, of a get, for the background. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sim_queue_promotion(sim_host *host);

/* Ends the background's pause for the promotions that are queued. */
void sim_wake_background(sim_host *host);

/* A worker's event. */
KVT_NODISCARD kvt_status sim_work(sim_host *host, uint32_t worker);

/* Forgets all plans on their way, as a restart does; the caller has taken the workers' events. */
void sim_forget_plans(sim_host *host);
void sim_release_plans(sim_host *host);

/* ---- sim_copies.c ---- */

KVT_NODISCARD kvt_status sim_copies_open(sim_host *host);
void sim_copies_close(sim_host *host);

/* A block was in one option and is in another now, or gone: keeps the record that a promotion
 * leaves, or takes or drops the copy. */
void sim_copies_note(sim_host *host, uint32_t block, uint8_t before);

/* Whether a demotion would write the record that the entry's copy is. */
bool sim_copies_hold(const sim_host *host, const kvt_move *move);

/* Forgets all copies, as a restart without a catalog does. */
void sim_copies_forget(sim_host *host);

#endif
