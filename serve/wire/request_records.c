/* SPDX-License-Identifier: Apache-2.0 */
/* request_records.c - reads and writes records, front to back. */
#include "serve/wire/request_records.h"

#include "base/struct_size.h"
#include "serve/wire/channel_entries.h"

#include <stdbool.h>
#include <string.h>

const wire_struct wire_structs[WIRE_STRUCTS] = {{"get", sizeof(wire_get), 32},
                                                {"put", sizeof(wire_put), 104},
                                                {"view", sizeof(wire_view), 72},
                                                {"place", sizeof(wire_place), 24}};

/* What is left of a record. */
typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

/* Takes the structure at the cursor, of `size` bytes here and in the first version. */
static bool cursor_take(cursor *from, void *out, size_t size)
{
    uint32_t has;
    if (from->left < sizeof has) return false;
    memcpy(&has, from->at, sizeof has);
    if (has < size || has > from->left || has % 8 != 0) return false;
    for (size_t i = size; i < has; i++)
        if (from->at[i] != 0) return false;
    memcpy(out, from->at, size);
    from->at += has;
    from->left -= has;
    return true;
}

static kvt_status take_places(cursor *from, const wire_view *view, const wire_region *regions,
                              wire_record *out)
{
    if (view->base_count > from->left / sizeof(wire_place)) return KVT_E_ARGUMENT;
    out->regions = 0;
    for (uint32_t i = 0; i < view->base_count; i++) {
        wire_place place;
        memcpy(&place, from->at + i * sizeof place, sizeof place);
        if (place.region >= WIRE_REGIONS_MAX || place.zero != 0) return KVT_E_ARGUMENT;
        const wire_region *region = &regions[place.region];
        if (region->address == NULL || place.bytes > region->bytes ||
            place.offset > region->bytes - place.bytes)
            return KVT_E_ARGUMENT;
        out->bases[i] = region->address + place.offset;
        out->bases_bytes[i] = place.bytes;
        out->regions |= UINT64_C(1) << place.region;
    }
    from->at += view->base_count * sizeof(wire_place);
    from->left -= view->base_count * sizeof(wire_place);
    return KVT_OK;
}

static kvt_status take_view(cursor *from, const wire_region *regions, wire_record *out)
{
    wire_view view;
    if (!cursor_take(from, &view, sizeof view) || view.zero != 0) return KVT_E_ARGUMENT;
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

kvt_status wire_record_read(uint32_t kind, const void *record, size_t bytes,
                            const wire_region *regions, wire_record *out)
{
    cursor from = {.at = record, .left = bytes};
    if (kind == WIRE_GET) {
        if (!cursor_take(&from, &out->get, sizeof out->get) || out->get.zero != 0)
            return KVT_E_ARGUMENT;
        /* The stored entry says how many addresses are read, and it is not known here. */
        uint32_t head[2];
        if (from.left < sizeof head) return KVT_E_ARGUMENT;
        memcpy(head, from.at, sizeof head);
        if (head[1] == KVT_BASES_LAYERS || head[1] == KVT_BASES_LAYERS_SIDES)
            return KVT_E_UNSUPPORTED;
        return take_view(&from, regions, out);
    }
    if (!cursor_take(&from, &out->put, sizeof out->put) || out->put.has_parent > 1)
        return KVT_E_ARGUMENT;
    uint32_t base_count = 0;
    if (from.left >= sizeof(wire_view))
        memcpy(&base_count, from.at + offsetof(wire_view, base_count), sizeof base_count);
    kvt_status status = take_view(&from, regions, out);
    if (status == KVT_OK) status = check_put_bases(out, base_count);
    out->entry = (kvt_entry){.struct_size = sizeof out->entry,
                             .parent = out->put.has_parent ? &out->put.parent : NULL,
                             .layout = out->put.layout,
                             .first_position = out->put.first_position,
                             .recompute_seconds = out->put.recompute_seconds,
                             .class_id = out->put.class_id,
                             .tenant = out->put.tenant,
                             .request_tokens = out->put.request_tokens,
                             .lifetime_seconds = out->put.lifetime_seconds};
    return status;
}

/* ---- writing ---- */

/* The place of an address in the regions; false: it lies in none of them, or leaves it. */
static bool find_place(const wire_region *regions, const void *address, uint64_t bytes,
                       wire_place *place_out)
{
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++) {
        const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)regions[i].address);
        if (regions[i].address == NULL || offset >= regions[i].bytes) continue;
        if (bytes > regions[i].bytes - offset) continue;
        *place_out = (wire_place){.region = i, .offset = offset, .bytes = bytes};
        return true;
    }
    return false;
}

kvt_status wire_record_write(const void *head, const kvt_view *view, uint32_t base_count,
                             const wire_region *regions, void *out, size_t capacity,
                             size_t *bytes_out)
{
    const bool arrays = view->bases != NULL;
    const uint32_t head_bytes = struct_size_of(head);
    if (view->bases_kind == KVT_BASES_GROUPS || view->memory != KVT_MEMORY_HOST)
        return KVT_E_UNSUPPORTED;
    if (base_count == 0 || (!arrays && base_count > 2)) return KVT_E_ARGUMENT;
    const uint32_t block_count = view->blocks != NULL ? view->block_count : 0;
    const size_t bytes = head_bytes + sizeof(wire_view) + base_count * sizeof(wire_place) +
                         block_count * sizeof(uint32_t);
    if (bytes > capacity) return KVT_E_SPACE;
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
                               .block_count = block_count};
    uint8_t *at = out;
    memcpy(at, head, head_bytes);
    at += head_bytes;
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
    if (block_count > 0) memcpy(at, view->blocks, block_count * sizeof(uint32_t));
    *bytes_out = bytes;
    return KVT_OK;
}
