/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_watch.c - the metrics of a store agree with its statistics and never fall, and its
 * last operations are what was called.
 */
#include "metrics_support.h"

#include "base/clock.h"
#include "store_support.h"

#include <kvterrace/lookup.h>
#include <kvterrace/watch.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct watch_site {
    support_fault fault;
    kvt_device_config dram;
    kvt_device_config ssd;
    kvt_store_options options;
    kvt_store *store;
} watch_site;

/* A DRAM tier of 4 MiB on a device that can be made to fail, below it 8 MiB of memory that stands
 * for an SSD; decisions in the caller's thread. */
static void watch_open_site(watch_site *site, uint64_t put_staging)
{
    memset(site, 0, sizeof *site);
    site->fault.capacity_bytes = 4 << 20;
    site->dram = support_fault_config(&site->fault, "odd\"name\\1\n");
    site->ssd = (kvt_device_config){.struct_size = sizeof site->ssd,
                                    .name = "second",
                                    .backend = "memory",
                                    .capacity_bytes = 8 << 20};
    kvt_store_options_init(&site->options);
    site->options.policy = "lru";
    site->options.limits.put_staging_bytes = put_staging;
    site->options.limits.staging_bytes = 8 << 20;
    site->options.limits.tick_seconds = 0;
    support_tier(&site->options, KVT_TIER_DRAM, &site->dram, 1);
    support_tier(&site->options, KVT_TIER_SSD, &site->ssd, 1);
    char message[256] = "";
    if (kvt_store_open(&site->options, &site->store, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
}

static metrics_text *watch_metrics(kvt_store *store)
{
    const size_t room = kvt_metrics_write(store, NULL, 0) + 4096;
    char *text = malloc(room);
    const size_t bytes = kvt_metrics_write(store, text, room);
    assert_true(bytes <= room && strlen(text) + 1 == bytes);
    metrics_text *parsed = metrics_parse(text);
    free(text);
    return parsed;
}

/* Puts, gets, misses, a damaged record, deletes: some of each. */
static void watch_work(watch_site *site, uint32_t first)
{
    kvt_store *store = site->store;
    for (uint32_t i = first; i < first + 200; i++)
        (void)!support_put(store, i);
    assert_ok(kvt_store_flush(store));
    for (uint32_t i = first; i < first + 220; i++)
        (void)!support_get(store, i, NULL);
    for (uint32_t i = first; i < first + 10; i++) {
        kvt_key key = support_key(i);
        (void)!kvt_store_delete(store, &key);
    }
    (void)!support_put(store, first + 199);
}

TEST(metrics_agree)
{
    watch_site site;
    watch_open_site(&site, 0);
    watch_work(&site, 0);
    const tiers_fault_rule flip = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 20000};
    assert_ok(tiers_fault_add(site.fault.device, &flip));
    assert_int_equal(support_get(site.store, 199, NULL), KVT_MISS);
    tiers_fault_clear(site.fault.device);
    const kvt_store_stats stats = support_stats(site.store);
    metrics_text *text = watch_metrics(site.store);
    const kvt_tier_stats *dram = &stats.tiers[KVT_TIER_DRAM], *ssd = &stats.tiers[KVT_TIER_SSD];
    const struct {
        const char *name, *label;
        uint64_t value;
    } expected[] = {
        {"kvterrace_gets_total", "", stats.gets},
        {"kvterrace_misses_total", "", stats.misses},
        {"kvterrace_misses_total", "corrupt", 1},
        {"kvterrace_checksum_failures_total", "", 1},
        {"kvterrace_load_failures_total", "", stats.load_failures},
        {"kvterrace_missed_bytes_total", "", stats.misses * SUPPORT_ENTRY_BYTES},
        {"kvterrace_hits_total", "tier=\"dram\"", dram->hits},
        {"kvterrace_hits_total", "tier=\"ssd\"", ssd->hits},
        {"kvterrace_hits_total", "form=\"raw\"", dram->hits + ssd->hits},
        {"kvterrace_hit_tokens_total", "tier=\"dram\"", dram->hits * support_layout.tokens},
        {"kvterrace_hit_bytes_total", "", (dram->hits + ssd->hits) * SUPPORT_ENTRY_BYTES},
        {"kvterrace_get_seconds_count", "", stats.gets - stats.misses},
        {"kvterrace_load_bytes_count", "", stats.gets - stats.misses},
        {"kvterrace_puts_total", "", stats.puts},
        {"kvterrace_put_tokens_total", "existing", stats.puts_existing * support_layout.tokens},
        {"kvterrace_put_tokens_total", "", stats.puts * support_layout.tokens},
        {"kvterrace_moves_total", "committed", stats.moves.committed},
        {"kvterrace_moves_total", "aborted", stats.moves.aborted},
        {"kvterrace_entries", "tier=\"dram\"", dram->entries},
        {"kvterrace_used_bytes", "tier=\"ssd\"", ssd->used_bytes},
        {"kvterrace_capacity_bytes", "tier=\"ssd\"", 8 << 20},
        {"kvterrace_device_read_bytes_total", "tier=\"dram\"", dram->bytes_read},
        {"kvterrace_device_written_bytes_total", "device=\"second\"", ssd->bytes_written},
        {"kvterrace_device_up", "device=\"odd\\\"name\\\\1\\n\"", 1},
        {"kvterrace_device_depth_achieved", "device=\"second\"", 1},
        {"kvterrace_loads_total", "tier=\"dram\"", dram->loads.loads},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (metrics_sum(text, expected[i].name, expected[i].label) != (double)expected[i].value)
            fail_msg("%s{%s} is %g and not %llu", expected[i].name, expected[i].label,
                     metrics_sum(text, expected[i].name, expected[i].label),
                     (unsigned long long)expected[i].value);
    assert_true(stats.misses > 20 && dram->hits > 0 && ssd->hits > 0 && stats.puts_existing > 0);
    assert_true(stats.moves.committed > 200 &&
                metrics_sum(text, "kvterrace_moves_total", "kind=\"demotion\"") > 0 &&
                metrics_sum(text, "kvterrace_ssd_written_bytes_total", "demotion") > 0);
    assert_true(metrics_sum(text, "kvterrace_decision_seconds_count", "") >= (double)stats.puts);
    /* Times that are shown are those of the clock, wherever the store's own time begins. */
    const double open_seconds = metrics_sum(text, "kvterrace_open_seconds", "");
    assert_true(open_seconds > 0 && open_seconds < 3600);
    kvt_operation last[1];
    size_t count = 0;
    assert_ok(kvt_operations_get(site.store, last, 1, &count));
    assert_int_equal(count, 1);
    const uint64_t now_ns = base_clock_ns();
    assert_true(last[0].instant_ns <= now_ns && now_ns - last[0].instant_ns < 3600000000000u);
    free(text);
    kvt_store_close(site.store);
}

TEST(leases)
{
    watch_site site;
    watch_open_site(&site, 0);
    kvt_key keys[2] = {support_key(1), support_key(2)};
    assert_ok(support_put(site.store, 1));
    assert_ok(support_put(site.store, 2));
    uint64_t lease = 0;
    const uint64_t late_ns = UINT64_MAX / 2;
    assert_ok(kvt_lease_begin(site.store, NULL, keys, 2, late_ns, NULL, &lease));
    metrics_text *text = watch_metrics(site.store);
    assert_true(metrics_sum(text, "kvterrace_leases", "") == 1);
    assert_true(metrics_sum(text, "kvterrace_leased_entries", "") == 2);
    assert_true(metrics_sum(text, "kvterrace_leased_bytes", "tier=\"dram\"") ==
                (double)support_stats(site.store).tiers[KVT_TIER_DRAM].used_bytes);
    free(text);
    assert_ok(kvt_lease_end(site.store, lease));
    text = watch_metrics(site.store);
    assert_true(metrics_sum(text, "kvterrace_leases", "") == 0);
    assert_true(metrics_sum(text, "kvterrace_leases_ended_total", "by=\"release\"") == 1);
    free(text);
    kvt_store_close(site.store);
}

TEST(refusals)
{
    watch_site site;
    watch_open_site(&site, 0);
    kvt_store_close(site.store);
    site.options.tiers[KVT_TIER_SSD].device_count = 0;
    site.options.policy = "utility";
    char message[256] = "";
    assert_ok(kvt_store_open(&site.options, &site.store, message, sizeof message));
    char data[SUPPORT_ENTRY_BYTES];
    support_fill(1, data);
    const kvt_entry worthless = support_entry(support_key(1), support_layout, 1e-9);
    assert_int_equal(kvt_store_put(site.store, &worthless, KVT_PACKED(data, sizeof data)),
                     KVT_REFUSED);
    assert_ok(kvt_device_change(site.store, site.dram.name, KVT_DEVICE_RETIRE));
    const kvt_status status = support_put(site.store, 2);
    metrics_text *text = watch_metrics(site.store);
    assert_true(metrics_sum(text, "kvterrace_put_refusals_total", "policy") == 1);
    assert_true(metrics_sum(text, "kvterrace_put_refusals_total", "no_device") ==
                (status == KVT_REFUSED));
    assert_true(metrics_sum(text, "kvterrace_put_refusals_total", "") ==
                (double)support_stats(site.store).puts_refused);
    assert_true(metrics_sum(text, "kvterrace_device_up", "") == 0);
    free(text);
    kvt_store_close(site.store);
}

/* A buffer of any size is filled as far as it goes, and no further; a comma for a decimal point in
 * the process's locale changes nothing. */
TEST(metrics_room)
{
    watch_site site;
    watch_open_site(&site, 0);
    watch_work(&site, 0);
    char whole[65536];
    const size_t bytes = kvt_metrics_write(site.store, whole, sizeof whole);
    assert_true(bytes > 4096 && bytes < sizeof whole);
    for (size_t size = 0; size < bytes + 3; size += size < 100 ? 1 : 97) {
        char cut[65536];
        memset(cut, 0x5a, sizeof cut);
        (void)kvt_metrics_write(site.store, cut, size);
        for (size_t i = size; i < size + 64; i++)
            assert_int_equal(cut[i], 0x5a);
        if (size != 0) assert_non_null(memchr(cut, '\0', size));
    }
    assert_int_equal(kvt_metrics_write(NULL, whole, sizeof whole), 0);
    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL || setlocale(LC_ALL, "fr_FR.UTF-8") != NULL) {
        (void)kvt_metrics_write(site.store, whole, sizeof whole);
        assert_null(strchr(whole, ','));
        setlocale(LC_ALL, "C");
    }
    kvt_store_close(site.store);
}

/* ---- counters while threads work ---- */

typedef struct watch_runner {
    watch_site *site;
    uint32_t first;
    atomic_bool *done;
} watch_runner;

static void *watch_run(void *argument)
{
    const watch_runner *runner = argument;
    for (uint32_t round = 0; round < 3; round++)
        watch_work(runner->site, runner->first);
    return NULL;
}

static void *watch_look(void *argument)
{
    const watch_runner *runner = argument;
    metrics_text *before = watch_metrics(runner->site->store);
    kvt_operation operations[64];
    size_t count;
    while (!atomic_load(runner->done)) {
        metrics_text *after = watch_metrics(runner->site->store);
        metrics_check_rise(before, after);
        free(before);
        before = after;
        assert_ok(kvt_operations_get(runner->site->store, operations, 64, &count));
        for (size_t i = 0; i < count; i++) {
            assert_in_range(operations[i].kind, KVT_OPERATION_GET, KVT_OPERATION_EVICT);
            assert_int_equal(operations[i].key_prefix[4], 0);
            if (i != 0) assert_true(operations[i].instant_ns >= operations[i - 1].instant_ns);
        }
    }
    free(before);
    return NULL;
}

TEST(metrics_rise)
{
    watch_site site;
    watch_open_site(&site, 1 << 20);
    atomic_bool done = false;
    watch_runner runners[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        runners[i] = (watch_runner){&site, i * 150, &done};
        void *(*run)(void *) = i == 0 ? watch_look : watch_run;
        assert_int_equal(pthread_create(&threads[i], NULL, run, &runners[i]), 0);
    }
    for (uint32_t i = 1; i < 4; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&done, true);
    pthread_join(threads[0], NULL);
    const kvt_store_stats stats = support_stats(site.store);
    metrics_text *text = watch_metrics(site.store);
    assert_int_equal(stats.gets, 3 * 3 * 220);
    assert_true(metrics_sum(text, "kvterrace_hits_total", "") +
                    metrics_sum(text, "kvterrace_misses_total", "") ==
                (double)stats.gets);
    assert_true(metrics_sum(text, "kvterrace_put_refusals_total", "staging") +
                    metrics_sum(text, "kvterrace_put_refusals_total", "backlog") ==
                (double)stats.puts_busy);
    free(text);
    kvt_store_close(site.store);
}

/* ---- the last operations ---- */

TEST(operations)
{
    watch_site site;
    watch_open_site(&site, 0);
    kvt_operation operations[16];
    size_t count = 99;
    assert_ok(kvt_operations_get(site.store, operations, 16, &count));
    assert_int_equal(count, 0);
    kvt_key key = support_key(7);
    kvt_get_info info = {.struct_size = sizeof info};
    assert_int_equal(support_get(site.store, 7, NULL), KVT_MISS);
    assert_ok(support_put(site.store, 7));
    assert_ok(support_get(site.store, 7, &info));
    assert_ok(kvt_store_delete(site.store, &key));
    assert_ok(kvt_operations_get(site.store, operations, 16, &count));
    static const struct {
        uint8_t kind;
        int16_t status;
        uint8_t tier;
    } expected[] = {{KVT_OPERATION_GET, KVT_MISS, KVT_TIER_NONE},
                    {KVT_OPERATION_MOVE, KVT_OK, KVT_TIER_DRAM},
                    {KVT_OPERATION_PUT, KVT_OK, KVT_TIER_NONE},
                    {KVT_OPERATION_GET, KVT_OK, KVT_TIER_DRAM},
                    {KVT_OPERATION_DELETE, KVT_OK, KVT_TIER_NONE}};
    assert_int_equal(count, 5);
    for (size_t i = 0; i < count; i++) {
        const kvt_operation *one = &operations[i];
        assert_int_equal(one->kind, expected[i].kind);
        assert_int_equal(one->status, expected[i].status);
        assert_int_equal(one->tier, expected[i].tier);
        assert_memory_equal(one->key_prefix, key.bytes, sizeof one->key_prefix);
        assert_true(one->decide_ns + (uint64_t)one->transfer_ns + one->code_ns <=
                    one->elapsed_ns + 1);
    }
    assert_int_equal(operations[3].bytes, info.stored_bytes);
    assert_int_equal(operations[3].variant.codec, KVT_CODEC_RAW);
    assert_int_equal(operations[3].code_ns, info.decode_ns);
    assert_int_equal(operations[2].bytes, SUPPORT_ENTRY_BYTES);
    /* The newest ones, when there is less room. */
    kvt_operation last[2];
    assert_ok(kvt_operations_get(site.store, last, 2, &count));
    assert_int_equal(count, 2);
    assert_memory_equal(last, operations + 3, sizeof last);
    assert_int_equal(kvt_operations_get(site.store, NULL, 2, &count), KVT_E_ARGUMENT);
    kvt_store_close(site.store);
}

/* The ring keeps the last 4,096 of one thread, and not one more. */
TEST(operations_wrap)
{
    watch_site site;
    watch_open_site(&site, 0);
    char data[16];
    for (uint32_t i = 0; i < 5000; i++) {
        kvt_key key = support_key(i);
        assert_int_equal(kvt_store_get(site.store, &key, KVT_PACKED(data, sizeof data),
                                       KVT_STORE_DEADLINE, NULL),
                         KVT_MISS);
    }
    kvt_operation *operations = calloc(8192, sizeof *operations);
    size_t count;
    assert_ok(kvt_operations_get(site.store, operations, 8192, &count));
    assert_int_equal(count, 4096);
    for (uint32_t i = 0; i < count; i++) {
        kvt_key key = support_key(5000 - 4096 + i);
        assert_memory_equal(operations[i].key_prefix, key.bytes, 16);
    }
    free(operations);
    kvt_store_close(site.store);
}

/* ---- the file ---- */

/* The file's content; the caller frees it. */
static char *watch_read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 18);
    assert_true(fread(text, 1, (1 << 18) - 1, file) > 0);
    fclose(file);
    return text;
}

