/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu_kernels.c - the library's kernels alone, with the jobs that the planner makes of whole
 * records in the GPU's memory: what they read and write a second beside a copy. Bytes read are
 * those stored in the segments of the records, whatever a kernel reads of them twice.
 *
 * Thread rule: as bench_gpu.h.
 */
#include "bench_gpu.h"
#include "bench_parts.h"

#include <stdlib.h>
#include <string.h>

enum { SET_TIMES = 9, SET_TIMES_QUICK = 3, DECODE_BASIS_LAYERS = 2 };

/* Entries in the GPU's memory, and pages for them. */
typedef struct gpu_set {
    gpu_bench *bench;
    kvt_layout layout;
    kvt_variant variant;
    uint32_t entries;
    uint64_t entry_bytes, record_room;
    uint64_t made, stored; /* bytes of the pages; of the segments */
    uint8_t *records[GPU_BENCH_SAMPLES];
    uint64_t record_bytes[GPU_BENCH_SAMPLES];
    uint8_t *scratch;
    uint64_t scratch_bytes;
    gpu_address payload, pages, blocks, jobs, room, image;
    uint64_t room_bytes; /* of an entry's jobs of transform, at most */
    uint8_t *object;     /* of the basis; NULL: the variant needs none */
    transform_basis basis;
    const transform_basis *bases[1];
    uint64_t jobs_at[KERNEL_COUNT];
    uint64_t job_bytes;
    uint32_t *block_numbers;
    kvt_view view;
    kernel_plan plan;
    uint8_t *job_memory;
    gpu_host *verdicts;
    bool checks, decodes, copies; /* what a run does */
    gpu_host *source;             /* of copies */
} gpu_set;

static uint64_t set_aligned(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static void set_close(gpu_set *set)
{
    gpu_bench *bench = set->bench;
    for (uint32_t i = 0; i < GPU_BENCH_SAMPLES; i++)
        free(set->records[i]);
    free(set->scratch);
    free(set->block_numbers);
    free(set->job_memory);
    free(set->object);
    bench_gpu_free(bench, &set->payload);
    bench_gpu_free(bench, &set->pages);
    bench_gpu_free(bench, &set->blocks);
    bench_gpu_free(bench, &set->jobs);
    bench_gpu_free(bench, &set->room);
    bench_gpu_free(bench, &set->image);
    gpu_host_give(bench->site, set->verdicts);
    gpu_host_give(bench->site, set->source);
}

/* ---- records ---- */

static kvt_record_spec set_spec(const gpu_set *set)
{
    return (kvt_record_spec){.generation = 1,
                             .layout = set->layout,
                             .variant = set->variant,
                             .first_position = 4096,
                             .bases = {set->bases, set->object != NULL ? 1 : 0}};
}

/* The variant, and the basis that it needs: one of generated entries, whose hash replaces the
 * name's. */
static kvt_status set_take_variant(gpu_set *set, const char *name)
{
    kvt_status status = kvt_variant_parse(name, &set->variant);
    if (status != KVT_OK || set->variant.codec != KVT_CODEC_TRANSFORM) return status;
    status = bench_learn_basis(&set->layout, TRANSFORM_SPAN_HEAD, &set->object, &set->basis);
    if (status != KVT_OK) return status;
    set->bases[0] = &set->basis;
    set->variant.rate =
        transform_hash_start(set->basis.hash) << 10 | (set->variant.rate & TRANSFORM_STEP_MAX);
    return KVT_OK;
}

static kvt_status set_encode(gpu_set *set)
{
    const kvt_record_spec spec = set_spec(set);
    uint64_t room;
    kvt_status status = kvt_record_bound(&spec, &room, &set->scratch_bytes);
    if (status != KVT_OK) return status;
    uint8_t *source = malloc(set->entry_bytes);
    set->scratch = aligned_alloc(64, set_aligned(set->scratch_bytes + 1));
    status = source != NULL && set->scratch != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; i < GPU_BENCH_SAMPLES && i < set->entries && status == KVT_OK; i++) {
        set->records[i] = aligned_alloc(KVT_RECORD_ALIGN, codecs_align(room, KVT_RECORD_ALIGN));
        if (set->records[i] == NULL) status = KVT_E_MEMORY;
        if (status != KVT_OK) break;
        bench_gpu_sample(&set->layout, i, source);
        status = kvt_record_encode(&spec, source, set->entry_bytes, set->records[i], room,
                                   set->scratch, set->scratch_bytes, &set->record_bytes[i]);
        if (status == KVT_RAW) status = KVT_OK;
        if (set_aligned(set->record_bytes[i]) > set->record_room)
            set->record_room = set_aligned(set->record_bytes[i]);
    }
    free(source);
    return status;
}

