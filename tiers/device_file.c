/*
 * device_file.c - a regular file or a block device as a device: opening, locking, probing.
 *
 * A file that is absent is made and written once with zeros, because writes into space that is
 * only allocated are half as fast. What is really possible is tried, not assumed: O_DIRECT by a
 * read, io_uring by making a ring.
 *
 * Thread rule: as device.h.
 */
#include "device_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* Where an open writes its one line. */
typedef struct file_opening {
    const kvt_device_config *config;
    char *message;
    size_t message_size;
} file_opening;

kvt_status file_status_of_errno(int os_error)
{
    switch (os_error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENODEV:
    case ENXIO:
    case ENOTCONN:
    case ENOMEDIUM:
    case ESHUTDOWN:
    case ESTALE: return KVT_E_GONE;
    case EROFS:
    case EPERM:
    case EACCES: return KVT_E_READ_ONLY;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return KVT_E_SPACE;
    case EBUSY:
    case EEXIST:
    case ETXTBSY:
    case EWOULDBLOCK: return KVT_E_LOCKED;
    case ENOMEM: return KVT_E_MEMORY;
    default: return KVT_E_IO;
    }
}

kvt_status file_status_of_transfer(int os_error)
{
    kvt_status status = file_status_of_errno(os_error);
    return status == KVT_E_LOCKED || status == KVT_E_MEMORY ? KVT_E_IO : status;
}

kvt_status file_status_of_end(const file_device *file)
{
    struct stat facts;
    uint64_t bytes = 0;
    if (file->block) {
        if (ioctl(file->fd, BLKGETSIZE64, &bytes) != 0) bytes = 0;
    } else if (fstat(file->fd, &facts) == 0) {
        bytes = (uint64_t)facts.st_size;
    }
    return bytes != 0 ? KVT_E_IO : KVT_E_GONE;
}

static kvt_status file_refuse(const file_opening *opening, kvt_status status, const char *reason)
{
    tiers_device_message(opening->message, opening->message_size, opening->config, "%s: %s",
                         opening->config->path, reason);
    return status;
}

static kvt_status file_refuse_errno(const file_opening *opening, int os_error)
{
    return file_refuse(opening, file_status_of_errno(os_error), strerror(os_error));
}

enum { FILE_LOCK_WAITS = 50, FILE_LOCK_WAIT_NS = 10000000 };

/* One opener at a time. Separate opens exclude each other even within a process. */
static kvt_status file_lock(file_device *file, const file_opening *opening)
{
    /* A process that was killed keeps its lock for the moments in which the kernel takes its ring
     * down, and a restart comes sooner than that. */
    int failed = flock(file->fd, LOCK_EX | LOCK_NB);
    for (int wait = 0; failed != 0 && errno == EWOULDBLOCK && wait < FILE_LOCK_WAITS; wait++) {
        nanosleep(&(struct timespec){.tv_nsec = FILE_LOCK_WAIT_NS}, NULL);
        failed = flock(file->fd, LOCK_EX | LOCK_NB);
    }
    if (failed == 0) return KVT_OK;
    if (errno == EWOULDBLOCK) return file_refuse(opening, KVT_E_LOCKED, "already open elsewhere");
    return file_refuse_errno(opening, errno);
}

static kvt_status file_make(file_device *file, const file_opening *opening)
{
    uint64_t capacity = opening->config->capacity_bytes / FILE_ALIGN_BYTES * FILE_ALIGN_BYTES;
    if (capacity == 0 && opening->config->capacity_bytes == 0) {
        return file_refuse(opening, KVT_E_GONE, "no such file (a capacity would make it)");
    }
    if (capacity < FILE_CAPACITY_BYTES_MIN) {
        return file_refuse(opening, KVT_E_SPACE, "the capacity is below 64 KiB");
    }
    file->fd = open(opening->config->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file->fd < 0) return file_refuse_errno(opening, errno);
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status; /* another open was faster: the file is theirs */
    file->made = true;
    int refused;
    do {
        refused = fallocate(file->fd, 0, 0, (off_t)capacity);
    } while (refused != 0 && errno == EINTR);
    if (refused != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
        refused = ftruncate(file->fd, (off_t)capacity);
    }
    if (refused != 0) return file_refuse_errno(opening, errno);
    file->base.facts.capacity_bytes = capacity;
    return KVT_OK;
}

