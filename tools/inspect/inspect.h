/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.h - what a file is and what it says about itself: catalog, record, device label.
 *
 * Reads only. One thread. It is in this room because it looks into store, tiers and codecs at once.
 */
#ifndef BENCH_INSPECT_H
#define BENCH_INSPECT_H

#include "codecs/record.h"
#include "tools/inspect/basis_files.h"

#include <kvterrace/kvterrace.h>

typedef enum inspect_kind {
    INSPECT_DATABASE, /* SQLite; may be a catalog */
    INSPECT_PROFILE,  /* SQLite with a profile's mark */
    INSPECT_WATCH,    /* what a running store shows of itself: watch_read.h */
    INSPECT_RECORD,   /* one encoded entry, or one that is damaged */
    INSPECT_BASIS,    /* of the transform codec */
    INSPECT_DEVICE    /* anything else: a device file, labelled or not */
} inspect_kind;

/* Tells by the first bytes. KVT_OK; KVT_E_GONE (no such file); KVT_E_ARGUMENT (neither a regular
 * file nor a block device); KVT_E_IO. */
KVT_NODISCARD kvt_status inspect_identify(const char *path, inspect_kind *kind_out, char *message,
                                          size_t message_size);

/* Reads and verifies a record file; with bases, which may be NULL, it decodes one that needs its
 * basis, too. The other outputs are valid on KVT_OK only. KVT_OK; KVT_E_CORRUPT; KVT_E_VERSION;
 * KVT_E_MISMATCH (the basis is not among them); KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status inspect_record(const char *path, const basis_files *bases,
                                        kvt_record_info *info_out, char *message,
                                        size_t message_size);

typedef enum inspect_label_state {
    INSPECT_LABEL_BLANK,
    INSPECT_LABEL_SOUND,
    INSPECT_LABEL_FOREIGN
} inspect_label_state;

typedef struct inspect_label {
    inspect_label_state state;
    uint8_t pool[16]; /* the rest is valid when the state is sound */
    kvt_tier tier;
    uint32_t member;
    uint64_t epoch;
    uint64_t labelled_bytes; /* capacity when it was labelled */
    uint64_t capacity_bytes; /* now */
} inspect_label;

/* Reads the label at a device's head. KVT_OK and the device's statuses; KVT_E_VERSION. */
KVT_NODISCARD kvt_status inspect_device(const char *path, inspect_label *label_out, char *message,
                                        size_t message_size);

typedef struct inspect_catalog_device {
    char name[32];
    kvt_tier tier;
    uint32_t member;
    uint64_t capacity_bytes;
} inspect_catalog_device;

typedef struct inspect_entry {
    kvt_key key;
    kvt_key parent;
    bool has_parent;
    bool readable; /* false: the row is not as documented, only key and generation hold */
    uint64_t generation;
    kvt_layout layout;
    uint32_t first_position;
    kvt_variant variant;
    uint32_t tokens_kept; /* of the layout's tokens, in the record; 0 of an opaque entry */
    uint64_t record_bytes;
    uint32_t extents; /* 0 when the location cannot be read */
    uint64_t members; /* bit i: holds a part */
} inspect_entry;

/* Receivers of a catalog's rows; each may be NULL; returning false ends the walk. */
typedef struct inspect_visitor {
    void *context;
    bool (*identity)(void *context, const uint8_t pool[16], uint64_t epoch);
    bool (*device)(void *context, const inspect_catalog_device *device);
    bool (*entry)(void *context, const inspect_entry *entry);
    bool (*basis)(void *context, const basis_needed *basis); /* after the entries */
} inspect_visitor;

/* Walks a catalog. KVT_OK; the statuses of opening one (a profile is KVT_E_MISMATCH). */
KVT_NODISCARD kvt_status inspect_catalog(const char *path, const inspect_visitor *visitor,
                                         char *message, size_t message_size);

/* ---- reads every record that a catalog lists from its devices and checks it ---- */

/*
 * Verifying writes nothing: no label, no row, no record. The store of that catalog must be closed,
 * because its devices are locked. One thread calls; the pool's workers read.
 */

typedef struct verify_counts {
    uint64_t entries;
    uint64_t sound;
    uint64_t faulty;
    uint64_t bytes_read;
    uint32_t devices; /* that the catalog lists */
    uint32_t devices_faulty;
    uint32_t bases; /* beside the catalog, or missing there */
    uint32_t bases_faulty;
} verify_counts;

typedef struct verify_observer {
    void *context;
    /* A device or an entry that fails; key is NULL for a device. */
    void (*fault)(void *context, const char *device, const kvt_key *key, const char *reason);
    void (*basis)(void *context, const basis_needed *basis); /* each, sound or not */
    /* Now and then; returning false stops (KVT_E_CANCELLED). May be NULL. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
} verify_observer;

/*
 * Checks the catalog of `options` against its SSD devices, and the bases that its records need
 * against the files beside it. Faults are reported and counted, and do
 * not end the walk. KVT_OK when everything could be looked at, whatever was found; KVT_E_CONFIG (no
 * catalog, no SSD devices); KVT_E_GONE (no such catalog); KVT_E_LOCKED; KVT_E_CORRUPT,
 * KVT_E_VERSION, KVT_E_MISMATCH, KVT_E_DATABASE (the catalog); KVT_E_CANCELLED; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status verify_store(const kvt_store_options *options,
                                      const verify_observer *observer, verify_counts *counts_out,
                                      char *message, size_t message_size);

#endif
