/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_put.h - an entry in a GPU's memory that kernels encode, for puts of an engine's pages and for
 * moves out of the hbm tier: the record alone crosses the link (docs/GPU.md).
 *
 * Thread rule: as of the put, or the move.
 */
#ifndef STORE_GPU_PUT_H
#define STORE_GPU_PUT_H

#include "codecs/record.h"
#include "gpu/gpu_site.h"

#include <kvterrace/view.h>

/* An entry in pages, or in a record that lies in one piece and stays there meanwhile. */
typedef struct store_gpu_source {
    gpu_site *site;
    const kvt_layout *layout;
    const kvt_view *view;            /* NULL: a record, */
    uint64_t record;                 /* at this address, a multiple of 64, */
    uint64_t record_bytes;           /* whose elements are */
    kvt_variant variant;             /* coded so, and which */
    const kvt_record_spec *expected; /* has this key and generation */
} store_gpu_source;

/* Whether kernels are worth asking for a record in a variant: the site has scratch for them, and
 * the codec has kernels. */
bool store_gpu_may_encode(gpu_site *site, kvt_variant variant);

/*
 * Makes the record of an entry, once the event of its pages is over, and waits for it. A record is
 * verified and decoded into scratch first.
 *   record   capacity bytes, aligned to 64: those of kvt_record_bound
 * KVT_OK: it is that of kvt_record_encode_view, byte for byte. Any other status: the CPU is to
 * encode, and the entry can be read as before.
 */
KVT_NODISCARD kvt_status store_gpu_encode(const store_gpu_source *source,
                                          const kvt_record_spec *spec, void *record,
                                          uint64_t capacity, uint64_t *record_bytes_out);

#endif
