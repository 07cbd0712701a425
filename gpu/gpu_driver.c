/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_driver.c - loads the driver library and looks its functions up by name.
 *
 * A driver that lacks one of the functions is refused as a whole, so that no copy ever meets a
 * missing one.
 */
#include "gpu_driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Each symbol and its pointer in gpu_driver. A new function needs a line here and a member
 * there. */
static const struct {
    const char *symbol;
    size_t place; /* of the pointer in gpu_driver */
} gpu_symbols[] = {
    {"cuInit", offsetof(gpu_driver, init)},
    {"cuDeviceGetCount", offsetof(gpu_driver, device_count)},
    {"cuDeviceGet", offsetof(gpu_driver, device_get)},
    {"cuDeviceGetName", offsetof(gpu_driver, device_name)},
    {"cuDeviceGetPCIBusId", offsetof(gpu_driver, device_bus)},
    {"cuDevicePrimaryCtxRetain", offsetof(gpu_driver, context_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(gpu_driver, context_release)},
    {"cuCtxSetCurrent", offsetof(gpu_driver, context_set)},
    {"cuCtxPushCurrent_v2", offsetof(gpu_driver, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(gpu_driver, context_pop)},
    {"cuMemAlloc_v2", offsetof(gpu_driver, memory_allocate)},
    {"cuMemFree_v2", offsetof(gpu_driver, memory_free)},
    {"cuPointerGetAttribute", offsetof(gpu_driver, memory_ask)},
    {"cuMemHostAlloc", offsetof(gpu_driver, host_allocate)},
    {"cuMemFreeHost", offsetof(gpu_driver, host_free)},
    {"cuMemHostRegister_v2", offsetof(gpu_driver, host_register)},
    {"cuMemHostUnregister", offsetof(gpu_driver, host_unregister)},
    {"cuMemHostGetDevicePointer_v2", offsetof(gpu_driver, host_address)},
    {"cuStreamCreate", offsetof(gpu_driver, stream_create)},
    {"cuStreamDestroy_v2", offsetof(gpu_driver, stream_destroy)},
    {"cuStreamSynchronize", offsetof(gpu_driver, stream_wait)},
    {"cuStreamWaitEvent", offsetof(gpu_driver, stream_wait_event)},
    {"cuStreamGetCtx", offsetof(gpu_driver, stream_context)},
    {"cuEventCreate", offsetof(gpu_driver, event_create)},
    {"cuEventDestroy_v2", offsetof(gpu_driver, event_destroy)},
    {"cuEventRecord", offsetof(gpu_driver, event_record)},
    {"cuEventQuery", offsetof(gpu_driver, event_query)},
    {"cuMemcpyHtoDAsync_v2", offsetof(gpu_driver, copy_in)},
    {"cuMemcpyDtoHAsync_v2", offsetof(gpu_driver, copy_out)},
    {"cuModuleLoadData", offsetof(gpu_driver, module_load)},
    {"cuModuleUnload", offsetof(gpu_driver, module_unload)},
    {"cuModuleGetFunction", offsetof(gpu_driver, module_function)},
    {"cuLaunchKernel", offsetof(gpu_driver, launch)},
};

/* Fills all pointers. False, with the name of the first symbol that is missing. */
static bool driver_look_up(gpu_driver *driver, char *reason, size_t reason_size)
{
    for (size_t i = 0; i < sizeof gpu_symbols / sizeof gpu_symbols[0]; i++) {
        void *symbol = dlsym(driver->library, gpu_symbols[i].symbol);
        if (symbol == NULL) {
            snprintf(reason, reason_size, "the driver lacks %s", gpu_symbols[i].symbol);
            return false;
        }
        /* POSIX lets dlsym's pointer be a function's; C wants it copied. */
        memcpy((char *)driver + gpu_symbols[i].place, &symbol, sizeof symbol);
    }
    return true;
}

/* On failure the library is closed again. The count of GPUs comes from the driver, which may hide
 * some (CUDA_VISIBLE_DEVICES). */
bool gpu_driver_load(gpu_driver *driver, int *gpu_count_out, char *reason, size_t reason_size)
{
    *driver = (gpu_driver){0};
    *gpu_count_out = 0;
    /* It stays mapped when it is closed: a driver with threads of its own cannot be unmapped. */
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (driver->library == NULL) {
        snprintf(reason, reason_size, "no driver (libcuda.so.1)");
        return false;
    }
    int error = GPU_SUCCESS;
    bool found = driver_look_up(driver, reason, reason_size);
    if (found && ((error = driver->init(0)) != GPU_SUCCESS ||
                  (error = driver->device_count(gpu_count_out)) != GPU_SUCCESS)) {
        snprintf(reason, reason_size, "the driver answers with CUDA error %d", error);
        found = false;
    }
    if (found && *gpu_count_out < 1) {
        snprintf(reason, reason_size, "the driver has no GPU");
        found = false;
    }
    if (!found) gpu_driver_unload(driver);
    return found;
}

void gpu_driver_unload(gpu_driver *driver)
{
    if (driver->library != NULL) dlclose(driver->library);
    driver->library = NULL;
}

/* Name and bus are the driver's bytes and are terminated here whatever it wrote. */
int gpu_driver_identity(const gpu_driver *driver, int device, char *text, size_t text_size)
{
    char name[64] = "", bus[24] = "";
    int error = driver->device_name(name, sizeof name, device);
    if (error == GPU_SUCCESS) error = driver->device_bus(bus, sizeof bus, device);
    name[sizeof name - 1] = '\0';
    bus[sizeof bus - 1] = '\0';
    (void)snprintf(text, text_size, "%s %s", name, bus);
    return error;
}

bool gpu_error_is_fatal(int error)
{
    switch (error) {
    case GPU_DEINITIALIZED:
    case GPU_DEVICE_UNAVAILABLE:
    case GPU_NO_DEVICE:
    case GPU_INVALID_CONTEXT:
    case GPU_ECC_UNCORRECTABLE:
    case GPU_ILLEGAL_ADDRESS:
    case GPU_CONTEXT_DESTROYED:
    case GPU_UNKNOWN: return true;
    default: return error >= GPU_MISALIGNED_ADDRESS && error <= GPU_LAUNCH_FAILED;
    }
}
