/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu.c - gets, puts and layered loads of views in a GPU's memory, over the stand-in for
 * the driver (fake_cuda.c), with each call of the driver failing in turn. Nothing stays allocated.
 */
#include "gpu_engine.h"

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

TEST(loads_from_memory_and_from_a_device)
{
    for (size_t i = 0; i < 4 * sizeof axes_of_pools / sizeof axes_of_pools[0]; i++) {
        engine_open((int)(i % 2), axes_of_pools[i / 4]);
        site_open(i % 4 >= 2, false);
        load_well();
        const kvt_gpu_stats stats = stats_of((uint32_t)i % 2);
        assert_true(stats.open);
        assert_int_equal(stats.bytes_in, ENTRIES * ENTRY_BYTES);
        assert_int_equal(stats.bytes_out, 0);
        assert_int_equal(stats.decoded_by_cpu, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_gpu, 0);
        assert_true(stats.kernels_refused);
        assert_false(stats_of((uint32_t)(i + 1) % 2).open);
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(fake->unbound, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

TEST(loads_what_a_put_has_handed_over)
{
    engine_open(0, "lsbth");
    site_open(true, true);
    load_well();
}

TEST(gets_and_puts)
{
    for (size_t i = 0; i < sizeof axes_of_pools / sizeof axes_of_pools[0]; i++) {
        engine_open(1, axes_of_pools[i]);
        site_open(i % 2 != 0, i >= 2);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_ok(kvt_store_get(store, &own.keys[k], &own.views[k], KVT_NO_DEADLINE, NULL));
            assert_true(pool_has(k));
        }
        assert_int_equal(stats_of(1).decoded_by_cpu, ENTRIES * LAYERS);
        for (uint32_t k = 0; k < ENTRIES; k++) { /* back, under other keys */
            kvt_entry entry = support_entry(support_key(100 + k), layout, 1);
            char data[ENTRY_BYTES], wanted[ENTRY_BYTES];
            assert_ok(kvt_store_put(store, &entry, &own.views[k]));
            assert_ok(kvt_store_get(store, &entry.key, KVT_PACKED(data, ENTRY_BYTES),
                                    KVT_NO_DEADLINE, NULL));
            fill(k, wanted);
            assert_memory_equal(data, wanted, ENTRY_BYTES);
        }
        assert_int_equal(stats_of(1).bytes_in, ENTRIES * ENTRY_BYTES);
        assert_int_equal(stats_of(1).bytes_out, ENTRIES * ENTRY_BYTES);
        assert_int_equal(stats_of(1).encoded_by_cpu, ENTRIES * LAYERS);
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

TEST(a_packed_view)
{
    engine_open(0, "lsbth");
    site_open(false, false);
    kvt_view view = kvt_view_packed((void *)(uintptr_t)own.pool, ENTRY_BYTES);
    char data[ENTRY_BYTES], wanted[ENTRY_BYTES];
    view.memory = KVT_MEMORY_GPU;
    assert_ok(kvt_store_get(store, &own.keys[2], &view, KVT_NO_DEADLINE, NULL));
    fake_cuda_move(data, own.pool, ENTRY_BYTES, 0);
    fill(2, wanted);
    assert_memory_equal(data, wanted, ENTRY_BYTES);
    view.base_bytes[0]--;
    assert_int_equal(kvt_store_get(store, &own.keys[2], &view, KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
}

/* An entry of two groups, one of them opaque, behind the other and before it. */
TEST(groups_with_opaque_ones)
{
    engine_open(0, "lsbth");
    site_open(true, false);
    const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5003};
    char *data = test_alloc(2 * ENTRY_BYTES);
    for (uint32_t first = 0; first < 2; first++) {
        const kvt_layout layouts[2] = {first == 0 ? opaque : layout, first == 0 ? layout : opaque};
        const uint64_t at = first == 0 ? 0 : ENTRY_BYTES, total = ENTRY_BYTES + 5003;
        kvt_entry entry = support_entry(support_key(50 + first), (kvt_layout){0}, 1);
        kvt_view bytes = {.struct_size = sizeof bytes, .memory = KVT_MEMORY_GPU};
        uint64_t room;
        assert_int_equal(driver.allocate(&room, 5003), 0);
        bytes.base[0] = (void *)(uintptr_t)room;
        bytes.base_bytes[0] = 5003;
        const kvt_view *views[2] = {first == 0 ? &bytes : &own.views[1],
                                    first == 0 ? &own.views[1] : &bytes};
        entry.groups = layouts;
        entry.group_count = 2;
        for (uint64_t i = 0; i < total; i++)
            data[i] = (char)(i * 131 >> 3);
        fill(1, data + (first == 0 ? 5003 : 0));
        assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, total)));
        const kvt_view view = kvt_view_grouped(views, 2), *pointer = &view;
        char found[5003];
        for (int way = 0; way < 2; way++) {
            const char zeros[5003] = {0};
            kvt_status status = KVT_OK;
            kvt_load *load;
            memcpy(found, zeros, sizeof found);
            fake_cuda_move(found, room, 5003, 1);
            if (way == 0) {
                assert_ok(kvt_store_get(store, &entry.key, &view, KVT_NO_DEADLINE, NULL));
            } else {
                assert_ok(kvt_load_begin(queue, &entry.key, &pointer, 1, NULL, &load));
                for (uint32_t layer = 0; layer < LAYERS; layer++) {
                    assert_ok(kvt_load_wait_layer(load, layer, own.stream));
                    kvt_load_release(load, layer + 1);
                }
                assert_ok(kvt_load_end(load, &status, NULL));
                assert_ok(status);
            }
            fake_cuda_move(found, room, 5003, 0);
            assert_memory_equal(found, data + at, 5003);
            assert_true(pool_has(1));
        }
        assert_int_equal(driver.free(room), 0);
    }
}

/* What is stored crosses, is verified and decoded by kernels, and is bit for bit the CPU's. */
TEST(kernels_decode)
{
    static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4", "entropy:k0.25v0.5",
                                        "lossless"};
    give_kernels();
    for (size_t i = 0; i < 10; i++) {
        const char *form = forms[i / 2];
        const uint32_t launches = fake->launches;
        kvt_status statuses[ENTRIES];
        engine_open(0, axes_of_pools[i % 4]);
        site_open_form(i % 2 != 0, false, form);
        assert_ok(load_all(statuses));
        assert_int_equal(driver.finish(own.stream), 0);
        const kvt_gpu_stats stats = stats_of(0);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_ok(statuses[k]);
            assert_true(pool_is(k, form != NULL));
        }
        assert_int_equal(stats.decoded_by_gpu, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_cpu, 0);
        assert_false(stats.kernels_refused);
        if (form != NULL) assert_true(stats.bytes_in < ENTRIES * ENTRY_BYTES * 9 / 10);
        /* One launch a layer of each kernel, where nothing is read. */
        if (i % 2 == 0) assert_true(fake->launches - launches <= LAYERS * 3);
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(fake->unbound, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* A bit that flips on the way from the device is found by a check, and its entry is a miss. */
TEST(kernels_find_a_flipped_bit)
{
    give_kernels();
    for (uint32_t i = 0; i < 3; i++) {
        kvt_status statuses[ENTRIES];
        uint32_t missed = 0;
        engine_open(0, "lsbth");
        site_open_form(true, false, i == 1 ? "planes:k4v4" : NULL);
        queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                            .kinds = TIERS_FAULT_READS,
                                            .skip = ENTRIES + 1 + i, /* heads come first */
                                            .hits = 1,
                                            .flip_bit = 4000 + 777 * i});
        assert_ok(load_all(statuses));
        assert_int_equal(driver.finish(own.stream), 0);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_true(statuses[k] == KVT_OK || statuses[k] == KVT_MISS);
            missed += statuses[k] == KVT_MISS;
            if (statuses[k] == KVT_OK) assert_true(pool_is(k, i == 1));
        }
        assert_int_equal(missed, 1);
        assert_int_equal(stats_of(0).decoded_by_gpu, ENTRIES * LAYERS - 1);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* Until the verdicts are read no entry is said to be right. */
TEST(an_entry_is_on_its_way_until_the_end)
{
    give_kernels();
    engine_open(0, "lsbth");
    site_open(false, false);
    kvt_status status;
    kvt_load *load;
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, 1, NULL, &load));
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
    assert_int_equal(kvt_load_status(load, 0), KVT_QUEUED);
    assert_ok(kvt_load_end(load, &status, NULL));
    assert_ok(status);
    assert_true(pool_has(0));
}

