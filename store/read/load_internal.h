/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_internal.h - a layered load's own data, for load.c (its reads) and load_calls.c (its owner's
 * calls). The guards of the fields are in load.c.
 */
#ifndef STORE_LOAD_INTERNAL_H
#define STORE_LOAD_INTERNAL_H

#include "codecs/record.h"
#include "gpu/gpu_regions.h"
#include "store/read/queue_internal.h"

#include <kvterrace/load.h>
#include <stdatomic.h>

/* In place of a layer: the record's head, or the heads of its groups' records. */
#define LOAD_HEAD  UINT32_MAX
#define LOAD_HEADS (UINT32_MAX - 1)
_Static_assert(READ_WHOLE == UINT32_MAX - 2, "what is below is a layer");

/* Ranges of a layer, with the opaque groups before and behind it. */
#define LOAD_RANGES_MAX (KVT_RECORD_RANGES_MAX + 2)

typedef struct load_gpu load_gpu; /* load_gpu.c's */
struct load_share;
struct load_cell;
struct load_ask; /* load_remote.c's */

/* A cell that flies may be given up; one that runs is its task's, and ends by itself. */
typedef enum load_cell_state { LOAD_IDLE = 0, LOAD_FLYING = 1, LOAD_RUNNING = 2 } load_cell_state;

/* The part of an entry's layer that a step of a progressive load brings; of others, all of it. */
typedef enum load_form {
    LOAD_WHOLE = 0,
    LOAD_COARSE, /* the first planes */
    LOAD_REST,   /* the others, beside those */
    LOAD_NOTHING /* the entry has one form, which has come */
} load_form;

/* The forms of an entry in a progressive load. */
typedef struct load_coarse {
    kvt_load_quality said; /* what is known of it when it is held */
    bool wanted;           /* it may have a coarse form */
    kvt_status fault;      /* of its refinement; under the load's lock */
    kvt_record_head *head; /* of its coarse form; NULL: it has none */
    uint8_t *kept;         /* coarse bytes that were read, */
    uint64_t *kept_at;     /* where each layer's begin */
    uint64_t kept_bytes;
} load_coarse;

/* The ranges of a layer in its group's record. The opaque groups that come with it lie behind. */
typedef struct load_ranges {
    uint32_t count;
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
} load_ranges;

/* One layer of an entry that is read, on its way. */
typedef struct load_cell {
    queue_task task;
    kvt_load *load;
    size_t entry;
    uint32_t layer; /* a step, LOAD_HEAD or LOAD_HEADS */
    load_cell_state state;
    store_read *read;   /* that it uses while it is not idle; */
    bool joins;         /* which is another's, and then: */
    read_waiter waiter; /* posts the task */
    uint64_t bytes;     /* that it wants */
    uint64_t room;      /* behind them, for coarse bytes */
    load_ranges own;
} load_cell;

/* A group of layers of an entry; an entry without groups has one. */
typedef struct load_section {
    const kvt_view *view;
    kvt_layout layout;
    uint32_t first_layer; /* its first one in the entry */
    uint64_t packed_at;   /* of its bytes among the entry's */
    uint64_t offset;      /* of its record in the entry's, once that is known */
    uint64_t bytes;
    uint64_t head_bytes;   /* to read for its head; 0 of an opaque group, which is read whole */
    kvt_record_head *head; /* looked at once; NULL: not yet, staged, or opaque */
    uint64_t kept_bytes;   /* of it in memory */
} load_section;

/* A layer of an entry that is read, from the point of view of sharing. */
typedef enum load_layer {
    LOAD_LACKS = 0, /* nobody has asked for it */
    LOAD_ASKS = 1,  /* a cell does */
    LOAD_TAKES = 2, /* an offer is being decoded */
    LOAD_HAS = 3    /* an offer was decoded */
} load_layer;

