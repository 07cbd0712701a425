/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict.h - what the estimator predicts: the options of an entry and their seconds, break-even
 * points, how soon entries come back, and what a running store learns about seconds and losses.
 *
 * Thread rule: a kvt_reuse belongs to one thread at a time; everything else is pure arithmetic over
 * the caller's memory (no locks, no allocation, no clock) and may run on any thread.
 */
#ifndef ESTIMATOR_OFFER_H
#define ESTIMATOR_OFFER_H

#include "estimator/profile/profile.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/load.h>
#include <kvterrace/policy.h>

#include <stdbool.h>
#include <stdint.h>

/* ---- offers: curves become the bytes and seconds that the policy decides on ---- */

#define KVT_VARIANTS_MAX 10u

typedef struct kvt_cost_model {
    bool present[KVT_TIER_COUNT];    /* tiers that may hold entries */
    kvt_affine read[KVT_TIER_COUNT]; /* of the whole tier: its devices striped together */
    kvt_affine write[KVT_TIER_COUNT];
    bool arriving[KVT_TIER_COUNT]; /* a get decodes what has come while it reads the rest */
    kvt_affine link;               /* pinned memory to a GPU; bytes_per_s 0: not measured */
    double gpu_share; /* of gets, those into a GPU's memory: options take their seconds for so
                         much, as far as the link is measured */
    kvt_codec_curve variants[KVT_VARIANTS_MAX];
    uint32_t variant_count;
    kvt_prefill prefill;
    uint32_t parallel_codecs; /* threads that encode or decode one entry; at least 1 */
    double loss_limit;        /* that no coding on top of another may pass; 0: none */
} kvt_cost_model;

/* A record of an entry in this variant takes so many bytes: it was made once. */
typedef struct kvt_known_size {
    kvt_variant variant;
    uint64_t bytes;
} kvt_known_size;

/* Facts of an entry when it is offered to the engine; zero means not known. */
/* The groups of layers of an entry: one option list is common to them. */
typedef struct kvt_offer_groups {
    const kvt_layout *layouts;
    uint32_t count;
    uint32_t exact; /* the model's variant that groups take which are not lossy */
    uint64_t lossy; /* groups that lossy variants are for, a bit each */
} kvt_offer_groups;

typedef struct kvt_offer {
    uint64_t handle;                /* names it in the engine; not 0 */
    uint64_t parent;                /* the entry with the tokens before it; 0 = none */
    kvt_layout layout;              /* tells its tokens, its bytes and its record's header */
    const kvt_offer_groups *groups; /* of an entry of groups, whose layout is theirs; else NULL */
    uint32_t first_position;        /* of its first token */
    uint32_t request_tokens;        /* of the requests that use it; 0 = up to this entry's end */
    uint32_t class_id;
    uint32_t tenant;
    uint32_t variants;           /* only the model's first so many; 0 = all */
    double recompute_seconds;    /* 0 = what the prefill model says; opaque entries: of the entry */
    double sensitivity;          /* factor on losses, which the engine keeps; 0 = 1 */
    double loss_factor;          /* of losses observed to those of the curves; 0 = 1 */
    double loss_factor_upper;    /* of their bounds */
    const double *shares;        /* by variant: learned bytes over source bytes without the record's
                                    header; NAN = the curve's; NULL = all of them */
    const kvt_known_size *known; /* sizes of this entry's records */
    uint32_t known_count;
} kvt_offer;

/*
 * Seconds that decoding adds to a read, as a pipeline of `steps` parts (codecs_arriving_steps): the
 * longer of the two takes its time, and the other one its last part, or first. With one step all of
 * the decoding comes behind the read.
 */
static inline double offer_decode_beside(double read_seconds, double decode_seconds, uint32_t steps)
{
    const double shorter = read_seconds < decode_seconds ? read_seconds : decode_seconds;
    return steps > 1 ? decode_seconds - shorter * (1.0 - 1.0 / (double)steps) : decode_seconds;
}

/*
 * Seconds of option NONE. Where holes end a prefix (CONTIGUOUS), a path is worth storing as a whole
 * or not at all, so each of its tokens carries the mean over the path of request_tokens; in MIXED
 * mode an entry has the seconds of its own place.
 */
double kvt_offer_recompute_seconds(const kvt_prefill *prefill, kvt_hole_mode holes,
                                   uint32_t first_position, uint32_t tokens,
                                   uint32_t request_tokens);