/* A driver that refuses a module, or has no memory for the scratch: the CPU decodes. */
TEST(kernels_that_are_refused)
{
    static const struct {
        const char *call;
        int result;
        bool refused;
        const char *engine;
        uint32_t loaded; /* kernels, before the call fails */
    } cases[] = {
        {"cuModuleLoadData", 221, true, "cpu: the driver has no compiler (221)", 0},
        {"cuModuleLoadData", 222, true, "cpu: the driver is too old (222)", 0},
        {"cuModuleLoadData", 222, true, "cuda without kvt_raw: the driver is too old (222)", 1},
        {"cuModuleLoadData", 218, true, "cpu: the GPU takes no PTX for compute 8.0 (218)", 0},
        {"cuModuleGetFunction", 500, true, "cpu: the driver refuses it (500)", 0},
        {"cuModuleLoadData", 2, false, "cuda", 0},
        {"cuMemAlloc_v2", 2, false, "cuda", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        give_kernels();
        engine_open(0, "lsbth");
        site_open(false, false);
        fake->calls = 0;
        fake->fail_name = cases[i].call;
        fake->fail_call = 1 + cases[i].loaded;
        fake->fail_alike = 1;
        fake->fail_result = cases[i].result;
        load_well();
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_by_cpu, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_gpu, 0);
        assert_int_equal(stats.kernels_refused, cases[i].refused);
        assert_string_equal(stats.engine, cases[i].engine);
        assert_string_equal(stats_of(1).engine, "");
        fake->fail_call = 0;
        fake->fail_alike = 0;
        fake->fail_name = NULL;
        load_well(); /* a refusal is for good, a lack of memory is not */
        assert_int_equal(stats_of(0).decoded_by_gpu, cases[i].refused ? 0 : ENTRIES * LAYERS);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* Nothing is written before the event of the views is over, and a wait for layers ends. */
TEST(a_load_waits_for_its_pages)
{
    engine_open(0, "lsbth");
    site_open(true, false);
    uint64_t busy;
    char bytes[64] = {0};
    assert_int_equal(driver.allocate(&busy, sizeof bytes), 0);
    fake->queries_until_done = UINT32_MAX; /* until it is told to be over */
    assert_int_equal(driver.copy(busy, bytes, sizeof bytes, own.stream), 0);
    assert_int_equal(driver.record(own.event, own.stream), 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        own.views[i].ready = own.event;
    const uint32_t copies = fake->copies;
    kvt_load *load;
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
    assert_int_equal(kvt_load_wait(load, 1, base_clock_ns() + SECOND_NS / 20), KVT_E_TIMEOUT);
    assert_int_equal(fake->copies, copies);
    fake->queries_until_done = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait_layer(load, layer, own.stream));
        kvt_load_release(load, layer + 1);
    }
    kvt_status statuses[ENTRIES];
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(statuses[i]);
        assert_true(pool_has(i));
    }
    assert_int_equal(driver.free(busy), 0);
}

