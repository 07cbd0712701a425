/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trim.c - the ring of freed ranges, and taking one of them out of the free space for the time of
 * its trim. The trim itself is done by the worker (pool_members.c).
 */
#include "trim.h"

#include <assert.h>

/* Neighbours that are freed in order become one note, because objects are usually freed extent by
 * extent. A note may be stale by the time it is looked at. */
bool tiers_trim_note(tiers_trims *trims, tiers_range range)
{
    assert(trims->count <= TIERS_TRIM_NOTES && trims->first < TIERS_TRIM_NOTES);
    if (range.bytes == 0) return true;
    if (trims->count > 0) {
        uint32_t last = (trims->first + trims->count - 1) % TIERS_TRIM_NOTES;
        tiers_range *before = &trims->notes[last];
        if (before->offset + before->bytes == range.offset) {
            before->bytes += range.bytes;
            return true;
        }
    }
    if (trims->count == TIERS_TRIM_NOTES) return false;
    trims->notes[(trims->first + trims->count++) % TIERS_TRIM_NOTES] = range;
    return true;
}

bool tiers_trim_begin(tiers_trims *trims, tiers_space *space)
{
    assert(trims->out.bytes == 0);
    while (trims->count > 0) {
        tiers_range *note = &trims->notes[trims->first];
        tiers_range part = *note;
        if (part.bytes > TIERS_TRIM_BYTES_MAX) part.bytes = TIERS_TRIM_BYTES_MAX;
        note->offset += part.bytes;
        note->bytes -= part.bytes;
        if (note->bytes == 0) {
            trims->first = (trims->first + 1) % TIERS_TRIM_NOTES;
            trims->count--;
        }
        if (tiers_space_adopt(space, part) != KVT_OK) continue; /* in use again */
        assert(part.bytes > 0 && part.bytes <= TIERS_TRIM_BYTES_MAX);
        trims->out = part;
        return true;
    }
    return false;
}

uint64_t tiers_trim_end(tiers_trims *trims, tiers_space *space)
{
    tiers_range range = trims->out;
    if (range.bytes == 0) return 0;
    trims->out = (tiers_range){0, 0};
    tiers_space_release(space, range);
    return range.bytes;
}
