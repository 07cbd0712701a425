/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the devices of one tier as one space: reserve, write, read, release.
 *
 * An object of n bytes is cut into stripe units; units are dealt to the members in proportion to
 * their bandwidth, in an order that keeps every prefix balanced (stripe.h). Each member has its own
 * extent allocator (extent.h), worker thread and queues: reads that somebody waits for, other
 * reads, puts, background writes. A member that fails, or has work and does not answer, is retired;
 * objects with units on it give KVT_E_GONE while the others keep serving.
 *
 * Thread rule: all functions may be called from any thread. Lock order: pool before member.
 * A pool knows neither keys nor records.
 */
#ifndef TIERS_POOL_H
#define TIERS_POOL_H

#include <stdatomic.h>
#include <stdio.h>

#include "tiers/devices/device_ops.h"
#include "wear.h"

typedef struct tiers_pool tiers_pool;

#define TIERS_UNIT_BYTES_DEFAULT (256u * 1024u)
#define TIERS_MEMBERS_MAX        64u
#define TIERS_GRAIN_BYTES        4096u /* extents are multiples of this */

/* A range of one member. */
typedef struct tiers_extent {
    uint32_t member;
    uint32_t reserved;
    uint64_t offset;
    uint64_t bytes;
} tiers_extent;

/* The units of an object that a member holds; shares are in member order, zero shares left out. */
typedef struct tiers_share {
    uint32_t member;
    uint32_t units;
} tiers_share;

/* The place of one object. Immutable once reserved; freed by tiers_pool_release. The deal order
 * follows from shares, unit count and turn alone, so it is not stored. */
typedef struct tiers_location {
    uint64_t bytes; /* object size, a multiple of TIERS_GRAIN_BYTES */
    uint32_t unit_bytes;
    uint32_t extent_count;
    tiers_extent *extents; /* grouped by member in share order; the order of its bytes inside */
    union {
        tiers_share *shares;
        struct tiers_location *next; /* the pool's: on its list of those that are to be freed */
    };
    uint32_t pins; /* the pool's: transfers of it that have not ended */
    uint8_t share_count;
    uint8_t turn;       /* the step of the deal that the first unit is; less than TIERS_TURN_MAX */
    uint8_t slot;       /* the pool's: its slot's class, counted from 1; 0 = it is in no slot */
    bool released : 1;  /* the pool's: the last of them frees it */
    bool named : 1;     /* and something durable may still name it */
    bool odd_first : 1; /* bytes that fill no unit belong to the first one, not to one at the end */
    bool on_late : 1;   /* a member of it answered late when it was reserved, */
    bool unwanted : 1;  /* and others would do, if something made way there (tiers_pool_withheld) */
} tiers_location;
_Static_assert(sizeof(tiers_location) == 40, "locations are stored by the million");

typedef struct tiers_member_options {
    kvt_device *device;      /* owned by the pool after a successful open */
    double read_bytes_per_s; /* measured; the placement weight, because loads decide TTFT */
    double write_bytes_per_s;
    double request_seconds;       /* measured latency of one request; 0 = unknown */
    uint64_t in_flight_bytes_max; /* 0 = TIERS_IN_FLIGHT_BYTES_DEFAULT (worker.h) */
    tiers_wear wear;              /* as it was left; zero but for the budget: a new device */
    uint64_t reserved_head_bytes; /* not given out: superblocks */
    uint64_t timeout_ns;  /* work without an answer; 0 = TIERS_TIMEOUT_NS_DEFAULT (watchdog.h) */
    bool present;         /* false: listed but absent; holds nothing, serves nothing */
    double mix_kept;      /* share of its speed that is left while it reads and writes at once, as
                            measured; 0 = unknown */
    uint64_t align_bytes; /* slots begin at multiples of it, a power of two, where that costs
                             little; 0 = of a grain */
    uint32_t gpu;         /* whose memory the device is, counted from 1; 0 = of none */
} tiers_member_options;

/* A pool's member on this device, with what a device's configuration says of a member: timeout,
 * bytes in flight, write budget. The bandwidths are measured; 1 does for a pool in which the weight
 * only has to be there. wear: as it was left; NULL: a new device. Without a device the member is
 * absent. Head and request_seconds are the caller's to add. */
