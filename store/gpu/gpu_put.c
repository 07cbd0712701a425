/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_put.c - see gpu_put.h. One piece of pinned memory and one of scratch have the same things at
 * the same places, but for the verdicts, which both reach where they are pinned, and the entry that
 * a record is decoded into, which is in scratch alone:
 *
 *     | payload | histograms | block numbers | jobs of each kernel |   verdicts, or the entry |
 *       <---------- out ---->  <--------- in ------------------------>
 *                 <---- in: zeros
 *
 * All of it happens in the stream GPU_OUT: kernels that decode come before those that encode.
 *
 * Thread rule: as the header says.
 */
#include "store/gpu/gpu_put.h"

#include "codecs/kernels/kernel_table.h"
#include "codecs/record_far.h"
#include "codecs/view_rows.h"
#include "gpu/gpu_kernels.h"
#include "store/gpu/gpu_far.h"
#include "store/gpu/gpu_views.h"
#include "store/read/groups.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PUT_ALIGN = 256 };

/* One record under way. */
typedef struct gpu_put {
    const store_gpu_source *source;
    gpu_site *site;
    gpu_host *host;
    uint64_t scratch;
    uint64_t histograms_at, blocks_at, jobs_at, end, scratch_bytes;
    kvt_record_head *head; /* of the record that is decoded first; or NULL */
    kvt_view view;         /* what is encoded */
    uint32_t decoded;      /* verdicts of what decodes; the others come behind */
    kernel_plan plan;
    record_far far;
} gpu_put;

bool store_gpu_may_encode(gpu_site *site, kvt_variant variant)
{
    return gpu_has_scratch(site) && record_far_takes(variant);
}

/* Whether all segments lie in the record, for kernels read where its head says. */
static kvt_status put_check_bounds(const gpu_put *put)
{
    const store_gpu_source *source = put->source;
    const uint64_t most = source->record_bytes;
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    uint32_t count = 0;
    kvt_status status = kvt_record_head_ranges(put->head, 0, source->layout->layers, ranges,
                                               KVT_RECORD_RANGES_MAX, &count);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        if (ranges[i].offset > most || ranges[i].bytes > most - ranges[i].offset)
            status = KVT_E_CORRUPT;
    return status;
}

/* Keeps what the jobs need of a record's head. */
static kvt_status put_keep_head(gpu_put *put, const void *bytes, uint64_t count)
{
    const kvt_record_spec *expected = put->source->expected;
    uint64_t none, needed;
    kvt_status status =
        kvt_record_head_open(bytes, count, false, expected, &none, sizeof none, &needed);
    assert(status != KVT_OK);
    if (status != KVT_E_SPACE) return status;
    put->head = malloc(needed);
    if (put->head == NULL) return KVT_E_MEMORY;
    status = kvt_record_head_open(bytes, count, false, expected, put->head, needed, &needed);
    return status == KVT_OK ? put_check_bounds(put) : status;
}

/* Brings the head of the record that is decoded first. */
static kvt_status put_open_head(gpu_put *put)
{
    const store_gpu_source *source = put->source;
    const kvt_record_range head = {.bytes = codecs_head_bytes(source->layout, source->variant)};
    gpu_host *host;
    if (source->view != NULL) return KVT_OK;
    if (head.bytes == 0 || head.bytes > source->record_bytes) return KVT_E_UNSUPPORTED;
    kvt_status status =
        gpu_site_check(put->site, (const void *)(uintptr_t)source->record, source->record_bytes);
    if (status == KVT_OK)
        status =
            store_gpu_far_fetch(put->site, source->record, source->record_bytes, &head, 1, &host);
    if (status != KVT_OK) return status;
    status = put_keep_head(put, host->memory, head.bytes);
    gpu_host_give(put->site, host);
    return status;
}

static uint64_t put_aligned(uint64_t bytes)
{
    return (bytes + PUT_ALIGN - 1) / PUT_ALIGN * PUT_ALIGN;
}

static uint64_t put_table_bytes(const kvt_view *view)
{
    return view != NULL && view->blocks != NULL ? view->block_count * sizeof *view->blocks : 0;
}

/* Lays everything out. Returns the bytes of the verdicts. */
static uint64_t put_lay(gpu_put *put)
{
    const uint64_t counts = (uint64_t)record_far_matrices(&put->far) * RECORD_FAR_COUNTS;
    const uint32_t layers = put->head != NULL ? put->source->layout->layers : 0;
    uint64_t at, words = 0;
    put->histograms_at = put_aligned(record_far_bytes(&put->far));
    put->blocks_at = put_aligned(put->histograms_at + counts * sizeof(uint32_t));
    put->jobs_at = put_aligned(put->blocks_at + put_table_bytes(put->source->view));
    at = put->jobs_at;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        kernel_batch *batch = &put->plan.batches[k];
        batch->capacity = k < KERNEL_DECODERS ? kernel_layer_jobs(k) * layers
                                              : record_far_jobs_most(&put->far, k);
        words += batch->capacity;
        at += put_aligned((uint64_t)batch->capacity * kernel_facts_of(k)->job_bytes);
    }
    put->end = put->scratch_bytes = at;
    if (put->head != NULL) put->scratch_bytes += groups_bytes(put->source->layout);
    put->plan.verdict_capacity = (uint32_t)words;
    return words * sizeof(uint32_t);
}

