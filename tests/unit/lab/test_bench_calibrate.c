/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_calibrate.c - end to end on a small random model: calibrated from texts and from dumps
 * of itself, stopped and gone on with, the ladder taken by a store that keeps its KV in lossy
 * rungs under the limit, and by a simulation.
 */
#include "quality_scratch.h"

#include "codecs/kv_sample.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality.h"

#include <kvterrace/kvterrace.h>

enum { CONTEXT = 64, CONTINUATION = 16, ENTRIES = 6, TOKENS = 2048 };

static char message[256];

static const kvt_layout layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = TOKENS};
#define ENTRY_BYTES (2u * 2u * 2u * 32u * 2u * TOKENS)

static bool count_progress(void *context, double done, const char *what)
{
    uint32_t *left = context;
    assert_true(done >= 0.0 && done <= 1.0 && what != NULL);
    return --*left > 0;
}

static kvt_profile *open_profile(uint32_t flags)
{
    kvt_profile *profile = NULL;
    kvt_status status = kvt_profile_open(files.database, flags, &profile, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return profile;
}

static kvt_status calibrate(const calibrate_options *options, calibrate_report *report)
{
    kvt_profile *profile = open_profile(KVT_PROFILE_WRITE);
    kvt_status status = calibrate_profile_run(profile, options, report, message, sizeof message);
    kvt_profile_close(profile);
    return status;
}

static calibrate_options model_options(uint32_t *calls)
{
    static const char *const texts[] = {files.plain};
    static const quality_class stories[] = {{"stories", texts, 1}};
    return (calibrate_options){.name = "small",
                               .model = files.model,
                               .unjudged = true,
                               .tokenizer = files.tokenizer,
                               .classes = stories,
                               .class_count = 1,
                               .contexts = ENTRIES,
                               .context_tokens = CONTEXT,
                               .continuation_tokens = CONTINUATION,
                               .metric = QUALITY_TOP1,
                               .threads = 2,
                               .command_line = "test",
                               .progress = count_progress,
                               .progress_context = calls};
}

static void assert_ladder(const calibrate_ladder *ladder)
{
    uint32_t accepted = 0;
    double loss = 0.0, bits = 64.0;
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        assert_true(rung->bits_per_element <= bits && rung->evidence[0] != '\0');
        bits = rung->bits_per_element;
        if (!rung->accepted || rung->variant.variant.mode >> 8 != 0) continue;
        assert_true(rung->loss >= loss && rung->loss > 0.0 && rung->loss_upper >= rung->loss);
        loss = rung->loss;
        accepted++;
    }
    assert_true(accepted >= 4 && ladder->choice_count >= 6);
}

/* What a store is opened by. */
static uint32_t read_rungs(kvt_codec_curve *curves)
{
    uint32_t count;
    kvt_profile *profile = open_profile(KVT_PROFILE_READ);
    assert_ok(profile_rungs_read(profile, &layout, "small", "stories", curves, 8, &count, message,
                                 sizeof message));
    kvt_profile_close(profile);
    return count;
}

TEST_ALL(scratch_make_files, scratch_remove_files);

/* Copies the profile without the files beside it, after so many calls, as a person might. */
typedef struct copy_after {
    uint32_t calls;
    char path[sizeof files.database + 8];
} copy_after;

static bool copy_progress(void *context, double done, const char *what)
{
    copy_after *copy = context;
    (void)done, (void)what;
    if (--copy->calls > 0) return true;
    char bytes[4096];
    FILE *from = fopen(files.database, "rb"), *to = fopen(copy->path, "wb");
    assert_true(from != NULL && to != NULL);
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, from)) > 0;)
        assert_int_equal(fwrite(bytes, 1, got, to), got);
    assert_int_equal(fclose(from), 0);
    assert_int_equal(fclose(to), 0);
    return false;
}

