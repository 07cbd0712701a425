/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.h - what is replayed: requests in arrival order, each a prefix of blocks, root first.
 *
 * A block is one cache entry of block_tokens tokens. Its id stands for the whole prefix that ends
 * with it, so two requests that share a block share every block before it. Ids are dense (0 up to
 * distinct_blocks - 1), in order of first appearance: a plain array indexed by them is a map. A
 * prefix's last block may be partial. Tokens behind the last block have no id and are never cached.
 *
 * A workload is built by one thread, then read only: any number of threads may read it.
 */
#ifndef REPLAY_WORKLOAD_H
#define REPLAY_WORKLOAD_H

#include "estimator/predict/predict.h"
#include <kvterrace/config.h>

#define REPLAY_TOKENS_MAX     (1u << 24) /* of one request */
#define REPLAY_BLOCK_REFS_MAX (UINT64_C(1) << 31)
#define REPLAY_ARRIVAL_MAX_NS (UINT64_C(100) * 86400 * 1000000000) /* exact in a double */

typedef struct replay_request {
    uint64_t arrival_ns;  /* from the workload's start; never falls from one request to the next */
    uint64_t first_block; /* index into blocks */
    uint32_t block_count;
    uint32_t input_tokens; /* at least 1 */
    uint32_t output_tokens;
    uint32_t session;
} replay_request;

typedef struct replay_workload {
    char name[96];  /* file name or generator, for reports */
    char note[256]; /* what was assumed of a trace's rows, or "" */
    replay_request *requests;
    uint32_t *blocks; /* dense ids, request after request */
    uint64_t request_count;
    uint64_t block_refs;
    uint64_t distinct_blocks;
    uint64_t repeated_refs; /* references to a block seen before: what an unlimited cache hits */
    uint64_t input_tokens;
    uint32_t block_tokens;
    uint32_t merged;         /* of a trace's own blocks so many are one; 0: of no trace */
    uint32_t longest_prefix; /* blocks */
    double
        conversations_per_s; /* starts drawn at this rate; 0 = the trace or generator has times */
    uint64_t grid_ns; /* step that the arrivals were quantised to, 0 = none; already spread */
} replay_workload;

/* Arrivals beside the others, in windows that come back: window k begins at (k + 1/2) periods and
 * lasts window_seconds. */
typedef struct replay_burst {
    double per_s; /* inside a window, Poisson; 0 = none, up to 1e6 */
    double window_seconds;
    double period_seconds; /* from one window's begin to the next; at least window_seconds */
} replay_burst;

/* A seeded Poisson workload: sessions arrive, pick a context by Zipf popularity and extend it turn
 * by turn. The prefix of a request is [system prompt | context | turns of one session]. */
typedef struct replay_generator {
    double requests_per_s;  /* > 0; sessions arrive at this rate over turns_mean */
    uint64_t requests;      /* 1 .. 2^24 */
    uint32_t contexts;      /* 1 .. 2^20 */
    double zipf;            /* exponent, 0 = uniform */
    double tokens_median;   /* of a context: lognormal, at least 1 */
    double tokens_sigma;    /* of the logarithm, 0 .. 4 */
    uint32_t tokens_max;    /* of a context; a request may be longer by its turns */
    double turns_mean;      /* geometric, at least 1 */
    double turn_tokens;     /* mean new tokens of a turn, exponential, at least 1 each */
    uint32_t system_tokens; /* shared by all contexts */
    double think_seconds;   /* mean pause between turns, exponential */
    uint32_t block_tokens;  /* 1 .. 65536 */
    uint64_t seed;
    double drift_per_s; /* popularity drifts: so often a context drawn by popularity trades places
                           with one drawn uniformly; 0 = never, up to 1000 */
    replay_burst scan;  /* requests for documents that nobody asks for again */
    replay_burst crowd; /* sessions that all begin with one context, drawn anew for each window */
} replay_generator;

/* Whether every field is in its range; message gets the setting at fault. KVT_OK; KVT_E_ARGUMENT.
 */
KVT_NODISCARD kvt_status replay_generator_check(const replay_generator *generator, char *message,
                                                size_t message_size);

/* Makes the workload. message gets one line on failure. KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status replay_workload_generate(const replay_generator *generator,
                                                  replay_workload *workload, char *message,
                                                  size_t message_size);

/* How a trace is read. */
typedef struct replay_trace_options {
    uint64_t seed;              /* of arrivals inside a quantised step and of session starts */
    uint64_t limit;             /* requests to keep, from the first; 0 = all */
    double conversations_per_s; /* for traces whose clock starts anew in each conversation */
    bool keep_steps;            /* arrivals stay where the trace has them, for replay_resample */
    uint32_t merge_to; /* tokens: of smaller blocks so many are one as make these, which ends with
                          the last of them; what is left behind it is never cached. 0 = none */
    uint32_t block_tokens; /* of traces without ids of blocks, 1 .. 65536; 0 = 512 */
} replay_trace_options;

