/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence.h - a sparse sequence's own data, for the files that carry out the calls of sparse.h:
 *
 *     sequence_open.c     options, room, close
 *     sequence_give.c     layers from live K and V or from entries
 *     sequence_append.c   appended tokens: what is in memory, and pages that are written behind
 *     sequence_step.c     select, wait, done
 *     sequence_fetch.c    the reads of a step: what to read, verifying, copies, decoding
 *     sequence_window.c   what stays between steps
 *     sequence_hbm.c      the part of it that lies in a GPU's memory
 *     sequence_divide.c   how much of the window each unit has
 *     sequence_observe.c  warm-up from the prompt's last queries
 *     sequence_explain.c  why a step brings what it brings
 *     sequence_given.c    steps for what a model has selected by itself; ..._rows.c: their rows
 *
 *     sequence   layers x KV heads units; one arena of window memory; room lent by the store
 *     unit       index, code metadata, table of pages, window; sinks and local rows
 *     step       one layer's select until done: plan, reads, rows. A layer has one at a time
 *
 *     (none) --select--> SELECTED --wait--> WAITED --done--> (none)
 *        |                   ^
 *        +--hint--> HINTED --+   the reads that a hint has begun are the step's (sequence_given.c)
 *
 * A page that stays is in the arena as rows, decoded from the variant that was read, so that a step
 * attends to it where it lies. A better variant of it is read and decoded anew.
 *
 * Thread rule: one thread at a time has a sequence. No lock is held here over anything; completions
 * of reads touch the gather's memory alone.
 */
#ifndef SPARSE_SEQUENCE_H
#define SPARSE_SEQUENCE_H

#include <kvterrace/sparse.h>
#include <stdatomic.h>

#include "attend.h"
#include "block.h"
#include "choose.h"
#include "joining.h"
#include "page_table.h"
#include "singles.h"
#include "sparse/decide/windows.h"
#include "tiers/pool/extent.h"

#define SPARSE_NOT_HELD UINT32_MAX

/* Of a page's slot in HBM. MOVING: its rows are in the block of the move whose number the low bits
 * are, on their way up. LEAVES: they are in the slot still, and on their way down. */
#define SPARSE_MOVING 0x80000000u
#define SPARSE_LEAVES 0x40000000u

/* Rows that are always resident: packed [tokens][head_dim] of one head. */
typedef struct sparse_resident {
    uint8_t *keys, *values;
    uint32_t tokens;
    uint32_t begin; /* of local ones: tokens that have left from the front of their memory */
} sparse_resident;

/*
 * Appended tokens of a unit behind the local ones. A page is open or full in memory, then it is
 * being written and still in memory, then at rest as any other: the unit's pages end with them.
 */
typedef struct sparse_tail {
    sparse_joining joining;
    sparse_added added; /* its pages are those at rest */
    sparse_table table;
    sparse_code *codes;  /* of each page */
    uint32_t *positions; /* [pages_max][page_tokens] */
    uint32_t *chunks;    /* of each page's worth of tokens in order, the page at rest that has it;
                               SPARSE_NOT_HELD. Where the model selects */
    sparse_joined *writing; /* at most one: it becomes page added.pages */
    sparse_block *block;
    sparse_joined *stuck; /* full ones that drives have refused too often: they stay */
    uint32_t stuck_count;
    bool closed; /* a drive has a write for good, so its slot is not used again: no page follows */
} sparse_tail;

/* What windows of several sizes would have saved, in bytes (sequence_divide.c). */
#define SPARSE_SIZES 8u
typedef struct sparse_curve {
    double steps, wanted, saved[SPARSE_SIZES];
} sparse_curve;

