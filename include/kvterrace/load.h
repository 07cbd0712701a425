/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - a group of entries read in layer order over all of them, so that an engine computes
 * layer n while layer n+1 is on its way (docs/CALLS.md, Layered loads).
 *
 *     kvt_load *load;
 *     kvt_status status = kvt_load_begin(queue, keys, views, count, NULL, &load);
 *     for (uint32_t layer = 0; status == KVT_OK && layer < layers; layer++) {
 *         status = kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE);
 *         if (status != KVT_OK) break;
 *         compute(layer);
 *         kvt_load_release(load, layer + 1);
 *     }
 *     kvt_load_end(load, statuses, NULL);
 *
 * A pass of the model may be announced, so that a store with store.io_order = slack writes in the
 * time that its loads leave (docs/CALLS.md, Passes):
 *
 *     uint64_t pass;
 *     status = kvt_pass_begin(store, &announced, &pass);
 *     options.pass = pass;
 *     ... kvt_load_begin; before each compute(layer): kvt_pass_layer(store, pass, layer); ...
 *     kvt_pass_end(store, pass);
 *
 * Loads of the same entries share reads (docs/CALLS.md, Shared reads), each at its own pace. What
 * another load has read of a layer may be in its views before kvt_load_release has opened the
 * window for it; it is announced in its turn.
 *
 * A progressive load (coarse_planes, docs/CALLS.md) announces each layer twice, so that its counts
 * go up to twice the layers: first every layer in its coarse form, then, as layer layers + n, every
 * layer n refined. An entry that is not stored as planes is whole at the first of the two:
 *
 *     options.coarse_planes = 1;
 *     ... kvt_load_begin; wait(load, n + 1), compute(n), release(load, n + 1) for the n < layers:
 *     the first answer is there, with the loss that kvt_load_quality_of says
 *     kvt_load_release(load, 2 * layers);            the pages may be refined in place
 *     kvt_load_wait(load, 2 * layers, deadline_ns);
 *     kvt_load_end(load, statuses, NULL);            KVT_COARSE: not refined, and sound as it was
 *
 * An announced layer is sound in every entry that has not failed. An entry that fails stops no
 * other; kvt_load_status says which ones have failed.
 *
 * An open load holds the room of its entries: when one is moved or removed meanwhile, its room is
 * free only after kvt_load_end. A put or move that needs the room waits for it a second, and ends
 * with KVT_E_SPACE; a put that was accepted is lost then, as kvt_store_put says. So a thread that
 * has yet to end a load may make any call of the library, and a call that waits for puts, such as
 * kvt_store_flush, ends. One wait has no bound: a queue's put without a deadline waits for put
 * staging while loads hold twice as much as that is.
 *
 * Thread rule: every function on a kvt_load from any thread, begin and end excepted; none while its
 * queue or the store is being closed. After that kvt_load_end frees the load. In a child of fork
 * all of them return KVT_E_STATE or 0 at once, kvt_load_end too, and the parent's load goes on.
 */
#ifndef KVTERRACE_LOAD_H
#define KVTERRACE_LOAD_H

#include "queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_load kvt_load;

/* Called with the number of complete layers, which rises from call to call, or once with 0 where
 * kvt_load_wait says KVT_MISS; on a thread of the queue or on one that waits in kvt_load_wait,
 * under no lock that a call on the load takes. It must not end the load, nor wait for it. */
typedef void kvt_load_announced(void *context, uint32_t layers);

/* Zero but for struct_size, and KVT_NO_DEADLINE as deadline: the defaults. */
typedef struct kvt_load_options {
    uint32_t struct_size;
    uint32_t layers_ahead; /* of those that the caller has released; 0 = 2; at most 64 */
    uint64_t deadline_ns;  /* instant of CLOCK_MONOTONIC after which no read is begun or waited for,
                              KVT_NO_DEADLINE for none; a load that reads no device goes on */
    double loss_max;       /* as kvt_request.loss_max */
    kvt_load_announced *announced; /* may be NULL */
    void *announced_context;
    uint64_t pass; /* that computes with the layers: a number of kvt_pass_begin; 0, or one that has
                      ended: none */
    uint32_t coarse_planes; /* 0: none; 1 to 4: a progressive load. Entries stored as more planes of
                               K or V come with so many first. Where loss_max is set, only those
                               whose coarse form is known to keep it do */
    uint32_t as_stored;     /* 1: layers come as they are stored, into a GPU's memory (gpu.h); 0 */
} kvt_load_options;

