/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_ladder.c - lossy forms in a store: the calibrated ladder out of a profile, what is
 * refused, entries that become coarser under pressure and come back as one coding of the original,
 * the loss limit, and rows of forms that the limit no longer allows.
 */
#include "base/clock.h"
#include "codecs/record.h"
#include "codecs/view_rows.h"
#include "ladder_support.h"
#include "policy/trial.h"
#include "steady_costs.h"
#include "store/core/store.h"
#include "store_folder.h"

#include <kvterrace/queue.h>
#include <math.h>

static const test_rung test_rungs[] = {
    {"planes:k8v8,g64", 8.5, 0.0005, 0.001, true},
    {"planes:k6v6,g64", 6.5, 0.001, 0.002, true},
    {"planes:k4v4,g64", 4.5, 0.005, 0.009, true},
    {"planes:k3v3,g64", 3.6, 0.030, 0.040, false},
    {"entropy:k0.25v0.5,vchan", 3.5, 0.006, 0.010, true},
    {"drop:stream,50+planes:k8v8,g64", 3.0, 0.020, 0.025, true},
    {"entropy:k0.75v1.5,vchan", 2.0, 0.050, 0.060, true},
};
/* Large enough that planes save whole pages. */
static const kvt_layout ladder_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512};
#define LADDER_ENTRY_BYTES (512u * 1024u)

/* The same in fp8: as many bytes. */
static const kvt_layout small_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP8, .tokens = 1024};

/* The layout of the entries that are put. */
static const kvt_layout *entry_layout = &ladder_layout;

enum { TEST_RUNGS = sizeof test_rungs / sizeof test_rungs[0] };

/* Without a calibration the profile is empty. */
static void make_profile(bool calibrated)
{
    ladder_make_profile(profile_path, test_rungs, calibrated ? TEST_RUNGS : 0);
}

/* Bounds of 90 % of entries: of three variants they are known; all are widened. */
static void add_entry_bounds(void)
{
    static const struct {
        const char *name, *bound;
    } bounds[] = {{"planes:k8v8,g64", "0.002"},
                  {"planes:k6v6,g64", "0.004"},
                  {"planes:k4v4,g64", "0.03"},
                  {"entropy:k0.25v0.5,vchan", "not a number"}};
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        ladder_run_sql(
            database,
            "INSERT INTO calibration_choice (calibration_id, question, chosen, evidence) "
            "VALUES (1, 'loss of nine entries in ten: %s', %Q, 'made up')",
            bounds[i].name, bounds[i].bound);
    ladder_run_sql(database,
                   "INSERT INTO calibration_choice (calibration_id, question, chosen, evidence) "
                   "VALUES (1, 'bounds: factor for a class never measured', '2.5', 'made up')");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* ---- the ladder out of the profile ---- */

static kvt_status read_ladder(const kvt_layout *layout, const char *class_name, uint32_t capacity,
                              kvt_codec_curve *curves, uint32_t *count, char *message)
{
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_READ, &profile, message, 256));
    message[0] = '\0';
    kvt_status status = profile_rungs_read(profile, layout, NULL, class_name, curves, capacity,
                                           count, message, 256);
    kvt_profile_close(profile);
    return status;
}

static void assert_rung(const kvt_codec_curve *curve, int rung)
{
    char name[96];
    (void)kvt_variant_format(curve->variant, name, sizeof name);
    assert_string_equal(name, test_rungs[rung].name);
    assert_true(curve->loss == test_rungs[rung].loss &&
                curve->loss_upper == test_rungs[rung].upper);
    assert_true(curve->stored_share == test_rungs[rung].bits / 16.0);
}

TEST_EACH(store_folder_make, NULL);

