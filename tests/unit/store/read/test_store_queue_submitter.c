/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_submitter.c - a queue whose submitter waits: no thread is woken for gets before
 * kvt_queue_wait, which carries them out, and threads get all that it leaves.
 */
#include "queue_site.h"

#include <poll.h>

enum { ENTRIES = 8 };

static char data[ENTRIES][SUPPORT_ENTRY_BYTES];
static kvt_view views[ENTRIES];

TEST_EACH(NULL, queue_site_close);

static void site_open(bool device)
{
    queue_site_open(device, ENTRIES, 0);
    const kvt_queue_options options = {.struct_size = sizeof options, .submitter_waits = true};
    assert_ok(kvt_queue_open(store, &options, &queue));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        memset(data[i], 0, sizeof data[i]);
        views[i] = kvt_view_packed(data[i], SUPPORT_ENTRY_BYTES);
    }
}

static void submit(uint32_t kind, uint32_t first, uint32_t count)
{
    kvt_request requests[ENTRIES];
    for (uint32_t i = 0; i < count; i++)
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = kind,
                                    .key = support_key(first + i),
                                    .view = kind == KVT_REQUEST_GET ? &views[first + i] : NULL,
                                    .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(kvt_queue_submit(queue, requests, count, NULL));
}

/* Whether a completion is there within so many milliseconds, without a wait by the queue's call. */
static bool completes(int milliseconds)
{
    struct pollfd one = {.fd = kvt_queue_fd(queue), .events = POLLIN};
    return poll(&one, 1, milliseconds) == 1;
}

static void take(uint32_t count)
{
    kvt_completion done[ENTRIES] = {{.struct_size = sizeof done[0]}};
    for (uint32_t seen = 0; seen < count;) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        const size_t got = kvt_queue_drain(queue, done, ENTRIES);
        for (size_t i = 0; i < got; i++)
            assert_ok(done[i].status);
        seen += (uint32_t)got;
    }
    assert_int_equal(kvt_queue_wait(queue, 0), KVT_END);
}

/* Submits gets until no thread has taken them: threads that start find work without being woken. */
static void submit_unseen(uint32_t count)
{
    for (int tries = 0; tries < 100; tries++) {
        submit(KVT_REQUEST_GET, 0, count);
        if (!completes(50)) return;
        take(count);
    }
    fail_msg("threads are woken for gets that their submitter is to carry out");
}

TEST(the_submitter_carries_gets_out)
{
    site_open(false);
    submit_unseen(1);
    memset(data[0], 0, sizeof data[0]);
    take(1);
    for (uint32_t i = 0; i < SUPPORT_ENTRY_BYTES && data[0][i] == 0; i++)
        assert_true(i + 1 < SUPPORT_ENTRY_BYTES); /* the entry has come */
}

TEST(lookups_are_left_to_threads)
{
    site_open(false);
    submit(KVT_REQUEST_EXISTS, 0, 3);
    submit(KVT_REQUEST_TOUCH, 3, 3);
    take(6);
}

/* A wait whose time is over wakes threads for what it has not begun. */
TEST(a_wait_that_ends_leaves_gets_to_threads)
{
    site_open(false);
    submit_unseen(ENTRIES);
    assert_int_equal(kvt_queue_wait(queue, 1), KVT_E_TIMEOUT);
    assert_true(completes(10000));
    take(ENTRIES);
}

/* A wait begins 32 requests at once. Threads have the others meanwhile, without a wait. */
TEST(threads_have_what_a_wait_does_not_begin)
{
    kvt_request requests[33];
    site_open(false);
    for (uint32_t i = 0; i < 33; i++)
        requests[i] = (kvt_request){
            .struct_size = sizeof requests[i], .kind = KVT_REQUEST_EXISTS, .key = support_key(0)};
    assert_ok(kvt_queue_submit(queue, requests, 33, NULL));
    assert_true(completes(60000));
    take(33);
}

/* While a read is under way the submitter begins nothing, so threads must. */
TEST(requests_behind_a_read_are_left_to_threads)
{
    site_open(true);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    submit(KVT_REQUEST_GET, 0, 1);
    assert_int_equal(kvt_queue_wait(queue, base_clock_ns() + SECOND_NS / 20), KVT_E_TIMEOUT);
    submit(KVT_REQUEST_TOUCH, 1, 2);
    kvt_completion done[2] = {{.struct_size = sizeof done[0]}};
    for (size_t seen = 0; seen < 2; seen += kvt_queue_drain(queue, done, 2))
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
    tiers_fault_clear(fault.device);
    kvt_queue_close(queue);
    queue = NULL;
}
