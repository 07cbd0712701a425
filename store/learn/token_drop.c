/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_drop.c - entries that may lose tokens: scores, what a get has to bring, and records whose
 * matrices have fewer rows than the entry. Which entry takes such a form is ladder.c's and the
 * policy's to say.
 */
#include "store/learn/token_drop.h"
#include "store/learn/ladder.h"

#include "base/struct_size.h"
#include "codecs/drop.h"
#include "codecs/keys_rerotate.h"
#include "codecs/view_rows.h"
#include "store/gpu/gpu_far.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- scores ---- */

kvt_status token_drop_check_scores(const kvt_entry *entry)
{
    const uint32_t count = entry->token_score_count;
    const kvt_layout *layout = &entry->layout;
    bool keeps = false;
    if (count == 0 && entry->token_scores == NULL) return KVT_OK;
    if (entry->token_scores == NULL || count != layout->tokens) return KVT_E_ARGUMENT;
    if (!layout->tokens_may_drop || layout->dtype == KVT_DTYPE_OPAQUE) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite(entry->token_scores[i])) return KVT_E_ARGUMENT;
        keeps |= entry->token_scores[i] != 0;
    }
    return keeps ? KVT_OK : KVT_E_ARGUMENT;
}

kvt_status token_drop_copy_scores(const kvt_store *store, const kvt_entry *entry, float **copy_out)
{
    *copy_out = NULL;
    if (entry->token_scores == NULL || !ladder_wants_scores(store, &entry->layout)) return KVT_OK;
    const size_t bytes = entry->token_score_count * sizeof *entry->token_scores;
    *copy_out = malloc(bytes);
    if (*copy_out == NULL) return KVT_E_MEMORY;
    memcpy(*copy_out, entry->token_scores, bytes);
    return KVT_OK;
}

kvt_status token_drop_give_scores(store_entry *entry, float **copy)
{
    if (*copy == NULL) return KVT_OK;
    entry_rare *rare = entry_rare_make(entry);
    if (rare == NULL) return KVT_E_MEMORY;
    assert(rare->scores == NULL);
    rare->scores = *copy;
    *copy = NULL;
    return KVT_OK;
}

void token_drop_take_scores(store_entry *entry, float **copy)
{
    if (*copy != NULL || entry->rare == NULL) return;
    *copy = entry->rare->scores;
    entry->rare->scores = NULL;
}

/* ---- what a get brings ---- */

#define ROPE_LEAST STRUCT_SIZE_THROUGH(kvt_rope, frequencies)

/* Whether a rope's numbers are sound, whatever the layout. */
static bool token_drop_rope_is_sound(const kvt_rope *rope)
{
    enum { CHANNELS_MAX = 1024 };
    kvt_rope whole;
    if (struct_size_in(rope, &whole, sizeof whole, ROPE_LEAST) == NULL) return false;
    if (rope->reserved != 0) return false;
    if (rope->rotary_dim % 2 != 0 || rope->pairing > KVT_ROPE_NEIGHBOURS) return false;
    if (rope->frequencies == NULL)
        return rope->rotary_dim <= CHANNELS_MAX && rope->base > 1.0 && rope->base <= 1e300;
    for (uint32_t i = 0; i < rope->rotary_dim / 2u; i++)
        if (!(rope->frequencies[i] >= 0.0 && rope->frequencies[i] <= 6.28)) return false;
    return true;
}

kvt_status token_drop_ask(const kvt_get_info *info, access_target *target)
{
    kvt_kept_tokens *kept = info != NULL ? info->kept : NULL;
    if (kept == NULL) return KVT_OK;
    if (!struct_size_is_sound(kept, STRUCT_SIZE_THROUGH(kvt_kept_tokens, reserved)))
        return KVT_E_ARGUMENT;
    if (kept->capacity != 0 && kept->positions == NULL) return KVT_E_ARGUMENT;
    if (kept->rope != NULL && !token_drop_rope_is_sound(kept->rope)) return KVT_E_ARGUMENT;
    kept->count = kept->sets = 0;
    target->takes_dropped = kept->capacity != 0;
    target->kept = kept;
    return KVT_OK;
}

/* Sets of kept tokens of a form: one a layer where its keys choose. */
static uint32_t token_drop_sets(const kvt_layout *layout, kvt_variant variant)
{
    const uint32_t method = codecs_drop_method(variant);
    return method == KVT_DROP_STREAM || method == KVT_DROP_SCORES ? 1 : layout->layers;
}

kvt_status token_drop_fits(const access_target *target, const kvt_layout *layout)
{
    const kvt_rope *rope = target->kept != NULL ? target->kept->rope : NULL;
    if (rope != NULL && (kvt_layout_sides(layout) != 2 || rope->rotary_dim > layout->head_dim))
        return KVT_E_UNSUPPORTED;
    return KVT_OK;
}

kvt_status token_drop_admits(const access_target *target, const kvt_layout *layout,
                             kvt_variant variant)
{
    if (!kvt_variant_drops_tokens(variant)) return KVT_OK;
    if (!target->takes_dropped) return KVT_REFUSED;
    if (target->kept == NULL) return KVT_OK;
    const uint64_t needed = (uint64_t)token_drop_sets(layout, variant) * layout->tokens;
    return target->kept->capacity < needed ? KVT_E_ARGUMENT : KVT_OK;
}

/* ---- records of a get ---- */