TEST(ladders_are_of_a_layout)
{
    kvt_codec_curve curves[8];
    uint32_t count;
    char message[256];
    kvt_layout layout = ladder_layout;
    make_profile(true);
    assert_ok(read_ladder(&layout, NULL, 8, curves, &count, message));
    assert_int_equal(count, 5);
    static const int whole[] = {0, 1, 2, 4, 6};
    for (uint32_t i = 0; i < count; i++)
        assert_rung(&curves[i], whole[i]);
    /* Tokens may go: then that rung beats none, and none beats it. */
    layout.tokens_may_drop = 1;
    assert_ok(read_ladder(&layout, "stories", 8, curves, &count, message));
    assert_int_equal(count, 6);
    assert_rung(&curves[4], 5);
    layout.tokens_may_drop = 0;
    /* The two closest are 4.5 and 3.5 bits beside their neighbours: 6.5/3.5 < 4.5/2. */
    assert_ok(read_ladder(&layout, NULL, 3, curves, &count, message));
    assert_int_equal(count, 3);
    assert_rung(&curves[0], 0);
    assert_rung(&curves[2], 6);
    layout.dtype = KVT_DTYPE_FP32;
    assert_ok(read_ladder(&layout, NULL, 8, curves, &count, message));
    assert_true(curves[0].stored_share == test_rungs[0].bits / 32.0);
    /* Eight bits and more are nothing against fp8. */
    layout.dtype = KVT_DTYPE_FP8;
    assert_ok(read_ladder(&layout, NULL, 8, curves, &count, message));
    assert_int_equal(count, 4);
    assert_true(curves[0].loss == test_rungs[1].loss);
    assert_true(curves[0].stored_share == test_rungs[1].bits / 8.0);
}

TEST(other_layouts_have_none)
{
    kvt_codec_curve curves[8];
    uint32_t count;
    char message[256];
    kvt_layout layout = ladder_layout;
    make_profile(true);
    layout.head_dim = 128;
    assert_int_equal(read_ladder(&layout, NULL, 8, curves, &count, message), KVT_E_MISMATCH);
    assert_string_equal(message,
                        "calibrated is tiny with 2 layers x 2 KV heads x 64, not 2 x 2 x 128");
    layout = ladder_layout;
    assert_int_equal(read_ladder(&layout, "code", 8, curves, &count, message), KVT_E_MISMATCH);
    assert_string_equal(message, "tiny is calibrated for class 'stories', not 'code'");
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_READ, &profile, message, 256));
    assert_int_equal(
        profile_rungs_read(profile, &layout, "large", NULL, curves, 8, &count, message, 256),
        KVT_E_MISMATCH);
    assert_string_equal(message, "calibrated is tiny, not large");
    kvt_profile_close(profile);
    layout.sides = KVT_SIDES_ONE; /* K of the model */
    assert_ok(read_ladder(&layout, NULL, 8, curves, &count, message));
    layout.sides = 2;
    assert_ok(read_ladder(&layout, NULL, 8, curves, &count, message));
    layout = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 4096};
    assert_int_equal(read_ladder(&layout, NULL, 8, curves, &count, message), KVT_E_ARGUMENT);
    assert_int_equal(unlink(profile_path), 0);
    make_profile(false);
    assert_int_equal(read_ladder(&ladder_layout, NULL, 8, curves, &count, message), KVT_MISS);
    assert_non_null(strstr(message, "calibrate"));
}

/* ---- stores ---- */

TEST(stores_refuse_what_is_not_calibrated)
{
    char message[256];
    kvt_store *store = NULL;
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, 1 << 20);
    make_profile(true);
    options.learning.profile_path = NULL;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    options = ladder_store_options(profile_path, &ladder_layout, 1 << 20);
    options.loss.ladder_layout.kv_heads = 8;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_MISMATCH);
    assert_non_null(strstr(message, "2 layers x 2 KV heads x 64, not 2 x 8 x 64"));
    options = ladder_store_options(profile_path, &ladder_layout, 1 << 20);
    options.loss.loss_limit = 1.5;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    assert_int_equal(unlink(profile_path), 0);
    make_profile(false);
    options = ladder_store_options(profile_path, &ladder_layout, 1 << 20);
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_MISMATCH);
}

static void fill_entry(uint32_t number, void *data)
{
    codecs_kv_sample_fill(entry_layout, 1000 + number, data);
}

