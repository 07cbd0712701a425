/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_trust.c - no profile, however wrong, shuts a store: after at most 200 puts the hits
 * are those of a store with a sound profile, also when the wrong figures were kept over a restart.
 * Nor does what a clock says shut a store.
 *
 * The store runs on memory. Its clock at the learn interface is the test's: every transfer and
 * every decoding takes the seconds of the sound curves, so counts decide and no timing does.
 */
#include "estimator/profile/profile_internal.h"
#include "store/core/store.h"
#include "store_folder.h"

#include "codecs/codecs.h"

#include <math.h>
#include <sqlite3.h>

#define TRUST_REQUEST_S   20e-6
#define TRUST_BYTES_PER_S 1e9 /* of the device and of both codecs */
#define TRUST_RECOMPUTE_S                                                                          \
    3e-4 /* of an entry; its load takes 0.09 ms, four times that at the bound */
#define TRUST_DRAM_BYTES (1u << 20) /* where it stands above an SSD: 28 entries */
#define TRUST_PUTS       200u
#define SLOW_SSD_MS      5u
#define TRUST_CONTEXTS   100u
#define TRUST_REQUESTS   400u

/* ---- a profile ---- */

static void run_sql(const char *sql)
{
    sqlite3 *database = NULL;
    char *error = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error != NULL ? error : "");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

static void add_codec(kvt_profile *profile, int64_t run, kvt_variant variant, double share)
{
    kvt_codec_curve curve = {.variant = variant,
                             .stored_share = share,
                             .encode_bytes_per_s = TRUST_BYTES_PER_S,
                             .decode_bytes_per_s = TRUST_BYTES_PER_S};
    assert_ok(profile_codec_insert(profile, run, &curve, "scalar", 1, "sample", 1 << 20, 1));
}

static void add_device(kvt_profile *profile, int64_t run, const char *name, kvt_tier tier)
{
    int64_t row = 0;
    kvt_device device = {.facts = {.identity = "host-memory",
                                   .engine = "memory",
                                   .capacity_bytes = 64 << 20,
                                   .request_bytes_max = 1 << 20,
                                   .depth_max = 8}};
    const kvt_affine fit = {TRUST_REQUEST_S, TRUST_BYTES_PER_S, 0};
    (void)snprintf(device.name, sizeof device.name, "%s", name);
    assert_ok(profile_device_insert(profile, run, &device, tier, &row));
    for (uint8_t kind = 0; kind < 2; kind++) {
        kvt_device_point point = {.kind = kind,
                                  .request_bytes = 1 << 20,
                                  .depth = 1,
                                  .repetitions = 1,
                                  .bytes_per_s = TRUST_BYTES_PER_S,
                                  .bytes_per_s_min = TRUST_BYTES_PER_S,
                                  .bytes_per_s_max = TRUST_BYTES_PER_S,
                                  .latency_seconds_p50 = 1e-3,
                                  .latency_seconds_p99 = 1e-3};
        assert_ok(profile_point_insert(profile, row, &point, 1, &fit));
    }
}

/* The sound figures: memory as both tiers, raw and lossless. */
static void make_profile(void)
{
    kvt_profile *profile = NULL;
    char message[256] = "";
    int64_t run = 0;
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    assert_ok(profile_run_begin(profile, "device", "", 1, &run));
    add_device(profile, run, "dram0", KVT_TIER_DRAM);
    add_device(profile, run, "ssd0", KVT_TIER_SSD);
    assert_ok(profile_run_complete(profile, run));
    assert_ok(profile_run_begin(profile, "codecs", "", 1, &run));
    add_codec(profile, run, (kvt_variant){.codec = KVT_CODEC_RAW}, 1.0);
    add_codec(profile, run, (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE},
              0.75);
    assert_ok(profile_run_complete(profile, run));
    /* What a store has learned: at first that the curves are right. */
    assert_ok(profile_run_begin(profile, "learned", "", 1, &run));
    assert_ok(profile_run_complete(profile, run));
    kvt_profile_close(profile);
    run_sql("INSERT INTO learned SELECT (SELECT max(id) FROM run), 'codec', name, part, 1.0, 1e6, "
            "1000000, NULL, NULL, NULL FROM (SELECT 'raw' AS name UNION SELECT 'lossless'), "
            "(SELECT 'decode' AS part UNION SELECT 'encode')");
    run_sql("INSERT INTO learned SELECT (SELECT max(id) FROM run), 'device', 'host-memory', part, "
            "value, 1e6, 1000000, NULL, NULL, NULL FROM (SELECT 'read_request_s' AS part, 20e-6 AS "
            "value UNION SELECT 'write_request_s', 20e-6 UNION SELECT 'read_bytes_per_s', 1e9 "
            "UNION SELECT 'write_bytes_per_s', 1e9)");
}