/*
 * Begins to load entries, and waits for none of them. A store with an engine that other hosts share
 * (remote.h) asks it for the entries that are not here: then the first layer comes when the engine
 * has answered for all of them, or when kvt_remote_options.deadline_seconds or the load's deadline
 * have passed, and an entry that has not come is KVT_MISS or KVT_E_TIMEOUT. Records from other
 * hosts hold at most half of the staging; entries beyond that are misses.
 * All entries have one number of layers, counted over an entry's groups in their order; one that
 * has another fails. An opaque group has no layers: it comes with the layer before it, or with the
 * first one when none is before.
 *   keys         count of them, in the order of the prefix
 *   views        one for each key; of an entry of groups a view of its groups (KVT_BASES_GROUPS),
 *                and a view that fits no entry, such as a packed one of two groups, fails its entry
 *                with KVT_E_ARGUMENT. Views and the memory that they name are borrowed until
 *                kvt_load_end, arrays of views until begin returns. Where two views share bytes or
 *                a block of one pool, the later one's entry fails with KVT_E_ARGUMENT
 *   count        1 to 65536
 *   options      may be NULL: the defaults, without a deadline
 * KVT_OK, also when some entries are missing: these have failed; KVT_MISS: no entry can be loaded
 * (none is stored, none has layers, or no entry's views fit it), and there is no load. Where other
 * hosts are asked this is known later, and kvt_load_wait says KVT_MISS;
 * KVT_E_ARGUMENT (a number in view_counts is out of range, too); KVT_E_MEMORY; KVT_E_STATE (in a
 * child of fork; the store was closed).
 */
KVT_API KVT_NODISCARD kvt_status kvt_load_begin(kvt_queue *queue, const kvt_key *keys,
                                                const kvt_view *const *views, size_t count,
                                                const kvt_load_options *options,
                                                kvt_load **load_out);

/* Layers from the first one on that are complete in all entries that have not failed. Waits for
 * nothing, takes no lock. */
KVT_API uint32_t kvt_load_layers(const kvt_load *load);

/* All layers of the load, complete or not, a progressive load's twice; 0 while other hosts are
 * asked.
 *   reads_out  whether it waits for devices or other hosts, so that its deadline counts; may be
 *              NULL */
KVT_API uint32_t kvt_load_total(kvt_load *load, bool *reads_out);

/* Waits until so many layers are complete, or until an instant of CLOCK_MONOTONIC in nanoseconds,
 * KVT_NO_DEADLINE for none. No more than layers_ahead + 1 layers come beyond those that
 * kvt_load_release has released; of layers that are coded together (transform over four layers) the
 * first one decides, and the memory of all is written then. The calling thread decodes layers of
 * entries that lie in memory meanwhile, a piece of a layer at a time, and may be late by one piece.
 * KVT_OK; KVT_MISS (other hosts have answered, and no entry can be loaded: no layer comes);
 * KVT_E_TIMEOUT (that instant, or the load's deadline); KVT_E_ARGUMENT (more layers than there
 * are); KVT_E_STATE (its queue was closed). */
KVT_API KVT_NODISCARD kvt_status kvt_load_wait(kvt_load *load, uint32_t layers,
                                               uint64_t deadline_ns);

/* The caller has computed with so many layers: as many further ones may be read. In a progressive
 * load layer n is refined in place once it has been released and all coarse layers are complete;
 * whoever reads it meanwhile finds of each element the coarse value or the refined one. */
KVT_API void kvt_load_release(kvt_load *load, uint32_t layers);

/* An entry now: KVT_OK (all of it has come); KVT_QUEUED (not yet); why it failed: KVT_MISS,
 * KVT_E_MISMATCH (the store lacks the basis of its variant; kvt_store_describe names it),
 * KVT_E_ARGUMENT (its views or their number, its layers), KVT_E_MEMORY, KVT_E_TIMEOUT (a host had
 * not answered at the deadline). In a progressive load KVT_COARSE: all of it has come in its coarse
 * form, and not yet, or never, refined. index is below the load's count. At the load's deadline
 * nothing is announced: a caller that waits on a descriptor alone has a timer of its own. Takes no
 * lock, but of a progressive load and of one into a GPU's memory. */
KVT_API KVT_NODISCARD kvt_status kvt_load_status(kvt_load *load, size_t index);

/* What a load gave. Of views in a GPU's memory see gpu.h. */
typedef struct kvt_load_result {
    uint32_t struct_size;
    uint32_t layers;       /* complete in all entries that have not failed */
    size_t entries;        /* leading entries that are complete */
    uint64_t bytes_read;   /* from devices, by this load */
    uint64_t bytes_shared; /* that reads of other loads and of gets have brought for this one */
    size_t coarse;         /* entries that had a coarse form of their own; 0 of a store of another
                              process, which does not say it */
} kvt_load_result;

