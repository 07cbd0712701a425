/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_put.c - puts that hand over and return: before a byte is written, readable at once,
 * bounded, and with their failures told by the next flush. Devices block until the test lets them
 * go, so no clock decides anything.
 */
#include "store/core/options.h"
#include "store/core/store.h"
#include "store_site.h"

#include <kvterrace/lookup.h>

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { DRAM_BYTES = 16 << 20, RECORDS_STAGED = 8 };

static const tiers_fault_rule hang_writes = {.action = TIERS_FAULT_HANG,
                                             .kinds = TIERS_FAULT_WRITES};

static site *prepare(void)
{
    site *s = site_prepare((site_shape){.staged = true, .dram_bytes = DRAM_BYTES});
    s->options.limits.staging_bytes = 2 << 20;
    s->options.limits.put_staging_bytes = RECORDS_STAGED * SUPPORT_ENTRY_BYTES;
    return s;
}

/* A store whose device takes writes and does not answer them. */
static site *site_open_hung(void)
{
    site *s = prepare();
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    return s;
}

/* The device fails so many writes from now on; 0: all of them. */
static void site_fail_writes(site *s, uint64_t hits)
{
    const tiers_fault_rule fail = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_WRITES,
                                   .hits = hits,
                                   .status = KVT_E_IO,
                                   .os_error = 5};
    assert_ok(tiers_fault_add(s->dram.device, &fail));
}

static uint64_t site_writes(site *s)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(s->dram.device, &counts);
    return counts.writes - counts.hung;
}

static kvt_status site_exists(site *s, uint32_t number)
{
    kvt_key key = support_key(number);
    return kvt_store_exists(s->store, &key);
}

static kvt_status site_delete(site *s, uint32_t number)
{
    kvt_key key = support_key(number);
    return kvt_store_delete(s->store, &key);
}

TEST(put_returns_before_a_byte_is_written)
{
    site *s = site_open_hung();
    uint64_t before = site_writes(s);
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(support_put(s->store, 1));
    assert_int_equal(site_writes(s), before);
    assert_ok(support_get(s->store, 1, &info));
    assert_int_equal(info.tier, KVT_TIER_DRAM);
    assert_int_equal(info.read_ns, 0);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.puts_waiting, 1);
    assert_int_equal(stats.put_staging_bytes, SUPPORT_ENTRY_BYTES);
    assert_int_equal(stats.staged_hits, 1);
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    assert_true(site_writes(s) > before);
    assert_ok(support_get(s->store, 1, &info));
    stats = support_stats(s->store);
    assert_int_equal(stats.puts_waiting, 0);
    assert_int_equal(stats.put_staging_bytes, 0);
    assert_int_equal(stats.staged_hits, 1);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].hits, 2);
    assert_int_equal(stats.gets, 2);
}