/* ---- a store that runs by the test's clock ---- */

static double sound_seconds(void *context, learn_timing what, double bytes, double measured)
{
    (void)context;
    (void)measured;
    switch (what) {
    case LEARN_TIME_READ:
    case LEARN_TIME_WRITE: return TRUST_REQUEST_S + bytes / TRUST_BYTES_PER_S;
    case LEARN_TIME_DECODE:
    case LEARN_TIME_ENCODE: return bytes / TRUST_BYTES_PER_S;
    case LEARN_TIME_GET:
    case LEARN_TIME_REMOTE: break;
    }
    return TRUST_REQUEST_S + 2 * bytes / TRUST_BYTES_PER_S;
}

/* The test's small DRAM stands above an SSD tier; so much of what an SSD request takes is real. */
static bool layered;
static uint64_t ssd_latency_ns;

static kvt_device_config memory_device(const char *name, uint64_t bytes, uint64_t latency_ns)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = "memory",
                               .capacity_bytes = bytes,
                               .latency_ns = latency_ns,
                               .timeout_ns = UINT64_MAX};
}

static kvt_store *open_store(void)
{
    kvt_device_config dram = memory_device("dram0", layered ? TRUST_DRAM_BYTES : 64 << 20, 0);
    kvt_device_config ssd = memory_device("ssd0", 64 << 20, ssd_latency_ns);
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    options.limits.staging_bytes = 8 << 20;
    options.limits.tick_seconds = 0;
    options.learning.profile_path = profile_path;
    support_tier(&options, KVT_TIER_DRAM, &dram, 1);
    options.tiers[KVT_TIER_DRAM].weights_fixed = true;
    support_tier(&options, KVT_TIER_SSD, &ssd, layered);
    options.tiers[KVT_TIER_SSD].weights_fixed = true;
    kvt_store *store = support_open(&options);
    pthread_mutex_lock(&store->learn->lock);
    store->learn->clock = sound_seconds;
    pthread_mutex_unlock(&store->learn->lock);
    return store;
}

static double recompute_seconds = TRUST_RECOMPUTE_S;

static kvt_status put(kvt_store *store, uint32_t number)
{
    static char data[SUPPORT_ENTRY_BYTES];
    uint32_t moves;
    support_fill(number, data);
    kvt_entry entry = support_entry(support_key(number), support_layout, recompute_seconds);
    kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
    assert_true(status == KVT_OK || status == KVT_REFUSED);
    if (number % 8 == 7) assert_ok(kvt_store_maintain(store, &moves));
    return status;
}

/* What a store's life came to. */
typedef struct life {
    uint32_t taken;       /* of the first puts */
    uint32_t hits;        /* of the requests after these */
    uint32_t refused_run; /* longest, of all puts */
    kvt_store_stats stats;
} life;

static void count_put(life *all, uint32_t *run, kvt_status status)
{
    *run = status == KVT_REFUSED ? *run + 1 : 0;
    if (*run > all->refused_run) all->refused_run = *run;
}

