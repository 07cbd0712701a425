/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot_sizes.c - how large slots are: a form's record is made once of a sample, so that its size is
 * the encoder's and no second arithmetic of it exists.
 *
 * Thread rule: any thread.
 */
#include "slot_sizes.h"

#include "base/config_values.h"
#include "codecs/codecs.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_ITEM_BYTES = 96, SLOT_RECORD_LEAST = 12288 };

/* Whether all entries of one layout have records of one size in this form. */
static bool slot_form_is_fixed(kvt_variant form)
{
    return !kvt_variant_drops_tokens(form) &&
           (form.codec == KVT_CODEC_RAW || form.codec == KVT_CODEC_KIVI ||
            form.codec == KVT_CODEC_PLANES);
}

static uint64_t slot_round(uint64_t bytes)
{
    return (bytes + KVT_RECORD_ALIGN - 1) / KVT_RECORD_ALIGN * KVT_RECORD_ALIGN;
}

/* Makes the record of a sample. KVT_OK; what encoding gives; KVT_E_MEMORY. */
static kvt_status slot_measure(const kvt_layout *layout, kvt_variant form, tiers_slot_size *size)
{
    const kvt_record_spec spec = {
        .layout = *layout, .variant = form, .generation = 1, .first_position = layout->tokens};
    uint64_t bound = 0, scratch_bytes = 0, record_bytes = 0, source_bytes = 0;
    kvt_status status = kvt_layout_bytes(layout, &source_bytes);
    if (status == KVT_OK) status = kvt_record_bound(&spec, &bound, &scratch_bytes);
    if (status != KVT_OK) return status;
    const uint64_t source_at = slot_round(bound);
    const uint64_t scratch_at = source_at + slot_round(source_bytes);
    char *memory = aligned_alloc(KVT_RECORD_ALIGN, scratch_at + slot_round(scratch_bytes));
    if (memory == NULL) return KVT_E_MEMORY;
    codecs_kv_sample_fill(layout, 1, memory + source_at);
    status = kvt_record_encode(&spec, memory + source_at, source_bytes, memory, bound,
                               memory + scratch_at, scratch_bytes, &record_bytes);
    if (status == KVT_OK || status == KVT_RAW) {
        const uint64_t tensor = codecs_tensor_bytes(memory, record_bytes);
        const bool units = tensor != 0 && tensor <= UINT32_MAX;
        *size = (tiers_slot_size){
            .bytes = record_bytes, .unit_bytes = units ? (uint32_t)tensor : 0, .odd_first = units};
        status = KVT_OK;
    }
    free(memory);
    return status;
}

/* FORM@TOKENS; NULL, or the fault. */
static const char *slot_read_form(char *item, char *at, const kvt_layout *layout,
                                  tiers_slot_size *size, kvt_status *status)
{
    kvt_layout entry = *layout;
    kvt_variant form;
    char *end;
    *at = '\0';
    const unsigned long tokens = at[1] >= '0' && at[1] <= '9' ? strtoul(at + 1, &end, 10) : 0;
    if (tokens == 0 || tokens > UINT32_MAX || *end != '\0') return "the tokens are not a number";
    if (kvt_variant_parse(item, &form) != KVT_OK) return "no such form";
    if (!slot_form_is_fixed(form))
        return "records of this form vary in size: name the bytes of one instead";
    if (layout->layers == 0) return "a form needs store.ladder_layout";
    entry.tokens = (uint32_t)tokens;
    entry.tokens_may_drop = 0;
    *status = slot_measure(&entry, form, size);
    return *status == KVT_OK || *status == KVT_E_MEMORY ? NULL : "no entry has such a record";
}

/* A size; NULL, or the fault. */
static const char *slot_read_bytes(const char *item, tiers_slot_size *size)
{
    *size = (tiers_slot_size){.bytes = 0};
    if (kvt_parse_bytes(item, &size->bytes) != KVT_OK) return "neither FORM@TOKENS nor a size";
    if (size->bytes % KVT_RECORD_ALIGN != 0) return "no entry has such a record: not whole 4 KiB";
    return size->bytes < SLOT_RECORD_LEAST ? "no entry has such a record: less than 12 KiB" : NULL;
}

/* Adds a size in its place. False when there are too many. */
static bool slot_add(tiers_slot_size *sizes, uint32_t *count, tiers_slot_size size)
{
    uint32_t at = 0;
    while (at < *count && sizes[at].bytes < size.bytes)
        at++;
    if (at < *count && sizes[at].bytes == size.bytes) return true;
    if (*count == TIERS_SLOT_CLASSES_MAX) return false;
    memmove(sizes + at + 1, sizes + at, (*count - at) * sizeof *sizes);
    sizes[at] = size;
    ++*count;
    return true;
}

/* The end of the first item: the comma behind its tokens, as a form has commas, too. */
static size_t slot_item_length(const char *text)
{
    const bool is_size = *text >= '0' && *text <= '9';
    const size_t at = is_size ? 0 : strcspn(text, "@");
    return at + strcspn(text + at, ",");
}

kvt_status learn_slot_sizes(const char *text, const kvt_layout *layout,
                            tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX], uint32_t *count_out,
                            char *message, size_t message_size)
{
    *count_out = 0;
    const char *rest = text;
    while (rest != NULL) {
        char item[SLOT_ITEM_BYTES] = "";
        tiers_slot_size size;
        kvt_status status = KVT_OK;
        rest += strspn(rest, " ");
        const size_t length = slot_item_length(rest);
        const char *fault =
            length == 0 || length >= sizeof item ? "an item is empty or too long" : NULL;
        if (fault == NULL) {
            memcpy(item, rest, length);
            for (size_t end = length; end > 0 && item[end - 1] == ' '; end--)
                item[end - 1] = '\0';
            char *at = strchr(item, '@');
            fault = at != NULL ? slot_read_form(item, at, layout, &size, &status)
                               : slot_read_bytes(item, &size);
        }
        if (status == KVT_E_MEMORY) return status;
        if (fault == NULL && !slot_add(sizes, count_out, size)) fault = "more than 32 sizes";
        if (fault != NULL) {
            snprintf(message, message_size, "slots: '%.*s': %s", (int)(length < 80 ? length : 80),
                     rest, fault);
            return KVT_E_CONFIG;
        }
        rest = rest[length] == ',' ? rest + length + 1 : NULL;
    }
    return KVT_OK;
}
