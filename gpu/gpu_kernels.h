/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_kernels.h - kernels of one GPU: their modules, each loaded at its first use, device scratch
 * of bounded size, and launches in a stream, behind the copies that it was given: GPU_IN to decode,
 * GPU_OUT to encode.
 *
 *     gpu_kernel_load -> gpu_scratch_take -> gpu_copy_bytes -> gpu_kernel_launch -> gpu_mark
 *                     -> gpu_await -> gpu_scratch_give
 *
 * Statuses as of gpu_site.h. Thread rule: any thread.
 */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include "codecs/kernels/jobs.h"
#include "gpu_site.h"

/* Loads a kernel, if it is not there yet. KVT_E_UNSUPPORTED: the site has no scratch, or the driver
 * has refused the kernel, now or before: the driver is too old, it has no compiler, or the GPU's
 * compute capability is below 8.0. */
KVT_NODISCARD kvt_status gpu_kernel_load(gpu_site *site, kernel_id kernel);

/* Whether the driver has refused a kernel. */
bool gpu_kernels_refused(gpu_site *site);

/* Writes which engine decodes on the GPU, and the first kernel that it lacks with the driver's
 * error, as kvt_gpu_stats.engine says. */
void gpu_kernels_engine(gpu_site *site, char *text, size_t size);

/* Whether the site has memory for kernels, and the driver has refused none. */
bool gpu_has_scratch(gpu_site *site);

/* Takes memory of the GPU, at a multiple of 256. KVT_BUSY: others have it now; KVT_E_UNSUPPORTED:
 * there will never be so much. Given back, it is used by no work in a stream any more. */
KVT_NODISCARD kvt_status gpu_scratch_take(gpu_site *site, uint64_t bytes, uint64_t *address_out);
void gpu_scratch_give(gpu_site *site, uint64_t address, uint64_t bytes);

/* Queues a copy of pinned memory into scratch, in a stream, and of scratch into pinned memory, in
 * GPU_OUT. */
KVT_NODISCARD kvt_status gpu_copy_bytes(gpu_site *site, gpu_way stream, uint64_t address,
                                        const void *pinned, uint64_t bytes);
KVT_NODISCARD kvt_status gpu_copy_back(gpu_site *site, void *pinned, uint64_t address,
                                       uint64_t bytes);

/* Queues a launch of a kernel that is loaded: jobs in memory of the GPU, verdicts pinned. */
KVT_NODISCARD kvt_status gpu_kernel_launch(gpu_site *site, gpu_way stream, kernel_id kernel,
                                           uint64_t jobs, uint32_t job_count, uint32_t blocks,
                                           uint32_t *verdicts);

/* The same in a stream of the engine, with an event behind it; words: the kernel's third parameter.
 * KVT_E_ARGUMENT: the stream belongs to another context. After a failure nothing is under way. */
KVT_NODISCARD kvt_status gpu_kernel_launch_for(gpu_site *site, void *stream, kernel_id kernel,
                                               uint64_t jobs, uint32_t job_count, uint32_t blocks,
                                               uint64_t words, gpu_event **event_out);

#endif
