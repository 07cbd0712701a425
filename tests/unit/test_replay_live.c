/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_live.c - live replay: every byte that a real store gives back is checked, its moves
 * equal the plan log, and the check itself notices a changed byte. No time is judged.
 */
#include "replay/live_content.h"
#include "replay/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

static void contents_differ_and_are_checked(void **state)
{
    (void)state;
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

static void layouts_hold_the_bytes_asked_for(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {131072, 512, 500, 4, 12, 7, 1, 131076};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        kvt_layout layout = live_layout(sizes[i], 64);
        uint64_t bytes;
        assert_int_equal(kvt_layout_bytes(&layout, &bytes), KVT_OK);
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

/* HBM (emulated) and DRAM in memory, two files of different size as SSD members; tiers that hold a
 * fraction of the footprint, so that entries move while requests are served. */
static void a_store_gives_back_what_was_put(void **state)
{
    (void)state;
    char first_path[64], second_path[64], log_path[64], message[512];
    snprintf(first_path, sizeof first_path, "replay_live_%ld_a.tmp", (long)getpid());
    snprintf(second_path, sizeof second_path, "replay_live_%ld_b.tmp", (long)getpid());
    snprintf(log_path, sizeof log_path, "replay_live_%ld.log", (long)getpid());
    const kvt_device_config devices[2] = {{.struct_size = sizeof(kvt_device_config),
                                           .name = "ssd0",
                                           .backend = "file",
                                           .path = first_path,
                                           .capacity_bytes = 48u << 20,
                                           .silence_ns = UINT64_MAX},
                                          {.struct_size = sizeof(kvt_device_config),
                                           .name = "ssd1",
                                           .backend = "file",
                                           .path = second_path,
                                           .capacity_bytes = 32u << 20,
                                           .silence_ns = UINT64_MAX}};

    replay_generator generator = {.requests_per_s = 20.0,
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
    replay_workload workload;
    assert_int_equal(replay_workload_generate(&generator, &workload, message, sizeof message),
                     KVT_OK);

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
        expect_blank_head(second_path);
        print_message("%s: %llu gets verified, %llu moves\n", policies[i],
                      (unsigned long long)result.verified_gets, (unsigned long long)result.moves);
    }
    replay_workload_free(&workload);
    unlink(first_path);
    unlink(second_path);
    unlink(log_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_differ_and_are_checked),
        cmocka_unit_test(layouts_hold_the_bytes_asked_for),
        cmocka_unit_test(a_store_gives_back_what_was_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
