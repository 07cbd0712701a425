/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_views.c - records that are decoded into views and encoded from them: for each layout
 * of an engine, codec, dtype and instruction set, elements and records are those of the packed
 * entry, bit for bit, and nothing between the elements is touched.
 */
#include "codecs/view_rows.h"
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "engine_views.h"
#include "tools/command/worker_pool.h"

enum { FILL = 0x5a, TOKENS = 75 };

static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k4v2,g32",
    "kivi:k8v4,g64,half",
    "kivi:k4v4,g32,r32",
    "planes:k6v4,g32",
    "planes:k2v8,g64,vhead",
    "planes:k3v4,g32,vchan",
    "entropy:k0.25v0.5",
    "entropy:k0.5v0.5,vchan",
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* Every element of the layers is where the view has it; the bytes around them are FILL. Elements
 * that were compared become FILL. */
static void check_pools(const engine_pool *pool, const kvt_layout *layout, const uint8_t *packed,
                        uint32_t first, uint32_t layers)
{
    const uint32_t head_bytes = layout->head_dim * kvt_dtype_bytes(layout->dtype);
    const uint64_t row_bytes = (uint64_t)layout->kv_heads * head_bytes;
    const uint32_t sides = kvt_layout_sides(layout);
    for (uint32_t m = sides * first; m < sides * (first + layers); m++) {
        const uint8_t *matrix =
            packed + kvt_layout_matrix_offset(layout, m / sides, (kvt_side)(m % sides));
        for (uint32_t token = 0; token < layout->tokens; token++) {
            for (uint32_t head = 0; head < layout->kv_heads; head++) {
                uint8_t *at = engine_head_at(&pool->view, sides, m / sides, m % sides, token, head);
                if (memcmp(at, matrix + token * row_bytes + head * head_bytes, head_bytes) != 0) {
                    fail_msg("layer %u, side %u, token %u, head %u differs", m / sides, m % sides,
                             token, head);
                }
                memset(at, FILL, head_bytes);
            }
        }
    }
    for (uint32_t i = 0; i < pool->pools; i++) {
        const uint8_t *bytes = pool->memory[i];
        for (uint64_t k = 0; k < pool->pool_bytes; k++) {
            if (bytes[k] != FILL) fail_msg("byte %llu of a pool", (unsigned long long)k);
        }
    }
}

/* of_many: past the caches, whatever the size. */
static void check_view_once(const encoded *e, const engine_view *engine, uint32_t first,
                            uint32_t layers, const kvt_codec_workers *workers,
                            const guarded *scratch, bool of_many)
{
    engine_pool pool;
    const kvt_layout *layout = &e->spec.layout;
    assert_true(engine_pool_open(&pool, engine, layout, 1, FILL));
    kvt_status status = KVT_OK;
    if (of_many)
        status = kvt_record_decode_of_many(e->record.data, e->record.bytes, &e->spec, workers,
                                           layout, &pool.view, first, layers, e->record.data,
                                           scratch->data, scratch->bytes);
    else
        status = kvt_record_decode_view(e->record.data, e->record.bytes, &e->spec, workers, layout,
                                        &pool.view, first, layers, scratch->data, scratch->bytes);
    if (status != KVT_OK) fail_msg("%s: %s", engine->name, kvt_status_name(status));
    guarded_check(scratch, scratch->bytes);
    check_pools(&pool, layout, e->decoded.data, first, layers != 0 ? layers : layout->layers);
    engine_pool_close(&pool);
}

static void check_view(const encoded *e, const engine_view *engine, uint32_t first, uint32_t layers,
                       const kvt_codec_workers *workers, const guarded *scratch)
{
    check_view_once(e, engine, first, layers, workers, scratch, false);
    check_view_once(e, engine, first, layers, workers, scratch, true);
}

/* The record of a view is that of the packed entry, with exactly the scratch that is asked for. */
static void check_encode(const encoded *e, const engine_view *engine,
                         const kvt_codec_workers *workers)
{
    engine_pool pool;
    uint64_t bound, bytes, written;
    const kvt_layout *layout = &e->spec.layout;
    const uint32_t head_bytes = layout->head_dim * kvt_dtype_bytes(layout->dtype);
    assert_true(engine_pool_open(&pool, engine, layout, 1, FILL));
    const uint32_t sides = kvt_layout_sides(layout);
    for (uint32_t m = 0; m < sides * layout->layers; m++) {
        const uint8_t *from =
            e->source.data + kvt_layout_matrix_offset(layout, m / sides, (kvt_side)(m % sides));
        for (uint32_t i = 0; i < layout->tokens * layout->kv_heads; i++, from += head_bytes) {
            memcpy(engine_head_at(&pool.view, sides, m / sides, m % sides, i / layout->kv_heads,
                                  i % layout->kv_heads),
                   from, head_bytes);
        }
    }
    assert_status(kvt_record_bound(&e->spec, &bound, &bytes), KVT_OK);
    assert_status(kvt_record_scratch_view(&e->spec, workers != NULL ? workers->count : 1, &bytes),
                  KVT_OK);
    guarded scratch = guarded_make(bytes);
    guarded record = guarded_make(bound);
    assert_status(kvt_record_encode_view(&e->spec, workers, &pool.view, record.data, bound,
                                         scratch.data, bytes, &written),
                  e->status);
    assert_int_equal(written, e->record.bytes);
    assert_memory_equal(record.data, e->record.data, written);
    guarded_check(&record, bound);
    guarded_check(&scratch, bytes);
    engine_pool_close(&pool);
}

