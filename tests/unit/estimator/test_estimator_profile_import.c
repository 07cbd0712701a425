/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile_import.c - curves from a document of rows: what comes in, whose source it
 * carries, what answers beside measurements; bad rows are named down to the field and nothing comes
 * in; every column of the schema is exported; ladders in files.
 */

#include "cases.h"
#include "estimator/exchange/exchange_rows.h"
#include "estimator/predict/predict.h"
#include "profile_scratch.h"
#include "rows_text.h"

#include <kvterrace/codec.h>

static kvt_status import_bytes(kvt_profile *profile, const void *bytes, size_t count,
                               const char *source, uint64_t *rows)
{
    char path[128];
    snprintf(path, sizeof path, "%s/import.json", scratch.folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    kvt_status status = exchange_import(profile, path, source, "command", rows, scratch.message,
                                        sizeof scratch.message);
    assert_int_equal(unlink(path), 0);
    return status;
}

/* The tables of rows_text.h as a document. */
static kvt_status import_text(kvt_profile *profile, const char *text, const char *source)
{
    uint64_t rows;
    json_t *document = exchange_document("", rows_text_tables(text));
    char *bytes = json_dumps(document, 0);
    assert_non_null(bytes);
    scratch.message[0] = '\0';
    kvt_status status = import_bytes(profile, bytes, strlen(bytes), source, &rows);
    free(bytes);
    json_decref(document);
    return status;
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
    "[device]\n"
    "device,tier,direction,bytes_per_s,request_seconds,source\n"
    "fast,ssd,read,7e9,6e-5,a data sheet; page 2\n"
    "fast,ssd,write,5e9,2e-5,a data sheet; page 2\n"
    "slow,ssd,read,1e9,1e-4,\n"
    "[device_point]\n"
    "device,direction,request_bytes,depth,bytes_per_s,latency_seconds_p50\n"
    "slow,read,4096,1,4e7,1e-4\n"
    "[device_mixed]\n"
    "device,request_bytes,depth,read_share,bytes_per_s,unmixed_bytes_per_s,"
    "read_latency_seconds_p50,read_latency_seconds_p99\n"
    "slow,4096,8,0.5,3e8,4e8,1e-4,2e-4\n"
    "[device_start]\n"
    "device,request_bytes,begins_at,depth,bytes_per_s\n"
    "slow,32768,4096,8,3e8\n"
    "slow,32768,65536,8,4e8\n";

TEST_ALL(scratch_make, scratch_remove);

TEST(rows_carry_their_source)
{
    kvt_device_curve curve;
    kvt_device_point point;
    kvt_profile *profile = open_new();
    must_import(profile, device_rows, "a paper");
    assert_ok(kvt_profile_device(profile, "fast", &curve));
    assert_true(curve.read.bytes_per_s == 7e9 && curve.write.request_seconds == 2e-5);
    assert_int_equal(curve.tier, KVT_TIER_SSD);
    assert_ok(kvt_profile_point_at(profile, "slow", 0, &point));
    assert_true(point.bytes_per_s_min == 4e7 && point.latency_seconds_p99 == 1e-4);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run WHERE kind = 'import' AND complete = "
                                    "1 AND command_line = 'command' AND length(library_version) > "
                                    "0 AND length(host_identity) > 0"),
                     2);
    assert_int_equal(scratch_number("SELECT count(*) FROM run r JOIN device d ON d.run_id = r.id "
                                    "WHERE (r.source = 'a data sheet; page 2' AND d.name = 'fast') "
                                    "OR (r.source = 'a paper' AND d.name = 'slow')"),
                     2);
    assert_int_equal(scratch_number("SELECT count(*) FROM device_mixed"), 1);
    assert_int_equal(scratch_number("SELECT count(*) FROM device_start"), 2);
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(import_text(profile, device_rows, "a paper"), KVT_E_READ_ONLY);
    kvt_profile_close(profile);
}

/* A published curve answers as long as nothing is measured; not even a newer import hides what was
 * measured, and an interrupted measurement is still one. */
