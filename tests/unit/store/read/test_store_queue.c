/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue.c - batches of requests: every request completes once with its own status,
 * whatever its neighbours do; deadlines, cancels, closes and silent devices end what is under way.
 */
#include "queue_site.h"

#include <kvterrace/lookup.h>
#include <poll.h>
#include <pthread.h>

enum { MANY = 200 };

static char *buffers; /* MANY entries */

static kvt_view views[MANY];
static kvt_entry entries[MANY];

static kvt_request request_of(uint32_t kind, uint32_t number)
{
    uint32_t at = number % MANY;
    const bool moves = kind == KVT_REQUEST_GET || kind == KVT_REQUEST_PUT;
    if (moves) /* one of an earlier request may be in use */
        views[at] =
            kvt_view_packed(buffers + (size_t)at * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES);
    if (kind == KVT_REQUEST_PUT)
        entries[at] = support_entry(support_key(number), support_layout, 1);
    return (kvt_request){.struct_size = sizeof(kvt_request),
                         .kind = kind,
                         .key = support_key(number),
                         .view = moves ? &views[at] : NULL,
                         .entry = kind == KVT_REQUEST_PUT ? &entries[at] : NULL,
                         .deadline_ns = KVT_NO_DEADLINE,
                         .user = 1000 + number};
}

/* Drains until `count` completions have come; statuses by index of their batch. */
static void drain_all(uint32_t count, kvt_status *statuses, bool *timed_out)
{
    kvt_completion done[MANY] = {{.struct_size = sizeof(kvt_completion)}};
    uint32_t seen = 0;
    bool ended[MANY] = {false};
    while (seen < count) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        size_t got = kvt_queue_drain(queue, done, MANY);
        for (size_t i = 0; i < got; i++) {
            assert_false(ended[done[i].index]); /* once */
            ended[done[i].index] = true;
            statuses[done[i].index] = done[i].status;
            if (timed_out != NULL) timed_out[done[i].index] = done[i].timed_out;
        }
        seen += (uint32_t)got;
    }
    assert_int_equal(seen, count);
}

static void run(uint32_t kind, uint32_t first, uint32_t count, kvt_status *statuses)
{
    kvt_request requests[MANY];
    uint64_t batch = 0;
    for (uint32_t i = 0; i < count; i++)
        requests[i] = request_of(kind, first + i);
    assert_ok(kvt_queue_submit(queue, requests, count, &batch));
    assert_true(batch > 0);
    drain_all(count, statuses, NULL);
}

static void expect_all(const kvt_status *statuses, uint32_t count, kvt_status expected)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(statuses[i], expected);
}

static void expect_bytes(uint32_t first, uint32_t count)
{
    static char expected[SUPPORT_ENTRY_BYTES];
    for (uint32_t i = first; i < first + count; i++) {
        support_fill(i, expected);
        const char *at = buffers + (size_t)(i % MANY) * SUPPORT_ENTRY_BYTES;
        assert_memory_equal(at, expected, sizeof expected);
    }
}

/* Put, exist, get, delete, all by batches, over a store in memory and over one of a device. */
static void round_trip(bool device)
{
    kvt_status statuses[MANY];
    queue_site_open(device, 0, 2);
    for (uint32_t i = 0; i < MANY; i++)
        support_fill(i, buffers + (size_t)i * SUPPORT_ENTRY_BYTES);
    run(KVT_REQUEST_PUT, 0, MANY, statuses);
    expect_all(statuses, MANY, KVT_OK);
    run(KVT_REQUEST_EXISTS, 0, MANY, statuses);
    expect_all(statuses, MANY, KVT_OK);
    for (int round = 0; round < 2; round++) {
        memset(buffers, 0xee, (size_t)MANY * SUPPORT_ENTRY_BYTES);
        run(KVT_REQUEST_GET, 0, MANY, statuses);
        expect_all(statuses, MANY, KVT_OK);
        expect_bytes(0, MANY);
        if (round == 0) assert_ok(kvt_store_flush(store));
    }
    run(KVT_REQUEST_DELETE, 0, MANY, statuses);
    expect_all(statuses, MANY, KVT_OK);
    run(KVT_REQUEST_GET, 0, MANY, statuses);
    expect_all(statuses, MANY, KVT_MISS);
    kvt_queue_stats stats = queue_site_stats();
    assert_int_equal(stats.requests, 6 * MANY);
    assert_int_equal(stats.completed, 6 * MANY);
    assert_int_equal(stats.waiting + stats.begun + stats.undrained, 0);
    assert_true(stats.wakes <= stats.completed);
    assert_int_equal(kvt_queue_wait(queue, 0), KVT_END);
}

