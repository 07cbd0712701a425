/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_put.h - a put of views in a GPU's memory that kernels encode: the record alone crosses the
 * link (docs/GPU.md).
 *
 * Thread rule: as of the put.
 */
#ifndef STORE_GPU_PUT_H
#define STORE_GPU_PUT_H

#include "codecs/record.h"
#include "store/gpu/gpu_views.h"

/* Whether kernels are worth asking for an entry in a variant: its site has scratch for them, and
 * the codec has kernels. */
bool store_gpu_may_encode(const store_gpu_views *gpu, kvt_variant variant);

/*
 * Makes the record of an entry from its views, once their events are over, and waits for it.
 *   record   capacity bytes, aligned to 64: those of kvt_record_bound
 * KVT_OK: it is that of kvt_record_encode_view, byte for byte. Any other status: the CPU is to
 * encode, and the views can be read as before.
 */
KVT_NODISCARD kvt_status store_gpu_encode(const store_gpu_views *gpu, const kvt_record_spec *spec,
                                          void *record, uint64_t capacity,
                                          uint64_t *record_bytes_out);

#endif