/* Sets the capacity from the size that the storage has. */
static kvt_status file_take_size(file_device *file, const file_opening *opening, uint64_t size)
{
    char reason[96];
    uint64_t wanted = opening->config->capacity_bytes;
    /* A file that was made for an odd capacity has whole blocks of it. */
    if (wanted / FILE_ALIGN_BYTES * FILE_ALIGN_BYTES > size) {
        snprintf(reason, sizeof reason, "has %" PRIu64 " bytes, %" PRIu64 " are configured", size,
                 wanted);
        return file_refuse(opening, KVT_E_SPACE, reason);
    }
    uint64_t capacity = (wanted != 0 ? wanted : size) / FILE_ALIGN_BYTES * FILE_ALIGN_BYTES;
    if (capacity < FILE_CAPACITY_BYTES_MIN) {
        return file_refuse(opening, KVT_E_SPACE, "too small: at least 64 KiB are needed");
    }
    file->base.facts.capacity_bytes = capacity;
    return KVT_OK;
}

static kvt_status file_open_block(file_device *file, const file_opening *opening)
{
    file->block = true;
    /* O_EXCL refuses a device that is mounted or part of an array. */
    file->fd = open(opening->config->path, O_RDWR | O_EXCL | O_CLOEXEC);
    if (file->fd < 0 && errno == EBUSY) {
        return file_refuse(opening, KVT_E_LOCKED, "in use (mounted, or open elsewhere)");
    }
    if (file->fd < 0) return file_refuse_errno(opening, errno);
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status;
    uint64_t size = 0;
    int sector_bytes = 0;
    int read_only = 0;
    if (ioctl(file->fd, BLKGETSIZE64, &size) != 0 ||
        ioctl(file->fd, BLKSSZGET, &sector_bytes) != 0 ||
        ioctl(file->fd, BLKROGET, &read_only) != 0) {
        return file_refuse_errno(opening, errno);
    }
    if (size == 0) return file_refuse(opening, KVT_E_GONE, "no medium (size 0)");
    if (read_only != 0) return file_refuse(opening, KVT_E_READ_ONLY, "read-only");
    if (sector_bytes > FILE_ALIGN_BYTES) {
        return file_refuse(opening, KVT_E_UNSUPPORTED, "sectors above 4 KiB");
    }
    return file_take_size(file, opening, size);
}

static kvt_status file_open_regular(file_device *file, const file_opening *opening, mode_t mode)
{
    /* root could write it all the same, but whoever made it read-only meant it. */
    if ((mode & 0222) == 0) return file_refuse(opening, KVT_E_READ_ONLY, "read-only");
    file->fd = open(opening->config->path, O_RDWR | O_CLOEXEC);
    if (file->fd < 0) return file_refuse_errno(opening, errno);
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status;
    struct stat facts;
    if (fstat(file->fd, &facts) != 0) return file_refuse_errno(opening, errno);
    return file_take_size(file, opening, (uint64_t)facts.st_size);
}

static kvt_status file_attach(file_device *file, const file_opening *opening)
{
    struct stat facts;
    if (stat(opening->config->path, &facts) != 0) {
        if (errno == ENOENT) return file_make(file, opening);
        return file_refuse_errno(opening, errno);
    }
    if (S_ISBLK(facts.st_mode)) return file_open_block(file, opening);
    if (S_ISREG(facts.st_mode)) return file_open_regular(file, opening, facts.st_mode);
    return file_refuse(opening, KVT_E_ARGUMENT,
                       S_ISDIR(facts.st_mode) ? "is a directory" : "is no file or block device");
}

static bool file_set_direct(file_device *file, bool direct)
{
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0) return false;
    file->direct = direct;
    return fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Turns O_DIRECT on if a read through it works. Some file systems accept the flag and then refuse
 * each transfer. */
