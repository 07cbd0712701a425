/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_internal.h - a queue's own data: queue.c has its life and the calls of its owner,
 * queue_run.c the threads that carry requests out, queue_get.c their gets (docs/CALLS.md, The
 * queue).
 *
 *     free -> waiting -> begun -> completed -> (drained) free
 *               |  ^       \-> flying -> arrived -^
 *               |  |        \-> shares -----------^
 *               |  \------ starved, or its entry moved away
 *               \--------- called off, too late --^
 *
 *     field                              guarded by
 *     lists, states, counters, batches   queue->lock
 *     a begun item's request and result  the thread that began it, until it completes
 *     store, options, event_fd           fixed after open
 *     next, previous                     owner.lock: a store's lock
 *
 * Lock order: the queue's lock is a leaf but for the write of the event descriptor; no call on the
 * store is made under it.
 */
#ifndef STORE_QUEUE_INTERNAL_H
#define STORE_QUEUE_INTERNAL_H

#include "store/read/access_get.h"

#include <kvterrace/queue.h>

#define QUEUE_CLASSES       3u
#define QUEUE_CHUNK         64u /* requests of one kind that a thread takes at once */
#define QUEUE_HELP          32u /* gets that a waiting caller begins at once */
#define QUEUE_THREADS_MAX   64u
#define QUEUE_DEPTH_MAX     (1u << 20)
#define QUEUE_DEPTH_DEFAULT 4096u
#define QUEUE_SHARE_BYTES   (UINT64_C(1) << 20) /* of entries that a thread decodes before others */

/* In which list an item is: `free`; `waiting` or `calls`; while it is begun, none, what flies or
 * `arrived`; `completed`. The counts of the other lists and `begun` sum up to `made`. */
typedef enum queue_state {
    QUEUE_FREE = 0,
    QUEUE_WAITING = 1,
    QUEUE_BEGUN = 2,
    QUEUE_COMPLETED = 3
} queue_state;

/* The views of a get into those of groups, as it begins: copies, and the layouts that they are for.
 */
typedef struct queue_groups {
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_view views[]; /* as many as the view names */
} queue_groups;

/* Work that a thread of the queue is to do before it begins requests. */
typedef struct queue_task {
    struct queue_task *next;
    void (*run)(void *context);
    void *context;
} queue_task;

/* One accepted request. Its place in memory does not change while the queue is open. */
typedef struct queue_item {
    struct queue_item *next; /* in one of the lists */
    queue_state state;
    bool called_off; /* its batch was cancelled after it had begun */
    uint32_t kind;
    uint32_t urgency;
    uint32_t tier;
    uint32_t index;
    uint32_t slot; /* of its batch, with whole_batches */
    uint64_t batch;
    uint64_t user;
    uint64_t submitted_ns;
    uint64_t deadline_ns; /* as kvt_request.deadline_ns */
    double loss_max;
    kvt_key key;
    const kvt_view *view; /* the caller's, until the completion; or NULL */
    queue_groups *groups; /* of a get into a view of groups, from its beginning on; or NULL */
    kvt_view packed;      /* of a get into a packed buffer, with the strides of its entry */
    uint32_t first_layer;
    uint32_t layer_count;
    const kvt_entry *entry;         /* same */
    kvt_get_info *given;            /* same, of a get; or NULL */
    struct queue_item *next_flying; /* in the list of those whose read is under way */
    struct kvt_queue *queue;
    bool in_flight;      /* its read is, until it arrives */
    bool begun_wholly;   /* the thread that began the read has let go of the item */
    bool given_up;       /* a thread is taking it back, */
    bool cancels;        /* because its batch was cancelled; that thread's */
    bool decodes;        /* `decoding` was posted, or runs: it neither arrives nor is given up */
    bool more;           /* bytes have come that it has not seen */
    queue_task decoding; /* of what has come, while the read is under way */
    access_get get;
    kvt_status status; /* from here on what the completion says */
    kvt_get_info info;
    bool refused_loss;
    bool guess; /* of exists */
} queue_item;

/* Items in a row, each in one list at a time. `count` is the length, so that a full queue refuses a
 * batch without a walk. */
typedef struct queue_list {
    queue_item *first;
    queue_item *last;
    uint32_t count;
} queue_list;

/* Requests of each batch that have not completed. A batch keeps its slot until its count is 0. */
typedef struct queue_batches {
    uint32_t *left;  /* by slot: requests that have not completed */
    uint32_t *spare; /* slots that no batch has */
    uint32_t spare_count;
    bool ended; /* a batch has completed of which not all is drained */
} queue_batches;

