/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - one storage device: a GPU's memory, a NUMA node's memory, an SSD, or a test double.
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
 * read by any thread after open. Only the kvt_device_* wrappers call the pointers of
 * kvt_device_ops.
 */
#ifndef KVTERRACE_DEVICE_H
#define KVTERRACE_DEVICE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_device kvt_device;

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

enum {
    KVT_DEVICE_DURABLE = 1u << 0, /* content survives close and restart */
    KVT_DEVICE_DIRECT = 1u << 1,  /* I/O bypasses the page cache, as probed, not as asked for */
    KVT_DEVICE_VIRTUAL_TIME = 1u << 2, /* *_ns are of a virtual clock; nothing is waited for */
    KVT_DEVICE_NO_DATA = 1u << 3,      /* keeps no bytes (null, sim): reads give zeros */
    KVT_DEVICE_EMULATED = 1u << 4,     /* stands in for hardware that is absent; reports say so */
    KVT_DEVICE_READ_ONLY = 1u << 5,    /* writes give KVT_E_READ_ONLY */
    KVT_DEVICE_TRIM = 1u << 6,         /* trim has an effect: set so, and the hardware can */
    KVT_DEVICE_FOREIGN = 1u << 7       /* carries partitions or a file system that a look at its
                                          first 8 KiB does not show */
};

/* Facts, measured or probed at open; they do not change while the device is open, except
 * depth_achieved, which is the largest number of operations in flight so far, and engine, which
 * register_buffers and attach may correct to what was achieved. */
typedef struct kvt_device_facts {
    uint64_t capacity_bytes;
    uint32_t align_bytes;       /* of offset, bytes and buffer: a power of two */
    uint32_t request_bytes_max; /* largest single operation */
    uint32_t depth_max;         /* operations in flight at once */
    uint32_t depth_achieved;
    uint32_t flags;      /* KVT_DEVICE_* */
    char engine[32];     /* how I/O is really done: "memcpy", "io_uring+direct+fixed", ... */
    char identity[96];   /* stable name of the hardware or file, for profiles */
    uint64_t prepare_ns; /* spent at open on writing a new file once, or on touching memory for the
                            first time; 0 for any other */
} kvt_device_facts;

/* What to open. Zero means the stated default. Strings are copied. */
typedef struct kvt_device_config {
    uint32_t struct_size;    /* sizeof(kvt_device_config) */
    const char *name;        /* for messages and profiles; not NULL, 1..31 characters */
    const char *backend;     /* "memory", "hbm", "file", "nvme", "null", "sim" */
    const char *path;        /* file: a regular file (made when absent) or a block device; nvme: the
                                namespace's character device, as /dev/ng0n1 */
    uint64_t capacity_bytes; /* required; file, nvme: 0 = the size it has */
    uint32_t depth;          /* 0 = the back end's default */
    bool buffered;           /* file: true = do not try O_DIRECT */
    bool synchronous;        /* file, nvme: true = do not try io_uring; threads make blocking
                                calls */
    bool emulated;           /* marks the device KVT_DEVICE_EMULATED; hbm: memory of the host */
    /* Throttle: wraps the device when any of these is set. For sim they are the model itself. */
    uint64_t read_bytes_per_s;  /* 0 = no cap (sim: required) */
    uint64_t write_bytes_per_s; /* 0 = no cap (sim: required) */
    uint64_t latency_ns;        /* added to each operation */
    /* A back end of the caller's own instead of a named one; backend is then only a label. */
    const struct kvt_device_ops *ops; /* NULL = by name */
    void *ops_context;                /* for ops->open; not touched */
    bool trim;   /* file, nvme: tell the drive what is free; see kvt_device_trim */
    bool sparse; /* file: do not write a new file once when it is made */
    /* For a pool (a store's tier) that the device is a member of. */
    uint64_t in_flight_bytes_max; /* 0 = 8 MiB; one request is always allowed */
    uint64_t write_bytes_per_day; /* 0 = no bound; docs/TIERS.md says what happens at it */
    bool on_node;                 /* memory: take it from one NUMA node, and run its worker there */
    uint32_t node;                /* with on_node */
    uint32_t gpu;                 /* hbm: which GPU, as the driver counts them */
    uint64_t timeout_ns;  /* work without an answer until a pool retires it; 0 = 5 s; UINT64_MAX =
                             never (docs/TIERS.md) */
    bool follow_symlinks; /* file: open what a symbolic link leads to; else a link is refused, but
                             for one that root made to a block device (/dev/disk/by-id) */
} kvt_device_config;

