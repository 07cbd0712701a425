/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_gpu.c - see codec_gpu.h. One run of scratch holds all of a record:
 *
 *     record | decoded entry | the kernels' own room | jobs
 *
 * Jobs and verdict words are made once in pinned memory; each decoding sets the words anew. Thread
 * rule: as the header says.
 */
#include "estimator/measure/codec_gpu.h"

#include "base/clock.h"
#include "codecs/codecs.h"
#include "codecs/kernels/kernel_table.h"
#include "codecs/record_jobs.h"
#include "gpu/gpu_bases.h"
#include "gpu/gpu_kernels.h"
#include "tiers/devices/device_ops.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GPU_PIECE UINT64_C(4194304) /* of a copy */
enum { GPU_ALIGN = 256 };

struct codec_gpu {
    gpu_site *site;
};

/* A record on the GPU. */
typedef struct gpu_case {
    gpu_site *site;
    const codec_gpu_record *record;
    kvt_record_head *head;
    uint64_t scratch, scratch_bytes;
    uint64_t target, room, jobs; /* addresses */
    uint64_t job_bytes;
    gpu_host *host; /* jobs, and words behind them */
    kernel_plan plan;
} gpu_case;

static uint64_t gpu_aligned(uint64_t bytes)
{
    return (bytes + GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN;
}

kvt_status codec_gpu_open(codec_gpu **out, char *reason, size_t reason_size)
{
    codec_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return KVT_E_MEMORY;
    const kvt_status status =
        gpu_site_open(0, GPU_ROOM_BYTES, GPU_ROOM_BYTES, &gpu->site, reason, reason_size);
    if (status == KVT_OK)
        *out = gpu;
    else
        free(gpu);
    return status;
}

void codec_gpu_close(codec_gpu *gpu)
{
    if (gpu == NULL) return;
    gpu_site_close(gpu->site);
    free(gpu);
}

/* Copies pinned bytes to the GPU, or from it, and waits for them. */
static kvt_status gpu_copy_pinned(gpu_site *site, gpu_way way, uint64_t address, void *pinned,
                                  uint64_t bytes)
{
    return gpu_settle(site, way,
                      way == GPU_IN ? gpu_copy_bytes(site, way, address, pinned, bytes)
                                    : gpu_copy_back(site, pinned, address, bytes));
}

/* Copies bytes to the GPU, or from it and compares them, a piece at a time. */
static kvt_status gpu_copy(gpu_site *site, gpu_way way, uint64_t address, const void *bytes,
                           uint64_t count)
{
    gpu_host *host;
    kvt_status status = gpu_host_take(site, GPU_PIECE, &host);
    if (status != KVT_OK) return status;
    for (uint64_t at = 0; at < count && status == KVT_OK; at += GPU_PIECE) {
        const uint64_t step = count - at < GPU_PIECE ? count - at : GPU_PIECE;
        const uint8_t *here = (const uint8_t *)bytes + at;
        if (way == GPU_IN) memcpy(host->memory, here, step);
        status = gpu_copy_pinned(site, way, address + at, host->memory, step);
        if (status == KVT_OK && way == GPU_OUT && memcmp(host->memory, here, step) != 0)
            status = KVT_E_CORRUPT;
    }
    gpu_host_give(site, host);
    return status;
}

/* Opens the head, which the record has. */
static kvt_status gpu_open_head(gpu_case *one)
{
    const codec_gpu_record *record = one->record;
    uint64_t needed = 0, none;
    kvt_status status = kvt_record_head_open(record->record, record->record_bytes, true,
                                             record->spec, &none, 0, &needed);
    if (status != KVT_E_SPACE) return status != KVT_OK ? status : KVT_E_CORRUPT;
    one->head = malloc(needed);
    if (one->head == NULL) return KVT_E_MEMORY;
    return kvt_record_head_open(record->record, record->record_bytes, true, record->spec, one->head,
                                needed, &needed);
}

/* Takes the memory that the record needs, there and here. */
static kvt_status gpu_take_memory(gpu_case *one)
{
    const codec_gpu_record *record = one->record;
    const uint32_t layers = record->spec->layout.layers;
    const uint64_t record_room = gpu_aligned(record->record_bytes);
    const uint64_t target_room = gpu_aligned(record->decoded_bytes);
    const uint64_t own_room = gpu_aligned(kvt_record_head_room(one->head, 0, layers));
    for (uint32_t k = 0; k < KERNEL_DECODERS; k++) {
        const uint32_t capacity = kernel_layer_jobs((kernel_id)k) * layers;
        one->plan.batches[k].capacity = capacity;
        one->plan.verdict_capacity += capacity;
        one->job_bytes +=
            gpu_aligned((uint64_t)capacity * kernel_facts_of((kernel_id)k)->job_bytes);
    }
    one->scratch_bytes = record_room + target_room + own_room + one->job_bytes;
    kvt_status status = gpu_scratch_take(one->site, one->scratch_bytes, &one->scratch);
    if (status != KVT_OK) one->scratch_bytes = 0;
    if (status == KVT_BUSY) status = KVT_E_UNSUPPORTED;
    if (status != KVT_OK) return status;
    one->target = one->scratch + record_room;
    one->room = one->target + target_room;
    one->jobs = one->room + own_room;
    return gpu_host_take(one->site, one->job_bytes + one->plan.verdict_capacity * sizeof(uint32_t),
                         &one->host);
}

/* Makes the jobs of all layers, and loads their kernels. */
static kvt_status gpu_plan(gpu_case *one)
{
    const kvt_layout *layout = &one->record->spec->layout;
    const transform_basis *basis = kvt_record_head_basis(one->head);
    const kvt_view view = codecs_packed_view(layout, (void *)(uintptr_t)one->target);
    kernel_place place = {.payload = one->scratch, .room = one->room};
    uint8_t *at = one->host->memory;
    kvt_status status = KVT_OK;
    for (uint32_t k = 0; k < KERNEL_DECODERS; k++) {
        one->plan.batches[k].jobs = at;
        at += gpu_aligned((uint64_t)one->plan.batches[k].capacity *
                          kernel_facts_of((kernel_id)k)->job_bytes);
    }
    one->plan.verdicts = (uint32_t *)(void *)at;
    if (basis != NULL) status = gpu_basis_take(one->site, basis, &place.basis);
    if (status == KVT_OK)
        status =
            kvt_record_head_jobs(one->head, layout, &view, 0, layout->layers, &place, &one->plan);
    for (uint32_t k = 0; k < KERNEL_DECODERS && status == KVT_OK; k++)
        if (one->plan.batches[k].count != 0) status = gpu_kernel_load(one->site, (kernel_id)k);
    return status;
}

/* Decodes once; what it took. */
static kvt_status gpu_run(gpu_case *one, double *seconds_out)
{
    const kernel_plan *plan = &one->plan;
    const kernel_batch *checks = &plan->batches[KERNEL_CHECK];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < plan->verdict_count; i++)
        plan->verdicts[i] = KERNEL_SOUND;
    for (uint32_t i = 0; i < checks->count; i++)
        plan->verdicts[((const kernel_check_job *)checks->jobs)[i].head.verdict] = KERNEL_UNSEEN;
    const double began = base_clock_seconds();
    for (uint32_t k = 0; k < KERNEL_DECODERS && status == KVT_OK; k++) {
        const kernel_batch *batch = &plan->batches[k];
        const uint64_t at = (uint64_t)((uint8_t *)batch->jobs - (uint8_t *)one->host->memory);
        if (batch->count != 0)
            status = gpu_kernel_launch(one->site, GPU_IN, (kernel_id)k, one->jobs + at,
                                       batch->count, batch->blocks, plan->verdicts);
    }
    status = gpu_settle(one->site, GPU_IN, status);
    *seconds_out = base_clock_seconds() - began;
    return status == KVT_OK ? kernel_plan_verdict(plan, 0, plan->verdict_count) : status;
}

