/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_tiers_device.c - one checklist over every device: whatever is behind the wrapper, the
 * contract of device_ops.h holds.
 *
 * With KVT_NVME_DEVICE=/dev/ngXnY, whose content is lost, the nvme cases run instead of the others;
 * `make test-nvme` does that in an emulated machine. With KVT_TEST_BACKEND=hbm the cases of that
 * back end run alone, on a GPU and nothing else; without one they skip (77).
 */
#include "device_scratch.h"

#include "fault_device.h"

enum { CAPACITY = 4 << 20, OPERATIONS_MAX = 64 };
enum { KEY_CAPACITY = 640 << 10 }; /* what encryption takes of a device of so much */

typedef struct conform_case {
    const char *name;
    const char *backend;
    bool buffered;
    bool synchronous;
    bool fault; /* wrapped in a fault device without rules */
    bool trim;
    bool key;
    uint64_t bytes_per_s;
    uint64_t latency_ns;
    uint32_t depth;
} conform_case;

static const conform_case conform_cases[] = {
    {.name = "memory", .backend = "memory"},
    {.name = "memory throttled",
     .backend = "memory",
     .bytes_per_s = 4000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "memory with fault", .backend = "memory", .fault = true},
    {.name = "hbm", .backend = "hbm"}, /* of a GPU where there is one */
    {.name = "hbm throttled",
     .backend = "hbm",
     .bytes_per_s = 4000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "file", .backend = "file", .depth = 16},
    {.name = "file depth 1", .backend = "file", .depth = 1},
    {.name = "file buffered", .backend = "file", .buffered = true},
    {.name = "file trimming", .backend = "file", .trim = true, .depth = 8},
    {.name = "file by threads", .backend = "file", .synchronous = true},
    {.name = "file blocking", .backend = "file", .synchronous = true, .depth = 1},
    {.name = "file by threads buffered",
     .backend = "file",
     .buffered = true,
     .synchronous = true,
     .trim = true},
    {.name = "file throttled",
     .backend = "file",
     .bytes_per_s = 4000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "file with fault", .backend = "file", .fault = true, .depth = 8},
    {.name = "file encrypted", .backend = "file", .key = true, .depth = 8},
    {.name = "file encrypted depth 1", .backend = "file", .key = true, .depth = 1},
    {.name = "file encrypted by threads", .backend = "file", .key = true, .synchronous = true},
    {.name = "file encrypted blocking",
     .backend = "file",
     .key = true,
     .synchronous = true,
     .depth = 1},
    {.name = "file encrypted throttled",
     .backend = "file",
     .key = true,
     .trim = true,
     .bytes_per_s = 4000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "memory encrypted", .backend = "memory", .key = true},
    {.name = "memory encrypted with fault", .backend = "memory", .key = true, .fault = true},
    {.name = "nvme", .backend = "nvme"},
    {.name = "nvme encrypted", .backend = "nvme", .key = true, .depth = 8},
    {.name = "nvme depth 1", .backend = "nvme", .depth = 1},
    {.name = "nvme trimming", .backend = "nvme", .trim = true, .depth = 8},
    {.name = "nvme by threads", .backend = "nvme", .synchronous = true, .trim = true},
    {.name = "nvme blocking", .backend = "nvme", .synchronous = true, .depth = 1},
    {.name = "nvme throttled",
     .backend = "nvme",
     .bytes_per_s = 4000000000u,
     .latency_ns = 20000,
     .depth = 8},
    {.name = "nvme with fault", .backend = "nvme", .fault = true, .depth = 8},
    {.name = "null", .backend = "null"},
    {.name = "sim", .backend = "sim", .bytes_per_s = 1000000000u, .latency_ns = 100000, .depth = 8},
};

static char folder[64];
static char path[96];
static const char *nvme_path;
static const char *backend_wanted; /* NULL: all */

