/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_record.c - the record of an entry that is loaded: its heads, the ranges of its layers, and
 * their decoding into the views. The layers of an entry are those of its sections, one behind the
 * other; an opaque group comes with the layer before it, or with the first one. The file reads no
 * device and knows no order of layers.
 *
 * Thread rule: one thread writes a section's head, before any other looks at it.
 */
#include "codecs/codecs.h"
#include "codecs/record_groups.h"
#include "codecs/view_rows.h"
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const load_section *store_load_section(const load_entry *entry, uint32_t layer)
{
    const load_section *section = entry->sections;
    while (layer - section->first_layer >= section->layout.layers)
        section++;
    assert(section < entry->sections + entry->section_count);
    return section;
}

/* Opaque sections that come with a layer, as one run of the record. */
typedef struct load_extra {
    const load_section *first;
    const load_section *end;
} load_extra;

/* The opaque sections that come with layers of a section: those before the first layer of an entry,
 * and those behind the last layer of a section. Returns how many runs of them there are. */
static uint32_t load_extras(const load_entry *entry, const load_section *section, uint32_t layer,
                            uint32_t layers, load_extra *extras)
{
    const load_section *last = entry->sections + entry->section_count, *next = section + 1;
    uint32_t count = 0;
    if (layer == 0 && section != entry->sections)
        extras[count++] = (load_extra){entry->sections, section};
    if (layer + layers - section->first_layer != section->layout.layers) return count;
    while (next != last && next->layout.layers == 0)
        next++;
    if (next != section + 1) extras[count++] = (load_extra){section + 1, next};
    return count;
}

/* Bytes of a run in the record. */
static uint64_t load_extra_bytes(const load_extra *extra)
{
    const load_section *last = extra->end - 1;
    assert(extra->first < extra->end);
    return last->offset + last->bytes - extra->first->offset;
}

kvt_status load_open_table(load_entry *entry, const void *head, uint64_t bytes)
{
    record_groups groups;
    load_section *sections = entry->sections;
    if (!entry->grouped) {
        sections->bytes = entry->record_bytes;
        sections->head_bytes = codecs_head_bytes(&sections->layout, entry->variant);
        bool fits = sections->head_bytes != 0 && sections->head_bytes <= entry->record_bytes;
        return fits ? KVT_OK : KVT_E_CORRUPT;
    }
    if (head == NULL)
        return entry->record_bytes > RECORD_GROUPS_HEAD_BYTES ? KVT_OK : KVT_E_CORRUPT;
    kvt_status status = record_groups_open(head, bytes, &groups);
    if (status != KVT_OK) return status;
    if (groups.generation != entry->expected.generation ||
        memcmp(&groups.key, &entry->expected.key, sizeof groups.key) != 0)
        return KVT_E_MISMATCH;
    if (groups.count != entry->section_count || groups.record_bytes > entry->record_bytes)
        return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < groups.count; i++) {
        if ((groups.groups[i].layout.dtype == KVT_DTYPE_OPAQUE) != (sections[i].layout.layers == 0))
            return KVT_E_CORRUPT;
        sections[i].offset = groups.groups[i].offset;
        sections[i].bytes = groups.groups[i].bytes;
        sections[i].head_bytes = record_groups_head_bytes(&groups, i);
    }
    return KVT_OK;
}

#define LOAD_HEAD_ROOM 1024u /* words, of heads that are opened without a second try */

kvt_status load_open_head(const load_entry *entry, load_section *section, const void *head,
                          uint64_t bytes, bool whole)
{
    uint64_t room[LOAD_HEAD_ROOM], needed;
    assert(section->head == NULL);
    kvt_status status =
        kvt_record_head_open(head, bytes, whole, &entry->expected, room, sizeof room, &needed);
    if (status != KVT_OK && status != KVT_E_SPACE) return status;
    section->head = malloc(needed);
    if (section->head == NULL) return KVT_E_MEMORY;
    section->kept_bytes = needed;
    if (status == KVT_OK)
        memcpy(section->head, room, needed);
    else
        status = kvt_record_head_open(head, bytes, whole, &entry->expected, section->head, needed,
                                      &needed);
    if (status == KVT_OK) return KVT_OK;
    free(section->head);
    section->head = NULL;
    return status;
}

kvt_status load_use_heads(const load_entry *entry, const uint8_t *payload, bool whole)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < entry->section_count && status == KVT_OK; i++) {
        load_section *section = &entry->sections[i];
        if (section->head_bytes != 0 && section->head == NULL)
            status = whole ? load_open_head(entry, section, payload + section->offset,
                                            section->bytes, true)
                           : load_open_head(entry, section, payload, section->head_bytes, false);
        if (!whole) payload += section->head_bytes;
    }
    return status;
}