TEST(measured_before_imported)
{
    kvt_device_curve curve;
    kvt_profile *profile = open_new();
    must_import(profile, device_rows, "a paper");
    scratch_measure(profile, "fast", 2000000000, 1u << 23);
    must_import(profile, device_rows, "another paper");
    assert_ok(kvt_profile_device(profile, "fast", &curve));
    assert_true(curve.read.bytes_per_s < 2.1e9 && curve.write.bytes_per_s < 2.1e9);
    kvt_profile_close(profile);
    scratch_change("UPDATE run SET complete = 0 WHERE kind = 'device'");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "fast", &curve));
    assert_true(curve.read.bytes_per_s < 2.1e9);
    kvt_profile_close(profile);
}

static const char quality_rows[] = "[model]\n"
                                   "model,layers,kv_heads,head_dim,digest\n"
                                   "m,32,8,128,\n"
                                   "[quality]\n"
                                   "model,class,variant,metric,bits_per_element,score,score_exact,"
                                   "loss_mean,loss_low,loss_high,kl\n"
                                   "m,qa,kivi:k4v4 g64,f1,4.5,48,50,,,,-1e-3\n"
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
    kvt_status status = exchange_ladder(profile, "m", "qa", NULL, curves, capacity, &count,
                                        scratch.message, sizeof scratch.message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), scratch.message);
    return count;
}

TEST(ladder_from_quality_and_calibration)
{
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
    assert_int_equal(take_ladder(profile, curves, 3), 3);
    kvt_variant_format(curves[2].variant, name, sizeof name);
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
    assert_ok(exchange_ladder(profile, "m", "qa", &layout, curves, KVT_VARIANTS_MAX, &count,
                              scratch.message, sizeof scratch.message));
    layout.kv_heads = 4;
    assert_int_equal(exchange_ladder(profile, "m", "qa", &layout, curves, KVT_VARIANTS_MAX, &count,
                                     scratch.message, sizeof scratch.message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(scratch.message, "8 KV heads"));
    assert_int_equal(exchange_ladder(profile, "n", "qa", NULL, curves, KVT_VARIANTS_MAX, &count,
                                     scratch.message, sizeof scratch.message),
                     KVT_MISS);
    assert_int_equal(exchange_ladder(profile, "m", "code", NULL, curves, KVT_VARIANTS_MAX, &count,
                                     scratch.message, sizeof scratch.message),
                     KVT_MISS);
    kvt_profile_close(profile);
    scratch_change("UPDATE codec_curve SET codec = codec + 100 WHERE name LIKE 'planes%'");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(take_ladder(profile, curves, 2), 2); /* what is left out needs no speed */
    kvt_variant_format(curves[1].variant, name, sizeof name);
    assert_string_equal(name, "kivi:k2v2,g64");
    kvt_profile_close(profile);
    scratch_change("UPDATE codec_curve SET codec = codec - 100 WHERE name LIKE 'planes%'");
    scratch_change("DELETE FROM codec_curve WHERE name = 'kivi:k2v2,g64'");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(exchange_ladder(profile, "m", "qa", NULL, curves, KVT_VARIANTS_MAX, &count,
                                     scratch.message, sizeof scratch.message),
                     KVT_MISS);
    assert_non_null(strstr(scratch.message, "kivi:k2v2,g64"));
    kvt_profile_close(profile);
}

/* All variants of an evaluation are looked at, however many: the smallest come last. */
TEST(a_ladder_of_many_variants)
{
    static const char head[] = "[model]\nmodel,layers,kv_heads,head_dim,digest\nm,32,8,128,\n"
                               "[codec]\n"
                               "variant,stored_share,encode_bytes_per_s,decode_bytes_per_s\n"
                               "raw,1,2e9,9e9\nplanes:k4v4 g64,0.28,2e9,7e9\n"
                               "[quality]\nmodel,class,variant,metric,bits_per_element,score,"
                               "score_exact,loss_mean,loss_low,loss_high,kl\n";
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    char text[8192], name[64];
    size_t used = sizeof head - 1;
    memcpy(text, head, sizeof head);
    static const int bits[] = {8, 6, 4, 3, 2};
    for (int i = 0; i < 75; i++) {
        const int k = bits[i / 15], v = bits[i / 3 % 5], g = 32 << i % 3;
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "m,qa,planes:k%dv%d g%d,f1,%.3f,,,%.4f,,,\n", k, v, g,
                                 (k + v) / 2.0 + 32.0 / g + k * 0.001, 0.3 / (k * k + v * v));
    }
    assert_true(used < sizeof text);
    kvt_profile *profile = open_new();
    must_import(profile, text, "a table");
    assert_int_equal(take_ladder(profile, curves, KVT_VARIANTS_MAX), KVT_VARIANTS_MAX);
    kvt_variant_format(curves[KVT_VARIANTS_MAX - 1].variant, name, sizeof name);
    assert_string_equal(name, "planes:k2v2,g128");
    kvt_profile_close(profile);
}

