/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_stored.c - see record_stored.h. A segment's bytes are looked at for its checksum alone.
 * Re-entrant; no allocation.
 */
#include "codecs/record_stored.h"
#include "record_reader.h"

typedef struct record_listing {
    kvt_load_segment *segments;
    uint32_t capacity;
    uint32_t count;
} record_listing;

static void record_list_segment(void *context, record_segment *segment)
{
    record_listing *list = context;
    if (list->count < list->capacity)
        list->segments[list->count] = (kvt_load_segment){.offset = segment->offset,
                                                         .bytes = segment->stored_bytes,
                                                         .kind = segment->kind,
                                                         .side = segment->side,
                                                         .plane = segment->plane};
    list->count++;
}

kvt_status kvt_record_head_segments(const kvt_record_head *head, uint32_t layer,
                                    kvt_load_segment *segments, uint32_t capacity,
                                    uint32_t *count_out)
{
    record_listing list = {.segments = segments, .capacity = capacity};
    *count_out = 0;
    if (!record_has_layers(&head->plan.layout, layer, 1)) return KVT_E_ARGUMENT;
    for (uint32_t side = 0; side < kvt_layout_sides(&head->plan.layout); side++) {
        record_matrix found;
        record_find_matrix(&head->plan, record_head_table(head), &head->sections, layer,
                           (kvt_side)side, &found);
        record_each_segment(&found, record_list_segment, &list);
    }
    if (list.count > capacity) return KVT_E_SPACE;
    *count_out = list.count;
    return KVT_OK;
}

typedef struct record_verdict {
    const void *payload;
    kvt_status status;
} record_verdict;

static void record_judge_segment(void *context, record_segment *segment)
{
    record_verdict *verdict = context;
    if (verdict->status == KVT_OK)
        verdict->status = record_segment_check(verdict->payload, segment);
}

kvt_status kvt_record_head_verify(const kvt_record_head *head, uint32_t layer, uint32_t layer_count,
                                  const void *payload, const kvt_record_range *ranges,
                                  uint32_t count)
{
    const record_source source = {.payload = payload,
                                  .plan = &head->plan,
                                  .table = record_head_table(head),
                                  .sections = &head->sections,
                                  .ranges = ranges,
                                  .range_count = count};
    const uint32_t sides = kvt_layout_sides(&head->plan.layout);
    record_verdict verdict = {source.payload, KVT_OK};
    for (uint32_t i = sides * layer; i < sides * (layer + layer_count); i++) {
        record_matrix found;
        if (!record_source_find(&source, i / sides, (kvt_side)(i % sides), &found))
            return KVT_E_CORRUPT;
        record_each_segment(&found, record_judge_segment, &verdict);
    }
    return verdict.status;
}
