/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_drives.c - the nvme back end on drives: run by run_machine.sh inside an emulated machine
 * with four of them, whose content is lost. Drive 1 has a bad sector at 1 MiB.
 *
 * Beside the conformance tests this looks at what only real completions show: what the drive
 * refuses, what another way to the same bytes sees, and drives that are in use, foreign or pulled.
 */
#include "device_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <tiers/pool/pool.h>

enum { DRIVES = 4, MIB = 1 << 20, BAD_OFFSET = MIB, REQUEST = 256 * 1024 };

static kvt_device *open_drive_with(int number, bool synchronous)
{
    char path[32];
    char name[16];
    snprintf(path, sizeof path, "/dev/ng%dn1", number);
    snprintf(name, sizeof name, "n%d", number);
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = name,
                                .backend = "nvme",
                                .path = path,
                                .synchronous = synchronous};
    return scratch_open(&config);
}

static kvt_device *open_drive(int number)
{
    return open_drive_with(number, false);
}

static int open_block(int number, int flags)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/nvme%dn1", number);
    int fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

TEST(facts)
{
    for (int i = 0; i < DRIVES; i++) {
        char serial[32];
        uint64_t bytes = 0;
        kvt_device *device = open_drive(i);
        const kvt_device_facts *facts = &device->facts;
        snprintf(serial, sizeof serial, "serial=kv%d ns=1", i);
        print_message("%s: %s, %s, %u bytes a request\n", device->name, facts->engine,
                      facts->identity, facts->request_bytes_max);
        assert_string_equal(facts->engine, "uring_cmd+direct");
        assert_non_null(strstr(facts->identity, serial));
        assert_int_equal(facts->align_bytes, 512);
        assert_int_equal(facts->request_bytes_max, REQUEST);
        assert_int_equal(facts->flags, KVT_DEVICE_DURABLE | KVT_DEVICE_DIRECT);
        int fd = open_block(i, O_RDONLY);
        assert_int_equal(ioctl(fd, BLKGETSIZE64, &bytes), 0);
        assert_int_equal(facts->capacity_bytes, bytes);
        close(fd);
        kvt_device_close(device);
    }
}

/* What is written by commands is read through the block layer, and the other way round. */
TEST(other_way)
{
    unsigned char *written = scratch_buffer(REQUEST);
    unsigned char *got = scratch_buffer(REQUEST);
    const kvt_device_region region = {written, REQUEST};
    for (int life = 0; life < 2; life++) {
        uint64_t at = (uint64_t)(5 + life) * MIB + 512;
        kvt_device *device = open_drive_with(0, life == 1);
        kvt_status status = kvt_device_register_buffers(device, &region, 1);
        assert_int_equal(status, life == 0 ? KVT_OK : KVT_E_UNSUPPORTED);
        kvt_device_attach(device);
        print_message("%s\n", device->facts.engine);
        scratch_fill(written, REQUEST, 77 + (uint64_t)life);
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, at, written, REQUEST));
        assert_ok(kvt_device_sync(device));
        int fd = open_block(0, O_RDWR | O_DIRECT);
        assert_int_equal(pread(fd, got, REQUEST, (off_t)at), REQUEST);
        assert_memory_equal(written, got, REQUEST);
        scratch_fill(got, REQUEST, 99 + (uint64_t)life);
        assert_int_equal(pwrite(fd, got, REQUEST, (off_t)at), REQUEST);
        close(fd);
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, at, written, REQUEST));
        assert_memory_equal(written, got, REQUEST);
        kvt_device_close(device);
    }
}

/* One operation that the wrapper would not let pass: the facts are bent to get it to the drive. */
static void expect_refused(kvt_device *device, kvt_io io, kvt_status expected, int os_error)
{
    const kvt_device_facts facts = device->facts;
    device->facts.capacity_bytes = UINT64_C(1) << 62;
    device->facts.request_bytes_max = 4 * MIB;
    kvt_io *done = NULL;
    kvt_status status = kvt_device_submit(device, &io);
    if (status == KVT_QUEUED) assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    device->facts = facts;
    assert_int_equal(io.status, expected);
    assert_int_equal(io.os_error, os_error);
}

