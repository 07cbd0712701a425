/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_far.h - a record that a GPU encodes (docs/GPU.md): the CPU places its segments, kernels
 * make them where the view is, and the CPU copies them into the record with their checksums. It is
 * byte for byte that of kvt_record_encode_view.
 *
 *     record_far_begin -> record_far_jobs -> (launches; the payload comes back) -> record_far_end
 *
 * Re-entrant; no allocation.
 */
#ifndef CODECS_RECORD_FAR_H
#define CODECS_RECORD_FAR_H

#include "record_jobs.h"
#include "record_writer.h"

enum { RECORD_FAR_COUNTS = 256 }; /* words of a matrix's histogram */

/* Such a record under way; it stays where it is. */
typedef struct record_far {
    record_plan plan;
    record_writer writer;
} record_far;

/* Where kernels find and leave things in the GPU's memory. */
typedef struct record_far_place {
    uint64_t payload;    /* address for the payload; a multiple of 64 */
    uint64_t histograms; /* of RECORD_FAR_COUNTS words of each matrix, all of them zero */
    uint64_t blocks;     /* of a copy of view->blocks; 0 where that is NULL */
} record_far_place;

/* Whether kernels encode entries in a variant. */
bool record_far_takes(kvt_variant variant);

/*
 * Places the segments of a record, and fills its head but for checksums.
 *   record   capacity bytes, aligned to 64: those of kvt_record_bound are enough
 * KVT_OK; KVT_E_UNSUPPORTED: kernels do not encode such a record; statuses of
 * kvt_record_encode_view.
 */
KVT_NODISCARD kvt_status record_far_begin(record_far *far, const kvt_record_spec *spec,
                                          void *record, uint64_t capacity);

/* Bytes of the payload, whose first one is the record's at payload_offset; matrices; and jobs of
 * each kernel that encodes, at most. */
uint64_t record_far_bytes(const record_far *far);
uint32_t record_far_matrices(const record_far *far);
uint32_t record_far_jobs_most(const record_far *far, kernel_id kernel);

/* Appends the jobs of all matrices to a plan. When every word of them is KERNEL_SOUND after they
 * have run, the payload is there. KVT_OK; KVT_E_UNSUPPORTED; KVT_E_SPACE. */
KVT_NODISCARD kvt_status record_far_jobs(const record_far *far, const kvt_view *view,
                                         const record_far_place *place, kernel_plan *plan);

/* Completes the record from its payload, of which it changes what kernels have left out, and the
 * histograms. */
void record_far_end(record_far *far, uint8_t *payload, const uint32_t *histograms,
                    uint64_t *record_bytes_out);

#endif
