/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_kernels.c - the kernels of a GPU, compiled for this processor: what they decode into
 * the pages of engines is bit for bit what the CPU decodes, nothing else is touched, and no byte of
 * a record that is not the encoder's passes. What they encode of pages is the CPU's record.
 */
#include "kernel_site.h"

#include "codecs/kernels/checksum.h"
#include "codecs/kernels/cpu.h"
#include "codecs/record_far.h"
#include "codecs/view_rows.h"
#include "dice.h"

enum { TOKENS = 75 };

static const char *const variants[] = {
    "raw",
    "lossless:fast",
    "kivi:k2v2,g32",
    "kivi:k4v2,g32",
    "kivi:k8v4,g64,half",
    "kivi:k4v8,g128",
    "kivi:k2v4,g32,half",
    "kivi:k4v4,g32,r32",
    "planes:k2v2,g32",
    "planes:k3v3,g64",
    "planes:k4v4,g32",
    "planes:k6v4,g32",
    "planes:k2v8,g64,vhead",
    "planes:k3v6,g32,vchan",
    "planes:k8v8,g128",
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static bool variant_fits(kvt_layout layout, const char *variant)
{
    kvt_record_spec spec = codecs_support_spec(layout, variant);
    uint64_t bound, scratch;
    return kvt_record_bound(&spec, &bound, &scratch) == KVT_OK;
}

/* Every variant, layout of an engine, and way that a record comes: whole, or a layer's ranges. */
static void check_variants(uint8_t dtype, const char *const *list, uint32_t count, uint32_t views)
{
    static const uint16_t heads[] = {2, 1, 3}, dims[] = {64, 576, 24};
    codecs_cpu_force(CODECS_CPU_SCALAR);
    for (uint32_t shape = 0; shape < 3; shape++) {
        const kvt_layout layout = {.layers = 2,
                                   .kv_heads = heads[shape],
                                   .head_dim = dims[shape],
                                   .dtype = dtype,
                                   .order = shape == 1 ? KVT_ORDER_SIDE_LAYER : 0,
                                   .tokens = TOKENS};
        for (uint32_t i = 0; i < count; i++) {
            const size_t ends = test_ends();
            if (!variant_fits(layout, list[i])) continue;
            encoded e = encoded_make(layout, list[i], NULL);
            for (uint32_t k = 0; k < views; k++) {
                const bool ranged = (k + i) % 2 == 0;
                site_check(&e, &engine_views[k], ranged, ranged ? 1 : 2, ranged, k == i % 2);
            }
            test_end(ends);
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

TEST(kernels_decode_fp16)
{
    check_variants(KVT_DTYPE_FP16, variants, VARIANTS, ENGINE_VIEWS);
}

TEST(kernels_decode_bf16)
{
    check_variants(KVT_DTYPE_BF16, variants, VARIANTS, ENGINE_VIEWS);
}

TEST(kernels_decode_fp32)
{
    check_variants(KVT_DTYPE_FP32, variants, VARIANTS, ENGINE_VIEWS);
}

TEST(kernels_decode_fp8)
{
    check_variants(KVT_DTYPE_FP8, variants, VARIANTS, ENGINE_VIEWS);
}

/* Entropy: meetings at every turn make this slow, so that there are fewer views. */
TEST(kernels_decode_entropy)
{
    static const char *const some[] = {"entropy:k0.25v0.5", "entropy:k0.5v0.1,vchan,middle"};
    for (uint8_t dtype = KVT_DTYPE_FP16; dtype <= KVT_DTYPE_FP8; dtype++)
        check_variants(dtype, some, 2, 2);
}

/* Rows that a drop stage has kept follow each other from the target's first token on; what lies
 * behind them is not touched. */
TEST(kernels_decode_kept_rows)
{
    static const char *const dropped[] = {
        "drop:keydiff,50",
        "drop:knorm,25+lossless:fast",
        "drop:keydiff,75+lossless",
        "drop:lagkv,50+kivi:k4v2,g32",
        "drop:lagkv,25+planes:k3v6,g32,vchan",
        "drop:knorm,50+entropy:k0.25v0.5",
    };
    codecs_cpu_force(CODECS_CPU_SCALAR);
    for (uint32_t i = 0; i < 6 * 6; i++) {
        const size_t ends = test_ends();
        const kvt_layout layout = {.layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .dtype = (uint8_t)(KVT_DTYPE_FP16 + i / 6 % 3),
                                   .order = i % 2 != 0 ? KVT_ORDER_SIDE_LAYER : 0,
                                   .tokens = TOKENS,
                                   .tokens_may_drop = 1,
                                   .sides = i < 18 ? KVT_SIDES_BOTH : KVT_SIDES_ONE};
        encoded e = encoded_make(layout, dropped[i % 6], NULL);
        kvt_record_info info;
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_in_range(info.stored_tokens, TOKENS / 5, TOKENS - 1);
        for (uint32_t k = i % 3; k < ENGINE_VIEWS; k += 3)
            site_check(&e, &engine_views[k], k % 2, 1, k % 2 == 0, k == i % 3);
        test_end(ends);
    }
    codecs_cpu_force(codecs_cpu_best());
}

/* Streams of 128 states over several groups, and a second span. */
TEST(kernels_decode_spans)
{
    const kvt_layout layout = {.layers = 1,
                               .kv_heads = 8,
                               .head_dim = 256,
                               .dtype = KVT_DTYPE_BF16,
                               .tokens = 550,
                               .sides = KVT_SIDES_ONE};
    encoded e = encoded_make(layout, "entropy:k0.3v0.3", NULL);
    assert_int_equal(e.status, KVT_OK);
    site_check(&e, &engine_views[3], 0, 1, false, false);
}

/* Lossless, mode dense. */
TEST(kernels_decode_dense)
{
    static const char *const dense[] = {"lossless"};
    for (uint8_t dtype = KVT_DTYPE_FP16; dtype <= KVT_DTYPE_FP8; dtype++)
        check_variants(dtype, dense, 1, 2);
}

/* What the elements of a test of mode dense are like. */
enum { DENSE_COARSE, DENSE_NARROW, DENSE_FAR, DENSE_NOISE, DENSE_KINDS };

/* Elements that came from fewer bits, so that their lows are coded, too, or are bf16 inside; or a
 * few with exponents that no table has; or noise in most tiles, which is stored as it is. */
static void fill_dense(const kvt_layout *layout, uint32_t kind, uint8_t *bytes, uint64_t count)
{
    const uint32_t element = kvt_dtype_bytes(layout->dtype);
    const uint32_t few = layout->dtype == KVT_DTYPE_FP16 ? 0x7f : 0x1f;
    uint64_t dice = 5 + kind;
    codecs_kv_sample_fill(layout, 5, bytes);
    for (uint64_t i = 0; i < count; i += element) {
        const uint64_t roll = dice_shift(&dice);
        if (kind == DENSE_COARSE && element > 1) bytes[i + element - 2] &= (uint8_t)~few;
        if (kind == DENSE_COARSE && element == 4) memset(bytes + i, 0, 2);
        if (kind == DENSE_NARROW && element == 2) bytes[i] &= 0xf8;
        if (kind == DENSE_FAR && roll % 37 == 0) bytes[i + element - 1] = (uint8_t)(roll >> 8);
        if (kind == DENSE_NOISE && i > count / 3)
            for (uint32_t k = 0; k < element; k++)
                bytes[i + k] = (uint8_t)(roll >> (8 + 8 * k));
    }
}

/* Kind and flags of the first tile of a record's first matrix, as bits; 0: it is raw. */
static uint32_t dense_form(const encoded *e)
{
    const kvt_layout *layout = &e->spec.layout;
    uint32_t form = 0;
    engine_pool pool;
    kernel_site site;
    assert_true(engine_pool_open(&pool, &engine_views[0], layout, 1, SITE_FILL));
    site_open(&site, e, 0, 1, false);
    assert_status(site_plan(&site, layout, &pool, 0, 1), KVT_OK);
    if (site.plan.batches[KERNEL_DENSE].count != 0) {
        const kernel_dense_job *job = site.plan.batches[KERNEL_DENSE].jobs;
        const uint8_t *head = (const uint8_t *)(uintptr_t)job->source;
        form = 1u << head[0] | (uint32_t)head[1] << 8;
    }
    engine_pool_close(&pool);
    return form;
}

/* Several tiles each way with streams of every number of states, odd rows, elements behind the last
 * run, and each form of a tile. */
TEST(kernels_decode_forms_of_dense_tiles)
{
    static const struct {
        uint16_t heads, dim;
        uint32_t tokens;
    } shapes[] = {{9, 128, 270}, {3, 7, 83}, {1, 130, 129}};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 3 * 4 * DENSE_KINDS; i++) {
        const size_t ends = test_ends();
        const uint32_t shape = i % 3, kind = i / 3 % DENSE_KINDS;
        const uint8_t dtype = (uint8_t)(KVT_DTYPE_FP16 + i / (3 * DENSE_KINDS));
        const kvt_layout layout = {.layers = 1,
                                   .kv_heads = shapes[shape].heads,
                                   .head_dim = shapes[shape].dim,
                                   .dtype = dtype,
                                   .tokens = shapes[shape].tokens,
                                   .sides = KVT_SIDES_ONE};
        uint64_t bytes;
        assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
        uint8_t *source = test_aligned(64, bytes);
        fill_dense(&layout, kind, source, bytes);
        encoded e = encoded_make(layout, "lossless", source);
        site_check(&e, &engine_views[i % 4], 0, 1, i % 2 == 0, false);
        seen |= dense_form(&e);
        test_end(ends);
    }
    assert_int_equal(seen, 0x0f0e); /* every kind but raw, every flag */
}

/* Segments of fp8 as 0.2.0 wrote them are the CPU's, and are told by their bytes. */
TEST(runs_of_fp8_have_no_kernel)
{
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP8, .tokens = 70};
    encoded e = encoded_make(layout, "lossless", NULL);
    engine_pool pool;
    kernel_site site;
    assert_int_equal(e.status, KVT_OK);
    assert_true(engine_pool_open(&pool, &engine_views[0], &layout, 1, SITE_FILL));
    site_open(&site, &e, 0, 2, false);
    kernel_place place = {.payload = (uint64_t)(uintptr_t)site.payload.data,
                          .host = site.payload.data};
    assert_status(kvt_record_head_jobs(site.head, &layout, &pool.view, 0, 2, &place, &site.plan),
                  KVT_OK);
    const kernel_batch *jobs = &site.plan.batches[KERNEL_DENSE];
    assert_int_equal(jobs->count, 4);
    const kernel_dense_job *last = (const kernel_dense_job *)jobs->jobs + 3;
    ((uint8_t *)(uintptr_t)last->source)[3] = 0x80; /* a frame's word */
    const uint32_t words = site.plan.verdict_count;
    assert_status(kvt_record_head_jobs(site.head, &layout, &pool.view, 0, 2, &place, &site.plan),
                  KVT_E_UNSUPPORTED);
    assert_int_equal(site.plan.verdict_count, words);
    assert_status(kvt_record_head_jobs(site.head, &layout, &pool.view, 0, 1, &place, &site.plan),
                  KVT_OK);
    engine_pool_close(&pool);
}

TEST(one_side_and_raw_tokens)
{
    static const char *const some[] = {"raw", "kivi:k4v2,g32", "planes:k3v6,g32,vchan",
                                       "lossless:fast"};
    for (uint32_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        for (uint32_t sides = KVT_SIDES_ONE; sides <= KVT_SIDES_V; sides++) {
            const size_t ends = test_ends();
            const kvt_layout layout = {.layers = 3,
                                       .kv_heads = 2,
                                       .head_dim = 40,
                                       .dtype = KVT_DTYPE_BF16,
                                       .tokens = 150,
                                       .sides = (uint8_t)sides};
            encoded e = encoded_make(layout, some[i], NULL);
            /* From the chain's start, so that its first tokens are raw. */
            e.spec.first_position = 0;
            e.record.bytes += GUARD_BYTES;
            uint64_t bound, scratch;
            assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
            e.record = guarded_make(bound);
            e.scratch = guarded_make(scratch);
            const kvt_status status =
                kvt_record_encode(&e.spec, e.source.data, e.source.bytes, e.record.data, bound,
                                  e.scratch.data, scratch, &e.record.bytes);
            assert_true(status == KVT_OK || status == KVT_RAW);
            for (uint32_t k = 0; k < 4; k++)
                site_check(&e, &engine_views[k], 0, 3, k % 2 == 0, k == 0);
            test_end(ends);
        }
    }
}

TEST(pools_that_are_aligned_to_elements)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    static const char *const some[] = {"raw", "kivi:k4v2,g32", "planes:k4v6,g32"};
    for (uint32_t i = 0; i < 9; i++) {
        const size_t ends = test_ends();
        const kvt_layout layout = {
            .layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = dtypes[i / 3], .tokens = 80};
        const uint64_t element = kvt_dtype_bytes(layout.dtype);
        encoded e = encoded_make(layout, some[i % 3], NULL);
        engine_pool pools[2];
        kernel_site site;
        site_open(&site, &e, 0, 1, false);
        for (uint32_t k = 0; k < 2; k++) {
            engine_pool *pool = &pools[k];
            memset(pool, 0, sizeof *pool);
            /* Every stride is one element longer than what it holds. */
            const uint64_t head = 64 * element + element, token = 2 * head + element;
            const uint64_t side = 80 * token + element;
            pool->pools = 1;
            pool->pool_bytes = 2 * side + element;
            pool->memory[0] = test_aligned(64, pool->pool_bytes);
            memset(pool->memory[0], SITE_FILL, pool->pool_bytes);
            pool->view = (kvt_view){.struct_size = sizeof pool->view,
                                    .base = {(uint8_t *)pool->memory[0] + element},
                                    .base_bytes = {2 * side},
                                    .layer_stride = (int64_t)(2 * side),
                                    .side_stride = (int64_t)side,
                                    .token_stride = (int64_t)token,
                                    .head_stride = (int64_t)head};
        }
        assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, &e.spec, NULL, &layout,
                                             &pools[1].view, 0, 1, e.scratch.data, e.scratch.bytes),
                      KVT_OK);
        assert_status(site_plan(&site, &layout, &pools[0], 0, 1), KVT_OK);
        assert_true(site_launch(&site, &pools[0]));
        assert_status(kernel_plan_verdict(&site.plan, 0, site.plan.verdict_count), KVT_OK);
        site_check_same(&pools[0], &pools[1], some[i % 3]);
        test_end(ends);
    }
}