/* One entry of a load. */
typedef struct load_entry {
    kvt_key key;
    _Atomic kvt_status status; /* KVT_QUEUED: on its way */
    uint32_t issued;           /* layers of it that have been issued */
    load_section *sections;
    uint32_t section_count;
    bool grouped; /* the entry has groups, maybe one */
    kvt_layout layout;
    uint64_t data_bytes; /* as it was put */
    kvt_tier tier;       /* where it lay, and how */
    kvt_variant variant;
    kvt_record_spec expected;
    store_place *place; /* held as a reader; NULL: nothing is */
    bool lent;          /* the record lies in memory, here: */
    const void *record;
    gpu_region home; /* the memory of the device that has lent it to a load for a GPU; or none */
    uint64_t far;    /* or in the memory of the load's GPU, at this address: lent, too; else 0 */
    uint64_t record_bytes;
    uint64_t scratch_bytes;
    store_staged *staged;              /* held as a user, instead of a place */
    struct load_ask *ask;              /* instead of both: its read from another host, whose record
                                          is lent once the load is open */
    kvt_load *load;                    /* that it belongs to */
    load_coarse *coarse;               /* its forms; NULL: the load is not progressive */
    struct load_share *share;          /* of its place, when that is read; or NULL */
    struct load_entry *share_next;     /* of the share; under the reads' lock */
    struct load_entry *share_previous; /* same */
    bool opened;                       /* its heads may be copied; same */
    atomic_uchar *layers;              /* load_layer of each, under the load's lock; a look without
                                          it may be wrong. NULL when nothing is read */
    bool damaged;                      /* its place could not be read */
    bool unsound;                      /* kernels of a GPU have found bytes of it unsound */
    bool by_cpu;                       /* they have done so before: the CPU decodes it */
    size_t cells_at;                   /* the first of its cells, when it is read */
} load_entry;

/* Neighbours that lie in memory: their layers are carried out together, because one of them may be
 * a few bytes. What is read lies between them, and is not theirs. */
typedef struct load_group {
    size_t first; /* of the entries */
    size_t end;
    uint32_t issued; /* layers of it that have been */
} load_group;

/* One layer of a group that waits for a thread, or for the owner's next wait. */
typedef struct load_part {
    struct load_part *next;
    const load_group *group;
    uint32_t layer;
} load_part;

/* A call of a thread of the queue: it runs ready pieces until there are none. */
typedef struct load_poke {
    queue_task task;
    kvt_load *load;
    bool posted;
} load_poke;

#define LOAD_GROUP_ENTRIES 64u
#define LOAD_GROUP_BYTES   UINT64_C(262144) /* of a layer: a larger group is split */
#define LOAD_POKES         8u               /* threads of the queue that a load takes at most */

/*
 * A load that asks other hosts is not open until all of them have answered, or the deadline has
 * passed: then what it is to load is known, and its reads begin.
 *
 *     asks -> open
 *          \-> empty: nothing can be loaded
 *
 * Layers are counted in steps: in a progressive load each comes twice, plain + n being layer n
 * refined. Three counts of steps only grow: issued <= complete + slots, so that no two steps share
 * a cell, and issued <= released + layers_ahead + 1. complete <= issued while something is left to
 * come; when nothing is, complete becomes the number of steps.
 */
