/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_kernels.c - gets and puts of views in a GPU's memory by kernels, over the stand-in
 * for the driver: what is stored crosses the link, wrong bytes are found, and the CPU takes over.
 */
#include "gpu_engine.h"

#include <kvterrace/rope.h>

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

/* ---- gets ---- */

/* What is stored crosses for gets, too: of a caller, of a queue, of a prefix. */
TEST(gets_by_kernels)
{
    static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4", "entropy:k0.25v0.5",
                                        "lossless"};
    give_kernels();
    for (size_t i = 0; i < 10; i++) {
        const char *form = forms[i / 2];
        engine_open(0, axes_of_pools[i % 4]);
        site_open_form(i % 2 != 0, false, form);
        for (uint32_t k = 0; k < 2; k++)
            assert_ok(kvt_store_get(store, &own.keys[k], &own.views[k], KVT_NO_DEADLINE, NULL));
        get_by_queue(2, 0, 0);
        size_t loaded;
        assert_ok(
            kvt_prefix_get(store, &own.keys[3], &own.pointers[3], 2, KVT_NO_DEADLINE, &loaded));
        assert_int_equal(loaded, 2);
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_by_gpu, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_cpu, 0);
        assert_int_equal(stats.unsound, 0);
        if (form != NULL) assert_true(stats.bytes_in < ENTRIES * ENTRY_BYTES * 9 / 10);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_true(pool_is(k, form != NULL));
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* Rows of an entry in its pages, and how many are neither its kept ones nor as they were. */
static uint32_t wrong_rows(uint32_t number, const char *kept, uint32_t tokens, char before)
{
    static char pool[POOL_BYTES], found[ENTRY_BYTES];
    enum { ROW = 2 * 64 * 2 };
    kvt_view view = own.views[number];
    uint32_t wrong = 0;
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    view.base[0] = pool;
    view_gather_entry(&view, &layout, found);
    for (uint32_t i = 0; i < 2 * LAYERS * TOKENS; i++) {
        const char *row = found + (uint64_t)i * ROW;
        if (i % TOKENS < tokens) wrong += memcmp(row, kept + (uint64_t)i * ROW, ROW) != 0;
        for (uint32_t k = 0; i % TOKENS >= tokens && k < ROW; k++)
            wrong += row[k] != before;
    }
    return wrong;
}

/* Gets an entry that has dropped tokens, whose keys a rope turns, first into memory of the host and
 * then into the GPU's, with the same positions. Returns how many tokens it has. */
static uint32_t get_kept(const kvt_view *view, const kvt_rope *rope, bool queued)
{
    static uint32_t positions[2][LAYERS * TOKENS];
    kvt_kept_tokens kept = {.struct_size = sizeof kept,
                            .positions = positions[view->memory == KVT_MEMORY_GPU],
                            .capacity = LAYERS * TOKENS,
                            .rope = rope};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = own.keys[0],
                                 .view = view,
                                 .info = &info,
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    memset(kept.positions, 0xff, sizeof positions[0]);
    if (queued) {
        assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
        assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        assert_ok(done.status);
    } else {
        assert_ok(kvt_store_get(store, &own.keys[0], view, KVT_NO_DEADLINE, &info));
    }
    assert_true(kvt_variant_drops_tokens(info.variant));
    assert_in_range(kept.count, 4, TOKENS - 1);
    if (view->memory == KVT_MEMORY_GPU)
        assert_memory_equal(positions[1], positions[0], sizeof positions[0]);
    return kept.count;
}

/* Kept rows come first, the rows behind them stay as they were, and the positions are told: by
 * kernels, and by the CPU where there is no scratch, too little, and where keys are turned. */
