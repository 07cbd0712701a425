/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_nvme.c - a namespace of an NVMe drive through its character device (/dev/ng0n1): reads and
 * writes as commands in ring entries of 128 bytes, control commands by ioctl.
 *
 * A command is never split by the kernel: the largest request is what the drive and the kernel take
 * whole. A command that succeeded says 0, not a count of bytes; one that the drive refused says a
 * positive status (device_nvme.h), at once and once, where the block layer would have tried again.
 *
 * The namespace's block device, its sibling in sysfs, states the limits and is kept open
 * exclusively, so that nobody mounts it meanwhile and nobody's mounted one is taken.
 *
 * Thread rule: as device_ops.h; nvme_run also by the queue's threads, several at once.
 */
#include "device_nvme.h"

#include "base/clock.h"
#include "device_limits.h"
#include "device_queue.h"
#include "device_signature.h"
#include "file_claim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/nvme_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
    NVME_ADMIN_IDENTIFY = 6,
    NVME_CNS_NAMESPACE = 0,
    NVME_CNS_CONTROLLER = 1,
    NVME_DSM_DEALLOCATE = 4,
    NVME_CAPACITY_BYTES_MIN = 64 * 1024
};

/* Of one range of Dataset Management, in blocks; the field has 32 bits. */
#define NVME_DSM_BLOCKS_MAX (UINT64_C(1) << 31)

/* block_shift turns bytes into logical blocks: 9 to 12. sysfs and block_fd are of the sibling block
 * device, and both may be missing. */
typedef struct nvme_device {
    tiers_queued queued;
    int fd;
    tiers_claim claim;
    int block_fd;    /* the sibling, held exclusively; -1 where it has no node */
    uint32_t number; /* of the namespace */
    uint32_t block_shift;
    bool write_cache;
    char sysfs[PATH_MAX]; /* folder of the sibling; empty when there is none */
} nvme_device;

/* The same command goes out in two ways: by ioctl, which blocks, and in a ring entry. Offsets and
 * sizes are in logical blocks of the namespace. */
/* ---- transfers ---- */

/* Sends one command by ioctl. Returns a negative errno, 0, or the drive's positive status. The
 * command's namespace is set here, so no caller can name another one. */
static int32_t nvme_command(const nvme_device *nvme, struct nvme_passthru_cmd64 *command)
{
    command->nsid = nvme->number;
    int result = ioctl(nvme->fd, NVME_IOCTL_IO64_CMD, command);
    return result < 0 ? -errno : result;
}

/* The first logical block of an operation. Offsets are multiples of a block: align_bytes is one. */
static uint64_t nvme_block_of(const nvme_device *nvme, const kvt_io *io)
{
    return io->offset >> nvme->block_shift;
}

/* The number of blocks as a command has it: 0 means one. */
static uint32_t nvme_blocks_less_one(const nvme_device *nvme, const kvt_io *io)
{
    return (io->bytes >> nvme->block_shift) - 1;
}

/* True when the operation is finished; false asks for another try. A command moves all or nothing.
 * Bytes are not counted, because a command says none. */
static bool nvme_settle(kvt_device *device, kvt_io *io, int32_t result, uint32_t *moved)
{
    (void)device;
    (void)moved;
    if (result == -EAGAIN || result == -EINTR) return false;
    int os_error;
    kvt_status status = nvme_status_of_result(result, &os_error);
    tiers_io_finish(io, status, os_error, base_clock_ns());
    return true;
}

/* Transfers by blocking commands; an interrupted one is tried again. The operation fails after
 * TIERS_QUEUE_RETRIES_MAX interruptions. */
static void nvme_run(kvt_device *device, kvt_io *io, uint32_t moved)
{
    const nvme_device *nvme = (const nvme_device *)device;
    uint64_t block = nvme_block_of(nvme, io);
    for (uint32_t retries = 0; retries <= TIERS_QUEUE_RETRIES_MAX; retries++) {
        struct nvme_passthru_cmd64 command = {.opcode = io->kind == KVT_IO_READ ? NVME_OPCODE_READ
                                                                                : NVME_OPCODE_WRITE,
                                              .addr = (uintptr_t)io->buffer,
                                              .data_len = io->bytes,
                                              .cdw10 = (uint32_t)block,
                                              .cdw11 = (uint32_t)(block >> 32),
                                              .cdw12 = nvme_blocks_less_one(nvme, io)};
        if (nvme_settle(device, io, nvme_command(nvme, &command), &moved)) return;
    }
    tiers_io_finish(io, KVT_E_IO, EIO, base_clock_ns());
}

