/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_site_internal.h - a site's own data, for gpu_site.c and gpu_kernels.c, whose heads say who
 * guards it. Thread rule: as theirs.
 */
#ifndef GPU_SITE_INTERNAL_H
#define GPU_SITE_INTERNAL_H

#include "gpu_bases.h"
#include "gpu_driver.h"
#include "gpu_kernels.h"
#include "gpu_regions.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct gpu_kernel {
    void *module; /* NULL: not loaded */
    void *function;
    int refused; /* the driver's error; 0: it is not refused */
} gpu_kernel;

typedef struct gpu_basis {
    gpu_address address;
    uint8_t hash[TRANSFORM_HASH_BYTES];
} gpu_basis;

typedef struct gpu_pinned {
    gpu_region region;
    uint8_t *pieces; /* how each is registered; NULL: the place is unused */
} gpu_pinned;

struct gpu_site {
    gpu_driver driver;
    int device;
    uint32_t ordinal;
    void *context;
    void *streams[2]; /* by gpu_way */
    atomic_bool gone;
    _Atomic uint64_t copied[2];
    _Atomic uint64_t counts[GPU_COUNTERS];
    pthread_mutex_t lock;
    gpu_host *hosts;
    uint64_t kept_bytes; /* of hosts, */
    uint64_t kept_limit; /* at most */
    gpu_event *events;
    pthread_mutex_t kernel_lock; /* of what follows */
    gpu_kernel kernels[KERNEL_COUNT];
    uint64_t scratch_limit;
    gpu_address scratch;        /* 0: not taken yet */
    uint64_t grain;             /* bytes of a grain, */
    uint32_t grains;            /* of so many, */
    uint8_t *used;              /* each of which is in use or not */
    pthread_mutex_t basis_lock; /* of what follows */
    gpu_basis bases[GPU_BASES_MAX];
    uint32_t basis_count;
    uint64_t basis_bytes;
    pthread_mutex_t region_lock; /* of what follows */
    gpu_pinned regions[GPU_REGIONS_MAX];
    uint64_t pinned_here; /* bytes of them */
};

/* The status of a CUDA error; a fatal one ends the site. */
kvt_status gpu_site_status(gpu_site *site, int error);

/* Makes the context current for the calls to come, up to gpu_site_leave. */
kvt_status gpu_site_enter(gpu_site *site);

/* Makes the context current again that was so before. Returns the status of the calls between. */
kvt_status gpu_site_leave(gpu_site *site, int error);

/* Takes an event off the list, or makes one. The context is current. */
KVT_NODISCARD kvt_status gpu_event_take(gpu_site *site, gpu_event **event_out);

/* Frees modules and scratch. The context is current, and all work has ended. */
void gpu_kernels_close(gpu_site *site);

/* Frees the bases; so, too. */
void gpu_bases_close(gpu_site *site);

#endif
