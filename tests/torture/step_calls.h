/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_calls.h - a child of fork whose nth call that changes a file is its last one, or fails, or
 * finds the disk full; whose nth allocation fails; or that dies at the nth kill point it passes.
 *
 * The calls are counted here, in front of the C library, which SQLite uses too. So this header
 * belongs to one source file of a program. A sweep makes runs with n = 1, 2, ... until one ends
 * before its nth call. What a process that is killed leaves behind changes at no other moment.
 */
#ifndef TORTURE_STEP_CALLS_H
#define TORTURE_STEP_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum step_kind {
    STEP_KILL,
    STEP_FAIL,
    STEP_FULL,
    STEP_ALLOCATE, /* of programs whose allocations are wrapped (cmake/tests.cmake) */
    STEP_POINT,    /* of programs with kill points */
    STEP_KINDS
} step_kind;

static const char *const step_names[STEP_KINDS] = {"kill", "fail", "full disk", "allocation",
                                                   "kill point"};

static step_kind step_does;
static _Atomic long step_at; /* 0: nothing is counted */
static _Atomic long steps;

/* Whether a call of a kind that counts is the one. */
static bool step_is_due(bool counts)
{
    return step_at != 0 && counts && atomic_fetch_add(&steps, 1) + 1 == step_at;
}

static inline void step_die(void)
{
    (void)kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* True when this call, which changes a file, is the one that fails. */
static bool step_fails(void)
{
    if (!step_is_due(step_does <= STEP_FULL)) return false;
    if (step_does == STEP_KILL) step_die();
    errno = step_does == STEP_FULL ? ENOSPC : EIO;
    return true;
}

/* Syncs change nothing that a kill can show, but they fail. */
static bool sync_fails(void)
{
    return step_does == STEP_FAIL && step_fails();
}

/* SQLite, in a library of its own, calls these too. */
#pragma GCC visibility push(default)

#define STEP(type, name, parameters, ...)                                                          \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        return step_fails() ? (type)-1 : (type)syscall(__VA_ARGS__);                               \
    }

STEP(ssize_t, write, (int fd, const void *data, size_t bytes), SYS_write, fd, data, bytes)
STEP(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at), SYS_pwrite64, fd, data,
     bytes, at)
STEP(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off64_t at), SYS_pwrite64, fd,
     data, bytes, at)
STEP(int, ftruncate, (int fd, off_t bytes), SYS_ftruncate, fd, bytes)
STEP(int, ftruncate64, (int fd, off64_t bytes), SYS_ftruncate, fd, bytes)
STEP(int, fallocate, (int fd, int mode, off_t at, off_t bytes), SYS_fallocate, fd, mode, at, bytes)
STEP(int, fallocate64, (int fd, int mode, off64_t at, off64_t bytes), SYS_fallocate, fd, mode, at,
     bytes)
STEP(int, fchmod, (int fd, mode_t mode), SYS_fchmod, fd, mode)
STEP(int, unlink, (const char *path), SYS_unlink, path)
STEP(int, rename, (const char *from, const char *to), SYS_rename, from, to)
STEP(int, link, (const char *from, const char *to), SYS_link, from, to)
STEP(int, renameat2, (int from_at, const char *from, int to_at, const char *to, unsigned flags),
     SYS_renameat2, from_at, from, to_at, to, flags)

int fsync(int fd)
{
    return sync_fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_fails() ? -1 : (int)syscall(SYS_fdatasync, fd);
}

static int open_step(const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) != 0 && step_fails()) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open_step(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open_step(path, flags, mode);
}

#pragma GCC visibility pop

/* ---- runs in a child ---- */

/* How a child ended, and what it had told until then. */
typedef struct step_end {
    uint32_t told; /* bits of letters: STEP_TOLD('a') */
    bool killed;
    bool counted; /* it came to its nth call */
    int code;     /* of a child that was not killed, 0 or 1 where nothing went wrong */
} step_end;

#define STEP_TOLD(letter) (1u << ((letter) - 'a'))

typedef void step_child(void *context, int pipe_end);

/* Says a small letter to the parent; that call does not count. */
static inline void step_tell(int pipe_end, char letter)
{
    const long at = step_at;
    step_at = 0;
    if (write(pipe_end, &letter, 1) != 1) _exit(9);
    step_at = at;
}

/* Runs a child, which stops counting (step_at = 0) before what is not to be disturbed, and ends by
 * returning, or with a code from 2 on where something is wrong. */
static inline step_end step_run(step_child *child, void *context, step_kind does, long at)
{
    int ends[2], status;
    char letter;
    step_end end = {.killed = false};
    assert_int_equal(pipe(ends), 0);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        close(ends[0]);
        step_does = does;
        step_at = at;
        child(context, ends[1]);
        _exit(atomic_load(&steps) < at ? 1 : 0);
    }
    close(ends[1]);
    while (read(ends[0], &letter, 1) == 1)
        end.told |= STEP_TOLD(letter);
    close(ends[0]);
    assert_int_equal(waitpid(process, &status, 0), process);
    end.killed = WIFSIGNALED(status);
    if (end.killed) assert_int_equal(WTERMSIG(status), SIGKILL);
    end.code = end.killed ? 0 : WEXITSTATUS(status);
    if (end.code > 1) fail_msg("%s %ld: the run ends with %d", step_names[does], at, end.code);
    end.counted = end.killed || end.code == 0;
    return end;
}

#endif
