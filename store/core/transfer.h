/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - transfers between staging and a tier that may outlast their callers.
 *
 * Nothing takes an operation back that a device has. A waiter that gives up, at a deadline or
 * because a device does not answer, abandons transfer and staging; the last completion releases
 * the staging. The completion may come after the store was closed, so it touches staging alone.
 *
 * Thread rule: any thread; no lock is held that the pool or staging takes.
 */
#ifndef STORE_TRANSFER_H
#define STORE_TRANSFER_H

#include "codecs/record.h"
#include "store/core/staging.h"
#include "tiers/devices/device_ops.h"
#include "tiers/pool/pool.h"

#define TRANSFER_NO_DEADLINE                                                                       \
    UINT64_MAX /* no deadline; a timeout of the device still ends the wait */

/* Observes the parts of a transfer. The thread that runs the transfer calls `started` once the
 * transfer was queued, and `finished`, with the parts' times, when it has succeeded; under no lock.
 */
typedef struct transfer_watch {
    void (*started)(void *context, const tiers_part *parts, uint32_t count);
    void (*finished)(void *context, const tiers_part *parts, uint32_t count, uint64_t started_ns);
    void *context;
} transfer_watch;

/* When a transfer ran; only after KVT_OK. */
typedef struct transfer_report {
    uint64_t started_ns;
    uint64_t finished_ns;
} transfer_report;

typedef struct store_transfer store_transfer;

/*
 * transfer_run in steps, for a caller that uses the first bytes while the rest is on its way:
 * begin, any number of awaits, end.
 *   piece_bytes  the first bytes come in steps of so many, as tiers_arrival says; 0: await is not
 *                called
 * begin: KVT_OK; KVT_E_TIMEOUT and KVT_E_MEMORY, and nothing was started. await: KVT_QUEUED, so
 * many bytes have come, but not all; any other status is the one that end will give, unless the
 * deadline of end is later. end: as transfer_run.
 */
KVT_NODISCARD kvt_status transfer_begin(store_staging *staging, tiers_pool *pool,
                                        const tiers_transfer *wanted, uint64_t piece_bytes,
                                        uint64_t deadline_ns, const transfer_watch *watch,
                                        store_transfer **transfer_out);
KVT_NODISCARD kvt_status transfer_await(store_transfer *transfer, uint64_t bytes,
                                        uint64_t deadline_ns, uint64_t *arrived_out);
KVT_NODISCARD kvt_status transfer_end(store_transfer *transfer, uint64_t deadline_ns,
                                      staging_buffer *buffer, transfer_report *report_out);

/*
 * Starts a transfer and waits, not beyond an instant of CLOCK_MONOTONIC in nanoseconds; a transfer
 * whose members lend their memory is a copy on the calling thread, which waits for nothing.
 *   wanted   its first block; copied
 *   watch    may be NULL
 *   buffer   staging around wanted->buffer; given away and cleared when a started transfer fails,
 *            because a device may still use it
 * KVT_OK; KVT_E_TIMEOUT and KVT_E_MEMORY before the start (the buffer is the caller's still); the
 * pool's statuses.
 */
KVT_NODISCARD static inline kvt_status
transfer_run(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
             uint64_t deadline_ns, const transfer_watch *watch, staging_buffer *buffer,
             transfer_report *report_out)
{
    store_transfer *transfer;
    *report_out = (transfer_report){0};
    const kvt_status status =
        transfer_begin(staging, pool, wanted, 0, deadline_ns, watch, &transfer);
    if (status != KVT_OK) return status;
    return transfer_end(transfer, deadline_ns, buffer, report_out);
}

/* transfer_run of a whole record, without a deadline. */
KVT_NODISCARD kvt_status transfer_move(store_staging *staging, tiers_pool *pool,
                                       const tiers_transfer *wanted, const transfer_watch *watch,
                                       staging_buffer *buffer);

/* Writes a whole record. KVT_E_GONE also when a device that has a part of it answers nothing for a
 * while, as long as another one does: the record can be written elsewhere, and the pool keeps the
 * buffer until the device answers. */
KVT_NODISCARD kvt_status transfer_write(store_staging *staging, tiers_pool *pool,
                                        const tiers_transfer *wanted, const transfer_watch *watch,
                                        staging_buffer *buffer);

/* ---- transfers that no thread waits for ---- */

/*
 *     prepared -> started -> landed -> taken
 *                        \-> given up
 *
 * The owner and the last word of the pool hold a transfer; the later one to let go frees it. Which
 * of landing and giving up comes first is decided by one exchange, so that `landed` is called for
 * exactly those that were not given up.
 */

/* Called once when a transfer has landed, on any thread, under no lock; must not call the pool. */
typedef void transfer_landed(void *context);

/* The owner of such a transfer. piece_bytes: 0, or it is told by `come` when the first bytes that
 * it asks for are there, in pieces of so many (tiers_arrival). */
typedef struct transfer_owner {
    transfer_landed *landed;
    void (*come)(void *context);
    void *context;
    uint64_t piece_bytes;
} transfer_owner;

/*
 * Prepares a transfer.
 *   watch   may be NULL; lasts until the transfer has landed
 *   buffer  staging around wanted->buffer, taken over and cleared
 * NULL without memory; the buffer is the caller's then.
 */
store_transfer *transfer_prepare(store_staging *staging, tiers_pool *pool,
                                 const tiers_transfer *wanted, const transfer_watch *watch,
                                 staging_buffer *buffer, const transfer_owner *owner);

/* The same for ranges of a record that somebody waits for. Their bytes go where the ranges say in
 * the buffer. */
store_transfer *transfer_prepare_ranges(store_staging *staging, tiers_pool *pool,
                                        const tiers_location *location,
                                        const kvt_record_range *ranges, uint32_t count,
                                        staging_buffer *buffer, transfer_landed *landed,
                                        void *context);

/* As tiers_transfer_arrived says, of a transfer with pieces. */
uint64_t transfer_arrived(store_transfer *transfer, uint64_t bytes);

/* Orders transfers by their places, without starting them: the kernel's block layer makes
 * neighbours that come one behind the other one request. */
void transfer_sort(store_transfer **transfers, uint32_t count);

/* Starts transfers of any pools; all of a pool's are queued before a device is woken. Each may land
 * before this returns, but not before it has been watched. */
void transfer_start_all(store_transfer *const *transfers, uint32_t count);

/* Ends a transfer that has landed: gives the buffer back. The outcome, as transfer_run. */
KVT_NODISCARD kvt_status transfer_take(store_transfer *transfer, staging_buffer *buffer_out,
                                       transfer_report *report_out);

/* Gives a started transfer up, with its buffer, which goes back when the last device has answered.
 * False: it has landed, and `landed` was called or is about to be. True: it is not called. */
bool transfer_give_up(store_transfer *transfer);

/* Whether a transfer under way waits for a device that is out of service, or a write, as
 * transfer_write, for one that answers nothing. */
bool transfer_is_stuck(const store_transfer *transfer);

#endif
