/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_pass.c - tables of what one layer of a pass takes, by new tokens and prefix: into the
 * profile and out of it. predict/pass_table.c fills their holes.
 *
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool kvt_pass_rows_are_sound(const kvt_pass_row *rows, size_t count)
{
    if (rows == NULL) return false;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].new_tokens == 0 || !(rows[i].layer_seconds > 0)) return false;
        if (!isfinite(rows[i].layer_seconds)) return false;
        for (size_t k = 0; k < i; k++)
            if (rows[k].new_tokens == rows[i].new_tokens &&
                rows[k].prefix_tokens == rows[i].prefix_tokens)
                return false;
    }
    return true;
}

static kvt_status pass_put_rows(kvt_profile *profile, int64_t run, const char *name,
                                const kvt_pass_row *rows, size_t count)
{
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        profile_row row =
            profile_row_begin(profile, "INSERT INTO pass (run_id, name, new_tokens, "
                                       "prefix_tokens, layer_seconds) VALUES (?, ?, ?, ?, ?)");
        profile_row_integer(&row, (uint64_t)run);
        profile_row_text(&row, name);
        profile_row_integer(&row, rows[i].new_tokens);
        profile_row_integer(&row, rows[i].prefix_tokens);
        profile_row_real(&row, rows[i].layer_seconds);
        status = profile_status(profile_row_end(&row));
    }
    return status;
}

kvt_status kvt_profile_passes_put(kvt_profile *profile, const char *name, const kvt_pass_row *rows,
                                  size_t count, const char *source, const char *command_line)
{
    assert(profile != NULL && name != NULL);
    const bool measured = source == NULL || source[0] == '\0';
    const size_t length = strlen(name);
    int64_t run = 0;
    if (length == 0 || length > PROFILE_PASS_NAME_MAX) return KVT_E_ARGUMENT;
    if (count == 0 || count > PROFILE_PASS_ROWS_MAX) return KVT_E_ARGUMENT;
    if (!kvt_pass_rows_are_sound(rows, count)) return KVT_E_ARGUMENT;
    if (!profile->writable) return KVT_E_READ_ONLY;
    int result = sqlite3_exec(profile->database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    kvt_status status = profile_run_begin_source(profile, measured ? "slack" : "import",
                                                 measured ? "" : source, command_line, 0, &run);
    if (status == KVT_OK) status = pass_put_rows(profile, run, name, rows, count);
    if (status == KVT_OK) status = profile_run_complete(profile, run);
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(profile->database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* The next row of the statement into a table of so many; the table is full at its bound. */
static kvt_status pass_take(sqlite3_stmt *statement, kvt_pass_row *rows, size_t count)
{
    if (count == PROFILE_PASS_ROWS_MAX) return KVT_E_SPACE;
    rows[count] = (kvt_pass_row){.new_tokens = (uint32_t)sqlite3_column_int64(statement, 0),
                                 .prefix_tokens = (uint32_t)sqlite3_column_int64(statement, 1),
                                 .layer_seconds = sqlite3_column_double(statement, 2)};
    return KVT_OK;
}

kvt_status kvt_profile_passes(kvt_profile *profile, const char *name, kvt_pass_row **rows_out,
                              size_t *count_out)
{
    assert(profile != NULL && name != NULL && rows_out != NULL && count_out != NULL);
    sqlite3_stmt *statement = NULL;
    kvt_status status = KVT_OK;
    size_t count = 0;
    *rows_out = NULL;
    *count_out = 0;
    kvt_pass_row *rows = malloc(PROFILE_PASS_ROWS_MAX * sizeof *rows);
    if (rows == NULL) return KVT_E_MEMORY;
    int result = sqlite3_prepare_v2(
        profile->database,
        "SELECT new_tokens, prefix_tokens, layer_seconds FROM pass WHERE name = ?1 AND run_id = "
        "(SELECT r.id FROM run r WHERE EXISTS (SELECT 1 FROM pass t WHERE t.run_id = r.id AND "
        "t.name = ?1) ORDER BY " PROFILE_ORDER " LIMIT 1) ORDER BY new_tokens, prefix_tokens",
        -1, &statement, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    while (result == SQLITE_OK && status == KVT_OK) {
        result = sqlite3_step(statement);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        status = pass_take(statement, rows, count);
        count += status == KVT_OK;
    }
    sqlite3_finalize(statement);
    if (status == KVT_OK && result != SQLITE_DONE)
        status = profile_status(result) == KVT_E_MEMORY ? KVT_E_MEMORY : KVT_E_DATABASE;
    if (status == KVT_OK && count == 0) status = KVT_MISS;
    if (status != KVT_OK) {
        free(rows);
        return status;
    }
    *rows_out = rows;
    *count_out = count;
    return KVT_OK;
}