typedef struct sparse_unit {
    sparse_index index;
    sparse_paging paging;
    sparse_code code;
    singles_codes single_codes; /* zeroed: its pages are brought whole */
    sparse_table table;
    windows_unit window;
    uint32_t *place;     /* of each page in the arena, in grains; SPARSE_NOT_HELD */
    uint32_t dram_pages; /* that have one */
    uint32_t *slot; /* of each page in HBM; SPARSE_NOT_HELD. NULL, as the next: no window there */
    uint32_t
        *slot_page; /* that each of its slots has, or is to have; SPARSE_NOT_HELD: it is free */
    uint32_t slots; /* of the unit in HBM */
    uint32_t coming_down; /* pages that will need a place in the arena */
    float *heat;          /* mean weight over the prompt's last queries; NULL until observed */
    sparse_curve curve;
    double gain;           /* of its slopes, over the queries that were observed */
    uint64_t target_bytes; /* that the window is to have in DRAM */
    sparse_resident sinks, local;
    sparse_tail tail;
    uint32_t *token_at; /* of a place of the zone its position, where the model selects; NULL, as */
    uint32_t *place_of; /* the inverse is: they are the same */
} sparse_unit;

/* Memory that a gather and a step share: the last of them frees it. */
typedef struct sparse_buffer {
    uint8_t *memory;
    uint64_t bytes;
    _Atomic uint32_t holds;
} sparse_buffer;

/* A page that a step reads. */
typedef struct sparse_item {
    uint32_t head, page;
    uint8_t variant; /* pages_variant */
    sparse_part part;
    uint32_t range;        /* of the fetch; of a page that lies in memory: */
    const uint8_t *memory; /* its part, and there is no range. NULL: on drives */
    tiers_copy copies[SPARSE_COPIES_MAX];
    const uint8_t *bytes; /* once verified; NULL: lost */
    const uint8_t *rows;  /* K, then V, once decoded; NULL before */
} sparse_item;

/* Reads under way, and their pages. */
typedef struct sparse_fetch {
    sparse_item *items;
    tiers_gather_range *ranges; /* of the items that lie on drives */
    uint32_t count, range_count, room;
    bool begun;
    tiers_gather *gather; /* NULL: there are no ranges */
    sparse_buffer *buffer;
    uint64_t bytes; /* of the ranges */
    /* Second reads of pages whose bytes failed verification. */
    struct sparse_fetch *again;
} sparse_fetch;

typedef struct sparse_head_work {
    sparse_work work;
    pages_plan plan; /* of the last select or hint, within budget_bytes */
    uint64_t budget_bytes;
    uint8_t *held;       /* of each page, before the step */
    uint8_t *coming;     /* held, or on its way by a hint */
    uint8_t *variant;    /* that the step brings */
    sparse_item **items; /* that bring it; NULL: what is held stays */
    float *lse;          /* [group] of sinks and local rows */
    float *estimate, *estimate_lse;
    uint32_t *lost;
    uint32_t lost_count;
    kvt_sparse_page *pages;
    uint32_t page_room;
    uint32_t *positions; /* of the zone's pages in this step */
    uint32_t position_room;
    singles_choice singles; /* zeroed without single_share */
    uint64_t *asked;        /* a bit of each position, where the model selects; or NULL */
    uint8_t *rows;          /* decoded K and V */
    uint64_t rows_bytes;
} sparse_head_work;

struct kvt_sparse_step {
    kvt_sparse *sequence;
    uint32_t layer;
    enum { STEP_FREE, STEP_HINTED, STEP_SELECTED, STEP_WAITED } state;
    sparse_fetch fetch, hint;
    sparse_fetch instead; /* of pages in HBM, once the device has failed */
    sparse_head_work *heads;
    kvt_sparse_head *heads_out;
    kvt_sparse_pages pages;
};

#define SPARSE_STEPS_MAX 4u

/*
 * Rows on their way between the windows. One that goes up to a slot that a page leaves waits in the
 * block until that one's rows have come down.
 *
 *     block   [rows that go up | rows that came down], whole grains each
 *     state   FREE -> DOWN -> UP -> FREE, or FREE -> UP -> FREE
 */
typedef struct sparse_move {
    sparse_block *block; /* NULL until the first use */
    sparse_unit *unit;
    uint32_t layer, slot;
    uint32_t up, down; /* pages; SPARSE_NOT_HELD: none, or it has left the window meanwhile */
    enum { MOVE_FREE, MOVE_DOWN, MOVE_UP } state;
} sparse_move;

