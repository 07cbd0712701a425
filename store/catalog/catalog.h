/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.h - the SQLite database that lets SSD entries survive a restart.
 *
 * Opening and reading happen in the opener's thread. After catalog_start one writer thread owns the
 * connection and takes queued rows in batches; the queue functions may be called from any thread
 * and never wait for SQLite.
 */
#ifndef STORE_CATALOG_H
#define STORE_CATALOG_H

#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>

typedef struct store_catalog store_catalog;

/* One row, flat. location is a packed tiers_location. */
typedef struct catalog_row {
    kvt_key key;
    uint64_t serial;     /* of the place: two places of one key never share it */
    uint64_t generation; /* in the record's header: stays when a record is copied */
    kvt_key parent;
    bool has_parent;
    kvt_layout layout;
    const void *groups; /* group_count layouts, at any address; NULL with a count of 0 */
    uint32_t group_count;
    uint32_t first_position;
    double recompute_seconds;
    kvt_variant variant;
    uint64_t record_bytes;
    uint64_t expires_ns; /* base_calendar_ns; 0 = never */
    uint32_t tenant;
    uint32_t class_id;
    uint32_t request_tokens;
    void *location;
    size_t location_bytes;
} catalog_row;

typedef struct catalog_device {
    kvt_tier tier;
    uint32_t member;
    char name[32];
    uint64_t capacity_bytes;
} catalog_device;

enum {
    /* Never makes or changes anything, and leaves nothing beside the catalog unless another process
     * writes it or left a -wal file, when SQLite needs its -shm. Follows links. */
    CATALOG_READ = 1,
    CATALOG_FOLLOW = 2,  /* a symbolic link leads to the catalog; else it is refused */
    CATALOG_BESIDE = 8,  /* with CATALOG_READ: beside a writer that may come and go at any time. No
                           lock of ours is taken or shared, no file made, and nothing opened for
                           writing, SQLite's index included (catalog_beside.c) */
    CATALOG_WITHIN = 16, /* with CATALOG_READ: beside the writer that has it open in this process;
                            another connection, so that another thread may read by it */
    CATALOG_UNCHECKED = 32, /* catalog_check_structure is to follow, before anything changes it */
    CATALOG_LOCK = 4 /* holds the lock of a writer and looks at nothing: only catalog_place and
                           catalog_close may follow */
};

/* Opens or makes the catalog. KVT_OK; KVT_MISS (read only and absent); KVT_E_CORRUPT (it, or its
 * log); KVT_E_VERSION; KVT_E_MISMATCH (another application's database); KVT_E_LOCKED (another store
 * of this process, or another process for longer than TIERS_CLAIM_WAIT_NS, has it open for
 * writing); KVT_E_ARGUMENT (a link, or no regular file); KVT_E_GONE (no such folder);
 * KVT_E_DATABASE; KVT_E_READ_ONLY; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status catalog_open(const char *path, uint32_t flags, store_catalog **catalog_out,
                                      char *message, size_t message_size);

/* Close will remove the file if this open made it: what never served should not stay. Not once a
 * device may carry the catalog's identity. */
void catalog_discard_new(store_catalog *catalog);

/* The catalog's path, links followed. */
const char *catalog_place(const store_catalog *catalog);

/* Whether a path leads to the catalog that is open for writing. */
bool catalog_is_file(const store_catalog *catalog, const char *path);

/* How the catalog is now; waits for no batch. */
typedef struct catalog_health {
    const char *path;    /* until the catalog is closed */
    kvt_status failure;  /* of the last batch */
    int code;            /* SQLite's, extended; 0 when something else failed */
    uint64_t failing_ns; /* CLOCK_MONOTONIC: since when no batch was committed; 0 = none failed */
    bool writer_ended;   /* the writer's thread has ended: nothing is written any more */
    uint64_t damaged_ns; /* CLOCK_MONOTONIC: when its structure was found damaged; 0 = it was not */
    uint64_t log_bytes;  /* of the log beside it */
    uint64_t held_ns;    /* CLOCK_MONOTONIC: since when a reader keeps it long; 0 = none does */
} catalog_health;
void catalog_health_get(store_catalog *catalog, catalog_health *out);

/* Stops the writer after a last batch, closes. NULL allowed. */
void catalog_close(store_catalog *catalog);

/* The store's random id and epoch (0 in a new catalog). */
void catalog_identity(const store_catalog *catalog, uint8_t pool_out[16], uint64_t *epoch_out);

