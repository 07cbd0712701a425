/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_basis.c - bases of the transform codec in a profile: whole objects, found by the start of
 * their hash, which is what variants name. Every object is checked when it comes in and when it
 * goes out, so a damaged one is a status and never a wrong basis. Thread rule: as profile.h says.
 */
#include "basis/basis_file.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_quality.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASIS_MEMORY_ALIGN = 64, BASIS_HASH_TEXT = 2 * TRANSFORM_HASH_BYTES + 1 };

/* ---- the schema before bases ---- */

/* ---- in ---- */

static void basis_hash_text(const uint8_t hash[TRANSFORM_HASH_BYTES], char text[BASIS_HASH_TEXT])
{
    for (uint32_t i = 0; i < TRANSFORM_HASH_BYTES; i++)
        (void)snprintf(&text[2 * i], 3, "%02x", (unsigned)hash[i]);
}

/* Of a row with the same start: KVT_EXISTS, or KVT_E_UNSUPPORTED when it is another basis. */
static kvt_status basis_present(kvt_profile *profile, uint32_t start, const char *hash)
{
    profile_row row = profile_row_begin(profile, "SELECT hash FROM basis WHERE start = ?");
    profile_row_integer(&row, start);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    kvt_status status = row.result == SQLITE_DONE ? KVT_MISS : profile_status(row.result);
    if (row.result == SQLITE_ROW) {
        const char *present = (const char *)sqlite3_column_text(row.statement, 0);
        status = present != NULL && strcmp(present, hash) == 0 ? KVT_EXISTS : KVT_E_UNSUPPORTED;
    }
    sqlite3_finalize(row.statement);
    return status;
}