/* ---- the plan ---- */

static kvt_status set_make_plan(gpu_set *set)
{
    const uint32_t layers = set->layout.layers * set->entries;
    uint64_t at = 0;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const uint32_t each = kernel_layer_jobs((kernel_id)k);
        set->jobs_at[k] = at;
        set->plan.batches[k].capacity = each * layers;
        set->plan.verdict_capacity += each * layers;
        at += set_aligned((uint64_t)each * layers * kernel_facts_of((kernel_id)k)->job_bytes);
    }
    set->job_bytes = at;
    set->job_memory = malloc(at);
    if (set->job_memory == NULL) return KVT_E_MEMORY;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++)
        set->plan.batches[k].jobs = set->job_memory + set->jobs_at[k];
    kvt_status status = gpu_host_take(
        set->bench->site, set->plan.verdict_capacity * sizeof(uint32_t), &set->verdicts);
    if (status == KVT_OK) set->plan.verdicts = set->verdicts->memory;
    return status;
}

/* Opens the head of a sample's record, which free() takes. */
static kvt_status set_open_head(gpu_set *set, uint32_t sample, kvt_record_head **head_out)
{
    const kvt_record_spec spec = set_spec(set);
    uint64_t bytes = 0;
    kvt_status status = kvt_record_head_open(set->records[sample], set->record_bytes[sample], true,
                                             &spec, set, 0, &bytes);
    *head_out = status == KVT_E_SPACE ? aligned_alloc(64, set_aligned(bytes)) : NULL;
    if (*head_out == NULL) return status == KVT_E_SPACE ? KVT_E_MEMORY : status;
    return kvt_record_head_open(set->records[sample], set->record_bytes[sample], true, &spec,
                                *head_out, bytes, &bytes);
}

/* Finds the room that an entry's jobs need beside the pages. */
static kvt_status set_find_room(gpu_set *set)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < GPU_BENCH_SAMPLES && set->records[i] != NULL && status == KVT_OK;
         i++) {
        kvt_record_head *head;
        status = set_open_head(set, i, &head);
        const uint64_t room =
            status == KVT_OK ? kvt_record_head_room(head, 0, set->layout.layers) : 0;
        if (room > set->room_bytes) set->room_bytes = room;
        free(head);
    }
    return status;
}

/* Appends the jobs of an entry. */
static kvt_status set_plan_entry(gpu_set *set, uint32_t entry)
{
    const uint32_t sample = entry % GPU_BENCH_SAMPLES;
    const uint32_t used = set->layout.tokens / GPU_BENCH_BLOCK;
    const kernel_place place = {.payload = set->payload + entry * set->record_room,
                                .blocks = set->blocks + (uint64_t)entry * used * sizeof(uint32_t),
                                .basis = set->image,
                                .room = set->room + entry * set->room_bytes};
    kvt_view view = set->view;
    kvt_record_head *head;
    view.blocks = set->block_numbers + (uint64_t)entry * used;
    view.block_count = used;
    kvt_status status = set_open_head(set, sample, &head);
    if (status == KVT_OK)
        status = kvt_record_head_jobs(head, &set->layout, &view, 0, set->layout.layers, &place,
                                      &set->plan);
    free(head);
    return status;
}

/* Sends the basis, and takes memory for the rooms. */
static kvt_status set_send_basis(gpu_set *set)
{
    if (set->object == NULL) return KVT_OK;
    const uint64_t bytes = transform_image_of(&set->basis.shape).bytes;
    uint8_t *image = aligned_alloc(64, set_aligned(bytes));
    kvt_status status = image != NULL ? set_find_room(set) : KVT_E_MEMORY;
    if (status == KVT_OK) status = bench_gpu_memory(set->bench, bytes, &set->image);
    if (status == KVT_OK) {
        transform_image_write(&set->basis, 0, bytes, image);
        status = bench_gpu_write(set->bench, set->image, image, bytes);
    }
    if (status == KVT_OK)
        status = bench_gpu_memory(set->bench, set->room_bytes * set->entries + 64, &set->room);
    free(image);
    return status;
}

