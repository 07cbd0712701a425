/* SPDX-License-Identifier: Apache-2.0 */
/* load_records.c - reads and writes the records of layered loads, front to back. */
#include "serve/wire/load_records.h"

#include <assert.h>

size_t wire_load_write(const wire_load *load, void *out)
{
    wire_load written = *load;
    written.struct_size = sizeof written;
    written.part = 0;
    memcpy(out, &written, sizeof written);
    return sizeof written;
}

kvt_status wire_load_add(void *out, size_t capacity, const kvt_key *key,
                         const kvt_view *const *views, uint32_t group_count,
                         const wire_region *regions, size_t *bytes)
{
    const wire_load_entry entry = {
        .struct_size = sizeof entry, .group_count = group_count, .key = *key};
    const uint32_t count = group_count != 0 ? group_count : 1;
    uint8_t *record = out;
    size_t at = *bytes;
    assert(at >= sizeof(wire_load) && at <= capacity);
    if (sizeof entry > capacity - at) return KVT_E_SPACE;
    memcpy(record + at, &entry, sizeof entry);
    at += sizeof entry;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t bases = wire_view_bases(views[i]);
        const size_t needs = wire_view_bytes(views[i], bases);
        if (needs > capacity - at) return KVT_E_SPACE;
        const kvt_status status = wire_view_write(views[i], bases, regions, record + at);
        if (status != KVT_OK) return status;
        at += needs;
    }
    uint32_t part;
    memcpy(&part, record + offsetof(wire_load, part), sizeof part);
    part++;
    memcpy(record + offsetof(wire_load, part), &part, sizeof part);
    *bytes = at;
    return KVT_OK;
}

kvt_status wire_load_read(const void *record, size_t bytes, uint64_t area_bytes,
                          wire_load *load_out)
{
    record_rest from = {.at = record, .left = bytes};
    if (!record_take(&from, load_out, sizeof *load_out)) return KVT_E_ARGUMENT;
    if (load_out->flags > WIRE_LOAD_MORE) return KVT_E_ARGUMENT;
    if (load_out->count == 0 || load_out->count > WIRE_LOAD_ENTRIES || load_out->part == 0 ||
        load_out->part > load_out->count)
        return KVT_E_ARGUMENT;
    const uint64_t state = wire_load_state_bytes(load_out->count);
    if (load_out->state % WIRE_LOAD_ALIGN != 0 || load_out->state > area_bytes ||
        state > area_bytes - load_out->state)
        return KVT_E_ARGUMENT;
    return KVT_OK;
}

/* Reads the views of one entry, and sets the pointer to its view, or to that of its groups. */
static kvt_status read_views(record_rest *from, uint32_t group_count, const wire_region *regions,
                             wire_load_room *room, const kvt_view **view_out)
{
    const uint32_t count = group_count != 0 ? group_count : 1;
    kvt_view *views = room->views;
    if (count > from->left / sizeof(wire_view)) return KVT_E_ARGUMENT;
    room->views += count;
    for (uint32_t i = 0; i < count; i++) {
        const kvt_status status = wire_view_read(from, regions, &room->bases, &views[i]);
        if (status != KVT_OK) return status;
        if (group_count != 0) room->group_views[i] = &views[i];
    }
    *view_out = views;
    if (group_count == 0) return KVT_OK;
    kvt_view *grouped = room->views++;
    *grouped = kvt_view_grouped(room->group_views, group_count);
    room->group_views += group_count;
    *view_out = grouped;
    return KVT_OK;
}

kvt_status wire_load_entries_read(const void *record, size_t bytes, const wire_load *load,
                                  const wire_region *regions, wire_load_room *room)
{
    record_rest from = {.at = record, .left = bytes};
    wire_load head;
    if (!record_take(&from, &head, sizeof head)) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < load->part; i++) {
        wire_load_entry entry;
        if (!record_take(&from, &entry, sizeof entry) || entry.group_count > KVT_GROUPS_MAX)
            return KVT_E_ARGUMENT;
        room->keys[i] = entry.key;
        const kvt_status status =
            read_views(&from, entry.group_count, regions, room, &room->pointers[i]);
        if (status != KVT_OK) return status;
    }
    return from.left == 0 ? KVT_OK : KVT_E_ARGUMENT;
}