/* One launch over segments of every length that has a form of its own, and of many blocks. */
TEST(checksums_are_those_of_the_library)
{
    enum { SEGMENTS = 150, LARGEST = 70 * 1024 };
    kernel_check_job jobs[SEGMENTS];
    uint32_t verdicts[SEGMENTS] = {0};
    lanes_memory memory[SEGMENTS];
    uint64_t dice = 7;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        uint64_t padded = 64 * (uint64_t)(i + 1);
        if (i >= 90) padded = 64 * (1 + dice_shift(&dice) % (LARGEST / 64));
        const uint64_t zeros = i % 3 == 0 ? 0 : dice_shift(&dice) % 64;
        uint8_t *bytes = test_aligned(64, padded);
        for (uint64_t k = 0; k < padded; k++)
            bytes[k] = k < padded - zeros ? (uint8_t)(dice_shift(&dice) | 1) : 0;
        jobs[i] = (kernel_check_job){.head = {0, i},
                                     .address = (uint64_t)(uintptr_t)bytes,
                                     .stored_bytes = padded - zeros,
                                     .padded_bytes = padded,
                                     .checksum = checksum_of(bytes, padded)};
        /* Every seventh is wrong in a bit, every eleventh says that fewer bytes are stored. */
        if (i % 7 == 3) jobs[i].checksum ^= 1ull << i % 64;
        if (i % 11 == 5) jobs[i].stored_bytes -= 1 + dice_shift(&dice) % 60 % jobs[i].stored_bytes;
        memory[i] = (lanes_memory){bytes, padded, false};
    }
    const uint32_t blocks = (SEGMENTS + KERNEL_CHECK_BLOCK - 1) / KERNEL_CHECK_BLOCK;
    assert_true(
        lanes_launch(KERNEL_CHECK, jobs, SEGMENTS, blocks, verdicts, SEGMENTS, memory, SEGMENTS));
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const uint32_t expected = i % 7 == 3    ? KERNEL_CHECKSUM
                                  : i % 11 == 5 ? KERNEL_PADDING
                                                : KERNEL_SOUND;
        if (verdicts[i] != expected)
            fail_msg("segment %u of %llu bytes: %u", i, (unsigned long long)jobs[i].padded_bytes,
                     verdicts[i]);
    }
}

