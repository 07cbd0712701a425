/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_learn.c - what a store learns while it runs: predicted loads, factors on losses, what
 * is kept in the profile. Counts and orders of figures decide, never times.
 */
#include "store/core/store.h"
#include "store_folder.h"

#include <kvterrace/lookup.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const kvt_layout learn_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32};

static void run_sql(sqlite3 *database, const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error != NULL ? error : "");
}

/* A ladder of two lossy forms, and how much losses differ between entries. */
static void make_profile(void)
{
    kvt_profile *profile = NULL;
    sqlite3 *database = NULL;
    char message[256] = "";
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_profile_close(profile);
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "INSERT INTO run (id, kind, complete, host_identity, host_name, kernel, "
                      "cpu_model, cpu_count, memory_bytes, started_utc, library_version, "
                      "sqlite_version, zstd_version, seed) VALUES (1, 'calibration', 1, '', '', "
                      "'', '', 1, 1, '', '0', '', '', 1)");
    run_sql(database, "INSERT INTO model VALUES (1, 'tiny', '', 0, 2, 4, 2, 64, 0)");
    run_sql(database, "INSERT INTO calibration VALUES (1, 1, 1, 'stories')");
    run_sql(database, "INSERT INTO quality_set (id, run_id, model_id, class, method, settings, "
                      "context_tokens, continuation_tokens, entries, nll_nats, spearman_variants, "
                      "sensitivity_sd, repeatability) VALUES (1, 1, 1, 'stories', 'continuation', "
                      "'{}', 256, 256, 100, 2.0, 0.99, 0.53, 0.75)");
    static const char *const names[] = {"planes:k8v8,g64", "planes:k4v4,g64"};
    for (int i = 0; i < 2; i++) {
        kvt_variant variant;
        assert_ok(kvt_variant_parse(names[i], &variant));
        char *sql =
            sqlite3_mprintf("INSERT INTO calibration_rung (calibration_id, position, "
                            "codec, mode, rate, name, bits_per_element, loss, loss_upper, "
                            "accepted, evidence) VALUES (1, %d, %d, %d, %u, %Q, %f, %f, "
                            "%f, 1, 'made up')",
                            i, variant.codec, variant.mode, (unsigned)variant.rate, names[i],
                            i == 0 ? 8.5 : 4.5, i == 0 ? 0.001 : 0.004, i == 0 ? 0.002 : 0.006);
        run_sql(database, sql);
        sqlite3_free(sql);
    }
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* Of the stores that are opened next. */
static uint64_t ssd_latency_ns, ssd_bytes = 64 << 20;
static double loss_limit = 0.01;

static kvt_store *learn_open_store(bool with_profile, double learn_seconds)
{
    kvt_device_config device = support_file_config("ssd0", ssd_path, ssd_bytes);
    device.sparse = true;
    device.latency_ns = ssd_latency_ns;
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_store_options options = support_options(8 << 20, with_profile ? "utility" : "lru");
    options.format = true;
    options.lossless = false;
    options.loss.alpha_seconds =
        1e6; /* entries are raw, whatever forms and disks were measured at */
    options.learning.learn_seconds = learn_seconds;
    options.loss.loss_limit = loss_limit;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    if (with_profile) {
        options.learning.profile_path = profile_path;
        options.loss.ladder = true;
        options.loss.ladder_layout = learn_layout;
    }
    /* The kernel takes the ring of a process that was killed down in its own time. */
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED)
        status = kvt_store_open(&options, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    return store;
}

static kvt_status learn_try_put(kvt_store *store, uint32_t number, uint32_t class_id,
                                uint32_t tokens)
{
    static _Thread_local char data[SUPPORT_ENTRY_BYTES];
    uint64_t bytes = SUPPORT_ENTRY_BYTES / learn_layout.tokens * tokens;
    support_fill(number, data);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .layout = learn_layout,
                       .recompute_seconds = 1e6, /* worth storing on the slowest disk */
                       .class_id = class_id};
    entry.layout.tokens = tokens;
    return kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
}

static void learn_put_tokens(kvt_store *store, uint32_t number, uint32_t class_id, uint32_t tokens)
{
    assert_ok(learn_try_put(store, number, class_id, tokens));
}

static void learn_put(kvt_store *store, uint32_t number, uint32_t class_id)
{
    learn_put_tokens(store, number, class_id, learn_layout.tokens);
}