static kvt_device *conform_open(const conform_case *one)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "d0",
                                .backend = one->backend,
                                .capacity_bytes = CAPACITY,
                                .depth = one->depth,
                                .buffered = one->buffered,
                                .synchronous = one->synchronous,
                                .trim = one->trim,
                                .read_bytes_per_s = one->bytes_per_s,
                                .write_bytes_per_s = one->bytes_per_s,
                                .latency_ns = one->latency_ns};
    if (one->key) config.capacity_bytes += KEY_CAPACITY;
    if (one->key) config.key_command = "printf '%064d' 7";
    if (strcmp(one->backend, "file") == 0) config.path = path;
    if (strcmp(one->backend, "nvme") == 0) config.path = nvme_path;
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(&config, &device, NULL, 0);
    config.emulated =
        status == KVT_E_UNSUPPORTED && strcmp(one->backend, "hbm") == 0 && backend_wanted == NULL;
    if (status != KVT_OK) device = scratch_open(&config);
    if (one->fault) {
        kvt_device *inner = device;
        assert_ok(tiers_fault_open(inner, &device));
    }
    return device;
}

/* What a read of bytes that were written as `written` must give. */
static void expect_bytes(const kvt_device *device, const unsigned char *written,
                         const unsigned char *got, size_t bytes)
{
    if ((device->facts.flags & KVT_DEVICE_NO_DATA) == 0) {
        assert_memory_equal(written, got, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(got[i], 0);
}

/* First block, last block, largest request. */
static void check_edges(kvt_device *device)
{
    const kvt_device_facts *facts = &device->facts;
    uint32_t largest = facts->request_bytes_max < CAPACITY ? facts->request_bytes_max : CAPACITY;
    const struct {
        uint64_t offset;
        uint32_t bytes;
    } edges[] = {{0, facts->align_bytes},
                 {facts->capacity_bytes - facts->align_bytes, facts->align_bytes},
                 {facts->capacity_bytes - largest, largest},
                 {0, largest}};
    unsigned char *written = scratch_buffer(largest);
    unsigned char *got = scratch_buffer(largest);
    for (size_t i = 0; i < 4; i++) {
        scratch_fill(written, edges[i].bytes, i + 1);
        memset(got, 0x5A, edges[i].bytes);
        assert_ok(
            kvt_device_transfer(device, KVT_IO_WRITE, edges[i].offset, written, edges[i].bytes));
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, edges[i].offset, got, edges[i].bytes));
        expect_bytes(device, written, got, edges[i].bytes);
    }
    assert_ok(kvt_device_sync(device));
}

/* Random writes against a shadow copy, then the whole device is compared. */
static void check_random_offsets(kvt_device *device)
{
    uint64_t state = 7;
    unsigned char *shadow = scratch_buffer(CAPACITY);
    unsigned char *buffer = scratch_buffer(CAPACITY);
    uint32_t step =
        device->facts.request_bytes_max < 65536 ? device->facts.request_bytes_max : 65536;
    scratch_fill(shadow, CAPACITY, 3);
    for (uint32_t at = 0; at < CAPACITY; at += step) {
        memcpy(buffer, shadow + at, step);
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, at, buffer, step));
    }
    for (int round = 0; round < 200; round++) {
        uint32_t align = device->facts.align_bytes;
        uint32_t bytes = (uint32_t)(scratch_random(&state) % (step / align) + 1) * align;
        uint64_t offset = scratch_random(&state) % ((CAPACITY - bytes) / align + 1) * align;
        scratch_fill(buffer, bytes, (uint64_t)round);
        memcpy(shadow + offset, buffer, bytes);
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, offset, buffer, bytes));
    }
    for (uint32_t at = 0; at < CAPACITY; at += step) {
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, at, buffer, step));
        expect_bytes(device, shadow + at, buffer, step);
    }
}

/* Submits operations of 4 KiB until all are in; counts those that were done at once. */
static uint32_t submit_many(kvt_device *device, kvt_io *operations, uint32_t count)
{
    uint32_t at_once = 0;
    for (uint32_t i = 0; i < count; i++) {
        kvt_status status = kvt_device_submit(device, &operations[i]);
        assert_true(status == KVT_OK || status == KVT_QUEUED);
        assert_int_equal(operations[i].state, status == KVT_OK ? KVT_IO_DONE : KVT_IO_IN_FLIGHT);
        if (status == KVT_OK) at_once++;
    }
    return at_once;
}