/* The forms of an entry of a progressive load, and what answers made from them lose: 1 - quality,
 * of the calibration that the store's ladder comes from, by what has been observed since. NAN: not
 * known. */
typedef struct kvt_load_quality {
    uint32_t struct_size;
    bool coarse;         /* it has a coarse form; else its layers are whole when they come */
    kvt_variant variant; /* of the whole entry */
    double loss;         /* mean */
    double loss_upper;   /* the upper end of its confidence */
    kvt_variant coarse_variant;
    double coarse_loss;
    double coarse_loss_upper;
} kvt_load_quality;

/* KVT_OK, once a layer has come; KVT_BUSY: the entry's head is not read yet; KVT_MISS: it is not
 * held; KVT_E_ARGUMENT (index, struct_size); KVT_E_STATE (no progressive load; a child of fork);
 * KVT_E_UNSUPPORTED (of a store of another process). */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_load_quality_of(kvt_load *load, size_t index, kvt_load_quality *quality_out);

/*
 * Ends a load, complete or not, and frees it, once: reads in flight are abandoned, what is being
 * decoded is finished. Afterwards no memory of its views is touched.
 *   statuses    count of them, or NULL: KVT_OK (the entry is complete); KVT_COARSE (in its coarse
 *               form alone); KVT_E_TIMEOUT (it is not, and has not failed); why it failed
 *   result_out  may be NULL; struct_size is set by the caller
 * KVT_OK; KVT_E_ARGUMENT (struct_size; the load has ended all the same); KVT_E_STATE (in a child of
 * fork: nothing has ended, and nothing is written). NULL as load is allowed.
 */
KVT_API kvt_status kvt_load_end(kvt_load *load, kvt_status *statuses, kvt_load_result *result_out);

/* ---- passes ---- */

/* The kind of a pass. */
typedef enum kvt_pass_kind { KVT_PASS_PREFILL = 0, KVT_PASS_DECODE = 1 } kvt_pass_kind;

/* A pass of the model over some new tokens behind a prefix. */
typedef struct kvt_pass {
    uint32_t struct_size;
    uint32_t new_tokens;    /* at least 1 */
    uint32_t prefix_tokens; /* that are loaded or were there */
    uint32_t layers;        /* 1 to 4096 */
    kvt_pass_kind kind;
    uint32_t reserved;    /* zero */
    double layer_seconds; /* of computing one layer; 0 = as the table says, else the prefill model;
                             not negative, finite */
} kvt_pass;

/*
 * Announces a pass, whose first layer is needed now. Without kvt_pass_end it counts until
 * store.write_patience after its last layer would have been computed.
 * KVT_OK; KVT_BUSY (64 passes are announced, or 16 by this client of a server); KVT_E_ARGUMENT;
 * KVT_E_UNSUPPORTED (a follower; an older server); KVT_E_STATE (in a child of fork). Any thread;
 * takes a short lock.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_pass_begin(kvt_store *store,
                                                                 const kvt_pass *pass,
                                                                 uint64_t *pass_out);

/* The pass begins to compute a layer now. Layers ascend; one may be left out. KVT_OK;
 * KVT_E_ARGUMENT (the pass has no such layer, or is past it); KVT_MISS (it has ended, or no longer
 * counts); else as kvt_pass_begin. */
KVT_API KVT_EXPERIMENTAL kvt_status kvt_pass_layer(kvt_store *store, uint64_t pass, uint32_t layer);

/* The pass has ended; its loads go on without it. KVT_OK; KVT_MISS (it had ended, or no longer
 * counts); else as kvt_pass_begin. */
KVT_API KVT_EXPERIMENTAL kvt_status kvt_pass_end(kvt_store *store, uint64_t pass);

/* What one layer takes. */
typedef struct kvt_pass_row {
    uint32_t new_tokens; /* at least 1 */
    uint32_t prefix_tokens;
    double layer_seconds; /* above 0, finite */
} kvt_pass_row;

/*
 * Gives the store measured seconds, in place of those that it had (of the profile, if any). Between
 * rows, and beyond them, the prefill model is scaled by what the rows near by measured.
 *   rows  count of them in any order, with any holes; copied; NULL with count 0: none
 * KVT_OK; KVT_E_ARGUMENT (a row; more than 4096; two rows of one place); KVT_E_MEMORY; else as
 * kvt_pass_begin.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_pass_table_set(kvt_store *store,
                                                                     const kvt_pass_row *rows,
                                                                     size_t count);

#ifdef __cplusplus
}
#endif

#endif
