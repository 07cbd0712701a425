/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_shares.c - batches of large entries in memory, of which each thread decodes a
 * share: every get completes once with its own bytes, a small one does not wait for all of them,
 * and cancels and closes come in between.
 */
#include "codecs/view_rows.h"
#include "store_support.h"

#include "base/clock.h"
#include "store/read/queue_internal.h"

#include <kvterrace/queue.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

enum { LARGE = 192, SMALL = LARGE, ALL = LARGE + 1 };

#define LARGE_BYTES (UINT64_C(128) << 10)
#define SMALL_BYTES UINT64_C(4096)
#define SECOND_NS   UINT64_C(1000000000)

typedef struct site {
    kvt_store *store;
    char *data; /* ALL places of LARGE_BYTES */
    kvt_view views[ALL];
    uint32_t seen[ALL];   /* completions of each, */
    uint32_t place[ALL];  /* the last one's number, */
    kvt_status last[ALL]; /* and its status */
    uint32_t total;
} site;

static uint64_t bytes_of(uint32_t number)
{
    return number == SMALL ? SMALL_BYTES : LARGE_BYTES;
}

static kvt_layout layout_of(uint32_t number)
{
    return (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .tokens = 1, .opaque_bytes = bytes_of(number)};
}

static char *place_of(site *s, uint32_t number)
{
    return s->data + number * LARGE_BYTES;
}

/* Bytes that no two entries share, and no two places of one. */
static void fill(uint32_t number, char *at)
{
    uint64_t state = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < bytes_of(number); i += sizeof state) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        memcpy(at + i, &state, sizeof state);
    }
}

TEST_BEFORE_EACH
{
    static site s;
    kvt_store_options options;
    s = (site){0};
    kvt_store_options_init(&options);
    options.limits.staging_bytes = 16 << 20;
    options.policy = "lru";
    options.limits.tick_seconds = 0;
    options.lossless = false;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    assert_ok(kvt_store_open(&options, &s.store, NULL, 0));
    s.data = test_alloc(ALL * LARGE_BYTES);
    for (uint32_t i = 0; i < ALL; i++) {
        const kvt_entry entry = support_entry(support_key(i), layout_of(i), 1);
        fill(i, place_of(&s, i));
        assert_ok(kvt_store_put(s.store, &entry, KVT_PACKED(place_of(&s, i), bytes_of(i))));
        assert_ok(kvt_store_flush(s.store));
    }
    memset(s.data, 0xee, ALL * LARGE_BYTES);
    *state = &s;
}

TEST_AFTER_EACH
{
    site *s = *state;
    kvt_store_close(s->store);
}

static kvt_queue *open_queue(site *s, uint32_t threads)
{
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = threads};
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(s->store, &options, &queue));
    return queue;
}

/* Submits gets of the first `count` entries as one batch. */
static uint64_t submit(site *s, kvt_queue *queue, uint32_t count)
{
    kvt_request requests[ALL];
    uint64_t batch = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kvt_layout layout = layout_of(i);
        s->views[i] = codecs_packed_view(&layout, place_of(s, i));
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = support_key(i),
                                    .view = &s->views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    assert_ok(kvt_queue_submit(queue, requests, count, &batch));
    return batch;
}

static void drain(site *s, kvt_queue *queue)
{
    kvt_completion done[8] = {{.struct_size = sizeof(kvt_completion)}};
    size_t got;
    while ((got = kvt_queue_drain(queue, done, 8)) != 0)
        for (size_t i = 0; i < got; i++) {
            const uint32_t index = done[i].index;
            s->seen[index]++;
            s->place[index] = s->total++;
            s->last[index] = done[i].status;
        }
}

/* Drains until so many completions have come. helps: by kvt_queue_wait, whose caller decodes too;
 * else by the descriptor, so that the queue's threads do all of it. */
static void await(site *s, kvt_queue *queue, uint32_t count, bool helps)
{
    struct pollfd watch = {.fd = kvt_queue_fd(queue), .events = POLLIN};
    while (s->total < count) {
        if (helps)
            assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        else
            assert_int_equal(poll(&watch, 1, 60000), 1);
        drain(s, queue);
    }
    assert_int_equal(s->total, count);
}

static void expect(site *s, uint32_t count)
{
    static char wanted[LARGE_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(s->seen[i], 1);
        assert_ok(s->last[i]);
        fill(i, wanted);
        assert_memory_equal(place_of(s, i), wanted, bytes_of(i));
    }
}

TEST(a_batch_of_large_entries)
{
    site *s = *state;
    for (uint32_t threads = 1; threads <= 4; threads++)
        for (int helps = 0; helps < 2; helps++) {
            kvt_queue *queue = open_queue(s, threads);
            memset(s->seen, 0, sizeof s->seen);
            memset(s->data, 0xee, ALL * LARGE_BYTES);
            s->total = 0;
            (void)submit(s, queue, ALL);
            await(s, queue, ALL, helps);
            expect(s, ALL);
            assert_int_equal(kvt_queue_wait(queue, 0), KVT_END);
            kvt_queue_close(queue);
        }
}

/* The small get comes behind three chunks of others, which a thread and the spare one begin. Where
 * the system stops the thread that holds the small get, any number of them passes it, so the best
 * of many rounds counts: a queue that decodes all shares first is late in each. */
