/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_write.c - rows into the profile database. Each function is one transaction, so a killed
 * process leaves whole points. Thread rule: as profile.h says.
 */
#include "base/order.h"
#include "estimator/profile/profile_internal.h"

#include <kvterrace/codec.h>
#include <kvterrace/kvterrace.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define PROFILE_TEXT(x)   #x
#define PROFILE_NUMBER(x) PROFILE_TEXT(x)

const char profile_library_version[] = PROFILE_NUMBER(KVT_VERSION_MAJOR) "." PROFILE_NUMBER(
    KVT_VERSION_MINOR) "." PROFILE_NUMBER(KVT_VERSION_PATCH);

profile_row profile_row_begin(kvt_profile *profile, const char *sql)
{
    profile_row row = {NULL, 0, SQLITE_OK};
    row.result = sqlite3_prepare_v2(profile->database, sql, -1, &row.statement, NULL);
    return row;
}

void profile_row_text(profile_row *row, const char *text)
{
    row->column++;
    if (row->result != SQLITE_OK) return;
    row->result = text == NULL
                      ? sqlite3_bind_null(row->statement, row->column)
                      : sqlite3_bind_text(row->statement, row->column, text, -1, SQLITE_STATIC);
}

void profile_row_integer(profile_row *row, uint64_t value)
{
    row->column++;
    if (value > INT64_MAX) value = INT64_MAX;
    if (row->result != SQLITE_OK) return;
    row->result = sqlite3_bind_int64(row->statement, row->column, (sqlite3_int64)value);
}

void profile_row_real(profile_row *row, double value)
{
    row->column++;
    if (row->result != SQLITE_OK) return;
    row->result = sqlite3_bind_double(row->statement, row->column, value);
}

void profile_row_measure(profile_row *row, double value)
{
    if (isfinite(value)) {
        profile_row_real(row, value);
    } else {
        profile_row_text(row, NULL);
    }
}

int profile_row_end(profile_row *row)
{
    if (row->result == SQLITE_OK) row->result = sqlite3_step(row->statement);
    if (row->result == SQLITE_DONE || row->result == SQLITE_ROW) row->result = SQLITE_OK;
    sqlite3_finalize(row->statement);
    return row->result;
}

kvt_status profile_run_begin(kvt_profile *profile, const char *kind, const char *command_line,
                             uint64_t seed, int64_t *run_out)
{
    return profile_run_begin_source(profile, kind, "", command_line, seed, run_out);
}

kvt_status profile_run_begin_source(kvt_profile *profile, const char *kind, const char *source,
                                    const char *command_line, uint64_t seed, int64_t *run_out)
{
    if (!profile->writable) return KVT_E_READ_ONLY;
    profile_row row = profile_row_begin(
        profile,
        "INSERT INTO run (kind, host_identity, host_name, kernel, cpu_model, cpu_count, "
        "memory_bytes, started_utc, library_version, sqlite_version, zstd_version, command_line, "
        "seed, source) VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), ?, ?, "
        "?, ?, ?, ?)");
    profile_row_text(&row, kind);
    profile_row_text(&row, profile->host.identity);
    profile_row_text(&row, profile->host.name);
    profile_row_text(&row, profile->host.kernel);
    profile_row_text(&row, profile->host.cpu_model);
    profile_row_integer(&row, profile->host.cpu_count);
    profile_row_integer(&row, profile->host.memory_bytes);
    profile_row_text(&row, profile_library_version);
    profile_row_text(&row, sqlite3_libversion());
    profile_row_text(&row, ZSTD_versionString());
    profile_row_text(&row, command_line);
    profile_row_integer(&row, seed);
    profile_row_text(&row, source);
    kvt_status status = profile_status(profile_row_end(&row));
    *run_out = sqlite3_last_insert_rowid(profile->database);
    return status;
}

void profile_row_open_run(profile_row *row, const kvt_profile *profile, const char *kind,
                          uint64_t seed, const profile_settings *settings)
{
    profile_row_text(row, kind);
    profile_row_text(row, settings->command_line);
    profile_row_integer(row, seed);
    profile_row_real(row, settings->resume_seconds);
    profile_row_text(row, profile->host.identity);
    profile_row_text(row, profile->host.kernel);
    profile_row_text(row, profile_library_version);
}

kvt_status profile_run_complete(kvt_profile *profile, int64_t run)
{
    profile_row row = profile_row_begin(
        profile, "UPDATE run SET complete = 1, finished_utc = strftime('%Y-%m-%dT%H:%M:%SZ', "
                 "'now') WHERE id = ?");
    profile_row_integer(&row, (uint64_t)run);
    return profile_status(profile_row_end(&row));
}

