/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_far.c - records in a GPU's memory that are decoded into pages of the same GPU, in
 * place, over the stand-in for the driver, which counts the bytes of all copies: heads alone cross.
 */
#include "store/core/store.h"

#include "gpu_engine.h"

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4", "entropy:k0.25v0.5",
                                    "lossless"};

/* A store whose entries are all in the memory of GPU 0. */
static void far_open(int gpu, const char *axes, const char *form)
{
    static kvt_device_config device;
    static kvt_tier_options tier;
    device = (kvt_device_config){.struct_size = sizeof device,
                                 .name = "gpu0",
                                 .backend = "hbm",
                                 .capacity_bytes = 24 * ENTRY_BYTES};
    tier = (kvt_tier_options){.devices = &device, .device_count = 1};
    hbm_tier = &tier;
    engine_open(gpu, axes);
    site_open_form(false, false, form);
}

static void far_close(void)
{
    assert_int_equal(queue_site_close(NULL), 0);
    engine_close();
    assert_int_equal(fake->live, 0);
}

/* The place of an entry, or NULL. */
static store_place *place_of(const kvt_key *key)
{
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, key);
    pthread_mutex_unlock(&store->lock);
    return entry != NULL ? entry->place : NULL;
}

/* Whether an entry has its place in the GPU's memory. */
static bool is_there(const kvt_key *key)
{
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    const bool there = entry != NULL && entry->place != NULL && entry->place->tier == KVT_TIER_HBM;
    pthread_mutex_unlock(&store->lock);
    return there;
}

/* Where an entry's record lies in the GPU's memory. */
static uint64_t address_of(const store_place *place)
{
    uint32_t gpu;
    tiers_pool *pool = store->pools[KVT_TIER_HBM];
    assert_int_equal(place->tier, KVT_TIER_HBM);
    const uint64_t address = tiers_pool_lend_address(pool, place->location, &gpu);
    assert_true(address != 0 && gpu == 1);
    tiers_pool_take_back(pool, place->location, KVT_IO_READ, 0);
    return address;
}

/* Turns a bit of an entry's record, or turns it back. */
static void far_flip(const kvt_key *key, uint64_t bit)
{
    unsigned char byte;
    const uint64_t address = address_of(place_of(key)) + bit / 8;
    fake_cuda_move(&byte, address, 1, 0);
    byte ^= (unsigned char)(1u << bit % 8);
    fake_cuda_move(&byte, address, 1, 1);
}

/* The bytes that an entry's pages have to have: as the CPU decodes it. */
static void far_expect(uint32_t number, char *data)
{
    assert_ok(kvt_store_get(store, &own.keys[number], KVT_PACKED(data, ENTRY_BYTES),
                            KVT_NO_DEADLINE, NULL));
}

/* Whether an entry's pages have these bytes. */
static bool pages_are(uint32_t number, const char *wanted)
{
    static char pool[POOL_BYTES], found[ENTRY_BYTES];
    kvt_view view = own.views[number];
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    view.base[0] = pool;
    view_gather_entry(&view, &layout, found);
    return memcmp(found, wanted, ENTRY_BYTES) == 0;
}

TEST(loads_leave_the_payload_where_it_is)
{
    give_kernels();
    for (size_t i = 0; i < 10; i++) {
        kvt_status statuses[ENTRIES];
        far_open(0, axes_of_pools[i % 4], forms[i / 2]);
        const uint64_t heads = ENTRIES * codecs_head_bytes(&layout, place_of(own.keys)->variant);
        const uint64_t record_bytes = place_of(own.keys)->record_bytes;
        fake->bytes_in = fake->bytes_out = 0;
        assert_ok(load_all(statuses));
        assert_int_equal(driver.finish(own.stream), 0);
        const uint64_t in = fake->bytes_in, out = fake->bytes_out;
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_in_place, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_gpu, ENTRIES * LAYERS);
        assert_int_equal(stats.decoded_by_cpu, 0);
        /* Of the records the heads and nothing else; block numbers and jobs the other way. */
        assert_int_equal(out, heads);
        assert_true(in < record_bytes);
        assert_int_equal(stats.bytes_in, in);
        assert_int_equal(stats.bytes_out, out);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_ok(statuses[k]);
            assert_true(pool_is(k, forms[i / 2] != NULL));
        }
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(fake->unbound, 0);
        far_close();
    }
}