/* Fills a ring entry with the command of an operation. The same fields as in nvme_run, in the form
 * that the ring takes. */
static void nvme_prepare(kvt_device *device, struct io_uring_sqe *entry, const kvt_io *io,
                         uint32_t moved, int buffer_index)
{
    const nvme_device *nvme = (const nvme_device *)device;
    uint64_t block = nvme_block_of(nvme, io);
    (void)moved;
    const struct nvme_uring_cmd command = {.opcode = io->kind == KVT_IO_READ ? NVME_OPCODE_READ
                                                                             : NVME_OPCODE_WRITE,
                                           .nsid = nvme->number,
                                           .addr = (uintptr_t)io->buffer,
                                           .data_len = io->bytes,
                                           .cdw10 = (uint32_t)block,
                                           .cdw11 = (uint32_t)(block >> 32),
                                           .cdw12 = nvme_blocks_less_one(nvme, io)};
    entry->opcode = IORING_OP_URING_CMD;
    entry->cmd_op = NVME_URING_CMD_IO;
    if (buffer_index >= 0) {
        entry->uring_cmd_flags = IORING_URING_CMD_FIXED;
        entry->buf_index = (uint16_t)buffer_index;
    }
    /* The command lies in the second half of a wide entry, behind the end of the struct. */
    memcpy((char *)entry + offsetof(struct io_uring_sqe, cmd), &command, sizeof command);
}

static const tiers_queue_calls nvme_queue_calls = {.names = {"ioctl", "uring_cmd", "ioctl_threads"},
                                                   .wide = true,
                                                   .run = nvme_run,
                                                   .prepare = nvme_prepare,
                                                   .settle = nvme_settle};

/* An open asks the kernel and the drive, and believes neither beyond what it can check: paths in
 * sysfs may be stale, and identify pages are bytes from outside. */
/* ---- opening ---- */

/* Opens and claims the character device, and asks it for the number of its namespace. A controller
 * node and a block device are refused with a hint, because their names look alike. */
static kvt_status nvme_reach(nvme_device *nvme, const tiers_opening *opening)
{
    struct stat facts;
    const char *path = opening->config->path;
    if (stat(path, &facts) != 0) return tiers_refuse_errno(opening, errno);
    if (S_ISBLK(facts.st_mode))
        return tiers_refuse(opening, KVT_E_ARGUMENT,
                            "is a block device: give its /dev/ng node, or use the back end file");
    if (!S_ISCHR(facts.st_mode))
        return tiers_refuse(opening, KVT_E_ARGUMENT, "is no character device of an NVMe namespace");
    nvme->fd = open(path, O_RDWR | O_CLOEXEC);
    if (nvme->fd < 0) return tiers_refuse_errno(opening, errno);
    kvt_status status = tiers_claim_acquire(&nvme->claim, nvme->fd, false);
    if (status == KVT_E_LOCKED) return tiers_refuse(opening, status, "already open elsewhere");
    if (status != KVT_OK) return tiers_refuse_errno(opening, errno);
    int number = ioctl(nvme->fd, NVME_IOCTL_ID);
    if (number < 0 && errno == ENOTTY)
        return tiers_refuse(opening, KVT_E_ARGUMENT, "is no character device of an NVMe namespace");
    if (number < 0) return tiers_refuse_errno(opening, errno);
    if (number == 0) return tiers_refuse(opening, KVT_E_ARGUMENT, "is a controller, no namespace");
    nvme->number = (uint32_t)number;
    return KVT_OK;
}

/* Finds the folder of the block device beside .../ng0n1 in sysfs: .../nvme0n1. Failure at any step
 * leaves sysfs empty, and with it the limits unknown. */