static void check_views(encoded *e)
{
    assert_status(encoded_decode(e), KVT_OK);
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        if (e->spec.first_position != 0) check_encode(e, &engine_views[i], NULL);
        check_view(e, &engine_views[i], 0, 0, NULL, &e->scratch);
        check_view(e, &engine_views[i], 1, 1, NULL, &e->scratch);
    }
}

static void views_get_the_packed_elements(uint8_t dtype)
{
    static const uint16_t heads[] = {2, 1, 3}, dims[] = {64, 576, 24};
    for (uint32_t shape = 0; shape < 3; shape++) {
        const kvt_layout layout = {.layers = 2,
                                   .kv_heads = heads[shape],
                                   .head_dim = dims[shape],
                                   .dtype = dtype,
                                   .order = shape == 1 ? KVT_ORDER_SIDE_LAYER : 0,
                                   .tokens = TOKENS};
        for (uint32_t i = 0; i < VARIANTS; i++) {
            kvt_record_spec spec = codecs_support_spec(layout, variants[i]);
            uint64_t bound, scratch;
            if (kvt_record_bound(&spec, &bound, &scratch) != KVT_OK) continue;
            for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
                codecs_cpu_force((codecs_cpu)level);
                encoded e = encoded_make(layout, variants[i], NULL);
                check_views(&e);
            }
            codecs_cpu_force(codecs_cpu_best());
        }
    }
}

TEST(fp16_is_the_same)
{
    views_get_the_packed_elements(KVT_DTYPE_FP16);
}

TEST(bf16_is_the_same)
{
    views_get_the_packed_elements(KVT_DTYPE_BF16);
}

TEST(fp32_is_the_same)
{
    views_get_the_packed_elements(KVT_DTYPE_FP32);
}

TEST(fp8_is_the_same)
{
    views_get_the_packed_elements(KVT_DTYPE_FP8);
}

/* The latent of MLA: one side, one head. */
TEST(one_side_is_the_same)
{
    const kvt_layout latent = {.layers = 3,
                               .kv_heads = 1,
                               .head_dim = 576,
                               .dtype = KVT_DTYPE_BF16,
                               .tokens = TOKENS,
                               .sides = 1};
    for (uint32_t i = 0; i < VARIANTS; i++) {
        encoded e = encoded_make(latent, variants[i], NULL);
        check_views(&e);
    }
}

/* Matrices that packed decoding writes past the caches, and rows that are larger than a tile. */
TEST(large_matrices_are_the_same)
{
    static const kvt_layout large[] = {
        {.layers = 1, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 300},
        {.layers = 1, .kv_heads = 33, .head_dim = 160, .dtype = KVT_DTYPE_FP32, .tokens = 37},
    };
    for (uint32_t shape = 0; shape < 2; shape++) {
        for (uint32_t i = 0; i < VARIANTS; i++) {
            encoded e = encoded_make(large[shape], variants[i], NULL);
            assert_status(encoded_decode(&e), KVT_OK);
            for (uint32_t k = 0; k < ENGINE_VIEWS; k++) {
                check_view(&e, &engine_views[k], 0, 0, NULL, &e.scratch);
            }
        }
    }
}

/* Elements that no codec takes, so that raw groups, raw tiles and raw matrices occur. */
TEST(elements_of_any_bits_are_the_same)
{
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = TOKENS};
    uint64_t bytes, random = 88172645463325252u;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    uint8_t *source = test_alloc(bytes);
    for (uint32_t rare = 0; rare < 2; rare++) {
        codecs_kv_sample_fill(&layout, 9, source);
        for (uint64_t i = 0; i < bytes; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if (!rare || i % 1024 < 8) source[i] = (uint8_t)(rare ? 0xff : random);
        }
        for (uint32_t i = 0; i < VARIANTS; i++) {
            encoded e = encoded_make(layout, variants[i], source);
            check_views(&e);
        }
    }
}

