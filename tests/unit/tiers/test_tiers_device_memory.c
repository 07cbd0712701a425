/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_memory.c - NUMA nodes, engines and large copies of the memory device.
 */
#include "device_scratch.h"

#include <sched.h>
#include <sys/mman.h>

#include "tiers/devices/device_memory_copy.h"
#include "tiers/devices/device_memory_node.h"

static bool has_cpu(const node_cpus *cpus, unsigned cpu)
{
    unsigned bits = 8 * sizeof cpus->bits[0];
    return (cpus->bits[cpu / bits] >> (cpu % bits) & 1) != 0;
}

TEST(lists_of_processors)
{
    node_cpus cpus;
    assert_true(node_parse_cpus("0-2,63-65,4096\n", &cpus));
    for (unsigned cpu = 0; cpu < 4200; cpu++) {
        bool expect = cpu <= 2 || (cpu >= 63 && cpu <= 65) || cpu == 4096;
        assert_int_equal(has_cpu(&cpus, cpu), expect);
    }
    assert_true(node_parse_cpus("\n", &cpus)); /* a node of memory alone */
    assert_false(has_cpu(&cpus, 0));
    static const char *const wrong[] = {"x",    "1-",     "3-1", "1,,2", "1;2",
                                        "8192", "0-8192", "-1",  "1 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(node_parse_cpus(wrong[i], &cpus));
}

/* A node whose processors and memory this process may have, which containers may forbid. */
static bool find_own_node(uint32_t *node_out, node_cpus *cpus)
{
    for (uint32_t node = 0; node < 64; node++) {
        node_cpus before;
        if (!node_find(node, cpus) || !node_move_thread(cpus, &before)) continue;
        node_move_back(&before);
        unsigned char *page = scratch_buffer(4096);
        bool binds = node_bind_memory(node, page, 4096) == 0 || node_count() == 1;
        *node_out = node;
        if (binds) return true;
    }
    return false;
}

TEST(a_node_gives_memory_and_its_processors)
{
    node_cpus cpus;
    node_cpus now;
    char wanted[32];
    kvt_device_config config = scratch_memory(4 << 20);
    assert_true(node_count() >= 1);
    if (!find_own_node(&config.node, &cpus)) skip();
    config.on_node = true;
    kvt_device *device = scratch_open(&config);
    snprintf(wanted, sizeof wanted, "+node%u", (unsigned)config.node);
    assert_non_null(strstr(device->facts.engine, wanted));
    snprintf(wanted, sizeof wanted, "host-memory-node%u", (unsigned)config.node);
    assert_string_equal(device->facts.identity, wanted);
    assert_true(device->facts.prepare_ns > 0);
    cpu_set_t before;
    cpu_set_t after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    kvt_device_attach(device);
    assert_true(has_cpu(&cpus, (unsigned)sched_getcpu()));
    assert_true(node_move_thread(&cpus, &now));
    kvt_device_detach(device);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    kvt_device_close(device);
}

TEST(a_node_that_is_not_there_is_refused)
{
    kvt_device_config config = scratch_memory(4 << 20);
    config.on_node = true;
    config.node = 900;
    scratch_refused(&config, KVT_E_GONE, "no NUMA node 900");
    config.node = UINT32_MAX;
    scratch_refused(&config, KVT_E_GONE, "no NUMA node");
    config.on_node = false;
    config.backend = "null";
    scratch_refused(&config, KVT_E_ARGUMENT, "node");
}

TEST(a_thread_is_not_moved_to_no_processors)
{
    node_cpus none = {{0}};
    node_cpus before;
    assert_false(node_move_thread(&none, &before));
}

TEST(stream_copies_copy)
{
    enum { BYTES = 3 * MEMORY_STREAM_BYTES_MIN / 2 };
    unsigned char *source = scratch_buffer(BYTES + 64);
    unsigned char *target = scratch_buffer(BYTES + 64);
    scratch_fill(source, BYTES + 64, 9);
    for (size_t kind = 0; memory_stream_at(kind) != NULL; kind++) {
        for (size_t bytes = 64; bytes <= BYTES; bytes = bytes * 5 / 64 * 64 + 64) {
            memset(target, 0xA5, BYTES + 64);
            memory_stream_at(kind)(target, source, bytes);
            assert_memory_equal(target, source, bytes);
            for (size_t i = 0; i < 64; i++)
                assert_int_equal(target[bytes + i], 0xA5);
        }
    }
}

/* Below, at and above the size from which on copies go around the caches. */
TEST(requests_of_all_sizes)
{
    enum { MOST = 2 * MEMORY_STREAM_BYTES_MIN };
    kvt_device_config config = scratch_memory(4 << 20);
    kvt_device *device = scratch_open(&config);
    unsigned char *written = scratch_buffer(MOST);
    unsigned char *got = scratch_buffer(MOST);
    const uint32_t sizes[] = {64, MEMORY_STREAM_BYTES_MIN - 64, MEMORY_STREAM_BYTES_MIN,
                              MEMORY_STREAM_BYTES_MIN + 64, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        scratch_fill(written, sizes[i], i);
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 64 * i, written, sizes[i]));
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, 64 * i, got, sizes[i]));
        assert_memory_equal(written, got, sizes[i]);
    }
    kvt_device_close(device);
}

/* Whether all pages of a device's memory are there. */
static bool is_touched(kvt_device *device, uint64_t bytes)
{
    const size_t pages = bytes / 4096;
    unsigned char *there = scratch_buffer(pages);
    assert_int_equal(mincore(kvt_device_memory(device), bytes, there), 0);
    for (size_t i = 0; i < pages; i++)
        if ((there[i] & 1) == 0) return false;
    return true;
}

/* A large arena is touched behind its opener, who writes meanwhile and loses nothing. */
TEST(the_rest_is_touched_behind_the_opener)
{
    enum { BYTES = 320 << 20, PIECE = 1 << 20 };
    kvt_device_config config = scratch_memory(BYTES);
    unsigned char *written = scratch_buffer(PIECE);
    unsigned char *got = scratch_buffer(PIECE);
    kvt_device *device = scratch_open(&config);
    assert_int_equal(device->facts.prepared_bytes, 128 << 20);
    for (uint64_t at = 0; at < BYTES; at += 16 * PIECE) {
        scratch_fill(written, PIECE, at);
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, BYTES - PIECE - at, written, PIECE));
    }
    for (uint32_t i = 0; i < 6000 && !is_touched(device, BYTES); i++)
        usleep(10000);
    assert_true(is_touched(device, BYTES));
    for (uint64_t at = 0; at < BYTES; at += 16 * PIECE) {
        scratch_fill(written, PIECE, at);
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, BYTES - PIECE - at, got, PIECE));
        assert_memory_equal(written, got, PIECE);
    }
    kvt_device_close(device);
}

TEST(closing_does_not_wait_for_the_rest)
{
    kvt_device_config config = scratch_memory(320 << 20);
    for (uint32_t i = 0; i < 8; i++)
        kvt_device_close(scratch_open(&config));
}
