/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.h - what an entry could become, and what that costs: curves become the bytes and seconds
 * that the policy decides on.
 *
 * Pure; any thread. kvt_cost_model is plain data.
 */
#ifndef ESTIMATOR_OFFER_H
#define ESTIMATOR_OFFER_H

#include "estimator/profile/profile.h"

#include <kvterrace/policy.h>

#define KVT_VARIANTS_MAX 10u

typedef struct kvt_cost_model {
    bool present[KVT_TIER_COUNT];    /* tiers that may hold entries */
    kvt_affine read[KVT_TIER_COUNT]; /* of the whole tier: its devices striped together */
    kvt_affine write[KVT_TIER_COUNT];
    kvt_codec_curve variants[KVT_VARIANTS_MAX];
    uint32_t variant_count;
    kvt_prefill prefill;
    uint32_t parallel_codecs; /* threads that encode or decode one entry; at least 1 */
} kvt_cost_model;

/* A record of an entry in this form takes so many bytes: it was made once. */
typedef struct kvt_known_size {
    kvt_variant variant;
    uint64_t bytes;
} kvt_known_size;

/* What is known of an entry when it is offered to the engine; zero is what is not known. */
typedef struct kvt_offer {
    uint64_t handle;         /* names it in the engine; not 0 */
    uint64_t parent;         /* the entry with the tokens before it; 0 = none */
    kvt_layout layout;       /* tells its tokens, its bytes and its record's header */
    uint32_t first_position; /* of its first token */
    uint32_t request_tokens; /* of the requests that use it; 0 = up to this entry's end */
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
 *   made_from     which lossy forms come from which without coding anything twice: planes dropped,
 *                 planes at 8 bits to any coarser lossy form, an entropy form to three times its
 *                 steps. A move writes the new record whole, so kept_from is empty
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

/* Header and table of an entry's record; NAN for a layout that has no record. */
double offer_head_bytes(const kvt_layout *layout);

#endif
