/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_live.c - live replay: every byte that a real store gives back is checked, its moves
 * equal the plan log, and the check itself notices a changed byte. No time is judged.
 */
#include "cases.h"

#include "estimator/profile/profile_internal.h"
#include "replay/live.h"
#include "replay/replay.h"

#include <kvterrace/codec.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(contents_differ_and_are_checked)
{
    uint8_t first[1003], second[1003], sentinel[1008];
    live_fill(1, 7, first, sizeof first);
    assert_true(live_matches(1, 7, first, sizeof first));
    assert_false(live_matches(1, 8, first, sizeof first));
    assert_false(live_matches(2, 7, first, sizeof first));
    live_fill(1, 8, second, sizeof second);
    assert_memory_not_equal(first, second, sizeof first);
    for (size_t at = 0; at < sizeof first; at += 17) {
        first[at] ^= 1;
        assert_false(live_matches(1, 7, first, sizeof first));
        first[at] ^= 1;
    }
    first[sizeof first - 1] ^= 0x80;
    assert_false(live_matches(1, 7, first, sizeof first));
    memset(sentinel, 0xee, sizeof sentinel);
    live_fill(3, 1, sentinel, 1003);
    for (size_t i = 1003; i < sizeof sentinel; i++)
        assert_int_equal(sentinel[i], 0xee);
    kvt_key key = live_key(1, 7), same = live_key(1, 7), other = live_key(1, 8);
    assert_memory_equal(&key, &same, sizeof key);
    assert_memory_not_equal(&key, &other, sizeof key);
}

TEST(layouts_hold_the_bytes_asked_for)
{
    static const uint64_t sizes[] = {131072, 512, 500, 4, 12, 7, 1, 131076};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        kvt_layout layout = live_layout(sizes[i], 64);
        uint64_t bytes;
        assert_ok(kvt_layout_bytes(&layout, &bytes));
        assert_int_equal(bytes, sizes[i] * 64);
        assert_int_equal(layout.dtype == KVT_DTYPE_OPAQUE, sizes[i] % 4 != 0);
    }
}

static uint64_t count_lines(const char *path, const char *part)
{
    char line[512];
    uint64_t count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        count += strstr(line, part) != NULL;
    }
    fclose(file);
    return count;
}

static void expect_sound(const char *policy, const replay_result *result, const char *log_path)
{
    /* What utility stores follows from measured speeds; what the others store does not. */
    bool lru = strcmp(policy, "lru") == 0, none = strcmp(policy, "none") == 0;
    assert_int_equal(result->wrong_bytes, 0);
    assert_int_equal(result->failed_puts, 0);
    assert_int_equal(result->load_failures, 0);
    assert_int_equal(result->requests, 300);
    assert_true(!lru || result->verified_gets > 0);
    assert_true(!none || (result->verified_gets == 0 && result->moves == 0));
    assert_true(result->moves_match);
    assert_int_equal(count_lines(log_path, " committed "), result->moves_committed);
    assert_int_equal(count_lines(log_path, " "), result->moves);
    assert_int_equal(count_lines(log_path, " aborted "), result->moves_aborted);
    /* Tiers add up to what was found, of which what was loaded is a part. */
    for (int i = 0; i < 2; i++) {
        const double *ratio = i == 0 ? result->hit_block_ratio : result->hit_token_ratio;
        double sum = ratio[KVT_TIER_HBM] + ratio[KVT_TIER_DRAM] + ratio[KVT_TIER_SSD];
        assert_true(sum > ratio[0] - 1e-9 && sum < ratio[0] + 1e-9);
    }
    assert_true(result->used_token_ratio <= result->hit_token_ratio[0] + 1e-9);
    /* A server that puts is busy: rho holds at least the puts. */
    assert_true(none || result->put_mean_s > 0.0);
    assert_true(result->span_s > 0.0);
    double service_s = (result->times.service_mean + result->put_mean_s) * 300.0;
    double rho = service_s / (result->span_s * 4.0);
    assert_true(result->rho > rho - 1e-6 && result->rho < rho + 1e-6);
    assert_true(result->rho_peak >= result->rho - 1e-9);
    bool moved = result->moved_bytes_read[KVT_TIER_HBM] + result->moved_bytes_read[KVT_TIER_DRAM] +
                     result->moved_bytes_read[KVT_TIER_SSD] >
                 0;
    assert_true(moved || result->promotions + result->demotions == 0);
    assert_true(result->hit_block_ratio[0] <= result->ideal_block_ratio + 1e-9);
    if (lru) {
        assert_true(result->bytes_written[KVT_TIER_SSD] > 0);
        assert_true(result->demotions + result->evictions > 0);
    }
}

