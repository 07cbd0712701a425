/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder.c - the lossy variants that a store may keep: the calibrated variants of one layout,
 * within the limits of loss. Without a ladder, and for entries of any other layout, there are exact
 * variants alone.
 *
 * A store gives back every token that was put, so variants that drop tokens are none of its. A row
 * of the catalog whose variant is not among the present ones, as after the limit was lowered, is
 * dropped at open: a record that was stored under a weaker promise is not served under a stronger
 * one.
 *
 * Thread rule: the opener's thread; ladder_allows any, on what is fixed after open.
 */
#include "store/store.h"

#include "estimator/profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The variants that a ladder may add to raw and lossless. */
#define LADDER_VARIANTS_MAX (KVT_VARIANTS_MAX - 2u)

kvt_status ladder_open(kvt_store *store, const kvt_store_options *options, kvt_profile *profile,
                       char *message, size_t message_size)
{
    kvt_layout layout = options->ladder_layout;
    char reason[256] = "";
    if (!options->ladder) return KVT_OK;
    if (profile == NULL) {
        (void)snprintf(message, message_size, "a calibrated ladder needs a profile");
        return KVT_E_ARGUMENT;
    }
    layout.tokens = 256;
    layout.tokens_may_drop = 0;
    store->ladder_layout = layout;
    kvt_status status = profile_rungs_read(
        profile, &layout, options->ladder_model, options->ladder_class, store->ladder,
        LADDER_VARIANTS_MAX, &store->ladder_count, reason, sizeof reason);
    if (status == KVT_OK) return KVT_OK;
    if (reason[0] == '\0') (void)snprintf(reason, sizeof reason, "%s", kvt_status_text(status));
    (void)snprintf(message, message_size, "profile %s: no ladder: %s", options->profile_path,
                   reason);
    return status == KVT_MISS ? KVT_E_MISMATCH : status;
}

/* Whether a variant keeps both limits. Its bound for entries then counts in the scale of the mean
 * limit, so that one comparison with one bound keeps both, also once observed losses scale it. A
 * variant whose entries were not looked at keeps no limit of theirs. */
static bool ladder_keeps(const kvt_store_options *options, kvt_codec_curve *variant)
{
    const double mean = options->loss_limit, entry = options->entry_loss_limit;
    if (variant->loss_upper > mean) return false;
    if (entry >= 1.0) return true;
    if (variant->loss_entry == 0.0 || variant->loss_entry > entry) return false;
    variant->loss_upper = fmax(variant->loss_upper, variant->loss_entry / entry * mean);
    return true;
}

kvt_status ladder_add_costs(kvt_store *store, const cost_profile *profile,
                            const kvt_store_options *options)
{
    kvt_cost_model *costs = &store->costs;
    store->exact_variants = costs->variant_count;
    for (uint32_t i = 0; i < store->ladder_count; i++) {
        kvt_codec_curve *variant = &store->ladder[i], speeds;
        if (!ladder_keeps(options, variant) || costs->variant_count == KVT_VARIANTS_MAX) continue;
        if (!(variant->encode_bytes_per_s > 0) || !(variant->decode_bytes_per_s > 0)) {
            kvt_status status = costs_measure_variant(profile, variant->variant, &speeds);
            if (status != KVT_OK) return status;
            variant->encode_bytes_per_s = speeds.encode_bytes_per_s;
            variant->decode_bytes_per_s = speeds.decode_bytes_per_s;
        }
        costs->variants[costs->variant_count++] = *variant;
    }
    return KVT_OK;
}

bool ladder_allows(const kvt_store *store, const kvt_layout *layout)
{
    const kvt_layout *ours = &store->ladder_layout;
    return layout->layers == ours->layers && layout->kv_heads == ours->kv_heads &&
           layout->head_dim == ours->head_dim && layout->dtype == ours->dtype &&
           kvt_layout_sides(layout) == kvt_layout_sides(ours);
}