/* A full ladder keeps what is exact and what is best somewhere, and leaves out what another beats
 * in size, loss and speed: here every rung has such a twin. */
TEST(a_ladder_leaves_out_what_is_missed_least)
{
    enum { KINDS = 6 };
    static const struct {
        const char *name;
        double bits, loss, decode;
    } kinds[KINDS] = {
        {"raw", 16, 0, 1e10},
        {"planes:k8v8,g64", 8.5, 0.004, 1.2e10},
        {"entropy:k0.125v0.25", 4.6, 0.018, 6e9},
        {"kivi:k4v4,g64", 4.5, 0.03, 1.4e10},
        {"entropy:k0.5v1", 2.6, 0.08, 6e9},
        {"drop:stream,25+entropy:k0.5v1", 0.7, 0.5, 2e10},
    };
    kvt_codec_curve curves[2 * KINDS];
    uint32_t count = 2 * KINDS;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t kind = i / 2;
        const bool twin = i % 2 != 0 && kind > 0; /* there is one raw; the second one stays, too */
        curves[i] = (kvt_codec_curve){
            .stored_share = kinds[kind].bits / 16.0 * (twin ? 1.01 : 1.0),
            .loss = kinds[kind].loss * (twin ? 1.5 : 1.0),
            .decode_bytes_per_s = kinds[kind].decode * (twin ? 0.9 : 1.0),
        };
        assert_ok(kvt_variant_parse(kinds[kind].name, &curves[i].variant));
    }
    profile_ladder_choose(curves, &count, KINDS + 1);
    assert_int_equal(count, KINDS + 1);
    for (uint32_t i = 0; i < count; i++)
        assert_true(curves[i].loss == kinds[i < 2 ? 0 : i - 1].loss);
    profile_ladder_choose(curves, &count, KINDS);
    assert_int_equal(count, KINDS);
    assert_true(curves[0].loss <= 0.0 && curves[1].loss <= 0.0);
    for (uint32_t i = 1; i < count; i++)
        assert_true(curves[i].stored_share <= curves[i - 1].stored_share);
}

/* A model that takes 28 ms for a token of 12 KiB gains by a codec of 60 MB/s, and so by its fine
 * and its coarse steps: rungs that others beat in both size and loss go first. The rungs are those
 * of Qwen2.5-Coder-0.5B. */
