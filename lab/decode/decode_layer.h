/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_layer.h - methods of sparse decode over all KV heads of one layer: what each of them reads
 * in every step, and the error of its output. For the benches that carry the reads out on drives.
 *
 *     decode_layer    the units of a layer of the generator, in memory, with exact attention
 *     decode_method   an index, what it reads at once, its window, as published
 *     decode_trial    a method over a layer: its items and their weights in every step
 *     decode_reads    what the trial reads at a budget, step by step
 *
 * The first `warm` rows of queries are the prompt's last ones: they fill windows, and they are the
 * profile where a method needs one. All values are read in 16 bits.
 *
 * Thread rule: one thread has a layer and its trials.
 */
#ifndef DECODE_DECODE_LAYER_H
#define DECODE_DECODE_LAYER_H

#include "decode.h"

typedef struct decode_layer {
    decode_source source;
    decode_unit *units; /* [kv_heads] */
    uint32_t warm, steps;
    uint32_t judged; /* steps whose error is taken, at equal distances */
} decode_layer;

/* K and V of [tokens], and [warm + steps] rows of queries, all of the generator; no token is
 * appended. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status decode_layer_open(uint32_t tokens, uint32_t warm, uint32_t steps,
                                           uint32_t judged, uint64_t seed, decode_layer *layer_out);
void decode_layer_close(decode_layer *layer);

/* An engine's data of a layer: K and V, fp16 [tokens][kv_heads][head_dim], and queries, fp32
 * [warm + steps][kv_heads][group][head_dim], of which step 0 has row `warm`. */
typedef struct decode_data {
    uint16_t *k, *v;
    float *queries;
    size_t row;     /* floats of queries of a step */
    uint64_t bytes; /* of K and V */
} decode_data;

KVT_NODISCARD kvt_status decode_data_make(const decode_layer *layer, decode_data *data_out);
void decode_data_free(decode_data *data);

/* The number of a judged step, or -1. */
int decode_layer_judged(const decode_layer *layer, uint32_t step);

typedef struct decode_method {
    const char *name;
    decode_index index;
    decode_layout layout;
    uint32_t run;
    bool estimate;
    windows_rule rule;
    double window;         /* in budgets */
    uint64_t window_bytes; /* of all heads, if `window` is 0 */
} decode_method;

/* Items of one KV head; with DECODE_COACTIVE of all heads together, whose entries are tokens. */
typedef struct decode_part {
    decode_choice choice;
    uint32_t unit, units; /* the first of its heads, and how many */
    float *weight;        /* [rows][items] */
} decode_part;

typedef struct decode_trial {
    const decode_method *method;
    uint32_t part_count;
    decode_part *parts;
} decode_trial;

KVT_NODISCARD kvt_status decode_trial_open(decode_layer *layer, const decode_method *method,
                                           decode_trial *trial_out);
void decode_trial_close(decode_trial *trial);

/* An item of a part; with DECODE_COACTIVE a token. */
typedef struct decode_read {
    uint32_t part, item;
} decode_read;

typedef struct decode_reads {
    uint32_t *first; /* [steps + 1] */
    decode_read *list;
    size_t room;
} decode_reads;

void decode_reads_close(decode_reads *reads);

typedef struct decode_figures {
    double error, bytes, hit_ratio; /* bytes of a step, in whole blocks of 4 KiB */
} decode_figures;

/* Runs all rows at a budget, a share of the zone. reads: NULL, or zeroed and the caller's to
 * close. */
KVT_NODISCARD kvt_status decode_trial_run(decode_layer *layer, decode_trial *trial, double budget,
                                          decode_reads *reads, decode_figures *figures_out);

/* The least budget, to an eighth, whose error is at most the given one; 1: none below it. */
KVT_NODISCARD kvt_status decode_trial_find(decode_layer *layer, decode_trial *trial, double error,
                                           double *budget_out);

/* Bytes of an item's slot, in whole blocks: of the largest one. */
uint32_t decode_part_slot(const decode_layer *layer, const decode_part *part);
uint32_t decode_item_bytes(const decode_layer *layer, const decode_part *part, uint32_t item);

#endif
