/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_table.h - the kernels of a GPU as the driver takes them: the PTX of their modules, which
 * is a part of the library. Thread rule: constants.
 */
#ifndef CODECS_KERNEL_TABLE_H
#define CODECS_KERNEL_TABLE_H

#include "jobs.h"

typedef struct kernel_facts {
    const char *module;   /* kivi, planes, .. */
    const char *function; /* kvt_kivi, .. */
    const char *ptx;      /* text that ends with 0, for cuModuleLoadData */
    uint32_t job_bytes;
} kernel_facts;

const kernel_facts *kernel_facts_of(kernel_id kernel);

#endif
