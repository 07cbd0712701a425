/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.h - decoding over a KV cache that is larger than memory: the pages of one step, and
 * attention over them. docs/SPARSE.md has the whole of the design.
 *
 * A step brings, for one layer, pages: rows of K and V that the query needs, each in the precision
 * that it deserves, and an estimate of all others. An engine attends to the pages by its own
 * kernels and merges the estimate; kvt_sparse_attend does both on the CPU. Partial outputs merge
 * exactly: of two with log-sum-exps a and b the whole is (exp(a) A + exp(b) B) / (exp(a) + exp(b)).
 *
 *     kvt_sparse_head heads[8] = {{.pages = list, .page_count = count}, ...};
 *     kvt_sparse_pages pages = {.struct_size = sizeof pages, .kv_heads = 8, .group = 4,
 *                               .head_dim = 128, .dtype = KVT_DTYPE_BF16, .heads = heads};
 *     kvt_status status = kvt_sparse_attend(&pages, queries, output, lse);
 *
 * Sources: KVDrive (sections 4 and 5), SWARM (section 4), RetroInfer (the estimate).
 */
#ifndef KVTERRACE_SPARSE_H
#define KVTERRACE_SPARSE_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_SPARSE_HEAD_DIM_MAX 512u  /* head_dim is a multiple of 8 */
#define KVT_SPARSE_ROW_DIM_MAX  1024u /* where the model selects by itself: a latent has more */
#define KVT_SPARSE_GROUP_MAX    64u   /* query heads of a KV head */

/* How much of a page was read. Bits are of each element; raw is the layout's own. */
typedef enum kvt_sparse_variant {
    KVT_SPARSE_ABSENT = 0,
    KVT_SPARSE_BITS_2 = 1,
    KVT_SPARSE_BITS_4 = 2,
    KVT_SPARSE_BITS_8 = 3,
    KVT_SPARSE_RAW = 4
} kvt_sparse_variant;

/* Rows that a KV head's queries attend to: [tokens][head_dim] of the dtype, packed. Those of a page
 * whose tier is HBM lie in a GPU's memory: k and v are addresses for its kernels, which the CPU
 * does not follow. All others are in memory of the host, and an engine copies them as it likes. */
typedef struct kvt_sparse_page {
    const void *k, *v;         /* of any alignment; valid until kvt_sparse_done */
    const uint32_t *positions; /* of each token in the sequence, in no order; NULL: not known */
    uint32_t tokens;           /* at least 1 */
    uint8_t variant;           /* kvt_sparse_variant; sinks and local tokens are raw */
    uint8_t tier;              /* that the page was read from; KVT_TIER_HBM: k and v are addresses
                                  of a GPU; KVT_TIER_NONE: always resident */
} kvt_sparse_page;

/* One KV head of a step. */
typedef struct kvt_sparse_head {
    const kvt_sparse_page *pages; /* NULL when there are none */
    uint32_t page_count;
    uint32_t lost_count;
    const uint32_t *lost;  /* pages that were chosen and have no bytes in this step */
    const float *estimate; /* [group][head_dim], normalised: the output of all tokens that are in
                              no page; NULL, as estimate_lse is: there is no estimate */
    const float *estimate_lse; /* [group]; -infinity where no token is left */
} kvt_sparse_head;

typedef struct kvt_sparse_step kvt_sparse_step;

/* All of a layer and step. */
typedef struct kvt_sparse_pages {
    uint32_t struct_size; /* sizeof(kvt_sparse_pages) of the caller */
    uint32_t layer;
    uint32_t kv_heads, group, head_dim; /* group: query heads of a KV head */
    uint32_t dtype;                     /* KVT_DTYPE_FP16, BF16 or FP32 */
    const kvt_sparse_head *heads;       /* [kv_heads] */
    uint32_t lost_count;                /* of all heads */
    float scale;                        /* of scores; 0: 1 / sqrt(head_dim) */
    uint64_t read_bytes;                /* that this step asked devices for */
    const kvt_sparse_step *step;        /* that the pages are of, for kvt_sparse_attend to read back
                                           those in HBM; NULL: all rows are in memory of the host */
} kvt_sparse_pages;

