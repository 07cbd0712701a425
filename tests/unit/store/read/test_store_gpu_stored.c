/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_stored.c - loads that bring stored bytes into a GPU's memory, undecoded and
 * verified, over the stand-in for the driver: each segment at its offset, and nothing beside.
 */
#include "store/core/store.h"

#include "gpu_engine.h"

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

enum { ROOM = POOL_BYTES / ENTRIES / 4096 * 4096, SEGMENTS_ALIGN = 64 };

static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4", "entropy:k0.25v0.5",
                                    "lossless"};
static kvt_view runs[ENTRIES];
static const kvt_view *run_pointers[ENTRIES];
static char pool[POOL_BYTES];
static const kvt_load_options stored = {.struct_size = sizeof stored,
                                        .layers_ahead = LAYERS,
                                        .deadline_ns = KVT_NO_DEADLINE,
                                        .as_stored = 1};

/* An engine with a run of its pool for each entry's record, and a store. */
static void stored_open(bool device, const char *form)
{
    engine_open(0, "lsbth");
    site_open_form(device, false, form);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        runs[i] = kvt_view_packed((void *)(uintptr_t)(own.pool + i * ROOM), ROOM);
        runs[i].memory = KVT_MEMORY_GPU;
        run_pointers[i] = &runs[i];
    }
    memset(pool, 0x6b, sizeof pool);
    fake_cuda_move(pool, own.pool, POOL_BYTES, 1);
}

static void stored_close(void)
{
    assert_int_equal(queue_site_close(NULL), 0);
    engine_close();
    assert_int_equal(fake->live, 0);
}

/* The record of an entry, as it is stored in DRAM. */
static uint64_t record_of(uint32_t number, uint8_t *record)
{
    pthread_mutex_lock(&store->lock);
    const store_place *place = entry_find_key(&store->table, &own.keys[number])->place;
    pthread_mutex_unlock(&store->lock);
    tiers_pool *tier = store->pools[place->tier];
    const void *lent = tiers_pool_lend(tier, place->location);
    assert_non_null(lent);
    assert_true(place->record_bytes <= ROOM);
    memcpy(record, lent, place->record_bytes);
    tiers_pool_take_back(tier, place->location, KVT_IO_READ, 0);
    return place->record_bytes;
}

static kvt_load_stored layer_of(kvt_load *load, size_t index, uint32_t layer)
{
    kvt_load_stored said = {.struct_size = sizeof said};
    assert_ok(kvt_load_stored_of(load, index, layer, &said));
    return said;
}

/* Loads all entries as they are stored. Says of each which bytes of its run are segments. */
static void load_stored(kvt_status *statuses, bool (*written)[ROOM])
{
    kvt_load *load;
    memset(written, 0, ENTRIES * sizeof *written);
    assert_ok(kvt_load_begin(queue, own.keys, run_pointers, ENTRIES, &stored, &load));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait_layer(load, layer, own.stream));
        kvt_load_release(load, layer + 1);
    }
    for (uint32_t i = 0; i < ENTRIES; i++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const kvt_load_stored said = layer_of(load, i, layer);
            uint32_t sides = 0;
            assert_int_equal(said.layers, 1);
            assert_in_range(said.segment_count, 2, KVT_LOAD_SEGMENTS_MAX);
            for (uint32_t k = 0; k < said.segment_count; k++) {
                const kvt_load_segment *one = &said.segments[k];
                assert_int_equal(one->offset % SEGMENTS_ALIGN, 0);
                assert_true(one->bytes > 0 && one->offset + one->bytes <= said.record_bytes);
                for (uint64_t at = one->offset; at < one->offset + one->bytes; at++) {
                    assert_false(written[i][at]); /* no two of them share a byte */
                    written[i][at] = true;
                }
                sides |= 1u << one->side;
            }
            assert_int_equal(sides, 3);
        }
    }
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_int_equal(driver.finish(own.stream), 0);
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
}

