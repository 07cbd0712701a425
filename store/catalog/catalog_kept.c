/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_kept.c - the rows of entries once more, in a file beside the catalog (CATALOG-rows): a
 * close writes them, and the next open reads them with one pass instead of through SQLite.
 *
 *     head     whose catalog, in which state: id, epoch, bytes, time of its last change
 *     blocks   { sum, bytes, rows } and the rows, each behind the other, at most KEPT_BLOCK bytes
 *
 * The file is a cache, and counts for the state of the catalog that its head names alone: any
 * write to the catalog, an open included, makes it void. An open removes it once it has looked at
 * it, so none outlives a crash. It is written after the last batch has been committed and SQLite
 * has closed the catalog, if what is written has the sum over keys and serials that the writer has
 * kept account of; it is not synced, because a torn one fails its sums. Whatever is wrong with it,
 * the open reads the rows from the catalog. The check of the catalog's structure, which an open
 * otherwise begins with, is then left to the background.
 *
 * Thread rule: the opener's thread, then the closer's. catalog_account: the opener's thread, then
 * the writer's.
 */
#include "base/clock.h"
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define KEPT_BLOCK    ((size_t)1 << 20)
#define KEPT_CHECK_NS UINT64_C(60000000000) /* from an open until the catalog is checked */

static const char kept_mark[8] = {'K', 'V', 'T', 'R', 'O', 'W', 'S', '1'};

typedef struct kept_block {
    uint64_t sum; /* XXH3 of the rows, seeded with the head's sum and the block's number */
    uint32_t bytes;
    uint32_t rows;
} kept_block;
_Static_assert(sizeof(kept_block) == 16, "as docs/FORMAT.md says");

enum { KEPT_PARENT = 1, KEPT_SHAPE = 2 }; /* flags: what follows a row's head */

/* A row: its head, then a shape when it differs from that of the row before in the block, the
 * parent, the layouts of groups, and the packed location. Integers and doubles as this machine has
 * them. */
typedef struct kept_row {
    kvt_key key;
    uint64_t serial;
    uint64_t generation;
    uint64_t record_bytes;
    uint64_t expires_ns;
    uint32_t first_position;
    uint32_t location_bytes;
    uint8_t flags;
    uint8_t group_count;
    uint8_t zero[6];
} kept_row;
_Static_assert(sizeof(kept_row) == 80, "as docs/FORMAT.md says");

typedef struct kept_shape {
    kvt_layout layout;
    kvt_variant variant;
    double recompute_seconds;
    uint32_t request_tokens;
    uint32_t tenant;
    uint32_t class_id;
    uint32_t zero;
} kept_shape;
_Static_assert(sizeof(kept_shape) == 56, "as docs/FORMAT.md says");

struct catalog_keeper {
    int file;
    bool failed;
    uint64_t number; /* of the block */
    uint64_t account;
    uint64_t rows;
    catalog_kept_head head;
    kept_block block;
    kept_shape shape; /* of the row before, when the block has one */
    size_t used;
    uint8_t bytes[KEPT_BLOCK];
};

/* ---- the account and the head ---- */

static uint64_t kept_account_of(const kvt_key *key, uint64_t serial)
{
    return XXH3_64bits_withSeed(key, sizeof *key, serial);
}

void catalog_account(store_catalog *catalog, const kvt_key *key, uint64_t serial, bool added)
{
    const uint64_t sum = kept_account_of(key, serial);
    catalog->account += added ? sum : -sum;
}

/* The sum of a head, over all before it. */
static uint64_t kept_sum_head(const catalog_kept_head *head)
{
    return XXH3_64bits(head, offsetof(catalog_kept_head, sum));
}

static uint64_t kept_sum_block(const catalog_kept_head *head, uint64_t number, const void *bytes,
                               size_t size)
{
    return XXH3_64bits_withSeed(bytes, size, head->sum + number);
}

/* Where the file is; the caller's to free. */
static char *kept_path(const store_catalog *catalog)
{
    char *path;
    return asprintf(&path, "%s-rows", catalog->path) >= 0 ? path : NULL;
}

/* The catalog's file now; false: it cannot be said. */
static bool kept_look(const store_catalog *catalog, uint64_t *bytes_out, uint64_t *changed_ns_out)
{
    struct stat facts;
    if (stat(catalog->path, &facts) != 0) return false;
    *bytes_out = (uint64_t)facts.st_size;
    *changed_ns_out =
        (uint64_t)facts.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)facts.st_mtim.tv_nsec;
    return true;
}

