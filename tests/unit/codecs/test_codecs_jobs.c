/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_jobs.c - jobs that the planners make, over layouts, variants, views with gaps and
 * records drawn at random, sound ones and ones that lie with right checksums: each address of each
 * job, with all that its kernel reads or writes there, lies inside of the record, of the table of
 * blocks or of the rows that the view names. Nothing is launched.
 */
#include "kernel_site.h"

#include "codecs/record_format.h"
#include "dice.h"

#include <xxhash.h>

enum { ROUNDS = 3000, LIES = 3, POOL_AT = 1 << 20 };

static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k2v2,g32",
    "kivi:k8v4,g64",
    "kivi:k4v8,g32,half",
    "kivi:k4v4,g32,r32",
    "planes:k2v2,g32",
    "planes:k3v4",
    "planes:k6v8,g64,vhead",
    "planes:k8v3,vchan",
    "entropy:k0.25v0.5",
};

static const char *const axes[] = {"lsth", "lsbth", "lsbht", "lbths", "slbth", "blth",
                                   "tlh",  "lth",   "slth",  "ht",    "tslh"};

static uint64_t dice = 20261130;

static uint32_t draw(uint32_t from, uint32_t to)
{
    return from + (uint32_t)(dice_shift(&dice) >> 20) % (to - from + 1);
}

/* What a case has drawn. Addresses of jobs are numbers that nothing lies at. */
typedef struct drawn {
    kvt_layout layout;
    engine_view engine;
    engine_pool pool;
    uint64_t payload; /* address, */
    uint64_t payload_bytes;
    uint64_t blocks; /* address of the table */
    uint64_t jobs;   /* seen */
} drawn;

static void check_inside(const drawn *d, uint64_t address, uint64_t bytes, uint64_t align)
{
    assert_int_equal(address % align, 0);
    assert_true(address >= d->payload && bytes <= d->payload_bytes);
    assert_true(address - d->payload <= d->payload_bytes - bytes);
}

/* The bytes of rows are those that the view's definition names, and lie in its pools. */
static void check_target(const drawn *d, const kernel_target *target, uint64_t rows,
                         uint32_t transfer, uint32_t element)
{
    const kvt_view *view = &d->pool.view;
    const uint32_t sides = kvt_layout_sides(&d->layout);
    uint64_t row_bytes = 0;
    bool found = false;
    assert_true(rows >= 1 && rows <= d->layout.tokens);
    assert_int_equal(target->heads * target->head_bytes,
                     d->layout.kv_heads * d->layout.head_dim * (uint64_t)element);
    assert_true(transfer != 0 && (transfer & (transfer - 1)) == 0 && transfer <= 16);
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t p = target->first_slot + row;
        const uint64_t index = target->block_tokens != UINT32_MAX ? p / target->block_tokens : 0;
        uint64_t block = index;
        if (target->blocks != 0) {
            const uint64_t at = (target->blocks - d->blocks) / sizeof(uint32_t) + index;
            assert_int_equal((target->blocks - d->blocks) % sizeof(uint32_t), 0);
            assert_true(target->blocks >= d->blocks && at < view->block_count);
            block = view->blocks[at];
        }
        const uint64_t slot = target->block_tokens != UINT32_MAX ? p % target->block_tokens : p;
        for (uint32_t head = 0; head < target->heads; head++) {
            const uint64_t at = target->start + block * target->block_stride +
                                slot * target->token_stride + head * target->head_stride;
            bool inside = false;
            for (uint32_t i = 0; i < d->pool.pools && !inside; i++) {
                const uint64_t from = (uint64_t)(uintptr_t)d->pool.memory[i];
                inside = at >= from && at - from + target->head_bytes <= d->pool.pool_bytes;
            }
            assert_true(inside);
            assert_int_equal(at % transfer, 0);
        }
        row_bytes += target->heads * target->head_bytes;
    }
    /* The first row is the start of a row of some layer, side and token. */
    const uint64_t p = target->first_slot;
    const bool paged = target->block_tokens != UINT32_MAX;
    uint64_t block = paged ? p / target->block_tokens : 0;
    if (target->blocks != 0)
        block = view->blocks[(target->blocks - d->blocks) / sizeof(uint32_t) + block];
    const uint64_t first = target->start + block * target->block_stride +
                           (paged ? p % target->block_tokens : p) * target->token_stride;
    for (uint32_t layer = 0; layer < d->layout.layers && !found; layer++)
        for (uint32_t side = 0; side < sides && !found; side++)
            for (uint32_t token = 0; token < d->layout.tokens && !found; token++)
                found = first ==
                        (uint64_t)(uintptr_t)engine_head_at(view, sides, layer, side, token, 0);
    assert_true(found && row_bytes != 0);
}