tiers_member_options tiers_member_options_of(const kvt_device_config *config, kvt_device *device,
                                             double read_bytes_per_s, double write_bytes_per_s,
                                             const tiers_wear *wear);

/* How the units of an object are dealt to the members. */
typedef enum tiers_striping {
    TIERS_STRIPE_PROPORTIONAL = 0, /* by measured bandwidth (Unified KV Pooling IV-A) */
    TIERS_STRIPE_EQUAL = 1,        /* the same number to each; a baseline */
    TIERS_STRIPE_ROUND_ROBIN = 2,  /* in turn, from where the last object ended (SWARM 5.2) */
    TIERS_STRIPE_TENSOR = 3, /* as proportional, in units that are whole tensors (Tutti 3.1) */
    TIERS_STRIPE_ENTRY = 4   /* an object whole on one member, in turn by measured bandwidth */
} tiers_striping;

/* In which order a member's worker begins operations (slack.h). */
typedef enum tiers_order {
    TIERS_READS_FIRST = 0, /* waited reads, other reads, puts, background */
    TIERS_FIFO = 1,        /* as they came */
    TIERS_ROUND_ROBIN = 2, /* a read and a write in turn */
    TIERS_TABLE = 3,       /* writes in what the layer's window leaves (Tutti 3.3) */
    TIERS_SLACK = 4,       /* writes in what the layers to come leave */
    TIERS_ORDERS = 5
} tiers_order;

/* Slots are places for objects of one size that are made before they are needed (pool_slots.h). */
typedef struct tiers_slot_size {
    uint64_t bytes;      /* a multiple of the grain */
    uint32_t unit_bytes; /* of the deal; 0 = the pool's */
    bool odd_first;      /* as of tiers_location */
} tiers_slot_size;
#define TIERS_SLOT_CLASSES_MAX 32u

typedef struct tiers_pool_options {
    uint64_t capacity_bytes; /* budget over all members; 0 = their sum. With an absent member, whose
                                size is unknown, it is cut to what the others hold */
    uint32_t unit_bytes;     /* 0 = TIERS_UNIT_BYTES_DEFAULT */
    tiers_striping striping;
    bool reweigh; /* weights follow what the workers measure (docs/TIERS.md) */
    tiers_order order;
    uint64_t write_grain_ns;      /* of the order slack; 0 = TIERS_WRITE_GRAIN_NS */
    uint64_t write_patience_ns;   /* 0 = TIERS_WRITE_PATIENCE_NS */
    const tiers_slot_size *slots; /* in ascending order of bytes, no two alike; copied */
    uint32_t slot_count;          /* at most TIERS_SLOT_CLASSES_MAX; 0 = no slots */
} tiers_pool_options;

#define TIERS_WRITE_GRAIN_NS    UINT64_C(2000000)
#define TIERS_WRITE_PATIENCE_NS UINT64_C(10000000000)

/* KVT_OK; KVT_E_ARGUMENT; KVT_E_SPACE (budget beyond the members' sum); KVT_E_MEMORY. On failure
 * the devices stay the caller's. Starts one worker per present member. */
KVT_NODISCARD kvt_status tiers_pool_open(const tiers_member_options *members, uint32_t count,
                                         const tiers_pool_options *options, tiers_pool **pool_out,
                                         char *message, size_t message_size);

/*
 * Waits for transfers in flight, stops the workers, closes the devices. NULL allowed. False when a
 * device did not answer within its timeout: its worker goes on alone, with the operations in flight
 * and the memory under them, and closes the device and frees the pool if the device ever answers.
 * Abandoned transfers are released then, and not before.
 */
bool tiers_pool_close(tiers_pool *pool);

/* For tests and comparisons, which open a store and then have its objects dealt otherwise. */
void tiers_pool_set_striping(tiers_pool *pool, tiers_striping striping);

/* Reserves room for an object; bytes is rounded up to TIERS_GRAIN_BYTES. A full member's share goes
 * to the others. A member that answers late gets what finds no room on the others, and the location
 * says so (on_late, unwanted). KVT_OK; KVT_E_SPACE (also when less than a unit is left on each
 * member, and for more than 2^20 units); KVT_E_MEMORY. Blocks on no I/O, but for the end of a trim
 * when only the room of that is left. */
