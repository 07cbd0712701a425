/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_file.c - the file device against the outside world: paths that are missing,
 * wrong, locked, read-only, too small or full, files that shrink or vanish, kernels without
 * io_uring, rings that break, and block devices.
 */
#include "device_scratch.h"
#include "lock_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { CAPACITY = 1 << 20, BLOCK = 4096 };

static char folder[64];
static char path[128];

TEST_BEFORE_EACH
{
    scratch_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/data", folder);
}

TEST_AFTER_EACH
{
    scratch_remove(folder);
}

static kvt_device_config file_config(uint64_t capacity_bytes)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = "ssd0",
                               .backend = "file",
                               .path = path,
                               .capacity_bytes = capacity_bytes,
                               .depth = 8};
}

static void make_file(off_t bytes, mode_t mode)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, mode);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
}

static bool exists(void)
{
    return access(path, F_OK) == 0;
}

TEST(missing)
{
    kvt_device_config config = file_config(0);
    scratch_refused(&config, KVT_E_GONE, "no such file");
    assert_false(exists());
    snprintf(path, sizeof path, "%s/absent/data", folder);
    config.capacity_bytes = CAPACITY;
    scratch_refused(&config, KVT_E_GONE, path);
    snprintf(path, sizeof path, "%s/plain", folder);
    make_file(CAPACITY, 0600);
    snprintf(path, sizeof path, "%s/plain/data", folder);
    scratch_refused(&config, KVT_E_GONE, "Not a directory");
}

TEST(wrong_kind)
{
    kvt_device_config config = file_config(CAPACITY);
    config.path = folder;
    scratch_refused(&config, KVT_E_ARGUMENT, "is a directory");
    config.path = "/dev/null";
    scratch_refused(&config, KVT_E_ARGUMENT, "no file or block device");
    assert_int_equal(mkfifo(path, 0600), 0);
    config.path = path;
    scratch_refused(&config, KVT_E_ARGUMENT, "no file or block device");
}

TEST(read_only)
{
    kvt_device_config config = file_config(0);
    make_file(CAPACITY, 0444);
    scratch_refused(&config, KVT_E_READ_ONLY, "read-only");
}

TEST(too_small)
{
    kvt_device_config config = file_config(65535);
    scratch_refused(&config, KVT_E_SPACE, "64 KiB");
    assert_false(exists());
    make_file(65535, 0600);
    config.capacity_bytes = 0;
    scratch_refused(&config, KVT_E_SPACE, "too small");
    config.capacity_bytes = CAPACITY;
    scratch_refused(&config, KVT_E_SPACE, "has 65535 bytes");
    assert_true(exists()); /* it is not ours to remove */
    config.capacity_bytes = 0;
    config.depth = 5000;
    scratch_refused(&config, KVT_E_ARGUMENT, "depth");
}

TEST(existing_keeps_its_size)
{
    make_file(CAPACITY + 1000, 0600);
    kvt_device_config config = file_config(0);
    kvt_device *device = scratch_open(&config);
    assert_int_equal(device->facts.capacity_bytes, CAPACITY);
    assert_int_equal(device->facts.flags & KVT_DEVICE_DURABLE, KVT_DEVICE_DURABLE);
    kvt_device_close(device);
    config.capacity_bytes = 65536;
    device = scratch_open(&config);
    assert_int_equal(device->facts.capacity_bytes, 65536);
    kvt_device_close(device);
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_size, CAPACITY + 1000);
}

/* A new file is really written: no holes, all zeros, private to its owner. */
TEST(new_file)
{
    kvt_device_config config = file_config(CAPACITY + 5);
    kvt_device *device = scratch_open(&config);
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_size, CAPACITY);
    assert_true(facts.st_blocks * 512 >= CAPACITY);
    assert_int_equal(facts.st_mode & 0777, 0600);
    unsigned char *got = scratch_buffer(CAPACITY / 2);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, CAPACITY / 2, got, CAPACITY / 2));
    for (int i = 0; i < CAPACITY / 2; i++)
        assert_int_equal(got[i], 0);
    kvt_device_close(device);
}

