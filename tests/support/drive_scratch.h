/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_scratch.h - emulated drives and loop devices for tests; each is gone when its test is, also
 * when that was killed.
 *
 * Every make function returns false where the machine cannot make it, and the test skips.
 *
 * Thread rule: one thread, which stays while a drive is up (the drive ends with it).
 */
#ifndef SUPPORT_DRIVE_SCRATCH_H
#define SUPPORT_DRIVE_SCRATCH_H

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- a FUSE drive ---- */

typedef struct drive_scratch {
    char folder[32];
    char path[48]; /* of the drive */
    char control[48];
    pid_t keeper;
} drive_scratch;

static inline void drive_scratch_run(const drive_scratch *drive, const char *bytes,
                                     const char *settings, int output)
{
    char program[4096];
    const char *folder = getenv("KVT_BINARY_DIR");
    snprintf(program, sizeof program, "%s/emulated_drive", folder != NULL ? folder : ".");
    dup2(output, STDOUT_FILENO);
    execl(program, program, drive->folder, bytes, "--with-parent", "--for", "300", settings,
          (char *)NULL);
    _exit(77);
}

/* bytes as the program takes it ("16Mi"); one setting, such as "latency_us=0". */
static inline bool drive_scratch_make(drive_scratch *drive, const char *bytes, const char *settings)
{
    int output[2];
    char ready[8] = "";
    char folder[] = "/tmp/kvt-drive-XXXXXX";
    drive->keeper = 0;
    if (mkdtemp(folder) == NULL) return false;
    snprintf(drive->folder, sizeof drive->folder, "%s", folder);
    snprintf(drive->path, sizeof drive->path, "%s/drive", folder);
    snprintf(drive->control, sizeof drive->control, "%s/control", folder);
    if (pipe2(output, O_CLOEXEC) != 0) return false;
    drive->keeper = fork();
    if (drive->keeper == 0) drive_scratch_run(drive, bytes, settings, output[1]);
    close(output[1]);
    bool up = drive->keeper > 0 && read(output[0], ready, sizeof ready - 1) > 0;
    close(output[0]);
    if (up) return true;
    if (drive->keeper > 0) waitpid(drive->keeper, NULL, 0);
    drive->keeper = 0;
    rmdir(drive->folder);
    return false;
}

static inline void drive_scratch_remove(drive_scratch *drive)
{
    if (drive->keeper <= 0) return;
    kill(drive->keeper, SIGTERM);
    waitpid(drive->keeper, NULL, 0);
    rmdir(drive->folder);
    drive->keeper = 0;
}

static inline bool drive_scratch_set(const drive_scratch *drive, const char *settings)
{
    int fd = open(drive->control, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool taken = write(fd, settings, strlen(settings)) == (ssize_t)strlen(settings);
    close(fd);
    return taken;
}

static inline bool drive_scratch_answers(const drive_scratch *drive)
{
    char byte;
    int fd = open(drive->control, O_RDONLY | O_CLOEXEC);
    bool answers = fd >= 0 && read(fd, &byte, 1) == 1;
    if (fd >= 0) close(fd);
    return answers;
}

static inline bool drive_scratch_signal(const drive_scratch *drive, int signal_number, bool answers)
{
    const struct timespec nap = {.tv_nsec = 10000000};
    if (kill(drive->keeper, signal_number) != 0) return false;
    while (drive_scratch_answers(drive) != answers) /* the time limit ends what never comes */
        nanosleep(&nap, NULL);
    return true;
}

/* The drive vanishes. */
static inline bool drive_scratch_kill(const drive_scratch *drive)
{
    return drive_scratch_signal(drive, SIGUSR1, false);
}

/* It returns, with the bytes that it had. */
static inline bool drive_scratch_back(const drive_scratch *drive)
{
    return drive_scratch_signal(drive, SIGUSR2, true);
}

/* ---- a loop device, and files that have no folder ---- */

typedef struct loop_scratch {
    char path[32];
    int fd; /* keeps it; closing the last one frees the loop */
} loop_scratch;

/* A loop over an open file, unless the machine has no free one. */
static inline bool loop_scratch_make(loop_scratch *loop, int backing, uint32_t flags)
{
    struct loop_config config = {.fd = (uint32_t)backing,
                                 .info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO | flags};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    loop->fd = -1;
    for (int i = 0; i < 16 && control >= 0; i++) { /* another process may be faster */
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0) break;
        snprintf(loop->path, sizeof loop->path, "/dev/loop%d", number);
        bool read_only = (flags & LO_FLAGS_READ_ONLY) != 0;
        int fd = open(loop->path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
        if (fd >= 0 && ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
            loop->fd = fd;
            break;
        }
        if (fd >= 0) close(fd);
    }
    if (control >= 0) close(control);
    return loop->fd >= 0;
}

static inline void loop_scratch_remove(loop_scratch *loop)
{
    if (loop->fd >= 0) close(loop->fd);
    loop->fd = -1;
}

/* A file in memory; -1 where there is none. */
static inline int memory_scratch_file(uint64_t bytes)
{
    int fd = memfd_create("kvt-scratch", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* A sparse file of `bytes` in a file system that holds `room` bytes; neither has a name, so both go
 * with the descriptor. -1 where nothing can be mounted. */
static inline int full_scratch_file(uint64_t bytes, uint64_t room)
{
    char folder[] = "/tmp/kvt-full-XXXXXX";
    char option[48];
    char path[64];
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(option, sizeof option, "size=%llu", (unsigned long long)room);
    int fd = -1;
    if (mount("tmpfs", folder, "tmpfs", 0, option) == 0) {
        snprintf(path, sizeof path, "%s/file", folder);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        (void)umount2(folder, MNT_DETACH);
    }
    rmdir(folder);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

#endif
