/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_internal.h - the profile database inside the estimator: schema owner, writers, helpers.
 * Thread rule: as profile.h says, one profile belongs to one thread at a time.
 */
#ifndef ESTIMATOR_PROFILE_INTERNAL_H
#define ESTIMATOR_PROFILE_INTERNAL_H

#include "profile.h"
#include "tiers/devices/device_ops.h"

#include <sqlite3.h>
#include <stdint.h>

/* ---- the machine that a profile is bound to; reads /etc and /proc each time ---- */

typedef struct estimator_host {
    char identity[192]; /* stable over reboots; a profile is bound to it and to cpu_model */
    char cpu_model[96];
    char name[72];
    char kernel[160];
    uint32_t cpu_count;
    uint64_t memory_bytes;
} estimator_host;

/* ---- the database ---- */

struct kvt_profile {
    sqlite3 *database;
    bool writable;
    estimator_host host;
};

/* The schema's texts; the database's own texts must equal these. */
#define PROFILE_APPLICATION_ID 0x4b565450 /* "KVTP" */
#define PROFILE_SCHEMA_VERSION 4

/* Questions of a calibration whose answers are figures: what 90 % of entries in a variant lose at
 * most, the variant's name behind it; the factor in all bounds for a class that was not measured.
 */
#define PROFILE_ENTRY_LIMIT "loss of nine entries in ten: "
#define PROFILE_WIDENING    "bounds: factor for a class never measured"

typedef struct profile_table {
    const char *name;
    const char *sql;
    const char *bounds; /* a condition that every row meets */
} profile_table;

#define PROFILE_QUALITY_TABLE_COUNT 12u
extern const profile_table profile_quality_tables[PROFILE_QUALITY_TABLE_COUNT];

/* All tables, those that others refer to first. NULL past the last. */
const profile_table *profile_table_at(size_t index);

/* ---- profile_check.c ---- */

/* SQLite's result as ours. */
kvt_status profile_status(int sqlite_result);

