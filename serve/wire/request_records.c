/* SPDX-License-Identifier: Apache-2.0 */
/* request_records.c - reads and writes records, front to back. */
#include "serve/wire/request_records.h"

#include "serve/wire/channel_entries.h"
#include "serve/wire/record_rest.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

const wire_struct wire_structs[WIRE_STRUCTS] = {{"get", sizeof(wire_get), 40},
                                                {"put", sizeof(wire_put), 112},
                                                {"view", sizeof(wire_view), 72},
                                                {"place", sizeof(wire_place), 24}};

const wire_speaks wire_own_speaks = {.protocol_least = WIRE_PROTOCOL,
                                     .protocol_most = WIRE_PROTOCOL,
                                     .library = KVT_VERSION_MAJOR << 16 | KVT_VERSION_MINOR << 8 |
                                                KVT_VERSION_PATCH,
                                     .structs = wire_structs,
                                     .struct_count = WIRE_STRUCTS};

static kvt_status take_places(record_rest *from, const wire_view *view, const wire_region *regions,
                              wire_record *out)
{
    if (view->base_count > from->left / sizeof(wire_place)) return KVT_E_ARGUMENT;
    out->regions = 0;
    for (uint32_t i = 0; i < view->base_count; i++) {
        wire_place place;
        memcpy(&place, from->at + i * sizeof place, sizeof place);
        if (place.region > WIRE_STAGING || place.zero != 0) return KVT_E_ARGUMENT;
        const wire_region *region = &regions[place.region];
        if (region->address == NULL || place.bytes > region->bytes ||
            place.offset > region->bytes - place.bytes)
            return KVT_E_ARGUMENT;
        out->bases[i] = region->address + place.offset;
        out->bases_bytes[i] = place.bytes;
        if (place.region != WIRE_STAGING) out->regions |= UINT64_C(1) << place.region;
    }
    from->at += view->base_count * sizeof(wire_place);
    from->left -= view->base_count * sizeof(wire_place);
    return KVT_OK;
}

static kvt_status take_view(record_rest *from, const wire_region *regions, wire_record *out)
{
    wire_view view;
    if (!record_take(from, &view, sizeof view) || view.zero != 0) return KVT_E_ARGUMENT;
    if (view.bases_kind == KVT_BASES_GROUPS) return KVT_E_UNSUPPORTED;
    const bool arrays =
        view.bases_kind == KVT_BASES_LAYERS || view.bases_kind == KVT_BASES_LAYERS_SIDES;
    const bool one = view.bases_kind == KVT_BASES_ONE || view.bases_kind == KVT_BASES_PACKED;
    if (!arrays && !one && view.bases_kind != KVT_BASES_SIDES) return KVT_E_ARGUMENT;
    if (view.base_count == 0 || (!arrays && view.base_count > (one ? 1 : 2))) return KVT_E_ARGUMENT;
    const kvt_status status = take_places(from, &view, regions, out);
    if (status != KVT_OK) return status;
    if (view.block_count > from->left / sizeof(uint32_t)) return KVT_E_ARGUMENT;
    out->view = (kvt_view){.struct_size = sizeof out->view,
                           .bases_kind = view.bases_kind,
                           .dtype = view.dtype,
                           .layer_stride = view.layer_stride,
                           .side_stride = view.side_stride,
                           .block_stride = view.block_stride,
                           .token_stride = view.token_stride,
                           .head_stride = view.head_stride,
                           .tokens_per_block = view.tokens_per_block,
                           .first_slot = view.first_slot,
                           .block_count = view.block_count};
    if (view.block_count > 0) out->view.blocks = (const uint32_t *)(const void *)from->at;
    if (arrays) {
        out->view.bases = (void *const *)out->bases;
        out->view.bases_bytes = out->bases_bytes;
    }
    for (uint32_t i = 0; !arrays && i < view.base_count; i++) {
        out->view.base[i] = out->bases[i];
        out->view.base_bytes[i] = out->bases_bytes[i];
    }
    return KVT_OK;
}

/* Of an array of addresses the call reads as many as the entry has layers, or sides of layers; an
 * entry that has more than there are places must not be read. */