struct kvt_load {
    const base_load_calls *elsewhere; /* NULL: of a store of this process (base/handle_calls.h) */
    kvt_store *store;
    kvt_queue *queue;
    uint32_t forks;            /* base_fork_guard_count of the process that began it */
    kvt_load *next, *previous; /* the queue's open loads; under the queue's lock */
    bool listed;               /* among them; same */
    load_gpu *gpu;             /* the views are memory of a GPU; or NULL */
    kvt_load_options options;
    uint64_t began_ns; /* store_now_ns */
    uint64_t check_ns; /* when a wait looks at devices next; under `lock` */
    size_t count;
    uint32_t layers; /* steps, or the entries' layers before the load is open */
    uint32_t plain;  /* the entries' layers: as many as there are steps, or half of them */
    uint32_t slots;  /* cells of an entry: one for each step of the window */
    load_entry *entries;
    load_section *sections; /* of all entries, one behind the other */
    size_t section_count;
    load_coarse *coarse; /* of each entry of a progressive load; or NULL */
    kvt_view *packed;    /* of each section, for views of packed buffers; NULL: there is none */
    load_cell *cells;
    size_t cell_count;
    load_group *groups;
    size_t group_count;
    load_part *parts; /* of each group: one for each layer of the window */
    load_part *ready, *last_ready;
    uint32_t ready_count;
    load_poke pokes[LOAD_POKES];
    uint32_t poked; /* of them posted, or not yet begun */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_mutex_t announce_lock; /* taken alone */
    uint32_t announced;            /* under announce_lock */
    _Atomic uint32_t complete;
    uint32_t issued;
    uint32_t released;
    uint32_t *pending; /* of each slot: cells and parts of its layer on their way */
    uint32_t heads;    /* on their way */
    uint32_t flying;   /* cells that are not idle, and parts that have not ended */
    uint64_t bytes_read;
    uint64_t bytes_shared;
    atomic_uchar *layer_states;     /* of all entries that are read */
    uint64_t needs[KVT_TIER_COUNT]; /* of the pass, where entries of the tier are read; 0 = none */
    bool reads;                     /* some entry comes from a device: the deadline counts */
    bool asks;           /* other hosts have not answered: no more is known than statuses */
    bool empty;          /* they have, and there is nothing to load */
    bool ask_waits;      /* for staging: a tick goes on */
    uint32_t ask_steps;  /* threads in the task */
    atomic_uint asking;  /* reads of theirs under way, and one for the beginning of them */
    queue_task ask_task; /* posted when all of them have ended; the next three are its: */
    size_t ask_next;     /* the next entry to ask for */
    uint64_t ask_deadline_ns;
    uint64_t ask_most; /* of staging that they may take, */
    uint64_t ask_room; /* and what is left of it */
    bool starved;      /* for staging: the queue's threads try again */
    bool ending;
    bool orphan; /* its queue was closed */
    atomic_uint busy;
};

/* The queue closes: ends the load but for its owner's call. No lock held. */
void load_orphan(kvt_load *load);

/* Tries to issue what had found no staging, and drops one hold of `busy`. No lock held. */
void load_tick(kvt_load *load);

/* ---- load_share.c: the reads' lock is taken inside ---- */

/* Lists an entry with the others that have its place open, and a get's read of the place, which may
 * be NULL. take_offer runs with each load_offer. Without memory the entry reads alone. The store's
 * lock is held. */
void load_share_enter(load_entry *entry, store_read *read, void (*take_offer)(void *offer));

/* Takes an entry off, which is in no read any more. */
void load_share_leave(load_entry *entry);

/* Copies the heads that another load has checked. False: none has. */
bool load_share_heads(load_entry *entry);

/* An entry's heads are open: others may copy them, and offers may come. */
void load_share_opened(load_entry *entry);

/* Joins a read under way that brings what a cell wants. False: there is none. The load's lock is
 * held. */
bool load_share_join(load_cell *cell);

/* A cell's own read is about to start, and cells' reads have started: now others may look at the
 * transfers. The load's lock is held. */
void load_share_fly(load_cell *cell);
void load_share_started(load_cell *const *cells, uint32_t count);

/* A layer, or all, that is offered to an entry. */
typedef struct load_offer {
    queue_task task;
    load_entry *entry;
    store_read *read; /* used */
} load_offer;

/* A cell's own read has landed, or the one that it has joined has ended. */
void load_landed(void *cell);

/* The tasks of an offer, of a cell and of a poke. */
void load_take_offer(void *offer);
void load_run(void *cell);
void load_poked(void *poke);

/* Whether an entry lies in memory: nothing of it is read. */
static inline bool load_is_near(const load_entry *entry)
{
    return entry->staged != NULL || entry->lent || entry->far != 0;
}

/* ---- load_calls.c ---- */

/* Gives the sections of an entry their layouts. False: there is another number of them. The store's
 * lock is held. */
bool store_load_take_layouts(load_entry *entry, const entry_kind *kind);

/* Finds and checks the heads of a record that lies in memory. As load_open_table, and the next. */
kvt_status store_load_open_lent(load_entry *entry);

/* ---- load_record.c; no lock held ---- */

/* Finds the groups of an entry in the table of its record, whose first bytes these are; an entry
 * without groups is one section. NULL: nothing has been read, and the record's size alone is looked
 * at. KVT_OK; KVT_E_CORRUPT, KVT_E_MISMATCH, KVT_E_VERSION. */
