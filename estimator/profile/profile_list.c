/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_list.c - the tables of a profile as rows for whoever shows them: what answers for each
 * thing, with where it is from. Nothing is decided on these; kvt_profile_device and its neighbours
 * give the numbers to decide on.
 *
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_newest.h"

#include <assert.h>
#include <string.h>

#define LIST_COLUMNS_MAX 48

/* The row that answers among those that are about the same thing; between the two stands what makes
 * things the same. */
#define PLACE_BY    "row_number() OVER (PARTITION BY "
#define PLACE_ORDER " ORDER BY " PROFILE_ORDER ") AS place "

/* Newest sets that have curves; imports of several sources stand beside each other. */
#define LIST_SETS                                                                                  \
    "(SELECT s.*, m.name AS model, r.complete, r.source, r.started_utc, r.host_name, "             \
    "r.library_version, " PLACE_BY "s.model_id, s.class, s.method, r.source" PLACE_ORDER           \
    "FROM quality_set s JOIN model m ON m.id = s.model_id JOIN run r ON r.id = s.run_id "          \
    "WHERE EXISTS (SELECT 1 FROM quality_curve c WHERE c.set_id = s.id))"

#define LIST_CALIBRATIONS                                                                          \
    "(SELECT k.*, m.name AS model, r.complete, r.started_utc, r.host_name, "                       \
    "r.library_version, " PLACE_BY "k.model_id, k.class" PLACE_ORDER                               \
    "FROM calibration k JOIN model m ON m.id = k.model_id JOIN run r ON r.id = k.run_id)"

/* All sizes and depths of one run. */
#define LIST_MIXED                                                                                 \
    "(SELECT d.name AS device, x.*, rank() OVER (PARTITION BY d.name" PLACE_ORDER                  \
    "FROM device_mixed x JOIN device d ON d.id = x.device_id JOIN run r ON r.id = d.run_id)"

#define LIST_CODECS                                                                                \
    "(SELECT c.*, r.kind = 'import' AS imported, r.source AS import_source, " PLACE_BY             \
    "c.codec, c.mode, c.rate, c.isa, c.threads, c.source" PLACE_ORDER                              \
    "FROM codec_curve c JOIN run r ON r.id = c.run_id)"

#define LIST_LEARNED                                                                               \
    "(SELECT l.*, r.started_utc, " PLACE_BY "l.kind, l.name, l.part" PLACE_ORDER                   \
    "FROM learned l JOIN run r ON r.id = l.run_id)"

#define LIST_PREFILL                                                                               \
    "(SELECT p.*, r.source, " PLACE_BY "p.name" PLACE_ORDER                                        \
    "FROM prefill p JOIN run r ON r.id = p.run_id)"