kvt_status profile_device_insert(kvt_profile *profile, int64_t run, const kvt_device *device,
                                 kvt_tier tier, int64_t *device_row_out)
{
    const kvt_device_facts *facts = &device->facts;
    profile_row row = profile_row_begin(
        profile, "INSERT INTO device (run_id, name, identity, engine, tier, direct, emulated, "
                 "virtual_time, capacity_bytes, request_bytes_max, depth_max, depth_achieved) "
                 "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_text(&row, device->name);
    profile_row_text(&row, facts->identity);
    profile_row_text(&row, facts->engine);
    profile_row_integer(&row, (uint64_t)tier);
    profile_row_integer(&row, (facts->flags & KVT_DEVICE_DIRECT) != 0);
    profile_row_integer(&row, (facts->flags & KVT_DEVICE_EMULATED) != 0);
    profile_row_integer(&row, (facts->flags & KVT_DEVICE_VIRTUAL_TIME) != 0);
    profile_row_integer(&row, facts->capacity_bytes);
    profile_row_integer(&row, facts->request_bytes_max);
    profile_row_integer(&row, facts->depth_max);
    profile_row_integer(&row, facts->depth_achieved);
    kvt_status status = profile_status(profile_row_end(&row));
    *device_row_out = sqlite3_last_insert_rowid(profile->database);
    return status;
}

static int profile_write_point(kvt_profile *profile, int64_t device_row,
                               const kvt_device_point *point)
{
    profile_row row = profile_row_begin(
        profile, "INSERT INTO device_point (device_id, kind, request_bytes, depth, repetitions, "
                 "bytes_per_s, bytes_per_s_min, bytes_per_s_max, latency_seconds_p50, "
                 "latency_seconds_p99) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)device_row);
    profile_row_integer(&row, point->kind);
    profile_row_integer(&row, point->request_bytes);
    profile_row_integer(&row, point->depth);
    profile_row_integer(&row, point->repetitions);
    profile_row_real(&row, point->bytes_per_s);
    profile_row_real(&row, point->bytes_per_s_min);
    profile_row_real(&row, point->bytes_per_s_max);
    profile_row_real(&row, point->latency_seconds_p50);
    profile_row_real(&row, point->latency_seconds_p99);
    return profile_row_end(&row);
}

static int profile_write_fit(kvt_profile *profile, int64_t device_row, uint8_t kind,
                             const kvt_affine *fit)
{
    profile_row row = profile_row_begin(
        profile, "INSERT OR REPLACE INTO device_fit (device_id, kind, request_seconds, "
                 "bytes_per_s, residual) VALUES (?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)device_row);
    profile_row_integer(&row, kind);
    profile_row_real(&row, fit->request_seconds);
    profile_row_real(&row, fit->bytes_per_s);
    profile_row_real(&row, fit->residual);
    return profile_row_end(&row);
}

kvt_status profile_point_insert(kvt_profile *profile, int64_t device_row,
                                const kvt_device_point *point, uint32_t depth_achieved,
                                const kvt_affine *fit)
{
    int result = sqlite3_exec(profile->database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    result = profile_write_point(profile, device_row, point);
    if (result == SQLITE_OK && fit != NULL) {
        result = profile_write_fit(profile, device_row, point->kind, fit);
    }
    if (result == SQLITE_OK) {
        profile_row row =
            profile_row_begin(profile, "UPDATE device SET depth_achieved = ? WHERE id = ?");
        profile_row_integer(&row, depth_achieved);
        profile_row_integer(&row, (uint64_t)device_row);
        result = profile_row_end(&row);
    }
    if (result == SQLITE_OK) result = sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL);
    if (result != SQLITE_OK) (void)sqlite3_exec(profile->database, "ROLLBACK", NULL, NULL, NULL);
    return profile_status(result);
}

kvt_status profile_mixed_insert(kvt_profile *profile, int64_t device_row,
                                const kvt_device_mixed *mixed)
{
    profile_row row = profile_row_begin(
        profile, "INSERT OR REPLACE INTO device_mixed (device_id, request_bytes, depth, "
                 "read_share, repetitions, bytes_per_s, unmixed_bytes_per_s, "
                 "read_latency_seconds_p50, read_latency_seconds_p99) "
                 "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)device_row);
    profile_row_integer(&row, mixed->request_bytes);
    profile_row_integer(&row, mixed->depth);
    profile_row_real(&row, mixed->read_share);
    profile_row_integer(&row, mixed->repetitions);
    profile_row_real(&row, mixed->bytes_per_s);
    profile_row_real(&row, mixed->unmixed_bytes_per_s);
    profile_row_real(&row, mixed->read_latency_seconds_p50);
    profile_row_real(&row, mixed->read_latency_seconds_p99);
    return profile_status(profile_row_end(&row));
}

static int profile_write_start(kvt_profile *profile, int64_t device_row,
                               const kvt_device_start *start)
{
    profile_row row = profile_row_begin(
        profile, "INSERT OR REPLACE INTO device_start (device_id, request_bytes, begins_at, depth, "
                 "repetitions, bytes_per_s, bytes_per_s_min, bytes_per_s_max) "
                 "VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)device_row);
    profile_row_integer(&row, start->request_bytes);
    profile_row_integer(&row, start->begins_at);
    profile_row_integer(&row, start->depth);
    profile_row_integer(&row, start->repetitions);
    profile_row_real(&row, start->bytes_per_s);
    profile_row_real(&row, start->bytes_per_s_min);
    profile_row_real(&row, start->bytes_per_s_max);
    return profile_row_end(&row);
}

kvt_status profile_starts_insert(kvt_profile *profile, int64_t device_row,
                                 const kvt_device_start *starts, uint32_t count)
{
    int result = sqlite3_exec(profile->database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    for (uint32_t i = 0; i < count && result == SQLITE_OK; i++)
        result = profile_write_start(profile, device_row, &starts[i]);
    if (result == SQLITE_OK) result = sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL);
    if (result != SQLITE_OK) (void)sqlite3_exec(profile->database, "ROLLBACK", NULL, NULL, NULL);
    return profile_status(result);
}

kvt_status profile_codec_insert(kvt_profile *profile, int64_t run, const kvt_codec_curve *curve,
                                const char *isa, uint32_t threads, const char *source,
                                uint64_t source_bytes, uint32_t repetitions)
{
    char name[64];
    kvt_variant_format(curve->variant, name, sizeof name);
    profile_row row = profile_row_begin(
        profile, "INSERT INTO codec_curve (run_id, codec, mode, rate, isa, threads, source, name, "
                 "stored_share, encode_bytes_per_s, decode_bytes_per_s, source_bytes, "
                 "repetitions) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_integer(&row, curve->variant.codec);
    profile_row_integer(&row, curve->variant.mode);
    profile_row_integer(&row, curve->variant.rate);
    profile_row_text(&row, isa);
    profile_row_integer(&row, threads);
    profile_row_text(&row, source);
    profile_row_text(&row, name);
    profile_row_real(&row, curve->stored_share);
    profile_row_real(&row, curve->encode_bytes_per_s);
    profile_row_real(&row, curve->decode_bytes_per_s);
    profile_row_integer(&row, source_bytes);
    profile_row_integer(&row, repetitions);
    return profile_status(profile_row_end(&row));
}

/* ---- what both measurements share: a request's defaults, medians, seeded numbers ---- */

#define PROFILE_SECONDS_DEFAULT     0.05
#define PROFILE_SECONDS_QUICK       0.03
#define PROFILE_REPETITIONS_DEFAULT 5u
#define PROFILE_REPETITIONS_QUICK   3u
#define PROFILE_REPETITIONS_MAX     1000u
#define PROFILE_RESUME_MAX          (366.0 * 86400.0)

kvt_status profile_settings_read(const kvt_profile_request *request, profile_settings *out)
{
    memset(out, 0, sizeof *out);
    out->seconds_per_point = PROFILE_SECONDS_DEFAULT;
    out->repetitions = PROFILE_REPETITIONS_DEFAULT;
    if (request == NULL) return KVT_OK;
    if (request->struct_size != sizeof *request) return KVT_E_ARGUMENT;
    if (!(request->seconds_per_point >= 0.0 && request->seconds_per_point <= 3600.0) ||
        request->repetitions > PROFILE_REPETITIONS_MAX || !(request->resume_seconds >= 0.0)) {
        return KVT_E_ARGUMENT;
    }
    if (request->quick) {
        out->seconds_per_point = PROFILE_SECONDS_QUICK;
        out->repetitions = PROFILE_REPETITIONS_QUICK;
    }
    out->resume_seconds = fmin(request->resume_seconds, PROFILE_RESUME_MAX);
    if (request->seconds_per_point > 0.0) out->seconds_per_point = request->seconds_per_point;
    if (request->repetitions > 0) out->repetitions = request->repetitions;
    out->quick = request->quick;
    out->command_line = request->command_line;
    out->progress = request->progress;
    out->progress_context = request->progress_context;
    return KVT_OK;
}

double profile_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, base_order_doubles);
    size_t middle = count / 2;
    return count % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

uint64_t profile_random(uint64_t *state)
{
    uint64_t value = (*state += UINT64_C(0x9e3779b97f4a7c15));
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}
