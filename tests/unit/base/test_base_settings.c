/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_settings.c - settings into the fields of a struct: kinds, defaults, modes, ranges. What
 * a file may say is tested in test_store_config.c.
 */
#include "cases.h"

#include "base/config_values.h"
#include "base/settings_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MODE_A = 1, MODE_B = 2 };

typedef struct fields {
    double tick_seconds;
    uint64_t latency_ns;
    uint64_t staging_bytes;
    uint64_t put_staging_bytes;
    uint32_t moves;
    uint32_t holes;
    double median;
    bool copies;
    bool sparse;
    bool bounds;
} fields;

#define ROW(name, member, ...) SETTINGS_FIELD(fields, name, member, __VA_ARGS__)

static const settings_field rows[] = {
    ROW("store.tick", tick_seconds, .modes = 0),
    ROW("store.staging", staging_bytes, .modes = 0),
    ROW("store.put_staging", put_staging_bytes, .modes = 0),
    ROW("store.moves_per_tick", moves, .modes = MODE_A),
    ROW("store.holes", holes, .modes = 0),
    ROW("workload.tokens_median", median, .modes = 0),
    ROW("store.copies", copies, .modes = 0),
    ROW("replay.bounds", bounds, .modes = MODE_B),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const settings_field device_rows[] = {
    ROW("device.*.latency", latency_ns, .modes = 0),
    ROW("device.*.prewrite", sparse, .negated = true),
};

static kvt_config *configured(const char *const *assignments)
{
    kvt_config *config = NULL;
    char message[256];
    assert_ok(kvt_config_new(&config));
    for (; *assignments != NULL; assignments++)
        assert_ok(kvt_config_set(config, *assignments, message, sizeof message));
    return config;
}

/* Without a configuration every field gets its setting's default, and one without keeps its own. */
TEST(defaults)
{
    fields out = {.put_staging_bytes = 77};
    settings_read(NULL, NULL, rows, ROWS, SETTINGS_ALL_MODES, &out);
    assert_true(out.tick_seconds == 0.05);
    assert_int_equal(out.staging_bytes, 256 << 20);
    assert_int_equal(out.put_staging_bytes, 77);
    assert_int_equal(out.moves, 64);
    assert_int_equal(out.holes, 0);
    assert_true(out.median == 8192);
    assert_true(out.copies && out.bounds);
}

TEST(values)
{
    const char *const set[] = {"store.tick=500ms",         "store.staging=1MiB",
                               "store.put_staging=2k",     "store.moves_per_tick=99999999999",
                               "store.copies=no",          "store.holes=mixed",
                               "device.d0.latency=80us",   "device.d0.prewrite=no",
                               "workload.tokens_median=3", NULL};
    kvt_config *config = configured(set);
    fields out = {.sparse = false};
    settings_read(config, NULL, rows, ROWS, MODE_A, &out);
    settings_read(config, "d0", device_rows, 2, 0, &out);
    assert_true(out.tick_seconds == 0.5 && out.median == 3);
    assert_int_equal(out.staging_bytes, 1 << 20);
    assert_int_equal(out.put_staging_bytes, 2048);
    assert_int_equal(out.moves, UINT32_MAX); /* no other value: a larger one does not fit */
    assert_int_equal(out.holes, 1);
    assert_int_equal(out.latency_ns, 80000);
    assert_true(out.sparse && !out.copies);
    assert_null(kvt_config_unused_get(config, 0));
    kvt_config_free(config);
}

/* A setting that has no effect in the mode is not read, so that it can be reported. */
TEST(modes)
{
    const char *const set[] = {"store.moves_per_tick=3", "replay.bounds=no", NULL};
    kvt_config *config = configured(set);
    fields out = {.moves = 9, .bounds = true};
    settings_read(config, NULL, rows, ROWS, MODE_B, &out);
    assert_int_equal(out.moves, 9);
    assert_false(out.bounds);
    assert_string_equal(kvt_config_unused_get(config, 0), "store.moves_per_tick");
    kvt_config_free(config);
}

TEST(ranges)
{
    char message[96] = "";
    fields out = {.tick_seconds = 3600, .staging_bytes = 1 << 20, .median = 1};
    assert_true(settings_hold(rows, ROWS, &out, message, sizeof message));
    out.staging_bytes--;
    assert_false(settings_hold(rows, ROWS, &out, message, sizeof message));
    assert_string_equal(message, "store.staging: 1048576 and more");
    out.staging_bytes++;
    out.tick_seconds = 3600.001;
    assert_false(settings_hold(rows, ROWS, &out, message, sizeof message));
    out.tick_seconds = (double)NAN;
    assert_false(settings_hold(rows, ROWS, &out, message, sizeof message));
    assert_string_equal(message, "store.tick: 0 to 3600");
}

/* Every range of the table holds its setting's default. */
TEST(defaults_are_in_range)
{
    const kvt_setting *setting;
    char range[64];
    size_t ranges = 0;
    kvt_config *config = configured((const char *const[]){NULL});
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        const bool real =
            setting->kind == KVT_SETTING_NUMBER || setting->kind == KVT_SETTING_SECONDS;
        assert_int_equal(kvt_setting_range(setting, range)[0] == '\0', setting->most == 0);
        if (setting->most == 0 || setting->standard == NULL) continue;
        const double value = real ? kvt_config_number(config, setting->name)
                                  : (double)kvt_config_bytes(config, setting->name);
        assert_true(value >= setting->least && value <= setting->most);
        ranges++;
    }
    assert_in_range(ranges, 40, 200);
    kvt_config_free(config);
}

