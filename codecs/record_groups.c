/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_groups.c - records of several groups: a head with a table of groups, then one ordinary
 * record for each. The file writes and reads the head and calls record.h for the rest; the calls
 * that take either kind are here, so that those of ordinary records know nothing of groups.
 * Re-entrant.
 */
#include "record_groups.h"

#include "record_format.h"
#include "record_reader.h"
#include "view_rows.h"

#include "base/copy.h"

#include <assert.h>

#define GROUPS_TABLE_BYTES UINT64_C(4096)

/* A row of the table of groups. */
typedef struct __attribute__((packed)) groups_row {
    kvt_layout layout;
    uint64_t offset;
    uint64_t bytes;
    uint64_t reserved;
} groups_row;

_Static_assert(sizeof(groups_row) == 48, "the table of groups is part of the format");
_Static_assert(sizeof(kvt_layout) == 24, "a layout in the table is its bytes in memory");
_Static_assert(offsetof(kvt_layout, dtype) == 6 && offsetof(kvt_layout, tokens) == 8 &&
                   offsetof(kvt_layout, tokens_may_drop) == 12 &&
                   offsetof(kvt_layout, sides) == 13 && offsetof(kvt_layout, opaque_bytes) == 16,
               "format");
_Static_assert(RECORD_GROUPS_HEAD_BYTES == RECORD_TABLE_OFFSET + GROUPS_TABLE_BYTES, "format");
_Static_assert(KVT_GROUPS_MAX * sizeof(groups_row) <= GROUPS_TABLE_BYTES, "one table of 4 KiB");

#define GROUPS_BYTES_MAX (UINT64_C(1) << 46)

/* ---- what groups add up to ---- */

kvt_status record_groups_layout(const kvt_layout *layouts, uint32_t count, kvt_layout *layout_out)
{
    kvt_layout all = {.dtype = KVT_DTYPE_OPAQUE};
    memset(layout_out, 0, sizeof *layout_out);
    if (layouts == NULL || count == 0 || count > KVT_GROUPS_MAX) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes;
        kvt_status status = kvt_layout_bytes(&layouts[i], &bytes);
        if (status != KVT_OK || layouts[i].tokens_may_drop != 0) return KVT_E_ARGUMENT;
        all.opaque_bytes += bytes; /* at most 64 times 2^46 */
        if (layouts[i].tokens > all.tokens) all.tokens = layouts[i].tokens;
    }
    if (all.opaque_bytes > GROUPS_BYTES_MAX) return KVT_E_ARGUMENT;
    *layout_out = all;
    return KVT_OK;
}

uint32_t record_groups_layers(const kvt_layout *layouts, uint32_t count)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < count; i++)
        layers += layouts[i].layers;
    return layers;
}

bool record_groups_range_of(const kvt_layout *layouts, uint32_t groups, uint32_t first,
                            uint32_t count, record_groups_range *range_out)
{
    const uint32_t layers = record_groups_layers(layouts, groups);
    if (first > layers || count > layers - first) return false;
    *range_out = (record_groups_range){.first = first,
                                       .end = count == 0 ? layers : first + count,
                                       .all = first == 0 && (count == 0 || count == layers)};
    return true;
}

bool record_groups_part(const record_groups_range *range, const kvt_layout *layout, uint32_t before,
                        uint32_t *first_out, uint32_t *count_out)
{
    const uint32_t own = layout->layers;
    const uint32_t from = range->first > before ? range->first - before : 0;
    const uint32_t to = range->end < before + own ? range->end : before + own;
    *first_out = *count_out = 0;
    if (own == 0) return range->all;
    if (from >= own || before + from >= to) return false;
    *first_out = from;
    *count_out = to - before - from;
    return true;
}

/* The spec of one group's record. */
static kvt_record_spec groups_spec_of(const record_groups_spec *spec, uint32_t group)
{
    return (kvt_record_spec){.key = spec->key,
                             .generation = spec->generation,
                             .layout = spec->layouts[group],
                             .variant = spec->variants[group],
                             .first_position = spec->first_position,
                             .bases = spec->bases};
}

