/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_config.c - a simulation takes a store's file as the store does: the live store of the
 * same file has the tiers, capacities, speeds, variants and limits that the simulation reports.
 * What a file says and a simulation has no part for is named.
 */
#include "ladder_support.h"
#include "replay/replay.h"
#include "replay/results.h"
#include "rows_text.h"
#include "store/core/store.h"

#include <jansson.h>
#include <math.h>

static const test_rung test_rungs[] = {
    {"planes:k8v8,g64", 8.5, 0.0005, 0.001, true},
    {"planes:k4v4,g64", 4.5, 0.005, 0.009, true},
    {"entropy:k0.25v0.5,vchan", 3.5, 0.006, 0.012, true},
    {"entropy:k0.75v1.5,vchan", 2.0, 0.050, 0.060, true},
};
enum { TEST_RUNGS = sizeof test_rungs / sizeof test_rungs[0] };

/* Of another host, so that the file accepts foreign figures. The drive "b" is unknown. */
static const char measurements[] =
    "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
    "dram,dram,read,8e9,2e-6\ndram,dram,write,6e9,2e-6\n"
    "a,ssd,read,3e9,8e-5\na,ssd,write,1e9,9e-5\n"
    "c,ssd,read,2e9,7e-5\nc,ssd,write,5e8,1e-4\n"
    "[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s,threads\n"
    "raw,1,9e9,9e9,1\nlossless:dense,0.7,4e8,8e8,1\n";

static char folder[64], profile_path[96];

static void write_file(const char *name, const char *text)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

TEST_BEFORE_EACH
{
    char message[256];
    kvt_profile *profile = NULL;
    support_make_folder(folder, sizeof folder);
    (void)snprintf(profile_path, sizeof profile_path, "%s/profile.db", folder);
    ladder_make_profile(profile_path, test_rungs, TEST_RUNGS);
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    rows_text_import(profile, measurements, "made up");
    kvt_profile_close(profile);
}

