/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile_import.c - curves from CSV: what comes in, whose source it carries, what
 * answers beside measurements; bad rows are named by line and nothing comes in; every column of the
 * schema is exported.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "estimator/predict/predict.h"
#include "estimator/profile/csv.h"
#include "profile_scratch.h"

#include <kvterrace/codec.h>

static char csv_path[128];

static void put_csv(const void *bytes, size_t count)
{
    snprintf(csv_path, sizeof csv_path, "%s/import.csv", scratch.folder);
    FILE *file = fopen(csv_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static kvt_status import_bytes(kvt_profile *profile, const void *bytes, size_t count,
                               const char *source, uint64_t *rows)
{
    put_csv(bytes, count);
    kvt_status status = kvt_profile_import(profile, csv_path, source, "command", rows,
                                           scratch.message, sizeof scratch.message);
    assert_int_equal(unlink(csv_path), 0);
    return status;
}

static kvt_status import_text(kvt_profile *profile, const char *text, const char *source)
{
    uint64_t rows;
    scratch.message[0] = '\0';
    return import_bytes(profile, text, strlen(text), source, &rows);
}

static void must_import(kvt_profile *profile, const char *text, const char *source)
{
    kvt_status status = import_text(profile, text, source);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), scratch.message);
}

static kvt_profile *open_new(void)
{
    scratch_remove_profile();
    return scratch_open(KVT_PROFILE_WRITE);
}

static const char device_rows[] =
    "# a comment\n"
    "[device]\n"
    "device,tier,direction,bytes_per_s,request_seconds,source\n"
    "\n"
    "fast,ssd,read,7e9,6e-5,\"a data sheet, page 2\"\r\n"
    "fast,ssd,write,5e9,2e-5,\"a data sheet, page 2\"\n"
    "slow,ssd,read,1e9,1e-4,\n"
    "[device_point]\n"
    "device,direction,request_bytes,depth,bytes_per_s,latency_seconds_p50\n"
    "slow,read,4096,1,4e7,1e-4\n"
    "[device_mixed]\n"
    "device,request_bytes,depth,read_share,bytes_per_s,unmixed_bytes_per_s,"
    "read_latency_seconds_p50,read_latency_seconds_p99\n"
    "slow,4096,8,0.5,3e8,4e8,1e-4,2e-4\n";

static void rows_carry_their_source(void **state)
{
    (void)state;
    kvt_device_curve curve;
    kvt_device_point point;
    kvt_profile *profile = open_new();
    must_import(profile, device_rows, "a paper");
    assert_int_equal(kvt_profile_device(profile, "fast", &curve), KVT_OK);
    assert_true(curve.read.bytes_per_s == 7e9 && curve.write.request_seconds == 2e-5);
    assert_int_equal(curve.tier, KVT_TIER_SSD);
    assert_int_equal(kvt_profile_point_at(profile, "slow", 0, &point), KVT_OK);
    assert_true(point.bytes_per_s_min == 4e7 && point.latency_seconds_p99 == 1e-4);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run WHERE kind = 'import' AND complete = "
                                    "1 AND command_line = 'command' AND length(library_version) > "
                                    "0 AND length(host_identity) > 0"),
                     2);
    assert_int_equal(scratch_number("SELECT count(*) FROM run r JOIN device d ON d.run_id = r.id "
                                    "WHERE (r.source = 'a data sheet, page 2' AND d.name = 'fast') "
                                    "OR (r.source = 'a paper' AND d.name = 'slow')"),
                     2);
    assert_int_equal(scratch_number("SELECT count(*) FROM device_mixed"), 1);
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(import_text(profile, device_rows, "a paper"), KVT_E_READ_ONLY);
    kvt_profile_close(profile);
}

/* A published curve answers as long as nothing is measured; not even a newer import hides what was
 * measured, and an interrupted measurement is still one. */
static void measured_before_imported(void **state)
{
    (void)state;
    kvt_device_curve curve;
    kvt_profile *profile = open_new();
    must_import(profile, device_rows, "a paper");
    scratch_measure(profile, "fast", 2000000000, 1u << 23);
    must_import(profile, device_rows, "another paper");
    assert_int_equal(kvt_profile_device(profile, "fast", &curve), KVT_OK);
    assert_true(curve.read.bytes_per_s < 2.1e9 && curve.write.bytes_per_s < 2.1e9);
    kvt_profile_close(profile);
    scratch_change("UPDATE run SET complete = 0 WHERE kind = 'device'");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(kvt_profile_device(profile, "fast", &curve), KVT_OK);
    assert_true(curve.read.bytes_per_s < 2.1e9);
    kvt_profile_close(profile);
}