/* The open queues of a store, a follower's too. */
typedef struct queue_owner {
    pthread_mutex_t *lock; /* of the list */
    struct kvt_queue **first;
} queue_owner;

struct kvt_queue {
    const base_queue_calls *elsewhere; /* NULL: of a store of this process (base/handle_calls.h) */
    kvt_store *store;
    bool blocks; /* its threads carry gets out, too, by blocking calls: a follower's queue */
    queue_owner owner;
    struct kvt_queue *next, *previous; /* the owner's open queues */
    int event_fd;                      /* -1: nobody waits for it */
    uint32_t forks;                    /* base_fork_guard_count of the process that opened it */
    uint32_t depth;
    uint32_t made; /* of items, that were ever accepted; the memory of the others is untouched */
    uint32_t thread_count;
    uint32_t caller_count; /* threads of `calls` */
    pthread_mutex_t lock;
    pthread_cond_t work;  /* something waits, or the queue ends */
    pthread_cond_t call;  /* the same of `calls` */
    pthread_cond_t ended; /* something completed */
    bool stopping;        /* no request is begun any more */
    bool signalled;       /* the descriptor is readable */
    queue_batches whole;  /* with whole_batches; else its arrays are NULL */
    bool submitter_waits; /* as its options say */
    queue_item *items;
    queue_list free;
    queue_list waiting[QUEUE_CLASSES]; /* gets, and what waits for nobody */
    queue_list calls[QUEUE_CLASSES];   /* puts and deletes, which may wait for moves: other
                                          threads carry them out, so that gets always end */
    queue_list arrived;                /* reads that have landed, begun */
    queue_list shares;                 /* gets of large entries in memory, begun: any thread's */
    bool shares_next;                  /* a chunk was begun since a share was decoded */
    uint32_t decoders;                 /* threads that decode shares: all but one at most, which is
                                          free for requests that come meanwhile */
    uint32_t sleepers;                 /* callers that wait for a completion */
    queue_item *flying;                /* reads under way, begun; in no order */
    uint32_t flying_count;
    uint64_t checked_ns; /* when devices that reads wait for were looked at last */
    uint64_t starved_ns; /* when a get found no staging; 0 = none since */
    queue_task *tasks, *last_task;
    struct kvt_load *loads;    /* layered loads that are open */
    uint64_t loads_starved_ns; /* when one of them found no staging; 0 = none since */
    bool ends_loads;           /* the queue ends, and its loads have not: threads stay for them */
    queue_list completed;
    uint32_t begun;
    uint64_t batches;
    kvt_queue_stats counts;
    pthread_t threads[QUEUE_THREADS_MAX + 1];
    pthread_t callers[1]; /* of `calls`: one, so that puts keep their order */
};

/* ---- queue_items.c ---- */

/*
 * Whether each item is free, waiting, begun or completed, as the counts have it, and no more fly
 * than were begun. It is for asserts alone. Lock held, and no item on its way between two lists.
 */
bool queue_adds_up(const kvt_queue *queue);

/* Puts an item that is in no list to the end or to the front of one. Lock held. */
void queue_append(queue_list *list, queue_item *item);
void queue_push(queue_list *list, queue_item *item);

/* Completes an item, at an instant of the clock, without a word to those who wait; queue_signal
 * makes the descriptor readable. Lock held. */
void queue_complete_one(kvt_queue *queue, queue_item *item, uint64_t now_ns);
void queue_signal(kvt_queue *queue);

/* Takes a load off the list. Lock held. */
void queue_unlist_load(kvt_queue *queue, struct kvt_load *load);

/* Takes the first item; NULL when there is none. Lock held. */
queue_item *queue_take(queue_list *list);

/* Completes items that were begun, in one hold of the lock and with one write of the descriptor. No
 * lock held. */
void queue_complete(kvt_queue *queue, queue_item *const *items, uint32_t count);

/* A begun item's read has landed. Any thread. */
void queue_arrive(kvt_queue *queue, queue_item *item);

/* Bytes have come of an item whose read is under way: its decoding is posted. Any thread. And: its
 * decoding has done what it could. */
void queue_come(kvt_queue *queue, queue_item *item);
void queue_decoded(kvt_queue *queue, queue_item *item);

/* The same as queue_come for one that could not be posted then. Lock held. */
void queue_decode_more(kvt_queue *queue, queue_item *item);

