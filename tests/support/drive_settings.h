/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_settings.h - what an emulated drive can be told while it runs: rates, latency, faults.
 *
 * One setting is `key=value`; several are separated by white space.
 *
 *     rate=100M         bytes per second of reads and writes together; 0 = no limit
 *     read_rate=200M    of reads alone, and
 *     write_rate=150M   of writes alone: each direction has its own limit then
 *     latency_us=80     added to every request
 *     mix=0.6           share of the rates that is lost while requests of both directions are in
 *                       the drive; 0 to 0.999
 *     chunk=64Ki        a read takes the bus for every chunk of so many bytes that it touches, from
 *                       4 KiB on; 0 = for its own bytes alone
 *     hang=1            requests are taken and not answered until hang=0
 *     eio=OFFSET+LENGTH         reads and writes that touch the range fail with EIO
 *     eio_read=, eio_write=     in one direction
 *     corrupt=OFFSET+LENGTH     reads see one bit flipped in every sector of the range
 *     torn=OFFSET+LENGTH        a write that touches the range stores its first half only, and
 *                               reports success
 *     clear=1           removes all ranges
 *
 * Numbers may end in K, M, G (powers of 1000) or Ki, Mi, Gi (of 1024). A range adds to those that
 * are there.
 *
 * Thread rule: plain values; the caller locks.
 */
#ifndef SUPPORT_DRIVE_SETTINGS_H
#define SUPPORT_DRIVE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DRIVE_RANGES_MAX = 32, DRIVE_SECTOR_BYTES = 512, DRIVE_TEXT_BYTES = 4096 };

typedef enum drive_fault {
    DRIVE_FAULT_EIO_READ = 1,
    DRIVE_FAULT_EIO_WRITE = 2,
    DRIVE_FAULT_EIO = 3, /* both */
    DRIVE_FAULT_CORRUPT = 4,
    DRIVE_FAULT_TORN = 8
} drive_fault;

typedef struct drive_range {
    uint64_t offset;
    uint64_t bytes;
    drive_fault fault;
} drive_range;

typedef struct drive_settings {
    uint64_t rate[2]; /* bytes per second of reads, of writes; 0 = no limit */
    bool shared;      /* both directions draw on rate[0] */
    bool hang;
    uint64_t latency_ns;
    uint64_t chunk_bytes;
    uint32_t mix; /* thousandths */
    uint32_t range_count;
    drive_range ranges[DRIVE_RANGES_MAX];
} drive_settings;

/* Applies a text; on a fault in it false, and nothing is changed. */
bool drive_settings_apply(drive_settings *settings, const char *text);

/* Writes the settings as a text that apply takes; returns its length. */
size_t drive_settings_print(const drive_settings *settings, char *text, size_t size);

/* Whether a range with one of the faults touches [offset, offset + bytes). */
bool drive_settings_touch(const drive_settings *settings, unsigned faults, uint64_t offset,
                          uint64_t bytes);

/* A number with its suffix, to the end of the text. */
bool drive_number_read(const char *text, uint64_t *value_out);

#endif
