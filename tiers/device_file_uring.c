/*
 * device_file_uring.c - the io_uring engine of the file back end.
 *
 *     submit -> queued (submission queue) -> kernel -> completion queue -> reap
 *                  ^                                        |
 *                  +------ short transfer, EAGAIN ----------+
 *
 * The ring has at least depth_max entries, so neither queue can overflow. An operation's
 * device_word holds the bytes moved so far (low half) and the tries without progress (high half).
 *
 * Ring flags: only what liburing's own headers define. SINGLE_ISSUER and DEFER_TASKRUN stay off,
 * because they bind the ring to one thread, and a device is labelled by the thread that opens it
 * before its worker takes over. COOP_TASKRUN spares the worker interrupts; with TASKRUN_FLAG a poll
 * of the completion queue enters the kernel when work waits there. IOPOLL stays off: it fails at
 * the first read on most drives.
 *
 * Buffers are not registered. They are the store's staging memory, which comes and goes with its
 * entries, and registering pins memory under RLIMIT_MEMLOCK; at 256 KiB and more per request the
 * page pinning that it would save is below a percent of the transfer.
 *
 * Thread rule: as device.h.
 */
#include "device_file.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum { RING_BATCH = 32, RING_RETRY_NS = 1000000, RING_REFUSALS_MAX = 5000 };

static void file_list_push(file_list *list, kvt_io *io)
{
    io->next = NULL;
    if (list->head == NULL) {
        list->head = io;
    } else {
        list->tail->next = io;
    }
    list->tail = io;
}

static kvt_io *file_list_pop(file_list *list)
{
    kvt_io *io = list->head;
    if (io != NULL) list->head = io->next;
    return io;
}

bool file_ring_open(file_device *file, uint32_t depth)
{
    static const unsigned flag_sets[] = {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};
    file_ring *ring = &file->ring;
    int refused = -1;
    for (size_t i = 0; i < 2 && refused != 0; i++) {
        struct io_uring_params params = {.flags = flag_sets[i]};
        refused = io_uring_queue_init_params(depth, &ring->uring, &params);
        if (refused == 0 && (params.features & IORING_FEAT_EXT_ARG) == 0) {
            /* Without it every wait with a timeout would cost an entry of the queue. */
            io_uring_queue_exit(&ring->uring);
            return false;
        }
    }
    if (refused != 0) return false;
    ring->fixed_file = io_uring_register_files(&ring->uring, &file->fd, 1) == 0;
    return true;
}

void file_ring_close(file_device *file)
{
    /* A ring is torn down in the background and would hold the file, and its lock, meanwhile. */
    if (file->ring.fixed_file) (void)io_uring_unregister_files(&file->ring.uring);
    io_uring_queue_exit(&file->ring.uring);
}

static uint32_t ring_moved(const kvt_io *io)
{
    return (uint32_t)io->device_word;
}

/* Puts the rest of an operation into the submission queue. */
static void ring_queue(file_device *file, kvt_io *io)
{
    file_ring *ring = &file->ring;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    assert(sqe != NULL); /* at most depth_max operations exist, and each has at most one entry */
    uint32_t moved = ring_moved(io);
    int fd = ring->fixed_file ? 0 : file->fd;
    char *buffer = (char *)io->buffer + moved;
    if (io->kind == KVT_IO_READ) {
        io_uring_prep_read(sqe, fd, buffer, io->bytes - moved, io->offset + moved);
    } else {
        io_uring_prep_write(sqe, fd, buffer, io->bytes - moved, io->offset + moved);
    }
    if (ring->fixed_file) sqe->flags = (uint8_t)(sqe->flags | IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, io);
    file_list_push(&ring->queued, io);
    ring->queued_count++;
}

/* The kernel refuses to take entries for good. What it did not take is done by the blocking engine,
 * as is everything from now on; what it took still completes through the ring. */
static void ring_break(file_device *file)
{
    file_ring *ring = &file->ring;
    ring->broken = true;
    ring->queued_count = 0;
    for (kvt_io *io = file_list_pop(&ring->queued); io != NULL; io = file_list_pop(&ring->queued)) {
        file_sync_run(file, io, ring_moved(io));
        file_list_push(&ring->ready, io);
    }
}

void file_ring_flush(file_device *file)
{
    file_ring *ring = &file->ring;
    while (ring->queued_count != 0) {
        int taken = io_uring_submit(&ring->uring);
        if (taken == -EINTR) continue;
        /* Short of memory, or completions must be taken first: the next reap tries again. */
        if (taken == -EAGAIN || taken == -EBUSY || taken == 0) {
            /* Nothing is in the kernel that could make room: refusing for ever is refusing. */
            ring->refusals = ring->kernel_count == 0 ? ring->refusals + 1 : 0;
            if (ring->refusals > RING_REFUSALS_MAX) ring_break(file);
            return;
        }
        if (taken < 0) {
            ring_break(file);
            return;
        }
        ring->refusals = 0;
        assert((uint32_t)taken <= ring->queued_count);
        for (int i = 0; i < taken; i++)
            (void)file_list_pop(&ring->queued);
        ring->queued_count -= (uint32_t)taken;
        ring->kernel_count += (uint32_t)taken;
    }
}

