/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_writer.c - the catalog's writer thread: queued rows become batches, one transaction each.
 *
 * Order inside a batch is the order of queueing, so delete-then-insert of one key ends with the
 * row. A failed batch is put back in front of the queue and tried again with the next one; the
 * extents of its deletions stay held, because their rows may still be in the file.
 *
 *     node      queued --taken by the writer--> batch --committed--> extents released, node freed
 *                  ^                              |
 *                  +----------- failed -----------+
 *
 *     queued      changes ever queued                     any thread
 *     settled     changes whose batch was committed       the writer      settled <= queued
 *     attempts    batches that ended, failed or not       the writer
 *     urgent      a thread waits for a commit             the waiter sets it, the writer clears it
 *     failure     of the last batch                       the writer
 *     unreported  of any batch since the last flush       the writer; catalog_flush clears it
 *
 * Before a batch with insertions is committed the devices are synced: a row in the file therefore
 * names a record that survives a power failure. Extents of a deletion are released after the
 * commit: a row in the file therefore never names bytes that another record overwrote.
 *
 * Thread rule: catalog->lock guards the queue and the fields above; the connection and the batch
 * being written belong to the writer thread, which holds no lock while it writes.
 */
#include "base/kill_point.h"
#include "base/thread.h"
#include "base/wait.h"
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CATALOG_COLLECT_NS                                                                         \
    10000000 /* more changes are collected so long before a commit that no thread waits for */
#define CATALOG_RETRY_NS 100000000
#define CATALOG_LOOK_NS  1000000000 /* between two tries to shorten a log that a reader holds */

kvt_status catalog_ticket_new(const kvt_key *key, uint64_t serial, catalog_ticket **ticket_out)
{
    catalog_ticket *ticket = calloc(1, sizeof *ticket);
    *ticket_out = ticket;
    if (ticket == NULL) return KVT_E_MEMORY;
    ticket->node.key = *key;
    ticket->node.serial = serial;
    return KVT_OK;
}

void catalog_ticket_free(catalog_ticket *ticket)
{
    free(ticket);
}

/* Appends a node to the queue and wakes the writer. The queue owns the node from here on. */
static void catalog_enqueue(store_catalog *catalog, catalog_node *node)
{
    assert(node->next == NULL);
    pthread_mutex_lock(&catalog->lock);
    node->next = NULL;
    *catalog->tail = node;
    catalog->tail = &node->next;
    catalog->queued++;
    if (node->release != NULL) {
        catalog->releases_pending++;
        catalog->release_bytes += node->release->bytes;
    }
    pthread_cond_signal(&catalog->wake);
    pthread_mutex_unlock(&catalog->lock);
}

/* A change with facts, all zeros; NULL without memory. */
static catalog_node *catalog_node_new(void)
{
    return calloc(1, sizeof(catalog_node) + sizeof(catalog_facts));
}

kvt_status catalog_insertion_new(const catalog_row *row, catalog_insertion **insertion_out)
{
    *insertion_out = NULL;
    catalog_node *node = catalog_node_new();
    if (node == NULL) return KVT_E_MEMORY;
    node->insertion = true;
    node->facts->row = *row;
    /* The groups lie behind the location, in one piece with it. */
    const size_t group_bytes = row->group_count * sizeof row->layout;
    uint8_t *copies = malloc(row->location_bytes + group_bytes);
    if (copies == NULL) {
        free(node);
        return KVT_E_MEMORY;
    }
    memcpy(copies, row->location, row->location_bytes);
    node->facts->row.location = copies;
    if (group_bytes != 0) {
        memcpy(copies + row->location_bytes, row->groups, group_bytes);
        node->facts->row.groups = copies + row->location_bytes;
    }
    *insertion_out = node;
    return KVT_OK;
}

void catalog_insertion_free(catalog_insertion *insertion)
{
    if (insertion == NULL) return;
    if (insertion->insertion) free(insertion->facts->row.location);
    if (insertion->is_uses) free(insertion->facts->uses.bytes);
    free(insertion);
}

void catalog_insert(store_catalog *catalog, catalog_insertion *insertion)
{
    assert(insertion != NULL);
    catalog_enqueue(catalog, insertion);
}