TEST(gets_leave_the_payload_where_it_is)
{
    give_kernels();
    for (size_t i = 0; i < 5; i++) {
        size_t loaded;
        far_open(0, axes_of_pools[i % 4], forms[i]);
        const uint64_t heads = ENTRIES * codecs_head_bytes(&layout, place_of(own.keys)->variant);
        fake->bytes_in = fake->bytes_out = 0;
        assert_ok(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL));
        get_by_queue(1, 0, 0);
        get_by_queue(2, 1, 1);
        assert_ok(
            kvt_prefix_get(store, &own.keys[3], &own.pointers[3], 2, KVT_NO_DEADLINE, &loaded));
        assert_int_equal(loaded, 2);
        assert_int_equal(fake->bytes_out, heads);
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_in_place, ENTRIES * LAYERS - 1);
        assert_int_equal(stats.decoded_by_cpu, 0);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_int_equal(pool_is(k, forms[i] != NULL), k != 2); /* one layer of that one */
        assert_int_equal(support_stats(store).tiers[KVT_TIER_HBM].hits > ENTRIES - 1, 1);
        far_close();
    }
}

/* Pages of one GPU and records of another, or no kernels: the record crosses, as any. */
TEST(records_of_another_gpu_cross)
{
    static const kvt_gpu_options none = {.scratch_bytes = 0};
    for (int way = 0; way < 3; way++) {
        if (way == 0) give_kernels();
        gpu_options = way == 1 ? &none : NULL;
        far_open(way == 0 ? 1 : 0, "lsbth", "kivi:k4v4");
        const uint64_t record_bytes = place_of(own.keys)->record_bytes;
        kvt_status statuses[ENTRIES];
        fake->bytes_out = 0;
        assert_ok(load_all(statuses));
        assert_int_equal(driver.finish(own.stream), 0);
        assert_true(fake->bytes_out > ENTRIES * record_bytes / 2);
        assert_ok(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL));
        get_by_queue(1, 0, 0);
        const kvt_gpu_stats stats = stats_of(way == 0 ? 1 : 0);
        assert_int_equal(stats.decoded_in_place, 0);
        assert_int_equal(stats.decoded_by_gpu, way == 0 ? (ENTRIES + 2) * LAYERS : 0);
        assert_int_equal(stats.decoded_by_cpu, way == 0 ? 0 : (ENTRIES + 2) * LAYERS);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_ok(statuses[k]);
            assert_true(pool_is(k, true));
        }
        far_close();
        begin_case(NULL);
    }
}

