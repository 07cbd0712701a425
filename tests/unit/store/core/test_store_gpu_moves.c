/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_moves.c - moves out of the hbm tier that change the variant: kernels make the new
 * record of one that lies in a GPU's memory, over the stand-in for the driver, and it is the CPU's
 * byte for byte. Damaged records and failing calls leave the move to the CPU.
 */
#include "codecs_support.h"
#include "store/core/store.h"
#include "store/gpu/gpu_put.h"

#include "gpu_engine.h"

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

/* ---- one record ---- */

/* A record in a GPU's memory, and what the CPU makes of it. */
typedef struct far_case {
    encoded from, to;
    kvt_record_spec spec;
    gpu_site *site;
    store_gpu_source source;
} far_case;

static void far_open(far_case *c, const kvt_layout *of, const char *from, const char *to)
{
    c->from = encoded_make(*of, from, NULL);
    assert_ok(encoded_decode(&c->from));
    c->to = encoded_make(*of, to, c->from.decoded.data);
    c->spec = c->to.spec;
    assert_ok(gpu_sites_take(&store->gpus, 0, &c->site));
    c->source = (store_gpu_source){.site = c->site,
                                   .layout = of,
                                   .record_bytes = c->from.record.bytes,
                                   .variant = c->from.spec.variant,
                                   .expected = &c->from.spec};
    assert_int_equal(driver.allocate(&c->source.record, c->from.record.bytes), 0);
    fake_cuda_move(c->from.record.data, c->source.record, c->from.record.bytes, 1);
}

static void far_close(far_case *c)
{
    assert_int_equal(driver.free(c->source.record), 0);
}

/* Whether kernels make the record; if they do, it is right and nothing behind it was written. */
static kvt_status far_encode(const far_case *c)
{
    uint64_t bound, scratch, bytes = 0;
    assert_ok(kvt_record_bound(&c->spec, &bound, &scratch));
    const guarded record = guarded_make(bound);
    const kvt_status status = store_gpu_encode(&c->source, &c->spec, record.data, bound, &bytes);
    if (status != KVT_OK) return status;
    assert_int_equal(bytes, c->to.record.bytes);
    assert_memory_equal(record.data, c->to.record.data, bytes);
    guarded_check(&record, bound);
    return status;
}

static const char *const sources[] = {"raw", "lossless", "lossless:fast", "planes:k8v8,g64"};
static const char *const targets[] = {"kivi:k4v4,g64", "kivi:k2v8,g32", "planes:k4v4,g64",
                                      "planes:k6v3,g32"};

static void open_bare(void)
{
    give_kernels();
    engine_open(0, "lsbth");
    fake_kernel_targets[0] = (lanes_memory){.bytes = 0}; /* kernels decode into the scratch */
    site_open(false, false);
}

TEST(the_record_is_the_cpu_s)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    uint32_t made = 0;
    open_bare();
    for (uint32_t i = 0; i < 4 * 4 * 4; i++) {
        far_case c;
        kvt_layout own_layout = layout;
        uint64_t bytes, scratch;
        own_layout.dtype = dtypes[i / 16];
        own_layout.tokens = 64 + i; /* whole groups, and rows of less than one */
        bool there = true;
        for (int k = 0; k < 2 && there; k++) {
            const char *form = k == 0 ? sources[i / 4 % 4] : targets[i % 4];
            const kvt_record_spec spec = codecs_support_spec(own_layout, form);
            there = kvt_record_bound(&spec, &bytes, &scratch) == KVT_OK;
        }
        if (!there) continue; /* fp8 has no such form */
        far_open(&c, &own_layout, sources[i / 4 % 4], targets[i % 4]);
        const uint64_t before = gpu_counted(c.site, GPU_ENCODED_BY_GPU);
        const kvt_status status = far_encode(&c);
        /* A matrix of fp8 that does not shrink is stored raw: the CPU finds out which. */
        if (own_layout.dtype != KVT_DTYPE_FP8) assert_ok(status);
        made += status == KVT_OK;
        assert_int_equal(gpu_counted(c.site, GPU_ENCODED_BY_GPU) - before,
                         status == KVT_OK ? LAYERS : 0);
        far_close(&c);
    }
    assert_true(made >= 54); /* fp8: from raw and dense, to what shrinks */
    assert_int_equal(fake->pageable, 0);
    assert_int_equal(fake->unbound, 0);
}

