/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_signature.c - the table of marks and the search for them; see device_signature.h.
 *
 * Sources: the on-disk format descriptions of each system; Linux md(4) for the places of its
 * superblocks; UEFI 2.10, 5.3 for the backup partition table.
 */
#include "device_signature.h"

#include <string.h>

/* One mark and its place. at + bytes lies inside one block of TIERS_SIGNATURE_BYTES. */
typedef struct signature_place {
    uint64_t block;    /* byte offset of the block that holds the mark: from the start ... */
    uint64_t from_end; /* ... or, if not 0, back from the end rounded down to this */
    uint32_t at;       /* of the mark in the block */
    uint32_t bytes;
    char mark[9];
} signature_place;

#define KIB UINT64_C(1024)

/* clang-format off */
static const signature_place signature_places[] = {
    {64 * KIB, 0, 64, 8, "_BHRfS_M"},              /* btrfs */
    {64 * KIB, 0, 52, 8, "ReIsErFs"},              /* reiserfs */
    {64 * KIB, 0, 52, 8, "ReIsEr2F"},
    {32 * KIB, 0, 0, 4, "JFS1"},
    {32 * KIB, 0, 1, 5, "CD001"},                  /* ISO 9660 */
    {128 * KIB, 0, 0, 4, "\x0c\xb1\xba"},          /* ZFS, the first uberblock; ends in a zero */
    {4 * KIB, 512, 3584, 8, "EFI PART"},           /* backup GPT, sectors of 512 bytes ... */
    {4 * KIB, 4096, 0, 8, "EFI PART"},             /* ... and of 4 KiB */
    {64 * KIB, 65536, 0, 4, "\xfc\x4e\x2b\xa9"},   /* md 0.90 */
    {8 * KIB, 4096, 0, 4, "\xfc\x4e\x2b\xa9"},     /* md 1.0 */
};
/* clang-format on */

/* A place outside the drive, or off its alignment, carries no mark. drive_bytes is the whole
 * drive's, because marks at the end are counted from there. */
static bool signature_matches(kvt_device *device, void (*run)(kvt_device *, kvt_io *, uint32_t),
                              uint64_t drive_bytes, const signature_place *place, uint8_t *block)
{
    uint64_t offset = place->block;
    if (place->from_end != 0) {
        uint64_t end = drive_bytes / place->from_end * place->from_end;
        if (end < offset) return false;
        offset = end - offset;
    }
    if (offset % device->facts.align_bytes != 0 || offset > drive_bytes ||
        drive_bytes - offset < TIERS_SIGNATURE_BYTES)
        return false;
    kvt_io io = {
        .kind = KVT_IO_READ, .bytes = TIERS_SIGNATURE_BYTES, .offset = offset, .buffer = block};
    tiers_io_begin(&io, 0);
    run(device, &io, 0);
    return io.status == KVT_OK && memcmp(block + place->at, place->mark, place->bytes) == 0;
}

bool tiers_signature_found(kvt_device *device, void (*run)(kvt_device *, kvt_io *, uint32_t),
                           uint64_t drive_bytes, void *block)
{
    for (size_t i = 0; i < sizeof signature_places / sizeof signature_places[0]; i++) {
        if (signature_matches(device, run, drive_bytes, &signature_places[i], block)) return true;
    }
    return false;
}