/* An entry of two groups, of which one is opaque and the CPU's. */
TEST(groups_of_which_the_cpu_has_one)
{
    const uint64_t total = ENTRY_BYTES + 5003;
    char *data = test_alloc(total), *found = test_alloc(total);
    give_kernels();
    for (int first = 0; first < 2; first++) {
        far_open(0, "lsbth", NULL);
        const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5003};
        const kvt_layout layouts[2] = {first ? opaque : layout, first ? layout : opaque};
        kvt_entry entry = support_entry(support_key(60), (kvt_layout){0}, 1);
        entry.groups = layouts;
        entry.group_count = 2;
        for (uint64_t i = 0; i < total; i++)
            data[i] = (char)(i * 131 >> 3);
        fill(1, data + (first ? 5003 : 0));
        assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, total)));
        kvt_view own_view = kvt_view_packed((void *)(uintptr_t)own.pool, total);
        own_view.memory = KVT_MEMORY_GPU;
        own.keys[0] = entry.key;
        own.views[0] = own_view;
        get_by_queue(0, 0, 0);
        fake_cuda_move(found, own.pool, total, 0);
        assert_memory_equal(found, data, total);
        kvt_view parts[2] = {own_view, own_view};
        for (int k = 0; k < 2; k++) {
            uint64_t bytes;
            assert_ok(kvt_layout_bytes(&layouts[k], &bytes));
            parts[k].base[0] = (char *)parts[k].base[0] + (k == 0 ? 0 : total - bytes);
            parts[k].base_bytes[0] = bytes;
        }
        const kvt_view *const views[2] = {&parts[0], &parts[1]};
        const kvt_view grouped = kvt_view_grouped(views, 2), *pointer = &grouped;
        kvt_status status;
        kvt_load *load;
        memset(found, 0, total);
        fake_cuda_move(found, own.pool, total, 1);
        assert_ok(kvt_load_begin(queue, own.keys, &pointer, 1, NULL, &load));
        kvt_load_release(load, LAYERS);
        assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
        assert_ok(kvt_load_end(load, &status, NULL));
        assert_ok(status);
        fake_cuda_move(found, own.pool, total, 0);
        assert_memory_equal(found, data, total);
        assert_true(stats_of(0).decoded_in_place >= 2 && stats_of(0).decoded_by_cpu >= 2);
        far_close();
    }
}

/* A bit of the record turns in the GPU's memory, in the head or behind it: found, by a load and by
 * a get, and the entry leaves. */
TEST(bits_that_turn_in_the_gpu_s_memory)
{
    static char wanted[ENTRY_BYTES];
    give_kernels();
    for (uint32_t i = 0; i < 45; i++) {
        const char *form = forms[i % 5];
        far_open(0, "lsbth", form);
        const store_place *place = place_of(own.keys);
        const uint64_t head = codecs_head_bytes(&layout, place->variant);
        const uint64_t body = place->record_bytes - head;
        const bool in_head = i % 3 == 0;
        const uint64_t bit = in_head ? head * 8 * i / 45 + i : (head + body * i / 45) * 8 + i % 8;
        far_expect(0, wanted);
        far_flip(own.keys, bit);
        kvt_status status = KVT_OK;
        if (i % 2 == 0) {
            kvt_load *load = NULL;
            status = kvt_load_begin(queue, own.keys, own.pointers, 1, NULL, &load);
            if (status == KVT_OK) {
                kvt_load_release(load, LAYERS);
                assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
                assert_ok(kvt_load_end(load, &status, NULL));
            }
        } else {
            status = kvt_store_get(store, own.keys, own.pointers[0], KVT_NO_DEADLINE, NULL);
        }
        /* A head has two copies, and between segments are grains of nothing. */
        assert_true(status == KVT_OK || status == KVT_MISS);
        assert_int_equal(kvt_store_exists(store, own.keys), status == KVT_OK ? KVT_OK : KVT_MISS);
        if (status == KVT_OK)
            assert_true(pages_are(0, wanted));
        else
            assert_int_equal(support_stats(store).load_failures, 1);
        if (status == KVT_OK) assert_true(in_head || form != NULL);
        for (uint32_t k = 1; k < ENTRIES; k++) { /* the others stay */
            assert_ok(kvt_store_get(store, &own.keys[k], &own.views[k], KVT_NO_DEADLINE, NULL));
            assert_true(pool_is(k, form != NULL));
        }
        far_close();
    }
}

/* ---- entries that have dropped tokens ---- */

static const char *const drop_forms[] = {"drop:stream,50", "drop:keydiff,50+planes:k4v4,g64",
                                         "drop:knorm,25+kivi:k4v4,g64", "drop:lagkv,50+lossless",
                                         "drop:stream,50+entropy:k0.25v0.5"};

enum { DROP_FORMS = sizeof drop_forms / sizeof drop_forms[0] };

