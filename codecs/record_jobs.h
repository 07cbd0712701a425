/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_jobs.h - the planner of a GPU's work: layers of a record whose head was checked
 * (kvt_record_head_open) and a view that was checked (kvt_view_check) become jobs of kernels
 * (kernels/jobs.h, docs/GPU.md). It reads the head, the view and the view's block numbers, and no
 * memory of a GPU.
 *
 * Re-entrant; no allocation.
 */
#ifndef CODECS_RECORD_JOBS_H
#define CODECS_RECORD_JOBS_H

#include "codecs/kernels/jobs.h"
#include "record.h"
#include "view_rows.h"

enum {
    KERNEL_LAYER_CHECKS = 14, /* jobs of KERNEL_CHECK of a layer, at most: two matrices of raw
                               * tokens, metadata and five planes */
    KERNEL_LAYER_RAWS = 4,    /* of KERNEL_RAW: raw tokens in front and behind */
    KERNEL_LAYER_OTHERS = 2,  /* of each other kernel */
    KERNEL_LAYERS_MAX = 4     /* layers that one part holds */
};

/* Jobs of a kernel that a layer has at most. */
static inline uint32_t kernel_layer_jobs(kernel_id kernel)
{
    if (kernel == KERNEL_CHECK) return KERNEL_LAYER_CHECKS;
    return kernel == KERNEL_RAW ? KERNEL_LAYER_RAWS : KERNEL_LAYER_OTHERS;
}

/* Jobs of one kernel. */
typedef struct kernel_batch {
    void *jobs;        /* room for capacity jobs of the kernel, aligned to 8 */
    uint32_t capacity; /* 0: jobs may be NULL */
    uint32_t count;
    uint32_t blocks; /* of the grid */
} kernel_batch;

/* Launches that go together: of a layer, of any number of entries. The caller sets the rooms, and
 * count, blocks and verdict_count to 0. */
typedef struct kernel_plan {
    kernel_batch batches[KERNEL_COUNT];
    uint32_t *verdicts; /* a word for each job; each is set to what it is before the launch */
    uint32_t verdict_capacity;
    uint32_t verdict_count;
} kernel_plan;

/* Where the ranges of layers, and what the view needs, lie in the GPU's memory. */
typedef struct kernel_place {
    uint64_t payload;    /* address that ranges[].at count from; a multiple of 64 */
    const uint8_t *host; /* the same bytes in the host's memory, unverified; NULL: not there. fp8 of
                          * lossless has a form of 0.2.0 that no kernel decodes, seen here alone */
    const kvt_record_range *ranges;
    uint32_t range_count; /* 0: the whole record lies at `payload` */
    uint32_t reserved;    /* zero */
    uint64_t blocks;      /* address of a copy of view->blocks; 0 where that is NULL */
    uint64_t basis;       /* address of the image of kvt_record_head_basis; 0: not there */
    uint64_t room;        /* address of kvt_record_head_room bytes, a multiple of 64 */
} kernel_place;

/* The basis that decoding of a record's spans needs; NULL: none. */
const struct transform_basis *kvt_record_head_basis(const kvt_record_head *head);

/* Bytes of the GPU's memory that the jobs of layers need for themselves, until they have run. The
 * layers are those of whole spans, or some of one. */
uint64_t kvt_record_head_room(const kvt_record_head *head, uint32_t layer, uint32_t layer_count);

/*
 * Appends the jobs that verify and decode layers to a plan. Once they have run, and every word of
 * verdicts that was appended is KERNEL_SOUND, the view holds what kvt_record_head_decode writes.
 *   layout, view   as of kvt_record_head_decode; the view's addresses are the GPU's
 * KVT_OK; KVT_E_UNSUPPORTED: the record is opaque or of a codec without a kernel, or a matrix is
 * too large for one; KVT_E_SPACE: a batch or the verdicts are full, or the record is of another
 * layout; KVT_E_ARGUMENT: layers that it does not have, or a segment in no range. After a failure
 * the plan is as it was.
 */
KVT_NODISCARD kvt_status kvt_record_head_jobs(const kvt_record_head *head, const kvt_layout *layout,
                                              const kvt_view *view, uint32_t layer,
                                              uint32_t layer_count, const kernel_place *place,
                                              kernel_plan *plan);

/* Appends a job to a plan: KVT_OK; KVT_E_SPACE; KVT_E_UNSUPPORTED: too many blocks. */
KVT_NODISCARD kvt_status kernel_plan_add(kernel_plan *plan, const kernel_work *work);

/* Rows of a view as kernels see them, whose block numbers are at `blocks` in the GPU's memory; the
 * largest power of two up to 16 that divides its addresses and another number; and a job of
 * KERNEL_RAW or KERNEL_GATHER between rows, of which there is one at least, and `stored`.
 * KVT_E_UNSUPPORTED: kernels, which count in 32 bits, do not take them. */
kernel_target kernel_target_of(const view_rows *rows, const kvt_view *view, uint64_t blocks);
uint32_t kernel_target_transfer(const kernel_target *target, uint64_t other);
bool kernel_rows_fit(const view_rows *rows);
KVT_NODISCARD kvt_status kernel_plan_rows(kernel_plan *plan, kernel_id kernel,
                                          const view_rows *rows, const kernel_target *target,
                                          uint64_t stored);

/* Whether all words of [first, end) are KERNEL_SOUND: KVT_OK or KVT_E_CORRUPT. */
kvt_status kernel_plan_verdict(const kernel_plan *plan, uint32_t first, uint32_t end);

#endif
