/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_basis.c - loads and gets of entries in a form of the transform into a GPU's
 * memory, over the stand-in for the driver and the host's build of the kernels: the basis crosses
 * once, all layers of a span come with its first, and without the basis on the GPU the CPU decodes.
 */
#include "fake_kernels.h"

#include "basis_site.h"
#include "codecs/transform_image.h"

#include <kvterrace/gpu.h>
#include <kvterrace/load.h>
#include <kvterrace/queue.h>

enum { ENTRIES = 3, LAYERS = 6, LOST = 719, REFUSED = 2 };
enum { LAYER_BYTES = BASIS_SITE_BYTES / LAYERS };

static kvt_store *store;
static kvt_queue *queue;

/* The engine: a context, a stream, and memory for the entries, one behind the other. */
static struct {
    void *context;
    uint64_t pool;
    void *stream;
    kvt_view views[ENTRIES];
    const kvt_view *pointers[ENTRIES];
    kvt_key keys[ENTRIES];
} engine;

static struct {
    int (*allocate)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*stream)(void **, unsigned);
    int (*end_stream)(void *);
    int (*finish)(void *);
} driver;

static void find(const char *name, void *pointer)
{
    void *symbol = fake_cuda_symbol(name);
    assert_non_null(symbol);
    memcpy(pointer, &symbol, sizeof symbol);
}

static int open_all(void **state)
{
    if (fake_cuda_load(state) != 0) return -1;
    find("cuMemAlloc_v2", &driver.allocate);
    find("cuMemFree_v2", &driver.free);
    find("cuStreamCreate", &driver.stream);
    find("cuStreamDestroy_v2", &driver.end_stream);
    find("cuStreamSynchronize", &driver.finish);
    if (basis_site_set_up(state) != 0) return -1;
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    return 0;
}

static int begin_case(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){.gpu_count = 1, .queries_until_done = 2};
    fake_kernels_give(fake, NULL, 0);
    return 0;
}

static void close_all(void)
{
    if (queue != NULL) kvt_queue_close(queue);
    kvt_store_close(store);
    queue = NULL;
    store = NULL;
    if (engine.context == NULL) return;
    assert_int_equal(driver.end_stream(engine.stream), 0);
    assert_int_equal(driver.free(engine.pool), 0);
    (void)fake_cuda_turn(0, -1);
    engine.context = NULL;
}

static int end_case(void **state)
{
    fake->fail_call = 0;
    fake->fail_for_good = fake->fail_alike = 0;
    site.gpu = NULL;
    site.hbm = NULL;
    close_all();
    return fake_kernel_failures != 0 ? -1 : fake_cuda_is_empty(state);
}

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

/* A store with the entries in their form, a queue on it, and an engine. */
static void open_site(void)
{
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 2};
    engine.context = fake_cuda_turn(0, 1);
    assert_int_equal(driver.allocate(&engine.pool, (size_t)ENTRIES * BASIS_SITE_BYTES), 0);
    fake_kernel_targets[0] =
        (lanes_memory){(void *)(uintptr_t)engine.pool, (uint64_t)ENTRIES * BASIS_SITE_BYTES, true};
    assert_int_equal(driver.stream(&engine.stream, 1), 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        void *place = (void *)(uintptr_t)(engine.pool + (uint64_t)i * BASIS_SITE_BYTES);
        engine.views[i] = kvt_view_packed(place, BASIS_SITE_BYTES);
        engine.views[i].memory = KVT_MEMORY_GPU;
        engine.pointers[i] = &engine.views[i];
        engine.keys[i] = support_key(i);
    }
    store = basis_site_store(&site, BASIS_SITE_CODES);
    assert_ok(kvt_queue_open(store, &options, &queue));
}

/* The first layers of an entry are in the engine's memory as the CPU decodes them. */
static bool has_layers(uint32_t number, uint32_t layers)
{
    static char found[BASIS_SITE_BYTES], data[BASIS_SITE_BYTES], wanted[BASIS_SITE_BYTES];
    fake_cuda_move(found, engine.pool + (uint64_t)number * BASIS_SITE_BYTES, sizeof found, 0);
    basis_site_fill(number, data);
    (void)basis_site_code(&site, data, wanted);
    assert_memory_not_equal(wanted, data, sizeof data);
    return memcmp(found, wanted, (size_t)layers * LAYER_BYTES) == 0;
}

static kvt_gpu_stats stats_of_gpu(void)
{
    kvt_gpu_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_gpu_stats_get(store, 0, &stats));
    return stats;
}