KVT_NODISCARD kvt_status tiers_pool_reserve(tiers_pool *pool, uint64_t bytes,
                                            tiers_location **location_out);

/* The same with a unit of the object's own (a multiple of the grain), on members of a mask alone:
 * for an object of pages, whose unit is a page, and for copies of pages, which lie on another
 * member than the page. Also KVT_E_SPACE when the mask names no member that takes units. */
KVT_NODISCARD kvt_status tiers_pool_reserve_on(tiers_pool *pool, uint64_t bytes,
                                               uint32_t unit_bytes, uint64_t members,
                                               tiers_location **location_out);

/*
 * The same for an object of whole tensors: `bytes` are a head and then tensors of unit_bytes each,
 * up to the end. With TIERS_STRIPE_TENSOR each tensor lies whole on one member, the head with the
 * first of them; other pools reserve it as they reserve any object.
 */
KVT_NODISCARD kvt_status tiers_pool_reserve_tensors(tiers_pool *pool, uint64_t bytes,
                                                    uint32_t unit_bytes,
                                                    tiers_location **location_out);

/* Lays slots out in room that is free, at most so many, and gives classes that ran out what others
 * have too much of. True when there is more to do. A caller does so at open, once all locations
 * are adopted, and then now and then; no reservation makes a slot. */
bool tiers_pool_lay_slots(tiers_pool *pool, uint32_t most);

/* A class of slots. */
typedef struct tiers_slot_stats {
    uint64_t bytes;      /* of an object that fills a slot */
    uint64_t held_bytes; /* of a slot, with what its alignment costs */
    uint32_t free;
    uint32_t taken;
    uint64_t taken_ever;
    uint64_t missed; /* objects of the class that found no slot and got extents */
} tiers_slot_stats;

/* KVT_OK; KVT_END past the last class. */
KVT_NODISCARD kvt_status tiers_pool_slot_class(tiers_pool *pool, uint32_t index,
                                               tiers_slot_stats *out);

/* Returns how many times as fast a layout made now would be read as this one is, by the weights of
 * now and the room there is; 1 = nothing to gain. Always 1 for an object of one unit and for the
 * baselines. */
double tiers_pool_layout_gain(tiers_pool *pool, const tiers_location *location);

/* Returns the extents and frees the location; when abandoned transfers of it are in flight, after
 * the last of them. NULL allowed. */
void tiers_pool_release(tiers_pool *pool, tiers_location *location);

/* As release, but the extents are not trimmed: something durable may still name them. */
void tiers_pool_disown(tiers_pool *pool, tiers_location *location);

/* Frees a location and leaves its extents held: for somebody who closes the pool next. */
void tiers_pool_forget(tiers_pool *pool, tiers_location *location);

/* Takes over a location read from a catalog: marks its extents as used. KVT_OK; KVT_E_CORRUPT (out
 * of range, overlapping, inconsistent); KVT_E_GONE (a member is absent or retired). On failure
 * nothing is marked and the location stays the caller's: free it with tiers_location_free. */
KVT_NODISCARD kvt_status tiers_pool_adopt(tiers_pool *pool, tiers_location *location);

/* Flat little-endian form for the catalog. pack: returns the bytes needed; writes when they fit.
 * unpack trusts no byte: KVT_OK, KVT_E_CORRUPT, KVT_E_MEMORY. */
size_t tiers_location_pack(const tiers_location *location, void *target, size_t capacity);
KVT_NODISCARD kvt_status tiers_location_unpack(const void *source, size_t bytes,
                                               tiers_location **location_out);
void tiers_location_free(tiers_location *location);

/* How much a transfer matters: a member serves a rank when none before it has work, and besides
 * gives every rank that has work one operation in sixteen. */
typedef enum tiers_rank {
    TIERS_RANK_WAITED = 0,    /* reads that somebody waits for */
    TIERS_RANK_READ = 1,      /* other reads */
    TIERS_RANK_WRITE = 2,     /* writes that somebody waits for: puts, and room for them */
    TIERS_RANK_BACKGROUND = 3 /* other writes */
} tiers_rank;
#define TIERS_RANKS 4u