kvt_status load_open_table(load_entry *entry, const void *head, uint64_t bytes);

/* Checks the head of a section's record, and keeps what its layers need. As kvt_record_head_open,
 * or KVT_E_MEMORY. */
kvt_status load_open_head(const load_entry *entry, load_section *section, const void *head,
                          uint64_t bytes, bool whole);

/* The same of all sections' heads, which lie one behind the other in the payload, or in the whole
 * record. */
kvt_status load_use_heads(const load_entry *entry, const uint8_t *payload, bool whole);

/* How many layers are read and decoded with a layer, once its head is open: itself and those behind
 * it that are coded with it. 0: it comes with a layer before it, and is never read. Any lock. */
uint32_t load_together(const load_entry *entry, uint32_t layer);

/*
 * The ranges of a layer that is read, and of those that come with it. Any lock.
 *   own     in its group's record; of the rest of a layer those of the coarse form behind it, too
 *   ranges  what is to be read of the entry's record, one behind the other in memory: those, and
 *           the opaque groups that come with the layer; room for LOAD_RANGES_MAX
 * Statuses as of kvt_record_head_ranges.
 */
kvt_status load_find_ranges(const load_entry *entry, uint32_t layer, load_form form,
                            load_ranges *own, kvt_record_range *ranges, uint32_t *count_out);

/* Decodes one layer of an entry into its view, which is memory of the host, and what comes with it;
 * nothing for a layer that comes with another. LOAD_REST decodes from all planes. `own` are the
 * layer's ranges, and what was read lies in `payload`; NULL: payload is the record. */
kvt_status load_decode(kvt_store *store, const load_entry *entry, uint32_t layer, load_form form,
                       const load_ranges *own, const uint8_t *payload);

/* Copies one layer of bytes that a put has handed over, and what comes with it. */
void load_copy_staged(const load_entry *entry, uint32_t layer);

/* The section that has a layer of an entry. */
const load_section *store_load_section(const load_entry *entry, uint32_t layer);

/* ---- load_coarse.c; no lock held, but as said ---- */

/* Gives the entries of a progressive load their forms. False: no memory. */
bool store_coarse_make(kvt_load *load);
void store_coarse_free(kvt_load *load);

/* Looks whether a held entry may have a coarse form, and what its forms lose. The store's lock is
 * held. */
void store_coarse_hold(const kvt_load *load, load_entry *entry, const store_entry *found);

/* Gives an entry whose heads are open its coarse form, unless there is no room for it. */
void store_coarse_open(load_entry *entry);

/* Whether an entry has a coarse form; known once its heads are open. */
static inline bool load_has_coarse(const load_entry *entry)
{
    return entry->coarse != NULL && entry->coarse->head != NULL;
}

/* The form in which a step brings an entry, and the layer that it is of. */
static inline load_form load_form_of(const kvt_load *load, const load_entry *entry, uint32_t step)
{
    if (load_has_coarse(entry)) return step < load->plain ? LOAD_COARSE : LOAD_REST;
    return step < load->plain ? LOAD_WHOLE : LOAD_NOTHING;
}

static inline uint32_t load_layer_of(const kvt_load *load, uint32_t step)
{
    return step < load->plain ? step : step - load->plain;
}

/* The ranges of a layer's form, of which the first ones are read: of the rest of a layer, those of
 * the coarse form lie behind. Statuses as of kvt_record_head_ranges. Any lock. */
kvt_status store_coarse_ranges(const load_entry *entry, uint32_t layer, load_form form,
                               load_ranges *own, uint32_t *read_out);

/* Whether a step brings nothing of an entry: its layer comes with one before, or has one form. Any
 * lock. */
bool store_coarse_lacks(const kvt_load *load, const load_entry *entry, uint32_t step);

/* Keeps the coarse bytes of a layer that were read; puts them behind the rest of it. */
void store_coarse_keep(const load_entry *entry, uint32_t layer, const load_ranges *own,
                       const uint8_t *payload);
