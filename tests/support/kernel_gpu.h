/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_gpu.h - whole records decoded on a GPU as the driver finds it, a real one or the stand-in:
 * planned, copied, launched, verdicts read, and the pages copied back. One thread.
 */
#ifndef TESTS_SUPPORT_KERNEL_GPU_H
#define TESTS_SUPPORT_KERNEL_GPU_H

#include "codecs/kernels/kernel_table.h"
#include "codecs/record_jobs.h"
#include "codecs/transform_image.h"
#include "codecs_support.h"
#include "gpu/gpu_kernels.h"

enum { KERNEL_GPU_BLOCK = 16 };

typedef struct kernel_gpu {
    gpu_site *site; /* NULL: no GPU answers */
    char reason[160];
    uint32_t launches[KERNEL_COUNT];
    uint32_t records; /* decoded so far */
} kernel_gpu;

static inline bool kernel_gpu_open(kernel_gpu *gpu)
{
    *gpu = (kernel_gpu){.site = NULL};
    return gpu_site_open(0, GPU_ROOM_BYTES, GPU_ROOM_BYTES, &gpu->site, gpu->reason,
                         sizeof gpu->reason) == KVT_OK;
}

static inline uint64_t kernel_gpu_aligned(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Rooms for the jobs of a record's layers, one kernel's behind the other's. Returns their bytes. */
static inline uint64_t kernel_gpu_plan(uint8_t *memory, uint32_t layers, kernel_plan *plan)
{
    uint64_t at = 0;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const uint32_t each = kernel_layer_jobs((kernel_id)k);
        plan->batches[k] = (kernel_batch){.jobs = memory + at, .capacity = each * layers};
        plan->verdict_capacity += each * layers;
        at +=
            kernel_gpu_aligned((uint64_t)each * layers * kernel_facts_of((kernel_id)k)->job_bytes);
    }
    return at;
}

/* Where the parts of one decoding lie in a piece of scratch, which the host has a pinned image of:
 * jobs, block numbers, the record, the basis, the pages; behind the image the room of jobs. */
typedef struct kernel_gpu_parts {
    uint64_t jobs, blocks, payload, basis, pages, image, room, bytes;
} kernel_gpu_parts;

static inline void kernel_gpu_await(kernel_gpu *gpu, gpu_way way)
{
    gpu_event *event;
    assert_status(gpu_mark(gpu->site, way, &event), KVT_OK);
    assert_status(gpu_await(gpu->site, event), KVT_OK);
    gpu_event_give(gpu->site, event);
}

/* The view of the pages: paged, in no order, or packed. */
static inline kvt_view kernel_gpu_view(const kvt_layout *layout, bool paged, uint32_t *blocks,
                                       uint64_t *bytes_out)
{
    kvt_view view;
    const uint32_t count = (layout->tokens + KERNEL_GPU_BLOCK - 1) / KERNEL_GPU_BLOCK;
    assert_status(kvt_view_make(layout, paged ? "lbths" : "lsth", paged ? KERNEL_GPU_BLOCK : 0,
                                paged ? count : layout->tokens, &view),
                  KVT_OK);
    *bytes_out = view.base_bytes[0];
    if (!paged) return view;
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = i % 2 == 0 ? count - 1 - i / 2 : i / 2;
    view.blocks = blocks;
    view.block_count = count;
    return view;
}

/* Launches a plan whose jobs lie at `jobs` on the GPU, and waits. */
static inline void kernel_gpu_launch(kernel_gpu *gpu, const kernel_plan *plan, uint64_t jobs)
{
    const uint8_t *first = plan->batches[0].jobs;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const kernel_batch *batch = &plan->batches[k];
        if (batch->count == 0) continue;
        assert_status(gpu_kernel_load(gpu->site, (kernel_id)k), KVT_OK);
        assert_status(gpu_kernel_launch(gpu->site, GPU_IN, (kernel_id)k,
                                        jobs + (uint64_t)((const uint8_t *)batch->jobs - first),
                                        batch->count, batch->blocks, plan->verdicts),
                      KVT_OK);
        gpu->launches[k]++;
    }
    kernel_gpu_await(gpu, GPU_IN);
}

/* Decodes a whole record into `packed`, by way of pages. KVT_OK; KVT_E_CORRUPT (a verdict);
 * KVT_E_UNSUPPORTED (it has no kernel). */