static life live(void)
{
    life all = {0};
    uint32_t run = 0, seed = 7;
    kvt_store *store = open_store();
    for (uint32_t i = 0; i < TRUST_PUTS; i++) {
        kvt_status status = put(store, i);
        all.taken += status == KVT_OK;
        count_put(&all, &run, status);
    }
    for (uint32_t i = 0; i < TRUST_REQUESTS; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t number = 1000 + (seed >> 16) % TRUST_CONTEXTS;
        kvt_status status = support_get(store, number, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        all.hits += status == KVT_OK;
        if (status == KVT_MISS) count_put(&all, &run, put(store, number));
    }
    all.stats = support_stats(store);
    kvt_store_close(store);
    return all;
}

/* ---- poison ---- */

static const struct {
    const char *what;
    const char *sql;
} poisons[] = {
    {"learned decoding x 8", "UPDATE learned SET value = 8 WHERE part = 'decode'"},
    {"learned codecs x 8", "UPDATE learned SET value = 8 WHERE kind = 'codec'"},
    {"learned devices x 8", "UPDATE learned SET value = 8 * value WHERE part LIKE '%_request_s'; "
                            "UPDATE learned SET value = value / 8 WHERE part LIKE '%_bytes_per_s'"},
    {"all that is learned x 8",
     "UPDATE learned SET value = 8 WHERE kind = 'codec'; "
     "UPDATE learned SET value = 8 * value WHERE part LIKE '%_request_s'; "
     "UPDATE learned SET value = value / 8 WHERE part LIKE '%_bytes_per_s'"},
    {"all that is learned x 1000",
     "UPDATE learned SET value = 999 WHERE kind = 'codec'; "
     "UPDATE learned SET value = 999 * value WHERE part LIKE '%_request_s'; "
     "UPDATE learned SET value = value / 999 WHERE part LIKE '%_bytes_per_s'"},
    {"measured codecs x 1000",
     "DELETE FROM learned; UPDATE codec_curve SET decode_bytes_per_s = decode_bytes_per_s / 1000, "
     "encode_bytes_per_s = encode_bytes_per_s / 1000"},
    {"measured device x 1000",
     "DELETE FROM learned; UPDATE device_fit SET request_seconds = request_seconds * 1000, "
     "bytes_per_s = bytes_per_s / 1000"},
    {"all that is measured x 1000",
     "DELETE FROM learned; UPDATE codec_curve SET decode_bytes_per_s = decode_bytes_per_s / 1000, "
     "encode_bytes_per_s = encode_bytes_per_s / 1000; UPDATE device_fit SET request_seconds = "
     "request_seconds * 1000, bytes_per_s = bytes_per_s / 1000"},
    {"measured x 1000, learned x 4 of it",
     "UPDATE learned SET value = 4 WHERE kind = 'codec'; "
     "UPDATE learned SET value = 4000 * value WHERE part LIKE '%_request_s'; "
     "UPDATE learned SET value = value / 4000 WHERE part LIKE '%_bytes_per_s'; "
     "UPDATE codec_curve SET decode_bytes_per_s = decode_bytes_per_s / 1000, "
     "encode_bytes_per_s = encode_bytes_per_s / 1000; UPDATE device_fit SET request_seconds = "
     "request_seconds * 1000, bytes_per_s = bytes_per_s / 1000"},
};

TEST_EACH(store_folder_make, NULL);

TEST(poisoned_profile_is_overcome)
{
    make_profile();
    recompute_seconds = TRUST_RECOMPUTE_S;
    life fresh = live();
    assert_int_equal(fresh.taken, TRUST_PUTS);
    assert_true(fresh.hits > TRUST_REQUESTS / 2);
    assert_int_equal(fresh.stats.learned.puts_tried, 0);
    for (size_t i = 0; i < sizeof poisons / sizeof poisons[0]; i++) {
        (void)store_folder_make(state);
        make_profile();
        run_sql(poisons[i].sql);
        /* The second life begins with what the first one kept. */
        for (int again = 0; again < 2; again++) {
            life poisoned = live();
            print_message("%s%s: %u of %u puts taken, longest run refused %u, %u hits of %u\n",
                          poisons[i].what, again ? ", kept and loaded again" : "", poisoned.taken,
                          TRUST_PUTS, poisoned.refused_run, poisoned.hits, fresh.hits);
            assert_true(poisoned.refused_run < TRUST_PUTS);
            assert_true(20 * poisoned.hits >= 19 * fresh.hits);
        }
    }
}

#define SSD_SLOWER(factor)                                                                         \
    "DELETE FROM learned; UPDATE device_fit SET request_seconds = request_seconds * " factor       \
    ", bytes_per_s = bytes_per_s / " factor                                                        \
    " WHERE device_id IN (SELECT id FROM device WHERE name = 'ssd0')"

/* A DRAM tier goes on taking puts by evicting, and must not hide that the SSD takes nothing. */
static const struct {
    const char *what;
    const char *sql;
    uint64_t latency_ns; /* while the SSD is measured at open; the sound one has 20 us */
} hidden_poisons[] = {
    {"SSD x 1000", SSD_SLOWER("1000"), 0},
    {"SSD x 20", SSD_SLOWER("20"), 0},
    {"SSD x 8", SSD_SLOWER("8"), 0},
    {"SSD measured at open, x 100",
     "PRAGMA foreign_keys = ON; DELETE FROM learned; DELETE FROM device WHERE name = 'ssd0'",
     2000000},
};

TEST(upper_tier_hides_no_shut_one)
{
    layered = true;
    make_profile();
    recompute_seconds = TRUST_RECOMPUTE_S;
    life fresh = live();
    print_message("sound: %u puts taken, %u hits\n", fresh.taken, fresh.hits);
    assert_int_equal(fresh.taken, TRUST_PUTS);
    assert_true(fresh.hits > TRUST_REQUESTS / 2);
    assert_int_equal(fresh.stats.learned.puts_tried, 0);
    for (size_t i = 0; i < sizeof hidden_poisons / sizeof hidden_poisons[0]; i++) {
        (void)store_folder_make(state);
        make_profile();
        run_sql(hidden_poisons[i].sql);
        ssd_latency_ns = hidden_poisons[i].latency_ns;
        for (int again = 0; again < 2; again++) {
            life poisoned = live();
            print_message(
                "%s%s: %u of %u puts taken, %llu tried, %u hits of %u, %llu of %llu in SSD\n",
                hidden_poisons[i].what, again ? ", kept and loaded again" : "", poisoned.taken,
                TRUST_PUTS, (unsigned long long)poisoned.stats.learned.puts_tried, poisoned.hits,
                fresh.hits, (unsigned long long)poisoned.stats.tiers[KVT_TIER_SSD].entries,
                (unsigned long long)fresh.stats.tiers[KVT_TIER_SSD].entries);
            assert_true(poisoned.refused_run < TRUST_PUTS);
            assert_true(20 * poisoned.hits >= 19 * fresh.hits);
        }
    }
    ssd_latency_ns = 0;
    layered = false;
}

static double slow_ssd_seconds(void *context, learn_timing what, double bytes, double measured)
{
    /* Only the SSD carries out requests of such a length by its own clock. */
    if (what <= LEARN_TIME_WRITE && measured >= 1e-3 * SLOW_SSD_MS) return 50e-3;
    return sound_seconds(context, what, bytes, measured);
}

/* An SSD that really is too slow is tried as rarely as all else that is refused. */
TEST(slow_ssd_pays_little)
{
    layered = true;
    make_profile();
    recompute_seconds = TRUST_RECOMPUTE_S;
    run_sql(SSD_SLOWER("1000"));
    ssd_latency_ns = SLOW_SSD_MS * UINT64_C(1000000);
    kvt_store *store = open_store();
    pthread_mutex_lock(&store->learn->lock);
    store->learn->clock = slow_ssd_seconds;
    pthread_mutex_unlock(&store->learn->lock);
    for (uint32_t i = 0; i < 5 * TRUST_PUTS; i++)
        (void)put(store, i);
    kvt_store_stats stats = support_stats(store);
    print_message("slow SSD: %llu of %u puts tried, %llu refused, %llu evictions\n",
                  (unsigned long long)stats.learned.puts_tried, 5 * TRUST_PUTS,
                  (unsigned long long)stats.puts_refused, (unsigned long long)stats.evictions);
    /* 24, 32, 48, 80, 144, 272, then one of 256: two tiers share one of 128. */
    uint64_t learned = (stats.learned.puts_refused + 7) / 8; /* memory that was slow for a while */
    assert_in_range(stats.learned.puts_tried, 6, 5 + 5 * TRUST_PUTS / 128 + learned);
    kvt_store_close(store);
    ssd_latency_ns = 0;
    layered = false;
}

/* A prefill that makes all recomputing too cheap: putting is pointless, and refused, but the store
 * is never shut for good. */
TEST(worthless_entries_are_tried_now_and_then)
{
    uint32_t moves;
    make_profile();
    recompute_seconds = 1e-9;
    kvt_store *store = open_store();
    uint32_t taken = 0, run = 0;
    life all = {0};
    for (uint32_t i = 0; i < 5 * TRUST_PUTS; i++) {
        kvt_status status = put(store, i);
        taken += status == KVT_OK;
        count_put(&all, &run, status);
    }
    assert_ok(kvt_store_maintain(store, &moves));
    kvt_store_stats stats = support_stats(store);
    assert_true(all.refused_run < TRUST_PUTS);
    assert_true(taken > 0 && taken < 5 * TRUST_PUTS / 50);
    assert_int_equal(stats.learned.puts_tried, taken);
    assert_int_equal(stats.learned.puts_refused, 0);
    assert_int_equal(stats.gets, 0); /* reading back is no get */
    assert_true(stats.tiers[KVT_TIER_DRAM].loads.loads >= 4);
    kvt_store_close(store);
    recompute_seconds = TRUST_RECOMPUTE_S;
}

/* A refusal by learned figures is counted and explained; the first such put is tried. */
TEST(refusal_is_explained)
{
    static kvt_explanation why = {.struct_size = sizeof why};
    make_profile();
    run_sql(poisons[3].sql);
    kvt_store *store = open_store();
    /* None of these numbers brings a background round, which would correct the figures. */
    assert_ok(put(store, 1));
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(put(store, 8 * i + 5), KVT_REFUSED);
    assert_ok(put(store, 81));
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.learned.puts_refused, 9);
    assert_int_equal(stats.learned.puts_tried, 2);
    assert_int_equal(stats.puts_refused, 7);
    kvt_key refused = support_key(5), tried = support_key(1), unknown = support_key(77);
    assert_int_equal(kvt_store_explain(store, &refused, &why), KVT_MISS);
    assert_non_null(why.reason);
    assert_non_null(strstr(why.reason, "learned"));
    assert_int_equal(kvt_store_explain(store, &unknown, &why), KVT_MISS);
    assert_null(why.reason);
    /* An entry that was stored for a trial has its present figures: it is not worth its place. */
    assert_ok(kvt_store_explain(store, &tried, &why));
    assert_true(why.current != KVT_OPTION_NONE);
    assert_true(why.options[why.current].utility < why.options[KVT_OPTION_NONE].utility);
    kvt_store_close(store);
}