/* Gets entry 0, or a part of its layers, with the positions of its kept tokens. */
static kvt_status get_kept(const kvt_view *view, kvt_kept_tokens *kept)
{
    static uint32_t positions[2][LAYERS * TOKENS];
    kvt_get_info info = {.struct_size = sizeof info, .kept = kept};
    *kept = (kvt_kept_tokens){.struct_size = sizeof *kept,
                              .positions = positions[view->memory == KVT_MEMORY_GPU],
                              .capacity = LAYERS * TOKENS};
    return kvt_store_get(store, &own.keys[0], view, KVT_NO_DEADLINE, &info);
}

/* Kernels read their records where they lie, too: the head crosses, and the list of the tokens that
 * are left. */
TEST(gets_of_fewer_tokens_leave_the_payload)
{
    layout.tokens_may_drop = 1;
    give_kernels();
    for (uint32_t i = 0; i < DROP_FORMS; i++) {
        static char host[ENTRY_BYTES], pages[ENTRY_BYTES];
        kvt_kept_tokens wanted, kept;
        far_open(0, axes_of_pools[i % 4], drop_forms[i]);
        const store_place *place = place_of(own.keys);
        const kvt_view packed = kvt_view_packed(host, ENTRY_BYTES);
        const uint64_t head = codecs_head_bytes(&layout, place->variant);
        memset(pages, 0x6b, sizeof pages);
        memcpy(host, pages, sizeof host);
        pool_write(0, pages);
        assert_ok(get_kept(&packed, &wanted));
        assert_in_range(wanted.count, 4, TOKENS - 1);
        fake->bytes_out = 0;
        assert_ok(get_kept(&own.views[0], &kept));
        assert_int_equal(kept.count, wanted.count);
        assert_int_equal(kept.sets, wanted.sets);
        assert_memory_equal(kept.positions, wanted.positions,
                            kept.count * kept.sets * sizeof *kept.positions);
        assert_int_equal(stats_of(0).decoded_in_place, LAYERS);
        assert_int_equal(stats_of(0).decoded_by_cpu, 0);
        assert_int_equal(fake->bytes_out, 2 * head + kept.sets * 64);
        assert_true(pages_are(0, host)); /* rows behind the kept ones are not touched in either */
        far_close();
    }
    layout.tokens_may_drop = 0;
}

/* A bit turns in the list of kept tokens, in the GPU's memory or in DRAM: the entry is damaged, no
 * page is written, no position told, and the others stay. */
TEST(bits_that_turn_in_the_list_of_kept_tokens)
{
    static char before[ENTRY_BYTES];
    layout.tokens_may_drop = 1;
    give_kernels();
    memset(before, 0x6b, sizeof before);
    for (uint32_t i = 0; i < 8 * DROP_FORMS; i++) {
        const bool far = i / DROP_FORMS % 2 == 0;
        kvt_kept_tokens kept, wanted;
        if (far) {
            far_open(0, "lsbth", drop_forms[i % DROP_FORMS]);
        } else {
            hbm_tier = NULL;
            engine_open(0, "lsbth");
            site_open_form(false, false, drop_forms[i % DROP_FORMS]);
        }
        const store_place *place = place_of(own.keys);
        static char data[ENTRY_BYTES];
        const kvt_view packed = kvt_view_packed(data, ENTRY_BYTES);
        assert_ok(get_kept(&packed, &wanted));
        /* Of any set, in its bits or in the zeros behind them. */
        const uint64_t head = codecs_head_bytes(&layout, place->variant);
        const uint64_t bit = head * 8 + (i * 37 + 5) % (wanted.sets * 64 * 8);
        if (far) {
            far_flip(own.keys, bit);
        } else {
            tiers_pool *pool = store->pools[place->tier];
            uint8_t *record = (uint8_t *)(uintptr_t)tiers_pool_lend(pool, place->location);
            assert_non_null(record);
            record[bit / 8] ^= (uint8_t)(1u << bit % 8);
            tiers_pool_take_back(pool, place->location, KVT_IO_READ, 0);
        }
        pool_write(0, before);
        assert_int_equal(get_kept(&own.views[0], &kept), KVT_MISS);
        assert_int_equal(kept.count, 0);
        assert_true(pages_are(0, before));
        assert_int_equal(kvt_store_exists(store, own.keys), KVT_MISS);
        assert_int_equal(support_stats(store).load_failures, 1);
        assert_int_equal(stats_of(0).decoded_by_gpu, 0);
        own.keys[0] = own.keys[1];
        own.views[0] = own.views[1];
        assert_ok(get_kept(&own.views[0], &kept));
        assert_int_equal(kept.count, wanted.count);
        far_close();
    }
    layout.tokens_may_drop = 0;
}

