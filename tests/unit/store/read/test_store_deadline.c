/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_deadline.c - a store on devices that neither answer nor fail: gets end at their
 * deadline, puts at the timeout, close at once, and nothing is written or lost afterwards.
 */
#include "queued.h"
#include "store_support.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { ENTRIES = 24, MS = 1000000, CAPACITY = 16 << 20 };

/* One device of this size holds 23 records of 44 KiB at most, two hold all: whatever speeds the
 * store has measured, some entries lie on each. */
enum { SMALL_CAPACITY = 1 << 20 };

#define NEVER UINT64_MAX

static const tiers_fault_rule hang_all = {.action = TIERS_FAULT_HANG,
                                          .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES};

typedef struct site {
    support_fault faults[2];
    uint64_t capacity_bytes; /* of each device; 0 = CAPACITY */
    kvt_store *store;
} site;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
}

/* False when the last device was taken for unresponsive before it had all entries. Only that one,
 * which is to hang, may be. */
static bool site_try_open(site *s, uint32_t devices, uint64_t timeout_ns, double get_deadline)
{
    static const char *const names[] = {"d0", "d1"};
    kvt_device_config configs[2];
    kvt_store_options options;
    kvt_device_stats last = {.struct_size = sizeof last};
    char message[256];
    memset(s->faults, 0, sizeof s->faults);
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    for (uint32_t i = 0; i < devices; i++) {
        s->faults[i].capacity_bytes = s->capacity_bytes ? s->capacity_bytes : CAPACITY;
        configs[i] = support_fault_config(&s->faults[i], names[i]);
    }
    configs[devices - 1].timeout_ns = timeout_ns;
    options.limits.staging_bytes = 2 << 20;
    options.policy = "lru";
    options.limits.tick_seconds = 0;
    options.limits.get_deadline_seconds = get_deadline;
    support_tier(&options, KVT_TIER_SSD, configs, devices);
    kvt_status status = kvt_store_open(&options, &s->store, message, sizeof message);
    if (status == KVT_E_GONE && timeout_ns != NEVER) return false;
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    uint32_t put = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        put += support_put(s->store, i) == KVT_OK;
    assert_ok(kvt_device_stats_get(s->store, devices - 1, &last));
    bool unresponsive = last.state == KVT_DEVICE_GONE && timeout_ns != NEVER;
    if (unresponsive) kvt_store_close(s->store);
    if (!unresponsive) assert_int_equal(put, ENTRIES);
    return !unresponsive;
}

/* A store with ENTRIES entries. On a machine that hardly runs, the limit is what it can keep. */
static void site_open(site *s, uint32_t devices, uint64_t timeout_ns, double get_deadline)
{
    while (!site_try_open(s, devices, timeout_ns, get_deadline))
        timeout_ns *= 2;
}

static void site_hang(site *s, uint32_t device)
{
    assert_ok(tiers_fault_add(s->faults[device].device, &hang_all));
}

static uint64_t site_hung(site *s, uint32_t device)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(s->faults[device].device, &counts);
    return counts.hung;
}

/* A get into memory whose every byte is 0xee and must stay so unless it succeeds. */
static kvt_status site_get(site *s, uint32_t number, uint64_t deadline_ns, char *data,
                           kvt_get_info *info)
{
    kvt_key key = support_key(number);
    memset(data, 0xee, SUPPORT_ENTRY_BYTES);
    return kvt_store_get(s->store, &key, KVT_PACKED(data, SUPPORT_ENTRY_BYTES), deadline_ns, info);
}

static bool is_untouched(const char *data)
{
    for (uint32_t i = 0; i < SUPPORT_ENTRY_BYTES; i++)
        if ((unsigned char)data[i] != 0xee) return false;
    return true;
}

static uint64_t site_reads(site *s, uint32_t device)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(s->faults[device].device, &counts);
    return counts.reads;
}

/* Whether an entry lies on a device, by a get of it. */
static bool site_lies_on(site *s, uint32_t number, uint32_t device)
{
    uint64_t before = site_reads(s, device);
    assert_ok(support_get(s->store, number, NULL));
    return site_reads(s, device) != before;
}

static void site_await_staging(site *s)
{
    while (support_stats(s->store).staging_bytes != 0)
        nap();
}

/* Reads that hang are misses at their deadline, whatever else is read; later all is as before. More
 * is given up than staging could hold. */