static kvt_status put_entry(kvt_store *store, uint32_t number, const kvt_layout *layout)
{
    static char data[LADDER_ENTRY_BYTES];
    const kvt_entry entry = support_entry(support_key(number), *layout, 1e4);
    fill_entry(number, data);
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

/* What one coding of `data` in the variant gives back. */
static void code_once(const void *data, kvt_variant variant, void *decoded)
{
    static _Alignas(4096) char record[2 * LADDER_ENTRY_BYTES], scratch[2 << 20];
    const kvt_record_spec spec = {.generation = 1, .layout = *entry_layout, .variant = variant};
    uint64_t bytes, bound, scratch_bytes;
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    assert_true(bound <= sizeof record && scratch_bytes <= sizeof scratch);
    assert_true(kvt_record_encode(&spec, data, LADDER_ENTRY_BYTES, record, sizeof record, scratch,
                                  sizeof scratch, &bytes) >= 0);
    assert_ok(kvt_record_decode(record, bytes, NULL, decoded, LADDER_ENTRY_BYTES, scratch,
                                sizeof scratch));
}

static double upper_of(kvt_variant variant)
{
    for (int i = 0; i < TEST_RUNGS; i++) {
        kvt_variant rung;
        assert_ok(kvt_variant_parse(test_rungs[i].name, &rung));
        if (memcmp(&rung, &variant, sizeof rung) == 0) return test_rungs[i].upper;
    }
    return 0.0;
}

/* An entry comes back as one coding of the original, or one of planes at 8 bits, which count as
 * exact. Returns the bound of its form's loss; -1 for a miss. */
static double check_entry(kvt_store *store, uint32_t number)
{
    static char data[LADDER_ENTRY_BYTES], got[LADDER_ENTRY_BYTES], wanted[LADDER_ENTRY_BYTES];
    kvt_key key = support_key(number);
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_variant fine;
    kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info);
    if (status == KVT_MISS) return -1.0;
    assert_ok(status);
    fill_entry(number, data);
    code_once(data, info.variant, wanted);
    if (memcmp(got, wanted, sizeof got) != 0) {
        assert_ok(kvt_variant_parse("planes:k8v8,g64", &fine));
        code_once(data, fine, wanted);
        memcpy(data, wanted, sizeof data);
        code_once(data, info.variant, wanted);
    }
    assert_memory_equal(got, wanted, sizeof got);
    return upper_of(info.variant);
}

enum { PRESSURE_ENTRIES = 64 };

/* Entries for which raw has room for a fifth, each so dear to compute that any form is worth
 * having. Returns how many are held lossy. */
static uint32_t press(kvt_store *store, double limit)
{
    uint32_t lossy = 0, held = 0;
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        kvt_status status = put_entry(store, i, entry_layout);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        double upper = check_entry(store, i);
        held += upper >= 0.0;
        lossy += upper > 0.0;
        assert_true(upper <= limit);
    }
    assert_true(held > 0);
    return lossy;
}