/* ---- what a clock says ---- */

static double odd_seconds; /* that everything takes; below 0 = none and endless ones in turns */

static double odd_clock(void *context, learn_timing what, double bytes, double measured)
{
    static uint32_t turn;
    (void)context;
    (void)what;
    (void)bytes;
    (void)measured;
    if (odd_seconds >= 0) return odd_seconds;
    return turn++ % 2 == 0 ? 0 : (double)INFINITY;
}

static void set_clock(kvt_store *store, learn_clock *clock)
{
    pthread_mutex_lock(&store->learn->lock);
    store->learn->clock = clock;
    pthread_mutex_unlock(&store->learn->lock);
}

static void check_costs(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    learn_cost_tier(store, KVT_TIER_DRAM);
    assert_true(online_figures_are_sound(&store->costs.read[KVT_TIER_DRAM]));
    assert_true(online_figures_are_sound(&store->costs.write[KVT_TIER_DRAM]));
    assert_true(online_figures_are_sound(&store->curve_costs.read[KVT_TIER_DRAM]));
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        const kvt_codec_curve *curve = &store->costs.variants[i];
        assert_true(curve->decode_bytes_per_s > 0 && isfinite(curve->decode_bytes_per_s));
        assert_true(curve->encode_bytes_per_s > 0 && isfinite(curve->encode_bytes_per_s));
    }
    pthread_mutex_unlock(&store->lock);
}

