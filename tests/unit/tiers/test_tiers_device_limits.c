/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_limits.c - what is made of sysfs: good values, none, and nonsense.
 */
#include "device_scratch.h"

#include <sys/stat.h>
#include <tiers/devices/device_limits.h>

static char folder[64];

TEST_BEFORE_EACH
{
    scratch_make(folder, sizeof folder);
}

TEST_AFTER_EACH
{
    scratch_remove(folder);
}

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = fopen(path, "we");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, strlen(text), stream), strlen(text));
    assert_int_equal(fclose(stream), 0);
}

TEST(numbers)
{
    static const struct {
        const char *text;
        uint64_t value;
    } cases[] = {{"127\n", 127},
                 {"0\n", 0},
                 {"9007199254740992", 9007199254740992u},
                 {"9007199254740993", 0},
                 {"18446744073709551617\n", 0},
                 {"-1\n", 0},
                 {"12k\n", 0},
                 {"0x10\n", 0},
                 {"", 0},
                 {"\n", 0},
                 {"128 256\n", 128},
                 {"00000000000000000000000000000000000000000000000000001", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put("value", cases[i].text);
        assert_int_equal(tiers_sysfs_number(folder, "value"), cases[i].value);
    }
    assert_int_equal(tiers_sysfs_number(folder, "absent"), 0);
    char long_folder[300];
    memset(long_folder, 'x', sizeof long_folder - 1);
    long_folder[sizeof long_folder - 1] = '\0';
    assert_int_equal(tiers_sysfs_number(long_folder, "value"), 0);
}

TEST(read)
{
    tiers_block_limits limits;
    tiers_limits_read(folder, true, &limits);
    assert_int_equal(limits.transfer_bytes_max, 0);
    assert_int_equal(tiers_limits_request_bytes(&limits, 1, 262144), 262144);
    put("max_hw_sectors_kb", "512\n");
    put("max_sectors_kb", "128\n");
    put("max_segments", "127\n");
    put("discard_max_bytes", "2147450880\n");
    tiers_limits_read(folder, true, &limits);
    assert_int_equal(limits.transfer_bytes_max, 512 * 1024);
    assert_int_equal(limits.segments_max, 127);
    assert_int_equal(limits.discard_bytes_max, 2147450880);
    tiers_limits_read(folder, false, &limits);
    assert_int_equal(limits.transfer_bytes_max, 128 * 1024);
}

TEST(where_requests_begin)
{
    static const struct {
        const char *chunk, *optimal;
        uint64_t expected;
    } cases[] = {{"0\n", "0\n", 0},
                 {"256\n", "0\n", 131072},
                 {"0\n", "65536\n", 65536},
                 {"128\n", "1048576\n", 65536}, /* the chunk comes first */
                 {"0\n", "196608\n", 65536},    /* three of 64 KiB */
                 {"0\n", "33554432\n", 131072},
                 {"0\n", "4096\n", 0},
                 {"1\n", "512\n", 0},
                 {"x\n", "-1\n", 0},
                 {"9007199254740992\n", "0\n", 131072}};
    assert_int_equal(tiers_limits_start(folder), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put("chunk_sectors", cases[i].chunk);
        put("optimal_io_size", cases[i].optimal);
        assert_int_equal(tiers_limits_start(folder), cases[i].expected);
    }
    assert_int_equal(tiers_limits_path_start(folder), 0); /* no drive */
    assert_int_equal(tiers_limits_path_start("/nowhere"), 0);
    assert_int_equal(tiers_limits_path_start(NULL), 0);
}

TEST(request_bytes)
{
    static const struct {
        tiers_block_limits limits;
        uint32_t spare;
        uint32_t most;
        uint32_t expected;
    } cases[] = {
        {{0, 0, 0}, 0, 524288, 524288},
        {{524288, 127, 0}, 0, 524288, 127 * 4096}, /* what a passthrough once refused at 512 KiB */
        {{524288, 127, 0}, 1, 524288, 126 * 4096},
        {{131072, 127, 0}, 1, 524288, 131072},
        {{1310720, 128, 0}, 0, 524288, 524288},
        {{6000, 0, 0}, 0, 524288, 4096},
        {{512, 0, 0}, 0, 524288, 4096},
        {{0, 1, 0}, 1, 524288, 4096},
        {{UINT64_C(1) << 62, UINT64_C(1) << 53, 0}, 0, 524288, 524288},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(
            tiers_limits_request_bytes(&cases[i].limits, cases[i].spare, cases[i].most),
            cases[i].expected);
}