static kvt_class_stats learn_class(kvt_store *store, uint32_t class_id)
{
    kvt_class_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_class_stats_get(store, class_id, &stats));
    return stats;
}

/* ---- predicted loads ---- */

TEST_EACH(store_folder_make, NULL);

TEST(loads_are_predicted)
{
    kvt_store *store = learn_open_store(false, 300);
    kvt_device_stats device = {.struct_size = sizeof device};
    kvt_get_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; i < 20; i++)
        learn_put(store, i, 0);
    for (uint32_t i = 0; i < 200; i++) {
        assert_ok(support_get(store, i % 20, &info));
        assert_true(info.predicted_ns > 0);
        assert_true(info.elapsed_ns >= info.read_ns);
    }
    kvt_store_stats stats = support_stats(store);
    const kvt_load_stats *loads = &stats.tiers[KVT_TIER_SSD].loads;
    assert_int_equal(loads->loads, 200);
    assert_true(loads->predicted_seconds > 0 && loads->achieved_seconds > 0);
    assert_true(loads->error_p50 <= loads->error_p90);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].loads.loads, 0);
    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_true(device.read_learned.bytes_per_s > 0 && device.write_learned.bytes_per_s > 0);

    kvt_key keys[3] = {support_key(3), support_key(1000), support_key(4)};
    double seconds[3];
    assert_ok(kvt_store_match(store, keys, 3, KVT_MATCH(.load_seconds = seconds), NULL));
    assert_true(seconds[0] > 0 && isnan(seconds[1]) && seconds[2] > 0);
    assert_int_equal(kvt_store_match(store, NULL, 3, KVT_MATCH(.load_seconds = seconds), NULL),
                     KVT_E_ARGUMENT);
    assert_ok(kvt_store_match(store, NULL, 0, KVT_MATCH(.load_seconds = seconds), NULL));
    assert_int_equal(kvt_store_match(store, keys, 1, NULL, NULL), KVT_E_ARGUMENT);

    kvt_class_stats of_class = learn_class(store, 0);
    assert_int_equal(of_class.reuse.entries, 20);
    assert_int_equal(of_class.reuse.uses, 200);
    tiers_pool_retire(store->pools[KVT_TIER_SSD], 0);
    assert_ok(kvt_store_match(store, keys, 1, KVT_MATCH(.load_seconds = seconds), NULL));
    assert_true(isnan(seconds[0]));
    kvt_store_close(store);
}

/* A device that was measured slow, on a machine that was busy then, and is fast: what is learned
 * beside it outweighs it for a while, but decoding still takes its time. */
TEST(load_takes_its_decoding_at_least)
{
    kvt_store *store = learn_open_store(false, 300);
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_key key = support_key(1);
    double seconds;
    learn_put(store, 1, 0);
    pthread_mutex_lock(&store->learn->lock);
    online_average_observe(&store->learn->tiers[KVT_TIER_SSD].overhead, -1000, 1);
    pthread_mutex_unlock(&store->learn->lock);
    assert_ok(kvt_store_match(store, &key, 1, KVT_MATCH(.load_seconds = &seconds), NULL));
    assert_true(seconds > 0);
    assert_ok(support_get(store, 1, &info));
    assert_true(info.predicted_ns > 0); /* 0 = it was another get's read */
    kvt_store_close(store);
}

/* A curve that is re-opened while the round does something else counts in the epoch it begins. */
TEST(epoch_has_the_reopened_curve)
{
    static kvt_explanation why = {.struct_size = sizeof why};
    make_profile();
    kvt_store *store = learn_open_store(true, 300);
    kvt_key key = support_key(1);
    learn_put(store, 1, 3);
    pthread_mutex_lock(&store->learn->lock);
    online_device *read = &store->learn->tiers[KVT_TIER_SSD].members[0].kinds[KVT_IO_READ];
    read->used[0] = read->value[0] = 1.0;
    store->learn->reopened++;
    pthread_mutex_unlock(&store->learn->lock);
    learn_round(store);
    assert_ok(kvt_store_explain(store, &key, &why));
    for (uint8_t at = 1; at < why.option_count; at++)
        assert_true(why.options[at].option.load_seconds >= 1);
    kvt_store_close(store);
}

/* ---- factors on losses ---- */