/* The newest epoch that labels of this catalog's devices may carry: the catalog's own, or the one
 * after it when an open has announced that, and did not come to its end. */
uint64_t catalog_opening(const store_catalog *catalog);

/* Announces durably that labels may carry this epoch. Called before any label of it is written.
 * Returns SQLite's failure as a status. */
KVT_NODISCARD kvt_status catalog_announce(store_catalog *catalog, uint64_t epoch);

/* The secret of the store's handles, drawn when the catalog was made. */
void catalog_secret(const store_catalog *catalog, uint8_t secret_out[16]);

/* Gives a catalog that this open made the id of the store whose devices it is for. Before
 * catalog_start. Returns SQLite's failure as a status. */
KVT_NODISCARD kvt_status catalog_adopt_pool(store_catalog *catalog, const uint8_t pool[16]);

/* Before catalog_start: stores the epoch and the device list durably. */
KVT_NODISCARD kvt_status catalog_set_epoch(store_catalog *catalog, uint64_t epoch,
                                           const catalog_device *devices, size_t count);

/* Calls visit for every device row / entry row (by first position, then key), until it returns
 * false. A row that cannot be read as documented is passed with location NULL. */
KVT_NODISCARD kvt_status catalog_each_device(store_catalog *catalog,
                                             bool (*visit)(void *, const catalog_device *),
                                             void *context);
KVT_NODISCARD kvt_status catalog_each_entry(store_catalog *catalog,
                                            bool (*visit)(void *, const catalog_row *),
                                            void *context);

/* The same in the order of the file, which costs no sorting. */
KVT_NODISCARD kvt_status catalog_each_entry_unsorted(store_catalog *catalog,
                                                     bool (*visit)(void *, const catalog_row *),
                                                     void *context);

/* Lets SQLite check the structure of the whole file, of a catalog that is no new one, unless it is
 * as the last close left it, which has kept its rows. KVT_OK; KVT_E_CORRUPT; states of the file.
 */
KVT_NODISCARD kvt_status catalog_check_structure(store_catalog *catalog);

/* Rows as the last close left them, in a file beside the catalog (catalog_kept.c): how many, or 0
 * when there is none that counts. catalog_each_kept visits them in the order of their places, all
 * of them sound, with location set, until visit returns false; KVT_MISS: that was not all of them,
 * and what was visited does not count: they are to be left. catalog_leave_kept gives them up, and
 * checks the catalog's structure before its rows are read: KVT_E_CORRUPT; states of the file. */
uint64_t catalog_kept_count(const store_catalog *catalog);
KVT_NODISCARD kvt_status catalog_each_kept(store_catalog *catalog,
                                           bool (*visit)(void *, const catalog_row *),
                                           void *context);
KVT_NODISCARD kvt_status catalog_leave_kept(store_catalog *catalog);

/* Checks the structure of a catalog whose open took the rows from there, a minute later and once,
 * by a connection of its own. The background's thread. */
void catalog_check_late(store_catalog *catalog);

/* Has the close keep so many rows, which keep hands over one by one, in the order of their places,
 * after the last batch: when no batch has failed, and the rows are those of the account. The
 * account is the writer's; an open adds the rows that it takes over. catalog_keep_row: false when
 * no further row is wanted. */
typedef struct catalog_keeper catalog_keeper;
void catalog_keep_at_close(store_catalog *catalog, uint64_t rows,
                           void (*keep)(void *context, catalog_keeper *keeper), void *context);
bool catalog_keep_row(catalog_keeper *keeper, const catalog_row *row);
void catalog_account(store_catalog *catalog, const kvt_key *key, uint64_t serial, bool added);

/* Calls visit for the row of a key; as there, an unsound one has no location. The transaction is as
 * short as the call. KVT_OK; KVT_MISS; states of the file. */
KVT_NODISCARD kvt_status catalog_find_entry(store_catalog *catalog, const kvt_key *key,
                                            void (*visit)(void *, const catalog_row *),
                                            void *context);

/* Whether a catalog opened with CATALOG_BESIDE is to be opened anew: another file has its name, or
 * a writer has come or gone since. What was read before a true may be torn. */
bool catalog_has_moved(const store_catalog *catalog);

/* Before catalog_start: removes rows at once, durably. Serial 0 stands for any. Every row that was
 * seen to be unsound goes with them, whether it is named or not. */
typedef struct catalog_name {
    kvt_key key;
    uint64_t serial;
} catalog_name;
KVT_NODISCARD kvt_status catalog_drop_rows(store_catalog *catalog, const catalog_name *names,
                                           size_t count);