/* A bit of any segment or its padding is turned: no verdict passes, nothing leaves its memory. */
TEST(no_turned_bit_passes)
{
    static const char *const some[] = {"raw", "kivi:k4v2,g32", "planes:k2v8,g32"};
    uint64_t dice = 11;
    for (uint32_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        const size_t ends = test_ends();
        const kvt_layout layout = {
            .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 70};
        const encoded e = encoded_make(layout, some[i], NULL);
        engine_pool pool;
        kernel_site site;
        assert_true(engine_pool_open(&pool, &engine_views[2], &layout, 1, SITE_FILL));
        site_open(&site, &e, 0, 2, false);
        site_take_blocks(&site, &pool);
        assert_status(site_plan(&site, &layout, &pool, 0, 2), KVT_OK);
        const uint32_t words = site.plan.verdict_count;
        const kernel_batch *checks = &site.plan.batches[KERNEL_CHECK];
        uint32_t before[SITE_JOBS];
        memcpy(before, site.verdicts, sizeof before);
        for (uint32_t turn = 0; turn < 40; turn++) {
            kernel_check_job job;
            memcpy(&job, (const kernel_check_job *)checks->jobs + turn % checks->count, sizeof job);
            uint8_t *byte =
                (uint8_t *)(uintptr_t)(job.address + dice_shift(&dice) % job.padded_bytes);
            *byte ^= (uint8_t)(1u << turn % 8);
            memcpy(site.verdicts, before, sizeof before);
            assert_true(site_launch(&site, &pool));
            assert_status(kernel_plan_verdict(&site.plan, 0, words), KVT_E_CORRUPT);
            assert_int_equal(site.verdicts[job.head.verdict], KERNEL_CHECKSUM);
            *byte ^= (uint8_t)(1u << turn % 8);
        }
        memcpy(site.verdicts, before, sizeof before);
        assert_true(site_launch(&site, &pool));
        assert_status(kernel_plan_verdict(&site.plan, 0, words), KVT_OK);
        engine_pool_close(&pool);
        test_end(ends);
    }
}

