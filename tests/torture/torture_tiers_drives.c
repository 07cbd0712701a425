/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_tiers_drives.c - real faults of drives through the whole kernel path, each with the exact
 * status that it must give: emulated drives (FUSE) and loop devices, through io_uring and O_DIRECT.
 *
 * Needs root; what the machine cannot make is skipped, one by one.
 */
#include "device_scratch.h"
#include "drive_scratch.h"
#include "pool_scratch.h"

enum { DRIVE_BYTES = 16 << 20, BLOCK = 4096, UNIT = 256 * 1024 };

static kvt_device_config drives_config(const char *path)
{
    return (kvt_device_config){
        .struct_size = sizeof(kvt_device_config), .name = "drive", .backend = "file", .path = path};
}

/* One operation through the device's queue, on this thread. */
static kvt_io drives_do(kvt_device *device, kvt_io_kind kind, uint64_t offset, void *buffer,
                        uint32_t bytes)
{
    kvt_io io = {.kind = kind, .offset = offset, .bytes = bytes, .buffer = buffer};
    kvt_io *done = &io;
    kvt_status status = kvt_device_submit(device, &io);
    kvt_device_flush(device);
    if (status == KVT_QUEUED)
        assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    else
        assert_ok(status);
    assert_ptr_equal(done, &io);
    return io;
}

static void drives_expect(kvt_device *device, kvt_io_kind kind, uint64_t offset, uint32_t bytes,
                          kvt_status wanted, int os_error)
{
    static _Alignas(BLOCK) char buffer[2 * UNIT];
    assert_true(bytes <= sizeof buffer);
    kvt_io io = drives_do(device, kind, offset, buffer, bytes);
    if (io.status != wanted || (os_error != 0 && io.os_error != os_error))
        fail_msg("%s of %u at %llu: %s, errno %d; wanted %s, errno %d",
                 kind == KVT_IO_READ ? "read" : "write", bytes, (unsigned long long)offset,
                 kvt_status_name(io.status), io.os_error, kvt_status_name(wanted), os_error);
}

static void drives_refused(const char *path, kvt_status wanted)
{
    char message[256] = "";
    kvt_device *device = NULL;
    kvt_device_config config = drives_config(path);
    assert_int_equal(kvt_device_open(&config, &device, message, sizeof message), wanted);
    assert_string_not_equal(message, "");
}

static kvt_device *drives_open(const char *path)
{
    kvt_device_config config = drives_config(path);
    kvt_device *device = scratch_open(&config);
    kvt_device_attach(device);
    return device;
}

/* ---- a range that fails ---- */

static void drives_check_range(kvt_device *device, const drive_scratch *drive)
{
    const kvt_io_kind kinds[] = {KVT_IO_WRITE, KVT_IO_READ};
    drives_expect(device, KVT_IO_WRITE, 0, 2 * UNIT, KVT_OK, 0);
    assert_true(drive_scratch_set(drive, "eio=64Ki+8Ki"));
    for (int i = 0; i < 2; i++) {
        drives_expect(device, kinds[i], 60 * 1024, BLOCK, KVT_OK, 0);
        drives_expect(device, kinds[i], 64 * 1024, BLOCK, KVT_E_IO, EIO);
        drives_expect(device, kinds[i], 68 * 1024, BLOCK, KVT_E_IO, EIO);
        drives_expect(device, kinds[i], 72 * 1024, BLOCK, KVT_OK, 0);
        drives_expect(device, kinds[i], 0, UNIT, KVT_E_IO, EIO); /* straddles it */
    }
    assert_true(drive_scratch_set(drive, "clear=1 eio_write=64Ki+4Ki"));
    drives_expect(device, KVT_IO_READ, 64 * 1024, BLOCK, KVT_OK, 0);
    drives_expect(device, KVT_IO_WRITE, 64 * 1024, BLOCK, KVT_E_IO, EIO);
    assert_true(drive_scratch_set(drive, "clear=1"));
    drives_expect(device, KVT_IO_WRITE, 0, UNIT, KVT_OK, 0);
}

TEST(range)
{
    drive_scratch drive;
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_device *device = drives_open(drive.path);
    assert_true((device->facts.flags & KVT_DEVICE_DIRECT) != 0);
    drives_check_range(device, &drive);
    kvt_device_close(device);
    drive_scratch_remove(&drive);
}

TEST(range_through_loop)
{
    drive_scratch drive;
    loop_scratch loop;
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    int backing = open(drive.path, O_RDWR | O_CLOEXEC);
    bool made = backing >= 0 && loop_scratch_make(&loop, backing, 0);
    if (made) {
        kvt_device *device = drives_open(loop.path);
        drives_check_range(device, &drive);
        kvt_device_close(device);
        loop_scratch_remove(&loop);
    }
    if (backing >= 0) close(backing);
    drive_scratch_remove(&drive);
    if (!made) skip();
}

