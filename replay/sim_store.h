/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_store.h - what the simulator models of a store's own work: puts that hand over, executors,
 * background rounds; private to sim_store.c and sim_executors.c.
 *
 *     server       get, get, get ... prefill -> puts -> free
 *     put          staging, decision, backlog -> handed over, or refused at once; the next put
 *                  follows the copy
 *     executors    four, each with one plan at a time, move by move: read, then write; a put that
 *                  came while four were handed over is decided by the one that takes it
 *     background   pause -> promotions that gets asked for -> what the policy's tick plans ->
 *                  pause; a prefetch ends the pause for the promotions alone
 *
 * docs/STORE.md (Put) is what the numbers follow. Virtual time; one thread.
 */
#ifndef REPLAY_SIM_STORE_H
#define REPLAY_SIM_STORE_H

#include "results.h"
#include "sim_state.h"

#define STORE_EXECUTORS    4u  /* and puts in hand-over from which on the next are decided later */
#define STORE_PLANS_QUEUED 64u /* promotions that wait for the background */
#define STORE_NOBODY       UINT32_MAX

/* A plan on its way. */
typedef struct store_plan {
    struct store_plan *next; /* in a queue, or of the spare ones */
    uint32_t block;          /* of its put, or STORE_NOBODY */
    bool later;              /* the policy has not been asked yet */
    sim_visit visit;         /* what was put, for when it is asked */
    uint32_t position;
    uint64_t staged_bytes; /* of its put */
    double
        backlog_s[KVT_TIER_COUNT]; /* what it adds to each tier's writes, or may be expected to */
    uint32_t count, done;
    kvt_move *moves;
    uint32_t move_room;
} store_plan;

typedef struct store_queue {
    store_plan *first, **last;
    uint32_t count;
} store_queue;

/* Carries plans out: one of the executors, or the background. */
typedef struct store_worker {
    store_plan *plan; /* NULL = idle */
    bool writing;     /* of the plan's present move; else it is read */
    bool ticked;      /* background: the tick of this round was asked for */
    bool woken;       /* background: between two rounds, for the promotions alone */
} store_worker;

typedef struct store_event {
    uint64_t at_ns;
    uint64_t order; /* of events at one time, that of their making */
    uint32_t actor;
} store_event;

/* The step that a server's next event ends, or begins. */
typedef enum store_phase {
    STORE_FREE,     /* it takes the next request, or none */
    STORE_LOADING,  /* it gets the next block, if there is one more */
    STORE_LOADED,   /* it computes the rest */
    STORE_COMPUTED, /* the first token is there */
    STORE_PUTTING   /* it puts the next block, if there is one more */
} store_phase;

/* One server and the request in its hands. */
typedef struct store_server {
    sim_visit visit;
    uint64_t request;
    uint64_t loaded_ns; /* when the last load ended */
    uint8_t *run;       /* options of the loaded blocks */
    uint32_t run_room;
    uint32_t chosen; /* blocks to load */
    uint32_t put_at; /* the next block to put */
    store_phase phase;
} store_server;

typedef struct store_model {
    sim_state *sim;
    results_collector *collector;
    store_event *heap; /* by time; an actor has at most one event in it */
    uint32_t heap_count;
    uint64_t events; /* made so far */
    uint64_t now_ns;
    uint64_t arrived, taken; /* requests */
    store_server *servers;
    uint32_t *idle; /* servers, a stack */
    uint32_t idle_count;
    uint8_t *state;                            /* by block: STORE_STAGED, STORE_LEAVING */
    store_worker workers[STORE_EXECUTORS + 1]; /* the background is the last one */
    store_queue handed, promotions;
    uint64_t round_ns;    /* when the background's next round begins */
    uint32_t handed_over; /* puts whose plans have not ended */
    store_plan *spare;
    uint64_t staged_bytes, staging_bound_bytes;
    double backlog_s[KVT_TIER_COUNT];
    double write_s_per_byte[KVT_TIER_COUNT]; /* that plans lately made, by bytes put: a mean */
    uint64_t writes_noted;                   /* plans in it */
} store_model;

enum { STORE_STAGED = 1, STORE_LEAVING = 2 };

/* Actors: servers, workers, and the arrivals. */
static inline uint32_t store_actor_of_worker(const store_model *model, uint32_t worker)
{
    return model->sim->options->servers + worker;
}

static inline uint32_t store_actor_of_arrivals(const store_model *model)
{
    return model->sim->options->servers + STORE_EXECUTORS + 1;
}

/* Wakes an actor at a time. */
void store_schedule(store_model *model, uint64_t at_ns, uint32_t actor);

/* Lets an actor's event come now; nothing for one that has none. */
void store_hasten(store_model *model, uint32_t actor);

/* Occupies a queue with bytes; when the last one has passed, and what a request takes beside. */
uint64_t store_occupy(uint64_t *free_ns, uint64_t now_ns, const kvt_affine *queue, uint64_t bytes);

/*
 * Whether so many bytes fit into the staging of puts, and whether a plan's writes fit into what
 * waits for each tier: the store's two bounds. A bound of 0 holds nobody up.
 */
uint64_t store_staging_bound(const replay_options *options);
bool store_staging_takes(uint64_t staged_bytes, uint64_t bytes, uint64_t bound_bytes);
bool store_backlog_takes(const double waiting_s[KVT_TIER_COUNT],
                         const double added_s[KVT_TIER_COUNT], double bound_s);

/* Asks the policy for the put of a block that the visit computed: as sim_offer. */
KVT_NODISCARD kvt_status store_ask(store_model *model, const sim_visit *visit, uint32_t position);

/* Whether a put of so many bytes, which would wait without a plan, passes the backlog's bound by
 * the writes that plans lately made. The policy is not asked about such a put. */
bool store_lags_unplanned(const store_model *model, uint64_t bytes);

/* Hands a put of so many bytes over. Unless enough are under way the policy is asked at once.
 * KVT_OK; KVT_REFUSED or KVT_EXISTS, its answer; KVT_BUSY when the backlog is full, the plan being
 * aborted then; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status store_hand_over(store_model *model, const sim_visit *visit,
                                         uint32_t position, uint64_t bytes);

/* Queues the simulator's present plan, of a get, for the background. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status store_queue_promotion(store_model *model);

/* Ends the background's pause for the promotions that are queued. */
void store_wake_background(store_model *model);

/* A worker's event. */
KVT_NODISCARD kvt_status store_work(store_model *model, uint32_t worker);

void store_release_plans(store_model *model);

/* The replay loop with this model. KVT_OK; the policy's errors; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sim_store_run(sim_state *sim, results_collector *collector);

#endif
