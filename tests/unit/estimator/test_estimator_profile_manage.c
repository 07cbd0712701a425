/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile_manage.c - a profile as a whole: what gc drops and keeps, what diff finds,
 * and that readers see whole measurements while somebody writes.
 */

#include "cases.h"
#include "profile_scratch.h"
#include "rows_text.h"

#include <math.h>
#include <sys/wait.h>

/* ---- gc ---- */

static char gone[512];

typedef struct collected {
    size_t runs;
    json_int_t models, bytes_before, bytes_after;
} collected;

static collected collect(bool dry_run, double seconds)
{
    json_t *report = json_object(), *run;
    size_t i, length = 0;
    gone[0] = '\0';
    kvt_profile *profile = scratch_open(dry_run ? KVT_PROFILE_READ : KVT_PROFILE_WRITE);
    kvt_status status = exchange_gc(profile, dry_run, seconds, report);
    if (status != KVT_OK) fail_msg("%s", kvt_status_name(status));
    kvt_profile_close(profile);
    json_array_foreach(json_object_get(report, "runs"), i, run)
    {
        length += (size_t)snprintf(gone + length, sizeof gone - length, "%lld %s %s;",
                                   (long long)json_integer_value(json_object_get(run, "run")),
                                   json_string_value(json_object_get(run, "kind")),
                                   json_string_value(json_object_get(run, "reason")));
    }
    const collected out = {
        .runs = json_array_size(json_object_get(report, "runs")),
        .models = json_integer_value(json_object_get(report, "models")),
        .bytes_before = json_integer_value(json_object_get(report, "bytes_before")),
        .bytes_after = json_integer_value(json_object_get(report, "bytes_after"))};
    json_decref(report);
    return out;
}

/* Runs by kind, all of this host because a measurement's run is copied. */
#define COPY_RUN(id, kind, complete, when)                                                         \
    "INSERT INTO run SELECT " #id ", '" kind "', " #complete                                       \
    ", host_identity, host_name, kernel, "                                                         \
    "cpu_model, cpu_count, memory_bytes, strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '" when             \
    "'), finished_utc, library_version, sqlite_version, zstd_version, command_line, seed, "        \
    "iif('" kind "' = 'import', 's', '') FROM run WHERE id = 1;"
#define QUALITY_SET(id, run, entries)                                                              \
    "INSERT INTO quality_set (id, run_id, model_id, class, method, settings, context_tokens, "     \
    "continuation_tokens, entries) VALUES (" #id ", " #run                                         \
    ", 1, 'c', 'continuation', '', 0, 0, " #entries ");"
#define QUALITY_CURVE(set, rate, entries)                                                          \
    "INSERT INTO quality_curve (set_id, codec, mode, rate, name, metric, bits_per_element, "       \
    "entries, loss_mean, loss_low, loss_high) VALUES (" #set ", 4, 0, " #rate                      \
    ", 'n', 'top1', 4, " #entries ", 0.1, 0.1, 0.1);"

static void make_history(void)
{
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    scratch_measure(profile, "disk", 1000000000, 1u << 23); /* 1: its writes answer */
    scratch_measure(profile, "disk", 2000000000, 0);        /* 2: replaced by 3 */
    scratch_measure(profile, "disk", 3000000000, 0);        /* 3 */
    scratch_measure(profile, "other", 1000000000, 0);       /* 4 */
    kvt_profile_close(profile);
    scratch_change("UPDATE device SET identity = 'one' WHERE name = 'disk'");
    scratch_change(
        COPY_RUN(10, "quality", 1, "-5 days") COPY_RUN(11, "quality", 1, "-4 days")
            COPY_RUN(12, "quality", 1, "-3 days") COPY_RUN(13, "quality", 0, "-2 days") COPY_RUN(
                14, "quality", 0, "-9 days") COPY_RUN(15, "learned", 0, "-900 days")
                COPY_RUN(16, "calibration", 1, "-1 days") COPY_RUN(17, "calibration", 1, "-1 days")
                    COPY_RUN(18, "import", 1, "-1 days") COPY_RUN(19, "import", 1, "-1 days")
                        COPY_RUN(20, "learned", 1, "-1 days"));
    scratch_change(
        "INSERT INTO model VALUES (1, 'm', '', 0, 0, 0, 0, 0, 0), (2, 'n', '', 0, 0, 0, 0, 0, 0);"
        /* 11 covers 10; 12 has fewer entries, so 11 stays. */
        QUALITY_SET(1, 10, 50) QUALITY_CURVE(1, 1, 50) QUALITY_SET(2, 11, 100)
            QUALITY_CURVE(2, 1, 100) QUALITY_SET(3, 12, 10) QUALITY_CURVE(3, 1, 10)
                QUALITY_SET(4, 13, 10) QUALITY_SET(
                    5, 14, 10) "INSERT INTO calibration VALUES (1, 16, 1, 'c'), (2, 17, 1, 'c');"
                               "INSERT INTO prefill VALUES (18, 'p', 1, 1, 1), (19, 'p', 1, 1, 1);"
                               "INSERT INTO learned VALUES (15, 'device', 'd', 'read', 1, 1, 1, "
                               "NULL, NULL, NULL), "
                               "(20, 'device', 'd', 'read', 1, 1, 1, NULL, NULL, NULL);");
}