TEST(lookups_see_what_is_handed_over)
{
    site *s = site_open_hung();
    kvt_key keys[3] = {support_key(0), support_key(1), support_key(2)};
    size_t matched = 0;
    double seconds[3];
    assert_ok(support_put(s->store, 0));
    assert_ok(support_put(s->store, 1));
    assert_ok(site_exists(s, 1));
    assert_int_equal(site_exists(s, 2), KVT_MISS);
    assert_ok(kvt_store_match(s->store, keys, 3, NULL, &matched));
    assert_int_equal(matched, 2);
    assert_ok(kvt_store_match(s->store, keys, 3, KVT_MATCH(.load_seconds = seconds), NULL));
    assert_true(seconds[0] >= 0 && seconds[0] < 1 && seconds[2] != seconds[2]);
    assert_int_equal(support_put(s->store, 1), KVT_EXISTS);
    char small[64];
    assert_int_equal(kvt_store_get(s->store, &keys[0], KVT_PACKED(small, sizeof small),
                                   KVT_STORE_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    assert_ok(kvt_store_explain(s->store, &keys[0], &explanation));
    assert_int_equal(explanation.current, KVT_OPTION_NONE);
    tiers_fault_clear(s->dram.device);
}

TEST(full_staging_refuses_and_loses_nothing)
{
    site *s = site_open_hung();
    support_puts(s->store, 0, RECORDS_STAGED);
    assert_int_equal(support_put(s->store, 100), KVT_BUSY);
    assert_int_equal(support_put(s->store, 101), KVT_BUSY);
    assert_int_equal(support_put(s->store, 0), KVT_EXISTS);
    assert_int_equal(site_exists(s, 100), KVT_MISS);
    assert_int_equal(support_stats(s->store).puts_busy, 2);
    assert_int_equal(support_stats(s->store).puts_waiting, RECORDS_STAGED);
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    assert_ok(support_put(s->store, 100));
    assert_ok(kvt_store_flush(s->store));
    support_gets(s->store, 0, RECORDS_STAGED);
    assert_ok(support_get(s->store, 100, NULL));
    assert_int_equal(support_stats(s->store).staged_hits, 0);
}

TEST(backlog_of_a_tier_refuses)
{
    site *s = prepare();
    s->options.limits.put_backlog_seconds = 1e-9;
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    assert_ok(support_put(s->store, 0));
    uint64_t aborted = support_stats(s->store).moves.aborted;
    assert_int_equal(support_put(s->store, 1), KVT_BUSY);
    assert_int_equal(site_exists(s, 1), KVT_MISS);
    assert_int_equal(support_stats(s->store).puts_busy, 1);
    assert_int_equal(support_stats(s->store).moves.aborted, aborted);
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    assert_ok(support_put(s->store, 1));
}

/* A put that waits without a plan counts with the writes that plans lately made per byte. */
TEST(burst_stays_below_the_backlog_bound)
{
    site *s = site_open_hung();
    support_puts(s->store, 0, STORE_HANDOVER_THREADS);
    pthread_mutex_lock(&s->store->lock);
    double planned = s->store->handover.seconds[KVT_TIER_DRAM];
    s->store->handover.backlog_seconds = 1.6 * planned; /* room for two puts more */
    pthread_mutex_unlock(&s->store->lock);
    assert_true(planned > 0);
    assert_ok(support_put(s->store, 4));
    assert_ok(support_put(s->store, 5));
    assert_int_equal(support_put(s->store, 6), KVT_BUSY);
    assert_int_equal(site_exists(s, 6), KVT_MISS);
    assert_int_equal(support_stats(s->store).puts_busy, 1);
    pthread_mutex_lock(&s->store->lock);
    assert_true(s->store->handover.seconds[KVT_TIER_DRAM] <= s->store->handover.backlog_seconds);
    pthread_mutex_unlock(&s->store->lock);
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    assert_ok(support_put(s->store, 6));
}

/* An entry whose parent is not stored, which the policy declines. */
static kvt_status put_orphan(site *s, uint32_t number)
{
    static char data[SUPPORT_ENTRY_BYTES];
    kvt_key parent = support_key(9000);
    support_fill(number, data);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .parent = &parent,
                       .layout = support_layout,
                       .first_position = 32,
                       .recompute_seconds = 1};
    return kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data));
}

/* While puts wait, the policy is asked later; what it declines then is no loss. */
TEST(the_policy_is_asked_later)
{
    site *s = prepare();
    s->options.policy = "utility";
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    assert_int_equal(put_orphan(s, 100), KVT_REFUSED);
    support_puts(s->store, 0, 5);
    assert_ok(put_orphan(s, 101));
    assert_ok(site_exists(s, 101));
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    assert_int_equal(site_exists(s, 101), KVT_MISS);
    support_gets(s->store, 0, 5);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.puts_refused, 2);
    assert_int_equal(stats.puts_lost, 0);
}

static void site_await_end(site *s)
{
    while (support_stats(s->store).puts_waiting != 0)
        usleep(1000);
}

TEST(failure_behind_the_return)
{
    site *s = prepare();
    site_open(s);
    site_fail_writes(s, 0);
    assert_ok(support_put(s->store, 1));
    site_await_end(s);
    assert_int_equal(support_get(s->store, 1, NULL), KVT_MISS);
    assert_int_equal(support_stats(s->store).puts_lost, 1);
    kvt_health_item items[8] = {{.struct_size = sizeof items[0]}};
    size_t count = 0, seen = 0;
    assert_ok(kvt_health_get(s->store, items, 8, &count, NULL));
    for (size_t i = 0; i < count; i++)
        seen += items[i].kind == KVT_HEALTH_PUT && items[i].status == KVT_E_IO;
    assert_int_equal(seen, 1);
    assert_int_equal(kvt_store_flush(s->store), KVT_E_IO);
    assert_ok(kvt_store_flush(s->store));
    assert_ok(kvt_health_get(s->store, items, 8, &count, NULL));
    for (size_t i = 0; i < count; i++)
        assert_int_not_equal(items[i].kind, KVT_HEALTH_PUT);
    tiers_fault_clear(s->dram.device);
    assert_ok(support_put(s->store, 1));
    assert_ok(kvt_store_flush(s->store));
    assert_ok(support_get(s->store, 1, NULL));
}

