/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - the benches behind `kvterrace bench`: parts of the library beside this machine's own
 * limits, measured in the same run.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <kvterrace/device.h>

#include <stdio.h>

typedef struct bench_options {
    FILE *out;           /* results; messages go to stderr */
    bool json;           /* one JSON document instead of a table */
    bool quick;          /* one repetition of small work: shows that it runs, not how fast */
    uint32_t iterations; /* repetitions; 0 = the bench's default */

    /* devices bench: what to measure. None = a memory device and a file of 256 MiB each, the file
     * in a new folder inside scratch_folder, which is removed afterwards. */
    const kvt_device_config *devices;
    const bool *overwrite; /* one per device: a file device's content may be lost. NULL = none may,
                              so file devices are only read */
    uint32_t device_count;
    const char *scratch_folder; /* NULL = /var/tmp */
    bool faults;                /* remote bench: nodes fail, instead of rows */
    uint32_t sequences;         /* pipeline bench: 0 = 4 */
    uint32_t compute_us;        /* pipeline bench: of a layer and sequence; 0 = as the best method's
                                   fetch */

    /* Told of the share that is done, [0,1], and of what is at work, 1 before the results are
     * printed; or NULL. */
    void (*progress)(void *context, double done, const char *what);
    void *progress_context;
} bench_options;

/* Says to options->progress how many of the parts are done, and what comes next. */
static inline void bench_tell(const bench_options *options, double done, double parts,
                              const char *what)
{
    if (options->progress != NULL)
        options->progress(options->progress_context, parts > 0 ? done / parts : 0, what);
}

/*
 * Reads and writes every device through a pool of its own, and two throttled members through a
 * stripe with proportional and with equal shares. Returns an exit code: 0; 1 (a device could not be
 * opened or failed; the reason is on stderr). Blocking.
 */
int bench_devices_run(const bench_options *options);

/*
 * Our client of a cluster of its own, and gets of a store through it; with faults, a store under
 * load while a node fails. Returns an exit code as above; 77: no server
 * of Valkey or Redis is installed. Blocking.
 */
int bench_remote_run(const bench_options *options);

/*
 * Reads and writes every device alone, then all of them as one pool in each layout and with objects
 * of several sizes; without devices four memory devices behind a throttle. Returns an exit code as
 * above; also 1 when a device may not be overwritten. Blocking.
 */
int bench_stripe_run(const bench_options *options);

/*
 * Decode steps of one layer of a sparse sequence on the devices (as for stripe; none: throttled
 * memory), which are overwritten: seconds of the drives, their share of what they could read, and
 * errors, by layout, copies, window, precision, hints, beside published methods at equal error.
 * Returns an exit code as above. Blocking.
 */
int bench_sequence_run(const bench_options *options);

/*
 * Tokens per second of several sparse sequences on the devices (as for sequence): selecting,
 * fetching and computing at once, beside published methods at equal error with their schedules.
 * Returns an exit code as above. Blocking.
 */
int bench_pipeline_run(const bench_options *options);

/*
 * What a restart costs and brings back: stores of 1e5 and 1e6 entries (options->iterations: so
 * many) on four members in scratch_folder end by a close and by kill -9, with copies and write-back
 * and without; then gets beside the background's write-back. Forks: call it before there are
 * threads. Takes no devices. Returns an exit code as above; also 1 when bytes are wrong. Blocking.
 */
int bench_restart_run(const bench_options *options);

/*
 * Gets and puts of entries in DRAM beside memcpy on memory that is equally cold, gets on two
 * threads, and a lookup among options->iterations entries (0 = 1e6). Takes no devices. Returns an
 * exit code as above; also 1 when bytes are wrong. Blocking; 2 GiB of memory.
 */
int bench_store_run(const bench_options *options);

/*
 * A store on throttled memory beside the simulator: mean times to the first token of six policies
 * in eight settings, ranks, wrong bytes. quick: two settings, half the requests. Takes no devices.
 * Returns an exit code as above; also 1 when a mean differs by more than 10 %, when policies that
 * the simulator tells apart rank otherwise, or when bytes are wrong. Blocking.
 */