TEST_ALL(scratch_make, scratch_remove);

TEST(gc_drops_what_answers_for_nothing)
{
    kvt_device_curve before, after;
    make_history();
    kvt_profile *profile = scratch_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "disk", &before));
    kvt_profile_close(profile);
    static const char expected[] =
        "2 device superseded;10 quality superseded;14 quality interrupted;"
        "16 calibration superseded;18 import superseded;";
    size_t count, count_after;
    char *bytes = scratch_bytes(&count);
    collected result = collect(true, 7 * 86400.0);
    assert_string_equal(gone, expected);
    assert_int_equal(result.runs, 5);
    assert_int_equal(result.models, 1);
    char *bytes_after = scratch_bytes(&count_after);
    assert_int_equal(count, count_after);
    assert_memory_equal(bytes, bytes_after, count);
    result = collect(false, 7 * 86400.0);
    assert_string_equal(gone, expected);
    assert_true(result.bytes_after <= result.bytes_before);
    profile = scratch_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "disk", &after));
    assert_memory_equal(&before, &after, sizeof before);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 10);
    assert_int_equal(scratch_number("SELECT count(*) FROM quality_set WHERE id IN (1, 5)"), 0);
    assert_int_equal(scratch_number("SELECT count(*) FROM model"), 1);
    /* Nothing is left to do; with no patience the young interrupted set goes, a store's run stays.
     */
    assert_int_equal(collect(false, 7 * 86400.0).runs, 0);
    (void)collect(false, 0);
    assert_string_equal(gone, "13 quality interrupted;");
}

/* An interrupted run that alone knows a device stays, however old. */
TEST(gc_keeps_what_alone_answers)
{
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    scratch_measure(profile, "disk", 1000000000, 0);
    scratch_measure(profile, "disk", 1000000000, 0);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 2);
    scratch_change("UPDATE run SET complete = 0, started_utc = '2020-01-01T00:00:00Z'");
    (void)collect(false, 60);
    assert_string_equal(gone, "1 device interrupted;");
    profile = scratch_open(KVT_PROFILE_READ);
    json_t *report = json_object();
    assert_int_equal(exchange_gc(profile, false, 0, report), KVT_E_READ_ONLY);
    json_decref(report);
    kvt_profile_close(profile);
}

/* ---- diff ---- */

typedef struct diff_notes {
    size_t figures, missing, beyond, within, unknown, changed;
    double largest;
    char order[160]; /* of the last curve */
    const char *only;
} diff_notes;

/* Not a number: null, which is infinite of a change from 0. */
static double number_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static diff_notes compare(kvt_profile *before, kvt_profile *after, const char *only)
{
    diff_notes notes = {.only = only};
    json_t *changes = json_array(), *change;
    size_t i;
    assert_ok(exchange_diff(before, after, changes));
    json_array_foreach(changes, i, change)
    {
        const char *curve = json_string_value(json_object_get(change, "curve"));
        const char *spread = json_string_value(json_object_get(change, "spread"));
        const double share = number_of(change, "change");
        const bool missing =
            isnan(number_of(change, "before")) || isnan(number_of(change, "after"));
        assert_true(strcmp(notes.order, curve) <= 0);
        snprintf(notes.order, sizeof notes.order, "%s", curve);
        if (only != NULL && strstr(curve, only) == NULL) continue;
        notes.figures++;
        notes.missing += missing;
        notes.beyond += strcmp(spread, "beyond") == 0;
        notes.within += strcmp(spread, "within") == 0;
        notes.unknown += strcmp(spread, "unknown") == 0;
        notes.changed += share != 0;
        if (isnan(share) && !missing) notes.largest = INFINITY;
        if (fabs(share) > notes.largest) notes.largest = fabs(share);
    }
    json_decref(changes);
    return notes;
}

static kvt_profile *open_memory(void)
{
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    return profile;
}

