/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_layer.c - the calls that a layer passes through; see device_layer.h. They go through the
 * wrappers of device.c, so that the inner device's rules are asserted like those of any other.
 */
#include "device_layer.h"

#include <stdio.h>
#include <string.h>

/* Returns the device inside a layer. */
static kvt_device *layer_inner(kvt_device *device)
{
    return ((tiers_layer *)device)->inner;
}

/* Names the engine after the inner one and the layer. A name that is too long loses the end of the
 * inner one's part, never the layer's. It runs again whenever the inner name may have changed. */
static void layer_name_engine(kvt_device *device)
{
    size_t room = sizeof device->facts.engine - strlen(device->ops->name) - 2;
    snprintf(device->facts.engine, sizeof device->facts.engine, "%.*s+%s", (int)room,
             layer_inner(device)->facts.engine, device->ops->name);
}

void tiers_layer_init(tiers_layer *layer, const kvt_device_ops *ops, kvt_device *inner)
{
    layer->inner = inner;
    layer->base.ops = ops;
    layer->base.facts = inner->facts;
    layer->base.facts.depth_achieved = 0;
    memcpy(layer->base.name, inner->name, sizeof layer->base.name);
    layer_name_engine(&layer->base);
}

void tiers_layer_flush(kvt_device *device)
{
    kvt_device_flush(layer_inner(device));
}

kvt_status tiers_layer_sync(kvt_device *device)
{
    return kvt_device_sync(layer_inner(device));
}

void tiers_layer_attach(kvt_device *device)
{
    kvt_device_attach(layer_inner(device));
    layer_name_engine(device);
}

void tiers_layer_detach(kvt_device *device)
{
    kvt_device_detach(layer_inner(device));
}

kvt_status tiers_layer_register_buffers(kvt_device *device, const kvt_device_region *regions,
                                        uint32_t count)
{
    kvt_status status = kvt_device_register_buffers(layer_inner(device), regions, count);
    layer_name_engine(device);
    return status;
}

kvt_status tiers_layer_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    return kvt_device_trim(layer_inner(device), offset, bytes);
}

uint64_t tiers_layer_address(kvt_device *device)
{
    return kvt_device_address(layer_inner(device));
}
