/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_hbm.c - the hbm device on a stand-in for the driver (fake_cuda.c), which the
 * dynamic linker finds as libcuda.so.1, and without any GPU.
 */
#include "device_scratch.h"

#include "fake_cuda.h"

enum { CAPACITY = 8 << 20, DEPTH = 4, PIECE = 64 << 10, GONE = 719, REFUSED = 2, PASSING = 3 };

static int reset(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){.gpu_count = 2};
    return 0;
}

static kvt_device_config hbm_config(void)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = "gpu",
                               .backend = "hbm",
                               .capacity_bytes = CAPACITY,
                               .depth = DEPTH};
}

/* From now on the nth call of this name fails. */
static void fail_later(const char *name, uint32_t nth, int result)
{
    fake->calls = 0;
    fake->fail_name = name;
    fake->fail_call = nth;
    fake->fail_result = result;
}

static void fill_operations(kvt_io *operations, kvt_io_kind kind, unsigned char *buffer)
{
    for (uint32_t i = 0; i < DEPTH; i++)
        operations[i] = (kvt_io){.kind = kind,
                                 .bytes = PIECE,
                                 .offset = (uint64_t)(DEPTH - i) * 2 * PIECE,
                                 .buffer = buffer + (size_t)i * PIECE};
}

/* Puts all in flight, meets BUSY, collects all. */
static void run_all(kvt_device *device, kvt_io *operations)
{
    kvt_io *done[DEPTH];
    kvt_io extra = operations[0];
    for (uint32_t i = 0; i < DEPTH; i++)
        assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
    assert_int_equal(kvt_device_submit(device, &extra), KVT_BUSY);
    size_t count = 0;
    while (count < DEPTH)
        count += kvt_device_reap(device, done, 1, DEPTH, UINT64_MAX);
    for (uint32_t i = 0; i < DEPTH; i++)
        assert_ok(operations[i].status);
}

static void round_trip(kvt_device *device, unsigned char *buffer)
{
    kvt_io operations[DEPTH];
    unsigned char *wanted = scratch_buffer(DEPTH * PIECE);
    scratch_fill(wanted, DEPTH * PIECE, 5);
    memcpy(buffer, wanted, DEPTH * PIECE);
    fill_operations(operations, KVT_IO_WRITE, buffer);
    run_all(device, operations);
    memset(buffer, 0, DEPTH * PIECE);
    fill_operations(operations, KVT_IO_READ, buffer);
    run_all(device, operations);
    assert_memory_equal(buffer, wanted, DEPTH * PIECE);
}

TEST_ALL(fake_cuda_load, NULL);
TEST_EACH(reset, fake_cuda_is_empty);

TEST(copies_overlap_and_go_through_pinned_memory)
{
    kvt_device_config config = hbm_config();
    config.gpu = 1;
    kvt_device *device = scratch_open(&config);
    fake->queries_until_done = 3;
    assert_string_equal(device->facts.engine, "cuda+staged");
    assert_string_equal(device->facts.identity, "Fake GPU 0000:01:00.0");
    assert_int_equal(device->facts.flags & KVT_DEVICE_EMULATED, 0);
    assert_int_equal(device->facts.depth_max, DEPTH);
    unsigned char *buffer = scratch_buffer(DEPTH * PIECE);
    round_trip(device, buffer);
    assert_int_equal(fake->copies, 2 * DEPTH);
    assert_int_equal(fake->flying_most, DEPTH);
    assert_int_equal(fake->pageable, 0);
    assert_int_equal(fake->registered, 0);
    assert_int_equal(fake->unbound, 0);
    kvt_device_close(device);
}

TEST(both_directions_are_in_flight_together)
{
    kvt_device_config config = hbm_config();
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(2 * PIECE);
    kvt_io *done[2];
    kvt_io write = {.kind = KVT_IO_WRITE, .bytes = PIECE, .buffer = buffer};
    kvt_io read = {.kind = KVT_IO_READ, .bytes = PIECE, .offset = PIECE, .buffer = buffer + PIECE};
    fake->queries_until_done = 100;
    assert_int_equal(kvt_device_submit(device, &write), KVT_QUEUED);
    assert_int_equal(kvt_device_submit(device, &read), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(device, done, 0, 2, 0), 0);
    assert_int_equal(fake->flying_most, 2);
    assert_int_equal(kvt_device_reap(device, done, 2, 2, UINT64_MAX), 2);
    kvt_device_close(device);
}