static int64_t count_entry_rows(const char *path)
{
    kvt_profile *profile = NULL;
    sqlite3_stmt *statement = NULL;
    assert_ok(kvt_profile_open(path, KVT_PROFILE_READ, &profile, message, sizeof message));
    assert_int_equal(sqlite3_prepare_v2(profile->database, "SELECT count(*) FROM quality_entry", -1,
                                        &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    const int64_t count = sqlite3_column_int64(statement, 0);
    (void)sqlite3_finalize(statement);
    kvt_profile_close(profile);
    return count;
}

/* A profile that is copied while a calibration runs has the rows that were measured, but for the
 * last few: without the -wal file nobody would miss them. */
TEST(a_copy_of_the_file_alone_has_the_rows)
{
    static calibrate_report report;
    copy_after copy = {.calls = 80};
    uint32_t calls = 0;
    calibrate_options options = model_options(&calls);
    options.progress = copy_progress;
    options.progress_context = &copy;
    (void)snprintf(copy.path, sizeof copy.path, "%s.copy", files.database);
    assert_int_equal(calibrate(&options, &report), KVT_E_CANCELLED);
    const int64_t all = count_entry_rows(files.database);
    assert_in_range(all, 60, 100);
    assert_in_range(count_entry_rows(copy.path), all - 12, all);
    assert_int_equal(remove(copy.path), 0);
    scratch_remove_database();
}

TEST(a_stopped_calibration_goes_on)
{
    static calibrate_report whole, stopped, again;
    uint32_t calls = UINT32_MAX;
    calibrate_options options = model_options(&calls);
    assert_ok(calibrate(&options, &whole));
    assert_ladder(&whole.ladders[0]);
    scratch_remove_database();
    calls = 40;
    assert_int_equal(calibrate(&options, &stopped), KVT_E_CANCELLED);
    kvt_codec_curve curves[8];
    uint32_t count;
    kvt_profile *profile = open_profile(KVT_PROFILE_READ);
    assert_int_equal(profile_rungs_read(profile, &layout, NULL, NULL, curves, 8, &count, message,
                                        sizeof message),
                     KVT_MISS); /* half a calibration is none */
    kvt_profile_close(profile);
    calls = UINT32_MAX;
    assert_ok(calibrate(&options, &again));
    assert_true(again.resumed > 20);
    assert_int_equal(again.ladders[0].rung_count, whole.ladders[0].rung_count);
    for (uint32_t i = 0; i < whole.ladders[0].rung_count; i++) {
        assert_string_equal(again.ladders[0].rungs[i].variant.name,
                            whole.ladders[0].rungs[i].variant.name);
        assert_true(again.ladders[0].rungs[i].loss == whole.ladders[0].rungs[i].loss);
        assert_int_equal(again.ladders[0].rungs[i].accepted, whole.ladders[0].rungs[i].accepted);
    }
    assert_true(read_rungs(curves) >= 4);
    scratch_remove_database();
}

/* How many rows have a figure that no measurement gives; `set` puts it into all that are there. */
static int count_marked(bool set)
{
    static const char marked[] = "SELECT count(*) FROM quality_entry WHERE attention_error = 0.125";
    sqlite3_stmt *statement = NULL;
    kvt_profile *profile = open_profile(KVT_PROFILE_WRITE);
    if (set)
        assert_int_equal(sqlite3_exec(profile->database,
                                      "UPDATE quality_entry SET attention_error = 0.125", NULL,
                                      NULL, NULL),
                         SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(profile->database, marked, -1, &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    const int count = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    kvt_profile_close(profile);
    return count;
}

/* What a stopped calibration has left is not measured again: a figure that cannot be stays. */
static void assert_rows_are_kept(calibrate_options options)
{
    static calibrate_report report;
    uint32_t calls = 8;
    scratch_remove_database();
    options.progress = count_progress;
    options.progress_context = &calls;
    assert_int_equal(calibrate(&options, &report), KVT_E_CANCELLED);
    const int kept = count_marked(true);
    assert_true(kept > 0);
    calls = UINT32_MAX;
    assert_ok(calibrate(&options, &report));
    assert_int_equal(report.resumed, kept);
    assert_int_equal(count_marked(false), kept);
}

TEST(dumps_calibrate_too)
{
    char folder[96], paths[ENTRIES][128];
    const char *list[ENTRIES];
    static const char *const texts[] = {files.plain};
    static const quality_class stories[] = {{"stories", NULL, 0}};
    uint32_t made = 0;
    (void)snprintf(folder, sizeof folder, "%s/dumps", files.folder);
    const quality_dumps_make_options make = {.model = files.model,
                                             .unjudged = true,
                                             .tokenizer = files.tokenizer,
                                             .texts = texts,
                                             .text_count = 1,
                                             .folder = folder,
                                             .contexts = ENTRIES,
                                             .context_tokens = CONTEXT,
                                             .continuation_tokens = CONTINUATION,
                                             .queries = 4};
    assert_ok(quality_dumps_make(&make, &made, message, sizeof message));
    assert_int_equal(made, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/%04u.safetensors", folder, (unsigned)i);
        list[i] = paths[i];
    }
    const calibrate_options options = {.name = "small",
                                       .classes = stories,
                                       .class_count = 1,
                                       .dumps = list,
                                       .dump_count = ENTRIES,
                                       .queries = 4};
    static calibrate_report report;
    assert_ok(calibrate(&options, &report));
    assert_ladder(&report.ladders[0]);
    assert_int_equal(report.entries, ENTRIES);
    kvt_codec_curve curves[8];
    assert_true(read_rungs(curves) >= 4);
    assert_true(curves[0].loss == curves[0].loss_upper || curves[0].loss_upper > curves[0].loss);
    assert_rows_are_kept(options);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(unlink(paths[i]), 0);
    assert_int_equal(rmdir(folder), 0);
    scratch_remove_database();
}

/* KV of the calibrated layout. */
static void fill_entry(uint32_t number, uint16_t *kv)
{
    codecs_kv_sample_fill(&layout, 1000 + number, kv);
}

static kvt_key key_of(uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    return key;
}

static double upper_of(const kvt_codec_curve *curves, uint32_t count, kvt_variant variant)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&curves[i].variant, &variant, sizeof variant) == 0) return curves[i].loss_upper;
    return 0.0;
}

/* Puts more than fits; counts the lossy, of which none may pass the limit. */
static uint32_t press(const kvt_store_options *options, const kvt_codec_curve *curves,
                      uint32_t count)
{
    static uint16_t kv[ENTRY_BYTES / 2], got[ENTRY_BYTES / 2];
    kvt_store *store = NULL;
    uint32_t lossy = 0, held = 0;
    kvt_status status = kvt_store_open(options, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    for (uint32_t i = 0; i < 48; i++) {
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = key_of(i),
                                 .layout = layout,
                                 .first_position = 64, /* no sinks: they are much of an entry */
                                 .recompute_seconds = 1e4};
        fill_entry(i, kv);
        status = kvt_store_put(store, &entry, KVT_PACKED(kv, sizeof kv));
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    for (uint32_t i = 0; i < 48; i++) {
        const kvt_key key = key_of(i);
        kvt_get_info info = {.struct_size = sizeof info};
        status = kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info);
        if (status == KVT_MISS) continue;
        assert_ok(status);
        fill_entry(i, kv);
        double upper = upper_of(curves, count, info.variant);
        bool same = memcmp(kv, got, sizeof kv) == 0;
        assert_true(upper <= options->loss.loss_limit);
        assert_true(upper > 0.0 || same);
        lossy += !same;
        held++;
    }
    assert_true(held > 0);
    kvt_store_close(store);
    return lossy;
}

TEST(a_store_takes_the_ladder)
{
    static calibrate_report report;
    kvt_codec_curve curves[8];
    uint32_t calls = UINT32_MAX;
    calibrate_options options = model_options(&calls);
    assert_ok(calibrate(&options, &report));
    const uint32_t count = read_rungs(curves);
    kvt_store_options store;
    kvt_store_options_init(&store);
    store.limits.put_staging_bytes = 0; /* a put says how its write went */
    store.limits.staging_bytes = 8 << 20;
    store.limits.tick_seconds = 0;
    store.tiers[KVT_TIER_DRAM].capacity_bytes = 12 * ENTRY_BYTES;
    store.learning.profile_path = files.database;
    store.loss.ladder = true;
    store.loss.ladder_layout = layout;
    store.loss.ladder_model = "small";
    store.loss.ladder_class = "stories";
    store.loss.loss_limit = 1.0;
    store.loss.alpha_seconds = 1;
    assert_true(press(&store, curves, count) > 10);
    /* A floor between the second rung and the third: the others do not exist. */
    store.loss.loss_limit = curves[1].loss_upper;
    uint32_t within = press(&store, curves, count);
    assert_true(within > 0);
    store.loss.loss_limit = 0.0;
    assert_int_equal(press(&store, curves, count), 0);
    /* Another layout's store is refused, and told why. */
    kvt_store *none = NULL;
    store.loss.ladder_layout.head_dim = 64;
    assert_int_equal(kvt_store_open(&store, &none, message, sizeof message), KVT_E_MISMATCH);
    assert_non_null(strstr(message, "2 layers x 2 KV heads x 32, not 2 x 2 x 64"));
    scratch_remove_database();
}