/* Whether a group of a record may have this variant. */
static bool groups_variant_fits(kvt_variant whole, kvt_variant group)
{
    if (whole.codec == KVT_CODEC_RAW) return group.codec == KVT_CODEC_RAW;
    return kvt_codec_is_exact(group) || memcmp(&whole, &group, sizeof whole) == 0;
}

static kvt_status groups_check_spec(const record_groups_spec *spec, kvt_layout *layout_out)
{
    kvt_status status = record_groups_layout(spec->layouts, spec->count, layout_out);
    if (status != KVT_OK) return status;
    if (spec->generation == 0) return KVT_E_ARGUMENT;
    if (spec->variant.mode >> 8 != 0) return KVT_E_UNSUPPORTED;
    for (uint32_t i = 0; i < spec->count; i++) {
        if (spec->variants[i].mode >> 8 != 0) return KVT_E_UNSUPPORTED;
        if (!groups_variant_fits(spec->variant, spec->variants[i])) return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

kvt_status record_groups_bound(const record_groups_spec *spec, uint32_t workers, bool apart,
                               uint64_t *record_bytes_out, uint64_t *scratch_bytes_out)
{
    kvt_layout layout;
    uint64_t total = RECORD_GROUPS_HEAD_BYTES, most = 0;
    *record_bytes_out = *scratch_bytes_out = 0;
    kvt_status status = groups_check_spec(spec, &layout);
    for (uint32_t i = 0; status == KVT_OK && i < spec->count; i++) {
        const kvt_record_spec one = groups_spec_of(spec, i);
        uint64_t bytes = 0, scratch = 0;
        status = kvt_record_bound(&one, &bytes, &scratch);
        if (status == KVT_OK && apart)
            status = kvt_record_scratch_view(&one, workers != 0 ? workers : 1, &scratch);
        else if (status == KVT_OK && workers != 0)
            status = kvt_record_scratch_parallel(&one, workers, &scratch);
        total += bytes;
        if (scratch > most) most = scratch;
    }
    if (status != KVT_OK) return status;
    *record_bytes_out = total;
    *scratch_bytes_out = most;
    return KVT_OK;
}

kvt_status record_groups_raw_bytes(const kvt_layout *layouts, uint32_t count, uint64_t *bytes_out)
{
    kvt_layout layout;
    uint64_t total = RECORD_GROUPS_HEAD_BYTES;
    *bytes_out = 0;
    kvt_status status = record_groups_layout(layouts, count, &layout);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        uint64_t head, bytes = 0;
        status = codecs_raw_record_bytes(&layouts[i], &head, &bytes);
        total += bytes;
    }
    if (status == KVT_OK) *bytes_out = total;
    return status;
}

void record_groups_pack(const kvt_layout *layouts, uint32_t count, void *data, kvt_view *views_out)
{
    uint8_t *at = data;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes;
        kvt_status status = kvt_layout_bytes(&layouts[i], &bytes);
        assert(status == KVT_OK);
        (void)status;
        views_out[i] = codecs_packed_view(&layouts[i], at);
        at += bytes;
    }
}

/* ---- the head ---- */

/* The needs of a head beside its table. */
typedef struct groups_head {
    const kvt_record_spec *spec; /* key, generation, first position; the layout of all groups */
    kvt_variant variant;
    uint32_t count;
    uint32_t plane_count;
    bool v_alone; /* of a group */
    uint64_t record_bytes;
} groups_head;

/* Writes the slot of a record whose table is complete and whose head is zero otherwise. */
static void groups_write_head(uint8_t *record, const groups_head *head)
{
    const record_plan plan = {.layout = head->spec->layout,
                              .stored = head->spec->layout,
                              .source_bytes = head->spec->layout.opaque_bytes,
                              .table_bytes = GROUPS_TABLE_BYTES,
                              .payload_offset = RECORD_GROUPS_HEAD_BYTES,
                              .segment_count = head->count,
                              .plane_count = head->plane_count,
                              .grouped = true,
                              .v_alone = head->v_alone};
    const record_header_values values = {
        .spec = head->spec,
        .variant = head->variant,
        .sequence = 1,
        .payload_bytes = head->record_bytes - RECORD_GROUPS_HEAD_BYTES,
        .record_bytes = head->record_bytes,
        .table_offset = RECORD_TABLE_OFFSET,
    };
    record_write_slot(record, 0, &plan, &values);
}

