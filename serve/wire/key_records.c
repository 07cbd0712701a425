/* SPDX-License-Identifier: Apache-2.0 */
/* key_records.c - reads and writes records of keys, and their answers. */
#include "serve/wire/key_records.h"

#include "base/struct_size.h"
#include "serve/wire/record_rest.h"

#include <assert.h>

/* Sizes that public structures of a client may have here: whole words, with a size at least. */
static bool is_client_size(uint32_t bytes)
{
    return bytes >= 8 && bytes % 8 == 0 && bytes <= STRUCT_SIZE_MAX;
}

/* ---- the client's side ---- */

kvt_status wire_list_write(uint32_t kind, const wire_list *list, const kvt_key *keys, void *out,
                           size_t capacity, size_t *bytes_out)
{
    const size_t record = sizeof *list + list->count * sizeof *keys;
    const uint64_t answer = wire_list_answer(kind, list);
    wire_list written = *list;
    if (record > capacity || answer > capacity) return KVT_E_SPACE;
    written.struct_size = sizeof written;
    memcpy(out, &written, sizeof written);
    if (list->count > 0) memcpy((uint8_t *)out + sizeof written, keys, list->count * sizeof *keys);
    *bytes_out = record > answer ? record : answer;
    return KVT_OK;
}

kvt_status wire_match_answer_read(const wire_list *list, const void *answer, size_t bytes,
                                  kvt_worth *worth, double *seconds)
{
    const bool each = (list->flags & WIRE_MATCH_SECONDS) != 0;
    if (bytes != wire_list_answer(WIRE_MATCH, list)) return KVT_E_CORRUPT;
    if (list->worth_bytes != 0) {
        kvt_worth whole = {0};
        const uint32_t known = list->worth_bytes < sizeof whole ? list->worth_bytes : sizeof whole;
        memcpy(&whole, answer, known);
        if (whole.struct_size != list->worth_bytes || whole.stored > list->count ||
            whole.to_load > whole.stored || whole.guessed > whole.stored)
            return KVT_E_CORRUPT;
        struct_size_out(worth, &whole, sizeof whole);
    }
    if (each)
        memcpy(seconds, (const uint8_t *)answer + list->worth_bytes, list->count * sizeof *seconds);
    return KVT_OK;
}

kvt_status wire_lease_answer_read(const wire_list *list, const void *answer, size_t bytes,
                                  bool *held)
{
    const uint8_t *each = answer;
    if (bytes != list->count) return KVT_E_CORRUPT;
    for (uint32_t i = 0; held != NULL && i < list->count; i++)
        held[i] = each[i] != 0;
    return KVT_OK;
}

kvt_status wire_extend_write(uint64_t lease, uint64_t until_ns, void *out, size_t capacity,
                             size_t *bytes_out)
{
    const wire_extend extend = {.struct_size = sizeof extend, .lease = lease, .until_ns = until_ns};
    if (sizeof extend > capacity) return KVT_E_SPACE;
    memcpy(out, &extend, sizeof extend);
    *bytes_out = sizeof extend;
    return KVT_OK;
}

kvt_status wire_pass_write(const kvt_pass *pass, void *out, size_t capacity, size_t *bytes_out)
{
    kvt_pass written = *pass;
    written.struct_size = sizeof written;
    if (sizeof written > capacity) return KVT_E_SPACE;
    memcpy(out, &written, sizeof written);
    *bytes_out = sizeof written;
    return KVT_OK;
}

kvt_status wire_pass_layer_write(uint64_t pass, uint32_t layer, void *out, size_t capacity,
                                 size_t *bytes_out)
{
    const wire_pass_layer written = {.struct_size = sizeof written, .layer = layer, .pass = pass};
    if (sizeof written > capacity) return KVT_E_SPACE;
    memcpy(out, &written, sizeof written);
    *bytes_out = sizeof written;
    return KVT_OK;
}

kvt_status wire_describe_write(const kvt_description *description, void *out, size_t capacity,
                               size_t *bytes_out)
{
    const uint32_t own = description->struct_size;
    const uint32_t groups = description->groups_capacity < KVT_GROUPS_MAX
                                ? description->groups_capacity
                                : KVT_GROUPS_MAX;
    const wire_describe describe = {
        .struct_size = sizeof describe, .description_bytes = own, .groups_capacity = groups};
    const size_t bytes = own + groups * sizeof(kvt_layout);
    if (!is_client_size(own) || own < sizeof describe) return KVT_E_ARGUMENT;
    if (bytes > capacity) return KVT_E_SPACE;
    memcpy(out, &describe, sizeof describe);
    *bytes_out = bytes;
    return KVT_OK;
}