/* Sends records, block numbers and jobs. */
static kvt_status set_send(gpu_set *set)
{
    gpu_bench *bench = set->bench;
    const uint64_t blocks = (uint64_t)set->entries * set->layout.tokens / GPU_BENCH_BLOCK;
    kvt_status status = bench_gpu_memory(bench, set->record_room * set->entries, &set->payload);
    if (status == KVT_OK) status = bench_gpu_memory(bench, blocks * 4, &set->blocks);
    if (status == KVT_OK) status = bench_gpu_memory(bench, set->job_bytes, &set->jobs);
    if (status == KVT_OK) status = set_send_basis(set);
    if (status == KVT_OK) status = bench_gpu_memory(bench, set->view.base_bytes[0], &set->pages);
    set->view.base[0] = (void *)(uintptr_t)set->pages;
    for (uint32_t i = 0; i < set->entries && status == KVT_OK; i++) {
        status = bench_gpu_write(bench, set->payload + i * set->record_room,
                                 set->records[i % GPU_BENCH_SAMPLES],
                                 set->record_bytes[i % GPU_BENCH_SAMPLES]);
        if (status == KVT_OK) status = set_plan_entry(set, i);
    }
    if (status == KVT_OK)
        status = bench_gpu_write(bench, set->blocks, set->block_numbers, blocks * 4);
    return status == KVT_OK ? bench_gpu_write(bench, set->jobs, set->job_memory, set->job_bytes)
                            : status;
}

/* KVT_E_UNSUPPORTED: no kernel decodes the variant, or the driver refuses one. */
static kvt_status set_open(gpu_bench *bench, const kvt_layout *layout, uint32_t entries,
                           const char *variant, gpu_set *set)
{
    *set = (gpu_set){.bench = bench, .layout = *layout, .entries = entries};
    const uint64_t blocks = (uint64_t)entries * layout->tokens / GPU_BENCH_BLOCK;
    kvt_status status = set_take_variant(set, variant);
    if (status == KVT_OK) status = kvt_layout_bytes(layout, &set->entry_bytes);
    if (status == KVT_OK) status = set_encode(set);
    if (status == KVT_OK)
        status = kvt_view_make(layout, "lsbth", GPU_BENCH_BLOCK, blocks, &set->view);
    set->block_numbers = malloc((blocks + 1) * sizeof(uint32_t));
    if (status == KVT_OK && set->block_numbers == NULL) status = KVT_E_MEMORY;
    for (uint64_t i = 0; i < blocks && status == KVT_OK; i++)
        set->block_numbers[i] = bench_gpu_block(i, blocks);
    if (status == KVT_OK) status = set_make_plan(set);
    if (status == KVT_OK) status = set_send(set);
    for (uint32_t k = 0; k < KERNEL_COUNT && status == KVT_OK; k++)
        if (set->plan.batches[k].count != 0) status = gpu_kernel_load(bench->site, (kernel_id)k);
    const kernel_check_job *checks = set->plan.batches[KERNEL_CHECK].jobs;
    for (uint32_t i = 0; i < set->plan.batches[KERNEL_CHECK].count; i++)
        set->stored += checks[i].stored_bytes;
    set->made = set->entry_bytes * entries;
    return status;
}

/* ---- runs ---- */

static kvt_status set_run(void *context)
{
    gpu_set *set = context;
    gpu_bench *bench = set->bench;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; set->copies && i < set->entries && status == KVT_OK; i++)
        status = gpu_copy_bytes(bench->site, GPU_IN, set->payload + i * set->record_room,
                                set->source->memory, set->record_bytes[0]);
    for (uint32_t k = 0; k < KERNEL_COUNT && status == KVT_OK; k++) {
        const kernel_batch *batch = &set->plan.batches[k];
        const bool wanted = k == KERNEL_CHECK ? set->checks : set->decodes;
        if (batch->count == 0 || !wanted) continue;
        status = gpu_kernel_launch(bench->site, GPU_IN, (kernel_id)k, set->jobs + set->jobs_at[k],
                                   batch->count, batch->blocks, set->plan.verdicts);
        bench->launches[k]++;
    }
    return status;
}

