/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_ops.h - the calls of one storage device, and the members that each back end sets.
 *
 * A device is asynchronous: submit takes an operation and says done, queued or busy; flush pushes
 * what was queued; reap collects completions. The operation embeds its completion, so nothing is
 * allocated per I/O. A device knows neither keys nor records nor extents.
 *
 * Life: open -> register_buffers (optional) -> attach -> I/O at full speed -> detach -> close.
 * Before attach and after detach, I/O works too, one operation at a time: enough for labels.
 *
 * Thread rule: a device belongs to one thread at a time. From attach to detach that is the thread
 * that attached it (its worker), for good: some back ends bind their queues to it. facts may be
 * read by any thread after open, and the bytes of a device that has memory are any thread's. Only
 * the kvt_device_* wrappers call the pointers of kvt_device_ops.
 */
#ifndef TIERS_DEVICE_OPS_H
#define TIERS_DEVICE_OPS_H

#include <kvterrace/device.h>

typedef struct kvt_device kvt_device;

/* The kinds index arrays of two in many places: reads first. An operation is IDLE or DONE while it
 * is the caller's, and IN_FLIGHT while it is the device's. */
typedef enum kvt_io_kind { KVT_IO_READ = 0, KVT_IO_WRITE = 1 } kvt_io_kind;
typedef enum kvt_io_state { KVT_IO_IDLE = 0, KVT_IO_IN_FLIGHT = 1, KVT_IO_DONE = 2 } kvt_io_state;

/*
 * One operation. The caller fills the first block and zeroes the rest; the device fills the second
 * block on completion. buffer, offset and bytes respect the device's alignment; the buffer belongs
 * to the device (and the kernel) from submit until the operation is reaped or submit returned
 * KVT_OK. Short transfers are continued by the device: status KVT_OK means all bytes moved.
 */
typedef struct kvt_io {
    kvt_io_kind kind;
    uint32_t bytes;  /* 1..facts.request_bytes_max, a multiple of facts.align_bytes */
    uint64_t offset; /* a multiple of facts.align_bytes; offset + bytes <= facts.capacity_bytes */
    void *buffer;    /* aligned to facts.align_bytes */
    void *user;      /* the caller's; not touched */

    kvt_status status;     /* KVT_OK, KVT_E_IO, KVT_E_GONE, KVT_E_SPACE, KVT_E_READ_ONLY */
    int os_error;          /* errno of a failed operation, or 0 */
    uint64_t submitted_ns; /* device clock */
    uint64_t finished_ns;  /* device clock */

    kvt_io_state state;   /* the wrapper's; checks ownership */
    struct kvt_io *next;  /* the device's; for its own queues */
    uint64_t device_word; /* the device's */
} kvt_io;

/* Memory that stays where it is while a device is open. */
typedef struct kvt_device_region {
    void *memory; /* aligned to 4 KiB, as is bytes */
    uint64_t bytes;
} kvt_device_region;

/*
 * One back end. New fields are added at the end. Members marked optional may be NULL.
 */
typedef struct kvt_device_ops {
    uint32_t struct_size;
    uint32_t abi_version; /* KVT_DEVICE_ABI */
    const char *name;

    /* Opens; on failure writes one line to message (message_size > 0) and leaves nothing open. */
    kvt_status (*open)(const kvt_device_config *config, kvt_device **device_out, char *message,
                       size_t message_size);

    /* Closes; nothing is in flight. */
    void (*close)(kvt_device *device);

    /* KVT_OK: done now, io->status is set. KVT_QUEUED: comes through reap. KVT_BUSY: depth reached,
     * io untouched. */
    kvt_status (*submit)(kvt_device *device, kvt_io *io);

    /* (optional, default: nothing to do) Pushes queued operations to the hardware. reap does too:
     * a caller that reaps soon spares itself the call. */
    void (*flush)(kvt_device *device);

    /* (optional when submit always returns KVT_OK) Pushes, and collects up to max completions into
     * done; waits up to timeout_ns for the first min of them. Returns how many. */
    size_t (*reap)(kvt_device *device, kvt_io **done, size_t min, size_t max, uint64_t timeout_ns);

    /* (optional, default: KVT_OK) Makes completed writes durable. */
    kvt_status (*sync)(kvt_device *device);

    /* (optional, default: nothing to do) The calling thread is from now on the only one that uses
     * the device. Cannot fail: a back end that gets no queue goes on without one. */
    void (*attach)(kvt_device *device);

    /* (optional, default: nothing to do) Ends attach, on the same thread; nothing is in flight. */
    void (*detach)(kvt_device *device);

    /* (optional, default: KVT_E_UNSUPPORTED) Announces memory that transfers will use; replaces
     * what was announced before. The list is copied. Not while attached. */
    kvt_status (*register_buffers)(kvt_device *device, const kvt_device_region *regions,
                                   uint32_t count);

    /* (optional, default: KVT_E_UNSUPPORTED) Says that a range holds nothing of worth; reads of it
     * give any bytes until it is written. Blocking; nothing in flight touches the range. */
    kvt_status (*trim)(kvt_device *device, uint64_t offset, uint64_t bytes);

    /* (optional) Ends a reap that waits for one completion, or the next that would. Any thread, at
     * any time while attached. */
    void (*wake)(kvt_device *device);

    /* (optional, default: NULL) The device's bytes where they are: capacity_bytes of host memory
     * that any thread may read and write from open to close, beside operations, as long as no two
     * of them touch the same bytes. A device that wraps another has none: its operations cost
     * something. */
    void *(*memory)(kvt_device *device);

    /* (optional, default: that of memory) The address at which programs of the device's own
     * processor, a GPU's kernels, find its first byte, from open to close; the host may not be able
     * to follow it. A device that wraps another has the other's. */
    uint64_t (*address)(kvt_device *device);
} kvt_device_ops;

