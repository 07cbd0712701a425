/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_bases.h - bases of codec transform in the memory of one GPU: each is sent there at its first
 * use, as transform_image.h lays it out, and stays until the site is closed.
 *
 * Statuses as of gpu_site.h. Thread rule: any thread; a basis that is on its way is waited for.
 */
#ifndef GPU_BASES_H
#define GPU_BASES_H

#include "codecs/transform_basis.h"
#include "gpu_site.h"

/* Of one site: so many bases, of so many bytes in all, which do not make way for others. */
#define GPU_BASES_MAX   8u
#define GPU_BASES_BYTES UINT64_C(2147483648)

/* The address of a basis, sent now or before. KVT_E_UNSUPPORTED: others have the room, or a copy
 * has failed; KVT_E_MEMORY: the GPU has none now. The next call tries again. */
KVT_NODISCARD kvt_status gpu_basis_take(gpu_site *site, const transform_basis *basis,
                                        uint64_t *address_out);

#endif