TEST(a_ladder_keeps_slow_codecs_for_slow_models)
{
    static const struct {
        const char *name;
        double bits, loss, decode;
    } rungs[] = {
        {"planes:k8v8,g64", 8.51, 0.00067, 2.5e9},
        {"planes:k6v4,g64", 5.51, 0.0086, 2.9e9},
        {"entropy:k0.125v0.25", 4.63, 0.0111, 0.95e9},
        {"planes:k4v4,g64", 4.51, 0.0266, 5.4e9},
        {"entropy:k0.25v0.5", 3.63, 0.0304, 0.91e9},
        {"transform:3A849,s0.5", 3.03, 0.0036, 6e7},
        {"entropy:k0.5v1", 2.65, 0.0776, 1.17e9},
        {"transform:37495,s0.5", 2.62, 0.0137, 1.4e8},
        {"transform:3A849,s1", 2.16, 0.0147, 6.5e7},
        {"transform:37495,s1", 1.78, 0.0322, 1.4e8},
        {"transform:3A849,s1.5", 1.70, 0.0153, 9.5e7},
        {"transform:2499E,s1", 1.38, 0.0814, 2.2e8},
        {"transform:3A849,s3", 1.03, 0.0393, 9.5e7},
    };
    static const char *const kept[] = {"planes:k8v8,g64", "transform:3A849,s0.5",
                                       "transform:3A849,s1.5", "transform:3A849,s3"};
    kvt_codec_curve curves[sizeof rungs / sizeof rungs[0]];
    uint32_t count = sizeof rungs / sizeof rungs[0];
    for (uint32_t i = 0; i < count; i++) {
        curves[i] = (kvt_codec_curve){.stored_share = rungs[i].bits / 16.0,
                                      .loss = rungs[i].loss,
                                      .decode_bytes_per_s = rungs[i].decode};
        assert_ok(kvt_variant_parse(rungs[i].name, &curves[i].variant));
    }
    profile_ladder_choose(curves, &count, KVT_VARIANTS_MAX - 2);
    assert_int_equal(count, KVT_VARIANTS_MAX - 2);
    for (size_t k = 0; k < sizeof kept / sizeof kept[0]; k++) {
        bool found = false;
        for (uint32_t i = 0; i < count; i++) {
            char name[64];
            kvt_variant_format(curves[i].variant, name, sizeof name);
            found = found || strcmp(name, kept[k]) == 0;
        }
        assert_true(found);
    }
}

typedef struct bad_file {
    const char *text; /* ' stands for " */
    const char *expected;
} bad_file;

#define DOCUMENT(members) "{'schema': 'kvterrace-profile-export-1', " members "}"
#define ROWS(table, rows) DOCUMENT("'tables': {'" table "': [" rows "]}")
#define GOOD_FIELDS                                                                                \
    "'tier': 'ssd', 'direction': 'read', 'bytes_per_s': 1e9, 'request_seconds': 1e-5"
#define GOOD "{'device': 'good', " GOOD_FIELDS "}"
#define RATE(value)                                                                                \
    ROWS("device",                                                                                 \
         GOOD ", {'device': 'd', 'tier': 'ssd', 'direction': 'read', 'bytes_per_s': " value        \
              ", 'request_seconds': 0}")
#define CODEC(variant, threads)                                                                    \
    ROWS("codec", "{'variant': " variant ", 'stored_share': 1, 'encode_bytes_per_s': 1, "          \
                  "'decode_bytes_per_s': 1, 'threads': " threads "}")
#define QUALITY(fields)                                                                            \
    ROWS("quality", "{'model': 'm', 'class': 'qa', 'variant': 'raw', 'metric': 'f1', "             \
                    "'bits_per_element': 16" fields "}")
#define NO_RATE "device[1].bytes_per_s: not a number above 0, up to 1e18"

