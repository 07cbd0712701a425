/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.h - a new catalog for a store whose catalog is lost or damaged beyond use.
 *
 * Records on SSD carry what a catalog knows of them (docs/FORMAT.md, Note). The devices are scanned
 * for them, each record found is read and verified in whole, and what is sound goes into a new
 * catalog, which the next kvt_open takes over. No byte is written to a device.
 *
 * What comes back is what was put under its key. Bytes are not erased by a delete, so an entry that
 * was deleted may come back, and so may an older state of one that was put again and whose newer
 * bytes are damaged. What a crash undid before the store was opened last does not come back, nor
 * what lies on a missing device, nor what was in HBM and DRAM alone.
 *
 * Thread rule: one call at a time for a store, while it is closed; the callback is called by the
 * caller's thread.
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
    KVT_RECOVER_STALE = 5,     /* it was away when the store was opened last */
    KVT_RECOVER_FAILED = 6     /* it stopped answering during the scan */
} kvt_recover_device_state;

typedef struct kvt_recover_device {
    char name[32];
    kvt_recover_device_state state;
    uint32_t member; /* its label's; with a label */
    uint64_t epoch;  /* the same */
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
    uint64_t older;      /* a newer record of the same key was recovered, or the store was opened
                            since and did not have this one any more */
    uint64_t overlapped; /* a newer record has its place, or it lies outside the devices */
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
    bool replace; /* a catalog that is there is kept under another name; else it is an error */
    bool dry_run; /* nothing is written, no catalog either */
    /* Now and then; returning false stops (KVT_E_CANCELLED). May be NULL. */
    bool (*progress)(void *context, kvt_recover_stage stage, uint64_t done, uint64_t total);
    void *context;
} kvt_recover_options;

/* Fills every field of options of struct_size bytes with its default: an existing catalog is an
 * error, the new one is written, no progress is told. struct_size is set. options is not NULL. Any
 * thread. kvt_recover_options_init is the form for C and C++. */
KVT_API void kvt_recover_options_init_sized(kvt_recover_options *options, uint32_t struct_size);

static inline void kvt_recover_options_init(kvt_recover_options *options)
{
    kvt_recover_options_init_sized(options, (uint32_t)sizeof *options);
}

/*
 * Rebuilds the catalog that store->catalog_path names from the SSD devices of `store`, whose other
 * settings play no part but store->staging_bytes: it bounds the size of one record and the memory
 * for records being verified. What was found needs 24 bytes of memory a record besides.
 *   report   filled as far as the call came, whatever it returns
 *   message  one line for a person on failure
 * KVT_OK: there is a new catalog (dry_run: there would be), though report->complete may be false;
 * KVT_MISS (nothing could be recovered, nothing was written); KVT_E_ARGUMENT; KVT_EXISTS (a catalog
 * is there, and options->replace is not set); KVT_E_LOCKED (a store has a device or the catalog
 * open); KVT_E_CANCELLED; KVT_E_SPACE, KVT_E_READ_ONLY, KVT_E_IO, KVT_E_DATABASE (the new catalog);
 * KVT_E_MEMORY. Blocking: reads every device whole, and every record found once more.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_recover(const kvt_store_options *store,
                                                   const kvt_recover_options *options,
                                                   kvt_recover_report *report, char *message,
                                                   size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