static void prepare(kvt_io *operations, uint32_t count, kvt_io_kind kind, unsigned char *buffer)
{
    for (uint32_t i = 0; i < count; i++) {
        operations[i] = (kvt_io){.kind = kind,
                                 .bytes = 4096,
                                 .offset = (uint64_t)(count - 1 - i) * 8192,
                                 .buffer = buffer + (size_t)i * 4096,
                                 .user = &operations[i]};
    }
}

static void expect_finished(const kvt_io *io)
{
    assert_int_equal(io->state, KVT_IO_DONE);
    assert_ok(io->status);
    assert_int_equal(io->os_error, 0);
    assert_ptr_equal(io->user, io);
    assert_true(io->finished_ns >= io->submitted_ns);
}

/* Fills the queue, meets BUSY, and collects everything exactly once. */
static void check_depth(kvt_device *device, kvt_io_kind kind, unsigned char *buffer)
{
    kvt_io operations[OPERATIONS_MAX];
    kvt_io *done[OPERATIONS_MAX];
    uint32_t depth = device->facts.depth_max;
    assert_true(depth <= OPERATIONS_MAX);
    prepare(operations, depth, kind, buffer);
    uint32_t queued = depth - submit_many(device, operations, depth);
    if (queued == depth) {
        kvt_io extra = {.kind = kind, .bytes = 4096, .buffer = buffer, .device_word = 99};
        const kvt_io untouched = extra;
        assert_int_equal(kvt_device_submit(device, &extra), KVT_BUSY);
        assert_memory_equal(&extra, &untouched, sizeof extra);
        assert_int_equal(device->facts.depth_achieved, depth);
    }
    kvt_device_flush(device);
    uint32_t reaped = 0;
    while (reaped < queued) {
        size_t count = kvt_device_reap(device, done, 1, 3, UINT64_MAX);
        assert_true(count >= 1 && count <= 3);
        reaped += (uint32_t)count;
        assert_int_equal(device->in_flight, queued - reaped);
    }
    for (uint32_t i = 0; i < depth; i++)
        expect_finished(&operations[i]);
    assert_true(device->facts.depth_achieved >= 1);
    assert_int_equal(kvt_device_reap(device, done, 1, 1, UINT64_MAX), 0); /* nothing to wait for */
}

typedef struct bad_submit {
    kvt_device *device;
    kvt_io io;
} bad_submit;

static void submit_bad(void *argument)
{
    bad_submit *bad = argument;
    if (kvt_device_submit(bad->device, &bad->io) == KVT_BUSY) _exit(1);
}

/* What only a defective caller does ends in an assert, before any byte moves. */
static void check_asserts(kvt_device *device)
{
#ifndef NDEBUG
    const kvt_device_facts *facts = &device->facts;
    unsigned char *buffer = scratch_buffer(8192);
    const kvt_io good = {.kind = KVT_IO_READ, .bytes = 4096, .buffer = buffer};
    bad_submit bad[7];
    for (size_t i = 0; i < 7; i++)
        bad[i] = (bad_submit){device, good};
    bad[0].io.bytes = 0;
    bad[1].io.bytes = facts->align_bytes - 1;
    bad[2].io.offset = facts->capacity_bytes;
    bad[3].io.offset = UINT64_MAX - facts->align_bytes + 1;
    bad[4].io.offset = 1;
    bad[5].io.buffer = buffer + 1;
    bad[6].io.state = KVT_IO_IN_FLIGHT;
    for (size_t i = 0; i < 7; i++)
        assert_true(scratch_aborts(submit_bad, &bad[i]));
#else
    (void)device;
    (void)submit_bad;
#endif
}

static void check_reopen(const conform_case *one)
{
    kvt_device *device = conform_open(one);
    bool durable = (device->facts.flags & KVT_DEVICE_DURABLE) != 0;
    char identity[96];
    memcpy(identity, device->facts.identity, sizeof identity);
    unsigned char *written = scratch_buffer(65536);
    unsigned char *got = scratch_buffer(65536);
    scratch_fill(written, 65536, 23);
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 131072, written, 65536));
    assert_ok(kvt_device_sync(device));
    kvt_device_close(device);
    device = conform_open(one);
    assert_string_equal(device->facts.identity, identity);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 131072, got, 65536));
    if (durable) assert_memory_equal(written, got, 65536);
    kvt_device_close(device);
}