static const bad_file bad_files[] = {
    {"", "line 1, column 0: "},
    {"[]", "the document: not an object"},
    {"{}", "schema: not 'kvterrace-profile-export-1'"},
    {"{'schema': 1}", "schema: not 'kvterrace-profile-export-1'"},
    {"{'schema': 'kvterrace-profile-export-2', 'tables': {}}", "schema: not "},
    {"[device]\ndevice,tier\nd,ssd\n", "line 1, column "},
    {DOCUMENT("'color': 1"), "color: a document has no such member"},
    {DOCUMENT("'note': 1"), "tables: not an object"},
    {DOCUMENT("'tables': []"), "tables: not an object"},
    {DOCUMENT("'tables': {}"), "import.json: no row"},
    {DOCUMENT("'tables': {'device': []}"), "import.json: no row"},
    {DOCUMENT("'tables': {'device': {}}"), "device: not an array of rows"},
    {DOCUMENT("'tables': {'nothing': []}"), "tables.nothing: no such table: it is none of model "},
    {ROWS("run", "{'id': 1}"), "run[0]: this table is exported for reading"},
    {ROWS("learned", "{'kind': 1}"), "learned[0]: this table is exported for reading"},
    {ROWS("ladder", "{}"), "ladder[0]: a ladder is read by replay.ladder"},
    {ROWS("device", GOOD ", 1"), "device[1]: not an object"},
    {ROWS("device", GOOD ", [[[[]]]]"), "device[1]: not an object"},
    {ROWS("device", GOOD ", {}"), "device[1].device: is missing"},
    {ROWS("device", "{'device': 'd', 'tier': 'ssd', 'direction': 'read', 'bytes_per_s': 1}"),
     "device[0].request_seconds: is missing"},
    {ROWS("device", "{'device': 'd', 'color': 1, " GOOD_FIELDS "}"),
     "device[0].color: the table has no such field"},
    {ROWS("device", "{'device': 'd', 'device': 'd', " GOOD_FIELDS "}"), "duplicate object key"},
    {ROWS("device", GOOD) ROWS("device", GOOD), "end of file expected"},
    {"{'schema': 'kvterrace-profile-export-1', 'tables': {'device': [" GOOD, "line 1, column "},
    {ROWS("device", GOOD ", {'device': '', " GOOD_FIELDS "}"), "device[1].device: is empty"},
    {ROWS("device", GOOD ", {'device': null, " GOOD_FIELDS "}"), "device[1].device: is missing"},
    {ROWS("device", GOOD ", {'device': 5, " GOOD_FIELDS "}"), "device[1].device: not a text"},
    {ROWS("device", GOOD ", {'device': ['d'], " GOOD_FIELDS "}"), "device[1].device: not a text"},
    {ROWS("device", "{'device': 'd', 'direct': true, " GOOD_FIELDS "}"),
     "device[0].direct: not 0 or 1"},
    {ROWS("device", "{'device': 'd', 'tier': 'tape', 'direction': 'read', 'bytes_per_s': 1, "
                    "'request_seconds': 0}"),
     "device[0].tier: not hbm, dram or ssd"},
    {ROWS("device", "{'device': 'd', 'tier': 'ssd', 'direction': 'both', 'bytes_per_s': 1, "
                    "'request_seconds': 0}"),
     "device[0].direction: not read or write"},
    {ROWS("device", "{'device': 'd', 'tier': 'ssd', 'direction': 'read', 'bytes_per_s': 1, "
                    "'request_seconds': -1}"),
     "device[0].request_seconds: not a number of at least 0"},
    {RATE("0"), NO_RATE},
    {RATE("-1e9"), NO_RATE},
    {RATE("1e305"), NO_RATE},
    {RATE("'1e9'"), NO_RATE},
    {RATE("{}"), NO_RATE},
    {RATE("1e999"), "real number overflow"},
    {RATE("99999999999999999999"), "too big integer"},
    {RATE("nan"), "invalid token"},
    {RATE("Infinity"), "invalid token"},
    {RATE("0x10"), "line 1, column "},
    {ROWS("device", GOOD ", {'device': 'a-name-of-more-than-thirty-one-letters', " GOOD_FIELDS "}"),
     "device[1]: a value out of its bounds"},
    {ROWS("device", GOOD ", " GOOD), "device[1]: the same curve or point twice"},
    {ROWS("device", GOOD ", {'device': 'good', 'tier': 'dram', 'direction': 'write', "
                         "'bytes_per_s': 1e9, 'request_seconds': 1e-5}"),
     "device[1]: an earlier row of this device"},
    {ROWS("device_point", "{'device': 'd', 'direction': 'read', 'request_bytes': 4096, 'depth': 1, "
                          "'bytes_per_s': 1e9, 'latency_seconds_p50': 0}"),
     "device_point[0]: no row of 'device'"},
    {CODEC("'zip'", "1"), "codec[0].variant: no such variant"},
    {CODEC("'raw'", "-1"), "codec[0].threads: not a whole number"},
    {CODEC("'raw'", "1.5"), "codec[0].threads: not a whole number"},
    {CODEC("'raw'", "0"), "codec[0]: a value out of its bounds"},
    {QUALITY(""), "quality[0]: needs loss_mean, or score and score_exact"},
    {QUALITY(", 'score': 4"), "quality[0]: needs loss_mean, or score and score_exact"},
    {QUALITY(", 'loss_mean': 1.5"), "quality[0].loss_mean: not a number from 0 to 1"},
    {QUALITY(", 'loss_mean': 0.1, 'loss_low': 0.2"), "quality[0]: a value out of its bounds"},
    {QUALITY(", 'loss_mean': 0.1, 'method': 'guess'"), "quality[0]: a value out of its bounds"},
    {ROWS("model", "{'model': 'm', 'layers': 32}, {'model': 'm', 'layers': 16}"),
     "model[1]: the profile knows this model with another shape"},
    {ROWS("calibration", "{'model': 'm', 'class': 'qa', 'position': 0, 'variant': 'raw', "
                         "'bits_per_element': 16, 'loss': 0, 'counts': 'abc'}"),
     "calibration[0].counts: not hexadecimal bytes"},
    {ROWS("quality_entry", "{'model': 'm', 'class': 'qa', 'entry': 0, 'variant': 'raw', "
                           "'bits_per_element': 16}"),
     "quality_entry[0]: no row of 'quality'"},
};