/* With seconds of zero, tiny, equal and huge ones, no put is taken for a wrong one. */
TEST(no_clock_shuts_the_store)
{
    static const double seconds[] = {0, 1e-12, 1e-6, 1e9, (double)INFINITY, -1};
    recompute_seconds = 1e7;
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++) {
        (void)store_folder_make(state);
        make_profile();
        kvt_store *store = open_store();
        odd_seconds = seconds[i];
        set_clock(store, odd_clock);
        for (uint32_t number = 0; number < 2 * TRUST_PUTS; number++) {
            kvt_status status = put(store, number);
            assert_true(status == KVT_OK || odd_seconds > 1 || odd_seconds < 0);
            (void)support_get(store, number / 2, NULL);
            if (number % 64 == 63) check_costs(store);
        }
        check_costs(store);
        kvt_store_close(store);
    }
    recompute_seconds = TRUST_RECOMPUTE_S;
}

/* The seconds of work in memory are shared out between device and codec. However long both are
 * faster than their curves, each keeps its part. */
TEST(work_in_memory_is_shared_out)
{
    static const double factors[] = {0.3, 0.05, 0.5, 3};
    const online_work work = {.bytes = SUPPORT_ENTRY_BYTES};
    const double load = TRUST_REQUEST_S + work.bytes / TRUST_BYTES_PER_S;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        (void)store_folder_make(state);
        make_profile();
        kvt_store *store = open_store();
        set_clock(store, NULL);
        /* Loads and puts in memory, whose seconds are so many times those of the curves. */
        const uint64_t bytes = SUPPORT_ENTRY_BYTES;
        tiers_extent extent = {.bytes = bytes};
        const tiers_location location = {.bytes = bytes, .extents = &extent, .extent_count = 1};
        const kvt_variant raw = {.codec = KVT_CODEC_RAW};
        double seconds = factors[i] * (TRUST_REQUEST_S + 2 * (double)bytes / TRUST_BYTES_PER_S);
        for (int step = 0; step < 10000; step++) {
            learn_transfer transfer;
            learn_begin_in_memory(store, KVT_TIER_DRAM, &location, &transfer);
            learn_notes_begin(store);
            (void)learn_note_get(store, &transfer, raw, bytes, seconds, seconds);
            learn_notes_end(store);
            learn_note_encode_in_memory(store, KVT_TIER_DRAM, &location, raw, bytes, seconds);
        }
        const learn_member *member = &store->learn->tiers[KVT_TIER_DRAM].members[0];
        const learn_codec *codec = &store->learn->codecs[0];
        const double got[] = {online_device_predict(&member->kinds[KVT_IO_READ], &work) / load,
                              online_device_predict(&member->kinds[KVT_IO_WRITE], &work) / load,
                              online_factor_value(&codec->decode),
                              online_factor_value(&codec->encode)};
        print_message("x %.2f: device %.3f %.3f, codec %.3f %.3f\n", factors[i], got[0], got[1],
                      got[2], got[3]);
        for (int j = 0; j < 4; j++)
            assert_true(fabs(got[j] / factors[i] - 1) < 0.1);
        check_costs(store);
        kvt_store_close(store);
    }
}

