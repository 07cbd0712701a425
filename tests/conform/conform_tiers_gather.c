/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_tiers_gather.c - one checklist for gathers over pools of every kind of device: scattered
 * pages with copies come whole, each once, and the members' parts add up; in virtual time, copies
 * even out what drives of unequal speed have to do.
 */
#include "device_scratch.h"

#include "fault_device.h"
#include "tiers/pool/gather.h"

enum { CAPACITY = 4 << 20, PAGE = 8192, PAGES = 96, MEMBERS = 4, READ = 48 };

typedef struct conform_case {
    const char *name;
    const char *backend;
    bool synchronous;
    bool fault; /* wrapped in a fault device without rules */
    uint64_t bytes_per_s;
    uint64_t latency_ns;
    uint32_t depth;
} conform_case;

static const conform_case conform_cases[] = {
    {.name = "memory", .backend = "memory"},
    {.name = "memory with fault", .backend = "memory", .fault = true},
    {.name = "memory throttled",
     .backend = "memory",
     .bytes_per_s = 2000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "hbm", .backend = "hbm"},
    {.name = "file", .backend = "file", .depth = 16},
    {.name = "file depth 1", .backend = "file", .depth = 1},
    {.name = "file by threads", .backend = "file", .synchronous = true},
    {.name = "sim", .backend = "sim", .bytes_per_s = 1000000000u, .latency_ns = 1000, .depth = 8},
};

/* Members of 1:1:2:4, in a folder of their own. */
static tiers_pool *conform_open(const conform_case *one, const char *folder, bool *keeps_data_out)
{
    static const double speeds[MEMBERS] = {1, 1, 2, 4};
    tiers_member_options members[MEMBERS];
    char path[MEMBERS][96];
    for (uint32_t i = 0; i < MEMBERS; i++) {
        uint64_t bytes_per_s = (uint64_t)((double)one->bytes_per_s * speeds[i] / 4);
        snprintf(path[i], sizeof path[i], "%s/drive%u", folder, i);
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "d0",
                                    .backend = one->backend,
                                    .capacity_bytes = CAPACITY,
                                    .depth = one->depth,
                                    .synchronous = one->synchronous,
                                    .read_bytes_per_s = bytes_per_s,
                                    .write_bytes_per_s = bytes_per_s,
                                    .latency_ns = one->latency_ns};
        if (strcmp(one->backend, "file") == 0) config.path = path[i];
        kvt_device *device = NULL;
        kvt_status status = kvt_device_open(&config, &device, NULL, 0);
        config.emulated = status == KVT_E_UNSUPPORTED && strcmp(one->backend, "hbm") == 0;
        if (status != KVT_OK) device = scratch_open(&config);
        if (one->fault) {
            kvt_device *inner = device;
            assert_ok(tiers_fault_open(inner, &device));
        }
        *keeps_data_out = (device->facts.flags & KVT_DEVICE_NO_DATA) == 0;
        members[i] = (tiers_member_options){.device = device,
                                            .read_bytes_per_s = 1e8 * speeds[i],
                                            .write_bytes_per_s = 1e8 * speeds[i],
                                            .timeout_ns = UINT64_MAX,
                                            .present = true};
    }
    tiers_pool_options options = {0};
    tiers_pool *pool = NULL;
    assert_ok(tiers_pool_open(members, MEMBERS, &options, &pool, NULL, 0));
    return pool;
}

/* Where the pages are: each once in `own`, and once more on the member after its own. */
typedef struct conform_pages {
    tiers_location *own, *copies[MEMBERS];
    tiers_unit_map *own_map, *copies_map[MEMBERS];
} conform_pages;

static void write_whole(tiers_pool *pool, const tiers_location *location, void *bytes)
{
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, bytes, location->bytes));
}

static void pages_make(tiers_pool *pool, unsigned char *bytes, conform_pages *pages)
{
    assert_ok(tiers_pool_reserve_on(pool, PAGES * PAGE, PAGE, UINT64_MAX, &pages->own));
    assert_ok(tiers_unit_map_make(pages->own, &pages->own_map));
    write_whole(pool, pages->own, bytes);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_ok(tiers_pool_reserve_on(pool, PAGES * PAGE, PAGE, 1u << i, &pages->copies[i]));
        assert_ok(tiers_unit_map_make(pages->copies[i], &pages->copies_map[i]));
        write_whole(pool, pages->copies[i], bytes);
    }
}