static void open_in_child(void *argument)
{
    kvt_device *device = NULL;
    if (kvt_device_open(argument, &device, NULL, 0) == KVT_E_LOCKED) abort();
}

TEST(locked)
{
    kvt_device_config config = file_config(CAPACITY);
    kvt_device *device = scratch_open(&config);
    scratch_refused(&config, KVT_E_LOCKED, "open elsewhere");
    assert_true(scratch_aborts(open_in_child, &config));
    assert_true(exists());
    kvt_device_close(device);
    for (int i = 0; i < 20; i++)
        kvt_device_close(scratch_open(&config)); /* released at once */
}

TEST(identity)
{
    kvt_device_config config = file_config(CAPACITY);
    kvt_device *device = scratch_open(&config);
    char first[96];
    memcpy(first, device->facts.identity, sizeof first);
    kvt_device_close(device);
    char deep[192];
    snprintf(deep, sizeof deep, "%s/./../%s/data", folder, folder);
    config.path = deep; /* another spelling of the same file */
    device = scratch_open(&config);
    assert_string_equal(device->facts.identity, first);
    kvt_device_close(device);
    assert_int_equal(rename(path, "device-scratch-moved"), 0);
    config.path = "device-scratch-moved";
    device = scratch_open(&config);
    assert_string_not_equal(device->facts.identity, first);
    kvt_device_close(device);
    assert_int_equal(unlink("device-scratch-moved"), 0);
}

static kvt_status read_block(kvt_device *device, uint64_t offset, uint32_t bytes)
{
    unsigned char *buffer = scratch_buffer(bytes);
    kvt_status status = kvt_device_transfer(device, KVT_IO_READ, offset, buffer, bytes);
    return status;
}

/* The file shrinks, empties and loses its name under every engine. */
TEST(vanished)
{
    for (int engine = 0; engine < 4; engine++) {
        kvt_device_config config = file_config(CAPACITY);
        config.buffered = (engine & 1) != 0;
        config.synchronous = (engine & 2) != 0;
        kvt_device *device = scratch_open(&config);
        kvt_device_attach(device);
        assert_ok(kvt_device_sync(device));
        assert_int_equal(truncate(path, CAPACITY / 2), 0);
        assert_ok(read_block(device, 0, BLOCK));
        assert_int_equal(read_block(device, CAPACITY / 2, BLOCK), KVT_E_IO);
        assert_int_equal(read_block(device, CAPACITY / 2 - BLOCK, 2 * BLOCK), KVT_E_IO);
        assert_int_equal(truncate(path, CAPACITY / 2 - 100), 0);
        assert_int_equal(read_block(device, CAPACITY / 2 - BLOCK, BLOCK), KVT_E_IO);
        assert_int_equal(truncate(path, 0), 0);
        assert_int_equal(read_block(device, 0, BLOCK), KVT_E_GONE);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(kvt_device_sync(device), KVT_E_GONE);
        kvt_device_close(device);
    }
}

/* Many operations in flight, some of which fail: each ends with its own status. */
TEST(mixed_statuses)
{
    enum { COUNT = 8 };
    kvt_device_config config = file_config(CAPACITY);
    kvt_device *device = scratch_open(&config);
    kvt_device_attach(device);
    assert_int_equal(truncate(path, COUNT / 2 * BLOCK), 0);
    unsigned char *buffer = scratch_buffer(COUNT * BLOCK);
    kvt_io operations[COUNT];
    kvt_io *done[COUNT];
    uint32_t queued = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        operations[i] = (kvt_io){.kind = KVT_IO_READ,
                                 .bytes = BLOCK,
                                 .offset = (uint64_t)i * BLOCK,
                                 .buffer = buffer + (size_t)i * BLOCK};
        kvt_status status = kvt_device_submit(device, &operations[i]);
        assert_true(status == KVT_OK || status == KVT_QUEUED); /* the blocking engine: KVT_OK */
        if (status == KVT_QUEUED) queued++;
    }
    kvt_device_flush(device);
    assert_int_equal(kvt_device_reap(device, done, queued, COUNT, UINT64_MAX), queued);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(operations[i].status, i < COUNT / 2 ? KVT_OK : KVT_E_IO);
    }
    kvt_device_close(device);
}

