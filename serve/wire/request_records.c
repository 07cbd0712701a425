/* SPDX-License-Identifier: Apache-2.0 */
/* request_records.c - reads and writes records, front to back. */
#include "serve/wire/request_records.h"

#include "serve/wire/channel_entries.h"
#include "serve/wire/load_records.h"
#include "serve/wire/record_rest.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

const wire_struct wire_structs[WIRE_STRUCTS] = {
    {"get", sizeof(wire_get), 40},   {"put", sizeof(wire_put), 112},
    {"view", sizeof(wire_view), 72}, {"place", sizeof(wire_place), 24},
    {"load", sizeof(wire_load), 64}, {"load's entry", sizeof(wire_load_entry), 40},
    {"pass", sizeof(kvt_pass), 32}};

const wire_speaks wire_own_speaks = {.protocol_least = WIRE_PROTOCOL,
                                     .protocol_most = WIRE_PROTOCOL,
                                     .library = KVT_VERSION_MAJOR << 16 | KVT_VERSION_MINOR << 8 |
                                                KVT_VERSION_PATCH,
                                     .structs = wire_structs,
                                     .struct_count = WIRE_STRUCTS};

/* The layouts of a put's groups, whose entry comes packed. */
static kvt_status take_groups(record_rest *from, wire_record *out)
{
    const uint32_t count = out->put.group_count;
    if (count == 0) return KVT_OK;
    if (count > KVT_GROUPS_MAX || count > from->left / sizeof(kvt_layout)) return KVT_E_ARGUMENT;
    out->entry.group_count = count;
    out->entry.groups = (const kvt_layout *)(const void *)from->at;
    from->at += count * sizeof(kvt_layout);
    from->left -= count * sizeof(kvt_layout);
    return KVT_OK;
}

/* The scores of a put's tokens, behind all else. */
static kvt_status take_scores(record_rest *from, wire_record *out)
{
    const uint32_t count = out->put.token_score_count;
    if (count == 0) return KVT_OK;
    if (count > from->left / sizeof(float)) return KVT_E_ARGUMENT;
    out->entry.token_score_count = count;
    out->entry.token_scores = (const float *)(const void *)from->at;
    return KVT_OK;
}

static kvt_status read_put(record_rest *from, const wire_region *regions, wire_record *out)
{
    wire_put *put = &out->put;
    if (!record_take(from, put, sizeof *put) || put->has_parent > 1) return KVT_E_ARGUMENT;
    out->entry = (kvt_entry){.struct_size = sizeof out->entry,
                             .parent = put->has_parent ? &put->parent : NULL,
                             .layout = put->layout,
                             .first_position = put->first_position,
                             .recompute_seconds = put->recompute_seconds,
                             .class_id = put->class_id,
                             .tenant = put->tenant,
                             .request_tokens = put->request_tokens,
                             .lifetime_seconds = put->lifetime_seconds};
    kvt_status status = take_groups(from, out);
    if (status == KVT_OK) status = wire_view_read(from, regions, &out->bases, &out->view);
    return status == KVT_OK ? take_scores(from, out) : status;
}

static kvt_status read_get(record_rest *from, const wire_region *regions, wire_record *out)
{
    wire_get *get = &out->get;
    const size_t bytes = from->left;
    if (!record_take(from, get, sizeof *get)) return KVT_E_ARGUMENT;
    if (get->got_bytes == 0 ? get->kept_capacity != 0
                            : get->got_bytes < sizeof(wire_got) || get->got_bytes % 8 != 0 ||
                                  get->got_bytes > bytes)
        return KVT_E_ARGUMENT;
    return wire_view_read(from, regions, &out->bases, &out->view);
}

kvt_status wire_record_read(uint32_t kind, const void *record, size_t bytes,
                            const wire_region *regions, wire_record *out)
{
    record_rest from = {.at = record, .left = bytes};
    assert((uintptr_t)record % 8 == 0);
    return kind == WIRE_GET ? read_get(&from, regions, out) : read_put(&from, regions, out);
}

/* ---- writing ---- */

wire_put wire_put_of(const kvt_entry *entry, uint64_t deadline_ns)
{
    wire_put put = {.struct_size = sizeof put,
                    .has_parent = entry->parent != NULL,
                    .layout = entry->layout,
                    .first_position = entry->first_position,
                    .class_id = entry->class_id,
                    .tenant = entry->tenant,
                    .request_tokens = entry->request_tokens,
                    .recompute_seconds = entry->recompute_seconds,
                    .lifetime_seconds = entry->lifetime_seconds,
                    .deadline_ns = deadline_ns,
                    .group_count = entry->group_count,
                    .token_score_count = entry->token_score_count};
    if (entry->parent != NULL) put.parent = *entry->parent;
    return put;
}

