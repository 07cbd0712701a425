/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.h - a new catalog for a store whose catalog is lost or damaged beyond use; other keys for
 * encrypted devices.
 *
 * Each record on SSD has a note with the facts that a catalog would have (docs/FORMAT.md, Note).
 * The devices are scanned for records, each one found is read and verified in whole, and the sound
 * ones go into a new catalog, which the next kvt_store_open takes over. No byte is written to a
 * device.
 *
 * A recovered entry has the bytes that were put under its key. A delete does not erase bytes, so a
 * deleted entry may come back; and where an entry was put again and its newer bytes are damaged,
 * the older ones may. Not recovered are entries that a crash undid before the store was opened
 * last, entries with a part on a missing device, and entries that were in HBM and DRAM alone.
 *
 * Thread rule: one call at a time for a store, while it is closed; the caller's thread calls the
 * callback.
 */
#ifndef KVTERRACE_RECOVER_H
#define KVTERRACE_RECOVER_H

#include <kvterrace/kvterrace.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of one SSD device of the configuration. */
typedef enum kvt_recover_device_state {
    KVT_RECOVER_USED = 0,      /* scanned, and its records count */
    KVT_RECOVER_MISSING = 1,   /* no such file, or it cannot be opened or read */
    KVT_RECOVER_BLANK = 2,     /* no label */
    KVT_RECOVER_FOREIGN = 3,   /* other bytes, or the label of another store */
    KVT_RECOVER_MISPLACED = 4, /* this store's, but configured in another member's place */
    KVT_RECOVER_STALE = 5,     /* it was absent when the store was opened last */
    KVT_RECOVER_FAILED = 6     /* it stopped answering during the scan */
} kvt_recover_device_state;

typedef struct kvt_recover_device {
    char name[32];
    kvt_recover_device_state state;
    uint32_t member; /* number in its tier, as its label says; 0 without a label */
    uint64_t epoch;  /* of the open that wrote its label; 0 without a label */
    uint64_t scanned_bytes;
    uint64_t unreadable_bytes;
} kvt_recover_device;

#define KVT_RECOVER_DEVICES_MAX 64u

typedef struct kvt_recover_report {
    uint32_t struct_size; /* set by the caller */
    uint32_t device_count;
    kvt_recover_device devices[KVT_RECOVER_DEVICES_MAX];
    uint8_t pool[16]; /* the store's id, as the labels have it */
    uint64_t epoch;   /* the newest of its labels */
    bool complete;    /* every configured SSD device counted, and was read in whole */
    bool written;     /* there is a new catalog */
    char kept[512];   /* with replace: where the old catalog is now; else empty */

    uint64_t scanned_bytes;
    uint64_t unreadable_bytes;
    uint64_t headers; /* header slots that are sound */
    uint64_t entries; /* recovered */
    uint64_t bytes;   /* of their records */

    /* Header slots that gave no entry, by the reason. */
    uint64_t without_note; /* of a version before notes, or the note did not fit */
    uint64_t other_store;
    uint64_t elsewhere;  /* the note names another place: a copy of a record's bytes */
    uint64_t older;      /* a newer record of the same key was recovered, or a later open of the
                            store no longer had this one */
    uint64_t overlapped; /* a newer record lies in its place, or it lies outside the devices */
    uint64_t absent;     /* a part of it is on a device that does not count */
    uint64_t damaged;    /* the record does not verify */
    uint64_t too_large;  /* for store.staging */
} kvt_recover_report;

typedef enum kvt_recover_stage {
    KVT_RECOVER_SCAN = 0,  /* done and total are bytes of devices */
    KVT_RECOVER_VERIFY = 1 /* done and total are records found */
} kvt_recover_stage;

typedef struct kvt_recover_options {
    uint32_t struct_size;
    bool replace; /* an existing catalog is kept under another name; else it is an error */
    bool dry_run; /* nothing is written, no catalog either */
    /* Called now and then; returning false stops (KVT_E_CANCELLED). May be NULL. */
    bool (*progress)(void *context, kvt_recover_stage stage, uint64_t done, uint64_t total);
    void *context;
} kvt_recover_options;

/* Fills every field of options of struct_size bytes with its default: an existing catalog is an
 * error, the new one is written, no callback. struct_size is set. options is not NULL. Any
 * thread. kvt_recover_options_init is the form for C and C++. */
KVT_API void kvt_recover_options_init_sized(kvt_recover_options *options, uint32_t struct_size);

static inline void kvt_recover_options_init(kvt_recover_options *options)
{
    kvt_recover_options_init_sized(options, (uint32_t)sizeof *options);
}

/*
 * Rebuilds the catalog that store->catalog_path names from the SSD devices of `store`. Of its other
 * settings staging_bytes alone plays a part: it bounds the size of one record and the memory for
 * records being verified. The list of records found takes 24 bytes of memory each besides.
 *   report   filled as far as the call came, whatever it returns
 *   message  one line for a person on failure
 * KVT_OK: there is a new catalog (dry_run: there would be), though report->complete may be false;
 * KVT_MISS (nothing could be recovered, nothing was written); KVT_E_ARGUMENT; KVT_EXISTS (a catalog
 * is there, and options->replace is not set); KVT_E_LOCKED (a store has a device or the catalog
 * open); KVT_E_CONFIG, KVT_E_MISMATCH (a key of a device); KVT_E_CANCELLED; KVT_E_SPACE,
 * KVT_E_READ_ONLY, KVT_E_IO, KVT_E_DATABASE (the new catalog); KVT_E_MEMORY. Blocking: reads every
 * device whole, and every record found once more.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_recover(const kvt_store_options *store,
                                                   const kvt_recover_options *options,
                                                   kvt_recover_report *report, char *message,
                                                   size_t message_size);

typedef struct kvt_rekey_report {
    uint32_t struct_size;   /* set by the caller */
    uint32_t devices;       /* encrypted ones, done */
    uint64_t changed_bytes; /* that are under their device's current key now and were not */
    uint64_t damaged_bytes; /* that no key opens, which are left as they are */
} kvt_rekey_report;

/*
 * Puts all that the encrypted devices of `store` hold under their current keys, the first that each
 * device's file or command gives, and forgets the others, which are not needed afterwards. Devices
 * without a key and those of memory are left out. A call that is cut off anywhere loses nothing,
 * and the next one goes on.
 *   progress called now and then with a device's bytes done and all; returning false stops; may be
 *            NULL. The caller's thread
 *   report   filled as far as the call came, whatever it returns
 *   message  one line for a person on failure
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_LOCKED (a store has a device open); KVT_E_CONFIG, KVT_E_MISMATCH (a
 * key, which the message names); KVT_E_GONE (a device is missing); KVT_E_CANCELLED; KVT_E_IO,
 * KVT_E_READ_ONLY; KVT_E_UNSUPPORTED (no libcrypto); KVT_E_MEMORY. Blocking: reads and writes the
 * devices once, with two syncs for each 512 KiB that change.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_rekey(const kvt_store_options *store,
                                                 bool (*progress)(void *context, const char *device,
                                                                  uint64_t done, uint64_t total),
                                                 void *context, kvt_rekey_report *report,
                                                 char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
