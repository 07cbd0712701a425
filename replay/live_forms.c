/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_forms.c - live runs over a store with a ladder: blocks have the ladder's layout, and what a
 * get gives is compared, byte for byte and position for position, with an encoding of the block
 * that the store has no part in. Where the ladder drops tokens, each block is a whole context.
 *
 * Thread rule: live_forms_check and live_forms_say on one thread; the others on each server's own
 * objects.
 */
#include "codecs/codecs.h"
#include "live.h"
#include "random.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

kvt_status live_forms_check(const replay_options *options, const replay_workload *workload,
                            const kvt_store_options *store, char *message, size_t message_size)
{
    if (!store->loss.ladder) return KVT_OK;
    if (options->scale != 1.0) {
        snprintf(message, message_size,
                 "replay.scale: blocks of a ladder's layout have their own "
                 "size: 1 with store.ladder");
        return KVT_E_CONFIG;
    }
    if (store->loss.ladder_layout.tokens_may_drop && workload->longest_prefix > 1) {
        snprintf(
            message, message_size,
            "store.ladder_layout: variants that drop tokens are for whole contexts, and a request "
            "of this workload has %u blocks: set replay.block_tokens to its longest context",
            (unsigned)workload->longest_prefix);
        return KVT_E_CONFIG;
    }
    return KVT_OK;
}

kvt_layout live_forms_layout(const kvt_store_options *store, uint32_t tokens)
{
    kvt_layout layout = store->loss.ladder_layout;
    assert(store->loss.ladder);
    layout.tokens = tokens;
    return layout;
}

/* Scores as a caller's measure would give them: they follow from the block alone. */
static void forms_score(uint64_t seed, uint32_t block, uint32_t tokens, float *scores)
{
    const uint64_t base = replay_mix(replay_mix(seed) ^ ~(uint64_t)block);
    for (uint32_t i = 0; i < tokens; i++)
        scores[i] = (float)(replay_mix(base + i) >> 40) + 1.0f;
}

kvt_status live_forms_open(live_forms *forms, const kvt_layout *layout)
{
    const uint64_t sets = layout->layers;
    *forms = (live_forms){
        .layout = *layout,
        .given = {.struct_size = sizeof forms->given, .capacity = sets * layout->tokens}};
    kvt_status status = kvt_layout_bytes(layout, &forms->bytes);
    if (status != KVT_OK) return status;
    /* Twice an entry is room for the record of any form, and for the scratch of its coding. */
    const uint64_t room = (4 * forms->bytes + (UINT64_C(1) << 22)) / 4096 * 4096;
    forms->room_bytes = room;
    forms->scores = calloc(layout->tokens, sizeof *forms->scores);
    forms->given.positions = calloc(forms->given.capacity, sizeof *forms->given.positions);
    forms->kept = calloc(layout->tokens, sizeof *forms->kept);
    forms->source = malloc(forms->bytes);
    forms->decoded = malloc(forms->bytes);
    forms->record = aligned_alloc(4096, room);
    forms->scratch = aligned_alloc(4096, room);
    const bool whole = forms->scores != NULL && forms->given.positions != NULL &&
                       forms->kept != NULL && forms->source != NULL && forms->decoded != NULL &&
                       forms->record != NULL && forms->scratch != NULL;
    return whole ? KVT_OK : KVT_E_MEMORY;
}

void live_forms_close(live_forms *forms)
{
    free(forms->scores);
    free(forms->given.positions);
    free(forms->kept);
    free(forms->source);
    free(forms->decoded);
    free(forms->record);
    free(forms->scratch);
    *forms = (live_forms){.bytes = 0};
}

const float *live_forms_scores(live_forms *forms, uint64_t seed, uint32_t block)
{
    forms_score(seed, block, forms->layout.tokens, forms->scores);
    return forms->scores;
}