kvt_status token_drop_list(access_get *get)
{
    const kvt_kept_tokens *kept = get->target.kept;
    kvt_status status = codecs_kept_tokens(&get->layout, get->first_position, get->variant,
                                           &get->tokens, &get->position_sets);
    assert(kvt_variant_drops_tokens(get->variant));
    assert(status == KVT_OK && "it was stored");
    if (status != KVT_OK || kept == NULL) return status;
    /* Of a record that lies in the GPU's memory the first bytes come here. */
    const void *record = get->record;
    kvt_record_range here = {.bytes = get->record_bytes};
    gpu_host *host = NULL;
    if (get->far && get->staging.memory == NULL) {
        here.bytes = kvt_record_kept_bytes(&get->layout, get->variant, get->position_sets);
        status = store_gpu_far_fetch(get->target.gpu, (uintptr_t)get->record, get->record_bytes,
                                     &here, 1, &host);
        if (status != KVT_OK) return status;
        record = host->memory;
    }
    for (uint32_t set = 0; status == KVT_OK && set < get->position_sets; set++)
        status = kvt_record_kept_first(record, here.bytes, set,
                                       kept->positions + (uint64_t)set * get->tokens, get->tokens);
    if (host != NULL) gpu_host_give(get->target.gpu, host);
    return status;
}

/* Turns the kept keys of one layer. room is for a matrix that the view has apart. */
static kvt_status token_drop_turn(const access_get *get, const access_target *target,
                                  const kvt_view *view, uint32_t layer, void *room)
{
    const kvt_layout *layout = &get->layout;
    const view_rows rows = view_rows_of(view, layout, get->tokens, layer, KVT_SIDE_K);
    const uint32_t set = get->position_sets == 1 ? 0 : layer;
    void *keys = rows.packed ? rows.start : room;
    if (!rows.packed) view_rows_gather(&rows, 0, rows.bytes, room);
    kvt_status status = kvt_keys_rerotate(
        layout, target->kept->rope, target->kept->positions + (uint64_t)set * get->tokens,
        get->tokens, get->first_position, get->first_position, keys, rows.bytes);
    if (status == KVT_OK && !rows.packed) view_rows_scatter(&rows, 0, rows.bytes, room);
    return status;
}

kvt_status token_drop_decode(const kvt_store *store, access_get *get, const access_target *target,
                             void *scratch, uint64_t scratch_bytes)
{
    const kvt_view packed = codecs_packed_view(&get->layout, target->data);
    const kvt_view *view = target->view != NULL ? target->view : &packed;
    kvt_status status = token_drop_list(get);
    if (status == KVT_OK)
        status = kvt_record_decode_view(get->record, get->record_bytes, &get->expected,
                                        store->workers, &get->layout, view, target->first_layer,
                                        target->layer_count, scratch, scratch_bytes);
    if (status == KVT_OK && token_drop_turns(target)) {
        /* Turn the kept keys of the layers that were asked for. */
        const kvt_layout *layout = &get->layout;
        const uint32_t count =
            target->layer_count != 0 ? target->layer_count : layout->layers - target->first_layer;
        void *room = malloc(kvt_layout_matrix_bytes(layout));
        status = room != NULL ? KVT_OK : KVT_E_MEMORY;
        for (uint32_t i = 0; status == KVT_OK && i < count; i++)
            status = token_drop_turn(get, target, view, target->first_layer + i, room);
        free(room);
    }
    return status;
}

/* ---- records of moves ---- */

kvt_status token_drop_encode(store_op *op, const void *packed, void *target, uint64_t target_bytes,
                             void *scratch, uint64_t scratch_bytes)
{
    assert(kvt_variant_drops_tokens(op->spec.variant));
    const entry_rare *rare = op->entry->rare;
    kvt_codec_extras extras = {.struct_size = sizeof extras};
    if (codecs_drop_method(op->spec.variant) == KVT_DROP_SCORES) {
        assert(rare != NULL && rare->scores != NULL &&
               "ladder_variants offers it with scores alone");
        extras.scores = rare->scores;
        extras.score_layers = 1;
    }
    return kvt_record_encode_parallel(&op->spec, &extras, op->store->workers, packed,
                                      op->entry->kind->source_bytes, target, target_bytes, scratch,
                                      scratch_bytes, &op->record_bytes);
}

kvt_status token_drop_restore(store_op *op, void *packed, void *scratch, uint64_t scratch_bytes)
{
    const kvt_layout *layout = &op->entry->kind->layout;
    const kvt_view view = codecs_packed_view(layout, packed);
    uint32_t count, sets;
    /* Zeros in the place of tokens that the new record holds would pass for the entry's. */
    if (codecs_made_from(op->source->variant, op->spec.variant) != CODECS_WAY_RECODE)
        return KVT_E_UNSUPPORTED;
    kvt_status status =
        codecs_kept_tokens(layout, op->entry->first_position, op->source->variant, &count, &sets);
    if (status != KVT_OK || sets != 1) return KVT_E_UNSUPPORTED;
    uint32_t *kept = malloc(count * sizeof *kept);
    if (kept == NULL) return KVT_E_MEMORY;
    status = kvt_record_kept_tokens(op->record, op->record_bytes, 0, kept, count);
    if (status == KVT_OK)
        status =
            kvt_record_decode_view(op->record, op->record_bytes, &op->expected, op->store->workers,
                                   layout, &view, 0, layout->layers, scratch, scratch_bytes);
    if (status == KVT_OK) {
        /* Spread the kept rows at the front of each matrix to their tokens. */
        const uint64_t row = kvt_layout_matrix_bytes(layout) / layout->tokens;
        for (uint32_t layer = 0; status == KVT_OK && layer < layout->layers; layer++) {
            for (uint32_t side = 0; status == KVT_OK && side < kvt_layout_sides(layout); side++) {
                char *matrix =
                    (char *)packed + kvt_layout_matrix_offset(layout, layer, (kvt_side)side);
                status = drop_scatter(matrix, row, kept, count, layout->tokens, matrix);
            }
        }
    }
    free(kept);
    return status;
}