/* Configurations that between them meet and miss the condition of each setting that has one. The
 * section's own name is "one". */
static const char *const worlds[][16] = {
    {NULL},
    {"store.policy=lru", NULL},
    {"store.policy=utility", "store.profile=p.db", "store.learn=no", "store.ladder=calibrated",
     "store.tick=0", "serve.socket=s", NULL},
    {"store.catalog=c.db", "store.profile=p.db", "store.watch_path=w", "tier.hbm.capacity=1GiB",
     "tier.dram.capacity=1GiB", "device.one.tier=ssd", "device.one.backend=file",
     "device.two.tier=ssd", "device.two.backend=nvme", "remote.one.address=h:1",
     "remote.one.tls=yes", "replay.overlap=yes", "replay.ladder=l.json", "replay.sensitivity=0.5",
     "workload.scan_rate=1", NULL},
    {"device.one.tier=hbm", "device.one.backend=hbm", "device.two.tier=hbm",
     "device.two.backend=hbm", "remote.one.backend=mooncake", "tier.remote.capacity=1GiB",
     "store.io_order=reads_first", "device.one.write_budget=1GiB", "workload.crowd_rate=1",
     "workload.contexts=1", "workload.turns_mean=1.0", NULL},
    {"device.one.tier=dram", "device.one.backend=memory", "device.two.tier=dram",
     "device.two.backend=memory", "replay.hosts=2", "store.profile=p", "prefill.profile=m",
     "store.io_order=slack", "replay.overlap=yes", "replay.layers=32", "replay.layered=yes", NULL},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* Sets a setting to a value of its kind. key: with "one" for the name of a section. */
static void set_alone(kvt_config *config, const kvt_setting *setting, char key[64])
{
    static const char *const values[] = {
        [KVT_SETTING_TEXT] = "x",    [KVT_SETTING_BYTES] = "1MiB", [KVT_SETTING_RATE] = "1MB/s",
        [KVT_SETTING_SECONDS] = "1", [KVT_SETTING_NUMBER] = "0.5", [KVT_SETTING_COUNT] = "1",
        [KVT_SETTING_SWITCH] = "no"};
    const char *star = strchr(setting->name, '*');
    char assignment[128], message[256] = "";
    const char *value = setting->standard != NULL ? setting->standard : values[setting->kind];
    char first[16];
    if (setting->standard == NULL && setting->choices != NULL) {
        (void)snprintf(first, sizeof first, "%.*s", (int)strcspn(setting->choices, "|"),
                       setting->choices);
        value = first;
    }
    (void)snprintf(key, 64, "%.*s%s%s",
                   star != NULL ? (int)(star - setting->name) : (int)strlen(setting->name),
                   setting->name, star != NULL ? "one" : "", star != NULL ? star + 1 : "");
    if (kvt_config_has(config, key)) return;
    (void)snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    if (kvt_config_set(config, assignment, message, sizeof message) != KVT_OK)
        fail_msg("%s: %s", assignment, message);
}

/* Each setting of the table, alone in each of the worlds: where its condition fails it is refused
 * by name, where it holds it is taken, and there is a world of either kind for each condition. */
TEST(every_setting_has_an_effect_or_is_refused)
{
    const kvt_setting *setting;
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        unsigned taken = 0, refused = 0;
        if (setting->effect == NULL) fail_msg("%s: no condition is stated", setting->name);
        for (size_t w = 0; w < WORLDS; w++) {
            char key[64], message[768] = "", start[96];
            kvt_config *config = configured(worlds[w]);
            /* A world itself holds nothing that is without effect. */
            if (kvt_config_check_effects(config, message, sizeof message) != KVT_OK)
                fail_msg("world %zu: %s", w, message);
            set_alone(config, setting, key);
            const kvt_status status = kvt_config_check_effects(config, message, sizeof message);
            (void)snprintf(start, sizeof start, "%s has no effect here: ", key);
            if (status == KVT_OK) {
                taken++;
            } else if (status != KVT_E_CONFIG || strstr(message, start) != message) {
                fail_msg("%s in world %zu: %s", key, w, message);
            } else {
                refused++;
            }
            kvt_config_free(config);
        }
        if (taken == 0 || (refused == 0) != (setting->effect[0] == '\0'))
            fail_msg("%s: taken in %u worlds, refused in %u; its condition: '%s'", setting->name,
                     taken, refused, setting->effect);
    }
}