static kvt_status check_put_bases(const wire_record *record, uint32_t base_count)
{
    const kvt_layout *layout = &record->put.layout;
    uint64_t bytes;
    if (record->view.bases == NULL) return KVT_OK;
    if (kvt_layout_bytes(layout, &bytes) != KVT_OK) return KVT_E_ARGUMENT;
    const uint32_t sides =
        record->view.bases_kind == KVT_BASES_LAYERS_SIDES ? kvt_layout_sides(layout) : 1;
    return base_count == layout->layers * sides ? KVT_OK : KVT_E_ARGUMENT;
}

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
    const size_t blocks = out->view.block_count * sizeof(uint32_t);
    if (count == 0) return KVT_OK;
    if (count > (from->left - blocks) / sizeof(float)) return KVT_E_ARGUMENT;
    out->entry.token_score_count = count;
    out->entry.token_scores = (const float *)(const void *)(from->at + blocks);
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
    uint32_t base_count = 0;
    kvt_status status = take_groups(from, out);
    if (from->left >= sizeof(wire_view))
        memcpy(&base_count, from->at + offsetof(wire_view, base_count), sizeof base_count);
    if (status == KVT_OK) status = take_view(from, regions, out);
    if (status == KVT_OK) status = take_scores(from, out);
    return status == KVT_OK ? check_put_bases(out, base_count) : status;
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
    /* The stored entry says how many addresses are read, and it is not known here. */
    uint32_t head[2];
    if (from->left < sizeof head) return KVT_E_ARGUMENT;
    memcpy(head, from->at, sizeof head);
    if (head[1] == KVT_BASES_LAYERS || head[1] == KVT_BASES_LAYERS_SIDES) return KVT_E_UNSUPPORTED;
    return take_view(from, regions, out);
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

static uint32_t view_blocks(const kvt_view *view)
{
    return view->blocks != NULL ? view->block_count : 0;
}

static size_t view_bytes(const kvt_view *view, uint32_t base_count)
{
    return sizeof(wire_view) + base_count * sizeof(wire_place) +
           view_blocks(view) * sizeof(uint32_t);
}

size_t wire_get_bytes(const wire_get *get, const kvt_view *view, uint32_t base_count)
{
    const size_t record = sizeof *get + view_bytes(view, base_count);
    const uint64_t most = UINT32_MAX, kept = get->kept_capacity < most ? get->kept_capacity : most;
    const size_t answer = get->got_bytes + kept * sizeof(uint32_t);
    return record > answer ? record : answer;
}

size_t wire_put_bytes(const wire_put *put, const kvt_view *view, uint32_t base_count)
{
    return sizeof *put + put->group_count * sizeof(kvt_layout) + view_bytes(view, base_count) +
           put->token_score_count * sizeof(float);
}

/* The place of an address in the regions; false: it lies in none of them, or leaves it. */
static bool find_place(const wire_region *regions, const void *address, uint64_t bytes,
                       wire_place *place_out)
{
    for (uint32_t i = 0; i <= WIRE_STAGING; i++) {
        const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)regions[i].address);
        if (regions[i].address == NULL || offset >= regions[i].bytes) continue;
        if (bytes > regions[i].bytes - offset) continue;
        *place_out = (wire_place){.region = i, .offset = offset, .bytes = bytes};
        return true;
    }
    return false;
}

/* Writes a view at `at`, where it has room. */
static kvt_status write_view(const kvt_view *view, uint32_t base_count, const wire_region *regions,
                             uint8_t *at)
{
    const bool arrays = view->bases != NULL;
    if (view->bases_kind == KVT_BASES_GROUPS || view->memory != KVT_MEMORY_HOST)
        return KVT_E_UNSUPPORTED;
    if (base_count == 0 || (!arrays && base_count > 2)) return KVT_E_ARGUMENT;
    const wire_view written = {.struct_size = sizeof written,
                               .bases_kind = view->bases_kind,
                               .dtype = view->dtype,
                               .base_count = base_count,
                               .layer_stride = view->layer_stride,
                               .side_stride = view->side_stride,
                               .block_stride = view->block_stride,
                               .token_stride = view->token_stride,
                               .head_stride = view->head_stride,
                               .tokens_per_block = view->tokens_per_block,
                               .first_slot = view->first_slot,
                               .block_count = view_blocks(view)};
    memcpy(at, &written, sizeof written);
    at += sizeof written;
    for (uint32_t i = 0; i < base_count; i++, at += sizeof(wire_place)) {
        const void *address = arrays ? view->bases[i] : view->base[i];
        const uint64_t length = !arrays                     ? view->base_bytes[i]
                                : view->bases_bytes != NULL ? view->bases_bytes[i]
                                                            : view->base_bytes[0];
        wire_place place;
        if (!find_place(regions, address, length, &place)) return KVT_E_ARGUMENT;
        memcpy(at, &place, sizeof place);
    }
    if (written.block_count > 0) memcpy(at, view->blocks, written.block_count * sizeof(uint32_t));
    return KVT_OK;
}

kvt_status wire_get_write(const wire_get *get, const kvt_view *view, uint32_t base_count,
                          const wire_region *regions, void *out, size_t capacity, size_t *bytes_out)
{
    const size_t record = sizeof *get + view_bytes(view, base_count);
    const size_t most = wire_get_bytes(get, view, base_count);
    if (get->kept_capacity != 0 && get->got_bytes == 0) return KVT_E_ARGUMENT;
    if (record > capacity || get->got_bytes > capacity) return KVT_E_SPACE;
    wire_get written = *get;
    written.struct_size = sizeof written;
    memcpy(out, &written, sizeof written);
    *bytes_out = most < capacity ? most : capacity;
    return write_view(view, base_count, regions, (uint8_t *)out + sizeof *get);
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
    return write_view(view, base_count, regions, at + group_bytes);
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
