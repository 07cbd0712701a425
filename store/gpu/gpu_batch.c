/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_batch.c - see gpu_batch.h. Jobs and verdict words lie in one pinned buffer; the jobs are
 * copied to the scratch in front of the launches, the words are read where they are. The file knows
 * no load and reads no device.
 *
 * Thread rule: as the header says.
 */
#include "store/gpu/gpu_batch.h"

#include "codecs/kernels/kernel_table.h"
#include "gpu/gpu_bases.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_PARTS = 128, BATCH_ALIGN = 64, BATCH_LAYER_BYTES = 16384 };

struct store_gpu_batch {
    gpu_site *site;
    gpu_host *host;
    uint64_t scratch; /* where the jobs are copied, as they lie in host */
    uint64_t job_bytes;
    uint64_t bytes; /* pinned, of all */
    kernel_plan plan;
    uint32_t count;
    store_gpu_part parts[BATCH_PARTS];
};

static uint64_t batch_aligned(uint64_t bytes)
{
    return (bytes + BATCH_ALIGN - 1) / BATCH_ALIGN * BATCH_ALIGN;
}

/* Gives a plan its rooms for the jobs of `layers` layers, and behind them for their words; NULL:
 * their sizes alone. Returns the bytes of the jobs. */
static uint64_t batch_make_plan(uint8_t *memory, uint32_t layers, kernel_plan *plan)
{
    uint64_t at = 0;
    *plan = (kernel_plan){.verdicts = NULL};
    for (uint32_t k = 0; k < KERNEL_DECODERS; k++) {
        const uint32_t capacity = kernel_layer_jobs(k) * layers;
        plan->batches[k] = (kernel_batch){.capacity = capacity};
        if (memory != NULL) plan->batches[k].jobs = memory + at;
        plan->verdict_capacity += capacity;
        at += batch_aligned((uint64_t)capacity * kernel_facts_of(k)->job_bytes);
    }
    if (memory != NULL) plan->verdicts = (uint32_t *)(void *)(memory + at);
    return at;
}

/* Appends the jobs of a layer, whose bytes are at part->scratch. */
static kvt_status batch_plan(const store_gpu_layer *layer, const store_gpu_part *part,
                             kernel_plan *plan)
{
    const bool sent = layer->far == 0;
    const bool pinned = sent && part->host != NULL && !part->here;
    const kernel_place place = {.payload = sent ? part->scratch : layer->far,
                                .host = pinned ? part->host->memory : NULL,
                                .ranges = layer->ranges,
                                .range_count = sent ? layer->range_count : 0,
                                .blocks = part->blocks,
                                .basis = part->basis,
                                .room = part->room};
    assert(layer->range_count != 0);
    return kvt_record_head_jobs(layer->head, layer->layout, layer->view, layer->layer,
                                layer->layers, &place, plan);
}

kvt_status store_gpu_batch_takes(gpu_site *site, const store_gpu_layer *layer)
{
    _Alignas(BATCH_ALIGN) uint8_t room[BATCH_LAYER_BYTES];
    /* Addresses are of no interest here. */
    const store_gpu_part part = {
        .scratch = BATCH_ALIGN, .blocks = BATCH_ALIGN, .basis = BATCH_ALIGN, .room = BATCH_ALIGN};
    kernel_plan plan;
    const uint64_t job_bytes = batch_make_plan(room, layer->layers, &plan);
    assert(layer->layers <= KERNEL_LAYERS_MAX);
    assert(job_bytes + plan.verdict_capacity * sizeof(uint32_t) <= sizeof room);
    (void)job_bytes;
    kvt_status status = batch_plan(layer, &part, &plan);
    for (uint32_t k = 0; k < KERNEL_DECODERS && status == KVT_OK; k++)
        if (plan.batches[k].count != 0) status = gpu_kernel_load(site, k);
    return status;
}

/* ---- parts ---- */

/* Whether the bytes of a layer are sent from where its record lies. fp8 is not: the planner looks
 * at its bytes where they are pinned. */
static bool part_is_here(gpu_site *site, const store_gpu_layer *layer, const uint8_t *payload)
{
    uint64_t first = UINT64_MAX, end = 0;
    if (layer->home.memory == NULL || layer->layout->dtype == KVT_DTYPE_FP8) return false;
    for (uint32_t i = 0; i < layer->range_count; i++) {
        const kvt_record_range *range = &layer->ranges[i];
        if (range->offset < first) first = range->offset;
        if (range->offset + range->bytes > end) end = range->offset + range->bytes;
    }
    return gpu_region_pin(site, &layer->home, payload + first, end - first);
}

/* Queues the copies of a layer's bytes, and of the block numbers behind them, from where the record
 * lies, or through the part's pinned memory. */
static kvt_status part_send(gpu_site *site, const store_gpu_layer *layer, const uint8_t *payload,
                            bool whole, const store_gpu_part *part, uint64_t stored, uint64_t table)
{
    uint8_t *pinned = part->host != NULL ? part->host->memory : NULL;
    const uint64_t skipped = part->here ? stored : 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < layer->range_count && stored != 0 && status == KVT_OK; i++) {
        const kvt_record_range *range = &layer->ranges[i];
        const uint8_t *from = payload + (whole ? range->offset : range->at);
        if (part->here)
            status =
                gpu_region_copy(site, &layer->home, part->scratch + range->at, from, range->bytes);
        else
            memcpy(pinned + range->at, from, range->bytes);
    }
    if (status != KVT_OK || pinned == NULL) return status;
    if (table != 0) memcpy(pinned + stored - skipped, layer->view->blocks, table);
    return gpu_copy_bytes(site, GPU_IN, part->scratch + skipped, pinned, stored - skipped + table);
}

