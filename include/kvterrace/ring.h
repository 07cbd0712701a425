/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - blocks of many small reads, posted into memory that threads of the caller, another
 * process or a GPU may map, and carried out by threads of the ring (docs/CALLS.md, Rings). The
 * caller's processor makes as many calls for a layer of 4,096 KV blocks as for one of 16.
 *
 *     uint64_t objects[64];
 *     status = kvt_ring_open(store, 16, NULL, &ring);
 *     status = kvt_ring_region_add(ring, memory, bytes, &region);
 *     status = kvt_ring_object_open(ring, keys, 64, objects);
 *
 *     kvt_ring_iocb iocb;
 *     kvt_ring_result result;
 *     status = kvt_ring_get_iocb(ring, 1, &iocb);
 *     for (uint32_t i = 0; i < 64; i++)
 *         iocb.contexts[i] = (kvt_ring_context){.object = objects[i], .layer = layer,
 *                                               .side = KVT_SIDE_K, .bytes = matrix_bytes,
 *                                               .region = region, .target = i * matrix_bytes};
 *     iocb.block.count = 64;
 *     status = kvt_ring_submit(ring, &iocb, 1);
 *     status = kvt_ring_wait(ring, iocb.index, 1, KVT_NO_DEADLINE, &result, NULL);
 *     if (status == KVT_OK) status = result.status;
 *
 * A context names bytes of one matrix (layer, side) as it was put, [token][head][dim]. They are
 * verified as a get verifies them: KVT_OK means that the whole matrix was read or lies in memory,
 * that its checksums are right, and that it was decoded. Of a matrix that several contexts of a
 * block name, all are served from one read.
 *
 * An object is a name, and holds nothing: an entry that leaves the store before a block is carried
 * out is a miss. A lease (lookup.h) keeps entries.
 *
 * A block may name the pass of the model that computes with its layers (load.h), so that a store
 * with store.io_order = slack writes in the time that these leave, as for a load.
 *
 * Two blocks under way that write the same bytes leave those of one of them; `after` orders them.
 *
 * Thread rule: every function on a kvt_ring from any thread, open and close excepted. None but
 * kvt_ring_wait and kvt_ring_close waits for a device. In a child of fork all of them return
 * KVT_E_STATE, kvt_ring_close does nothing, and the parent's ring goes on.
 */
#ifndef KVTERRACE_RING_H
#define KVTERRACE_RING_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_RING_CONTEXTS_MAX 2048u

typedef struct kvt_ring kvt_ring;

/* ---- what lies in the mapped memory; docs/CALLS.md has the places ---- */

/* One read: 64 bytes. */
typedef struct kvt_ring_context {
    uint64_t object; /* a number of kvt_ring_object_open */
    uint32_t layer;  /* counted over the entry's groups; the block's is added */
    uint32_t side;   /* kvt_side */
    uint64_t offset; /* of the first byte in the matrix */
    uint64_t bytes;  /* at least 1 */
    uint64_t target; /* a place in the region; the block's is added */
    uint64_t stride; /* 0: the bytes follow each other at the target. Else from one token's row to
                        the next, at least a row, and offset and bytes are multiples of a row */
    uint32_t region; /* a number of kvt_ring_region_add */
    uint32_t zero_a;
    uint64_t zero_b;
} kvt_ring_context;

/* What a producer posts: 56 bytes. */
typedef struct kvt_ring_block {
    uint32_t table;       /* whose contexts are read: the block's own, or a kept one */
    uint32_t first;       /* of them */
    uint32_t count;       /* 0: nothing is read, and the block completes */
    uint32_t layer;       /* is added to each context's */
    uint64_t target;      /* same */
    uint64_t after;       /* index + 1 of an earlier block that completes first; 0 = none */
    uint64_t deadline_ns; /* instant of CLOCK_MONOTONIC after which no device is waited for */
    uint64_t user;        /* comes back */
    uint64_t pass; /* that computes with the layers: a number of kvt_pass_begin (load.h); 0, or
                             one that has ended or has no such layers: none */
} kvt_ring_block;