static char *with_quotes(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c != '\0'; c++)
        if (*c == '\'') *c = '"';
    return copy;
}

static kvt_status import_quoted(kvt_profile *profile, const char *text, const char *source)
{
    char *bytes = with_quotes(text);
    uint64_t rows = 7;
    kvt_status status = import_bytes(profile, bytes, strlen(bytes), source, &rows);
    assert_true(status == KVT_OK || rows == 0);
    free(bytes);
    return status;
}

/* An array in an array, deeper than any reader follows. */
static void refuse_depth(kvt_profile *profile)
{
    enum { DEPTH = 100000 };
    char *deep = test_alloc(DEPTH);
    uint64_t rows;
    memset(deep, '[', DEPTH);
    assert_int_equal(import_bytes(profile, deep, DEPTH, "s", &rows), KVT_E_PARSE);
    assert_non_null(strstr(scratch.message, "maximum parsing depth"));
}

TEST(bad_rows_are_named_and_nothing_comes_in)
{
    kvt_profile *profile = open_new();
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        kvt_status status = import_quoted(profile, bad_files[i].text, "a paper");
        char *expected = with_quotes(bad_files[i].expected);
        if (status != KVT_E_PARSE || strstr(scratch.message, expected) == NULL)
            fail_msg("file %zu: %s: %s, not %s", i, kvt_status_name(status), scratch.message,
                     expected);
        free(expected);
        assert_non_null(strstr(scratch.message, "import.json"));
    }
    refuse_depth(profile);
    assert_int_equal(import_quoted(profile, ROWS("device", GOOD), NULL), KVT_E_PARSE);
    assert_non_null(strstr(scratch.message, "device[0]: a row without a source"));
    assert_int_equal(import_quoted(profile, ROWS("device", GOOD), ""), KVT_E_PARSE);
    uint64_t rows;
    assert_int_equal(exchange_import(profile, "no/such.json", "s", NULL, &rows, scratch.message,
                                     sizeof scratch.message),
                     KVT_E_GONE);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM "
                                    "model) + (SELECT count(*) FROM device)"),
                     0);
    /* The same rows without their fault come in. */
    profile = open_new();
    assert_ok(import_quoted(profile, ROWS("device", GOOD), "a paper"));
    assert_ok(import_quoted(profile, CODEC("'raw'", "1"), "a paper"));
    assert_ok(import_quoted(profile, QUALITY(", 'loss_mean': 0.1"), "a paper"));
    kvt_profile_close(profile);
}

/* Any byte changed, and cut anywhere: the file comes in or is refused with a reason, and the
 * profile is sound either way. */
