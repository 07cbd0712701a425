/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_table.c - see kernel_table.h. The build writes the texts (cmake/ptx.cmake).
 */
#include "kernel_table.h"

#include <assert.h>

extern const char kernel_ptx_check[], kernel_ptx_raw[], kernel_ptx_kivi[], kernel_ptx_planes[],
    kernel_ptx_lossless[], kernel_ptx_dense[], kernel_ptx_entropy[], kernel_ptx_codes[],
    kernel_ptx_transform[], kernel_ptx_ranges[], kernel_ptx_code_kivi[], kernel_ptx_code_planes[],
    kernel_ptx_ring[];

const kernel_facts *kernel_facts_of(kernel_id kernel)
{
    static const kernel_facts table[KERNEL_COUNT] = {
        [KERNEL_CHECK] = {"check", "kvt_check", kernel_ptx_check, sizeof(kernel_check_job)},
        [KERNEL_RAW] = {"raw", "kvt_raw", kernel_ptx_raw, sizeof(kernel_raw_job)},
        [KERNEL_KIVI] = {"kivi", "kvt_kivi", kernel_ptx_kivi, sizeof(kernel_group_job)},
        [KERNEL_PLANES] = {"planes", "kvt_planes", kernel_ptx_planes, sizeof(kernel_group_job)},
        [KERNEL_LOSSLESS] = {"lossless", "kvt_lossless", kernel_ptx_lossless,
                             sizeof(kernel_lossless_job)},
        [KERNEL_DENSE] = {"dense", "kvt_dense", kernel_ptx_dense, sizeof(kernel_dense_job)},
        [KERNEL_ENTROPY] = {"entropy", "kvt_entropy", kernel_ptx_entropy,
                            sizeof(kernel_entropy_job)},
        [KERNEL_CODES] = {"codes", "kvt_codes", kernel_ptx_codes, sizeof(kernel_codes_job)},
        [KERNEL_TRANSFORM] = {"transform", "kvt_transform", kernel_ptx_transform,
                              sizeof(kernel_transform_job)},
        [KERNEL_GATHER] = {"raw", "kvt_gather", kernel_ptx_raw, sizeof(kernel_raw_job)},
        [KERNEL_RANGES] = {"ranges", "kvt_ranges", kernel_ptx_ranges, sizeof(kernel_code_job)},
        [KERNEL_CODE_KIVI] = {"code_kivi", "kvt_code_kivi", kernel_ptx_code_kivi,
                              sizeof(kernel_code_job)},
        [KERNEL_CODE_PLANES] = {"code_planes", "kvt_code_planes", kernel_ptx_code_planes,
                                sizeof(kernel_code_job)},
        [KERNEL_RING] = {"ring", "kvt_ring_posts", kernel_ptx_ring, sizeof(kernel_ring_post)},
    };
    assert(kernel < KERNEL_COUNT);
    return &table[kernel];
}