/* Transfers all bytes, or says false. */
static bool kept_transfer(int file, void *bytes, size_t size, bool writes)
{
    for (size_t done = 0; done < size;) {
        char *at = (char *)bytes + done;
        const ssize_t got = writes ? write(file, at, size - done) : read(file, at, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

/* ---- reading ---- */

void catalog_find_kept(store_catalog *catalog)
{
    uint64_t bytes, changed_ns;
    catalog_kept_head *head = &catalog->kept;
    char *path = kept_path(catalog);
    if (path == NULL) return;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat facts = {.st_size = 0};
    const bool ours = file >= 0 && fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) &&
                      kept_transfer(file, head, sizeof *head, false) &&
                      memcmp(head->mark, kept_mark, sizeof kept_mark) == 0 &&
                      head->sum == kept_sum_head(head);
    if (ours) (void)unlink(path);
    free(path);
    const bool fits = head->rows <= (uint64_t)facts.st_size / sizeof(kept_row);
    if (ours && fits && catalog->log_bytes == 0 && kept_look(catalog, &bytes, &changed_ns) &&
        head->catalog_bytes == bytes && head->changed_ns == changed_ns) {
        catalog->kept_file = file;
        return;
    }
    if (file >= 0) close(file);
}

uint64_t catalog_kept_count(const store_catalog *catalog)
{
    return catalog->kept_file >= 0 ? catalog->kept.rows : 0;
}

/* Bytes of a block that is read. */
typedef struct kept_cursor {
    uint8_t *at;
    size_t left;
} kept_cursor;

/* The next bytes, or NULL when there are not so many. */
static uint8_t *kept_next(kept_cursor *cursor, size_t bytes)
{
    uint8_t *at = cursor->at;
    if (bytes > cursor->left) return NULL;
    cursor->at += bytes;
    cursor->left -= bytes;
    return at;
}

/* Takes one row off a block; false: it is not sound. The location and the groups stay the block's.
 */
static bool kept_take_row(kept_cursor *cursor, kept_shape *shape, bool *shaped, catalog_row *row)
{
    kept_row head;
    const void *at = kept_next(cursor, sizeof head);
    if (at == NULL) return false;
    memcpy(&head, at, sizeof head);
    if ((head.flags & KEPT_SHAPE) != 0) {
        at = kept_next(cursor, sizeof *shape);
        if (at == NULL) return false;
        memcpy(shape, at, sizeof *shape);
        *shaped = true;
    }
    if (!*shaped || head.group_count > KVT_GROUPS_MAX || shape->tenant >= KVT_TENANTS_MAX ||
        shape->class_id > UINT16_MAX)
        return false;
    *row = (catalog_row){.key = head.key,
                         .serial = head.serial,
                         .generation = head.generation,
                         .has_parent = (head.flags & KEPT_PARENT) != 0,
                         .layout = shape->layout,
                         .group_count = head.group_count,
                         .first_position = head.first_position,
                         .recompute_seconds = shape->recompute_seconds,
                         .variant = shape->variant,
                         .record_bytes = head.record_bytes,
                         .expires_ns = head.expires_ns,
                         .tenant = shape->tenant,
                         .class_id = shape->class_id,
                         .request_tokens = shape->request_tokens,
                         .location_bytes = head.location_bytes};
    if (row->has_parent) {
        at = kept_next(cursor, sizeof row->parent);
        if (at == NULL) return false;
        memcpy(&row->parent, at, sizeof row->parent);
    }
    if (row->group_count != 0) {
        row->groups = kept_next(cursor, row->group_count * sizeof row->layout);
        if (row->groups == NULL) return false;
    }
    row->location = kept_next(cursor, row->location_bytes);
    return row->location != NULL && catalog_row_is_sound(row);
}

/* Reads one block and visits its rows. KVT_OK; KVT_MISS: it is not sound, or the visitor ended. */
static kvt_status kept_read_block(store_catalog *catalog, uint64_t number, uint8_t *bytes,
                                  bool (*visit)(void *, const catalog_row *), void *context,
                                  uint64_t *rows, uint64_t *account)
{
    kept_block block;
    kept_shape shape;
    bool shaped = false;
    if (!kept_transfer(catalog->kept_file, &block, sizeof block, false) ||
        block.bytes > KEPT_BLOCK || block.rows > catalog->kept.rows - *rows || block.rows == 0 ||
        !kept_transfer(catalog->kept_file, bytes, block.bytes, false) ||
        kept_sum_block(&catalog->kept, number, bytes, block.bytes) != block.sum)
        return KVT_MISS;
    kept_cursor cursor = {bytes, block.bytes};
    for (uint32_t i = 0; i < block.rows; i++) {
        catalog_row row;
        if (!kept_take_row(&cursor, &shape, &shaped, &row)) return KVT_MISS;
        *account += kept_account_of(&row.key, row.serial);
        if (!visit(context, &row)) return KVT_MISS;
    }
    *rows += block.rows;
    return cursor.left == 0 ? KVT_OK : KVT_MISS;
}

kvt_status catalog_each_kept(store_catalog *catalog, bool (*visit)(void *, const catalog_row *),
                             void *context)
{
    if (catalog->kept_file < 0) return KVT_MISS;
    uint8_t *bytes = malloc(KEPT_BLOCK);
    uint64_t rows = 0, account = 0;
    kvt_status status = bytes != NULL ? KVT_OK : KVT_MISS;
    for (uint64_t number = 0; rows < catalog->kept.rows && status == KVT_OK; number++)
        status = kept_read_block(catalog, number, bytes, visit, context, &rows, &account);
    free(bytes);
    if (status == KVT_OK && account == catalog->kept.account) {
        close(catalog->kept_file);
        catalog->kept_file = -1;
        catalog->check_due_ns = base_clock_ns() + KEPT_CHECK_NS;
        return KVT_OK;
    }
    return KVT_MISS;
}

/* ---- writing ---- */

/* Writes the block that is full, or the last one. */
static void kept_end_block(catalog_keeper *keeper)
{
    keeper->block.bytes = (uint32_t)keeper->used;
    keeper->block.sum =
        kept_sum_block(&keeper->head, keeper->number++, keeper->bytes, keeper->used);
    if (!kept_transfer(keeper->file, &keeper->block, sizeof keeper->block, true) ||
        !kept_transfer(keeper->file, keeper->bytes, keeper->used, true))
        keeper->failed = true;
    keeper->block.rows = 0;
    keeper->used = 0;
}

static void kept_give(catalog_keeper *keeper, const void *bytes, size_t size)
{
    assert(size <= KEPT_BLOCK - keeper->used);
    if (size != 0) memcpy(keeper->bytes + keeper->used, bytes, size);
    keeper->used += size;
}

bool catalog_keep_row(catalog_keeper *keeper, const catalog_row *row)
{
    const size_t group_bytes = row->group_count * sizeof row->layout;
    const size_t most = sizeof(kept_row) + sizeof(kept_shape) + sizeof row->parent + group_bytes +
                        row->location_bytes;
    const kept_shape shape = {.layout = row->layout,
                              .variant = row->variant,
                              .recompute_seconds = row->recompute_seconds,
                              .request_tokens = row->request_tokens,
                              .tenant = row->tenant,
                              .class_id = row->class_id};
    if (row->location_bytes > KEPT_BLOCK || most > KEPT_BLOCK) keeper->failed = true;
    if (keeper->failed) return false;
    if (most > KEPT_BLOCK - keeper->used) kept_end_block(keeper);
    const bool shaped =
        keeper->block.rows == 0 || memcmp(&shape, &keeper->shape, sizeof shape) != 0;
    const kept_row head = {
        .key = row->key,
        .serial = row->serial,
        .generation = row->generation,
        .record_bytes = row->record_bytes,
        .expires_ns = row->expires_ns,
        .first_position = row->first_position,
        .location_bytes = (uint32_t)row->location_bytes,
        .flags = (uint8_t)((row->has_parent ? KEPT_PARENT : 0) | (shaped ? KEPT_SHAPE : 0)),
        .group_count = (uint8_t)row->group_count};
    kept_give(keeper, &head, sizeof head);
    if (shaped) kept_give(keeper, &shape, sizeof shape);
    if (row->has_parent) kept_give(keeper, &row->parent, sizeof row->parent);
    kept_give(keeper, row->groups, group_bytes);
    kept_give(keeper, row->location, row->location_bytes);
    keeper->shape = shape;
    keeper->account += kept_account_of(&row->key, row->serial);
    keeper->block.rows++;
    keeper->rows++;
    return !keeper->failed;
}

void catalog_keep_at_close(store_catalog *catalog, uint64_t rows,
                           void (*keep)(void *context, catalog_keeper *keeper), void *context)
{
    catalog->keep_rows = rows;
    catalog->keep = rows != 0 ? keep : NULL;
    catalog->keep_context = context;
}

void catalog_keep(store_catalog *catalog)
{
    if (catalog->keep == NULL) return;
    char *path = kept_path(catalog);
    catalog_keeper *keeper = calloc(1, sizeof *keeper);
    if (path == NULL || keeper == NULL) goto out;
    catalog_kept_head *head = &keeper->head;
    memcpy(head->mark, kept_mark, sizeof head->mark);
    memcpy(head->pool, catalog->pool, sizeof head->pool);
    head->epoch = catalog->epoch;
    head->rows = catalog->keep_rows;
    head->account = catalog->account;
    if (!kept_look(catalog, &head->catalog_bytes, &head->changed_ns)) goto out;
    head->sum = kept_sum_head(head);
    /* A file of that name that an open has left is none of ours. */
    keeper->file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (keeper->file < 0) goto out;
    keeper->failed = !kept_transfer(keeper->file, head, sizeof *head, true);
    catalog->keep(catalog->keep_context, keeper);
    if (keeper->used != 0 && !keeper->failed) kept_end_block(keeper);
    keeper->failed =
        keeper->failed || keeper->rows != head->rows || keeper->account != head->account;
    if (close(keeper->file) != 0 || keeper->failed) (void)unlink(path);
out:
    free(keeper);
    free(path);
}