TEST(hostile_bytes)
{
    char text[sizeof device_rows + sizeof quality_rows];
    uint64_t rows;
    size_t refused = 0, taken = 0;
    snprintf(text, sizeof text, "%s%s", device_rows, quality_rows);
    json_t *document = exchange_document("", rows_text_tables(text));
    char *bytes = json_dumps(document, JSON_COMPACT);
    json_decref(document);
    assert_non_null(bytes);
    const size_t count = strlen(bytes);
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    static const char changes[] = {'\0', '"', ',', '\n', '9', '-', '[', (char)0xff};
    for (size_t at = 0; at < count; at += 3) {
        char before = bytes[at];
        bytes[at] = changes[at / 3 % sizeof changes];
        kvt_status status = import_bytes(profile, bytes, count, "s", &rows);
        bytes[at] = before;
        refused += status == KVT_E_PARSE;
        taken += status == KVT_OK;
        assert_true(status == KVT_OK || (status == KVT_E_PARSE && rows == 0));
        if (at % 9 != 0) continue;
        status = import_bytes(profile, bytes, at, "s", &rows);
        assert_true(status == KVT_E_PARSE && rows == 0);
    }
    kvt_profile_close(profile);
    free(bytes);
    assert_true(refused > 100 && taken > 20);
}

/* The seventeenth digit of a number, and what an export of it says, are those of the double. */
TEST(doubles_come_back_equal)
{
    static const double values[] = {1.0 / 3,  0.1,  4.9406564584124654e-324, 1e17 / 3,
                                    2.5e-308, 1e18, 123456789.12345678,      9007199254740993.0,
                                    5e-1,     7};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        kvt_profile *profile = open_new();
        json_t *tables =
            json_pack("{s:[{s:s, s:f, s:f}]}", "prefill", "name", "p", "linear_seconds_per_token",
                      values[i], "square_seconds_per_token2", 1e-9);
        json_t *out = json_object();
        kvt_prefill prefill;
        assert_ok(exchange_import_tables(profile, tables, "s", NULL, 0));
        json_decref(tables);
        assert_ok(exchange_export(profile, "prefill", out));
        kvt_profile_close(profile);
        json_t *document = exchange_document("", out);
        char *bytes = json_dumps(document, 0);
        uint64_t rows;
        json_decref(document);
        assert_non_null(bytes);
        profile = open_new();
        assert_ok(import_bytes(profile, bytes, strlen(bytes), NULL, &rows));
        assert_ok(kvt_profile_prefill(profile, "p", &prefill));
        assert_memory_equal(&prefill.linear_seconds_per_token, &values[i], sizeof values[i]);
        kvt_profile_close(profile);
        free(bytes);
    }
}

static size_t count_exported(kvt_profile *profile, const char *table)
{
    json_t *tables = json_object(), *rows;
    const char *name;
    size_t count = 0;
    assert_ok(exchange_export(profile, table, tables));
    json_object_foreach(tables, name, rows) count += json_array_size(rows);
    json_decref(tables);
    return count;
}

TEST(exports_by_table)
{
    kvt_profile *profile = open_new();
    must_import(profile, quality_rows, "table 1");
    assert_int_equal(count_exported(profile, "quality"), 6);
    assert_int_equal(count_exported(profile, NULL), 1 + 6 + 4);
    assert_int_equal(count_exported(profile, "run"), 1);
    json_t *tables = json_object();
    assert_int_equal(exchange_export(profile, "nothing", tables), KVT_E_ARGUMENT);
    json_decref(tables);
    kvt_profile_close(profile);
}

/* ---- a ladder in a file ---- */

#define RUNG(variant, bits, loss, upper, rate)                                                     \
    "{'variant': " variant ", 'bits': " bits ", 'loss': " loss ", 'loss_upper': " upper            \
    ", 'encode_bytes_per_s': " rate ", 'decode_bytes_per_s': 1e9, 'source': 'exact'}"
#define RAW RUNG("'raw'", "16", "0", "0", "1e9")