static void check_group_job(const drawn *d, const kernel_group_job *job)
{
    static const uint32_t plane_bits[KERNEL_PLANES_MAX] = {2, 1, 1, 2, 2};
    const uint64_t elements = (uint64_t)job->tokens * job->width;
    const uint64_t runs = (job->tokens + job->group - 1) / job->group;
    const uint64_t groups =
        job->columns ? runs * job->width : (uint64_t)job->tokens * job->row_groups;
    assert_true(job->planes >= 1 && job->planes <= KERNEL_PLANES_MAX);
    assert_int_equal(job->width % 8, 0);
    assert_int_equal(job->width % job->unit, 0);
    check_inside(d, job->minima, 2 * groups, 2);
    check_inside(d, job->scales, 2 * groups, 2);
    if (job->table != 0) check_inside(d, job->table, 32, 8);
    for (uint32_t i = 0; i < job->planes; i++) {
        const uint32_t bits =
            job->bits != 0 && job->planes == 1 && job->table == 0 ? job->bits : plane_bits[i];
        check_inside(d, job->codes[i], elements * bits / 8, 64);
    }
    check_target(d, &job->target, job->tokens, job->transfer_bytes, kvt_dtype_bytes(job->dtype));
}

/* All jobs of a plan. */
static void check_plan(drawn *d, const kernel_plan *plan)
{
    const uint32_t element = kvt_dtype_bytes(d->layout.dtype);
    const uint64_t row = (uint64_t)d->layout.kv_heads * d->layout.head_dim;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const kernel_batch *batch = &plan->batches[k];
        const uint32_t bytes = kernel_facts_of((kernel_id)k)->job_bytes;
        uint32_t before = 0;
        for (uint32_t i = 0; i < batch->count; i++, d->jobs++) {
            kernel_any_job job;
            memcpy(&job, (const uint8_t *)batch->jobs + i * bytes, bytes);
            assert_true(job.head.verdict < plan->verdict_count);
            assert_true(k == KERNEL_CHECK || job.head.first_block < batch->blocks);
            assert_true(i == 0 || k == KERNEL_CHECK || job.head.first_block > before);
            before = job.head.first_block;
            switch (k) {
            case KERNEL_CHECK:
                check_inside(d, job.check.address, job.check.padded_bytes, 64);
                assert_true(job.check.stored_bytes <= job.check.padded_bytes);
                assert_true(job.check.padded_bytes != 0 && job.check.padded_bytes % 64 == 0);
                break;
            case KERNEL_RAW:
                assert_int_equal(job.raw.row_bytes, row * element);
                check_inside(d, job.raw.source, job.raw.rows * job.raw.row_bytes,
                             job.raw.transfer_bytes);
                check_target(d, &job.raw.target, job.raw.rows, job.raw.transfer_bytes, element);
                break;
            case KERNEL_KIVI:
            case KERNEL_PLANES: check_group_job(d, &job.group); break;
            case KERNEL_LOSSLESS:
                check_inside(d, job.lossless.source, job.lossless.bytes, 8);
                assert_int_equal(job.lossless.row_elements, row);
                assert_int_equal(job.lossless.elements % row, 0);
                check_target(d, &job.lossless.target, job.lossless.elements / row,
                             job.lossless.transfer_bytes, element);
                break;
            case KERNEL_DENSE:
                check_inside(d, job.dense.source, job.dense.bytes, 8);
                assert_int_equal(job.dense.row, row);
                check_target(d, &job.dense.target, job.dense.tokens, job.dense.transfer_bytes,
                             element);
                break;
            case KERNEL_ENTROPY:
                check_inside(d, job.entropy.source, job.entropy.bytes, 8);
                assert_int_equal(job.entropy.width, row);
                check_target(d, &job.entropy.target, job.entropy.tokens, job.entropy.transfer_bytes,
                             element);
                break;
            default: fail_msg("a job of kernel %u", k);
            }
        }
    }
}