TEST(a_small_get_waits_for_one_share)
{
    site *s = *state;
    const uint32_t share = (UINT32_C(1) << 20) / LARGE_BYTES;
    uint32_t best = ALL;
    kvt_queue *queue = open_queue(s, 1);
    for (uint32_t round = 0; round < 100 && best > 8 * share; round++) {
        memset(s->seen, 0, sizeof s->seen);
        s->total = 0;
        (void)submit(s, queue, ALL);
        await(s, queue, ALL, false);
        expect(s, ALL);
        if (s->place[SMALL] < best) best = s->place[SMALL];
    }
    assert_true(best <= 8 * share);
    kvt_queue_close(queue);
}

TEST(a_cancel_in_between)
{
    site *s = *state;
    kvt_queue *queue = open_queue(s, 2);
    for (uint32_t round = 0; round < 20; round++) {
        memset(s->seen, 0, sizeof s->seen);
        s->total = 0;
        const uint64_t batch = submit(s, queue, LARGE);
        if (round % 2 == 1) {
            assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
            drain(s, queue);
        }
        (void)!kvt_queue_cancel(queue, batch);
        while (s->total < LARGE) {
            assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
            drain(s, queue);
        }
        for (uint32_t i = 0; i < LARGE; i++) {
            assert_int_equal(s->seen[i], 1);
            assert_true(s->last[i] == KVT_OK || s->last[i] == KVT_E_CANCELLED);
        }
    }
    kvt_queue_close(queue);
}

/* What a close leaves undone touches no memory afterwards: the sanitizers see the free. */
TEST(a_close_in_between)
{
    site *s = *state;
    for (uint32_t round = 0; round < 20; round++) {
        kvt_queue *queue = open_queue(s, 1 + round % 3);
        (void)submit(s, queue, LARGE);
        kvt_queue_close(queue);
        s->data = test_alloc(ALL * LARGE_BYTES);
    }
}

static void *wait_and_drain(void *argument)
{
    kvt_queue *queue = argument;
    kvt_completion done[4] = {{.struct_size = sizeof(kvt_completion)}};
    uintptr_t count = 0;
    while (kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS) == KVT_OK)
        count += kvt_queue_drain(queue, done, 4);
    return (void *)count;
}

/* Several callers wait at one queue, and each may take a share of what another one has begun. */
TEST(callers_that_help_each_other)
{
    site *s = *state;
    enum { CALLERS = 4 };
    pthread_t callers[CALLERS];
    uintptr_t sum = 0;
    kvt_queue *queue = open_queue(s, 1);
    (void)submit(s, queue, ALL);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, wait_and_drain, queue), 0);
    for (int i = 0; i < CALLERS; i++) {
        void *count;
        pthread_join(callers[i], &count);
        sum += (uintptr_t)count;
    }
    assert_int_equal(sum, ALL);
    kvt_queue_close(queue);
}

/* What a thread of a queue with two threads keeps of gets of so many bytes each, when so many
 * threads decode; *listed_out: how many it hands on. */
static uint32_t kept_of(const uint64_t *bytes, uint32_t count, uint32_t decoders, bool *decodes,
                        uint32_t *listed_out)
{
    queue_item some[8], *items[8];
    kvt_queue *queue = test_zeros(sizeof *queue);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->work, NULL);
    queue->thread_count = 2;
    queue->decoders = decoders;
    for (uint32_t i = 0; i < count; i++) {
        items[i] = &some[i];
        some[i] = (queue_item){.state = QUEUE_BEGUN};
        some[i].get.target.bytes = bytes[i];
    }
    const uint32_t kept = queue_hand_on(queue, items, count, decodes);
    *listed_out = queue->shares.count;
    assert_int_equal(queue->decoders, decoders + *decodes);
    for (uint32_t i = kept; i < count; i++)
        assert_ptr_equal(queue_take(&queue->shares), items[i]);
    if (*decodes) queue_end_share(queue);
    assert_int_equal(queue->decoders, decoders);
    pthread_cond_destroy(&queue->work);
    pthread_mutex_destroy(&queue->lock);
    return kept;
}

/* A thread that begins a batch decodes an entry larger than a share itself only while another one
 * stays free for requests; a waiting caller always does. */
TEST_WITH(NULL, NULL, one_thread_stays_free)
{
    const uint64_t large[] = {4 << 20, 4 << 20, 4 << 20}, few[] = {4096, 4096, 4096};
    const uint64_t mixed[] = {4096, 4096, 4 << 20};
    const struct {
        const uint64_t *bytes;
        uint32_t decoders;
        bool threads;
        uint32_t kept;
        bool decodes;
    } cases[] = {
        {large, 0, true, 1, true},  {large, 1, true, 0, false}, {large, 1, false, 1, false},
        {few, 0, true, 3, false},   {few, 1, true, 3, false},   {few, 1, false, 3, false},
        {mixed, 0, true, 2, false}, {mixed, 1, true, 2, false}, {mixed, 1, false, 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool decodes = cases[i].threads;
        uint32_t listed;
        const uint32_t kept = kept_of(cases[i].bytes, 3, cases[i].decoders, &decodes, &listed);
        assert_int_equal(kept, cases[i].kept);
        assert_int_equal(decodes, cases[i].decodes);
        assert_int_equal(listed, 3 - cases[i].kept);
    }
    bool decodes = true;
    uint32_t listed;
    assert_int_equal(kept_of(large, 1, 1, &decodes, &listed), 0); /* one alone, too */
    assert_int_equal(listed, 1);
}
