/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_gpu.h - the time that kernels of a GPU take to verify and decode whole records that lie in
 * its memory: no copy is in it. Copies are the link's, which is measured alone.
 *
 * Thread rule: one thread.
 */
#ifndef ESTIMATOR_CODEC_GPU_H
#define ESTIMATOR_CODEC_GPU_H

#include "codecs/record.h"
#include "estimator/profile/profile_internal.h"

typedef struct codec_gpu codec_gpu;

/* A record, and what the CPU has decoded of it. */
typedef struct codec_gpu_record {
    const kvt_record_spec *spec;
    const void *record;
    uint64_t record_bytes;
    const void *decoded; /* the packed entry, of spec->layout */
    uint64_t decoded_bytes;
} codec_gpu_record;

/* Opens the first GPU. KVT_E_UNSUPPORTED and others, with a reason of one line. */
KVT_NODISCARD kvt_status codec_gpu_open(codec_gpu **out, char *reason, size_t reason_size);
void codec_gpu_close(codec_gpu *gpu);

/*
 * Decodes a record so often, and once before, whose bytes are compared with the CPU's.
 *   seconds  count of them, each of one decoding
 * KVT_OK; KVT_E_UNSUPPORTED: kernels, or the GPU's memory, do not take it; KVT_E_CORRUPT: they made
 * other bytes; KVT_E_MEMORY, KVT_E_IO, KVT_E_GONE.
 */
KVT_NODISCARD kvt_status codec_gpu_decode(codec_gpu *gpu, const codec_gpu_record *record,
                                          double *seconds, uint32_t count);

/*
 * Measures the link, out of pinned memory (writes) and into it (reads), as the device
 * PROFILE_LINK_NAME of a run, in place of what an interrupted measurement has left there.
 *   seconds  room for `count`, the repetitions
 * KVT_OK, also where the GPU lacks the memory, and nothing is measured; KVT_E_MEMORY, KVT_E_IO,
 * KVT_E_GONE; statuses of the profile.
 */
KVT_NODISCARD kvt_status measure_link(codec_gpu *gpu, kvt_profile *profile, int64_t run,
                                      double *seconds, uint32_t count);

#endif