#define SPARSE_MOVES_MAX 64u

/* The window in a GPU's memory: one object of slots, `slots` of each unit in the order of units. */
typedef struct sparse_hbm {
    tiers_location *location; /* NULL: there is none */
    uint64_t address;         /* as the GPU's kernels find it */
    uint32_t slots;           /* of a unit */
    uint32_t slot_bytes;      /* whole grains */
    bool lost;                /* its device has failed */
    bool *chosen;             /* scratch: of each page, whether it is to be there */
    sparse_move moves[SPARSE_MOVES_MAX];
} sparse_hbm;

struct kvt_sparse {
    kvt_store *store;
    kvt_sparse_options options;
    uint32_t group, zone_tokens, local_first; /* tokens; a position */
    uint32_t local_most;  /* local and appended tokens, with those that have joined */
    uint32_t local_keep;  /* local tokens from which on the oldest one joins */
    uint32_t local_room;  /* tokens that the local rows have memory for */
    uint32_t row_bytes;   /* of one token, head and side */
    uint32_t value_bytes; /* the same of V; 0: there is one side, and K is V */
    uint32_t variants;    /* a mask of those that the pages have */
    uint32_t layers_given;
    bool give_failed; /* of a layer half of which is there: none follows */
    uint64_t id;
    double built_seconds; /* that the layers took: what a kept sequence saves */
    float scale;
    pages_terms terms;
    sparse_unit *units;      /* [layers][kv_heads] */
    uint8_t *rows;           /* of all sinks and local rows */
    uint32_t *appended;      /* tokens of each layer */
    uint32_t *layer_steps;   /* that have ended, of each layer */
    uint64_t capacity_bytes; /* of all units' windows in DRAM */
    double seconds_per_byte; /* of reading */
    uint8_t *meter_variant;  /* scratch of sequence_divide.c: pages */
    sparse_block *blocks[2]; /* of give: one is written while the other is filled */
    store_scratch *scratch;
    tiers_location *arena_location; /* NULL: heap */
    uint8_t *arena;
    tiers_space *space; /* of the arena, in grains */
    sparse_hbm hbm;
    uint32_t *positions;        /* of sinks, then of local rows */
    uint8_t *index_keys;        /* [layers][tokens_max][key_bytes]; NULL: there are none */
    uint32_t *index_key_tokens; /* of each layer */
    uint32_t *left;             /* scratch of a window's step: pages */
    uint32_t *placeless;        /* behind it: those that stay and have no place yet */
    uint8_t *scratch_rows;      /* of the page code */
    singles_work singles;       /* scratch of a choice; zeroed without single_share */
    sparse_paging tail_paging;  /* of all pages that tokens may be appended in */
    sparse_paging tail_page;    /* of one of them: each is coded for itself */
    cluster_work tail_work;
    float *tail_means; /* keys, values: [page's clusters][head_dim] each */
    kvt_sparse_step steps[SPARSE_STEPS_MAX];
    bool ready;      /* all layers are there, and the steps have their memory */
    bool slopes_fit; /* indexes are no larger any more than their share allows */
    kvt_sparse_stats stats;
};

static inline sparse_unit *sparse_unit_of(kvt_sparse *s, uint32_t layer, uint32_t head)
{
    return &s->units[(size_t)layer * s->options.layout.kv_heads + head];
}

/* Pages that a step may bring: the zone's, then those that were appended. */
static inline uint32_t sparse_unit_pages(const sparse_unit *unit)
{
    return unit->paging.pages + unit->tail.added.pages;
}

/* Whether a page was appended, and its number among those. */
static inline bool sparse_unit_appended(const sparse_unit *unit, uint32_t page, uint32_t *own_out)
{
    const bool appended = page >= unit->paging.pages;
    *own_out = appended ? page - unit->paging.pages : page;
    return appended;
}

