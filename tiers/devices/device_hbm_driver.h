/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_hbm_driver.h - the part of NVIDIA's driver library that the hbm device uses, found at run
 * time.
 *
 * The library comes with every driver, so neither a toolkit nor its headers are needed to build.
 * The prototypes are our own, after the CUDA Driver API reference: handles are pointers, device
 * addresses 64-bit integers, and the suffixes _v2 name the entry points that programs built against
 * the headers get.
 *
 * Thread rule: loading from any thread; the functions as the driver says (any thread, in a context
 * that is current on it).
 */
#ifndef TIERS_DEVICE_HBM_DRIVER_H
#define TIERS_DEVICE_HBM_DRIVER_H

#include <kvterrace/types.h>

/* CUresult, as far as it matters here. */
enum {
    HBM_SUCCESS = 0,
    HBM_OUT_OF_MEMORY = 2,
    HBM_DEINITIALIZED = 4,
    HBM_DEVICE_UNAVAILABLE = 46,
    HBM_NO_DEVICE = 100,
    HBM_INVALID_CONTEXT = 201,
    HBM_ECC_UNCORRECTABLE = 214,
    HBM_NOT_READY = 600,
    HBM_ILLEGAL_ADDRESS = 700,
    HBM_CONTEXT_DESTROYED = 709,
    HBM_ALREADY_REGISTERED = 712,
    HBM_LAUNCH_FAILED = 719,
    HBM_UNKNOWN = 999
};

enum {
    HBM_HOST_PORTABLE = 1,       /* CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE */
    HBM_STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
    HBM_EVENT_NO_TIMING = 2      /* CU_EVENT_DISABLE_TIMING */
};

typedef uint64_t hbm_address;

/* The functions as the driver exports them; each returns a CUresult, 0 for success. library is what
 * dlopen gave, NULL while nothing is loaded. */
typedef struct hbm_driver {
    void *library;
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int size, int device);
    int (*device_bus)(char *bus, int size, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*memory_allocate)(hbm_address *address, size_t bytes);
    int (*memory_free)(hbm_address address);
    int (*host_allocate)(void **memory, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*host_register)(void *memory, size_t bytes, unsigned flags);
    int (*host_unregister)(void *memory);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*copy_in)(hbm_address target, const void *source, size_t bytes, void *stream);
    int (*copy_out)(void *target, hbm_address source, size_t bytes, void *stream);
} hbm_driver;

/* Finds the library and counts its GPUs. False, with nothing held and a reason of one line, when
 * there is no driver or no GPU answers. */
bool hbm_driver_load(hbm_driver *driver, int *gpu_count_out, char *reason, size_t reason_size);
void hbm_driver_unload(hbm_driver *driver);

#endif
