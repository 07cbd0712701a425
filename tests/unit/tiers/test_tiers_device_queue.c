/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_queue.c - what the ring hands to the kernel, and when: never the whole queue in
 * one call; and when the kernel begins to refuse entries, what it did not take is done by blocking
 * calls, once, and stays done.
 *
 * The kernel that refuses is a seccomp filter in a child: it refuses to take two entries at once
 * where nothing is waited for. Each operation reads one byte of a pipe, so that the first one stays
 * in the kernel for as long as the test wants.
 */
#include "device_scratch.h"
#include "tiers/devices/device_queue.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { OPERATIONS = 3, NOT_HERE = 77 };

static uint32_t runs;
static int pipe_end = -1; /* where a blocking call reads, unless -1 */

static void pipe_run(kvt_device *device, kvt_io *io, uint32_t moved)
{
    (void)device;
    (void)moved;
    runs++;
    if (pipe_end >= 0) assert_int_equal(read(pipe_end, io->buffer, 1), 1);
    tiers_io_finish(io, KVT_OK, 0, 0);
}

static void pipe_prepare(kvt_device *device, struct io_uring_sqe *entry, const kvt_io *io,
                         uint32_t moved, int buffer_index)
{
    (void)device;
    (void)moved;
    (void)buffer_index;
    io_uring_prep_rw(IORING_OP_READ, entry, -1, io->buffer, 1, 0);
}

static bool pipe_settle(kvt_device *device, kvt_io *io, int32_t result, uint32_t *moved)
{
    (void)device;
    (void)moved;
    tiers_io_finish(io, result == 1 ? KVT_OK : KVT_E_IO, 0, 0);
    return true;
}

static const tiers_queue_calls pipe_calls = {.names = {"pipe", "pipe", "pipe"},
                                             .run = pipe_run,
                                             .prepare = pipe_prepare,
                                             .settle = pipe_settle};

static bool refuse_two_at_once(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, IORING_ENTER_EXT_ARG, 3, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The exit status: 0, NOT_HERE without io_uring, or the line of what was wrong. */
static int use_refusing_ring(void)
{
    int ends[2];
    tiers_queued queued = {.base = {.facts = {.align_bytes = 1}}};
    kvt_device *device = &queued.base;
    tiers_queue *queue = &queued.queue;
    kvt_io operations[OPERATIONS];
    kvt_io *done[OPERATIONS];
    char bytes[OPERATIONS] = {0};
    if (pipe(ends) != 0) return __LINE__;
    tiers_queued_open(&queued, &pipe_calls, ends[0], &(kvt_device_config){.depth = 8});
    tiers_queued_attach(device);
    if (queue->kind != TIERS_QUEUE_RING || !refuse_two_at_once()) return NOT_HERE;
    for (int i = 0; i < OPERATIONS; i++) {
        operations[i] = (kvt_io){.kind = KVT_IO_READ, .bytes = 1, .buffer = &bytes[i]};
        if (tiers_queued_submit(device, &operations[i]) != KVT_QUEUED) return __LINE__;
        if (i == 0) tiers_queued_flush(device);
    }
    tiers_queued_flush(device); /* refused: the last two are done by calls */
    if (runs != 2) return __LINE__;
    if (tiers_queued_reap(device, done, OPERATIONS, OPERATIONS, 20000000) != 2) return __LINE__;
    /* Their memory may be anything by now: nothing may be read into it. */
    if (write(ends[1], "abc", OPERATIONS) != OPERATIONS) return __LINE__;
    if (tiers_queued_reap(device, done, 1, 1, TIERS_DEVICE_FOREVER) != 1) return __LINE__;
    if (done[0] != &operations[0] || bytes[0] != 'a') return __LINE__;
    (void)tiers_queued_reap(device, done, 0, 1, 0);
    if (bytes[1] != 0 || bytes[2] != 0) return __LINE__;
    tiers_queued_detach(device);
    tiers_queue_close(queue);
    return 0;
}

TEST(refused_entries_are_done_once)
{
    int status = 0;
    runs = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(use_refusing_ring());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_HERE) {
        print_message("skipped: no io_uring here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(no_call_takes_the_whole_queue)
{
    enum { DEPTH = 8 };
    int ends[2];
    tiers_queued queued = {.base = {.facts = {.align_bytes = 1}}};
    kvt_device *device = &queued.base;
    tiers_queue *queue = &queued.queue;
    kvt_io operations[DEPTH];
    kvt_io *done[DEPTH];
    char bytes[DEPTH] = {0};
    assert_int_equal(pipe(ends), 0);
    tiers_queued_open(&queued, &pipe_calls, ends[0], &(kvt_device_config){.depth = DEPTH});
    tiers_queued_attach(device);
    bool ring = queue->kind == TIERS_QUEUE_RING;
    for (uint32_t i = 0; ring && i < DEPTH; i++) {
        operations[i] = (kvt_io){.kind = KVT_IO_READ, .bytes = 1, .buffer = &bytes[i]};
        assert_int_equal(tiers_queued_submit(device, &operations[i]), KVT_QUEUED);
        assert_true(queue->ring.queued_count <= DEPTH / 2);
        assert_int_equal(queue->ring.queued_count + queue->ring.kernel_count, i + 1);
    }
    if (ring) {
        assert_int_equal(write(ends[1], "abcdefgh", DEPTH), DEPTH);
        assert_int_equal(tiers_queued_reap(device, done, DEPTH, DEPTH, TIERS_DEVICE_FOREVER),
                         DEPTH);
    }
    tiers_queued_detach(device);
    tiers_queue_close(queue);
    close(ends[0]);
    close(ends[1]);
    if (ring) return;
    print_message("skipped: no io_uring here\n");
    skip();
}

/* With an operation that does not end; a lost wake ends in the test's time limit. */
static void check_wake(bool synchronous)
{
    int ends[2];
    tiers_queued queued = {.base = {.facts = {.align_bytes = 1}}};
    kvt_device *device = &queued.base;
    tiers_queue *queue = &queued.queue;
    char byte = 0;
    kvt_io operation = {.kind = KVT_IO_READ, .bytes = 1, .buffer = &byte};
    kvt_io *done[1];
    assert_int_equal(pipe(ends), 0);
    pipe_end = ends[0];
    tiers_queued_open(&queued, &pipe_calls, ends[0],
                      &(kvt_device_config){.depth = 8, .synchronous = synchronous});
    tiers_queued_attach(device);
    assert_int_equal(queue->kind == TIERS_QUEUE_INLINE, !device->wakes);
    if (device->wakes) {
        assert_int_equal(tiers_queued_submit(device, &operation), KVT_QUEUED);
        for (int i = 0; i < 3; i++) { /* a wake lasts until the reap that it ends */
            tiers_queued_wake(device);
            assert_int_equal(tiers_queued_reap(device, done, 1, 1, TIERS_DEVICE_FOREVER), 0);
        }
        tiers_queued_wake(device);
        assert_int_equal(write(ends[1], "a", 1), 1);
        while (tiers_queued_reap(device, done, 1, 1, TIERS_DEVICE_FOREVER) == 0)
            continue;
        assert_ptr_equal(done[0], &operation);
        assert_true(device->wakes);
    }
    tiers_queued_detach(device);
    tiers_queue_close(queue);
    close(ends[0]);
    close(ends[1]);
    pipe_end = -1;
}

TEST(a_wake_ends_a_wait)
{
    check_wake(false);
    check_wake(true);
}