/* Finds the ring among our descriptors. */
static int find_ring(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char name[64];
        char target[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = '\0';
        if (strstr(target, "[io_uring]") != NULL) return fd;
    }
    return -1;
}

/* The kernel takes no more entries: what was queued and all that follows is done by blocking I/O.
 */
TEST(broken_ring)
{
    enum { COUNT = 4 };
    kvt_device_config config = file_config(CAPACITY);
    kvt_device *device = scratch_open(&config);
    kvt_device_attach(device);
    int ring = find_ring();
    if (ring < 0) {
        kvt_device_close(device);
        print_message("skipped: io_uring is refused here\n");
        skip();
    }
    int other = open("/dev/null", O_RDWR | O_CLOEXEC);
    unsigned char *buffer = scratch_buffer(COUNT * BLOCK);
    unsigned char *got = scratch_buffer(COUNT * BLOCK);
    scratch_fill(buffer, COUNT * BLOCK, 5);
    kvt_io operations[COUNT];
    kvt_io *done[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        operations[i] = (kvt_io){.kind = KVT_IO_WRITE,
                                 .bytes = BLOCK,
                                 .offset = (uint64_t)i * BLOCK,
                                 .buffer = buffer + (size_t)i * BLOCK};
        assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
    }
    assert_int_equal(dup2(other, ring), ring);
    close(other);
    kvt_device_flush(device);
    assert_int_equal(kvt_device_reap(device, done, COUNT, COUNT, UINT64_MAX), COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_ok(operations[i].status);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, COUNT * BLOCK));
    assert_memory_equal(buffer, got, COUNT * BLOCK);
    kvt_device_close(device);
}

/* In a child: forbids io_uring_setup as container runtimes do, then uses the device. Aborts when
 * all is as it should be. */
static void use_without_uring(void *argument)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = 4, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(1);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(1);
    kvt_device *device = NULL;
    if (kvt_device_open(argument, &device, NULL, 0) != KVT_OK) _exit(1);
    if (strncmp(device->facts.engine, "threads+", 8) != 0) _exit(1);
    if (device->facts.depth_max != 8) _exit(1);
    kvt_device_attach(device);
    unsigned char *buffer = test_aligned(BLOCK, BLOCK);
    memset(buffer, 3, BLOCK);
    if (kvt_device_transfer(device, KVT_IO_WRITE, 0, buffer, BLOCK) != KVT_OK) _exit(1);
    memset(buffer, 0, BLOCK);
    if (kvt_device_transfer(device, KVT_IO_READ, 0, buffer, BLOCK) != KVT_OK) _exit(1);
    if (buffer[0] != 3 || buffer[BLOCK - 1] != 3) _exit(1);
    kvt_device_close(device);
    abort();
}

TEST(uring_refused)
{
    kvt_device_config config = file_config(CAPACITY);
    assert_true(scratch_aborts(use_without_uring, &config));
}

/* Announced memory makes its transfers fixed ones; a limit on locked memory makes them plain. */
static void use_under_memory_limit(void *argument)
{
    const struct rlimit small = {65536, 65536};
    unsigned char *memory = test_aligned(BLOCK, CAPACITY);
    const kvt_device_region region = {memory, CAPACITY};
    if (setrlimit(RLIMIT_MEMLOCK, &small) != 0) _exit(1);
    kvt_device_config config = *(const kvt_device_config *)argument;
    config.path = strrchr(path, '/') + 1; /* folders above may be closed to others */
    if (chdir(folder) != 0) _exit(1);
    /* Not root and without its capabilities, or the limit does not bind. */
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(1);
    kvt_device *device = NULL;
    memset(memory, 7, CAPACITY);
    if (kvt_device_open(&config, &device, NULL, 0) != KVT_OK) _exit(1);
    if (kvt_device_register_buffers(device, &region, 1) != KVT_E_MEMORY) _exit(1);
    if (strstr(device->facts.engine, "fixed") != NULL) _exit(1);
    kvt_device_attach(device);
    if (kvt_device_transfer(device, KVT_IO_WRITE, 0, memory, BLOCK) != KVT_OK) _exit(1);
    memset(memory, 0, BLOCK);
    if (kvt_device_transfer(device, KVT_IO_READ, 0, memory, BLOCK) != KVT_OK) _exit(1);
    if (memory[0] != 7 || memory[BLOCK - 1] != 7) _exit(1);
    kvt_device_close(device);
    abort();
}