TEST(announced_memory_is_copied_directly)
{
    kvt_device_config config = hbm_config();
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(DEPTH * PIECE);
    const kvt_device_region region = {.memory = buffer, .bytes = DEPTH * PIECE};
    assert_ok(kvt_device_register_buffers(device, &region, 1));
    assert_string_equal(device->facts.engine, "cuda+pinned");
    kvt_device_attach(device);
    fake->queries_until_done = 2;
    round_trip(device, buffer);
    assert_int_equal(fake->registered, 2 * DEPTH);
    /* What is only partly inside goes through a slot. */
    unsigned char *other = scratch_buffer(PIECE);
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, other, PIECE));
    assert_int_equal(fake->registered, 2 * DEPTH);
    assert_int_equal(fake->pageable, 0);
    kvt_device_detach(device);
    assert_ok(kvt_device_register_buffers(device, NULL, 0));
    assert_string_equal(device->facts.engine, "cuda+staged");
    kvt_device_close(device);
}

TEST(memory_that_cannot_be_pinned_is_staged)
{
    kvt_device_config config = hbm_config();
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(DEPTH * PIECE);
    const kvt_device_region regions[] = {{.memory = buffer, .bytes = PIECE},
                                         {.memory = buffer + PIECE, .bytes = PIECE}};
    fail_later("cuMemHostRegister_v2", 2, REFUSED);
    int live = fake->live;
    assert_int_equal(kvt_device_register_buffers(device, regions, 2), KVT_E_MEMORY);
    assert_int_equal(fake->live, live);
    assert_string_equal(device->facts.engine, "cuda+staged");
    round_trip(device, buffer);
    kvt_device_close(device);
}

/* Kernels find the bytes where the device's copies put them. Layers around it, and memory of the
 * host in its place, say where that is as well. */
TEST(the_address_is_where_copies_go)
{
    unsigned char *buffer = scratch_buffer(PIECE);
    scratch_fill(buffer, PIECE, 9);
    for (int way = 0; way < 3; way++) {
        kvt_device_config config = hbm_config();
        config.emulated = way == 1;
        if (way == 2) config.latency_ns = 1000;
        kvt_device *device = scratch_open(&config);
        const uint64_t address = kvt_device_address(device);
        assert_true(address != 0);
        assert_null(kvt_device_memory(device));
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, PIECE, buffer, PIECE));
        unsigned char *found = scratch_buffer(PIECE);
        fake_cuda_move(found, address + PIECE, PIECE, 0);
        assert_memory_equal(found, buffer, PIECE);
        kvt_device_close(device);
    }
    kvt_device_config config = hbm_config();
    config.backend = "null";
    kvt_device *device = scratch_open(&config);
    assert_int_equal(kvt_device_address(device), 0);
    kvt_device_close(device);
}

TEST(an_engines_context_is_current_afterwards)
{
    kvt_device_config config = hbm_config();
    unsigned char *buffer = scratch_buffer(PIECE);
    const kvt_device_region region = {.memory = buffer, .bytes = PIECE};
    for (int round = 0; round < 2; round++) {
        void *engine = round == 0 ? NULL : fake_cuda_turn(0, 1);
        config.gpu = 1;
        kvt_device *device = scratch_open(&config);
        assert_ptr_equal(fake_cuda_turn(0, 0), engine);
        assert_ok(kvt_device_register_buffers(device, &region, 1));
        assert_ptr_equal(fake_cuda_turn(0, 0), engine);
        kvt_device_close(device);
        assert_ptr_equal(fake_cuda_turn(0, 0), engine);
        if (round == 1) (void)fake_cuda_turn(0, -1);
    }
}

/* One operation, whose call `name` fails with `result`. */
static kvt_status failing_transfer(const char *name, kvt_io_kind kind, int result)
{
    kvt_device_config config = hbm_config();
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(PIECE);
    fail_later(name, 1, result);
    kvt_status status = kvt_device_transfer(device, kind, 0, buffer, PIECE);
    assert_int_equal(fake->failed, 1);
    /* An error that passes is of one operation alone. */
    kvt_status after = kvt_device_transfer(device, kind, 0, buffer, PIECE);
    assert_int_equal(after, status == KVT_E_GONE ? KVT_E_GONE : KVT_OK);
    kvt_device_close(device);
    reset(NULL);
    return status;
}

TEST(failed_copies_are_statuses)
{
    static const struct {
        const char *name;
        kvt_io_kind kind;
    } calls[] = {{"cuMemcpyHtoDAsync_v2", KVT_IO_WRITE}, {"cuMemcpyDtoHAsync_v2", KVT_IO_READ},
                 {"cuEventRecord", KVT_IO_WRITE},        {"cuEventRecord", KVT_IO_READ},
                 {"cuEventQuery", KVT_IO_WRITE},         {"cuEventQuery", KVT_IO_READ}};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        assert_int_equal(failing_transfer(calls[i].name, calls[i].kind, PASSING), KVT_E_IO);
        assert_int_equal(failing_transfer(calls[i].name, calls[i].kind, GONE), KVT_E_GONE);
        assert_int_equal(fake->live, 0);
    }
}

