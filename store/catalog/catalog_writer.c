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
#include "codecs/transform_basis.h"
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

/* A change with facts and room for so many bytes behind them, all zeros; NULL without memory. */
static catalog_node *catalog_node_new(catalog_change change, size_t bytes)
{
    catalog_node *node = calloc(1, sizeof *node + sizeof(catalog_facts) + bytes);
    if (node != NULL) node->change = change;
    return node;
}

kvt_status catalog_insertion_new(const catalog_row *row, catalog_insertion **insertion_out)
{
    const size_t group_bytes = row->group_count * sizeof row->layout;
    catalog_node *node = catalog_node_new(CATALOG_INSERTION, row->location_bytes + group_bytes);
    *insertion_out = node;
    if (node == NULL) return KVT_E_MEMORY;
    uint8_t *copies = (uint8_t *)(node->facts + 1);
    node->facts->row = *row;
    node->facts->row.location = memcpy(copies, row->location, row->location_bytes);
    if (group_bytes != 0)
        node->facts->row.groups = memcpy(copies + row->location_bytes, row->groups, group_bytes);
    return KVT_OK;
}

void catalog_insertion_free(catalog_insertion *insertion)
{
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
    (*later_out)->change = CATALOG_LATER;
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
    catalog_node *node = catalog_node_new(CATALOG_DEVICE, 0);
    if (node == NULL) return KVT_E_MEMORY;
    node->facts->device = *device;
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

/* Queues a row of meta, whose value is copied. */
static kvt_status catalog_note_meta(store_catalog *catalog, const char *name, const void *value,
                                    size_t size, bool is_text)
{
    catalog_node *node = catalog_node_new(CATALOG_META, size);
    if (node == NULL) return KVT_E_MEMORY;
    snprintf(node->facts->meta.name, sizeof node->facts->meta.name, "%s", name);
    node->facts->meta.value = memcpy(node->facts + 1, value, size);
    node->facts->meta.size = size;
    node->facts->meta.is_text = is_text;
    catalog_enqueue(catalog, node);
    return KVT_OK;
}

/* name = "wear:DEVICE"; value = "written left at", decimal: bytes ever, bytes of the day's budget
 * that are left (negative: overdrawn), nanoseconds since 1970. */
kvt_status catalog_note_wear(store_catalog *catalog, const char *device, const tiers_wear *wear)
{
    char name[48], value[96];
    snprintf(name, sizeof name, "wear:%s", device);
    snprintf(value, sizeof value, "%llu %.0f %llu", (unsigned long long)wear->written_bytes,
             wear->left_bytes, (unsigned long long)wear->at_ns);
    return catalog_note_meta(catalog, name, value, strlen(value), true);
}

/* name = "basis:" and the first five hexadecimal digits of the hash; value = the hash. */
kvt_status catalog_note_basis(store_catalog *catalog, const catalog_basis *basis)
{
    char name[16];
    snprintf(name, sizeof name, "basis:%05X", (unsigned)transform_hash_start(basis->hash));
    return catalog_note_meta(catalog, name, basis->hash, sizeof basis->hash, false);
}

kvt_status catalog_note_uses(store_catalog *catalog, uint32_t number, const void *bytes,
                             size_t size)
{
    char name[24];
    snprintf(name, sizeof name, "uses:%u", number);
    return catalog_note_meta(catalog, name, bytes, size, false);
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

/* Carries out one change inside the batch's transaction. Returns SQLite's code. */
static int catalog_apply_node(sqlite3_stmt *const statements[CATALOG_STATEMENTS],
                              const catalog_node *node)
{
    if (node->change == CATALOG_LATER) return SQLITE_OK;
    sqlite3_stmt *statement = statements[node->change];
    const catalog_facts *facts = node->facts;
    switch (node->change) {
    case CATALOG_INSERTION: catalog_bind_row(statement, &facts->row); break;
    case CATALOG_DEVICE: catalog_bind_device(statement, &facts->device); break;
    case CATALOG_META:
        sqlite3_bind_text(statement, 1, facts->meta.name, -1, SQLITE_STATIC);
        if (facts->meta.is_text)
            sqlite3_bind_text(statement, 2, facts->meta.value, (int)facts->meta.size,
                              SQLITE_STATIC);
        else
            sqlite3_bind_blob64(statement, 2, facts->meta.value, facts->meta.size, SQLITE_STATIC);
        break;
    default:
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
    static const char *const texts[CATALOG_STATEMENTS] = {
        [CATALOG_DELETION] = "DELETE FROM entry WHERE key=?1 AND serial=?2",
        [CATALOG_INSERTION] = "INSERT OR REPLACE INTO entry " CATALOG_ROW_VALUES,
        [CATALOG_DEVICE] = "INSERT OR REPLACE INTO device VALUES(?1, ?2, ?3, ?4)",
        [CATALOG_META] = "INSERT OR REPLACE INTO meta VALUES(?1, ?2)"};
    bool has_insertion = false;
    for (const catalog_node *node = batch; node != NULL; node = node->next) {
        has_insertion |= node->change == CATALOG_INSERTION;
    }
    if (has_insertion) {
        kvt_status status = catalog->sync(catalog->context);
        if (status != KVT_OK) return status;
        KILL_POINT("batch: records synced");
    }
    sqlite3_stmt *statements[CATALOG_STATEMENTS] = {NULL};
    int code = SQLITE_OK;
    for (uint32_t i = 0; i < CATALOG_STATEMENTS && code == SQLITE_OK; i++)
        code = sqlite3_prepare_v2(catalog->db, texts[i], -1, &statements[i], NULL);
    if (code == SQLITE_OK) code = sqlite3_exec(catalog->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    for (const catalog_node *node = batch; node != NULL && code == SQLITE_OK; node = node->next) {
        code = catalog_apply_node(statements, node);
    }
    KILL_POINT("batch: rows written, not committed");
    for (uint32_t i = 0; i < CATALOG_STATEMENTS; i++)
        sqlite3_finalize(statements[i]);
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

/* Frees a committed batch, handing extents back, and takes its rows into the account. */
static catalog_settled catalog_settle_batch(store_catalog *catalog, catalog_node *batch)
{
    catalog_settled settled = {0};
    while (batch != NULL) {
        catalog_node *next = batch->next;
        if (batch->change == CATALOG_DELETION)
            catalog_account(catalog, &batch->key, batch->serial, false);
        if (batch->change == CATALOG_INSERTION)
            catalog_account(catalog, &batch->facts->row.key, batch->facts->row.serial, true);
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
                            .damaged_ns = catalog->damaged_ns,
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
    if (catalog->head != NULL || catalog->failure != KVT_OK || catalog->writer_ended ||
        catalog->damaged_ns != 0)
        catalog->keep = NULL;
    if (catalog->died_in_batch) catalog->db = NULL; /* SQLite may hold a lock for ever */
    /* SQLite does so itself, unless a reader has the catalog open: the file is whole without its
     * log in either case. */
    if (catalog->running && catalog->db != NULL) catalog_carry_over(catalog);
    catalog_leave(catalog);
    pthread_cond_destroy(&catalog->done);
    pthread_cond_destroy(&catalog->wake);
    pthread_mutex_destroy(&catalog->lock);
    free(catalog);
}