/*
 * Attends on the calling thread.
 *   pages    not NULL; rows, estimate and lists are only read
 *   queries  fp32 [kv_heads][group][head_dim], after position encoding
 *   output   fp32, of the same shape, normalised; 0 where there is nothing to attend to
 *   lse      [kv_heads][group]: log-sum-exp of the scaled scores; -infinity where there is nothing
 *            to attend to. May be NULL
 * A row whose score is NaN is left out. KVT_OK: within 1e-5 of exact attention over the same rows
 * (values of size 1). KVT_E_ARGUMENT: a NULL, struct_size, a shape outside of the limits above, a
 * page of no tokens, a query that is not finite or passes 1e30; output is unchanged then. Allocates
 * nothing, does not block. Any thread.
 *
 * Pages that lie in HBM are first copied to the host, head by head, which takes longer than the
 * attention: for tests, and to compare kernels with. With such pages the call allocates and blocks,
 * and may also return KVT_E_MEMORY, and KVT_E_IO or KVT_E_GONE when the device does not give them;
 * output is undefined then, and the step is to be ended and begun anew.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_attend(const kvt_sparse_pages *pages,
                                                                    const float *queries,
                                                                    float *output, float *lse);

typedef struct kvt_sparse kvt_sparse;

#define KVT_SPARSE_ALL UINT64_MAX /* a budget: every page in its best variant */

typedef struct kvt_sparse_options {
    uint32_t struct_size;    /* set by kvt_sparse_options_init, as all else */
    uint32_t query_heads;    /* a multiple of kv_heads */
    kvt_layout layout;       /* of the whole sequence: layers, kv_heads, head_dim, dtype, tokens */
    uint32_t tokens_max;     /* with appended ones; 0 = tokens + 1,024 */
    uint32_t sink_tokens;    /* 4; always resident, raw */
    uint32_t local_tokens;   /* 64; the last tokens, always resident, raw */
    uint32_t join_tokens;    /* 256; appended tokens beyond these join clusters, in pages */
    uint32_t page_tokens;    /* 8, 16 .. 128; 0 = so many that 4 bits of a page are 4 KiB */
    uint32_t cluster_tokens; /* up to 256; 0 = 16 */
    uint32_t segment_tokens; /* a multiple of 128 up to 32,768; 0 = 2,048 */
    uint32_t iterations;     /* of k-means, up to 100; 0 = 3 */
    uint32_t variants;       /* a mask of 1 << kvt_sparse_variant; 4 and 8 bits and raw */
    uint64_t budget_bytes;   /* that a step of one layer may read; KVT_SPARSE_ALL */
    uint64_t window_bytes[KVT_TIER_PLACES]; /* of rows, of all layers and heads, in HBM and in DRAM:
                                               a page is in one of them. In HBM every layer and
                                               head has as much, whole pages */
    bool divide_windows; /* windows sized by the bytes that they save, not all equal: on */
    float decay;         /* pages stay in a window by a running mean of their expected weights; the
                            share of the past in each step's mean, [0, 1): 0.5 */
    float replica_share; /* of the pages that get a second copy on another drive: 0.25 */
    bool estimate;       /* estimate tokens of unread pages by centroids and mean values: on */
    uint64_t hedge_ns;   /* a page that is late by so much is also read from its copy: 20 ms */
    double worth_per_byte; /* of the window, in seconds saved per second and byte; 0 = free room */
    uint64_t seed;
    float index_share;  /* of the rows' bytes that centroids, means and slopes may take, 0 to 1; 0:
                          as many as there are. Beyond it slopes leave, layer by layer and head by
                          head, where they change the output least for the observed queries: once
                          the last layer is observed, or at the first step */
    bool given;         /* the model selects by itself (kvt_sparse_select_given): nothing is
                           clustered, there is no index, and no sinks; variants is raw alone */
    uint32_t key_bytes; /* of the index keys of such a model that are kept beside, of a token and
                           layer, up to 65,536; 0 = none. With given alone */
    float single_share; /* share of the tokens of the window in DRAM that a step brings, 0 to 1:
                           single ones, as runs of neighbours, chosen by codes of their keys that
                           take a byte for each 8 channels; the estimate has the others. Pages that
                           a step reads, and those of a kept sequence, are whole. 0: all are */
} kvt_sparse_options;