/* A run leaves a device that was blank as it found it: no label keeps the next run out. */
static void expect_blank_head(const char *path)
{
    unsigned char head[8192];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    fclose(file);
    for (size_t i = 0; i < sizeof head; i++)
        assert_int_equal(head[i], 0);
}

static void make_zeros(const char *path, off_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, bytes), 0);
}

static void make_workload(replay_workload *workload)
{
    char message[512];
    const replay_generator generator = {.requests_per_s = 20.0,
                                        .requests = 300,
                                        .contexts = 12,
                                        .zipf = 0.8,
                                        .tokens_median = 1500.0,
                                        .tokens_sigma = 0.5,
                                        .tokens_max = 6000,
                                        .turns_mean = 2.0,
                                        .turn_tokens = 128.0,
                                        .think_seconds = 2.0,
                                        .block_tokens = 256,
                                        .seed = 5};
    assert_ok(replay_workload_generate(&generator, workload, message, sizeof message));
}

/* HBM (emulated) and DRAM in memory, two files of different size as SSD members; tiers that hold a
 * fraction of the footprint, so that entries move while requests are served. */
TEST(a_store_gives_back_what_was_put)
{
    char first_path[64], second_path[64], log_path[64], message[512] = "";
    snprintf(first_path, sizeof first_path, "replay_live_%ld_a.tmp", (long)getpid());
    snprintf(second_path, sizeof second_path, "replay_live_%ld_b.tmp", (long)getpid());
    snprintf(log_path, sizeof log_path, "replay_live_%ld.log", (long)getpid());
    const kvt_device_config devices[2] = {{.struct_size = sizeof(kvt_device_config),
                                           .name = "ssd0",
                                           .backend = "file",
                                           .path = first_path,
                                           .capacity_bytes = 48u << 20,
                                           .timeout_ns = UINT64_MAX},
                                          {.struct_size = sizeof(kvt_device_config),
                                           .name = "ssd1",
                                           .backend = "file",
                                           .path = second_path,
                                           .capacity_bytes = 32u << 20,
                                           .timeout_ns = UINT64_MAX}};

    replay_workload workload;
    make_workload(&workload);
    make_zeros(first_path, 48u << 20);

    replay_options options;
    replay_options_init(&options);
    options.scale = 1.0 / 256.0; /* a block is 128 KiB */
    options.servers = 4;
    options.seed = 5;
    options.plan_log = log_path;
    options.load_all = true; /* whether loading pays depends on the machine */
    kvt_store_options store;
    kvt_store_options_init(&store);
    store.tiers[KVT_TIER_HBM].capacity_bytes = UINT64_C(512) << 20; /* 2 MiB at this scale */
    store.tiers[KVT_TIER_HBM].emulated = true;
    store.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(1) << 30; /* 4 MiB */
    store.tiers[KVT_TIER_SSD].capacity_bytes = UINT64_C(4) << 30;  /* 16 MiB */
    store.tiers[KVT_TIER_SSD].devices = devices;
    store.tiers[KVT_TIER_SSD].device_count = 2;
    replay_live live = {.store = &store};

    static const char *const policies[] = {"lru", "utility", "none"};
    for (size_t i = 0; i < 3; i++) {
        replay_result result;
        kvt_status status = replay_run_live(&options, &workload, &live, policies[i], &result,
                                            message, sizeof message);
        if (status != KVT_OK) fail_msg("%s: %s", policies[i], message);
        expect_sound(policies[i], &result, log_path);
        expect_blank_head(first_path);
        assert_int_not_equal(access(second_path, F_OK), 0); /* the run made it */
        print_message("%s: %llu gets verified, %llu moves\n", policies[i],
                      (unsigned long long)result.verified_gets, (unsigned long long)result.moves);
    }
    replay_workload_free(&workload);
    unlink(first_path);
    unlink(second_path);
    unlink(log_path);
}

