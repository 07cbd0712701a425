/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality.c - see profile_quality.h; and the readers of quality that profile.h has.
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_quality.h"
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void quality_copy_text(sqlite3_stmt *statement, int column, char *text, size_t size)
{
    const unsigned char *value = sqlite3_column_text(statement, column);
    (void)snprintf(text, size, "%s", value != NULL ? (const char *)value : "");
}

/* NULL is not a number. */
static double quality_column(sqlite3_stmt *statement, int column)
{
    if (sqlite3_column_type(statement, column) == SQLITE_NULL) return (double)NAN;
    return sqlite3_column_double(statement, column);
}

static kvt_variant quality_column_variant(sqlite3_stmt *statement, int column)
{
    return (kvt_variant){.codec = (uint16_t)sqlite3_column_int(statement, column),
                         .mode = (uint16_t)sqlite3_column_int(statement, column + 1),
                         .rate = (uint32_t)sqlite3_column_int64(statement, column + 2)};
}

static kvt_status quality_read_status(int result)
{
    if (result == SQLITE_DONE) return KVT_MISS;
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}

/* The figures that a row of quality_entry has of its entry and variant, as quality_row has them. */
#define ENTRY_FIGURES                                                                              \
    "bits_per_element, loss, kl, kl_first, kl_second, top1, nll_delta, rouge_l, f1, answers, "     \
    "attention_error, attention_error_high, retained_mass, flip_rate"

/* ---- models and sets ---- */

static kvt_status quality_model_find(kvt_profile *profile, const profile_model *model,
                                     int64_t *model_out)
{
    profile_row row =
        profile_row_begin(profile, "SELECT id FROM model WHERE name = ? AND digest = ?");
    profile_row_text(&row, model->name);
    profile_row_text(&row, model->digest);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    if (row.result == SQLITE_ROW) *model_out = sqlite3_column_int64(row.statement, 0);
    int result = row.result;
    sqlite3_finalize(row.statement);
    return quality_read_status(result);
}

kvt_status profile_model_put(kvt_profile *profile, const profile_model *model, int64_t *model_out)
{
    *model_out = 0;
    if (!profile->writable) return KVT_E_READ_ONLY;
    kvt_status status = quality_model_find(profile, model, model_out);
    if (status != KVT_MISS) return status;
    profile_row row = profile_row_begin(
        profile, "INSERT INTO model (name, digest, parameters, layers, heads, kv_heads, head_dim, "
                 "vocab) VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_text(&row, model->name);
    profile_row_text(&row, model->digest);
    profile_row_integer(&row, model->parameters);
    profile_row_integer(&row, model->layers);
    profile_row_integer(&row, model->heads);
    profile_row_integer(&row, model->kv_heads);
    profile_row_integer(&row, model->head_dim);
    profile_row_integer(&row, model->vocab);
    status = profile_status(profile_row_end(&row));
    *model_out = sqlite3_last_insert_rowid(profile->database);
    return status;
}

kvt_status profile_model_of_shape(kvt_profile *profile, const profile_model *model,
                                  int64_t *model_out)
{
    profile_row row = profile_row_begin(
        profile, "SELECT id FROM model WHERE name = ? AND layers = ? AND kv_heads = ? AND "
                 "head_dim = ? ORDER BY id DESC LIMIT 1");
    profile_row_text(&row, model->name);
    profile_row_integer(&row, model->layers);
    profile_row_integer(&row, model->kv_heads);
    profile_row_integer(&row, model->head_dim);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    if (row.result == SQLITE_ROW) *model_out = sqlite3_column_int64(row.statement, 0);
    kvt_status status = quality_read_status(row.result);
    sqlite3_finalize(row.statement);
    return status == KVT_MISS ? profile_model_put(profile, model, model_out) : status;
}

kvt_status profile_set_find(kvt_profile *profile, const profile_set *set, int64_t *run_out,
                            int64_t *set_out)
{
    profile_row row = profile_row_begin(
        profile, "SELECT r.id, s.id FROM quality_set s JOIN run r ON r.id = s.run_id WHERE "
                 "r.complete = 0 AND r.library_version = ? AND s.model_id = ? AND s.class = ? AND "
                 "s.method = ? AND s.settings = ? ORDER BY s.id DESC LIMIT 1");
    profile_row_text(&row, profile_library_version);
    profile_row_integer(&row, (uint64_t)set->model);
    profile_row_text(&row, set->class_name);
    profile_row_text(&row, set->method);
    profile_row_text(&row, set->settings);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    if (row.result == SQLITE_ROW) {
        *run_out = sqlite3_column_int64(row.statement, 0);
        *set_out = sqlite3_column_int64(row.statement, 1);
    }
    int result = row.result;
    sqlite3_finalize(row.statement);
    return quality_read_status(result);
}

kvt_status profile_sets_of_texts(kvt_profile *profile, int64_t model, profile_set_visit *visit,
                                 void *context)
{
    profile_row row = profile_row_begin(
        profile,
        "SELECT s.id, coalesce((SELECT p.id FROM quality_set p WHERE p.run_id = s.run_id AND "
        "p.class = s.class || '" PROFILE_PASSAGES "' AND p.settings = s.settings), 0), s.settings "
        "FROM quality_set s JOIN run r ON r.id = s.run_id WHERE " PROFILE_OF_VERSION
        " AND s.model_id = ?2 AND s.method = 'continuation' AND NOT EXISTS "
        "(SELECT 1 FROM quality_set a WHERE a.run_id = s.run_id AND a.settings = s.settings AND "
        "s.class = a.class || '" PROFILE_PASSAGES "') ORDER BY r.kind = 'import' DESC, s.id");
    profile_row_text(&row, profile_library_version);
    profile_row_integer(&row, (uint64_t)model);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW) {
        const char *settings = (const char *)sqlite3_column_text(row.statement, 2);
        visit(context, sqlite3_column_int64(row.statement, 0),
              sqlite3_column_int64(row.statement, 1), settings != NULL ? settings : "");
        row.result = sqlite3_step(row.statement);
    }
    int result = row.result;
    sqlite3_finalize(row.statement);
    kvt_status status = quality_read_status(result);
    return status == KVT_MISS ? KVT_OK : status;
}

