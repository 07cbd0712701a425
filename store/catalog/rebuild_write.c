/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild_write.c - the new catalog: made beside its place under another name, and named when
 * whole.
 *
 *     CATALOG.recovering     the draft; one that an interrupted rebuilding left is made anew
 *     CATALOG.damaged-N      the catalog of before, with its log; never removed here
 *
 * Thread rule: the caller's thread.
 */
#include "store/catalog/rebuild.h"

#include "tiers/devices/file_claim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITE_ROWS_QUEUED 4096u

static const char *const write_suffixes[] = {"", "-wal", "-shm", "-lock"};
enum { WRITE_BESIDE = sizeof write_suffixes / sizeof write_suffixes[0], WRITE_KEPT = 3 };

/* Whether a file is there. Without memory the answer is yes, so that nothing is overwritten. */
static bool write_exists(const char *path, const char *suffix)
{
    char *name = NULL;
    if (asprintf(&name, "%s%s", path, suffix) < 0) return true;
    bool there = access(name, F_OK) == 0;
    free(name);
    return there;
}

/* Whether a catalog or its log has this name. */
static bool write_taken(const char *path)
{
    return write_exists(path, "") || write_exists(path, "-wal");
}

kvt_status rebuild_hold_place(rebuild_state *state)
{
    const uint32_t follow = state->store->follow_symlinks ? CATALOG_FOLLOW : 0;
    kvt_status status = catalog_open(state->store->durability.catalog_path, CATALOG_LOCK | follow,
                                     &state->held, state->message, state->message_size);
    if (status != KVT_OK || state->options->replace) return status;
    if (!write_taken(catalog_place(state->held))) return KVT_OK;
    snprintf(state->message, state->message_size,
             "catalog %s: there is one, or its log (-wal); --replace keeps it under another name",
             state->store->durability.catalog_path);
    return KVT_EXISTS;
}

/* Removes a draft with the files beside it. */
static void write_remove(const char *path)
{
    for (uint32_t i = 0; i < WRITE_BESIDE; i++) {
        char *name = NULL;
        if (asprintf(&name, "%s%s", path, write_suffixes[i]) < 0) return;
        (void)unlink(name);
        free(name);
    }
}

/* The draft's writer syncs no device before a batch. */
static kvt_status write_sync(void *context)
{
    (void)context;
    return KVT_OK; /* the records lie on their devices already */
}

/* The draft's writer frees a location; no pool takes extents back. */
static void write_release(void *context, tiers_location *location)
{
    (void)context;
    tiers_location_free(location);
}

kvt_status rebuild_draft_open(rebuild_state *state)
{
    kvt_recover_report *report = state->report;
    catalog_device rows[TIERS_MEMBERS_MAX];
    size_t count = 0;
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < state->member_count; i++) {
        tiers_member_stats stats;
        if ((state->used >> i & 1) == 0) continue;
        if (tiers_pool_member(state->pool, i, &stats) != KVT_OK) continue;
        rows[count].tier = KVT_TIER_SSD;
        rows[count].member = i;
        rows[count].capacity_bytes = stats.facts.capacity_bytes;
        snprintf(rows[count].name, sizeof rows[count].name, "%s", report->devices[i].name);
        count++;
    }
    if (asprintf(&state->draft_path, "%s.recovering", catalog_place(state->held)) < 0) {
        state->draft_path = NULL;
        return KVT_E_MEMORY;
    }
    write_remove(state->draft_path);
    kvt_status status =
        catalog_open(state->draft_path, 0, &state->draft, state->message, state->message_size);
    if (status != KVT_OK) return status;
    status = catalog_adopt_pool(state->draft, report->pool);
    /* An open accepts labels of its catalog's epoch, and of the one after it when that was
     * announced. */
    const uint64_t epoch = (state->behind & state->used) != 0 ? report->epoch - 1 : report->epoch;
    if (status == KVT_OK) status = catalog_set_epoch(state->draft, epoch, rows, count);
    if (status == KVT_OK && epoch != report->epoch)
        status = catalog_announce(state->draft, report->epoch);
    if (status == KVT_OK) status = catalog_start(state->draft, write_sync, write_release, NULL);
    return status;
}

kvt_status rebuild_add_row(rebuild_state *state, const catalog_row *row)
{
    catalog_insertion *insertion = NULL;
    kvt_status status = catalog_insertion_new(row, &insertion);
    if (status != KVT_OK) return status;
    catalog_insert(state->draft, insertion);
    return state->report->entries % WRITE_ROWS_QUEUED == 0 ? catalog_flush(state->draft) : KVT_OK;
}

void rebuild_discard(rebuild_state *state)
{
    catalog_close(state->draft);
    state->draft = NULL;
    if (state->draft_path != NULL) write_remove(state->draft_path);
    free(state->draft_path);
    state->draft_path = NULL;
    catalog_close(state->held);
    state->held = NULL;
}

/* Renames the present catalog first, and then the files beside it. A crash in between leaves a log
 * without its catalog, which every open refuses; the other order would leave a catalog without its
 * log, which would pass for an older state. */
static kvt_status write_set_aside(rebuild_state *state)
{
    const char *path = catalog_place(state->held);
    char *kept = NULL;
    for (uint32_t number = 1; kept == NULL; number++) {
        if (asprintf(&kept, "%s.damaged-%u", path, number) < 0) return KVT_E_MEMORY;
        if (!write_taken(kept)) break;
        free(kept);
        kept = NULL;
    }
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < WRITE_KEPT && status == KVT_OK; i++) {
        char *from = NULL, *to = NULL;
        bool named = asprintf(&from, "%s%s", path, write_suffixes[i]) >= 0 &&
                     asprintf(&to, "%s%s", kept, write_suffixes[i]) >= 0;
        if (!named) status = KVT_E_MEMORY;
        if (named && rename(from, to) != 0 && errno != ENOENT) status = KVT_E_IO;
        free(from);
        free(to);
    }
    snprintf(state->report->kept, sizeof state->report->kept, "%s", kept);
    free(kept);
    return status;
}

kvt_status rebuild_publish(rebuild_state *state)
{
    const char *path = catalog_place(state->held);
    kvt_status status = catalog_flush(state->draft);
    if (status == KVT_OK) {
        catalog_close(state->draft); /* carries its log over */
        state->draft = NULL;
        if (write_exists(state->draft_path, "-wal")) status = KVT_E_DATABASE;
    }
    if (status == KVT_OK && write_taken(path)) status = write_set_aside(state);
    if (status == KVT_OK && tiers_publish_file(state->draft_path, path) != 0) status = KVT_E_IO;
    if (status == KVT_OK) {
        state->report->written = true;
        if (tiers_sync_folder(path) != 0) status = KVT_E_IO;
    }
    if (status != KVT_OK && state->message[0] == '\0')
        snprintf(state->message, state->message_size, "catalog %s: %s", path,
                 kvt_status_text(status));
    return status;
}