/* Several entries in one plan; one that no longer fits leaves no trace. */
TEST(a_plan_that_is_full_stays_as_it_was)
{
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 70};
    const encoded e = encoded_make(layout, "planes:k4v4,g32", NULL);
    engine_pool pool;
    kernel_site site;
    assert_true(engine_pool_open(&pool, &engine_views[2], &layout, 1, SITE_FILL));
    site_open(&site, &e, 0, 2, false);
    site_take_blocks(&site, &pool);
    kernel_batch *checks = &site.plan.batches[KERNEL_CHECK];
    checks->capacity = KERNEL_LAYER_CHECKS + 3;
    assert_status(site_plan(&site, &layout, &pool, 0, 1), KVT_OK);
    assert_true(checks->count <= KERNEL_LAYER_CHECKS);
    const kernel_plan before = site.plan;
    checks->capacity = checks->count + 3;
    assert_status(site_plan(&site, &layout, &pool, 1, 1), KVT_E_SPACE);
    assert_int_equal(checks->count, before.batches[KERNEL_CHECK].count);
    assert_int_equal(site.plan.verdict_count, before.verdict_count);
    assert_int_equal(site.plan.batches[KERNEL_PLANES].count, 2);
    checks->capacity = SITE_JOBS;
    assert_status(site_plan(&site, &layout, &pool, 1, 1), KVT_OK);
    assert_status(site_plan(&site, &layout, &pool, 1, 2), KVT_E_ARGUMENT);
    assert_true(site_launch(&site, &pool));
    assert_status(kernel_plan_verdict(&site.plan, 0, site.plan.verdict_count), KVT_OK);
    site.range_count = 1;
    site.ranges[0] = (kvt_record_range){.offset = 0, .bytes = 4096};
    assert_status(site_plan(&site, &layout, &pool, 0, 1), KVT_E_ARGUMENT);
    engine_pool_close(&pool);
}