/* Loads all entries, layer by layer. */
static kvt_status load_all(kvt_status statuses[ENTRIES])
{
    kvt_load *load = NULL;
    kvt_status status = kvt_load_begin(queue, engine.keys, engine.pointers, ENTRIES, NULL, &load);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
        status = kvt_load_wait_layer(load, layer, engine.stream);
        kvt_load_release(load, layer + 1);
    }
    const kvt_status ended = kvt_load_end(load, statuses, NULL);
    return status != KVT_OK ? status : ended;
}

static void load_well(void)
{
    kvt_status statuses[ENTRIES];
    assert_ok(load_all(statuses));
    assert_int_equal(driver.finish(engine.stream), 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(statuses[i]);
        assert_true(has_layers(i, LAYERS));
    }
}

/* Spans are decoded by kernels, and the basis is sent once. */
TEST(kernels_decode_spans_and_send_the_basis_once)
{
    open_site();
    load_well();
    const kvt_gpu_stats first = stats_of_gpu();
    assert_int_equal(first.decoded_by_gpu, ENTRIES * LAYERS);
    assert_int_equal(first.decoded_by_cpu, 0);
    assert_false(first.kernels_refused);
    load_well();
    const kvt_gpu_stats second = stats_of_gpu();
    const uint64_t image = transform_image_of(&basis_site_shape).bytes;
    assert_int_equal(second.decoded_by_gpu, 2 * ENTRIES * LAYERS);
    assert_int_equal(first.bytes_in - (second.bytes_in - first.bytes_in), image);
    assert_true(second.bytes_in - first.bytes_in < (uint64_t)ENTRIES * BASIS_SITE_BYTES);
    assert_int_equal(fake->pageable, 0);
    assert_int_equal(fake->unbound, 0);
}

/* Records in the GPU's memory are decoded there: beside jobs the basis alone is sent. */
TEST(spans_of_records_that_are_there)
{
    kvt_device_config device = {
        .struct_size = sizeof device, .name = "gpu0", .backend = "hbm", .capacity_bytes = 64 << 20};
    const kvt_tier_options tier = {.devices = &device, .device_count = 1};
    site.hbm = &tier;
    open_site();
    for (uint32_t i = 0; i < ENTRIES;
         i++) { /* from the drive to the GPU; a close writes them back */
        assert_ok(kvt_store_delete(store, &engine.keys[i]));
        assert_ok(basis_site_put(store, i));
    }
    assert_ok(kvt_store_flush(store));
    load_well();
    for (uint32_t i = 0; i < ENTRIES; i++) {
        char zeros[BASIS_SITE_BYTES] = {0};
        fake_cuda_move(zeros, engine.pool + (uint64_t)i * BASIS_SITE_BYTES, sizeof zeros, 1);
        assert_ok(kvt_store_get(store, &engine.keys[i], engine.pointers[i], KVT_NO_DEADLINE, NULL));
        assert_true(has_layers(i, LAYERS));
    }
    const kvt_gpu_stats stats = stats_of_gpu();
    const uint64_t image = transform_image_of(&basis_site_shape).bytes;
    assert_int_equal(stats.decoded_in_place, 2 * ENTRIES * LAYERS);
    assert_int_equal(stats.decoded_by_cpu, 0);
    assert_true(stats.bytes_in - image < (uint64_t)ENTRIES * BASIS_SITE_BYTES / 4);
    assert_int_equal(fake->pageable, 0);
}

/* Gets layers of the first entry by the queue, into memory that is zero: they are there as the CPU
 * decodes them, and nothing else is written. */
static void get_layers(uint32_t first, uint32_t count)
{
    static char found[BASIS_SITE_BYTES], data[BASIS_SITE_BYTES], wanted[BASIS_SITE_BYTES];
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = engine.keys[0],
                                 .view = &engine.views[0],
                                 .first_layer = first,
                                 .layer_count = count,
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    memset(found, 0, sizeof found);
    fake_cuda_move(found, engine.pool, sizeof found, 1);
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_ok(done.status);
    fake_cuda_move(found, engine.pool, sizeof found, 0);
    basis_site_fill(0, data);
    (void)basis_site_code(&site, data, wanted);
    memset(wanted, 0, first * LAYER_BYTES);
    memset(wanted + (first + count) * LAYER_BYTES, 0, (LAYERS - first - count) * LAYER_BYTES);
    assert_memory_equal(found, wanted, sizeof found);
}

/* Gets go the same way; but the CPU decodes where a get wants some layers of a span and not the
 * others. */