/* A completion: 56 bytes. */
typedef struct kvt_ring_result {
    int32_t status;      /* KVT_OK: of all contexts; else that of the first one that failed */
    uint32_t failed;     /* contexts that are not KVT_OK */
    uint64_t user;       /* the block's */
    uint64_t bytes;      /* written to targets */
    uint64_t read_bytes; /* from devices */
    uint64_t taken_ns;   /* CLOCK_MONOTONIC: when it was taken off the ring, */
    uint64_t done_ns;    /* and when it was complete */
    uint64_t zero;
} kvt_ring_result;

/* ---- the ring ---- */

/* Zero but for struct_size: the defaults. */
typedef struct kvt_ring_options {
    uint32_t struct_size;
    uint32_t contexts; /* of a block at most; 0 = KVT_RING_CONTEXTS_MAX, which is the most */
    uint32_t tables;   /* kept ones, beside a table for each place of the ring; at most 4096 */
    uint32_t threads;  /* that carry blocks out, each one at a time; 0 = 2; at most 16 */
    uint32_t poll_us;  /* the ring looks for blocks so often while it sleeps, for producers that
                          cannot ring its bell; 0 = every 20 ms; at most 20000 */
    uint32_t lost_ms;  /* a block that was claimed and not posted keeps blocks behind it so long;
                          then the ring is given up; 0 = 5000; at most 3600000 */
    double loss_max;   /* as kvt_request.loss_max */
} kvt_ring_options;

/*
 * Opens a ring on a store. kvt_store_close ends the rings that are open: blocks that were posted
 * complete, and every call but wait and close is KVT_E_STATE from then on.
 *   depth    blocks at once: a power of two from 2 to 4096
 *   options  may be NULL
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY (no descriptor, too); KVT_E_THREAD; KVT_E_UNSUPPORTED (a
 * store of another process; a follower); KVT_E_STATE.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_open(kvt_store *store, uint32_t depth,
                                                                const kvt_ring_options *options,
                                                                kvt_ring **ring_out);

/* Ends blocks under way (KVT_E_CANCELLED), waits for what is being decoded, and frees the ring with
 * its mapped memory: other processes keep their own mapping, of which nothing is read any more.
 * Afterwards no region is touched. No other call may run or follow. NULL is allowed. */
KVT_API KVT_EXPERIMENTAL void kvt_ring_close(kvt_ring *ring);

/* The memory of a ring, for other producers. */
typedef struct kvt_ring_memory {
    uint32_t struct_size;
    int fd;         /* of the memory, to be mapped shared by other processes; the ring's */
    void *memory;   /* mapped here, aligned to a page; what a driver makes known to a GPU */
    uint64_t bytes; /* of it */
    int bell;       /* an eventfd that wakes the ring: written by who has exchanged `asleep` */
    int done;       /* an eventfd that the ring writes for who has set `asleep` of completions */
} kvt_ring_memory;

/* KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_describe(kvt_ring *ring,
                                                                    kvt_ring_memory *memory_out);

/* ---- what contexts name ---- */

/* Lets contexts write into memory of this process.
 *   bytes  at least 1; the memory stays the caller's, and is there until region_end or close
 * KVT_OK; KVT_E_ARGUMENT; KVT_BUSY (1,024 are there); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_region_add(kvt_ring *ring, void *memory,
                                                                      uint64_t bytes,
                                                                      uint32_t *region_out);

/* KVT_OK: no context writes there any more; KVT_BUSY: a block under way may; KVT_MISS: there is no
 * such region; KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_region_end(kvt_ring *ring,
                                                                      uint32_t region);

/*
 * Names entries to contexts, and counts a use of each that is stored. Other hosts are not asked.
 *   objects_out  of each key its number, 0 where the entry is not stored or a get would refuse it;
 *                used until object_close or close. A key may have several numbers
 * KVT_OK (also when some are not there); KVT_MISS (none is); KVT_E_ARGUMENT; KVT_E_MEMORY;
 * KVT_BUSY (2^20 objects are open); KVT_E_STATE. On an error nothing is open.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_object_open(kvt_ring *ring,
                                                                       const kvt_key *keys,
                                                                       size_t count,
                                                                       uint64_t *objects_out);

/* Blocks under way go on; numbers that are 0, or not open, are left out. */
KVT_API KVT_EXPERIMENTAL void kvt_ring_object_close(kvt_ring *ring, const uint64_t *objects,
                                                    size_t count);