static kvt_status file_probe_direct(file_device *file, const file_opening *opening, void *block)
{
    if (opening->config->buffered || !file_set_direct(file, true)) {
        file->direct = false;
        return KVT_OK;
    }
    kvt_io probe = {.kind = KVT_IO_READ, .bytes = FILE_ALIGN_BYTES, .buffer = block};
    file_sync_run(file, &probe, 0);
    if (probe.status == KVT_OK) return KVT_OK;
    if (probe.os_error != EINVAL && probe.os_error != EOPNOTSUPP) {
        return file_refuse(opening, probe.status, "its first block cannot be read");
    }
    if (!file_set_direct(file, false)) return file_refuse_errno(opening, errno);
    return KVT_OK;
}

/* The name of a new file is durable only when its directory is. */
static int file_sync_directory(const char *path)
{
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) return ENAMETOOLONG;
    memcpy(copy, path, strlen(path) + 1);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int os_error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return os_error == EINVAL ? 0 : os_error; /* EINVAL: the file system has nothing to do here */
}

/* Writes a new file once, so that later writes find written blocks. */
static kvt_status file_fill(file_device *file, const file_opening *opening, void *zeros)
{
    uint64_t capacity = file->base.facts.capacity_bytes;
    memset(zeros, 0, FILE_REQUEST_BYTES_MAX);
    for (uint64_t at = 0; at < capacity;) {
        uint64_t rest = capacity - at;
        kvt_io io = {.kind = KVT_IO_WRITE, .offset = at, .buffer = zeros};
        io.bytes = rest < FILE_REQUEST_BYTES_MAX ? (uint32_t)rest : FILE_REQUEST_BYTES_MAX;
        file_sync_run(file, &io, 0);
        if (io.status != KVT_OK && io.os_error == EINVAL && file->direct) {
            if (!file_set_direct(file, false)) return file_refuse_errno(opening, errno);
            continue; /* direct reads work here and direct writes do not */
        }
        if (io.status != KVT_OK) return file_refuse(opening, io.status, strerror(io.os_error));
        at += io.bytes;
    }
    int os_error = fsync(file->fd) == 0 ? file_sync_directory(opening->config->path) : errno;
    return os_error == 0 ? KVT_OK : file_refuse_errno(opening, os_error);
}

/* Reads one word from a file of sysfs; false when there is none. */
static bool file_sysfs_word(const struct stat *facts, const char *name, char *word, size_t size)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s", major(facts->st_rdev),
             minor(facts->st_rdev), name);
    FILE *stream = fopen(path, "re");
    if (stream == NULL) return false;
    bool found = fgets(word, (int)size, stream) != NULL;
    if (found) word[strcspn(word, " \t\n")] = '\0';
    fclose(stream);
    return found && word[0] != '\0';
}

/* A drive by its serial number, which stays when it moves to another port; a file by device, inode
 * and path. A path that is too long keeps its tail and a hash of the whole. */
static void file_identify(file_device *file, const char *path)
{
    char *identity = file->base.facts.identity;
    const size_t size = sizeof file->base.facts.identity;
    struct stat facts = {0};
    char word[48];
    char part[16] = "0";
    (void)fstat(file->fd, &facts);
    if (file->block) {
        (void)file_sysfs_word(&facts, "partition", part, sizeof part);
        if (file_sysfs_word(&facts, "serial", word, sizeof word) ||
            file_sysfs_word(&facts, "device/serial", word, sizeof word) ||
            file_sysfs_word(&facts, "../device/serial", word, sizeof word)) {
            snprintf(identity, size, "block serial=%s part=%s", word, part);
            return;
        }
        snprintf(word, sizeof word, "block %u:%u", major(facts.st_rdev), minor(facts.st_rdev));
    } else {
        snprintf(word, sizeof word, "file %u:%u/%" PRIu64, major(facts.st_dev), minor(facts.st_dev),
                 (uint64_t)facts.st_ino);
    }
    char *real = realpath(path, NULL);
    const char *name = real != NULL ? real : path;
    size_t length = strlen(name);
    size_t room = size - strlen(word) - 2;
    if (length <= room) {
        snprintf(identity, size, "%s %.*s", word, (int)length, name);
    } else {
        snprintf(identity, size, "%s %016" PRIx64 "..%s", word, (uint64_t)XXH3_64bits(name, length),
                 name + length - (room - 18));
    }
    free(real);
}