TEST(losses_are_observed)
{
    make_profile();
    kvt_store *store = learn_open_store(true, 300);
    kvt_variant coarse, raw = {.codec = KVT_CODEC_RAW};
    kvt_key key = support_key(1), absent = support_key(99);
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    for (uint32_t i = 0; i < 40; i++)
        learn_put(store, i, i < 30 ? 3 : 4);
    assert_int_equal(kvt_quality_observe(store, &key, raw, 0.1, 1), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_quality_observe(store, &absent, coarse, 0.1, 1), KVT_MISS);
    assert_int_equal(kvt_quality_observe(store, &key, coarse, 1.1, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_quality_observe(store, &key, coarse, 0.1, 0), KVT_E_ARGUMENT);
    assert_int_equal(learn_class(store, 3).loss_observations, 0);
    assert_true(fabs(learn_class(store, 3).loss_factor - 1) < 1e-9);

    /* Entries of class 3 lose three times the form's mean; one of them next to nothing. */
    for (uint32_t i = 0; i < 20; i++) {
        key = support_key(i);
        assert_ok(kvt_quality_observe(store, &key, coarse, i == 7 ? 0.0004 : 0.012, 1));
    }
    kvt_class_stats of_class = learn_class(store, 3);
    assert_int_equal(of_class.loss_observations, 20);
    assert_true(of_class.loss_factor > 1.5 && of_class.loss_factor < 4);
    assert_true(of_class.loss_factor_upper > of_class.loss_factor);
    assert_true(fabs(learn_class(store, 4).loss_factor - 1) < 1e-9);

    /* The others of the class follow in the background; bounds are wider than the profile's. */
    uint32_t moves;
    assert_ok(kvt_store_maintain(store, &moves));
    assert_true(support_stats(store).learned.recosted >= 40);
    static kvt_explanation mine = {.struct_size = sizeof mine},
                           quiet = {.struct_size = sizeof quiet},
                           other = {.struct_size = sizeof other};
    kvt_key quiet_key = support_key(7), unasked = support_key(25), foreign = support_key(35);
    assert_ok(kvt_store_explain(store, &unasked, &mine));
    assert_ok(kvt_store_explain(store, &quiet_key, &quiet));
    assert_ok(kvt_store_explain(store, &foreign, &other));
    uint8_t at = 0;
    for (uint8_t i = 1; i < other.option_count; i++)
        if (memcmp(&other.options[i].option.variant, &coarse, sizeof coarse) == 0) at = i;
    assert_true(at != 0);
    assert_true(fabs(other.options[at].option.loss_upper - 0.006) < 1e-6);
    assert_true(mine.options[at].option.loss_upper > 0.0061);
    /* What an entry showed itself makes it more certain than its class alone. */
    assert_true(quiet.options[at].option.loss_upper < mine.options[at].option.loss_upper);
    kvt_store_close(store);
}

/* Factors that keep moving reach all entries of a table that one round does not get through. */
TEST(every_entry_is_told_in_the_end)
{
    enum { MANY = 9000 };
    make_profile();
    ssd_bytes = UINT64_C(4) << 30;
    kvt_store *store = learn_open_store(true, 300);
    ssd_bytes = 64 << 20;
    kvt_variant coarse;
    kvt_key key = support_key(0);
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    for (uint32_t i = 0; i < MANY; i++)
        learn_put_tokens(store, i, 3, 1);
    uint64_t before = support_stats(store).learned.recosted;
    for (int round = 0; round < 4; round++) {
        uint32_t moves;
        double loss = round % 2 == 0 ? 0.04 : 0.0004;
        key = support_key((uint32_t)round);
        assert_ok(kvt_quality_observe(store, &key, coarse, loss, 1000));
        assert_ok(kvt_store_maintain(store, &moves));
    }
    assert_true(support_stats(store).learned.recosted >= before + MANY);
    uint32_t untold = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        static kvt_explanation why = {.struct_size = sizeof why};
        key = support_key(i);
        assert_ok(kvt_store_explain(store, &key, &why));
        for (uint8_t at = 1; at < why.option_count; at++)
            if (memcmp(&why.options[at].option.variant, &coarse, sizeof coarse) == 0)
                untold += fabs(why.options[at].option.loss_upper - 0.006) < 1e-9;
    }
    assert_int_equal(untold, 0);
    kvt_store_close(store);
}

/* Expectations below 1 do not take a bound past the limit with them, not even where the bound of
 * the form alone would be more than all of the quality. */
