/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_loss.c - what answers lost, as factors of classes and entries (docs/POLICY.md, Losses), and
 * how soon entries of a class come back.
 *
 * Both travel with the entry's options: loss is what is expected of the entry in that form,
 * loss_upper its bound, so that limits are held against the bound itself, whatever the expectation.
 * Before a class has any observation the profile's own figures stand.
 *
 * Thread rule: any thread; factors under the control lock, reuse under its own.
 */
#include "store/fork_guard.h"

#include <math.h>
#include <string.h>

#define LEARN_FACTOR_TOLD 0.05 /* a class's factor that moved by more is told to its entries */

static uint32_t learn_class_of(uint32_t class_id)
{
    return class_id < KVT_REUSE_CLASSES ? class_id : 0;
}

online_loss_factor learn_loss_factor(const kvt_store *store, const store_entry *entry)
{
    const store_learn *learn = store->learn;
    const online_loss_class *of_class = &learn->losses[learn_class_of(entry->class_id)];
    if (of_class->observations == 0) return (online_loss_factor){1, 1};
    return online_loss_expect(&learn->loss_prior, of_class, &entry->loss);
}

/* The mean loss that a form is decided on, or 0. */
static double learn_form_loss(const kvt_store *store, const store_entry *entry, kvt_variant variant)
{
    if (!ladder_takes(store, &entry->layout)) return 0;
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        if (memcmp(&store->costs.variants[i].variant, &variant, sizeof variant) == 0)
            return store->costs.variants[i].loss;
    }
    return 0;
}

/* All entries of a class follow a factor that moved: in the background, with a new epoch. */
static void learn_tell_class(kvt_store *store, uint32_t class_id)
{
    store_learn *learn = store->learn;
    double factor = online_loss_class_factor(&learn->loss_prior, &learn->losses[class_id], NULL);
    if (fabs(factor / learn->told[class_id] - 1) < LEARN_FACTOR_TOLD) return;
    learn->told[class_id] = factor;
    learn_begin_epoch(store);
}

kvt_status kvt_observe_quality(kvt_store *store, const kvt_key *key, kvt_variant variant,
                               double loss, double weight)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || !(loss >= 0 && loss <= 1)) return KVT_E_ARGUMENT;
    if (!(weight > 0 && weight <= 1000)) return KVT_E_ARGUMENT;
    store_learn *learn = store->learn;
    kvt_status status = KVT_MISS;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, key);
    if (entry != NULL && entry_is_visible(entry)) {
        double mean = learn_form_loss(store, entry, variant);
        status = mean > 0 ? KVT_OK : KVT_E_UNSUPPORTED;
        if (mean > 0) {
            uint32_t class_id = learn_class_of(entry->class_id);
            (void)online_loss_observe(&learn->loss_prior, &learn->losses[class_id], &entry->loss,
                                      loss / mean, weight);
            learn_recost_entry(store, entry);
            learn_tell_class(store, class_id);
        }
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- reuse ---- */

void learn_note_use(kvt_store *store, uint64_t handle, uint32_t class_id)
{
    store_learn *learn = store->learn;
    pthread_mutex_lock(&learn->reuse_lock);
    kvt_reuse_use(learn->reuse, store_now_ns(store), handle, learn_class_of(class_id));
    pthread_mutex_unlock(&learn->reuse_lock);
}

void learn_tell_priors(kvt_store *store)
{
    store_learn *learn = store->learn;
    for (uint32_t i = 1; i < KVT_REUSE_CLASSES; i++) {
        kvt_reuse_class found;
        pthread_mutex_lock(&learn->reuse_lock);
        kvt_status status = kvt_reuse_read(learn->reuse, store_now_ns(store), i, &found);
        pthread_mutex_unlock(&learn->reuse_lock);
        if (status != KVT_OK || found.uses < LEARN_PRIOR_USES) continue;
        pthread_mutex_lock(&store->lock);
        (void)!kvt_policy_set_prior(store->policy, i, fmin(found.prior_uses, LEARN_PRIOR_MOST));
        pthread_mutex_unlock(&store->lock);
    }
}

kvt_status kvt_class_stats_at(kvt_store *store, uint32_t class_id, kvt_class_stats *out)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (out == NULL || class_id >= KVT_REUSE_CLASSES) return KVT_END;
    store_learn *learn = store->learn;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&store->lock);
    const online_loss_class *of_class = &learn->losses[class_id];
    const online_loss_entry none = {0, 0};
    online_loss_factor factor = {1, 1};
    if (of_class->observations != 0)
        factor = online_loss_expect(&learn->loss_prior, of_class, &none);
    out->loss_factor = factor.mean;
    out->loss_factor_upper = factor.upper;
    out->loss_observations = of_class->observations;
    out->loss_reopened = of_class->reopened;
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_lock(&learn->reuse_lock);
    kvt_status status = kvt_reuse_read(learn->reuse, store_now_ns(store), class_id, &out->reuse);
    pthread_mutex_unlock(&learn->reuse_lock);
    return status;
}
