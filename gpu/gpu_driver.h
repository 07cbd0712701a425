/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_driver.h - the part of NVIDIA's driver library that the engine uses, found at run time.
 *
 * The library comes with every driver, so neither a toolkit nor its headers are needed to build.
 * The prototypes are our own, after the CUDA Driver API reference: handles are pointers, device
 * addresses 64-bit integers, and the suffixes _v2 name the entry points that programs built against
 * the headers get.
 *
 * Thread rule: loading from any thread; the functions as the driver says (any thread, in a context
 * that is current on it). After fork the library is dead in the child.
 */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <kvterrace/types.h>

/* CUresult, as far as it matters here. */
enum {
    GPU_SUCCESS = 0,
    GPU_OUT_OF_MEMORY = 2,
    GPU_DEINITIALIZED = 4,
    GPU_DEVICE_UNAVAILABLE = 46,
    GPU_NO_DEVICE = 100,
    GPU_INVALID_CONTEXT = 201,
    GPU_ECC_UNCORRECTABLE = 214,
    GPU_HIGHER_PTX = 218, /* CUDA_ERROR_INVALID_PTX: for a higher compute capability */
    GPU_NO_COMPILER = 221,
    GPU_NEWER_PTX = 222, /* than the driver's compiler knows */
    GPU_NOT_READY = 600,
    GPU_ILLEGAL_ADDRESS = 700,
    GPU_CONTEXT_DESTROYED = 709,
    GPU_ALREADY_REGISTERED = 712,
    GPU_MISALIGNED_ADDRESS = 716, /* and what follows, to: */
    GPU_LAUNCH_FAILED = 719,
    GPU_UNKNOWN = 999
};

enum {
    GPU_HOST_PORTABLE = 1,       /* CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE */
    GPU_HOST_MAPPED = 2,         /* CU_MEMHOSTREGISTER_DEVICEMAP */
    GPU_STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
    GPU_EVENT_NO_TIMING = 2,     /* CU_EVENT_DISABLE_TIMING */
    GPU_POINTER_MEMORY_TYPE = 2, /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE, which is then */
    GPU_MEMORY_DEVICE = 2,       /* CU_MEMORYTYPE_DEVICE */
    GPU_POINTER_DEVICE = 9       /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
};

typedef uint64_t gpu_address;

/* The functions as the driver exports them; each returns a CUresult, 0 for success. library is what
 * dlopen gave, NULL while nothing is loaded. */
typedef struct gpu_driver {
    void *library;
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int size, int device);
    int (*device_bus)(char *bus, int size, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*memory_allocate)(gpu_address *address, size_t bytes);
    int (*memory_free)(gpu_address address);
    int (*memory_ask)(void *answer, int attribute, gpu_address address);
    int (*host_allocate)(void **memory, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*host_register)(void *memory, size_t bytes, unsigned flags);
    int (*host_unregister)(void *memory);
    int (*host_address)(gpu_address *address, void *memory, unsigned flags);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_context)(void *stream, void **context);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*copy_in)(gpu_address target, const void *source, size_t bytes, void *stream);
    int (*copy_out)(void *target, gpu_address source, size_t bytes, void *stream);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **parameters, void **extra);
} gpu_driver;

/* Finds the library and counts its GPUs. False, with nothing held and a reason of one line, when
 * there is no driver, it lacks a function, or no GPU answers. */
bool gpu_driver_load(gpu_driver *driver, int *gpu_count_out, char *reason, size_t reason_size);
void gpu_driver_unload(gpu_driver *driver);

/* Writes which hardware a GPU is: its name and its place on the bus. Returns a CUresult. */
int gpu_driver_identity(const gpu_driver *driver, int device, char *text, size_t text_size);

/* Whether an error means that nothing works any more in the process's context. The other errors
 * concern one call or one operation. */
bool gpu_error_is_fatal(int error);

#endif
