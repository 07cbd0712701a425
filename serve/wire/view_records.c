/* SPDX-License-Identifier: Apache-2.0 */
/* view_records.c - views and their places, read and written front to back. */
#include "serve/wire/view_records.h"

static kvt_status take_places(record_rest *from, const wire_view *view, const wire_region *regions,
                              wire_bases *bases)
{
    if (view->base_count > from->left / sizeof(wire_place)) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < view->base_count; i++) {
        wire_place place;
        memcpy(&place, from->at + i * sizeof place, sizeof place);
        if (place.region > WIRE_STAGING || place.zero != 0) return KVT_E_ARGUMENT;
        const wire_region *region = &regions[place.region];
        if (region->address == NULL || place.bytes > region->bytes ||
            place.offset > region->bytes - place.bytes)
            return KVT_E_ARGUMENT;
        bases->at[i] = region->address + place.offset;
        bases->bytes[i] = place.bytes;
        if (place.region != WIRE_STAGING) bases->regions |= UINT64_C(1) << place.region;
    }
    from->at += view->base_count * sizeof(wire_place);
    from->left -= view->base_count * sizeof(wire_place);
    return KVT_OK;
}

kvt_status wire_view_read(record_rest *from, const wire_region *regions, wire_bases *bases,
                          kvt_view *view_out)
{
    wire_view view;
    if (!record_take(from, &view, sizeof view) || view.zero != 0) return KVT_E_ARGUMENT;
    if (view.bases_kind == KVT_BASES_GROUPS) return KVT_E_UNSUPPORTED;
    const bool arrays =
        view.bases_kind == KVT_BASES_LAYERS || view.bases_kind == KVT_BASES_LAYERS_SIDES;
    const bool one = view.bases_kind == KVT_BASES_ONE || view.bases_kind == KVT_BASES_PACKED;
    if (!arrays && !one && view.bases_kind != KVT_BASES_SIDES) return KVT_E_ARGUMENT;
    if (view.base_count == 0 || (!arrays && view.base_count > (one ? 1 : 2))) return KVT_E_ARGUMENT;
    const kvt_status status = take_places(from, &view, regions, bases);
    if (status != KVT_OK) return status;
    if (view.block_count > from->left / sizeof(uint32_t)) return KVT_E_ARGUMENT;
    *view_out = (kvt_view){.struct_size = sizeof *view_out,
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
    if (view.block_count > 0) view_out->blocks = (const uint32_t *)(const void *)from->at;
    from->at += view.block_count * sizeof(uint32_t);
    from->left -= view.block_count * sizeof(uint32_t);
    if (arrays) {
        /* The call compares the count with what the entry has. */
        view_out->bases = (void *const *)bases->at;
        view_out->bases_bytes = bases->bytes;
        view_out->base_count = view.base_count;
    }
    for (uint32_t i = 0; !arrays && i < view.base_count; i++) {
        view_out->base[i] = bases->at[i];
        view_out->base_bytes[i] = bases->bytes[i];
    }
    bases->at += view.base_count;
    bases->bytes += view.base_count;
    return KVT_OK;
}

/* ---- writing ---- */

static uint32_t view_blocks(const kvt_view *view)
{
    return view->blocks != NULL ? view->block_count : 0;
}

uint32_t wire_view_bases(const kvt_view *view)
{
    switch (view->bases_kind) {
    case KVT_BASES_SIDES: return view->base[1] != NULL ? 2 : 1;
    case KVT_BASES_LAYERS:
    case KVT_BASES_LAYERS_SIDES:
        return view->bases != NULL && view->base_count <= UINT32_MAX ? (uint32_t)view->base_count
                                                                     : 0;
    case KVT_BASES_GROUPS: return 0;
    default: return 1;
    }
}

size_t wire_view_bytes(const kvt_view *view, uint32_t base_count)
{
    return sizeof(wire_view) + base_count * sizeof(wire_place) +
           view_blocks(view) * sizeof(uint32_t);
}

bool wire_place_find(const wire_region *regions, uint32_t count, const void *address,
                     uint64_t bytes, wire_place *place_out)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)regions[i].address);
        if (regions[i].address == NULL || offset >= regions[i].bytes) continue;
        if (bytes > regions[i].bytes - offset) continue;
        if (place_out != NULL)
            *place_out = (wire_place){.region = i, .offset = offset, .bytes = bytes};
        return true;
    }
    return false;
}

kvt_status wire_view_write(const kvt_view *view, uint32_t base_count, const wire_region *regions,
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
        uint64_t length;
        const void *address = wire_view_address(view, i, &length);
        wire_place place;
        if (!wire_place_find(regions, WIRE_STAGING + 1, address, length, &place))
            return KVT_E_ARGUMENT;
        memcpy(at, &place, sizeof place);
    }
    if (written.block_count > 0) memcpy(at, view->blocks, written.block_count * sizeof(uint32_t));
    return KVT_OK;
}
