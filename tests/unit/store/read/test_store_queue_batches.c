/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_batches.c - a queue that wakes its owner for whole batches: the descriptor stays
 * still until the last request of a batch has completed, and drains give what there is.
 */
#include "queue_site.h"

#include <poll.h>
#include <unistd.h>

enum { ENTRIES = 4 };

typedef struct site {
    char data[ENTRIES][SUPPORT_ENTRY_BYTES];
    kvt_view views[ENTRIES];
} site;

/* A store with a few entries on a device that answers no read, and a queue on it. */
TEST_BEFORE_ALL
{
    static site s;
    queue_site_open(true, ENTRIES, 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        s.views[i] = kvt_view_packed(s.data[i], SUPPORT_ENTRY_BYTES);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    const kvt_queue_options whole = {.struct_size = sizeof whole, .whole_batches = true};
    assert_ok(kvt_queue_open(store, &whole, &queue));
    *state = &s;
}

static int site_close(void **state)
{
    tiers_fault_clear(fault.device);
    return queue_site_close(state);
}

/* Whether the descriptor becomes readable within so many milliseconds. */
static bool readable(int milliseconds)
{
    struct pollfd one = {.fd = kvt_queue_fd(queue), .events = POLLIN};
    return poll(&one, 1, milliseconds) == 1;
}

/* A batch of one lookup, which completes, and of `gets` gets, which do not. */
static uint64_t submit(site *s, uint32_t gets)
{
    kvt_request requests[1 + ENTRIES];
    uint64_t batch = 0;
    for (uint32_t i = 0; i <= gets; i++)
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = i == 0 ? KVT_REQUEST_EXISTS : KVT_REQUEST_GET,
                                    .key = support_key(i == 0 ? 0 : i - 1),
                                    .view = i == 0 ? NULL : &s->views[i - 1],
                                    .deadline_ns = KVT_NO_DEADLINE,
                                    .user = i};
    assert_ok(kvt_queue_submit(queue, requests, 1 + gets, &batch));
    return batch;
}

/* Waits for `count` completions and takes them; how many of them have this status. */
static uint32_t take(uint32_t count, kvt_status status)
{
    kvt_completion done[8] = {{.struct_size = sizeof done[0]}};
    uint32_t seen = 0, equal = 0;
    while (seen < count) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        size_t got = kvt_queue_drain(queue, done, 8);
        for (size_t i = 0; i < got; i++)
            equal += done[i].status == status;
        seen += (uint32_t)got;
    }
    assert_int_equal(seen, count);
    return equal;
}

TEST_ALL(NULL, site_close);

TEST(a_batch_wakes_when_it_is_whole)
{
    site *s = *state;
    const uint64_t batch = submit(s, 2);
    assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
    assert_false(readable(20)); /* the lookup has completed, the gets have not */
    assert_int_equal(take(1, KVT_OK), 1);
    assert_int_equal(queue_site_stats().wakes, 0);
    assert_ok(kvt_queue_cancel(queue, batch));
    assert_true(readable(60000));
    assert_int_equal(take(2, KVT_E_CANCELLED), 2);
    assert_false(readable(0));
    assert_int_equal(queue_site_stats().wakes, 1);
}

/* A drain takes completions of a batch that is not whole, and its last one still wakes. */
TEST(a_batch_beside_one_that_waits)
{
    site *s = *state;
    const uint64_t before = queue_site_stats().wakes, waiting = submit(s, 1);
    (void)submit(s, 0);
    assert_true(readable(60000));
    assert_int_equal(take(2, KVT_OK), 2);
    assert_false(readable(0));
    assert_ok(kvt_queue_cancel(queue, waiting));
    assert_true(readable(60000));
    assert_int_equal(take(1, KVT_E_CANCELLED), 1);
    assert_int_equal(queue_site_stats().wakes, before + 2);
}

/* A loop that reads the descriptor by itself finds it readable again for the next batch. */
TEST(the_reader_may_clear_the_descriptor)
{
    site *s = *state;
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t count = 0;
        (void)submit(s, 0);
        assert_true(readable(60000));
        assert_int_equal(read(kvt_queue_fd(queue), &count, sizeof count), sizeof count);
        assert_int_equal(take(1, KVT_OK), 1);
        assert_false(readable(0));
    }
    kvt_request unsound = {.struct_size = sizeof unsound, .kind = 99};
    assert_ok(kvt_queue_submit(queue, &unsound, 1, NULL));
    assert_true(readable(0)); /* it completes with its submit */
    assert_int_equal(take(1, KVT_E_ARGUMENT), 1);
    assert_ok(kvt_queue_submit(queue, NULL, 0, NULL));
    assert_false(readable(0));
}
