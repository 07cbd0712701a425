/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - memory of a GPU as the target of gets and loads and the source of puts, without a CUDA
 * header: streams (CUstream, cudaStream_t) and events (CUevent, cudaEvent_t) are `void *`, device
 * addresses fit a pointer (docs/GPU.md).
 *
 *     view.memory = KVT_MEMORY_GPU;
 *     view.gpu = 0;
 *     view.ready = event;          behind which the pages are free, or hold what a put stores
 *     kvt_load_begin(queue, keys, views, count, NULL, &load);
 *     for (uint32_t layer = 0; status == KVT_OK && layer < layers; layer++) {
 *         status = kvt_load_wait_layer(load, layer, stream);
 *         compute(layer, stream);
 *         kvt_load_release(load, layer + 1);
 *     }
 *     kvt_load_end(load, statuses, NULL);
 *
 * What a stream has computed from a layer counts only for entries for which kvt_load_end has said
 * KVT_OK, and which are KVT_QUEUED until then: an engine recomputes the blocks of the others.
 *
 * In a progressive load (load.h) layer layers + n is layer n refined. kvt_load_status waits for the
 * coarse layers, once all of them are announced, and what it calls KVT_COARSE counts at once.
 *
 * Such views are taken by kvt_store_get, kvt_store_put, kvt_prefix_get, requests of a queue and
 * kvt_load_begin; a follower answers KVT_E_UNSUPPORTED, and so does a store of another process. All
 * views of one call name one GPU. The driver is found at run time; without one these calls answer
 * KVT_E_UNSUPPORTED. Beside the statuses of the call: KVT_E_ARGUMENT (a GPU that is not there, an
 * address that is not of its memory), KVT_E_GONE (its context is lost), KVT_E_IO (a copy failed).
 * A get waits until its copies have ended, a put until the KV has been read; a put that kernels
 * encode (kivi, planes) returns when the entry is stored, as with put_staging_bytes 0. A get of an
 * entry that only other hosts have is KVT_MISS: a prefetch brings it.
 *
 * A load decodes, unless kvt_load_options.as_stored is 1: then the bytes of each layer come as they
 * are stored, verified, for an engine that decodes itself (kvt_load_stored_of). The hbm tier keeps
 * entries on the GPU as they are stored, where gets and loads decode them in place;
 * kvt_store_prefetch(store, key, KVT_TIER_HBM) asks for that.
 *
 * The engine uses the GPU's primary context, streams and pinned memory of its own, and leaves the
 * context that is current on a caller's thread as it was.
 *
 * Thread rule: as of the calls that take the views.
 */
#ifndef KVTERRACE_GPU_H
#define KVTERRACE_GPU_H

#include "load.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Makes a stream wait for a layer of a load into a GPU's memory. The call itself waits until the
 * layer's work is in the engine's streams, as kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE).
 *   stream   of the GPU's primary context; NULL: its default stream
 * KVT_OK; statuses of kvt_load_wait; KVT_E_ARGUMENT: a layer that the load does not have, a stream
 * of another context, a load into memory of the host; KVT_E_GONE.
 */
KVT_API KVT_NODISCARD kvt_status kvt_load_wait_layer(kvt_load *load, uint32_t layer, void *stream);

/* A segment of a record: docs/FORMAT.md. */
typedef struct kvt_load_segment {
    uint64_t offset; /* in the record and in the entry's view; a multiple of 64 */
    uint64_t bytes;
    uint32_t kind; /* of a part, by its number in docs/FORMAT.md */
    uint32_t side; /* kvt_side */
    uint32_t plane;
    uint32_t reserved; /* zero */
} kvt_load_segment;

#define KVT_LOAD_SEGMENTS_MAX 16u

/* The parts of a layer that a load of stored bytes brings. */
typedef struct kvt_load_stored {
    uint32_t struct_size;
    uint32_t layers; /* that come together from this one on; 0: it comes with one before it, whose
                        segments are of all of them */
    kvt_variant variant;
    uint64_t record_bytes; /* room that the entry's view needs */
    uint32_t segment_count;
    uint32_t reserved; /* zero */
    kvt_load_segment segments[KVT_LOAD_SEGMENTS_MAX];
} kvt_load_stored;

/*
 * Says where a load with options.as_stored puts what is stored of a layer. Views of such a load are
 * packed (KVT_BASES_PACKED) runs of a GPU's memory that begin at a multiple of 64 and have room for
 * the record: each segment comes to its offset in the record, and no other byte is written. The CPU
 * verifies a layer before it sends a byte of it. An entry fails with KVT_E_SPACE where its view is
 * too short, with KVT_BUSY where its put is under way, so that no record is there yet, and with
 * KVT_E_ARGUMENT where it has groups or another view. Such a load is not progressive.
 * KVT_OK; KVT_BUSY: the entry's head is not read yet (once a layer has come it is); KVT_MISS: the
 * entry is not held, or has failed; with KVT_E_SPACE record_bytes are set, and no segments;
 * KVT_E_ARGUMENT (index, layer, struct_size); KVT_E_STATE (another kind of load; it has ended with
 * its queue or store; a child of fork).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_load_stored_of(kvt_load *load, size_t index,
                                                                     uint32_t layer,
                                                                     kvt_load_stored *stored_out);

/* What a store has done on a GPU. */
typedef struct kvt_gpu_stats {
    uint32_t struct_size;
    bool open;               /* a view or a move has needed it; else all is 0 */
    bool kernels_refused;    /* the driver has refused kernels; the CPU decodes in their place */
    uint64_t bytes_in;       /* copied from the host to the GPU */
    uint64_t bytes_out;      /* and back */
    uint64_t decoded_by_cpu; /* layers of entries of gets and loads that the CPU has decoded before
                                they were copied; opaque bytes count as one layer, here and below */
    uint64_t decoded_by_gpu; /* those that kernels have decoded, and found sound */
    uint64_t unsound;        /* those that kernels have found unsound: what is stored is damaged
                                (kvt_store_stats.load_failures), or the GPU errs */
    uint64_t encoded_by_cpu; /* layers of entries of puts, and of moves out of the hbm tier that
                                code elements anew, that were copied out of the GPU as they are */
    uint64_t encoded_by_gpu; /* those that kernels have encoded, so that their record was copied */
    uint64_t decoded_in_place; /* of decoded_by_gpu, those of records in this GPU's memory: nothing
                                  of them was copied but their heads */
    uint64_t sent_in_place;    /* of decoded_by_gpu, those copied straight from the DRAM tier's
                                  memory, which the driver has registered */
    uint64_t registered_bytes; /* of that memory, now */
    /* The engine that decodes: "cuda"; "cuda without kvt_planes: REASON (CUresult)", which names
     * the first kernel that the driver has refused; or "cpu: REASON", as "cpu: the driver is too
     * old (222)", or "cpu: no driver (libcuda.so.1)" after a call whose GPU could not be opened.
     * A refusal of a kernel shows once it has been needed. */
    char engine[80];
    double gets_share; /* of the store's gets and loads lately, those into GPUs' memory (before the
                          first one 1 after a put from there): options have so much of their
                          seconds (docs/GPU.md, Predictions) */
} kvt_gpu_stats;

/* KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (a child of fork); KVT_E_UNSUPPORTED (a store of another
 * process). */
KVT_API KVT_NODISCARD kvt_status kvt_gpu_stats_get(kvt_store *store, uint32_t gpu,
                                                   kvt_gpu_stats *stats_out);

#ifdef __cplusplus
}
#endif

#endif
