/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_parallel.c - records on the caller's workers: the same bytes, values and statuses as
 * on one thread, for every kind of codec, any number of workers and any order of the tasks.
 */
#include "codecs_support.h"

#include "codecs/record_format.h"
#include "tools/command/worker_pool.h"

static const kvt_layout shaped = {.layers = 5,
                                  .kv_heads = 2,
                                  .head_dim = 32,
                                  .dtype = KVT_DTYPE_BF16,
                                  .tokens = 96,
                                  .tokens_may_drop = 1};
/* Two whole pieces and a short one. */
static const kvt_layout pieces = {.dtype = KVT_DTYPE_OPAQUE,
                                  .opaque_bytes = 2 * RECORD_OPAQUE_BYTES + 1001};

static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k4v2,g32",
    "kivi:k4v4,g32,r32",
    "planes:k6v4,g32",
    "planes:k2v8,g64,vfirst",
    "entropy:k0.25v0.5",
    "drop:knorm,50",
    "drop:knorm,50+kivi:k4v4,g32",
    "drop:stream,50+planes:k4v4,g32",
    "drop:lagkv,50+entropy:k0.25v0.5",
    "drop:keydiff,50+lossless",
};

enum { VARIANTS = sizeof variants / sizeof variants[0], WORKERS = 4 };

/* Tasks in another order, with each worker's number in turn. */
typedef struct reversed {
    kvt_codec_workers workers;
} reversed;