/* The table of a page, and its number there. */
static inline const sparse_table *sparse_unit_table(const sparse_unit *unit, uint32_t page,
                                                    uint32_t *own_out)
{
    return sparse_unit_appended(unit, page, own_out) ? &unit->tail.table : &unit->table;
}

/* The seed of a unit's checksums. */
static inline uint64_t sparse_unit_id(const kvt_sparse *s, uint64_t number)
{
    return s->id + number * UINT64_C(0x2545f4914f6cdd1d);
}

/* ---- sequence_step.c ---- */

/* Memory of the steps, once all units are known. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_steps_open(kvt_sparse *s);
void sparse_steps_close(kvt_sparse *s);

/* The step of a layer that is under way, or NULL. */
static inline kvt_sparse_step *sparse_step_find(kvt_sparse *s, uint32_t layer)
{
    for (uint32_t i = 0; i < SPARSE_STEPS_MAX; i++)
        if (s->steps[i].state != STEP_FREE && s->steps[i].layer == layer) return &s->steps[i];
    return NULL;
}

/* Bytes that the pages of one head may have in a step. */
static inline uint64_t sparse_head_budget(const kvt_sparse *s)
{
    const uint64_t bytes = s->options.budget_bytes;
    return bytes == KVT_SPARSE_ALL ? bytes : bytes / s->options.layout.kv_heads;
}

/* The problem of choosing a head's pages within a budget. */
static inline pages_problem sparse_head_problem(const kvt_sparse *s, const sparse_unit *unit,
                                                const float *weight, const uint8_t *held,
                                                uint64_t budget_bytes)
{
    return (pages_problem){.count = sparse_unit_pages(unit),
                           .weight = weight,
                           .page_tokens = unit->paging.page_tokens,
                           .held = held,
                           .held_counts = true,
                           .budget_bytes = budget_bytes,
                           .terms = &s->terms};
}

/* For the warm-up: whether a layer has a step under way, or no step is free. */
bool sparse_step_is_open(kvt_sparse *s, uint32_t layer);
KVT_NODISCARD kvt_status sparse_step_add_weights(kvt_sparse *s, uint32_t layer,
                                                 const float *queries, float share);
KVT_NODISCARD kvt_status sparse_step_warm_up(kvt_sparse *s, uint32_t layer);

/* A step that may begin for a layer: the one that a hint began, or one that is free. KVT_OK;
 * KVT_E_STATE; KVT_BUSY. */
KVT_NODISCARD kvt_status sparse_step_take(kvt_sparse *s, uint32_t layer,
                                          kvt_sparse_step **step_out);
void sparse_step_end(kvt_sparse *s, kvt_sparse_step *step);
/* Memory for what a head's step brings: pages, positions, coded tokens. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_step_room(const kvt_sparse *s, sparse_head_work *head,
                                          uint32_t pages, uint32_t tokens, uint64_t coded);
/* Adds a share of one step's weights to the heat of a unit's pages, and to its curve. */
void sparse_step_add_heat(kvt_sparse *s, sparse_unit *unit, const float *weight, float share);

/* ---- sequence_given_rows.c ---- */

/* Tokens of a layer. */
uint32_t sparse_given_tokens(const kvt_sparse *s, uint32_t layer);
/* The first position from one on that is asked for, below `end`; end: none. */
uint32_t sparse_given_next(const uint64_t *asked, uint32_t from, uint32_t end);
/* The page at rest that has a position; SPARSE_NOT_HELD: it is in memory, and in no such page. */
uint32_t sparse_given_page(const kvt_sparse *s, const sparse_unit *unit, uint32_t position);

/* Lists the rows that a step was asked for. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_given_bring(kvt_sparse *s, kvt_sparse_step *step, uint32_t h);
/* Orders a unit's zone by its list of positions, and makes the inverse. KVT_OK: the list is the
 * unit's; KVT_E_CORRUPT: not each position comes once; KVT_E_MEMORY: the list is the caller's. */
KVT_NODISCARD kvt_status sparse_given_arrange(const kvt_sparse *s, sparse_unit *unit,
                                              uint32_t *token_at);