/* Where the jobs of a kernel lie in either memory. */
static uint64_t put_jobs_at(const gpu_put *put, kernel_id kernel)
{
    return (uint64_t)((const uint8_t *)put->plan.batches[kernel].jobs -
                      (const uint8_t *)put->host->memory);
}

/* Makes the jobs that decode the record, if there is one, and names what is encoded. */
static kvt_status put_plan_entry(gpu_put *put)
{
    const store_gpu_source *source = put->source;
    const kernel_place place = {.payload = source->record};
    if (put->head == NULL) {
        put->view = *source->view;
        return KVT_OK;
    }
    put->view = codecs_packed_view(source->layout, (void *)(uintptr_t)(put->scratch + put->end));
    const kvt_status status = kvt_record_head_jobs(put->head, source->layout, &put->view, 0,
                                                   source->layout->layers, &place, &put->plan);
    put->decoded = put->plan.verdict_count;
    return status;
}

/* Makes the jobs in pinned memory, and loads the kernels that have some. */
static kvt_status put_plan_jobs(gpu_put *put)
{
    uint8_t *memory = put->host->memory;
    const kvt_view *view = &put->view;
    uint64_t at = put->jobs_at;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        kernel_batch *batch = &put->plan.batches[k];
        batch->jobs = memory + at;
        at += put_aligned((uint64_t)batch->capacity * kernel_facts_of(k)->job_bytes);
    }
    assert(at == put->end);
    put->plan.verdicts = (uint32_t *)(void *)(memory + put->end);
    memset(memory + put->histograms_at, 0, put->blocks_at - put->histograms_at);
    kvt_status status = put_plan_entry(put);
    if (status != KVT_OK) return status;
    if (view->blocks != NULL) memcpy(memory + put->blocks_at, view->blocks, put_table_bytes(view));
    const record_far_place place = {.payload = put->scratch,
                                    .histograms = put->scratch + put->histograms_at,
                                    .blocks =
                                        view->blocks != NULL ? put->scratch + put->blocks_at : 0};
    status = record_far_jobs(&put->far, view, &place, &put->plan);
    for (uint32_t k = 0; k < KERNEL_COUNT && status == KVT_OK; k++)
        if (put->plan.batches[k].count != 0) status = gpu_kernel_load(put->site, k);
    return status;
}

/* Puts all work into the stream, and waits for it. */
static kvt_status put_run_jobs(const gpu_put *put)
{
    uint8_t *memory = put->host->memory;
    kvt_status status = store_gpu_wait_ready(put->site, &put->view);
    if (status != KVT_OK) return status;
    status = gpu_copy_bytes(put->site, GPU_OUT, put->scratch + put->histograms_at,
                            memory + put->histograms_at, put->end - put->histograms_at);
    for (uint32_t k = 0; k < KERNEL_COUNT && status == KVT_OK; k++) {
        const kernel_batch *jobs = &put->plan.batches[k];
        if (jobs->count != 0)
            status = gpu_kernel_launch(put->site, GPU_OUT, k, put->scratch + put_jobs_at(put, k),
                                       jobs->count, jobs->blocks, put->plan.verdicts);
    }
    if (status == KVT_OK) status = gpu_copy_back(put->site, memory, put->scratch, put->blocks_at);
    status = gpu_settle(put->site, GPU_OUT, status);
    if (status != KVT_OK) return status;
    status = kernel_plan_verdict(&put->plan, 0, put->decoded);
    if (status != KVT_OK) gpu_count(put->site, GPU_UNSOUND, put->source->layout->layers);
    if (status == KVT_OK)
        status = kernel_plan_verdict(&put->plan, put->decoded, put->plan.verdict_count);
    return status;
}

/* Encodes with memory of both sides. */
static kvt_status put_encode(gpu_put *put, uint64_t verdict_bytes, uint64_t *record_bytes_out)
{
    kvt_status status = gpu_host_take(put->site, put->end + verdict_bytes, &put->host);
    if (status != KVT_OK) return status;
    status = put_plan_jobs(put);
    if (status == KVT_OK) status = put_run_jobs(put);
    if (status == KVT_OK) {
        uint8_t *memory = put->host->memory;
        record_far_end(&put->far, memory,
                       (const uint32_t *)(const void *)(memory + put->histograms_at),
                       record_bytes_out);
        gpu_count(put->site, GPU_ENCODED_BY_GPU, put->source->layout->layers);
    }
    gpu_host_give(put->site, put->host);
    return status;
}

kvt_status store_gpu_encode(const store_gpu_source *source, const kvt_record_spec *spec,
                            void *record, uint64_t capacity, uint64_t *record_bytes_out)
{
    if (!store_gpu_may_encode(source->site, spec->variant)) return KVT_E_UNSUPPORTED;
    gpu_put *put = calloc(1, sizeof *put);
    if (put == NULL) return KVT_E_MEMORY;
    put->source = source;
    put->site = source->site;
    kvt_status status = record_far_begin(&put->far, spec, record, capacity);
    if (status == KVT_OK) status = put_open_head(put);
    if (status == KVT_OK) {
        const uint64_t verdict_bytes = put_lay(put);
        status = gpu_scratch_take(put->site, put->scratch_bytes, &put->scratch);
        if (status == KVT_OK) {
            status = put_encode(put, verdict_bytes, record_bytes_out);
            gpu_scratch_give(put->site, put->scratch, put->scratch_bytes);
        }
    }
    free(put->head);
    free(put);
    return status;
}