TEST(limit_holds_for_the_bound)
{
    make_profile();
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "UPDATE calibration_rung SET loss = 0.4, loss_upper = 0.49 WHERE "
                      "position = 1; UPDATE quality_set SET sensitivity_sd = 1.5");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    loss_limit = 0.5;
    kvt_store *store = learn_open_store(true, 300);
    loss_limit = 0.01;
    kvt_variant coarse;
    uint32_t moves, found = 0;
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    for (uint32_t i = 0; i < 40; i++)
        learn_put(store, i, 3);
    for (uint32_t i = 0; i < 2; i++) {
        kvt_key key = support_key(i);
        assert_ok(kvt_quality_observe(store, &key, coarse, 0.055, 1));
    }
    kvt_class_stats of_class = learn_class(store, 3);
    assert_true(of_class.loss_factor < 0.9 && of_class.loss_factor_upper * 0.49 > 0.5);
    assert_ok(kvt_store_maintain(store, &moves));
    static kvt_explanation why = {.struct_size = sizeof why};
    kvt_key unasked = support_key(35);
    assert_ok(kvt_store_explain(store, &unasked, &why));
    for (uint8_t i = 1; i < why.option_count; i++) {
        if (memcmp(&why.options[i].option.variant, &coarse, sizeof coarse) != 0) continue;
        assert_false(why.options[i].feasible);
        assert_true(why.options[i].option.loss < 0.36);
        found++;
    }
    assert_int_equal(found, 1);
    kvt_store_close(store);
}

/* ---- the profile ---- */

static int learned_rows(const char *condition)
{
    sqlite3 *database = NULL;
    sqlite3_stmt *row = NULL;
    char *sql = sqlite3_mprintf("SELECT count(*) FROM learned l JOIN run r ON r.id = l.run_id "
                                "WHERE r.complete = 1 AND r.kind = 'learned' AND %s",
                                condition);
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, sql, -1, &row, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(row), SQLITE_ROW);
    int count = sqlite3_column_int(row, 0);
    sqlite3_finalize(row);
    sqlite3_close(database);
    sqlite3_free(sql);
    return count;
}

/* Gets, and observations of class 3, until there is something to keep. */
static void learn_something(kvt_store *store)
{
    kvt_variant coarse;
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    for (uint32_t i = 0; i < 30; i++)
        learn_put(store, i, 3);
    for (uint32_t i = 0; i < 90; i++) {
        static _Thread_local char data[SUPPORT_ENTRY_BYTES];
        kvt_key key = support_key(i % 30);
        assert_ok(
            kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL));
        assert_ok(kvt_quality_observe(store, &key, coarse, 0.012, 1));
    }
}

TEST(profile_keeps_what_was_learned)
{
    make_profile();
    kvt_store *store = learn_open_store(true, 300);
    learn_something(store);
    double factor = learn_class(store, 3).loss_factor;
    assert_true(factor > 2);
    assert_int_equal(learned_rows("1"), 0);
    kvt_store_close(store);
    assert_int_equal(learned_rows("l.kind = 'loss' AND name = 'class 3' AND part = 'factor'"), 1);
    assert_int_equal(learned_rows("l.kind = 'device' AND part = 'read_bytes_per_s'"), 1);
    assert_int_equal(learned_rows("l.kind = 'device' AND part = 'load' AND error_p50 > 0"), 1);
    assert_int_equal(learned_rows("l.kind = 'codec' AND part = 'decode'"), 1);
    assert_int_equal(
        learned_rows("l.kind = 'reuse' AND part = 'half_life_s' AND log_likelihood IS NOT NULL"),
        1);

    /* The next one begins with it. */
    store = learn_open_store(true, 300);
    assert_true(fabs(learn_class(store, 3).loss_factor / factor - 1) < 0.02);
    assert_int_equal(learn_class(store, 3).loss_observations, 90);
    kvt_device_stats device = {.struct_size = sizeof device};
    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_true(device.read_learned.bytes_per_s > 0);
    kvt_store_close(store);

    /* Another device, host or version: nothing of it counts. */
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "UPDATE learned SET name = 'another' WHERE kind = 'device'");
    run_sql(database, "DELETE FROM learned WHERE kind = 'loss'");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    store = learn_open_store(true, 300);
    assert_int_equal(learn_class(store, 3).loss_observations, 0);
    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_true(device.read_learned.bytes_per_s <= 0);
    kvt_store_close(store);
}