static void reversed_run(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
{
    const reversed *order = context;
    for (uint32_t i = tasks; i-- > 0;) {
        task(argument, i, i % order->workers.count);
    }
}

static guarded parallel_scratch(const kvt_record_spec *spec, uint32_t workers)
{
    uint64_t bytes;
    assert_status(kvt_record_scratch_parallel(spec, workers, &bytes), KVT_OK);
    return guarded_make(bytes);
}

/* Encodes and decodes e's entry again, on workers, in buffers of exactly the right size. */
static void check_same(const encoded *e, const kvt_codec_workers *workers,
                       const kvt_codec_extras *extras)
{
    kvt_record_info info;
    uint64_t written;
    guarded record = guarded_make(e->record.bytes);
    guarded scratch = parallel_scratch(&e->spec, workers->count);
    kvt_status status = kvt_record_encode_parallel(&e->spec, extras, workers, e->source.data,
                                                   e->source.bytes, record.data, record.bytes,
                                                   scratch.data, scratch.bytes, &written);
    assert_status(status, e->status);
    assert_int_equal(written, e->record.bytes);
    assert_memory_equal(record.data, e->record.data, written);
    guarded_check(&record, written);
    guarded_check(&scratch, scratch.bytes);

    assert_status(kvt_record_verify(record.data, written, &info), KVT_OK);
    guarded alone = guarded_make(info.decoded_bytes);
    guarded decoded = guarded_make(info.decoded_bytes);
    assert_status(kvt_record_decode(record.data, written, &e->spec, alone.data, alone.bytes,
                                    e->scratch.data, e->scratch.bytes),
                  KVT_OK);
    assert_status(kvt_record_decode_parallel(record.data, written, &e->spec, workers, decoded.data,
                                             decoded.bytes, scratch.data, scratch.bytes),
                  KVT_OK);
    assert_memory_equal(decoded.data, alone.data, alone.bytes);
    guarded_check(&decoded, decoded.bytes);
    guarded_check(&scratch, scratch.bytes);
}

static void check_workers(const encoded *e, const kvt_codec_extras *extras)
{
    for (uint32_t count = 1; count <= WORKERS; count += 3) {
        worker_pool pool;
        worker_pool_open(&pool, count);
        check_same(e, &pool.workers, extras);
        assert_true(pool.calls > 0);
        worker_pool_close(&pool);
    }
    reversed order = {{sizeof order.workers, 3, reversed_run, &order}};
    check_same(e, &order.workers, extras);
}

TEST(every_codec_writes_the_same_record)
{
    for (unsigned i = 0; i < VARIANTS; i++) {
        encoded e = encoded_make(shaped, variants[i], NULL);
        check_workers(&e, NULL);
    }
}

TEST(opaque_entries_are_shared_out_by_piece)
{
    encoded e = encoded_make(pieces, "lossless", NULL);
    check_workers(&e, NULL);
    e = encoded_make(pieces, "raw", NULL);
    check_workers(&e, NULL);
}

/* Some matrices cannot be coded, then none. */
TEST(matrices_that_stay_raw)
{
    uint64_t bytes;
    const uint64_t matrix = kvt_layout_matrix_bytes(&shaped);
    assert_status(kvt_layout_bytes(&shaped, &bytes), KVT_OK);
    uint8_t *source = test_alloc(bytes);
    for (int all = 0; all < 2; all++) {
        codecs_kv_sample_fill(&shaped, 7, source);
        for (uint64_t at = all ? 0 : matrix; at < bytes; at += all ? matrix : 3 * matrix) {
            const uint16_t nan = 0x7fc1;
            memcpy(source + at + 64, &nan, sizeof nan);
        }
        for (unsigned i = 0; i < VARIANTS; i++) {
            encoded e = encoded_make(shaped, variants[i], source);
            check_workers(&e, NULL);
        }
    }
}

TEST(extras_reach_the_workers)
{
    static const int8_t levels[] = {0, 1, -1, 0, 2, -2, 0, 0, 1, 1};
    kvt_codec_extras extras = {.struct_size = sizeof extras,
                               .chain_tokens = 1024 + 96,
                               .recent_tokens = 8,
                               .levels = levels};
    encoded e = encoded_make(shaped, "planes:k4v4,g32", NULL);
    guarded longer = guarded_make(e.record.bytes * 2);
    assert_status(kvt_record_encode_with(&e.spec, &extras, e.source.data, e.source.bytes,
                                         longer.data, longer.bytes, e.scratch.data, e.scratch.bytes,
                                         &longer.bytes),
                  KVT_OK);
    e.record = longer;
    check_workers(&e, &extras);
}

TEST(what_does_not_fit_is_refused_alike)
{
    worker_pool pool;
    worker_pool_open(&pool, 3);
    for (unsigned i = 0; i < VARIANTS; i++) {
        encoded e = encoded_make(shaped, variants[i], NULL);
        guarded record = guarded_make(e.record.bytes);
        guarded scratch = parallel_scratch(&e.spec, 3);
        for (uint64_t less = 1; less < e.record.bytes; less = less * 5 + 1) {
            uint64_t written;
            kvt_status alone =
                kvt_record_encode(&e.spec, e.source.data, e.source.bytes, record.data,
                                  e.record.bytes - less, e.scratch.data, e.scratch.bytes, &written);
            kvt_status status = kvt_record_encode_parallel(
                &e.spec, NULL, &pool.workers, e.source.data, e.source.bytes, record.data,
                e.record.bytes - less, scratch.data, scratch.bytes, &written);
            assert_status(status, alone);
        }
    }
    worker_pool_close(&pool);
}

TEST(too_little_scratch_is_refused)
{
    worker_pool pool;
    worker_pool_open(&pool, 2);
    encoded e = encoded_make(shaped, "entropy:k0.25v0.5", NULL);
    guarded scratch = parallel_scratch(&e.spec, 2);
    uint64_t written;
    assert_status(kvt_record_encode_parallel(&e.spec, NULL, &pool.workers, e.source.data,
                                             e.source.bytes, e.record.data, e.record.bytes,
                                             scratch.data, scratch.bytes - 1, &written),
                  KVT_E_ARGUMENT);
    assert_status(kvt_record_decode_parallel(e.record.data, e.record.bytes, NULL, &pool.workers,
                                             e.decoded.data, e.decoded.bytes, scratch.data,
                                             e.scratch.bytes),
                  KVT_E_SPACE);
    worker_pool_close(&pool);
}

/* One damaged byte in every segment in turn, and what decoding says on one thread. */
TEST(damage_is_found)
{
    worker_pool pool;
    worker_pool_open(&pool, 4);
    for (unsigned i = 0; i < VARIANTS; i++) {
        kvt_record_info info;
        encoded e = encoded_make(shaped, variants[i], NULL);
        guarded scratch = parallel_scratch(&e.spec, 4);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
        for (uint32_t s = 0; s < info.segment_count; s++) {
            const record_segment segment = record_segment_at(e.record.data, s);
            uint8_t *byte = e.record.data + segment.offset + segment.padded_bytes / 2;
            *byte ^= 0x10;
            kvt_status alone =
                kvt_record_decode(e.record.data, e.record.bytes, NULL, e.decoded.data,
                                  info.decoded_bytes, e.scratch.data, e.scratch.bytes);
            kvt_status status = kvt_record_decode_parallel(
                e.record.data, e.record.bytes, NULL, &pool.workers, e.decoded.data,
                info.decoded_bytes, scratch.data, scratch.bytes);
            if (segment.kind != KVT_PART_INDEX) assert_status(status, KVT_E_CORRUPT);
            assert_status(status, alone);
            *byte ^= 0x10;
        }
    }
    worker_pool_close(&pool);
}