TEST(gets_of_fewer_tokens)
{
    static const char *const forms[] = {"drop:stream,50", "drop:keydiff,50+planes:k4v4,g64",
                                        "drop:knorm,25+kivi:k4v4,g64", "drop:lagkv,50+lossless",
                                        "drop:stream,50+entropy:k0.25v0.5"};
    static const kvt_gpu_options none = {.scratch_bytes = 0}, little = {.scratch_bytes = 16384};
    const kvt_rope turning = {.struct_size = sizeof turning, .rotary_dim = 64, .base = 1e4};
    layout.tokens_may_drop = 1;
    for (uint32_t i = 0; i < 5 * 5; i++) {
        const uint32_t way = i / 5; /* 0, 1: kernels; 2: no scratch; 3: little; 4: turned */
        const kvt_rope *rope = way == 4 ? &turning : NULL;
        static char data[ENTRY_BYTES], before[ENTRY_BYTES];
        gpu_options = way == 2 ? &none : way == 3 ? &little : NULL;
        give_kernels();
        engine_open(0, axes_of_pools[i % 4]);
        site_open_form(i % 2 != 0, false, forms[i % 5]);
        memset(data, 0, sizeof data);
        memset(before, 0x6b, sizeof before);
        pool_write(0, before);
        const kvt_view host = kvt_view_packed(data, sizeof data);
        const uint32_t tokens = get_kept(&host, rope, false);
        assert_int_equal(get_kept(&own.views[0], rope, way == 1), tokens);
        assert_int_equal(wrong_rows(0, data, tokens, 0x6b), 0);
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_by_gpu, way < 2 ? LAYERS : 0);
        assert_int_equal(stats.decoded_by_cpu, way < 2 ? 0 : LAYERS);
        assert_int_equal(stats.unsound, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
    layout.tokens_may_drop = 0;
}

/* A large record is sent while the rest of it is read. */
TEST(a_large_record_as_it_comes)
{
    const kvt_layout large = {
        .layers = 4, .kv_heads = 4, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 600};
    uint64_t total, room;
    assert_ok(kvt_layout_bytes(&large, &total));
    char *data = test_alloc(total), *found = test_alloc(total);
    give_kernels();
    engine_open(0, "lsbth");
    site_open(true, false);
    assert_int_equal(driver.allocate(&room, total), 0);
    fake_kernel_targets[1] = (lanes_memory){(void *)(uintptr_t)room, total, true};
    kvt_entry entry = support_entry(support_key(70), large, 1);
    codecs_kv_sample_fill(&large, 5, data);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, total)));
    kvt_view view = kvt_view_packed((void *)(uintptr_t)room, total);
    view.memory = KVT_MEMORY_GPU;
    for (int way = 0; way < 2; way++) {
        /* The first time all is well; the second time a bit of the last piece is turned. */
        if (way == 1)
            queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                                .kinds = TIERS_FAULT_READS,
                                                .flip_bit = UINT64_MAX / 8 * 5});
        const kvt_status status = kvt_store_get(store, &entry.key, &view, KVT_NO_DEADLINE, NULL);
        assert_int_equal(status, way == 0 ? KVT_OK : KVT_MISS);
        if (way == 1) break;
        assert_int_equal(stats_of(0).decoded_by_gpu, large.layers);
        fake_cuda_move(found, room, total, 0);
        assert_memory_equal(found, data, total);
    }
    assert_int_equal(kvt_store_exists(store, &entry.key), KVT_MISS);
    assert_int_equal(driver.free(room), 0);
}