TEST(what_has_no_kernel_is_left_to_the_cpu)
{
    const kvt_layout opaque = {.opaque_bytes = 5000};
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 70};
    engine_pool pool;
    kernel_site site;
    assert_true(engine_pool_open(&pool, &engine_views[2], &layout, 1, SITE_FILL));
    const encoded bytes = encoded_make(opaque, "raw", NULL);
    site_open(&site, &bytes, 0, 0, false);
    assert_status(site_plan(&site, &opaque, &pool, 0, 1), KVT_E_UNSUPPORTED);
    assert_int_equal(site.plan.verdict_count, 0);
    engine_pool_close(&pool);
}

/* ---- encoding ---- */

/* Encodes what a pool has by kernels. KVT_E_UNSUPPORTED: they do not; KVT_E_CORRUPT: a matrix
 * cannot be coded. */
static kvt_status encode_far(const kvt_record_spec *spec, const engine_pool *pool,
                             const guarded *record, uint64_t *bytes_out)
{
    static record_far far;
    kernel_site site;
    lanes_memory memory[ENGINE_POOLS_MAX + 3];
    kvt_status status = record_far_begin(&far, spec, record->data, record->bytes);
    if (status != KVT_OK) return status;
    guarded payload = guarded_make(record_far_bytes(&far));
    memset(payload.data, 0xee, payload.bytes);
    const uint64_t counts =
        (uint64_t)record_far_matrices(&far) * RECORD_FAR_COUNTS * sizeof(uint32_t);
    uint32_t *histograms = test_aligned(64, counts);
    memset(histograms, 0, counts);
    memset(&site, 0, sizeof site);
    site_take_blocks(&site, pool);
    for (uint32_t k = KERNEL_DECODERS; k < KERNEL_COUNT; k++) {
        kernel_batch *batch = &site.plan.batches[k];
        batch->capacity = record_far_jobs_most(&far, k);
        batch->jobs = test_aligned(8, batch->capacity * (uint64_t)kernel_facts_of(k)->job_bytes);
    }
    site.plan.verdicts = site.verdicts;
    site.plan.verdict_capacity = SITE_JOBS;
    const record_far_place place = {(uint64_t)(uintptr_t)payload.data,
                                    (uint64_t)(uintptr_t)histograms,
                                    (uint64_t)(uintptr_t)site.blocks};
    status = record_far_jobs(&far, &pool->view, &place, &site.plan);
    if (status != KVT_OK) return status;
    memory[0] = (lanes_memory){payload.data, payload.bytes, true};
    memory[1] = (lanes_memory){histograms, counts, true};
    memory[2] = (lanes_memory){
        site.blocks, site.blocks != NULL ? pool->view.block_count * sizeof(uint32_t) : 0, false};
    for (uint32_t i = 0; i < pool->pools; i++)
        memory[3 + i] = (lanes_memory){pool->memory[i], pool->pool_bytes, false};
    for (uint32_t k = KERNEL_DECODERS; k < KERNEL_COUNT; k++) {
        const kernel_batch *batch = &site.plan.batches[k];
        if (batch->count == 0) continue;
        assert_true(lanes_launch((kernel_id)k, batch->jobs, batch->count, batch->blocks,
                                 site.verdicts, site.plan.verdict_count, memory, 3 + pool->pools));
    }
    status = kernel_plan_verdict(&site.plan, 0, site.plan.verdict_count);
    if (status == KVT_OK) record_far_end(&far, payload.data, histograms, bytes_out);
    return status;
}

