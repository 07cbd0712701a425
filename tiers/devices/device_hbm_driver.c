/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_hbm_driver.c - loads the driver library and looks its functions up by name.
 *
 * A driver that lacks one of the functions is refused as a whole, so that no copy ever meets a
 * missing one.
 */
#include "device_hbm_driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Each symbol and its pointer in hbm_driver. A new function needs a line here and a member
 * there. */
static const struct {
    const char *symbol;
    size_t place; /* of the pointer in hbm_driver */
} hbm_symbols[] = {
    {"cuInit", offsetof(hbm_driver, init)},
    {"cuDeviceGetCount", offsetof(hbm_driver, device_count)},
    {"cuDeviceGet", offsetof(hbm_driver, device_get)},
    {"cuDeviceGetName", offsetof(hbm_driver, device_name)},
    {"cuDeviceGetPCIBusId", offsetof(hbm_driver, device_bus)},
    {"cuDevicePrimaryCtxRetain", offsetof(hbm_driver, context_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(hbm_driver, context_release)},
    {"cuCtxSetCurrent", offsetof(hbm_driver, context_set)},
    {"cuMemAlloc_v2", offsetof(hbm_driver, memory_allocate)},
    {"cuMemFree_v2", offsetof(hbm_driver, memory_free)},
    {"cuMemHostAlloc", offsetof(hbm_driver, host_allocate)},
    {"cuMemFreeHost", offsetof(hbm_driver, host_free)},
    {"cuMemHostRegister_v2", offsetof(hbm_driver, host_register)},
    {"cuMemHostUnregister", offsetof(hbm_driver, host_unregister)},
    {"cuStreamCreate", offsetof(hbm_driver, stream_create)},
    {"cuStreamDestroy_v2", offsetof(hbm_driver, stream_destroy)},
    {"cuStreamSynchronize", offsetof(hbm_driver, stream_wait)},
    {"cuEventCreate", offsetof(hbm_driver, event_create)},
    {"cuEventDestroy_v2", offsetof(hbm_driver, event_destroy)},
    {"cuEventRecord", offsetof(hbm_driver, event_record)},
    {"cuEventQuery", offsetof(hbm_driver, event_query)},
    {"cuMemcpyHtoDAsync_v2", offsetof(hbm_driver, copy_in)},
    {"cuMemcpyDtoHAsync_v2", offsetof(hbm_driver, copy_out)},
};

/* Fills all pointers. False, with the name of the first symbol that is missing. */
static bool driver_look_up(hbm_driver *driver, char *reason, size_t reason_size)
{
    for (size_t i = 0; i < sizeof hbm_symbols / sizeof hbm_symbols[0]; i++) {
        void *symbol = dlsym(driver->library, hbm_symbols[i].symbol);
        if (symbol == NULL) {
            snprintf(reason, reason_size, "the driver lacks %s", hbm_symbols[i].symbol);
            return false;
        }
        /* POSIX lets dlsym's pointer be a function's; C wants it copied. */
        memcpy((char *)driver + hbm_symbols[i].place, &symbol, sizeof symbol);
    }
    return true;
}

/* On failure the library is closed again. The count of GPUs comes from the driver, which may hide
 * some (CUDA_VISIBLE_DEVICES). */
bool hbm_driver_load(hbm_driver *driver, int *gpu_count_out, char *reason, size_t reason_size)
{
    *driver = (hbm_driver){0};
    *gpu_count_out = 0;
    /* It stays mapped when it is closed: a driver with threads of its own cannot be unmapped. */
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (driver->library == NULL) {
        snprintf(reason, reason_size, "no driver (libcuda.so.1)");
        return false;
    }
    int error = HBM_SUCCESS;
    bool found = driver_look_up(driver, reason, reason_size);
    if (found && ((error = driver->init(0)) != HBM_SUCCESS ||
                  (error = driver->device_count(gpu_count_out)) != HBM_SUCCESS)) {
        snprintf(reason, reason_size, "the driver answers with CUDA error %d", error);
        found = false;
    }
    if (found && *gpu_count_out < 1) {
        snprintf(reason, reason_size, "the driver has no GPU");
        found = false;
    }
    if (!found) hbm_driver_unload(driver);
    return found;
}

void hbm_driver_unload(hbm_driver *driver)
{
    if (driver->library != NULL) dlclose(driver->library);
    driver->library = NULL;
}
