/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_note.c - header slots as blocks of their own: which of two counts, where its fields end,
 * and the note behind them. Re-entrant; no allocation.
 *
 *   slot   | fields | 0 | note bytes, u32 | 0, u32 | note | 0 ... | checksum |
 *                   ^ to a multiple of 8                  ^ header_bytes
 */
#include "record_note.h"

#include "record_format.h"

#include <assert.h>

#define NOTE_HEAD_BYTES 8u

_Static_assert(RECORD_NOTE_BLOCK_BYTES == RECORD_SLOT_BYTES, "a block is a slot");

/* ---- slots ---- */

bool record_is_zero(const uint8_t *bytes, uint64_t count)
{
    /* Compares the range with itself moved by one byte: all bytes equal the first. */
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

record_slot_state record_read_slot(const uint8_t *slot, record_header *header_out)
{
    uint64_t checksum;
    memset(header_out, 0, sizeof *header_out);
    if (record_is_zero(slot, RECORD_SLOT_BYTES)) return RECORD_SLOT_ZERO;
    if (memcmp(slot, RECORD_MAGIC, sizeof header_out->magic) != 0) return RECORD_SLOT_BROKEN;
    memcpy(&checksum, slot + RECORD_CHECKSUM_AT, sizeof checksum);
    if (checksum != checksum_of(slot, RECORD_CHECKSUM_AT)) return RECORD_SLOT_BROKEN;
    memcpy(header_out, slot, sizeof *header_out);
    return RECORD_SLOT_SOUND;
}

kvt_status record_choose_slot(const uint8_t *record, bool strict, record_header *header_out,
                              uint32_t *slot_out)
{
    record_header headers[2];
    record_slot_state a = record_read_slot(record, &headers[0]);
    /* A slot without the magic number never counts; whether it is zero matters to a strict look
     * alone, which reads all of it. */
    record_slot_state b = RECORD_SLOT_ZERO;
    if (strict || memcmp(record + RECORD_SLOT_BYTES, RECORD_MAGIC, sizeof headers[1].magic) == 0)
        b = record_read_slot(record + RECORD_SLOT_BYTES, &headers[1]);
    unsigned chosen = 0;
    if (strict && (a == RECORD_SLOT_BROKEN || b == RECORD_SLOT_BROKEN)) return KVT_E_CORRUPT;
    if (a != RECORD_SLOT_SOUND && b != RECORD_SLOT_SOUND) return KVT_E_CORRUPT;
    if (a == RECORD_SLOT_SOUND && b == RECORD_SLOT_SOUND) {
        if (headers[0].sequence == headers[1].sequence) return KVT_E_CORRUPT;
        chosen = headers[1].sequence > headers[0].sequence;
    } else {
        chosen = b == RECORD_SLOT_SOUND;
    }
    *header_out = headers[chosen];
    *slot_out = chosen;
    return KVT_OK;
}

void record_seal_slot(uint8_t *slot)
{
    uint64_t checksum = checksum_of(slot, RECORD_CHECKSUM_AT);
    memcpy(slot + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
}

/* ---- notes ---- */

/* Bytes of the slot that carry the fields of minors 0 and 1; 0: they do not fit. */
static uint64_t note_fields_end(const record_header *header, const uint8_t *slot)
{
    record_extension extension;
    const bool basis = (header->critical_flags & RECORD_CRITICAL_BASIS) != 0;
    const uint64_t name = basis ? sizeof(record_basis) : 0;
    if ((header->critical_flags & RECORD_CRITICAL_EXTENSION) == 0) return sizeof *header + name;
    memcpy(&extension, slot + RECORD_EXTENSION_AT, sizeof extension);
    if (extension.level_count > KVT_LAYERS_MAX) return 0;
    return RECORD_LEVELS_AT + extension.level_count + name;
}

kvt_status record_note_find(const record_header *header, const uint8_t *slot, uint64_t fields_end,
                            uint64_t *offset_out, uint64_t *bytes_out)
{
    const uint64_t head = codecs_align(fields_end, NOTE_HEAD_BYTES);
    if (fields_end == 0 || head + NOTE_HEAD_BYTES > RECORD_CHECKSUM_AT) return KVT_E_CORRUPT;
    const uint64_t room = RECORD_CHECKSUM_AT - head - NOTE_HEAD_BYTES;
    const uint32_t bytes = codecs_load32(slot + head);
    const bool exact = header->minor <= RECORD_MINOR;
    const uint64_t end = head + NOTE_HEAD_BYTES + bytes;
    if (bytes == 0 || bytes % NOTE_HEAD_BYTES != 0 || bytes > room) return KVT_E_CORRUPT;
    if (codecs_load32(slot + head + sizeof(uint32_t)) != 0) return KVT_E_CORRUPT;
    if (!record_is_zero(slot + fields_end, head - fields_end)) return KVT_E_CORRUPT;
    /* A later minor version may have more behind it. */
    if (exact ? header->header_bytes != end : header->header_bytes < end) return KVT_E_CORRUPT;
    *offset_out = head + NOTE_HEAD_BYTES;
    *bytes_out = bytes;
    return KVT_OK;
}

/* The slot that counts in a record whose slots are known to be sound or zero. */
static uint8_t *note_current_slot(uint8_t *record)
{
    uint8_t *second = record + RECORD_SLOT_BYTES;
    record_header headers[2];
    memcpy(&headers[0], record, sizeof headers[0]);
    memcpy(&headers[1], second, sizeof headers[1]);
    const bool a = memcmp(record, RECORD_MAGIC, sizeof headers[0].magic) == 0;
    const bool b = memcmp(second, RECORD_MAGIC, sizeof headers[1].magic) == 0;
    if (a && b) return headers[1].sequence > headers[0].sequence ? second : record;
    if (a) return record;
    return b ? second : NULL;
}

kvt_status record_note_set(void *record, const void *note, uint64_t note_bytes)
{
    assert(record != NULL && note_bytes % NOTE_HEAD_BYTES == 0);
    uint8_t *slot = note_current_slot(record);
    record_header header;
    if (slot == NULL) return KVT_E_CORRUPT;
    memcpy(&header, slot, sizeof header);
    const uint64_t end = note_fields_end(&header, slot);
    if (header.major != RECORD_MAJOR || header.minor > RECORD_MINOR || end == 0)
        return KVT_E_CORRUPT;
    const uint64_t head = codecs_align(end, NOTE_HEAD_BYTES);
    const bool extended = (header.critical_flags & RECORD_CRITICAL_EXTENSION) != 0;
    const bool fits = note_bytes <= RECORD_CHECKSUM_AT &&
                      head + NOTE_HEAD_BYTES + note_bytes <= RECORD_CHECKSUM_AT;
    const bool written = note_bytes != 0 && fits;
    /* A slot that has no note and gets none stays as it is. */
    if (!written && header.optional_flags == 0) return fits ? KVT_OK : KVT_E_SPACE;
    memset(slot + end, 0, RECORD_CHECKSUM_AT - end);
    header.minor = extended ? RECORD_MINOR_EXTENSION : 0;
    header.optional_flags = 0;
    header.header_bytes = (uint32_t)end;
    if (written) {
        header.minor = RECORD_MINOR;
        header.optional_flags = RECORD_OPTIONAL_NOTE;
        header.header_bytes = (uint32_t)(head + NOTE_HEAD_BYTES + note_bytes);
        codecs_store32(slot + head, (uint32_t)note_bytes);
        memcpy(slot + head + NOTE_HEAD_BYTES, note, note_bytes);
    }
    memcpy(slot, &header, sizeof header);
    record_seal_slot(slot);
    return fits ? KVT_OK : KVT_E_SPACE;
}

/* The note of a slot whose checksum is right. */
static kvt_status note_read(const record_header *header, const uint8_t *slot, const void **note_out,
                            uint64_t *note_bytes_out)
{
    uint64_t offset = 0;
    if (header->major != RECORD_MAJOR) return KVT_E_VERSION;
    if ((header->critical_flags & ~RECORD_CRITICAL_KNOWN) != 0) return KVT_E_VERSION;
    if ((header->optional_flags & RECORD_OPTIONAL_NOTE) == 0) return KVT_MISS;
    kvt_status status =
        record_note_find(header, slot, note_fields_end(header, slot), &offset, note_bytes_out);
    if (status == KVT_OK) *note_out = slot + offset;
    return status;
}

kvt_status record_note_of_slot(const void *slot, const void **note_out, uint64_t *note_bytes_out)
{
    record_header header;
    *note_out = NULL;
    *note_bytes_out = 0;
    if (record_read_slot(slot, &header) != RECORD_SLOT_SOUND) return KVT_E_CORRUPT;
    return note_read(&header, slot, note_out, note_bytes_out);
}

kvt_status record_note_get(const void *record, const void **note_out, uint64_t *note_bytes_out)
{
    record_header header;
    uint32_t slot = 0;
    *note_out = NULL;
    *note_bytes_out = 0;
    kvt_status status = record_choose_slot(record, false, &header, &slot);
    if (status != KVT_OK) return status;
    return note_read(&header, (const uint8_t *)record + slot * RECORD_SLOT_BYTES, note_out,
                     note_bytes_out);
}
