/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.c - looks into catalogs, records and device labels. Reads only; one thread.
 */
#include "tools/inspect/inspect.h"

#include "codecs/codecs.h"
#include "codecs/record_format.h"
#include "store/catalog/catalog.h"
#include "tiers/devices/superblock.h"
#include "tools/inspect/watch_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INSPECT_DATABASE_MAGIC "SQLite format 3"
#define INSPECT_PROFILE_MARK   "KVTP" /* SQLite's application id, at 68 */
#define INSPECT_RECORD_MAX     (UINT64_C(1) << 40)

static kvt_status inspect_open(const char *path, int *descriptor_out, char *message,
                               size_t message_size)
{
    struct stat facts;
    /* O_NONBLOCK: opening a FIFO would wait for its writer. */
    *descriptor_out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor_out < 0) {
        (void)snprintf(message, message_size, "%.300s: %m", path);
        return errno == ENOENT || errno == ENOTDIR ? KVT_E_GONE : KVT_E_IO;
    }
    if (fstat(*descriptor_out, &facts) == 0 && (S_ISREG(facts.st_mode) || S_ISBLK(facts.st_mode))) {
        return KVT_OK;
    }
    (void)snprintf(message, message_size, "%.300s: neither a regular file nor a block device",
                   path);
    (void)close(*descriptor_out);
    *descriptor_out = -1;
    return KVT_E_ARGUMENT;
}