/* Puts a group into the table. */
static void groups_put_row(uint8_t *record, uint32_t group, const record_group *made)
{
    groups_row row = {.layout = made->layout, .offset = made->offset, .bytes = made->bytes};
    if (row.layout.sides == 2) row.layout.sides = 0; /* one name of the two */
    memcpy(record + RECORD_TABLE_OFFSET + group * sizeof row, &row, sizeof row);
}

kvt_status record_groups_encode(const record_groups_spec *spec, const kvt_codec_workers *workers,
                                const kvt_view *views, void *record, uint64_t capacity,
                                void *scratch, uint64_t scratch_bytes, uint64_t *record_bytes_out)
{
    assert(spec != NULL && views != NULL && record != NULL && record_bytes_out != NULL);
    kvt_record_spec whole = {
        .key = spec->key, .generation = spec->generation, .first_position = spec->first_position};
    groups_head head = {.spec = &whole,
                        .variant = {.codec = KVT_CODEC_RAW},
                        .count = spec->count,
                        .plane_count = 1,
                        .record_bytes = RECORD_GROUPS_HEAD_BYTES};
    uint8_t *start = record;
    *record_bytes_out = 0;
    kvt_status status = groups_check_spec(spec, &whole.layout);
    if (status != KVT_OK) return status;
    if (capacity < RECORD_GROUPS_HEAD_BYTES) return KVT_E_SPACE;
    memset(start, 0, RECORD_GROUPS_HEAD_BYTES);
    for (uint32_t i = 0; i < spec->count; i++) {
        const kvt_record_spec one = groups_spec_of(spec, i);
        record_group made = {.layout = one.layout, .offset = head.record_bytes};
        kvt_record_info info;
        status =
            kvt_record_encode_view(&one, workers, &views[i], start + made.offset,
                                   capacity - made.offset, scratch, scratch_bytes, &made.bytes);
        if (status != KVT_OK && status != KVT_RAW) return status;
        status = kvt_record_parse(start + made.offset, made.bytes, &info);
        assert(status == KVT_OK);
        if (status != KVT_OK) return status;
        if (info.spec.variant.codec != KVT_CODEC_RAW) head.variant = spec->variant;
        if (info.plane_count > head.plane_count) head.plane_count = info.plane_count;
        if (made.layout.sides == KVT_SIDES_V) head.v_alone = true;
        groups_put_row(start, i, &made);
        head.record_bytes += made.bytes;
    }
    groups_write_head(start, &head);
    *record_bytes_out = head.record_bytes;
    return head.variant.codec == KVT_CODEC_RAW && spec->variant.codec != KVT_CODEC_RAW ? KVT_RAW
                                                                                       : KVT_OK;
}

/* ---- reading ---- */

bool record_is_grouped(const void *record, uint64_t bytes)
{
    const uint8_t *slot = record;
    if (bytes < RECORD_TABLE_OFFSET) return false;
    for (uint32_t i = 0; i < 2; i++, slot += RECORD_SLOT_BYTES) {
        uint32_t flags;
        if (memcmp(slot, RECORD_MAGIC, sizeof RECORD_MAGIC - 1) != 0) continue;
        memcpy(&flags, slot + offsetof(record_header, critical_flags), sizeof flags);
        if ((flags & RECORD_CRITICAL_GROUPS) != 0) return true;
    }
    return false;
}

/* Checks the fields of a head that do not follow from its groups. */
static kvt_status groups_check_header(const record_header *header)
{
    const kvt_codec *codec = kvt_codec_find(header->codec);
    if ((header->critical_flags & ~RECORD_CRITICAL_V_ALONE) != RECORD_CRITICAL_GROUPS)
        return KVT_E_CORRUPT;
    if (header->generation == 0 || header->layers != 0 || header->kv_heads != 0 ||
        header->head_dim != 0 || header->dtype != KVT_DTYPE_OPAQUE || header->order != 0 ||
        header->tokens_may_drop != 0 || header->mode >> 8 != 0) {
        return KVT_E_CORRUPT;
    }
    if (!record_is_zero(header->reserved, sizeof header->reserved)) return KVT_E_CORRUPT;
    if (header->segment_count == 0 || header->segment_count > KVT_GROUPS_MAX ||
        header->plane_count == 0 || header->plane_count > KVT_PLANES_MAX ||
        header->table_offset != RECORD_TABLE_OFFSET || header->table_bytes != GROUPS_TABLE_BYTES ||
        header->payload_offset != RECORD_GROUPS_HEAD_BYTES ||
        header->record_bytes % KVT_RECORD_ALIGN != 0 ||
        header->record_bytes <= RECORD_GROUPS_HEAD_BYTES ||
        header->payload_bytes != header->record_bytes - RECORD_GROUPS_HEAD_BYTES ||
        header->opaque_bytes != header->source_bytes ||
        header->stored_tokens != header->logical_tokens) {
        return KVT_E_CORRUPT;
    }
    if (UINT32_MAX - header->first_position < header->logical_tokens) return KVT_E_CORRUPT;
    return codec != NULL ? KVT_OK : KVT_E_VERSION;
}

