/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_loss.c - the factors between calibrated losses and observed ones, by class and by entry
 * (docs/POLICY.md, Losses), and the uses of a class. observe.c has the calls that report both.
 *
 * Both travel with the entry's options: loss is the expected loss of the entry in that variant,
 * loss_upper its bound, so that limits are held against the bound itself, whatever the expectation.
 * Before a class has any observation the profile's own figures stand.
 *
 * Thread rule: any thread; factors under the control lock, reuse under its own.
 */
#include "store/learn/ladder.h"
#include "store/read/groups.h"

#include <assert.h>
#include <math.h>
#include <string.h>

uint32_t learn_class_of(uint32_t class_id)
{
    return class_id < KVT_REUSE_CLASSES ? class_id : 0;
}

/* Of an entry of the class with such observations of its own; the curves' figures before any. */
static online_loss_factor learn_factor_of(const kvt_store *store, uint32_t class_id,
                                          const online_loss_entry *own)
{
    assert(store_is_locked(store));
    const store_learn *learn = store->learn;
    const online_loss_class *of_class = &learn->losses[class_id];
    if (of_class->observations == 0) return (online_loss_factor){1, 1};
    return online_loss_expect(&learn->loss_prior, of_class, own);
}

online_loss_factor learn_class_factor(const kvt_store *store, uint32_t class_id)
{
    return learn_factor_of(store, class_id, &(online_loss_entry){0, 0});
}

online_loss_factor learn_loss_factor(const kvt_store *store, const store_entry *entry)
{
    const uint32_t class_id = learn_class_of(entry->class_id);
    if (entry->rare == NULL) return learn_class_factor(store, class_id);
    return learn_factor_of(store, class_id, &entry->rare->loss);
}

/* The curve of a variant that the entry may be stored in, or NULL. */
static const kvt_codec_curve *learn_curve_of(const kvt_store *store, const store_entry *entry,
                                             kvt_variant variant)
{
    const entry_kind *kind = entry->kind;
    const bool lossy = kind->group_count != 0
                           ? groups_lossy(store, kind->groups, kind->group_count) != 0
                           : ladder_allows(store, &kind->layout);
    if (!lossy) return NULL;
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        if (memcmp(&store->costs.variants[i].variant, &variant, sizeof variant) == 0)
            return &store->costs.variants[i];
    }
    return NULL;
}

double learn_variant_loss(const kvt_store *store, const store_entry *entry, kvt_variant variant)
{
    const kvt_codec_curve *curve = learn_curve_of(store, entry, variant);
    return curve != NULL ? curve->loss : 0;
}

double learn_variant_loss_upper(const kvt_store *store, const store_entry *entry,
                                kvt_variant variant)
{
    const kvt_codec_curve *curve = learn_curve_of(store, entry, variant);
    const online_loss_factor factor = learn_loss_factor(store, entry);
    double loss, upper;
    if (curve == NULL) return 0;
    kvt_offer_losses(curve, factor.mean, factor.upper, &loss, &upper);
    return upper;
}

void learn_known_loss(const kvt_store *store, const store_entry *entry, kvt_variant variant,
                      double *loss_out, double *upper_out)
{
    const kvt_codec_curve *curve = learn_curve_of(store, entry, variant);
    const online_loss_factor factor = learn_loss_factor(store, entry);
    const bool ours = ladder_allows(store, &entry->kind->layout);
    for (uint32_t i = 0; curve == NULL && ours && i < store->planes_count; i++)
        if (memcmp(&store->planes[i].variant, &variant, sizeof variant) == 0)
            curve = &store->planes[i];
    *loss_out = *upper_out = kvt_codec_is_exact(variant) ? 0 : NAN;
    if (curve != NULL) kvt_offer_losses(curve, factor.mean, factor.upper, loss_out, upper_out);
}

bool learn_variant_waits(const kvt_store *store, const store_entry *entry, kvt_variant variant)
{
    const kvt_codec_curve *curve = learn_curve_of(store, entry, variant);
    return curve != NULL && curve->loss_upper > store->loss_limit &&
           learn_variant_loss_upper(store, entry, variant) > store->loss_limit;
}

/* ---- reuse ---- */

void learn_note_uses(kvt_store *store, const learn_use *uses, uint32_t count)
{
    store_learn *learn = store->learn;
    if (count == 0) return;
    pthread_mutex_lock(&learn->reuse_lock);
    const uint64_t now_ns = store_now_ns(store);
    for (uint32_t i = 0; i < count; i++)
        kvt_reuse_use(learn->reuse, now_ns, uses[i].handle, learn_class_of(uses[i].class_id));
    pthread_mutex_unlock(&learn->reuse_lock);
}

void learn_note_use(kvt_store *store, uint64_t handle, uint32_t class_id)
{
    learn_note_uses(store, &(learn_use){handle, class_id}, 1);
}

void learn_update_priors(kvt_store *store)
{
    store_learn *learn = store->learn;
    for (uint32_t i = 1; i < KVT_REUSE_CLASSES; i++) {
        kvt_reuse_class found;
        pthread_mutex_lock(&learn->reuse_lock);
        kvt_status status = kvt_reuse_read(learn->reuse, store_now_ns(store), i, &found);
        pthread_mutex_unlock(&learn->reuse_lock);
        if (status != KVT_OK || found.uses < LEARN_PRIOR_USES) continue;
        pthread_mutex_lock(&store->lock);
        (void)!kvt_policy_prior_set(store->policy, i, fmin(found.prior_uses, LEARN_PRIOR_MOST));
        pthread_mutex_unlock(&store->lock);
    }
}