/* The part of a transfer that one member has, and the work that the member had before it. */
typedef struct tiers_part {
    uint32_t member;
    uint64_t bytes;
    uint64_t ahead_bytes[2]; /* by kvt_io_kind, when the part was queued: with the device, or queued
                                in a rank that goes first or in the part's own */
    uint64_t since_ns;       /* for so long the first of these had been under way */
    uint64_t finished_ns;    /* as the transfer's; 0 = not yet */
} tiers_part;

/* The parts of a read of a whole object if it began now and somebody waited for it, and the work
 * that its members have before it. parts has room for TIERS_MEMBERS_MAX. Returns their number; 0 =
 * a member does not serve. Takes no lock. */
uint32_t tiers_pool_parts(tiers_pool *pool, const tiers_location *location, tiers_part *parts);

/* Whether reads that somebody waits for keep a member busy: the mean of their backlog passed 2 ms
 * and has not fallen below 1 ms since. Never so in virtual time, which says nothing of ours. */
bool tiers_pool_is_pressed(tiers_pool *pool);

#define TIERS_PIECES_MAX 32u

/* Which bytes of a transfer have come, by pieces of equal size. The caller zeroes it, sets the
 * first field, and keeps it as long as the transfer; the rest is the pool's. */
typedef struct tiers_arrival {
    uint64_t piece_bytes;        /* a multiple of the grain, and at least the transfer's bytes over
                             TIERS_PIECES_MAX */
    void (*come)(void *context); /* as tiers_transfer_arrived says, and for the first piece, or the
                                    transfer is awaited: NULL */
    void *context;
    uint64_t wanted_bytes;           /* that somebody waits for */
    uint64_t left[TIERS_PIECES_MAX]; /* bytes of each piece that have not come */
} tiers_arrival;

/* Pieces for a transfer of so many bytes: a few, none too small to be woken for. */
uint64_t tiers_piece_bytes(uint64_t bytes);

/* The last word on a transfer that nobody waits for: it, its buffer and its location are no longer
 * used. Called on any thread, once, under no lock; must not call the pool. */
typedef void tiers_transfer_released(void *context);

/*
 * One transfer of an object's first `bytes` bytes, all members at once. The caller zeroes it, fills
 * the first block, keeps it, the buffer and the location until it is finished or abandoned.
 *
 *                        tiers_transfer_wait, _wait_until
 *     start -> in flight --------------------------------> finished
 *                  |                                          ^
 *                  +-- wait_until gave up -> abandon ---------+ then released is called
 *
 * A transfer that has `released` from the start is never waited for: released is called when it has
 * finished, maybe before the start has returned, and status and times are read there.
 *
 * Nothing takes an operation back that a device has: until it ends, the buffer may be read or
 * written. A caller that cannot wait so long abandons the transfer, and with it the buffer.
 */
typedef struct tiers_transfer {
    kvt_io_kind kind;
    bool waited; /* somebody waits for it */
    const tiers_location *location;
    void *buffer;      /* aligned to TIERS_GRAIN_BYTES; `bytes` of them */
    uint64_t bytes;    /* a multiple of TIERS_GRAIN_BYTES, <= location->bytes */
    uint64_t offset;   /* start inside the object, a multiple of the grain; usually 0 */
    tiers_part *parts; /* the caller's, TIERS_MEMBERS_MAX of them, filled at the start; or NULL */
    tiers_arrival *arrival;            /* the caller's, for tiers_transfer_await; or NULL */
    tiers_transfer_released *released; /* NULL: it is waited for, until it is abandoned */
    void *released_context;
    struct tiers_runs *runs; /* the pool's: one member's part of a gather (gather.h), which has no
                                location of its own; NULL otherwise */

    kvt_status status;   /* first error kept */
    uint64_t started_ns; /* CLOCK_MONOTONIC; a virtual clock for sim members */
    uint64_t finished_ns;
    uint64_t member_finished_ns_first; /* when the first member was done with its part */
    uint32_t units_pending;            /* the pool's */
    bool finished;                     /* the pool's; read it through tiers_transfer_wait */
    uint64_t members;                  /* the pool's: a mask of those that have a part of it */
    uint32_t part_count;               /* the pool's: of parts, fixed by the start */
    atomic_bool cancelled;             /* the pool's: what no device has yet stays undone */
} tiers_transfer;