TEST(refused_by_drive)
{
    unsigned char *buffer = scratch_buffer(2 * MIB);
    for (int life = 0; life < 3; life++) { /* ring, threads, single calls */
        kvt_device *device = open_drive_with(0, life == 1);
        uint64_t end = device->facts.capacity_bytes;
        if (life < 2) kvt_device_attach(device);
        kvt_io beyond = {.kind = KVT_IO_READ, .bytes = 4096, .offset = end, .buffer = buffer};
        expect_refused(device, beyond, KVT_E_IO, EIO);
        beyond.offset = end - 512; /* its first block is still there */
        expect_refused(device, beyond, KVT_E_IO, EIO);
        beyond.kind = KVT_IO_WRITE;
        beyond.offset = UINT64_C(1) << 60;
        expect_refused(device, beyond, KVT_E_IO, EIO);
        kvt_io large = {.kind = KVT_IO_READ, .bytes = MIB, .buffer = buffer};
        expect_refused(device, large, KVT_E_IO, EINVAL); /* never split */
        kvt_io after = {.kind = KVT_IO_READ, .bytes = REQUEST, .buffer = buffer};
        expect_refused(device, after, KVT_OK, 0);
        kvt_device_close(device);
    }
}

/* Many at once, one of them on the bad sector: it alone fails, at once, and stays failing. */
TEST(media_error)
{
    enum { COUNT = 16 };
    kvt_device *device = open_drive(1);
    unsigned char *buffer = scratch_buffer(COUNT * 65536);
    kvt_io operations[COUNT];
    kvt_io *done[COUNT];
    kvt_device_attach(device);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            operations[i] = (kvt_io){.kind = KVT_IO_READ,
                                     .bytes = 65536,
                                     .offset = BAD_OFFSET - 8 * 65536 + (uint64_t)i * 65536,
                                     .buffer = buffer + 65536 * i};
            assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
        }
        size_t count = 0;
        while (count < COUNT)
            count += kvt_device_reap(device, done + count, 1, COUNT - count, UINT64_MAX);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(operations[i].status, i == 8 ? KVT_E_IO : KVT_OK);
            assert_int_equal(operations[i].os_error, i == 8 ? EIO : 0);
        }
    }
    kvt_device_close(device);
}

static tiers_pool *open_pool(void)
{
    static const double speeds[DRIVES] = {100e6, 100e6, 200e6, 400e6}; /* as the machine's */
    tiers_member_options members[DRIVES] = {{0}};
    char message[256] = "";
    for (int i = 0; i < DRIVES; i++) {
        members[i].device = open_drive(i);
        members[i].read_bytes_per_s = speeds[i];
        members[i].write_bytes_per_s = speeds[i];
        members[i].reserved_head_bytes = 2 * MIB; /* the bad sector is in there */
        members[i].present = true;
    }
    const tiers_pool_options options = {0};
    tiers_pool *pool = NULL;
    kvt_status status = tiers_pool_open(members, DRIVES, &options, &pool, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    return pool;
}

/* An object over all drives in proportion to their speed comes back as it was. */
TEST(pool)
{
    enum { OBJECT = 32 * MIB };
    tiers_location *location = NULL;
    tiers_pool *pool = open_pool();
    unsigned char *written = scratch_buffer(OBJECT);
    unsigned char *got = scratch_buffer(OBJECT);
    scratch_fill(written, OBJECT, 5);
    assert_ok(tiers_pool_reserve(pool, OBJECT, &location));
    for (uint32_t i = 0; i < location->share_count; i++) {
        static const uint32_t units[DRIVES] = {16, 16, 32, 64};
        assert_int_equal(location->shares[i].units, units[i]);
    }
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, written, OBJECT));
    assert_ok(tiers_pool_sync(pool));
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, location, got, OBJECT));
    assert_memory_equal(written, got, OBJECT);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

static void expect_open(int number, kvt_status expected, const char *words)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/ng%dn1", number);
    kvt_device_config config = {
        .struct_size = sizeof config, .name = "n", .backend = "nvme", .path = path};
    scratch_refused(&config, expected, words);
}

TEST(in_use)
{
    kvt_device *device = open_drive(2);
    expect_open(2, KVT_E_LOCKED, "open elsewhere");
    kvt_device_config block = {
        .struct_size = sizeof block, .name = "b", .backend = "file", .path = "/dev/nvme2n1"};
    scratch_refused(&block, KVT_E_LOCKED, "in use");
    kvt_device_close(device);
    device = scratch_open(&block); /* exclusive, as a mounted one is */
    expect_open(2, KVT_E_LOCKED, "in use");
    kvt_device_close(device);
    kvt_device_close(open_drive(2));
    kvt_device_config wrong = {
        .struct_size = sizeof wrong, .name = "w", .backend = "nvme", .path = "/dev/nvme2n1"};
    scratch_refused(&wrong, KVT_E_ARGUMENT, "block device");
    wrong.path = "/dev/nvme2";
    scratch_refused(&wrong, KVT_E_ARGUMENT, "NVMe");
}

static bool is_foreign(int number)
{
    kvt_device *device = open_drive(number);
    bool foreign = (device->facts.flags & KVT_DEVICE_FOREIGN) != 0;
    kvt_device_close(device);
    return foreign;
}