static const struct {
    const char *name;
    const char *sql;
} list_views[] = {
    {"runs",
     "SELECT id, kind, complete, source, started_utc, finished_utc, host_name, cpu_model, "
     "cpu_count, memory_bytes, kernel, library_version, sqlite_version, zstd_version, "
     "seed, command_line, (SELECT name FROM device WHERE run_id = run.id) AS device, "
     "(SELECT identity FROM device WHERE run_id = run.id) AS identity FROM run ORDER BY id"},
    {"mixed", "SELECT device, request_bytes, depth, read_share, repetitions, bytes_per_s, "
              "unmixed_bytes_per_s, read_latency_seconds_p50, read_latency_seconds_p99 "
              "FROM " LIST_MIXED " WHERE place = 1 ORDER BY device, request_bytes, depth"},
    {"codecs", "SELECT name, isa, threads, source, stored_share, encode_bytes_per_s, "
               "decode_bytes_per_s, source_bytes, repetitions, run_id AS run, imported, "
               "import_source FROM " LIST_CODECS
               " WHERE place = 1 ORDER BY imported, source <> 'sample', source, isa, threads, "
               "stored_share DESC, name"},
    {"models", "SELECT name, digest, parameters, layers, heads, kv_heads, head_dim, vocab "
               "FROM model ORDER BY name, digest"},
    {"quality_sets", "SELECT id AS set_id, model, class, method, entries, context_tokens, "
                     "continuation_tokens, nll_nats, spearman_variants, sensitivity_sd, "
                     "repeatability, complete, source, started_utc, host_name, library_version, "
                     "settings FROM " LIST_SETS " WHERE place = 1 ORDER BY model, class, method"},
    {"quality", "SELECT c.* FROM quality_curve c JOIN " LIST_SETS " s ON s.id = c.set_id "
                "WHERE s.place = 1 ORDER BY s.model, s.class, s.method, c.set_id, "
                "c.bits_per_element DESC, c.name"},
    {"calibrations",
     "SELECT id AS calibration_id, model, class, complete, started_utc, "
     "host_name, library_version FROM " LIST_CALIBRATIONS " WHERE place = 1 ORDER BY model, class"},
    {"rungs", "SELECT g.calibration_id, g.position, g.name, g.bits_per_element, g.loss, "
              "g.loss_upper, g.accepted, g.evidence FROM calibration_rung g "
              "JOIN " LIST_CALIBRATIONS " k ON k.id = g.calibration_id WHERE k.place = 1 "
              "ORDER BY g.calibration_id, g.position"},
    {"choices", "SELECT q.calibration_id, q.question, q.chosen, q.evidence "
                "FROM calibration_choice q JOIN " LIST_CALIBRATIONS
                " k ON k.id = q.calibration_id WHERE k.place = 1 "
                "ORDER BY q.calibration_id, q.question"},
    {"learned",
     "SELECT kind, name, part, value, weight, observations, error_p50, error_p90, "
     "log_likelihood, started_utc FROM " LIST_LEARNED " WHERE place = 1 ORDER BY kind, name, part"},
    {"prefill", "SELECT name, linear_seconds_per_token, square_seconds_per_token2, "
                "fixed_seconds, source FROM " LIST_PREFILL " WHERE place = 1 ORDER BY name"},
};

static const char *list_find(const char *view)
{
    for (size_t i = 0; i < sizeof list_views / sizeof list_views[0]; i++) {
        if (strcmp(list_views[i].name, view) == 0) return list_views[i].sql;
    }
    return NULL;
}

static kvt_profile_cell list_cell(sqlite3_stmt *statement, int column)
{
    kvt_profile_cell cell = {.column = sqlite3_column_name(statement, column)};
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        cell.kind = KVT_CELL_INTEGER;
        cell.integer = sqlite3_column_int64(statement, column);
        break;
    case SQLITE_FLOAT:
        cell.kind = KVT_CELL_REAL;
        cell.real = sqlite3_column_double(statement, column);
        break;
    case SQLITE_TEXT:
        cell.kind = KVT_CELL_TEXT;
        cell.text = (const char *)sqlite3_column_text(statement, column);
        if (cell.text == NULL) cell.text = "";
        break;
    default: cell.kind = KVT_CELL_NULL; break;
    }
    return cell;
}

kvt_status kvt_profile_list(kvt_profile *profile, const char *view, kvt_profile_visit *visit,
                            void *context)
{
    assert(profile != NULL && view != NULL && visit != NULL);
    kvt_profile_cell cells[LIST_COLUMNS_MAX];
    sqlite3_stmt *statement = NULL;
    const char *sql = list_find(view);
    if (sql == NULL) return KVT_E_ARGUMENT;
    int result = sqlite3_prepare_v2(profile->database, sql, -1, &statement, NULL);
    int columns = sqlite3_column_count(statement);
    assert(columns <= LIST_COLUMNS_MAX);
    bool more = true;
    while (more && (result == SQLITE_OK || result == SQLITE_ROW)) {
        result = sqlite3_step(statement);
        if (result != SQLITE_ROW) break;
        for (int i = 0; i < columns; i++)
            cells[i] = list_cell(statement, i);
        more = visit(context, view, cells, (size_t)columns);
    }
    sqlite3_finalize(statement);
    if (!more) return KVT_E_CANCELLED;
    if (result == SQLITE_DONE) return KVT_OK;
    kvt_status status = profile_status(result);
    return status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}