void store_coarse_join(const load_entry *entry, uint32_t layer, const load_ranges *own,
                       uint64_t read_bytes, uint8_t *payload);

/* Verifies the rest of a layer before it is written anywhere. KVT_OK; KVT_E_CORRUPT. */
kvt_status store_coarse_verify(load_entry *entry, uint32_t layer, const load_ranges *own,
                               const uint8_t *payload);

/* ---- load_gpu.c ---- */

/* Makes a load one into the memory of the GPU that its first view names. As gpu_sites_take. */
kvt_status store_gpu_load_open(kvt_load *load, const kvt_view *view);

/* Checks that a section's view, which is sound, is memory of the load's GPU. */
kvt_status store_gpu_load_check(const kvt_load *load, const load_section *section);

/* Lends a place's record to the load's kernels, as store_gpu_far_lend. The store's lock is held. */
uint64_t store_gpu_load_lend(const kvt_load *load, const store_place *place);

/* Opens the heads of the records that were lent so. */
void store_gpu_load_open_far(kvt_load *load);

/* Makes room for the events of the layers, once their number is known. False: no memory. */
bool store_gpu_load_make_marks(kvt_load *load);

/* Whether the events of all views are over: nothing is written before. Lock held. */
bool store_gpu_load_is_ready(kvt_load *load);

/* Decodes or copies a layer as load_decode and load_copy_staged do, and puts the copies into the
 * stream. Also KVT_E_GONE, KVT_E_IO. No lock held. */
kvt_status store_gpu_load_decode(kvt_load *load, load_entry *entry, uint32_t layer, load_form form,
                                 const load_ranges *own_ranges, const uint8_t *payload);

/* Reads the verdicts of all work that is in the stream, and waits for it; entries whose pages have
 * not got what they should have fail. No lock held. */
void store_gpu_load_settle(kvt_load *load);

/* Makes the events of the first layers, whose copies are in the stream. Lock held. */
kvt_status store_gpu_load_mark(kvt_load *load, uint32_t layers);

/* Waits for all copies; entries whose copies failed have failed. No lock held. */
void store_gpu_load_finish(kvt_load *load);

/* Makes a stream wait for a layer that was announced. As gpu_follow; KVT_E_STATE: the load has
 * ended. */
kvt_status store_gpu_load_follow(kvt_load *load, uint32_t layer, void *stream);
void store_gpu_load_free(kvt_load *load);

/* ---- load_remote.c; no lock held ---- */

/* Marks the missing entries that other hosts may be asked for. False: there is none. */
bool load_may_ask(kvt_load *load);

/* Begins to ask. True: there is nothing to wait for, and the load can be opened; else a thread of
 * the queue opens it. The queue lists the load. */
bool load_ask_others(kvt_load *load);

/* Takes what other hosts have answered: the record of an entry that has come is lent. And makes it
 * the entries' status, under the lock: the asking is over. */
void load_take_answers(kvt_load *load);
void load_use_answers(kvt_load *load);

/* Ends the asking: no read is waited for any more. ending is set. */
void load_stop_asking(kvt_load *load);

/* Goes on with asking that had found no staging. Lock held. */
void load_ask_again(kvt_load *load);

/* Counts how an entry's read ended, and lets go of it. */
void load_end_remote(kvt_load *load, load_entry *entry);

/* ---- load_calls.c ---- */

/* Checks what is there, and begins its reads, once it is known. KVT_OK; KVT_MISS: there is nothing
 * to load; KVT_E_MEMORY. Lock held, or nobody else knows the load. */
kvt_status load_open(kvt_load *load);

/* ---- load.c ---- */

/* Runs what waits for a thread, one layer of one group. False: nothing does. Lock held, and
 * released meanwhile. */
bool load_step(kvt_load *load);

/* Issues what the window allows. Lock held. */
void load_pump(kvt_load *load);

/* Starts the reads of the heads, or the layers where there is none. Lock held. */
void load_begin_reads(kvt_load *load);

/* Gives up cells that fly, and waits for those that run. No lock held; ending is set. */
void load_stop(kvt_load *load);

/* Gives up reads that wait for a device which is out of service. No lock held. */
void load_check_devices(kvt_load *load);

#endif