/* Fills every field of options of struct_size bytes with its default for a layout; budget_bytes is
 * 0, query_heads that of kv_heads. kvt_sparse_options_init is the form for C and C++. */
KVT_API void kvt_sparse_options_init_sized(kvt_sparse_options *options, uint32_t struct_size,
                                           const kvt_layout *layout);

static inline void kvt_sparse_options_init(kvt_sparse_options *options, const kvt_layout *layout)
{
    kvt_sparse_options_init_sized(options, (uint32_t)sizeof *options, layout);
}

/*
 * Opens a sequence whose K and V are given layer by layer. The room on the tiers is taken now.
 *   message   one line for a person on failure; may be NULL with size 0
 * KVT_OK: the caller closes it; KVT_E_ARGUMENT (an option, which the message names; layers times
 * kv_heads above 65,536); KVT_E_UNSUPPORTED (head_dim not a multiple of 8 or over 512; no fp16,
 * bf16 or fp32; the store has no SSD, or no DRAM or HBM for the windows); KVT_E_SPACE (the message
 * has the bytes that are missing; a window in HBM lies on one device, in one piece); KVT_E_MEMORY;
 * KVT_E_STATE (in a child of fork, as of every call below; kvt_sparse_done and kvt_sparse_close do
 * nothing there). Blocks while entries make way for the pages.
 *
 * With options->given head_dim may be 1,024, the dtype FP8, whose rows are bytes of any kind, and
 * the layout may have one side, a latent that is K and V at once.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_open_live(kvt_store *store, const kvt_sparse_options *options, kvt_sparse **sequence_out,
                     char *message, size_t message_size);

/*
 * Gives the next layer's K and V, [tokens][kv_heads][head_dim] each, after position encoding; they
 * are read until the call returns; v is NULL where the layout has one side, here and in
 * kvt_sparse_append. Clusters, codes and writes the layer's pages: blocking. KVT_OK;
 * KVT_E_STATE (not the next layer); KVT_E_ARGUMENT (NULL); KVT_E_UNSUPPORTED (an element is not
 * finite or passes 1e30; or cannot be coded, without raw variants); KVT_E_SPACE; KVT_E_MEMORY;
 * KVT_E_IO, KVT_E_GONE (a write failed). After an error the sequence can only be closed.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_give(kvt_sparse *sequence,
                                                                  uint32_t layer, const void *k,
                                                                  const void *v);

/*
 * Opens a sequence from stored entries, in any variant, in the order of their prefix.
 * options->layout is that of all of them together. Memory: a few layers' K and V. Statuses as of
 * kvt_sparse_open_live and kvt_sparse_give, and: KVT_MISS (an entry is not stored, or left
 * meanwhile); KVT_E_MISMATCH (entries of another layout, or whose tokens do not add up).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_open(kvt_store *store, const kvt_sparse_options *options, const kvt_key *keys,
                size_t count, kvt_sparse **sequence_out, char *message, size_t message_size);

/*
 * Keeps a sequence: its index, pages and resident rows, appended tokens too, become opaque entries
 * of the store, from which kvt_sparse_open_kept opens it without clustering. They survive a restart
 * as entries do (call kvt_store_persist where the policy keeps them above SSD), and are evicted as
 * entries are; a kept sequence that has lost one is a miss, and the next keep under its key
 * replaces it. When several sequences are kept under one key at once, one of them is, and the other
 * calls return KVT_EXISTS and leave nothing. After a crash during a keep the sequence is a miss,
 * and the policy evicts its unused entries. kvt_sparse_delete deletes all of a kept sequence.
 * Memory: one head of one layer. KVT_OK; KVT_EXISTS (something is stored under the key, or a lease
 * holds what would be replaced); KVT_E_SPACE (the store takes no more); KVT_E_IO, KVT_E_GONE (a
 * page that neither its place nor its copy gives); KVT_E_MEMORY; KVT_E_STATE. Blocking.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_keep(kvt_sparse *sequence,
                                                                  const kvt_key *key);

/*
 * Opens a kept sequence. The options must state its shape: layout, variants, page, segment and sink
 * tokens, a local_tokens that leaves the same pages, and a tokens_max of at least its tokens.
 *
 * The pages are read in the entries' own place, so any number of sequences share them, and room is
 * taken for copies, appended tokens and the window alone. Until the last of these sequences is
 * closed the entries are neither evicted nor moved (kvt_store_stats.in_place). A deleted entry is
 * still read, and its room is free after that close; the pages on a device that fails are lost. An
 * entry is copied to SSD, into room of the sequence's own, when it is stored coded, when it is
 * above the SSD and not in memory in one piece, or when more than half of a tier of memory would be
 * held this way. kvt_sparse_stats.in_place_pages says how many pages are not copied.
 *
 * Statuses as of kvt_sparse_open_live, and: KVT_MISS (a part is not stored); KVT_E_CORRUPT,
 * KVT_E_VERSION (the bytes are no kept sequence, or of another format); KVT_E_MISMATCH (another
 * shape, and the message names the difference; or parts of two sequences). Pages are checked when
 * they are read.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_open_kept(kvt_store *store, const kvt_sparse_options *options, const kvt_key *key,
                     kvt_sparse **sequence_out, char *message, size_t message_size);

/*
 * Deletes a kept sequence: the entries of its parts, then the one under its key. When a call is cut
 * short, by a crash too, the sequence is a miss and another call deletes the rest. Sequences that
 * are open on it go on. After a kvt_store_delete of the key alone the sequence is a miss, and the
 * policy evicts its unused parts. KVT_OK; KVT_MISS (nothing is stored under the key);
 * KVT_E_MISMATCH, KVT_E_CORRUPT, KVT_E_VERSION (another entry is: it stays); KVT_BUSY (a lease
 * holds the entry under the key; the parts are deleted); KVT_E_MEMORY; KVT_E_STATE. Blocking.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_delete(kvt_store *store,
                                                                    const kvt_key *key);

/* Ends all steps and gives the room back. To be called before kvt_store_close. NULL is allowed. */
KVT_API KVT_EXPERIMENTAL void kvt_sparse_close(kvt_sparse *sequence);