int bench_live_run(const bench_options *options);

typedef struct bench_policy_options {
    FILE *out; /* results; notes go to stderr */
    bool json;
    bool quick;       /* a thousand entries: shows that it runs */
    uint32_t entries; /* of one size; 0 = 1e3, 1e5 and 1e6 */
    uint32_t seeds;   /* of each instance; 0 = 3 */
    bool (*progress)(void *context, double done, const char *what); /* or NULL; false ends it */
    void *progress_context;
} bench_policy_options;

/*
 * Static instances against their dual bound and against other ways to choose, then the engine's own
 * state after ten calls an entry, with the times of its decisions. KVT_OK; KVT_E_CANCELLED
 * (progress said so; what was finished is printed); KVT_E_MEMORY; KVT_E_IO; what the engine says.
 * Blocking; about 3 GiB of memory at 1e6 entries.
 */
KVT_NODISCARD kvt_status bench_policy_run(const bench_policy_options *options, char *message,
                                          size_t message_size);

typedef struct bench_codecs_options {
    FILE *out; /* results; notes go to stderr */
    bool json;
    bool quick;                  /* a small working set, few contexts, the best instruction set */
    bool quiet;                  /* no notes */
    const char *const *variants; /* names; none = the bench's own list */
    uint32_t variant_count;
    const char *isa;           /* "scalar", "avx2" or "avx512"; NULL = all that the machine has */
    const char *const *models; /* judge the variants on these models' own KV */
    uint32_t model_count;
    const char *tokenizer; /* with models: their vocabulary, and JSONL files of texts */
    const char *const *texts;
    uint32_t text_count;
    uint32_t contexts; /* entries judged per model; 0 = 40, or 8 when quick */
    uint32_t threads;  /* that judge; 0 = one per processor */
    uint32_t workers;  /* time whole records on so many threads, too; 0 or 1 = on one alone */
    void (*progress)(void *context, double done, const char *what); /* as in bench_options */
    void *progress_context;
} bench_codecs_options;

/*
 * Times every variant beside memcpy, and says what it costs in bits and does to the numbers of a
 * seeded sample and, with models, to what they predict. KVT_OK; KVT_E_ARGUMENT (an unknown variant
 * or instruction set, models without tokenizer or texts, too few texts); KVT_E_UNSUPPORTED (an
 * instruction set that the machine lacks); KVT_E_MEMORY; KVT_E_IO; what a model's loader says.
 * Forces the codecs' instruction set and puts the best one back. Blocking.
 */
KVT_NODISCARD kvt_status bench_codecs_run(const bench_codecs_options *options, char *message,
                                          size_t message_size);

/*
 * Times the matrix products of the transform codec beside OpenBLAS's sgemm on the blocks that
 * occur, and whole segments on each instruction set. Needs no device. KVT_OK; KVT_E_MEMORY; what a
 * basis learner gives. Sets the process' BLAS threads. Blocking.
 */
KVT_NODISCARD kvt_status bench_transform_run(const bench_options *options);

struct quality_variant;
enum { BENCH_BASES_MAX = 4, BENCH_BASES_FORMS = 16 };

typedef struct bench_bases_options {
    FILE *out;
    bool json;
    bool quick;
    uint32_t iterations;      /* loads of each context; 0: 3 */
    const char *const *bases; /* .kvtbasis files, at least one */
    uint32_t basis_count;
    const char *const *kv; /* dumps; none: KV is drawn from the widest basis */
    uint32_t kv_count;     /* at most 16 */
    uint32_t tokens;       /* of a context */
    const struct quality_variant *variants;
    uint32_t variant_count;
    uint64_t bytes_per_s; /* of a drive */
} bench_bases_options;

/*
 * Loads contexts in each form through a store on two throttled drives, and without the throttle,
 * with two decoding threads. KVT_OK; KVT_E_CORRUPT (a get in another form or with other bytes: the
 * message says which); what files, stores and codecs give. Blocking.
 */
KVT_NODISCARD kvt_status bench_bases_run(const bench_bases_options *options, char *message,
                                         size_t message_size);

#endif