/* A pool of two drives: an object whose unit lies in the range fails, another does not, the member
 * stays, and the bytes are there once the range is well. */
TEST(range_in_pool)
{
    drive_scratch drives[2];
    bool made[2] = {false, false};
    for (int i = 0; i < 2; i++)
        made[i] = drive_scratch_make(&drives[i], "16Mi", "latency_us=0");
    if (!made[0] || !made[1]) skip();
    tiers_member_options members[2];
    for (int i = 0; i < 2; i++) {
        kvt_device_config config = drives_config(drives[i].path);
        members[i] = pool_scratch_member(scratch_open(&config), 1e9);
    }
    tiers_pool *pool = NULL;
    tiers_pool_options options = {0};
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    tiers_location *objects[2] = {NULL, NULL};
    char *buffer = pool_scratch_buffer(8 * UNIT);
    for (int i = 0; i < 2; i++) {
        assert_ok(tiers_pool_reserve(pool, 8 * UNIT, &objects[i]));
        pool_scratch_fill(buffer, 8 * UNIT, (uint64_t)i);
        assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, objects[i], buffer, 8 * UNIT));
    }
    char setting[64];
    const tiers_extent *extent = &objects[1]->extents[objects[1]->extent_count - 1];
    snprintf(setting, sizeof setting, "eio=%llu+4096",
             (unsigned long long)(extent->offset + extent->bytes - BLOCK));
    assert_true(drive_scratch_set(&drives[extent->member], setting));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tiers_pool_transfer(pool, KVT_IO_READ, objects[1], buffer, 8 * UNIT),
                         KVT_E_IO);
        assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, objects[0], buffer, 8 * UNIT));
        assert_true(pool_scratch_holds(buffer, 8 * UNIT, 0));
    }
    assert_true(drive_scratch_set(&drives[extent->member], "clear=1"));
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, objects[1], buffer, 8 * UNIT));
    assert_true(pool_scratch_holds(buffer, 8 * UNIT, 1));
    for (int i = 0; i < 2; i++)
        tiers_pool_release(pool, objects[i]);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

/* ---- a drive that vanishes, and one that does not answer ---- */

TEST(killed)
{
    drive_scratch drive;
    static _Alignas(BLOCK) char written[UNIT], got[UNIT];
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_device *device = drives_open(drive.path);
    scratch_fill(written, UNIT, 7);
    assert_ok(drives_do(device, KVT_IO_WRITE, UNIT, written, UNIT).status);
    /* Operations in flight when it goes, and later ones. */
    assert_true(drive_scratch_set(&drive, "hang=1"));
    kvt_io ios[4] = {{0}};
    kvt_io *done[4];
    for (int i = 0; i < 4; i++) {
        ios[i] = (kvt_io){.kind = i % 2 == 0 ? KVT_IO_READ : KVT_IO_WRITE,
                          .offset = (uint64_t)(8 + i) * UNIT,
                          .bytes = UNIT,
                          .buffer = got};
        assert_int_equal(kvt_device_submit(device, &ios[i]), KVT_QUEUED);
    }
    kvt_device_flush(device);
    assert_int_equal(kvt_device_reap(device, done, 1, 4, 200000000u), 0);
    assert_true(drive_scratch_kill(&drive));
    for (size_t reaped = 0; reaped < 4;)
        reaped += kvt_device_reap(device, done + reaped, 4 - reaped, 4 - reaped, UINT64_MAX);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ios[i].status, KVT_E_GONE);
    drives_expect(device, KVT_IO_READ, 0, BLOCK, KVT_E_GONE, 0);
    drives_expect(device, KVT_IO_WRITE, 0, BLOCK, KVT_E_GONE, 0);
    assert_int_equal(kvt_device_sync(device), KVT_E_GONE);
    drives_refused(drive.path, KVT_E_GONE);
    kvt_device_close(device);
    /* It comes back with what it had acknowledged. */
    assert_true(drive_scratch_back(&drive));
    device = drives_open(drive.path);
    assert_ok(drives_do(device, KVT_IO_READ, UNIT, got, UNIT).status);
    assert_memory_equal(got, written, UNIT);
    kvt_device_close(device);
    drive_scratch_remove(&drive);
}

TEST(killed_under_loop)
{
    drive_scratch drive;
    loop_scratch loop;
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    int backing = open(drive.path, O_RDWR | O_CLOEXEC);
    bool made = backing >= 0 && loop_scratch_make(&loop, backing, 0);
    if (made) {
        kvt_device *device = drives_open(loop.path);
        drives_expect(device, KVT_IO_WRITE, 0, BLOCK, KVT_OK, 0);
        assert_true(drive_scratch_kill(&drive));
        drives_expect(device, KVT_IO_READ, 0, BLOCK, KVT_E_IO, EIO);
        drives_expect(device, KVT_IO_WRITE, 0, BLOCK, KVT_E_IO, EIO);
        kvt_device_close(device);
        loop_scratch_remove(&loop);
    }
    if (backing >= 0) close(backing);
    drive_scratch_remove(&drive);
    if (!made) skip();
}

