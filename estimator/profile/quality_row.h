/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_row.h - what one variant does to one entry, and what that makes over all entries: plain
 * data that measuring, the profile database and reports share. Not a number: not measured.
 *
 * Thread rule: plain data.
 */
#ifndef ESTIMATOR_QUALITY_ROW_H
#define ESTIMATOR_QUALITY_ROW_H

#include <kvterrace/types.h>

/* A record whose row was coded as one head: added to the mode of its variant, as "@row" is to its
 * name. No stored form has such a mode. */
#define QUALITY_MERGED_MODE 0x80u

enum { QUALITY_NAME_BYTES = 96 };

/* One entry x variant, as in quality_entry of the profile (docs/PROFILE.md). */
typedef struct quality_row {
    bool present; /* else: not measured, or the codec does not take the layout */
    double bits_per_element, physical_bits_per_element;
    double loss; /* by the set's metric, in [0, 1] */
    double kl;   /* mean over the continuation, nats */
    double kl_first, kl_second;
    double top1;      /* share of tokens with the same most probable next token */
    double nll_delta; /* variant minus exact, nats per token */
    double rouge_l;   /* of greedy answers against those from exact KV; likewise f1 */
    double f1;
    double answers; /* share of the entry's questions that are answered rightly */
    double attention_error, attention_error_high;
    double retained_mass, flip_rate;
    double nmse[2]; /* K, V */
} quality_row;

/* One variant over the entries of a set, as in quality_curve. */
typedef struct quality_curve {
    uint32_t entries; /* with a row; 0: the rest is not set */
    double bits_per_element, physical_bits_per_element;
    double loss_mean, loss_low, loss_high; /* 95 % interval of the mean */
    double loss_p90, loss_cv;              /* cv: standard deviation over mean, between entries */
    double kl, kl_low, kl_high, kl_p90;
    double top1, nll_delta, rouge_l, f1, answers;
    double attention_error, attention_error_high, retained_mass, flip_rate;
    double nmse[2];
    double spearman_entries; /* attention error against KL, over entries */
    double repeatability;    /* of log KL between the halves of the continuation, over entries */
} quality_curve;

/* What a set says beside its curves. */
typedef struct quality_spread {
    double nll_nats;          /* of exact KV, mean over entries */
    double answers;           /* share of all questions that exact KV answers rightly */
    double spearman_variants; /* mean attention error against mean KL */
    double spearman_entries;  /* median over variants */
    double sensitivity_sd;    /* of the entry effect: log KL less its variant's mean */
    double repeatability;     /* of the entry effect between the halves of the continuation */
    uint32_t variants;        /* that the entry effect is of: lossy, below 6 bits, KL below 0.5 */
} quality_spread;

#endif