/* ---- blocks ---- */

/* A claimed block. */
typedef struct kvt_ring_iocb {
    uint64_t index;             /* counts up, from 0 */
    kvt_ring_context *contexts; /* its own table, which the caller fills until the submit */
    kvt_ring_block block;       /* same; get_iocb has set table, deadline_ns (none) and zeros */
} kvt_ring_iocb;

/*
 * Claims blocks in a row, all or none. Each is to be submitted, soon: one that is not keeps all
 * behind it waiting (lost_ms). What is not wanted is submitted with a count of 0.
 *   count  1 to the ring's depth
 * KVT_OK; KVT_BUSY (that many are not free: wait for earlier ones); KVT_E_ARGUMENT; KVT_E_CORRUPT
 * (another producer's words make no sense: the ring has been given up); KVT_E_TIMEOUT (it has been
 * given up for a lost producer); KVT_E_STATE.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_get_iocb(kvt_ring *ring, uint32_t count,
                                                                    kvt_ring_iocb *iocbs_out);

/* The contexts of a kept table, or NULL: there is none, or it is a child of fork. A table is not
 * changed while a block that names it is under way. table_out: for kvt_ring_block.table. */
KVT_API KVT_EXPERIMENTAL kvt_ring_context *kvt_ring_table(kvt_ring *ring, uint32_t kept,
                                                          uint32_t *table_out);

/* Posts claimed blocks in their order. KVT_OK; KVT_E_ARGUMENT (one was not claimed here, or was
 * posted before: the others are posted); else as get_iocb. Unsound blocks complete with
 * KVT_E_ARGUMENT. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_submit(kvt_ring *ring,
                                                                  const kvt_ring_iocb *iocbs,
                                                                  uint32_t count);

/*
 * Waits until blocks in a row are complete, or until an instant of CLOCK_MONOTONIC in nanoseconds
 * (KVT_NO_DEADLINE: for as long as it takes), and takes their completions: afterwards the blocks
 * are free.
 *   results   count of them, or NULL
 *   statuses  of all contexts, options.contexts of them for each block, or NULL: KVT_OK; KVT_MISS
 *             (not stored, damaged, on a device that failed, or with more loss than is accepted);
 *             KVT_E_ARGUMENT (object, layer, side, range, region or target are none, a field that
 *             is to be zero is not, or it overlaps an earlier context of the block); KVT_E_TIMEOUT
 *             (the block's deadline); KVT_E_MISMATCH (the store lacks its basis); KVT_E_MEMORY;
 *             KVT_E_CANCELLED (the ring or the store was closed)
 * KVT_OK; KVT_E_TIMEOUT (none was taken); KVT_MISS (one has been taken before, and none was now);
 * KVT_E_ARGUMENT (one was never claimed); KVT_E_CORRUPT (words make no sense); KVT_E_STATE.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_wait(kvt_ring *ring, uint64_t index,
                                                                uint32_t count,
                                                                uint64_t deadline_ns,
                                                                kvt_ring_result *results,
                                                                signed char *statuses);

/* ---- a kernel of a GPU as the producer ---- */

/* The work of a warp of the kernel: it posts a block, waits for one, or does both in this order.
 *
 *     posts[0] = {.mode = KVT_RING_POST, .contexts = .., .block = {.count = n, ..}};  next layer
 *     posts[1] = {.mode = KVT_RING_WAIT, .index = .., .wait_ns = 5000000};            this layer
 *     status = kvt_ring_gpu_launch(ring, posts, 2, stream);   then a copy out of the region
 */