TEST(pressure_makes_entries_of_fp8_coarser)
{
    kvt_store_options options =
        ladder_store_options(profile_path, &small_layout, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    entry_layout = &small_layout;
    kvt_store *store = support_open(&options);
    const uint32_t lossy = press(store, options.loss.loss_limit);
    kvt_store_close(store);
    entry_layout = &ladder_layout;
    assert_true(lossy > 15 && lossy <= 12 * 8 / 3); /* 3.5 bits of 8: 27 at most, and heads */
}

TEST(pressure_makes_entries_coarser)
{
    char message[256];
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    kvt_store *store = support_open(&options);
    assert_true(press(store, options.loss.loss_limit) > 30);
    kvt_store_close(store);
    options.loss.loss_limit = 0.0015; /* planes at 8 bits, and nothing coarser */
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    uint32_t lossy = press(store, options.loss.loss_limit);
    assert_true(lossy > 10 && lossy <= 25); /* 8.5 bits: 23 at most */
    kvt_store_close(store);
    options.loss.ladder = false; /* the default: nothing is lost */
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    assert_int_equal(press(store, 0.0), 0);
    kvt_store_close(store);
}

/* A limit for entries keeps what is known to keep it, and counts in the scale of the mean limit. */
TEST(entries_have_a_limit_of_their_own)
{
    char message[256];
    kvt_codec_curve curves[8];
    uint32_t count;
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    add_entry_bounds();
    assert_ok(read_ladder(&ladder_layout, NULL, 8, curves, &count, message));
    assert_true(curves[0].loss_entry == 0.002 && curves[1].loss_entry == 0.004);
    assert_true(curves[3].loss_entry == 0.0); /* the text is no figure: not known */
    for (uint32_t i = 0; i < count; i++)
        assert_true(curves[i].loss_widening == 2.5);
    options.loss.entry_loss_limit = 0.005; /* 8 and 6 bits */
    kvt_store *store = support_open(&options);
    assert_int_equal(store->costs.variant_count, store->exact_variants + 2);
    const kvt_codec_curve *first = &store->costs.variants[store->exact_variants];
    assert_true(fabs(first[0].loss_upper - 0.002 / 0.005 * 0.01) < 1e-12);
    assert_true(fabs(first[1].loss_upper - 0.004 / 0.005 * 0.01) < 1e-12);
    assert_true(press(store, options.loss.loss_limit) > 10);
    kvt_store_close(store);
    options.loss.entry_loss_limit = 0.001; /* nothing keeps it; 8 bits may, once observed */
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    assert_int_equal(store->costs.variant_count, store->exact_variants + 1);
    assert_int_equal(press(store, 0.0), 0);
    kvt_store_close(store);
    options.loss.entry_loss_limit = 0.0005; /* nor then */
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    assert_int_equal(store->costs.variant_count, store->exact_variants);
    kvt_store_close(store);
    static const double outside[] = {0.0, -0.1, 1.5, NAN};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        options.loss.entry_loss_limit = outside[i];
        assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
        assert_non_null(strstr(message, "entry_loss_limit"));
    }
}

/* ---- variants that wait for observations ---- */

/* A ladder for a class that was not measured: once its widening is gone, 4 bits are within the
 * limit; what loses 0.006 is not. */
static kvt_store_options waiting_options(uint64_t dram_bytes)
{
    sqlite3 *database = NULL;
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, dram_bytes);
    make_profile(true);
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    ladder_run_sql(database,
                   "INSERT INTO calibration_choice (calibration_id, question, chosen, evidence) "
                   "VALUES (1, 'bounds: factor for a class never measured', '2.5', 'made up')");
    ladder_run_sql(database,
                   "INSERT INTO quality_set (id, run_id, model_id, class, method, settings, "
                   "context_tokens, continuation_tokens, entries, nll_nats, spearman_variants, "
                   "sensitivity_sd, repeatability) VALUES (1, 1, 1, 'stories', 'continuation', "
                   "'{}', 256, 256, 100, 2.0, 0.99, 0.53, 0.75)");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    options.loss.loss_limit = 0.0058;
    return options;
}

static bool may_be_in(kvt_store *store, uint32_t number, kvt_variant variant)
{
    static kvt_explanation why;
    const kvt_key key = support_key(number);
    why = (kvt_explanation){.struct_size = sizeof why};
    assert_ok(kvt_store_explain(store, &key, &why));
    for (uint8_t i = 1; i < why.option_count; i++)
        if (memcmp(&why.options[i].option.variant, &variant, sizeof variant) == 0)
            return why.options[i].feasible;
    fail_msg("the variant is no option");
    return false;
}

/* Puts until the next entry may, or may not, be in the variant; one in eight is judged. */
static uint32_t puts_until(kvt_store *store, kvt_variant variant, double loss, bool may)
{
    for (uint32_t puts = 1; puts <= 1000; puts++) {
        const uint32_t number = 1000 + puts;
        const kvt_key key = support_key(number);
        assert_ok(put_entry(store, number, &ladder_layout));
        const bool does = may_be_in(store, number, variant);
        if (puts % 8 == 0) assert_ok(kvt_quality_observe(store, &key, variant, loss, 1));
        assert_ok(kvt_store_delete(store, &key));
        if (does == may) return puts;
    }
    return UINT32_MAX;
}