TEST(gets_end_at_their_deadline)
{
    enum { ROUNDS = 8 };
    site s = {.capacity_bytes = SMALL_CAPACITY};
    site_open(&s, 2, NEVER, 0);
    char *data = test_alloc((size_t)ROUNDS * ENTRIES * SUPPORT_ENTRY_BYTES);
    bool hangs[ENTRIES];
    uint32_t there = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        there += hangs[i] = site_lies_on(&s, i, 1);
    assert_in_range(there, 1, ENTRIES - 1);
    site_hang(&s, 1);
    uint32_t hits = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++) {
            char *one = data + (round * ENTRIES + i) * (size_t)SUPPORT_ENTRY_BYTES;
            kvt_get_info info = {.struct_size = sizeof info};
            kvt_key key = support_key(i);
            uint64_t deadline_ns = hangs[i] ? base_clock_ns() + 10 * MS : NEVER;
            kvt_status status = site_get(&s, i, deadline_ns, one, &info);
            assert_int_equal(status, hangs[i] ? KVT_MISS : KVT_OK);
            if (status == KVT_OK) {
                hits++;
                continue;
            }
            assert_true(info.timed_out);
            assert_true(base_clock_ns() >= deadline_ns);
            assert_ok(kvt_store_exists(s.store, &key));
        }
    }
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.timeouts, ROUNDS * ENTRIES - hits);
    assert_int_equal(stats.load_failures, 0);
    assert_int_equal(hits, ROUNDS * (ENTRIES - there));
    assert_true(stats.staging_bytes > 0);
    tiers_fault_clear(s.faults[1].device);
    site_await_staging(&s);
    support_gets(s.store, 0, ENTRIES);
    uint32_t untouched = 0;
    for (uint32_t i = 0; i < ROUNDS * ENTRIES; i++)
        if (is_untouched(data + i * (size_t)SUPPORT_ENTRY_BYTES)) untouched++;
    assert_int_equal(untouched, ROUNDS * ENTRIES - hits);
    kvt_store_close(s.store);
}

/* After its deadline a get of what lies in memory is served; any other one starts no device. */
TEST(a_get_that_must_not_wait)
{
    site s = {0};
    kvt_get_info info = {.struct_size = sizeof info};
    static char data[SUPPORT_ENTRY_BYTES], expected[SUPPORT_ENTRY_BYTES];
    site_open(&s, 1, NEVER, 0);
    uint64_t before = site_reads(&s, 0);
    for (uint64_t instant = 0; instant < 2; instant++) {
        assert_int_equal(site_get(&s, 3, instant, data, &info), KVT_MISS);
        assert_true(info.timed_out && is_untouched(data));
    }
    assert_int_equal(site_reads(&s, 0), before);
    assert_int_equal(support_stats(s.store).staging_bytes, 0);
    assert_ok(support_get(s.store, 3, NULL));
    kvt_store_close(s.store);

    kvt_store_options options;
    kvt_key key = support_key(3);
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    kvt_store *memory = support_open(&options);
    assert_ok(support_put(memory, 3));
    support_fill(3, expected);
    for (int written = 0; written < 2; written++) {
        if (written) assert_ok(kvt_store_flush(memory));
        assert_ok(kvt_store_get(memory, &key, KVT_PACKED(data, sizeof data), 0, &info));
        assert_memory_equal(data, expected, sizeof data);
        assert_false(info.timed_out);
    }
    kvt_store_close(memory);
}

TEST(the_setting_is_every_gets_deadline)
{
    site s = {0};
    kvt_get_info info = {.struct_size = sizeof info};
    site_open(&s, 1, NEVER, 0.02);
    site_hang(&s, 0);
    assert_int_equal(support_get(s.store, 3, &info), KVT_MISS);
    assert_true(info.timed_out);
    kvt_key key = support_key(3);
    static char data[SUPPORT_ENTRY_BYTES];
    /* A queue's, too. */
    kvt_queue *queue;
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = key,
                                 .view = KVT_PACKED(data, sizeof data),
                                 .deadline_ns = KVT_STORE_DEADLINE};
    assert_ok(kvt_queue_open(s.store, NULL, &queue));
    const kvt_completion done = queued_call(queue, &request);
    assert_int_equal(done.status, KVT_MISS);
    assert_true(done.timed_out);
    kvt_queue_close(queue);
    tiers_fault_clear(s.faults[0].device);
    site_await_staging(&s);
    assert_ok(kvt_store_get(s.store, &key, KVT_PACKED(data, sizeof data), NEVER, &info));
    assert_false(info.timed_out);
    kvt_store_close(s.store);
}