/* The rows of a background round survive the process; the profile stays sound. */
TEST(killed_store_leaves_a_sound_profile)
{
    make_profile();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        uint32_t moves;
        kvt_store *store = learn_open_store(true, 1e-6);
        learn_something(store);
        (void)!kvt_store_maintain(store, &moves);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(learned_rows("l.kind = 'loss'"), 1);
    kvt_store *store = learn_open_store(true, 300);
    assert_int_equal(learn_class(store, 3).loss_observations, 90);
    kvt_store_close(store);
}

/* Rows that no store wrote: each is sound for the profile, and none may spoil a decision. */
TEST(rows_that_cannot_be_are_left_out)
{
    static const char *const spoilt[] = {
        "UPDATE learned SET value = 1e-300, observations = 1000000 WHERE kind = 'codec'",
        "UPDATE learned SET value = 1e300, observations = 9223372036854775807 WHERE kind = 'codec'",
        "UPDATE learned SET value = 1e300 WHERE kind = 'device' AND part LIKE '%_request_s'",
        "UPDATE learned SET value = 1e300 WHERE kind = 'device' AND part LIKE '%_bytes_per_s'",
        "UPDATE learned SET value = 1e-300 WHERE kind = 'device' AND part LIKE '%_bytes_per_s'",
        "UPDATE learned SET value = 1e300, weight = 1e300 WHERE kind IN ('loss', 'reuse')",
        "UPDATE quality_set SET sensitivity_sd = 1e300, repeatability = 1",
    };
    for (size_t i = 0; i < sizeof spoilt / sizeof spoilt[0]; i++) {
        support_remove_folder(folder);
        (void)store_folder_make(state);
        make_profile();
        kvt_store *store = learn_open_store(true, 300);
        learn_something(store);
        kvt_store_close(store);
        sqlite3 *database = NULL;
        assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
        run_sql(database, spoilt[i]);
        assert_int_equal(sqlite3_close(database), SQLITE_OK);

        uint32_t moves;
        kvt_get_info info = {.struct_size = sizeof info};
        kvt_key key = support_key(40);
        double seconds;
        static char data[SUPPORT_ENTRY_BYTES];
        store = learn_open_store(true, 300);
        assert_ok(kvt_store_maintain(store, &moves));
        learn_put(store, 40, 3);
        assert_ok(
            kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, &info));
        assert_true(info.predicted_ns < UINT64_C(1000000000) * 1000);
        assert_ok(kvt_store_match(store, &key, 1, KVT_MATCH(.load_seconds = &seconds), NULL));
        assert_true(seconds >= 0 && seconds < 1000);
        assert_true(learn_class(store, 3).loss_factor >= 0);
        kvt_store_close(store);
    }
}

/* Whoever cleans the profile up may take the run that a store writes to. */
TEST(deleted_run_begins_anew)
{
    make_profile();
    kvt_store *store = learn_open_store(true, 1e-6);
    uint32_t moves;
    learn_something(store);
    assert_ok(kvt_store_maintain(store, &moves));
    assert_int_equal(learned_rows("l.kind = 'loss'"), 1);
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "PRAGMA foreign_keys = ON; DELETE FROM run WHERE kind = 'learned'");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    assert_int_equal(learned_rows("1"), 0);
    assert_ok(kvt_store_maintain(store, &moves));
    assert_int_equal(learned_rows("l.kind = 'loss'"), 1);

    /* Its number is another's now, which is neither written to nor said to be complete. */
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "PRAGMA foreign_keys = ON; DELETE FROM learned; UPDATE run SET kind = "
                      "'device', complete = 0 WHERE kind = 'learned'");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    kvt_store_close(store);
    assert_int_equal(learned_rows("l.kind = 'loss'"), 1);
}

/* Whoever holds the profile costs a store neither its catalog nor a long wait. */
TEST(locked_profile_is_left_alone)
{
    make_profile();
    kvt_store *store = learn_open_store(true, 1e-6);
    sqlite3 *database = NULL;
    uint32_t moves;
    learn_something(store);
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    run_sql(database, "BEGIN EXCLUSIVE");
    assert_ok(kvt_store_maintain(store, &moves));
    kvt_store_close(store);
    run_sql(database, "ROLLBACK");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    assert_int_equal(learned_rows("1"), 0);
    store = learn_open_store(true, 300);
    learn_something(store);
    kvt_store_close(store);
    assert_int_equal(learned_rows("l.kind = 'loss'"), 1);
}