/*
 * Warms a layer up with the prompt's last queries, fp32 [rows][query_heads][head_dim]: the pages
 * that they weigh most fill the window in HBM, the next ones that in DRAM, and the hottest get
 * their second copies. Blocking. KVT_OK, also when some pages could not be read; KVT_E_STATE (a
 * layer is missing, or has a step); KVT_E_ARGUMENT (not finite, or beyond 1e30); KVT_E_MEMORY.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_observe(kvt_sparse *sequence,
                                                                     uint32_t layer,
                                                                     const float *queries,
                                                                     uint32_t rows);

/*
 * Appends tokens to a layer, [tokens][kv_heads][head_dim] each, after position encoding; they are
 * read until the call returns. The last local_tokens + join_tokens of a layer stay resident, raw;
 * older ones join clusters by their keys, and pages of them are written while the caller goes on,
 * one of a head at a time. A page is resident until it is written, and for good when its write
 * fails. KVT_OK; KVT_E_STATE (past tokens_max; the layer has a step; a layer is missing);
 * KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (an element is not finite or passes 1e30); KVT_E_MEMORY:
 * nothing is appended. A hint is no step. Waits for no device.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_append(kvt_sparse *sequence,
                                                                    uint32_t layer, const void *k,
                                                                    const void *v, uint32_t tokens);

/*
 * Begins a step of a layer: scores, plans and starts the reads; waits for nothing. queries: fp32
 * [query_heads][head_dim]. KVT_OK: the step is the caller's until kvt_sparse_done; KVT_BUSY (4
 * steps are under way); KVT_E_STATE (the layer has one; a layer is missing); KVT_E_ARGUMENT (layer;
 * a query is not finite, or passes 1e30); KVT_E_MEMORY: nothing has begun.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_select(kvt_sparse *sequence,
                                                                    uint32_t layer,
                                                                    const float *queries,
                                                                    kvt_sparse_step **step_out);

/*
 * Waits for a step's pages, not beyond an instant of CLOCK_MONOTONIC (KVT_NO_DEADLINE for none).
 * *pages_out, and all that it points to, is valid until kvt_sparse_done. KVT_OK; KVT_E_TIMEOUT:
 * *pages_out has the pages that came in time. Pages that could be read from no copy are named as
 * lost, and are part of the estimate; no page has wrong bytes. KVT_E_STATE (waited for already);
 * KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_wait(kvt_sparse *sequence, kvt_sparse_step *step, uint64_t deadline_ns,
                const kvt_sparse_pages **pages_out);

/* Ends a step, waited for or not. The caller and its kernels no longer use the step's pages. Those
 * that enter HBM are copied there behind the call. NULL is allowed. */
