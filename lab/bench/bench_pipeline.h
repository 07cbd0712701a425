/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_pipeline.h - what the files of the pipeline bench share.
 *
 *     bench_pipeline.c          data, calibration, our stages, reports
 *     bench_pipeline_methods.c  published methods with their schedules; the drives
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_PIPELINE_H
#define BENCH_BENCH_PIPELINE_H

#include <kvterrace/kvterrace.h>

#include "bench.h"
#include "bench_reads.h"

enum {
    PIPELINE_LAYERS = 2,
    PIPELINE_SEQUENCES_MAX = 16,
    PIPELINE_OBSERVED = 32,
    PIPELINE_APART = 4, /* steps between two sequences' and layers' first ones */
    PIPELINE_METHODS = 4
};

/* How a method goes through the layers of its sequences. */
typedef enum pipeline_schedule {
    ONE_BY_ONE, /* fetch of all sequences, then compute of all */
    PREFETCH    /* fetch of the next sequence while one computes */
} pipeline_schedule;

typedef struct pipeline_method {
    decode_method method;
    pipeline_schedule schedule;
    kvt_striping striping;
    bool whole; /* reads all of it */
} pipeline_method;

extern const pipeline_method pipeline_methods[PIPELINE_METHODS];

enum { OURS = PIPELINE_METHODS, OURS_APART, PIPELINE_CASES };

typedef struct pipeline_row {
    bool there;
    double tokens_per_s, error, bytes; /* read, of a layer and sequence */
    double step_seconds;               /* of a token of all sequences */
    double select, fetch, bring, compute, overlap;
} pipeline_row;

/* The reads of a method at the error that all have. */
typedef struct method_plan {
    decode_trial trial;
    decode_reads reads;
    decode_figures figures;
} method_plan;

typedef struct pipeline_site {
    const bench_options *options;
    decode_layer layer;
    method_plan plans[PIPELINE_METHODS];
    uint32_t tokens, steps, sequences; /* steps: tokens of each sequence */
    uint64_t bytes;                    /* of a layer */
    uint16_t *k, *v;
    float *queries; /* [PIPELINE_OBSERVED + layer.steps][row] */
    size_t row;
    double target_error, error;
    uint64_t budget_bytes, window_bytes; /* of a layer, as calibrated */
    uint32_t micro_batch;
    uint32_t next; /* token that no run of ours has had */
    double compute_seconds[2];
    double method_fetch[PIPELINE_METHODS]; /* of a layer and sequence */
    pipeline_row rows[PIPELINE_CASES][2];
} pipeline_site;

/* The first step of a layer of a sequence. */
static inline uint32_t pipeline_first_step(uint32_t sequence, uint32_t layer)
{
    return (sequence * PIPELINE_LAYERS + layer) * PIPELINE_APART;
}

/* Fills in what follows from a run of all sequences over so many tokens. */
void pipeline_finish_row(const pipeline_site *site, pipeline_row *row, uint32_t steps,
                         double wall_seconds);

/* Finds what a method reads at the error that all have. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status pipeline_method_plan(pipeline_site *site, uint32_t number);

/* Runs a method with the first (0) or the second (1) length of computing; with the second, which is
 * none, its fetch time is noted, too. */
KVT_NODISCARD kvt_status pipeline_method_run(pipeline_site *site, uint32_t number, int which,
                                             char *message, size_t size);

#endif
