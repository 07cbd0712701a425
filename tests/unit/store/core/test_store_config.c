/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_config.c - settings: values by kind, files, overrides, use tracking.
 */
#include "cases.h"

#include "base/config_values.h"

#include <kvterrace/config.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kvt_config *fresh(void)
{
    kvt_config *config = NULL;
    assert_ok(kvt_config_new(&config));
    assert_non_null(config);
    return config;
}

/* Reads `bytes` bytes as a configuration file. */
static kvt_status read_bytes(kvt_config *config, const void *text, size_t bytes, char *message,
                             size_t size)
{
    char path[] = "config-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, bytes), (ssize_t)bytes);
    assert_int_equal(close(descriptor), 0);
    kvt_status status = kvt_config_read(config, path, message, size);
    assert_int_equal(unlink(path), 0);
    return status;
}

static kvt_status read_text(kvt_config *config, const char *text, char *message, size_t size)
{
    return read_bytes(config, text, strlen(text), message, size);
}

TEST(sizes)
{
    const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"1B", 1},
        {"64KiB", 65536},
        {"64 KiB", 65536},
        {"1.5GB", 1500000000},
        {"125GiB", UINT64_C(125) << 30},
        {"0.5TiB", UINT64_C(1) << 39},
        {"2kB", 2000},
        {"3MB", 3000000},
        {"0.1KiB", 102},
        {"64k", 65536},
        {"64K", 65536},
        {"1.5g", UINT64_C(3) << 29},
        {"2t", UINT64_C(2) << 40},
        {"1gib", UINT64_C(1) << 30},
        {"1gb", 1000000000},
        {"18446744073709551615", UINT64_MAX},
        {"16777215TiB", UINT64_C(16777215) << 40},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 12345;
        assert_ok(kvt_parse_bytes(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    const char *bad[] = {
        "",      " 1",      "-1",          "+1",
        "1.5",   "1.5B",    "1.",          ".5GiB",
        "GiB",   "1GiBs",   "1Gb",         "1Kb",
        "1e3",   "0x10",    "1,5GB",       "18446744073709551616",
        "1GiB ", "1/s",     "nan",         "1MB/s",
        "64kk",  "1..5GiB", "16777216TiB", "0.1234567890123456789GiB",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 12345;
        assert_int_equal(kvt_parse_bytes(bad[i], &bytes), KVT_E_CONFIG);
        assert_true(bytes == 12345);
    }
}

TEST(times)
{
    const struct {
        const char *text;
        double seconds;
    } good[] = {
        {"0", 0},     {"0.05", 0.05}, {"500ms", 0.5}, {"80us", 80e-6}, {"100 ns", 1e-7},
        {"2h", 7200}, {"1.5min", 90}, {"1d", 86400},  {"30s", 30},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double seconds = -1;
        assert_ok(kvt_parse_seconds(good[i].text, &seconds));
        assert_true(seconds == good[i].seconds);
    }
    const char *bad[] = {"",           "-1",     "1sec", "ms",        "1e3",  "inf",
                         "1000000001", "20000d", "1m",   "5 minutes", "0.5.5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double seconds = -1;
        assert_int_equal(kvt_parse_seconds(bad[i], &seconds), KVT_E_CONFIG);
        assert_true(seconds == -1);
    }
}

TEST(counts)
{
    const char *good[] = {"0", "500", "10k", "10K", "2m", "1g", "1.5k"};
    const uint64_t counts[] = {0, 500, 10000, 10000, 2000000, 1000000000, 1500};
    kvt_config *config = fresh();
    char assignment[64], message[256];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        (void)snprintf(assignment, sizeof assignment, "workload.requests=%s", good[i]);
        assert_ok(kvt_config_set(config, assignment, message, sizeof message));
        assert_true(kvt_config_bytes(config, "workload.requests") == counts[i]);
    }
    const char *bad[] = {"-1", "1.5", "10kk", "10KiB", "k", "1 k", "1e3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        (void)snprintf(assignment, sizeof assignment, "workload.requests=%s", bad[i]);
        assert_int_equal(kvt_config_set(config, assignment, message, sizeof message), KVT_E_CONFIG);
    }
    kvt_config_free(config);
}