static void import_text(kvt_profile *profile, const char *text)
{
    rows_text_import(profile, text, "s");
}

TEST(diff_tells_change_from_spread)
{
    kvt_profile *before = open_memory(), *after = open_memory();
    static const char points[] =
        "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\nd,ssd,read,%s,1e-4\n"
        "[device_point]\ndevice,direction,request_bytes,depth,bytes_per_s,bytes_per_s_min,"
        "bytes_per_s_max,latency_seconds_p50\nd,read,4096,1,%s\n"
        "[quality]\nmodel,class,variant,metric,bits_per_element,loss_mean,loss_low,loss_high\n"
        "m,c,kivi:k4v4 g64,f1,4.5,%s\n"
        "[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s\nraw,1,1e9,%s\n"
        "[prefill]\nname,linear_seconds_per_token,square_seconds_per_token2\np,%s\n";
    char text[1024];
    snprintf(text, sizeof text, points, "1e9", "1e8,9e7,1.1e8,1e-4", "0.02,0.01,0.03", "2e9",
             "0,1e-9");
    import_text(before, text);
    snprintf(text, sizeof text, points, "2e9", "1.05e8,1e8,1.2e8,1e-4", "0.05,0.04,0.06", "3e9",
             "1e-5,1e-9");
    import_text(after, text);

    diff_notes notes = compare(before, before, NULL);
    assert_true(notes.figures > 8 && notes.changed == 0 && notes.missing == 0);
    notes = compare(before, after, "device d read 4096 B x 1"); /* repetitions overlap */
    assert_true(notes.figures == 1 && notes.within == 1 && fabs(notes.largest - 0.05) < 1e-12);
    notes = compare(before, after, "quality m"); /* intervals do not */
    assert_true(notes.figures == 1 && notes.beyond == 1 && fabs(notes.largest - 1.5) < 1e-12);
    notes = compare(before, after, "codec raw");
    assert_true(notes.figures == 3 && notes.unknown == 3 && notes.changed == 1);
    assert_true(fabs(notes.largest - 0.5) < 1e-12);
    notes = compare(before, after, "prefill p"); /* from 0: infinite */
    assert_true(notes.changed == 1 && isinf(notes.largest));
    /* The fit's spread is its points': 2e9 is beyond it. */
    diff_notes fit = compare(before, after, "device d read");
    assert_true(fit.beyond == 1 && fit.within == 2);
    import_text(after, "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
                       "e,ssd,read,1e9,0\n");
    notes = compare(before, after, "device e");
    assert_true(notes.figures == 2 && notes.missing == 2);
    notes = compare(after, before, "device e");
    assert_true(notes.figures == 2 && notes.missing == 2);
    kvt_profile_close(before);
    kvt_profile_close(after);
}

/* ---- one writer, many readers ---- */

enum { READERS = 4, READS_PER_READER = 60 };

/* Every open succeeds, and a complete answer never becomes less. Exit code 0 = as expected. */
static int child_reads(void)
{
    kvt_device_curve curve;
    kvt_device_point point;
    double known = 0;
    for (int i = 0; i < READS_PER_READER; i++) {
        kvt_profile *profile = NULL;
        if (kvt_profile_open(scratch.path, KVT_PROFILE_READ, &profile, NULL, 0) != KVT_OK) return 1;
        for (int again = 0; again < 3; again++) {
            if (kvt_profile_device(profile, "disk", &curve) != KVT_OK) return 2;
            if (curve.read.bytes_per_s < known) return 3;
            known = curve.read.bytes_per_s;
            if (kvt_profile_point_at(profile, "disk", 0, &point) != KVT_OK) return 4;
        }
        kvt_profile_close(profile);
    }
    return 0;
}

TEST(readers_see_whole_measurements)
{
    pid_t children[READERS];
    uint64_t rate = 100000000;
    int running = READERS;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    scratch_measure(profile, "disk", rate, 0);
    for (size_t i = 0; i < READERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) _exit(child_reads());
    }
    /* A faster device each time; every one is new to the readers until they end. */
    for (size_t i = 0; running > 0; i++) {
        int result = 0;
        scratch_measure(profile, "disk", rate += 100000000, 0);
        pid_t ended = waitpid(children[i % READERS], &result, WNOHANG);
        if (ended <= 0) continue;
        assert_int_equal(result, 0);
        running--;
    }
    kvt_profile_close(profile);
    assert_true(scratch_number("SELECT count(*) FROM run WHERE complete = 1") > 1);
    assert_int_equal(scratch_number("SELECT count(*) FROM pragma_integrity_check WHERE "
                                    "integrity_check <> 'ok'"),
                     0);
}