/* What is loaded comes closer to its curve with the time that has passed since. */
TEST(what_was_kept_ages)
{
    static const struct {
        const char *written;
        double least, most;
    } ages[] = {{"now", 3.9, 4.01}, {"-600 seconds", 1.9, 2.3}, {"-1 day", 0.999, 1.001}};
    for (size_t i = 0; i < sizeof ages / sizeof ages[0]; i++) {
        char sql[160];
        (void)store_folder_make(state);
        make_profile();
        run_sql(poisons[4].sql);
        (void)snprintf(sql, sizeof sql,
                       "UPDATE run SET finished_utc = strftime('%%Y-%%m-%%dT%%H:%%M:%%SZ', 'now', "
                       "'%s') WHERE kind = 'learned'",
                       i == 0 ? "0 seconds" : ages[i].written);
        run_sql(sql);
        kvt_store *store = open_store();
        double factor = online_factor_value(&store->learn->codecs[0].decode);
        assert_true(factor >= ages[i].least && factor <= ages[i].most);
        const online_device *device =
            &store->learn->tiers[KVT_TIER_DRAM].members[0].kinds[KVT_IO_READ];
        double bound = 1.0 + online_device_drift(device, ONLINE_LOAD_BYTES);
        assert_true(bound < 4.2 && (i < 2 || bound < 1.01 * ages[i].most));
        kvt_store_close(store);
    }
}
