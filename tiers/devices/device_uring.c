/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_uring.c - operations in flight through an io_uring ring.
 *
 *     submit -> queued (submission queue) -> kernel -> completion queue -> reap
 *                  ^                                        |
 *                  +------ short transfer, EAGAIN ----------+
 *
 * The ring has at least as many entries as operations can be in flight, so neither queue can
 * overflow. One system call per round submits what was queued and waits for completions, but no
 * call submits more than half of the depth: the block layer merges neighbours of one call into one
 * request, and a drive whose whole queue is one request has nothing to do from its completion until
 * the thread has woken and submitted again.
 *
 * Ring flags: only what liburing's own headers define. An unknown one, NO_SQARRAY with liburing
 * 2.3, lets the library write over the kernel's ring heads, and the thread then spins in the kernel
 * for good. DEFER_TASKRUN runs completions in the thread that waits for them, when it waits; where
 * it is refused, COOP_TASKRUN at least spares it interrupts. With TASKRUN_FLAG a look at the
 * completion queue enters the kernel only when work waits there. IOPOLL stays off: it fails at the
 * first read on most drives. SQPOLL stays off: it takes a core.
 *
 * Another thread wakes the one that waits through an eventfd, which the ring polls as long as it is
 * enabled: an entry without an operation (user data 0), made before all others. It is written only
 * for that and never read, so each write is one completion.
 *
 * A buffer is the kernel's until its completion was seen. Nothing here cancels or times out.
 *
 * Thread rule: as device_ops.h; open and register before enable, on any thread.
 */
#include "base/clock.h"
#include "device_queue.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Completions are taken in batches. A refusal is tried again after a millisecond, and for five
 * seconds before the ring is given up. */
enum { RING_BATCH = 32, RING_RETRY_NS = 1000000, RING_REFUSALS_MAX = 5000 };

/* Flags from the best to the least. A kernel that does not know one of a set refuses the whole
 * set. */
static const unsigned ring_flag_sets[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    0,
};

/* The ring has one entry more than the depth, for the poll of the wake. Registering the file spares
 * the kernel a look-up per operation; a refusal costs no more than that. */
bool tiers_ring_open(tiers_queue *queue)
{
    tiers_ring *ring = &queue->ring;
    memset(ring, 0, sizeof *ring);
    ring->wake_fd = -1;
    int refused = -1;
    const unsigned width = queue->calls->wide ? IORING_SETUP_SQE128 | IORING_SETUP_CQE32 : 0;
    for (size_t i = 0; i < sizeof ring_flag_sets / sizeof ring_flag_sets[0] && refused != 0; i++) {
        struct io_uring_params params = {.flags =
                                             ring_flag_sets[i] | width | IORING_SETUP_R_DISABLED};
        refused = io_uring_queue_init_params(queue->depth + 1, &ring->uring, &params);
        if (refused == 0 && (params.features & IORING_FEAT_EXT_ARG) == 0) {
            /* Without it every wait with a timeout would cost an entry of the queue. */
            io_uring_queue_exit(&ring->uring);
            return false;
        }
    }
    if (refused != 0) return false;
    ring->open = true;
    ring->fixed_file = io_uring_register_files(&ring->uring, &queue->fd, 1) == 0;
    (void)tiers_ring_register(queue);
    return true;
}

/* A zeroed entry; in a wide ring it is two of the common size. The kernel reads every byte of an
 * entry, so none may be left over from an earlier one. */
static struct io_uring_sqe *ring_get_entry(tiers_queue *queue)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&queue->ring.uring);
    assert(entry != NULL); /* at most `depth` operations exist, and each has at most one entry */
    memset((void *)entry, 0, queue->calls->wide ? 2 * sizeof *entry : sizeof *entry);
    return entry;
}

/* Lets the ring poll an eventfd. A kernel that cannot poll again and again says so in the entry's
 * completion. False when the ring takes nothing. Without an eventfd the ring works and cannot be
 * woken. */
static bool ring_arm_wake(tiers_queue *queue)
{
    tiers_ring *ring = &queue->ring;
    ring->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->wake_fd < 0) return true;
    struct io_uring_sqe *entry = ring_get_entry(queue);
    io_uring_prep_poll_multishot(entry, ring->wake_fd, POLLIN);
    io_uring_sqe_set_data(entry, NULL);
    queue->device->wakes = io_uring_submit(&ring->uring) == 1;
    return queue->device->wakes;
}