/* A hung drive completes nothing, and what was submitted stays in flight with its buffer; it goes
 * on where it was once the drive does. */
TEST(hang)
{
    drive_scratch drive;
    static _Alignas(BLOCK) char buffer[UNIT], expected[UNIT];
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_device *device = drives_open(drive.path);
    scratch_fill(expected, UNIT, 9);
    assert_ok(drives_do(device, KVT_IO_WRITE, 0, expected, UNIT).status);
    memset(buffer, 0x5a, UNIT);
    assert_true(drive_scratch_set(&drive, "hang=1"));
    kvt_io io = {.kind = KVT_IO_READ, .bytes = UNIT, .buffer = buffer};
    kvt_io *done = NULL;
    assert_int_equal(kvt_device_submit(device, &io), KVT_QUEUED);
    for (int i = 0; i < 5; i++)
        assert_int_equal(kvt_device_reap(device, &done, 1, 1, 50000000u), 0);
    assert_int_equal(io.state, KVT_IO_IN_FLIGHT);
    for (uint32_t i = 0; i < UNIT; i++)
        assert_int_equal(buffer[i], 0x5a);
    assert_true(drive_scratch_set(&drive, "hang=0"));
    assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    assert_ok(io.status);
    assert_memory_equal(buffer, expected, UNIT);
    kvt_device_close(device);
    drive_scratch_remove(&drive);
}

/* ---- writes that are torn, reads that are wrong: the device cannot know ---- */

TEST(unresponsive)
{
    drive_scratch drive;
    static _Alignas(BLOCK) char first[UNIT], second[UNIT], got[UNIT];
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_device *device = drives_open(drive.path);
    scratch_fill(first, UNIT, 1);
    scratch_fill(second, UNIT, 2);
    assert_ok(drives_do(device, KVT_IO_WRITE, 0, first, UNIT).status);
    assert_true(drive_scratch_set(&drive, "torn=0+4Ki"));
    assert_ok(drives_do(device, KVT_IO_WRITE, 0, second, UNIT).status);
    assert_ok(drives_do(device, KVT_IO_READ, 0, got, UNIT).status);
    assert_memory_equal(got, second, UNIT / 2);
    assert_memory_equal(got + UNIT / 2, first + UNIT / 2, UNIT / 2);
    assert_true(drive_scratch_set(&drive, "clear=1 corrupt=8Ki+1"));
    assert_ok(drives_do(device, KVT_IO_READ, 0, got, UNIT).status);
    assert_memory_equal(got, second, 8192);
    assert_int_equal(got[8192], second[8192] ^ 0x10);
    assert_memory_equal(got + 8193, second + 8193, UNIT / 2 - 8193);
    kvt_device_close(device);
    drive_scratch_remove(&drive);
}

/* ---- loop devices ---- */

TEST(truncated)
{
    loop_scratch loop;
    int backing = memory_scratch_file(DRIVE_BYTES);
    if (backing < 0 || !loop_scratch_make(&loop, backing, 0)) skip();
    kvt_device *device = drives_open(loop.path);
    drives_expect(device, KVT_IO_WRITE, DRIVE_BYTES / 2, UNIT, KVT_OK, 0);
    assert_int_equal(ftruncate(backing, DRIVE_BYTES / 2), 0);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2 - UNIT, UNIT, KVT_OK, 0);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2, BLOCK, KVT_E_IO, EIO);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2 - BLOCK, 2 * BLOCK, KVT_E_IO, EIO);
    assert_int_equal(ftruncate(backing, DRIVE_BYTES), 0);
    static _Alignas(BLOCK) char got[UNIT];
    memset(got, 1, sizeof got);
    assert_ok(drives_do(device, KVT_IO_READ, DRIVE_BYTES / 2, got, UNIT).status);
    for (uint32_t i = 0; i < UNIT; i++)
        assert_int_equal(got[i], 0);
    kvt_device_close(device);
    loop_scratch_remove(&loop);
    close(backing);
}