/* Draws a layout and a view of it, whose pools are wider than the entry in some ways, so that there
 * are gaps between heads, tokens and layers. False: the engine has no such view. */
static bool draw_view(drawn *d)
{
    static const uint16_t dims[] = {8, 16, 24, 64, 96, 7};
    kvt_layout *layout = &d->layout;
    *layout = (kvt_layout){.layers = (uint16_t)draw(1, 4),
                           .kv_heads = (uint16_t)draw(1, 3),
                           .head_dim = dims[draw(0, 5)],
                           .dtype = (uint8_t)draw(KVT_DTYPE_FP16, KVT_DTYPE_FP8),
                           .order = draw(0, 1) != 0 ? KVT_ORDER_SIDE_LAYER : 0,
                           .sides = draw(0, 4) == 0 ? KVT_SIDES_ONE : 0,
                           .tokens = draw(1, 90)};
    kvt_layout wide = *layout;
    wide.layers = (uint16_t)(wide.layers + draw(0, 1));
    wide.kv_heads = (uint16_t)(wide.kv_heads + draw(0, 1));
    wide.head_dim = (uint16_t)(wide.head_dim + draw(0, 1) * draw(1, 8));
    const char *order = axes[draw(0, sizeof axes / sizeof axes[0] - 1)];
    const bool paged = strchr(order, 'b') != NULL;
    d->engine = (engine_view){order, order, paged ? draw(1, 33) : 0, 0};
    if (paged) d->engine.first_slot = draw(0, d->engine.block - 1);
    return engine_pool_open(&d->pool, &d->engine, &wide, 1, SITE_FILL);
}