size_t wire_get_bytes(const wire_get *get, const kvt_view *view, uint32_t base_count)
{
    const size_t record = sizeof *get + wire_view_bytes(view, base_count);
    const uint64_t most = UINT32_MAX, kept = get->kept_capacity < most ? get->kept_capacity : most;
    const size_t answer = get->got_bytes + kept * sizeof(uint32_t);
    return record > answer ? record : answer;
}

size_t wire_put_bytes(const wire_put *put, const kvt_view *view, uint32_t base_count)
{
    return sizeof *put + put->group_count * sizeof(kvt_layout) + wire_view_bytes(view, base_count) +
           put->token_score_count * sizeof(float);
}

kvt_status wire_get_write(const wire_get *get, const kvt_view *view, uint32_t base_count,
                          const wire_region *regions, void *out, size_t capacity, size_t *bytes_out)
{
    const size_t record = sizeof *get + wire_view_bytes(view, base_count);
    const size_t most = wire_get_bytes(get, view, base_count);
    if (get->kept_capacity != 0 && get->got_bytes == 0) return KVT_E_ARGUMENT;
    if (record > capacity || get->got_bytes > capacity) return KVT_E_SPACE;
    wire_get written = *get;
    written.struct_size = sizeof written;
    memcpy(out, &written, sizeof written);
    *bytes_out = most < capacity ? most : capacity;
    return wire_view_write(view, base_count, regions, (uint8_t *)out + sizeof *get);
}

kvt_status wire_put_write(const wire_put *put, const kvt_layout *groups, const float *scores,
                          const kvt_view *view, uint32_t base_count, const wire_region *regions,
                          void *out, size_t capacity, size_t *bytes_out)
{
    const size_t bytes = wire_put_bytes(put, view, base_count);
    const size_t group_bytes = put->group_count * sizeof *groups;
    const size_t score_bytes = put->token_score_count * sizeof *scores;
    wire_put written = *put;
    uint8_t *at = out;
    if (bytes > capacity) return KVT_E_SPACE;
    written.struct_size = sizeof written;
    memcpy(at, &written, sizeof written);
    at += sizeof written;
    if (group_bytes > 0) memcpy(at, groups, group_bytes);
    if (score_bytes > 0) memcpy((uint8_t *)out + bytes - score_bytes, scores, score_bytes);
    *bytes_out = bytes;
    return wire_view_write(view, base_count, regions, at + group_bytes);
}

/* ---- how a get was served ---- */

size_t wire_got_write(const wire_get *get, const kvt_get_info *info, void *out)
{
    const kvt_kept_tokens *kept = info->kept;
    const wire_got got = {.struct_size = get->got_bytes,
                          .shared = info->shared,
                          .read_ns = info->read_ns,
                          .decode_ns = info->decode_ns,
                          .predicted_ns = info->predicted_ns,
                          .kept_count = kept->count,
                          .kept_sets = kept->sets};
    const size_t positions = (size_t)kept->sets * kept->count * sizeof *kept->positions;
    assert(get->got_bytes >= sizeof got);
    memset(out, 0, get->got_bytes);
    memcpy(out, &got, sizeof got);
    if (positions > 0) memcpy((uint8_t *)out + get->got_bytes, kept->positions, positions);
    return get->got_bytes + positions;
}

kvt_status wire_got_read(const void *answer, size_t bytes, kvt_get_info *info)
{
    record_rest from = {.at = answer, .left = bytes};
    kvt_kept_tokens *kept = info->kept;
    wire_got got;
    if (!record_take(&from, &got, sizeof got) || got.shared > 1) return KVT_E_CORRUPT;
    const uint64_t positions = (uint64_t)got.kept_sets * got.kept_count;
    if (positions > from.left / sizeof(uint32_t)) return KVT_E_CORRUPT;
    if (positions > (kept != NULL ? kept->capacity : 0)) return KVT_E_CORRUPT;
    info->read_ns = got.read_ns;
    info->decode_ns = got.decode_ns;
    info->predicted_ns = got.predicted_ns;
    info->shared = got.shared != 0;
    if (kept == NULL) return KVT_OK;
    kept->count = got.kept_count;
    kept->sets = got.kept_sets;
    if (positions > 0) memcpy(kept->positions, from.at, positions * sizeof *kept->positions);
    return KVT_OK;
}