/* Reads the table; the groups' records follow each other and end with the whole one. */
static kvt_status groups_read_table(const uint8_t *table, const record_header *header,
                                    record_groups *groups)
{
    kvt_layout layouts[KVT_GROUPS_MAX];
    uint64_t at = RECORD_GROUPS_HEAD_BYTES;
    uint32_t v_alone = 0;
    const uint64_t used = groups->count * sizeof(groups_row);
    if (checksum_of(table, GROUPS_TABLE_BYTES) != header->table_checksum) return KVT_E_CORRUPT;
    if (!record_is_zero(table + used, GROUPS_TABLE_BYTES - used)) return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < groups->count; i++) {
        groups_row row;
        memcpy(&row, table + i * sizeof row, sizeof row);
        if (row.reserved != 0 || row.layout.sides == KVT_SIDES_BOTH) return KVT_E_CORRUPT;
        if (row.layout.sides == KVT_SIDES_V) v_alone = RECORD_CRITICAL_V_ALONE;
        if (row.offset != at || row.bytes % KVT_RECORD_ALIGN != 0 ||
            row.bytes < RECORD_TABLE_OFFSET + KVT_RECORD_ALIGN ||
            row.bytes > header->record_bytes - at) {
            return KVT_E_CORRUPT;
        }
        groups->groups[i] =
            (record_group){.layout = row.layout, .offset = row.offset, .bytes = row.bytes};
        layouts[i] = row.layout;
        at += row.bytes;
    }
    if (at != header->record_bytes) return KVT_E_CORRUPT;
    if ((header->critical_flags & RECORD_CRITICAL_V_ALONE) != v_alone) return KVT_E_CORRUPT;
    if (record_groups_layout(layouts, groups->count, &groups->layout) != KVT_OK)
        return KVT_E_CORRUPT;
    return groups->layout.opaque_bytes == header->source_bytes &&
                   groups->layout.tokens == header->logical_tokens
               ? KVT_OK
               : KVT_E_CORRUPT;
}

/* Reads the head. strict: a damaged second slot is refused. */
static kvt_status groups_read_head(const uint8_t *head, uint64_t bytes, bool strict,
                                   record_groups *groups, record_header *header)
{
    const record_plan plain = {.extended = false}; /* a head has no extension */
    uint32_t slot;
    memset(groups, 0, sizeof *groups);
    if (bytes < RECORD_GROUPS_HEAD_BYTES) return KVT_E_CORRUPT;
    kvt_status status = record_choose_slot(head, strict, header, &slot);
    if (status == KVT_OK) status = record_check_version(header);
    if (status == KVT_OK) status = groups_check_header(header);
    if (status == KVT_OK)
        status = record_check_rest(header, &plain, head + slot * RECORD_SLOT_BYTES);
    if (status != KVT_OK) return status;
    groups->count = header->segment_count;
    groups->first_position = header->first_position;
    memcpy(&groups->key, header->key, sizeof groups->key);
    groups->generation = header->generation;
    groups->variant = (kvt_variant){header->codec, header->mode, header->rate};
    groups->record_bytes = header->record_bytes;
    return groups_read_table(head + RECORD_TABLE_OFFSET, header, groups);
}

kvt_status record_groups_open(const void *head, uint64_t bytes, record_groups *groups_out)
{
    record_header header;
    return groups_read_head(head, bytes, false, groups_out, &header);
}