TEST(batches_in_memory)
{
    round_trip(false);
}

TEST(batches_on_a_device)
{
    round_trip(true);
}

/* One bad request leaves the others whole. */
TEST(bad_neighbours)
{
    queue_site_open(false, 0, 1);
    kvt_status statuses[MANY];
    assert_ok(support_put(store, 5));
    kvt_request requests[8];
    for (uint32_t i = 0; i < 8; i++)
        requests[i] = request_of(KVT_REQUEST_GET, 5);
    kvt_view small = views[5], nowhere = views[5];
    small.base_bytes[0] = 4096;
    nowhere.base[0] = NULL;
    requests[0].kind = 77;
    requests[1].urgency = 3;
    requests[2].view = NULL;
    requests[3].view = &nowhere;
    requests[4].view = &small; /* another size than the entry's */
    requests[5].key = support_key(6);
    requests[6].loss_max = 1.0 / 0.0 - 1.0 / 0.0;
    assert_ok(kvt_queue_submit(queue, requests, 8, NULL));
    drain_all(8, statuses, NULL);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(statuses[i], KVT_E_ARGUMENT);
    assert_int_equal(statuses[5], KVT_MISS);
    assert_int_equal(statuses[6], KVT_E_ARGUMENT);
    assert_ok(statuses[7]);
    expect_bytes(5, 1);
    /* As a whole: nothing is accepted. */
    requests[3].struct_size = 8;
    assert_int_equal(kvt_queue_submit(queue, requests, 8, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_queue_submit(queue, NULL, 1, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_queue_submit(queue, NULL, 0, NULL));
    assert_int_equal(kvt_queue_submit(NULL, requests, 1, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_queue_wait(queue, 0), KVT_END);
}

TEST(the_depth_bounds_what_is_accepted)
{
    queue_site_open(false, 0, 0);
    queue = queue_site_queue(1, 16);
    kvt_request requests[17];
    kvt_completion done[16] = {{.struct_size = sizeof(kvt_completion)}};
    for (uint32_t i = 0; i < 17; i++)
        requests[i] = request_of(KVT_REQUEST_EXISTS, i);
    assert_int_equal(kvt_queue_submit(queue, requests, 17, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_queue_submit(queue, requests, 16, NULL));
    assert_int_equal(kvt_queue_submit(queue, requests, 1, NULL),
                     KVT_BUSY); /* none is drained yet */
    struct pollfd poller = {.fd = kvt_queue_fd(queue), .events = POLLIN};
    size_t seen = 0;
    while (seen < 16) {
        assert_int_equal(poll(&poller, 1, 60000), 1);
        seen += kvt_queue_drain(queue, done, 5);
    }
    assert_int_equal(poll(&poller, 1, 0), 0);
    assert_ok(kvt_queue_submit(queue, requests, 16, NULL));
    /* What is not drained is dropped by the close. */
}

/* The device takes reads and does not answer: deadlines and cancels end the gets, and what comes
 * back later is written nowhere. */
TEST(a_silent_device)
{
    queue_site_open(true, 8, 1);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    memset(buffers, 0xee, (size_t)MANY * SUPPORT_ENTRY_BYTES);
    kvt_request requests[8];
    kvt_status statuses[MANY];
    bool timed_out[MANY];
    for (uint32_t i = 0; i < 8; i++) {
        requests[i] = request_of(KVT_REQUEST_GET, i);
        requests[i].deadline_ns = base_clock_ns() + SECOND_NS / 20;
    }
    assert_ok(kvt_queue_submit(queue, requests, 8, NULL));
    drain_all(8, statuses, timed_out);
    expect_all(statuses, 8, KVT_MISS);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(timed_out[i]);
    /* Other entries: reads of the first ones still lie with the device. */
    uint64_t batch = 0;
    for (uint32_t i = 0; i < 8; i++)
        requests[i].deadline_ns = KVT_NO_DEADLINE;
    kvt_queue_stats stats = queue_site_stats();
    /* On a slow machine the first gets may have been too late to be read at all. */
    const uint64_t reads = stats.device_reads + 8;
    assert_ok(kvt_queue_submit(queue, requests, 8, &batch));
    do
        assert_ok(kvt_queue_stats_get(queue, &stats));
    while (stats.device_reads < reads);
    assert_int_equal(kvt_queue_cancel(queue, batch + 1), KVT_MISS);
    assert_ok(kvt_queue_cancel(queue, batch));
    drain_all(8, statuses, NULL);
    expect_all(statuses, 8, KVT_E_CANCELLED);
    assert_int_equal(kvt_queue_cancel(queue, batch), KVT_MISS);
    tiers_fault_clear(fault.device);
    run(KVT_REQUEST_GET, 0, 8, statuses);
    expect_all(statuses, 8, KVT_OK); /* a late read is no failure of the entry */
    expect_bytes(0, 8);
    for (size_t i = 8 * SUPPORT_ENTRY_BYTES; i < 9 * SUPPORT_ENTRY_BYTES; i++)
        assert_int_equal((unsigned char)buffers[i], 0xee);
}

/* A deadline bounds the waiting alone. Long past, it starts no device, and what needs none is
 * carried out: gets of entries in memory, lookups, uses, deletes, puts for which there is room. */
TEST(deadlines_that_have_passed)
{
    for (int memory = 0; memory < 2; memory++) {
        queue_site_open(!memory, 0, 1);
        const uint32_t kinds[] = {KVT_REQUEST_PUT, KVT_REQUEST_EXISTS, KVT_REQUEST_TOUCH,
                                  KVT_REQUEST_GET, KVT_REQUEST_DELETE};
        for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            kvt_request request = request_of(kinds[i], 1);
            kvt_completion done = {.struct_size = sizeof done};
            bool read = kinds[i] == KVT_REQUEST_GET, missed = read && !memory;
            request.deadline_ns = i % 2;
            if (kinds[i] == KVT_REQUEST_PUT) support_fill(1, buffers + SUPPORT_ENTRY_BYTES);
            if (read && memory) assert_ok(kvt_store_flush(store));
            assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
            assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
            assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
            assert_int_equal(done.status, missed ? KVT_MISS : KVT_OK);
            assert_int_equal(done.timed_out, missed);
        }
        kvt_queue_stats stats = queue_site_stats();
        assert_int_equal(stats.device_reads, 0);
        queue_site_close(NULL);
    }
}

/* A close in the middle, of the queue or of the store, ends everything. */
TEST(close_with_reads_in_flight)
{
    for (int which = 0; which < 2; which++) {
        queue_site_open(true, 8, 2);
        queue_site_fault((tiers_fault_rule){
            .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = SECOND_NS / 10});
        kvt_request requests[16];
        for (uint32_t i = 0; i < 16; i++)
            requests[i] = request_of(i < 8 ? KVT_REQUEST_GET : KVT_REQUEST_EXISTS, i % 8);
        assert_ok(kvt_queue_submit(queue, requests, 16, NULL));
        if (which == 1) {
            kvt_store_close(store);
            store = NULL;
            assert_int_equal(kvt_queue_submit(queue, requests, 1, NULL), KVT_E_STATE);
        }
        queue_site_close(NULL);
    }
}

/* Gets of one entry share its read, and each of them has all bytes. */
TEST(joined_reads)
{
    queue_site_open(true, 0, 2);
    assert_ok(support_put(store, 3));
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = SECOND_NS / 20});
    kvt_request requests[32];
    kvt_status statuses[MANY];
    static kvt_view own[32];
    memset(buffers, 0xee, (size_t)MANY * SUPPORT_ENTRY_BYTES);
    for (uint32_t i = 0; i < 32; i++) {
        requests[i] = request_of(KVT_REQUEST_GET, 3);
        own[i] = kvt_view_packed(buffers + (size_t)i * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES);
        requests[i].view = &own[i];
    }
    tiers_fault_counts before, after;
    tiers_fault_counts_get(fault.device, &before);
    assert_ok(kvt_queue_submit(queue, requests, 32, NULL));
    drain_all(32, statuses, NULL);
    tiers_fault_counts_get(fault.device, &after);
    expect_all(statuses, 32, KVT_OK);
    assert_int_equal(after.reads - before.reads, 1);
    static char expected[SUPPORT_ENTRY_BYTES];
    support_fill(3, expected);
    for (uint32_t i = 0; i < 32; i++)
        assert_memory_equal(buffers + (size_t)i * SUPPORT_ENTRY_BYTES, expected, sizeof expected);
}

/* More gets at once than staging holds: all of them come in the end. */
TEST(little_staging)
{
    kvt_store_options options = queue_site_options(true);
    options.limits.staging_bytes = 1 << 20;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    support_puts(store, 0, MANY);
    queue = queue_site_queue(1, 0);
    kvt_status statuses[MANY];
    run(KVT_REQUEST_GET, 0, MANY, statuses);
    expect_all(statuses, MANY, KVT_OK);
    expect_bytes(0, MANY);
}

/* A flipped bit is a miss of its own entry, and of no other. */
TEST(damage_stays_with_its_entry)
{
    queue_site_open(true, 8, 1);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                        .kinds = TIERS_FAULT_READS,
                                        .skip = 2,
                                        .hits = 1,
                                        .flip_bit = 100000});
    kvt_status statuses[MANY];
    run(KVT_REQUEST_GET, 0, 8, statuses);
    uint32_t misses = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if (statuses[i] == KVT_MISS)
            misses++;
        else
            assert_ok(statuses[i]);
    }
    assert_int_equal(misses, 1);
}