static const char quality_rows[] = "[model]\n"
                                   "model,layers,kv_heads,head_dim,digest\n"
                                   "m,32,8,128,\n"
                                   "[quality]\n"
                                   "model,class,variant,metric,bits_per_element,score,score_exact,"
                                   "loss_mean,loss_low,loss_high,kl\n"
                                   "m,qa,\"kivi:k4v4,g64\",f1,4.5,48,50,,,,-1e-3\n"
                                   "m,qa,kivi:k2v2 g64,f1,2.5,,,0.25,0.2,0.3,\n"
                                   "m,qa,planes:k8v8 g64,f1,8.5,51,50,,,,\n"
                                   "m,qa,planes:k4v4 g64,f1,4.5,,,0.02,,,\n"
                                   "m,qa,kivi:k4v2 g64,f1,4.6,,,0.05,,,\n"
                                   "m,qa,kivi:k4v4 g64@row,f1,4.2,,,0.001,,,\n"
                                   "[codec]\n"
                                   "variant,stored_share,encode_bytes_per_s,decode_bytes_per_s\n"
                                   "raw,1,2e9,9e9\n"
                                   "planes:k8v8 g64,0.53,2e9,8e9\n"
                                   "planes:k4v4 g64,0.28,2e9,7e9\n"
                                   "kivi:k2v2 g64,0.16,2e9,6e9\n";

static uint32_t take_ladder(kvt_profile *profile, kvt_codec_curve *curves, uint32_t capacity)
{
    uint32_t count = 0;
    kvt_status status = kvt_profile_ladder(profile, "m", "qa", NULL, curves, capacity, &count,
                                           scratch.message, sizeof scratch.message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), scratch.message);
    return count;
}