static uint32_t put_under_pressure(kvt_store *store, uint32_t first, kvt_variant variant)
{
    uint32_t count = 0;
    for (uint32_t i = first; i < first + PRESSURE_ENTRIES; i++) {
        const kvt_status status = put_entry(store, i, &ladder_layout);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    for (uint32_t i = first; i < first + PRESSURE_ENTRIES; i++)
        count += check_entry(store, i) == upper_of(variant);
    return count;
}

/* A variant that is beyond the limit for want of observations is taken by no entry and can be
 * observed. Losses like its own admit it; when losses grow it is refused again, after 200 puts at
 * most. */
TEST(observations_admit_and_refuse)
{
    kvt_variant coarse;
    kvt_store_options options = waiting_options(12 * LADDER_ENTRY_BYTES);
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    kvt_store *store = support_open(&options);
    assert_int_equal(store->costs.variant_count, store->exact_variants + 3);
    assert_true(press(store, 0.002) > 10); /* its limit holds for every entry */
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        const kvt_key key = support_key(i);
        (void)!kvt_store_delete(store, &key);
    }
    const uint32_t until = puts_until(store, coarse, 0.004, true);
    assert_true(until > 8 && until <= 200);
    for (int i = 0; i < 10; i++)
        (void)puts_until(store, coarse, 0.004, i % 2 == 0); /* more of the same */
    assert_true(put_under_pressure(store, 2000, coarse) > 10);
    for (uint32_t i = 2000; i < 2000 + PRESSURE_ENTRIES; i++) {
        const kvt_key key = support_key(i);
        (void)!kvt_store_delete(store, &key);
    }
    assert_true(puts_until(store, coarse, 0.015, false) <= 200);
    assert_int_equal(put_under_pressure(store, 3000, coarse), 0);
    kvt_store_close(store);
}

/* Records in an admitted variant come back at the next open with the figures that admitted it, and
 * not without them. */
TEST(admitted_rows_need_what_admitted_them)
{
    char message[256];
    kvt_variant coarse;
    sqlite3 *database = NULL;
    kvt_store_options options = waiting_options(0);
    const kvt_device_config device = support_file_config("ssd0", ssd_path, 12 * LADDER_ENTRY_BYTES);
    options.durability.catalog_path = catalog_path;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarse));
    kvt_store *store = support_open(&options);
    for (uint32_t i = 0; i < 20; i++) {
        const kvt_key key = support_key(1000 + i);
        assert_ok(put_entry(store, 1000 + i, &ladder_layout));
        assert_ok(kvt_quality_observe(store, &key, coarse, 0.003, 1));
        assert_ok(kvt_store_delete(store, &key));
    }
    const uint32_t count = put_under_pressure(store, 0, coarse);
    assert_true(count > 10);
    kvt_store_close(store);
    for (int without = 0; without < 2; without++) {
        uint32_t found = 0;
        assert_ok(kvt_store_open(&options, &store, message, sizeof message));
        for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++)
            found += check_entry(store, i) == upper_of(coarse);
        assert_int_equal(found, without ? 0 : count);
        kvt_store_close(store);
        assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
        ladder_run_sql(database, "DELETE FROM learned");
        assert_int_equal(sqlite3_close(database), SQLITE_OK);
    }
}

/* A fixed policy stores every entry in the one form of the ladder that it is given, or in one of
 * two; a form that is not in the ladder, or beyond the limit, is refused at open. */