/* A misspelt name gets the nearest one, and a wild one none. */
TEST(suggestions)
{
    const struct {
        const char *assignment, *meant; /* NULL: nothing is near */
    } cases[] = {
        {"tier.dram.capacty=1GiB", "'tier.dram.capacity'"},
        {"tier.drma.capacity=1GiB", "'tier.dram.capacity'"},
        {"device.nvme0.capcity=1GiB", "'device.nvme0.capacity'"},
        {"device.path.paht=x", "'device.path.path'"},
        {"Store.Policy=lru", "'store.policy'"},
        {"store.policy=utilty", "'utility'"},
        {"store.policy=LRU", "'lru'"},
        {"workload.reqests=5", "'workload.requests'"},
        {"zzzzzzzzzz=5", NULL},
        {"store.policy=zzzzzzz", NULL},
        {".=5", NULL},
        {"=5", NULL},
    };
    kvt_config *config = fresh();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[512] = "";
        assert_int_equal(kvt_config_set(config, cases[i].assignment, message, sizeof message),
                         KVT_E_CONFIG);
        const char *found = strstr(message, "did you mean ");
        assert_int_equal(found != NULL, cases[i].meant != NULL);
        if (found) assert_non_null(strstr(found, cases[i].meant));
    }
    kvt_config_free(config);
}

/* A value of another kind must not pass for any setting in the table. */
TEST(every_setting)
{
    const kvt_setting *setting;
    size_t count = 0;
    for (; (setting = kvt_setting_at(count)) != NULL; count++) {
        kvt_config *config = fresh();
        char key[128], assignment[256], message[256] = "";
        const char *star = strchr(setting->name, '*');
        if (star) {
            (void)snprintf(key, sizeof key, "%.*sone%s", (int)(star - setting->name), setting->name,
                           star + 1);
        } else {
            (void)snprintf(key, sizeof key, "%s", setting->name);
        }
        assert_true(setting->text && setting->text[0] != '\0');
        assert_false(kvt_config_has(config, key));
        if (setting->standard) {
            (void)snprintf(assignment, sizeof assignment, "%s=%s", key, setting->standard);
            assert_ok(kvt_config_set(config, assignment, message, sizeof message));
            assert_true(kvt_config_has(config, key));
            assert_string_equal(kvt_config_unused_get(config, 0), key);
        }
        if (setting->kind != KVT_SETTING_TEXT || setting->choices) {
            (void)snprintf(assignment, sizeof assignment, "%s=!", key);
            assert_int_equal(kvt_config_set(config, assignment, message, sizeof message),
                             KVT_E_CONFIG);
            assert_non_null(strstr(message, key));
        }
        (void)snprintf(assignment, sizeof assignment, "%s=", key);
        assert_int_equal(kvt_config_set(config, assignment, message, sizeof message), KVT_E_CONFIG);
        for (size_t other = 0; other < count; other++) {
            assert_string_not_equal(kvt_setting_at(other)->name, setting->name);
        }
        kvt_config_free(config);
    }
    assert_true(count > 50);
}

TEST(defaults)
{
    kvt_config *config = fresh();
    assert_string_equal(kvt_config_text(config, "store.policy"), "utility");
    assert_null(kvt_config_text(config, "store.catalog"));
    assert_true(kvt_config_bytes(config, "store.staging") == 256u << 20);
    assert_true(kvt_config_bytes(config, "tier.dram.capacity") == 0);
    assert_true(kvt_config_bytes(config, "replay.servers") == 8);
    assert_true(kvt_config_number(config, "store.hysteresis") == 1.25);
    assert_true(kvt_config_number(config, "store.tick") == 0.05);
    assert_true(kvt_config_switch(config, "store.lossless"));
    assert_false(kvt_config_switch(config, "store.format"));
    assert_null(kvt_config_unused_get(config, 0));
    assert_null(kvt_config_device_at(config, 0));
    kvt_config_free(config);
    kvt_config_free(NULL);
}