TEST(registered)
{
    kvt_device_config config = file_config(CAPACITY);
    kvt_device *device = scratch_open(&config);
    if (strncmp(device->facts.engine, "io_uring+", 9) != 0) {
        kvt_device_close(device);
        print_message("skipped: io_uring is refused here\n");
        skip();
    }
    kvt_device_close(device);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(scratch_aborts(use_under_memory_limit, &config));
    if (!scratch_may_lock(CAPACITY)) {
        print_message("skipped: too little memory may be locked here\n");
        skip();
    }
    device = scratch_open(&config);
    unsigned char *memory = scratch_buffer(CAPACITY);
    const kvt_device_region regions[2] = {{memory + CAPACITY / 2, CAPACITY / 4},
                                          {memory, CAPACITY / 4}};
    assert_ok(kvt_device_register_buffers(device, regions, 2));
    assert_non_null(strstr(device->facts.engine, "+fixed"));
    scratch_fill(memory, CAPACITY, 1);
    kvt_device_attach(device);
    assert_non_null(strstr(device->facts.engine, "+fixed"));
    /* In both regions, between them, and behind the last. */
    unsigned char *got = scratch_buffer(CAPACITY);
    for (uint64_t at = 0; at < CAPACITY; at += CAPACITY / 8)
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, at, memory + at, CAPACITY / 8));
    memcpy(got, memory, CAPACITY);
    memset(memory, 0, CAPACITY);
    for (uint64_t at = 0; at < CAPACITY; at += CAPACITY / 8)
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, at, memory + at, CAPACITY / 8));
    assert_memory_equal(memory, got, CAPACITY);
    kvt_device_detach(device);
    assert_ok(kvt_device_register_buffers(device, NULL, 0));
    assert_null(strstr(device->facts.engine, "fixed"));
    kvt_device_close(device);
}

/* Without its first writing a new file takes no room; trimming gives room back. */
TEST(sparse_and_trim)
{
    struct stat facts;
    kvt_device_config config = file_config(CAPACITY);
    config.sparse = true;
    kvt_device *device = scratch_open(&config);
    assert_int_equal(device->facts.prepare_ns, 0);
    assert_int_equal(device->facts.flags & KVT_DEVICE_TRIM, 0);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_size, CAPACITY);
    assert_true(facts.st_blocks * 512 < CAPACITY / 2);
    kvt_device_close(device);
    assert_int_equal(unlink(path), 0);

    config.sparse = false;
    config.trim = true;
    device = scratch_open(&config);
    assert_true(device->facts.prepare_ns > 0);
    if ((device->facts.flags & KVT_DEVICE_TRIM) == 0) {
        print_message("no trimming: this file system has no holes\n");
    } else {
        assert_ok(kvt_device_trim(device, CAPACITY / 2, CAPACITY / 2));
        assert_int_equal(stat(path, &facts), 0);
        assert_int_equal(facts.st_size, CAPACITY);
        assert_true(facts.st_blocks * 512 < CAPACITY);
    }
    kvt_device_close(device);
}

/* Puts the scratch file behind a free loop device; -1 when this machine does not let us. */
static int attach_loop(char *name, size_t size, bool read_only)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) return -1;
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    close(control);
    if (number < 0) return -1;
    snprintf(name, size, "/dev/loop%d", number);
    int loop = open(name, O_RDWR | O_CLOEXEC);
    if (loop < 0) return -1;
    int backing = open(path, O_RDWR | O_CLOEXEC);
    struct loop_config setup = {.fd = (uint32_t)backing, .block_size = 512};
    setup.info.lo_flags = read_only ? LO_FLAGS_READ_ONLY : 0;
    int refused = ioctl(loop, LOOP_CONFIGURE, &setup);
    close(backing);
    if (refused == 0) return loop;
    close(loop);
    return -1;
}