static kvt_status set_time(gpu_set *set, bool checks, bool decodes, double *seconds_out)
{
    set->checks = checks;
    set->decodes = decodes;
    return bench_gpu_time(set->bench, set->bench->options->quick ? SET_TIMES_QUICK : SET_TIMES,
                          set_run, set, seconds_out);
}

/* Whether an entry's pages are what the processor's reference decodes. */
static kvt_status set_same(gpu_set *set, uint8_t *pages, uint32_t entry, bool *same_out)
{
    const uint32_t used = set->layout.tokens / GPU_BENCH_BLOCK;
    const uint32_t sample = entry % GPU_BENCH_SAMPLES;
    uint8_t *found = malloc(set->entry_bytes);
    uint8_t *wanted = aligned_alloc(64, set_aligned(set->entry_bytes));
    kvt_status status = pages != NULL && found != NULL && wanted != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) {
        const kvt_record_spec spec = set_spec(set);
        kvt_view view = set->view;
        view.base[0] = pages;
        view.blocks = set->block_numbers + (uint64_t)entry * used;
        view.block_count = used;
        view_gather_entry(&view, &set->layout, found);
        codecs_cpu_force(CODECS_CPU_SCALAR);
        status = kvt_record_decode(set->records[sample], set->record_bytes[sample], &spec, wanted,
                                   set->entry_bytes, set->scratch, set->scratch_bytes);
        codecs_cpu_force(codecs_cpu_best());
        *same_out = status == KVT_OK && memcmp(found, wanted, set->entry_bytes) == 0;
    }
    free(found);
    free(wanted);
    return status;
}

/* Checks and decodes, and compares the first and the last entry. */
static kvt_status set_verify(gpu_set *set, bool *exact_out)
{
    const uint64_t bytes = set->view.base_bytes[0];
    uint8_t *pages = malloc(bytes);
    bool first = false, last = false;
    if (pages == NULL) return KVT_E_MEMORY;
    set->checks = set->decodes = true;
    kvt_status status = set_run(set);
    if (status == KVT_OK) {
        gpu_rest(set->bench->site, GPU_IN);
        status = bench_gpu_read(set->bench, pages, set->pages, bytes);
    }
    if (status == KVT_OK) status = set_same(set, pages, 0, &first);
    if (status == KVT_OK) status = set_same(set, pages, set->entries - 1, &last);
    free(pages);
    *exact_out =
        first && last && kernel_plan_verdict(&set->plan, 0, set->plan.verdict_count) == KVT_OK;
    return status;
}

/* ---- bars 1 and 2 ---- */

typedef struct decode_case {
    const char *name, *variant;
    uint8_t sides;
    double asked; /* of traffic, or of bytes a second; 0: nothing */
    bool rate;
} decode_case;

static kvt_status decode_one(gpu_bench *bench, const decode_case *one, const kvt_layout *layout,
                             uint32_t entries)
{
    static const char *const sides[] = {"both", "k", "both", "v"};
    gpu_bench_row row = {.name = one->name,
                         .variant = one->variant,
                         .side = sides[one->sides],
                         .isa = "cuda",
                         .entries = entries,
                         .measure = one->rate ? "bytes_per_s" : "traffic_ratio",
                         .asked = one->asked};
    gpu_set set;
    double seconds = 0;
    bool exact = false;
    if (one->asked <= 0) row.measure = NULL;
    if (bench_gpu_late(bench, one->name)) return KVT_OK;
    kvt_status status = set_open(bench, layout, entries, one->variant, &set);
    if (status == KVT_OK) status = set_verify(&set, &exact);
    if (status == KVT_OK) status = set_time(&set, false, true, &seconds);
    if (status == KVT_OK) {
        row.bytes_per_s = (double)set.made / seconds;
        row.traffic_ratio = (double)(set.made + set.stored) / seconds / bench->traffic_bytes_per_s;
        row.bit_exact = exact ? 1 : -1;
        row.reached = one->rate ? row.bytes_per_s : row.traffic_ratio;
    } else if (status == KVT_E_UNSUPPORTED) {
        row.why = "not run: the library has no kernel for it, or the driver refuses that";
        status = KVT_OK;
    }
    set_close(&set);
    if (status == KVT_OK) bench_gpu_add(bench, &row);
    return status;
}

/* What the entries of a bar look like: one side, or both, of the shape. */
static kvt_layout decode_layout(const gpu_bench *bench, uint8_t sides)
{
    kvt_layout layout = bench->own.shape;
    layout.sides = sides;
    return layout;
}

