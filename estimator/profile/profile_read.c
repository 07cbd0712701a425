/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_read.c - curves out of the profile database. The newest complete run that measured a
 * thing answers for it; a run that was interrupted answers only when there is no complete one, and
 * an import only for what was never measured.
 * Reads and writes of a device are two things: a device with content is measured again by reads
 * alone, and that does not make what is known of its writes untrue.
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROFILE_NEWEST(column, kind, also)                                                         \
    "SELECT d." column " FROM device d JOIN run r ON r.id = d.run_id WHERE d.name = ?1 AND "       \
    "EXISTS (SELECT 1 FROM device_fit f WHERE f.device_id = d.id AND f.kind = " kind ") " also     \
    "ORDER BY " PROFILE_ORDER " LIMIT 1"

/* A device counts once its reads are fitted: loads are what options are built from. */
#define PROFILE_NEWEST_DEVICE PROFILE_NEWEST("id", "0", "")

/* Its writes may be of an older run, but of the same hardware or file. */
#define PROFILE_NEWEST_WRITES                                                                      \
    PROFILE_NEWEST("id", "1", "AND d.identity = (" PROFILE_NEWEST("identity", "0", "") ") ")

/* Readers document KVT_E_DATABASE for whatever SQLite says. */
static kvt_status profile_read_status(int result)
{
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}

static void profile_copy_text(sqlite3_stmt *statement, int column, char *text, size_t size)
{
    const unsigned char *value = sqlite3_column_text(statement, column);
    snprintf(text, size, "%s", value != NULL ? (const char *)value : "");
}