enum { BLOCK_TOKENS = 16, BLOCKS = 64, PAGED = 24 };

#define BLOCK_BYTES ((size_t)BLOCK_TOKENS * 2 * 2 * 64 * 2)
#define POOL_BYTES  (2 * BLOCKS * BLOCK_BYTES)

/* One layer alone, and layers that the entry does not have; then the second one of two views that
 * share a block. */
static void paged_parts(kvt_request *requests, char *pool, const char *before,
                        uint32_t blocks[PAGED][2])
{
    kvt_status statuses[MANY];
    memset(pool, 0, POOL_BYTES);
    requests[0].first_layer = 1;
    requests[0].layer_count = 1;
    requests[1].first_layer = 2;
    requests[2].layer_count = 3;
    assert_ok(kvt_queue_submit(queue, requests, 3, NULL));
    drain_all(3, statuses, NULL);
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_ARGUMENT);
    assert_int_equal(statuses[2], KVT_E_ARGUMENT);
    const size_t layer_bytes = POOL_BYTES / 2;
    for (size_t at = 0; at < layer_bytes; at++)
        assert_int_equal(pool[at], 0);
    const size_t block = blocks[0][0] * BLOCK_BYTES;
    assert_memory_equal(pool + layer_bytes + block, before + layer_bytes + block, BLOCK_BYTES);
    requests[0].first_layer = requests[1].first_layer = 0;
    requests[0].layer_count = requests[2].layer_count = 0;
    blocks[1][1] = blocks[0][0];
    assert_ok(kvt_queue_submit(queue, requests, 3, NULL));
    drain_all(3, statuses, NULL);
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_ARGUMENT);
    assert_ok(statuses[2]);
}