/* From DRAM and from a device, the same bytes: those of the record. */
TEST(segments_come_to_their_offsets)
{
    static uint8_t records[ENTRIES][ROOM];
    static bool written[ENTRIES][ROOM];
    kvt_status statuses[ENTRIES];
    give_kernels();
    for (uint32_t i = 0; i < 10; i++) {
        const bool device = i % 2 != 0;
        stored_open(device, forms[i / 2]);
        for (uint32_t k = 0; k < ENTRIES && !device; k++)
            (void)record_of(k, records[k]);
        load_stored(statuses, written);
        for (uint32_t k = 0; k < ENTRIES; k++) {
            uint64_t outside = 0;
            assert_ok(statuses[k]);
            for (uint64_t at = 0; at < ROOM; at++) {
                const uint8_t found = (uint8_t)pool[k * ROOM + at];
                if (written[k][at]) assert_int_equal(found, records[k][at]);
                if (!written[k][at]) outside += found != 0x6b;
            }
            assert_int_equal(outside, 0);
        }
        assert_int_equal(stats_of(0).decoded_by_gpu + stats_of(0).decoded_by_cpu, 0);
        assert_int_equal(fake->pageable, 0);
        stored_close();
    }
}

/* Records in the GPU's own memory come by way of the host. */
TEST(records_of_the_hbm_tier_come)
{
    static kvt_device_config device;
    static kvt_tier_options tier;
    static bool written[ENTRIES][ROOM];
    kvt_status statuses[ENTRIES];
    device = (kvt_device_config){.struct_size = sizeof device,
                                 .name = "gpu0",
                                 .backend = "hbm",
                                 .capacity_bytes = 24 * ENTRY_BYTES};
    tier = (kvt_tier_options){.devices = &device, .device_count = 1};
    hbm_tier = &tier;
    stored_open(false, "planes:k4v4");
    load_stored(statuses, written);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint64_t same = 0, all = 0;
        assert_ok(statuses[i]);
        for (uint64_t at = 0; at < ROOM; at++) {
            all += written[i][at];
            same += written[i][at] && pool[i * ROOM + at] != 0x6b;
        }
        assert_true(all > 0 && same > all / 2);
    }
}

/* A bit that turned in any segment is found before a byte of its layer is sent. */
TEST(damaged_segments_are_not_sent)
{
    static uint8_t record[ROOM];
    kvt_status statuses[ENTRIES];
    for (uint32_t i = 0; i < 12; i++) {
        stored_open(false, forms[i % 5]);
        const uint64_t bytes = record_of(0, record);
        pthread_mutex_lock(&store->lock);
        const store_place *place = entry_find_key(&store->table, &own.keys[0])->place;
        pthread_mutex_unlock(&store->lock);
        uint8_t *lent = tiers_pool_lend(store->pools[place->tier], place->location);
        const uint64_t at = 8192 + (bytes - 8192) / 13 * i;
        lent[at] ^= 0x10;
        tiers_pool_take_back(store->pools[place->tier], place->location, KVT_IO_READ, 0);
        kvt_load *load;
        assert_ok(kvt_load_begin(queue, own.keys, run_pointers, ENTRIES, &stored, &load));
        kvt_load_release(load, LAYERS);
        assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
        assert_ok(kvt_load_end(load, statuses, NULL));
        fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
        assert_true(statuses[0] == KVT_MISS || statuses[0] == KVT_OK); /* between segments */
        for (uint64_t k = 0; k < bytes && statuses[0] == KVT_MISS; k++)
            assert_true(pool[k] == 0x6b || (uint8_t)pool[k] == record[k]); /* of the other layer */
        if (statuses[0] == KVT_MISS) assert_int_equal(kvt_store_exists(store, own.keys), KVT_MISS);
        for (uint32_t k = 1; k < ENTRIES; k++)
            assert_ok(statuses[k]);
        stored_close();
    }
}