/* A stream that waits for a layer finds it whole, though nobody else has asked for the copies. */
TEST(a_stream_waits_for_a_layer)
{
    engine_open(0, "slbth");
    site_open(false, false);
    fake->queries_until_done = 1000;
    kvt_load *load;
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
    assert_ok(kvt_load_wait_layer(load, 0, own.stream));
    assert_int_equal(driver.finish(own.stream), 0);
    char *half = test_alloc(POOL_BYTES), *found = test_alloc(ENTRY_BYTES);
    char *wanted = test_alloc(ENTRY_BYTES);
    fake_cuda_move(half, own.pool, POOL_BYTES, 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_view view = own.views[i];
        view.base[0] = half;
        view_gather_entry(&view, &layout, found);
        fill(i, wanted);
        assert_memory_equal(found, wanted, ENTRY_BYTES / LAYERS); /* layer 0, K and V */
    }
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* ---- bad input ---- */

TEST(views_that_are_refused)
{
    engine_open(0, "lsbth");
    site_open(false, false);
    char *host = test_alloc(POOL_BYTES);
    void *engine_other = fake_cuda_turn(1, 1);
    uint64_t other;
    assert_non_null(engine_other);
    assert_int_equal(driver.allocate(&other, POOL_BYTES), 0);
    (void)fake_cuda_turn(1, -1);
    for (int i = 0; i < 11; i++) {
        kvt_view view = own.views[0];
        kvt_entry entry = support_entry(support_key(200), layout, 1);
        const kvt_view *pointer = &view;
        kvt_status wanted = KVT_E_ARGUMENT, status = KVT_OK;
        kvt_load *load = NULL;
        uint32_t table[TABLE];
        memcpy(table, own.tables[0], sizeof table);
        switch (i) {
        case 0: view.base[0] = host; break;                      /* memory of the host */
        case 1: view.base[0] = (void *)(uintptr_t)other; break;  /* of another GPU */
        case 2: view.gpu = 1; break;                             /* same */
        case 3: view.gpu = 2; break;                             /* none there */
        case 4: view.gpu = UINT64_MAX; break;                    /* no number */
        case 5: table[1] = table[0], view.blocks = table; break; /* a page twice */
        case 6: view.block_count = 2; break;                     /* a table too short */
        case 7: table[1] = BLOCKS, view.blocks = table; break;   /* a page that is not there */
        case 8: table[1] = UINT32_MAX, view.blocks = table; break;
        case 9: view.token_stride /= 2; break; /* rows that overlap */
        default: view.memory = 2, wanted = KVT_E_UNSUPPORTED; break;
        }
        assert_int_equal(kvt_store_get(store, &own.keys[0], &view, KVT_NO_DEADLINE, NULL), wanted);
        assert_int_equal(kvt_store_put(store, &entry, &view), wanted);
        status = kvt_load_begin(queue, own.keys, &pointer, 1, NULL, &load);
        assert_true(status == wanted || status == KVT_MISS);
    }
    assert_int_equal(fake->copies, 0);
    const kvt_view plain = codecs_packed_view(&layout, host);
    const kvt_view *mixed[2] = {&own.views[0], &plain};
    kvt_load *load;
    assert_int_equal(kvt_load_begin(queue, own.keys, mixed, 2, NULL, &load), KVT_E_ARGUMENT);
    kvt_view unsound = plain; /* of the host, with a GPU's fields */
    unsound.ready = own.event;
    assert_int_equal(kvt_store_get(store, &own.keys[0], &unsound, KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_get(store, &(kvt_key){{9}}, &own.views[0], KVT_NO_DEADLINE, NULL),
                     KVT_MISS);
    (void)fake_cuda_turn(1, 1);
    assert_int_equal(driver.free(other), 0);
    (void)fake_cuda_turn(1, -1);
}

TEST(two_loads_into_the_same_pages_and_streams_of_others)
{
    engine_open(0, "lsbth");
    site_open(false, false);
    const kvt_view *same[2] = {&own.views[0], &own.views[0]};
    kvt_status statuses[2];
    kvt_load *load;
    void *stream;
    assert_ok(kvt_load_begin(queue, own.keys, same, 2, NULL, &load));
    assert_int_equal(kvt_load_wait_layer(NULL, 0, own.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_wait_layer(load, LAYERS, own.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_wait_layer(load, UINT32_MAX, own.stream), KVT_E_ARGUMENT);
    (void)fake_cuda_turn(1, 1);
    assert_int_equal(driver.stream(&stream, 1), 0);
    assert_int_equal(kvt_load_wait_layer(load, 0, stream), KVT_E_ARGUMENT);
    assert_int_equal(driver.end_stream(stream), 0);
    (void)fake_cuda_turn(1, -1);
    assert_ok(kvt_load_wait_layer(load, 0, own.stream));
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait_layer(load, LAYERS - 1, own.stream));
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_ARGUMENT);
    assert_true(pool_has(0));
    char data[ENTRY_BYTES]; /* a load into memory of the host has no layers for streams */
    const kvt_view plain = codecs_packed_view(&layout, data), *pointer = &plain;
    assert_ok(kvt_load_begin(queue, own.keys, &pointer, 1, NULL, &load));
    assert_int_equal(kvt_load_wait_layer(load, 0, own.stream), KVT_E_ARGUMENT);
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* Loads of different entries into the same pages, both at once: an engine's mistake costs what the
 * pages hold, and nothing else. */
TEST(two_loads_at_once_into_the_same_pages)
{
    give_kernels();
    for (int way = 0; way < 2; way++) {
        const kvt_view *same = &own.views[0];
        kvt_status statuses[2];
        kvt_load *loads[2];
        engine_open(0, "lsbth");
        site_open(way == 1, false);
        for (int i = 0; i < 2; i++)
            assert_ok(kvt_load_begin(queue, &own.keys[i], &same, 1, NULL, &loads[i]));
        for (int i = 0; i < 2; i++) {
            kvt_load_release(loads[i], LAYERS);
            assert_ok(kvt_load_wait_layer(loads[i], LAYERS - 1, own.stream));
        }
        for (int i = 0; i < 2; i++)
            assert_ok(kvt_load_end(loads[i], &statuses[i], NULL));
        assert_true(statuses[0] == KVT_OK && statuses[1] == KVT_OK);
        assert_ok(kvt_store_get(store, &own.keys[0], same, KVT_NO_DEADLINE, NULL));
        assert_true(pool_has(0));
        for (uint32_t i = 2; i < ENTRIES; i++) { /* the pages of others are as they were */
            assert_ok(kvt_store_get(store, &own.keys[i], &own.views[i], KVT_NO_DEADLINE, NULL));
            assert_true(pool_has(i));
        }
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

TEST(a_driver_that_does_not_answer)
{
    const char *const names[] = {"cuInit", "cuDeviceGetCount"};
    engine_open(0, "lsbth");
    for (int i = 0; i < 2; i++) {
        site_open(false, false);
        kvt_status statuses[ENTRIES];
        fake->calls = fake->copies = 0;
        fake->fail_name = names[i];
        fake->fail_call = 1;
        fake->fail_alike = 1;
        fake->fail_result = 100;
        assert_int_equal(load_all(statuses), KVT_E_UNSUPPORTED);
        assert_int_equal(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL),
                         KVT_E_UNSUPPORTED);
        const kvt_entry entry = support_entry(support_key(200), layout, 1);
        assert_int_equal(kvt_store_put(store, &entry, &own.views[0]), KVT_E_UNSUPPORTED);
        assert_int_equal(kvt_store_exists(store, &entry.key), KVT_MISS);
        size_t loaded = 9;
        assert_int_equal(
            kvt_prefix_get(store, own.keys, own.pointers, ENTRIES, KVT_NO_DEADLINE, &loaded),
            KVT_E_UNSUPPORTED);
        const kvt_request request = {.struct_size = sizeof request,
                                     .kind = KVT_REQUEST_GET,
                                     .key = own.keys[0],
                                     .view = &own.views[0],
                                     .deadline_ns = KVT_NO_DEADLINE};
        kvt_completion done = {.struct_size = sizeof done};
        const kvt_status submitted = kvt_queue_submit(queue, &request, 1, NULL);
        if (submitted == KVT_OK) {
            assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
            assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        }
        assert_int_equal(submitted != KVT_OK ? submitted : done.status, KVT_E_UNSUPPORTED);
        assert_false(stats_of(0).open);
        assert_string_equal(stats_of(0).engine, "cpu: the driver answers with CUDA error 100");
        assert_int_equal(fake->copies, 0);
        fake->fail_call = 0;
        fake->fail_alike = 0;
        fake->fail_name = NULL;
        load_well(); /* the next view tries again */
        assert_int_equal(queue_site_close(NULL), 0);
    }
}

/* ---- failures ---- */

static void fail_in_turn(bool device, int result, bool for_good)
{
    fail_in_turn_form(device, result, for_good, NULL);
}

TEST(the_nth_call_of_the_driver_fails_with_kernels)
{
    give_kernels();
    fail_in_turn(true, PASSING, false);
    fail_in_turn(false, LOST, true);
}

TEST(the_nth_call_of_the_driver_fails)
{
    fail_in_turn(false, PASSING, false);
    fail_in_turn(true, REFUSED, false);
}

TEST(the_context_is_lost_in_the_nth_call)
{
    fail_in_turn(false, LOST, true);
}

TEST(a_store_is_closed_with_a_load_open)
{
    for (uint32_t layers = 0; layers <= LAYERS; layers += 2) {
        engine_open(0, "lsbth");
        site_open(layers != 2, false);
        fake->queries_until_done = 50;
        kvt_load *load;
        assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
        kvt_load_release(load, layers);
        if (layers > 0) assert_ok(kvt_load_wait_layer(load, layers - 1, own.stream));
        assert_int_equal(queue_site_close(NULL), 0);
        assert_int_equal(kvt_load_wait_layer(load, 0, own.stream), KVT_E_STATE);
        kvt_status statuses[ENTRIES];
        assert_ok(kvt_load_end(load, statuses, NULL));
        for (uint32_t i = 0; i < ENTRIES && layers == LAYERS; i++)
            assert_true(statuses[i] != KVT_OK || pool_has(i));
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

TEST(statistics_of_what_is_not_there)
{
    site_open(false, false);
    kvt_gpu_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvt_gpu_stats_get(NULL, 0, &stats), KVT_E_ARGUMENT);
    assert_int_equal(kvt_gpu_stats_get(store, 1000, &stats), KVT_E_ARGUMENT);
    stats.struct_size = 4;
    assert_int_equal(kvt_gpu_stats_get(store, 0, &stats), KVT_E_ARGUMENT);
    assert_false(stats_of(0).open);
}
