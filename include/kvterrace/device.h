/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - one storage device: a GPU's memory, a NUMA node's memory, an SSD, or a stand-in; what
 * is configured and what is known of it.
 *
 * The store opens and uses its devices by itself; no function here does.
 */
#ifndef KVTERRACE_DEVICE_H
#define KVTERRACE_DEVICE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVT_DEVICE_DURABLE = 1u << 0, /* content survives close and restart */
    KVT_DEVICE_DIRECT = 1u << 1,  /* I/O bypasses the page cache, as probed, not as asked for */
    KVT_DEVICE_VIRTUAL_TIME = 1u << 2, /* *_ns are of a virtual clock; nothing is waited for */
    KVT_DEVICE_NO_DATA = 1u << 3,      /* keeps no bytes (null, sim): reads give zeros */
    KVT_DEVICE_EMULATED = 1u << 4,     /* stands in for hardware that is absent; reports say so */
    KVT_DEVICE_READ_ONLY = 1u << 5,    /* writes give KVT_E_READ_ONLY */
    KVT_DEVICE_TRIM = 1u << 6,         /* trim has an effect: set so, and the hardware can */
    KVT_DEVICE_FOREIGN = 1u << 7,      /* carries partitions or a file system of which its first
                                          8 KiB show nothing */
    KVT_DEVICE_SPARSE = 1u << 8,       /* a file whose blocks come with the first write, and go
                                          when they are trimmed */
    KVT_DEVICE_ENCRYPTED = 1u << 9     /* what it holds is encrypted (docs/ENCRYPTION.md) */
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
    uint64_t prepared_bytes; /* memory: from its start on, touched at open; the rest is touched
                                behind the opener's back. 0 for any other device */
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
    bool trim;                  /* file, nvme: tell the drive what is free */
    bool sparse;                /* file: do not write a new file once when it is made */
    bool follow_symlinks; /* file: open what a symbolic link leads to; else a link is refused, but
                             for one that root made to a block device (/dev/disk/by-id) */
    /* For a pool (a store's tier) that the device is a member of. */
    uint64_t in_flight_bytes_max; /* 0 = 8 MiB; one request is always allowed */
    uint64_t write_bytes_per_day; /* 0 = no bound; docs/TIERS.md says what happens at it */
    bool on_node;                 /* memory: take it from one NUMA node, and run its worker there */
    uint32_t node;                /* with on_node */
    uint32_t gpu;                 /* hbm: which GPU, as the driver counts them */
    uint64_t timeout_ns; /* work without an answer until a pool retires it; 0 = 5 s; UINT64_MAX =
                             never, and so is memory (docs/TIERS.md) */
    double mix_kept; /* share of its speed that is left while it reads and writes at once, 0 to 1;
                        0 = unknown: the order slack lets the directions take turns */
    bool write_budget_shadow; /* write_bytes_per_day closes nothing, and what it would have refused
                                 is counted (kvt_device_stats) */
    uint8_t reserved[7];      /* zero */
    /* file, nvme, memory: encrypts what the device holds (docs/ENCRYPTION.md) by a key from one of
     * these; NULL or empty: not encrypted. */
    const char *key_file;    /* keys that its owner alone may read */
    const char *key_command; /* writes the keys to its standard output */
} kvt_device_config;

/* How records on SSD are verified before a request needs them (docs/STORE.md, Scrub). */
typedef struct kvt_scrub_options {
    double period_seconds; /* within which each is verified, by a get or by the scrub, as far as
                              share allows it; 0 = by gets alone; 86400 */
    double share;          /* of each SSD device's read bandwidth; 0.01 */
    uint32_t faults;       /* damage that lay on one device alone: a device that has so much is
                              drained while another one serves; 0 = none is; 16 */
    uint32_t reserved;     /* zero */
} kvt_scrub_options;

/* Where a device is in its life (docs/TIERS.md). */
typedef enum kvt_device_state {
    KVT_DEVICE_ABSENT = 0,   /* no device, and nothing lies there */
    KVT_DEVICE_SERVING = 1,  /* read and written */
    KVT_DEVICE_DRAINING = 2, /* read; its entries move away; empty once used_bytes is 0 */
    KVT_DEVICE_GONE = 3      /* failed or retired; its entries are misses */
} kvt_device_state;

#ifdef __cplusplus
}
#endif

#endif