kvt_status codec_gpu_decode(codec_gpu *gpu, const codec_gpu_record *record, double *seconds,
                            uint32_t count)
{
    gpu_case one = {.site = gpu->site, .record = record};
    double unused;
    kvt_status status = gpu_open_head(&one);
    if (status == KVT_OK) status = gpu_take_memory(&one);
    if (status == KVT_OK) status = gpu_plan(&one);
    if (status == KVT_OK)
        status = gpu_copy(one.site, GPU_IN, one.scratch, record->record, record->record_bytes);
    if (status == KVT_OK)
        status = gpu_copy(one.site, GPU_IN, one.jobs, one.host->memory, one.job_bytes);
    if (status == KVT_OK) status = gpu_run(&one, &unused);
    if (status == KVT_OK)
        status = gpu_copy(one.site, GPU_OUT, one.target, record->decoded, record->decoded_bytes);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = gpu_run(&one, &seconds[i]);
    gpu_host_give(one.site, one.host);
    if (one.scratch_bytes != 0) gpu_scratch_give(one.site, one.scratch, one.scratch_bytes);
    free(one.head);
    return status;
}

/* ---- the link ---- */

#define LINK_BYTES_MOST 16777216u

static const uint32_t link_bytes[] = {65536, 1048576, 4194304, LINK_BYTES_MOST};