/* A bit of the record is turned, or it is cut short, or another one: no record is made of it. */
TEST(no_record_is_made_of_a_damaged_one)
{
    open_bare();
    for (uint32_t i = 0; i < 4; i++) {
        far_case c;
        kvt_record_info info;
        far_open(&c, &layout, sources[i], targets[(i + 1) % 4]);
        uint8_t *record = c.from.record.data;
        assert_ok(kvt_record_verify(record, c.from.record.bytes, &info));
        const uint64_t payload = c.from.record.bytes - info.head_bytes;
        for (uint32_t k = 0; k < 8; k++) { /* all over the payload */
            uint8_t *byte = record + info.head_bytes + payload * k / 8 + k % 8;
            const uint64_t unsound = gpu_counted(c.site, GPU_UNSOUND);
            *byte ^= (uint8_t)(1u << k % 8);
            fake_cuda_move(record, c.source.record, c.from.record.bytes, 1);
            /* Grains between planes are in no segment. */
            if (kvt_record_verify(record, c.from.record.bytes, &info) != KVT_OK) {
                assert_int_equal(far_encode(&c), KVT_E_CORRUPT);
                assert_int_equal(gpu_counted(c.site, GPU_UNSOUND), unsound + LAYERS);
            }
            *byte ^= (uint8_t)(1u << k % 8);
        }
        for (uint32_t k = 0; k < 16; k++) { /* and the head */
            uint8_t *byte = record + info.head_bytes * k / 16;
            *byte ^= 64;
            fake_cuda_move(record, c.source.record, c.from.record.bytes, 1);
            (void)far_encode(&c); /* right, or not made */
            *byte ^= 64;
        }
        fake_cuda_move(record, c.source.record, c.from.record.bytes, 1);
        assert_ok(far_encode(&c));
        kvt_record_spec other = c.from.spec;
        c.source.expected = &other;
        other.generation++;
        assert_int_equal(far_encode(&c), KVT_E_MISMATCH);
        other.generation--;
        other.key.bytes[0] ^= 1;
        assert_int_equal(far_encode(&c), KVT_E_MISMATCH);
        c.source.expected = &c.from.spec;
        c.source.record_bytes -= KVT_RECORD_ALIGN; /* segments behind its end */
        assert_int_equal(far_encode(&c), KVT_E_CORRUPT);
        c.source.record_bytes = 64;
        assert_int_equal(far_encode(&c), KVT_E_UNSUPPORTED);
        c.source.record_bytes = UINT64_C(1) << 40; /* more than is there */
        assert_int_equal(far_encode(&c), KVT_E_ARGUMENT);
        far_close(&c);
    }
}

/* What is too much for the scratch, or coded otherwise, is left to the CPU. */
TEST(records_that_are_left_to_the_cpu)
{
    static const kvt_gpu_options little = {.scratch_bytes = 65536};
    far_case c;
    gpu_options = &little;
    open_bare();
    far_open(&c, &layout, "raw", "planes:k4v4,g64");
    assert_int_equal(far_encode(&c), KVT_E_UNSUPPORTED);
    c.spec.variant = (kvt_variant){.codec = KVT_CODEC_RAW};
    assert_int_equal(far_encode(&c), KVT_E_UNSUPPORTED);
    far_close(&c);
}

/* ---- moves of a store ---- */

enum { MOVED = 24 };

static uint32_t recoded_out_of_hbm; /* moves that were carried out */

static void note_move(void *context, const kvt_move *move, kvt_status outcome)
{
    (void)context;
    recoded_out_of_hbm += outcome == KVT_OK && move->kind == KVT_MOVE_CHANGE &&
                          move->from_bytes[KVT_TIER_HBM] > ENTRY_BYTES &&
                          move->to_variant.codec == KVT_CODEC_PLANES;
}

/* A store with room for some raw entries in a GPU's memory, and for none in the host's. */
static void moves_open(bool emulated)
{
    static const test_rung rungs[] = {{"planes:k8v8,g64", 8.6, 0.001, 0.002, true},
                                      {"planes:k4v4,g64", 4.6, 0.004, 0.005, true}};
    static char path[64];
    static kvt_device_config hbm;
    hbm = (kvt_device_config){.struct_size = sizeof hbm,
                              .name = "gpu0",
                              .backend = "hbm",
                              .capacity_bytes = 12 * ENTRY_BYTES,
                              .emulated = emulated};
    (void)snprintf(path, sizeof path, "%s.db", program_invocation_short_name);
    (void)unlink(path);
    ladder_make_profile(path, rungs, 2);
    kvt_store_options options = ladder_store_options(path, &layout, ENTRY_BYTES);
    options.lossless = false;
    options.loss.loss_limit = 0.5;
    options.tiers[KVT_TIER_HBM] = (kvt_tier_options){.devices = &hbm, .device_count = 1};
    options.observer.call = note_move;
    if (gpu_options != NULL) options.gpu = *gpu_options;
    recoded_out_of_hbm = 0;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
}