uint64_t record_groups_head_bytes(const record_groups *groups, uint32_t group)
{
    const record_group *row = &groups->groups[group];
    const kvt_variant may[] = {groups->variant,
                               {.codec = KVT_CODEC_RAW},
                               {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_FAST},
                               {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE}};
    uint64_t most = 0;
    if (row->layout.dtype == KVT_DTYPE_OPAQUE) return 0;
    for (uint32_t i = 0; i < sizeof may / sizeof may[0]; i++) {
        const uint64_t bytes = codecs_head_bytes(&row->layout, may[i]);
        if (bytes > most) most = bytes;
    }
    return most < row->bytes ? most : row->bytes;
}

/* Whether a group's record is the one that head and table promise. */
static bool groups_record_fits(const record_groups *groups, uint32_t group,
                               const record_parsed *parsed, const kvt_record_info *info)
{
    const record_group *row = &groups->groups[group];
    const kvt_record_spec *spec = &info->spec;
    return memcmp(&spec->key, &groups->key, sizeof spec->key) == 0 &&
           spec->generation == groups->generation &&
           spec->first_position == groups->first_position && info->record_bytes == row->bytes &&
           memcmp(&spec->layout, &row->layout, sizeof spec->layout) == 0 &&
           spec->variant.mode >> 8 == 0 && groups_variant_fits(groups->variant, spec->variant) &&
           (parsed->header.optional_flags & RECORD_OPTIONAL_NOTE) == 0;
}

/* Parses the record of one group, and verifies it where asked. */
static kvt_status groups_parse_one(const uint8_t *record, const record_groups *groups,
                                   uint32_t group, bool verify, kvt_record_info *info)
{
    record_parsed parsed;
    const record_group *row = &groups->groups[group];
    if (record_is_grouped(record + row->offset, row->bytes)) return KVT_E_CORRUPT;
    record += row->offset;
    kvt_status status = verify ? record_verify(record, row->bytes, &parsed, info)
                               : record_parse(record, row->bytes, RECORD_DEPTH_LOAD, &parsed, info);
    if (status != KVT_OK) return status;
    return groups_record_fits(groups, group, &parsed, info) ? KVT_OK : KVT_E_CORRUPT;
}

/* Adds a group's facts to those of the whole; elements_out counts those of all groups. */
static void groups_add_info(kvt_record_info *info, const kvt_record_info *one, double *elements)
{
    info->payload_bytes += one->payload_bytes;
    info->segment_count += one->segment_count;
    info->raw_segments += one->raw_segments;
    info->decoded_bytes += one->decoded_bytes;
    if (one->plane_count > info->plane_count) info->plane_count = one->plane_count;
    if (one->scratch_bytes > info->scratch_bytes) info->scratch_bytes = one->scratch_bytes;
    if (one->basis_span != 0) { /* groups that are not exact have one variant, and so one basis */
        memcpy(info->basis, one->basis, sizeof info->basis);
        info->basis_span = one->basis_span;
    }
    *elements += (double)(one->source_bytes / kvt_dtype_bytes(one->spec.layout.dtype));
}

/* Opens a whole record: its head, and all bytes are there. */
static kvt_status groups_open_whole(const uint8_t *record, uint64_t bytes, bool strict,
                                    record_groups *groups, record_header *header)
{
    kvt_status status = groups_read_head(record, bytes, strict, groups, header);
    if (status == KVT_OK && groups->record_bytes > bytes) return KVT_E_CORRUPT;
    return status;
}