/* A plan that fails is made again from the staged bytes. */
TEST(one_failed_write_loses_nothing)
{
    site *s = prepare();
    site_open(s);
    site_fail_writes(s, 1);
    assert_ok(support_put(s->store, 1));
    assert_ok(kvt_store_flush(s->store));
    assert_ok(support_get(s->store, 1, NULL));
    assert_int_equal(support_stats(s->store).puts_lost, 0);
    assert_int_equal(support_stats(s->store).moves.aborted, 1);
}

/* The only device stops answering behind the return: the put is lost, which the flush tells, and
 * close does not wait for the device. */
TEST(a_device_that_stops_answering)
{
    site *s = prepare();
    s->memory.timeout_ns = 200000000;
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    assert_ok(support_put(s->store, 1));
    assert_ok(support_get(s->store, 1, NULL));
    assert_int_equal(kvt_store_flush(s->store), KVT_E_IO);
    assert_int_equal(support_get(s->store, 1, NULL), KVT_MISS);
    assert_int_equal(support_stats(s->store).puts_lost, 1);
    assert_int_equal(support_put(s->store, 1), KVT_REFUSED);
    site_close(s);
    tiers_fault_clear(s->dram.device);
}

/* Puts that waited without a plan when the last device went are lost like those that had one. */
TEST(what_waits_for_a_unresponsive_device_is_lost)
{
    site *s = prepare();
    s->memory.timeout_ns = 200000000;
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    support_puts(s->store, 0, RECORDS_STAGED);
    site_await_end(s);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.puts_lost, RECORDS_STAGED);
    assert_int_equal(stats.puts_refused, 0);
    assert_int_equal(kvt_store_flush(s->store), KVT_E_IO);
    assert_ok(kvt_store_flush(s->store));
    site_close(s);
    tiers_fault_clear(s->dram.device);
}

typedef struct caller {
    site *s;
    uint32_t number;
    kvt_status status;
} caller;

static void *delete_one(void *argument)
{
    caller *self = argument;
    self->status = site_delete(self->s, self->number);
    return NULL;
}

static void *flush_all(void *argument)
{
    caller *self = argument;
    self->status = kvt_store_flush(self->s->store);
    assert_int_equal(support_stats(self->s->store).puts_waiting, 0);
    return NULL;
}

static void *close_store(void *argument)
{
    caller *self = argument;
    site_close(self->s);
    return NULL;
}

TEST(delete_of_what_is_handed_over)
{
    site *s = site_open_hung();
    support_puts(s->store, 0, RECORDS_STAGED);
    /* Executors take puts in order and hang with the first ones: the last has not begun. */
    assert_ok(site_delete(s, RECORDS_STAGED - 1));
    assert_int_equal(support_get(s->store, RECORDS_STAGED - 1, NULL), KVT_MISS);
    assert_ok(support_put(s->store, RECORDS_STAGED - 1));
    assert_ok(support_get(s->store, RECORDS_STAGED - 1, NULL));
    assert_ok(site_delete(s, RECORDS_STAGED - 1));
    /* One that has begun is waited for. */
    tiers_fault_counts counts = {0};
    while (counts.hung == 0) {
        tiers_fault_counts_get(s->dram.device, &counts);
        usleep(1000);
    }
    caller deleter = {.s = s, .number = 0}, flusher = {.s = s};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, delete_one, &deleter), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, flush_all, &flusher), 0);
    tiers_fault_clear(s->dram.device);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_ok(deleter.status);
    assert_ok(flusher.status);
    assert_int_equal(support_get(s->store, 0, NULL), KVT_MISS);
    support_gets(s->store, 1, RECORDS_STAGED - 1);
    assert_int_equal(support_get(s->store, RECORDS_STAGED - 1, NULL), KVT_MISS);
}

TEST(close_calls_off_what_nothing_keeps)
{
    site *s = site_open_hung();
    support_puts(s->store, 0, RECORDS_STAGED);
    caller closer = {.s = s};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, close_store, &closer), 0);
    tiers_fault_clear(s->dram.device); /* what has begun ends */
    pthread_join(thread, NULL);
}

static site *disk_open(void)
{
    site *s = site_prepare((site_shape){.disks = 1,
                                        .disk_bytes = 32 << 20,
                                        .plain = true,
                                        .staged = true,
                                        .dram_bytes = DRAM_BYTES});
    s->options.limits.staging_bytes = s->options.limits.put_staging_bytes = 2 << 20;
    s->options.durability.persist_bytes_per_s = 0;
    site_open(s);
    return s;
}