static inline kvt_status kernel_gpu_decode(kernel_gpu *gpu, const void *record, uint64_t bytes,
                                           const kvt_record_spec *spec, bool paged, uint8_t *packed)
{
    const kvt_layout *layout = &spec->layout;
    const uint32_t layers = layout->layers;
    kernel_gpu_parts parts;
    kernel_plan plan = {.verdicts = NULL};
    uint64_t head_bytes, page_bytes;
    gpu_host *host, *words;
    if (layout->dtype == KVT_DTYPE_OPAQUE) return KVT_E_UNSUPPORTED;
    const size_t ends = test_ends();
    assert_status(kvt_record_head_open(record, bytes, true, spec, &plan, 0, &head_bytes),
                  KVT_E_SPACE);
    kvt_record_head *head = test_aligned(64, (head_bytes + 63) / 64 * 64);
    assert_status(kvt_record_head_open(record, bytes, true, spec, head, head_bytes, &head_bytes),
                  KVT_OK);
    uint32_t *blocks = test_alloc((layout->tokens / KERNEL_GPU_BLOCK + 1) * sizeof *blocks);
    kvt_view view = kernel_gpu_view(layout, paged, blocks, &page_bytes);
    parts.jobs = 0;
    parts.blocks = kernel_gpu_plan(NULL, layers, &plan);
    parts.payload = parts.blocks + kernel_gpu_aligned(view.block_count * sizeof *blocks);
    const transform_basis *basis = kvt_record_head_basis(head);
    const uint64_t basis_bytes = basis != NULL ? transform_image_of(&basis->shape).bytes : 0;
    parts.basis = parts.payload + kernel_gpu_aligned(bytes);
    parts.pages = parts.basis + kernel_gpu_aligned(basis_bytes);
    parts.image = parts.room = parts.pages + kernel_gpu_aligned(page_bytes);
    parts.bytes = parts.room + kernel_gpu_aligned(kvt_record_head_room(head, 0, layers));
    assert_status(gpu_host_take(gpu->site, parts.image, &host), KVT_OK);
    assert_status(gpu_host_take(gpu->site, plan.verdict_capacity * sizeof(uint32_t), &words),
                  KVT_OK);
    uint64_t scratch;
    assert_status(gpu_scratch_take(gpu->site, parts.bytes, &scratch), KVT_OK);
    uint8_t *image = host->memory;
    memset(image, 0x5a, parts.image);
    memcpy(image + parts.blocks, blocks, view.block_count * sizeof *blocks);
    memcpy(image + parts.payload, record, bytes);
    if (basis != NULL) transform_image_write(basis, 0, basis_bytes, image + parts.basis);
    plan = (kernel_plan){.verdicts = words->memory};
    (void)kernel_gpu_plan(image, layers, &plan);
    view.base[0] = (void *)(uintptr_t)(scratch + parts.pages);
    const kernel_place place = {.payload = scratch + parts.payload,
                                .host = image + parts.payload,
                                .blocks = view.blocks != NULL ? scratch + parts.blocks : 0,
                                .basis = basis != NULL ? scratch + parts.basis : 0,
                                .room = scratch + parts.room};
    kvt_status status = kvt_record_head_jobs(head, layout, &view, 0, layers, &place, &plan);
    if (status == KVT_OK) {
        assert_status(gpu_copy_bytes(gpu->site, GPU_IN, scratch, image, parts.image), KVT_OK);
        kernel_gpu_launch(gpu, &plan, scratch);
        assert_status(gpu_copy_rows(gpu->site, GPU_OUT,
                                    VIEW_ROWS_PACKED((uint8_t *)view.base[0], page_bytes),
                                    image + parts.pages),
                      KVT_OK);
        kernel_gpu_await(gpu, GPU_OUT);
        view.base[0] = image + parts.pages;
        view_gather_entry(&view, layout, packed);
        status = kernel_plan_verdict(&plan, 0, plan.verdict_count);
        gpu->records++;
    }
    gpu_scratch_give(gpu->site, scratch, parts.bytes);
    gpu_host_give(gpu->site, host);
    gpu_host_give(gpu->site, words);
    test_end(ends);
    return status;
}

#endif