/*
 * What the engine decides on. options (KVT_OPTIONS_MAX of them) are NONE, then every present tier x
 * every variant, tiers from HBM down, variants in the model's order; entry_out names them and is
 * ready for kvt_policy_admit.
 *   bytes         what a plan reserves: the record with its header in whole KVT_RECORD_ALIGN, and
 *                 2 % more where its size is an estimate
 *   read_bytes    what the record is expected to take
 *   load_seconds, decode_seconds  of a get into the host's memory and of one into a GPU's, by the
 *                 model's gpu_share (docs/GPU.md, Predictions)
 *   made_from     which lossy variants come from which: planes dropped, planes at 8 bits to any
 *                 coarser lossy variant, an entropy one to 3x its steps; and coded once more, from
 *                 any of another codec that has all tokens, as far as the model's limit lets both
 *                 bounds add up. A move writes the new record whole, so kept_from is empty
 * KVT_OK; KVT_E_ARGUMENT when the model would give more options than fit, or holds a rate, share or
 * time that is not positive and finite, or the layout is unsound.
 */
KVT_NODISCARD kvt_status kvt_offer_build(const kvt_cost_model *model, kvt_hole_mode holes,
                                         const kvt_offer *offer, kvt_option *options,
                                         kvt_policy_entry *entry_out);

/* The same without options: recompute_seconds and what describes the entry, for one of a ladder
 * (kvt_policy_ladder_add), whose number the caller sets. KVT_OK; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status kvt_offer_describe(const kvt_cost_model *model, kvt_hole_mode holes,
                                            const kvt_offer *offer, kvt_policy_entry *entry_out);

/* The loss of an entry in a variant, and its bound: the curve's, times the factors of observed
 * losses and of their bounds (0: 1); a lossy variant never counts as exact. */
void kvt_offer_losses(const kvt_codec_curve *curve, double factor, double factor_upper,
                      double *loss_out, double *upper_out);

/* What a record's size says of its variant: the share of the source bytes that the payload takes,
 * without header, table and the chain's sinks, which are stored raw. NAN for a layout that has no
 * record, and for an entry of sinks alone. */
double offer_coded_share(const kvt_layout *layout, kvt_variant variant, uint32_t first_position,
                         uint64_t record_bytes);

/* ---- where one choice stops being faster than another ---- */

/*
 * Seconds until source_bytes of KV are decoded: request_seconds + share * source_bytes /
 * bytes_per_s + source_bytes / decode_bytes_per_s. A decode speed of 0 stands for no decoding; one
 * of several threads stands for that many at work on one entry.
 */
double kvt_load_seconds(const kvt_affine *read, const kvt_codec_curve *variant,
                        double source_bytes);

/*
 * The bandwidth of a device above which a variant loads no faster than raw bytes:
 *
 *     (share of raw - share of variant) / (1 / decode of variant - 1 / decode of raw)
 *
 * INFINITY where it always pays (smaller and no slower to decode), 0 where it never does. The
 * device's seconds per request do not matter: both pay them.
 */
double kvt_break_even_bandwidth(const kvt_codec_curve *raw, const kvt_codec_curve *variant);

/*
 * The context length in tokens, from position 0, below which recomputing is faster than loading it
 * from a device in this variant; from there on loading wins. 0: loading wins at every length;
 * INFINITY: recomputing does.
 */
double kvt_break_even_tokens(const kvt_affine *read, const kvt_codec_curve *variant,
                             double bytes_per_token, const kvt_prefill *prefill);

/* ---- how soon entries of a class come back ---- */

/*
 * Watches a sample of the entries and fits, for each class,
 *
 *     rate of uses at t = branching * (ln 2 / h) * sum over uses before t of 2^(-(t - t_use) / h),
 *
 * which is what the policy's decayed counters predict with, for half-lives h from 10 s to 6 h at
 * once. One thread at a time; memory is taken at open alone.
 */
typedef struct kvt_reuse kvt_reuse;

#define KVT_REUSE_CLASSES 64u /* higher numbers count as class 0 */

/* entries: how many are watched at most, 64 to 2^20; 0 = 4096. KVT_OK; KVT_E_ARGUMENT;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status kvt_reuse_open(uint32_t entries, kvt_reuse **reuse_out);
void kvt_reuse_close(kvt_reuse *reuse);

/* One use of an entry. handle: not 0, well mixed. Time never steps back. */
void kvt_reuse_use(kvt_reuse *reuse, uint64_t now_ns, uint64_t handle, uint32_t class_id);

/* KVT_OK; KVT_E_ARGUMENT (no such class). Some milliseconds. */
KVT_NODISCARD kvt_status kvt_reuse_read(kvt_reuse *reuse, uint64_t now_ns, uint32_t class_id,
                                        kvt_reuse_class *out);

/* ---- what a running store learns about seconds (docs/STORE.md, Learning) ---- */

/* ---- seconds of one device in one direction ---- */