static bool has_ring(const kvt_device *device)
{
    return strncmp(device->facts.engine, "io_uring", 8) == 0;
}

/* Memory that was announced, and memory that was not, in one mixture; the life cycle twice. */
static void check_registered(const conform_case *one)
{
    enum { HALF = 256 * 1024 };
    kvt_device *device = conform_open(one);
    unsigned char *regions[2] = {scratch_buffer(HALF), scratch_buffer(2 * HALF)};
    const kvt_device_region announced[2] = {{regions[0], HALF}, {regions[1], HALF}};
    unsigned char *got = scratch_buffer(HALF);
    kvt_status status = kvt_device_register_buffers(device, announced, 2);
    assert_true(status == KVT_OK || status == KVT_E_UNSUPPORTED || status == KVT_E_MEMORY);
    if (strstr(device->facts.engine, "fixed") != NULL) assert_ok(status);
    bool ring = has_ring(device);
    for (int life = 0; life < 3; life++) {
        /* Forgetting needs no memory. A second life may have been refused a ring of its own: all
         * processes of a user share what he may lock. */
        bool useless = status == KVT_E_UNSUPPORTED || (ring && !has_ring(device));
        if (life == 2)
            assert_int_equal(kvt_device_register_buffers(device, NULL, 0),
                             useless ? KVT_E_UNSUPPORTED : KVT_OK);
        scratch_fill(regions[0], HALF, (uint64_t)life);
        scratch_fill(regions[1], 2 * HALF, (uint64_t)life + 7);
        /* Unattached, attached, across the end of what was announced, and unattached again. */
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, regions[0], HALF));
        kvt_device_attach(device);
        unsigned char *across = regions[1] + HALF - 4096;
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, HALF, across, HALF));
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, HALF));
        expect_bytes(device, regions[0], got, HALF);
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, HALF, regions[0], HALF));
        expect_bytes(device, across, regions[0], HALF);
        kvt_device_detach(device);
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, HALF, regions[0], HALF));
        expect_bytes(device, across, regions[0], HALF);
    }
    kvt_device_close(device);
}

/* Trimming spares the neighbours, and what was trimmed can be written again. */
static void check_trim(const conform_case *one)
{
    enum { PART = 128 * 1024 };
    kvt_device *device = conform_open(one);
    unsigned char *written = scratch_buffer(3 * PART);
    unsigned char *got = scratch_buffer(3 * PART);
    bool trims = (device->facts.flags & KVT_DEVICE_TRIM) != 0;
    if (!one->trim) assert_false(trims);
    kvt_device_attach(device);
    scratch_fill(written, 3 * PART, 31);
    for (uint64_t i = 0; i < 3; i++)
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, i * PART, written + i * PART, PART));
    kvt_status status = kvt_device_trim(device, PART, PART);
    assert_int_equal(status, trims ? KVT_OK : KVT_E_UNSUPPORTED);
    for (uint64_t i = 0; i < 3; i += 2) {
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, i * PART, got, PART));
        expect_bytes(device, written + i * PART, got, PART);
    }
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, PART, got, PART));
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, PART, written, PART));
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, PART, got, PART));
    expect_bytes(device, written, got, PART);
    kvt_device_close(device);
}