static void file_set_facts(file_device *file, const kvt_device_config *config)
{
    kvt_device_facts *facts = &file->base.facts;
    uint32_t depth = config->depth != 0 ? config->depth : FILE_DEPTH_DEFAULT;
    file->has_ring = !config->synchronous && file_ring_open(file, depth);
    facts->align_bytes = FILE_ALIGN_BYTES;
    facts->request_bytes_max = FILE_REQUEST_BYTES_MAX;
    facts->depth_max = file->has_ring ? depth : 1; /* the blocking engine has one at a time */
    facts->flags |= KVT_DEVICE_DURABLE;
    if (file->direct) facts->flags |= KVT_DEVICE_DIRECT;
    snprintf(facts->engine, sizeof facts->engine, "%s+%s", file->has_ring ? "io_uring" : "pread",
             file->direct ? "direct" : "buffered");
    file_identify(file, config->path);
}

static void file_release(file_device *file)
{
    if (file->has_ring) file_ring_close(file);
    if (file->fd >= 0) {
        (void)flock(file->fd, LOCK_UN); /* at once, whoever else still holds the open file */
        close(file->fd);
    }
    free(file);
}

static kvt_status file_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                            size_t message_size)
{
    const file_opening opening = {config, message, message_size};
    if (config->depth > FILE_DEPTH_MAX) {
        return file_refuse(&opening, KVT_E_ARGUMENT, "the depth is above 4096");
    }
    file_device *file = calloc(1, sizeof *file);
    void *buffer = aligned_alloc(FILE_ALIGN_BYTES, FILE_REQUEST_BYTES_MAX);
    kvt_status status = KVT_E_MEMORY;
    if (file == NULL || buffer == NULL) {
        file_refuse(&opening, status, "out of memory");
        free(file);
        free(buffer);
        return status;
    }
    file->fd = -1;
    tiers_device_init(&file->base, &tiers_file_ops, config);
    status = file_attach(file, &opening);
    if (status == KVT_OK) status = file_probe_direct(file, &opening, buffer);
    if (status == KVT_OK && file->made) status = file_fill(file, &opening, buffer);
    free(buffer);
    if (status != KVT_OK) {
        if (file->made) (void)unlink(config->path);
        file_release(file);
        return status;
    }
    file_set_facts(file, config);
    *device_out = &file->base;
    return KVT_OK;
}

static void file_close(kvt_device *device)
{
    file_release((file_device *)device);
}

static kvt_status file_submit(kvt_device *device, kvt_io *io)
{
    file_device *file = (file_device *)device;
    if (file->has_ring) return file_ring_submit(file, io);
    tiers_io_begin(io, tiers_device_now_ns());
    file_sync_run(file, io, 0);
    return KVT_OK;
}

static void file_flush(kvt_device *device)
{
    file_device *file = (file_device *)device;
    if (file->has_ring) file_ring_flush(file);
}

static size_t file_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                        uint64_t timeout_ns)
{
    file_device *file = (file_device *)device;
    return file->has_ring ? file_ring_reap(file, done, min, max, timeout_ns) : 0;
}

static kvt_status file_sync(kvt_device *device)
{
    file_device *file = (file_device *)device;
    struct stat facts;
    while (fdatasync(file->fd) != 0) {
        if (errno != EINTR) return file_status_of_transfer(errno);
    }
    /* Bytes in a file without a name do not survive a restart. */
    if (!file->block && (fstat(file->fd, &facts) != 0 || facts.st_nlink == 0)) return KVT_E_GONE;
    return KVT_OK;
}

const kvt_device_ops tiers_file_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "file",
    .open = file_open,
    .close = file_close,
    .submit = file_submit,
    .flush = file_flush,
    .reap = file_reap,
    .sync = file_sync,
};