/* ---- at the same time ---- */

typedef struct learn_crowd {
    kvt_store *store;
    kvt_variant coarse;
    atomic_uint wrong;
} learn_crowd;

static void *learn_visit(void *argument)
{
    learn_crowd *crowd = argument;
    for (uint32_t i = 0; i < 60; i++) {
        static _Thread_local char data[SUPPORT_ENTRY_BYTES];
        kvt_key key = support_key(i % 30);
        double seconds;
        kvt_device_stats device = {.struct_size = sizeof device};
        bool fine = kvt_store_get(crowd->store, &key, KVT_PACKED(data, sizeof data),
                                  KVT_STORE_DEADLINE, NULL) == KVT_OK;
        fine = fine && kvt_quality_observe(crowd->store, &key, crowd->coarse, 0.002, 1) == KVT_OK;
        fine = fine && kvt_store_match(crowd->store, &key, 1, KVT_MATCH(.load_seconds = &seconds),
                                       NULL) == KVT_OK;
        fine = fine && kvt_device_stats_get(crowd->store, 0, &device) == KVT_OK;
        fine = fine && support_stats(crowd->store).gets > 0;
        if (i % 10 == 0) {
            uint32_t moves;
            kvt_class_stats of_class = {.struct_size = sizeof of_class};
            kvt_status status = kvt_store_maintain(crowd->store, &moves);
            fine = fine && (status == KVT_OK || status == KVT_BUSY);
            fine = fine && kvt_class_stats_get(crowd->store, 3, &of_class) == KVT_OK;
        }
        if (!fine) atomic_fetch_add(&crowd->wrong, 1);
    }
    return NULL;
}

TEST(many_at_once)
{
    make_profile();
    learn_crowd crowd = {.store = learn_open_store(true, 1e-6)};
    pthread_t threads[4];
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &crowd.coarse));
    learn_something(crowd.store);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, learn_visit, &crowd), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    assert_int_equal(learn_class(crowd.store, 3).loss_observations, 90 + 240);
    kvt_store_close(crowd.store);
}

enum { LEARN_COMING = 20 };

/* A thread's own assertion would end the process without a word. */
typedef struct learn_arrivals {
    kvt_store *store;
    atomic_uint count;
    kvt_status statuses[LEARN_COMING];
} learn_arrivals;

static void *learn_come(void *argument)
{
    learn_arrivals *arrivals = argument;
    for (uint32_t i = 0; i < LEARN_COMING; i++) {
        arrivals->statuses[i] = learn_try_put(arrivals->store, 100 + i, 3, learn_layout.tokens);
        atomic_fetch_add(&arrivals->count, 1);
    }
    return NULL;
}

/* A factor that moves while entries are being written holds for them as well. */
TEST(entries_on_their_way_are_told)
{
    make_profile();
    ssd_latency_ns = 10000000;
    kvt_store *store = learn_open_store(true, 300);
    ssd_latency_ns = 0;
    kvt_variant coarse;
    pthread_t thread;
    uint32_t moves;
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    kvt_key told = support_key(0), begun = support_key(102);
    learn_arrivals arrivals = {.store = store};
    learn_put(store, 0, 3);
    assert_int_equal(pthread_create(&thread, NULL, learn_come, &arrivals), 0);
    while (kvt_store_exists(store, &begun) != KVT_OK && atomic_load(&arrivals.count) < LEARN_COMING)
        sched_yield();
    assert_ok(kvt_quality_observe(store, &told, coarse, 0.04, 1000));
    assert_ok(kvt_store_maintain(store, &moves));
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < LEARN_COMING; i++) {
        static kvt_explanation why = {.struct_size = sizeof why};
        kvt_key key = support_key(100 + i);
        assert_ok(arrivals.statuses[i]);
        uint32_t found = 0;
        assert_ok(kvt_store_explain(store, &key, &why));
        for (uint8_t at = 1; at < why.option_count; at++) {
            if (memcmp(&why.options[at].option.variant, &coarse, sizeof coarse) != 0) continue;
            assert_true(why.options[at].option.loss_upper > 0.0061);
            found++;
        }
        assert_int_equal(found, 1);
    }
    kvt_store_close(store);
}