/* What can mean one thing alone is taken, however it is written. */
TEST(other_spellings)
{
    kvt_config *config = fresh();
    char message[256] = "";
    const char *const switches[] = {"store.lossless=NO", "store.format=True", "store.format=oN"};
    for (size_t i = 0; i < 3; i++)
        assert_ok(kvt_config_set(config, switches[i], message, sizeof message));
    assert_false(kvt_config_switch(config, "store.lossless"));
    assert_true(kvt_config_switch(config, "store.format"));
    assert_ok(kvt_config_set(config, "store.high_watermark=95%", message, sizeof message));
    assert_true(kvt_config_number(config, "store.high_watermark") == 0.95);
    const char *const wrong[] = {"store.format=YESS",        "store.format=Y",
                                 "store.hysteresis=125%",    "store.low_watermark=9%%",
                                 "store.low_watermark=%",    "store.low_watermark=9% ;",
                                 "store.low_watermark=0x9%", "store.format=falsehood",
                                 "gpu.scratch=-1",           "gpu.pinned=much"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const kvt_status status = kvt_config_set(config, wrong[i], message, sizeof message);
        if (status != KVT_E_CONFIG) fail_msg("%s was taken", wrong[i]);
    }
    kvt_config_free(config);
}

TEST(file)
{
    kvt_config *config = fresh();
    char message[256] = "";
    const char *text = "; a comment\n"
                       "[store]\n"
                       "  policy = lru   ; behind a value\n"
                       "\tvariant=lossless\n"
                       "# another\n"
                       "[tier.dram]\n"
                       "capacity = 125GiB\n"
                       "[device.nvme1]\n"
                       "tier = ssd\n"
                       "path = /some where/a b\n"
                       "read_bandwidth = 150MB/s\n"
                       "[device.nvme0]\n"
                       "backend = file";
    assert_ok(read_text(config, text, message, sizeof message));
    assert_string_equal(kvt_config_device_at(config, 0), "nvme1");
    assert_string_equal(kvt_config_device_at(config, 1), "nvme0");
    assert_null(kvt_config_device_at(config, 2));
    assert_string_equal(kvt_config_text(config, "store.policy"), "lru");
    assert_true(kvt_config_bytes(config, "tier.dram.capacity") == UINT64_C(125) << 30);
    assert_string_equal(kvt_config_text(config, "device.nvme1.path"), "/some where/a b");
    assert_true(kvt_config_bytes(config, "device.nvme1.read_bandwidth") == 150000000);
    assert_string_equal(kvt_config_unused_get(config, 0), "store.variant");
    assert_string_equal(kvt_config_unused_get(config, 1), "device.nvme1.tier");
    assert_string_equal(kvt_config_unused_get(config, 2), "device.nvme0.backend");
    assert_null(kvt_config_unused_get(config, 3));

    /* An override replaces the file's value and must be read again. A second file may do the same.
     */
    assert_ok(kvt_config_set(config, "store.policy=none", message, sizeof message));
    assert_string_equal(kvt_config_unused_get(config, 0), "store.policy");
    assert_string_equal(kvt_config_text(config, "store.policy"), "none");
    assert_int_equal(read_text(config, "[store]\npolicy=utility\n", message, sizeof message), 0);
    assert_string_equal(kvt_config_text(config, "store.policy"), "utility");
    kvt_config_free(config);
}