static uint32_t profile_column_u32(sqlite3_stmt *statement, int column)
{
    sqlite3_int64 value = sqlite3_column_int64(statement, column);
    return value < 0 ? 0 : value > (sqlite3_int64)UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static int profile_prepare_named(kvt_profile *profile, const char *sql, const char *name,
                                 sqlite3_stmt **statement_out)
{
    int result = sqlite3_prepare_v2(profile->database, sql, -1, statement_out, NULL);
    if (result != SQLITE_OK) return result;
    return sqlite3_bind_text(*statement_out, 1, name, -1, SQLITE_STATIC);
}

static void profile_fill_device(sqlite3_stmt *statement, kvt_device_curve *out)
{
    profile_copy_text(statement, 0, out->device, sizeof out->device);
    profile_copy_text(statement, 1, out->identity, sizeof out->identity);
    profile_copy_text(statement, 2, out->engine, sizeof out->engine);
    out->tier = (uint8_t)sqlite3_column_int(statement, 3);
    out->direct = sqlite3_column_int(statement, 4) != 0;
    out->emulated = sqlite3_column_int(statement, 5) != 0;
    out->capacity_bytes = (uint64_t)sqlite3_column_int64(statement, 6);
    out->depth_achieved = profile_column_u32(statement, 7);
    out->imported = sqlite3_column_int(statement, 14) != 0;
    kvt_affine *fits[] = {&out->read, &out->write};
    for (int i = 0; i < 2; i++) { /* NULL columns of a direction not measured read as 0 */
        fits[i]->request_seconds = sqlite3_column_double(statement, 8 + 3 * i);
        fits[i]->bytes_per_s = sqlite3_column_double(statement, 9 + 3 * i);
        fits[i]->residual = sqlite3_column_double(statement, 10 + 3 * i);
    }
}

kvt_status kvt_profile_device(kvt_profile *profile, const char *device, kvt_device_curve *out)
{
    assert(profile != NULL && device != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    int result = profile_prepare_named(
        profile,
        "SELECT d.name, d.identity, d.engine, d.tier, d.direct, d.emulated, d.capacity_bytes, "
        "d.depth_achieved, a.request_seconds, a.bytes_per_s, a.residual, b.request_seconds, "
        "b.bytes_per_s, b.residual, (SELECT kind = 'import' FROM run WHERE id = d.run_id) "
        "FROM device d "
        "JOIN device_fit a ON a.device_id = d.id AND a.kind = 0 "
        "LEFT JOIN device_fit b ON b.device_id = (" PROFILE_NEWEST_WRITES ") AND b.kind = 1 "
        "WHERE d.id = (" PROFILE_NEWEST_DEVICE ")",
        device, &statement);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) profile_fill_device(statement, out);
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? KVT_MISS : profile_read_status(result);
}

kvt_status kvt_profile_device_at(kvt_profile *profile, size_t index, kvt_device_curve *out)
{
    assert(profile != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    char name[sizeof out->device] = "";
    memset(out, 0, sizeof *out);
    int result = sqlite3_prepare_v2(
        profile->database,
        "SELECT DISTINCT d.name FROM device d WHERE EXISTS (SELECT 1 FROM device_fit f WHERE "
        "f.device_id = d.id AND f.kind = 0) ORDER BY d.name LIMIT 1 OFFSET ?1",
        -1, &statement, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(statement, 1, (sqlite3_int64)index);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) profile_copy_text(statement, 0, name, sizeof name);
    sqlite3_finalize(statement);
    if (result == SQLITE_DONE) return KVT_END;
    if (result != SQLITE_ROW) return profile_read_status(result);
    return kvt_profile_device(profile, name, out);
}

kvt_status kvt_profile_mix_kept(kvt_profile *profile, const char *device, double *out)
{
    assert(profile != NULL && device != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    *out = 0;
    int result = profile_prepare_named(
        profile,
        "SELECT min(bytes_per_s / unmixed_bytes_per_s) FROM device_mixed WHERE device_id = "
        "(" PROFILE_NEWEST_WRITES ") GROUP BY request_bytes ORDER BY request_bytes DESC LIMIT 1",
        device, &statement);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) *out = fmin(sqlite3_column_double(statement, 0), 1);
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? KVT_MISS : profile_read_status(result);
}

/* A gain counts if the slowest repetition shows it over the fastest one at 4 KiB: other work on the
 * machine must not be taken for it. A begin costs up to a fortieth of the room of what lies there
 * (tiers/pool/pool_slots.c), so it has to gain twice that. Among those that do, a smaller one costs
 * less; 2 % is what repetitions differ by on a quiet machine. */
#define PROFILE_BEGIN_GAINS 1.05
#define PROFILE_BEGIN_KEEPS 0.98
#define PROFILE_BEGIN_STEPS 6 /* 4 to 128 KiB; the table's CHECK has them */

kvt_status kvt_profile_begins_at(kvt_profile *profile, const char *device, uint64_t *out)
{
    assert(profile != NULL && device != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    uint64_t begins[PROFILE_BEGIN_STEPS];
    double gains[PROFILE_BEGIN_STEPS], best = 0;
    int count = 0;
    *out = 0;
    int result = profile_prepare_named(
        profile,
        "SELECT s.begins_at, avg(s.bytes_per_s / f.bytes_per_s), "
        "avg(s.bytes_per_s_min / f.bytes_per_s_max) FROM device_start s JOIN "
        "device_start f ON f.device_id = s.device_id AND f.request_bytes = s.request_bytes AND "
        "f.begins_at = 4096 WHERE s.device_id = (" PROFILE_NEWEST_DEVICE ") "
        "GROUP BY s.begins_at ORDER BY s.begins_at",
        device, &statement);
    while (result == SQLITE_OK || result == SQLITE_ROW) {
        result = sqlite3_step(statement);
        if (result != SQLITE_ROW) break;
        assert(count < PROFILE_BEGIN_STEPS && "the table holds no other begins");
        begins[count] = (uint64_t)sqlite3_column_int64(statement, 0);
        gains[count] = sqlite3_column_double(statement, 1);
        if (sqlite3_column_double(statement, 2) <= 1) gains[count] = fmin(gains[count], 1);
        best = fmax(best, gains[count++]);
    }
    sqlite3_finalize(statement);
    if (result != SQLITE_DONE) return profile_read_status(result);
    if (count == 0) return KVT_MISS;
    *out = begins[0];
    for (int i = 0; i < count && best >= PROFILE_BEGIN_GAINS; i++) {
        if (gains[i] < PROFILE_BEGIN_KEEPS * best) continue;
        *out = begins[i];
        break;
    }
    return KVT_OK;
}

kvt_status kvt_profile_point_at(kvt_profile *profile, const char *device, size_t index,
                                kvt_device_point *out)
{
    assert(profile != NULL && device != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    int result = profile_prepare_named(
        profile,
        "SELECT kind, request_bytes, depth, repetitions, bytes_per_s, bytes_per_s_min, "
        "bytes_per_s_max, latency_seconds_p50, latency_seconds_p99 FROM device_point "
        "WHERE (kind = 0 AND device_id = (" PROFILE_NEWEST_DEVICE ")) "
        "OR (kind = 1 AND device_id = (" PROFILE_NEWEST_WRITES ")) "
        "ORDER BY kind, request_bytes, depth LIMIT 1 OFFSET ?2",
        device, &statement);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(statement, 2, (sqlite3_int64)index);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        out->kind = (uint8_t)sqlite3_column_int(statement, 0);
        out->request_bytes = profile_column_u32(statement, 1);
        out->depth = profile_column_u32(statement, 2);
        out->repetitions = profile_column_u32(statement, 3);
        out->bytes_per_s = sqlite3_column_double(statement, 4);
        out->bytes_per_s_min = sqlite3_column_double(statement, 5);
        out->bytes_per_s_max = sqlite3_column_double(statement, 6);
        out->latency_seconds_p50 = sqlite3_column_double(statement, 7);
        out->latency_seconds_p99 = sqlite3_column_double(statement, 8);
    }
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? KVT_END : profile_read_status(result);
}

kvt_status kvt_profile_codec(kvt_profile *profile, kvt_variant variant, kvt_codec_curve *out)
{
    assert(profile != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    int result = sqlite3_prepare_v2(
        profile->database,
        "SELECT c.stored_share, c.encode_bytes_per_s, c.decode_bytes_per_s, r.kind = 'import' "
        "FROM codec_curve c "
        "JOIN run r ON r.id = c.run_id WHERE c.codec = ?1 AND c.mode = ?2 AND c.rate = ?3 AND "
        "c.isa <> '" PROFILE_ISA_GPU "' "
        "ORDER BY " PROFILE_ORDER ", c.threads, c.source_bytes DESC, "
        "c.decode_bytes_per_s DESC LIMIT 1",
        -1, &statement, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(statement, 1, variant.codec);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(statement, 2, variant.mode);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(statement, 3, variant.rate);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        out->variant = variant;
        out->stored_share = sqlite3_column_double(statement, 0);
        out->encode_bytes_per_s = sqlite3_column_double(statement, 1);
        out->decode_bytes_per_s = sqlite3_column_double(statement, 2);
        out->imported = sqlite3_column_int(statement, 3) != 0;
    }
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? KVT_MISS : profile_read_status(result);
}

kvt_status kvt_profile_prefill(kvt_profile *profile, const char *name, kvt_prefill *out)
{
    assert(profile != NULL && name != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    int result = profile_prepare_named(
        profile,
        "SELECT p.linear_seconds_per_token, p.square_seconds_per_token2, p.fixed_seconds FROM "
        "prefill p JOIN run r ON r.id = p.run_id WHERE p.name = ?1 ORDER BY " PROFILE_ORDER
        " LIMIT 1",
        name, &statement);
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        out->linear_seconds_per_token = sqlite3_column_double(statement, 0);
        out->square_seconds_per_token2 = sqlite3_column_double(statement, 1);
        out->fixed_seconds = sqlite3_column_double(statement, 2);
    }
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? KVT_MISS : profile_read_status(result);
}