/* Partitions, and a file system that leaves the place of the label blank. */
TEST(foreign)
{
    unsigned char *sector = scratch_buffer(4096);
    memset(sector, 0, 4096);
    assert_false(is_foreign(2));
    sector[446 + 4] = 0x83; /* one partition of 2048 sectors from sector 2048 */
    sector[446 + 9] = 8;
    sector[446 + 13] = 8;
    sector[510] = 0x55;
    sector[511] = 0xAA;
    int fd = open_block(2, O_RDWR);
    assert_int_equal(pwrite(fd, sector, 512, 0), 512);
    assert_int_equal(ioctl(fd, BLKRRPART), 0);
    close(fd);
    assert_true(is_foreign(2));
    memset(sector, 0, 4096);
    fd = open_block(2, O_RDWR);
    assert_int_equal(pwrite(fd, sector, 512, 0), 512);
    assert_int_equal(ioctl(fd, BLKRRPART), 0);
    close(fd);
    assert_false(is_foreign(2));

    kvt_device *device = open_drive(2);
    memcpy(sector + 64, "_BHRfS_M", 8);
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 65536, sector, 4096));
    kvt_device_close(device);
    assert_true(is_foreign(2));
    device = open_drive(2);
    memset(sector, 0, 4096);
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 65536, sector, 4096));
    kvt_device_close(device);
}

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void *pull(void *unused)
{
    (void)unused;
    usleep(50000);
    write_text("/sys/class/nvme/nvme3/device/remove", "1");
    return NULL;
}

/* Keeps every slot reading until reads fail; each operation ends, whatever becomes of the drive. */
static uint32_t read_until_gone(kvt_device *device, unsigned char *buffer, uint32_t *failed_out)
{
    enum { COUNT = 32, BYTES = 65536 };
    kvt_io operations[COUNT];
    kvt_io *done[COUNT];
    kvt_io *idle[COUNT];
    uint32_t idle_count = COUNT;
    uint32_t moved = 0;
    *failed_out = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        idle[i] = &operations[i];
    while (idle_count < COUNT || *failed_out == 0) {
        while (*failed_out == 0 && idle_count > 0) {
            kvt_io *io = idle[--idle_count];
            size_t slot = (size_t)(io - operations);
            *io = (kvt_io){.kind = KVT_IO_READ,
                           .bytes = BYTES,
                           .offset = slot * MIB,
                           .buffer = buffer + BYTES * slot};
            assert_int_equal(kvt_device_submit(device, io), KVT_QUEUED);
        }
        size_t count = kvt_device_reap(device, done, 1, COUNT, UINT64_MAX);
        for (size_t i = 0; i < count; i++) {
            kvt_status status = done[i]->status;
            assert_true(status == KVT_OK || status == KVT_E_GONE || status == KVT_E_IO);
            if (status == KVT_OK) moved++;
            if (status != KVT_OK) (*failed_out)++;
            idle[idle_count++] = done[i];
        }
    }
    return moved;
}

/* The drive is pulled with operations in flight: each ends, later ones say that it is gone, and
 * once it is back its bytes are there. */
TEST(pulled)
{
    kvt_device *device = open_drive(3);
    unsigned char *buffer = scratch_buffer(32 * 65536);
    pthread_t puller;
    uint32_t failed;
    kvt_device_attach(device);
    scratch_fill(buffer, 65536, 41);
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, buffer, 65536));
    assert_int_equal(pthread_create(&puller, NULL, pull, NULL), 0);
    uint32_t moved = read_until_gone(device, buffer, &failed);
    assert_int_equal(pthread_join(puller, NULL), 0);
    print_message("%u operations were read, %u failed\n", moved, failed);
    assert_int_equal(kvt_device_transfer(device, KVT_IO_READ, 0, buffer, 4096), KVT_E_GONE);
    assert_int_equal(kvt_device_sync(device), KVT_E_GONE);
    kvt_device_detach(device);
    assert_int_equal(kvt_device_transfer(device, KVT_IO_READ, 0, buffer, 4096), KVT_E_GONE);
    kvt_device_close(device);
    expect_open(3, KVT_E_GONE, "/dev/ng3n1");

    write_text("/sys/bus/pci/rescan", "1");
    for (int wait = 0; wait < 300 && access("/dev/ng3n1", F_OK) != 0; wait++)
        usleep(100000);
    device = open_drive(3);
    unsigned char *expected = scratch_buffer(65536);
    scratch_fill(expected, 65536, 41);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, buffer, 65536));
    assert_memory_equal(buffer, expected, 65536);
    kvt_device_close(device);
}