typedef enum kvt_ring_post_mode { KVT_RING_POST = 1, KVT_RING_WAIT = 2 } kvt_ring_post_mode;

/*
 * One of these for each warp, in the GPU's memory, where kernels before it may have written it: 152
 * bytes. Addresses are the GPU's, and are not checked. A block.deadline_ns of 0 has passed:
 * KVT_NO_DEADLINE is none. status:
 *     KVT_OK, KVT_QUEUED  the completion was taken; the block was posted, and it waited for none
 *     KVT_BUSY            the ring was full for wait_ns
 *     KVT_E_TIMEOUT       the block was not complete in wait_ns: another kernel waits again
 *     KVT_MISS            the completion has been taken before
 *     KVT_E_ARGUMENT      mode, count, first (0 with contexts), alignment, an index of no block
 *     KVT_E_STATE         the ring has ended, or was given up
 *     KVT_E_CORRUPT       words make no sense
 */
typedef struct kvt_ring_post {
    uint32_t mode;        /* of kvt_ring_post_mode, added up */
    int32_t status;       /* out, below */
    uint64_t index;       /* out: the block's; in, where it only waits */
    uint64_t wait_ns;     /* at most 10 s: for a free place and the completion together */
    uint64_t contexts;    /* of the block's own table, a multiple of 16; 0: a kept table is named */
    uint64_t statuses;    /* out: block.count bytes, as of kvt_ring_wait; or 0 */
    kvt_ring_block block; /* of one that only waits, count alone, for `statuses` */
    kvt_ring_result result; /* out, with KVT_OK */
} kvt_ring_post;

/*
 * Gives a ring of which no block has been claimed to kernels of a GPU: from now on none but them
 * post, and kvt_ring_get_iocb is KVT_E_STATE; kvt_ring_wait takes an index of theirs. Unless
 * options.poll_us says how often, the ring looks for blocks every 100 us.
 * KVT_OK; KVT_E_ARGUMENT (no such GPU); KVT_E_UNSUPPORTED (no driver, or it takes no kernels);
 * KVT_E_MEMORY; KVT_BUSY (its scratch is in use); KVT_E_GONE; KVT_E_IO; KVT_E_STATE (a block was
 * claimed, or it has a GPU).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_gpu_open(kvt_ring *ring, uint32_t gpu);

/*
 * Launches the kernel, which ends when each post has a status, behind `wait_ns` at the latest.
 * Regions are memory that the GPU reaches (pinned), from where a later kernel copies.
 *   posts   of the ring's GPU, untouched until the kernel has ended; a multiple of 8
 *   count   1 to 65536
 *   stream  of the GPU's primary context; NULL: its default stream
 * KVT_OK; KVT_E_ARGUMENT (also a stream of another context); KVT_E_MEMORY; KVT_E_GONE; KVT_E_IO;
 * KVT_E_STATE (no kvt_ring_gpu_open). kvt_ring_close and kvt_store_close wait for the kernels.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_gpu_launch(kvt_ring *ring, void *posts,
                                                                      uint32_t count, void *stream);

/* Counts of a ring since its open. */
typedef struct kvt_ring_stats {
    uint32_t struct_size;
    uint32_t under_way;  /* blocks that were taken and are not complete */
    uint64_t blocks;     /* complete */
    uint64_t contexts;   /* of them */
    uint64_t failed;     /* contexts that were not KVT_OK */
    uint64_t bytes;      /* written to targets */
    uint64_t read_bytes; /* from devices */
    uint64_t requests;   /* to devices, after neighbours were joined */
    uint64_t bells;      /* that woke the ring */
} kvt_ring_stats;

/* KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_ring_stats_get(kvt_ring *ring,
                                                                     kvt_ring_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
