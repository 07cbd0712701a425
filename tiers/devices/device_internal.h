/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_internal.h - the helpers that the device back ends share; only tiers/devices/ and its
 * tests include it.
 *
 * A back end's submit begins an operation with tiers_io_begin once it has decided to accept it
 * (KVT_BUSY leaves the operation untouched) and ends it with tiers_io_finish. The wrappers in
 * device.c own kvt_io.state, kvt_device.in_flight and facts.depth_achieved.
 *
 * `throttle` wraps another device. It gives it operations of its own, so that each layer owns one
 * whole kvt_io, and it is made by code: its ops have no open.
 *
 * Thread rule: as device_ops.h.
 */
#ifndef TIERS_DEVICE_INTERNAL_H
#define TIERS_DEVICE_INTERNAL_H

#include "base/clock.h"
#include "device_ops.h"

#define TIERS_DEVICE_FOREVER UINT64_MAX /* a reap timeout without end */

/* The back ends that device_open.c lists. */
extern const kvt_device_ops tiers_memory_ops;
extern const kvt_device_ops tiers_hbm_ops;
extern const kvt_device_ops tiers_file_ops;
extern const kvt_device_ops tiers_nvme_ops;
extern const kvt_device_ops tiers_null_ops;
extern const kvt_device_ops tiers_sim_ops;

/* now + timeout without overflow. */
uint64_t tiers_device_deadline(uint64_t now_ns, uint64_t timeout_ns);

/* Fills the common head of a back end's zeroed object. */
void tiers_device_init(kvt_device *device, const kvt_device_ops *ops,
                       const kvt_device_config *config);

/* Writes one line, "device 'name': ..."; message_size may be 0. */
void tiers_device_message(char *message, size_t message_size, const kvt_device_config *config,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The open of the file back end for kvt_device_open_reader. */
kvt_status tiers_file_open_reader(const kvt_device_config *config, kvt_device **device_out,
                                  char *message, size_t message_size);

/* The configuration of an open with a path, and the place of its one-line message. */
typedef struct tiers_opening {
    const kvt_device_config *config;
    char *message;
    size_t message_size;
} tiers_opening;

/* Writes the message of a refused open, which names path and reason, and returns the status; the
 * other takes text and status from an errno. */
kvt_status tiers_refuse(const tiers_opening *opening, kvt_status status, const char *reason);
kvt_status tiers_refuse_errno(const tiers_opening *opening, int os_error);

/* The status of an errno: of an open or sync, and of a read or write, which has only the statuses
 * of kvt_io.status. */
kvt_status tiers_status_of_errno(int os_error);
kvt_status tiers_status_of_transfer(int os_error);

/* Nanoseconds that `bytes` take at bytes_per_s, which is not 0. The division's remainder is carried
 * from call to call in *carry, so that rounding does not add up over many operations. */
uint64_t tiers_device_duration(uint64_t bytes, uint64_t bytes_per_s, uint64_t *carry);

/* Begins an operation that the back end accepts: the fields that completion fills are reset, and
 * the device's word is its own until the end. */
static inline void tiers_io_begin(kvt_io *io, uint64_t now_ns)
{
    io->status = KVT_OK;
    io->os_error = 0;
    io->submitted_ns = now_ns;
    io->finished_ns = 0;
    io->next = NULL;
    io->device_word = 0;
}

/* Ends an operation. now_ns is of the same clock as submitted_ns. */
static inline void tiers_io_finish(kvt_io *io, kvt_status status, int os_error, uint64_t now_ns)
{
    io->status = status;
    io->os_error = os_error;
    io->finished_ns = now_ns;
}

/*
 * Wraps an open device in the caps of config (read_bytes_per_s, write_bytes_per_s, latency_ns,
 * depth). On success the inner device belongs to the new one. KVT_OK; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status tiers_throttle_wrap(kvt_device *inner, const kvt_device_config *config,
                                             kvt_device **device_out);

/* The capacity that a configuration asks for, in whole blocks of align_bytes; 0, with a message,
 * when it is less than one. */
uint64_t tiers_device_capacity(const kvt_device_config *config, uint32_t align_bytes, char *message,
                               size_t message_size);

#endif