/* Entries in one paged pool, by batches; and what would be written twice. */
TEST(paged_views)
{
    static const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32};
    char *pool = test_alloc(POOL_BYTES);
    queue_site_open(false, 0, 2);
    kvt_view paged[PAGED];
    uint32_t blocks[PAGED][2];
    kvt_request requests[PAGED];
    kvt_status statuses[MANY];
    for (uint32_t i = 0; i < PAGED; i++) {
        assert_ok(kvt_view_make(&layout, "lbths", BLOCK_TOKENS, BLOCKS, &paged[i]));
        blocks[i][0] = i * 7 % BLOCKS; /* 7 and 64 have no common factor */
        blocks[i][1] = (i + 32) * 7 % BLOCKS;
        paged[i].base[0] = pool;
        paged[i].blocks = blocks[i];
        paged[i].block_count = 2;
        requests[i] = request_of(KVT_REQUEST_PUT, i);
        requests[i].view = &paged[i];
    }
    for (size_t i = 0; i < POOL_BYTES; i++)
        pool[i] = (char)(i * 31 >> 3);
    char *before = test_alloc(POOL_BYTES);
    memcpy(before, pool, POOL_BYTES);
    assert_ok(kvt_queue_submit(queue, requests, PAGED, NULL));
    drain_all(PAGED, statuses, NULL);
    expect_all(statuses, PAGED, KVT_OK);
    assert_ok(kvt_store_flush(store));
    memset(pool, 0, POOL_BYTES);
    for (uint32_t i = 0; i < PAGED; i++) {
        requests[i] = request_of(KVT_REQUEST_GET, i);
        requests[i].view = &paged[i];
    }
    assert_ok(kvt_queue_submit(queue, requests, PAGED, NULL));
    drain_all(PAGED, statuses, NULL);
    expect_all(statuses, PAGED, KVT_OK);
    /* What no view names stays zero. */
    bool used[BLOCKS] = {false};
    for (uint32_t i = 0; i < PAGED; i++)
        used[blocks[i][0]] = used[blocks[i][1]] = true;
    for (size_t at = 0; at < POOL_BYTES; at++) {
        bool named = used[at / BLOCK_BYTES % BLOCKS];
        if (pool[at] != (named ? before[at] : 0)) fail_msg("byte %zu", at);
    }
    paged_parts(requests, pool, before, blocks);
}