/* Layers of a queue's get: those alone are written. */
TEST(some_layers_of_an_entry)
{
    for (int way = 0; way < 2; way++) {
        if (way == 1) give_kernels();
        engine_open(0, "lsbth");
        site_open(way == 1, false);
        get_by_queue(0, 1, 1);
        assert_false(pool_has(0));
        get_by_queue(0, 0, 1);
        assert_true(pool_has(0));
        assert_int_equal(stats_of(0).decoded_by_gpu, way == 1 ? 2 : 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* A get of a queue begins once the event of its view is over, and ends with its deadline. */
TEST(a_get_of_a_queue_waits_for_its_pages)
{
    engine_open(0, "lsbth");
    site_open(false, false);
    uint64_t busy;
    char bytes[64] = {0};
    kvt_completion done = {.struct_size = sizeof done};
    assert_int_equal(driver.allocate(&busy, sizeof bytes), 0);
    fake->queries_until_done = UINT32_MAX;
    assert_int_equal(driver.copy(busy, bytes, sizeof bytes, own.stream), 0);
    assert_int_equal(driver.record(own.event, own.stream), 0);
    own.views[0].ready = own.event;
    kvt_request request = {.struct_size = sizeof request,
                           .kind = KVT_REQUEST_GET,
                           .key = own.keys[0],
                           .view = &own.views[0],
                           .deadline_ns = base_clock_ns() + SECOND_NS / 50};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_int_equal(done.status, KVT_MISS);
    assert_true(done.timed_out);
    request.deadline_ns = KVT_NO_DEADLINE;
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_int_equal(kvt_queue_wait(queue, base_clock_ns() + SECOND_NS / 50), KVT_E_TIMEOUT);
    fake->queries_until_done = 0;
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_ok(done.status);
    assert_true(pool_has(0));
    assert_int_equal(driver.free(busy), 0);
}

/* A record that is damaged is found by kernels, and leaves the store as the CPU lets it leave. */
TEST(a_damaged_record_leaves_the_store)
{
    give_kernels();
    for (int way = 0; way < 3; way++) {
        engine_open(0, "lsbth");
        site_open_form(true, false, way == 2 ? "planes:k4v4" : NULL);
        /* Every read of a record's payload, whole or of a layer. */
        queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                            .kinds = TIERS_FAULT_READS,
                                            .skip = way == 0 ? 0 : 1, /* a load's head */
                                            .flip_bit = 8 * 20000 + 3});
        kvt_load *load;
        kvt_status status;
        if (way == 0) {
            status = kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL);
        } else {
            assert_ok(kvt_load_begin(queue, own.keys, own.pointers, 1, NULL, &load));
            kvt_load_release(load, LAYERS);
            assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
            assert_ok(kvt_load_end(load, &status, NULL));
        }
        assert_int_equal(status, KVT_MISS);
        assert_true(stats_of(0).unsound >= 1);
        assert_int_equal(kvt_store_exists(store, &own.keys[0]), KVT_MISS);
        assert_int_equal(support_stats(store).load_failures, 1);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* What kernels find unsound and the CPU does not stays: a get gives it, a load the next time. */
TEST(a_gpu_that_errs_costs_no_entry)
{
    give_kernels();
    for (int way = 0; way < 2; way++) {
        kvt_status statuses[ENTRIES];
        engine_open(0, "lsbth");
        site_open(false, false);
        fake_kernel_lies = true;
        if (way == 0) {
            assert_ok(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL));
            assert_true(pool_has(0));
            assert_int_equal(stats_of(0).unsound, 1);
            assert_ok(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL));
            assert_int_equal(stats_of(0).unsound, 1); /* the kernels were not asked again */
            assert_int_equal(stats_of(0).decoded_by_cpu, 2 * LAYERS);
        }
        bool whole = false;
        for (uint32_t turn = 0; turn < ENTRIES + 1 && !whole; turn++) {
            whole = true;
            assert_ok(load_all(statuses));
            for (uint32_t k = 0; k < ENTRIES; k++)
                whole = whole && statuses[k] == KVT_OK;
        }
        assert_true(whole);
        assert_true(stats_of(0).unsound > 0);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_true(pool_has(k));
        assert_int_equal(support_stats(store).load_failures, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* A packed buffer of an entry of groups takes these one by one, of which one is opaque. */
TEST(packed_groups_of_a_queue)
{
    give_kernels();
    engine_open(0, "lsbth");
    site_open(true, false);
    const kvt_layout layouts[2] = {layout, {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5003}};
    const uint64_t total = ENTRY_BYTES + 5003;
    kvt_entry entry = support_entry(support_key(60), (kvt_layout){0}, 1);
    entry.groups = layouts;
    entry.group_count = 2;
    char *data = test_alloc(total), *found = test_alloc(total);
    for (uint64_t i = 0; i < total; i++)
        data[i] = (char)(i * 131 >> 3);
    fill(1, data);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, total)));
    kvt_view view = kvt_view_packed((void *)(uintptr_t)own.pool, total);
    view.memory = KVT_MEMORY_GPU;
    own.keys[0] = entry.key;
    own.views[0] = view;
    get_by_queue(0, 0, 0);
    fake_cuda_move(found, own.pool, total, 0);
    assert_memory_equal(found, data, total);
    assert_true(stats_of(0).decoded_by_gpu >= 1 && stats_of(0).decoded_by_cpu >= 1);
}

/* ---- puts ---- */