/* Queues a transfer. Never fails: errors come with wait. Waits only while one of its members has
 * hundreds of transfers queued. */
void tiers_transfer_start(tiers_pool *pool, tiers_transfer *transfer);

/* The same for several, all of which are queued before their members are woken. */
void tiers_transfers_start(tiers_pool *pool, tiers_transfer *const *transfers, uint32_t count);

/* The same, but waits for room no longer than to an instant of CLOCK_MONOTONIC in nanoseconds; the
 * parts that found none fail with KVT_E_TIMEOUT. */
void tiers_transfer_start_until(tiers_pool *pool, tiers_transfer *transfer, uint64_t deadline_ns);

/* Waits for it. KVT_OK; KVT_E_IO; KVT_E_GONE; KVT_E_SPACE; KVT_E_READ_ONLY; KVT_E_MEMORY. It has
 * finished then, however long that took. */
KVT_NODISCARD kvt_status tiers_transfer_wait(tiers_pool *pool, tiers_transfer *transfer);

/*
 * Waits for it, but not beyond an instant of CLOCK_MONOTONIC in nanoseconds (UINT64_MAX: no
 * deadline), nor for a member that is out of service: KVT_E_TIMEOUT, KVT_E_GONE. Several threads
 * may wait, also before the start of a transfer that is zeroed and filled. KVT_OK: finished. After
 * any other status it may still be in flight: abandon it.
 */
KVT_NODISCARD kvt_status tiers_transfer_wait_until(tiers_pool *pool, tiers_transfer *transfer,
                                                   uint64_t deadline_ns);

/*
 * The same for the first bytes of a transfer that has `arrival`. KVT_QUEUED: *arrived_out bytes
 * have come, at least those asked for but not all, and the transfer is in flight. Any other status
 * is that of tiers_transfer_wait_until. A call that has to sleep is woken when as many more are
 * there as are worth it: twice what there was, or half of the rest. One thread waits so.
 */
KVT_NODISCARD kvt_status tiers_transfer_await(tiers_pool *pool, tiers_transfer *transfer,
                                              uint64_t bytes, uint64_t deadline_ns,
                                              uint64_t *arrived_out);

/*
 * The bytes that have come of such a transfer, whole pieces; 0 when it has finished. Fewer than
 * `bytes`: `come` is called once they are there, and more as above, unless the transfer finishes
 * before: on a member's thread, under a lock of the pool, so that it must not call the pool. With 0
 * bytes an earlier wish is taken back, and `come` is not being called when this returns.
 */
uint64_t tiers_transfer_arrived(tiers_pool *pool, tiers_transfer *transfer, uint64_t bytes);

/* Hands a started transfer that nobody waits for to the pool, with its buffer. Pieces that no
 * device has yet are dropped. released is called when the last of the others has ended: at once,
 * when the transfer has finished; never, when a device never answers. */
void tiers_transfer_abandon(tiers_pool *pool, tiers_transfer *transfer,
                            tiers_transfer_released *released, void *context);

/* Drops what no device has yet of a transfer that has `released`, which is called as ever. The
 * transfer is still there: its last word has not been said, or is being waited for. */
void tiers_transfer_cancel(tiers_pool *pool, tiers_transfer *transfer);

/* Looks after the members of a started transfer, as its waiters do: true when one is out of
 * service, so that the transfer may never finish. */
bool tiers_transfer_is_stuck(tiers_pool *pool, const tiers_transfer *transfer);

/* start + wait over a whole object. */
KVT_NODISCARD kvt_status tiers_pool_transfer(tiers_pool *pool, kvt_io_kind kind,
                                             const tiers_location *location, void *buffer,
                                             uint64_t bytes);

/* Makes finished writes durable on every serving member. A member whose sync fails is retired,
 * because writes that it acknowledged may be lost; one that its owner retires meanwhile counts as
 * out of service from the start. KVT_OK; KVT_E_IO; KVT_E_GONE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_pool_sync(tiers_pool *pool);

/*
 * Lends the memory in which an object lies in one piece, so that its holder reads or writes it
 * where it is, without a transfer. NULL: the object lies in several pieces or not in memory, or its
 * member does not serve; then a transfer is the way. Until tiers_pool_take_back the member keeps
 * its device, whatever becomes of its state. The caller holds the location meanwhile. Takes no
 * lock.
 */