void catalog_delete(store_catalog *catalog, catalog_ticket *ticket, tiers_location *location)
{
    ticket->node.release = location;
    catalog_enqueue(catalog, &ticket->node);
}

kvt_status catalog_later_new(catalog_later **later_out)
{
    *later_out = calloc(1, sizeof **later_out);
    if (*later_out == NULL) return KVT_E_MEMORY;
    (*later_out)->is_later = true;
    return KVT_OK;
}

void catalog_release(store_catalog *catalog, catalog_later *later, tiers_location *location)
{
    assert(later != NULL && location != NULL);
    later->release = location;
    catalog_enqueue(catalog, later);
}

kvt_status catalog_note_device(store_catalog *catalog, const catalog_device *device)
{
    catalog_node *node = catalog_node_new();
    if (node == NULL) return KVT_E_MEMORY;
    node->is_device = true;
    node->facts->device = *device;
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

kvt_status catalog_note_wear(store_catalog *catalog, const char *device, const tiers_wear *wear)
{
    catalog_node *node = catalog_node_new();
    if (node == NULL) return KVT_E_MEMORY;
    node->is_wear = true;
    node->facts->wear = *wear;
    snprintf(node->facts->device.name, sizeof node->facts->device.name, "%s", device);
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

kvt_status catalog_note_basis(store_catalog *catalog, const catalog_basis *basis)
{
    catalog_node *node = catalog_node_new();
    if (node == NULL) return KVT_E_MEMORY;
    node->is_basis = true;
    node->facts->basis = *basis;
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

kvt_status catalog_note_uses(store_catalog *catalog, uint32_t number, const void *bytes,
                             size_t size)
{
    catalog_node *node = catalog_node_new();
    void *copy = malloc(size);
    if (node == NULL || copy == NULL) {
        free(node);
        free(copy);
        return KVT_E_MEMORY;
    }
    memcpy(copy, bytes, size);
    node->is_uses = true;
    node->facts->uses.bytes = copy;
    node->facts->uses.size = size;
    node->facts->uses.number = number;
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

bool catalog_pending_release(store_catalog *catalog)
{
    pthread_mutex_lock(&catalog->lock);
    bool pending = catalog->releases_pending > 0;
    pthread_mutex_unlock(&catalog->lock);
    return pending;
}

uint64_t catalog_pending_bytes(store_catalog *catalog)
{
    pthread_mutex_lock(&catalog->lock);
    uint64_t bytes = catalog->release_bytes;
    pthread_mutex_unlock(&catalog->lock);
    return bytes;
}

/* The statements of one batch, prepared anew for each batch. */
typedef struct catalog_statements {
    sqlite3_stmt *insertion, *deletion, *device, *meta;
} catalog_statements;

/* Carries out one change inside the batch's transaction. Returns SQLite's code. */
static int catalog_apply_node(const catalog_statements *statements, const catalog_node *node)
{
    if (node->is_later) return SQLITE_OK;
    const bool meta = node->is_wear || node->is_basis || node->is_uses;
    sqlite3_stmt *statement = node->insertion   ? statements->insertion
                              : node->is_device ? statements->device
                              : meta            ? statements->meta
                                                : statements->deletion;
    if (node->is_uses) {
        char name[24];
        snprintf(name, sizeof name, "uses:%u", node->facts->uses.number);
        sqlite3_bind_text(statement, 1, name, -1, SQLITE_TRANSIENT);
        sqlite3_bind_blob64(statement, 2, node->facts->uses.bytes, node->facts->uses.size,
                            SQLITE_STATIC);
    } else if (node->is_basis) {
        catalog_bind_basis(statement, &node->facts->basis);
    } else if (node->is_wear) {
        catalog_bind_wear(statement, node->facts->device.name, &node->facts->wear);
    } else if (node->is_device) {
        catalog_bind_device(statement, &node->facts->device);
    } else if (node->insertion) {
        catalog_bind_row(statement, &node->facts->row);
    } else {
        sqlite3_bind_blob(statement, 1, &node->key, sizeof node->key, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 2, (int64_t)node->serial);
    }
    int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

/* Writes one batch in one transaction, all of it or nothing. Devices are synced first when the
 * batch has an insertion. *code_out is SQLite's code and stays as it was when the sync failed. The
 * writer's thread, without the lock. */
static kvt_status catalog_write_batch(store_catalog *catalog, const catalog_node *batch,
                                      int *code_out)
{
    assert(batch != NULL);
    static const char insert_sql[] = "INSERT OR REPLACE INTO entry " CATALOG_ROW_VALUES;
    static const char delete_sql[] = "DELETE FROM entry WHERE key=?1 AND serial=?2";
    static const char meta_sql[] = "INSERT OR REPLACE INTO meta VALUES(?1, ?2)";
    static const char device_sql[] = "INSERT OR REPLACE INTO device VALUES(?1, ?2, ?3, ?4)";
    bool has_insertion = false;
    for (const catalog_node *node = batch; node != NULL; node = node->next) {
        has_insertion |= node->insertion;
    }
    if (has_insertion) {
        kvt_status status = catalog->sync(catalog->context);
        if (status != KVT_OK) return status;
        KILL_POINT("batch: records synced");
    }
    catalog_statements statements = {NULL, NULL, NULL, NULL};
    int code = sqlite3_prepare_v2(catalog->db, insert_sql, -1, &statements.insertion, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_prepare_v2(catalog->db, delete_sql, -1, &statements.deletion, NULL);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_prepare_v2(catalog->db, device_sql, -1, &statements.device, NULL);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_prepare_v2(catalog->db, meta_sql, -1, &statements.meta, NULL);
    }
    if (code == SQLITE_OK) code = sqlite3_exec(catalog->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    for (const catalog_node *node = batch; node != NULL && code == SQLITE_OK; node = node->next) {
        code = catalog_apply_node(&statements, node);
    }
    KILL_POINT("batch: rows written, not committed");
    sqlite3_finalize(statements.insertion);
    sqlite3_finalize(statements.deletion);
    sqlite3_finalize(statements.device);
    sqlite3_finalize(statements.meta);
    if (code == SQLITE_OK) code = sqlite3_exec(catalog->db, "COMMIT", NULL, NULL, NULL);
    KILL_POINT("batch: rows committed");
    if (code != SQLITE_OK && !sqlite3_get_autocommit(catalog->db)) {
        (void)sqlite3_exec(catalog->db, "ROLLBACK", NULL, NULL, NULL);
    }
    *code_out = code;
    return catalog_status(code);
}

/* The counts of a committed batch, for the accounts under the lock. */
typedef struct catalog_settled {
    uint64_t changes, releases, release_bytes;
} catalog_settled;

/* Frees a committed batch, handing extents back. */
static catalog_settled catalog_settle_batch(store_catalog *catalog, catalog_node *batch)
{
    catalog_settled settled = {0};
    while (batch != NULL) {
        catalog_node *next = batch->next;
        if (batch->release != NULL) {
            settled.release_bytes += batch->release->bytes;
            settled.releases++;
            catalog->release(catalog->context, batch->release);
            KILL_POINT("batch: extents released");
        }
        catalog_insertion_free(batch);
        batch = next;
        settled.changes++;
    }
    return settled;
}

/* Waits for so long, or until a thread waits for a commit, or until the catalog closes. Lock held,
 * and released while waiting. */
static void catalog_sleep(store_catalog *catalog, uint64_t nanoseconds)
{
    const uint64_t until_ns = base_clock_ns() + nanoseconds;
    while (!catalog->urgent && !catalog->stopping &&
           base_condition_wait_until(&catalog->wake, &catalog->lock, until_ns))
        continue;
}

/* Takes the lock for the writer, and notes that the writer has it: a thread that is cancelled
 * inside SQLite must know whether its cleanup handler still has to take the lock. */
static void catalog_hold(store_catalog *catalog)
{
    pthread_mutex_lock(&catalog->lock);
    catalog->writer_holds = true;
}

/* Releases the lock that catalog_hold took. */
static void catalog_let_go(store_catalog *catalog)
{
    assert(catalog->writer_holds);
    catalog->writer_holds = false;
    pthread_mutex_unlock(&catalog->lock);
}

/*
 * Shortens a log that has grown beyond its bound. Each batch is appended to the log as long as a
 * transaction of any reader sees what was before it, and SQLite begins the log anew, and cuts it,
 * only when none does. No reader is waited for. The writer's thread, without the lock, which it
 * takes for the accounts.
 */
static void catalog_shorten_log(store_catalog *catalog)
{
    const uint64_t now_ns = base_clock_ns();
    uint64_t bytes = catalog_log_bytes(catalog);
    if (bytes > CATALOG_LOG_MOST && now_ns >= catalog->log_tried_ns + CATALOG_LOOK_NS) {
        catalog->log_tried_ns = now_ns;
        (void)sqlite3_busy_timeout(catalog->db, 0);
        (void)sqlite3_wal_checkpoint_v2(catalog->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
        (void)sqlite3_busy_timeout(catalog->db, CATALOG_BUSY_MS);
        bytes = catalog_log_bytes(catalog);
    }
    catalog_hold(catalog);
    catalog->log_now = bytes;
    if (bytes <= CATALOG_LOG_MOST)
        catalog->log_held_ns = 0;
    else if (catalog->log_held_ns == 0)
        catalog->log_held_ns = now_ns;
    catalog_let_go(catalog);
}

/* Takes the whole queue as one batch and writes it without the lock. A batch that failed goes back
 * in front of the changes that were queued meanwhile, so the order of queueing stays. Lock held at
 * entry and exit. */
static void catalog_run_batch(store_catalog *catalog)
{
    catalog_node *batch = catalog->head;
    catalog_node **batch_tail = catalog->tail;
    catalog->head = NULL;
    catalog->tail = &catalog->head;
    catalog->urgent = false;
    int code = SQLITE_OK;
    catalog_let_go(catalog);
    kvt_status status = catalog_write_batch(catalog, batch, &code);
    catalog_settled settled = {0};
    if (status == KVT_OK) settled = catalog_settle_batch(catalog, batch);
    catalog_shorten_log(catalog);
    catalog_hold(catalog);
    if (status != KVT_OK) {
        *batch_tail = catalog->head;
        if (catalog->head == NULL) catalog->tail = batch_tail;
        catalog->head = batch;
        if (catalog->unreported == KVT_OK) catalog->unreported = status;
    }
    catalog->settled += settled.changes;
    catalog->releases_pending -= settled.releases;
    catalog->release_bytes -= settled.release_bytes;
    catalog->failure = status;
    catalog->failure_code = code;
    if (status == KVT_OK)
        catalog->failing_ns = 0;
    else if (catalog->failing_ns == 0)
        catalog->failing_ns = base_clock_ns();
    catalog->attempts++;
    pthread_cond_broadcast(&catalog->done);
}

/* Writes batches until the catalog closes and the queue is empty, or until a batch fails while the
 * catalog closes. Lock held at entry and exit. */
static void catalog_serve(store_catalog *catalog)
{
    for (;;) {
        while (catalog->head == NULL && !catalog->stopping) {
            if (catalog->log_held_ns == 0) {
                pthread_cond_wait(&catalog->wake, &catalog->lock);
                continue;
            }
            base_condition_wait_until(&catalog->wake, &catalog->lock,
                                      base_clock_ns() + CATALOG_LOOK_NS);
            catalog_let_go(catalog);
            catalog_shorten_log(catalog);
            catalog_hold(catalog);
        }
        if (catalog->head == NULL) break;
        if (!catalog->urgent) catalog_sleep(catalog, CATALOG_COLLECT_NS);
        catalog_run_batch(catalog);
        if (catalog->failure != KVT_OK) {
            if (catalog->stopping) break;
            catalog_sleep(catalog, CATALOG_RETRY_NS);
        }
    }
}

/* The cleanup handler of a writer that ends although the store did not stop it, by a cancellation
 * or an exit in SQLite or a device. It leaves a failure and wakes every thread that waits for a
 * batch.
 */
static void catalog_writer_ends(void *argument)
{
    store_catalog *catalog = argument;
    catalog->died_in_batch = !catalog->writer_holds;
    if (!catalog->writer_holds) catalog_hold(catalog);
    catalog->writer_ended = true;
    if (catalog->failure == KVT_OK) catalog->failure = KVT_E_DATABASE;
    if (catalog->unreported == KVT_OK) catalog->unreported = KVT_E_DATABASE;
    if (catalog->failing_ns == 0) catalog->failing_ns = base_clock_ns();
    pthread_cond_broadcast(&catalog->done);
    catalog_let_go(catalog);
}

static void *catalog_writer(void *argument)
{
    store_catalog *catalog = argument;
    pthread_cleanup_push(catalog_writer_ends, catalog);
    catalog_hold(catalog);
    catalog_serve(catalog);
    catalog_let_go(catalog);
    pthread_cleanup_pop(0);
    return NULL;
}

kvt_status catalog_start(store_catalog *catalog, kvt_status (*sync)(void *context),
                         void (*release)(void *context, tiers_location *location), void *context)
{
    assert(!catalog->running); /* an open may have queued what its first batch writes */
    catalog->sync = sync;
    catalog->release = release;
    catalog->context = context;
    if (base_thread_start(&catalog->writer, catalog_writer, catalog) != KVT_OK) return KVT_E_THREAD;
    catalog->running = true;
    return KVT_OK;
}

/* Waits until every change that was queued before the call is committed. Two attempts bound the
 * wait when the database cannot be written: the batch that may be running now, and the batch that
 * holds every change queued before the call. Lock held. */
static kvt_status catalog_wait(store_catalog *catalog)
{
    uint64_t target = catalog->queued;
    uint64_t attempts = catalog->attempts + 2;
    kvt_status status = KVT_OK;
    while (catalog->settled < target) {
        bool tried = catalog->attempts >= attempts || catalog->writer_ended;
        if (tried && catalog->failure != KVT_OK) {
            status = catalog->failure;
            break;
        }
        catalog->urgent = true;
        pthread_cond_signal(&catalog->wake);
        pthread_cond_wait(&catalog->done, &catalog->lock);
    }
    return status;
}

kvt_status catalog_settle(store_catalog *catalog)
{
    pthread_mutex_lock(&catalog->lock);
    kvt_status status = catalog_wait(catalog);
    pthread_mutex_unlock(&catalog->lock);
    return status;
}

kvt_status catalog_flush(store_catalog *catalog)
{
    pthread_mutex_lock(&catalog->lock);
    kvt_status status = catalog_wait(catalog);
    if (status == KVT_OK) status = catalog->unreported;
    catalog->unreported = KVT_OK;
    pthread_mutex_unlock(&catalog->lock);
    return status;
}

void catalog_health_get(store_catalog *catalog, catalog_health *out)
{
    pthread_mutex_lock(&catalog->lock);
    *out = (catalog_health){.path = catalog->path,
                            .failure = catalog->failure,
                            .code = catalog->failure_code,
                            .failing_ns = catalog->failing_ns,
                            .writer_ended = catalog->writer_ended,
                            .log_bytes = catalog->log_now,
                            .held_ns = catalog->log_held_ns};
    pthread_mutex_unlock(&catalog->lock);
}

void catalog_close(store_catalog *catalog)
{
    if (catalog == NULL) return;
    if (catalog->running) {
        pthread_mutex_lock(&catalog->lock);
        catalog->stopping = true;
        pthread_cond_signal(&catalog->wake);
        pthread_mutex_unlock(&catalog->lock);
        pthread_join(catalog->writer, NULL);
    }
    /* Changes that could not be committed: their extents stay held until the pool closes, because
     * the rows in the file still name them and the next open finds those rows. */
    for (catalog_node *node = catalog->head; node != NULL;) {
        catalog_node *next = node->next;
        tiers_location_free(node->release);
        catalog_insertion_free(node);
        node = next;
    }
    KILL_POINT("catalog close: writer ended");
    if (catalog->died_in_batch) catalog->db = NULL; /* SQLite may hold a lock for ever */
    catalog_leave(catalog);
    pthread_cond_destroy(&catalog->done);
    pthread_cond_destroy(&catalog->wake);
    pthread_mutex_destroy(&catalog->lock);
    free(catalog);
}