/* Encodes an entry that lies in an engine's pool both ways. Returns how the kernels ended. */
static kvt_status check_encoder(kvt_layout layout, const char *variant, const engine_view *engine,
                                uint32_t first_position, const uint8_t *source)
{
    engine_pool pool;
    uint64_t bound, scratch, wanted, found = 0;
    kvt_record_spec spec = codecs_support_spec(layout, variant);
    spec.first_position = first_position;
    assert_true(engine_pool_open(&pool, engine, &layout, 1, SITE_FILL));
    view_scatter_entry(&pool.view, &layout, 0, 0, source);
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    assert_status(kvt_record_scratch_view(&spec, 1, &scratch), KVT_OK);
    guarded expected = guarded_make(bound), room = guarded_make(scratch);
    const guarded record = guarded_make(bound);
    const kvt_status cpu = kvt_record_encode_view(&spec, NULL, &pool.view, expected.data, bound,
                                                  room.data, scratch, &wanted);
    assert_true(cpu == KVT_OK || cpu == KVT_RAW);
    const kvt_status status = encode_far(&spec, &pool, &record, &found);
    if (cpu == KVT_RAW) assert_true(status == KVT_E_UNSUPPORTED || status == KVT_E_CORRUPT);
    if (status == KVT_OK) {
        assert_int_equal(found, wanted);
        for (uint64_t i = 0; i < wanted; i++)
            if (record.data[i] != expected.data[i])
                fail_msg("%s, %s: byte %llu", variant, engine->name, (unsigned long long)i);
    }
    engine_pool_close(&pool);
    return status;
}