kvt_status file_ring_submit(file_device *file, kvt_io *io)
{
    tiers_io_begin(io, tiers_device_now_ns());
    if (file->ring.broken) {
        file_sync_run(file, io, 0);
        return KVT_OK;
    }
    ring_queue(file, io);
    return KVT_QUEUED;
}

/* Books a completion. True when the operation is finished; else its rest is queued again. */
static bool ring_settle(file_device *file, kvt_io *io, int result)
{
    uint32_t before = ring_moved(io);
    uint32_t moved = before;
    uint64_t retries = io->device_word >> 32;
    if (result == 0) {
        tiers_io_finish(io, file_status_of_end(file), 0, tiers_device_now_ns());
        return true;
    }
    if (result > 0) {
        moved += (uint32_t)result;
        if (moved >= io->bytes) {
            tiers_io_finish(io, KVT_OK, 0, tiers_device_now_ns());
            return true;
        }
        moved = file_round_moved(file, moved);
    } else if (result != -EAGAIN && result != -EINTR) {
        tiers_io_finish(io, file_status_of_transfer(-result), -result, tiers_device_now_ns());
        return true;
    }
    retries = moved > before ? 0 : retries + 1;
    if (retries > FILE_RETRIES_MAX) {
        tiers_io_finish(io, KVT_E_IO, EIO, tiers_device_now_ns());
        return true;
    }
    io->device_word = retries << 32 | moved;
    if (file->ring.broken) {
        file_sync_run(file, io, moved);
        return true;
    }
    ring_queue(file, io);
    return false;
}

static size_t ring_collect(file_device *file, kvt_io **done, size_t max)
{
    file_ring *ring = &file->ring;
    size_t count = 0;
    while (count < max && ring->ready.head != NULL)
        done[count++] = file_list_pop(&ring->ready);
    while (count < max) {
        struct io_uring_cqe *cqes[RING_BATCH];
        size_t room = max - count < RING_BATCH ? max - count : RING_BATCH;
        unsigned found = io_uring_peek_batch_cqe(&ring->uring, cqes, (unsigned)room);
        if (found == 0) break;
        ring->kernel_count -= found;
        for (unsigned i = 0; i < found; i++) {
            kvt_io *io = io_uring_cqe_get_data(cqes[i]);
            if (ring_settle(file, io, cqes[i]->res)) done[count++] = io;
        }
        io_uring_cq_advance(&ring->uring, found);
    }
    return count;
}

/* Sleeps until `wanted` completions are there or the time is over; may return early. */
static void ring_wait(file_ring *ring, size_t wanted, uint64_t now, uint64_t deadline)
{
    uint64_t wait_ns = deadline - now;
    if (ring->queued_count != 0 && wait_ns > RING_RETRY_NS) wait_ns = RING_RETRY_NS;
    if (ring->kernel_count == 0) {
        tiers_device_sleep_until(now + wait_ns);
        return;
    }
    if (wanted > ring->kernel_count) wanted = ring->kernel_count;
    struct __kernel_timespec timeout = {.tv_sec = (int64_t)(wait_ns / 1000000000u),
                                        .tv_nsec = (int64_t)(wait_ns % 1000000000u)};
    struct io_uring_cqe *first = NULL;
    int result = io_uring_wait_cqes(&ring->uring, &first, (unsigned)wanted, &timeout, NULL);
    if (result < 0 && result != -ETIME && result != -EINTR && result != -EAGAIN) {
        /* Waiting is refused, but completions still arrive in the shared memory: poll. */
        tiers_device_sleep_until(now + (wait_ns < RING_RETRY_NS ? wait_ns : RING_RETRY_NS));
    }
}

size_t file_ring_reap(file_device *file, kvt_io **done, size_t min, size_t max, uint64_t timeout_ns)
{
    uint64_t deadline = tiers_device_deadline(tiers_device_now_ns(), timeout_ns);
    size_t count = 0;
    for (;;) {
        file_ring_flush(file);
        count += ring_collect(file, done + count, max - count);
        uint64_t now = tiers_device_now_ns();
        if (count >= min || now >= deadline) break;
        if (file->ring.ready.head == NULL) ring_wait(&file->ring, min - count, now, deadline);
    }
    file_ring_flush(file); /* rests of short transfers */
    return count;
}
