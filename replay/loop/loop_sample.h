/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_sample.h - one sample for each request, and what they add up to. Private to the room. One
 * thread.
 */
#ifndef LOOP_SAMPLE_H
#define LOOP_SAMPLE_H

#include "replay/loop/loop.h"

typedef struct loop_sample {
    uint32_t context, class_index;
    bool hit, staged; /* staged: from the staging of a put */
    bool declined;    /* stored, but predicted to load more slowly than it is computed */
    bool same;        /* the answer is the exact one */
    kvt_tier tier;
    kvt_variant variant;
    uint32_t tokens_kept;
    uint64_t kv_checksum; /* of what the answer comes from */
    double wait_s, load_s, prefill_s, question_s, put_s;
    double get_s, decode_s, predicted_s; /* predicted 0: not known */
    double rouge_l, f1, top1, recall;    /* recall NAN without a passage */
    double loss;
} loop_sample;

typedef struct loop_samples {
    loop_sample *samples;
    uint64_t count;
    kvt_variant stored_variant[LOOP_FORMS_MAX];
    uint64_t stored[LOOP_FORMS_MAX][KVT_TIER_COUNT];
    uint32_t stored_count;
    uint64_t first_arrival_ns, last_arrival_ns;
} loop_samples;

/* KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_samples_open(loop_samples *samples, uint64_t most);
void loop_samples_close(loop_samples *samples);

void loop_samples_add(loop_samples *samples, const loop_sample *sample);

/* An entry that is stored at the end. */
void loop_samples_stored(loop_samples *samples, kvt_variant variant, int tier);

/* Fills the result's times, quality and forms. */
void loop_samples_finish(loop_samples *samples, const loop_ladder *ladder, loop_result *result);

#endif
