/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_layer.h - the common head of the devices that wrap another one, and the calls that such a
 * layer passes through unchanged. `throttle` is a layer, and so is the fault device of the tests.
 *
 * A layer owns its inner device from the moment it is made until it is closed. Its facts are a copy
 * of the inner device's, but for the engine, which names the layer too ("memcpy+throttle").
 * Submission, reaping and closing are each layer's own: a layer gives the inner device operations
 * of its own, so that every kvt_io has one owner.
 *
 * Thread rule: as device_ops.h.
 */
#ifndef TIERS_DEVICE_LAYER_H
#define TIERS_DEVICE_LAYER_H

#include "device_ops.h"

/* The first member of every layer's struct, so that a kvt_device of a layer is one of these. */
typedef struct tiers_layer {
    kvt_device base;
    kvt_device *inner;
} tiers_layer;

/* Makes a zeroed layer over an open device: facts, name and engine are the inner one's. */
void tiers_layer_init(tiers_layer *layer, const kvt_device_ops *ops, kvt_device *inner);

/* Members of kvt_device_ops. attach and register_buffers may change how the inner device works, so
 * they name the engine anew. */
void tiers_layer_flush(kvt_device *device);
kvt_status tiers_layer_sync(kvt_device *device);
void tiers_layer_attach(kvt_device *device);
void tiers_layer_detach(kvt_device *device);
kvt_status tiers_layer_register_buffers(kvt_device *device, const kvt_device_region *regions,
                                        uint32_t count);
kvt_status tiers_layer_trim(kvt_device *device, uint64_t offset, uint64_t bytes);
uint64_t tiers_layer_address(kvt_device *device);

#endif