/* A configuration of a file, in which "@" stands for the folder. */
static kvt_config *read_config(const char *text)
{
    char whole[2048], path[96], message[256];
    size_t used = 0;
    for (; *text != '\0'; text++) {
        if (*text == '@')
            used += (size_t)snprintf(whole + used, sizeof whole - used, "%s", folder);
        else
            whole[used++] = *text;
        assert_true(used < sizeof whole);
    }
    whole[used] = '\0';
    write_file("store.ini", whole);
    (void)snprintf(path, sizeof path, "%s/store.ini", folder);
    kvt_config *config = NULL;
    assert_ok(kvt_config_new(&config));
    if (kvt_config_read(config, path, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    return config;
}

/* The configuration that a simulation of a file reports. */
static json_t *report_of(const char *text, char *note, size_t note_size)
{
    char message[512] = "", *printed = NULL;
    size_t bytes = 0;
    replay_options options;
    replay_workload workload = {.name = "none"};
    kvt_config *config = read_config(text);
    if (replay_options_read(config, false, &options, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    const replay_report report = {
        .version = "0", .options = &options, .workload = &workload, .result_count = 0};
    FILE *stream = open_memstream(&printed, &bytes);
    assert_non_null(stream);
    assert_ok(replay_print_json(&report, stream));
    (void)fclose(stream);
    json_t *document = json_loadb(printed, bytes, 0, NULL);
    assert_non_null(document);
    json_t *configuration = json_incref(json_object_get(document, "configuration"));
    (void)snprintf(note, note_size, "%s | %s",
                   json_string_value(json_object_get(document, "simulated")), options.note);
    json_decref(document);
    free(printed);
    replay_options_free(&options);
    kvt_config_free(config);
    return configuration;
}

static kvt_store *open_store(const char *text, kvt_store_options *options, void **owner)
{
    char message[512] = "";
    kvt_store *store = NULL;
    kvt_config *config = read_config(text);
    options->struct_size = sizeof *options;
    if (kvt_store_options_read(config, options, owner, message, sizeof message) != KVT_OK ||
        kvt_store_open(options, &store, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    kvt_config_free(config);
    return store;
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) fail_msg("no number %s", name);
    return json_number_value(value);
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

/* known: every device of the file is in the profile, so that speeds agree as well. */
static void assert_same(const char *text, bool known)
{
    char note[4096], name[64];
    void *owner = NULL;
    kvt_store_options options;
    json_t *said = report_of(text, note, sizeof note);
    kvt_store *store = open_store(text, &options, &owner);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const json_t *row = json_object_get(json_object_get(said, "tiers"), kvt_tier_name(tier));
        assert_int_equal(row != NULL, store->pools[tier] != NULL);
        if (row == NULL) continue;
        assert_true(number_of(row, "capacity_bytes") ==
                    (double)store_policy_capacity(store, (kvt_tier)tier));
        if (!known) continue;
        assert_near(number_of(row, "read_bytes_per_s"), store->costs.read[tier].bytes_per_s);
        assert_near(number_of(row, "write_bytes_per_s"), store->costs.write[tier].bytes_per_s);
        assert_near(number_of(row, "read_request_s"), store->costs.read[tier].request_seconds);
    }
    const json_t *variants = json_object_get(said, "variants");
    assert_int_equal(json_array_size(variants), store->costs.variant_count);
    for (uint32_t i = 0; i < store->costs.variant_count; i++) {
        const json_t *one = json_array_get(variants, i);
        kvt_variant_format(store->costs.variants[i].variant, name, sizeof name);
        assert_string_equal(json_string_value(json_object_get(one, "name")), name);
        assert_near(number_of(one, "stored_share"), store->costs.variants[i].stored_share);
    }
    assert_true(number_of(said, "loss_limit") == options.loss.loss_limit);
    assert_true(number_of(said, "alpha_s") == options.loss.alpha_seconds);
    assert_true(number_of(said, "tick_s") == options.limits.tick_seconds);
    kvt_variant_format(options.variant, name, sizeof name);
    assert_string_equal(json_string_value(json_object_get(said, "variant")), name);
    assert_true(json_is_boolean(json_object_get(said, "copies")));
    assert_true(json_is_true(json_object_get(said, "copies")) ==
                (options.durability.catalog_path != NULL));
    kvt_store_close(store);
    kvt_store_options_free(owner);
    json_decref(said);
    for (const char *drive = "abc"; *drive != '\0'; drive++) { /* the next store begins anew */
        char path[96];
        (void)snprintf(path, sizeof path, "%s/%c", folder, *drive);
        (void)unlink(path);
    }
}

#define PROFILE "profile = @/profile.db\nprofile_foreign = yes\nlearn = no\n"
#define DRIVE(name, size)                                                                          \
    "[device." name "]\ntier = ssd\nbackend = file\npath = @/" name                                \
    "\nprewrite = no\ncapacity = " size "\n"
#define LADDER "ladder = calibrated\nladder_layout = 2x2x64:bf16\n"

TEST(a_simulation_is_of_the_store)
{
    /* Two drives of unlike sizes, whose labels and ends of stripes are not for records; a capacity
     * of DRAM that is no multiple of a page. */
    assert_same("[store]\n" PROFILE "[tier.dram]\ncapacity = 33000001\n" DRIVE("a", "64MiB")
                    DRIVE("c", "32MiB"),
                true);
    /* With a ladder, under the standard limit and under one that leaves more of it. */
    assert_same("[store]\n" PROFILE LADDER "[tier.dram]\ncapacity = 32MiB\n", true);
    assert_same("[store]\n" PROFILE LADDER "loss_limit = 0.05\nalpha = 3\n[tier.dram]\ncapacity = "
                "32MiB\n[tier.ssd]\ncapacity = 20MiB\nunit = 64KiB\n" DRIVE("a", "64MiB"),
                true);
    assert_same("[store]\n" PROFILE LADDER "loss_limit = 1\nentry_loss_limit = 0.5\n[tier.dram]\n"
                "capacity = 32MiB\n",
                true);
    /* Drives of two sizes; other policies have a variant of their own. */
    assert_same("[store]\npolicy = lru\nvariant = lossless\n" PROFILE DRIVE("a", "64MiB")
                    DRIVE("c", "32MiB"),
                true);
    assert_same("[store]\nlossless = no\ntick = 0.5\n" PROFILE
                "[tier.dram]\ncapacity = 32MiB\n" DRIVE("b", "64MiB"),
                false);
}

TEST(what_is_not_simulated_is_named)
{
    char note[4096];
    json_t *said =
        report_of("[store]\ncatalog = @/catalog.db\nget_deadline = 1\n" PROFILE LADDER
                  "loss_limit = 1\n" DRIVE("a", "64MiB") DRIVE("b", "64MiB") "depth = 4\n",
                  note, sizeof note);
    assert_non_null(strstr(note, "Not simulated: store.catalog, store.get_deadline, store.learn, "
                                 "device.a.prewrite, device.b.prewrite, device.b.depth."));
    assert_non_null(strstr(note, "b is not in the profile: 1 GB/s assumed"));
    assert_non_null(strstr(note, "(a measured, b by default)"));
    assert_non_null(strstr(note, "no limit of loss"));
    json_decref(said);
}

TEST(what_cannot_be_simulated_is_refused)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"[store]\n" PROFILE LADDER
         "[tier.dram]\ncapacity = 1GB\n[replay]\nbytes_per_token = 1MiB\n",
         "replay.bytes_per_token"},
        {"[store]\n" PROFILE LADDER "ladder_class = code\n[tier.dram]\ncapacity = 1GB\n",
         "calibrated for class 'stories'"},
        {"[tier.ssd]\ncapacity = 1GB\n" DRIVE("a", "64MiB"), "its devices hold"},
        {"[device.a]\ntier = ssd\nbackend = nvme\npath = /dev/ng9n9\n", "found by opening alone"},
        {"[tier.dram]\ncapacity = 1GB\n[replay]\nsensitivity = 1\n", "replay.sensitivity has no"},
        {"[store]\nvariant = lossless\n[tier.dram]\ncapacity = 1GB\n", "store.variant has no"},
        {"[tier.ssd]\ndevices = a\n", "tier.ssd.devices has no effect here: store.profile is not"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[512] = "";
        replay_options options;
        kvt_config *config = read_config(cases[i].text);
        const kvt_status status =
            replay_options_read(config, false, &options, message, sizeof message);
        if (status != KVT_E_CONFIG || strstr(message, cases[i].reason) == NULL)
            fail_msg("case %zu: %d, %s", i, (int)status, message);
        kvt_config_free(config);
    }
}