/* kvt_record_parse and kvt_record_verify of a record of groups. */
static kvt_status groups_parse(const void *record, uint64_t bytes, bool verify,
                               kvt_record_info *info_out)
{
    record_groups groups;
    record_header header;
    double elements = 0;
    bool coded = false;
    memset(info_out, 0, sizeof *info_out);
    kvt_status status = groups_open_whole(record, bytes, verify, &groups, &header);
    if (status != KVT_OK) return status;
    kvt_record_info info = {.spec = {.key = groups.key,
                                     .generation = groups.generation,
                                     .layout = groups.layout,
                                     .variant = groups.variant,
                                     .first_position = groups.first_position},
                            .source_bytes = groups.layout.opaque_bytes,
                            .record_bytes = groups.record_bytes,
                            .stored_tokens = groups.layout.tokens,
                            .head_bytes = RECORD_GROUPS_HEAD_BYTES,
                            .group_count = groups.count};
    for (uint32_t i = 0; i < groups.count; i++) {
        kvt_record_info one;
        status = groups_parse_one(record, &groups, i, verify, &one);
        if (status != KVT_OK) return status;
        coded = coded || one.spec.variant.codec != KVT_CODEC_RAW;
        groups_add_info(&info, &one, &elements);
    }
    /* A record without an encoded group calls itself raw, and the other way round. */
    if (coded != (groups.variant.codec != KVT_CODEC_RAW)) return KVT_E_CORRUPT;
    if (info.plane_count != header.plane_count) return KVT_E_CORRUPT;
    if (!coded) info.raw_segments = 0;
    info.bits_per_element = (double)info.payload_bytes * 8.0 / elements;
    info.physical_bits_per_element = (double)info.record_bytes * 8.0 / elements;
    *info_out = info;
    return KVT_OK;
}

kvt_status kvt_record_parse(const void *record, uint64_t bytes, kvt_record_info *info_out)
{
    record_parsed parsed;
    assert(record != NULL && info_out != NULL);
    if (record_is_grouped(record, bytes)) return groups_parse(record, bytes, false, info_out);
    return record_parse(record, bytes, RECORD_DEPTH_LOAD, &parsed, info_out);
}

kvt_status kvt_record_verify(const void *record, uint64_t bytes, kvt_record_info *info_out)
{
    record_parsed parsed;
    assert(record != NULL && info_out != NULL);
    if (record_is_grouped(record, bytes)) return groups_parse(record, bytes, true, info_out);
    return record_verify(record, bytes, &parsed, info_out);
}

/* kvt_record_damage of a record without groups; false: it is sound. */
static bool groups_find_damage(const void *record, uint64_t bytes, uint64_t *offset_out,
                               uint64_t *bytes_out)
{
    record_parsed parsed;
    kvt_record_info info;
    *offset_out = 0;
    *bytes_out = bytes < RECORD_TABLE_OFFSET ? bytes : RECORD_TABLE_OFFSET;
    if (record_parse(record, bytes, RECORD_DEPTH_STRICT, &parsed, &info) != KVT_OK) return true;
    for (uint32_t i = 0; i < info.segment_count; i++) {
        record_segment segment;
        memcpy(&segment, parsed.table + (uint64_t)i * sizeof segment, sizeof segment);
        if (record_segment_check(record, &segment) == KVT_OK) continue;
        *offset_out = segment.offset;
        *bytes_out = segment.padded_bytes;
        return true;
    }
    return false;
}

void kvt_record_damage(const void *record, uint64_t bytes, uint64_t *offset_out,
                       uint64_t *bytes_out)
{
    record_groups groups;
    record_header header;
    if (!record_is_grouped(record, bytes)) {
        (void)groups_find_damage(record, bytes, offset_out, bytes_out);
        return;
    }
    if (groups_open_whole(record, bytes, true, &groups, &header) == KVT_OK) {
        for (uint32_t i = 0; i < groups.count; i++) {
            const record_group *row = &groups.groups[i];
            if (!groups_find_damage((const uint8_t *)record + row->offset, row->bytes, offset_out,
                                    bytes_out))
                continue;
            *offset_out += row->offset;
            return;
        }
    }
    *offset_out = 0;
    *bytes_out = bytes < RECORD_GROUPS_HEAD_BYTES ? bytes : RECORD_GROUPS_HEAD_BYTES;
}

/* ---- decoding ---- */

/* Opens a record that must be the expected one. */
static kvt_status groups_open_expected(const void *record, uint64_t bytes,
                                       const kvt_record_spec *expected, record_groups *groups)
{
    record_header header;
    kvt_status status = groups_open_whole(record, bytes, false, groups, &header);
    if (status != KVT_OK || expected == NULL) return status;
    const bool same = memcmp(&expected->key, &groups->key, sizeof expected->key) == 0 &&
                      expected->generation == groups->generation;
    return same ? KVT_OK : KVT_E_MISMATCH;
}