TEST(close_finishes_what_survives)
{
    site *d = disk_open();
    support_puts(d->store, 0, 16);
    site_reopen(d);
    assert_int_equal(site_hits(d, 16), 16);
}

TEST(persist_waits)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    site *d = disk_open();
    support_puts(d->store, 0, 8);
    assert_ok(kvt_store_persist(d->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.written, 8);
    assert_int_equal(info.left, 0);
    assert_ok(tiers_fault_add(d->dram.device, &hang_writes));
    assert_ok(support_put(d->store, 8));
    assert_int_equal(kvt_store_persist(d->store, 1, &info), KVT_E_TIMEOUT);
    assert_int_equal(info.left, 1);
    tiers_fault_clear(d->dram.device);
}

/* ---- many callers ---- */

enum { THREADS = 4, ROUNDS = 300, KEYS = 400 };

typedef struct runner {
    kvt_store *store;
    uint64_t draw;
    uint64_t hits, accepted;
} runner;

static void runner_step(runner *self)
{
    self->draw = self->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t number = (uint32_t)(self->draw >> 33) % KEYS;
    kvt_key key = support_key(number);
    kvt_status status = support_get(self->store, number, NULL);
    assert_true(status == KVT_OK || status == KVT_MISS);
    self->hits += status == KVT_OK;
    if ((self->draw >> 20) % 16 == 0) {
        status = kvt_store_delete(self->store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
    } else {
        status = support_put(self->store, number);
        assert_true(status == KVT_OK || status == KVT_EXISTS || status == KVT_BUSY ||
                    status == KVT_REFUSED);
        self->accepted += status == KVT_OK;
        if (status == KVT_OK || status == KVT_EXISTS) {
            status = support_get(self->store, number, NULL); /* unless another has deleted it */
            assert_true(status == KVT_OK || status == KVT_MISS);
        }
    }
    if ((self->draw >> 24) % 64 == 0) assert_ok(kvt_store_flush(self->store));
}

static void *runner_run(void *argument)
{
    runner *self = argument;
    for (uint32_t i = 0; i < ROUNDS; i++)
        runner_step(self);
    return NULL;
}

TEST(many_threads)
{
    site *d = disk_open();
    site_close(d);
    d->options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
    d->options.tiers[KVT_TIER_SSD].capacity_bytes = 8 << 20;
    d->options.limits.tick_seconds = 0.002;
    site_open(d);
    runner runners[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        runners[i] = (runner){.store = d->store, .draw = 77 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, runner_run, &runners[i]), 0);
    }
    uint64_t hits = 0, accepted = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        hits += runners[i].hits;
        accepted += runners[i].accepted;
    }
    assert_true(hits > 0 && accepted > KEYS / 2);
    assert_ok(kvt_store_flush(d->store));
    kvt_store_stats stats = support_stats(d->store);
    assert_int_equal(stats.puts_waiting, 0);
    assert_int_equal(stats.put_staging_bytes, 0);
    assert_int_equal(stats.load_failures, 0);
}

/* The old way: what a put says has happened. */
TEST(without_put_staging)
{
    site *s = prepare();
    s->options.limits.put_staging_bytes = 0;
    site_open(s);
    uint64_t before = site_writes(s);
    assert_ok(support_put(s->store, 1));
    assert_true(site_writes(s) > before);
    site_fail_writes(s, 0);
    assert_int_equal(support_put(s->store, 2), KVT_E_IO);
    assert_ok(kvt_store_flush(s->store));
}

/* Whether every thread of the process but the calling one has a signal blocked. */
static bool others_block(int signal_number)
{
    bool blocked = true;
    uint32_t threads = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        char path[300], line[256];
        if (task->d_name[0] == '.' || strtol(task->d_name, NULL, 10) == (long)getpid()) continue;
        (void)snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        unsigned long long mask = 0;
        while (fgets(line, sizeof line, file) != NULL)
            if (strncmp(line, "SigBlk:", 7) == 0) mask = strtoull(line + 7, NULL, 16);
        (void)fclose(file);
        if ((mask >> (signal_number - 1) & 1) == 0) blocked = false;
        threads++;
    }
    (void)closedir(tasks);
    assert_true(threads >= 5); /* four executors and the device's */
    return blocked;
}