static void pages_end(tiers_pool *pool, conform_pages *pages)
{
    tiers_unit_map_free(pages->own_map);
    tiers_pool_release(pool, pages->own);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        tiers_unit_map_free(pages->copies_map[i]);
        tiers_pool_release(pool, pages->copies[i]);
    }
}

/* Reads random pages, the first `copied` of which may come from a copy. Returns the seconds of the
 * slowest member over those of an ideal deal, by the members' clock. */
static double read_pages(tiers_pool *pool, const conform_pages *pages, const unsigned char *bytes,
                         unsigned char *buffer, uint32_t copied, uint64_t seed, bool keeps_data)
{
    tiers_gather_range ranges[READ];
    tiers_copy copies[READ][2];
    for (uint32_t i = 0; i < READ; i++) {
        uint64_t offset = scratch_random(&seed) % PAGES * PAGE;
        uint32_t member = tiers_unit_map_find(pages->own_map, offset, PAGE).member;
        uint32_t other = (member + 1 + (uint32_t)(scratch_random(&seed) % (MEMBERS - 1))) % MEMBERS;
        copies[i][0] = (tiers_copy){.map = pages->own_map, .offset = offset};
        copies[i][1] = (tiers_copy){.map = pages->copies_map[other], .offset = offset};
        ranges[i] = (tiers_gather_range){
            .copies = copies[i], .copy_count = i < copied ? 2 : 1, .bytes = PAGE};
    }
    tiers_gather_request request = {.ranges = ranges,
                                    .count = READ,
                                    .buffer = buffer,
                                    .buffer_bytes = READ * PAGE,
                                    .waited = true};
    tiers_gather *gather = NULL;
    assert_ok(tiers_gather_start(pool, &request, UINT64_MAX, &gather));
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    for (uint32_t i = 0; i < READ; i++) {
        assert_ok(ranges[i].status);
        assert_true(ranges[i].copy < ranges[i].copy_count);
        if (keeps_data) assert_memory_equal(ranges[i].data, bytes + copies[i][0].offset, PAGE);
        for (uint32_t j = 0; j < i; j++)
            assert_ptr_not_equal(ranges[j].data, ranges[i].data);
    }
    tiers_gather_share shares[TIERS_MEMBERS_MAX];
    uint32_t count = tiers_gather_shares(gather, shares);
    uint64_t sum = 0;
    double slowest = 0;
    static const double speeds[MEMBERS] = {1, 1, 2, 4};
    for (uint32_t i = 0; i < count; i++) {
        assert_true(shares[i].requests <= READ && shares[i].finished_ns >= shares[i].started_ns);
        sum += shares[i].bytes;
        double seconds = (double)shares[i].bytes / speeds[shares[i].member];
        if (seconds > slowest) slowest = seconds;
    }
    assert_int_equal(sum, READ * PAGE);
    tiers_gather_release(gather, NULL, NULL);
    return slowest / ((double)(READ * PAGE) / 8);
}

static void test_gathers(void **state)
{
    const conform_case *one = *state;
    char folder[64];
    bool keeps_data = true;
    scratch_make(folder, sizeof folder);
    tiers_pool *pool = conform_open(one, folder, &keeps_data);
    unsigned char *bytes = scratch_buffer(PAGES * PAGE), *buffer = scratch_buffer(READ * PAGE);
    scratch_fill(bytes, PAGES * PAGE, 5);
    conform_pages pages;
    pages_make(pool, bytes, &pages);
    double without = 0, with = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        without += read_pages(pool, &pages, bytes, buffer, 0, seed, keeps_data) / 20;
        with += read_pages(pool, &pages, bytes, buffer, READ, seed, keeps_data) / 20;
        (void)read_pages(pool, &pages, bytes, buffer, READ / 4, seed, keeps_data);
    }
    /* What is queued from the call before may move a page; the copies' gain stays far above. */
    assert_true(with < 1.25 && with < 0.85 * without);
    pages_end(pool, &pages);
    assert_true(tiers_pool_close(pool));
    scratch_remove(folder);
}

int main(void)
{
    enum { CASES = sizeof conform_cases / sizeof conform_cases[0] };
    struct CMUnitTest tests[CASES];
    for (int i = 0; i < CASES; i++) {
        tests[i] = (struct CMUnitTest){.name = conform_cases[i].name,
                                       .test_func = test_gathers,
                                       .initial_state = (void *)(uintptr_t)&conform_cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