bool tiers_ring_enable(tiers_queue *queue)
{
    /* liburing declares a function for it, which its shared library exports only from 2.4 on. */
    long refused = syscall(SYS_io_uring_register, queue->ring.uring.ring_fd,
                           IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    if (refused == 0 && ring_arm_wake(queue)) return true;
    tiers_ring_close(queue);
    return false;
}

void tiers_ring_close(tiers_queue *queue)
{
    tiers_ring *ring = &queue->ring;
    /* A ring is torn down in the background and would hold the file, its lock, and the locked
     * memory meanwhile. */
    if (ring->fixed_buffers) (void)io_uring_unregister_buffers(&ring->uring);
    if (ring->fixed_file) (void)io_uring_unregister_files(&ring->uring);
    io_uring_queue_exit(&ring->uring);
    if (ring->wake_fd >= 0) close(ring->wake_fd);
    ring->wake_fd = -1;
    ring->open = false;
    ring->fixed_buffers = false;
}

/* Regions of before are forgotten either way. A kernel that refuses them leaves a ring that pins
 * pages per transfer. */
bool tiers_ring_register(tiers_queue *queue)
{
    tiers_ring *ring = &queue->ring;
    if (ring->fixed_buffers) (void)io_uring_unregister_buffers(&ring->uring);
    ring->fixed_buffers = false;
    if (queue->region_count == 0) return true;
    struct iovec *vectors = calloc(queue->region_count, sizeof *vectors);
    if (vectors == NULL) return false;
    for (uint32_t i = 0; i < queue->region_count; i++)
        vectors[i] = (struct iovec){queue->regions[i].memory, queue->regions[i].bytes};
    int refused = io_uring_register_buffers(&ring->uring, vectors, queue->region_count);
    free(vectors);
    ring->fixed_buffers = refused == 0;
    return ring->fixed_buffers;
}

/* The registered region around a transfer, or -1; regions are sorted. A transfer that crosses the
 * border of two regions has none. */
static int ring_find_region(const tiers_queue *queue, const void *buffer, uint32_t bytes)
{
    if (!queue->ring.fixed_buffers) return -1;
    uintptr_t at = (uintptr_t)buffer;
    uint32_t low = 0;
    uint32_t high = queue->region_count;
    while (low < high) { /* the last region that begins at or before it is at high - 1 */
        uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)queue->regions[middle].memory <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) return -1;
    const kvt_device_region *region = &queue->regions[low - 1];
    uint64_t inside = at - (uintptr_t)region->memory;
    return inside < region->bytes && bytes <= region->bytes - inside ? (int)(low - 1) : -1;
}

/* The bytes of an operation that were moved so far. The upper half counts tries without
 * progress. */
static uint32_t ring_moved(const kvt_io *io)
{
    return (uint32_t)io->device_word;
}

/* Puts the rest of an operation into the submission queue. The operation stays in `queued` until
 * the kernel has taken its entry. */