/* A thread decodes one entry, or QUEUE_SHARE_BYTES of several, before it hands the rest on. */
typedef struct queue_share {
    uint32_t count;
    uint64_t bytes;
} queue_share;

/* Adds an item to a share. False: the share is whole without it. */
static inline bool queue_share_take(queue_share *share, const queue_item *item)
{
    const uint64_t bytes = share->bytes + item->get.target.bytes;
    if (share->count != 0 && bytes > QUEUE_SHARE_BYTES) return false;
    share->count++;
    share->bytes = bytes;
    return true;
}

/*
 * Splits begun gets whose bytes are in memory: returns how many, from the first one on, the caller
 * decodes now, and lists the others, for which it wakes a caller that waits and threads of the
 * queue. *decodes: as the argument, whether the caller is a thread of the queue, which keeps an
 * entry that is larger than a share only while another thread stays free for requests; afterwards,
 * whether it counts as a decoder, until queue_end_share. No lock held.
 */
uint32_t queue_hand_on(kvt_queue *queue, queue_item *const *items, uint32_t count, bool *decodes);
void queue_end_share(kvt_queue *queue);

/* Whether a thread may decode a share: another one stays free for requests. Lock held. */
static inline bool queue_may_decode(const kvt_queue *queue)
{
    return queue->decoders + 1 < queue->thread_count;
}

/* Puts begun items back to the front of their classes. No lock held. */
void queue_put_back(kvt_queue *queue, queue_item *const *items, uint32_t count);

/* ---- queue_get.c: chunks of gets; no lock held ---- */

void queue_gets_begin(kvt_queue *queue, queue_item **items, uint32_t count);
void queue_gets_begin_waiting(kvt_queue *queue, queue_item **items, uint32_t count);
void queue_gets_arrived(kvt_queue *queue, queue_item **items, uint32_t count);
void queue_gets_share(kvt_queue *queue, queue_item **items, uint32_t count);
void queue_gets_give_up(kvt_queue *queue, queue_item **items, uint32_t count);

/* ---- layered loads (load.c) ---- */

/* Hands a task to the queue's threads. Any thread, also one that holds a load's lock. */
void queue_post(kvt_queue *queue, queue_task *task);

/* A load found no staging: load_tick is called for it in a moment. As queue_post. */
void queue_note_starved(kvt_queue *queue);

/* Lists a load, and takes it off. False: the queue is closed, or has taken the load off itself. */
bool queue_enter_load(kvt_queue *queue, struct kvt_load *load);
bool queue_leave_load(kvt_queue *queue, struct kvt_load *load);

/* Whether a call on a queue may go on: it is this process's. */
bool queue_is_ours(const kvt_queue *queue);

/* Makes a queue without threads that the store does not list, and frees one. signals: with an event
 * descriptor. NULL without memory. */
kvt_queue *queue_make(kvt_store *store, uint32_t depth, bool signals);
void queue_free(kvt_queue *queue);

/* Decodes a share, or begins gets that wait, on the thread of a caller that waits for completions.
 * False: there are none, or reads are under way. Lock held, and released meanwhile. */
bool queue_help(kvt_queue *queue);

/* Does the work of a queue without threads, until all that was submitted has completed. */
void queue_carry_out(kvt_queue *queue);

/* The list that an item waits in. */
queue_list *queue_list_of(kvt_queue *queue, const queue_item *item);

/* The function of the threads that carry puts and deletes out; the argument is the queue. */
void *queue_call_main(void *queue);

/* The function of a queue's threads; the argument is the queue. */
void *queue_main(void *queue);

/* kvt_queue_open, for a store whose open queues the owner lists.
 *   blocks   of a store that is no kvt_store: its threads carry out all requests by public calls */
KVT_NODISCARD kvt_status queue_open_owned(kvt_store *store, queue_owner owner, bool blocks,
                                          const kvt_queue_options *options, kvt_queue **queue_out);

/* kvt_store_close: ends the queues that are open. No lock held. */
void queue_stop_all(queue_owner owner);

/* ---- queue_views.c ---- */

/* A view that is about to be written. */
typedef struct queue_view {
    const kvt_view *view; /* checked for the layout */
    uint64_t tokens;      /* of the layout */
    uint64_t bytes;       /* packed */
    kvt_status *status;   /* becomes KVT_E_ARGUMENT */
} queue_view;

/* Gives KVT_E_ARGUMENT to views that meet an earlier one. Compared are runs of bytes with each
 * other, and block tables of one pool. */
void queue_views_check(const queue_view *views, uint32_t count);

#endif
