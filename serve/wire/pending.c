/* SPDX-License-Identifier: Apache-2.0 */
/* pending.c - places in a list of free ones; a number is the place and how often it was used. */
#include "serve/wire/pending.h"

#include <assert.h>
#include <stdlib.h>

kvt_status wire_pending_init(wire_pending *pending, uint32_t places)
{
    assert(base_ring_is_size(places));
    *pending = (wire_pending){.place_count = places};
    pending->places = calloc(places, sizeof *pending->places);
    if (pending->places == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < places; i++)
        pending->places[i] = (wire_pending_place){.number = places + i, .next_free = i + 1};
    return KVT_OK;
}

void wire_pending_free(wire_pending *pending)
{
    free(pending->places);
    *pending = (wire_pending){0};
}

kvt_status wire_pending_open(wire_pending *pending, wire_request_kind kind, uint32_t argument_bytes,
                             uint64_t *number_out)
{
    assert(kind >= WIRE_GET && kind < WIRE_REQUEST_KINDS);
    if (pending->first_free == pending->place_count) return KVT_BUSY;
    wire_pending_place *place = &pending->places[pending->first_free];
    assert(place->kind == 0);
    pending->first_free = place->next_free;
    pending->open++;
    place->kind = (uint16_t)kind;
    place->argument_bytes = argument_bytes;
    *number_out = place->number;
    return KVT_OK;
}

kvt_status wire_pending_close(wire_pending *pending, const wire_completion *completion,
                              uint32_t *place_out)
{
    const uint32_t index = (uint32_t)(completion->number & (pending->place_count - 1));
    wire_pending_place *place = &pending->places[index];
    if (place->kind == 0 || place->number != completion->number) return KVT_E_CORRUPT;
    if (place->kind != completion->kind) return KVT_E_CORRUPT;
    if (completion->answer_bytes > place->argument_bytes) return KVT_E_CORRUPT;
    assert(pending->open > 0);
    place->kind = 0;
    place->number += pending->place_count;
    place->next_free = pending->first_free;
    pending->first_free = index;
    pending->open--;
    *place_out = index;
    return KVT_OK;
}