TEST(runs_that_meet)
{
    queue_site_open(false, 0, 1);
    kvt_status statuses[MANY];
    kvt_request requests[3];
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(support_put(store, i));
        requests[i] = request_of(KVT_REQUEST_GET, i);
    }
    views[1].base[0] = buffers + 4096; /* into the first one's */
    assert_ok(kvt_queue_submit(queue, requests, 3, NULL));
    drain_all(3, statuses, NULL);
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_ARGUMENT);
    assert_ok(statuses[2]);
}

/* The stored run comes at once into views; what is missing or unsound ends it. */
TEST(get_prefix)
{
    queue_site_open(true, 0, 0);
    const kvt_view *pointers[MANY];
    kvt_key keys[MANY];
    size_t loaded = 99;
    for (uint32_t i = 0; i < MANY; i++) {
        (void)request_of(KVT_REQUEST_GET, i);
        keys[i] = support_key(i);
        pointers[i] = &views[i];
        if (i != 150) assert_ok(support_put(store, i));
    }
    memset(buffers, 0xee, (size_t)MANY * SUPPORT_ENTRY_BYTES);
    assert_ok(kvt_prefix_get(store, keys, pointers, MANY, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, 150);
    expect_bytes(0, 150);
    assert_int_equal((unsigned char)buffers[150 * SUPPORT_ENTRY_BYTES], 0xee);
    views[20].base_bytes[0] = 64;
    assert_int_equal(kvt_prefix_get(store, keys, pointers, MANY, KVT_NO_DEADLINE, &loaded),
                     KVT_E_ARGUMENT);
    assert_int_equal(loaded, 20);
    queue_site_fault(
        (tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .skip = 5});
    uint64_t soon_ns = base_clock_ns() + SECOND_NS / 20;
    assert_ok(kvt_prefix_get(store, keys, pointers, 10, soon_ns, &loaded));
    assert_int_equal(loaded, 5);
    tiers_fault_clear(fault.device);
    assert_ok(kvt_prefix_get(store, &keys[150], pointers, 5, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, 0);
    assert_ok(kvt_prefix_get(store, NULL, NULL, 0, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(kvt_prefix_get(store, keys, NULL, 1, KVT_NO_DEADLINE, &loaded),
                     KVT_E_ARGUMENT);
}

/* A delete waits for the get of its entry, whose read lands meanwhile: the get must have a thread
 * to end on. */
TEST(a_delete_behind_its_get)
{
    queue_site_open(true, 0, 1);
    kvt_queue *queues[2] = {queue, queue_site_queue(1, 0)};
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = 2000000});
    for (uint32_t round = 0; round < 20; round++) {
        kvt_request requests[2][2];
        kvt_status statuses[MANY];
        for (uint32_t i = 0; i < 2; i++) {
            assert_ok(support_put(store, i));
            requests[i][0] = request_of(KVT_REQUEST_GET, i);
        }
        for (uint32_t i = 0; i < 2; i++) {
            requests[i][1] = request_of(KVT_REQUEST_DELETE, round % 2 == 0 ? i : 1 - i);
            assert_ok(kvt_queue_submit(queues[i], requests[i], 2, NULL));
        }
        for (uint32_t i = 0; i < 2; i++) {
            queue = queues[i];
            drain_all(2, statuses, NULL);
            assert_true(statuses[0] == KVT_OK || statuses[0] == KVT_MISS);
            assert_ok(statuses[1]);
        }
    }
    kvt_queue_close(queues[1]);
    queue = queues[0];
}

/* What this library does not know of a longer request is refused, and its user word comes back. */
TEST(the_user_word_of_an_unsound_request)
{
    struct {
        kvt_request known;
        uint64_t later;
    } longer[2];
    queue_site_open(false, 0, 1);
    for (uint32_t i = 0; i < 2; i++) {
        longer[i].known = request_of(KVT_REQUEST_EXISTS, i);
        longer[i].known.struct_size = sizeof longer[i];
        longer[i].later = i;
    }
    assert_ok(kvt_queue_submit(queue, &longer[0].known, 2, NULL));
    kvt_completion done[2] = {{.struct_size = sizeof(kvt_completion)}};
    size_t seen = 0;
    while (seen < 2) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        kvt_completion one = {.struct_size = sizeof one};
        if (kvt_queue_drain(queue, &one, 1) == 0) continue;
        done[one.index] = one;
        seen++;
    }
    assert_int_equal(done[0].status, KVT_MISS);
    assert_int_equal(done[1].status, KVT_E_ARGUMENT);
    assert_int_equal(done[1].user, 1001);
    assert_int_equal(done[1].kind, KVT_REQUEST_EXISTS);
}

/* ---- many threads ---- */

typedef struct pusher {
    kvt_queue *queue;
    uint32_t seed;
    uint64_t accepted;
} pusher;

static void *push(void *argument)
{
    pusher *own = argument;
    static _Thread_local char data[8 * SUPPORT_ENTRY_BYTES];
    kvt_view places[8];
    for (uint32_t i = 0; i < 8; i++)
        places[i] = kvt_view_packed(data + (size_t)i * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES);
    for (uint32_t round = 0; round < 150; round++) {
        kvt_request requests[8];
        for (uint32_t i = 0; i < 8; i++) {
            own->seed = own->seed * 1664525u + 1013904223u;
            requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                        .kind = KVT_REQUEST_EXISTS,
                                        .key = support_key((own->seed >> 8) % 40)};
            requests[i].deadline_ns = KVT_NO_DEADLINE;
            if (own->seed % 4 != 0) continue;
            requests[i].kind = own->seed % 8 != 0 ? KVT_REQUEST_GET : KVT_REQUEST_DELETE;
            requests[i].view = requests[i].kind == KVT_REQUEST_GET ? &places[i] : NULL;
            /* Reads take about as long: some are given up while they arrive. */
            if (own->seed % 3 == 0) requests[i].deadline_ns = base_clock_ns() + 100000;
        }
        uint64_t batch = 0;
        if (kvt_queue_submit(own->queue, requests, 8, &batch) != KVT_OK) continue;
        own->accepted += 8;
        if (round % 5 == 0) (void)!kvt_queue_cancel(own->queue, batch);
        /* The views go with this frame: what the batch borrows is waited for by the drainer. */
        kvt_queue_stats stats = {.struct_size = sizeof stats};
        do {
            if (kvt_queue_stats_get(own->queue, &stats) != KVT_OK) break;
        } while (stats.waiting + stats.begun != 0);
    }
    return NULL;
}

TEST(threads)
{
    queue_site_open(true, 40, 3);
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = 100000});
    pusher pushers[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        pushers[i] = (pusher){.queue = queue, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, push, &pushers[i]), 0);
    }
    kvt_completion done[64] = {{.struct_size = sizeof(kvt_completion)}};
    uint64_t seen = 0, accepted = 0;
    for (uint32_t i = 0; i < 600; i++) {
        (void)!kvt_queue_wait(queue, base_clock_ns() + 1000000);
        seen += kvt_queue_drain(queue, done, 64);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        accepted += pushers[i].accepted;
    }
    size_t got;
    while (kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS) == KVT_OK) {
        got = kvt_queue_drain(queue, done, 64);
        seen += got;
    }
    assert_int_equal(seen, accepted);
}

TEST_BEFORE_ALL
{
    buffers = test_alloc((size_t)MANY * SUPPORT_ENTRY_BYTES);
}

TEST_EACH(NULL, queue_site_close);