/* The record alone crosses, and is what the CPU would have made, wherever it goes. */
TEST(puts_by_kernels)
{
    static const char *const forms[] = {"kivi:k4v4", "planes:k4v4", "planes:k6v4", NULL};
    give_kernels();
    for (size_t i = 0; i < 8; i++) {
        const char *form = forms[i / 2];
        char data[ENTRY_BYTES];
        engine_open(0, axes_of_pools[i % 4]);
        site_open_form(i % 2 != 0, i % 2 == 0, form);
        assert_ok(kvt_store_flush(store)); /* nothing waits that was put before */
        for (uint32_t k = 0; k < ENTRIES; k++) {
            kvt_entry entry = support_entry(support_key(100 + k), layout, 1);
            fill(k, data);
            pool_write(k, data);
            assert_ok(kvt_store_put(store, &entry, &own.views[k]));
            memset(data, 0, sizeof data);
            pool_write(k, data); /* the pages are the engine's again */
            assert_ok(kvt_store_flush(store));
            assert_true(same_stored(&own.keys[k], &entry.key));
        }
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.encoded_by_gpu, form != NULL ? ENTRIES * LAYERS : 0);
        assert_int_equal(stats.encoded_by_cpu, form != NULL ? 0 : ENTRIES * LAYERS);
        if (form != NULL) assert_true(stats.bytes_out < ENTRIES * ENTRY_BYTES * 3 / 4);
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(fake->unbound, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* What the codec does not take, and what has no scratch, the CPU encodes. */
TEST(puts_that_kernels_leave_to_the_cpu)
{
    static const kvt_gpu_options none = {.scratch_bytes = 0}, little = {.scratch_bytes = 16384};
    give_kernels();
    for (int way = 0; way < 3; way++) {
        uint16_t data[ENTRY_BYTES / 2];
        kvt_entry entries[2] = {support_entry(support_key(100), layout, 1),
                                support_entry(support_key(101), layout, 1)};
        gpu_options = way == 1 ? &none : way == 2 ? &little : NULL;
        engine_open(0, "lsbth");
        site_open_form(true, false, "planes:k4v4");
        fill(0, data);
        if (way == 0) data[20 * 128 + 7] = 0x7f80; /* infinity, in a token that is coded */
        pool_write(0, data);
        assert_ok(kvt_store_put(store, &entries[0], KVT_PACKED(data, ENTRY_BYTES)));
        assert_ok(kvt_store_put(store, &entries[1], &own.views[0]));
        assert_true(same_stored(&entries[0].key, &entries[1].key));
        assert_int_equal(stats_of(0).encoded_by_gpu, 0);
        assert_int_equal(stats_of(0).encoded_by_cpu, LAYERS);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* An entry that is there, or refused, does not cross. */
TEST(puts_that_store_nothing_read_nothing)
{
    engine_open(0, "lsbth");
    site_open(false, false);
    kvt_entry entry = support_entry(own.keys[0], layout, 1);
    assert_int_equal(kvt_store_put(store, &entry, &own.views[0]), KVT_EXISTS);
    assert_int_equal(stats_of(0).bytes_out, 0);
}

/* ---- bounds ---- */

/* Without scratch, or with too little, the CPU decodes; with little, in more launches. */
TEST(scratch_of_any_size)
{
    static const uint64_t sizes[] = {0, 1, 16384, 1 << 20, (512 << 20) + 1};
    give_kernels();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const kvt_gpu_options options = {.scratch_bytes = sizes[i], .pinned_bytes = 0};
        gpu_options = &options;
        engine_open(0, "lsbth");
        site_open(i % 2 != 0, false);
        load_well();
        assert_ok(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL));
        const kvt_gpu_stats stats = stats_of(0);
        assert_false(stats.kernels_refused);
        assert_int_equal(stats.decoded_by_cpu + stats.decoded_by_gpu, (ENTRIES + 1) * LAYERS);
        if (sizes[i] < 1 << 20) assert_int_equal(stats.decoded_by_gpu, 0);
        assert_string_equal(stats.engine, sizes[i] == 0 ? "cpu: gpu.scratch is 0" : "cuda");
        if (sizes[i] > 1 << 20) assert_int_equal(stats.decoded_by_cpu, 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

TEST(bounds_that_are_refused)
{
    char message[256];
    kvt_store_options options = queue_site_options(false);
    kvt_store *opened = NULL;
    options.gpu.scratch_bytes = (UINT64_C(1) << 33) + 1;
    assert_int_equal(kvt_store_open(&options, &opened, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "gpu.scratch"));
    options.gpu.scratch_bytes = 0;
    options.gpu.pinned_bytes = UINT64_MAX;
    assert_int_equal(kvt_store_open(&options, &opened, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "gpu.pinned"));
}

/* ---- failures ---- */

TEST(the_nth_call_of_the_driver_fails_with_kernels_that_encode)
{
    give_kernels();
    fail_in_turn_form(false, PASSING, false, "planes:k4v4");
    fail_in_turn_form(true, LOST, true, "kivi:k4v4");
}