/* ---- gets that share a read ---- */

typedef struct waiter {
    site *site;
    pthread_t thread;
    uint64_t deadline_ns;
    kvt_status status;
    kvt_get_info info;
    char data[SUPPORT_ENTRY_BYTES];
} waiter;

static void *waiter_main(void *argument)
{
    waiter *w = argument;
    w->info.struct_size = sizeof w->info;
    w->status = site_get(w->site, 7, w->deadline_ns, w->data, &w->info);
    return NULL;
}

static void waiter_start(waiter *w, site *s, uint64_t deadline_ns)
{
    w->site = s;
    w->deadline_ns = deadline_ns;
    assert_int_equal(pthread_create(&w->thread, NULL, waiter_main, w), 0);
}

/* An owner with that much time, and two that come while it reads. False when it was over before
 * both had joined. */
static bool share_a_read(uint64_t owner_ns)
{
    site s = {0};
    static waiter owner, hasty, patient;
    static char expected[SUPPORT_ENTRY_BYTES];
    site_open(&s, 1, NEVER, 0);
    site_hang(&s, 0);
    waiter_start(&owner, &s, base_clock_ns() + owner_ns);
    while (site_hung(&s, 0) == 0)
        nap();
    waiter_start(&hasty, &s, base_clock_ns() + owner_ns / 20);
    waiter_start(&patient, &s, NEVER);
    assert_int_equal(pthread_join(hasty.thread, NULL), 0);
    assert_int_equal(hasty.status, KVT_MISS);
    assert_true(hasty.info.timed_out);
    assert_int_equal(pthread_join(owner.thread, NULL), 0);
    assert_int_equal(owner.status, KVT_MISS);
    bool both = support_stats(s.store).shared_reads >= 2;
    tiers_fault_clear(s.faults[0].device);
    assert_int_equal(pthread_join(patient.thread, NULL), 0);
    assert_ok(patient.status);
    support_fill(7, expected);
    assert_memory_equal(patient.data, expected, sizeof expected);
    assert_true(is_untouched(hasty.data) && is_untouched(owner.data));
    site_await_staging(&s);
    kvt_store_close(s.store);
    return both;
}

/* Who joined another one's read leaves at his own deadline; who has more time than its owner reads
 * again. */
TEST(each_get_has_its_own_deadline)
{
    uint64_t owner_ns = 400 * MS;
    while (!share_a_read(owner_ns))
        owner_ns *= 2;
}

/* ---- puts and moves ---- */

/* A put goes to the device that answers; with none it says so and leaves nothing behind. */
TEST(puts_end_at_the_timeout)
{
    site s = {0};
    site_open(&s, 2, 60 * MS, 0);
    site_hang(&s, 1);
    support_puts(s.store, ENTRIES, 2 * ENTRIES);
    support_gets(s.store, ENTRIES, 2 * ENTRIES);
    tiers_fault_clear(s.faults[1].device);
    site_await_staging(&s);
    support_gets(s.store, ENTRIES, 2 * ENTRIES);
    kvt_store_close(s.store);

    site_open(&s, 1, 60 * MS, 0);
    site_hang(&s, 0);
    kvt_key key = support_key(ENTRIES);
    assert_int_equal(support_put(s.store, ENTRIES), KVT_REFUSED); /* no device is left */
    assert_int_equal(kvt_store_exists(s.store, &key), KVT_MISS);
    assert_int_equal(support_get(s.store, 0, NULL), KVT_MISS); /* without a deadline, and no wait */
    tiers_fault_clear(s.faults[0].device);
    site_await_staging(&s);
    kvt_store_close(s.store);
}

/* The store closes while a device keeps a part of its staging, and the device answers later. */
TEST(close_while_a_device_hangs)
{
    site s = {0};
    static char data[SUPPORT_ENTRY_BYTES];
    site_open(&s, 1, 60 * MS, 0);
    site_hang(&s, 0);
    while (site_hung(&s, 0) == 0) /* on a busy machine a first one may not have reached it */
        assert_int_equal(site_get(&s, 1, base_clock_ns() + 5 * MS, data, NULL), KVT_MISS);
    assert_int_equal(site_get(&s, 2, base_clock_ns() + 5 * MS, data, NULL), KVT_MISS);
    kvt_device *device = s.faults[0].device;
    kvt_store_close(s.store);
    tiers_fault_clear(device);
    assert_true(is_untouched(data));
}