static kvt_status read_ladder(const char *text, kvt_codec_curve *curves, uint32_t *count)
{
    char path[128], *bytes = with_quotes(text);
    snprintf(path, sizeof path, "%s/ladder.json", scratch.folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(bytes, file) >= 0);
    assert_int_equal(fclose(file), 0);
    kvt_status status =
        exchange_ladder_read(path, curves, 2, count, scratch.message, sizeof scratch.message);
    assert_int_equal(unlink(path), 0);
    free(bytes);
    return status;
}

TEST(ladders_are_read_from_files)
{
    static const bad_file bad[] = {
        {ROWS("ladder", ""), "ladder: no variant"},
        {ROWS("model", "{'model': 'm'}"), "ladder: no variant"},
        {ROWS("ladder", RAW "," RAW), "ladder[1].bits: sizes must fall"},
        {ROWS("ladder", RAW "," RAW "," RAW), "more variants than a ladder can have"},
        {ROWS("ladder", RUNG("'zip'", "16", "0", "0", "1")), "ladder[0].variant: no such variant"},
        {ROWS("ladder", RUNG("'raw@row'", "16", "0", "0", "1")),
         "ladder[0].variant: no such variant"},
        {ROWS("ladder", RUNG("'raw'", "18", "0", "0", "1")), "ladder[0].bits: more than 17"},
        {ROWS("ladder", RUNG("'raw'", "0", "0", "0", "1")), "ladder[0].bits: not a number above 0"},
        {ROWS("ladder", RUNG("'raw'", "16", "2", "0", "1")), "ladder[0].loss: not a number from 0"},
        {ROWS("ladder", RUNG("'raw'", "16", "0.2", "0.1", "1")),
         "ladder[0].loss_upper: below loss"},
        {ROWS("ladder", RUNG("'raw'", "16", "0", "0", "0.5")), "at least 1 byte/s"},
        {ROWS("ladder", "{'variant': 'raw'}"), "ladder[0].bits: is missing"},
    };
    kvt_codec_curve curves[2];
    uint32_t count;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvt_status status = read_ladder(bad[i].text, curves, &count);
        if (status != KVT_E_PARSE || count != 0 || strstr(scratch.message, bad[i].expected) == NULL)
            fail_msg("ladder %zu: %s: %s", i, kvt_status_name(status), scratch.message);
    }
    assert_ok(
        read_ladder(ROWS("ladder", RAW "," RUNG("'kivi:k4v4 g64'", "4.5", "0.01", "0.02", "2e9")),
                    curves, &count));
    assert_int_equal(count, 2);
    assert_true(curves[1].stored_share == 4.5 / 16 && curves[1].loss == 0.01 &&
                curves[1].loss_upper == 0.02 && curves[1].encode_bytes_per_s == 2e9);
}

/* Tables of the schema, the sheet that shows each, and the columns that names stand for there. */
static const char *const shown[][3] = {
    {"run", "run", ""},
    {"device", "device", "id run_id"},
    {"device_point", "device_point", "device_id"},
    {"device_fit", "device", "device_id"},
    {"device_mixed", "device_mixed", "device_id"},
    {"device_start", "device_start", "device_id"},
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
    {"pass", "pass", "run_id"},
};

static bool sheet_shows(const char *sheet_name, const char *column)
{
    const rows_table *table = NULL;
    for (size_t i = 0; (table = rows_table_at(i)) != NULL; i++)
        if (strcmp(table->name, sheet_name) == 0) break;
    assert_non_null(table);
    char ending[64];
    snprintf(ending, sizeof ending, ".%s", column);
    for (size_t i = 0; i < table->column_count; i++) {
        const char *at = strstr(table->columns[i].sql, ending);
        if (at != NULL && strchr(" ,)", at[strlen(ending)]) != NULL) return true;
    }
    if (table->checks != NULL) return false;
    return strstr(table->from, ending) != NULL || strstr(table->from, ".*") != NULL;
}

TEST(every_column_of_the_schema_is_exported)
{
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