/* Views that do not fit, options that do not go together, and questions about what is not there. */
TEST(bad_input)
{
    stored_open(false, "planes:k4v4");
    kvt_load_stored said = {.struct_size = sizeof said};
    kvt_status statuses[ENTRIES];
    kvt_load *load = NULL;
    kvt_load_options options = stored;
    options.as_stored = 2;
    assert_int_equal(kvt_load_begin(queue, own.keys, run_pointers, 1, &options, &load),
                     KVT_E_ARGUMENT);
    options.as_stored = 1;
    options.coarse_planes = 1;
    assert_int_equal(kvt_load_begin(queue, own.keys, run_pointers, 1, &options, &load),
                     KVT_E_ARGUMENT);
    static char data[ROOM];
    const kvt_view host = kvt_view_packed(data, sizeof data), *host_pointer = &host;
    assert_int_equal(kvt_load_begin(queue, own.keys, &host_pointer, 1, &stored, &load),
                     KVT_E_ARGUMENT);
    const kvt_load_options decoded = {
        .struct_size = sizeof decoded, .layers_ahead = 2, .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(kvt_load_begin(queue, own.keys, own.pointers, 1, &decoded, &load));
    assert_int_equal(kvt_load_stored_of(load, 0, 0, &said), KVT_E_STATE);
    assert_ok(kvt_load_end(load, NULL, NULL));
    runs[1].base_bytes[0] = SEGMENTS_ALIGN;        /* too short */
    runs[2].base[0] = (char *)runs[2].base[0] + 8; /* not aligned */
    runs[2].base_bytes[0] -= 8;
    run_pointers[3] = &own.views[3];                            /* pages */
    runs[4].base[0] = (char *)runs[0].base[0] + SEGMENTS_ALIGN; /* over the first one's run */
    assert_ok(kvt_load_begin(queue, own.keys, run_pointers, ENTRIES, &stored, &load));
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    assert_int_equal(kvt_load_stored_of(load, 1, 0, &said), KVT_E_SPACE);
    assert_true(said.record_bytes > SEGMENTS_ALIGN && said.segment_count == 0);
    assert_int_equal(kvt_load_stored_of(load, 2, 0, &said), KVT_MISS);
    assert_int_equal(kvt_load_stored_of(load, ENTRIES, 0, &said), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_stored_of(load, 0, LAYERS, &said), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_stored_of(NULL, 0, 0, &said), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_stored_of(load, 0, 0, NULL), KVT_E_ARGUMENT);
    said.struct_size = 4;
    assert_int_equal(kvt_load_stored_of(load, 0, 0, &said), KVT_E_ARGUMENT);
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, statuses, NULL));
    const kvt_status wanted[ENTRIES] = {KVT_OK, KVT_E_SPACE, KVT_E_ARGUMENT, KVT_E_ARGUMENT,
                                        KVT_E_ARGUMENT};
    assert_memory_equal(statuses, wanted, sizeof wanted);
}

/* Each call of the driver fails in turn, once or for good: what is called whole has its bytes, and
 * nothing is left. */
TEST(the_nth_call_of_the_driver_fails)
{
    static uint8_t record[ROOM];
    bool reached = true;
    for (uint32_t n = 1; reached; n += 1 + n / 8) {
        stored_open(false, "planes:k4v4");
        fake->calls = fake->failed = 0;
        fake->fail_call = n;
        fake->fail_result = n % 2 != 0 ? REFUSED : LOST;
        fake->fail_for_good = n % 3 == 0;
        kvt_status statuses[ENTRIES];
        kvt_load *load = NULL;
        kvt_load_stored said = {.struct_size = sizeof said};
        const kvt_status began =
            kvt_load_begin(queue, own.keys, run_pointers, ENTRIES, &stored, &load);
        kvt_status status = began, told = KVT_MISS;
        for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
            status = kvt_load_wait_layer(load, layer, own.stream);
            kvt_load_release(load, layer + 1);
        }
        if (began == KVT_OK) told = kvt_load_stored_of(load, 0, 0, &said);
        if (began == KVT_OK) assert_ok(kvt_load_end(load, statuses, NULL));
        reached = fake->failed > 0;
        fake->fail_call = 0;
        fake->fail_for_good = 0;
        (void)driver.finish(own.stream);
        if (!reached) assert_true(status == KVT_OK && statuses[0] == KVT_OK && told == KVT_OK);
        if (began == KVT_OK && statuses[0] == KVT_OK && told == KVT_OK) {
            (void)record_of(0, record);
            fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
            for (uint32_t k = 0; k < said.segment_count; k++)
                assert_memory_equal(pool + said.segments[k].offset,
                                    record + said.segments[k].offset, said.segments[k].bytes);
        }
        stored_close();
        assert_true(n < 4000);
    }
}