static void ring_queue(tiers_queue *queue, kvt_io *io)
{
    tiers_ring *ring = &queue->ring;
    struct io_uring_sqe *entry = ring_get_entry(queue);
    uint32_t moved = ring_moved(io);
    char *buffer = (char *)io->buffer + moved;
    queue->calls->prepare(queue->device, entry, io, moved,
                          ring_find_region(queue, buffer, io->bytes - moved));
    entry->fd = ring->fixed_file ? 0 : queue->fd;
    if (ring->fixed_file) entry->flags = (uint8_t)(entry->flags | IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(entry, io);
    tiers_io_list_push(&ring->queued, io);
    ring->queued_count++;
}

/* Books the entries that the kernel has taken, by its own head of the queue. True if it took any.
 * The kernel takes entries in order, so the operations taken are the first of the list. */
static bool ring_book_taken(tiers_ring *ring)
{
    uint32_t left = io_uring_sq_ready(&ring->uring);
    assert(left <= ring->queued_count);
    uint32_t taken = ring->queued_count - left;
    for (uint32_t i = 0; i < taken; i++)
        (void)tiers_io_list_pop(&ring->queued);
    ring->queued_count = left;
    ring->kernel_count += taken;
    if (taken != 0) ring->refusals = 0;
    return taken != 0;
}

/* Decides whether a refusal to take entries is passing, or ends the use of the ring. A positive
 * result without a taken entry counts as passing. */
static void ring_note_refusal(tiers_queue *queue, int result)
{
    tiers_ring *ring = &queue->ring;
    bool passing = result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY ||
                   result == -ETIME;
    /* The kernel is short of memory, or completions must be taken first: the next round tries
     * again. While no operation is in the kernel, none can make room, so such refusals are counted.
     */
    ring->refusals = ring->kernel_count == 0 ? ring->refusals + 1 : 0;
    if (!passing || ring->refusals > RING_REFUSALS_MAX) {
        /* Give the ring up: the kernel refuses to take entries for good. Operations that it did not
         * take are done by blocking calls, as is every later one; operations that it took still
         * complete through the ring. A broken ring stays broken until detach. */
        ring->broken = true;
        ring->queued_count = 0;
        kvt_io *io;
        while ((io = tiers_io_list_pop(&ring->queued)) != NULL) {
            queue->calls->run(queue->device, io, ring_moved(io));
            tiers_io_list_push(&ring->ready, io);
        }
    }
}

void tiers_ring_flush(tiers_queue *queue)
{
    tiers_ring *ring = &queue->ring;
    while (!ring->broken && ring->queued_count != 0) {
        int result = io_uring_submit(&ring->uring);
        if (result == -EINTR || ring_book_taken(ring)) continue;
        ring_note_refusal(queue, result);
        return;
    }
}

/* Half of the depth is the most that one system call submits; the head of this file says why. */
kvt_status tiers_ring_submit(tiers_queue *queue, kvt_io *io)
{
    if (queue->ring.queued_count >= (queue->depth + 1) / 2) tiers_ring_flush(queue);
    if (queue->ring.broken) {
        queue->calls->run(queue->device, io, 0);
        return KVT_OK;
    }
    ring_queue(queue, io);
    return KVT_QUEUED;
}

/* Books a completion. True when the operation is finished; else its rest is queued again. Tries are
 * counted from the last progress, so a slow transfer may take as many steps as it needs. */
static bool ring_settle(tiers_queue *queue, kvt_io *io, int32_t result)
{
    uint32_t before = ring_moved(io);
    uint32_t moved = before;
    uint64_t retries = io->device_word >> 32;
    if (queue->calls->settle(queue->device, io, result, &moved)) return true;
    assert(moved < io->bytes);
    retries = moved > before ? 0 : retries + 1;
    if (retries > TIERS_QUEUE_RETRIES_MAX) {
        tiers_io_finish(io, KVT_E_IO, EIO, base_clock_ns());
        return true;
    }
    io->device_word = retries << 32 | moved;
    if (queue->ring.broken) {
        queue->calls->run(queue->device, io, moved);
        return true;
    }
    ring_queue(queue, io);
    return false;
}

/* Collects the operations that blocking calls finished, then completions of the ring. An operation
 * that was queued again is not handed on. */
static size_t ring_collect(tiers_queue *queue, kvt_io **done, size_t max)
{
    tiers_ring *ring = &queue->ring;
    size_t count = 0;
    while (count < max && ring->ready.head != NULL)
        done[count++] = tiers_io_list_pop(&ring->ready);
    while (count < max) {
        struct io_uring_cqe *cqes[RING_BATCH];
        size_t room = max - count < RING_BATCH ? max - count : RING_BATCH;
        unsigned found = io_uring_peek_batch_cqe(&ring->uring, cqes, (unsigned)room);
        if (found == 0) break;
        for (unsigned i = 0; i < found; i++) {
            kvt_io *io = io_uring_cqe_get_data(cqes[i]);
            if (io == NULL) {
                ring->woken = true; /* by the poll; one that has ended is not armed again, */
                if ((cqes[i]->flags & IORING_CQE_F_MORE) == 0)
                    queue->device->wakes = false; /* and the worker waits in short steps */
                continue;
            }
            assert(ring->kernel_count > 0);
            ring->kernel_count--;
            if (ring_settle(queue, io, cqes[i]->res)) done[count++] = io;
        }
        io_uring_cq_advance(&ring->uring, found);
    }
    return count;
}

/* Submits what is queued and sleeps until `wanted` completions are there or the time is over; may
 * return early. The wait ends early at a signal, at a wake, or when the kernel refuses to wait. */
static void ring_wait(tiers_queue *queue, size_t wanted, uint64_t wait_ns)
{
    tiers_ring *ring = &queue->ring;
    uint32_t in_flight = ring->kernel_count + ring->queued_count;
    if (in_flight == 0) return; /* all that is left lies in `ready` */
    if (wanted > in_flight) wanted = in_flight;
    struct __kernel_timespec timeout = {.tv_sec = (int64_t)(wait_ns / 1000000000u),
                                        .tv_nsec = (int64_t)(wait_ns % 1000000000u)};
    struct io_uring_cqe *first = NULL;
    /* The entries left in a broken ring were done by blocking calls and must never be submitted. */
    int result = ring->broken
                     ? io_uring_wait_cqes(&ring->uring, &first, (unsigned)wanted, &timeout, NULL)
                     : io_uring_submit_and_wait_timeout(&ring->uring, &first, (unsigned)wanted,
                                                        &timeout, NULL);
    bool refused = ring->queued_count != 0 && !ring_book_taken(ring);
    if (refused) ring_note_refusal(queue, result);
    if (!refused && (result >= 0 || result == -ETIME || result == -EINTR)) return;
    /* Waiting is refused for now, but completions still arrive in the shared memory: poll. */
    uint64_t nap_ns = wait_ns < RING_RETRY_NS ? wait_ns : RING_RETRY_NS;
    base_sleep_until(base_clock_ns() + nap_ns);
}

/* A look without a wait costs no system call while no completion waits. */
size_t tiers_ring_reap(tiers_queue *queue, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns)
{
    tiers_ring *ring = &queue->ring;
    size_t count = ring_collect(queue, done, max);
    if (count < min && timeout_ns != 0) {
        uint64_t now = base_clock_ns();
        uint64_t deadline = tiers_device_deadline(now, timeout_ns);
        while (count < min && now < deadline && !ring->woken) {
            ring_wait(queue, min - count, deadline - now);
            count += ring_collect(queue, done + count, max - count);
            now = base_clock_ns();
        }
    }
    ring->woken = false;
    tiers_ring_flush(queue); /* what no wait has submitted, rests of short transfers included */
    return count;
}

void tiers_ring_wake(tiers_queue *queue)
{
    const uint64_t once = 1;
    if (queue->ring.wake_fd >= 0) (void)!write(queue->ring.wake_fd, &once, sizeof once);
}
