/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_attention.h - what variants do to attention, from KV and queries alone: no model runs.
 * The queries attend to one entry's K and V as they are (once per entry) and as every variant gives
 * them back; outputs, the weight on dropped tokens and the strongest token of each query are
 * compared. Codes are decoded one matrix at a time into the fp32 that the products take; nothing is
 * allocated between variants once buffers have grown to the largest.
 *
 * Thread rule: one thread per quality_attention. Products are OpenBLAS's: one thread of it each
 * (model_set_blas_threads).
 */
#ifndef ESTIMATOR_QUALITY_ATTENTION_H
#define ESTIMATOR_QUALITY_ATTENTION_H

#include "estimator/profile/quality_row.h"

#include <kvterrace/codec.h>

/* Where a high quantile over layers and heads is taken. */
#define QUALITY_ATTENTION_HIGH 0.9

typedef struct quality_attention quality_attention;

/* What the variants of one quality_attention have taken, CPU time of the thread. */
typedef struct quality_attention_cost {
    uint64_t pairs;        /* entry x variant */
    double encode_seconds; /* through kvt_record_encode */
    double decode_seconds; /* through kvt_record_decode_matrix, checksums verified */
    double probe_seconds;  /* the rest: conversion to fp32, products, softmax, comparing */
    double probe_flops;    /* of the two products */
} quality_attention_cost;

/* Room for an entry of the layout and query_rows queries per head, query_heads a multiple of the
 * layout's heads. KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_attention_open(const kvt_layout *layout, uint32_t query_heads,
                                                uint32_t query_rows, quality_attention **out);
void quality_attention_close(quality_attention *attention); /* NULL is allowed */

/* The caller's to fill: the entry, and queries as quality_dump_load_queries gives them. */
void *quality_attention_source(quality_attention *attention);
float *quality_attention_queries(quality_attention *attention);

/* The exact side; before the first variant, and after source or queries have changed. */
void quality_attention_exact(quality_attention *attention);

/*
 * One variant. Of row_out are set: present, bits_per_element, physical_bits_per_element,
 * attention_error (relative, |o - o'| / |o| over the queries of a head; mean over layers and
 * heads), attention_error_high (their QUALITY_ATTENTION_HIGH quantile), retained_mass (exact weight
 * on tokens that were kept) and flip_rate (share of queries whose strongest token is another one);
 * the rest is NAN. merged: the codec is shown the row as one head.
 * KVT_OK, present false when the codec does not take the layout; KVT_E_CORRUPT (a record that does
 * not decode); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status quality_attention_run(quality_attention *attention, kvt_variant variant,
                                               bool merged, quality_row *row_out);

const quality_attention_cost *quality_attention_spent(const quality_attention *attention);

/* Single-thread sgemm of this process' OpenBLAS, in GFLOP/s by CPU time, median of several: square
 * ones of 512, and ones of the shapes of the probe (no softmax, no decoding). KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_attention_sgemm(const kvt_layout *layout, uint32_t query_heads,
                                                 uint32_t query_rows, double *square_out,
                                                 double *shape_out);

/* A row with nothing measured. */
quality_row quality_row_none(void);

#endif