static void nvme_find_sibling(nvme_device *nvme)
{
    struct stat facts;
    char link[64];
    char folder[PATH_MAX];
    nvme->sysfs[0] = '\0';
    if (fstat(nvme->fd, &facts) != 0) return;
    snprintf(link, sizeof link, "/sys/dev/char/%u:%u", major(facts.st_rdev), minor(facts.st_rdev));
    if (realpath(link, folder) == NULL) return;
    char *name = strrchr(folder, '/');
    if (name == NULL || strncmp(name, "/ng", 3) != 0) return;
    *name = '\0';
    int length = snprintf(nvme->sysfs, sizeof nvme->sysfs, "%s/nvme%s", folder, name + 3);
    bool fits = length > 0 && (size_t)length < sizeof nvme->sysfs;
    if (!fits || access(nvme->sysfs, F_OK) != 0) nvme->sysfs[0] = '\0';
}

/* Opens the sibling block device exclusively, as the back end file would. A sibling without a node
 * cannot be mounted, so it needs no claim. The number in sysfs is compared with the node's, so a
 * stale node in /dev is not opened by mistake. */
static kvt_status nvme_claim_sibling(nvme_device *nvme, const tiers_opening *opening)
{
    char path[PATH_MAX];
    char number[32];
    char expected[32];
    struct stat facts;
    if (nvme->sysfs[0] == '\0') return KVT_OK;
    snprintf(path, sizeof path, "/dev/%s", strrchr(nvme->sysfs, '/') + 1);
    if (!tiers_sysfs_word(nvme->sysfs, "dev", number, sizeof number)) return KVT_OK;
    if (stat(path, &facts) != 0 || !S_ISBLK(facts.st_mode)) return KVT_OK;
    snprintf(expected, sizeof expected, "%u:%u", major(facts.st_rdev), minor(facts.st_rdev));
    if (strcmp(number, expected) != 0) return KVT_OK; /* somebody else's node of that name */
    nvme->block_fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
    if (nvme->block_fd >= 0) return KVT_OK;
    if (errno == EBUSY)
        return tiers_refuse(opening, KVT_E_LOCKED, "in use (mounted, or in an array)");
    return tiers_refuse_errno(opening, errno);
}

/* Reads one identify page. The bytes are the drive's and are not trusted. */
static kvt_status nvme_identify(const nvme_device *nvme, const tiers_opening *opening,
                                uint32_t what, uint8_t page[NVME_PAGE_BYTES])
{
    struct nvme_admin_cmd command = {.opcode = NVME_ADMIN_IDENTIFY,
                                     .nsid = what == NVME_CNS_NAMESPACE ? nvme->number : 0,
                                     .addr = (uintptr_t)page,
                                     .data_len = NVME_PAGE_BYTES,
                                     .cdw10 = what};
    int result = ioctl(nvme->fd, NVME_IOCTL_ADMIN_CMD, &command);
    if (result == 0) return KVT_OK;
    int os_error;
    kvt_status status = nvme_status_of_result(result < 0 ? -errno : result, &os_error);
    tiers_device_message(opening->message, opening->message_size, opening->config,
                         "%s: it does not identify itself: %s", opening->config->path,
                         strerror(os_error));
    return status;
}

/* Sets the capacity: the configured one, or the namespace's, in whole pages. A size that is not a
 * whole page loses the rest. */
static kvt_status nvme_set_size(nvme_device *nvme, const tiers_opening *opening, uint64_t size)
{
    uint64_t wanted = opening->config->capacity_bytes;
    uint64_t capacity = (wanted != 0 ? wanted : size) / NVME_PAGE_BYTES * NVME_PAGE_BYTES;
    if (capacity > size) return tiers_refuse(opening, KVT_E_SPACE, "is smaller than configured");
    if (capacity < NVME_CAPACITY_BYTES_MIN)
        return tiers_refuse(opening, KVT_E_SPACE, "too small: at least 64 KiB are needed");
    nvme->queued.base.facts.capacity_bytes = capacity;
    return KVT_OK;
}

/* Reads the drive's identify pages and sets the facts from them. A namespace that is
 * write-protected is refused, because a store without writes is none. */