/* Codes the source and decodes it again. *info_out tells how many tokens stay. */
static bool forms_code(live_forms *forms, kvt_variant variant, kvt_record_info *info_out)
{
    const kvt_record_spec spec = {.generation = 1, .layout = forms->layout, .variant = variant};
    const kvt_codec_extras scored = {
        .struct_size = sizeof scored, .scores = forms->scores, .score_layers = 1};
    const bool by_scores = codecs_drop_method(variant) == KVT_DROP_SCORES;
    uint64_t written;
    kvt_status status = kvt_record_encode_with(&spec, by_scores ? &scored : NULL, forms->source,
                                               forms->bytes, forms->record, forms->room_bytes,
                                               forms->scratch, forms->room_bytes, &written);
    if (status != KVT_OK && status != KVT_RAW) return false;
    if (kvt_record_parse(forms->record, written, info_out) != KVT_OK) return false;
    return kvt_record_decode(forms->record, written, NULL, forms->decoded, info_out->decoded_bytes,
                             forms->scratch, forms->room_bytes) == KVT_OK;
}

/* Whether the kept rows at the front of each matrix are those that were decoded here. */
static bool forms_rows_match(const live_forms *forms, const uint8_t *data, uint32_t kept)
{
    const kvt_layout *layout = &forms->layout;
    const uint64_t row = kvt_layout_matrix_bytes(layout) / layout->tokens;
    const uint64_t stride = row * layout->tokens;
    const uint64_t matrices = forms->bytes / stride;
    for (uint64_t m = 0; m < matrices; m++)
        if (memcmp(data + m * stride, forms->decoded + m * kept * row, kept * row) != 0)
            return false;
    return true;
}

/* Whether the positions are those of the record that was made here. */
static bool forms_positions_match(live_forms *forms, const kvt_record_info *own)
{
    const kvt_kept_tokens *given = &forms->given;
    for (uint32_t set = 0; set < given->sets; set++) {
        if (kvt_record_kept_tokens(forms->record, own->record_bytes, set, forms->kept,
                                   forms->layout.tokens) != KVT_OK)
            return false;
        if (memcmp(given->positions + (uint64_t)set * given->count, forms->kept,
                   given->count * sizeof *forms->kept) != 0)
            return false;
    }
    return true;
}

static bool forms_match_source(live_forms *forms, const kvt_get_info *info, const uint8_t *data)
{
    const kvt_kept_tokens *given = &forms->given;
    kvt_record_info own;
    return forms_code(forms, info->variant, &own) && own.stored_tokens == given->count &&
           (given->sets != 0) == kvt_variant_drops_tokens(info->variant) &&
           forms_positions_match(forms, &own) && forms_rows_match(forms, data, given->count);
}

bool live_forms_match(live_forms *forms, uint64_t seed, uint32_t block, const kvt_get_info *info,
                      const uint8_t *data)
{
    kvt_variant planes;
    kvt_record_info own;
    live_fill(seed, block, forms->source, forms->bytes);
    forms_score(seed, block, forms->layout.tokens, forms->scores);
    if (forms_match_source(forms, info, data)) return true;
    /* The store codes anew from planes at 8 bits, too, which count as exact. */
    kvt_status status = kvt_variant_parse("planes:k8v8,g64", &planes);
    if (status != KVT_OK || !forms_code(forms, planes, &own)) return false;
    memcpy(forms->source, forms->decoded, forms->bytes);
    return forms_match_source(forms, info, data);
}

void live_forms_count(replay_result *result, const kvt_get_info *info, uint32_t tokens)
{
    uint32_t i = 0;
    while (i < result->form_count &&
           memcmp(&result->forms[i].variant, &info->variant, sizeof info->variant) != 0)
        i++;
    if (i == REPLAY_FORMS_MAX) return;
    replay_form *form = &result->forms[i];
    if (i == result->form_count) {
        result->form_count++;
        *form = (replay_form){.variant = info->variant};
    }
    form->gets[info->tier]++;
    form->tokens += tokens;
    form->tokens_kept += info->kept->count;
}
