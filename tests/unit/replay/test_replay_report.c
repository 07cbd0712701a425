/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_report.c - what replay reads from the settings, and the table that it prints for
 * people.
 */
#include "cases.h"

#include "replay/document.h"
#include "replay/replay.h"
#include "replay/results.h"

#include <stdlib.h>
#include <string.h>

static kvt_config *config_with(const char *const *settings)
{
    kvt_config *config;
    char message[256];
    assert_ok(kvt_config_new(&config));
    for (size_t i = 0; settings[i] != NULL; i++) {
        if (kvt_config_set(config, settings[i], message, sizeof message) != KVT_OK) {
            fail_msg("%s", message);
        }
    }
    return config;
}

TEST(settings_become_options)
{
    static const char *const settings[] = {"tier.dram.capacity=125GiB",
                                           "tier.dram.read_bandwidth=50GB/s",
                                           "tier.ssd.capacity=1TB",
                                           "tier.ssd.read_bandwidth=7GB/s",
                                           "tier.ssd.write_bandwidth=2GB/s",
                                           "tier.ssd.latency=80us",
                                           "replay.servers=3",
                                           "replay.seed=9",
                                           "replay.warmup=0.1",
                                           "replay.overlap=yes",
                                           "replay.partial_blocks=exact",
                                           "prefill.gpu=h100",
                                           "store.holes=contiguous",
                                           NULL};
    char message[256];
    replay_options options;
    kvt_config *config = config_with(settings);
    assert_ok(replay_options_read(config, false, &options, message, sizeof message));
    assert_true(options.tiers[KVT_TIER_DRAM].capacity_bytes == UINT64_C(125) << 30);
    assert_true(options.tiers[KVT_TIER_DRAM].write.bytes_per_s == 50e9);
    assert_true(options.tiers[KVT_TIER_SSD].read.bytes_per_s == 7e9);
    assert_true(options.tiers[KVT_TIER_SSD].write.bytes_per_s == 2e9);
    assert_true(options.tiers[KVT_TIER_SSD].read.request_seconds == 80e-6);
    assert_true(options.model.present[KVT_TIER_SSD] && !options.model.present[KVT_TIER_HBM]);
    assert_int_equal(options.servers, 3);
    assert_int_equal(options.seed, 9);
    assert_true(options.warmup == 0.1 && options.overlap && options.partial_exact);
    assert_true(options.holes == KVT_HOLES_CONTIGUOUS);
    assert_string_equal(options.prefill_name, "llama-3.1-8b:h100");
    assert_null(kvt_config_unused_get(config, 0)); /* every one of them has an effect */
    replay_options_free(&options);
    kvt_config_free(config);
}

TEST(a_bare_simulation_says_what_it_assumes)
{
    static const char *const none[] = {NULL};
    char message[256];
    replay_options options;
    kvt_config *config = config_with(none);
    assert_ok(replay_options_read(config, false, &options, message, sizeof message));
    assert_true(options.tiers[KVT_TIER_DRAM].capacity_bytes == UINT64_C(100000000000));
    assert_true(options.tiers[KVT_TIER_SSD].capacity_bytes == UINT64_C(400000000000));
    assert_non_null(strstr(options.note, "No tier is set"));
    assert_non_null(strstr(options.note, "Lossless is not offered"));
    replay_options_free(&options);
    kvt_config_free(config);
}

TEST(impossible_settings_are_refused)
{
    static const char *const bad[] = {"replay.servers=0",
                                      "replay.warmup=1",
                                      "replay.bytes_per_token=0",
                                      "replay.block_tokens=0",
                                      "store.variant=lossless",
                                      "store.holes=mixed",
                                      "store.profile=no/such/profile"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const settings[] = {bad[i], NULL};
        char message[256] = "";
        replay_options options;
        kvt_config *config = config_with(settings);
        kvt_status status = replay_options_read(config, false, &options, message, sizeof message);
        if (status >= 0 || message[0] == '\0') fail_msg("%s: status %d", bad[i], status);
        replay_options_free(&options);
        kvt_config_free(config);
    }
}