/* Whether two layouts are one but for their order, and the two names of two sides. */
static bool groups_same_layout(const kvt_layout *a, const kvt_layout *b)
{
    return a->layers == b->layers && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->dtype == b->dtype && a->tokens == b->tokens && codecs_same_sides(a, b) &&
           a->opaque_bytes == b->opaque_bytes;
}

/* Where values go. */
typedef struct groups_decoder {
    const uint8_t *record;
    const record_groups *groups;
    const kvt_record_bases *bases; /* or NULL */
    const kvt_codec_workers *workers;
    void *scratch;
    uint64_t scratch_bytes;
} groups_decoder;

/* Decodes layers of one group; a count of 0: all from the first one on. */
static kvt_status groups_decode_one(const groups_decoder *decoder, uint32_t group,
                                    const kvt_layout *layout, const kvt_view *view, uint32_t first,
                                    uint32_t count)
{
    const record_groups *groups = decoder->groups;
    const record_group *row = &groups->groups[group];
    kvt_record_spec expected = {.key = groups->key, .generation = groups->generation};
    if (decoder->bases != NULL) expected.bases = *decoder->bases;
    kvt_record_info info;
    kvt_status status = groups_parse_one(decoder->record, groups, group, false, &info);
    if (status != KVT_OK) return status;
    return kvt_record_decode_view(decoder->record + row->offset, row->bytes, &expected,
                                  decoder->workers, layout, view, first, count, decoder->scratch,
                                  decoder->scratch_bytes);
}

/* kvt_record_decode_parallel of a record of groups. */
static kvt_status groups_decode(const void *record, uint64_t bytes, const kvt_record_spec *expected,
                                const kvt_codec_workers *workers, void *target,
                                uint64_t target_bytes, void *scratch, uint64_t scratch_bytes)
{
    record_groups groups;
    uint8_t *at = target;
    kvt_status status = groups_open_expected(record, bytes, expected, &groups);
    if (status != KVT_OK) return status;
    if (target_bytes != groups.layout.opaque_bytes) return KVT_E_SPACE;
    const groups_decoder decoder = {record,  &groups, expected != NULL ? &expected->bases : NULL,
                                    workers, scratch, scratch_bytes};
    for (uint32_t i = 0; status == KVT_OK && i < groups.count; i++) {
        const kvt_layout *layout = &groups.groups[i].layout;
        kvt_view view;
        uint64_t size;
        record_groups_pack(layout, 1, at, &view);
        status = kvt_layout_bytes(layout, &size);
        if (status == KVT_OK) status = groups_decode_one(&decoder, i, layout, &view, 0, 0);
        at += size;
    }
    return status;
}

kvt_status kvt_record_decode_parallel(const void *record, uint64_t bytes,
                                      const kvt_record_spec *expected,
                                      const kvt_codec_workers *workers, void *target,
                                      uint64_t target_bytes, void *scratch, uint64_t scratch_bytes)
{
    assert(record != NULL && target != NULL && (uintptr_t)scratch % 64 == 0);
    assert(workers == NULL || (workers->count > 0 && workers->run != NULL));
    if (record_is_grouped(record, bytes))
        return groups_decode(record, bytes, expected, workers, target, target_bytes, scratch,
                             scratch_bytes);
    return record_decode_packed(record, bytes, expected, workers, target, target_bytes, scratch,
                                scratch_bytes);
}

kvt_status kvt_record_decode(const void *record, uint64_t bytes, const kvt_record_spec *expected,
                             void *target, uint64_t target_bytes, void *scratch,
                             uint64_t scratch_bytes)
{
    return kvt_record_decode_parallel(record, bytes, expected, NULL, target, target_bytes, scratch,
                                      scratch_bytes);
}

