/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_identity.h - which machine this is: what a profile is bound to, and its provenance.
 * Thread rule: any thread; reads /etc and /proc each time.
 */
#ifndef ESTIMATOR_HOST_IDENTITY_H
#define ESTIMATOR_HOST_IDENTITY_H

#include <stdint.h>

typedef struct estimator_host {
    char identity[192]; /* stable over reboots; a profile is bound to it and to cpu_model */
    char cpu_model[96];
    char name[72];
    char kernel[160];
    uint32_t cpu_count;
    uint64_t memory_bytes;
} estimator_host;

void estimator_host_read(estimator_host *host);

#endif