static const char *const coded[] = {
    "kivi:k2v2,g32",     "kivi:k4v2,g32",    "kivi:k8v4,g64,half",    "kivi:k4v8,g128",
    "kivi:k4v4,g32,r32", "planes:k2v2,g32",  "planes:k3v3,g64",       "planes:k4v4,g32",
    "planes:k6v4,g32",   "planes:k8v8,g128", "planes:k2v8,g64,vhead", "planes:k3v6,g32,vchan",
};

static void check_encoders(uint8_t dtype)
{
    static const uint16_t heads[] = {2, 1, 3}, dims[] = {64, 576, 24};
    codecs_cpu_force(CODECS_CPU_SCALAR);
    uint32_t made = 0;
    for (uint32_t shape = 0; shape < 3; shape++) {
        const kvt_layout layout = {.layers = 2,
                                   .kv_heads = heads[shape],
                                   .head_dim = dims[shape],
                                   .dtype = dtype,
                                   .order = shape == 1 ? KVT_ORDER_SIDE_LAYER : 0,
                                   .tokens = TOKENS};
        for (uint32_t i = 0; i < sizeof coded / sizeof coded[0]; i++) {
            const size_t ends = test_ends();
            if (!variant_fits(layout, coded[i])) continue;
            const encoded e = encoded_make(layout, coded[i], NULL);
            /* One view in turn, with sinks and without. */
            const engine_view *engine = &engine_views[(i + 5 * shape) % ENGINE_VIEWS];
            made += check_encoder(layout, coded[i], engine, i % 2 == 0 ? 0 : 1000, e.source.data) ==
                    KVT_OK;
            test_end(ends);
        }
    }
    assert_true(made >= 18);
    codecs_cpu_force(codecs_cpu_best());
}