kvt_status record_groups_decode_views(const void *record, uint64_t bytes,
                                      const kvt_record_spec *expected,
                                      const kvt_codec_workers *workers, const kvt_layout *layouts,
                                      const kvt_view *views, uint32_t count, uint32_t first_layer,
                                      uint32_t layer_count, void *scratch, uint64_t scratch_bytes)
{
    record_groups groups;
    kvt_status status = groups_open_expected(record, bytes, expected, &groups);
    if (status != KVT_OK) return status;
    if (groups.count != count) return KVT_E_SPACE;
    for (uint32_t i = 0; i < count; i++)
        if (!groups_same_layout(&groups.groups[i].layout, &layouts[i])) return KVT_E_SPACE;
    record_groups_range range;
    if (!record_groups_range_of(layouts, count, first_layer, layer_count, &range))
        return KVT_E_ARGUMENT;
    const groups_decoder decoder = {record,  &groups, expected != NULL ? &expected->bases : NULL,
                                    workers, scratch, scratch_bytes};
    uint32_t before = 0; /* layers of the groups before this one */
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        uint32_t from, own;
        if (record_groups_part(&range, &layouts[i], before, &from, &own))
            status = groups_decode_one(&decoder, i, &layouts[i], &views[i], from, own);
        before += layouts[i].layers;
    }
    return status;
}

/* ---- another variant ---- */

/* Makes the record of one group; sets *changed when it is another one than before. */
static kvt_status groups_derive_one(const uint8_t *from, uint64_t bytes,
                                    const kvt_record_info *info, const kvt_record_bases *bases,
                                    kvt_variant variant, uint8_t *to, uint64_t capacity,
                                    void *scratch, uint64_t scratch_bytes, uint64_t *bytes_out,
                                    bool *changed)
{
    kvt_record_drop drop;
    kvt_status status;
    const bool exact = kvt_codec_is_exact(info->spec.variant);
    const codecs_way way = exact ? CODECS_WAY_NONE : codecs_made_from(info->spec.variant, variant);
    *bytes_out = bytes;
    *changed = *changed || !exact;
    if (way == CODECS_WAY_DERIVE)
        return kvt_record_derive(from, bytes, bases, variant, to, capacity, scratch, scratch_bytes,
                                 bytes_out);
    if (!exact && way != CODECS_WAY_DROP) return KVT_E_UNSUPPORTED;
    if (bytes > capacity) return KVT_E_SPACE;
    base_copy(to, from, bytes);
    if (exact) return KVT_OK;
    status = kvt_record_drop_planes(to, bytes, variant, &drop);
    if (status == KVT_OK) *bytes_out = drop.record_bytes;
    return status;
}

kvt_status record_groups_derive(const void *record, uint64_t bytes, const kvt_record_bases *bases,
                                kvt_variant variant, void *target, uint64_t capacity, void *scratch,
                                uint64_t scratch_bytes, uint64_t *record_bytes_out)
{
    record_groups groups;
    record_header header;
    bool changed = false;
    uint8_t *start = target;
    *record_bytes_out = 0;
    kvt_status status = groups_open_whole(record, bytes, false, &groups, &header);
    if (status != KVT_OK) return status;
    if (variant.mode >> 8 != 0) return KVT_E_ARGUMENT;
    if (capacity < RECORD_GROUPS_HEAD_BYTES) return KVT_E_SPACE;
    const kvt_record_spec whole = {.key = groups.key,
                                   .generation = groups.generation,
                                   .layout = groups.layout,
                                   .first_position = groups.first_position};
    groups_head head = {.spec = &whole,
                        .variant = variant,
                        .count = groups.count,
                        .plane_count = 1,
                        .record_bytes = RECORD_GROUPS_HEAD_BYTES};
    memset(start, 0, RECORD_GROUPS_HEAD_BYTES);
    for (uint32_t i = 0; i < groups.count; i++) {
        const record_group *row = &groups.groups[i];
        record_group made = {.layout = row->layout, .offset = head.record_bytes};
        kvt_record_info info;
        status = groups_parse_one(record, &groups, i, false, &info);
        if (status == KVT_OK)
            status = groups_derive_one((const uint8_t *)record + row->offset, row->bytes, &info,
                                       bases, variant, start + made.offset, capacity - made.offset,
                                       scratch, scratch_bytes, &made.bytes, &changed);
        if (status == KVT_OK) status = kvt_record_parse(start + made.offset, made.bytes, &info);
        if (status != KVT_OK) return status;
        if (info.plane_count > head.plane_count) head.plane_count = info.plane_count;
        groups_put_row(start, i, &made);
        head.record_bytes += made.bytes;
    }
    if (!changed) return KVT_E_UNSUPPORTED;
    groups_write_head(start, &head);
    *record_bytes_out = head.record_bytes;
    return KVT_OK;
}