kvt_status profile_set_insert(kvt_profile *profile, int64_t run, const profile_set *set,
                              int64_t *set_out)
{
    profile_row row = profile_row_begin(
        profile, "INSERT INTO quality_set (run_id, model_id, class, method, settings, "
                 "context_tokens, continuation_tokens, entries) VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_integer(&row, (uint64_t)set->model);
    profile_row_text(&row, set->class_name);
    profile_row_text(&row, set->method);
    profile_row_text(&row, set->settings);
    profile_row_integer(&row, set->context_tokens);
    profile_row_integer(&row, set->continuation_tokens);
    profile_row_integer(&row, set->entries);
    kvt_status status = profile_status(profile_row_end(&row));
    *set_out = sqlite3_last_insert_rowid(profile->database);
    return status;
}

kvt_status profile_set_take_imports(kvt_profile *profile, const profile_set *set, int64_t number)
{
    profile_row row = profile_row_begin(
        profile,
        "INSERT OR IGNORE INTO quality_entry (set_id, entry, codec, mode, rate, " ENTRY_FIGURES
        ") SELECT ?2, entry, codec, mode, rate, " ENTRY_FIGURES
        " FROM quality_entry WHERE set_id IN (SELECT s.id FROM quality_set s JOIN run r ON "
        "r.id = s.run_id WHERE r.kind = 'import' AND " PROFILE_OF_VERSION
        " AND s.model_id = ?3 AND s.class = ?4 AND s.method = ?5 AND s.settings = ?6) "
        "ORDER BY set_id DESC");
    profile_row_text(&row, profile_library_version);
    profile_row_integer(&row, (uint64_t)number);
    profile_row_integer(&row, (uint64_t)set->model);
    profile_row_text(&row, set->class_name);
    profile_row_text(&row, set->method);
    profile_row_text(&row, set->settings);
    return profile_status(profile_row_end(&row));
}

kvt_status profile_set_finish(kvt_profile *profile, int64_t set, const quality_spread *spread)
{
    profile_row row = profile_row_begin(
        profile, "UPDATE quality_set SET nll_nats = ?, answers = ?, spearman_variants = ?, "
                 "sensitivity_sd = ?, repeatability = ? WHERE id = ?");
    profile_row_measure(&row, spread->nll_nats);
    profile_row_measure(&row, spread->answers);
    profile_row_measure(&row, spread->spearman_variants);
    profile_row_measure(&row, spread->sensitivity_sd);
    profile_row_measure(&row, spread->repeatability);
    profile_row_integer(&row, (uint64_t)set);
    return profile_status(profile_row_end(&row));
}

/* ---- rows ---- */

static void quality_bind_variant(profile_row *row, kvt_variant variant)
{
    profile_row_integer(row, variant.codec);
    profile_row_integer(row, variant.mode);
    profile_row_integer(row, variant.rate);
}

kvt_status profile_entry_insert(kvt_profile *profile, int64_t set, uint32_t entry,
                                kvt_variant variant, const quality_row *from)
{
    const double measured[] = {from->loss,
                               from->kl,
                               from->kl_first,
                               from->kl_second,
                               from->top1,
                               from->nll_delta,
                               from->rouge_l,
                               from->f1,
                               from->answers,
                               from->attention_error,
                               from->attention_error_high,
                               from->retained_mass,
                               from->flip_rate};
    profile_row row = profile_row_begin(
        profile,
        "INSERT OR REPLACE INTO quality_entry (set_id, entry, codec, mode, rate, " ENTRY_FIGURES
        ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)set);
    profile_row_integer(&row, entry);
    quality_bind_variant(&row, variant);
    profile_row_real(&row, from->bits_per_element);
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++)
        profile_row_measure(&row, measured[i]);
    return profile_status(profile_row_end(&row));
}