/* ---- the profile ---- */

static void make_profile(const char *path)
{
    kvt_profile *profile = NULL;
    char message[256] = "";
    int64_t run = 0;
    const kvt_codec_curve raw = {.variant = {.codec = KVT_CODEC_RAW},
                                 .stored_share = 1,
                                 .encode_bytes_per_s = 5e9,
                                 .decode_bytes_per_s = 5e9};
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    assert_ok(profile_run_begin(profile, "codecs", "", 1, &run));
    assert_ok(profile_codec_insert(profile, run, &raw, "scalar", 1, "sample", 1 << 20, 1));
    assert_ok(profile_run_complete(profile, run));
    assert_ok(profile_run_begin(profile, "learned", "", 1, &run));
    assert_ok(profile_run_complete(profile, run));
    assert_int_equal(sqlite3_exec(profile->database,
                                  "INSERT INTO learned SELECT max(id), 'codec', 'raw', 'decode', "
                                  "1.5, 100, 100, NULL, NULL, NULL FROM run",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    kvt_profile_close(profile);
}

static void remove_profile(const char *path)
{
    static const char *const parts[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < 3; i++) {
        char beside[96];
        (void)snprintf(beside, sizeof beside, "%s%s", path, parts[i]);
        unlink(beside);
    }
}

/* All rows that a store reads or writes there, as text. */
static char *read_rows(const char *path)
{
    static const char sql[] =
        "SELECT group_concat(line, char(10)) FROM (SELECT id || ' ' || kind || ' ' || complete || "
        "' ' || started_utc || ' ' || finished_utc AS line FROM run UNION ALL SELECT run_id || ' ' "
        "|| kind || name || part || ' ' || value || ' ' || observations FROM learned UNION ALL "
        "SELECT run_id || ' ' || name || ' ' || decode_bytes_per_s FROM codec_curve)";
    sqlite3 *database = NULL;
    sqlite3_stmt *row = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, sql, -1, &row, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(row), SQLITE_ROW);
    char *text = strdup((const char *)sqlite3_column_text(row, 0));
    sqlite3_finalize(row);
    sqlite3_close(database);
    assert_non_null(text);
    return text;
}

static char *read_bytes(const char *path, size_t *bytes)
{
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    *bytes = (size_t)facts.st_size;
    char *text = malloc(*bytes);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, *bytes, file), *bytes);
    fclose(file);
    return text;
}

/* What the runs of one order saw. */
typedef struct seen_profiles {
    uint32_t runs;
    char *before[2];
    char *after[2];
    char path[2][128];
} seen_profiles;

static void see_profile(void *context, const char *path, bool after)
{
    seen_profiles *seen = context;
    if (after) {
        seen->after[seen->runs++] = read_rows(path);
        return;
    }
    seen->before[seen->runs] = read_rows(path);
    (void)snprintf(seen->path[seen->runs], sizeof seen->path[0], "%s", path);
}

static uint32_t asked_left;

static bool interrupt_later(void)
{
    return __atomic_fetch_sub(&asked_left, 1, __ATOMIC_RELAXED) > UINT32_MAX / 2;
}

static kvt_store_options memory_store(const char *profile_path)
{
    kvt_store_options store;
    kvt_store_options_init(&store);
    store.learning.profile_path = profile_path;
    store.lossless = false;
    store.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(4) << 30; /* 16 MiB at this scale */
    return store;
}

static replay_options small_options(void)
{
    replay_options options;
    replay_options_init(&options);
    options.scale = 1.0 / 256.0;
    options.servers = 4;
    options.seed = 5;
    options.load_all = true;
    return options;
}

/* In either order each policy begins with the profile as it is, which no run changes; what a run
 * learns is in its own copy, unless store.learn is off. */
