/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_note.h - bytes of the caller's in the spare room of a record's header slot.
 *
 * A slot has 4096 bytes, and its fields end early; behind them there is room for a note. Here a
 * note is so many opaque bytes: the store writes into it where the record lies
 * (store/catalog/placement_note.h), so that a lost catalog can be rebuilt. An encoder never writes
 * one, and a record without its note is the record that the encoder gave, byte for byte.
 *
 * Thread rule: re-entrant; no allocation.
 */
#ifndef CODECS_RECORD_NOTE_H
#define CODECS_RECORD_NOTE_H

#include <kvterrace/codec.h>

#define RECORD_NOTE_BLOCK_BYTES 4096u /* of a slot */

/*
 * Puts a note into the slot that counts, in place of the one that may be there, and seals the slot
 * again: one checksum over it. note_bytes 0 removes the note.
 *   record  one that was encoded or verified just now, of at least two slots: its slots' checksums
 *           are not looked at again
 * KVT_OK; KVT_E_SPACE (the note does not fit: the record has none now); KVT_E_CORRUPT (not a
 * record; nothing was written).
 */
KVT_NODISCARD kvt_status record_note_set(void *record, const void *note, uint64_t note_bytes);

/*
 * The note of a slot, which is RECORD_NOTE_BLOCK_BYTES bytes of anything. *note_out points into it;
 * its length is a multiple of 8. KVT_OK; KVT_MISS (a sound slot without a note); KVT_E_VERSION;
 * KVT_E_CORRUPT (not a slot, or damaged).
 */
KVT_NODISCARD kvt_status record_note_of_slot(const void *slot, const void **note_out,
                                             uint64_t *note_bytes_out);

/* The same of the slot that counts in a record of at least two slots. */
KVT_NODISCARD kvt_status record_note_get(const void *record, const void **note_out,
                                         uint64_t *note_bytes_out);

#endif