static void ladder_from_quality_and_calibration(void **state)
{
    (void)state;
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    kvt_layout layout = {.layers = 32, .kv_heads = 8, .head_dim = 128};
    uint32_t count;
    char name[64];
    kvt_profile *profile = open_new();
    must_import(profile, quality_rows, "table 1");
    /* A score above the exact one costs nothing; of equal sizes the better one stays; a beaten one
     * and a merged row go. */
    assert_int_equal(take_ladder(profile, curves, KVT_VARIANTS_MAX), 4);
    static const char *const names[] = {"raw", "planes:k8v8,g64", "planes:k4v4,g64",
                                        "kivi:k2v2,g64"};
    static const double losses[] = {0, 0, 0.02, 0.25};
    for (size_t i = 0; i < 4; i++) {
        kvt_variant_format(curves[i].variant, name, sizeof name);
        assert_string_equal(name, names[i]);
        assert_true(curves[i].loss == losses[i]);
        assert_true(curves[i].decode_bytes_per_s == 9e9 - 1e9 * (double)i);
    }
    assert_true(curves[3].loss_upper == 0.3 && curves[3].stored_share == 2.5 / 16);
    assert_int_equal(take_ladder(profile, curves, 3), 3); /* the nearest to its neighbours' line */
    kvt_variant_format(curves[1].variant, name, sizeof name);
    assert_string_equal(name, "planes:k4v4,g64");
    /* A calibration counts for more; what it refused stays out. */
    must_import(
        profile,
        "[calibration]\nmodel,class,position,variant,bits_per_element,loss,accepted,counts\n"
        "m,qa,0,planes:k8v8 g64,8.5,0.001,1,00ff\n"
        "m,qa,1,planes:k4v4 g64,4.5,0.01,0,\n"
        "m,qa,2,kivi:k2v2 g64,2.5,0.1,1,\n"
        "[calibration_choice]\nmodel,class,question,chosen\nm,qa,split,k4v4\n",
        "own");
    assert_int_equal(take_ladder(profile, curves, KVT_VARIANTS_MAX), 3);
    assert_true(curves[1].loss == 0.001 && curves[2].loss == 0.1);
    /* Of another layout, of nobody, without a speed. */
    assert_int_equal(kvt_profile_ladder(profile, "m", "qa", &layout, curves, KVT_VARIANTS_MAX,
                                        &count, scratch.message, sizeof scratch.message),
                     KVT_OK);
    layout.kv_heads = 4;
    assert_int_equal(kvt_profile_ladder(profile, "m", "qa", &layout, curves, KVT_VARIANTS_MAX,
                                        &count, scratch.message, sizeof scratch.message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(scratch.message, "8 KV heads"));
    assert_int_equal(kvt_profile_ladder(profile, "n", "qa", NULL, curves, KVT_VARIANTS_MAX, &count,
                                        scratch.message, sizeof scratch.message),
                     KVT_MISS);
    assert_int_equal(kvt_profile_ladder(profile, "m", "code", NULL, curves, KVT_VARIANTS_MAX,
                                        &count, scratch.message, sizeof scratch.message),
                     KVT_MISS);
    kvt_profile_close(profile);
    scratch_change("DELETE FROM codec_curve WHERE name = 'kivi:k2v2,g64'");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(kvt_profile_ladder(profile, "m", "qa", NULL, curves, KVT_VARIANTS_MAX, &count,
                                        scratch.message, sizeof scratch.message),
                     KVT_MISS);
    assert_non_null(strstr(scratch.message, "kivi:k2v2,g64"));
    kvt_profile_close(profile);
}

typedef struct bad_file {
    const char *text;
    const char *expected; /* part of the message */
} bad_file;

#define DEVICE_HEAD "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
#define QUALITY_HEAD                                                                               \
    "[quality]\nmodel,class,variant,metric,bits_per_element,loss_mean,loss_low,method\n"
#define GOOD_DEVICE "good,ssd,read,1e9,1e-5\n"

static const bad_file bad_files[] = {
    {"", "no row"},
    {"# nothing\n", "no row"},
    {DEVICE_HEAD, "no row"},
    {"a,b,c\n", ":1: a line such as [quality]"},
    {"[nothing]\na,b\n", ":1: no such table"},
    {"[run]\nid\n1\n", "exported for reading"},
    {"[learned]\nkind\n1\n", "exported for reading"},
    {"[device]\ndevice,tier,direction,bytes_per_s\n", "request_seconds: the column is missing"},
    {"[device]\ndevice,tier,direction,bytes_per_s,request_seconds,color\n", "no column 'color'"},
    {"[device]\ndevice,tier,device\n", "names twice the column 'device'"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,1e9\n", ":4: 4 fields, and the header has 5"},
    {DEVICE_HEAD GOOD_DEVICE ",ssd,read,1e9,0\n", ":4: device: is empty"},
    {DEVICE_HEAD GOOD_DEVICE "d,tape,read,1e9,0\n", ":4: tier: not hbm, dram or ssd"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,both,1e9,0\n", ":4: direction: not read or write"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,0,0\n", ":4: bytes_per_s: not a number above 0"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,1e999,0\n", ":4: bytes_per_s: not a number above 0"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,nan,0\n", ":4: bytes_per_s: not a number above 0"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,0x10,0\n", ":4: bytes_per_s: not a number above 0"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,1e9,-1\n", "request_seconds: not a number of at least 0"},
    {DEVICE_HEAD GOOD_DEVICE "d,ssd,read,1e305,0\n",
     "bytes_per_s: not a number above 0, up to 1e18"},
    {DEVICE_HEAD GOOD_DEVICE "a-name-of-more-than-thirty-one-letters,ssd,read,1e9,0\n",
     "out of its bounds"},
    {DEVICE_HEAD GOOD_DEVICE GOOD_DEVICE, ":4: the same curve or point twice"},
    {DEVICE_HEAD GOOD_DEVICE "good,dram,write,1e9,1e-5\n", ":4: an earlier row of this device"},
    {DEVICE_HEAD GOOD_DEVICE "\"d,ssd,read,1e9,0\n", "a quote that is never closed"},
    {DEVICE_HEAD GOOD_DEVICE "\"d\"x,ssd,read,1e9,0\n", ":4: text behind a closing quote"},
    {"[device_point]\ndevice,direction,request_bytes,depth,bytes_per_s,latency_seconds_p50\n"
     "d,read,4096,1,1e9,0\n",
     ":3: no row of [device]"},
    {"[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s,threads\nzip,1,1,1,1\n",
     ":3: variant: no such variant"},
    {"[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s,threads\nraw,1,1,1,-1\n",
     ":3: threads: not a whole number"},
    {"[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s,threads\nraw,1,1,1,"
     "99999999999999999999\n",
     ":3: threads: not a whole number"},
    {QUALITY_HEAD "m,qa,raw,f1,16,,,\n", ":3: needs loss_mean, or score and score_exact"},
    {QUALITY_HEAD "m,qa,raw,f1,16,1.5,,\n", ":3: loss_mean: not a number from 0 to 1"},
    {QUALITY_HEAD "m,qa,raw,f1,16,0.1,0.2,\n", ":3: a value out of its bounds"},
    {QUALITY_HEAD "m,qa,raw,f1,16,0.1,,guess\n", ":3: a value out of its bounds"},
    {"[model]\nmodel,layers\nm,32\nm,16\n", ":4: the profile knows this model with another shape"},
    {"[calibration]\nmodel,class,position,variant,bits_per_element,loss,counts\n"
     "m,qa,0,raw,16,0,abc\n",
     ":3: counts: not hexadecimal bytes"},
    {"[quality_entry]\nmodel,class,entry,variant,bits_per_element\nm,qa,0,raw,16\n",
     ":3: no row of [quality]"},
};

static void bad_rows_are_named_and_nothing_comes_in(void **state)
{
    (void)state;
    kvt_profile *profile = open_new();
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        kvt_status status = import_text(profile, bad_files[i].text, "a paper");
        if (status != KVT_E_PARSE || strstr(scratch.message, bad_files[i].expected) == NULL) {
            fail_msg("file %zu: %s: %s, not %s", i, kvt_status_name(status), scratch.message,
                     bad_files[i].expected);
        }
        assert_non_null(strstr(scratch.message, "import.csv"));
    }
    assert_int_equal(import_text(profile, DEVICE_HEAD GOOD_DEVICE, NULL), KVT_E_PARSE);
    assert_non_null(strstr(scratch.message, ":3: a row without a source"));
    assert_int_equal(import_text(profile, DEVICE_HEAD GOOD_DEVICE, ""), KVT_E_PARSE);
    uint64_t rows;
    assert_int_equal(kvt_profile_import(profile, "no/such.csv", "s", NULL, &rows, scratch.message,
                                        sizeof scratch.message),
                     KVT_E_GONE);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM "
                                    "model) + (SELECT count(*) FROM device)"),
                     0);
}