TEST(gets_by_kernels_and_of_parts_of_spans)
{
    static const uint32_t parts[][3] = {{0, 4, 0}, {4, 2, 0}, {0, 6, 0}, {1, 2, 1},
                                        {3, 3, 1}, {0, 5, 1}, {5, 1, 1}, {2, 1, 1}};
    open_site();
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(kvt_store_get(store, &engine.keys[i], &engine.views[i], KVT_NO_DEADLINE, NULL));
        assert_true(has_layers(i, LAYERS));
    }
    assert_int_equal(stats_of_gpu().decoded_by_gpu, ENTRIES * LAYERS);
    assert_int_equal(stats_of_gpu().decoded_by_cpu, 0);
    for (uint32_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const kvt_gpu_stats before = stats_of_gpu();
        get_layers(parts[i][0], parts[i][1]);
        const kvt_gpu_stats after = stats_of_gpu();
        const bool cut = parts[i][2] != 0;
        assert_int_equal(after.decoded_by_gpu - before.decoded_by_gpu, cut ? 0 : parts[i][1]);
        assert_int_equal(after.decoded_by_cpu != before.decoded_by_cpu, cut);
        assert_int_equal(after.unsound, 0);
    }
}

/* A store without scratch sends no basis, and the CPU decodes. */
TEST(no_scratch_no_basis)
{
    static const kvt_gpu_options none = {.scratch_bytes = 0, .pinned_bytes = 1 << 20};
    site.gpu = &none;
    open_site();
    load_well();
    assert_int_equal(stats_of_gpu().decoded_by_gpu, 0);
    assert_int_equal(stats_of_gpu().bytes_in, (uint64_t)ENTRIES * BASIS_SITE_BYTES);
}

/* A stream that waits for a layer finds all of its span whole, and an announcement of layers of a
 * span asks for nothing more. */
TEST(a_span_is_announced_with_its_first_layer)
{
    kvt_status statuses[ENTRIES];
    kvt_load *load;
    open_site();
    fake->queries_until_done = 500;
    assert_ok(kvt_load_begin(queue, engine.keys, engine.pointers, ENTRIES, NULL, &load));
    kvt_load_release(load, 4);
    assert_ok(kvt_load_wait_layer(load, 0, engine.stream));
    assert_int_equal(driver.finish(engine.stream), 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_true(has_layers(i, 4));
    const uint32_t launches = fake->launches;
    for (uint32_t layer = 1; layer < 4; layer++)
        assert_ok(kvt_load_wait_layer(load, layer, engine.stream));
    assert_int_equal(fake->launches, launches);
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait_layer(load, LAYERS - 1, engine.stream));
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(statuses[i]);
        assert_true(has_layers(i, LAYERS));
    }
}

/* Without memory for the basis, or with a copy that fails, the CPU decodes; the next load asks
 * again. */
TEST(a_basis_that_does_not_arrive)
{
    static const char *const calls[] = {"cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuMemHostAlloc"};
    for (uint32_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        open_site();
        fake->calls = fake->failed = 0;
        fake->fail_name = calls[i];
        fake->fail_result = i == 1 ? 1 : REFUSED;
        fake->fail_call = 1;
        load_well();
        assert_int_equal(fake->failed, 1);
        const kvt_gpu_stats stats = stats_of_gpu();
        assert_true(stats.decoded_by_cpu >= 1);
        assert_false(stats.kernels_refused);
        fake->fail_call = 0;
        load_well();
        assert_int_equal(stats_of_gpu().decoded_by_cpu, stats.decoded_by_cpu);
        assert_int_equal(stats_of_gpu().decoded_by_gpu, stats.decoded_by_gpu + ENTRIES * LAYERS);
        close_all();
        assert_int_equal(fake->live, 0);
    }
}

/* Each call of the driver fails in turn, alone or with the context: no entry is said to be right
 * that is not, and nothing stays allocated. */
TEST(the_nth_call_of_the_driver_fails)
{
    bool reached = true;
    for (uint32_t n = 1; reached; n += 1 + n / 8) {
        kvt_status statuses[ENTRIES] = {KVT_OK};
        open_site();
        fake->calls = fake->failed = 0;
        fake->fail_call = n;
        fake->fail_result = n % 2 == 0 ? LOST : REFUSED;
        fake->fail_for_good = n % 2 == 0;
        const kvt_status status = load_all(statuses);
        reached = fake->failed > 0;
        fake->fail_call = 0;
        fake->fail_for_good = 0;
        (void)driver.finish(engine.stream);
        for (uint32_t i = 0; i < ENTRIES && status == KVT_OK; i++)
            assert_true(statuses[i] != KVT_OK || has_layers(i, LAYERS));
        if (!reached) assert_ok(status);
        close_all();
        assert_int_equal(fake->live, 0);
        assert_true(n < 4000);
    }
}