TEST(policies_begin_alike)
{
    static const char *const orders[][2] = {{"lru", "utility"}, {"utility", "lru"}};
    char profile_path[64], message[512] = "";
    size_t bytes, bytes_after;
    (void)snprintf(profile_path, sizeof profile_path, "replay_live_%ld.db", (long)getpid());
    make_profile(profile_path);
    char *rows = read_rows(profile_path), *content = read_bytes(profile_path, &bytes);
    replay_workload workload;
    make_workload(&workload);
    replay_options options = small_options();
    for (int i = 0; i < 4; i++) {
        seen_profiles seen = {.runs = 0};
        kvt_store_options store = memory_store(profile_path);
        store.learning.learn = i < 2;
        replay_live live = {.store = &store, .profile_seen = see_profile, .context = &seen};
        for (int p = 0; p < 2; p++) {
            replay_result result;
            kvt_status status = replay_run_live(&options, &workload, &live, orders[i % 2][p],
                                                &result, message, sizeof message);
            if (status != KVT_OK) fail_msg("%s: %s", orders[i % 2][p], message);
            assert_string_equal(seen.before[p], rows);
            assert_true((strcmp(seen.after[p], rows) == 0) == !store.learning.learn ||
                        result.verified_gets == 0);
            assert_int_not_equal(access(seen.path[p], F_OK), 0);
            *strrchr(seen.path[p], '/') = '\0';
            assert_int_not_equal(access(seen.path[p], F_OK), 0);
            free(seen.before[p]);
            free(seen.after[p]);
        }
        char *now = read_rows(profile_path), *content_now = read_bytes(profile_path, &bytes_after);
        assert_string_equal(now, rows);
        assert_int_equal(bytes, bytes_after);
        assert_memory_equal(content, content_now, bytes);
        free(now);
        free(content_now);
    }
    free(rows);
    free(content);
    replay_workload_free(&workload);
    remove_profile(profile_path);
}

/* A run that is interrupted leaves neither files nor labels nor a copy of the profile. */
TEST(interrupted_run_leaves_nothing)
{
    char made_path[64], there_path[64], profile_path[64], message[512] = "";
    (void)snprintf(made_path, sizeof made_path, "replay_live_%ld_made.tmp", (long)getpid());
    (void)snprintf(there_path, sizeof there_path, "replay_live_%ld_there.tmp", (long)getpid());
    (void)snprintf(profile_path, sizeof profile_path, "replay_live_%ld_i.db", (long)getpid());
    make_zeros(there_path, 32u << 20);
    make_profile(profile_path);
    kvt_device_config devices[2] = {{.struct_size = sizeof(kvt_device_config),
                                     .name = "ssd0",
                                     .backend = "file",
                                     .path = made_path,
                                     .capacity_bytes = 32u << 20,
                                     .timeout_ns = UINT64_MAX}};
    devices[1] = devices[0];
    devices[1].name = "ssd1";
    devices[1].path = there_path;
    replay_workload workload;
    make_workload(&workload);
    replay_options options = small_options();
    kvt_store_options store = memory_store(profile_path);
    store.tiers[KVT_TIER_SSD].capacity_bytes = UINT64_C(4) << 30;
    store.tiers[KVT_TIER_SSD].devices = devices;
    store.tiers[KVT_TIER_SSD].device_count = 2;
    seen_profiles seen = {.runs = 0};
    replay_live live = {.store = &store,
                        .interrupted = interrupt_later,
                        .profile_seen = see_profile,
                        .context = &seen};
    replay_result result;
    __atomic_store_n(&asked_left, 200, __ATOMIC_RELAXED);
    assert_int_equal(
        replay_run_live(&options, &workload, &live, "lru", &result, message, sizeof message),
        KVT_E_CANCELLED);
    assert_int_not_equal(access(made_path, F_OK), 0);
    expect_blank_head(there_path);
    assert_int_not_equal(access(seen.path[0], F_OK), 0);
    assert_int_equal(seen.runs, 0);
    free(seen.before[0]);
    replay_workload_free(&workload);
    unlink(there_path);
    remove_profile(profile_path);
}