static kvt_status nvme_set_facts(nvme_device *nvme, const tiers_opening *opening,
                                 uint8_t page[NVME_PAGE_BYTES], uint64_t *drive_bytes_out)
{
    nvme_controller controller;
    nvme_namespace space;
    const char *reason;
    kvt_device_facts *facts = &nvme->queued.base.facts;
    kvt_status status = nvme_identify(nvme, opening, NVME_CNS_CONTROLLER, page);
    if (status != KVT_OK) return status;
    nvme_parse_controller(page, &controller);
    status = nvme_identify(nvme, opening, NVME_CNS_NAMESPACE, page);
    if (status != KVT_OK) return status;
    status = nvme_parse_namespace(page, &space, &reason);
    if (status != KVT_OK) return tiers_refuse(opening, status, reason);
    if (space.read_only) return tiers_refuse(opening, KVT_E_READ_ONLY, "write-protected");
    status = nvme_set_size(nvme, opening, space.bytes);
    if (status != KVT_OK) return status;
    nvme->block_shift = space.block_shift;
    nvme->write_cache = controller.write_cache;
    facts->align_bytes = UINT32_C(1) << space.block_shift;
    /* The largest request that neither the drive nor the kernel refuses. Unknown limits leave
     * NVME_REQUEST_BYTES_MAX. */
    char folder[PATH_MAX];
    tiers_block_limits limits = {0};
    int length = snprintf(folder, sizeof folder, "%s/queue", nvme->sysfs);
    bool known = nvme->sysfs[0] != '\0' && length > 0 && (size_t)length < sizeof folder;
    if (known) tiers_limits_read(folder, true, &limits);
    if (controller.transfer_bytes_max != 0 &&
        (limits.transfer_bytes_max == 0 ||
         controller.transfer_bytes_max < limits.transfer_bytes_max))
        limits.transfer_bytes_max = controller.transfer_bytes_max;
    /* One segment is spare: a buffer that begins inside a page ends inside one more. */
    facts->request_bytes_max = tiers_limits_request_bytes(&limits, 1, NVME_REQUEST_BYTES_MAX);
    facts->flags |= KVT_DEVICE_DURABLE | KVT_DEVICE_DIRECT;
    if (opening->config->trim && controller.deallocates) facts->flags |= KVT_DEVICE_TRIM;
    nvme_identity(&controller, &space, nvme->number, facts->identity);
    *drive_bytes_out = space.bytes;
    return KVT_OK;
}

/* Whether partitions or holders (a volume, an array) stand on the sibling. mark "" asks for any
 * entry of the folder, such as a holder. */
static bool nvme_sibling_has(const nvme_device *nvme, const char *folder, const char *mark)
{
    char path[PATH_MAX];
    bool found = false;
    int length = snprintf(path, sizeof path, "%s%s", nvme->sysfs, folder);
    if (nvme->sysfs[0] == '\0' || length < 0 || (size_t)length >= sizeof path) return false;
    DIR *entries = opendir(path);
    if (entries == NULL) return false;
    for (const struct dirent *one; !found && (one = readdir(entries)) != NULL;) {
        char inner[PATH_MAX];
        if (one->d_name[0] == '.') continue;
        length = snprintf(inner, sizeof inner, "%s/%s%s", path, one->d_name, mark);
        found = length > 0 && (size_t)length < sizeof inner && access(inner, F_OK) == 0;
    }
    closedir(entries);
    return found;
}

/* The steps of an open: reach, claim the sibling, facts, marks of another use, queue. The marks are
 * looked for last, because reading them needs block_shift and the limits. */
static kvt_status nvme_set_up(nvme_device *nvme, const tiers_opening *opening, void *page)
{
    uint64_t drive_bytes = 0;
    kvt_status status = nvme_reach(nvme, opening);
    if (status != KVT_OK) return status;
    nvme_find_sibling(nvme);
    status = nvme_claim_sibling(nvme, opening);
    if (status == KVT_OK) status = nvme_set_facts(nvme, opening, page, &drive_bytes);
    if (status != KVT_OK) return status;
    if (nvme_sibling_has(nvme, "/holders", ""))
        return tiers_refuse(opening, KVT_E_LOCKED, "in use (a volume or array stands on it)");
    if (nvme_sibling_has(nvme, "", "/partition") ||
        tiers_signature_found(&nvme->queued.base, nvme_run, drive_bytes, page))
        nvme->queued.base.facts.flags |= KVT_DEVICE_FOREIGN;
    tiers_queued_open(&nvme->queued, &nvme_queue_calls, nvme->fd, opening->config);
    return KVT_OK;
}

/* Closes in the reverse order of the open; parts that were not opened are skipped. The claim is
 * given up while the file is open. */
