/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_guard.c - waits for a bench and cleans up behind it.
 *
 * A measurement looks at no flag between two requests, and one that waits for a device could not:
 * another process ends it. One thread.
 */
#include "bench_guard.h"

#include "command.h"

#include "lab/bench/bench_parts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child: signals act as before, and it ends with its parent. */
static void guard_begin(const sigset_t *before, pid_t parent)
{
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILED);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
}

/* Signals that come between two looks at the flag stay blocked until sigsuspend. */
static int guard_wait(pid_t child, const sigset_t *before)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        if (command_interrupted()) {
            (void)kill(child, SIGKILL);
            ended = waitpid(child, &status, 0);
            break;
        }
        (void)sigsuspend(before);
    }
    bench_scratch_remove();
    if (command_interrupted()) {
        if (isatty(STDERR_FILENO) == 1) fputs("\r\033[K", stderr); /* the child's bar */
        return command_finish(command_fail(KVT_E_CANCELLED, "interrupted"));
    }
    if (ended == child && WIFEXITED(status)) return WEXITSTATUS(status);
    if (ended == child && WIFSIGNALED(status))
        fprintf(stderr, "kvterrace bench: signal %d ended it\n", WTERMSIG(status));
    return EXIT_FAILED;
}

static void guard_child_ended(int number)
{
    (void)number;
}

bool bench_guard(bool json, int *code_out)
{
    const struct sigaction ended = {.sa_handler = guard_child_ended};
    const pid_t self = getpid();
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    (void)sigaction(SIGCHLD, &ended, NULL);
    command_catch_interrupts();
    pid_t child = -1;
    if (bench_scratch_share() == 0) {
        (void)fflush(NULL);
        child = fork();
    }
    if (child == 0) {
        /* The rows that are finished are out when the rest is not to come. */
        if (!json) (void)setvbuf(stdout, NULL, _IOLBF, 0);
        (void)signal(SIGCHLD, SIG_DFL);
        guard_begin(&before, self);
        return false;
    }
    *code_out = child > 0 ? guard_wait(child, &before) : command_fail(KVT_E_MEMORY, "");
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return true;
}