/* Puts more than there is room for. */
static void moves_press(void)
{
    static char data[ENTRY_BYTES];
    for (uint32_t i = 0; i < MOVED; i++) {
        kvt_entry entry = support_entry(support_key(i), layout, 1e4);
        fill(i, data);
        (void)!kvt_store_put(store, &entry, KVT_PACKED(data, ENTRY_BYTES));
        (void)!kvt_store_maintain(store, NULL);
    }
}

/* What a variant makes of an entry that begins a chain. */
static void moves_expect(kvt_variant variant, char *data)
{
    kvt_record_spec spec = codecs_support_spec(layout, "raw");
    uint64_t bound, scratch_bytes, bytes;
    spec.variant = variant;
    spec.first_position = 0;
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    const guarded record = guarded_make(bound), scratch = guarded_make(scratch_bytes);
    assert_true(kvt_record_encode(&spec, data, ENTRY_BYTES, record.data, bound, scratch.data,
                                  scratch_bytes, &bytes) >= KVT_OK);
    assert_ok(kvt_record_decode(record.data, bytes, NULL, data, ENTRY_BYTES, scratch.data,
                                scratch_bytes));
}

/* Every entry that is there is what its variant makes of it. Returns how many are planes. */
static uint32_t moves_check(void)
{
    uint32_t coded = 0;
    for (uint32_t i = 0; i < MOVED; i++) {
        static char data[ENTRY_BYTES], found[ENTRY_BYTES];
        const kvt_key key = support_key(i);
        kvt_get_info info = {.struct_size = sizeof info};
        if (kvt_store_get(store, &key, KVT_PACKED(found, ENTRY_BYTES), KVT_NO_DEADLINE, &info) !=
            KVT_OK)
            continue;
        fill(i, data);
        moves_expect(info.variant, data);
        assert_memory_equal(found, data, ENTRY_BYTES);
        coded += info.variant.codec == KVT_CODEC_PLANES;
    }
    return coded;
}

TEST(moves_out_of_hbm_are_coded_on_the_gpu)
{
    static const kvt_gpu_options none = {.scratch_bytes = 0};
    for (int way = 0; way < 3; way++) { /* by kernels; without scratch; memory of the host */
        give_kernels();
        gpu_options = way == 1 ? &none : NULL;
        fake_kernel_targets[0] = (lanes_memory){.bytes = 0};
        moves_open(way == 2);
        moves_press();
        assert_true(moves_check() > 0);
        assert_true(recoded_out_of_hbm > 0);
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.open, way != 2);
        if (way == 0) {
            assert_true(stats.encoded_by_gpu > 0);
            assert_int_equal(stats.encoded_by_cpu, 0);
            /* Heads and records, and no entry as it is. */
            assert_true(stats.bytes_out < stats.encoded_by_gpu * ENTRY_BYTES / LAYERS);
        } else {
            assert_int_equal(stats.encoded_by_gpu, 0);
            assert_int_equal(stats.encoded_by_cpu > 0, way == 1);
        }
        assert_int_equal(support_stats(store).load_failures, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        assert_int_equal(fake->live, 0);
    }
}

/* Each call fails in turn, once or for good: what a get gives is right, and nothing is left. */
TEST(the_nth_call_of_the_driver_fails_in_a_move)
{
    for (int way = 0; way < 2; way++) {
        bool reached = true;
        for (uint32_t n = 1; reached; n += 1 + n / 3) {
            give_kernels();
            fake_kernel_targets[0] = (lanes_memory){.bytes = 0};
            moves_open(false);
            fake->calls = fake->failed = 0;
            fake->fail_call = n;
            fake->fail_result = way == 0 ? PASSING : LOST;
            fake->fail_for_good = way;
            moves_press();
            reached = fake->failed > 0;
            fake->fail_call = 0;
            fake->fail_for_good = 0;
            (void)moves_check();
            assert_int_equal(queue_site_close(NULL), 0);
            assert_int_equal(fake->live, 0);
            assert_true(n < 100000);
        }
    }
}