kvt_status wire_describe_answer_read(const void *answer, size_t bytes, kvt_description *description)
{
    const uint32_t own = description->struct_size, capacity = description->groups_capacity;
    kvt_layout *groups = description->groups;
    kvt_description whole = {0};
    if (bytes < own) return KVT_E_CORRUPT;
    memcpy(&whole, answer, own < sizeof whole ? own : sizeof whole);
    const uint8_t *words = (const uint8_t *)&whole;
    if (words[offsetof(kvt_description, has_parent)] > 1 ||
        words[offsetof(kvt_description, moving)] > 1)
        return KVT_E_CORRUPT;
    const size_t count = bytes == own ? 0 : whole.group_count;
    if (whole.struct_size != own || whole.groups != NULL || whole.group_count > KVT_GROUPS_MAX ||
        count > capacity || bytes - own != count * sizeof *groups ||
        kvt_tier_name((int)whole.tier) == NULL)
        return KVT_E_CORRUPT;
    whole.groups = groups;
    whole.groups_capacity = capacity;
    struct_size_out(description, &whole, sizeof whole);
    if (count > 0) memcpy(groups, (const uint8_t *)answer + own, count * sizeof *groups);
    return KVT_OK;
}

/* ---- the server's side ---- */

/* Whether the members that a kind has no use for are zero, and the others in their range. */
static bool list_is_sound(uint32_t kind, const wire_list *list)
{
    const bool match = kind == WIRE_MATCH, hint = kind == WIRE_HINT;
    if (list->zero != 0 || (!match && (list->flags | list->worth_bytes) != 0)) return false;
    if (list->flags > (WIRE_MATCH_HOSTS | WIRE_MATCH_SECONDS)) return false;
    if (list->worth_bytes != 0 && !is_client_size(list->worth_bytes)) return false;
    if (!match && kind != WIRE_LEASE_BEGIN && list->instant_ns != 0) return false;
    return hint || (list->hint == 0 && list->seconds == 0);
}

kvt_status wire_list_read(uint32_t kind, const void *record, size_t bytes, wire_list *list_out,
                          const kvt_key **keys_out)
{
    record_rest from = {.at = record, .left = bytes};
    if (!record_take(&from, list_out, sizeof *list_out) || !list_is_sound(kind, list_out))
        return KVT_E_ARGUMENT;
    if (list_out->count > from.left / sizeof(kvt_key)) return KVT_E_ARGUMENT;
    if (wire_list_answer(kind, list_out) > bytes) return KVT_E_ARGUMENT;
    *keys_out = (const kvt_key *)(const void *)from.at;
    return KVT_OK;
}

void wire_match_answer_write(const wire_list *list, const kvt_worth *worth, const double *seconds,
                             void *out)
{
    uint8_t *at = out;
    if (list->worth_bytes != 0) {
        memcpy(at, &list->worth_bytes, sizeof list->worth_bytes);
        struct_size_out(at, worth, sizeof *worth);
        at += list->worth_bytes;
    }
    if ((list->flags & WIRE_MATCH_SECONDS) != 0 && list->count > 0)
        memcpy(at, seconds, list->count * sizeof *seconds);
}

kvt_status wire_extend_read(const void *record, size_t bytes, wire_extend *extend_out)
{
    record_rest from = {.at = record, .left = bytes};
    if (!record_take(&from, extend_out, sizeof *extend_out)) return KVT_E_ARGUMENT;
    return extend_out->zero == 0 ? KVT_OK : KVT_E_ARGUMENT;
}

kvt_status wire_pass_read(const void *record, size_t bytes, kvt_pass *pass_out)
{
    record_rest from = {.at = record, .left = bytes};
    if (!record_take(&from, pass_out, sizeof *pass_out)) return KVT_E_ARGUMENT;
    pass_out->struct_size = sizeof *pass_out;
    return KVT_OK;
}

kvt_status wire_pass_layer_read(const void *record, size_t bytes, wire_pass_layer *layer_out)
{
    record_rest from = {.at = record, .left = bytes};
    return record_take(&from, layer_out, sizeof *layer_out) ? KVT_OK : KVT_E_ARGUMENT;
}

kvt_status wire_describe_read(const void *record, size_t bytes, wire_describe *describe_out)
{
    record_rest from = {.at = record, .left = bytes};
    if (!record_take(&from, describe_out, sizeof *describe_out) || describe_out->zero != 0)
        return KVT_E_ARGUMENT;
    if (!is_client_size(describe_out->description_bytes)) return KVT_E_ARGUMENT;
    if (describe_out->groups_capacity > KVT_GROUPS_MAX) return KVT_E_ARGUMENT;
    const size_t answer =
        describe_out->description_bytes + describe_out->groups_capacity * sizeof(kvt_layout);
    return answer <= bytes ? KVT_OK : KVT_E_ARGUMENT;
}

size_t wire_describe_answer_write(const wire_describe *describe, const kvt_description *description,
                                  void *out)
{
    const uint32_t own = describe->description_bytes, count = description->group_count;
    kvt_description whole = *description;
    whole.groups = NULL;
    whole.groups_capacity = describe->groups_capacity;
    memcpy(out, &own, sizeof own);
    struct_size_out(out, &whole, sizeof whole);
    if (count == 0 || count > describe->groups_capacity) return own;
    memcpy((uint8_t *)out + own, description->groups, count * sizeof *description->groups);
    return own + count * sizeof *description->groups;
}