/* Memory for index keys. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_given_open(kvt_sparse *s);
void sparse_given_close(kvt_sparse *s);

/* ---- sequence_observe.c ---- */

/* Zeroes the heat of a layer's pages. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_observe_begin(kvt_sparse *s, uint32_t layer);
/* Copies, divides and warms up by the heat. As kvt_sparse_observe. */
KVT_NODISCARD kvt_status sparse_observe_end(kvt_sparse *s, uint32_t layer);

/* ---- sequence_append.c ---- */

/* What appended tokens need in a unit that has its index, and in a sequence. KVT_OK; KVT_E_MEMORY;
 * as sparse_table_open. */
KVT_NODISCARD kvt_status sparse_append_open(kvt_sparse *s);
KVT_NODISCARD kvt_status sparse_append_open_unit(kvt_sparse *s, sparse_unit *unit);
/* Waits for a page that is being written, unless its drive is out of service. */
void sparse_append_close_unit(sparse_unit *unit);
void sparse_append_close(kvt_sparse *s);

/* Memory for so many tokens more of a unit. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_append_reserve(const kvt_sparse *s, sparse_unit *unit,
                                               uint32_t tokens);
/* One token behind the others, in memory that was reserved. */
void sparse_append_token(const kvt_sparse *s, sparse_unit *unit, const uint8_t *key,
                         const uint8_t *value, uint32_t position);

/* Appended pages that are in memory. `each` may be NULL; returns their number. */
typedef void sparse_append_each(void *context, const sparse_joined *page);
uint32_t sparse_append_in_memory(const sparse_unit *unit, sparse_append_each *each, void *context);

/* Position of the first local token of a unit. */
static inline uint32_t sparse_local_position(const kvt_sparse *s, uint32_t layer,
                                             const sparse_unit *unit)
{
    return s->options.layout.tokens + s->appended[layer] - unit->local.tokens;
}

/* Whether a page has a coded form. */
bool sparse_unit_has_code(const kvt_sparse *s, const sparse_unit *unit, uint32_t page);
/* Rows of a page, as sparse_code_page; positions of its tokens. */
KVT_NODISCARD kvt_status sparse_unit_decode(const kvt_sparse *s, const sparse_unit *unit,
                                            uint32_t page, pages_variant variant,
                                            const uint8_t *source, uint8_t *keys, uint8_t *values);
void sparse_unit_positions(const kvt_sparse *s, const sparse_unit *unit, uint32_t page,
                           uint32_t *positions);

/* ---- sequence_open.c ---- */

/* Waits for both blocks that are being written. The first failure. */
KVT_NODISCARD kvt_status sparse_sequence_wait_blocks(kvt_sparse *s);

/* Says what a status means where nobody has said more. */
void sparse_sequence_say(kvt_status status, char *message, size_t message_size);

/* The geometry of so many tokens in pages of this sequence's kind. KVT_OK; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status sparse_sequence_paging(const kvt_sparse *s, uint32_t tokens,
                                                uint32_t segment_tokens, uint32_t page_tokens,
                                                sparse_paging *paging);

/* Room and memory for a sequence of `options->layout.tokens`, without any layer; zone_has_room:
 * also for the pages of the zone. As kvt_sparse_open_live. */
KVT_NODISCARD kvt_status sparse_sequence_make(kvt_store *store, const kvt_sparse_options *options,
                                              bool zone_has_room, kvt_sparse **sequence_out,
                                              char *message, size_t message_size);

/* More room on SSD, for pages of the zone. KVT_OK; KVT_E_SPACE: the message has the bytes that are
 * missing. */
KVT_NODISCARD kvt_status sparse_sequence_grow(kvt_sparse *s, uint64_t bytes, char *message,
                                              size_t message_size);

/* Counts a layer as there; the last one makes the sequence ready. */
KVT_NODISCARD kvt_status sparse_sequence_add_layer(kvt_sparse *s);

/* ---- sequence_fetch.c ---- */