TEST(numbers_read_well)
{
    char text[RESULTS_TEXT_BYTES];
    assert_string_equal(results_format_bytes(0, text), "0");
    assert_string_equal(results_format_bytes(999, text), "999 B");
    assert_string_equal(results_format_bytes(1234567, text), "1.23 MB");
    assert_string_equal(results_format_bytes(1e20, text), "100000 PB");
}

static char *slurp(FILE *file)
{
    long size = ftell(file);
    assert_true(size > 0);
    char *text = test_alloc((size_t)size + 1);
    rewind(file);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    text[size] = '\0';
    fclose(file);
    return text;
}

/* Titles, units by key, text to the left; rows of a kind or with a member; lists within lists. */
TEST(lists_are_tables)
{
    static const document_table tables[] = {
        {"rows", "name took=x.wait_s size_bytes rate=read_bytes_per_s share"},
        {"rows:fast", "name"},
        {"absent", "name"},
        {"rows/inner", "n why"},
        {0},
    };
    json_t *root = json_loads(
        "{\"rows\": [{\"name\": \"one\", \"x\": {\"wait_s\": 0.0025}, \"size_bytes\": 2048,"
        "\"read_bytes_per_s\": 3e9, \"fast\": true, \"inner\": [{\"n\": 7, \"why\": \"so it "
        "is\"}]},"
        "{\"name\": \"other\", \"fast\": false, \"share\": null}]}",
        0, NULL);
    FILE *file = tmpfile();
    assert_true(root != NULL && file != NULL);
    document_print_tables(root, tables, file);
    char *text = slurp(file);
    assert_string_equal(text, "name     took  size_bytes    rate  share\n"
                              "one    2.5 ms       2 KiB  3 GB/s      -\n"
                              "other       -           -       -      -\n"
                              "\nrows:fast\nname\none\n"
                              "\nname one\nn  why\n7  so it is\n");
    json_decref(root);
}

static uint64_t count_of(const char *text, const char *part)
{
    uint64_t count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

TEST(the_table_names_every_run)
{
    char message[256];
    replay_options options;
    replay_workload workload;
    replay_result results[3];
    static const char *const policies[3] = {"none", "lru", "utility"};
    replay_generator generator = {.requests_per_s = 1.0,
                                  .requests = 200,
                                  .contexts = 20,
                                  .zipf = 1.0,
                                  .tokens_median = 3000.0,
                                  .tokens_sigma = 0.7,
                                  .tokens_max = 16000,
                                  .turns_mean = 2.0,
                                  .turn_tokens = 100.0,
                                  .think_seconds = 10.0,
                                  .block_tokens = 512,
                                  .seed = 3};
    assert_ok(replay_workload_generate(&generator, &workload, message, 256));
    replay_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(4) << 30;
    options.tiers[KVT_TIER_SSD].capacity_bytes = UINT64_C(16) << 30;
    assert_ok(replay_options_check(&options, message, sizeof message));
    for (int i = 0; i < 3; i++) {
        assert_ok(replay_run_sim(&options, &workload, policies[i], &results[i], message, 256));
    }
    results[0].rho = 1.5; /* an overloaded run has no mean to draw */
    replay_report report = {.version = "1.2.3",
                            .command = "kvterrace <b>&",
                            .options = &options,
                            .workload = &workload,
                            .results = results,
                            .result_count = 3,
                            .profile_busy = true};
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_ok(replay_print_text(&report, true, file));
    char *table = slurp(file);
    for (int i = 0; i < 3; i++)
        assert_int_equal(count_of(table, policies[i]) >= 2, 1);
    assert_non_null(strstr(table, "no mean exists"));
    assert_non_null(strstr(table, "too uncertain"));
    assert_non_null(strstr(table, "token_hits"));
    assert_null(strstr(table, "without a cache"));
    replay_workload_free(&workload);
}