TEST(bad_files)
{
    const struct {
        const char *text;
        const char *line;   /* as the message names it */
        const char *reason; /* part of the message */
    } bad[] = {
        {"[store]\npolicy=lru\npolicies=lru\n", ":3:", "store.policies: unknown setting"},
        {"[stores]\n", ":1:", "[stores]: unknown section"},
        {"[store]\n[tier.tape]\ncapacity=1\n", ":2:", "[tier.tape]: unknown section"},
        {"[store]\n\n\npolicy=mru\n", ":4:", "none|lru|utility"},
        {"[tier.dram]\ncapacity=lots\n", ":2:", "tier.dram.capacity"},
        {"[store]\npolicy=lru\npolicy=none\n", ":3:", "set twice"},
        {"[store]\nbroken\n[nowhere]\n", ":2:", "expected"},
        {"[store\npolicy=lru\n", ":1:", "expected"},
        {"policy=lru\n", ":1:", "stands before any [section]"},
        {"[device.]\npath=/x\n", ":1:", "unknown section"},
        {"[device.a b]\npath=/x\n", ":2:", "device name"},
        {"[device.abcdefghijklmnopqrstuvwxyz0123456789]\npath=/x\n", ":2:", "device name"},
        {"[device.a.b]\npath=/x\n", ":1:", "unknown section"},
        {"[store]\nseed=-1\n", ":2:", "store.seed"},
        {"[store]\nseed=1.5\n", ":2:", "store.seed"},
        {"[store]\nlossless=maybe\n", ":2:", "yes or no"},
        {"[store]\nhysteresis=inf\n", ":2:", "finite"},
        {"[store]\ncatalog=\n", ":2:", "not empty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvt_config *config = fresh();
        char message[256] = "";
        assert_int_equal(read_text(config, bad[i].text, message, sizeof message), KVT_E_CONFIG);
        if (!strstr(message, bad[i].line) || !strstr(message, bad[i].reason)) {
            fail_msg("case %zu: %s", i, message);
        }
        kvt_config_free(config);
    }
}

TEST(odd_files)
{
    kvt_config *config = fresh();
    char message[256] = "";
    assert_int_equal(kvt_config_read(config, "no-such-file.ini", message, sizeof message),
                     KVT_E_GONE);
    assert_non_null(strstr(message, "no-such-file.ini"));
    assert_int_equal(kvt_config_read(config, ".", message, sizeof message), KVT_E_CONFIG);
    assert_int_equal(read_bytes(config, "[store]\nseed=\0001\n", 16, message, sizeof message),
                     KVT_E_CONFIG);
    assert_non_null(strstr(message, "zero byte"));
    assert_ok(read_text(config, "", message, sizeof message));
    assert_ok(read_text(config, "\xEF\xBB\xBF[store]\nseed=2\n", message, sizeof message));

    char wide[4096];
    int head = snprintf(wide, sizeof wide, "[store]\ncatalog=");
    memset(wide + head, 'x', 1000);
    wide[head + 1000] = '\0';
    assert_int_equal(read_text(config, wide, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, ":2: the line is too long"));
    kvt_config_free(config);
}

/* Any bytes give a status, never a crash: what sanitizers watch. */
TEST(random_files)
{
    const char alphabet[] = "[]=.;# \n\tstoredevicepolicylru0123456789KiB*-\"\r";
    uint64_t word = 0x9E3779B97F4A7C15u;
    size_t accepted = 0;
    for (unsigned round = 0; round < 300; round++) {
        char text[256];
        for (size_t i = 0; i < sizeof text; i++) {
            word = word * 6364136223846793005u + 1442695040888963407u;
            text[i] = alphabet[(word >> 33) % (sizeof alphabet - 1)];
        }
        size_t head = round % 3 == 0 ? (size_t)snprintf(text, sizeof text, "[store]\nseed=") : 0;
        kvt_config *config = fresh();
        char message[64] = "";
        kvt_status status = read_bytes(config, text, head + round % 200, message, sizeof message);
        assert_true(status == KVT_OK || status == KVT_E_CONFIG);
        assert_true(status == KVT_OK || message[0] != '\0');
        accepted += status == KVT_OK;
        kvt_config_free(config);
    }
    assert_true(accepted > 0 && accepted < 300);
}

TEST(overrides)
{
    kvt_config *config = fresh();
    char message[256] = "";
    const char *bad[] = {"",
                         "store.policy",
                         "=1",
                         "store.policy=",
                         "store=lru",
                         "policy=lru",
                         "device.path=/x",
                         "device..path=/x",
                         "device.*.path=/x",
                         ".=."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvt_config_set(config, bad[i], message, sizeof message), KVT_E_CONFIG);
        assert_null(kvt_config_unused_get(config, 0));
        assert_null(kvt_config_device_at(config, 0));
    }
    assert_int_equal(kvt_config_set(config, "bad=1", NULL, 0), KVT_E_CONFIG);
    assert_ok(kvt_config_set(config, "device.a.path=/x=y", message, sizeof message));
    assert_string_equal(kvt_config_text(config, "device.a.path"), "/x=y");
    for (unsigned i = 0; i < 100; i++) {
        char assignment[64];
        (void)snprintf(assignment, sizeof assignment, "device.d%u.capacity = %uMiB", i, i);
        assert_ok(kvt_config_set(config, assignment, message, sizeof message));
    }
    assert_true(kvt_config_bytes(config, "device.d77.capacity") == 77u << 20);
    assert_string_equal(kvt_config_device_at(config, 100), "d99");
    assert_string_equal(kvt_config_text(config, "device.a.path"), "/x=y");
    kvt_config_free(config);
}