/* Adds the read of a page to a fetch that has not begun. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_fetch_add(kvt_sparse *s, sparse_fetch *fetch, uint32_t layer,
                                          uint32_t head, uint32_t page, uint8_t variant);

/* Begins the reads. KVT_OK; KVT_E_MEMORY: none has begun. */
KVT_NODISCARD kvt_status sparse_fetch_start(kvt_sparse *s, sparse_fetch *fetch, bool waited);

/* Waits for the reads and verifies what came; what fails is read from other copies, within the
 * deadline. Afterwards each item has its bytes or none. KVT_OK, also when pages are lost;
 * KVT_E_TIMEOUT: some had not come. */
KVT_NODISCARD kvt_status sparse_fetch_wait(kvt_sparse *s, uint32_t layer, sparse_fetch *fetch,
                                           uint64_t deadline_ns);

/* Ends a fetch; its buffer goes when no device uses it. */
void sparse_fetch_end(kvt_sparse *s, sparse_fetch *fetch);
void sparse_fetch_free(sparse_fetch *fetch);

/* ---- sequence_window.c ---- */

KVT_NODISCARD kvt_status sparse_window_open(kvt_sparse *s);
KVT_NODISCARD kvt_status sparse_window_open_unit(kvt_sparse *s, sparse_unit *unit);
void sparse_window_close_unit(sparse_unit *unit);
void sparse_window_close(kvt_sparse *s);

/* Changes the bytes of a unit's window in DRAM; its layer has no step under way. */
void sparse_window_resize(kvt_sparse *s, sparse_unit *unit, uint64_t bytes);

/* Bytes of a page's rows, and of its part of the arena. */
uint64_t sparse_window_page_bytes(const sparse_unit *unit);

/* Whether the window in DRAM has a place for one page more, with those that come down. */
bool sparse_window_has_room(const sparse_unit *unit);

/* Gives a page a place in the arena. False: the unit's window in DRAM, or the arena, is full. */
bool sparse_window_take(kvt_sparse *s, sparse_unit *unit, uint32_t page);
/* The rows of a page that is in the arena. */
static inline uint8_t *sparse_window_rows(const kvt_sparse *s, const sparse_unit *unit,
                                          uint32_t page)
{
    return s->arena + (uint64_t)unit->place[page] * SPARSE_GRAIN;
}
void sparse_window_give(kvt_sparse *s, sparse_unit *unit, uint32_t page);

/* A page that the policy has kept leaves all the same. */
void sparse_window_refuse(sparse_unit *unit, uint32_t page);

/* Writes the rows of a page that has come, K, then V. False: its code cannot be read. */
bool sparse_window_put_rows(kvt_sparse *s, const sparse_unit *unit, const sparse_item *item,
                            uint8_t *target);

/*
 * Ends a step for one unit: decides what stays and where, and moves it there.
 *   weight   of each page;  held  before the step;  variant  that the step brought
 *   items    the read of each page with the bytes, and rows if they were decoded; NULL: none
 *   waits    for the moves to HBM, where there are no more of them at once
 */
void sparse_window_step(kvt_sparse *s, uint32_t layer, uint32_t head, const float *weight,
                        const uint8_t *held, const uint8_t *variant, sparse_item *const *items,
                        bool waits);

/* Memory of a head's choice of single tokens, the largest unit's. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_window_open_singles(kvt_sparse *s, const sparse_work_room *room,
                                                    sparse_head_work *head);
/* Chooses single tokens of the pages in the arena, where a planned step leaves them as they are. */
void sparse_window_choose_singles(kvt_sparse *s, kvt_sparse_step *step, const float *queries);
/* Cuts a whole page to runs of its chosen tokens, which there is room for; returns how many. */
uint32_t sparse_window_cut(const kvt_sparse *s, const sparse_unit *unit,
                           const sparse_head_work *head, uint32_t page, kvt_sparse_page *pages);

/* ---- sequence_hbm.c ---- */