/* Reads exactly `bytes` bytes, or fewer at the end of the file. Returns -1 on an error. */
static ssize_t inspect_read(int descriptor, void *target, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = read(descriptor, (char *)target + done, bytes - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* A record whose first bytes were damaged is a damaged record, not a device: its magic is long
 * enough to be known with some of its bytes changed. */
static bool inspect_resembles_record(const char *head)
{
    size_t same = 0;
    for (size_t i = 0; i < sizeof RECORD_MAGIC - 1; i++)
        same += head[i] == RECORD_MAGIC[i];
    return same + 2 >= sizeof RECORD_MAGIC - 1;
}

kvt_status inspect_identify(const char *path, inspect_kind *kind_out, char *message,
                            size_t message_size)
{
    char head[72] = {0};
    int descriptor;
    kvt_status status = inspect_open(path, &descriptor, message, message_size);
    if (status != KVT_OK) return status;
    if (inspect_read(descriptor, head, sizeof head) < 0) {
        (void)snprintf(message, message_size, "%.300s: %m", path);
        status = KVT_E_IO;
    }
    (void)close(descriptor);
    *kind_out = INSPECT_DEVICE;
    if (memcmp(head, INSPECT_DATABASE_MAGIC, sizeof INSPECT_DATABASE_MAGIC) == 0) {
        const bool profile = memcmp(head + 68, INSPECT_PROFILE_MARK, 4) == 0;
        *kind_out = profile ? INSPECT_PROFILE : INSPECT_DATABASE;
    } else if (memcmp(head, WATCH_READ_MARK, sizeof WATCH_READ_MARK - 1) == 0) {
        *kind_out = INSPECT_WATCH;
    } else if (memcmp(head, "KVTBASIS", 8) == 0) {
        *kind_out = INSPECT_BASIS;
    } else if (inspect_resembles_record(head)) {
        *kind_out = INSPECT_RECORD;
    }
    return status;
}

/* Decodes a record to see that it can be. */
static kvt_status inspect_decode(const void *record, uint64_t bytes, const kvt_record_info *info,
                                 const basis_files *bases)
{
    void *decoded = NULL, *scratch = NULL;
    uint64_t bound_bytes, scratch_bytes;
    kvt_record_spec expected = info->spec;
    expected.bases = basis_files_all(bases);
    kvt_status status = kvt_record_bound(&expected, &bound_bytes, &scratch_bytes);
    if (info->scratch_bytes > scratch_bytes) scratch_bytes = info->scratch_bytes;
    if (status != KVT_OK) return status;
    if (posix_memalign(&decoded, 4096, info->decoded_bytes + 1) != 0) decoded = NULL;
    if (posix_memalign(&scratch, 4096, scratch_bytes + 1) != 0) scratch = NULL;
    status = KVT_E_MEMORY;
    if (decoded != NULL && scratch != NULL)
        status = kvt_record_decode(record, bytes, &expected, decoded, info->decoded_bytes, scratch,
                                   scratch_bytes);
    free(decoded);
    free(scratch);
    return status;
}

/* Verifies a record that is in memory, and decodes it with its basis where bases are given. */
static kvt_status inspect_check_record(const char *path, const void *record, uint64_t bytes,
                                       const basis_files *bases, kvt_record_info *info_out,
                                       char *message, size_t message_size)
{
    char reason[256];
    kvt_status status = kvt_record_verify(record, bytes, info_out);
    if (status == KVT_OK && bases != NULL && bases->count != 0 && info_out->basis_span != 0) {
        if (!basis_files_serve_record(bases, info_out, reason, sizeof reason)) {
            (void)snprintf(message, message_size, "%.300s: %s", path, reason);
            return KVT_E_MISMATCH;
        }
        status = inspect_decode(record, bytes, info_out, bases);
    }
    if (status != KVT_OK)
        (void)snprintf(message, message_size, "%.300s: %s", path, kvt_status_text(status));
    return status;
}

kvt_status inspect_record(const char *path, const basis_files *bases, kvt_record_info *info_out,
                          char *message, size_t message_size)
{
    struct stat facts;
    void *record = NULL;
    int descriptor;
    kvt_status status = inspect_open(path, &descriptor, message, message_size);
    if (status != KVT_OK) return status;
    size_t bytes = 0;
    if (fstat(descriptor, &facts) != 0 || facts.st_size < 0 ||
        (uint64_t)facts.st_size > INSPECT_RECORD_MAX) {
        (void)snprintf(message, message_size, "%.300s: not a record's size", path);
        status = KVT_E_CORRUPT;
        goto out;
    }
    bytes = (size_t)facts.st_size;
    if (posix_memalign(&record, 4096, bytes + 4096) != 0) {
        record = NULL;
        status = KVT_E_MEMORY;
        goto out;
    }
    if (inspect_read(descriptor, record, bytes) != (ssize_t)bytes) {
        (void)snprintf(message, message_size, "%.300s: cannot be read", path);
        status = KVT_E_IO;
        goto out;
    }
    status = inspect_check_record(path, record, bytes, bases, info_out, message, message_size);
out:
    free(record);
    (void)close(descriptor);
    return status;
}

kvt_status inspect_device(const char *path, inspect_label *label_out, char *message,
                          size_t message_size)
{
    kvt_device *device = NULL;
    const kvt_device_config config = {
        .struct_size = sizeof config, .name = "inspected", .backend = "file", .path = path};
    kvt_status status = kvt_device_open(&config, &device, message, message_size);
    if (status != KVT_OK) return status;
    tiers_superblock label;
    tiers_label_state state;
    memset(label_out, 0, sizeof *label_out);
    label_out->capacity_bytes = device->facts.capacity_bytes;
    status = tiers_superblock_read(device, &label, &state);
    if (status == KVT_OK && state == TIERS_LABEL_SOUND) {
        label_out->state = INSPECT_LABEL_SOUND;
        memcpy(label_out->pool, label.pool, sizeof label.pool);
        label_out->tier = (kvt_tier)label.tier;
        label_out->member = label.member;
        label_out->epoch = label.epoch;
        label_out->labelled_bytes = label.capacity_bytes;
    } else if (status == KVT_OK) {
        label_out->state = state == TIERS_LABEL_BLANK ? INSPECT_LABEL_BLANK : INSPECT_LABEL_FOREIGN;
    } else {
        (void)snprintf(message, message_size, "%.300s: its label: %s", path,
                       kvt_status_text(status));
    }
    kvt_device_close(device);
    return status;
}

static bool inspect_visit_device(void *context, const catalog_device *row)
{
    const inspect_visitor *visitor = context;
    inspect_catalog_device device = {
        .tier = row->tier, .member = row->member, .capacity_bytes = row->capacity_bytes};
    memcpy(device.name, row->name, sizeof device.name);
    return visitor->device(visitor->context, &device);
}

/* The tokens that a row's form keeps; 0 where its layout has no such form, as an opaque one. */
static uint32_t inspect_kept_tokens(const catalog_row *row)
{
    uint32_t tokens, sets;
    if (row->layout.dtype == KVT_DTYPE_OPAQUE) return 0;
    kvt_status status =
        codecs_kept_tokens(&row->layout, row->first_position, row->variant, &tokens, &sets);
    return status == KVT_OK ? tokens : 0;
}

/* A walk over the rows of a catalog. */
typedef struct inspect_rows {
    const inspect_visitor *visitor;
    basis_needs needs;
    kvt_status status; /* what ended the walk */
} inspect_rows;

static bool inspect_visit_entry(void *context, const catalog_row *row)
{
    inspect_rows *rows = context;
    const inspect_visitor *visitor = rows->visitor;
    inspect_entry entry = {.key = row->key, .generation = row->generation};
    if (row->location) {
        tiers_location *location = NULL;
        entry.readable = true;
        entry.has_parent = row->has_parent;
        entry.parent = row->parent;
        entry.layout = row->layout;
        entry.first_position = row->first_position;
        entry.variant = row->variant;
        entry.tokens_kept = inspect_kept_tokens(row);
        entry.record_bytes = row->record_bytes;
        if (tiers_location_unpack(row->location, row->location_bytes, &location) == KVT_OK) {
            entry.extents = location->extent_count;
            for (uint32_t i = 0; i < location->share_count; i++) {
                entry.members |= UINT64_C(1) << (location->shares[i].member % 64);
            }
            tiers_location_free(location);
        }
        rows->status = basis_needs_count(&rows->needs, row->variant);
        if (rows->status != KVT_OK) return false;
    }
    return visitor->entry(visitor->context, &entry);
}

/* Walks over the entries, then over the bases that they need. */
static kvt_status inspect_walk_entries(store_catalog *catalog, const inspect_visitor *visitor)
{
    inspect_rows rows = {.visitor = visitor};
    kvt_status status = catalog_each_entry(catalog, inspect_visit_entry, &rows);
    if (status == KVT_OK) status = rows.status;
    if (status == KVT_OK && visitor->basis != NULL)
        status = basis_needs_look(&rows.needs, catalog, catalog_place(catalog));
    for (uint32_t i = 0; status == KVT_OK && visitor->basis != NULL && i < rows.needs.count; i++)
        if (!visitor->basis(visitor->context, &rows.needs.items[i])) break;
    basis_needs_free(&rows.needs);
    return status;
}

kvt_status inspect_catalog(const char *path, const inspect_visitor *visitor, char *message,
                           size_t message_size)
{
    store_catalog *catalog = NULL;
    kvt_status status = catalog_open(path, CATALOG_READ, &catalog, message, message_size);
    if (status == KVT_MISS) {
        (void)snprintf(message, message_size, "%.300s: no such catalog", path);
        return KVT_E_GONE;
    }
    if (status != KVT_OK) return status;
    inspect_visitor given = *visitor;
    uint8_t pool[16];
    uint64_t epoch;
    catalog_identity(catalog, pool, &epoch);
    if (!given.identity || given.identity(given.context, pool, epoch)) {
        if (given.device) status = catalog_each_device(catalog, inspect_visit_device, &given);
        if (status == KVT_OK && given.entry) status = inspect_walk_entries(catalog, &given);
    }
    if (status != KVT_OK) {
        (void)snprintf(message, message_size, "%.300s: %s", path, kvt_status_text(status));
    }
    catalog_close(catalog);
    return status;
}
