/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_tensors.c - whether the payload of a record is tensors of one size, which placement by
 * tensor lays whole on one device each.
 *
 * Thread rule: pure over the caller's memory.
 */
#include "codecs.h"
#include "record_format.h"

/* A tensor is what a matrix stores, or where K and V of a layer share a block of 4 KiB, both. */
uint64_t codecs_tensor_bytes(const void *record, uint64_t bytes)
{
    record_parsed parsed;
    uint64_t one = 0, last = 0, sum = 0;
    if (record_parse(record, bytes, RECORD_DEPTH_HEAD, &parsed, NULL) != KVT_OK) return 0;
    const record_header *header = &parsed.header;
    if (header->plane_count != 1 || header->dtype == KVT_DTYPE_OPAQUE || parsed.slot != 0) return 0;
    for (uint32_t i = 0; i < header->segment_count; i++) {
        sum += record_segment_at(record, i).padded_bytes;
        if (sum % KVT_RECORD_ALIGN != 0) continue;
        if (one == 0) one = sum;
        if (sum - last != one) return 0;
        last = sum;
    }
    return header->payload_offset + last == header->record_bytes ? one : 0;
}