/*
 * Reads a trace file, plain or packed with zstd or gzip (told by its first bytes), with or without
 * a byte order mark. The format is told by the first line, the size of blocks by their number:
 *   JSONL   {"timestamp", "input_length", "output_length", "hash_ids"}, as Mooncake, Qwen-Bailian
 *           and Dynamo write them, and the agentic traces with "conv": trace_json.c
 *   CSV     a header that names instants, tokens and perhaps sessions, as Azure and BurstGPT have
 *           it: trace_csv.c
 * What sessions, instants and missing ids become: trace_rows.h. What was assumed is in the
 * workload's note.
 * message gets file, line and reason. KVT_OK; KVT_E_PARSE (any malformed byte); KVT_E_GONE (no
 * such file); KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status replay_workload_read(const char *path, const replay_trace_options *options,
                                              replay_workload *workload, char *message,
                                              size_t message_size);

/*
 * Draws a workload of the same kind from a trace: `sessions` of its sessions with replacement (0:
 * as many as it has), then arrivals inside the trace's time step, or the starts of conversations
 * that have no common clock. A session is a conversation, or else all requests whose prefixes part
 * from the stem at the same block; the stem is the leading run of blocks that at least half of all
 * requests begin with, a system prompt. Blocks behind the stem are new ones in each copy, so two
 * copies of a session share the stem alone, and reuse within a session stays as it was. trace was
 * read with keep_steps. KVT_OK; KVT_E_MEMORY; KVT_E_SPACE.
 */
KVT_NODISCARD kvt_status replay_resample(const replay_workload *trace, uint64_t seed,
                                         uint32_t sessions, replay_workload *workload);

/* Releases what the workload holds and clears it; a cleared one is allowed. */
void replay_workload_free(replay_workload *workload);

/* How soon blocks come back, by class: those of the stem, which half of all requests begin with, of
 * conversations' beginnings, and of their continuations. */
#define REPLAY_REUSE_CLASSES 3u

typedef struct replay_reuse_row {
    const char *name; /* static storage */
    kvt_reuse_class found;
} replay_reuse_row;

/* KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status replay_workload_reuse(const replay_workload *workload,
                                               replay_reuse_row rows[REPLAY_REUSE_CLASSES]);

/* A hash over every number of the workload: equal workloads, equal fingerprints. */
uint64_t replay_workload_fingerprint(const replay_workload *workload);

/* ---- how readers and the generator fill a workload; private to the room ---- */

/*
 * One thread. After an error the builder stays valid: call workload_build_free.
 */

/* Maps the 64-bit ids of a trace to dense ones; open addressing. */
typedef struct workload_id_map {
    uint64_t *ids;
    uint32_t *dense; /* UINT32_MAX = free slot */
    size_t slots;    /* a power of two */
    size_t used;
} workload_id_map;

typedef struct workload_builder {
    replay_workload *workload;
    uint64_t request_room;
    uint64_t block_room;
    workload_id_map map;
    uint64_t *last_request; /* by dense id: 1 + the request that used it last */
    uint64_t last_room;
    bool keep_steps; /* finish finds the step of the arrivals but spreads nothing */
} workload_builder;

void workload_build_start(workload_builder *builder, replay_workload *workload,
                          uint32_t block_tokens);
void workload_build_free(workload_builder *builder);

/* Appends one request without blocks. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_request(workload_builder *builder, uint64_t arrival_ns,
                                                uint32_t input_tokens, uint32_t output_tokens,
                                                uint32_t session);

/* Appends a block to the last request: one of a trace's ids, one never seen before, or a dense id
 * that another request holds. KVT_OK; KVT_E_PARSE (the prefix holds the block already); KVT_E_SPACE
 * (more than REPLAY_BLOCK_REFS_MAX); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_block(workload_builder *builder, uint64_t id);
KVT_NODISCARD kvt_status workload_build_new_block(workload_builder *builder);
KVT_NODISCARD kvt_status workload_build_dense_block(workload_builder *builder, uint32_t dense);

/* The value that an id has in the map, UINT32_MAX when none: then the caller sets it and counts it
 * in `used`. Valid until the next call. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_id_map_slot(workload_id_map *map, uint64_t id,
                                              uint32_t **dense_out);

/* Spreads quantised arrivals inside their step by the seed (sets grid_ns), orders requests by
 * arrival, keeps the first `limit` (0 = all) and counts. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_finish(workload_builder *builder, uint64_t seed,
                                               uint64_t limit);

/* Grows *array to hold `needed` items of item_bytes, doubling. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_grow(void **array, uint64_t *room, uint64_t needed,
                                       size_t item_bytes);

#endif