/* Calls visit for each blob of meta whose name matches the pattern of GLOB until it returns false,
 * before catalog_start. KVT_OK; KVT_E_DATABASE and other states of the file. */
KVT_NODISCARD kvt_status catalog_each_blob(store_catalog *catalog, const char *pattern,
                                           bool (*visit)(void *, const void *bytes, size_t size),
                                           void *context);

/* The name of a basis that entries were stored with ("basis:*"), kept so that its whole hash is
 * known when the basis itself is not there. Queued at any time. KVT_OK; KVT_E_MEMORY. */
typedef struct catalog_basis {
    uint8_t hash[KVT_BASIS_HASH_BYTES];
} catalog_basis;
KVT_NODISCARD kvt_status catalog_note_basis(store_catalog *catalog, const catalog_basis *basis);

/* When uses were written last (uses.c). Of the background, then of the closer. */
typedef struct store_uses {
    uint64_t saved_ns; /* store_now_ns */
    uint64_t accesses; /* of the policy, then */
    uint32_t savings;  /* in this life */
} store_uses;

/* Figures of entries' uses ("uses:*"), in rows by number (uses.c): copied and queued at any time.
 * KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status catalog_note_uses(store_catalog *catalog, uint32_t number,
                                           const void *bytes, size_t size);

/* Starts the writer. sync is called before a batch with new rows, release once for each deleted row
 * after its commit; both in the writer's thread, under no lock. */
KVT_NODISCARD kvt_status catalog_start(store_catalog *catalog, kvt_status (*sync)(void *context),
                                       void (*release)(void *context, tiers_location *location),
                                       void *context);

/*
 * The right to delete one row later without needing memory then. Made with the row, kept by the
 * place, used up by catalog_delete or given back by catalog_ticket_free.
 */
typedef struct catalog_ticket catalog_ticket;
KVT_NODISCARD kvt_status catalog_ticket_new(const kvt_key *key, uint64_t serial,
                                            catalog_ticket **ticket_out);
void catalog_ticket_free(catalog_ticket *ticket);

/* A new row, copied with its packed location and its groups, ready to be queued without needing
 * memory then. Freed by catalog_insertion_free, or taken over by catalog_insert. KVT_OK;
 * KVT_E_MEMORY. */
typedef struct catalog_node catalog_insertion;
KVT_NODISCARD kvt_status catalog_insertion_new(const catalog_row *row,
                                               catalog_insertion **insertion_out);
void catalog_insertion_free(catalog_insertion *insertion);
void catalog_insert(store_catalog *catalog, catalog_insertion *insertion);

/* Queues the deletion of the ticket's row; location, when not NULL, goes to release after the
 * commit. Takes the ticket over. */
void catalog_delete(store_catalog *catalog, catalog_ticket *ticket, tiers_location *location);

/*
 * For a place that still has readers when its row is to go: the row is deleted at once by
 * catalog_delete without a location, and the extents follow through catalog_release, which hands
 * them to release after the commit of all that was queued before. catalog_release takes the node
 * and the location over. KVT_OK; KVT_E_MEMORY.
 */
typedef struct catalog_node catalog_later;
KVT_NODISCARD kvt_status catalog_later_new(catalog_later **later_out);
void catalog_release(store_catalog *catalog, catalog_later *later, tiers_location *location);

/* Queues a row of the device table: a device that joined while serving. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status catalog_note_device(store_catalog *catalog, const catalog_device *device);

/* A device's wear, kept by its name: read before catalog_start (zeros when there is none), queued
 * after it. KVT_OK; KVT_E_DATABASE and other states of the file; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status catalog_read_wear(store_catalog *catalog, const char *device,
                                           tiers_wear *out);
KVT_NODISCARD kvt_status catalog_note_wear(store_catalog *catalog, const char *device,
                                           const tiers_wear *wear);

/* True while deletions wait whose extents will come free; how many bytes those are. */
bool catalog_pending_release(store_catalog *catalog);
uint64_t catalog_pending_bytes(store_catalog *catalog);

/* Waits until everything queued before the call has been committed, or has failed to be. A failure
 * of a batch since the last flush is returned once, even when a later try succeeded: a device that
 * failed to sync may have lost what that batch relied on. KVT_OK; KVT_E_IO; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status catalog_flush(store_catalog *catalog);

/* As flush, for the store's own needs: what a flush has to report is left to it. */
KVT_NODISCARD kvt_status catalog_settle(store_catalog *catalog);

#endif
