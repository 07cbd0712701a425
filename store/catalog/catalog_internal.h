/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_internal.h - the catalog's own object, shared by catalog.c (open, read), catalog_file.c
 * (files and locks), catalog_rows.c and catalog_writer.c (batches). No file outside the catalog
 * includes it.
 *
 * Thread rule: the opener's thread until catalog_start; afterwards as the object's comments say.
 */
#ifndef STORE_CATALOG_INTERNAL_H
#define STORE_CATALOG_INTERNAL_H

#include "store/catalog/catalog.h"
#include "store/core/staging.h"
#include "tiers/devices/file_claim.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/stat.h>

#define CATALOG_APPLICATION 0x4B565452 /* "KVTR" */
/* The one version that is read and written. */
#define CATALOG_VERSION 4
#define CATALOG_BUSY_MS 2000
/* Bytes of the log, which only a reader keeps above them. */
#define CATALOG_LOG_LIMIT "16777216"
#define CATALOG_LOG_MOST  UINT64_C(16777216)
#define CATALOG_EPOCH_MAX (INT32_MAX - 1)

#define CATALOG_ROW_VALUES                                                                         \
    "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?"  \
    "24,?25)"

/* The kinds of changes. The first four have a statement each. */
typedef enum catalog_change {
    CATALOG_DELETION = 0,
    CATALOG_INSERTION,
    CATALOG_DEVICE,
    CATALOG_META,
    CATALOG_STATEMENTS,
    CATALOG_LATER = CATALOG_STATEMENTS /* no row: extents whose row was deleted before */
} catalog_change;

/* The facts of a change that is no deletion; the bytes that they name lie behind them. */
typedef union catalog_facts {
    catalog_row row;
    catalog_device device;
    struct {
        char name[48];
        const void *value;
        size_t size;
        bool is_text;
    } meta;
} catalog_facts;

/* One queued change. Stored entries hold their deletions by the million, so these have no facts. */
typedef struct catalog_node {
    struct catalog_node *next;
    tiers_location *release; /* deletion: extents to hand back after the commit */
    kvt_key key;             /* deletion, */
    uint64_t serial;         /* of the key's row with this serial */
    catalog_change change;
    catalog_facts facts[]; /* one, or none */
} catalog_node;

/* A deletion that is allocated with its row, so that no entry stays in the catalog for want of
 * memory. */
struct catalog_ticket {
    catalog_node node;
};

/* The head of the file that keeps the rows (catalog_kept.c). */
typedef struct catalog_kept_head {
    char mark[8];
    uint8_t pool[16];
    uint64_t epoch;
    uint64_t catalog_bytes; /* of the catalog's file, */
    uint64_t changed_ns;    /* and when it was changed last */
    uint64_t rows;
    uint64_t account; /* over the keys and serials of all rows */
    uint64_t sum;     /* XXH3 of all before it */
} catalog_kept_head;
_Static_assert(sizeof(catalog_kept_head) == 72, "as docs/FORMAT.md says");

struct store_catalog {
    sqlite3 *db;
    char *path;
    const char *reason; /* why it is refused, where the status says too little; static */
    bool made;          /* this open made the file */
    bool discard;       /* and it is to go again */
    uint64_t log_bytes; /* of the log, before this open */
    dev_t device;       /* a writer's file, with the inode */
    ino_t inode;
    sqlite3_stmt *finding; /* a row by its key; NULL before the first */
    struct stat beside[2]; /* of CATALOG_BESIDE: the file and its log, when it was opened; the mode
                              of one that was absent is 0 */
    int lock_file;         /* -1: none */
    tiers_claim claim;     /* a writer's, of lock_file; a reader shares that lock */
    bool within;           /* beside a writer of this process */
    int kept_file;         /* rows as the last close left them; -1: none */
    catalog_kept_head kept;
    uint64_t check_due_ns; /* CLOCK_MONOTONIC: when its structure is to be checked; 0: it was */
    uint64_t account;      /* sum over the keys and serials of the rows in the file */
    uint64_t keep_rows;
    void (*keep)(void *context, catalog_keeper *keeper); /* at the close; NULL: nothing is kept */
    void *keep_context;
    bool unsound; /* a row was seen that fails its checksum or is out of range */
    uint8_t pool[16];
    uint8_t secret[16];
    uint64_t epoch;
    uint64_t opening; /* epoch + 1: an open has announced it, and may have been cut short */