/* The bytes that a load asks a device for, and the bytes queued there before them. */
typedef struct online_work {
    double bytes;
    double ahead_bytes;   /* of the same direction: first come, first served */
    double other_bytes;   /* of the other direction, in flight on the device */
    double since_seconds; /* for so long the first of these had been under way */
} online_work;

#define ONLINE_TERMS 3

/*
 * What a clock may say, and what a device or a codec may come to, whatever is timed: a clock with
 * coarse steps gives zero seconds, a stopped machine hours. Fixed seconds alone may be 0.
 */
#define ONLINE_SECONDS_LEAST     1e-9
#define ONLINE_SECONDS_MOST      1e6
#define ONLINE_BYTES_PER_S_LEAST 1.0
#define ONLINE_BYTES_PER_S_MOST  1e15
#define ONLINE_BASE_MOST         1e6 /* of a re-based curve over the measured one, or the inverse */

/* Seconds that were timed, brought within what a clock may say. */
double online_timed(double seconds);

/* Bytes per second of a device or a codec, brought within what one may come to; NAN becomes the
 * lowest. */
double online_rate(double bytes_per_s);

/* The same of both figures of a device. */
kvt_affine online_figures(kvt_affine figures);

/* Whether figures are within these bounds. */
bool online_figures_are_sound(const kvt_affine *figures);

/* Figures that were learned stay within so many times of the curve, and so small a part of it.
 * Fixed seconds and those of the other direction have no lower bound: less of them refuses nothing.
 */
#define ONLINE_FACTOR_MOST 4.0
#define ONLINE_SURE        24u       /* observations until a figure counts */
#define ONLINE_LOAD_BYTES  1048576.0 /* the request that a device's figures are compared at */

/*
 * seconds = value[0] + value[1] (bytes + ahead) + value[2] other, followed by a Kalman filter with
 * random-walk coefficients: the relative error of each observation is shared out over the terms by
 * how uncertain each is. A single hiccup is cut off at a few spreads.
 */
typedef struct online_device {
    double curve[ONLINE_TERMS]; /* the stored curve's */
    double used[ONLINE_TERMS];  /* what decisions are made on */
    double value[ONLINE_TERMS]; /* as achieved lately */
    double scale[ONLINE_TERMS]; /* the unit of each term's uncertainty */
    double covariance[ONLINE_TERMS][ONLINE_TERMS];
    double noise;  /* variance of one observation's relative error */
    double slower; /* sums of what speaks for a drift from `used`, in spreads */
    double faster;
    uint32_t settling; /* observations until a re-opened curve is taken up */
    uint64_t observations;
    uint64_t reopened; /* how often that happened */
    uint32_t fast_run; /* observations in a row that were far below `used` */
    double fast_worst; /* the largest of them, over what `used` says */
    uint32_t
        bound_run[ONLINE_TERMS]; /* observations that left a term at a bound, less the others */
    uint64_t rebased;            /* terms of the curve replaced by what is achieved, ever */
} online_device;

/* Of sound figures (online_figures_are_sound). */
void online_device_init(online_device *device, double request_seconds, double bytes_per_s);

/* Goes on from figures that were learned before, as far as they are within the bounds of the curve:
 * value and used. */
void online_device_resume(online_device *device, double request_seconds, double bytes_per_s,
                          uint64_t observations);

double online_device_predict(const online_device *device, const online_work *work);

/*
 * Takes one achieved time, within what a clock may say (online_timed). True when `used` has been
 * changed to new figures: the device has drifted and they have settled, or requests with nothing
 * before them took far less time than `used` says, several times in a row. The bounds hold after
 * each call; figures that stand at one of them for long, or that are proved to lie below the lower
 * one, become the curve.
 */
bool online_device_observe(online_device *device, const online_work *work, double seconds);

/* Its present figures as the affine model that options are costed with. */
kvt_affine online_device_affine(const online_device *device);

/* Takes the figures towards the curve: `kept` in [0, 1] of their distance stays. */
void online_device_decay(online_device *device, double kept);

/* Largest relative difference of the present figures from the stored curve, at so many bytes. */
double online_device_drift(const online_device *device, double bytes);

/* ---- averages ---- */

/* An average that forgets, and cuts single hiccups off. */
typedef struct online_average {
    double value;
    double deviation; /* mean absolute one */
    uint64_t observations;
} online_average;

/* The first observation replaces the value; later ones move it by `share`, or by more while there
 * were few. */
void online_average_observe(online_average *average, double observed, double share);

/* ---- factors on a curve ---- */

/* Achieved over a measured curve's seconds. The average is of the curve as this life has re-based
 * it, and stays within the bounds. */