/* Kernels that find what is sound unsound cost no entry, and are not asked again. */
TEST(kernels_that_err_over_records_there)
{
    give_kernels();
    for (int way = 0; way < 2; way++) {
        far_open(0, "lsbth", NULL);
        fake_kernel_lies = true;
        kvt_status status = KVT_MISS;
        uint64_t unsound = 0; /* of the first turn */
        for (int turn = 0; turn < 2; turn++) {
            if (turn == 1) unsound = stats_of(0).unsound;
            if (way == 0) {
                status = kvt_store_get(store, own.keys, own.pointers[0], KVT_NO_DEADLINE, NULL);
                assert_ok(status);
                continue;
            }
            kvt_load *load;
            assert_ok(kvt_load_begin(queue, own.keys, own.pointers, 1, NULL, &load));
            kvt_load_release(load, LAYERS);
            assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
            assert_ok(kvt_load_end(load, &status, NULL));
            assert_int_equal(status, turn == 0 ? KVT_MISS : KVT_OK);
        }
        assert_true(pool_has(0));
        assert_true(unsound > 0 && stats_of(0).unsound == unsound);
        assert_int_equal(support_stats(store).load_failures, 0);
        fake_kernel_lies = false;
        far_close();
    }
}

/* Puts more than the GPU's memory holds; one of the puts waits for room that a load reads. */
static void *press_entries(void *unused)
{
    static char data[ENTRY_BYTES];
    for (uint32_t i = 0; i < 60; i++) {
        kvt_entry entry = support_entry(support_key(1000 + i), layout, 1);
        memset(data, (int)i, sizeof data);
        (void)!kvt_store_put(store, &entry, KVT_PACKED(data, ENTRY_BYTES));
    }
    return unused;
}

/* Records stay where a load reads them, whatever becomes of their entries meanwhile: new ones press
 * them out, they are deleted, the device is retired. */
TEST(entries_that_leave_while_a_load_is_open)
{
    static char wanted[ENTRIES][ENTRY_BYTES];
    give_kernels();
    for (int way = 0; way < 6; way++) {
        const bool presses = way / 2 == 0, retires = way / 2 == 2;
        kvt_status statuses[ENTRIES];
        kvt_load *load;
        pthread_t presser;
        far_open(0, "lsbth", way % 2 == 0 ? NULL : "planes:k4v4");
        for (uint32_t i = 0; i < ENTRIES; i++)
            far_expect(i, wanted[i]);
        fake->queries_until_done = 50;
        assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
        assert_ok(kvt_load_wait_layer(load, 0, own.stream));
        if (retires) assert_ok(kvt_device_change(store, "gpu0", KVT_DEVICE_RETIRE));
        for (uint32_t i = 0; i < ENTRIES && !presses && !retires; i++)
            assert_ok(kvt_store_delete(store, &own.keys[i]));
        if (presses) assert_int_equal(pthread_create(&presser, NULL, press_entries, NULL), 0);
        for (bool all = presses; all;) { /* until one of them is out */
            for (uint32_t i = 0; i < ENTRIES; i++)
                all = all && is_there(&own.keys[i]);
            base_sleep(SECOND_NS / 1000);
        }
        kvt_load_release(load, LAYERS);
        assert_ok(kvt_load_wait_layer(load, LAYERS - 1, own.stream));
        assert_ok(kvt_load_end(load, statuses, NULL));
        if (presses) assert_int_equal(pthread_join(presser, NULL), 0);
        assert_int_equal(driver.finish(own.stream), 0);
        assert_int_equal(stats_of(0).decoded_in_place, ENTRIES * LAYERS);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_ok(statuses[i]);
            assert_true(pages_are(i, wanted[i]));
        }
        far_close();
    }
}

