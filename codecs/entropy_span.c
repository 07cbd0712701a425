/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_span.c - see entropy_span.h. Re-entrant.
 */
#include "entropy_span.h"

#include "codecs.h"

#include <string.h>

void entropy_make_table(const uint32_t counts[256], rans_table *table)
{
    uint32_t some[256];
    uint64_t sum = 0;
    unsigned shift = 0;
    for (unsigned s = 0; s < 256; s++) {
        sum += counts[s];
    }
    /* Shares matter, not sizes; what no longer counts is an escape then. */
    while (sum >> shift >= UINT32_MAX) {
        shift++;
    }
    for (unsigned s = 0; s < 256; s++) {
        some[s] = counts[s] >> shift;
    }
    some[0]++;
    rans_make_table(some, RANS_ESCAPE_BITS, table);
}

bool entropy_span_code(rans_target *target, uint64_t head_at, const rans_table *given,
                       const entropy_scratch *scratch, uint64_t count, uint64_t distant_count)
{
    codecs_store32(target->bytes + head_at, (uint32_t)distant_count);
    return rans_append(target, scratch->distant, distant_count * sizeof scratch->distant[0]) &&
           rans_stream_write(target, given, scratch->symbols, count, scratch->encode_table);
}

/* The bytes of all groups of a span; 0 when they are not sound. */
static uint64_t span_groups_bytes(const entropy_shape *shape, entropy_axis axis, uint32_t tokens,
                                  const rans_source *source)
{
    uint64_t total = 0;
    while (tokens > 0) {
        uint32_t part = tokens < ENTROPY_GROUP_TOKENS ? tokens : ENTROPY_GROUP_TOKENS;
        const entropy_group group = {shape, axis, part};
        uint64_t one = entropy_group_bytes(&group, source->bytes + total, source->left - total);
        if (one == 0) return 0;
        total += one;
        tokens -= part;
    }
    return total;
}

kvt_status entropy_span_open(const entropy_shape *shape, entropy_axis axis, uint32_t tokens,
                             rans_source *source, const entropy_scratch *scratch,
                             entropy_stored_span *span)
{
    const uint8_t *head = rans_take(source, ENTROPY_SPAN_HEAD_BYTES);
    if (head == NULL) return KVT_E_CORRUPT;
    span->distant_count = codecs_load32(head);
    span->group_bytes = span_groups_bytes(shape, axis, tokens, source);
    if (span->group_bytes == 0) return KVT_E_CORRUPT;
    span->groups = rans_take(source, span->group_bytes);
    span->distant = rans_take(source, span->distant_count * sizeof(int16_t));
    if (span->groups == NULL || span->distant == NULL) return KVT_E_CORRUPT;
    return rans_stream_open(&span->stream, source, (uint64_t)tokens * shape->row,
                            scratch->decode_table);
}