void *tiers_pool_lend(tiers_pool *pool, const tiers_location *location);

/* All memory of the member that has lent an object, which stays as long as the loan. */
void *tiers_pool_lent_memory(tiers_pool *pool, const tiers_location *location, uint64_t *bytes_out);

/* Ends what tiers_pool_lend began, and counts the bytes that were moved, 0 or all of the object. */
void tiers_pool_take_back(tiers_pool *pool, const tiers_location *location, kvt_io_kind kind,
                          uint64_t bytes);

/*
 * The same for a device's own programs: the address at which kernels of a GPU find an object that
 * lies in one piece, which the host may not follow. 0: it lies in several, its device has none, or
 * its member does not serve. It ends with tiers_pool_take_back; transfers of the object go on
 * meanwhile. Takes no lock.
 *   gpu_out  NULL, or whose memory it is: the driver's number counted from 1; 0: no GPU's
 */
uint64_t tiers_pool_lend_address(tiers_pool *pool, const tiers_location *location,
                                 uint32_t *gpu_out);

/*
 * Bytes of the pool's capacity that hold nothing and are no room for a new object now. They are the
 * free room of members that answer late, as long as the others hold half of the capacity or more:
 * below that, and so where all are late or there is one, room on a late member is room. And they
 * are the extents of objects that were released with a transfer in flight, which a device may still
 * write to.
 */
uint64_t tiers_pool_withheld(tiers_pool *pool);

/* Whether every member that holds a part of an object serves. Takes no lock. */
bool tiers_pool_serves(const tiers_pool *pool, const tiers_location *location);

/*
 * Carries a whole transfer out on the calling thread, as copies, when each of its members serves
 * and lends its memory; it has finished with KVT_OK then, and its parts are filled. False: nothing
 * was done, and the transfer is to be started. Takes no lock.
 */
bool tiers_transfer_copy(tiers_pool *pool, tiers_transfer *transfer);

/* Whether every member that serves has memory to lend, and some does. Takes no lock. */
bool tiers_pool_in_memory(tiers_pool *pool);

/* Whether tiers_pool_lend would lend the object if its member serves. Takes no lock. */
bool tiers_pool_lends(tiers_pool *pool, const tiers_location *location);

/* ---- what passes need ---- */

/* The pace of a pass: layer `layer` begins at began_ns, and each further one step_ns later. */
typedef struct tiers_pace {
    uint32_t layers; /* of the pass; fixed */
    uint32_t layer;
    uint64_t began_ns; /* CLOCK_MONOTONIC */
    uint64_t step_ns;
} tiers_pace;

/*
 * A layered load of a pass tells a pool what it will read and when that is needed, for the orders
 * table and slack (needs.h has the rules). Returns a number for the calls that follow, which do
 * nothing when it has ended; 0: the pool counts no more loads now.
 *   first, end  the layers that it reads, from first up to end
 *   ahead       layers that the load asks for before they are needed
 */
uint64_t tiers_need_begin(tiers_pool *pool, const tiers_pace *pace, uint32_t first, uint32_t end,
                          uint32_t ahead);
void tiers_need_add(tiers_pool *pool, uint64_t number, const tiers_location *location,
                    uint64_t bytes);
void tiers_need_set_pace(tiers_pool *pool, uint64_t number, const tiers_pace *pace);
void tiers_need_progress(tiers_pool *pool, uint64_t number, uint32_t arrived, uint32_t issued);
void tiers_need_end(tiers_pool *pool, uint64_t number);

/* Whether writes hold more staging than its watermark: then they get their share at once. */
void tiers_pool_hurry_writes(tiers_pool *pool, bool hurry);

/* From now on the members write the decisions that they count as lines (slack_log.h). The stream
 * stays open until the pool is closed. */
void tiers_pool_log_decisions(tiers_pool *pool, FILE *log);

