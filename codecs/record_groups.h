/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_groups.h - records of entries that have several groups of layers (docs/FORMAT.md, Groups).
 *
 *   0        8192     12288                                           record_bytes
 *   +--------+--------+--------------------+--------------------+-----+
 *   | slots  | groups | record of group 0  | record of group 1  | ... |
 *   +--------+--------+--------------------+--------------------+-----+
 *
 * Each group has a whole ordinary record, with the key, generation and first position of the head,
 * so that everything about a group is what it is about an entry. kvt_record_parse, _verify,
 * _decode and _decode_parallel take these records, too: parsed, one is an opaque entry of all
 * groups' bytes; decoded, it is the groups' packed bytes, one after the other. All other calls of
 * record.h are of one group's record and return KVT_E_VERSION for the whole.
 *
 * No group drops tokens. Thread rule: re-entrant; no allocation.
 */
#ifndef CODECS_RECORD_GROUPS_H
#define CODECS_RECORD_GROUPS_H

#include "codecs/record.h"

/* Bytes before the first group's record: two slots and the table of groups. */
#define RECORD_GROUPS_HEAD_BYTES UINT64_C(12288)

/* The parts of a record of groups. The arrays have `count` members and stay the caller's. */
typedef struct record_groups_spec {
    kvt_key key;
    uint64_t generation; /* at least 1 */
    kvt_variant variant; /* what the record as a whole is called */
    uint32_t first_position;
    uint32_t count; /* 1 .. KVT_GROUPS_MAX */
    const kvt_layout *layouts;
    const kvt_variant *variants; /* of each group: `variant`, or raw or lossless */
    kvt_record_bases bases;      /* as of kvt_record_spec */
} record_groups_spec;

/* One group of a record. */
typedef struct record_group {
    kvt_layout layout;
    uint64_t offset; /* of its record, from the whole one's start */
    uint64_t bytes;
} record_group;

/* The facts in a record's head. */
typedef struct record_groups {
    uint32_t count;
    uint32_t first_position;
    kvt_key key;
    uint64_t generation;
    kvt_variant variant;
    kvt_layout layout; /* opaque, of all groups' bytes; tokens: the most of a group */
    uint64_t record_bytes;
    record_group groups[KVT_GROUPS_MAX];
} record_groups;

/*
 * The layout that stands for an entry of groups: opaque, of their bytes, with the most tokens of
 * one. KVT_OK; KVT_E_ARGUMENT: a count outside 1 .. KVT_GROUPS_MAX, a layout that is unsound or may
 * drop tokens, or more than 2^46 bytes; *layout_out is zero then.
 */
KVT_NODISCARD kvt_status record_groups_layout(const kvt_layout *layouts, uint32_t count,
                                              kvt_layout *layout_out);

/* Layers of all groups; an opaque group has none. */
uint32_t record_groups_layers(const kvt_layout *layouts, uint32_t count);

/* Layers of an entry that are wanted, which count over its groups in their order. */
typedef struct record_groups_range {
    uint32_t first;
    uint32_t end;
    bool all; /* opaque groups, which have no layers, are wanted then, too */
} record_groups_range;

/* A range from `first` on, of `count` layers, 0 for all that follow. False: the entry does not have
 * them. */
bool record_groups_range_of(const kvt_layout *layouts, uint32_t groups, uint32_t first,
                            uint32_t count, record_groups_range *range_out);

/* The layers of one group that a range has, as the group counts them; `before` is the number of
 * layers in the groups before it. False: none. A whole opaque group is 0 and 0. */
bool record_groups_part(const record_groups_range *range, const kvt_layout *layout, uint32_t before,
                        uint32_t *first_out, uint32_t *count_out);

/* Worst-case record size, and scratch for encoding and decoding with so many workers, 0 for none;
 * apart: from views that may have a matrix apart. KVT_OK; KVT_E_ARGUMENT (the spec);
 * KVT_E_UNSUPPORTED (a variant for its group's layout, or one that drops tokens). */
KVT_NODISCARD kvt_status record_groups_bound(const record_groups_spec *spec, uint32_t workers,
                                             bool apart, uint64_t *record_bytes_out,
                                             uint64_t *scratch_bytes_out);

/* Exact size of the record when every group is stored raw. As codecs_raw_record_bytes. */
KVT_NODISCARD kvt_status record_groups_raw_bytes(const kvt_layout *layouts, uint32_t count,
                                                 uint64_t *bytes_out);

/* Views of packed groups that follow each other from data on. */
void record_groups_pack(const kvt_layout *layouts, uint32_t count, void *data, kvt_view *views_out);

/* As kvt_record_encode_view, with a view for each group. KVT_RAW: every group is stored raw, and
 * the head says so. */
KVT_NODISCARD kvt_status record_groups_encode(const record_groups_spec *spec,
                                              const kvt_codec_workers *workers,
                                              const kvt_view *views, void *record,
                                              uint64_t capacity, void *scratch,
                                              uint64_t scratch_bytes, uint64_t *record_bytes_out);

/* Whether bytes that may be anything are read as a record of groups: a slot claims some. */
bool record_is_grouped(const void *record, uint64_t bytes);

/* Reads and checks the head alone, RECORD_GROUPS_HEAD_BYTES or more. KVT_OK; KVT_E_CORRUPT;
 * KVT_E_VERSION. */
KVT_NODISCARD kvt_status record_groups_open(const void *head, uint64_t bytes,
                                            record_groups *groups_out);

/* Bytes of a group's record, from its start, that hold its head in whichever variant the group may
 * have; no more than the record has. 0 for an opaque group, which is read whole. */
uint64_t record_groups_head_bytes(const record_groups *groups, uint32_t group);

/* kvt_record_decode_view of one: layouts and views have `count` members. Layers are counted over
 * the groups in their order; opaque groups have none, and are decoded when all layers are asked
 * for. */
KVT_NODISCARD kvt_status record_groups_decode_views(const void *record, uint64_t bytes,
                                                    const kvt_record_spec *expected,
                                                    const kvt_codec_workers *workers,
                                                    const kvt_layout *layouts,
                                                    const kvt_view *views, uint32_t count,
                                                    uint32_t first_layer, uint32_t layer_count,
                                                    void *scratch, uint64_t scratch_bytes);

/*
 * Makes the record of another lossy variant without the elements: each group whose codec can is
 * derived, or loses planes, as codecs_made_from says; groups that are stored exact are copied. The
 * record has been verified. Statuses and room as of kvt_record_derive; KVT_E_UNSUPPORTED also
 * when no group changes.
 */
KVT_NODISCARD kvt_status record_groups_derive(const void *record, uint64_t bytes,
                                              const kvt_record_bases *bases, kvt_variant variant,
                                              void *target, uint64_t capacity, void *scratch,
                                              uint64_t scratch_bytes, uint64_t *record_bytes_out);

#endif