TEST(signals_are_the_applications)
{
    site *s = prepare();
    s->options.limits.tick_seconds = 0.05;
    site_open(s);
    assert_true(others_block(SIGUSR1));
    assert_true(others_block(SIGALRM));
    sigset_t mine;
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mine), 0);
    assert_false(sigismember(&mine, SIGUSR1));
}

TEST(staging_grows_with_dram)
{
    const uint64_t mib = UINT64_C(1) << 20, gib = UINT64_C(1) << 30,
                   automatic = KVT_PUT_STAGING_AUTO;
    uint64_t tiers[KVT_TIER_COUNT] = {0};
    tiers[KVT_TIER_DRAM] = 128 * gib;
    tiers[KVT_TIER_SSD] = 4096 * gib;
    assert_int_equal(kvt_put_staging_limit(automatic, tiers), 4 * gib);
    assert_int_equal(kvt_put_staging_limit(512 * mib, tiers), 512 * mib);
    tiers[KVT_TIER_HBM] = 16 * gib; /* an eighth of the smallest tier */
    assert_int_equal(kvt_put_staging_limit(automatic, tiers), 2 * gib);
    assert_int_equal(kvt_put_staging_limit(16 * gib, tiers), 2 * gib);
    tiers[KVT_TIER_HBM] = 0;
    tiers[KVT_TIER_DRAM] = 1024 * gib;
    assert_int_equal(kvt_put_staging_limit(automatic, tiers), 8 * gib);
    tiers[KVT_TIER_DRAM] = 4 * gib;
    assert_int_equal(kvt_put_staging_limit(automatic, tiers), 256 * mib);
    tiers[KVT_TIER_DRAM] = gib;
    assert_int_equal(kvt_put_staging_limit(automatic, tiers), 128 * mib);
    assert_int_equal(kvt_put_staging_limit(0, tiers), 0);
}

/* A child whose parent is not stored is refused for that, and kvt_store_explain says so. */
TEST(a_child_before_its_parent)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = 4 << 20;
    options.limits.tick_seconds = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 8 << 20;
    kvt_store *store = support_open(&options);
    static char data[SUPPORT_ENTRY_BYTES];
    const kvt_key parent = support_key(1);
    kvt_entry child = {.struct_size = sizeof child,
                       .key = support_key(2),
                       .parent = &parent,
                       .layout = support_layout,
                       .first_position = support_layout.tokens,
                       .recompute_seconds = 1};
    support_fill(2, data);
    assert_int_equal(kvt_store_put(store, &child, KVT_PACKED(data, sizeof data)), KVT_REFUSED);
    kvt_explanation why = {.struct_size = sizeof why};
    assert_int_equal(kvt_store_explain(store, &child.key, &why), KVT_MISS);
    assert_non_null(why.reason);
    assert_non_null(strstr(why.reason, "its parent, is not stored"));
    assert_ok(support_put(store, 1));
    assert_ok(kvt_store_put(store, &child, KVT_PACKED(data, sizeof data)));
    kvt_store_close(store);
}

/* Puts entry `number` behind the one before it, where it has a place in a chain above 0. */
static kvt_status put_link(site *s, uint32_t number, uint32_t place)
{
    static char data[SUPPORT_ENTRY_BYTES];
    const kvt_key parent = support_key(number - 1);
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = support_key(number),
                             .parent = place != 0 ? &parent : NULL,
                             .layout = support_layout,
                             .first_position = place * support_layout.tokens,
                             .recompute_seconds = 1};
    support_fill(number, data);
    return kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data));
}

/* Chains are put link by link while others wait, some decided on at once and some by executors: no
 * link is declined because the policy does not know the one before it yet. */
TEST(links_of_a_chain_are_decided_in_order)
{
    enum { CHAINS = 400, LINKS = 7 }; /* of which staging has room for all */
    site *s = prepare();
    s->options.policy = "utility";
    s->dram.capacity_bytes = 64 << 20; /* half of it stays free */
    site_open(s);
    for (uint32_t chain = 0; chain < CHAINS; chain++) {
        const uint32_t first = chain * LINKS;
        for (uint32_t i = 0; i < LINKS; i++)
            assert_ok(put_link(s, first + i, i));
        assert_ok(kvt_store_flush(s->store));
        for (uint32_t i = 0; i < LINKS; i++)
            assert_ok(support_get(s->store, first + i, NULL));
        for (uint32_t i = LINKS; i-- > 0;)
            assert_ok(site_delete(s, first + i));
    }
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.puts_refused, 0);
    assert_int_equal(stats.puts_lost, 0);
}
