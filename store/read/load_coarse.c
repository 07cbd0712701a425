/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_coarse.c - the two forms of an entry in a progressive load (docs/CALLS.md, Progressive
 * loads): which entries have a coarse form, what each form loses, and the coarse bytes that are
 * kept until the rest of them comes, so that no byte is read twice. The file reads no device and
 * decodes nothing.
 *
 *     nothing -> coarse -> refined
 *                     \-> coarse to the end: what failed then has spoilt nothing
 *
 * Thread rule: store_coarse_hold under the store's lock; store_coarse_open by whoever opens the
 * entry's heads; the bytes of a layer by the task of its cell.
 */
#include "codecs/codecs.h"
#include "store/learn/learn.h"
#include "store/read/load_internal.h"

#include "base/struct_size.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COARSE_QUALITY_LEAST STRUCT_SIZE_THROUGH(kvt_load_quality, coarse_loss_upper)

bool store_coarse_make(kvt_load *load)
{
    if (load->options.coarse_planes == 0) return true;
    load->coarse = calloc(load->count, sizeof *load->coarse);
    for (size_t i = 0; load->coarse != NULL && i < load->count; i++) {
        kvt_load_quality *said = &load->coarse[i].said;
        said->loss = said->loss_upper = NAN;
        load->entries[i].coarse = &load->coarse[i];
    }
    return load->coarse != NULL;
}

void store_coarse_free(kvt_load *load)
{
    for (size_t i = 0; load->coarse != NULL && i < load->count; i++) {
        atomic_fetch_sub(&load->store->coarse_bytes, load->coarse[i].kept_bytes);
        free(load->coarse[i].head);
        free(load->coarse[i].kept);
        free(load->coarse[i].kept_at);
    }
    free(load->coarse);
}

void store_coarse_hold(const kvt_load *load, load_entry *entry, const store_entry *found)
{
    load_coarse *coarse = entry->coarse;
    if (coarse == NULL) return;
    kvt_load_quality *said = &coarse->said;
    const double most = load->options.loss_max;
    said->variant = found->place->variant;
    said->coarse_variant = codecs_fewer_planes(said->variant, load->options.coarse_planes);
    learn_known_loss(load->store, found, said->variant, &said->loss, &said->loss_upper);
    learn_known_loss(load->store, found, said->coarse_variant, &said->coarse_loss,
                     &said->coarse_loss_upper);
    coarse->wanted = said->variant.codec == KVT_CODEC_PLANES && !entry->grouped &&
                     !kvt_variant_drops_tokens(said->variant) &&
                     (most == 0 || said->coarse_loss_upper <= most) &&
                     (!entry->lent || load->gpu != NULL) && entry->far == 0;
}

/* Takes the memory for the coarse bytes of an entry that is read. All loads together keep as many
 * as the staging holds. False: there is no room. */
static bool coarse_take_room(const load_entry *entry, const kvt_record_head *head,
                             load_coarse *coarse)
{
    kvt_store *store = entry->load->store;
    const uint32_t layers = entry->sections->layout.layers;
    uint64_t bytes = 0;
    coarse->kept_at = malloc(layers * sizeof *coarse->kept_at);
    for (uint32_t i = 0; coarse->kept_at != NULL && i < layers; i++) {
        load_ranges own;
        if (kvt_record_head_ranges(head, i, 1, own.ranges, KVT_RECORD_RANGES_MAX, &own.count) !=
            KVT_OK)
            return false;
        coarse->kept_at[i] = bytes;
        bytes += own.ranges[own.count - 1].at + own.ranges[own.count - 1].bytes;
    }
    if (coarse->kept_at == NULL) return false;
    if (atomic_fetch_add(&store->coarse_bytes, bytes) + bytes <= store->staging->limit_bytes)
        coarse->kept = malloc(bytes);
    if (coarse->kept == NULL) atomic_fetch_sub(&store->coarse_bytes, bytes);
    if (coarse->kept != NULL) coarse->kept_bytes = bytes;
    return coarse->kept != NULL;
}

void store_coarse_open(load_entry *entry)
{
    load_coarse *coarse = entry->coarse;
    const load_section *section = entry->sections;
    const uint64_t room = section->kept_bytes;
    uint64_t bytes;
    if (coarse == NULL || !coarse->wanted) return;
    kvt_record_head *head = malloc(room);
    bool made =
        head != NULL && kvt_record_head_coarse(section->head, entry->load->options.coarse_planes,
                                               head, room, &bytes) == KVT_OK;
    if (made && !entry->lent) made = coarse_take_room(entry, head, coarse);
    if (made)
        coarse->head = head;
    else
        free(head); /* the entry has one form */
}