#define KVT_DEVICE_ABI 1u

/* Finds a back end that the table lacks by what a configuration names, for tests and benches that
 * bring one; it checks its own settings. NULL in every program that ships. */
typedef const kvt_device_ops *tiers_stand_in_find(const char *backend);
extern _Atomic(tiers_stand_in_find *) tiers_stand_in;

/* Every back end's object starts with this. The wrappers of device.c own in_flight and attached,
 * the back end all else. facts are complete when open returns; after that only depth_achieved and
 * engine change. */
struct kvt_device {
    const kvt_device_ops *ops;
    kvt_device_facts facts;
    char name[32];
    uint32_t in_flight; /* the wrapper's count */
    bool attached;      /* the wrapper's */
    bool wakes;         /* the back end's, while attached: wake has an effect; its thread's */
};

/*
 * Opens a device by its configuration, wrapped in `throttle` when a cap is set.
 *   message       receives one line for a person on failure; may be NULL with message_size 0
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (unknown back end); KVT_E_GONE (path missing);
 * KVT_E_READ_ONLY; KVT_E_SPACE (too small, or no room to make the file); KVT_E_LOCKED (open in
 * this process, or in another one that did not let go of it for 10 s); KVT_E_MEMORY; KVT_E_IO.
 * Blocking. The caller closes the device.
 */
KVT_NODISCARD kvt_status kvt_device_open(const kvt_device_config *config, kvt_device **device_out,
                                         char *message, size_t message_size);

/* Opens a device of the file back end for reading alone, beside the process that has it: takes no
 * lock, makes no file, writes no byte; a write to it fails. Statuses as above, but KVT_E_LOCKED;
 * KVT_E_UNSUPPORTED also for any other back end. */
KVT_NODISCARD kvt_status kvt_device_open_reader(const kvt_device_config *config,
                                                kvt_device **device_out, char *message,
                                                size_t message_size);

/* Closes a device with nothing in flight; NULL is allowed. One that is attached is detached first,
 * so it is closed by the thread that attached it. */
void kvt_device_close(kvt_device *device);

/* Submits one operation. KVT_OK, KVT_QUEUED or KVT_BUSY as above; an operation outside the device's
 * bounds or alignment is a programmer error (assert), a failed one is KVT_OK with io->status set.
 */
KVT_NODISCARD kvt_status kvt_device_submit(kvt_device *device, kvt_io *io);
/* flush pushes what is queued. reap collects up to max completions, waiting up to timeout_ns for
 * the first min of them, and pushes too. sync makes completed writes durable: KVT_OK, or the status
 * of kvt_io. */
void kvt_device_flush(kvt_device *device);
size_t kvt_device_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns);
KVT_NODISCARD kvt_status kvt_device_sync(kvt_device *device);

/* Ends a reap that waits for one completion, or the next that would, without it. Any thread, while
 * the device is attached; without effect where the back end cannot (device->wakes). */
void kvt_device_wake(kvt_device *device);

/* Binds the device to the calling thread until detach, and opens its queues: only now does it work
 * at its full depth. Nothing is in flight. */
void kvt_device_attach(kvt_device *device);
void kvt_device_detach(kvt_device *device);

/* Announces memory that most transfers will use, before attach, so that a device that can sets it
 * up once and not per request. It stays valid until the device is closed or other memory is
 * announced; count 0 forgets it. KVT_OK; KVT_E_UNSUPPORTED (the device has no use for it);
 * KVT_E_MEMORY (refused, as by RLIMIT_MEMLOCK). After an error transfers work all the same. */
KVT_NODISCARD kvt_status kvt_device_register_buffers(kvt_device *device,
                                                     const kvt_device_region *regions,
                                                     uint32_t count);

/* Tells the device that a range (aligned, in bounds) holds nothing of worth. Advice: after an error
 * nothing is lost. Blocking. KVT_OK; KVT_E_UNSUPPORTED (facts lack KVT_DEVICE_TRIM and
 * KVT_DEVICE_SPARSE); KVT_E_IO; KVT_E_GONE; KVT_E_READ_ONLY. */
KVT_NODISCARD kvt_status kvt_device_trim(kvt_device *device, uint64_t offset, uint64_t bytes);

/* The device's bytes as memory of the host, or NULL. Any thread, from open to close. */
void *kvt_device_memory(kvt_device *device);

/* Where the device's own processor finds its first byte: a GPU's address, or that of its memory on
 * the host; 0: it has none. Any thread, from open to close. */
uint64_t kvt_device_address(kvt_device *device);

/* Blocking convenience for small control I/O (superblocks, probes): one operation, start to end.
 * Nothing else may be in flight on the device. */
KVT_NODISCARD kvt_status kvt_device_transfer(kvt_device *device, kvt_io_kind kind, uint64_t offset,
                                             void *buffer, uint32_t bytes);

/* The table of back ends that kvt_device_open knows; NULL past the end. */
const kvt_device_ops *kvt_device_backend_at(size_t index);

#endif