static void run_case(void **state)
{
    const conform_case *one = *state;
    scratch_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/data", folder);
    kvt_device *device = conform_open(one);
    print_message("%s: %s, %s\n", one->name, device->facts.engine, device->facts.identity);
    const kvt_device_facts *facts = &device->facts;
    uint32_t align = facts->align_bytes;
    assert_true(align != 0 && (align & (align - 1)) == 0 && align <= 4096);
    assert_int_equal(facts->capacity_bytes, CAPACITY);
    assert_true(facts->request_bytes_max >= 256 * 1024);
    assert_int_equal(facts->request_bytes_max % align, 0);
    assert_true(facts->depth_max >= 1);
    assert_int_equal(facts->depth_achieved, 0);
    assert_false(device->attached);
    assert_true(facts->engine[0] != '\0' && strlen(facts->engine) < sizeof facts->engine);
    assert_true(facts->identity[0] != '\0' && strlen(facts->identity) < sizeof facts->identity);
    assert_string_equal(device->name, "d0");
    assert_int_equal((facts->flags & KVT_DEVICE_DIRECT) != 0,
                     strstr(facts->engine, "direct") != NULL);
    check_edges(device); /* one at a time, as before a worker has it */
    kvt_device_attach(device);
    check_edges(device);
    check_random_offsets(device);
    uint32_t depth = device->facts.depth_max;
    unsigned char *written = scratch_buffer((size_t)depth * 4096);
    unsigned char *got = scratch_buffer((size_t)depth * 4096);
    scratch_fill(written, (size_t)depth * 4096, 11);
    check_depth(device, KVT_IO_WRITE, written);
    check_depth(device, KVT_IO_READ, got);
    expect_bytes(device, written, got, (size_t)depth * 4096);
    /* min waits for that many, more than there are is no deadlock, a poll does not wait. */
    kvt_io operations[OPERATIONS_MAX];
    kvt_io *done[OPERATIONS_MAX];
    uint32_t count = device->facts.depth_max < 4 ? device->facts.depth_max : 4;
    unsigned char *buffer = scratch_buffer((size_t)count * 4096);
    assert_int_equal(kvt_device_reap(device, done, 0, 4, UINT64_MAX), 0);
    prepare(operations, count, KVT_IO_READ, buffer);
    size_t queued = count - submit_many(device, operations, count);
    kvt_device_flush(device);
    size_t reaped = kvt_device_reap(device, done, 0, 1, 0);
    assert_true(reaped <= 1);
    if (queued - reaped >= 2) {
        size_t more = kvt_device_reap(device, done, 2, OPERATIONS_MAX, UINT64_MAX);
        assert_true(more >= 2);
        reaped += more;
    }
    reaped += kvt_device_reap(device, done, OPERATIONS_MAX, OPERATIONS_MAX, UINT64_MAX);
    assert_int_equal(reaped, queued);
    assert_int_equal(device->in_flight, 0);
    check_asserts(device);
    kvt_device_close(device);
    check_reopen(one);
    check_registered(one);
    check_trim(one);
    scratch_remove(folder);
}

/* Whether a GPU answers; else says why not. */
static bool find_gpu(void)
{
    const kvt_device_config config = {
        .struct_size = sizeof config, .name = "d0", .backend = "hbm", .capacity_bytes = CAPACITY};
    kvt_device *device = NULL;
    char message[256] = "";
    if (kvt_device_open(&config, &device, message, sizeof message) != KVT_OK) {
        printf("skipped: %s\n", message);
        return false;
    }
    kvt_device_close(device);
    return true;
}

int main(void)
{
    enum { COUNT = sizeof conform_cases / sizeof conform_cases[0] };
    struct CMUnitTest tests[COUNT] = {{0}};
    size_t count = 0;
    nvme_path = getenv("KVT_NVME_DEVICE");
    backend_wanted = getenv("KVT_TEST_BACKEND");
    if (backend_wanted != NULL && strcmp(backend_wanted, "hbm") == 0 && !find_gpu()) return 77;
    for (size_t i = 0; i < COUNT; i++) {
        bool is_nvme = strcmp(conform_cases[i].backend, "nvme") == 0;
        if (is_nvme != (nvme_path != NULL)) continue;
        if (backend_wanted != NULL && strcmp(conform_cases[i].backend, backend_wanted) != 0)
            continue;
        tests[count++] = (struct CMUnitTest){.name = conform_cases[i].name,
                                             .test_func = run_case,
                                             .initial_state = (void *)(uintptr_t)&conform_cases[i]};
    }
    return _cmocka_run_group_tests("devices", tests, count, NULL, NULL);
}