/* Room on one device, in one piece. KVT_OK, also without a window there; KVT_E_SPACE;
 * KVT_E_UNSUPPORTED (the tier's devices have no addresses); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_hbm_open(kvt_sparse *s);
KVT_NODISCARD kvt_status sparse_hbm_open_unit(kvt_sparse *s, sparse_unit *unit);
void sparse_hbm_close_unit(sparse_unit *unit);
void sparse_hbm_close(kvt_sparse *s); /* waits for moves, unless their device is out of service */

/* Bytes that the tier is asked for: whole slots, as many of each unit; 0: the option's bytes are
 * less than a slot of each unit. */
uint64_t sparse_hbm_bytes(const kvt_sparse *s);

/* Bytes of a unit's pages in HBM. */
static inline uint64_t sparse_hbm_unit_bytes(const sparse_unit *unit)
{
    return unit->slots * sparse_window_page_bytes(unit);
}

/* Ends the moves that are over, of units without a step under way, and of `layer` (UINT32_MAX:
 * none). Waits for nothing. */
void sparse_hbm_collect(kvt_sparse *s, uint32_t layer);

/* Looks after a layer's windows there before a step, and before it ends: moves that are over, and
 * pages of a device that has failed, which are not resident any more. */
void sparse_hbm_begin(kvt_sparse *s, uint32_t layer);

/* Whether the rows of a page that is held cannot be had any more: its device has failed. */
bool sparse_hbm_has_lost(const kvt_sparse *s, const sparse_unit *unit, uint32_t page);

/* Where the rows of a page that is in HBM or on its way there are, K, then V: an address of the
 * device, or with KVT_TIER_DRAM of the host. */
const uint8_t *sparse_hbm_find(const kvt_sparse *s, const sparse_unit *unit, uint32_t page,
                               kvt_tier *tier_out);

/* Takes a page that has left the window out of HBM; it may be on its way. */
void sparse_hbm_drop(kvt_sparse *s, sparse_unit *unit, uint32_t page);

/* Puts rows that are better than those in HBM in their place. False: not now. */
bool sparse_hbm_replace(kvt_sparse *s, uint32_t layer, sparse_unit *unit, const sparse_item *item,
                        bool waits);

/* Begins to move the pages that stand highest up, those below them down. */
void sparse_hbm_step(kvt_sparse *s, uint32_t layer, sparse_unit *unit, sparse_item *const *items,
                     bool waits);

/* Waits until a layer has no move under way; it has no step under way. */
void sparse_hbm_settle(kvt_sparse *s, uint32_t layer);

/* Reads the slots of those pages back that lie in HBM: the block's memory has them one behind the
 * other, s->hbm.slot_bytes apart. Blocking. KVT_OK: the caller frees the block, which is NULL where
 * there are none; KVT_E_MEMORY; KVT_E_IO, KVT_E_GONE; KVT_E_STATE (a child of fork). Any thread. */
KVT_NODISCARD kvt_status sparse_hbm_read(const kvt_sparse *s, const kvt_sparse_page *pages,
                                         uint32_t count, sparse_block **block_out);

/* ---- sequence_observe.c ---- */

/* Adds what a unit's slopes change for a query, whose weights are known, to its gain. KVT_OK;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_slopes_measure(kvt_sparse *s, sparse_unit *unit, sparse_work *work);
/* Takes slopes away, once, until the indexes fit their share. All layers are given. */
void sparse_slopes_fit(kvt_sparse *s);

/* ---- sequence_divide.c ---- */

bool sparse_divide_is_on(const kvt_sparse *s);
/* Whether the step of a layer that ends is one to measure. */
bool sparse_divide_measures(const kvt_sparse *s, uint32_t layer);
/* Adds a step to a unit's curve. standing: of its pages before the step. */
void sparse_divide_measure(kvt_sparse *s, sparse_unit *unit, const float *weight,
                           const float *standing);
/* After a layer was observed, or has ended a step: divides anew when it is time, and resizes the
 * layer's windows. The layer has no step under way. */
void sparse_divide_observed(kvt_sparse *s, uint32_t layer);
void sparse_divide_step(kvt_sparse *s, uint32_t layer);

#endif