static void nvme_release(nvme_device *nvme)
{
    tiers_queue_close(&nvme->queued.queue);
    if (nvme->block_fd >= 0) close(nvme->block_fd);
    tiers_claim_release(&nvme->claim);
    if (nvme->fd >= 0) close(nvme->fd);
    free(nvme);
}

/* The page serves all identify commands and the search for marks. */
static kvt_status nvme_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                            size_t message_size)
{
    const tiers_opening opening = {config, message, message_size};
    if (config->depth > TIERS_QUEUE_DEPTH_MAX)
        return tiers_refuse(&opening, KVT_E_ARGUMENT, "the depth is above 4096");
    nvme_device *nvme = calloc(1, sizeof *nvme);
    void *page = aligned_alloc(NVME_PAGE_BYTES, NVME_PAGE_BYTES);
    if (nvme == NULL || page == NULL) {
        free(nvme);
        free(page);
        return tiers_refuse(&opening, KVT_E_MEMORY, "out of memory");
    }
    nvme->fd = -1;
    nvme->block_fd = -1;
    tiers_device_init(&nvme->queued.base, &tiers_nvme_ops, config);
    kvt_status status = nvme_set_up(nvme, &opening, page);
    free(page);
    if (status != KVT_OK) {
        nvme_release(nvme);
        return status;
    }
    *device_out = &nvme->queued.base;
    return KVT_OK;
}

/* ---- the interface ---- */

/* Gives back what the open took; nothing is in flight. */
static void nvme_close(kvt_device *device)
{
    nvme_release((nvme_device *)device);
}

/* A control command, tried again when it was only interrupted. Commands are idempotent, so trying
 * again does no harm. */
static kvt_status nvme_control(const nvme_device *nvme, const struct nvme_passthru_cmd64 *command)
{
    int32_t result = 0;
    int os_error;
    for (uint32_t retries = 0; retries <= TIERS_QUEUE_RETRIES_MAX; retries++) {
        struct nvme_passthru_cmd64 attempt = *command;
        result = nvme_command(nvme, &attempt);
        if (result != -EAGAIN && result != -EINTR) break;
    }
    return nvme_status_of_result(result, &os_error);
}

/* A drive without a volatile write cache has made every completed write durable. */
static kvt_status nvme_sync(kvt_device *device)
{
    const nvme_device *nvme = (const nvme_device *)device;
    if (!nvme->write_cache) return KVT_OK; /* what was written is safe */
    return nvme_control(nvme, &(struct nvme_passthru_cmd64){.opcode = NVME_OPCODE_FLUSH});
}

/* A range longer than one command takes several. The first that fails ends the call: what was
 * trimmed before is trimmed. */
static kvt_status nvme_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    const nvme_device *nvme = (const nvme_device *)device;
    /* One range: attributes, length in blocks, first block. */
    struct nvme_range {
        uint32_t attributes;
        uint32_t blocks;
        uint64_t first;
    };
    _Static_assert(sizeof(struct nvme_range) == 16, "as the drive reads it");
    kvt_status status = KVT_OK;
    uint64_t first = offset >> nvme->block_shift;
    uint64_t left = bytes >> nvme->block_shift;
    while (left > 0 && status == KVT_OK) {
        uint64_t blocks = left < NVME_DSM_BLOCKS_MAX ? left : NVME_DSM_BLOCKS_MAX;
        struct nvme_range range = {.blocks = (uint32_t)blocks, .first = first};
        status = nvme_control(nvme, &(struct nvme_passthru_cmd64){.opcode = NVME_OPCODE_DSM,
                                                                  .addr = (uintptr_t)&range,
                                                                  .data_len = sizeof range,
                                                                  .cdw11 = NVME_DSM_DEALLOCATE});
        first += blocks;
        left -= blocks;
    }
    return status;
}

const kvt_device_ops tiers_nvme_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "nvme",
    .open = nvme_open,
    .close = nvme_close,
    .submit = tiers_queued_submit,
    .flush = tiers_queued_flush,
    .reap = tiers_queued_reap,
    .sync = nvme_sync,
    .attach = tiers_queued_attach,
    .detach = tiers_queued_detach,
    .register_buffers = tiers_queued_register,
    .trim = nvme_trim,
    .wake = tiers_queued_wake,
};