TEST(block_device)
{
    char name[32];
    make_file(CAPACITY, 0600);
    int loop = attach_loop(name, sizeof name, false);
    if (loop < 0) {
        print_message("skipped: no loop device can be attached here\n");
        skip();
    }
    kvt_device_config config = file_config(0);
    config.path = name;
    kvt_device *device = NULL;
    char message[256];
    kvt_status opened = kvt_device_open(&config, &device, message, sizeof message);
    kvt_device *second = NULL;
    kvt_status locked = kvt_device_open(&config, &second, NULL, 0);
    unsigned char *written = scratch_buffer(65536);
    unsigned char *got = scratch_buffer(65536);
    kvt_status moved[4] = {KVT_E_IO, KVT_E_IO, KVT_E_IO, KVT_OK};
    if (opened == KVT_OK) {
        scratch_fill(written, 65536, 9);
        kvt_device_attach(device);
        moved[0] = kvt_device_transfer(device, KVT_IO_WRITE, CAPACITY - 65536, written, 65536);
        moved[1] = kvt_device_transfer(device, KVT_IO_READ, CAPACITY - 65536, got, 65536);
        moved[2] = kvt_device_sync(device);
        print_message("%s, %s\n", device->facts.engine, device->facts.identity);
    }
    config.capacity_bytes = 2 * CAPACITY;
    if (opened == KVT_OK) kvt_device_close(device);
    kvt_status too_large = kvt_device_open(&config, &second, NULL, 0);
    ioctl(loop, LOOP_CLR_FD);
    close(loop);
    moved[3] = moved[1] == KVT_OK && memcmp(written, got, 65536) != 0 ? KVT_E_CORRUPT : KVT_OK;
    assert_ok(opened);
    assert_int_equal(locked, KVT_E_LOCKED);
    assert_int_equal(too_large, KVT_E_SPACE);
    for (int i = 0; i < 4; i++)
        assert_ok(moved[i]);
}

TEST(block_device_refused)
{
    char name[32];
    make_file(CAPACITY, 0600);
    int loop = attach_loop(name, sizeof name, true);
    if (loop < 0) {
        print_message("skipped: no loop device can be attached here\n");
        skip();
    }
    kvt_device_config config = file_config(0);
    config.path = name;
    kvt_device *device = NULL;
    kvt_status read_only = kvt_device_open(&config, &device, NULL, 0);
    ioctl(loop, LOOP_CLR_FD);
    close(loop);
    assert_int_equal(read_only, KVT_E_READ_ONLY);
}

/* Last, because it moves to mounts of its own. */
TEST(no_space)
{
    /* A small file system of our own, which ends with this process. */
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=512k") != 0) {
        print_message("skipped: mounting a tmpfs is not permitted here\n");
        skip();
    }
    kvt_device_config config = file_config(CAPACITY);
    scratch_refused(&config, KVT_E_SPACE, path);
    bool left_over = exists();
    make_file(CAPACITY, 0600); /* sparse: space runs out while it is written */
    config.capacity_bytes = 0;
    unsigned char *buffer = scratch_buffer(65536);
    int refused[2] = {0, 0};
    for (int engine = 0; engine < 2; engine++) {
        config.synchronous = engine == 1;
        kvt_device *device = scratch_open(&config);
        kvt_device_attach(device);
        for (uint64_t at = 0; at < CAPACITY; at += 65536) {
            kvt_status status = kvt_device_transfer(device, KVT_IO_WRITE, at, buffer, 65536);
            assert_true(status == KVT_OK || status == KVT_E_SPACE);
            if (status == KVT_E_SPACE) refused[engine]++;
        }
        assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, buffer, 65536));
        kvt_device_close(device);
    }
    umount(folder);
    assert_false(left_over);
    assert_true(refused[0] >= 8 && refused[1] >= 8);
}