KVT_API KVT_EXPERIMENTAL void kvt_sparse_done(kvt_sparse *sequence, kvt_sparse_step *step);

/* A selection of a layer by a model that selects by itself: of tokens, as DeepSeek's sparse
 * attention does, or of blocks, as NSA and MoBA do. Numbers come in any order, and one that comes
 * twice counts once. */
typedef struct kvt_sparse_given {
    uint32_t struct_size;    /* sizeof(kvt_sparse_given) of the caller */
    uint32_t block_tokens;   /* number n is the positions from n * block_tokens on; 1: a token */
    uint32_t lists;          /* 1: one list for all KV heads; kv_heads: one of each */
    const uint32_t *counts;  /* [lists]: numbers of each; 0: the head attends to nothing */
    const uint32_t *numbers; /* of the first list, then of the next; NULL when all are empty */
} kvt_sparse_given;

/*
 * Gives a layer as kvt_sparse_give does, with what the prompt's last tokens have selected in it
 * (16 of them are enough): the tokens that most of them selected lie together in the first pages,
 * so that a step reads fewer. It costs 8 bytes of memory a token. count is 0: as they come.
 * Statuses as of kvt_sparse_give, and KVT_E_STATE, KVT_E_ARGUMENT as of kvt_sparse_select_given;
 * after these the layer may be given again.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_give_selected(kvt_sparse *sequence, uint32_t layer, const void *k, const void *v,
                         const kvt_sparse_given *given, uint32_t count);

/*
 * Begins a step of a sequence that was opened with options->given, for what the model has selected.
 * kvt_sparse_wait brings the rows of the selected tokens and no others, in ascending order of
 * position, bit for bit as they were given: each kvt_sparse_page is a run of neighbours, so
 * kvt_sparse_attend attends to the selection alone. The tokens of a page that cannot be read are in
 * no page, and lost_count is not 0. Of one side, v is k. Waits for nothing; the lists are read
 * until the call returns.
 *
 * KVT_OK: the step is the caller's until kvt_sparse_done; KVT_BUSY (4 steps are under way);
 * KVT_E_STATE (the sequence has an index; the layer has a step; a layer is missing); KVT_E_ARGUMENT
 * (a NULL; struct_size; layer; block_tokens is 0; lists is neither 1 nor kv_heads; a number whose
 * first token the layer does not have); KVT_E_SPACE (the pages that hold the selection, resident or
 * not, are more than budget_bytes); KVT_E_MEMORY. After an error nothing has begun.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_select_given(kvt_sparse *sequence, uint32_t layer, const kvt_sparse_given *given,
                        kvt_sparse_step **step_out);

/* Starts reads for a guess of what a layer will select, while the layer before it computes: the
 * surest three quarters of a list pay the most. They come on top of the budget of the step that
 * kvt_sparse_select_given later begins. Statuses as of that; KVT_BUSY also when the layer has a
 * hint or a step. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_sparse_hint_given(kvt_sparse *sequence, uint32_t layer, const kvt_sparse_given *given);

/*
 * Warms a layer up with selections of the prompt's last tokens, as kvt_sparse_observe does with
 * queries: the pages that most of them select fill the windows and get their second copies.
 * Blocking. Statuses as of both.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_observe_given(
    kvt_sparse *sequence, uint32_t layer, const kvt_sparse_given *given, uint32_t count);

/*
 * Gives the index keys of a layer's next tokens, options->key_bytes each: bytes of any kind, such
 * as FP8 with its scale, or bf16. They are copied, and stay in memory. KVT_OK; KVT_E_STATE (without
 * key_bytes; past tokens_max); KVT_E_ARGUMENT.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_give_keys(kvt_sparse *sequence,
                                                                       uint32_t layer,
                                                                       const void *keys,
                                                                       uint32_t tokens);

/* The index keys of a layer from its first token on, as they were given: [tokens_out][key_bytes],
 * valid until kvt_sparse_close, and those of a kept sequence after it is opened. KVT_OK;
 * KVT_E_STATE (without key_bytes); KVT_E_ARGUMENT. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_keys(const kvt_sparse *sequence,
                                                                  uint32_t layer,
                                                                  const void **keys_out,
                                                                  uint32_t *tokens_out);

typedef struct kvt_sparse_stats {
    uint32_t struct_size;
    uint64_t steps;
    uint64_t reads, read_bytes; /* pages that devices were asked for, in whole blocks of 4 KiB */
    uint64_t io_ns;             /* sum over steps, from the first read to the end of the last one */
    uint64_t hit_bytes, missed_bytes; /* that steps wanted: found in the window; read */
    uint64_t lost_pages, checksum_failures;
    uint64_t window_refusals;                 /* pages that found no place in the window's memory */
    uint64_t copied_pages;                    /* that have a second copy now */
    uint64_t divisions;                       /* times that the window was divided anew */
    uint64_t pages, page_bytes, index_bytes;  /* bytes on drives, without copies; resident bytes */
    uint64_t appended_pages;                  /* of the pages, those of appended tokens */
    uint64_t append_failures;                 /* writes of such pages that failed */
    uint64_t tier_hit_bytes[KVT_TIER_PLACES]; /* that steps found in the windows, by tier */
    uint64_t tier_window_bytes[KVT_TIER_PLACES]; /* that the windows hold now */
    uint64_t moves, move_failures; /* of pages between DRAM and HBM, that began; that failed */
    uint64_t in_place_pages;       /* of the pages, those read where the kept sequence lies */
} kvt_sparse_stats;

/*
 * Explains the pages of one KV head in a step under way, hinted or selected: a line for the head,
 * then one for each page that is resident or read. Always terminated and cut to size;
 * text may be NULL with size 0; *length_out is the length that all of it needs. KVT_OK; KVT_MISS
 * (the layer has no step); KVT_E_ARGUMENT; KVT_E_STATE.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_explain(kvt_sparse *sequence,
                                                                     uint32_t layer, uint32_t head,
                                                                     char *text, size_t size,
                                                                     size_t *length_out);

/* KVT_OK; KVT_E_ARGUMENT (NULL, struct_size); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_sparse_stats_get(const kvt_sparse *sequence,
                                                                       kvt_sparse_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