kvt_status profile_entries_read(kvt_profile *profile, int64_t set, int64_t passages,
                                profile_entry_visit *visit, void *context)
{
    profile_row row = profile_row_begin(
        profile,
        "SELECT a.codec, a.mode, a.rate, a.entry, a.bits_per_element, a.loss, a.kl, a.kl_first, "
        "a.kl_second, a.top1, a.nll_delta, a.rouge_l, a.f1, a.answers, a.attention_error, "
        "a.attention_error_high, a.retained_mass, a.flip_rate, p.kl, p.kl_first, p.kl_second, "
        "p.top1, p.nll_delta FROM quality_entry a LEFT JOIN quality_entry p ON p.set_id = ?2 AND "
        "p.entry = a.entry AND p.codec = a.codec AND p.mode = a.mode AND p.rate = a.rate WHERE "
        "a.set_id = ?1 ORDER BY a.entry, a.codec, a.mode, a.rate");
    profile_row_integer(&row, (uint64_t)set);
    profile_row_integer(&row, (uint64_t)passages);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW) {
        quality_row read = {.present = true};
        double *const members[] = {&read.bits_per_element,
                                   &read.loss,
                                   &read.kl,
                                   &read.kl_first,
                                   &read.kl_second,
                                   &read.top1,
                                   &read.nll_delta,
                                   &read.rouge_l,
                                   &read.f1,
                                   &read.answers,
                                   &read.attention_error,
                                   &read.attention_error_high,
                                   &read.retained_mass,
                                   &read.flip_rate,
                                   &read.recall_kl,
                                   &read.recall_kl_first,
                                   &read.recall_kl_second,
                                   &read.recall_top1,
                                   &read.recall_nll_delta};
        for (int i = 0; i < (int)(sizeof members / sizeof members[0]); i++)
            *members[i] = quality_column(row.statement, 4 + i);
        read.physical_bits_per_element = read.nmse[0] = read.nmse[1] = (double)NAN;
        sqlite3_int64 entry = sqlite3_column_int64(row.statement, 3);
        if (entry <= (sqlite3_int64)UINT32_MAX)
            visit(context, (uint32_t)entry, quality_column_variant(row.statement, 0), &read);
        row.result = sqlite3_step(row.statement);
    }
    int result = row.result;
    sqlite3_finalize(row.statement);
    kvt_status status = quality_read_status(result);
    return status == KVT_MISS ? KVT_OK : status;
}

kvt_status profile_curve_insert(kvt_profile *profile, int64_t set, kvt_variant variant,
                                const char *name, const char *metric, const quality_curve *curve)
{
    const double measured[] = {curve->loss_p90,
                               curve->loss_cv,
                               curve->kl,
                               curve->kl_low,
                               curve->kl_high,
                               curve->kl_p90,
                               curve->top1,
                               curve->nll_delta,
                               curve->rouge_l,
                               curve->f1,
                               curve->answers,
                               curve->attention_error,
                               curve->attention_error_high,
                               curve->retained_mass,
                               curve->flip_rate,
                               curve->spearman_entries,
                               curve->repeatability};
    if (!isfinite(curve->loss_mean) || curve->entries == 0) return KVT_E_ARGUMENT;
    profile_row row = profile_row_begin(
        profile, "INSERT OR REPLACE INTO quality_curve (set_id, codec, mode, rate, name, metric, "
                 "entries, bits_per_element, physical_bits_per_element, loss_mean, loss_low, "
                 "loss_high, loss_p90, loss_cv, kl, kl_low, kl_high, kl_p90, top1, nll_delta, "
                 "rouge_l, f1, answers, attention_error, attention_error_high, retained_mass, "
                 "flip_rate, spearman_entries, repeatability) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "
                 "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)set);
    quality_bind_variant(&row, variant);
    profile_row_text(&row, name);
    profile_row_text(&row, metric);
    profile_row_integer(&row, curve->entries);
    profile_row_real(&row, curve->bits_per_element);
    profile_row_measure(&row, curve->physical_bits_per_element);
    profile_row_real(&row, curve->loss_mean);
    profile_row_real(&row, curve->loss_low);
    profile_row_real(&row, curve->loss_high);
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++)
        profile_row_measure(&row, measured[i]);
    return profile_status(profile_row_end(&row));
}