static uint32_t decode_entries(const gpu_bench *bench, const kvt_layout *layout)
{
    uint64_t bytes = 1;
    (void)!kvt_layout_bytes(layout, &bytes);
    return bench->own.decode_bytes > bytes ? (uint32_t)(bench->own.decode_bytes / bytes) : 1;
}

kvt_status bench_gpu_decode(gpu_bench *bench)
{
    static const decode_case cases[] = {
        {"decode", "raw", 0, 0.9, false},
        {"decode", "kivi:k4v4,g64", KVT_SIDES_ONE, 0.8, false},
        {"decode", "kivi:k4v4,g64", KVT_SIDES_V, 0.8, false},
        {"decode", "kivi:k2v2,g64", KVT_SIDES_ONE, 0.8, false},
        {"decode", "kivi:k2v2,g64", KVT_SIDES_V, 0.8, false},
        {"decode", "planes:k4v4,g64", KVT_SIDES_ONE, 0.8, false},
        {"decode", "planes:k4v4,g64", KVT_SIDES_V, 0.8, false},
        {"decode", "planes:k2v2,g64", KVT_SIDES_ONE, 0.8, false},
        {"decode", "planes:k2v2,g64", KVT_SIDES_V, 0.8, false},
        {"decode", "lossless:fast", 0, 0.5, false},
        {"decode", "lossless", 0, 0, false},
        {"decode", "transform:00000,s0.5", 0, 0, false},
    };
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == KVT_OK; i++) {
        kvt_layout layout = decode_layout(bench, cases[i].sides);
        /* A basis of all layers would take minutes to learn. */
        if (strncmp(cases[i].variant, "transform", 9) == 0 && layout.layers > DECODE_BASIS_LAYERS)
            layout.layers = DECODE_BASIS_LAYERS;
        status = decode_one(bench, &cases[i], &layout, decode_entries(bench, &layout));
    }
    return status;
}

#define ENTROPY_BITS 3.6

/* The variant whose records come closest to the bits that are asked for. */
static kvt_status entropy_find(gpu_bench *bench, char name[64])
{
    kvt_layout layout = decode_layout(bench, 0);
    double least = 100;
    kvt_status status = KVT_OK;
    if (layout.layers > 2) layout.layers = 2;
    for (uint32_t step = 3; step <= 12 && status == KVT_OK; step++) {
        gpu_set set = {.bench = bench, .layout = layout, .entries = 1};
        char tried[64];
        snprintf(tried, sizeof tried, "entropy:k%.2fv%.2f", 0.05 * step, 0.05 * step);
        status = kvt_variant_parse(tried, &set.variant);
        if (status != KVT_OK) { /* no such step */
            status = KVT_OK;
            continue;
        }
        status = kvt_layout_bytes(&layout, &set.entry_bytes);
        if (status == KVT_OK) status = set_encode(&set);
        const double bits = 16.0 * (double)set.record_bytes[0] / (double)set.entry_bytes;
        const double apart = bits > ENTROPY_BITS ? bits - ENTROPY_BITS : ENTROPY_BITS - bits;
        if (status == KVT_OK && apart < least) {
            least = apart;
            memcpy(name, tried, sizeof tried);
        }
        set_close(&set);
    }
    return least < 100 || status != KVT_OK ? status : KVT_E_UNSUPPORTED;
}

kvt_status bench_gpu_entropy(gpu_bench *bench)
{
    const kvt_layout layout = decode_layout(bench, 0);
    char name[64] = "";
    kvt_status status = entropy_find(bench, name);
    const decode_case one = {"entropy, one entry", name, 0, 100e9, true};
    const decode_case many = {"entropy, 1,024 streams", name, 0, 400e9, true};
    const uint32_t streams = 2u * layout.layers;
    if (status == KVT_OK) status = decode_one(bench, &one, &layout, 1);
    if (status == KVT_OK && bench->own.decode_bytes >= UINT64_C(512) << 20)
        status = decode_one(bench, &many, &layout, 1024 / streams);
    return status;
}

/* ---- bar 3 ---- */

