/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_size.c - how large records come out, by variant and by kind of entry: its class and its
 * layout but for the number of tokens (docs/STORE.md, Learning).
 *
 * A plan reserves a size before the bytes are encoded. A size that is too small costs an encoding
 * in vain, so the estimate is an upper one: the running mean of the share of the source bytes,
 * without the chain's sinks, which are stored raw, plus four times the mean distance from it. Of
 * two sizes that come in turn the larger one is planned as soon as every eighth record has it.
 *
 * Where every variant is planned as large as the raw one, only raw records are made, and they say
 * nothing about the others. An estimate is therefore forgotten after as many records of its kind in
 * other variants: the measured ratio stands again, and the next record begins anew.
 *
 * Counts alone decide, no clock. Thread rule: learn.lock, a leaf.
 */
#include "store/core/store.h"

#include "estimator/predict/predict.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define SIZE_GAIN   (1.0 / 8) /* of a new record in mean and spread */
#define SIZE_SPREAD 4.0       /* mean distances above the mean that are planned */
#define SIZE_FORGET 64u       /* records in other variants after which an estimate is forgotten */
#define SIZE_LEAST  (1.0 / 4096)

/* Whether an entry is of a kind: class and layout are equal, the number of tokens aside. */
static bool size_is_kind(const learn_size_kind *kind, const store_entry *entry)
{
    const kvt_layout *a = &kind->layout, *b = &entry->kind->layout;
    return kind->used != 0 && kind->class_id == entry->class_id && a->layers == b->layers &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->dtype == b->dtype &&
           a->order == b->order && a->sides == b->sides;
}

/* The kind of an entry, or NULL when no record of the kind is remembered. learn.lock held. */
static const learn_size_kind *size_find(const store_learn *learn, const store_entry *entry)
{
    for (uint32_t i = 0; i < LEARN_SIZE_KINDS; i++)
        if (size_is_kind(&learn->sizes[i], entry)) return &learn->sizes[i];
    return NULL;
}

/* The kind of an entry. A new kind takes the place of the kind whose last record is the oldest.
 * learn.lock held. */
static learn_size_kind *size_acquire(store_learn *learn, const store_entry *entry)
{
    learn_size_kind *oldest = &learn->sizes[0];
    for (uint32_t i = 0; i < LEARN_SIZE_KINDS; i++) {
        learn_size_kind *kind = &learn->sizes[i];
        if (size_is_kind(kind, entry)) return kind;
        if (kind->used < oldest->used) oldest = kind;
    }
    memset(oldest, 0, sizeof *oldest);
    oldest->layout = entry->kind->layout;
    oldest->class_id = entry->class_id;
    return oldest;
}

/* Moves mean and spread towards a record's share; a forgotten estimate begins anew with it. */
static void size_observe(learn_size *size, double share)
{
    assert(share > 0 && share <= 1);
    double off = share - size->mean;
    bool begins = !size->known || size->others >= SIZE_FORGET;
    size->mean = begins ? share : size->mean + SIZE_GAIN * off;
    size->spread = begins ? 0 : size->spread + SIZE_GAIN * (fabs(off) - size->spread);
    size->known = true;
    size->others = 0;
}

void learn_note_size(kvt_store *store, const store_entry *entry, kvt_variant variant,
                     uint64_t record_bytes)
{
    assert(record_bytes > 0 && entry->kind->source_bytes > 0);
    store_learn *learn = store->learn;
    /* Of groups, each has a share of its own; the entry's own size is known from its place. */
    if (entry->kind->group_count != 0) return;
    double share =
        offer_coded_share(&entry->kind->layout, variant, entry->first_position, record_bytes);
    if (isnan(share)) return;
    pthread_mutex_lock(&learn->lock);
    learn_size_kind *kind = size_acquire(learn, entry);
    kind->used = ++learn->sizes_noted;
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        learn_size *size = &kind->variants[i];
        if (memcmp(&store->costs.variants[i].variant, &variant, sizeof variant) == 0)
            size_observe(size, fmin(fmax(share, SIZE_LEAST), 1.0));
        else if (size->others < SIZE_FORGET)
            size->others++;
    }
    pthread_mutex_unlock(&learn->lock);
}

void learn_size_shares(const kvt_store *store, const store_entry *entry,
                       double shares[KVT_VARIANTS_MAX])
{
    store_learn *learn = store->learn;
    for (uint32_t i = 0; i < KVT_VARIANTS_MAX; i++)
        shares[i] = (double)NAN;
    if (entry->kind->group_count != 0) return;
    pthread_mutex_lock(&learn->lock);
    const learn_size_kind *kind = size_find(learn, entry);
    for (uint32_t i = 0; kind != NULL && i < store->costs.variant_count; i++) {
        const learn_size *size = &kind->variants[i];
        if (!size->known || size->others >= SIZE_FORGET) continue;
        shares[i] = fmin(size->mean + SIZE_SPREAD * size->spread, 1.0);
    }
    pthread_mutex_unlock(&learn->lock);
}

uint32_t learn_known_sizes(const store_entry *entry, kvt_known_size known[LEARN_KNOWN_SIZES])
{
    uint32_t count = 0;
    const entry_rare *rare = entry->rare;
    if (rare != NULL && rare->larger_bytes != 0)
        known[count++] = (kvt_known_size){rare->larger_variant, rare->larger_bytes};
    if (entry->place != NULL && entry->place->record_bytes != 0)
        known[count++] = (kvt_known_size){entry->place->variant, entry->place->record_bytes};
    return count;
}