typedef struct online_factor {
    online_average average;
    double base; /* the re-based curve over the measured one */
    uint32_t fast_run;
    double fast_worst;
    uint32_t bound_run;
    uint64_t rebased;
} online_factor;

void online_factor_init(online_factor *factor);

/* Goes on from a factor that was learned before, as far as it is within the bounds. */
void online_factor_resume(online_factor *factor, double value, uint64_t observations);

/* Takes achieved over the measured curve's seconds, finite and above 0. */
void online_factor_observe(online_factor *factor, double achieved, double share);

/* As online_device_decay. */
void online_factor_decay(online_factor *factor, double kept);

/* Of the measured curve's seconds. */
static inline double online_factor_value(const online_factor *factor)
{
    return factor->base * factor->average.value;
}

/* ---- how far predictions were off ---- */

#define ONLINE_ERROR_BINS 96u

/* |predicted - achieved| / achieved in bins of equal ratio; old ones are half forgotten. */
typedef struct online_error {
    float bins[ONLINE_ERROR_BINS];
    float total;
    uint64_t observations;
    double predicted_seconds; /* sums of all */
    double achieved_seconds;
} online_error;

void online_error_observe(online_error *error, double predicted_seconds, double achieved_seconds);

/* The error that so large a share of the observations stay within; 0 without any. */
double online_error_quantile(const online_error *error, double share);

/* ---- what a running store learns about losses (docs/POLICY.md, Losses) ---- */

/*
 * An entry's expected loss in some variant is the variant's mean loss times the entry's factor.
 * Factors of a class are lognormal around the class's own. One question shows a factor that is
 * lognormal around the entry's, and most of that spread is the question's: a question counts as
 * much as it has been seen to repeat.
 *
 *     ln factor   = class + entry            entry ~ N(0, entry_sd^2)
 *     ln observed = ln factor + question     question ~ N(-v/2, v), v = question_sd^2 / weight
 */

typedef struct online_loss_prior {
    double class_sd; /* of a class's ln factor before anything of it is seen */
    double entry_sd;
    double question_sd;
} online_loss_prior;

/*
 * From a measurement of many entries: sd, the standard deviation of the measured logarithms, and
 * repeatability, their correlation between two halves of each measurement. By Spearman and Brown
 * the whole repeats with 2r / (1 + r), so that share of the variance is the entries'. r <= 0 or sd
 * <= 0: entries show no difference of their own. widening: the factor that bounds for a class never
 * measured are widened by (docs/PROFILE.md, What a limit promises), which says how far a class may
 * lie from those that were; 0: the classes were measured, and a factor of two is supposed.
 */
online_loss_prior online_loss_prior_of(double sd, double repeatability, double widening);

/* The ln factor of a class: its mean and variance. */
typedef struct online_loss_class {
    double mean;
    double variance;
    uint64_t observations;
    uint64_t reopened; /* how often it had drifted */
    double above;      /* sums of what speaks for a drift, in spreads */
    double below;
} online_loss_class;

/* Of an entry; all zero = nothing. */
typedef struct online_loss_entry {
    float weight; /* sum over observations */
    float sum;    /* of weight x ln observed, the question's mean taken out */
} online_loss_entry;

typedef struct online_loss_factor {
    double mean;  /* the factor's expectation */
    double upper; /* the mean of entries of which as much is known is below, with 95 % */
} online_loss_factor;

void online_loss_class_init(online_loss_class *of_class, const online_loss_prior *prior);

/* Goes on from a factor that was learned before. weight: of the observations behind it. */
void online_loss_class_resume(online_loss_class *of_class, const online_loss_prior *prior,
                              double factor, double weight, uint64_t observations);

/* The factor of an entry of the class. */
online_loss_factor online_loss_expect(const online_loss_prior *prior,
                                      const online_loss_class *of_class,
                                      const online_loss_entry *entry);

/* The class's mean factor, and the weight behind it. */
double online_loss_class_factor(const online_loss_prior *prior, const online_loss_class *of_class,
                                double *weight_out);

/* observed: measured loss over the variant's mean, >= 0. weight > 0: 1 = as much evidence as one
 * entry gave in the measurement of the prior. True when the class has drifted: what was known of it
 * counts little now. */
bool online_loss_observe(const online_loss_prior *prior, online_loss_class *of_class,
                         online_loss_entry *entry, double observed, double weight);

/* ---- passes ---- */

/* Seconds of one layer of a pass: the prefill model's, scaled by what the rows measured, the nearer
 * the more (of new tokens and prefix as ratios); a row's own seconds at its place. count 0: the
 * model's. Above 0 and finite. */
double kvt_pass_seconds(const kvt_pass_row *rows, size_t count, const kvt_prefill *prefill,
                        const kvt_pass *pass);

#endif