TEST(a_gpu_that_is_lost_ends_all_operations)
{
    kvt_device_config config = hbm_config();
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(DEPTH * PIECE);
    kvt_io operations[DEPTH];
    kvt_io *done[DEPTH];
    fake->queries_until_done = 5;
    fill_operations(operations, KVT_IO_READ, buffer);
    for (uint32_t i = 0; i < DEPTH; i++)
        assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
    fail_later("cuEventQuery", 1, GONE);
    fake->fail_for_good = 1;
    size_t count = 0;
    while (count < DEPTH)
        count += kvt_device_reap(device, done, 1, DEPTH, UINT64_MAX);
    for (uint32_t i = 0; i < DEPTH; i++)
        assert_int_equal(operations[i].status, KVT_E_GONE);
    assert_ok(kvt_device_submit(device, &operations[0]));
    assert_int_equal(operations[0].status, KVT_E_GONE);
    fake->fail_for_good = 0;
    kvt_device_close(device);
}

/* Fails the n-th call of opening in turn: an error without anything left. */
TEST(every_call_of_opening_may_fail)
{
    char message[256];
    uint32_t opened_after = 0;
    for (uint32_t n = 1; opened_after == 0; n++) {
        reset(NULL);
        fake->fail_call = n;
        fake->fail_result = REFUSED;
        kvt_device *device = NULL;
        kvt_device_config config = hbm_config();
        kvt_status status = kvt_device_open(&config, &device, message, sizeof message);
        bool probing = n <= 2; /* cuInit, cuDeviceGetCount */
        bool failed = fake->failed > 0;
        kvt_status wanted = probing ? KVT_E_UNSUPPORTED : KVT_E_MEMORY;
        assert_int_equal(status, failed ? wanted : KVT_OK);
        if (status == KVT_OK) kvt_device_close(device);
        assert_int_equal(fake->live, 0);
        if (!failed) opened_after = n;
    }
    assert_true(opened_after > 2 + 6 + DEPTH); /* two streams, DEPTH events, memory and so on */
}

/* A GPU that is not there is an error; memory of the host takes its place on request alone. */
TEST(without_a_gpu_it_is_emulated_on_request)
{
    char message[256];
    kvt_device *device = NULL;
    kvt_device_config config = hbm_config();
    fake->gpu_count = 0;
    config.gpu = 9;
    assert_int_equal(kvt_device_open(&config, &device, message, sizeof message), KVT_E_UNSUPPORTED);
    assert_non_null(strstr(message, "the driver has no GPU; emulated = yes"));
    config.emulated = true;
    device = scratch_open(&config);
    assert_string_equal(device->facts.engine, "emulated-hbm+throttle");
    assert_string_equal(device->facts.identity, "emulated-hbm");
    assert_true((device->facts.flags & KVT_DEVICE_EMULATED) != 0);
    unsigned char *buffer = scratch_buffer(DEPTH * PIECE);
    round_trip(device, buffer);
    kvt_device_close(device);
    /* With caps of its own it is throttled once, to these. */
    config.read_bytes_per_s = 1000000000;
    device = scratch_open(&config);
    assert_string_equal(device->facts.engine, "emulated-hbm+throttle");
    kvt_device_close(device);
    /* The driver is not even loaded. */
    reset(NULL);
    fake->fail_call = 1;
    device = scratch_open(&config);
    assert_string_equal(device->facts.engine, "emulated-hbm+throttle");
    assert_int_equal(fake->failed, 0);
    kvt_device_close(device);
}

TEST(wrong_settings_are_refused)
{
    kvt_device_config config = hbm_config();
    config.gpu = 2;
    scratch_refused(&config, KVT_E_GONE, "no GPU 2 of 2");
    config = hbm_config();
    config.capacity_bytes = 63;
    scratch_refused(&config, KVT_E_SPACE, "too small");
    config = hbm_config();
    config.path = "x";
    scratch_refused(&config, KVT_E_ARGUMENT, "path");
    config = hbm_config();
    config.on_node = true;
    scratch_refused(&config, KVT_E_ARGUMENT, "node");
    config = hbm_config();
    config.backend = "memory";
    config.gpu = 1;
    scratch_refused(&config, KVT_E_ARGUMENT, "gpu");
    assert_int_equal(fake->live, 0);
}