TEST(kernels_encode_fp16)
{
    check_encoders(KVT_DTYPE_FP16);
}

TEST(kernels_encode_bf16)
{
    check_encoders(KVT_DTYPE_BF16);
}

TEST(kernels_encode_fp32)
{
    check_encoders(KVT_DTYPE_FP32);
}

TEST(kernels_encode_fp8)
{
    check_encoders(KVT_DTYPE_FP8);
}

/* Every layout of an engine; batches that are not counted, and chunks of one that are not. */
TEST(kernels_encode_views_and_samples)
{
    for (uint32_t k = 0; k < ENGINE_VIEWS; k++) {
        const size_t ends = test_ends();
        const kvt_layout layout = {
            .layers = 1, .kv_heads = 2, .head_dim = 40, .dtype = KVT_DTYPE_BF16, .tokens = 70};
        const encoded e = encoded_make(layout, "planes:k6v4,g32", NULL);
        assert_status(check_encoder(layout, "planes:k6v4,g32", &engine_views[k], 0, e.source.data),
                      KVT_OK);
        test_end(ends);
    }
    static const uint16_t heads[] = {1, 8};
    for (uint32_t i = 0; i < 2; i++) {
        const size_t ends = test_ends();
        const kvt_layout layout = {.layers = 1,
                                   .kv_heads = heads[i],
                                   .head_dim = 136,
                                   .dtype = KVT_DTYPE_BF16,
                                   .sides = KVT_SIDES_ONE,
                                   .tokens = i == 0 ? 500 : 100};
        const encoded e = encoded_make(layout, "planes:k3v3,g64", NULL);
        assert_status(check_encoder(layout, "planes:k3v3,g64", &engine_views[0], 9, e.source.data),
                      KVT_OK);
        test_end(ends);
    }
}

/* Elements that no group takes: zeros of both signs, equal ones, the largest; and those for which a
 * matrix is stored raw. */
TEST(kernels_encode_corners)
{
    static const uint32_t corners[] = {0x00000000, 0x80000000, 0x3f800000, 0x477fe000, 0xc77fe000,
                                       0x47800000, 0xff800000, 0x7fc00001, 0x7f7fffff, 0x00000001};
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP32, .tokens = 64};
    uint64_t bytes;
    uint32_t kinds = 0;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    for (uint32_t i = 0; i < 2 * sizeof corners / sizeof corners[0]; i++) {
        const size_t ends = test_ends();
        uint32_t *source = test_aligned(64, bytes);
        for (uint64_t k = 0; k < bytes / 4; k++)
            source[k] = i % 2 == 0 ? corners[i / 2] : 0x3f000000 + (uint32_t)k;
        source[bytes / 4 - 1] = corners[i / 2];
        for (uint32_t v = 0; v < 2; v++)
            kinds |= 1u << (check_encoder(layout, v == 0 ? "kivi:k4v4,g32" : "planes:k6v4,g32",
                                          &engine_views[v], 9, (const uint8_t *)source) == KVT_OK);
        test_end(ends);
    }
    assert_int_equal(kinds, 3); /* some are taken, some are not */
}