typedef struct tiers_pool_facts {
    uint64_t capacity_bytes; /* the budget, or what the members that take units hold if less */
    uint64_t used_bytes;     /* extents and slots held on those members */
    uint64_t padding_bytes;  /* of them: what objects leave unused of their slots */
    double read_bytes_per_s; /* what an object over all of them can be read at, by the weights */
    uint64_t bytes_read;
    uint64_t bytes_written;
    uint32_t member_count;
    bool emulated; /* any member is */
    bool durable;  /* every member is */
} tiers_pool_facts;
void tiers_pool_facts_get(tiers_pool *pool, tiers_pool_facts *out);

/* Why a member is out of service; the first reason is kept until it has another device. */
typedef enum tiers_retired {
    TIERS_SERVES = 0,
    TIERS_RETIRED_ASKED = 1,        /* by its owner */
    TIERS_RETIRED_GONE = 2,         /* an operation, a sync or a look at the device said so */
    TIERS_RETIRED_UNRESPONSIVE = 3, /* work without an answer for the timeout, or one lost */
    TIERS_RETIRED_SYNC = 4,         /* a sync failed: what was acknowledged may be lost */
    TIERS_RETIRED_THREAD = 5        /* the worker's thread has ended inside the device */
} tiers_retired;

#define TIERS_DECISIONS 8u

/* The state of one member, and its counts. */
typedef struct tiers_member_stats {
    char name[32];
    kvt_device_state state; /* new units go to a member that serves */
    tiers_retired why;
    uint64_t retired_ns;     /* CLOCK_MONOTONIC; 0 when it serves */
    kvt_status write_status; /* of the last write that ended */
    kvt_device_facts facts;
    uint64_t used_bytes;
    uint64_t free_bytes; /* fragmentation: the largest free range and the number of them */
    uint64_t free_bytes_largest;
    uint32_t free_ranges;
    uint64_t bytes_read;
    uint64_t bytes_written;
    uint64_t requests;
    uint64_t seal_faults;                /* tiers_seal_faults */
    const char *key_fault;               /* tiers_seal_key_fault, as of the last sync */
    uint64_t pending_bytes;              /* queued and not finished, approximately */
    double read_bytes_per_s;             /* at open; then as achieved, while the device was busy */
    double write_bytes_per_s;            /* the same of writes */
    double weight_bytes_per_s;           /* of reads, as placement counts on it */
    tiers_wear wear;                     /* as of now */
    uint64_t decisions[TIERS_DECISIONS]; /* of the gate, by slack_reason */
} tiers_member_stats;

/* KVT_OK; KVT_END past the last member. */
KVT_NODISCARD kvt_status tiers_pool_member(tiers_pool *pool, uint32_t index,
                                           tiers_member_stats *out);

/* Whether a member that has a part of a location has work and answers none of it, while another one
 * that takes new units answers. False of a location that is on_late: a write elsewhere had no
 * room. */
bool tiers_pool_stalls(tiers_pool *pool, const tiers_location *location);

/* Takes a member out of service: its objects give KVT_E_GONE from now on. */
void tiers_pool_retire(tiers_pool *pool, uint32_t member);

/* Begins or ends a drain: a draining member is read and takes no new units; moving its objects is
 * the caller's part. KVT_OK; KVT_E_GONE (it does not serve). */
KVT_NODISCARD kvt_status tiers_pool_drain(tiers_pool *pool, uint32_t member, bool drain);

/* Takes the device out of a member that is out of service, or drained and empty; the device is the
 * caller's then. Extents on it stay held. KVT_OK (NULL when there was none); KVT_BUSY (the member
 * serves, its device has not answered all requests yet, or memory of it is lent). */
KVT_NODISCARD kvt_status tiers_pool_eject(tiers_pool *pool, uint32_t member,
                                          kvt_device **device_out);

/* Puts a device into a member without one, or into the next new member. Extents that are held there
 * count as the device's: a caller that wants an empty one releases them first. KVT_OK (the device
 * is the pool's); KVT_E_STATE (it has one); KVT_E_MISMATCH (another capacity than the extents were
 * made for); KVT_E_ARGUMENT (too many members, or unfit); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_pool_insert(tiers_pool *pool, uint32_t member,
                                           const tiers_member_options *options);

#endif