/* ---- ranges and bytes ---- */

kvt_status store_coarse_ranges(const load_entry *entry, uint32_t layer, load_form form,
                               load_ranges *own, uint32_t *read_out)
{
    const load_coarse *coarse = entry->coarse;
    load_ranges kept;
    uint64_t at = 0;
    assert(load_has_coarse(entry));
    kvt_status status = kvt_record_head_ranges(coarse->head, layer, 1, kept.ranges,
                                               KVT_RECORD_RANGES_MAX, &kept.count);
    own->count = 0;
    if (status == KVT_OK && form == LOAD_REST)
        status = kvt_record_head_rest_ranges(entry->sections->head, coarse->head, layer,
                                             own->ranges, KVT_RECORD_RANGES_MAX, &own->count);
    if (status != KVT_OK) return status;
    *read_out = form == LOAD_REST ? own->count : kept.count;
    if (own->count + kept.count > KVT_RECORD_RANGES_MAX) return KVT_E_SPACE;
    if (own->count != 0) at = own->ranges[own->count - 1].at + own->ranges[own->count - 1].bytes;
    for (uint32_t i = 0; i < kept.count; i++) {
        own->ranges[own->count] = kept.ranges[i];
        own->ranges[own->count++].at += at;
    }
    return KVT_OK;
}

bool store_coarse_lacks(const kvt_load *load, const load_entry *entry, uint32_t step)
{
    const load_form form = load_form_of(load, entry, step);
    const uint32_t layer = load_layer_of(load, step);
    load_ranges own;
    uint32_t count;
    if (form == LOAD_NOTHING || load_together(entry, layer) == 0) return true;
    return form == LOAD_REST && store_coarse_ranges(entry, layer, form, &own, &count) == KVT_OK &&
           count == 0;
}

void store_coarse_keep(const load_entry *entry, uint32_t layer, const load_ranges *own,
                       const uint8_t *payload)
{
    const kvt_record_range *last = &own->ranges[own->count - 1];
    memcpy(entry->coarse->kept + entry->coarse->kept_at[layer], payload, last->at + last->bytes);
}

void store_coarse_join(const load_entry *entry, uint32_t layer, const load_ranges *own,
                       uint64_t read_bytes, uint8_t *payload)
{
    const kvt_record_range *last = &own->ranges[own->count - 1];
    memcpy(payload + read_bytes, entry->coarse->kept + entry->coarse->kept_at[layer],
           last->at + last->bytes - read_bytes);
}

kvt_status store_coarse_verify(load_entry *entry, uint32_t layer, const load_ranges *own,
                               const uint8_t *payload)
{
    return kvt_record_head_rest_verify(entry->sections->head, entry->coarse->head, layer, payload,
                                       own != NULL ? own->ranges : NULL,
                                       own != NULL ? own->count : 0);
}

/* ---- what the owner is told ---- */

kvt_status kvt_load_quality_of(kvt_load *load, size_t index, kvt_load_quality *quality_out)
{
    if (load == NULL || quality_out == NULL ||
        !struct_size_is_sound(quality_out, COARSE_QUALITY_LEAST))
        return KVT_E_ARGUMENT;
    if (base_load_calls_of(load) != NULL) {
        const base_handle *head = (const base_handle *)(const void *)load;
        return fork_guard_is_current(head->forks) ? KVT_E_UNSUPPORTED : KVT_E_STATE;
    }
    if (!fork_guard_is_current(load->forks) || load->coarse == NULL) return KVT_E_STATE;
    if (index >= load->count) return KVT_E_ARGUMENT;
    const load_entry *entry = &load->entries[index];
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&load->lock);
    kvt_load_quality whole = entry->coarse->said;
    if (load->asks || load->heads != 0)
        status = KVT_BUSY;
    else if (entry->place == NULL && entry->staged == NULL && !entry->lent && !load->orphan)
        status = KVT_MISS;
    whole.coarse = status == KVT_OK && load_has_coarse(entry);
    whole.variant = entry->variant;
    pthread_mutex_unlock(&load->lock);
    if (kvt_codec_is_exact(whole.variant)) whole.loss = whole.loss_upper = 0;
    if (!whole.coarse) {
        whole.coarse_variant = whole.variant;
        whole.coarse_loss = whole.loss;
        whole.coarse_loss_upper = whole.loss_upper;
    }
    whole.struct_size = sizeof whole;
    if (status == KVT_OK) struct_size_out(quality_out, &whole, sizeof whole);
    return status;
}