/* Any byte changed, and cut anywhere: the file comes in or is refused with its line, and the
 * profile is sound either way. */
static void hostile_bytes(void **state)
{
    (void)state;
    char bytes[sizeof device_rows + sizeof quality_rows];
    uint64_t rows;
    size_t refused = 0, taken = 0;
    int count = snprintf(bytes, sizeof bytes, "%s%s", device_rows, quality_rows);
    kvt_profile *profile = NULL;
    assert_int_equal(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    static const char changes[] = {'\0', '"', ',', '\n', '9', '-', '[', (char)0xff};
    for (size_t at = 0; at < (size_t)count; at += 3) {
        char before = bytes[at];
        bytes[at] = changes[at / 3 % sizeof changes];
        kvt_status status = import_bytes(profile, bytes, (size_t)count, "s", &rows);
        bytes[at] = before;
        refused += status == KVT_E_PARSE;
        taken += status == KVT_OK;
        assert_true(status == KVT_OK || (status == KVT_E_PARSE && rows == 0));
        if (at % 9 != 0) continue;
        status = import_bytes(profile, bytes, at, "s", &rows);
        assert_true(status == KVT_OK || (status == KVT_E_PARSE && rows == 0));
    }
    kvt_profile_close(profile);
    assert_true(refused > 100 && taken > 20);
}

typedef struct column_count {
    size_t rows;
    const char *table;
} column_count;

static bool count_rows(void *context, const char *table, const kvt_profile_cell *cells,
                       size_t count)
{
    column_count *counted = context;
    counted->rows++;
    counted->table = table;
    return count > 0 && cells[0].column != NULL;
}

static bool stop_at_once(void *context, const char *table, const kvt_profile_cell *cells,
                         size_t count)
{
    (void)context;
    (void)table;
    (void)cells;
    (void)count;
    return false;
}

static void exports_by_table(void **state)
{
    (void)state;
    column_count counted = {0};
    kvt_profile *profile = open_new();
    must_import(profile, quality_rows, "table 1");
    assert_int_equal(kvt_profile_export(profile, "quality", count_rows, &counted), KVT_OK);
    assert_int_equal(counted.rows, 6);
    counted.rows = 0;
    assert_int_equal(kvt_profile_export(profile, NULL, count_rows, &counted), KVT_OK);
    assert_int_equal(counted.rows, 1 + 6 + 4);
    counted.rows = 0;
    assert_int_equal(kvt_profile_export(profile, "run", count_rows, &counted), KVT_OK);
    assert_int_equal(counted.rows, 1);
    assert_int_equal(kvt_profile_export(profile, "nothing", count_rows, &counted), KVT_E_ARGUMENT);
    assert_int_equal(kvt_profile_export(profile, NULL, stop_at_once, NULL), KVT_E_CANCELLED);
    kvt_profile_close(profile);
}

/* Tables of the schema, the sheet that shows each, and the columns that names stand for there. */
static const char *const shown[][3] = {
    {"run", "run", ""},
    {"device", "device", "id run_id"},
    {"device_point", "device_point", "device_id"},
    {"device_fit", "device", "device_id"},
    {"device_mixed", "device_mixed", "device_id"},
    {"codec_curve", "codec", "run_id codec mode rate name"},
    {"model", "model", "id"},
    {"quality_set", "quality", "id run_id model_id"},
    {"quality_curve", "quality", "set_id codec mode rate name"},
    {"quality_entry", "quality_entry", "set_id codec mode rate"},
    {"quality_map", "quality_map", "run_id model_id"},
    {"calibration", "calibration", "id run_id model_id"},
    {"calibration_rung", "calibration", "calibration_id codec mode rate name"},
    {"calibration_choice", "calibration_choice", "calibration_id"},
    {"learned", "learned", "run_id"},
    {"prefill", "prefill", "run_id"},
};

static bool sheet_shows(const char *sheet_name, const char *column)
{
    const csv_table *table = NULL;
    for (size_t i = 0; (table = csv_table_at(i)) != NULL; i++)
        if (strcmp(table->name, sheet_name) == 0) break;
    assert_non_null(table);
    char ending[64];
    snprintf(ending, sizeof ending, ".%s", column);
    for (size_t i = 0; i < table->column_count; i++) {
        const char *at = strstr(table->columns[i].sql, ending);
        if (at != NULL && strchr(" ,)", at[strlen(ending)]) != NULL) return true;
    }
    return false;
}

static void every_column_of_the_schema_is_exported(void **state)
{
    (void)state;
    kvt_profile_close(open_new());
    sqlite3 *database = NULL;
    sqlite3_stmt *row = NULL;
    size_t columns = 0;
    assert_int_equal(sqlite3_open(scratch.path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database,
                                        "SELECT s.name, c.name FROM sqlite_schema s, "
                                        "pragma_table_info(s.name) c WHERE s.type = 'table' AND "
                                        /* Its objects come in and out as files. */
                                        "s.name <> 'basis' ORDER BY s.name",
                                        -1, &row, NULL),
                     SQLITE_OK);
    while (sqlite3_step(row) == SQLITE_ROW) {
        const char *table = (const char *)sqlite3_column_text(row, 0);
        const char *column = (const char *)sqlite3_column_text(row, 1);
        size_t i = 0;
        while (i < sizeof shown / sizeof shown[0] && strcmp(shown[i][0], table) != 0)
            i++;
        if (i == sizeof shown / sizeof shown[0]) fail_msg("no sheet shows the table %s", table);
        const char *at = strstr(shown[i][2], column);
        bool named = at != NULL && (at == shown[i][2] || at[-1] == ' ');
        if (!named && !sheet_shows(shown[i][1], column))
            fail_msg("no sheet shows %s.%s", table, column);
        columns++;
    }
    assert_int_equal(sqlite3_finalize(row), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    assert_true(columns > 6 * sizeof shown / sizeof shown[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_carry_their_source),
        cmocka_unit_test(measured_before_imported),
        cmocka_unit_test(ladder_from_quality_and_calibration),
        cmocka_unit_test(bad_rows_are_named_and_nothing_comes_in),
        cmocka_unit_test(hostile_bytes),
        cmocka_unit_test(exports_by_table),
        cmocka_unit_test(every_column_of_the_schema_is_exported),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