    /* The writer: everything below is under lock, except that the batch being written belongs to
     * the writer alone. */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* work, or an end, for the writer */
    pthread_cond_t done; /* a batch has ended */
    pthread_t writer;
    bool running;
    bool stopping;
    bool writer_holds; /* the lock: for the writer's own end, which may come anywhere */
    bool writer_ended; /* before the store stopped it */
    bool died_in_batch;
    bool urgent; /* somebody waits: commit without collecting */
    catalog_node *head;
    catalog_node **tail;
    uint64_t queued;   /* changes ever queued */
    uint64_t settled;  /* changes whose batch has been committed */
    uint64_t attempts; /* batches ended, failed ones included */
    uint64_t releases_pending;
    uint64_t release_bytes; /* of them */
    kvt_status failure;     /* of the last batch; KVT_OK when it was committed */
    kvt_status unreported;  /* of a batch that failed since the last flush */
    int failure_code;       /* SQLite's, extended, of the batches that fail in a row; or 0 */
    uint64_t failing_ns;    /* CLOCK_MONOTONIC: when the first of them failed; 0 = none does */
    uint64_t damaged_ns;    /* CLOCK_MONOTONIC: when its structure was found damaged; or 0 */
    uint64_t log_tried_ns;  /* the writer's alone: when it last tried to shorten the log */
    uint64_t log_now;       /* bytes of the log after the last look */
    uint64_t log_held_ns;   /* CLOCK_MONOTONIC: since when it is above CATALOG_LOG_MOST, or 0 */
    kvt_status (*sync)(void *context);
    void (*release)(void *context, tiers_location *location);
    void *context;
};

/* SQLite's result as a status: what the outside did, not what we asked for. */
kvt_status catalog_status(int code);

/* One integer from a pragma or query; KVT_E_DATABASE when it gives no row. */
kvt_status catalog_integer(store_catalog *catalog, const char *sql, int64_t *out);

KVT_NODISCARD kvt_status catalog_exec(store_catalog *catalog, const char *sql);

/* Commits the transaction when everything in it succeeded, else rolls it back and keeps the status.
 */
KVT_NODISCARD kvt_status catalog_end(store_catalog *catalog, kvt_status status);

/* Copies the log into the database file, as far as no reader prevents it. */
void catalog_carry_over(store_catalog *catalog);

/* Makes a table for entries. */
KVT_NODISCARD kvt_status catalog_make_entries(store_catalog *catalog, const char *table);

/* Binds a row to "INSERT INTO entry " CATALOG_ROW_VALUES, its checksum included. */
void catalog_bind_row(sqlite3_stmt *statement, const catalog_row *row);

/* Resolves the path, locks, looks at the files, makes the catalog's file when it is absent, and
 * connects. Returns the statuses of catalog_open. On failure catalog->reason may say more;
 * catalog_leave ends the connection and the lock either way. */
KVT_NODISCARD kvt_status catalog_reach(store_catalog *catalog, const char *path, uint32_t flags);
void catalog_leave(store_catalog *catalog);

/* The connection of CATALOG_BESIDE (catalog_beside.c). Statuses as there. */
KVT_NODISCARD kvt_status catalog_reach_beside(store_catalog *catalog);

/* The URI of a catalog's path with parameters behind it, the caller's to free; NULL without memory.
 */
char *catalog_uri(const store_catalog *catalog, const char *parameters);

/* Looks for rows that the last close kept, before SQLite has the catalog; catalog_confirm_kept says
 * whether they are of the catalog that was opened, and checks its structure when they are not. */
void catalog_find_kept(store_catalog *catalog);
KVT_NODISCARD kvt_status catalog_confirm_kept(store_catalog *catalog);

/* Keeps the rows, once SQLite has closed a catalog whose every change was committed. */
void catalog_keep(store_catalog *catalog);

/* Whether what a row says of its entry is within its ranges; not its location. */
bool catalog_row_is_sound(const catalog_row *row);

/* Bytes of the log beside the catalog; 0 when it is absent. */
uint64_t catalog_log_bytes(const store_catalog *catalog);

/* Binds a row of the device table to "INSERT ... VALUES(?1, ?2, ?3, ?4)". */
void catalog_bind_device(sqlite3_stmt *statement, const catalog_device *device);

#endif
