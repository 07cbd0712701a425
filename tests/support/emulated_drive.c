/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulated_drive.c - an emulated SSD: a FUSE file of exact speed whose faults are set at run time.
 *
 *     emulated_drive FOLDER SIZE [--for SECONDS] [--with-parent] [KEY=VALUE...]
 *
 * The drive is FOLDER/drive; FOLDER/control reads and takes the settings of drive_settings.h. One
 * process looks after the drive and keeps its bytes, a child serves it:
 *
 *     SIGUSR1   kills the server: the drive vanishes, requests in flight fail
 *     SIGUSR2   serves again, with the bytes and settings that were there (and no hang)
 *     SIGTERM   unmounts and ends; so does the end of --for (one hour unless given) and, with
 *               --with-parent, the end of whoever started it; FOLDER goes too then
 *
 * Prints "ready" when the drive is there. Needs root and /dev/fuse; exit 77 without them.
 *
 * Thread rule: one thread here; the server has its own (drive_serve.c).
 */
#include "drive_serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DRIVE_USAGE = 2, DRIVE_ABSENT = 77, DRIVE_SECONDS_DEFAULT = 3600 };

typedef struct drive {
    const char *folder;
    uint64_t bytes;
    uint64_t seconds;
    bool with_parent;
    drive_state *state;
    unsigned char *content;
    pid_t server; /* 0 = none */
} drive;

static void *drive_map(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* where shared memory may have huge pages */
    memset(memory, 0, bytes);                    /* so that no request pays for a page fault */
    return memory;
}

/* Starts the server and waits for its mount. */
static bool drive_start(drive *self)
{
    int ready[2];
    if (pipe(ready) != 0) return false;
    pid_t parent = getpid();
    pid_t server = fork();
    if (server == 0) {
        close(ready[0]);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            drive_serve(self->folder, self->state, self->content, self->bytes, ready[1]);
        _exit(1);
    }
    char byte;
    close(ready[1]);
    bool started = server > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    if (server > 0 && !started) waitpid(server, NULL, 0);
    self->server = started ? server : 0;
    return started;
}

/* The drive vanishes; its mount stays and answers every request with an error. */
static void drive_kill(drive *self)
{
    if (self->server == 0) return;
    kill(self->server, SIGKILL);
    waitpid(self->server, NULL, 0);
    self->server = 0;
}

static bool drive_back(drive *self)
{
    if (self->server != 0) return true;
    (void)umount2(self->folder, MNT_DETACH);
    self->state->settings.hang = false;
    return drive_start(self);
}

/* Serves until a signal or the time says stop. */
static bool drive_look_after(drive *self, const sigset_t *signals)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t end = now.tv_sec + (time_t)self->seconds;
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= end) return true;
        struct timespec rest = {.tv_sec = end - now.tv_sec};
        int signal_number = sigtimedwait(signals, NULL, &rest);
        if (signal_number == SIGUSR1) {
            drive_kill(self);
        } else if (signal_number == SIGUSR2) {
            if (!drive_back(self)) return false;
        } else if (signal_number == SIGCHLD) {
            if (self->server != 0 && waitpid(self->server, NULL, WNOHANG) == self->server)
                self->server = 0;
        } else if (signal_number > 0) {
            return true;
        }
    }
}

static bool drive_parse(int count, char **words, drive *self, drive_settings *settings)
{
    int given = 0;
    self->seconds = DRIVE_SECONDS_DEFAULT;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--for") == 0 && i + 1 < count) {
            if (!drive_number_read(words[++i], &self->seconds)) return false;
        } else if (strcmp(words[i], "--with-parent") == 0) {
            self->with_parent = true;
        } else if (given >= 2) {
            if (!drive_settings_apply(settings, words[i])) return false;
        } else if (given++ == 0) {
            self->folder = words[i];
        } else if (!drive_number_read(words[i], &self->bytes) || self->bytes < 65536 ||
                   self->bytes % 4096 != 0) {
            return false;
        }
    }
    return given == 2 && self->seconds > 0 && self->seconds <= 7 * 24 * 3600;
}

int main(int argc, char **argv)
{
    drive self = {.folder = NULL};
    drive_settings settings = {.shared = true};
    if (!drive_parse(argc, argv, &self, &settings)) {
        fprintf(stderr, "usage: emulated_drive FOLDER SIZE [--for SECONDS] [--with-parent] "
                        "[KEY=VALUE...]\n");
        return DRIVE_USAGE;
    }
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) != 0) {
        fprintf(stderr, "emulated_drive: needs root and /dev/fuse\n");
        return DRIVE_ABSENT;
    }
    if (self.with_parent) prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigset_t signals;
    sigemptyset(&signals);
    static const int taken[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&signals, taken[i]);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    self.content = drive_map(self.bytes);
    self.state = drive_map(sizeof *self.state);
    if (self.content == NULL || self.state == NULL) {
        fprintf(stderr, "emulated_drive: no memory for the drive\n");
        return 1;
    }
    self.state->settings = settings;
    if (!drive_start(&self)) return DRIVE_ABSENT;
    printf("ready\n");
    fflush(stdout);
    bool fine = drive_look_after(&self, &signals);
    drive_kill(&self);
    (void)umount2(self.folder, MNT_DETACH);
    if (self.with_parent) (void)rmdir(self.folder); /* the parent may be gone */
    return fine ? 0 : 1;
}
