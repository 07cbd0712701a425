/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement_note.h - what a record on SSD says about its place, for the rebuilding of a lost
 * catalog (docs/FORMAT.md, Note; docs/decisions/0012-placement-note.md).
 *
 * Thread rule: pure functions over the caller's memory.
 */
#ifndef STORE_PLACEMENT_NOTE_H
#define STORE_PLACEMENT_NOTE_H

#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>

#define PLACEMENT_NOTE_BYTES_MAX 4096u /* a header slot's: no longer note can be stored */

/* The facts in the catalog's row of a record that the record's own header lacks. */
typedef struct placement_note {
    uint8_t pool[16];
    uint64_t serial;
    kvt_key parent; /* zero without one */
    bool has_parent;
    double recompute_seconds;
    uint64_t expires_ns; /* base_calendar_ns; 0 = never */
    uint32_t tenant;
    uint32_t class_id;
    uint32_t request_tokens;
    tiers_location *location;
} placement_note;

/* Packs a note. Returns its bytes; 0 when it is longer than capacity: then nothing is written. */
size_t placement_note_pack(const placement_note *note, void *target, size_t capacity);

/* Reads the flat form and trusts no byte of it. The location is the caller's then, to be freed by
 * tiers_location_free. KVT_OK; KVT_E_VERSION (a later version); KVT_E_CORRUPT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status placement_note_unpack(const void *source, size_t bytes,
                                               placement_note *note_out);

/* Puts a note into the record that is about to be written at its location, or removes the one that
 * it carries when this one does not fit: a stale note would name another place. */
void placement_note_attach(const placement_note *note, void *record);

#endif