uint32_t load_together(const load_entry *entry, uint32_t layer)
{
    const load_section *section = store_load_section(entry, layer);
    assert(section->head != NULL);
    return kvt_record_head_together(section->head, layer - section->first_layer);
}

kvt_status load_find_ranges(const load_entry *entry, uint32_t layer, load_form form,
                            load_ranges *own, kvt_record_range *ranges, uint32_t *count_out)
{
    const load_section *section = store_load_section(entry, layer);
    load_extra extras[2];
    uint64_t at = 0;
    uint32_t count = 0;
    const uint32_t layers = load_together(entry, layer);
    assert(layers != 0);
    if (form != LOAD_WHOLE) { /* of an entry without groups */
        kvt_status found = store_coarse_ranges(entry, layer, form, own, count_out);
        if (found == KVT_OK) memcpy(ranges, own->ranges, *count_out * sizeof *ranges);
        return found;
    }
    kvt_status status = kvt_record_head_ranges(section->head, layer - section->first_layer, layers,
                                               own->ranges, KVT_RECORD_RANGES_MAX, &own->count);
    if (status != KVT_OK) return status;
    for (; count < own->count; count++) {
        ranges[count] = own->ranges[count];
        ranges[count].offset += section->offset;
        at += ranges[count].bytes;
    }
    const uint32_t extra_count = load_extras(entry, section, layer, layers, extras);
    for (uint32_t i = 0; i < extra_count; i++) {
        const uint64_t bytes = load_extra_bytes(&extras[i]);
        ranges[count++] = (kvt_record_range){extras[i].first->offset, bytes, at};
        at += bytes;
    }
    *count_out = count;
    return KVT_OK;
}

/* Decodes a whole opaque section, whose record is here. */
static kvt_status load_decode_opaque(const load_entry *entry, const load_section *section,
                                     const uint8_t *record, const staging_buffer *scratch)
{
    return kvt_record_decode_view(record, section->bytes, &entry->expected, NULL, &section->layout,
                                  section->view, 0, 0, scratch->memory, scratch->bytes);
}

kvt_status load_decode(kvt_store *store, const load_entry *entry, uint32_t layer, load_form form,
                       const load_ranges *own, const uint8_t *payload)
{
    const load_section *section = store_load_section(entry, layer);
    staging_buffer scratch = {0};
    load_extra extras[2];
    uint64_t at = 0; /* of the next bytes behind the layer's own */
    kvt_status status = KVT_OK;
    const uint32_t layers = load_together(entry, layer);
    if (layers == 0) return KVT_OK;
    if (entry->scratch_bytes != 0)
        status = staging_acquire_now(store->staging, entry->scratch_bytes, &scratch);
    if (status != KVT_OK) return status;
    status = kvt_record_head_decode(form == LOAD_COARSE ? entry->coarse->head : section->head,
                                    &section->layout, section->view, layer - section->first_layer,
                                    layers, own != NULL ? payload : payload + section->offset,
                                    own != NULL ? own->ranges : NULL, own != NULL ? own->count : 0,
                                    scratch.memory, scratch.bytes);
    for (uint32_t i = 0; own != NULL && i < own->count; i++)
        at += own->ranges[i].bytes;
    const uint32_t extra_count = load_extras(entry, section, layer, layers, extras);
    for (uint32_t i = 0; i < extra_count; i++) {
        const uint64_t start = extras[i].first->offset;
        for (const load_section *one = extras[i].first; one != extras[i].end; one++) {
            const uint64_t from = own != NULL ? at + (one->offset - start) : one->offset;
            if (status == KVT_OK) status = load_decode_opaque(entry, one, payload + from, &scratch);
        }
        at += load_extra_bytes(&extras[i]);
    }
    if (scratch.memory != NULL) staging_release(store->staging, &scratch);
    return status;
}

void load_copy_staged(const load_entry *entry, uint32_t layer)
{
    const load_section *section = store_load_section(entry, layer);
    const uint8_t *bytes = entry->staged->buffer.memory;
    const uint32_t own = layer - section->first_layer;
    load_extra extras[2];
    for (uint32_t side = 0; side < kvt_layout_sides(&section->layout); side++) {
        view_rows rows = view_rows_of(section->view, &section->layout, section->layout.tokens, own,
                                      (kvt_side)side);
        uint64_t at = kvt_layout_matrix_offset(&section->layout, own, (kvt_side)side);
        view_rows_scatter(&rows, 0, rows.bytes, bytes + section->packed_at + at);
        view_rows_close(&rows);
    }
    const uint32_t extra_count = load_extras(entry, section, layer, 1, extras);
    for (uint32_t i = 0; i < extra_count; i++)
        for (const load_section *one = extras[i].first; one != extras[i].end; one++)
            view_scatter_entry(one->view, &one->layout, 0, 0, bytes + one->packed_at);
}