TEST(file)
{
    char folder[64], path[96], beside[104];
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/watch.prom", folder);
    snprintf(beside, sizeof beside, "%s.new", path);
    watch_site site;
    watch_open_site(&site, 0);
    watch_work(&site, 0);
    for (int i = 0; i < 2; i++)
        assert_ok(kvt_watch_write(site.store, path));
    assert_int_not_equal(access(beside, F_OK), 0);
    char *text = watch_read_file(path);
    assert_int_equal(strncmp(text, "# kvterrace-watch-1 written=", 28), 0);
    metrics_text *parsed = metrics_parse(text);
    assert_true(metrics_sum(parsed, "kvterrace_gets_total", "") == 220);
    uint32_t operations = 0;
    for (const char *at = text; (at = strstr(at, "\n# operation instant=")) != NULL; at++)
        operations++;
    assert_int_equal(operations, 256);
    free(parsed);
    free(text);
    /* What is not such a file stays. */
    char missing[128];
    snprintf(missing, sizeof missing, "%s/none/watch.prom", folder);
    assert_int_equal(kvt_watch_write(site.store, missing), KVT_E_GONE);
    assert_int_equal(kvt_watch_write(site.store, folder), KVT_E_ARGUMENT);
    assert_int_equal(kvt_watch_write(site.store, ""), KVT_E_ARGUMENT);
    FILE *other = fopen(path, "w");
    assert_non_null(other);
    fputs("a letter to somebody, which took a day to write\n", other);
    fclose(other);
    assert_int_equal(kvt_watch_write(site.store, path), KVT_E_MISMATCH);
    text = watch_read_file(path);
    assert_int_equal(strncmp(text, "a letter", 8), 0);
    free(text);
    kvt_store_close(site.store);
    /* An open finds a wrong path, and a store writes by itself: at its open and its close. */
    site.options.watch.path = path;
    char message[256] = "";
    assert_int_equal(kvt_store_open(&site.options, &site.store, message, sizeof message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "watch_path"));
    assert_int_equal(unlink(path), 0);
    assert_ok(kvt_store_open(&site.options, &site.store, message, sizeof message));
    free(watch_read_file(path));
    assert_int_equal(support_get(site.store, 1, NULL), KVT_MISS);
    kvt_store_close(site.store);
    text = watch_read_file(path);
    parsed = metrics_parse(text);
    assert_true(metrics_sum(parsed, "kvterrace_misses_total", "absent") == 1);
    free(parsed);
    free(text);
}