/* A store that is closed waits for what reads there; the load ends behind it. */
TEST(a_close_with_a_load_open)
{
    give_kernels();
    far_open(0, "lsbth", NULL);
    kvt_status statuses[ENTRIES];
    kvt_load *load;
    fake->queries_until_done = 20;
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
    assert_ok(kvt_load_wait_layer(load, 0, own.stream));
    kvt_queue_close(queue);
    queue = NULL;
    kvt_store_close(store);
    store = NULL;
    assert_int_equal(kvt_load_end(load, statuses, NULL), KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++) /* what had come before has come */
        assert_true(statuses[i] == KVT_OK
                        ? pool_has(i)
                        : statuses[i] == KVT_MISS || statuses[i] == KVT_E_TIMEOUT);
}

/* Each entry of a progressive load comes whole, because no coarse form of it is nearer. */
TEST(progressive_loads_have_one_form)
{
    give_kernels();
    far_open(0, "lsbth", "planes:k4v4");
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .layers_ahead = 2,
                                      .deadline_ns = KVT_NO_DEADLINE,
                                      .coarse_planes = 1};
    kvt_status statuses[ENTRIES];
    kvt_load *load;
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, &options, &load));
    for (uint32_t layer = 0; layer < 2 * LAYERS; layer++) {
        assert_ok(kvt_load_wait_layer(load, layer, own.stream));
        kvt_load_release(load, layer + 1);
    }
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_int_equal(stats_of(0).decoded_in_place, ENTRIES * LAYERS);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(statuses[i]);
        assert_true(pool_is(i, true));
    }
}

/* ---- failures ---- */

/* Each call of the driver fails in turn: no status says OK over wrong bytes, a failure that passes
 * costs no entry, and nothing is left. */
static void far_fail_in_turn(int result, bool for_good, const char *form)
{
    static char wanted[ENTRIES][ENTRY_BYTES];
    bool reached = true;
    for (uint32_t n = 1; reached; n += 1 + n / 8) {
        far_open(0, "lsbth", form);
        for (uint32_t i = 0; i < ENTRIES; i++)
            far_expect(i, wanted[i]);
        fake->calls = fake->failed = 0;
        fake->fail_call = n;
        fake->fail_result = result;
        fake->fail_for_good = for_good;
        kvt_status statuses[ENTRIES], got;
        const kvt_status status = load_all(statuses);
        for (uint32_t i = 0; i < ENTRIES && status == KVT_OK; i++)
            assert_true(statuses[i] != KVT_OK || pages_are(i, wanted[i]));
        got = kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL);
        if (got == KVT_OK) assert_true(pages_are(0, wanted[0]));
        reached = fake->failed > 0;
        fake->fail_call = 0;
        fake->fail_for_good = 0;
        (void)driver.finish(own.stream);
        if (!reached) assert_true(status == KVT_OK && got == KVT_OK);
        for (uint32_t i = 0; i < ENTRIES && !for_good; i++) {
            assert_ok(kvt_store_get(store, &own.keys[i], &own.views[i], KVT_NO_DEADLINE, NULL));
            assert_true(pages_are(i, wanted[i]));
        }
        far_close();
        assert_true(n < 4000);
    }
}

TEST(the_nth_call_of_the_driver_fails_once)
{
    give_kernels();
    far_fail_in_turn(PASSING, false, NULL);
    far_fail_in_turn(REFUSED, false, "kivi:k4v4");
}

TEST(the_context_is_lost_at_the_nth_call)
{
    give_kernels();
    far_fail_in_turn(LOST, true, NULL);
    far_fail_in_turn(LOST, true, "lossless");
}