TEST(workers_write_into_views)
{
    const kvt_layout layout = {
        .layers = 5, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = TOKENS};
    worker_pool pool;
    worker_pool_open(&pool, 3);
    for (uint32_t i = 0; i < VARIANTS; i++) {
        uint64_t bytes;
        encoded e = encoded_make(layout, variants[i], NULL);
        assert_status(encoded_decode(&e), KVT_OK);
        assert_status(kvt_record_scratch_parallel(&e.spec, 3, &bytes), KVT_OK);
        guarded scratch = guarded_make(bytes);
        for (uint32_t k = 0; k < ENGINE_VIEWS; k++) {
            check_view(&e, &engine_views[k], 0, 0, &pool.workers, &scratch);
            check_view(&e, &engine_views[k], 2, 3, &pool.workers, &scratch);
            check_encode(&e, &engine_views[k], &pool.workers);
        }
    }
    worker_pool_close(&pool);
}

/* Sinks and windows are stored raw beside the coded rows. */
TEST(raw_tokens_reach_their_rows)
{
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_FP16, .tokens = TOKENS};
    static const char *const coded[] = {"kivi:k4v4,g32", "planes:k6v4,g32", "entropy:k0.25v0.5",
                                        "entropy:k0.25v0.5"};
    const kvt_codec_extras extras = {.struct_size = sizeof extras,
                                     .chain_tokens = TOKENS,
                                     .sink_tokens = 5,
                                     .recent_tokens = 11};
    for (uint32_t i = 0; i < sizeof coded / sizeof coded[0]; i++) {
        encoded e = encoded_make(layout, coded[i], NULL);
        uint64_t bound, scratch;
        e.spec.first_position = 0;
        assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
        e.record = guarded_make(bound);
        assert_status(kvt_record_encode_with(&e.spec, &extras, e.source.data, e.source.bytes,
                                             e.record.data, bound, e.scratch.data, e.scratch.bytes,
                                             &e.record.bytes),
                      KVT_OK);
        check_views(&e);
    }
}

/* A drop stage looks at whole matrices. */
TEST(a_drop_stage_takes_matrices_in_one_run)
{
    const kvt_layout layout = {.layers = 2,
                               .kv_heads = 2,
                               .head_dim = 32,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = 64,
                               .tokens_may_drop = 1};
    encoded e = encoded_make(layout, "drop:knorm,50+kivi:k4v4,g32", NULL);
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        const bool one_run = strcmp(engine_views[i].axes, "lsth") == 0 ||
                             strcmp(engine_views[i].axes, "slth") == 0 ||
                             strcmp(engine_views[i].name, "sglang page_first_direct") == 0;
        if (one_run) {
            check_encode(&e, &engine_views[i], NULL);
            continue;
        }
        engine_pool pool;
        uint64_t written;
        assert_true(engine_pool_open(&pool, &engine_views[i], &layout, 1, 0));
        assert_status(kvt_record_encode_view(&e.spec, NULL, &pool.view, e.record.data,
                                             e.record.bytes, NULL, 0, &written),
                      KVT_E_ARGUMENT);
        uint64_t bytes;
        assert_status(kvt_record_scratch_view(&e.spec, 1, &bytes), KVT_OK);
        guarded scratch = guarded_make(bytes);
        assert_status(kvt_record_encode_view(&e.spec, NULL, &pool.view, e.record.data,
                                             e.record.bytes, scratch.data, bytes, &written),
                      KVT_E_UNSUPPORTED);
        engine_pool_close(&pool);
    }
}

TEST(what_does_not_fit_is_refused)
{
    kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_FP16, .tokens = TOKENS};
    encoded e = encoded_make(layout, "kivi:k4v4,g32", NULL);
    const kvt_view view = codecs_packed_view(&layout, e.decoded.data);
    const struct {
        uint32_t first, count;
        kvt_status status;
    } ranges[] = {{0, 0, KVT_OK},         {1, 0, KVT_OK},         {2, 0, KVT_OK},
                  {0, 3, KVT_E_ARGUMENT}, {2, 1, KVT_E_ARGUMENT}, {3, 0, KVT_E_ARGUMENT}};
    for (uint32_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, NULL, NULL, &layout,
                                             &view, ranges[i].first, ranges[i].count,
                                             e.scratch.data, e.scratch.bytes),
                      ranges[i].status);
    }
    layout.tokens--;
    assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, NULL, NULL, &layout, &view,
                                         0, 0, e.scratch.data, e.scratch.bytes),
                  KVT_E_SPACE);
    layout.tokens = TOKENS;
    layout.dtype = KVT_DTYPE_BF16;
    assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, NULL, NULL, &layout, &view,
                                         0, 0, e.scratch.data, e.scratch.bytes),
                  KVT_E_SPACE);
    layout.dtype = KVT_DTYPE_FP16;
    assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, NULL, NULL, &layout, &view,
                                         0, 0, e.scratch.data, e.scratch.bytes - 1),
                  KVT_E_SPACE);
    e.record.data[e.record.bytes - 4096] ^= 1;
    assert_status(kvt_record_decode_view(e.record.data, e.record.bytes, NULL, NULL, &layout, &view,
                                         0, 0, e.scratch.data, e.scratch.bytes),
                  KVT_E_CORRUPT);
}