kvt_status profile_basis_put(kvt_profile *profile, int64_t run, int64_t model, const char *lesson,
                             const void *object, uint64_t bytes)
{
    transform_basis basis;
    basis_origin origin;
    char hash[BASIS_HASH_TEXT];
    if (!profile->writable) return KVT_E_READ_ONLY;
    kvt_status status = basis_read(object, bytes, &basis, &origin);
    if (status != KVT_OK) return status;
    if (bytes > PROFILE_BASIS_BYTES_MAX) return KVT_E_SPACE;
    basis_hash_text(basis.hash, hash);
    status = basis_present(profile, transform_hash_start(basis.hash), hash);
    if (status != KVT_MISS) return status;
    profile_row row = profile_row_begin(
        profile, "INSERT INTO basis (hash, start, run_id, model_id, lesson, span, metric, tokens, "
                 "object) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_text(&row, hash);
    profile_row_integer(&row, transform_hash_start(basis.hash));
    profile_row_integer(&row, (uint64_t)run);
    profile_row_integer(&row, (uint64_t)model);
    profile_row_text(&row, lesson);
    profile_row_integer(&row, basis.shape.span);
    profile_row_integer(&row, basis.shape.metric);
    profile_row_integer(&row, origin.tokens);
    if (row.result == SQLITE_OK)
        row.result = sqlite3_bind_blob64(row.statement, ++row.column, object, bytes, SQLITE_STATIC);
    return profile_status(profile_row_end(&row));
}

static kvt_status basis_import_run(kvt_profile *profile, const char *source,
                                   const char *command_line, const basis_origin *origin,
                                   const transform_basis *basis, const void *object, uint64_t bytes)
{
    profile_model model = {.layers = basis->shape.layers,
                           .kv_heads = basis->shape.kv_heads,
                           .head_dim = basis->shape.head_dim};
    int64_t run = 0, model_id = 0;
    (void)snprintf(model.name, sizeof model.name, "%.*s", (int)sizeof model.name - 1,
                   origin->model[0] != '\0' ? origin->model : "unknown");
    kvt_status status = profile_model_of_shape(profile, &model, &model_id);
    if (status == KVT_OK)
        status = profile_run_begin_source(profile, "import", source, command_line, 0, &run);
    if (status == KVT_OK) status = profile_basis_put(profile, run, model_id, "", object, bytes);
    if (status == KVT_OK) status = profile_run_complete(profile, run);
    return status;
}

kvt_status profile_basis_import(kvt_profile *profile, const void *object, uint64_t bytes,
                                const char *source, const char *command_line)
{
    transform_basis basis;
    basis_origin origin;
    if (!profile->writable) return KVT_E_READ_ONLY;
    kvt_status status = basis_read(object, bytes, &basis, &origin);
    if (status != KVT_OK) return status;
    int result = sqlite3_exec(profile->database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    status = basis_import_run(profile, source != NULL && source[0] != '\0' ? source : "a file",
                              command_line, &origin, &basis, object, bytes);
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(profile->database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* ---- files ---- */

bool profile_basis_is_file(const char *path)
{
    static const char ending[] = ".kvtbasis";
    const size_t length = strlen(path), tail = sizeof ending - 1;
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

/* A whole file, aligned; at most a byte more than a profile takes. */
static kvt_status basis_read_file(FILE *file, uint8_t **bytes_out, uint64_t *count_out)
{
    uint64_t capacity = UINT64_C(1) << 20;
    uint8_t *bytes = NULL;
    *count_out = 0;
    for (;;) {
        uint8_t *grown = aligned_alloc(BASIS_MEMORY_ALIGN, capacity);
        if (grown == NULL) break;
        if (*count_out > 0) memcpy(grown, bytes, *count_out);
        free(bytes);
        bytes = grown;
        *count_out += fread(bytes + *count_out, 1, capacity - *count_out, file);
        if (*count_out < capacity || capacity > PROFILE_BASIS_BYTES_MAX) {
            *bytes_out = bytes;
            return ferror(file) ? KVT_E_IO : KVT_OK;
        }
        capacity *= 2;
    }
    free(bytes);
    *bytes_out = NULL;
    return KVT_E_MEMORY;
}

kvt_status profile_basis_import_file(kvt_profile *profile, const char *path, const char *source,
                                     const char *command_line, char *message, size_t message_size)
{
    uint8_t *bytes = NULL;
    uint64_t count = 0;
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        profile_say(message, message_size, "%s: cannot be opened", path);
        return KVT_E_GONE;
    }
    kvt_status status = basis_read_file(file, &bytes, &count);
    (void)fclose(file);
    if (status == KVT_OK)
        status = profile_basis_import(profile, bytes, count, source, command_line);
    free(bytes);
    if (status == KVT_OK || status == KVT_EXISTS) return status;
    profile_say(message, message_size, "%s: %s", path,
                status == KVT_E_UNSUPPORTED ? "another basis of the profile has the same first 20 "
                                              "bits of hash"
                : status == KVT_E_SPACE     ? "larger than a profile takes (512 MiB)"
                                            : kvt_status_text(status));
    return status == KVT_E_CORRUPT || status == KVT_E_VERSION ? KVT_E_PARSE : status;
}

/* ---- out ---- */

void profile_basis_free(profile_basis *basis)
{
    free(basis->object);
    *basis = (profile_basis){.object = NULL};
}

/* The object of a row, copied and checked. */
static kvt_status basis_take(sqlite3_stmt *row, int column, profile_basis *out)
{
    const void *bytes = sqlite3_column_blob(row, column);
    const int count = sqlite3_column_bytes(row, column);
    if (bytes == NULL || count <= 0) return KVT_E_CORRUPT;
    out->bytes = (uint64_t)count;
    out->object = aligned_alloc(BASIS_MEMORY_ALIGN,
                                (out->bytes / BASIS_MEMORY_ALIGN + 1) * BASIS_MEMORY_ALIGN);
    if (out->object == NULL) return KVT_E_MEMORY;
    memcpy(out->object, bytes, out->bytes);
    const kvt_status status = basis_read(out->object, out->bytes, &out->view, NULL);
    if (status != KVT_OK) profile_basis_free(out);
    return status;
}

static kvt_status basis_take_row(profile_row *row, profile_basis *out)
{
    if (row->result == SQLITE_OK) row->result = sqlite3_step(row->statement);
    kvt_status status = row->result == SQLITE_DONE ? KVT_MISS : profile_status(row->result);
    if (row->result == SQLITE_ROW) status = basis_take(row->statement, 0, out);
    sqlite3_finalize(row->statement);
    return status;
}

kvt_status profile_basis_get(kvt_profile *profile, uint32_t start, profile_basis *out)
{
    *out = (profile_basis){.object = NULL};
    profile_row row = profile_row_begin(profile, "SELECT object FROM basis WHERE start = ?");
    profile_row_integer(&row, start);
    return basis_take_row(&row, out);
}

kvt_status profile_basis_find(kvt_profile *profile, int64_t model, const char *lesson,
                              uint32_t span, profile_basis *out)
{
    *out = (profile_basis){.object = NULL};
    profile_row row = profile_row_begin(
        profile, "SELECT object FROM basis WHERE model_id = ? AND lesson = ? AND span = ?");
    profile_row_integer(&row, (uint64_t)model);
    profile_row_text(&row, lesson);
    profile_row_integer(&row, span);
    return basis_take_row(&row, out);
}

kvt_status profile_basis_at(kvt_profile *profile, uint32_t index, profile_basis *out)
{
    *out = (profile_basis){.object = NULL};
    profile_row row = profile_row_begin(
        profile, "SELECT object FROM basis ORDER BY model_id, span, hash LIMIT 1 OFFSET ?");
    profile_row_integer(&row, index);
    return basis_take_row(&row, out);
}

uint32_t profile_basis_span(kvt_profile *profile, kvt_variant variant)
{
    uint32_t span = 0;
    if (variant.codec != KVT_CODEC_TRANSFORM) return 0;
    profile_row row = profile_row_begin(profile, "SELECT span FROM basis WHERE start = ?");
    profile_row_integer(&row, variant.rate >> PROFILE_BASIS_SHIFT);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    if (row.result == SQLITE_ROW) span = (uint32_t)sqlite3_column_int(row.statement, 0);
    sqlite3_finalize(row.statement);
    return span != 0 ? span : (uint32_t)TRANSFORM_SPAN_LAYERS4;
}
