/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden_policy_log.c - a small seeded workload through every policy: the plan log is pinned in
 * golden_policy_log.txt, byte for byte, whatever compiler and build type.
 *
 * A difference means that decisions changed. When that is wanted, replace the file by the one that
 * the test leaves in the build folder, and say in the commit why the new decisions are better.
 */
#include "policy_support.h"

#include <stdio.h>

#define REQUESTS   40
#define WHOLE_LOGS 4 /* of the first policies; of the others a hash is pinned */
#define LOG_SIZE   (1u << 18)

typedef struct log_text {
    char *text;
    size_t length;
} log_text;

static void log_add(log_text *log, const char *words)
{
    size_t bytes = strlen(words);
    assert_true(log->length + bytes < LOG_SIZE);
    memcpy(log->text + log->length, words, bytes + 1);
    log->length += bytes;
}

static void log_plan(log_text *log, kvt_policy *policy, const char *call, uint64_t handle,
                     kvt_status status, const kvt_plan *plan)
{
    char line[256];
    if (plan->count == 0 && status != KVT_REFUSED) return;
    snprintf(line, sizeof line, "%s %llu = %d\n", call, (unsigned long long)handle, status);
    log_add(log, line);
    for (uint32_t i = 0; i < plan->count; i++) {
        kvt_move_format(&plan->moves[i], line, sizeof line);
        log_add(log, "    ");
        log_add(log, line);
        log_add(log, "\n");
        assert_ok(kvt_policy_commit(policy, plan->moves[i].id, NULL));
    }
}

static kvt_policy *open_small(const char *name)
{
    static test_memory memory;
    memory = (test_memory){.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = name;
    config.tiers[KVT_TIER_HBM] =
        (kvt_tier_facts){.capacity_bytes = 300, .read_bytes_per_s = 1e6, .write_bytes_per_s = 1e6};
    config.tiers[KVT_TIER_DRAM] =
        (kvt_tier_facts){.capacity_bytes = 600, .read_bytes_per_s = 1e5, .write_bytes_per_s = 1e5};
    config.tiers[KVT_TIER_SSD] = (kvt_tier_facts){.capacity_bytes = 900,
                                                  .read_bytes_per_s = 1e4,
                                                  .write_bytes_per_s = 5e3,
                                                  .request_seconds = 1e-3};
    config.allocator = test_allocator(&memory);
    return test_open(&config);
}

/* Block `depth` of session `session`: deeper blocks cost more to recompute. */
static void use_block(log_text *log, kvt_policy *policy, uint64_t now_ns, uint64_t session,
                      uint64_t depth)
{
    uint64_t handle = session * 100 + depth + 1;
    uint64_t parent = depth == 0 ? 0 : handle - 1;
    uint64_t bytes = 90 + session % 20;
    kvt_option options[5] = {test_none(0.05 + 0.02 * (double)depth),
                             test_option(1, KVT_TIER_HBM, bytes, (double)bytes * 1e-6),
                             test_option(1, KVT_TIER_DRAM, bytes, (double)bytes * 1e-5),
                             test_option(1, KVT_TIER_SSD, bytes, 1e-3 + (double)bytes * 1e-4),
                             test_option(2, KVT_TIER_SSD, bytes * 7 / 10, 8e-3)};
    options[4].decode_seconds = 5e-3;
    options[4].encode_seconds = 4e-3;
    kvt_policy_entry entry = test_entry(handle, options, 5, 512);
    entry.parent = parent;
    kvt_move moves[32];
    kvt_plan plan = {moves, 32, 0};
    kvt_status status = kvt_policy_access(policy, now_ns, handle, &plan);
    log_plan(log, policy, "access", handle, status, &plan);
    if (status != KVT_MISS) return;
    status = kvt_policy_admit(policy, now_ns, &entry, &plan);
    log_plan(log, policy, "admit", handle, status, &plan);
}

static void run_workload(log_text *log, const char *name)
{
    kvt_policy *policy = open_small(name);
    uint64_t dice = 2024;
    uint64_t now_ns = 5 * SECOND;
    log_add(log, "# ");
    log_add(log, name);
    log_add(log, "\n");
    for (int request = 0; request < REQUESTS; request++) {
        now_ns += SECOND * (1 + test_below(&dice, 9));
        uint64_t draw = test_below(&dice, 12);
        uint64_t session = 1 + draw * draw / 12;
        uint64_t length = 1 + test_below(&dice, 4);
        for (uint64_t depth = 0; depth < length; depth++)
            use_block(log, policy, now_ns, session, depth);
        kvt_move moves[8];
        kvt_plan plan = {moves, 8, 0};
        kvt_status status = kvt_policy_tick(policy, now_ns, 4, 400, &plan);
        log_plan(log, policy, "tick", 0, status, &plan);
    }
    kvt_policy_close(policy);
}

/* Replaces what was logged since `start` by its hash. */
static void log_summarise(log_text *log, size_t start, const char *name)
{
    uint64_t hash = UINT64_C(1469598103934665603);
    for (size_t i = start; i < log->length; i++)
        hash = (hash ^ (uint8_t)log->text[i]) * UINT64_C(1099511628211);
    size_t bytes = log->length - start;
    memset(log->text + start, 0, bytes);
    log->length =
        start + (size_t)snprintf(log->text + start, bytes, "%s: %zu bytes, hash %016llx\n", name,
                                 bytes, (unsigned long long)hash);
}

static char *read_whole(const char *path)
{
    char *text = test_zeros(LOG_SIZE);
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("cannot open %s", path);
    size_t length = fread(text, 1, LOG_SIZE - 1, file);
    assert_true(length > 0);
    fclose(file);
    return text;
}

static void leave_actual(const log_text *log)
{
    const char *folder = getenv("KVT_BINARY_DIR");
    char path[1024];
    snprintf(path, sizeof path, "%s/golden_policy_log.txt", folder != NULL ? folder : ".");
    FILE *file = fopen(path, "wb");
    if (file == NULL) return;
    fwrite(log->text, 1, log->length, file);
    fclose(file);
    print_message("the log of this run is in %s\n", path);
}

/* In the order of the log. */
static const char *const names[] = {"none",      "lru",      "lru-leaf",  "utility", "fifo",
                                    "lru-twice", "lfu",      "gdsf",      "sieve",   "s3fifo",
                                    "w-tinylfu", "pensieve", "adaptcache"};

TEST(the_plan_log_is_the_pinned_one)
{
    log_text log = {test_zeros(LOG_SIZE), 0};
    assert_non_null(log.text);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t start = log.length;
        run_workload(&log, names[i]);
        if (i >= WHOLE_LOGS) log_summarise(&log, start, names[i]);
    }
    const char *folder = getenv("KVT_SOURCE_DIR");
    if (folder == NULL) fail_msg("KVT_SOURCE_DIR is not set");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden/golden_policy_log.txt", folder);
    char *pinned = read_whole(path);
    if (strcmp(pinned, log.text) != 0) {
        leave_actual(&log);
        size_t at = 0;
        while (pinned[at] != '\0' && pinned[at] == log.text[at])
            at++;
        while (at > 0 && log.text[at - 1] != '\n')
            at--;
        fail_msg("the log differs at byte %zu: %.120s", at, log.text + at);
    }
}