kvt_status store_gpu_part_take(gpu_site *site, const store_gpu_layer *layer, const uint8_t *payload,
                               bool whole, store_gpu_part *part)
{
    const kvt_view *view = layer->view;
    const kvt_record_range *last = &layer->ranges[layer->range_count - 1];
    const uint64_t stored = layer->far == 0 ? batch_aligned(last->at + last->bytes) : 0;
    const uint64_t table = view->blocks != NULL ? view->block_count * sizeof *view->blocks : 0;
    const uint64_t room_at = batch_aligned(stored + table);
    const transform_basis *basis = kvt_record_head_basis(layer->head);
    kvt_status status = KVT_OK;
    *part = (store_gpu_part){
        .scratch_bytes = room_at + kvt_record_head_room(layer->head, layer->layer, layer->layers),
        .layers = layer->layers,
        .far = layer->far != 0};
    if (basis != NULL) status = gpu_basis_take(site, basis, &part->basis);
    if (status == KVT_OK) status = gpu_scratch_take(site, part->scratch_bytes, &part->scratch);
    if (status != KVT_OK) return status;
    part->blocks = table != 0 ? part->scratch + stored : 0;
    part->room = part->scratch + room_at;
    part->here = stored != 0 && whole && part_is_here(site, layer, payload);
    const uint64_t pinned = (part->here ? 0 : stored) + table;
    if (pinned != 0) status = gpu_host_take(site, pinned, &part->host);
    if (status == KVT_OK) status = part_send(site, layer, payload, whole, part, stored, table);
    if (status != KVT_OK) {
        gpu_rest(site, GPU_IN);
        store_gpu_part_give(site, part);
    }
    return status;
}

void store_gpu_part_give(gpu_site *site, store_gpu_part *part)
{
    gpu_host_give(site, part->host);
    gpu_scratch_give(site, part->scratch, part->scratch_bytes);
    *part = (store_gpu_part){.owner = NULL};
}

/* ---- batches ---- */

kvt_status store_gpu_batch_make(gpu_site *site, store_gpu_batch **batch_out)
{
    store_gpu_batch *batch = calloc(1, sizeof *batch);
    kernel_plan plan;
    if (batch == NULL) return KVT_E_MEMORY;
    batch->site = site;
    batch->job_bytes = batch_make_plan(NULL, BATCH_PARTS, &plan);
    const uint64_t words = plan.verdict_capacity * sizeof *plan.verdicts;
    kvt_status status = gpu_scratch_take(site, batch->job_bytes, &batch->scratch);
    if (status != KVT_OK) {
        free(batch);
        return status;
    }
    status = gpu_host_take(site, batch->job_bytes + words, &batch->host);
    if (status != KVT_OK) {
        store_gpu_batch_free(batch);
        return status;
    }
    batch->bytes = batch->host->bytes;
    (void)batch_make_plan(batch->host->memory, BATCH_PARTS, &batch->plan);
    *batch_out = batch;
    return KVT_OK;
}

kvt_status store_gpu_batch_add(store_gpu_batch *batch, const store_gpu_layer *layer,
                               const store_gpu_part *part)
{
    store_gpu_part *own = &batch->parts[batch->count];
    const uint32_t first = batch->plan.verdict_count;
    if (batch->count == BATCH_PARTS) return KVT_E_SPACE;
    const kvt_status status = batch_plan(layer, part, &batch->plan);
    if (status != KVT_OK) return status;
    *own = *part;
    own->first = first;
    own->end = batch->plan.verdict_count;
    batch->count++;
    if (part->host != NULL) batch->bytes += part->host->bytes;
    return KVT_OK;
}

uint64_t store_gpu_batch_bytes(const store_gpu_batch *batch)
{
    return batch->bytes;
}

uint32_t store_gpu_batch_count(const store_gpu_batch *batch)
{
    return batch->count;
}

const store_gpu_part *store_gpu_batch_part(const store_gpu_batch *batch, uint32_t index)
{
    assert(index < batch->count);
    return &batch->parts[index];
}

kvt_status store_gpu_batch_launch(store_gpu_batch *batch)
{
    kvt_status status = KVT_OK;
    for (uint32_t k = 0; k < KERNEL_DECODERS && status == KVT_OK; k++) {
        const kernel_batch *jobs = &batch->plan.batches[k];
        if (jobs->count == 0) continue;
        const uint64_t at = (uint64_t)((uint8_t *)jobs->jobs - (uint8_t *)batch->host->memory);
        status = gpu_copy_bytes(batch->site, GPU_IN, batch->scratch + at, jobs->jobs,
                                (uint64_t)jobs->count * kernel_facts_of(k)->job_bytes);
        if (status == KVT_OK)
            status = gpu_kernel_launch(batch->site, GPU_IN, k, batch->scratch + at, jobs->count,
                                       jobs->blocks, batch->plan.verdicts);
    }
    return status;
}

kvt_status store_gpu_batch_verdict(const store_gpu_batch *batch, const store_gpu_part *part)
{
    return kernel_plan_verdict(&batch->plan, part->first, part->end);
}

void store_gpu_batch_free(store_gpu_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++)
        store_gpu_part_give(batch->site, &batch->parts[i]);
    gpu_host_give(batch->site, batch->host);
    gpu_scratch_give(batch->site, batch->scratch, batch->job_bytes);
    free(batch);
}