/* Changes fields of the header and of the table, and makes the checksums of both right again. */
static void lie(encoded *e)
{
    record_header header;
    const uint32_t lies = draw(1, 3);
    memcpy(&header, e->record.data, sizeof header);
    const uint64_t table = header.segment_count * sizeof(record_segment);
    for (uint32_t i = 0; i < lies; i++) {
        uint8_t *at = e->record.data;
        if (draw(0, 2) == 0)
            at += draw(offsetof(record_header, layers),
                       RECORD_LEVELS_AT + 8); /* layout, variant, sizes, raw tokens */
        else
            at += RECORD_TABLE_OFFSET + draw(0, (uint32_t)table - 1);
        if (draw(0, 1) != 0)
            *at = (uint8_t)draw(0, 255);
        else
            *at = (uint8_t)(*at + (draw(0, 1) != 0 ? 1 : 0xff) * (draw(0, 1) != 0 ? 64 : 1));
    }
    memcpy(&header, e->record.data, sizeof header);
    if (header.table_bytes <= e->record.bytes - RECORD_TABLE_OFFSET) {
        header.table_checksum =
            XXH3_64bits(e->record.data + RECORD_TABLE_OFFSET, header.table_bytes);
        memcpy(e->record.data, &header, sizeof header);
    }
    const uint64_t checksum = XXH3_64bits(e->record.data, RECORD_CHECKSUM_AT);
    memcpy(e->record.data + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
    /* The second slot is none. */
    memset(e->record.data + RECORD_SLOT_BYTES, 0, RECORD_SLOT_BYTES);
}

/* Plans some layers of a record, whole or by ranges. KVT_OK: all jobs were inside. */
static kvt_status plan(drawn *d, const encoded *e)
{
    static uint64_t room[SITE_JOBS * 32];
    kernel_site site = {.head = NULL};
    uint64_t needed;
    const uint32_t layer = draw(0, d->layout.layers - 1);
    const uint32_t layers = draw(1, d->layout.layers - layer);
    const bool ranged = draw(0, 1) != 0;
    kvt_status status = kvt_record_head_open(e->record.data, e->record.bytes, true, &e->spec, room,
                                             sizeof room, &needed);
    if (status != KVT_OK) return status;
    site.head = (kvt_record_head *)(void *)room;
    d->payload_bytes = e->record.bytes;
    if (ranged) {
        status = kvt_record_head_ranges(site.head, layer, layers, site.ranges, SITE_RANGES,
                                        &site.range_count);
        if (status != KVT_OK) return status;
        d->payload_bytes = 0;
        for (uint32_t i = 0; i < site.range_count; i++) {
            const kvt_record_range *range = &site.ranges[i];
            assert_true(range->bytes <= e->record.bytes);
            assert_true(range->offset <= e->record.bytes - range->bytes);
            assert_true(range->at >= d->payload_bytes); /* one behind the other */
            d->payload_bytes = range->at + range->bytes;
        }
    }
    d->payload = UINT64_C(1) << 44;
    d->blocks = d->pool.view.blocks != NULL ? UINT64_C(1) << 45 : 0;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        kernel_batch *batch = &site.plan.batches[k];
        batch->capacity = kernel_layer_jobs((kernel_id)k) * layers;
        batch->jobs =
            test_aligned(8, batch->capacity * (uint64_t)kernel_facts_of((kernel_id)k)->job_bytes);
        site.plan.verdict_capacity += batch->capacity;
    }
    assert_true(site.plan.verdict_capacity <= SITE_JOBS);
    site.plan.verdicts = site.verdicts;
    const kernel_place place = {.payload = d->payload,
                                .ranges = site.ranges,
                                .range_count = ranged ? site.range_count : 0,
                                .blocks = d->blocks};
    status = kvt_record_head_jobs(site.head, &d->layout, &d->pool.view, layer, layers, &place,
                                  &site.plan);
    if (status != KVT_OK) assert_int_equal(site.plan.verdict_count, 0);
    check_plan(d, &site.plan);
    return status;
}

TEST(jobs_stay_inside)
{
    uint64_t jobs = 0, planned = 0, lied = 0, passed = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const size_t ends = test_ends();
        const char *variant = variants[draw(0, sizeof variants / sizeof variants[0] - 1)];
        uint64_t bound, scratch;
        drawn d = {.jobs = 0};
        if (!draw_view(&d)) continue;
        const kvt_record_spec spec = codecs_support_spec(d.layout, variant);
        if (kvt_record_bound(&spec, &bound, &scratch) == KVT_OK) {
            encoded e = encoded_make(d.layout, variant, NULL);
            const kvt_status status = plan(&d, &e);
            assert_true(status == KVT_OK || status == KVT_E_UNSUPPORTED);
            planned += status == KVT_OK;
            uint8_t *sound = test_alloc(e.record.bytes);
            memcpy(sound, e.record.data, e.record.bytes);
            for (uint32_t i = 0; i < LIES; i++, lied++) {
                memcpy(e.record.data, sound, e.record.bytes);
                lie(&e);
                passed += plan(&d, &e) == KVT_OK;
            }
        }
        jobs += d.jobs;
        engine_pool_close(&d.pool);
        test_end(ends);
    }
    print_message("%llu records planned, %llu lies of which %llu passed, %llu jobs\n",
                  (unsigned long long)planned, (unsigned long long)lied, (unsigned long long)passed,
                  (unsigned long long)jobs);
    assert_true(planned > ROUNDS / 5 && passed > ROUNDS / 100 && passed < lied / 2);
}