static kvt_status check_one(gpu_bench *bench, const char *name, uint32_t tokens, uint32_t entries)
{
    kvt_layout layout = decode_layout(bench, KVT_SIDES_ONE);
    gpu_set set;
    gpu_bench_row row = {.name = name,
                         .variant = "raw",
                         .side = "k",
                         .isa = "cuda",
                         .entries = entries,
                         .measure = "traffic_ratio",
                         .asked = 0.5};
    double seconds = 0;
    bool exact = false;
    layout.tokens = tokens;
    kvt_status status = set_open(bench, &layout, entries, "raw", &set);
    if (status == KVT_OK) status = set_verify(&set, &exact);
    if (status == KVT_OK) status = set_time(&set, true, false, &seconds);
    if (status == KVT_OK) {
        row.bytes_per_s = (double)set.stored / seconds;
        row.traffic_ratio = row.reached = row.bytes_per_s / bench->traffic_bytes_per_s;
        row.bit_exact = exact ? 1 : -1;
        bench_gpu_add(bench, &row);
    }
    set_close(&set);
    return status;
}

/* What a load does on the GPU, copy included, with the checks over without them. */
static kvt_status check_loads(gpu_bench *bench, const char *variant)
{
    const kvt_layout layout = decode_layout(bench, 0);
    gpu_set set;
    gpu_bench_row row = {.name = "verified over unverified",
                         .variant = variant,
                         .side = "both",
                         .isa = "cuda",
                         .entries = decode_entries(bench, &layout),
                         .measure = "time ratio",
                         .asked = 1.1,
                         .most = true};
    double with = 0, without = 0;
    kvt_status status = set_open(bench, &layout, row.entries, variant, &set);
    if (status == KVT_OK) status = gpu_host_take(bench->site, set.record_bytes[0], &set.source);
    if (status == KVT_OK) {
        memcpy(set.source->memory, set.records[0], set.record_bytes[0]);
        set.copies = true;
        status = set_time(&set, false, true, &without);
    }
    if (status == KVT_OK) status = set_time(&set, true, true, &with);
    if (status == KVT_OK) {
        row.bytes_per_s = (double)set.made / with;
        row.link_ratio = (double)set.record_bytes[0] * row.entries / with / bench->link_bytes_per_s;
        row.reached = with / without;
        bench_gpu_add(bench, &row);
    }
    set_close(&set);
    return status;
}

kvt_status bench_gpu_check(gpu_bench *bench)
{
    const kvt_layout layout = decode_layout(bench, KVT_SIDES_ONE);
    const uint32_t entries = decode_entries(bench, &layout);
    kvt_status status = check_one(bench, "check, short segments", 16, entries);
    if (status == KVT_OK)
        status = check_one(bench, "check, many short segments", 16, entries * layout.tokens / 16);
    if (status == KVT_OK) status = check_one(bench, "check, long segments", layout.tokens, entries);
    if (status == KVT_OK) status = check_loads(bench, "planes:k4v4,g64");
    return status == KVT_OK ? check_loads(bench, "raw") : status;
}

/* ---- bar 7 ---- */

kvt_status bench_gpu_modules(gpu_bench *bench)
{
    char reason[GPU_BENCH_TEXT];
    gpu_site *fresh = NULL;
    kvt_status status =
        gpu_site_open(0, GPU_ROOM_BYTES, GPU_ROOM_BYTES, &fresh, reason, sizeof reason);
    if (status != KVT_OK) return bench_blame(bench->report, status, "a second site", reason);
    for (uint32_t k = 0; k < KERNEL_COUNT && status == KVT_OK; k++) {
        gpu_bench_row row = {.name = "module",
                             .variant = kernel_facts_of((kernel_id)k)->module,
                             .isa = "cuda",
                             .measure = "seconds",
                             .asked = 0.5,
                             .most = true};
        const uint64_t from_ns = base_clock_ns();
        status = gpu_kernel_load(fresh, (kernel_id)k);
        row.reached = (double)(base_clock_ns() - from_ns) / 1e9;
        if (status == KVT_E_UNSUPPORTED) {
            row.why = "not run: the driver refuses it";
            status = KVT_OK;
        }
        if (status == KVT_OK) bench_gpu_add(bench, &row);
        /* No case above may leave out a kernel that decodes. */
        if (status == KVT_OK && row.why == NULL && k < KERNEL_DECODERS && bench->launches[k] == 0)
            bench_gpu_add(bench, &(gpu_bench_row){.name = "decode",
                                                  .variant = row.variant,
                                                  .why = "not run: no case launches it"});
    }
    gpu_site_close(fresh);
    return status;
}
