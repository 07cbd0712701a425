/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement_note.c - packs and unpacks a placement note, little-endian, as docs/FORMAT.md has it.
 */
#include "store/catalog/placement_note.h"

#include "codecs/record_note.h"

#include <math.h>
#include <string.h>

#define NOTE_VERSION    1u
#define NOTE_HAS_PARENT 1u
#define NOTE_HAS_TERMS  2u /* one of them is not 0 */
#define NOTE_FLAGS      (NOTE_HAS_PARENT | NOTE_HAS_TERMS)

/* The bytes in front of the location. */
typedef struct __attribute__((packed)) note_head {
    uint32_t version;
    uint32_t flags;
    uint8_t pool[16];
    uint64_t serial;
    uint8_t parent[32];
    double recompute_seconds;
    uint32_t location_bytes;
    uint32_t zero;
} note_head;

/* With NOTE_HAS_TERMS, between head and location. */
typedef struct __attribute__((packed)) note_terms {
    uint64_t expires_ns;
    uint32_t tenant;
    uint32_t class_id;
    uint32_t request_tokens;
    uint32_t zero;
} note_terms;

_Static_assert(sizeof(note_terms) == 24, "the note is part of the format");
_Static_assert(sizeof(note_head) == 80, "the note is part of the format");
_Static_assert(offsetof(note_head, serial) == 24, "format");
_Static_assert(offsetof(note_head, recompute_seconds) == 64, "format");

size_t placement_note_pack(const placement_note *note, void *target, size_t capacity)
{
    const note_terms terms = {.expires_ns = note->expires_ns,
                              .tenant = note->tenant,
                              .class_id = note->class_id,
                              .request_tokens = note->request_tokens};
    const bool has_terms =
        (terms.expires_ns | terms.tenant | terms.class_id | terms.request_tokens) != 0;
    const size_t before = sizeof(note_head) + (has_terms ? sizeof terms : 0);
    note_head head = {.version = NOTE_VERSION,
                      .flags = (note->has_parent ? NOTE_HAS_PARENT : 0) |
                               (has_terms ? NOTE_HAS_TERMS : 0),
                      .serial = note->serial,
                      .recompute_seconds = note->recompute_seconds};
    const size_t location_bytes = tiers_location_pack(note->location, NULL, 0);
    if (capacity < before || location_bytes > capacity - before) return 0;
    memcpy(head.pool, note->pool, sizeof head.pool);
    if (note->has_parent) memcpy(head.parent, note->parent.bytes, sizeof head.parent);
    head.location_bytes = (uint32_t)location_bytes;
    memcpy(target, &head, sizeof head);
    if (has_terms) memcpy((uint8_t *)target + sizeof head, &terms, sizeof terms);
    (void)tiers_location_pack(note->location, (uint8_t *)target + before, location_bytes);
    return before + location_bytes;
}

/* The bytes of a sound note in front of its location. */
static size_t note_bytes_before(const note_head *head)
{
    return sizeof *head + ((head->flags & NOTE_HAS_TERMS) != 0 ? sizeof(note_terms) : 0);
}

/* Whether a head, whose bytes come from a device, is one that this library writes: flags that are
 * known, numbers in range, and a length that is the one read. */
static bool note_head_sound(const note_head *head, size_t bytes)
{
    static const uint8_t no_parent[32] = {0};
    const bool has_parent = (head->flags & NOTE_HAS_PARENT) != 0;
    if (head->flags > NOTE_FLAGS || head->zero != 0) return false;
    if (!has_parent && memcmp(head->parent, no_parent, sizeof no_parent) != 0) return false;
    if (head->serial == 0 || head->serial > INT64_MAX) return false; /* as the catalog keeps it */
    const double seconds = head->recompute_seconds;
    if (!isfinite(seconds) || seconds < 0) return false;
    const size_t before = note_bytes_before(head);
    return bytes >= before && head->location_bytes == bytes - before;
}

/* Reads the terms into a note. False: a number is outside its range, as the catalog keeps it. */
static bool note_take_terms(const void *source, placement_note *note)
{
    note_terms terms;
    memcpy(&terms, source, sizeof terms);
    if (terms.expires_ns > INT64_MAX || terms.tenant >= KVT_TENANTS_MAX) return false;
    if (terms.class_id > UINT16_MAX || terms.zero != 0) return false;
    if ((terms.expires_ns | terms.tenant | terms.class_id | terms.request_tokens) == 0)
        return false;
    note->expires_ns = terms.expires_ns;
    note->tenant = terms.tenant;
    note->class_id = terms.class_id;
    note->request_tokens = terms.request_tokens;
    return true;
}

kvt_status placement_note_unpack(const void *source, size_t bytes, placement_note *note_out)
{
    note_head head;
    memset(note_out, 0, sizeof *note_out);
    if (bytes < sizeof head) return KVT_E_CORRUPT;
    memcpy(&head, source, sizeof head);
    if (head.version != NOTE_VERSION)
        return head.version > NOTE_VERSION ? KVT_E_VERSION : KVT_E_CORRUPT;
    if (!note_head_sound(&head, bytes)) return KVT_E_CORRUPT;
    const uint8_t *next = (const uint8_t *)source + sizeof head;
    if ((head.flags & NOTE_HAS_TERMS) != 0 && !note_take_terms(next, note_out))
        return KVT_E_CORRUPT;
    memcpy(note_out->pool, head.pool, sizeof head.pool);
    note_out->serial = head.serial;
    note_out->has_parent = (head.flags & NOTE_HAS_PARENT) != 0;
    memcpy(note_out->parent.bytes, head.parent, sizeof head.parent);
    note_out->recompute_seconds = head.recompute_seconds;
    return tiers_location_unpack((const uint8_t *)source + note_bytes_before(&head),
                                 head.location_bytes, &note_out->location);
}

void placement_note_attach(const placement_note *note, void *record)
{
    uint8_t bytes[PLACEMENT_NOTE_BYTES_MAX];
    const size_t length = placement_note_pack(note, bytes, sizeof bytes);
    /* Without room, or without a slot to put it into, there is none: the record is what counts. */
    (void)!record_note_set(record, bytes, length);
}
