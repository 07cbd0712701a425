/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - cases of kvlab: parts of the library beside this machine's own limits, measured in the
 * same run, and their own options.
 *
 * Thread rule: one case at a time.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "lab/harness/bench_case.h"

/* Reads and writes every device alone, then all of them as one pool in each layout and with objects
 * of several sizes; without devices four memory devices behind a throttle. */
extern const bench_case bench_stripe_case;

/* The cost of keeping KV for long: encrypted devices (as for stripe), which are overwritten,
 * beside plain ones, bytes a second of a core; opens of stores with many entries; the scrub beside
 * gets; a drive that answers late. */
extern const bench_case bench_keep_case;

/* Its parts, of which options->part chooses one. */
enum { BENCH_KEEP_ALL, BENCH_KEEP_SEAL, BENCH_KEEP_REOPEN, BENCH_KEEP_SCRUB, BENCH_KEEP_SLOW };

/* Layered loads of an announced pass beside writes, in each order in which drives begin requests,
 * on the devices (as for stripe), which are overwritten; on emulated drives with and without a loss
 * by mixing: blocked time, its ratio to the same loads alone, the share of the writes that was done
 * by the end, their waits, the time to the first token. */
extern const bench_case bench_slack_case;

/* One pass and its writes as in slack, on stores with more and more of the parts: bubble and time
 * to the first token. */
extern const bench_case bench_ablation_case;

/* Contexts read layer by layer, by layout of their entries on the devices (as for stripe), which
 * are overwritten, with slots and without; what a slot costs to take, and what is written into
 * slots after 1e5 puts and deletes. */
extern const bench_case bench_objects_case;

/* Layers of 16 to 4,096 KV blocks through a ring on the devices (as for stripe), which are
 * overwritten: calls and processor time of the caller, beside gets, and the drives' share by the
 * bytes of a context; contexts per second from memory. */
extern const bench_case bench_ring_case;

/* Our client on servers of Valkey or Redis, and gets of a store through it. */

/* Decode steps of one layer of a sparse sequence on the devices (as for stripe), which are
 * overwritten: seconds of the drives, their share of what they could read, and errors, by layout,
 * copies, window, precision, beside published methods at equal error. */
extern const bench_case bench_sequence_case;

/* Tokens per second of several sparse sequences on the devices (as for sequence): selecting,
 * fetching and computing at once, beside published methods at equal error with their schedules. */
extern const bench_case bench_pipeline_case;

/* Gets and puts of entries in DRAM beside memcpy on memory that is equally cold, gets on two
 * threads, and a lookup among options->iterations entries (0 = 1e6); 2 GiB of memory.
 * KVT_E_CORRUPT: bytes were wrong, or a call failed. */
extern const bench_case bench_store_case;

/* A store that `kvterrace serve`, from the folder of this program, lends, beside the same store in
 * this process: lookups, gets and batches in DRAM; with devices, which are overwritten, gets of 1,
 * 2 and 4 clients from them. KVT_E_CORRUPT: bytes were wrong, or a call failed. */
extern const bench_case bench_serve_case;

/* A store on throttled memory beside the simulator: mean times to the first token of six policies
 * in eight settings, ranks, wrong bytes. quick: two settings, half the requests. KVT_E_MISMATCH: a
 * mean differs by more than 10 %, policies that the simulator tells apart rank otherwise, or bytes
 * were wrong. */
extern const bench_case bench_live_case;

/* Static instances against their dual bound, then the engine's own state after ten calls an entry,
 * with the times of its decisions; about 3 GiB of memory at 1e6 entries. KVT_E_CANCELLED: progress
 * said so; what was finished is reported. */
extern const bench_case bench_policy_case;

typedef struct bench_policy_options {
    uint32_t entries; /* of one size; 0 = 1e3, 1e5 and 1e6 */
    uint32_t seeds;   /* of each instance; 0 = 3 */
} bench_policy_options;

/* Times every variant beside memcpy, and says what it costs in bits and does to the numbers of a
 * seeded sample. KVT_E_ARGUMENT: an unknown variant or instruction set; KVT_E_UNSUPPORTED: an
 * instruction set that the machine lacks. Forces the codecs' instruction set and puts the best one
 * back. */
extern const bench_case bench_codecs_case;

typedef struct bench_codecs_options {
    const char *const *variants; /* names; none = the case's own list */
    uint32_t variant_count;
    const char *isa;  /* "scalar", "avx2" or "avx512"; NULL = all that the machine has */
    uint32_t workers; /* time whole records on so many threads, too; 0 or 1 = on one alone */
} bench_codecs_options;

/* What a GPU does of a store's work, beside copies within it and to it: decoding and verifying
 * alone, loads from memory and from throttled drives, layers beside kernels, modules, loads with
 * faults. Eight bars, each with what was asked. KVT_E_UNSUPPORTED: no GPU answers. */
extern const bench_case bench_gpu_case;

typedef struct bench_gpu_options {
    kvt_layout shape;      /* of an entry; layers 0 = Llama-3.1-8B's, 256 tokens */
    uint64_t decode_bytes; /* of elements that kernels alone make; 0 = 512 MiB */
    uint32_t context;      /* entries of a load; 0 = 32 */
    uint32_t loads;        /* with faults; 0 = 10,000, quick 1,000 */
    uint32_t first_load;   /* of them; those before it are left out */
    uint32_t bar;          /* this one alone, counted from 1; 0 = all */
    uint32_t seconds;      /* after which nothing is begun; 0 = 420, quick 80 */
    double loads_seconds;  /* after which they end; 0 = 120, quick 15 */
} bench_gpu_options;

/* Whether a GPU answers; else why not, in one line. */
bool bench_gpu_answers(char *reason, size_t reason_size);

/* Times whole segments of the transform codec on each instruction set. Sets the process' BLAS
 * threads. */
extern const bench_case bench_transform_case;

#endif