void profile_say(char *message, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs a statement whose first row is text; found is false when there is no row. */
int profile_text(sqlite3 *database, const char *sql, const char *bound, char *text, size_t size,
                 bool *found);

/* KVT_OK when this build reads the schema `version`, else KVT_E_VERSION with a message. */
KVT_NODISCARD kvt_status profile_compare_version(const char *path, uint32_t version, char *message,
                                                 size_t size);
/* The same for the version that SQLite reads; or SQLite's error. */
KVT_NODISCARD kvt_status profile_check_version(kvt_profile *profile, const char *path,
                                               char *message, size_t size);
/* Sound pages, these tables, every row within its bounds, nothing else in the schema. */
KVT_NODISCARD kvt_status profile_check_content(const kvt_profile *profile, const char *path,
                                               char *message, size_t size);
KVT_NODISCARD kvt_status profile_check_host(const kvt_profile *profile, const char *path,
                                            char *message, size_t size);

/* ---- profile_ladder.c ---- */

/* Of the measured variant of the same codec whose size is nearest: calibrated steps are finer than
 * the list of variants that are timed, and a codec's speed changes little along them. Of variants
 * that drop tokens first, one that does not may stand for those. A basis has a speed of its own. */
KVT_NODISCARD kvt_status profile_ladder_near_speed(kvt_profile *profile,
                                                   const kvt_codec_curve *curve,
                                                   kvt_codec_curve *speed);

/* ---- profile_basis.c ---- */

/* Whether a path names a .kvtbasis file, and such a file as profile_basis_import takes it;
 * KVT_E_PARSE (the file is no sound basis), KVT_E_GONE and KVT_E_IO besides, with a message. */
bool profile_basis_is_file(const char *path);
KVT_NODISCARD kvt_status profile_basis_import_file(kvt_profile *profile, const char *path,
                                                   const char *source, const char *command_line,
                                                   char *message, size_t message_size);

/* ---- profile_write.c ---- */

/* "0.2.0" */
extern const char profile_library_version[];

/* Binds a statement's values in order; the first error is kept and makes the rest do nothing. */
typedef struct profile_row {
    sqlite3_stmt *statement;
    int column;
    int result;
} profile_row;

profile_row profile_row_begin(kvt_profile *profile, const char *sql);
void profile_row_text(profile_row *row, const char *text); /* NULL as NULL; lives until the end */
void profile_row_integer(profile_row *row, uint64_t value);
void profile_row_real(profile_row *row, double value);
void profile_row_measure(profile_row *row, double value); /* not finite: NULL, not measured */
int profile_row_end(profile_row *row);                    /* SQLITE_OK or an error */

/* One run of measuring: rows that belong to it count for readers once it is complete. */
KVT_NODISCARD kvt_status profile_run_begin(kvt_profile *profile, const char *kind,
                                           const char *command_line, uint64_t seed,
                                           int64_t *run_out);
/* The same for figures from elsewhere; an import's source is not empty. */
KVT_NODISCARD kvt_status profile_run_begin_source(kvt_profile *profile, const char *kind,
                                                  const char *source, const char *command_line,
                                                  uint64_t seed, int64_t *run_out);
KVT_NODISCARD kvt_status profile_run_complete(kvt_profile *profile, int64_t run);

/* A device of a run, and its points as they come. */
KVT_NODISCARD kvt_status profile_device_insert(kvt_profile *profile, int64_t run,
                                               const kvt_device *device, kvt_tier tier,
                                               int64_t *device_row_out);
KVT_NODISCARD kvt_status profile_point_insert(kvt_profile *profile, int64_t device_row,
                                              const kvt_device_point *point,
                                              uint32_t depth_achieved, const kvt_affine *fit);
/* Replaces a row of the same size, depth and share. */
KVT_NODISCARD kvt_status profile_mixed_insert(kvt_profile *profile, int64_t device_row,
                                              const kvt_device_mixed *mixed);
/* Replaces rows of the same sizes and begins, all in one transaction. */
KVT_NODISCARD kvt_status profile_starts_insert(kvt_profile *profile, int64_t device_row,
                                               const kvt_device_start *starts, uint32_t count);
/* The instruction set of kernels of a GPU, whose rows answer for no decoding by the CPU. */
#define PROFILE_ISA_GPU "cuda"

/* isa: codecs_cpu_name, or that; source: "sample", or what the KV came from. */
KVT_NODISCARD kvt_status profile_codec_insert(kvt_profile *profile, int64_t run,
                                              const kvt_codec_curve *curve, const char *isa,
                                              uint32_t threads, const char *source,
                                              uint64_t source_bytes, uint32_t repetitions);

/* Defaults of a request. */
typedef struct profile_settings {
    double seconds_per_point;
    uint32_t repetitions;
    bool quick;
    const char *command_line;
    double resume_seconds;
    kvt_profile_progress *progress;
    void *progress_context;
} profile_settings;

#define PROFILE_DEVICE_SEED UINT64_C(20261120)

/* The run to go on with, for conditions that both measurements share; `r` is the run. Bind 1 kind,
 * 2 command line, 3 seed, 4 age in seconds, 5 host, 6 kernel, 7 version. */
#define PROFILE_OPEN_RUN                                                                           \
    "r.complete = 0 AND r.kind = ?1 AND r.command_line IS ?2 AND r.seed = ?3 AND "                 \
    "86400 * (julianday('now') - julianday(r.started_utc)) <= ?4 AND r.host_identity = ?5 AND "    \
    "r.kernel = ?6 AND r.library_version = ?7"

/* Binds 1 to 7 of PROFILE_OPEN_RUN. */
void profile_row_open_run(profile_row *row, const kvt_profile *profile, const char *kind,
                          uint64_t seed, const profile_settings *settings);

/* KVT_OK; KVT_E_ARGUMENT when the request is not one of this version or holds a bad number. */
KVT_NODISCARD kvt_status profile_settings_read(const kvt_profile_request *request,
                                               profile_settings *out);

/* The affine model of one direction from its points (docs/PROFILE.md says how). False when they
 * hold no depth-1 point. */
bool profile_fit_points(const kvt_device_point *points, size_t count, uint8_t kind,
                        kvt_affine *out);

/* Sorts in place; the middle one, or the mean of the two middle ones. count > 0. */
double profile_median(double *values, size_t count);

/* SplitMix64: the next number of a seeded sequence. */
uint64_t profile_random(uint64_t *state);

/* ---- which run answers for what ---- */

/*
 * All queries in SQL share this rule: what was measured here before what was imported, a complete
 * run before an interrupted one, a newer one before an older one.
 */

/* ORDER BY terms of run r, best first. */
#define PROFILE_ORDER "r.kind = 'import', r.complete DESC, r.id DESC"

/* In a source, before the version of the library that measured; exports write it and imports keep
 * it. */
#define PROFILE_MEASURED_BY " by kvterrace "

/* Whether run r, or what run r is an import of, was measured by the library version ?1. */
#define PROFILE_OF_VERSION                                                                         \
    "iif(r.kind <> 'import', r.library_version = ?1, "                                             \
    "instr(r.source, '" PROFILE_MEASURED_BY "' || ?1 || ':') + "                                   \
    "instr(r.source, '" PROFILE_MEASURED_BY "' || ?1 || ',') > 0)"

/*
 * Common table expressions; a SELECT follows. place: runs in the order above. ?1 is NULL, or 0 for
 * measured runs alone, or 1 for imports alone. reads and writes: the device rows that answer by
 * name, the writes of the same hardware or file as the reads. SQLite gives the columns beside a
 * min() from the row that has it.
 */
#define PROFILE_DEVICES                                                                            \
    "WITH place (run_id, place) AS (SELECT r.id, row_number() OVER (ORDER BY " PROFILE_ORDER       \
    ") FROM run r WHERE ?1 IS NULL OR (r.kind = 'import') = ?1), "                                 \
    "reads AS (SELECT d.name, d.identity, d.id AS device_id, d.run_id, min(p.place) AS place "     \
    "FROM device d JOIN place p USING (run_id) JOIN device_fit f ON f.device_id = d.id AND "       \
    "f.kind = 0 GROUP BY d.name), "                                                                \
    "writes AS (SELECT d.name, d.id AS device_id, d.run_id, min(p.place) AS place FROM device d "  \
    "JOIN place p USING (run_id) JOIN reads a ON a.name = d.name AND a.identity = d.identity "     \
    "JOIN device_fit f ON f.device_id = d.id AND f.kind = 1 GROUP BY d.name), "                    \
    "mixed AS (SELECT d.name, d.id AS device_id, d.run_id, min(p.place) AS place FROM device d "   \
    "JOIN place p USING (run_id) JOIN reads a ON a.name = d.name AND a.identity = d.identity "     \
    "JOIN device_mixed m ON m.device_id = d.id GROUP BY d.name), "                                 \
    "speeds AS (SELECT c.*, min(p.place) AS place FROM codec_curve c JOIN place p USING (run_id) " \
    "GROUP BY c.codec, c.mode, c.rate, c.isa, c.threads, c.source), "                              \
    "learning AS (SELECT l.*, min(p.place) AS place FROM learned l JOIN place p USING (run_id) "   \
    "GROUP BY l.kind, l.name, l.part), "                                                           \
    "passing AS (SELECT t.name, t.run_id, min(p.place) AS place FROM pass t JOIN place p "         \
    "USING (run_id) GROUP BY t.name)"

/* The same, and the runs of devices, codecs and stores that answer for anything. */
#define PROFILE_ANSWERING                                                                          \
    PROFILE_DEVICES                                                                                \
    ", answering (run_id) AS (SELECT run_id FROM reads UNION SELECT run_id FROM writes UNION "     \
    "SELECT run_id FROM mixed UNION SELECT run_id FROM speeds UNION SELECT run_id FROM learning "  \
    "UNION SELECT run_id FROM passing) "

#endif
