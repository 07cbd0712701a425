/* SPDX-License-Identifier: Apache-2.0 */
/*
 * power_record.c - logs every change of a folder's files by standing before the C library's calls.
 *
 * The functions below have the names of the C library's, which is how the store and SQLite come to
 * call them; each passes on to the kernel and logs what has succeeded.
 *
 * Thread rule: any thread; one lock orders the log.
 */
#include "power.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POWER_EXPORT __attribute__((visibility("default")))

typedef struct power_state {
    pthread_mutex_t lock;
    bool recording;
    char folder[200];
    dev_t device;
    ino_t inodes[POWER_FILES_MAX]; /* of model files; the last one with a number counts */
    uint32_t file_count;
    power_event *events;
    uint32_t count, room;
} power_state;

static power_state power = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Lock held. */
static power_event *power_add(power_kind kind)
{
    if (power.count == power.room) {
        power.room = power.room == 0 ? 1024 : power.room * 2;
        power.events = realloc(power.events, power.room * sizeof *power.events);
        if (power.events == NULL) abort();
    }
    power_event *event = &power.events[power.count++];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
}

void power_record_begin(const char *folder)
{
    struct stat facts;
    if (stat(folder, &facts) != 0) abort();
    snprintf(power.folder, sizeof power.folder, "%s", folder);
    power.device = facts.st_dev;
    power.recording = true;
}

void power_record_end(void)
{
    power.recording = false;
}

void power_mark(int mark, uint32_t number, uint32_t version)
{
    if (!power.recording) return;
    pthread_mutex_lock(&power.lock);
    power_event *event = power_add(POWER_MARK);
    event->mark = mark;
    event->number = number;
    event->version = version;
    pthread_mutex_unlock(&power.lock);
}

const power_event *power_log(uint32_t *count_out)
{
    *count_out = power.count;
    return power.events;
}

/* ---- which file ---- */

/* The model's file behind a descriptor; false for those that are none of the folder. Lock held. */
static bool power_find(int fd, uint32_t *file_out)
{
    struct stat facts;
    if (!power.recording || fstat(fd, &facts) != 0 || facts.st_dev != power.device) return false;
    for (uint32_t i = power.file_count; i-- > 0;) {
        if (power.inodes[i] != facts.st_ino) continue;
        *file_out = i;
        return true;
    }
    return false;
}

/* The name within the folder, or NULL. */
static const char *power_name(const char *path)
{
    size_t length = strlen(power.folder);
    if (!power.recording || strncmp(path, power.folder, length) != 0) return NULL;
    return path[length] == '/' ? path + length + 1 : NULL;
}

static void power_log_names(power_kind kind, const char *name, const char *target)
{
    const char *from = power_name(name), *to = target == NULL ? "" : power_name(target);
    if (from == NULL || to == NULL) return;
    pthread_mutex_lock(&power.lock);
    power_event *event = power_add(kind);
    snprintf(event->name, sizeof event->name, "%s", from);
    snprintf(event->target, sizeof event->target, "%s", to);
    pthread_mutex_unlock(&power.lock);
}

static void power_log_create(const char *path, int fd)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) return;
    pthread_mutex_lock(&power.lock);
    if (power.file_count == POWER_FILES_MAX) abort();
    power.inodes[power.file_count] = facts.st_ino;
    power_event *event = power_add(POWER_CREATE);
    event->file = power.file_count++;
    snprintf(event->name, sizeof event->name, "%s", power_name(path));
    pthread_mutex_unlock(&power.lock);
}

static void power_log_write(int fd, const void *data, uint64_t bytes, uint64_t offset)
{
    uint32_t file;
    pthread_mutex_lock(&power.lock);
    if (power_find(fd, &file)) {
        power_event *event = power_add(POWER_WRITE);
        event->file = file;
        event->offset = offset;
        event->bytes = bytes;
        event->data = malloc(bytes);
        if (event->data == NULL) abort();
        memcpy(event->data, data, bytes);
    }
    pthread_mutex_unlock(&power.lock);
}

static void power_log_size(int fd, uint64_t size, bool grow_only)
{
    uint32_t file;
    pthread_mutex_lock(&power.lock);
    if (power_find(fd, &file)) {
        power_event *event = power_add(POWER_SIZE);
        event->file = file;
        event->offset = size;
        event->bytes = grow_only;
    }
    pthread_mutex_unlock(&power.lock);
}

/* ---- the calls ---- */

POWER_EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset);
POWER_EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    ssize_t done = syscall(SYS_pwrite64, fd, data, bytes, offset);
    if (done > 0) power_log_write(fd, data, (uint64_t)done, (uint64_t)offset);
    return done;
}

POWER_EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return pwrite64(fd, data, bytes, offset);
}

POWER_EXPORT int ftruncate64(int fd, off64_t size);
POWER_EXPORT int ftruncate64(int fd, off64_t size)
{
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (result == 0) power_log_size(fd, (uint64_t)size, false);
    return result;
}

POWER_EXPORT int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

POWER_EXPORT int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    if (result == 0 && mode == 0) power_log_size(fd, (uint64_t)(offset + bytes), true);
    return result;
}

static int power_sync(int fd, long call)
{
    struct stat facts;
    uint32_t file = 0;
    pthread_mutex_lock(&power.lock);
    bool known = power_find(fd, &file);
    bool names = power.recording && fstat(fd, &facts) == 0 && S_ISDIR(facts.st_mode);
    uint32_t covered = power.count;
    pthread_mutex_unlock(&power.lock);
    int result = (int)syscall(call, fd);
    if (result != 0 || (!known && !names)) return result;
    pthread_mutex_lock(&power.lock);
    power_event *event = power_add(names ? POWER_SYNC_NAMES : POWER_SYNC);
    event->file = file;
    event->covered = covered;
    pthread_mutex_unlock(&power.lock);
    return result;
}

POWER_EXPORT int fsync(int fd)
{
    return power_sync(fd, SYS_fsync);
}

POWER_EXPORT int fdatasync(int fd)
{
    return power_sync(fd, SYS_fdatasync);
}

POWER_EXPORT int unlink(const char *path)
{
    int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (result == 0) power_log_names(POWER_UNLINK, path, NULL);
    return result;
}

POWER_EXPORT int link(const char *path, const char *target)
{
    int result = (int)syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, target, 0);
    if (result == 0) power_log_names(POWER_LINK, path, target);
    return result;
}

POWER_EXPORT int renameat2(int folder, const char *path, int target_folder, const char *target,
                           unsigned flags)
{
    int result = (int)syscall(SYS_renameat2, folder, path, target_folder, target, flags);
    if (result == 0) power_log_names(POWER_RENAME, path, target);
    return result;
}

POWER_EXPORT int rename(const char *path, const char *target)
{
    return renameat2(AT_FDCWD, path, AT_FDCWD, target, 0);
}

static int power_open(const char *path, int flags, mode_t mode)
{
    bool may_make = (flags & O_CREAT) != 0 && power_name(path) != NULL;
    struct stat facts;
    bool there = may_make && stat(path, &facts) == 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && may_make && !there) power_log_create(path, fd);
    if (fd >= 0 && (flags & O_TRUNC) != 0) power_log_size(fd, 0, false);
    return fd;
}

POWER_EXPORT int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return power_open(path, flags, mode);
}

POWER_EXPORT int open64(const char *path, int flags, ...);
POWER_EXPORT int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return power_open(path, flags, mode);
}