/* How the units of an object are dealt to the devices of a tier. */
typedef enum kvt_striping {
    KVT_STRIPE_PROPORTIONAL = 0, /* units dealt by measured bandwidth (Unified KV Pooling IV-A) */
    KVT_STRIPE_EQUAL = 1,        /* the same number of units to every device; a baseline */
    KVT_STRIPE_ROUND_ROBIN = 2   /* units in turn, from where the last object ended (SWARM 5.2) */
} kvt_striping;

/* Where a device is in its life (docs/TIERS.md). */
typedef enum kvt_device_state {
    KVT_DEVICE_ABSENT = 0,   /* no device, and nothing lies there */
    KVT_DEVICE_SERVING = 1,  /* read and written */
    KVT_DEVICE_DRAINING = 2, /* read; what lies there moves away; empty once used_bytes is 0 */
    KVT_DEVICE_GONE = 3      /* failed or retired; what lies there are misses */
} kvt_device_state;

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
} kvt_device_ops;

#define KVT_DEVICE_ABI 1u

/* Every back end's object starts with this. */
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
KVT_API KVT_NODISCARD kvt_status kvt_device_open(const kvt_device_config *config,
                                                 kvt_device **device_out, char *message,
                                                 size_t message_size);

/* Closes a device with nothing in flight; NULL is allowed. One that is attached is detached first,
 * so it is closed by the thread that attached it. */
KVT_API void kvt_device_close(kvt_device *device);

/* Submits one operation. KVT_OK, KVT_QUEUED or KVT_BUSY as above; an operation outside the device's
 * bounds or alignment is a programmer error (assert), a failed one is KVT_OK with io->status set.
 */
KVT_API KVT_NODISCARD kvt_status kvt_device_submit(kvt_device *device, kvt_io *io);
KVT_API void kvt_device_flush(kvt_device *device);
KVT_API size_t kvt_device_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                               uint64_t timeout_ns);
KVT_API KVT_NODISCARD kvt_status kvt_device_sync(kvt_device *device);

/* Ends a reap that waits for one completion, or the next that would, without it. Any thread, while
 * the device is attached; without effect where the back end cannot (device->wakes). */
KVT_API void kvt_device_wake(kvt_device *device);

/* Binds the device to the calling thread until detach, and opens its queues: only now does it work
 * at its full depth. Nothing is in flight. */
KVT_API void kvt_device_attach(kvt_device *device);
KVT_API void kvt_device_detach(kvt_device *device);

/* Announces memory that most transfers will use, before attach, so that a device that can sets it
 * up once and not per request. It stays valid until the device is closed or other memory is
 * announced; count 0 forgets it. KVT_OK; KVT_E_UNSUPPORTED (the device has no use for it);
 * KVT_E_MEMORY (refused, as by RLIMIT_MEMLOCK). After an error transfers work all the same. */
KVT_API KVT_NODISCARD kvt_status kvt_device_register_buffers(kvt_device *device,
                                                             const kvt_device_region *regions,
                                                             uint32_t count);

/* Tells the device that a range (aligned, in bounds) holds nothing of worth. Advice: after an error
 * nothing is lost. Blocking. KVT_OK; KVT_E_UNSUPPORTED (facts lack KVT_DEVICE_TRIM); KVT_E_IO;
 * KVT_E_GONE; KVT_E_READ_ONLY. */
KVT_API KVT_NODISCARD kvt_status kvt_device_trim(kvt_device *device, uint64_t offset,
                                                 uint64_t bytes);

/* Blocking convenience for small control I/O (superblocks, probes): one operation, start to end.
 * Nothing else may be in flight on the device. */
KVT_API KVT_NODISCARD kvt_status kvt_device_transfer(kvt_device *device, kvt_io_kind kind,
                                                     uint64_t offset, void *buffer, uint32_t bytes);

/* The table of back ends that kvt_device_open knows; NULL past the end. */
KVT_API const kvt_device_ops *kvt_device_backend_at(size_t index);

#ifdef __cplusplus
}
#endif

#endif