TEST(fixed_policies_take_forms_of_the_ladder)
{
    enum { ENTRIES = 16 };
    char message[256];
    kvt_store *store = NULL;
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 64 * LADDER_ENTRY_BYTES);
    make_profile(true);
    options.policy = "lru";
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &options.variant));
    options.loss.loss_limit = 0;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "ladder"));
    options.loss.loss_limit = 1;
    options.loss.ladder = false;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    options.loss.ladder = true;
    for (int mixed = 0; mixed < 2; mixed++) {
        uint32_t lossy = 0;
        assert_ok(kvt_store_open(&options, &store, message, sizeof message));
        const policy_trial trial = {.half_life_seconds = TRIAL_HALF_LIFE,
                                    .other_share = mixed ? 0.5 : 0,
                                    .other_variant.codec = KVT_CODEC_RAW};
        policy_try(store->policy, &trial);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_ok(put_entry(store, i, &ladder_layout));
            const double upper = check_entry(store, i);
            assert_true(upper == upper_of(options.variant) || (mixed && upper == 0.0));
            lossy += upper > 0.0;
        }
        assert_true(mixed ? lossy > 0 && lossy < ENTRIES : lossy == ENTRIES);
        kvt_store_close(store);
    }
}

static void entries_stay_exact(const kvt_layout *other)
{
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 12 * LADDER_ENTRY_BYTES);
    static char data[LADDER_ENTRY_BYTES], got[LADDER_ENTRY_BYTES];
    make_profile(true);
    kvt_store *store = support_open(&options);
    uint32_t held = 0;
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        kvt_status status = put_entry(store, i, other);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        kvt_key key = support_key(i);
        if (kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, NULL) !=
            KVT_OK)
            continue;
        fill_entry(i, data);
        assert_memory_equal(got, data, sizeof got);
        held++;
    }
    assert_true(held > 10 && held < 40);
    kvt_store_close(store);
}

/* Of other heads, and of one side: as many bytes. */
TEST(other_entries_stay_exact)
{
    kvt_layout layout = ladder_layout;
    layout.kv_heads = 4;
    layout.tokens = 256;
    entries_stay_exact(&layout);
}

TEST(one_sided_entries_stay_exact)
{
    kvt_layout layout = ladder_layout;
    layout.sides = 1;
    layout.tokens = 1024;
    entries_stay_exact(&layout);
}

/* K alone and V alone, of another width, of a ladder of one side; K and V together stay exact then,
 * and so does K of another width. */
TEST(one_sided_entries_become_coarser)
{
    static const struct {
        kvt_layout layout;
        bool lossy;
    } cases[] = {
        {{2, 2, 64, KVT_DTYPE_BF16, 0, 1024, 0, KVT_SIDES_ONE, {0}, 0}, true},
        {{2, 2, 128, KVT_DTYPE_BF16, 0, 512, 0, KVT_SIDES_V, {0}, 0}, true},
        {{2, 2, 64, KVT_DTYPE_BF16, 0, 512, 0, KVT_SIDES_BOTH, {0}, 0}, false},
        {{2, 2, 128, KVT_DTYPE_BF16, 0, 512, 0, KVT_SIDES_ONE, {0}, 0}, false},
    };
    kvt_layout one = ladder_layout;
    one.sides = KVT_SIDES_ONE;
    make_profile(true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvt_store_options options =
            ladder_store_options(profile_path, &one, 12 * LADDER_ENTRY_BYTES);
        entry_layout = &cases[i].layout;
        kvt_store *store = support_open(&options);
        const uint32_t lossy = press(store, options.loss.loss_limit);
        kvt_store_close(store);
        entry_layout = &ladder_layout;
        assert_true(cases[i].lossy ? lossy > 30 : lossy == 0);
    }
}

/* A stricter promise does not serve what was stored under a weaker one. */
TEST(a_lower_limit_drops_coarser_rows)
{
    char message[256];
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, 0);
    const kvt_device_config device = support_file_config("ssd0", ssd_path, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    options.durability.catalog_path = catalog_path;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = support_open(&options);
    uint32_t lossy = press(store, options.loss.loss_limit), coarse = 0;
    assert_true(lossy > 20);
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++)
        coarse += check_entry(store, i) > 0.0025;
    assert_true(coarse > 10);
    kvt_store_close(store);
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    uint32_t again = 0;
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++)
        again += check_entry(store, i) > 0.0;
    assert_int_equal(again, lossy); /* the same promise keeps them all */
    kvt_store_close(store);
    options.loss.loss_limit = 0.0025;
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    again = 0;
    for (uint32_t i = 0; i < PRESSURE_ENTRIES; i++) {
        double upper = check_entry(store, i);
        assert_true(upper <= 0.0025);
        again += upper > 0.0;
    }
    assert_int_equal(again, lossy - coarse);
    kvt_store_close(store);
}