enum { LINK_SIZES = sizeof link_bytes / sizeof link_bytes[0] };

/* One size and direction, once more than is timed: the first copy finds nothing ready. */
static kvt_status link_time(gpu_site *site, uint64_t address, void *pinned, double *seconds,
                            uint32_t count, kvt_device_point *point)
{
    const gpu_way way = point->kind == KVT_IO_WRITE ? GPU_IN : GPU_OUT;
    const double bytes = (double)point->request_bytes;
    kvt_status status = gpu_copy_pinned(site, way, address, pinned, point->request_bytes);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const double began = base_clock_seconds();
        status = gpu_copy_pinned(site, way, address, pinned, point->request_bytes);
        seconds[i] = fmax(base_clock_seconds() - began, 1e-9);
    }
    if (status != KVT_OK) return status;
    point->repetitions = count;
    point->latency_seconds_p50 = profile_median(seconds, count); /* sorts */
    point->latency_seconds_p99 = seconds[count - 1];
    point->bytes_per_s = bytes / point->latency_seconds_p50;
    point->bytes_per_s_min = bytes / seconds[count - 1];
    point->bytes_per_s_max = bytes / seconds[0];
    return KVT_OK;
}

/* The row of the link as a device. */
static kvt_status link_insert(codec_gpu *gpu, kvt_profile *profile, int64_t run, int64_t *row_out)
{
    kvt_device link = {.name = PROFILE_LINK_NAME,
                       .facts = {.engine = "cuda+pinned",
                                 .request_bytes_max = LINK_BYTES_MOST,
                                 .depth_max = 1,
                                 .depth_achieved = 1}};
    kvt_device_facts *facts = &link.facts;
    kvt_status status = gpu_site_identity(gpu->site, facts->identity, sizeof facts->identity);
    if (status != KVT_OK) return status;
    profile_row row =
        profile_row_begin(profile, "DELETE FROM device WHERE run_id = ? AND name = ?");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_text(&row, link.name);
    status = profile_status(profile_row_end(&row));
    if (status != KVT_OK) return status;
    return profile_device_insert(profile, run, &link, KVT_TIER_HBM, row_out);
}

kvt_status measure_link(codec_gpu *gpu, kvt_profile *profile, int64_t run, double *seconds,
                        uint32_t count)
{
    kvt_device_point points[2 * LINK_SIZES];
    uint64_t address;
    int64_t row = 0;
    gpu_host *host;
    assert(count > 0);
    kvt_status status = gpu_scratch_take(gpu->site, LINK_BYTES_MOST, &address);
    if (status == KVT_BUSY || status == KVT_E_UNSUPPORTED) return KVT_OK;
    if (status != KVT_OK) return status;
    status = gpu_host_take(gpu->site, LINK_BYTES_MOST, &host);
    if (status == KVT_OK) {
        memset(host->memory, 0, LINK_BYTES_MOST); /* its pages are touched before they are timed */
        status = link_insert(gpu, profile, run, &row);
        for (uint32_t i = 0; i < 2 * LINK_SIZES && status == KVT_OK; i++) {
            points[i] = (kvt_device_point){.kind = i < LINK_SIZES ? KVT_IO_WRITE : KVT_IO_READ,
                                           .request_bytes = link_bytes[i % LINK_SIZES],
                                           .depth = 1};
            kvt_affine fit;
            status = link_time(gpu->site, address, host->memory, seconds, count, &points[i]);
            /* A direction counts once all of its sizes are there. */
            const bool whole = i % LINK_SIZES == LINK_SIZES - 1 && status == KVT_OK &&
                               profile_fit_points(points, i + 1, points[i].kind, &fit);
            if (status == KVT_OK)
                status = profile_point_insert(profile, row, &points[i], 1, whole ? &fit : NULL);
        }
        gpu_host_give(gpu->site, host);
    }
    gpu_scratch_give(gpu->site, address, LINK_BYTES_MOST);
    return status;
}