/* ---- readers of profile.h ---- */

/* Of sets that measured the same, the newest one of a complete run counts; while there is none, one
 * of a run that was interrupted has no curves and does not appear. */
#define QUALITY_CURVES                                                                             \
    "SELECT c.codec, c.mode, c.rate, m.name, s.class, s.method, c.metric, c.name, c.entries, "     \
    "c.bits_per_element, c.loss_mean, c.loss_low, c.loss_high, c.loss_p90, c.loss_cv, c.kl, "      \
    "c.top1, c.nll_delta, c.rouge_l, c.f1, c.answers, c.attention_error, c.spearman_entries, "     \
    "c.repeatability, s.nll_nats "                                                                 \
    "FROM quality_curve c JOIN quality_set s ON s.id = c.set_id JOIN run r ON r.id = s.run_id "    \
    "JOIN model m ON m.id = s.model_id "

static void quality_fill(sqlite3_stmt *statement, kvt_quality_curve *out)
{
    double *const members[] = {&out->bits_per_element,
                               &out->loss_mean,
                               &out->loss_low,
                               &out->loss_high,
                               &out->loss_p90,
                               &out->loss_cv,
                               &out->kl,
                               &out->top1,
                               &out->nll_delta,
                               &out->rouge_l,
                               &out->f1,
                               &out->answers,
                               &out->attention_error,
                               &out->spearman_entries,
                               &out->repeatability,
                               &out->set_nll_nats};
    sqlite3_int64 entries = sqlite3_column_int64(statement, 8);
    out->variant = quality_column_variant(statement, 0);
    quality_copy_text(statement, 3, out->model, sizeof out->model);
    quality_copy_text(statement, 4, out->class_name, sizeof out->class_name);
    quality_copy_text(statement, 5, out->method, sizeof out->method);
    quality_copy_text(statement, 6, out->metric, sizeof out->metric);
    quality_copy_text(statement, 7, out->name, sizeof out->name);
    out->entries = entries > (sqlite3_int64)UINT32_MAX ? UINT32_MAX : (uint32_t)entries;
    for (int i = 0; i < (int)(sizeof members / sizeof members[0]); i++)
        *members[i] = quality_column(statement, 9 + i);
}

static kvt_status quality_read(profile_row *row, kvt_quality_curve *out)
{
    if (row->result == SQLITE_OK) row->result = sqlite3_step(row->statement);
    if (row->result == SQLITE_ROW) quality_fill(row->statement, out);
    int result = row->result;
    sqlite3_finalize(row->statement);
    return quality_read_status(result);
}

kvt_status kvt_profile_quality(kvt_profile *profile, kvt_variant variant, const char *model,
                               const char *class_name, kvt_quality_curve *out)
{
    assert(profile != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    profile_row row = profile_row_begin(
        profile, QUALITY_CURVES "WHERE c.codec = ?1 AND c.mode = ?2 AND c.rate = ?3 AND "
                                "(?4 IS NULL OR m.name = ?4) AND (?5 IS NULL OR s.class = ?5) "
                                "ORDER BY " PROFILE_ORDER ", s.id DESC LIMIT 1");
    quality_bind_variant(&row, variant);
    profile_row_text(&row, model);
    profile_row_text(&row, class_name);
    return quality_read(&row, out);
}

kvt_status kvt_profile_quality_at(kvt_profile *profile, size_t index, kvt_quality_curve *out)
{
    assert(profile != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    profile_row row = profile_row_begin(
        profile, QUALITY_CURVES
        "WHERE s.id = (SELECT t.id FROM quality_set t JOIN run r ON r.id = t.run_id WHERE "
        "t.model_id = s.model_id AND t.class = s.class AND t.method = s.method AND EXISTS (SELECT "
        "1 "
        "FROM quality_curve d WHERE d.set_id = t.id) ORDER BY " PROFILE_ORDER
        ", t.id DESC LIMIT 1) ORDER BY m.name, s.class, s.method, c.bits_per_element DESC, c.name "
        "LIMIT 1 OFFSET ?1");
    profile_row_integer(&row, index);
    kvt_status status = quality_read(&row, out);
    return status == KVT_MISS ? KVT_END : status;
}