/* What the sentence says, by the kinds of conditions. */
TEST(the_reason_is_said)
{
    static const struct {
        const char *set[4];
        const char *reason; /* NULL: it has an effect */
    } cases[] = {
        {{"store.variant=raw", NULL}, "store.policy is utility, not lru or lru-leaf or"},
        {{"store.variant=raw", "store.policy=lru", NULL}, NULL},
        {{"store.copies=yes", NULL}, "store.catalog is not set"},
        {{"store.copies=no", "store.catalog=c", NULL}, "no [device.NAME] has tier = ssd"},
        {{"tier.ssd.unit=4KiB", NULL},
         "tier.ssd.capacity is not set, and no [device.NAME] has tier = ssd"},
        {{"tier.ssd.reweigh=no", "device.a.tier=ssd", NULL},
         "fewer than 2 [device.NAME] have tier = ssd"},
        {{"replay.repeatability=1", NULL}, "replay.sensitivity is 0"},
        {{"replay.route=random", "replay.hosts=1", NULL}, "replay.hosts is 1"},
        {{"prefill.gpu=h100", "prefill.profile=x", "store.profile=p", NULL},
         "prefill.profile is set"},
        {{"store.watch_interval=1s", "store.watch_path=w", NULL}, NULL},
        {{"device.a.gpu=0", "device.a.backend=hbm", "device.b.backend=hbm", NULL}, NULL},
        {{"device.a.gpu=0", "device.a.backend=file", "device.b.backend=hbm", NULL},
         "device.a.backend is file, not hbm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[768] = "";
        kvt_config *config = configured(cases[i].set);
        const kvt_status status = kvt_config_check_effects(config, message, sizeof message);
        if ((status == KVT_OK) != (cases[i].reason == NULL) ||
            (status != KVT_OK && strstr(message, cases[i].reason) == NULL))
            fail_msg("%s: %s", cases[i].set[0], message);
        kvt_config_free(config);
    }
}

/* A configuration that stands for several policies, as a comparison's. */
TEST(policies_that_are_tried)
{
    static const char *const set[] = {"store.variant=lossless", "store.alpha=3", NULL};
    char message[768] = "";
    kvt_config *config = configured(set);
    assert_int_equal(kvt_config_check_effects(config, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, "store.variant"));
    assert_ok(kvt_config_try_policies(config, "lru+planes,utility"));
    assert_ok(kvt_config_check_effects(config, message, sizeof message));
    assert_ok(kvt_config_try_policies(config, "lru,lfu"));
    assert_int_equal(kvt_config_check_effects(config, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, "store.alpha has no effect here: store.policy is lru,lfu"));
    kvt_config_free(config);
}