/* The device shrinks: beyond its end reads give nothing, across it they are short. */
TEST(shrunk)
{
    loop_scratch loop;
    int backing = memory_scratch_file(DRIVE_BYTES);
    if (backing < 0 || !loop_scratch_make(&loop, backing, 0)) skip();
    kvt_device *device = drives_open(loop.path);
    assert_int_equal(ftruncate(backing, DRIVE_BYTES / 2), 0);
    assert_int_equal(ioctl(loop.fd, LOOP_SET_CAPACITY, 0), 0);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2 - UNIT, UNIT, KVT_OK, 0);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2, BLOCK, KVT_E_IO, 0);
    drives_expect(device, KVT_IO_READ, DRIVE_BYTES / 2 - BLOCK, 4 * BLOCK, KVT_E_IO, 0);
    drives_expect(device, KVT_IO_WRITE, DRIVE_BYTES / 2, BLOCK, KVT_E_SPACE, ENOSPC);
    assert_int_equal(ftruncate(backing, 0), 0);
    assert_int_equal(ioctl(loop.fd, LOOP_SET_CAPACITY, 0), 0);
    drives_expect(device, KVT_IO_READ, 0, BLOCK, KVT_E_GONE, 0);
    kvt_device_close(device);
    loop_scratch_remove(&loop);
    close(backing);
}

TEST(full)
{
    loop_scratch loop;
    char path[64];
    int backing = full_scratch_file(DRIVE_BYTES, 1 << 20);
    if (backing < 0) skip();
    snprintf(path, sizeof path, "/proc/self/fd/%d", backing);
    kvt_device_config sparse = drives_config(path); /* the file itself, through the link to it */
    sparse.follow_symlinks = true;
    kvt_device *device = scratch_open(&sparse);
    kvt_device_attach(device);
    drives_expect(device, KVT_IO_WRITE, 0, UNIT, KVT_OK, 0);
    drives_expect(device, KVT_IO_WRITE, UNIT, 2 * UNIT, KVT_OK, 0);
    drives_expect(device, KVT_IO_WRITE, 3 * UNIT, 2 * UNIT, KVT_E_SPACE, ENOSPC);
    drives_expect(device, KVT_IO_READ, 0, UNIT, KVT_OK, 0);
    kvt_device_close(device);
    bool made = loop_scratch_make(&loop, backing, 0);
    if (made) {
        device = drives_open(loop.path);
        drives_expect(device, KVT_IO_WRITE, 8 * UNIT, 2 * UNIT, KVT_E_SPACE, ENOSPC);
        drives_expect(device, KVT_IO_READ, 0, UNIT, KVT_OK, 0);
        kvt_device_close(device);
        loop_scratch_remove(&loop);
    }
    close(backing);
    if (!made) skip();
}

TEST(read_only)
{
    loop_scratch loop;
    int backing = memory_scratch_file(DRIVE_BYTES);
    if (backing < 0 || !loop_scratch_make(&loop, backing, LO_FLAGS_READ_ONLY)) skip();
    drives_refused(loop.path, KVT_E_READ_ONLY);
    loop_scratch_remove(&loop);
    /* It becomes read-only while it is in use. */
    assert_true(loop_scratch_make(&loop, backing, 0));
    kvt_device *device = drives_open(loop.path);
    drives_expect(device, KVT_IO_WRITE, 0, UNIT, KVT_OK, 0);
    assert_int_equal(ioctl(loop.fd, BLKROSET, &(int){1}), 0);
    drives_expect(device, KVT_IO_WRITE, 0, UNIT, KVT_E_READ_ONLY, EPERM);
    drives_expect(device, KVT_IO_READ, 0, UNIT, KVT_OK, 0);
    kvt_device_close(device);
    (void)ioctl(loop.fd, BLKROSET, &(int){0});
    loop_scratch_remove(&loop);
    close(backing);
}

/* A loop without a file opens and has no size; one that is detached while in use stays. */
TEST(detached)
{
    loop_scratch loop;
    int backing = memory_scratch_file(DRIVE_BYTES);
    if (backing < 0 || !loop_scratch_make(&loop, backing, 0)) skip();
    kvt_device *device = drives_open(loop.path);
    assert_int_equal(ioctl(loop.fd, LOOP_CLR_FD, 0), 0);
    drives_expect(device, KVT_IO_WRITE, 0, UNIT, KVT_OK, 0);
    kvt_device_close(device);
    loop_scratch_remove(&loop);
    close(backing);
    /* Not the first free one, which another test may take at any moment. */
    char path[32];
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int number = 100000 + (int)getpid() % 100000;
    bool added = control >= 0 && ioctl(control, LOOP_CTL_ADD, number) == number;
    snprintf(path, sizeof path, "/dev/loop%d", number);
    bool there = added && access(path, F_OK) == 0;
    if (there) drives_refused(path, KVT_E_GONE);
    if (added) (void)ioctl(control, LOOP_CTL_REMOVE, number);
    if (control >= 0) close(control);
    if (!there) skip();
}

int main(void)
{
    if (geteuid() != 0) {
        printf("torture_tiers_drives: needs root\n");
        return 77;
    }
    return tests_run();
}
