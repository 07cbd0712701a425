/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stand_in.h - devices that a test brings itself: the text that a configuration names as its back
 * end holds the address of one of these, which lasts as long as the configuration is opened.
 */
#ifndef TESTS_STAND_IN_H
#define TESTS_STAND_IN_H

#include "tiers/devices/device_ops.h"

#include <stdio.h>

typedef struct stand_in {
    const kvt_device_ops *ops;
    void *context; /* for ops->open */
    char backend[32];
} stand_in;

/* NULL where the text is not one of a stand-in. */
static inline const stand_in *stand_in_of(const char *backend)
{
    void *found;
    return sscanf(backend, "stand-in %p", &found) == 1 ? found : NULL;
}

static inline void *stand_in_context(const kvt_device_config *config)
{
    return stand_in_of(config->backend)->context;
}

static inline const kvt_device_ops *stand_in_find(const char *backend)
{
    const stand_in *found = stand_in_of(backend);
    return found != NULL ? found->ops : NULL;
}

/* Returns the back end that a configuration names. */
static inline const char *stand_in_set(stand_in *self, const kvt_device_ops *ops, void *context)
{
    self->ops = ops;
    self->context = context;
    snprintf(self->backend, sizeof self->backend, "stand-in %p", (void *)self);
    tiers_stand_in = stand_in_find;
    return self->backend;
}

#endif