/* ---- what a request accepts ---- */

/* One get through a queue; its completion. */
static kvt_completion get_within(kvt_store *store, uint32_t number, double loss_max)
{
    static char got[LADDER_ENTRY_BYTES];
    kvt_view view = codecs_packed_view(&ladder_layout, got);
    kvt_completion done = {.struct_size = sizeof done};
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(number),
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE,
                                 .loss_max = loss_max};
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(store, NULL, &queue));
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, UINT64_MAX));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    kvt_queue_close(queue);
    return done;
}

/* The bound of a loss decides, not its mean: 0.0015 takes planes at 8 bits, 0.006 those at 6 bits,
 * and not those at 4 bits, which lose 0.005 and at most 0.009. */
TEST(requests_get_what_they_accept)
{
    static const double accepted[] = {-1, 0.0015, 0.006, 0.0095};
    kvt_store_options options =
        ladder_store_options(profile_path, &ladder_layout, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    kvt_store *store = support_open(&options);
    assert_true(press(store, options.loss.loss_limit) > 0);
    uint32_t refused = 0, got = 0;
    for (uint32_t i = 0; i < PRESSURE_ENTRIES * 4; i++) {
        double loss_max = accepted[i % 4];
        kvt_completion done = get_within(store, i / 4, loss_max);
        double upper = check_entry(store, i / 4);
        bool accepts = upper <= (loss_max < 0 ? 0 : loss_max);
        assert_int_equal(done.status, upper >= 0 && accepts ? KVT_OK : KVT_MISS);
        assert_int_equal(done.refused_loss, upper >= 0 && !accepts);
        refused += done.refused_loss;
        got += done.status == KVT_OK && upper > 0;
    }
    assert_true(refused > 0 && got > 0);
    assert_int_equal(support_stats(store).refused.loss, refused);
    kvt_store_close(store);
}

/* What becomes coarser while a get waits for its staging. */
static store_entry *coarser;
static kvt_variant coarser_variant;
static kvt_store *coarser_store;

extern __typeof__(staging_acquire) __real_staging_acquire, __wrap_staging_acquire;

kvt_status __wrap_staging_acquire(store_staging *staging, uint64_t bytes, uint64_t deadline_ns,
                                  staging_buffer *buffer_out)
{
    if (coarser != NULL) {
        pthread_mutex_lock(&coarser_store->lock);
        coarser->place->variant = coarser_variant;
        coarser = NULL;
        pthread_mutex_unlock(&coarser_store->lock);
    }
    return __real_staging_acquire(staging, bytes, deadline_ns, buffer_out);
}

TEST(what_became_coarser_is_refused)
{
    kvt_store_options options = ladder_store_options(profile_path, &ladder_layout, 0);
    const kvt_device_config device = support_file_config("ssd0", ssd_path, 12 * LADDER_ENTRY_BYTES);
    make_profile(true);
    options.policy = "lru"; /* raw, as it was put */
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = support_open(&options);
    assert_ok(put_entry(store, 1, &ladder_layout));
    assert_ok(get_within(store, 1, -1).status);
    const kvt_key key = support_key(1);
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, &key);
    kvt_variant exact = entry->place->variant;
    pthread_mutex_unlock(&store->lock);
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &coarser_variant));
    coarser_store = store;
    coarser = entry;
    kvt_completion done = get_within(store, 1, -1);
    assert_null(coarser);
    assert_int_equal(done.status, KVT_MISS);
    assert_true(done.refused_loss);
    pthread_mutex_lock(&store->lock);
    entry->place->variant = exact;
    pthread_mutex_unlock(&store->lock);
    assert_ok(get_within(store, 1, -1).status);
    kvt_store_close(store);
}
